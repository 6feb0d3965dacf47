//! Where a command's configurations come from: the store, a lock, pins, nothing; and that serving never tunes.

// A failure anywhere in a test file is a failed test.
#![allow(clippy::unwrap_used)]

#[path = "../../planish-tune/tests/faults/mod.rs"]
mod faults;
mod support;

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use planish_device::{Cpu, CpuOptions};
use planish_engine::identity::{self, Identities};
use planish_kernels::cpu::isa::Isa;
use planish_kernels::op::{Machine, Shape};
use planish_kernels::ops;
use planish_tune::store::{Choice, Layers, Store, list};
use planish_tune::{Config, Policy};
use serde_json::Value;
use support::{checked, command, expected, fill, report};
use tempfile::TempDir;

/// A tiny model that generates as the others do.
fn model() -> String {
    support::model("llama-q4_0")
}

/// Flags that make two runs of two processes alike.
const ALIKE: [&str; 4] = ["--threads", "1", "--isa", "portable"];

struct Home(TempDir);

impl Home {
    fn new() -> Home {
        Home(TempDir::new().unwrap())
    }

    fn store(&self) -> PathBuf {
        self.0.path().join("store")
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = command(self.0.path(), args);
        command.current_dir(self.0.path());
        command
    }

    #[track_caller]
    fn check(&self, args: &[&str], code: i32) -> (String, String) {
        checked(&self.command(args).output().unwrap(), args, code)
    }

    #[track_caller]
    fn json(&self, args: &[&str]) -> Value {
        report(&self.command(&[args, &["--json"]].concat()).output().unwrap())
    }

    /// `run` on the tiny model, as JSON.
    #[track_caller]
    fn run(&self, more: &[&str]) -> Value {
        let model = model();
        let base = ["run", &model, "hello there", "--raw", "--tune", "never", "--max-tokens", "5"];
        self.json(&[&base[..], &ALIKE, more].concat())
    }
}

/// A record of this machine for `op` at `shape` with `config` over the default, as tuning would have stored it.
fn tuned(op: &str, shape: &str, config: Config) -> Choice {
    let cpu = Cpu::new(CpuOptions { threads: Some(1) }).unwrap();
    let machine = Machine { backend: &cpu, isa: Isa::Portable };
    let (op, shape) = (ops::find(op).unwrap(), shape.parse::<Shape>().unwrap());
    let space = (op.space)(&shape, &machine);
    let config = space.default.clone().overlaid(&config);
    assert_eq!(space.violated(&config), None);
    let identity = Identities::new(&machine, &Policy::default()).of(&space);
    support::tuned(identity::key(op, &shape).unwrap(), identity, config)
}

/// The shape under which the tiny model's plan has `op`.
fn shape_of(home: &Home, op: &str, more: &[&str]) -> String {
    let works = home.json(&[&["tune", &model(), "--list"], &ALIKE[..], more].concat());
    let work = works.as_array().unwrap().iter().find(|w| w["op"] == op).unwrap();
    let shape: Vec<String> = work["shape"]
        .as_object()
        .unwrap()
        .iter()
        .map(|(k, v)| format!("{k}={}", v.to_string().trim_matches('"')))
        .collect();
    shape.join(",")
}

fn splits(n: i64) -> Config {
    Config::new().with("SPLITS", n)
}

