//! Launches that were checked once and start many times, one by one or as a graph.

use std::sync::Arc;

use cudarc::driver::sys::CUtensorMap;

use super::driver::{Arguments, Grid, Stream, encode};
use super::graph::{Graph, Node};
use super::{Cuda, CudaProgram};
use crate::backend::{Launch, View};
use crate::error::{Error, ErrorKind};

/// Room for a parameter block: a kernel reads as many bytes as it declares, whatever was given.
const PARAMS_BYTES: usize = 4096;

/// A recorded sequence of this backend.
pub(super) struct CudaSequence {
    pub owner: u64,
    graph: Option<Graph>,
    launches: Vec<Recorded>,
}

/// A launch as the driver takes it, and what keeps it alive.
pub(super) struct Recorded {
    launch: Launch,
    _program: Arc<CudaProgram>,
    grid: Grid,
}

impl CudaSequence {
    /// The launches in order, as a graph uploaded by way of `graph` where one is given.
    pub fn new(owner: u64, launches: Vec<Recorded>, graph: Option<&Stream>) -> Result<CudaSequence, Error> {
        fn node(recorded: &Recorded) -> Node<'_> {
            let Recorded { launch, grid, .. } = recorded;
            Node { name: &launch.program.name, grid, overlap: launch.overlap }
        }
        let nodes: Vec<Node<'_>> = launches.iter().map(node).collect();
        // SAFETY: the launches keep programs and memory alive, and the sequence keeps both together.
        let graph = graph.map(|stream| unsafe { Graph::new(stream, &nodes) }).transpose()?;
        drop(nodes);
        Ok(CudaSequence { owner, graph, launches })
    }

    /// Starts all of it after the work in `stream`; the context is current, and whoever calls keeps the sequence until
    /// the work is over.
    pub fn start(&self, stream: &Stream) -> Result<(), Error> {
        if let Some(graph) = &self.graph {
            // SAFETY: as for `new`.
            return unsafe { graph.launch(stream) };
        }
        for Recorded { launch, grid, .. } in &self.launches {
            // SAFETY: arguments of the number that the kernel declares, checked at `record`: addresses of slices that the
            // launch keeps alive, then a block of the largest size that a kernel may declare. The driver copies all.
            unsafe { stream.launch(&launch.program.name, grid) }?;
        }
        Ok(())
    }
}

impl Cuda {
    /// Checks launch number `at` and makes it ready.
    pub(super) fn checked(&self, at: usize, launch: &Launch) -> Result<Recorded, Error> {
        let name = &launch.program.name;
        let refuse = |what: String| Error::new(ErrorKind::BadLaunch, format!("launch {at} ({name}): {what}"));
        let program = launch.program.inner.clone().downcast::<CudaProgram>().ok().filter(|p| p.owner == self.owner);
        let program = program.ok_or_else(|| refuse("the program was made by another backend".into()))?;
        self.legal(&program, launch).map_err(refuse)?;
        let too_large = |what: String| Error::new(ErrorKind::TooLarge, format!("launch {at} ({name}): {what}"));
        self.fits(&program, launch).map_err(too_large)?;
        let place = |(i, slice)| self.address(slice).map_err(|e| refuse(format!("argument {i}: {e}")));
        let addresses = launch.args.iter().enumerate().map(place).collect::<Result<_, _>>()?;
        let views = launch.views.iter().enumerate();
        let views = views.map(|(i, v)| self.encoded(launch, v).map_err(|e| refuse(format!("view {i}: {e}"))));
        let views = views.collect::<Result<_, _>>()?;
        let grid = Grid {
            function: program.function.handle,
            groups: launch.tasks,
            threads: launch.threads,
            shared_bytes: launch.scratch_bytes,
            together: program.together,
            arguments: Arguments::new(addresses, padded(launch.params.bytes()), views),
        };
        Ok(Recorded { launch: launch.clone(), _program: program, grid })
    }

    /// The view as the copy engine takes it; an error where it reaches past its argument.
    fn encoded(&self, launch: &Launch, view: &View) -> Result<CUtensorMap, Error> {
        let refuse = |what: String| Err(Error::new(ErrorKind::BadLaunch, what));
        let Some(slice) = launch.args.get(view.arg) else {
            return refuse(format!("argument {} of {}", view.arg, launch.args.len()));
        };
        match view.bytes() {
            Some(n) if n <= slice.len as u64 => {}
            Some(n) => return refuse(format!("{n} bytes of argument {}, which has {}", view.arg, slice.len)),
            None => return refuse(format!("{view:?} has no elements, or dimensions that do not agree")),
        }
        encode(view, self.address(slice)?)
    }

    /// Whether the launch is one of the program.
    fn legal(&self, program: &CudaProgram, launch: &Launch) -> Result<(), String> {
        let (groups, threads, most) = (launch.tasks, launch.threads, program.threads);
        if groups == 0 || threads == 0 || threads > most || !threads.is_multiple_of(32) {
            return Err(format!("{groups} groups of {threads} threads, made for {most}"));
        }
        if launch.args.len() + 1 != program.arguments {
            let (given, taken) = (launch.args.len(), program.arguments);
            return Err(format!("{given} arguments and a parameter block, the kernel takes {taken} in all"));
        }
        if launch.views.len() != program.views {
            return Err(format!("{} views, the kernel takes {}", launch.views.len(), program.views));
        }
        match launch.params.bytes().len() {
            block if block > PARAMS_BYTES => Err(format!("{block} of {PARAMS_BYTES} parameter bytes")),
            _ => Ok(()),
        }
    }

    /// Whether the card has what the launch takes; the numbers that forbid it where not.
    fn fits(&self, program: &CudaProgram, launch: &Launch) -> Result<(), String> {
        let (groups, threads, dynamic) = (launch.tasks, launch.threads, launch.scratch_bytes);
        let (shared, most) = (program.footprint.shared_bytes.saturating_add(dynamic), self.limits.dynamic_shared_bytes);
        if shared > most {
            return Err(format!("{shared} of {most} shared bytes"));
        }
        let registers = program.footprint.registers;
        if threads > program.footprint.threads {
            let most = program.footprint.threads;
            return Err(format!("{threads} threads of {registers} registers each, {most} of them fit"));
        }
        if program.together {
            let each = program.function.resident(threads, dynamic).map_err(|e| e.to_string())?;
            let processors = self.limits.processors;
            if u64::from(groups) > u64::from(each) * u64::from(processors) {
                return Err(format!(
                    "{groups} groups wait for each other, and {processors} processors hold {each} each of {threads} \
                     threads, {registers} registers a thread and {shared} shared bytes"
                ));
            }
        }
        Ok(())
    }
}

/// `bytes` followed by zeros, as long as a parameter block may be.
pub(super) fn padded(bytes: &[u8]) -> Vec<u128> {
    let mut block = vec![0u128; PARAMS_BYTES / 16];
    for (i, byte) in bytes.iter().enumerate() {
        block[i / 16] |= u128::from(*byte) << (8 * (i % 16));
    }
    block
}
