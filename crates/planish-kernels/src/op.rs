//! What an op is: a value in a table, from its search space to its launches.

use std::fmt;
use std::str::FromStr;

use planish_device::{Backend, Launch, Slice};
use planish_tune::{Config, Constraint, Rejection, Space, Value};

use crate::cpu::isa::Isa;
use crate::reference::Shaken;

/// The named sizes and types that a choice depends on, such as `batch=1,cols=576,rows=1536,type=q4_1`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct Shape(Config);

impl Shape {
    /// The shape without fields.
    pub fn new() -> Self {
        Self::default()
    }

    /// This shape with `name` set to `value`.
    pub fn with(self, name: &str, value: impl Into<Value>) -> Self {
        Shape(self.0.with(name, value))
    }

    /// The size under `name`; panics when the shape has none, since an op's shapes always carry its fields.
    #[track_caller]
    pub fn size(&self, name: &str) -> usize {
        match self.0.int(name).map(usize::try_from) {
            Some(Ok(n)) => n,
            _ => panic!("shape {self} has no size {name}"),
        }
    }

    /// Whether the shape has a field `name`.
    pub fn has(&self, name: &str) -> bool {
        self.0.get(name).is_some()
    }

    /// The name under `name`; panics when the shape has none.
    #[track_caller]
    pub fn name(&self, name: &str) -> &str {
        self.0.name(name).unwrap_or_else(|| panic!("shape {self} has no name {name}"))
    }

    /// Whether the shape has exactly the fields `names`, sizes being at least zero; for shapes read from outside.
    pub fn check(&self, sizes: &[&str], names: &[&str]) -> Result<(), String> {
        for n in sizes {
            match self.0.int(n) {
                Some(v) if (0..=1 << 40).contains(&v) => {}
                _ => return Err(format!("shape {self}: {n} must be a size")),
            }
        }
        for n in names {
            self.0.name(n).ok_or_else(|| format!("shape {self}: {n} must be a name"))?;
        }
        if self.0.len() != sizes.len() + names.len() {
            return Err(format!("shape {self} must have the fields {}", [sizes, names].concat().join(", ")));
        }
        Ok(())
    }
}

/// `name=value,name=value` in name order: the canonical text under which choices are stored.
impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (k, v)) in self.0.iter().enumerate() {
            write!(f, "{}{k}={v}", if i > 0 { "," } else { "" })?;
        }
        Ok(())
    }
}

/// Reads what `Display` writes, in any order.
impl FromStr for Shape {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let mut shape = Shape::new();
        for part in text.split(',').filter(|_| !text.is_empty()) {
            let pair = part.split_once('=').filter(|(name, value)| !name.is_empty() && !value.is_empty());
            let (name, value) = pair.ok_or_else(|| format!("shape: {part:?} is not name=value"))?;
            if shape.0.get(name).is_some() {
                return Err(format!("shape: {name} is given twice"));
            }
            shape = shape.with(name, value.parse().map_or_else(|_| Value::from(value), Value::Int));
        }
        Ok(shape)
    }
}

/// Scalars of a call that no choice depends on, such as `eps`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Attrs(Vec<(&'static str, f64)>);

impl Attrs {
    /// No scalars.
    pub fn new() -> Self {
        Self::default()
    }

    /// These scalars and `name`.
    pub fn with(mut self, name: &'static str, value: f64) -> Self {
        self.0.push((name, value));
        self
    }

    /// The scalar `name`, zero when absent.
    pub fn get(&self, name: &str) -> f64 {
        self.0.iter().find(|(n, _)| *n == name).map_or(0.0, |(_, v)| *v)
    }

    /// Whether the flag `name` is set.
    pub fn is(&self, name: &str) -> bool {
        self.get(name) != 0.0
    }
}

/// What one execution must do at least.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Additions and multiplications in f32.
    pub flops: u64,
    /// Additions and multiplications of bytes.
    pub int8_ops: u64,
    /// Bytes that must be read.
    pub read_bytes: u64,
    /// Bytes that must be written.
    pub write_bytes: u64,
}

impl Cost {
    /// Nanoseconds that the arithmetic takes at these rates, in 1e9 operations a second; the two kinds may overlap.
    pub fn arithmetic_ns(&self, f32_gflop_s: f64, int8_gop_s: f64) -> f64 {
        (self.flops as f64 / f32_gflop_s).max(self.int8_ops as f64 / int8_gop_s)
    }
}

