//! What the tests of the store share: records to store and a directory to store them in.

mod alike;
mod basics;
mod hostile;
mod journal;
mod processes;
mod verbs;

use std::path::{Path, PathBuf};

use super::*;
use crate::config::{Config, Value};

/// An identity of a small machine.
pub(super) fn identity() -> Identity {
    Identity {
        silicon: Silicon::new("Test CPU", [("arch", "x86_64-v3"), ("cores", "2"), ("l2_kib", "1024")]).into(),
        driver: String::new(),
        toolchain: "rustc 1.95.0 avx2,fma".into(),
        kernel: "k1".into(),
        candidates: "c1".into(),
        policy: "cold-1".into(),
    }
}

/// The key of a matvec with `rows` rows.
pub(super) fn key(rows: i64) -> Key {
    Key::new("matvec", [("type", "q4_0".into()), ("rows", rows.into()), ("cols", 576.into())])
}

/// A tuned choice for `key(rows)` whose config names the same number.
pub(super) fn choice(rows: i64) -> Choice {
    Choice {
        key: key(rows),
        identity: identity(),
        config: Config::new().with("ROWS", rows).with("variant", "avx2"),
        source: Source::Tuned,
        state: State::Tuned,
        ratio: Ratio { lo: 1.1, mid: 1.2, hi: 1.3 },
        ns_median: 1234.5,
        written_ms: 1_700_000_000_000,
        evidence: None,
    }
}

/// The store whose user layer is `root`.
pub(super) fn open(root: &Path) -> Store {
    Store::open(Layers { user: Some(root.to_path_buf()), ..Layers::default() })
}

/// Appends the choices for `rows` and seals.
pub(super) fn fill(root: &Path, rows: impl IntoIterator<Item = i64>) {
    let mut store = open(root);
    for r in rows {
        assert_eq!(store.append(choice(r)).unwrap(), Saved::Disk);
    }
}

/// The messages of the warnings so far.
pub(super) fn warnings(store: &mut Store) -> Vec<String> {
    store.take_warnings().iter().map(ToString::to_string).collect()
}

/// Where the choices of `identity()` lie under `root`.
pub(super) fn choices_dir(root: &Path) -> PathBuf {
    root.join(identity().silicon.hash16()).join("choices")
}

/// The ROWS of every choice in the store, sorted.
pub(super) fn rows_in(store: &Store) -> Vec<i64> {
    let mut rows: Vec<i64> = list(store).iter().filter_map(|l| l.entry.choice.config.int("ROWS")).collect();
    rows.sort_unstable();
    rows
}

/// A lock of the choices for `rows`.
pub(super) fn lock(rows: impl IntoIterator<Item = i64>) -> Frozen {
    Frozen::new(rows.into_iter().map(|r| Locked {
        key: key(r),
        config: choice(r).config,
        kernel: identity().kernel,
        silicon: identity().silicon.hash16(),
    }))
}
