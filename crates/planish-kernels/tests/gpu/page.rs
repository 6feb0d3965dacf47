//! `docs/ops.md`: made from the two op tables and from what the host executor measured.

use std::collections::BTreeSet;
use std::fmt::Write;

use planish_device::Backend;
use planish_kernels::cpu::isa::Isa;
use planish_kernels::gpu::{self, GpuOp, tier::Proof};
use planish_kernels::op::Machine;
use planish_kernels::ops;

const HEAD: &str = "# Ops

Made from the op tables by the test of `crates/planish-kernels/tests/gpu/page.rs`; `PLANISH_BLESS=1` writes it anew.

The host executor proves every GPU op on a CPU.
NVRTC compiles every GPU op for sm_80 and sm_90a, and clang checks the types of its Metal text; no Apple machine has run it.
Error is the worst of all runs over its bound, as the host executor measured it: at most 1.

";

/// One row for each op, the error from `proofs` in the order of the table.
pub fn page(backend: &dyn Backend, proofs: &[(&str, Proof)]) -> String {
    let mut out = HEAD.to_owned();
    out += "## GPU\n\n| op | parameters, the default first | constraints | shapes | CPU variant | error/bound |\n";
    out += "|---|---|---|---|---|---|\n";
    for op in gpu::OPS {
        let proof = proofs.iter().find(|(name, _)| *name == op.op.name).map(|(_, p)| p);
        let error = proof.map_or(String::new(), |p| format!("{:.2}", p.worst));
        let cpu = if ops::find(op.op.name).is_some() { "yes" } else { "" };
        let (parameters, constraints) = space(backend, op);
        let shapes = op.shapes.len();
        writeln!(out, "| `{}` | {parameters} | {constraints} | {shapes} | {cpu} | {error} |", op.op.name)
            .expect("a string takes all");
    }
    out += "\n| op | what it computes, and its limit |\n|---|---|\n";
    for op in gpu::OPS {
        writeln!(out, "| `{}` | {} |", op.op.name, op.op.about.replace('|', "\\|")).expect("a string takes all");
    }
    out += "\n## CPU\n\n| op | what it computes, and its limit |\n|---|---|\n";
    for op in ops::OPS {
        writeln!(out, "| `{}` | {} |", op.name, op.about.replace('|', "\\|")).expect("a string takes all");
    }
    out
}

/// Parameters and constraints over all shapes of `op`.
fn space(backend: &dyn Backend, op: &GpuOp) -> (String, String) {
    let machine = Machine { backend, isa: Isa::Portable };
    let (mut parameters, mut constraints) = (Vec::<(&str, Vec<String>)>::new(), BTreeSet::new());
    for shape in op.shapes() {
        let space = (op.op.space)(&shape, &machine);
        for p in &space.params {
            let at = parameters.iter().position(|(name, _)| *name == p.name).unwrap_or_else(|| {
                parameters.push((p.name, Vec::new()));
                parameters.len() - 1
            });
            let values = space.default.get(p.name).into_iter().chain(&p.values).map(ToString::to_string);
            for value in values.collect::<Vec<_>>() {
                if !parameters[at].1.contains(&value) {
                    parameters[at].1.push(value);
                }
            }
        }
        constraints.extend(space.constraints.iter().map(|c| general(&c.name)));
    }
    let parameters: Vec<String> =
        parameters.iter().map(|(name, values)| format!("{name} {}", values.join(" "))).collect();
    (parameters.join("; "), Vec::from_iter(constraints).join("; "))
}

/// A constraint's name for all shapes: numbers become N, and bars do not end the cell.
fn general(name: &str) -> String {
    let mut out = String::new();
    for c in name.chars() {
        match c {
            '0'..='9' if out.ends_with('N') => {}
            '0'..='9' => out.push('N'),
            '|' => out.push_str("\\|"),
            c => out.push(c),
        }
    }
    out
}

/// The page without what depends on the compiler: the last column of the GPU table.
pub fn fixed(page: &str) -> Vec<String> {
    let cut = |line: &str| match line.matches(" | ").count() {
        5 => line.rsplit_once(" | ").map_or(line, |(head, _)| head).to_owned(),
        _ => line.to_owned(),
    };
    page.lines().map(cut).collect()
}
