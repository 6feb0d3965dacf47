//! Evidence as tables and sentences.

use planish_engine::explain::fit::Line;
use planish_engine::explain::{Bounds, InPlace, Measured, Row};
use planish_engine::probes::Roof;
use planish_tune::counted;

use super::evidence::{Evidence, Explained, Facts, Fitted};
use crate::report;

/// The whole report.
pub fn of(evidence: &Evidence) -> String {
    match evidence {
        Evidence::Token(explained) => token(explained),
        Evidence::Fit(fitted) => fit(fitted),
    }
}

fn us(ns: f64) -> String {
    format!("{:.1}", ns / 1e3)
}

/// `6412.3 (6380.1 to 6455.0)`, microseconds.
fn us_bounds(b: &Bounds) -> String {
    format!("{} ({} to {})", us(b.median), us(b.lo), us(b.hi))
}

fn percent(value: Option<f64>) -> String {
    value.map_or("-".into(), |p| format!("{p:.0}%"))
}

fn token(e: &Explained) -> String {
    let m = &e.measured;
    let blocks = [head(&e.facts, m), rows(m), demands(m, &e.roof), around(m), roofs(e), context(m), sums(e)];
    let blocks = blocks.into_iter().filter(|b| !b.is_empty()).collect::<Vec<_>>();
    format!("{}\n{}.\n", blocks.join("\n"), e.verdict.sentence)
}

/// The machine in words.
pub fn machine(f: &Facts) -> String {
    let threads = f.threads.map_or(String::new(), |n| format!(", {}", counted(n, "thread")));
    let isa = f.isa.as_ref().map_or(String::new(), |isa| format!(", {isa}"));
    format!("{} ({}){threads}{isa}", f.identity.label, f.device)
}

/// `2.97; other work took 48% of this machine's processors meanwhile`
pub fn load(f: &Facts) -> String {
    report::load(f.load_average.map(|l| l[0])) + &report::others(f.by_others)
}

fn head(f: &Facts, m: &Measured) -> String {
    let tiers: Vec<String> = f.tiers.iter().map(|(tier, n)| format!("{n} {tier}")).collect();
    let speed = 1e9 / m.token_ns.median.max(1.0);
    let stamped = m.stamped_ratio.map(|r| {
        let text = format!("{:.3} ({:.3} to {:.3}) of a plain one beside it", r.median, r.lo, r.hi);
        ("stamped token", text)
    });
    let mut pairs = vec![
        ("model", format!("{}, {} activations, {} cache", f.file, f.activations, f.kv)),
        ("machine", machine(f)),
        ("path", format!("{}; {}", m.path, m.method)),
        ("token", format!("{} us at position {}: {speed:.1} tokens/s", us_bounds(&m.token_ns), m.position)),
    ];
    pairs.extend(stamped);
    pairs.extend([("choices", tiers.join(", ")), ("digest", f.digest.clone()), ("load", load(f))]);
    report::pairs(&pairs)
}

/// Times of the parts, each by every method.
fn rows(m: &Measured) -> String {
    let whole = m.token_ns.median.max(1.0);
    let line = |row: &Row| {
        let inside = |of: fn(&InPlace) -> f64| row.in_place.as_ref().map_or("-".into(), |i| us(of(i)));
        [
            row.name.clone(),
            row.launches.to_string(),
            us(row.time_ns.median),
            format!("{:.1}%", 100.0 * row.time_ns.median / whole),
            inside(|i| i.work_ns.median),
            inside(|i| i.waiting_ns.median),
            us(row.alone_ns.median),
            us(row.prefix_ns.median),
        ]
    };
    let names = ["part", "launches", "us", "of token", "working", "waiting", "alone", "prefix"];
    report::table(names, &m.rows.iter().map(line).collect::<Vec<_>>()) + legend(m) + "\n"
}

/// What the times of parts are, in a line.
pub fn legend(m: &Measured) -> &'static str {
    if m.rows.iter().any(|row| row.in_place.is_some()) {
        "us: in a token, working and waiting; alone: after one; prefix: what it adds"
    } else {
        "us: alone, after a whole token; prefix: what it adds to a step"
    }
}

/// What the parts must do at least, and how fast they do it.
fn demands(m: &Measured, roof: &Roof) -> String {
    let line = |row: &Row| {
        let ops = row.demand.ops();
        [
            row.name.clone(),
            format!("{:.2}", row.demand.read_bytes / 1e6),
            format!("{:.1}", row.gb_s),
            percent(row.percent_of_read),
            format!("{:.2}", ops / 1e6),
            format!("{:.1}", ops / row.time_ns.median.max(1.0)),
            percent(row.percent_of_arithmetic),
        ]
    };
    let names = ["part", "MB", "GB/s", "of read", "Mop", "Gop/s", "of arithmetic"];
    let table = report::table(names, &m.rows.iter().map(line).collect::<Vec<_>>());
    format!("{table}what a part does at least, over its us; of {:.1} GB/s and of the rates below\n", roof.read_gb_s())
}

/// Nothing where all of a token is in its step.
fn around(m: &Measured) -> String {
    if m.beside.is_empty() {
        return String::new();
    }
    let whole = m.token_ns.median.max(1.0);
    let line = |b: &planish_engine::explain::Beside| {
        let share = format!("{:.1}%", 100.0 * b.time_ns.median / whole);
        [b.name.clone(), us_bounds(&b.time_ns), share, b.by.clone()]
    };
    report::table(["beside the step", "us", "of token", "by"], &m.beside.iter().map(line).collect::<Vec<_>>())
}

