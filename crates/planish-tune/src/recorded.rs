//! A recorded space: the measured times of every legal configuration of one subject, for replay without the machine.
//!
//! Times are kept as they would be on a machine at the level of the default's median: each is the ratio to the default
//! just before and after it, times that median, so that what the machine did meanwhile is not taken for noise.
//!
//! The text form: a line `planish space 1`, a line of JSON about the whole, a line for each configuration with its values
//! in the order of the parameters, then `=` and its times in nanoseconds (points separated by `|`) or `!` and the
//! rejection as JSON, and at the end `sum` with the SHA-256 of all that is above.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::config::{Config, Value};
use crate::entry::State;
use crate::error::Error;
use crate::measure::{Bench, Halt, Task};
use crate::outcome::{Outcome, Times};
use crate::scripted::{Candidate, Fault, Machine, Noise, Script};
use crate::search::{Search, open};
use crate::space::Space;
use crate::stats::median;
use crate::store::Key;
use crate::subject::{Rejection, Subject};

/// The first line of a recorded space.
const MAGIC: &str = "planish space 1";

/// Longest text that is read: a space of a million times.
pub const TEXT_BYTES_MAX: usize = 16 << 20;

/// Rounds that are added where drift took some away.
const EXTRA_ROUNDS: usize = 4;

/// What is recorded of one configuration.
#[derive(Clone, Debug, PartialEq)]
pub enum Found {
    /// Times per point, in nanoseconds.
    Times(Vec<Vec<f64>>),
    /// Why it may not be used.
    Refused(Rejection),
}

/// What a recording is of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct About {
    /// Op and shape.
    pub key: Key,
    /// The machine, for people.
    pub device: String,
    /// Share of the time of a token that the subject has in the model it was recorded for; weighs its regret.
    pub share: f64,
}

/// One recorded space.
#[derive(Clone, Debug, PartialEq)]
pub struct Recorded {
    about: About,
    params: Vec<(String, Vec<Value>)>,
    default: Config,
    floor_ns: Vec<Option<f64>>,
    /// Mean cost of one gate run and of one timing, everything included, in nanoseconds.
    admit_ns: f64,
    timing_ns: f64,
    /// The default first.
    rows: Vec<(Config, Found)>,
}

#[derive(Serialize, Deserialize)]
struct Header {
    about: About,
    params: Vec<(String, Vec<Value>)>,
    default: Config,
    floor_ns: Vec<Option<f64>>,
    admit_ns: f64,
    timing_ns: f64,
    rows: usize,
}

impl Recorded {
    /// What it is of.
    pub fn about(&self) -> &About {
        &self.about
    }

    /// The default configuration.
    pub fn default_config(&self) -> &Config {
        &self.default
    }

    /// Every recorded configuration, the default first.
    pub fn rows(&self) -> &[(Config, Found)] {
        &self.rows
    }

    /// Configurations that have times.
    pub fn timed(&self) -> impl Iterator<Item = (&Config, &Vec<Vec<f64>>)> {
        self.rows.iter().filter_map(|(c, found)| match found {
            Found::Times(ns) => Some((c, ns)),
            Found::Refused(_) => None,
        })
    }

    /// Configurations that no constraint forbids.
    pub fn legal(&self) -> usize {
        self.rows.iter().filter(|(_, f)| !matches!(f, Found::Refused(Rejection::Constraint(_)))).count()
    }

    /// Combinations of parameter values of which nothing is recorded; 0 for a whole space.
    pub fn missing(&self) -> usize {
        self.params.iter().map(|(_, v)| v.len()).product::<usize>().saturating_sub(self.rows.len())
    }

    /// The samples of the even rounds alone, or of the odd ones; all of them where there are fewer than four.
    ///
    /// What one half says can be judged by the other, which no choice was fitted to.
    pub fn half(&self, odd: bool) -> Recorded {
        let pick = |ns: &Vec<f64>| -> Vec<f64> {
            if ns.len() < 4 {
                return ns.clone();
            }
            ns.iter().copied().skip(usize::from(odd)).step_by(2).collect()
        };
        let row = |(c, found): &(Config, Found)| match found {
            Found::Times(points) => (c.clone(), Found::Times(points.iter().map(pick).collect())),
            Found::Refused(_) => (c.clone(), found.clone()),
        };
        Recorded { rows: self.rows.iter().map(row).collect(), ..self.clone() }
    }

