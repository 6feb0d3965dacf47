//! Times the pool: a launch inside a long empty sequence, an empty submission, and the wake after a pause.
#![allow(clippy::print_stdout)]

use std::time::{Duration, Instant};

use planish_device::cpu::bandwidth::{barrier_ns, copy_gb_s, null_ns, read_gb_s};
use planish_device::{Backend, Call, Cpu, CpuOptions, Launch, Params, Plain, Source};

#[derive(Clone, Copy)]
struct Nothing;
// SAFETY: no bytes at all.
unsafe impl Plain for Nothing {}

/// About two microseconds of arithmetic a task, so that a late second thread shows.
unsafe fn busy(call: &Call) {
    for task in call.tasks.clone() {
        let mut x = u64::from(task);
        for _ in 0..2000 {
            x = std::hint::black_box(x.wrapping_mul(6364136223846793005).wrapping_add(1));
        }
    }
}

/// Median microseconds of one sequence of 64 tasks after a pause of `pause`.
fn after_pause(cpu: &Cpu, pause: Duration, threads: u32) -> f64 {
    let program = cpu.load(&Source::Native { name: "busy", run: busy }).expect("native programs load");
    let launch = Launch {
        program,
        args: vec![],
        params: Params::new(Nothing),
        tasks: 64,
        threads,
        scratch_bytes: 0,
        overlap: false,
        views: Vec::new(),
    };
    let sequence = cpu.record(&[launch]).expect("a good sequence");
    let mut runs: Vec<f64> = (0..200)
        .map(|_| {
            // A short pause is one in which the caller computes, as a sampler does.
            let start = Instant::now();
            if pause >= Duration::from_millis(1) {
                std::thread::sleep(pause);
            }
            while start.elapsed() < pause {
                std::hint::spin_loop();
            }
            let start = Instant::now();
            let token = cpu.submit(&sequence).expect("submitted");
            cpu.wait(token, Duration::MAX).expect("finished");
            start.elapsed().as_nanos() as f64 / 1e3
        })
        .collect();
    runs.sort_by(f64::total_cmp);
    runs[runs.len() / 2]
}

fn main() {
    let budget = Duration::from_millis(500);
    let cpu = Cpu::new(CpuOptions::default()).expect("the processor is there");
    println!("{:#?}", cpu.topology());
    for threads in 1..=cpu.threads() {
        let barrier = barrier_ns(&cpu, threads, budget).expect("measured");
        println!("{threads} threads: {barrier:.0} ns a launch in an empty sequence of 300");
        let (read, copy) = (read_gb_s(&cpu, threads, budget), copy_gb_s(&cpu, threads, budget));
        println!("  read {:?}\n  copy {:?}", read.expect("measured"), copy.expect("measured"));
        for pause in [0, 50, 1000, 5000] {
            let took = after_pause(&cpu, Duration::from_micros(pause), threads);
            println!("  64 tasks after a pause of {pause} us: {took:.1} us");
        }
    }
    println!("empty submission {:.0} ns", null_ns(&cpu, budget).expect("measured"));
    println!("load {:?}", planish_device::system::load_average());
}
