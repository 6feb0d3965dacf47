//! What tuning bought: for every kernel what changed and by how much, then the model as a whole, as a table or as JSON.

use std::time::Duration;

use planish_engine::accept::{BreakEven, Effect, Gain, Lasts, Report};
use planish_engine::identity::Identities;
use planish_engine::plan::Chosen;
use planish_engine::tuning::{self, Done, Fate, Work};
use planish_kernels::op::{Machine, Shape};
use planish_tune::store::{Choice, Ratio, State, Store};
use planish_tune::{Config, Policy, Verdict, counted};
use serde::Serialize;
use serde_json::json;

use super::Known;
use super::variants::{self, Variant};
use crate::tuned::{Kernel, Run, Tuned, Whole};
use crate::ui::Ui;
use crate::{Outcome, report};

/// Combinations of a space up to which a page lists those that are forbidden; of more it tells how many.
const LISTED_MOST: usize = 20_000;

/// How the end-to-end check went.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct EndToEnd {
    /// What was measured.
    pub report: Report,
    /// It was measured before and read from the store.
    pub known: bool,
    /// Choices that went back to their defaults.
    pub put_back: usize,
    /// Share of the machine's processor time that other work took meanwhile, where the system tells.
    pub by_others: Option<f64>,
}

impl EndToEnd {
    /// How long its verdict holds: beside other work, a model may be faster or slower for that alone.
    pub fn lasts(&self) -> Lasts {
        if busy(self.by_others).is_some() { Lasts::ToNextRun } else { Lasts::ForGood }
    }
}

/// The share of other work where that is too much.
fn busy(by_others: Option<f64>) -> Option<f64> {
    by_others.filter(|share| *share > Policy::default().others)
}

/// One kernel at one shape.
#[derive(Clone, Debug, Serialize)]
struct Row {
    op: &'static str,
    shape: Shape,
    share: f64,
    default: Config,
    choice: Config,
    /// Why the choice is what it is.
    state: &'static str,
    ratio: Option<Ratio>,
    share_of_roof: Option<f64>,
    /// Whether the default was faster than the roof, which then says nothing.
    roof_beaten: bool,
    /// The best of each variant, where this run measured several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    variants: Vec<Variant>,
    /// Why nothing was decided, where that is so.
    #[serde(skip_serializing_if = "Option::is_none")]
    undecided: Option<String>,
    /// The share of other work for which a win on fewer threads was held back, if one was.
    #[serde(skip_serializing_if = "Option::is_none")]
    busy: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(skip)]
    work: Work,
}

impl Row {
    /// `work` at its default, as long as nothing else is known of it.
    fn of(work: Work, default: Config) -> Row {
        Row {
            op: work.op.name,
            shape: work.shape.clone(),
            share: work.share,
            choice: default.clone(),
            default,
            state: "not reached",
            ratio: None,
            share_of_roof: None,
            roof_beaten: false,
            variants: Vec::new(),
            undecided: None,
            busy: None,
            error: None,
            work,
        }
    }
}

/// The result of a tuning run.
#[derive(Clone, Debug, Serialize)]
pub struct Bought {
    name: String,
    rows: Vec<Row>,
    /// The check of the model as a whole, where there was one.
    pub end_to_end: Option<EndToEnd>,
    /// Kernels measured in this run.
    measured: usize,
    /// Of these, priors that were put to the test and hold.
    confirmed: usize,
    /// Of these, kernels that their time cut off: the next run goes on with them.
    cut_off: usize,
    /// Whether what was found outlives this run.
    saved: bool,
    /// Seconds it took.
    pub seconds: f64,
    /// Share of the machine's processor time that other work took meanwhile, where the system tells.
    pub by_others: Option<f64>,
    /// What goes on with kernels that were cut off, in words.
    #[serde(skip)]
    pub again: String,
}

impl Bought {
    /// The rows of `done`, with what the store says now.
    pub fn new(done: Vec<Done>, machine: Machine<'_>, identities: &Identities, store: &Store) -> Self {
        let measured = done.iter().filter(|d| matches!(d.fate, Fate::Tuned(_) | Fate::Confirmed(_))).count();
        let confirmed = done.iter().filter(|d| matches!(d.fate, Fate::Confirmed(_))).count();
        let cut_off = done.iter().filter(|d| matches!(&d.fate, Fate::Tuned(o) if o.partial)).count();
        let rows = done.into_iter().map(|d| row(d, machine)).collect();
        let mut bought = Bought {
            name: String::new(),
            rows,
            end_to_end: None,
            measured,
            confirmed,
            cut_off,
            saved: true,
            seconds: 0.0,
            by_others: None,
            again: "the same command".to_owned(),
        };
        bought.refresh(machine, identities, store);
        bought
    }

