//! Horizontal bars made of parts that add up.

use super::axis::{Base, Range};
use super::{Bar, Scale, Stacked};
use crate::page::svg::{Anchor, Svg, fit, middle_inside, width_of};

/// Below this width a label stands above its bar instead of beside it.
const NARROW: f64 = 520.0;

pub fn draw(plot: &Stacked, width: f64) -> Svg {
    let narrow = width < NARROW;
    let widest = |text: fn(&Bar) -> &str| plot.bars.iter().map(|b| width_of(text(b))).fold(0.0, f64::max);
    let (labels, texts) = (widest(|b| &b.label), widest(|b| &b.text));
    let ends = match narrow {
        true => (0.0, width - 2.0),
        false => (labels.min(0.4 * width) + 14.0, width - texts.min(0.3 * width) - 14.0),
    };
    let mut svg = Svg::new(width, 0.0);
    let legend: Vec<(String, String)> =
        plot.parts.iter().enumerate().map(|(i, name)| (class(plot, i), name.clone())).collect();
    let top = svg.legend(0.0, &legend) + 2.0;
    let row = if narrow { 40.0 } else { 26.0 };
    let bottom = top + row * plot.bars.len() as f64 + 2.0;
    let sums = plot.bars.iter().map(|b| b.values.iter().sum());
    // Lengths of parts only mean something from zero on and by equal steps.
    let x = Range::around(sums, Scale::Linear, Base::Zero, ends);
    let widest = |most: usize| x.ticks(most).iter().map(|t| width_of(&t.1)).fold(0.0, f64::max);
    let most = (2..=10).rev().find(|most| (widest(*most) + 14.0) * *most as f64 <= ends.1 - ends.0).unwrap_or(2);
    for (v, label) in x.ticks(most) {
        svg.line("grid", (x.at(v), top), (x.at(v), bottom));
        let at = middle_inside(x.at(v), width_of(&label), (0.0, width));
        svg.text("tick", (at, bottom + 15.0), Anchor::Middle, &label);
    }
    svg.text("name", (ends.1, bottom + 33.0), Anchor::End, &fit(&plot.x.label, ends.1));
    for (i, bar) in plot.bars.iter().enumerate() {
        let at = top + row * i as f64;
        let (base, at) = if narrow { (at + 14.0, at + 19.0) } else { (at + 17.0, at + 4.0) };
        let text_room = if narrow { 0.5 * width } else { width - ends.1 };
        let room = if narrow { width - width_of(&bar.text).min(text_room) - 10.0 } else { ends.0 - 14.0 };
        svg.text("halo", (0.0, base), Anchor::Start, &fit(&bar.label, room));
        svg.text("halo", (width, base), Anchor::End, &fit(&bar.text, text_room));
        draw_bar(&mut svg, bar, plot, &x, at);
    }
    svg.line("axis", (ends.0, top), (ends.0, bottom));
    svg.set_height(bottom + 40.0);
    svg
}

/// The class of part number `i`.
fn class(plot: &Stacked, i: usize) -> String {
    let last = plot.parts.len() - 1;
    if i == last && last >= 3 { "rest".to_owned() } else { format!("s{}", i % 8 + 1) }
}

fn draw_bar(svg: &mut Svg, bar: &Bar, plot: &Stacked, x: &Range, top: f64) {
    let mut sum = 0.0;
    for (i, value) in bar.values.iter().enumerate().filter(|(_, v)| **v > 0.0) {
        let (from, to) = (x.at(sum), x.at(sum + value));
        sum += value;
        let part = plot.parts.get(i).map_or("", String::as_str);
        let text = bar.texts.get(i).map_or("", String::as_str);
        // A hair of background between parts keeps them apart for those who do not see the colours.
        let wide = (to - from - 1.0).max(0.5);
        svg.rect(&format!("part {}", class(plot, i)), (from, top), (wide, 16.0), &format!("{part}: {text}"));
    }
}
