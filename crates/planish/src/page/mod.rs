//! Evidence pages: one HTML file that shows what was measured, with the same data as JSON and TSV beside it.
//!
//! # How to make one
//! 1. Put what was measured into a plain serialisable type and say how it reads as a page:
//!    ```ignore
//!    #[derive(Serialize, Deserialize)]
//!    pub struct Explained { /* raw numbers, full precision; nothing formatted */ }
//!
//!    impl page::Report for Explained {
//!        const KIND: &'static str = "explain";
//!        const VERSION: u32 = 1;
//!        fn page(&self) -> Page {
//!            let mut page = Page::new("Where a token's time goes", "2.1 ms a token, 71% of it reads weights");
//!            page.section("Roofline").plot(Roofline { .. }).table(table);
//!            page
//!        }
//!    }
//!    ```
//! 2. `page::files(&explained)?` gives the three texts, `Files::write(path)` writes `out.html`, `out.json`, `out.tsv`.
//! 3. `page::read::<Explained>(path)?` is `--from EVIDENCE`: it gives the same three texts, byte for byte, because a
//!    page is always made from the text of its JSON and from nothing else: no clock, no machine, no map without order.
//!
//! # Rules
//! - A number is formatted once, by `number`, when it becomes a `Cell` or a label; HTML, JSON (`tables`) and TSV carry
//!   that very text. Units stand in the column's name. Raw values stand in the JSON under `data`.
//! - Whatever comes from outside (model names, logs, configurations) may hold anything; writers escape, callers do not.
//! - Plots are data (module `plot`): `Intervals` (ranking with confidence bounds), `Roofline` (log-log), `Stacked` (bars of
//!   parts), `Fit` (scatter, line and residuals), `Curves` (lines or points with bounds, either axis linear or log).
//!   Each is drawn twice, wide and narrow, and the style sheet shows the one that fits.
//!   Colours are classes, so that a page follows the reader's light or dark scheme; `Tone` names their meaning.
//! - Nothing on a page refers to anything outside it, and nothing on it runs.

mod evidence;
mod html;
pub mod number;
pub mod plot;
mod svg;
mod table;
#[cfg(test)]
pub mod tests;

use serde::Serialize;

pub use self::evidence::{Files, Report, files, must_be_html, must_have_folder, read, report, save};
pub use self::plot::*;
pub use self::table::{Cell, Table};

/// A page: what it is about, the sentence a person can repeat, and sections.
#[derive(Clone, Debug, Serialize)]
pub struct Page {
    /// What it is about.
    pub title: String,
    /// The result in a sentence.
    pub lead: String,
    /// In reading order; the first has no need of a title.
    pub sections: Vec<Section>,
}

/// A titled part of a page, with an anchor of its own: `#s1` for the first, `#s2` for the second.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Section {
    /// Its heading; empty for none.
    pub title: String,
    /// In reading order.
    pub blocks: Vec<Block>,
}

/// What a section holds.
#[derive(Clone, Debug, Serialize)]
pub enum Block {
    /// A paragraph.
    Text(String),
    /// Short facts: name and value.
    Facts(Vec<(String, Cell)>),
    /// Rows and columns.
    Table(Table),
    /// A figure.
    Plot(Plot),
    /// Closed at first, opened by click or key.
    Fold {
        /// What is inside, in a few words with the numbers that matter.
        summary: String,
        /// The contents.
        blocks: Vec<Block>,
    },
}

impl Page {
    /// A page without sections.
    pub fn new(title: impl Into<String>, lead: impl Into<String>) -> Self {
        Page { title: title.into(), lead: lead.into(), sections: Vec::new() }
    }

    /// Adds an empty section and gives it, to be filled.
    pub fn section(&mut self, title: impl Into<String>) -> &mut Section {
        self.sections.push(Section { title: title.into(), blocks: Vec::new() });
        self.sections.last_mut().expect("just added")
    }

    /// All tables in reading order, folded ones included.
    pub fn tables(&self) -> Vec<&Table> {
        fn of<'p>(blocks: &'p [Block], out: &mut Vec<&'p Table>) {
            for block in blocks {
                match block {
                    Block::Table(table) => out.push(table),
                    Block::Fold { blocks, .. } => of(blocks, out),
                    Block::Text(_) | Block::Facts(_) | Block::Plot(_) => {}
                }
            }
        }
        let mut out = Vec::new();
        self.sections.iter().for_each(|s| of(&s.blocks, &mut out));
        out
    }
}

impl Section {
    /// Adds a paragraph.
    pub fn text(&mut self, text: impl Into<String>) -> &mut Self {
        self.add(Block::Text(text.into()))
    }

    /// Adds facts.
    pub fn facts(&mut self, facts: Vec<(&str, Cell)>) -> &mut Self {
        self.add(Block::Facts(facts.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()))
    }

    /// Adds a table; one without rows is left out.
    pub fn table(&mut self, table: Table) -> &mut Self {
        if table.rows.is_empty() { self } else { self.add(Block::Table(table)) }
    }

    /// Adds a plot.
    pub fn plot(&mut self, plot: impl Into<Plot>) -> &mut Self {
        self.add(Block::Plot(plot.into()))
    }

    /// Adds something that is closed at first: what `fill` puts into it.
    pub fn fold(&mut self, summary: impl Into<String>, fill: impl FnOnce(&mut Section)) -> &mut Self {
        let mut inside = Section::default();
        fill(&mut inside);
        if inside.blocks.is_empty() {
            return self;
        }
        self.add(Block::Fold { summary: summary.into(), blocks: inside.blocks })
    }

    fn add(&mut self, block: Block) -> &mut Self {
        self.blocks.push(block);
        self
    }
}
