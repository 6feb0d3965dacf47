//! Tuning as a user meets it: an empty store, a second run, a killed one, two at once, damage, and no place to write.

// A failure anywhere in a test file is a failed test.
#![allow(clippy::unwrap_used)]

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use planish_tune::store::{Choice, Evidence, Identity, Layers, Shown, State, Store, list, show};
use serde_json::Value;
use support::{command, host_executor, json, model, report, text};
use tempfile::TempDir;

const KERNELS_MIN: usize = 4;

/// Runs that measure go one after the other: each wants the whole machine.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Budgets from what is enough where nothing else runs to what is enough anywhere; each begins where the last one ended.
const RISING: [&str; 5] = ["4s", "8s", "20s", "60s", "180s"];

/// `tune` on the tiny model with two threads; budgets are small, since only the flow is of interest.
fn tune(home: &Path, budget: &str) -> Command {
    let model = model("llama-q4_1");
    command(home, &["tune", &model, "--threads", "2", "--budget", budget, "--json"])
}

fn stored(home: &Path) -> Vec<Value> {
    let listed = json(&command(home, &["store", "list", "--json"]).output().unwrap());
    listed.as_array().unwrap().clone()
}

/// The shards of choices in the store of `home`.
fn shards(home: &Path) -> Vec<PathBuf> {
    in_folders(home, "choices")
}

/// Kernels that a run of `home` has begun and not come to the end of.
fn journals(home: &Path) -> usize {
    in_folders(home, "progress").len()
}

/// Has what was cut off taken for measured to its end; that it is gone on with has a test of its own.
fn settle(home: &Path) {
    in_folders(home, "progress").iter().for_each(|journal| fs::remove_file(journal).unwrap());
}

/// The files in the folders of the store of `home` that are called `name`.
fn in_folders(home: &Path, name: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![home.join("store")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().map(|e| e.unwrap().path()) {
            if entry.is_dir() {
                folders.push(entry);
            } else if entry.parent().is_some_and(|p| p.ends_with(name)) {
                found.push(entry);
            }
        }
    }
    found
}

#[test]
fn a_second_run_measures_nothing() {
    let _turn = turn();
    let home = TempDir::new().unwrap();
    // A busy machine may not reach every kernel at first; the run after the one that does has nothing to do.
    let mut measured = 0;
    let last = RISING.iter().find_map(|budget| {
        let output = tune(home.path(), budget).output().unwrap();
        let told = report(&output);
        assert!(told["rows"].as_array().unwrap().len() >= KERNELS_MIN, "{told}");
        measured += told["measured"].as_u64().unwrap();
        settle(home.path());
        text(&output.stderr).contains("nothing is measured").then_some(told)
    });
    assert!(measured >= 1 && last.is_some_and(|told| told["measured"] == 0), "{measured} in all");
}

/// Systems promise memory that they do not have: who asks for too much is refused before minutes have gone.
#[test]
fn what_memory_cannot_hold_is_refused_with_the_numbers() {
    let _turn = turn();
    let home = TempDir::new().unwrap();
    let kernel = "matvec:type=q8_0,act=int8,batch=1,rows=9999999999,cols=576";
    let shape = "type=q8_0,rows=9999999999,cols=576";
    for args in
        [["tune", "--kernel", kernel].to_vec(), ["sweep", "matvec", "--param", "ROWS", "--shapes", shape].to_vec()]
    {
        let start = std::time::Instant::now();
        let output = command(home.path(), &[&args[..], &["--budget", "9s"]].concat()).output().unwrap();
        let told = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert!(
            told.contains(": its inputs, references and copies take ") && told.contains(" GB are available"),
            "{told}"
        );
        assert!(
            told.contains("hint: choose smaller sizes, or free memory") && start.elapsed() < Duration::from_secs(60),
            "{told}"
        );
    }
}

