//! A prior on trial: a choice that was right and fast somewhere else is gated here and paired with the default.
//!
//! It takes a few dozen timings where a search takes thousands. What holds is as good as tuned; what falls is tuned anew.

use crate::config::Config;
use crate::error::Error;
use crate::finals::{Finalist, Judged, judge};
use crate::measure::{Bench, Halt, Miss, Task, default_failed};
use crate::outcome::{Counts, Outcome, Ranked, Times, Verdict};
use crate::policy::Policy;
use crate::stats::median;
use crate::subject::Subject;

/// Pairs after which the one candidate is judged.
const LOOKS: [usize; 2] = [8, 16];

/// Most timings of the default that warm the machine.
const WARM_MAX: usize = 12;

/// What a prior claims.
#[derive(Clone, Debug, PartialEq)]
pub enum Claim {
    /// This config beats the default.
    Beats(Config),
    /// Nothing beats the default, and this config came nearest.
    NothingBeats(Config),
}

impl Claim {
    /// The one config that is tried against the default.
    pub fn tried(&self) -> &Config {
        match self {
            Claim::Beats(config) | Claim::NothingBeats(config) => config,
        }
    }
}

/// How a trial ended.
#[derive(Clone, Debug)]
pub enum Trial {
    /// The claim holds here too; the evidence for it.
    Held(Box<Outcome>),
    /// It does not, or could not be settled, for this reason: tune the whole space.
    Fell(String),
}

/// Gates the claim's config on this machine and pairs it with the default, few samples of each.
///
/// # Errors
/// When the default is refused or the subject broke, as for `tune`.
pub fn recheck(subject: &mut dyn Subject, mut task: Task<'_>, claim: &Claim) -> Result<Trial, Error> {
    let (space, config) = (subject.space().clone(), claim.tried());
    if let Some(why) = space.violated(config) {
        return Ok(Trial::Fell(format!("{config} is not legal here: {why}")));
    }
    let default = match subject.admit(&space.default) {
        Ok(admitted) => admitted,
        Err(r) => return Err(subject.broken().unwrap_or_else(|| default_failed(&space.default, &r))),
    };
    task.policy = Policy { looks: LOOKS.to_vec(), finalists: 1, warm_max: WARM_MAX, ..task.policy };
    let mut bench = Bench::new(subject, task, default);
    let admitted = match bench.admit(config, std::time::Duration::ZERO) {
        Ok(admitted) => admitted,
        Err(Miss::Refused(r)) => return Ok(Trial::Fell(format!("{config} is refused here: {r}"))),
        Err(Miss::Halt(halt)) => return stopped(halt),
    };
    if let Err(halt) = bench.warm() {
        return stopped(halt);
    }
    bench.finals_begin();
    let mut finalists = [Finalist::new(admitted, &vec![Vec::new(); bench.points.len()])];
    let judged = judge(&mut bench, &mut finalists);
    if let Some(halt) = judged.halt {
        return stopped(halt);
    }
    let [finalist] = finalists;
    let held = match (claim, &judged.verdict) {
        (Claim::Beats(_), Verdict::Promoted { .. }) | (Claim::NothingBeats(_), Verdict::KeptDefault) => true,
        (_, Verdict::Undecided(why)) => return Ok(Trial::Fell(why.clone())),
        _ => false,
    };
    if !held || finalist.refused.is_some() {
        let why = match claim {
            Claim::Beats(_) => "is no faster than the default here",
            Claim::NothingBeats(_) => "is faster than the default here",
        };
        return Ok(Trial::Fell(format!("{config} {why}")));
    }
    Ok(Trial::Held(Box::new(outcome(bench, &finalist, judged))))
}

/// What a trial that ran out of time says.
fn stopped(halt: Halt) -> Result<Trial, Error> {
    match halt {
        Halt::Fatal(error) => Err(error),
        Halt::Budget => Ok(Trial::Fell("its time was over".to_owned())),
        Halt::Cancelled => Ok(Trial::Fell("cancelled".to_owned())),
    }
}

/// The trial as evidence.
fn outcome(bench: Bench<'_, '_>, finalist: &Finalist, judged: Judged) -> Outcome {
    let default = bench.anchors_ns.iter().map(|ns| Times::of(ns, Vec::new())).collect();
    let of = |(ns, logs): (&Vec<f64>, &Vec<f64>)| Times::of(ns, logs.iter().map(|l| l.exp()).collect());
    let tried = finalist.ns.iter().zip(&finalist.logs).map(of).collect();
    let logs: Vec<f64> = finalist.logs.iter().filter_map(|l| median(l)).collect();
    let speedup = (logs.iter().sum::<f64>() / logs.len().max(1) as f64).exp();
    let mut ranking = vec![Ranked::of(&bench.default, 1.0, default), Ranked::of(&finalist.admitted, speedup, tried)];
    ranking.sort_by(|a, b| b.speedup.total_cmp(&a.speedup));
    let counts = Counts { candidates: 2, admitted: 2, timed: 2, ..Counts::default() };
    Outcome { counts, ..bench.outcome(judged, ranking) }
}
