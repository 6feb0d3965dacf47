//! Lines or points over a range, with bounds and lines across.

use super::frame::{Frame, Place, Taken};
use super::{Curves, Series, Tone};
use crate::page::svg::{Anchor, Svg};

pub fn draw(plot: &Curves, width: f64) -> Svg {
    let mut svg = Svg::new(width, 0.0);
    let class = |(i, s): (usize, &Series)| match s.tone {
        Tone::Plain => format!("s{}", i % 8 + 1),
        tone => tone.class().to_owned(),
    };
    let named = plot.series.iter().enumerate().filter(|(_, s)| !s.name.is_empty());
    let legend: Vec<(String, String)> = named.map(|(i, s)| (class((i, s)), s.name.clone())).collect();
    let top = svg.legend(0.0, &legend) + 2.0;
    let height = (0.42 * width).clamp(220.0, 320.0);
    let points = || plot.series.iter().flat_map(|s| &s.points);
    let xs: Vec<f64> = points().map(|p| p.x).collect();
    let bounds = points().flat_map(|p| p.bounds.into_iter().flat_map(|(lo, hi)| [lo, hi]));
    let ys: Vec<f64> = points().map(|p| p.y).chain(bounds).chain(plot.marks.iter().map(|m| m.at)).collect();
    let place = Place { top, height, width, right: 0.0 };
    let frame = Frame::draw(&mut svg, &place, [&plot.x, &plot.y], &xs, &ys);
    let mut taken = Taken::inside(frame.area());
    for (i, series) in plot.series.iter().enumerate() {
        draw_series(&mut svg, series, &class((i, series)), &frame, &mut taken);
    }
    for p in points().filter(|p| !p.label.is_empty()) {
        taken.beside(&mut svg, "label", frame.at(p.x, p.y), 3.0, &p.label);
    }
    frame.marks(&mut svg, &plot.marks, &mut taken);
    if xs.is_empty() {
        let [left, top, right, bottom] = frame.area();
        svg.text("label", (0.5 * (left + right), 0.5 * (top + bottom)), Anchor::Middle, "nothing was measured");
    }
    svg.set_height(top + height);
    svg
}

fn draw_series(svg: &mut Svg, series: &Series, class: &str, frame: &Frame, taken: &mut Taken) {
    if series.joined {
        let line: Vec<(f64, f64)> = series.points.iter().map(|p| frame.at(p.x, p.y)).collect();
        svg.polyline(&format!("curve {class}"), &line);
    }
    // Many points are small ones.
    let radius = if series.points.len() > 60 { 2.0 } else { 3.0 };
    for p in &series.points {
        let (x, y) = frame.at(p.x, p.y);
        if let Some((lo, hi)) = p.bounds {
            let (lo, hi) = (frame.y.at(lo), frame.y.at(hi));
            svg.line(&format!("bar {class}"), (x, lo), (x, hi));
            for end in [lo, hi] {
                svg.line(&format!("bar {class}"), (x - 3.0, end), (x + 3.0, end));
            }
        }
        let name = if p.label.is_empty() { &series.name } else { &p.label };
        svg.dot(&format!("dot {class}"), (x, y), radius, name);
        taken.mark((x, y), radius);
    }
}
