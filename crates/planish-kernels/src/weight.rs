//! A weight matrix on a device, and the activations that meet it.

use planish_device::Slice;

use crate::quant::WeightType;

/// A linear layer's matrix, `rows` outputs by `cols` inputs, in the layout its kernels read.
#[derive(Clone, Debug)]
pub struct Weight {
    /// Format of the file.
    pub ty: WeightType,
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// Packed rows of a quantised type, or the file's own rows of a float type.
    pub data: Slice,
}

/// How activations meet quantised weights: the numerics class of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Activations {
    /// As they are.
    F32,
    /// Rounded to 8 bits in blocks of 32, for quantised weights.
    Int8,
}

impl Activations {
    /// The class in which activations meet weights of `ty`: float weights always meet them as they are.
    pub fn meeting(self, ty: WeightType) -> Activations {
        if ty.is_float() { Activations::F32 } else { self }
    }

    /// `f32` or `int8`.
    pub fn name(self) -> &'static str {
        match self {
            Activations::F32 => "f32",
            Activations::Int8 => "int8",
        }
    }
}

/// An activation tensor of `batch` rows in one or both forms.
#[derive(Clone, Debug)]
pub struct Activation {
    /// Columns.
    pub cols: usize,
    /// Rows of f32, when a consumer wants them.
    pub f32: Option<Slice>,
    /// Rows in 8-bit blocks, when a consumer wants them.
    pub int8: Option<Int8>,
}

/// Rows rounded to 8 bits in blocks of 32.
#[derive(Clone, Debug)]
pub struct Int8 {
    /// Codes, `[batch][cols]` bytes.
    pub codes: Slice,
    /// Scales and sums, `[batch][cols / 32]` of 16 bytes.
    pub meta: Slice,
}

impl Activation {
    /// `f32`, `int8` or `both`: the forms a producer writes, as a field of its shape.
    pub fn forms(&self) -> &'static str {
        match (&self.f32, &self.int8) {
            (Some(_), Some(_)) => "both",
            (None, Some(_)) => "int8",
            _ => "f32",
        }
    }

    /// The slices of the forms there are: f32, codes, metadata.
    pub fn slices(&self) -> Vec<Slice> {
        let int8 = self.int8.iter().flat_map(|i| [i.codes.clone(), i.meta.clone()]);
        self.f32.iter().cloned().chain(int8).collect()
    }

    /// The slices that meet weights in class `class`; the plan allocates the forms that consumers want.
    pub fn meeting(&self, class: Activations) -> Vec<Slice> {
        match (class, &self.f32, &self.int8) {
            (Activations::F32, Some(f32), _) => vec![f32.clone()],
            (Activations::Int8, _, Some(int8)) => vec![int8.codes.clone(), int8.meta.clone()],
            _ => panic!("activation of {} columns has no {} form", self.cols, class.name()),
        }
    }
}
