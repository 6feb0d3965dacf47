//! What a tuning run tells its caller as it happens, and what an interrupted run can be resumed from.

use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::outcome::Verdict;
use crate::subject::{Point, Rejection};

/// One thing that happened while tuning; a log of these is enough to resume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// The space was listed: all combinations, and those that satisfy every constraint.
    Listed {
        /// Combinations of parameter values.
        candidates: usize,
        /// Of them, legal.
        legal: usize,
    },
    /// A candidate passed the gate.
    Admitted {
        /// The candidate.
        config: Config,
        /// Its worst error over the bound.
        error_over_bound: f64,
    },
    /// A candidate was refused or dropped.
    Rejected {
        /// The candidate.
        config: Config,
        /// Why.
        rejection: Rejection,
    },
    /// A candidate was timed once.
    Measured {
        /// The candidate.
        config: Config,
        /// The shape.
        point: Point,
        /// Nanoseconds of one execution.
        ns: f64,
        /// Executions in the batch.
        reps: u32,
        /// Its time over the default's at the last anchor.
        ratio: f64,
    },
    /// The machine drifted: the last `discarded` measurements do not count.
    Drifted {
        /// Change of the default's time, as a fraction.
        change: f64,
        /// Measurements taken back.
        discarded: usize,
    },
    /// The search has come to its own end, not to that of its time.
    Searched {
        /// Legal candidates that were tried, the default included.
        tried: usize,
    },
    /// The finals begin.
    Finalists {
        /// Who is re-timed.
        configs: Vec<Config>,
    },
    /// One paired round of the finals for one finalist.
    Paired {
        /// The finalist.
        config: Config,
        /// The default's time over the finalist's, per point.
        speedups: Vec<f64>,
        /// It is the last of its round: rounds count when they are whole.
        #[serde(default)]
        ends_round: bool,
    },
    /// Other work takes more of the processors than is fair to compare beside.
    Busy {
        /// Its share so far.
        share: f64,
    },
    /// How far the run is.
    Progress {
        /// Seconds spent.
        spent_s: f64,
        /// Seconds that are expected to be left, at most the rest of the budget.
        left_s: f64,
    },
    /// The run is over.
    Decided {
        /// The configuration to use.
        choice: Config,
        /// Why.
        verdict: Verdict,
    },
}

/// Hears every event at once, so that the caller can save partial work and show progress.
pub trait Observer {
    /// Called right after the event.
    fn event(&mut self, event: &Event);
}

/// Hears nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Observer for Silent {
    fn event(&mut self, _: &Event) {}
}

/// Keeps everything.
impl Observer for Vec<Event> {
    fn event(&mut self, event: &Event) {
        self.push(event.clone());
    }
}

/// What an earlier, interrupted run of the same subject and policy already knows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Resume {
    /// Refusals; these candidates are neither admitted nor timed again.
    pub rejected: Vec<(Config, Rejection)>,
    /// Timings of the search as (candidate, point, nanoseconds, ratio to the default); they are not repeated.
    pub measured: Vec<(Config, Point, f64, f64)>,
    /// Whole paired rounds of the finals as (finalist, speedup per point), used when the same finalists are chosen.
    pub paired: Vec<(Config, Vec<f64>)>,
    /// Those of a round that has not ended.
    #[serde(default)]
    pub round: Vec<(Config, Vec<f64>)>,
    /// The search came to its own end.
    #[serde(default)]
    pub searched: bool,
    /// Who was in the finals.
    #[serde(default)]
    pub finalists: Vec<Config>,
    /// Finals before those, which others took part in.
    #[serde(default)]
    pub finals_before: u32,
    /// The largest share of the processors that other work took meanwhile, where that was too much.
    #[serde(default)]
    pub by_others: Option<f64>,
}

impl Resume {
    /// Takes in one event of the earlier run, in order.
    pub fn absorb(&mut self, event: &Event) {
        match event {
            // Search and finals were beside the same work: nothing of them is gone on with.
            Event::Rejected { rejection: Rejection::Busy(_), .. } => *self = Resume::default(),
            Event::Rejected { config, rejection } => self.rejected.push((config.clone(), rejection.clone())),
            Event::Measured { config, point, ns, ratio, .. } => {
                self.measured.push((config.clone(), *point, *ns, *ratio));
            }
            Event::Drifted { discarded, .. } => {
                self.measured.truncate(self.measured.len().saturating_sub(*discarded));
            }
            Event::Searched { .. } => self.searched = true,
            Event::Finalists { configs } => {
                self.finals_before = self.finals_before_those_of(configs);
                self.finalists.clone_from(configs);
                self.paired.clear();
                self.round.clear();
            }
            Event::Paired { config, speedups, ends_round } => {
                self.round.push((config.clone(), speedups.clone()));
                if *ends_round {
                    self.paired.append(&mut self.round);
                }
            }
            Event::Busy { share } => self.by_others = Some(self.by_others.map_or(*share, |most| most.max(*share))),
            Event::Listed { .. } | Event::Admitted { .. } | Event::Progress { .. } | Event::Decided { .. } => {}
        }
    }

    /// How many finals there were before those of `configs`, which go on where they are the same.
    pub fn finals_before_those_of(&self, configs: &[Config]) -> u32 {
        self.finals_before + u32::from(!self.finalists.is_empty() && self.finalists != configs)
    }
}
