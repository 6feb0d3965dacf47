//! Outputs of problems: exact values with their bounds where they are judged, zeros where they are only timed.

use crate::op::{Arg, Dtype, Expected, Fill};

/// Outputs of the given types and lengths, from the reference in f64 and in f32; it does not run for [`Fill::Unjudged`].
pub fn outputs<const N: usize>(
    fill: Fill,
    kinds: [(Dtype, usize); N],
    reference: impl FnOnce() -> ([Vec<f64>; N], [Vec<f32>; N]),
) -> Vec<Arg> {
    if fill == Fill::Unjudged {
        return kinds.map(|(dtype, n)| Arg::Out(Expected::exact(dtype, vec![0.0; n]))).into();
    }
    let (exact, plain) = reference();
    let out = |((dtype, n), (exact, plain)): ((Dtype, usize), (Vec<f64>, Vec<f32>))| {
        assert_eq!(exact.len(), n, "values of an output");
        Arg::Out(Expected::float(dtype, exact, &plain))
    };
    kinds.into_iter().zip(exact.into_iter().zip(plain)).map(out).collect()
}
