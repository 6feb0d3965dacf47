//! Figures that documents quote are those of the data that lies beside the lab notes.
//!
//! A folder of data, `docs/lab/NNNN`, has a list `figures.tsv` of what is quoted from it: the document, the figure as it
//! stands there, the file in the folder, where in it, and by what the value there is divided.
//! A table of which most decimals are listed is one of the data, and has no others: what is not listed there is a mistake.
//! A place is a JSON pointer; lines of a `.jsonl` file are a list. A `.md` file has no places: the figure stands in it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

const NAMES: &str = "document\tfigure\tfile\tplace\tdivisor";

/// What is wrong with the lists below `root`.
pub fn complaints(root: &Path) -> Vec<String> {
    let lab = root.join("docs/lab");
    let mut folders: Vec<_> = fs::read_dir(&lab).unwrap().map(|e| e.unwrap().path()).filter(|p| p.is_dir()).collect();
    folders.sort();
    let listed = folders.iter().flat_map(|folder| in_folder(root, folder));
    listed.chain(in_tables(root, &folders)).collect()
}

/// Decimals in tables of the data that no list has.
fn in_tables(root: &Path, folders: &[PathBuf]) -> Vec<String> {
    let mut figures: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for list in folders.iter().filter_map(|folder| fs::read_to_string(folder.join("figures.tsv")).ok()) {
        for cells in list.lines().skip(1).map(|line| line.split('\t').collect::<Vec<_>>()) {
            if let [document, figure, ..] = cells[..] {
                figures.entry(document.to_owned()).or_default().extend(decimals(figure));
            }
        }
    }
    let mut complaints = Vec::new();
    for (document, listed) in &figures {
        let text = fs::read_to_string(root.join(document)).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        for table in lines.chunk_by(|a, b| a.starts_with('|') == b.starts_with('|')).filter(|t| t[0].starts_with('|')) {
            let all: Vec<String> = table.iter().flat_map(|line| decimals(line)).collect();
            let (_, others): (Vec<_>, Vec<_>) = all.iter().partition(|d| listed.contains(*d));
            if 2 * others.len() < all.len() {
                complaints
                    .extend(others.iter().map(|d| format!("{document}: {d} in a table of the data is not listed")));
            }
        }
    }
    complaints
}

/// Numbers with decimals in `line` that are no part of a name, as that of `0.5B` and `qwen2.5-0.5b` is.
fn decimals(line: &str) -> Vec<String> {
    let of_number = |c: char| c.is_ascii_digit() || c == '.' || c == ',';
    let words = line.split(|c: char| !(c.is_alphanumeric() || of_number(c) || c == '-' || c == '_'));
    let numbers = words.map(|w| w.trim_end_matches([',', '.'])).filter(|w| w.chars().all(of_number));
    numbers.filter(|w| w.contains('.') && !w.starts_with('.')).map(str::to_owned).collect()
}

fn in_folder(root: &Path, folder: &Path) -> Vec<String> {
    let list = folder.join("figures.tsv");
    let at = |line: usize, what: String| format!("{}:{line}: {what}", list.strip_prefix(root).unwrap().display());
    let Ok(text) = fs::read_to_string(&list) else {
        return vec![at(1, "data without a list of quoted figures".into())];
    };
    let mut lines = text.lines();
    if lines.next() != Some(NAMES) {
        return vec![at(1, format!("the first line must be {NAMES:?}"))];
    }
    let wrong = |(i, line): (usize, &str)| row(root, folder, line).err().map(|what| at(i + 2, what));
    let complaints: Vec<String> = lines.clone().enumerate().filter_map(wrong).collect();
    if lines.next().is_none() { vec![at(1, "no figure is listed".into())] } else { complaints }
}

fn row(root: &Path, folder: &Path, line: &str) -> Result<(), String> {
    let cells: Vec<&str> = line.split('\t').collect();
    let [document, figure, file, place, divisor] = cells[..] else {
        return Err(format!("{} cells, wanted five", cells.len()));
    };
    let read = |path: &Path| fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()));
    let stands = |text: &str, name: &str| {
        if quotes(text, figure) { Ok(()) } else { Err(format!("{name} does not have {figure:?}")) }
    };
    stands(&read(&root.join(document))?, document)?;
    let data = read(&folder.join(file))?;
    if file.ends_with(".md") {
        return stands(&data, file);
    }
    let divisor: f64 = divisor.parse().map_err(|e| format!("divisor {divisor:?}: {e}"))?;
    same(figure, value(file, &data, place)? / divisor)
}

