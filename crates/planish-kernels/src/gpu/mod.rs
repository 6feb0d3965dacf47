//! Ops for GPUs, written once in the kernel dialect: one folder an op, and one line in the list below.
//!
//! A folder holds `mod.rs` (what the op is: space, cost, cases, launches), `reference.rs` (the formula, generic over
//! precision) and the kernel text.
//! CUDA, Metal and the host executor run the same text; the host executor proves it right on a machine without a GPU.

pub mod expect;
mod linear;
pub mod peak;
pub mod planes;
pub mod record;
mod teams;
pub mod text;
pub mod tier;
pub mod tiles;
pub mod wgmma;

use crate::op::{Machine, Op, Shape};
use text::Text;

/// An op of the dialect: an op, its text, and the shapes that prove it.
pub struct GpuOp {
    /// Space, cost, cases, inputs and launches.
    pub op: Op,
    /// Whole kernel text.
    pub text: Text,
    /// Shapes that prove the op: one row, one column, primes, tails, masks; small enough for the host executor.
    pub shapes: &'static [&'static str],
}

impl GpuOp {
    /// The shapes that prove the op.
    pub fn shapes(&self) -> impl Iterator<Item = Shape> + '_ {
        self.shapes.iter().map(|s| s.parse().unwrap_or_else(|e| panic!("{}: {e}", self.op.name)))
    }
}

/// Declares the modules of ops and their table `OPS` from one list.
#[macro_export]
macro_rules! gpu_ops {
    ($($name:ident),* $(,)?) => {
        $(pub mod $name;)*
        /// Every op of the dialect, in the order of a report.
        pub static OPS: &[&$crate::gpu::GpuOp] = &[$(&$name::OP),*];
    };
}

gpu_ops! {
    swiglu,
    rms_norm,
    matvec,
    matvec_mlx,
    gemm,
    gemm_quant,
    get_rows,
    lora,
    lora_backward,
    gdn_recurrent,
    gdn_chunked,
    conv1d,
    swiglu_backward,
    rope,
    cross_entropy,
    cross_entropy_backward,
    linear_cross_entropy,
    linear_cross_entropy_backward,
    linear_cross_entropy_dh,
    rms_norm_backward,
    rms_norm_gated,
    null,
    copy,
    read_only,
    barrier,
    sample,
    merge,
    decode,
    unpack,
    prefill,
    attention,
    attention_varlen,
    attention_decode,
    attention_backward,
    swiglu_linear,
    mlp,
    rms_norm_lora,
}

/// The op called `name`.
pub fn find(name: &str) -> Option<&'static GpuOp> {
    OPS.iter().find(|op| op.op.name == name).copied()
}

/// Bandwidth class of a machine, which picks the first candidate of a space: under 150 GB/s, 350, 700, and above.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    /// Under 150 GB/s.
    Base,
    /// Under 350 GB/s.
    Pro,
    /// Under 700 GB/s.
    Max,
    /// From 700 GB/s.
    Ultra,
}

impl Tier {
    /// The class of a machine whose measured read bandwidth is `gb_s`; Base where it was not measured.
    pub fn of(gb_s: Option<f64>) -> Tier {
        match gb_s {
            Some(b) if b >= 700.0 => Tier::Ultra,
            Some(b) if b >= 350.0 => Tier::Max,
            Some(b) if b >= 150.0 => Tier::Pro,
            _ => Tier::Base,
        }
    }

    /// The class of `machine`.
    pub fn on(machine: &Machine<'_>) -> Tier {
        Tier::of(machine.backend.limits().read_gb_s)
    }

    /// Of four values, the one of this class.
    pub fn pick<T: Copy>(self, values: [T; 4]) -> T {
        values[self as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::Tier;

    #[test]
    fn tiers_follow_measured_bandwidth() {
        for (gb_s, tier) in
            [(24.6, Tier::Base), (150.0, Tier::Pro), (349.9, Tier::Pro), (546.0, Tier::Max), (4022.0, Tier::Ultra)]
        {
            assert_eq!(Tier::of(Some(gb_s)), tier, "{gb_s} GB/s");
        }
        assert_eq!(Tier::of(None), Tier::Base);
        assert_eq!(Tier::Max.pick([1, 2, 3, 4]), 3);
    }
}
