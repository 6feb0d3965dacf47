//! The tuner's side: a `Subject` whose candidates run in a worker process with deadlines, a sentinel and a quarantine.

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use super::protocol::{Reply, Request};
use super::quarantine::Quarantine;
use crate::config::Config;
use crate::error::Error;
use crate::space::Space;
use crate::subject::{Admitted, Point, Rejection, Sample, Subject};

/// Workers lost in a row, none of which got as far as a candidate, after which the subject is broken.
const DEATHS_MAX: u32 = 3;

/// Bytes of a worker's standard error that are kept to explain its death.
const STDERR_KEPT: usize = 2048;

/// How long a worker may take before it is killed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Deadlines {
    /// To start and make the subject.
    pub build: Duration,
    /// For one admission: compile, run at every point, gate.
    pub admit: Duration,
    /// For one timing.
    pub time: Duration,
    /// For the sentinel.
    pub sentinel: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        let s = Duration::from_secs;
        Deadlines { build: s(30), admit: s(20), time: s(10), sentinel: s(20) }
    }
}

/// What the tuner knows about the subject without making it.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Names the subject in the quarantine: op, shape, silicon and kernel hash.
    pub subject: String,
    /// Its space.
    pub space: Space,
    /// Its points.
    pub points: Vec<Point>,
    /// Its floor per point.
    pub floor: Vec<Option<Duration>>,
    /// From which the worker's factory makes it.
    pub spec: serde_json::Value,
    /// When to give up on the worker.
    pub deadlines: Deadlines,
    /// `Subject::risk`.
    pub risk: fn(&Config) -> u32,
}

/// A subject in a worker process.
pub struct Remote {
    setup: Setup,
    command: Box<dyn FnMut() -> Command>,
    quarantine: Arc<Mutex<Quarantine>>,
    worker: Option<Worker>,
    /// Workers started so far.
    starts: u32,
    deaths_in_a_row: u32,
    /// Candidates whose admission, and whose first timing, has come back once: they are not journalled again.
    proven: HashSet<(Config, bool)>,
    broken: Option<Error>,
    ahead: Option<Ahead>,
}

/// Does for many candidates at once what their admission would take long for, beside the worker.
pub type Ahead = Box<dyn FnMut(&[Config])>;

impl Remote {
    /// A subject that runs in the process that `command` describes, which must call `serve_stdio`.
    ///
    /// The process starts with the first request; its standard streams and process group are set here.
    pub fn new(setup: Setup, command: impl FnMut() -> Command + 'static, quarantine: Arc<Mutex<Quarantine>>) -> Self {
        Remote {
            setup,
            command: Box::new(command),
            quarantine,
            worker: None,
            starts: 0,
            deaths_in_a_row: 0,
            proven: HashSet::new(),
            broken: None,
            ahead: None,
        }
    }

    /// The same with `ahead` told of candidates before they are admitted, but for those in quarantine.
    pub fn preparing(mut self, ahead: Option<Ahead>) -> Self {
        self.ahead = ahead;
        self
    }

    /// Workers started so far.
    pub fn starts(&self) -> u32 {
        self.starts
    }

    fn ledger(&self) -> MutexGuard<'_, Quarantine> {
        // The quarantine is a list and a file handle: whoever panicked left neither half-written.
        self.quarantine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs one request about `config`; whatever goes wrong is a rejection of it, and the worker is made good again.
    fn run(&mut self, config: &Config, request: &Request, deadline: Duration) -> Result<Reply, Rejection> {
        if let Some(rejection) = self.ledger().find(&self.setup.subject, config) {
            return Err(rejection.clone());
        }
        let is_default = *config == self.setup.space.default;
        let step = (config.clone(), matches!(request, Request::Time(..)));
        let first = !self.proven.contains(&step);
        self.ensure_worker()?;
        if first && !is_default {
            self.ledger().begin(&self.setup.subject, config);
        }
        let mut result = self.call(request, deadline);
        let suspicious = first || !matches!(result, Ok(Reply::Admitted(_) | Reply::Sampled(_)));
        let checked = suspicious && !is_default && self.worker.is_some();
        if checked && let Err(how) = self.sentinel() {
            self.worker = None;
            result = Err(Rejection::Crashed(format!("left the device unusable: {how}")));
        }
        if first && !is_default {
            self.ledger().end();
            self.proven.insert(step);
        }
        if self.worker.is_none() {
            let rejection = result.as_ref().err().cloned().expect("only a failure ends a worker");
            self.lost(config, is_default, &rejection);
        } else {
            self.deaths_in_a_row = 0;
        }
        result
    }

