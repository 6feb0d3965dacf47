//! The frame of a plot with two axes: ranges, grid, ticks and names.

use super::axis::{Base, Range};
use super::{Axis, Mark};
use crate::page::svg::{Anchor, Svg, fit, middle_inside, width_of};

/// Where the values of two axes lie on a drawing.
pub struct Frame {
    /// Left to right.
    pub x: Range,
    /// Bottom to top.
    pub y: Range,
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

/// Room below for ticks and the name of the axis.
const BELOW: f64 = 40.0;
/// Room above for the name of the vertical axis.
const ABOVE: f64 = 20.0;

/// The space that a frame takes of a drawing, names included.
pub struct Place {
    /// Where it begins.
    pub top: f64,
    /// How high it is.
    pub height: f64,
    /// How wide the drawing is.
    pub width: f64,
    /// Room that is kept free at the right, for labels.
    pub right: f64,
}

impl Frame {
    /// A frame for these values, drawn.
    pub fn draw(svg: &mut Svg, place: &Place, axes: [&Axis; 2], xs: &[f64], ys: &[f64]) -> Frame {
        let (top, bottom) = (place.top + ABOVE, place.top + place.height - BELOW);
        let right = place.width - 6.0 - place.right;
        let range =
            |values: &[f64], axis: &Axis, ends| Range::around(values.iter().copied(), axis.scale, Base::Free, ends);
        let y = range(ys, axes[1], (bottom, top));
        let y_ticks = y.ticks(((bottom - top) / 38.0) as usize);
        let widest = y_ticks.iter().map(|t| width_of(&t.1)).fold(0.0, f64::max);
        let left = widest + 8.0;
        let x = range(xs, axes[0], (left, right));
        for (v, label) in &y_ticks {
            svg.line("grid", (left, y.at(*v)), (right, y.at(*v)));
            svg.text("tick", (left - 6.0, y.at(*v) + 4.0), Anchor::End, label);
        }
        let frame = Frame { x, y, left, right, top, bottom };
        frame.x_ticks(svg, axes[0]);
        svg.text("name", (0.0, place.top + 10.0), Anchor::Start, &fit(&axes[1].label, place.width));
        frame
    }

    fn x_ticks(&self, svg: &mut Svg, axis: &Axis) {
        let widest = |most: usize| self.x.ticks(most).iter().map(|t| width_of(&t.1)).fold(0.0, f64::max);
        let room = self.right - self.left;
        let most = (2..=10).rev().find(|most| (widest(*most) + 14.0) * *most as f64 <= room).unwrap_or(2);
        for (v, label) in self.x.ticks(most) {
            let x = self.x.at(v);
            svg.line("grid", (x, self.top), (x, self.bottom));
            let middle = middle_inside(x, width_of(&label), (0.0, self.right + 6.0));
            svg.text("tick", (middle, self.bottom + 15.0), Anchor::Middle, &label);
        }
        svg.line("axis", (self.left, self.bottom), (self.right, self.bottom));
        svg.text("name", (self.right, self.bottom + 33.0), Anchor::End, &fit(&axis.label, self.right));
    }

    /// The pixels of a point.
    pub fn at(&self, x: f64, y: f64) -> (f64, f64) {
        (self.x.at(x), self.y.at(y))
    }

    /// A line across at each mark inside, with its name above it at the right end.
    pub fn marks(&self, svg: &mut Svg, marks: &[Mark], taken: &mut Taken) {
        for mark in marks.iter().filter(|m| self.y.holds(m.at)) {
            let y = self.y.at(mark.at);
            svg.line("mark", (self.left, y), (self.right, y));
            let wide = width_of(&mark.label);
            let spots = [(self.right, y - 5.0), (self.right, y + 13.0), (self.left + wide + 4.0, y - 5.0)];
            taken.text(svg, "label", &spots, Anchor::End, &mark.label);
        }
    }

    /// The drawing area: left, top, right, bottom.
    pub fn area(&self) -> [f64; 4] {
        [self.left, self.top, self.right, self.bottom]
    }
}

/// Where labels and marks already are, so that no label is written over another.
#[derive(Default)]
pub struct Taken {
    boxes: Vec<[f64; 4]>,
    /// Nothing is written outside: left, top, right, bottom.
    area: Option<[f64; 4]>,
}

impl Taken {
    /// Nothing taken yet; labels stay inside `area`.
    pub fn inside(area: [f64; 4]) -> Self {
        Taken { boxes: Vec::new(), area: Some(area) }
    }

    /// Takes the place of a mark.
    pub fn mark(&mut self, (x, y): (f64, f64), radius: f64) {
        self.boxes.push([x - radius, y - radius, x + radius, y + radius]);
    }

    /// Takes the places along a line through points.
    pub fn line(&mut self, points: &[(f64, f64)]) {
        for pair in points.windows(2) {
            let ((x0, y0), (x1, y1)) = (pair[0], pair[1]);
            let steps = ((x1 - x0).abs().max((y1 - y0).abs()) / 6.0).ceil().clamp(1.0, 400.0);
            for i in 0..=steps as u32 {
                let share = f64::from(i) / steps;
                self.mark((x0 + share * (x1 - x0), y0 + share * (y1 - y0)), 1.0);
            }
        }
    }

    /// Writes `text` at the first of `spots` (baselines) that is free; nowhere if none is.
    pub fn text(&mut self, svg: &mut Svg, class: &str, spots: &[(f64, f64)], anchor: Anchor, text: &str) {
        let wide = width_of(text);
        for &(x, y) in spots {
            let left = match anchor {
                Anchor::Start => x,
                Anchor::Middle => x - 0.5 * wide,
                Anchor::End => x - wide,
            };
            let mine = [left, y - 10.0, left + wide, y + 3.0];
            let apart = |b: &[f64; 4]| mine[2] < b[0] || b[2] < mine[0] || mine[3] < b[1] || b[3] < mine[1];
            let within = |a: &[f64; 4]| a[0] - 1.0 <= mine[0] && mine[2] <= a[2] + 8.0 && a[1] - 12.0 <= mine[1];
            if self.boxes.iter().all(apart) && self.area.as_ref().is_none_or(within) {
                svg.text(class, (x, y), anchor, text);
                self.boxes.push(mine);
                return;
            }
        }
    }

    /// Writes `text` beside a mark of `radius` at a place, wherever there is room.
    pub fn beside(&mut self, svg: &mut Svg, class: &str, (x, y): (f64, f64), radius: f64, text: &str) {
        let (wide, gap) = (width_of(text), radius + 4.0);
        // Left ends of the text, wherever it may go.
        let spots = [
            (x + gap, y + 4.0),
            (x - gap - wide, y + 4.0),
            (x - 0.5 * wide, y - gap - 2.0),
            (x - 0.5 * wide, y + gap + 10.0),
            (x + gap, y - gap - 2.0),
            (x + gap, y + gap + 10.0),
            (x - gap - wide, y - gap - 2.0),
            (x - gap - wide, y + gap + 10.0),
        ];
        self.text(svg, class, &spots, Anchor::Start, text);
    }
}
