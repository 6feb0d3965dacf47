//! Buckets, common sets of several processes, and the algebra of merging.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::scripted::Rng;
use crate::store::snapshot::rank;

fn shaped(batch: u64, context: u64) -> Key {
    Key::new("attend", [("batch", (batch as i64).into()), ("context", (context as i64).into()), ("type", "f16".into())])
}

/// A tuned choice for a shape, whose config says for which.
fn for_shape(batch: u64, context: u64) -> Choice {
    let config = Config::new().with("ROWS", (batch * 1_000_000 + context) as i64);
    Choice { key: shaped(batch, context), config, ..choice(1) }
}

#[test]
fn buckets_have_explicit_edges_and_nothing_is_shared_beyond_them() {
    let bucket = |b, c| shaped(b, c).bucket();
    assert_eq!(bucket(1, 1), Some(shaped(1, 1)), "one token is a bucket alone");
    assert_ne!(bucket(1, 300), bucket(2, 300));
    assert_eq!(bucket(129, 300), Some(shaped(256, 512)));
    assert_eq!(bucket(129, 300), bucket(256, 512));
    assert_ne!(bucket(128, 512), bucket(129, 512));
    assert_eq!(bucket(4096, 1 << 20), Some(shaped(4096, 1 << 20)));
    assert_eq!((bucket(4097, 512), bucket(1, (1 << 20) + 1), bucket(0, 5)), (None, None, None));
    assert_eq!(Key::parse("m", "cols=3,rows=4").unwrap().bucket(), None, "no such dimension");
    assert_eq!(Key::parse("m", "batch=x,cols=3").unwrap().bucket(), None, "no number");
    assert_eq!(Key::parse("m", "batch=3,cols=3").unwrap().bucket(), Some(Key::parse("m", "batch=4,cols=3").unwrap()));
}

#[test]
fn a_neighbour_serves_inside_its_bucket_and_the_default_outside() {
    let mut store = Store::open(Layers::default());
    for (batch, context) in [(8, 512), (8, 300), (256, 4096), (3, 400)] {
        store.append(for_shape(batch, context)).unwrap();
    }
    let snapshot = store.snapshot();
    let near =
        |b, c| snapshot.nearby(&shaped(b, c), &identity(), &|_| Ok(())).map(|found| found.config.int("ROWS").unwrap());
    assert_eq!(near(8, 290), Some(8_000_300), "the nearest that is no smaller");
    assert_eq!(near(8, 310), Some(8_000_512), "one that is made for less comes last");
    assert_eq!(near(4, 500), Some(3_000_400));
    assert_eq!((near(1, 512), near(2048, 4096), near(256, 9000), near(5000, 512)), (None, None, None, None));
    let decide = |b, c| {
        let key = shaped(b, c);
        let default = Config::new().with("ROWS", 0);
        Mode::Stored
            .decide(&snapshot, &Question { key: &key, identity: &identity(), default: &default }, &|_| Ok(()))
            .unwrap()
    };
    assert_eq!(decide(8, 512).1, Origin::Stored(Tier::Exact), "its own record comes first");
    assert_eq!(decide(7, 512), (for_shape(8, 512).config, Origin::Nearby(shaped(8, 512))));
    assert_eq!(decide(2048, 4096).1, Origin::Default(Some(Why::NoRecord)), "outside of what was tuned");
}

#[test]
fn a_neighbour_must_be_of_this_machine_and_build_and_legal() {
    let mut store = Store::open(Layers::default());
    let near = |store: &Store, identity: &Identity, legal: &dyn Fn(&Config) -> Result<(), String>| {
        store.snapshot().nearby(&shaped(7, 300), identity, legal).map(|c| c.key.clone())
    };
    let here = |change: &dyn Fn(&mut Identity)| {
        let mut id = identity();
        change(&mut id);
        id
    };
    store.append(for_shape(8, 512)).unwrap();
    let anything = |_: &Config| Ok(());
    assert_eq!(
        near(&store, &here(&|i| i.candidates = "those of my own shape".into()), &anything),
        Some(shaped(8, 512))
    );
    assert_eq!(near(&store, &here(&|i| i.kernel = "k2".into()), &anything), None);
    assert_eq!(near(&store, &here(&|i| i.silicon = Silicon::new("x", [("cores", 9)]).into()), &anything), None);
    assert_eq!(near(&store, &identity(), &|_| Err("too wide".into())), None);
    store.append(Choice { source: Source::Imported, ..for_shape(7, 301) }).unwrap();
    assert_eq!(near(&store, &identity(), &anything), Some(shaped(8, 512)), "an import is no neighbour");
}

