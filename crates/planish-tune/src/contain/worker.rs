//! The worker's side: makes the subject it is told to, and answers until its input ends.

use std::any::Any;
use std::collections::HashMap;
use std::io::{BufRead, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError, mpsc};

use super::protocol::{Reply, Request, Stage};
use crate::config::Config;
use crate::error::Error;
use crate::subject::{Admitted, Rejection, Subject};

/// Tells the tuner what the worker is at, as often as that changes or goes on.
pub type Tell = Arc<dyn Fn(Stage) + Send + Sync>;

/// Makes a subject from its description and from how to tell what it is at; the error says why it cannot.
pub type Factory<'a> = dyn FnMut(&serde_json::Value, &Tell) -> Result<Box<dyn Subject>, String> + 'a;

/// Answers the requests in `input` on `output` until `input` ends or the subject panics.
pub fn serve(input: impl BufRead, output: impl Write + Send + 'static, factory: &mut Factory<'_>) -> Result<(), Error> {
    answer(input.lines().map_while(Result::ok), output, factory)
}

/// Serves on standard input and output; ends the process as soon as its input ends, even in the middle of a request.
///
/// Input ends when the tuner is gone, and a worker that spins must not outlive it.
pub fn serve_stdio(factory: &mut Factory<'_>) -> Result<(), Error> {
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if send.send(line).is_err() {
                return;
            }
        }
        std::process::exit(0);
    });
    answer(receive.into_iter(), std::io::stdout(), factory)
}

fn answer(
    lines: impl Iterator<Item = String>,
    output: impl Write + Send + 'static,
    factory: &mut Factory<'_>,
) -> Result<(), Error> {
    let output = Arc::new(Mutex::new(output));
    let stages = Arc::clone(&output);
    // Whoever no longer listens will say so when it is answered.
    let tell: Tell = Arc::new(move |stage| drop(say(&stages, &Reply::At(stage))));
    let mut desk = Desk { subject: None, admitted: HashMap::new(), tell };
    for line in lines {
        let reply = match serde_json::from_str(&line) {
            Ok(request) => catch_unwind(AssertUnwindSafe(|| desk.handle(request, factory)))
                .unwrap_or_else(|panic| Reply::Panicked(message_of(&*panic))),
            Err(e) => Reply::Failed(format!("not a request: {e}")),
        };
        say(&output, &reply).map_err(|e| Error::new(format!("worker: cannot answer: {e}")))?;
        if matches!(reply, Reply::Panicked(_)) {
            break;
        }
    }
    Ok(())
}

fn say(output: &Mutex<impl Write>, reply: &Reply) -> std::io::Result<()> {
    let text = serde_json::to_string(reply).expect("a reply is plain data");
    let mut output = output.lock().unwrap_or_else(PoisonError::into_inner);
    // A reply starts a line of its own, whatever a compiler or driver has printed.
    write!(output, "\n{text}\n").and_then(|()| output.flush())
}

fn message_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "panic without a message".to_owned())
}

/// The subject and what it has admitted.
struct Desk {
    subject: Option<Box<dyn Subject>>,
    admitted: HashMap<Config, Admitted>,
    tell: Tell,
}

impl Desk {
    fn handle(&mut self, request: Request, factory: &mut Factory<'_>) -> Reply {
        if let Request::Build(spec) = request {
            return match factory(&spec, &self.tell) {
                Ok(subject) => {
                    (self.subject, self.admitted) = (Some(subject), HashMap::new());
                    Reply::Ready
                }
                Err(why) => Reply::Failed(why),
            };
        }
        let Some(subject) = &mut self.subject else { return Reply::Failed("no subject was built".to_owned()) };
        match request {
            Request::Admit(config) => {
                let result = subject.admit(&config);
                self.admitted(config, result)
            }
            Request::Confirm(config) => match self.admitted.get(&config) {
                Some(admitted) => {
                    let result = subject.confirm(admitted);
                    self.admitted(config, result)
                }
                None => Reply::Failed(format!("({config}) is not admitted here")),
            },
            Request::Time(config, point) => match self.admitted.get(&config) {
                Some(admitted) => subject.time(admitted, point).map_or_else(Reply::Refused, Reply::Sampled),
                None => Reply::Failed(format!("({config}) is not admitted here")),
            },
            Request::Sentinel => subject.sentinel().map_or_else(Reply::Refused, |()| Reply::Healthy),
            Request::Build(_) => unreachable!("handled above"),
        }
    }

    /// Keeps an admission; one that was refused is none any more.
    fn admitted(&mut self, config: Config, result: Result<Admitted, Rejection>) -> Reply {
        match result {
            Ok(admitted) => {
                let error = admitted.error_over_bound();
                self.admitted.insert(config, admitted);
                Reply::Admitted(error)
            }
            Err(rejection) => {
                self.admitted.remove(&config);
                Reply::Refused(rejection)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::VirtualClock;
    use crate::scripted::{Fault, Script, Scripted};
    use crate::subject::{Point, Wrong};

    /// Memory that outlives the writer.
    #[derive(Clone, Default)]
    struct Output(Arc<Mutex<Vec<u8>>>);

    impl Write for Output {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().expect("unpoisoned").write(bytes)
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn talk(lines: &str) -> Vec<Reply> {
        let mut factory = |spec: &serde_json::Value, _: &Tell| -> Result<Box<dyn Subject>, String> {
            let script: Script = serde_json::from_value(spec.clone()).map_err(|e| e.to_string())?;
            Ok(Box::new(Scripted::new(script, VirtualClock::new())))
        };
        let output = Output::default();
        serve(lines.as_bytes(), output.clone(), &mut factory).expect("memory does not fail");
        let text = String::from_utf8(output.0.lock().expect("unpoisoned").clone()).expect("JSON");
        text.lines().filter(|l| !l.is_empty()).map(|l| serde_json::from_str(l).expect("a reply")).collect()
    }

    fn line(r: &Request) -> String {
        serde_json::to_string(r).expect("plain") + "\n"
    }

    #[test]
    fn only_what_this_worker_admitted_is_timed() {
        let script = Script::of_times(1, &[1e5, 2e5]).fault(1, Fault::Panic);
        let (zero, one) = (Config::new().with("V", 0), Config::new().with("V", 1));
        let build = line(&Request::Build(serde_json::to_value(&script).expect("plain")));
        let time = line(&Request::Time(zero.clone(), Point(0)));
        let replies = talk(&format!("{time}{build}rubbish\n{time}{}{time}", line(&Request::Admit(zero))));
        assert!(matches!(
            &replies[..],
            [Reply::Failed(_), Reply::Ready, Reply::Failed(_), Reply::Failed(_), Reply::Admitted(_), Reply::Sampled(_)]
        ));
        let replies = talk(&format!("{build}{}{time}", line(&Request::Admit(one))));
        assert!(matches!(&replies[..], [Reply::Ready, Reply::Panicked(m)] if m.contains("V=1")), "{replies:?}");
    }

    #[test]
    fn an_error_that_is_not_a_number_survives_the_pipe() {
        let (check, case, detail) = ("non-finite".to_owned(), String::new(), String::new());
        let wrong = Wrong { check, case, error_over_bound: f64::NAN, detail };
        let text = serde_json::to_string(&Reply::Refused(Rejection::Wrong(wrong))).expect("plain");
        let back: Reply = serde_json::from_str(&text).expect("reads back");
        assert!(matches!(back, Reply::Refused(Rejection::Wrong(w)) if w.error_over_bound.is_nan()));
    }
}
