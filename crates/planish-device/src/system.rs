//! What the operating system tells about this process and the machine's present state.

use std::fs;
use std::path::Path;

/// Load averages over 1, 5 and 15 minutes, where the system keeps them.
pub fn load_average() -> Option<[f64; 3]> {
    let mut averages = [0.0; 3];
    // SAFETY: the array has room for the three values asked for.
    let got = unsafe { libc::getloadavg(averages.as_mut_ptr(), 3) };
    (got == 3).then_some(averages)
}

/// Processor time since some fixed moment, seconds, summed over the machine's processors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Usage {
    /// All of it.
    pub all_s: f64,
    /// What others used than this process, its ended children and the one it asks for, or what the host of a virtual
    /// machine took.
    pub others_s: f64,
}

/// The processor time until now, where the system tells; `child` is a process of ours that has not ended.
pub fn usage(child: Option<u32>) -> Option<Usage> {
    // SAFETY: it takes a number and returns one.
    let ticks_per_s = unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as f64;
    let of_child = |id| child_ticks(&fs::read_to_string(format!("/proc/{id}/stat")).ok()?);
    // One that has just ended is counted with the ended ones as soon as it is waited for.
    let child_s = child.and_then(of_child).unwrap_or(0.0) / ticks_per_s;
    let own_s = own_s(libc::RUSAGE_SELF)? + own_s(libc::RUSAGE_CHILDREN)? + child_s;
    usage_in(&fs::read_to_string("/proc/stat").ok()?, ticks_per_s, own_s)
}

/// The first line of /proc/stat: user, nice, system, idle, waiting for a disk, two kinds of interrupts, stolen.
fn usage_in(stat: &str, ticks_per_s: f64, own_s: f64) -> Option<Usage> {
    let ticks = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace().take(8);
    let ticks: Vec<f64> = ticks.map(|t| t.parse().ok()).collect::<Option<_>>()?;
    let idle = ticks.get(3)? + ticks.get(4)?;
    let all: f64 = ticks.iter().sum();
    Some(Usage { all_s: all / ticks_per_s, others_s: (all - idle) / ticks_per_s - own_s })
}

/// Ticks of a process and its ended children: fields 14 to 17 of its line, whose second is a name in brackets that may
/// hold anything.
fn child_ticks(stat: &str) -> Option<f64> {
    let (_, fields) = stat.rsplit_once(") ")?;
    let ticks: Vec<f64> = fields.split(' ').skip(11).take(4).map(|t| t.parse().ok()).collect::<Option<_>>()?;
    (ticks.len() == 4).then(|| ticks.iter().sum())
}

/// Processor time of this process or of its ended children, seconds.
fn own_s(who: libc::c_int) -> Option<f64> {
    // SAFETY: all-zero is a valid rusage, and getrusage only writes it.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        if libc::getrusage(who, &mut usage) != 0 {
            return None;
        }
        usage
    };
    let seconds = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 * 1e-6;
    Some(seconds(usage.ru_utime) + seconds(usage.ru_stime))
}

/// The most memory this process has had resident, bytes.
pub fn peak_rss_bytes() -> Option<u64> {
    if let Ok(status) = fs::read_to_string("/proc/self/status") {
        let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
        return Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024);
    }
    // SAFETY: all-zero is a valid rusage, and getrusage only writes it.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        if libc::getrusage(libc::RUSAGE_SELF, &mut usage) != 0 {
            return None;
        }
        usage
    };
    let unit = if cfg!(target_vendor = "apple") { 1 } else { 1024 };
    u64::try_from(usage.ru_maxrss).ok().map(|n| n * unit)
}

/// Memory that programs can still have without others being pushed out, bytes, where the system tells it.
pub fn available_bytes() -> Option<u64> {
    let info = fs::read_to_string("/proc/meminfo").ok()?;
    let line = info.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

/// How the system sets the clock of the processor; each fact only where it can be read.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Governor {
    /// Name of the frequency policy.
    pub name: Option<String>,
    /// Whether clocks above the nominal one are allowed.
    pub boost: Option<bool>,
}

/// The frequency policy of the first processor.
pub fn governor() -> Governor {
    let cpu = Path::new("/sys/devices/system/cpu");
    let text = |path: &str| fs::read_to_string(cpu.join(path)).ok().map(|t| t.trim().to_string());
    let boost = text("cpufreq/boost").map(|t| t == "1");
    let no_turbo = text("intel_pstate/no_turbo").map(|t| t == "0");
    Governor { name: text("cpu0/cpufreq/scaling_governor"), boost: boost.or(no_turbo) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_counts_what_was_touched() {
        let before = peak_rss_bytes().expect("known on this system");
        let touched = std::hint::black_box(vec![1u8; 256 << 20]);
        let after = peak_rss_bytes().expect("known on this system");
        drop(touched);
        assert!(after >= 256 << 20 && after >= before, "{before} {after}");
        assert!(load_average().is_some_and(|l| l.iter().all(|x| *x >= 0.0)));
    }

    #[test]
    fn others_are_whatever_was_used_and_is_not_ours() {
        let usage = |stat: &str, own_s| usage_in(stat, 100.0, own_s).expect("a line of ticks");
        let before = usage("cpu  1000 0 500 8000 100 0 0 50 700 0\ncpu0 1 1\n", 2.0);
        // Of 20 s: 6 as a user, 2 in the kernel, 1 stolen, the rest idle or waiting for a disk; 4 of them are ours.
        let later = usage("cpu  1600 0 700 8900 300 0 0 150 900 0\n", 6.0);
        assert_eq!((later.all_s - before.all_s, later.others_s - before.others_s), (20.0, 5.0));
        assert!(usage_in("cpu  1 2 3\n", 100.0, 0.0).is_none() && usage_in("", 100.0, 0.0).is_none());
        let child = "7 (a) b) S 1 7 7 0 -1 4194304 9 8 7 6 100 20 3 4 20 0 1 0";
        assert_eq!(child_ticks(child), Some(127.0));
        assert!(child_ticks("7 (a) S 1 7").is_none() && child_ticks("").is_none());
    }

    /// A child that spins is ours while it runs, and not a part of what others use.
    #[test]
    fn a_running_child_is_not_other_work() {
        let mut child = std::process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn().expect("a shell");
        let id = child.id();
        let start = std::time::Instant::now();
        // A machine that stands still between two looks only adds to the difference.
        let (without, with) = (usage(None), usage(Some(id)));
        while child_s(id) < 0.5 && start.elapsed().as_secs() < 60 {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        let (later_with, later_without) = (usage(Some(id)), usage(None));
        child.kill().and_then(|()| child.wait()).expect("it ends");
        let grown = |now: Option<Usage>, then: Option<Usage>| now.zip(then).map(|(n, t)| n.others_s - t.others_s);
        let (with, without) = (grown(later_with, with), grown(later_without, without));
        assert!(with.zip(without).is_some_and(|(with, without)| without - with > 0.4), "{with:?} {without:?}");
    }

    fn child_s(id: u32) -> f64 {
        fs::read_to_string(format!("/proc/{id}/stat")).ok().and_then(|s| child_ticks(&s)).unwrap_or(0.0) / 100.0
    }
}
