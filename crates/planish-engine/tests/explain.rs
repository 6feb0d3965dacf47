//! A token taken apart: a scripted machine must get its own costs back, and a tiny model runs on the processor.

#![allow(clippy::print_stdout, reason = "a skipped test says why")]

mod common;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use planish_device::cuda::nvrtc::Nvrtc;
use planish_device::fake::{Cost, Fake, Noise, Sampling, Script};
use planish_device::host::{HostOptions, Mode};
use planish_device::{Backend, Call, Cpu, CpuOptions, Host, Native, recorder};
use planish_engine::arch::Hyper;
use planish_engine::decoder::{Decoder, KvType, Options};
use planish_engine::explain::verdict::{Bound, verdict};
use planish_engine::explain::{self, Effort, Measured, cpu};
use planish_engine::gguf::Gguf;
use planish_engine::gpu::{self, GpuDecoder, Route};
use planish_engine::plan::{Choices, Defaults};
use planish_engine::probes::Roof;
use planish_engine::weights::Weights;
use planish_kernels::cpu::isa::Isa;
use planish_kernels::gpu::record;
use planish_kernels::op::Machine;
use planish_kernels::weight::Activations;
use planish_tune::Config;

fn effort() -> Effort {
    Effort { position: 20, tokens: 8, rounds: 6, positions: vec![4, 20, 40], drawn: 1 }
}

fn measured(backend: &dyn Backend, name: &str, clock: &dyn Fn() -> f64) -> (Measured, Hyper, u64) {
    let path = common::golden_dir().join("tiny").join(format!("{name}.gguf"));
    let gguf = Arc::new(Gguf::open(&path).expect("a golden model"));
    let hyper = Hyper::read(&gguf).expect("hyperparameters");
    let weights = Weights::load(&gguf, &hyper, backend, 1).expect("weights");
    let machine = Machine { backend, isa: Isa::detect() };
    let (activations, kv) = (Activations::Int8, KvType::F16);
    let options = Options { context: 64, chunk: 16, activations, kv, all_logits: false };
    let mut decoder = Decoder::new(machine, &hyper, &weights, options, &Defaults).expect("a decoder");
    let stop = || false;
    let mut subject = cpu::Subject { decoder: &mut decoder, weights: &weights, clock, stop: &stop };
    let measured = cpu::measure(&mut subject, &effort()).expect("measured");
    let bytes = weights.bytes_per_token;
    drop(decoder);
    (measured, hyper, bytes)
}

/// Rows of a token of the llama and qwen2 decoders, in order.
const ROWS: [&str; 13] = [
    "embed",
    "attn_norm",
    "q+k+v",
    "rope",
    "attention_split",
    "attention_merge",
    "out",
    "ffn_norm",
    "gate+up",
    "glu",
    "down",
    "output_norm",
    "head",
];

/// Launches of a row in each layer, or in all for rows outside of layers.
fn launches(name: &str, layers: usize) -> usize {
    let each = name.split('+').count();
    if ["embed", "output_norm", "head"].contains(&name) { each } else { each * layers }
}

fn fake(noise: Noise) -> Fake {
    let cost = |launch_ns, task_ns| Cost { launch_ns, task_ns };
    let costs = BTreeMap::from([
        ("matvec".to_owned(), cost(300.0, 900.0)),
        ("attention_split".to_owned(), cost(200.0, 400.0)),
        ("attention_merge".to_owned(), cost(100.0, 50.0)),
    ]);
    Fake::new(Script { costs, default_cost: cost(150.0, 25.0), noise, ..Script::default() })
}