/// Every run goes on with what the one before was cut off at, until there is nothing left.
#[test]
fn what_its_time_cut_off_is_gone_on_with() {
    let _turn = turn();
    let home = TempDir::new().unwrap();
    let kernel = "matvec:type=q4_1,act=int8,batch=1,rows=96,cols=64";
    let run = |budget: &str| {
        let args = ["tune", "--kernel", kernel, "--threads", "1", "--budget", budget, "--json"];
        report(&command(home.path(), &args).output().unwrap())
    };
    // Most of this goes to measuring what the machine can do at all.
    let mut told = run("1.5s");
    let mut before = journals(home.path());
    for budget in RISING {
        told = run(budget);
        let left = journals(home.path());
        assert!(before == 0 || told["measured"] == 1, "{told}");
        assert_eq!(told["cut_off"], left, "{told}");
        let goes_on = told["sentence"].as_str().unwrap().contains("the same command goes on with them");
        assert_eq!(goes_on, left > 0, "{told}");
        before = left;
        if left == 0 {
            break;
        }
    }
    assert_eq!(
        (before, &run("60s")["measured"]),
        (0, &0.into()),
        "it came to an end, and then there is nothing left: {told}"
    );
}

/// Copies the records of `from` to `to` as an older build would have left them, for which nothing came near the default.
fn age(from: &Path, to: &Path) {
    let open = |home: &Path| Store::open(Layers { user: Some(home.join("store")), ..Layers::default() });
    let (from, mut to) = (open(from), open(to));
    for listed in list(&from).into_iter().filter(|l| !l.superseded) {
        let Shown { entry, evidence, .. } = show(&from, &listed.entry.choice.key).remove(0);
        let aged = |identity: &Identity| Identity { kernel: "an older build".into(), ..identity.clone() };
        let mut evidence = evidence.unwrap();
        // The first that is not the default goes on trial: the slowest loses on a busy machine too.
        let ranking = evidence.data["ranking"].as_array_mut().unwrap();
        ranking.sort_by(|a, b| a["speedup"].as_f64().unwrap().total_cmp(&b["speedup"].as_f64().unwrap()));
        let config = serde_json::from_value(evidence.data["default"].clone()).unwrap();
        let identity = aged(&evidence.identity);
        let name = to.append_evidence(Evidence { identity, ..evidence }).unwrap().0;
        let (identity, choice) = (aged(&entry.choice.identity), entry.choice);
        let state = State::DefaultKept;
        to.append(Choice { identity, config, state, evidence: Some(name), ..choice }).unwrap();
    }
}

/// A new build, toolchain or driver demotes records to priors, and those are confirmed with few samples, not tuned again.
#[test]
fn what_an_older_build_knew_is_put_to_the_test_instead_of_tuned_again() {
    let _turn = turn();
    let tune = |home: &Path, budget: &str| {
        let kernel = "matvec:type=q4_1,act=int8,batch=1,rows=96,cols=64";
        report(&command(home, &["tune", "--kernel", kernel, "--budget", budget, "--json"]).output().unwrap())
    };
    // A machine that drifts leaves a trial undecided and tunes.
    let new = RISING[..4].iter().find_map(|budget| {
        let (old, new) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        tune(old.path(), budget);
        age(old.path(), new.path());
        let told = tune(new.path(), budget);
        let sentence = told["sentence"].as_str().unwrap().to_owned();
        (told["confirmed"] == 1 && sentence.contains("priors that hold here")).then_some(new)
    });
    let Some(new) = new else {
        eprintln!("tier: prior on this machine: skipped: too noisy to confirm one in four runs");
        return;
    };
    let store = Store::open(Layers { user: Some(new.path().join("store")), ..Layers::default() });
    let shown = list(&store).into_iter().flat_map(|l| show(&store, &l.entry.choice.key));
    let confirmed: Vec<Value> =
        shown.filter_map(|s| s.evidence).map(|e| e.data).filter(|d| !d["confirms"].is_null()).collect();
    assert!(!confirmed.is_empty());
    for data in confirmed {
        assert_eq!(
            (&data["confirms"]["differs"][0], &data["counts"]["timed"]),
            (&"kernel".into(), &2.into()),
            "{data}"
        );
        assert!(data["finals"][0]["pairs"].as_u64().unwrap() <= 16, "{data}");
    }
    let why = command(new.path(), &["store", "list", "--json"]).output().unwrap();
    assert!(text(&why.stdout).contains("an older build"), "the old records are kept");
}

