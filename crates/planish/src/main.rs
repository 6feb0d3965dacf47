//! The `planish` command: flags, reports, progress.
fn main() {}
