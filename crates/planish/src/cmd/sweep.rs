//! `planish sweep`: one parameter of a kernel at many shapes, every value gated and timed beside the default and a read.

mod pages;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use clap::Args;
use planish_engine::identity::Identities;
use planish_engine::shapes::matrices::{self, Matrix};
use planish_engine::sweep::{self, Ask, AtShape, Best, Verdict};
use planish_engine::tuning::CeilingProbe;
use planish_kernels::op::{Op, Shape};
use planish_kernels::quant::{self, WeightType};
use planish_kernels::subject;
use planish_kernels::weight::Activations;
use planish_tune::{Interval, Policy, Value, WallClock, counted};
use serde::{Deserialize, Serialize};

use crate::hint::WithHint;
use crate::session::{self, SessionArgs};
use crate::ui::Ui;
use crate::workbench::Workbench;
use crate::{Outcome, interrupt, page, report};

/// The op whose shapes have names.
const MATVEC: &str = "matvec";

/// What says how to measure beside the session.
const MEASURING: [&str; 6] = ["op", "param", "values", "shapes", "rounds", "budget"];

/// Time one parameter of a kernel at many shapes, every value checked first, beside a pure read of as many bytes
#[derive(Args)]
pub struct SweepArgs {
    /// The kernel: an op of the device
    #[arg(default_value = MATVEC)]
    op: String,
    /// The parameter, as `planish sweep OP --param x` lists them
    #[arg(long, value_name = "NAME", required_unless_present = "from")]
    param: Option<String>,
    /// Its values; by default all that may be tried
    #[arg(long, value_name = "VALUE,...", value_delimiter = ',', value_parser = value)]
    values: Vec<Value>,
    /// Where: head (49152x576), control (4096x14336), a preset such as smollm2-135m for all of its matrices, or sizes as
    /// in type=q8_0,rows=64,cols=576
    #[arg(long, value_name = "SHAPE,...", default_value = "head,control", value_parser = Places::parse)]
    shapes: Places,
    /// Rounds at each shape, in each of which every value is timed once between two timings of the default
    #[arg(long, value_name = "N", default_value_t = 24, value_parser = clap::value_parser!(u32).range(6..=1000))]
    rounds: u32,
    /// Seconds that it may take in all
    #[arg(long, value_name = "SECONDS", default_value = "300s", value_parser = super::seconds)]
    budget: f64,
    /// Print rows of values separated by tabs, without words
    #[arg(long, conflicts_with = "json")]
    tsv: bool,
    /// Also write a page with plots, and its evidence beside it as .json and .tsv
    #[arg(long, value_name = "FILE.html")]
    html: Option<PathBuf>,
    /// Show evidence that --html or --json wrote, instead of measuring; no machine is asked
    #[arg(long, value_name = "EVIDENCE", conflicts_with_all = session::flags_and(&MEASURING))]
    from: Option<PathBuf>,
    #[command(flatten)]
    session: SessionArgs,
}

fn value(text: &str) -> Result<Value, String> {
    match text.parse() {
        _ if text.is_empty() => Err("an empty value".to_owned()),
        Ok(i) => Ok(Value::Int(i)),
        Err(_) => Ok(Value::from(text)),
    }
}

/// Shapes as a user names them.
#[derive(Clone, Debug, PartialEq)]
struct Places(Vec<Place>);

#[derive(Clone, Debug, PartialEq)]
enum Place {
    Named(Vec<Matrix>),
    Given(Shape),
}

impl Places {
    /// Reads names and shapes separated by commas; a field that comes again begins the next shape.
    fn parse(text: &str) -> Result<Places, String> {
        let mut places = Vec::new();
        for part in text.split(',') {
            let Some((field, _)) = part.split_once('=') else {
                let error = |e: planish_engine::Error| format!("{e}; {}", e.hint().unwrap_or_default());
                places.push(Place::Named(matrices::matrices(part).map_err(error)?));
                continue;
            };
            let one: Shape = part.parse()?;
            match places.last_mut() {
                Some(Place::Given(shape)) if !shape.has(field) => *shape = format!("{shape},{one}").parse()?,
                _ => places.push(Place::Given(one)),
            }
        }
        Ok(Places(places))
    }

