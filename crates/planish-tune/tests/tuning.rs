//! The tuner on scripted subjects in virtual time: what it promotes, what it refuses, and when it stops.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use planish_tune::scripted::{Fault, Noise, Script, Scripted};
use planish_tune::{
    Budget, Config, Event, Observer, Outcome, Policy, Rejection, Resume, Subject, Task, Timings, Value, Verdict,
    VirtualClock, tune,
};

fn v(i: i64) -> Config {
    Config::new().with("V", i)
}

/// Tunes `script` with `limit` of virtual time; returns the outcome, its events and the subject.
fn run(script: Script, limit: Duration) -> (Outcome, Vec<Event>, Scripted) {
    run_from(script, limit, Resume::default())
}

fn run_from(script: Script, limit: Duration, resume: Resume) -> (Outcome, Vec<Event>, Scripted) {
    let clock = VirtualClock::new();
    let mut subject = Scripted::new(script, clock.clone());
    let mut events = Vec::new();
    let cancel = AtomicBool::new(false);
    let task = Task {
        budget: Budget::new(&clock, limit),
        cancel: &cancel,
        observer: &mut events,
        resume,
        policy: Policy::default(),
    };
    let outcome = tune(&mut subject, task).expect("the default works");
    (outcome, events, subject)
}

fn long() -> Duration {
    Duration::from_secs(600)
}

#[track_caller]
fn check_choice(script: Script, want: i64) -> Outcome {
    let (outcome, _, _) = run(script, long());
    assert_eq!(outcome.choice, v(want), "{}", outcome.sentence("scripted"));
    assert_eq!(matches!(outcome.verdict, Verdict::Promoted { .. }), want != 0, "{:?}", outcome.verdict);
    outcome
}

fn refusal<'a>(outcome: &'a Outcome, config: &Config) -> Option<&'a Rejection> {
    outcome.rejected.iter().find(|(c, _)| c == config).map(|(_, r)| r)
}

#[test]
fn two_runs_decide_alike_to_the_byte() {
    let once = || serde_json::to_string(&run(Script::of_times(5, &[1e5, 0.9e5, 0.95e5]), long()).0).expect("plain");
    assert_eq!(once(), once());
    let back: Outcome = serde_json::from_str(&once()).expect("evidence reads back");
    assert_eq!(serde_json::to_string(&back).expect("plain"), once());
}

#[test]
fn a_heavy_slow_tail_hides_nothing() {
    let noise = Noise::Tailed { sigma: 0.01, share: 0.05, factor: 4.0 };
    let missed = (0..100).filter_map(|seed| {
        let outcome = run(Script::of_times(seed, &[1e5, 0.85e5, 1e5]).noise(noise), long()).0;
        (outcome.choice != v(1)).then(|| format!("{seed}: {}: {:?}", outcome.sentence("x"), refusal(&outcome, &v(1))))
    });
    let missed: Vec<String> = missed.collect();
    assert!(missed.len() <= 5, "{missed:#?}");
}

/// Fast in 70% of its runs and very slow in the rest: a fast median but a slow mean, so promotions stay within `alpha`.
#[test]
fn two_speeds_are_not_a_gain() {
    let promoted = (0..200).filter(|&seed| {
        let mut script = Script::of_times(seed, &[1e5, 0.95e5, 1e5]);
        script.candidates[1].noise = Noise::Tailed { sigma: 0.005, share: 0.3, factor: 1.6 };
        run(script, long()).0.choice != v(0)
    });
    let count = promoted.count();
    assert!(count as f64 <= 200.0 * Policy::default().alpha, "{count} of 200");
}

#[test]
fn a_throttle_step_is_discarded_and_measured_again() {
    for seed in 0..20 {
        let mut script = Script::of_times(seed, &[1e6, 0.9e6, 1.0e6, 1.02e6, 0.97e6, 1.0e6]);
        script.machine.throttle = vec![(60e6, 300e6, 1.5), (700e6, 900e6, 1.3)];
        let outcome = check_choice(script, 1);
        assert!(outcome.drifts > 0);
        let slow = outcome.ranking.iter().flat_map(|r| &r.times[0].samples_ns).filter(|ns| **ns > 1.2e6).count();
        assert_eq!(slow, 0, "throttled samples in the evidence");
    }
}

