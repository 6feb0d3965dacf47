//! The architectures as records in one table, and the numbers and tensors that a model file of each must have.

use crate::error::{Error, Result};
use crate::gguf::{Gguf, MetaType, Value, required, tensor_type, type_label};

/// What the gate of the feed-forward block goes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// x / (1 + e^-x).
    Silu,
    /// The tanh form of GELU.
    GeluTanh,
}

/// Layers that see only the last positions, mixed with layers that see all.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Windows {
    /// Every `pattern`-th layer is global where the file does not say.
    pub pattern: usize,
    /// Rotary base of the windowed layers where the file does not say.
    pub rope_base: f32,
}

/// A size that a tensor's shape is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// Width of the residual stream.
    Hidden,
    /// All query heads; also the width of what attention returns.
    Queries,
    /// All key heads, or all value heads.
    Keys,
    /// Width of the feed-forward block.
    Ffn,
    /// Rows of the embedding.
    Vocab,
    /// Width of a head.
    Head,
    /// Rotary pairs of a head.
    RopePairs,
}

/// A tensor that an architecture has: name, shape (row length first) and whether a file may lack it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TensorRule {
    /// Name, without the `blk.N.` of a layer.
    pub name: &'static str,
    /// Sizes, row length first.
    pub shape: &'static [Size],
    /// False if a file may leave it out.
    pub required: bool,
}

/// An architecture: everything in which it differs from the others.
#[derive(Debug, PartialEq)]
pub struct Arch {
    /// The name in `general.architecture`.
    pub name: &'static str,
    /// True if rotary pairs are elements 2i and 2i + 1 of a head, false if they are i and i + half.
    pub rope_interleaved: bool,
    /// Activation of the gate.
    pub activation: Activation,
    /// True if the embedding is multiplied by sqrt(hidden), in f32.
    pub scales_embedding: bool,
    /// Windowed layers, if the architecture has them.
    pub windows: Option<Windows>,
    /// Tensors of the model as a whole.
    pub model: &'static [&'static [TensorRule]],
    /// Tensors of each layer.
    pub layer: &'static [&'static [TensorRule]],
}

const fn must(name: &'static str, shape: &'static [Size]) -> TensorRule {
    TensorRule { name, shape, required: true }
}

const fn may(name: &'static str, shape: &'static [Size]) -> TensorRule {
    TensorRule { name, shape, required: false }
}

const MODEL: &[TensorRule] = &[
    must("token_embd.weight", &[Size::Hidden, Size::Vocab]),
    must("output_norm.weight", &[Size::Hidden]),
    may("output.weight", &[Size::Hidden, Size::Vocab]),
];
/// Divisors of the rotary frequencies, as Llama 3.1 and later need.
const ROPE_FACTORS: &[TensorRule] = &[may("rope_freqs.weight", &[Size::RopePairs])];
const BLOCK: &[TensorRule] = &[
    must("attn_norm.weight", &[Size::Hidden]),
    must("attn_q.weight", &[Size::Hidden, Size::Queries]),
    must("attn_k.weight", &[Size::Hidden, Size::Keys]),
    must("attn_v.weight", &[Size::Hidden, Size::Keys]),
    must("attn_output.weight", &[Size::Queries, Size::Hidden]),
    must("ffn_norm.weight", &[Size::Hidden]),
    must("ffn_gate.weight", &[Size::Hidden, Size::Ffn]),
    must("ffn_up.weight", &[Size::Hidden, Size::Ffn]),
    must("ffn_down.weight", &[Size::Ffn, Size::Hidden]),
];
const BIASES: &[TensorRule] =
    &[must("attn_q.bias", &[Size::Queries]), must("attn_k.bias", &[Size::Keys]), must("attn_v.bias", &[Size::Keys])];
const BIASES_OPTIONAL: &[TensorRule] =
    &[may("attn_q.bias", &[Size::Queries]), may("attn_k.bias", &[Size::Keys]), may("attn_v.bias", &[Size::Keys])];
