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
}
