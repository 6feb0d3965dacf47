//! The part of the page about one kernel: the decision and why, the ranking, drift, and every refusal.

use std::collections::BTreeMap;

use planish_tune::stats::median_bounds;
use planish_tune::store::{Source, State};
use planish_tune::{Config, Final, Interval, Outcome, Ranked, Rejection, Verdict, counted};

use super::Kernel;
use super::page::interval;
use crate::page::number::{NONE, date, fixed, percent, ratio, us};
use crate::page::plot::{Axis, Mark, Point, Row, Series};
use crate::page::{Cell, Curves, Intervals, Section, Table, Tone};

/// Rows of the ranking that are drawn; the table has all.
const DRAWN: usize = 20;
/// Level of each bound outside the finals: together they hold the ratio with 95%.
const LEVEL: f64 = 0.025;

/// What became of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Another configuration than the default runs.
    Promoted,
    /// The default was not beaten.
    Kept,
    /// A configuration won alone, but the model ran no faster.
    NoEffect,
    /// The measurements did not settle it.
    Undecided,
    /// Nothing was measured.
    Missing,
}

impl Decision {
    pub fn name(self) -> &'static str {
        match self {
            Decision::Promoted => "promoted",
            Decision::Kept => "default kept",
            Decision::NoEffect => "no effect end to end",
            Decision::Undecided => "undecided",
            Decision::Missing => "not measured",
        }
    }

    pub fn tone(self) -> Tone {
        match self {
            Decision::Promoted => Tone::Chosen,
            Decision::Kept | Decision::NoEffect => Tone::Plain,
            Decision::Undecided | Decision::Missing => Tone::Muted,
        }
    }
}

/// What was decided, and why, in a sentence or two.
pub fn decision(k: &Kernel) -> (Decision, String) {
    let Some(choice) = &k.choice else {
        return (
            Decision::Missing,
            format!("The default runs: {}.", if k.missing.is_empty() { "not measured" } else { &k.missing }),
        );
    };
    let (kind, mut why) = match (choice.state, &k.outcome) {
        (State::Tuned, Some(o)) => (Decision::Promoted, promoted(o, &choice.config)),
        (State::Tuned, None) => (Decision::Promoted, format!("{} runs.", choice.config)),
        (State::NoEndToEndEffect, Some(o)) => (
            Decision::NoEffect,
            format!(
                "The default runs again. Alone, {} But the model as a whole ran no faster with its set, so the choice went \
                 back.",
                lower_first(&promoted(o, &o.choice))
            ),
        ),
        (State::NoEndToEndEffect, None) => {
            (Decision::NoEffect, "The default runs again: the model ran no faster.".into())
        }
        (State::DefaultKept, Some(o)) => (Decision::Kept, kept(o)),
        (State::DefaultKept, None) => (Decision::Kept, "The default stays.".into()),
        (State::Undecided, Some(o)) => (Decision::Undecided, undecided(o)),
        (State::Undecided, None) => (Decision::Undecided, "Undecided, so the default stays.".into()),
    };
    if k.outcome.is_none() {
        why += if choice.evidence.is_some() {
            " Its evidence is not in the store, or of a kind that this program does not know."
        } else {
            " No evidence was kept."
        };
    }
    if choice.source != Source::Tuned {
        why += &format!(
            " The record is {}: a starting point, which does not run until it is confirmed on this machine.",
            choice.source
        );
    }
    if !k.nearby.is_empty() {
        why += &format!(" This shape was not measured: everything here is of {}, the nearest of its bucket.", k.nearby);
    }
    if !k.confirms.is_empty() {
        why += &format!(" The measurements put a prior to the test and are no search; they confirm {}.", k.confirms);
    }
    (kind, why)
}

fn lower_first(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |c| c.to_lowercase().chain(chars).collect())
}

fn promoted(o: &Outcome, config: &Config) -> String {
    let margin = ratio(1.0 + o.policy.margin);
    let Some(f) = o.finals.iter().find(|f| f.config == *config) else {
        return format!("{config} runs in place of the default.");
    };
    let lo = f.points.iter().map(|p| p.lo).fold(f64::INFINITY, f64::min);
    let mut text = format!(
        "{config} runs in place of the default: in {} paired rounds the lower bound of its speed over the default, {}, \
         clears {margin}.",
        f.pairs,
        ratio(lo)
    );
    let others = o.finals.iter().filter(|g| g.cleared && g.config != *config).count();
    if others > 0 {
        text += &format!(
            " Of the finalists {others} more cleared it; none is faster than it beyond doubt, or comes before it in the \
             fixed order."
        );
    }
    if let Some(share) = o.busy() {
        text += &format!(" What won on fewer threads is not chosen: {}.", Rejection::Busy(share));
    }
    text
}

