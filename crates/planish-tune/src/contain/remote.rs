//! The tuner's side: a `Subject` whose candidates run in a worker process with deadlines, a sentinel and a quarantine.

use std::collections::{HashMap, HashSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::mem::{Discriminant, discriminant};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use super::protocol::{Reply, Request, Stage};
use super::quarantine::Quarantine;
use crate::config::Config;
use crate::error::Error;
use crate::space::Space;
use crate::subject::{Admitted, Point, Rejection, Sample, Subject, Usage};

/// Workers lost in a row, none of which got as far as a candidate, after which the subject is broken.
const DEATHS_MAX: u32 = 3;

/// Bytes of a worker's standard error that are kept to explain its death.
const STDERR_KEPT: usize = 2048;

/// Deadlines that the default gets, in those of a candidate: a machine that is busy or slow is no reason to give it up.
const PATIENCE: u32 = 6;

/// What a candidate may take at least, in what the default took for the same.
const SLOWER_MOST: u32 = 10;

/// How often a waiting tuner shows that it is alive.
const BEAT: Duration = Duration::from_secs(1);

/// How long a worker may take before it is killed, with everything it started.
///
/// Each is held against the sum of the times that one request spends at that work.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Deadlines {
    /// To start and make the subject.
    pub build: Duration,
    /// For inputs and references, which no candidate is blamed for.
    pub prepare: Duration,
    /// For compilers.
    pub compile: Duration,
    /// For one admission: run at every point, gate.
    pub admit: Duration,
    /// For one timing.
    pub time: Duration,
    /// For the sentinel.
    pub sentinel: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        let s = Duration::from_secs;
        Deadlines { build: s(30), prepare: s(300), compile: s(120), admit: s(20), time: s(10), sentinel: s(20) }
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
pub struct Remote<'a> {
    setup: Setup,
    command: Box<dyn FnMut() -> Command + 'a>,
    quarantine: Arc<Mutex<Quarantine>>,
    worker: Option<Worker>,
    /// Workers started so far.
    starts: u32,
    deaths_in_a_row: u32,
    /// Candidates and what they have come back from once: that is not journalled again.
    proven: HashSet<(Config, Discriminant<Request>)>,
    /// The longest that the default ran for a kind of request.
    default_ran: HashMap<Discriminant<Request>, Duration>,
    broken: Option<Error>,
    ahead: Option<Ahead>,
    heard: Option<Heard<'a>>,
    processors: Option<Processors>,
    floor_again: Option<FloorAgain<'a>>,
}

/// Measures the ceilings again, and gives the floor at a point.
pub type FloorAgain<'a> = Box<dyn FnMut(Point) -> Option<Duration> + 'a>;

/// What is known of a subject that runs on the machine's processors.
pub struct Processors {
    /// Processor time until now, of which that of the worker with this process number is not other work.
    pub usage: fn(Option<u32>) -> Option<Usage>,
    /// How many of them a configuration uses, where it says so.
    pub used: fn(&Config) -> Option<i64>,
}

/// Hears what the worker is at and for how long: when that changes, and every second.
pub type Heard<'a> = Box<dyn FnMut(&Stage, Duration) + 'a>;

/// How a worker was lost.
struct Lost {
    rejection: Rejection,
    /// It was at work that is not the candidate's.
    innocent: bool,
    /// The program whose compilation did not end.
    program: Option<String>,
}

impl From<Rejection> for Lost {
    fn from(rejection: Rejection) -> Self {
        Lost { rejection, innocent: false, program: None }
    }
}

/// What one exchange with a worker goes by.
struct Terms<'r, 'a> {
    deadlines: Deadlines,
    /// For the request's own work.
    own: Duration,
    heard: &'r mut Option<Heard<'a>>,
    ledger: &'r Mutex<Quarantine>,
}

/// Does for many candidates at once what their admission would take long for, beside the worker.
pub type Ahead = Box<dyn FnMut(&[Config])>;

impl<'a> Remote<'a> {
    /// A subject that runs in the process that `command` describes, which must call `serve_stdio`.
    ///
    /// The process starts with the first request; its standard streams and process group are set here.
    pub fn new(setup: Setup, command: impl FnMut() -> Command + 'a, quarantine: Arc<Mutex<Quarantine>>) -> Self {
        Remote {
            setup,
            command: Box::new(command),
            quarantine,
            worker: None,
            starts: 0,
            deaths_in_a_row: 0,
            proven: HashSet::new(),
            default_ran: HashMap::new(),
            broken: None,
            ahead: None,
            heard: None,
            processors: None,
            floor_again: None,
        }
    }