const HEAD_NORMS: &[TensorRule] =
    &[must("attn_q_norm.weight", &[Size::Head]), must("attn_k_norm.weight", &[Size::Head])];
const POST_NORMS: &[TensorRule] =
    &[must("post_attention_norm.weight", &[Size::Hidden]), must("post_ffw_norm.weight", &[Size::Hidden])];

/// Every architecture that runs.
pub const ARCHS: &[Arch] = &[
    // Llama 1 to 3, SmolLM2, Mistral: the converter permuted the rows of q and k so that pairs lie side by side.
    Arch {
        name: "llama",
        rope_interleaved: true,
        activation: Activation::Silu,
        scales_embedding: false,
        windows: None,
        model: &[MODEL, ROPE_FACTORS],
        layer: &[BLOCK, BIASES_OPTIONAL],
    },
    Arch {
        name: "qwen2",
        rope_interleaved: false,
        activation: Activation::Silu,
        scales_embedding: false,
        windows: None,
        model: &[MODEL],
        layer: &[BLOCK, BIASES],
    },
    Arch {
        name: "qwen3",
        rope_interleaved: false,
        activation: Activation::Silu,
        scales_embedding: false,
        windows: None,
        model: &[MODEL],
        layer: &[BLOCK, HEAD_NORMS],
    },
    // The file holds 1 + w of every norm, so they are plain norms here.
    Arch {
        name: "gemma3",
        rope_interleaved: false,
        activation: Activation::GeluTanh,
        scales_embedding: true,
        windows: Some(Windows { pattern: 6, rope_base: 10000.0 }),
        model: &[MODEL],
        layer: &[BLOCK, HEAD_NORMS, POST_NORMS],
    },
];

/// The architecture called `name`; an unknown one is refused by name.
pub fn arch(name: &str) -> Result<&'static Arch> {
    ARCHS.iter().find(|a| a.name == name).ok_or_else(|| {
        let known = ARCHS.iter().map(|a| a.name).collect::<Vec<_>>().join(", ");
        let shown: String = name.chars().take(64).collect();
        Error::model(format!("architecture {shown:?} is not supported; supported are {known}"))
    })
}

/// How rotary angles are stretched to reach past the context that a model was trained on.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    #[default]
    None,
    /// Positions are divided by the factor.
    Linear {
        /// The factor, above zero.
        factor: f32,
    },
    /// YaRN: high frequencies stay, low ones are divided, with a ramp between.
    Yarn {
        /// The factor, above zero.
        factor: f32,
        /// Context of the original training, tokens.
        original_context: usize,
        /// Multiplier of cosine and sine beside YaRN's own.
        attn_factor: f32,
        /// Rotations above which a frequency stays as it is.
        beta_fast: f32,
        /// Rotations below which a frequency is divided in full.
        beta_slow: f32,
    },
}

/// The numbers of a model, checked against each other and against the tensors of the file.
#[derive(Clone, Debug, PartialEq)]
pub struct Hyper {
    /// The architecture.
    pub arch: &'static Arch,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Blocks.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of a query, key or value head.
    pub head_dim: usize,
    /// Width of the feed-forward block.
    pub ffn: usize,
    /// Rows of the embedding, which is the number of logits.
    pub vocab: usize,
    /// Longest context that the file declares, tokens.
    pub context: usize,
    /// Epsilon of every RMS norm.
    pub eps: f32,
    /// Activation of the gate.
    pub activation: Activation,
    /// Elements of a head that are rotated, from the first; even.
    pub rope_dims: usize,
    /// True if rotary pairs are elements 2i and 2i + 1 of a head, false if they are i and i + half.
    pub rope_interleaved: bool,
    /// Rotary base of the layers that see every position.
    pub rope_base: f32,
    /// Rotary base of the windowed layers, where there are any.
    pub rope_base_swa: Option<f32>,
    /// Rotary scaling of the layers that see every position; windowed ones have none.
    pub rope_scaling: RopeScaling,
    /// True if `rope_freqs.weight` divides the rotary frequencies.
    pub rope_factors: bool,
    /// Positions that a query of each layer sees, its own included; 0 is all.
    pub windows: Vec<usize>,
    /// Factor of the attention scores.
    pub attn_scale: f32,
    /// Attention scores become `cap * tanh(score / cap)`.
    pub attn_softcap: Option<f32>,
    /// Logits become `cap * tanh(logit / cap)`.
    pub logit_softcap: Option<f32>,
    /// Factor of the embedding, 1 for most.
    pub embedding_scale: f32,
    /// True if the embedding serves as the output matrix too.
    pub tied: bool,
}

