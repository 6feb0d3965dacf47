//! Attention against the naive f64 reference, and equal bits across chunkings, splits and instruction sets.

use super::*;
use crate::cpu::isa::Isa;
use crate::cpu::kv::{KvLayout, KvStore, kv_store};
use crate::cpu::testing::{Fenced, bits, normal, sets};
use crate::reference::{attention as reference, compare::compare, lift};

/// Sizes of a test: new tokens, keys, heads, kv heads, head elements.
type Sizes = (usize, usize, usize, usize, usize);

/// A cache with keys and values of every position, and the queries of all of them.
struct Setup {
    sizes: Sizes,
    layout: KvLayout,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    k32: Vec<f32>,
    v32: Vec<f32>,
    k16: Vec<u16>,
    v16: Vec<u16>,
    softcap: Option<f32>,
    window: Option<usize>,
    scale: f32,
    tiles: Tiles,
    halves: bool,
}

const SMALL: Tiles = Tiles { block_q: 5, block_k: 32, segment: 64, splits: 3 };

impl Setup {
    /// Memory that is not stored to is NaN; `magnitude` scales the queries.
    fn new(sizes: Sizes, halves: bool, magnitude: f32) -> Setup {
        let (_, keys, heads, kv_heads, dim) = sizes;
        let layout = KvLayout::new(kv_heads, dim, keys + 20);
        let round = |x: Vec<f32>| match halves {
            true => x.iter().map(|&v| half::f16::from_f32(v).to_f32()).collect(),
            false => x,
        };
        let (k, v) = (round(normal(21, keys * kv_heads * dim)), round(normal(22, keys * kv_heads * dim)));
        let mut s = Setup {
            q: normal(20, keys * heads * dim).iter().map(|x| x * magnitude).collect(),
            k32: vec![f32::NAN; layout.k_len()],
            v32: vec![f32::NAN; layout.v_len()],
            k16: vec![0x7e00; layout.k_len()],
            v16: vec![0x7e00; layout.v_len()],
            scale: 1.0 / (dim as f32).sqrt(),
            softcap: None,
            window: None,
            tiles: SMALL,
            sizes,
            layout,
            k,
            v,
            halves,
        };
        s.store();
        s
    }

    fn cache(&mut self) -> KvCache<'_> {
        let data = match self.halves {
            true => KvData::F16 { k: Shared::new(&mut self.k16), v: Shared::new(&mut self.v16) },
            false => KvData::F32 { k: Shared::new(&mut self.k32), v: Shared::new(&mut self.v32) },
        };
        KvCache { layout: self.layout, data }
    }

    fn store(&mut self) {
        let (_, keys, _, kv_heads, dim) = self.sizes;
        let (k, v) = (self.k.clone(), self.v.clone());
        let args = KvStore { k: &k, v: &v, stride: kv_heads * dim, first: 0, cache: self.cache() };
        // SAFETY: one call.
        unsafe { kv_store(Isa::Portable)(&args, 0..keys * kv_heads) };
    }

    /// Runs `queries` (absolute positions) and returns their outputs.
    fn run(&mut self, isa: Isa, queries: Range<usize>, as_decode: bool) -> Vec<f32> {
        let (_, _, heads, _, dim) = self.sizes;
        let mut out = Fenced::new(queries.len() * heads * dim);
        let q = self.q[queries.start * heads * dim..queries.end * heads * dim].to_vec();
        let (scale, softcap, window, tiles) = (self.scale, self.softcap, self.window, self.tiles);
        let args = Attention {
            q: &q,
            q_stride: heads * dim,
            out: out.shared(),
            cache: self.cache(),
            heads,
            queries: queries.len(),
            keys: queries.end,
            scale,
            softcap,
            window,
            tiles,
        };
        args.check().unwrap();
        run_tasks(isa, &args, as_decode);
        out.take()
    }

    fn shape(&self, queries: usize, keys: usize) -> reference::Shape {
        let (_, _, heads, kv_heads, head_dim) = self.sizes;
        let (scale, softcap) = (self.scale as f64, self.softcap.map(f64::from));
        reference::Shape { queries, keys, heads, kv_heads, head_dim, scale, softcap, window: self.window }
    }
}

