//! Times native variants of ops on a card through the ops themselves: `hopper_bench [gate|time] [gemm|attention|loss]...`.
//!
//! Each configuration passes the gate at a small shape (alone with `gate`, not with `time`); then graphs of launches on
//! rotated buffers, more bytes than the second-level cache holds, are timed in rounds by the device's clock, and the
//! median is printed.
#![allow(clippy::print_stdout)]

use planish_device::{Backend, Buffer, Cuda, CudaOptions, Init, Sequence, Slice};
use planish_kernels::cpu::isa::Isa;
use planish_kernels::data::Rng;
use planish_kernels::gpu::{self, GpuOp, tier};
use planish_kernels::op::{Attrs, Dtype, Fill, Machine, OpCall, Problem, Shape};
use planish_tune::{Config, Value};

type Failure = Box<dyn std::error::Error>;
/// Gates and times one op.
type Bench = fn(&Cuda, Mode) -> Result<(), Failure>;

/// Rounds of a measurement, whose median counts.
const ROUNDS: usize = 7;
/// A round lasts about as long, in nanoseconds.
const ROUND_NS: f64 = 8e6;
/// Buffers are rotated over as many bytes.
const COLD_BYTES: usize = 160 << 20;

fn main() -> Result<(), Failure> {
    let (modes, wanted): (Vec<String>, Vec<String>) =
        std::env::args().skip(1).partition(|a| ["gate", "time"].contains(&a.as_str()));
    let mode = Mode { gate: !modes.iter().any(|m| m == "time"), time: !modes.iter().any(|m| m == "gate") };
    let cache = std::env::temp_dir().join("planish-hopper-bench");
    let cuda = Cuda::new(CudaOptions { ordinal: 0, cache })?;
    println!("{}, {}, read {:.0} GB/s", cuda.identity().label, cuda.arch(), cuda.limits().read_gb_s.unwrap_or(0.0));
    println!("{}", cuda.library().unwrap_or_else(|e| format!("no row of the vendor's: {e}")));
    let all: [(&str, Bench); 3] = [("gemm", gemm), ("attention", attention), ("loss", loss)];
    for (name, run) in all {
        if wanted.is_empty() || wanted.iter().any(|w| w == name) {
            run(&cuda, mode)?;
        }
    }
    Ok(())
}

/// What is done with each configuration.
#[derive(Clone, Copy)]
struct Mode {
    gate: bool,
    time: bool,
}

fn machine(cuda: &Cuda) -> Machine<'_> {
    Machine { backend: cuda, isa: Isa::Portable }
}

/// What an argument holds before it is timed.
#[derive(Clone, Copy)]
enum Holds {
    /// Floats of this type of 16 bits, between 0.06 and 1 in size.
    Floats(Dtype),
    /// Words below this number.
    Below(usize),
    /// Ones as f32.
    Ones,
    /// Zeros.
    Zeros,
}

/// Memory for one argument.
fn memory(cuda: &Cuda, bytes: usize, holds: Holds, seed: u64) -> Result<Buffer, Failure> {
    let buffer = cuda.alloc(bytes, Init::Zero)?;
    let mut rng = Rng::new(seed);
    let mut word = || match holds {
        Holds::Floats(dtype) => {
            let (least, span) = if dtype == Dtype::F16 { (0x2c00, 0x1000) } else { (0x3d80, 0x200) };
            let mut half = || least + rng.below(span) as u32 + 0x8000 * rng.below(2) as u32;
            half() | half() << 16
        }
        Holds::Below(n) => rng.below(n as u64) as u32,
        Holds::Ones => 1f32.to_bits(),
        Holds::Zeros => 0,
    };
    let pattern: Vec<u8> = (0..1 << 18).flat_map(|_| word().to_le_bytes()).collect();
    for at in (0..bytes).step_by(pattern.len()) {
        let n = pattern.len().min(bytes - at);
        cuda.write(&buffer.slice(at, n)?, &pattern[..n])?;
    }
    Ok(buffer)
}

