//! y = h wd^T + scale (h ad^T) bd^T on a hidden h that is rounded to the type of tensors.

use half::{bf16, f16};

use crate::op::Dtype;
use crate::reference::Real;

/// `h` as a tensor of type `io` holds it.
pub fn stored<T: Real>(h: &[T], io: Dtype) -> Vec<T> {
    let one = |v: f64| match io {
        Dtype::F16 => f16::from_f64(v).to_f64(),
        Dtype::Bf16 => bf16::from_f64(v).to_f64(),
        _ => f64::from(v as f32),
    };
    h.iter().map(|v| T::of(one(v.f64()))).collect()
}
