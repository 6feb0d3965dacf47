//! Times the CPU ops other than matmul, one thread, best and median of many runs: `ops_bench [seconds per line]`.
#![allow(clippy::print_stdout)]

use planish_kernels::cpu::attention::{Attention, Tiles, combine, decode, prefill};
use planish_kernels::cpu::isa::Isa;
use planish_kernels::cpu::kv::{KvCache, KvData, KvLayout, KvStore, kv_store};
use planish_kernels::cpu::sample::{Draw, Params, Workspace, argmax, philox, sample};
use planish_kernels::cpu::simd::Shared;
use planish_kernels::cpu::{act, norm, rope};
use std::time::{Duration, Instant};

fn main() {
    let seconds = std::env::args().nth(1).and_then(|s| s.parse().ok()).unwrap_or(1.0);
    let budget = Duration::from_secs_f64(seconds);
    let sets: Vec<Isa> = Isa::ALL.into_iter().filter(|isa| isa.is_supported() && *isa != Isa::Portable).collect();
    for isa in sets {
        println!("{isa:?}, one thread; microseconds best / median");
        for (name, heads, kv_heads, dim) in [("smollm2", 9, 3, 64), ("llama-8b", 32, 8, 128)] {
            for keys in [512, 4096] {
                attention(isa, name, (heads, kv_heads, dim), (1, keys), Tiles::default(), budget);
            }
            for (block_q, block_k) in [(16, 64), (32, 64), (64, 64), (32, 128), (32, 32)] {
                let tiles = Tiles { block_q, block_k, ..Tiles::default() };
                attention(isa, name, (heads, kv_heads, dim), (512, 512), tiles, budget);
            }
        }
        small_ops(isa, budget);
        samplers(isa, budget);
    }
}

fn values(seed: u32, n: usize) -> Vec<f32> {
    (0..n).map(|i| philox([i as u32, seed, 0, 0], [3, 4])[0] as f32 / 2f32.powi(31) - 1.0).collect()
}

fn time(label: &str, work: &str, per_second: f64, budget: Duration, mut f: impl FnMut()) {
    f();
    let (mut runs, start) = (Vec::new(), Instant::now());
    while start.elapsed() < budget || runs.len() < 5 {
        let t = Instant::now();
        f();
        runs.push(t.elapsed().as_secs_f64());
    }
    runs.sort_by(f64::total_cmp);
    let (best, median) = (runs[0], runs[runs.len() / 2]);
    println!("{label:44} {:10.1} {:10.1}   {:8.2} {work}", best * 1e6, median * 1e6, per_second / best * 1e-9);
}

fn attention(
    isa: Isa,
    name: &str,
    (heads, kv_heads, dim): (usize, usize, usize),
    (queries, keys): (usize, usize),
    tiles: Tiles,
    budget: Duration,
) {
    let layout = KvLayout::new(kv_heads, dim, keys);
    let (mut k, mut v) = (vec![0u16; layout.k_len()], vec![0u16; layout.v_len()]);
    let data = KvData::F16 { k: Shared::new(&mut k), v: Shared::new(&mut v) };
    let cache = KvCache { layout, data };
    let (new_k, new_v) = (values(1, keys * kv_heads * dim), values(2, keys * kv_heads * dim));
    let store = KvStore { k: &new_k, v: &new_v, stride: kv_heads * dim, first: 0, cache };
    // SAFETY: one thread.
    unsafe { kv_store(isa)(&store, 0..keys * kv_heads) };
    let (q, mut out) = (values(3, queries * heads * dim), vec![0.0; queries * heads * dim]);
    let args = Attention {
        q: &q,
        q_stride: heads * dim,
        out: Shared::new(&mut out),
        cache,
        heads,
        queries,
        keys,
        scale: 1.0 / (dim as f32).sqrt(),
        softcap: None,
        window: None,
        tiles,
    };
    if queries == 1 {
        let (mut partials, mut scratch) = (vec![0.0; args.partials_len()], vec![0.0; args.decode_scratch()]);
        let partials = Shared::new(&mut partials);
        let bytes = (4 * keys * kv_heads * dim) as f64;
        // SAFETY: one thread.
        time(&format!("decode {name} {keys} keys f16"), "GB/s", bytes, budget, || unsafe {
            decode(isa)(&args, 0..args.decode_tasks(), &partials, &mut scratch);
            combine(isa)(&args, 0..heads, &partials);
        });
    } else {
        let mut scratch = vec![0.0; args.prefill_scratch()];
        let flops = (4 * dim * heads * queries * (queries + 1) / 2) as f64;
        let label = format!("prefill {name} {queries} f16 q{} k{}", tiles.block_q, tiles.block_k);
        // SAFETY: one thread.
        time(&label, "GFLOP/s", flops, budget, || unsafe {
            prefill(isa)(&args, 0..args.prefill_tasks(), &mut scratch);
        });
    }
}

