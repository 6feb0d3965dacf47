//! One parameter of a kernel at many shapes: every value gated, then timed beside the default and beside a pure read.
//!
//! It asks whether one constant is best everywhere, which a tuner, looking at one shape at a time, never says.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use planish_device::system;
use planish_kernels::op::{Op, Shape};
use planish_kernels::subject;
use planish_tune::contain::Quarantine;
use planish_tune::{Budget, Config, Interval, Resume, Silent, Sweep, Task, Value};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::tuning::{self, Setting, Work};

/// Op of the pure read that products are held against.
const CONTROL: &str = "read_only";
/// Rounds of the control, whose fastest configuration counts.
const CONTROL_ROUNDS: usize = 8;
/// Loss below which a value counts as the best too.
pub const MARGIN: f64 = 0.01;

/// What to sweep.
pub struct Ask<'a> {
    /// The op.
    pub op: &'static Op,
    /// The parameter.
    pub param: &'a str,
    /// Its values; empty for all that the space has.
    pub values: &'a [Value],
    /// Rounds at each shape.
    pub rounds: usize,
}

/// A pure read of as many bytes, on the same threads and as cold.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Control {
    /// Bytes read.
    pub bytes: u64,
    /// Its fastest configuration.
    pub config: Config,
    /// Median time.
    pub median_ns: f64,
    /// Spread of that.
    pub spread_ns: f64,
    /// All of its configurations.
    pub sweep: Sweep,
}

/// A sweep at one shape.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AtShape {
    /// What the shape is called.
    pub name: String,
    /// The shape.
    pub shape: Shape,
    /// Bytes that one execution must read.
    pub read_bytes: u64,
    /// Bytes of the copies that the timings rotate over.
    pub rotated_bytes: u64,
    /// Whether those are more than the caches hold.
    pub cold: bool,
    /// The parameter's value in the default.
    pub default: Value,
    /// What was found.
    pub sweep: Sweep,
    /// The pure read, where there is an op for it.
    pub control: Option<Control>,
    /// Load averages before and after, of one minute.
    pub load: [Option<f64>; 2],
}

/// A value of the swept parameter and its gain over the default value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Best {
    /// Which shape.
    pub name: String,
    /// The fastest value.
    pub value: Value,
    /// Values that are as fast, as far as these rounds can tell.
    pub as_good: Vec<Value>,
    /// The default value's time over the fastest's.
    pub ratio: Interval,
}

/// What a sweep says about constants.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// By shape.
    pub best: Vec<Best>,
    /// Values that are among the best at every shape.
    pub everywhere: Vec<Value>,
    /// Where there is none: the value that loses least where it loses most, that loss as a ratio, and the shape.
    pub compromise: Option<(Value, f64, String)>,
}

impl AtShape {
    /// The swept parameter's value in row `i`.
    pub fn value(&self, param: &str, i: usize) -> Value {
        self.sweep.swept[i].config.get(param).cloned().unwrap_or_else(|| self.default.clone())
    }

    /// Gigabytes a second of a time.
    pub fn gb_s(&self, ns: f64) -> f64 {
        self.read_bytes as f64 / ns
    }
}

