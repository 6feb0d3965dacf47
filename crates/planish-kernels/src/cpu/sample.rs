//! The fused sampler: penalties, top-k, top-p, min-p, temperature and the draw. Bound by one reading of the logits.
//!
//! One vector pass takes the largest logit of each block of 64. Those block maxima then bound every filter: a block whose
//! largest is under the threshold is never looked at again, so only survivors are gathered, and only they are sorted.
//! The draw runs over survivors by token id, so that it does not depend on how they were found.

use crate::Error;
use crate::cpu::isa::Isa;
use crate::cpu::simd::{self, LANES, Simd, isa_kernel};
pub use crate::reference::sample::{Order, Params, TokenCount, penalised};

/// Logits a block.
const BLOCK: usize = 64;

/// Memory that sampling needs, made once for a vocabulary.
#[derive(Clone, Debug)]
pub struct Workspace {
    block_max: Vec<f32>,
    ranks: Vec<f32>,
    kept: Vec<Candidate>,
}

/// A token that may still be drawn.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    token: u32,
    logit: f32,
    weight: f32,
}

/// Which draw this is: equal seeds and draws give equal numbers, whatever was drawn before or beside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Draw {
    /// Key of the generator.
    pub seed: u64,
    /// Which sequence.
    pub sequence: u64,
    /// Which token of it.
    pub step: u64,
}

impl Workspace {
    /// Memory for `vocabulary` logits; sampling them allocates nothing.
    pub fn new(vocabulary: usize) -> Workspace {
        let blocks = vocabulary.div_ceil(BLOCK);
        Workspace {
            block_max: Vec::with_capacity(blocks),
            ranks: Vec::with_capacity(blocks),
            kept: Vec::with_capacity(vocabulary),
        }
    }
}

isa_kernel! {
    /// Largest value of each block of 64 logits (NaN taken as -inf) into `out`, one a block.
    ///
    /// # Safety
    /// Of the returned function: none beyond the instruction set, which has been checked.
    fn maxima(logits: &[f32], out: &mut [f32]) = maxima_body
}

isa_kernel! {
    /// x <- e^((x - largest) * factor), as f32.
    ///
    /// # Safety
    /// As `maxima`.
    fn exponentials(x: &mut [f32], largest: f32, factor: f32) = exponentials_body
}

#[inline(always)]
unsafe fn maxima_body<S: Simd>(_: S, logits: &[f32], out: &mut [f32]) {
    for (block, out) in logits.chunks(BLOCK).zip(out) {
        // SAFETY: lanes at..at + n are inside the block.
        unsafe {
            let mut m = S::splat(f32::NEG_INFINITY);
            for at in (0..block.len()).step_by(LANES) {
                let n = (block.len() - at).min(LANES);
                let v = simd::load_part::<S>(block.as_ptr().add(at), n, f32::NEG_INFINITY);
                m = S::max(v, m); // a NaN is not greater, so m stays
            }
            *out = simd::maximum::<S>(m);
        }
    }
}

#[inline(always)]
unsafe fn exponentials_body<S: Simd>(_: S, x: &mut [f32], largest: f32, factor: f32) {
    for at in (0..x.len()).step_by(LANES) {
        let n = (x.len() - at).min(LANES);
        // SAFETY: lanes at..at + n are inside x.
        unsafe {
            let p = x.as_mut_ptr().add(at);
            let v = S::sub(simd::load_part::<S>(p, n, 0.0), S::splat(largest));
            simd::store_part::<S>(p, simd::exp::<S>(S::mul(v, S::splat(factor))), n);
        }
    }
}

/// Token of the largest logit, the lowest id of equals; NaN counts as -inf.
///
/// # Errors
/// If every logit is -inf or NaN, or there is none.
pub fn argmax(isa: Isa, logits: &[f32], workspace: &mut Workspace) -> Result<u32, Error> {
    let largest = block_maxima(isa, logits, workspace)?;
    Ok(first_equal(logits, &workspace.block_max, largest))
}

fn first_equal(logits: &[f32], block_max: &[f32], largest: f32) -> u32 {
    let block = block_max.iter().position(|&m| m == largest).expect("the largest is some block's largest");
    let inside = logits[block * BLOCK..].iter().position(|&x| x == largest).expect("it is in that block");
    (block * BLOCK + inside) as u32
}

