//! The CPU pool under stress: every task once, launches in order, panics, deadlines, refusals, and a busy co-tenant.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use planish_device::{Backend, Buffer, Call, Cpu, CpuOptions, ErrorKind, Init, Launch, Params, Plain, Program, Source};

const MINUTE: Duration = Duration::from_secs(60);

#[derive(Clone, Copy)]
#[repr(C)]
struct Number(u64);
// SAFETY: one integer, no padding.
unsafe impl Plain for Number {}

fn cpu(threads: u32) -> Cpu {
    Cpu::new(CpuOptions { threads: Some(threads) }).expect("threads can be had")
}

/// Adds one to the counter of each task, the number in the parameters to a sum, and spends a few instructions unevenly.
unsafe fn count(call: &Call) {
    // SAFETY: argument 0 holds one counter a task.
    let counters = unsafe { call.args[0].read::<AtomicU32>() };
    for task in call.tasks.clone() {
        for _ in 0..(task % 7) * 8 {
            std::hint::spin_loop();
        }
        counters[task as usize].fetch_add(1, Relaxed);
    }
}

/// `to[i] = from[tasks - 1 - i] + 1`: reads what the other threads wrote in the launch before, with plain loads.
unsafe fn reverse_increment(call: &Call) {
    // SAFETY: argument 0 holds one u64 a task and is not written in this launch.
    let from = unsafe { call.args[0].read::<u64>() };
    for task in call.tasks.clone() {
        // SAFETY: argument 1 holds one u64 a task; this task's element is this thread's.
        let to = unsafe { call.args[1].write::<u64>(task as usize, 1) };
        to[0] = from[from.len() - 1 - task as usize] + 1;
    }
}

/// Records the highest thread number and checks that scratch is private to a thread.
unsafe fn own_scratch(call: &Call) {
    // SAFETY: argument 0 is one counter of clashes; scratch is this thread's own.
    let (clashes, mine) = unsafe { (call.args[0].read::<AtomicU64>(), call.scratch.write::<u64>(0, 64)) };
    assert!(call.scratch.len >= 512 && (call.scratch.ptr as usize).is_multiple_of(64));
    for task in call.tasks.clone() {
        mine.fill(u64::from(task));
        for _ in 0..20 {
            std::hint::spin_loop();
        }
        clashes[0].fetch_add(mine.iter().filter(|&&x| x != u64::from(task)).count() as u64, Relaxed);
    }
}

unsafe fn panics(call: &Call) {
    assert!(!call.tasks.contains(&3), "task three says no");
}

/// Sleeps for the milliseconds in the parameters.
unsafe fn sleeps(call: &Call) {
    for _ in call.tasks.clone() {
        std::thread::sleep(Duration::from_millis(call.params.get::<Number>().0));
    }
}

fn native(cpu: &dyn Backend, name: &'static str, run: planish_device::Native) -> Program {
    cpu.load(&Source::Native { name, run }).expect("native programs load")
}

fn launch(program: &Program, args: &[&Buffer], tasks: u32, threads: u32) -> Launch {
    let args = args.iter().map(|b| b.all()).collect();
    Launch {
        program: program.clone(),
        args,
        params: Params::new(Number(20)),
        tasks,
        threads,
        scratch_bytes: 512,
        overlap: false,
        views: Vec::new(),
    }
}

fn words(cpu: &Cpu, buffer: &Buffer) -> Vec<u64> {
    let mut bytes = vec![0; buffer.len()];
    cpu.read(&buffer.all(), &mut bytes).expect("buffer is readable");
    bytes.chunks_exact(8).map(|b| u64::from_le_bytes(b.try_into().expect("eight bytes"))).collect()
}

#[track_caller]
fn every_task_once(threads: u32, rounds: u32) {
    let cpu = cpu(threads);
    let program = native(&cpu, "count", count);
    let sizes = [(1, 1), (2, 2), (7, 3), (64, 64), (1000, 2), (20_000, 4), (5, 1), (1, 9)];
    let buffers: Vec<Buffer> = sizes.iter().map(|s| cpu.alloc(s.0 as usize * 4, Init::Zero).expect("memory")).collect();
    let launches: Vec<Launch> = sizes.iter().zip(&buffers).map(|(s, b)| launch(&program, &[b], s.0, s.1)).collect();
    let sequence = cpu.record(&launches).expect("a good sequence");
    for round in 0..rounds {
        let token = cpu.submit(&sequence).expect("submitted");
        if round % 3 == 0 {
            cpu.wait(token, MINUTE).expect("finished");
        }
    }
    for (size, buffer) in sizes.iter().zip(&buffers) {
        let mut bytes = vec![0; buffer.len()];
        cpu.read(&buffer.all(), &mut bytes).expect("readable");
        let wrong =
            bytes.chunks_exact(4).filter(|b| u32::from_le_bytes((*b).try_into().expect("four")) != rounds).count();
        assert_eq!(wrong, 0, "{wrong} of {} tasks did not run {rounds} times on {threads} threads", size.0);
    }
}

