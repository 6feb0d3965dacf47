//! Compaction, pruning, export, import, merge, diff, inspection, and the lock file.

use std::fs;

use super::*;

fn evidence(rows: i64) -> Evidence {
    let data = serde_json::json!({ "samples": [rows, 2.5], "rejected": { "z": 1, "a": null } });
    Evidence { key: key(rows), identity: identity(), written_ms: 9, data }
}

/// Appends a choice for `rows` with its evidence.
fn append_with_evidence(store: &mut Store, rows: i64) {
    let (name, saved) = store.append_evidence(evidence(rows)).unwrap();
    assert_eq!(saved, Saved::Disk);
    store.append(Choice { evidence: Some(name), ..choice(rows) }).unwrap();
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn compaction_keeps_the_union_and_leaves_living_writers_alone() {
    let dir = tempfile::tempdir().unwrap();
    for r in 0..5 {
        fill(dir.path(), [r, 100]);
    }
    let mut alive = open(dir.path());
    alive.append(choice(7)).unwrap();
    let live: Vec<_> = names(&choices_dir(dir.path())).into_iter().filter(|n| n.ends_with(".live.jsonl")).collect();
    assert_eq!(live.len(), 1);
    let before = rows_in(&open(dir.path()));
    let done = compact(dir.path()).unwrap();
    assert_eq!((done.shards_merged, done.shards_written, done.shards_skipped), (5, 1, 1));
    let after = names(&choices_dir(dir.path()));
    assert!(after.len() == 2 && after.contains(&live[0]), "{after:?}");
    assert_eq!(rows_in(&open(dir.path())), before);
    alive.append(choice(8)).unwrap();
    drop(alive);
    assert!(rows_in(&open(dir.path())).ends_with(&[100, 100, 100, 100, 100]), "five different records of one key");
    assert_eq!(compact(dir.path()).unwrap().shards_merged, 2);
    assert_eq!(compact(dir.path()).unwrap(), Compacted::default(), "one clean shard is left as it is");
    let rows = rows_in(&open(dir.path()));
    assert!(rows.contains(&7) && rows.contains(&8));
}

#[test]
fn a_dead_writers_shard_is_compacted_and_a_damaged_one_set_aside() {
    let dir = tempfile::tempdir().unwrap();
    fill(dir.path(), [1, 2]);
    let folder = choices_dir(dir.path());
    let sealed = folder.join(&names(&folder)[0]);
    let mut text = fs::read(&sealed).unwrap();
    text.truncate(text.len() - 20);
    fs::write(folder.join("dead.live.jsonl"), &text).unwrap();
    let done = compact(dir.path()).unwrap();
    assert_eq!((done.shards_merged, done.set_aside.len()), (2, 1));
    assert_eq!(fs::read(&done.set_aside[0]).unwrap(), text, "the damaged bytes are kept");
    let mut store = open(dir.path());
    assert_eq!((rows_in(&store), warnings(&mut store).len()), (vec![1, 2], 0));
    assert_eq!(verify(&store).unwrap()[0].set_aside, 1);
}

#[test]
fn an_offline_pass_removes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    fill(dir.path(), 0..4);
    let before: Vec<_> = list(&open(dir.path())).into_iter().map(|l| l.entry.choice).collect();
    // Every verb that reads, an append of nothing, and a pass under another toolchain.
    let mut store = open(dir.path());
    let newer = Identity { toolchain: "rustc 9".into(), ..identity() };
    store.append(Choice { identity: newer, ..choice(0) }).unwrap();
    verify(&store).unwrap();
    prune(dir.path(), &Prune { superseded: true, older_than_ms: Some(u64::MAX), ..Prune::default() }, Apply::DryRun)
        .unwrap();
    drop(store);
    drop(open(dir.path()));
    compact(dir.path()).unwrap();
    let after: Vec<_> = list(&open(dir.path())).into_iter().map(|l| l.entry.choice).collect();
    assert_eq!(after.len(), 5);
    assert!(before.iter().all(|c| after.contains(c)), "a superset of what was there");
}

