//! Small random models that prove the op: their shapes, data and expected outputs.

use planish_device::Launch;
use planish_tune::{Config, Rejection};

use super::launch::{Draw, step};
use super::model::{At, LayerAt, Memory, Model, ModelAt, RING, STEP_WORDS, SYNC_WORDS};
use super::reference::{self, CACHE, Given, Gives, Layer, Matrix};
use crate::data::{self, Rng};
use crate::gpu::planes::Planes;
use crate::op::{Arg, Attrs, Cost, Dtype, Expected, Fill, Machine, OpCall, Problem, Shape};
use crate::quant::{WeightType, dequantize};
use crate::reference::Shaken;

/// Shapes that prove the op: each form of layer, each type, one key and many.
pub const SHAPES: &[&str] = &[
    "hidden=32,layers=1,heads=1,kv_heads=1,head_dim=8,rotary=8,ffn=32,vocab=9,capacity=1,keys=1,window=0,softcap=0,\
     norm=none,bias=none,post=none,pairs=halves,gate=silu,act=f32,body=f32,v=f32,down=f16,head=bf16",
    "hidden=64,layers=2,heads=6,kv_heads=2,head_dim=16,rotary=12,ffn=96,vocab=75,capacity=50,keys=45,window=9,softcap=0,\
     norm=none,bias=qkv,post=none,pairs=neighbours,gate=silu,act=f32,body=q4_1,v=q5_0,down=q5_1+q8_0,head=q8_0",
    "hidden=64,layers=2,heads=4,kv_heads=1,head_dim=24,rotary=24,ffn=64,vocab=33,capacity=70,keys=64,window=0,softcap=5,\
     norm=head,bias=none,post=post,pairs=halves,gate=gelu,act=f32,body=q4_0,v=iq4_nl,down=q4_0,head=f16",
    "hidden=96,layers=2,heads=3,kv_heads=1,head_dim=32,rotary=32,ffn=160,vocab=50,capacity=20,keys=18,window=0,softcap=0,\
     norm=none,bias=none,post=none,pairs=halves,gate=silu,act=int8,body=q4_1,v=q8_0,down=q4_0+q5_1,head=q8_0",
    "hidden=256,layers=1,heads=2,kv_heads=1,head_dim=128,rotary=64,ffn=256,vocab=21,capacity=40,keys=33,window=0,softcap=0,\
     norm=none,bias=none,post=none,pairs=halves,gate=silu,act=int8,body=q4_k,v=q6_k,down=q3_k,head=q5_k",
];

const SIZES: [&str; 11] =
    ["hidden", "layers", "heads", "kv_heads", "head_dim", "rotary", "ffn", "vocab", "capacity", "window", "softcap"];
const NAMES: [(&str, &[&str]); 6] = [
    ("norm", &["none", "head"]),
    ("bias", &["none", "qkv"]),
    ("post", &["none", "post"]),
    ("pairs", &["halves", "neighbours"]),
    ("gate", &["silu", "gelu"]),
    ("act", &["f32", "int8"]),
];
const TYPES: [&str; 4] = ["body", "v", "down", "head"];

pub fn check(s: &Shape) -> Result<(), String> {
    check_model(s, &["keys"])?;
    if s.size("keys") == 0 || s.size("keys") > s.size("capacity") {
        return Err(format!("{s}: keys are from 1 to capacity"));
    }
    Ok(())
}

/// Checks the fields of a model, beside which the shape has the sizes `more`.
pub fn check_model(s: &Shape, more: &[&str]) -> Result<(), String> {
    s.check(&[&SIZES, more].concat(), &[NAMES.map(|(name, _)| name).as_slice(), &TYPES].concat())?;
    for (name, values) in NAMES {
        if !values.contains(&s.name(name)) {
            return Err(format!("{s}: {name} is one of {}", values.join(", ")));
        }
    }
    for name in TYPES {
        if s.name(name).split('+').any(|t| WeightType::from_name(t).is_none()) {
            return Err(format!("{s}: {name} is a type, or types joined by +"));
        }
    }
    if s.size("layers") > 1 << 10 {
        return Err(format!("{s}: layers at most 1024"));
    }
    model(s).check()?;
    for (name, rows, cols) in matrices(s) {
        Planes::new(ty(s, name, 0), rows, cols)?;
        Planes::new(ty(s, name, 1), rows, cols)?;
    }
    Ok(())
}