/// The clock drops for good: the new level is adopted after the retries, and ratios still find the winner.
#[test]
fn a_lasting_throttle_is_adopted() {
    let mut script = Script::of_times(3, &[1e6, 0.9e6, 1.0e6]);
    script.machine.throttle = vec![(30e6, 1e15, 2.0)];
    let outcome = check_choice(script, 1);
    assert!(outcome.drifts > 0);
}

#[test]
fn a_machine_that_never_settles_is_undecided() {
    let mut script = Script::of_times(3, &[1e6, 0.9e6]);
    // Slowness swings between 1 and 8 every four milliseconds, for ever: anchors seldom agree.
    script.machine.drift = (0..40_000).map(|i| (f64::from(i) * 4e6, if i % 2 == 0 { 1.0 } else { 8.0 })).collect();
    let (outcome, _, _) = run(script, Duration::from_secs(100));
    assert!(matches!(outcome.verdict, Verdict::Undecided(_)), "{:?}", outcome.verdict);
    assert_eq!(outcome.choice, outcome.default);
}

#[test]
fn slow_drift_and_a_ramp_after_idling_do_not_reorder() {
    for seed in 0..20 {
        let mut script = Script::of_times(seed, &[1e6, 0.94e6, 0.97e6, 1.0e6]);
        script.machine.drift = vec![(0.0, 1.0), (5e8, 1.4)];
        script.machine.ramp = Some((2e7, 2.0, 5e7));
        check_choice(script, 1);
    }
}

#[test]
fn faster_than_physics_is_refused() {
    let mut script = Script::of_times(1, &[1e5, 1e3, 0.9e5]);
    script.floor_ns = vec![Some(0.5e5)];
    let outcome = check_choice(script, 2);
    assert!(matches!(refusal(&outcome, &v(1)), Some(Rejection::TooFast(_))), "{:?}", outcome.rejected);
}

#[test]
fn a_floor_above_the_default_is_refuted_not_obeyed() {
    let mut script = Script::of_times(1, &[1e5, 0.8e5]);
    script.floor_ns = vec![Some(1.5e5)];
    let outcome = check_choice(script, 1);
    assert_eq!(outcome.floor_ns, [None]);
    assert!(outcome.roof_beaten && serde_json::to_string(&outcome).is_ok_and(|json| json.contains("roof_beaten")));
}

#[test]
fn at_the_roof_there_is_nothing_to_search() {
    let mut script = Script::of_times(1, &[1e5; 50]).noise(Noise::Gaussian(0.002));
    script.floor_ns = vec![Some(0.995e5)];
    let (outcome, _, subject) = run(script, long());
    assert_eq!(outcome.verdict, Verdict::KeptDefault);
    assert!(!outcome.partial);
    assert_eq!(subject.admitted.len(), 1, "only the default was gated");
}

#[test]
fn wrong_outputs_are_never_timed() {
    let script = Script::of_times(1, &[1e5, 1e3, 0.9e5]).fault(1, Fault::Wrong);
    let (outcome, _, subject) = run(script, long());
    assert!(!subject.timed.contains(&v(1)));
    assert_eq!(outcome.choice, v(2));
    assert!(matches!(refusal(&outcome, &v(1)), Some(Rejection::Wrong(_))));
    let said = outcome.sentence("op 4x4");
    assert!(said.starts_with("op 4x4: 1.1") && said.ends_with("3 configs, 1 rejected (1 wrong)"), "{said}");
}

/// The second opinion refuses the fastest: the next finalist that cleared the margin wins, and the refusal is kept.
#[test]
fn a_winner_is_looked_at_again_before_it_is_promoted() {
    let script = Script::of_times(1, &[1e5, 0.78e5, 1.1e5, 0.8e5]).fault(1, Fault::WrongLater);
    let outcome = check_choice(script, 3);
    assert!(matches!(refusal(&outcome, &v(1)), Some(Rejection::Wrong(_))), "{:?}", outcome.rejected);
    assert!(outcome.finals.iter().any(|f| f.config == v(1) && !f.cleared));
    let alone = Script::of_times(1, &[1e5, 0.5e5]).fault(1, Fault::WrongLater);
    check_choice(alone, 0);
}