/// Whether `text` has `figure` with no digit beside it.
fn quotes(text: &str, figure: &str) -> bool {
    let digit = |c: Option<char>| c.is_some_and(|c| c.is_ascii_digit());
    text.match_indices(figure).any(|(at, _)| {
        let (before, after) = (&text[..at], &text[at + figure.len()..]);
        let mut next = after.chars();
        let decimals = next.next() == Some('.') && digit(next.next());
        !digit(before.chars().next_back()) && !before.ends_with('.') && !digit(after.chars().next()) && !decimals
    })
}

/// The number at a place of a data file.
fn value(file: &str, data: &str, place: &str) -> Result<f64, String> {
    let parse = |text: &str| serde_json::from_str::<Value>(text).map_err(|e| format!("{file}: {e}"));
    let whole = if file.ends_with(".jsonl") {
        Value::Array(data.lines().map(parse).collect::<Result<_, _>>()?)
    } else {
        parse(data)?
    };
    let found = whole.pointer(place).ok_or_else(|| format!("{file} has nothing at {place}"))?;
    found.as_f64().ok_or_else(|| format!("{file} has no number at {place}: {found}"))
}

/// Whether `figure` is `value` rounded to as many decimals as it has; thousands may be apart, a unit may follow.
fn same(figure: &str, value: f64) -> Result<(), String> {
    let number: String = figure.chars().take_while(|c| c.is_ascii_digit() || ",.-".contains(*c)).collect();
    let plain = number.replace(',', "");
    let decimals = plain.split_once('.').map_or(0, |(_, d)| d.len());
    let rounded = format!("{value:.decimals$}");
    if rounded == plain { Ok(()) } else { Err(format!("{figure:?} is quoted and the data has {rounded}")) }
}

#[test]
fn quoted_figures_are_those_of_the_data() {
    let complaints = complaints(&super::root());
    assert!(complaints.is_empty(), "{} complaints:\n{}", complaints.len(), complaints.join("\n"));
}

#[test]
fn a_figure_that_is_not_the_data_is_noticed() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("docs/lab/0001");
    fs::create_dir_all(&folder).unwrap();
    let write = |name: &str, text: &str| fs::write(folder.join(name), text).unwrap();
    fs::write(root.path().join("note.md"), "It took 16.1 us, at 2,006 tokens/s and not 16.10.\n").unwrap();
    write("a.json", r#"{"ns": 16123.9, "rate": [2006.4, "x"]}"#);
    write("b.jsonl", "{\"ns\": 1}\n{\"ns\": 16100}\n");
    assert!(complaints(root.path())[0].contains("without a list"));
    let check = |rows: &str, want: Option<&str>| {
        write("figures.tsv", &format!("{NAMES}\n{rows}"));
        let found = complaints(root.path());
        match want {
            None => assert!(found.is_empty(), "{rows}: {found:?}"),
            Some(want) => assert!(found.len() == 1 && found[0].contains(want), "{rows}: {found:?}"),
        }
    };
    check("", Some("no figure"));
    check("note.md\t16.1 us\ta.json\t/ns\t1000\n", None);
    check("note.md\t2,006\ta.json\t/rate/0\t1\n", None);
    check("note.md\t16.1\tb.jsonl\t/1/ns\t1000\n", None);
    check("note.md\t16.1 us\ta.json\t/ns\t1001\n", None);
    check("note.md\t16.1 us\ta.json\t/ns\t990\n", Some("the data has 16.3"));
    check("note.md\t6.1\ta.json\t/ns\t1000\n", Some("does not have"));
    check("note.md\t16\ta.json\t/ns\t1000\n", Some("does not have"));
    check("note.md\t16.1\ta.json\t/rate/1\t1\n", Some("no number"));
    check("note.md\t16.1\ta.json\t/none\t1\n", Some("nothing at"));
    check("note.md\t16.1\tgone.json\t/ns\t1000\n", Some("gone.json"));
    check("note.md\t16.1\ta.json\t/ns\n", Some("4 cells"));
    // Of a table most of whose decimals are listed, all are; 0.5B is a name.
    let table = |cell: &str| format!("It took 16.1 us.\n\n| 0.5B | 16.1 (16.1 to {cell}) |\n\n| 1.5 | 2.5 | 16.1 |\n");
    fs::write(root.path().join("note.md"), table("16.1")).unwrap();
    check("note.md\t16.1\ta.json\t/ns\t1000\n", None);
    fs::write(root.path().join("note.md"), table("17.1")).unwrap();
    check("note.md\t16.1\ta.json\t/ns\t1000\n", Some("note.md: 17.1 in a table"));
}
