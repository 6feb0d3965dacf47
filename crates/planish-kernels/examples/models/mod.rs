//! The shapes of some models, with an arena of random bytes for weights.

use planish_device::{Backend, Slice};
use planish_kernels::data::Rng;
use planish_kernels::gpu::decode::model::{At, LayerAt, Model, ModelAt};
use planish_kernels::gpu::planes::Planes;
use planish_kernels::quant::WeightType::{self, Q4_1, Q4_K, Q6_K, Q8_0};

pub type Fault = Box<dyn std::error::Error>;

struct Arena(usize);

impl Arena {
    fn take(&mut self, bytes: usize) -> usize {
        let at = self.0;
        self.0 = (at + bytes).next_multiple_of(128);
        at
    }
    fn matrix(&mut self, ty: WeightType, rows: usize, cols: usize) -> At {
        At { ty, offset: self.take(Planes { ty, rows, cols }.bytes()) }
    }
}

/// A model, the types of its layers in turns, and those of embedding and head.
pub fn model(name: &str, capacity: usize) -> Option<(Model, [WeightType; 2], [WeightType; 2])> {
    let of = |[hidden, layers, heads, kv_heads, head_dim, ffn, vocab]: [usize; 7], biases| Model {
        hidden,
        layers,
        heads,
        kv_heads,
        head_dim,
        rotary: head_dim,
        ffn,
        vocab,
        capacity,
        neighbours: false,
        gelu: false,
        head_norms: false,
        biases,
        post_norms: false,
        int8: true,
        eps: 1e-5,
        scale: 0.125,
        softcap: 0.0,
        logit_softcap: 0.0,
        embedding_scale: 1.0,
    };
    match name {
        "smollm2" => Some((of([576, 30, 9, 3, 64, 1536, 49152], false), [Q4_1, Q4_1], [Q8_0, Q8_0])),
        "qwen" => Some((of([896, 24, 14, 2, 64, 4864, 151_936], true), [Q8_0, Q8_0], [Q8_0, Q8_0])),
        "llama" => Some((of([4096, 32, 32, 8, 128, 14336, 128_256], false), [Q4_K, Q6_K], [Q4_K, Q6_K])),
        _ => None,
    }
}

/// Where the tensors of a model lie, and the bytes of all.
pub fn places(m: &Model, body: [WeightType; 2], ends: [WeightType; 2]) -> (ModelAt, usize) {
    let mut arena = Arena(0);
    let embedding = arena.matrix(ends[0], m.vocab, m.hidden);
    let head = if ends[0] == ends[1] { embedding } else { arena.matrix(ends[1], m.vocab, m.hidden) };
    let output_norm = arena.take(4 * m.hidden);
    let layer = |l: usize| LayerAt {
        attn_norm: arena.take(4 * m.hidden),
        ffn_norm: arena.take(4 * m.hidden),
        head_norms: None,
        biases: m.biases.then(|| [m.wide(), m.kv_wide(), m.kv_wide()].map(|n| arena.take(4 * n))),
        post_norms: None,
        qkv: [
            arena.matrix(body[0], m.wide(), m.hidden),
            arena.matrix(body[0], m.kv_wide(), m.hidden),
            arena.matrix(body[l % 2], m.kv_wide(), m.hidden),
        ],
        out: arena.matrix(body[0], m.hidden, m.wide()),
        gate_up: arena.matrix(body[0], 2 * m.ffn, m.hidden),
        down: arena.matrix(body[l % 2], m.hidden, m.ffn),
        window: 0,
        table: 0,
    };
    let layers = (0..m.layers).map(layer).collect();
    (ModelAt { embedding, head, output_norm, layers }, arena.0)
}

/// Random bytes, as halves small: no infinity in scales.
pub fn fill(backend: &dyn Backend, to: &Slice, seed: u64) -> Result<(), Fault> {
    let mut rng = Rng::new(seed);
    let block: Vec<u8> = (0..8 << 20).flat_map(|_| (rng.bits() & 0x2fff_2fff_2fff_2fff).to_le_bytes()).collect();
    for at in (0..to.len).step_by(block.len()) {
        let n = block.len().min(to.len - at);
        backend.write(&to.buffer.slice(to.offset + at, n)?, &block[..n])?;
    }
    Ok(())
}
