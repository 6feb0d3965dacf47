//! Elementwise ops against the f64 reference.

use super::*;
use crate::cpu::isa::Isa;
use crate::cpu::testing::{Fenced, bits, normal, sets};
use crate::reference::{act as reference, compare::compare};

type Kernel = fn(Isa) -> unsafe fn(&Binary, Range<usize>);

#[track_caller]
fn check_binary(kernel: Kernel, f64s: fn(f64, f64) -> f64, f32s: fn(f32, f32) -> f32, magnitude: f32) {
    for (rows, columns) in [(1, 1), (1, 16), (3, 17), (2, 1536), (5, 31), (1, 127)] {
        // Gate and up side by side, as a fused projection leaves them.
        let both: Vec<f32> = normal(6, 2 * rows * columns).iter().map(|v| v * magnitude).collect();
        let at = |i: usize| {
            (both[i / columns * 2 * columns + i % columns], both[(i / columns * 2 + 1) * columns + i % columns])
        };
        let n = rows * columns;
        let y64: Vec<f64> = (0..n).map(|i| f64s(at(i).0 as f64, at(i).1 as f64)).collect();
        let y32: Vec<f32> = (0..n).map(|i| f32s(at(i).0, at(i).1)).collect();
        let mut first = None;
        for isa in sets() {
            let mut out = Fenced::new(n);
            let args = Binary { a: &both, b: &both[columns..], out: out.shared(), columns, stride: 2 * columns };
            for start in (0..n).step_by(13) {
                // SAFETY: one call at a time.
                unsafe { kernel(isa)(&args, start..(start + 13).min(n)) };
            }
            let y = out.take();
            compare(&y, &y32, &y64).unwrap_or_else(|e| panic!("{isa:?} {rows}x{columns} x {magnitude}: {e}"));
            assert_eq!(first.get_or_insert_with(|| bits(&y)), &bits(&y), "{isa:?} has other bits");
        }
    }
}

#[test]
fn gates_are_right_from_tiny_to_huge() {
    for magnitude in [1e-20, 1.0, 6.0, 30.0, 1e4] {
        check_binary(swiglu, reference::swiglu::<f64>, reference::swiglu::<f32>, magnitude);
        check_binary(geglu, reference::geglu::<f64>, reference::geglu::<f32>, magnitude);
        check_binary(add, |a, b| a + b, |a, b| a + b, magnitude);
    }
}

#[test]
fn special_gates() {
    let a = [f32::NAN, 1e30, -1e30, 0.0, -0.0, f32::INFINITY];
    let ones = [1.0; 6];
    for (isa, kernel) in sets().flat_map(|isa| [(isa, swiglu(isa)), (isa, geglu(isa))]) {
        let mut out = [7.0; 6];
        let args = Binary { a: &a, b: &ones, out: Shared::new(&mut out), columns: 6, stride: 6 };
        // SAFETY: one call at a time.
        unsafe { kernel(&args, 0..6) };
        assert!(out[0].is_nan());
        assert_eq!(bits(&out[1..]), bits(&[1e30, -0.0, 0.0, -0.0, f32::INFINITY]), "{isa:?}");
    }
}

#[test]
fn softcap_scale_and_sum_in_place() {
    let n = 1000;
    let x: Vec<f32> = normal(7, n).iter().map(|v| v * 50.0).collect();
    for isa in sets() {
        let mut y = x.clone();
        // SAFETY: one call at a time, disjoint ranges.
        unsafe {
            let args = Unary { x: Shared::new(&mut y), parameter: 30.0 };
            softcap(isa)(&args, 0..333);
            softcap(isa)(&args, 333..n);
        }
        let y64: Vec<f64> = x.iter().map(|&v| reference::softcap::<f64>(v as f64, 30.0)).collect();
        let y32: Vec<f32> = x.iter().map(|&v| reference::softcap::<f32>(v, 30.0)).collect();
        compare(&y, &y32, &y64).unwrap_or_else(|e| panic!("{isa:?}: {e}"));
        let mut z = x.clone();
        // SAFETY: as above.
        unsafe {
            scale(isa)(&Unary { x: Shared::new(&mut z), parameter: 0.25 }, 0..n - 1);
            add_assign(isa)(&Shared::new(&mut z), &x, 1..n);
        }
        let want: Vec<f32> =
            (0..n).map(|i| if i == n - 1 { x[i] } else { x[i] * 0.25 } + if i == 0 { 0.0 } else { x[i] }).collect();
        assert_eq!(bits(&z), bits(&want), "{isa:?}");
    }
}
