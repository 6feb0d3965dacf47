//! Real processes that append at once, some killed at a random moment, beside a reader and a compaction.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

use super::*;

const ROOT: &str = "PLANISH_TEST_STORE_ROOT";
const FIRST: &str = "PLANISH_TEST_STORE_FIRST";
const COUNT: &str = "PLANISH_TEST_STORE_COUNT";

/// Not a test by itself: what a child process of the tests below runs.
#[test]
fn child_appends() {
    let (Ok(root), Ok(first), Ok(count)) = (std::env::var(ROOT), std::env::var(FIRST), std::env::var(COUNT)) else {
        return;
    };
    let (first, count): (i64, i64) = (first.parse().unwrap(), count.parse().unwrap());
    let mut store = Store::open(Layers { user: Some(root.into()), ..Layers::default() });
    println!();
    for rows in first..first + count {
        assert_eq!(store.append(choice(rows)).unwrap(), Saved::Disk);
        println!("ack {rows}");
    }
}

fn spawn(root: &Path, first: i64, count: i64) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "store::tests::processes::child_appends", "--nocapture", "--test-threads=1"])
        .env(ROOT, root)
        .env(FIRST, first.to_string())
        .env(COUNT, count.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// The rows a child acknowledged before it ended.
fn acknowledged(child: &mut Child) -> Vec<i64> {
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    lines.map_while(Result::ok).filter_map(|l| l.strip_prefix("ack ")?.parse().ok()).collect()
}

#[test]
fn writers_that_are_killed_lose_nothing_that_was_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("store");
    let mut survivors: Vec<Child> = (0..3).map(|i| spawn(&root, i * 100_000, 40)).collect();
    let mut victims: Vec<Child> = (3..7).map(|i| spawn(&root, i * 100_000, 90_000)).collect();
    let (first, writing) = channel();
    let readers: Vec<_> = victims
        .iter_mut()
        .map(|v| (v.stdout.take().unwrap(), first.clone()))
        .map(|(out, first)| {
            std::thread::spawn(move || {
                let lines = BufReader::new(out).lines().map_while(Result::ok);
                let rows = lines.filter_map(|l| l.strip_prefix("ack ")?.parse::<i64>().ok());
                let told = |rows: &i64| {
                    if rows % 100_000 == 0 {
                        first.send(()).unwrap();
                    }
                };
                rows.inspect(told).collect::<Vec<_>>()
            })
        })
        .collect();
    // Only once all of them are writing does a kill prove anything.
    for _ in &readers {
        writing.recv_timeout(Duration::from_secs(120)).expect("a victim never wrote");
    }
    for (i, victim) in victims.iter_mut().enumerate() {
        let mut store = open(&root);
        for listed in list(&store) {
            let rows = listed.entry.choice.config.int("ROWS").unwrap();
            assert_eq!(listed.entry.choice, choice(rows), "a reader beside writers sees only whole records");
        }
        assert!(warnings(&mut store).len() <= i, "only a killed writer may leave a torn line");
        std::thread::sleep(Duration::from_millis(7 + 13 * i as u64));
        victim.kill().unwrap();
        victim.wait().unwrap();
        compact(&root).unwrap();
    }
    let mut acked: BTreeSet<i64> = readers.into_iter().flat_map(|r| r.join().unwrap()).collect();
    assert!(!acked.is_empty(), "the victims were killed before they wrote");
    for child in &mut survivors {
        let rows = acknowledged(child);
        assert_eq!(rows.len(), 40);
        assert!(child.wait().unwrap().success());
        acked.extend(rows);
    }
    let check = |what: &str| {
        let held: BTreeSet<i64> = rows_in(&open(&root)).into_iter().collect();
        let lost: Vec<_> = acked.difference(&held).collect();
        assert!(lost.is_empty(), "{what}: {} of {} acknowledged records are gone: {lost:?}", lost.len(), acked.len());
    };
    check("after the writers");
    let done = compact(&root).unwrap();
    assert_eq!(done.shards_skipped, 0, "every writer is done or dead");
    check("after compaction");
}
