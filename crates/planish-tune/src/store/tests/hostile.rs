//! Damage of every kind: the touched records are lost, their neighbours are not, and nothing panics or grows.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufReader, Read};

use super::*;
use crate::scripted::Rng;
use crate::store::{frame, record, shard, transfer};

/// The text of a sealed shard with the choices for `rows`.
fn shard_text(rows: impl IntoIterator<Item = i64>) -> Vec<u8> {
    rows.into_iter().flat_map(|r| frame::encode(Kind::Choice, &choice(r)).unwrap().0).collect()
}

/// Opens a store whose only shard holds `text`; the rows read and the warnings.
fn read_back(root: &Path, text: &[u8]) -> (Vec<i64>, Vec<String>) {
    let dir = choices_dir(root);
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("a.jsonl"), text).unwrap();
    let mut store = open(root);
    (rows_in(&store), warnings(&mut store))
}

/// Reads the text of a shard without a file: the rows read, and the number of warnings it makes.
fn read_text(mut text: &[u8]) -> (Vec<i64>, usize) {
    let mut rows = Vec::new();
    let report = shard::read_lines(&mut text, Kind::Choice, &|| false, &mut |framed, _| {
        let choice: Choice = frame::parse(framed)?;
        choice.check().map_err(|e| frame::Fault::Damaged(e.to_string()))?;
        rows.push(choice.config.int("ROWS").unwrap());
        Ok(())
    });
    (rows, usize::from(report.warning(Path::new("a.jsonl")).is_some()))
}

#[test]
fn a_shard_cut_at_any_byte_loses_only_what_was_cut() {
    let dir = tempfile::tempdir().unwrap();
    let text = shard_text(0..3);
    let ends: Vec<usize> = (0..text.len()).filter(|i| text[*i] == b'\n').collect();
    for cut in 0..=text.len() {
        let whole = ends.iter().filter(|e| **e <= cut).count() as i64;
        let torn = cut > 0 && !ends.contains(&cut) && text[cut - 1] != b'\n';
        let expected = ((0..whole).collect::<Vec<_>>(), usize::from(torn));
        assert_eq!(read_text(&text[..cut]), expected, "cut at {cut}");
        if cut % 41 == 0 {
            let (rows, said) = read_back(dir.path(), &text[..cut]);
            assert_eq!((rows, said.len()), expected, "cut at {cut}, as a file: {said:?}");
        }
    }
}

#[test]
fn a_flipped_bit_loses_only_the_lines_it_touches() {
    let dir = tempfile::tempdir().unwrap();
    let text = shard_text(0..8);
    let mut rng = Rng::new(7);
    for round in 0..5000 {
        let (byte, bit) = (rng.below(text.len()), rng.below(8));
        let line = text[..byte].iter().filter(|b| **b == b'\n').count() as i64;
        let touched = if text[byte] == b'\n' { vec![line, line + 1] } else { vec![line] };
        let mut bad = text.clone();
        bad[byte] ^= 1 << bit;
        let expected = ((0..8).filter(|r| !touched.contains(r)).collect::<Vec<i64>>(), 1);
        assert_eq!(read_text(&bad), expected, "byte {byte} bit {bit}");
        if round % 100 == 0 {
            let (rows, said) = read_back(dir.path(), &bad);
            assert_eq!((rows, said.len()), expected, "byte {byte} bit {bit}, as a file: {said:?}");
            assert!(said[0].contains("a.jsonl"), "{}", said[0]);
        }
    }
}