#[test]
fn a_killed_run_keeps_what_it_had() {
    let _turn = turn();
    let home = TempDir::new().unwrap();
    let killed = RISING[2..].iter().any(|budget| {
        let mut child = tune(home.path(), budget).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        while stored(home.path()).is_empty() && child.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_millis(50));
        }
        child.kill().unwrap();
        child.wait().unwrap().code().is_none()
    });
    assert!(killed, "it ended before anything was stored, or as soon as that");
    // What was cut off, by the kill or before it by its time, is gone on with.
    let (kept, cut) = (stored(home.path()).len(), journals(home.path()).max(1));
    let resumed = report(&tune(home.path(), "2s").output().unwrap());
    let measured = resumed["measured"].as_u64().unwrap() as usize;
    let kernels = resumed["rows"].as_array().unwrap().len();
    let told = format!("{kept} were kept, {cut} cut off, {measured} of {kernels} measured again");
    assert!(measured + kept <= kernels + cut, "{told}");
}

#[test]
fn two_at_once_lose_nothing_and_share_the_work() {
    let _turn = turn();
    let at_once = |budget: &&str| {
        let home = TempDir::new().unwrap();
        let start = || tune(home.path(), budget).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let reports = [start(), start()].map(|child| report(&child.wait_with_output().unwrap()));
        reports.iter().any(|r| r["measured"] != 0).then_some((home, reports))
    };
    let (home, reports) = RISING.iter().find_map(at_once).expect("three minutes are enough to measure one kernel");
    let verified = json(&command(home.path(), &["store", "verify", "--json"]).output().unwrap());
    let decided = |r: &Value| {
        let rows = r["rows"].as_array().unwrap().iter();
        rows.filter(|r| r["state"] == "tuned" || r["state"] == "default kept").count()
    };
    let most = reports.iter().map(decided).max().unwrap();
    let (measured, kernels) = (
        reports.iter().map(|r| r["measured"].as_u64().unwrap()).sum::<u64>(),
        reports[0]["rows"].as_array().unwrap().len(),
    );
    assert!(measured as usize <= kernels, "{measured} measurements of {kernels} kernels: {reports:?}");
    assert!(verified[0]["choices"].as_u64().unwrap() as usize >= most, "{verified} {reports:?}");
    assert_eq!(verified[0]["damaged"], 0, "{verified}");
}

#[test]
fn damage_costs_a_miss_and_no_panic() {
    let _turn = turn();
    let home = TempDir::new().unwrap();
    let shard = RISING.iter().find_map(|budget| {
        report(&tune(home.path(), budget).output().unwrap());
        shards(home.path()).into_iter().next()
    });
    let shard = shard.expect("three minutes are enough to store one choice");
    let bytes = fs::read(&shard).unwrap();
    fs::write(&shard, &bytes[..bytes.len() - 7]).unwrap();
    let output = tune(home.path(), "2s").output().unwrap();
    report(&output);
    assert!(!text(&output.stderr).contains("panicked"), "{}", text(&output.stderr));
}

#[test]
fn without_a_place_to_write_it_works_from_memory_and_says_so_once() {
    let _turn = turn();
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "in the way").unwrap();
    let (output, told) = RISING
        .iter()
        .find_map(|budget| {
            let output = tune(&file.join("home"), budget).output().unwrap();
            let told = json(&output);
            (told["measured"] != 0).then_some((output, told))
        })
        .expect("three minutes are enough to measure one kernel");
    let stderr = text(&output.stderr);
    assert_eq!((&told["saved"], output.status.code()), (&false.into(), Some(1)), "{told} {stderr}");
    let sentence = told["sentence"].as_str().unwrap();
    assert!(sentence.contains("nothing of it is saved") && !sentence.contains("goes on with"), "{sentence}");
    assert_eq!(stderr.matches("warning:").count(), 1, "{stderr}");
    assert!(stderr.contains("memory") && !stderr.contains("each is saved when done"), "{stderr}");
}

