//! An adapter that begins at zero changes no bit of its base.

mod support;

use planish_device::host::Mode;
use planish_device::{Backend, Host};
use planish_kernels::cpu::isa::Isa;
use planish_kernels::gate::Fenced;
use planish_kernels::gpu::{self, GpuOp};
use planish_kernels::op::{Arg, Fill, Machine, OpCall, Problem, Shape};

/// The last argument of `op` after a run on `problem`.
fn last(op: &'static GpuOp, problem: &Problem, host: &Host) -> Vec<u8> {
    let machine = Machine { backend: host, isa: Isa::Portable };
    let fenced = Fenced::new(host, problem).expect("memory");
    fenced.fill(host, problem, 0xff).expect("inputs");
    let (shape, attrs, args) = (problem.shape.clone(), problem.attrs.clone(), fenced.slices.clone());
    let config = (op.op.space)(&shape, &machine).default;
    let call = OpCall { op: &op.op, shape, attrs, args };
    let launches = call.steps(&config, &machine).expect("the default is legal");
    host.submit(&host.record(&launches).expect("launches")).expect("a run");
    let y = fenced.slices.last().expect("arguments");
    let mut bytes = vec![0; y.len];
    host.read(y, &mut bytes).expect("results");
    bytes
}

/// With argument `b` zero, the op at `shape` gives the bits that it gives at rank zero.
#[track_caller]
fn check(name: &str, shape: &str, b: &[usize], adapters: &[usize]) {
    // A machine without a C++ compiler is told of by the tests of all ops.
    let Ok(host) = support::host(Mode::Checked) else { return };
    let op = gpu::find(name).expect("a listed op");
    let shape: Shape = shape.parse().expect("a shape");
    let mut problem = (op.op.problem)(&shape, 5, Fill::Random);
    for i in b {
        if let Arg::In(bytes) = &mut problem.args[*i] {
            bytes.fill(0);
        }
    }
    let with = last(op, &problem, &host);
    problem.shape = shape.with("rank", 0);
    for i in adapters {
        problem.args[*i] = match &problem.args[*i] {
            Arg::In(_) => Arg::In(Vec::new()),
            _ => Arg::Scratch(0),
        };
    }
    assert!(with == last(op, &problem, &host), "{name}: an adapter of zeros changed the result");
}

#[test]
fn an_adapter_of_zeros_leaves_the_base_its_bits() {
    for ty in ["f32", "f16", "bf16"] {
        let sizes = format!("rows=7,cols=37,rank=5,type={ty}");
        check("lora", &format!("{sizes},outs=19,adapters=0,bias=1"), &[4], &[3, 4, 6]);
        check("rms_norm_lora", &format!("{sizes},outs=19"), &[4], &[3, 4, 5]);
        check("swiglu_linear", &format!("{sizes},outs=19"), &[4, 6], &[3, 4, 5, 6, 7]);
        check("mlp", &format!("{sizes},inter=19"), &[4, 6, 9], &[3, 4, 5, 6, 8, 9, 10]);
    }
}
