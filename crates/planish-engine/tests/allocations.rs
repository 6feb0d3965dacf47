//! Nothing is allocated between two tokens, nor by a lookup: an allocator that counts watches a decoder, the sampler and
//! the store at work.
//!
//! One test alone in its program, so that nobody else allocates meanwhile.

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use planish_device::cpu::{Cpu, CpuOptions};
use planish_engine::arch::Hyper;
use planish_engine::decoder::{Decoder, KvType, Options};
use planish_engine::gguf::Gguf;
use planish_engine::plan::Defaults;
use planish_engine::weights::Weights;
use planish_kernels::cpu::isa::Isa;
use planish_kernels::cpu::sample::{Draw, Params, Workspace, sample};
use planish_kernels::op::Machine;
use planish_kernels::weight::Activations;
use planish_tune::Config;
use planish_tune::store::{Choice, Identity, Key, Layers, Ratio, Silicon, Source, State, Store, Tier};

/// The system's allocator; counts what any thread asks for while armed.
struct Counting;

static ARMED: AtomicBool = AtomicBool::new(false);
static COUNT: AtomicUsize = AtomicUsize::new(0);

fn count() {
    if ARMED.load(SeqCst) {
        COUNT.fetch_add(1, SeqCst);
    }
}

// SAFETY: every call goes to the system's allocator with the arguments as they came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: forwarded.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: forwarded.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: forwarded.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: forwarded.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations of all threads while `work` runs.
fn allocations(work: impl FnOnce()) -> usize {
    COUNT.store(0, SeqCst);
    ARMED.store(true, SeqCst);
    work();
    ARMED.store(false, SeqCst);
    COUNT.load(SeqCst)
}

const WARM: usize = 8;
const STEPS: usize = 40;

/// Allocations of `STEPS` decode steps, each with a draw, after `WARM` of them.
fn in_decode(name: &str, threads: u32, activations: Activations, kv: KvType) -> usize {
    let cpu = Cpu::new(CpuOptions { threads: Some(threads) }).expect("a CPU");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/goldens/tiny/{name}.gguf"));
    let gguf = Arc::new(Gguf::open(&path).expect("a golden model"));
    let hyper = Hyper::read(&gguf).expect("hyperparameters");
    let weights = Weights::load(&gguf, &hyper, &cpu, 1).expect("weights");
    let machine = Machine { backend: &cpu, isa: Isa::detect() };
    let options = Options { context: 64, chunk: 8, activations, kv, all_logits: false };
    let mut decoder = Decoder::new(machine, &hyper, &weights, options, &Defaults).expect("a decoder");
    let mut logits = decoder.feed(&[1, 2, 3, 4, 5]).expect("a prompt").to_vec();
    let mut workspace = Workspace::new(hyper.vocab);
    let params = Params { temperature: 0.8, top_k: 40, top_p: 0.9, ..Params::default() };
    let mut run = |steps: usize| {
        for _ in 0..steps {
            let draw = Draw { seed: 1, sequence: 0, step: decoder.position() as u64 };
            let id = sample(machine.isa, (&mut logits, &[]), &params, draw, &mut workspace).expect("a token");
            logits.copy_from_slice(decoder.feed(&[id]).expect("a step"));
        }
    };
    run(WARM);
    allocations(|| run(STEPS))
}

/// Allocations of a lookup of each of `records` records, all of them found.
fn in_lookups(records: i64) -> usize {
    let silicon = Silicon::new("Test CPU", [("arch", "x86_64-v3"), ("cores", "2")]).into();
    let identity = Identity { silicon, kernel: "k1".into(), candidates: "c1".into(), ..Identity::default() };
    let keys: Vec<Key> = (0..records).map(|n| Key::new("op", [("rows", n.into())])).collect();
    let mut store = Store::open(Layers::default());
    for (n, key) in (0..).zip(&keys) {
        let choice = Choice {
            key: key.clone(),
            identity: identity.clone(),
            config: Config::new().with("ROWS", n),
            source: Source::Tuned,
            state: State::Tuned,
            ratio: Ratio { lo: 1.1, mid: 1.2, hi: 1.3 },
            ns_median: 100.0,
            written_ms: 1,
            evidence: None,
        };
        store.append(choice).expect("a good record");
    }
    let (snapshot, missing) = (store.snapshot(), Key::new("op", []));
    let mut found = 0;
    let allocated = allocations(|| {
        for key in keys.iter().chain([&missing]) {
            found += usize::from(snapshot.lookup(key, &identity).tier == Tier::Exact);
        }
    });
    assert_eq!(found, keys.len());
    allocated
}

#[test]
fn nothing_is_allocated_between_two_tokens_nor_by_a_lookup() {
    assert!(allocations(|| drop(vec![1u8; 100])) > 0, "the allocator does not count");
    for (name, threads, activations, kv) in [
        ("llama-q4_1", 1, Activations::Int8, KvType::F16),
        ("llama-q4_1", 2, Activations::Int8, KvType::F16),
        ("llama-f32", 2, Activations::F32, KvType::F32),
        ("gemma3-q4_k_m", 2, Activations::Int8, KvType::F16),
        ("qwen3-bf16", 2, Activations::F32, KvType::F16),
    ] {
        let n = in_decode(name, threads, activations, kv);
        assert_eq!(n, 0, "{n} allocations in {STEPS} tokens of {name} on {threads} threads");
    }
    assert_eq!(in_lookups(1000), 0, "allocations in 1001 lookups");
}