fn kept(o: &Outcome) -> String {
    let margin = percent(o.policy.margin);
    let at_roof = o.counts.timed <= 1 && o.share_of_roof().is_some_and(|s| s * (1.0 + o.policy.margin) >= 1.0);
    match (o.finals.len(), at_roof) {
        (_, true) => {
            format!("The default stays: it is within {margin}% of the roofline, so there was nothing to search for.")
        }
        (0, _) => "The default stays: no configuration that was timed was faster in the search.".into(),
        (n, _) => format!(
            "The default stays: of {} none cleared the margin of {margin}% with its lower bound, and a tie goes \
             to the default.",
            counted(n, "finalist")
        ),
    }
}

fn undecided(o: &Outcome) -> String {
    match &o.verdict {
        Verdict::Undecided(why) => format!("Undecided, so the default stays: {why}."),
        _ if o.partial => {
            "Undecided, so the default stays: the search was cut short before it had found a winner.".into()
        }
        _ => "Undecided, so the default stays.".into(),
    }
}

/// What may become of a configuration, in the order of `fates`.
pub const FATES: [&str; 6] = [
    "timed to the end",
    "dropped: far behind",
    "admitted, not timed",
    "refused",
    "forbidden by a constraint",
    "not tried",
];

/// How many configurations went where; together all that were listed.
pub fn fates(o: &Outcome) -> [usize; 6] {
    let c = &o.counts;
    let out = |config: &Config| o.rejected.iter().any(|(refused, _)| refused == config);
    let to_the_end = o.ranking.iter().filter(|r| !out(&r.config)).count();
    let forbidden = c.rejected.get("constraint").copied().unwrap_or(0);
    let refused = c.rejected.values().sum::<usize>() - forbidden;
    let told = to_the_end + c.dropped + refused + forbidden + c.untried;
    [to_the_end, c.dropped, c.candidates.saturating_sub(told), refused, forbidden, c.untried]
}

/// Median time of `config`, in nanoseconds, at the first point.
pub fn median_ns(k: &Kernel, config: Option<&Config>) -> Option<f64> {
    let ranked = k.outcome.as_ref()?.ranking.iter().find(|r| Some(&r.config) == config)?;
    ranked.times.first().map(|t| t.median_ns).filter(|ns| *ns > 0.0)
}

/// Share of the roofline that what runs now reaches, at the first point.
pub fn share_of_roof(k: &Kernel) -> Option<f64> {
    let floor = k.outcome.as_ref()?.floor_ns.first().copied().flatten()?;
    median_ns(k, k.runs()).map(|ns| floor / ns)
}

/// How much faster the best measured configuration looked than the one that runs, and which it is.
pub fn regret(k: &Kernel) -> Option<(f64, &Config)> {
    let ranking = &k.outcome.as_ref()?.ranking;
    let speed = |config: &Config| ranking.iter().find(|r| r.config == *config).map(|r| r.speedup);
    let best = ranking.first()?;
    Some((best.speedup / speed(k.runs()?)? - 1.0, &best.config))
}

pub fn section(section: &mut Section, k: &Kernel) {
    section.text(decision(k).1);
    let Some(o) = &k.outcome else { return };
    facts(section, k, o);
    if !o.ranking.is_empty() {
        section.plot(ranking_plot(k, o));
    }
    finals(section, k, o);
    let all = ranking_table(k, o);
    section.fold(format!("All {} timed configurations", o.ranking.len()), |s| _ = s.table(all));
    refusals(section, k, o);
    drift(section, k, o);
}