/// The machine a call is turned into launches for.
#[derive(Clone, Copy)]
pub struct Machine<'a> {
    /// Memory, programs and limits.
    pub backend: &'a dyn Backend,
    /// Instruction set of the CPU kernels.
    pub isa: Isa,
}

/// One use of an op: its shape, scalars and memory.
#[derive(Clone)]
pub struct OpCall {
    /// The op.
    pub op: &'static Op,
    /// What its choice depends on.
    pub shape: Shape,
    /// Scalars.
    pub attrs: Attrs,
    /// Memory, in the op's order.
    pub args: Vec<Slice>,
}

impl OpCall {
    /// The launches of this call under `config`, or the constraint that forbids it.
    pub fn steps(&self, config: &Config, machine: &Machine<'_>) -> Result<Vec<Launch>, Rejection> {
        (self.op.steps)(self, config, machine)
    }
}

/// Element type of a tensor that the gate compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    /// 32-bit float.
    F32,
    /// 16-bit float.
    F16,
    /// The upper half of a 32-bit float.
    Bf16,
    /// Unsigned 32-bit numbers.
    U32,
    /// Signed bytes.
    I8,
    /// Metadata of 8-bit activation blocks, 16 bytes each: scale, scaled sum and sum as f32, two half sums as i16.
    Block,
}

impl Dtype {
    /// The bytes of value `i`.
    pub fn span(self, i: usize) -> std::ops::Range<usize> {
        match self {
            Dtype::F32 | Dtype::U32 => i * 4..i * 4 + 4,
            Dtype::F16 | Dtype::Bf16 => i * 2..i * 2 + 2,
            Dtype::I8 => i..i + 1,
            Dtype::Block => {
                let (block, field) = (i / 5 * 16, i % 5);
                if field < 3 {
                    block + field * 4..block + field * 4 + 4
                } else {
                    block + 6 + field * 2..block + 8 + field * 2
                }
            }
        }
    }

    /// The value in `bytes`, which are those of one value.
    pub fn value(self, bytes: &[u8]) -> f64 {
        match *bytes {
            [b] => f64::from(b as i8),
            [a, b] if self == Dtype::F16 => f64::from(half::f16::from_le_bytes([a, b])),
            [a, b] if self == Dtype::Bf16 => f64::from(half::bf16::from_le_bytes([a, b])),
            [a, b] => f64::from(i16::from_le_bytes([a, b])),
            [a, b, c, d] if self == Dtype::U32 => f64::from(u32::from_le_bytes([a, b, c, d])),
            [a, b, c, d] => f64::from(f32::from_le_bytes([a, b, c, d])),
            _ => unreachable!("values are one, two or four bytes"),
        }
    }
}

/// The float types that tensors of a GPU op may have, by name.
pub const FLOATS: [(&str, Dtype); 3] = [("f32", Dtype::F32), ("f16", Dtype::F16), ("bf16", Dtype::Bf16)];

impl Dtype {
    /// The float type called `name`.
    pub fn float(name: &str) -> Option<Dtype> {
        FLOATS.iter().find(|(n, _)| *n == name).map(|(_, d)| *d)
    }

    /// Size of one value in bytes; of a block for `Block`.
    pub fn bytes(self) -> u64 {
        match self {
            Dtype::F32 | Dtype::U32 => 4,
            Dtype::F16 | Dtype::Bf16 => 2,
            Dtype::I8 => 1,
            Dtype::Block => 16,
        }
    }

    /// Unit roundoff of a float type.
    pub(crate) fn unit(self) -> Option<f64> {
        matches!(self, Dtype::F32 | Dtype::F16 | Dtype::Bf16).then(|| self.tolerance().0)
    }

    /// `x`, or infinity where rounding to this float type makes it that.
    fn overflowed(self, x: f64) -> f64 {
        if self == Dtype::F16 && x.abs() >= 65520.0 { f64::INFINITY.copysign(x) } else { x }
    }

    /// Unit roundoff, relative and absolute tolerance (the latter times the largest value) of a float type.
    fn tolerance(self) -> (f64, f64, f64) {
        match self {
            Dtype::F16 => (f64::exp2(-11.0), 2e-3, 1e-3),
            Dtype::Bf16 => (f64::exp2(-8.0), 1.6e-2, 8e-3),
            _ => (f64::exp2(-24.0), 1e-5, 2e-6),
        }
    }
}

