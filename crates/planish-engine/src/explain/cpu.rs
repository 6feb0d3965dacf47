//! A token on the pool, taken apart by stamps inside its run; each part is timed alone, too.

use planish_device::{Launch, Sequence};

use super::direct::Direct;
use super::inside::{Inside, row};
use super::position::{context, descending, fill, held};
use super::step::{Plan, Step};
use super::{At, Barriers, Beside, Bounds, Effort, Launches, Measured, ROUNDS_MIN, left_over, token};
use crate::decoder::{Decoder, Over};
use crate::error::{Error, Result};
use crate::weights::Weights;

/// What is taken apart.
pub struct Subject<'s, 'd> {
    /// The decoder.
    pub decoder: &'s mut Decoder<'d>,
    /// The weights that it was built with.
    pub weights: &'s Weights,
    /// Nanoseconds, of the clock that the machine's stamps are of.
    pub clock: &'s dyn Fn() -> f64,
    /// Whether to end early.
    pub stop: &'s dyn Fn() -> bool,
}

/// Tokens that warm up.
const WARM: usize = 4;

/// One stamped token, nanoseconds.
struct Stamped {
    prepare: f64,
    submit: f64,
    wait: f64,
    read: f64,
    /// Of the run alone.
    run: f64,
    inside: Inside,
}

impl Stamped {
    fn whole(&self) -> f64 {
        self.prepare + self.submit + self.wait + self.read
    }

    /// What lies between the submission and the return of the wait, outside of all groups.
    fn handing_over(&self) -> f64 {
        self.submit + self.wait - self.run + self.inside.rest
    }
}

struct Run<'r, 's, 'd> {
    subject: &'r mut Subject<'s, 'd>,
    step: &'r Step,
    plan: &'r Plan,
    stamped: Sequence,
    fed: usize,
}

impl Run<'_, '_, '_> {
    /// The next token of the text, with `position` tokens in the cache before it.
    fn next(&mut self, position: usize) -> Result<u32> {
        if (self.subject.stop)() {
            return Err(Error::request("interrupted"));
        }
        self.subject.decoder.truncate(position);
        held(self.subject.decoder.position(), position)?;
        self.fed += 1;
        Ok(token(self.fed, self.subject.decoder.hyper().vocab))
    }

    fn plain(&mut self, position: usize) -> Result<f64> {
        let id = self.next(position)?;
        let start = (self.subject.clock)();
        self.subject.decoder.feed(&[id])?;
        Ok((self.subject.clock)() - start)
    }

    fn stamped(&mut self, position: usize) -> Result<Stamped> {
        let id = self.next(position)?;
        let Subject { decoder, clock, .. } = &mut *self.subject;
        let (mut last, mut took) = (clock(), [0.0; 4]);
        decoder.feed_by(id, &self.stamped, &mut |over| {
            let now = clock();
            took[over as usize] = now - last;
            last = now;
        })?;
        let stamps = decoder.machine().backend.stamps(&self.stamped)?;
        let stamps = stamps.ok_or_else(|| Error::request("the machine kept no times of a stamped sequence"))?;
        let of = |over: Over| took[over as usize];
        Ok(Stamped {
            prepare: of(Over::Prepared),
            submit: of(Over::Submitted),
            wait: of(Over::Waited),
            read: of(Over::Read),
            run: stamps.total_ns,
            inside: Inside::of(&stamps, &self.step.launches, self.plan),
        })
    }

    /// Plain and stamped tokens in turns, each first every other time.
    fn pairs(&mut self, position: usize, tokens: usize) -> Result<(Vec<f64>, Vec<Stamped>)> {
        for _ in 0..WARM {
            self.plain(position)?;
            self.stamped(position)?;
        }
        let (mut plain, mut stamped) = (Vec::new(), Vec::new());
        for i in 0..tokens.max(ROUNDS_MIN) {
            if i % 2 == 0 {
                plain.push(self.plain(position)?);
                stamped.push(self.stamped(position)?);
            } else {
                stamped.push(self.stamped(position)?);
                plain.push(self.plain(position)?);
            }
        }
        Ok((plain, stamped))
    }

    /// Every row alone, and every prefix.
    fn direct(&mut self, effort: &Effort) -> Result<(Vec<Vec<f64>>, Vec<Bounds>)> {
        let (backend, stop, position) = (self.subject.decoder.machine().backend, self.subject.stop, effort.position);
        let (step, plan, rounds) = (self.step, self.plan, effort.rounds.max(ROUNDS_MIN));
        let record = |launches: &[Launch]| -> Result<_> { Ok(backend.record(launches)?) };
        let mut direct = Direct { backend, record: &record, token: &mut || self.plain(position), stop };
        Ok((direct.alone(step, plan, rounds)?.parts, direct.prefixes(step, plan, rounds)?))
    }

    /// The parts that grow with the position, and whole tokens.
    fn at(&self, position: usize, plain: &[f64], stamped: &[Stamped]) -> At {
        let grows = |row: &usize| self.step.of(self.plan, *row).any(|p| p.grows);
        let rows: Vec<usize> = (0..self.plan.rows.len()).filter(grows).collect();
        let sum = |s: &Stamped| rows.iter().map(|row| s.inside.wall[*row]).sum::<f64>();
        let attention: Vec<f64> = stamped.iter().map(sum).collect();
        At { position, token_ns: Bounds::of(plain), attention_ns: Bounds::of(&attention) }
    }
}

