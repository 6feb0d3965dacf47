//! The page about tuned kernels: all of them at a glance, then each on its own, then who measured and by which rules.

use std::collections::BTreeMap;

use planish_engine::accept::{BreakEven, Gain};
use planish_engine::roof::Roof;
use planish_tune::{Policy, counted};

use super::kernel::{self, Decision};
use super::{Kernel, Tuned};
use crate::page::number::{NONE, bounds, date, fixed, percent, ratio, sig, us};
use crate::page::plot::{self, Axis, Bar, Mark};
use crate::page::{Cell, Page, Roofline, Section, Stacked, Table, Tone};

/// Sections before those of the kernels.
const BEFORE: usize = 4;

pub fn page(tuned: &Tuned) -> Page {
    let mut page = Page::new(format!("Tuning: {}", tuned.name), lead(tuned));
    intro(page.section(""), tuned);
    glance(page.section("Kernels"), tuned);
    against_roof(page.section("Against the roofline"), tuned);
    end_to_end(page.section("End to end"), tuned);
    assert_eq!(page.sections.len(), BEFORE, "links to kernels count the sections before them");
    for k in &tuned.kernels {
        kernel::section(page.section(k.name()), k);
    }
    identity(page.section("Who measured"), tuned);
    rules(page.section("By which rules"), tuned);
    page
}

fn lead(tuned: &Tuned) -> String {
    let is = |wanted: Decision| tuned.kernels.iter().filter(|k| kernel::decision(k).0 == wanted).count();
    let parts = [
        (is(Decision::Promoted), "faster than the default beyond noise"),
        (is(Decision::Kept), "kept at the default, which nothing beat beyond noise"),
        (is(Decision::NoEffect), "back at the default, because the model ran no faster"),
        (is(Decision::Undecided), "undecided, so at the default"),
        (is(Decision::Missing), "not measured, so at the default"),
    ];
    let told: Vec<String> = parts.iter().filter(|p| p.0 > 0).map(|(n, what)| format!("{n} {what}")).collect();
    match tuned.kernels.len() {
        0 => "There is no tuned kernel here.".to_owned(),
        n => format!("{}: {}.", counted(n, "kernel"), told.join("; ")),
    }
}

fn intro(section: &mut Section, tuned: &Tuned) {
    let outcomes = || tuned.kernels.iter().filter_map(|k| k.outcome.as_ref());
    let count = |n: u64| Cell::from(n.to_string());
    let sum = |f: fn(&planish_tune::Outcome) -> u64| count(outcomes().map(f).sum());
    let mut facts = vec![
        ("kernels", count(tuned.kernels.len() as u64)),
        ("configurations listed", sum(|o| o.counts.candidates as u64)),
        ("checked and timed", sum(|o| o.counts.timed as u64)),
        ("refused, all reasons", sum(|o| o.counts.rejected.values().sum::<usize>() as u64)),
        ("timings taken", sum(|o| o.samples)),
        ("timings taken back for drift", sum(|o| o.discarded)),
    ];
    if let Some(run) = &tuned.run {
        let used = format!("{} of {} s", fixed(run.spent_s, 1), fixed(run.budget_s, 1));
        facts.push(("budget used", used.into()));
        facts.push(("kernels measured in this run", count(run.measured as u64)));
    }
    if let Some(ms) = tuned.kernels.iter().filter_map(|k| k.measured_ms).max() {
        facts.push(("last measured", date(ms).into()));
    }
    facts.push(("written by", tuned.program.as_str().into()));
    section.facts(facts);
    section.text(
        "No configuration was timed before its output had been compared with a reference in f64. \
         A configuration replaces the default only when the lower confidence bound of its speed over the default, from \
         paired and interleaved rounds, clears the margin; a tie goes to the default. \
         The .json and .tsv files beside this page hold the same numbers, the .json also every raw sample.",
    );
}

fn glance(section: &mut Section, tuned: &Tuned) {
    if tuned.kernels.is_empty() {
        section.text("None.");
        return;
    }
    section.plot(where_they_went(tuned));
    let mut table = Table::new(
        "Decisions",
        &[
            "kernel",
            "share|%",
            "decision",
            "gain|x",
            "lower|x",
            "upper|x",
            "default|us",
            "runs now|us",
            "roofline|%",
            "regret|%",
            "timings",
            "time|s",
        ],
    );
    for (i, k) in tuned.kernels.iter().enumerate() {
        table.row(decision_row(k, BEFORE + 1 + i));
    }
    section.table(table);
    section.text(
        "Share is that of a decoded token or of a chunk of the prompt, whichever is larger, by the roofline: together they \
         are up to two wholes. Gain is the default's time over the choice's, lower and upper are \
         its confidence bounds from the finals. \
         Regret is how much faster the best measured configuration looked in the search than the one that runs; where it \
         is above zero, the better figure was not proven.",
    );
}

