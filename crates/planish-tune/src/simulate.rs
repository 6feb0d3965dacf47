//! The search replayed on recorded spaces: how much it tries, how far its pick is from the best, how alike it decides.
//!
//! Nothing here is a second search: `tune` runs on a scripted subject that draws from the recorded times.
//!
//! What the search loses is what an exhaustive one finds beyond it: the same policy that tries everything, with the same
//! gate and the same noise.
//! The best of hundreds of noisy medians is also the luckiest, so picks are judged by samples that nobody chose by: both
//! searches draw from one half of the rounds, and the other half says how fast their picks are.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use serde::Serialize;

use crate::budget::{Budget, VirtualClock};
use crate::config::Config;
use crate::error::Error;
use crate::event::{Resume, Silent};
use crate::measure::Task;
use crate::outcome::{Outcome, Verdict};
use crate::policy::Policy;
use crate::recorded::{About, Recorded, stage};
use crate::scripted::{Script, Scripted};
use crate::search::tune;
use crate::space::Space;
use crate::stats::median;

/// How a search did on one recorded space.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Simulated {
    /// What was recorded.
    #[serde(flatten)]
    pub about: About,
    /// Replays, each with a seed of its own.
    pub seeds: u64,
    /// Legal configurations.
    pub legal: usize,
    /// Combinations of which nothing is recorded.
    pub missing: usize,
    /// What an exhaustive search tried and took, on average, its warm-up, anchors and finals included.
    pub exhaustive: Cost,
    /// What a replay of the search tried and took.
    pub spent: Cost,
    /// Mean virtual seconds of a replay.
    pub seconds: f64,
    /// The fastest configuration by the median of all its samples.
    pub best: Config,
    /// The default's time over that of the picks, judged by the other half of the samples.
    pub gain: Gain,
    /// How much slower the picks of replays are than those of exhaustive searches, as a fraction: mean, may be below 0.
    pub regret: f64,
    /// The same, and 0 where it is within the margin: a tie.
    pub regret_beyond_margin: f64,
    /// The worst pick of all replays.
    pub regret_max: f64,
    /// Share of replays that took the most frequent choice.
    pub stability: f64,
    /// How often each configuration was chosen, the most frequent first.
    pub choices: Vec<(Config, u64)>,
    /// Replays by verdict: promoted, default kept, undecided.
    pub verdicts: BTreeMap<&'static str, u64>,
    /// Promotions of a configuration that is no faster than the default by the median of all its samples.
    pub false_promotions: u64,
}

/// The default's time over that of what is picked; geometric means.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Gain {
    /// By an exhaustive search with the same gate.
    pub exhaustive: f64,
    /// By this search.
    pub search: f64,
    /// By taking the fastest median of all recorded ones, with no gate.
    pub fastest: f64,
}

/// Configurations tried, the default included, and timings taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Cost {
    /// Configurations that were gated.
    pub configs: f64,
    /// Timings.
    pub timings: f64,
}

/// How a search did on several spaces together.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Total {
    /// Configurations tried, over those of exhaustive searches.
    pub configs_share: f64,
    /// Timings taken, over those of exhaustive searches.
    pub timings_share: f64,
    /// Mean regret, weighted by the spaces' shares of a token.
    pub regret: f64,
    /// The same where a pick within the margin counts as no regret.
    pub regret_beyond_margin: f64,
    /// The least stable space's share of replays that took its most frequent choice.
    pub stability_min: f64,
}

/// Runs the search on `recorded` once for each of `seeds` seeds, with `budget` of virtual time each.
///
/// Errors when the default cannot be tuned against, which a recording excludes.
pub fn simulate(recorded: &Recorded, policy: &Policy, seeds: u64, budget: Duration) -> Result<Simulated, Error> {
    let halves = [recorded.half(false), recorded.half(true)];
    let stages = [stage(&halves[0]), stage(&halves[1])];
    let everything = Policy { exhaust: usize::MAX, ..policy.clone() };
    let mut replays = Vec::new();
    for seed in 0..seeds.max(1) {
        let half = (seed % 2) as usize;
        let search = replay(&stages[half], policy, seed, budget)?;
        let exhaustive = replay(&stages[half], &everything, seed, budget)?;
        replays.push(Replay { half, search, exhaustive });
    }
    Ok(judge(recorded, policy, &halves, &replays))
}

/// What both searches found on one half of the samples.
struct Replay {
    half: usize,
    search: Outcome,
    exhaustive: Outcome,
}

fn replay(stage: &(Arc<Script>, Space), policy: &Policy, seed: u64, budget: Duration) -> Result<Outcome, Error> {
    let clock = VirtualClock::new();
    let mut subject = Scripted::over(Arc::clone(&stage.0), stage.1.clone(), seed, clock.clone());
    let task = Task {
        budget: Budget::new(&clock, budget),
        cancel: &AtomicBool::new(false),
        observer: &mut Silent,
        resume: Resume::default(),
        policy: policy.clone(),
    };
    tune(&mut subject, task)
}

