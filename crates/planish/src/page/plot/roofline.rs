//! Achieved rates under measured ceilings, both axes logarithmic.

use super::frame::{Frame, Place, Taken};
use super::{Axis, Kernel, Roofline, Tone};
use crate::page::number;
use crate::page::svg::{Anchor, Svg, width_of};

pub fn draw(plot: &Roofline, width: f64) -> Svg {
    let mut svg = Svg::new(width, 0.0);
    let legend: Vec<(String, String)> = plot.legend.iter().map(|(t, n)| (t.class().to_owned(), n.clone())).collect();
    let top = svg.legend(0.0, &legend) + 2.0;
    let height = (0.5 * width).clamp(260.0, 400.0);
    let usable = |k: &&Kernel| k.intensity > 0.0 && k.gop_s > 0.0;
    let kernels: Vec<&Kernel> = plot.points.iter().filter(usable).collect();
    let fastest = plot.slopes.iter().map(|s| s.at).fold(0.0, f64::max);
    let roof = plot.flats.iter().map(|f| f.at).fold(0.0, f64::max);
    // Half a decade past the outermost kernels and the ridge, so that the corner of the roof is seen.
    let ridges = plot.flats.iter().filter(|_| fastest > 0.0).map(|f| f.at / fastest);
    let xs: Vec<f64> = kernels.iter().map(|k| k.intensity).chain(ridges).flat_map(|v| [v / 3.0, v * 3.0]).collect();
    let lowest = xs.iter().copied().fold(f64::INFINITY, f64::min);
    let under = kernels.iter().map(|k| k.gop_s / 2.0).chain((fastest > 0.0).then_some(fastest * lowest));
    // Without a flat roof, the slope is followed until it is over the outermost kernel.
    let over = kernels.iter().filter(|_| roof <= 0.0 && fastest > 0.0).map(|k| 1.5 * fastest * k.intensity);
    let ys: Vec<f64> =
        under.chain(over).chain(kernels.iter().map(|k| k.gop_s)).chain((roof > 0.0).then_some(1.6 * roof)).collect();
    let axes = [
        Axis::log("arithmetic intensity (operations for each byte that must move)"),
        Axis::log("achieved (1e9 operations a second)"),
    ];
    let place = Place { top, height, width, right: 0.0 };
    let frame = Frame::draw(&mut svg, &place, [&axes[0], &axes[1]], &xs, &ys);
    let mut taken = Taken::inside(frame.area());
    for k in &kernels {
        taken.mark(frame.at(k.intensity, k.gop_s), 5.0);
    }
    ceilings(&mut svg, plot, &frame, &mut taken, (fastest, roof));
    for k in kernels.iter().rev() {
        draw_kernel(&mut svg, k, &frame, &mut taken);
    }
    svg.set_height(top + height);
    svg
}

fn ceilings(svg: &mut Svg, plot: &Roofline, frame: &Frame, taken: &mut Taken, (fastest, roof): (f64, f64)) {
    let (left, right) = frame.x.ends();
    let (low, high) = frame.y.ends();
    let limit = if roof > 0.0 { roof.min(high) } else { high };
    for slope in plot.slopes.iter().filter(|s| s.at > 0.0) {
        let (from, to) = (left.max(low / slope.at), right.min(limit / slope.at));
        if from < to {
            let ends = [frame.at(from, from * slope.at), frame.at(to, to * slope.at)];
            svg.line("roof", ends[0], ends[1]);
            taken.line(&ends);
            let at = (from.powf(0.6) * to.powf(0.4)).max(from);
            let (x, y) = frame.at(at, at * slope.at);
            let wide = width_of(&slope.label);
            let spots =
                [(x - wide - 8.0, y - 4.0), (x - wide - 8.0, y - 20.0), (x + 12.0, y + 14.0), (x + 16.0, y + 30.0)];
            taken.text(svg, "label", &spots, Anchor::Start, &slope.label);
        }
    }
    for flat in plot.flats.iter().filter(|f| frame.y.holds(f.at)) {
        let from = if fastest > 0.0 { (flat.at / fastest).clamp(left, right) } else { left };
        svg.line("roof", frame.at(from, flat.at), frame.at(right, flat.at));
        taken.line(&[frame.at(from, flat.at), frame.at(right, flat.at)]);
        let (x, y) = frame.at(right, flat.at);
        taken.text(svg, "label", &[(x, y - 6.0), (x, y + 14.0), (x, y + 28.0)], Anchor::End, &flat.label);
    }
}

fn draw_kernel(svg: &mut Svg, k: &Kernel, frame: &Frame, taken: &mut Taken) {
    let at = frame.at(k.intensity, k.gop_s);
    let title = format!("{}: {}e9 operations a second", k.label, number::sig(k.gop_s, 4));
    let class = format!("dot {}", k.tone.class());
    if k.tone == Tone::Chosen {
        svg.diamond(&class, at, 5.5, &title);
        taken.beside(svg, "label", at, 5.0, &k.label);
    } else {
        svg.dot(&class, at, 4.0, &title);
        if !k.label.is_empty() && k.tone != Tone::Default {
            taken.beside(svg, "label", at, 4.0, &k.label);
        }
    }
}
