//! The end-to-end check on a golden model: how far a promoted set moves the logits, and what goes back when the model does
//! not get faster.

mod common;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use planish_device::cpu::{Cpu, CpuOptions};
use planish_engine::Result;
use planish_engine::accept::{self, Contender, Effect, Effort, Gain, Item, Lasts, Report};
use planish_engine::arch::Hyper;
use planish_engine::decoder::{Decoder, KvType, Options};
use planish_engine::gguf::Gguf;
use planish_engine::identity::{Identities, StoreChoices, key};
use planish_engine::plan::{Choices, Defaults, Entry};
use planish_engine::verify::Feed;
use planish_engine::weights::Weights;
use planish_kernels::cpu::isa::Isa;
use planish_kernels::op::Machine;
use planish_kernels::weight::Activations;
use planish_tune::store::{self, Choice, Layers, Mode, Ratio, Source, State, Store, now_ms};
use planish_tune::{Config, Policy, Space};

struct Loaded {
    cpu: Cpu,
    hyper: Hyper,
    weights: Weights,
}

fn load() -> Loaded {
    let cpu = Cpu::new(CpuOptions { threads: Some(2) }).expect("a CPU");
    let gguf = Arc::new(Gguf::open(&common::golden_dir().join("tiny/llama-q4_1.gguf")).expect("a golden model"));
    let hyper = Hyper::read(&gguf).expect("hyperparameters");
    let weights = Weights::load(&gguf, &hyper, &cpu, 1).expect("weights");
    Loaded { cpu, hyper, weights }
}

impl Loaded {
    fn machine(&self) -> Machine<'_> {
        Machine { backend: &self.cpu, isa: Isa::detect() }
    }

    fn decoder(&self, activations: Activations, choices: &dyn Choices) -> Decoder<'_> {
        let options = Options { context: 64, chunk: 16, activations, kv: KvType::F16, all_logits: false };
        Decoder::new(self.machine(), &self.hyper, &self.weights, options, choices).expect("a decoder")
    }
}

/// A legal configuration of `space` other than its default.
fn other(space: &Space) -> Config {
    let found = space.candidates().into_iter().skip(1).find(|c| space.violated(c).is_none());
    found.expect("more than one configuration")
}

/// A store in which every kernel of `entries` has another configuration than the default, all won by a third.
fn seeded(loaded: &Loaded, identities: &Identities, entries: &[Entry], layers: Layers) -> Store {
    let mut store = Store::open(layers);
    for e in entries.iter().filter(|e| e.tuned) {
        let space = (e.op.space)(&e.shape, &loaded.machine());
        let choice = Choice {
            key: key(e.op, &e.shape).expect("a key"),
            identity: identities.of(&space),
            config: other(&space),
            source: Source::Tuned,
            state: State::Tuned,
            ratio: Ratio { lo: 1.2, mid: 1.33, hi: 1.4 },
            ns_median: 1e4,
            written_ms: now_ms(),
            evidence: None,
        };
        store.append(choice).expect("appended");
    }
    store
}

fn changed(decoder: &Decoder<'_>, loaded: &Loaded) -> [usize; 2] {
    let count = |entries: &[Entry]| {
        let differs = |e: &&Entry| e.chosen.config != (e.op.space)(&e.shape, &loaded.machine()).default;
        entries.iter().filter(differs).count()
    };
    [count(&decoder.decode_plan), count(&decoder.prefill_plan)]
}

fn report(decode: Effect, prefill: Effect) -> Report {
    let gain =
        |effect| Gain { default_tok_s: 100.0, tuned_tok_s: 90.0, ratio: 0.9, lo: 0.85, hi: 0.95, pairs: 8, effect };
    Report {
        decode: gain(decode),
        prefill: gain(prefill),
        logit_delta_max: 0.0,
        same_best: 3,
        compared: 3,
        spent_s: 1.0,
        break_even: None,
    }
}