/// When nearly all are wrong the reference is in doubt, which is said at once and not after two hundred gates.
#[test]
fn a_flood_of_wrong_results_puts_the_reference_in_doubt() {
    let flood = |n: usize, right: &[usize]| {
        let mut script = Script::of_times(1, &vec![1e5; n]);
        for i in (1..n).filter(|i| !right.contains(i)) {
            script = script.fault(i, Fault::Wrong);
        }
        let clock = VirtualClock::new();
        let mut subject = Scripted::new(script, clock.clone());
        let cancel = AtomicBool::new(false);
        let task = Task {
            budget: Budget::new(&clock, long()),
            cancel: &cancel,
            observer: &mut planish_tune::Silent,
            resume: Resume::default(),
            policy: Policy::default(),
        };
        (tune(&mut subject, task).map_err(|e| e.to_string()), subject.admitted.len())
    };
    let (said, gates) = flood(200, &[]);
    let said = said.expect_err("a doubt");
    assert!(said.starts_with("24 of 24 candidates give wrong results: the reference may be wrong"), "{said}");
    assert_eq!(gates, 25, "the default and twenty-four");
    assert!(flood(200, &[5]).0.is_err(), "one in twenty-four is right");
    assert!(flood(9, &[]).0.is_err(), "all of a small space are wrong");
    assert!(flood(4, &[]).0.is_ok(), "three wrong candidates prove nothing");
    assert!(flood(60, &(1..20).collect::<Vec<_>>()).0.is_ok(), "a third is right");
}

/// Times that mean nothing are a policy of their own: anything may win, and no other policy takes its records for its own.
#[test]
fn scrambled_timings_let_anything_win_under_an_identity_of_their_own() {
    let choose = |timings| {
        let clock = VirtualClock::new();
        let script = Script::of_times(3, &[1e5, 0.5e5, 3e5, 1.1e5, 1e5]).fault(4, Fault::Wrong);
        let mut subject = Scripted::new(script, clock.clone());
        let cancel = AtomicBool::new(false);
        let policy = Policy { timings, ..Policy::default() };
        let task = Task {
            budget: Budget::new(&clock, long()),
            cancel: &cancel,
            observer: &mut planish_tune::Silent,
            resume: Resume::default(),
            policy,
        };
        let outcome = tune(&mut subject, task).expect("the default works");
        assert!(!subject.timed.contains(&v(4)), "what is wrong is not timed however the clock goes");
        outcome.choice
    };
    assert_eq!(choose(Timings::Measured), v(1));
    assert_eq!(choose(Timings::Inverted), v(2));
    let drawn: BTreeSet<Config> = (0..40).map(|seed| choose(Timings::Random(seed))).collect();
    assert_eq!(drawn.into_iter().collect::<Vec<_>>(), [v(0), v(1), v(2), v(3)], "everything right wins for some seed");
    assert_eq!(choose(Timings::Random(7)), choose(Timings::Random(7)));
    let identity = |timings| Policy { timings, ..Policy::default() }.identity();
    assert!(!identity(Timings::Measured).contains("timings"), "{}", identity(Timings::Measured));
    assert_ne!(identity(Timings::Inverted), identity(Timings::Measured));
    assert_ne!(identity(Timings::Random(1)), identity(Timings::Random(2)));
}

/// The questions of a subject that a scripted one inside of it answers.
macro_rules! answered_by {
    ($inner:tt) => {
        fn space(&self) -> &planish_tune::Space {
            self.$inner.space()
        }
        fn points(&self) -> Vec<planish_tune::Point> {
            self.$inner.points()
        }
        fn time(
            &mut self,
            admitted: &planish_tune::Admitted,
            point: planish_tune::Point,
        ) -> Result<planish_tune::Sample, Rejection> {
            self.$inner.time(admitted, point)
        }
        fn floor(&self, point: planish_tune::Point) -> Option<Duration> {
            self.$inner.floor(point)
        }
    };
}