fn run_tasks(isa: Isa, args: &Attention, as_decode: bool) {
    // SAFETY: one call at a time, each task once.
    unsafe {
        if as_decode {
            let mut partials = Fenced::new(args.partials_len());
            let mut scratch = vec![f32::NAN; args.decode_scratch()];
            for task in (0..args.decode_tasks()).rev() {
                decode(isa)(args, task..task + 1, &partials.shared(), &mut scratch);
            }
            combine(isa)(args, 0..args.heads, &partials.shared());
            partials.take();
        } else {
            let mut scratch = vec![f32::NAN; args.prefill_scratch()];
            for task in (0..args.prefill_tasks()).rev() {
                prefill(isa)(args, task..task + 1, &mut scratch);
            }
        }
    }
}

#[track_caller]
fn check(s: &mut Setup) {
    let (queries, keys, heads, kv_heads, dim) = s.sizes;
    let q = &s.q[(keys - queries) * heads * dim..keys * heads * dim];
    let shape = s.shape(queries, keys);
    let y64 = reference::attention::<f64>(&shape, &lift(q), &lift(&s.k), &lift(&s.v));
    let y32 = reference::attention::<f32>(&shape, q, &s.k, &s.v);
    let label = format!("{:?} window {:?} cap {:?} halves {}", s.sizes, s.window, s.softcap, s.halves);
    let mut first = None;
    for isa in sets() {
        let y = s.run(isa, keys - queries..keys, false);
        compare(&y, &y32, &y64).unwrap_or_else(|e| panic!("{isa:?} {label}: {e}"));
        assert_eq!(first.get_or_insert_with(|| bits(&y)), &bits(&y), "{isa:?} has other bits: {label}");
        let last = s.run(isa, keys - 1..keys, true);
        assert_eq!(bits(&last), bits(&y[(queries - 1) * heads * dim..]), "{isa:?} decode: {label}");
    }
    assert_eq!(kv_heads, s.layout.kv_heads);
}

#[test]
fn matches_the_definition_for_all_head_sizes_and_groups() {
    for halves in [false, true] {
        for sizes in [
            (1, 1, 1, 1, 64),
            (1, 33, 9, 3, 64),
            (31, 31, 9, 3, 64),
            (7, 100, 4, 4, 50),
            (13, 97, 8, 1, 80),
            (33, 65, 5, 1, 96),
            (2, 130, 14, 2, 32),
            (3, 40, 4, 1, 256),
            (17, 200, 7, 1, 16),
            (5, 70, 2, 2, 1),
        ] {
            check(&mut Setup::new(sizes, halves, 1.0));
        }
    }
}

#[test]
fn window_and_softcap() {
    for (window, softcap) in [
        (Some(1), None),
        (Some(5), None),
        (Some(32), Some(50.0)),
        (Some(64), None),
        (Some(500), None),
        (None, Some(2.0)),
    ] {
        for sizes in [(70, 150, 6, 2, 64), (1, 129, 4, 1, 80), (40, 40, 3, 3, 32)] {
            let mut s = Setup::new(sizes, true, 1.0);
            (s.window, s.softcap) = (window, softcap);
            check(&mut s);
        }
    }
}

#[test]
fn huge_scores_are_stable() {
    let mut s = Setup::new((9, 90, 4, 2, 64), false, 1e4);
    check(&mut s);
    s.softcap = Some(30.0);
    check(&mut s);
}