    /// Every shape with its name, equal ones once.
    fn resolve(&self, op: &Op, device: &str, activations: Activations) -> Result<Vec<(String, Shape)>> {
        let mut all: Vec<(String, Shape)> = Vec::new();
        let named = self.0.iter().flat_map(|p| if let Place::Named(m) = p { m.as_slice() } else { &[] });
        if op.name != MATVEC && named.clone().next().is_some() {
            let error = anyhow!("{} has no named shapes, only {MATVEC} has", op.name);
            return Err(error).hint("give --shapes with sizes, as docs/ops.md and `planish tune --list` have them");
        }
        all.extend(matrices::once(named.cloned()).into_iter().map(|m| (m.name.clone(), m.shape(device, activations))));
        for place in &self.0 {
            let Place::Given(shape) = place else { continue };
            let shape = completed(shape.clone(), op, device, activations)?;
            (op.check)(&shape)
                .map_err(|why| anyhow!("{}: {why}", op.name))
                .hint("docs/ops.md has shapes of every op")?;
            if !all.iter().any(|(_, known)| *known == shape) {
                all.push((shape.to_string(), shape));
            }
        }
        Ok(all)
    }
}

/// A product's shape with the fields that follow from the flags.
fn completed(shape: Shape, op: &Op, device: &str, activations: Activations) -> Result<Shape> {
    if op.name != MATVEC || !shape.has("type") {
        return Ok(shape);
    }
    let name = shape.name("type");
    let ty = WeightType::from_name(name).ok_or_else(|| anyhow!("{}: no weights have the type {name}", op.name));
    let ty = ty.hint(format!("types are {}", quant::TYPES.each_ref().map(|t| t.name).join(", ")))?;
    let shape = if shape.has("act") { shape } else { shape.with("act", activations.meeting(ty).name()) };
    Ok(if device == "cpu" && !shape.has("batch") { shape.with("batch", 1) } else { shape })
}

/// Everything that a sweep found: the report, and evidence that can be looked at elsewhere.
#[derive(Serialize, Deserialize)]
pub struct Report {
    /// The op.
    pub op: String,
    /// The parameter.
    pub param: String,
    /// Where it ran.
    pub device: String,
    /// The device in words.
    pub label: String,
    /// Instruction set or backend of the kernels.
    pub kernels: String,
    /// Measured read bandwidth, GB/s.
    pub read_gb_s: f64,
    /// By shape.
    pub shapes: Vec<AtShape>,
    /// What it says about constants.
    pub verdict: Verdict,
    /// Which version of planish.
    pub version: String,
}

/// Sweeps or reads, and prints.
pub fn run(args: &SweepArgs, ui: Ui) -> Result<Outcome> {
    args.html.as_deref().map_or(Ok(()), page::must_be_html)?;
    let report = match (&args.from, &args.param) {
        (Some(path), _) => page::report::<Report>(path)?,
        (None, Some(param)) => measure(args, param, ui)?,
        (None, None) => return Err(anyhow!("no --param and no --from")).hint("give one of them"),
    };
    if let Some(path) = &args.html {
        page::save(&report, path, ui)?;
    }
    if ui.json {
        report::print_json(&report)?;
    } else {
        report::print(&if args.tsv { tsv(&report) } else { text(&report) })?;
    }
    let decided = report.verdict.best.len() == report.shapes.len();
    Ok(if decided { Outcome::Done } else { Outcome::No })
}

