//! Data on standard output: printing that survives a closed pipe, tables, and numbers with units.

use std::fmt;
use std::io::{self, ErrorKind, Write, stdout};

use anyhow::{Context, Result};
use serde::Serialize;

/// The reader of standard output went away, which is no failure of ours.
#[derive(Debug)]
pub struct Closed;

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("standard output is closed")
    }
}

impl std::error::Error for Closed {}

/// Writes `text` to standard output.
pub fn print(text: &str) -> Result<()> {
    let mut out = stdout().lock();
    written(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

/// What became of a write to standard output.
pub fn written(result: io::Result<()>) -> Result<()> {
    match result {
        Err(e) if e.kind() == ErrorKind::BrokenPipe => Err(Closed.into()),
        done => done.context("cannot write to standard output"),
    }
}

/// `98.4 MB`: decimal units, three digits.
pub fn bytes(n: u64) -> String {
    scaled(n as f64, &["B", "kB", "MB", "GB", "TB"])
}

/// `1.50 us`: three digits of a time in nanoseconds.
pub fn time(ns: f64) -> String {
    scaled(ns, &["ns", "us", "ms", "s"])
}

/// `512 KiB`: a size that is a power of two or nearly so.
pub fn binary(n: u64) -> String {
    match n {
        0..1024 => format!("{n} B"),
        1024..1_048_576 => format!("{} KiB", n >> 10),
        _ => format!("{:.1} MiB", n as f64 / 1_048_576.0).replace(".0 ", " "),
    }
}

/// A load average over one minute.
pub fn load(average: Option<f64>) -> String {
    average.map_or("unknown".to_owned(), |l| format!("{l:.2}"))
}

/// What stands behind a load where the system tells what share of the processors other work took; nothing elsewhere.
pub fn others(share: Option<f64>) -> String {
    let of = |share: f64| format!("; other work took {:.0}% of this machine's processors meanwhile", 100.0 * share);
    share.map_or(String::new(), of)
}

/// Lines of a name and a value, the values below each other.
pub fn pairs(rows: &[(&str, String)]) -> String {
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    rows.iter().map(|(name, value)| format!("{name:width$}  {value}\n")).collect()
}

/// Columns under their names, numbers to the right; the last column is not padded.
pub fn table<const N: usize>(names: [&str; N], rows: &[[String; N]]) -> String {
    let mut widths = names.map(|n| n.chars().count());
    let mut numeric = [true; N];
    for (i, cell) in rows.iter().flat_map(|row| row.iter().enumerate()) {
        widths[i] = widths[i].max(cell.chars().count());
        numeric[i] &= cell.is_empty() || cell.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c));
    }
    let line = |cells: [&str; N]| {
        let column = |i: usize| match (numeric[i], widths[i]) {
            (true, width) => format!("{:>width$}", cells[i]),
            (false, _) if i + 1 == N => cells[i].to_owned(),
            (false, width) => format!("{:width$}", cells[i]),
        };
        (0..N).map(column).collect::<Vec<_>>().join("  ") + "\n"
    };
    let body = rows.iter().map(|row| line(row.each_ref().map(String::as_str)));
    std::iter::once(line(names)).chain(body).collect()
}

/// Writes `report` to standard output as JSON.
pub fn print_json(report: &impl Serialize) -> Result<()> {
    print(&format!("{}\n", serde_json::to_string_pretty(report).context("the report cannot be written as JSON")?))
}

/// Writes `report` to standard output as one line of JSON, for output that goes on.
pub fn print_json_line(report: &impl Serialize) -> Result<()> {
    print(&format!("{}\n", serde_json::to_string(report).context("the report cannot be written as JSON")?))
}

fn scaled(value: f64, units: &[&str]) -> String {
    let mut value = value;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < units.len() {
        value /= 1000.0;
        unit += 1;
    }
    if unit == 0 {
        return format!("{value:.0} {}", units[0]);
    }
    let decimals = if value >= 99.95 {
        0
    } else if value >= 9.995 {
        1
    } else {
        2
    };
    format!("{value:.decimals$} {}", units[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_three_digits() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(999), "999 B");
        assert_eq!(bytes(1000), "1.00 kB");
        assert_eq!(bytes(98_362_432), "98.4 MB");
        assert_eq!(bytes(999_700), "1.00 MB");
        assert_eq!(bytes(123_456_789), "123 MB");
        assert_eq!(time(950.4), "950 ns");
        assert_eq!(time(1500.0), "1.50 us");
    }

    #[test]
    fn cache_sizes_are_binary() {
        assert_eq!([binary(100), binary(32 << 10), binary(32 << 20)], ["100 B", "32 KiB", "32 MiB"]);
        assert_eq!(binary(3 << 19), "1.5 MiB");
    }

    #[test]
    fn numbers_stand_to_the_right() {
        let rows = [["a", "1.50x", "x"], ["long", "12.00x", "yy"]].map(|r| r.map(str::to_owned));
        let wanted = "op      gain  why\na      1.50x  x\nlong  12.00x  yy\n";
        assert_eq!(table(["op", "gain", "why"], &rows), wanted);
    }

    #[test]
    fn values_stand_below_each_other() {
        let rows = [("a", "1".to_owned()), ("long", "2".to_owned())];
        assert_eq!(pairs(&rows), "a     1\nlong  2\n");
    }
}