    /// The script that replays it; what is not recorded is refused by the constraint `scripted`.
    ///
    /// A recorded ratio holds the variance of its own run and half of that of the default's around it, which a replay adds
    /// again; so deviations are drawn in until a replayed pair scatters as a recorded one.
    pub fn script(&self) -> Script {
        let is_illegal = |f: &Found| matches!(f, Found::Refused(Rejection::Constraint(_)));
        let illegal = self.rows.iter().filter(|(_, f)| is_illegal(f)).map(|(c, _)| c.clone()).collect();
        let points = self.floor_ns.len();
        let candidate = |(config, found): &(Config, Found)| {
            let (samples_ns, refusal) = match found {
                Found::Times(ns) => (ns.iter().map(|samples| own_noise(samples)).collect(), None),
                Found::Refused(r) => (Vec::new(), Some(r.clone())),
            };
            let mut ns: Vec<f64> = samples_ns.iter().filter_map(|s| median(s)).collect();
            ns.resize(points, 0.0);
            let (config, noise, fault) = (config.clone(), Noise::None, Fault::None);
            Candidate { config, ns, noise, fault, samples_ns, refusal }
        };
        let candidates: Vec<Candidate> = self.rows.iter().map(candidate).collect();
        let default_ns: f64 = candidates[0].ns.iter().sum::<f64>() / points.max(1) as f64;
        let overhead_ns = (self.timing_ns - default_ns).max(0.0);
        let machine = Machine { tick_ns: 0.01, overhead_ns, admit_ns: self.admit_ns, ..Machine::default() };
        let (params, floor_ns) = (self.params.clone(), self.floor_ns.clone());
        Script { seed: 0, params, illegal, candidates, floor_ns, machine }
    }

    /// The text form.
    pub fn to_text(&self) -> String {
        let header = Header {
            about: self.about.clone(),
            params: self.params.clone(),
            default: self.default.clone(),
            floor_ns: self.floor_ns.clone(),
            admit_ns: self.admit_ns.round(),
            timing_ns: self.timing_ns.round(),
            rows: self.rows.len(),
        };
        let header = serde_json::to_string(&header).expect("a header is plain data");
        let mut text = format!("{MAGIC}\n{header}\n");
        for (config, found) in &self.rows {
            let values: Vec<String> =
                self.params.iter().filter_map(|(name, _)| config.get(name)).map(ToString::to_string).collect();
            let told = match found {
                Found::Times(points) => {
                    let point = |ns: &Vec<f64>| ns.iter().map(|v| digits(*v)).collect::<Vec<_>>().join(" ");
                    format!("= {}", points.iter().map(point).collect::<Vec<_>>().join(" | "))
                }
                Found::Refused(r) => format!("! {}", serde_json::to_string(r).expect("a rejection is plain data")),
            };
            writeln!(text, "{} {told}", values.join(" ")).expect("a string takes everything");
        }
        let sum = sum_of(&text);
        text + "sum " + &sum + "\n"
    }

