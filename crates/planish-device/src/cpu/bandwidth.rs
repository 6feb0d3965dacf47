//! Ceilings measured on this machine: read and copy bandwidth of memory, cost of a launch, of an empty sequence and of a wake.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::{Cpu, prefetch};
use crate::backend::{Backend, Call, Launch, Native, Params, Plain, Sequence, Source};
use crate::error::{Error, ErrorKind};
use crate::memory::{Buffer, Init, Slice};

/// Bytes a task reads or copies: four streams of it are each long enough for the hardware's prefetchers.
pub(super) const TASK_BYTES: usize = 4 << 20;
const STREAMS: usize = 4;
/// Bounds of the buffer; between them it is eight last-level caches.
const BUFFER_BYTES: (usize, usize) = (64 << 20, 512 << 20);
/// Fewest passes that a median is taken of.
const SAMPLES_MIN: u32 = 5;
/// Launches of the sequence that a launch's cost is measured with.
const NULL_LAUNCHES: usize = 300;

/// A measured bandwidth.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bandwidth {
    /// Median over the passes, GB/s (1e9 bytes).
    pub median: f64,
    /// The best pass, GB/s.
    pub best: f64,
    /// Passes.
    pub samples: u32,
    /// Bytes moved in a pass; a copy counts what it reads and what it writes.
    pub bytes: u64,
    /// Threads that took part.
    pub threads: u32,
}

#[derive(Clone, Copy)]
struct Nothing;
// SAFETY: no bytes at all.
unsafe impl Plain for Nothing {}

/// How a task reads.
#[derive(Clone, Copy)]
struct Pattern {
    /// One stream, or `STREAMS`.
    streams: usize,
    /// Bytes that are fetched ahead of a single stream; the hardware's prefetchers do what they do besides.
    ahead: usize,
}
// SAFETY: two numbers.
unsafe impl Plain for Pattern {}

/// Which pattern reads fastest depends on the processor, so all are timed and the best is its bandwidth.
const PATTERNS: [Pattern; 2] = [Pattern { streams: STREAMS, ahead: 0 }, Pattern { streams: 1, ahead: 1024 }];

