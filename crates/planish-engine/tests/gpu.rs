//! The decoder of GPUs on every golden model, through the host executor and on a card where there is one: logits against
//! f64, the same bits on every path, and tokens that are drawn on the device as the CPU's sampler draws them.

#![allow(clippy::print_stdout, reason = "a skipped test says why")]

mod common;

use std::io::Write;
use std::num::NonZero;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use planish_device::host::{HostOptions, Mode};
use planish_device::{Backend, Cuda, CudaOptions, Host};
use planish_engine::Error;
use planish_engine::arch::Hyper;
use planish_engine::generate::{Flow, Settings};
use planish_engine::gguf::Gguf;
use planish_engine::gpu::{AHEAD, By, GpuDecoder, Options, Route, Weights};
use planish_engine::plan::{Choices, Defaults};
use planish_engine::verify::{self, Dump, ExpectedFile};
use planish_kernels::cpu::isa::Isa;
use planish_kernels::cpu::sample::{Draw, Params, TokenCount, Workspace, sample};
use planish_kernels::op::Machine;
use planish_kernels::weight::Activations;
use planish_tune::Config;
use planish_tune::store::Pins;

fn cache(name: &str) -> PathBuf {
    let cache = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&cache).expect("the build folder can be written");
    cache
}

/// The host executor, or none after saying why there is none.
fn host() -> Option<Box<dyn Backend>> {
    match Host::new(HostOptions { cache: cache("host"), mode: Mode::Checked }) {
        Ok(host) => Some(Box::new(host)),
        Err(e) => {
            println!("skipped: {e}");
            None
        }
    }
}

/// The first card, or none after saying why there is none.
fn card() -> Option<Box<dyn Backend>> {
    match Cuda::new(CudaOptions { ordinal: 0, cache: cache("cuda") }) {
        Ok(card) => Some(Box::new(card)),
        Err(e) => {
            let _ = writeln!(std::io::stderr(), "tier: CUDA device: skipped: {e}");
            None
        }
    }
}

/// A golden model on a device.
struct Loaded<'b> {
    backend: &'b dyn Backend,
    hyper: Hyper,
    weights: Weights,
}

fn load<'b>(backend: &'b dyn Backend, name: &str) -> Result<Loaded<'b>, Error> {
    let path = common::golden_dir().join("tiny").join(format!("{name}.gguf"));
    let gguf = Arc::new(Gguf::open(&path).expect("a golden model"));
    let hyper = Hyper::read(&gguf).expect("hyperparameters");
    let weights = Weights::load(&gguf, &hyper, backend, 2)?;
    Ok(Loaded { backend, hyper, weights })
}

impl Loaded<'_> {
    fn decoder(&self, activations: Activations, route: Option<Route>, context: usize) -> GpuDecoder<'_> {
        self.decoder_by(&Defaults, activations, route, context)
    }

    fn decoder_by(
        &self,
        choices: &dyn Choices,
        activations: Activations,
        route: Option<Route>,
        context: usize,
    ) -> GpuDecoder<'_> {
        let machine = Machine { backend: self.backend, isa: Isa::Portable };
        let options = Options { context, activations, route, sampled: true, ahead: AHEAD, chunk: 0 };
        GpuDecoder::new(machine, &self.hyper, &self.weights, options, choices).expect("a decoder")
    }
}

