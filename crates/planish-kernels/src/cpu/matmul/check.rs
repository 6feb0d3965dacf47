//! A quick proof that an instruction set's kernels work on this machine, before the first of them is used.

use super::{BLOCK, BlockMeta, Class, Knobs, Layout, MatmulArgs, Scratch, Store, Variant, X, quantize, variants};
use crate::Error;
use crate::cpu::isa::Isa;
use crate::data::Rng;

/// Rows and columns of the check: odd edges for every tile shape.
const ROWS: usize = 37;
const COLS: usize = 512;

/// Tokens of the check: every tile shape whole, and an odd edge; few, as the portable kernels are slow.
const fn tokens(class: Class) -> usize {
    match class {
        Class::F32 => 7,
        Class::Int8 => 23,
    }
}

/// Compares every kernel of `isa` with the portable one on random weights; the bits must be equal.
pub fn self_check(isa: Isa) -> Result<(), Error> {
    if !isa.is_supported() {
        return Err(Error::new(format!("self-check: this processor has no {isa}")));
    }
    let mut rng = Rng::new(1);
    let x: Vec<f32> = (0..tokens(Class::Int8) * COLS).map(|_| 2.0 * rng.unit()).collect();
    for record in &crate::quant::TYPES {
        let layout = Layout::of(record.weight, ROWS, COLS)?;
        let mut source: Vec<u8> = (0..ROWS * layout.row_bytes()).map(|_| rng.bits() as u8).collect();
        if record.weight.is_float() {
            tame_floats(record.block_bytes, &mut source);
        }
        let mut packed = vec![0; layout.packed_bytes()];
        layout.pack_rows(&source, 0, &mut packed);
        for class in [Class::F32, Class::Int8] {
            check_class(isa, class, layout, &packed, &x[..tokens(class) * COLS])?;
        }
    }
    Ok(())
}

/// Clears the top exponent bit so that no sum is infinite.
fn tame_floats(bytes: usize, source: &mut [u8]) {
    for element in source.chunks_exact_mut(bytes) {
        element[bytes - 1] &= 0xbf;
    }
}

fn check_class(isa: Isa, class: Class, layout: Layout, packed: &[u8], x: &[f32]) -> Result<(), Error> {
    let of = |isa: Isa| variants().iter().filter(move |v| (v.isa, v.class, v.weight) == (isa, class, layout.weight()));
    let Some(portable) = of(Isa::Portable).next() else { return Ok(()) };
    let expected = outputs(portable, layout, packed, x)?;
    for variant in of(isa) {
        let got = outputs(variant, layout, packed, x)?;
        let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
        if let Some(i) = expected.iter().zip(&got).position(|pair| !same(pair)) {
            return Err(Error::new(format!(
                "self-check: {} gives {:e} for row {} of token {}, the portable kernel {:e}",
                variant.name(),
                got[i],
                i % ROWS,
                i / ROWS,
                expected[i]
            ))
            .with_hint("choose another instruction set"));
        }
    }
    Ok(())
}

fn outputs(variant: &Variant, layout: Layout, packed: &[u8], x: &[f32]) -> Result<Vec<f32>, Error> {
    let (mut q, mut meta) = (vec![0; x.len()], vec![BlockMeta::default(); x.len() / BLOCK]);
    quantize(variant.isa, x, &mut q, &mut meta);
    let mut out = vec![f32::NAN; tokens(variant.class) * ROWS];
    let args = MatmulArgs {
        layout,
        weights: packed,
        x: if variant.class == Class::F32 { X::F32(x) } else { X::Int8 { q: &q, meta: &meta } },
        tokens: tokens(variant.class),
        out: out.as_mut_ptr(),
        out_stride: ROWS,
        bias: None,
        store: Store::Set,
        knobs: Knobs::default(),
    };
    args.check(variant)?;
    let mut scratch = Scratch::new(variant.scratch_bytes(&layout, &args.knobs, ROWS));
    // SAFETY: the check passed and `out` holds `ROWS` for each token, touched by this thread only.
    unsafe { (variant.run)(&args, 0..ROWS, scratch.bytes()) };
    Ok(out)
}
