//! Models known by their shapes alone, so that their kernels can be tuned before, or without, having a file.

pub mod matrices;
pub mod random;

use planish_device::{Init, Slice};
use planish_kernels::cpu::matmul::Layout;
use planish_kernels::cpu::rope::{Pairs, Scaling, rope_table};
use planish_kernels::op::Machine;
use planish_kernels::quant::WeightType;
use planish_kernels::weight::Weight;

use crate::arch::{self, Hyper, RopeScaling};
use crate::decoder::{Decoder, Options};
use crate::error::{Error, Result};
use crate::plan::{Choices, Entry};
use crate::weights::{Layer, Weights};
use random::{Mix, Role};

/// The sizes and weight types of a model.
#[derive(Clone, Copy, Debug)]
pub struct Preset {
    /// What a user types.
    pub name: &'static str,
    arch: &'static str,
    hidden: usize,
    layers: usize,
    heads: usize,
    kv_heads: usize,
    ffn: usize,
    vocab: usize,
    context: usize,
    eps: f32,
    rope_base: f32,
    /// The head is the embedding again.
    tied: bool,
    /// The types of its tensors, as the file has them that most people have.
    mix: Mix,
}

/// A model of nobody, one of a row that grows in width alone: what a token takes beside its bytes is the same for all.
const fn ladder(name: &'static str, hidden: usize) -> Preset {
    Preset {
        name,
        arch: "llama",
        hidden,
        layers: 12,
        heads: hidden / 64,
        kv_heads: hidden / 128,
        ffn: 3 * hidden,
        vocab: 4096,
        context: 4096,
        eps: 1e-5,
        rope_base: 10_000.0,
        tied: true,
        mix: Mix::Q8_0,
    }
}

/// Every preset.
pub const PRESETS: &[Preset] = &[
    Preset {
        name: "tiny",
        hidden: 64,
        layers: 2,
        heads: 2,
        kv_heads: 1,
        ffn: 128,
        vocab: 320,
        context: 256,
        mix: Mix::Q4_1,
        ..ladder("", 64)
    },
    ladder("ladder-384", 384),
    ladder("ladder-512", 512),
    ladder("ladder-768", 768),
    ladder("ladder-1024", 1024),
    ladder("ladder-1280", 1280),
    ladder("ladder-1536", 1536),
    Preset {
        name: "smollm2-135m",
        arch: "llama",
        hidden: 576,
        layers: 30,
        heads: 9,
        kv_heads: 3,
        ffn: 1536,
        vocab: 49152,
        context: 8192,
        eps: 1e-5,
        rope_base: 100_000.0,
        tied: true,
        mix: Mix::Q4_1,
    },
    Preset {
        name: "qwen2.5-0.5b",
        arch: "qwen2",
        hidden: 896,
        layers: 24,
        heads: 14,
        kv_heads: 2,
        ffn: 4864,
        vocab: 151_936,
        context: 32768,
        eps: 1e-6,
        rope_base: 1_000_000.0,
        tied: true,
        mix: Mix::Q4_0,
    },
    Preset {
        name: "llama-3.1-8b",
        arch: "llama",
        hidden: 4096,
        layers: 32,
        heads: 32,
        kv_heads: 8,
        ffn: 14336,
        vocab: 128_256,
        context: 131_072,
        eps: 1e-5,
        rope_base: 500_000.0,
        tied: false,
        mix: Mix::Q4_K_M,
    },
];

/// The preset called `name`; an unknown one is refused by name.
pub fn preset(name: &str) -> Result<&'static Preset> {
    PRESETS.iter().find(|p| p.name == name).ok_or_else(|| {
        let known = PRESETS.iter().map(|p| p.name).collect::<Vec<_>>().join(", ");
        Error::request(format!("no shapes are called {name}; known are {known}"))
    })
}

/// What a model of these shapes launches.
pub struct Plans {
    /// Worklist of a decode step.
    pub decode: Vec<Entry>,
    /// Worklist of a prefill step.
    pub prefill: Vec<Entry>,
    /// Bytes of all weights.
    pub model_bytes: u64,
}

impl Preset {
    /// Longest context of the model.
    pub fn context(&self) -> usize {
        self.context
    }

    /// The worklists of a decoder on `machine`; its weights are zeros that nobody reads and take no memory.
    pub fn plans(&self, machine: Machine<'_>, options: Options, choices: &dyn Choices) -> Result<Plans> {
        let hyper = self.hyper()?;
        let (weights, model_bytes) = self.weights(machine, &hyper)?;
        let decoder = Decoder::new(machine, &hyper, &weights, options, choices)?;
        Ok(Plans { decode: decoder.decode_plan, prefill: decoder.prefill_plan, model_bytes })
    }