    /// The same under a name.
    pub fn named(mut self, name: &str) -> Self {
        name.clone_into(&mut self.name);
        self
    }

    /// Takes over what the store says now, since choices may have gone back to their defaults.
    pub fn refresh(&mut self, machine: Machine<'_>, identities: &Identities, store: &Store) {
        self.saved = store.is_kept();
        for row in &mut self.rows {
            if let Some(choice) = tuning::known(&row.work, machine, identities, store) {
                row.state = state(&choice);
                row.choice = choice.config;
            }
        }
    }

    /// Everything behind the report: what the store holds about each kernel, and what became of the others.
    pub(super) fn evidence(&self, budget: Duration, known: &Known<'_>) -> Tuned {
        let run = Run { budget_s: budget.as_secs_f64(), spent_s: self.seconds, measured: self.measured };
        let mut tuned = Tuned::new(&self.name, Some(run));
        for row in &self.rows {
            let (op, shape) = (row.op, row.shape.to_string());
            let mut kernel = match tuning::known(&row.work, known.machine, known.identities, known.store) {
                Some(choice) => Kernel::in_store(&shape, &choice, known.store),
                None => Kernel::missing(op, &shape, row.error.as_deref().unwrap_or(row.state)),
            };
            kernel.share = Some(row.share);
            let space = row.work.space(&known.machine);
            let size = space.params.iter().map(|p| p.values.len()).fold(1, usize::saturating_mul);
            if size <= LISTED_MOST {
                let forbidden = |c: Config| space.violated(&c).map(|why| (c, why));
                kernel.forbidden = space.candidates().into_iter().filter_map(forbidden).collect();
            }
            tuned.kernels.push(kernel);
        }
        tuned.whole = Whole::of_set(&known.digest, known.store);
        tuned
    }

    /// One line for who pressed Ctrl-C.
    pub fn interrupted(&self) -> String {
        let kept = self.rows.iter().filter(|r| r.state != "not reached").count();
        let all = counted(self.rows.len(), "kernel");
        if self.lost() {
            return format!("{kept} of {all} tuned, and nothing of that is saved");
        }
        format!("{kept} of {all} tuned and kept; the same command goes on with the rest")
    }

    /// One line for a run that found everything in the store.
    pub fn nothing_to_measure(&self) -> String {
        let undecided = match self.rows.iter().filter(|r| r.state == "undecided").count() {
            0 => String::new(),
            n => format!("; undecided: {n}, which --force measures again"),
        };
        let all = counted(self.rows.len(), "kernel");
        format!("{all} known on this machine, nothing is measured{undecided}")
    }

    /// No where a kernel could not be tuned because its default is wrong or does not run, and where what was found is lost.
    pub fn answer(&self) -> Outcome {
        if self.failed() > 0 || self.lost() { Outcome::No } else { Outcome::Done }
    }

    fn lost(&self) -> bool {
        self.measured > 0 && !self.saved
    }

    fn failed(&self) -> usize {
        self.rows.iter().filter(|r| r.error.is_some()).count()
    }

    /// Writes the report to standard output.
    pub fn print(&self, ui: Ui) -> anyhow::Result<()> {
        if ui.json {
            let mut report = serde_json::to_value(self)?;
            report["sentence"] = json!(self.sentence());
            return report::print_json(&report);
        }
        report::print(&self.text())
    }

