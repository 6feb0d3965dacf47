//! The end-to-end check: a tuned and a default decoder of one model, interleaved on the same tokens.
//!
//! Winning alone is not enough: choices that do not make the model faster go back to the defaults.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use planish_kernels::cpu::isa::Isa;
use planish_kernels::op::{Op, Shape};
use planish_tune::stats::{median, median_bounds};
use planish_tune::store::{self, Choice, Evidence, Key, Ratio, Source, State, Store, Tier, now_ms};
use planish_tune::{Config, Space};
use serde::{Deserialize, Serialize};

use crate::decoder::Decoder;
use crate::error::{Error, NOT_FINITE_HINT, Result};
use crate::generate::{Flow, greedy_token};
use crate::gpu::{By, GpuDecoder, Part};
use crate::identity::{Identities, key};
use crate::plan::{Chosen, Entry};
use crate::verify::Feed;

/// Level of each bound of the ratio: together they hold it with 95%.
const ALPHA: f64 = 0.025;
/// Fewest pairs that give bounds at that level.
const PAIRS_MIN: usize = 6;

/// How much to run.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Most pairs of decode, and of prefill.
    pub pairs: usize,
    /// Tokens decoded in a run.
    pub tokens: usize,
    /// Time for all pairs; at least six of each are taken.
    pub budget: Duration,
}

impl Default for Effort {
    fn default() -> Self {
        Effort { pairs: 64, tokens: 24, budget: Duration::from_secs(12) }
    }
}

/// What the model as a whole gained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// The lower bound of the ratio is above 1.
    Faster,
    /// The bounds enclose 1.
    NoEffect,
    /// The upper bound of the ratio is below 1.
    Slower,
    /// Both run the same configurations.
    Same,
}

impl Effect {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Effect::Faster => "faster",
            Effect::NoEffect => "no effect",
            Effect::Slower => "slower",
            Effect::Same => "nothing tuned",
        }
    }
}

/// Tuned against default on one path.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gain {
    /// Tokens a second of the defaults, median.
    pub default_tok_s: f64,
    /// Tokens a second of the tuned set, median.
    pub tuned_tok_s: f64,
    /// Median of the paired ratios, above 1 when tuned is faster.
    pub ratio: f64,
    /// Lower bound of the ratio.
    pub lo: f64,
    /// Upper bound of the ratio.
    pub hi: f64,
    /// Pairs behind it.
    pub pairs: usize,
    /// The verdict.
    pub effect: Effect,
}

impl Gain {
    /// The ratio, where it is beyond noise: the middle of an interval around 1 is no gain.
    pub fn shown(&self) -> Option<f64> {
        matches!(self.effect, Effect::Faster | Effect::Slower).then_some(self.ratio)
    }
}

/// The result of the check.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// One token at a time.
    pub decode: Gain,
    /// The prompt.
    pub prefill: Gain,
    /// Largest difference of a logit between the two.
    pub logit_delta_max: f64,
    /// Positions at which both have the same best token.
    pub same_best: usize,
    /// Positions compared.
    pub compared: usize,
    /// Seconds it took.
    pub spent_s: f64,
    /// When the time that tuning took is earned back; none where nothing was tuned for it.
    #[serde(default)]
    pub break_even: Option<BreakEven>,
}

/// Tokens after which the time that tuning took is earned back.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BreakEven {
    /// Seconds that tuning took, the check of the model included.
    pub tuning_s: f64,
    /// Tokens decoded by then, at the median of the gain; none where decode did not get faster.
    pub tokens: Option<u64>,
    /// The same at the lower bound of the gain.
    pub tokens_most: Option<u64>,
}

