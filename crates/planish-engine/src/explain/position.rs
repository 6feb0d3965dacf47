//! Positions at which a token is taken apart: their order, the cache before them, and the line over them.

use planish_tune::counted;

use super::step::Step;
use super::{At, Context, Demand, Effort, fit, token};
use crate::error::{Error, Result};
use crate::verify::Feed;

/// All positions, the deepest first: a cache can only be cut.
pub fn descending(effort: &Effort) -> Vec<usize> {
    let mut all = effort.positions.clone();
    all.push(effort.position);
    all.sort_unstable_by(|a, b| b.cmp(a));
    all.dedup();
    all
}

/// Refuses to measure at another position than the one that is reported.
pub fn held(held: usize, position: usize) -> Result<()> {
    if held == position {
        return Ok(());
    }
    Err(Error::request(format!("{held} tokens are in the cache where {position} are measured")))
}

/// Fills a cache of `context` positions with tokens that differ, up to the last position that is measured; each must have
/// room for `behind` tokens.
pub fn fill(decoder: &mut dyn Feed, effort: &Effort, (vocab, context): (usize, usize), behind: usize) -> Result<()> {
    let deepest = effort.positions.iter().copied().fold(effort.position, usize::max);
    if deepest + behind > context {
        let tokens = counted(behind, "token");
        let message = format!("position {deepest} and {tokens} from it on in a cache of {context}");
        return Err(Error::request(message).with_hint("use a larger --context, or smaller positions"));
    }
    decoder.truncate(0);
    let ids: Vec<u32> = (0..deepest).map(|i| token(i, vocab)).collect();
    if !ids.is_empty() {
        decoder.feed(&ids)?;
    }
    Ok(())
}

/// The points in order, and the line of attention over the position.
pub fn context(mut points: Vec<At>, step: &Step) -> Context {
    points.sort_by_key(|p| p.position);
    let xy: Vec<(f64, f64)> = points.iter().map(|p| (p.position as f64, p.attention_ns.median)).collect();
    let a_key = step.pieces.iter().filter(|p| p.window == 0).fold(Demand::default(), |sum, p| sum + p.a_key);
    Context { line: fit::line(&xy), points, bytes_a_position: a_key.read_bytes }
}
