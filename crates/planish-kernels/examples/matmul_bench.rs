//! Measures the matmul kernels: `matmul_bench matvec|matmul|pack [type ...]`, medians of many short runs.
//!
//! Weights rotate through more memory than the last-level cache holds, in 2 MiB pages where the system gives them.
#![allow(clippy::print_stdout)]

use planish_kernels::cpu::isa::Isa;
use planish_kernels::cpu::matmul::*;
use planish_kernels::quant::{TYPES, WeightType};
use std::time::Instant;

/// Bytes that the copies of a weight must exceed, several times the last-level cache.
const COLD_BYTES: usize = 160 << 20;

/// A buffer in huge pages: allocated at 2 MiB alignment and advised.
struct Huge {
    base: *mut u8,
    bytes: usize,
}

unsafe extern "C" {
    fn madvise(addr: *mut u8, length: usize, advice: i32) -> i32;
}

impl Huge {
    fn new(bytes: usize) -> Huge {
        let bytes = bytes.next_multiple_of(2 << 20);
        let layout = std::alloc::Layout::from_size_align(bytes, 2 << 20).expect("a small power of two");
        // SAFETY: the size is not zero; MADV_HUGEPAGE (14) only changes how the pages are backed.
        unsafe {
            let base = std::alloc::alloc_zeroed(layout);
            assert!(!base.is_null(), "{bytes} bytes");
            madvise(base, bytes, 14);
            Huge { base, bytes }
        }
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the allocation is `bytes` long, zeroed, and borrowed with `self`.
        unsafe { std::slice::from_raw_parts_mut(self.base, self.bytes) }
    }
}

fn random_source(layout: &Layout) -> Vec<u8> {
    let mut state = 1u64;
    let mut source: Vec<u8> = (0..layout.rows() * layout.row_bytes())
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as u8
        })
        .collect();
    // Keep every 16-bit half finite and small: no subnormal or infinite scale may slow a run.
    for pair in source.chunks_exact_mut(2) {
        pair[1] = (pair[1] & 0x83) | 0x2c;
    }
    source
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

/// One measured case: seconds a call of `variant` on `copies` in turn, rows split among `threads`.
struct Case<'a> {
    layout: Layout,
    weights: &'a [u8],
    copies: usize,
    tokens: usize,
    threads: usize,
    knobs: Knobs,
}

fn seconds(case: &Case, variant: &Variant) -> f64 {
    let (rows, cols) = (case.layout.rows(), case.layout.cols());
    let x: Vec<f32> = (0..case.tokens * cols).map(|i| (i as f32).sin()).collect();
    let (mut q, mut meta) = (vec![0; x.len()], vec![BlockMeta::default(); x.len() / BLOCK]);
    quantize(variant.isa, &x, &mut q, &mut meta);
    let mut out = vec![0f32; case.tokens * rows];
    let size = case.layout.packed_bytes();
    let args: Vec<MatmulArgs> = (0..case.copies)
        .map(|c| MatmulArgs {
            layout: case.layout,
            weights: &case.weights[c * size..][..size],
            x: if variant.class == Class::F32 { X::F32(&x) } else { X::Int8 { q: &q, meta: &meta } },
            tokens: case.tokens,
            out: out.as_mut_ptr(),
            out_stride: rows,
            bias: None,
            store: Store::Set,
            knobs: case.knobs,
        })
        .collect();
    args[0].check(variant).expect("legal arguments");
    let share = (rows / 8).div_ceil(case.threads) * 8;
    let mut scratch = vec![Scratch::new(variant.scratch_bytes(&case.layout, &case.knobs, share)); case.threads];
    let mut samples = Vec::new();
    let begin = Instant::now();
    while samples.len() < 5 || begin.elapsed().as_secs_f64() < 0.25 {
        let start = Instant::now();
        std::thread::scope(|scope| {
            for (t, scratch) in scratch.iter_mut().enumerate() {
                let args = &args;
                let mut work = move || {
                    for a in args {
                        // SAFETY: checked above; threads have disjoint rows.
                        unsafe {
                            (variant.run)(a, (t * share).min(rows)..((t + 1) * share).min(rows), scratch.bytes())
                        };
                    }
                };
                if t + 1 == case.threads { work() } else { drop(scope.spawn(work)) }
            }
        });
        samples.push(start.elapsed().as_secs_f64() / case.copies as f64);
    }
    if std::env::var_os("BEST").is_some() { samples.into_iter().fold(f64::MAX, f64::min) } else { median(samples) }
}

