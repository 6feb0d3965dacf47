//! A scripted subject on a virtual clock: true times, noise, drift, wrong outputs and faults, all from one seed.
//!
//! It lets a policy be tested without hardware, and other crates test their handling of whatever a tuner may meet.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::budget::{Clock, VirtualClock};
use crate::config::{Config, Value};
use crate::measure::batched;
use crate::space::{Constraint, Param, Space};
use crate::subject::{Admitted, Point, Rejection, Sample, Subject, Usage, Wrong};

/// How one candidate's times scatter around the truth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Noise {
    /// Not at all.
    #[default]
    None,
    /// By a factor exp(N(0, sigma)).
    Gaussian(f64),
    /// Gaussian, and a share of samples times a factor (above or below 1).
    Tailed {
        /// Spread of the bulk.
        sigma: f64,
        /// Share of samples in the tail.
        share: f64,
        /// What the tail is multiplied by.
        factor: f64,
    },
}

/// What one candidate does to the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// Nothing bad.
    #[default]
    None,
    /// The gate finds the output wrong.
    Wrong,
    /// Only the second opinion finds the output wrong.
    WrongLater,
    /// Refused by the compiler.
    Compile,
    /// The launch fails in the gate.
    Launch,
    /// The launch fails when timed.
    LaunchTimed,
    /// Memory runs out.
    OutOfMemory,
    /// A Rust panic.
    Panic,
    /// The process aborts.
    Abort,
    /// Never returns.
    Spin,
    /// Everything after it fails until the subject is made anew.
    Poison,
}

/// One candidate's script.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Candidate {
    /// Its configuration.
    pub config: Config,
    /// True time per point in nanoseconds, caches cold.
    pub ns: Vec<f64>,
    /// Scatter.
    pub noise: Noise,
    /// Misbehaviour.
    pub fault: Fault,
    /// Times per point to draw from, in nanoseconds, instead of the true time and its noise; empty without.
    #[serde(default)]
    pub samples_ns: Vec<Vec<f64>>,
    /// What the gate says of it, whatever its fault.
    #[serde(default)]
    pub refusal: Option<Rejection>,
}

impl Candidate {
    /// A candidate with these true times per point and 1% Gaussian noise.
    pub fn new(config: Config, ns: Vec<f64>) -> Self {
        let (noise, fault) = (Noise::Gaussian(0.01), Fault::None);
        Candidate { config, ns, noise, fault, samples_ns: Vec::new(), refusal: None }
    }
}

/// The machine that the candidates run on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Clock resolution in nanoseconds; times are cut down to whole ticks.
    pub tick_ns: f64,
    /// Cost of one submission in nanoseconds, outside the timed span.
    pub overhead_ns: f64,
    /// Cost of one gate run in nanoseconds.
    pub admit_ns: f64,
    /// Of that, time in which the machine idles, as it does while a compiler runs.
    #[serde(default)]
    pub admit_idle_ns: f64,
    /// Slowness over time: (from this nanosecond, factor), straight lines between, flat at the ends.
    pub drift: Vec<(f64, f64)>,
    /// Spells of slowness: (from, until, factor), in nanoseconds.
    pub throttle: Vec<(f64, f64, f64)>,
    /// Other work on the processors, which changes no time by itself: (from, until, share of them), in nanoseconds.
    #[serde(default)]
    pub others: Vec<(f64, f64, f64)>,
    /// Slowness after idling: (busy nanoseconds until full speed, factor at first, idle nanoseconds that reset it).
    pub ramp: Option<(f64, f64, f64)>,
}

impl Default for Machine {
    fn default() -> Self {
        Machine {
            tick_ns: 1.0,
            overhead_ns: 5e3,
            admit_ns: 1e6,
            admit_idle_ns: 0.0,
            drift: Vec::new(),
            throttle: Vec::new(),
            others: Vec::new(),
            ramp: None,
        }
    }
}

