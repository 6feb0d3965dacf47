//! Lines of text from a stream that may hold anything.

use std::io::{BufRead, BufReader, ErrorKind, Result, stdin};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use crate::interrupt;

/// Most bytes of one message or prompt: more than any context holds.
pub const MOST_BYTES: usize = 16 << 20;

/// What a read brought.
#[derive(Debug, PartialEq, Eq)]
pub enum Input {
    /// A line, its end not included.
    Line(String),
    /// A line that is no text, and why.
    Refused(String),
    /// Nothing more will come.
    End,
}

/// Lines of standard input whose wait Ctrl-C ends.
///
/// A thread reads them, and only when one is asked for: what nobody has asked for stays with the terminal, for the shell.
/// A read by the waiting thread itself could hang: at Ctrl-C a terminal forgets the lines that nobody has read, also one
/// that `poll` has just announced, and a read that begins after the signal is not ended by it.
pub struct Lines {
    ask: Sender<()>,
    read: Receiver<Typed>,
    asked: bool,
}

/// A line as it was read.
pub struct Typed {
    pub input: Result<Input>,
    /// Ctrl-C had been pressed by then, so that it was not meant for the answer to this line.
    pub after_interrupt: bool,
}

impl Lines {
    /// Those of this process's standard input.
    pub fn of_stdin() -> Lines {
        let ((ask, asked), (send, read)) = (channel(), channel());
        thread::spawn(move || {
            let mut lines = BufReader::new(stdin().lock());
            for () in asked {
                let input = next(&mut lines);
                // Nobody takes it when the process is about to end.
                let _ = send.send(Typed { input, after_interrupt: interrupt::requested() });
            }
        });
        Lines { ask, read, asked: false }
    }

    /// The next line; `None` when Ctrl-C came instead, and then the line may still come.
    pub fn wait(&mut self) -> Option<Typed> {
        const LOOK: Duration = Duration::from_millis(20);
        if !std::mem::replace(&mut self.asked, true) {
            self.ask.send(()).expect("the thread reads until nobody can ask");
        }
        while !interrupt::requested() {
            match self.read.recv_timeout(LOOK) {
                Err(RecvTimeoutError::Timeout) => {}
                typed => {
                    self.asked = false;
                    return Some(typed.expect("the thread answers whoever asks"));
                }
            }
        }
        None
    }
}

/// The next line of `lines`.
pub fn next(lines: &mut impl BufRead) -> Result<Input> {
    let mut line = Vec::new();
    let mut bytes = 0;
    loop {
        let chunk = match lines.fill_buf() {
            Ok(chunk) => chunk,
            Err(e) if e.kind() == ErrorKind::Interrupted => continue,
            Err(e) => return Err(e),
        };
        if chunk.is_empty() && bytes == 0 {
            return Ok(Input::End);
        }
        let end = chunk.iter().position(|b| *b == b'\n');
        let taken = end.map_or(chunk.len(), |i| i + 1);
        let (room, ended) = (MOST_BYTES - line.len(), end.is_some() || chunk.is_empty());
        line.extend_from_slice(&chunk[..end.unwrap_or(taken).min(room)]);
        bytes += taken;
        lines.consume(taken);
        if ended {
            break;
        }
    }
    Ok(match text(line, bytes) {
        Ok(line) => Input::Line(line),
        Err(why) => Input::Refused(why),
    })
}

/// `content` of a stream as text, or what is wrong with it; the stream had `bytes`.
pub fn text(content: Vec<u8>, bytes: usize) -> std::result::Result<String, String> {
    if bytes > MOST_BYTES {
        return Err(format!("has more than {MOST_BYTES} bytes"));
    }
    String::from_utf8(content).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        format!("is not UTF-8 at byte {at} of {bytes}")
    })
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::io::{self, Read};

    use super::*;

    /// Reads that bring one part each, or fail.
    struct Parts(VecDeque<Result<Vec<u8>>>);

    impl Read for Parts {
        fn read(&mut self, to: &mut [u8]) -> Result<usize> {
            match self.0.pop_front() {
                None => Ok(0),
                Some(part) => part.and_then(|p| p.as_slice().read(to)),
            }
        }
    }

    fn parts(parts: &[&[u8]]) -> io::BufReader<Parts> {
        // An empty part stands for a read that a signal broke off.
        let part = |p: &&[u8]| if p.is_empty() { Err(ErrorKind::Interrupted.into()) } else { Ok(p.to_vec()) };
        io::BufReader::new(Parts(parts.iter().map(part).collect()))
    }

    #[track_caller]
    fn check(from: &[&[u8]], wants: &[Input]) {
        let mut lines = parts(from);
        for want in wants {
            assert_eq!(&next(&mut lines).unwrap(), want);
        }
    }

    #[test]
    fn lines_come_whole_and_bad_ones_do_not_end_the_stream() {
        let line = |s: &str| Input::Line(s.to_owned());
        check(&[b"one\ntw", b"o\n\nlast"], &[line("one"), line("two"), line(""), line("last"), Input::End]);
        check(&[b"a\xff\nb\n"], &[Input::Refused("is not UTF-8 at byte 1 of 3".to_owned()), line("b"), Input::End]);
        check(&["\u{e4}\n".as_bytes()], &[line("\u{e4}"), Input::End]);
    }

    #[test]
    fn a_read_that_a_signal_broke_off_goes_on() {
        check(&[b"a", b"", b"b\n"], &[Input::Line("ab".to_owned()), Input::End]);
    }

    #[test]
    fn a_line_without_end_does_not_fill_the_memory() {
        let mut lines = io::BufReader::new(io::repeat(b'a').take(MOST_BYTES as u64 + 5).chain(&b"\nb"[..]));
        assert!(matches!(next(&mut lines).unwrap(), Input::Refused(why) if why.contains("16777216")));
        assert_eq!(next(&mut lines).unwrap(), Input::Line("b".to_owned()));
    }
}
