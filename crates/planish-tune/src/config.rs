//! A configuration: named parameter values, never indices.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// One parameter value: a number or the name of a variant.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Value {
    /// A count, width or size.
    Int(i64),
    /// The name of one of several implementations.
    Name(String),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Int(i) => write!(f, "{i}"),
            Value::Name(s) => f.write_str(s),
        }
    }
}

impl From<i64> for Value {
    fn from(v: i64) -> Self {
        Value::Int(v)
    }
}

impl From<&str> for Value {
    fn from(v: &str) -> Self {
        Value::Name(v.to_owned())
    }
}

/// Named parameter values in name order; two equal configs print, hash and serialise alike.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Config(BTreeMap<String, Value>);

impl Config {
    /// The config with no parameters.
    pub fn new() -> Self {
        Self::default()
    }

    /// This config with `name` set to `value`.
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.0.insert(name.to_owned(), value.into());
        self
    }

    /// This config with every value of `other` set.
    pub fn overlaid(mut self, other: &Config) -> Self {
        self.0.extend(other.0.iter().map(|(name, value)| (name.clone(), value.clone())));
        self
    }

    /// The value of `name`, if the config has it.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name)
    }

    /// The number under `name`; `None` when absent or a variant name.
    pub fn int(&self, name: &str) -> Option<i64> {
        match self.0.get(name) {
            Some(Value::Int(i)) => Some(*i),
            _ => None,
        }
    }

    /// The variant name under `name`; `None` when absent or a number.
    pub fn name(&self, name: &str) -> Option<&str> {
        match self.0.get(name) {
            Some(Value::Name(s)) => Some(s),
            _ => None,
        }
    }

    /// All values in name order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.0.iter().map(|(k, v)| (k.as_str(), v))
    }

    /// Number of parameters.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no parameter.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// `NAME=value NAME=value`, in name order; `-` for the empty config.
impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("-");
        }
        for (i, (k, v)) in self.0.iter().enumerate() {
            write!(f, "{}{k}={v}", if i > 0 { " " } else { "" })?;
        }
        Ok(())
    }
}
