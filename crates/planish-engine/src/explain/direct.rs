//! Parts of a step timed by themselves, and growing prefixes of it.

use planish_device::{Backend, Launch, Sequence};

use super::Bounds;
use super::step::{Plan, Step};
use crate::error::{Error, Result};

/// How the parts of a step are recorded, and what runs before each timing.
pub struct Direct<'d> {
    /// The machine.
    pub backend: &'d dyn Backend,
    /// Records as the path in use does.
    pub record: &'d dyn Fn(&[Launch]) -> Result<Sequence>,
    /// Runs a whole token as production does and gives its nanoseconds: caches then hold what they hold when the part's
    /// turn comes in decode, and wholes are measured beside parts.
    pub token: &'d mut dyn FnMut() -> Result<f64>,
    /// Whether to end early.
    pub stop: &'d dyn Fn() -> bool,
}

/// Times of sequences in rounds, nanoseconds.
pub struct Times {
    /// `[sequence][round]`.
    pub parts: Vec<Vec<f64>>,
    /// Medians of the whole tokens of each round.
    pub wholes: Vec<f64>,
}

impl Direct<'_> {
    /// Times the sequences in rounds, each after a whole token; every round begins with another one.
    fn rounds(&mut self, sequences: &[Sequence], rounds: usize) -> Result<Times> {
        let mut times = Times { parts: vec![Vec::with_capacity(rounds); sequences.len()], wholes: Vec::new() };
        for round in 0..rounds {
            let mut wholes = Vec::with_capacity(sequences.len());
            for i in 0..sequences.len() {
                if (self.stop)() {
                    return Err(Error::request("interrupted"));
                }
                let at = (i + round) % sequences.len();
                wholes.push((self.token)()?);
                times.parts[at].push(self.backend.time(std::slice::from_ref(&sequences[at]), 1)?.ns);
            }
            times.wholes.push(Bounds::of(&wholes).median);
        }
        Ok(times)
    }

    /// Each row by itself, over all layers.
    pub fn alone(&mut self, step: &Step, plan: &Plan, rounds: usize) -> Result<Times> {
        let part = |row| (self.record)(&step.only(plan, |r| r == row));
        let sequences = (0..plan.rows.len()).map(part).collect::<Result<Vec<_>>>()?;
        self.rounds(&sequences, rounds)
    }

    /// For each row what the step's first rows take longer with it than without, over all layers.
    pub fn prefixes(&mut self, step: &Step, plan: &Plan, rounds: usize) -> Result<Vec<Bounds>> {
        let prefix = |last| (self.record)(&step.only(plan, |r| r <= last));
        let sequences = (0..plan.rows.len()).map(prefix).collect::<Result<Vec<_>>>()?;
        let times = self.rounds(&sequences, rounds)?.parts;
        let shorter = |row: usize, round: usize| if row > 0 { times[row - 1][round] } else { 0.0 };
        let grown = |row: usize| (0..rounds).map(|r| times[row][r] - shorter(row, r)).collect::<Vec<_>>();
        Ok((0..plan.rows.len()).map(|row| Bounds::of(&grown(row))).collect())
    }
}
