//! Points, the line fitted to them, and below it what the line leaves over.

use super::frame::{Frame, Place, Taken};
use super::{Axis, Fit, Scale};
use crate::page::number;
use crate::page::svg::Svg;

/// Points on the line where it is drawn on a logarithmic axis.
const STEPS: u32 = 48;

pub fn draw(plot: &Fit, width: f64) -> Svg {
    let height = (0.4 * width).clamp(220.0, 300.0);
    let mut svg = Svg::new(width, 0.0);
    let line = |x: f64| plot.intercept + plot.slope * x;
    let xs: Vec<f64> = plot.points.iter().map(|p| p.x).chain(from_zero(plot)).collect();
    let bounds = plot.points.iter().flat_map(|p| p.bounds.into_iter().flat_map(|(lo, hi)| [lo, hi]));
    let on_line = xs.iter().map(|x| line(*x));
    let ys: Vec<f64> = plot.points.iter().map(|p| p.y).chain(bounds).chain(on_line).collect();
    let place = Place { top: 0.0, height, width, right: 0.0 };
    let frame = Frame::draw(&mut svg, &place, [&plot.x, &plot.y], &xs, &ys);
    let (from, to) = frame.x.ends();
    let places = (0..=STEPS).map(|i| f64::from(i) / f64::from(STEPS));
    let places = places.map(|share| match plot.x.scale {
        Scale::Linear => from + share * (to - from),
        Scale::Log | Scale::Log2 => from * (to / from).powf(share),
    });
    let drawn: Vec<(f64, f64)> = places.filter(|x| frame.y.holds(line(*x))).map(|x| frame.at(x, line(x))).collect();
    svg.polyline("curve fit", &drawn);
    let mut taken = Taken::inside(frame.area());
    taken.line(&drawn);
    for p in &plot.points {
        taken.mark(frame.at(p.x, p.y), 4.0);
    }
    for p in &plot.points {
        let at = frame.at(p.x, p.y);
        if let Some((lo, hi)) = p.bounds {
            svg.line("bar chosen", (at.0, frame.y.at(lo)), (at.0, frame.y.at(hi)));
        }
        svg.dot("dot chosen", at, 4.0, &title(plot, p));
        taken.beside(&mut svg, "label", at, 4.0, &p.label);
    }
    let below = residuals(&mut svg, plot, &xs, height + 10.0, width);
    svg.set_height(below);
    svg
}

/// Zero belongs to the range where the line is read there, since its value at zero is half of what a fit says.
fn from_zero(plot: &Fit) -> Option<f64> {
    (plot.x.scale == Scale::Linear).then_some(0.0)
}

fn title(plot: &Fit, p: &super::Point) -> String {
    let left = p.y - (plot.intercept + plot.slope * p.x);
    format!("{}: {} at {}, {} off the line", p.label, number::sig(p.y, 4), number::sig(p.x, 4), number::sig(left, 3))
}

fn residuals(svg: &mut Svg, plot: &Fit, xs: &[f64], top: f64, width: f64) -> f64 {
    let left: Vec<(f64, f64)> = plot.points.iter().map(|p| (p.x, p.y - (plot.intercept + plot.slope * p.x))).collect();
    let widest = left.iter().map(|r| r.1.abs()).fold(0.0, f64::max);
    let ys = [-widest, 0.0, widest];
    let y = Axis::linear(format!("left over by the line; {}", plot.y.label));
    let height = 150.0;
    let frame = Frame::draw(svg, &Place { top, height, width, right: 0.0 }, [&plot.x, &y], xs, &ys);
    let [from, _, to, _] = frame.area();
    svg.line("mark", (from, frame.y.at(0.0)), (to, frame.y.at(0.0)));
    for ((x, r), p) in left.iter().zip(&plot.points) {
        let at = frame.at(*x, *r);
        svg.line("stem", (at.0, frame.y.at(0.0)), at);
        svg.dot("dot chosen", at, 4.0, &title(plot, p));
    }
    top + height
}
