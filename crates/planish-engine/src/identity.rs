//! Under which identity choices are stored and looked up, and how the store answers a plan.

use std::sync::Arc;

use planish_kernels::op::{Machine, Op, Shape};
use planish_kernels::{GPU_HASH, KERNEL_HASH, KERNEL_TOOLCHAIN};
use planish_tune::store::{Identity, Key, Locked, Mode, Origin, Question, Silicon, Snapshot, Tier};
use planish_tune::{Config, Param, Policy, Space};

use crate::error::{Error, Result};
use crate::plan::{Choices, Chosen};

/// Raised when the gate or the way samples are taken changes what a stored time means.
const PROTOCOL: &str = "cold sequences v1";

/// The part of an identity that is the same for every op of a machine and a build.
#[derive(Clone, Debug)]
pub struct Identities {
    silicon: Arc<Silicon>,
    driver: String,
    toolchain: String,
    kernel: String,
    policy: String,
}

impl Identities {
    /// The identity of `machine` and of this build under `policy`.
    pub fn new(machine: &Machine<'_>, policy: &Policy) -> Self {
        let identity = machine.backend.identity();
        // CPU kernels are part of this program; a GPU's are compiled at run time by what the machine has.
        let native = machine.backend.limits().backend == "cpu";
        let driver = identity.toolchain.get("driver").filter(|_| !native).cloned().unwrap_or_default();
        let tools = identity.toolchain.iter().filter(|(name, _)| *name != "driver");
        let tools = tools.map(|(name, version)| format!("{name} {version}")).collect::<Vec<_>>().join(", ");
        Identities {
            silicon: Silicon::new(&identity.label, identity.silicon.clone()).into(),
            driver,
            toolchain: if native { KERNEL_TOOLCHAIN.to_owned() } else { tools },
            kernel: if native { format!("{KERNEL_HASH} {}", machine.isa) } else { GPU_HASH.to_owned() },
            policy: format!("{PROTOCOL} {}", policy.identity()),
        }
    }

    /// The identity of an op with this space.
    pub fn of(&self, space: &Space) -> Identity {
        Identity {
            silicon: self.silicon.clone(),
            driver: self.driver.clone(),
            toolchain: self.toolchain.clone(),
            kernel: self.kernel.clone(),
            candidates: space.digest(),
            policy: self.policy.clone(),
        }
    }

    /// The same as if the machine had this silicon, for questions about other machines.
    #[must_use]
    pub fn as_device(self, silicon: Arc<Silicon>) -> Self {
        Identities { silicon, ..self }
    }

    /// `config` as the frozen choice of `key`.
    pub fn locked(&self, key: Key, config: &Config) -> Locked {
        Locked { key, config: config.clone(), kernel: self.kernel.clone(), silicon: self.silicon.hash16() }
    }

    /// The silicon, for reports and quarantine.
    pub fn silicon(&self) -> &Silicon {
        &self.silicon
    }
}

/// The key under which an op at a shape is stored.
pub fn key(op: &Op, shape: &Shape) -> Result<Key> {
    key_of(op.name, shape)
}

/// The key of an op by its name.
pub fn key_of(op: &str, shape: &Shape) -> Result<Key> {
    Key::parse(op, &shape.to_string()).map_err(|e| Error::request(e.to_string()))
}

/// The store as the plan sees it.
pub struct StoreChoices<'a> {
    /// What is stored.
    pub snapshot: Arc<Snapshot>,
    /// Who asks.
    pub identities: &'a Identities,
    /// Stored, replayed, off or pinned.
    pub mode: &'a Mode,
}

impl Choices for StoreChoices<'_> {
    fn choose(&self, op: &'static Op, shape: &Shape, space: &Space) -> Result<Option<Chosen>> {
        self.choose_for(op.name, shape, space)
    }

    fn choose_beyond(&self, op: &'static Op, shape: &Shape, space: &Space) -> Result<Option<Chosen>> {
        match self.mode {
            Mode::Replay(frozen) if frozen.get(&key(op, shape)?).is_none() => Ok(None),
            _ => self.choose(op, shape, space),
        }
    }
}

