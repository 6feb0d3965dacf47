//! Sixteen f32 lanes on every instruction set: the one vector type that CPU kernels are written over.
//!
//! The unit is 16 lanes whatever the register width (one AVX-512 register, two AVX2, four NEON), and every
//! sum across lanes uses one fixed tree, so every instruction set gives the same bits.
//! `Portable` therefore needs the fused multiply-add, which is slow on a processor that has none.

use crate::cpu::isa::Isa;

/// Lanes of a vector.
pub const LANES: usize = 16;

/// Sixteen f32 lanes of one instruction set.
///
/// # Safety
/// Every method may execute instructions of the set: a caller must be inside a function compiled for it, on a
/// processor that has it. Methods are inlined into such a function; `isa_kernel!` makes it.
#[allow(clippy::missing_safety_doc)] // one contract for every method, stated above
pub trait Simd: Copy + 'static {
    /// Sixteen f32 lanes.
    type V: Copy;
    /// How many vectors of accumulators fit the register file beside their operands.
    const REGISTERS: Registers = Registers::Six;

    /// Runs `job` in a function of its own that is compiled for the set, so that a body with many callers is compiled once.
    ///
    /// # Safety
    /// As the trait and the job.
    unsafe fn call<J: Job>(job: J);

    /// All lanes `x`.
    unsafe fn splat(x: f32) -> Self::V;
    /// Lanes from `p[0..16]`, any alignment.
    unsafe fn load(p: *const f32) -> Self::V;
    /// Lanes to `p[0..16]`, any alignment.
    unsafe fn store(p: *mut f32, v: Self::V);
    /// Lanes from 16 IEEE half values, exactly.
    unsafe fn load_f16(p: *const u16) -> Self::V;
    /// Lanes to 16 IEEE half values, to nearest even.
    unsafe fn store_f16(p: *mut u16, v: Self::V);
    /// Lanes from 16 bfloat16 values, exactly.
    unsafe fn load_bf16(p: *const u16) -> Self::V;
    /// a + b.
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    /// a - b.
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V;
    /// a * b.
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    /// a / b, correctly rounded.
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V;
    /// a * b + c.
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// a > b ? a : b, so the second operand where either is NaN.
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V;
    /// a < b ? a : b, so the second operand where either is NaN.
    unsafe fn min(a: Self::V, b: Self::V) -> Self::V;
    /// |a|.
    unsafe fn abs(a: Self::V) -> Self::V;
    /// |a| with the sign of s.
    unsafe fn copysign(a: Self::V, s: Self::V) -> Self::V;
    /// a < b ? x : y.
    unsafe fn select_lt(a: Self::V, b: Self::V, x: Self::V, y: Self::V) -> Self::V;
    /// p * 2^n for integral n in -252..=254, rounded once.
    unsafe fn ldexp(p: Self::V, n: Self::V) -> Self::V;
    /// Lanes 2i and 2i+1 exchanged.
    unsafe fn swap_pairs(a: Self::V) -> Self::V;
}

/// Room for accumulators.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Registers {
    /// One vector: no register tile at all.
    One,
    /// Six to eight vectors.
    Six,
    /// 24 vectors.
    Many,
}

/// A piece of a kernel that is not inlined into its callers.
pub trait Job {
    /// # Safety
    /// As [`Simd`], and what the job says.
    unsafe fn run<S: Simd>(self);
}

/// First `n` lanes from `p[0..n]`, `fill` in the others.
///
/// # Safety
/// As [`Simd`]; `p` is valid for `n <= 16` reads.
#[inline(always)]
pub unsafe fn load_part<S: Simd>(p: *const f32, n: usize, fill: f32) -> S::V {
    if n >= LANES {
        // SAFETY: the caller vouches for p[0..16].
        return unsafe { S::load(p) };
    }
    let mut lanes = [fill; LANES];
    // SAFETY: the caller vouches for p[0..n]; lanes has 16 elements.
    unsafe {
        std::ptr::copy_nonoverlapping(p, lanes.as_mut_ptr(), n);
        S::load(lanes.as_ptr())
    }
}

