//! What decode kernels know of a model: its numbers, where its tensors lie, and the memory of a step.

use planish_device::Slice;
use planish_tune::Rejection;

use crate::gpu::planes::{self, Planes};
use crate::quant::WeightType;

/// Parts of the keys, at most.
pub const SPLITS_MAX: usize = 32;
/// Groups of a grid, at most.
pub const GROUPS_MAX: usize = 1024;
/// Ids that the ring of drawn tokens holds.
pub const RING: usize = 256;
/// Tokens that penalties look back on, at most.
pub const HISTORY: usize = 256;
/// Words of the step: token, position, tokens drawn, one that is spare, and the ring.
pub const STEP_WORDS: usize = 4 + RING;
/// Rows that a SIMD group takes at a time, at most.
pub const ROWS_MAX: usize = 8;
/// Words of the barrier: its counter, whether the last grid was an odd one, and its parts of the keys.
pub const SYNC_WORDS: usize = 3;
/// Largest head.
pub const HEAD_DIM_MAX: usize = 256;

/// The numbers of a decoder-only model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Model {
    /// Width of the residual.
    pub hidden: usize,
    /// Blocks.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Elements of a head, a multiple of eight.
    pub head_dim: usize,
    /// Elements of a head that rotate.
    pub rotary: usize,
    /// Width between the projections of the MLP.
    pub ffn: usize,
    /// Rows of the head.
    pub vocab: usize,
    /// Positions of the cache.
    pub capacity: usize,
    /// Rotated elements pair up with their neighbour, not with the other half.
    pub neighbours: bool,
    /// The gate is tanh-GELU, not SiLU.
    pub gelu: bool,
    /// Query and key heads are normed.
    pub head_norms: bool,
    /// Projections to q, k and v have biases.
    pub biases: bool,
    /// Norms stand behind the blocks, too.
    pub post_norms: bool,
    /// Quantised weights meet bytes, not floats.
    pub int8: bool,
    /// Added to mean squares.
    pub eps: f32,
    /// Of scores.
    pub scale: f32,
    /// Bound of scores, 0 for none.
    pub softcap: f32,
    /// Bound of logits, 0 for none.
    pub logit_softcap: f32,
    /// Of embeddings.
    pub embedding_scale: f32,
}

/// A matrix of the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At {
    /// How elements are stored.
    pub ty: WeightType,
    /// First byte, a multiple of 16.
    pub offset: usize,
}

/// Tensors of a block; vectors are f32 at a first byte, a multiple of 16.
#[derive(Clone, Debug)]
pub struct LayerAt {
    /// Norm before attention.
    pub attn_norm: usize,
    /// Norm before the MLP.
    pub ffn_norm: usize,
    /// Norms of every query head and of every key head.
    pub head_norms: Option<[usize; 2]>,
    /// Biases of q, k and v.
    pub biases: Option<[usize; 3]>,
    /// Norms behind attention and behind the MLP.
    pub post_norms: Option<[usize; 2]>,
    /// Projections to q, k and v.
    pub qkv: [At; 3],
    /// Output projection.
    pub out: At,
    /// Gate and up in one: row 2i is row i of gate, row 2i + 1 that of up.
    pub gate_up: At,
    /// Down projection.
    pub down: At,
    /// Keys a query sees, its own included; 0 for all.
    pub window: usize,
    /// Which table of angles.
    pub table: usize,
}

/// Tensors of a model.
#[derive(Clone, Debug)]
pub struct ModelAt {
    /// Token embedding, `[vocab][hidden]`.
    pub embedding: At,
    /// Output projection, `[vocab][hidden]`; the embedding again where the two are tied.
    pub head: At,
    /// Norm before the head.
    pub output_norm: usize,
    /// Blocks.
    pub layers: Vec<LayerAt>,
}

/// Memory of a step.
#[derive(Clone, Debug)]
pub struct Memory {
    /// All weights, followed by 256 spare bytes.
    pub arena: Slice,
    /// The words of `table`.
    pub table: Slice,
    /// `STEP_WORDS` words.
    pub step: Slice,
    /// f32 `[tables][capacity][rotary]`: of each position the cosines, then the sines.
    pub ropes: Slice,
    /// f16 `[layers][kv_heads][capacity][head_dim]`.
    pub keys: Slice,
    /// Like keys.
    pub values: Slice,
    /// `Model::work_bytes` bytes.
    pub work: Slice,
    /// f32 `[vocab]`.
    pub logits: Slice,
    /// `SYNC_WORDS` words, zero before the first step.
    pub sync: Slice,
}

impl Memory {
    /// Of the arguments of a step.
    pub fn of([arena, table, step, ropes, keys, values, work, logits, sync]: [Slice; 9]) -> Memory {
        Memory { arena, table, step, ropes, keys, values, work, logits, sync }
    }
}

