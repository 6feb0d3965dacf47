//! `conv1d`: a causal convolution of each channel by itself, with silu, and the inputs the next call needs; bound by memory.

pub mod reference;

use planish_device::Launch;
use planish_tune::{Config, Rejection, Space};

use crate::data::{self, Rng};
use crate::gpu::text::{IO, KernelLaunch, Text, check_io, ints, io, io_code, knob};
use crate::gpu::{GpuOp, Tier};
use crate::op::{Arg, Attrs, Cost, Expected, Fill, Machine, Op, OpCall, Problem, Shape};
use crate::reference::lift;
use reference::Conv1d;

/// Arguments: x `[batch][steps][channels]`, w `[channels][taps]`, mask u32 `[batch][steps]` with `mask=1`, the inputs
/// before `[batch][taps - 1][channels]` with `init=1` (else zero), y like x, the inputs kept like those before.
pub static OP: GpuOp = GpuOp {
    op: Op {
        name: "conv1d",
        about: "y_t = silu(sum over m of w_m x_(t - taps + 1 + m)), channel by channel; bound by memory",
        check: |s| {
            s.check(&["batch", "steps", "channels", "taps", "mask", "init"], &["type"])?;
            if s.size("channels") == 0 || s.size("taps") == 0 {
                return Err(format!("{s}: channels and taps are at least 1"));
            }
            check_io(s)
        },
        space: |_, machine| Space {
            params: vec![
                ints("THREADS", "occupancy against the cost of a group", &[32, 64, 128, 256, 512]),
                ints("STEPS", "inputs shared in cache against threads in flight", &[1, 2, 4, 8]),
            ],
            constraints: Vec::new(),
            default: Config::new().with("THREADS", Tier::on(machine).pick([128, 256, 256, 256])).with("STEPS", 2),
        },
        cost: |s| {
            let [b, t, c, taps] = ["batch", "steps", "channels", "taps"].map(|name| s.size(name) as u64);
            let (e, kept) = (io(s).bytes(), b * (taps - 1) * c);
            Cost {
                flops: b * t * c * (2 * taps + 4),
                int8_ops: 0,
                read_bytes: e * (b * t * c + c * taps + kept * s.size("init") as u64),
                write_bytes: e * (b * t * c + kept),
            }
        },
        cases: |s| {
            let most = [("batch", 2), ("steps", 37), ("channels", 130)];
            let small = most.iter().fold(s.clone(), |s, (name, most)| {
                let n = s.size(name).min(*most) as i64;
                s.with(name, n)
            });
            vec![small.clone(), small.with("steps", 1)]
        },
        problem,
        steps,
        rotated: &[0, 4],
        reduces: &[],
    },
    text: TEXT,
    shapes: &[
        "batch=1,steps=1,channels=1,taps=1,mask=0,init=0,type=f32",
        "batch=2,steps=0,channels=5,taps=4,mask=0,init=1,type=f32",
        "batch=2,steps=2,channels=33,taps=4,mask=0,init=1,type=f32",
        "batch=1,steps=65,channels=67,taps=4,mask=1,init=0,type=f32",
        "batch=2,steps=9,channels=130,taps=3,mask=1,init=1,type=f16",
        "batch=1,steps=33,channels=31,taps=5,mask=0,init=0,type=bf16",
    ],
};

const TEXT: Text = Text(&[IO, ("conv1d.k", include_str!("conv1d.k"))]);

fn steps(call: &OpCall, config: &Config, machine: &Machine<'_>) -> Result<Vec<Launch>, Rejection> {
    let names = ["batch", "steps", "channels", "taps", "mask", "init"];
    let [batch, steps, channels, taps, mask, init] = names.map(|name| call.shape.size(name));
    let (threads, run) = (knob(config, "THREADS")?, knob(config, "STEPS")?);
    let tasks = batch * channels * (steps.div_ceil(run) + 1);
    if tasks == 0 {
        return Ok(Vec::new());
    }
    let launch = KernelLaunch {
        text: &OP.text,
        entry: "conv1d",
        constants: vec![("THREADS", threads as i64), ("STEPS", run as i64), ("IO", io_code(io(&call.shape)))],
        params: [batch, steps, channels, taps, mask, init].map(|v| v as u32).to_vec(),
        groups: tasks.div_ceil(threads),
        threads,
        shared_bytes: 0,
    };
    Ok(vec![launch.on(machine, call.args.clone())?])
}

fn problem(shape: &Shape, seed: u64, fill: Fill) -> Problem {
    let dims @ [batch, steps, channels, taps] = ["batch", "steps", "channels", "taps"].map(|name| shape.size(name));
    let io = io(shape);
    let mut rng = Rng::new(seed);
    let mut x = data::floats(&mut rng, batch * steps * channels, fill);
    let mut w = data::floats(&mut rng, channels * taps, Fill::Random);
    let masked = batch * steps * shape.size("mask");
    let mask: Vec<u32> = (0..masked).map(|t| u32::from(t % 5 != 2 && t % steps + 2 < steps)).collect();
    let mut before = data::floats(&mut rng, batch * (taps - 1) * channels * shape.size("init"), Fill::Random);
    let [bytes_x, bytes_w, bytes_before] = [&mut x, &mut w, &mut before].map(|v| Arg::In(data::rounded(v, io)));
    let [x64, w64, before64] = [&x, &w, &before].map(|v| lift::<f64>(v));
    let exact = Conv1d { x: &x64, w: &w64, mask: &mask, before: &before64, dims };
    let plain = Conv1d { x: &x, w: &w, mask: &mask, before: &before, dims };
    let y = match fill {
        Fill::Unjudged => Expected::float(io, vec![0.0; x.len()], &vec![0.0; x.len()]),
        _ => Expected::float(io, exact.y(), &plain.y()),
    };
    let after = Arg::Out(Expected::exact(io, exact.after()));
    Problem {
        shape: shape.clone(),
        attrs: Attrs::new(),
        args: vec![bytes_x, bytes_w, Arg::In(data::bytes_u32(&mask)), bytes_before, Arg::Out(y), after],
        label: format!("{fill:?} seed={seed}"),
    }
}