#[test]
fn shapes_need_no_file() {
    let home = TempDir::new().unwrap();
    let list = |shapes: &str| -> Value {
        let output = command(home.path(), &["tune", "--shapes", shapes, "--list", "--json"]).output().unwrap();
        report(&output)
    };
    for shapes in ["smollm2-135m", "qwen2.5-0.5b", "llama-3.1-8b"] {
        let works = list(shapes);
        let shares: f64 = works.as_array().unwrap().iter().map(|w| w["share"].as_f64().unwrap()).sum();
        assert!(works.as_array().unwrap().len() >= 9 && shares > 0.9, "{shapes}: {works}");
    }
    let unknown = command(home.path(), &["tune", "--shapes", "gpt-9"]).output().unwrap();
    assert_eq!(unknown.status.code(), Some(2));
}

/// What `tune` tells with the smallest budget in which it comes to every item.
#[track_caller]
fn all_reached(home: &Path, args: &[&str]) -> Value {
    let told = |budget: &&str| {
        let told = report(&command(home, &[args, &["--budget", budget]].concat()).output().unwrap());
        settle(home);
        let reached = told["rows"].as_array().unwrap().iter().all(|r| r["state"] != "not reached");
        reached.then_some(told)
    };
    RISING[1..].iter().find_map(told).expect("three minutes are enough for all items")
}

/// The step of a model without a file, of random weights that parent and worker make alike.
#[test]
fn shapes_are_tuned_on_the_host_executor() {
    if !host_executor() {
        return;
    }
    let _turn = turn();
    let home = TempDir::new().unwrap();
    let args = ["tune", "--shapes", "tiny", "--device", "host", "--context", "32", "--json"];
    let list = report(&command(home.path(), &[&args[..], &["--list"]].concat()).output().unwrap());
    assert_eq!((&list[0]["op"], &list[0]["tier"]), (&"decode".into(), &"default".into()), "{list}");
    let told = all_reached(home.path(), &args);
    assert!(told["rows"].as_array().unwrap().iter().all(|r| r.get("error").is_none()), "{told}");
    assert!(told["name"].as_str().unwrap().starts_with("tiny shapes on "), "{told}");
    // A file of the same shape runs with it.
    let model = home.path().join("tiny.gguf");
    let file = model.to_str().unwrap();
    let written = command(home.path(), &["dev", "write-model", "--shapes", "tiny", "--types", "q4_1", file]);
    assert!({ written }.output().unwrap().status.success());
    let args = ["tune", file, "--device", "host", "--context", "32", "--json", "--list"];
    let list = report(&command(home.path(), &args).output().unwrap());
    for (listed, row) in list.as_array().unwrap().iter().zip(told["rows"].as_array().unwrap()) {
        let [found, known] = [listed, row].map(|of| (&of["op"], &of["shape"]));
        assert_eq!((found, &listed["config"], &listed["tier"]), (known, &row["choice"], &"tuned".into()), "{list}");
    }
}