fn measure(args: &SweepArgs, param: &str, ui: Ui) -> Result<Report> {
    args.session.must_use_store()?;
    let (start, budget) = (Instant::now(), Duration::from_secs_f64(args.budget));
    let bench = Workbench::open(&args.session)?;
    let backend = bench.backend().limits().backend.clone();
    let op = subject::find(&backend, &args.op)
        .ok_or_else(|| anyhow!("no op of {backend} is called {}", args.op))
        .hint("docs/ops.md lists the ops of CPU and GPU")?;
    let shapes = args.shapes.resolve(op, &backend, args.session.options(1).activations)?;
    let machine = bench.machine();
    let identities = Identities::new(&machine, &Policy::default());
    let (worker, clock) = (bench.worker()?, WallClock::start());
    let setting = bench.setting(&identities, &worker, &clock, budget);
    let ask = Ask { op, param, values: &args.values, rounds: args.rounds as usize };
    let spinner = ui.spinner(&format!("sweeping {param} of {} at {}", op.name, counted(shapes.len(), "shape")));
    let mut found: Vec<AtShape> = Vec::new();
    for (i, (name, shape)) in shapes.iter().enumerate() {
        interrupt::check()?;
        spinner.set_message(format!("{} of {}: {name} {shape}", i + 1, shapes.len()));
        let left = budget.saturating_sub(start.elapsed()) / (shapes.len() - i) as u32;
        found.push(sweep::at_shape(&ask, name, shape, &setting, left)?);
    }
    interrupt::check()?;
    spinner.finish_and_clear();
    Ok(Report {
        op: op.name.to_owned(),
        param: param.to_owned(),
        device: bench.device.to_string(),
        label: bench.backend().identity().label.clone(),
        kernels: if backend == "cpu" { bench.isa.name().to_owned() } else { backend },
        read_gb_s: setting.ceilings.as_ref().map_or(bench.ceilings, CeilingProbe::now).read_gb_s,
        verdict: sweep::verdict(param, &found),
        shapes: found,
        version: env!("CARGO_PKG_VERSION").to_owned(),
    })
}

/// A row a value and shape: the numbers as they are.
fn tsv(r: &Report) -> String {
    let names = "shape\tname\tvalue\tmedian_ns\tspread_ns\tgb_s\tpercent_of_read\tcontrol_over_it\tratio\tlo\thi\tgate";
    let mut out = format!("{names}\n");
    for (s, i) in r.shapes.iter().flat_map(|s| (0..s.sweep.swept.len()).map(move |i| (s, i))) {
        let (row, value) = (&s.sweep.swept[i], s.value(&r.param, i));
        let gate = row.rejection.as_ref().map_or_else(
            || row.error_over_bound.map_or("not reached".to_owned(), |e| e.to_string()),
            |why| why.to_string().replace(['\t', '\n'], " "),
        );
        let numbers = Row::of(r, s, i).map_or(["-"; 8].map(str::to_owned), |n| {
            let Interval { ratio, lo, hi } = n.ratio;
            [n.ns, n.spread_ns, n.gb_s, n.percent, n.of_control.unwrap_or(f64::NAN), ratio, lo, hi]
                .map(|v| v.to_string())
        });
        out += &format!("{}\t{}\t{value}\t{}\t{gate}\n", s.shape, s.name, numbers.join("\t"));
    }
    out
}

/// The numbers of a value that was timed.
struct Row {
    ns: f64,
    spread_ns: f64,
    gb_s: f64,
    percent: f64,
    /// The control's time over this one's.
    of_control: Option<f64>,
    ratio: Interval,
}

impl Row {
    fn of(r: &Report, s: &AtShape, i: usize) -> Option<Row> {
        let row = &s.sweep.swept[i];
        let (times, ratio) = (row.times.first().filter(|t| !t.samples_ns.is_empty())?, *row.ratios.first()?);
        let gb_s = s.gb_s(times.median_ns);
        let of_control = s.control.as_ref().map(|c| c.median_ns / times.median_ns);
        let (ns, spread_ns, percent) = (times.median_ns, times.spread_ns, 100.0 * gb_s / r.read_gb_s);
        Some(Row { ns, spread_ns, gb_s, percent, of_control, ratio })
    }
}

/// The report for people.
fn text(r: &Report) -> String {
    let mut out = format!("{} {} on {}, {}: {:.1} GB/s read\n", r.op, r.param, r.device, r.label, r.read_gb_s);
    for s in &r.shapes {
        out += &format!("\n{}\n", about(s));
        let rows: Vec<[String; 8]> = (0..s.sweep.swept.len()).map(|i| cells(r, s, i)).collect();
        let names =
            [r.param.as_str(), "time", "spread", "GB/s", "of read", "of control", "default/it (95% together)", ""];
        out += &report::table(names, &rows);
    }
    format!("{out}{}\n\n{}", legend(r), sentences(r))
}