/// The default of `op` at `shape` with these parameters changed.
fn changed(op: &GpuOp, shape: &Shape, cuda: &Cuda, changes: &[(&str, Value)]) -> Result<Config, Failure> {
    let space = (op.op.space)(shape, &machine(cuda));
    let config = changes.iter().fold(space.default.clone(), |c, (name, value)| c.with(name, value.clone()));
    match space.violated(&config) {
        Some(why) => Err(format!("{} at {shape}, {config}: {why}", op.op.name).into()),
        None => Ok(config),
    }
}

/// The worst error over its bound of `problems` through the gate.
fn gate(op: &'static GpuOp, problems: &[Problem], config: &Config, cuda: &Cuda) -> Result<f64, Failure> {
    let mut worst = 0f64;
    for problem in problems {
        let passed = tier::pass(op, &machine(cuda), problem, config);
        worst = worst.max(passed.map_err(|e| format!("{} at {}, {config}: {e}", op.op.name, problem.shape))?.worst);
    }
    Ok(worst)
}

/// A graph of one call on each set of arguments.
fn graph(
    cuda: &Cuda,
    op: &'static GpuOp,
    shape: &Shape,
    attrs: &Attrs,
    sets: &[Vec<Slice>],
    config: &Config,
) -> Result<Sequence, Failure> {
    let mut launches = Vec::new();
    for args in sets {
        let call = OpCall { op: &op.op, shape: shape.clone(), attrs: attrs.clone(), args: args.clone() };
        launches.extend(call.steps(config, &machine(cuda)).map_err(|e| e.to_string())?);
    }
    Ok(cuda.record_graph(&launches)?)
}

/// Median nanoseconds of a call, of each of `graphs` of `calls` calls, in rounds.
fn timed(cuda: &Cuda, graphs: &[Sequence], calls: usize) -> Result<Vec<f64>, Failure> {
    let mut reps = Vec::new();
    for g in graphs {
        let first = cuda.time(std::slice::from_ref(g), 2)?.ns;
        reps.push(((ROUND_NS / first) as u32).clamp(1, 1000));
    }
    let mut runs = vec![Vec::new(); graphs.len()];
    for _ in 0..ROUNDS {
        for (i, g) in graphs.iter().enumerate() {
            runs[i].push(cuda.time(std::slice::from_ref(g), reps[i])?.ns / calls as f64);
        }
    }
    Ok(runs
        .into_iter()
        .map(|mut r| {
            r.sort_by(f64::total_cmp);
            r[ROUNDS / 2]
        })
        .collect())
}

/// One line a configuration.
fn table(op: &GpuOp, shape: &Shape, flops: f64, rows: &[(String, f64)]) {
    println!("{} {shape}", op.op.name);
    for (name, ns) in rows {
        println!("    {name:64} {:10.1} us {:8.1} TFLOP/s", ns / 1e3, flops / ns / 1e3);
    }
}

/// Gates the configurations at `small`, times them at `shape` and prints.
fn compare(
    (cuda, mode): (&Cuda, Mode),
    op: &'static GpuOp,
    [shape, small]: [&str; 2],
    args: &[(usize, Holds)],
    attrs: &Attrs,
    changes: &[&[(&str, Value)]],
) -> Result<(), Failure> {
    let [shape, small]: [Shape; 2] = [shape.parse()?, small.parse()?];
    let configs = changes.iter().map(|c| changed(op, &shape, cuda, c)).collect::<Result<Vec<Config>, Failure>>()?;
    if mode.gate {
        let problems = [Fill::Random, Fill::Extreme].map(|fill| (op.op.problem)(&small, 11, fill));
        for config in &configs {
            println!("{} {small}: {config}: error {:.2} of its bound", op.op.name, gate(op, &problems, config, cuda)?);
        }
    }
    if !mode.time {
        return Ok(());
    }
    let each: usize = args.iter().map(|a| a.0).sum();
    let count = COLD_BYTES.div_ceil(each).clamp(2, 16);
    let mut sets = Vec::new();
    for set in 0..count as u64 {
        let of = |(i, (n, holds)): (usize, &(usize, Holds))| Ok(memory(cuda, *n, *holds, 100 * set + i as u64)?.all());
        sets.push(args.iter().enumerate().map(of).collect::<Result<Vec<Slice>, Failure>>()?);
    }
    let graphs: Result<Vec<Sequence>, Failure> =
        configs.iter().map(|config| graph(cuda, op, &shape, attrs, &sets, config)).collect();
    let ns = timed(cuda, &graphs?, sets.len())?;
    let flops = (op.op.cost)(&shape).flops as f64;
    table(op, &shape, flops, &configs.iter().map(ToString::to_string).zip(ns).collect::<Vec<_>>());
    Ok(())
}