fn types(names: &[String]) -> Vec<WeightType> {
    TYPES.iter().filter(|r| names.is_empty() || names.iter().any(|n| n == r.name)).map(|r| r.weight).collect()
}

fn of(weight: WeightType, kind: Kind) -> impl Iterator<Item = &'static Variant> {
    let isa = Isa::detect();
    let class = if weight.is_float() { Class::F32 } else { Class::Int8 };
    let all = std::env::var_os("F32").is_some();
    variants().iter().filter(move |v| {
        (v.isa, v.weight, v.kind) == (isa, weight, kind) && v.class == if all { Class::F32 } else { class }
    })
}

fn matvec(weights: Vec<WeightType>) {
    for weight in weights {
        for (rows, cols) in [(576, 576), (1536, 576), (576, 1536), (49152, 576), (4096, 4096)] {
            let Ok(layout) = Layout::of(weight, rows, cols) else { continue };
            let size = layout.packed_bytes();
            let copies = COLD_BYTES.div_ceil(size);
            let mut huge = Huge::new(copies * size);
            layout.pack_rows(&random_source(&layout), 0, &mut huge.bytes()[..size]);
            for c in 1..copies {
                huge.bytes().copy_within(..size, c * size);
            }
            for variant in of(weight, Kind::Matvec) {
                for prefetch in if std::env::var_os("SWEEP").is_some() { &PREFETCH_CHOICES[..] } else { &[1024] } {
                    print!("{:34} {rows:6}x{cols:<5} prefetch {prefetch:5}", variant.name());
                    for threads in [1, 2] {
                        let knobs = Knobs { prefetch: *prefetch, ..Knobs::default() };
                        let case = Case { layout, weights: huge.bytes(), copies, tokens: 1, threads, knobs };
                        print!("  {threads} threads {:6.2} GB/s", size as f64 / seconds(&case, variant) / 1e9);
                    }
                    println!();
                }
            }
        }
    }
}

fn matmul(weights: Vec<WeightType>) {
    for weight in weights {
        for (rows, cols) in [(1536, 576), (576, 1536)] {
            let Ok(layout) = Layout::of(weight, rows, cols).or_else(|_| Layout::of(weight, rows, 1536)) else {
                continue;
            };
            let mut packed = vec![0; layout.packed_bytes()];
            layout.pack_rows(&random_source(&layout), 0, &mut packed);
            for variant in of(weight, Kind::Matmul) {
                for row_block in if std::env::var_os("SWEEP").is_some() { &ROW_BLOCK_CHOICES[..] } else { &[128] } {
                    let knobs = Knobs { row_block: *row_block, ..Knobs::default() };
                    let case = Case { layout, weights: &packed, copies: 1, tokens: 512, threads: 1, knobs };
                    let macs = (rows * layout.cols() * 512) as f64;
                    println!(
                        "{:34} {rows:6}x{:<5} row_block {row_block:4}  {:7.2} GMAC/s",
                        variant.name(),
                        layout.cols(),
                        macs / seconds(&case, variant) / 1e9
                    );
                }
            }
        }
    }
}

fn pack(weights: Vec<WeightType>) {
    for weight in weights.into_iter().filter(|w| !w.is_float()) {
        let layout = Layout::of(weight, 32768, 4096).expect("whole blocks");
        let source = random_source(&layout);
        let mut huge = Huge::new(layout.packed_bytes());
        let packed = &mut huge.bytes()[..layout.packed_bytes()];
        let times = (0..5)
            .map(|_| {
                let start = Instant::now();
                layout.pack_rows(&source, 0, packed);
                start.elapsed().as_secs_f64()
            })
            .collect();
        let rate = source.len() as f64 / median(times);
        println!("pack {weight:7} {:6.2} GB/s, {:5.1} ms for 98 MB", rate / 1e9, 98e6 / rate * 1e3);
    }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let weights = types(args.get(1..).unwrap_or_default());
    match args.first().map(String::as_str) {
        Some("matvec") => matvec(weights),
        Some("matmul") => matmul(weights),
        Some("pack") => pack(weights),
        _ => println!("matmul_bench matvec|matmul|pack [type ...]"),
    }
}
