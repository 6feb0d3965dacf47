//! What may be tried for tiled attention, and with what it starts.

use planish_tune::{Config, Constraint, Rejection, Space};

use crate::gpu::Tier;
use crate::gpu::text::{ints, io, io_code, knob};
use crate::op::{Machine, Shape};

/// The rows that a group of a forward kernel owns, and those of the tiles that it walks.
pub const FORWARD_SIZES: (&str, &str) =
    ("attention_sizes.k", "#define OWN SHAPE_BLOCK_Q\n#define STREAM SHAPE_BLOCK_K\n");

/// Threadgroup memory that can be declared on every GPU; more has to be asked for at the launch.
const STATIC_BYTES: usize = 48 << 10;
/// Threadgroup memory of a default configuration, which leaves room for a second group.
const DEFAULT_BYTES: usize = 32 << 10;
/// Accumulators and scores of a lane that stay in registers.
const LANE_FLOATS: usize = 96;

/// Rows that a SIMD group must own at least, and a multiple of: the sets of lanes of the kernels' two layouts.
pub fn row_sets(head_dim: usize, stream: usize) -> usize {
    let chunk_lanes = [32, 16, 8, 4].into_iter().find(|n| (head_dim / 4).is_multiple_of(*n)).unwrap_or(1);
    (32 / chunk_lanes).max(32 / stream.min(32))
}

/// A named constraint over whole-number parameters, false where one is missing.
pub fn constraint<const N: usize>(
    name: String,
    params: [&'static str; N],
    holds: impl Fn([usize; N]) -> bool + Send + Sync + 'static,
) -> Constraint {
    let holds = move |c: &Config| {
        let mut values = [0; N];
        for (value, name) in values.iter_mut().zip(params) {
            match c.int(name).and_then(|v| usize::try_from(v).ok()) {
                Some(v) => *value = v,
                None => return false,
            }
        }
        holds(values)
    };
    Constraint::new(name, holds)
}

/// Threadgroup bytes that `machine` gives to arrays declared in a kernel.
pub fn static_bytes(machine: &Machine<'_>) -> usize {
    (machine.backend.limits().shared_bytes as usize).min(STATIC_BYTES)
}

/// Tiles of the forward kernels: queries and weights of a group, and a tile of keys or values.
fn forward_bytes(shape: &Shape, block_q: usize, block_k: usize) -> usize {
    let row = shape.size("head_dim") * io(shape).bytes() as usize;
    row * (block_q + block_k) + 4 * block_q * block_k
}

/// The space of forward attention over tiles.
pub fn forward(shape: &Shape, machine: &Machine<'_>) -> Space {
    let (limit, most) = (static_bytes(machine), machine.backend.limits().max_threads as usize);
    let head_dim = shape.size("head_dim");
    let sized = shape.clone();
    Space {
        params: vec![
            ints("BLOCK_Q", "reuse of keys and values against threadgroup memory and registers", &[16, 32, 64, 128]),
            ints("BLOCK_K", "fewer barriers against threadgroup memory", &[8, 16, 32, 64]),
            ints("SIMDGROUPS", "fewer registers a lane against more reads of the same keys", &[2, 4, 8]),
        ],
        constraints: vec![
            constraint(format!("threadgroup bytes <= {limit}"), ["BLOCK_Q", "BLOCK_K"], move |[q, k]| {
                forward_bytes(&sized, q, k) <= limit
            }),
            constraint(format!("threads <= {most}"), ["SIMDGROUPS"], move |[s]| 32 * s <= most),
            constraint(
                "rows of a SIMD group fill its lanes".to_owned(),
                ["BLOCK_Q", "BLOCK_K", "SIMDGROUPS"],
                move |[q, k, s]| (q / s).is_multiple_of(row_sets(head_dim, k)) && q / s > 0,
            ),
            constraint(
                format!("floats of a lane <= {LANE_FLOATS}"),
                ["BLOCK_Q", "BLOCK_K", "SIMDGROUPS"],
                move |[q, k, s]| q / s * (head_dim + k) / 32 <= LANE_FLOATS,
            ),
        ],
        default: forward_default(shape, machine),
    }
}

/// The seed of the machine's class for this head size, with smaller tiles where a wide type makes them too large.
fn forward_default(shape: &Shape, machine: &Machine<'_>) -> Config {
    let tier = Tier::on(machine);
    let limit = static_bytes(machine).min(DEFAULT_BYTES);
    let (mut q, mut k) = match shape.size("head_dim") {
        64 => (64, tier.pick([32, 64, 64, 64])),
        80 | 96 => (tier.pick([32, 64, 64, 64]), 32),
        128 => (tier.pick([32, 32, 64, 64]), 32),
        _ => (tier.pick([16, 16, 32, 32]), 16),
    };
    while forward_bytes(shape, q, k) > limit {
        if q > k { q /= 2 } else { k /= 2 }
    }
    // Eight rows a SIMD group fill its lanes for every head size.
    Config::new().with("BLOCK_Q", q as i64).with("BLOCK_K", k as i64).with("SIMDGROUPS", (q / 8) as i64)
}

/// The constants of the forward kernels.
pub fn forward_constants(config: &Config, shape: &Shape) -> Result<Vec<(&'static str, i64)>, Rejection> {
    Ok(vec![
        ("BLOCK_Q", knob(config, "BLOCK_Q")? as i64),
        ("BLOCK_K", knob(config, "BLOCK_K")? as i64),
        ("SIMDGROUPS", knob(config, "SIMDGROUPS")? as i64),
        ("HEAD_DIM", shape.size("head_dim") as i64),
        ("IO", io_code(io(shape))),
    ])
}
