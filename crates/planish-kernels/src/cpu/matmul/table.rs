//! The compiled matmul kernels as a table; the tuner's space for the CPU is made from it.

use super::drive::{Dense, Float32, Int8, Machine, walk};
use super::formats::{self, Format};
use super::lanes::PortableLanes;
use super::{Knobs, Layout, MatmulFn};
use crate::cpu::isa::Isa;
use crate::quant::WeightType;
use std::sync::LazyLock;

/// The numerics class: what the activations are.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Class {
    /// f32 activations, weights dequantised to f32.
    F32,
    /// int8 activations in blocks of 32, exact integer sums inside a block; quantised weights only.
    Int8,
}

/// What a variant is made for; either kind accepts any number of tokens.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// One token: reads weights as fast as memory gives them.
    Matvec,
    /// Many tokens: takes a weight apart once for several of them.
    Matmul,
}

/// One compiled kernel.
#[derive(Clone, Copy, Debug)]
pub struct Variant {
    /// Instruction set.
    pub isa: Isa,
    /// Numerics class.
    pub class: Class,
    /// Weight type.
    pub weight: WeightType,
    /// What it is made for.
    pub kind: Kind,
    /// `TOKENS`: activations in one register tile; trades registers against weight unpacking.
    pub tokens: usize,
    /// `ROW_GROUPS`: groups of eight rows in one register tile; trades registers against activation loads.
    pub row_groups: usize,
    /// Bytes that [`Variant::scratch_bytes`] answers with.
    scratch: fn(&Layout, &Knobs, usize) -> usize,
    /// The kernel.
    pub run: MatmulFn,
}

impl Variant {
    /// Bytes of a thread's own memory, at a multiple of 64, that a call for `rows` rows needs at least.
    pub fn scratch_bytes(&self, layout: &Layout, knobs: &Knobs, rows: usize) -> usize {
        (self.scratch)(layout, knobs, rows)
    }

    /// A unique name, for example `avx2_int8_q4_0_matmul_t4g1`.
    pub fn name(&self) -> String {
        let class = match self.class {
            Class::F32 => "f32",
            Class::Int8 => "int8",
        };
        let kind = match self.kind {
            Kind::Matvec => "matvec",
            Kind::Matmul => "matmul",
        };
        format!("{}_{class}_{}_{kind}_t{}g{}", self.isa, self.weight, self.tokens, self.row_groups)
    }
}

/// Values worth trying for `Knobs::prefetch` (matvec).
pub const PREFETCH_CHOICES: [usize; 5] = [0, 512, 1024, 2048, 4096];

/// Values worth trying for `Knobs::row_block` (matmul).
pub const ROW_BLOCK_CHOICES: [usize; 4] = [32, 64, 128, 256];

/// Every kernel compiled for this target, whether or not this processor can run it.
pub fn variants() -> &'static [Variant] {
    static ALL: LazyLock<Vec<Variant>> = LazyLock::new(|| {
        let mut all = Vec::new();
        portable(&mut all);
        #[cfg(target_arch = "x86_64")]
        {
            use super::{amx::Tiles, avx2::Avx2Lanes, vnni::VnniLanes, wide::Wide};
            simd::<Avx2Lanes, Avx2Lanes>(Isa::Avx2, &mut all);
            panels::<Wide>(Isa::Vnni, &mut all);
            simd::<Avx2Lanes, VnniLanes>(Isa::Vnni, &mut all);
            panels::<Tiles>(Isa::Amx, &mut all);
            panels::<Wide>(Isa::Amx, &mut all);
            simd::<Avx2Lanes, VnniLanes>(Isa::Amx, &mut all);
        }
        #[cfg(target_arch = "aarch64")]
        simd::<super::neon::NeonLanes, super::neon::NeonLanes>(Isa::Neon, &mut all);
        all
    });
    &ALL
}

