//! `gdn_chunked`: the gated delta rule, a chunk of tokens at a time; bound by compute.

use planish_device::{Launch, Slice};
use planish_tune::{Config, Constraint, Rejection, Space};

use super::gdn_recurrent::{Inputs, SHAPES, cases, check, cost, outputs, params, sizes};
use crate::gpu::text::{IO, KernelLaunch, Text, ints, io, io_code, knob};
use crate::gpu::{GpuOp, Tier};
use crate::op::{Arg, Attrs, Fill, Machine, Op, OpCall, Problem, Shape};

/// Arguments: those of `gdn_recurrent`, then four scratches in f32, of each head and chunk: u `[value_dim][CHUNK]`, w and
/// scaled q `[2][key_dim][CHUNK]`, p `[CHUNK][CHUNK]` and decays `[2][CHUNK]`.
pub static OP: GpuOp = GpuOp {
    op: Op {
        name: "gdn_chunked",
        about: "the gated delta rule by chunks, equal to gdn_recurrent; bound by compute",
        check,
        space,
        cost,
        cases,
        problem,
        steps,
        rotated: &[0, 1, 2, 6, 7, 8],
        reduces: &["CHUNK", "THREADS"],
    },
    text: TEXT,
    shapes: SHAPES,
};

const TEXT: Text = Text(&[IO, ("gdn_chunked.k", include_str!("gdn_chunked.k"))]);

/// Chunks to try, and the largest of them, which sizes the scratch.
const CHUNKS: [i64; 3] = [16, 32, 64];
const MOST: usize = 64;
/// Threads to try, at least a chunk.
const THREADS: [i64; 3] = [64, 128, 256];

fn space(shape: &Shape, machine: &Machine<'_>) -> Space {
    let limits = machine.backend.limits();
    let (shared, most) = (i64::from(limits.shared_bytes), i64::from(limits.max_threads));
    let longest = (shape.size("steps").next_power_of_two() as i64).max(CHUNKS[0]);
    let chunks: Vec<i64> = CHUNKS.into_iter().filter(|c| *c <= longest).collect();
    let threads: Vec<i64> = THREADS.into_iter().filter(|t| *t <= most).collect();
    let keys = keys(shape) as i64;
    let bytes = move |chunk: i64, threads: i64| {
        let rows = 4 * threads / chunk;
        4 * (chunk * (chunk + 3)).max(rows * (keys + 1 + chunk))
    };
    // Rows past those of a state would be idle.
    let values = shape.size("value_dim").next_power_of_two() as i64;
    let busy = move |chunk: i64, threads: i64| threads == THREADS[0] || 4 * threads / chunk <= values;
    let chunk = chunks[chunks.len() - 1].min(Tier::on(machine).pick([32, 64, 64, 64]));
    let seed = threads.iter().rev().find(|t| **t <= 128 && bytes(chunk, **t) <= shared && busy(chunk, **t));
    Space {
        params: vec![
            ints("CHUNK", "fewer sequential steps against work that grows with its square", &chunks),
            ints("THREADS", "rows of a state that share keys against groups in flight", &threads),
        ],
        constraints: vec![
            Constraint::new(format!("shared_bytes <= {shared}"), move |c| {
                pair(c).is_some_and(|(c, t)| bytes(c, t) <= shared)
            }),
            Constraint::new(format!("rows of a group <= {values}"), move |c| pair(c).is_some_and(|(c, t)| busy(c, t))),
        ],
        default: Config::new().with("CHUNK", chunk).with("THREADS", seed.copied().unwrap_or(threads[0])),
    }
}

/// Chunk and threads of a configuration.
fn pair(config: &Config) -> Option<(i64, i64)> {
    config.int("CHUNK").zip(config.int("THREADS"))
}

/// Columns of a state in threadgroup memory.
fn keys(shape: &Shape) -> usize {
    shape.size("key_dim").next_multiple_of(32)
}

fn steps(call: &OpCall, config: &Config, machine: &Machine<'_>) -> Result<Vec<Launch>, Rejection> {
    let z = sizes(&call.shape);
    let (chunk, threads) = (knob(config, "CHUNK")?, knob(config, "THREADS")?);
    let sizes = [("CHUNK", chunk), ("THREADS", threads), ("KEYS", keys(&call.shape))];
    let mut constants = sizes.map(|(name, v)| (name, v as i64)).to_vec();
    constants.push(("IO", io_code(io(&call.shape))));
    let launch = |entry, groups, args: &[usize]| {
        let (constants, params) = (constants.clone(), params(&call.shape));
        let launch = KernelLaunch { text: &OP.text, entry, constants, params, groups, threads, shared_bytes: 0 };
        let args: Vec<Slice> = args.iter().map(|i| call.args[*i].clone()).collect();
        launch.on(machine, args)
    };
    let heads = z.batch * z.heads;
    let mut launches = Vec::new();
    if z.steps > 0 {
        let groups = heads * z.steps.div_ceil(chunk);
        launches.push(launch("gdn_chunk_inner", groups, &[0, 1, 2, 3, 4, 5, 9, 10, 11, 12])?);
    }
    let groups = heads * z.value_dim.div_ceil(4 * threads / chunk);
    launches.push(launch("gdn_chunk_state", groups, &[1, 9, 10, 11, 12, 6, 7, 8])?);
    Ok(launches)
}

fn problem(shape: &Shape, seed: u64, fill: Fill) -> Problem {
    let (inputs, mut args) = Inputs::new(shape, seed, fill);
    args.extend(outputs(shape, &inputs, fill).map(Arg::Out));
    let z = sizes(shape);
    // Whatever the chunk, their tokens together exceed the steps by less than the largest chunk.
    let tokens = z.batch * z.heads * (z.steps + MOST - 1);
    args.extend([z.value_dim, 2 * z.key_dim, MOST, 2].map(|width| Arg::Scratch(4 * tokens * width)));
    Problem { shape: shape.clone(), attrs: Attrs::new(), args, label: format!("{fill:?} seed={seed}") }
}
