//! What of a model is configured as a whole on a GPU: the step, and the chunk of a prompt.

use planish_kernels::gpu::decode::model::Model;
use planish_kernels::gpu::{decode, prefill};
use planish_kernels::op::{Machine, Op, Shape};
use planish_kernels::weight::Activations;
use planish_tune::store::{Frozen, Locked};
use planish_tune::{Policy, Space};

use super::decoder::Options;
use super::weights::Weights;
use crate::arch::{Activation, Hyper};
use crate::error::Result;
use crate::identity::{Identities, key};
use crate::plan::{Choices, Chosen};

/// A part of a model that has a configuration.
pub struct Part {
    /// Its op.
    pub op: &'static Op,
    /// What a choice is stored under.
    pub shape: Shape,
    /// What may be chosen.
    pub space: Space,
}

impl Part {
    /// What `choices` say of it, else its default.
    pub fn chosen(&self, choices: &dyn Choices) -> Result<Chosen> {
        Chosen::of(choices, self.op, &self.shape, &self.space)
    }
}

/// The step, then the chunk where prompts go in chunks.
pub fn parts(machine: Machine<'_>, hyper: &Hyper, weights: &Weights, options: &Options) -> Vec<Part> {
    let (model, shape) = (model(hyper, weights, options), shape(hyper, weights, options));
    let at = (&model, &weights.at);
    let chunk = (options.chunk > 0).then(|| {
        // Where a cache is shorter than the chunks asked for, shorter ones run by the same choice.
        let shape = shape.clone().with("batch", options.chunk.next_multiple_of(prefill::ROWS) as i64);
        Part { op: &prefill::OP.op, shape, space: prefill::space(at, &machine) }
    });
    let step = Part { op: &decode::OP.op, shape, space: decode::space(at, &machine) };
    std::iter::once(step).chain(chunk).collect()
}

/// The choices of all `parts` as one set.
pub fn freeze<'p>(machine: &Machine<'_>, parts: impl IntoIterator<Item = (&'p Part, &'p Chosen)>) -> Result<Frozen> {
    let identities = Identities::new(machine, &Policy::default());
    let locked = |(part, chosen): (&Part, &Chosen)| Ok(identities.locked(key(part.op, &part.shape)?, &chosen.config));
    Ok(Frozen::new(parts.into_iter().map(locked).collect::<Result<Vec<Locked>>>()?))
}

/// The numbers of a model as the kernels take them.
pub(super) fn model(hyper: &Hyper, weights: &Weights, options: &Options) -> Model {
    let first = weights.at.layers.first();
    Model {
        hidden: hyper.hidden,
        layers: hyper.layers,
        heads: hyper.heads,
        kv_heads: hyper.kv_heads,
        head_dim: hyper.head_dim,
        rotary: hyper.rope_dims,
        ffn: hyper.ffn,
        vocab: hyper.vocab,
        capacity: options.context,
        neighbours: hyper.rope_interleaved,
        gelu: hyper.activation == Activation::GeluTanh,
        head_norms: first.is_some_and(|l| l.head_norms.is_some()),
        biases: first.is_some_and(|l| l.biases.is_some()),
        post_norms: first.is_some_and(|l| l.post_norms.is_some()),
        int8: options.activations == Activations::Int8,
        eps: hyper.eps,
        scale: hyper.attn_scale,
        softcap: hyper.attn_softcap.unwrap_or(0.0),
        logit_softcap: hyper.logit_softcap.unwrap_or(0.0),
        embedding_scale: hyper.embedding_scale,
    }
}

/// What a configuration is chosen for: sizes, numerics and the types of weights.
fn shape(hyper: &Hyper, weights: &Weights, options: &Options) -> Shape {
    let mut types: Vec<&str> = Vec::new();
    for layer in &weights.at.layers {
        types.extend(layer.qkv.iter().chain([&layer.out, &layer.gate_up, &layer.down]).map(|at| at.ty.name()));
    }
    types.sort_unstable();
    types.dedup();
    let sizes = [
        ("hidden", hyper.hidden),
        ("layers", hyper.layers),
        ("heads", hyper.heads),
        ("kv_heads", hyper.kv_heads),
        ("head_dim", hyper.head_dim),
        ("ffn", hyper.ffn),
        ("vocab", hyper.vocab),
    ];
    let shape = sizes.into_iter().fold(Shape::new(), |shape, (name, n)| shape.with(name, n as i64));
    let shape = shape.with("class", options.activations.name()).with("types", types.join("+").as_str());
    shape.with("head", weights.at.head.ty.name())
}