#[test]
fn gpu_kernels_are_tuned_through_a_worker_on_the_host_executor() {
    if !host_executor() {
        return;
    }
    let _turn = turn();
    let home = TempDir::new().unwrap();
    let args = [
        "tune",
        "--device",
        "host",
        "--kernel",
        "rms_norm:rows=3,cols=97,type=f32",
        "--kernel",
        "matvec:type=q4_1,act=f32,rows=9,cols=96",
        "--json",
    ];
    let first = all_reached(home.path(), &args);
    let rows = first["rows"].as_array().unwrap();
    assert_eq!(rows.iter().map(|r| r["op"].as_str().unwrap()).collect::<Vec<_>>(), ["rms_norm", "matvec"]);
    let known = ["tuned", "default kept", "undecided"];
    assert!(rows.iter().all(|r| known.contains(&r["state"].as_str().unwrap())), "{first}");
    assert!(rows[0]["choice"]["THREADS"].is_number() && rows[0].get("error").is_none(), "{first}");
    // One that an earlier and smaller budget had measured is known to the last.
    assert!(first["measured"].as_u64() >= Some(1), "{first}");
    assert_eq!(stored(home.path()).len(), 2);
    let again = report(&command(home.path(), &args).output().unwrap());
    assert_eq!(again["measured"], 0, "{again}");
    let unknown = command(home.path(), &["tune", "--device", "host", "--kernel", "norm:rows=3"]).output().unwrap();
    assert_eq!(unknown.status.code(), Some(2));
    assert!(text(&unknown.stderr).contains("no op of host is called norm"), "{}", text(&unknown.stderr));
}

/// Of four kernels the first has many candidates: it ends with its share of the time, and goes on with what the others leave.
#[test]
fn a_kernel_is_cut_off_only_where_the_whole_budget_is_spent() {
    if !host_executor() {
        return;
    }
    let _turn = turn();
    let home = TempDir::new().unwrap();
    let mut args = vec!["tune", "--device", "host", "--budget", "20s", "--json"];
    for kernel in [
        "gemm:m=33,n=40,k=64,layout=nt,out=f32,type=f16",
        "rms_norm:rows=3,cols=97,type=f32",
        "copy:words=1031",
        "null:groups=133",
    ] {
        args.extend(["--kernel", kernel]);
    }
    let told = report(&command(home.path(), &args).output().unwrap());
    assert!(told["cut_off"] == 0 || told["seconds"].as_f64() >= Some(15.0), "{told}");
    assert_eq!(told["cut_off"], journals(home.path()), "{told}");
}

#[test]
fn a_whole_step_and_a_chunk_are_tuned_through_workers_on_the_host_executor() {
    if !host_executor() {
        return;
    }
    let _turn = turn();
    let home = TempDir::new().unwrap();
    let model = model("llama-q4_1");
    let args = ["tune", &model, "--device", "host", "--context", "32", "--json"];
    let first = all_reached(home.path(), &args);
    let known = ["tuned", "default kept", "undecided", "no effect end to end"];
    for (row, (op, parameter)) in
        first["rows"].as_array().unwrap().iter().zip([("decode", "PATH"), ("prefill", "ATTEND")])
    {
        assert!(row["op"] == op && known.contains(&row["state"].as_str().unwrap()), "{first}");
        assert!(row["choice"][parameter].is_string() && row.get("error").is_none(), "{first}");
    }
    let stored = stored(home.path());
    assert!(
        ["decode", "prefill"].iter().all(|op| stored.iter().any(|c| c["choice"]["key"]["op"] == *op)),
        "{stored:?}"
    );
    assert_eq!(report(&command(home.path(), &args).output().unwrap())["measured"], 0);
    let pinned = command(home.path(), &[&args[..], &["--path", "token"]].concat()).output().unwrap();
    assert_eq!(pinned.status.code(), Some(2));
}

