//! A test that runs itself in more processes, each with a share of the work: NVRTC compiles one program at a time in each.

use std::process::{Command, Stdio};

/// Share and number of shares, in a process that was started for one.
const SHARE: &str = "PLANISH_TEST_SHARE";

/// This process's share and the number of them; none in the test itself.
pub fn share() -> Option<(usize, usize)> {
    let told = std::env::var(SHARE).ok()?;
    let (share, of) = told.split_once('/')?;
    Some((share.parse().ok()?, of.parse().ok()?))
}

/// Runs test `name` of this file once in a process for each core, and waits; what they find is kept in a cache.
pub fn run(name: &str) {
    let Ok(this) = std::env::current_exe() else { return };
    let n = std::thread::available_parallelism().map_or(2, usize::from).min(16);
    let start = |i: usize| {
        let mut command = Command::new(&this);
        command.args([name, "--exact"]).env(SHARE, format!("{i}/{n}"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
    };
    let children: Vec<_> = (0..n).map(start).collect();
    for mut child in children.into_iter().flatten() {
        let _ = child.wait();
    }
}
