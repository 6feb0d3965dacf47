//! Small random models that prove the op: chunks from the first position and from later ones, whole and short.

use std::cell::RefCell;
use std::ops::Range;

use planish_device::Launch;
use planish_tune::{Config, Rejection};

use super::{PrefillMemory, ROWS, io, launches};
use crate::data::{self, Rng};
use crate::gpu::decode::model::{Memory, Model, STEP_WORDS};
use crate::gpu::decode::problem::{
    Built, angles, barrier_words, blurred, build, cache, caches_after, check_model, ropes,
};
pub use crate::gpu::decode::problem::{model, places};
use crate::gpu::decode::reference::{CACHE, Given, Layer, Matrix, step_stored};
use crate::op::{Arg, Attrs, Cost, Dtype, Expected, Fill, Machine, OpCall, Problem, Shape};
use crate::reference::{Real, Shaken};

/// Shapes that prove the op: both classes, each form of layer, windows, one token and many, keys of several tiles.
pub const SHAPES: &[&str] = &[
    "hidden=32,layers=1,heads=1,kv_heads=1,head_dim=8,rotary=8,ffn=32,vocab=9,capacity=1,window=0,softcap=0,\
     chunk=16,past=0,count=1,\
     norm=none,bias=none,post=none,pairs=halves,gate=silu,act=f32,body=f32,v=f32,down=f16,head=bf16",
    "hidden=64,layers=2,heads=6,kv_heads=2,head_dim=16,rotary=12,ffn=96,vocab=75,capacity=50,window=9,softcap=0,\
     chunk=32,past=13,count=21,\
     norm=none,bias=qkv,post=none,pairs=neighbours,gate=silu,act=f32,body=q4_1,v=q5_0,down=q5_1+q8_0,head=q8_0",
    "hidden=64,layers=2,heads=4,kv_heads=1,head_dim=24,rotary=24,ffn=64,vocab=33,capacity=70,window=0,softcap=5,\
     chunk=16,past=40,count=16,\
     norm=head,bias=none,post=post,pairs=halves,gate=gelu,act=f32,body=q4_0,v=iq4_nl,down=q4_0,head=f16",
    "hidden=96,layers=2,heads=3,kv_heads=1,head_dim=32,rotary=32,ffn=160,vocab=50,capacity=60,window=0,softcap=0,\
     chunk=48,past=0,count=37,\
     norm=none,bias=none,post=none,pairs=halves,gate=silu,act=int8,body=q4_1,v=q8_0,down=q4_0+q5_1,head=q8_0",
    "hidden=64,layers=2,heads=6,kv_heads=2,head_dim=16,rotary=12,ffn=96,vocab=75,capacity=90,window=9,softcap=0,\
     chunk=32,past=53,count=32,\
     norm=none,bias=qkv,post=none,pairs=neighbours,gate=silu,act=int8,body=q4_0,v=q8_0,down=f16,head=f16",
    "hidden=64,layers=2,heads=4,kv_heads=1,head_dim=24,rotary=24,ffn=64,vocab=33,capacity=70,window=0,softcap=5,\
     chunk=16,past=40,count=13,\
     norm=head,bias=none,post=post,pairs=halves,gate=gelu,act=int8,body=q5_0,v=q5_1,down=q4_1,head=q8_0",
    "hidden=64,layers=1,heads=2,kv_heads=1,head_dim=64,rotary=64,ffn=32,vocab=40,capacity=190,window=0,softcap=0,\
     chunk=32,past=150,count=30,\
     norm=none,bias=none,post=none,pairs=halves,gate=silu,act=int8,body=q8_0,v=q8_0,down=q8_0,head=q8_0",
    "hidden=256,layers=1,heads=2,kv_heads=2,head_dim=128,rotary=128,ffn=256,vocab=19,capacity=19,window=0,softcap=0,\
     chunk=16,past=4,count=5,\
     norm=none,bias=none,post=none,pairs=halves,gate=silu,act=int8,body=q4_k,v=q6_k,down=q5_k,head=q3_k",
    "hidden=256,layers=1,heads=1,kv_heads=1,head_dim=256,rotary=64,ffn=256,vocab=20,capacity=40,window=0,softcap=0,\
     chunk=16,past=33,count=3,\
     norm=none,bias=none,post=none,pairs=halves,gate=silu,act=int8,body=q2_k,v=iq4_xs,down=q2_k,head=iq4_xs",
];

