//! Outputs of problems: exact values with their bounds where they are judged, zeros where they are only timed.

use crate::op::{Arg, Dtype, Expected, Fill};
use crate::reference::Shaken;

/// Outputs of the given types and lengths, from the reference in f64 and in f32; it does not run for [`Fill::Unjudged`].
pub fn outputs<const N: usize>(
    fill: Fill,
    kinds: [(Dtype, usize); N],
    reference: impl FnOnce() -> ([Vec<f64>; N], [Vec<f32>; N]),
) -> Vec<Arg> {
    outputs_drawn(fill, kinds, || {
        let (exact, plain) = reference();
        (exact, plain, Vec::new())
    })
}

/// The same with other draws of the reference in f32.
pub fn outputs_drawn<const N: usize>(
    fill: Fill,
    kinds: [(Dtype, usize); N],
    reference: impl FnOnce() -> ([Vec<f64>; N], [Vec<f32>; N], Vec<[Vec<Shaken>; N]>),
) -> Vec<Arg> {
    judged(fill, kinds, || {
        let (exact, plain, draws) = reference();
        let mut outputs = exact.into_iter().zip(plain).enumerate();
        kinds.map(|(dtype, _)| {
            let (n, (exact, plain)) = outputs.next().expect("one for each kind");
            let draws: Vec<Vec<Shaken>> = draws.iter().map(|draw| draw[n].clone()).collect();
            Expected::drawn(dtype, exact, &plain, &draws)
        })
    })
}

/// The same of outputs that are sums, from the reference and the magnitudes of their terms.
pub fn outputs_of_sums<const N: usize>(
    fill: Fill,
    kinds: [(Dtype, usize); N],
    reference: impl FnOnce() -> ([Vec<f64>; N], [Vec<f32>; N], [Vec<f64>; N]),
) -> Vec<Arg> {
    judged(fill, kinds, || {
        let (exact, plain, magnitudes) = reference();
        let mut all = exact.into_iter().zip(plain).zip(magnitudes);
        kinds.map(|(dtype, _)| {
            let ((exact, plain), magnitudes) = all.next().expect("one for each kind");
            Expected::sums(dtype, exact, &plain, &magnitudes)
        })
    })
}

/// Outputs of the given types and lengths, as `expected` says; it does not run for [`Fill::Unjudged`].
pub fn judged<const N: usize>(
    fill: Fill,
    kinds: [(Dtype, usize); N],
    expected: impl FnOnce() -> [Expected; N],
) -> Vec<Arg> {
    if fill == Fill::Unjudged {
        return kinds.map(|(dtype, n)| Arg::Out(Expected::exact(dtype, vec![0.0; n]))).into();
    }
    let expected = expected();
    for (expected, (_, n)) in expected.iter().zip(kinds) {
        assert_eq!(expected.values.len(), n, "values of an output");
    }
    expected.map(Arg::Out).into()
}
