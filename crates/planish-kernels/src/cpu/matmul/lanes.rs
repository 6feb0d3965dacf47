//! The few vector operations that the matmul bodies are written in: eight lanes of 32 bits, one row of weights each.

/// Eight 32-bit lanes of one instruction set.
///
/// # Safety
/// Every method needs the implementor's instruction set, and every pointer must be readable for the vector's extent.
pub(crate) trait Lanes: Copy + 'static {
    /// 32 bytes of integers.
    type I: Copy;
    /// Eight f32.
    type F: Copy;
    /// A weight operand made ready for many dot products.
    type W: Copy;
    /// A running sum of dot products, not yet eight i32.
    type R: Copy;

    /// The largest magnitude that an accumulator inside `R` can hold.
    const R_LIMIT: i64;

    unsafe fn zero_i() -> Self::I;
    unsafe fn zero_r() -> Self::R;
    unsafe fn zero_w() -> Self::W;
    unsafe fn zero_f() -> Self::F;
    /// Loads 32 bytes.
    unsafe fn load_i(p: *const u8) -> Self::I;
    unsafe fn splat_u8(x: u8) -> Self::I;
    unsafe fn and(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn or(a: Self::I, b: Self::I) -> Self::I;
    /// Shifts 16-bit (or wider) lanes; callers mask off what crosses a byte. `n` is a constant after inlining.
    unsafe fn shr(a: Self::I, n: u32) -> Self::I;
    unsafe fn shl(a: Self::I, n: u32) -> Self::I;
    /// Byte `4 lane + b` of every lane, widened to i32 with or without its sign.
    unsafe fn widen(a: Self::I, b: u32, signed: bool) -> Self::I;
    /// IQ4 levels of bytes 0..16.
    unsafe fn iq4_levels(codes: Self::I) -> Self::I;
    /// Eight copies of the four bytes at `p`.
    unsafe fn splat_quad(p: *const i8) -> Self::I;
    unsafe fn prepare(w: Self::I, signed: bool) -> Self::W;
    /// Dot products of four weight bytes and four activation bytes a lane.
    unsafe fn dot(w: Self::W, a: Self::I, signed: bool) -> Self::R;
    unsafe fn dot_add(r: Self::R, w: Self::W, a: Self::I, signed: bool) -> Self::R;
    /// The run's sum as eight i32.
    unsafe fn finish(r: Self::R) -> Self::I;
    unsafe fn add_i32(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn to_f32(a: Self::I) -> Self::F;

    unsafe fn load_f(p: *const f32) -> Self::F;
    unsafe fn store_f(p: *mut f32, a: Self::F);
    unsafe fn splat_f(x: f32) -> Self::F;
    /// Eight f16 as f32, exactly.
    unsafe fn load_f16(p: *const u8) -> Self::F;
    /// Eight bf16 as f32, exactly.
    unsafe fn load_bf16(p: *const u8) -> Self::F;
    /// Eight bytes as i32.
    unsafe fn load_bytes(p: *const u8, signed: bool) -> Self::I;
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn neg(a: Self::F) -> Self::F;
    /// `a·b + c` with one rounding.
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// Asks for the cache line at `p`, which may lie outside any buffer.
    unsafe fn prefetch(p: *const u8);
}

/// Repeats a block with the name bound to the constants 0 to 7, so that what depends on it is decided by the compiler.
///
/// The optimiser would unroll most of these loops by itself, but not the ones that matter most.
macro_rules! unroll8 {
    ($i:ident => $body:block) => {
        $crate::cpu::matmul::lanes::unroll8!(@ $i $body 0 1 2 3 4 5 6 7)
    };
    (@ $i:ident $body:block $($n:literal)*) => {
        $({
            const $i: usize = $n;
            $body
        })*
    };
}
pub(crate) use unroll8;

/// The same with 0 to 15.
#[cfg(target_arch = "x86_64")]
macro_rules! unroll16 {
    ($i:ident => $body:block) => {
        $crate::cpu::matmul::lanes::unroll8!(@ $i $body 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    };
}
#[cfg(target_arch = "x86_64")]
pub(crate) use unroll16;

/// Defines `Lanes` methods whose bodies are single expressions in intrinsics.
macro_rules! lane_ops {
    ($(fn $name:ident($($arg:ident: $t:ty),*) -> $r:ty = $body:expr;)*) => {
        $(
            #[inline(always)]
            #[allow(unused_unsafe)]
            unsafe fn $name($($arg: $t),*) -> $r {
                // SAFETY: the contract of `Lanes`: the caller has the instruction set and readable pointers.
                unsafe { $body }
            }
        )*
    };
}
pub(crate) use lane_ops;

/// The lanes as arrays: slow, obvious, and right on every machine.
#[derive(Clone, Copy)]
pub(crate) struct PortableLanes;

#[inline(always)]
fn map<T: Copy, U>(a: [T; 8], f: impl Fn(T) -> U) -> [U; 8] {
    std::array::from_fn(|i| f(a[i]))
}

#[inline(always)]
fn zip<T: Copy, U>(a: [T; 8], b: [T; 8], f: impl Fn(T, T) -> U) -> [U; 8] {
    std::array::from_fn(|i| f(a[i], b[i]))
}

#[inline(always)]
fn quad_dot(w: u32, a: u32, signed: bool) -> i32 {
    let (w, a) = (w.to_le_bytes(), a.to_le_bytes());
    let level = |b: u8| if signed { i32::from(b as i8) } else { i32::from(b) };
    (0..4).map(|i| level(w[i]) * i32::from(a[i] as i8)).sum()
}

impl Lanes for PortableLanes {
    type I = [u32; 8];
    type F = [f32; 8];
    type W = [u32; 8];
    type R = [i32; 8];

    const R_LIMIT: i64 = i32::MAX as i64;

    lane_ops! {
        fn zero_i() -> [u32; 8] = [0; 8];
        fn zero_r() -> [i32; 8] = [0; 8];
        fn zero_w() -> [u32; 8] = [0; 8];
        fn zero_f() -> [f32; 8] = [0.0; 8];
        fn load_i(p: *const u8) -> [u32; 8] = map(p.cast::<[u32; 8]>().read_unaligned(), u32::from_le);
        fn splat_u8(x: u8) -> [u32; 8] = [u32::from_le_bytes([x; 4]); 8];
        fn and(a: [u32; 8], b: [u32; 8]) -> [u32; 8] = zip(a, b, |x, y| x & y);
        fn or(a: [u32; 8], b: [u32; 8]) -> [u32; 8] = zip(a, b, |x, y| x | y);
        fn shr(a: [u32; 8], n: u32) -> [u32; 8] = map(a, |x| x >> n);
        fn shl(a: [u32; 8], n: u32) -> [u32; 8] = map(a, |x| x << n);
        fn widen(a: [u32; 8], b: u32, signed: bool) -> [u32; 8] = map(a, |x| {
            let byte = x.to_le_bytes()[b as usize];
            if signed { i32::from(byte as i8) as u32 } else { u32::from(byte) }
        });
        fn iq4_levels(codes: [u32; 8]) -> [u32; 8] = map(codes, |x| {
            u32::from_le_bytes(x.to_le_bytes().map(|b| crate::quant::IQ4_LEVELS[usize::from(b)] as u8))
        });
        fn splat_quad(p: *const i8) -> [u32; 8] = [u32::from_le(p.cast::<u32>().read_unaligned()); 8];
        fn prepare(w: [u32; 8], _signed: bool) -> [u32; 8] = w;
        fn dot(w: [u32; 8], a: [u32; 8], signed: bool) -> [i32; 8] = zip(w, a, |w, a| quad_dot(w, a, signed));
        fn dot_add(r: [i32; 8], w: [u32; 8], a: [u32; 8], signed: bool) -> [i32; 8] =
            zip(r, Self::dot(w, a, signed), |x, y| x + y);
        fn finish(r: [i32; 8]) -> [u32; 8] = map(r, |x| x as u32);
        fn add_i32(a: [u32; 8], b: [u32; 8]) -> [u32; 8] = zip(a, b, u32::wrapping_add);
        fn to_f32(a: [u32; 8]) -> [f32; 8] = map(a, |x| x as i32 as f32);
        fn load_f(p: *const f32) -> [f32; 8] = p.cast::<[f32; 8]>().read_unaligned();
        fn store_f(p: *mut f32, a: [f32; 8]) -> () = p.cast::<[f32; 8]>().write_unaligned(a);
        fn splat_f(x: f32) -> [f32; 8] = [x; 8];
        fn load_f16(p: *const u8) -> [f32; 8] =
            map(p.cast::<[u16; 8]>().read_unaligned(), |b| half::f16::from_bits(u16::from_le(b)).to_f32());
        fn load_bf16(p: *const u8) -> [f32; 8] =
            map(p.cast::<[u16; 8]>().read_unaligned(), |b| f32::from_bits(u32::from(u16::from_le(b)) << 16));
        fn load_bytes(p: *const u8, signed: bool) -> [u32; 8] = map(p.cast::<[u8; 8]>().read(), |b| {
            if signed { i32::from(b as i8) as u32 } else { u32::from(b) }
        });
        fn mul(a: [f32; 8], b: [f32; 8]) -> [f32; 8] = zip(a, b, |x, y| x * y);
        fn add(a: [f32; 8], b: [f32; 8]) -> [f32; 8] = zip(a, b, |x, y| x + y);
        fn neg(a: [f32; 8]) -> [f32; 8] = map(a, |x| -x);
        fn fma(a: [f32; 8], b: [f32; 8], c: [f32; 8]) -> [f32; 8] =
            std::array::from_fn(|i| a[i].mul_add(b[i], c[i]));
        fn prefetch(_p: *const u8) -> () = ();
    }
}
