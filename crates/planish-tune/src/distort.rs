//! Times that mean nothing, on purpose: a test mode in which any admitted candidate may win.

use std::time::Duration;

use sha2::{Digest, Sha256};

use crate::config::Config;
use crate::error::Error;
use crate::policy::Timings;
use crate::scripted::Rng;
use crate::space::Space;
use crate::subject::{Admitted, Point, Rejection, Sample, Subject};

/// What an inverted time is taken from, in nanoseconds squared: a millisecond stays one.
const MIRROR: f64 = 1e12;
/// A drawn time, within a factor of 1.4 either way: none so far behind that it is dropped unheard.
const DRAWN_NS: f64 = 1e6;
/// Scatter of drawn times, so that the statistics have something to do.
const SCATTER: f64 = 0.003;

/// A subject whose admissions are real and whose times are not.
pub(crate) struct Distorted<'s> {
    inner: &'s mut dyn Subject,
    timings: Timings,
    rng: Rng,
}

impl<'s> Distorted<'s> {
    pub(crate) fn new(inner: &'s mut dyn Subject, timings: Timings) -> Self {
        let seed = if let Timings::Random(seed) = timings { seed } else { 0 };
        Distorted { inner, timings, rng: Rng::new(seed) }
    }
}

/// A number in (0, 1) that `config` and `seed` decide.
fn drawn(seed: u64, config: &Config) -> f64 {
    let hash = Sha256::digest(format!("{seed} {config}"));
    Rng::new(u64::from_le_bytes(hash[..8].try_into().expect("a digest has 32 bytes"))).uniform()
}

impl Subject for Distorted<'_> {
    fn space(&self) -> &Space {
        self.inner.space()
    }
    fn points(&self) -> Vec<Point> {
        self.inner.points()
    }
    fn admit(&mut self, config: &Config) -> Result<Admitted, Rejection> {
        self.inner.admit(config)
    }
    fn time(&mut self, admitted: &Admitted, point: Point) -> Result<Sample, Rejection> {
        let sample = self.inner.time(admitted, point)?;
        let ns = match self.timings {
            Timings::Measured => sample.ns,
            Timings::Inverted => MIRROR / sample.ns,
            Timings::Random(seed) => {
                let factor = 2f64.powf(drawn(seed, admitted.config()) - 0.5);
                DRAWN_NS * factor * (SCATTER * self.rng.normal()).exp()
            }
        };
        Ok(Sample { ns, ..sample })
    }
    /// No such time can be held against a roofline.
    fn floor(&self, _: Point) -> Option<Duration> {
        None
    }
    fn confirm(&mut self, admitted: &Admitted) -> Result<Admitted, Rejection> {
        self.inner.confirm(admitted)
    }
    fn prepare(&mut self, configs: &[Config]) {
        self.inner.prepare(configs);
    }
    fn risk(&self, config: &Config) -> u32 {
        self.inner.risk(config)
    }
    fn sentinel(&mut self) -> Result<(), Rejection> {
        self.inner.sentinel()
    }
    fn broken(&self) -> Option<Error> {
        self.inner.broken()
    }
}
