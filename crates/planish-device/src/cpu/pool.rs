//! The thread pool of the CPU: one wake runs a whole recorded sequence, launch after launch.
//!
//! One 64-bit word holds the state of the launch that runs now: its index, the seats left for further threads, the units
//! not yet finished and the units not yet claimed.
//! One compare-and-swap of that word claims work, finishes work, and by the thread that finishes last opens the next launch.
//! A launch is over when its *work* is done, not when every thread has arrived: a thread that another program pushed off
//! its core delays nobody unless it holds a claim, and a thread may join in the middle of a sequence.
//! Everything a decision needs is in the word, so a swap that succeeds is right whatever happened since the load;
//! and a sequence cannot end while a claim on it is open, so what a claim leads to stays alive.

use std::any::Any;
use std::collections::VecDeque;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

use crate::backend::{Call, Native, Params};
use crate::error::{Error, ErrorKind};
use crate::memory::{Buffer, RawSlice};

use super::times::Times;

const UNIT_BITS: u32 = 14;
const SEAT_BITS: u32 = 12;
/// Most units that a launch is cut into; more tasks than this share units.
pub const MAX_UNITS: u32 = (1 << UNIT_BITS) - 1;
/// Most threads of a pool.
pub const MAX_THREADS: u32 = (1 << SEAT_BITS) - 1;
/// Most launches of a sequence.
pub const MAX_LAUNCHES: usize = 1 << 24;

/// Spinning at the end of a launch before parking: long against a fair launch, short against a scheduler's time slice.
const BARRIER_SPIN: Duration = Duration::from_micros(50);
/// Spin between two sequences: the long one while pauses are shorter than it, as between two tokens, else the short one.
const IDLE_SPIN: (Duration, Duration) = (Duration::from_micros(20), Duration::from_micros(200));
/// Units that a helping caller works off between two looks at the clock.
const UNITS_PER_CLOCK: u32 = 16;
/// Failures kept for callers that never ask.
const FAILURES_KEPT: usize = 64;

/// One launch, checked and bound.
pub struct Part {
    /// Its place in the sequence.
    pub at: u32,
    pub name: Arc<str>,
    pub run: Native,
    pub args: Box<[RawSlice]>,
    pub params: Params,
    pub tasks: u32,
    /// Tasks of a unit.
    pub grain: u32,
    /// What is claimed: runs of `grain` tasks.
    pub units: u32,
    /// Most threads that take part.
    pub threads: u32,
}

/// Launches that may overlap: their units are claimed as one row, with a barrier at its end.
pub struct Step {
    pub parts: Box<[Part]>,
    /// Units of all parts.
    pub units: u32,
    /// Most threads that take part, at most `units`.
    pub seats: u32,
}

impl Step {
    fn new(parts: Vec<Part>) -> Step {
        let units = parts.iter().map(|p| p.units).sum();
        Step { seats: parts[0].threads.min(units), parts: parts.into(), units }
    }
}

/// Groups launches by `overlaps` (whether each may overlap the one before it).
///
/// Launches with different thread limits, or with too many units for one row, are kept apart: a barrier more is harmless.
pub fn group(launches: impl Iterator<Item = (Part, bool)>) -> Box<[Step]> {
    let mut steps = Vec::new();
    let mut open: Vec<Part> = Vec::new();
    for (part, overlaps) in launches {
        let units: u32 = open.iter().map(|p| p.units).sum();
        let joins = overlaps && open.last().is_some_and(|p| p.threads == part.threads);
        if !(open.is_empty() || joins && units + part.units <= MAX_UNITS) {
            steps.push(Step::new(std::mem::take(&mut open)));
        }
        open.push(part);
    }
    if !open.is_empty() {
        steps.push(Step::new(open));
    }
    steps.into()
}