/// Reads all bytes of its tasks; the sums land in argument 1 so that no read can be left out.
unsafe fn read_stream(call: &Call<'_>) {
    // SAFETY: argument 0 holds TASK_BYTES a task and nobody writes it.
    let all = unsafe { call.args[0].read::<u64>() };
    let pattern = *call.params.get::<Pattern>();
    for task in call.tasks.clone() {
        let words = TASK_BYTES / 8;
        let part = &all[task as usize * words..][..words];
        #[cfg(target_arch = "x86_64")]
        let sum = if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: AVX2 was just found.
            unsafe { sum_avx2(part, pattern) }
        } else {
            sum_portable(part, pattern)
        };
        #[cfg(not(target_arch = "x86_64"))]
        let sum = sum_portable(part, pattern);
        // SAFETY: argument 1 holds one word a task, each written by the thread that has the task.
        unsafe { call.args[1].write::<u64>(task as usize, 1)[0] = sum };
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn sum_avx2(part: &[u64], pattern: Pattern) -> u64 {
    sum_portable(part, pattern)
}

#[inline(always)]
fn sum_portable(part: &[u64], pattern: Pattern) -> u64 {
    if pattern.streams == 1 { sum_ahead(part, pattern.ahead) } else { sum_streams(part) }
}

/// Sum of one stream, four cache lines at a time, of which those `ahead` bytes further on are asked for.
#[inline(always)]
fn sum_ahead(part: &[u64], ahead: usize) -> u64 {
    let mut sums = [0u64; 32];
    for lines in part.as_chunks::<32>().0 {
        for line in 0..4 {
            prefetch(lines.as_ptr().cast::<u8>().wrapping_add(ahead + 64 * line));
        }
        for (sum, word) in sums.iter_mut().zip(lines) {
            *sum = sum.wrapping_add(*word);
        }
    }
    sums.iter().fold(0, |sum, &x| sum.wrapping_add(x))
}

/// Sum of four streams, eight words (a cache line) of each at a time; the compiler makes vectors of it.
#[inline(always)]
fn sum_streams(part: &[u64]) -> u64 {
    let (ab, cd) = part.split_at(part.len() / 2);
    let ((a, b), (c, d)) = (ab.split_at(ab.len() / 2), cd.split_at(cd.len() / 2));
    let mut sums = [[0u64; 8]; STREAMS];
    let lines =
        a.as_chunks::<8>().0.iter().zip(b.as_chunks::<8>().0).zip(c.as_chunks::<8>().0).zip(d.as_chunks::<8>().0);
    for (((a, b), c), d) in lines {
        for i in 0..8 {
            sums[0][i] = sums[0][i].wrapping_add(a[i]);
            sums[1][i] = sums[1][i].wrapping_add(b[i]);
            sums[2][i] = sums[2][i].wrapping_add(c[i]);
            sums[3][i] = sums[3][i].wrapping_add(d[i]);
        }
    }
    sums.iter().flatten().fold(0, |sum, &x| sum.wrapping_add(x))
}

/// Copies its tasks from argument 0 to argument 1.
unsafe fn copy_stream(call: &Call<'_>) {
    for task in call.tasks.clone() {
        // SAFETY: both arguments hold TASK_BYTES a task; this thread alone writes this task's part of the second.
        unsafe {
            let from = &call.args[0].read::<u8>()[task as usize * TASK_BYTES..][..TASK_BYTES];
            call.args[1].write::<u8>(task as usize * TASK_BYTES, TASK_BYTES).copy_from_slice(from);
        }
    }
}

unsafe fn nothing(_: &Call<'_>) {}

/// Tasks that are over only when all of them have begun.
#[derive(Clone, Copy)]
struct Meeting(u32);
// SAFETY: one number.
unsafe impl Plain for Meeting {}

/// After this long somebody does not come; a machine may stand still for a part of it.
const MEETING_DEADLINE: Duration = Duration::from_secs(10);

/// Waits for the other tasks to begin; argument 0 counts those that have.
unsafe fn meet(call: &Call<'_>) {
    // SAFETY: argument 0 is one counter, made of atomic words.
    let begun = unsafe { &call.args[0].read::<AtomicU32>()[0] };
    let all = call.params.get::<Meeting>().0;
    for _ in call.tasks.clone() {
        begun.fetch_add(1, SeqCst);
        let start = Instant::now();
        while begun.load(SeqCst) < all && start.elapsed() < MEETING_DEADLINE {
            std::hint::spin_loop();
        }
    }
}

/// Bytes of a buffer that no cache of this machine holds a good part of.
pub fn cold_bytes(cpu: &Cpu) -> usize {
    let wanted = (cpu.limits().llc_bytes as usize).saturating_mul(8).clamp(BUFFER_BYTES.0, BUFFER_BYTES.1);
    wanted.next_multiple_of(TASK_BYTES)
}

/// Read bandwidth of memory with `threads` threads in the pattern that is fastest here, measured for about `budget`.
pub fn read_gb_s(cpu: &Cpu, threads: u32, budget: Duration) -> Result<Bandwidth, Error> {
    read_of_gb_s(cpu, threads, cold_bytes(cpu), budget)
}

/// Bandwidth of reading the same `bytes` bytes again and again, rounded up to whole tasks: caches may hold some of them.
pub fn read_of_gb_s(cpu: &Cpu, threads: u32, bytes: usize, budget: Duration) -> Result<Bandwidth, Error> {
    let bytes = bytes.max(1).next_multiple_of(TASK_BYTES);
    let from = cpu.alloc(bytes, Init::Fill(1))?;
    let tasks = bytes / TASK_BYTES;
    let sums = cpu.alloc(tasks * 8, Init::Zero)?;
    let args = [from.all(), sums.all()];
    let probe = Probe { name: "read_stream", run: read_stream, args: &args, tasks: tasks as u32, threads };
    let mut found: Option<Bandwidth> = None;
    for pattern in PATTERNS {
        let launch = Launch { params: Params::new(pattern), ..probe.launch(cpu)? };
        let with = sample(cpu, &cpu.record(&[launch])?, threads, bytes as u64, budget / PATTERNS.len() as u32)?;
        check_sums(cpu, &sums)?;
        if found.as_ref().is_none_or(|best| best.median < with.median) {
            found = Some(with);
        }
    }
    found.ok_or_else(|| Error::new(ErrorKind::BadLaunch, "no pattern of reading was tried"))
}

/// A pass over a buffer, whole tasks of it, by all threads.
pub(super) struct Stream {
    from: Buffer,
    sequence: Sequence,
    tasks: usize,
}

impl Stream {
    /// Of `bytes` bytes, rounded up.
    pub fn new(cpu: &Cpu, bytes: usize) -> Result<Stream, Error> {
        let tasks = bytes.max(1).div_ceil(TASK_BYTES);
        Self::of(cpu, cpu.alloc(tasks * TASK_BYTES, Init::Fill(1))?, tasks)
    }

    fn of(cpu: &Cpu, from: Buffer, tasks: usize) -> Result<Stream, Error> {
        let sums = cpu.alloc(tasks * 8, Init::Zero)?;
        let args = [from.all(), sums.all()];
        let (tasks_all, threads) = (tasks as u32, cpu.threads());
        let probe = Probe { name: "read_stream", run: read_stream, args: &args, tasks: tasks_all, threads };
        // Which pattern it is does not matter: passes are held against each other.
        let launch = Launch { params: Params::new(PATTERNS[0]), ..probe.launch(cpu)? };
        Ok(Stream { from, sequence: cpu.record(&[launch])?, tasks })
    }

    /// A pass over the first `bytes` bytes of the same buffer, rounded up.
    pub fn part(&self, cpu: &Cpu, bytes: usize) -> Result<Stream, Error> {
        Self::of(cpu, self.from.clone(), bytes.div_ceil(TASK_BYTES).clamp(1, self.tasks))
    }

    /// Bytes of a pass.
    pub fn bytes(&self) -> u64 {
        (self.tasks * TASK_BYTES) as u64
    }

    /// One pass, nanoseconds a byte.
    pub fn ns_a_byte(&self, cpu: &Cpu) -> Result<f64, Error> {
        Ok(cpu.time(std::slice::from_ref(&self.sequence), 1)?.ns / self.bytes() as f64)
    }
}

fn check_sums(cpu: &Cpu, sums: &Buffer) -> Result<(), Error> {
    let mut out = vec![0; sums.len()];
    cpu.read(&sums.all(), &mut out)?;
    let expected = (u64::from_ne_bytes([1; 8])).wrapping_mul(TASK_BYTES as u64 / 8).to_ne_bytes();
    match out.chunks_exact(8).position(|sum| sum != expected) {
        None => Ok(()),
        Some(task) => {
            Err(Error::new(ErrorKind::Poisoned, format!("the bandwidth probe read wrong bytes in task {task}")))
        }
    }
}

/// Copy bandwidth of memory (bytes read plus bytes written) with `threads` threads, measured for about `budget`.
pub fn copy_gb_s(cpu: &Cpu, threads: u32, budget: Duration) -> Result<Bandwidth, Error> {
    let bytes = (cold_bytes(cpu) / 2).next_multiple_of(TASK_BYTES);
    let (from, to) = (cpu.alloc(bytes, Init::Fill(1))?, cpu.alloc(bytes, Init::Fill(0))?);
    let tasks = (bytes / TASK_BYTES) as u32;
    let args = [from.all(), to.all()];
    let sequence = Probe { name: "copy_stream", run: copy_stream, args: &args, tasks, threads }.record(cpu, 1)?;
    sample(cpu, &sequence, threads, 2 * bytes as u64, budget)
}

/// Nanoseconds that one launch of `threads` empty tasks costs inside a sequence: median over many sequences.
pub fn barrier_ns(cpu: &Cpu, threads: u32, budget: Duration) -> Result<f64, Error> {
    let probe = Probe { name: "nothing", run: nothing, args: &[], tasks: threads, threads };
    let sequence = probe.record(cpu, NULL_LAUNCHES)?;
    Ok(median_ns(cpu, &sequence, budget)? / NULL_LAUNCHES as f64)
}

/// Nanoseconds from submitting one empty task to having waited for it: median over many.
pub fn null_ns(cpu: &Cpu, budget: Duration) -> Result<f64, Error> {
    let probe = Probe { name: "nothing", run: nothing, args: &[], tasks: 1, threads: 1 };
    median_ns(cpu, &probe.record(cpu, 1)?, budget)
}

/// Nanoseconds until all `threads` threads work after a pause of `pause`, from the submission on: median over `samples`.
///
/// In a pause of less than 20 us threads still spin, after one of more than 200 us they sleep.
pub fn wake_ns(cpu: &Cpu, threads: u32, pause: Duration, samples: u32) -> Result<f64, Error> {
    let begun = cpu.alloc(4, Init::Zero)?;
    let args = [begun.all()];
    let probe = Probe { name: "meet", run: meet, args: &args, tasks: threads.min(cpu.threads()), threads };
    let launch = Launch { params: Params::new(Meeting(probe.tasks)), ..probe.launch(cpu)? };
    let sequence = cpu.record(&[launch])?;
    let mut runs = Vec::new();
    for _ in 0..samples.max(1) {
        cpu.write(&begun.all(), &[0; 4])?;
        let idle = Instant::now();
        while idle.elapsed() < pause {
            // A caller that computes, as between two tokens, keeps its core awake.
            std::hint::spin_loop();
        }
        let ns = cpu.time(std::slice::from_ref(&sequence), 1)?.ns;
        if ns > MEETING_DEADLINE.as_nanos() as f64 {
            return Err(Error::new(ErrorKind::Timeout, format!("{} threads did not all wake", probe.tasks)));
        }
        runs.push(ns);
    }
    runs.sort_by(f64::total_cmp);
    Ok(runs[runs.len() / 2])
}

/// A probe's launch without the parts that all probes share.
struct Probe<'a> {
    name: &'static str,
    run: Native,
    args: &'a [Slice],
    tasks: u32,
    threads: u32,
}

impl Probe<'_> {
    fn record(&self, cpu: &Cpu, times: usize) -> Result<Sequence, Error> {
        cpu.record(&vec![self.launch(cpu)?; times])
    }

    fn launch(&self, cpu: &Cpu) -> Result<Launch, Error> {
        Ok(Launch {
            program: cpu.load(&Source::Native { name: self.name, run: self.run })?,
            args: self.args.to_vec(),
            params: Params::new(Nothing),
            tasks: self.tasks,
            threads: self.threads,
            scratch_bytes: 0,
            overlap: false,
            views: Vec::new(),
        })
    }
}