#[test]
fn prune_removes_what_it_says_and_the_evidence_nobody_names() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(dir.path());
    append_with_evidence(&mut store, 1);
    append_with_evidence(&mut store, 2);
    let better = Choice { config: Config::new().with("ROWS", 22), ..choice(2) };
    store.append(Choice { evidence: None, state: State::DefaultKept, ..better.clone() }).unwrap();
    store.append(Choice { identity: Identity { kernel: "k0".into(), ..identity() }, ..choice(3) }).unwrap();
    drop(store);
    let which = Prune { superseded: true, keep_kernels: Some(["k1".to_owned()].into()), older_than_ms: None };
    let said = prune(dir.path(), &which, Apply::DryRun).unwrap();
    assert_eq!(list(&open(dir.path())).len(), 4, "a dry run changes nothing");
    let done = prune(dir.path(), &which, Apply::Now).unwrap();
    assert_eq!(done, said);
    // Of the two for rows=2 the one with evidence stands, by the total order.
    assert_eq!((done.choices.len(), done.evidence), (2, 0));
    assert_eq!(rows_in(&open(dir.path())), [1, 2]);
    let old = Prune { older_than_ms: Some(u64::MAX), ..Prune::default() };
    let done = prune(dir.path(), &old, Apply::Now).unwrap();
    assert_eq!((done.choices.len(), done.evidence), (2, 2));
    assert!(list(&open(dir.path())).is_empty());
}

#[test]
fn export_and_import_carry_everything_and_make_priors() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b, file) = (dir.path().join("a"), dir.path().join("b"), dir.path().join("x.jsonl"));
    let mut store = open(&a);
    append_with_evidence(&mut store, 1);
    append_with_evidence(&mut store, 2);
    assert_eq!(export(&store, &file, Contents::ChoicesAndEvidence).unwrap(), 4);
    let mut other = open(&b);
    let added = import(&mut other, &file).unwrap();
    assert_eq!(added, Added { choices: 2, evidence: 2, known: 0, saved: Some(Saved::Disk) });
    assert_eq!(
        import(&mut other, &file).unwrap(),
        Added { known: 4, ..Added::default() },
        "importing twice adds nothing"
    );
    for store in [&other, &open(&b)] {
        assert_eq!(store.lookup(&key(1), &identity()).tier, Tier::Prior { differs: vec!["source".into()] });
        assert_eq!(show(store, &key(1))[0].evidence, Some(evidence(1)));
    }
    // Foreign silicon imports without complaint and says what differs.
    let foreign = Identity { silicon: Silicon::new("Other", [("arch", "x86_64-v4")]).into(), ..identity() };
    let Tier::Prior { differs } = other.lookup(&key(1), &foreign).tier else { panic!("an import is a prior anywhere") };
    assert!(differs.contains(&"silicon.arch".to_owned()), "{differs:?}");
    let mut bad = fs::read(&file).unwrap();
    let last = bad.len() - 9;
    bad[last] ^= 1;
    fs::write(&file, bad).unwrap();
    assert!(import(&mut other, &file).unwrap_err().to_string().contains("digest"));
    assert!(import(&mut other, dir.path()).unwrap_err().to_string().contains("not a file"));
}

#[test]
fn an_empty_save_never_replaces_a_file_that_holds_something() {
    let dir = tempfile::tempdir().unwrap();
    let (file, lockfile) = (dir.path().join("x.jsonl"), dir.path().join("tune.lock"));
    let empty = open(&dir.path().join("none"));
    export(&empty, &file, Contents::Choices).unwrap();
    fs::write(&file, "kept").unwrap();
    assert!(export(&empty, &file, Contents::Choices).unwrap_err().to_string().contains("not empty"));
    assert_eq!(fs::read(&file).unwrap(), b"kept");
    lock([1]).write(&lockfile).unwrap();
    assert!(lock([]).write(&lockfile).is_err());
    assert_eq!(Frozen::read(&lockfile).unwrap(), lock([1]));
    assert_eq!(names(dir.path()), ["tune.lock", "x.jsonl"], "no temporary is left");
}

