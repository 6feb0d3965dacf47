//! One budget that everything charges: it holds, says what is coming, returns the best so far, and is gone on with.

mod common;

use std::time::Duration;

use common::{long, run, run_with, v};
use planish_tune::scripted::{Fault, Script};
use planish_tune::{Event, Policy, Resume, Value, Verdict};

fn within(script: Script, limit: Duration) -> common::Run {
    run_with(script, limit, Policy::default(), Resume::default())
}

/// Kernels of 80 ms in a budget of ten seconds: the warm-up takes a tenth of it at most, or three runs.
#[test]
fn a_warm_up_of_slow_kernels_is_bounded() {
    for (ns, limit_s) in [(8e7, 10.0), (8e7, 1.0), (3e8, 60.0), (1e6, 10.0)] {
        let run = within(Script::of_times(1, &[ns, 0.9 * ns, 1.1 * ns]), Duration::from_secs_f64(limit_s));
        let warm = run.subject.timed.iter().take_while(|c| **c == v(0)).count() as f64;
        assert!(warm <= (0.1 * limit_s * 1e9 / ns).max(3.0) + 2.0, "{warm} runs of {ns} ns before the first candidate");
        assert!(run.outcome.spent_s <= limit_s + 1e-9 * ns, "{} of {limit_s} s", run.outcome.spent_s);
    }
}

/// Warm-up, compiling, gating, timing, cooling: each alone can eat a budget, and none makes it run over by more than one.
#[test]
fn every_phase_charges_the_one_budget() {
    let limit = Duration::from_secs(5);
    let slow_compiler = |s: &mut Script| (s.machine.admit_ns, s.machine.admit_idle_ns) = (1.3e9, 1.2e9);
    let slow_kernel = |s: &mut Script| s.candidates.iter_mut().for_each(|c| c.ns = vec![4e8]);
    let slow_hand_over = |s: &mut Script| s.machine.overhead_ns = 1e8;
    let never_settles = |s: &mut Script| {
        let swing = |i: i32| (f64::from(i) * 4e6, if i % 2 == 0 { 1.0 } else { 2.5 });
        s.machine.drift = (0..4000).map(swing).collect();
    };
    type Change = dyn Fn(&mut Script);
    let cases: [(&str, &Change, f64, Duration); 4] = [
        ("compiling", &slow_compiler, 1.3, limit),
        ("timing", &slow_kernel, 0.4, limit),
        ("handing over", &slow_hand_over, 0.11, limit),
        ("cooling", &never_settles, 0.01, limit / 50),
    ];
    for (what, make, one, limit) in cases {
        let mut script = Script::of_times(2, &[1e6; 60]);
        make(&mut script);
        let outcome = within(script, limit).outcome;
        assert!(outcome.spent_s <= limit.as_secs_f64() + one, "{what}: {} s", outcome.spent_s);
        assert!(outcome.partial && outcome.choice == v(0), "{what}: {}", outcome.sentence("x"));
        assert!(outcome.sentence("x").contains("stopped early"), "{what}: {}", outcome.sentence("x"));
    }
}

/// The end is known before the first thing that can take long, and what is left shrinks to nothing.
#[test]
fn what_is_left_is_told_in_the_first_two_seconds() {
    let mut script = Script::of_times(3, &[1e6; 40]);
    script.machine.admit_ns = 9e9;
    for limit in [Duration::from_secs(20), Duration::from_secs(60)] {
        let run = within(script.clone(), limit);
        let told: Vec<(f64, f64)> = run
            .events
            .iter()
            .filter_map(|e| match e {
                Event::Progress { spent_s, left_s } => Some((*spent_s, *left_s)),
                _ => None,
            })
            .collect();
        assert!(told[0].0 <= 2.0, "first told after {} s", told[0].0);
        assert!(told.iter().all(|(spent, left)| spent + left <= limit.as_secs_f64() + 1e-6), "{told:?}");
    }
    // Where the budget is no limit, the estimate is one: within three times the truth from the first wave on.
    let run = within(Script::of_times(3, &[1e6; 40]), long());
    let after_warm_up = run.events.iter().filter_map(|e| match e {
        Event::Progress { spent_s, left_s } if *spent_s > 0.0 => Some(spent_s + left_s),
        _ => None,
    });
    let first = after_warm_up.into_iter().find(|end| *end < 1000.0).expect("an estimate of its own");
    assert!(
        (run.outcome.spent_s / 3.0..run.outcome.spent_s * 3.0).contains(&first),
        "{first}, {}",
        run.outcome.spent_s
    );
}

/// The budget ends in the search, in the finals or never: the best proven so far, or the default with the reason.
#[test]
fn a_hard_budget_returns_the_best_so_far_and_says_so() {
    let script = || Script::of_times(5, &[2e7, 1.4e7, 1.2e7, 1.9e7, 2.2e7, 1e7]);
    let mut seen = (false, false);
    for ms in [100, 400, 900, 2000, 4000, 8000, 60_000] {
        let outcome = within(script(), Duration::from_millis(ms)).outcome;
        match &outcome.verdict {
            Verdict::Promoted { lo, .. } => {
                assert!(*lo >= 1.01 && outcome.choice != v(0), "{ms}: {lo}");
                seen.1 = true;
            }
            Verdict::Undecided(why) => {
                assert!(outcome.partial && outcome.choice == v(0) && !why.is_empty(), "{ms}: {why}");
                seen.0 = true;
            }
            Verdict::KeptDefault => assert!(ms == 100, "{ms} ms"),
        }
    }
    assert_eq!(seen, (true, true));
}

