//! Evidence as a page: bars of a token's parts, rates under the roof, lines with what they leave over.

use planish_engine::explain::fit::{Line, Sample};
use planish_engine::explain::{Bounds, Measured, Row};
use planish_engine::probes::Roof;

use super::evidence::{Evidence, Explained, Facts, Fitted};
use super::text::machine;
use crate::page::plot::{Axis, Bar, Kernel, Mark, Point};
use crate::page::{self, Cell, Fit, Page, Roofline, Stacked, Table, Tone, number};

impl page::Report for Evidence {
    const KIND: &'static str = "explain";
    const VERSION: u32 = 1;

    fn check(&self) -> anyhow::Result<()> {
        Evidence::check(self)
    }

    fn page(&self) -> Page {
        match self {
            Evidence::Token(explained) => token(explained),
            Evidence::Fit(fitted) => fit(fitted),
        }
    }
}

/// Parts that a bar shows by name; the others are one.
const NAMED: usize = 7;

fn token(e: &Explained) -> Page {
    let m = &e.measured;
    let mut page = Page::new(format!("Where a token's time goes: {}", e.facts.file), e.verdict.sentence.clone());
    let named = [("path", m.path.as_str()), ("figures", m.method.as_str())];
    let first = page.section("").facts(facts(&e.facts, &named)).plot(stacked(m)).table(parts(m));
    first.text(format!("{}.", super::text::legend(m)));
    page.section("Under the roof").plot(roofline(m, &e.roof)).table(roofs(&e.roof));
    let context = page.section("Position");
    if let Some(line) = &m.context.line {
        context.plot(positions(m, line));
    }
    context.table(at(m));
    let left = [("attributed (% of a plain token)", bounds_of(&m.attributed, number::percent))];
    let left = left.into_iter().chain([
        ("left over (us)", bounds_of(&m.unattributed_ns, number::us)),
        ("launches", super::text::launches(m).into()),
        ("barriers", super::text::barriers(m).into()),
    ]);
    page.section("Beside the step, and what is left").facts(left.collect()).table(beside(m));
    page
}

fn bounds_of(b: &Bounds, show: fn(f64) -> String) -> Cell {
    format!("{} ({} to {}, {} samples)", show(b.median), show(b.lo), show(b.hi), b.samples).into()
}

fn facts<'n>(f: &'n Facts, more: &[(&'n str, &'n str)]) -> Vec<(&'n str, Cell)> {
    let mut all = vec![
        ("model", Cell::from(f.file.as_str())),
        ("machine", machine(f).into()),
        (
            "numerics",
            format!("{} activations, {} cache of {} positions", f.activations, f.kv, f.cache_positions).into(),
        ),
    ];
    all.extend(more.iter().map(|(name, text)| (*name, Cell::from(*text))));
    all.extend([
        ("digest of choices", f.digest.as_str().into()),
        ("load average", super::text::load(f).into()),
        ("planish", f.version.as_str().into()),
    ]);
    all
}

/// The longest parts by name and the others as one, by each method.
fn stacked(m: &Measured) -> Stacked {
    let mut order: Vec<&Row> = m.rows.iter().collect();
    order.sort_by(|a, b| b.time_ns.median.total_cmp(&a.time_ns.median));
    let (named, others) = order.split_at(order.len().min(NAMED));
    let parts = named.iter().map(|r| r.name.clone()).chain(["all others".to_owned()]).collect();
    let bar = |label: &str, of: fn(&Row) -> f64| {
        let us = |row: &&Row| of(row) / 1e3;
        let mut all: Vec<f64> = named.iter().map(us).collect();
        all.push(others.iter().map(us).sum());
        let text = |v: f64| format!("{} us", number::sig(v, 4));
        let (texts, sum) = (all.iter().map(|v| text(*v)).collect(), text(all.iter().sum()));
        // A difference of prefixes may be below nothing; a length cannot.
        Bar { label: label.to_owned(), values: all.iter().map(|v| v.max(0.0)).collect(), texts, text: sum }
    };
    let mut bars = vec![bar("in a token", |r| r.time_ns.median)];
    if m.rows.iter().any(|r| r.in_place.is_some()) {
        bars.push(bar("of it, working", |r| r.in_place.map_or(r.time_ns.median, |i| i.work_ns.median)));
    }
    bars.extend([bar("each part alone", |r| r.alone_ns.median), bar("by prefixes", |r| r.prefix_ns.median)]);
    let mut note = format!("{}; a whole token takes {} us", m.method, number::us(m.token_ns.median));
    if m.rows.iter().any(|r| r.prefix_ns.median < 0.0) {
        note += "; prefixes that get shorter with a part count in the sum and have no length";
    }
    Stacked { title: "A token by its parts".into(), note, x: Axis::linear("time of a token (us)"), parts, bars }
}

