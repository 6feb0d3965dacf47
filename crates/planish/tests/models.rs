//! Commands that run a model, on the golden models of the engine: what they print, refuse and compute.

// A failure anywhere in a test file is a failed test.
#![allow(clippy::unwrap_used)]

mod support;

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Output, Stdio};

use serde_json::Value;
use support::{checked, command, expected, host_executor, model, report, text};
use tempfile::TempDir;

/// Runs the command in a fresh home with `input` on standard input.
fn planish(args: &[&str], input: &[u8]) -> Output {
    let home = TempDir::new().unwrap();
    let mut command = command(home.path(), args);
    command.current_dir(home.path()).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // A command that refuses its flags never reads the input.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap()
}

#[track_caller]
fn check(args: &[&str], input: &str, code: i32) -> (String, String) {
    checked(&planish(args, input.as_bytes()), args, code)
}

#[track_caller]
fn check_json(args: &[&str]) -> Value {
    report(&planish(args, b""))
}

#[track_caller]
fn check_refused(args: &[&str], parts: &[&str]) {
    let (stdout, stderr) = check(args, "", 2);
    assert!(stdout.is_empty(), "{stdout}");
    for part in parts {
        assert!(stderr.contains(part), "no `{part}` in:\n{stderr}");
    }
}

#[test]
fn two_greedy_runs_are_the_same_and_standard_output_is_text_alone() {
    let model = model("llama-q4_0");
    let run =
        || check(&["run", &model, "hello there", "--raw", "--tune", "never", "--max-tokens", "9", "--stats"], "", 0);
    let (first, second) = (run(), run());
    assert_eq!(first.0, second.0);
    assert!(first.1.contains("digest") && first.1.contains("tokens/s"), "{}", first.1);
    assert!(!first.0.contains("tokens/s"), "{}", first.0);
}

#[test]
fn a_seed_repeats_a_draw_and_another_seed_does_not() {
    let model = model("llama-q4_0");
    let run = |seed: &str| {
        let sampling = ["--temperature", "1.5", "--seed", seed, "--max-tokens", "24"];
        let args = [&["run", &model, "hello", "--raw", "--tune", "never", "--json"], &sampling[..]].concat();
        check_json(&args)["ids"].clone()
    };
    assert_eq!(run("7"), run("7"));
    assert_ne!(run("7"), run("8"));
}

#[test]
fn a_prompt_comes_from_standard_input_too() {
    let model = model("llama-f32");
    let flags = ["--raw", "--tune", "never", "--max-tokens", "5"];
    let typed = check(&[&["run", &model, "some words"], &flags[..]].concat(), "", 0);
    let piped = check(&[&["run", &model, "-"], &flags[..]].concat(), "some words", 0);
    assert_eq!(typed.0, piped.0);
}

#[test]
fn input_that_is_no_text_is_refused_and_a_conversation_goes_on() {
    let model = model("llama-q4_0");
    let output = planish(&["run", &model, "-", "--tune", "never"], b"caf\xe9");
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("is not UTF-8 at byte 3 of 4") && stderr.contains("hint: "), "{stderr}");
    let output = planish(&["chat", &model, "--max-tokens", "3", "--json"], b"caf\xe9\nhello\n");
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("the message is not UTF-8 at byte 3"), "{stderr}");
    assert_eq!(text(&output.stdout).lines().count(), 1);
}

#[test]
fn verify_passes_every_class_and_dumps_what_it_judged() {
    let folder = TempDir::new().unwrap();
    let dump = folder.path().join("dump");
    for (activations, kv) in [("f32", "f32"), ("f32", "f16"), ("int8", "f32"), ("int8", "f16")] {
        let numerics = ["--activations", activations, "--kv", kv, "--chunk", "7", "--dump", dump.to_str().unwrap()];
        let (model, expected) = (model("llama-q4_k_m"), expected("llama-q4_k_m"));
        let (out, _) = check(&[&["verify", &model, "--expected", &expected], &numerics[..]].concat(), "", 0);
        assert_eq!(out.lines().filter(|l| l.starts_with("ok ")).count(), 4, "{out}");
    }
    let read = |name: &str| -> Value { serde_json::from_slice(&fs::read(dump.join(name)).unwrap()).unwrap() };
    let (prefill, steps) = (read("short.json"), read("steps/short.json"));
    assert_eq!(prefill["ids"], steps["ids"]);
    assert_eq!(prefill["positions"].as_array().unwrap().len(), prefill["ids"].as_array().unwrap().len());
}

