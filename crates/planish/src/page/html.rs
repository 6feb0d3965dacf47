//! A page as one HTML file: nothing outside it is referred to, and nothing on it runs.

use std::fmt::Write;

use super::plot::Tone;
use super::svg::escape;
use super::table::{Cell, Table};
use super::{Block, Page, Plot, Section};

/// The style of pages and of the plots on them.
const STYLE: &str = include_str!("style.css");
/// The style of plots alone.
const PLOT_STYLE: &str = include_str!("plot.css");

/// Widths at which plots are drawn; the style sheet shows the one that fits the window.
const WIDE: f64 = 860.0;
const NARROW: f64 = 350.0;

/// Columns whose cells have at most this many characters are not wrapped.
const SHORT: usize = 36;

/// Forbids the page everything, its own style excepted, so that a reader need not take our word for it.
const POLICY: &str = include_str!("policy.txt");

/// The page as HTML.
pub fn page(page: &Page) -> String {
    let mut out = String::new();
    let title = escape(&page.title);
    let _ = write!(
        out,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\n\
         <link rel=\"icon\" href=\"data:,\">\n<title>{title}</title>\n<style>\n{PLOT_STYLE}{STYLE}</style>\n\
         </head>\n<body>\n<main>\n<header><h1>{title}</h1><p class=\"lead\">{}</p></header>\n",
        escape(&page.lead)
    );
    for (i, section) in page.sections.iter().enumerate() {
        write_section(&mut out, section, i + 1);
    }
    out.push_str("</main>\n</body>\n</html>\n");
    out
}

fn write_section(out: &mut String, section: &Section, number: usize) {
    let _ = writeln!(out, "<section id=\"s{number}\">");
    if !section.title.is_empty() {
        let _ = writeln!(out, "<h2>{}</h2>", breakable(&escape(&section.title)));
    }
    section.blocks.iter().for_each(|b| write_block(out, b));
    out.push_str("</section>\n");
}

fn write_block(out: &mut String, block: &Block) {
    match block {
        Block::Text(text) => _ = writeln!(out, "<p>{}</p>", escape(text)),
        Block::Facts(facts) => {
            out.push_str("<dl>");
            for (name, value) in facts {
                let _ = write!(out, "<div><dt>{}</dt><dd>{}</dd></div>", escape(name), cell_text(value));
            }
            out.push_str("</dl>\n");
        }
        Block::Table(table) => write_table(out, table),
        Block::Plot(plot) => write_plot(out, plot),
        Block::Fold { summary, blocks } => {
            let _ = writeln!(out, "<details><summary>{}</summary>", escape(summary));
            blocks.iter().for_each(|b| write_block(out, b));
            out.push_str("</details>\n");
        }
    }
}

fn write_plot(out: &mut String, plot: &Plot) {
    let (title, note) = (escape(plot.title()), escape(plot.note()));
    let _ = write!(out, "<figure><figcaption><strong>{title}</strong>");
    if !note.is_empty() {
        let _ = write!(out, " <span>{note}</span>");
    }
    out.push_str("</figcaption>\n");
    out.push_str(&plot.svg(WIDE).inline("plot wide", plot.title()));
    out.push_str(&plot.svg(NARROW).inline("plot narrow", plot.title()));
    out.push_str("</figure>\n");
}

/// A table in a region of its own, which scrolls by itself where it is wider than the window.
fn write_table(out: &mut String, table: &Table) {
    let title = escape(&table.title);
    let numeric: Vec<bool> = (0..table.columns.len()).map(|i| table.is_numeric(i)).collect();
    let short = |i: usize| table.rows.iter().all(|row| row[i].text.chars().count() <= SHORT);
    let class = |i: usize| match (numeric[i], short(i)) {
        (true, _) => " class=\"n\"",
        (_, true) => " class=\"s\"",
        _ => "",
    };
    let classes: Vec<&str> = (0..table.columns.len()).map(class).collect();
    let _ = write!(
        out,
        "<div class=\"scroll\" role=\"region\" tabindex=\"0\" aria-label=\"{title}\"><table>\
         <caption><span>{}</span></caption>\n\
         <thead><tr>",
        breakable(&title)
    );
    for (i, column) in table.columns.iter().enumerate() {
        let unit = match column.unit.as_str() {
            "" => String::new(),
            unit => format!(" <span class=\"unit\">({})</span>", escape(unit)),
        };
        let _ = write!(out, "<th scope=\"col\"{}>{}{unit}</th>", classes[i], escape(&column.name));
    }
    out.push_str("</tr></thead>\n<tbody>\n");
    for row in &table.rows {
        out.push_str("<tr>");
        for (i, cell) in row.iter().enumerate() {
            let (open, close) = if i == 0 { ("th scope=\"row\"", "th") } else { ("td", "td") };
            let _ = write!(out, "<{open}{}>{}</{close}>", classes[i], cell_text(cell));
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody></table></div>\n");
}

/// Escaped text that may be broken after a comma, as the long names of shapes must be on a narrow screen.
fn breakable(text: &str) -> String {
    text.replace(',', ",<wbr>")
}

fn cell_text(cell: &Cell) -> String {
    let text = escape(&cell.text);
    let text = match cell.section {
        0 => text,
        section => format!("<a href=\"#s{section}\">{text}</a>"),
    };
    if cell.tone == Tone::Plain { text } else { format!("<span class=\"{}\">{text}</span>", cell.tone.class()) }
}
