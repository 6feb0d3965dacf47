//! The exact references of gated units, norms, losses and rotary embeddings against torch and transformers.

// A failure anywhere in a test file is a failed test.
#![allow(clippy::unwrap_used)]

use planish_kernels::gpu::cross_entropy::reference::{Loss, Reduction, cross_entropy};
use planish_kernels::gpu::cross_entropy_backward::reference::cross_entropy_backward;
use planish_kernels::gpu::linear_cross_entropy::reference::{linear_cross_entropy, logits};
use planish_kernels::gpu::linear_cross_entropy_backward::reference::{Linear, linear_cross_entropy_backward};
use planish_kernels::gpu::rms_norm::reference::rms_norm;
use planish_kernels::gpu::rms_norm_backward::reference::rms_norm_backward;
use planish_kernels::gpu::rope::reference::{Turn, rope};
use planish_kernels::gpu::swiglu::reference::{Gate, swiglu};
use planish_kernels::gpu::swiglu_backward::reference::swiglu_backward;
use planish_kernels::reference::rope::Pairs;
use planish_kernels::rope_table::{LongRope, RopeTable, Scaling, Yarn, rope_table};
use serde_json::Value;

fn cases(kind: &str) -> Vec<Value> {
    let all: Value = serde_json::from_str(include_str!("goldens/losses.json")).unwrap();
    all[kind].as_array().unwrap().clone()
}

fn list(case: &Value, name: &str) -> Vec<f64> {
    case[name].as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
}

fn number(case: &Value, name: &str) -> f64 {
    case[name].as_f64().unwrap_or_else(|| panic!("{name} in {case}"))
}

#[track_caller]
fn close(name: &str, got: &[f64], want: &[f64], within: f64) {
    assert_eq!(got.len(), want.len(), "{name}");
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!((g - w).abs() <= within * w.abs().max(1.0), "{name}[{i}]: {g} instead of {w}");
    }
}

#[test]
fn gated_units_are_those_of_torch() {
    for c in cases("glu") {
        let gate = Gate::of(c["gate"].as_str().unwrap()).unwrap();
        let (a, b) = (list(&c, "a"), list(&c, "b"));
        close("y", &swiglu(&a, &b, gate), &list(&c, "y"), 1e-14);
        let [da, db] = swiglu_backward(&a, &b, &list(&c, "dy"), gate);
        close("da", &da, &list(&c, "da"), 1e-14);
        close("db", &db, &list(&c, "db"), 1e-14);
    }
}

#[test]
fn norms_are_those_of_torch() {
    for c in cases("norm") {
        let (x, w) = (list(&c, "x"), list(&c, "w"));
        close("y", &rms_norm(&x, &w, 1e-5), &list(&c, "y"), 1e-13);
        let [dx, dw] = rms_norm_backward(&x, &w, &list(&c, "dy"), 1e-5);
        close("dx", &dx, &list(&c, "dx"), 1e-13);
        close("dw", &dw, &list(&c, "dw"), 1e-13);
    }
}

#[test]
fn losses_are_those_of_torch() {
    for c in cases("loss") {
        let targets: Vec<u32> = list(&c, "targets").iter().map(|t| *t as u32).collect();
        let o = Loss {
            vocab: number(&c, "vocab") as usize,
            ignore: -100i32 as u32,
            scale: number(&c, "scale"),
            cap: number(&c, "cap"),
            smooth: number(&c, "smooth"),
            z: number(&c, "z"),
            reduction: Reduction::of(c["reduction"].as_str().unwrap()).unwrap(),
        };
        let [h, w, bias, up] = ["h", "w", "bias", "up"].map(|n| list(&c, n));
        let x = logits(&h, &w, Some(&bias), o.vocab);
        let [loss, lse, total] = cross_entropy(&x, &targets, &o);
        assert_eq!([&loss, &lse, &total], linear_cross_entropy(&h, &w, Some(&bias), &targets, &o).each_ref());
        close("loss", &loss, &list(&c, "loss"), 1e-13);
        close("lse", &lse, &list(&c, "lse"), 1e-13);
        close("total", &total, &[number(&c, "total"), 4.0], 1e-13);
        let [dx] = cross_entropy_backward(&x, &targets, &lse, &up, &o);
        close("dx", &dx, &list(&c, "dx"), 1e-13);
        let linear = Linear { h: &h, w: &w, bias: Some(&bias), targets: &targets, lse: &lse, up: &up };
        for (name, got) in ["dh", "dw", "dbias"].iter().zip(linear_cross_entropy_backward(&linear, &o)) {
            close(name, &got, &list(&c, name), 1e-13);
        }
    }
}

#[test]
fn rotations_are_those_of_transformers() {
    for c in cases("rotation") {
        let pairs = if c["pairs"] == "halves" { Pairs::Halves } else { Pairs::Neighbours };
        let positions: Vec<u32> = list(&c, "positions").iter().map(|p| *p as u32).collect();
        let frequencies: Vec<f32> = list(&c, "frequencies").iter().map(|f| *f as f32).collect();
        let turn = Turn { head_dim: 8, frequencies: &frequencies, magnitude: 1.0, pairs, backward: false };
        close("y", &rope(&list(&c, "x"), &positions, None, &turn), &list(&c, "y"), 1e-13);
    }
}

#[test]
fn rotary_tables_are_those_of_transformers() {
    for c in cases("table") {
        let table = table(&c);
        // Those tables are made in f32.
        close(&c["kind"].to_string(), &[table.magnitude()], &[number(&c, "magnitude")], 1e-6);
        for (i, (g, w)) in table.frequencies().iter().zip(list(&c, "frequencies")).enumerate() {
            assert!((g - w).abs() <= 5e-6 * w.abs(), "{c} frequency {i}: {g} instead of {w}");
        }
    }
}

fn table(c: &Value) -> RopeTable {
    let of = |name: &str| number(c, name);
    let (context, original) = (of("context"), c["original_max_position_embeddings"].as_f64().unwrap_or(of("limit")));
    let lists = ["short_factor", "long_factor"].map(|n| c[n].as_array().map_or(Vec::new(), |_| list(c, n)));
    let scaling = match c["kind"].as_str().unwrap() {
        "linear" => Scaling::Linear { factor: of("factor") },
        "dynamic" => Scaling::Dynamic { factor: of("factor"), original, context },
        "llama3" => {
            Scaling::Llama3 { factor: of("factor"), low: of("low_freq_factor"), high: of("high_freq_factor"), original }
        }
        "yarn" => Scaling::Yarn(Yarn {
            mscale: c["mscale"].as_f64().map(|m| (m, of("mscale_all_dim"))),
            truncate: c["truncate"] != false,
            ..Yarn::new(of("factor"), original)
        }),
        "longrope" => Scaling::LongRope(LongRope {
            short: &lists[0],
            long: &lists[1],
            original,
            context,
            factor: of("limit") / original,
            attention_factor: None,
        }),
        "proportional" => Scaling::Proportional { share: of("partial_rotary_factor"), factor: of("factor") },
        kind => panic!("{kind}"),
    };
    rope_table(of("dims") as usize, of("base"), None, scaling, Pairs::Halves).unwrap()
}
