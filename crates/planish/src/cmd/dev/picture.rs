//! `planish dev picture`: the README's picture from its data: tokens a second before and after tuning beside a peer.

use serde::Deserialize;

use crate::page::number::{fixed, thousands};
use crate::page::plot::{Axis, Mark, Row};
use crate::page::{Intervals, Plot, Tone};

/// The width at which a README shows it.
const WIDTH: f64 = 860.0;

/// The data, of which every number was measured and is told elsewhere in the documents.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Picture {
    title: String,
    groups: Vec<Group>,
}

/// One machine.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    machine: String,
    rows: Vec<Compared>,
}

/// One model on one path, in tokens a second; with several rounds, the first is shown and all bound it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Compared {
    what: String,
    /// Of the defaults, round by round.
    default: Vec<f64>,
    /// Of the tuned set; empty where tuning changed nothing, absent where nothing was tuned.
    tuned: Option<Vec<f64>>,
    /// Of the peer, in the same rounds.
    peer: Vec<f64>,
    /// Largest spread of a side within its round, as a share; absent where none was written down.
    spread: Option<f64>,
}

/// The picture as SVG; an error says what is wrong with the data.
pub fn draw(data: &str) -> Result<String, String> {
    let picture: Picture = serde_json::from_str(data).map_err(|e| e.to_string())?;
    let mut rows = Vec::new();
    for group in &picture.groups {
        let text = "default, tuned, llama.cpp: tokens/s".to_owned();
        rows.push(Row { label: group.machine.clone(), text, ..Row::default() });
        for compared in &group.rows {
            rows.extend(compared.rows()?);
        }
    }
    let legend = [(Tone::Chosen, "planish as it runs"), (Tone::Default, "its defaults, where tuning changed them")];
    let legend = legend.iter().filter(|(tone, _)| rows.iter().any(|r| r.tone == *tone));
    let plot = Intervals {
        legend: legend.map(|(tone, name)| (*tone, (*name).to_owned())).collect(),
        title: picture.title,
        x: Axis::linear("speed over llama.cpp in the same call (x); bars span rounds, or the spread within one"),
        marks: vec![Mark { at: 1.0, label: "llama.cpp".into() }],
        rows,
        ..Intervals::default()
    };
    Ok(Plot::from(plot).file(WIDTH))
}

impl Compared {
    /// The row of what runs, after that of the default where tuning changed it.
    fn rows(&self) -> Result<Vec<Row>, String> {
        let default = self.over_peer(&self.default)?;
        let tuned = match self.tuned.as_deref() {
            None => "not tuned".to_owned(),
            Some([]) => "no effect".to_owned(),
            Some([first, ..]) => thousands(&fixed(*first, 0)),
        };
        let [before, peer] = [&self.default, &self.peer].map(|r| thousands(&fixed(r[0], 0)));
        let text = format!("{before}, {tuned}, {peer}");
        let row = |(value, bounds), text, tone| Row {
            label: self.what.clone(),
            value: Some(value),
            bounds,
            text,
            tone,
            ..Row::default()
        };
        Ok(match self.tuned.as_deref() {
            None | Some([]) => vec![row(default, text, Tone::Chosen)],
            Some(rounds) => {
                vec![row(default, String::new(), Tone::Default), row(self.over_peer(rounds)?, text, Tone::Chosen)]
            }
        })
    }

    /// The first round's ratio to the peer, between bounds where they are known.
    #[allow(clippy::type_complexity)]
    fn over_peer(&self, rounds: &[f64]) -> Result<(f64, Option<(f64, f64)>), String> {
        let usable = |r: &[f64]| !r.is_empty() && r.iter().all(|v| v.is_finite() && *v > 0.0);
        if !usable(rounds) || !usable(&self.peer) || rounds.len() != self.peer.len() {
            return Err(format!("{}: rounds of {rounds:?} and of {:?} are no pairs", self.what, self.peer));
        }
        let ratios: Vec<f64> = rounds.iter().zip(&self.peer).map(|(ours, theirs)| ours / theirs).collect();
        let edge = self.spread.unwrap_or(0.0);
        let lo = ratios.iter().copied().fold(f64::INFINITY, f64::min) * (1.0 - edge) / (1.0 + edge);
        let hi = ratios.iter().copied().fold(0.0, f64::max) * (1.0 + edge) / (1.0 - edge);
        Ok((ratios[0], (hi > lo).then_some((lo, hi))))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    #[test]
    fn the_committed_picture_shows_the_committed_data() {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
        let data = fs::read_to_string(docs.join("picture.json")).unwrap();
        let committed = fs::read_to_string(docs.join("picture.svg")).unwrap();
        assert!(draw(&data).unwrap() == committed, "run: planish dev picture docs/picture.json docs/picture.svg");
    }

    #[test]
    fn the_readme_tells_the_numbers_of_the_picture() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let [readme, data] = ["README.md", "docs/picture.json"].map(|p| fs::read_to_string(root.join(p)).unwrap());
        let picture: Picture = serde_json::from_str(&data).unwrap();
        for row in picture.groups.iter().flat_map(|g| &g.rows) {
            for value in row.default.iter().chain(&row.peer).chain(row.tuned.iter().flatten()) {
                let text = thousands(&fixed(*value, 0));
                assert!(readme.contains(&text), "{}: {text} is not in the README", row.what);
            }
        }
    }

    #[test]
    fn rounds_and_spreads_bound_a_ratio() {
        let compared = |tuned, spread| Compared {
            what: "x".into(),
            default: vec![150.0, 120.0],
            tuned,
            peer: vec![75.0, 40.0],
            spread,
        };
        assert_eq!(compared(None, None).over_peer(&[150.0, 120.0]), Ok((2.0, Some((2.0, 3.0)))));
        let (_, bounds) = compared(None, Some(0.01)).over_peer(&[150.0, 120.0]).unwrap();
        assert!(bounds.is_some_and(|(lo, hi)| lo < 1.97 && hi > 3.05));
        assert!(compared(None, None).over_peer(&[150.0]).is_err());
        let texts = |tuned| compared(tuned, None).rows().unwrap().into_iter().map(|r| r.text).collect::<Vec<_>>();
        assert_eq!(texts(None), ["150, not tuned, 75"]);
        assert_eq!(texts(Some(vec![])), ["150, no effect, 75"]);
        assert_eq!(texts(Some(vec![165.0, 130.0])), ["", "150, 165, 75"]);
    }
}