/// Fills `block_max` and returns the largest logit.
fn block_maxima(isa: Isa, logits: &[f32], workspace: &mut Workspace) -> Result<f32, Error> {
    workspace.block_max.clear();
    workspace.block_max.resize(logits.len().div_ceil(BLOCK), f32::NEG_INFINITY);
    // SAFETY: the kernel has no contract beyond its instruction set.
    unsafe { maxima(isa)(logits, &mut workspace.block_max) };
    let largest = workspace.block_max.iter().fold(f32::NEG_INFINITY, |a, &b| if b > a { b } else { a });
    match largest {
        f32::NEG_INFINITY => {
            Err(Error::new(format!("sampler: none of {} logits is a number above -inf", logits.len())))
        }
        f32::INFINITY => Err(Error::new(format!("sampler: one of {} logits is +inf", logits.len()))),
        _ => Ok(largest),
    }
}

/// Draws a token. `logits` are left with the penalties applied; `history` counts the tokens of the penalty window.
///
/// # Errors
/// If no logit is above -inf, one is +inf, or a history token is outside the vocabulary.
pub fn sample(
    isa: Isa,
    (logits, history): (&mut [f32], &[TokenCount]),
    params: &Params,
    draw: Draw,
    workspace: &mut Workspace,
) -> Result<u32, Error> {
    let vocabulary = logits.len();
    for h in history {
        let logit = logits
            .get_mut(h.token as usize)
            .ok_or_else(|| Error::new(format!("sampler: history has token {} of {vocabulary}", h.token)))?;
        *logit = penalised(*logit, h.count, params);
    }
    let largest = block_maxima(isa, logits, workspace)?;
    if params.temperature <= 0.0 {
        return Ok(first_equal(logits, &workspace.block_max, largest));
    }
    survivors(isa, logits, largest, params, workspace);
    Ok(pick(isa, &mut workspace.kept, largest, params.temperature, uniform(draw)))
}

/// Leaves in `kept` the tokens that pass every filter.
fn survivors(isa: Isa, logits: &[f32], largest: f32, params: &Params, w: &mut Workspace) {
    // What a logit is divided by where probabilities of the filters are taken.
    let heat = if params.order == Order::TemperatureFirst { params.temperature } else { 1.0 };
    let floor = if params.min_p > 0.0 { (largest + params.min_p.ln() * heat).min(largest) } else { f32::NEG_INFINITY };
    let top_k = if params.top_k < logits.len() { params.top_k } else { 0 };
    if top_k > 0 {
        let bound = kth_bound(&w.block_max, top_k, &mut w.ranks);
        gather(logits, &w.block_max, bound, &mut w.kept);
        keep_top(&mut w.kept, top_k, params.order);
        if params.top_p < 1.0 {
            let total = weigh(isa, &mut w.kept, largest, heat);
            keep_mass(&mut w.kept, params.top_p as f64 * total);
        }
        w.kept.retain(|c| c.logit >= floor);
    } else if params.top_p < 1.0 {
        mass_of_all(isa, (logits, largest), heat, params.top_p as f64, w);
        w.kept.retain(|c| c.logit >= floor);
    } else {
        gather(logits, &w.block_max, floor, &mut w.kept);
    }
}

/// A bound that at least `k` logits reach: the k-th largest of the block maxima, or -inf if there are fewer blocks.
fn kth_bound(block_max: &[f32], k: usize, ranks: &mut Vec<f32>) -> f32 {
    if k > block_max.len() {
        return f32::NEG_INFINITY;
    }
    ranks.clear();
    ranks.extend_from_slice(block_max);
    *ranks.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a)).1
}

/// The logits from `bound` up (never -inf or NaN), by token.
fn gather(logits: &[f32], block_max: &[f32], bound: f32, kept: &mut Vec<Candidate>) {
    kept.clear();
    for (block, chunk) in logits.chunks(BLOCK).enumerate().filter(|(block, _)| block_max[*block] >= bound) {
        for (i, &logit) in chunk.iter().enumerate() {
            if logit >= bound && logit > f32::NEG_INFINITY {
                kept.push(Candidate { token: (block * BLOCK + i) as u32, logit, weight: 0.0 });
            }
        }
    }
}

/// Larger logit first, then lower token.
fn falling(a: &Candidate, b: &Candidate) -> std::cmp::Ordering {
    b.logit.total_cmp(&a.logit).then(a.token.cmp(&b.token))
}

/// Keeps the first `k` in falling order, and in transformers' order every tie of the last.
fn keep_top(kept: &mut Vec<Candidate>, k: usize, order: Order) {
    if k >= kept.len() {
        return;
    }
    let last = kept.select_nth_unstable_by(k - 1, falling).1.logit;
    match order {
        Order::TemperatureLast => kept.truncate(k),
        Order::TemperatureFirst => kept.retain(|c| c.logit >= last),
    }
}

