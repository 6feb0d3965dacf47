//! A step whose grids leave times behind every phase and every barrier, for those who ask where a token's time goes.

use planish_device::{Launch, Slice};
use planish_tune::{Config, Rejection};

use super::launch::{Draw, Part, Step, parts};
use super::model::{Memory, Model, ModelAt};
use super::phases;
use crate::gpu::text::knob;
use crate::op::Machine;

/// What lies between two stamps of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Span {
    /// A phase, by the name of the kernel that runs it alone.
    Phase(&'static str),
    /// A barrier of the grid, with what is done in it.
    Barrier,
}

/// The spans of a grid in order; it leaves one stamp more.
fn spans(part: &Part) -> Vec<Span> {
    let (embed, head) = (part.ends & 1 != 0, part.ends & 2 != 0);
    let mut spans = Vec::new();
    if embed {
        spans.extend([Span::Phase("decode_embed"), Span::Barrier]);
    }
    for layer in 0..part.count {
        for phase in phases::LAYER {
            spans.extend([Span::Phase(phase), Span::Barrier]);
        }
        // The last phase of a grid has no barrier behind it, unless the head follows.
        if layer + 1 == part.count && !head {
            spans.pop();
        }
    }
    if head {
        spans.push(Span::Phase("decode_head"));
    }
    spans
}

/// A step that leaves times.
pub struct Stamped {
    /// Its launches, the draw's behind the grids.
    pub launches: Vec<Launch>,
    /// The spans of each grid.
    pub spans: Vec<Vec<Span>>,
    /// Groups of a grid.
    pub groups: usize,
}

impl Stamped {
    /// Bytes of `ticks` for a step of `model` under `config`.
    pub fn ticks_bytes(model: &Model, config: &Config) -> Result<usize, Rejection> {
        let stamps: usize = parts(config, model.layers).iter().map(|p| spans(p).len() + 1).sum();
        Ok(4 * stamps * knob(config, "BLOCKS")?)
    }

    /// The step under `config`, whose path is `token` or `layer`; times go to `ticks`, u32 `[stamps][groups]` of each grid.
    pub fn new(
        (model, at): (&Model, &ModelAt),
        memory: &Memory,
        ticks: &Slice,
        config: &Config,
        machine: &Machine<'_>,
    ) -> Result<Stamped, Rejection> {
        let step = Step::new((model, at), memory, config, machine)?;
        let (mut launches, mut all, mut offset) = (Vec::new(), Vec::new(), ticks.offset);
        for part in parts(config, model.layers) {
            let spans = spans(&part);
            let bytes = 4 * step.groups * (spans.len() + 1);
            let mine = ticks.buffer.slice(offset, bytes).map_err(|e| Rejection::Launch(e.to_string()))?;
            launches.push(step.stamped(&part, mine)?);
            all.push(spans);
            offset += bytes;
        }
        launches.extend(step.draw(&Draw::Greedy)?);
        Ok(Stamped { launches, spans: all, groups: step.groups })
    }

    /// Nanoseconds of each span, in the order of the grids, as means over the groups; `ticks` is what a run left.
    pub fn read(&self, ticks: &[u8]) -> Vec<(Span, f64)> {
        let stamp = |n: usize| ticks.get(4 * n..4 * n + 4).map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        let (mut times, mut first) = (Vec::new(), 0);
        for spans in &self.spans {
            for (i, span) in spans.iter().enumerate() {
                let at = first + i * self.groups;
                // The clock's low bits go round every four seconds.
                let ns = |g: usize| f64::from(stamp(at + self.groups + g).wrapping_sub(stamp(at + g)));
                times.push((*span, (0..self.groups).map(ns).sum::<f64>() / self.groups as f64));
            }
            first += (spans.len() + 1) * self.groups;
        }
        times
    }

    /// Barriers of the step.
    pub fn barriers(&self) -> usize {
        self.spans.iter().flatten().filter(|s| **s == Span::Barrier).count()
    }
}