fn roofs(e: &Explained) -> String {
    let (m, r) = (&e.measured, &e.roof);
    let mut read = format!("{:.1} GB/s of memory", r.memory_gb_s);
    if let Some(token) = r.token_gb_s {
        let fits = if r.token_bytes <= r.cache_bytes { ", which the last cache can hold" } else { "" };
        let bytes = report::bytes(r.token_bytes);
        read += &format!(", {token:.1} GB/s of the same {bytes} again and again{fits}");
    }
    let rate = |name: &str, g: Option<f64>| g.map(|g| format!("{g:.0} G/s {name}"));
    let rates =
        [rate("in f32", r.f32_gflop_s), rate("of bytes", r.int8_gop_s), rate("of the matrix unit", r.matrix_gflop_s)];
    report::pairs(&[
        ("reading", read),
        ("arithmetic", rates.into_iter().flatten().collect::<Vec<_>>().join(", ")),
        ("launches", launches(m)),
        ("barriers", barriers(m)),
    ])
}

/// `; 303 at 23 ns probed are 6.8 us`
fn probed(ns: Option<f64>, count: usize) -> String {
    let of = |ns: f64| format!("; {count} at {} probed are {} us", report::time(ns), us(ns * count as f64));
    ns.map_or(String::new(), of)
}

/// What is handed over and what that costs, by every method.
pub fn launches(m: &Measured) -> String {
    let l = &m.launches;
    let between = l.stamped_ns.map_or(String::new(), |s| format!("; between them by stamps {} us", us_bounds(&s)));
    let kernels: usize = m.rows.iter().map(|row| row.launches).sum();
    let (queue, wait) = (us_bounds(&l.queue_ns), us_bounds(&l.wait_ns));
    let probed = probed(l.probed_ns, l.count);
    format!("{kernels} kernels in {} handed over; queue {queue} us, wait {wait} us{probed}{between}", l.count)
}

/// Barriers and what they cost, by every method.
pub fn barriers(m: &Measured) -> String {
    let b = &m.barriers;
    let waiting = |s: &Bounds| format!("; waiting by stamps {} us, the work's unevenness with it", us_bounds(s));
    let stamped = b.stamped_ns.as_ref().map_or(String::new(), waiting);
    format!("{} of {} wide{}{stamped}", b.count, b.width, probed(b.probed_ns, b.count))
}

fn context(m: &Measured) -> String {
    let residual = |i: usize| m.context.line.as_ref().map_or("-".into(), |l| us(l.points[i].residual));
    let line = |(i, p): (usize, &planish_engine::explain::At)| {
        [p.position.to_string(), us_bounds(&p.attention_ns), residual(i), us_bounds(&p.token_ns)]
    };
    let table: Vec<_> = m.context.points.iter().enumerate().map(line).collect();
    let mut text = report::table(["position", "attention, us", "off the line, us", "token, us"], &table);
    if let Some(l) = &m.context.line {
        text += &format!(
            "attention takes {} us and {} a position\n",
            interval(l.intercept, l.intercept_interval, us),
            slope(l)
        );
    }
    text
}

fn interval(value: f64, ends: [f64; 2], show: fn(f64) -> String) -> String {
    format!("{} ({} to {})", show(value), show(ends[0]), show(ends[1]))
}

fn slope(l: &Line) -> String {
    let ns = |v: f64| format!("{v:.1}");
    format!("{} ns", interval(l.slope, l.slope_interval, ns))
}

fn sums(e: &Explained) -> String {
    let m = &e.measured;
    let (read, file) = (m.demand().read_bytes as u64, e.facts.weight_bytes);
    let a = m.attributed;
    report::pairs(&[
        ("bytes", format!("{} a token, of which weights are {} in the file", report::bytes(read), report::bytes(file))),
        (
            "attributed",
            format!(
                "{:.1}% ({:.1} to {:.1}) of a plain token, by the figures above",
                100.0 * a.median,
                100.0 * a.lo,
                100.0 * a.hi
            ),
        ),
        ("left over", format!("{} us", us_bounds(&m.unattributed_ns))),
    ])
}

fn fit(f: &Fitted) -> String {
    let line = |(s, p): (&planish_engine::explain::fit::Sample, &planish_engine::explain::fit::Point)| {
        let token = us_bounds(&s.token_ns);
        let mb = format!("{:.1}", s.bytes / 1e6);
        [
            s.model.clone(),
            s.layers.to_string(),
            mb,
            token,
            us(p.residual),
            format!("{:.2}", p.leverage),
            s.types.clone(),
        ]
    };
    let rows: Vec<_> = f.fit.samples.iter().zip(&f.fit.line.points).map(line).collect();
    let table = report::table(["model", "layers", "MB", "token, us", "off the line, us", "leverage", "types"], &rows);
    let first = &f.fit.samples[0];
    let mut pairs = vec![
        ("machine", machine(&f.facts)),
        ("load", load(&f.facts)),
        ("fixed", format!("path {}, {} activations, position {}", first.path, first.class, first.position)),
        ("fit", fit_sentence(&f.fit)),
        ("reading", format!("{:.1} GB/s of memory measured", f.roof.memory_gb_s)),
    ];
    pairs.extend(f.fit.cautions.iter().map(|c| ("caution", c.clone())));
    format!("{table}\n{}", report::pairs(&pairs))
}

/// Slope and intercept with their intervals.
pub fn fit_sentence(f: &planish_engine::explain::fit::Fit) -> String {
    let rate = |r: Option<f64>| r.map_or("no bound".into(), |r| format!("{r:.1}"));
    let ([lo, hi], slope) = (f.gb_s_interval.map(rate), rate(f.gb_s));
    let [least, most] = f.intercept_us_interval;
    format!("{slope} GB/s ({lo} to {hi}) and {:.1} us a token beside ({least:.1} to {most:.1})", f.intercept_us)
}
