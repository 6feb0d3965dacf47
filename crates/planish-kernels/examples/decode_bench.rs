//! Times `decode` on a card at the shapes of models, with random bytes for weights: a first look, which proves nothing.
//!
//! Arguments: a model (smollm2, qwen, llama), the position, then configurations such as `PATH=graph,THREADS=256`.

#![allow(clippy::print_stdout)]

mod models;

use models::{Fault, fill, model, places};
use planish_device::{Backend, Cuda, CudaOptions, Init, Slice};
use planish_kernels::cpu::isa::Isa;
use planish_kernels::gpu::decode::model::{Memory, Model, ModelAt, STEP_WORDS, SYNC_WORDS};
use planish_kernels::gpu::decode::{Draw, space, step};
use planish_kernels::op::Machine;

/// Positions of the cache.
const CAPACITY: usize = 1024;

fn main() -> Result<(), Fault> {
    let mut words = std::env::args().skip(1);
    let name = words.next().unwrap_or_default();
    let position: u32 = words.next().unwrap_or_default().parse()?;
    let (m, body, ends) = model(&name, CAPACITY).ok_or("models are smollm2, qwen and llama")?;
    let cuda = Cuda::new(CudaOptions { ordinal: 0, cache: std::env::temp_dir().join("planish-decode-bench") })?;
    let (at, bytes) = places(&m, body, ends);
    let alloc = |bytes: usize| Ok::<_, Fault>(cuda.alloc(bytes, Init::Zero)?.all());
    let arena = alloc(bytes + 256)?;
    fill(&cuda, &arena, 1)?;
    // Norms of one keep values finite.
    let ones: Vec<u8> = (0..m.hidden).flat_map(|_| 1.0f32.to_le_bytes()).collect();
    for norm in at.layers.iter().flat_map(|l| [l.attn_norm, l.ffn_norm]).chain([at.output_norm]) {
        cuda.write(&arena.buffer.slice(arena.offset + norm, ones.len())?, &ones)?;
    }
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
        ropes: of_words(&vec![0.5f32.to_bits(); m.capacity * m.rotary])?,
        keys: alloc(2 * m.cache_elements())?,
        values: alloc(2 * m.cache_elements())?,
        work: alloc(m.work_bytes())?,
        logits: alloc(4 * m.vocab)?,
        sync: of_words(&[0; SYNC_WORDS])?,
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
