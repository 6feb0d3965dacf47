//! A scripted machine for tests: programs really run, on one thread; time is virtual; faults come when the script says.
//!
//! Work runs when it is waited for, so that a caller that reads without waiting sees what was there before.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::backend::{
    Backend, Call, Identity, Launch, Limits, Native, Program, Sequence, Source, Stamp, Stamps, Timing, Token, foreign,
    no_library, without_views,
};
use crate::cpu::pages::{Adopted, Region};
use crate::cpu::{copy_in, copy_out, new_owner, panic_text, raw};
use crate::error::{Error, ErrorKind, Poison};
use crate::memory::{Buffer, HostBytes, Init, Memory, RawSlice, Slice};

/// What a launch costs on the virtual clock: `launch_ns` plus `task_ns` for each round of tasks over the threads.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Nanoseconds of every launch.
    pub launch_ns: f64,
    /// Nanoseconds of a task; tasks run `Launch::threads` at a time.
    pub task_ns: f64,
}

/// How timings scatter around their cost.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Noise {
    /// Standard deviation of an execution, relative to its cost.
    pub sigma: f64,
    /// Chance that an execution is disturbed.
    pub spike_chance: f64,
    /// What a disturbance multiplies the cost by.
    pub spike_factor: f64,
    /// Relative slow-down per virtual second, as of a machine that warms up.
    pub drift_per_s: f64,
}

/// Where a machine can look at its clock besides the begin and the end of a sequence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sampling {
    /// At the begin and the end of every launch, at no cost.
    Launches,
    /// Between encoders alone: each launch of a stamped sequence has one of its own, whose begin takes these nanoseconds.
    Encoders(f64),
    /// Nowhere.
    Sequences,
}

/// A fault and when it strikes; counts are of the named program's launches, from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Allocations that would take more than this many bytes in all are refused.
    AllocAbove(usize),
    /// The program does not build.
    Build(String),
    /// This launch and later ones of the program fail; the device stays usable.
    Launch(String, u64),
    /// This launch of the program puts the device into an error state that only a new device leaves.
    Poison(String, u64),
    /// This launch of the program never ends; every later wait times out too.
    Hang(String, u64),
}

/// How a fake device behaves.
#[derive(Clone)]
pub struct Script {
    /// What it says its limits are.
    pub limits: Limits,
    /// What it says it is.
    pub identity: Identity,
    /// Cost by program name.
    pub costs: BTreeMap<String, Cost>,
    /// Cost of programs without their own.
    pub default_cost: Cost,
    /// Nanoseconds from handing a sequence over to its begin, which the host sees and the machine's own times do not.
    pub hand_over_ns: f64,
    /// Where it keeps times.
    pub sampling: Sampling,
    /// Scatter of the timings.
    pub noise: Noise,
    /// Seed of the scatter; the same seed and the same calls give the same timings.
    pub seed: u64,
    /// What goes wrong.
    pub faults: Vec<Fault>,
    /// What kernel text with this entry point does; text without an entry here does not build.
    pub texts: BTreeMap<String, Native>,
}

impl Default for Script {
    fn default() -> Self {
        let limits = Limits {
            backend: "fake".into(),
            max_threads: 4,
            processors: 0,
            shared_bytes: 0,
            dynamic_shared_bytes: 0,
            l1_bytes: 32 << 10,
            l2_bytes: 512 << 10,
            llc_bytes: 8 << 20,
            read_gb_s: None,
        };
        let facts = |name: &str, value: &str| BTreeMap::from([(name.to_string(), value.to_string())]);
        Script {
            limits,
            identity: Identity {
                silicon: facts("vendor", "fake"),
                toolchain: facts("script", "1"),
                label: "fake".into(),
            },
            costs: BTreeMap::new(),
            default_cost: Cost { launch_ns: 1000.0, task_ns: 100.0 },
            hand_over_ns: 0.0,
            sampling: Sampling::Launches,
            noise: Noise::default(),
            seed: 1,
            faults: Vec::new(),
            texts: BTreeMap::new(),
        }
    }
}