/// Sweeps at one shape within `budget`.
pub fn at_shape(ask: &Ask<'_>, name: &str, shape: &Shape, setting: &Setting<'_>, budget: Duration) -> Result<AtShape> {
    let before = load();
    let work = work(ask.op, shape)?;
    let space = work.space(&setting.machine);
    let param = space.params.iter().find(|p| p.name == ask.param).ok_or_else(|| {
        let known = space.params.iter().map(|p| p.name).collect::<Vec<_>>().join(", ");
        Error::request(format!("{} {shape} has no parameter {}", ask.op.name, ask.param))
            .with_hint(format!("it has {known}"))
    })?;
    tuning::fits(&work, setting)?;
    let values = unique(if ask.values.is_empty() { &param.values } else { ask.values }.iter().cloned());
    if !values.iter().any(|v| param.values.contains(v)) {
        let known = param.values.iter().map(Value::to_string).collect::<Vec<_>>().join(", ");
        let asked = values.iter().map(Value::to_string).collect::<Vec<_>>().join(", ");
        let message = format!("{} {shape}: {} takes none of {asked} on {}", ask.op.name, ask.param, setting.device);
        return Err(Error::request(message).with_hint(format!("values are {known}")));
    }
    let configs: Vec<Config> = values.iter().map(|v| space.default.clone().with(ask.param, v.clone())).collect();
    let sweep = run(&work, &configs, ask.rounds, setting, budget.mul_f64(0.7))?;
    let read_bytes = (ask.op.cost)(shape).read_bytes;
    let control = control(read_bytes, setting, budget.mul_f64(0.3))?;
    let default = space.default.get(ask.param).cloned().expect("a default has every parameter");
    let rotated_bytes = subject::rotated_bytes(read_bytes, setting.rotate_bytes);
    let cold = subject::cold(read_bytes, setting.rotate_bytes);
    let (name, shape, load) = (name.to_owned(), shape.clone(), [before, load()]);
    Ok(AtShape { name, shape, read_bytes, rotated_bytes, cold, default, sweep, control, load })
}

fn load() -> Option<f64> {
    system::load_average().map(|l| l[0])
}

fn work(op: &'static Op, shape: &Shape) -> Result<Work> {
    (op.check)(shape).map_err(|why| Error::request(format!("{}: {why}", op.name)))?;
    Ok(Work { op, shape: shape.clone(), share: 1.0, uses: 1, step: None, deterministic: false })
}

fn run(work: &Work, configs: &[Config], rounds: usize, setting: &Setting<'_>, budget: Duration) -> Result<Sweep> {
    let quarantine = setting.quarantine.as_deref().map_or_else(Quarantine::in_memory, Quarantine::open);
    let mut remote = tuning::remote(work, setting, &Arc::new(Mutex::new(quarantine)))?;
    let task = Task {
        budget: Budget::new(setting.clock, budget),
        cancel: setting.cancel,
        observer: &mut Silent,
        resume: Resume::default(),
        policy: setting.policy.clone(),
    };
    planish_tune::sweep(&mut remote, configs, rounds, task).map_err(|e| {
        let error = Error::request(format!("{} {}: {e}", work.op.name, work.shape));
        e.next_step().map_or(error.clone(), |hint| error.with_hint(hint))
    })
}

/// The pure read of `bytes`, at each value of each of its parameters; none where the device has no op for it.
fn control(bytes: u64, setting: &Setting<'_>, budget: Duration) -> Result<Option<Control>> {
    let device = &setting.machine.backend.limits().backend;
    let Some(op) = subject::find(device, CONTROL) else { return Ok(None) };
    let work = work(op, &Shape::new().with("words", (bytes / 4).max(1) as i64))?;
    let space = work.space(&setting.machine);
    let one = |name: &'static str, v: &Value| space.default.clone().with(name, v.clone());
    let values = space.params.iter().flat_map(|p| p.values.iter().map(move |v| (p.name, v)));
    let configs = unique(values.map(|(n, v)| one(n, v)));
    let sweep = run(&work, &configs, CONTROL_ROUNDS, setting, budget)?;
    let Some(best) = sweep.best() else { return Ok(None) };
    let (config, times) = (sweep.swept[best].config.clone(), &sweep.swept[best].times[0]);
    Ok(Some(Control { bytes, config, median_ns: times.median_ns, spread_ns: times.spread_ns, sweep }))
}

/// Each once, in order.
fn unique<T: PartialEq>(all: impl Iterator<Item = T>) -> Vec<T> {
    let mut found = Vec::new();
    for one in all {
        if !found.contains(&one) {
            found.push(one);
        }
    }
    found
}

