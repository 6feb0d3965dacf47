//! Priors on trial, on scripted subjects in virtual time: what holds, what falls, and how little is measured for it.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use planish_tune::scripted::{Fault, Script, Scripted};
use planish_tune::{Budget, Claim, Config, Outcome, Policy, Resume, Task, Trial, Verdict, VirtualClock, recheck, tune};

fn v(i: i64) -> Config {
    Config::new().with("V", i)
}

fn with<T>(script: Script, limit: Duration, run: impl FnOnce(&mut Scripted, Task<'_>) -> T) -> (T, Scripted) {
    let (clock, cancel) = (VirtualClock::new(), AtomicBool::new(false));
    let mut subject = Scripted::new(script, clock.clone());
    let task = Task {
        budget: Budget::new(&clock, limit),
        cancel: &cancel,
        observer: &mut planish_tune::Silent,
        resume: Resume::default(),
        policy: Policy::default(),
    };
    let result = run(&mut subject, task);
    (result, subject)
}

const LONG: Duration = Duration::from_secs(600);

fn trial(script: Script, claim: &Claim) -> (Trial, Scripted) {
    with(script, LONG, |subject, task| recheck(subject, task, claim).expect("the default works"))
}

#[track_caller]
fn held(trial: Trial) -> Outcome {
    match trial {
        Trial::Held(outcome) => *outcome,
        Trial::Fell(why) => panic!("it fell: {why}"),
    }
}

#[track_caller]
fn fell(trial: Trial) -> String {
    match trial {
        Trial::Held(outcome) => panic!("it held: {}", outcome.sentence("x")),
        Trial::Fell(why) => why,
    }
}

/// Thirty candidates of which number 7 is 15% faster than the default.
fn thirty(seed: u64) -> Script {
    let mut ns = [1e5; 30];
    ns[7] = 0.85e5;
    ns[11] = 1.01e5;
    Script::of_times(seed, &ns)
}

#[test]
fn a_prior_that_holds_costs_a_few_samples_of_two_candidates() {
    for seed in 0..20 {
        let (trial, subject) = trial(thirty(seed), &Claim::Beats(v(7)));
        let outcome = held(trial);
        assert!(matches!(outcome.verdict, Verdict::Promoted { lo, .. } if lo >= 1.01), "{:?}", outcome.verdict);
        assert_eq!((outcome.choice, outcome.counts.timed), (v(7), 2));
        let gated = [v(0), v(7), v(7)];
        assert_eq!(subject.admitted, gated, "both went through the gate, the winner twice, and nobody else was built");
        assert!(subject.timed.iter().all(|c| *c == v(0) || *c == v(7)));
        assert!(subject.timed.len() <= 80, "{} timings", subject.timed.len());
        let (_, whole) = with(thirty(seed), LONG, |s, task| tune(s, task).expect("the default works"));
        assert!(4 * subject.timed.len() < whole.timed.len(), "{} of {}", subject.timed.len(), whole.timed.len());
    }
}

#[test]
fn a_prior_whose_results_are_wrong_here_is_never_timed() {
    let (trial, subject) = trial(thirty(1).fault(7, Fault::Wrong), &Claim::Beats(v(7)));
    assert!(fell(trial).contains("V=7 is refused here: wrong"));
    assert_eq!(subject.timed, []);
}

#[test]
fn a_prior_that_is_no_faster_here_falls() {
    let (slower, _) = trial(thirty(1), &Claim::Beats(v(11)));
    assert_eq!(fell(slower), "V=11 is no faster than the default here");
    let (illegal, subject) = trial(thirty(1), &Claim::Beats(v(99)));
    assert!(fell(illegal).contains("V=99 is not legal here"));
    assert_eq!(subject.admitted, []);
}

/// Equals of the default are confirmed no more often than a search would promote them.
#[test]
fn an_equal_is_confirmed_at_most_at_the_stated_rate() {
    let equal = |seed| trial(Script::of_times(seed, &[1e5, 1e5 / 1.01]), &Claim::Beats(v(1))).0;
    let confirmed = (0..300).filter(|&seed| matches!(equal(seed), Trial::Held(_))).count();
    assert!(confirmed as f64 <= 300.0 * Policy::default().alpha, "{confirmed} of 300");
}

#[test]
fn that_nothing_beats_the_default_is_tried_on_what_came_nearest() {
    let (kept, subject) = trial(thirty(3), &Claim::NothingBeats(v(11)));
    let outcome = held(kept);
    assert_eq!((outcome.verdict, outcome.choice), (Verdict::KeptDefault, v(0)));
    assert!(subject.timed.iter().all(|c| *c == v(0) || *c == v(11)) && subject.timed.len() <= 80);
    let (now_faster, _) = trial(thirty(3), &Claim::NothingBeats(v(7)));
    assert_eq!(fell(now_faster), "V=7 is faster than the default here");
}

#[test]
fn a_trial_without_time_falls_and_a_broken_default_is_an_error() {
    let claim = Claim::Beats(v(7));
    let (short, _) = with(thirty(1), Duration::from_millis(3), |s, task| recheck(s, task, &claim).expect("it works"));
    assert_eq!(fell(short), "its time was over");
    let broken = thirty(1).fault(0, Fault::Wrong);
    let (error, _) = with(broken, LONG, |s, task| recheck(s, task, &claim).expect_err("nothing to compare with"));
    assert!(error.to_string().contains("V=0") && error.next_step().is_some());
}
