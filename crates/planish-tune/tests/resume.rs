//! A run that was cut off is gone on with, and what was measured to its end is not measured again.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use planish_tune::scripted::{Fault, Noise, Script, Scripted};
use planish_tune::store::{
    Begun, Choice, Earlier, Ended, Identity, Item, Key, Layers, Progress, Silicon, State, Store, now_ms,
};
use planish_tune::{
    Budget, Config, Event, Observer, Outcome, Policy, Rejection, Subject, Task, Value, Verdict, VirtualClock, tune,
};

/// How a run of one item ended.
enum Did {
    Known(Choice),
    Tuned(Box<Outcome>, Scripted),
}

impl Did {
    fn tuned(self) -> (Outcome, Scripted) {
        match self {
            Did::Tuned(outcome, subject) => (*outcome, subject),
            Did::Known(choice) => panic!("{} is known: {}", choice.key, choice.state),
        }
    }

    fn known(self) -> Choice {
        match self {
            Did::Known(choice) => choice,
            Did::Tuned(outcome, _) => panic!("measured again: {}", outcome.sentence("x")),
        }
    }
}

/// Writes events down, and asks for an end after so many timings.
struct Noting<'a> {
    journal: &'a mut Progress,
    cancel: &'a AtomicBool,
    left: usize,
}

impl Observer for Noting<'_> {
    fn event(&mut self, event: &Event) {
        self.journal.note(event);
        if matches!(event, Event::Measured { .. } | Event::Paired { .. }) {
            self.left = self.left.saturating_sub(1);
            self.cancel.fetch_or(self.left == 0, Ordering::Relaxed);
        }
    }
}

/// What cuts a run off.
#[derive(Clone, Copy)]
struct Cut {
    budget: Duration,
    /// Timings of candidates until the user interrupts.
    timings: usize,
}

const NEVER: Cut = Cut { budget: Duration::from_secs(600), timings: usize::MAX };

fn by_budget(ms: u64) -> Cut {
    Cut { budget: Duration::from_millis(ms), ..NEVER }
}

fn key() -> Key {
    Key::new("op", [("n", 4.into())])
}

fn identity() -> Identity {
    let silicon = Silicon::new("Scripted", [("arch", "x")]).into();
    Identity { silicon, kernel: "k1".into(), ..Identity::default() }
}

fn open(root: &Path) -> Store {
    Store::open(Layers { user: Some(root.to_path_buf()), ..Layers::default() })
}

/// One run of the command on a store: what is stored is opened, looked up, measured if need be, and kept.
fn run_at(root: &Path, script: &Script, cut: Cut, (earlier, since_ms): (Earlier, u64)) -> Did {
    let (mut store, key, identity) = (open(root), key(), identity());
    let clock = VirtualClock::new();
    let mut subject = Scripted::new(script.clone(), clock.clone());
    let space = subject.space().clone();
    let item = Item { key: &key, identity: &identity, space: &space };
    if earlier == Earlier::Use
        && let Some(choice) = store.settled(item, since_ms)
    {
        return Did::Known(choice);
    }
    let (mut journal, resume) = match store.begin(item, since_ms, earlier) {
        Begun::Elsewhere => panic!("nobody else is at it"),
        Begun::Known(choice) => return Did::Known(*choice),
        Begun::Open(journal, resume) => (journal, resume),
    };
    let cancel = AtomicBool::new(false);
    let mut observer = Noting { journal: &mut journal, cancel: &cancel, left: cut.timings };
    let budget = Budget::new(&clock, cut.budget);
    let task = Task { budget, cancel: &cancel, observer: &mut observer, resume, policy: Policy::default() };
    let outcome = tune(&mut subject, task).expect("the default works");
    let interrupted = cancel.load(Ordering::Relaxed);
    store.end(item, &Ended { outcome: &outcome, beside: &[], interrupted }, journal).expect("a fit record");
    Did::Tuned(Box::new(outcome), subject)
}

fn run(root: &Path, script: &Script, cut: Cut) -> Did {
    run_at(root, script, cut, (Earlier::Use, u64::MAX))
}

/// Runs until nothing is left to measure: the outcomes, all timings of candidates, and what is known then.
fn to_the_end(root: &Path, script: &Script, cut: Cut) -> (Vec<Outcome>, Vec<Config>, Choice) {
    let (mut outcomes, mut timed) = (Vec::new(), Vec::new());
    for seed in 0..200 {
        let script = Script { seed: script.seed + seed, ..script.clone() };
        match run(root, &script, cut) {
            Did::Known(choice) => return (outcomes, timed, choice),
            Did::Tuned(outcome, subject) => {
                outcomes.push(*outcome);
                timed.extend(subject.timed.into_iter().filter(|c| *c != script.candidates[0].config));
            }
        }
    }
    panic!("200 runs did not come to an end: {}", outcomes[199].sentence("x"));
}

