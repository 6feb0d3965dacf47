//! How fast a card reads its memory: sums over a region far larger than its caches.

use std::collections::BTreeMap;

use super::Cuda;
use crate::backend::{Backend, Launch, Params, Source};
use crate::error::Error;
use crate::memory::Init;

/// Bytes read in a pass, unless an eighth of the card's memory is less.
const BYTES: usize = 1 << 30;
/// Samples, of which the fastest counts, and passes in each.
const SAMPLES: (usize, u32) = (5, 4);
/// Threads of a group.
const THREADS: usize = 256;
/// Vectors of 16 bytes that a thread reads, all of them in flight at once.
const VECTORS: usize = 16;

const TEXT: &str = "
// Every group reads its own stretch of x once; the sums are written so that no load can be left out.
struct ReadParams { uint vectors; };
KERNEL(read_all, IN(uint4, x, 0), OUT(uint, y, 1), PARAMS(ReadParams, p, 2))
{
    const uint first = TG_X * GROUP_THREADS * SHAPE_VECTORS + TID;
    uint4 v[SHAPE_VECTORS];
    uint sum = 0;
    UNROLL
    for (uint i = 0; i < SHAPE_VECTORS; ++i) v[i] = x[min(first + i * GROUP_THREADS, p.vectors - 1)];
    UNROLL
    for (uint i = 0; i < SHAPE_VECTORS; ++i) sum += v[i].x + v[i].y + v[i].z + v[i].w;
    sum = simd_sum(sum);
    if (LANE == 0) y[TG_X * (GROUP_THREADS / 32) + SIMD] = sum;
}
";

/// Bytes read a nanosecond, which is GB/s.
pub(super) fn read_gb_s(cuda: &Cuda, memory_bytes: u64) -> Result<f64, Error> {
    let group = 16 * VECTORS * THREADS;
    let groups = (BYTES.min(memory_bytes as usize / 8) / group).max(1);
    let (x, y) = (cuda.alloc(groups * group, Init::Fill(1))?, cuda.alloc(groups * THREADS / 32 * 4, Init::Zero)?);
    let source = Source::Text {
        name: "read_all".into(),
        text: TEXT.into(),
        constants: BTreeMap::from([("SHAPE_VECTORS".to_owned(), VECTORS as i64)]),
        threads: THREADS as u32,
    };
    let launch = Launch {
        program: cuda.load(&source)?,
        args: vec![x.all(), y.all()],
        params: Params::words(&[(x.len() / 16) as u32]),
        tasks: groups as u32,
        threads: THREADS as u32,
        scratch_bytes: 0,
        overlap: false,
        views: Vec::new(),
    };
    let sequence = [cuda.record(&[launch])?];
    let mut best_ns = f64::INFINITY;
    for _ in 0..SAMPLES.0 {
        best_ns = best_ns.min(cuda.time(&sequence, SAMPLES.1)?.ns);
    }
    Ok(x.len() as f64 / best_ns)
}