fn tile(m: i64, n: i64, simdgroups: i64) -> Vec<(&'static str, Value)> {
    vec![("TILE_M", m.into()), ("TILE_N", n.into()), ("SIMDGROUPS", simdgroups.into())]
}

fn gemm(cuda: &Cuda, mode: Mode) -> Result<(), Failure> {
    let op = &gpu::gemm::OP;
    let mm = || {
        let mut mm: Vec<(&str, Value)> = vec![("VARIANT", "mm".into()), ("WALK", "morton".into())];
        mm.extend([("TILE_K", Value::Int(32)), ("ALIGNED", Value::Int(0))]);
        mm.extend(tile(64, 64, 4));
        mm
    };
    let shapes = [
        (4096, 4096, 4096, "nt", "bf16", "bf16"),
        (4096, 4096, 4096, "nn", "bf16", "bf16"),
        (512, 14336, 4096, "nt", "f16", "f32"),
        (512, 4096, 4096, "nt", "f16", "f32"),
        (512, 4096, 14336, "nt", "f16", "f32"),
        (512, 1536, 576, "nt", "f16", "f32"),
        (512, 576, 1536, "nt", "f16", "f32"),
        (512, 4864, 896, "nt", "f16", "f32"),
    ];
    for (m, n, k, layout, io, out) in shapes {
        let shape = format!("m={m},n={n},k={k},layout={layout},out={out},type={io}");
        let small = format!("m=140,n=264,k=136,layout={layout},out={out},type={io}");
        let out_bytes = if out == "f32" { 4 } else { 2 };
        let floats = Holds::Floats(Dtype::float(io).ok_or("a float type")?);
        let args = [(2 * m * k, floats), (2 * n * k, floats), (out_bytes * m * n, Holds::Zeros)];
        let attrs = Attrs::new().with("alpha", 1.0).with("beta", 0.0);
        let tiles = [
            tile(128, 256, 8),
            tile(128, 192, 8),
            tile(128, 128, 8),
            tile(64, 256, 4),
            tile(64, 128, 4),
            tile(256, 128, 8),
        ];
        let mut changes: Vec<&[(&str, Value)]> = vec![&[]];
        changes.extend(tiles.iter().filter(|_| layout == "nt").map(Vec::as_slice));
        // The portable kernel is gated at a shape of whole tiles elsewhere; here it handles tails.
        let portable = mm();
        changes.push(&portable);
        let vendors = [("VARIANT", "cublaslt".into())];
        if cuda.library().is_ok() {
            changes.push(&vendors);
        }
        compare((cuda, mode), op, [&shape, &small], &args, &attrs, &changes)?;
    }
    Ok(())
}

