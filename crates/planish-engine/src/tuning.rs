//! Tuning a worklist: each op at each shape in a worker process, within one budget, every outcome stored at once.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::path::PathBuf;
use std::process::Command;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use planish_device::cpu::residency::Cold;
use planish_device::system;
use planish_kernels::cpu::peak::Peak;
use planish_kernels::op::{Machine, Op, Shape};
use planish_kernels::subject::{self, OpSubject, Spec, processors, risk};
use planish_kernels::telling::Telling;
use planish_tune::contain::{Ahead, Deadlines, FloorAgain, Processors, Quarantine, Remote, Setup, Stage, Tell};
use planish_tune::recorded::{About, Recorded};
use planish_tune::store::{Begun, Choice, Earlier, Ended, Identity, Item, Key, Progress, State, Store, Tier, now_ms};
use planish_tune::{
    Budget, Claim, Clock, Config, Event, Observer, Outcome, Point, Policy, Rejection, Resume, Space, Subject, Task,
    Trial, Usage, Verdict, allot, recheck,
};
use serde::Deserialize;

use crate::error::{Error, Result};
use crate::gpu_step::{StepModel, StepSpec, StepSubject};
use crate::identity::{Identities, key};
use crate::plan::Entry;
use crate::roof::Roof;

/// A worker loads a whole model, and compiles all of its kernels for every candidate.
const STEP_DEADLINES: Deadlines = Deadlines {
    build: Duration::from_secs(180),
    prepare: Duration::from_secs(300),
    compile: Duration::from_secs(180),
    admit: Duration::from_secs(90),
    time: Duration::from_secs(30),
    sentinel: Duration::from_secs(60),
};

/// One item of the worklist.
#[derive(Clone, Debug)]
pub struct Work {
    /// The op.
    pub op: &'static Op,
    /// Its shape.
    pub shape: Shape,
    /// Share of the time of a token (or of a prefill step), by the roofline.
    pub share: f64,
    /// Calls in one step.
    pub uses: u32,
    /// Where the item is a whole step of a model on a GPU, what a worker makes it from.
    pub step: Option<Arc<Step>>,
    /// Only configurations that give the bits of the default are tried, and only such records are known.
    pub deterministic: bool,
}

/// A whole step of a model on a GPU, as an item of a worklist.
pub struct Step {
    /// What may be tried.
    pub space: Space,
    /// The least time that it takes.
    pub floor: Option<Duration>,
    /// From which a worker makes it.
    pub spec: StepSpec,
    /// Compiles candidates before they are admitted, many at once.
    pub ahead: Option<fn(&StepSpec, &[Config])>,
}

impl std::fmt::Debug for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Step({:?})", self.spec)
    }
}

impl Work {
    /// What may be tried on `machine`.
    pub fn space(&self, machine: &Machine<'_>) -> Space {
        let whole = self.step.as_ref().map(|step| step.space.clone());
        let whole = whole.unwrap_or_else(|| (self.op.space)(&self.shape, machine));
        if self.deterministic { self.op.in_order(whole) } else { whole }
    }
}

/// Ceilings that a roofline needs.
#[derive(Clone, Copy, Debug)]
pub struct Ceilings {
    /// Measured read bandwidth, GB/s.
    pub read_gb_s: f64,
    /// Arithmetic rates.
    pub peak: Peak,
}

/// The ceilings of a machine, which can be measured again: other work may have been in the way, and then they were too low.
#[derive(Clone)]
pub struct CeilingProbe<'a> {
    now: Rc<Cell<Ceilings>>,
    again: Option<Rc<dyn Fn() -> Result<Ceilings> + 'a>>,
}

impl<'a> CeilingProbe<'a> {
    /// Ceilings that stand.
    pub fn fixed(ceilings: Ceilings) -> Self {
        CeilingProbe { now: Rc::new(Cell::new(ceilings)), again: None }
    }

    /// Ceilings that `again` measures another time.
    pub fn measured(ceilings: Ceilings, again: impl Fn() -> Result<Ceilings> + 'a) -> Self {
        CeilingProbe { again: Some(Rc::new(again)), ..CeilingProbe::fixed(ceilings) }
    }

    /// The highest that were measured so far.
    pub fn now(&self) -> Ceilings {
        self.now.get()
    }

