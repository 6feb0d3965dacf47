//! Plots as data, each drawn as SVG at any width.
//!
//! The writer is our own and not a plotting library's: colours have to be classes that follow a reader's light or dark
//! scheme, marks need titles, labels must not collide at 340 pixels, and text from outside must be escaped.

mod axis;
mod curves;
mod fit;
mod frame;
mod intervals;
mod roofline;
mod stacked;

use serde::{Deserialize, Serialize};

use super::svg::Svg;

/// What a colour means; the style sheet gives it for light and for dark.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tone {
    /// Nothing in particular.
    #[default]
    Plain,
    /// What is used now, or our side of a comparison.
    Chosen,
    /// What it is held against: the default.
    Default,
    /// Somebody else's.
    Peer,
    /// Refused, slower, discarded.
    Bad,
    /// Of less weight.
    Muted,
}

impl Tone {
    /// The class of marks and text in this tone.
    pub(super) fn class(self) -> &'static str {
        match self {
            Tone::Plain => "plain",
            Tone::Chosen => "chosen",
            Tone::Default => "default",
            Tone::Peer => "peer",
            Tone::Bad => "bad",
            Tone::Muted => "muted",
        }
    }
}

/// How an axis grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scale {
    /// By equal steps; the range holds zero where zero is near.
    #[default]
    Linear,
    /// By equal factors; only values above zero are drawn.
    Log,
    /// The same with powers of two for ticks, as for numbers of threads.
    Log2,
}

/// An axis: what it measures, with its unit.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Axis {
    /// Such as `time of a token (us)`.
    pub label: String,
    /// How it grows.
    #[serde(default)]
    pub scale: Scale,
}

impl Axis {
    /// An axis of equal steps.
    pub fn linear(label: impl Into<String>) -> Self {
        Axis { label: label.into(), scale: Scale::Linear }
    }

    /// An axis of equal factors.
    pub fn log(label: impl Into<String>) -> Self {
        Axis { label: label.into(), scale: Scale::Log }
    }
}

/// A line across a plot at a value: a bound, a target, the default.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Mark {
    /// Where.
    pub at: f64,
    /// What it is, in one or two words.
    pub label: String,
}

/// A value at a place, with bounds where there are any.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Point {
    /// Where.
    pub x: f64,
    /// The value.
    pub y: f64,
    /// Lower and upper bound.
    #[serde(default)]
    pub bounds: Option<(f64, f64)>,
    /// Shown at the point where there is room, and always in its title.
    #[serde(default)]
    pub label: String,
}

/// Estimates below each other, each with its bounds: a ranking, or a comparison.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Intervals {
    /// What is shown.
    pub title: String,
    /// How it was measured, and what the marks are.
    #[serde(default)]
    pub note: String,
    /// The axis of the values.
    pub x: Axis,
    /// Lines across all rows.
    #[serde(default)]
    pub marks: Vec<Mark>,
    /// From top to bottom.
    pub rows: Vec<Row>,
    /// Tones and what they stand for, in the order of the legend.
    #[serde(default)]
    pub legend: Vec<(Tone, String)>,
}

/// One estimate; a row without a value is a heading.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Row {
    /// Who.
    pub label: String,
    /// The estimate.
    #[serde(default)]
    pub value: Option<f64>,
    /// Lower and upper bound.
    #[serde(default)]
    pub bounds: Option<(f64, f64)>,
    /// Raw samples, drawn as faint ticks.
    #[serde(default)]
    pub samples: Vec<f64>,
    /// The value as text, drawn at the right.
    #[serde(default)]
    pub text: String,
    /// What its colour says.
    #[serde(default)]
    pub tone: Tone,
}

/// Achieved rates under measured ceilings, both axes logarithmic.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Roofline {
    /// What is shown.
    pub title: String,
    /// How the ceilings were measured.
    #[serde(default)]
    pub note: String,
    /// Bandwidths in GB/s: the slopes; labelled like `24.10 GB/s read`.
    pub slopes: Vec<Mark>,
    /// Arithmetic rates in 1e9 operations a second: the flat roofs; labelled like `430.1 GOP/s in int8`.
    pub flats: Vec<Mark>,
    /// Kernels.
    pub points: Vec<Kernel>,
    /// Tones and what they stand for, in the order of the legend.
    #[serde(default)]
    pub legend: Vec<(Tone, String)>,
}