impl Report {
    /// The same with what `tuning` costs until it is earned back.
    pub fn after(mut self, tuning: Duration) -> Report {
        let Gain { default_tok_s, ratio, lo, effect, .. } = self.decode;
        let tuning_s = tuning.as_secs_f64();
        let tokens = |ratio: f64| {
            let saved_s = (1.0 - 1.0 / ratio) / default_tok_s;
            // A gain that is not beyond noise earns nothing that one may count on.
            // Rounding of the quotient is no token more.
            (effect == Effect::Faster && saved_s > 0.0).then(|| (tuning_s / saved_s * (1.0 - 1e-12)).ceil() as u64)
        };
        self.break_even = Some(BreakEven { tuning_s, tokens: tokens(ratio), tokens_most: tokens(lo) });
        self
    }
}

/// One of two that are compared: runs the same tokens in one configuration or the other.
pub trait Side {
    /// Time of decode and of prefill, from an empty cache.
    fn lap(&mut self) -> Result<[Duration; 2]>;
}

/// A decoder on a prompt and the tokens after it.
struct Fed<'d> {
    decoder: &'d mut dyn Contender,
    prompt: &'d [u32],
    rest: &'d [u32],
}

impl Side for Fed<'_> {
    fn lap(&mut self) -> Result<[Duration; 2]> {
        self.decoder.truncate(0);
        let start = Instant::now();
        self.decoder.feed(self.prompt)?;
        let prefill = start.elapsed();
        let start = Instant::now();
        self.decoder.decode(self.rest)?;
        Ok([start.elapsed(), prefill])
    }
}

/// Gains of decode and of prefill, of `tokens` tokens each, in interleaved pairs of laps of the default and the tuned side.
///
/// A path that does not differ gains nothing. `None` when `cancel` was set before there was a result.
pub fn gains(
    [default, tuned]: [&mut dyn Side; 2],
    differs: [bool; 2],
    tokens: [usize; 2],
    effort: &Effort,
    cancel: &AtomicBool,
) -> Result<Option<[Gain; 2]>> {
    let start = Instant::now();
    let mut ratios = [Pairs::default(), Pairs::default()];
    for pair in 0..effort.pairs.max(PAIRS_MIN) {
        if cancel.load(Ordering::Relaxed) {
            return Ok(None);
        }
        if pair >= PAIRS_MIN && start.elapsed() > effort.budget {
            break;
        }
        let mut times = [[Duration::ZERO; 2]; 2];
        // The order alternates, so that neither profits from what the other left behind.
        for side in if pair % 2 == 0 { [0, 1] } else { [1, 0] } {
            times[side] = if side == 0 { default.lap()? } else { tuned.lap()? };
        }
        for (path, pairs) in ratios.iter_mut().enumerate() {
            pairs.push(times[0][path], times[1][path]);
        }
    }
    Ok(Some([0, 1].map(|path: usize| ratios[path].gain(tokens[path], differs[path]))))
}

/// A decoder as the comparison drives it.
pub trait Contender: Feed {
    /// Decodes as generation does, as many tokens as `ids` has: these where the host chooses, else those it draws.
    fn decode(&mut self, ids: &[u32]) -> Result<()>;
}

impl Contender for Decoder<'_> {
    fn decode(&mut self, ids: &[u32]) -> Result<()> {
        ids.iter().try_for_each(|id| Decoder::feed(self, std::slice::from_ref(id)).map(drop))
    }
}

impl Contender for GpuDecoder<'_> {
    fn decode(&mut self, ids: &[u32]) -> Result<()> {
        let drawn = self.draw(ids[0], &By::Likeliest, ids.len(), &mut |_| Ok(Flow::Continue))?;
        if drawn == ids.len() {
            return Ok(());
        }
        Err(Error::request(format!("{drawn} of {} tokens were drawn", ids.len())))
    }
}

