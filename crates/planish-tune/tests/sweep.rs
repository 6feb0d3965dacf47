//! Sweeps of scripted subjects in virtual time: every value is gated, none is dropped, and intervals hold the truth.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use planish_tune::scripted::{Fault, Script, Scripted};
use planish_tune::{Budget, Config, Policy, Rejection, Resume, Silent, Sweep, Task, VirtualClock, sweep};

fn v(i: i64) -> Config {
    Config::new().with("V", i)
}

fn run(script: Script, values: &[i64], seconds: u64) -> Sweep {
    let clock = VirtualClock::new();
    let mut subject = Scripted::new(script, clock.clone());
    let cancel = AtomicBool::new(false);
    let task = Task {
        budget: Budget::new(&clock, Duration::from_secs(seconds)),
        cancel: &cancel,
        observer: &mut Silent,
        resume: Resume::default(),
        policy: Policy::default(),
    };
    let configs: Vec<Config> = values.iter().copied().map(v).collect();
    sweep(&mut subject, &configs, 24, task).expect("the default works")
}

/// Far slower than the default is timed to the end too, and each true ratio lies in its interval.
#[test]
fn intervals_hold_the_truth_and_nobody_is_dropped() {
    let ns = [1e5, 0.6e5, 4e5, 1.02e5];
    let (mut inside, mut all) = (0, 0);
    for seed in 0..100 {
        let found = run(Script::of_times(seed, &ns), &[1, 0, 2, 3], 600);
        let order: Vec<Config> = found.swept.iter().map(|s| s.config.clone()).collect();
        assert_eq!(order, [v(1), v(0), v(2), v(3)]);
        assert!(!found.partial && found.rounds == 24, "{} rounds", found.rounds);
        let holds = [1, 2, 3].iter().all(|&i| {
            let swept = found.swept.iter().find(|s| s.config == v(i)).expect("asked for");
            let (truth, interval) = (ns[0] / ns[i as usize], swept.ratios[0]);
            (interval.lo..=interval.hi).contains(&truth)
        });
        inside += usize::from(holds);
        all += 1;
        assert_eq!(found.best().map(|b| &found.swept[b].config), Some(&v(1)));
    }
    assert!(inside * 100 >= 95 * all, "all intervals of {inside} of {all} sweeps hold the truth");
}

/// Two equals, both a third faster: each is as good as the best, and what is 10% behind is not.
#[test]
fn equals_share_the_first_place() {
    for seed in 0..50 {
        let found = run(Script::of_times(seed, &[1e5, 0.66e5, 0.66e5, 0.73e5]), &[0, 1, 2, 3], 600);
        let good: Vec<bool> = (0..4).map(|i| found.as_good_as_best(i, 0.01).expect("24 rounds")).collect();
        assert_eq!(good, [false, true, true, false], "seed {seed}");
    }
}

#[test]
fn the_default_comes_first_where_nobody_asked_for_it_and_wins_where_nothing_is_faster() {
    let found = run(Script::of_times(3, &[1e5, 1.3e5]), &[1], 600);
    assert_eq!(found.swept[0].config, v(0));
    assert_eq!(found.best(), Some(0));
}

#[test]
fn what_the_gate_refuses_has_its_reason_and_no_time() {
    let mut script = Script::of_times(1, &[1e5, 0.1e5, 0.9e5]);
    script.candidates[1].fault = Fault::Wrong;
    let found = run(script, &[0, 1, 2, 7], 600);
    assert!(matches!(found.swept[1].rejection, Some(Rejection::Wrong(_))), "{:?}", found.swept[1]);
    assert!(found.swept[1].times[0].samples_ns.is_empty() && !found.swept[1].timed());
    assert!(matches!(found.swept[3].rejection, Some(Rejection::Constraint(_))), "no value of the space");
    assert_eq!(found.best(), Some(2), "the wrong one would have been the fastest");
}

/// A budget that ends in the middle leaves what is known, and says so.
#[test]
fn a_short_budget_gives_a_partial_sweep() {
    let found = run(Script::of_times(1, &[1e9, 0.9e9]), &[0, 1], 20);
    assert!(found.partial && found.rounds < 24, "{} rounds", found.rounds);
    let back: Sweep = serde_json::from_str(&serde_json::to_string(&found).expect("plain")).expect("reads back");
    assert_eq!(back.swept.len(), found.swept.len());
}
