//! The vector type: exponentials and conversions of every instruction set.

use super::*;
use crate::cpu::testing::{bits, sets};

isa_kernel! {
    fn exp_all(x: &[f32], out: &mut [f32]) = exp_body
}
isa_kernel! {
    fn tanh_all(x: &[f32], out: &mut [f32]) = tanh_body
}
isa_kernel! {
    fn f16_there_and_back(x: &[u16], wide: &mut [f32], narrow: &mut [u16]) = f16_body
}

#[inline(always)]
unsafe fn exp_body<S: Simd>(_: S, x: &[f32], out: &mut [f32]) {
    for (x, out) in x.chunks_exact(LANES).zip(out.chunks_exact_mut(LANES)) {
        // SAFETY: both chunks have sixteen elements.
        unsafe { S::store(out.as_mut_ptr(), exp::<S>(S::load(x.as_ptr()))) }
    }
}

#[inline(always)]
unsafe fn tanh_body<S: Simd>(_: S, x: &[f32], out: &mut [f32]) {
    for (x, out) in x.chunks_exact(LANES).zip(out.chunks_exact_mut(LANES)) {
        // SAFETY: both chunks have sixteen elements.
        unsafe { S::store(out.as_mut_ptr(), tanh::<S>(S::load(x.as_ptr()))) }
    }
}

#[inline(always)]
unsafe fn f16_body<S: Simd>(_: S, x: &[u16], wide: &mut [f32], narrow: &mut [u16]) {
    for i in (0..x.len()).step_by(LANES) {
        // SAFETY: all three have a multiple of sixteen elements.
        unsafe {
            let v = S::load_f16(x.as_ptr().add(i));
            S::store(wide.as_mut_ptr().add(i), v);
            S::store_f16(narrow.as_mut_ptr().add(i), v);
        }
    }
}

/// Distance in units in the last place of the rounded truth.
fn ulps(got: f32, want: f64) -> f64 {
    let rounded = want as f32;
    let ulp = (rounded.abs().max(f32::MIN_POSITIVE).next_up() - rounded.abs().max(f32::MIN_POSITIVE)) as f64;
    if got == rounded { 0.0 } else { (got as f64 - want).abs() / ulp }
}

/// Every float between the bounds, thinned, and the special values.
fn sweep(bound: f32) -> Vec<f32> {
    let mut x: Vec<f32> = (0..0x7f80_0000u32).step_by(7919).map(f32::from_bits).filter(|x| *x < bound).collect();
    x.extend(x.clone().iter().map(|v| -v));
    x.resize(x.len().next_multiple_of(LANES), 0.5);
    x
}

#[test]
fn exp_is_within_one_unit_from_subnormal_to_overflow() {
    let x = sweep(110.0);
    for isa in sets() {
        let mut y = vec![f32::NAN; x.len()];
        // SAFETY: both slices have the same multiple of sixteen elements.
        unsafe { exp_all(isa)(&x, &mut y) };
        let worst = x.iter().zip(&y).map(|(&x, &y)| ulps(y, (x as f64).exp())).fold(0.0, f64::max);
        assert!(worst <= 1.1, "{isa:?}: {worst} units");
    }
}

#[test]
fn tanh_is_within_two_units() {
    let x = sweep(100.0);
    for isa in sets() {
        let mut y = vec![f32::NAN; x.len()];
        // SAFETY: both slices have the same multiple of sixteen elements.
        unsafe { tanh_all(isa)(&x, &mut y) };
        let worst = x.iter().zip(&y).map(|(&x, &y)| ulps(y, (x as f64).tanh())).fold(0.0, f64::max);
        assert!(worst <= 2.0, "{isa:?}: {worst} units");
    }
}

#[test]
fn special_values_go_through_exp_and_tanh() {
    let mut x = [0.0f32; LANES];
    x[..8].copy_from_slice(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0, 1e30, -1e30, 89.5]);
    for isa in sets() {
        let (mut e, mut t) = ([7.0; LANES], [7.0; LANES]);
        // SAFETY: all slices have sixteen elements.
        unsafe {
            exp_all(isa)(&x, &mut e);
            tanh_all(isa)(&x, &mut t);
        }
        assert!(e[0].is_nan() && t[0].is_nan());
        let inf = f32::INFINITY;
        assert_eq!(bits(&e[1..8]), bits(&[inf, 0.0, 1.0, 1.0, inf, 0.0, inf]), "{isa:?}");
        assert_eq!(bits(&t[1..8]), bits(&[1.0, -1.0, 0.0, -0.0, 1.0, -1.0, 1.0]), "{isa:?}");
    }
}

#[test]
fn every_half_survives_a_round_trip() {
    let x: Vec<u16> = (0..=u16::MAX).collect();
    for isa in sets() {
        let (mut wide, mut narrow) = (vec![0.0; x.len()], vec![0; x.len()]);
        // SAFETY: all slices have 65536 elements.
        unsafe { f16_there_and_back(isa)(&x, &mut wide, &mut narrow) };
        for i in 0..x.len() {
            let want = half::f16::from_bits(x[i]).to_f32();
            assert!(wide[i].to_bits() == want.to_bits() || (wide[i].is_nan() && want.is_nan()), "{isa:?} {i:#x}");
            assert!(narrow[i] == x[i] || want.is_nan(), "{isa:?} {i:#x}");
        }
    }
}
