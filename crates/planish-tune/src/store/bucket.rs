//! Buckets of shapes: what was tuned for one number of tokens or positions serves its neighbours inside explicit edges.
//!
//! Without them every `--context` and every chunk would be a kernel of its own to tune; without edges a choice for one
//! token would serve thousands.

use std::cmp::Reverse;

use super::record::Key;

/// Dimensions that differ from run to run of one model, and the largest size at which anything is shared.
///
/// The edges are the powers of two up to there, so that sizes of a bucket are within a factor of two; size 1, which has
/// kernels of its own, is a bucket alone.
pub const BUCKET_DIMS: [(&str, u64); 2] = [("batch", 4096), ("context", 1 << 20)];

impl Key {
    /// The sizes of `BUCKET_DIMS`, in their order; `None` for one that the shape lacks or that is no number.
    fn bucket_sizes(&self) -> [Option<u64>; BUCKET_DIMS.len()] {
        BUCKET_DIMS.map(|(name, _)| {
            self.shape().split(',').find_map(|part| part.strip_prefix(name)?.strip_prefix('=')?.parse().ok())
        })
    }

    /// The bucket: this key with the sizes of `BUCKET_DIMS` at their upper edges.
    ///
    /// `None` where the shape has none of them, or a size outside all edges: such a key shares nothing.
    pub fn bucket(&self) -> Option<Key> {
        let sizes = self.bucket_sizes();
        let inside = BUCKET_DIMS.iter().zip(sizes).all(|((_, most), n)| n.is_none_or(|n| (1..=*most).contains(&n)));
        if !inside || sizes.iter().all(Option::is_none) {
            return None;
        }
        let edge = |part: &str| {
            let dim = part.split_once('=').and_then(|(name, _)| BUCKET_DIMS.iter().position(|d| d.0 == name));
            match dim.and_then(|i| Some((BUCKET_DIMS[i].0, sizes[i]?))) {
                Some((name, size)) => format!("{name}={}", size.next_power_of_two()),
                None => part.to_owned(),
            }
        };
        let shape = self.shape().split(',').map(edge).collect::<Vec<_>>().join(",");
        Some(Key::parse(self.op(), &shape).expect("the names are the same, and numbers are words"))
    }

    /// How near `other`, of the same bucket, is to this key; less is nearer.
    ///
    /// What was tuned for at least as many tokens and positions comes first: shorter steps run through it anyway.
    pub(super) fn distance<'k>(&self, other: &'k Key) -> (bool, u64, Reverse<&'k Key>) {
        let pairs = || self.bucket_sizes().into_iter().zip(other.bucket_sizes()).filter_map(|(a, b)| a.zip(b));
        let apart = |(a, b): (u64, u64)| a.abs_diff(b).saturating_mul(1 << 20) / a.next_power_of_two().max(1);
        (pairs().any(|(mine, theirs)| theirs < mine), pairs().map(apart).sum(), Reverse(other))
    }
}
