//! The CPU backend: host memory, native programs, and a thread pool that runs a recorded sequence in one wake.
//!
//! `submit` queues a sequence and wakes the pool's own threads; `wait`, `read`, `write` and `time` make the calling thread
//! take part as thread 0 until the work they wait for is done.
//! A pool of one thread, and a sequence whose launches all use one thread, therefore run inside `wait`.

pub mod bandwidth;
pub mod pages;
mod pool;
pub mod residency;
pub mod tiles;
mod times;
pub mod topology;

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::backend::{
    Backend, Identity, Launch, Limits, Native, Program, Sequence, Source, Stamps, Timing, Token, foreign, no_library,
    without_views,
};
use crate::error::{Error, ErrorKind};
use crate::memory::{Buffer, HostBytes, Init, RawSlice, Slice};
use pages::{ALIGN, Adopted, Region};
pub use pool::MAX_THREADS;
pub(crate) use pool::panic_text;
use pool::{MAX_LAUNCHES, MAX_UNITS, Part, Pool, Recorded, Scratch, group};
use times::Times;
use topology::Topology;

/// How to set the CPU up.
#[derive(Clone, Debug, Default)]
pub struct CpuOptions {
    /// Threads of the pool, the waiting caller included; by default one per physical core, within this process's share.
    pub threads: Option<u32>,
}

/// This machine's processor.
pub struct Cpu {
    owner: u64,
    limits: Limits,
    identity: Identity,
    topology: Topology,
    pool: Pool,
    scratch: Mutex<Arc<Scratch>>,
}

/// A number that no other backend instance of this process has.
pub(crate) fn new_owner() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Asks for the cache line at `at`, which need not be memory of ours: a line that cannot be had is left out.
#[inline(always)]
pub fn prefetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has the instruction, and it never faults.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: it never faults.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{at}]", at = in(reg) at, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = at;
}

struct NativeProgram {
    owner: u64,
    run: Native,
}

impl Cpu {
    /// Starts the pool; an error when a thread count outside 1 to 4095 is asked for or threads cannot be had.
    pub fn new(options: CpuOptions) -> Result<Cpu, Error> {
        let topology = topology::probe();
        let threads = options.threads.unwrap_or_else(|| topology.default_threads().min(MAX_THREADS));
        if !(1..=MAX_THREADS).contains(&threads) {
            return Err(Error::new(
                ErrorKind::Unavailable,
                format!("{threads} threads: 1 to {MAX_THREADS} are possible"),
            ));
        }
        let owner = new_owner();
        let pool = Pool::new(threads)?;
        let scratch = Mutex::new(Arc::new(scratch(owner, threads, ALIGN)?));
        let (limits, identity) = (limits(&topology, threads), topology.identity());
        Ok(Cpu { owner, limits, identity, topology, pool, scratch })
    }

    /// Threads of the pool, the waiting caller included.
    pub fn threads(&self) -> u32 {
        self.pool.threads()
    }

    /// What this processor is and what this process may use of it.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// The pool's scratch with at least `bytes` a thread; grown here, never while a sequence runs.
    fn scratch_for(&self, bytes: usize) -> Result<Arc<Scratch>, Error> {
        let mut current = self.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        if current.stride < bytes {
            *current = Arc::new(scratch(self.owner, self.threads(), bytes)?);
        }
        Ok(current.clone())
    }

    fn part(&self, at: usize, launch: &Launch) -> Result<Part, Error> {
        let name = &launch.program.name;
        let refuse = |what: String| Err(Error::new(ErrorKind::BadLaunch, format!("launch {at} ({name}): {what}")));
        let program = launch.program.inner.downcast_ref::<NativeProgram>().filter(|p| p.owner == self.owner);
        let Some(program) = program else { return refuse("the program was made by another backend".into()) };
        if launch.tasks == 0 || launch.threads == 0 {
            return refuse(format!("{} tasks on {} threads", launch.tasks, launch.threads));
        }
        without_views(launch)?;
        let mut args = Vec::with_capacity(launch.args.len());
        for (i, slice) in launch.args.iter().enumerate() {
            match raw(self.owner, slice) {
                Ok(raw) => args.push(raw),
                Err(e) => return refuse(format!("argument {i}: {e}")),
            }
        }
        let grain = launch.tasks.div_ceil(MAX_UNITS);
        Ok(Part {
            at: at as u32,
            name: name.clone(),
            run: program.run,
            args: args.into(),
            params: launch.params.clone(),
            tasks: launch.tasks,
            grain,
            units: launch.tasks.div_ceil(grain),
            threads: launch.threads.min(self.threads()),
        })
    }
}