pub fn check(s: &Shape) -> Result<(), String> {
    check_model(s, &["chunk", "past", "count"])?;
    let [chunk, past, count] = ["chunk", "past", "count"].map(|n| s.size(n));
    if count == 0 || count > chunk || past + count > s.size("capacity") || !chunk.is_multiple_of(ROWS) {
        return Err(format!(
            "{s}: chunks are whole {ROWS} tokens, and those that come fit in a chunk and in the cache"
        ));
    }
    Ok(())
}

/// What a chunk must do: its products, and reading the weights and the cache once.
pub fn cost(s: &Shape) -> Cost {
    let m = model(s);
    let [past, count] = ["past", "count"].map(|n| s.size(n));
    let layer = m.hidden * (2 * m.wide() + 2 * m.kv_wide() + 3 * m.ffn);
    let scores = 2 * m.wide() * (2 * past * count + count * count);
    let weights = PrefillMemory::weights_bytes((&m, &places(s))) / 2;
    Cost {
        flops: (2 * layer * m.layers * count + 2 * m.vocab * m.hidden + scores * m.layers) as u64,
        read_bytes: (m.layers * (weights + 4 * past * m.kv_wide())) as u64,
        write_bytes: (4 * m.vocab + m.layers * (weights + 4 * count * m.kv_wide())) as u64,
        ..Cost::default()
    }
}

/// What a chunk gives: the last logits and the head's input, and of each token and layer key and value.
#[derive(Clone)]
struct Gives<T> {
    logits: Vec<T>,
    last: Vec<T>,
    new: Vec<Vec<[Vec<T>; 2]>>,
}

/// What a chunk is given beside the model.
struct Tokens {
    /// Rows of the embedding.
    rows: Vec<Vec<f32>>,
    /// Angles of each position.
    angles: Vec<Vec<f64>>,
}

/// Token after token through the reference of a step, with what each leaves in the cache.
fn run<T: Real>(m: &Model, given: &Given, tokens: &Tokens, nudge: f64, stored: &dyn Fn(T) -> T) -> Gives<T> {
    let (mut given, mut gives) = (given.clone(), Gives { logits: Vec::new(), last: Vec::new(), new: Vec::new() });
    for (row, angles) in tokens.rows.iter().zip(&tokens.angles) {
        (given.embedding, given.angles) = (row.clone(), angles.clone());
        let one = step_stored(m, &given, nudge, stored);
        for (cache, new) in given.caches.iter_mut().zip(&one.new) {
            for (cache, new) in cache.iter_mut().zip(new) {
                cache.extend(new.iter().map(|v| half::f16::from_f64(v.f64()).to_f32()));
            }
        }
        (gives.logits, gives.last) = (one.logits, one.last);
        gives.new.push(one.new);
    }
    gives
}

/// The model as its layers meet a chunk: floats meet weights, which `of` rounds.
fn floats(given: &Given, of: fn(f32) -> f32) -> Given {
    let mut given = given.clone();
    let layer = |l: &mut Layer| {
        for matrix in l.qkv.iter_mut().chain([&mut l.out, &mut l.down]).chain(&mut l.gate_up) {
            matrix.int8 = false;
            matrix.values.iter_mut().for_each(|v| *v = of(*v));
        }
    };
    given.layers.iter_mut().for_each(layer);
    given
}

fn f16(x: f32) -> f32 {
    half::f16::from_f32(x).to_f32()
}

/// Logits, and of each token keys and values by layer.
struct Bounded {
    logits: Expected,
    new: Vec<Vec<[Expected; 2]>>,
}

