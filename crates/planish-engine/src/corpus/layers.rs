//! Which layer leaves its bound: hidden states against the expected file's checkpoints, from the embedding on.

use planish_kernels::op::Machine;
use serde::Serialize;

use super::cover::Way;
use super::run::Class;
use crate::decoder::Decoder;
use crate::decoder::watch::Watched;
use crate::error::Result;
use crate::model::Model;
use crate::plan::Defaults;
use crate::verify::{Checkpoint, Path, Prompt, relative};

/// How far a hidden state may be from float64 in each arithmetic, over its own size. They name a layer and pass no logits:
/// what is right stays below a half of them, and a fault of weights or kernels is far above.
const BOUNDS: [(&str, f64); 3] = [("f32", 1e-4), ("f32_kv16", 1e-2), ("int8_kv16", 0.4)];
/// A configuration's error over the default's in the same arithmetic, where the default's is known.
const TWICE: f64 = 2.0;

/// The first layer that is off.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Left {
    /// 0 for the embedding, else the layer, counted from 1; one more than there are layers where only what follows the
    /// last is off: the norm and the head.
    pub layer: usize,
    /// In words.
    pub name: String,
    /// Its relative error.
    pub error: f64,
    /// What was allowed.
    pub bound: f64,
    /// The arithmetic in which that shows.
    pub mode: &'static str,
}

/// The relative error of each state in `hidden` that has a checkpoint.
///
/// A checkpoint has eight of the values and the norm of all: the error is the larger of the norm's and of the root mean
/// square over the eight, over the size of a value.
pub fn errors(hidden: &[Vec<f32>], checkpoints: &[Checkpoint]) -> Vec<f64> {
    let one = |(state, want): (&Vec<f32>, &Checkpoint)| {
        let n = state.len();
        let norm = state.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
        let ends = state[..4].iter().chain(&state[n - 4..]).zip(want.first.iter().chain(&want.last));
        let square: f64 = ends.map(|(got, want)| (f64::from(*got) - want).powi(2)).sum();
        let size = (want.norm / (n as f64).sqrt()).max(f64::MIN_POSITIVE);
        let error = ((square / 8.0).sqrt() / size).max((norm - want.norm).abs() / want.norm.max(f64::MIN_POSITIVE));
        if error.is_nan() { f64::INFINITY } else { error }
    };
    hidden.iter().zip(checkpoints).map(one).collect()
}

/// What the search for the layer needs of a case.
pub struct Scene<'a> {
    /// The machine.
    pub machine: Machine<'a>,
    /// The model as it is, faults and all.
    pub model: &'a Model,
    /// The prompt that failed.
    pub prompt: &'a Prompt,
    /// How it was fed.
    pub feed: Path,
    /// Tokens of a prefill step.
    pub chunk: usize,
}

impl Scene<'_> {
    fn errors(&self, class: &Class, way: Way<'_>) -> Result<Vec<f64>> {
        let context = self.prompt.ids.len();
        let options = class.options(context, self.chunk.min(context), false);
        let (hyper, weights) = (&self.model.file.hyper, &self.model.weights);
        let mut watched = Watched::new(self.machine, hyper, weights, options, &way)?;
        Ok(errors(&watched.hidden(&self.prompt.ids, self.feed == Path::Prefill)?, &self.prompt.layers))
    }

    /// The relative error of every layer in `class`, and what is allowed.
    pub fn margins(&self, class: &Class, way: Way<'_>) -> Result<(Vec<f64>, f64)> {
        Ok((self.errors(class, way)?, bound(class.mode)))
    }

    /// Logits of the model cut after `layers` layers.
    fn cut(&self, layers: usize, class: &Class) -> Result<Vec<f32>> {
        let (mut hyper, context) = (self.model.file.hyper.clone(), self.prompt.ids.len());
        hyper.layers = layers;
        let options = class.options(context, self.chunk.min(context), false);
        let weights = self.model.weights.first(layers);
        let mut decoder = Decoder::new(self.machine, &hyper, &weights, options, &Defaults)?;
        Ok(decoder.feed(&self.prompt.ids)?.to_vec())
    }

    /// The first layer that leaves its bound under `way`: in exact arithmetic if it shows there, else in `class`, and
    /// where the default stays in its bound there, as soon as `way` is twice as far off.
    pub fn first_left(&self, class: &Class, way: Way<'_>) -> Result<Left> {
        let exact = &Class::ALL[0];
        if let Some(left) = self.beyond(&self.errors(exact, way)?, &[], exact.mode) {
            return Ok(left);
        }
        let default = if way.number == 0 { Vec::new() } else { self.errors(class, Way { number: 0, only: None })? };
        let found = self.errors(class, way)?;
        let layers = self.model.file.hyper.layers;
        let last = found.last().copied().unwrap_or(f64::NAN);
        Ok(self.beyond(&found, &default, class.mode).unwrap_or_else(|| Left {
            layer: layers + 1,
            name: "behind the last layer: the output norm or the head".to_owned(),
            error: last,
            bound: bound(class.mode),
            mode: class.mode,
        }))
    }

    fn beyond(&self, found: &[f64], default: &[f64], mode: &'static str) -> Option<Left> {
        let fixed = bound(mode);
        let mut so_far = 0f64;
        for (layer, error) in found.iter().enumerate() {
            // An error that the default had in an earlier layer may show later too.
            so_far = so_far.max(default.get(layer).copied().unwrap_or(0.0));
            let bound = if default.is_empty() { fixed } else { (TWICE * so_far + bound("f32")).min(fixed) };
            if *error > bound {
                let name = if layer == 0 { "the embedding".to_owned() } else { format!("layer {layer}") };
                return Some(Left { layer, name, error: *error, bound, mode });
            }
        }
        None
    }
}