/// Each won alone; the model says otherwise, and what it says is kept beside what goes back.
#[test]
fn a_set_that_slows_the_model_goes_back_and_the_record_says_so() {
    let loaded = load();
    let identities = Identities::new(&loaded.machine(), &Policy::default());
    let plain = loaded.decoder(Activations::Int8, &Defaults);
    let all = [&plain.decode_plan[..], &plain.prefill_plan].concat();
    for (decode, prefill, left) in [
        (Effect::Slower, Effect::Slower, [false, false]),
        (Effect::NoEffect, Effect::Faster, [false, true]),
        (Effect::Faster, Effect::NoEffect, [true, false]),
        (Effect::Faster, Effect::Faster, [true, true]),
    ] {
        let mut store = seeded(&loaded, &identities, &all, Layers::default());
        let decoder = |store: &Store| {
            let (snapshot, identities) = (store.snapshot(), &identities);
            let choices = StoreChoices { snapshot, identities, mode: &Mode::Stored, deterministic: false };
            loaded.decoder(Activations::Int8, &choices)
        };
        let tuned = decoder(&store);
        let before = changed(&tuned, &loaded);
        assert!(before[0] > 3 && before[1] > 3, "{before:?}");
        let report = report(decode, prefill);
        let items = accept::refuted(&report, &tuned.decode_plan, &tuned.prefill_plan);
        let space_of = |(op, shape): &Item| (op.space)(shape, &loaded.machine());
        let back = accept::put_back(&items, &space_of, &identities, &mut store, Lasts::ForGood).expect("stored");
        assert_eq!(back, items.len());
        let after = decoder(&store);
        let kept = changed(&after, &loaded);
        // What both paths use stands or falls with decode.
        let in_decode = |e: &&Entry| tuned.decode_plan.iter().any(|d| d.op.name == e.op.name && d.shape == e.shape);
        let shared = tuned.prefill_plan.iter().filter(|e| e.tuned).filter(in_decode).count();
        let decode_left = if left[0] { before[0] } else { 0 };
        let own = if left[1] { before[1] - shared } else { 0 };
        let prefill_left = own + if left[0] { shared } else { 0 };
        assert_eq!(kept, [decode_left, prefill_left], "{decode:?} {prefill:?}");
        for (op, shape) in &items {
            let space = (op.space)(shape, &loaded.machine());
            let record = store.lookup(&key(op, shape).expect("a key"), &identities.of(&space)).record.cloned();
            let state = record.map(|r| (r.state, r.config == space.default));
            assert_eq!(state, Some((State::NoEndToEndEffect, true)), "{} {shape}", op.name);
        }
        let digest = format!("{decode:?}{prefill:?}-0123456789abcdef");
        accept::remember(&report, &digest, &identities, &mut store).expect("remembered");
        assert_eq!(accept::known(&digest, &identities, &store).expect("readable"), Some(report));
    }
}

/// What goes back beside other work may be right without it: the default runs, and the next run measures again.
#[test]
fn what_goes_back_beside_other_work_is_not_settled() {
    let loaded = load();
    let identities = Identities::new(&loaded.machine(), &Policy::default());
    let plain = loaded.decoder(Activations::Int8, &Defaults);
    let space_of = |(op, shape): &Item| (op.space)(shape, &loaded.machine());
    for (lasts, settled) in [(Lasts::ForGood, true), (Lasts::ToNextRun, false)] {
        let folder = tempfile::tempdir().expect("a folder");
        let layers = Layers { user: Some(folder.path().join("store")), ..Layers::default() };
        let mut store = seeded(&loaded, &identities, &plain.decode_plan, layers);
        let items: Vec<Item> = plain.decode_plan.iter().filter(|e| e.tuned).map(|e| (e.op, e.shape.clone())).collect();
        let back = accept::put_back(&items, &space_of, &identities, &mut store, lasts).expect("stored");
        assert!(back > 3, "{back}");
        for item in &items {
            let (key, space) = (key(item.0, &item.1).expect("a key"), space_of(item));
            let identity = identities.of(&space);
            let asked = store::Item { key: &key, identity: &identity, space: &space };
            assert_eq!(store.standing(asked).map(|c| c.state), Some(State::NoEndToEndEffect), "{key}");
            assert_eq!(store.settled(asked, u64::MAX).is_some(), settled, "{key} {lasts:?}");
        }
    }
}

