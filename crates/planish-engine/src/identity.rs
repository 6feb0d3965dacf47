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