#[test]
fn verify_says_no_to_another_model_of_the_same_shape() {
    let (model, expected) = (model("llama-q8_0"), expected("llama-q4_0"));
    let (out, _) = check(&["verify", &model, "--expected", &expected, "--activations", "f32"], "", 1);
    assert!(out.contains("FAIL"), "{out}");
}

#[test]
fn bench_reports_what_scripts_read() {
    let report = check_json(&["bench", &model("llama-q4_0"), "-p", "16", "-n", "8", "-r", "2", "--json"]);
    let positive = ["decode_tok_s", "prefill_tok_s", "bytes_per_token", "read_gb_s", "percent_of_bandwidth", "threads"];
    for name in positive {
        assert!(report[name].as_f64().is_some_and(|v| v > 0.0), "{name}: {}", report[name]);
    }
    assert!(report["peak_rss_bytes"].as_u64().is_some_and(|n| n > 1 << 20), "{}", report["peak_rss_bytes"]);
    assert_eq!(report["digest"].as_str().map(str::len), Some(64));
    assert_eq!(report["decode"]["samples"].as_array().map(Vec::len), Some(2));
}

#[test]
fn what_cannot_run_says_why_and_what_next() {
    let folder = TempDir::new().unwrap();
    let other = folder.path().join("other.gguf");
    fs::write(&other, b"PK\x03\x04 no model").unwrap();
    let model = model("llama-q4_0");
    let never = ["--tune", "never"];
    let run = |rest: &[&str], parts: &[&str]| check_refused(&[&["run"], rest, &never[..]].concat(), parts);
    run(&["/no/such.gguf"], &["/no/such.gguf", "hint: "]);
    run(&[other.to_str().unwrap()], &["other.gguf", "GGUF"]);
    run(&[&model, "many words are too many", "--raw", "--context", "4"], &["context of 4", "hint: "]);
    run(&[&model, "x", "--context", "99999999"], &["99999999", "hint: "]);
    run(&[&model, "x", "--temperature", "hot"], &["hot", "--temperature"]);
    run(&[&model, "x", "--pin", "nothing=A=1"], &["no op nothing", "matvec"]);
    run(&[&model, "x", "--replay", "missing.lock"], &["missing.lock"]);
    run(&[&model, "x", "--off", "--replay", "missing.lock"], &["--off", "--replay"]);
    check_refused(&["bench", &model, "-p", "100000"], &["100000 tokens", "hint: "]);
    check_refused(&["verify", &model, "--expected", "missing.json"], &["missing.json"]);
    check_refused(&["chat", "no-such-model"], &["no-such-model", "hint: "]);
}

#[test]
fn a_pin_decides_in_every_command_and_measures_nothing() {
    let (model, expected) = (model("llama-q4_0"), expected("llama-q4_0"));
    let bench =
        |flags: &[&str]| check_json(&[&["bench", &model, "-p", "8", "-n", "4", "-r", "1", "--json"], flags].concat());
    let (one, same) = (bench(&["--pin", "attention_decode.SPLITS=2"]), bench(&["--pin", "attention_decode=SPLITS=2"]));
    assert_eq!((&one["digest"], &one["tiers"]["pinned"]), (&same["digest"], &1.into()), "{one} {same}");
    assert_ne!(one["digest"], bench(&["--off"])["digest"], "another configuration has another digest");
    let pin = ["--pin", "attention_decode.SPLITS=2", "--pin", "attention.BLOCK_Q=16"];
    let run = ["run", &model, "hello", "--raw", "--max-tokens", "4", "--json"];
    let (told, said) = check(&[&run[..], &pin].concat(), "", 0);
    let told: Value = serde_json::from_str(&told).unwrap();
    assert_eq!(told["tiers"]["pinned"], 2, "{told}");
    assert!(!said.contains("tuning") && !said.contains("measur"), "{said}");
    check(&[&["verify", &model, "--expected", &expected, "--activations", "f32"], &pin[..]].concat(), "", 0);
    let (answer, _) = check(&[&["chat", &model, "--max-tokens", "3"], &pin[..]].concat(), "hello\n", 0);
    assert!(!answer.is_empty());
}

