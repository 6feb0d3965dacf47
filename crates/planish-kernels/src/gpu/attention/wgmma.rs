//! The variant of `attention` on warpgroups: its blocks beside the portable ones, and its launch.

use std::sync::Arc;

use planish_device::Launch;
use planish_tune::{Config, Constraint, Param, Rejection, Space, Value};

use super::inputs::Heads;
use crate::gpu::text::{IO, KernelLaunch, Text, io, io_code, knob};
use crate::gpu::wgmma::{self, ALIGN, ROW, WGMMA};
use crate::op::{Machine, OpCall, Shape};

/// Value of `VARIANT`; its other one is the portable kernel's, `portable`.
pub const NAME: &str = "wgmma";
static TEXT: Text = Text(&[IO, WGMMA, ("attention_wgmma.k", include_str!("attention_wgmma.k"))]);

/// Tiles of keys or values in shared memory; more hide no more.
const SLOTS: usize = 4;
/// Bytes of the barriers of those and of the queries.
const BARRIERS: usize = 16 * SLOTS + 16;
/// Keys of a tile.
const BLOCKS_K: [i64; 5] = [64, 80, 96, 128, 176];

/// A block of the variant.
#[derive(Clone, Copy)]
struct Block {
    q: usize,
    k: usize,
}

impl Block {
    fn of(config: &Config) -> Result<Block, Rejection> {
        Ok(Block { q: knob(config, "BLOCK_Q")?, k: knob(config, "BLOCK_K")? })
    }

    /// Warpgroups that multiply, of 64 queries each.
    fn warpgroups(&self) -> usize {
        self.q / 64
    }

    /// Whether a thread's outputs, scores and weights stay in registers: what three warpgroups have is less.
    fn values_fit(&self, head_dim: usize) -> bool {
        let most = if self.warpgroups() == 2 { 208 } else { 128 };
        head_dim / 2 + self.k / 2 + self.k / 4 <= most
    }

    fn shared_bytes(&self, head_dim: usize) -> usize {
        2 * ROW * head_dim.div_ceil(ROW) * (self.q + SLOTS * self.k)
    }
}

/// Whether `machine` has the variant for `shape`.
fn fits(shape: &Shape, machine: &Machine<'_>) -> bool {
    shape.size("keys") > 0 && shape.size("queries") > 0 && wgmma::has_of(machine, io(shape))
}

/// `portable` with the variant's blocks beside it where `machine` has them for `shape`; they are the default then.
pub fn with(portable: Space, shape: &Shape, machine: &Machine<'_>) -> Space {
    if !fits(shape, machine) {
        return portable;
    }
    let mut space = portable;
    let native = |c: &Config| c.name("VARIANT") == Some(NAME);
    for constraint in &mut space.constraints {
        let holds = constraint.holds.clone();
        constraint.holds = Arc::new(move |c| native(c) || holds(c));
    }
    // A size that both have must mean the same to neither: the portable kernel keeps its own.
    let own: Vec<(&str, Vec<Value>)> = space.params.iter().map(|p| (p.name, p.values.clone())).collect();
    for param in &mut space.params {
        let more: &[i64] = match param.name {
            "BLOCK_Q" => &[128, 192],
            "BLOCK_K" => &BLOCKS_K,
            _ => &[12],
        };
        let more = more.iter().map(|v| Value::Int(*v)).filter(|v| !param.values.contains(v)).collect::<Vec<_>>();
        param.values.extend(more);
    }
    let values = ["portable", NAME].map(Value::from).into();
    space.params.insert(0, Param { name: "VARIANT", trades: "any machine against warpgroups", values });
    let (head_dim, slots) = (shape.size("head_dim"), wgmma::tile_bytes(machine, BARRIERS));
    let portable = move |c: &Config| own.iter().all(|(name, values)| c.get(name).is_some_and(|v| values.contains(v)));
    let mine = |c: &Config| c.int("BLOCK_K").is_some_and(|k| BLOCKS_K.contains(&k));
    let block = |c: &Config| Block::of(c).ok().filter(|b| [128, 192].contains(&b.q));
    let threads = move |c: &Config| {
        let simdgroups = c.int("SIMDGROUPS").and_then(|s| usize::try_from(s).ok());
        block(c).is_some_and(|b| Some(4 * b.warpgroups()) == simdgroups)
    };
    let values = move |c: &Config| block(c).is_some_and(|b| b.values_fit(head_dim));
    let shared = move |c: &Config| block(c).is_some_and(|b| b.shared_bytes(head_dim) <= slots);
    space.constraints.extend([
        Constraint::new("blocks are of the variant", move |c| if native(c) { mine(c) } else { portable(c) }),
        Constraint::new("a warpgroup has 64 queries", move |c| !native(c) || threads(c)),
        Constraint::new("a thread's values fit its registers", move |c| !native(c) || values(c)),
        Constraint::new("four tiles of keys fit beside the queries", move |c| !native(c) || shared(c)),
    ]);
    space.default = default(shape);
    space
}

/// What was best on an H200 (docs/lab/0003).
fn default(shape: &Shape) -> Config {
    let capped = shape.size("softcap") != 0;
    let (q, k) = match shape.size("head_dim") {
        64 if !capped => (192, 128),
        128 if shape.size("causal") == 0 => (128, 176),
        256 => (128, 80),
        _ => (128, 128),
    };
    let simdgroups = q / 16;
    Config::new().with("VARIANT", NAME).with("BLOCK_Q", q).with("BLOCK_K", k).with("SIMDGROUPS", simdgroups)
}

/// The launch of `call`, whose parameter block begins as that of the portable kernel.
pub fn steps(
    call: &OpCall,
    config: &Config,
    mut params: Vec<u32>,
    machine: &Machine<'_>,
) -> Result<Vec<Launch>, Rejection> {
    let (shape, heads, block) = (&call.shape, Heads::of(&call.shape), Block::of(config)?);
    if !fits(shape, machine) {
        return Err(Rejection::Constraint(format!("{NAME} is for sm_90a, 16-bit types and at least one key")));
    }
    wgmma::aligned(&call.args)?;
    let [sequences, queries, keys, head_dim] = ["sequences", "queries", "keys", "head_dim"].map(|s| shape.size(s));
    params.push(sequences as u32);
    let blocks = sequences * heads.q * queries.div_ceil(block.q);
    let launch = KernelLaunch {
        text: &TEXT,
        entry: "attention_wgmma",
        constants: vec![
            ("IO", io_code(io(shape))),
            ("HEAD_DIM", head_dim as i64),
            ("CONSUMERS", block.warpgroups() as i64),
            ("BLOCK_K", block.k as i64),
            ("SLOTS", SLOTS as i64),
            ("SOFTCAP", shape.size("softcap") as i64),
        ],
        params,
        groups: blocks.min(machine.backend.limits().processors as usize),
        // One warpgroup fetches.
        threads: 128 + 128 * block.warpgroups(),
        shared_bytes: block.shared_bytes(head_dim) + ALIGN,
    };
    let mut launch = launch.on(machine, call.args.clone())?;
    let keys = [sequences * heads.kv, keys, head_dim];
    launch.views = vec![
        wgmma::view(0, [sequences * heads.q, queries, head_dim], block.q),
        wgmma::view(1, keys, block.k),
        wgmma::view(2, keys, block.k),
    ];
    Ok(vec![launch])
}
