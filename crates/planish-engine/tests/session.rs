//! A session of a decoder on golden models: the same bits however tokens are fed, by whom, and under which choices;
//! refusals change nothing.

mod common;

use std::cell::RefCell;
use std::sync::Arc;

use planish_device::cpu::{Cpu, CpuOptions};
use planish_engine::Result;
use planish_engine::arch::Hyper;
use planish_engine::decoder::{Decoder, KvType, Options, Planned};
use planish_engine::generate::{Ended, Flow, Settings, generate, greedy_token};
use planish_engine::gguf::Gguf;
use planish_engine::identity::{self, Identities, StoreChoices};
use planish_engine::model::Model;
use planish_engine::plan::{Choices, Chosen, Defaults, Replanned};
use planish_engine::weights::Weights;
use planish_kernels::Op;
use planish_kernels::cpu::isa::Isa;
use planish_kernels::cpu::sample::Params;
use planish_kernels::data::Rng;
use planish_kernels::op::{Machine, Shape};
use planish_kernels::weight::Activations;
use planish_tune::store::{Choice, Frozen, Layers, Locked, Mode, Ratio, Source, State, Store};
use planish_tune::{Config, Policy, Space};

/// A golden model on a machine of its own.
struct Loaded {
    cpu: Cpu,
    hyper: Hyper,
    weights: Weights,
}

fn load(name: &str, threads: u32) -> Loaded {
    let cpu = Cpu::new(CpuOptions { threads: Some(threads) }).expect("a CPU");
    let path = common::golden_dir().join("tiny").join(format!("{name}.gguf"));
    let gguf = Arc::new(Gguf::open(&path).expect("a golden model"));
    let hyper = Hyper::read(&gguf).expect("hyperparameters");
    let weights = Weights::load(&gguf, &hyper, &cpu, 1).expect("weights");
    Loaded { cpu, hyper, weights }
}

impl Loaded {
    fn decoder(&self, class: Class, context: usize, chunk: usize, choices: &dyn Choices) -> Decoder<'_> {
        let (machine, options) = self.setting(class, context, chunk);
        Decoder::new(machine, &self.hyper, &self.weights, options, choices).expect("a decoder")
    }

    fn setting(&self, class: Class, context: usize, chunk: usize) -> (Machine<'_>, Options) {
        let machine = Machine { backend: &self.cpu, isa: Isa::detect() };
        (machine, Options { context, chunk, activations: class.0, kv: class.1, all_logits: false })
    }

    /// Random ids of the vocabulary.
    fn ids(&self, n: usize) -> Vec<u32> {
        let mut rng = Rng::new(n as u64);
        (0..n).map(|_| rng.index(self.hyper.vocab) as u32).collect()
    }
}

type Class = (Activations, KvType);
const CLASSES: [Class; 3] =
    [(Activations::F32, KvType::F32), (Activations::Int8, KvType::F16), (Activations::F32, KvType::F16)];

/// Keys and values of every layer, and logits, as bits.
#[derive(PartialEq)]
struct Bits {
    kv: Vec<(Vec<u8>, Vec<u8>)>,
    logits: Vec<u32>,
}

impl Bits {
    fn of(decoder: &Decoder<'_>, logits: &[f32]) -> Bits {
        let layers = 0..decoder.hyper().layers;
        assert!(logits.iter().all(|l| l.is_finite()), "a logit is not finite");
        Bits { kv: layers.map(|l| decoder.kv_snapshot(l).expect("a cache")).collect(), logits: bits(logits) }
    }

    /// Where the two differ, if anywhere.
    fn differs(&self, other: &Bits) -> Option<String> {
        for (layer, (a, b)) in self.kv.iter().zip(&other.kv).enumerate() {
            for (which, a, b) in [("keys", &a.0, &b.0), ("values", &a.1, &b.1)] {
                if let Some(at) = a.iter().zip(b).position(|(a, b)| a != b) {
                    return Some(format!("{which} of layer {layer} at byte {at} of {}", a.len()));
                }
            }
        }
        let at = self.logits.iter().zip(&other.logits).position(|(a, b)| a != b)?;
        let [a, b] = [self, other].map(|s| f32::from_bits(s.logits[at]));
        Some(format!("logit {at}: {a:e} and {b:e}"))
    }
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|l| l.to_bits()).collect()
}