#[test]
fn every_task_runs_once() {
    for (threads, rounds) in [(1, 40), (2, 40), (3, 40), (8, 10)] {
        every_task_once(threads, rounds);
    }
}

#[track_caller]
fn launches_see_earlier_ones(threads: u32, rounds: u64) {
    let cpu = cpu(threads);
    let program = native(&cpu, "reverse_increment", reverse_increment);
    let (a, b) = (cpu.alloc(97 * 8, Init::Zero).expect("memory"), cpu.alloc(97 * 8, Init::Fill(0xff)).expect("memory"));
    let pair = || [launch(&program, &[&a, &b], 97, threads), launch(&program, &[&b, &a], 97, 1 + threads / 2)];
    let sequence = cpu.record(&(0..10).flat_map(|_| pair()).collect::<Vec<_>>()).expect("a good sequence");
    for _ in 0..rounds {
        let token = cpu.submit(&sequence).expect("submitted");
        cpu.wait(token, MINUTE).expect("finished");
    }
    assert_eq!(words(&cpu, &a), vec![rounds * 20; 97], "{threads} threads");
}

#[test]
fn launches_see_the_writes_before_them() {
    for threads in [1, 2, 4] {
        launches_see_earlier_ones(threads, 1000);
    }
}

#[test]
fn overlapping_launches_form_groups_and_barriers_stand_between_them() {
    let cpu = cpu(3);
    let program = native(&cpu, "reverse_increment", reverse_increment);
    let buffer = |init| cpu.alloc(61 * 8, init).expect("memory");
    let (a, b, c, d) = (buffer(Init::Zero), buffer(Init::Zero), buffer(Init::Fill(0xff)), buffer(Init::Fill(0xff)));
    let mut launches = vec![
        launch(&program, &[&a, &c], 61, 3),
        launch(&program, &[&b, &d], 61, 3),
        launch(&program, &[&c, &b], 61, 3),
        launch(&program, &[&d, &a], 61, 2),
    ];
    (launches[1].overlap, launches[3].overlap) = (true, true);
    let sequence = cpu.record(&launches).expect("a good sequence");
    for _ in 0..1000 {
        cpu.submit(&sequence).expect("submitted");
    }
    assert_eq!((words(&cpu, &a), words(&cpu, &b)), (vec![2000; 61], vec![2000; 61]));
}

#[test]
fn a_busy_co_tenant_delays_but_breaks_nothing() {
    let stop = Arc::new(AtomicBool::new(false));
    let spinners: Vec<_> = (0..2)
        .map(|_| {
            let stop = stop.clone();
            std::thread::spawn(move || while !stop.load(Relaxed) {})
        })
        .collect();
    let start = Instant::now();
    launches_see_earlier_ones(2, 100);
    every_task_once(2, 15);
    let took = start.elapsed();
    stop.store(true, Relaxed);
    spinners.into_iter().for_each(|s| s.join().expect("a spinner does not panic"));
    assert!(took < Duration::from_secs(20), "2000 launches beside two spinners took {took:?}");
}

#[test]
fn scratch_is_private_to_a_thread() {
    let cpu = cpu(4);
    let clashes = cpu.alloc(8, Init::Zero).expect("memory");
    let program = native(&cpu, "own_scratch", own_scratch);
    let sequence = cpu.record(&vec![launch(&program, &[&clashes], 200, 4); 20]).expect("a good sequence");
    for _ in 0..20 {
        cpu.submit(&sequence).expect("submitted");
    }
    assert_eq!(words(&cpu, &clashes), [0]);
}

#[test]
fn a_panic_fails_its_sequence_only() {
    for threads in [1, 2] {
        let cpu = cpu(threads);
        let counters = cpu.alloc(8 * 4, Init::Zero).expect("memory");
        let (bad, good) = (native(&cpu, "panics", panics), native(&cpu, "count", count));
        let bad = cpu.record(&[launch(&bad, &[], 8, 2), launch(&good, &[&counters], 8, 2)]).expect("recorded");
        let good = cpu.record(&[launch(&good, &[&counters], 8, 2)]).expect("recorded");
        let (first, second) = (cpu.submit(&bad).expect("submitted"), cpu.submit(&good).expect("submitted"));
        cpu.wait(second, MINUTE).expect("the good sequence is not to blame");
        let error = cpu.wait(first, MINUTE).expect_err("the kernel panicked").to_string();
        assert!(error.contains("panics panicked") && error.contains("task three says no"), "{error}");
        cpu.wait(first, MINUTE).expect("a failure is told once");
        let mut bytes = [0; 32];
        cpu.read(&counters.all(), &mut bytes).expect("readable");
        assert_eq!(
            bytes,
            [1, 0, 0, 0].repeat(8).as_slice(),
            "launches after the panic were skipped, later sequences ran"
        );
    }
}