/// Runs with roundings of their own, of which each is as right as the next.
const SAMPLES: u64 = 6;
/// Standard deviations that a sum of many small turns keeps within: one in a thousand million is beyond.
const DEVIATIONS: f64 = 6.0;

/// `x` in f16 with an error of its own of up to a step, as a kernel has that rounds at other places or adds in another order.
fn dithered(rng: &RefCell<Rng>, x: f64) -> f64 {
    let near = half::f16::from_f64(x);
    let step = (half::f16::from_bits(near.to_bits() + 1).to_f64() - near.to_f64()).abs();
    half::f16::from_f64(x + 0.5 * f64::from(rng.borrow_mut().unit()) * step).to_f64()
}

/// What turned codes may add to each logit where the head's input `x` is off by `error`, root mean square.
///
/// Codes of a block are `step` apart, its largest magnitude over 127. An error e turns a code with a chance of e over the
/// step, and a turned code is off by the step: on average e step, squared, and whatever e is, no more than two roundings
/// that know nothing of each other, step² / 6. Turns have signs of their own, so at a logit of weights w their variance
/// is the sum of w² times that. (A block's scale has the relative error of its largest input: it is no turn.)
fn turned(head: &Matrix, x: &[f64], error: f64) -> Vec<f64> {
    let square = |block: &[f64]| {
        let step = block.iter().fold(0f64, |most, x| most.max(x.abs())) / 127.0;
        std::iter::repeat_n(error.min(step / 6.0) * step, block.len())
    };
    let squares: Vec<f64> = if head.int8 { x.chunks(32).flat_map(square).collect() } else { vec![0.0; x.len()] };
    let variance = |row: &[f32]| row.iter().zip(&squares).map(|(w, s)| f64::from(*w).powi(2) * s).sum::<f64>();
    head.values.chunks(x.len()).map(|row| DEVIATIONS * variance(row).sqrt()).collect()
}

/// The exact logits and how far right ones may be from them where rows are of f16: three times what the head makes of its
/// input's error, at the most that `samples` show, and what codes that the error turns may add.
fn logits_of_rounded_rows(head: &Matrix, exact: &Gives<f64>, plain: &[f32], samples: &[Gives<f64>]) -> Expected {
    let errors = |g: &Gives<f64>| g.last.iter().zip(&exact.last).map(|(a, b)| a - b).collect::<Vec<f64>>();
    let errors: Vec<Vec<f64>> = samples.iter().map(errors).collect();
    let square = |e: &Vec<f64>| e.iter().map(|e| e * e).sum::<f64>() / e.len() as f64;
    let rms = errors.iter().map(square).fold(0.0, f64::max).sqrt();
    let times = |row: &[f32], e: &[f64]| row.iter().zip(e).map(|(w, e)| f64::from(*w) * e).sum::<f64>().abs();
    let rows = || head.values.chunks(exact.last.len());
    let moved = errors.iter().flat_map(|e| rows().map(|row| times(row, e))).fold(0.0, f64::max);
    let mut expected = Expected::float(Dtype::F32, exact.logits.clone(), plain);
    for (bound, turned) in expected.bounds.iter_mut().zip(turned(head, &exact.last, rms)) {
        *bound = bound.max(3.0 * moved + turned);
    }
    expected
}