    /// The table and the sentence.
    pub fn text(&self) -> String {
        let rows: Vec<_> = self.rows.iter().flat_map(lines).collect();
        let mut text = report::table(["kernel", "default -> chosen", "gain [95%]", "roof"], &rows);
        text += &self.legend();
        if let Some(end) = &self.end_to_end {
            let line = |name: &str, g: &Gain| {
                let speed = |v: f64| format!("{v:.1}");
                [name.to_owned(), speed(g.default_tok_s), speed(g.tuned_tok_s), bounds(g), g.effect.name().to_owned()]
            };
            let rows = [line("decode", &end.report.decode), line("prefill", &end.report.prefill)];
            text += "\n";
            text += &report::table(["end to end", "default tok/s", "tuned tok/s", "gain [95%]", "verdict"], &rows);
            let r = &end.report;
            if [r.decode, r.prefill].iter().any(unlike_quotient) {
                text += "each gain is the median over runs side by side, each speed that of its own side: ";
                text += "on an uneven machine they differ\n";
            }
            text += &format!(
                "logits differ by at most {:.2e}; the best token is the same at {} of {} positions\n",
                r.logit_delta_max, r.same_best, r.compared
            );
            text += &r.break_even.as_ref().map(break_even).unwrap_or_default();
            if end.put_back > 0 {
                let back = counted(end.put_back, "choice");
                text += &format!("{back} brought the model nothing and went back to the defaults\n");
            }
        }
        text += &self.company();
        text + "\n" + &self.sentence() + "\n"
    }

    /// What the column of roofs says, and what stands there where it has no number.
    fn legend(&self) -> String {
        let any = |of: fn(&Row) -> bool, text| if self.rows.iter().any(of) { text } else { "" };
        let beaten = any(|r| r.roof_beaten, "; beaten: above them");
        let blank = any(|r| r.share_of_roof.is_none() && !r.roof_beaten, "; blank: not timed now");
        let said = any(|_| true, "roof: of this machine's ceilings");
        if said.is_empty() { String::new() } else { format!("{said}{beaten}{blank}\n") }
    }

    /// Lines where other work took so much of the machine that another choice may be right without it.
    fn company(&self) -> String {
        let (again, mut text) = (&self.again, String::new());
        let took = |share: f64| format!("other work took {:.0}% of this machine's processors", 100.0 * share);
        if let Some(share) = busy(self.by_others) {
            text += &format!(
                "{} meanwhile: another choice may be right on a quiet one, where {again} with --force measures again\n",
                took(share)
            );
        }
        if let Some(share) = self.end_to_end.as_ref().and_then(|end| busy(end.by_others)) {
            text += &format!("{} during the check end to end, so {again} makes it once more\n", took(share));
        }
        if let n @ 1.. = self.rows.iter().filter(|r| r.busy.is_some()).count() {
            text += &format!(
                "not promoted for that: fewer threads for {n} of {}, measured once more by {again}\n",
                counted(self.rows.len(), "kernel")
            );
        }
        text
    }

    /// What a person can repeat.
    fn sentence(&self) -> String {
        let all = counted(self.rows.len(), "kernel");
        let changed = self.rows.iter().filter(|r| r.choice != r.default).count();
        let unreached = self.rows.iter().filter(|r| r.state == "not reached").count();
        let mut rest = if unreached > 0 { format!(", {unreached} not reached") } else { String::new() };
        if self.failed() > 0 {
            rest += &format!(", {} whose default is wrong or does not run", self.failed());
        }
        if self.cut_off > 0 && self.lost() {
            rest += &format!(", {} cut off by the budget", self.cut_off);
        } else if self.cut_off > 0 {
            rest += &format!(", {} cut off by the budget, and {} goes on with them", self.cut_off, self.again);
        }
        let kernels = format!("{changed} of {all} with another configuration than the default{rest}");
        let time = match self.measured {
            0 => "nothing was measured".to_owned(),
            n if self.confirmed > 0 => {
                format!("{n} measured in {:.0} s, {} of them priors that hold here", self.seconds, self.confirmed)
            }
            n => format!("{n} measured in {:.0} s", self.seconds),
        };
        let whole = match &self.end_to_end {
            Some(EndToEnd { report: Report { decode: g, .. }, .. }) => decoded(g),
            None => String::new(),
        };
        let lost = if self.lost() { ", and nothing of it is saved" } else { "" };
        format!("{}: {whole}{kernels}; {time}{lost}", self.name)
    }
}