/// Runs both on `ids`, of which the last `effort.tokens` are decoded and those before are the prompt.
///
/// `None` when `cancel` was set before there was a result.
/// Errors when the two were not built for the same model and numerics, or `ids` do not fit.
pub fn compare<'m>(
    default: &mut Decoder<'m>,
    tuned: &mut Decoder<'m>,
    ids: &[u32],
    effort: &Effort,
    cancel: &AtomicBool,
) -> Result<Option<Report>> {
    let differs = |a: &[Entry], b: &[Entry]| a.iter().zip(b).any(|(a, b)| a.chosen.config != b.chosen.config);
    let paths =
        [differs(&default.decode_plan, &tuned.decode_plan), differs(&default.prefill_plan, &tuned.prefill_plan)];
    compare_on(paths, [default, tuned], ids, effort, cancel)
}

/// The same for any two decoders of one model; `paths` says whether they differ in decode, and in prefill.
pub fn compare_on(
    paths: [bool; 2],
    [default, tuned]: [&mut dyn Contender; 2],
    ids: &[u32],
    effort: &Effort,
    cancel: &AtomicBool,
) -> Result<Option<Report>> {
    if effort.tokens == 0 || ids.len() < effort.tokens + 2 {
        return Err(Error::request(format!("{} tokens given, {} are decoded", ids.len(), effort.tokens)));
    }
    let start = Instant::now();
    let (prompt, rest) = ids.split_at(ids.len() - effort.tokens);
    let mut report = distance([&mut *default, &mut *tuned], prompt, rest)?;
    let mut sides = [default, tuned].map(|decoder| Fed { decoder, prompt, rest });
    let [a, b] = &mut sides;
    let Some(gains) = gains([a, b], paths, [rest.len(), prompt.len()], effort, cancel)? else { return Ok(None) };
    [report.decode, report.prefill] = gains;
    report.spent_s = start.elapsed().as_secs_f64();
    Ok(Some(report))
}

/// An untimed run of both, which also warms them: how far their logits are apart.
fn distance([default, tuned]: [&mut dyn Contender; 2], prompt: &[u32], rest: &[u32]) -> Result<Report> {
    let nothing = Pairs::default().gain(1, false);
    let mut report = Report {
        decode: nothing,
        prefill: nothing,
        logit_delta_max: 0.0,
        same_best: 0,
        compared: 0,
        spent_s: 0.0,
        break_even: None,
    };
    default.truncate(0);
    tuned.truncate(0);
    let best = |logits: &[f32]| greedy_token(Isa::Portable, logits);
    let steps = std::iter::once(prompt).chain(rest.iter().map(std::slice::from_ref));
    for ids in steps {
        let (a, b) = (default.feed(ids)?, tuned.feed(ids)?);
        if a.len() != b.len() {
            return Err(Error::request(format!("logits of two models: {} and {}", a.len(), b.len())));
        }
        finite("default", a, report.compared)?;
        finite("tuned", b, report.compared)?;
        let delta = a.iter().zip(b).map(|(a, b)| f64::from((a - b).abs())).fold(0.0, f64::max);
        report.logit_delta_max = report.logit_delta_max.max(delta);
        report.same_best += usize::from(best(a).is_some_and(|id| best(b) == Some(id)));
        report.compared += 1;
    }
    Ok(report)
}

/// Refuses logits from which no distance can be told: beside a NaN every difference would pass for none.
fn finite(side: &str, logits: &[f32], position: usize) -> Result<()> {
    let bad = logits.iter().filter(|v| !v.is_finite()).count();
    if bad == 0 {
        return Ok(());
    }
    let all = logits.len();
    Err(Error::model(format!("{side} configurations, position {position}: {bad} of {all} logits are not finite"))
        .with_hint(NOT_FINITE_HINT))
}

/// Paired times of one path, in seconds.
#[derive(Default)]
struct Pairs {
    default_s: Vec<f64>,
    tuned_s: Vec<f64>,
    logs: Vec<f64>,
}

impl Pairs {
    fn push(&mut self, default: Duration, tuned: Duration) {
        let (d, t) = (default.as_secs_f64().max(1e-9), tuned.as_secs_f64().max(1e-9));
        self.default_s.push(d);
        self.tuned_s.push(t);
        self.logs.push((d / t).ln());
    }

