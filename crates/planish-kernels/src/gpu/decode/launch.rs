//! The launches of a step.

use planish_device::{Launch, Slice};
use planish_tune::{Config, Rejection};

use super::model::{At, Memory, Model, ModelAt, table_words};
use super::{
    COPIES, CROSS, DRAW, FENCED, Forms, OP, STAMPED, limits, merge_bytes, needs_fence, phases, qkv_segments,
    ring_bytes, slot_bytes, stage,
};
use crate::gpu::planes::ALIGN;
use crate::gpu::text::{KernelLaunch, Text, knob};
use crate::op::Machine;

/// How the token after the step is drawn, on the device.
#[derive(Clone)]
pub enum Draw {
    /// Not: the step's words stay, and the host reads the logits.
    None,
    /// The largest logit, of equal ones the lowest id.
    Greedy,
    /// By a sampler.
    Sampled(Sampler),
}

/// A sampler on the logits of a step.
#[derive(Clone)]
pub struct Sampler {
    /// What draws.
    pub launches: Vec<Launch>,
    /// Where it leaves the token.
    pub drawn: Slice,
    /// Its settings, whose count of steps goes on.
    pub settings: Slice,
    /// The tokens that penalties look back on, u32 `[2 + HISTORY]`: how many there were, room for how many, and number n at
    /// n % room; with the history that is made of them before the draw, three words for each of `HISTORY` entries.
    pub window: Option<(Slice, Slice)>,
}

/// A bit for each type that some of `matrices` have.
fn types(matrices: impl Iterator<Item = At>) -> i64 {
    matrices.fold(0, |bits, m| bits | 1 << (m.ty as i64))
}

/// The layers that one grid runs, and whether the embedding (1), the head (2) and the draw of the likeliest token (4) are
/// with them.
pub(super) struct Part {
    first: usize,
    pub count: usize,
    pub ends: u32,
}

/// The grids of a step under `config`, whose path is `token` or `layer`; the last one draws if `draws`.
pub(super) fn parts(config: &Config, layers: usize, draws: bool) -> Vec<Part> {
    let each = if config.name("PATH") == Some("layer") { 1 } else { layers };
    let last = 2 + 4 * u32::from(draws);
    let ends = |first: usize| u32::from(first == 0) + if first + each == layers { last } else { 0 };
    (0..layers).step_by(each).map(|first| Part { first, count: each, ends: ends(first) }).collect()
}

pub(super) struct Step<'a> {
    model: &'a Model,
    memory: &'a Memory,
    machine: &'a Machine<'a>,
    constants: Vec<(&'static str, i64)>,
    pub groups: usize,
    threads: usize,
    splits: usize,
    /// Bytes of the copies under way in a group, and behind them of the sums that attention puts together.
    ring: usize,
}

/// Which of `names` the configuration's `param` is.
fn place(config: &Config, param: &str, names: &[&str]) -> Result<usize, Rejection> {
    let place = names.iter().position(|name| config.name(param) == Some(name));
    place.ok_or_else(|| Rejection::Constraint(format!("{param} is one of {names:?}")))
}