fn facts(section: &mut Section, k: &Kernel, o: &Outcome) {
    let c = &o.counts;
    let time = match (median_ns(k, k.runs()), median_ns(k, Some(&o.default))) {
        (Some(now), Some(default)) => format!("{} us (default {} us)", us(now), us(default)),
        _ => "not timed".to_owned(),
    };
    let regret = match regret(k) {
        Some((r, _)) if r <= 0.0 => "0.0% (the best measured runs)".to_owned(),
        Some((r, best)) => {
            let samples = o.ranking.first().map_or(0, |r| r.times.iter().map(|t| t.samples_ns.len()).sum::<usize>());
            format!("{}% ({best} looked faster in {})", percent(r), counted(samples, "sample"))
        }
        None => NONE.to_owned(),
    };
    let roof = match (share_of_roof(k), o.floor_ns.first().copied().flatten()) {
        (Some(share), Some(floor)) => format!("{}% of {} us", percent(share), us(floor)),
        (_, None) if o.roof_beaten => "beaten by the default's own time".to_owned(),
        (_, None) => "unknown, or refuted by the default's own time".to_owned(),
        (None, Some(floor)) => format!("{} us, not timed", us(floor)),
    };
    let spent = match o.budget_s {
        Some(budget) => {
            format!("{} of {} s{}", fixed(o.spent_s, 1), fixed(budget, 1), if o.partial { ", cut short" } else { "" })
        }
        None => format!("{} s{}", fixed(o.spent_s, 1), if o.partial { ", cut short" } else { "" }),
    };
    section.facts(vec![
        ("default", o.default.to_string().into()),
        ("runs now", k.runs().map_or_else(|| NONE.to_owned(), ToString::to_string).into()),
        ("time now", time.into()),
        ("roofline", roof.into()),
        ("regret", regret.into()),
        (
            "configurations",
            format!("{} listed, {} admitted, {} timed, {} not tried", c.candidates, c.admitted, c.timed, c.untried)
                .into(),
        ),
        ("timings", format!("{} taken, {} taken back in {} drifts", o.samples, o.discarded, o.drifts).into()),
        ("noise of the default", format!("{}%", percent(o.noise)).into()),
        ("budget", spent.into()),
        ("measured", k.measured_ms.map_or_else(|| NONE.to_owned(), date).into()),
    ]);
}

/// What `config` changes of the default; `default` for itself.
fn changes(o: &Outcome, config: &Config) -> String {
    let changed = config.iter().filter(|(name, value)| o.default.get(name) != Some(value));
    let changed: Vec<String> = changed.map(|(name, value)| format!("{name}={value}")).collect();
    if changed.is_empty() { "default".to_owned() } else { changed.join(" ") }
}

/// The finals' interval of a configuration at the point where it gains least.
fn final_of<'o>(o: &'o Outcome, config: &Config) -> Option<(&'o Final, &'o Interval)> {
    let f = o.finals.iter().find(|f| f.config == *config)?;
    f.points.iter().min_by(|a, b| a.ratio.total_cmp(&b.ratio)).map(|i| (f, i))
}

/// Bounds of a speed outside the finals, from its ratios to the anchors around it, at the point where it gains least.
fn search_bounds(r: &Ranked) -> Option<(f64, f64)> {
    let bounds = r.times.iter().map(|t| median_bounds(&t.speedups, LEVEL)).collect::<Option<Vec<_>>>()?;
    bounds.into_iter().min_by(|a, b| a.0.total_cmp(&b.0))
}

/// Estimate and bounds of a ranked configuration, and what they come from.
fn estimate(o: &Outcome, r: &Ranked) -> (f64, Option<(f64, f64)>, &'static str) {
    match final_of(o, &r.config) {
        Some((_, i)) => (i.ratio, Some((i.lo, i.hi)), "finals"),
        None if r.config == o.default => (1.0, None, "reference"),
        None => (r.speedup, search_bounds(r), "search"),
    }
}

fn tone(k: &Kernel, o: &Outcome, config: &Config) -> Tone {
    if *config == o.default {
        Tone::Default
    } else if k.runs() == Some(config) {
        Tone::Chosen
    } else {
        Tone::Plain
    }
}