fn spread_script(seed: u64) -> Script {
    let ns = [1e6, 0.9e6, 1.2e6, 1.05e6, 1.6e6, 0.97e6, 0.93e6, 5e6];
    Script::of_times(seed, &ns).fault(3, Fault::Wrong)
}

#[test]
fn a_run_cut_off_by_its_budget_is_gone_on_with_until_it_is_settled() {
    let whole = {
        let dir = tempfile::tempdir().expect("a folder");
        run(dir.path(), &spread_script(4), NEVER).tuned()
    };
    let default = &spread_script(0).candidates[0].config;
    let alone = whole.1.timed.iter().filter(|c| *c != default).count();
    for ms in [60, 80, 100] {
        let dir = tempfile::tempdir().expect("a folder");
        let (outcomes, timed, choice) = to_the_end(dir.path(), &spread_script(4), by_budget(ms));
        assert!(outcomes.len() > 1, "{ms} ms are not enough at once");
        let (last, cut) = outcomes.split_last().expect("at least one run");
        assert!(!last.partial && cut.iter().all(|o| o.partial), "{ms} ms: cut off until the last");
        assert_eq!((&choice.config, choice.state), (&whole.0.choice, State::Tuned), "{ms} ms");
        assert!(choice.ratio.lo >= 1.01, "{ms} ms: what is told is what was proven: {:?}", choice.ratio);
        // A run that is gone on with repeats no refusal, and what it was at when it was cut.
        let wrong = outcomes.iter().filter(|o| o.rejected.iter().any(|(_, r)| matches!(r, Rejection::Wrong(_))));
        assert!(wrong.count() >= 1);
        assert!(timed.len() <= alone + 10 * outcomes.len() + 80, "{ms} ms: {} timings, {alone} alone", timed.len());
        // A second run measures nothing, whatever its budget.
        assert_eq!(run(dir.path(), &spread_script(99), NEVER).known(), choice);
    }
}

#[test]
fn a_run_cut_off_by_a_request_is_gone_on_with() {
    for timings in [1, 7, 30, 60] {
        let dir = tempfile::tempdir().expect("a folder");
        let (first, _) = run(dir.path(), &spread_script(4), Cut { timings, ..NEVER }).tuned();
        assert!(first.partial, "{timings}: {}", first.sentence("x"));
        let promoted = matches!(first.verdict, Verdict::Promoted { .. });
        assert_eq!(open(dir.path()).snapshot().len(), usize::from(promoted), "nothing but a gain is stored then");
        let (second, subject) = run(dir.path(), &spread_script(5), NEVER).tuned();
        assert!(!second.partial && !subject.admitted.contains(&Config::new().with("V", 3)) || timings < 7);
        run(dir.path(), &spread_script(6), NEVER).known();
    }
}

/// Gains that hide in the noise, and a machine that never settles: both were measured to their end.
#[test]
fn what_was_measured_to_its_end_and_is_undecided_is_not_measured_again() {
    let hides = |seed| Script::of_times(seed, &[1e5, 0.97e5]).noise(Noise::Gaussian(0.05));
    let is_hidden = |script: &Script| {
        let dir = tempfile::tempdir().expect("a folder");
        matches!(run(dir.path(), script, NEVER).tuned().0.verdict, Verdict::Undecided(_))
    };
    let hidden = (0..40).map(hides).find(is_hidden).expect("a gain of 3% in such noise");
    let mut restless = Script::of_times(2, &[1e5; 6]);
    restless.machine.drift = (0..40_000).map(|i| (f64::from(i) * 4e6, if i % 2 == 0 { 1.0 } else { 2.5 })).collect();
    for (what, script) in [("hidden", hidden), ("restless", restless)] {
        let dir = tempfile::tempdir().expect("a folder");
        let (outcome, _) = run(dir.path(), &script, NEVER).tuned();
        assert!(
            matches!(outcome.verdict, Verdict::Undecided(_)) && !outcome.partial,
            "{what}: {}",
            outcome.sentence("x")
        );
        assert_eq!(run(dir.path(), &script, NEVER).known().state, State::Undecided, "{what}");
        let again = run_at(dir.path(), &script, NEVER, (Earlier::Forget, u64::MAX));
        assert!(again.tuned().0.samples > 0, "{what}: unless it is forced to");
    }
}