/// A tensor that a model must or may have, by its full name.
#[derive(Clone, Debug, PartialEq)]
pub struct Expected {
    /// Full name.
    pub name: String,
    /// Sizes, row length first.
    pub dims: Vec<u64>,
    /// False if the file may leave it out.
    pub required: bool,
}

/// Reads keys that begin with the name of the architecture.
struct Keys<'a> {
    file: &'a Gguf,
    arch: &'static str,
}

impl Keys<'_> {
    fn key(&self, tail: &str) -> String {
        format!("{}.{tail}", self.arch)
    }

    /// An integer above zero.
    fn count(&self, tail: &str) -> Result<Option<usize>> {
        let key = self.key(tail);
        match self.file.u32(&key)? {
            Some(0) => Err(Error::model(format!("metadata {key} is 0"))),
            other => Ok(other.map(|v| v as usize)),
        }
    }

    fn count_required(&self, tail: &str) -> Result<usize> {
        required(&self.key(tail), self.count(tail)?)
    }

    /// A float above zero.
    fn positive(&self, tail: &str) -> Result<Option<f32>> {
        let key = self.key(tail);
        match self.file.f32(&key)? {
            Some(v) if v <= 0.0 => Err(Error::model(format!("metadata {key} is {v}, not above 0"))),
            other => Ok(other),
        }
    }

    /// One number for all layers, or an array with one a layer, which must all be the same; above zero.
    fn per_layer(&self, tail: &str, layers: usize) -> Result<Option<usize>> {
        let key = self.key(tail);
        let Some(Value::Array(array)) = self.file.get(&key) else { return self.count(tail) };
        if array.len != layers {
            return Err(Error::model(format!("metadata {key} has {} entries, the model {layers} layers", array.len)));
        }
        let mut first = None;
        for (layer, value) in array.values().enumerate() {
            match (first, value.as_u64().and_then(|v| u32::try_from(v).ok())) {
                (_, None | Some(0)) => {
                    return Err(Error::model(format!("metadata {key}: entry {layer} is no integer above 0")));
                }
                (None, Some(v)) => first = Some(v),
                (Some(f), Some(v)) if f != v => {
                    return Err(Error::model(format!(
                        "metadata {key} is {f} in layer 0 and {v} in layer {layer}; layers that differ are not supported"
                    )));
                }
                _ => {}
            }
        }
        Ok(first.map(|v| v as usize))
    }

    fn rope_scaling(&self, context: usize) -> Result<RopeScaling> {
        let kind_key = self.key("rope.scaling.type");
        let factor = self.positive("rope.scaling.factor")?.or(self.positive("rope.scale_linear")?);
        match (self.file.str(&kind_key)?, factor) {
            (Some("none"), _) | (None, None) => Ok(RopeScaling::None),
            (None | Some("linear"), Some(1.0)) => Ok(RopeScaling::None),
            (None | Some("linear"), Some(factor)) => Ok(RopeScaling::Linear { factor }),
            (Some("yarn"), Some(factor)) => Ok(RopeScaling::Yarn {
                factor,
                original_context: self.count("rope.scaling.original_context_length")?.unwrap_or(context),
                attn_factor: match self.positive("rope.scaling.attn_factor")? {
                    None => self.positive("rope.scaling.yarn_attn_factor")?.unwrap_or(1.0),
                    Some(v) => v,
                },
                beta_fast: self.positive("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
                beta_slow: self.positive("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
            }),
            (Some("linear" | "yarn"), None) => {
                Err(Error::model(format!("the file has {kind_key} but no {}", self.key("rope.scaling.factor"))))
            }
            (Some(other), _) => Err(Error::model(format!(
                "rotary scaling {other:?} ({kind_key}) is not supported; supported are none, linear, yarn"
            ))),
        }
    }

    /// For each layer whether it is windowed.
    fn windowed(&self, windows: Windows, layers: usize) -> Result<Vec<bool>> {
        let tail = "attention.sliding_window_pattern";
        let key = self.key(tail);
        if let Some(Value::Array(array)) = self.file.get(&key) {
            let flags: Vec<bool> = array
                .values()
                .map_while(|v| match v {
                    Value::Bool(b) => Some(b),
                    v => v.as_u64().map(|v| v != 0),
                })
                .collect();
            if flags.len() != layers {
                let n = flags.len();
                return Err(Error::model(format!("metadata {key} has {n} usable entries, the model {layers} layers")));
            }
            return Ok(flags);
        }
        let pattern = self.count(tail)?.unwrap_or(windows.pattern);
        Ok((0..layers).map(|l| l % pattern < pattern - 1).collect())
    }
}

impl Hyper {
    /// Reads and checks the numbers of a model, and every tensor's presence, shape and type.
    pub fn read(file: &Gguf) -> Result<Hyper> {
        whole_model(file)?;
        let name = required("general.architecture", file.str("general.architecture")?)?;
        let arch = arch(name)?;
        let keys = Keys { file, arch: arch.name };
        if let Some(experts) = file.u32(&keys.key("expert_count"))?.filter(|&n| n > 0) {
            return Err(Error::model(format!("the model is a mixture of {experts} experts, which is not supported")));
        }
        let hyper = numbers(&keys, arch)?;
        hyper.check_tensors(file)?;
        Ok(hyper)
    }

    /// Positions that a query of layer `layer` sees, its own included; 0 is all.
    pub fn window_of(&self, layer: usize) -> usize {
        self.windows[layer]
    }

    /// Every tensor that a file of this model must or may have.
    pub fn expected(&self) -> Vec<Expected> {
        let rules = |rules: &'static [&'static [TensorRule]]| rules.iter().copied().flatten();
        let mut out: Vec<Expected> = rules(self.arch.model).map(|r| self.expect("", r)).collect();
        for layer in 0..self.layers {
            let prefix = format!("blk.{layer}.");
            out.extend(rules(self.arch.layer).map(|r| self.expect(&prefix, r)));
        }
        out
    }

    fn expect(&self, prefix: &str, rule: &TensorRule) -> Expected {
        let dims = rule.shape.iter().map(|&s| self.size(s)).collect();
        Expected { name: format!("{prefix}{}", rule.name), dims, required: rule.required }
    }

    /// A size in numbers; factors are below 2^32, so the products fit.
    fn size(&self, size: Size) -> u64 {
        match size {
            Size::Hidden => self.hidden as u64,
            Size::Queries => self.heads as u64 * self.head_dim as u64,
            Size::Keys => self.kv_heads as u64 * self.head_dim as u64,
            Size::Ffn => self.ffn as u64,
            Size::Vocab => self.vocab as u64,
            Size::Head => self.head_dim as u64,
            Size::RopePairs => self.rope_dims as u64 / 2,
        }
    }

    /// Refuses a missing tensor, a wrong shape, a type without kernels, and a tensor that nothing would read.
    fn check_tensors(&self, file: &Gguf) -> Result<()> {
        let mut used = 0;
        let expected = self.expected();
        for want in &expected {
            let name = &want.name;
            let Some(have) = file.find(name) else {
                if want.required {
                    let arch = self.arch.name;
                    return Err(Error::model(format!("the file has no tensor {name}, which {arch} needs")));
                }
                continue;
            };
            used += 1;
            if have.dims != want.dims {
                let (have, want) = (&have.dims, &want.dims);
                return Err(Error::model(format!("tensor {name} is {have:?}, the metadata makes it {want:?}")));
            }
            check_type(name, have.type_id, want.dims.len())?;
        }
        if used == file.tensors().len() {
            return Ok(());
        }
        let names: std::collections::HashSet<&str> = expected.iter().map(|e| e.name.as_str()).collect();
        let extra = file.tensors().iter().find(|t| !names.contains(t.name.as_ref()));
        let extra = extra.map_or("", |t| &t.name);
        Err(Error::model(format!("the file has a tensor {extra}, which {} has no use for", self.arch.name)))
    }
}

