//! What is tuned, from run to run: an item is known, was left by a run that was cut off, or is new.
//!
//! A run that its budget or a request cut off leaves the journal of its measurements, and the next one goes on there.
//! What was measured to its end has none: it is not measured again, even if that settled nothing.
//! Beside other work, which a win on fewer processors is due to, there is no end: the journal stays, and is empty.

use super::error::Error;
use super::open::Store;
use super::progress::{Earlier, Progress};
use super::record::{Choice, Evidence, Identity, Key, Ratio, Source, State, now_ms};
use super::snapshot::Tier;
use crate::config::Config;
use crate::event::Resume;
use crate::outcome::{Outcome, Verdict};
use crate::space::Space;

/// Something to tune.
#[derive(Clone, Copy)]
pub struct Item<'a> {
    /// Op and shape.
    pub key: &'a Key,
    /// Machine, build, candidates and policy.
    pub identity: &'a Identity,
    /// What may be tried.
    pub space: &'a Space,
}

/// How a run finds an item.
pub enum Begun {
    /// Another process is measuring it.
    Elsewhere,
    /// Nothing is left to measure.
    Known(Box<Choice>),
    /// It is to be measured, from where the journal ends.
    Open(Progress, Resume),
}

/// The end of a run of an item.
pub struct Ended<'a> {
    /// What was found.
    pub outcome: &'a Outcome,
    /// Further fields of the evidence: the roof that times are held against, the prior that is confirmed.
    pub beside: &'a [(&'a str, serde_json::Value)],
    /// A request ended it, not its time.
    pub interrupted: bool,
}

impl Store {
    /// The record that an item runs with as it stands: its own, else the nearest one of its bucket.
    pub fn standing(&self, item: Item<'_>) -> Option<Choice> {
        let legal = |c: &Config| item.space.violated(c).map_or(Ok(()), Err);
        let snapshot = self.snapshot();
        let found = snapshot.lookup_legal(item.key, item.identity, &legal);
        match (found.tier, found.record) {
            (Tier::Exact, Some(choice)) => Some(choice.clone()),
            _ => snapshot.nearby(item.key, item.identity, &legal).cloned(),
        }
    }

    /// The same, unless the measurements behind it or of the item itself were cut off in a run before `since_ms`,
    /// milliseconds since 1970.
    pub fn settled(&self, item: Item<'_>, since_ms: u64) -> Option<Choice> {
        let choice = self.standing(item)?;
        let cut = self.is_left(item.key, item.identity) || self.is_left(&choice.key, &choice.identity);
        (!cut || choice.written_ms >= since_ms).then_some(choice)
    }

    /// Begins to measure an item in a run that began at `since_ms`, unless there is nothing left to measure or another
    /// process is at it; `Earlier::Forget` measures everything again.
    pub fn begin(&mut self, item: Item<'_>, since_ms: u64, earlier: Earlier) -> Begun {
        let Some((journal, resume)) = self.progress(item.key, item.identity, earlier) else { return Begun::Elsewhere };
        // Nobody else has it now; somebody may have had until just now.
        self.refresh();
        let standing = self.standing(item).filter(|_| earlier == Earlier::Use);
        let neighbour_left = |c: &Choice| c.key != *item.key && self.is_left(&c.key, &c.identity);
        let settled = |c: &Choice| c.written_ms >= since_ms || !(journal.was_left() || neighbour_left(c));
        if let Some(choice) = standing.filter(settled) {
            if !journal.was_left() {
                journal.done();
            }
            return Begun::Known(Box::new(choice));
        }
        Begun::Open(journal, resume)
    }

    /// Stores what a run of an item found, with its evidence; the journal goes if nothing was cut off.
    ///
    /// What a request cut short without a winner is not stored, and a gain that an earlier run proved is not given up for
    /// what a run that went on from it could not prove again.
    ///
    /// # Errors
    /// When the record is unfit or too long.
    pub fn end(&mut self, item: Item<'_>, ended: &Ended<'_>, journal: Progress) -> Result<(), Error> {
        let outcome = ended.outcome;
        let promoted = matches!(outcome.verdict, Verdict::Promoted { .. });
        if outcome.partial && ended.interrupted && !promoted {
            return Ok(());
        }
        let proven = |c: Choice| c.key == *item.key && c.state == State::Tuned;
        let stands = !promoted && journal.goes_on() && self.standing(item).is_some_and(proven);
        if !stands {
            self.keep(item, outcome, ended.beside)?;
        }
        if outcome.busy().is_some() {
            journal.start_over();
        } else if !outcome.partial {
            journal.done();
        }
        Ok(())
    }

    fn keep(&mut self, item: Item<'_>, outcome: &Outcome, beside: &[(&str, serde_json::Value)]) -> Result<(), Error> {
        let Item { key, identity, .. } = item;
        let mut data = serde_json::to_value(outcome).expect("an outcome is plain data");
        for (name, value) in beside {
            data[*name] = value.clone();
        }
        let evidence = Evidence { key: key.clone(), identity: identity.clone(), written_ms: now_ms(), data };
        let (name, _) = self.append_evidence(evidence)?;
        let none = Ratio { lo: 1.0, mid: 1.0, hi: 1.0 };
        let (state, ratio) = match &outcome.verdict {
            Verdict::Promoted { ratio, lo, hi } => (State::Tuned, Ratio { lo: *lo, mid: *ratio, hi: *hi }),
            Verdict::KeptDefault if !outcome.partial => (State::DefaultKept, none),
            Verdict::KeptDefault | Verdict::Undecided(_) => (State::Undecided, none),
        };
        let chosen = outcome.ranking.iter().find(|r| r.config == outcome.choice);
        let ns_median = chosen.and_then(|r| r.times.first()).map_or(1.0, |t| t.median_ns.max(1.0));
        self.append(Choice {
            key: key.clone(),
            identity: identity.clone(),
            config: outcome.choice.clone(),
            source: Source::Tuned,
            state,
            ratio,
            ns_median,
            written_ms: now_ms(),
            evidence: Some(name),
        })?;
        Ok(())
    }
}
