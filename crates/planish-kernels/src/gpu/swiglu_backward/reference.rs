//! da = dy b gate'(a), db = dy gate(a).

use crate::gpu::swiglu::reference::Gate;
use crate::reference::Real;

/// The gradients of `a` and `b`.
pub fn swiglu_backward<T: Real>(a: &[T], b: &[T], dy: &[T], gate: Gate) -> [Vec<T>; 2] {
    let da = (0..a.len()).map(|i| dy[i] * b[i] * gate.slope(a[i])).collect();
    let db = (0..a.len()).map(|i| dy[i] * gate.at(a[i])).collect();
    [da, db]
}

#[cfg(test)]
mod tests {
    use super::swiglu_backward;
    use crate::gpu::swiglu::reference::{Gate, swiglu};

    #[test]
    fn gradients_are_the_slopes_of_the_forward_pass() {
        let a = [-9.0, -2.0, -0.3, 0.0, 0.7, 3.0, 12.0];
        let (b, dy, h) = ([1.5; 7], [-0.5; 7], 1e-5);
        for gate in [Gate::Silu, Gate::Gelu] {
            let [da, db] = swiglu_backward::<f64>(&a, &b, &dy, gate);
            for i in 0..a.len() {
                let at = |da: f64, db: f64| -0.5 * swiglu(&[a[i] + da], &[b[i] + db], gate)[0];
                let slopes = [(at(h, 0.0) - at(-h, 0.0)) / (2.0 * h), (at(0.0, h) - at(0.0, -h)) / (2.0 * h)];
                assert!((da[i] - slopes[0]).abs() < 1e-8, "{gate:?} da[{i}] {} {}", da[i], slopes[0]);
                assert!((db[i] - slopes[1]).abs() < 1e-8, "{gate:?} db[{i}] {} {}", db[i], slopes[1]);
            }
        }
    }
}
