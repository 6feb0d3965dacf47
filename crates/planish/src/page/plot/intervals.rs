//! Estimates below each other, with bounds, raw samples and lines across.

use super::axis::{Base, Range};
use super::{Intervals, Row, Tone};
use crate::page::svg::{Anchor, Svg, fit, middle_inside, width_of};

/// Below this width a label stands above its interval instead of beside it.
const NARROW: f64 = 520.0;

/// How much wider a heading is than the same letters in running text.
const BOLD: f64 = 1.1;

/// Raw samples farther than this from all estimates do not stretch the axis.
const STRETCH: f64 = 1.5;

struct Layout {
    left: f64,
    right: f64,
    row: f64,
    narrow: bool,
    width: f64,
    /// Whether there are rows that others stand out from.
    mixed: bool,
}

pub fn draw(plot: &Intervals, width: f64) -> Svg {
    let narrow = width < NARROW;
    let valued = || plot.rows.iter().filter(|r| r.value.is_some());
    let labels = valued().map(|r| width_of(&r.label)).fold(0.0, f64::max);
    let texts = valued().map(|r| width_of(&r.text)).fold(0.0, f64::max);
    let (left, right) = if narrow {
        (4.0, width - 4.0)
    } else {
        (labels.min(0.42 * width) + 14.0, width - texts.min(0.3 * width) - 14.0)
    };
    let mixed = valued().any(|r| r.tone == Tone::Plain);
    let layout = Layout { left, right, row: if narrow { 38.0 } else { 22.0 }, narrow, width, mixed };
    let mut svg = Svg::new(width, 0.0);
    let legend: Vec<(String, String)> = plot.legend.iter().map(|(t, n)| (t.class().to_owned(), n.clone())).collect();
    let top = svg.legend(0.0, &legend) + if plot.marks.is_empty() { 2.0 } else { 18.0 };
    let x = range(plot, &layout);
    let bottom = top + layout.row * plot.rows.len() as f64 + 4.0;
    axis(&mut svg, plot, &x, (top, bottom), &layout);
    for (i, row) in plot.rows.iter().enumerate() {
        draw_row(&mut svg, row, &x, top + layout.row * i as f64, &layout);
    }
    svg.set_height(bottom + 40.0);
    svg
}

fn range(plot: &Intervals, layout: &Layout) -> Range {
    let rows =
        plot.rows.iter().flat_map(|r| r.value.into_iter().chain(r.bounds.into_iter().flat_map(|(lo, hi)| [lo, hi])));
    let firm: Vec<f64> = rows.chain(plot.marks.iter().map(|m| m.at)).filter(|v| v.is_finite()).collect();
    let (lo, hi) = firm.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(lo, hi), v| (lo.min(*v), hi.max(*v)));
    let near = |v: &f64| *v > lo / STRETCH && *v < hi * STRETCH;
    let samples: Vec<f64> = plot.rows.iter().flat_map(|r| &r.samples).copied().filter(near).collect();
    Range::around(firm.into_iter().chain(samples), plot.x.scale, Base::Free, (layout.left, layout.right))
}

fn axis(svg: &mut Svg, plot: &Intervals, x: &Range, (top, bottom): (f64, f64), layout: &Layout) {
    let room = layout.right - layout.left;
    let widest = |most: usize| x.ticks(most).iter().map(|t| width_of(&t.1)).fold(0.0, f64::max);
    let most = (2..=10).rev().find(|most| (widest(*most) + 14.0) * *most as f64 <= room).unwrap_or(2);
    for (v, label) in x.ticks(most) {
        svg.line("grid", (x.at(v), top), (x.at(v), bottom));
        let at = middle_inside(x.at(v), width_of(&label), (0.0, layout.width));
        svg.text("tick", (at, bottom + 15.0), Anchor::Middle, &label);
    }
    svg.line("axis", (layout.left, bottom), (layout.right, bottom));
    svg.text("name", (layout.right, bottom + 33.0), Anchor::End, &fit(&plot.x.label, layout.right));
    let mut free_from = 0.0;
    for mark in plot.marks.iter().filter(|m| x.holds(m.at)) {
        let at = x.at(mark.at);
        svg.line("mark", (at, top - 4.0), (at, bottom));
        let label = fit(&mark.label, layout.width - free_from);
        let middle = middle_inside(at, width_of(&label), (free_from, layout.width));
        svg.text("label", (middle, top - 8.0), Anchor::Middle, &label);
        free_from = middle + 0.5 * width_of(&label) + 8.0;
    }
}

fn draw_row(svg: &mut Svg, row: &Row, x: &Range, top: f64, layout: &Layout) {
    let Some(value) = row.value else {
        let base = top + layout.row - 6.0;
        // Beside a heading stands what the texts below it are, where there is room.
        let room = layout.width - width_of(&row.label) * BOLD - 10.0;
        svg.text("heading halo", (0.0, base), Anchor::Start, &fit(&row.label, layout.width));
        if width_of(&row.text) <= room {
            svg.text("label", (layout.width, base), Anchor::End, &row.text);
        }
        return;
    };
    let (middle, base) = if layout.narrow { (top + 28.0, top + 15.0) } else { (top + 11.0, top + 15.0) };
    let text_room = if layout.narrow { 0.5 * layout.width } else { layout.width - layout.right };
    let room =
        if layout.narrow { layout.width - width_of(&row.text).min(text_room) - 10.0 } else { layout.left - 14.0 };
    let stands_out = layout.mixed && matches!(row.tone, Tone::Chosen | Tone::Default);
    let weight = if stands_out { "strong halo" } else { "halo" };
    svg.text(weight, (0.0, base), Anchor::Start, &fit(&row.label, room));
    svg.text("halo", (layout.width, base), Anchor::End, &fit(&row.text, text_room));
    let class = row.tone.class();
    for sample in row.samples.iter().filter(|s| x.holds(**s)) {
        svg.line("sample", (x.at(*sample), middle - 4.0), (x.at(*sample), middle + 4.0));
    }
    if let Some((lo, hi)) = row.bounds {
        svg.line(&format!("bar {class}"), (x.at(lo), middle), (x.at(hi), middle));
        for end in [lo, hi] {
            svg.line(&format!("bar {class}"), (x.at(end), middle - 4.0), (x.at(end), middle + 4.0));
        }
    }
    let title = if row.text.is_empty() { row.label.clone() } else { format!("{}: {}", row.label, row.text) };
    let beyond = match row.samples.iter().filter(|s| !x.holds(**s)).count() {
        0 => String::new(),
        n => format!(" ({n} raw samples lie outside the plot)"),
    };
    let title = title + &beyond;
    if row.tone == Tone::Chosen {
        svg.diamond(&format!("dot {class}"), (x.at(value), middle), 5.5, &title);
    } else {
        svg.dot(&format!("dot {class}"), (x.at(value), middle), 4.0, &title);
    }
}