#[test]
fn junk_shards_are_one_warning_each() {
    for junk in [&b"\xff\xfe\x00"[..], b"{}", b"[[[[[[[[[[", b"\n\n\n", &[b'['; 100_000], &[0; 70_000]] {
        let dir = tempfile::tempdir().unwrap();
        let mut text = junk.to_vec();
        text.push(b'\n');
        text.extend(shard_text([5]));
        let (rows, said) = read_back(dir.path(), &text);
        assert_eq!((rows, said.len()), (vec![5], 1));
    }
    // Directories and records of other silicon in place of shards.
    let dir = tempfile::tempdir().unwrap();
    fill(dir.path(), [1]);
    fs::create_dir(choices_dir(dir.path()).join("b.jsonl")).unwrap();
    let elsewhere = dir.path().join("0123456789abcdef/choices");
    fs::create_dir_all(&elsewhere).unwrap();
    fs::write(elsewhere.join("c.jsonl"), shard_text([2])).unwrap();
    let mut store = open(dir.path());
    assert_eq!(rows_in(&store), [1]);
    let said = warnings(&mut store);
    assert!(said.len() == 2 && said.iter().any(|w| w.contains("silicon: the record is not of")), "{said:?}");
}

#[test]
fn a_line_of_another_layout_version_is_left_alone_by_compaction() {
    let dir = tempfile::tempdir().unwrap();
    let newer = String::from_utf8(shard_text([1])).unwrap().replace("\"planish\":1", "\"planish\":2");
    let (rows, said) = read_back(dir.path(), newer.as_bytes());
    assert!(rows.is_empty() && said[0].contains("layout version 2"), "{said:?}");
    fill(dir.path(), [2]);
    fill(dir.path(), [3]);
    let done = compact(dir.path()).unwrap();
    assert_eq!((done.shards_merged, done.shards_skipped), (2, 1));
    assert_eq!(fs::read(choices_dir(dir.path()).join("a.jsonl")).unwrap(), newer.as_bytes());
}

#[test]
fn an_endless_line_is_not_held() {
    let mut reader = BufReader::new(std::io::repeat(b'x').take(200 << 20).chain(&b"\nshort"[..]));
    let mut seen = Vec::new();
    frame::for_each_line(&mut reader, 1 << 10, |l| seen.push((l.number, l.bytes.map(<[u8]>::len), l.ended))).unwrap();
    assert_eq!(seen, [(1, None, true), (2, Some(5), false)]);
}

/// One random edit: flip, cut, delete, double, insert, or a hostile number in place of a digit run.
fn mutate(text: &[u8], rng: &mut Rng) -> Vec<u8> {
    let mut out = text.to_vec();
    for _ in 0..=rng.below(3) {
        let at = rng.below(out.len());
        let end = (at + 1 + rng.below(40)).min(out.len());
        match rng.below(7) {
            0 if !out.is_empty() => out[at] ^= 1 << rng.below(8),
            1 => out.truncate(at),
            2 => _ = out.drain(at..end),
            3 => {
                let part = out[at..end].to_vec();
                out.splice(at..at, part);
            }
            4 => out.insert(at, rng.bits() as u8),
            5 => _ = out.splice(at..end, *b"[[[[[[[[[[{\"a\":"),
            _ => {
                let digit = (at..out.len()).find(|i| out[*i].is_ascii_digit()).unwrap_or(at);
                let numbers: [&[u8]; 5] = [b"18446744073709551616", b"-1", b"1e999", b"null", b"\"\""];
                out.splice(digit..(digit + 1).min(out.len()), numbers[rng.below(5)].iter().copied());
            }
        }
    }
    out
}

/// A record line around a mutated body, its checksum made to hold, so that the parser behind it is reached.
fn reframe(body: &[u8]) -> Vec<u8> {
    let sum = record::sum128(&[b"choice", body]);
    let mut line = format!("{{\"planish\":1,\"kind\":\"choice\",\"sum\":\"{sum:032x}\",\"rec\":").into_bytes();
    line.extend_from_slice(body);
    line.extend_from_slice(b"}\n");
    line
}

/// A file of `body` under a header whose digest holds.
fn under_header(name: &str, count: &str, body: &[u8]) -> Vec<u8> {
    let digest = transfer::sha256_hex(body);
    let mut text = format!("{{\"{name}\":1,\"{count}\":3,\"digest\":\"{digest}\"}}\n").into_bytes();
    text.extend_from_slice(body);
    text
}