/// Median time of a configuration over the default's, geometric mean over points.
fn over_default(ns: &[Vec<f64>], default: &[Vec<f64>]) -> f64 {
    let one = |(a, b): (&Vec<f64>, &Vec<f64>)| match (median(a), median(b)) {
        (Some(a), Some(b)) => (a / b).ln(),
        _ => f64::INFINITY,
    };
    (ns.iter().zip(default).map(one).sum::<f64>() / ns.len().max(1) as f64).exp()
}

/// Log of every configuration's median time over the default's.
fn truth(recorded: &Recorded) -> BTreeMap<&Config, f64> {
    let default = recorded.timed().next().expect("the default has times").1;
    recorded.timed().map(|(c, ns)| (c, over_default(ns, default).ln())).collect()
}

fn fastest(truth: &BTreeMap<&Config, f64>) -> Config {
    let best = truth.iter().min_by(|a, b| a.1.total_cmp(b.1)).expect("the default is there");
    (*best.0).clone()
}

fn cost<'a>(outcomes: impl Iterator<Item = &'a Outcome> + Clone) -> Cost {
    let n = outcomes.clone().count() as f64;
    Cost {
        configs: outcomes.clone().map(|o| o.counts.tried() as f64).sum::<f64>() / n,
        timings: outcomes.map(|o| o.samples as f64).sum::<f64>() / n,
    }
}

fn judge(recorded: &Recorded, policy: &Policy, halves: &[Recorded; 2], replays: &[Replay]) -> Simulated {
    let (whole, split) = (truth(recorded), [truth(&halves[0]), truth(&halves[1])]);
    let fast = [fastest(&split[0]), fastest(&split[1])];
    let n = replays.len() as f64;
    let mean = |of: &dyn Fn(&Replay) -> f64| replays.iter().map(of).sum::<f64>() / n;
    // Seen by one half, judged by the other.
    let pick = |r: &Replay| split[1 - r.half][&r.search.choice];
    let rival = |r: &Replay| split[1 - r.half][&r.exhaustive.choice];
    let regret = mean(&|r| (pick(r) - rival(r)).exp() - 1.0);
    let regret_max = replays.iter().map(|r| (pick(r) - rival(r)).exp() - 1.0).fold(f64::NEG_INFINITY, f64::max);
    let mut choices: BTreeMap<&Config, u64> = BTreeMap::new();
    let mut verdicts: BTreeMap<&'static str, u64> = BTreeMap::new();
    let mut false_promotions = 0;
    for o in replays.iter().map(|r| &r.search) {
        *choices.entry(&o.choice).or_default() += 1;
        let verdict = match o.verdict {
            Verdict::Promoted { .. } => "promoted",
            Verdict::KeptDefault => "default kept",
            Verdict::Undecided(_) => "undecided",
        };
        *verdicts.entry(verdict).or_default() += 1;
        false_promotions += u64::from(verdict == "promoted" && whole[&o.choice] >= 0.0);
    }
    let mut choices: Vec<(Config, u64)> = choices.into_iter().map(|(c, n)| (c.clone(), n)).collect();
    choices.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
    Simulated {
        about: recorded.about().clone(),
        seeds: replays.len() as u64,
        legal: recorded.legal(),
        missing: recorded.missing(),
        exhaustive: cost(replays.iter().map(|r| &r.exhaustive)),
        spent: cost(replays.iter().map(|r| &r.search)),
        seconds: mean(&|r| r.search.spent_s),
        best: fastest(&whole),
        gain: Gain {
            exhaustive: mean(&|r| -rival(r)).exp(),
            search: mean(&|r| -pick(r)).exp(),
            fastest: mean(&|r| -split[1 - r.half][&fast[r.half]]).exp(),
        },
        regret,
        regret_beyond_margin: if regret <= policy.margin { 0.0 } else { regret },
        regret_max,
        stability: choices.first().map_or(0.0, |(_, times)| *times as f64 / n),
        choices,
        verdicts,
        false_promotions,
    }
}

impl Total {
    /// The total over `spaces`; shares are taken relative to their sum, and as equal where there are none.
    pub fn of(spaces: &[Simulated]) -> Total {
        let sum = |of: &dyn Fn(&Simulated) -> f64| spaces.iter().map(of).sum::<f64>();
        let shares = sum(&|s| s.about.share);
        let weight = |s: &Simulated| if shares > 0.0 { s.about.share / shares } else { 1.0 / spaces.len() as f64 };
        Total {
            configs_share: sum(&|s| s.spent.configs) / sum(&|s| s.exhaustive.configs),
            timings_share: sum(&|s| s.spent.timings) / sum(&|s| s.exhaustive.timings),
            regret: sum(&|s| weight(s) * s.regret),
            regret_beyond_margin: sum(&|s| weight(s) * s.regret_beyond_margin),
            stability_min: spaces.iter().map(|s| s.stability).fold(1.0, f64::min),
        }
    }
}
