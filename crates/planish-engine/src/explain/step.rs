//! A step taken apart: launches, what each must do, and the rows that tables show.

use std::ops::{Add, Mul, Range};

use planish_device::Launch;
use planish_kernels::Cost;
use serde::{Deserialize, Serialize};

use crate::plan::Label;

/// Bytes and operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Demand {
    /// Bytes that must be read.
    pub read_bytes: f64,
    /// Bytes that must be written.
    pub write_bytes: f64,
    /// Additions and multiplications in f32.
    pub flops: f64,
    /// Additions and multiplications of bytes.
    pub int8_ops: f64,
}

impl Demand {
    /// Additions and multiplications of both kinds.
    pub fn ops(&self) -> f64 {
        self.flops + self.int8_ops
    }
}

impl From<Cost> for Demand {
    fn from(c: Cost) -> Demand {
        let [read_bytes, write_bytes, flops, int8_ops] =
            [c.read_bytes, c.write_bytes, c.flops, c.int8_ops].map(|n| n as f64);
        Demand { read_bytes, write_bytes, flops, int8_ops }
    }
}

impl Add for Demand {
    type Output = Demand;
    fn add(self, o: Demand) -> Demand {
        Demand {
            read_bytes: self.read_bytes + o.read_bytes,
            write_bytes: self.write_bytes + o.write_bytes,
            flops: self.flops + o.flops,
            int8_ops: self.int8_ops + o.int8_ops,
        }
    }
}

impl Mul<f64> for Demand {
    type Output = Demand;
    fn mul(self, by: f64) -> Demand {
        Demand {
            read_bytes: self.read_bytes * by,
            write_bytes: self.write_bytes * by,
            flops: self.flops * by,
            int8_ops: self.int8_ops * by,
        }
    }
}

/// What a launch is for and what it must do.
#[derive(Clone, Debug, PartialEq)]
pub struct Piece {
    /// What it is for.
    pub name: String,
    /// Op and shape.
    pub about: String,
    /// What it does whatever the position.
    pub fixed: Demand,
    /// What each key adds.
    pub a_key: Demand,
    /// Keys that it sees, its own included; 0 for all.
    pub window: usize,
    /// Whether it is of a call that does more at later positions.
    pub grows: bool,
}

impl Piece {
    /// What it does for a token with `position` tokens before it.
    pub fn demand(&self, position: usize) -> Demand {
        let keys = if self.window > 0 { (position + 1).min(self.window) } else { position + 1 };
        self.fixed + self.a_key * keys as f64
    }
}

/// The launches of a token, each with what it is.
#[derive(Clone)]
pub struct Step {
    /// In order.
    pub launches: Vec<Launch>,
    /// One for each launch.
    pub pieces: Vec<Piece>,
}

impl From<(Vec<Launch>, Vec<Label>)> for Step {
    fn from((launches, labels): (Vec<Launch>, Vec<Label>)) -> Step {
        let piece = |(launch, label): (&Launch, &Label)| {
            let name = if label.nth.1 > 1 { launch.program.name.to_string() } else { label.role.to_owned() };
            let about = format!("{} {}", label.op.name, label.shape);
            // Costs are linear in the keys; what a call of several launches must do stands with the first.
            let at = |keys: i64| Demand::from((label.op.cost)(&label.shape.clone().with("context", keys)));
            let (fixed, a_key) = if label.shape.has("context") {
                let a_key = at(2) + at(1) * -1.0;
                (at(1) + a_key * -1.0, a_key)
            } else {
                (Demand::from((label.op.cost)(&label.shape)), Demand::default())
            };
            let (grows, share) = (a_key != Demand::default(), if label.nth.0 == 0 { 1.0 } else { 0.0 });
            Piece { name, about, fixed: fixed * share, a_key: a_key * share, window: label.window, grows }
        };
        let pieces = launches.iter().zip(&labels).map(piece).collect();
        Step { launches, pieces }
    }
}

/// Launches without a barrier between them, and the row they count for.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// Which row.
    pub row: usize,
    /// Which launches.
    pub launches: Range<usize>,
}

/// Groups of one name, in all layers.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Names, in the order of their first group.
    pub rows: Vec<String>,
    /// In order.
    pub groups: Vec<Group>,
}

impl Step {
    /// The groups of the step and their rows.
    pub fn plan(&self) -> Plan {
        let mut plan = Plan { rows: Vec::new(), groups: Vec::new() };
        let starts = (0..self.launches.len()).filter(|i| *i == 0 || !self.launches[*i].overlap).collect::<Vec<_>>();
        for (n, start) in starts.iter().enumerate() {
            let end = starts.get(n + 1).copied().unwrap_or(self.launches.len());
            let names: Vec<&str> = self.pieces[*start..end].iter().map(|p| p.name.as_str()).collect();
            let name = names.join("+");
            let row = plan.rows.iter().position(|r| *r == name).unwrap_or_else(|| {
                plan.rows.push(name);
                plan.rows.len() - 1
            });
            plan.groups.push(Group { row, launches: *start..end });
        }
        plan
    }

    /// The launches of the groups of rows that `wanted` takes, in order and with the barriers between groups.
    pub fn only(&self, plan: &Plan, wanted: impl Fn(usize) -> bool) -> Vec<Launch> {
        let mut launches = Vec::new();
        for group in plan.groups.iter().filter(|g| wanted(g.row)) {
            let first = launches.len();
            launches.extend_from_slice(&self.launches[group.launches.clone()]);
            launches[first].overlap = false;
        }
        launches
    }

    /// What the groups of `row` must do for a token at `position`.
    pub fn demand(&self, plan: &Plan, row: usize, position: usize) -> Demand {
        self.of(plan, row).fold(Demand::default(), |sum, piece| sum + piece.demand(position))
    }

    /// The pieces of a row.
    pub fn of<'s>(&'s self, plan: &'s Plan, row: usize) -> impl Iterator<Item = &'s Piece> {
        plan.groups.iter().filter(move |g| g.row == row).flat_map(|g| &self.pieces[g.launches.clone()])
    }

    /// Ops and shapes of a row, each once.
    pub fn about(&self, plan: &Plan, row: usize) -> String {
        let mut all: Vec<&str> = Vec::new();
        for piece in self.of(plan, row) {
            if !all.contains(&piece.about.as_str()) {
                all.push(&piece.about);
            }
        }
        all.join("; ")
    }
}