/// The kernel to use until tuning finds a better one; `None` when there is none (float weights have no int8 class).
pub fn default_variant(isa: Isa, class: Class, weight: WeightType, kind: Kind) -> Option<&'static Variant> {
    variants().iter().find(|v| (v.isa, v.class, v.weight, v.kind) == (isa, class, weight, kind))
}

/// Adds variants of one walker; the first of a kind is its default.
macro_rules! add {
    ($all:ident, $isa:ident, $class:ident, $weight:expr, $tiles:ty, $($kind:ident $tokens:literal $groups:literal),*) => {
        $($all.push(Variant {
            isa: $isa,
            class: Class::$class,
            weight: $weight,
            kind: Kind::$kind,
            tokens: $tokens,
            row_groups: $groups,
            scratch: |_, _, _| 0,
            run: walk::<$tiles, $tokens, $groups>,
        });)*
    };
}

macro_rules! for_each_format {
    ($f:ident, $($arg:expr),*; $($m:ty),*) => {
        for_each_format!(@ $f, ($($arg),*), ($($m),*) Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS)
    };
    (@ $f:ident, $args:tt, $m:tt $($name:ident)*) => { $(for_each_format!(! $f, $args, $m, $name);)* };
    (! $f:ident, ($($arg:expr),*), ($($m:ty),*), $name:ident) => { $f::<$($m,)* formats::$name>($($arg),*) };
}

fn portable(all: &mut Vec<Variant>) {
    fn quantised<F: Format>(all: &mut Vec<Variant>) {
        let isa = Isa::Portable;
        add!(all, isa, Int8, F::WEIGHT, Int8<PortableLanes, F>, Matvec 1 1, Matmul 1 1);
        add!(all, isa, F32, F::WEIGHT, Float32<PortableLanes, F>, Matvec 1 1, Matmul 1 1);
    }
    for_each_format!(quantised, all;);
    floats::<PortableLanes>(Isa::Portable, all);
}

fn floats<M: Machine>(isa: Isa, all: &mut Vec<Variant>) {
    use super::dense::{BF16, F16, F32};
    add!(all, isa, F32, WeightType::F32, Dense<M, F32>, Matvec 1 1, Matmul 3 1);
    add!(all, isa, F32, WeightType::F16, Dense<M, F16>, Matvec 1 1, Matmul 3 1);
    add!(all, isa, F32, WeightType::BF16, Dense<M, BF16>, Matvec 1 1, Matmul 3 1);
}

/// The variants of a set whose f32 class is `M` and whose int8 class is `D`.
#[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), allow(dead_code))]
fn simd<M: Machine, D: Machine>(isa: Isa, all: &mut Vec<Variant>) {
    fn quantised<M: Machine, D: Machine, F: Format>(isa: Isa, all: &mut Vec<Variant>) {
        add!(all, isa, Int8, F::WEIGHT, Int8<D, F>, Matvec 1 1, Matvec 1 2);
        add!(all, isa, Int8, F::WEIGHT, Int8<D, F>, Matmul 4 1, Matmul 2 1);
        add!(all, isa, F32, F::WEIGHT, Float32<M, F>, Matvec 1 1, Matmul 4 1);
    }
    for_each_format!(quantised, isa, all; M, D);
    floats::<M>(isa, all);
}

/// The matmuls that take panels of rows apart for `K`.
#[cfg(target_arch = "x86_64")]
fn panels<K: super::panel::Kernel>(isa: Isa, all: &mut Vec<Variant>) {
    use super::panel;
    fn quantised<K: panel::Kernel, F: Format>(isa: Isa, all: &mut Vec<Variant>) {
        all.push(Variant {
            isa,
            class: Class::Int8,
            weight: F::WEIGHT,
            kind: Kind::Matmul,
            tokens: K::TOKENS,
            row_groups: 2,
            scratch: panel::scratch_bytes,
            run: panel::panels::<K, F>,
        });
    }
    for_each_format!(quantised, isa, all; K);
}