fn constants(model: &Model, at: &ModelAt, config: &Config) -> Result<Vec<(&'static str, i64)>, Rejection> {
    let get = |name| knob(config, name).map(|n| n as i64);
    let forms = Forms::of(model, at);
    let (tiles, quads) = stage(model, forms);
    let flag = |b: bool| i64::from(b);
    let lanes = (model.head_dim / 8).next_power_of_two();
    let quads_each = |n: usize| knob(config, "THREADS").map(|threads| (n / 4).div_ceil(threads) as i64);
    let slot = slot_bytes(model, at, config)? / ALIGN;
    let (copies, cross) = (place(config, "COPIES", &COPIES)?, place(config, "CROSS", &CROSS)?);
    if cross == 1 && needs_fence(model, at) {
        return Err(Rejection::Constraint(FENCED.to_owned()));
    }
    let own = vec![
        ("MARKS", cross as i64),
        ("THREADS", get("THREADS")?),
        ("SPLITS", get("SPLITS")?),
        ("ROWS_QKV", get("ROWS_QKV")?),
        ("ROWS_OUT", get("ROWS")?),
        ("ROWS_UP", get("ROWS_UP")?),
        ("ROWS_DOWN", get("ROWS_DOWN")?),
        ("ROWS_HEAD", get("ROWS_HEAD")?),
        ("SLOT_QUADS", slot as i64),
        ("KEY_LANES", lanes as i64),
        ("POST_NORMS", flag(model.post_norms)),
        ("STAGE_INT8", flag(forms.int8)),
        ("STAGE_FLOAT", flag(forms.float)),
        ("ACT", flag(model.int8)),
        ("TYPES_QKV", types(at.layers.iter().flat_map(|l| l.qkv))),
        ("TYPES_OUT", types(at.layers.iter().map(|l| l.out))),
        ("TYPES_UP", types(at.layers.iter().map(|l| l.gate_up))),
        ("TYPES_DOWN", types(at.layers.iter().map(|l| l.down))),
        ("TYPES_HEAD", types([at.head].into_iter())),
        ("TYPE_EMBED", at.embedding.ty as i64),
        ("COPIES", copies as i64),
        ("TILES", tiles as i64),
        ("QUADS", quads as i64),
        ("SLOTS", get("SLOTS")?),
        ("SEGMENTS", get("SEGMENTS")?),
        ("DENSE", get("DENSE")?),
        ("SEGMENTS_QKV", qkv_segments(model, at, config)? as i64),
        ("WORDS", table_words(model) as i64),
        ("NORM_QUADS", quads_each(model.hidden)?),
        ("WIDE_QUADS", quads_each(model.wide())?),
        ("FFN_QUADS", quads_each(model.ffn)?),
        ("HEADS_SHARED", get("SHARED")?),
        // Where heads share keys, registers hold their sums instead.
        ("KEYS_AHEAD", if get("SHARED")? == 1 { 2 } else { 1 }),
        ("HEAD_SIZE", model.head_dim as i64),
        ("SIMDS", get("THREADS")? / 32),
    ];
    Ok([model.constants(), own].concat())
}

