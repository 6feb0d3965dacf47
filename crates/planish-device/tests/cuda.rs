//! The CUDA backend on a card, where there is one: graphs, residency, shared memory, flight, peeks and a broken context.

#![allow(clippy::print_stdout)]

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use planish_device::{
    Backend, Cuda, CudaOptions, Error, ErrorKind, Float, Init, Launch, Params, Program, Sequence, Slice, Source, Token,
    VendorProduct,
};

const MINUTE: Duration = Duration::from_secs(60);
/// Set in the process that breaks its context.
const BREAK: &str = "PLANISH_TEST_BREAK";

const TEXT: &str = "
struct P { uint n; uint a; };
// y <- a y + i
KERNEL(step, INOUT(uint, y, 0), PARAMS(P, p, 1)) {
    const uint i = TG_X * GROUP_THREADS + TID;
    if (i < p.n) y[i] = p.a * y[i] + i;
}
// Every group adds what all groups wrote before the barrier.
KERNEL_GRID(meet, ATOMIC(uint, sync, 0), INOUT(uint, mail, 1), INOUT(uint, y, 2), PARAMS(P, p, 3)) {
    if (TID == 0) mail[TG_X] = TG_X + p.a;
    GRID_BARRIER(sync);
    uint sum = 0;
    for (uint g = TID; g < TG_COUNT; g += GROUP_THREADS) sum += mail[g];
    sum = simd_sum(sum);
    if (TID == 0) y[TG_X] += sum;
}
// y[i] <- y[n - 1 - i], by way of the shared array that the launch sizes.
KERNEL(turn, INOUT(uint, y, 0), PARAMS(P, p, 1)) {
    SHARED_DYNAMIC(uint, all);
    for (uint i = TID; i < p.n; i += GROUP_THREADS) all[i] = y[i];
    TG_BARRIER();
    for (uint i = TID; i < p.n; i += GROUP_THREADS) y[i] = all[p.n - 1 - i];
}
KERNEL(slow, INOUT(uint, y, 0), PARAMS(P, p, 1)) {
    uint v = y[0];
    for (uint i = 0; i < p.n; ++i) v = v * p.a + (v >> 7);
    y[0] = v | 1u;
}
KERNEL(wild, OUT(uint, y, 0), PARAMS(P, p, 1)) { DCAST(uint, y)[p.n * 0x10000000ul + TID] = p.a; }
";

/// The first card; none where there is none, which is said.
fn card() -> Option<Cuda> {
    let cache = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("cuda-backend");
    let skipped = |e: Error| drop(writeln!(std::io::stderr(), "tier: CUDA backend: skipped: {e}"));
    Cuda::new(CudaOptions { ordinal: 0, cache }).map_err(skipped).ok()
}

fn program(cuda: &Cuda, name: &str, threads: u32) -> Program {
    let (name, text) = (name.to_owned(), TEXT.to_owned());
    cuda.load(&Source::Text { name, text, constants: BTreeMap::new(), threads }).expect("compiles")
}

/// A launch of `program` with parameters n and a.
fn launch(program: &Program, args: &[&Slice], (tasks, threads): (u32, u32), params: [u32; 2]) -> Launch {
    Launch {
        program: program.clone(),
        args: args.iter().map(|s| (*s).clone()).collect(),
        params: Params::words(&params),
        tasks,
        threads,
        scratch_bytes: 0,
        overlap: false,
        views: Vec::new(),
    }
}

fn words(cuda: &Cuda, slice: &Slice) -> Vec<u32> {
    let mut bytes = vec![0; slice.len];
    cuda.read(slice, &mut bytes).expect("read");
    bytes.chunks(4).map(|w| u32::from_le_bytes(w.try_into().expect("four bytes"))).collect()
}

fn run(cuda: &Cuda, sequence: &Sequence) {
    let token = cuda.submit(sequence).expect("submitted");
    cuda.wait(token, MINUTE).expect("ends");
}