fn ranking_plot(k: &Kernel, o: &Outcome) -> Intervals {
    let row = |r: &Ranked| {
        let (value, bounds, _) = estimate(o, r);
        let default_ns = o.ranking.iter().find(|d| d.config == o.default).and_then(|d| d.times.first());
        let raw = r.times.first().filter(|_| r.times.len() == 1).zip(default_ns);
        let samples = raw.map_or_else(Vec::new, |(t, d)| t.samples_ns.iter().map(|ns| d.median_ns / ns).collect());
        let tone = tone(k, o, &r.config);
        Row { label: changes(o, &r.config), value: Some(value), bounds, samples, text: interval(value, bounds), tone }
    };
    // The fastest, and whoever has a part in the decision.
    let matters = |(i, r): &(usize, &Ranked)| {
        *i < DRAWN || r.config == o.default || Some(&r.config) == k.runs() || final_of(o, &r.config).is_some()
    };
    let shown: Vec<&Ranked> = o.ranking.iter().enumerate().filter(matters).map(|(_, r)| r).collect();
    let of = if shown.len() < o.ranking.len() {
        format!("{} of {} timed configurations", shown.len(), o.ranking.len())
    } else {
        format!("All {} timed configurations", o.ranking.len())
    };
    let level = percent(1.0 - o.policy.alpha);
    let note = format!(
        "{of}, named by what they change. Bars: for finalists bounds from paired rounds at {level}% over all looks and \
         finalists, for others 95% from ratios to the anchors around them, where there are samples enough. Ticks: raw \
         samples under the default's median."
    );
    let rows: Vec<Row> = shown.into_iter().map(row).collect();
    let default = if k.runs() == Some(&o.default) { "default, which runs now" } else { "default" };
    let legend = [(Tone::Chosen, "runs now"), (Tone::Default, default), (Tone::Plain, "other configurations")];
    let legend = legend.iter().filter(|(tone, _)| rows.iter().any(|r| r.tone == *tone));
    let margin = 1.0 + o.policy.margin;
    Intervals {
        title: "Ranking against the default".into(),
        note,
        x: Axis::linear("speed over the default (x)"),
        marks: vec![
            Mark { at: 1.0, label: "default".into() },
            Mark { at: margin, label: format!("margin {}", ratio(margin)) },
        ],
        legend: legend.map(|(tone, name)| (*tone, (*name).to_owned())).collect(),
        rows,
    }
}

fn finals(section: &mut Section, k: &Kernel, o: &Outcome) {
    let mut table = Table::new(
        format!("Finals of {}", k.name()),
        &["finalist", "point", "paired rounds", "speed|x", "lower|x", "upper|x", "clears the margin", "decision"],
    );
    for f in &o.finals {
        let refused = o.rejected.iter().find(|(config, _)| *config == f.config);
        let decision = match refused {
            _ if k.runs() == Some(&f.config) => Cell::from("runs now").tone(Tone::Chosen),
            Some((_, why)) => format!("refused: {}", why.kind()).into(),
            None => "not chosen".into(),
        };
        let row = |point: &str, numbers: [String; 3]| {
            let [mid, lo, hi] = numbers.map(Cell::from);
            let cleared = if f.cleared { "yes" } else { "no" };
            vec![
                f.config.to_string().into(),
                point.into(),
                f.pairs.to_string().into(),
                mid,
                lo,
                hi,
                cleared.into(),
                decision.clone(),
            ]
        };
        for (p, i) in f.points.iter().enumerate() {
            table.row(row(&(p + 1).to_string(), [i.ratio, i.lo, i.hi].map(ratio)));
        }
        if f.points.is_empty() {
            table.row(row(NONE, [NONE; 3].map(str::to_owned)));
        }
    }
    section.table(table);
}

fn ranking_table(k: &Kernel, o: &Outcome) -> Table {
    let mut table = Table::new(
        format!("Ranking of {}", k.name()),
        &[
            "rank",
            "configuration",
            "speed|x",
            "lower|x",
            "upper|x",
            "from",
            "median|us",
            "spread|us",
            "raw samples",
            "error over bound",
        ],
    );
    for (i, r) in o.ranking.iter().enumerate() {
        let (value, bounds, from) = estimate(o, r);
        let edge = |pick: fn((f64, f64)) -> f64| Cell::from(bounds.map_or_else(|| NONE.to_owned(), |b| ratio(pick(b))));
        let first = r.times.first();
        table.row(vec![
            (i + 1).to_string().into(),
            Cell::from(r.config.to_string()).tone(tone(k, o, &r.config)),
            ratio(value).into(),
            edge(|b| b.0),
            edge(|b| b.1),
            from.into(),
            first.map_or_else(|| NONE.to_owned(), |t| us(t.median_ns)).into(),
            first.map_or_else(|| NONE.to_owned(), |t| us(t.spread_ns)).into(),
            r.times.iter().map(|t| t.samples_ns.len()).sum::<usize>().to_string().into(),
            r.error_over_bound.map_or_else(|| NONE.to_owned(), |e| fixed(e, 3)).into(),
        ]);
    }
    table
}

