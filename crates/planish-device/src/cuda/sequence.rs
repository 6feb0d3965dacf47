//! Launches that were checked once and start many times, one by one or as a graph.

use std::sync::Arc;

use cudarc::driver::sys::CUtensorMap;

use super::cublaslt::{ALIGN, Call, Product};
use super::driver::{Arguments, Grid, Stream, encode};
use super::graph::{Graph, Node, Part};
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
    work: Work,
}

/// What a launch starts.
enum Work {
    Kernel { grid: Grid, _program: Arc<CudaProgram> },
    Call(Call),
}

impl CudaSequence {
    /// The launches in order, as a graph uploaded by way of `graph` where one is given.
    pub fn new(owner: u64, launches: Vec<Recorded>, graph: Option<&Stream>) -> Result<CudaSequence, Error> {
        fn node(recorded: &Recorded) -> Node<'_> {
            let Recorded { launch, work } = recorded;
            let part = match work {
                Work::Kernel { grid, .. } => Part::Kernel(grid),
                Work::Call(call) => Part::Call(call),
            };
            Node { name: &launch.program.name, part, overlap: launch.overlap }
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
        for Recorded { launch, work } in &self.launches {
            match work {
                // SAFETY: arguments of the number that the kernel declares, checked at `record`: addresses of slices that
                // the launch keeps alive, then a block of the largest size that a kernel may declare. The driver copies
                // all.
                Work::Kernel { grid, .. } => unsafe { stream.launch(&launch.program.name, grid) }?,
                // SAFETY: places of slices of the right size, checked at `record`, that the launch keeps alive.
                Work::Call(call) => unsafe { call.start(stream) }?,
            }
        }
        Ok(())
    }
}

impl Cuda {
    /// Checks launch number `at` and makes it ready.
    pub(super) fn checked(&self, at: usize, launch: &Launch) -> Result<Recorded, Error> {
        let name = &launch.program.name;
        let refuse = |what: String| Error::new(ErrorKind::BadLaunch, format!("launch {at} ({name}): {what}"));
        if let Ok(product) = launch.program.inner.clone().downcast::<Product>() {
            let call = self.call(product, launch).map_err(refuse)?;
            return Ok(Recorded { launch: launch.clone(), work: Work::Call(call) });
        }
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
        Ok(Recorded { launch: launch.clone(), work: Work::Kernel { grid, _program: program } })
    }

    /// The launch as a call of the vendor's library, or why it is none.
    fn call(&self, product: Arc<Product>, launch: &Launch) -> Result<Call, String> {
        if !product.is_of(self.owner) {
            return Err("the product was made by another backend".into());
        }
        if launch.overlap {
            return Err("it may not overlap: calls of the library share the memory that they work in".into());
        }
        let plain = launch.tasks == 1 && launch.threads == 1 && launch.scratch_bytes == 0 && launch.views.is_empty();
        let words = launch.params.bytes();
        let (true, [a0, a1, a2, a3, b0, b1, b2, b3], 3) = (plain, words, launch.args.len()) else {
            let (arguments, bytes) = (launch.args.len(), words.len());
            return Err(format!(
                "{arguments} arguments and {bytes} bytes, a product is one task of A, B, C and two words"
            ));
        };
        let mut places = [0; 3];
        for (i, (slice, bytes)) in launch.args.iter().zip(product.of.bytes()).enumerate() {
            places[i] = self.address(slice).map_err(|e| format!("argument {i}: {e}"))?;
            if slice.len < bytes {
                return Err(format!("argument {i} has {} bytes, a product of {} takes {bytes}", slice.len, product.of));
            }
            if !places[i].is_multiple_of(ALIGN) {
                return Err(format!("argument {i} begins at {:#x}, which is no multiple of {ALIGN}", places[i]));
            }
        }
        let scales = [[*a0, *a1, *a2, *a3], [*b0, *b1, *b2, *b3]].map(f32::from_le_bytes);
        Ok(Call { product, places, scales })
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