impl<'a> Step<'a> {
    pub fn new(
        (model, at): (&'a Model, &ModelAt),
        memory: &'a Memory,
        config: &Config,
        machine: &'a Machine<'a>,
    ) -> Result<Self, Rejection> {
        model.check().map_err(Rejection::Constraint)?;
        limits(config)?;
        let [groups, threads, splits] = ["BLOCKS", "THREADS", "SPLITS"].map(|n| knob(config, n));
        Ok(Step {
            model,
            memory,
            machine,
            constants: constants(model, at, config)?,
            groups: groups?,
            threads: threads?,
            splits: splits?,
            ring: ring_bytes(model, at, config)? + merge_bytes(model, config)?,
        })
    }

    fn params(&self, first: usize, count: usize, ends: u32, only: bool) -> Vec<u32> {
        let m = self.model;
        let floats = [m.eps, m.scale, m.softcap, m.logit_softcap, m.embedding_scale].map(f32::to_bits);
        let counts = [first as u32, count as u32, ends, u32::from(only), self.groups as u32];
        [&counts[..], &floats[..]].concat()
    }

    fn kernel(&self, entry: &str, groups: usize, params: Vec<u32>) -> Result<Launch, Rejection> {
        self.kernel_of(&OP.text, entry, (groups, params), &[])
    }

    /// A kernel of `text` that takes `more` arguments behind those of all.
    fn kernel_of(
        &self,
        text: &Text,
        entry: &str,
        (groups, params): (usize, Vec<u32>),
        more: &[Slice],
    ) -> Result<Launch, Rejection> {
        let m = self.memory;
        let args = [&m.arena, &m.table, &m.step, &m.ropes, &m.keys, &m.values, &m.work, &m.logits, &m.sync];
        let args = args.into_iter().chain(more).cloned().collect();
        let (constants, threads) = (self.constants.clone(), self.threads);
        KernelLaunch { text, entry, constants, params, groups, threads, shared_bytes: self.ring }.on(self.machine, args)
    }

    fn phases(&self) -> Result<Vec<Launch>, Rejection> {
        let mut launches = vec![self.kernel("decode_embed", 1, self.params(0, 0, 0, true))?];
        for layer in 0..self.model.layers {
            for entry in phases::LAYER {
                launches.push(self.kernel(entry, self.groups, self.params(layer, 1, 0, true))?);
            }
        }
        launches.push(self.kernel("decode_head", self.groups, self.params(0, 0, 0, true))?);
        Ok(launches)
    }

    /// The grids of path `token` or `layer`, and the draw, which is part of the last one where it is greedy.
    fn grids(&self, config: &Config, draw: &Draw) -> Result<Vec<Launch>, Rejection> {
        let greedy = matches!(draw, Draw::Greedy);
        let grid = |part: &Part| self.kernel("decode_fused", self.groups, self.part(part));
        let mut launches = parts(config, self.model.layers, greedy).iter().map(grid).collect::<Result<Vec<_>, _>>()?;
        if !greedy {
            launches.extend(self.draw(draw)?);
        }
        Ok(launches)
    }

    fn part(&self, part: &Part) -> Vec<u32> {
        self.params(part.first, part.count, part.ends, false)
    }

    /// The grid of `part` that leaves its times in `ticks`.
    pub fn stamped(&self, part: &Part, ticks: Slice) -> Result<Launch, Rejection> {
        self.kernel_of(&STAMPED, "decode_stamped", (self.groups, self.part(part)), &[ticks])
    }

    /// A launch behind the step.
    fn end(&self, entry: &str, param: usize, args: Vec<Slice>) -> Result<Launch, Rejection> {
        let (text, constants, params) = (&DRAW, Vec::new(), vec![param as u32]);
        KernelLaunch { text, entry, constants, params, groups: 1, threads: 32, shared_bytes: 0 }.on(self.machine, args)
    }

    /// What the greedy draw reads and moves on.
    fn drawn(&self) -> Result<Vec<Slice>, Rejection> {
        let (m, at) = (self.memory, 4 * self.model.best_at(self.splits));
        let best = m.work.buffer.slice(m.work.offset + at, 8 * self.groups);
        Ok(vec![best.map_err(|e| Rejection::Launch(e.to_string()))?, m.step.clone()])
    }

    /// The launches that draw, and that move the step on.
    pub fn draw(&self, draw: &Draw) -> Result<Vec<Launch>, Rejection> {
        match draw {
            Draw::None => Ok(Vec::new()),
            Draw::Greedy => Ok(vec![self.end("decode_pick", self.groups, self.drawn()?)?]),
            Draw::Sampled(by) => {
                let looking = |entry, args| self.end(entry, self.model.vocab, args);
                let mut all = Vec::new();
                if let Some((window, history)) = &by.window {
                    all.push(looking("decode_history", vec![window.clone(), history.clone()])?);
                }
                all.extend(by.launches.iter().cloned());
                if let Some((window, _)) = &by.window {
                    all.push(looking("decode_remember", vec![by.drawn.clone(), window.clone()])?);
                }
                let args = vec![by.drawn.clone(), by.settings.clone(), self.memory.step.clone()];
                all.push(self.end("decode_next", self.groups, args)?);
                Ok(all)
            }
        }
    }
}

/// The launches of one step of `model` under `config`: from the token and position in `memory.step` to logits, and to the
/// next token and position where it is drawn.
///
/// `PATH` graph launches what launches does: how a sequence is recorded is the caller's.
pub fn step(
    (model, at): (&Model, &ModelAt),
    memory: &Memory,
    draw: &Draw,
    config: &Config,
    machine: &Machine<'_>,
) -> Result<Vec<Launch>, Rejection> {
    let step = Step::new((model, at), memory, config, machine)?;
    match config.name("PATH") {
        Some("token" | "layer") => step.grids(config, draw),
        _ => Ok([step.phases()?, step.draw(draw)?].concat()),
    }
}

/// The launch of the head alone: from the residual in work memory, where `Model::residual_at` says, to logits.
pub fn head(
    model: (&Model, &ModelAt),
    memory: &Memory,
    config: &Config,
    machine: &Machine<'_>,
) -> Result<Launch, Rejection> {
    let step = Step::new(model, memory, config, machine)?;
    step.kernel("decode_head", step.groups, step.params(0, 0, 0, true))
}