    /// Measures again; whether that could be done.
    fn raise(&self) -> bool {
        let Some(Ok(new)) = self.again.as_ref().map(|again| again()) else { return false };
        let Ceilings { read_gb_s, peak } = self.now();
        let peak = Peak {
            f32_gflop_s: peak.f32_gflop_s.max(new.peak.f32_gflop_s),
            int8_gop_s: peak.int8_gop_s.max(new.peak.int8_gop_s),
            ..peak
        };
        self.now.set(Ceilings { read_gb_s: read_gb_s.max(new.read_gb_s), peak });
        true
    }
}

/// The items of the plans that have something to tune, heaviest first; decode and prefill weigh alike.
pub fn worklist(plans: &[&[Entry]], ceilings: Ceilings) -> Vec<Work> {
    let mut all: Vec<Work> = Vec::new();
    for plan in plans {
        let time = |e: &Entry| {
            let bytes = (e.cost.read_bytes + e.cost.write_bytes) as f64 / ceilings.read_gb_s;
            let arithmetic = e.cost.arithmetic_ns(ceilings.peak.f32_gflop_s, ceilings.peak.int8_gop_s);
            f64::from(e.uses) * bytes.max(arithmetic)
        };
        let total: f64 = plan.iter().map(time).sum();
        for e in plan.iter().filter(|e| e.tuned) {
            let share = if total > 0.0 { time(e) / total } else { 0.0 };
            match all.iter_mut().find(|w| w.op.name == e.op.name && w.shape == e.shape) {
                Some(w) => w.share = w.share.max(share),
                None => all.push(Work {
                    op: e.op,
                    shape: e.shape.clone(),
                    share,
                    uses: e.uses,
                    step: None,
                    deterministic: false,
                }),
            }
        }
    }
    all.sort_by(|a, b| b.share.total_cmp(&a.share).then_with(|| (a.op.name, &a.shape).cmp(&(b.op.name, &b.shape))));
    all
}

/// Everything a tuning run needs beside the store.
#[derive(Clone)]
pub struct Setting<'a> {
    /// The machine, for spaces and floors; candidates run in workers.
    pub machine: Machine<'a>,
    /// What a worker is to open: the name of the machine's backend, and after a colon which of several.
    pub device: String,
    /// Identities of this machine and build.
    pub identities: &'a Identities,
    /// Makes the command of a worker, which must call `serve_worker`.
    pub worker: &'a dyn Fn() -> Command,
    /// Where the quarantine and the intent journal live; `None` keeps them in memory.
    pub quarantine: Option<PathBuf>,
    /// Time for all items.
    pub budget: Duration,
    /// Clock of the budget.
    pub clock: &'a dyn Clock,
    /// Search and promotion policy.
    pub policy: Policy,
    /// Ceilings for floors.
    pub ceilings: Option<CeilingProbe<'a>>,
    /// Bytes that rotated copies exceed, so that weights come from memory as they do in a model.
    pub rotate_bytes: u64,
    /// How those were found, where they were measured; part of the evidence.
    pub cold: Option<Cold>,
    /// Measure again what the store already has.
    pub force: bool,
    /// Set from a signal handler: stop after at most one measurement.
    pub cancel: &'a AtomicBool,
}

/// What happened to an item.
#[derive(Clone, Debug)]
pub enum Fate {
    /// The store has an exact record; nothing was measured.
    Known(Box<Choice>),
    /// A prior was put to the test now, and holds.
    Confirmed(Box<Outcome>),
    /// Tuned now.
    Tuned(Box<Outcome>),
    /// The budget ended before it, or tuning was cancelled: the default stays.
    Skipped,
    /// The default itself does not pass or cannot run; the default stays and this says why.
    Failed(String),
}

/// An item and what happened to it.
#[derive(Clone, Debug)]
pub struct Done {
    /// The item.
    pub work: Work,
    /// What happened.
    pub fate: Fate,
}

/// Hears how a tuning run goes, so that the caller can show it.
pub trait Watch {
    /// Item `index` of `of` begins, with this much time.
    fn begins(&mut self, index: usize, of: usize, work: &Work, allowance: Duration);
    /// Something happened to the present item.
    fn event(&mut self, event: &Event);
    /// The item is done; one that its allowance cut off may begin and end once more.
    fn ends(&mut self, done: &Done);
    /// Something a user should know once.
    fn warning(&mut self, warning: &str);
    /// The worker is alive, and has been at `stage` of the present item for `waited`.
    fn beat(&mut self, _stage: &Stage, _waited: Duration) {}
}