fn attention(cuda: &Cuda, mode: Mode) -> Result<(), Failure> {
    let op = &gpu::attention::OP;
    // Sequences, heads, key heads, rows, elements of a head, and whether causal; then blocks beside the default.
    let block =
        |q: i64, k: i64| vec![("BLOCK_Q", Value::Int(q)), ("BLOCK_K", k.into()), ("SIMDGROUPS", (q / 16).into())];
    let portable = |q: i64, k: i64| {
        let mut changes: Vec<(&str, Value)> = vec![("VARIANT", "portable".into()), ("SIMDGROUPS", (q / 8).into())];
        changes.extend([("BLOCK_Q", Value::Int(q)), ("BLOCK_K", k.into())]);
        changes
    };
    let shapes = [
        ((1, 32, 32, 4096, 128, 1), vec![block(128, 176), block(128, 96), portable(64, 32)]),
        ((1, 32, 32, 4096, 128, 0), vec![block(128, 128)]),
        ((1, 32, 8, 512, 128, 1), vec![block(128, 64)]),
        ((4, 9, 3, 2048, 64, 1), vec![block(128, 128)]),
        ((1, 32, 32, 4096, 80, 1), vec![]),
        ((1, 32, 32, 4096, 96, 1), vec![]),
        ((1, 16, 4, 4096, 256, 1), vec![block(128, 64)]),
    ];
    for ((sequences, heads, kv_heads, rows, dim, causal), blocks) in shapes {
        let shape = |sequences, heads, kv_heads, queries, keys| {
            format!(
                "causal={causal},head_dim={dim},heads={heads},keys={keys},kv_heads={kv_heads},queries={queries},\
                 sequences={sequences},softcap=0,type=bf16,window=0"
            )
        };
        let floats = Holds::Floats(Dtype::Bf16);
        let (q, kv) = (2 * sequences * heads * rows * dim, 2 * sequences * kv_heads * rows * dim);
        let lse = 4 * sequences * heads * rows;
        let args = [(q, floats), (kv, floats), (kv, floats), (q, Holds::Zeros), (lse, Holds::Zeros)];
        let attrs = Attrs::new().with("scale", (dim as f64).sqrt().recip());
        let mut changes: Vec<&[(&str, Value)]> = vec![&[]];
        changes.extend(blocks.iter().map(Vec::as_slice));
        let texts = [shape(sequences, heads, kv_heads, rows, rows), shape(1, 2, 1, 131, 300)];
        compare((cuda, mode), op, [&texts[0], &texts[1]], &args, &attrs, &changes)?;
    }
    Ok(())
}

fn loss(cuda: &Cuda, mode: Mode) -> Result<(), Failure> {
    let op = &gpu::linear_cross_entropy_dh::OP;
    let shape = |tokens: usize, hidden: usize, vocab: usize| {
        format!("bias=0,hidden={hidden},reduction=mean,smooth=0,softcap=0,tokens={tokens},type=bf16,vocab={vocab}")
    };
    let (t, h, v) = (4096, 2048, 128_256);
    let floats = Holds::Floats(Dtype::Bf16);
    let chunk = 11520;
    let zeros = [4 * t, 4 * t, 8, 2 * t * h, 4 * (t + 1), 8 * t * chunk / 256, 2 * t * chunk, 4 * t * h, 12 * t];
    let mut args = vec![(2 * t * h, floats), (2 * v * h, floats), (4 * t, Holds::Below(v)), (4, Holds::Ones)];
    args.extend(zeros.map(|n| (n, Holds::Zeros)));
    let outside: usize = args[4..].iter().map(|a| a.0).sum();
    println!("{} outputs and scratch of {:.0} MiB", op.op.name, outside as f64 / f64::from(1 << 20));
    // Logits of about -6 to 6.
    let attrs = Attrs::new().with("scale", 0.1).with("ignore_index", -100.0);
    let chunks = [vec![], vec![("CHUNK", Value::Int(8192))]];
    let changes: Vec<&[(&str, Value)]> = chunks.iter().map(Vec::as_slice).collect();
    let texts = [shape(t, h, v), shape(70, 72, 3000)];
    compare((cuda, mode), op, [&texts[0], &texts[1]], &args, &attrs, &changes)
}
