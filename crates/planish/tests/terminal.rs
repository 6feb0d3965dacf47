//! `chat` on a terminal, through `script`, which gives a command a terminal of its own and passes on what is typed.

// A failure anywhere in a test file is a failed test.
#![allow(clippy::unwrap_used)]

mod support;

use std::io::{Read, Write, stderr};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

const CTRL_C: &str = "\x03";
const CTRL_D: &str = "\x04";

/// A conversation on a terminal.
struct Terminal {
    child: Child,
    keys: ChildStdin,
    screen: Receiver<Vec<u8>>,
    shown: String,
    _home: TempDir,
}

impl Terminal {
    /// Starts `chat` with a tiny model; `None`, said as a skipped tier, where there is no `script`.
    fn chat(flags: &str) -> Option<Terminal> {
        let there = Command::new("script").arg("--version").output().is_ok_and(|o| o.status.success());
        if !there {
            let _ = writeln!(stderr(), "tier: terminal: skipped: no `script` of util-linux");
            return None;
        }
        let _ = writeln!(stderr(), "tier: terminal: ran: conversations on a terminal of their own");
        let home = TempDir::new().unwrap();
        let planish = env!("CARGO_BIN_EXE_planish");
        let command = format!("exec '{planish}' chat '{}' {flags}", support::model("llama-q4_0"));
        let mut script = Command::new("script");
        script.args(["--quiet", "--return", "--flush", "--command", &command, "/dev/null"]);
        script.env("PLANISH_HOME", home.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = script.spawn().unwrap();
        let (keys, mut output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (send, screen) = channel();
        thread::spawn(move || {
            let mut part = vec![0; 4096];
            while let Ok(n @ 1..) = output.read(&mut part) {
                let _ = send.send(part[..n].to_vec());
            }
        });
        Some(Terminal { child, keys, screen, shown: String::new(), _home: home })
    }

    fn type_keys(&mut self, keys: &str) {
        self.type_bytes(keys.as_bytes());
    }

    fn type_bytes(&mut self, keys: &[u8]) {
        self.keys.write_all(keys).unwrap();
        self.keys.flush().unwrap();
    }

    /// Takes what appears within a moment.
    fn look(&mut self) {
        if let Ok(bytes) = self.screen.recv_timeout(Duration::from_millis(100)) {
            self.shown += &String::from_utf8_lossy(&bytes);
        }
    }

    /// What appears up to and with `part`.
    #[track_caller]
    fn until(&mut self, part: &str) -> String {
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(60) {
            if let Some(at) = self.shown.find(part) {
                let rest = self.shown.split_off(at + part.len());
                return std::mem::replace(&mut self.shown, rest);
            }
            self.look();
        }
        panic!("no `{part}` in `{}`", self.shown);
    }

    /// Waits until anything appears.
    #[track_caller]
    fn begins(&mut self) {
        let start = Instant::now();
        while self.shown.is_empty() && start.elapsed() < Duration::from_secs(60) {
            self.look();
        }
        assert!(!self.shown.is_empty(), "nothing appears");
    }

    /// The exit code, once it has left.
    #[track_caller]
    fn code(mut self) -> Option<i32> {
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(60) {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            thread::sleep(Duration::from_millis(20));
        }
        self.child.kill().unwrap();
        panic!("it did not leave: `{}`", self.shown);
    }
}

#[test]
fn a_conversation_outlives_ctrl_c_and_a_full_context_and_ends_with_ctrl_d() {
    // Slow enough that Ctrl-C comes during an answer; where it comes late, it drops the line that is awaited. It must not come
    // early: a terminal forgets a line that nobody has read yet.
    let Some(mut chat) = Terminal::chat("--isa portable --threads 1 --max-tokens 400") else { return };
    chat.until("/exit leaves");
    chat.until("> ");
    chat.type_keys("hello\n");
    // What is typed is shown too.
    chat.until("hello\r\n");
    chat.until("\n> ");
    chat.type_keys("/clear\n");
    chat.until("\n> ");
    chat.type_keys("more\n");
    chat.until("more\r\n");
    chat.begins();
    chat.type_keys(CTRL_C);
    chat.until("\n> ");
    chat.type_keys("/clear\n");
    chat.until("/clear\r\n");
    chat.until("> ");
    let long = "word ".repeat(600);
    chat.type_keys(&format!("{long}\n"));
    let refusal = chat.until("send a shorter one");
    assert!(refusal.contains("the context holds 512"), "{refusal}");
    chat.until("> ");
    chat.type_keys("again\n");
    chat.until("again\r\n");
    let answer = chat.until("\r\n> ");
    assert!(answer.len() > "\r\n> ".len(), "no answer after a refusal: `{answer}`");
    chat.type_keys(CTRL_D);
    // One message was refused.
    assert_eq!(chat.code(), Some(1));
}

#[test]
fn ctrl_c_twice_at_the_prompt_leaves() {
    let Some(mut chat) = Terminal::chat("--max-tokens 4") else { return };
    chat.until("> ");
    chat.type_keys(&format!("half a line{CTRL_C}"));
    chat.until("Ctrl-C again leaves");
    chat.until("> ");
    chat.type_keys("hello\n");
    chat.until("hello\r\n");
    chat.until("\r\n> ");
    chat.type_keys(CTRL_C);
    chat.until("Ctrl-C again leaves");
    chat.until("> ");
    chat.type_keys(CTRL_C);
    chat.until("interrupted");
    assert_eq!(chat.code(), Some(130));
}

/// Between the arrival of a line and its reading there are microseconds, in which Ctrl-C makes the terminal forget it.
#[test]
fn ctrl_c_at_any_moment_after_enter_comes_back_to_the_prompt() {
    // Where the main thread reads what `poll` has announced, 12 of 16 runs of this test fail.
    const ROUNDS: usize = 500;
    const STEP: Duration = Duration::from_micros(8);
    let Some(mut chat) = Terminal::chat("--isa portable --threads 1 --max-tokens 400") else { return };
    chat.until("> ");
    let mut gap = Duration::ZERO;
    for _ in 0..ROUNDS {
        chat.type_keys("hello\n");
        let typed = Instant::now();
        while typed.elapsed() < gap {
            std::hint::spin_loop();
        }
        chat.type_keys(CTRL_C);
        chat.until("^C");
        // The gap closes in on the moment of the reading.
        let early = chat.until("> ").contains("Ctrl-C again leaves");
        gap = if early { gap + STEP } else { gap.saturating_sub(STEP) };
        // A conversation that has begun anew and told so is at its prompt, and its last Ctrl-C is forgiven.
        chat.type_bytes(b"/clear\n\xff\n");
        chat.until("send another");
        chat.until("> ");
    }
    chat.type_keys(CTRL_D);
    assert_eq!(chat.code(), Some(1));
}
