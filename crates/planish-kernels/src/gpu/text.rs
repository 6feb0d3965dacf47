//! Kernel text with its constants, and launches of it.

use std::collections::BTreeMap;

use planish_device::{Launch, Params, Slice, Source};
use planish_tune::{Config, Param, Rejection, Value};

use crate::op::{Dtype, Machine, Shape};

/// Kernel text in parts, each with the file name that compilers shall report.
pub struct Text(pub &'static [(&'static str, &'static str)]);

impl Text {
    /// The parts in order, each under its own file name.
    pub fn whole(&self) -> String {
        self.0.iter().map(|(name, text)| format!("#line 1 \"{name}\"\n{text}\n")).collect()
    }

    /// The constant that sets parameter `name`: `SPEC_NAME` or `SHAPE_NAME`, or none where the text reads neither.
    pub fn constant(&self, name: &str) -> Option<String> {
        let declares = |kind: &str| self.0.iter().any(|(_, t)| t.contains(&format!("{kind}({name},")));
        if declares("SPEC_U32") || declares("SPEC_BOOL") {
            return Some(format!("SPEC_{name}"));
        }
        let shape = format!("SHAPE_{name}");
        self.0.iter().any(|(_, t)| mentions(t, &shape)).then_some(shape)
    }
}

/// Whether `text` contains `word` as a whole word.
fn mentions(text: &str, word: &str) -> bool {
    let part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.match_indices(word).any(|(at, _)| !text[..at].ends_with(part) && !text[at + word.len()..].starts_with(part))
}

/// A launch of one entry point.
pub struct KernelLaunch<'a> {
    /// The text.
    pub text: &'a Text,
    /// Entry point in it.
    pub entry: &'a str,
    /// Constants by parameter name, without `SPEC_` or `SHAPE_`.
    pub constants: Vec<(&'a str, i64)>,
    /// The parameter block, in 32-bit words.
    pub params: Vec<u32>,
    /// Groups of the grid.
    pub groups: usize,
    /// Threads of a group.
    pub threads: usize,
    /// Dynamic shared bytes.
    pub shared_bytes: usize,
}

impl KernelLaunch<'_> {
    /// The launch on `args`; a constant that the text does not read is a fault of the op and refused.
    pub fn on(self, machine: &Machine<'_>, args: Vec<Slice>) -> Result<Launch, Rejection> {
        let mut constants = BTreeMap::new();
        for (name, value) in self.constants {
            let key = self.text.constant(name);
            let key =
                key.ok_or_else(|| Rejection::Compile(format!("constant {name} does not reach {}", self.entry)))?;
            constants.insert(key, value);
        }
        let count = |what: &str, n: usize| {
            u32::try_from(n).map_err(|_| Rejection::Constraint(format!("{}: {n} {what}", self.entry)))
        };
        let threads = count("threads", self.threads)?;
        let source = Source::Text { name: self.entry.to_owned(), text: self.text.whole(), constants, threads };
        let program = machine.backend.load(&source).map_err(|e| Rejection::Compile(e.to_string()))?;
        Ok(Launch {
            program,
            args,
            params: Params::words(&self.params),
            tasks: count("groups", self.groups)?,
            threads,
            scratch_bytes: count("shared bytes", self.shared_bytes)?,
            overlap: false,
            views: Vec::new(),
        })
    }
}

/// The number under `name`, which a configuration of the op's space always has.
pub fn knob(config: &Config, name: &str) -> Result<usize, Rejection> {
    let value = config.int(name).and_then(|v| usize::try_from(v).ok());
    value.ok_or_else(|| Rejection::Constraint(format!("{name} is missing")))
}

/// A parameter with whole-number values.
pub fn ints(name: &'static str, trades: &'static str, values: &[i64]) -> Param {
    Param { name, trades, values: values.iter().map(|v| Value::Int(*v)).collect() }
}

/// The float type of tensors, under `type` of a shape that was checked.
pub fn io(shape: &Shape) -> Dtype {
    Dtype::float(shape.name("type")).expect("shape was checked")
}

/// Whether `type` of a shape names a float type; its other fields are the op's to check.
pub fn check_io(shape: &Shape) -> Result<(), String> {
    Dtype::float(shape.name("type")).map(drop).ok_or_else(|| format!("{shape}: type is f32, f16 or bf16"))
}

/// The number by which kernel text tells float types apart, in constant `SHAPE_IO`.
pub fn io_code(dtype: Dtype) -> i64 {
    match dtype {
        Dtype::F16 => 1,
        Dtype::Bf16 => 2,
        _ => 0,
    }
}

/// The text that gives `io_t`, the float type that `SHAPE_IO` chooses.
pub const IO: (&str, &str) = ("io.k", include_str!("include/io.k"));
/// The text of weights in GGUF's types.
pub const QUANT: (&str, &str) = ("quant.k", include_str!("include/quant.k"));
/// The text of the random generator.
pub const PHILOX: (&str, &str) = ("philox.k", include_str!("include/philox.k"));
/// The text of reductions over a group.
pub const REDUCE: (&str, &str) = ("reduce.k", include_str!("include/reduce.k"));

/// The text of gates of gated units and their slopes.
pub const GATE: (&str, &str) = ("gate.k", include_str!("include/gate.k"));
/// The slope of a soft cap.
pub const TANH: (&str, &str) = ("tanh.k", include_str!("include/tanh.k"));

/// The text that every cross entropy shares; it needs that of reductions before it.
pub const LOSS: (&str, &str) = ("include/cross_entropy.k", include_str!("include/cross_entropy.k"));

/// The text that both passes of a linear cross entropy share; it needs that of losses before it.
pub const LINEAR_LOSS: (&str, &str) =
    ("include/linear_cross_entropy.k", include_str!("include/linear_cross_entropy.k"));

/// `shape` with each size at most the given one, for cases that stand in for a large shape.
pub fn at_most(shape: &Shape, sizes: &[(&str, usize)]) -> Shape {
    sizes.iter().fold(shape.clone(), |s, (name, most)| {
        let n = s.size(name).min(*most) as i64;
        s.with(name, n)
    })
}

#[cfg(test)]
mod tests {
    use super::Text;

    #[test]
    fn constants_are_found_as_whole_words() {
        let text = Text(&[("a.k", "SPEC_U32(THREADS, 0)\nSHARED(float, s, SHAPE_TILE_M * 2);")]);
        assert_eq!(text.constant("THREADS").as_deref(), Some("SPEC_THREADS"));
        assert_eq!(text.constant("TILE_M").as_deref(), Some("SHAPE_TILE_M"));
        assert_eq!(text.constant("TILE"), None);
        assert_eq!(text.constant("ROWS"), None);
    }
}
