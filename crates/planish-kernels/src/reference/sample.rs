//! The sampler by its definition: full sorts, f64 probabilities, explicit sets.

/// One token's occurrences in the penalty window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenCount {
    /// Token id.
    pub token: u32,
    /// Occurrences, at least 1.
    pub count: u32,
}

/// In which order filters and temperature apply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Order {
    /// Penalties, top-k, top-p, min-p, temperature: llama.cpp's default list.
    #[default]
    TemperatureLast,
    /// Penalties, temperature, top-k, top-p, min-p: transformers' order, which keeps all ties of top-k.
    TemperatureFirst,
}

/// What a request asks of the sampler. The default is greedy without penalties.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Params {
    /// Order of steps.
    pub order: Order,
    /// Divides logits; 0 or less takes the largest.
    pub temperature: f32,
    /// Keeps the largest k; 0 keeps all.
    pub top_k: usize,
    /// Keeps the shortest prefix of falling probability with at least this mass; 1 or more keeps all.
    pub top_p: f32,
    /// Keeps tokens of at least this share of the largest probability; 0 keeps all.
    pub min_p: f32,
    /// Divides positive logits of seen tokens and multiplies the others; 1 is off.
    pub repetition: f32,
    /// Subtracted once an occurrence.
    pub frequency: f32,
    /// Subtracted from every seen token.
    pub presence: f32,
}

impl Default for Params {
    fn default() -> Self {
        Params {
            order: Order::TemperatureLast,
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition: 1.0,
            frequency: 0.0,
            presence: 0.0,
        }
    }
}

/// A logit after the penalties, NaN taken as -inf.
pub fn penalised(logit: f32, count: u32, p: &Params) -> f32 {
    let x = if logit.is_nan() { f32::NEG_INFINITY } else { logit };
    if count == 0 {
        return x;
    }
    let x = if x <= 0.0 { x * p.repetition } else { x / p.repetition };
    x - (count as f32 * p.frequency + p.presence)
}

/// The kept tokens with their probabilities, by id; empty if every logit is -inf.
pub fn distribution(logits: &[f32], history: &[TokenCount], p: &Params) -> Vec<(u32, f64)> {
    let count = |v: usize| history.iter().find(|h| h.token as usize == v).map_or(0, |h| h.count);
    let mut kept: Vec<(u32, f64)> = (0..logits.len())
        .map(|v| (v as u32, penalised(logits[v], count(v), p) as f64))
        .filter(|x| x.1 > f64::NEG_INFINITY)
        .collect();
    kept.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    let Some(&largest) = kept.first() else { return kept };
    if p.temperature <= 0.0 {
        return vec![(largest.0, 1.0)];
    }
    let temper = |kept: &mut Vec<(u32, f64)>| kept.iter_mut().for_each(|x| x.1 /= p.temperature as f64);
    if p.order == Order::TemperatureFirst {
        temper(&mut kept);
    }
    if p.top_k > 0 && p.top_k < kept.len() {
        let last = kept[p.top_k - 1].1;
        let ties = if p.order == Order::TemperatureFirst { kept.iter().filter(|x| x.1 >= last).count() } else { 0 };
        kept.truncate(p.top_k.max(ties));
    }
    if p.top_p < 1.0 {
        let weights = weights(&kept);
        let total: f64 = weights.iter().sum();
        let mut mass = 0.0;
        let reach = weights.iter().position(|w| {
            mass += w;
            mass >= p.top_p as f64 * total
        });
        kept.truncate(reach.map_or(kept.len(), |n| n + 1));
    }
    if p.min_p > 0.0 {
        let floor = kept[0].1 + (p.min_p as f64).ln();
        let largest = kept[0].1;
        kept.retain(|x| x.1 >= floor || x.1 == largest);
    }
    if p.order == Order::TemperatureLast {
        temper(&mut kept);
    }
    let weights = weights(&kept);
    let total: f64 = weights.iter().sum();
    kept.iter_mut().zip(weights).for_each(|(x, w)| x.1 = w / total);
    kept.sort_by_key(|x| x.0);
    kept
}

/// e^(x - largest) of a list that begins with the largest.
fn weights(kept: &[(u32, f64)]) -> Vec<f64> {
    kept.iter().map(|x| (x.1 - kept[0].1).exp()).collect()
}
