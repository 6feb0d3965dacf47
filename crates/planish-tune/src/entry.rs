//! A candidate of a search: what became of it, and its times.

use crate::stats::median;
use crate::subject::Admitted;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Untried,
    Live,
    Dropped,
    Refused,
}

/// A legal candidate other than the default.
pub(crate) struct Entry {
    /// Which combination of the space it is.
    pub number: u128,
    pub state: State,
    pub risk: u32,
    pub admitted: Option<Admitted>,
    /// Raw times per point; nothing before the first.
    pub ns: Vec<Vec<f64>>,
    /// Times over the default's at the surrounding anchors, per point; nothing before the first.
    pub rel: Vec<Vec<f64>>,
}

impl Entry {
    pub fn new(number: u128) -> Self {
        Entry { number, state: State::Untried, risk: 0, admitted: None, ns: Vec::new(), rel: Vec::new() }
    }

    /// Makes room for times at `points` points, which most candidates of a large space never need.
    pub fn make_room(&mut self, points: usize) {
        self.ns.resize(points, Vec::new());
        self.rel.resize(points, Vec::new());
    }

    pub fn rounds(&self) -> usize {
        self.rel.iter().map(Vec::len).min().unwrap_or(0)
    }

    /// One number per point by `pick`, then their geometric mean; `None` before the first round.
    fn over_points(&self, pick: impl Fn(&[f64]) -> f64) -> Option<f64> {
        (self.rounds() > 0).then(|| (self.rel.iter().map(|r| pick(r).ln()).sum::<f64>() / self.rel.len() as f64).exp())
    }

    /// Estimated time over the default's.
    pub fn estimate(&self) -> Option<f64> {
        self.over_points(middle)
    }

    /// The estimate that is kindest to the candidate while it has few samples.
    pub fn optimistic(&self) -> Option<f64> {
        self.over_points(kind)
    }

    /// The estimate that is harshest to the candidate while it has few samples.
    pub fn pessimistic(&self) -> Option<f64> {
        self.over_points(harsh)
    }

    /// Time over the default's at the point where that is largest.
    pub fn worst_point(&self, pick: impl Fn(&[f64]) -> f64) -> f64 {
        self.rel.iter().filter(|r| !r.is_empty()).map(|r| pick(r)).fold(0.0, f64::max)
    }
}

pub(crate) fn middle(r: &[f64]) -> f64 {
    median(r).expect("a timed point has samples")
}

pub(crate) fn kind(r: &[f64]) -> f64 {
    if r.len() < 4 { r.iter().copied().fold(f64::INFINITY, f64::min) } else { middle(r) }
}

pub(crate) fn harsh(r: &[f64]) -> f64 {
    if r.len() < 4 { r.iter().copied().fold(0.0, f64::max) } else { middle(r) }
}
