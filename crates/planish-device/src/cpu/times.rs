//! Where the threads of the pool keep their times while they run a stamped sequence.

use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::backend::{Stamp, Stamps};

/// What a thread did for a launch in the run that `run` numbers; times are nanoseconds of the pool's clock.
#[derive(Default)]
struct Cell {
    run: AtomicU64,
    start: AtomicU64,
    end: AtomicU64,
    busy: AtomicU64,
}

/// The times of the last run: a cell for each thread and launch, which that thread alone writes.
///
/// Plain stores suffice: whoever reads has waited for the end of the sequence, which orders all before it.
pub struct Times {
    run: AtomicU64,
    began_ns: AtomicU64,
    pub ended_ns: AtomicU64,
    launches: usize,
    /// Thread after thread, so that threads write to lines of their own.
    cells: Box<[Cell]>,
}

impl Times {
    /// Room for `threads` threads and `launches` launches.
    pub fn new(threads: u32, launches: usize) -> Times {
        let cells = (0..threads as usize * launches).map(|_| Cell::default()).collect();
        let zero = || AtomicU64::new(0);
        Times { run: zero(), began_ns: zero(), ended_ns: zero(), launches, cells }
    }

    /// Begins run number `run`, from 1; cells of other runs count no more.
    pub fn begin(&self, run: u64, now_ns: u64) {
        self.run.store(run, Relaxed);
        self.began_ns.store(now_ns, Relaxed);
        self.ended_ns.store(now_ns, Relaxed);
    }

    /// Adds a stretch of work of `thread` for `launch`.
    pub fn add(&self, launch: u32, thread: u32, ns: Range<u64>) {
        let cell = &self.cells[thread as usize * self.launches + launch as usize];
        let run = self.run.load(Relaxed);
        if cell.run.load(Relaxed) != run {
            cell.run.store(run, Relaxed);
            cell.start.store(ns.start, Relaxed);
            cell.busy.store(0, Relaxed);
        }
        cell.end.store(ns.end, Relaxed);
        cell.busy.store(cell.busy.load(Relaxed) + (ns.end - ns.start), Relaxed);
    }

    /// The last run; nothing where there was none.
    pub fn read(&self) -> Stamps {
        let (run, began) = (self.run.load(Relaxed), self.began_ns.load(Relaxed));
        let after = |ns: &AtomicU64| ns.load(Relaxed).saturating_sub(began) as f64;
        let threads = self.cells.len() / self.launches;
        let places = (0..self.launches).flat_map(|launch| (0..threads).map(move |thread| (launch, thread)));
        let stamp = |(launch, thread): (usize, usize)| {
            let cell = &self.cells[thread * self.launches + launch];
            (run > 0 && cell.run.load(Relaxed) == run).then(|| Stamp {
                launch: launch as u32,
                thread: thread as u32,
                start_ns: after(&cell.start),
                end_ns: after(&cell.end),
                busy_ns: cell.busy.load(Relaxed) as f64,
            })
        };
        Stamps { total_ns: after(&self.ended_ns), threads: threads as u32, stamps: places.filter_map(stamp).collect() }
    }
}
