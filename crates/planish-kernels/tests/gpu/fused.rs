//! A fused kernel gives the bits of its phases launched one by one.

use std::time::Duration;

use planish_device::{Backend, Host, Slice};
use planish_kernels::cpu::isa::Isa;
use planish_kernels::gate::Fenced;
use planish_kernels::gpu::GpuOp;
use planish_kernels::op::{Arg, Fill, Machine, OpCall, Problem};
use planish_tune::Config;

/// What every output of `problem` holds after a run under `config`.
fn outputs(host: &Host, op: &'static GpuOp, problem: &Problem, config: &Config) -> Vec<Vec<u8>> {
    let fenced = Fenced::new(host, problem).expect("the host executor runs the layer");
    fenced.fill(host, problem, 0xff).expect("the host executor runs the layer");
    let (shape, attrs) = (problem.shape.clone(), problem.attrs.clone());
    let call = OpCall { op: &op.op, shape, attrs, args: fenced.slices.clone() };
    let launches =
        call.steps(config, &Machine { backend: host, isa: Isa::Portable }).expect("the host executor runs the layer");
    let token = host
        .submit(&host.record(&launches).expect("the host executor runs the layer"))
        .expect("the host executor runs the layer");
    host.wait(token, Duration::from_secs(60)).expect("the host executor runs the layer");
    let bytes = |slice: &Slice| {
        let mut bytes = vec![0; slice.len];
        host.read(slice, &mut bytes).map(|()| bytes).expect("the host executor runs the layer")
    };
    // The word of a barrier may hold anything.
    let written = |arg: &Arg| match arg {
        Arg::Out(e) | Arg::InOut(_, e) => e.bounds.iter().all(|b| b.is_finite()),
        Arg::In(_) | Arg::Scratch(_) => false,
    };
    problem.args.iter().zip(&fenced.slices).filter(|(arg, _)| written(arg)).map(|(_, s)| bytes(s)).collect()
}

/// Runs every shape of `op` fused on some grids and in phases.
pub fn same_bits(host: &Host, op: &'static GpuOp) {
    for (i, shape) in op.shapes().enumerate() {
        let space = (op.op.space)(&shape, &Machine { backend: host, isa: Isa::Portable });
        let problem = (op.op.problem)(&shape, 3 + i as u64, Fill::Random);
        let phases = space.default.clone().with("PATH", "launches");
        let want = outputs(host, op, &problem, &phases);
        for (path, blocks) in [("token", 1), ("token", 5), ("layer", 3), ("launches", 2)] {
            let fused = space.default.clone().with("PATH", path).with("BLOCKS", blocks);
            assert_eq!(outputs(host, op, &problem, &fused), want, "{shape}: {path}, {blocks} blocks");
        }
    }
}