fn check_type(name: &str, type_id: u32, dims: usize) -> Result<()> {
    let runs = tensor_type(type_id).is_some_and(|t| t.runs);
    if dims == 1 && type_id != 0 {
        return Err(Error::model(format!("tensor {name} is {}, a vector must be F32", type_label(type_id))));
    }
    if runs {
        return Ok(());
    }
    let known: Vec<&str> = crate::gguf::TENSOR_TYPES.iter().filter(|t| t.runs).map(|t| t.name).collect();
    let (label, known) = (type_label(type_id), known.join(" "));
    Err(Error::model(format!("tensor {name} is {label}, which is not supported; supported are {known}")))
}

/// Refuses files that hold something else than one whole model.
fn whole_model(file: &Gguf) -> Result<()> {
    if let Some(parts) = file.u32("split.count")?.filter(|&n| n > 1) {
        return Err(Error::model(format!("the file is one of {parts} parts of a split model"))
            .with_hint("join the parts into one file first"));
    }
    match file.str("general.type")? {
        None | Some("model") => Ok(()),
        Some(other) => Err(Error::model(format!("the file holds a {other:?} (general.type), not a model"))),
    }
}

/// Rows of the embedding, which the metadata and the token list must agree with.
fn vocab(keys: &Keys) -> Result<usize> {
    let embedding = keys.file.tensor("token_embd.weight")?;
    let rows = embedding.rows();
    let agree = |what: &str, have: u64| match have == rows {
        true => Ok(()),
        false => Err(Error::model(format!("{what} is {have}, but token_embd.weight has {rows} rows"))),
    };
    if let Some(declared) = keys.count("vocab_size")? {
        agree(&keys.key("vocab_size"), declared as u64)?;
    }
    if let Some(tokens) = keys.file.array("tokenizer.ggml.tokens", MetaType::Str)? {
        agree("the length of tokenizer.ggml.tokens", tokens.len as u64)?;
    }
    match u32::try_from(rows) {
        Ok(rows) => Ok(rows as usize),
        Err(_) => Err(Error::model(format!("token_embd.weight has {rows} rows, more than token ids reach"))),
    }
}