/// The exact results with their bounds.
///
/// Keys and values are rounded to f16 in the cache, where a last bit of difference moves all tokens behind: so the bound
/// is three times what results move by when inputs move by some roundings. Where rows are of f16, weights and all that is
/// stored are rounded too, each time with errors of its own; of the bytes, only those of the head are left.
fn bounded(m: &Model, io: Dtype, given: &Given, tokens: &Tokens) -> Bounded {
    let exact_given = floats(given, |v| v);
    let exact = run::<f64>(m, &exact_given, tokens, 0.0, &|x| x);
    let (plain, moved) = match io {
        Dtype::F16 => {
            let given = floats(given, f16);
            let sample = |seed| {
                let rng = RefCell::new(Rng::new(seed));
                run::<f64>(m, &given, tokens, 0.0, &|x| dithered(&rng, x))
            };
            (run::<f32>(m, &given, tokens, 0.0, &f16), (0..SAMPLES).map(sample).collect::<Vec<_>>())
        }
        _ => {
            let plain = run::<f32>(m, &exact_given, tokens, 0.0, &|x| x);
            (plain, [-2e-7, 3e-7].map(|nudge| run::<f64>(m, &exact_given, tokens, nudge, &|x| x)).to_vec())
        }
    };
    // Where nothing but the cache is of 16 bits, and no byte turns.
    let draws = match io == Dtype::F16 || given.head.int8 {
        true => Vec::new(),
        false => Shaken::draws(Dtype::F32, m.vocab, || run::<Shaken>(m, &exact_given, tokens, 0.0, &|x| x)),
    };
    let logits = match io {
        Dtype::F16 => logits_of_rounded_rows(&given.head, &exact, &plain.logits, &moved),
        _ => {
            let moved: Vec<&[f64]> = moved.iter().map(|g| &g.logits[..]).collect();
            let draws: Vec<Vec<Shaken>> = draws.iter().map(|g| g.logits.clone()).collect();
            blurred(Dtype::F32, (&exact.logits, &plain.logits, &draws), &moved)
        }
    };
    let slot = |layer: usize, which: usize| {
        let wide = m.kv_wide();
        let all = |g: &Gives<f64>| g.new.iter().flat_map(|token| token[layer][which].clone()).collect::<Vec<f64>>();
        let plain: Vec<f32> = plain.new.iter().flat_map(|token| token[layer][which].clone()).collect();
        let others: Vec<Vec<f64>> = moved.iter().map(all).collect();
        let others: Vec<&[f64]> = others.iter().map(|o| &o[..]).collect();
        let whole = blurred(CACHE, (&all(&exact), &plain, &[]), &others);
        let token = move |i: usize| Expected {
            values: whole.values[i * wide..(i + 1) * wide].to_vec(),
            bounds: whole.bounds[i * wide..(i + 1) * wide].to_vec(),
            ..whole.clone()
        };
        (0..tokens.rows.len()).map(token).collect::<Vec<_>>()
    };
    let slots: Vec<[Vec<Expected>; 2]> = (0..m.layers).map(|l| [slot(l, 0), slot(l, 1)]).collect();
    let token = |i: usize| slots.iter().map(|[k, v]| [k[i].clone(), v[i].clone()]).collect();
    Bounded { logits, new: (0..tokens.rows.len()).map(token).collect() }
}

fn unjudged(m: &Model, count: usize) -> Bounded {
    let zeros = |dtype, n| Expected::exact(dtype, vec![0.0; n]);
    let token = |_| (0..m.layers).map(|_| [zeros(CACHE, m.kv_wide()), zeros(CACHE, m.kv_wide())]).collect();
    Bounded { logits: zeros(Dtype::F32, m.vocab), new: (0..count).map(token).collect() }
}

/// Positions that the first query of a chunk may see in a layer with this window.
fn seen(past: usize, window: usize) -> Range<usize> {
    if window > 0 { (past + 1).saturating_sub(window)..past } else { 0..past }
}

/// A model with its caches and a chunk of tokens.
struct Made {
    built: Built,
    ids: Vec<u32>,
    tokens: Tokens,
    /// Keys and values as the caches hold them.
    held: [Vec<f32>; 2],
}

