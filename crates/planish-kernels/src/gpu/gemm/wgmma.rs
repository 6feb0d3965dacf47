//! The variant of `gemm` on warpgroups: its tiles beside the portable ones, and its launch.

use planish_device::Launch;
use planish_tune::{Config, Constraint, Rejection, Space, Value};

use super::{GemmTypes, types};
use crate::gpu::text::{IO, KernelLaunch, Text, io_code, knob};
use crate::gpu::wgmma::{self, ALIGN, NAME, ROW, WGMMA, WGMMA_GEMM, native};
use crate::op::{Dtype, Machine, OpCall, Shape};

static TEXT: Text = Text(&[IO, WGMMA, WGMMA_GEMM, ("gemm_wgmma.k", include_str!("gemm_wgmma.k"))]);

/// Rows of tiles that are walked together, column by column.
const BAND: i64 = 8;
/// Slots of shared memory; more do not hide more.
const MOST_STAGES: usize = 8;
/// Bytes of the barriers of that many slots.
const BARRIERS: usize = 16 * MOST_STAGES;
/// Sums that one thread may hold.
const MOST_VALUES: usize = 128;

/// A tile of the variant.
#[derive(Clone, Copy)]
struct Tile {
    m: usize,
    n: usize,
    simdgroups: usize,
}

/// Tiles that a default is taken from, the first of those that are as good.
const SEEDS: [Tile; 6] = [
    Tile { m: 128, n: 256, simdgroups: 8 },
    Tile { m: 128, n: 192, simdgroups: 8 },
    Tile { m: 128, n: 128, simdgroups: 8 },
    Tile { m: 64, n: 256, simdgroups: 4 },
    Tile { m: 64, n: 128, simdgroups: 4 },
    Tile { m: 128, n: 64, simdgroups: 8 },
];

impl Tile {
    fn of(config: &Config) -> Result<Tile, Rejection> {
        Ok(Tile { m: knob(config, "TILE_M")?, n: knob(config, "TILE_N")?, simdgroups: knob(config, "SIMDGROUPS")? })
    }

    /// Blocks of 64 rows of a warpgroup.
    fn rows(&self) -> usize {
        self.m / (16 * self.simdgroups)
    }

    /// Whether warpgroups take whole blocks, and their sums fit in registers.
    fn divides(&self) -> bool {
        let whole = self.m.is_multiple_of(16 * self.simdgroups) && self.n.is_multiple_of(ROW);
        let (rows, warpgroups) = (self.rows(), self.simdgroups / 4);
        whole && [4, 8].contains(&self.simdgroups) && rows * self.n / 2 <= MOST_VALUES && rows * warpgroups > 0
    }

    fn slot_bytes(&self) -> usize {
        2 * ROW * (self.m + self.n)
    }

    fn stages(&self, machine: &Machine<'_>) -> usize {
        (wgmma::tile_bytes(machine, BARRIERS) / self.slot_bytes()).min(MOST_STAGES)
    }

    /// Groups that take the tiles of a matrix: one a processor, each of which takes tile after tile.
    fn groups(&self, m: usize, n: usize, machine: &Machine<'_>) -> usize {
        (m.div_ceil(self.m) * n.div_ceil(self.n)).min(machine.backend.limits().processors as usize)
    }

    /// How long a product takes, in no unit: rounds of tiles, each of whose steps costs its area and what any step costs;
    /// measured on an H200 (docs/lab/0003).
    fn cost(&self, [m, n, k]: [usize; 3], processors: usize) -> usize {
        let rounds = (m.div_ceil(self.m) * n.div_ceil(self.n)).div_ceil(processors.max(1));
        rounds * (k.div_ceil(ROW) + 6) * (self.m * self.n / 1024 + 2)
    }
}

/// Names of the sizes along which matrices of `shape` lie in memory.
fn row_sizes(shape: &Shape) -> [&'static str; 2] {
    if shape.name("layout") == "tn" { ["m", "n"] } else { ["k", "n"] }
}

/// Whether elements have 16 bits, and rows of A, B and C begin at multiples of 16 bytes where the matrices do.
fn whole_rows(shape: &Shape) -> bool {
    types(shape).io != Dtype::F32 && row_sizes(shape).iter().all(|name| shape.size(name).is_multiple_of(8))
}