/// A recorded sequence.
pub struct Recorded {
    pub owner: u64,
    pub steps: Box<[Step]>,
    pub scratch: Arc<Scratch>,
    /// Most seats of any step.
    pub seats: u32,
    /// Where a stamped sequence keeps its times.
    pub times: Option<Times>,
    /// Keeps alive what `Step::args` point to.
    pub _held: Vec<Buffer>,
}

/// Private memory of every thread, `stride` bytes each.
pub struct Scratch {
    pub _memory: Buffer,
    pub base: RawSlice,
    pub stride: usize,
}

/// The state of the running launch, packed into one word; all zero when nothing runs.
#[derive(Clone, Copy)]
struct Word {
    index: u32,
    seats: u32,
    unfinished: u32,
    unclaimed: u32,
}

impl Word {
    fn unpack(bits: u64) -> Word {
        let units = u64::from(MAX_UNITS);
        Word {
            index: (bits >> (2 * UNIT_BITS + SEAT_BITS)) as u32,
            seats: ((bits >> (2 * UNIT_BITS)) & u64::from(MAX_THREADS)) as u32,
            unfinished: ((bits >> UNIT_BITS) & units) as u32,
            unclaimed: (bits & units) as u32,
        }
    }

    fn pack(self) -> u64 {
        (u64::from(self.index) << (2 * UNIT_BITS + SEAT_BITS))
            | (u64::from(self.seats) << (2 * UNIT_BITS))
            | (u64::from(self.unfinished) << UNIT_BITS)
            | u64::from(self.unclaimed)
    }

    fn open(index: u32, step: &Step) -> Word {
        Word { index, seats: step.seats, unfinished: step.units, unclaimed: step.units }
    }

    fn claimable(self) -> bool {
        self.unclaimed > 0 && self.seats > 0
    }

    /// More threads that could usefully join.
    fn wanted(self) -> u32 {
        self.seats.min(self.unclaimed)
    }
}

/// Units `units - left .. units - left + take` of a launch, owned by one thread.
struct Claim {
    index: u32,
    left: u32,
    take: u32,
}

/// What finishing a claim led to.
enum Then {
    Claimed(Claim),
    Nothing,
    SequenceOver,
}

/// Units to take when `left` are left for `threads`: large first, small last, never less than one.
fn share(left: u32, threads: u32) -> u32 {
    left.div_ceil(2 * threads).max(1)
}

/// A value alone on its cache lines (two, since adjacent lines are fetched in pairs).
#[repr(align(128))]
struct Padded<T>(T);

/// Where one thread of the pool sleeps.
struct Slot {
    parked: AtomicBool,
    thread: Mutex<Option<Thread>>,
}

struct Queue {
    running: Option<(u64, Arc<Recorded>)>,
    waiting: VecDeque<(u64, Arc<Recorded>)>,
    issued: u64,
    /// What went wrong in the sequence that runs now.
    trouble: Option<String>,
    failures: VecDeque<(u64, Error)>,
}

struct Shared {
    word: Padded<AtomicU64>,
    /// Threads in the pool's loops that are not parked.
    awake: Padded<AtomicU32>,
    /// The last sequence that finished; they finish in the order of submission.
    finished: Padded<AtomicU64>,
    current: AtomicPtr<Recorded>,
    failed: AtomicBool,
    stop: AtomicBool,
    /// Whether some caller works as thread 0.
    helper: AtomicBool,
    /// Callers that wait without helping.
    watchers: AtomicU32,
    /// When the last sequence started, nanoseconds after `born`.
    started_ns: AtomicU64,
    born: Instant,
    slots: Box<[Padded<Slot>]>,
    queue: Mutex<Queue>,
    done: Condvar,
}

