//! Panels by AMX: sixteen tokens and sixteen rows meet in one tile product for each sub-block.
//!
//! The product leaves integers in a tile, and only memory leads from there to a vector register.
//! The next product is under way while the last one's integers are scaled, which takes longer than the product.

use super::lanes::unroll16;
use super::panel::{Kernel, Pass, Place, accumulate};
use std::arch::asm;
use std::arch::x86_64::*;
use std::mem::MaybeUninit;

/// See the module.
pub(super) struct Tiles;

/// Tokens of a whole tile, and rows.
const TOKENS: usize = 16;

/// Bytes of a row of a tile register.
const WIDTH: usize = 64;

/// Configuration of the tile registers, palette 1 (Intel SDM, LDTILECFG).
#[repr(C, align(64))]
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    /// Bytes of a row of each register.
    width: [u16; 16],
    rows: [u8; 16],
}

impl Config {
    /// Registers 0 and 1 are sums of `tokens`, 4 and 6 activations of `tokens`, 5 and 7 weights; `depth` columns.
    fn new(tokens: usize, depth: usize) -> Config {
        let mut c = Config { palette: 1, start_row: 0, reserved: [0; 14], width: [0; 16], rows: [0; 16] };
        for (sums, activations, weights) in [(0, 4, 5), (1, 6, 7)] {
            (c.width[sums], c.rows[sums]) = (WIDTH as u16, tokens as u8);
            (c.width[activations], c.rows[activations]) = (depth as u16, tokens as u8);
            (c.width[weights], c.rows[weights]) = (WIDTH as u16, (depth / 4) as u8);
        }
        c
    }

    /// # Safety
    /// The process may use tiles.
    unsafe fn load(&self) {
        // SAFETY: the configuration is legal in palette 1, and the registers are nobody's before.
        unsafe { asm!("ldtilecfg [{}]", in(reg) self, options(nostack, readonly, preserves_flags)) };
    }
}

/// Gives the registers back: a thread without tiles in use costs less to switch.
///
/// # Safety
/// The process may use tiles.
unsafe fn release() {
    // SAFETY: the caller's contract.
    unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) };
}

impl Kernel for Tiles {
    const TOKENS: usize = TOKENS;
    const SIGNED: bool = true;

    unsafe fn run<const SUBS: usize, const MIN: bool>(pass: &Pass) {
        let depth = super::BLOCK / SUBS;
        let whole = pass.tokens() / TOKENS * TOKENS;
        // SAFETY: the caller's contract; the tokens of a tile are as many as it was configured for.
        unsafe {
            if whole > 0 {
                Config::new(TOKENS, depth).load();
            }
            for token in (0..whole).step_by(TOKENS) {
                for panel in 0..pass.panels {
                    tile::<SUBS, MIN, true>(pass, panel, token, TOKENS);
                }
            }
            if whole < pass.tokens() {
                Config::new(pass.tokens() - whole, depth).load();
                for panel in 0..pass.panels {
                    tile::<SUBS, MIN, false>(pass, panel, whole, pass.tokens() - whole);
                }
            }
            release();
        }
    }
}

/// A tile of integers in memory.
#[repr(C, align(64))]
struct Sums([i32; TOKENS * WIDTH / 4]);

/// `tokens` tokens from `token` on; `WHOLE` says that they are sixteen.
#[target_feature(enable = "avx512f")]
unsafe fn tile<const SUBS: usize, const MIN: bool, const WHOLE: bool>(
    pass: &Pass,
    panel: usize,
    token: usize,
    tokens: usize,
) {
    let place = pass.place(panel, token);
    let steps = SUBS * place.blocks;
    let mut sums = [const { MaybeUninit::<Sums>::uninit() }; 2];
    let [even, odd] = &mut sums;
    let mut acc = [_mm512_setzero_ps(); TOKENS];
    // SAFETY: steps are sub-blocks of the panel; a product is stored before its integers are read.
    unsafe {
        multiply::<0, SUBS, MIN>(&place, 0);
        for step in (0..steps).step_by(2) {
            if step + 1 < steps {
                multiply::<1, SUBS, MIN>(&place, step + 1);
            }
            store::<0>(even.as_mut_ptr());
            scale::<SUBS, MIN, WHOLE>(&place, step, even.as_ptr(), tokens, &mut acc);
            if step + 1 == steps {
                break;
            }
            if step + 2 < steps {
                multiply::<0, SUBS, MIN>(&place, step + 2);
            }
            store::<1>(odd.as_mut_ptr());
            scale::<SUBS, MIN, WHOLE>(&place, step + 1, odd.as_ptr(), tokens, &mut acc);
        }
        let outputs = pass.outputs(panel);
        unroll16!(T => {
            if WHOLE || T < tokens {
                outputs.store(token + T, acc[T]);
            }
        });
    }
}

