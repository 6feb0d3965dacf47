//! The sampler against its definition by full sorts.

use super::*;
use crate::cpu::testing::{normal, sets};
use crate::reference::sample::distribution;

fn draw(step: u64) -> Draw {
    Draw { seed: 0x1234_5678_9abc_def0, sequence: 7, step }
}

/// What the definition draws, or `None` where u is too near an edge for f32 weights to decide.
fn expected(logits: &[f32], history: &[TokenCount], params: &Params, u: f64) -> Option<u32> {
    let mut sum = 0.0;
    for (token, p) in distribution(logits, history, params) {
        if (sum - u).abs() < 1e-5 {
            return None;
        }
        sum += p;
        if sum > u {
            return ((sum - u).abs() > 1e-5).then_some(token);
        }
    }
    None
}

#[track_caller]
fn check(logits: &[f32], history: &[TokenCount], params: &Params) {
    let mut decided = 0;
    let mut w = Workspace::new(logits.len());
    for step in 0..40 {
        let want = expected(logits, history, params, uniform(draw(step)));
        for isa in sets() {
            let mut x = logits.to_vec();
            let got = sample(isa, (&mut x, history), params, draw(step), &mut w).unwrap();
            if let Some(want) = want {
                assert_eq!(got, want, "{isa:?} {params:?} step {step}");
                decided += 1;
            }
        }
    }
    assert!(decided > 60, "only {decided} of the draws were decided: {params:?}");
}

fn variations() -> Vec<Params> {
    let base = Params { temperature: 0.8, ..Params::default() };
    let mut all = Vec::new();
    for order in [Order::TemperatureLast, Order::TemperatureFirst] {
        for (top_k, top_p, min_p) in [
            (0, 1.0, 0.0),
            (1, 1.0, 0.0),
            (40, 0.95, 0.05),
            (7, 0.6, 0.0),
            (0, 0.9, 0.0),
            (0, 0.3, 0.02),
            (0, 1.0, 0.1),
            (500, 1.0, 0.0),
            (100_000, 0.999, 0.0),
        ] {
            all.push(Params { order, top_k, top_p, min_p, ..base });
        }
    }
    all.push(Params { temperature: 0.0, ..base });
    all.push(Params { temperature: 1.7, repetition: 1.3, frequency: 0.2, presence: 0.4, ..base });
    all
}

#[test]
fn draws_what_the_definition_draws() {
    let history = [TokenCount { token: 3, count: 2 }, TokenCount { token: 11, count: 1 }];
    for (vocabulary, spread) in [(13, 1.0), (130, 2.0), (1999, 4.0)] {
        let logits: Vec<f32> = normal(30, vocabulary).iter().map(|v| v * spread).collect();
        for params in variations() {
            check(&logits, &[], &params);
            check(&logits, &history, &params);
        }
    }
}

#[test]
fn nan_and_minus_infinity_are_never_drawn_and_nothing_else_is_an_error() {
    let mut logits = vec![f32::NEG_INFINITY; 300];
    let mut w = Workspace::new(300);
    let hot = Params { temperature: 5.0, ..Params::default() };
    for isa in sets() {
        assert!(argmax(isa, &logits, &mut w).is_err());
        assert!(sample(isa, (&mut logits, &[]), &hot, draw(0), &mut w).is_err());
        assert!(argmax(isa, &[], &mut w).is_err());
        let mut some = logits.clone();
        some.iter_mut().step_by(2).for_each(|x| *x = f32::NAN);
        assert!(argmax(isa, &some, &mut w).is_err());
        (some[201], some[77]) = (-3.0, -3.0);
        assert_eq!(argmax(isa, &some, &mut w).unwrap(), 77, "ties go to the lowest id");
        for (step, params) in (0..30).flat_map(|step| variations().into_iter().map(move |p| (step, p))) {
            let params = Params { repetition: 1.0, temperature: params.temperature * 5.0, ..params };
            let token = sample(isa, (&mut some.clone(), &[]), &params, draw(step), &mut w).unwrap();
            assert!(token == 77 || token == 201, "{token}");
        }
        some[5] = f32::INFINITY;
        assert!(argmax(isa, &some, &mut w).is_err());
    }
}

#[test]
fn top_p_renormalises_over_top_k() {
    let p: [f32; 7] = [0.5, 0.2, 0.1, 0.05, 0.05, 0.05, 0.05];
    let logits = p.map(f32::ln);
    let params = Params { temperature: 1.0, top_k: 3, top_p: 0.8, ..Params::default() };
    assert_eq!(distribution(&logits, &[], &params).len(), 2);
    let mut w = Workspace::new(7);
    for step in 0..200 {
        let token = sample(Isa::Portable, (&mut logits.clone(), &[]), &params, draw(step), &mut w).unwrap();
        assert!(token < 2);
    }
}

#[test]
fn transformers_order_keeps_all_ties_of_top_k() {
    let logits = [1.0f32, 2.0, 1.0, 1.0, 0.0];
    for (order, kept) in [(Order::TemperatureLast, 2), (Order::TemperatureFirst, 4)] {
        let params = Params { order, temperature: 1.0, top_k: 2, ..Params::default() };
        assert_eq!(distribution(&logits, &[], &params).len(), kept);
        check(&logits, &[], &params);
    }
}

#[test]
fn a_vanishing_temperature_is_greedy_and_bad_history_is_named() {
    let mut logits = normal(31, 500);
    let mut w = Workspace::new(500);
    let best = argmax(Isa::Portable, &logits, &mut w).unwrap();
    for temperature in [1e-4, 1e-30, 1e-44] {
        let params = Params { temperature, ..Params::default() };
        for isa in sets() {
            assert_eq!(sample(isa, (&mut logits.clone(), &[]), &params, draw(1), &mut w).unwrap(), best);
        }
    }
    let history = [TokenCount { token: 500, count: 1 }];
    let error = sample(Isa::Portable, (&mut logits, &history), &Params::default(), draw(1), &mut w).unwrap_err();
    assert!(error.to_string().contains("token 500 of 500"));
}

#[test]
fn philox_matches_its_published_vectors() {
    assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
    let ones = philox([u32::MAX; 4], [u32::MAX; 2]);
    assert_eq!(ones, [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
    let pi = philox([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]);
    assert_eq!(pi, [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]);
}

#[test]
fn draws_follow_the_distribution() {
    let logits = [0.0f32, 1.0, 2.0, -1.0, 0.5];
    let params = Params { temperature: 1.0, ..Params::default() };
    let mut counts = [0.0f64; 5];
    let mut w = Workspace::new(5);
    let n = 100_000;
    for step in 0..n {
        let token = sample(Isa::Portable, (&mut logits.clone(), &[]), &params, draw(step), &mut w).unwrap();
        counts[token as usize] += 1.0;
    }
    let want = distribution(&logits, &[], &params);
    let chi2: f64 = want.iter().map(|&(t, p)| (counts[t as usize] - p * n as f64).powi(2) / (p * n as f64)).sum();
    assert!(chi2 < 23.5, "chi-squared of {chi2} with 4 degrees of freedom has p < 1e-4"); // quantile of p = 1e-4
}