fn expected(name: &str) -> ExpectedFile {
    let path = common::golden_dir().join("tiny_expected").join(format!("{name}.json"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The golden models by name.
fn goldens() -> Vec<String> {
    let names = std::fs::read_dir(common::golden_dir().join("tiny")).expect("golden models").filter_map(|entry| {
        let name = entry.expect("an entry").file_name().into_string().expect("a name");
        name.strip_suffix(".gguf").map(str::to_owned)
    });
    let mut names: Vec<String> = names.collect();
    names.sort();
    assert!(names.len() >= 27, "only {} golden models", names.len());
    names
}

/// An arithmetic and its name in the expected files; the cache is f16.
type Class = (&'static str, Activations);
const F32: Class = ("f32_kv16", Activations::F32);
const INT8: Class = ("int8_kv16", Activations::Int8);

/// Models whose widths no GPU kernel takes.
const REFUSED: [&str; 1] = ["llama-odd-f32"];

/// The golden models whose widths GPU kernels take.
fn taken() -> impl Iterator<Item = String> {
    goldens().into_iter().filter(|name| !REFUSED.contains(&name.as_str()))
}

/// Prompts of up to `longest` tokens of a golden model in `classes` on `routes`: what fails against f64, and where the
/// paths differ in bits.
fn judge(backend: &dyn Backend, name: &str, classes: &[Class], routes: &[Route], longest: usize) -> Vec<String> {
    judge_by(&Defaults, backend, name, (classes, routes), longest)
}

fn judge_by(
    choices: &dyn Choices,
    backend: &dyn Backend,
    name: &str,
    (classes, routes): (&[Class], &[Route]),
    longest: usize,
) -> Vec<String> {
    let (loaded, file) = (load(backend, name).expect("weights"), expected(name));
    let (mut failures, mut judged) = (Vec::new(), 0);
    let prompts: Vec<_> = file.prompts.iter().filter(|p| p.ids.len() <= longest).collect();
    // The longest prompt fills the cache; kernels know its size, so with one size there is one text to compile.
    let context = prompts.iter().map(|p| p.ids.len()).max().unwrap_or(0);
    for (mode, class) in classes {
        for prompt in &prompts {
            let mut first: Option<Dump> = None;
            for route in routes {
                let mut decoder = loaded.decoder_by(choices, *class, Some(*route), context);
                let dump = verify::run(&mut decoder, prompt, verify::Path::Steps).expect("a run");
                let v = verify::judge(prompt, &dump, mode, verify::Path::Steps).expect("a verdict");
                let what = format!("{name} {mode} {} on {}", prompt.name, route.name());
                failures.extend(v.reasons.iter().map(|r| format!("{what}: {r}")));
                let first = first.get_or_insert_with(|| dump.clone());
                if first.apart(&dump).0 > 0 {
                    failures.push(format!("{what}: other bits than on {}", routes[0].name()));
                }
                judged += 1;
            }
        }
    }
    assert!(judged > 0, "{name} has no prompt of up to {longest} tokens");
    failures
}

/// What `judge` says of the golden models on a card that it takes and that `wanted` lets pass, as many at a time as
/// compilers may run.
fn on_card(wanted: impl Fn(&str) -> bool, judge: impl Fn(&str) -> Vec<String> + Sync) -> Vec<String> {
    let names: Vec<String> = taken().filter(|name| wanted(name)).collect();
    let (names, failures) = (Mutex::new(names), Mutex::new(Vec::new()));
    let next = || names.lock().expect("names").pop();
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, NonZero::get) {
            scope.spawn(|| {
                while let Some(name) = next() {
                    let found = judge(&name);
                    failures.lock().expect("failures").extend(found);
                }
            });
        }
    });
    failures.into_inner().expect("failures")
}

#[track_caller]
fn none(failures: Vec<String>) {
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

/// Models that are also asked prompts of a hundred tokens on the host executor: past a window, and with many heads.
const LONG: [&str; 2] = ["gemma3-q4_k_m", "qwen2-q4_k_m"];

/// Every golden model in one class on the host executor, each on one path: short prompts, and long ones of some.
#[track_caller]
fn check_goldens(class: Class, shift: usize) {
    let Some(host) = host() else { return };
    let mut failures = Vec::new();
    for (i, name) in goldens().iter().enumerate().filter(|(_, n)| !REFUSED.contains(&n.as_str())) {
        let (route, longest) =
            if LONG.contains(&name.as_str()) { (Route::Token, usize::MAX) } else { (Route::ALL[(i + shift) % 4], 8) };
        failures.extend(judge(host.as_ref(), name, &[class], &[route], longest));
    }
    none(failures);
}

#[test]
fn goldens_match_f64_with_float_activations_on_the_host_executor() {
    check_goldens(F32, 0);
}

#[test]
fn goldens_match_f64_with_byte_activations_on_the_host_executor() {
    check_goldens(INT8, 1);
}

#[test]
fn paths_give_the_same_bits_on_the_host_executor() {
    let Some(host) = host() else { return };
    for name in ["llama-q4_k_m", "gemma3-q4_0"] {
        none(judge(host.as_ref(), name, &[INT8], &Route::ALL, 8));
    }
}

/// Every default, but that what crosses a barrier of decode's grid carries marks, and that groups are only used for rows
/// where `dense` SIMD groups of each of those before have some.
fn marked(dense: i64) -> Pins {
    common::pinned("decode", Config::new().with("CROSS", "marks").with("DENSE", dense))
}

/// On the host executor a mark that is not the awaited one is awaited for ever.
#[test]
fn values_with_marks_cross_barriers_on_the_host_executor() {
    let Some(host) = host() else { return };
    for (name, class, dense) in
        [("llama-q4_k_m", INT8, 0), ("qwen2-q4_k_m", F32, 4), ("qwen3-q4_k_m", INT8, 0), ("llama-q4_0", INT8, 4)]
    {
        none(judge_by(&marked(dense), host.as_ref(), name, (&[class], &Route::ALL), 8));
    }
}

#[test]
fn values_with_marks_cross_barriers_on_a_card() {
    let Some(card) = card() else { return };
    let routes = [Route::Token, Route::Layer, Route::Launches];
    let of = |name: &str| judge_by(&marked(4), card.as_ref(), name, (&[F32, INT8], &routes), usize::MAX);
    none(on_card(|name| !name.starts_with("gemma"), of));
}

#[test]
fn goldens_match_f64_on_a_card_on_every_path() {
    let Some(card) = card() else { return };
    none(on_card(|_| true, |name| judge(card.as_ref(), name, &[F32, INT8], &Route::ALL, usize::MAX)));
    println!("tier: CUDA device: ran: golden models on {}", card.identity().label);
}

/// Tokens of a chunk: of a tile, of some, and of whole prompts.
const CHUNKS: [usize; 3] = [16, 48, 512];

/// The prompts of a golden model in chunks of `chunk` tokens, in both classes: what fails against f64.
fn judge_chunks(backend: &dyn Backend, name: &str, chunk: usize) -> Vec<String> {
    let (loaded, file) = (load(backend, name).expect("weights"), expected(name));
    let mut failures = Vec::new();
    for (mode, activations) in [F32, INT8] {
        for prompt in &file.prompts {
            let context = prompt.ids.len() + prompt.greedy_ids.len();
            let machine = Machine { backend, isa: Isa::Portable };
            let route = Some(Route::Launches);
            let options = Options { context, activations, route, sampled: false, ahead: AHEAD, chunk };
            let decoder = GpuDecoder::new(machine, &loaded.hyper, &loaded.weights, options, &Defaults);
            let mut decoder = decoder.expect("a decoder");
            // Positions are the steps' matter; two steps show that they find what a chunk left in the cache.
            let mut prompt = prompt.clone();
            prompt.probe_logits_all = None;
            prompt.greedy_ids.truncate(2);
            let dump = verify::run(&mut decoder, &prompt, verify::Path::Prefill).expect("a run");
            let v = verify::judge(&prompt, &dump, mode, verify::Path::Prefill).expect("a verdict");
            failures.extend(v.reasons.iter().map(|r| format!("{name} {mode} {} in chunks: {r}", prompt.name)));
        }
    }
    failures
}

#[test]
fn prompts_in_chunks_match_f64_on_the_host_executor() {
    let Some(host) = host() else { return };
    for chunk in CHUNKS {
        none(taken().flat_map(|name| judge_chunks(host.as_ref(), &name, chunk)).collect());
    }
}

#[test]
fn prompts_in_chunks_match_f64_on_a_card() {
    let Some(card) = card() else { return };
    for chunk in CHUNKS {
        none(on_card(|_| true, |name| judge_chunks(card.as_ref(), name, chunk)));
    }
}

#[test]
fn widths_that_no_kernel_takes_are_refused_by_tensor() {
    let Some(host) = host() else { return };
    for name in REFUSED {
        let error = load(host.as_ref(), name).err().expect("refused");
        assert!(error.to_string().contains("tensor token_embd.weight") && error.hint().is_some(), "{error}");
    }
}

/// What penalties count of the last `room` of `seen`.
fn counts(seen: &[u32], room: usize) -> Vec<TokenCount> {
    let mut window = seen[seen.len().saturating_sub(room)..].to_vec();
    window.sort_unstable();
    window.chunk_by(|a, b| a == b).map(|run| TokenCount { token: run[0], count: run.len() as u32 }).collect()
}

/// Tokens drawn on the device against those of the CPU's sampler on the device's own logits, fed one by one.
#[track_caller]
fn check_drawing(backend: &dyn Backend, name: &str, params: Params) {
    let loaded = load(backend, name).expect("weights");
    let (prompt, seed, most) = ([5, 17, 42], 11, 8);
    let draw = |step| Draw { seed, sequence: 0, step };
    // Four tokens have room: the prompt's are forgotten on the way.
    let room = if params.repetition == 1.0 { 0 } else { 4 };
    let settings = Settings { sampling: params, penalty_window: room, seed, max_tokens: 8 };
    let by = planish_engine::gpu::generate::by(&settings, &prompt).expect("settings");
    assert_eq!(matches!(by, By::Penalised(..)), room > 0);
    let mut alone = loaded.decoder(Activations::Int8, None, 16);
    let mut workspace = Workspace::new(loaded.hyper.vocab);
    let mut logits = alone.feed(&prompt).expect("logits").to_vec();
    let (mut wanted, mut seen) = (Vec::new(), prompt.to_vec());
    for n in 0..most {
        let history = counts(&seen, room);
        let drawn = sample(Isa::Portable, (&mut logits, &history), &params, draw(3 + n), &mut workspace);
        let id = drawn.expect("a token");
        wanted.push(id);
        seen.push(id);
        logits = alone.feed(&[id]).expect("logits").to_vec();
    }
    let mut ahead = loaded.decoder(Activations::Int8, None, 16);
    let mut got = Vec::new();
    let mut take = |id| {
        got.push(id);
        Ok(if got.len() == 5 { Flow::Stop } else { Flow::Continue })
    };
    ahead.prefill(&prompt[..2]).expect("fed");
    assert_eq!(ahead.draw(prompt[2], &by, most as usize, &mut take).expect("drawn"), 5);
    assert_eq!((got.as_slice(), ahead.position()), (&wanted[..5], 7), "{params:?}");
    // Steps that ran ahead are forgotten, and the cache's end ends the drawing.
    let again = By::Likeliest;
    let mut ids = Vec::new();
    let drawn = ahead.draw(wanted[4], &again, 100, &mut |id| {
        ids.push(id);
        Ok(Flow::Continue)
    });
    assert_eq!((drawn.expect("drawn"), ahead.position()), (9, 16));
    alone.truncate(7);
    let logits = alone.feed(&wanted[4..5]).expect("logits").to_vec();
    assert_eq!(Some(ids[0]), planish_engine::generate::greedy_token(Isa::Portable, &logits));
}

fn draws() -> [Params; 5] {
    let of = |temperature, top_k, top_p, min_p| Params { temperature, top_k, top_p, min_p, ..Params::default() };
    let (greedy, filtered) = (of(0.0, 0, 1.0, 0.0), of(0.9, 20, 0.9, 0.02));
    let penalised = |p| Params { repetition: 1.4, frequency: 0.3, presence: 0.2, ..p };
    [greedy, of(1.5, 0, 1.0, 0.0), filtered, penalised(greedy), penalised(filtered)]
}

#[test]
fn tokens_are_drawn_on_the_device_as_on_the_cpu() {
    let Some(host) = host() else { return };
    for params in draws() {
        check_drawing(host.as_ref(), "llama-q4_0", params);
    }
}

#[test]
fn tokens_are_drawn_on_a_card_as_on_the_cpu() {
    let Some(card) = card() else { return };
    for params in draws() {
        check_drawing(card.as_ref(), "llama-q4_0", params);
    }
}