/// The pool; thread 0 is whichever caller waits.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A thread that panicked while it held the lock left no half-made state: every update below is a single step.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn threads(&self) -> u32 {
        self.slots.len() as u32
    }

    fn now_ns(&self) -> u64 {
        self.born.elapsed().as_nanos() as u64
    }

    fn claimable(&self) -> bool {
        Word::unpack(self.word.0.load(SeqCst)).claimable()
    }

    /// Takes a seat at the running launch with a first claim.
    fn enter(&self) -> Option<Claim> {
        let mut seen = self.word.0.load(Acquire);
        loop {
            let word = Word::unpack(seen);
            if !word.claimable() {
                return None;
            }
            let take = share(word.unclaimed, self.threads());
            let next = Word { seats: word.seats - 1, unclaimed: word.unclaimed - take, ..word };
            match self.word.0.compare_exchange_weak(seen, next.pack(), SeqCst, Acquire) {
                Ok(_) => return Some(Claim { index: word.index, left: word.unclaimed, take }),
                Err(now) => seen = now,
            }
        }
    }

    /// Gives back a finished claim; with `stay` also claims more of this launch or, when it is over, of the next.
    fn finish(&self, recorded: &Recorded, claim: &Claim, stay: bool) -> Then {
        let mut seen = self.word.0.load(Relaxed);
        loop {
            let mut next = Word::unpack(seen);
            next.unfinished -= claim.take;
            let opened = next.unfinished == 0;
            if opened {
                let Some(step) = recorded.steps.get(claim.index as usize + 1) else {
                    match self.word.0.compare_exchange_weak(seen, 0, SeqCst, Relaxed) {
                        Ok(_) => return Then::SequenceOver,
                        Err(now) => seen = now,
                    }
                    continue;
                };
                next = Word::open(claim.index + 1, step);
            }
            let left = next.unclaimed;
            let mut take = 0;
            if stay && left > 0 {
                take = share(left, recorded.steps[next.index as usize].seats);
                next.seats -= u32::from(opened);
                next.unclaimed -= take;
            }
            match self.word.0.compare_exchange_weak(seen, next.pack(), SeqCst, Relaxed) {
                Err(now) => seen = now,
                Ok(_) => {
                    if opened {
                        self.wake_for(next.wanted(), 1);
                    }
                    return match take {
                        0 => Then::Nothing,
                        take => Then::Claimed(Claim { index: next.index, left, take }),
                    };
                }
            }
        }
    }

    /// Works as thread `me` until there is nothing to claim or `leave` says so; whether anything was done.
    fn work(&self, me: u32, leave: &dyn Fn() -> bool) -> bool {
        let Some(mut claim) = self.enter() else { return false };
        let mut until_clock = UNITS_PER_CLOCK;
        // Where a stamped run of tasks begins, unless it follows the one before without a launch between.
        let mut from = None;
        loop {
            // SAFETY: the open claim keeps the sequence running, and the queue holds an Arc of the running sequence.
            let recorded = unsafe { &*self.current.load(Relaxed) };
            match &recorded.times {
                None => self.run(recorded, &claim, me, |_| {}),
                Some(times) => {
                    let mut start = from.unwrap_or_else(|| self.now_ns());
                    self.run(recorded, &claim, me, |part| {
                        let end = self.now_ns();
                        times.add(part, me, start..end);
                        start = end;
                    });
                    from = Some(start);
                }
            }
            until_clock -= 1;
            let mut stay = true;
            if until_clock == 0 {
                until_clock = UNITS_PER_CLOCK;
                stay = !leave();
            }
            match self.finish(recorded, &claim, stay) {
                Then::Claimed(more) => {
                    from = from.filter(|_| more.index == claim.index);
                    claim = more;
                }
                Then::Nothing => return true,
                Then::SequenceOver => {
                    self.sequence_over();
                    return true;
                }
            }
        }
    }

    /// Does what is claimed, and says after each part which launch it was of.
    fn run(&self, recorded: &Recorded, claim: &Claim, me: u32, mut after: impl FnMut(u32)) {
        let step = &recorded.steps[claim.index as usize];
        let scratch = &recorded.scratch;
        let ptr = scratch.base.ptr.wrapping_add(me as usize * scratch.stride);
        let scratch = RawSlice { ptr, len: scratch.stride };
        // Units are counted from the first part on; `skip` of them lie before the claim.
        let (mut skip, mut take) = (step.units - claim.left, claim.take);
        for part in &step.parts {
            if skip >= part.units {
                skip -= part.units;
                continue;
            }
            let mine = take.min(part.units - skip);
            self.call(part, skip..skip + mine, me, scratch);
            after(part.at);
            take -= mine;
            if take == 0 {
                return;
            }
            skip = 0;
        }
    }

    fn call(&self, part: &Part, units: Range<u32>, thread: u32, scratch: RawSlice) {
        if self.failed.load(Relaxed) {
            return;
        }
        let tasks = units.start * part.grain..units.end.saturating_mul(part.grain).min(part.tasks);
        let call = Call { args: &part.args, params: &part.params, tasks: tasks.clone(), thread, scratch };
        // SAFETY: whoever built the launch bound the arguments that the kernel documents; `_held` keeps them alive.
        let outcome = catch_unwind(AssertUnwindSafe(|| unsafe { (part.run)(&call) }));
        if let Err(panic) = outcome {
            let text = panic_text(panic.as_ref());
            let message = format!("{} panicked in tasks {tasks:?} of {}: {text}", part.name, part.tasks);
            locked(&self.queue).trouble.get_or_insert(message);
            self.failed.store(true, Release);
        }
    }

    /// Ends the running sequence and starts the next in the queue.
    fn sequence_over(&self) {
        let mut queue = locked(&self.queue);
        let (token, recorded) = queue.running.take().expect("a sequence that ended was running");
        if let Some(message) = queue.trouble.take() {
            if queue.failures.len() == FAILURES_KEPT {
                queue.failures.pop_front();
            }
            queue.failures.push_back((token, Error::new(ErrorKind::BadLaunch, message)));
        }
        if let Some(times) = &recorded.times {
            times.ended_ns.store(self.now_ns(), Relaxed);
        }
        self.finished.0.store(token, SeqCst);
        if let Some((token, next)) = queue.waiting.pop_front() {
            self.start(&mut queue, token, next);
        }
        drop(queue);
        drop(recorded);
        if self.watchers.load(SeqCst) > 0 {
            drop(locked(&self.queue));
            self.done.notify_all();
        }
        self.wake_slot(0);
    }

    fn start(&self, queue: &mut Queue, token: u64, recorded: Arc<Recorded>) {
        self.failed.store(false, Relaxed);
        let now = self.now_ns();
        self.started_ns.store(now, Relaxed);
        if let Some(times) = &recorded.times {
            times.begin(token, now);
        }
        self.current.store(Arc::as_ptr(&recorded).cast_mut(), Relaxed);
        let word = Word::open(0, &recorded.steps[0]);
        let wanted = recorded.seats - 1;
        queue.running = Some((token, recorded));
        // From here on the sequence may finish, but it is not taken out of the queue before the lock is released.
        self.word.0.store(word.pack(), SeqCst);
        self.wake_for(wanted, 0);
    }

    /// Wakes parked threads so that `wanted` are awake besides the `busy` ones.
    fn wake_for(&self, wanted: u32, busy: u32) {
        let ready = self.awake.0.load(SeqCst).saturating_sub(busy);
        let mut missing = wanted.saturating_sub(ready);
        for slot in 0..self.slots.len() {
            if missing == 0 {
                return;
            }
            missing -= u32::from(self.wake_slot(slot));
        }
    }

    fn wake_slot(&self, slot: usize) -> bool {
        let slot = &self.slots[slot].0;
        if !slot.parked.load(SeqCst) || !slot.parked.swap(false, SeqCst) {
            return false;
        }
        self.awake.0.fetch_add(1, SeqCst);
        if let Some(thread) = locked(&slot.thread).as_ref() {
            thread.unpark();
        }
        true
    }

    /// Spins, then parks, until there is work or `enough`; gives up at `deadline`.
    fn idle(&self, me: u32, spin: Duration, enough: &dyn Fn() -> bool, deadline: Option<Instant>) {
        let start = Instant::now();
        let ready = || self.claimable() || enough();
        loop {
            for _ in 0..32 {
                if ready() {
                    return;
                }
                std::hint::spin_loop();
            }
            if start.elapsed() >= spin {
                break;
            }
        }
        let slot = &self.slots[me as usize].0;
        slot.parked.store(true, SeqCst);
        self.awake.0.fetch_sub(1, SeqCst);
        // A waker that came before the flag was up saw this thread awake; look once more before sleeping.
        while !ready() && slot.parked.load(SeqCst) {
            match deadline.map(|at| at.saturating_duration_since(Instant::now())) {
                None => std::thread::park(),
                Some(Duration::ZERO) => break,
                Some(left) => std::thread::park_timeout(left),
            }
        }
        if slot.parked.swap(false, SeqCst) {
            self.awake.0.fetch_add(1, SeqCst);
        }
    }

    fn worker(&self, me: u32) {
        *locked(&self.slots[me as usize].0.thread) = Some(std::thread::current());
        let stop = || self.stop.load(SeqCst);
        let mut patience = IDLE_SPIN.0;
        while !stop() {
            if self.work(me, &stop) {
                continue;
            }
            if self.word.0.load(Relaxed) != 0 {
                // The end of the sequence begins a pause, which has its own, longer spin.
                self.idle(me, BARRIER_SPIN, &|| stop() || self.word.0.load(SeqCst) == 0, None);
            } else {
                let began = self.now_ns();
                self.idle(me, patience, &stop, None);
                // Counted to the arrival of work: this thread may have got its core back long after.
                let pause = Duration::from_nanos(self.started_ns.load(Relaxed).saturating_sub(began));
                patience = if pause < IDLE_SPIN.1 { IDLE_SPIN.1 } else { IDLE_SPIN.0 };
            }
        }
        self.awake.0.fetch_sub(1, SeqCst);
    }

    /// Waits for `token` as thread 0 of the pool; whether it finished in time.
    fn help(&self, token: u64, deadline: Option<Instant>) -> bool {
        let finished = || self.finished.0.load(SeqCst) >= token;
        let late = || deadline.is_some_and(|at| Instant::now() >= at);
        *locked(&self.slots[0].0.thread) = Some(std::thread::current());
        self.awake.0.fetch_add(1, SeqCst);
        while !finished() && !late() {
            if !self.work(0, &late) {
                self.idle(0, BARRIER_SPIN, &finished, deadline);
            }
        }
        self.awake.0.fetch_sub(1, SeqCst);
        // Work that this thread leaves behind unclaimed is for the others.
        let word = Word::unpack(self.word.0.load(SeqCst));
        if word.claimable() {
            self.wake_for(word.wanted(), 0);
        }
        finished()
    }

    /// Waits for `token` or until the place of thread 0 is free, without working.
    fn watch(&self, token: u64, deadline: Option<Instant>) {
        self.watchers.fetch_add(1, SeqCst);
        let mut queue = locked(&self.queue);
        while self.finished.0.load(SeqCst) < token && self.helper.load(SeqCst) {
            let left = deadline.map_or(Duration::from_secs(1), |at| at.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                break;
            }
            queue = self.done.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(queue);
        self.watchers.fetch_sub(1, SeqCst);
    }
}