/// Which value is best where, and whether one is best everywhere.
pub fn verdict(param: &str, shapes: &[AtShape]) -> Verdict {
    let best: Vec<Best> = shapes.iter().filter_map(|s| best(param, s)).collect();
    let values = unique(shapes.iter().flat_map(|s| (0..s.sweep.swept.len()).map(move |i| s.value(param, i))));
    let everywhere: Vec<Value> =
        values.iter().filter(|v| !best.is_empty() && best.iter().all(|b| b.as_good.contains(v))).cloned().collect();
    let loss = |v: &Value| {
        let losses = shapes.iter().map(|s| (loss_at(param, s, v), s.name.clone()));
        losses.max_by(|a, b| a.0.total_cmp(&b.0))
    };
    let least = values.iter().filter_map(|v| loss(v).map(|(ratio, name)| (v.clone(), ratio, name)));
    let least = least.min_by(|a, b| a.1.total_cmp(&b.1)).filter(|(_, ratio, _)| ratio.is_finite());
    Verdict { best, compromise: if everywhere.is_empty() { least } else { None }, everywhere }
}

fn best(param: &str, s: &AtShape) -> Option<Best> {
    let at = s.sweep.best()?;
    let good = |i: &usize| s.sweep.as_good_as_best(*i, MARGIN) == Some(true);
    Some(Best {
        name: s.name.clone(),
        value: s.value(param, at),
        as_good: (0..s.sweep.swept.len()).filter(good).map(|i| s.value(param, i)).collect(),
        ratio: *s.sweep.swept[at].ratios.first()?,
    })
}

/// Time of `value` over that of the fastest; infinite where it was not timed.
fn loss_at(param: &str, s: &AtShape, value: &Value) -> f64 {
    let row = (0..s.sweep.swept.len()).find(|i| s.value(param, *i) == *value && s.sweep.swept[*i].timed());
    let ratio = row.zip(s.sweep.best()).and_then(|(row, best)| s.sweep.versus(best, row));
    ratio.map_or(f64::INFINITY, |r| r.ratio)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use planish_tune::scripted::{Script, Scripted};
    use planish_tune::{Policy, VirtualClock};

    use super::*;

    fn swept(name: &str, ns: &[f64]) -> AtShape {
        let clock = VirtualClock::new();
        let mut subject = Scripted::new(Script::of_times(1, ns), clock.clone());
        let task = Task {
            budget: Budget::new(&clock, Duration::from_secs(600)),
            cancel: &AtomicBool::new(false),
            observer: &mut Silent,
            resume: Resume::default(),
            policy: Policy::default(),
        };
        let configs: Vec<Config> = (0i64..).take(ns.len()).map(|i| Config::new().with("V", i)).collect();
        let sweep = planish_tune::sweep(&mut subject, &configs, 24, task).unwrap();
        let (name, shape, default) = (name.to_owned(), Shape::new(), Value::Int(0));
        let (cold, control, load) = (true, None, [None; 2]);
        AtShape { name, shape, read_bytes: 1, rotated_bytes: 1, cold, default, sweep, control, load }
    }

    #[test]
    fn a_constant_that_is_best_everywhere_is_found() {
        let found = verdict("V", &[swept("a", &[1e5, 0.8e5, 0.9e5]), swept("b", &[1e5, 0.5e5, 0.5e5])]);
        assert_eq!((found.everywhere, found.compromise), (vec![Value::Int(1)], None));
        assert_eq!(found.best[1].as_good, [Value::Int(1), Value::Int(2)]);
    }

    /// The head wants 1 and the control 2: no value is best at both, and 2 loses least.
    #[test]
    fn where_shapes_disagree_the_least_loss_is_named() {
        let found = verdict("V", &[swept("head", &[1e5, 0.5e5, 0.6e5]), swept("control", &[1e5, 1.4e5, 0.9e5])]);
        assert!(found.everywhere.is_empty(), "{found:?}");
        let (value, loss, name) = found.compromise.unwrap();
        assert_eq!((value, name.as_str()), (Value::Int(2), "head"));
        assert!((loss - 1.2).abs() < 0.02, "{loss}");
    }
}