fn parts(m: &Measured) -> Table {
    let columns = [
        "part",
        "launches",
        "time|us",
        "from|us",
        "to|us",
        "working|us",
        "waiting|us",
        "alone|us",
        "by prefixes|us",
        "read|MB",
        "rate|GB/s",
        "of reading|%",
        "operations|1e6",
        "of arithmetic|%",
        "what",
    ];
    let mut table = Table::new("Parts of a token", &columns);
    let share = |p: Option<f64>| Cell::from(p.map_or(number::NONE.to_owned(), |p| number::fixed(p, 1)));
    for row in &m.rows {
        let inside = |of: fn(&planish_engine::explain::InPlace) -> f64| {
            Cell::from(row.in_place.as_ref().map_or(number::NONE.to_owned(), |i| number::us(of(i))))
        };
        table.row(vec![
            row.name.as_str().into(),
            row.launches.to_string().into(),
            number::us(row.time_ns.median).into(),
            number::us(row.time_ns.lo).into(),
            number::us(row.time_ns.hi).into(),
            inside(|i| i.work_ns.median),
            inside(|i| i.waiting_ns.median),
            number::us(row.alone_ns.median).into(),
            number::us(row.prefix_ns.median).into(),
            number::sig(row.demand.read_bytes / 1e6, 4).into(),
            number::sig(row.gb_s, 4).into(),
            share(row.percent_of_read),
            number::sig(row.demand.ops() / 1e6, 4).into(),
            share(row.percent_of_arithmetic),
            row.about.as_str().into(),
        ]);
    }
    table
}

fn roofline(m: &Measured, roof: &Roof) -> Roofline {
    let mark = |at: f64, label: String| Mark { at, label };
    let mut slopes = vec![mark(roof.memory_gb_s, format!("{} GB/s of memory", number::sig(roof.memory_gb_s, 4)))];
    slopes.extend(roof.token_gb_s.map(|at| mark(at, format!("{} GB/s of a token's bytes", number::sig(at, 4)))));
    let rates = [
        (roof.f32_gflop_s, "GFLOP/s in f32"),
        (roof.int8_gop_s, "GOP/s in int8"),
        (roof.matrix_gflop_s, "GFLOP/s, matrix unit"),
    ];
    let flats = rates.into_iter().filter_map(|(at, of)| at.map(|at| mark(at, format!("{} {of}", number::sig(at, 4)))));
    let points = m.rows.iter().map(|row| {
        let ops = row.demand.ops();
        let intensity = ops / (row.demand.read_bytes + row.demand.write_bytes).max(1.0);
        Kernel { label: row.name.clone(), intensity, gop_s: ops / row.time_ns.median.max(1.0), tone: Tone::Plain }
    });
    Roofline {
        title: "Parts under the ceilings of this machine".into(),
        note: "Operations that a part must do over the time it takes in a token, waiting included.".into(),
        slopes,
        flats: flats.collect(),
        points: points.filter(|k| k.gop_s > 0.0).collect(),
        legend: Vec::new(),
    }
}

fn roofs(roof: &Roof) -> Table {
    let mut table = Table::new("Ceilings", &["ceiling", "value", "unit"]);
    let rows = [
        ("reading memory", Some(roof.memory_gb_s), "GB/s"),
        ("reading a token's bytes again and again", roof.token_gb_s, "GB/s"),
        ("copying memory", roof.copy_gb_s, "GB/s"),
        ("arithmetic in f32", roof.f32_gflop_s, "1e9/s"),
        ("arithmetic of bytes", roof.int8_gop_s, "1e9/s"),
        ("the matrix unit", roof.matrix_gflop_s, "1e9/s"),
        ("a launch that does nothing", roof.launch_ns, "ns"),
        ("a barrier at the token's width", roof.barrier_ns, "ns"),
    ];
    for (name, value, unit) in rows {
        if let Some(value) = value {
            table.row(vec![name.into(), number::sig(value, 4).into(), unit.into()]);
        }
    }
    table
}