/// First `n` lanes to `p[0..n]`; nothing else is written.
///
/// # Safety
/// As [`Simd`]; `p` is valid for `n <= 16` writes.
#[inline(always)]
pub unsafe fn store_part<S: Simd>(p: *mut f32, v: S::V, n: usize) {
    if n >= LANES {
        // SAFETY: the caller vouches for p[0..16].
        return unsafe { S::store(p, v) };
    }
    let lanes = to_array::<S>(v);
    // SAFETY: the caller vouches for p[0..n]; lanes has 16 elements.
    unsafe { std::ptr::copy_nonoverlapping(lanes.as_ptr(), p, n) }
}

#[inline(always)]
fn to_array<S: Simd>(v: S::V) -> [f32; LANES] {
    let mut lanes = [0.0; LANES];
    // SAFETY: lanes has 16 elements; a value of S::V exists only inside code compiled for S.
    unsafe { S::store(lanes.as_mut_ptr(), v) };
    lanes
}

/// Sum over lanes, in the fixed order ((0+8)+(4+12))+((2+10)+(6+14)) + the same for odd lanes.
///
/// # Safety
/// As [`Simd`].
#[inline(always)]
pub unsafe fn sum<S: Simd>(v: S::V) -> f32 {
    let mut x = to_array::<S>(v);
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            x[i] += x[i + half];
        }
        half /= 2;
    }
    x[0]
}

/// Largest lane; a NaN lane may be lost or kept.
///
/// # Safety
/// As [`Simd`].
#[inline(always)]
pub unsafe fn maximum<S: Simd>(v: S::V) -> f32 {
    let mut x = to_array::<S>(v);
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            x[i] = if x[i] > x[i + half] { x[i] } else { x[i + half] };
        }
        half /= 2;
    }
    x[0]
}

/// e^x to about one unit in the last place: subnormal results kept, overflow to infinity, NaN kept, exp(0) = 1 exactly.
///
/// x = n ln 2 + r with |r| <= ln 2 / 2, then the Taylor series to r^7 (its remainder is under 2^-27) times 2^n.
///
/// # Safety
/// As [`Simd`].
#[inline(always)]
pub unsafe fn exp<S: Simd>(x: S::V) -> S::V {
    const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23: adding it leaves an integer in the low mantissa bits
    // ln 2 in two parts; n times the first is exact for |n| < 2^14.
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    const COEFFICIENTS: [f32; 6] = [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0];
    const ZERO_BELOW: f32 = -104.0; // e^-104 is under half of the smallest subnormal
    // SAFETY: the caller is inside code compiled for S; no memory is touched.
    unsafe {
        // Clamped where the result is already 0 or infinity; the operand order keeps NaN.
        let x = S::min(S::splat(89.0), S::max(S::splat(-105.0), x));
        let round = S::splat(ROUND);
        let n = S::sub(S::fma(x, S::splat(std::f32::consts::LOG2_E), round), round);
        let r = S::fma(n, S::splat(-LN2_LOW), S::fma(n, S::splat(-LN2_HIGH), x));
        let mut p = S::splat(1.0 / 5040.0);
        for c in COEFFICIENTS {
            p = S::fma(p, r, S::splat(c));
        }
        // A result that underflows costs the processor an assist, a hundred times the rest: hidden keys would all pay it.
        let (zero, below) = (S::splat(0.0), S::splat(ZERO_BELOW));
        let n = S::select_lt(x, below, zero, n);
        // e^r = 1 + r p: the last product is small, so its rounding barely shows.
        S::select_lt(x, below, zero, S::ldexp(S::fma(p, r, S::splat(1.0)), n))
    }
}

/// tanh x to about two units in the last place; NaN kept, +-1 at infinity, the sign of zero kept.
///
/// Below 0.625 an odd polynomial (coefficients fitted to x^-3 (tanh x - x)), above it 1 - 2 / (e^2x + 1).
///
/// # Safety
/// As [`Simd`].
#[inline(always)]
pub unsafe fn tanh<S: Simd>(x: S::V) -> S::V {
    const COEFFICIENTS: [f32; 5] = [-0.008_171_788, 0.021_698_21, -0.053_946_253, 0.133_332_01, -0.333_333_3];
    // SAFETY: the caller is inside code compiled for S; no memory is touched.
    unsafe {
        let (a, z) = (S::abs(x), S::mul(x, x));
        let mut p = S::splat(0.002_138_226_3);
        for c in COEFFICIENTS {
            p = S::fma(p, z, S::splat(c));
        }
        let small = S::fma(S::mul(p, z), x, x);
        let e = exp::<S>(S::add(a, a));
        let large = S::sub(S::splat(1.0), S::div(S::splat(2.0), S::add(e, S::splat(1.0))));
        S::copysign(S::select_lt(a, S::splat(0.625), small, large), x)
    }
}