fn open_quarantine(setting: &Setting<'_>, watch: &mut dyn Watch) -> Arc<Mutex<Quarantine>> {
    let quarantine = setting.quarantine.as_deref().map_or_else(Quarantine::in_memory, Quarantine::open);
    if let Some(warning) = quarantine.warning() {
        watch.warning(warning);
    }
    Arc::new(Mutex::new(quarantine))
}

/// The least time that an item is begun with.
const LEAST: Duration = Duration::from_millis(400);

/// Tunes `works` in order and stores every outcome as soon as it is known; what the later ones leave of the budget goes to
/// those whose share of it cut them off.
pub fn run(works: &[Work], setting: &Setting<'_>, store: &mut Store, watch: &mut dyn Watch) -> Result<Vec<Done>> {
    let quarantine = open_quarantine(setting, watch);
    let (total, since_ms) = (Budget::new(setting.clock, setting.budget), now_ms());
    let stored = |w: &Work, store: &Store| match setting.force {
        true => None,
        false => settled_since(w, (setting.machine, setting.identities), store, since_ms),
    };
    let open: Vec<bool> = works.iter().map(|w| stored(w, store).is_none()).collect();
    let (mut done, mut elsewhere) = (Vec::new(), Vec::new());
    for (index, work) in works.iter().enumerate() {
        let weights: Vec<f64> = (index..works.len()).filter(|i| open[*i]).map(|i| works[i].share).collect();
        let allowance = allot(total.left(), &weights, LEAST);
        let fate = match (stored(work, store), allowance) {
            (Some(choice), _) => Fate::Known(Box::new(choice)),
            (None, Some(allowance)) if !setting.cancel.load(Ordering::Relaxed) => {
                watch.begins(index, works.len(), work, allowance);
                let time = Time { allowance, since_ms };
                tune_one(work, setting, store, &quarantine, time, watch)?.unwrap_or_else(|| {
                    elsewhere.push(index);
                    Fate::Skipped
                })
            }
            _ => Fate::Skipped,
        };
        let item = Done { work: work.clone(), fate };
        if elsewhere.last() != Some(&index) {
            watch.ends(&item);
        }
        done.push(item);
    }
    for index in elsewhere {
        done[index].fate = from_elsewhere(&works[index], setting, store, &quarantine, (total, since_ms), watch)?;
        watch.ends(&done[index]);
    }
    while go_on(&mut done, setting, store, (&quarantine, total), watch)? {}
    store.seal();
    for warning in store.take_warnings() {
        watch.warning(&warning.to_string());
    }
    Ok(done)
}

