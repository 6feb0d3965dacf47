//! What both passes of a linear cross entropy share: the space of tiles, and inputs.

use planish_tune::{Config, Constraint, Rejection, Space};

use super::reference::logits;
use crate::data::{self, Rng};
use crate::gpu::Tier;
use crate::gpu::cross_entropy::reference::Loss;
use crate::gpu::cross_entropy::shared::{self, Targets, threads_within};
use crate::gpu::text::{KernelLaunch, Text, ints, io, io_code, knob};
use crate::op::{Arg, Fill, Machine, Shape};
use crate::reference::lift;

/// The smallest chunk of the space, which needs the most partial results.
pub const LEAST_CHUNK: usize = 512;
/// The largest chunk of the space, which needs the most memory for slopes.
pub const MOST_CHUNK: usize = 8192;
/// Threads of launches without tiles.
pub const PLAIN_THREADS: usize = 256;

/// Fewer and smaller rows of the same kind.
pub fn cases(s: &Shape) -> Vec<Shape> {
    let small = s.clone().with("hidden", s.size("hidden").min(136) as i64);
    let small = small.with("vocab", s.size("vocab").min(1100) as i64);
    vec![small.clone().with("tokens", 37), small.with("tokens", 1)]
}

/// The parameters of both passes.
pub fn space(s: &Shape, machine: &Machine<'_>) -> Space {
    let limits = machine.backend.limits();
    let (limit, bytes) = (i64::from(limits.max_threads), limits.shared_bytes as usize);
    let fits = move |c: &Config| match (knob(c, "THREADS"), knob(c, "TILE_M")) {
        (Ok(threads), Ok(rows)) => 4 * tile_floats(threads, rows) <= bytes,
        _ => false,
    };
    // Two chunks that both hold the whole vocabulary are one configuration.
    let vocab = s.size("vocab") as i64;
    let distinct = move |c: i64| c == LEAST_CHUNK as i64 || c / 2 < vocab;
    let tier = Tier::on(machine);
    let wide = s.size("hidden");
    let seed = match tier {
        Tier::Base => 2048 >> usize::from(wide >= 4096),
        Tier::Pro => 4096 >> usize::from(wide >= 8192),
        Tier::Max | Tier::Ultra => 8192 >> usize::from(wide >= 8192),
    };
    let chunks = [512, 1024, 2048, 4096, 8192];
    let chunk = chunks.into_iter().filter(|c| *c <= seed && distinct(*c)).max().unwrap_or(chunks[0]);
    Space {
        params: vec![
            ints("THREADS", "fewer reads of h against threadgroup memory", &[64, 128, 256, 512, 1024]),
            ints("TILE_M", "fewer reads of w against fewer groups", &[16, 32, 64]),
            ints("CHUNK", "fewer partial results against groups and memory", &chunks),
        ],
        constraints: vec![
            threads_within(limit),
            Constraint::new(format!("tile <= {bytes} shared bytes"), fits),
            Constraint::new(format!("CHUNK no more than holds {vocab} entries"), move |c| {
                c.int("CHUNK").is_some_and(distinct)
            }),
        ],
        default: Config::new()
            .with("THREADS", shared::seed_threads(s, tier).min(512).min(limit))
            .with("TILE_M", 32)
            .with("CHUNK", chunk),
    }
}

/// Floats of threadgroup memory of a tile, in few steps since each is a compilation.
fn tile_floats(threads: usize, rows: usize) -> usize {
    (16 * (rows + 16 * threads / rows + 2)).max(8 * threads).next_power_of_two()
}

/// A configuration as numbers.
#[derive(Clone, Copy)]
pub struct Tiles {
    /// Threads of a group.
    pub threads: usize,
    /// Rows of a tile.
    pub rows: usize,
    /// Columns of a tile.
    pub columns: usize,
    /// Vocabulary of a chunk.
    pub chunk: usize,
}

impl Tiles {
    /// The tiles of `config`.
    pub fn of(config: &Config) -> Result<Tiles, Rejection> {
        let (threads, rows, chunk) = (knob(config, "THREADS")?, knob(config, "TILE_M")?, knob(config, "CHUNK")?);
        Ok(Tiles { threads, rows, columns: 16 * threads / rows, chunk })
    }

    /// A launch of `entry`, whose groups each make a tile.
    pub fn launch<'a>(
        &self,
        (text, entry): (&'a Text, &'a str),
        s: &Shape,
        params: Vec<u32>,
        groups: usize,
    ) -> KernelLaunch<'a> {
        let floats = tile_floats(self.threads, self.rows) as i64;
        let constants = vec![
            ("THREADS", self.threads as i64),
            ("TILE_M", self.rows as i64),
            ("TILE", floats),
            ("IO", io_code(io(s))),
        ];
        KernelLaunch { text, entry, constants, params, groups, threads: self.threads, shared_bytes: 0 }
    }
}

/// A launch of `entry`, which has neither tiles nor tensors of the shape's type: one compilation for every shape.
pub fn plain<'a>((text, entry): (&'a Text, &'a str), params: Vec<u32>, groups: usize) -> KernelLaunch<'a> {
    let constants = vec![("THREADS", PLAIN_THREADS as i64), ("TILE_M", 16), ("TILE", 2048), ("IO", 0)];
    KernelLaunch { text, entry, constants, params, groups, threads: PLAIN_THREADS, shared_bytes: 0 }
}

/// Inputs of a problem, as rounded and as arguments.
pub struct Inputs {
    /// `[tokens][hidden]`.
    pub h: Vec<f32>,
    /// `[vocab][hidden]`.
    pub w: Vec<f32>,
    /// `[vocab]`, where the shape has one.
    pub bias: Option<Vec<f32>>,
    /// One a token.
    pub targets: Vec<u32>,
    /// h, w, bias where there is one, targets.
    pub args: Vec<Arg>,
}

/// Random inputs. Extreme ones give logits up to about ±80: whole eighths, so that their sums are exact in any order; a
/// vocabulary of one entry gets those too, since its gradient is nothing but what rounding left.
pub fn inputs(rng: &mut Rng, s: &Shape, o: &Loss, fill: Fill) -> Inputs {
    let (tokens, hidden) = (s.size("tokens"), s.size("hidden"));
    let mut h = data::floats(rng, tokens * hidden, Fill::Random);
    let mut w = data::floats(rng, o.vocab * hidden, Fill::Random);
    let mut bias = data::floats(rng, o.vocab, Fill::Random);
    if fill == Fill::Extreme {
        h.iter_mut().for_each(|v| *v *= 80.0 / (3.0 * hidden as f32).sqrt());
    }
    if fill == Fill::Extreme || o.vocab == 1 {
        h.iter_mut().chain(&mut w).chain(&mut bias).for_each(|v| *v = (*v * 8.0).round() / 8.0);
    }
    let mut args: Vec<Arg> = [&mut h, &mut w].map(|v| Arg::In(data::rounded(v, io(s)))).into();
    let bytes = data::rounded(&mut bias, io(s));
    let biased = s.size("bias") == 1;
    args.extend(biased.then_some(Arg::In(bytes)));
    let Targets { values: targets, bytes } = shared::targets(rng, tokens, o, fill);
    args.push(Arg::In(bytes));
    Inputs { h, w, bias: biased.then_some(bias), targets, args }
}

impl Inputs {
    /// The logits in f64.
    pub fn logits(&self, o: &Loss) -> Vec<f64> {
        logits::<f64>(&lift(&self.h), &lift(&self.w), self.bias.as_deref().map(lift).as_deref(), o.vocab)
    }
}