/// `shape` of other sizes, made larger where its rows are such, so that theirs are too.
pub fn resized(shape: &Shape, sizes: [(&'static str, usize); 3]) -> Shape {
    let rows = if whole_rows(shape) { &row_sizes(shape)[..] } else { &[] };
    let size = |(name, n): (&str, usize)| if rows.contains(&name) { n.next_multiple_of(8) } else { n };
    sizes.into_iter().fold(shape.clone(), |s, (name, n)| s.with(name, size((name, n)) as i64))
}

/// Whether `machine` has the variant for `shape`.
fn fits(shape: &Shape, machine: &Machine<'_>) -> bool {
    shape.size("k") > 0 && whole_rows(shape) && wgmma::has_of(machine, types(shape).io)
}

/// `portable` with the variant's tiles beside it where `machine` has them for `shape`; they are the default then.
pub fn with(portable: Space, shape: &Shape, machine: &Machine<'_>) -> Space {
    if !fits(shape, machine) {
        return portable;
    }
    let mut space = portable.except(native);
    for param in &mut space.params {
        let more: &[i64] = match param.name {
            "TILE_M" => &[256],
            "TILE_N" => &[192, 256],
            "TILE_K" => &[64],
            _ => &[],
        };
        param.values.extend(more.iter().map(|v| Value::Int(*v)));
        param.values.extend((param.name == "VARIANT").then(|| Value::from(NAME)));
    }
    let slots = wgmma::tile_bytes(machine, BARRIERS);
    let own = move |c: &Config| {
        let [m, n, k] = ["TILE_M", "TILE_N", "TILE_K"].map(|name| c.int(name).unwrap_or(0));
        let plain = m > 128 || n > 128 || k > 32;
        native(c) == (k == ROW as i64) && (native(c) || !plain)
    };
    let tile = |holds: fn(&Tile, usize) -> bool| move |c: &Config| Tile::of(c).is_ok_and(|t| holds(&t, slots));
    space.constraints.extend([
        Constraint::new("TILE_K is 64 for wgmma alone, and so are tiles over 128", own),
        wgmma::constraint("wgmma has one walk, and handles tails", |c| {
            c.name("WALK") == Some("linear") && c.int("ALIGNED") == Some(0)
        }),
        wgmma::constraint("warpgroups take whole blocks of 64 rows and their sums fit", tile(|t, _| t.divides())),
        wgmma::constraint("three slots of tiles fit", tile(|t, slots| t.slot_bytes() * 3 <= slots)),
    ]);
    space.default = default(shape, machine);
    space
}

fn default(shape: &Shape, machine: &Machine<'_>) -> Config {
    let sizes = ["m", "n", "k"].map(|s| shape.size(s));
    let processors = machine.backend.limits().processors as usize;
    let fitting = SEEDS.iter().filter(|t| t.stages(machine) >= 3);
    let tile = fitting.min_by_key(|t| t.cost(sizes, processors)).unwrap_or(&SEEDS[SEEDS.len() - 1]);
    Config::new()
        .with("VARIANT", NAME)
        .with("TILE_M", tile.m as i64)
        .with("TILE_N", tile.n as i64)
        .with("TILE_K", ROW as i64)
        .with("SIMDGROUPS", tile.simdgroups as i64)
        .with("WALK", "linear")
        .with("ALIGNED", 0)
}

/// The launch of `call`, whose parameter block is that of the portable kernel.
pub fn steps(
    call: &OpCall,
    config: &Config,
    params: Vec<u32>,
    machine: &Machine<'_>,
) -> Result<Vec<Launch>, Rejection> {
    let (shape, tile) = (&call.shape, Tile::of(config)?);
    if !fits(shape, machine) {
        return Err(Rejection::Constraint(format!("{NAME} is for sm_90a, 16-bit types and rows of whole 16 bytes")));
    }
    wgmma::aligned(&call.args)?;
    let GemmTypes { io, out } = types(shape);
    let ([turn_a, turn_b], stages) = (super::turned(shape), tile.stages(machine));
    let [m, n, k] = ["m", "n", "k"].map(|s| shape.size(s));
    let launch = KernelLaunch {
        text: &TEXT,
        entry: "gemm_wgmma",
        constants: vec![
            ("IO", io_code(io)),
            ("OUT", io_code(out)),
            ("ROWS", tile.rows() as i64),
            ("CONSUMERS", tile.simdgroups as i64 / 4),
            ("TILE_N", tile.n as i64),
            ("STAGES", stages as i64),
            ("BAND", BAND),
            ("TURN_A", i64::from(turn_a)),
            ("TURN_B", i64::from(turn_b)),
        ],
        params,
        groups: tile.groups(m, n, machine),
        // One warpgroup fetches.
        threads: 128 + 32 * tile.simdgroups,
        shared_bytes: stages * tile.slot_bytes() + ALIGN,
    };
    let mut launch = launch.on(machine, call.args.clone())?;
    let view = |arg, turned, rows, tile| match turned {
        true => wgmma::view(arg, [0, k, rows], ROW),
        false => wgmma::view(arg, [0, rows, k], tile),
    };
    launch.views = vec![view(0, turn_a, m, tile.m), view(1, turn_b, n, tile.n)];
    Ok(vec![launch])
}