/// Feeds `ids` in runs of the lengths `runs`, again and again.
fn feed(decoder: &mut Decoder<'_>, ids: &[u32], runs: &[usize]) -> Bits {
    let mut logits = Vec::new();
    let mut rest = ids;
    for run in runs.iter().cycle() {
        let (part, tail) = rest.split_at((*run).min(rest.len()));
        logits = decoder.feed(part).expect("a step").to_vec();
        rest = tail;
        if rest.is_empty() {
            break;
        }
    }
    Bits::of(decoder, &logits)
}

#[track_caller]
fn same(what: &str, a: &Bits, b: &Bits) {
    if let Some(where_) = a.differs(b) {
        panic!("{what}: {where_}");
    }
    assert_eq!(a.logits.len(), b.logits.len(), "{what}: vocabularies");
}

/// Prefill by chunks of any size in runs of any length, against one token at a time.
#[track_caller]
fn check_feeding(model: &str, n: usize) {
    let loaded = load(model, 2);
    let ids = loaded.ids(n);
    for class in CLASSES {
        let mut steps = loaded.decoder(class, n, 1, &Defaults);
        let wanted = feed(&mut steps, &ids, &[1]);
        for (chunk, runs) in [(2, &[n][..]), (7, &[n]), (16, &[5, 1, 40]), (32, &[33, 2]), (n, &[n]), (64, &[1])] {
            let mut decoder = loaded.decoder(class, n, chunk, &Defaults);
            let got = feed(&mut decoder, &ids, runs);
            same(&format!("{model} {class:?} in chunks of {chunk}, runs of {runs:?}"), &wanted, &got);
        }
    }
}

#[test]
fn chunks_and_steps_leave_the_same_bits() {
    let models =
        ["llama-q4_1", "llama-q8_0", "llama-q6_k", "llama-odd-q5_1", "qwen2-q4_k_m", "qwen3-bf16", "llama3rope-f16"];
    for model in models {
        check_feeding(model, 79);
    }
}

#[test]
fn more_than_one_segment_of_keys_leaves_the_same_bits() {
    check_feeding("llama-q4_0", 301);
}

#[test]
fn crossing_the_window_leaves_the_same_bits() {
    let hyper = load("gemma3-q4_0", 1).hyper;
    let window = (0..hyper.layers).map(|l| hyper.window_of(l)).max().unwrap_or(0);
    assert!(window > 0 && window < 90, "the golden model has a window of {window}");
    for model in ["gemma3-q4_0", "gemma3-q4_k_m"] {
        check_feeding(model, 2 * window + 23);
    }
}

/// The golden model made to accept long contexts: rotation has no other limit.
#[test]
fn position_4096_is_reached_with_the_same_bits() {
    let mut loaded = load("llama-q8_0", 2);
    loaded.hyper.context = 8192;
    let ids = loaded.ids(4099);
    for class in [CLASSES[0], CLASSES[1]] {
        let mut steps = loaded.decoder(class, 4100, 1, &Defaults);
        let wanted = feed(&mut steps, &ids, &[1]);
        let mut prefill = loaded.decoder(class, 4100, 96, &Defaults);
        same(&format!("{class:?}"), &wanted, &feed(&mut prefill, &ids, &[4090, 1, 8]));
        assert_eq!(prefill.position(), 4099);
    }
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    for model in ["llama-q4_1", "gemma3-q4_k_m"] {
        for class in CLASSES {
            let run = |threads| {
                let loaded = load(model, threads);
                let ids = loaded.ids(150);
                let mut decoder = loaded.decoder(class, 150, 24, &Defaults);
                feed(&mut decoder, &ids, &[100, 1, 1])
            };
            let one = run(1);
            for threads in [2, 3] {
                same(&format!("{model} {class:?} on {threads} threads"), &one, &run(threads));
            }
        }
    }
}

/// A random legal configuration for every op, as if the clock had lied to the tuner.
struct Scrambled {
    rng: RefCell<Rng>,
    changed: RefCell<usize>,
}

