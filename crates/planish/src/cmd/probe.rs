//! `planish probe`: the ceilings of a machine, one by one: launches, barriers, bandwidth, arithmetic.

use std::time::Duration;

use anyhow::Result;
use clap::{Args, ValueEnum};
use planish_device::cpu::bandwidth::Bandwidth;
use planish_device::{Backend, Cpu, system};
use planish_engine::probes::{self, BarrierCost, Effort, LaunchCost, MatrixRate, Rate};
use planish_kernels::cpu::isa::Isa;
use planish_kernels::op::Machine;
use planish_tune::counted;
use serde_json::{Map, Value, json, to_value};

use super::Threads;
use crate::device::{self, Device};
use crate::ui::Ui;
use crate::{Outcome, interrupt, report};

/// Measure one ceiling of a machine, or all: cost of launches and barriers, bandwidth, arithmetic
#[derive(Args)]
pub struct ProbeArgs {
    /// What to measure; everything by default
    what: Vec<What>,
    /// The machine
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    device: Device,
    #[command(flatten)]
    threads: Threads,
}

/// A probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum What {
    /// A launch that does nothing, by stream and as a node of a graph; a wake of a processor's threads
    Launch,
    /// A round of a barrier over a grid, or over threads
    Barrier,
    /// Reading memory
    Read,
    /// Copying memory
    Copy,
    /// Products of the matrix unit; arithmetic on a processor
    Matrix,
}

/// Time of a probe of the processor.
const CPU_TIME: Duration = Duration::from_millis(300);

/// Runs the probes in the order asked for and prints each as it comes.
pub fn run(args: &ProbeArgs, ui: Ui) -> Result<Outcome> {
    let what = if args.what.is_empty() { What::value_variants() } else { &args.what[..] };
    let mut found = Map::new();
    if args.device == Device::Cpu {
        let cpu = args.threads.cpu()?;
        head(&cpu.identity().label, Some(cpu.threads()), ui, &mut found)?;
        for what in what {
            interrupt::check()?;
            show(*what, on_cpu(*what, &cpu)?, ui, &mut found)?;
        }
    } else {
        let backend = device::open(args.device)?;
        head(&backend.identity().label, None, ui, &mut found)?;
        let machine = Machine { backend: &*backend, isa: Isa::detect() };
        let effort = Effort::on(backend.limits());
        for what in what {
            interrupt::check()?;
            show(*what, on_gpu(*what, &machine, &effort)?, ui, &mut found)?;
        }
    }
    if ui.json {
        report::print_json(&Value::Object(found))?;
    }
    Ok(Outcome::Done)
}

/// What is probed, and what else this machine had to do: a busy one wakes its threads late.
fn head(label: &str, threads: Option<u32>, ui: Ui, found: &mut Map<String, Value>) -> Result<()> {
    let load = system::load_average();
    found.insert("device".to_owned(), json!(label));
    found.insert("threads".to_owned(), json!(threads));
    found.insert("load_average".to_owned(), json!(load));
    if ui.json {
        return Ok(());
    }
    let threads = threads.map_or(String::new(), |n| format!(", {}", counted(n, "thread")));
    let load = report::load(load.map(|l| l[0]));
    report::print(&format!("{label}{threads}, load {load}\n"))
}

/// Keeps a result for the report, or prints it at once.
fn show(what: What, (data, text): (Value, String), ui: Ui, found: &mut Map<String, Value>) -> Result<()> {
    let name = what.to_possible_value().map(|v| v.get_name().to_owned()).unwrap_or_default();
    found.insert(name, data);
    if ui.json { Ok(()) } else { report::print(&text) }
}

