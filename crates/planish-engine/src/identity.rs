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
    /// Only what gives the bits of the default is taken: records of another reduction class are as if they were not there.
    pub deterministic: bool,
}

impl Choices for StoreChoices<'_> {
    fn choose(&self, op: &'static Op, shape: &Shape, space: &Space) -> Result<Option<Chosen>> {
        if self.deterministic {
            self.choose_of(op.name, shape, &op.in_order(space.clone()))
        } else {
            self.choose_of(op.name, shape, space)
        }
    }

    fn choose_beyond(&self, op: &'static Op, shape: &Shape, space: &Space) -> Result<Option<Chosen>> {
        match self.mode {
            Mode::Replay(frozen) if frozen.get(&key(op, shape)?).is_none() => Ok(None),
            _ => self.choose(op, shape, space),
        }
    }
}

impl StoreChoices<'_> {
    fn choose_of(&self, op: &str, shape: &Shape, space: &Space) -> Result<Option<Chosen>> {
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
    use planish_device::fake::{Fake, Script};
    use planish_device::{Cpu, CpuOptions};
    use planish_kernels::cpu::isa::Isa;
    use planish_kernels::gpu::decode;
    use planish_kernels::ops;
    use planish_tune::store::{Choice, Layers, Ratio, Source, State, Store};

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

    /// The store holds a winner whose sums are in another order: it runs, but not where bits are to stay.
    #[test]
    fn a_record_of_another_reduction_class_is_ignored_in_deterministic_mode() {
        let mut script = Script::default();
        (script.limits.max_threads, script.limits.shared_bytes) = (1024, 48 << 10);
        let fake = Fake::new(script);
        let machine = Machine { backend: &fake, isa: Isa::Portable };
        let op = &decode::OP.op;
        let shape = decode::OP.shapes().next().expect("a shape");
        let space = (op.space)(&shape, &machine);
        let foreign = |c: &Config| space.violated(c).is_none() && op.class(c) != op.class(&space.default);
        let config = space.candidates().into_iter().find(foreign).expect("another order of sums");
        let identities = Identities::new(&machine, &Policy::default());
        let mut store = Store::open(Layers::default());
        let choice = |config: &Config, identity| Choice {
            key: key(op, &shape).expect("a key"),
            identity,
            config: config.clone(),
            source: Source::Tuned,
            state: State::Tuned,
            ratio: Ratio { lo: 1.2, mid: 1.3, hi: 1.4 },
            ns_median: 1e4,
            written_ms: 1,
            evidence: None,
        };
        store.append(choice(&config, identities.of(&space))).expect("appended");
        let chosen = |store: &Store, deterministic| {
            let (snapshot, identities) = (store.snapshot(), &identities);
            let choices = StoreChoices { snapshot, identities, mode: &Mode::Stored, deterministic };
            choices.choose(op, &shape, &space).expect("an answer")
        };
        assert_eq!(chosen(&store, false), Some(Chosen { config: config.clone(), tier: "tuned" }));
        let ignored = chosen(&store, true);
        assert!(ignored.as_ref().is_none_or(|c| c.config == space.default), "{ignored:?}");
        // One of the same order, found by a deterministic search, is taken by that mode and a prior to the other.
        let same = |c: &Config| space.violated(c).is_none() && op.class(c) == op.class(&space.default);
        let sibling = space.candidates().into_iter().skip(1).find(same).expect("the same order of sums");
        store.append(choice(&sibling, identities.of(&op.in_order(space.clone())))).expect("appended");
        assert_eq!(chosen(&store, true), Some(Chosen { config: sibling, tier: "tuned" }));
        assert_eq!(chosen(&store, false).map(|c| c.config), Some(config));
    }
}