impl Choices for Scrambled {
    fn choose(&self, _op: &'static Op, _shape: &Shape, space: &Space) -> Result<Option<Chosen>> {
        let mut rng = self.rng.borrow_mut();
        for _ in 0..100 {
            let mut config: Config = space.default.clone();
            for p in &space.params {
                config = config.with(p.name, p.values[rng.index(p.values.len())].clone());
            }
            if space.violated(&config).is_none() {
                *self.changed.borrow_mut() += usize::from(config != space.default);
                return Ok(Some(Chosen { config, tier: "pinned" }));
            }
        }
        panic!("no legal configuration in a hundred");
    }
}

#[test]
fn a_plan_runs_in_a_smaller_cache() {
    let loaded = load("llama-q4_1", 2);
    let ids = loaded.ids(40);
    let choices = Scrambled { rng: RefCell::new(Rng::new(3)), changed: RefCell::new(0) };
    let plans = {
        let scrambled = loaded.decoder(CLASSES[1], 200, 16, &choices);
        (scrambled.decode_plan, scrambled.prefill_plan)
    };
    let replanned = Replanned([&plans.0, &plans.1]);
    let mut whole = loaded.decoder(CLASSES[1], 200, 16, &replanned);
    let mut part = loaded.decoder(CLASSES[1], 40, 16, &replanned);
    assert!(*choices.changed.borrow() > 0 && part.kv_bytes() * 4 <= whole.kv_bytes(), "{}", part.kv_bytes());
    let configs = |d: &Decoder<'_>| -> Vec<String> {
        d.decode_plan.iter().chain(&d.prefill_plan).map(|e| format!("{} {}", e.op.name, e.chosen.config)).collect()
    };
    assert_eq!(configs(&whole), configs(&part));
    let logits = [&mut whole, &mut part].map(|d| bits(d.feed(&ids).expect("a step")));
    assert!(logits[0] == logits[1], "another cache gave other bits");
    assert!(part.feed(&ids[..1]).is_err(), "the cache is full");
}

#[test]
fn scrambled_choices_leave_the_bits() {
    for (model, seeds) in [("llama-q4_1", 10), ("gemma3-q4_k_m", 4), ("qwen3-q4_k_m", 4), ("llama-f16", 4)] {
        let loaded = load(model, 2);
        let ids = loaded.ids(160);
        for class in [CLASSES[0], CLASSES[1]] {
            let mut decoder = loaded.decoder(class, 160, 37, &Defaults);
            let wanted = feed(&mut decoder, &ids, &[120, 1, 1]);
            let mut changed = 0;
            for seed in 0..seeds {
                let choices = Scrambled { rng: RefCell::new(Rng::new(seed)), changed: RefCell::new(0) };
                let mut decoder = loaded.decoder(class, 160, 37, &choices);
                let got = feed(&mut decoder, &ids, &[120, 1, 1]);
                if let Some(where_) = wanted.differs(&got) {
                    let plans = decoder.decode_plan.iter().chain(&decoder.prefill_plan);
                    let lines: Vec<String> =
                        plans.map(|e| format!("{} {} {}", e.op.name, e.shape, e.chosen.config)).collect();
                    panic!("{model} {class:?} seed {seed}: {where_}\n{}", lines.join("\n"));
                }
                changed += *choices.changed.borrow();
            }
            assert!(changed > seeds as usize, "only {changed} choices were scrambled");
        }
    }
}