#[test]
fn merge_is_a_lossless_union_and_diff_names_what_differs() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    fill(&a, [1, 2]);
    fill(&b, [2, 3]);
    let changed = Choice { config: Config::new().with("ROWS", 9), written_ms: 1_800_000_000_000, ..choice(1) };
    open(&b).append(changed.clone()).unwrap();
    let differences = diff(&open(&a), &open(&b));
    let found: Vec<_> = differences.iter().map(|d| (d.key.clone(), d.left.is_some(), d.right.is_some())).collect();
    assert_eq!(found, [(key(1), true, true), (key(3), false, true)]);
    let mut store = open(&a);
    let added = merge(&mut store, &b).unwrap();
    assert_eq!((added.choices, added.known), (2, 1));
    assert_eq!(merge(&mut store, &b).unwrap().choices, 0);
    for store in [&store, &open(&a)] {
        assert_eq!(rows_in(store), [1, 2, 3, 9]);
        assert_eq!(store.lookup(&key(1), &identity()).record, Some(&changed));
    }
    merge(&mut open(&b), &a).unwrap();
    assert_eq!(diff(&open(&a), &open(&b)), [], "union in either order is the same store");
}

#[test]
fn why_tells_the_tier_the_record_and_the_field_that_changed() {
    let mut store = Store::open(Layers::default());
    store.append(choice(1)).unwrap();
    store.append(Choice { identity: Identity { kernel: "k0".into(), ..identity() }, ..choice(1) }).unwrap();
    let legal = |_: &Config| Ok(());
    let told = why(&store, &key(1), &identity(), &legal);
    assert_eq!((told.tier, told.record), (Tier::Exact, Some(choice(1))));
    assert_eq!(told.nearest.unwrap().entry.choice, choice(1));
    let tiers: Vec<_> = told.considered.into_iter().map(|c| c.tier).collect();
    assert_eq!(tiers, [Tier::Exact, Tier::Prior { differs: vec!["kernel".into()] }]);
    let told = why(&store, &key(1), &identity(), &|_| Err("too many rows".into()));
    assert!(matches!(told.tier, Tier::Miss { why: Why::Illegal { .. } }));
    assert!(told.considered.iter().all(|c| c.illegal.as_deref() == Some("too many rows")));
    assert_eq!(told.nearest.unwrap().entry.choice, choice(1));
    assert_eq!(why(&store, &key(2), &identity(), &legal).nearest, None);
}

#[test]
fn every_changed_field_is_named_with_both_values() {
    let fields = [("arch", "x86_64-v3"), ("cores", "4"), ("smt", "1")];
    let here = Identity { silicon: Silicon::new("x", fields).into(), toolchain: "rustc 9".into(), ..identity() };
    let changes = identity().changes(&here);
    let change = |field: &str, stored: Option<&str>, here: Option<&str>| Change {
        field: field.into(),
        stored: stored.map(Into::into),
        here: here.map(Into::into),
    };
    let wanted = [
        change("silicon.cores", Some("2"), Some("4")),
        change("silicon.l2_kib", Some("1024"), None),
        change("silicon.smt", None, Some("1")),
        change("toolchain", Some("rustc 1.95.0 avx2,fma"), Some("rustc 9")),
    ];
    assert_eq!(changes, wanted);
    let names: Vec<_> = wanted.iter().map(|c| c.field.clone()).collect();
    assert_eq!(identity().diff(&here), names);
    assert_eq!(identity().changes(&identity()), []);
}

#[test]
fn verify_counts_what_holds_up() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(dir.path());
    append_with_evidence(&mut store, 1);
    store.append(Choice { evidence: Some("00".into()), ..choice(2) }).unwrap();
    fs::write(choices_dir(dir.path()).join("junk.jsonl"), "junk\n").unwrap();
    let found = verify(&store).unwrap().remove(0);
    assert_eq!((found.shards, found.shards_live, found.choices, found.evidence), (3, 2, 2, 1));
    assert_eq!((found.damaged, found.evidence_missing, found.warnings.len()), (1, 1, 1));
}

