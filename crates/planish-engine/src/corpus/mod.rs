//! A corpus of models with expected logits: what must hold in every configuration that a promotion could bring.
//!
//! No expected value comes from planish: all are float64 results of other implementations, which each case names.

pub mod cover;
pub mod derive;
pub mod layers;
pub mod quantize;
pub mod run;

use planish_kernels::quant::WeightType;

/// Where the model of a case comes from.
#[derive(Clone, Copy, Debug)]
pub enum Source {
    /// A random-weight model, whole.
    Tiny(&'static [u8]),
    /// The default model in this type, derived from its Q4_1 file.
    Derived(WeightType),
}

/// A model and what it must produce.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Name of the model.
    pub name: &'static str,
    /// Where the model comes from.
    pub source: Source,
    /// The expected file, JSON as `verify::ExpectedFile` reads it.
    pub expected: &'static str,
    /// Who computed it.
    pub oracle: &'static str,
}

const TWO: &str = "two implementations in float64";
const ONE: &str = "one implementation in float64 (numpy)";

macro_rules! tiny {
    ($name:literal) => {
        Case {
            name: $name,
            source: Source::Tiny(include_bytes!(concat!("../../tests/goldens/tiny/", $name, ".gguf"))),
            expected: include_str!(concat!("../../tests/goldens/tiny_expected/", $name, ".json")),
            oracle: TWO,
        }
    };
}

macro_rules! derived {
    ($name:literal, $ty:ident, $oracle:ident) => {
        Case {
            name: concat!("smollm2-", $name),
            source: Source::Derived(WeightType::$ty),
            expected: include_str!(concat!("../../tests/goldens/real/smollm2-", $name, ".json")),
            oracle: $oracle,
        }
    };
}

/// Every case: nine weight types of one model, then the other architectures.
///
/// The F32 file holds the very weights of the Q4_1 file, so its expected values are the same; 8-bit activations are not
/// run on it, since float weights meet activations as they are.
pub static CASES: &[Case] = &[
    derived!("q4_1", Q4_1, TWO),
    derived!("q4_0", Q4_0, TWO),
    derived!("q5_0", Q5_0, TWO),
    derived!("q5_1", Q5_1, TWO),
    derived!("q8_0", Q8_0, TWO),
    derived!("iq4_nl", IQ4_NL, ONE),
    derived!("f16", F16, TWO),
    derived!("bf16", BF16, ONE),
    derived!("f32", F32, TWO),
    tiny!("qwen2-f16"),
    tiny!("qwen2-q4_k_m"),
    tiny!("qwen3-bf16"),
    tiny!("qwen3-q4_k_m"),
    tiny!("gemma3-f16"),
    tiny!("gemma3-q4_0"),
    tiny!("gemma3-q4_k_m"),
    tiny!("llama3rope-f16"),
    tiny!("llama3rope-q8_0"),
];

/// Type of the file that the default model's cases are derived from.
pub const SOURCE_TYPE: WeightType = WeightType::Q4_1;