impl Script {
    /// A machine of the shape of Apple's GPUs under Metal, as documents describe it; no such machine has run planish.
    ///
    /// It is given kernel text, in which no kernel reads a clock and no grid waits for itself; a sequence is a command
    /// buffer, which is handed over at a cost and whose begin and end the machine tells; and times within one are those
    /// that `sampling` allows.
    pub fn metal(sampling: Sampling) -> Script {
        let mut script = Script { hand_over_ns: 5000.0, sampling, ..Script::default() };
        script.limits = Limits {
            backend: "metal".into(),
            max_threads: 1024,
            processors: 10,
            shared_bytes: 32 << 10,
            dynamic_shared_bytes: 32 << 10,
            read_gb_s: Some(100.0),
            ..script.limits
        };
        script.identity.label = "fake of Metal's shape".into();
        script
    }
}

/// One thing that the device was asked for or did, in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Memory of this many bytes was made.
    Alloc(usize),
    /// This many host bytes were adopted.
    Adopt(usize),
    /// Host bytes were copied in.
    Write(usize),
    /// Bytes were copied out.
    Read(usize),
    /// A program was loaded.
    Load(String),
    /// Programs of a recorded sequence.
    Record(Vec<String>),
    /// A sequence was submitted.
    Submit(Token),
    /// A launch ran.
    Ran {
        /// Program.
        program: String,
        /// Its tasks.
        tasks: u32,
        /// Threads it was given.
        threads: u32,
        /// Virtual time at its end, nanoseconds.
        end_ns: f64,
    },
}

struct State {
    script: Script,
    now_ns: f64,
    /// How much of that went by while sequences were handed over.
    handing_ns: f64,
    random: u64,
    /// Bytes that live, and the most that ever did.
    allocated: Arc<AtomicUsize>,
    peak: usize,
    ran: BTreeMap<Arc<str>, u64>,
    trace: Vec<Event>,
    pending: VecDeque<(Token, Arc<Recorded>)>,
    issued: u64,
    failures: BTreeMap<Token, Error>,
    poison: Poison,
    hung: Option<String>,
    capturing: bool,
}

/// The scripted machine.
pub struct Fake {
    owner: u64,
    limits: Limits,
    identity: Identity,
    state: Mutex<State>,
}

/// Memory that is counted for as long as it lives.
struct Counted {
    region: Region,
    bytes: usize,
    allocated: Arc<AtomicUsize>,
}

impl Memory for Counted {
    fn owner(&self) -> u64 {
        self.region.owner()
    }
    fn len(&self) -> usize {
        self.region.len()
    }
    fn host(&self) -> Option<NonNull<u8>> {
        self.region.host()
    }
    fn writable(&self) -> bool {
        self.region.writable()
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.allocated.fetch_sub(self.bytes, Ordering::SeqCst);
    }
}

struct Loaded {
    owner: u64,
    run: Native,
}

struct Recorded {
    owner: u64,
    launches: Vec<(Launch, Native, Vec<RawSlice>)>,
    scratch: Region,
    /// The last run of a stamped sequence.
    stamps: Option<Mutex<Stamps>>,
}

impl Fake {
    /// A device that behaves as `script` says.
    pub fn new(script: Script) -> Fake {
        let (limits, identity, random) = (script.limits.clone(), script.identity.clone(), script.seed);
        let state = State {
            script,
            now_ns: 0.0,
            handing_ns: 0.0,
            random,
            allocated: Arc::default(),
            peak: 0,
            ran: BTreeMap::new(),
            trace: Vec::new(),
            pending: VecDeque::new(),
            issued: 0,
            failures: BTreeMap::new(),
            poison: Poison::default(),
            hung: None,
            capturing: false,
        };
        Fake { owner: new_owner(), limits, identity, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the script from now on.
    pub fn rescript(&self, change: impl FnOnce(&mut Script)) {
        change(&mut self.state().script);
    }

    /// Virtual time since the device was made, nanoseconds.
    pub fn now_ns(&self) -> f64 {
        self.state().now_ns
    }

    /// Lets virtual time pass without work.
    pub fn advance(&self, by: Duration) {
        self.state().now_ns += by.as_nanos() as f64;
    }

    /// What happened since the last call of this function.
    pub fn take_trace(&self) -> Vec<Event> {
        std::mem::take(&mut self.state().trace)
    }

    /// Bytes of its memory that live now, and the most that ever did; adopted bytes are the host's.
    pub fn memory(&self) -> (usize, usize) {
        let state = self.state();
        (state.allocated.load(Ordering::SeqCst), state.peak)
    }

    /// While set, only `record` is allowed, as while a GPU captures a graph.
    pub fn set_capturing(&self, capturing: bool) {
        self.state().capturing = capturing;
    }

    fn usable(&self, what: &str) -> Result<MutexGuard<'_, State>, Error> {
        let state = self.state();
        state.poison.check()?;
        if state.capturing && what != "record" {
            return Err(Error::new(ErrorKind::BadLaunch, format!("{what} while a sequence is captured")));
        }
        Ok(state)
    }

    /// Runs everything submitted; an error when the device hangs or is poisoned on the way.
    fn drain(&self, what: &str) -> Result<MutexGuard<'_, State>, Error> {
        let mut state = self.usable(what)?;
        state.run_until(Token(u64::MAX));
        if let Some(program) = &state.hung {
            return Err(Error::new(ErrorKind::Timeout, format!("{what}: {program} does not end")));
        }
        drop(state);
        self.usable(what)
    }