    fn gain(&self, tokens: usize, differs: bool) -> Gain {
        let tok_s = |s: &[f64]| median(s).map_or(0.0, |s| tokens as f64 / s);
        let ratio = median(&self.logs).map_or(1.0, f64::exp);
        let (lo, hi) = median_bounds(&self.logs, ALPHA).map_or((ratio, ratio), |(lo, hi)| (lo.exp(), hi.exp()));
        let enough = self.logs.len() >= PAIRS_MIN;
        let effect = match (differs, enough && lo > 1.0, enough && hi < 1.0) {
            (false, ..) => Effect::Same,
            (true, true, _) => Effect::Faster,
            (true, _, true) => Effect::Slower,
            _ => Effect::NoEffect,
        };
        let (default_tok_s, tuned_tok_s) = (tok_s(&self.default_s), tok_s(&self.tuned_s));
        Gain { default_tok_s, tuned_tok_s, ratio, lo, hi, pairs: self.logs.len(), effect }
    }
}

/// An op at a shape whose choice goes back to the default.
pub type Item = (&'static Op, Shape);

/// The same of decoders whose decode, and whose prefill, has a configuration as a whole.
pub fn refuted_parts(report: &Report, parts: [Option<(&Part, &Chosen)>; 2]) -> Vec<Item> {
    let effects = [report.decode.effect, report.prefill.effect];
    let refuted = |(effect, part): (Effect, Option<(&Part, &Chosen)>)| {
        let (part, _) = part.filter(|(_, chosen)| !keeps(effect) && changeable(chosen))?;
        Some((part.op, part.shape.clone()))
    };
    effects.into_iter().zip(parts).filter_map(refuted).collect()
}

/// Whether what was tuned for a path with this effect stays.
fn keeps(effect: Effect) -> bool {
    matches!(effect, Effect::Faster | Effect::Same)
}

/// Whether it was tuned here, or near here.
fn changeable(chosen: &Chosen) -> bool {
    matches!(chosen.tier, "tuned" | "nearby")
}

/// What must go back: the choices of each path that did not get faster; what both use stands or falls with decode.
pub fn refuted(report: &Report, decode: &[Entry], prefill: &[Entry]) -> Vec<Item> {
    let changed = |e: &&Entry| e.tuned && changeable(&e.chosen);
    let in_decode = |e: &Entry| decode.iter().any(|d| d.op.name == e.op.name && d.shape == e.shape);
    let mut out = Vec::new();
    if !keeps(report.decode.effect) {
        out.extend(decode.iter().filter(changed).map(|e| (e.op, e.shape.clone())));
    }
    if !keeps(report.prefill.effect) {
        out.extend(prefill.iter().filter(changed).filter(|e| !in_decode(e)).map(|e| (e.op, e.shape.clone())));
    }
    out
}

/// Whether what a check found holds for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lasts {
    /// Until something is measured anew on purpose.
    ForGood,
    /// Other work took part of the processors: the next run measures again.
    ToNextRun,
}

/// Stores for each item that the default runs again, since the model ran no faster; returns how many changed. `space_of`
/// is what its choice was made of.
pub fn put_back(
    items: &[Item],
    space_of: &dyn Fn(&Item) -> Space,
    identities: &Identities,
    store: &mut Store,
    lasts: Lasts,
) -> Result<usize> {
    let mut changed = 0;
    for item in items {
        let (op, shape, space) = (item.0, &item.1, space_of(item));
        let (key, identity) = (key(op, shape)?, identities.of(&space));
        // What a neighbour of the bucket gave goes back for this shape alone.
        let item = store::Item { key: &key, identity: &identity, space: &space };
        let Some(choice) = store.standing(item) else { continue };
        if choice.config == space.default || choice.state != State::Tuned {
            continue;
        }
        let ratio = Ratio { lo: 1.0, mid: 1.0, hi: 1.0 };
        let (config, state) = (space.default, State::NoEndToEndEffect);
        if lasts == Lasts::ToNextRun {
            store.measure_again(&key, &identity);
        }
        let choice = Choice { key, identity, config, state, ratio, ..choice };
        store.append(choice).map_err(|e| Error::request(e.to_string()))?;
        changed += 1;
    }
    Ok(changed)
}

