//! System calls that fail as they do on a full, read-only, foreign or remote disk, for a child process or for this thread.
//!
//! A filter in the kernel refuses them, so the code under test is the real one down to the C library, and being the super
//! user does not help it. Only Linux on x86-64 and aarch64 has it here; elsewhere `supported` says so.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use libc::{c_long, sock_filter, sock_fprog};

/// When a call is refused.
#[derive(Clone, Copy)]
enum Only {
    Always,
    /// When this argument has any of these bits.
    Bits(u32, u32),
    /// When this argument is larger.
    Above(u32, u32),
}

/// A call that fails with an error number.
#[derive(Clone, Copy)]
pub struct Rule {
    call: c_long,
    only: Only,
    errno: i32,
}

#[cfg(target_arch = "x86_64")]
const ARCH: u32 = 0xc000_003e;
#[cfg(not(target_arch = "x86_64"))]
const ARCH: u32 = 0xc000_00b7;

/// Calls that change folders.
#[cfg(target_arch = "x86_64")]
const FOLDERS: [c_long; 8] = [
    libc::SYS_mkdir,
    libc::SYS_rename,
    libc::SYS_link,
    libc::SYS_unlink,
    libc::SYS_mkdirat,
    libc::SYS_renameat2,
    libc::SYS_linkat,
    libc::SYS_unlinkat,
];
#[cfg(not(target_arch = "x86_64"))]
const FOLDERS: [c_long; 4] = [libc::SYS_mkdirat, libc::SYS_renameat2, libc::SYS_linkat, libc::SYS_unlinkat];

const OPEN_FLAGS: u32 = 2;
const TO_WRITE: u32 = (libc::O_WRONLY | libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC) as u32;

/// Nothing can be made, opened for writing, renamed or removed.
pub fn cannot_change(errno: i32) -> Vec<Rule> {
    let mut rules: Vec<Rule> = FOLDERS.iter().map(|&call| Rule { call, only: Only::Always, errno }).collect();
    rules.push(Rule { call: libc::SYS_openat, only: Only::Bits(OPEN_FLAGS, TO_WRITE), errno });
    rules
}

/// Folders can be made and files created, but nothing can be written behind the three standard streams.
pub fn full() -> Vec<Rule> {
    let write = |call| Rule { call, only: Only::Above(0, 2), errno: libc::ENOSPC };
    [libc::SYS_write, libc::SYS_writev, libc::SYS_pwrite64].map(write).to_vec()
}

/// `call` fails, whatever its arguments.
pub fn failing(call: c_long, errno: i32) -> Vec<Rule> {
    vec![Rule { call, only: Only::Always, errno }]
}

const ALLOW: u32 = 0x7fff_0000;
const ERRNO: u32 = 0x0005_0000;
const KILL: u32 = 0x8000_0000;

const fn op(code: u16, jt: u8, jf: u8, k: u32) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

/// Loads a word of what the kernel tells about the call: 0 its number, 4 the architecture, 16 + 8 n its argument n.
const fn load(at: u32) -> sock_filter {
    op(0x20, 0, 0, at)
}

const fn give(verdict: u32) -> sock_filter {
    op(0x06, 0, 0, verdict)
}

fn filter(rules: &[Rule]) -> Vec<sock_filter> {
    let mut code = vec![load(4), op(0x15, 1, 0, ARCH), give(ALLOW), load(0)];
    for rule in rules {
        let (call, verdict) = (rule.call as u32, give(ERRNO | rule.errno as u32));
        let (test, arg, value) = match rule.only {
            Only::Always => {
                code.extend([op(0x15, 0, 1, call), verdict]);
                continue;
            }
            Only::Bits(arg, bits) => (0x45, arg, bits),
            Only::Above(arg, value) => (0x25, arg, value),
        };
        code.extend([op(0x15, 0, 4, call), load(16 + 8 * arg), op(test, 0, 1, value), verdict, load(0)]);
    }
    code.push(give(ALLOW));
    code
}

fn install(code: &[sock_filter]) -> io::Result<()> {
    let program = sock_fprog { len: code.len() as u16, filter: code.as_ptr().cast_mut() };
    // SAFETY: both calls read their arguments only, and `program` outlives them.
    let done = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
    };
    if done { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Makes `command` run under `rules`, with all that it starts.
pub fn under<'c>(command: &'c mut Command, rules: &[Rule]) -> &'c mut Command {
    let code = filter(rules);
    // SAFETY: between fork and exec the closure makes two system calls on memory that was made before.
    unsafe { command.pre_exec(move || install(&code)) }
}

/// Makes `command` unable to write more than `bytes` to any file: a write that crosses that is cut short, the next one
/// fails, as on a disk that fills up.
pub fn filling(command: &mut Command, bytes: u64) -> &mut Command {
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
    // SAFETY: between fork and exec the closure makes two system calls on memory of its own.
    unsafe {
        command.pre_exec(move || {
            libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
            if libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) == 0 {
                Ok(())
            } else {
                Err(io::Error::last_os_error())
            }
        })
    }
}

/// Ends the whole process at the next system call of this thread, unless that is `exit_group`.
pub fn no_call_but_exit() -> io::Result<()> {
    install(&[load(0), op(0x15, 0, 1, libc::SYS_exit_group as u32), give(ALLOW), give(KILL)])
}

/// Whether the kernel has such filters; says so where it has not.
pub fn supported() -> bool {
    let mut probe = Command::new("true");
    let works = under(probe.stdin(Stdio::null()), &[]).status().is_ok_and(|s| s.success());
    if !works {
        let _ = writeln!(io::stderr(), "tier: file system faults: skipped: the kernel filters no system calls");
    }
    works
}
