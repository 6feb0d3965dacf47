//! Every kernel against float64, against every other kernel of its class, and against its own fences.

use super::*;
use crate::cpu::isa::Isa;
use crate::quant::{TYPES, WeightType, codec, dequantize};
use std::io::Write;

/// A small generator (xorshift) so that a failure repeats.
struct Random(u64);

impl Random {
    fn bits(&mut self) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 32) as u32
    }

    /// Roughly normal: a sum of uniforms.
    fn normal(&mut self) -> f32 {
        (0..6).map(|_| self.bits() as f32 / 2f32.powi(31) - 1.0).sum::<f32>() * 0.7
    }
}

/// f16 bits of scales that go wrong easily: zeros, subnormals, ordinary and large numbers of both signs.
const SCALES: [u16; 10] = [0, 0x8000, 0x0001, 0x8001, 0x03ff, 0x2e66, 0xae66, 0x3c00, 0xc123, 0x6400];

/// Random rows of a type whose f16 fields come from `scales`.
fn source(weight: WeightType, rows: usize, cols: usize, scales: &[u16], random: &mut Random) -> Vec<u8> {
    let count = rows * weight.row_bytes(cols).expect("whole blocks");
    with_scales(weight, (0..count).map(|_| random.bits() as u8).collect(), scales, random)
}

/// Whole blocks whose f16 fields are replaced by some of `scales`.
fn with_scales(weight: WeightType, mut bytes: Vec<u8>, scales: &[u16], random: &mut Random) -> Vec<u8> {
    let record = weight.record();
    let halves: &[usize] = match weight {
        WeightType::Q4_1 | WeightType::Q5_1 | WeightType::Q4_K | WeightType::Q5_K => &[0, 2],
        WeightType::Q2_K => &[80, 82],
        WeightType::Q3_K => &[108],
        WeightType::Q6_K => &[208],
        WeightType::F32 | WeightType::F16 | WeightType::BF16 => &[],
        _ => &[0],
    };
    for block in bytes.chunks_exact_mut(record.block_bytes) {
        for &at in halves {
            let scale = scales[random.bits() as usize % scales.len()];
            block[at..at + 2].copy_from_slice(&scale.to_le_bytes());
        }
        if weight.is_float() {
            // An exponent field near one, so that products with huge activations stay finite.
            let last = record.block_bytes - 1;
            block[last] = (block[last] & 0x83) | 0x38;
        }
    }
    bytes
}

/// Activations by row: ordinary, huge, with zero blocks, tiny, one spike.
fn activations(tokens: usize, cols: usize, random: &mut Random) -> Vec<f32> {
    let mut x: Vec<f32> = (0..tokens * cols).map(|_| random.normal()).collect();
    for (t, row) in x.chunks_exact_mut(cols).enumerate() {
        match t % 5 {
            1 => row.iter_mut().for_each(|v| *v *= 1e25),
            2 => row.iter_mut().take(32).for_each(|v| *v = 0.0),
            3 => row.iter_mut().for_each(|v| *v *= 1e-20),
            4 => row[cols / 2] = 1e6,
            _ => {}
        }
    }
    x
}

/// One problem with its float64 answer for a class.
struct Problem {
    layout: Layout,
    packed: Vec<u8>,
    tokens: usize,
    x: Vec<f32>,
    q: Vec<i8>,
    meta: Vec<BlockMeta>,
    weights: Vec<f64>,
}

impl Problem {
    fn new(weight: WeightType, rows: usize, cols: usize, tokens: usize, scales: &[u16]) -> Problem {
        let mut random = Random(0x1234_5678_9abc_def1 + rows as u64 * 77 + cols as u64);
        let layout = Layout::of(weight, rows, cols).expect("whole blocks");
        let bytes = source(weight, rows, cols, scales, &mut random);
        let x = activations(tokens, cols, &mut random);
        Problem::of(layout, &bytes, x)
    }

