//! The reference of attention and of its gradients against torch in float64, `goldens/make/attention.py`.

use planish_kernels::gpu::attention::inputs::Heads;
use planish_kernels::gpu::attention::reference::{Mask, Saved, backward, forward};
use serde_json::Value;

/// The numbers under `name`; null is negative infinity.
fn numbers(case: &Value, name: &str) -> Vec<f64> {
    let list = case[name].as_array().unwrap_or_else(|| panic!("{name} is a list"));
    list.iter().map(|v| v.as_f64().unwrap_or(f64::NEG_INFINITY)).collect()
}

fn size(from: &Value, name: &str) -> usize {
    from[name].as_u64().unwrap_or_else(|| panic!("{name} is a size")) as usize
}

#[track_caller]
fn check(what: &str, got: &[f64], want: &[f64]) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        assert!(got == want || (got - want).abs() < 1e-11, "{what}[{i}] is {got}, not {want}");
    }
}

#[test]
fn attention_and_its_gradients_are_those_of_torch() {
    let golden: Value = serde_json::from_str(include_str!("goldens/attention.json")).expect("the golden is JSON");
    let (heads, dim) = (Heads { q: size(&golden, "heads"), kv: size(&golden, "kv_heads") }, size(&golden, "dim"));
    for case in golden["cases"].as_array().expect("cases are a list") {
        let mask = Mask {
            queries: size(case, "queries"),
            keys: size(case, "keys"),
            dim,
            causal: case["causal"].as_bool().expect("a flag"),
            window: size(case, "window"),
            scale: case["scale"].as_f64().expect("a number"),
            softcap: case["softcap"].as_f64().expect("a number"),
        };
        let [q, k, v, d_o] = ["q", "k", "v", "d_o"].map(|name| numbers(case, name));
        let (mut o, mut lse, mut d_q) = (Vec::new(), Vec::new(), Vec::new());
        let [mut d_k, mut d_v] = [(); 2].map(|()| vec![0.0; k.len()]);
        for h in 0..heads.q {
            let (of_q, of_kv) = (h * mask.queries * dim.., heads.kv_of(h) * mask.keys * dim..);
            let [q, d_o] = [&q, &d_o].map(|x| &x[of_q.clone()][..mask.queries * dim]);
            let [k, v] = [&k, &v].map(|x| &x[of_kv.clone()][..mask.keys * dim]);
            let (one_o, one_lse) = forward(&mask, q, k, v);
            let gradients = backward(&mask, &Saved { q, k, v, o: &one_o, d_o, lse: &one_lse });
            d_q.extend_from_slice(&gradients[0]);
            for (all, one) in [(&mut d_k, &gradients[1]), (&mut d_v, &gradients[2])] {
                all[of_kv.clone()].iter_mut().zip(one).for_each(|(a, b)| *a += b);
            }
            o.extend(one_o);
            lse.extend(one_lse);
        }
        for (what, got) in [("o", &o), ("lse", &lse), ("d_q", &d_q), ("d_k", &d_k), ("d_v", &d_v)] {
            check(what, got, &numbers(case, what));
        }
    }
}