/// A subject that tunes another one from inside its gate.
struct Nested {
    outer: Scripted,
    inner: Vec<Result<Config, String>>,
}

impl Subject for Nested {
    answered_by!(outer);
    fn admit(&mut self, config: &Config) -> Result<planish_tune::Admitted, Rejection> {
        self.inner.push(tune_alone(9, &[3e5, 1e5]).map(|o| o.choice));
        self.outer.admit(config)
    }
}

fn tune_alone(seed: u64, ns: &[f64]) -> Result<Outcome, String> {
    let clock = VirtualClock::new();
    tune_on(&mut Scripted::new(Script::of_times(seed, ns), clock.clone()), &clock)
}

fn tune_on(subject: &mut dyn Subject, clock: &VirtualClock) -> Result<Outcome, String> {
    tune_within(long(), subject, clock)
}

fn tune_within(limit: Duration, subject: &mut dyn Subject, clock: &VirtualClock) -> Result<Outcome, String> {
    let cancel = AtomicBool::new(false);
    let task = Task {
        budget: Budget::new(clock, limit),
        cancel: &cancel,
        observer: &mut planish_tune::Silent,
        resume: Resume::default(),
        policy: Policy::default(),
    };
    tune(subject, task).map_err(|e| e.to_string())
}

#[test]
fn tuning_inside_a_candidate_is_refused_and_the_outer_run_is_as_if_alone() {
    let times = [1e5, 0.8e5, 1.2e5];
    let clock = VirtualClock::new();
    let outer = Scripted::new(Script::of_times(4, &times), clock.clone());
    let mut nested = Nested { outer, inner: Vec::new() };
    let outcome = tune_on(&mut nested, &clock).expect("the outer run");
    assert_eq!(outcome, tune_alone(4, &times).expect("alone"));
    assert!(!nested.inner.is_empty());
    for inner in nested.inner {
        assert!(inner.expect_err("refused").contains("inside a candidate"));
    }
    assert_eq!(tune_alone(9, &[3e5, 1e5]).expect("afterwards").choice, v(1), "the guard is released");
}

#[test]
fn two_threads_tune_as_if_each_were_alone() {
    let runs: [(u64, [f64; 3]); 2] = [(4, [1e5, 0.8e5, 1.2e5]), (5, [2e5, 2.1e5, 1.5e5])];
    let alone = runs.map(|(seed, ns)| tune_alone(seed, &ns));
    for _ in 0..10 {
        let both = runs.map(|(seed, ns)| std::thread::spawn(move || tune_alone(seed, &ns)));
        assert_eq!(both.map(|t| t.join().expect("no panic")), alone);
    }
}

#[test]
fn every_refusal_is_counted_by_kind() {
    let mut script = Script::of_times(1, &[1e5; 9])
        .fault(1, Fault::Wrong)
        .fault(2, Fault::Compile)
        .fault(3, Fault::Launch)
        .fault(4, Fault::OutOfMemory)
        .fault(5, Fault::LaunchTimed);
    script.illegal = vec![v(6), v(7)];
    let (outcome, _, _) = run(script, long());
    let kinds: Vec<(&str, usize)> = outcome.counts.rejected.iter().map(|(k, n)| (k.as_str(), *n)).collect();
    assert_eq!(kinds, [("compile", 1), ("constraint", 2), ("launch", 3), ("wrong", 1)]);
    assert_eq!((outcome.counts.candidates, outcome.counts.timed, outcome.counts.untried), (9, 2, 0));
    let said = outcome.sentence("op 4x4");
    let summary = "op 4x4: default kept; 9 configs, 7 rejected (1 compile, 2 constraint, 3 launch, 1 wrong)";
    assert_eq!(said, summary, "reasons and their numbers, no configs and no logs");
    let Some(wrong) = refusal(&outcome, &v(1)) else { panic!("refused") };
    let detail = "wrong (tolerance): scripted: element 3 is 7, wanted 5 (40.000 x bound)";
    assert_eq!(wrong.to_string(), detail, "where, what and by how much, for who asks");
}

