//! Few configurations that together have every value of every parameter: what a promotion may combine.

use std::collections::BTreeSet;

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

/// Programs of plans that were run, by op, shape and configuration: what weights it meets changes no program.
#[derive(Debug, Default)]
pub struct Seen(BTreeSet<(&'static str, Shape, Config)>);

/// Which steps of a way have programs that no way before had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct News {
    /// The step of one token.
    pub decode: bool,
    /// The step of a prompt.
    pub prefill: bool,
    /// A program of decode that reads what the cache holds.
    pub keys: bool,
}

impl News {
    /// A way of which nothing is known.
    pub const ALL: News = News { decode: true, prefill: true, keys: true };
}

impl Seen {
    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Adds the programs of a way, and says where those are that were not there.
    fn add(&mut self, way: Way<'_>, [decode, prefill]: [&[Entry]; 2], space: &dyn Fn(&Entry) -> Space) -> News {
        let mut fresh = |e: &&Entry| {
            let config = way.config(e.op.name, &space(e));
            e.tuned && self.0.insert((e.op.name, e.shape.clone(), config))
        };
        let decode: Vec<&Entry> = decode.iter().filter(&mut fresh).collect();
        let keys = decode.iter().any(|e| e.shape.has("context"));
        News { decode: !decode.is_empty(), prefill: prefill.iter().filter(&mut fresh).count() > 0, keys }
    }
}

/// The ways of the plans of decode and prefill that have a program which was not seen, each with what is new in it, and
/// the default whatever was seen.
pub fn ways(plans: [&[Entry]; 2], space: &dyn Fn(&Entry) -> Space, seen: &mut Seen) -> Vec<(usize, News)> {
    let most = plans.into_iter().flatten().filter(|e| e.tuned).map(|e| cover(&space(e)).len()).max().unwrap_or(0);
    let way = |number| (number, seen.add(Way { number, only: None }, plans, space));
    let all = (0..=most).map(way).filter(|(number, news)| *number == 0 || news.decode || news.prefill);
    all.map(|(number, news)| (number, if number == 0 { News::ALL } else { news })).collect()
}

#[cfg(test)]
mod tests {

    use planish_tune::{Constraint, Param};

    use super::*;

    fn ints(name: &'static str, values: &[i64]) -> Param {
        Param { name, trades: "", values: values.iter().map(|v| Value::Int(*v)).collect() }
    }

    #[test]
    fn every_value_that_is_legal_alone_is_in_some_configuration() {
        let space = Space {
            params: vec![ints("A", &[1, 2, 4, 8]), ints("B", &[1, 2, 4]), ints("C", &[0, 1])],
            constraints: vec![Constraint::new("A B <= 8", |c| {
                c.int("A").zip(c.int("B")).is_some_and(|(a, b)| a * b <= 8)
            })],
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

    /// A line of a worklist of `op` whose space is what `spaces` says.
    fn entry(op: &'static Op, shape: &str) -> Entry {
        let chosen = Chosen { config: Config::new(), tier: "default" };
        let shape = shape.parse().expect("a shape");
        Entry { op, shape, uses: 1, tuned: true, cost: Default::default(), chosen }
    }

    #[test]
    fn every_program_is_in_one_way_and_none_is_run_again() {
        let space = |e: &Entry| {
            let values: &[i64] = match (e.op.name, e.shape.has("context")) {
                (_, true) => &[1, 2, 4, 8],
                ("gemm", _) => &[1, 2],
                _ => &[1, 2, 3],
            };
            let (params, default) = (vec![ints("N", values)], Config::new().with("N", 1));
            Space { params, constraints: Vec::new(), default }
        };
        let (vec, keys) = (&planish_kernels::ops::matmul::MATVEC, &planish_kernels::ops::attention::ATTENTION_DECODE);
        let decode = [entry(vec, "rows=1"), entry(vec, "rows=2"), entry(keys, "context=9")];
        let prefill = [entry(&planish_kernels::ops::matmul::GEMM, "rows=1")];
        let mut seen = Seen::default();
        let found = ways([&decode, &prefill], &space, &mut seen);
        let news = |decode, prefill, keys| News { decode, prefill, keys };
        let first = news(true, true, true);
        let wanted = [(0, first), (1, first), (2, news(true, false, true)), (3, news(true, false, true))];
        assert_eq!(found, wanted);
        assert_eq!(seen.count(), 3 + 3 + 4 + 2, "all values at each shape");
        // Another arithmetic, whose cache alone has another type.
        let other = [entry(vec, "rows=1"), entry(vec, "rows=2"), entry(keys, "context=9,kv=f16")];
        let found = ways([&other, &prefill], &space, &mut seen);
        assert_eq!(found.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [0, 1, 2, 3]);
        assert!(found[1..].iter().all(|(_, n)| *n == news(true, false, true)), "{found:?}");
        // Another model of the same shapes runs its defaults alone.
        assert_eq!(ways([&decode, &prefill], &space, &mut seen), [(0, News::ALL)]);
        assert_eq!(seen.count(), 12 + 4);
    }
}
