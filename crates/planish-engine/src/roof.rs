//! What a tuned op is held against: the work that it cannot avoid, and the ceilings of the machine that did it.

use planish_kernels::op::{Op, Shape};
use planish_kernels::subject;
use planish_tune::store::{Identity, Key};
use serde::{Deserialize, Serialize};

use crate::tuning::Ceilings;

/// Work and ceilings of an op at a shape; stored with its evidence.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Roof {
    /// Additions and multiplications in f32.
    pub flops: u64,
    /// Additions and multiplications of bytes.
    pub int8_ops: u64,
    /// Bytes that must be read.
    pub read_bytes: u64,
    /// Bytes that must be written.
    pub write_bytes: u64,
    /// Read bandwidth in GB/s, measured when the op was tuned.
    pub read_gb_s: Option<f64>,
    /// Arithmetic in f32, 1e9 a second, measured then; on a GPU a bound that no right kernel exceeds.
    pub f32_gflop_s: Option<f64>,
    /// The same on bytes.
    pub int8_gop_s: Option<f64>,
    /// Whether the bandwidth is only the least that fits a stored floor, since the record lacks the measurement.
    #[serde(default)]
    pub implied: bool,
}

impl Roof {
    /// Work of `op` at `shape` and the ceilings measured with it.
    pub fn of(op: &Op, shape: &Shape, ceilings: Option<Ceilings>) -> Roof {
        let cost = (op.cost)(shape);
        Roof {
            flops: cost.flops,
            int8_ops: cost.int8_ops,
            read_bytes: cost.read_bytes,
            write_bytes: cost.write_bytes,
            read_gb_s: ceilings.map(|c| c.read_gb_s),
            f32_gflop_s: ceilings.map(|c| c.peak.f32_gflop_s),
            int8_gop_s: ceilings.map(|c| c.peak.int8_gop_s),
            implied: false,
        }
    }

    /// The same for a record without it: work from the table of ops, bandwidth from the floor it was held against.
    ///
    /// `None` for an op or a shape that this build does not know.
    pub fn implied(key: &Key, identity: &Identity, floor_ns: Option<f64>) -> Option<Roof> {
        let fields = &identity.silicon.fields;
        // A processor says nothing of a backend, the host executor of nothing else.
        let device = match fields.get("vendor").map(String::as_str) {
            Some("nvidia") => "cuda",
            Some(_) => "cpu",
            None => "host",
        };
        let (op, shape) = (subject::find(device, key.op())?, key.shape().parse::<Shape>().ok()?);
        (op.check)(&shape).ok()?;
        let roof = Roof::of(op, &shape, None);
        let read_gb_s = floor_ns.filter(|ns| *ns > 0.0).map(|ns| roof.read_bytes as f64 / ns);
        Some(Roof { read_gb_s, implied: true, ..roof })
    }

    /// Bytes that must move.
    pub fn bytes(&self) -> f64 {
        (self.read_bytes + self.write_bytes) as f64
    }

    /// Operations of both kinds.
    pub fn ops(&self) -> f64 {
        (self.flops + self.int8_ops) as f64
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use planish_tune::store::Silicon;

    use super::*;

    #[test]
    fn a_floor_gives_back_the_bandwidth_it_was_made_from() {
        let silicon = Arc::new(Silicon::new("a card", [("vendor", "nvidia")]));
        let identity = Identity { silicon, ..Identity::default() };
        let key = Key::parse("matvec", "act=f32,cols=576,rows=49152,type=f16").expect("canonical");
        let roof = Roof::implied(&key, &identity, Some(12584.0)).expect("an op of cards");
        let weights = 2.0 * 576.0 * 49152.0;
        assert!(roof.bytes() >= weights && roof.bytes() < 1.02 * weights, "{roof:?}");
        assert_eq!(roof.flops + roof.int8_ops, 2 * 576 * 49152);
        assert!(roof.implied && (roof.read_gb_s.expect("a floor") - weights / 12584.0).abs() < 10.0);
        let unknown = Key::parse("no_such_op", "rows=1").expect("canonical");
        assert_eq!(Roof::implied(&unknown, &identity, None), None);
    }
}
