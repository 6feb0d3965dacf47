//! Panels by the 512-bit VNNI byte dot product: tiles of tokens in registers.

use super::lanes::unroll8;
use super::panel::{Kernel, Pass, accumulate};
use std::arch::x86_64::*;

/// See the module.
pub(super) struct Wide;

/// Tokens of a whole tile: integer and f32 sums of each, and a weight, in 32 registers.
const TOKENS: usize = 8;

impl Kernel for Wide {
    const TOKENS: usize = TOKENS;
    const SIGNED: bool = false;

    unsafe fn run<const SUBS: usize, const MIN: bool>(pass: &Pass) {
        let mut token = 0;
        while token < pass.tokens() {
            // The largest power of two that is left, at most a whole tile.
            let n = TOKENS.min(1 << (pass.tokens() - token).ilog2());
            for panel in 0..pass.panels {
                // SAFETY: the caller's contract; `n` tokens are left.
                unsafe {
                    match n {
                        1 => tile::<1, SUBS, MIN>(pass, panel, token),
                        2 => tile::<2, SUBS, MIN>(pass, panel, token),
                        4 => tile::<4, SUBS, MIN>(pass, panel, token),
                        _ => tile::<TOKENS, SUBS, MIN>(pass, panel, token),
                    }
                }
            }
            token += n;
        }
    }
}

#[target_feature(enable = "avx512f,avx512vnni")]
unsafe fn tile<const T: usize, const SUBS: usize, const MIN: bool>(pass: &Pass, panel: usize, token: usize) {
    let place = pass.place(panel, token);
    let mut acc = [_mm512_setzero_ps(); T];
    for block in 0..place.blocks {
        for sub in 0..SUBS {
            let mut sums = [_mm512_setzero_si512(); T];
            let quads = place.quads::<SUBS, MIN>(block, sub);
            let q = place.activations::<SUBS>(block, sub);
            // SAFETY: quads and activations of the sub-block, for `T` tokens that there are.
            unsafe {
                unroll8!(J => {
                    if J < 8 / SUBS {
                        let w = _mm512_load_si512(quads.add(64 * J).cast());
                        unroll8!(I => {
                            if I < T {
                                let a = q.add(I * place.stride() + 4 * J).cast::<i32>().read_unaligned();
                                sums[I] = _mm512_dpbusd_epi32(sums[I], w, _mm512_set1_epi32(a));
                            }
                        });
                    }
                });
                let scales = place.scales::<SUBS, MIN>(block, sub);
                unroll8!(I => {
                    if I < T {
                        let meta = place.meta(I, block);
                        let mut level = _mm512_cvtepi32_ps(sums[I]);
                        if !MIN {
                            // Integers under 2^24, so this is exact; a type with minima has nothing to correct.
                            let sum = _mm512_set1_ps(meta.sum_of(SUBS, sub));
                            level = _mm512_fmadd_ps(_mm512_set1_ps(pass.correction), sum, level);
                        }
                        acc[I] = accumulate::<SUBS, MIN>(acc[I], level, scales, &meta, sub);
                    }
                });
            }
        }
    }
    let outputs = pass.outputs(panel);
    unroll8!(I => {
        if I < T {
            // SAFETY: the tokens of the tile are tokens of the pass.
            unsafe { outputs.store(token + I, acc[I]) };
        }
    });
}

/// Sums in flight when only products are counted.
const SUMS: usize = 12;
/// Multiplications and additions of a round of [`products`].
pub(super) const OPS_PER_ROUND: u64 = (SUMS * 64 * 2) as u64;

/// `rounds` rounds of dot products of bytes that are all 1, and their sum: the set's ceiling.
///
/// # Safety
/// The processor has AVX-512 VNNI.
#[target_feature(enable = "avx512f,avx512vnni")]
pub(super) unsafe fn products(rounds: usize) -> i32 {
    let ones = _mm512_set1_epi8(1);
    let mut sums = [_mm512_setzero_si512(); SUMS];
    for _ in 0..rounds {
        // Hidden from the compiler, which would else take the products out of the loop.
        let a = std::hint::black_box(ones);
        for sum in &mut sums {
            *sum = _mm512_dpbusd_epi32(*sum, ones, a);
        }
    }
    sums.into_iter().map(|sum| _mm512_reduce_add_epi32(sum)).fold(0, i32::wrapping_add)
}
