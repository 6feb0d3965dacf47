//! Rotary embedding: frequencies by their published formulas, rotation against the f64 reference.

use super::*;
use crate::cpu::testing::{bits, normal, sets};
use crate::reference::{compare::compare, lift, rope as reference};

#[track_caller]
fn check(pairs: Pairs, (head_dim, rotary_dim, heads): (usize, usize, usize), position: usize) {
    let tokens = 3;
    let stride = heads * head_dim + 5;
    let table = rope_table(rotary_dim, 10_000.0, None, Scaling::None, pairs).unwrap();
    let mut cos = vec![f32::NAN; tokens * table.row_len()];
    let mut sin = cos.clone();
    table.fill(position, &mut cos, &mut sin);
    let x = normal(9, tokens * stride);
    let mut first = None;
    for isa in sets() {
        let mut y = x.clone();
        let args = Rope { x: Shared::new(&mut y), cos: &cos, sin: &sin, pairs, rotary_dim, heads, head_dim, stride };
        // SAFETY: one call at a time, disjoint ranges.
        unsafe {
            rope(isa)(&args, 0..1);
            rope(isa)(&args, 1..tokens * heads);
        }
        for i in 0..tokens * heads {
            let at = i / heads * stride + i % heads * head_dim;
            let angles: Vec<f64> = table.frequencies().iter().map(|w| w * (position + i / heads) as f64).collect();
            let y64 = reference::rope::<f64>(&lift(&x[at..at + head_dim]), &angles, 1.0, pairs);
            let y32 = reference::rope::<f32>(&x[at..at + head_dim], &angles, 1.0, pairs);
            compare(&y[at..at + head_dim], &y32, &y64).unwrap_or_else(|e| panic!("{isa:?} {pairs:?} {head_dim}: {e}"));
        }
        for t in 0..tokens {
            let gap = t * stride + heads * head_dim..(t + 1) * stride;
            assert_eq!(bits(&y[gap.clone()]), bits(&x[gap]), "between tokens");
        }
        assert_eq!(first.get_or_insert_with(|| bits(&y)), &bits(&y), "{isa:?} has other bits");
    }
}

#[test]
fn rotates_both_pairings_whole_and_partial_near_and_far() {
    for pairs in [Pairs::Halves, Pairs::Neighbours] {
        for position in [0, 1, 4096, 131_071] {
            check(pairs, (64, 64, 3), position);
            check(pairs, (50, 50, 1), position);
            check(pairs, (80, 80, 2), position);
            check(pairs, (96, 24, 2), position);
            check(pairs, (256, 64, 1), position);
            check(pairs, (2, 2, 1), position);
        }
    }
}

#[test]
fn frequencies_of_each_scaling() {
    let make = |factors: Option<&[f32]>, scaling| rope_table(8, 10_000.0, factors, scaling, Pairs::Halves).unwrap();
    let close = |t: &RopeTable, want: [f64; 4]| {
        for (a, b) in t.frequencies().iter().zip(want) {
            assert!((a / b - 1.0).abs() < 1e-12, "{:?} instead of {want:?}", t.frequencies());
        }
    };
    close(&make(None, Scaling::None), [1.0, 0.1, 0.01, 0.001]);
    close(&make(Some(&[1.0, 2.0, 4.0, 8.0]), Scaling::None), [1.0, 0.05, 0.0025, 0.000125]);
    close(&make(None, Scaling::Linear { factor: 4.0 }), [0.25, 0.025, 0.0025, 0.00025]);
    // Wavelengths 6.28, 62.8, 628, 6283 over a context of 1256.64: kept, kept, blended at (2 - 1) / 3, divided.
    let original = 400.0 * PI;
    let llama3 = make(None, Scaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original });
    close(&llama3, [1.0, 0.1, 0.01 * (2.0 / 3.0 / 8.0 + 1.0 / 3.0), 0.001 / 8.0]);
}

#[test]
fn yarn_ramps_between_its_two_dimensions() {
    // n = 64, base 10000, context 4096: dimensions d(32) = 32 ln(4096 / 64 pi) / ln 10000 = 10.47 and d(1) = 22.51.
    let yarn = Yarn { factor: 16.0, original: 4096.0, beta_fast: 32.0, beta_slow: 1.0, attention_factor: None };
    let table = rope_table(64, 10_000.0, None, Scaling::Yarn(yarn), Pairs::Halves).unwrap();
    let plain = rope_table(64, 10_000.0, None, Scaling::None, Pairs::Halves).unwrap();
    for (i, (y, w)) in table.frequencies().iter().zip(plain.frequencies()).enumerate() {
        let ramp = ((i as f64 - 10.0) / 13.0).clamp(0.0, 1.0);
        assert!((y / w - (1.0 - ramp * 15.0 / 16.0)).abs() < 1e-12, "dimension {i}");
    }
    assert!((table.magnitude() - (0.1 * 16f64.ln() + 1.0)).abs() < 1e-12);
    let (mut cos, mut sin) = ([0.0; 32], [0.0; 32]);
    table.fill(0, &mut cos, &mut sin);
    assert_eq!((cos[31], sin[31]), (table.magnitude() as f32, 0.0));
}

#[test]
fn refuses_what_has_no_frequencies() {
    for (dim, base, factors) in [
        (0, 1e4, None),
        (7, 1e4, None),
        (8, 1e4, Some(&[1.0f32; 3][..])),
        (8, 1e4, Some(&[0.0; 4][..])),
        (8, f64::NAN, None),
    ] {
        assert!(rope_table(dim, base, factors, Scaling::None, Pairs::Halves).is_err(), "{dim} {base}");
    }
}