/// The check itself on real decoders: the same numerics move no logit, another class of activations does and is told.
#[test]
fn the_check_tells_how_far_logits_move() {
    let loaded = load();
    let effort = Effort { pairs: 6, tokens: 4, budget: Duration::ZERO };
    let ids: Vec<u32> = (0..12).map(|i| i * 37 % loaded.hyper.vocab as u32).collect();
    let identities = Identities::new(&loaded.machine(), &Policy::default());
    let mut default = loaded.decoder(Activations::Int8, &Defaults);
    let entries = [&default.decode_plan[..], &default.prefill_plan].concat();
    let store = seeded(&loaded, &identities, &entries, Layers::default());
    let (snapshot, identities) = (store.snapshot(), &identities);
    let choices = StoreChoices { snapshot, identities, mode: &Mode::Stored, deterministic: false };
    let mut tuned = loaded.decoder(Activations::Int8, &choices);
    let cancel = AtomicBool::new(false);
    let same =
        accept::compare(&mut default, &mut tuned, &ids, &effort, &cancel).expect("a report").expect("not cancelled");
    assert_eq!((same.logit_delta_max, same.same_best, same.compared), (0.0, 5, 5));
    assert!(same.decode.pairs >= 6 && same.decode.effect != Effect::Same, "{same:?}");
    let mut other = loaded.decoder(Activations::F32, &Defaults);
    let far =
        accept::compare(&mut default, &mut other, &ids, &effort, &cancel).expect("a report").expect("not cancelled");
    assert!(far.logit_delta_max > 0.0, "{far:?}");
}

/// Beside NaN every difference is no number, which must not pass for none.
#[test]
fn logits_that_are_no_numbers_are_refused_and_not_found_alike() {
    let loaded = load();
    let effort = Effort { pairs: 6, tokens: 4, budget: Duration::ZERO };
    let ids: Vec<u32> = (0..12).collect();
    for bad in [f32::NAN, f32::INFINITY] {
        let decoder = || loaded.decoder(Activations::Int8, &Defaults);
        let (mut sound, mut spoiled) = (decoder(), Spoiled { decoder: decoder(), bad, fed: 0, logits: Vec::new() });
        let check = |pair: [&mut dyn Contender; 2], who: &str| {
            let refused = accept::compare_on([true; 2], pair, &ids, &effort, &AtomicBool::new(false)).unwrap_err();
            assert_eq!(
                refused.to_string(),
                format!("{who} configurations, position 2: 1 of 280 logits are not finite")
            );
            assert!(refused.hint().is_some());
        };
        check([&mut spoiled, &mut sound], "default");
        check([&mut sound, &mut spoiled], "tuned");
    }
}

/// A decoder one of whose logits is spoiled from the third position on.
struct Spoiled<'d> {
    decoder: Decoder<'d>,
    bad: f32,
    fed: usize,
    logits: Vec<f32>,
}

impl Feed for Spoiled<'_> {
    fn position(&self) -> usize {
        self.decoder.position()
    }

    fn truncate(&mut self, position: usize) {
        self.fed = 0;
        self.decoder.truncate(position);
    }

    fn feed(&mut self, ids: &[u32]) -> Result<&[f32]> {
        self.logits = self.decoder.feed(ids)?.to_vec();
        if self.fed >= 2 {
            self.logits[7] = self.bad;
        }
        self.fed += 1;
        Ok(&self.logits)
    }

    fn feed_all(&mut self, ids: &[u32]) -> Result<Vec<Vec<f32>>> {
        self.decoder.feed_all(ids)
    }
}

impl Contender for Spoiled<'_> {
    fn decode(&mut self, ids: &[u32]) -> Result<()> {
        Contender::decode(&mut self.decoder, ids)
    }
}