#[test]
fn a_scripted_machine_gets_its_own_costs_back_by_every_method() {
    let fake = fake(Noise::default());
    let (m, hyper, weight_bytes) = measured(&fake, "llama-q4_0", &|| fake.now_ns());
    assert_eq!(m.rows.iter().map(|r| r.name.as_str()).collect::<Vec<_>>(), ROWS);
    let mut total = 0.0;
    for row in &m.rows {
        let n = launches(&row.name, hyper.layers);
        assert_eq!(row.launches, n, "{row:?}");
        let (in_place, time) = (row.in_place.expect("stamps"), row.time_ns.median);
        // Waiting is what a launch costs before its tasks begin, by the script.
        let before = match row.name.as_str() {
            "attention_split" => 200.0,
            "attention_merge" => 100.0,
            "q+k+v" | "out" | "gate+up" | "down" | "head" => 300.0,
            _ => 150.0,
        };
        let wanted = before * n as f64;
        assert!((in_place.waiting_ns.median - wanted).abs() < 1e-6 * time, "{wanted} in {row:?}");
        for other in [in_place.wall_ns, row.alone_ns, row.prefix_ns] {
            assert!((other.median - time).abs() < 1e-6 * time, "{row:?}");
            assert!((other.hi - other.lo).abs() < 1e-6 * time, "{row:?}");
        }
        total += time;
    }
    assert!((m.token_ns.median - total).abs() < 1e-6 * total, "{} {total}", m.token_ns.median);
    assert!((m.attributed.median - 1.0).abs() < 1e-9 && m.unattributed_ns.median.abs() < 1e-3, "{m:?}");
    assert!(m.stamped_ratio.is_some_and(|r| (r.median - 1.0).abs() < 1e-9));
    assert_eq!(m.barriers.count, m.rows.iter().map(|r| r.barriers).sum::<usize>());
    // Tasks are the same at every position, so the script's line is flat.
    assert_eq!(m.context.points.iter().map(|p| p.position).collect::<Vec<_>>(), [4, 20, 40]);
    let line = m.context.line.as_ref().expect("three positions");
    assert!(line.slope.abs() < 1e-6 && (line.intercept - m.context.points[0].attention_ns.median).abs() < 1e-3);
    // Packed weights take as many bytes as the file's, up to the last group of rows, plus an embedding row and the cache.
    let cache = 21.0 * m.context.bytes_a_position;
    let read = m.demand().read_bytes - cache;
    assert!(read > 0.95 * weight_bytes as f64 && read < 1.3 * weight_bytes as f64, "{read} {weight_bytes}");
    assert_eq!(m.context.bytes_a_position, (hyper.layers * 2 * hyper.kv_heads * hyper.head_dim * 2) as f64);
}

#[test]
fn noise_widens_intervals_and_moves_no_figure_far() {
    let fake = fake(Noise { sigma: 0.05, spike_chance: 0.02, spike_factor: 5.0, drift_per_s: 0.0 });
    let (m, ..) = measured(&fake, "qwen2-f16", &|| fake.now_ns());
    assert!((0.85..1.15).contains(&m.attributed.median), "{:?}", m.attributed);
    let b = m.unattributed_ns;
    assert!(b.lo < b.median && b.median < b.hi, "{b:?}");
    let row = m.rows.iter().find(|r| r.name == "gate+up").expect("a row");
    assert!((row.time_ns.median / row.alone_ns.median - 1.0).abs() < 0.3, "{row:?}");
}

#[test]
fn a_tiny_model_is_taken_apart_on_the_processor() {
    let cpu = Cpu::new(CpuOptions { threads: Some(2) }).expect("two threads");
    let start = Instant::now();
    let (m, hyper, _) = measured(&cpu, "llama-q4_0", &|| start.elapsed().as_nanos() as f64);
    assert_eq!(m.rows.len(), ROWS.len());
    assert!(m.rows.iter().all(|r| r.time_ns.median > 0.0 && r.alone_ns.median > 0.0), "{:?}", m.rows);
    let grows: Vec<&str> = m.rows.iter().filter(|r| r.grows).map(|r| r.name.as_str()).collect();
    assert_eq!(grows, ["attention_split", "attention_merge"]);
    assert_eq!((m.barriers.width, m.barriers.count), (2, 3 + 10 * hyper.layers));
    // Whatever else runs here, parts are neither nothing nor many times the whole.
    assert!((0.2..5.0).contains(&m.attributed.median), "{:?}", m.attributed);
}