fn refusals(section: &mut Section, k: &Kernel, o: &Outcome) {
    let mut kinds: BTreeMap<&str, usize> = o.counts.rejected.iter().map(|(kind, n)| (kind.as_str(), *n)).collect();
    if o.counts.dropped > 0 {
        kinds.insert("slow", o.counts.dropped);
    }
    let total: usize = kinds.values().sum();
    if total == 0 {
        section.text("No configuration was refused or dropped.");
        return;
    }
    let told: Vec<String> = kinds.iter().map(|(kind, n)| format!("{n} {kind}")).collect();
    let mut table = Table::new(format!("Refused of {}", k.name()), &["configuration", "reason", "in full"]);
    for (config, rejection) in &o.rejected {
        let tone = if rejection.kind() == "slow" { Tone::Muted } else { Tone::Bad };
        let full = rejection.to_string();
        table.row(vec![config.to_string().into(), Cell::from(rejection.kind()).tone(tone), full.into()]);
    }
    let listed = |config: &Config| o.rejected.iter().any(|(c, _)| c == config);
    for (config, constraint) in k.forbidden.iter().filter(|(c, _)| !listed(c)) {
        let full = format!("constraint: {constraint}");
        table.row(vec![config.to_string().into(), Cell::from("constraint").tone(Tone::Bad), full.into()]);
    }
    let summary = format!("{total} refused or dropped: {}", told.join(", "));
    let absent = total.saturating_sub(table.rows.len());
    section.fold(summary, |s| {
        s.table(table);
        if absent > 0 {
            s.text(format!(
                "{absent} more that the space's own constraints forbid are not kept in a store, since they follow from the \
                 space alone: `planish tune --report` on that machine lists them."
            ));
        }
    });
}

fn drift(section: &mut Section, k: &Kernel, o: &Outcome) {
    let Some(first) = o.anchors.first() else {
        section.text(match o.drifts {
            0 => "No drift was seen while this was measured; the record lists no anchors.".to_owned(),
            n => format!("The machine drifted {n} times while this was measured; the record lists no anchors."),
        });
        return;
    };
    let point = |a: &planish_tune::Anchor| {
        let changes = a.ns.iter().zip(&first.ns).map(|(now, then)| now / then);
        let most = changes.max_by(|a, b| a.ln().abs().total_cmp(&b.ln().abs()))?;
        Some(Point { x: a.at_s, y: most, ..Point::default() })
    };
    let series = |name: &str, kept: bool, tone| Series {
        name: name.into(),
        points: o.anchors.iter().filter(|a| a.kept == kept).filter_map(point).collect(),
        joined: false,
        tone,
    };
    let all = [series("counts", true, Tone::Chosen), series("taken back: the machine drifted", false, Tone::Bad)];
    let lost = all[1].points.len();
    let summary = format!(
        "Drift: {}, {lost} taken back with {} of configurations",
        counted(o.anchors.len(), "anchor"),
        counted(o.discarded, "timing")
    );
    let plot = Curves {
        title: "The default timed again and again".into(),
        note: "Each point is one anchor; where it moved away from those before it, the measurements around it were discarded \
               and taken again."
            .into(),
        x: Axis::linear("time since the run began (s)"),
        y: Axis::linear("time of the default over its first (x)"),
        marks: vec![Mark { at: 1.0, label: String::new() }],
        series: all.into_iter().filter(|s| !s.points.is_empty()).collect(),
    };
    let mut table =
        Table::new(format!("Anchors of {}", k.name()), &["at|s", "default|us", "over the first|x", "counts"]);
    for a in &o.anchors {
        let over = point(a).map_or_else(|| NONE.to_owned(), |p| ratio(p.y));
        let ns = a.ns.first().map_or_else(|| NONE.to_owned(), |ns| us(*ns));
        let kept = if a.kept { Cell::from("yes") } else { Cell::from("taken back").tone(Tone::Bad) };
        table.row(vec![fixed(a.at_s, 3).into(), ns.into(), over.into(), kept]);
    }
    section.fold(summary, |s| _ = s.plot(plot).fold("Every anchor", |s| _ = s.table(table)));
}
