//! The exact reference of weights in affine groups against mlx.

// A failure anywhere in a test file is a failed test.
#![allow(clippy::unwrap_used)]

use planish_kernels::gpu::matvec::reference::products;
use planish_kernels::gpu::matvec_mlx::reference::Affine;
use serde_json::Value;

fn list(case: &Value, name: &str) -> Vec<f64> {
    case[name].as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
}

#[test]
fn affine_groups_expand_and_multiply_as_in_mlx() {
    let cases: Vec<Value> = serde_json::from_str(include_str!("goldens/affine.json")).unwrap();
    let mut negative = 0;
    for c in &cases {
        let [bits, group] = ["bits", "group"].map(|n| c[n].as_u64().unwrap() as usize);
        let codes: Vec<u8> = list(c, "codes").iter().flat_map(|w| (*w as u32).to_le_bytes()).collect();
        let (scales, offsets) = (list(c, "scales"), list(c, "offsets"));
        negative += scales.iter().filter(|s| **s < 0.0).count();
        let w = Affine { bits, group, codes: &codes, scales: &scales, offsets: &offsets }.weights();
        for (i, (got, want)) in w.iter().zip(list(c, "w")).enumerate() {
            assert!((got - want).abs() < 1e-6, "{bits} bits, element {i}: {got} instead of {want}");
        }
        let x = list(c, "x");
        for (got, want) in products(&w, &x, x.len()).iter().zip(list(c, "y")) {
            assert!((got - want).abs() < 1e-4, "{bits} bits: {got} instead of {want}");
        }
    }
    assert_eq!(cases.len(), 6);
    assert!(negative > 0, "the quantiser gives negative scales too");
}
