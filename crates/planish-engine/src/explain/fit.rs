//! A straight line through points by least squares, with what tells whether to believe it.

use planish_tune::counted;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// A line, its 95% intervals, and what each point does to it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// Rise for one unit of x.
    pub slope: f64,
    /// Its interval.
    pub slope_interval: [f64; 2],
    /// Value at x = 0.
    pub intercept: f64,
    /// Its interval.
    pub intercept_interval: [f64; 2],
    /// Standard deviation of the points about the line.
    pub deviation: f64,
    /// Points.
    pub points: Vec<Point>,
}

/// A point of a fit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Where.
    pub x: f64,
    /// What was measured.
    pub y: f64,
    /// Above the line.
    pub residual: f64,
    /// How much the point pulls the line to itself, 0 to 1; the leverages of all points add up to 2.
    pub leverage: f64,
}

/// The 97.5% quantile of Student's t for 1 to 30 degrees of freedom.
const T: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];

/// The line through `points`; none with fewer than three, or all at one x.
pub fn line(points: &[(f64, f64)]) -> Option<Line> {
    let n = points.len();
    if n < 3 || points.iter().any(|(x, y)| !x.is_finite() || !y.is_finite()) {
        return None;
    }
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / n as f64;
    let (mx, my) = (mean(|p| p.0), mean(|p| p.1));
    let sxx: f64 = points.iter().map(|(x, _)| (x - mx).powi(2)).sum();
    if sxx <= 0.0 {
        return None;
    }
    let slope = points.iter().map(|(x, y)| (x - mx) * (y - my)).sum::<f64>() / sxx;
    let intercept = my - slope * mx;
    let point = |(x, y): &(f64, f64)| Point {
        x: *x,
        y: *y,
        residual: y - (intercept + slope * x),
        leverage: 1.0 / n as f64 + (x - mx).powi(2) / sxx,
    };
    let points: Vec<Point> = points.iter().map(point).collect();
    let deviation = (points.iter().map(|p| p.residual.powi(2)).sum::<f64>() / (n - 2) as f64).sqrt();
    let t = T.get(n - 3).copied().unwrap_or(1.96);
    let interval = |value: f64, error: f64| [value - t * error, value + t * error];
    Some(Line {
        slope,
        slope_interval: interval(slope, deviation / sxx.sqrt()),
        intercept,
        intercept_interval: interval(intercept, deviation * (1.0 / n as f64 + mx.powi(2) / sxx).sqrt()),
        deviation,
        points,
    })
}

/// What a model adds to a fit of time against bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Which model.
    pub model: String,
    /// Bytes that a token reads: weights, and keys and values at the position.
    pub bytes: f64,
    /// A token's time, nanoseconds.
    pub token_ns: super::Bounds,
    /// How its steps are handed over.
    pub path: String,
    /// How its activations meet its weights.
    pub class: String,
    /// Types of its matrices.
    pub types: String,
    /// Blocks.
    pub layers: usize,
    /// Tokens in the cache before.
    pub position: usize,
}

/// Time against bytes over several models.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fit {
    /// The models.
    pub samples: Vec<Sample>,
    /// Nanoseconds by bytes.
    pub line: Line,
    /// 1 / slope, GB/s; none where more bytes take no more time.
    pub gb_s: Option<f64>,
    /// The interval of the slope, as rates; an end is none where the slope's interval holds zero.
    pub gb_s_interval: [Option<f64>; 2],
    /// What a token takes beside its bytes, microseconds.
    pub intercept_us: f64,
    /// Its interval.
    pub intercept_us_interval: [f64; 2],
    /// What speaks against believing the two.
    pub cautions: Vec<String>,
}

/// Fewest models of a fit: a line through two points reproduces both and gets its parts wrong.
pub const MODELS_MIN: usize = 4;
/// A point with more leverage than this decides the line by itself.
const LEVERAGE_MAX: f64 = 0.8;

