//! Other work on the processors while a kernel is tuned: a win on fewer threads is kept as evidence and not promoted.

mod common;

use std::sync::atomic::AtomicBool;

use common::{long, refusal, run, run_with};
use planish_tune::scripted::{Script, Scripted};
use planish_tune::{
    Budget, Claim, Config, Event, Policy, Rejection, Resume, Silent, Task, Trial, Value, Verdict, VirtualClock, recheck,
};

fn at(threads: i64, rows: i64) -> Config {
    Config::new().with("THREADS", threads).with("ROWS", rows)
}

/// Two threads by default; `one` and `rows` are the times of one thread and of other rows over the default's.
fn script(share: f64, one: f64, rows: f64) -> Script {
    let values = |all: [i64; 2]| all.map(Value::Int).to_vec();
    let params = vec![("THREADS".to_owned(), values([2, 1])), ("ROWS".to_owned(), values([1, 2]))];
    let factor =
        |name: &str, default: i64, c: &Config, other: f64| if c.int(name) == Some(default) { 1.0 } else { other };
    let mut script =
        Script::of_grid(7, params, |c| vec![2e8 * factor("THREADS", 2, c, one) * factor("ROWS", 1, c, rows)]);
    script.machine.others = vec![(0.0, f64::INFINITY, share)];
    script
}

#[test]
fn fewer_threads_that_win_beside_other_work_are_evidence_and_no_choice() {
    let run = run(script(0.48, 0.7, 1.1));
    let told = run.outcome.sentence("x");
    assert_eq!(run.outcome.choice, run.outcome.default, "{told}");
    assert!(
        matches!(&run.outcome.verdict, Verdict::Undecided(why) if why.contains("took 48% of the processors")),
        "{told}"
    );
    assert!(matches!(refusal(&run.outcome, &at(1, 1)), Some(Rejection::Busy(share)) if (share - 0.48).abs() < 0.02));
    let judged = run.outcome.finals.iter().find(|f| f.config == at(1, 1)).expect("its pairs are kept");
    assert!(judged.points[0].lo > 1.3, "{judged:?}");
    assert!(run.outcome.busy().is_some() && run.outcome.by_others.is_some_and(|share| share > 0.4), "{told}");
    assert!(run.subject.timed.contains(&at(1, 1)));
}

#[test]
fn as_many_threads_are_promoted_beside_other_work_and_what_was_held_back_is_measured_again() {
    let run = run(script(0.48, 0.7, 0.9));
    assert_eq!(run.outcome.choice, at(2, 2), "{}", run.outcome.sentence("x"));
    assert!(matches!(run.outcome.verdict, Verdict::Promoted { .. }) && run.outcome.busy().is_some());
    // Others are held back at once and not one after another: each would be paired to the last look.
    assert!([1, 2].into_iter().all(|rows| matches!(refusal(&run.outcome, &at(1, rows)), Some(Rejection::Busy(_)))));
}

#[test]
fn a_little_other_work_is_no_reason() {
    for share in [0.0, 0.08] {
        let outcome = run(script(share, 0.7, 1.1)).outcome;
        assert!(outcome.choice == at(1, 1) && outcome.busy().is_none(), "{share}: {}", outcome.sentence("x"));
    }
    let mut elsewhere = script(0.48, 0.7, 1.1);
    // Such a parameter of a card is of the threads of a group, which other work on the host does not touch.
    elsewhere.params[0].0 = "LANES".to_owned();
    for c in &mut elsewhere.candidates {
        let (lanes, rows) = (c.config.int("THREADS").expect("a number"), c.config.int("ROWS").expect("a number"));
        c.config = Config::new().with("LANES", lanes).with("ROWS", rows);
    }
    assert!(matches!(run(elsewhere).outcome.verdict, Verdict::Promoted { .. }));
}

/// What a run that was cut off has measured beside other work decides nothing in the next, which finds the machine quiet.
#[test]
fn pairs_of_a_busy_run_promote_nothing_later() {
    let first = run(script(0.48, 0.7, 1.1));
    let cut = first.events.iter().rposition(|e| matches!(e, Event::Paired { .. })).expect("there were finals");
    let mut resume = Resume::default();
    first.events[..=cut].iter().for_each(|e| resume.absorb(e));
    assert!(resume.by_others.is_some_and(|share| share > 0.4) && !resume.paired.is_empty());
    let second = run_with(script(0.0, 0.7, 1.1), long(), Policy::default(), resume);
    assert!(second.outcome.busy().is_some(), "{}", second.outcome.sentence("x"));
    let mut resume = Resume::default();
    first.events.iter().for_each(|e| resume.absorb(e));
    assert!(resume.paired.is_empty() && resume.measured.is_empty(), "what was held back is measured from the start");
    let third = run_with(script(0.0, 1.3, 0.9), long(), Policy::default(), resume);
    assert_eq!(third.outcome.choice, at(2, 2), "{}", third.outcome.sentence("x"));
}

#[test]
fn a_prior_of_fewer_threads_is_not_confirmed_beside_other_work() {
    let trial = |share| {
        let clock = VirtualClock::new();
        let mut subject = Scripted::new(script(share, 0.7, 1.1), clock.clone());
        let task = Task {
            budget: Budget::new(&clock, long()),
            cancel: &AtomicBool::new(false),
            observer: &mut Silent,
            resume: Resume::default(),
            policy: Policy::default(),
        };
        recheck(&mut subject, task, &Claim::Beats(at(1, 1))).expect("the default works")
    };
    assert!(matches!(trial(0.48), Trial::Fell(why) if why.contains("% of the processors")));
    assert!(matches!(trial(0.02), Trial::Held(outcome) if outcome.by_others.is_some_and(|share| share < 0.1)));
}