#[test]
fn a_graph_gives_what_its_launches_give() {
    let Some(cuda) = card() else { return };
    let (step, meet) = (program(&cuda, "step", 128), program(&cuda, "meet", 32));
    let mut results = Vec::new();
    for graph in [false, true] {
        let n = 1000;
        let memory = cuda.alloc(8 * 4 * n, Init::Zero).expect("memory");
        let part = |i: usize| memory.slice(i * 4 * n, 4 * n).expect("inside");
        let (sync, mail) =
            (cuda.alloc(64, Init::Zero).expect("64 bytes"), cuda.alloc(4096, Init::Zero).expect("4 KiB"));
        let steps = |i: usize, a| launch(&step, &[&part(i)], (8, 128), [n as u32, a]);
        let mut launches = vec![steps(0, 3), steps(0, 5)];
        // Six branches, more than end one by one, then a grid that waits for itself, then a chain on what it wrote.
        launches.extend((0..6).map(|i| Launch { overlap: i > 0, ..steps(i, 7 + i as u32) }));
        launches.push(launch(&meet, &[&sync.all(), &mail.all(), &part(0)], (100, 32), [0, 9]));
        launches.extend([steps(0, 11), Launch { overlap: true, ..steps(7, 2) }, steps(0, 13)]);
        let recorded = if graph { cuda.record_graph(&launches) } else { cuda.record(&launches) }.expect("recorded");
        (0..3).for_each(|_| run(&cuda, &recorded));
        results.push(words(&cuda, &memory.all()));
    }
    assert_eq!(results[0], results[1]);
    let mut want = 0u32;
    let met: u32 = (0..100).map(|g| g + 9).sum();
    for _ in 0..3 {
        want = [3, 5, 7].iter().fold(want, |y, a| y.wrapping_mul(*a).wrapping_add(42)).wrapping_add(met);
        want = [11, 13].iter().fold(want, |y, a| y.wrapping_mul(*a).wrapping_add(42));
    }
    assert_eq!(results[0][42], want);
}

/// A product of whole numbers, of which every type holds every sum.
struct Product {
    of: VendorProduct,
    a: Vec<f32>,
    b: Vec<f32>,
    c: Vec<f32>,
}

impl Product {
    fn new(sizes: [usize; 3], turned: [bool; 2], (io, out): (Float, Float)) -> Product {
        let [m, n, k] = sizes;
        let values = |len: usize, by: usize| (0..len).map(|i| (i * by % 7 % 3) as f32 - 1.0).collect::<Vec<f32>>();
        Product {
            of: VendorProduct { sizes, turned, io, out },
            a: values(m * k, 5),
            b: values(n * k, 3),
            c: values(m * n, 2),
        }
    }

    /// α A Bᵀ + β C.
    fn result(&self, alpha: f32, beta: f32) -> Vec<f32> {
        let ([m, n, k], [turned_a, turned_b]) = (self.of.sizes, self.of.turned);
        let at_a = |row: usize, i: usize| self.a[if turned_a { i * m + row } else { row * k + i }];
        let at_b = |column: usize, i: usize| self.b[if turned_b { i * n + column } else { column * k + i }];
        let sum = |at: usize| (0..k).fold(0.0, |sum, i| sum + at_a(at / n, i) * at_b(at % n, i));
        (0..m * n).map(|at| alpha * sum(at) + beta * self.c[at]).collect()
    }

    /// A, B and C on the card.
    fn memory(&self, cuda: &Cuda) -> [Slice; 3] {
        let place = |values: &[f32], ty| {
            let bytes = bytes(values, ty);
            let slice = cuda.alloc(bytes.len(), Init::Zero).expect("memory").all();
            cuda.write(&slice, &bytes).expect("written");
            slice
        };
        [place(&self.a, self.of.io), place(&self.b, self.of.io), place(&self.c, self.of.out)]
    }

    fn launch(&self, cuda: &Cuda, args: &[&Slice], scales: [f32; 2]) -> Launch {
        let program = cuda.load(&Source::Vendor(self.of)).expect("an algorithm");
        launch(&program, args, (1, 1), scales.map(f32::to_bits))
    }
}

/// `values`, which f32 or bf16 holds exactly.
fn bytes(values: &[f32], ty: Float) -> Vec<u8> {
    let skipped = if ty == Float::F32 { 0 } else { 2 };
    values.iter().flat_map(|v| v.to_le_bytes().into_iter().skip(skipped)).collect()
}

