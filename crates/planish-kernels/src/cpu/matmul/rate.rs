//! The fastest that an instruction set multiplies bytes and adds up: the inner step of the int8 kernels and nothing else.

use super::drive::Machine;
use super::lanes::{Lanes, PortableLanes};
use crate::cpu::isa::Isa;

/// Weight operands that stay in registers.
const WEIGHTS: usize = 4;
/// Activation operands of a round; a multiple of every `TOKENS`.
const STEPS: usize = 24;
/// Additions and multiplications of a round: 32 products in each of its dot products.
pub(crate) const OPS_PER_ROUND: u64 = (WEIGHTS * STEPS * 32 * 2) as u64;

/// What a round multiplies; it fits the first cache.
pub(crate) struct Operands([u8; 32 * STEPS]);

impl Operands {
    /// Bytes so small that no sum of them overflows soon; what a product takes does not depend on its value.
    pub(crate) const ONES: Operands = Operands([1; 32 * STEPS]);
}

/// `rounds` rounds with the lanes of `isa` and `TOKENS * 4` sums in flight; the result only keeps the work alive.
///
/// # Safety
/// The processor has `isa`.
pub(crate) unsafe fn dots<const TOKENS: usize>(isa: Isa, operands: &Operands, rounds: usize) -> i32 {
    // SAFETY: the caller's contract.
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => super::avx2::Avx2Lanes::dots::<TOKENS>(operands, rounds),
            #[cfg(target_arch = "x86_64")]
            Isa::Vnni | Isa::Amx => super::vnni::VnniLanes::dots::<TOKENS>(operands, rounds),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => super::neon::NeonLanes::dots::<TOKENS>(operands, rounds),
            _ => PortableLanes::dots::<TOKENS>(operands, rounds),
        }
    }
}

/// Additions and multiplications of a round of [`panels`], where `isa` has kernels on panels.
pub(crate) fn panel_ops_per_round(isa: Isa) -> Option<u64> {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Vnni => Some(super::wide::OPS_PER_ROUND),
        #[cfg(target_arch = "x86_64")]
        Isa::Amx => Some(super::amx::OPS_PER_ROUND),
        _ => None,
    }
}

/// The same as [`dots`] by the inner step of the kernels on panels; every product is 1.
///
/// # Safety
/// The processor has `isa`, which has such kernels.
pub(crate) unsafe fn panels(isa: Isa, rounds: usize) -> i32 {
    // SAFETY: the caller's contract.
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Vnni => super::wide::products(rounds),
            #[cfg(target_arch = "x86_64")]
            Isa::Amx => super::amx::products(rounds),
            _ => unreachable!("{isa} has no kernels on panels, which a round of {rounds} would be of"),
        }
    }
}

/// The body of [`dots`] for one set of lanes.
///
/// # Safety
/// See [`Lanes`].
#[inline(always)]
pub(crate) unsafe fn rounds<S: Lanes, const TOKENS: usize>(operands: &Operands, rounds: usize) -> i32 {
    // SAFETY: every load is inside the operands and the store inside `out`; see `Lanes` for the rest.
    unsafe {
        let mut w = [S::zero_w(); WEIGHTS];
        for (k, w) in w.iter_mut().enumerate() {
            *w = S::prepare(S::load_i(operands.0.as_ptr().add(32 * k)), false);
        }
        let mut sums = [[S::zero_r(); WEIGHTS]; TOKENS];
        for _ in 0..rounds {
            // Hidden from the compiler, which would else take the products out of the loop.
            let from = std::hint::black_box(operands.0.as_ptr());
            for step in 0..STEPS / TOKENS {
                for (t, sums) in sums.iter_mut().enumerate() {
                    let a = S::load_i(from.add(32 * (step * TOKENS + t)));
                    for (sum, w) in sums.iter_mut().zip(w) {
                        *sum = S::dot_add(*sum, w, a, false);
                    }
                }
            }
        }
        let mut total = S::zero_i();
        for sum in sums.into_iter().flatten() {
            total = S::add_i32(total, S::finish(sum));
        }
        let mut out = [0.0f32; 8];
        S::store_f(out.as_mut_ptr(), S::to_f32(total));
        out.iter().map(|x| *x as i32).fold(0, i32::wrapping_add)
    }
}
