//! A sweep as a page: for each shape the ratios with their bounds, and the table behind them.

use planish_engine::sweep::AtShape;
use planish_tune::{Interval, counted};

use super::{Report, Row, about, best, legend, sentences};
use crate::page::plot::{self, Axis, Intervals, Mark};
use crate::page::{self, Cell, Page, Table, Tone, number};

impl page::Report for Report {
    const KIND: &'static str = "sweep";
    const VERSION: u32 = 1;

    fn check(&self) -> anyhow::Result<()> {
        let (best, shapes) = (self.verdict.best.len(), self.shapes.len());
        anyhow::ensure!(best <= shapes, "{} over {}", counted(best, "best value"), counted(shapes, "shape"));
        Ok(())
    }

    fn page(&self) -> Page {
        let said = sentences(self);
        let lead = said.lines().last().unwrap_or_default();
        let mut page = Page::new(format!("{} of {} on {}", self.param, self.op, self.label), lead);
        let first = page.section("");
        first.facts(vec![
            ("device", self.device.as_str().into()),
            ("kernels", self.kernels.as_str().into()),
            ("read bandwidth, GB/s", number::sig(self.read_gb_s, 4).into()),
            ("version", self.version.as_str().into()),
        ]);
        first.text(format!("{}.", legend(self)));
        for s in &self.shapes {
            let section = page.section(&s.name);
            let found = self.verdict.best.iter().find(|b| b.name == s.name);
            let said = found.map_or("too few rounds to say".to_owned(), |b| best(self, b));
            section
                .text(about(s))
                .text(format!("{said}."))
                .plot(plot::Plot::Intervals(intervals(self, s)))
                .table(table(self, s));
        }
        page
    }
}

fn tone(r: &Report, s: &AtShape, i: usize) -> Tone {
    let value = s.value(&r.param, i);
    let best = r.verdict.best.iter().find(|b| b.name == s.name).is_some_and(|b| b.value == value);
    match (best, value == s.default, s.sweep.swept[i].timed()) {
        (.., false) => Tone::Bad,
        (true, ..) => Tone::Chosen,
        (_, true, _) => Tone::Default,
        _ => Tone::Plain,
    }
}

fn intervals(r: &Report, s: &AtShape) -> Intervals {
    let row = |i: usize| {
        let numbers = Row::of(r, s, i);
        let gain = |n: &Row| number::bounds(n.ratio.ratio, n.ratio.lo, n.ratio.hi);
        plot::Row {
            label: format!("{}={}", r.param, s.value(&r.param, i)),
            value: numbers.as_ref().map(|n| n.ratio.ratio),
            bounds: numbers.as_ref().map(|n| (n.ratio.lo, n.ratio.hi)),
            samples: s.sweep.swept[i].logs.first().map(|l| l.iter().map(|v| v.exp()).collect()).unwrap_or_default(),
            text: numbers.as_ref().map_or("refused".to_owned(), gain),
            tone: tone(r, s, i),
        }
    };
    Intervals {
        title: format!("Time of the default over that of each value, at {}", s.name),
        note: format!("{} paired rounds; bounds hold together with 95%", s.sweep.rounds),
        x: Axis::linear("times as fast as the default"),
        marks: vec![Mark { at: 1.0, label: "default".to_owned() }],
        rows: (0..s.sweep.swept.len()).map(row).collect(),
        legend: vec![(Tone::Chosen, "came first".to_owned()), (Tone::Default, "default".to_owned())],
    }
}

fn table(r: &Report, s: &AtShape) -> Table {
    let columns =
        ["value", "time|us", "spread|%", "rate|GB/s", "of read|%", "of control|%", "ratio", "lo", "hi", "gate"];
    let mut table = Table::new(format!("{} at {}", r.param, s.name), &columns);
    for i in 0..s.sweep.swept.len() {
        let row = &s.sweep.swept[i];
        let gate = match (&row.rejection, row.error_over_bound) {
            (Some(why), _) => why.to_string(),
            (None, Some(error)) => number::sig(error, 2),
            (None, None) => "not reached".to_owned(),
        };
        let numbers = Row::of(r, s, i).map_or([number::NONE; 8].map(str::to_owned), |n| {
            let Interval { ratio, lo, hi } = n.ratio;
            [
                number::us(n.ns),
                number::percent(n.spread_ns / n.ns),
                number::sig(n.gb_s, 4),
                number::percent(n.gb_s / r.read_gb_s),
                n.of_control.map_or(number::NONE.to_owned(), number::percent),
                number::ratio(ratio),
                number::ratio(lo),
                number::ratio(hi),
            ]
        });
        let mut cells: Vec<Cell> = vec![s.value(&r.param, i).to_string().into()];
        cells.extend(numbers.map(Cell::from));
        cells.push(gate.into());
        table.row(cells.into_iter().map(|c| c.tone(tone(r, s, i))).collect());
    }
    table
}