/// What an output must hold.
#[derive(Clone, Debug)]
pub struct Expected {
    /// How to read the bytes.
    pub dtype: Dtype,
    /// Wanted values, in f64.
    pub values: Vec<f64>,
    /// Largest allowed absolute error of each value; 0 asks for equality.
    pub bounds: Vec<f64>,
    /// Values of the buffer behind those, which must stay as they were.
    pub untouched: usize,
}

impl Expected {
    /// f32 outputs under the gate's rule: at most twice the error of plain f32 arithmetic plus one rounding, and never
    /// above the ceiling `1e-5 |y| + 2e-6 max |y|`.
    pub fn f32(y64: Vec<f64>, y32: &[f32]) -> Self {
        Expected::float(Dtype::F32, y64, y32)
    }

    /// Outputs of float type `dtype` that are computed in f32 and rounded once, under the same rule with that rounding.
    pub fn float(dtype: Dtype, y64: Vec<f64>, y32: &[f32]) -> Self {
        Expected::drawn(dtype, y64, y32, &[])
    }

    /// The same with other draws of the error of plain f32 arithmetic: the largest counts.
    pub fn drawn(dtype: Dtype, y64: Vec<f64>, y32: &[f32], draws: &[Vec<Shaken>]) -> Self {
        let ceilings = vec![0.0; y64.len()];
        Expected::drawn_below(dtype, y64, (y32, draws), &ceilings)
    }

    /// The same where no bound is above the larger of the usual ceiling and its own of `ceilings`: some formulas pass through
    /// more than their results are, and amplify the roundings of it.
    pub fn drawn_below(dtype: Dtype, y64: Vec<f64>, (y32, draws): (&[f32], &[Vec<Shaken>]), ceilings: &[f64]) -> Self {
        assert!(
            y64.len() == y32.len() && y64.len() == ceilings.len(),
            "one plain value and ceiling for each exact one"
        );
        let finite = || y64.iter().zip(y32).filter(|(w, p)| w.is_finite() && p.is_finite());
        let mut plain = finite().map(|(w, p)| (f64::from(*p) - w).abs()).fold(0.0, f64::max);
        for draw in draws {
            assert_eq!(y64.len(), draw.len(), "one value of a draw for each exact one");
            let errors = y64.iter().zip(draw).map(|(w, s)| s.error(*w));
            plain = errors.filter(|e| e.is_finite()).fold(plain, f64::max);
        }
        let scale = finite().map(|(w, _)| w.abs()).fold(0.0, f64::max);
        let (unit, relative, absolute) = dtype.tolerance();
        // What is under the least normal f32 may be flushed to zero; half a step of the smallest f16, while bf16 reaches as
        // far down as f32.
        let tiny = if dtype == Dtype::F16 { f64::exp2(-25.0) } else { f64::from(f32::MIN_POSITIVE) };
        let bound = |(w, ceiling): (&f64, &f64)| {
            let rounded = if dtype == Dtype::F32 { scale } else { w.abs() + 2.0 * plain };
            (2.0 * plain + unit * rounded).min(ceiling.max(relative * w.abs() + absolute * scale)) + tiny
        };
        let bounds = y64.iter().zip(ceilings).map(bound).collect();
        Expected { dtype, values: y64.into_iter().map(|w| dtype.overflowed(w)).collect(), bounds, untouched: 0 }
    }

    /// Sums of products, each with the sum of its terms' magnitudes: order alone moves a sum by some roundings of that.
    ///
    /// Allowed are twice the error of plain f32 arithmetic and 1e-6 of the magnitudes, never above 1e-5 of them, and the
    /// rounding to `dtype`.
    pub fn sums(dtype: Dtype, y64: Vec<f64>, y32: &[f32], magnitudes: &[f64]) -> Self {
        assert!(y64.len() == y32.len() && y64.len() == magnitudes.len(), "one plain value and magnitude for each sum");
        let unit = dtype.tolerance().0;
        let tiny = if dtype == Dtype::F16 { f64::exp2(-25.0) } else { 1e-30 };
        let bound = |(w, (p, m)): (&f64, (&f32, &f64))| {
            let sum = (2.0 * (f64::from(*p) - w).abs() + 1e-6 * m).min(1e-5 * m);
            sum + unit * (w.abs() + sum) + tiny
        };
        let bounds = y64.iter().zip(y32.iter().zip(magnitudes)).map(bound).collect();
        Expected { dtype, values: y64, bounds, untouched: 0 }
    }