/// Goes on once with each item that its allowance cut off; whether there was one of which more was measured.
fn go_on(
    done: &mut [Done],
    setting: &Setting<'_>,
    store: &mut Store,
    (quarantine, total): (&Arc<Mutex<Quarantine>>, Budget<'_>),
    watch: &mut dyn Watch,
) -> Result<bool> {
    // Measured again is what was known before the run; what it measured itself is kept.
    let setting = Setting { force: false, ..setting.clone() };
    let is_cut = |d: &Done| matches!(&d.fate, Fate::Tuned(outcome) if outcome.partial);
    let cut: Vec<usize> = (0..done.len()).filter(|i| is_cut(&done[*i])).collect();
    let (of, mut more) = (done.len(), false);
    for (n, &index) in cut.iter().enumerate() {
        let weights: Vec<f64> = cut[n..].iter().map(|i| done[*i].work.share).collect();
        let Some(allowance) = allot(total.left(), &weights, LEAST) else { break };
        if setting.cancel.load(Ordering::Relaxed) {
            break;
        }
        let work = done[index].work.clone();
        watch.begins(index, of, &work, allowance);
        let time = Time { allowance, since_ms: u64::MAX };
        // Where another process has it by now, that one stores what it finds.
        let Some(now) = tune_one(&work, &setting, store, quarantine, time, watch)? else { continue };
        more |= matches!(&now, Fate::Tuned(outcome) if outcome.samples > 0);
        if let Fate::Failed(why) = &now {
            watch.warning(&format!("{} {}: {why}", work.op.name, work.shape));
        }
        done[index].fate = went_on(done[index].fate.clone(), now);
        watch.ends(&done[index]);
    }
    Ok(more)
}

/// What an item came to that was at `before` when it was cut off, and is at `now`: as in the store, what was proven stays.
fn went_on(before: Fate, now: Fate) -> Fate {
    let proven = |o: &Outcome| matches!(o.verdict, Verdict::Promoted { .. });
    match (before, now) {
        (Fate::Tuned(mut before), Fate::Tuned(now)) if proven(&before) && !proven(&now) => {
            before.partial = now.partial;
            before.spent_s += now.spent_s;
            Fate::Tuned(before)
        }
        (Fate::Tuned(before), Fate::Failed(_)) if proven(&before) => Fate::Tuned(before),
        (_, now) => now,
    }
}

/// Between two looks at what another process has found.
const ELSEWHERE_PAUSE: Duration = Duration::from_millis(100);

/// What another process finds that is measuring the item; where that ends without a result, this one takes over.
fn from_elsewhere(
    work: &Work,
    setting: &Setting<'_>,
    store: &mut Store,
    quarantine: &Arc<Mutex<Quarantine>>,
    (total, since_ms): (Budget<'_>, u64),
    watch: &mut dyn Watch,
) -> Result<Fate> {
    while !setting.cancel.load(Ordering::Relaxed) && !total.left().is_zero() {
        let time = Time { allowance: total.left(), since_ms };
        if let Some(fate) = tune_one(work, setting, store, quarantine, time, watch)? {
            return Ok(fate);
        }
        setting.clock.sleep(ELSEWHERE_PAUSE);
    }
    Ok(Fate::Skipped)
}

/// The record that an item runs with as it stands, its own or the nearest of its bucket.
pub fn known(work: &Work, machine: Machine<'_>, identities: &Identities, store: &Store) -> Option<Choice> {
    let space = work.space(&machine);
    let (key, identity) = (key(work.op, &work.shape).ok()?, identities.of(&space));
    store.standing(Item { key: &key, identity: &identity, space: &space })
}

/// The same, unless an earlier run of it was cut off before it was settled: else it needs no measuring.
pub fn settled(work: &Work, machine: Machine<'_>, identities: &Identities, store: &Store) -> Option<Choice> {
    settled_since(work, (machine, identities), store, u64::MAX)
}

/// The same, what a run that began at `since_ms` has cut off itself left aside.
fn settled_since(
    work: &Work,
    (machine, identities): (Machine<'_>, &Identities),
    store: &Store,
    since_ms: u64,
) -> Option<Choice> {
    let space = work.space(&machine);
    let (key, identity) = (key(work.op, &work.shape).ok()?, identities.of(&space));
    store.settled(Item { key: &key, identity: &identity, space: &space }, since_ms)
}

/// What the best record of another build, policy or machine claims about an item, if it can be put to the test: a set of
/// candidates that has changed since is searched instead.
fn claim(key: &Key, identity: &Identity, space: &Space, store: &Store) -> Option<(Claim, Choice, Vec<String>)> {
    let legal = |c: &Config| space.violated(c).map_or(Ok(()), Err);
    let told = planish_tune::store::why(store, key, identity, &legal);
    let (Tier::Prior { differs }, Some(choice)) = (told.tier, told.record) else { return None };
    if differs.iter().any(|field| field == "candidates") {
        return None;
    }
    let evidence = || serde_json::from_value::<Outcome>(told.nearest?.evidence?.data).ok();
    let claim = match choice.state {
        State::Tuned => Claim::Beats(choice.config.clone()),
        // It won alone; whether the model is faster is asked again when all kernels are known.
        State::NoEndToEndEffect => Claim::Beats(evidence()?.choice),
        State::DefaultKept => {
            Claim::NothingBeats(evidence()?.ranking.into_iter().find(|r| r.config != space.default)?.config)
        }
        State::Undecided => return None,
    };
    if *claim.tried() == space.default {
        return None;
    }
    Some((claim, choice, differs))
}

fn spec(work: &Work, setting: &Setting<'_>) -> Spec {
    let ceilings = setting.ceilings.as_ref().map(CeilingProbe::now);
    Spec {
        device: setting.device.clone(),
        op: work.op.name.to_owned(),
        shape: work.shape.clone(),
        rotate_bytes: setting.rotate_bytes,
        read_gb_s: ceilings.map(|c| c.read_gb_s),
        peak: ceilings.map(|c| c.peak),
        seed: 1,
        deterministic: work.deterministic,
    }
}

/// Another command that starts the same program with the same arguments and environment.
fn same(command: &Command) -> Command {
    let mut again = Command::new(command.get_program());
    again.args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => again.env(name, value),
            None => again.env_remove(name),
        };
    }
    again
}

/// What is done for candidates of an item before they are admitted.
fn ahead(work: &Work) -> Option<Ahead> {
    let step = work.step.clone()?;
    let compile = step.ahead?;
    Some(Box::new(move |configs| compile(&step.spec, configs)))
}

/// What the tuner knows of an item without a worker; its name is the caller's.
fn setup(work: &Work, setting: &Setting<'_>) -> Result<Setup> {
    let plain = "a spec is plain data";
    if let Some(step) = &work.step {
        return Ok(Setup {
            subject: String::new(),
            space: work.space(&setting.machine),
            points: vec![Point(0)],
            floor: vec![step.floor],
            spec: serde_json::to_value(&step.spec).expect(plain),
            deadlines: STEP_DEADLINES,
            risk,
        });
    }
    let spec = spec(work, setting);
    let local = OpSubject::new(spec.clone(), setting.machine).map_err(Error::request)?;
    Ok(Setup {
        subject: String::new(),
        space: local.space().clone(),
        points: local.points(),
        floor: local.points().iter().map(|p| local.floor(*p)).collect(),
        spec: serde_json::to_value(&spec).expect(plain),
        deadlines: Deadlines::default(),
        risk,
    })
}

/// The item in a worker process of its own.
pub(crate) fn remote<'a>(
    work: &Work,
    setting: &Setting<'a>,
    quarantine: &Arc<Mutex<Quarantine>>,
) -> Result<Remote<'a>> {
    let key = key(work.op, &work.shape)?;
    let mut setup = setup(work, setting)?;
    let identity = setting.identities.of(&setup.space);
    setup.subject = format!("{key} {} {}", identity.silicon.hash16(), identity.kernel);
    let command = (setting.worker)();
    let again = move || same(&command);
    // Other work takes processors from kernels that run there, and says nothing of those of a card.
    let processors =
        (setting.machine.backend.limits().backend == "cpu").then_some(Processors { usage, used: processors });
    let remote = Remote::new(setup, again, quarantine.clone());
    Ok(remote.preparing(ahead(work)).on(processors).on_doubt(floor_again(work, setting)))
}