/// The message of a caught panic.
pub fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

impl Pool {
    /// A pool of `threads` threads, the waiting caller included.
    pub fn new(threads: u32) -> Result<Pool, Error> {
        assert!((1..=MAX_THREADS).contains(&threads), "{threads} threads, a pool has 1 to {MAX_THREADS}");
        let slot = |_| Padded(Slot { parked: AtomicBool::new(false), thread: Mutex::new(None) });
        let queue = Queue {
            running: None,
            waiting: VecDeque::with_capacity(64),
            issued: 0,
            trouble: None,
            failures: VecDeque::with_capacity(FAILURES_KEPT),
        };
        let shared = Arc::new(Shared {
            word: Padded(AtomicU64::new(0)),
            awake: Padded(AtomicU32::new(threads - 1)),
            finished: Padded(AtomicU64::new(0)),
            current: AtomicPtr::new(std::ptr::null_mut()),
            failed: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            helper: AtomicBool::new(false),
            watchers: AtomicU32::new(0),
            started_ns: AtomicU64::new(0),
            born: Instant::now(),
            slots: (0..threads).map(slot).collect(),
            queue: Mutex::new(queue),
            done: Condvar::new(),
        });
        let mut pool = Pool { shared, workers: Vec::new() };
        for me in 1..threads {
            let shared = pool.shared.clone();
            let worker = std::thread::Builder::new().name(format!("planish-{me}")).spawn(move || shared.worker(me));
            let worker = worker.map_err(|e| {
                Error::new(ErrorKind::Unavailable, format!("thread {me} of {threads} could not be started: {e}"))
            })?;
            pool.workers.push(worker);
        }
        Ok(pool)
    }