/// What a plan chose, frozen, gives another plan the same digest, configurations and tokens, whatever that had chosen.
#[test]
fn equal_digests_give_equal_tokens() {
    for model in ["llama-q4_1", "qwen2-q4_k_m"] {
        let loaded = load(model, 2);
        let ids = loaded.ids(60);
        let (machine, options) = loaded.setting(CLASSES[1], 80, 16);
        let choices = Scrambled { rng: RefCell::new(Rng::new(7)), changed: RefCell::new(0) };
        let mut first = Decoder::new(machine, &loaded.hyper, &loaded.weights, options, &choices).expect("a decoder");
        let set = first.frozen().clone();
        assert_eq!(Frozen::parse(set.to_text().as_bytes()).expect("a lock"), set, "through a file it is the same");
        let planned = Planned::new(machine, &loaded.hyper, &loaded.weights, options, &Defaults).expect("a plan");
        assert_ne!(planned.frozen().expect("its own set").digest(), set.digest());
        let mut second = planned.record(&set).expect("a decoder");
        assert_eq!(second.frozen().digest(), set.digest());
        assert!(second.decode_plan.iter().any(|e| e.chosen.tier == "locked"), "the plan says that it was overruled");
        let tokens = |d: &mut Decoder<'_>| -> Vec<u32> {
            let mut logits = d.feed(&ids).expect("a step").to_vec();
            let next = |logits: &[f32]| greedy_token(Isa::detect(), logits).expect("a likeliest token");
            (0..12)
                .map(|_| {
                    let id = next(&logits);
                    logits = d.feed(&[id]).expect("a step").to_vec();
                    id
                })
                .collect()
        };
        assert_eq!(tokens(&mut first), tokens(&mut second), "{model}");
    }
}

#[test]
fn a_set_that_lacks_an_op_or_has_an_illegal_config_is_not_recorded() {
    let loaded = load("llama-q4_1", 1);
    let (machine, options) = loaded.setting(CLASSES[1], 80, 16);
    let plan = |options| Planned::new(machine, &loaded.hyper, &loaded.weights, options, &Defaults).expect("a plan");
    let set = plan(options).frozen().expect("a set");
    let refused = |planned: Planned<'_>, set: &Frozen| match planned.record(set) {
        Ok(_) => panic!("it was recorded"),
        Err(e) => e.to_string(),
    };
    assert!(refused(plan(Options { context: 40, ..options }), &set).contains("context=40,"), "another shape");
    assert!(refused(plan(options), &Frozen::new([])).contains("is not in the frozen set"));
    let bad = set.iter().map(|l| Locked { config: l.config.clone().with("SPLITS", 3), ..l.clone() });
    assert!(refused(plan(options), &Frozen::new(bad)).contains("is not legal"));
    // The step that only verification has takes its defaults.
    let mut every = plan(Options { all_logits: true, ..options }).record(&set).expect("a decoder");
    assert_eq!(every.feed_all(&loaded.ids(3)).expect("logits").len(), 3);
}

/// Off: the store is full of other choices, and the decoder is the one of an empty store, bit for bit.
#[test]
fn off_is_the_default_whatever_the_store_has() {
    for model in ["llama-q4_1", "gemma3-q4_0", "qwen3-bf16"] {
        let loaded = load(model, 2);
        let ids = loaded.ids(50);
        let (machine, options) = loaded.setting(CLASSES[1], 64, 16);
        let (identities, store) =
            (Identities::new(&machine, &Policy::default()), full_store(&loaded, machine, options));
        let decoder = |mode: &Mode| {
            let choices =
                StoreChoices { snapshot: store.snapshot(), identities: &identities, mode, deterministic: false };
            Decoder::new(machine, &loaded.hyper, &loaded.weights, options, &choices).expect("a decoder")
        };
        let mut plain = Decoder::new(machine, &loaded.hyper, &loaded.weights, options, &Defaults).expect("a decoder");
        let (mut off, stored) = (decoder(&Mode::Off), decoder(&Mode::Stored));
        assert_eq!(off.frozen().digest(), plain.frozen().digest());
        assert_ne!(stored.frozen().digest(), plain.frozen().digest(), "the store does say otherwise");
        let tier = |d: &Decoder<'_>| d.decode_plan.iter().find(|e| e.tuned).map(|e| e.chosen.tier);
        assert_eq!((tier(&off), tier(&stored)), (Some("default"), Some("tuned")));
        same(&format!("{model} off"), &feed(&mut plain, &ids, &[20, 1]), &feed(&mut off, &ids, &[20, 1]));
    }
}