fn on_gpu(what: What, machine: &Machine<'_>, effort: &Effort) -> Result<(Value, String)> {
    Ok(match what {
        What::Launch => {
            let costs = probes::launch(machine, effort)?;
            (to_value(&costs)?, launches(&costs))
        }
        What::Barrier => {
            let costs = probes::barrier(machine, effort)?;
            (to_value(&costs)?, barriers(&costs))
        }
        What::Read => {
            let rate = probes::read(machine, effort)?;
            (to_value(&rate)?, format!("read  {}\n", bandwidth_text(&rate)))
        }
        What::Copy => {
            let rate = probes::copy(machine, effort)?;
            (to_value(&rate)?, format!("copy  {}\n", bandwidth_text(&rate)))
        }
        What::Matrix => {
            let rates = probes::matrix(machine, effort)?;
            (to_value(&rates)?, rates.iter().map(|r| format!("matrix {}\n", matrix_text(r))).collect())
        }
    })
}

fn on_cpu(what: What, cpu: &Cpu) -> Result<(Value, String)> {
    let threads = cpu.threads();
    let rate = |name: &str, b: Bandwidth| {
        Ok((
            to_value(&b)?,
            format!("{name}  {:.1} GB/s median, {:.1} best of {} passes\n", b.median, b.best, b.samples),
        ))
    };
    match what {
        What::Launch => {
            let cost = probes::cpu::launch(cpu, CPU_TIME)?;
            let [empty, spinning, sleeping] =
                [cost.submission_ns, cost.spinning_ns, cost.sleeping_ns].map(report::time);
            let text = format!(
                "launch  {empty} a submission; {threads} threads work after {spinning} when they spin, after {sleeping} \
                 when they sleep\n"
            );
            Ok((to_value(cost)?, text))
        }
        What::Barrier => {
            let costs = probes::cpu::barrier(cpu, CPU_TIME)?;
            let rows: Vec<_> = costs.iter().map(|c| [c.threads.to_string(), report::time(c.round_ns)]).collect();
            Ok((to_value(&costs)?, report::table(["threads", "a barrier"], &rows)))
        }
        What::Read => rate("read", probes::cpu::read(cpu, threads, CPU_TIME)?),
        What::Copy => rate("copy", probes::cpu::copy(cpu, threads, CPU_TIME)?),
        What::Matrix => {
            let p = probes::cpu::arithmetic(&Machine { backend: cpu, isa: Isa::detect() }, threads, CPU_TIME)?;
            let text = format!("arithmetic  {:.0} GFLOP/s in f32, {:.0} GOP/s in int8\n", p.f32_gflop_s, p.int8_gop_s);
            Ok((to_value(p)?, text))
        }
    }
}

/// A table of launch costs.
pub fn launches(costs: &[LaunchCost]) -> String {
    let row = |c: &LaunchCost| {
        let [stream, graph, submit, whole] =
            [c.stream_ns, c.graph_ns, c.stream_submit_ns, c.graph_submit_ns].map(report::time);
        [c.groups.to_string(), c.threads.to_string(), stream, graph, submit, whole]
    };
    let names = ["groups", "threads", "a launch by stream", "by graph", "to submit by stream", "by graph"];
    report::table(names, &costs.iter().map(row).collect::<Vec<_>>())
}

/// A table of barrier costs.
pub fn barriers(costs: &[BarrierCost]) -> String {
    let row = |c: &BarrierCost| [c.groups.to_string(), c.threads.to_string(), report::time(c.round_ns)];
    report::table(["groups", "threads", "a barrier"], &costs.iter().map(row).collect::<Vec<_>>())
}

/// `4397 GB/s median, 4402 best of 9 samples of 2048 MiB`
pub fn bandwidth_text(r: &Rate) -> String {
    let size = report::binary(r.bytes as u64);
    format!(
        "{:.1} GB/s median, {:.1} best of {} samples of {size} ({})",
        r.median_gb_s, r.best_gb_s, r.samples, r.config
    )
}

/// `bf16: 620.0 TFLOP/s median, 631.0 best, 264 groups of 256 threads`
pub fn matrix_text(r: &MatrixRate) -> String {
    let [median, best] = [r.median_tflop_s, r.best_tflop_s].map(|t| format!("{t:.3}"));
    format!("{}: {median} TFLOP/s median, {best} best, {} groups of {} threads", r.input, r.groups, r.threads)
}