/// A kernel under a roofline.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Kernel {
    /// Its name, short.
    pub label: String,
    /// Operations for each byte that must move.
    pub intensity: f64,
    /// 1e9 operations a second that it achieves.
    pub gop_s: f64,
    /// What its colour says.
    #[serde(default)]
    pub tone: Tone,
}

/// Horizontal bars made of parts that add up.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Stacked {
    /// What is shown.
    pub title: String,
    /// How it was measured.
    #[serde(default)]
    pub note: String,
    /// The axis of the sums.
    pub x: Axis,
    /// Names of the parts, in the order in which they are laid out; at most eight.
    /// The last of four or more has less weight than the others: what is left belongs there.
    pub parts: Vec<String>,
    /// From top to bottom: a label, a value for each part, and the sum as text.
    pub bars: Vec<Bar>,
}

/// One bar.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Bar {
    /// Whose.
    pub label: String,
    /// As many as there are parts, none negative.
    pub values: Vec<f64>,
    /// The values as text, for titles.
    pub texts: Vec<String>,
    /// The sum as text, drawn at the right.
    pub text: String,
}

/// Points, the line fitted to them, and below it what the line leaves over.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Fit {
    /// What is shown.
    pub title: String,
    /// The line in words, with the bounds of its numbers.
    #[serde(default)]
    pub note: String,
    /// What was varied.
    pub x: Axis,
    /// What was measured.
    pub y: Axis,
    /// The measurements.
    pub points: Vec<Point>,
    /// Value of the line at zero.
    pub intercept: f64,
    /// Its rise for each unit of `x`.
    pub slope: f64,
}

/// Lines or points over a range, with bounds.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Curves {
    /// What is shown.
    pub title: String,
    /// How it was measured.
    #[serde(default)]
    pub note: String,
    /// The range.
    pub x: Axis,
    /// The values.
    pub y: Axis,
    /// Lines across the plot at values of `y`.
    #[serde(default)]
    pub marks: Vec<Mark>,
    /// At most eight.
    pub series: Vec<Series>,
}

/// One line, or one kind of point.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Series {
    /// What it is, for the legend.
    pub name: String,
    /// In the order of `x`.
    pub points: Vec<Point>,
    /// Whether the points are joined.
    #[serde(default)]
    pub joined: bool,
    /// What its colour says; `Plain` gives each series a colour of its own.
    #[serde(default)]
    pub tone: Tone,
}

/// Any plot.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Plot {
    /// Estimates with bounds.
    Intervals(Intervals),
    /// Rates under ceilings.
    Roofline(Roofline),
    /// Bars of parts.
    Stacked(Stacked),
    /// A line through points.
    Fit(Fit),
    /// Values over a range.
    Curves(Curves),
}

macro_rules! plots {
    ($($kind:ident),*) => {
        $(impl From<$kind> for Plot {
            fn from(plot: $kind) -> Self {
                Plot::$kind(plot)
            }
        })*
    };
}

plots!(Intervals, Roofline, Stacked, Fit, Curves);

impl Plot {
    /// What is shown.
    pub fn title(&self) -> &str {
        match self {
            Plot::Intervals(p) => &p.title,
            Plot::Roofline(p) => &p.title,
            Plot::Stacked(p) => &p.title,
            Plot::Fit(p) => &p.title,
            Plot::Curves(p) => &p.title,
        }
    }

    /// How it was measured.
    pub fn note(&self) -> &str {
        match self {
            Plot::Intervals(p) => &p.note,
            Plot::Roofline(p) => &p.note,
            Plot::Stacked(p) => &p.note,
            Plot::Fit(p) => &p.note,
            Plot::Curves(p) => &p.note,
        }
    }

    /// The drawing as a file of its own, `width` pixels wide.
    pub fn file(&self, width: f64) -> String {
        self.svg(width).document(self.title(), include_str!("plot.css"))
    }

    /// The drawing, `width` units wide; a unit is a pixel where it is shown at its own size.
    pub(super) fn svg(&self, width: f64) -> Svg {
        match self {
            Plot::Intervals(p) => intervals::draw(p, width),
            Plot::Roofline(p) => roofline::draw(p, width),
            Plot::Stacked(p) => stacked::draw(p, width),
            Plot::Fit(p) => fit::draw(p, width),
            Plot::Curves(p) => curves::draw(p, width),
        }
    }
}