/// Gives each candidate its weight e^((x - largest) / heat) and returns their sum.
fn weigh(isa: Isa, kept: &mut [Candidate], largest: f32, heat: f32) -> f64 {
    let (mut total, exponentials, factor) = (0.0, exponentials(isa), reciprocal(heat));
    for chunk in kept.chunks_mut(BLOCK) {
        let mut x = [largest; BLOCK];
        chunk.iter().zip(&mut x).for_each(|(c, x)| *x = c.logit);
        // SAFETY: the kernel has no contract beyond its instruction set.
        unsafe { exponentials(&mut x, largest, factor) };
        for (c, &weight) in chunk.iter_mut().zip(&x) {
            c.weight = weight;
            total += weight as f64;
        }
    }
    total
}

/// 1 / heat, finite: the product with a difference of zero must stay zero.
fn reciprocal(heat: f32) -> f32 {
    (1.0 / heat).min(f32::MAX)
}

/// Keeps the shortest prefix in falling order whose weights reach `mass`, and tells whether they do.
fn keep_mass(kept: &mut Vec<Candidate>, mass: f64) -> bool {
    kept.sort_unstable_by(falling);
    let mut sum = 0.0;
    let reach = kept.iter().position(|c| {
        sum += c.weight as f64;
        sum >= mass
    });
    kept.truncate(reach.map_or(kept.len(), |n| n + 1));
    reach.is_some()
}

/// Top-p over the whole vocabulary: the total in one pass, then the prefix among ever more candidates until it is reached.
fn mass_of_all(isa: Isa, (logits, largest): (&[f32], f32), heat: f32, top_p: f64, w: &mut Workspace) {
    let (mut total, exponentials, factor) = (0.0, exponentials(isa), reciprocal(heat));
    let mut x = [0.0; BLOCK];
    for chunk in logits.chunks(BLOCK) {
        for (x, &logit) in x.iter_mut().zip(chunk) {
            *x = if logit.is_nan() { f32::NEG_INFINITY } else { logit };
        }
        x[chunk.len()..].fill(f32::NEG_INFINITY);
        // SAFETY: the kernel has no contract beyond its instruction set.
        unsafe { exponentials(&mut x, largest, factor) };
        // Sums of a few non-negative f32 lanes, then f64.
        total += x.chunks_exact(8).map(|c| c.iter().sum::<f32>() as f64).sum::<f64>();
    }
    let mut depth = 4.0;
    loop {
        let bound = if depth > 64.0 { f32::NEG_INFINITY } else { largest - depth * heat };
        gather(logits, &w.block_max, bound, &mut w.kept);
        let found = weigh(isa, &mut w.kept, largest, heat);
        if found >= top_p * total || bound == f32::NEG_INFINITY {
            keep_mass(&mut w.kept, top_p * total);
            return;
        }
        depth *= 2.0;
    }
}

/// The first survivor by token whose cumulative weight exceeds `u` of the total.
fn pick(isa: Isa, kept: &mut [Candidate], largest: f32, temperature: f32, u: f64) -> u32 {
    kept.sort_unstable_by_key(|c| c.token);
    let total = weigh(isa, kept, largest, temperature);
    let mut sum = 0.0;
    for c in kept.iter() {
        sum += c.weight as f64;
        if sum > u * total {
            return c.token;
        }
    }
    // u < 1 and the same sums: only a total of weights that all vanish could come here, and the largest weighs 1.
    unreachable!("{} survivors weigh {total}, {u} of it was not reached", kept.len())
}

/// A number in [0, 1) with 53 random bits, from the counter (sequence, step) under the key `seed`.
pub fn uniform(draw: Draw) -> f64 {
    let split = |x: u64| [x as u32, (x >> 32) as u32];
    let ([a, b], [c, d]) = (split(draw.step), split(draw.sequence));
    let x = philox([a, b, c, d], split(draw.seed));
    let bits = (x[0] as u64) << 32 | x[1] as u64;
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

/// Philox4x32-10 (Salmon et al. 2011): ten rounds of two 32-bit products over a 128-bit counter.
pub fn philox(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let (mut c, mut k) = (counter, key);
    for _ in 0..10 {
        let (p, q) = (0xd251_1f53u64 * c[0] as u64, 0xcd9e_8d57u64 * c[2] as u64);
        c = [(q >> 32) as u32 ^ c[1] ^ k[0], q as u32, (p >> 32) as u32 ^ c[3] ^ k[1], p as u32];
        k = [k[0].wrapping_add(0x9e37_79b9), k[1].wrapping_add(0xbb67_ae85)];
    }
    c
}

#[cfg(test)]
#[path = "sample_tests.rs"]
mod tests;