/// Everything about a scripted subject, as data; a worker process can be handed one as JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Script {
    /// Seed of all randomness.
    pub seed: u64,
    /// Parameters and their values.
    pub params: Vec<(String, Vec<Value>)>,
    /// Combinations that the constraint named `legal` refuses.
    pub illegal: Vec<Config>,
    /// Candidates, the default first; a combination without a script is refused by the constraint `scripted`.
    pub candidates: Vec<Candidate>,
    /// Roofline floor per point in nanoseconds.
    pub floor_ns: Vec<Option<f64>>,
    /// The machine.
    pub machine: Machine,
}

impl Script {
    /// One parameter `V`; candidate `V=i` takes `ns[i]` at the only point, with 1% Gaussian noise; the first is the default.
    pub fn of_times(seed: u64, ns: &[f64]) -> Self {
        let values: Vec<Value> = (0i64..).take(ns.len()).map(Value::Int).collect();
        let mut script = Self::of_grid(seed, vec![("V".to_owned(), values)], |_| vec![0.0]);
        for (c, ns) in script.candidates.iter_mut().zip(ns) {
            c.ns = vec![*ns];
        }
        script
    }

    /// Every combination of `params`; `truth` gives the time per point; the first value of each is the default.
    pub fn of_grid(seed: u64, params: Vec<(String, Vec<Value>)>, truth: impl Fn(&Config) -> Vec<f64>) -> Self {
        let mut all = vec![Config::new()];
        for (name, values) in &params {
            all = all.iter().flat_map(|c| values.iter().map(|v| c.clone().with(name, v.clone()))).collect();
        }
        let candidate = |config: Config| {
            let ns = truth(&config);
            Candidate::new(config, ns)
        };
        let candidates: Vec<Candidate> = all.into_iter().map(candidate).collect();
        let floor_ns = vec![None; candidates[0].ns.len()];
        Script { seed, params, illegal: Vec::new(), candidates, floor_ns, machine: Machine::default() }
    }

    /// This script with every candidate's noise replaced.
    pub fn noise(mut self, noise: Noise) -> Self {
        self.candidates.iter_mut().for_each(|c| c.noise = noise);
        self
    }

    /// This script with the fault of candidate number `i` set.
    pub fn fault(mut self, i: usize, fault: Fault) -> Self {
        self.candidates[i].fault = fault;
        self
    }

    /// The space that the script describes.
    pub fn space(&self) -> Space {
        let param = |(name, values): &(String, Vec<Value>)| Param {
            // Parameter names are static in real spaces; a scripted one lives as long as the test process.
            name: Box::leak(name.clone().into_boxed_str()),
            trades: "scripted",
            values: values.clone(),
        };
        let illegal: HashSet<Config> = self.illegal.iter().cloned().collect();
        let scripted: HashSet<Config> = self.candidates.iter().map(|c| c.config.clone()).collect();
        let legal = move |c: &Config| !illegal.contains(c);
        let known = move |c: &Config| scripted.contains(c);
        Space {
            params: self.params.iter().map(param).collect(),
            constraints: vec![Constraint::new("legal", legal), Constraint::new("scripted", known)],
            default: self.candidates[0].config.clone(),
        }
    }

    /// The sampled shapes.
    pub fn points(&self) -> Vec<Point> {
        (0u32..).take(self.candidates[0].ns.len()).map(Point).collect()
    }
}