    fn own(&self, memory: impl Memory + 'static) -> Buffer {
        Buffer(Arc::new(memory))
    }

    fn recorded(&self, launches: &[Launch], stamps: Option<Mutex<Stamps>>) -> Result<Sequence, Error> {
        let mut state = self.usable("record")?;
        let mut checked = Vec::new();
        for (at, launch) in launches.iter().enumerate() {
            let name = &launch.program.name;
            let refuse = |e: Error| Error::new(ErrorKind::BadLaunch, format!("launch {at} ({name}): {e}"));
            let loaded = launch.program.inner.downcast_ref::<Loaded>().filter(|l| l.owner == self.owner);
            let run = loaded.ok_or_else(|| refuse(foreign("the program")))?.run;
            if launch.tasks == 0 || launch.threads == 0 {
                let message = format!("{} tasks on {} threads", launch.tasks, launch.threads);
                return Err(refuse(Error::new(ErrorKind::BadLaunch, message)));
            }
            without_views(launch).map_err(refuse)?;
            let args: Result<Vec<RawSlice>, Error> = launch.args.iter().map(|s| raw(self.owner, s)).collect();
            let threads = launch.threads.min(self.limits.max_threads);
            checked.push((Launch { threads, ..launch.clone() }, run, args.map_err(refuse)?));
        }
        if checked.is_empty() {
            return Err(Error::new(ErrorKind::BadLaunch, "a sequence of 0 launches"));
        }
        let scratch = launches.iter().map(|l| l.scratch_bytes as usize).max().unwrap_or(0);
        state.trace.push(Event::Record(launches.iter().map(|l| l.program.name.to_string()).collect()));
        let scratch = Region::new(self.owner, scratch, Init::Fill(0xff))?;
        Ok(Sequence {
            launches: launches.len(),
            inner: Arc::new(Recorded { owner: self.owner, launches: checked, scratch, stamps }),
        })
    }
}

impl State {
    /// A number in 0..1.
    fn uniform(&mut self) -> f64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Nanoseconds of one launch now (cost, scatter, disturbance, drift), and which part of it comes before its tasks.
    fn cost_ns(&mut self, launch: &Launch) -> (f64, f64) {
        let cost = self.script.costs.get(&*launch.program.name).copied().unwrap_or(self.script.default_cost);
        let rounds = launch.tasks.div_ceil(launch.threads);
        let noise = self.script.noise;
        // The sum of twelve uniform numbers has variance one.
        let normal = (0..12).map(|_| self.uniform()).sum::<f64>() - 6.0;
        let spike = if self.uniform() < noise.spike_chance { noise.spike_factor } else { 1.0 };
        let drift = 1.0 + noise.drift_per_s * self.now_ns / 1e9;
        let exact = cost.launch_ns + cost.task_ns * f64::from(rounds);
        let overhead = if exact > 0.0 { cost.launch_ns / exact } else { 0.0 };
        (exact * (1.0 + noise.sigma * normal).max(0.1) * spike * drift, overhead)
    }

    fn fault(&self, name: &str, nth: u64) -> Option<&Fault> {
        self.script.faults.iter().find(|fault| match fault {
            Fault::Launch(program, from) => program == name && nth >= *from,
            Fault::Poison(program, at) | Fault::Hang(program, at) => program == name && nth == *at,
            Fault::AllocAbove(_) | Fault::Build(_) => false,
        })
    }

