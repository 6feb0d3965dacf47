//! The table of how tuners fail, `docs/tuner-faults.md`: every row is whole, and every test that it names exists.

use super::{Text, texts};

/// Where the table is.
const PAGE: &str = "docs/tuner-faults.md";
/// What a row says: the kind of failure, who reported it, what happens here, and the test that proves it.
const CELLS: usize = 4;

/// The cells of a line of a table; a bar in quotes or behind a backslash is text.
fn cells(line: &str) -> Option<Vec<String>> {
    let inner = line.trim().strip_prefix('|')?.strip_suffix('|')?;
    let (mut cells, mut quoted, mut escaped) = (vec![String::new()], false, false);
    for c in inner.chars() {
        quoted ^= c == '`';
        if c == '|' && !quoted && !escaped {
            cells.push(String::new());
        } else {
            cells.last_mut().expect("there is a first").push(c);
        }
        escaped = c == '\\';
    }
    Some(cells.iter().map(|c| c.trim().to_owned()).collect())
}

/// Whether the cells are the head of a table or the line under it.
fn is_head(cells: &[String]) -> bool {
    cells.first().is_some_and(|c| c == "kind") || cells.iter().all(|c| c.chars().all(|c| c == '-' || c == ':'))
}

/// Quoted words with `::` in them: tests, as `file::function`.
fn named(cell: &str) -> impl Iterator<Item = (&str, &str)> {
    cell.split('`').skip(1).step_by(2).filter_map(|word| word.rsplit_once("::"))
}

/// Whether `text` declares a test of this name.
fn declares(text: &Text, function: &str) -> bool {
    let lines: Vec<&str> = text.content.lines().map(str::trim).collect();
    let head = format!("fn {function}(");
    let is_test = |at: usize| {
        let above = lines[..at].iter().rev().take_while(|l| l.starts_with("#[") || l.starts_with("//"));
        above.into_iter().any(|l| l.starts_with("#[test]"))
    };
    lines.iter().enumerate().any(|(at, line)| line.starts_with(&head) && is_test(at))
}

/// What is wrong with the page, given all files of the repository.
fn complaints(page: &str, files: &[Text]) -> Vec<String> {
    let mut found = Vec::new();
    for (n, line) in page.lines().enumerate().filter(|(_, l)| l.trim_start().starts_with('|')) {
        let mut complain = |what: String| found.push(format!("{PAGE}:{}: {what}", n + 1));
        let Some(cells) = cells(line) else {
            complain("a row ends with a bar".to_owned());
            continue;
        };
        if cells.len() != CELLS || cells.iter().any(String::is_empty) {
            complain(format!("{} cells, {CELLS} wanted, none of them empty", cells.len()));
            continue;
        }
        if is_head(&cells) {
            continue;
        }
        if named(&cells[3]).next().is_none() {
            complain("no test is named as `file::function`".to_owned());
        }
        for (file, function) in named(&cells[3]) {
            let is_it = |t: &&Text| t.path == file || t.path.ends_with(&format!("/{file}"));
            let candidates: Vec<&Text> = files.iter().filter(is_it).collect();
            match candidates.iter().filter(|t| declares(t, function)).count() {
                _ if candidates.is_empty() => complain(format!("{file}: no such file")),
                0 => complain(format!("{file} has no test {function}")),
                1 => {}
                several => complain(format!("{file}::{function} could be {several} tests: name more of the path")),
            }
        }
    }
    found
}

#[test]
fn every_fault_names_a_test_that_exists() {
    let texts = texts();
    let page = texts.iter().find(|t| t.path == PAGE).expect("the page exists");
    let found = complaints(&page.content, &texts);
    assert!(found.is_empty(), "{} complaints:\n{}", found.len(), found.join("\n"));
}

#[test]
fn the_rules_of_faults_catch_what_they_are_for() {
    let file = |path: &str, content: &str| Text { path: path.to_owned(), content: content.to_owned() };
    let files = [
        file("crates/a/tests/x.rs", "/// Says why.\n#[test]\nfn holds() {\n}\nfn helper() {\n}\n"),
        file("crates/b/tests/x.rs", "#[test]\nfn holds() {\n}\n"),
    ];
    let page =
        |row: &str| format!("| kind | public reports | what planish does | test |\n| --- | --- | --- | --- |\n{row}\n");
    let check = |row: &str| complaints(&page(row), &files).join("\n");
    assert_eq!(check("| loss | p #1 | keeps `a|b` | `a/tests/x.rs::holds`, `b/tests/x.rs::holds` |"), "");
    let bad = [
        ("| loss | p #1 | keeps |", "3 cells"),
        ("| loss | | keeps | `a/tests/x.rs::holds` |", "none of them empty"),
        ("| loss | p #1 | keeps | `a/tests/x.rs::holds`", "ends with a bar"),
        ("| loss | p #1 | keeps | later |", "no test is named"),
        ("| loss | p #1 | keeps | `y.rs::holds` |", "no such file"),
        ("| loss | p #1 | keeps | `a/tests/x.rs::helper` |", "has no test helper"),
        ("| loss | p #1 | keeps | `a/tests/x.rs::hold` |", "has no test hold"),
        ("| loss | p #1 | keeps | `x.rs::holds` |", "could be 2 tests"),
    ];
    for (row, wanted) in bad {
        let told = check(row);
        assert!(told.contains(wanted), "{row}\nis told {told:?}, not {wanted:?}");
    }
}