/// Measures the ceilings again for an item, whose floors follow from them; a whole step's follows from a card's own.
fn floor_again<'a>(work: &Work, setting: &Setting<'a>) -> Option<FloorAgain<'a>> {
    let probe = setting.ceilings.clone().filter(|_| work.step.is_none())?;
    let (work, setting) = (work.clone(), setting.clone());
    Some(Box::new(move |point| {
        if !probe.raise() {
            return None;
        }
        OpSubject::new(spec(&work, &setting), setting.machine).ok()?.floor(point)
    }))
}

/// Refuses an item whose inputs, references and copies take more memory than there is.
///
/// Systems promise memory that they do not have, so that whoever asks for too much is killed, and takes minutes until then.
pub fn fits(work: &Work, setting: &Setting<'_>) -> Result<()> {
    let Some(available) = system::available_bytes().filter(|_| work.step.is_none()) else { return Ok(()) };
    let device = &setting.machine.backend.limits().backend;
    let needed = subject::prepared_bytes(work.op, &work.shape, device, setting.rotate_bytes);
    if needed <= available {
        return Ok(());
    }
    let gb = |bytes: u64| bytes as f64 / 1e9;
    let message = format!(
        "{} {}: its inputs, references and copies take {:.1} GB of memory, and {:.1} GB are available",
        work.op.name,
        work.shape,
        gb(needed),
        gb(available)
    );
    Err(Error::request(message).with_hint("choose smaller sizes, or free memory"))
}

/// Processor time until now, where the system tells; a worker that runs is not other work.
pub fn usage(worker: Option<u32>) -> Option<Usage> {
    system::usage(worker).map(|u| Usage { all_s: u.all_s, others_s: u.others_s })
}

/// Share of the machine's processor time since `before` that other work took.
pub fn by_others(before: Option<Usage>) -> Option<f64> {
    usage(None)?.by_others(&before?)
}