fn made(s: &Shape, seed: u64, fill: Fill) -> Made {
    let (m, mut rng) = (model(s), Rng::new(seed));
    let [past, count] = ["past", "count"].map(|n| s.size(n));
    let ids: Vec<u32> = (0..count).map(|_| rng.index(m.vocab) as u32).collect();
    let mut built = build(s, rng.clone(), fill);
    let tokens = Tokens {
        rows: ids.iter().map(|id| built.embedding(*id as usize).to_vec()).collect(),
        angles: (past..past + count).map(|p| angles(s, p)).collect(),
    };
    let mut held = [Vec::new(), Vec::new()];
    for layer in 0..m.layers {
        let range = seen(past, built.given.layers[layer].window);
        let [(k, all_k), (v, all_v)] = [0, 1].map(|_| cache(&mut rng, &m, range.clone()));
        built.given.caches.push([k, v]);
        held[0].extend(all_k);
        held[1].extend(all_v);
    }
    Made { built, ids, tokens, held }
}

pub fn problem(s: &Shape, seed: u64, fill: Fill) -> Problem {
    let m = model(s);
    let [chunk, past, count] = ["chunk", "past", "count"].map(|n| s.size(n));
    let Made { built, ids, tokens, held } = made(s, seed, fill);
    let judged = fill != Fill::Unjudged;
    let y = if judged { bounded(&m, io((&m, &built.at)), &built.given, &tokens) } else { unjudged(&m, count) };
    let new: Vec<_> = y.new.iter().enumerate().map(|(i, token)| (past + i, &token[..])).collect();
    let after = [(0, &held[0]), (1, &held[1])].map(|(which, x)| caches_after(&m, x, which, &new));
    let [after_k, after_v] = after;
    let step: Vec<u32> = (0..STEP_WORDS as u32).collect();
    let mut step_after: Vec<f64> = step.iter().map(|w| f64::from(*w)).collect();
    step_after[1] = (past + count) as f64;
    // Ids past the last token may be anything.
    let mut words = PrefillMemory::words(past, &ids);
    words.resize(PrefillMemory::words_bytes(chunk), 0xa5);
    Problem {
        shape: s.clone(),
        attrs: Attrs::new(),
        args: vec![
            Arg::In(built.arena.clone()),
            Arg::In(data::bytes_u32(&built.at.table(&m).expect("a small arena"))),
            Arg::InOut(data::bytes_u32(&step), Expected::exact(Dtype::U32, step_after)),
            Arg::In(data::bytes(&ropes(s))),
            Arg::InOut(data::bytes_f16(&held[0]), after_k),
            Arg::InOut(data::bytes_f16(&held[1]), after_v),
            Arg::Scratch(m.work_bytes()),
            Arg::Out(y.logits),
            barrier_words(),
            Arg::In(words),
            Arg::Scratch(PrefillMemory::weights_bytes((&m, &built.at))),
            Arg::Scratch(PrefillMemory::rows_bytes((&m, &built.at), chunk)),
        ],
        label: format!("{fill:?} seed={seed}"),
    }
}

