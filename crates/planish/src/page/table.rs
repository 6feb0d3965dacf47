//! Tables: cells of text that is formatted once, and the TSV that carries it.

use std::fmt::Write;

use serde::Serialize;

use super::plot::Tone;

/// Rows under named columns.
#[derive(Clone, Debug, Serialize)]
pub struct Table {
    /// What the rows are; unique on its page, and the name of the table in JSON and TSV.
    pub title: String,
    /// The columns.
    pub columns: Vec<Column>,
    /// As many cells in each as there are columns.
    pub rows: Vec<Vec<Cell>>,
}

/// A column's name, with its unit.
#[derive(Clone, Debug, Serialize)]
pub struct Column {
    /// What the cells are.
    pub name: String,
    /// Their unit; empty for none.
    pub unit: String,
}

/// One value as text.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Cell {
    /// The text, the same in HTML, JSON and TSV.
    pub text: String,
    /// What its colour says.
    pub tone: Tone,
    /// The section of the page it leads to, counted from 1; 0 for none.
    pub section: usize,
}

impl Cell {
    /// The same with a tone.
    pub fn tone(mut self, tone: Tone) -> Self {
        self.tone = tone;
        self
    }

    /// The same as a link to section number `section` of the page, counted from 1.
    pub fn linked(mut self, section: usize) -> Self {
        self.section = section;
        self
    }

    /// Whether the text is a number, with or without a sign, or stands for one that is not there.
    pub fn is_number(&self) -> bool {
        self.text.parse::<f64>().is_ok() || self.text == super::number::NONE || self.text.is_empty()
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Cell { text: text.into(), ..Cell::default() }
    }
}

impl Table {
    /// A table without rows; a column is written `name` or `name|unit`.
    pub fn new(title: impl Into<String>, columns: &[&str]) -> Self {
        let column = |c: &&str| {
            let (name, unit) = c.split_once('|').unwrap_or((c, ""));
            Column { name: name.to_owned(), unit: unit.to_owned() }
        };
        Table { title: title.into(), columns: columns.iter().map(column).collect(), rows: Vec::new() }
    }

    /// Adds a row.
    ///
    /// # Panics
    /// If it has not one cell for each column.
    pub fn row(&mut self, cells: Vec<Cell>) {
        assert_eq!(cells.len(), self.columns.len(), "a row of table {:?}: {cells:?}", self.title);
        self.rows.push(cells);
    }

    /// Whether column `i` holds numbers alone.
    pub fn is_numeric(&self, i: usize) -> bool {
        self.rows.iter().all(|row| row[i].is_number())
    }
}

impl Column {
    /// The name with its unit: `time (us)`.
    pub fn label(&self) -> String {
        if self.unit.is_empty() { self.name.clone() } else { format!("{} ({})", self.name, self.unit) }
    }
}

/// All tables as one TSV: each begins with `# ` and its title, then the names of the columns, then the rows.
///
/// Two empty lines end a table, which is what gnuplot takes for the end of a data set.
/// Tabs and line ends inside a cell become spaces.
pub fn tsv(tables: &[&Table]) -> String {
    let plain = |text: &str| text.replace(['\t', '\n', '\r'], " ");
    let mut out = String::new();
    for (i, table) in tables.iter().enumerate() {
        let names: Vec<String> = table.columns.iter().map(|c| plain(&c.label())).collect();
        let gap = if i > 0 { "\n\n" } else { "" };
        let _ = writeln!(out, "{gap}# {}\n{}", plain(&table.title), names.join("\t"));
        for row in &table.rows {
            let cells: Vec<String> = row.iter().map(|c| plain(&c.text)).collect();
            let _ = writeln!(out, "{}", cells.join("\t"));
        }
    }
    out
}