/// Nanoseconds of each run within `budget`, sorted; the first run, which warms up, is not among them.
fn runs_ns(cpu: &Cpu, sequence: &Sequence, budget: Duration) -> Result<Vec<f64>, Error> {
    cpu.time(std::slice::from_ref(sequence), 1)?;
    let start = Instant::now();
    let mut runs = Vec::new();
    while runs.len() < SAMPLES_MIN as usize || start.elapsed() < budget {
        runs.push(cpu.time(std::slice::from_ref(sequence), 1)?.ns);
    }
    runs.sort_by(f64::total_cmp);
    Ok(runs)
}

fn median_ns(cpu: &Cpu, sequence: &Sequence, budget: Duration) -> Result<f64, Error> {
    let runs = runs_ns(cpu, sequence, budget)?;
    Ok(runs[runs.len() / 2])
}

fn sample(cpu: &Cpu, sequence: &Sequence, threads: u32, bytes: u64, budget: Duration) -> Result<Bandwidth, Error> {
    let runs = runs_ns(cpu, sequence, budget)?;
    let (best, median) = (bytes as f64 / runs[0], bytes as f64 / runs[runs.len() / 2]);
    Ok(Bandwidth { median, best, samples: runs.len() as u32, bytes, threads: threads.min(cpu.threads()) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::CpuOptions;

    #[test]
    fn probes_give_plausible_numbers() {
        let cpu = Cpu::new(CpuOptions { threads: Some(2) }).expect("two threads");
        let short = Duration::from_millis(1);
        for found in [read_gb_s(&cpu, 2, short).expect("measured"), copy_gb_s(&cpu, 1, short).expect("measured")] {
            assert!(found.best >= found.median && found.median > 0.01 && found.best < 10_000.0, "{found:?}");
            assert!(found.samples >= SAMPLES_MIN && found.bytes >= BUFFER_BYTES.0 as u64, "{found:?}");
        }
        let (barrier, null) = (barrier_ns(&cpu, 2, short).expect("measured"), null_ns(&cpu, short).expect("measured"));
        assert!(barrier > 1.0 && null > 10.0, "{barrier} {null}");
        let small = read_of_gb_s(&cpu, 2, 1, short).expect("measured");
        assert_eq!(small.bytes, TASK_BYTES as u64, "{small:?}");
        let wake = |threads, pause| wake_ns(&cpu, threads, Duration::from_micros(pause), 5).expect("all come");
        assert!(wake(1, 0) > 10.0 && wake(2, 0) > 10.0 && wake(9, 400) > 10.0);
    }
}