/// Of an item of a run.
#[derive(Clone, Copy)]
struct Time {
    /// What it may take.
    allowance: Duration,
    /// When the run began, in milliseconds since 1970.
    since_ms: u64,
}

/// Tunes one item, or goes on where a run was cut off; none while another process is at it.
fn tune_one(
    work: &Work,
    setting: &Setting<'_>,
    store: &mut Store,
    quarantine: &Arc<Mutex<Quarantine>>,
    Time { allowance, since_ms }: Time,
    watch: &mut dyn Watch,
) -> Result<Option<Fate>> {
    if let Err(e) = fits(work, setting) {
        return Ok(Some(Fate::Failed(e.to_string())));
    }
    let watch = RefCell::new(watch);
    let heard = |stage: &Stage, waited| watch.borrow_mut().beat(stage, waited);
    let mut remote = remote(work, setting, quarantine)?.hearing(Box::new(heard));
    let (key, space) = (key(work.op, &work.shape)?, remote.space().clone());
    let identity = setting.identities.of(&space);
    let item = Item { key: &key, identity: &identity, space: &space };
    let earlier = if setting.force { Earlier::Forget } else { Earlier::Use };
    let (journal, resume) = match store.begin(item, since_ms, earlier) {
        Begun::Elsewhere => return Ok(None),
        Begun::Known(choice) => return Ok(Some(Fate::Known(choice))),
        Begun::Open(journal, resume) => (journal, resume),
    };
    let start = Budget::new(setting.clock, allowance);
    // What a run was cut off at is gone on with; its prior has been tried.
    let fresh = !setting.force && resume == Resume::default();
    if let Some(claim) = claim(&key, &identity, &space, store).filter(|_| fresh) {
        match try_claim(&mut remote, &claim, (setting, start), &watch)? {
            Trial::Held(outcome) => {
                let confirms = serde_json::json!({ "source": claim.1.source, "differs": claim.2 });
                let beside = [&beside(work, setting)[..], &[("confirms", confirms)]].concat();
                let ended = Ended { outcome: &outcome, beside: &beside, interrupted: false };
                store.end(item, &ended, journal).map_err(unfit)?;
                return Ok(Some(Fate::Confirmed(outcome)));
            }
            Trial::Fell(_) if setting.cancel.load(Ordering::Relaxed) => {}
            Trial::Fell(why) => {
                let said = format!("{key}: a prior is not confirmed, so it is tuned anew: {why}");
                watch.borrow_mut().warning(&said);
            }
        }
    }
    let mut forward = Forward { watch: &watch, journal };
    let task = Task {
        budget: Budget::new(setting.clock, start.left()),
        cancel: setting.cancel,
        observer: &mut forward,
        resume,
        policy: setting.policy.clone(),
    };
    match planish_tune::tune(&mut remote, task) {
        Ok(mut outcome) => {
            // What the space itself forbids can be listed again, and may be thousands; the tallies keep their number.
            outcome.rejected.retain(|(config, _)| space.violated(config).is_none());
            let interrupted = setting.cancel.load(Ordering::Relaxed);
            let ended = Ended { outcome: &outcome, beside: &beside(work, setting), interrupted };
            store.end(item, &ended, forward.journal).map_err(unfit)?;
            Ok(Some(Fate::Tuned(Box::new(outcome))))
        }
        Err(e) => Ok(Some(Fate::Failed(e.to_string()))),
    }
}

/// Gates `configs` of an item in a worker process: the worst error over its bound of each, or why it is refused.
pub fn gate(work: &Work, configs: &[Config], setting: &Setting<'_>) -> Result<Vec<Result<f64, Rejection>>> {
    let quarantine = setting.quarantine.as_deref().map_or_else(Quarantine::in_memory, Quarantine::open);
    let mut remote = remote(work, setting, &Arc::new(Mutex::new(quarantine)))?;
    Ok(configs.iter().map(|c| remote.admit(c).map(|a| a.error_over_bound())).collect())
}

/// What is kept beside the measurements: what times are held against, and over how many bytes buffers were rotated.
fn beside(work: &Work, setting: &Setting<'_>) -> Vec<(&'static str, serde_json::Value)> {
    let rotation = serde_json::json!({ "bytes": setting.rotate_bytes, "cold": setting.cold });
    vec![("roof", roof(work, setting)), ("rotation", rotation)]
}