fn row(done: Done, machine: Machine<'_>) -> Row {
    let space = done.work.space(&machine);
    let mut row = Row::of(done.work, space.default.clone());
    match done.fate {
        Fate::Known(choice) => {
            row.ratio = (choice.state == State::Tuned).then_some(choice.ratio);
            row.state = state(&choice);
        }
        Fate::Tuned(outcome) | Fate::Confirmed(outcome) => {
            row.share_of_roof = outcome.share_of_roof();
            row.roof_beaten = outcome.roof_beaten && row.share_of_roof.is_none();
            row.variants = variants::of(&space, &outcome);
            // What the store has by now says how it ended; it has nothing of a search that Ctrl-C cut short.
            row.busy = outcome.busy();
            match outcome.verdict {
                Verdict::Promoted { ratio, lo, hi } => row.ratio = Some(Ratio { lo, mid: ratio, hi }),
                Verdict::Undecided(why) => row.undecided = Some(why),
                Verdict::KeptDefault => {}
            }
        }
        Fate::Skipped => {}
        Fate::Failed(why) => (row.state, row.error) = ("failed", Some(why)),
    }
    row
}

fn state(choice: &Choice) -> &'static str {
    match choice.state {
        State::Tuned => "tuned",
        State::DefaultKept => "default kept",
        State::Undecided => "undecided",
        State::NoEndToEndEffect => "no effect end to end",
    }
}

/// When the time spent is earned back, in a line.
fn break_even(b: &BreakEven) -> String {
    let spent = format!("tuning took {:.0} s", b.tuning_s);
    match (b.tokens, b.tokens_most) {
        (Some(tokens), Some(most)) => {
            format!("{spent}, earned back after {} of decode, at most {most}\n", counted(tokens, "token"))
        }
        _ => format!("{spent}, which decode does not earn back\n"),
    }
}

/// Whether a reader who divides the two speeds finds another gain than is told, by more than 2%.
fn unlike_quotient(g: &Gain) -> bool {
    g.shown().is_some_and(|ratio| (g.tuned_tok_s / g.default_tok_s / ratio - 1.0).abs() > 0.02)
}

/// `1.12 [1.08, 1.15]`; where that is no effect its bounds alone, and nothing where nothing was compared.
fn bounds(g: &Gain) -> String {
    match (g.shown(), g.effect) {
        (Some(mid), _) => interval(&Ratio { lo: g.lo, mid, hi: g.hi }),
        (None, Effect::Same) => "-".to_owned(),
        (None, _) => format!("{:.2} to {:.2}", g.lo, g.hi),
    }
}

/// What became of decode, as the beginning of a sentence.
fn decoded(g: &Gain) -> String {
    let (default, tuned, effect) = (g.default_tok_s, g.tuned_tok_s, g.effect.name());
    match (g.shown(), g.effect) {
        (Some(_), _) => {
            format!("decode {} x the default ({default:.1} -> {tuned:.1} tokens/s, {effect}); ", bounds(g))
        }
        (None, Effect::Same) => format!("decode: {effect}; "),
        (None, _) => format!("decode: {effect}: {} x the default; ", bounds(g)),
    }
}

/// `1.12 [1.08, 1.15]`.
fn interval(r: &Ratio) -> String {
    format!("{:.2} [{:.2}, {:.2}]", r.mid, r.lo, r.hi)
}

/// Widest text of what changed; more goes to the next line.
const CHANGE_COLUMNS: usize = 24;

/// The lines of a row: one, or more where much changed.
fn lines(row: &Row) -> Vec<[String; 4]> {
    let differs = |(name, value): &(&str, &planish_tune::Value)| row.default.get(name) != Some(*value);
    let mut changes = vec![String::new()];
    for (name, value) in row.choice.iter().filter(differs) {
        let was = row.default.get(name).map_or("-".into(), ToString::to_string);
        let change = format!("{name} {was} -> {value}");
        match changes.last_mut() {
            Some(last) if last.is_empty() => *last = change,
            Some(last) if last.len() + 2 + change.len() <= CHANGE_COLUMNS => *last += &format!(", {change}"),
            _ => changes.push(change),
        }
    }
    if row.choice == row.default {
        let busy = row.busy.map_or(String::new(), |share| format!(": other work {:.0}%", 100.0 * share));
        // A run that decides nothing leaves what an earlier one decided, whose evidence is kept and shown.
        let earlier = if row.state == "default kept" && row.undecided.is_some() { " earlier" } else { "" };
        changes = vec![format!("{}{earlier}{busy}", row.state)];
    }
    let gain = row.ratio.as_ref().map_or(String::new(), interval);
    let known = row.share_of_roof.map(|s| format!("{:.0}%", 100.0 * s));
    let roof = known.or(row.roof_beaten.then(|| "beaten".to_owned())).unwrap_or_default();
    let first = [short(row.op, &row.shape), changes.remove(0), gain, roof];
    let more = changes.into_iter().chain(row.variants.iter().map(Variant::line));
    let more = more.map(|c| [String::new(), c, String::new(), String::new()]);
    std::iter::once(first).chain(more).collect()
}