/// A card with the library of its vendor's; none where there is no card or no library, which is said.
fn card_with_library() -> Option<Cuda> {
    let cuda = card()?;
    match cuda.library() {
        Ok(library) => println!("{library}"),
        Err(e) => drop(writeln!(std::io::stderr(), "tier: vendor's library: skipped: {e}")),
    }
    cuda.library().is_ok().then_some(cuda)
}

#[test]
fn a_product_of_the_vendors_is_right_by_every_layout_and_type() {
    let Some(cuda) = card_with_library() else { return };
    let types = [(Float::F32, Float::F32), (Float::Bf16, Float::F32), (Float::Bf16, Float::Bf16)];
    for ty in types {
        for turned in [[false, false], [false, true], [true, true], [true, false]] {
            for sizes in [[16, 24, 32], [1, 130, 31], [67, 33, 65], [256, 128, 64]] {
                let product = Product::new(sizes, turned, ty);
                for [alpha, beta] in [[1.0, 0.0], [-2.0, 1.0]] {
                    for graph in [false, true] {
                        let [a, b, c] = product.memory(&cuda);
                        let launches = [product.launch(&cuda, &[&a, &b, &c], [alpha, beta])];
                        let sequence = if graph { cuda.record_graph(&launches) } else { cuda.record(&launches) };
                        run(&cuda, &sequence.expect("recorded"));
                        let mut got = vec![0; c.len];
                        cuda.read(&c, &mut got).expect("read");
                        let want = bytes(&product.result(alpha, beta), ty.1);
                        assert!(got == want, "{} with {alpha} and {beta}, graph {graph}", product.of);
                    }
                }
            }
        }
    }
}

#[test]
fn products_of_the_vendors_stand_between_kernels_in_a_graph() {
    let Some(cuda) = card_with_library() else { return };
    let step = program(&cuda, "step", 128);
    let product = Product::new([96, 64, 64], [false; 2], (Float::F32, Float::F32));
    let mut results = Vec::new();
    for graph in [false, true] {
        let [a, b, c] = product.memory(&cuda);
        let (aside, d) = (cuda.alloc(4000, Init::Zero).expect("memory").all(), product.memory(&cuda)[2].clone());
        let add = |y: &Slice| launch(&step, &[y], (48, 128), [(y.len / 4) as u32, 1]);
        // The second product takes what a kernel made of the result of the first.
        let launches = [
            product.launch(&cuda, &[&a, &b, &c], [1.0, 0.0]),
            Launch { overlap: true, ..add(&aside) },
            add(&c),
            product.launch(&cuda, &[&c, &b, &d], [2.0, 1.0]),
            add(&d),
        ];
        let recorded = if graph { cuda.record_graph(&launches) } else { cuda.record(&launches) }.expect("recorded");
        (0..3).for_each(|_| run(&cuda, &recorded));
        results.push([words(&cuda, &c), words(&cuda, &d), words(&cuda, &aside)]);
    }
    assert_eq!(results[0], results[1]);
    let first: Vec<u32> = product.result(1.0, 0.0).iter().zip(0..).map(|(v, i)| v.to_bits().wrapping_add(i)).collect();
    assert_eq!(results[0][0], first, "the first product, and a kernel on it");
    assert_eq!(results[0][2][42], 3 * 42, "a kernel beside the first product");
}

#[test]
fn calls_that_are_no_product_are_refused_with_their_numbers() {
    let Some(cuda) = card_with_library() else { return };
    let product = Product::new([16, 24, 32], [false; 2], (Float::F32, Float::F32));
    let [a, b, c] = product.memory(&cuda);
    let good = product.launch(&cuda, &[&a, &b, &c], [1.0, 0.0]);
    let refused = |launch: Launch, why: &str| {
        let message = cuda.record(&[launch]).err().expect("refused").to_string();
        assert!(message.contains(why), "{message}");
    };
    refused(Launch { overlap: true, ..good.clone() }, "may not overlap");
    refused(Launch { threads: 32, ..good.clone() }, "3 arguments and 8 bytes");
    refused(Launch { args: vec![a.clone(), b.clone()], ..good.clone() }, "2 arguments and 8 bytes");
    refused(Launch { args: vec![b.clone(), a.clone(), c.clone()], ..good.clone() }, "argument 1 has 2048 bytes");
    let odd = a.buffer.slice(4, a.len - 4).expect("inside");
    refused(Launch { args: vec![b.clone(), b.clone(), odd], ..good.clone() }, "is no multiple of 16");
    let empty = Source::Vendor(VendorProduct { sizes: [16, 24, 0], ..product.of });
    assert!(cuda.load(&empty).err().expect("refused").to_string().contains("is empty"));
    run(&cuda, &cuda.record(&[good]).expect("a product"));
}

