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

/// Processor time since the machine started, seconds, summed over its processors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Usage {
    /// All of it.
    all_s: f64,
    /// What was used, or taken by the host of a virtual machine.
    used_s: f64,
    /// What this process and its ended children used.
    own_s: f64,
}

/// The processor time until now, where the system tells.
pub fn usage() -> Option<Usage> {
    // SAFETY: it takes a number and returns one.
    let ticks_per_s = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    let own_s = own_s(libc::RUSAGE_SELF)? + own_s(libc::RUSAGE_CHILDREN)?;
    usage_in(&fs::read_to_string("/proc/stat").ok()?, ticks_per_s as f64, own_s)
}

/// The first line of /proc/stat: user, nice, system, idle, waiting for a disk, two kinds of interrupts, stolen.
fn usage_in(stat: &str, ticks_per_s: f64, own_s: f64) -> Option<Usage> {
    let ticks = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace().take(8);
    let ticks: Vec<f64> = ticks.map(|t| t.parse().ok()).collect::<Option<_>>()?;
    let idle = ticks.get(3)? + ticks.get(4)?;
    let all: f64 = ticks.iter().sum();
    Some(Usage { all_s: all / ticks_per_s, used_s: (all - idle) / ticks_per_s, own_s })
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

/// Share of the machine's processor time since `before` that neither this process nor its ended children took.
pub fn by_others(before: Option<Usage>) -> Option<f64> {
    Some(before?.by_others(&usage()?))
}

impl Usage {
    fn by_others(&self, later: &Usage) -> f64 {
        let others_s = (later.used_s - self.used_s) - (later.own_s - self.own_s);
        let all_s = later.all_s - self.all_s;
        // Ticks are coarse: no share below nothing, and none of no time.
        if all_s > 0.0 { (others_s / all_s).clamp(0.0, 1.0) } else { 0.0 }
    }
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
        assert!((before.by_others(&later) - 5.0 / 20.0).abs() < 1e-9);
        assert_eq!(before.by_others(&before), 0.0);
        assert!(usage_in("cpu  1 2 3\n", 100.0, 0.0).is_none() && usage_in("", 100.0, 0.0).is_none());
    }
}