/// What the times of an item are held against, as evidence; null for a whole step, whose shape is a model's and not its op's.
fn roof(work: &Work, setting: &Setting<'_>) -> serde_json::Value {
    if work.step.is_some() {
        return serde_json::Value::Null;
    }
    let mut roof = Roof::of(work.op, &work.shape, setting.ceilings.as_ref().map(CeilingProbe::now));
    roof.read_gb_s = roof.read_gb_s.or(setting.machine.backend.limits().read_gb_s);
    serde_json::to_value(roof).expect("a roof is plain numbers")
}

/// Puts a prior to the test, in at most half of the time that its item has.
fn try_claim(
    remote: &mut Remote<'_>,
    (claim, ..): &(Claim, Choice, Vec<String>),
    (setting, start): (&Setting<'_>, Budget<'_>),
    watch: &RefCell<&mut dyn Watch>,
) -> Result<Trial> {
    let task = Task {
        budget: Budget::new(setting.clock, start.left().mul_f64(0.5)),
        cancel: setting.cancel,
        observer: &mut Forward { watch, journal: Progress::default() },
        resume: Resume::default(),
        policy: setting.policy.clone(),
    };
    // What fails here fails again in the search, which says why.
    Ok(recheck(remote, task, claim).unwrap_or_else(|e| Trial::Fell(e.to_string())))
}

/// Gates every legal configuration of an item and times each `rounds` times; nothing is stored.
pub fn record(work: &Work, setting: &Setting<'_>, rounds: usize, watch: &mut dyn Watch) -> Result<Recorded> {
    let quarantine = open_quarantine(setting, watch);
    let mut remote = remote(work, setting, &quarantine)?;
    let device = setting.identities.silicon().label.clone();
    let about = About { key: key(work.op, &work.shape)?, device, share: work.share };
    let task = Task {
        budget: Budget::new(setting.clock, setting.budget),
        cancel: setting.cancel,
        observer: &mut Forward { watch: &RefCell::new(watch), journal: Progress::default() },
        resume: Resume::default(),
        policy: Policy::exhaustive(rounds),
    };
    planish_tune::record(&mut remote, task, about, rounds).map_err(|e| {
        let error = Error::request(e.to_string());
        match e.next_step() {
            Some(hint) => error.with_hint(hint),
            None => error,
        }
    })
}

/// Shows what happens, and writes it down for a run that comes after an interruption.
struct Forward<'w, 'c> {
    watch: &'c RefCell<&'w mut dyn Watch>,
    journal: Progress,
}

impl Observer for Forward<'_, '_> {
    fn event(&mut self, event: &Event) {
        self.journal.note(event);
        self.watch.borrow_mut().event(event);
    }
}

/// The error of a record that the store does not take.
fn unfit(e: planish_tune::store::Error) -> Error {
    Error::request(e.to_string())
}

/// What a worker is told to make.
#[derive(Deserialize)]
#[serde(untagged)]
enum Wanted {
    Step(StepSpec),
    Op(Spec),
}

/// What a worker process does: serves subjects on standard input and output until its input ends.
///
/// `open` gives the machine whose backend has the name that a spec carries; each is opened once, and kept.
pub fn serve_worker(open: &mut dyn FnMut(&str) -> Result<Machine<'static>, String>) -> Result<()> {
    let mut machines: HashMap<String, Machine<'static>> = HashMap::new();
    let mut factory = |spec: &serde_json::Value, tell: &Tell| {
        let wanted: Wanted = serde_json::from_value(spec.clone()).map_err(|e| e.to_string())?;
        let device = match &wanted {
            Wanted::Step(spec) => &spec.device,
            Wanted::Op(spec) => &spec.device,
        };
        let machine = match machines.get(device) {
            Some(machine) => *machine,
            None => {
                let machine = open(device)?;
                let machine = Machine { backend: Box::leak(Box::new(Telling::new(machine.backend, tell))), ..machine };
                machines.insert(device.clone(), machine);
                machine
            }
        };
        match wanted {
            Wanted::Op(spec) => Ok(Box::new(OpSubject::new(spec, machine)?.telling(tell)) as Box<dyn Subject>),
            Wanted::Step(spec) => {
                let model = StepModel::open(&spec, &machine).map_err(|e| e.to_string())?;
                // The process serves this one model until it ends.
                let model: &'static StepModel = Box::leak(Box::new(model));
                let subject = StepSubject::new(spec, machine, model).map_err(|e| e.to_string())?;
                Ok(Box::new(subject.telling(tell)) as Box<dyn Subject>)
            }
        }
    };
    planish_tune::contain::serve_stdio(&mut factory).map_err(|e| Error::request(e.to_string()))
}

