//! RMS norm against the f64 reference.

use super::*;
use crate::cpu::testing::{Fenced, bits, normal, sets};
use crate::reference::{compare::compare, lift, norm as reference};

#[track_caller]
fn check(columns: usize, heads: usize, tokens: usize, magnitude: f32) {
    let stride = heads * columns + 3;
    let mut x: Vec<f32> = normal(1, tokens * stride).iter().map(|v| v * magnitude).collect();
    x[(tokens - 1) * stride..].iter_mut().take(columns).for_each(|v| *v *= 0.5);
    let residual: Vec<f32> = normal(2, tokens * stride).iter().map(|v| v * magnitude).collect();
    let weight = normal(3, columns);
    let sums: Vec<f32> = x.iter().zip(&residual).map(|(a, b)| a + b).collect();
    let mut first: Option<Vec<u32>> = None;
    for (isa, with) in sets().flat_map(|isa| [(isa, false), (isa, true)]) {
        let (mut input, mut out) = (x.clone(), Fenced::new(tokens * heads * columns));
        let residual = with.then_some(&residual[..]);
        let args = RmsNorm {
            x: Shared::new(&mut input),
            residual,
            weight: &weight,
            out: out.shared(),
            heads,
            x_stride: stride,
            out_stride: heads * columns,
            eps: 1e-5,
        };
        super::check(&args, tokens).unwrap();
        for row in 0..tokens * heads {
            // SAFETY: one call at a time.
            unsafe { rms_norm(isa)(&args, row..row + 1) };
        }
        let (y, rows) = (out.take(), if with { &sums } else { &x });
        for row in 0..tokens * heads {
            let x = &rows[row / heads * stride + row % heads * columns..][..columns];
            let y64 = reference::rms_norm::<f64>(&lift(x), &lift(&weight), 1e-5f32 as f64);
            let y32 = reference::rms_norm::<f32>(x, &weight, 1e-5f32 as f64);
            compare(&y[row * columns..][..columns], &y32, &y64).unwrap_or_else(|e| panic!("{isa:?} {columns}: {e}"));
        }
        if with {
            let row = &rows[..columns];
            assert_eq!(bits(&input[..columns]), bits(row), "the sum is stored");
            assert_eq!(first.get_or_insert_with(|| bits(&y)), &bits(&y), "{isa:?} has other bits");
        }
    }
}

#[test]
fn norms_rows_of_any_length_and_size() {
    for (columns, heads, tokens) in [(1, 1, 1), (1, 3, 2), (7, 1, 1), (64, 9, 3), (576, 1, 5), (97, 2, 4), (4096, 1, 1)]
    {
        check(columns, heads, tokens, 1.0);
        check(columns, heads, tokens, 1e15);
        check(columns, heads, tokens, 1e-6);
    }
}

#[test]
fn in_place_gives_the_same_bits_and_a_nan_stays_in_its_row() {
    let (columns, tokens) = (83, 4);
    let weight = normal(4, columns);
    for isa in sets() {
        let run = |poison: bool| {
            let mut x = normal(5, tokens * columns);
            x[2 * columns + 5] = if poison { f32::NAN } else { 0.5 };
            let shared = Shared::new(&mut x);
            let (residual, eps) = (None, 1e-6);
            let args = RmsNorm {
                x: shared,
                residual,
                weight: &weight,
                out: shared,
                heads: 1,
                x_stride: columns,
                out_stride: columns,
                eps,
            };
            // SAFETY: one call, in place.
            unsafe { rms_norm(isa)(&args, 0..tokens) };
            x
        };
        let (clean, poisoned) = (run(false), run(true));
        for row in 0..tokens {
            let (a, b) = (&clean[row * columns..][..columns], &poisoned[row * columns..][..columns]);
            if row == 2 {
                assert!(b.iter().all(|v| v.is_nan()));
            } else {
                assert_eq!(bits(a), bits(b));
            }
        }
    }
}

#[test]
fn a_zero_row_gives_zeros_and_short_buffers_are_named() {
    let (mut x, mut out) = (vec![0.0; 8], vec![f32::NAN; 8]);
    let weight = vec![2.0; 8];
    let args = RmsNorm {
        x: Shared::new(&mut x),
        residual: None,
        weight: &weight,
        out: Shared::new(&mut out),
        heads: 1,
        x_stride: 8,
        out_stride: 8,
        eps: 1e-5,
    };
    let error = super::check(&args, 2).unwrap_err().to_string();
    assert!(error.contains("x has 8 elements, 2 tokens need 16"), "{error}");
    // SAFETY: one call at a time.
    unsafe { rms_norm(crate::cpu::isa::Isa::Portable)(&args, 0..1) };
    assert_eq!(bits(&out), bits(&[0.0; 8]));
}