    /// Activations against rows as they lie in a file.
    fn of(layout: Layout, bytes: &[u8], x: Vec<f32>) -> Problem {
        let (rows, cols) = (layout.rows(), layout.cols());
        let mut packed = vec![0xaa; layout.packed_bytes()];
        layout.pack_rows(bytes, 0, &mut packed);
        let mut weights = vec![0.0; rows * cols];
        dequantize(layout.weight(), bytes, &mut weights);
        let (mut q, mut meta) = (vec![0; x.len()], vec![BlockMeta::default(); x.len() / BLOCK]);
        if cols.is_multiple_of(BLOCK) {
            quantize(Isa::Portable, &x, &mut q, &mut meta);
        }
        Problem { layout, packed, tokens: x.len() / cols, x, q, meta, weights }
    }

    /// The activations that a class sees, in float64.
    fn seen(&self, class: Class) -> Vec<f64> {
        match class {
            Class::F32 => self.x.iter().map(|&v| f64::from(v)).collect(),
            Class::Int8 => {
                self.q.iter().enumerate().map(|(i, &q)| f64::from(q) * f64::from(self.meta[i / BLOCK].d)).collect()
            }
        }
    }

    /// For each output the exact sum and the sum of magnitudes.
    fn exact(&self, x: &[f64]) -> Vec<(f64, f64)> {
        let cols = self.layout.cols();
        let dot =
            |x: &[f64], w: &[f64]| x.iter().zip(w).fold((0.0, 0.0), |(s, m), (x, w)| (s + x * w, m + (x * w).abs()));
        x.chunks_exact(cols).flat_map(|x| self.weights.chunks_exact(cols).map(move |w| dot(x, w))).collect()
    }

    /// What `variant` writes into `out` for `rows` of the tokens from `first` on.
    fn run(&self, variant: &Variant, first: usize, tokens: usize, rows: std::ops::Range<usize>, options: Options) {
        let cols = self.layout.cols();
        let (from, to) = (first * cols, (first + tokens) * cols);
        assert!(options.out.len() >= tokens * options.stride);
        let args = MatmulArgs {
            layout: self.layout,
            weights: &self.packed,
            x: match variant.class {
                Class::F32 => X::F32(&self.x[from..to]),
                Class::Int8 => X::Int8 { q: &self.q[from..to], meta: &self.meta[from / BLOCK..to / BLOCK] },
            },
            tokens,
            out: options.out.as_mut_ptr(),
            out_stride: options.stride,
            bias: options.bias,
            store: options.store,
            knobs: Knobs { prefetch: 512, row_block: 16 },
        };
        args.check(variant).expect("legal arguments");
        let mut scratch = Scratch::new(variant.scratch_bytes(&args.layout, &args.knobs, rows.len()));
        // SAFETY: checked, and `out` was found long enough.
        unsafe { (variant.run)(&args, rows, scratch.bytes()) };
    }

    /// All outputs of `variant`, all tokens at once.
    fn outputs(&self, variant: &Variant) -> Vec<f32> {
        let rows = self.layout.rows();
        let mut out = vec![f32::NAN; self.tokens * rows];
        self.run(
            variant,
            0,
            self.tokens,
            0..rows,
            Options { out: &mut out, stride: rows, bias: None, store: Store::Set },
        );
        out
    }
}

struct Options<'a> {
    out: &'a mut [f32],
    stride: usize,
    bias: Option<&'a [f32]>,
    store: Store,
}

fn runnable(weight: WeightType, class: Class) -> impl Iterator<Item = &'static Variant> {
    variants().iter().filter(move |v| v.weight == weight && v.class == class && v.isa.is_supported())
}

/// Columns to try: one block, a few, and for floats a tail.
fn columns(weight: WeightType) -> Vec<usize> {
    match weight.record().block_elements {
        1 => vec![1, 16, 77],
        n => vec![n, 3 * n],
    }
}

#[track_caller]
fn check(weight: WeightType, class: Class, rows: usize, cols: usize, tokens: usize) {
    if weight.is_float() && class == Class::Int8 {
        assert_eq!(runnable(weight, class).count(), 0, "float weights have no int8 class");
        return;
    }
    judge(&Problem::new(weight, rows, cols, tokens, &SCALES), class);
}