    /// Reads the text form; an error names the line and what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let bad = |line: usize, what: String| Error::new(format!("line {line}: {what}"));
        let body_end = text.rfind("sum ").filter(|at| *at > 0 && text.as_bytes()[at - 1] == b'\n');
        let Some(end) = body_end else {
            return Err(Error::new("no line with the sum at the end").hint("the file was cut short; record it again"));
        };
        let (body, sum) = (&text[..end], text[end + 4..].trim_end());
        if !body.starts_with(&format!("{MAGIC}\n")) {
            return Err(bad(1, format!("{:?} is not `{MAGIC}`", body.lines().next().unwrap_or_default())));
        }
        if sum != sum_of(body) {
            let message = format!("the sum is {}, the file says {sum}", sum_of(body));
            return Err(Error::new(message).hint("the file was changed or damaged; record it again"));
        }
        let mut lines = body.lines().enumerate().skip(1).map(|(n, line)| (n + 1, line));
        let (n, first) = lines.next().ok_or_else(|| bad(2, "no header".to_owned()))?;
        let header: Header = serde_json::from_str(first).map_err(|e| bad(n, format!("no header: {e}")))?;
        let mut rows = Vec::new();
        let mut seen = HashSet::new();
        for (n, line) in lines {
            let row = parse_row(line, &header).map_err(|what| bad(n, what))?;
            if !seen.insert(row.0.clone()) {
                return Err(bad(n, format!("({}) is there twice", row.0)));
            }
            rows.push(row);
        }
        if rows.len() != header.rows {
            return Err(Error::new(format!("{} configurations, the header says {}", rows.len(), header.rows)));
        }
        if !matches!(rows.first(), Some((c, Found::Times(_))) if *c == header.default) {
            return Err(Error::new(format!(
                "the first configuration is not the default ({}) with times",
                header.default
            )));
        }
        let Header { about, params, default, floor_ns, admit_ns, timing_ns, .. } = header;
        Ok(Recorded { about, params, default, floor_ns, admit_ns, timing_ns, rows })
    }

    /// Reads the file at `path`.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let failed = |what: String| Error::new(format!("{}: {what}", path.display()));
        let size = std::fs::metadata(path).map_err(|e| failed(e.to_string()))?.len();
        if size > TEXT_BYTES_MAX as u64 {
            return Err(failed(format!("{size} bytes, at most {TEXT_BYTES_MAX} are read")));
        }
        let text = std::fs::read_to_string(path).map_err(|e| failed(e.to_string()))?;
        Self::parse(&text).map_err(|e| e.within(path))
    }

    /// What the evidence of a tuning run holds: the candidates that it timed, as a space of their own.
    ///
    /// Candidates that it never tried are missing, so a replay can only say how well the search does among these.
    /// `None` when the default or every other candidate was not timed.
    pub fn of_evidence(about: About, outcome: &Outcome) -> Option<Self> {
        let mut rows: Vec<(Config, Found)> = Vec::new();
        let default = outcome.ranking.iter().find(|r| r.config == outcome.default)?;
        let others = outcome.ranking.iter().filter(|r| r.config != outcome.default);
        for ranked in std::iter::once(default).chain(others) {
            let levels = default.times.iter().map(|t| t.median_ns);
            let at_level = |(t, level): (&Times, f64)| match t.speedups.is_empty() {
                true => t.samples_ns.clone(),
                false => t.speedups.iter().map(|s| level / s).collect(),
            };
            let times = ranked.times.iter().zip(levels).map(at_level).collect();
            rows.push((ranked.config.clone(), Found::Times(times)));
        }
        if rows.len() < 2 {
            return None;
        }
        let is_new = |c: &Config| outcome.ranking.iter().all(|r| r.config != *c);
        let refused = outcome.rejected.iter().filter(|(c, _)| is_new(c));
        rows.extend(refused.map(|(c, r)| (c.clone(), Found::Refused(r.clone()))));
        let names: Vec<String> = outcome.default.iter().map(|(name, _)| name.to_owned()).collect();
        let values = |name: &String| {
            let mut values: Vec<Value> = rows.iter().filter_map(|(c, _)| c.get(name).cloned()).collect();
            values.sort();
            values.dedup();
            (name.clone(), values)
        };
        let params = names.iter().map(values).collect();
        let timing_ns = default.times.iter().map(|t| t.median_ns).sum::<f64>() / default.times.len().max(1) as f64;
        let (default, floor_ns) = (outcome.default.clone(), outcome.floor_ns.clone());
        Some(Recorded { about, params, default, floor_ns, admit_ns: 1e6, timing_ns, rows })
    }
}

/// Samples with the part of their scatter that is their own: of one and a half variances, one.
fn own_noise(samples: &[f64]) -> Vec<f64> {
    let Some(level) = median(samples) else { return Vec::new() };
    samples.iter().map(|s| level * (s / level).powf((1.0f64 / 1.5).sqrt())).collect()
}