    /// The worker was lost to `config`: a candidate is quarantined, the default is not, but not for ever either.
    fn lost(&mut self, config: &Config, is_default: bool, rejection: &Rejection) {
        if !is_default {
            self.deaths_in_a_row = 0;
            self.ledger().add(&self.setup.subject, config, rejection.clone());
            return;
        }
        self.died_early(rejection);
    }

    fn died_early(&mut self, rejection: &Rejection) {
        self.deaths_in_a_row += 1;
        if self.deaths_in_a_row >= DEATHS_MAX {
            let (subject, n) = (&self.setup.subject, self.deaths_in_a_row);
            let message = format!("{subject}: the worker died {n} times in a row on the default config: {rejection}");
            self.broken = Some(Error::new(message).hint("the device or its driver does not work; restart it"));
        }
    }

    /// A worker with the subject made and, after an accident, with the sentinel passed.
    fn ensure_worker(&mut self) -> Result<(), Rejection> {
        while self.worker.is_none() {
            if let Some(error) = &self.broken {
                return Err(Rejection::Crashed(error.to_string()));
            }
            if let Err(rejection) = self.start() {
                self.worker = None;
                self.died_early(&rejection);
            }
        }
        Ok(())
    }

    fn start(&mut self) -> Result<(), Rejection> {
        let again = self.starts > 0;
        self.starts += 1;
        let worker = Worker::start((self.command)());
        self.worker = Some(worker.map_err(|e| Rejection::Crashed(format!("cannot start the worker: {e}")))?);
        let build = Request::Build(self.setup.spec.clone());
        match self.call(&build, self.setup.deadlines.build)? {
            Reply::Ready if again => self.sentinel(),
            Reply::Ready => Ok(()),
            other => Err(Rejection::Crashed(format!("cannot make the subject: {other:?}"))),
        }
    }

    fn sentinel(&mut self) -> Result<(), Rejection> {
        match self.call(&Request::Sentinel, self.setup.deadlines.sentinel)? {
            Reply::Healthy => Ok(()),
            Reply::Refused(rejection) => Err(rejection),
            other => Err(Rejection::Crashed(format!("the sentinel answered {other:?}"))),
        }
    }

    /// One exchange; an `Err` means that the worker is gone.
    fn call(&mut self, request: &Request, deadline: Duration) -> Result<Reply, Rejection> {
        let worker = self.worker.as_mut().expect("a worker was ensured");
        let result = worker.exchange(request, deadline);
        if let (Ok(Reply::Admitted(_)), Request::Admit(config)) = (&result, request) {
            worker.admitted.insert(config.clone());
        }
        if result.is_err() {
            self.worker = None;
        }
        result
    }
}

/// The rejection that an unexpected reply amounts to.
fn refusal(reply: Reply) -> Rejection {
    match reply {
        Reply::Refused(rejection) => rejection,
        other => Rejection::Crashed(format!("the worker answered {other:?}")),
    }
}

impl Subject for Remote {
    fn space(&self) -> &Space {
        &self.setup.space
    }

    fn points(&self) -> Vec<Point> {
        self.setup.points.clone()
    }

    fn admit(&mut self, config: &Config) -> Result<Admitted, Rejection> {
        match self.run(config, &Request::Admit(config.clone()), self.setup.deadlines.admit)? {
            Reply::Admitted(error_over_bound) => Admitted::new(config.clone(), error_over_bound),
            other => Err(refusal(other)),
        }
    }

    fn time(&mut self, admitted: &Admitted, point: Point) -> Result<Sample, Rejection> {
        let config = admitted.config();
        if self.worker.as_ref().is_none_or(|w| !w.admitted.contains(config)) {
            // The worker that admitted it is gone; the new one needs its own proof.
            self.admit(config)?;
        }
        match self.run(config, &Request::Time(config.clone(), point), self.setup.deadlines.time)? {
            Reply::Sampled(sample) => Ok(sample),
            other => Err(refusal(other)),
        }
    }

    fn floor(&self, point: Point) -> Option<Duration> {
        self.setup.floor.get(point.0 as usize).copied().flatten()
    }