/// The type called `name` in layer `layer`.
fn ty(s: &Shape, name: &str, layer: usize) -> WeightType {
    let all: Vec<&str> = s.name(name).split('+').collect();
    WeightType::from_name(all[layer % all.len()]).expect("shape was checked")
}

pub fn model(s: &Shape) -> Model {
    let on = |name: &str, value: &str| s.name(name) == value;
    Model {
        hidden: s.size("hidden"),
        layers: s.size("layers"),
        heads: s.size("heads"),
        kv_heads: s.size("kv_heads"),
        head_dim: s.size("head_dim"),
        rotary: s.size("rotary"),
        ffn: s.size("ffn"),
        vocab: s.size("vocab"),
        capacity: s.size("capacity"),
        neighbours: on("pairs", "neighbours"),
        gelu: on("gate", "gelu"),
        head_norms: on("norm", "head"),
        biases: on("bias", "qkv"),
        post_norms: on("post", "post"),
        int8: on("act", "int8"),
        eps: 1e-5,
        scale: (s.size("head_dim") as f32).sqrt().recip(),
        softcap: s.size("softcap") as f32,
        logit_softcap: 2.0 * s.size("softcap") as f32,
        embedding_scale: 1.5,
    }
}

/// Which type, rows and columns of the matrices of a layer, in arena order, then of embedding and head.
fn matrices(s: &Shape) -> [(&'static str, usize, usize); 8] {
    let m = model(s);
    [
        ("body", m.wide(), m.hidden),
        ("body", m.kv_wide(), m.hidden),
        ("v", m.kv_wide(), m.hidden),
        ("body", m.hidden, m.wide()),
        ("body", 2 * m.ffn, m.hidden),
        ("down", m.hidden, m.ffn),
        ("head", m.vocab, m.hidden),
        ("head", m.vocab, m.hidden),
    ]
}

/// What one token must read.
pub fn cost(s: &Shape) -> Cost {
    let m = model(s);
    let bytes = |layer: usize, which: std::ops::Range<usize>| -> u64 {
        let one = |(name, rows, cols): &(&str, usize, usize)| {
            Planes { ty: ty(s, name, layer), rows: *rows, cols: *cols }.bytes() as u64
        };
        matrices(s)[which].iter().map(one).sum()
    };
    let weights: usize = matrices(s)[..6].iter().map(|(_, r, c)| r * c).sum();
    let seen = if s.size("window") > 0 { s.size("window").min(s.size("keys")) } else { s.size("keys") };
    let kv = (4 * seen * m.kv_wide() * m.layers) as u64;
    Cost {
        flops: (2 * (weights * m.layers + m.vocab * m.hidden) + 4 * seen * m.wide() * m.layers) as u64,
        read_bytes: (0..m.layers).map(|l| bytes(l, 0..6)).sum::<u64>() + bytes(0, 7..8) + kv,
        write_bytes: 4 * (m.vocab + m.kv_wide() * m.layers) as u64,
        ..Cost::default()
    }
}

/// An arena that grows as tensors are put into it.
struct Arena {
    bytes: Vec<u8>,
    rng: Rng,
    fill: Fill,
}

impl Arena {
    fn vector(&mut self, values: &[f32]) -> usize {
        let at = self.bytes.len();
        self.bytes.extend(data::bytes(values));
        self.bytes.resize(self.bytes.len().next_multiple_of(16), 0);
        at
    }

    /// Weights about 1.
    fn norm(&mut self, n: usize) -> (usize, Vec<f32>) {
        let values: Vec<f32> = (0..n).map(|_| 1.0 + 0.3 * self.rng.unit()).collect();
        (self.vector(&values), values)
    }

    /// A matrix whose rows go to `place`, with products about as large as their inputs.
    fn matrix(&mut self, ty: WeightType, rows: usize, cols: usize) -> (Vec<u8>, Vec<f32>) {
        let fill = if self.fill == Fill::Unjudged { Fill::Random } else { self.fill };
        let mut file = data::weights(&mut self.rng, ty, rows, cols, fill);
        let mut values = vec![0f32; rows * cols];
        dequantize(ty, &file, &mut values);
        let square = values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / values.len() as f64;
        data::rescale(ty, &mut file, 1.0 / (square * cols as f64).sqrt().max(1e-9));
        dequantize(ty, &file, &mut values);
        (file, values)
    }

    fn put(&mut self, planes: Planes, files: &[Vec<u8>]) -> At {
        let at = self.bytes.len();
        self.bytes.resize(at + planes.bytes(), 0);
        for (i, file) in files.iter().enumerate() {
            planes.pack(file, |row| files.len() * row + i, &mut self.bytes[at..]);
        }
        At { ty: planes.ty, offset: at }
    }

    fn whole(&mut self, ty: WeightType, rows: usize, cols: usize, int8: bool) -> (At, Matrix) {
        let (file, values) = self.matrix(ty, rows, cols);
        let at = self.put(Planes { ty, rows, cols }, &[file]);
        (at, Matrix { values, int8: int8 && !ty.is_float() })
    }
}

fn layer(arena: &mut Arena, s: &Shape, index: usize) -> (LayerAt, Layer) {
    let m = model(s);
    let all = matrices(s);
    let next = |arena: &mut Arena, which: usize| {
        let (name, rows, cols) = all[which];
        arena.whole(ty(s, name, index), rows, cols, m.int8)
    };
    let (q, k, v) = (next(arena, 0), next(arena, 1), next(arena, 2));
    let (out, down) = (next(arena, 3), next(arena, 5));
    let body = ty(s, "body", index);
    let ((gate, g), (up, u)) = (arena.matrix(body, m.ffn, m.hidden), arena.matrix(body, m.ffn, m.hidden));
    let gate_up = arena.put(Planes { ty: body, rows: 2 * m.ffn, cols: m.hidden }, &[gate, up]);
    let int8 = m.int8 && !body.is_float();
    let (attn, ffn) = (arena.norm(m.hidden), arena.norm(m.hidden));
    let heads = m.head_norms.then(|| [arena.norm(m.head_dim), arena.norm(m.head_dim)]);
    let posts = m.post_norms.then(|| [arena.norm(m.hidden), arena.norm(m.hidden)]);
    let biases = m.biases.then(|| {
        [m.wide(), m.kv_wide(), m.kv_wide()].map(|n| {
            let values: Vec<f32> = (0..n).map(|_| 0.5 * arena.rng.normal()).collect();
            (arena.vector(&values), values)
        })
    });
    let window = if index.is_multiple_of(2) { s.size("window") } else { 0 };
    let at = LayerAt {
        attn_norm: attn.0,
        ffn_norm: ffn.0,
        head_norms: heads.as_ref().map(|h| h.each_ref().map(|h| h.0)),
        biases: biases.as_ref().map(|b| b.each_ref().map(|b| b.0)),
        post_norms: posts.as_ref().map(|p| p.each_ref().map(|p| p.0)),
        qkv: [q.0, k.0, v.0],
        out: out.0,
        gate_up,
        down: down.0,
        window,
        table: 0,
    };
    let values = Layer {
        norms: [attn.1, ffn.1],
        head_norms: heads.map(|h| h.map(|h| h.1)),
        biases: biases.map(|b| b.map(|b| b.1)),
        post_norms: posts.map(|p| p.map(|p| p.1)),
        qkv: [q.1, k.1, v.1],
        out: out.1,
        gate_up: [Matrix { values: g, int8 }, Matrix { values: u, int8 }],
        down: down.1,
        window,
    };
    (at, values)
}

/// A model with its arena; what it is given lacks the token, the angles and the caches.
pub struct Built {
    pub at: ModelAt,
    pub given: Given,
    pub arena: Vec<u8>,
    embedding: Vec<f32>,
}

impl Built {
    /// Row of the embedding.
    pub fn embedding(&self, token: usize) -> &[f32] {
        let cols = self.given.output_norm.len();
        &self.embedding[token * cols..(token + 1) * cols]
    }
}

pub fn build(s: &Shape, rng: Rng, fill: Fill) -> Built {
    let m = model(s);
    let mut arena = Arena { bytes: Vec::new(), rng, fill };
    let (embed, (_, rows, cols)) = (ty(s, "head", 0), matrices(s)[6]);
    let (embedding, table) = arena.whole(embed, rows, cols, false);
    let (head, head_values) = arena.whole(embed, rows, cols, m.int8);
    let output_norm = arena.norm(m.hidden);
    let (mut at, mut layers) = (Vec::new(), Vec::new());
    for index in 0..m.layers {
        let (a, l) = layer(&mut arena, s, index);
        at.push(a);
        layers.push(l);
    }
    let given = Given {
        embedding: Vec::new(),
        layers,
        output_norm: output_norm.1,
        head: head_values,
        angles: Vec::new(),
        caches: Vec::new(),
    };
    arena.bytes.resize(arena.bytes.len() + 256, 0);
    let at = ModelAt { embedding, head, output_norm: output_norm.0, layers: at };
    Built { at, given, arena: arena.bytes, embedding: table.values }
}

/// Keys or values of a layer: what the reference sees of the positions before, and what the cache holds, with NaN at
/// places that nothing may read.
pub fn cache(rng: &mut Rng, m: &Model, seen: std::ops::Range<usize>) -> (Vec<f32>, Vec<f32>) {
    let mut held = vec![f32::NAN; m.kv_heads * m.capacity * m.head_dim];
    let mut past = vec![0.0; seen.end * m.kv_wide()];
    for position in seen {
        for head in 0..m.kv_heads {
            for i in 0..m.head_dim {
                let v = half::f16::from_f32(rng.normal()).to_f32();
                held[(head * m.capacity + position) * m.head_dim + i] = v;
                past[position * m.kv_wide() + head * m.head_dim + i] = v;
            }
        }
    }
    (past, held)
}

/// The caches after: all as before, but for the slots of new tokens, of each its position and `[layer][key or value]`.
pub fn caches_after(m: &Model, before: &[f32], which: usize, new: &[(usize, &[[Expected; 2]])]) -> Expected {
    let mut values: Vec<f64> = before.iter().map(|v| f64::from(*v)).collect();
    let mut bounds = vec![0.0; values.len()];
    for (position, layers) in new {
        for (layer, slots) in layers.iter().enumerate() {
            for head in 0..m.kv_heads {
                let to = ((layer * m.kv_heads + head) * m.capacity + position) * m.head_dim;
                let from = head * m.head_dim..(head + 1) * m.head_dim;
                values[to..to + m.head_dim].copy_from_slice(&slots[which].values[from.clone()]);
                bounds[to..to + m.head_dim].copy_from_slice(&slots[which].bounds[from]);
            }
        }
    }
    Expected { dtype: CACHE, values, bounds, untouched: 0 }
}

/// The angles of a position.
pub fn angles(s: &Shape, position: usize) -> Vec<f64> {
    let turn = |i: usize| position as f64 * 10_000f64.powf(-2.0 * i as f64 / s.size("rotary") as f64);
    (0..s.size("rotary") / 2).map(turn).collect()
}

/// Of every position the cosines of its angles, then the sines.
pub fn ropes(s: &Shape) -> Vec<f32> {
    let row = |p: usize| {
        let angles = angles(s, p);
        let half = |f: fn(f64) -> f64| angles.iter().map(move |a| f(*a) as f32).collect::<Vec<f32>>();
        [half(f64::cos), half(f64::sin)].concat()
    };
    (0..s.size("capacity")).flat_map(row).collect()
}

/// Exact results, those of plain arithmetic and of other draws of it, whose bound is at least three times what `moved`,
/// results of moved inputs if any, differ from the exact ones by.
pub fn blurred(dtype: Dtype, (y64, y32, draws): (&[f64], &[f32], &[Vec<Shaken>]), moved: &[&[f64]]) -> Expected {
    // There is no ceiling: a rounding to f16 or to bytes that turns counts for more than any of f32.
    let mut expected = Expected::drawn_below(dtype, y64.to_vec(), (y32, draws), &vec![f64::INFINITY; y64.len()]);
    let plain: Vec<f64> = y32.iter().map(|v| f64::from(*v)).collect();
    let far = |other: &[f64]| other.iter().zip(y64).fold(0f64, |m, (a, b)| m.max((a - b).abs()));
    if let Some(most) = moved.iter().map(|o| far(o)).reduce(f64::max) {
        let most = most.max(far(&plain));
        expected.bounds.iter_mut().for_each(|b| *b = b.max(3.0 * most));
    }
    expected
}

/// Expected logits, keys and values.
struct Bounded {
    logits: Expected,
    new: Vec<[Expected; 2]>,
}

/// The exact results with their bounds.
///
/// Where inputs are rounded to bytes, a last bit of difference may turn a code, whoever computes it: there the bound is
/// three times what the exact results move by when the first layer's input moves by some roundings of f32.
fn bounded(m: &Model, given: &Given) -> Bounded {
    let exact = reference::step::<f64>(m, given, 0.0);
    let plain = reference::step::<f32>(m, given, 0.0);
    let moved: Vec<Gives<f64>> = match m.int8 {
        true => [-3e-7, -1e-7, 1e-7, 3e-7, 1e-6].map(|nudge| reference::step(m, given, nudge)).to_vec(),
        false => Vec::new(),
    };
    // A last bit may turn the rounding of a new key to f16, too, which moves all logits: some draws show it.
    let draws = match m.int8 {
        true => Vec::new(),
        false => Shaken::draws(Dtype::F32, m.vocab, || reference::step::<Shaken>(m, given, 0.0)),
    };
    let logits = {
        let moved: Vec<&[f64]> = moved.iter().map(|g| &g.logits[..]).collect();
        let draws: Vec<Vec<Shaken>> = draws.iter().map(|g| g.logits.clone()).collect();
        blurred(Dtype::F32, (&exact.logits, &plain.logits, &draws), &moved)
    };
    let slot = |layer: usize, which: usize| {
        let moved: Vec<&[f64]> = moved.iter().map(|g| &g.new[layer][which][..]).collect();
        let draws: Vec<Vec<Shaken>> = draws.iter().map(|g| g.new[layer][which].clone()).collect();
        blurred(CACHE, (&exact.new[layer][which], &plain.new[layer][which], &draws), &moved)
    };
    Bounded { logits, new: (0..m.layers).map(|l| [slot(l, 0), slot(l, 1)]).collect() }
}

fn unjudged(m: &Model) -> Bounded {
    let zeros = |dtype, n| Expected::exact(dtype, vec![0.0; n]);
    let new = (0..m.layers).map(|_| [zeros(CACHE, m.kv_wide()), zeros(CACHE, m.kv_wide())]).collect();
    Bounded { logits: zeros(Dtype::F32, m.vocab), new }
}

/// Words of the step before, and after `drawn`, if any.
fn steps_words(token: usize, position: usize, drawn: Option<u32>) -> (Vec<u8>, Expected) {
    let mut words = vec![0u32; STEP_WORDS];
    let count = RING as u32 + 5;
    (words[0], words[1], words[2]) = (token as u32, position as u32, count);
    let before = data::bytes_u32(&words);
    if let Some(id) = drawn {
        (words[0], words[1], words[2]) = (id, position as u32 + 1, count + 1);
        words[4 + count as usize % RING] = id;
    }
    (before, Expected::exact(Dtype::U32, words.iter().map(|w| f64::from(*w)).collect()))
}

/// The words of the barrier, which may end as anything.
pub fn barrier_words() -> Arg {
    let any = Expected::exact(Dtype::U32, vec![0.0; SYNC_WORDS]);
    Arg::InOut(vec![0; 4 * SYNC_WORDS], Expected { bounds: vec![f64::INFINITY; SYNC_WORDS], ..any })
}

pub fn problem(s: &Shape, seed: u64, fill: Fill) -> Problem {
    let (m, mut rng) = (model(s), Rng::new(seed));
    let (token, position) = (rng.index(m.vocab), s.size("keys") - 1);
    let mut built = build(s, rng.clone(), fill);
    built.given.embedding = built.embedding(token).to_vec();
    built.given.angles = angles(s, position);
    let ropes = ropes(s);
    let mut held = [Vec::new(), Vec::new()];
    for layer in 0..m.layers {
        let window = built.given.layers[layer].window;
        let oldest = if window > 0 { (position + 1).saturating_sub(window) } else { 0 };
        let [(k, all_k), (v, all_v)] = [0, 1].map(|_| cache(&mut rng, &m, oldest..position));
        built.given.caches.push([k, v]);
        held[0].extend(all_k);
        held[1].extend(all_v);
    }
    let judged = fill != Fill::Unjudged;
    let y = if judged { bounded(&m, &built.given) } else { unjudged(&m) };
    // A token is drawn where bytes do not blur which logit is the largest.
    let best = |values: &[f64]| values.iter().enumerate().fold(0, |b, (i, v)| if *v > values[b] { i } else { b });
    let drawn = (!m.int8).then(|| best(&y.logits.values) as u32);
    let (before, after) = steps_words(token, position, drawn.filter(|_| judged));
    let [keys, values] = held;
    let [after_k, after_v] = [(0, &keys), (1, &values)].map(|(i, x)| caches_after(&m, x, i, &[(position, &y.new)]));
    Problem {
        shape: s.clone(),
        attrs: Attrs::new().with("draw", f64::from(u32::from(drawn.is_some() && judged))),
        args: vec![
            Arg::In(built.arena),
            Arg::In(data::bytes_u32(&built.at.table(&m).expect("a small arena"))),
            Arg::InOut(before, after),
            Arg::In(data::bytes(&ropes)),
            Arg::InOut(data::bytes_f16(&keys), after_k),
            Arg::InOut(data::bytes_f16(&values), after_v),
            Arg::Scratch(m.work_bytes()),
            Arg::Out(y.logits),
            barrier_words(),
        ],
        label: format!("{fill:?} seed={seed}"),
    }
}

/// Where the tensors of a problem of this shape lie: the same for every seed.
pub fn places(s: &Shape) -> ModelAt {
    let m = model(s);
    let mut end = 0;
    let mut take = |bytes: usize| {
        let at = end;
        end = (end + bytes).next_multiple_of(16);
        at
    };
    let all = matrices(s);
    let matrix = |take: &mut dyn FnMut(usize) -> usize, which: usize, layer: usize| {
        let (name, rows, cols) = all[which];
        let ty = ty(s, name, layer);
        At { ty, offset: take(Planes { ty, rows, cols }.bytes()) }
    };
    let (embedding, head) = (matrix(&mut take, 6, 0), matrix(&mut take, 7, 0));
    let output_norm = take(4 * m.hidden);
    let layers = (0..m.layers).map(|l| {
        let qkv = [0, 1, 2].map(|which| matrix(&mut take, which, l));
        let (out, down, gate_up) = (matrix(&mut take, 3, l), matrix(&mut take, 5, l), matrix(&mut take, 4, l));
        let [attn_norm, ffn_norm] = [0, 0].map(|_| take(4 * m.hidden));
        let head_norms = m.head_norms.then(|| [0, 0].map(|_| take(4 * m.head_dim)));
        let post_norms = m.post_norms.then(|| [0, 0].map(|_| take(4 * m.hidden)));
        let biases = m.biases.then(|| [m.wide(), m.kv_wide(), m.kv_wide()].map(|n| take(4 * n)));
        let window = if l.is_multiple_of(2) { s.size("window") } else { 0 };
        LayerAt { attn_norm, ffn_norm, head_norms, biases, post_norms, qkv, out, gate_up, down, window, table: 0 }
    });
    let layers = layers.collect();
    ModelAt { embedding, head, output_norm, layers }
}

pub fn steps(call: &OpCall, config: &Config, machine: &Machine<'_>) -> Result<Vec<Launch>, Rejection> {
    let Some((memory, [])) = call.args.split_first_chunk() else {
        return Err(Rejection::Constraint(format!("decode takes 9 arguments, not {}", call.args.len())));
    };
    let memory = Memory::of(memory.clone());
    let draw = if call.attrs.is("draw") { Draw::Greedy } else { Draw::None };
    step((&model(&call.shape), &places(&call.shape)), &memory, &draw, config, machine)
}

#[cfg(test)]
mod tests {
    use super::{SHAPES, build, model, places};
    use crate::data::Rng;
    use crate::op::Fill;

    #[test]
    fn tensors_lie_where_the_shape_says() {
        for shape in SHAPES {
            let shape = shape.parse().expect("a shape");
            let built = build(&shape, Rng::new(1), Fill::Random);
            let m = model(&shape);
            assert_eq!(built.at.table(&m).ok(), places(&shape).table(&m).ok(), "{shape}");
        }
    }
}
