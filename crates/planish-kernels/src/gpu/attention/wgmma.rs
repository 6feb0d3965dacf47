//! The variant of `attention` on warpgroups: its blocks beside the portable ones, and its launch.

use planish_device::Launch;
use planish_tune::{Config, Rejection, Space};

use super::inputs::Heads;
use crate::gpu::text::{IO, KernelLaunch, Text, io, io_code, knob};
use crate::gpu::wgmma::{self, ALIGN, NAME, ROW, WGMMA};
use crate::op::{Machine, OpCall, Shape};

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
    let more = |param: &str| -> &'static [i64] {
        match param {
            "BLOCK_Q" => &[128, 192],
            "BLOCK_K" => &BLOCKS_K,
            _ => &[12],
        }
    };
    let mine = |c: &Config| c.int("BLOCK_K").is_some_and(|k| BLOCKS_K.contains(&k));
    let mut space = wgmma::beside(portable, more, ("blocks are of the variant", mine));
    let (head_dim, slots) = (shape.size("head_dim"), wgmma::tile_bytes(machine, BARRIERS));
    let block = |c: &Config| Block::of(c).ok().filter(|b| [128, 192].contains(&b.q));
    space.constraints.extend([
        wgmma::constraint("a warpgroup has 64 queries", move |c| {
            let simdgroups = c.int("SIMDGROUPS").and_then(|s| usize::try_from(s).ok());
            block(c).is_some_and(|b| Some(4 * b.warpgroups()) == simdgroups)
        }),
        wgmma::constraint("a thread's values fit its registers", move |c| {
            block(c).is_some_and(|b| b.values_fit(head_dim))
        }),
        wgmma::constraint("four tiles of keys fit beside the queries", move |c| {
            block(c).is_some_and(|b| b.shared_bytes(head_dim) <= slots)
        }),
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
