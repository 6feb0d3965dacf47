//! Evidence on disk: versioned JSON from which a page is made again, byte for byte.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::table::{Table, tsv};
use super::{Page, html};
use crate::hint::WithHint;
use crate::ui::Ui;

/// What was measured, and how it reads as a page.
pub trait Report: Serialize + DeserializeOwned {
    /// What kind of evidence it is: `tuning`, `explain`, `sweep`.
    const KIND: &'static str;
    /// Raised when a reader of this kind could misread older data.
    const VERSION: u32;
    /// Refuses what contradicts itself, as an edited file may: the page relies on what this lets pass.
    fn check(&self) -> Result<()> {
        Ok(())
    }
    /// The page; it depends on the report alone.
    fn page(&self) -> Page;
}

/// The file: what it is, the raw data, and the tables of the page as they stand there.
#[derive(Deserialize)]
struct Envelope {
    planish: String,
    version: u32,
    data: Value,
}

/// The same report three times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// The page.
    pub html: String,
    /// The evidence, from which the others can be made again.
    pub json: String,
    /// The tables of the page.
    pub tsv: String,
}

/// The texts of `report`.
pub fn files<R: Report>(report: &R) -> Result<Files> {
    from_data::<R>(serde_json::to_value(report).context("the evidence cannot be written as JSON")?)
}

/// The texts of the evidence in `path`, the same as those it was written with.
pub fn read<R: Report>(path: &Path) -> Result<Files> {
    from_data::<R>(data::<R>(path)?).with_context(|| no_evidence(path)).hint(HINT)
}

/// What the evidence in `path` was made from; the file may also be a report as --json prints it.
pub fn report<R: Report>(path: &Path) -> Result<R> {
    let printed: Value = parsed(path)?;
    let data = if printed.get("planish").is_some() { data::<R>(path)? } else { printed };
    checked(data).with_context(|| no_evidence(path)).hint(HINT)
}

const HINT: &str = "give the .json file that --html, --report or --json wrote to the command that wrote it; \
                    `planish store report` takes that of tune";

fn no_evidence(path: &Path) -> String {
    format!("{} is no evidence of planish", path.display())
}

/// The raw data of a file of the right kind and version.
fn data<R: Report>(path: &Path) -> Result<Value> {
    let envelope: Envelope = parsed(path)?;
    if envelope.planish != R::KIND {
        return Err(anyhow!("{}: evidence of {}, wanted {}", path.display(), envelope.planish, R::KIND)).hint(HINT);
    }
    if envelope.version != R::VERSION {
        let (found, here) = (envelope.version, R::VERSION);
        return Err(anyhow!("{}: version {found} of {}, this program reads {here}", path.display(), R::KIND))
            .hint("use the planish that wrote it, or measure again");
    }
    Ok(envelope.data)
}

fn parsed<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display())).hint(HINT)?;
    serde_json::from_slice(&bytes).with_context(|| no_evidence(path)).hint(HINT)
}

fn checked<R: Report>(data: Value) -> Result<R> {
    let report: R = serde_json::from_value(data).context("the evidence lacks what its page shows")?;
    report.check()?;
    Ok(report)
}

/// The texts of what a file holds; nothing else has a part in them.
fn from_data<R: Report>(mut data: Value) -> Result<Files> {
    round(&mut data);
    let report: R = checked(data.clone())?;
    let page = report.page();
    let tables = page.tables();
    let mut file = Map::new();
    file.insert("planish".into(), R::KIND.into());
    file.insert("version".into(), R::VERSION.into());
    file.insert("title".into(), page.title.clone().into());
    file.insert("sentence".into(), page.lead.clone().into());
    file.insert("tables".into(), tables.iter().map(|t| table_json(t)).collect());
    file.insert("data".into(), data);
    let json = serde_json::to_string_pretty(&Value::Object(file)).context("the evidence cannot be written as JSON")?;
    Ok(Files { html: html::page(&page), json: json + "\n", tsv: tsv(&tables) })
}

/// Rounds every fraction to fifteen digits, more than any clock gives: those survive printing and reading unchanged,
/// where seventeen may come back as a neighbour.
fn round(value: &mut Value) {
    match value {
        Value::Number(n) if n.is_f64() => {
            let rounded = n.as_f64().and_then(|v| format!("{v:.14e}").parse::<f64>().ok());
            *value = rounded.map_or(Value::Null, Value::from);
        }
        Value::Array(items) => items.iter_mut().for_each(round),
        Value::Object(fields) => fields.values_mut().for_each(round),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn table_json(table: &Table) -> Value {
    let columns: Vec<Value> = table.columns.iter().map(|c| c.label().into()).collect();
    let row = |cells: &Vec<super::Cell>| cells.iter().map(|c| Value::from(c.text.clone())).collect::<Value>();
    let rows: Vec<Value> = table.rows.iter().map(row).collect();
    serde_json::json!({ "title": table.title, "columns": columns, "rows": rows })
}

impl Files {
    /// Writes `path`, and beside it the same name with `.json` and `.tsv`; each is whole or not there.
    ///
    /// Errors when `path` does not end in `.html`, or a file cannot be written.
    pub fn write(&self, path: &Path) -> Result<[PathBuf; 3]> {
        must_be_html(path)?;
        let paths = [path.to_owned(), path.with_extension("json"), path.with_extension("tsv")];
        for (path, text) in paths.iter().zip([&self.html, &self.json, &self.tsv]) {
            write_whole(path, text).with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(paths)
    }
}

/// Writes the page and evidence of `report`, and says where they are.
pub fn save<R: Report>(report: &R, path: &Path, ui: Ui) -> Result<()> {
    let written = files(report)?.write(path)?;
    ui.note(&format!("wrote {}", written.map(|p| p.display().to_string()).join(", ")));
    Ok(())
}

/// Refuses the path of a page that is no `.html`, or lies in no folder: to be asked before anything is measured.
pub fn must_be_html(path: &Path) -> Result<()> {
    if path.extension().is_none_or(|e| e != "html") {
        let error = anyhow!("{}: a report is a .html file, with .json and .tsv beside it", path.display());
        return Err(error).hint("end the name in .html");
    }
    must_have_folder(path)
}

/// Refuses the path of a file that lies in no folder.
pub fn must_have_folder(path: &Path) -> Result<()> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !folder.is_dir() {
        return Err(anyhow!("{}: there is no folder {}", path.display(), folder.display()))
            .hint("create the folder first");
    }
    Ok(())
}

/// Through a file beside it, so that a full disk leaves what was there before.
fn write_whole(path: &Path, text: &str) -> std::io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".part");
    let part = path.with_file_name(name);
    let written = fs::write(&part, text).and_then(|()| fs::rename(&part, path));
    if written.is_err() {
        // What is left of it is of no use, and may be what filled the disk.
        let _ = fs::remove_file(&part);
    }
    written
}