    fn run_until(&mut self, token: Token) {
        while self.hung.is_none() && self.poison.check().is_ok() {
            let Some((next, recorded)) = self.pending.pop_front_if(|(next, _)| *next <= token) else { return };
            if let Err(error) = self.run(&recorded) {
                self.failures.insert(next, error);
            }
        }
    }

    fn run(&mut self, recorded: &Recorded) -> Result<(), Error> {
        self.handing_ns += self.script.hand_over_ns;
        self.now_ns += self.script.hand_over_ns;
        let began_ns = self.now_ns;
        let encoder_ns = match self.script.sampling {
            Sampling::Encoders(ns) if recorded.stamps.is_some() => ns,
            _ => 0.0,
        };
        let mut stamps = Stamps { threads: 1, ..Stamps::default() };
        for (at, (launch, run, args)) in recorded.launches.iter().enumerate() {
            let name = &launch.program.name;
            let nth = self.ran.entry(name.clone()).or_insert(0);
            *nth += 1;
            let nth = *nth;
            match self.fault(name, nth) {
                Some(Fault::Launch(..)) => {
                    return Err(Error::new(ErrorKind::BadLaunch, format!("{name}: launch {nth} was refused")));
                }
                Some(Fault::Poison(..)) => {
                    let message = format!("launch {nth} of {name} broke the device");
                    return Err(self.poison.note(Error::new(ErrorKind::Poisoned, message)));
                }
                Some(Fault::Hang(..)) => {
                    self.hung = Some(format!("launch {nth} of {name}"));
                    return Ok(());
                }
                _ => {}
            }
            let scratch = recorded.scratch.host().expect("a region is host memory").as_ptr();
            let scratch = RawSlice { ptr: scratch, len: recorded.scratch.len() };
            let call = Call { args, params: &launch.params, tasks: 0..launch.tasks, thread: 0, scratch };
            // SAFETY: whoever built the launch bound the arguments that the kernel documents; the launch keeps them alive.
            catch_unwind(AssertUnwindSafe(|| unsafe { run(&call) })).map_err(|panic| {
                Error::new(ErrorKind::BadLaunch, format!("{name} panicked: {}", panic_text(panic.as_ref())))
            })?;
            let (cost_ns, overhead) = self.cost_ns(launch);
            self.now_ns += encoder_ns;
            let start_ns = self.now_ns - began_ns + cost_ns * overhead;
            self.now_ns += cost_ns;
            let end_ns = self.now_ns - began_ns;
            stamps.stamps.push(Stamp { launch: at as u32, thread: 0, start_ns, end_ns, busy_ns: end_ns - start_ns });
            let (program, end_ns) = (name.to_string(), self.now_ns);
            self.trace.push(Event::Ran { program, tasks: launch.tasks, threads: launch.threads, end_ns });
        }
        stamps.total_ns = self.now_ns - began_ns;
        if let Some(last) = &recorded.stamps {
            *last.lock().unwrap_or_else(PoisonError::into_inner) = stamps;
        }
        Ok(())
    }
}

impl Backend for Fake {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn alloc(&self, bytes: usize, init: Init) -> Result<Buffer, Error> {
        let mut state = self.usable("alloc")?;
        let taken = state.allocated.load(Ordering::SeqCst);
        let total = taken.saturating_add(bytes);
        for fault in &state.script.faults {
            if let Fault::AllocAbove(limit) = fault
                && total > *limit
            {
                let message = format!("{bytes} bytes were refused: {taken} of {limit} are taken");
                return Err(Error::new(ErrorKind::OutOfMemory, message));
            }
        }
        let region = Region::new(self.owner, bytes, init)?;
        state.allocated.fetch_add(bytes, Ordering::SeqCst);
        state.peak = state.peak.max(total);
        state.trace.push(Event::Alloc(bytes));
        Ok(self.own(Counted { region, bytes, allocated: Arc::clone(&state.allocated) }))
    }

    fn adopt(&self, bytes: HostBytes, range: Range<usize>) -> Result<Buffer, Error> {
        let adopted = Adopted::new(self.owner, bytes, range)?;
        self.usable("adopt")?.trace.push(Event::Adopt(adopted.len()));
        Ok(self.own(adopted))
    }

    fn write(&self, to: &Slice, bytes: &[u8]) -> Result<(), Error> {
        let mut state = self.drain("write")?;
        copy_in(self.owner, to, bytes)?;
        state.trace.push(Event::Write(bytes.len()));
        Ok(())
    }