/// How far the logits behind the first layers may be from the processor's, over their spread, by arithmetic.
const FAR: [(&str, f64); 2] = [("f32_kv16", 0.02), ("int8_kv16", 0.5)];

/// The first layer behind which a GPU's logits leave those of the processor, in f32, by bisection: a model cut after a
/// layer sends its hidden state through norm and head.
///
/// Where the processor itself is off, its hidden states say in which layer, since the two share the weights.
pub fn first_left_on_gpu(scene: &Scene<'_>, class: &Class, make: &dyn Fn(usize) -> Result<Vec<f32>>) -> Result<Left> {
    let exact = &Class::ALL[0];
    let default = Way { number: 0, only: None };
    if let Some(left) = scene.beyond(&scene.errors(exact, default)?, &[], exact.mode) {
        return Ok(left);
    }
    let bound = FAR.iter().find(|(m, _)| *m == class.mode).map_or(f64::INFINITY, |(_, b)| *b);
    let layers = scene.model.file.hyper.layers;
    let (mut right, mut wrong, mut off) = (0, layers + 1, f64::NAN);
    while right + 1 < wrong {
        let middle = right.midpoint(wrong);
        let found = relative(&make(middle)?, &scene.cut(middle, exact)?);
        // Not a number is beyond it, too.
        if found <= bound {
            right = middle;
            // The whole stays in its bound only where every cut did.
            off = if right == layers { found } else { off };
        } else {
            (wrong, off) = (middle, found);
        }
    }
    let name = match wrong {
        // No model has no layer at all.
        1 => "layer 1, or the embedding, the output norm or the head, which every cut has".to_owned(),
        _ if wrong > layers => "no layer alone: the whole stays within the bound of layers".to_owned(),
        _ => format!("layer {wrong}"),
    };
    Ok(Left { layer: wrong, name, error: off, bound, mode: class.mode })
}

fn bound(mode: &str) -> f64 {
    BOUNDS.iter().find(|(m, _)| *m == mode).map_or(f64::INFINITY, |(_, b)| *b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_relative_and_hold_what_is_not_a_number() {
        let state: Vec<f32> = (0..64).map(|i| i as f32 - 30.0).collect();
        let norm = state.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
        let ends = |at: usize| [0, 1, 2, 3].map(|i| f64::from(state[at + i]));
        let checkpoint = Checkpoint { norm, first: ends(0), last: ends(60) };
        assert!(errors(std::slice::from_ref(&state), std::slice::from_ref(&checkpoint))[0] < 1e-12);
        let mut off = state.clone();
        off[0] += 8.0;
        let size = norm / 8.0;
        assert!((errors(&[off], std::slice::from_ref(&checkpoint))[0] - (8.0 / 8f64.sqrt()) / size).abs() < 1e-9);
        let mut bad = state;
        bad[63] = f32::NAN;
        assert_eq!(errors(&[bad], &[checkpoint])[0], f64::INFINITY);
    }
}