#[test]
fn verdicts_follow_what_takes_most_of_a_token() {
    let fake = fake(Noise::default());
    let (m, ..) = measured(&fake, "llama-q4_0", &|| fake.now_ns());
    let (bytes, ns) = (m.demand().read_bytes, m.token_ns.median);
    // Rates at which reading, and arithmetic, take this share of the token.
    let judge = |read: f64, arithmetic: f64, launch: f64| {
        let mut m = m.clone();
        m.launches.count = 11;
        let rate = m.demand().int8_ops.max(1.0) / (arithmetic * ns);
        let roof = Roof {
            memory_gb_s: bytes / (read * ns),
            f32_gflop_s: Some(1e9),
            int8_gop_s: Some(rate),
            launch_ns: Some(launch * ns / 10.0),
            ..Roof::default()
        };
        m.against(&roof);
        verdict(&m, &roof)
    };
    for (shares, bound, at_most) in [
        ((0.8, 0.3, 0.1), Bound::Bandwidth, 1.25),
        ((0.3, 0.8, 0.1), Bound::Compute, 1.25),
        ((0.1, 0.1, 0.6), Bound::Launch, 2.5),
        ((0.4, 0.25, 0.2), Bound::Latency, 2.5),
    ] {
        let v = judge(shares.0, shares.1, shares.2);
        assert_eq!(v.bound, bound, "{v:?}");
        assert!((v.at_most - at_most).abs() < 0.01 && v.sentence.starts_with(bound.name()), "{v:?}");
        assert!((v.read_share - shares.0).abs() < 0.01 && (v.launch_share - shares.2).abs() < 0.01, "{v:?}");
        assert!(!v.sentence.contains("in doubt") && !v.sentence.contains("in no part"), "{v:?}");
    }
}

/// Beside other work a token may take twice as long every other time, and its parts do not.
#[test]
fn a_verdict_that_an_end_of_the_interval_gainsays_is_in_doubt() {
    let fake = fake(Noise::default());
    let (mut m, ..) = measured(&fake, "llama-q4_0", &|| fake.now_ns());
    let roof = Roof { memory_gb_s: m.demand().read_bytes / (0.4 * m.token_ns.median), ..Roof::default() };
    m.token_ns.lo = 0.5 * m.token_ns.median;
    m.attributed.median = 0.5;
    let v = verdict(&m, &roof);
    let lo = m.token_ns.lo / 1e3;
    let doubt = format!("in doubt: at {lo:.1} us, an end of a token's interval, it would be bandwidth-bound");
    assert!(v.bound == Bound::Latency && v.sentence.contains(&doubt), "{v:?}");
    assert!(v.sentence.contains("50% of it is in no part"), "{v:?}");
    m.attributed.median = 1.3;
    let v = verdict(&m, &roof);
    assert!(v.sentence.contains("its parts, timed in other tokens, add up to 130% of it"), "{v:?}");
}

/// The host executor, or none after saying why there is none.
fn host() -> Option<Host> {
    let cache = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("explain");
    std::fs::create_dir_all(&cache).expect("the build folder can be written");
    Host::new(HostOptions { cache, mode: Mode::Checked }).inspect_err(|e| println!("skipped: {e}")).ok()
}