/// Whether a refusal names the part of the file that is wrong.
#[track_caller]
fn check_named(error: &Error, seed: u64) {
    let said = error.to_string();
    let named = said.contains(": ") && said.len() < 600;
    assert!(named, "seed {seed}: {said:?} names nothing");
}

#[test]
fn twenty_thousand_mutations_of_shards_cost_only_records() {
    let (text, legal) = (shard_text(0..3), (0..3).collect::<BTreeSet<i64>>());
    let body = serde_json::to_vec(&choice(1)).unwrap();
    for seed in 0..6000 {
        let mut rng = Rng::new(seed);
        let (rows, _) = read_text(&mutate(&text, &mut rng));
        assert!(rows.iter().all(|r| legal.contains(r)), "seed {seed}: {rows:?} were never written");
    }
    for seed in 0..14_000 {
        let line = reframe(&mutate(&body, &mut Rng::new(seed)));
        // A body that is no UTF-8 or holds a newline is refused by the frame; the others reach the parser.
        let read = frame::decode(&line[..line.len() - 1]).and_then(|f| frame::parse::<Choice>(&f));
        match read {
            Ok(c) if c.check().is_ok() => _ = frame::encode(Kind::Choice, &c).unwrap(),
            Ok(c) => check_named(&c.check().unwrap_err(), seed),
            Err(fault) => {
                let said = fault.to_string();
                assert!(said.len() < 400 && !said.is_empty(), "seed {seed}: {said}");
            }
        }
    }
}

#[test]
fn twenty_thousand_mutations_of_exports_and_locks_are_refused_by_name_or_read() {
    let (lines, locked) = (shard_text(0..3), lock(0..3).to_text());
    let export = under_header("planish_export", "records", &lines);
    let body = locked.split_once('\n').unwrap().1.as_bytes();
    assert_eq!(parse_export(&export).unwrap().choices.len(), 3);
    assert_eq!(Frozen::parse(locked.as_bytes()).unwrap(), lock(0..3));
    for seed in 0..6000 {
        let mut rng = Rng::new(seed);
        let exports = [mutate(&export, &mut rng), under_header("planish_export", "records", &mutate(&lines, &mut rng))];
        for text in exports {
            match parse_export(&text) {
                Ok(read) => assert!(read.choices.iter().all(|c| c.check().is_ok()), "seed {seed}"),
                Err(e) => check_named(&e, seed),
            }
        }
        let locks =
            [mutate(locked.as_bytes(), &mut rng), under_header("planish_lock", "choices", &mutate(body, &mut rng))];
        for text in locks {
            match Frozen::parse(&text) {
                Ok(read) => assert_eq!(Frozen::parse(read.to_text().as_bytes()).unwrap(), read, "seed {seed}"),
                Err(e) => check_named(&e, seed),
            }
        }
    }
}

#[test]
fn a_refusal_names_the_field() {
    let line = |from: &str, to: &str| {
        let body = serde_json::to_string(&choice(1)).unwrap();
        assert!(body.contains(from), "{body}");
        let line = reframe(body.replace(from, to).as_bytes());
        let read = frame::decode(&line[..line.len() - 1]).and_then(|f| frame::parse::<Choice>(&f));
        read.map(|c| c.check().unwrap_err().to_string()).unwrap_or_else(|e| e.to_string())
    };
    for (from, to, field) in [
        ("\"ns_median\":1234.5", "\"ns_median\":\"x\"", "ns_median"),
        ("\"ns_median\":1234.5", "\"ns_median\":-1", "ns_median"),
        ("\"state\":\"tuned\"", "\"state\":\"best\"", "state"),
        ("\"lo\":1.1", "\"lo\":null", "lo"),
        ("\"kernel\":\"k1\",", "", "kernel"),
        ("rows=1", "rows", "shape"),
    ] {
        let said = line(from, to);
        assert!(said.contains(field), "{from} -> {to}: {said}");
    }
}
