//! Every parameter of every op reaches what is compiled or launched: another value, another program or another grid.

use std::collections::BTreeMap;

use planish_device::Recorder;
use planish_kernels::cpu::isa::Isa;
use planish_kernels::gpu::record::{self, Recorded};
use planish_kernels::gpu::{self, GpuOp};
use planish_kernels::op::{Machine, Shape};
use planish_tune::{Config, Space};

/// Architectures with and without native variants.
const CARDS: [&str; 2] = ["sm_80", "sm_90a"];

/// What a configuration can change; offsets and sizes of arguments count too, since scratch may be cut differently.
fn fingerprint(op: &'static GpuOp, shape: &Shape, config: &Config, card: &Recorder) -> Vec<Recorded> {
    record::launches(op, shape, config, card).unwrap_or_else(|e| panic!("{} at {shape}, {config}: {e}", op.op.name))
}

/// The configurations that differ from `base` in one parameter but `name`.
fn one_off<'s>(space: &'s Space, base: &'s Config, name: &'s str) -> impl Iterator<Item = Config> + 's {
    let others = space.params.iter().filter(move |p| p.name != name);
    others.flat_map(move |p| p.values.iter().map(move |v| base.clone().with(p.name, v.clone())))
}

/// Two legal configurations that differ in `name` alone, for each value of it but the first that has one: around the
/// default, or around what is up to two parameters from it, where most values are legal together.
fn pairs(space: &Space, name: &str) -> Vec<(Config, Config)> {
    let values = space.params.iter().find(|p| p.name == name).map(|p| p.values.clone()).unwrap_or_default();
    let family = |base: &Config| -> Vec<Config> {
        let all = values.iter().map(|v| base.clone().with(name, v.clone()));
        all.filter(|c| space.violated(c).is_none()).collect()
    };
    let mut most = family(&space.default);
    let near: Vec<Config> = one_off(space, &space.default, name).collect();
    for base in near.iter().cloned().chain(near.iter().flat_map(|c| one_off(space, c, name))) {
        if most.len() == values.len() {
            break;
        }
        let all = family(&base);
        if all.len() > most.len() {
            most = all;
        }
    }
    most.iter().skip(1).map(|c| (most[0].clone(), c.clone())).collect()
}

#[test]
fn every_parameter_changes_the_program_or_the_launch() {
    let mut complaints = Vec::new();
    let [plain, native] = CARDS.map(record::card);
    complaints.extend(idle_values(&plain, None));
    complaints.extend(idle_values(&native, Some(&plain)));
    assert!(complaints.is_empty(), "values that change nothing:\n{}", complaints.join("\n"));
}

/// Values of parameters that change nothing at any shape of their op on `card`; where a space is the same as on card
/// `seen_on`, that one has answered.
fn idle_values(card: &Recorder, seen_on: Option<&Recorder>) -> Vec<String> {
    let mut complaints = Vec::new();
    let machine = Machine { backend: card, isa: Isa::Portable };
    for op in gpu::OPS {
        // Parameter and value, and whether any shape saw a difference.
        let mut seen: BTreeMap<String, bool> = BTreeMap::new();
        for shape in op.shapes() {
            let space = (op.op.space)(&shape, &machine);
            let known = |on: &Recorder| {
                (op.op.space)(&shape, &Machine { backend: on, isa: Isa::Portable }).digest() == space.digest()
            };
            if seen_on.is_some_and(known) {
                continue;
            }
            for p in &space.params {
                for (a, b) in pairs(&space, p.name) {
                    let value = b.iter().find(|(n, _)| *n == p.name).map(|(_, v)| v.to_string()).unwrap_or_default();
                    let found = seen.entry(format!("{}={value}", p.name)).or_default();
                    *found = *found || fingerprint(op, &shape, &a, card) != fingerprint(op, &shape, &b, card);
                }
            }
        }
        complaints.extend(seen.iter().filter(|(_, s)| !**s).map(|(v, _)| format!("{} {v}", op.op.name)));
    }
    complaints
}

#[test]
fn every_constant_is_given_and_read() {
    let mut complaints = Vec::new();
    for (card, op) in CARDS.map(record::card).iter().flat_map(|card| gpu::OPS.iter().map(move |op| (card, op))) {
        let machine = Machine { backend: card, isa: Isa::Portable };
        for shape in op.shapes() {
            let default = (op.op.space)(&shape, &machine).default;
            for launch in fingerprint(op, &shape, &default, card) {
                complaints.extend(constants(&launch).into_iter().map(|c| format!("{} at {shape}: {c}", op.op.name)));
            }
        }
    }
    complaints.sort();
    complaints.dedup();
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

/// Constants that a text declares and a launch does not give, that it declares and never reads, or that it numbers twice.
fn constants(launch: &Recorded) -> Vec<String> {
    let mut complaints = Vec::new();
    let code: String =
        launch.text.lines().map(|l| l.split("//").next().unwrap_or_default().to_owned() + "\n").collect();
    let words: Vec<&str> = code.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).collect();
    let mut indices = BTreeMap::new();
    for declared in ["SPEC_U32(", "SPEC_BOOL("] {
        for rest in code.split(declared).skip(1) {
            let inside = rest.split(')').next().unwrap_or_default();
            let (name, index) = inside.split_once(',').unwrap_or((inside, ""));
            let (name, index) = (name.trim(), index.trim());
            if !launch.constants.contains_key(&format!("SPEC_{name}")) {
                complaints.push(format!("{} is not given SPEC_{name}", launch.entry));
            }
            if words.iter().filter(|w| **w == name).count() < 2 {
                complaints.push(format!("SPEC constant {name} is never read"));
            }
            if let Some(other) = indices.insert(index.to_owned(), name.to_owned()) {
                complaints.push(format!("SPEC constants {other} and {name} have the same index {index}"));
            }
        }
    }
    complaints
}

#[test]
fn faults_of_constants_are_seen() {
    let text = "SPEC_U32(A, 0)\nSPEC_U32(B, 1) // B\nSPEC_BOOL(C, 1)\nuint f() { return A + C; }";
    let launch = Recorded {
        entry: "k".into(),
        text: text.into(),
        constants: BTreeMap::from([("SPEC_A".to_owned(), 1), ("SPEC_B".to_owned(), 1)]),
        groups: 1,
        threads: 32,
        shared_bytes: 0,
        params: Vec::new(),
        args: Vec::new(),
        views: Vec::new(),
    };
    let told = constants(&launch).join("; ");
    let wanted = "SPEC constant B is never read; k is not given SPEC_C; SPEC constants B and C have the same index 1";
    assert_eq!(told, wanted);
}
