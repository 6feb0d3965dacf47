//! What tests of GPU ops share: the host executor, and the lines of the table of tiers.
#![allow(dead_code)]

use std::io::Write;
use std::path::PathBuf;

use planish_device::host::Mode;
use planish_device::{Error, Host, HostOptions};

/// The host executor, its programs kept in the build folder; an error where there is no C++ compiler.
pub fn host(mode: Mode) -> Result<Host, Error> {
    let cache = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("host");
    std::fs::create_dir_all(&cache).expect("the build folder can be written");
    Host::new(HostOptions { cache, mode })
}

/// Past the test harness's capture, for the table of tiers.
pub fn tell(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}