/// Whatever shapes come, at most one of each bucket is ever tuned.
#[test]
fn ten_thousand_random_shapes_are_at_most_as_many_tunes_as_buckets() {
    let (mut store, mut rng) = (Store::open(Layers::default()), Rng::new(5));
    let (mut buckets, mut tunes) = (BTreeSet::new(), 0);
    for _ in 0..10_000 {
        let (batch, context) = (1 + rng.below(4096) as u64, 1 + rng.below(1 << 20) as u64);
        let key = shaped(batch, context);
        buckets.insert(key.bucket().unwrap());
        let snapshot = store.snapshot();
        let known = snapshot.lookup(&key, &identity()).tier == Tier::Exact
            || snapshot.nearby(&key, &identity(), &|_| Ok(())).is_some();
        drop(snapshot);
        if !known {
            tunes += 1;
            store.append(for_shape(batch, context)).unwrap();
        }
    }
    assert!(tunes <= buckets.len() && buckets.len() <= 13 * 21, "{tunes} tunes, {} buckets", buckets.len());
    assert!(tunes > 50, "{tunes}: the shapes were not spread");
}

#[test]
fn what_differs_between_two_sets_is_named() {
    let (a, mut other) = (lock([1, 2, 3]), lock([1, 2]));
    assert_eq!(a.unlike(&a), []);
    let said: Vec<String> = a.unlike(&other).iter().map(ToString::to_string).collect();
    assert_eq!(said, ["matvec cols=576,rows=3,type=q4_0: ROWS=3 variant=avx2 and nothing"]);
    other = other.with([Locked { config: Config::new().with("ROWS", 9), ..a.get(&key(2)).unwrap().clone() }]);
    assert!(other.unlike(&a)[0].to_string().ends_with("rows=2,type=q4_0: ROWS=9 and ROWS=2 variant=avx2"));
    let kernel = a.with([Locked { kernel: "k2".into(), ..a.get(&key(1)).unwrap().clone() }]);
    assert!(a.unlike(&kernel)[0].to_string().ends_with(": kernel k1 and k2"));
    assert_eq!(a.digest() == kernel.digest(), a.unlike(&kernel).is_empty());
}

#[test]
fn all_come_to_the_same_set_in_any_order_and_what_differs_falls_to_the_default() {
    let sets = [lock([1, 2, 3]), lock([1, 2]), lock([1, 2, 3])];
    let changed = |set: &Frozen| {
        set.with([Locked { config: Config::new().with("ROWS", 7), ..set.get(&key(2)).unwrap().clone() }])
    };
    let sets = [sets[0].clone(), changed(&sets[1]), sets[2].clone()];
    let defaults = Frozen::new(
        [1, 2, 3].map(|r| Locked { config: Config::new().with("ROWS", 0), ..lock([r]).get(&key(r)).unwrap().clone() }),
    );
    let first = agree(&sets, &defaults);
    assert_eq!(first.unlike, [key(2), key(3)]);
    let rows = |r| first.set.get(&key(r)).unwrap().config.int("ROWS");
    assert_eq!([rows(1), rows(2), rows(3)], [Some(1), Some(0), Some(0)]);
    for order in [[0, 2, 1], [1, 0, 2], [2, 1, 0]] {
        assert_eq!(agree(&order.map(|i: usize| sets[i].clone()), &defaults), first);
    }
    assert_eq!(agree(&[sets[0].clone(), sets[0].clone()], &defaults).set, sets[0], "nothing falls where all agree");
}