#[test]
fn what_a_gpu_cannot_do_is_refused_and_nothing_falls_back() {
    let model = model("llama-q4_0");
    let run = |rest: &[&str], parts: &[&str]| {
        check_refused(&[&["run", &model, "x", "--tune", "never"], rest].concat(), parts)
    };
    run(&["--device", "gpu"], &["`gpu` is no device", "cuda"]);
    run(&["--device", "cuda:4096"], &["cuda:4096", "hint: "]);
    run(&["--device", "host", "--kv", "f32"], &["--kv f32", "hint: "]);
    run(&["--device", "host", "--isa", "portable"], &["--isa", "hint: "]);
    run(&["--device", "host", "--pin", "matvec=ROWS=1"], &["--pin matvec", "hint: "]);
    run(&["--pin", "decode=THREADS=128"], &["--pin decode", "hint: "]);
    run(&["--pin", "softcap.ROWS=1"], &["softcap has nothing to choose in this model", "attention_decode"]);
    run(&["--pin", "attention_decode.SPLITS=3"], &["SPLITS=3 is not a candidate value", "SPLITS of 1 2 4"]);
    run(&["--pin", "attention_decode.WIDTH=3"], &["WIDTH is not a parameter", "SPLITS of 1 2 4"]);
    run(&["--pin", "attention_decode.SPLITS=2", "--pin", "attention_decode=SPLITS=4"], &["SPLITS: it is given twice"]);
    run(&["--path", "graph"], &["--path", "hint: "]);
    check_refused(&["verify", &model, "--expected", &expected("llama-q4_0"), "--every-width"], &["--every-width"]);
}

#[test]
fn a_model_runs_on_the_kernels_of_gpus() {
    if !host_executor() {
        return;
    }
    let model = model("llama-q4_0");
    let host = ["--device", "host", "--context", "64", "--max-tokens", "6", "--temperature", "1.5", "--seed", "3"];
    let report = check_json(&[&["run", &model, "hello", "--raw", "--json", "--path", "layer"], &host[..]].concat());
    assert_eq!((report["device"].as_str(), report["path"].as_str()), (Some("host"), Some("layer")), "{report}");
    assert_eq!((report["ids"].as_array().map(Vec::len), report["digest"].as_str().map(str::len)), (Some(6), Some(64)));
    let report = check_json(&[&["run", &model, "x", "--raw", "--json", "--repeat-penalty", "1.2"], &host[..]].concat());
    assert_eq!(report["ids"].as_array().map(Vec::len), Some(6), "{report}");
}

/// What takes a prompt has a configuration as steps have, and obeys the same flags.
#[test]
fn prompts_on_a_gpu_go_by_pins_and_locks() {
    if !host_executor() {
        return;
    }
    let (model, folder) = (model("llama-q4_0"), TempDir::new().unwrap());
    let lock = folder.path().join("a.lock");
    let lock = lock.to_str().unwrap();
    let run = |flags: &[&str]| {
        let args =
            ["run", &model, "hello", "--raw", "--json", "--device", "host", "--context", "32", "--max-tokens", "2"];
        let report = check_json(&[&args[..], flags].concat());
        let prefill = &report["prefill"];
        let text = |v: &Value| v.as_str().unwrap().to_owned();
        (text(&prefill["tier"]), text(&prefill["config"]["ATTEND"]), text(&report["digest"]))
    };
    let plain = run(&["--off"]);
    assert_eq!((plain.0.as_str(), plain.1.as_str()), ("default", "tiles"));
    let pinned = run(&["--pin", "prefill.ATTEND=plain"]);
    assert_eq!((pinned.0.as_str(), pinned.1.as_str(), pinned.2 == plain.2), ("pinned", "plain", false));
    let locked = run(&["--lock", lock]);
    assert_eq!(locked, ("locked".to_owned(), plain.1.clone(), plain.2.clone()));
    assert_eq!(run(&["--replay", lock]), locked);
    assert!(fs::read_to_string(lock).unwrap().contains("\"op\":\"prefill\""));
    check_refused(&["run", &model, "x", "--pin", "prefill.ATTEND=plain"], &["--pin prefill", "--device cuda or host"]);
}