/// The key under which the check of the set of choices with this digest is stored.
fn set_key(digest: &str) -> Result<Key> {
    let short: String = digest.chars().take(16).collect();
    Key::parse("end_to_end", &format!("set={short}")).map_err(|e| Error::request(e.to_string()))
}

/// The stored check of the set of choices with this digest.
pub fn known(digest: &str, identities: &Identities, store: &Store) -> Result<Option<Report>> {
    let key = set_key(digest)?;
    let found = store.lookup(&key, &identities.of(&Space::fixed(Config::new())));
    if found.tier != Tier::Exact {
        return Ok(None);
    }
    let newest = planish_tune::store::show(store, &key).into_iter().find_map(|s| s.evidence);
    Ok(newest.and_then(|e| serde_json::from_value(e.data).ok()))
}

/// Stores the check of the set of choices with this digest.
pub fn remember(report: &Report, digest: &str, identities: &Identities, store: &mut Store) -> Result<()> {
    let error = |e: planish_tune::store::Error| Error::request(e.to_string());
    let (key, identity) = (set_key(digest)?, identities.of(&Space::fixed(Config::new())));
    let data = serde_json::to_value(report).expect("a report is plain data");
    let evidence = Evidence { key: key.clone(), identity: identity.clone(), written_ms: now_ms(), data };
    let (name, _) = store.append_evidence(evidence).map_err(error)?;
    let Gain { ratio, lo, hi, tuned_tok_s, effect, .. } = report.decode;
    let state = if effect == Effect::Faster { State::Tuned } else { State::NoEndToEndEffect };
    let choice = Choice {
        key,
        identity,
        config: Config::new(),
        source: Source::Tuned,
        state,
        ratio: Ratio { lo, mid: ratio, hi },
        ns_median: 1e9 / tuned_tok_s.max(1e-9),
        written_ms: now_ms(),
        evidence: Some(name),
    };
    store.append(choice).map_err(error)?;
    store.seal();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use planish_tune::scripted::{Script, Scripted};
    use planish_tune::{Budget, Policy, Resume, Silent, Task, Verdict, VirtualClock};

    #[track_caller]
    fn check(ratios: &[f64], differs: bool, want: Effect) {
        let mut pairs = Pairs::default();
        for r in ratios {
            pairs.push(Duration::from_secs_f64(*r), Duration::from_secs(1));
        }
        assert_eq!(pairs.gain(10, differs).effect, want, "{ratios:?}");
    }

    /// A machine with a cache of 4 units, on which a token runs two ops in turn: `fast` is quicker alone in its large
    /// variant, which leaves the other op with nothing in the cache.
    struct Cached {
        large: bool,
        laps: u32,
    }

    /// Nanoseconds of the op alone, again and again, and units of cache that it leaves behind.
    fn alone(large: bool) -> (f64, u32) {
        if large { (80e3, 4) } else { (100e3, 1) }
    }

    impl Side for Cached {
        fn lap(&mut self) -> Result<[Duration; 2]> {
            self.laps += 1;
            let (own, units) = alone(self.large);
            let other = if units + 2 > 4 { 150e3 } else { 90e3 };
            let jitter = 1.0 + 0.01 * f64::from(self.laps * 7 % 5);
            let token_s = (own + other) * jitter * 1e-9;
            Ok([Duration::from_secs_f64(24.0 * token_s), Duration::from_secs_f64(128.0 * token_s)])
        }
    }

    /// Promoted by its own time, refused by the model's: a candidate that lives off the cache of others.
    #[test]
    fn what_is_faster_alone_and_slows_the_model_is_refused_by_the_model() {
        let clock = VirtualClock::new();
        let script = Script::of_times(1, &[alone(false).0, alone(true).0]);
        let mut subject = Scripted::new(script, clock.clone());
        let cancel = AtomicBool::new(false);
        let task = Task {
            budget: Budget::new(&clock, Duration::from_secs(60)),
            cancel: &cancel,
            observer: &mut Silent,
            resume: Resume::default(),
            policy: Policy::default(),
        };
        let outcome = planish_tune::tune(&mut subject, task).expect("the default works");
        assert!(matches!(outcome.verdict, Verdict::Promoted { ratio, .. } if ratio > 1.2), "{:?}", outcome.verdict);
        let side = |large| Cached { large, laps: 0 };
        let compare = |tuned: bool| {
            let (mut default, mut tuned) = (side(false), side(tuned));
            let gains = gains([&mut default, &mut tuned], [true, true], [24, 128], &Effort::default(), &cancel);
            gains.expect("no error").expect("not cancelled")
        };
        let [decode, prefill] = compare(true);
        assert_eq!((decode.effect, prefill.effect), (Effect::Slower, Effect::Slower), "{decode:?}");
        assert!(decode.hi < 0.9 && decode.pairs >= PAIRS_MIN, "{decode:?}");
        assert_eq!(compare(false)[0].effect, Effect::NoEffect, "the same on both sides");
        cancel.store(true, Ordering::Relaxed);
        let stopped = gains([&mut side(false), &mut side(true)], [true; 2], [24, 128], &Effort::default(), &cancel);
        assert!(stopped.expect("no error").is_none());
    }

    /// 100 tokens/s become 125: a token saves 2 ms, so 30 s are earned back by 15,000 tokens, at the lower bound by more.
    #[test]
    fn tuning_is_earned_back_by_the_tokens_that_its_gain_saves() {
        let gain = |effect| Gain {
            default_tok_s: 100.0,
            tuned_tok_s: 125.0,
            ratio: 1.25,
            lo: 1.1,
            hi: 1.3,
            pairs: 16,
            effect,
        };
        let report = |effect| Report {
            decode: gain(effect),
            prefill: gain(effect),
            logit_delta_max: 0.0,
            same_best: 1,
            compared: 1,
            spent_s: 5.0,
            break_even: None,
        };
        let after = report(Effect::Faster).after(Duration::from_secs(30)).break_even.expect("told");
        assert_eq!((after.tokens, after.tokens_most), (Some(15_000), Some(33_000)));
        let never = report(Effect::NoEffect).after(Duration::from_secs(30)).break_even.expect("told");
        assert_eq!((never.tuning_s, never.tokens, never.tokens_most), (30.0, None, None));
        let old = serde_json::to_value(report(Effect::Faster)).expect("plain");
        let mut old = old.as_object().expect("an object").clone();
        old.remove("break_even");
        let back: Report = serde_json::from_value(old.into()).expect("a record from before still reads");
        assert_eq!(back, report(Effect::Faster));
    }

    #[test]
    fn only_what_clears_the_noise_has_an_effect() {
        check(&[1.1, 1.2, 1.1, 1.05, 1.3, 1.1], true, Effect::Faster);
        check(&[0.9, 0.8, 0.95, 0.9, 0.7, 0.99], true, Effect::Slower);
        check(&[1.1, 1.2, 0.99, 1.05, 1.3, 1.1], true, Effect::NoEffect);
        check(&[1.1, 1.2, 1.1, 1.05, 1.3], true, Effect::NoEffect);
        check(&[1.1, 1.2, 1.1, 1.05, 1.3, 1.1], false, Effect::Same);
    }
}