/// What the columns are shares of.
fn legend(r: &Report) -> String {
    let control = if r.shapes.iter().any(|s| s.control.is_some()) { ", of control: of the pure read" } else { "" };
    format!("of read: of {:.1} GB/s{control}; default/it: > 1 is faster", r.read_gb_s)
}

fn about(s: &AtShape) -> String {
    let control = s.control.as_ref().map_or(String::new(), |c| {
        format!(
            "; a pure read of it takes {} ({:.1} GB/s, {})",
            report::time(c.median_ns),
            s.gb_s(c.median_ns),
            c.config
        )
    });
    let partial = if s.sweep.partial { ", cut short" } else { "" };
    let name = if s.name == s.shape.to_string() { String::new() } else { format!("{}: ", s.name) };
    format!(
        "{name}{}, {} read{control}; {}{partial}, {} in turns ({}), load {} to {}",
        s.shape,
        report::bytes(s.read_bytes),
        counted(s.sweep.rounds, "round"),
        report::bytes(s.rotated_bytes),
        if s.cold { "cold" } else { "warm" },
        report::load(s.load[0]),
        report::load(s.load[1])
    )
}

fn cells(r: &Report, s: &AtShape, i: usize) -> [String; 8] {
    let (row, value) = (&s.sweep.swept[i], s.value(&r.param, i));
    let mark = if value == s.default { "default" } else { "" };
    let Some(n) = Row::of(r, s, i) else {
        let why = row.rejection.as_ref().map_or("too few rounds".to_owned(), ToString::to_string);
        return [
            value.to_string(),
            String::new(),
            String::new(),
            String::new(),
            String::new(),
            String::new(),
            String::new(),
            why,
        ];
    };
    let Interval { ratio, lo, hi } = n.ratio;
    let gain = if value == s.default { "1".to_owned() } else { format!("{ratio:.3} ({lo:.3} to {hi:.3})") };
    [
        value.to_string(),
        report::time(n.ns),
        format!("{:.1}%", 100.0 * n.spread_ns / n.ns),
        format!("{:.1}", n.gb_s),
        format!("{:.0}%", n.percent),
        n.of_control.map_or(String::new(), |c| format!("{:.0}%", 100.0 * c)),
        gain,
        mark.to_owned(),
    ]
}

/// A shape's best value, which a value is only where it beats the default beyond noise and margin.
fn best(r: &Report, b: &Best) -> String {
    let (name, param, value) = (&b.name, &r.param, &b.value);
    let default = r.shapes.iter().find(|s| s.name == *name).map(|s| &s.default);
    let default = default.filter(|d| b.as_good.contains(d));
    let ties = b.as_good.iter().filter(|v| *v != value && Some(*v) != default);
    let ties: Vec<String> = ties.map(Value::to_string).collect();
    let ties = if ties.is_empty() { String::new() } else { format!("; no worse beyond noise: {}", ties.join(", ")) };
    let Interval { ratio, lo, hi } = b.ratio;
    let gain = format!("{ratio:.2} ({lo:.2} to {hi:.2}) times as fast");
    match default {
        Some(d) if d == value => format!("{name}: the default {param}={d} is best{ties}"),
        Some(d) => {
            let margin = 100.0 * sweep::MARGIN;
            format!("{name}: no {param} beats the default {d} by {margin:.0}% beyond noise; {value} came first, {gain}")
        }
        None => format!("{name}: {param}={value} is best, {gain} as the default{ties}"),
    }
}