#[test]
fn a_grid_that_cannot_be_resident_is_refused_with_its_numbers() {
    let Some(cuda) = card() else { return };
    let meet = program(&cuda, "meet", 1024);
    let each = cuda.resident(&meet, 1024, 0).expect("a card tells");
    let footprint = cuda.footprint(&meet).expect("a card tells");
    assert!(each >= 1 && footprint.registers > 0 && footprint.threads >= 1024, "{each} {footprint:?}");
    let fit = each * cuda.limits().processors;
    let memory = cuda.alloc(4 * (fit as usize + 1), Init::Zero).expect("memory").all();
    let sync = cuda.alloc(64, Init::Zero).expect("memory").all();
    let of = |groups| launch(&meet, &[&sync, &memory, &memory], (groups, 1024), [0, 0]);
    for graph in [false, true] {
        let record = |l: Launch| if graph { cuda.record_graph(&[l]) } else { cuda.record(&[l]) };
        let refused = record(of(fit + 1)).err().expect("one too many");
        assert_eq!(refused.kind(), ErrorKind::TooLarge);
        let message = refused.to_string();
        assert!(message.contains(&format!("{} groups wait for each other", fit + 1)), "{message}");
        assert!(message.contains(&format!("{} processors", cuda.limits().processors)), "{message}");
        run(&cuda, &record(of(fit)).expect("as many as fit"));
    }
}

#[test]
fn a_launch_may_take_all_shared_memory_and_no_more() {
    let Some(cuda) = card() else { return };
    let turn = program(&cuda, "turn", 256);
    let most = cuda.limits().dynamic_shared_bytes;
    assert!(most > cuda.limits().shared_bytes, "{most}");
    let y = cuda.alloc(most as usize, Init::Zero).expect("memory").all();
    let values: Vec<u32> = (0..most / 4).collect();
    cuda.write(&y, &values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>()).expect("written");
    let of = |scratch_bytes| Launch { scratch_bytes, ..launch(&turn, &[&y], (1, 256), [most / 4, 0]) };
    run(&cuda, &cuda.record(&[of(most)]).expect("all of it"));
    assert!(words(&cuda, &y).iter().rev().copied().eq(values.iter().copied()));
    run(&cuda, &cuda.record_graph(&[of(most)]).expect("all of it"));
    assert_eq!(words(&cuda, &y), values);
    let refused = cuda.record(&[of(most + 16)]).err().expect("more than there is").to_string();
    assert!(refused.contains(&format!("{} of {most} shared bytes", most + 16)), "{refused}");
}