    fn read(&self, from: &Slice, bytes: &mut [u8]) -> Result<(), Error> {
        let mut state = self.drain("read")?;
        copy_out(self.owner, from, bytes)?;
        state.trace.push(Event::Read(bytes.len()));
        Ok(())
    }

    fn load(&self, source: &Source) -> Result<Program, Error> {
        let mut state = self.usable("load")?;
        let (name, run) = match source {
            Source::Native { name, run } => (*name, Some(*run)),
            Source::Text { name, .. } => (name.as_str(), state.script.texts.get(name).copied()),
            Source::Vendor(product) => return Err(no_library(product, "the fake")),
        };
        if state.script.faults.iter().any(|f| matches!(f, Fault::Build(program) if program == name)) {
            return Err(Error::new(ErrorKind::Build, format!("{name}: the script says that it does not build")));
        }
        let Some(run) = run else {
            return Err(Error::new(ErrorKind::Build, format!("{name}: the script does not say what this text does")));
        };
        state.trace.push(Event::Load(name.to_string()));
        Ok(Program { name: name.into(), inner: Arc::new(Loaded { owner: self.owner, run }) })
    }

    fn record(&self, launches: &[Launch]) -> Result<Sequence, Error> {
        self.recorded(launches, None)
    }

    fn record_stamped(&self, launches: &[Launch]) -> Result<Option<Sequence>, Error> {
        if self.state().script.sampling == Sampling::Sequences {
            return Ok(None);
        }
        self.recorded(launches, Some(Mutex::default())).map(Some)
    }

    fn stamps(&self, sequence: &Sequence) -> Result<Option<Stamps>, Error> {
        let _state = self.drain("stamps")?;
        let recorded = sequence.inner.downcast_ref::<Recorded>().filter(|r| r.owner == self.owner);
        let stamps = recorded.ok_or_else(|| foreign("the sequence"))?.stamps.as_ref();
        Ok(stamps.map(|s| s.lock().unwrap_or_else(PoisonError::into_inner).clone()))
    }

    fn submit(&self, sequence: &Sequence) -> Result<Token, Error> {
        let mut state = self.usable("submit")?;
        let recorded = sequence.inner.clone().downcast::<Recorded>().ok().filter(|r| r.owner == self.owner);
        let recorded = recorded.ok_or_else(|| foreign("the sequence"))?;
        state.issued += 1;
        let token = Token(state.issued);
        state.pending.push_back((token, recorded));
        state.trace.push(Event::Submit(token));
        Ok(token)
    }

    /// A sequence that needs longer than `deadline` on the virtual clock still runs, but is reported as late.
    fn wait(&self, token: Token, deadline: Duration) -> Result<(), Error> {
        let mut state = self.usable("wait")?;
        if token.0 > state.issued {
            let message = format!("token {} is not among the {} submitted", token.0, state.issued);
            return Err(Error::new(ErrorKind::BadLaunch, message));
        }
        let start_ns = state.now_ns;
        state.run_until(token);
        let deadline_ns = deadline.as_nanos() as f64;
        if let Some(program) = state.hung.clone() {
            state.now_ns = start_ns + deadline_ns;
            return Err(Error::new(ErrorKind::Timeout, format!("{program} did not end within {deadline:?}")));
        }
        if let Some(error) = state.failures.remove(&token) {
            return Err(error);
        }
        state.poison.check()?;
        if state.now_ns - start_ns > deadline_ns {
            let took_ns = state.now_ns - start_ns;
            return Err(Error::new(ErrorKind::Timeout, format!("{took_ns:.0} ns of work exceed {deadline:?}")));
        }
        Ok(())
    }

    fn time(&self, sequences: &[Sequence], reps: u32) -> Result<Timing, Error> {
        if sequences.is_empty() || reps == 0 {
            let message = format!("timing {} sequences {reps} times", sequences.len());
            return Err(Error::new(ErrorKind::BadLaunch, message));
        }
        let own_ns = |state: &State| state.now_ns - state.handing_ns;
        let start_ns = own_ns(&*self.drain("time")?);
        for sequence in sequences.iter().cycle().take(reps as usize) {
            self.wait(self.submit(sequence)?, Duration::from_secs(u64::from(u32::MAX)))?;
        }
        Ok(Timing { ns: (own_ns(&self.state()) - start_ns) / f64::from(reps), reps })
    }
}