#[cfg(test)]
mod tests {
    use planish_device::{Cpu, CpuOptions};
    use planish_kernels::cpu::isa::Isa;
    use planish_tune::VirtualClock;

    use super::*;

    /// Ceilings of one thread that reads `read_gb_s`, and computes too fast to matter.
    fn reading(read_gb_s: f64) -> Ceilings {
        Ceilings { read_gb_s, peak: Peak { f32_gflop_s: 1e6, int8_gop_s: 1e6, threads: 1 } }
    }

    #[test]
    fn what_was_proven_stays_and_is_no_longer_cut_off() {
        let stored = include_str!(
            "../../../docs/lab/0018/8177d2ff46a299fb/evidence/18ecf8f368ad2b19-1141-1a030c0c9706f2f8.jsonl"
        );
        let of = |line: &str| serde_json::from_str::<serde_json::Value>(line).expect("a line")["rec"]["data"].take();
        let all: Vec<Outcome> = stored.lines().filter_map(|l| serde_json::from_value(of(l)).ok()).collect();
        let [unproven, proven] = &all[..] else { panic!("{} outcomes", all.len()) };
        let fate = |o: &Outcome, partial| Fate::Tuned(Box::new(Outcome { partial, ..o.clone() }));
        let told = |f: Fate| match f {
            Fate::Tuned(o) => (o.choice == proven.choice, o.partial),
            _ => (false, true),
        };
        assert_eq!(told(went_on(fate(proven, true), fate(unproven, false))), (true, false));
        assert_eq!(told(went_on(fate(unproven, true), fate(proven, false))), (true, false));
        assert_eq!(told(went_on(fate(proven, true), Fate::Failed(String::new()))), (true, true));
        assert!(matches!(went_on(fate(unproven, true), Fate::Failed(String::new())), Fate::Failed(_)));
    }

    #[test]
    fn floors_follow_ceilings_and_those_only_rise() {
        let cpu = Cpu::new(CpuOptions { threads: Some(1) }).expect("a CPU");
        let machine = Machine { backend: &cpu, isa: Isa::detect() };
        let identities = Identities::new(&machine, &Policy::default());
        let (clock, cancel) = (VirtualClock::new(), AtomicBool::new(false));
        let found = RefCell::new(vec![Ok(reading(10.0)), Ok(reading(40.0)), Err(Error::request("no memory"))]);
        let setting = Setting {
            machine,
            device: "cpu".into(),
            identities: &identities,
            worker: &|| Command::new("nothing"),
            quarantine: None,
            budget: Duration::ZERO,
            clock: &clock,
            policy: Policy::default(),
            ceilings: Some(CeilingProbe::measured(reading(20.0), || found.borrow_mut().remove(0))),
            rotate_bytes: 1 << 30,
            cold: None,
            force: false,
            cancel: &cancel,
        };
        let op = subject::find("cpu", "matvec").expect("an op of processors");
        let shape = "type=q8_0,act=int8,batch=1,rows=4096,cols=4096".parse().expect("a shape");
        let work = Work { op, shape, share: 1.0, uses: 1, step: None, deterministic: false };
        let read_gb_s = || roof(&work, &setting)["read_gb_s"].as_f64().expect("a number");
        let ns = |floor: Option<Duration>| floor.map(|d| d.as_nanos() as f64);
        let first = ns(setup(&work, &setting).expect("an item").floor[0]).expect("a floor");
        let mut again = floor_again(&work, &setting).expect("ceilings that can be measured again");
        assert_eq!((ns(again(Point(0))), read_gb_s()), (Some(first), 20.0), "a lower ceiling is none");
        assert!((ns(again(Point(0))).expect("a floor") / first - 0.5).abs() < 1e-6);
        assert_eq!(read_gb_s(), 40.0, "evidence has what the times are held against in the end");
        assert_eq!((again(Point(0)), read_gb_s()), (None, 40.0), "what cannot be measured changes nothing");
        let fixed = Setting { ceilings: Some(CeilingProbe::fixed(reading(20.0))), ..setting.clone() };
        assert_eq!(floor_again(&work, &fixed).expect("a probe")(Point(0)), None);
    }
}