    fn prepare(&mut self, configs: &[Config]) {
        let Some(mut ahead) = self.ahead.take() else { return };
        let wanted = |c: &&Config| self.ledger().find(&self.setup.subject, c).is_none();
        let wanted: Vec<Config> = configs.iter().filter(wanted).cloned().collect();
        ahead(&wanted);
        self.ahead = Some(ahead);
    }

    fn risk(&self, config: &Config) -> u32 {
        (self.setup.risk)(config)
    }

    fn sentinel(&mut self) -> Result<(), Rejection> {
        self.ensure_worker()?;
        Remote::sentinel(self)
    }

    fn broken(&self) -> Option<Error> {
        self.broken.clone()
    }
}

/// A running worker process, killed with its whole group when dropped.
struct Worker {
    child: Child,
    requests: ChildStdin,
    replies: Receiver<Reply>,
    stderr: Arc<Mutex<Vec<u8>>>,
    admitted: HashSet<Config>,
}

impl Worker {
    fn start(mut command: Command) -> std::io::Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.process_group(0).spawn()?;
        let requests = child.stdin.take().expect("piped");
        let (out, err) = (child.stdout.take().expect("piped"), child.stderr.take().expect("piped"));
        let (send, replies) = channel();
        std::thread::spawn(move || {
            // What is not a reply was printed by a compiler or driver.
            let replies = BufReader::new(out).lines().map_while(Result::ok);
            let replies = replies.filter_map(|line| serde_json::from_str(&line).ok());
            replies.into_iter().try_for_each(|reply| send.send(reply))
        });
        let stderr = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&stderr);
        std::thread::spawn(move || keep_tail(err, &kept));
        Ok(Worker { child, requests, replies, stderr, admitted: HashSet::new() })
    }

    fn exchange(&mut self, request: &Request, deadline: Duration) -> Result<Reply, Rejection> {
        let line = serde_json::to_string(request).expect("a request is plain data") + "\n";
        // A failure to write means that the worker is dead, which the wait for its reply explains better.
        let _ = self.requests.write_all(line.as_bytes()).and_then(|()| self.requests.flush());
        match self.replies.recv_timeout(deadline) {
            Ok(Reply::Panicked(message)) => Err(Rejection::Crashed(format!("panic: {message}"))),
            Ok(reply) => Ok(reply),
            Err(RecvTimeoutError::Timeout) => Err(Rejection::Timeout(deadline.as_secs_f64())),
            Err(RecvTimeoutError::Disconnected) => Err(Rejection::Crashed(self.obituary())),
        }
    }

    fn obituary(&mut self) -> String {
        // Its output has ended, so it is dead or about to be; one that lingers is killed.
        let patience = Instant::now() + Duration::from_secs(1);
        let status = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break how_it_ended(status),
                Ok(None) if Instant::now() < patience => std::thread::sleep(Duration::from_millis(2)),
                Ok(None) => break "closed its output".to_owned(),
                Err(e) => break format!("cannot be waited for: {e}"),
            }
        };
        let tail = self.stderr.lock().unwrap_or_else(PoisonError::into_inner);
        let text = String::from_utf8_lossy(&tail);
        match text.lines().rfind(|l| !l.trim().is_empty()) {
            Some(last) => format!("{status}: {}", last.trim()),
            None => status,
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if let Some(group) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            // Failure means that the group is gone already.
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.child.wait();
    }
}

fn how_it_ended(status: ExitStatus) -> String {
    let name = |signal| match signal {
        4 => " (illegal instruction)",
        6 => " (aborted)",
        8 => " (arithmetic error)",
        9 => " (killed)",
        11 => " (segmentation fault)",
        _ => "",
    };
    match status.signal() {
        Some(signal) => format!("signal {signal}{}", name(signal)),
        None => format!("exit code {}", status.code().unwrap_or(-1)),
    }
}

/// Reads `stream` to its end and keeps the last bytes.
fn keep_tail(mut stream: impl Read, kept: &Mutex<Vec<u8>>) {
    let mut chunk = [0; 512];
    while let Ok(n @ 1..) = stream.read(&mut chunk) {
        let mut tail = kept.lock().unwrap_or_else(PoisonError::into_inner);
        tail.extend_from_slice(&chunk[..n]);
        let excess = tail.len().saturating_sub(STDERR_KEPT);
        tail.drain(..excess);
    }
}
