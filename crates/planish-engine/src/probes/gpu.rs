//! What a GPU can do at best: cost of launches and of grid barriers, bandwidth of memory, rate of the matrix unit.
//!
//! Every percentage refers to these, so each probe checks that it did what it is credited with.

use std::time::{Duration, Instant};

use planish_device::{Init, Launch, Limits, Sequence, Slice};
use planish_kernels::gpu::{self, peak};
use planish_kernels::op::{Attrs, Dtype, Machine, OpCall, Shape};
use planish_tune::Config;
use serde::Serialize;

use super::Roof;
use crate::error::{Error, Result};

/// How much a probe does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Effort {
    /// Launches in a row.
    pub launches: usize,
    /// Rounds of a barrier.
    pub rounds: usize,
    /// Bytes read, and bytes copied.
    pub bytes: usize,
    /// Products of each sum of the matrix unit.
    pub products: u32,
    /// Timings, of which the median counts.
    pub samples: usize,
}

impl Effort {
    /// What shows the ceilings of a card; the host executor, which has none, does a little of everything.
    pub fn on(limits: &Limits) -> Effort {
        if limits.backend == "host" {
            return Effort { launches: 4, rounds: 4, bytes: 1 << 18, products: 3, samples: 2 };
        }
        Effort { launches: 450, rounds: 1000, bytes: 2 << 30, products: 20_000, samples: 9 }
    }
}

/// What one launch of a chain costs that does nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LaunchCost {
    /// Groups of the grid.
    pub groups: usize,
    /// Threads of a group.
    pub threads: usize,
    /// Nanoseconds a launch, one by one.
    pub stream_ns: f64,
    /// The same as nodes of a graph.
    pub graph_ns: f64,
    /// Nanoseconds a launch that submission takes the host, one by one.
    pub stream_submit_ns: f64,
    /// The same as nodes of a graph.
    pub graph_submit_ns: f64,
}

/// What one round of a grid barrier costs, in which every group leaves a word for its neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct BarrierCost {
    /// Groups that wait for each other.
    pub groups: usize,
    /// Threads of a group.
    pub threads: usize,
    /// Nanoseconds a round.
    pub round_ns: f64,
}

/// A measured bandwidth.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Rate {
    /// Median over the samples, GB/s; a copy counts what it reads and what it writes.
    pub median_gb_s: f64,
    /// The fastest sample, GB/s.
    pub best_gb_s: f64,
    /// Bytes moved in a sample.
    pub bytes: usize,
    /// Samples.
    pub samples: usize,
    /// The configuration that moved them fastest.
    pub config: Config,
}

/// A measured rate of the matrix unit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct MatrixRate {
    /// Type of the operands; sums are f32.
    pub input: &'static str,
    /// Median over the samples, 1e12 additions and multiplications a second.
    pub median_tflop_s: f64,
    /// The fastest sample.
    pub best_tflop_s: f64,
    /// Groups of the grid.
    pub groups: usize,
    /// Threads of a group.
    pub threads: usize,
}

/// Every probe of a machine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Ceilings {
    /// By size of the grid.
    pub launch: Vec<LaunchCost>,
    /// By size of the grid.
    pub barrier: Vec<BarrierCost>,
    /// Reading alone.
    pub read: Rate,
    /// Reading as much as is written.
    pub copy: Rate,
    /// By type of the operands.
    pub matrix: Vec<MatrixRate>,
}

/// Runs every probe.
pub fn all(machine: &Machine<'_>, effort: &Effort) -> Result<Ceilings> {
    Ok(Ceilings {
        launch: launch(machine, effort)?,
        barrier: barrier(machine, effort)?,
        read: read(machine, effort)?,
        copy: copy(machine, effort)?,
        matrix: matrix(machine, effort)?,
    })
}

/// Waits longer than any probe takes.
const DEADLINE: Duration = Duration::from_secs(60);

/// A grid of one group a processor.
fn processors(machine: &Machine<'_>) -> usize {
    machine.backend.limits().processors.max(1) as usize
}