/// Plain Rust on sixteen lanes; the compiler vectorises it for the baseline instruction set.
#[derive(Clone, Copy)]
pub struct Portable;

macro_rules! lanes {
    ($i:ident => $e:expr) => {{
        let mut out = [0.0f32; LANES];
        for ($i, o) in out.iter_mut().enumerate() {
            *o = $e;
        }
        out
    }};
}

impl Simd for Portable {
    type V = [f32; LANES];
    const REGISTERS: Registers = Registers::One;

    #[inline(never)]
    unsafe fn call<J: Job>(job: J) {
        // SAFETY: forwarded; there is no instruction set to have.
        unsafe { job.run::<Portable>() }
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::V {
        [x; LANES]
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self::V {
        // SAFETY: the caller vouches for 16 readable elements.
        unsafe { p.cast::<[f32; LANES]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: Self::V) {
        // SAFETY: the caller vouches for 16 writable elements.
        unsafe { p.cast::<[f32; LANES]>().write_unaligned(v) }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Self::V {
        // SAFETY: the caller vouches for 16 readable elements.
        let h = unsafe { p.cast::<[u16; LANES]>().read_unaligned() };
        lanes!(i => f16_to_f32(h[i]))
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut u16, v: Self::V) {
        let h = v.map(f32_to_f16);
        // SAFETY: the caller vouches for 16 writable elements.
        unsafe { p.cast::<[u16; LANES]>().write_unaligned(h) }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Self::V {
        // SAFETY: the caller vouches for 16 readable elements.
        let h = unsafe { p.cast::<[u16; LANES]>().read_unaligned() };
        lanes!(i => f32::from_bits((h[i] as u32) << 16))
    }
    #[inline(always)]
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V {
        lanes!(i => a[i] + b[i])
    }
    #[inline(always)]
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V {
        lanes!(i => a[i] - b[i])
    }
    #[inline(always)]
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V {
        lanes!(i => a[i] * b[i])
    }
    #[inline(always)]
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V {
        lanes!(i => a[i] / b[i])
    }
    #[inline(always)]
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        lanes!(i => a[i].mul_add(b[i], c[i]))
    }
    #[inline(always)]
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V {
        lanes!(i => if a[i] > b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    unsafe fn min(a: Self::V, b: Self::V) -> Self::V {
        lanes!(i => if a[i] < b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    unsafe fn abs(a: Self::V) -> Self::V {
        lanes!(i => a[i].abs())
    }
    #[inline(always)]
    unsafe fn copysign(a: Self::V, s: Self::V) -> Self::V {
        lanes!(i => a[i].copysign(s[i]))
    }
    #[inline(always)]
    unsafe fn select_lt(a: Self::V, b: Self::V, x: Self::V, y: Self::V) -> Self::V {
        lanes!(i => if a[i] < b[i] { x[i] } else { y[i] })
    }
    #[inline(always)]
    unsafe fn ldexp(p: Self::V, n: Self::V) -> Self::V {
        lanes!(i => {
            let n = n[i] as i32;
            let first = n >> 1;
            p[i] * power_of_two(first) * power_of_two(n - first)
        })
    }
    #[inline(always)]
    unsafe fn swap_pairs(a: Self::V) -> Self::V {
        lanes!(i => a[i ^ 1])
    }
}

/// 2^n for n in -126..=127.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits(((n + 127) as u32) << 23)
}

/// An IEEE half as f32, exactly (a NaN stays a NaN).
#[inline(always)]
pub fn f16_to_f32(h: u16) -> f32 {
    let magnitude = ((h & 0x7fff) as u32) << 13;
    // Rebiasing the exponent by a product also normalises subnormals; infinities and NaN keep the top exponent.
    let scaled = f32::from_bits(magnitude) * f32::from_bits(0x7780_0000);
    let special = if magnitude >= 0x0f80_0000 { 0x7f80_0000 } else { 0 };
    f32::from_bits(scaled.to_bits() | special | ((h & 0x8000) as u32) << 16)
}

/// f32 to an IEEE half, to nearest even, subnormals kept.
#[inline(always)]
pub fn f32_to_f16(x: f32) -> u16 {
    half::f16::from_f32_const(x).to_bits()
}

#[cfg(target_arch = "x86_64")]
#[path = "simd_x86.rs"]
pub(crate) mod x86;

#[cfg(target_arch = "aarch64")]
#[path = "simd_neon.rs"]
pub(crate) mod neon;

/// Defines `fn name(isa) -> unsafe fn(args)`: the instances of a generic body, one for each instruction set.
///
/// The returned function is unsafe as the body is; the instruction set itself has been checked against the processor.
macro_rules! isa_kernel {
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? = $body:path) => {
        $(#[$meta])*
        $vis fn $name(isa: $crate::cpu::isa::Isa) -> unsafe fn($($ty),*) $(-> $ret)? {
            use $crate::cpu::{isa::Isa, simd};
            unsafe fn portable($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: the caller keeps the contract of the body; the portable variant needs no feature.
                unsafe { $body(simd::Portable, $($arg),*) }
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn avx2($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: the caller keeps the contract of the body; this function is compiled for the set.
                unsafe { $body(simd::x86::Avx2, $($arg),*) }
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
            unsafe fn avx512($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: the caller keeps the contract of the body; this function is compiled for the set.
                unsafe { $body(simd::x86::Avx512, $($arg),*) }
            }
            #[cfg(target_arch = "aarch64")]
            #[target_feature(enable = "neon")]
            unsafe fn neon($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: the caller keeps the contract of the body; this function is compiled for the set.
                unsafe { $body(simd::neon::Neon, $($arg),*) }
            }
            simd::require(isa);
            match isa {
                Isa::Portable => portable,
                #[cfg(target_arch = "x86_64")]
                Isa::Vnni | Isa::Amx if simd::has_avx512() => avx512,
                // The same bits at half the width, should a processor have the VNNI dot product and not all of AVX-512.
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 | Isa::Vnni | Isa::Amx => avx2,
                #[cfg(target_arch = "aarch64")]
                Isa::Neon => neon,
                _ => unreachable!("{isa:?} was found available on another architecture"),
            }
        }
    };
}
pub(crate) use isa_kernel;

/// Whether the 512-bit kernels run here.
#[cfg(target_arch = "x86_64")]
pub(crate) fn has_avx512() -> bool {
    std::arch::is_x86_feature_detected!("avx512f")
        && std::arch::is_x86_feature_detected!("avx512bw")
        && std::arch::is_x86_feature_detected!("avx512vl")
        && std::arch::is_x86_feature_detected!("avx512dq")
}

/// Panics unless this processor has `isa`: selecting a kernel it cannot run is a bug of the caller.
pub(crate) fn require(isa: Isa) {
    assert!(isa.is_supported(), "kernels for {isa:?} were asked for on a processor without it");
}

/// A mutable buffer that several tasks write at once, each its own elements.
#[derive(Clone, Copy)]
pub struct Shared<'a, T> {
    ptr: *mut T,
    len: usize,
    life: std::marker::PhantomData<&'a mut [T]>,
}

// SAFETY: the wrapper only hands out a pointer; kernels that write through it are unsafe functions whose contract
// is that concurrent tasks have disjoint ranges.
unsafe impl<T: Send> Send for Shared<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Shared<'_, T> {}

impl<'a, T> Shared<'a, T> {
    /// Borrows `slice` for as long as the tasks run.
    pub fn new(slice: &'a mut [T]) -> Self {
        Shared { ptr: slice.as_mut_ptr(), len: slice.len(), life: std::marker::PhantomData }
    }

    /// Wraps a buffer that is owned elsewhere.
    ///
    /// # Safety
    /// `ptr[0..len]` is valid for reads and writes, by nobody else but the tasks, for the lifetime `'a`.
    pub unsafe fn from_raw(ptr: *mut T, len: usize) -> Self {
        Shared { ptr, len, life: std::marker::PhantomData }
    }

    /// Elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Address of element `offset`; `count` elements from it are inside the buffer.
    #[inline(always)]
    pub(crate) fn at(&self, offset: usize, count: usize) -> *mut T {
        assert!(
            offset <= self.len && count <= self.len - offset,
            "elements {offset}..{offset}+{count} of a buffer of {}",
            self.len
        );
        self.ptr.wrapping_add(offset)
    }
}

#[cfg(test)]
#[path = "simd_tests.rs"]
mod tests;
