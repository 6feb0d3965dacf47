//! The f64 references of adapters, convolution and gated delta rule agree with torch and transformers.

use std::collections::BTreeMap;

use planish_kernels::gpu::conv1d::reference::Conv1d;
use planish_kernels::gpu::gdn_recurrent::reference::{Gdn, Sizes};
use planish_kernels::gpu::lora::reference::Lora;
use planish_kernels::gpu::lora_backward::reference::Backward;
use planish_kernels::gpu::rms_norm_lora::reference::norm;
use planish_kernels::gpu::swiglu_linear::reference::swiglu_linear;

type Tensors = BTreeMap<String, Vec<f64>>;

/// The tensors under `name` of `goldens/adapters.json`, which `goldens/make/adapters.py` writes.
fn golden(name: &str) -> Tensors {
    let mut all: BTreeMap<String, Tensors> =
        serde_json::from_str(include_str!("goldens/adapters.json")).expect("the file is well formed");
    all.remove(name).expect("the name is in the file")
}

#[track_caller]
fn check(what: &str, got: &[f64], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        assert!((got - want).abs() <= tolerance * (1.0 + want.abs()), "{what}, element {i}: {got}, torch {want}");
    }
}

#[test]
fn lora_and_its_gradients() {
    let t = golden("lora");
    let (dims, scale) = ([5, 4, 2], 0.75);
    let (x, w, a, b) = (&t["x"], &t["w"], &t["a"], &t["b"]);
    let forward = Lora { x, w, bias: &t["bias"], a, b, adapter: &[], dims, scale };
    check("y", &forward.y(), &t["y"], 1e-12);
    let back = Backward { dy: &t["dy"], x, w, a, b, hr: &forward.hr(), dims, scale };
    check("dx", &back.dx(), &t["dx"], 1e-12);
    check("da", &back.da(&vec![0.0; a.len()]), &t["da"], 1e-12);
    check("db", &back.db(&vec![0.0; b.len()]), &t["db"], 1e-12);
}

#[test]
fn mlp_and_norm() {
    let map = |x, w, cols, outs| Lora::<f64> {
        x,
        w,
        bias: &[],
        a: &[],
        b: &[],
        adapter: &[],
        dims: [cols, outs, 0],
        scale: 0.0,
    };
    let t = golden("mlp");
    let h = swiglu_linear(&map(&t["x"], &t["wg"], 4, 6), &map(&t["x"], &t["wu"], 4, 6));
    check("mlp", &map(&h, &t["wd"], 6, 4).y(), &t["y"], 1e-12);
    let t = golden("rms_norm_lora");
    let n = norm(&t["x"], &t["gamma"], 1e-5);
    let (w, a, b) = (&t["w"], &t["a"], &t["b"]);
    let y = Lora { x: &n, w, bias: &[], a, b, adapter: &[], dims: [5, 3, 2], scale: 0.75 }.y();
    check("rms_norm_lora", &y, &t["y"], 1e-12);
}

#[test]
fn convolution() {
    let t = golden("conv1d");
    let y = Conv1d { x: &t["x"], w: &t["w"], mask: &[], before: &[], dims: [1, 5, 3, 4] }.y();
    check("conv1d", &y, &t["y"], 1e-12);
}

#[test]
fn gated_delta_rule() {
    let sizes = Sizes { batch: 1, steps: 5, heads: 2, key_heads: 1, key_dim: 3, value_dim: 2 };
    // transformers computes in f32.
    for (name, tolerance) in [("gdn", 1e-12), ("gdn_transformers", 1e-5)] {
        let t = golden(name);
        let (q, k, v, g, beta, init) = (&t["q"], &t["k"], &t["v"], &t["g"], &t["beta"], &t["init"]);
        let forward = Gdn { q, k, v, g, beta, mask: &[], init, sizes };
        let (y, s) = forward.run();
        check("y", &y, &t["y"], tolerance);
        check("s", &s, &t["s"], tolerance);
    }
}