/// The launches of an op that is in the table, on `args`.
fn steps(machine: &Machine<'_>, name: &str, shape: &Shape, config: &Config, args: &[Slice]) -> Result<Vec<Launch>> {
    let op = &gpu::find(name).ok_or_else(|| Error::request(format!("no probe is called {name}")))?.op;
    (op.check)(shape).map_err(Error::request)?;
    let call = OpCall { op, shape: shape.clone(), attrs: Attrs::new(), args: args.to_vec() };
    call.steps(config, machine).map_err(|why| Error::request(format!("{name} {shape} with {config}: {why}")))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Nanoseconds of `samples` runs of a sequence, after one that does not count.
fn times(machine: &Machine<'_>, sequence: &Sequence, samples: usize) -> Result<Vec<f64>> {
    let one = || Ok(machine.backend.time(std::slice::from_ref(sequence), 1)?.ns);
    one()?;
    (0..samples.max(1)).map(|_| one()).collect()
}

/// Nanoseconds that submitting a sequence takes the host, the machine being idle.
fn submit_ns(machine: &Machine<'_>, sequence: &Sequence, samples: usize) -> Result<f64> {
    let one = |_| -> Result<f64> {
        let start = Instant::now();
        let token = machine.backend.submit(sequence)?;
        let ns = start.elapsed().as_nanos() as f64;
        machine.backend.wait(token, DEADLINE)?;
        Ok(ns)
    };
    Ok(median((0..samples.max(1)).map(one).collect::<Result<Vec<f64>>>()?))
}

/// Cost of a launch by stream and as a node of a graph, for grids of one group, of one a processor, and of 1024.
pub fn launch(machine: &Machine<'_>, effort: &Effort) -> Result<Vec<LaunchCost>> {
    let mut sizes = vec![1, processors(machine), 1024];
    sizes.dedup();
    sizes.into_iter().map(|groups| launch_of(machine, effort, groups, 32)).collect()
}

/// The same for one grid of `groups` groups of `threads` threads.
pub fn launch_of(machine: &Machine<'_>, effort: &Effort, groups: usize, threads: usize) -> Result<LaunchCost> {
    let y = machine.backend.alloc(4, Init::Zero)?.all();
    let shape = Shape::new().with("groups", groups as i64);
    let config = Config::new().with("THREADS", threads as i64);
    let one = steps(machine, "null", &shape, &config, std::slice::from_ref(&y))?;
    let chain: Vec<Launch> = one.iter().cycle().take(effort.launches * one.len()).cloned().collect();
    let (stream, graph) = (machine.backend.record(&chain)?, machine.backend.record_graph(&chain)?);
    let each = |ns: f64| ns / chain.len() as f64;
    let cost = LaunchCost {
        groups,
        threads,
        stream_ns: each(median(times(machine, &stream, effort.samples)?)),
        graph_ns: each(median(times(machine, &graph, effort.samples)?)),
        stream_submit_ns: each(submit_ns(machine, &stream, effort.samples)?),
        graph_submit_ns: each(submit_ns(machine, &graph, effort.samples)?),
    };
    let mut word = [0; 4];
    machine.backend.read(&y, &mut word)?;
    if word == [0; 4] {
        return Err(Error::request("the launch probe ran nothing: its word was not written"));
    }
    Ok(cost)
}

/// Cost of a round of a grid barrier by groups and threads; grids that cannot be resident are left out.
pub fn barrier(machine: &Machine<'_>, effort: &Effort) -> Result<Vec<BarrierCost>> {
    let p = processors(machine);
    let mut sizes =
        vec![(1, 256), (p.min(16), 256), (p / 2, 256), (p, 32), (p, 256), (p, 512), (p, 1024), (2 * p, 256)];
    sizes.retain(|(groups, _)| *groups > 0);
    sizes.dedup();
    let costs = sizes.into_iter().map(|(groups, threads)| barrier_of(machine, effort, groups, threads));
    costs.filter_map(Result::transpose).collect()
}

/// Cost of a round of a barrier of `groups` groups of `threads` threads; none where they cannot be resident.
pub fn barrier_of(
    machine: &Machine<'_>,
    effort: &Effort,
    groups: usize,
    threads: usize,
) -> Result<Option<BarrierCost>> {
    let shape = Shape::new().with("groups", groups as i64).with("rounds", effort.rounds as i64);
    let config = Config::new().with("THREADS", threads as i64);
    let memory = |words: usize| machine.backend.alloc(4 * words, Init::Zero).map(|b| b.all());
    let args = [memory(1)?, memory(2 * groups)?, memory(groups)?];
    let launches = steps(machine, "barrier", &shape, &config, &args)?;
    let grid = launches.last().ok_or_else(|| Error::request("the barrier probe launches nothing"))?;
    let fit = machine.backend.resident(&grid.program, grid.threads, grid.scratch_bytes);
    if fit.is_some_and(|each| groups > each as usize * processors(machine)) {
        return Ok(None);
    }
    let sequence = machine.backend.record_graph(&launches)?;
    let round_ns = median(times(machine, &sequence, effort.samples)?) / effort.rounds as f64;
    let mut values = vec![0; 4 * groups];
    machine.backend.read(&args[2], &mut values)?;
    let (last, want) = (&values[4 * (groups - 1)..], rounds_of(groups, effort.rounds));
    if last != want.to_le_bytes() {
        return Err(Error::request(format!("a barrier of {groups} groups of {threads} threads let one pass early")));
    }
    Ok(Some(BarrierCost { groups, threads, round_ns }))
}

/// What the last of `groups` groups holds after `rounds` rounds in which each takes its neighbour's word in.
fn rounds_of(groups: usize, rounds: usize) -> u32 {
    let mut words: Vec<u32> = (0..groups as u32).collect();
    for round in 0..rounds as u32 {
        let mut next = words.clone();
        next.rotate_left(1);
        for (word, neighbour) in words.iter_mut().zip(next) {
            *word = word.wrapping_mul(1_664_525).wrapping_add(neighbour).wrapping_add(round);
        }
    }
    words[groups - 1]
}

/// Configurations of an op that moves bytes, of which the fastest shows the ceiling: the default, and some with more or
/// fewer threads or loads in flight.
fn movers(machine: &Machine<'_>, name: &str, shape: &Shape) -> Vec<Config> {
    let Some(op) = gpu::find(name) else { return Vec::new() };
    let default = (op.op.space)(shape, machine).default;
    let with = |threads: i64, elems: i64| default.clone().with("THREADS", threads).with("ELEMS", elems);
    let mut all = vec![default.clone(), with(256, 4), with(256, 8), with(512, 2), with(512, 4), with(1024, 1)];
    let mut seen = Vec::new();
    all.retain(|c| {
        !seen.contains(c) && {
            seen.push(c.clone());
            true
        }
    });
    if machine.backend.limits().backend == "host" { all[..1].to_vec() } else { all }
}

/// The fastest of the movers on `args`, whose launch moves `bytes` bytes.
fn fastest(
    machine: &Machine<'_>,
    (name, shape): (&str, &Shape),
    args: &[Slice],
    (bytes, samples): (usize, usize),
) -> Result<Rate> {
    let mut best: Option<Rate> = None;
    for config in movers(machine, name, shape) {
        let sequence = machine.backend.record_graph(&steps(machine, name, shape, &config, args)?)?;
        let ns = times(machine, &sequence, samples)?;
        let fastest = ns.iter().copied().fold(f64::INFINITY, f64::min);
        let rate =
            Rate { median_gb_s: bytes as f64 / median(ns), best_gb_s: bytes as f64 / fastest, bytes, samples, config };
        if best.as_ref().is_none_or(|b| rate.median_gb_s > b.median_gb_s) {
            best = Some(rate);
        }
    }
    best.ok_or_else(|| Error::request(format!("no probe is called {name}")))
}

/// Fails where the word at the end of `slice` is not `want`.
fn must_hold(machine: &Machine<'_>, slice: &Slice, want: u32, what: &str) -> Result<()> {
    let mut word = [0; 4];
    machine.backend.read(&slice.buffer.slice(slice.offset + slice.len - 4, 4)?, &mut word)?;
    let got = u32::from_le_bytes(word);
    if got == want {
        return Ok(());
    }
    Err(Error::request(format!("the {what} probe left {got:#x} at its end, not {want:#x}")))
}

/// Bytes of the chunks whose sums the reading op writes.
const CHUNK_BYTES: usize = 16 << 10;
/// What memory is filled with.
const BYTE: u8 = 0x5a;

/// Bandwidth of reading alone.
pub fn read(machine: &Machine<'_>, effort: &Effort) -> Result<Rate> {
    read_of(machine, effort, effort.bytes)
}

/// Bandwidth of reading the same `bytes` bytes again and again: caches may hold some of them.
pub fn read_of(machine: &Machine<'_>, effort: &Effort, bytes: usize) -> Result<Rate> {
    let chunks = (bytes / CHUNK_BYTES).max(1);
    let x = machine.backend.alloc(chunks * CHUNK_BYTES, Init::Fill(BYTE))?.all();
    let y = machine.backend.alloc(4 * chunks, Init::Zero)?.all();
    let shape = Shape::new().with("words", (x.len / 4) as i64);
    let rate = fastest(machine, ("read_only", &shape), &[x.clone(), y.clone()], (x.len, effort.samples))?;
    let sum = u32::from_le_bytes([BYTE; 4]).wrapping_mul((CHUNK_BYTES / 4) as u32);
    must_hold(machine, &y, sum, "reading")?;
    Ok(rate)
}

/// Bandwidth of reading as much as is written, both counted.
pub fn copy(machine: &Machine<'_>, effort: &Effort) -> Result<Rate> {
    let bytes = (effort.bytes / 2 / CHUNK_BYTES).max(1) * CHUNK_BYTES;
    let x = machine.backend.alloc(bytes, Init::Fill(BYTE))?.all();
    let y = machine.backend.alloc(bytes, Init::Zero)?.all();
    let shape = Shape::new().with("words", (bytes / 4) as i64);
    let rate = fastest(machine, ("copy", &shape), &[x, y.clone()], (2 * bytes, effort.samples))?;
    must_hold(machine, &y, u32::from_le_bytes([BYTE; 4]), "copying")?;
    Ok(rate)
}

/// Rate of the matrix unit on operands in registers, by type.
pub fn matrix(machine: &Machine<'_>, effort: &Effort) -> Result<Vec<MatrixRate>> {
    let mut rates = Vec::new();
    for (input, io) in [("f16", Dtype::F16), ("bf16", Dtype::Bf16)] {
        let refuse = |why| Error::request(format!("the matrix probe in {input}: {why}"));
        let one = peak::probe(machine, io, 1, 1).map_err(refuse)?;
        let each = machine.backend.resident(&one.launch.program, one.launch.threads, 0).unwrap_or(1).max(1);
        let groups = each as usize * processors(machine);
        let probe = peak::probe(machine, io, groups, effort.products).map_err(refuse)?;
        let sequence = machine.backend.record_graph(std::slice::from_ref(&probe.launch))?;
        let ns = times(machine, &sequence, effort.samples)?;
        probe.check(machine.backend)?;
        let fastest = ns.iter().copied().fold(f64::INFINITY, f64::min);
        rates.push(MatrixRate {
            input,
            median_tflop_s: probe.flops as f64 / median(ns) / 1e3,
            best_tflop_s: probe.flops as f64 / fastest / 1e3,
            groups,
            threads: peak::THREADS,
        });
    }
    Ok(rates)
}

/// How a GPU is handed a token, for the ceilings that depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handed {
    /// As nodes of a graph, not one launch after the other.
    pub graph: bool,
    /// Groups of the grid.
    pub groups: usize,
    /// Threads of a group.
    pub threads: usize,
}

