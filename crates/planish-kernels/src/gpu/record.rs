//! What an op launches, without a device: its programs and grids under a configuration, for compilers and for checks.

use std::collections::BTreeMap;

use planish_device::recorder::{Recorder, source};
use planish_device::{Backend, Init, Launch, Limits, Slice, Source, View};
use planish_tune::{Config, Rejection};

use crate::cpu::isa::Isa;
use crate::gate::arg_len;
use crate::gpu::GpuOp;
use crate::op::{Fill, Machine, OpCall, Shape};

/// A machine that runs nothing, with the limits of a large NVIDIA card of architecture `arch`, such as `sm_90a`.
pub fn card(arch: &str) -> Recorder {
    let card = Recorder::new(Limits {
        backend: "cuda".into(),
        max_threads: 1024,
        processors: 132,
        shared_bytes: 48 << 10,
        dynamic_shared_bytes: 227 << 10,
        l1_bytes: 256 << 10,
        l2_bytes: 50 << 20,
        llc_bytes: 50 << 20,
        read_gb_s: Some(4000.0),
    });
    card.with_fact("arch", arch)
}

/// One launch as a device would get it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Recorded {
    /// Entry point.
    pub entry: String,
    /// Whole text.
    pub text: String,
    /// `SPEC_*` and `SHAPE_*` constants by name.
    pub constants: BTreeMap<String, i64>,
    /// Groups of the grid.
    pub groups: u32,
    /// Threads of a group.
    pub threads: u32,
    /// Dynamic shared bytes.
    pub shared_bytes: u32,
    /// The parameter block.
    pub params: Vec<u8>,
    /// Offset and size of each argument.
    pub args: Vec<(usize, usize)>,
    /// Views of them.
    pub views: Vec<View>,
}

impl Recorded {
    /// As a source to load.
    pub fn source(&self) -> Source {
        let (name, text) = (self.entry.clone(), self.text.clone());
        Source::Text { name, text, constants: self.constants.clone(), threads: self.threads }
    }
}

/// The launches of `op` at `shape` under `config`, on memory that is not there.
pub fn launches(op: &'static GpuOp, shape: &Shape, config: &Config, on: &Recorder) -> Result<Vec<Recorded>, Rejection> {
    let problem = (op.op.problem)(shape, 1, Fill::Unjudged);
    let fault = |e: planish_device::Error| Rejection::Launch(e.to_string());
    let memory = |arg| on.alloc(arg_len(arg), Init::Zero).map(|b| b.all());
    let args: Vec<Slice> = problem.args.iter().map(memory).collect::<Result<_, _>>().map_err(fault)?;
    let call = OpCall { op: &op.op, shape: shape.clone(), attrs: problem.attrs, args };
    call.steps(config, &Machine { backend: on, isa: Isa::Portable })?.iter().map(recorded).collect()
}

fn recorded(launch: &Launch) -> Result<Recorded, Rejection> {
    let (entry, text, constants) = match source(&launch.program) {
        Some(Source::Text { name, text, constants, .. }) => (name.clone(), text.clone(), constants.clone()),
        // What the library is asked for stands for its text.
        Some(Source::Vendor(product)) => (launch.program.name.to_string(), product.to_string(), BTreeMap::new()),
        _ => return Err(Rejection::Launch(format!("{} is no kernel text", launch.program.name))),
    };
    Ok(Recorded {
        entry,
        text,
        constants,
        groups: launch.tasks,
        threads: launch.threads,
        shared_bytes: launch.scratch_bytes,
        params: launch.params.bytes().to_vec(),
        args: launch.args.iter().map(|a| (a.offset, a.len)).collect(),
        views: launch.views.clone(),
    })
}
