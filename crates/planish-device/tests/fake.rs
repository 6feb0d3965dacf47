//! The scripted device: programs really run, the clock follows the script, faults strike when told.

use std::time::Duration;

use planish_device::fake::{Cost, Event, Fake, Fault, Noise, Sampling, Script};
use planish_device::{
    Backend, Buffer, Call, ErrorKind, Init, Launch, Params, Plain, Sequence, Source, Stamp, Stamps, Token, View,
};

const MINUTE: Duration = Duration::from_secs(60);

#[derive(Clone, Copy)]
struct Nothing;
// SAFETY: no bytes at all.
unsafe impl Plain for Nothing {}

/// Adds one to the byte of each task.
unsafe fn increment(call: &Call) {
    for task in call.tasks.clone() {
        // SAFETY: argument 0 holds one byte a task.
        let byte = unsafe { &mut call.args[0].write::<u8>(task as usize, 1)[0] };
        *byte = byte.wrapping_add(1);
    }
}

fn sequence(fake: &Fake, name: &'static str, bytes: u32, threads: u32) -> (Buffer, Sequence) {
    let (buffer, launch) = launch(fake, name, bytes, threads);
    (buffer, fake.record(&[launch]).expect("a good sequence"))
}

fn launch(fake: &Fake, name: &'static str, bytes: u32, threads: u32) -> (Buffer, Launch) {
    let program = fake.load(&Source::Native { name, run: increment }).expect("loads");
    let buffer = fake.alloc(bytes as usize, Init::Zero).expect("memory");
    let args = vec![buffer.all()];
    let params = Params::new(Nothing);
    let launch =
        Launch { program, args, params, tasks: bytes, threads, scratch_bytes: 0, overlap: false, views: Vec::new() };
    (buffer, launch)
}

fn script() -> Script {
    let costs = [("a".to_string(), Cost { launch_ns: 500.0, task_ns: 10.0 })].into();
    Script { costs, ..Script::default() }
}

#[test]
fn programs_run_when_waited_for_and_the_clock_follows_the_script() {
    let fake = Fake::new(script());
    let (buffer, a) = sequence(&fake, "a", 10, 4);
    let token = fake.submit(&a).expect("submitted");
    assert_eq!(fake.now_ns(), 0.0);
    fake.wait(token, MINUTE).expect("finished");
    assert_eq!(fake.now_ns(), 530.0, "three rounds of ten tasks on four threads");
    assert_eq!(fake.time(&[a], 4).expect("timed").ns, 530.0);
    let mut bytes = [0; 10];
    fake.read(&buffer.all(), &mut bytes).expect("readable");
    assert_eq!(bytes, [5; 10]);
    let trace = fake.take_trace();
    let ran = Event::Ran { program: "a".into(), tasks: 10, threads: 4, end_ns: 530.0 };
    let start =
        [Event::Load("a".into()), Event::Alloc(10), Event::Record(vec!["a".into()]), Event::Submit(Token(1)), ran];
    assert_eq!(trace[..5], start);
    assert_eq!(trace.last(), Some(&Event::Read(10)));
}

#[test]
fn stamps_say_when_the_tasks_of_each_launch_ran() {
    let fake = Fake::new(script());
    let program = fake.load(&Source::Native { name: "a", run: increment }).expect("loads");
    let args = vec![fake.alloc(12, Init::Zero).expect("memory").all()];
    let launch = |tasks| Launch {
        program: program.clone(),
        args: args.clone(),
        params: Params::new(Nothing),
        tasks,
        threads: 4,
        scratch_bytes: 0,
        overlap: false,
        views: Vec::new(),
    };
    let launches = [launch(4), launch(12)];
    let stamped = fake.record_stamped(&launches).expect("recorded").expect("a fake keeps times");
    fake.advance(Duration::from_micros(3));
    fake.submit(&stamped).expect("submitted");
    let found = fake.stamps(&stamped).expect("ran").expect("stamped");
    let stamp = |launch, start_ns, end_ns| Stamp { launch, thread: 0, start_ns, end_ns, busy_ns: end_ns - start_ns };
    let stamps = vec![stamp(0, 500.0, 510.0), stamp(1, 1010.0, 1040.0)];
    assert_eq!(found, Stamps { total_ns: 1040.0, threads: 1, stamps });
    let plain = fake.record(&launches).expect("recorded");
    assert_eq!(fake.stamps(&plain).expect("asked"), None);
}

