//! How a tuning run goes, on standard error: a bar on a terminal, when it ends, and a sentence for every kernel.

use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use planish_device::cpu::residency::Cold;
use planish_engine::tuning::{Ceilings, Done, Fate, Watch, Work};
use planish_kernels::cpu::peak::Peak;
use planish_tune::contain::Stage;
use planish_tune::{Event, Policy, counted};

use super::bought::short;
use crate::ui::Ui;

/// Waiting for one answer that is worth a line.
const BEAT_SAID: Duration = Duration::from_secs(10);

/// Shows a tuning run.
pub struct Progress {
    ui: Ui,
    lines: bool,
    bar: ProgressBar,
    start: Instant,
    budget: Duration,
    kernels: usize,
    at: String,
    /// When the present kernel is expected to be done, of its own allowance.
    kernel_left_s: f64,
}

/// What a run is about to do.
pub struct Coming {
    pub kernels: usize,
    pub budget: Duration,
    /// Whether what it finds outlives it.
    pub saved: bool,
}

impl Progress {
    /// Begins: says what is coming and how long it takes at most.
    pub fn new(ui: Ui, lines: bool, coming: Coming) -> Self {
        let Coming { kernels, budget, saved } = coming;
        let (seconds, saved) = (budget.as_secs_f64(), if saved { "; each is saved when done" } else { "" });
        let what = format!("{} on this machine: done in at most {seconds:.0} s{saved}", counted(kernels, "kernel"));
        let bar = ui.spinner(&what);
        Progress { ui, lines, bar, start: Instant::now(), budget, kernels, at: what, kernel_left_s: 0.0 }
    }

    /// Says the ceilings that times are held against, and where a cache is not what the system tells.
    pub fn roof(&self, ceilings: &Ceilings, cold: Option<&Cold>) {
        cold.and_then(Cold::told).iter().for_each(|told| self.say(told));
        if self.lines {
            let Ceilings { read_gb_s, peak: Peak { f32_gflop_s, int8_gop_s, threads } } = ceilings;
            let rates =
                format!("{read_gb_s:.1} GB/s read, {f32_gflop_s:.0} GFLOP/s in f32, {int8_gop_s:.0} GOP/s in int8");
            self.say(&format!("reached with {}: {rates}; times are held against that", counted(*threads, "thread")));
            self.say(&Policy::default().promise());
        }
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }

    fn say(&self, line: &str) {
        self.bar.suspend(|| self.ui.note(line));
    }

    /// What is being done, when it is expected to end, and when everything ends at the latest.
    fn tell(&self) {
        let all = self.budget.saturating_sub(self.start.elapsed()).as_secs();
        self.bar.set_message(format!("{}, about {:.0} s; all in at most {all} s", self.at, self.kernel_left_s));
    }
}

impl Watch for Progress {
    fn begins(&mut self, index: usize, _of: usize, work: &Work, allowance: Duration) {
        self.at = format!("{} of {} {}", index + 1, self.kernels, short(work.op.name, &work.shape));
        self.kernel_left_s = allowance.as_secs_f64();
        self.tell();
    }

    fn event(&mut self, event: &Event) {
        if let Event::Progress { left_s, .. } = event {
            self.kernel_left_s = *left_s;
            self.tell();
        }
    }

    fn ends(&mut self, done: &Done) {
        let name = short(done.work.op.name, &done.work.shape);
        match &done.fate {
            Fate::Tuned(outcome) if self.lines => self.say(&outcome.sentence(&name)),
            Fate::Confirmed(outcome) if self.lines => {
                self.say(&format!("{}; a prior that holds here", outcome.sentence(&name)));
            }
            Fate::Failed(why) => self.say(&format!("warning: {name}: {why}; its default stays")),
            Fate::Tuned(_) | Fate::Confirmed(_) | Fate::Known(_) | Fate::Skipped => {}
        }
    }

    /// Silence is told from death: every ten seconds of waiting for one answer is said.
    fn beat(&mut self, stage: &Stage, waited: Duration) {
        if waited < BEAT_SAID {
            return;
        }
        let line = format!("{}: {} for {:.0} s", self.at, stage.name(), waited.as_secs_f64());
        let all = self.budget.saturating_sub(self.start.elapsed()).as_secs();
        self.bar.set_message(format!("{line}; all in at most {all} s"));
        if self.lines && waited.as_secs().is_multiple_of(BEAT_SAID.as_secs()) {
            self.say(&line);
        }
    }

    fn warning(&mut self, warning: &str) {
        self.say(&format!("warning: {warning}"));
    }
}