/// Every kernel on `problem`: near the float64 answer, and all with the same bits.
#[track_caller]
fn judge(problem: &Problem, class: Class) {
    let (weight, rows, cols) = (problem.layout.weight(), problem.layout.rows(), problem.layout.cols());
    let tokens = problem.tokens;
    let exact = problem.exact(&problem.seen(class));
    // The class contracts: f32 within 1e-5 of the magnitudes; int8 within 1e-6 given its own activations.
    let bound = if class == Class::F32 { 1e-5 } else { 1e-6 };
    let mut first: Option<Vec<f32>> = None;
    for variant in runnable(weight, class) {
        let name = format!("{} {rows} × {cols}, {tokens} tokens", variant.name());
        let out = problem.outputs(variant);
        for (i, (&y, &(sum, magnitude))) in out.iter().zip(&exact).enumerate() {
            let error = (f64::from(y) - sum).abs();
            assert!(error <= bound * magnitude + 1e-40, "{name}: output {i} is {y:e} for {sum:e} of {magnitude:e}");
        }
        let bits = |v: &[f32]| v.iter().map(|y| y.to_bits()).collect::<Vec<_>>();
        let first = first.get_or_insert_with(|| out.clone());
        assert!(bits(first) == bits(&out), "{name}: bits differ from the portable kernel's");
    }
    assert!(first.is_some(), "{weight} has no kernel");
}

/// One chain a row had the wrong mean in a real model (docs/lab/0001): the order of the sums is part of the class.
#[test]
fn f32_sums_are_kept_by_tile_of_32_columns() {
    for record in TYPES.iter().filter(|r| !r.weight.is_float()) {
        let cols = 3 * record.block_elements.max(64);
        let problem = Problem::new(record.weight, 9, cols, 2, &SCALES);
        let by_tile = |x: &[f32], w: &[f64]| {
            let tile = |(x, w): (&[f32], &[f64])| x.iter().zip(w).fold(0f32, |s, (x, w)| (*w as f32).mul_add(*x, s));
            x.chunks(32).zip(w.chunks(32)).map(tile).fold(0f32, |sum, part| sum + part)
        };
        let rows = |x| problem.weights.chunks_exact(cols).map(move |w| by_tile(x, w).to_bits());
        let want: Vec<u32> = problem.x.chunks_exact(cols).flat_map(rows).collect();
        for variant in runnable(record.weight, Class::F32) {
            let bits: Vec<u32> = problem.outputs(variant).iter().map(|y| y.to_bits()).collect();
            assert!(bits == want, "{}: {cols} columns are not added by tile", variant.name());
        }
    }
}

#[test]
fn every_kernel_is_right_and_all_of_a_class_agree_bit_for_bit() {
    for record in &TYPES {
        for cols in columns(record.weight) {
            for (rows, tokens) in [(1, 1), (8, 2), (13, 5), (37, 16), (24, 33)] {
                for class in [Class::F32, Class::Int8] {
                    check(record.weight, class, rows, cols, tokens);
                }
            }
        }
    }
}

/// The largest bytes of both signs on both sides, where a sum of products is most likely to leave its register.
#[test]
fn extreme_bytes_add_up_exactly() {
    for record in TYPES.iter().filter(|r| !r.weight.is_float()) {
        let (rows, cols, tokens) = (19, columns(record.weight)[1], 18);
        let layout = Layout::of(record.weight, rows, cols).expect("whole blocks");
        // Whole blocks of one byte: lowest and highest codes, and -128, -1, 127 where bytes are signed.
        let blocks = rows * cols / record.block_elements;
        let fills = [0x00, 0x7f, 0x80, 0xff, 0x88];
        let bytes = (0..blocks).flat_map(|b| vec![fills[b % fills.len()]; record.block_bytes]).collect();
        let bytes = with_scales(record.weight, bytes, &[0x3c00, 0, 0xbc00], &mut Random(5));
        let sign = |i: usize| [1.0, if i.is_multiple_of(2) { 1.0 } else { -1.0 }, -1.0][i / cols % 3];
        judge(&Problem::of(layout, &bytes, (0..tokens * cols).map(sign).collect()), Class::Int8);
    }
}