#[test]
fn noise_scatters_alike_for_one_seed_and_drift_slows() {
    let times = |seed, noise| -> Vec<f64> {
        let fake = Fake::new(Script { noise, seed, ..script() });
        let a = [sequence(&fake, "a", 10, 4).1];
        (0..400).map(|_| fake.time(&a, 1).expect("timed").ns).collect()
    };
    let noise = Noise { sigma: 0.05, spike_chance: 0.1, spike_factor: 3.0, drift_per_s: 0.0 };
    let found = times(7, noise);
    assert_eq!(found, times(7, noise));
    assert_ne!(found, times(8, noise));
    let spikes = found.iter().filter(|&&ns| ns > 1000.0).count();
    assert!((15..=80).contains(&spikes), "{spikes} of 400 at a chance of 0.1");
    let calm: Vec<f64> = found.into_iter().filter(|&ns| ns < 1000.0).collect();
    let mean = calm.iter().sum::<f64>() / calm.len() as f64;
    let sigma = (calm.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / calm.len() as f64).sqrt();
    assert!((mean - 530.0).abs() < 10.0 && (sigma - 26.5).abs() < 5.0, "{mean} {sigma}");
    let warm = times(1, Noise { drift_per_s: 1000.0, ..Noise::default() });
    assert!(warm[0] == 530.0 && warm.windows(2).all(|w| w[1] > w[0]));
}

#[track_caller]
fn fails(faults: Vec<Fault>, good_runs: u32, kind: ErrorKind, usable_after: Result<(), ErrorKind>) {
    let fake = Fake::new(Script { faults, ..script() });
    let ((_, a), (_, b)) = (sequence(&fake, "a", 4, 1), sequence(&fake, "b", 4, 1));
    for _ in 0..good_runs {
        fake.wait(fake.submit(&a).expect("submitted"), MINUTE).expect("not yet");
    }
    let error = fake.wait(fake.submit(&a).expect("submitted"), MINUTE).expect_err("the fault strikes now");
    assert_eq!(error.kind(), kind, "{error}");
    let after = fake.submit(&b).and_then(|token| fake.wait(token, MINUTE));
    assert_eq!(after.map_err(|e| e.kind()), usable_after);
}

#[test]
fn launch_faults_strike_when_told() {
    fails(vec![Fault::Launch("a".into(), 3)], 2, ErrorKind::BadLaunch, Ok(()));
    fails(vec![Fault::Poison("a".into(), 2)], 1, ErrorKind::Poisoned, Err(ErrorKind::Poisoned));
    fails(vec![Fault::Hang("a".into(), 1)], 0, ErrorKind::Timeout, Err(ErrorKind::Timeout));
}

#[test]
fn a_broken_device_answers_every_call_with_what_broke_it() {
    let fake = Fake::new(Script { faults: vec![Fault::Poison("a".into(), 1)], ..script() });
    let ((buffer, a), (_, b)) = (sequence(&fake, "a", 4, 1), sequence(&fake, "b", 4, 1));
    let (token, mut bytes) = (fake.submit(&a).expect("submitted"), [0; 4]);
    let first = fake.wait(token, MINUTE).expect_err("launch 1 of a breaks it").to_string();
    assert!(first.contains("launch 1 of a") && first.contains("must be restarted"), "{first}");
    let later = [
        fake.submit(&b).map(drop),
        fake.wait(token, MINUTE),
        fake.write(&buffer.all(), &bytes),
        fake.read(&buffer.all(), &mut bytes),
        fake.peek(&buffer.all(), &mut bytes),
        fake.alloc(4, Init::Zero).map(drop),
        fake.load(&Source::Native { name: "c", run: increment }).map(drop),
        fake.time(&[b], 1).map(drop),
    ];
    for answer in later {
        let error = answer.expect_err("the device is broken");
        assert_eq!((error.kind(), error.to_string()), (ErrorKind::Poisoned, first.clone()));
    }
}

#[test]
fn a_machine_without_graphs_records_one_as_any_sequence() {
    let fake = Fake::new(script());
    let program = fake.load(&Source::Native { name: "a", run: increment }).expect("loads");
    let buffer = fake.alloc(10, Init::Zero).expect("memory");
    let launch = Launch {
        program: program.clone(),
        args: vec![buffer.all()],
        params: Params::new(Nothing),
        tasks: 10,
        threads: 4,
        scratch_bytes: 0,
        overlap: false,
        views: Vec::new(),
    };
    let graph = fake.record_graph(&[launch.clone(), launch.clone()]).expect("recorded");
    fake.wait(fake.submit(&graph).expect("submitted"), MINUTE).expect("ends");
    let mut bytes = [0; 10];
    fake.peek(&buffer.all(), &mut bytes).expect("readable");
    assert_eq!((bytes, graph.launches), ([2; 10], 2));
    assert_eq!((fake.footprint(&program), fake.resident(&program, 4, 0)), (None, None));
    let view = View { arg: 0, element: 2, extents: vec![4, 2], strides: vec![16], tile: vec![4, 1], swizzled: false };
    assert_eq!(view.bytes(), Some(24));
    assert_eq!(View { strides: Vec::new(), ..view.clone() }.bytes(), None);
    assert_eq!(View { extents: vec![4, 0], ..view.clone() }.bytes(), None);
    let refused = fake.record(&[Launch { views: vec![view], ..launch }]).err().expect("there is no copy engine");
    assert_eq!(refused.kind(), ErrorKind::BadLaunch);
    assert_eq!(refused.to_string(), "launch 0 (a): a: 1 views, this machine has none");
}

