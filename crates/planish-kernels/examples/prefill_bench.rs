//! Times `prefill` on a card at the shapes of models, with random bytes for weights: a first look, which proves nothing.
//!
//! Arguments: a model (smollm2, qwen, llama), tokens of the chunk, positions before it, then configurations such as
//! `ATTEND=plain,THREADS=256`; of the first one it also shows what each launch of the second layer takes.

#![allow(clippy::print_stdout)]

mod models;

use models::{Fault, fill, model, places};
use planish_device::{Backend, Cuda, CudaOptions, Init, Launch, Slice};
use planish_kernels::cpu::isa::Isa;
use planish_kernels::gpu::decode::model::{Memory, STEP_WORDS, SYNC_WORDS};
use planish_kernels::gpu::prefill::{PrefillMemory, launches, space};
use planish_kernels::op::Machine;

/// Microseconds of `launches` as one graph: the least, the median and the most of some rounds.
fn time(cuda: &Cuda, launches: &[Launch], reps: u32) -> Result<[f64; 3], Fault> {
    let sequence = cuda.record_graph(launches)?;
    let mut all = Vec::new();
    for round in 0..6 {
        let us = cuda.time(std::slice::from_ref(&sequence), reps)?.ns / 1e3;
        if round > 0 {
            all.push(us);
        }
    }
    all.sort_by(f64::total_cmp);
    Ok([all[0], all[all.len() / 2], all[all.len() - 1]])
}

/// What each launch of the second layer adds, and what the launches of its kind take one after the other.
fn breakdown(cuda: &Cuda, all: &[Launch], layers: usize, reps: u32) -> Result<(), Fault> {
    let name = |launch: &Launch| launch.program.name.to_string();
    // Embedding and first weights, layers of which the last has no weights to bring, and the head's two.
    let a_layer = (all.len() - 3) / layers;
    let first = 2 + a_layer;
    let mut before = time(cuda, &all[..first], reps)?[1];
    for (i, launch) in all[first..first + a_layer].iter().enumerate() {
        let now = time(cuda, &all[..=first + i], reps)?[1];
        let apart = |l: &Launch| Launch { overlap: false, ..l.clone() };
        let alike: Vec<Launch> = (0..layers - 1).map(|l| apart(&all[2 + l * a_layer + i])).collect();
        let alone = time(cuda, &alike, reps)?[1] / alike.len() as f64;
        let (more, groups) = (now - before, launch.tasks);
        println!("    {:24} {more:7.1} us more, {alone:7.1} us among its own, {groups} groups", name(launch));
        before = now;
    }
    let body = time(cuda, &all[..all.len() - 2], reps)?[1];
    println!("    {:24} {:7.1} us more", "the last token's head", time(cuda, all, reps)?[1] - body);
    Ok(())
}

fn main() -> Result<(), Fault> {
    let mut words = std::env::args().skip(1);
    let name = words.next().unwrap_or_default();
    let mut number = || words.next().unwrap_or_default().parse::<usize>();
    let (chunk, past) = (number()?, number()?);
    let (m, body, ends) = model(&name, past + chunk).ok_or("models are smollm2, qwen and llama")?;
    let cuda = Cuda::new(CudaOptions { ordinal: 0, cache: std::env::temp_dir().join("planish-decode-bench") })?;
    let machine = Machine { backend: &cuda, isa: Isa::Portable };
    let (at, bytes) = places(&m, body, ends);
    let alloc = |bytes: usize| Ok::<_, Fault>(cuda.alloc(bytes, Init::Zero)?.all());
    let filled = |bytes: &[u8]| -> Result<Slice, Fault> {
        let slice = alloc(bytes.len())?;
        cuda.write(&slice, bytes)?;
        Ok(slice)
    };
    let arena = alloc(bytes + 256)?;
    fill(&cuda, &arena, 1)?;
    let table: Vec<u8> = at.table(&m).map_err(|r| r.to_string())?.iter().flat_map(|w| w.to_le_bytes()).collect();
    let memory = Memory {
        arena,
        table: filled(&table)?,
        step: alloc(4 * STEP_WORDS)?,
        ropes: alloc(4 * m.capacity * m.rotary)?,
        keys: alloc(2 * m.cache_elements())?,
        values: alloc(2 * m.cache_elements())?,
        work: alloc(m.work_bytes())?,
        logits: alloc(4 * m.vocab)?,
        sync: alloc(4 * SYNC_WORDS)?,
    };
    let ids: Vec<u32> = (0..chunk as u32).map(|i| i * 7 % m.vocab as u32).collect();
    let prefill = PrefillMemory {
        words: filled(&PrefillMemory::words(past, &ids))?,
        weights: alloc(PrefillMemory::weights_bytes((&m, &at)))?,
        rows: alloc(PrefillMemory::rows_bytes((&m, &at), chunk))?,
    };
    println!("{name}: {chunk} tokens behind {past}");
    let mut pins: Vec<String> = words.collect();
    pins.insert(0, String::new());
    for (i, pins) in pins.iter().enumerate() {
        let mut config = space((&m, &at), &machine).default;
        for pin in pins.split(',').filter(|p| !p.is_empty()) {
            let (key, value) = pin.split_once('=').ok_or("a pin is NAME=VALUE")?;
            config = match value.parse::<i64>() {
                Ok(n) => config.with(key, n),
                Err(_) => config.with(key, value),
            };
        }
        let all = launches((&m, &at), &memory, &prefill, chunk, &config, &machine).map_err(|r| r.to_string())?;
        let [least, median, most] = time(&cuda, &all, 8)?;
        println!(
            "{config} {median:.1} us {:.0} tok/s [{least:.1} .. {most:.1}] {} launches",
            1e6 * chunk as f64 / median,
            all.len()
        );
        if i == 0 {
            breakdown(&cuda, &all, m.layers, 8)?;
        }
    }
    Ok(())
}