/// Prefill and stepping: a token's outputs do not depend on the tokens beside it.
#[test]
fn one_token_alone_gives_the_bits_it_gives_in_company() {
    for variant in variants().iter().filter(|v| v.isa.is_supported()) {
        let cols = columns(variant.weight)[1];
        let tokens = if variant.class == Class::Int8 { 23 } else { 7 };
        let problem = Problem::new(variant.weight, 21, cols, tokens, &SCALES);
        let together = problem.outputs(variant);
        for t in 0..tokens {
            let mut alone = vec![f32::NAN; 21];
            let options = Options { out: &mut alone, stride: 21, bias: None, store: Store::Set };
            problem.run(variant, t, 1, 0..21, options);
            let same = alone.iter().zip(&together[21 * t..]).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same, "{}: token {t}", variant.name());
        }
    }
}

#[test]
fn only_the_asked_rows_are_written_with_bias_and_residual() {
    let (rows, stride, tokens) = (37, 40, 5);
    let bias: Vec<f32> = (0..rows).map(|r| r as f32 - 10.5).collect();
    for variant in variants().iter().filter(|v| v.isa.is_supported()) {
        let problem = Problem::new(variant.weight, rows, columns(variant.weight)[1], tokens, &SCALES);
        let plain = problem.outputs(variant);
        for range in [0..37, 8..24, 3..21, 5..6, 36..37, 9..9] {
            for store in [Store::Set, Store::Add] {
                let before: Vec<f32> = (0..tokens * stride).map(|i| i as f32 * 0.25 - 3.0).collect();
                let mut out = before.clone();
                let options = Options { out: &mut out, stride, bias: Some(&bias), store };
                problem.run(variant, 0, tokens, range.clone(), options);
                for (i, (&y, &old)) in out.iter().zip(&before).enumerate() {
                    let (t, r) = (i / stride, i % stride);
                    let expected = match store {
                        _ if !range.contains(&r) => old,
                        Store::Set => plain[t * rows + r] + bias[r],
                        Store::Add => plain[t * rows + r] + bias[r] + old,
                    };
                    assert_eq!(y.to_bits(), expected.to_bits(), "{} {range:?} token {t} row {r}", variant.name());
                }
            }
        }
    }
}

#[test]
fn a_nan_activation_poisons_its_own_token_only() {
    for variant in variants().iter().filter(|v| v.isa.is_supported()) {
        let mut problem = Problem::new(variant.weight, 9, columns(variant.weight)[1], 3, &[0x3c00]);
        let clean = problem.outputs(variant);
        let cols = problem.layout.cols();
        problem.x[cols + cols / 2] = f32::NAN;
        if variant.class == Class::Int8 {
            quantize(variant.isa, &problem.x, &mut problem.q, &mut problem.meta);
        }
        for (i, (y, was)) in problem.outputs(variant).iter().zip(&clean).enumerate() {
            let poisoned = i / 9 == 1;
            assert!(if poisoned { y.is_nan() } else { y.to_bits() == was.to_bits() }, "{} output {i}", variant.name());
        }
    }
}

/// The class as a whole: eight bits of activation cost under one percent.
#[test]
fn int8_activations_cost_under_one_percent() {
    for record in TYPES.iter().filter(|r| !r.weight.is_float()) {
        let mut problem = Problem::new(record.weight, 16, 2048, 1, &[0x2e66, 0xae66]);
        problem.x.truncate(2048);
        let exact = problem.exact(&problem.seen(Class::F32));
        let variant = runnable(record.weight, Class::Int8).last().expect("an int8 kernel");
        let squares = |v: &mut dyn Iterator<Item = f64>| v.map(|x| x * x).sum::<f64>();
        let error = squares(&mut problem.outputs(variant).iter().zip(&exact).map(|(&y, e)| f64::from(y) - e.0));
        let whole = squares(&mut exact.iter().map(|e| e.0));
        assert!((error / whole).sqrt() < 1e-2, "{}: {:.4}", record.name, (error / whole).sqrt());
    }
}