impl Cpu {
    fn own(&self, sequence: &Sequence) -> Result<Arc<Recorded>, Error> {
        let recorded = sequence.inner.clone().downcast::<Recorded>().ok().filter(|r| r.owner == self.owner);
        recorded.ok_or_else(|| foreign("the sequence"))
    }

    fn recorded(&self, launches: &[Launch], times: Option<Times>) -> Result<Sequence, Error> {
        if launches.is_empty() || launches.len() >= MAX_LAUNCHES {
            let message = format!("a sequence of {} launches: 1 to {} are possible", launches.len(), MAX_LAUNCHES - 1);
            return Err(Error::new(ErrorKind::BadLaunch, message));
        }
        let parts: Result<Vec<Part>, Error> = launches.iter().enumerate().map(|(at, l)| self.part(at, l)).collect();
        let steps = group(parts?.into_iter().zip(launches.iter().map(|l| l.overlap)));
        let need = launches.iter().map(|l| l.scratch_bytes as usize).max().unwrap_or(0);
        let recorded = Recorded {
            owner: self.owner,
            seats: steps.iter().map(|s| s.seats).max().unwrap_or(1),
            steps,
            scratch: self.scratch_for(need)?,
            times,
            _held: launches.iter().flat_map(|l| l.args.iter().map(|s| s.buffer.clone())).collect(),
        };
        Ok(Sequence { launches: launches.len(), inner: Arc::new(recorded) })
    }
}

fn scratch(owner: u64, threads: u32, bytes: usize) -> Result<Scratch, Error> {
    // A further line apart, so that threads whose scratch is a power of two do not share cache sets.
    let stride = bytes.next_multiple_of(ALIGN) + 2 * ALIGN;
    let memory = Buffer(Arc::new(Region::new(owner, stride * threads as usize, Init::Zero)?));
    let base = raw(owner, &memory.all())?;
    Ok(Scratch { _memory: memory, base, stride })
}

/// Where a slice of this owner's memory lies, bounds checked again since the fields of a slice are public.
pub(crate) fn raw(owner: u64, slice: &Slice) -> Result<RawSlice, Error> {
    if slice.buffer.0.owner() != owner {
        return Err(foreign("its buffer"));
    }
    slice.buffer.slice(slice.offset, slice.len)?;
    let base = slice.buffer.0.host().ok_or_else(|| foreign("its buffer"))?;
    Ok(RawSlice { ptr: base.as_ptr().wrapping_add(slice.offset), len: slice.len })
}

/// Copies `bytes` into memory of `owner` that no kernel uses now.
pub(crate) fn copy_in(owner: u64, to: &Slice, bytes: &[u8]) -> Result<(), Error> {
    let raw = raw(owner, to)?;
    if raw.len != bytes.len() || !to.buffer.0.writable() {
        let kind = if to.buffer.0.writable() { "" } else { " read-only" };
        let message = format!("write of {} bytes to a{kind} slice of {} bytes", bytes.len(), raw.len);
        return Err(Error::new(ErrorKind::BadLaunch, message));
    }
    // SAFETY: in bounds by `raw`, writable, and `bytes` is a live reference; a copy is defined where they overlap.
    unsafe { std::ptr::copy(bytes.as_ptr(), raw.ptr, raw.len) };
    Ok(())
}

/// Copies memory of `owner` that no kernel writes now to `bytes`.
pub(crate) fn copy_out(owner: u64, from: &Slice, bytes: &mut [u8]) -> Result<(), Error> {
    let raw = raw(owner, from)?;
    if raw.len != bytes.len() {
        let message = format!("read of {} bytes from a slice of {} bytes", bytes.len(), raw.len);
        return Err(Error::new(ErrorKind::BadLaunch, message));
    }
    // SAFETY: in bounds by `raw`; `bytes` is an exclusive reference of the same size.
    unsafe { std::ptr::copy(raw.ptr, bytes.as_mut_ptr(), raw.len) };
    Ok(())
}