/// A small generator (SplitMix64) with the distributions that scripts and tests need.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A generator; equal seeds give equal sequences.
    pub fn new(seed: u64) -> Self {
        Rng(seed)
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`; 0 when `n` is 0.
    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() % n.max(1) as u64) as usize
    }

    /// Uniform in (0, 1).
    pub fn uniform(&mut self) -> f64 {
        ((self.bits() >> 12) as f64 + 0.5) / (1u64 << 52) as f64
    }

    /// Standard normal, by Box and Muller.
    pub fn normal(&mut self) -> f64 {
        (-2.0 * self.uniform().ln()).sqrt() * (std::f64::consts::TAU * self.uniform()).cos()
    }
}

/// A running script.
pub struct Scripted {
    script: Arc<Script>,
    space: Space,
    index: HashMap<Config, usize>,
    clock: VirtualClock,
    rng: Rng,
    poisoned: bool,
    /// When the machine last finished work, and for how long it has been busy since it last idled.
    last_busy_ns: f64,
    busy_ns: f64,
    /// Configurations in the order they were gated.
    pub admitted: Vec<Config>,
    /// Configurations in the order they were timed.
    pub timed: Vec<Config>,
}

impl Scripted {
    /// Runs `script` on `clock`.
    pub fn new(script: Script, clock: VirtualClock) -> Self {
        let seed = script.seed;
        let space = script.space();
        Self::over(Arc::new(script), space, seed, clock)
    }

    /// Runs a script that others run too, with a seed of its own; `space` is the script's.
    pub fn over(script: Arc<Script>, space: Space, seed: u64, clock: VirtualClock) -> Self {
        let index = script.candidates.iter().enumerate().map(|(i, c)| (c.config.clone(), i)).collect();
        let (rng, admitted, timed) = (Rng::new(seed), Vec::new(), Vec::new());
        let (last_busy_ns, busy_ns) = (0.0, 0.0);
        Scripted { script, space, index, clock, rng, poisoned: false, last_busy_ns, busy_ns, admitted, timed }
    }

    fn now_ns(&self) -> f64 {
        self.clock.now().as_nanos() as f64
    }

    /// The number of the candidate with this config.
    fn find(&self, config: &Config) -> Result<usize, Rejection> {
        if let Some(constraint) = self.space.violated(config) {
            return Err(Rejection::Constraint(constraint));
        }
        Ok(*self.index.get(config).expect("the constraint `scripted` holds"))
    }

    /// One time of a candidate at a point on a machine at full speed.
    fn draw(&mut self, candidate: usize, point: usize) -> f64 {
        let script = Arc::clone(&self.script);
        let c = &script.candidates[candidate];
        match c.samples_ns.get(point).filter(|samples| !samples.is_empty()) {
            Some(samples) => samples[self.rng.below(samples.len())],
            None => c.ns[point] * self.scatter(c.noise),
        }
    }

    fn healthy(&self) -> Result<(), Rejection> {
        if self.poisoned {
            return Err(Rejection::Launch("sticky error 700: an earlier launch failed".to_owned()));
        }
        Ok(())
    }

    /// How much slower than nominal the machine is now.
    fn slowness(&mut self) -> f64 {
        let now = self.now_ns();
        let m = &self.script.machine;
        let spells = m.throttle.iter().filter(|(from, until, _)| (*from..*until).contains(&now)).map(|s| s.2);
        let mut factor = spells.product::<f64>() * piecewise(&m.drift, now);
        if let Some((busy_full, first, idle)) = m.ramp {
            if now - self.last_busy_ns > idle {
                self.busy_ns = 0.0;
            }
            factor *= first + (1.0 - first) * (self.busy_ns / busy_full).min(1.0);
        }
        factor
    }

    fn scatter(&mut self, noise: Noise) -> f64 {
        match noise {
            Noise::None => 1.0,
            Noise::Gaussian(sigma) => (sigma * self.rng.normal()).exp(),
            Noise::Tailed { sigma, share, factor } => {
                let tail = if self.rng.uniform() < share { factor } else { 1.0 };
                (sigma * self.rng.normal()).exp() * tail
            }
        }
    }

    fn spend(&mut self, ns: f64) {
        self.clock.advance_ns(ns);
        self.busy_ns += ns;
        self.last_busy_ns = self.now_ns();
    }
}

/// Value at `x` of straight lines through `knots`, flat outside them; 1 without any.
fn piecewise(knots: &[(f64, f64)], x: f64) -> f64 {
    let (Some(first), Some(last)) = (knots.first(), knots.last()) else { return 1.0 };
    if x <= first.0 {
        return first.1;
    }
    for pair in knots.windows(2) {
        let ((x0, y0), (x1, y1)) = (pair[0], pair[1]);
        if x < x1 {
            return y0 + (y1 - y0) * (x - x0) / (x1 - x0);
        }
    }
    last.1
}

fn wrong() -> Rejection {
    Rejection::Wrong(Wrong {
        check: "tolerance".to_owned(),
        case: "scripted".to_owned(),
        error_over_bound: 40.0,
        detail: "element 3 is 7, wanted 5".to_owned(),
    })
}

impl Subject for Scripted {
    fn space(&self) -> &Space {
        &self.space
    }

    fn points(&self) -> Vec<Point> {
        self.script.points()
    }

    fn admit(&mut self, config: &Config) -> Result<Admitted, Rejection> {
        self.healthy()?;
        let candidate = self.find(config)?;
        let machine = &self.script.machine;
        let (idle, all) = (machine.admit_idle_ns, machine.admit_ns);
        self.spend(all - idle);
        self.clock.advance_ns(idle);
        self.admitted.push(config.clone());
        if let Some(refusal) = &self.script.candidates[candidate].refusal {
            return Err(refusal.clone());
        }
        match self.script.candidates[candidate].fault {
            Fault::None | Fault::LaunchTimed | Fault::WrongLater => Admitted::new(config.clone(), 0.5),
            Fault::Wrong => Err(wrong()),
            Fault::Compile => Err(Rejection::Compile("expected `;`".to_owned())),
            Fault::Launch => Err(Rejection::Launch("invalid configuration".to_owned())),
            Fault::OutOfMemory => Err(Rejection::Launch("out of memory".to_owned())),
            Fault::Panic => panic!("scripted panic at {config}"),
            Fault::Abort => std::process::abort(),
            Fault::Spin => loop {
                std::thread::sleep(Duration::from_millis(1));
            },
            Fault::Poison => {
                self.poisoned = true;
                Admitted::new(config.clone(), 0.5)
            }
        }
    }

    fn time(&mut self, admitted: &Admitted, point: Point) -> Result<Sample, Rejection> {
        self.healthy()?;
        let candidate = self.find(admitted.config())?;
        self.timed.push(admitted.config().clone());
        if self.script.candidates[candidate].fault == Fault::LaunchTimed {
            return Err(Rejection::Launch("invalid configuration".to_owned()));
        }
        let (tick, overhead) = (self.script.machine.tick_ns, self.script.machine.overhead_ns);
        batched(tick, |reps| {
            let ns = self.draw(candidate, point.0 as usize);
            let total = ns * self.slowness() * f64::from(reps);
            self.spend(overhead + total);
            Ok((total / tick).floor() * tick)
        })
    }

    fn confirm(&mut self, admitted: &Admitted) -> Result<Admitted, Rejection> {
        match self.script.candidates[self.find(admitted.config())?].fault {
            Fault::WrongLater => Err(wrong()),
            _ => self.admit(admitted.config()),
        }
    }

    fn usage(&mut self) -> Option<Usage> {
        if self.script.machine.others.is_empty() {
            return None;
        }
        let now = self.now_ns();
        let taken = |(from, until, share): &(f64, f64, f64)| (now.min(*until) - from).max(0.0) * share;
        let others_s = self.script.machine.others.iter().map(taken).sum::<f64>() * 1e-9;
        Some(Usage { all_s: now * 1e-9, others_s })
    }

    /// The parameter `THREADS` says how many processors a candidate uses.
    fn uses_fewer(&self, config: &Config) -> bool {
        config.int("THREADS") < self.space.default.int("THREADS")
    }

    fn tick_ns(&self) -> f64 {
        self.script.machine.tick_ns
    }

    fn floor(&self, point: Point) -> Option<Duration> {
        self.script.floor_ns.get(point.0 as usize).copied().flatten().map(|ns| Duration::from_nanos(ns as u64))
    }
}