#[test]
fn a_token_of_a_gpu_is_taken_apart_on_every_path_on_the_host_executor() {
    let Some(host) = host() else { return };
    let path = common::golden_dir().join("tiny").join("llama-q4_0.gguf");
    let gguf = Arc::new(Gguf::open(&path).expect("a golden model"));
    let hyper = Hyper::read(&gguf).expect("hyperparameters");
    let weights = gpu::Weights::load(&gguf, &hyper, &host, 1).expect("weights");
    let machine = Machine { backend: &host, isa: Isa::Portable };
    let (start, stop) = (Instant::now(), || false);
    let clock = || start.elapsed().as_nanos() as f64;
    let marks = common::pinned("decode", Config::new().with("CROSS", "marks"));
    let choices: [&dyn Choices; 2] = [&Defaults, &marks];
    for (route, marked) in [(Route::Launches, 0), (Route::Layer, 0), (Route::Token, 0), (Route::Token, 1)] {
        let options = options(24, Activations::Int8, route);
        let mut decoder = GpuDecoder::new(machine, &hyper, &weights, options, choices[marked]).expect("a decoder");
        let read = explain::gpu::read_bytes(&decoder, &weights, 5);
        let grids = matches!(route, Route::Layer | Route::Token);
        // A barrier behind the embedding, behind every phase of a layer and before the draw, with marks none before
        // attention; grids of a layer end without one.
        let wanted = match route {
            Route::Token => 2 + (5 - marked) * hyper.layers,
            Route::Layer => 1 + 4 * hyper.layers + 2,
            _ => 0,
        };
        let stamped = decoder.stamped(&weights).expect("made");
        assert_eq!(stamped.map_or(0, |(s, _)| s.barriers()), wanted, "{route:?}");
        if route == Route::Layer {
            continue;
        }
        let mut subject =
            explain::gpu::Subject { decoder: &mut decoder, weights: &weights, clock: &clock, stop: &stop };
        let effort = Effort { position: 5, tokens: 6, rounds: 6, positions: vec![1], drawn: 1 };
        let m = explain::gpu::measure(&mut subject, &effort).expect("measured");
        let names = ["embed", "qkv", "attend", "out", "up", "down", "head", "pick"];
        assert_eq!(m.rows.iter().map(|r| r.name.as_str()).collect::<Vec<_>>(), names, "{route:?}");
        assert!(m.rows.iter().all(|r| r.in_place.is_some() == grids && r.alone_ns.median > 0.0), "{route:?} {m:?}");
        // Between two grids there is time, which counts once.
        let between = m.launches.stamped_ns.map(|b| b.median);
        assert_eq!(m.beside.iter().map(|b| b.time_ns.median).collect::<Vec<_>>(), Vec::from_iter(between));
        assert!(between.is_some() == grids && between.is_none_or(|ns| ns > 0.0), "{route:?}: {between:?}");
        assert_eq!((m.barriers.count, m.path.as_str()), (wanted, route.name()));
        assert_eq!(m.context.points.iter().map(|p| p.position).collect::<Vec<_>>(), [1, 5]);
        let demand = m.demand().read_bytes;
        let row = demand - read;
        assert!(row > 0.0 && row < 4.0 * hyper.hidden as f64 + 1.0, "one row of the embedding: {row}");
        assert!(demand > 0.9 * weights.bytes_per_token as f64, "{demand} {}", weights.bytes_per_token);
        assert!(m.attributed.median > 0.05 && m.attributed.median < 20.0, "{route:?}: {:?}", m.attributed);
    }
}

/// A decoder of one path that neither draws by a sampler nor runs ahead.
fn options(context: usize, activations: Activations, route: Route) -> gpu::Options {
    gpu::Options { context, activations, route: Some(route), sampled: false, ahead: 1, chunk: 0 }
}

/// What explain alone launches compiles for a card without spills, which its figures would be of; NVRTC needs no card.
#[test]
fn stamped_launches_compile_for_a_card() {
    let nvrtc = match Nvrtc::find(PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("nvrtc")) {
        Ok(nvrtc) => nvrtc,
        Err(e) => return println!("skipped: {e}"),
    };
    let (arch, card) = ("sm_90a", record::card("sm_90a"));
    let path = common::golden_dir().join("tiny").join("llama-q4_0.gguf");
    let gguf = Arc::new(Gguf::open(&path).expect("a golden model"));
    let hyper = Hyper::read(&gguf).expect("hyperparameters");
    let weights = gpu::Weights::empty(&gguf, &hyper, &card).expect("weights");
    let machine = Machine { backend: &card, isa: Isa::Portable };
    let options = options(64, Activations::Int8, Route::Token);
    let decoder = GpuDecoder::new(machine, &hyper, &weights, options, &Defaults).expect("a decoder");
    let (stamped, _) = decoder.stamped(&weights).expect("made").expect("a path of grids");
    let names: Vec<&str> = stamped.launches.iter().map(|l| &*l.program.name).collect();
    assert_eq!(names, ["decode_stamped"; 2]);
    let source = recorder::source(&stamped.launches[0].program).expect("kernel text");
    let cubin = nvrtc.compile(arch, source).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(cubin.kernel(names[0]).expect("the kernel").spill_bytes, 0);
}

/// Phases of a step on a GPU, in order, with the nanoseconds that a launch of each takes by the script.
const PHASES: [(&str, f64); 8] = [
    ("embed", 700.0),
    ("qkv", 2100.0),
    ("attend", 1300.0),
    ("out", 900.0),
    ("up", 2500.0),
    ("down", 1700.0),
    ("head", 8000.0),
    ("pick", 400.0),
];

