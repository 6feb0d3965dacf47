//! Pages about scripted tunings: nothing that was measured or refused is missing, whatever it is called.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use planish_engine::accept::{self, Effect, Gain};
use planish_tune::scripted::{Fault, Script, Scripted};
use planish_tune::store::{Identity, Key, Layers, Ratio, Silicon, Source, State};
use planish_tune::{Budget, Policy, Rejection, Resume, Silent, Task, Value, Verdict, VirtualClock, tune};

use super::kernel::{Decision, decision, fates, regret};
use super::*;
use crate::page::number::NONE;
use crate::page::tests::{check_alone, check_markup, check_same_numbers};
use crate::page::{self, Files};

const HOSTILE: &str = "<script src=\"http://x\">alert('&')</script>";

/// A tuning of 24 configurations, of which some are wrong, do not build, cannot be launched or are not legal.
fn outcome(throttle: Vec<(f64, f64, f64)>) -> Outcome {
    let values = |n: i64| (0..n).map(Value::Int).collect::<Vec<_>>();
    let params = vec![("ROWS".to_owned(), values(6)), ("VEC".to_owned(), values(4))];
    let time =
        |c: &Config| vec![1e5 - 6e3 * c.int("ROWS").unwrap_or(0) as f64 + 4e4 * c.int("VEC").unwrap_or(0) as f64];
    let mut script = Script::of_grid(5, params, time);
    for (i, fault) in [(3, Fault::Wrong), (5, Fault::Compile), (9, Fault::Launch), (16, Fault::LaunchTimed)] {
        script = script.fault(i, fault);
    }
    script.illegal = script.candidates[20..].iter().map(|c| c.config.clone()).collect();
    script.machine.throttle = throttle;
    let clock = VirtualClock::new();
    let mut subject = Scripted::new(script, clock.clone());
    let (cancel, mut observer) = (AtomicBool::new(false), Silent);
    let budget = Budget::new(&clock, Duration::from_secs(20));
    let (resume, policy) = (Resume::default(), Policy::default());
    tune(&mut subject, Task { budget, cancel: &cancel, observer: &mut observer, resume, policy }).expect("it works")
}

fn choice(state: State, config: &Config) -> Choice {
    let silicon = Arc::new(Silicon::new(HOSTILE, [("vendor", "scripted")]));
    Choice {
        key: Key::parse("matvec", "cols=576,rows=1536").expect("canonical"),
        identity: Identity { silicon, kernel: "abc".into(), candidates: "def".into(), ..Identity::default() },
        config: config.clone(),
        source: Source::Tuned,
        state,
        ratio: Ratio { lo: 1.0, mid: 1.0, hi: 1.0 },
        ns_median: 1.0,
        written_ms: 1_796_016_309_266,
        evidence: Some("4a6b".into()),
    }
}

fn kernel(state: State, outcome: Outcome) -> Kernel {
    let config = if state == State::Tuned { &outcome.choice } else { &outcome.default };
    let choice = choice(state, config);
    let roof = Roof {
        flops: 1_769_472,
        read_bytes: 995_328,
        read_gb_s: Some(20.0),
        f32_gflop_s: Some(90.0),
        ..Roof::default()
    };
    Kernel {
        op: choice.key.op().to_owned(),
        shape: choice.key.shape().to_owned(),
        share: Some(0.4),
        choice: Some(choice),
        layer: "user".into(),
        outcome: Some(outcome),
        roof: Some(roof),
        measured_ms: Some(1_796_016_309_265),
        ..Kernel::default()
    }
}

#[track_caller]
fn check(tuned: &Tuned) -> Files {
    let files = page::files(tuned).expect("texts");
    check_markup(&files.html);
    check_alone(&files.html);
    check_same_numbers(&files);
    files
}

fn of(kernels: Vec<Kernel>) -> Tuned {
    let run = Run { budget_s: 60.0, spent_s: 41.5, measured: kernels.len() };
    Tuned { kernels, ..Tuned::new(HOSTILE, Some(run)) }
}

