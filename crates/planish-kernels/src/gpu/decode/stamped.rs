//! Two steps in a row whose launches leave times behind every phase and every barrier, for those who ask where a token's
//! time goes: from the end of the first to the end of the second is a whole token as it is drawn, launches and all.

use planish_device::{Launch, Slice};
use planish_tune::{Config, Rejection};

use super::launch::{Part, Step, parts};
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
    /// From the end of a launch to the begin of the next.
    Launch,
}

/// Steps in a row.
const STEPS: usize = 2;

/// The spans of a grid in order; it leaves one stamp more. With marks there is no barrier before attention.
fn spans(part: &Part, marks: bool) -> Vec<Span> {
    let [embed, head, draw] = [1, 2, 4].map(|end| part.ends & end != 0);
    let mut spans = Vec::new();
    if embed {
        spans.extend([Span::Phase("decode_embed"), Span::Barrier]);
    }
    for layer in 0..part.count {
        for phase in phases::LAYER {
            spans.push(Span::Phase(phase));
            if !marks || phase != phases::LAYER[0] {
                spans.push(Span::Barrier);
            }
        }
        // The last phase of a grid has no barrier behind it, unless the head follows.
        if layer + 1 == part.count && !head {
            spans.pop();
        }
    }
    if head {
        spans.push(Span::Phase("decode_head"));
    }
    if draw {
        spans.extend([Span::Barrier, Span::Phase("decode_pick")]);
    }
    spans
}

/// A launch that leaves times.
struct Run {
    /// Its groups, each of which leaves one stamp more than there are spans.
    groups: usize,
    spans: Vec<Span>,
}

impl Run {
    fn stamps(&self) -> usize {
        self.groups * (self.spans.len() + 1)
    }
}

/// Steps that leave times.
pub struct Stamped {
    /// Their launches.
    pub launches: Vec<Launch>,
    /// Those of one step.
    runs: Vec<Run>,
}

/// The launches of a step under `config`.
fn runs(model: &Model, config: &Config) -> Result<Vec<Run>, Rejection> {
    let (groups, marks) = (knob(config, "BLOCKS")?, config.name("CROSS") == Some("marks"));
    Ok(parts(config, model.layers, true).iter().map(|part| Run { groups, spans: spans(part, marks) }).collect())
}

/// Nanoseconds from one stamp of a group to a later one of it; the clock's bits go round every four seconds.
fn later(from: u32, to: u32) -> f64 {
    f64::from(to.wrapping_sub(from))
}

/// The same between groups, where either may be the earlier one.
fn apart(from: u32, to: u32) -> f64 {
    f64::from(to.wrapping_sub(from).cast_signed())
}

fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let n = values.len() as f64;
    values.sum::<f64>() / n
}

impl Stamped {
    /// Steps, of which the last is read.
    pub const STEPS: usize = STEPS;

    /// Bytes of `ticks` for steps of `model` under `config`.
    pub fn ticks_bytes(model: &Model, config: &Config) -> Result<usize, Rejection> {
        Ok(4 * STEPS * runs(model, config)?.iter().map(Run::stamps).sum::<usize>())
    }

    /// The steps under `config`, whose path is `token` or `layer`; times go to `ticks`, u32 `[stamps][groups]` of each
    /// launch.
    pub fn new(
        (model, at): (&Model, &ModelAt),
        memory: &Memory,
        ticks: &Slice,
        config: &Config,
        machine: &Machine<'_>,
    ) -> Result<Stamped, Rejection> {
        let step = Step::new((model, at), memory, config, machine)?;
        let (runs, parts) = (runs(model, config)?, parts(config, model.layers, true));
        let (mut launches, mut offset) = (Vec::new(), ticks.offset);
        for _ in 0..STEPS {
            for (part, run) in parts.iter().zip(&runs) {
                let mine = ticks.buffer.slice(offset, 4 * run.stamps());
                let mine = mine.map_err(|e| Rejection::Launch(e.to_string()))?;
                launches.push(step.stamped(part, mine)?);
                offset += 4 * run.stamps();
            }
        }
        Ok(Stamped { launches, runs })
    }

    /// Nanoseconds of each span of the last step in order, as means over the groups; `ticks` is what a run left.
    ///
    /// They add up to the time from the end of the step before to its own.
    pub fn read(&self, ticks: &[u8]) -> Vec<(Span, f64)> {
        let stamps: Vec<u32> = ticks.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        let (mut times, mut first) = (Vec::new(), stamps.len() / STEPS);
        let last = self.runs.last().map_or(0, |run| run.groups);
        let mut ends = &stamps[first - last..first];
        for run in &self.runs {
            let row = |i: usize| &stamps[first + i * run.groups..][..run.groups];
            let of = |rows: &[u32]| mean(rows.iter().map(|t| apart(ends[0], *t)));
            times.push((Span::Launch, of(row(0)) - of(ends)));
            for (i, span) in run.spans.iter().enumerate() {
                times.push((*span, mean(row(i).iter().zip(row(i + 1)).map(|(a, b)| later(*a, *b)))));
            }
            ends = row(run.spans.len());
            first += run.stamps();
        }
        times
    }

    /// Barriers of a step.
    pub fn barriers(&self) -> usize {
        self.runs.iter().flat_map(|r| &r.spans).filter(|s| **s == Span::Barrier).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spans_of_a_step_add_up_to_the_time_between_two_draws() {
        // A grid of two groups with a phase, a barrier and a phase, then one of a phase; the clock goes round in between.
        let spans = vec![Span::Phase("a"), Span::Barrier, Span::Phase("b")];
        let runs = vec![Run { groups: 2, spans }, Run { groups: 2, spans: vec![Span::Phase("c")] }];
        let stamped = Stamped { launches: Vec::new(), runs };
        let start = 0u32.wrapping_sub(60);
        let step = |at: u32| {
            [10, 14, 30, 50, 60, 60, 90, 80, 100, 100, 106, 108]
                .map(|t| start.wrapping_add(at).wrapping_add(t))
                .to_vec()
        };
        // The grids before end at 106 and 108, the next begin at 120 and 124: 13 and 17 later than 107.
        let ticks: Vec<u8> = [step(0), step(110)].concat().iter().flat_map(|t| t.to_le_bytes()).collect();
        let times = stamped.read(&ticks);
        let wanted = [
            (Span::Launch, 15.0),
            (Span::Phase("a"), 28.0),
            (Span::Barrier, 20.0),
            (Span::Phase("b"), 25.0),
            (Span::Launch, 15.0),
            (Span::Phase("c"), 7.0),
        ];
        assert_eq!(times, wanted);
        assert_eq!(times.iter().map(|t| t.1).sum::<f64>(), 110.0);
        assert_eq!(stamped.barriers(), 1);
    }
}
