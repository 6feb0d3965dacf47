//! The candidates of a space: all of them, or a sample of a space that is too large to look at one by one.

use std::collections::BTreeSet;

use crate::config::{Config, Value};
use crate::model::Axis;
use crate::scripted::Rng;
use crate::space::{Param, Space};

/// Combinations up to which a space is looked at one by one: in seconds, and some hundred bytes for each that is legal.
const WHOLE: u128 = 1 << 19;

/// Combinations up to which those that a constraint forbids are listed with its name; of more they are only counted.
const NAMED: u128 = 20_000;

/// Legal candidates that a sample ends with, and combinations that are looked at for them at most.
const SAMPLE: usize = 1 << 14;
const LOOKS: usize = 1 << 20;

/// Candidates other than the default, and what was found beside them.
pub(crate) struct Listed {
    /// Numbers of the legal ones, rising.
    pub legal: Vec<u128>,
    /// Those that a constraint forbids, and its name, unless there are too many.
    pub forbidden: Vec<(Config, String)>,
    /// How many those are.
    pub forbidden_count: usize,
    /// Whether this is a sample.
    pub sampled: bool,
}

impl Listed {
    /// The candidates of `space`; the same at every call.
    pub fn of(space: &Space) -> Listed {
        let mut listed = Listed { legal: Vec::new(), forbidden: Vec::new(), forbidden_count: 0, sampled: false };
        if space.size() <= WHOLE {
            let named = space.size() <= NAMED;
            (0..space.size()).for_each(|number| listed.look(space, number, named));
            return listed;
        }
        listed.sampled = true;
        let mut seen = BTreeSet::new();
        let mut look = |listed: &mut Listed, number: u128| {
            if seen.insert(number) {
                listed.look(space, number, false);
            }
        };
        for p in &space.params {
            let off = p.values.iter().map(|v| space.default.clone().with(p.name, v.clone()));
            off.filter_map(|c| space.number(&c)).for_each(|number| look(&mut listed, number));
        }
        let mut rng = Rng::new(0);
        for _ in 0..LOOKS {
            if listed.legal.len() >= SAMPLE {
                break;
            }
            let place = |number, p: &Param| {
                let n = p.values.len();
                number * n as u128 + ((rng.uniform() * n as f64) as usize).min(n - 1) as u128
            };
            let number = space.params.iter().fold(0, place);
            look(&mut listed, number);
        }
        listed.legal.sort_unstable();
        listed
    }

    fn look(&mut self, space: &Space, number: u128, named: bool) {
        let config = space.combination(number);
        if config == space.default {
            return;
        }
        match space.violated(&config) {
            None => self.legal.push(number),
            Some(name) => {
                self.forbidden_count += 1;
                if named {
                    self.forbidden.push((config, name));
                }
            }
        }
    }
}

/// A parameter as an axis: where its values lie on it.
pub(crate) struct Scale {
    /// How they lie.
    pub axis: Axis,
    /// The place of each value, in the order of the parameter: sizes by rank, names in that order.
    places: Vec<usize>,
}

impl Scale {
    pub fn of(param: &Param) -> Scale {
        let sizes = param.values.iter().all(|v| matches!(v, Value::Int(_)));
        let rank = |v: &Value| param.values.iter().filter(|other| *other < v).count();
        let (axis, places) = match sizes {
            true => (Axis::Sizes, param.values.iter().map(rank).collect()),
            false => (Axis::Names, (0..param.values.len()).collect()),
        };
        Scale { axis, places }
    }

    pub fn len(&self) -> usize {
        self.places.len()
    }
}

/// Places of the values of combination `number`.
pub(crate) fn places(scales: &[Scale], mut number: u128) -> Vec<usize> {
    let mut at = vec![0; scales.len()];
    for (at, scale) in at.iter_mut().zip(scales).rev() {
        *at = scale.places[(number % scale.len() as u128) as usize];
        number /= scale.len() as u128;
    }
    at
}

/// The combination whose values are at these places.
pub(crate) fn number_at(scales: &[Scale], at: &[usize]) -> u128 {
    scales.iter().zip(at).fold(0, |number, (scale, at)| {
        let digit = scale.places.iter().position(|place| place == at).expect("every place is a value's");
        number * scale.len() as u128 + digit as u128
    })
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::space::Constraint;

    /// `digits` parameters of ten values each, falling, of which the first and the second may not be equal.
    fn space(digits: usize) -> Space {
        const NAMES: [&str; 12] = ["A", "B", "C", "D", "E", "F", "G", "H", "I", "J", "K", "L"];
        let values: Vec<Value> = (0..10).rev().map(Value::Int).collect();
        let param = |name| Param { name, trades: "nothing", values: values.clone() };
        let default = NAMES[..digits].iter().zip(0..).fold(Config::new(), |c, (name, i)| c.with(name, i % 10));
        let differ = Constraint::new("A != B", |c| c.get("A") != c.get("B"));
        Space { params: NAMES[..digits].iter().map(|n| param(n)).collect(), constraints: vec![differ], default }
    }

    #[test]
    fn a_small_space_is_listed_whole_and_in_order() {
        let space = space(3);
        let listed = Listed::of(&space);
        let legal: Vec<Config> = listed.legal.iter().map(|n| space.combination(*n)).collect();
        let want: Vec<Config> = space.each().skip(1).filter(|c| space.violated(c).is_none()).collect();
        assert_eq!((legal.len(), listed.forbidden.len(), listed.forbidden_count), (899, 100, 100));
        assert!(legal == want && !listed.sampled);
    }

    #[test]
    fn a_huge_space_is_sampled_evenly_with_all_that_is_one_value_from_the_default() {
        let space = space(12);
        let listed = Listed::of(&space);
        assert!(listed.sampled && listed.legal.len() >= SAMPLE && listed.legal.len() < SAMPLE + 12 * 9);
        assert!(listed.legal.is_sorted_by(|a, b| a < b));
        let share = listed.forbidden_count as f64 / listed.legal.len() as f64;
        assert!((0.09..0.13).contains(&share), "a tenth is forbidden: {share}");
        let below = listed.legal.iter().filter(|n| **n < space.size() / 4).count() as f64 / listed.legal.len() as f64;
        assert!((0.23..0.27).contains(&below), "{below}");
        let one = space.default.clone().with("L", 9);
        assert!(listed.legal.contains(&space.number(&one).expect("in the space")));
        assert_eq!(listed.legal, Listed::of(&space).legal);
    }

    #[test]
    fn numbers_and_places_agree() {
        let space = space(3);
        let scales: Vec<Scale> = space.params.iter().map(Scale::of).collect();
        for number in [0, 7, 123, 999] {
            assert_eq!(space.number(&space.combination(number)), Some(number));
            assert_eq!(number_at(&scales, &places(&scales, number)), number);
        }
        // Values fall, places rise with them.
        assert_eq!(places(&scales, 129), [8, 7, 0]);
        assert_eq!(space.number(&Config::new().with("A", 77)), None);
    }
}
