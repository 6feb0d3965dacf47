//! `read_only`: sums of chunks of 4096 words; bound by read bandwidth, the control of ops that read.

use planish_device::{Call, Launch, Plain, prefetch};
use planish_tune::{Config, Constraint, Param, Rejection, Space, Value};

use crate::cpu::isa::Isa;
use crate::gpu::read_only::{self as shared, CHUNK};
use crate::op::{Machine, Op, OpCall};
use crate::ops::{NativeLaunch, thread_values};

/// Arguments: x `[words]`, 32-bit words, and y, the sum of each chunk of 4096; the problem is that of the GPU's op.
pub static READ_ONLY: Op = Op {
    name: "read_only",
    about: "sums of chunks of 4096 words; bound by read bandwidth",
    check: shared::OP.op.check,
    space: |_, machine| {
        let ints = |values: &[i64]| values.iter().map(|v| Value::Int(*v)).collect();
        Space {
            params: vec![
                Param {
                    name: "STREAMS",
                    trades: "streams of one prefetcher each against pages",
                    values: ints(&[1, 4]),
                },
                Param {
                    name: "PREFETCH",
                    trades: "bytes a single stream is ahead: latency against lines that come too early",
                    values: ints(&[0, 1024]),
                },
                Param {
                    name: "CHUNKS",
                    trades: "chunks a task: balance between threads against the cost of claiming a task",
                    values: ints(&[4, 16, 64, 256]),
                },
                Param {
                    name: "THREADS",
                    trades: "bandwidth of more cores against waiting for them",
                    values: thread_values(machine),
                },
            ],
            constraints: vec![Constraint::new("PREFETCH with STREAMS=1", |c| {
                c.int("STREAMS") == Some(1) || c.int("PREFETCH") == Some(0)
            })],
            default: Config::new()
                .with("STREAMS", 1)
                .with("PREFETCH", 1024)
                .with("CHUNKS", 64)
                .with("THREADS", i64::from(machine.backend.limits().max_threads)),
        }
    },
    cost: shared::OP.op.cost,
    cases: |s| vec![s.clone().with("words", 300_001), s.clone().with("words", 1)],
    problem: shared::OP.op.problem,
    steps,
    rotated: &[0],
    reduces: &[],
};

#[derive(Clone, Copy)]
struct P {
    avx2: bool,
    words: usize,
    chunks: usize,
    streams: usize,
    ahead: usize,
}

// SAFETY: plain values, made and read by this program only.
unsafe impl Plain for P {}

fn steps(call: &OpCall, config: &Config, machine: &Machine<'_>) -> Result<Vec<Launch>, Rejection> {
    let int = |name: &str| {
        let value = config.int(name).and_then(|v| usize::try_from(v).ok()).filter(|v| *v > 0);
        value.ok_or_else(|| Rejection::Constraint(format!("{name} is missing")))
    };
    let (words, chunks) = (call.shape.size("words"), int("CHUNKS")?);
    let avx2 = matches!(machine.isa, Isa::Avx2 | Isa::Vnni | Isa::Amx) && Isa::Avx2.is_supported();
    let ahead = config.int("PREFETCH").and_then(|v| usize::try_from(v).ok());
    let ahead = ahead.ok_or_else(|| Rejection::Constraint("PREFETCH is missing".into()))?;
    let params = P { avx2, words, chunks, streams: int("STREAMS")?, ahead };
    let tasks = words.div_ceil(CHUNK * chunks);
    let threads = int("THREADS")? as u32;
    let launch = NativeLaunch { name: "read_only", run, params, tasks, threads, scratch_bytes: 0 };
    Ok(vec![launch.launch(machine, call.args.clone())?])
}

/// # Safety
/// Arguments as documented at `READ_ONLY`.
unsafe fn run(call: &Call<'_>) {
    let p = call.params.get::<P>();
    for task in call.tasks.clone() {
        let first = task as usize * p.chunks;
        let end = (first + p.chunks).min(p.words.div_ceil(CHUNK));
        // SAFETY: the contract of the op; tasks are disjoint runs of chunks.
        let (x, y) = unsafe { (&call.args[0].read::<u32>()[..p.words], call.args[1].write::<u32>(first, end - first)) };
        let x = &x[first * CHUNK..(end * CHUNK).min(p.words)];
        #[cfg(target_arch = "x86_64")]
        if p.avx2 {
            // SAFETY: AVX2 was found.
            unsafe { sums_avx2(x, y, p) };
            continue;
        }
        sums(x, y, p);
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn sums_avx2(x: &[u32], y: &mut [u32], p: &P) {
    sums(x, y, p);
}

/// The sum of every chunk of `x`, one chunk of each of the streams at a time.
#[inline(always)]
fn sums(x: &[u32], y: &mut [u32], p: &P) {
    let run = if p.streams == 4 { x.len() / CHUNK / 4 } else { 0 };
    for i in 0..run {
        let chunk = |s: usize| &x[(s * run + i) * CHUNK..][..CHUNK];
        let found = four([chunk(0), chunk(1), chunk(2), chunk(3)]);
        for (s, sum) in found.into_iter().enumerate() {
            y[s * run + i] = sum;
        }
    }
    for (sum, chunk) in y[4 * run..].iter_mut().zip(x[4 * run * CHUNK..].chunks(CHUNK)) {
        *sum = one(chunk, p.ahead);
    }
}

/// Sums of four chunks, a line of each at a time.
#[inline(always)]
fn four(chunks: [&[u32]; 4]) -> [u32; 4] {
    let mut sums = [[0u32; 16]; 4];
    for line in 0..CHUNK / 16 {
        for (sum, chunk) in sums.iter_mut().zip(chunks) {
            for (sum, x) in sum.iter_mut().zip(&chunk[line * 16..][..16]) {
                *sum = sum.wrapping_add(*x);
            }
        }
    }
    sums.map(|s| s.iter().fold(0u32, |a, b| a.wrapping_add(*b)))
}

/// The sum of a chunk, which may be short; lines `ahead` bytes further on are asked for.
#[inline(always)]
fn one(chunk: &[u32], ahead: usize) -> u32 {
    let (lines, rest) = chunk.as_chunks::<32>();
    let mut sums = [0u32; 32];
    for line in lines {
        if ahead > 0 {
            let next = line.as_ptr().cast::<u8>().wrapping_add(ahead);
            prefetch(next);
            prefetch(next.wrapping_add(64));
        }
        for (sum, x) in sums.iter_mut().zip(line) {
            *sum = sum.wrapping_add(*x);
        }
    }
    sums.iter().chain(rest).fold(0u32, |a, b| a.wrapping_add(*b))
}