#[test]
fn packing_in_chunks_loses_nothing() {
    for record in &TYPES {
        let (rows, cols) = (29, columns(record.weight)[1]);
        let bytes = source(record.weight, rows, cols, &SCALES, &mut Random(99));
        let layout = Layout::of(record.weight, rows, cols).expect("whole blocks");
        let mut whole = vec![0x55; layout.packed_bytes()];
        layout.pack_rows(&bytes, 0, &mut whole);
        let mut chunked = vec![0xaa; layout.packed_bytes()];
        for first in [24, 0, 8] {
            let end = if first == 8 { 24 } else { (first + 8).min(rows) };
            layout.pack_rows(&bytes[first * layout.row_bytes()..end * layout.row_bytes()], first, &mut chunked);
        }
        assert!(whole == chunked, "{}", record.name);
        let (mut row, mut expected) = (vec![0.0f32; cols], vec![0.0f32; cols]);
        for r in 0..rows {
            layout.unpack_row(&whole, r, &mut row);
            dequantize(record.weight, &bytes[r * layout.row_bytes()..][..layout.row_bytes()], &mut expected);
            let same = row.iter().zip(&expected).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same, "{} row {r}", record.name);
        }
    }
}

#[test]
fn packed_blocks_are_as_large_as_documented() {
    let growth = |w: WeightType| codec(w).packed_block_bytes() as f64 / (8 * w.record().block_bytes) as f64 - 1.0;
    for record in TYPES.iter().filter(|r| !r.weight.is_float()) {
        let expected = match record.weight {
            WeightType::Q3_K => 0.0364,
            WeightType::Q4_K => 0.0278,
            WeightType::Q5_K => 0.0227,
            WeightType::IQ4_XS => 0.0147,
            _ => 0.0,
        };
        assert!((growth(record.weight) - expected).abs() < 1e-4, "{} {}", record.name, growth(record.weight));
    }
}

#[test]
fn wrong_arguments_are_refused_by_name() {
    assert!(Layout::of(WeightType::Q4_0, 8, 33).is_err_and(|e| e.to_string().contains("33 columns")));
    assert!(Layout::of(WeightType::Q4_0, usize::MAX / 2, 32).is_err());
    let problem = Problem::new(WeightType::Q4_0, 8, 32, 2, &SCALES);
    let variant = runnable(WeightType::Q4_0, Class::Int8).next().expect("a kernel");
    let mut out = [0.0; 16];
    let good = MatmulArgs {
        layout: problem.layout,
        weights: &problem.packed,
        x: X::Int8 { q: &problem.q, meta: &problem.meta },
        tokens: 2,
        out: out.as_mut_ptr(),
        out_stride: 8,
        bias: None,
        store: Store::Set,
        knobs: Knobs::default(),
    };
    assert_eq!(good.check(variant), Ok(()));
    let bad: [(&str, MatmulArgs); 6] = [
        ("weights", MatmulArgs { weights: &problem.packed[1..], ..good }),
        ("x has 32", MatmulArgs { x: X::Int8 { q: &problem.q[..32], meta: &problem.meta }, ..good }),
        ("block list", MatmulArgs { x: X::Int8 { q: &problem.q, meta: &problem.meta[1..] }, ..good }),
        ("activation type", MatmulArgs { x: X::F32(&problem.x), ..good }),
        ("stride 7", MatmulArgs { out_stride: 7, ..good }),
        ("bias", MatmulArgs { bias: Some(&[0.0]), ..good }),
    ];
    for (what, args) in bad {
        assert!(args.check(variant).is_err_and(|e| e.to_string().contains(what)), "{what}");
    }
}

#[test]
fn every_set_passes_its_self_check() {
    for isa in Isa::ALL {
        assert_eq!(self_check(isa).is_ok(), isa.is_supported(), "{isa}");
        let said = if isa.is_supported() { "ran: every kernel" } else { "skipped: this machine does not grant it" };
        let _ = writeln!(std::io::stderr(), "tier: instruction set {isa}: {said}");
    }
}

#[test]
fn names_are_unique_and_every_set_has_every_default() {
    let mut names: Vec<String> = variants().iter().map(Variant::name).collect();
    names.sort();
    assert!(names.windows(2).all(|w| w[0] != w[1]));
    for isa in Isa::ALL.into_iter().filter(|i| i.is_supported()) {
        for record in &TYPES {
            for kind in [Kind::Matvec, Kind::Matmul] {
                assert!(default_variant(isa, Class::F32, record.weight, kind).is_some());
                let int8 = default_variant(isa, Class::Int8, record.weight, kind);
                assert_eq!(int8.is_some(), !record.weight.is_float(), "{} on {isa}", record.name);
            }
        }
    }
}