impl Model {
    /// Query heads of a key head.
    pub fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// Elements of all query heads.
    pub fn wide(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Elements of all key heads.
    pub fn kv_wide(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Elements of the key cache.
    pub fn cache_elements(&self) -> usize {
        self.layers * self.kv_heads * self.capacity * self.head_dim
    }

    /// Bytes of work memory.
    pub fn work_bytes(&self) -> usize {
        let quads = |n: usize| n.next_multiple_of(4);
        let heads = quads(self.heads * SPLITS_MAX * self.head_dim) + quads(2 * self.heads * SPLITS_MAX);
        4 * (3 * quads(self.hidden)
            + quads(self.wide() + 2 * self.kv_wide())
            + quads(self.ffn)
            + heads
            + 2 * GROUPS_MAX)
    }

    /// First floats in work memory of the residual before and behind attention, and of what a block gave to the norm behind
    /// it.
    pub(crate) fn residual_at(&self) -> [usize; 3] {
        [0, 1, 2].map(|i| i * self.hidden.next_multiple_of(4))
    }

    /// First float of the best logits of groups in work memory.
    pub(crate) fn best_at(&self, splits: usize) -> usize {
        let quads = |n: usize| n.next_multiple_of(4);
        3 * quads(self.hidden)
            + quads(self.wide() + 2 * self.kv_wide())
            + quads(self.ffn)
            + quads(self.heads * splits * self.head_dim)
            + quads(2 * self.heads * splits)
    }

    /// Its numbers as the constants that the text of decode and of prefill reads them by.
    pub(crate) fn constants(&self) -> Vec<(&'static str, i64)> {
        let flag = |b: bool| i64::from(b);
        vec![
            ("HIDDEN", self.hidden as i64),
            ("HEADS", self.heads as i64),
            ("KV_HEADS", self.kv_heads as i64),
            ("HEAD_DIM", self.head_dim as i64),
            ("ROTARY", self.rotary as i64),
            ("FFN", self.ffn as i64),
            ("VOCAB", self.vocab as i64),
            ("CAPACITY", self.capacity as i64),
            ("NEIGHBOURS", flag(self.neighbours)),
            ("GATE", flag(self.gelu)),
            ("HEAD_NORMS", flag(self.head_norms)),
            ("BIASES", flag(self.biases)),
        ]
    }

    /// What of the model no kernel can do.
    pub fn check(&self) -> Result<(), String> {
        let sizes = [self.hidden, self.layers, self.heads, self.kv_heads, self.head_dim, self.ffn, self.vocab];
        if sizes.contains(&0) || self.capacity == 0 || !self.heads.is_multiple_of(self.kv_heads) {
            let Model { hidden, layers, heads, kv_heads, head_dim, ffn, vocab, capacity, .. } = self;
            return Err(format!(
                "width {hidden}, {layers} layers, {heads} heads over {kv_heads} of {head_dim}, inner width {ffn}, \
                 vocabulary {vocab}, {capacity} positions: sizes are from 1, heads a multiple of key heads"
            ));
        }
        if !self.head_dim.is_multiple_of(8) || self.head_dim > HEAD_DIM_MAX {
            return Err(format!("heads of {} elements: multiples of 8 up to {HEAD_DIM_MAX} are run", self.head_dim));
        }
        if self.rotary > self.head_dim || !self.rotary.is_multiple_of(2) {
            return Err(format!("{} of {} elements rotate", self.rotary, self.head_dim));
        }
        if [self.hidden, 2 * self.ffn, self.vocab].iter().any(|rows| *rows < ROWS_MAX) {
            let [hidden, ffn, vocab] = [self.hidden, self.ffn, self.vocab];
            return Err(format!(
                "widths of {hidden} and {ffn}, {vocab} tokens: matrices have {ROWS_MAX} rows at least"
            ));
        }
        if !self.hidden.is_multiple_of(4) || !self.ffn.is_multiple_of(4) {
            return Err(format!("widths of {} and {}: multiples of 4 are run", self.hidden, self.ffn));
        }
        match self.cache_elements() {
            n if n < 1 << 32 => Ok(()),
            n => Err(format!("a cache of {n} elements for {} positions: kernels count 2^32", self.capacity)),
        }
    }
}

impl ModelAt {
    /// The words that kernels find tensors by.
    pub fn table(&self, model: &Model) -> Result<Vec<u32>, Rejection> {
        let mut words = Vec::with_capacity(table_words(model));
        let post = self.layers.last().and_then(|l| l.post_norms).map_or(0, |p| p[1]);
        let vocab = |m: &At| matrix_words(m, model.hidden);
        words.extend([vocab(&self.embedding)?, vocab(&self.head)?].concat());
        words.extend([place(self.output_norm)?, place(post)?, 0, 0, 0, 0, 0, 0]);
        for l in &self.layers {
            let norms = l.head_norms.unwrap_or_default();
            let (biases, posts) = (l.biases.unwrap_or_default(), l.post_norms.unwrap_or_default());
            let vectors =
                [l.attn_norm, l.ffn_norm, norms[0], norms[1], biases[0], biases[1], biases[2], posts[0], posts[1]];
            for vector in vectors {
                words.push(place(vector)?);
            }
            words.extend([l.window as u32, l.table as u32, 0]);
            for (matrix, cols) in l.qkv.iter().map(|m| (m, model.hidden)).chain([
                (&l.out, model.wide()),
                (&l.gate_up, model.hidden),
                (&l.down, model.ffn),
            ]) {
                words.extend(matrix_words(matrix, cols)?);
            }
        }
        Ok(words)
    }
}

/// Words of a model's table.
pub(crate) fn table_words(model: &Model) -> usize {
    16 + 36 * model.layers
}

/// A place in the arena, in sixteens of bytes.
fn place(byte: usize) -> Result<u32, Rejection> {
    match (byte % 16, u32::try_from(byte / 16)) {
        (0, Ok(n)) => Ok(n),
        _ => Err(Rejection::Constraint(format!("byte {byte} of the arena: multiples of 16 below 2^36 are reached"))),
    }
}

/// Place and type of a matrix, and the sixteens of bytes of a whole segment and of a row.
fn matrix_words(m: &At, cols: usize) -> Result<[u32; 4], Rejection> {
    let row = Planes { ty: m.ty, rows: 1, cols }.row_bytes();
    let segment = planes::most_segment_bytes(m.ty, planes::SEGMENT * planes::TILE);
    Ok([place(m.offset)?, m.ty as u32, (segment / planes::ALIGN) as u32, (row / planes::ALIGN) as u32])
}