/// A store in which every op of the plan was tuned to something else than its default.
fn full_store(loaded: &Loaded, machine: Machine<'_>, options: Options) -> Store {
    let choices = Scrambled { rng: RefCell::new(Rng::new(1)), changed: RefCell::new(0) };
    let planned = Planned::new(machine, &loaded.hyper, &loaded.weights, options, &choices).expect("a plan");
    let identities = Identities::new(&machine, &Policy::default());
    let mut store = Store::open(Layers::default());
    for e in planned.decode_plan.iter().chain(&planned.prefill_plan).filter(|e| e.tuned) {
        let record = Choice {
            key: identity::key(e.op, &e.shape).expect("a key"),
            identity: identities.of(&(e.op.space)(&e.shape, &machine)),
            config: e.chosen.config.clone(),
            source: Source::Tuned,
            state: State::Tuned,
            ratio: Ratio { lo: 1.1, mid: 1.2, hi: 1.3 },
            ns_median: 1.0,
            written_ms: 1,
            evidence: None,
        };
        store.append(record).expect("a sound record");
    }
    store
}

/// A refusal that names what is wrong, and leaves the session as it was.
#[track_caller]
fn refused(decoder: &mut Decoder<'_>, ids: &[u32], word: &str) -> planish_engine::Error {
    let kv = |d: &Decoder<'_>| d.kv_snapshot(0).expect("a cache");
    let (position, before) = (decoder.position(), kv(decoder));
    let error = decoder.feed(ids).map(|_| ()).expect_err("a refusal");
    assert!(error.is_request() && error.to_string().contains(word), "{error}");
    assert_eq!(decoder.position(), position, "{error}: the position moved");
    assert!(kv(decoder) == before, "{error}: the cache changed");
    error
}

#[test]
fn a_full_context_refuses_one_token_more_and_stays_usable() {
    let loaded = load("llama-q4_1", 2);
    let ids = loaded.ids(41);
    for class in CLASSES {
        let mut decoder = loaded.decoder(class, 40, 16, &Defaults);
        let full = feed(&mut decoder, &ids[..40], &[40]);
        assert_eq!(decoder.position(), 40);
        let error = refused(&mut decoder, &ids[40..], "1 tokens do not fit: 40 of 40");
        assert!(error.hint().is_some_and(|h| h.contains("--context")), "{error} has no hint");
        decoder.truncate(39);
        same("after a refusal", &full, &feed(&mut decoder, &ids[39..40], &[1]));
        decoder.truncate(30);
        refused(&mut decoder, &ids[30..41], "11 tokens do not fit: 30 of 40");
        same("after a refusal of many", &full, &feed(&mut decoder, &ids[30..40], &[10]));
        decoder.truncate(0);
        same("from the start again", &full, &feed(&mut decoder, &ids[..40], &[3]));
    }
}

#[test]
fn ids_outside_the_vocabulary_and_no_ids_are_refused() {
    let loaded = load("qwen2-f16", 1);
    let vocab = loaded.hyper.vocab as u32;
    let mut decoder = loaded.decoder(CLASSES[0], 16, 8, &Defaults);
    decoder.feed(&[1, 2, 3]).expect("good ids");
    for bad in [&[vocab][..], &[4, u32::MAX, 5], &[0, 1, 2, 3, 4, 5, 6, 7, 8, vocab + 7]] {
        refused(&mut decoder, bad, "outside the vocabulary");
    }
    refused(&mut decoder, &[], "no token");
    decoder.feed(&[vocab - 1]).expect("the last id of the vocabulary");
    assert_eq!(decoder.position(), 4);
}

#[test]
fn a_context_beyond_the_model_and_a_chunk_of_nothing_are_refused() {
    let loaded = load("llama-q4_1", 1);
    let machine = Machine { backend: &loaded.cpu, isa: Isa::detect() };
    for (context, chunk) in [(loaded.hyper.context + 1, 8), (0, 8), (64, 0)] {
        let options = Options { context, chunk, activations: Activations::F32, kv: KvType::F32, all_logits: false };
        let made = Decoder::new(machine, &loaded.hyper, &loaded.weights, options, &Defaults);
        assert!(made.is_err_and(|e| e.is_request()), "context {context}, chunk {chunk}");
    }
    let endless = Hyper { context: 1 << 40, ..loaded.hyper.clone() };
    let options =
        Options { context: 1 << 40, chunk: 8, activations: Activations::F32, kv: KvType::F32, all_logits: false };
    let error = Decoder::new(machine, &endless, &loaded.weights, options, &Defaults).err().expect("no such memory");
    let (text, hint) = (error.to_string(), error.hint().unwrap_or_default());
    assert!(text.contains("1099511627776 tokens") && text.contains("refused") && hint.contains("--context"), "{text}");
}

