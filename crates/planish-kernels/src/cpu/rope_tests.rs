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
