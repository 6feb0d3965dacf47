//! The space of ops that multiply tiles in threadgroup memory, for `include/tile.k`.

use planish_tune::{Config, Constraint, Param, Rejection, Space, Value};

use crate::gpu::Tier;
use crate::gpu::text::{ints, io_code, knob};
use crate::op::{Dtype, Machine};

/// The text of tile products.
pub const TILE: (&str, &str) = ("tile.k", include_str!("include/tile.k"));
/// The text of the order in which groups take tiles.
pub const WALK: (&str, &str) = ("walk.k", include_str!("include/walk.k"));

/// Sums that one thread may hold: beyond these, registers spill.
const MOST_VALUES: i64 = 64;

/// A product C = A Bᵀ, `m` x `k` by `n` x `k`.
#[derive(Clone, Copy, Debug)]
pub struct Product {
    /// Rows of A and of C.
    pub m: usize,
    /// Rows of B, columns of C.
    pub n: usize,
    /// Columns of A and B.
    pub k: usize,
    /// Type of A.
    pub io: Dtype,
    /// Whether the matrix unit may be used: both sides are of 16 bits.
    pub matrix_unit: bool,
}

/// A tile as its parameters give it.
#[derive(Clone, Copy)]
struct Tile {
    m: i64,
    n: i64,
    k: i64,
    simdgroups: i64,
    matrix_unit: bool,
}

impl Tile {
    fn of(config: &Config) -> Option<Tile> {
        let [m, n, k, simdgroups] = ["TILE_M", "TILE_N", "TILE_K", "SIMDGROUPS"].map(|name| config.int(name));
        Some(Tile { m: m?, n: n?, k: k?, simdgroups: simdgroups?, matrix_unit: config.name("VARIANT")? == "mm" })
    }

    /// Bytes of threadgroup memory, as the text declares it.
    fn shared_bytes(&self) -> i64 {
        match self.matrix_unit {
            true => (self.m + self.n) * (self.k + 8) * 2 + 1024 * self.simdgroups,
            false => (self.m + self.n) * (self.k / 4 + 1) * 16 + 4,
        }
    }

    /// Whether the tile divides among the threads, as the text spreads it.
    fn divides(&self) -> bool {
        let wide = self.simdgroups >= 4;
        let (across, unit) = match (self.matrix_unit, wide) {
            (true, true) => (2, 16),
            (true, false) => (1, 16),
            (false, true) => (16, 1),
            (false, false) => (8, 1),
        };
        let down = if self.matrix_unit { self.simdgroups } else { 32 * self.simdgroups } / across;
        self.m % (down * unit) == 0 && self.n % (across * unit) == 0
    }

    fn values(&self) -> i64 {
        self.m * self.n / (32 * self.simdgroups)
    }

    fn covers(&self, p: &Product) -> bool {
        p.m.is_multiple_of(self.m as usize)
            && p.n.is_multiple_of(self.n as usize)
            && p.k.is_multiple_of(self.k as usize)
    }
}

fn constraint(name: impl Into<String>, holds: impl Fn(&Tile, &Config) -> bool + Send + Sync + 'static) -> Constraint {
    Constraint::new(name, move |c| Tile::of(c).is_some_and(|t| holds(&t, c)))
}

fn names(name: &'static str, trades: &'static str, values: &[&str]) -> Param {
    Param { name, trades, values: values.iter().map(|v| Value::from(*v)).collect() }
}

/// What may be tried for `product`.
pub fn space(product: Product, machine: &Machine<'_>) -> Space {
    let limits = machine.backend.limits();
    let (threads, bytes) = (i64::from(limits.max_threads), i64::from(limits.shared_bytes));
    let variants: &[&str] = if product.matrix_unit { &["fma", "mm"] } else { &["fma"] };
    Space {
        params: vec![
            names("VARIANT", "multiply-adds of f32 against the matrix unit", variants),
            ints("TILE_M", "reads of B against registers and groups", &[16, 32, 64, 128]),
            ints("TILE_N", "reads of A against registers and groups", &[16, 32, 64, 128]),
            ints("TILE_K", "barriers against threadgroup memory", &[16, 32]),
            ints("SIMDGROUPS", "threads in flight against sums a thread", &[1, 2, 4, 8]),
            names("WALK", "rows of tiles against squares that stay in cache", &["linear", "morton"]),
            ints("ALIGNED", "1 leaves out what handles tails", &[0, 1]),
        ],
        constraints: vec![
            constraint("the tile divides among the threads", |t, _| t.divides()),
            constraint(format!("sums a thread <= {MOST_VALUES}"), |t, _| t.values() <= MOST_VALUES),
            constraint(format!("shared bytes <= {bytes}"), move |t, _| t.shared_bytes() <= bytes),
            constraint(format!("threads <= {threads}"), move |t, _| 32 * t.simdgroups <= threads),
            constraint("ALIGNED needs whole tiles", move |t, c| c.int("ALIGNED") == Some(0) || t.covers(&product)),
        ],
        default: default(&product, machine),
    }
}

/// The tier's tile, in squares where there are many tiles.
fn default(product: &Product, machine: &Machine<'_>) -> Config {
    let (m, n, k, simdgroups) =
        Tier::on(machine).pick([(32, 32, 32, 1), (64, 32, 32, 2), (64, 64, 32, 4), (64, 64, 32, 4)]);
    let tile = Tile { m, n, k, simdgroups, matrix_unit: product.matrix_unit };
    Config::new()
        .with("VARIANT", if product.matrix_unit { "mm" } else { "fma" })
        .with("TILE_M", m)
        .with("TILE_N", n)
        .with("TILE_K", k)
        .with("SIMDGROUPS", simdgroups)
        .with("WALK", if product.m > 32 || product.n > 512 { "morton" } else { "linear" })
        .with("ALIGNED", i64::from(tile.covers(product)))
}

/// How a product is spread over a grid.
pub struct Spread {
    /// Constants of the text.
    pub constants: Vec<(&'static str, i64)>,
    /// Groups of the grid.
    pub groups: usize,
    /// Threads of a group.
    pub threads: usize,
}

/// `product` under `config`, which may have been chosen for another: without whole tiles, tails are handled whatever it says.
pub fn spread(config: &Config, product: &Product) -> Result<Spread, Rejection> {
    let is = |name: &str, value: &str| i64::from(config.name(name) == Some(value));
    let mut constants =
        vec![("IO", io_code(product.io)), ("VARIANT", is("VARIANT", "mm")), ("WALK", is("WALK", "morton"))];
    for name in ["TILE_M", "TILE_N", "TILE_K", "SIMDGROUPS"] {
        constants.push((name, knob(config, name)? as i64));
    }
    let whole = Tile::of(config).is_some_and(|tile| tile.covers(product));
    constants.push(("ALIGNED", i64::from(knob(config, "ALIGNED")? == 1 && whole)));
    let groups = product.m.div_ceil(knob(config, "TILE_M")?) * product.n.div_ceil(knob(config, "TILE_N")?);
    Ok(Spread { constants, groups, threads: 32 * knob(config, "SIMDGROUPS")? })
}
