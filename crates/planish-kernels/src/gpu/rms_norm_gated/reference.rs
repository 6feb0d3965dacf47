//! y = x rsqrt(mean(x^2) + eps) w silu(z).

use crate::gpu::rms_norm::reference::rms_norm;
use crate::gpu::swiglu::reference::{Gate, swiglu};
use crate::reference::Real;

/// The norm of each row of `x`, gated by `z`.
pub fn rms_norm_gated<T: Real>(x: &[T], z: &[T], w: &[T], eps: f64) -> Vec<T> {
    swiglu(z, &rms_norm(x, w, eps), Gate::Silu)
}