/// Starts the product of a sub-block in one of two sets of registers.
#[inline(always)]
unsafe fn multiply<const SET: usize, const SUBS: usize, const MIN: bool>(place: &Place, step: usize) {
    let (block, sub) = (step / SUBS, step % SUBS);
    macro_rules! product {
        ($sums:literal, $activations:literal, $weights:literal) => {
            asm!(
                concat!("tilezero tmm", $sums),
                concat!("tileloadd tmm", $activations, ", [{q} + {stride}*1]"),
                concat!("tileloadd tmm", $weights, ", [{w} + {width}*1]"),
                concat!("tdpbssd tmm", $sums, ", tmm", $activations, ", tmm", $weights),
                q = in(reg) place.activations::<SUBS>(block, sub),
                stride = in(reg) place.stride(),
                w = in(reg) place.quads::<SUBS, MIN>(block, sub),
                width = in(reg) WIDTH,
                options(nostack, readonly, preserves_flags),
            )
        };
    }
    // SAFETY: the caller's sub-block and the configured number of tokens are there to be read.
    unsafe { if SET == 0 { product!("0", "4", "5") } else { product!("1", "6", "7") } }
}

/// Stores the sums of a set.
#[inline(always)]
unsafe fn store<const SET: usize>(to: *mut Sums) {
    // SAFETY: a tile is at most as large as `Sums`.
    unsafe {
        if SET == 0 {
            asm!("tilestored [{} + {}*1], tmm0", in(reg) to, in(reg) WIDTH, options(nostack, preserves_flags));
        } else {
            asm!("tilestored [{} + {}*1], tmm1", in(reg) to, in(reg) WIDTH, options(nostack, preserves_flags));
        }
    }
}

/// Adds the stored integers of a sub-block to the sums of its tokens.
#[inline(always)]
unsafe fn scale<const SUBS: usize, const MIN: bool, const WHOLE: bool>(
    place: &Place,
    step: usize,
    sums: *const Sums,
    tokens: usize,
    acc: &mut [__m512; TOKENS],
) {
    let (block, sub) = (step / SUBS, step % SUBS);
    // SAFETY: `tokens` rows of `sums` were stored; the block is one of the panel and of the activations.
    unsafe {
        let scales = place.scales::<SUBS, MIN>(block, sub);
        unroll16!(T => {
            if WHOLE || T < tokens {
                let level = _mm512_cvtepi32_ps(_mm512_load_si512(sums.cast::<u8>().add(WIDTH * T).cast()));
                acc[T] = accumulate::<SUBS, MIN>(acc[T], level, scales, &place.meta(T, block), sub);
            }
        });
    }
}

/// Multiplications and additions of a round of [`products`]: four products of whole tiles.
pub(super) const OPS_PER_ROUND: u64 = (4 * TOKENS * (WIDTH / 4) * WIDTH * 2) as u64;

/// `rounds` rounds of products of tiles whose bytes are all 1, and the sum of the results: the set's ceiling.
///
/// # Safety
/// The process may use tiles.
pub(super) unsafe fn products(rounds: usize) -> i32 {
    let ones = [1u8; TOKENS * WIDTH];
    let mut sums = Sums([0; TOKENS * WIDTH / 4]);
    let mut config = Config::new(TOKENS, WIDTH);
    config.width[..8].fill(WIDTH as u16);
    config.rows[..8].fill(TOKENS as u8);
    let mut total = 0i32;
    // SAFETY: every load and store is a whole tile of 1 KiB; registers are zero after the configuration.
    unsafe {
        config.load();
        asm!(
            "tileloadd tmm4, [{p} + {width}*1]",
            "tileloadd tmm5, [{p} + {width}*1]",
            "tileloadd tmm6, [{p} + {width}*1]",
            "tileloadd tmm7, [{p} + {width}*1]",
            p = in(reg) ones.as_ptr(),
            width = in(reg) WIDTH,
            options(nostack, readonly, preserves_flags),
        );
        for _ in 0..rounds {
            asm!(
                "tdpbssd tmm0, tmm4, tmm6",
                "tdpbssd tmm1, tmm4, tmm7",
                "tdpbssd tmm2, tmm5, tmm6",
                "tdpbssd tmm3, tmm5, tmm7",
                options(nostack, nomem, preserves_flags),
            );
        }
        macro_rules! add {
            ($($sums:literal)*) => {
                $(
                    asm!(
                        concat!("tilestored [{p} + {width}*1], tmm", $sums),
                        p = in(reg) &mut sums,
                        width = in(reg) WIDTH,
                        options(nostack, preserves_flags),
                    );
                    total = sums.0.iter().fold(total, |sum, x| sum.wrapping_add(*x));
                )*
            };
        }
        add!("0" "1" "2" "3");
        release();
    }
    total
}
