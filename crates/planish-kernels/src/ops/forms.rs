//! The forms in which an op writes activations: f32 rows, 8-bit blocks, or both.

use planish_device::Call;

use crate::cpu::isa::Isa;
use crate::cpu::matmul::{BlockMeta, quantize};
use crate::op::{Arg, Dtype, Expected, Shape};
use crate::reference::Shaken;

/// Which forms are written; their slices follow each other: f32, then codes, then block metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forms {
    /// f32 rows.
    pub f32: bool,
    /// 8-bit blocks.
    pub int8: bool,
}

/// The forms that the field `forms` of a shape names.
pub fn of(shape: &Shape) -> Forms {
    let name = shape.name("forms");
    Forms { f32: name != "int8", int8: name != "f32" }
}

/// Checks the field `forms` of a shape read from outside; 8-bit blocks need whole blocks.
pub fn check(shape: &Shape) -> Result<(), String> {
    match shape.name("forms") {
        "f32" => Ok(()),
        "int8" | "both" if shape.size("cols").is_multiple_of(32) => Ok(()),
        "int8" | "both" => Err(format!("{shape}: columns are not a multiple of 32")),
        other => Err(format!("{shape}: forms {other} is none of f32, int8, both")),
    }
}

/// Where to write row `row` in f32: the f32 form, or this thread's scratch when there is none.
///
/// # Safety
/// Argument `first` and following are the forms, and no other thread has this row.
pub unsafe fn target<'a>(call: &Call<'a>, first: usize, forms: Forms, row: usize, cols: usize) -> &'a mut [f32] {
    // SAFETY: forwarded; scratch belongs to this thread.
    unsafe { if forms.f32 { call.args[first].write(row * cols, cols) } else { call.scratch.write(0, cols) } }
}

/// Rounds the row that `target` gave to 8-bit blocks where that form is wanted.
///
/// # Safety
/// As `target`.
pub unsafe fn finish(call: &Call<'_>, first: usize, forms: Forms, isa: Isa, row: usize, cols: usize) {
    if forms.int8 {
        // SAFETY: forwarded.
        unsafe { round(call, first + usize::from(forms.f32), isa, row, target(call, first, forms, row, cols)) }
    }
}

/// Writes `x` as row `row` of the 8-bit form in arguments `codes` and the next.
///
/// # Safety
/// They are that form, and no other thread has this row.
pub unsafe fn round(call: &Call<'_>, codes: usize, isa: Isa, row: usize, x: &[f32]) {
    // SAFETY: forwarded.
    unsafe { round_at(call, codes, isa, row * x.len(), x) }
}

/// Writes `x`, whole blocks, from element `at` of the 8-bit form on.
///
/// # Safety
/// As `round`, for these elements.
pub unsafe fn round_at(call: &Call<'_>, codes: usize, isa: Isa, at: usize, x: &[f32]) {
    // SAFETY: forwarded.
    unsafe {
        let q = call.args[codes].write::<i8>(at, x.len());
        let meta = call.args[codes + 1].write::<BlockMeta>(at / 32, x.len() / 32);
        quantize(isa, x, q, meta);
    }
}

/// What the forms must hold, given the f64 values and those of plain f32 arithmetic, with other draws of it.
///
/// A code may differ by one where the exact value lies within the f32 bound of a rounding boundary, and must be exact
/// elsewhere; metadata follows from codes and scale.
pub fn expected(forms: Forms, y64: &[f64], (y32, draws): (&[f32], &[Vec<Shaken>])) -> Vec<Arg> {
    let f32 = Expected::drawn(Dtype::F32, y64.to_vec(), y32, draws);
    let mut codes = Expected { dtype: Dtype::I8, values: Vec::new(), bounds: Vec::new(), untouched: 0 };
    let mut meta = Expected { dtype: Dtype::Block, values: Vec::new(), bounds: Vec::new(), untouched: 0 };
    if forms.int8 {
        for (block, bounds) in y64.as_chunks::<32>().0.iter().zip(f32.bounds.as_chunks::<32>().0) {
            expected_block(block, bounds, &mut codes, &mut meta);
        }
    }
    let f32 = forms.f32.then_some(Arg::Out(f32));
    let int8 = forms.int8.then_some([Arg::Out(codes), Arg::Out(meta)]);
    f32.into_iter().chain(int8.into_iter().flatten()).collect()
}

fn expected_block(block: &[f64; 32], bounds: &[f64; 32], codes: &mut Expected, meta: &mut Expected) {
    let slack = bounds.iter().copied().fold(0.0, f64::max);
    let d = block.iter().fold(0f64, |m, v| m.max(v.abs())) / 127.0;
    let (mut halves, mut loose) = ([0f64; 2], [0f64; 2]);
    for (i, v) in block.iter().enumerate() {
        let exact = if d > 0.0 { v / d } else { 0.0 };
        let tie = d > 0.0 && (exact.abs().fract() - 0.5).abs() <= 2.0 * slack / d + 1e-4;
        codes.values.push(exact.round_ties_even());
        codes.bounds.push(f64::from(u8::from(tie)));
        halves[i / 16] += exact.round_ties_even();
        loose[i / 16] += f64::from(u8::from(tie));
    }
    let (sum, off) = (halves[0] + halves[1], loose[0] + loose[1]);
    let d_off = slack / 127.0 + 3e-7 * d;
    meta.values.extend([d, d * sum, sum, halves[0], halves[1]]);
    meta.bounds.extend([
        d_off,
        d_off * sum.abs() + (d + d_off) * off + 1e-6 * (d * sum).abs(),
        off,
        loose[0],
        loose[1],
    ]);
}