#[test]
fn a_lock_is_the_same_text_from_any_order_and_any_change_shows_in_the_digest() {
    assert_eq!(lock([3, 1, 2]).to_text(), lock([1, 2, 3]).to_text());
    assert_ne!(lock([1, 2]).digest(), lock([1, 3]).digest());
    let text = lock([1, 2]).to_text();
    let edited = text.replace("\"ROWS\":2", "\"ROWS\":4");
    assert_ne!(edited, text);
    assert!(Frozen::parse(edited.as_bytes()).unwrap_err().to_string().starts_with("digest"));
}

#[test]
fn modes_decide_without_falling_back_silently() {
    let mut store = Store::open(Layers::default());
    store.append(choice(1)).unwrap();
    let (snapshot, identity, default) = (store.snapshot(), identity(), Config::new().with("ROWS", 0));
    let (k1, k9) = (key(1), key(9));
    let decide = |mode: &Mode, key: &Key, max: i64| {
        let legal = |c: &Config| if c.int("ROWS") <= Some(max) { Ok(()) } else { Err("too many".to_owned()) };
        mode.decide(&snapshot, &Question { key, identity: &identity, default: &default }, &legal)
    };
    assert_eq!(decide(&Mode::Stored, &k1, 99).unwrap(), (choice(1).config, Origin::Stored(Tier::Exact)));
    assert_eq!(decide(&Mode::Stored, &k9, 99).unwrap(), (default.clone(), Origin::Default(Some(Why::NoRecord))));
    assert_eq!(decide(&Mode::Off, &k1, 99).unwrap(), (default.clone(), Origin::Default(None)));
    let replay = Mode::Replay(lock([1]));
    assert_eq!(decide(&replay, &k1, 99).unwrap(), (choice(1).config, Origin::Replayed(vec![])));
    assert!(decide(&replay, &k9, 99).unwrap_err().to_string().contains("not in the lock"));
    assert!(decide(&replay, &k1, 0).unwrap_err().to_string().contains("too many"));
    let pins = Pins::new(&["matvec=ROWS=4".parse().unwrap(), "matvec.variant=avx2".parse().unwrap()]).unwrap();
    let pin = Mode::Pin(pins);
    let pinned = Config::new().with("ROWS", 4).with("variant", "avx2");
    assert_eq!(decide(&pin, &k9, 99).unwrap(), (pinned, Origin::Pinned));
    assert!(
        decide(&pin, &k9, 3).unwrap_err().to_string().contains("the pinned config ROWS=4 variant=avx2 is not legal")
    );
}

#[test]
fn a_pin_is_read_in_one_way_and_lies_over_the_default() {
    let pin = |text: &str| text.parse::<Pin>();
    let values = Config::new().with("ROWS", 4).with("variant", "avx2");
    assert_eq!(pin("matvec=ROWS=4,variant=avx2").unwrap(), Pin { op: "matvec".into(), values: values.clone() });
    assert_eq!(pin("matvec.ROWS=4,variant=avx2").unwrap().values, values);
    assert_eq!(pin("matvec.variant=a=b.c").unwrap().values, Config::new().with("variant", "a=b.c"));
    for bad in ["", "matvec", "=A=1", ".A=1", "matvec=A", "matvec.A", "matvec=A=1,A=2", "matvec=A=1,", "matvec.=1"] {
        let said = pin(bad).unwrap_err();
        assert!(said.next_step().unwrap().contains("OP.NAME=VALUE"), "{bad:?}: {said}");
    }
    let two = [pin("matvec.ROWS=4").unwrap(), pin("norm.ROWS=2").unwrap()];
    let pins = Pins::new(&two).unwrap();
    let default = Config::new().with("ROWS", 1).with("UNROLL", 8);
    assert_eq!(pins.config("matvec", &default), Some(default.clone().with("ROWS", 4)));
    assert_eq!((pins.config("glu", &default), pins.ops().count()), (None, 2));
    let again = [pin("matvec.ROWS=4").unwrap(), pin("matvec=UNROLL=1,ROWS=4").unwrap()];
    assert!(Pins::new(&again).unwrap_err().to_string().contains("matvec.ROWS: it is given twice"));
}