    /// Threads, the waiting caller included.
    pub fn threads(&self) -> u32 {
        self.shared.threads()
    }

    /// Starts `recorded` after everything submitted before.
    pub fn submit(&self, recorded: Arc<Recorded>) -> u64 {
        let mut queue = locked(&self.shared.queue);
        queue.issued += 1;
        let token = queue.issued;
        match queue.running {
            None => self.shared.start(&mut queue, token, recorded),
            Some(_) => queue.waiting.push_back((token, recorded)),
        }
        token
    }

    /// Waits for `token` and everything before it; the failure of that sequence, or `Timeout`.
    pub fn wait(&self, token: u64, deadline: Duration) -> Result<(), Error> {
        let issued = locked(&self.shared.queue).issued;
        if token > issued {
            return Err(Error::new(ErrorKind::BadLaunch, format!("token {token} is not among the {issued} submitted")));
        }
        if !self.settle(token, Instant::now().checked_add(deadline)) {
            let message = format!("sequence {token} did not finish within {:.3} s", deadline.as_secs_f64());
            return Err(Error::new(ErrorKind::Timeout, message));
        }
        let mut queue = locked(&self.shared.queue);
        match queue.failures.iter().position(|(failed, _)| *failed == token) {
            Some(at) => Err(queue.failures.remove(at).expect("position is in range").1),
            None => Ok(()),
        }
    }

    /// Waits for everything submitted; failures stay for their own `wait`.
    pub fn drain(&self) {
        let issued = locked(&self.shared.queue).issued;
        self.settle(issued, None);
    }

    fn settle(&self, token: u64, deadline: Option<Instant>) -> bool {
        let shared = &self.shared;
        loop {
            if shared.finished.0.load(SeqCst) >= token {
                return true;
            }
            if deadline.is_some_and(|at| Instant::now() >= at) {
                return false;
            }
            if shared.helper.swap(true, SeqCst) {
                shared.watch(token, deadline);
                continue;
            }
            let done = shared.help(token, deadline);
            shared.helper.store(false, SeqCst);
            if shared.watchers.load(SeqCst) > 0 {
                drop(locked(&shared.queue));
                shared.done.notify_all();
            }
            return done;
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, SeqCst);
        for slot in 0..self.shared.slots.len() {
            self.shared.wake_slot(slot);
        }
        for worker in self.workers.drain(..) {
            // A worker catches the panics of kernels; one of its own has been reported by the panic hook.
            let _ = worker.join();
        }
    }
}