#[test]
fn every_path_is_verified_against_f64_and_the_others() {
    if !host_executor() {
        return;
    }
    let folder = TempDir::new().unwrap();
    // The first prompt is short: the host executor is slow.
    let short = |name: &str| {
        let mut file: Value = serde_json::from_slice(&fs::read(expected(name)).unwrap()).unwrap();
        file["prompts"].as_array_mut().unwrap().truncate(1);
        let path = folder.path().join(format!("{name}.json"));
        fs::write(&path, file.to_string()).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let verify = |name: &str, path: &[&str], code| {
        let args = ["verify", &model("llama-q8_0"), "--expected", &short(name), "--device", "host"];
        check(&[&args[..], path].concat(), "", code).0
    };
    let out = verify("llama-q8_0", &[], 0);
    for path in ["launches", "graph", "layer", "token"] {
        assert!(out.lines().any(|l| l.starts_with("ok ") && l.contains(&format!("on {path} short steps"))), "{out}");
    }
    assert!(verify("llama-q4_0", &["--path", "layer"], 1).contains("FAIL"));
}

#[test]
fn explain_attributes_a_token_and_shows_its_evidence_again() {
    let folder = TempDir::new().unwrap();
    let page = folder.path().join("token.html");
    let model = model("llama-q4_0");
    let flags = ["--context", "64", "--positions", "0,8,16", "--tokens", "8", "--rounds", "6"];
    let args = [&["explain", &model, "--json", "--html", page.to_str().unwrap()], &flags[..]].concat();
    let report = check_json(&args);
    let rows = report["rows"].as_array().unwrap();
    assert!(rows.iter().any(|r| r["name"] == "gate+up") && rows.len() == 13, "{report}");
    for row in rows {
        assert!(row["time_ns"]["median"].as_f64().is_some_and(|ns| ns > 0.0), "{row}");
    }
    assert!(report["attributed_fraction"].as_f64().is_some_and(|f| f > 0.1), "{report}");
    assert!(!cfg!(target_os = "linux") || report["by_others"].is_number(), "{report}");
    assert!(report["unattributed_ns"]["hi"].as_f64() >= report["unattributed_ns"]["lo"].as_f64());
    assert!(report["verdict"]["sentence"].as_str().is_some_and(|s| s.contains("-bound: ")), "{report}");
    assert_eq!((report["digest"].as_str().map(str::len), report["kind"].as_str()), (Some(64), Some("token")));
    assert!(report["identity"]["silicon"].is_object() && report["position"] == 32, "{report}");
    // Without the machine: the page again, byte for byte, and the same text.
    let evidence = page.with_extension("json");
    let again = folder.path().join("again.html");
    let from = ["explain", "--from", evidence.to_str().unwrap()];
    let text = check(&[&from[..], &["--html", again.to_str().unwrap()]].concat(), "", 0).0;
    for part in ["gate+up", "attributed", "digest", "barriers", "position"] {
        assert!(text.contains(part), "no {part} in:\n{text}");
    }
    // Both tables of parts fit a terminal of 80 columns, and say what their columns are.
    let tables: Vec<&str> = text.lines().skip_while(|l| !l.starts_with("part ")).collect();
    let tables = &tables[..tables.iter().position(|l| l.starts_with("beside ")).unwrap()];
    assert!(tables.len() >= 2 * 15 && tables.iter().all(|l| l.chars().count() <= 80), "{tables:#?}");
    for legend in ["alone: after one; prefix: ", " GB/s and of the rates below"] {
        assert!(tables.iter().any(|l| l.contains(legend)), "no {legend} in {tables:#?}");
    }
    // What launches and barriers cost stands on the page as in the text.
    let shown = fs::read_to_string(&page).unwrap();
    for name in ["launches", "barriers"] {
        let line = text.lines().filter_map(|l| l.strip_prefix(name)).map(str::trim).find(|l| l.contains("probed"));
        assert!(line.is_some_and(|l| shown.contains(&l.replace('\'', "&#39;"))), "{name}: {line:?}");
    }
    for extension in ["html", "json", "tsv"] {
        let read = |path: &Path| fs::read_to_string(path.with_extension(extension)).unwrap();
        assert!(read(&page) == read(&again), "{extension} differs");
    }
    let raw = folder.path().join("raw.json");
    fs::write(&raw, report.to_string()).unwrap();
    let from = ["explain", "--from", raw.to_str().unwrap()];
    let own = check(&from, "", 0).0;
    assert_eq!(own.lines().last(), text.lines().last());
    // Nothing is measured, so what says how is refused; and so is evidence of which one part contradicts another.
    for flag in [["--position", "4"], ["--threads", "1"], ["--device", "cuda"]] {
        check_refused(&[&from[..], &flag].concat(), &["--from", flag[0]]);
    }
    let mut edited = report;
    edited["context"]["line"]["points"].as_array_mut().unwrap().truncate(1);
    fs::write(&raw, edited.to_string()).unwrap();
    check_refused(&from, &["raw.json", "positions, and a line through 1", "hint: "]);
}

#[test]
fn explain_refuses_what_it_cannot_answer() {
    let (one, f32) = (model("llama-q4_0"), model("llama-f32"));
    let folder = TempDir::new().unwrap();
    let other = folder.path().join("other.json");
    fs::write(&other, "{\"planish\": \"tuning\", \"version\": 1, \"data\": {}}").unwrap();
    check_refused(&["explain", &one, &one], &["2 models without --fit", "hint: "]);
    check_refused(&["explain", "--fit", &one, &one, &one], &["3 models", "at least 4", "hint: "]);
    check_refused(&["explain", "--fit", &one, &one, &one, &f32], &["more than one class", "f32", "hint: "]);
    check_refused(
        &["explain", "--fit", &one, &one, &one, &one, "--rounds", "6"],
        &["4 models of 1 size", "at least 4 sizes", "hint: "],
    );
    check_refused(
        &["explain", &one, "--context", "64", "--position", "64"],
        &["position 64 and 1 token from", "hint: "],
    );
    check_refused(&["explain", &one, "--path", "token"], &["--path", "hint: "]);
    check_refused(&["explain", &one, "--html", "page.txt"], &["page.txt", "hint: "]);
    check_refused(&["explain", "--from", "missing.json"], &["missing.json", "hint: "]);
    check_refused(&["explain", "--from", other.to_str().unwrap()], &["evidence of tuning", "hint: "]);
    check_refused(&["explain", "--from", &one], &["no evidence", "hint: "]);
}

#[test]
fn explain_fits_time_to_bytes_over_models_of_one_class() {
    let folder = TempDir::new().unwrap();
    let page = folder.path().join("fit.html");
    let names = ["llama-q4_0", "llama-q4_1", "llama-q5_0", "llama-q8_0"].map(model);
    let flags = ["--position", "4", "--context", "16", "--rounds", "6", "--html", page.to_str().unwrap()];
    let models: Vec<&str> = names.iter().map(String::as_str).collect();
    let report = check_json(&[&["explain", "--json", "--fit"], &models[..], &flags[..]].concat());
    let points = report["fit"]["line"]["points"].as_array().unwrap();
    let leverages: f64 = points.iter().map(|p| p["leverage"].as_f64().unwrap()).sum();
    assert!(points.len() == 4 && (leverages - 2.0).abs() < 1e-9, "{report}");
    assert_eq!(report["fit"]["intercept_us_interval"].as_array().map(Vec::len), Some(2));
    assert!(!report["fit"]["cautions"].as_array().unwrap().is_empty(), "types differ: {report}");
    let evidence = page.with_extension("json");
    let from = ["explain", "--from", evidence.to_str().unwrap()];
    let text = check(&from, "", 0).0;
    assert!(text.contains("leverage") && text.contains("caution") && text.contains("\nload "), "{text}");
    // A line without points, or a fit without models, comes from an editor.
    for (place, what) in
        [("/data/fit/line/points", "4 models, and a line through 0"), ("/data/fit/samples", "0 models")]
    {
        let mut edited: serde_json::Value = serde_json::from_slice(&fs::read(&evidence).unwrap()).unwrap();
        *edited.pointer_mut(place).unwrap() = serde_json::json!([]);
        let path = folder.path().join("edited.json");
        fs::write(&path, edited.to_string()).unwrap();
        check_refused(&["explain", "--from", path.to_str().unwrap()], &["edited.json", what, "hint: "]);
    }
}

#[test]
fn probes_of_the_processor_are_the_default_and_complete() {
    let told = check(&["probe", "barrier", "--threads", "2"], "", 0).0;
    let first = told.lines().next().unwrap_or_default();
    assert!(first.contains(", 2 threads, load "), "what was probed, and beside what: {told}");
    let report = check_json(&["probe", "--json", "--threads", "2"]);
    assert!(report["threads"] == 2 && report["load_average"].as_array().is_some_and(|l| l.len() == 3), "{report}");
    for name in ["submission_ns", "spinning_ns", "sleeping_ns"] {
        assert!(report["launch"][name].as_f64().is_some_and(|ns| ns > 0.0), "{report}");
    }
    let widths: Vec<_> = report["barrier"].as_array().unwrap().iter().map(|b| b["threads"].as_u64()).collect();
    assert_eq!(widths, [Some(1), Some(2)]);
    for (probe, field) in [("read", "median"), ("copy", "median"), ("matrix", "int8_gop_s")] {
        assert!(report[probe][field].as_f64().is_some_and(|rate| rate > 0.0), "{report}");
    }
}