/// Refuses what no line should go through: too few models or sizes, several paths, classes or positions.
pub fn check(samples: &[Sample]) -> Result<()> {
    if samples.len() < MODELS_MIN {
        let message = format!("a fit through {}: at least {MODELS_MIN} are needed", counted(samples.len(), "model"));
        return Err(Error::request(message)
            .with_hint("`planish dev write-model --shapes ladder-384` and its siblings make files of graded sizes"));
    }
    type Fact = fn(&Sample) -> String;
    let facts: [(&str, Fact, &str); 3] = [
        ("path", |s| s.path.clone(), "pin one with --path"),
        ("class of activations", |s| s.class.clone(), "give models whose weights all meet the same activations"),
        ("position", |s| s.position.to_string(), "give --position"),
    ];
    for (what, of, hint) in facts {
        if let Some(other) = samples.iter().find(|s| of(s) != of(&samples[0])) {
            let (a, b) = (&samples[0], other);
            let message =
                format!("a fit over more than one {what}: {} has {}, {} has {}", a.model, of(a), b.model, of(b));
            return Err(Error::request(message).with_hint(hint));
        }
    }
    let mut sizes: Vec<f64> = samples.iter().map(|s| s.bytes).collect();
    sizes.sort_by(f64::total_cmp);
    sizes.dedup();
    if sizes.len() < MODELS_MIN {
        let (models, listed) = (samples.len(), sizes.iter().map(|b| format!("{:.1}", b / 1e6)).collect::<Vec<_>>());
        let message = format!(
            "{models} models of {}, {} MB a token: at least {MODELS_MIN} sizes are needed",
            counted(sizes.len(), "size"),
            listed.join(", ")
        );
        return Err(Error::request(message).with_hint("give models of different sizes"));
    }
    Ok(())
}

/// The fit of samples that `check` lets pass.
pub fn fit(samples: Vec<Sample>) -> Result<Fit> {
    check(&samples)?;
    let points: Vec<(f64, f64)> = samples.iter().map(|s| (s.bytes, s.token_ns.median)).collect();
    let line = line(&points).ok_or_else(|| Error::request("times that are no numbers give no line"))?;
    let rate = |slope: f64| (slope > 0.0).then(|| 1.0 / slope);
    let cautions = cautions(&samples, &line);
    Ok(Fit {
        gb_s: rate(line.slope),
        gb_s_interval: [rate(line.slope_interval[1]), rate(line.slope_interval[0])],
        intercept_us: line.intercept / 1e3,
        intercept_us_interval: line.intercept_interval.map(|ns| ns / 1e3),
        samples,
        line,
        cautions,
    })
}

fn cautions(samples: &[Sample], line: &Line) -> Vec<String> {
    let mut all = Vec::new();
    let mut several = |what: &str, of: &dyn Fn(&Sample) -> String, why: &str| {
        let mut values: Vec<String> = samples.iter().map(of).collect();
        values.sort();
        values.dedup();
        if values.len() > 1 {
            all.push(format!("{what} differ ({}): {why}", values.join(", ")));
        }
    };
    several("layers", &|s| s.layers.to_string(), "what a layer costs beside its bytes is in both slope and intercept");
    several("types of weights", &|s| s.types.clone(), "their kernels have slopes of their own");
    for (sample, point) in samples.iter().zip(&line.points) {
        if point.leverage > LEVERAGE_MAX {
            let (model, leverage) = (&sample.model, point.leverage);
            all.push(format!("{model} decides the line by itself: leverage {leverage:.2} of at most 1"));
        }
    }
    if line.slope_interval[0] <= 0.0 {
        all.push("the slope's interval holds zero: bytes explain nothing here".to_owned());
    }
    if line.intercept_interval[0] <= 0.0 && line.intercept_interval[1] >= 0.0 {
        all.push("the intercept's interval holds zero: nothing is known to be beside the bytes".to_owned());
    }
    if line.intercept_interval[1] < 0.0 {
        all.push("the intercept is below zero, which no time is: the points do not lie on one line".to_owned());
    }
    all
}

#[cfg(test)]
mod tests {
    use super::super::Bounds;
    use super::*;

    fn sample(i: usize, bytes: f64, ns: f64) -> Sample {
        let token_ns = Bounds { median: ns, lo: ns, hi: ns, samples: 9 };
        let text = |t: &str| t.to_owned();
        let (path, class, types) = (text("pool"), text("int8"), text("q8_0"));
        Sample { model: format!("m{i}"), bytes, token_ns, path, class, types, layers: 12, position: 64 }
    }