fn decision_row(k: &Kernel, section: usize) -> Vec<Cell> {
    let (decision, _) = kernel::decision(k);
    let gain = k.choice.as_ref().map(|c| c.ratio).filter(|_| decision == Decision::Promoted);
    let number = |v: Option<f64>, f: fn(f64) -> String| Cell::from(v.map_or_else(|| NONE.to_owned(), f));
    let outcome = k.outcome.as_ref();
    let [default, now] = [outcome.map(|o| &o.default), k.runs()].map(|c| kernel::median_ns(k, c));
    vec![
        Cell::from(k.short()).linked(section),
        number(k.share, percent),
        Cell::from(decision.name()).tone(decision.tone()),
        number(gain.map(|g| g.mid), ratio),
        number(gain.map(|g| g.lo), ratio),
        number(gain.map(|g| g.hi), ratio),
        number(default, us),
        number(now, us),
        number(kernel::share_of_roof(k), percent),
        number(kernel::regret(k).map(|r| r.0), percent),
        number(outcome.map(|o| o.samples as f64), |v| fixed(v, 0)),
        number(outcome.map(|o| o.spent_s), |v| fixed(v, 1)),
    ]
}

/// Of how many configurations each kernel's space consists, and what became of them.
fn where_they_went(tuned: &Tuned) -> Stacked {
    let bar = |k: &Kernel| {
        let counts = kernel::fates(k.outcome.as_ref()?);
        Some(Bar {
            label: k.short(),
            values: counts.iter().map(|n| *n as f64).collect(),
            texts: counts.iter().map(ToString::to_string).collect(),
            text: counts.iter().sum::<usize>().to_string(),
        })
    };
    Stacked {
        title: "What became of every configuration".into(),
        note: "Counts for each kernel; every refused configuration is listed with its reason below.".into(),
        x: Axis::linear("configurations"),
        parts: kernel::FATES.map(str::to_owned).to_vec(),
        bars: tuned.kernels.iter().filter_map(bar).collect(),
    }
}

fn against_roof(section: &mut Section, tuned: &Tuned) {
    let mut machines: BTreeMap<String, Vec<&Kernel>> = BTreeMap::new();
    for k in tuned.kernels.iter().filter(|k| k.roof.is_some() && k.outcome.is_some()) {
        let label = k.choice.as_ref().map_or_else(String::new, |c| c.identity.silicon.label.clone());
        machines.entry(label).or_default().push(k);
    }
    if machines.is_empty() {
        section.text("Nothing here was timed for an op whose work is known.");
        return;
    }
    for (label, kernels) in &machines {
        section.plot(roofline(label, kernels));
        let mut table = Table::new(
            format!("Achieved on {label}"),
            &[
                "kernel",
                "bytes|MB",
                "operations|1e6",
                "default|GB/s",
                "runs now|GB/s",
                "default|1e9 op/s",
                "runs now|1e9 op/s",
                "read ceiling|GB/s",
                "roofline|us",
                "runs now|us",
                "of roofline|%",
            ],
        );
        kernels.iter().filter_map(|k| achieved(k)).for_each(|row| table.row(row));
        section.table(table);
    }
}

fn achieved(k: &Kernel) -> Option<Vec<Cell>> {
    let (roof, outcome) = (k.roof.as_ref()?, k.outcome.as_ref()?);
    let number = |v: Option<f64>, f: fn(f64) -> String| Cell::from(v.map_or_else(|| NONE.to_owned(), f));
    let four = |v: f64| sig(v, 4);
    let [default, now] = [Some(&outcome.default), k.runs()].map(|c| kernel::median_ns(k, c));
    let per_ns = |what: f64, ns: Option<f64>| ns.map(|ns| what / ns);
    Some(vec![
        k.short().into(),
        four(roof.bytes() / 1e6).into(),
        four(roof.ops() / 1e6).into(),
        number(per_ns(roof.bytes(), default), four),
        number(per_ns(roof.bytes(), now), four),
        number(per_ns(roof.ops(), default), four),
        number(per_ns(roof.ops(), now), four),
        number(roof.read_gb_s, four),
        number(outcome.floor_ns.first().copied().flatten(), us),
        number(now, us),
        number(kernel::share_of_roof(k), percent),
    ])
}