/// A kernel and its shape in few letters: `gemm q4_1 1536x576 x256`; whole where it has neither rows nor heads.
pub fn short(op: &str, shape: &Shape) -> String {
    let text = shape.to_string();
    let field = |name: &str| text.split(',').find_map(|f| f.strip_prefix(name)?.strip_prefix('=')).unwrap_or("?");
    let batch = match field("batch") {
        "1" | "?" => String::new(),
        n => format!(" x{n}"),
    };
    if text.contains("rows=") {
        return format!("{op} {} {}x{}{batch}", field("type"), field("rows"), field("cols"));
    }
    if !text.contains("heads=") {
        return format!("{op} {text}");
    }
    let op = op.replace("attention_decode", "attn_decode");
    format!("{op} {}/{} heads {}{batch}", field("heads"), field("kv_heads"), field("head_dim"))
}

/// Prints a worklist: what would be tuned, its share of a step, and what it runs with now.
pub fn list(works: &[(&Work, &Chosen)], ui: Ui) -> anyhow::Result<Outcome> {
    if ui.json {
        let item = |(w, chosen): &(&Work, &Chosen)| {
            let (tier, config) = (chosen.tier, &chosen.config);
            json!({ "op": w.op.name, "shape": w.shape, "share": w.share, "uses": w.uses, "tier": tier, "config": config })
        };
        report::print_json(&works.iter().map(item).collect::<Vec<_>>())?;
        return Ok(Outcome::Done);
    }
    let row = |(w, chosen): &(&Work, &Chosen)| {
        let share = format!("{:.1}%", 100.0 * w.share);
        let (tier, config) = (chosen.tier.to_owned(), chosen.config.to_string());
        [short(w.op.name, &w.shape), w.uses.to_string(), share, tier, config]
    };
    let rows: Vec<_> = works.iter().map(row).collect();
    report::print(&report::table(["kernel", "uses", "share", "tier", "configuration"], &rows))?;
    Ok(Outcome::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gain([default_tok_s, tuned_tok_s, ratio]: [f64; 3]) -> Gain {
        Gain {
            default_tok_s,
            tuned_tok_s,
            ratio,
            lo: ratio - 0.1,
            hi: ratio + 0.1,
            pairs: 12,
            effect: Effect::NoEffect,
        }
    }

    /// The text of a run that cut two kernels off.
    fn text(decode: Gain, by_others: Option<f64>) -> String {
        bought(decode, by_others).text()
    }

    fn bought(decode: Gain, by_others: Option<f64>) -> Bought {
        let prefill = gain([100.0, 101.0, 1.01]);
        let (logit_delta_max, same_best, compared, spent_s) = (0.0, 5, 5, 1.0);
        let report = Report { decode, prefill, logit_delta_max, same_best, compared, spent_s, break_even: None };
        Bought {
            name: "m".into(),
            rows: Vec::new(),
            end_to_end: Some(EndToEnd { report, known: false, put_back: 0, by_others }),
            measured: 2,
            confirmed: 0,
            cut_off: 2,
            saved: true,
            seconds: 9.0,
            by_others,
            again: "`planish tune m.gguf`".into(),
        }
    }

    #[test]
    fn what_goes_on_is_named() {
        let text = text(gain([100.0, 101.0, 1.01]), None);
        assert!(text.contains("2 cut off by the budget, and `planish tune m.gguf` goes on with them"), "{text}");
    }

    #[test]
    fn what_is_not_saved_is_not_gone_on_with() {
        let quiet = || bought(gain([100.0, 101.0, 1.01]), None);
        let lost = Bought { saved: false, ..quiet() };
        let told = lost.text();
        assert!(told.contains("2 cut off by the budget; 2 measured in 9 s, and nothing of it is saved"), "{told}");
        assert!(matches!(lost.answer(), Outcome::No) && matches!(quiet().answer(), Outcome::Done));
        assert!(lost.interrupted().contains("nothing of that is saved") && !quiet().text().contains("saved"));
        // Nothing measured is nothing lost.
        assert!(matches!(Bought { measured: 0, ..lost }.answer(), Outcome::Done));
    }

    #[test]
    fn a_gain_beside_speeds_that_say_another_is_explained() {
        let told = |decode, effect| {
            let decode = Gain { effect, ..gain(decode) };
            text(decode, None).contains("median over runs side by side")
        };
        assert!(told([214.0, 195.9, 1.15], Effect::Faster));
        assert!(!told([155.2, 164.5, 1.06], Effect::Faster));
        assert!(!told([214.0, 195.9, 1.06], Effect::NoEffect), "no gain is told there");
    }

    #[test]
    fn what_has_no_effect_is_told_without_a_gain() {
        let decode = Gain { lo: 0.92, hi: 1.2, ..gain([214.0, 195.9, 1.15]) };
        let told = text(decode, None);
        assert!(told.contains("m: decode: no effect: 0.92 to 1.20 x the default; "), "{told}");
        assert!(told.contains("195.9  0.92 to 1.20  no effect\n"), "{told}");
        assert!(!told.contains("1.15"), "{told}");
        let told = text(Gain { effect: Effect::Slower, ..decode }, None);
        assert!(told.contains("decode 1.15 [0.92, 1.20] x the default (214.0 -> 195.9 tokens/s, slower)"), "{told}");
        let told = text(Gain { effect: Effect::Same, ..decode }, None);
        assert!(told.contains("m: decode: nothing tuned; "), "{told}");
    }

    #[test]
    fn choices_made_in_company_say_so() {
        let quiet = gain([100.0, 101.0, 1.01]);
        let told = text(quiet, Some(0.48));
        assert!(told.contains("other work took 48% of this machine's processors"), "{told}");
        assert!(told.contains("`planish tune m.gguf` with --force"), "{told}");
        assert!(told.contains("during the check end to end, so `planish tune m.gguf` makes it once more"), "{told}");
        assert!([Some(0.05), None].into_iter().all(|share| !text(quiet, share).contains("other work")));
    }

    fn row() -> Row {
        let op = planish_kernels::ops::find("matvec").expect("an op of the CPU");
        let shape = "type=q4_1,act=int8,batch=1,rows=576,cols=576".parse().expect("a shape");
        let work = Work { op, shape, share: 1.0, uses: 1, step: None, deterministic: false };
        Row { state: "undecided", ..Row::of(work, Config::new().with("THREADS", 2)) }
    }

    /// A win on fewer threads that was held back is in the table, in the JSON with its reason, and in what goes on.
    #[test]
    fn what_is_held_back_for_other_work_is_shown() {
        let why = "other work took 48% of the processors";
        let row = Row { undecided: Some(why.into()), busy: Some(0.48), ..row() };
        let bought = Bought { rows: vec![row], ..bought(gain([100.0, 101.0, 1.01]), Some(0.48)) };
        let told = bought.text();
        assert!(told.contains("undecided: other work 48%"), "{told}");
        assert!(told.contains("for 1 of 1 kernel, measured once more by `planish tune m.gguf`"), "{told}");
        let json = serde_json::to_value(&bought).expect("plain data");
        assert_eq!((&json["rows"][0]["undecided"], &json["rows"][0]["busy"]), (&json!(why), &json!(0.48)));
    }

    #[test]
    fn what_an_earlier_run_decided_is_told_apart() {
        let row = Row { state: "default kept", undecided: Some("budget spent".into()), ..row() };
        let told = Bought { rows: vec![row], ..bought(gain([100.0, 101.0, 1.01]), None) }.text();
        assert!(told.contains("default kept earlier"), "{told}");
    }

    /// A roof without a number has two reasons, which are not to be taken for each other.
    #[test]
    fn a_roof_that_was_beaten_is_not_one_that_was_not_timed() {
        let told = |rows| Bought { rows, ..bought(gain([100.0, 101.0, 1.01]), None) }.text();
        let (timed, beaten) = (Row { share_of_roof: Some(0.64), ..row() }, Row { roof_beaten: true, ..row() });
        let all = told(vec![timed, beaten, row()]);
        assert!(all.contains(" 64%\n") && all.contains(" beaten\n"), "{all}");
        assert!(all.contains("roof: of this machine's ceilings; beaten: above them; blank: not timed now\n"), "{all}");
        let timed = told(vec![Row { share_of_roof: Some(0.64), ..row() }]);
        assert!(timed.contains("roof: of this machine's ceilings\n"), "{timed}");
        assert!(!told(Vec::new()).contains("ceilings"));
    }
}
