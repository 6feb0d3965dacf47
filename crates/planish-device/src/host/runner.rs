//! A program's own process: frames go to its standard input, results come from its standard output.
//!
//! A kernel that crashes, hangs or trips a sanitizer takes this process with it and nothing else.

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use crate::error::{Error, ErrorKind};

/// What one launch sends.
pub(super) struct Request<'a> {
    pub kernel: &'a str,
    pub groups: u32,
    pub threads: u32,
    pub dynamic_bytes: u32,
    /// Start order of the threads; 0 is the natural one.
    pub seed: u32,
    /// `SPEC_*` constants without their prefix.
    pub specs: &'a [(String, u32)],
    /// Distinct pieces of memory.
    pub blocks: &'a [Vec<u8>],
    /// Block, offset and length of each argument, the parameter block last.
    pub args: &'a [(u32, u64, u64)],
}

/// A running process of one program.
pub(super) struct Runner {
    child: Child,
    input: ChildStdin,
    output: ChildStdout,
    log: PathBuf,
}

impl Runner {
    /// Starts `executable`; what it says on standard error goes to a file of its own in `logs`.
    pub fn start(executable: &Path, logs: &Path, options: &[(&str, &str)]) -> Result<Runner, Error> {
        static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let n = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let log = logs.join(format!("log-{}-{n}", std::process::id()));
        let failed = |e: std::io::Error| Error::new(ErrorKind::Unavailable, format!("{}: {e}", executable.display()));
        let file = std::fs::File::create(&log).map_err(failed)?;
        let mut command = Command::new(executable);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(file).envs(options.iter().copied());
        let mut child = command.spawn().map_err(failed)?;
        let input = child.stdin.take().expect("standard input is a pipe");
        let output = child.stdout.take().expect("standard output is a pipe");
        Ok(Runner { child, input, output, log })
    }

    /// Runs one launch; the blocks that it may have changed, by index.
    pub fn launch(&mut self, request: &Request<'_>, deadline: Duration) -> Result<Vec<(u32, Vec<u8>)>, Error> {
        let until = Instant::now().checked_add(deadline);
        let sent = self.input.write_all(&frame(request)).and_then(|()| self.input.flush());
        if sent.is_err() {
            return Err(self.died(request.kernel));
        }
        self.answer(request, until)
    }

    fn answer(&mut self, request: &Request<'_>, until: Option<Instant>) -> Result<Vec<(u32, Vec<u8>)>, Error> {
        let message = self.take_text(request, until)?;
        let changed = self.take_u32(request, until)?;
        let mut blocks = Vec::new();
        for _ in 0..changed {
            let index = self.take_u32(request, until)?;
            let len = request.blocks.get(index as usize).map_or(0, Vec::len);
            let mut bytes = vec![0; len];
            self.take(&mut bytes, request, until)?;
            blocks.push((index, bytes));
        }
        if message.is_empty() { Ok(blocks) } else { Err(Error::new(ErrorKind::BadLaunch, message)) }
    }

    fn take_u32(&mut self, request: &Request<'_>, until: Option<Instant>) -> Result<u32, Error> {
        let mut word = [0; 4];
        self.take(&mut word, request, until)?;
        Ok(u32::from_le_bytes(word))
    }

    fn take_text(&mut self, request: &Request<'_>, until: Option<Instant>) -> Result<String, Error> {
        let len = self.take_u32(request, until)? as usize;
        let mut bytes = vec![0; len.min(4096)];
        self.take(&mut bytes, request, until)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn take(&mut self, mut bytes: &mut [u8], request: &Request<'_>, until: Option<Instant>) -> Result<(), Error> {
        while !bytes.is_empty() {
            if !self.readable(until) {
                let _ = self.child.kill();
                return Err(Error::new(ErrorKind::Timeout, format!("{}: no answer in time", request.kernel)));
            }
            match self.output.read(bytes) {
                Ok(0) | Err(_) => return Err(self.died(request.kernel)),
                Ok(n) => bytes = &mut bytes[n..],
            }
        }
        Ok(())
    }

    /// Waits until the process says something or ends; false when the time is over.
    fn readable(&self, until: Option<Instant>) -> bool {
        let left = until.map_or(i32::MAX as u128, |u| u.saturating_duration_since(Instant::now()).as_millis());
        let mut poll = libc::pollfd { fd: self.output.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid entry, for the length of the call.
        let ready = unsafe { libc::poll(&raw mut poll, 1, i32::try_from(left).unwrap_or(i32::MAX)) };
        ready != 0
    }

    /// Why the process ended: the sanitizer's summary, or its signal.
    fn died(&mut self, kernel: &str) -> Error {
        let status = self.child.wait().map_or_else(|e| e.to_string(), |s| s.to_string());
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let told = |l: &&str| l.contains("SUMMARY:") || l.contains("runtime error:") || l.contains("ERROR:");
        let lines: Vec<&str> = log.lines().filter(told).take(3).map(str::trim).collect();
        let what = if lines.is_empty() { status } else { lines.join("; ") };
        Error::new(ErrorKind::Poisoned, format!("{kernel} ended its process: {what}"))
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.log);
    }
}

fn frame(request: &Request<'_>) -> Vec<u8> {
    let mut out = Vec::with_capacity(256 + request.blocks.iter().map(|b| b.len() + 8).sum::<usize>());
    let text = |out: &mut Vec<u8>, s: &str| {
        out.extend((s.len() as u32).to_le_bytes());
        out.extend(s.as_bytes());
    };
    text(&mut out, request.kernel);
    for word in [request.groups, request.threads, request.dynamic_bytes, request.seed, request.specs.len() as u32] {
        out.extend(word.to_le_bytes());
    }
    for (name, value) in request.specs {
        text(&mut out, name);
        out.extend(value.to_le_bytes());
    }
    out.extend((request.blocks.len() as u32).to_le_bytes());
    for block in request.blocks {
        out.extend((block.len() as u64).to_le_bytes());
        out.extend(block);
    }
    out.extend((request.args.len() as u32).to_le_bytes());
    for (block, at, len) in request.args {
        out.extend(block.to_le_bytes());
        out.extend(at.to_le_bytes());
        out.extend(len.to_le_bytes());
    }
    out
}