/// Generates from a prompt after forgetting all tokens.
fn text(decoder: &mut Decoder<'_>, model: &Model, temperature: f32, seed: u64) -> (Vec<u32>, String) {
    decoder.truncate(0);
    let sampling = Params { temperature, ..Params::default() };
    let settings = Settings { sampling, penalty_window: 64, seed, max_tokens: 24 };
    let mut text = String::new();
    let mut emit = |part: &str| {
        text.push_str(part);
        Flow::Continue
    };
    let out = generate(decoder, &model.file.tokenizer, &[5, 17, 42, 99, 3], &settings, &mut emit).expect("text");
    (out.ids, text)
}

#[test]
fn a_long_prompt_can_be_stopped_between_chunks() {
    let cpu = Cpu::new(CpuOptions { threads: Some(1) }).expect("a CPU");
    let model = Model::open(&common::golden_dir().join("tiny/llama-q4_1.gguf"), &cpu, 1).expect("a golden model");
    let machine = Machine { backend: &cpu, isa: Isa::detect() };
    let options = Options { context: 64, chunk: 8, activations: Activations::Int8, kv: KvType::F16, all_logits: false };
    let mut decoder = Decoder::new(machine, &model.file.hyper, &model.weights, options, &Defaults).expect("a decoder");
    let settings = Settings { sampling: Params::default(), penalty_window: 0, seed: 0, max_tokens: 4 };
    let prompt: Vec<u32> = (1..=20).collect();
    for (parts, position) in [(1, 8), (2, 16)] {
        decoder.truncate(0);
        let mut asked = 0;
        let mut stop = |part: &str| {
            assert_eq!(part, "");
            asked += 1;
            if asked == parts { Flow::Stop } else { Flow::Continue }
        };
        let out = generate(&mut decoder, &model.file.tokenizer, &prompt, &settings, &mut stop).expect("stopped");
        assert_eq!((out.ended, out.ids.len(), decoder.position()), (Ended::Stopped, 0, position));
    }
    let mut go_on = |_: &str| Flow::Continue;
    let whole = generate(&mut decoder, &model.file.tokenizer, &prompt[16..], &settings, &mut go_on).expect("text");
    decoder.truncate(0);
    let fresh = generate(&mut decoder, &model.file.tokenizer, &prompt, &settings, &mut go_on).expect("text");
    assert_eq!(whole.ids, fresh.ids, "what was fed before the stop is in the cache");
}

#[test]
fn greedy_repeats_itself_and_seeds_decide_the_rest() {
    let cpu = Cpu::new(CpuOptions { threads: Some(2) }).expect("a CPU");
    let path = common::golden_dir().join("tiny/llama-q4_1.gguf");
    let model = Model::open(&path, &cpu, 1).expect("a golden model");
    let machine = Machine { backend: &cpu, isa: Isa::detect() };
    let options =
        Options { context: 64, chunk: 16, activations: Activations::Int8, kv: KvType::F16, all_logits: false };
    let decoder = || Decoder::new(machine, &model.file.hyper, &model.weights, options, &Defaults).expect("a decoder");
    let mut first = decoder();
    let greedy = text(&mut first, &model, 0.0, 1);
    assert!(!greedy.0.is_empty(), "the model ended at once");
    assert_eq!(greedy, text(&mut first, &model, 0.0, 2), "greedy, same decoder, another seed");
    assert_eq!(greedy, text(&mut decoder(), &model, 0.0, 1), "greedy, another decoder");
    let drawn = text(&mut first, &model, 2.0, 7);
    assert_eq!(drawn, text(&mut first, &model, 2.0, 7), "same seed, same decoder");
    assert_eq!(drawn, text(&mut decoder(), &model, 2.0, 7), "same seed, another decoder");
    let others = (8..14).map(|seed| text(&mut first, &model, 2.0, seed).0);
    assert!(others.into_iter().any(|ids| ids != drawn.0), "six other seeds drew the same text");
}
