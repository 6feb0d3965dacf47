//! Weight matrices by name: the two of the width experiment, and those of every preset; what `sweep` and others time.

use planish_kernels::op::Shape;
use planish_kernels::quant::WeightType;
use planish_kernels::weight::Activations;

use super::random::Role;
use super::{PRESETS, Preset, preset};
use crate::error::{Error, Result};

/// A weight matrix that a product of one token meets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Matrix {
    /// Where it comes from, as in `smollm2-135m q, o`.
    pub name: String,
    /// Its type.
    pub ty: WeightType,
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
}

/// Matrices with a name of their own: many short rows, and rows so long that no width leaves threads idle.
const NAMED: &[(&str, WeightType, usize, usize)] =
    &[("head", WeightType::Q8_0, 49152, 576), ("control", WeightType::Q8_0, 4096, 14336)];

/// Everything that `matrices` knows.
pub fn names() -> impl Iterator<Item = &'static str> {
    NAMED.iter().map(|n| n.0).chain(PRESETS.iter().map(|p| p.name))
}

/// The matrices that `name` stands for; an unknown name is refused with those there are.
pub fn matrices(name: &str) -> Result<Vec<Matrix>> {
    if let Some(&(name, ty, rows, cols)) = NAMED.iter().find(|n| n.0 == name) {
        return Ok(vec![Matrix { name: name.to_owned(), ty, rows, cols }]);
    }
    let preset = preset(name).map_err(|_| {
        let known = names().collect::<Vec<_>>().join(", ");
        Error::request(format!("no matrices are called {name}")).with_hint(format!("known are {known}"))
    })?;
    Ok(preset.matrices())
}

impl Preset {
    /// The matrices of one layer and of the head, equal ones once with the names of all.
    pub fn matrices(&self) -> Vec<Matrix> {
        let kv = self.kv_heads * (self.hidden / self.heads);
        let parts = [
            ("q", Role::Body, self.hidden, self.hidden),
            ("k", Role::Body, kv, self.hidden),
            ("v", Role::Body, kv, self.hidden),
            ("o", Role::Body, self.hidden, self.hidden),
            ("gate", Role::Body, self.ffn, self.hidden),
            ("up", Role::Body, self.ffn, self.hidden),
            ("down", Role::Body, self.hidden, self.ffn),
            ("head", Role::Head, self.vocab, self.hidden),
        ];
        let one = |(part, role, rows, cols)| Matrix {
            name: format!("{} {part}", self.name),
            ty: self.mix.of(role, cols),
            rows,
            cols,
        };
        once(parts.map(one))
    }
}

/// Equal matrices once, with the names of all; what two names have in common is said once.
pub fn once(all: impl IntoIterator<Item = Matrix>) -> Vec<Matrix> {
    let mut unique: Vec<Matrix> = Vec::new();
    for m in all {
        let Some(same) = unique.iter_mut().find(|u| (u.ty, u.rows, u.cols) == (m.ty, m.rows, m.cols)) else {
            unique.push(m);
            continue;
        };
        let rest = match (same.name.split_once(' '), m.name.split_once(' ')) {
            (Some((model, _)), Some((other, part))) if model == other => part,
            _ => m.name.as_str(),
        };
        same.name = format!("{}, {rest}", same.name);
    }
    unique
}

impl Matrix {
    /// The shape of its product with one token on the backend `device`, in this numerics class.
    pub fn shape(&self, device: &str, activations: Activations) -> Shape {
        let shape = Shape::new()
            .with("type", self.ty.name())
            .with("rows", self.rows as i64)
            .with("cols", self.cols as i64)
            .with("act", activations.meeting(self.ty).name());
        // Kernels of the CPU multiply many tokens too, those of GPUs have an op for that.
        if device == "cpu" { shape.with("batch", 1) } else { shape }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_its_matrices_and_equal_ones_come_once() {
        let all = matrices("smollm2-135m").unwrap();
        let text: Vec<String> = all.iter().map(|m| format!("{}: {} {}x{}", m.name, m.ty, m.rows, m.cols)).collect();
        assert_eq!(
            text,
            [
                "smollm2-135m q, o: q4_1 576x576",
                "smollm2-135m k, v: q4_1 192x576",
                "smollm2-135m gate, up: q4_1 1536x576",
                "smollm2-135m down: q4_1 576x1536",
                "smollm2-135m head: q8_0 49152x576",
            ]
        );
        let both = once(["head", "smollm2-135m"].into_iter().flat_map(|n| matrices(n).unwrap()));
        assert_eq!(both[0].name, "head, smollm2-135m head");
        let shape = both[0].shape("cpu", Activations::Int8);
        assert_eq!(shape.to_string(), "act=int8,batch=1,cols=576,rows=49152,type=q8_0");
        assert!(matrices("nothing").unwrap_err().hint().unwrap().contains("control"));
    }

    #[test]
    fn every_name_has_matrices() {
        for name in names() {
            assert!(!matrices(name).unwrap().is_empty(), "{name}");
        }
    }
}
