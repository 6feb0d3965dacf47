//! What may be tried: parameters with their values, named constraints, and the default configuration.

use std::fmt;
use std::sync::Arc;

use crate::config::{Config, Value};

/// One tuned parameter and the values it may take, in the order a reader expects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Param {
    /// Upper-case name, as in the kernel.
    pub name: &'static str,
    /// What the parameter trades, in one line.
    pub trades: &'static str,
    /// Legal values, without duplicates.
    pub values: Vec<Value>,
}

/// A named predicate that every configuration must satisfy.
#[derive(Clone)]
pub struct Constraint {
    /// Name shown in rejections, such as `shared_bytes <= 32768`.
    pub name: String,
    /// True when the configuration is legal.
    pub holds: Arc<dyn Fn(&Config) -> bool + Send + Sync>,
}

impl Constraint {
    /// `holds`, shown as `name`.
    pub fn new(name: impl Into<String>, holds: impl Fn(&Config) -> bool + Send + Sync + 'static) -> Constraint {
        Constraint { name: name.into(), holds: Arc::new(holds) }
    }
}

impl fmt::Debug for Constraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Constraint({})", self.name)
    }
}

/// The space of one (op, shape, device): its product of parameter values, cut by constraints.
#[derive(Clone, Debug)]
pub struct Space {
    /// Tuned parameters.
    pub params: Vec<Param>,
    /// Named constraints.
    pub constraints: Vec<Constraint>,
    /// The configuration used until a better one is proven; always legal.
    pub default: Config,
}

impl Space {
    /// A space whose only member is `default`.
    pub fn fixed(default: Config) -> Self {
        Space { params: Vec::new(), constraints: Vec::new(), default }
    }

    /// Hash of everything that decides which candidates there are: names, values, constraints and the default.
    pub fn digest(&self) -> String {
        let params: Vec<_> = self.params.iter().map(|p| (p.name, &p.values)).collect();
        let names: Vec<_> = self.constraints.iter().map(|c| &c.name).collect();
        let text = format!("{params:?} {names:?} {}", self.default);
        let hash = <sha2::Sha256 as sha2::Digest>::digest(text.as_bytes());
        hash.iter().take(8).map(|b| format!("{b:02x}")).collect()
    }

    /// Every combination of values, the default first, then in parameter order; constraints not applied.
    pub fn candidates(&self) -> Vec<Config> {
        self.each().collect()
    }

    /// Combinations of values.
    pub fn size(&self) -> u128 {
        self.params.iter().fold(1, |all, p| all.saturating_mul(p.values.len() as u128))
    }

    /// The same one by one: a space may have millions.
    pub fn each(&self) -> impl DoubleEndedIterator<Item = Config> {
        let others = (0..self.size()).map(|i| self.combination(i)).filter(|c| *c != self.default);
        std::iter::once(self.default.clone()).chain(others)
    }

    /// Combination `number` in parameter order, the last parameter counting fastest.
    pub(crate) fn combination(&self, mut number: u128) -> Config {
        self.params.iter().rev().fold(Config::new(), |config, p| {
            let n = p.values.len() as u128;
            let value = p.values[(number % n) as usize].clone();
            number /= n;
            config.with(p.name, value)
        })
    }

    /// Which combination `config` is, if one.
    pub(crate) fn number(&self, config: &Config) -> Option<u128> {
        if config.len() != self.params.len() {
            return None;
        }
        self.params.iter().try_fold(0, |number, p| {
            let value = config.get(p.name)?;
            let digit = p.values.iter().position(|v| v == value)?;
            Some(number * p.values.len() as u128 + digit as u128)
        })
    }

    /// The same without its constraints where `exempt` holds.
    pub fn except(mut self, exempt: impl Fn(&Config) -> bool + Copy + Send + Sync + 'static) -> Space {
        for constraint in &mut self.constraints {
            let holds = constraint.holds.clone();
            constraint.holds = Arc::new(move |c| exempt(c) || holds(c));
        }
        self
    }

    /// The first constraint that `config` violates, by name; a missing, unknown or foreign value counts as one.
    pub fn violated(&self, config: &Config) -> Option<String> {
        for p in &self.params {
            match config.get(p.name) {
                None => return Some(format!("{} is missing", p.name)),
                Some(v) if !p.values.contains(v) => return Some(format!("{}={v} is not a candidate value", p.name)),
                Some(_) => {}
            }
        }
        if let Some((k, _)) = config.iter().find(|(k, _)| self.params.iter().all(|p| p.name != *k)) {
            return Some(format!("{k} is not a parameter"));
        }
        self.constraints.iter().find(|c| !(c.holds)(config)).map(|c| c.name.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn combinations_come_in_parameter_order_from_either_end() {
        let param = |name, n: i64| Param { name, trades: "nothing", values: (0..n).map(Value::Int).collect() };
        let at = |b: i64, a: i64| Config::new().with("B", b).with("A", a);
        let space = Space { params: vec![param("B", 2), param("A", 3)], constraints: Vec::new(), default: at(1, 0) };
        let want = [at(1, 0), at(0, 0), at(0, 1), at(0, 2), at(1, 1), at(1, 2)];
        assert_eq!(space.candidates(), want);
        assert!(space.each().rev().eq(want.into_iter().rev()));
        assert_eq!(Space::fixed(Config::new()).candidates(), [Config::new()]);
    }
}
