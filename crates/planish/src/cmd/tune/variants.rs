//! How the variants of a kernel did against each other: the best of each, whichever runs in the end.

use planish_tune::{Config, Outcome, Ranked, Rejection, Space};
use serde::Serialize;

/// The parameter that says which implementation of an op a configuration is of.
const PARAM: &str = "VARIANT";

/// One implementation of an op.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Variant {
    /// Its name.
    pub name: String,
    /// The default's time over that of its fastest configuration, in the search.
    pub speedup: Option<f64>,
    /// The median time of that, in nanoseconds.
    pub ns_median: Option<f64>,
    /// Why there is no time, where there is none.
    pub missing: Option<String>,
}

/// Every variant in `space` and what `outcome` says of it; nothing where there is only one.
pub fn of(space: &Space, outcome: &Outcome) -> Vec<Variant> {
    let param = space.params.iter().find(|p| p.name == PARAM && p.values.len() > 1);
    param.map_or(Vec::new(), |p| p.values.iter().map(|v| variant(&v.to_string(), outcome)).collect())
}

fn variant(name: &str, outcome: &Outcome) -> Variant {
    let is = |config: &Config| config.name(PARAM) == Some(name);
    let refused = |(config, why): &&(Config, Rejection)| is(config) && why.kind() != "constraint";
    let missing = || outcome.rejected.iter().find(refused).map_or("not tried".to_owned(), |(_, why)| why.to_string());
    // Fastest first.
    let best: Option<&Ranked> = outcome.ranking.iter().find(|r| is(&r.config));
    Variant {
        name: name.to_owned(),
        speedup: best.map(|r| r.speedup),
        ns_median: best.and_then(|r| Some(r.times.first()?.median_ns)),
        missing: best.is_none().then(missing),
    }
}

impl Variant {
    /// `best of mm: 812.3 us, 0.84 x the default`, or why there is no time.
    pub fn line(&self) -> String {
        match (&self.missing, self.ns_median, self.speedup) {
            (Some(why), ..) => format!("{}: {}", self.name, why.lines().next().unwrap_or_default()),
            (None, ns, speedup) => {
                let (us, speedup) = (ns.unwrap_or(f64::NAN) / 1e3, speedup.unwrap_or(f64::NAN));
                format!("best of {}: {us:.1} us, {speedup:.2} x the default", self.name)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    use planish_tune::scripted::{Fault, Script, Scripted};
    use planish_tune::{Budget, Policy, Resume, Silent, Subject, Task, Value, VirtualClock, tune};

    use super::*;

    #[test]
    fn every_variant_has_a_time_or_a_reason() {
        let names = ["own", "vendor", "wrong"];
        let values = |of: &[&str]| of.iter().map(|v| Value::from(*v)).collect::<Vec<_>>();
        let params =
            vec![(PARAM.to_owned(), values(&names)), ("ROWS".to_owned(), (0..2).map(Value::Int).collect::<Vec<_>>())];
        let ns = |c: &Config| match c.name(PARAM) {
            Some("vendor") => vec![5e4 + 1e4 * c.int("ROWS").unwrap_or(0) as f64],
            _ => vec![1e5],
        };
        let script = Script::of_grid(5, params, ns).fault(4, Fault::Wrong).fault(5, Fault::Wrong);
        let clock = VirtualClock::new();
        let mut subject = Scripted::new(script, clock.clone());
        let space = subject.space().clone();
        let (cancel, mut observer) = (AtomicBool::new(false), Silent);
        let budget = Budget::new(&clock, Duration::from_secs(20));
        let (resume, policy) = (Resume::default(), Policy::default());
        let task = Task { budget, cancel: &cancel, observer: &mut observer, resume, policy };
        let outcome = tune(&mut subject, task).expect("it works");
        let all = of(&space, &outcome);
        assert_eq!(all.iter().map(|v| v.name.as_str()).collect::<Vec<_>>(), names);
        let lines: Vec<String> = all.iter().map(Variant::line).collect();
        assert!(lines[0].starts_with("best of own: ") && lines[0].ends_with(" us, 1.00 x the default"), "{lines:?}");
        assert!(lines[1].starts_with("best of vendor: ") && lines[1].ends_with(" x the default"), "{lines:?}");
        assert!(lines[2].starts_with("wrong: wrong ("), "{lines:?}");
        assert!(all[1].speedup.is_some_and(|s| (s - 2.0).abs() < 0.2) && all[2].speedup.is_none());
    }
}