/// Points of a line in microseconds.
fn scatter(line: &Line, bounds: impl Iterator<Item = (String, Bounds)>, unit: f64) -> Vec<Point> {
    let point = |(p, (label, b)): (&planish_engine::explain::fit::Point, (String, Bounds))| Point {
        x: p.x / unit,
        y: p.y / 1e3,
        bounds: Some((b.lo / 1e3, b.hi / 1e3)),
        label,
    };
    line.points.iter().zip(bounds).map(point).collect()
}

fn positions(m: &Measured, line: &Line) -> Fit {
    let [lo, hi] = line.slope_interval.map(|ns| number::sig(ns, 3));
    Fit {
        title: "Attention over the position".into(),
        note: format!("{} ns a position ({lo} to {hi})", number::sig(line.slope, 3)),
        x: Axis::linear("tokens in the cache"),
        y: Axis::linear("attention of a token (us)"),
        points: scatter(line, m.context.points.iter().map(|p| (p.position.to_string(), p.attention_ns)), 1.0),
        intercept: line.intercept / 1e3,
        slope: line.slope / 1e3,
    }
}

fn at(m: &Measured) -> Table {
    let mut table = Table::new("Positions", &["position", "attention|us", "off the line|us", "whole token|us"]);
    for (i, p) in m.context.points.iter().enumerate() {
        let off = m.context.line.as_ref().map_or(number::NONE.to_owned(), |l| number::us(l.points[i].residual));
        let [attention, whole] = [p.attention_ns, p.token_ns].map(|b| Cell::from(number::us(b.median)));
        table.row(vec![p.position.to_string().into(), attention, off.into(), whole]);
    }
    table
}

fn beside(m: &Measured) -> Table {
    let mut table = Table::new("Beside the step", &["what", "time|us", "by"]);
    for b in &m.beside {
        table.row(vec![b.name.as_str().into(), number::us(b.time_ns.median).into(), b.by.as_str().into()]);
    }
    table
}

fn fit(f: &Fitted) -> Page {
    let line = &f.fit.line;
    let mut page = Page::new("A token's time over its bytes", super::text::fit_sentence(&f.fit));
    let first = &f.fit.samples[0];
    let fixed = format!("path {}, {} activations, position {}", first.path, first.class, first.position);
    let labels = f.fit.samples.iter().map(|s: &Sample| (s.model.clone(), s.token_ns));
    let section = page.section("");
    section.facts(facts(&f.facts, &[("fixed", &fixed)]));
    section.plot(Fit {
        title: "Time of a token over the bytes it reads".into(),
        note: super::text::fit_sentence(&f.fit),
        x: Axis::linear("bytes of a token (MB)"),
        y: Axis::linear("time of a token (us)"),
        points: scatter(line, labels, 1e6),
        intercept: line.intercept / 1e3,
        slope: line.slope / 1e3 * 1e6,
    });
    let mut table =
        Table::new("Models", &["model", "layers", "read|MB", "token|us", "off the line|us", "leverage", "types"]);
    for (s, p) in f.fit.samples.iter().zip(&line.points) {
        table.row(vec![
            s.model.as_str().into(),
            s.layers.to_string().into(),
            number::sig(s.bytes / 1e6, 4).into(),
            number::us(s.token_ns.median).into(),
            number::us(p.residual).into(),
            number::fixed(p.leverage, 2).into(),
            s.types.as_str().into(),
        ]);
    }
    section.table(table).table(roofs(&f.roof));
    for caution in &f.fit.cautions {
        section.text(format!("Caution: {caution}."));
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reader adds the bar up, so its sum is that of the differences, those below zero with them.
    #[test]
    fn the_bar_of_prefixes_has_their_sum() {
        let text = include_str!("../../../../../docs/lab/0015/llama-token.json");
        let Ok(Evidence::Token(mut e)) = serde_json::from_str(text) else { panic!("evidence of a token") };
        e.measured.rows[0].prefix_ns.median = -50_000.0;
        let (plot, sum) = (stacked(&e.measured), e.measured.rows.iter().map(|r| r.prefix_ns.median).sum::<f64>());
        let bar = plot.bars.last().expect("bars");
        assert_eq!((bar.label.as_str(), &bar.text), ("by prefixes", &format!("{} us", number::sig(sum / 1e3, 4))));
        assert!(bar.values.iter().all(|v| *v >= 0.0) && plot.note.contains("have no length"), "{plot:?}");
    }
}