#[test]
fn what_the_store_does_not_know_runs_its_default_and_is_said_once_with_the_command_that_tunes_it() {
    let home = Home::new();
    let model = model();
    let args = ["run", &model, "hello", "--raw", "--tune", "never", "--max-tokens", "3", "--stats", "--chunk", "32"];
    let (_, stderr) = home.check(&[&args[..], &ALIKE].concat(), 0);
    let command = format!("`planish tune {model} --threads 1 --isa portable --chunk 32` tunes them");
    assert_eq!(stderr.matches("note: ").count(), 1, "{stderr}");
    assert!(stderr.lines().any(|l| l.starts_with("note: ") && l.contains(&command)), "{stderr}");
    assert!(stderr.lines().any(|l| l.starts_with("unknown")), "the counter is in --stats: {stderr}");
    let told = home.run(&["--chunk", "32"]);
    let (kernels, of) = (told["unknown"]["kernels"].as_u64().unwrap(), told["unknown"]["of"].as_u64().unwrap());
    assert!(kernels > 0 && kernels == of && told["tiers"]["default"] == kernels, "{told}");
    assert!(!home.store().exists(), "nothing was measured and nothing was written");
    // The command that was printed is one that can be given.
    let tune = told["unknown"]["tune_with"].as_str().unwrap().to_owned() + " --list";
    home.check(&tune.split(' ').skip(1).collect::<Vec<_>>(), 0);
    // Where the store is not asked, nothing is unknown.
    assert_eq!(home.run(&["--off"])["unknown"], Value::Null);
    let chat = home.command(&["chat", &model, "--max-tokens", "2"]).stdin(Stdio::null()).output().unwrap();
    assert_eq!(support::text(&chat.stderr).matches("note: ").count(), 1);
    let bench = home.json(&[&["bench", &model, "-p", "4", "-n", "2", "-r", "1"], &ALIKE[..]].concat());
    assert!(bench["unknown"]["kernels"].as_u64().unwrap() > 0, "{bench}");
}

#[test]
fn a_neighbour_of_the_bucket_serves_and_what_is_outside_it_takes_the_default() {
    let home = Home::new();
    let shape = |context: &str| shape_of(&home, "attention_decode", &["--context", context]);
    fill(&home.store(), [tuned("attention_decode", &shape("100"), splits(2))]);
    let tiers = |context: &str| home.run(&["--context", context])["tiers"].clone();
    assert_eq!(tiers("100")["tuned"], 1);
    assert_eq!((&tiers("90")["nearby"], &tiers("90")["tuned"]), (&1.into(), &Value::Null));
    assert_eq!(tiers("60")["nearby"], Value::Null, "another bucket");
    let why =
        |shape: &str, code| home.check(&[&["store", "why", "attention_decode", shape], &ALIKE[..]].concat(), code).0;
    let told = why(&shape("90"), 0);
    assert!(
        told.contains("nearby: nothing was measured for this shape, but for ") && told.contains("context=100"),
        "{told}"
    );
    assert!(why(&shape("60"), 1).contains("miss: no record"));
    let list = home.json(&[&["tune", &model(), "--list", "--context", "90"], &ALIKE[..]].concat());
    assert!(list.as_array().unwrap().iter().any(|w| w["tier"] == "nearby" && w["config"]["SPLITS"] == 2), "{list}");
}

#[test]
fn a_lock_freezes_what_runs_and_its_replay_has_the_same_digest_and_tokens() {
    let home = Home::new();
    let model = model();
    let shape = shape_of(&home, "attention_decode", &[]);
    fill(&home.store(), [tuned("attention_decode", &shape, splits(4))]);
    let lock = home.json(&[&["store", "lock", &model, "tune.lock"], &ALIKE[..]].concat());
    assert!(lock["choices"].as_u64().unwrap() >= 4, "{lock}");
    let stored = home.run(&[]);
    assert_eq!(stored["digest"], lock["digest"]);
    // Later tuning, another machine's store, no store: the lock decides alone.
    fill(&home.store(), [tuned("attention_decode", &shape, splits(8))]);
    assert_ne!(home.run(&[])["digest"], lock["digest"]);
    let replayed = home.run(&["--replay", "tune.lock"]);
    assert_eq!((&replayed["digest"], &replayed["ids"]), (&lock["digest"], &stored["ids"]));
    assert_eq!(replayed["tiers"].as_object().unwrap().keys().collect::<Vec<_>>(), ["locked"], "{replayed}");
    let replay = ["--replay", "tune.lock", "--threads", "1", "--isa", "portable"];
    let bench = home.json(&[&["bench", &model, "-p", "4", "-n", "2", "-r", "1"], &replay[..]].concat());
    assert_eq!(bench["digest"], lock["digest"]);
    let expected = expected("llama-q4_0");
    home.check(&[&["verify", &model, "--expected", &expected], &replay[..]].concat(), 0);
    home.check(&[&["chat", &model, "--max-tokens", "2"], &replay[..]].concat(), 0);
    // A shape that the lock lacks is an error, not a default.
    let (_, stderr) = home.check(&[&["bench", &model, "--chunk", "16"], &replay[..]].concat(), 2);
    assert!(stderr.contains("not in the lock") && stderr.contains("hint: "), "{stderr}");
    let other = home.json(&[&["store", "lock", &model, "other.lock"], &ALIKE[..]].concat());
    assert_ne!(other["digest"], lock["digest"]);
    let (differing, _) = home.check(&["store", "diff", "tune.lock", "other.lock"], 1);
    assert!(
        differing.contains("SPLITS=4 THREADS=1 and SPLITS=8 THREADS=1")
            && differing.contains(lock["digest"].as_str().unwrap()),
        "{differing}"
    );
    let same: Value =
        serde_json::from_str(&home.check(&["store", "diff", "tune.lock", "tune.lock", "--json"], 0).0).unwrap();
    assert_eq!((&same["left"], &same["differing"]), (&lock["digest"], &Value::Array(Vec::new())));
}