/// What can be repeated: the best value by shape, and whether one is best everywhere.
fn sentences(r: &Report) -> String {
    let list = |values: &[Value]| values.iter().map(Value::to_string).collect::<Vec<_>>().join(", ");
    let out: String = r.verdict.best.iter().map(|b| best(r, b) + "\n").collect();
    let undecided = r.shapes.len() - r.verdict.best.len();
    out + &match (&r.verdict.everywhere[..], &r.verdict.compromise) {
        _ if undecided > 0 => {
            format!("at {undecided} of {} there were too few rounds to say\n", counted(r.shapes.len(), "shape"))
        }
        ([], Some((value, loss, name))) => format!(
            "no one {} is best everywhere; {value} loses least, {:.1}% at {name}\n",
            r.param,
            100.0 * (loss - 1.0)
        ),
        ([], None) => format!("no one {} is best everywhere\n", r.param),
        ([value], _) => format!("best everywhere: {}={value}\n", r.param),
        (values, _) => format!("nowhere worse than the best beyond noise: {}={}\n", r.param, list(values)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_names_and_sizes() {
        let places = Places::parse("head,type=q8_0,rows=64,cols=96,type=q4_1,rows=8,cols=32,control").unwrap();
        assert_eq!(places.0.len(), 4);
        let op = subject::find("cpu", MATVEC).unwrap();
        let all = places.resolve(op, "cpu", Activations::Int8).unwrap();
        let shapes: Vec<String> = all.iter().map(|(_, s)| s.to_string()).collect();
        assert_eq!(shapes[2], "act=int8,batch=1,cols=96,rows=64,type=q8_0");
        assert_eq!(shapes[3], "act=int8,batch=1,cols=32,rows=8,type=q4_1");
        assert_eq!(all[1].0, "control");
        for bad in ["", "nobody", "head,,control", "type=", "rows=1,head=,"] {
            assert!(Places::parse(bad).is_err(), "{bad}");
        }
        let gemm = subject::find("cpu", "gemm").unwrap();
        assert!(places.resolve(gemm, "cpu", Activations::Int8).is_err(), "gemm has no named shapes");
        let zero = Places::parse("type=q8_0,rows=0,cols=96").unwrap();
        assert!(zero.resolve(op, "cpu", Activations::Int8).is_err());
        let unknown = Places::parse("type=q9_9,rows=8,cols=96").unwrap();
        let error = unknown.resolve(op, "cpu", Activations::Int8).unwrap_err();
        assert!(error.to_string().contains("q9_9"), "{error}");
        assert!(crate::hint::of(&error).is_some_and(|h| h.contains("q8_0")), "{error}");
    }

    /// The sweep of a committed note, whose values do not differ.
    fn report() -> Report {
        let text = include_str!("../../../../docs/lab/0011/rows.json");
        let mut value: serde_json::Value = serde_json::from_str(text).unwrap();
        let data = if value["data"].is_object() { value["data"].take() } else { value };
        serde_json::from_value(data).unwrap()
    }

    #[test]
    fn a_value_is_best_only_where_it_beats_the_default() {
        let mut r = report();
        let said = sentences(&r);
        assert!(
            said.contains("head: no ROWS beats the default 64 by 1% beyond noise; 512 came first, 1.01 (0.98"),
            "{said}"
        );
        assert!(said.ends_with("\nnowhere worse than the best beyond noise: ROWS=8, 64, 512\n"), "{said}");
        r.verdict.best[0].as_good = vec![Value::Int(8), Value::Int(512)];
        r.verdict.best[1].value = r.shapes[1].default.clone();
        r.verdict.everywhere = vec![Value::Int(512)];
        let said = sentences(&r);
        assert!(
            said.contains("head: ROWS=512 is best, 1.01 (0.98 to 1.03) times as fast as the default; no worse"),
            "{said}"
        );
        assert!(said.contains("control: the default ROWS=8 is best; no worse beyond noise: 64, 512"), "{said}");
        assert!(said.ends_with("\nbest everywhere: ROWS=512\n"), "{said}");
    }

    #[test]
    fn a_legend_follows_the_tables() {
        let r = report();
        let (told, legend) = (text(&r), legend(&r));
        assert!(told.contains(&format!("\n{legend}\n\nhead: ")) && legend.chars().count() <= 80, "{told}");
        assert!(legend.contains(&format!("of read: of {:.1} GB/s, of control: ", r.read_gb_s)), "{legend}");
        // The page says the same, and of each shape what the text says.
        let page = page::files(&r).unwrap().html;
        for said in [legend.as_str(), "head: no ROWS beats the default 64"] {
            assert!(page.contains(&said.replace('>', "&gt;")), "no {said}");
        }
    }
}
