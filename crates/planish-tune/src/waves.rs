//! Which candidates are tried next: all of a small space, and of a large one those that are likely to be fast.
//!
//! A large space begins with candidates that differ from the default in one value, and a few spread over it.
//! From then on each wave holds neighbours of the best one, and whatever a fit of all times so far expects most of.

use std::time::Duration;

use crate::entry::State;
use crate::measure::{Bench, Halt};
use crate::model::{Additive, Axis};
use crate::policy::Policy;
use crate::search::Search;

/// Most candidates in a wave.
const WAVE_MAX: usize = 32;

/// Candidates that are built at once, as many as processors have use for: a small budget reaches some of a wave then.
const BUILT_AT_ONCE: usize = 16;

/// Fewest candidates in a wave, and the part of the space that one makes up.
const WAVE_MIN: usize = 2;
const WAVE_PART: usize = 64;

/// Noise, as a fraction, for each of which a candidate gets another round before it guides the search.
const NOISE_PER_ROUND: f64 = 0.02;

impl Search {
    /// Waves of admission, two rounds each, until all are tried, the roof is reached or nothing more is expected.
    pub fn waves(&mut self, bench: &mut Bench<'_, '_>) -> Result<(), Halt> {
        let policy = bench.task.policy.clone();
        // What an earlier run measured is brought to two rounds before it decides where to look.
        self.compare(bench)?;
        let mut next = self.entries.iter().map(|e| e.risk).min();
        while let Some(risk) = next {
            let (mut stale, mut best) = (0, self.best().map_or(1.0, |(estimate, _)| estimate));
            let mut wave = self.first_wave(&policy, risk);
            while !wave.is_empty() && !self.is_enough(&policy, stale) {
                let cut_short = self.admit_wave(bench, &wave)?;
                self.compare(bench)?;
                if cut_short {
                    return Err(Halt::Budget);
                }
                if self.roof_reached(bench) {
                    return Ok(());
                }
                let now = self.best().map_or(1.0, |(estimate, _)| estimate);
                // A wave of which most could not be timed says nothing about what there is to gain.
                let refused = wave.iter().filter(|&&i| self.entries[i].state == State::Refused).count();
                let nobody = 2 * refused > wave.len();
                stale = match now < best * (1.0 - policy.margin) {
                    true => 0,
                    false => stale + usize::from(!nobody),
                };
                best = best.min(now);
                if self.sampled {
                    let model = self.model();
                    let centers =
                        [self.best().map_or_else(|| self.default_at.clone(), |(_, i)| self.at(i)), model.best()];
                    self.grow(&*bench.subject, &centers);
                }
                wave = self.next_wave(&policy, risk);
            }
            next = self.entries.iter().map(|e| e.risk).filter(|r| *r > risk).min();
        }
        Ok(())
    }

