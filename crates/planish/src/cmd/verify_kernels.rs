//! `planish verify --device host`: every GPU kernel on the host executor against its f64 reference.

use std::fs;

use anyhow::{Context, Result, anyhow};
use clap::{Args, ValueEnum};
use planish_device::host::{Host, HostOptions, Mode};
use planish_kernels::cpu::isa::Isa;
use planish_kernels::gpu::{self, GpuOp, tier};
use planish_kernels::op::Machine;
use serde_json::json;

use crate::hint::WithHint;
use crate::home::Home;
use crate::ui::Ui;
use crate::{Outcome, interrupt, report};

/// What runs GPU kernels.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Device {
    /// This CPU, through the host executor; needs a C++ compiler
    Host,
}

/// What watches the kernels on the host executor.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Watch {
    /// Bounds, uninitialised reads and races of threadgroup memory, barrier divergence
    Checked,
    /// The address and undefined-behaviour sanitizers
    Address,
    /// The thread sanitizer
    Thread,
}

/// Which kernels are verified where.
#[derive(Args)]
pub struct KernelArgs {
    /// Verify GPU kernels on this device instead of a model's logits
    #[arg(long, value_name = "DEVICE", conflicts_with_all = ["model", "expected", "dump", "not_worse_than_llama"])]
    pub device: Option<Device>,
    /// Only this op; may be given several times
    #[arg(long = "op", value_name = "OP", requires = "device")]
    ops: Vec<String>,
    /// What watches the kernels
    #[arg(long, value_name = "WATCH", default_value = "checked", requires = "device")]
    watch: Watch,
}

/// Proves each op at the corners of its space and prints a line for each.
pub fn run(_: Device, args: &KernelArgs, ui: Ui) -> Result<Outcome> {
    let ops = chosen(&args.ops)?;
    let cache = Home::from_env()?.host();
    fs::create_dir_all(&cache).with_context(|| format!("cannot create {}", cache.display()))?;
    let (mode, depth) = match args.watch {
        Watch::Checked => (Mode::Checked, tier::Depth::Corners),
        Watch::Address => (Mode::Address, tier::Depth::Few),
        Watch::Thread => (Mode::Thread, tier::Depth::Few),
    };
    let host = Host::new(HostOptions { cache, mode })?;
    let machine = Machine { backend: &host, isa: Isa::Portable };
    let (mut rows, mut data, mut refused) = (Vec::new(), Vec::new(), Vec::new());
    for (i, op) in ops.iter().enumerate() {
        interrupt::check()?;
        let spinner = ui.spinner(&format!("{} ({} of {})", op.op.name, i + 1, ops.len()));
        let proof = tier::prove(op, &machine, depth);
        spinner.finish_and_clear();
        refused.extend(proof.refused.iter().map(|r| format!("{} {r}", op.op.name)));
        data.push(json!({
            "op": op.op.name, "configurations": proof.configs, "runs": proof.passed, "refused": proof.refused,
            "error_over_bound": proof.worst, "seconds": proof.time.as_secs_f64(),
        }));
        rows.push([
            op.op.name.to_owned(),
            proof.configs.to_string(),
            proof.passed.to_string(),
            proof.refused.len().to_string(),
            format!("{:.2}", proof.worst),
            format!("{:.1} s", proof.time.as_secs_f64()),
        ]);
    }
    let watch = mode.name();
    if ui.json {
        report::print_json(&json!({ "device": "host", "watch": watch, "compiler": host.compiler(), "ops": data }))?;
    } else {
        let names = ["op", "configurations", "runs", "refused", "error/bound", "time"];
        report::print(&report::table(names, &rows))?;
        refused.iter().try_for_each(|r| report::print(&format!("refused: {r}\n")))?;
        let verdict = if refused.is_empty() { "all passed".to_owned() } else { format!("{} refused", refused.len()) };
        report::print(&format!("{} ops on the host executor ({watch}): {verdict}\n", ops.len()))?;
    }
    Ok(if refused.is_empty() { Outcome::Done } else { Outcome::No })
}

fn chosen(names: &[String]) -> Result<Vec<&'static GpuOp>> {
    if names.is_empty() {
        return Ok(gpu::OPS.to_vec());
    }
    let all: Vec<&str> = gpu::OPS.iter().map(|o| o.op.name).collect();
    let find = |n: &String| gpu::find(n).ok_or_else(|| anyhow!("no GPU op is called {n}"));
    names.iter().map(find).collect::<Result<_>>().hint(format!("one of {}", all.join(", ")))
}