#[test]
fn a_default_that_fails_is_an_error_and_nothing_is_timed() {
    for fault in [Fault::Wrong, Fault::Launch] {
        let clock = VirtualClock::new();
        let mut subject = Scripted::new(Script::of_times(1, &[1e5, 0.5e5]).fault(0, fault), clock.clone());
        let cancel = AtomicBool::new(false);
        let task = Task {
            budget: Budget::new(&clock, long()),
            cancel: &cancel,
            observer: &mut planish_tune::Silent,
            resume: Resume::default(),
            policy: Policy::default(),
        };
        let error = tune(&mut subject, task).expect_err("nothing to compare with");
        assert!(error.to_string().contains("V=0") && error.next_step().is_some(), "{error}");
        assert!(subject.timed.is_empty());
    }
}

#[test]
fn the_budget_holds_to_within_one_measurement() {
    for ms in [0, 1, 5, 20, 50, 3000] {
        let limit = Duration::from_millis(ms);
        let script = Script::of_times(9, &[1e6; 200]).noise(Noise::Gaussian(0.01));
        let (outcome, _, _) = run(script, limit);
        let over = outcome.spent_s - limit.as_secs_f64();
        assert!(over <= 2.1e-3, "{ms} ms budget overrun by {over} s");
        assert_eq!(outcome.partial, ms < 3000, "{ms}: {}", outcome.sentence("x"));
    }
}

#[test]
fn too_little_data_is_undecided() {
    // Enough to search, not enough for the eight pairs that a bound needs.
    let mut script = Script::of_times(1, &[3e8, 1e8]);
    script.machine.admit_ns = 1e6;
    let (outcome, _, _) = run(script, Duration::from_secs(12));
    assert!(matches!(outcome.verdict, Verdict::Undecided(_)), "{:?}", outcome.verdict);
    assert!(outcome.partial && outcome.choice == v(0));
    assert_eq!(outcome.ranking[0].config, v(1), "the evidence still shows who led");
}

/// Raises the flag at the n-th measurement and counts what comes after.
struct CancelAt<'a> {
    flag: &'a AtomicBool,
    at: usize,
    seen: usize,
}

impl Observer for CancelAt<'_> {
    fn event(&mut self, event: &Event) {
        if matches!(event, Event::Measured { .. } | Event::Paired { .. }) {
            self.seen += 1;
            if self.seen == self.at {
                self.flag.store(true, Ordering::Relaxed);
            }
        }
    }
}

#[test]
fn cancel_stops_within_one_measurement() {
    for at in [1, 2, 7, 20] {
        let clock = VirtualClock::new();
        let mut subject = Scripted::new(Script::of_times(2, &[1e5, 0.9e5, 0.95e5, 1e5]), clock.clone());
        let cancel = AtomicBool::new(false);
        let mut observer = CancelAt { flag: &cancel, at, seen: 0 };
        let task = Task {
            budget: Budget::new(&clock, long()),
            cancel: &cancel,
            observer: &mut observer,
            resume: Resume::default(),
            policy: Policy::default(),
        };
        let outcome = tune(&mut subject, task).expect("the default works");
        assert!(outcome.partial, "at {at}: {:?}", outcome.verdict);
        // A paired round reports its (up to three) finalists together.
        assert!(observer.seen <= at + 2, "at {at}: {} seen", observer.seen);
        if at == 7 {
            assert!(matches!(&outcome.verdict, Verdict::Undecided(why) if why.contains("cancelled")));
            assert!(outcome.ranking.len() > 1, "the best so far is shown");
        }
    }
}