    /// The same of a subject that runs on the machine's `processors`, if it does.
    pub fn on(mut self, processors: Option<Processors>) -> Self {
        self.processors = processors;
        self
    }

    /// The same with floors that can be measured `again`.
    pub fn on_doubt(mut self, again: Option<FloorAgain<'a>>) -> Self {
        self.floor_again = again;
        self
    }

    /// The same with `heard` told what the worker is at.
    pub fn hearing(mut self, heard: Heard<'a>) -> Self {
        self.heard = Some(heard);
        self
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

    /// The worker that admitted it may be gone; the new one needs its own proof.
    fn admit_here(&mut self, config: &Config) -> Result<(), Rejection> {
        if self.worker.as_ref().is_none_or(|w| !w.admitted.contains(config)) {
            self.admit(config)?;
        }
        Ok(())
    }

    fn ledger(&self) -> MutexGuard<'_, Quarantine> {
        open(&self.quarantine)
    }

    /// Runs one request about `config`; whatever goes wrong is a rejection of it, and the worker is made good again.
    fn run(&mut self, config: &Config, request: &Request, deadline: Duration) -> Result<Reply, Rejection> {
        if let Some(rejection) = self.ledger().find(&self.setup.subject, config) {
            return Err(rejection.clone());
        }
        let is_default = *config == self.setup.space.default;
        let step = (config.clone(), discriminant(request));
        let first = !self.proven.contains(&step);
        self.ensure_worker()?;
        let deadline = self.patience(request, is_default, deadline);
        let begun = (first && !is_default).then(|| self.ledger().begin(&self.setup.subject, config));
        let mut result = self.call(request, deadline);
        let suspicious = first || !matches!(result, Ok(Reply::Admitted(_) | Reply::Sampled(_)));
        let checked = suspicious && !is_default && self.worker.is_some();
        if checked && let Err(how) = self.sentinel() {
            self.worker = None;
            result = Err(Rejection::Crashed(format!("left the device unusable: {how}")).into());
        }
        if let Some(begun) = begun {
            self.ledger().end(begun);
            self.proven.insert(step);
        }
        match &result {
            Err(lost) => self.lost(config, is_default, lost),
            Ok(reply) => {
                self.deaths_in_a_row = 0;
                if let (true, Some(worker)) = (is_default, &self.worker) {
                    let longest = self.default_ran.entry(discriminant(request)).or_default();
                    *longest = worker.ran.max(*longest);
                }
                // A machine that survives a hang or a crash by itself need not go through it again either.
                if let Reply::Refused(rejection @ (Rejection::Timeout(_) | Rejection::Crashed(_))) = reply
                    && !is_default
                {
                    self.ledger().add(&self.setup.subject, config, rejection.clone());
                }
            }
        }
        result.map_err(|lost| lost.rejection)
    }

    /// The deadline scaled to this machine: candidates are given up by what the default needs here.
    fn patience(&self, request: &Request, is_default: bool, deadline: Duration) -> Duration {
        if is_default {
            return deadline * PATIENCE;
        }
        self.default_ran.get(&discriminant(request)).map_or(deadline, |ran| deadline.max(*ran * SLOWER_MOST))
    }

    /// The worker was lost to `config`: a candidate is quarantined, the default is not, but not for ever either.
    fn lost(&mut self, config: &Config, is_default: bool, lost: &Lost) {
        if is_default || lost.innocent {
            return self.died_early(&lost.rejection);
        }
        self.deaths_in_a_row = 0;
        let mut ledger = self.ledger();
        ledger.add(&self.setup.subject, config, lost.rejection.clone());
        if let Some(program) = &lost.program {
            // Whatever other shape or configuration asks for the same program would wait as long.
            ledger.add(&subject_of(program), config, lost.rejection.clone());
        }
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
        match self.call(&build, self.setup.deadlines.build).map_err(|lost| lost.rejection)? {
            Reply::Ready if again => self.sentinel(),
            Reply::Ready => Ok(()),
            other => Err(Rejection::Crashed(format!("cannot make the subject: {other}"))),
        }
    }