/// The numbers of the metadata, checked against each other.
fn numbers(keys: &Keys, arch: &'static Arch) -> Result<Hyper> {
    let file = keys.file;
    let hidden = keys.count_required("embedding_length")?;
    let context = keys.count_required("context_length")?;
    let layers = layer_count(keys)?;
    let per_layer = |tail: &str| keys.per_layer(tail, layers);
    let heads = required(&keys.key("attention.head_count"), per_layer("attention.head_count")?)?;
    let kv_heads = per_layer("attention.head_count_kv")?.unwrap_or(heads);
    if !heads.is_multiple_of(kv_heads) {
        return Err(Error::model(format!("{heads} heads are no multiple of {kv_heads} key/value heads")));
    }
    let head_dim = head_dim(keys, hidden, heads)?;
    let rope_dims = keys.count("rope.dimension_count")?.unwrap_or(head_dim);
    if rope_dims > head_dim || !rope_dims.is_multiple_of(2) {
        return Err(Error::model(format!(
            "{rope_dims} rotary elements do not fit heads of {head_dim} (even, at most)"
        )));
    }
    let rope_base = keys.positive("rope.freq_base")?.unwrap_or(10000.0);
    let rope_base_swa = match arch.windows {
        Some(w) => Some(keys.positive("rope.freq_base_swa")?.unwrap_or(w.rope_base)),
        None => None,
    };
    let eps = "attention.layer_norm_rms_epsilon";
    Ok(Hyper {
        arch,
        hidden,
        layers,
        heads,
        kv_heads,
        head_dim,
        ffn: required(&keys.key("feed_forward_length"), per_layer("feed_forward_length")?)?,
        vocab: vocab(keys)?,
        context,
        eps: required(&keys.key(eps), keys.positive(eps)?)?,
        activation: arch.activation,
        rope_dims,
        rope_interleaved: arch.rope_interleaved,
        rope_base,
        rope_base_swa,
        rope_scaling: keys.rope_scaling(context)?,
        rope_factors: file.find("rope_freqs.weight").is_some(),
        windows: windows(keys, arch, layers, context)?,
        attn_scale: match keys.positive("attention.scale")? {
            Some(scale) => scale,
            // Gemma 3 27B, known by its 62 layers, scales by hidden / heads instead of the head's width.
            None if arch.name == "gemma3" && layers == 62 => ((hidden / heads) as f32).sqrt().recip(),
            None => (head_dim as f32).sqrt().recip(),
        },
        attn_softcap: keys.positive("attn_logit_softcapping")?,
        logit_softcap: keys.positive("final_logit_softcapping")?,
        embedding_scale: if arch.scales_embedding { (hidden as f32).sqrt() } else { 1.0 },
        tied: file.find("output.weight").is_none(),
    })
}