#[test]
fn everything_that_was_tried_is_on_the_page_with_its_reason() {
    let plain = outcome(Vec::new());
    assert!(fates(&plain).iter().sum::<usize>() == 24 && fates(&plain)[2..5] == [0, 4, 4], "{:?}", fates(&plain));
    let mut outcome = outcome(vec![(1.5e7, 2.2e7, 1.5)]);
    let odd = Config::new().with("ROWS", 77).with("VEC", 77);
    outcome.rejected.push((odd.clone(), Rejection::Compile(format!("line 1:\n\t{HOSTILE}"))));
    outcome.rejected.push((odd.clone().with("VEC", 78), Rejection::Timeout(2.5)));
    outcome.rejected.push((odd.with("VEC", 79), Rejection::Crashed("signal 11".into())));
    for (kind, n) in [("compile", 1), ("timeout", 1), ("crashed", 1)] {
        *outcome.counts.rejected.entry(kind.to_owned()).or_insert(0) += n;
    }
    assert!(matches!(outcome.verdict, Verdict::Promoted { .. }) && outcome.discarded > 0, "{:?}", outcome.verdict);
    let tuned = of(vec![kernel(State::Tuned, outcome.clone())]);
    let files = check(&tuned);
    let kinds: Vec<&str> = outcome.rejected.iter().map(|(_, r)| r.kind()).collect();
    for kind in ["constraint", "compile", "launch", "wrong", "slow", "timeout", "crashed"] {
        assert!(kinds.contains(&kind), "the script has no {kind}");
    }
    for (config, rejection) in &outcome.rejected {
        let plain = rejection.to_string().replace(['\n', '\t'], " ");
        let row = format!("\n{config}\t{}\t{plain}\n", rejection.kind());
        assert!(files.tsv.contains(&row), "{row:?}");
    }
    for ranked in &outcome.ranking {
        assert!(files.html.contains(&ranked.config.to_string()), "{} was timed", ranked.config);
    }
    let total = outcome.counts.rejected.values().sum::<usize>() + outcome.counts.dropped;
    assert!(files.html.contains(&format!("<summary>{total} refused or dropped: ")), "{:?}", outcome.counts);
    assert!(files.html.contains(&format!("{} timings of configurations", outcome.discarded)));
    assert!(files.html.contains("41.5 of 60.0 s"));
    // Shares of a model add up to far more than a whole.
    assert!(files.html.contains("of a decoded token or of a chunk of the prompt"));
}

#[test]
fn the_same_evidence_gives_the_same_page() {
    let folder = tempfile::tempdir().unwrap();
    let tuned = of(vec![kernel(State::Tuned, outcome(Vec::new())), kernel(State::DefaultKept, outcome(Vec::new()))]);
    let first = check(&tuned);
    let [_, json, _] = first.write(&folder.path().join("page.html")).unwrap();
    assert_eq!(page::read::<Tuned>(&json).unwrap(), first);
}

#[test]
fn what_a_store_leaves_out_is_counted_or_listed_again() {
    let full = outcome(Vec::new());
    let mut short = full.clone();
    short.rejected.retain(|(_, r)| !matches!(r, Rejection::Constraint(_)));
    let lost: Vec<_> = full.rejected.iter().filter(|(_, r)| r.kind() == "constraint").cloned().collect();
    assert!(!lost.is_empty());
    let mut k = kernel(State::Tuned, short);
    assert!(check(&of(vec![k.clone()])).html.contains(&format!("{} more that the space", lost.len())));
    k.forbidden = lost.iter().map(|(c, _)| (c.clone(), "legal".to_owned())).collect();
    let html = check(&of(vec![k])).html;
    assert!(!html.contains("more that the space"));
    assert!(lost.iter().all(|(config, _)| html.contains(&config.to_string())));
}

#[test]
fn every_decision_says_why() {
    let won = outcome(Vec::new());
    let kept = Outcome { verdict: Verdict::KeptDefault, choice: won.default.clone(), ..won.clone() };
    let unsure =
        Outcome { verdict: Verdict::Undecided("budget spent after 3 of 32 paired rounds".into()), ..kept.clone() };
    let mut busy = kept.clone();
    let held = busy.finals[0].config.clone();
    busy.rejected.push((held, Rejection::Busy(0.48)));
    busy.verdict = Verdict::Undecided(busy.rejected.last().expect("just pushed").1.to_string());
    let beside = Outcome { rejected: busy.rejected.clone(), ..won.clone() };
    let none = Outcome {
        finals: Vec::new(),
        ranking: Vec::new(),
        floor_ns: vec![None],
        anchors: Vec::new(),
        ..unsure.clone()
    };
    let cases = [
        (State::Tuned, won.clone(), Decision::Promoted, "the lower bound of its speed over the default"),
        (State::NoEndToEndEffect, won, Decision::NoEffect, "the model as a whole ran no faster"),
        (State::DefaultKept, kept, Decision::Kept, "a tie goes to the default"),
        (State::Undecided, unsure, Decision::Undecided, "budget spent after 3 of 32 paired rounds"),
        (State::Undecided, none, Decision::Undecided, "Undecided, so the default stays"),
        (State::Undecided, busy, Decision::Undecided, "other work took 48% of the processors"),
        (State::Tuned, beside, Decision::Promoted, "fewer threads is not chosen: busy: other work took 48%"),
    ];
    let mut kernels = Vec::new();
    for (state, outcome, want, why) in cases {
        let k = kernel(state, outcome);
        let (kind, told) = decision(&k);
        assert!(kind == want && told.contains(why), "{kind:?} {told}");
        kernels.push(k);
    }
    kernels.push(Kernel::missing("gemm", "rows=1", HOSTILE));
    kernels.push(Kernel { outcome: None, roof: None, ..kernels[0].clone() });
    assert!(decision(&kernels[8]).1.contains("Its evidence is not in the store"));
    let note = serde_json::json!({ "source": "builtin", "differs": ["driver", "kernel"] });
    kernels.push(Kernel { nearby: "rows=1535".into(), confirms: confirmed(&note), ..kernels[0].clone() });
    let told = decision(&kernels[9]).1;
    assert!(
        told.contains("everything here is of rows=1535") && told.contains("(builtin) that differed in driver, kernel")
    );
    assert_eq!(regret(&kernels[0]).map(|r| r.0), Some(0.0), "the fastest runs");
    assert!(regret(&kernels[2]).is_some_and(|r| r.0 > 0.2), "the default runs, and a faster one was measured");
    let files = check(&of(kernels));
    assert!(files.tsv.contains("\trefused: busy\n"), "the finals name it, {}", files.tsv);
    check(&of(Vec::new()));
}