    /// Admits a wave, of which a part at a time is built; says whether the budget ended first, or would while the next
    /// part is built.
    fn admit_wave(&mut self, bench: &mut Bench<'_, '_>, wave: &[usize]) -> Result<bool, Halt> {
        let mut longest = Duration::ZERO;
        for part in wave.chunks(BUILT_AT_ONCE) {
            let left = bench.task.budget.left();
            if left < longest {
                return Ok(true);
            }
            let configs: Vec<_> = part.iter().map(|&i| self.config(i)).collect();
            bench.subject.prepare(&configs);
            longest = longest.max(left.saturating_sub(bench.task.budget.left()));
            if self.admit_all(bench, part)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Two rounds for whoever has fewer, more where the machine is noisy, and the end of whoever is far behind then.
    pub fn compare(&mut self, bench: &mut Bench<'_, '_>) -> Result<(), Halt> {
        for round in 0..2 {
            self.round(bench, round)?;
        }
        self.eliminate(bench);
        let more = ((bench.noise() / NOISE_PER_ROUND) as usize).min(bench.task.policy.search_rounds / 2);
        for round in 2..2 + more {
            self.round(bench, round)?;
            self.eliminate(bench);
        }
        Ok(())
    }

    /// Whether `stale` waves in a row without a gain end the search.
    fn is_enough(&self, policy: &Policy, stale: usize) -> bool {
        let tried = self.legal() - self.in_state(State::Untried).len();
        stale >= policy.stale || (stale > 0 && tried as f64 >= policy.enough * self.legal() as f64)
    }

    fn is_small(&self, policy: &Policy) -> bool {
        self.legal() <= policy.exhaust
    }

    /// Candidates that a search of this space tries, about; for an estimate of its time.
    pub fn planned(&self, policy: &Policy) -> usize {
        if self.is_small(policy) { self.entries.len() } else { (self.entries.len() / 10).max(policy.exhaust / 2) }
    }

    fn untried(&self, risk: u32) -> Vec<usize> {
        self.in_state(State::Untried).into_iter().filter(|&i| self.entries[i].risk == risk).collect()
    }

    fn first_wave(&self, policy: &Policy, risk: u32) -> Vec<usize> {
        let pool = self.untried(risk);
        if self.is_small(policy) {
            return pool;
        }
        let tried = self.entries.iter().any(|e| e.risk == risk && e.state != State::Untried);
        if tried {
            return self.next_wave(policy, risk);
        }
        let mut wave: Vec<usize> = pool.iter().copied().filter(|&i| self.is_ray(i)).collect();
        let rest: Vec<usize> = pool.into_iter().filter(|i| !wave.contains(i)).collect();
        let room = (policy.enough * self.legal() as f64) as usize;
        let n = policy.spread.min(room.saturating_sub(wave.len() + 1));
        let places = (0..n).map(|k| (2 * k + 1) * rest.len() / (2 * n));
        let mut spread: Vec<usize> = places.filter_map(|at| rest.get(at).copied()).collect();
        spread.dedup();
        wave.extend(spread);
        wave
    }

    /// Whether a candidate differs from the default in one value: any name, or a size one rank away, the least or the most.
    fn is_ray(&self, i: usize) -> bool {
        let at = self.at(i);
        let mut changed = (0..at.len()).filter(|p| at[*p] != self.default_at[*p]);
        let (Some(p), None) = (changed.next(), changed.next()) else { return false };
        let (axis, values) = (self.scales[p].axis, self.scales[p].len());
        let steps = at[p].abs_diff(self.default_at[p]);
        axis == Axis::Names || steps == 1 || at[p] == 0 || at[p] + 1 == values
    }

    /// Neighbours of the best and the most promising of all, as far as they are expected to be anywhere near the best.
    fn next_wave(&self, policy: &Policy, risk: u32) -> Vec<usize> {
        let pool = self.untried(risk);
        if self.is_small(policy) {
            return pool;
        }
        let (best, center) = match self.best() {
            Some((estimate, i)) => (estimate.ln(), self.at(i)),
            None => (0.0, self.default_at.clone()),
        };
        let model = self.model();
        let mut hopeful: Vec<(f64, usize)> = pool.into_iter().map(|i| (model.predict(&self.at(i)), i)).collect();
        hopeful.retain(|(expected, _)| *expected <= best + policy.drop_gap.ln_1p());
        hopeful.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let size = (self.legal() / WAVE_PART).clamp(WAVE_MIN, WAVE_MAX);
        let near = hopeful.iter().filter(|(_, i)| self.are_neighbours(&self.at(*i), &center));
        let mut wave: Vec<usize> = near.map(|(_, i)| *i).take(size.div_ceil(2)).collect();
        for (_, i) in hopeful {
            if wave.len() < size && !wave.contains(&i) {
                wave.push(i);
            }
        }
        wave
    }

    /// What all times so far say of every value.
    fn model(&self) -> Additive {
        let timed = (0..self.entries.len()).filter_map(|i| Some((self.at(i), self.entries[i].estimate()?.ln())));
        let timed: Vec<(Vec<usize>, f64)> = timed.collect();
        let default = std::iter::once((&self.default_at[..], 0.0));
        let tried: Vec<(&[usize], f64)> = default.chain(timed.iter().map(|(at, y)| (&at[..], *y))).collect();
        let axes: Vec<(Axis, usize)> = self.scales.iter().map(|s| (s.axis, s.len())).collect();
        Additive::fit(&axes, &tried)
    }

    /// Whether two candidates differ in one value, and by one rank where it is a size.
    fn are_neighbours(&self, a: &[usize], b: &[usize]) -> bool {
        let step = |p: usize| match self.scales[p].axis {
            Axis::Sizes => a[p].abs_diff(b[p]),
            Axis::Names => usize::from(a[p] != b[p]),
        };
        (0..a.len()).map(step).sum::<usize>() == 1
    }
}
