//! A space that no memory would hold is searched in little of it, and not in vain.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use planish_tune::{
    Admitted, Budget, Config, Constraint, Event, Param, Point, Policy, Rejection, Resume, Sample, Space, Subject, Task,
    Value, Verdict, VirtualClock, record, tune,
};

const NAMES: [&str; 9] = ["A", "B", "C", "D", "E", "F", "G", "H", "I"];

/// Nine parameters of ten sizes: 10^9 combinations, of which under half are legal. Each value has a factor of its own, and
/// the fastest is far from the default in most of them.
struct Huge {
    space: Space,
    clock: VirtualClock,
    admitted: usize,
}

fn config(values: [i64; 9]) -> Config {
    NAMES.iter().zip(values).fold(Config::new(), |c, (name, v)| c.with(name, v))
}

const DEFAULT: [i64; 9] = [6, 5, 5, 5, 5, 5, 5, 5, 5];
const BEST: [i64; 9] = [8, 2, 5, 9, 0, 4, 6, 1, 3];

impl Huge {
    fn new(clock: &VirtualClock) -> Huge {
        let values: Vec<Value> = (0..10).map(Value::Int).collect();
        let param = |name| Param { name, trades: "nothing", values: values.clone() };
        let less = |c: &Config| c.int("A") > c.int("B") || *c == config(DEFAULT);
        let constraints = vec![Constraint::new("A > B", less)];
        let space = Space { params: NAMES.map(param).to_vec(), constraints, default: config(DEFAULT) };
        Huge { space, clock: clock.clone(), admitted: 0 }
    }

    /// Between one at the best and 1.45 at the worst.
    fn factor(config: &Config) -> f64 {
        let off = |(name, best): (&&str, i64)| 1.0 + 0.005 * (config.int(name).unwrap_or(0) - best).abs() as f64;
        NAMES.iter().zip(BEST).map(off).product()
    }
}

impl Subject for Huge {
    fn space(&self) -> &Space {
        &self.space
    }
    fn points(&self) -> Vec<Point> {
        vec![Point(0)]
    }
    fn admit(&mut self, config: &Config) -> Result<Admitted, Rejection> {
        self.admitted += 1;
        self.clock.advance_ns(1e6);
        Admitted::new(config.clone(), 0.5)
    }
    fn time(&mut self, admitted: &Admitted, _: Point) -> Result<Sample, Rejection> {
        self.clock.advance_ns(1e6);
        Ok(Sample { ns: 1e5 * Huge::factor(admitted.config()), reps: 1 })
    }
    fn floor(&self, _: Point) -> Option<Duration> {
        None
    }
}

fn task<'a>(clock: &'a VirtualClock, cancel: &'a AtomicBool, observer: &'a mut Vec<Event>, resume: Resume) -> Task<'a> {
    let budget = Budget::new(clock, Duration::from_secs(600));
    Task { budget, cancel, observer, resume, policy: Policy::default() }
}

#[test]
fn a_thousand_million_combinations_are_sampled_and_climbed() {
    let (clock, cancel, mut events) = (VirtualClock::new(), AtomicBool::new(false), Vec::new());
    let mut subject = Huge::new(&clock);
    let outcome = tune(&mut subject, task(&clock, &cancel, &mut events, Resume::default())).expect("the default works");
    assert!(matches!(outcome.verdict, Verdict::Promoted { .. }), "{:?}", outcome.verdict);
    let (found, least) = (Huge::factor(&outcome.choice), Huge::factor(&config(DEFAULT)));
    assert!(found < 1.0 + 0.2 * (least - 1.0), "{} is {found}, the default {least}", outcome.choice);
    let counts = &outcome.counts;
    assert_eq!(counts.candidates as u64 + counts.unlisted, 1_000_000_000);
    assert!(counts.candidates < 100_000 && outcome.rejected.len() < 1000, "{counts:?}");
    assert!(outcome.sentence("huge").contains("configs sampled of 1000000000"), "{}", outcome.sentence("huge"));

    // What was found by climbing is known to a run that goes on.
    let mut resume = Resume::default();
    events.iter().for_each(|event| resume.absorb(event));
    let (clock, mut events) = (VirtualClock::new(), Vec::new());
    let mut again = Huge::new(&clock);
    let second = tune(&mut again, task(&clock, &cancel, &mut events, resume)).expect("the default works");
    assert_eq!(second.choice, outcome.choice);
    assert!(again.admitted * 4 < subject.admitted, "{} of {}", again.admitted, subject.admitted);
}

#[test]
fn it_is_not_recorded() {
    let (clock, cancel, mut events) = (VirtualClock::new(), AtomicBool::new(false), Vec::new());
    let mut subject = Huge::new(&clock);
    let about = planish_tune::recorded::About {
        key: planish_tune::store::Key::new("huge", [("n", Value::Int(1))]),
        device: "made".to_owned(),
        share: 1.0,
    };
    let told =
        record(&mut subject, task(&clock, &cancel, &mut events, Resume::default()), about, 6).expect_err("too large");
    assert!(told.to_string().contains("too large to record whole"), "{told}");
}
