//! Pins: parameters of ops that a user fixes by hand, read in one way and laid over a default in one way.

use std::collections::BTreeMap;
use std::str::FromStr;

use super::error::Error;
use super::record::clip;
use crate::config::{Config, Value};

/// Parameters of one op that are fixed; the op's other parameters keep their defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pin {
    /// The op's name.
    pub op: String,
    /// The fixed parameters.
    pub values: Config,
}

/// Reads `OP.NAME=VALUE`, or several parameters of one op as `OP=NAME=VALUE,NAME=VALUE`; a value that reads as a number
/// is one.
impl FromStr for Pin {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let bad = |what: &str| {
            Error::new(format!("pin {:?}: {what}", clip(text)))
                .hint("write it as OP.NAME=VALUE, or OP=NAME=VALUE,NAME=VALUE for several parameters")
        };
        let at = text.find(['.', '=']).filter(|at| *at > 0).ok_or_else(|| bad("no op"))?;
        let (op, rest) = (&text[..at], &text[at + 1..]);
        let mut values = Config::new();
        for part in rest.split(',') {
            let pair = part.split_once('=').filter(|(n, v)| !n.is_empty() && !v.is_empty());
            let (name, value) = pair.ok_or_else(|| bad("a parameter is not NAME=VALUE"))?;
            if values.get(name).is_some() {
                return Err(bad(&format!("{} is given twice", clip(name))));
            }
            values = values.with(name, value.parse().map_or_else(|_| Value::from(value), Value::Int));
        }
        Ok(Pin { op: op.to_owned(), values })
    }
}

/// All pins of a run, by op.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pins(BTreeMap<String, Config>);

impl Pins {
    /// The pins of `all`; several of one op add up, and a parameter that is given twice is an error.
    pub fn new<'a>(all: impl IntoIterator<Item = &'a Pin>) -> Result<Self, Error> {
        let mut pins = Pins::default();
        for Pin { op, values } in all {
            let held = pins.0.entry(op.clone()).or_default();
            if let Some((name, _)) = values.iter().find(|(name, _)| held.get(name).is_some()) {
                return Err(Error::new(format!("pin {}.{}: it is given twice", clip(op), clip(name)))
                    .hint("give every parameter of an op once"));
            }
            *held = std::mem::take(held).overlaid(values);
        }
        Ok(pins)
    }

    /// Whether nothing is pinned.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The pinned ops, in name order.
    pub fn ops(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// What `op` runs with when its default is `default`; `None` where the op is not pinned.
    pub fn config(&self, op: &str, default: &Config) -> Option<Config> {
        Some(default.clone().overlaid(self.0.get(op)?))
    }
}