fn small_ops(isa: Isa, budget: Duration) {
    for (hidden, inner, tokens) in [(576, 1536, 1), (576, 1536, 512), (4096, 14336, 1)] {
        let (mut x, mut out, weight) = (values(5, tokens * hidden), vec![0.0; tokens * hidden], values(6, hidden));
        let args = norm::RmsNorm {
            x: Shared::new(&mut x),
            residual: None,
            weight: &weight,
            out: Shared::new(&mut out),
            heads: 1,
            x_stride: hidden,
            out_stride: hidden,
            eps: 1e-5,
        };
        // SAFETY: one thread.
        time(&format!("rms_norm {tokens} x {hidden}"), "GB/s", (8 * tokens * hidden) as f64, budget, || unsafe {
            norm::rms_norm(isa)(&args, 0..tokens);
        });
        let (a, b, mut out) = (values(7, tokens * inner), values(8, tokens * inner), vec![0.0; tokens * inner]);
        let args = act::Binary { a: &a, b: &b, out: Shared::new(&mut out), columns: inner, stride: inner };
        for (name, kernel) in [("swiglu", act::swiglu(isa)), ("geglu", act::geglu(isa))] {
            // SAFETY: one thread.
            time(&format!("{name} {tokens} x {inner}"), "Gelement/s", (tokens * inner) as f64, budget, || unsafe {
                kernel(&args, 0..tokens * inner);
            });
        }
    }
    let table = rope::rope_table(64, 1e5, None, rope::Scaling::None, rope::Pairs::Neighbours).expect("valid");
    let (mut cos, mut sin) = (vec![0.0; 512 * table.row_len()], vec![0.0; 512 * table.row_len()]);
    time("rope fill 512 positions of 64", "Gelement/s", 512.0 * 64.0, budget, || table.fill(0, &mut cos, &mut sin));
    let mut x = values(9, 512 * 576);
    let (pairs, rotary_dim) = (rope::Pairs::Neighbours, 64);
    let x = Shared::new(&mut x);
    let args = rope::Rope { x, cos: &cos, sin: &sin, pairs, rotary_dim, heads: 9, head_dim: 64, stride: 576 };
    // SAFETY: one thread.
    time("rope 512 x 9 x 64", "GB/s", 8.0 * 512.0 * 576.0, budget, || unsafe { rope::rope(isa)(&args, 0..512 * 9) });
}

fn samplers(isa: Isa, budget: Duration) {
    for vocabulary in [49_152, 151_936] {
        let noise = values(10, 4 * vocabulary);
        let mut logits: Vec<f32> = noise.chunks(4).map(|c| 3.0 * c.iter().sum::<f32>()).collect();
        let mut w = Workspace::new(vocabulary);
        let bytes = 4.0 * vocabulary as f64;
        time(&format!("argmax {vocabulary}"), "GB/s", bytes, budget, || {
            argmax(isa, &logits, &mut w).expect("finite");
        });
        for (name, top_k, top_p, min_p) in [
            ("top-k 40, top-p 0.95, min-p 0.05", 40, 0.95, 0.05),
            ("min-p 0.05", 0, 1.0, 0.05),
            ("top-p 0.95", 0, 0.95, 0.0),
            ("temperature only", 0, 1.0, 0.0),
        ] {
            let params = Params { temperature: 0.8, top_k, top_p, min_p, ..Params::default() };
            let mut step = 0;
            time(&format!("sample {vocabulary} {name}"), "GB/s", bytes, budget, || {
                step += 1;
                let draw = Draw { seed: 1, sequence: 0, step };
                sample(isa, (&mut logits, &[]), &params, draw, &mut w).expect("finite");
            });
        }
    }
}