/// Whatever won alone runs, and goes back where the model is no faster with it.
#[test]
fn the_model_as_a_whole_judges_how_a_gpu_takes_prompts() {
    if !host_executor() {
        return;
    }
    let _turn = turn();
    let home = TempDir::new().unwrap();
    let model = ["--shapes", "tiny", "--device", "host", "--context", "32", "--json"];
    let tune = |more: &[&str]| report(&command(home.path(), &[&["tune"], &model[..], more].concat()).output().unwrap());
    all_reached(home.path(), &[&["tune"], &model[..]].concat());
    // As if another one had won by far.
    let mut store = Store::open(Layers { user: Some(home.path().join("store")), ..Layers::default() });
    let all: Vec<Choice> = list(&store).into_iter().map(|l| l.entry.choice.clone()).collect();
    for op in ["decode", "prefill"] {
        let choice = all.iter().rfind(|c| c.key.op() == op).unwrap().clone();
        let (mut config, state) = (tune(&["--list"])[usize::from(op == "prefill")]["config"].clone(), State::Tuned);
        if op == "prefill" {
            config["THREADS"] = if config["THREADS"] == 128 { 256 } else { 128 }.into();
        }
        let config = serde_json::from_value(config).unwrap();
        let written_ms = choice.written_ms + 1_000_000;
        store.append(Choice { config, state, written_ms, ..choice }).unwrap();
    }
    drop(store);
    let planted = tune(&["--list"])[1].clone();
    assert_eq!(planted["tier"], "tuned");
    let told = tune(&["--budget", "8s"]);
    let end = &told["end_to_end"];
    assert_eq!((&told["measured"], &end["known"]), (&0.into(), &false.into()), "{told}");
    let effect = end["report"]["prefill"]["effect"].as_str().unwrap();
    assert!(effect != "same" && end["report"]["logit_delta_max"].as_f64().unwrap() < 1.0, "{told}");
    let stays = effect == "faster";
    assert_eq!(told["rows"][1]["choice"] == planted["config"], stays, "{told}");
    assert_eq!(told["rows"][1]["state"], if stays { "tuned" } else { "no effect end to end" }, "{told}");
    assert_eq!(tune(&["--list"])[1]["config"] == planted["config"], stays);
    assert_ne!(tune(&["--budget", "8s"])["end_to_end"]["known"], false, "what is known is not asked again");
}