#[test]
fn a_check_of_a_model_is_told_with_its_bounds() {
    let gain = |ratio: f64, effect| Gain {
        default_tok_s: 155.2,
        tuned_tok_s: 155.2 * ratio,
        ratio,
        lo: ratio - 0.02,
        hi: ratio + 0.02,
        pairs: 16,
        effect,
    };
    let (decode, prefill) = (gain(1.06, Effect::Faster), gain(1.0, Effect::NoEffect));
    let report = accept::Report {
        decode,
        prefill,
        logit_delta_max: 3.5e-5,
        same_best: 24,
        compared: 25,
        spent_s: 8.0,
        break_even: None,
    };
    let mut tuned = of(vec![kernel(State::Tuned, outcome(Vec::new()))]);
    let mut whole = |report| {
        tuned.whole = vec![Whole { set: "0123456789abcdef".into(), measured_ms: 1_796_016_309_265, report }];
        check(&tuned)
    };
    let none = NONE;
    let prefill = format!("prefill\t155.2\t155.2\t{none}\t0.980\t1.020\t16\tinside the interval\tno effect\t{none}");
    let decode = "decode\t155.2\t164.5\t1.060\t1.040\t1.080\t16\tpast it\tfaster";
    let tsv = whole(report).tsv;
    assert!(tsv.contains(&format!("{decode}\t{none}\t{none}\t{none}\n")), "{tsv}");
    assert!(tsv.contains(&format!("{prefill}\t{none}\t{none}\n")), "{tsv}");
    // A second of 155.2 tokens has 5.66% less to do at the median, 3.85% at the lower bound: 65 s are earned back by so many.
    let files = whole(report.after(Duration::from_secs(65)));
    assert!(files.tsv.contains(&format!("{decode}\t65.0\t178222\t262288\n")), "{}", files.tsv);
    assert!(files.tsv.contains(&format!("{prefill}\t{none}\t{none}\n")), "{}", files.tsv);
    let json: serde_json::Value = serde_json::from_str(&files.json).unwrap();
    let kept = &json["data"]["whole"][0]["report"]["break_even"];
    assert!(kept["tokens"] == 178_222 && kept["tokens_most"] == 262_288 && kept["tuning_s"] == 65.0, "{kept}");
    let slower = accept::Report { decode: gain(0.99, Effect::NoEffect), ..report };
    let tsv = whole(slower.after(Duration::from_secs(65))).tsv;
    assert!(tsv.contains(&format!("inside the interval\tno effect\t65.0\t{none}\t{none}\n")), "{tsv}");
    assert!(tsv.contains("3.50e-5\t24\t25\t8.0\t2026-11-30"), "{tsv}");
}

#[test]
fn a_store_that_a_card_left_is_shown_without_the_card() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/lab/0005");
    let store = Store::open(Layers { system: Some(folder), ..Layers::default() });
    let tuned = Tuned::of_store(&store, "0005", |_, _| true);
    assert_eq!(tuned.kernels.len(), 3);
    let files = check(&tuned);
    for told in [
        "promoted\t1.617\t1.611\t1.626\t26.07",
        "promoted\t1.334\t1.328\t1.336\t39.46",
        "NVIDIA H200",
        "budget spent before the default was timed",
        "GB/s at least",
    ] {
        assert!(files.tsv.contains(told) || files.html.contains(told), "{told}");
    }
    let head = tuned.kernels.iter().find(|k| k.shape.contains("q8_0")).expect("the head");
    let control = tuned.kernels.iter().find(|k| k.shape.contains("q4_k")).expect("the control");
    assert_eq!(regret(head).map(|r| r.0), Some(0.0));
    let (loss, better) = regret(control).expect("timed");
    assert!(loss > 0.004 && loss < 0.005 && better.int("VEC") == Some(2), "{loss} {better}");
    // What the lab's page says it read, give or take what writing and rounding hide.
    let read = head.roof.as_ref().and_then(|r| r.read_gb_s).expect("a floor");
    assert!((read / 4510.0 - 1.0).abs() < 0.01, "{read}");
}