/// A log cut anywhere resumes: nothing measured is measured again, and the decision is the same.
#[test]
fn an_interrupted_run_resumes_from_its_log() {
    let script = || Script::of_times(4, &[1e5, 0.9e5, 1.2e5, 1.6e5, 1e5, 0.97e5]).fault(4, Fault::Wrong);
    let (whole, events, full) = run(script(), long());
    assert_eq!(whole.choice, v(1));
    for cut in [events.len() / 4, events.len() / 2, events.len() * 9 / 10] {
        let mut resume = Resume::default();
        events[..cut].iter().for_each(|e| resume.absorb(e));
        let json = serde_json::to_string(&resume).expect("plain");
        let resume: Resume = serde_json::from_str(&json).expect("reads back");
        let refused = resume.rejected.iter().any(|(c, _)| *c == v(4));
        let (outcome, _, subject) = run_from(script(), long(), resume);
        assert_eq!(outcome.choice, v(1), "cut at {cut}");
        assert_eq!(subject.admitted.contains(&v(4)), !refused, "cut at {cut}");
        assert!(subject.timed.len() < full.timed.len(), "cut at {cut}");
    }
}

/// A candidate must gain at every point of the bucket, not on average.
#[test]
fn a_loss_at_one_point_blocks_promotion() {
    let values: Vec<Value> = (0..3).map(Value::Int).collect();
    let truth = |c: &Config| match c.int("V") {
        Some(1) => vec![0.5e5, 1.1e5, 0.5e5],
        Some(2) => vec![0.95e5, 0.94e5, 0.93e5],
        _ => vec![1e5; 3],
    };
    let outcome = check_choice(Script::of_grid(1, vec![("V".to_owned(), values)], truth), 2);
    let Verdict::Promoted { ratio, lo, hi } = outcome.verdict else { panic!("promoted") };
    assert!((1.04..1.065).contains(&ratio) && lo <= ratio && ratio <= hi, "the least gain: {lo} {ratio} {hi}");
}

/// Risky candidates come last, whatever their distance from the default.
#[test]
fn the_safe_come_first() {
    struct Risky(Scripted);
    impl Subject for Risky {
        answered_by!(0);
        fn admit(&mut self, config: &Config) -> Result<planish_tune::Admitted, Rejection> {
            self.0.admit(config)
        }
        fn risk(&self, config: &Config) -> u32 {
            u32::from(config.int("V") == Some(1))
        }
    }
    let clock = VirtualClock::new();
    let mut subject = Risky(Scripted::new(Script::of_times(1, &[1e5; 5]), clock.clone()));
    tune_on(&mut subject, &clock).expect("the default works");
    assert_eq!(subject.0.admitted, [v(0), v(2), v(3), v(4), v(1)]);
}

/// A wave is built a part at a time, so a budget that is too small for building all of it still times some.
#[test]
fn a_small_budget_times_what_was_built_first() {
    struct Built {
        inner: Scripted,
        clock: VirtualClock,
        parts: Vec<usize>,
    }
    impl Subject for Built {
        answered_by!(inner);
        fn admit(&mut self, config: &Config) -> Result<planish_tune::Admitted, Rejection> {
            self.inner.admit(config)
        }
        fn prepare(&mut self, configs: &[Config]) {
            self.parts.push(configs.len());
            self.clock.advance_ns(1e9 * configs.len() as f64);
        }
    }
    let clock = VirtualClock::new();
    let times: Vec<f64> = (0..30).map(|i| if i == 1 { 0.5e5 } else { 1e5 }).collect();
    let inner = Scripted::new(Script::of_times(1, &times), clock.clone());
    let mut subject = Built { inner, clock: clock.clone(), parts: Vec::new() };
    let outcome = tune_within(Duration::from_secs(25), &mut subject, &clock).expect("the default works");
    assert_eq!(subject.parts, [16], "the other thirteen would have taken what was left");
    assert_eq!(outcome.choice, v(1), "found among those that were built");
}

/// Nothing of the candidate before is left in the next one: each time that is told belongs to what was launched for it.
#[test]
fn what_is_timed_is_the_candidate_that_is_told() {
    let (outcome, events, subject) = run(Script::of_times(3, &[1e5, 0.9e5, 0.8e5, 1.2e5, 0.95e5]), long());
    let told = events.iter().filter_map(|e| match e {
        Event::Measured { config, .. } => Some(config),
        _ => None,
    });
    let mut timed = subject.timed.iter();
    let mut n = 0;
    for config in told {
        assert!(timed.any(|t| t == config), "({config}) was told and not timed in its turn");
        n += 1;
    }
    assert!(n >= 4 * 2, "{n} times");
    for ranked in outcome.ranking.iter().filter(|r| r.config != v(0)) {
        let i = ranked.config.int("V").expect("a number");
        let truth = [1e5, 0.9e5, 0.8e5, 1.2e5, 0.95e5][usize::try_from(i).expect("small")];
        let got = ranked.times[0].median_ns;
        assert!((got / truth - 1.0).abs() < 0.05, "V={i} takes {truth} and is told to take {got}");
    }
}