#[test]
fn of_processes_with_different_stores_the_first_decides_for_all() {
    let homes = [Home::new(), Home::new(), Home::new()];
    let shape = shape_of(&homes[0], "attention_decode", &[]);
    for (home, n) in homes.iter().zip([2, 4, 16]) {
        fill(&home.store(), [tuned("attention_decode", &shape, splits(n))]);
    }
    let digests = |more: &[&str]| homes.iter().map(|h| h.run(more)["digest"].clone()).collect::<Vec<_>>();
    let own = digests(&[]);
    assert!(own[0] != own[1] && own[1] != own[2], "{own:?}");
    let shared = TempDir::new().unwrap();
    let lock = shared.path().join("all.lock");
    let agreed = digests(&["--lock", lock.to_str().unwrap()]);
    assert!(agreed.iter().all(|d| *d == own[0]), "{agreed:?}");
    let model = model();
    let (_, stderr) = homes[0].check(&["tune", &model, "--lock", "x.lock"], 2);
    assert!(stderr.contains("--lock") && stderr.contains("hint: "), "{stderr}");
}

/// Tuning off is a path like any other: every command, with a store that says otherwise.
#[test]
fn with_tuning_off_every_command_works_and_the_store_is_not_asked() {
    let home = Home::new();
    let model = model();
    let shape = shape_of(&home, "attention_decode", &[]);
    fill(&home.store(), [tuned("attention_decode", &shape, splits(2))]);
    let (on, off) = (home.run(&[]), home.run(&["--off"]));
    assert_ne!(on["digest"], off["digest"]);
    assert_eq!(off["tiers"].as_object().unwrap().keys().collect::<Vec<_>>(), ["default"], "{off}");
    assert_eq!(off["digest"], Home::new().run(&[])["digest"], "the defaults are those of an empty store");
    let bench = home.json(&[&["bench", &model, "-p", "4", "-n", "2", "-r", "1", "--off"], &ALIKE[..]].concat());
    assert_eq!(bench["digest"], off["digest"]);
    let expected = expected("llama-q4_0");
    home.check(&["verify", &model, "--expected", &expected, "--off"], 0);
    home.check(&["chat", &model, "--max-tokens", "2", "--off"], 0);
    home.check(&["store", "lock", &model, "off.lock", "--off"], 0);
    let first = home.check(&["run", &model, "x", "--raw", "--max-tokens", "2", "--off"], 0).1;
    assert!(!first.contains("tuning"), "a first run does not tune when tuning is off: {first}");
}

