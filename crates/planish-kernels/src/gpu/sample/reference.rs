//! The token that the sampler's definition draws, where u is not too near an edge for f32 weights to decide.

use crate::reference::sample::{Params, TokenCount, distribution};

/// How near an edge u may be: ten times what f32 weights differ by.
const EDGE: f64 = 1e-5;

/// The token drawn with `u`: `Err` if u is too near an edge, none if no token can be drawn.
pub fn draw(logits: &[f32], history: &[TokenCount], params: &Params, u: f64) -> Result<Option<u32>, ()> {
    if logits.contains(&f32::INFINITY) {
        return Ok(None);
    }
    let kept = distribution(logits, history, params);
    let mut sum = 0.0;
    for (i, &(token, p)) in kept.iter().enumerate() {
        let (below, last) = (sum, i + 1 == kept.len());
        sum += p;
        if sum > u || last {
            let near = (i > 0 && u - below < EDGE) || (!last && sum - u < EDGE);
            return if near { Err(()) } else { Ok(Some(token)) };
        }
    }
    Ok(None)
}
