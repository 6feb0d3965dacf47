//! The time of a token by stamps inside its run: every nanosecond of every thread has one place.

use planish_device::{Launch, Stamps};

use super::step::{Plan, Step};
use super::{Bounds, InPlace, Row};

/// What one stamped run says of each row, nanoseconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Inside {
    /// From the end of the group before to the group's own end.
    pub wall: Vec<f64>,
    /// Work of the threads that may take part, divided by their number.
    pub work: Vec<f64>,
    /// Outside of all groups.
    pub rest: f64,
}

impl Inside {
    /// Reads the stamps of a run of `launches`, which `plan` groups.
    ///
    /// A group that nobody stamped took no time: it ends where the one before it ended.
    pub fn of(stamps: &Stamps, launches: &[Launch], plan: &Plan) -> Inside {
        let mut inside = Inside { wall: vec![0.0; plan.rows.len()], work: vec![0.0; plan.rows.len()], rest: 0.0 };
        let (mut open, mut at) = (0.0, 0);
        for group in &plan.groups {
            let end = group.launches.end as u32;
            let rest = &stamps.stamps[at..];
            let mine = &rest[..rest.iter().take_while(|s| s.launch < end).count()];
            at += mine.len();
            let close = mine.iter().fold(open, |latest: f64, s| latest.max(s.end_ns));
            let busy: f64 = mine.iter().map(|s| s.busy_ns).sum();
            let tasks: u32 = launches[group.launches.clone()].iter().map(|l| l.tasks).sum();
            let seats = launches[group.launches.start].threads.min(stamps.threads).min(tasks).max(1);
            inside.wall[group.row] += close - open;
            inside.work[group.row] += busy / f64::from(seats);
            open = close;
        }
        inside.rest = stamps.total_ns - open;
        inside
    }
}

/// Row `at` of `plan` for a token at `position`: by what stamped runs say of it where they saw it, and alone.
pub fn row(
    (step, plan): (&Step, &Plan),
    at: usize,
    position: usize,
    (stamped, alone, prefix_ns): (&[&Inside], &[f64], Bounds),
) -> Row {
    let of = |value: &dyn Fn(&Inside) -> f64| Bounds::of(&stamped.iter().map(|i| value(i)).collect::<Vec<_>>());
    let in_place = stamped.iter().any(|i| i.work[at] > 0.0).then(|| InPlace {
        wall_ns: of(&|i| i.wall[at]),
        work_ns: of(&|i| i.work[at]),
        waiting_ns: of(&|i| i.wall[at] - i.work[at]),
    });
    let (alone_ns, demand) = (Bounds::of(alone), step.demand(plan, at, position));
    let time_ns = in_place.map_or(alone_ns, |i| i.wall_ns);
    let groups = || plan.groups.iter().filter(|g| g.row == at);
    Row {
        name: plan.rows[at].clone(),
        about: step.about(plan, at),
        launches: groups().map(|g| g.launches.len()).sum(),
        barriers: groups().count(),
        time_ns,
        in_place,
        alone_ns,
        prefix_ns,
        demand,
        gb_s: demand.read_bytes / time_ns.median.max(1.0),
        percent_of_read: None,
        percent_of_arithmetic: None,
        grows: step.of(plan, at).any(|p| p.grows),
    }
}

#[cfg(test)]
mod tests {
    use planish_device::fake::{Fake, Script};
    use planish_device::{Backend, Call, Params, Source, Stamp};

    use super::super::step::{Demand, Piece, Step};
    use super::*;

    fn step(names: &[(&str, bool, u32)]) -> Step {
        fn nothing(_: &Call<'_>) {}
        let fake = Fake::new(Script::default());
        let launch = |(_, overlap, tasks): &(&str, bool, u32)| Launch {
            program: fake.load(&Source::Native { name: "nothing", run: nothing }).expect("loads"),
            args: Vec::new(),
            params: Params::words(&[]),
            views: Vec::new(),
            tasks: *tasks,
            threads: 4,
            scratch_bytes: 0,
            overlap: *overlap,
        };
        let piece = |(name, ..): &(&str, bool, u32)| Piece {
            name: (*name).to_owned(),
            about: String::new(),
            fixed: Demand::default(),
            a_key: Demand::default(),
            window: 0,
            grows: false,
        };
        Step { launches: names.iter().map(launch).collect(), pieces: names.iter().map(piece).collect() }
    }

    #[test]
    fn walls_of_rows_add_up_to_the_run_and_work_is_shared_among_those_who_may_take_part() {
        let step = step(&[("norm", false, 1), ("q", false, 9), ("k", true, 9), ("norm", false, 1)]);
        let plan = step.plan();
        assert_eq!(plan.rows, ["norm", "q+k"]);
        let stamp = |launch, thread, start_ns, end_ns, busy_ns| Stamp { launch, thread, start_ns, end_ns, busy_ns };
        let stamps = vec![
            stamp(0, 0, 10.0, 30.0, 20.0),
            stamp(1, 0, 35.0, 75.0, 40.0),
            stamp(1, 1, 40.0, 60.0, 20.0),
            stamp(2, 1, 60.0, 90.0, 30.0),
            stamp(3, 1, 95.0, 100.0, 5.0),
        ];
        let inside = Inside::of(&Stamps { total_ns: 108.0, threads: 2, stamps }, &step.launches, &plan);
        // One task leaves one seat; two rows of nine leave two, as there are two threads.
        assert_eq!(inside.wall, [30.0 + 10.0, 60.0]);
        assert_eq!(inside.work, [20.0 + 5.0, (40.0 + 20.0 + 30.0) / 2.0]);
        assert_eq!(inside.wall.iter().sum::<f64>() + inside.rest, 108.0);
    }

    #[test]
    fn the_launches_of_a_row_keep_the_barriers_between_its_groups() {
        let step = step(&[("q", false, 9), ("k", true, 9), ("norm", false, 1), ("q", false, 9), ("k", true, 9)]);
        let plan = step.plan();
        let overlaps = |launches: Vec<Launch>| launches.iter().map(|l| l.overlap).collect::<Vec<_>>();
        assert_eq!(overlaps(step.only(&plan, |row| row == 0)), [false, true, false, true]);
        assert_eq!(overlaps(step.only(&plan, |row| row == 1)), [false]);
    }
}
