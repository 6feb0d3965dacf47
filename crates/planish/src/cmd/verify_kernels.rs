//! `planish verify --device host` or `cuda`: every GPU kernel there against its f64 reference.

use std::fs;

use anyhow::{Context, Result, anyhow};
use clap::{Args, ValueEnum};
use planish_device::Backend;
use planish_device::host::{Host, HostOptions, Mode};
use planish_kernels::cpu::isa::Isa;
use planish_kernels::gpu::{self, GpuOp, tier};
use planish_kernels::op::Machine;
use planish_tune::counted;
use serde_json::json;

use crate::device::{self, Device};
use crate::hint::WithHint;
use crate::home::Home;
use crate::ui::Ui;
use crate::{Outcome, interrupt, report};

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
    /// Without a model: only this op; may be given several times
    #[arg(long = "op", value_name = "OP", requires = "device", conflicts_with = "model")]
    ops: Vec<String>,
    /// Without a model: what watches the kernels on the host executor
    #[arg(long, value_name = "WATCH", default_value = "checked", requires = "device", conflicts_with = "model")]
    watch: Watch,
}

/// Proves each op at the corners of its space and prints a line for each.
pub fn run(device: Device, args: &KernelArgs, ui: Ui) -> Result<Outcome> {
    let ops = chosen(&args.ops)?;
    let (mode, depth) = match args.watch {
        Watch::Checked => (Mode::Checked, tier::Depth::Corners),
        Watch::Address => (Mode::Address, tier::Depth::Few),
        Watch::Thread => (Mode::Thread, tier::Depth::Few),
    };
    let (backend, watch) = match device {
        Device::Host => (watched(mode)?, format!("host executor ({})", mode.name())),
        _ => (device::open(device)?, format!("device {device}")),
    };
    let machine = Machine { backend: backend.as_ref(), isa: Isa::Portable };
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
    if ui.json {
        let identity = backend.identity();
        report::print_json(&json!({
            "device": device.to_string(), "label": identity.label, "toolchain": identity.toolchain, "ops": data,
        }))?;
    } else {
        let names = ["op", "configurations", "runs", "refused", "error/bound", "time"];
        report::print(&report::table(names, &rows))?;
        refused.iter().try_for_each(|r| report::print(&format!("refused: {r}\n")))?;
        let verdict = if refused.is_empty() { "all passed".to_owned() } else { format!("{} refused", refused.len()) };
        report::print(&format!("{} on the {watch}: {verdict}\n", counted(ops.len(), "op")))?;
    }
    Ok(if refused.is_empty() { Outcome::Done } else { Outcome::No })
}

/// The host executor with something that watches the kernels.
fn watched(mode: Mode) -> Result<Box<dyn Backend>> {
    let cache = Home::from_env()?.host();
    fs::create_dir_all(&cache).with_context(|| format!("cannot create {}", cache.display()))?;
    Ok(Box::new(Host::new(HostOptions { cache, mode })?))
}

fn chosen(names: &[String]) -> Result<Vec<&'static GpuOp>> {
    if names.is_empty() {
        return Ok(gpu::OPS.to_vec());
    }
    let all: Vec<&str> = gpu::OPS.iter().map(|o| o.op.name).collect();
    let find = |n: &String| gpu::find(n).ok_or_else(|| anyhow!("no GPU op is called {n}"));
    names.iter().map(find).collect::<Result<_>>().hint(format!("one of {}", all.join(", ")))
}