impl StoreChoices<'_> {
    /// The chosen configuration of the op of this name, or `None` to take the default.
    pub fn choose_for(&self, op: &str, shape: &Shape, space: &Space) -> Result<Option<Chosen>> {
        let key = key_of(op, shape)?;
        let identity = self.identities.of(space);
        let legal = |c: &Config| space.violated(c).map_or(Ok(()), Err);
        let question = Question { key: &key, identity: &identity, default: &space.default };
        let decision = self.mode.decide(&self.snapshot, &question, &legal);
        let (config, origin) = decision.map_err(|e| {
            let error = Error::request(e.to_string());
            match (e.next_step(), self.mode) {
                (Some(hint), _) => error.with_hint(hint),
                (None, Mode::Pin(_)) => error.with_hint(format!("{op} has {}", values(space))),
                (None, _) => error,
            }
        })?;
        Ok(match origin {
            Origin::Stored(Tier::Exact) => Some(Chosen { config, tier: "tuned" }),
            Origin::Nearby(_) => Some(Chosen { config, tier: "nearby" }),
            Origin::Replayed(_) => Some(Chosen { config, tier: "locked" }),
            Origin::Pinned => Some(Chosen { config, tier: "pinned" }),
            // A prior was right and fast somewhere else; until tuning confirms it here, the default runs.
            Origin::Stored(_) => Some(Chosen { config: space.default.clone(), tier: "prior" }),
            Origin::Default(_) => None,
        })
    }
}

/// The parameters of a space and what each may be.
fn values(space: &Space) -> String {
    let one = |p: &Param| {
        let values: Vec<String> = p.values.iter().map(ToString::to_string).collect();
        format!("{} of {}", p.name, values.join(" "))
    };
    space.params.iter().map(one).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use planish_device::{Cpu, CpuOptions};
    use planish_kernels::cpu::isa::Isa;
    use planish_kernels::ops;

    use super::*;

    /// Whatever a launch depends on is in its key or in its identity: each change shows.
    #[test]
    fn nothing_that_decides_a_launch_is_missing_from_key_and_identity() {
        let cpu = |n| Cpu::new(CpuOptions { threads: Some(n) }).expect("a CPU");
        let (one, two) = (cpu(1), cpu(2));
        let machine = |cpu, isa| Machine { backend: cpu, isa };
        let policy = Policy::default();
        let base = Identities::new(&machine(&one, Isa::Portable), &policy);
        for op in ops::OPS {
            let shape = sample(op);
            let space = (op.space)(&shape, &machine(&one, Isa::Portable));
            let here = base.of(&space);
            assert_eq!(base.of(&space.clone()), here);
            let mut seen = vec![(key(op, &shape).expect("a key"), here)];
            let mut differs = |what: &str, key: Key, identity: Identity| {
                assert!(seen.iter().all(|s| *s != (key.clone(), identity.clone())), "{} {what}", op.name);
                seen.push((key, identity));
            };
            let at = || key(op, &shape).expect("a key");
            for part in shape.to_string().split(',') {
                let (name, value) = part.split_once('=').expect("a field");
                let other = match value.parse::<i64>() {
                    Ok(n) => shape.clone().with(name, n + 1),
                    Err(_) => shape.clone().with(name, "other"),
                };
                differs(name, key(op, &other).expect("a key"), base.of(&space));
            }
            differs("instruction set", at(), Identities::new(&machine(&one, Isa::Avx2), &policy).of(&space));
            if !space.params.is_empty() {
                // Every space with something to choose says how many threads there are.
                differs("threads", at(), base.of(&(op.space)(&shape, &machine(&two, Isa::Portable))));
            }
            let looser = Policy { margin: 0.5, ..Policy::default() };
            differs("policy", at(), Identities::new(&machine(&one, Isa::Portable), &looser).of(&space));
            let mut other = space.clone();
            other.default = other.default.with("NEW", 1);
            differs("default", at(), base.of(&other));
        }
    }

    /// Some shape of the op, out of those that its own tests use.
    fn sample(op: &Op) -> Shape {
        let texts = [
            "act=int8,batch=1,cols=64,rows=32,type=q4_0",
            "act=int8,batch=8,cols=64,rows=32,type=q4_0",
            "batch=2,cols=64",
            "batch=2,cols=64,forms=f32",
        ];
        let fits = |shape: &Shape| (op.check)(shape).is_ok();
        let mut shapes = texts.iter().map(|t| t.parse::<Shape>().expect("a shape"));
        shapes.find(fits).unwrap_or_else(|| "batch=2,context=32".parse().expect("a shape"))
    }
}
