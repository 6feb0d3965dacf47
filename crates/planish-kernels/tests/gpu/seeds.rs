//! The default of every op passes whatever the gate of a tuned shape asks, at seeds that nobody chose a bound by.
//!
//! A default that is refused by luck is never tuned, so a bound must hold for all draws of inputs and of roundings.

use planish_device::{Host, Slice};
use planish_kernels::cpu::isa::Isa;
use planish_kernels::gate::{self, Plan};
use planish_kernels::gpu::GpuOp;
use planish_kernels::op::{Machine, OpCall};

/// At the first, bounds were once exceeded by three right kernels; the second is any other.
const SEEDS: [u64; 2] = [3, 8];

/// Refusals of the default of `op`.
pub fn refusals(op: &'static GpuOp, host: &Host) -> Vec<String> {
    let machine = Machine { backend: host, isa: Isa::Portable };
    let mut refused = Vec::new();
    for shape in op.shapes() {
        let config = (op.op.space)(&shape, &machine).default;
        for plan in SEEDS.iter().flat_map(|seed| gate::plans(&op.op, &shape, *seed)) {
            let Plan { shape, seed, fill, launched } = plan;
            let problem = (op.op.problem)(&shape, seed, fill);
            let steps = |args: &[Slice]| {
                let (attrs, args) = (problem.attrs.clone(), args.to_vec());
                OpCall { op: &op.op, shape: launched.clone(), attrs, args }.steps(&config, &machine)
            };
            if let Err(why) = gate::check(host, &problem, &steps) {
                refused.push(format!("{}, {config}: {why}", op.op.name));
            }
        }
    }
    refused
}