/// Cache sizes that constraints may rely on where the machine does not tell its own.
const CACHES_ASSUMED: (u64, u64, u64) = (32 << 10, 512 << 10, 8 << 20);

fn limits(topology: &Topology, threads: u32) -> Limits {
    let known = |bytes: u64, assumed: u64| if bytes == 0 { assumed } else { bytes };
    Limits {
        backend: "cpu".into(),
        max_threads: threads,
        processors: 0,
        shared_bytes: 0,
        dynamic_shared_bytes: 0,
        l1_bytes: known(topology.l1_bytes, CACHES_ASSUMED.0),
        l2_bytes: known(topology.l2_bytes, CACHES_ASSUMED.1),
        llc_bytes: known(topology.llc_bytes, CACHES_ASSUMED.2),
        read_gb_s: None,
    }
}

impl Backend for Cpu {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn alloc(&self, bytes: usize, init: Init) -> Result<Buffer, Error> {
        Ok(Buffer(Arc::new(Region::new(self.owner, bytes, init)?)))
    }

    fn alloc_with(&self, bytes: usize, fill: &mut dyn FnMut(&mut [u8])) -> Result<Buffer, Error> {
        let mut region = Region::new(self.owner, bytes, Init::Zero)?;
        fill(region.bytes_mut());
        Ok(Buffer(Arc::new(region)))
    }

    fn adopt(&self, bytes: HostBytes, range: Range<usize>) -> Result<Buffer, Error> {
        Ok(Buffer(Arc::new(Adopted::new(self.owner, bytes, range)?)))
    }

    fn write(&self, to: &Slice, bytes: &[u8]) -> Result<(), Error> {
        self.pool.drain();
        copy_in(self.owner, to, bytes)
    }

    fn read(&self, from: &Slice, bytes: &mut [u8]) -> Result<(), Error> {
        self.pool.drain();
        copy_out(self.owner, from, bytes)
    }

    fn load(&self, source: &Source) -> Result<Program, Error> {
        match source {
            Source::Native { name, run } => {
                Ok(Program { name: (*name).into(), inner: Arc::new(NativeProgram { owner: self.owner, run: *run }) })
            }
            Source::Text { name, .. } => {
                let message = format!("{name} is kernel text; the cpu backend runs native programs only");
                Err(Error::new(ErrorKind::Build, message))
            }
            Source::Vendor(product) => Err(no_library(product, "the cpu backend")),
        }
    }

    fn record(&self, launches: &[Launch]) -> Result<Sequence, Error> {
        self.recorded(launches, None)
    }

    fn record_stamped(&self, launches: &[Launch]) -> Result<Option<Sequence>, Error> {
        self.recorded(launches, Some(Times::new(self.threads(), launches.len()))).map(Some)
    }

    fn stamps(&self, sequence: &Sequence) -> Result<Option<Stamps>, Error> {
        self.pool.drain();
        Ok(self.own(sequence)?.times.as_ref().map(Times::read))
    }

    fn submit(&self, sequence: &Sequence) -> Result<Token, Error> {
        Ok(Token(self.pool.submit(self.own(sequence)?)))
    }

    /// The deadline is looked at between tasks: a task that never returns is for the caller's process to contain.
    fn wait(&self, token: Token, deadline: Duration) -> Result<(), Error> {
        self.pool.wait(token.0, deadline)
    }

    fn time(&self, sequences: &[Sequence], reps: u32) -> Result<Timing, Error> {
        if sequences.is_empty() || reps == 0 {
            let message = format!("timing {} sequences {reps} times", sequences.len());
            return Err(Error::new(ErrorKind::BadLaunch, message));
        }
        self.pool.drain();
        let start = Instant::now();
        for sequence in sequences.iter().cycle().take(reps as usize) {
            self.wait(self.submit(sequence)?, Duration::MAX)?;
        }
        Ok(Timing { ns: start.elapsed().as_nanos() as f64 / f64::from(reps), reps })
    }
}
