//! Times `decode` on a card at the shapes of models, with random bytes for weights: a first look, which proves nothing.
//!
//! Arguments: a model (smollm2, qwen, llama), the position, then configurations such as `PATH=graph,THREADS=256`.

#![allow(clippy::print_stdout)]

use planish_device::{Backend, Cuda, CudaOptions, Init, Slice};
use planish_kernels::cpu::isa::Isa;
use planish_kernels::data::Rng;
use planish_kernels::gpu::decode::model::{At, LayerAt, Memory, Model, ModelAt, STEP_WORDS};
use planish_kernels::gpu::decode::{Draw, space, step};
use planish_kernels::gpu::planes::Planes;
use planish_kernels::op::Machine;
use planish_kernels::quant::WeightType::{self, Q4_1, Q4_K, Q6_K, Q8_0};

type Fault = Box<dyn std::error::Error>;

struct Arena(usize);

impl Arena {
    fn take(&mut self, bytes: usize) -> usize {
        let at = self.0;
        self.0 = (at + bytes).next_multiple_of(16);
        at
    }
    fn matrix(&mut self, ty: WeightType, rows: usize, cols: usize) -> At {
        At { ty, offset: self.take(Planes { ty, rows, cols }.bytes()) }
    }
}

fn model(name: &str) -> Option<(Model, [WeightType; 2], [WeightType; 2])> {
    let of = |[hidden, layers, heads, kv_heads, head_dim, ffn, vocab]: [usize; 7], biases| Model {
        hidden,
        layers,
        heads,
        kv_heads,
        head_dim,
        rotary: head_dim,
        ffn,
        vocab,
        capacity: 1024,
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

fn places(m: &Model, body: [WeightType; 2], ends: [WeightType; 2]) -> (ModelAt, usize) {
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

fn fill(backend: &dyn Backend, to: &Slice, seed: u64) -> Result<(), Fault> {
    let mut rng = Rng::new(seed);
    // Small halves: no infinity in scales.
    let block: Vec<u8> = (0..8 << 20).flat_map(|_| (rng.bits() & 0x2fff_2fff_2fff_2fff).to_le_bytes()).collect();
    for at in (0..to.len).step_by(block.len()) {
        let n = block.len().min(to.len - at);
        backend.write(&to.buffer.slice(to.offset + at, n)?, &block[..n])?;
    }
    Ok(())
}

fn main() -> Result<(), Fault> {
    let mut words = std::env::args().skip(1);
    let name = words.next().unwrap_or_default();
    let position: u32 = words.next().unwrap_or_default().parse()?;
    let (m, body, ends) = model(&name).ok_or("models are smollm2, qwen and llama")?;
    let cuda = Cuda::new(CudaOptions { ordinal: 0, cache: std::env::temp_dir().join("planish-decode-bench") })?;
    let (at, bytes) = places(&m, body, ends);
    let alloc = |bytes: usize| Ok::<_, Fault>(cuda.alloc(bytes, Init::Zero)?.all());
    let arena = alloc(bytes + 256)?;
    fill(&cuda, &arena, 1)?;
    let table = at.table(&m).map_err(|r| r.to_string())?;
    let of_words = |words: &[u32]| -> Result<Slice, Fault> {
        let slice = alloc(4 * words.len())?;
        cuda.write(&slice, &words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>())?;
        Ok(slice)
    };
    let mut start = vec![0u32; STEP_WORDS];
    (start[0], start[1]) = (7, position);
    let memory = Memory {
        arena,
        table: of_words(&table)?,
        step: of_words(&start)?,
        ropes: alloc(4 * m.capacity * m.rotary)?,
        keys: alloc(2 * m.cache_elements())?,
        values: alloc(2 * m.cache_elements())?,
        work: alloc(m.work_bytes())?,
        logits: alloc(4 * m.vocab)?,
        sync: of_words(&[0])?,
    };
    // What a token reads: all but the embedding, of which it is a row, unless that is the head.
    let read = bytes - if at.embedding == at.head { 0 } else { at.layers[0].attn_norm.min(at.head.offset) };
    println!("{name}: {:.1} MB of weights a token, position {position}", read as f64 / 1e6);
    for pins in words {
        time((&m, &at), &memory, &pins, &start, read, &cuda)?;
    }
    Ok(())
}

/// Times one configuration, the default but for `pins`.
fn time(
    (m, at): (&Model, &ModelAt),
    memory: &Memory,
    pins: &str,
    start: &[u32],
    read: usize,
    cuda: &Cuda,
) -> Result<(), Fault> {
    let machine = Machine { backend: cuda, isa: Isa::Portable };
    let mut config = space((m, at), &machine).default;
    for pin in pins.split(',').filter(|p| !p.is_empty()) {
        let (key, value) = pin.split_once('=').ok_or("a pin is NAME=VALUE")?;
        config = match value.parse::<i64>() {
            Ok(n) => config.with(key, n),
            Err(_) => config.with(key, value),
        };
    }
    let launches = match step((m, at), memory, &Draw::Greedy, &config, &machine) {
        Ok(launches) => launches,
        Err(r) => {
            println!("{pins:40} refused: {r}");
            return Ok(());
        }
    };
    let graph = config.name("PATH") != Some("launches");
    let recorded = if graph { cuda.record_graph(&launches) } else { cuda.record(&launches) };
    let sequence = match recorded {
        Ok(sequence) => sequence,
        Err(e) => {
            println!("{pins:40} refused: {e}");
            return Ok(());
        }
    };
    let mut all = Vec::new();
    for round in 0..6 {
        cuda.write(&memory.step, &start.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>())?;
        let ns = cuda.time(std::slice::from_ref(&sequence), 64)?.ns;
        if round > 0 {
            all.push(ns);
        }
    }
    all.sort_by(f64::total_cmp);
    let ns = all[all.len() / 2];
    println!(
        "{pins:40} {:8.1} us {:8.0} tok/s {:6.0} GB/s  [{:.1} .. {:.1}] {} launches",
        ns / 1e3,
        1e9 / ns,
        read as f64 / ns,
        all[0] / 1e3,
        all[all.len() - 1] / 1e3,
        launches.len()
    );
    Ok(())
}
