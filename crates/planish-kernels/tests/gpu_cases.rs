//! What the tuner may choose at a shape can be launched at every case that its gate makes of that shape.

use planish_device::{Backend, Init, Recorder};
use planish_kernels::cpu::isa::Isa;
use planish_kernels::gate::{Plan, arg_len, plans};
use planish_kernels::gpu::{self, GpuOp, record, tier};
use planish_kernels::op::{Fill, Machine, OpCall, Shape};

/// Shapes as they are tuned, beside the small ones of the tables.
const TUNED: [(&str, &str); 7] = [
    ("gemm", "m=4096,n=4096,k=4096,layout=nt,out=bf16,type=bf16"),
    ("gemm", "m=4096,n=11008,k=4096,layout=nn,out=f32,type=f16"),
    ("gemm", "m=4096,n=1000,k=4095,layout=tn,out=f16,type=f16"),
    ("gemm_quant", "type=q4_0,io=f16,weights=rounded,rows=4096,cols=4096,tokens=512"),
    (
        "attention",
        "causal=1,head_dim=128,heads=32,keys=4096,kv_heads=8,queries=4096,sequences=2,softcap=0,type=bf16,window=0",
    ),
    ("attention", "causal=0,head_dim=64,heads=2,keys=0,kv_heads=2,queries=7,sequences=1,softcap=0,type=f16,window=0"),
    (
        "linear_cross_entropy_dh",
        "tokens=4096,hidden=4096,vocab=128256,bias=0,softcap=0,smooth=0,reduction=mean,type=bf16",
    ),
];

/// Refusals of the corners of the space of `op` at `shape`, at cases that are of another shape.
fn refusals(op: &'static GpuOp, shape: &Shape, card: &Recorder) -> Vec<String> {
    let machine = Machine { backend: card, isa: Isa::Portable };
    let others = plans(&op.op, shape, 1).into_iter().filter(|p| p.shape != *shape || p.launched != *shape);
    let others: Vec<Plan> = others.collect();
    if others.is_empty() {
        return Vec::new();
    }
    let mut refused = Vec::new();
    let configs = tier::corners(&op.text, &(op.op.space)(shape, &machine), tier::Depth::Corners);
    for plan in others {
        let problem = (op.op.problem)(&plan.shape, 1, Fill::Unjudged);
        let args = problem.args.iter().map(|arg| card.alloc(arg_len(arg), Init::Zero).expect("no bytes").all());
        let call = OpCall { op: &op.op, shape: plan.launched, attrs: problem.attrs, args: args.collect() };
        for config in &configs {
            if let Err(why) = call.steps(config, &machine) {
                refused.push(format!("{} at {shape}, {config}: case {}: {why}", op.op.name, call.shape));
            }
        }
    }
    refused
}

#[test]
fn what_may_be_chosen_can_be_gated() {
    let tuned = TUNED.map(|(name, shape)| (gpu::find(name).expect("an op"), shape.parse().expect("a shape")));
    let tables = gpu::OPS.iter().flat_map(|op| op.shapes().map(move |shape| (*op, shape)));
    let cards = ["sm_80", "sm_90a"].map(|arch| record::card(arch).with_library("cublaslt 12.9.3"));
    let mut refused = Vec::new();
    for (op, shape) in tables.chain(tuned) {
        (op.op.check)(&shape).expect("a shape of the op");
        refused.extend(cards.iter().flat_map(|card| refusals(op, &shape, card)));
    }
    assert!(refused.is_empty(), "{} refused:\n{}", refused.len(), refused.join("\n"));
}

#[test]
fn a_program_for_whole_tiles_is_gated() {
    let card = record::card("sm_80");
    for (name, shape) in &TUNED[..4] {
        let (op, shape) = (gpu::find(name).expect("an op"), shape.parse().expect("a shape"));
        let default = (op.op.space)(&shape, &Machine { backend: &card, isa: Isa::Portable }).default;
        let whole = |shape: &Shape| {
            let launches = record::launches(op, shape, &default, &card).expect("a launch");
            launches[0].constants["SPEC_ALIGNED"] == 1
        };
        let gated = plans(&op.op, &shape, 1).iter().any(|p| whole(&p.shape));
        assert_eq!((gated, whole(&shape)), (whole(&shape), default.int("ALIGNED") == Some(1)), "{name} at {shape}");
    }
}