    fn sentinel(&mut self) -> Result<(), Rejection> {
        match self.call(&Request::Sentinel, self.setup.deadlines.sentinel).map_err(|lost| lost.rejection)? {
            Reply::Healthy => Ok(()),
            Reply::Refused(rejection) => Err(rejection),
            other => Err(Rejection::Crashed(format!("the sentinel answered: {other}"))),
        }
    }

    /// One exchange; an `Err` means that the worker is gone.
    fn call(&mut self, request: &Request, own: Duration) -> Result<Reply, Lost> {
        let worker = self.worker.as_mut().expect("a worker was ensured");
        let (deadlines, heard, ledger) = (self.setup.deadlines, &mut self.heard, &*self.quarantine);
        let result = worker.exchange(request, &mut Terms { deadlines, own, heard, ledger });
        if let (Ok(reply), Request::Admit(config) | Request::Confirm(config)) = (&result, request) {
            if matches!(reply, Reply::Admitted(_)) {
                worker.admitted.insert(config.clone());
            } else {
                worker.admitted.remove(config);
            }
        }
        if result.is_err() {
            self.worker = None;
        }
        result
    }
}

fn open(quarantine: &Mutex<Quarantine>) -> MutexGuard<'_, Quarantine> {
    // The quarantine is a list and a file handle: whoever panicked left neither half-written.
    quarantine.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Under which a program is kept in the quarantine.
fn subject_of(program: &str) -> String {
    format!("program {program}")
}

/// The rejection that an unexpected reply amounts to.
fn refusal(reply: Reply) -> Rejection {
    match reply {
        Reply::Refused(rejection) => rejection,
        other => Rejection::Crashed(format!("the worker answered: {other}")),
    }
}

impl Subject for Remote<'_> {
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
        self.admit_here(config)?;
        match self.run(config, &Request::Time(config.clone(), point), self.setup.deadlines.time)? {
            Reply::Sampled(sample) => Ok(sample),
            other => Err(refusal(other)),
        }
    }

    fn confirm(&mut self, admitted: &Admitted) -> Result<Admitted, Rejection> {
        let config = admitted.config();
        self.admit_here(config)?;
        match self.run(config, &Request::Confirm(config.clone()), self.setup.deadlines.admit)? {
            Reply::Admitted(error_over_bound) => Admitted::new(config.clone(), error_over_bound),
            other => Err(refusal(other)),
        }
    }

    fn floor(&self, point: Point) -> Option<Duration> {
        self.setup.floor.get(point.0 as usize).copied().flatten()
    }

    fn floor_again(&mut self, point: Point) -> Option<Duration> {
        self.floor_again.as_mut().and_then(|again| again(point))
    }

    fn prepare(&mut self, configs: &[Config]) {
        let Some(mut ahead) = self.ahead.take() else { return };
        let wanted = |c: &&Config| self.ledger().find(&self.setup.subject, c).is_none();
        let wanted: Vec<Config> = configs.iter().filter(wanted).cloned().collect();
        ahead(&wanted);
        self.ahead = Some(ahead);
    }

    fn usage(&mut self) -> Option<Usage> {
        let worker = self.worker.as_ref().map(|w| w.child.id());
        self.processors.as_ref().and_then(|p| (p.usage)(worker))
    }

    fn uses_fewer(&self, config: &Config) -> bool {
        let Some(Processors { used, .. }) = self.processors else { return false };
        used(config).zip(used(&self.setup.space.default)).is_some_and(|(mine, default)| mine < default)
    }

    /// What the default risks as well comes first.
    fn risk(&self, config: &Config) -> u32 {
        (self.setup.risk)(config).saturating_sub((self.setup.risk)(&self.setup.space.default))
    }

    fn sentinel(&mut self) -> Result<(), Rejection> {
        self.ensure_worker()?;
        Remote::sentinel(self)
    }

    fn broken(&self) -> Option<Error> {
        self.broken.clone()
    }
}

impl Terms<'_, '_> {
    fn limit(&self, stage: &Stage) -> Duration {
        match stage {
            Stage::Prepare => self.deadlines.prepare,
            Stage::Compile(_) => self.deadlines.compile,
            Stage::Run => self.own,
        }
    }

    fn hear(&mut self, stage: &Stage, waited: Duration) {
        if let Some(heard) = self.heard {
            heard(stage, waited);
        }
    }