#[test]
fn several_sequences_fly_and_a_peek_does_not_wait() {
    let Some(cuda) = card() else { return };
    let (slow, step) = (program(&cuda, "slow", 32), program(&cuda, "step", 32));
    let (y, done) =
        (cuda.alloc(4, Init::Zero).expect("memory").all(), cuda.alloc(128, Init::Zero).expect("memory").all());
    let quick = cuda.record(&[launch(&step, &[&done], (1, 32), [32, 1])]).expect("recorded");
    // Two dependent operations a round: some hundred milliseconds.
    let long = cuda.record_graph(&[launch(&slow, &[&y], (1, 32), [20_000_000, 3])]).expect("recorded");
    run(&cuda, &quick);
    let start = Instant::now();
    let tokens: Vec<Token> = [&long, &quick, &long].iter().map(|s| cuda.submit(s).expect("submitted")).collect();
    let submitted = start.elapsed();
    let mut bytes = [0; 128];
    cuda.peek(&done, &mut bytes).expect("peeked");
    let peeked = start.elapsed();
    assert_eq!(bytes[4..8], 1u32.to_le_bytes(), "what the finished sequence wrote");
    let late = cuda.wait(tokens[0], Duration::ZERO).expect_err("the first is still running");
    assert_eq!(late.kind(), ErrorKind::Timeout, "{late}");
    cuda.wait(tokens[1], MINUTE).expect("ends");
    let second = start.elapsed();
    cuda.peek(&done, &mut bytes).expect("peeked");
    assert_eq!(bytes[4..8], 2u32.to_le_bytes(), "what the second sequence wrote");
    cuda.wait(tokens[0], Duration::ZERO).expect("over since the second is");
    cuda.wait(tokens[2], Duration::ZERO).expect_err("the third runs");
    cuda.wait(tokens[2], MINUTE).expect("ends");
    println!("submitted {submitted:?}, peeked {peeked:?}, second over {second:?}, all over {:?}", start.elapsed());
}

#[test]
fn submission_costs_are_told() {
    let Some(cuda) = card() else { return };
    let step = program(&cuda, "step", 128);
    let y = cuda.alloc(4000, Init::Zero).expect("memory").all();
    let launches = vec![launch(&step, &[&y], (8, 128), [1000, 3]); 150];
    for (name, sequence) in [("stream", cuda.record(&launches)), ("graph", cuda.record_graph(&launches))] {
        let sequence = sequence.expect("recorded");
        run(&cuda, &sequence);
        let start = Instant::now();
        let tokens: Vec<Token> = (0..4).map(|_| cuda.submit(&sequence).expect("submitted")).collect();
        let submitted = start.elapsed() / 4;
        cuda.wait(tokens[3], MINUTE).expect("ends");
        let whole = start.elapsed() / 4;
        let timed = cuda.time(std::slice::from_ref(&sequence), 20).expect("timed").ns / 1e3;
        println!("150 launches by {name}: submitted in {submitted:?}, over in {whole:?}, {timed:.1} us on the card");
    }
    println!("reads at {:.0} GB/s", cuda.limits().read_gb_s.expect("measured when opened"));
}

#[test]
fn a_broken_context_answers_every_call_with_what_broke_it() {
    if std::env::var_os(BREAK).is_none() {
        // A context belongs to a process: another one breaks its own.
        let exe = std::env::current_exe().expect("this test");
        let name = "a_broken_context_answers_every_call_with_what_broke_it";
        let output = Command::new(exe).args([name, "--exact", "--nocapture"]).env(BREAK, "1").output().expect("runs");
        let said = [output.stdout, output.stderr].map(|s| String::from_utf8_lossy(&s).into_owned()).concat();
        assert!(output.status.success(), "{said}");
        return;
    }
    let Some(cuda) = card() else { return };
    let y = cuda.alloc(64, Init::Zero).expect("memory").all();
    let (wild, step) = (program(&cuda, "wild", 32), program(&cuda, "step", 32));
    let good = cuda.record(&[launch(&step, &[&y], (1, 32), [16, 1])]).expect("recorded");
    let bad = cuda.record(&[launch(&wild, &[&y], (1, 32), [0x7000, 1])]).expect("recorded");
    let ended = cuda.submit(&bad).and_then(|token| cuda.wait(token, MINUTE));
    let first = ended.expect_err("an address that is none").to_string();
    assert!(first.contains("must be restarted"), "{first}");
    let mut bytes = [0; 64];
    let later = [
        cuda.submit(&good).map(drop),
        cuda.wait(Token(1), MINUTE),
        cuda.read(&y, &mut bytes),
        cuda.peek(&y, &mut bytes),
        cuda.write(&y, &bytes),
        cuda.alloc(64, Init::Zero).map(drop),
        cuda.record_graph(&[]).map(drop),
        cuda.time(&[good], 1).map(drop),
    ];
    for answer in later {
        let error = answer.expect_err("the context is lost");
        assert_eq!((error.kind(), error.to_string()), (ErrorKind::Poisoned, first.clone()));
    }
}