#[test]
fn two_stores_are_compared_and_merged_with_codes_and_json() {
    let home = Home::new();
    let shape = shape_of(&home, "attention_decode", &[]);
    let (a, b) = (home.0.path().join("a"), home.0.path().join("b"));
    fill(&a, [tuned("attention_decode", &shape, splits(2))]);
    // The later of two records is the one that counts.
    fill(&b, [Choice { written_ms: 2, ..tuned("attention_decode", &shape, splits(4)) }]);
    let (text, _) = home.check(&["store", "diff", "a", "b"], 1);
    assert!(text.contains("left   SPLITS=2") && text.contains("right  SPLITS=4"), "{text}");
    home.check(&["store", "diff", "a", "a"], 0);
    let json: Value = serde_json::from_str(&home.check(&["store", "diff", "a", "b", "--json"], 1).0).unwrap();
    assert_eq!((&json[0]["left"]["config"]["SPLITS"], &json[0]["right"]["config"]["SPLITS"]), (&2.into(), &4.into()));
    for (folder, known) in [("a", 0), ("b", 0), ("a", 1)] {
        let merged = home.json(&["store", "merge", folder]);
        assert_eq!((&merged["known"], &merged["saved"]), (&known.into(), &true.into()), "{folder}: {merged}");
    }
    home.check(&["store", "diff", "a"], 1);
    let (_, stderr) = home.check(&["store", "merge", "nowhere"], 2);
    assert!(stderr.contains("nowhere is no folder") && stderr.contains("hint: "), "{stderr}");
    for args in [["store", "merge", "/etc"], ["store", "diff", "/etc"]] {
        let (_, stderr) = home.check(&args, 2);
        assert!(stderr.contains("/etc holds other things than a store") && stderr.contains("hint: give"), "{stderr}");
    }
    let (_, stderr) = home.check(&["store", "export", "/nope/x"], 2);
    assert!(stderr.contains("/nope/x") && stderr.contains("hint: name a file in a folder"), "{stderr}");
    // Merging an empty store into a full one takes nothing away.
    fs::create_dir(home.0.path().join("empty")).unwrap();
    assert_eq!(home.json(&["store", "merge", "empty"])["choices"], 0);
    assert_eq!(list(&Store::open(Layers { user: Some(home.store()), ..Layers::default() })).len(), 2);
}

/// Disks that refuse: commands that only read print the same, and none of them fails or warns.
#[test]
fn a_read_only_home_changes_nothing_for_those_who_read() {
    if !faults::supported() {
        return;
    }
    let home = Home::new();
    let model = model();
    let shape = shape_of(&home, "attention_decode", &[]);
    fill(&home.store(), [tuned("attention_decode", &shape, splits(2))]);
    let why = [&["store", "why", "attention_decode", &shape], &ALIKE[..]].concat();
    let run = [&["run", &model, "hello", "--raw", "--tune", "never", "--max-tokens", "3"], &ALIKE[..]].concat();
    let commands: [&[&str]; 6] = [
        &["store", "list"],
        &["store", "show", "attention_decode", &shape],
        &why,
        &["store", "verify"],
        &run,
        &["store", "diff", "store"],
    ];
    for args in commands {
        let plain = home.check(args, 0);
        for rules in [faults::cannot_change(libc::EROFS), faults::cannot_change(libc::EACCES)] {
            let output = faults::under(&mut home.command(args), &rules).output().unwrap();
            assert_eq!(checked(&output, args, 0), plain, "{args:?}");
        }
    }
    // A store that cannot even be listed: the defaults run, and one warning says how to move it.
    let rules = faults::failing(libc::SYS_getdents64, libc::EACCES);
    let output = faults::under(&mut home.command(&run), &rules).output().unwrap();
    let (_, stderr) = checked(&output, &run, 0);
    assert_eq!(stderr.matches("warning: ").count(), 1, "{stderr}");
    assert!(stderr.contains("PLANISH_STORE"), "{stderr}");
}

#[test]
fn a_store_that_others_may_write_to_is_not_run_and_no_home_is_no_error() {
    use std::os::unix::fs::PermissionsExt;
    let home = Home::new();
    let model = model();
    let shape = shape_of(&home, "attention_decode", &[]);
    fill(&home.store(), [tuned("attention_decode", &shape, splits(2))]);
    assert_eq!(home.run(&[])["tiers"]["tuned"], 1);
    fs::set_permissions(home.store(), fs::Permissions::from_mode(0o777)).unwrap();
    let run = ["run", &model, "hello", "--raw", "--tune", "never", "--max-tokens", "3", "--json"];
    let (stdout, stderr) = home.check(&[&run[..], &ALIKE].concat(), 0);
    assert!(stderr.contains("others may write there (mode 0777)") && stderr.contains("PLANISH_STORE"), "{stderr}");
    assert!(!stdout.contains("\"tuned\""), "{stdout}");
    let mut homeless = home.command(&run);
    homeless.env_remove("PLANISH_HOME").env_remove("XDG_CACHE_HOME").env_remove("HOME");
    let (_, stderr) = checked(&homeless.output().unwrap(), &run, 0);
    assert_eq!(stderr.matches("warning: ").count(), 1, "{stderr}");
    assert!(stderr.contains("memory only"), "{stderr}");
}