/// Whether a thread of the pool is at work on `held`, and whether it may end.
static BEGUN: AtomicBool = AtomicBool::new(false);
static FREE: AtomicBool = AtomicBool::new(false);

/// On a thread of the pool it ends when that is free to, on the caller's as soon as the other has begun; both have an end.
unsafe fn held(call: &Call) {
    if call.thread != 0 {
        BEGUN.store(true, Relaxed);
    }
    let (until, patience) = (if call.thread == 0 { &BEGUN } else { &FREE }, Instant::now() + MINUTE);
    while !until.load(Relaxed) && Instant::now() < patience {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_deadline_is_kept_and_the_work_still_finishes() {
    let cpu = cpu(2);
    let counters = cpu.alloc(4 * 8, Init::Zero).expect("memory");
    let (held, after) = (native(&cpu, "held", held), native(&cpu, "count", count));
    let sequence =
        cpu.record(&[launch(&held, &[], 2, 2), launch(&after, &[&counters], 8, 2)]).expect("a good sequence");
    let token = cpu.submit(&sequence).expect("submitted");
    let error = cpu.wait(token, Duration::from_millis(30)).expect_err("nothing let it end");
    assert_eq!(error.kind(), ErrorKind::Timeout);
    FREE.store(true, Relaxed);
    cpu.wait(token, MINUTE).expect("finished");
    let mut bytes = [0; 4 * 8];
    cpu.read(&counters.all(), &mut bytes).expect("readable");
    assert_eq!(bytes, [1, 0, 0, 0].repeat(8).as_slice(), "what follows ran once");
    let unknown = planish_device::Token(token.0 + 1);
    assert_eq!(cpu.wait(unknown, MINUTE).expect_err("never submitted").kind(), ErrorKind::BadLaunch);
}

#[test]
fn callers_on_several_threads_share_the_pool() {
    let cpu = cpu(2);
    let counters = cpu.alloc(50 * 4, Init::Zero).expect("memory");
    let program = native(&cpu, "count", count);
    let sequence = cpu.record(&vec![launch(&program, &[&counters], 50, 2); 5]).expect("recorded");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..100 {
                    let token = cpu.submit(&sequence).expect("submitted");
                    cpu.wait(token, MINUTE).expect("finished");
                }
            });
        }
    });
    let mut bytes = [0; 200];
    cpu.read(&counters.all(), &mut bytes).expect("readable");
    assert!(bytes.chunks_exact(4).all(|b| b == 2000u32.to_le_bytes()), "{bytes:?}");
}

#[track_caller]
fn refused(cpu: &Cpu, launch: Launch, says: &str) {
    let error = cpu.record(&[launch]).err().expect("the launch is bad");
    assert_eq!(error.kind(), ErrorKind::BadLaunch);
    assert!(error.to_string().contains(says), "{error}");
}

#[test]
fn bad_launches_are_refused() {
    let (here, other) = (cpu(2), cpu(1));
    let program = native(&here, "count", count);
    let (mine, foreign) = (here.alloc(64, Init::Zero).expect("memory"), other.alloc(64, Init::Zero).expect("memory"));
    refused(&here, launch(&program, &[&foreign], 8, 1), "count): argument 0: its buffer was made by another backend");
    let mut beyond = launch(&program, &[&mine], 8, 1);
    beyond.args[0].offset = 60;
    refused(&here, beyond, "slice of 64 bytes at 60 does not fit a buffer of 64 bytes");
    refused(&here, launch(&program, &[&mine], 0, 1), "0 tasks on 1 threads");
    refused(&here, launch(&program, &[&mine], 1, 0), "1 tasks on 0 threads");
    refused(&here, launch(&native(&other, "count", count), &[&mine], 1, 1), "program was made by another backend");
    assert_eq!(here.record(&[]).err().expect("empty").kind(), ErrorKind::BadLaunch);
    let sequence = other.record(&[launch(&native(&other, "count", count), &[&foreign], 8, 1)]).expect("recorded");
    assert_eq!(here.submit(&sequence).expect_err("foreign").kind(), ErrorKind::BadLaunch);
    assert_eq!(here.write(&foreign.all(), &[0; 64]).expect_err("foreign").kind(), ErrorKind::BadLaunch);
    assert_eq!(here.write(&mine.all(), &[0; 63]).expect_err("short").kind(), ErrorKind::BadLaunch);
}

