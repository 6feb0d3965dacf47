//! Few configurations that together have every value of every parameter: what a promotion may combine.

use planish_kernels::Op;
use planish_kernels::op::Shape;
use planish_tune::{Config, Space, Value};

use crate::error::Result;
use crate::plan::{Choices, Chosen, Entry};

/// Configurations of `space`, the default not among them, that together hold every value of every parameter which is
/// legal beside the default's others or beside one change of them.
pub fn cover(space: &Space) -> Vec<Config> {
    let values = space.params.iter().flat_map(|p| p.values.iter().map(move |v| (p.name, v)));
    let others = values.filter(|(name, v)| space.default.get(name) != Some(v));
    let mut open: Vec<(&str, &Value, Config)> = others.filter_map(|(n, v)| Some((n, v, base(space, n, v)?))).collect();
    let mut all = Vec::new();
    while let Some((_, _, base)) = open.first() {
        let mut config = base.clone();
        for (name, value, _) in &open {
            let next = config.clone().with(name, (*value).clone());
            if config.get(name) == space.default.get(name) && space.violated(&next).is_none() {
                config = next;
            }
        }
        open.retain(|(name, value, _)| config.get(name) != Some(value));
        all.push(config);
    }
    all
}

/// The legal configuration nearest to the default in which `name` has `value`.
fn base(space: &Space, name: &str, value: &Value) -> Option<Config> {
    let alone = space.default.clone().with(name, value.clone());
    let changes =
        space.params.iter().filter(|p| p.name != name).flat_map(|p| p.values.iter().map(move |v| (p.name, v)));
    let beside = changes.map(|(n, v)| alone.clone().with(n, v.clone()));
    std::iter::once(alone.clone()).chain(beside).find(|c| space.violated(c).is_none())
}

/// One of the configurations that cover the spaces of all ops: 0 is the default of each.
#[derive(Clone, Copy, Debug)]
pub struct Way<'o> {
    /// Which.
    pub number: usize,
    /// This op alone leaves its default, where one is named.
    pub only: Option<&'o str>,
}

impl Way<'_> {
    /// What an op of this space runs with.
    fn config(&self, op: &str, space: &Space) -> Config {
        let mine = self.number > 0 && self.only.is_none_or(|only| only == op);
        let found = if mine { cover(space).into_iter().nth(self.number - 1) } else { None };
        found.unwrap_or_else(|| space.default.clone())
    }
}

impl Choices for Way<'_> {
    fn choose(&self, op: &'static Op, _shape: &Shape, space: &Space) -> Result<Option<Chosen>> {
        Ok(Some(Chosen { config: self.config(op.name, space), tier: "pinned" }))
    }
}

/// Ways that the plans have, the default among them.
pub fn ways(plans: [&[Entry]; 2], space: impl Fn(&Entry) -> Space) -> usize {
    1 + plans.into_iter().flatten().filter(|e| e.tuned).map(|e| cover(&space(e)).len()).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use planish_tune::{Constraint, Param};

    use super::*;

    fn ints(name: &'static str, values: &[i64]) -> Param {
        Param { name, trades: "", values: values.iter().map(|v| Value::Int(*v)).collect() }
    }

    #[test]
    fn every_value_that_is_legal_alone_is_in_some_configuration() {
        let space = Space {
            params: vec![ints("A", &[1, 2, 4, 8]), ints("B", &[1, 2, 4]), ints("C", &[0, 1])],
            constraints: vec![Constraint {
                name: "A B <= 8".to_owned(),
                holds: Arc::new(|c| c.int("A").zip(c.int("B")).is_some_and(|(a, b)| a * b <= 8)),
            }],
            default: Config::new().with("A", 2).with("B", 2).with("C", 0),
        };
        let all = cover(&space);
        assert!(all.iter().all(|c| space.violated(c).is_none()), "{all:?}");
        // 8 is legal only where the other changes too.
        for (name, value) in [("A", 1), ("A", 4), ("A", 8), ("B", 1), ("B", 4), ("C", 1)] {
            assert!(all.iter().any(|c| c.int(name) == Some(value)), "{name}={value} of {all:?}");
        }
        assert!(all.len() <= 4, "{all:?}");
        assert!(cover(&Space::fixed(Config::new())).is_empty());
    }
}