/// Cut anywhere, a run is gone on with: no refusal is asked for again, no round of the search or the finals is repeated.
#[test]
fn a_second_run_goes_on_where_the_first_was_cut() {
    let ns = [1e5, 0.9e5, 1.2e5, 1.6e5, 1e5, 0.97e5, 0.93e5, 5e5];
    let script = |seed| Script::of_times(seed, &ns).fault(4, Fault::Wrong);
    let whole = run(script(4));
    let policy = Policy::default();
    for cut in (0..whole.events.len()).step_by(whole.events.len() / 40) {
        let mut resume = Resume::default();
        whole.events[..cut].iter().for_each(|e| resume.absorb(e));
        let refused: Vec<_> = resume.rejected.iter().map(|(c, _)| c.clone()).collect();
        let known = |c: &planish_tune::Config| resume.measured.iter().filter(|m| m.0 == *c).count();
        let before: Vec<usize> = (0..8).map(|i| known(&v(i))).collect();
        let again = run_with(script(4 + cut as u64), long(), policy.clone(), resume);
        assert_eq!(again.outcome.choice, whole.outcome.choice, "cut at {cut}");
        assert!(
            refused.iter().all(|c| !again.subject.admitted.contains(c)),
            "cut at {cut}: a refusal was asked for again"
        );
        for r in again.outcome.ranking.iter().filter(|r| r.config != v(0)) {
            let i = usize::try_from(r.config.int("V").expect("a number")).expect("small");
            let searched =
                again.events.iter().filter(|e| matches!(e, Event::Measured { config, .. } if *config == r.config));
            let rounds = searched.count() + before[i];
            assert!(rounds <= policy.search_rounds, "cut at {cut}: ({}) has {rounds} rounds", r.config);
        }
        let pairs = again.outcome.finals.iter().map(|f| f.pairs).max().unwrap_or(0);
        assert!(pairs <= policy.tie_rounds, "cut at {cut}: {pairs} pairs");
        let spare = whole.subject.timed.iter().filter(|c| **c != v(0)).count();
        let taken = again.subject.timed.iter().filter(|c| **c != v(0)).count();
        assert!(taken <= spare + 80, "cut at {cut}: {taken} timings of candidates after {spare}");
    }
    // Nothing was left to do: only the default is warmed up and the verdict repeated.
    let mut resume = Resume::default();
    whole.events.iter().for_each(|e| resume.absorb(e));
    let again = run_with(script(99), long(), policy, resume);
    assert_eq!(again.outcome.choice, whole.outcome.choice);
    assert!(again.subject.timed.iter().all(|c| *c == v(0)), "{:?}", again.subject.timed);
}

/// 4096 configurations with one smooth valley that depends on pairs of parameters too: a tenth is tried, within 1%.
#[test]
fn a_grid_is_searched_with_a_tenth_of_the_evaluations() {
    let values: Vec<Value> = (0..8).map(|p| Value::Int(1 << p)).collect();
    let params: Vec<_> = ["A", "B", "C", "D"].iter().map(|n| ((*n).to_owned(), values.clone())).collect();
    let at = |c: &planish_tune::Config, name: &str| (c.int(name).expect("a number") as f64).log2();
    let truth = |c: &planish_tune::Config| {
        let (a, b, c, d) = (at(c, "A"), at(c, "B"), at(c, "C"), at(c, "D"));
        vec![1e5 * (1.0 + 0.02 * ((a - 5.0).powi(2) + (b - 2.0).powi(2) + (a + c - 9.0).powi(2) + (d - 1.0).powi(2)))]
    };
    for seed in 0..4 {
        let run = run(Script::of_grid(seed, params.clone(), truth));
        let regret = truth(&run.outcome.choice)[0] / 1e5 - 1.0;
        assert!(regret <= 0.01, "seed {seed}: regret {regret}: {}", run.outcome.sentence("grid"));
        assert!(run.subject.admitted.len() < 410, "seed {seed}: {} of 4096 tried", run.subject.admitted.len());
    }
}

/// A thousand candidates for one shape: the number of runs is bounded by elimination, not by their product.
#[test]
fn runs_are_bounded_by_elimination() {
    let mut rng = planish_tune::scripted::Rng::new(9);
    let ns: Vec<f64> = (0..1870).map(|i| if i == 0 { 1e5 } else { 0.9e5 * (1.2 * rng.uniform()).exp() }).collect();
    let policy = Policy { exhaust: usize::MAX, ..Policy::default() };
    let run = run_with(Script::of_times(1, &ns), long(), policy, Resume::default());
    assert!(run.outcome.samples < 4 * 1870, "{} timings", run.outcome.samples);
    assert!(run.outcome.counts.untried == 0 && !run.outcome.partial);
}