#[test]
fn memory_is_aligned_filled_and_adopted_in_place() {
    let cpu = cpu(1);
    for bytes in [0, 1, 100, 5 << 20] {
        let buffer = cpu.alloc(bytes, Init::Fill(0xff)).expect("memory");
        let align = if bytes >= 4 << 20 { 2 << 20 } else { 64 };
        assert!((buffer.0.host().expect("host memory").as_ptr() as usize).is_multiple_of(align), "{bytes} bytes");
        let mut out = vec![0; bytes];
        cpu.read(&buffer.all(), &mut out).expect("readable");
        assert!(out.iter().all(|&b| b == 0xff) && buffer.len() == bytes && buffer.0.writable());
    }
    let filled = cpu.alloc_with(16, &mut |bytes| bytes.copy_from_slice(&[7; 16])).expect("memory");
    assert_eq!(words(&cpu, &filled), [0x0707_0707_0707_0707; 2]);
    let host: Arc<Vec<u8>> = Arc::new((0..=255).collect());
    let adopted = cpu.adopt(host.clone(), 32..64).expect("in range");
    assert_eq!(adopted.0.host().expect("host memory").as_ptr().cast_const(), host[32..].as_ptr());
    assert_eq!(cpu.write(&adopted.all(), &[0; 32]).expect_err("read-only").kind(), ErrorKind::BadLaunch);
    assert_eq!(cpu.adopt(host, 200..257).err().expect("beyond").kind(), ErrorKind::BadLaunch);
    assert_eq!(cpu.alloc(1 << 60, Init::Zero).err().expect("too much").kind(), ErrorKind::OutOfMemory);
}

#[test]
fn time_runs_every_repetition() {
    let cpu = cpu(2);
    let counters = cpu.alloc(4 * 10, Init::Zero).expect("memory");
    let program = native(&cpu, "count", count);
    let sequence = cpu.record(&[launch(&program, &[&counters], 10, 2)]).expect("recorded");
    let timing = cpu.time(&[sequence.clone(), sequence], 7).expect("timed");
    let mut bytes = [0; 40];
    cpu.read(&counters.all(), &mut bytes).expect("readable");
    assert!(timing.reps == 7 && timing.ns > 0.0 && bytes == *[7, 0, 0, 0].repeat(10), "{timing:?} {bytes:?}");
    let program = native(&cpu, "panics", panics);
    let sequence = cpu.record(&[launch(&program, &[], 10, 2)]).expect("recorded");
    assert!(cpu.time(&[sequence], 2).is_err());
}

#[test]
fn stamps_lie_between_barriers_and_count_every_task() {
    let cpu = cpu(2);
    let sleepy = native(&cpu, "sleeps", sleeps);
    // Two launches side by side, then one that waits for both, each of four tasks of a millisecond.
    let each = |overlap| Launch { params: Params::new(Number(1)), overlap, ..launch(&sleepy, &[], 4, 2) };
    let launches = [each(false), each(true), each(false)];
    let stamped = cpu.record_stamped(&launches).expect("recorded").expect("the pool keeps times");
    for run in 0..3 {
        let token = cpu.submit(&stamped).expect("submitted");
        cpu.wait(token, MINUTE).expect("finished");
        let found = cpu.stamps(&stamped).expect("asked").expect("stamped");
        let of = |launch: u32| found.stamps.iter().filter(move |s| s.launch == launch);
        for launch in 0..3 {
            let busy: f64 = of(launch).map(|s| s.busy_ns).sum();
            assert!(busy >= 4e6, "run {run}: launch {launch} slept 4 ms and was busy for {busy} ns");
        }
        let first_end = [0, 1].map(|l| of(l).map(|s| s.end_ns).fold(0.0, f64::max)).into_iter().fold(0.0, f64::max);
        assert!(of(2).all(|s| s.start_ns >= first_end), "run {run}: {found:?}");
        assert!(found.stamps.iter().all(|s| s.busy_ns <= s.end_ns - s.start_ns + 1.0 && s.end_ns <= found.total_ns));
        assert!(found.threads == 2 && found.stamps.iter().all(|s| s.thread < 2), "run {run}: {found:?}");
    }
    let plain = cpu.record(&launches).expect("recorded");
    assert_eq!(cpu.stamps(&plain).expect("asked"), None);
}