pub fn steps(call: &OpCall, config: &Config, machine: &Machine<'_>) -> Result<Vec<Launch>, Rejection> {
    let Some((memory, [words, weights, rows])) = call.args.split_first_chunk() else {
        return Err(Rejection::Constraint(format!("prefill takes 12 arguments, not {}", call.args.len())));
    };
    let memory = Memory::of(memory.clone());
    let prefill = PrefillMemory { words: words.clone(), weights: weights.clone(), rows: rows.clone() };
    let (s, at) = (&call.shape, places(&call.shape));
    launches((&model(s), &at), &memory, &prefill, s.size("chunk"), config, machine)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn int8() -> impl Iterator<Item = Shape> {
        SHAPES.iter().filter(|s| s.contains("act=int8")).map(|s| s.parse().expect("a shape"))
    }

    fn bounds(s: &Shape, made: &Made) -> Bounded {
        bounded(&model(s), io((&model(s), &made.built.at)), &made.built.given, &made.tokens)
    }

    /// Largest distance of `got` from `right`, over its bound.
    fn over(got: &Gives<f64>, right: &Bounded) -> f64 {
        let most = |e: &Expected, got: &[f64]| {
            let far = e.values.iter().zip(got).zip(&e.bounds).map(|((a, b), bound)| (a - b).abs() / bound);
            far.fold(0.0, f64::max)
        };
        let caches = right.new.iter().zip(&got.new).flat_map(|(e, got)| e.iter().flatten().zip(got.iter().flatten()));
        caches.map(|(e, got)| most(e, got)).fold(most(&right.logits, &got.logits), f64::max)
    }

    fn rms(values: &[f64]) -> f64 {
        (values.iter().map(|v| v * v).sum::<f64>() / values.len() as f64).sqrt()
    }

    /// Turned codes are an error of the size of a rounding to bytes, whatever the seed, and the bound some of those.
    #[test]
    fn rounded_rows_stay_within_the_budget_of_their_class() {
        for s in int8() {
            let share = |seed| {
                let logits = bounds(&s, &made(&s, seed, Fill::Random)).logits;
                rms(&logits.bounds) / rms(&logits.values)
            };
            let mut shares: Vec<f64> = (1..=5).map(share).collect();
            shares.sort_by(f64::total_cmp);
            assert!(shares[2] < 0.06, "{s}: bounds of {shares:?} of the logits");
        }
    }

    /// Runs that the bound was not made from, each with roundings of its own, of which some turn codes.
    #[test]
    fn what_rounds_otherwise_is_within_the_bound() {
        for s in int8() {
            let (m, made) = (model(&s), made(&s, 1, Fill::Random));
            let (right, given) = (bounds(&s, &made), floats(&made.built.given, f16));
            let distance = |seed| {
                let rng = RefCell::new(Rng::new(1000u64 + seed));
                over(&run(&m, &given, &made.tokens, 0.0, &|x| dithered(&rng, x)), &right)
            };
            let most = (0..40u64).map(distance).fold(0.0, f64::max);
            assert!((0.1..0.9).contains(&most), "{s}: {most} times the bound");
        }
    }

    /// What is done to a model, and to what it finds.
    type Fault = fn(&Model, &Shape, &mut Given);

    /// Faults as kernels have them: in some of the shapes, each is refused by far.
    #[test]
    fn a_planted_fault_is_beyond_the_bound_by_far() {
        let faults: [(&str, f64, Fault); 6] = [
            ("the scale of one block of the values' weights is doubled", 50.0, |_, _, g| {
                g.layers[0].qkv[2].values[..32].iter_mut().for_each(|v| *v *= 2.0);
            }),
            ("the scale of one block of the last weights before the head is doubled", 4.0, |m, _, g| {
                g.layers[m.layers - 1].down.values[..32].iter_mut().for_each(|v| *v *= 2.0);
            }),
            ("a product lacks a tile of its inputs", 20.0, |m, _, g| {
                g.layers[m.layers - 1].down.values.chunks_mut(m.ffn).for_each(|row| row[..ROWS].fill(0.0));
            }),
            ("half a tile of heads is lost behind attention", 10.0, |m, _, g| {
                g.layers[m.layers - 1].out.values.chunks_mut(m.wide()).for_each(|row| row[..ROWS / 2].fill(0.0));
            }),
            ("a query does not see the first of its keys", 50.0, |_, s, g| {
                let layer = &mut g.layers[0];
                layer.window = if layer.window > 0 { layer.window } else { s.size("past") + s.size("count") } - 1;
            }),
            ("a tile of keys and values is read as zeros", 20.0, |m, s, g| {
                let tile = ROWS.min(s.size("past")) * m.kv_wide();
                g.caches[m.layers - 1].iter_mut().for_each(|cache| cache[..tile].fill(0.0));
            }),
        ];
        for (fault, least, plant) in faults {
            let distance = |s: Shape| {
                let (m, made) = (model(&s), made(&s, 1, Fill::Random));
                let (right, mut given) = (bounds(&s, &made), made.built.given.clone());
                plant(&m, &s, &mut given);
                over(&run(&m, &floats(&given, |v| v), &made.tokens, 0.0, &|x| x), &right)
            };
            let most = int8().map(distance).fold(0.0, f64::max);
            assert!(most >= least, "{fault}: {most} times the bound");
        }
    }
}
