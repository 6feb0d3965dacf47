//! Other work on the machine's processors while a subject is measured.
//!
//! A load that stays shows neither in the default's scatter nor in its drift, and it turns the order of candidates round:
//! whoever uses fewer processors has less to lose to it. Such a win holds beside that load and says nothing of a quiet
//! machine, so it is not promoted.

use crate::subject::Usage;

/// Processor time after which the finals have a share of their own.
const FINALS_LEAST_S: f64 = 2.0;

/// Since when other work is counted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Company {
    begun: Option<Usage>,
    finals: Option<Usage>,
    /// The share in a run that this one goes on from.
    earlier: Option<f64>,
}

impl Company {
    /// Counting begins at `now`, after an earlier run in which others took the share `earlier`.
    pub fn new(now: Option<Usage>, earlier: Option<f64>) -> Self {
        Company { begun: now, finals: None, earlier }
    }

    /// The finals, which decide, begin at `now`: others may have come only then.
    pub fn finals_begin(&mut self, now: Option<Usage>) {
        self.finals = now;
    }

    /// The share of others until `now`: of the whole run, of the finals alone or of the earlier run, the largest.
    pub fn share(&self, now: Option<Usage>) -> Option<f64> {
        let whole = now.zip(self.begun).and_then(|(now, begun)| now.by_others(&begun));
        let long = |(now, then): &(Usage, Usage)| now.all_s - then.all_s >= FINALS_LEAST_S;
        let finals = now.zip(self.finals).filter(long).and_then(|(now, then)| now.by_others(&then));
        [whole, finals, self.earlier].into_iter().flatten().reduce(f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(company: &Company, now: Option<Usage>, want: Option<f64>) {
        let share = company.share(now);
        let same = |(share, want): (f64, f64)| (share - want).abs() < 1e-9;
        assert!(share == want || share.zip(want).is_some_and(same), "{share:?}, wanted {want:?}");
    }

    #[test]
    fn the_largest_share_counts_and_finals_only_when_they_are_long_enough() {
        let at = |all_s, others_s| Some(Usage { all_s, others_s });
        let mut company = Company::new(at(100.0, 10.0), None);
        check(&company, at(100.0, 10.0), None);
        check(&company, None, None);
        // Four ticks may be nobody's.
        check(&company, at(200.0, 15.04), Some(0.05));
        check(&company, at(100.4, 10.04), Some(0.0));
        company.finals_begin(at(200.0, 15.0));
        check(&company, at(201.0, 16.0), Some(5.96 / 101.0));
        check(&company, at(210.0, 20.04), Some(5.0 / 10.0));
        check(&company, at(210.0, 5.0), Some(0.0));
        check(&Company::new(at(0.0, 0.0), Some(0.4)), at(9.0, 0.9), Some(0.4));
        check(&Company::new(None, Some(0.4)), None, Some(0.4));
    }
}