#[test]
fn the_first_to_settle_decides_for_all() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tune.lock");
    assert_eq!(lock([1]).settle(&path).unwrap(), lock([1]));
    assert_eq!(lock([1, 2]).settle(&path).unwrap(), lock([1]));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "no temporary is left");
    std::fs::write(&path, "cut").unwrap();
    assert!(lock([1]).settle(&path).unwrap_err().to_string().contains("tune.lock: lock header"));
    let nowhere = lock([1]).settle(&dir.path().join("nowhere/tune.lock")).unwrap_err().to_string();
    assert!(nowhere.contains("nowhere/tune.lock: "), "{nowhere}");
}

/// A choice out of few keys, identities, sources, states and times, so that ties of every kind come up.
fn close_choice() -> impl Strategy<Value = Choice> {
    (0..3i64, 0..2usize, 0..3usize, 0..4usize, 0..2u64, any::<bool>(), 0..3i64).prop_map(
        |(k, kernel, source, state, ms, evidence, rows)| Choice {
            key: key(k),
            identity: Identity { kernel: ["k1", "k2"][kernel].into(), ..identity() },
            config: Config::new().with("ROWS", rows),
            source: [Source::Tuned, Source::Imported, Source::Builtin][source],
            state: [State::Tuned, State::DefaultKept, State::Undecided, State::NoEndToEndEffect][state],
            written_ms: ms,
            evidence: evidence.then(|| "e".to_owned()),
            ..choice(1)
        },
    )
}

fn stored(root: &Path, choices: &[Choice]) -> BTreeSet<String> {
    let mut store = open(root);
    store.append_batch(choices.to_vec()).unwrap();
    contents(&store)
}

/// Names of all records, and what each key resolves to.
fn contents(store: &Store) -> BTreeSet<String> {
    let records = list(store).into_iter().map(|l| format!("{:032x}", l.entry.sum));
    let winner = |k: i64| format!("{k}: {:?}", store.lookup(&key(k), &identity()).record);
    records.chain((0..3).map(winner)).collect()
}

