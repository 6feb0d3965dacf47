//! The instruction sets that CPU kernels are compiled for, and which of them this machine can run.

/// An instruction set with kernels of its own; the order is the order of preference.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum Isa {
    /// Plain Rust; the oracle that every other set must equal bit for bit.
    Portable,
    /// Arm Advanced SIMD with the int8 dot product.
    Neon,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// AVX-512 with its VNNI byte dot product.
    Vnni,
    /// The same, and byte products of whole tiles.
    Amx,
}

impl Isa {
    /// Every set, in the order of the enum.
    pub const ALL: [Isa; 5] = [Isa::Portable, Isa::Neon, Isa::Avx2, Isa::Vnni, Isa::Amx];

    /// Lower-case name, for example `avx2`.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Portable => "portable",
            Isa::Neon => "neon",
            Isa::Avx2 => "avx2",
            Isa::Vnni => "vnni",
            Isa::Amx => "amx",
        }
    }

    /// The set of this name.
    pub fn from_name(name: &str) -> Option<Isa> {
        Isa::ALL.into_iter().find(|i| i.name() == name)
    }

    /// Whether this processor has the set.
    pub fn is_supported(self) -> bool {
        match self {
            Isa::Portable => true,
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => std::arch::is_aarch64_feature_detected!("dotprod"),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => has_avx2(),
            #[cfg(target_arch = "x86_64")]
            Isa::Vnni => has_vnni(),
            #[cfg(target_arch = "x86_64")]
            Isa::Amx => has_vnni() && planish_device::cpu::tiles::granted(),
            _ => false,
        }
    }

    /// The best set that this processor has.
    pub fn detect() -> Isa {
        Isa::ALL.into_iter().rev().find(|i| i.is_supported()).expect("the portable set is always there")
    }
}

#[cfg(target_arch = "x86_64")]
fn has_avx2() -> bool {
    std::arch::is_x86_feature_detected!("avx2")
        && std::arch::is_x86_feature_detected!("fma")
        && std::arch::is_x86_feature_detected!("f16c")
}

#[cfg(target_arch = "x86_64")]
fn has_vnni() -> bool {
    has_avx2() && std::arch::is_x86_feature_detected!("avx512vnni") && std::arch::is_x86_feature_detected!("avx512vl")
}

impl std::fmt::Display for Isa {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
