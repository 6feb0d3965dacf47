//! Tuning a real loop on the real processor while other threads take it away: a slower candidate is never promoted, and
//! what cannot be told apart is reported as such.

mod common;

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::v;
use planish_tune::{
    Admitted, Budget, Config, Outcome, Param, Point, Policy, Rejection, Resume, Sample, Silent, Space, Subject, Task,
    Value, Verdict, WallClock, tune,
};

/// Work of each candidate over the default's: the same, slower, faster, slower.
const WORK: [f64; 5] = [1.0, 1.0, 1.15, 0.7, 1.4];

/// Time of one sample of the default on an idle processor.
const SAMPLE: Duration = Duration::from_micros(200);

/// A loop of arithmetic, as long as its candidate says.
struct Loop {
    space: Space,
    steps: f64,
}

fn spin(steps: f64) -> u64 {
    (0..steps as u64).fold(0x9e37_79b9, |x: u64, i| black_box(x ^ (x << 13) ^ (x >> 7)).wrapping_add(i))
}

impl Loop {
    fn new() -> Self {
        let time = |steps: f64| {
            let start = Instant::now();
            black_box(spin(steps));
            start.elapsed().as_secs_f64()
        };
        // The fastest of some tries is the least disturbed one.
        let probe = 2e5;
        let fastest = (0..20).map(|_| time(probe)).fold(f64::INFINITY, f64::min);
        let values = (0i64..).take(WORK.len()).map(Value::Int).collect();
        let params = vec![Param { name: "V", trades: "nothing", values }];
        let steps = probe * SAMPLE.as_secs_f64() / fastest;
        Loop { space: Space { params, constraints: Vec::new(), default: v(0) }, steps }
    }
}

impl Subject for Loop {
    fn space(&self) -> &Space {
        &self.space
    }
    fn points(&self) -> Vec<Point> {
        vec![Point(0)]
    }
    fn admit(&mut self, config: &Config) -> Result<Admitted, Rejection> {
        Admitted::new(config.clone(), 0.0)
    }
    fn time(&mut self, admitted: &Admitted, _: Point) -> Result<Sample, Rejection> {
        let candidate = usize::try_from(admitted.config().int("V").expect("a number")).expect("small");
        let start = Instant::now();
        black_box(spin(self.steps * WORK[candidate]));
        Ok(Sample { ns: start.elapsed().as_nanos() as f64, reps: 1 })
    }
    fn floor(&self, _: Point) -> Option<Duration> {
        None
    }
}

/// Threads that spin for `on`, rest for `off`, and again, until dropped.
struct Load {
    stop: Arc<AtomicBool>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Load {
    fn start(threads: usize, on: Duration, off: Duration) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let work = |stop: Arc<AtomicBool>| {
            move || {
                while !stop.load(Ordering::Relaxed) {
                    let start = Instant::now();
                    while start.elapsed() < on && !stop.load(Ordering::Relaxed) {
                        black_box(spin(1000.0));
                    }
                    thread::sleep(off);
                }
            }
        };
        let threads = (0..threads).map(|_| thread::spawn(work(Arc::clone(&stop)))).collect();
        Load { stop, threads }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|t| t.join().expect("a spinning thread does not panic"));
    }
}

fn tuned() -> Outcome {
    let clock = WallClock::start();
    let task = Task {
        budget: Budget::new(&clock, Duration::from_millis(1500)),
        cancel: &AtomicBool::new(false),
        observer: &mut Silent,
        resume: Resume::default(),
        policy: Policy::default(),
    };
    tune(&mut Loop::new(), task).expect("a loop does not fail")
}

#[track_caller]
fn check(what: &str, outcome: &Outcome) {
    let told = outcome.sentence(what);
    assert!(outcome.choice != v(2) && outcome.choice != v(4), "a slower loop was promoted: {told}");
    let right = outcome.choice == v(3);
    let unstable = outcome.drifts > 0 || outcome.noise > 0.02 || outcome.partial;
    match &outcome.verdict {
        Verdict::Promoted { lo, .. } => assert!(*lo >= 1.01, "{told}"),
        Verdict::Undecided(why) => assert!(!why.is_empty(), "{told}"),
        // A third less work is no matter of noise, unless the evidence says how unsteady the machine was.
        Verdict::KeptDefault => assert!(unstable, "{told}: noise {}", outcome.noise),
    }
    assert!(right || unstable || matches!(outcome.verdict, Verdict::Undecided(_)), "{told}");
}

#[test]
fn a_loaded_processor_promotes_nothing_slower() {
    let cores = thread::available_parallelism().map_or(2, usize::from);
    check("alone", &tuned());
    let (ms, none) = (Duration::from_millis, Duration::ZERO);
    for (what, threads, on, off) in [
        ("beside a spinning thread on every core", cores, ms(100), none),
        ("beside threads that come and go", cores, ms(40), ms(60)),
        ("beside twice as many threads as cores, in short bursts", 2 * cores, ms(3), ms(7)),
    ] {
        let load = Load::start(threads, on, off);
        let outcome = tuned();
        drop(load);
        check(what, &outcome);
    }
}