fn merged(into: &[Choice], from: &[&[Choice]]) -> BTreeSet<String> {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("into");
    stored(&root, into);
    for (i, choices) in from.iter().enumerate() {
        let other = dir.path().join(i.to_string());
        stored(&other, choices);
        merge(&mut open(&root), &other).unwrap();
    }
    contents(&open(&root))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    /// Stores as they lie on the disk: the union loses nothing, in whatever order and however often it is made.
    #[test]
    fn merging_is_commutative_associative_and_idempotent(
        a in proptest::collection::vec(close_choice(), 0..5),
        b in proptest::collection::vec(close_choice(), 0..5),
        c in proptest::collection::vec(close_choice(), 0..5),
    ) {
        let all = merged(&a, &[&b, &c]);
        prop_assert_eq!(&merged(&c, &[&a, &b]), &all);
        let b_and_c = [&b[..], &c].concat();
        prop_assert_eq!(&merged(&a, &[&b_and_c]), &all);
        prop_assert_eq!(&merged(&a, &[&b, &c, &a, &c]), &all);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any two records of a key have an order, equal only for one record in one layer: there is one winner for all.
    #[test]
    fn records_of_a_key_have_a_total_order(mut all in proptest::collection::vec((close_choice(), 0..4usize), 2..6)) {
        let layers = [Layer::Builtin, Layer::System, Layer::User, Layer::Memory];
        let build = |all: &[(Choice, usize)]| {
            let mut snapshot = Snapshot::default();
            for (choice, layer) in all {
                let (_, sum) = crate::store::frame::encode(Kind::Choice, choice).unwrap();
                snapshot.insert(layers[*layer], sum, choice.clone());
            }
            snapshot
        };
        let here = identity();
        let forward = build(&all);
        all.reverse();
        let backward = build(&all);
        for k in 0..3 {
            let (one, other) = (forward.ranked(&key(k), &here), backward.ranked(&key(k), &here));
            prop_assert_eq!(&one, &other);
            for pair in one.windows(2) {
                prop_assert!(rank(pair[0], &here) > rank(pair[1], &here));
            }
        }
    }
}

/// A machine whose driver could not be asked for stores under an empty version; what is tuned later stands beside it.
#[test]
fn an_unknown_driver_does_not_stand_in_the_way_of_a_known_one() {
    let mut store = Store::open(Layers::default());
    store.append(choice(1)).unwrap();
    let known = Identity { driver: "550".into(), ..identity() };
    assert_eq!(store.lookup(&key(1), &known).tier, Tier::Prior { differs: vec!["driver".into()] });
    let again = Choice { identity: known.clone(), config: Config::new().with("ROWS", 5), ..choice(1) };
    store.append(again.clone()).unwrap();
    assert_eq!(store.lookup(&key(1), &known).record, Some(&again));
    assert_eq!(
        (store.lookup(&key(1), &known).tier, store.lookup(&key(1), &identity()).tier),
        (Tier::Exact, Tier::Exact)
    );
}

#[test]
fn two_devices_of_one_process_each_get_their_own_choice() {
    let mut store = Store::open(Layers::default());
    let of = |cores: u32| Identity { silicon: Silicon::new("Twin", [("cores", cores)]).into(), ..identity() };
    for cores in [16, 128] {
        let config = Config::new().with("ROWS", i64::from(cores));
        store.append(Choice { identity: of(cores), config, ..choice(1) }).unwrap();
    }
    let rows = |cores| store.lookup(&key(1), &of(cores)).record.and_then(|c| c.config.int("ROWS"));
    assert_eq!((rows(16), rows(128), rows(64)), (Some(16), Some(128), None));
}

/// Candidates in another order, or more of them: the record names its values, so it means the same or nothing.
#[test]
fn a_record_names_values_and_not_their_places() {
    let space = |values: &[&str]| crate::Space {
        params: vec![crate::Param {
            name: "variant",
            trades: "x",
            values: values.iter().map(|v| (*v).into()).collect(),
        }],
        constraints: Vec::new(),
        default: Config::new().with("variant", values[0]),
    };
    let (old, new) = (space(&["naive", "tiled", "wide"]), space(&["naive", "wide", "huge", "tiled"]));
    let of = |s: &crate::Space| Identity { candidates: s.digest(), ..identity() };
    let mut store = Store::open(Layers::default());
    let tiled = Config::new().with("variant", "tiled");
    store.append(Choice { identity: of(&old), config: tiled.clone(), ..choice(1) }).unwrap();
    let legal = |s: &crate::Space, c: &Config| s.violated(c).map_or(Ok(()), Err);
    assert_eq!(store.lookup_legal(&key(1), &of(&old), &|c| legal(&old, c)).tier, Tier::Exact);
    let found = store.lookup_legal(&key(1), &of(&new), &|c| legal(&new, c));
    assert_eq!(
        (found.tier, found.record.map(|c| &c.config)),
        (Tier::Prior { differs: vec!["candidates".into()] }, Some(&tiled))
    );
    let gone = space(&["naive", "wide"]);
    let found = store.lookup_legal(&key(1), &of(&gone), &|c| legal(&gone, c));
    assert!(matches!(found.tier, Tier::Miss { why: Why::Illegal { config, .. } } if config == tiled));
}

#[test]
fn the_system_layer_is_read_and_never_written() {
    let dir = tempfile::tempdir().unwrap();
    let (system, user) = (dir.path().join("system"), dir.path().join("user"));
    fill(&system, [1]);
    let files = |root: &Path| {
        std::fs::read_dir(choices_dir(root))
            .unwrap()
            .map(|e| std::fs::read(e.unwrap().path()).unwrap())
            .collect::<Vec<_>>()
    };
    let before = files(&system);
    let layers = Layers { system: Some(system.clone()), user: Some(user.clone()), ..Layers::default() };
    let mut store = Store::open(layers);
    assert_eq!(store.lookup(&key(1), &identity()).tier, Tier::Exact);
    assert_eq!(store.append(Choice { config: Config::new().with("ROWS", 8), ..choice(1) }).unwrap(), Saved::Disk);
    store.append(choice(2)).unwrap();
    assert_eq!(
        store.lookup(&key(1), &identity()).record.unwrap().config.int("ROWS"),
        Some(8),
        "the user's own comes first"
    );
    drop(store);
    assert_eq!(files(&system), before);
    assert_eq!(rows_in(&open(&user)), [2, 8]);
}