/// A machine of Metal's shape on which each kernel of a step takes what `PHASES` says, a part of it before its tasks.
fn metal(sampling: Sampling) -> Fake {
    fn nothing(_: &Call<'_>) {}
    let name = |phase: &str| format!("decode_{phase}");
    let cost = |ns: f64| Cost { launch_ns: 0.25 * ns, task_ns: 0.75 * ns };
    let costs = PHASES.map(|(phase, ns)| (name(phase), cost(ns))).into();
    let texts = PHASES.map(|(phase, _)| (name(phase), nothing as Native)).into();
    Fake::new(Script { costs, texts, ..Script::metal(sampling) })
}

/// A token of a tiny model on path `launches` of such a machine, and the layers of the model.
fn measured_on_metal(sampling: Sampling) -> (Measured, usize, f64) {
    let fake = metal(sampling);
    let path = common::golden_dir().join("tiny").join("llama-q4_0.gguf");
    let gguf = Arc::new(Gguf::open(&path).expect("a golden model"));
    let hyper = Hyper::read(&gguf).expect("hyperparameters");
    let weights = gpu::Weights::load(&gguf, &hyper, &fake, 1).expect("weights");
    let machine = Machine { backend: &fake, isa: Isa::Portable };
    let options = options(64, Activations::F32, Route::Launches);
    let mut decoder = GpuDecoder::new(machine, &hyper, &weights, options, &Defaults).expect("a decoder");
    let (clock, stop) = (|| fake.now_ns(), || false);
    let mut subject = explain::gpu::Subject { decoder: &mut decoder, weights: &weights, clock: &clock, stop: &stop };
    let measured = explain::gpu::measure(&mut subject, &effort()).expect("measured");
    drop(decoder);
    (measured, hyper.layers, Script::metal(sampling).hand_over_ns)
}

#[test]
fn a_scripted_machine_of_metals_shape_gets_its_own_costs_back_as_far_as_it_keeps_times() {
    for sampling in [Sampling::Launches, Sampling::Encoders(150.0), Sampling::Sequences] {
        let (m, layers, handed) = measured_on_metal(sampling);
        let near = |got: f64, wanted: f64| (got - wanted).abs() < 1e-6 * wanted.max(1.0);
        // A launch whose times are kept costs its encoder, too, and figures in place have it.
        let encoder = if let Sampling::Encoders(ns) = sampling { ns } else { 0.0 };
        let (mut whole, mut launches) = (0.0, 0.0);
        assert_eq!(m.rows.len(), PHASES.len(), "{sampling:?}");
        for (row, (phase, ns)) in m.rows.iter().zip(PHASES) {
            let n = if ["embed", "head", "pick"].contains(&phase) { 1.0 } else { layers as f64 };
            assert_eq!((row.name.as_str(), row.launches as f64), (phase, n));
            assert!(near(row.alone_ns.median, n * ns) && near(row.prefix_ns.median, n * ns), "{sampling:?} {row:?}");
            assert_eq!(row.in_place.is_some(), sampling != Sampling::Sequences, "{sampling:?} {row:?}");
            if let Some(i) = row.in_place {
                assert!(near(i.work_ns.median, 0.75 * n * ns), "{sampling:?} {row:?}");
                assert!(near(i.waiting_ns.median, n * (0.25 * ns + encoder)), "{sampling:?} {row:?}");
                assert_eq!(row.time_ns, i.wall_ns);
            }
            (whole, launches) = (whole + n * ns, launches + n);
        }
        // The host sees the handing over of each token; without times of launches nothing measures it by itself.
        assert!(near(m.token_ns.median, whole + handed), "{sampling:?} {:?}", m.token_ns);
        let known = if m.beside.is_empty() { 0.0 } else { handed };
        assert!(m.beside.iter().all(|b| near(b.time_ns.median, handed)), "{sampling:?} {:?}", m.beside);
        assert_eq!(m.beside.len(), usize::from(sampling != Sampling::Sequences));
        let parts = whole + launches * encoder + known;
        assert!(near(m.attributed.median, parts / (whole + handed)), "{sampling:?} {:?}", m.attributed);
        let ratio = m.stamped_ratio.map(|r| r.median);
        assert_eq!(ratio.is_some(), sampling != Sampling::Sequences);
        assert!(ratio.is_none_or(|r| near(r, (whole + launches * encoder) / whole)), "{sampling:?} {ratio:?}");
        // No grid waits here, and no kernel reads a clock.
        assert_eq!((m.barriers.count, m.barriers.stamped_ns, m.launches.stamped_ns), (0, None, None));
        assert_eq!(m.launches.count as f64, launches);
    }
}
