//! What an outcome keeps for those who judge it later: anchors, what was taken back, and ratios that give the ranking.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use planish_tune::scripted::{Script, Scripted};
use planish_tune::stats::median;
use planish_tune::{Budget, Outcome, Policy, Resume, Silent, Task, VirtualClock, tune};

/// Tunes twelve candidates, the best a fifth faster, on a machine with these spells of slowness.
fn run(throttle: Vec<(f64, f64, f64)>) -> Outcome {
    let mut script = Script::of_times(3, &[1e5, 9e4, 8e4, 9.5e4, 1.1e5, 1e5, 9e4, 8.5e4, 1.2e5, 9.8e4, 1e5, 9.9e4]);
    script.machine.throttle = throttle;
    let clock = VirtualClock::new();
    let mut subject = Scripted::new(script, clock.clone());
    let (cancel, mut observer) = (AtomicBool::new(false), Silent);
    let budget = Budget::new(&clock, Duration::from_secs(5));
    let (resume, policy) = (Resume::default(), Policy::default());
    tune(&mut subject, Task { budget, cancel: &cancel, observer: &mut observer, resume, policy }).expect("it works")
}

#[test]
fn anchors_tell_the_times_of_the_default_in_order() {
    let outcome = run(Vec::new());
    assert_eq!((outcome.budget_s, outcome.discarded, outcome.drifts), (Some(5.0), 0, 0));
    assert!(outcome.anchors.len() > 20 && outcome.anchors.iter().all(|a| a.kept && a.ns.len() == 1));
    assert!(outcome.anchors.is_sorted_by(|a, b| a.at_s <= b.at_s) && outcome.anchors[0].at_s > 0.0);
    let default = outcome.ranking.iter().find(|r| r.config == outcome.default).expect("the default is ranked");
    let kept: Vec<f64> = outcome.anchors.iter().map(|a| a.ns[0]).collect();
    assert_eq!(kept, default.times[0].samples_ns, "the default's samples are its accepted anchors");
}

#[test]
fn what_drift_took_back_is_told_and_not_kept() {
    // Half as fast again from 10 to 30 ms.
    let outcome = run(vec![(1e7, 3e7, 1.5)]);
    let lost = outcome.anchors.iter().filter(|a| !a.kept).count();
    assert!(outcome.drifts > 0 && outcome.discarded > 0 && lost > 0, "{} drifts", outcome.drifts);
    assert!(outcome.anchors.iter().filter(|a| !a.kept).any(|a| a.ns[0] > 1.3e5), "the slow spell is seen");
}

#[test]
fn the_ranking_follows_from_the_ratios_kept() {
    let outcome = run(Vec::new());
    for ranked in outcome.ranking.iter().filter(|r| r.config != outcome.default) {
        let times = &ranked.times[0];
        assert_eq!(times.speedups.len(), times.samples_ns.len());
        let middle = median(&times.speedups).expect("timed");
        assert!((middle / ranked.speedup - 1.0).abs() < 2e-3, "{middle} against {}", ranked.speedup);
    }
}

#[test]
fn records_of_before_are_read() {
    let outcome = run(Vec::new());
    let mut old = serde_json::to_value(&outcome).expect("plain data");
    let fields = old.as_object_mut().expect("an object");
    for field in ["anchors", "discarded", "budget_s"] {
        fields.remove(field).expect("it is written now");
    }
    for ranked in fields["ranking"].as_array_mut().expect("a list") {
        for times in ranked["times"].as_array_mut().expect("a list") {
            times.as_object_mut().expect("an object").remove("speedups");
        }
    }
    let read: Outcome = serde_json::from_value(old).expect("an older record");
    assert_eq!((read.anchors.len(), read.discarded, read.budget_s), (0, 0, None));
    assert_eq!((read.choice, read.counts), (outcome.choice, outcome.counts));
}