/// Layers; no more than the file has tensors, which bounds everything that is made per layer.
fn layer_count(keys: &Keys) -> Result<usize> {
    let count = keys.count_required("block_count")?;
    let tensors = keys.file.tensors().len();
    if count > tensors {
        let key = keys.key("block_count");
        return Err(Error::model(format!("metadata {key} is {count}, but the file has only {tensors} tensors")));
    }
    Ok(count)
}

fn head_dim(keys: &Keys, hidden: usize, heads: usize) -> Result<usize> {
    let width = match keys.count("attention.key_length")? {
        Some(width) => width,
        None if hidden.is_multiple_of(heads) => hidden / heads,
        None => return Err(Error::model(format!("{heads} heads do not divide a width of {hidden}"))),
    };
    match keys.count("attention.value_length")? {
        Some(value) if value != width => {
            Err(Error::model(format!("key heads of {width} and value heads of {value} elements are not supported")))
        }
        _ => Ok(width),
    }
}

/// For each layer the window, 0 for none.
fn windows(keys: &Keys, arch: &Arch, layers: usize, context: usize) -> Result<Vec<usize>> {
    let window = keys.count("attention.sliding_window")?;
    match (arch.windows, window) {
        (Some(windows), Some(window)) => {
            let windowed = keys.windowed(windows, layers)?;
            Ok(windowed.into_iter().map(|w| if w { window } else { 0 }).collect())
        }
        (Some(_), None) => {
            let key = keys.key("attention.sliding_window");
            Err(Error::model(format!("the file has no metadata {key}")))
        }
        (None, Some(w)) if w < context => {
            let name = arch.name;
            Err(Error::model(format!("a window of {w} positions is not supported for architecture {name}")))
        }
        (None, _) => Ok(vec![0; layers]),
    }
}
