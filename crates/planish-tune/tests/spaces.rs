//! The search on recorded spaces: what it tries of them, and what it loses by not trying the rest.

use std::path::{Path, PathBuf};
use std::time::Duration;

use planish_tune::recorded::Found;
use planish_tune::{Policy, Recorded, Rejection, Simulated, Total, simulate};

/// Replays of each space.
const SEEDS: u64 = 20;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/spaces")
}

fn spaces() -> Vec<Recorded> {
    let entries = std::fs::read_dir(folder()).expect("the folder is there");
    let mut files: Vec<PathBuf> = entries.map(|e| e.expect("it can be listed").path()).collect();
    files.sort();
    files.iter().map(|path| Recorded::read(path).unwrap_or_else(|e| panic!("{e}"))).collect()
}

fn replayed(spaces: &[Recorded]) -> Vec<Simulated> {
    let replay = |s: &Recorded| simulate(s, &Policy::default(), SEEDS, Duration::from_secs(60));
    spaces.iter().map(|s| replay(s).expect("the default has times")).collect()
}

/// Every committed space is whole: all combinations, with times or a reason, and reads back byte for byte.
#[test]
fn recorded_spaces_are_whole() {
    let spaces = spaces();
    assert!(spaces.len() >= 4, "{} spaces", spaces.len());
    for space in &spaces {
        let key = &space.about().key;
        assert_eq!(space.missing(), 0, "{key}");
        let few = space.timed().filter(|(_, ns)| ns.iter().any(|samples| samples.len() < 5)).count();
        assert_eq!(few, 0, "{key}: configurations with fewer than five times");
        let accident = |f: &Found| matches!(f, Found::Refused(Rejection::Crashed(_) | Rejection::Timeout(_)));
        assert!(!space.rows().iter().any(|(_, f)| accident(f)), "{key}");
    }
    for entry in std::fs::read_dir(folder()).expect("the folder is there") {
        let text = std::fs::read_to_string(entry.expect("it can be listed").path()).expect("text");
        assert_eq!(Recorded::parse(&text).expect("whole").to_text(), text);
    }
}

/// Under a tenth of the configurations of exhaustive searches, and by share of a token under a hundredth slower than what
/// those pick through the same gate; a space on which the mean loss is within the margin is a tie and counts as none.
///
/// The spaces are of one processor under load, each the quietest recording of its kernel (middle half of a
/// configuration's times within 10%).
#[test]
fn a_tenth_of_the_evaluations_loses_less_than_a_hundredth() {
    let done = replayed(&spaces());
    let total = Total::of(&done);
    let told: Vec<String> = done
        .iter()
        .map(|s| format!("{}: {:.1} of {}, regret {:.4}", s.about.key, s.spent.configs, s.legal, s.regret))
        .collect();
    let told = told.join("\n");
    assert!(total.configs_share < 0.10, "{:.3} of the configurations\n{told}", total.configs_share);
    assert!(total.regret_beyond_margin < 0.01, "regret {:.4}\n{told}", total.regret_beyond_margin);
}