/// A subject whose ceilings were first measured beside other work, and are `again` what they are.
struct Doubted {
    inner: Scripted,
    again: Option<Duration>,
    asked: u32,
}

impl Subject for Doubted {
    answered_by!(inner);
    fn admit(&mut self, config: &Config) -> Result<planish_tune::Admitted, Rejection> {
        self.inner.admit(config)
    }
    fn floor_again(&mut self, _: planish_tune::Point) -> Option<Duration> {
        self.asked += 1;
        self.again
    }
}

impl Doubted {
    /// Tunes `times` under a floor of `first_ns`, which is `again` when measured another time.
    fn tuned(times: &[f64], first_ns: f64, again: Option<Duration>) -> (Outcome, u32) {
        let clock = VirtualClock::new();
        let mut script = Script::of_times(1, times);
        script.floor_ns = vec![Some(first_ns)];
        let mut subject = Doubted { inner: Scripted::new(script, clock.clone()), again, asked: 0 };
        (tune_on(&mut subject, &clock).expect("the default works"), subject.asked)
    }
}

/// Other work lowers a measured ceiling, so what is faster than it allows is no proof of a wrong time yet.
#[test]
fn a_floor_is_measured_again_before_it_refuses() {
    let times = [2e5, 1e5, 1.9e5, 1e3];
    let (outcome, asked) = Doubted::tuned(&times, 1.5e5, Some(Duration::from_nanos(80_000)));
    assert_eq!((&outcome.choice, &outcome.floor_ns), (&v(1), &vec![Some(0.8e5)]));
    assert!(matches!(refusal(&outcome, &v(3)), Some(Rejection::TooFast(_))), "{:?}", outcome.rejected);
    assert!((1..=2).contains(&asked), "once lowered, it is asked again only for what is under that, too: {asked}");
    // A floor that proves right refuses, and so does one that nobody can measure again or that comes out higher.
    for again in [Some(150_000), None, Some(900_000)] {
        let (outcome, _) = Doubted::tuned(&times, 1.5e5, again.map(Duration::from_nanos));
        assert_eq!((&outcome.choice, &outcome.floor_ns), (&v(2), &vec![Some(1.5e5)]));
        assert!(matches!(refusal(&outcome, &v(1)), Some(Rejection::TooFast(_))), "{:?}", outcome.rejected);
    }
    // What beats its floor for good does not cost a measurement for each candidate.
    let (_, asked) = Doubted::tuned(&[&[2e5][..], &[1e3; 20]].concat(), 1.5e5, Some(Duration::from_nanos(150_000)));
    assert_eq!(asked, 4);
}

/// A ceiling that the default reaches may have been measured low, and one that it beats is none.
#[test]
fn a_roof_is_measured_again_before_it_ends_the_search() {
    let times = [1e5, 0.95e5, 1.1e5];
    let again = |ns: u64| Some(Duration::from_nanos(ns));
    let (outcome, asked) = Doubted::tuned(&times, 0.995e5, again(60_000));
    assert_eq!((&outcome.choice, &outcome.floor_ns, asked), (&v(1), &vec![Some(0.6e5)], 1));
    let (outcome, asked) = Doubted::tuned(&times, 0.995e5, again(99_500));
    assert_eq!((&outcome.verdict, outcome.counts.timed, asked), (&Verdict::KeptDefault, 1, 1));
    let (outcome, _) = Doubted::tuned(&times, 1.03e5, None);
    assert_eq!((&outcome.choice, &outcome.floor_ns), (&v(1), &vec![Some(1.03e5)]));
}