    /// 20 GB/s and 500 us, with residuals that are orthogonal to both.
    fn graded() -> Vec<Sample> {
        let moved = [1e4, -2e4, 0.0, 2e4, -1e4];
        (0..5).map(|i| sample(i, 1e8 * i as f64, 5e5 + 5e6 * i as f64 + moved[i])).collect()
    }

    #[test]
    fn a_known_line_is_found_with_intervals_that_hold_it() {
        let fit = fit(graded()).expect("five models");
        // sum of (x - mean)(moved) is 1e8 (-2e4 + 2e4 + 2e4 - 2e4) = 0, and the sum of moved is 0.
        assert!((fit.gb_s.expect("a rate") - 20.0).abs() < 1e-9 && (fit.intercept_us - 500.0).abs() < 1e-6, "{fit:?}");
        // s = sqrt(10) 1e4 / sqrt(3); the error of the slope is s / (sqrt(10) 1e8), of the intercept s sqrt(0.2 + 0.4).
        let s = 1e5_f64.sqrt() * 100.0 / 3f64.sqrt();
        let wanted = 3.182 * s / (10f64.sqrt() * 1e8);
        assert!((fit.line.deviation - s).abs() < 1e-6 * s);
        assert!((fit.line.slope_interval[1] - fit.line.slope - wanted).abs() < 1e-9 * wanted.abs());
        let wanted = 3.182 * s * 0.6f64.sqrt();
        assert!((fit.line.intercept_interval[1] - fit.line.intercept - wanted).abs() < 1e-3);
        let leverages: Vec<f64> = fit.line.points.iter().map(|p| p.leverage).collect();
        assert!(leverages.iter().zip([0.6, 0.3, 0.2, 0.3, 0.6]).all(|(a, b)| (a - b).abs() < 1e-12), "{leverages:?}");
        assert!(fit.line.points.iter().zip([1e4, -2e4, 0.0, 2e4, -1e4]).all(|(p, r)| (p.residual - r).abs() < 1e-6));
        assert_eq!(fit.cautions, Vec::<String>::new());
    }

    #[track_caller]
    fn refused(change: impl Fn(&mut Vec<Sample>), parts: &[&str]) {
        let mut samples = graded();
        change(&mut samples);
        let error = fit(samples).expect_err("refused");
        assert!(parts.iter().all(|p| error.to_string().contains(p)) && error.hint().is_some(), "{error}");
    }

    #[test]
    fn too_few_models_and_mixed_ones_are_refused() {
        refused(|s| s.truncate(3), &["3 models", "at least 4"]);
        refused(|s| s[2].path = "token".into(), &["more than one path", "m0 has pool", "m2 has token"]);
        refused(|s| s[4].class = "f32".into(), &["class of activations", "m4 has f32"]);
        refused(|s| s[1].position = 65, &["position", "m1 has 65"]);
        refused(|s| s.iter_mut().for_each(|s| s.bytes = 1e8), &["5 models of 1 size, 100.0 MB", "at least 4 sizes"]);
        // A model that is given twice is one point.
        refused(|s| [3, 4].iter().for_each(|i| s[*i].bytes = 2e8), &["5 models of 3 sizes, 0.0, 100.0, 200.0 MB"]);
    }

    #[test]
    fn what_speaks_against_a_line_is_said() {
        let caution = |change: &dyn Fn(&mut Vec<Sample>), part: &str| {
            let mut samples = graded();
            change(&mut samples);
            let cautions = fit(samples).expect("a line").cautions;
            assert!(cautions.iter().any(|c| c.contains(part)), "no {part} in {cautions:?}");
        };
        caution(&|s| s[3].layers = 30, "layers differ (12, 30)");
        caution(&|s| s[3].types = "q4_1".into(), "types of weights differ");
        caution(&|s| s[4].bytes = 9e9, "m4 decides the line by itself");
        caution(&|s| s.iter_mut().for_each(|s| s.token_ns.median = 7e6), "the slope's interval holds zero");
        caution(&|s| s.iter_mut().for_each(|s| s.token_ns.median -= 5e5), "the intercept's interval holds zero");
        caution(&|s| s.iter_mut().for_each(|s| s.token_ns.median -= 1e6), "the intercept is below zero");
        assert!(line(&[(1.0, 2.0), (2.0, 3.0)]).is_none() && line(&[(1.0, 2.0), (1.0, 3.0), (1.0, 4.0)]).is_none());
    }
}