/// Six significant digits, which is more than any clock here resolves.
fn digits(v: f64) -> String {
    let decimals = (5 - v.abs().max(1e-3).log10().floor() as i32).clamp(0, 9) as usize;
    let text = format!("{v:.decimals$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

fn sum_of(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().take(16).map(|b| format!("{b:02x}")).collect()
}

/// One line: values, then times or a rejection.
fn parse_row(line: &str, header: &Header) -> Result<(Config, Found), String> {
    let mut rest = line;
    let mut config = Config::new();
    for (name, values) in &header.params {
        let (word, after) = rest.split_once(' ').ok_or_else(|| format!("no value of {name}"))?;
        let value = values.iter().find(|v| v.to_string() == word);
        config = config.with(name, value.ok_or_else(|| format!("{name}={word} is not a candidate value"))?.clone());
        rest = after;
    }
    if let Some(json) = rest.strip_prefix("! ") {
        let rejection = serde_json::from_str(json).map_err(|e| format!("no rejection: {e}"))?;
        return Ok((config, Found::Refused(rejection)));
    }
    let times = rest.strip_prefix("= ").ok_or("neither times nor a rejection")?;
    let number = |word: &str| match word.parse::<f64>() {
        Ok(ns) if ns.is_finite() && ns > 0.0 => Ok(ns),
        _ => Err(format!("`{word}` is no time in nanoseconds")),
    };
    let point = |text: &str| text.split_whitespace().map(number).collect::<Result<Vec<f64>, String>>();
    let points = times.split('|').map(point).collect::<Result<Vec<_>, String>>()?;
    if points.len() != header.floor_ns.len() || points.iter().any(Vec::is_empty) {
        return Err(format!("times at {} points, the header says {}", points.len(), header.floor_ns.len()));
    }
    Ok((config, Found::Times(points)))
}

/// Gates every legal configuration of `subject` and times each `rounds` times, interleaved, by the core that tuning uses.
///
/// Errors when the budget or a request ends it early, or the machine drifts too much: half a space would mislead.
pub fn record(subject: &mut dyn Subject, task: Task<'_>, about: About, rounds: usize) -> Result<Recorded, Error> {
    let space = subject.space().clone();
    if let Some(constraint) = space.violated(&space.default) {
        return Err(Error::new(format!("the default config ({}) violates its own space: {constraint}", space.default)));
    }
    let mut search = Search::list(&space, subject.points().len()).with_default();
    if !search.names_all() {
        let message = format!("a space of {} combinations is too large to record whole", space.size());
        return Err(Error::new(message));
    }
    let (mut bench, cost) = open(subject, task, &search)?;
    search.admit_cost = cost;
    let all: Vec<usize> = (0..search.entries.len()).collect();
    let timing = all_rounds(&mut bench, &mut search, &all, rounds).map_err(|halt| match halt {
        Halt::Fatal(error) => error,
        Halt::Cancelled => Error::new("interrupted; half a space is not kept"),
        Halt::Budget => {
            let timed: usize = search.entries.iter().map(|e| e.rounds().min(rounds)).sum();
            let message = format!("the budget ended after {timed} of {} timings", all.len() * rounds);
            Error::new(message).hint("give it more with --budget; half a space is not kept")
        }
    })?;
    let level: Vec<f64> = bench.anchors_ns.iter().map(|a| median(a).expect("anchors were timed")).collect();
    let mut rows: Vec<(Config, Found)> = Vec::new();
    for (i, e) in search.entries.iter().enumerate().filter(|(_, e)| e.state == State::Live) {
        let config = search.config(i);
        if e.rounds() < rounds {
            let message = format!("({config}) has {} of {rounds} timings: the machine drifts too much", e.rounds());
            return Err(Error::new(message).hint("record when nothing else runs"));
        }
        let times = e.rel.iter().zip(&level).map(|(rel, level)| rel[..rounds].iter().map(|r| r * level).collect());
        rows.push((config, Found::Times(times.collect())));
    }
    if rows.first().is_none_or(|(c, _)| *c != space.default) {
        return Err(Error::new(format!("the default config ({}) could not be timed", space.default)));
    }
    rows.extend(search.rejected.iter().map(|(c, r)| (c.clone(), Found::Refused(r.clone()))));
    let params = space.params.iter().map(|p| (p.name.to_owned(), p.values.clone())).collect();
    let (default, floor_ns, admit_ns) = (space.default, bench.floor_ns.clone(), search.admit_cost.as_nanos() as f64);
    let timing_ns = timing.as_nanos() as f64;
    Ok(Recorded { about, params, default, floor_ns, admit_ns, timing_ns, rows })
}

/// Warm-up, admission of `all` and their rounds; the mean cost of one timing.
fn all_rounds(bench: &mut Bench<'_, '_>, search: &mut Search, all: &[usize], rounds: usize) -> Result<Duration, Halt> {
    bench.warm()?;
    let (start, samples) = (bench.task.budget.spent(), bench.samples);
    bench.progress(search.admit_cost.saturating_mul(u32::try_from(all.len()).unwrap_or(u32::MAX)));
    if search.admit_all(bench, all)? {
        return Err(Halt::Budget);
    }
    let admitted = bench.task.budget.spent();
    search.admit_cost = (admitted - start) / u32::try_from(all.len()).unwrap_or(1).max(1);
    for round in 0..rounds {
        search.round(bench, round)?;
    }
    for _ in 0..EXTRA_ROUNDS {
        search.round(bench, rounds - 1)?;
    }
    let n = u32::try_from(bench.samples - samples).unwrap_or(u32::MAX).max(1);
    Ok((bench.task.budget.spent() - admitted) / n)
}

/// A script and its space, made once for many replays.
pub(crate) fn stage(recorded: &Recorded) -> (Arc<Script>, Space) {
    let script = recorded.script();
    let space = script.space();
    (Arc::new(script), space)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;
    use crate::budget::{Budget, VirtualClock};
    use crate::event::{Resume, Silent};
    use crate::policy::Policy;
    use crate::scripted::Scripted;

    fn recorded() -> Recorded {
        let mut script = Script::of_times(3, &[1e5, 0.9e5, 4e5, 1.1e5, 1e5]).fault(3, Fault::Wrong);
        script.illegal = vec![Config::new().with("V", 4)];
        let clock = VirtualClock::new();
        let mut subject = Scripted::new(script, clock.clone());
        let about = About { key: Key::new("op", [("n", Value::Int(4))]), device: "scripted".to_owned(), share: 0.5 };
        let task = Task {
            budget: Budget::new(&clock, Duration::from_secs(60)),
            cancel: &AtomicBool::new(false),
            observer: &mut Silent,
            resume: Resume::default(),
            policy: Policy::exhaustive(6),
        };
        record(&mut subject, task, about, 6).expect("everything fits")
    }

    #[test]
    fn every_legal_configuration_is_recorded_and_reads_back() {
        let recorded = recorded();
        let times: Vec<usize> = recorded.timed().map(|(_, ns)| ns[0].len()).collect();
        assert_eq!((times, recorded.legal(), recorded.missing()), (vec![6, 6, 6], 4, 0));
        let slow = recorded.timed().nth(2).and_then(|(_, ns)| median(&ns[0])).expect("the slow one is timed too");
        assert!((3.9e5..4.1e5).contains(&slow), "{slow}");
        let text = recorded.to_text();
        let back = Recorded::parse(&text).expect("reads back");
        assert_eq!(back.to_text(), text);
        assert_eq!(back.rows().len(), 5);
        assert!(matches!(&back.rows()[4].1, Found::Refused(Rejection::Wrong(_) | Rejection::Constraint(_))));
    }

    #[test]
    fn damage_is_named() {
        let text = recorded().to_text();
        let resum = |body: &str| {
            let body = &body[..body.rfind("sum ").expect("a sum")];
            format!("{body}sum {}\n", sum_of(body))
        };
        let line = |n: usize| text.lines().nth(n).expect("a line").to_owned();
        let cases = [
            (text[..text.len() / 2].to_owned(), "no line with the sum"),
            (text.replacen("= 1", "= 2", 1), "the sum is"),
            (text.replacen("space 1", "space 9", 1), "is not `planish space 1`"),
            (resum(&text.replacen("= 1", "= -1", 1)), "line 3: `-1"),
            (resum(&text.replacen("\n1 = ", "\n7 = ", 1)), "line 4: V=7 is not a candidate value"),
            (resum(&text.replacen("\n1 = ", "\n0 = ", 1)), "line 4: (V=0) is there twice"),
            (resum(&text.replacen(&format!("{}\n", line(3)), "", 1)), "4 configurations, the header says 5"),
            (resum(&text.replacen(&format!("{}\n", line(2)), "", 1)), "4 configurations"),
        ];
        for (text, want) in cases {
            let told = Recorded::parse(&text).expect_err(want).to_string();
            assert!(told.contains(want), "{told}, wanted {want}");
        }
    }
}