    /// The type of the embedding, which is the head too where both are one.
    fn embedding(&self) -> WeightType {
        self.mix.of(if self.tied { Role::Head } else { Role::Body }, self.hidden)
    }

    fn hyper(&self) -> Result<Hyper> {
        let arch = arch::arch(self.arch)?;
        let head_dim = self.hidden / self.heads;
        Ok(Hyper {
            arch,
            hidden: self.hidden,
            layers: self.layers,
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim,
            ffn: self.ffn,
            vocab: self.vocab,
            context: self.context,
            eps: self.eps,
            activation: arch.activation,
            rope_dims: head_dim,
            rope_interleaved: arch.rope_interleaved,
            rope_base: self.rope_base,
            rope_base_swa: None,
            rope_scaling: RopeScaling::None,
            rope_factors: false,
            windows: vec![0; self.layers],
            attn_scale: (head_dim as f32).sqrt().recip(),
            attn_softcap: None,
            logit_softcap: None,
            embedding_scale: 1.0,
            tied: self.tied,
        })
    }

    /// Weights that all lie in one untouched zero buffer, and the bytes that real ones would take.
    fn weights(&self, machine: Machine<'_>, hyper: &Hyper) -> Result<(Weights, u64)> {
        let packed = |ty: WeightType, rows: usize, cols: usize| -> Result<usize> {
            Ok(Layout::of(ty, rows, cols).map_err(|e| Error::model(e.to_string()))?.packed_bytes())
        };
        let (hidden, ffn, kv) = (hyper.hidden, hyper.ffn, hyper.kv_heads * hyper.head_dim);
        let (head_ty, embedding_ty) = (self.mix.of(Role::Head, hidden), self.embedding());
        let head = packed(head_ty, hyper.vocab, hidden)?;
        let embedding = packed(embedding_ty, hyper.vocab, hidden)?;
        let body = packed(self.mix.of(Role::Body, hidden), ffn, hidden)?;
        let zeros = machine.backend.alloc(head.max(embedding).max(body).max(4 * ffn), Init::Zero)?;
        let vector = |n: usize| -> Result<Slice> { Ok(zeros.slice(0, 4 * n)?) };
        let matrix = |ty: WeightType, rows: usize, cols: usize| -> Result<Weight> {
            Ok(Weight { ty, rows, cols, data: zeros.slice(0, packed(ty, rows, cols)?)? })
        };
        let body = |rows: usize, cols: usize| matrix(self.mix.of(Role::Body, cols), rows, cols);
        let bias = |n: usize| if self.arch == "qwen2" { vector(n).map(Some) } else { Ok(None) };
        let layer = |_| -> Result<Layer> {
            Ok(Layer {
                attn_norm: vector(hidden)?,
                q: body(hidden, hidden)?,
                k: body(kv, hidden)?,
                v: body(kv, hidden)?,
                q_bias: bias(hidden)?,
                k_bias: bias(kv)?,
                v_bias: bias(kv)?,
                head_norms: None,
                o: body(hidden, hidden)?,
                attn_post_norm: None,
                ffn_norm: vector(hidden)?,
                gate: body(ffn, hidden)?,
                up: body(ffn, hidden)?,
                down: body(hidden, ffn)?,
                ffn_post_norm: None,
                window: 0,
                table: 0,
            })
        };
        let layers = (0..hyper.layers).map(layer).collect::<Result<Vec<_>>>()?;
        let pairs = if hyper.rope_interleaved { Pairs::Neighbours } else { Pairs::Halves };
        let table = rope_table(hyper.rope_dims, f64::from(hyper.rope_base), None, Scaling::None, pairs)
            .map_err(|e| Error::model(e.to_string()))?;
        let of =
            |l: &Layer| [&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down].map(|w| w.data.len).iter().sum::<usize>();
        let bytes = layers.iter().map(of).sum::<usize>() + head;
        let weights = Weights {
            embedding: matrix(embedding_ty, hyper.vocab, hidden)?,
            layers,
            output_norm: vector(hidden)?,
            head: matrix(head_ty, hyper.vocab, hidden)?,
            tables: vec![table],
            bytes_per_token: bytes as u64,
        };
        Ok((weights, bytes as u64))
    }
}
