//! h = silu(gate) up, where gate and up are linear maps of the same rows, each with an adapter or none.

use crate::gpu::lora::reference::Lora;
use crate::reference::Real;

/// `silu(gate) up`.
pub fn swiglu_linear<T: Real>(gate: &Lora<'_, T>, up: &Lora<'_, T>) -> Vec<T> {
    let one = |a: T, b: T| a / (T::of(1.0) + (-a).exp()) * b;
    gate.y().into_iter().zip(up.y()).map(|(a, b)| one(a, b)).collect()
}