#[test]
fn a_report_shows_what_the_store_holds_and_is_made_again_to_the_byte() {
    let _turn = turn();
    let home = TempDir::new().unwrap();
    let page = home.path().join("page.html");
    let report_of = |args: &[&str]| command(home.path(), args).output().unwrap();
    let refused = tune(home.path(), "60s").args(["--report", "/no/such/folder/page.html"]).output().unwrap();
    assert_eq!(
        refused.status.code(),
        Some(2),
        "a report that cannot be written is refused before anything is measured"
    );
    // A busy machine may not reach any kernel at first.
    let measured = RISING.iter().find_map(|budget| {
        let tuned = report(&tune(home.path(), budget).arg("--report").arg(&page).output().unwrap());
        let data: Value = serde_json::from_slice(&fs::read(page.with_extension("json")).unwrap()).unwrap();
        let kernels = data["data"]["kernels"].as_array().unwrap();
        assert_eq!(kernels.len(), tuned["rows"].as_array().unwrap().len(), "every kernel of the model has its place");
        let measured: Vec<_> = kernels.iter().filter(|k| !k["outcome"].is_null()).cloned().collect();
        (!measured.is_empty()).then_some(measured)
    });
    let measured = measured.expect("three minutes are enough to measure one kernel");
    assert!(measured.iter().all(|k| k["roof"]["read_gb_s"].as_f64().unwrap() > 0.0), "{measured:?}");
    let again = home.path().join("again.html");
    let (from, to) = (page.with_extension("json"), again.to_str().unwrap());
    let output = report_of(&["store", "report", "--from", from.to_str().unwrap(), "--html", to]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    for ending in ["html", "json", "tsv"] {
        let [first, second] = [&page, &again].map(|p| fs::read(p.with_extension(ending)).unwrap());
        assert!(first == second, "the .{ending} differs when it is made again");
    }
    let listed = json(&report_of(&["store", "report", "--json"]));
    assert_eq!(listed["data"]["kernels"].as_array().unwrap().len(), measured.len());
    assert_eq!(report_of(&["store", "report", "no_such_op"]).status.code(), Some(1));
}

#[test]
fn a_kernel_whose_default_cannot_run_is_said_and_the_answer_is_no() {
    if !host_executor() {
        return;
    }
    let _turn = turn();
    let home = TempDir::new().unwrap();
    // A compiler to which one of the two kernels is an error.
    let compiler = home.path().join("compiler");
    let real = std::env::var("CXX").unwrap_or("c++".into());
    let text_of = "for a in \"$@\"; do case $a in *kernels-*.cpp) text=$a;; esac; done";
    let refuse = "if [ -n \"$text\" ] && grep -q rms_norm \"$text\"; then echo 'k.cpp:1: error: no' >&2; exit 1; fi";
    fs::write(&compiler, format!("#!/bin/sh\n{text_of}\n{refuse}\nexec {real} \"$@\"\n")).unwrap();
    fs::set_permissions(&compiler, fs::Permissions::from_mode(0o755)).unwrap();
    let (bad, good) = ("rms_norm:rows=3,cols=97,type=f32", "swiglu:gate=silu,n=100,type=f32");
    let args = ["tune", "--device", "host", "--kernel", bad, "--kernel", good, "--json"];
    let once = |budget: &&str| {
        let args = [&args[..], &["--budget", budget]].concat();
        let output = command(home.path(), &args).env("CXX", &compiler).output().unwrap();
        let told = json(&output);
        let reached = told["rows"].as_array().unwrap().iter().all(|r| r["state"] != "not reached");
        reached.then_some((output, told))
    };
    let (output, told) = RISING[1..].iter().find_map(once).expect("three minutes are enough for two kernels");
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let (failed, fine) = (&told["rows"][0], &told["rows"][1]);
    let why = failed["error"].as_str().unwrap();
    assert!(failed["state"] == "failed" && why.contains("the default config") && why.contains("compile"), "{told}");
    assert!(fine.get("error").is_none(), "{told}");
    assert!(told["sentence"].as_str().unwrap().contains("1 whose default is wrong or does not run"), "{told}");
    assert!(text(&output.stderr).contains("its default stays"), "{}", text(&output.stderr));
}

/// Whatever was tuned, with the flag the bits are those of the defaults.
#[test]
fn deterministic_tuning_and_running_are_one_flag() {
    let _turn = turn();
    let home = TempDir::new().unwrap();
    let kernel = ["tune", "--kernel", "matvec:type=f32,act=f32,rows=64,cols=32,batch=1", "--json", "--deterministic"];
    let tuned = |budget: &&str| {
        let tuned = report(&command(home.path(), &[&kernel[..], &["--budget", budget]].concat()).output().unwrap());
        assert!(tuned["rows"][0].get("error").is_none(), "{tuned}");
        tuned["measured"] == 1
    };
    assert!(RISING.iter().any(tuned), "three minutes are enough for one kernel");
    let model = model("llama-q4_1");
    let run = |flags: &[&str]| -> Value {
        let args = ["run", &model, "--raw", "a", "--tune", "never", "--max-tokens", "8", "--json"];
        report(&command(home.path(), &[&args[..], flags].concat()).output().unwrap())
    };
    assert_eq!(run(&["--deterministic"])["ids"], run(&["--off"])["ids"]);
}

/// What the help gives as an example is typed by those who read it.
#[test]
fn the_kernel_that_the_help_names_can_be_tuned() {
    let _turn = turn();
    let home = TempDir::new().unwrap();
    let help = text(&command(home.path(), &["tune", "--help"]).output().unwrap().stdout);
    let kernel = help.split('`').nth(1).unwrap();
    assert!(kernel.starts_with("matvec:"), "{help}");
    report(&command(home.path(), &["tune", "--kernel", kernel, "--budget", "0.1s", "--json"]).output().unwrap());
}

/// A second `run` never measures, so that what goes on with the first one's tuning is another command.
#[test]
fn a_first_run_names_the_command_that_goes_on() {
    let _turn = turn();
    let home = TempDir::new().unwrap();
    let model = model("llama-q4_1");
    let args = ["run", &model, "x", "--raw", "--max-tokens", "2", "--threads", "1", "--budget", "1"];
    let told = text(&command(home.path(), &args).output().unwrap().stderr);
    assert!(!told.contains("the same command"), "{told}");
    let goes_on = format!("`planish tune {model} --threads 1` goes on with them");
    assert_eq!(told.contains("cut off"), told.contains(&goes_on), "{told}");
}