/// The ceilings of a token that reads `token_bytes` bytes and is handed over as `handed`.
///
/// What memory gives beyond its caches is measured over the larger of both.
pub fn roof(machine: &Machine<'_>, effort: &Effort, token_bytes: u64, handed: Handed) -> Result<Roof> {
    let launch = launch_of(machine, effort, handed.groups, handed.threads)?;
    let matrix = matrix(machine, effort)?.iter().map(|m| 1e3 * m.median_tflop_s).fold(0.0, f64::max);
    let limits = machine.backend.limits();
    let token = (token_bytes as usize).clamp(CHUNK_BYTES, effort.bytes);
    Ok(Roof {
        memory_gb_s: read(machine, effort)?.median_gb_s,
        token_gb_s: Some(read_of(machine, effort, token)?.median_gb_s),
        token_bytes: token as u64,
        copy_gb_s: Some(copy(machine, effort)?.median_gb_s),
        f32_gflop_s: None,
        int8_gop_s: None,
        matrix_gflop_s: Some(matrix),
        launch_ns: Some(if handed.graph { launch.graph_ns } else { launch.stream_ns }),
        barrier_ns: barrier_of(machine, effort, handed.groups, handed.threads)?.map(|b| b.round_ns),
        cache_bytes: limits.llc_bytes,
    })
}