#[test]
fn bits_do_not_depend_on_chunks_splits_query_blocks_or_instruction_set() {
    for (window, halves) in [(None, true), (Some(45), true), (None, false)] {
        let keys = 203;
        let mut s = Setup::new((keys, keys, 6, 2, 64), halves, 1.0);
        s.window = window;
        let width = 6 * 64;
        let whole = s.run(Isa::detect(), 0..keys, false);
        for (isa, block_q, chunk) in sets().flat_map(|isa| [(isa, 1, 7), (isa, 32, 64), (isa, 3, 100)]) {
            s.tiles = Tiles { block_q, ..SMALL };
            for start in (0..keys).step_by(chunk) {
                let end = (start + chunk).min(keys);
                let y = s.run(isa, start..end, false);
                assert_eq!(bits(&y), bits(&whole[start * width..end * width]), "{isa:?} {block_q} {chunk} at {start}");
            }
        }
        for (isa, splits) in sets().flat_map(|isa| [(isa, 1), (isa, 2), (isa, 100)]) {
            s.tiles = Tiles { splits, ..SMALL };
            for position in (0..keys).step_by(if isa == Isa::Portable { 13 } else { 1 }) {
                let y = s.run(isa, position..position + 1, true);
                assert_eq!(bits(&y), bits(&whole[position * width..][..width]), "{isa:?} {splits} at {position}");
            }
        }
    }
}

#[test]
fn a_nan_key_or_value_poisons_only_queries_that_see_it() {
    let sizes @ (_, keys, heads, kv_heads, dim) = (60, 60, 6, 2, 32);
    let clean = Setup::new(sizes, true, 1.0).run(Isa::detect(), 0..keys, false);
    for in_key in [true, false] {
        let mut s = Setup::new(sizes, true, 1.0);
        // Key 37 of kv head 1.
        let at = (37 * kv_heads + 1) * dim + 3;
        if in_key {
            s.k[at] = f32::NAN
        } else {
            s.v[at] = f32::NAN
        }
        s.store();
        for isa in sets() {
            let y = s.run(isa, 0..keys, false);
            for (i, (a, b)) in y.chunks(dim).zip(clean.chunks(dim)).enumerate() {
                let (query, head) = (i / heads, i % heads);
                if query < 37 || head < 3 {
                    assert_eq!(bits(a), bits(b), "{isa:?} query {query} head {head}");
                } else {
                    assert!(if in_key { a.iter().all(|v| v.is_nan()) } else { a[3].is_nan() });
                }
            }
        }
    }
}

#[test]
fn queries_before_the_first_key_give_zeros() {
    let mut s = Setup::new((4, 4, 2, 1, 32), false, 1.0);
    for isa in sets() {
        let (q, mut out) = (s.q.clone(), Fenced::new(4 * 64));
        let (shape, cache) = (reference::Shape { queries: 4, ..s.shape(4, 2) }, s.cache());
        let args = Attention {
            q: &q,
            q_stride: 64,
            out: out.shared(),
            cache,
            heads: 2,
            queries: 4,
            keys: 2,
            scale: 0.2,
            softcap: None,
            window: None,
            tiles: SMALL,
        };
        run_tasks(isa, &args, false);
        let y = out.take();
        assert_eq!(bits(&y[..128]), vec![0; 128], "{isa:?}");
        assert!(y[128..].iter().all(|v| v.is_finite() && *v != 0.0));
        assert_eq!(shape.keys, 2);
    }
}

#[test]
fn bad_sizes_are_refused_with_their_numbers() {
    let mut s = Setup::new((1, 8, 3, 1, 16), false, 1.0);
    let mut out = vec![0.0; 48];
    let q = s.q.clone();
    let cache = s.cache();
    let mut args = Attention {
        q: &q,
        q_stride: 48,
        out: Shared::new(&mut out),
        cache,
        heads: 3,
        queries: 1,
        keys: 8,
        scale: 1.0,
        softcap: None,
        window: None,
        tiles: SMALL,
    };
    assert!(args.check().is_ok());
    args.keys = 33;
    assert_eq!(args.check().unwrap_err().to_string(), "attention: 33 keys in a cache of 32");
    args.keys = 8;
    args.tiles.block_k = 24;
    assert!(args.check().unwrap_err().to_string().contains("24"));
    args.tiles = SMALL;
    args.queries = 2;
    assert!(args.check().unwrap_err().to_string().contains("2 queries"));
}