fn roofline(label: &str, kernels: &[&Kernel]) -> Roofline {
    let roofs: Vec<&Roof> = kernels.iter().filter_map(|k| k.roof.as_ref()).collect();
    let most = |pick: fn(&Roof) -> Option<f64>| roofs.iter().filter_map(|r| pick(r)).reduce(f64::max);
    let implied = roofs.iter().all(|r| r.implied);
    let mark = |at: Option<f64>, unit: &str| at.map(|at| Mark { at, label: format!("{} {unit}", sig(at, 4)) });
    let point = |k: &Kernel, config, tone| {
        let (roof, ns) = (k.roof.as_ref()?, kernel::median_ns(k, config)?);
        Some(plot::Kernel { label: k.short(), intensity: roof.ops() / roof.bytes(), gop_s: roof.ops() / ns, tone })
    };
    let now = kernels.iter().filter_map(|k| point(k, k.runs(), Tone::Chosen));
    let changed = kernels.iter().filter(|k| k.runs() != k.outcome.as_ref().map(|o| &o.default));
    let before = changed.filter_map(|k| point(k, k.outcome.as_ref().map(|o| &o.default), Tone::Default));
    let points: Vec<plot::Kernel> = now.chain(before).collect();
    let mut note = if implied {
        "These records lack the ceilings measured with them; the slope is the least bandwidth that fits their stored \
         floors, and no arithmetic roof is known."
            .to_owned()
    } else {
        "Ceilings were measured on this machine when it was tuned; where runs differ the highest is drawn. A kernel above \
         them says that they were measured too low, or that its data lay in a cache."
            .to_owned()
    };
    let is_card = |k: &&Kernel| {
        k.choice.as_ref().is_some_and(|c| c.identity.silicon.fields.get("vendor").is_some_and(|v| v == "nvidia"))
    };
    if !implied && kernels.iter().any(is_card) {
        note += " Arithmetic roofs of a card are twice its matrix probe, a bound that no right kernel exceeds.";
    }
    Roofline {
        title: format!("Roofline of {label}"),
        note,
        slopes: mark(most(|r| r.read_gb_s), if implied { "GB/s at least" } else { "GB/s read" }).into_iter().collect(),
        flats: [mark(most(|r| r.f32_gflop_s), "GFLOP/s in f32"), mark(most(|r| r.int8_gop_s), "GOP/s in int8")]
            .into_iter()
            .flatten()
            .collect(),
        legend: [(Tone::Chosen, "runs now"), (Tone::Default, "default, where another runs now")]
            .iter()
            .filter(|(tone, _)| points.iter().any(|p| p.tone == *tone))
            .map(|(tone, name)| (*tone, (*name).to_owned()))
            .collect(),
        points,
    }
}

fn end_to_end(section: &mut Section, tuned: &Tuned) {
    if tuned.whole.is_empty() {
        section.text(
            "There is no end-to-end check here: none was run, or every kernel runs its default, so that there was \
             nothing to compare. What a kernel gains alone says nothing yet about tokens a second.",
        );
        return;
    }
    let mut table = Table::new(
        "Whole model, tuned set against defaults",
        &[
            "set",
            "path",
            "default|tokens/s",
            "tuned|tokens/s",
            "gain|x",
            "lower|x",
            "upper|x",
            "pairs",
            "no gain, 1 x",
            "verdict",
            "tuning|s",
            "earned back after|tokens",
            "at most|tokens",
        ],
    );
    let mut logits = Table::new(
        "Whole model, logits",
        &["set", "largest difference of a logit", "same best token", "positions", "time|s", "measured"],
    );
    for w in &tuned.whole {
        let r = &w.report;
        // Tuning is earned back by decoding; a prompt is read once.
        for (path, gain, earned) in [("decode", &r.decode, r.break_even.as_ref()), ("prefill", &r.prefill, None)] {
            table.row(gain_row(&w.set, path, gain).into_iter().chain(earned_cells(earned)).collect());
        }
        logits.row(vec![
            w.set.as_str().into(),
            format!("{:.2e}", r.logit_delta_max).into(),
            r.same_best.to_string().into(),
            r.compared.to_string().into(),
            fixed(r.spent_s, 1).into(),
            date(w.measured_ms).into(),
        ]);
    }
    section.table(table).table(logits);
    section.text(
        "Both decoders run interleaved on the same tokens. Where the lower bound does not clear 1, the set brings nothing \
         that can be shown, and its choices go back to the defaults. \
         Tuning is earned back by the time that decoding saves: after so many tokens at the median of the gain, and at most \
         after so many at its lower bound; there is no such number where decode got no faster beyond noise.",
    );
}

/// What tuning took, and after how many decoded tokens that is earned back.
fn earned_cells(earned: Option<&BreakEven>) -> [Cell; 3] {
    let cell = |text: Option<String>| Cell::from(text.unwrap_or_else(|| NONE.to_owned()));
    let tokens = |n: Option<u64>| cell(n.map(|n| n.to_string()));
    [
        cell(earned.map(|e| fixed(e.tuning_s, 1))),
        tokens(earned.and_then(|e| e.tokens)),
        tokens(earned.and_then(|e| e.tokens_most)),
    ]
}

