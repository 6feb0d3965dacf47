//! A sequence as a graph of the driver: one call starts all of its kernels, and those that overlap are branches.

use std::sync::Arc;

use cudarc::driver::sys::{self, CUlaunchAttributeID as LaunchFact};

use super::cublaslt::Call;
use super::driver::{Context, Grid, Stream, refused};
use crate::error::Error;

/// Kernels of a group that the next group waits for one by one; more than this end in an empty node first, so that the
/// number of edges stays linear.
const EDGES: usize = 4;

/// What one node of a graph starts.
pub(super) enum Part<'a> {
    Kernel(&'a Grid),
    Call(&'a Call),
}

/// One launch of a graph.
pub(super) struct Node<'a> {
    /// For errors.
    pub name: &'a str,
    /// What is launched.
    pub part: Part<'a>,
    /// It does not wait for the node before it.
    pub overlap: bool,
}

/// A graph that the driver made ready to run.
pub(super) struct Graph {
    context: Arc<Context>,
    handle: sys::CUgraphExec,
}

// SAFETY: as for `Context`.
unsafe impl Send for Graph {}
// SAFETY: as for `Context`.
unsafe impl Sync for Graph {}

impl Graph {
    /// The graph of `nodes`, uploaded by way of `stream`. The driver copies all arguments.
    ///
    /// # Safety
    /// Functions stay loaded, and the memory that arguments point to lives, as long as the graph.
    pub unsafe fn new(stream: &Stream, nodes: &[Node<'_>]) -> Result<Graph, Error> {
        stream.context.current()?;
        let template = Template::new()?;
        let (mut before, mut group) = (Vec::new(), Vec::new());
        for node in nodes {
            if !node.overlap && !group.is_empty() {
                before = template.joined(std::mem::take(&mut group))?;
            }
            group.push(match node.part {
                Part::Kernel(grid) => template.kernel(node.name, grid, &before)?,
                // SAFETY: forwarded.
                Part::Call(call) => unsafe { template.call(&stream.context, call, &before) }?,
            });
        }
        let failed = |e| refused(&format!("a graph of {} kernels", nodes.len()), e);
        let mut handle = std::ptr::null_mut();
        // SAFETY: a place for the result, and a whole graph.
        let made = unsafe { sys::cuGraphInstantiateWithFlags(&raw mut handle, template.0, 0) };
        made.result().map_err(failed)?;
        let graph = Graph { context: stream.context.clone(), handle };
        // SAFETY: both were made by the driver and live.
        unsafe { sys::cuGraphUpload(graph.handle, stream.handle) }.result().map_err(failed)?;
        Ok(graph)
    }

    /// Starts the graph after all work in `stream`; the context is current.
    ///
    /// # Safety
    /// As for `new`, until the graph is over.
    pub unsafe fn launch(&self, stream: &Stream) -> Result<(), Error> {
        // SAFETY: both were made by the driver and live.
        unsafe { sys::cuGraphLaunch(self.handle, stream.handle) }.result().map_err(|e| refused("a graph", e))
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.context.current().is_ok() {
            // SAFETY: made in `new`, destroyed once; the driver waits for a launch of it.
            let _ = unsafe { sys::cuGraphExecDestroy(self.handle) };
        }
    }
}

/// The graph while it is put together; the context stays current.
struct Template(sys::CUgraph);

impl Template {
    fn new() -> Result<Template, Error> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: a place for the result.
        unsafe { sys::cuGraphCreate(&raw mut handle, 0) }.result().map_err(|e| refused("a graph", e))?;
        Ok(Template(handle))
    }

    /// A kernel, after all of `before`.
    fn kernel(&self, name: &str, grid: &Grid, before: &[sys::CUgraphNode]) -> Result<sys::CUgraphNode, Error> {
        let failed = |e| refused(name, e);
        let params = sys::CUDA_KERNEL_NODE_PARAMS {
            func: grid.function,
            gridDimX: grid.groups,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: grid.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: grid.shared_bytes,
            kernelParams: grid.arguments.pointers(),
            extra: std::ptr::null_mut(),
            kern: std::ptr::null_mut(),
            ctx: std::ptr::null_mut(),
        };
        let mut made = std::ptr::null_mut();
        let (to, edges) = (&raw mut made, (before.as_ptr(), before.len()));
        // SAFETY: nodes of this graph, and as many arguments as the kernel declares.
        let code = unsafe { sys::cuGraphAddKernelNode_v2(to, self.0, edges.0, edges.1, &raw const params) };
        code.result().map_err(failed)?;
        if grid.together {
            let together = sys::CUkernelNodeAttrValue { cooperative: 1 };
            let which = LaunchFact::CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
            // SAFETY: a kernel node of this graph, and the value that this fact takes.
            let code = unsafe { sys::cuGraphKernelNodeSetAttribute(made, which, &raw const together) };
            code.result().map_err(failed)?;
        }
        Ok(made)
    }

    /// What a library starts for `call`, as one node after all of `before`.
    ///
    /// # Safety
    /// As for `Graph::new`.
    unsafe fn call(
        &self,
        context: &Arc<Context>,
        call: &Call,
        before: &[sys::CUgraphNode],
    ) -> Result<sys::CUgraphNode, Error> {
        let failed = |e| refused("what the library starts, as a graph", e);
        // A stream of its own, since nothing else may come between; relaxed, since the library may load code meanwhile.
        let stream = Stream::new(context)?;
        let relaxed = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the stream lives.
        unsafe { sys::cuStreamBeginCapture_v2(stream.handle, relaxed) }.result().map_err(failed)?;
        // SAFETY: the caller vouches for what it works on; nothing runs yet.
        let started = unsafe { call.start(&stream) };
        let mut part = std::ptr::null_mut();
        // SAFETY: the stream captures, and a place for the result.
        let ended = unsafe { sys::cuStreamEndCapture(stream.handle, &raw mut part) };
        let part = ended.result().map_err(failed).map(|()| Template(part));
        started?;
        let (part, mut made) = (part?, std::ptr::null_mut());
        let to = &raw mut made;
        // SAFETY: nodes of this graph, and a whole graph, which the driver copies.
        let code = unsafe { sys::cuGraphAddChildGraphNode(to, self.0, before.as_ptr(), before.len(), part.0) };
        code.result().map_err(failed)?;
        Ok(made)
    }

    /// What the next group waits for, when `group` must be over.
    fn joined(&self, group: Vec<sys::CUgraphNode>) -> Result<Vec<sys::CUgraphNode>, Error> {
        if group.len() <= EDGES {
            return Ok(group);
        }
        let mut made = std::ptr::null_mut();
        // SAFETY: nodes of this graph.
        let code = unsafe { sys::cuGraphAddEmptyNode(&raw mut made, self.0, group.as_ptr(), group.len()) };
        code.result().map_err(|e| refused("a graph", e))?;
        Ok(vec![made])
    }
}

impl Drop for Template {
    fn drop(&mut self) {
        // SAFETY: made in `new`, destroyed once.
        let _ = unsafe { sys::cuGraphDestroy(self.0) };
    }
}
