//! The op table: one module per op, found by name; adding an op is one module and one line here.

pub mod attention;
pub mod embed;
pub(crate) mod forms;
pub mod glu;
pub mod matmul;
pub mod norm;
pub mod read_only;
pub mod rope;
pub mod softcap;

use planish_device::{Launch, Native, Params, Plain, Slice, Source};
use planish_tune::{Rejection, Value};

use crate::op::{Machine, Op};

/// Every op, in the order of a report.
pub static OPS: &[&Op] = &[
    &embed::EMBED,
    &norm::RMS_NORM,
    &norm::RMS_NORM_ADD,
    &matmul::MATVEC,
    &matmul::GEMM,
    &rope::ROPE,
    &attention::ATTENTION,
    &attention::ATTENTION_DECODE,
    &glu::GLU,
    &softcap::SOFTCAP,
    &read_only::READ_ONLY,
];

/// The op called `name`.
pub fn find(name: &str) -> Option<&'static Op> {
    OPS.iter().find(|op| op.name == name).copied()
}

/// How a native kernel is launched.
struct NativeLaunch<P> {
    name: &'static str,
    run: Native,
    params: P,
    tasks: usize,
    threads: u32,
    scratch_bytes: usize,
}

impl<P: Plain> NativeLaunch<P> {
    /// One launch of this kernel on `args`.
    fn launch(self, machine: &Machine<'_>, args: Vec<Slice>) -> Result<Launch, Rejection> {
        let source = Source::Native { name: self.name, run: self.run };
        let program = machine.backend.load(&source).map_err(|e| Rejection::Compile(e.to_string()))?;
        Ok(Launch {
            program,
            args,
            params: Params::new(self.params),
            tasks: u32::try_from(self.tasks).map_err(|_| Rejection::Constraint(format!("{} tasks", self.tasks)))?,
            threads: self.threads,
            scratch_bytes: u32::try_from(self.scratch_bytes)
                .map_err(|_| Rejection::Constraint(format!("{} scratch bytes", self.scratch_bytes)))?,
            overlap: false,
            views: Vec::new(),
        })
    }
}

/// Thread counts worth trying: powers of two below the pool's size, and that.
fn thread_values(machine: &Machine<'_>) -> Vec<Value> {
    let all = machine.backend.limits().max_threads;
    let powers = (0..).map(|p| 1u32 << p).take_while(|t| *t < all);
    powers.chain([all]).map(|t| Value::Int(i64::from(t))).collect()
}