/// A win on fewer threads beside other work settles nothing: the next run starts over, and one on a quiet machine decides.
#[test]
fn what_was_held_back_for_other_work_is_measured_again() {
    let params = || vec![("THREADS".to_owned(), vec![Value::Int(2), Value::Int(1)])];
    let script = |seed, one: f64, share| {
        let mut script =
            Script::of_grid(seed, params(), |c| vec![2e7 * if c.int("THREADS") == Some(1) { one } else { 1.0 }]);
        script.machine.others = vec![(0.0, f64::INFINITY, share)];
        script
    };
    for (quiet, state) in [(1.3, State::DefaultKept), (0.8, State::Tuned)] {
        let dir = tempfile::tempdir().expect("a folder");
        for seed in 0..2 {
            let (busy, _) = run(dir.path(), &script(seed, 0.7, 0.4), NEVER).tuned();
            assert!(busy.busy().is_some() && !busy.partial, "{}", busy.sentence("x"));
            assert_eq!(open(dir.path()).lookup(&key(), &identity()).record.map(|c| c.state), Some(State::Undecided));
        }
        let (_, subject) = run(dir.path(), &script(2, quiet, 0.0), NEVER).tuned();
        assert_eq!(subject.admitted[0], script(0, quiet, 0.0).candidates[0].config, "it starts over");
        assert_eq!(run(dir.path(), &script(3, quiet, 0.0), NEVER).known().state, state);
    }
}

/// A large space of which the budget allowed a part: the gain found there runs, and the rest is gone on with.
#[test]
fn a_gain_found_before_the_cut_is_kept_whatever_the_rest_brings() {
    let values = |n: i64| (0..n).map(Value::Int).collect::<Vec<_>>();
    let params = vec![("A".to_owned(), values(6)), ("B".to_owned(), values(5))];
    let time = |c: &Config| {
        let (a, b) = (c.int("A").expect("a number") as f64, c.int("B").expect("a number") as f64);
        vec![1e6 * (1.0 - 0.05 * a + 0.01 * b)]
    };
    let script = |seed| {
        let mut script = Script::of_grid(seed, params.clone(), time);
        script.machine.admit_ns = 2e7;
        script
    };
    let (mut gained, mut improved) = (0, 0);
    for ms in [300, 500, 700, 900] {
        let dir = tempfile::tempdir().expect("a folder");
        let (first, _) = run(dir.path(), &script(3), by_budget(ms)).tuned();
        assert!(first.partial, "{ms} ms: {}", first.sentence("x"));
        let promoted = matches!(first.verdict, Verdict::Promoted { .. });
        let (_, _, choice) = to_the_end(dir.path(), &script(4), by_budget(ms));
        let [before, after] = [&first.choice, &choice.config].map(|c| time(c)[0]);
        assert!(
            !promoted || (choice.state == State::Tuned && after <= before * 1.011),
            "{ms} ms: {after} from {before}"
        );
        gained += usize::from(promoted);
        improved += usize::from(after < before);
    }
    assert!(gained >= 1 && improved >= 1, "{gained} found a gain at once, {improved} a better one later");
}

/// What this very run cut off is not begun again by it, nor by another that began before.
#[test]
fn what_a_run_has_cut_off_itself_waits_for_the_next_one() {
    let dir = tempfile::tempdir().expect("a folder");
    let before = now_ms();
    let (first, _) = run_at(dir.path(), &spread_script(4), by_budget(60), (Earlier::Use, before)).tuned();
    assert!(first.partial);
    let same = run_at(dir.path(), &spread_script(4), NEVER, (Earlier::Use, before));
    assert_eq!(same.known().state, State::Undecided);
    assert!(!run(dir.path(), &spread_script(5), NEVER).tuned().0.partial);
}

/// Cut off again and again, with other finalists each time: the stated rate of false promotions is that of all runs together.
#[test]
fn cutting_a_run_off_does_not_raise_the_rate_of_false_promotions() {
    let kernels = 60;
    let (mut false_promotions, mut runs) = (0, 0);
    for seed in 0..kernels {
        let dir = tempfile::tempdir().expect("a folder");
        // All are faster by just what counts as nothing: here a bound is cleared most easily.
        let mut script = Script::of_times(1000 * seed, &[1e6, 0.9902e6, 0.9902e6, 0.9902e6, 0.9902e6, 0.9902e6]);
        script.machine.admit_ns = 1e7;
        let (outcomes, _, choice) = to_the_end(dir.path(), &script, by_budget(250));
        runs += outcomes.len() as u64;
        false_promotions += u64::from(choice.state == State::Tuned);
    }
    assert!(runs > 3 * kernels, "{runs} runs of {kernels} kernels");
    // One in a hundred is stated: 0.6 here, and five would be more than chance brings once in a thousand times.
    assert!(false_promotions <= 4, "{false_promotions} of {kernels}");
}
