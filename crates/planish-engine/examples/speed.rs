//! Decode and prefill speed of a model file: `speed MODEL THREADS [int8|f32]`.
#![allow(clippy::print_stdout, clippy::unwrap_used, missing_docs)]
use std::sync::Arc;
use std::time::Instant;

use planish_device::cpu::{Cpu, CpuOptions};
use planish_engine::arch::Hyper;
use planish_engine::decoder::{Decoder, KvType, Options};
use planish_engine::gguf::Gguf;
use planish_engine::plan::Defaults;
use planish_engine::weights::Weights;
use planish_kernels::cpu::isa::Isa;
use planish_kernels::op::Machine;
use planish_kernels::weight::Activations;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let threads: u32 = args[2].parse().unwrap();
    let activations = if args.get(3).is_some_and(|a| a == "f32") { Activations::F32 } else { Activations::Int8 };
    let start = Instant::now();
    let cpu = Cpu::new(CpuOptions { threads: Some(threads), ..CpuOptions::default() }).unwrap();
    let machine = Machine { backend: &cpu, isa: Isa::detect() };
    let gguf = Arc::new(Gguf::open(args[1].as_ref()).unwrap());
    let hyper = Hyper::read(&gguf).unwrap();
    let weights = Weights::load(&gguf, &hyper, &cpu, threads as usize).unwrap();
    let loaded = start.elapsed();
    let options = Options { context: 1024, chunk: 512, activations, kv: KvType::F16, all_logits: false };
    let mut d = Decoder::new(machine, &hyper, &weights, options, &Defaults).unwrap();
    println!(
        "load {:?} record {:?} rss {:?}",
        loaded,
        start.elapsed() - loaded,
        planish_device::system::peak_rss_bytes()
    );
    let ids: Vec<u32> = (0..512u32).map(|i| (i * 37 + 11) % hyper.vocab as u32).collect();
    for _ in 0..3 {
        d.truncate(0);
        let t = Instant::now();
        d.feed(&ids).unwrap();
        let prefill = 512.0 / t.elapsed().as_secs_f64();
        d.truncate(1);
        let t = Instant::now();
        for i in 0..128 {
            d.feed(&[ids[i]]).unwrap();
        }
        let decode = 128.0 / t.elapsed().as_secs_f64();
        let gb_s = decode * weights.bytes_per_token as f64 / 1e9;
        println!("prefill {prefill:.0} tok/s, decode {decode:.1} tok/s, {gb_s:.1} GB/s");
    }
    println!("rss {:?}", planish_device::system::peak_rss_bytes());
}