/// Takes a token apart; the cache is filled up to the last position first, and left so.
pub fn measure(subject: &mut Subject<'_, '_>, effort: &Effort) -> Result<Measured> {
    let step = Step::from(subject.decoder.decode_step(subject.weights)?);
    let plan = step.plan();
    let backend = subject.decoder.machine().backend;
    let stamped = backend.record_stamped(&step.launches)?;
    let stamped = stamped.ok_or_else(|| Error::request("the machine keeps no times of threads"))?;
    let sizes = (subject.decoder.hyper().vocab, subject.decoder.options().context);
    fill(subject.decoder, effort, sizes, 1)?;
    let (decoder_threads, position) = (backend.limits().max_threads as usize, effort.position);
    let (mut points, mut found) = (Vec::new(), None);
    let mut run = Run { subject, step: &step, plan: &plan, stamped, fed: 0 };
    for at in descending(effort) {
        let own = at == position;
        let (plain, stamped) = run.pairs(at, if own { effort.tokens } else { effort.tokens / 4 })?;
        points.push(run.at(at, &plain, &stamped));
        if own {
            found = Some((plain, stamped, run.direct(effort)?));
        }
    }
    let (plain, stamped, (alone, prefixes)) = found.expect("the own position is among them");
    let inside: Vec<&Inside> = stamped.iter().map(|s| &s.inside).collect();
    let rows = (0..plan.rows.len()).map(|r| row((&step, &plan), r, position, (&inside, &alone[r], prefixes[r])));
    let each = |of: &dyn Fn(&Stamped) -> f64| stamped.iter().map(of).collect::<Vec<_>>();
    let mut parts = vec![each(&|s| s.prepare), each(&Stamped::handing_over), each(&|s| s.read)];
    parts.extend((0..plan.rows.len()).map(|row| each(&|s| s.inside.wall[row])));
    let (attributed, unattributed_ns) = left_over(&plain, &parts);
    let over = |of: &dyn Fn(&Stamped) -> f64| Bounds::of(&each(of));
    let ratios: Vec<f64> = stamped.iter().zip(&plain).map(|(s, p)| s.whole() / p).collect();
    let waiting = over(&|s| s.inside.wall.iter().sum::<f64>() - s.inside.work.iter().sum::<f64>());
    Ok(Measured {
        path: "pool".to_owned(),
        method: "stamps inside whole tokens, beside plain tokens in turns".to_owned(),
        position,
        token_ns: Bounds::of(&plain),
        stamped_ratio: Some(Bounds::of(&ratios)),
        rows: rows.collect(),
        beside: beside(&stamped),
        attributed,
        unattributed_ns,
        launches: Launches {
            count: 1,
            queue_ns: over(&|s| s.submit),
            wait_ns: over(&|s| s.wait),
            probed_ns: None,
            stamped_ns: None,
        },
        barriers: Barriers {
            count: plan.groups.len(),
            width: decoder_threads,
            threads: 1,
            probed_ns: None,
            stamped_ns: Some(waiting),
        },
        context: context(points, &step),
        token_samples_ns: plain,
    })
}

fn beside(stamped: &[Stamped]) -> Vec<Beside> {
    let over = |of: fn(&Stamped) -> f64| Bounds::of(&stamped.iter().map(of).collect::<Vec<_>>());
    let part = |name: &str, by: &str, time_ns| Beside { name: name.to_owned(), by: by.to_owned(), time_ns };
    vec![
        part("inputs of the token", "the host's clock", over(|s| s.prepare)),
        part(
            "handing over and waking",
            "the host's clock, outside of the run's own begin and end",
            over(Stamped::handing_over),
        ),
        part("logits to the host", "the host's clock", over(|s| s.read)),
    ]
}