#[test]
fn memory_and_builds_fail_when_told() {
    let fake = Fake::new(Script { faults: vec![Fault::AllocAbove(100), Fault::Build("bad".into())], ..script() });
    let _held = fake.alloc(60, Init::Zero).expect("within the limit");
    assert_eq!(fake.alloc(41, Init::Zero).err().expect("beyond").kind(), ErrorKind::OutOfMemory);
    fake.alloc(40, Init::Zero).expect("within the limit");
    let error = fake.load(&Source::Native { name: "bad", run: increment }).err().expect("does not build");
    assert_eq!(error.kind(), ErrorKind::Build);
    let text = |name: &str| Source::Text {
        name: name.into(),
        text: String::new(),
        constants: Default::default(),
        threads: 32,
    };
    assert_eq!(fake.load(&text("t")).err().expect("unknown text").kind(), ErrorKind::Build);
    fake.rescript(|s| s.texts.extend([("t".to_string(), increment as planish_device::Native)]));
    fake.load(&text("t")).expect("known text");
}

#[test]
fn memory_counts_for_as_long_as_it_lives() {
    let fake = Fake::new(Script { faults: vec![Fault::AllocAbove(100)], ..script() });
    let first = fake.alloc(60, Init::Zero).expect("within the limit");
    let part = first.slice(8, 8).expect("inside");
    drop(first);
    assert_eq!(fake.memory(), (60, 60), "a slice keeps it");
    drop(part);
    assert_eq!(fake.memory(), (0, 60));
    let again = fake.alloc(100, Init::Zero).expect("what was given back is there again");
    assert_eq!((again.len(), fake.memory()), (100, (100, 100)));
}

#[test]
fn late_work_and_captures_are_refused() {
    let fake = Fake::new(script());
    let (buffer, a) = sequence(&fake, "a", 10, 4);
    let token = fake.submit(&a).expect("submitted");
    assert_eq!(fake.wait(token, Duration::from_nanos(529)).expect_err("late").kind(), ErrorKind::Timeout);
    fake.set_capturing(true);
    assert_eq!(fake.submit(&a).expect_err("capturing").kind(), ErrorKind::BadLaunch);
    assert_eq!(fake.write(&buffer.all(), &[0; 10]).expect_err("capturing").kind(), ErrorKind::BadLaunch);
    fake.set_capturing(false);
    fake.submit(&a).expect("submitted");
    let other = Fake::new(script());
    assert_eq!(other.submit(&a).expect_err("foreign").kind(), ErrorKind::BadLaunch);
}

#[test]
fn a_machine_of_metals_shape_tells_times_of_buffers_and_at_most_of_encoders() {
    let costs = script().costs;
    for (sampling, took) in [(Sampling::Encoders(70.0), Some(70.0)), (Sampling::Sequences, None)] {
        let fake = Fake::new(Script { costs: costs.clone(), ..Script::metal(sampling) });
        let (_, a) = sequence(&fake, "a", 10, 4);
        assert_eq!(fake.time(std::slice::from_ref(&a), 3).expect("timed").ns, 530.0, "its own time");
        assert_eq!(fake.now_ns(), 3.0 * (5000.0 + 530.0), "the host's has the handing over of three");
        let (_, launch) = launch(&fake, "a", 10, 4);
        let stamped = fake.record_stamped(&[launch]).expect("recorded");
        assert_eq!(stamped.is_some(), took.is_some());
        if let (Some(stamped), Some(took)) = (stamped, took) {
            let token = fake.submit(&stamped).expect("submitted");
            fake.wait(token, MINUTE).expect("finished");
            let stamps = fake.stamps(&stamped).expect("kept").expect("stamped");
            let stamp = Stamp { launch: 0, thread: 0, start_ns: took + 500.0, end_ns: took + 530.0, busy_ns: 30.0 };
            assert_eq!(stamps, Stamps { total_ns: took + 530.0, threads: 1, stamps: vec![stamp] });
        }
    }
}