fn gain_row(set: &str, path: &str, g: &Gain) -> Vec<Cell> {
    use planish_engine::accept::Effect;
    let tone = match g.effect {
        Effect::Faster => Tone::Chosen,
        Effect::Slower => Tone::Bad,
        Effect::NoEffect | Effect::Same => Tone::Muted,
    };
    // Whether the interval is past a ratio of 1, before it, or holds it.
    let even = match (g.lo > 1.0, g.hi < 1.0) {
        (true, _) => "past it",
        (_, true) => "short of it",
        _ => "inside the interval",
    };
    vec![
        set.into(),
        path.into(),
        sig(g.default_tok_s, 4).into(),
        sig(g.tuned_tok_s, 4).into(),
        g.shown().map_or_else(|| NONE.to_owned(), ratio).into(),
        ratio(g.lo).into(),
        ratio(g.hi).into(),
        g.pairs.to_string().into(),
        even.into(),
        Cell::from(g.effect.name()).tone(tone),
    ]
}

fn identity(section: &mut Section, tuned: &Tuned) {
    let mut seen: Vec<(&planish_tune::store::Identity, Vec<String>)> = Vec::new();
    for k in &tuned.kernels {
        let Some(choice) = &k.choice else { continue };
        let same = |i: &&mut (&planish_tune::store::Identity, Vec<String>)| {
            let (a, b) = (i.0, &choice.identity);
            let fields = |x: &planish_tune::store::Identity| {
                [x.driver.clone(), x.toolchain.clone(), x.kernel.clone(), x.policy.clone()]
            };
            a.silicon == b.silicon && fields(a) == fields(b)
        };
        match seen.iter_mut().find(same) {
            Some(known) => known.1.push(k.short()),
            None => seen.push((&choice.identity, vec![k.short()])),
        }
    }
    if seen.is_empty() {
        section.text("Nothing was measured.");
        return;
    }
    for (identity, kernels) in &seen {
        let s = &identity.silicon;
        let facts: Vec<String> = s.fields.iter().map(|(n, v)| format!("{n} {v}")).collect();
        let or_none = |text: &str| if text.is_empty() { NONE.to_owned() } else { text.to_owned() };
        section.facts(vec![
            ("machine", s.label.as_str().into()),
            ("silicon hash", s.hash16().into()),
            ("driver", or_none(&identity.driver).into()),
            ("toolchain", or_none(&identity.toolchain).into()),
            ("kernel hash", identity.kernel.as_str().into()),
            ("kernels", kernels.len().to_string().into()),
        ]);
        section.text(format!("Silicon: {}.", facts.join(", ")));
    }
    let mut table =
        Table::new("Records", &["kernel", "candidate set", "source", "layer", "state", "evidence", "measured"]);
    for k in &tuned.kernels {
        let Some(c) = &k.choice else { continue };
        table.row(vec![
            k.short().into(),
            c.identity.candidates.as_str().into(),
            c.source.to_string().into(),
            k.layer.as_str().into(),
            c.state.to_string().into(),
            c.evidence.as_deref().unwrap_or("none").into(),
            k.measured_ms.map_or_else(|| NONE.to_owned(), date).into(),
        ]);
    }
    section.table(table);
}

fn rules(section: &mut Section, tuned: &Tuned) {
    let mut seen: Vec<&Policy> = Vec::new();
    for policy in tuned.kernels.iter().filter_map(|k| k.outcome.as_ref()).map(|o| &o.policy) {
        if !seen.contains(&policy) {
            seen.push(policy);
        }
    }
    section.text(
        "The policy is part of a record's identity: a choice measured by other rules is a starting point, not an answer. \
         `planish store why OP SHAPE` says for a kernel which field differs, and `planish store report --from FILE.json` \
         makes this page again from the evidence beside it.",
    );
    for (i, policy) in seen.iter().enumerate() {
        let mut table = Table::new(format!("Policy {}", i + 1), &["rule", "value"]);
        let fields = serde_json::to_value(policy).unwrap_or_default();
        for (name, value) in fields.as_object().into_iter().flatten() {
            table.row(vec![name.as_str().into(), value.to_string().into()]);
        }
        let p = policy;
        let told = format!(
            "margin {}, false promotions at most {}% a kernel, {} finalists, judged after {:?} pairs",
            ratio(1.0 + p.margin),
            percent(p.alpha),
            p.finalists,
            p.looks
        );
        section.fold(told, |s| _ = s.table(table));
    }
}

/// An interval as text.
pub fn interval(mid: f64, edges: Option<(f64, f64)>) -> String {
    edges.map_or_else(|| ratio(mid), |(lo, hi)| bounds(mid, lo, hi))
}