    /// Does not wait for a program again that did not end once.
    fn may(&self, stage: &Stage) -> Result<(), Lost> {
        let Stage::Compile(program) = stage else { return Ok(()) };
        match open(self.ledger).find_any(&subject_of(program)) {
            Some(rejection) => Err(rejection.clone().into()),
            None => Ok(()),
        }
    }
}

/// The worker gave no answer within the deadline of what it was at.
fn late(stage: Stage, limit: Duration) -> Lost {
    let timeout = Rejection::Timeout(limit.as_secs_f64());
    match stage {
        Stage::Prepare => Lost { rejection: timeout, innocent: true, program: None },
        Stage::Compile(program) => {
            let rejection = Rejection::Compile(format!("no end within {:.1} s", limit.as_secs_f64()));
            Lost { rejection, innocent: false, program: Some(program) }
        }
        Stage::Run => timeout.into(),
    }
}

/// A running worker process, killed with its whole group when dropped.
struct Worker {
    child: Child,
    requests: ChildStdin,
    replies: Receiver<Reply>,
    stderr: Arc<Mutex<Vec<u8>>>,
    /// Reads `stderr`.
    listener: JoinHandle<()>,
    admitted: HashSet<Config>,
    /// How long the last request ran, without what is not the candidate's.
    ran: Duration,
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
        let listener = std::thread::spawn(move || keep_tail(err, &kept));
        Ok(Worker { child, requests, replies, stderr, listener, admitted: HashSet::new(), ran: Duration::ZERO })
    }

    fn exchange(&mut self, request: &Request, terms: &mut Terms<'_, '_>) -> Result<Reply, Lost> {
        let line = serde_json::to_string(request).expect("a request is plain data") + "\n";
        // A failure to write means that the worker is dead, which the wait for its reply explains better.
        let _ = self.requests.write_all(line.as_bytes()).and_then(|()| self.requests.flush());
        let (mut stage, mut waited) = (Stage::Run, Duration::ZERO);
        let mut spent: HashMap<&str, Duration> = HashMap::new();
        loop {
            let limit = terms.limit(&stage);
            let before = spent.entry(stage.name()).or_default();
            let part = limit.saturating_sub(*before).min(BEAT);
            let start = Instant::now();
            let answer = self.replies.recv_timeout(part);
            // A wait that was longer than asked for was that of a tuner or a machine that stood still, not the worker's.
            let took = start.elapsed().min(part);
            *before += took;
            waited += took;
            match answer {
                Ok(Reply::At(next)) => {
                    (stage, waited) = (next, Duration::ZERO);
                    terms.hear(&stage, Duration::ZERO);
                    terms.may(&stage)?;
                }
                Ok(Reply::Panicked(message)) => return Err(Rejection::Crashed(format!("panic: {message}")).into()),
                Ok(reply) => {
                    self.ran = spent.get(Stage::Run.name()).copied().unwrap_or_default();
                    return Ok(reply);
                }
                Err(RecvTimeoutError::Timeout) if *before < limit => terms.hear(&stage, waited),
                Err(RecvTimeoutError::Timeout) => return Err(late(stage, limit)),
                Err(RecvTimeoutError::Disconnected) => {
                    let innocent = stage == Stage::Prepare;
                    return Err(Lost { innocent, ..Rejection::Crashed(self.obituary()).into() });
                }
            }
        }
    }

    fn obituary(&mut self) -> String {
        // Its output has ended, so it is dead or about to be; one that lingers is killed.
        let status = soon(|| match self.child.try_wait() {
            Ok(status) => status.map(how_it_ended),
            Err(e) => Some(format!("cannot be waited for: {e}")),
        });
        let status = status.unwrap_or_else(|| "closed its output".to_owned());
        // Its last words may still be on their way; what it has started may keep the pipe open.
        let _ = soon(|| self.listener.is_finished().then_some(()));
        let tail = self.stderr.lock().unwrap_or_else(PoisonError::into_inner);
        let text = String::from_utf8_lossy(&tail);
        // Advice that the runtime adds about backtraces is no reason.
        let says = |l: &str| !l.trim().is_empty() && !l.trim_start().starts_with("note:");
        match text.lines().rfind(|l| says(l)) {
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

/// Asks every two milliseconds, for no less than a second, until there is an answer.
fn soon<T>(mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    (0..500).find_map(|_| {
        let answer = ask();
        if answer.is_none() {
            std::thread::sleep(Duration::from_millis(2));
        }
        answer
    })
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