    /// Outputs that must be equal to `values`.
    pub fn exact(dtype: Dtype, values: Vec<f64>) -> Self {
        Expected { dtype, bounds: vec![0.0; values.len()], values, untouched: 0 }
    }

    /// The same, followed by `untouched` values that must keep what they hold.
    pub fn then_untouched(mut self, untouched: usize) -> Self {
        self.untouched = untouched;
        self
    }
}

/// One argument of a problem.
#[derive(Clone, Debug)]
pub enum Arg {
    /// Read, and must not change.
    In(Vec<u8>),
    /// Poisoned before, must be covered and right after.
    Out(Expected),
    /// Read and updated.
    InOut(Vec<u8>, Expected),
    /// Poisoned before, free to use.
    Scratch(usize),
}

/// A call with data: inputs, and what must come out, computed in f64 on the inputs as rounded.
#[derive(Clone, Debug)]
pub struct Problem {
    /// Shape, with the fields of the op.
    pub shape: Shape,
    /// Scalars.
    pub attrs: Attrs,
    /// Arguments in the op's order.
    pub args: Vec<Arg>,
    /// What makes this problem special, for reports.
    pub label: String,
}

/// Which inputs a problem gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Fill {
    /// Random of ordinary size.
    Random,
    /// Random with some values huge and some tiny.
    Extreme,
    /// Random, and all of it 1e12 times as large.
    Huge,
    /// Random, and all of it 1e12 times as small.
    Tiny,
    /// Random, to be timed and never compared: an op may leave out the exact results, which cost far more than the run.
    Unjudged,
}

/// An op of the table.
pub struct Op {
    /// Name in stores, reports and configurations.
    pub name: &'static str,
    /// The formula, and which resource bounds it.
    pub about: &'static str,
    /// Checks the fields of a shape read from outside.
    pub check: fn(&Shape) -> Result<(), String>,
    /// What may be tried at this shape on this machine.
    pub space: fn(&Shape, &Machine<'_>) -> Space,
    /// What one execution must do at least.
    pub cost: fn(&Shape) -> Cost,
    /// Shapes that the gate runs: the tuned one or a stand-in small enough to check in f64, then edges and odd tails.
    pub cases: fn(&Shape) -> Vec<Shape>,
    /// Inputs and expected outputs.
    pub problem: fn(&Shape, u64, Fill) -> Problem,
    /// Ordered launches under a configuration.
    pub steps: fn(&OpCall, &Config, &Machine<'_>) -> Result<Vec<Launch>, Rejection>,
    /// Which arguments are rotated between timings so that caches stay cold.
    pub rotated: &'static [usize],
    /// Reduction class: the parameters that decide in which order numbers are summed. Configurations that agree in them
    /// give the same bits.
    pub reduces: &'static [&'static str],
}

impl Op {
    /// `space` cut down to the reduction class of its default: whatever is chosen of it, the bits stay.
    pub fn in_order(&self, mut space: Space) -> Space {
        let of = |name: &str| space.params.iter().any(|p| p.name == name && p.values.len() > 1);
        let fixed = self.reduces.iter().filter(|name| of(name));
        let fixed: Vec<(&str, Value)> = fixed.filter_map(|n| Some((*n, space.default.get(n)?.clone()))).collect();
        if fixed.is_empty() {
            return space;
        }
        let names: Vec<&str> = fixed.iter().map(|(name, _)| *name).collect();
        let name = format!("sums in the order of the default: its {}", names.join(", "));
        let holds = move |c: &Config| fixed.iter().all(|(name, value)| c.get(name) == Some(value));
        space.constraints.push(Constraint::new(name, holds));
        space
    }

    /// The reduction class of `config`: what it says of the parameters that decide the order of sums.
    pub fn class(&self, config: &Config) -> Config {
        let of = |class: Config, name: &&str| config.get(name).map_or(class.clone(), |v| class.with(name, v.clone()));
        self.reduces.iter().fold(Config::new(), of)
    }
}

impl fmt::Debug for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Op({})", self.name)
    }
}
