//! The contract with a machine: limits, memory, programs, recorded sequences, submission, and a clock.

use std::any::Any;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind};
use crate::memory::{Buffer, HostBytes, Init, RawSlice, Slice};
use crate::vendor::VendorProduct;

/// What a configuration must fit in, and the ceilings that percentages refer to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Limits {
    /// `cpu`, `cuda`, `metal`, `host` or `fake`.
    pub backend: String,
    /// CPU: threads of the pool. GPU: the most threads in a group.
    pub max_threads: u32,
    /// Processors that groups are spread over; 0 on a CPU.
    pub processors: u32,
    /// Most bytes of shared (threadgroup) memory that arrays of fixed size may take in a group; 0 on a CPU.
    pub shared_bytes: u32,
    /// Most bytes of shared memory a group may use in all, where a launch decides the size of an array; 0 on a CPU.
    pub dynamic_shared_bytes: u32,
    /// Level 1 data cache of one core, bytes.
    pub l1_bytes: u64,
    /// Level 2 cache (of one core on a CPU, of the device on a GPU), bytes.
    pub l2_bytes: u64,
    /// Last-level cache, bytes; buffers are rotated past it to stay cold.
    pub llc_bytes: u64,
    /// Measured read bandwidth in GB/s, which decides the tier of a GPU's default configurations; none where unmeasured.
    pub read_gb_s: Option<f64>,
}

/// What the machine is, for keys: facts of the silicon and of the toolchain, never a label or an index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Named silicon facts: vendor, family, model, stepping, cores, caches, ISA extensions.
    pub silicon: BTreeMap<String, String>,
    /// Named toolchain facts: compiler, driver, run-time compiler.
    pub toolchain: BTreeMap<String, String>,
    /// Marketing name, for people only.
    pub label: String,
}

/// Types whose bytes may be handed to a kernel as its parameter block.
///
/// # Safety
/// The type must be `repr(C)`, free of padding that matters, and valid for any bytes it was made from.
pub unsafe trait Plain: Copy + 'static {}

/// The parameter block of a launch, 16-byte aligned; fixed when the sequence is recorded.
#[derive(Clone)]
pub struct Params {
    words: Arc<[u128]>,
    len: usize,
}

impl Params {
    /// The bytes of `value`.
    pub fn new<T: Plain>(value: T) -> Self {
        let mut words = vec![0u128; size_of::<T>().div_ceil(16)];
        assert!(align_of::<T>() <= 16, "parameter block aligned to {} bytes", align_of::<T>());
        // SAFETY: `words` has room for a T and is at least as aligned; T is Plain, so a byte copy is a value.
        unsafe { std::ptr::write(words.as_mut_ptr().cast(), value) };
        Params { words: words.into(), len: size_of::<T>() }
    }

    /// A block of 32-bit words, as kernel text declares its parameters: unsigned numbers, and floats by their bits.
    pub fn words(values: &[u32]) -> Self {
        let mut words = vec![0u128; values.len().div_ceil(4)];
        for (i, v) in values.iter().enumerate() {
            words[i / 4] |= u128::from(*v) << (32 * (i % 4));
        }
        Params { words: words.into(), len: values.len() * 4 }
    }

    /// The block seen as `T`; panics when it was made from a type of another size.
    pub fn get<T: Plain>(&self) -> &T {
        assert_eq!(self.len, size_of::<T>(), "parameter block has {} bytes, kernel wants {}", self.len, size_of::<T>());
        // SAFETY: same size as the Plain value it was made from, and 16-byte aligned.
        unsafe { &*self.words.as_ptr().cast() }
    }

    /// The bytes, for backends that copy them to a device.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the words are initialised and hold at least `len` bytes.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr().cast(), self.len) }
    }
}

/// What a native kernel is called with: its arguments and the tasks it is to do now.
pub struct Call<'a> {
    /// Bound slices, in the order of `Launch::args`.
    pub args: &'a [RawSlice],
    /// The parameter block.
    pub params: &'a Params,
    /// Tasks to do in this call, a part of `0..Launch::tasks`.
    pub tasks: Range<u32>,
    /// Which thread of the pool this is.
    pub thread: u32,
    /// Private memory of this thread, at least `Launch::scratch_bytes`, 64-byte aligned, contents undefined.
    pub scratch: RawSlice,
}

/// A kernel compiled into this program.
///
/// # Safety
/// The caller passes arguments of the number, sizes and kinds that the kernel documents.
pub type Native = unsafe fn(&Call<'_>);

/// Where a program comes from.
#[derive(Clone)]
pub enum Source {
    /// A function of this binary, for the CPU.
    Native {
        /// Name for reports.
        name: &'static str,
        /// The function.
        run: Native,
    },
    /// Kernel text with its constants, for run-time compilers.
    Text {
        /// Entry point.
        name: String,
        /// Whole text.
        text: String,
        /// `SPEC_*` and `SHAPE_*` constants by name.
        constants: BTreeMap<String, i64>,
        /// Threads of the groups it will be launched with: a compiler gives a thread as many registers as these leave.
        threads: u32,
    },
    /// A product of matrices that the library of the machine's vendor makes, where there is one.
    Vendor(VendorProduct),
}

/// A loaded program; cheap to clone.
#[derive(Clone)]
pub struct Program {
    /// Name for reports.
    pub name: Arc<str>,
    /// The backend's own representation.
    pub inner: Arc<dyn Any + Send + Sync>,
}

/// What a compiled program takes of a processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Footprint {
    /// Registers of a thread.
    pub registers: u32,
    /// Shared bytes of a group in arrays of fixed size.
    pub shared_bytes: u32,
    /// Bytes of a thread in local memory: what did not fit the registers, and arrays that are indexed.
    pub local_bytes: u32,
    /// Most threads of a group.
    pub threads: u32,
}

/// Tiles of an argument that a kernel asks for by their coordinates and the machine's copy engine fetches into shared
/// memory; what lies outside the extents comes as zeros.
///
/// Only cards of NVIDIA from sm_90 on have such an engine: every other backend refuses a launch with views.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct View {
    /// Which argument, by position; its first element is the first of its bytes, at a multiple of 16.
    pub arg: usize,
    /// Bytes of an element: 1, 2 or 4.
    pub element: u32,
    /// Elements along each dimension, the innermost first.
    pub extents: Vec<u64>,
    /// Bytes from one element to the next along each dimension but the innermost, multiples of 16.
    pub strides: Vec<u64>,
    /// Elements of a tile along each dimension, at most 256.
    pub tile: Vec<u32>,
    /// Rows of a tile are of 128 bytes, and chunk c of 16 bytes of row r lies at c ^ (r % 8): no reads of columns meet.
    pub swizzled: bool,
}

impl View {
    /// Bytes from the first element to behind the last; none where dimensions do not agree or there are no elements.
    pub fn bytes(&self) -> Option<u64> {
        let rank = self.extents.len();
        if rank == 0 || rank > 5 || self.strides.len() + 1 != rank || self.tile.len() != rank {
            return None;
        }
        let row = self.extents[0].checked_mul(u64::from(self.element)).filter(|n| *n > 0)?;
        let outer = self.extents[1..].iter().zip(&self.strides);
        outer.into_iter().try_fold(row, |all, (n, stride)| all.checked_add(n.checked_sub(1)?.checked_mul(*stride)?))
    }
}

/// One step of a sequence: a program, what it works on, and how it is spread over the machine.
#[derive(Clone)]
pub struct Launch {
    /// What runs.
    pub program: Program,
    /// Bound by position.
    pub args: Vec<Slice>,
    /// Parameter block.
    pub params: Params,
    /// Views that the kernel takes after its parameter block, in order.
    pub views: Vec<View>,
    /// CPU: independent tasks. GPU: groups of the grid.
    pub tasks: u32,
    /// CPU: most threads of the pool that take part. GPU: threads of a group.
    pub threads: u32,
    /// CPU: private bytes a thread needs. GPU: dynamic shared bytes.
    pub scratch_bytes: u32,
    /// May run at the same time as the launch before it: no barrier is needed between the two.
    pub overlap: bool,
}

/// Launches recorded once and run many times.
///
/// A launch sees all writes of the ones before it, except of those it overlaps: a run of launches with `overlap` set
/// forms one group with the launch that precedes the run, and barriers stand only between groups.
#[derive(Clone)]
pub struct Sequence {
    /// The backend's own representation.
    pub inner: Arc<dyn Any + Send + Sync>,
    /// Launches in it.
    pub launches: usize,
}

/// A submitted sequence that may not have finished yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Token(pub u64);

/// The duration of one execution, averaged over `reps` of them, on the device's own clock where it has one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timing {
    /// Nanoseconds of one execution.
    pub ns: f64,
    /// Executions averaged.
    pub reps: u32,
}

/// What one thread did for one launch of a stamped sequence, in nanoseconds after the sequence began.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stamp {
    /// Which launch, by its place in the sequence.
    pub launch: u32,
    /// Which thread.
    pub thread: u32,
    /// When its first task began.
    pub start_ns: f64,
    /// When its last task ended.
    pub end_ns: f64,
    /// Time between the two that it spent in tasks of this launch.
    pub busy_ns: f64,
}

/// The last run of a stamped sequence.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stamps {
    /// From its begin to the end of its last task, nanoseconds.
    pub total_ns: f64,
    /// Threads that the machine had for it.
    pub threads: u32,
    /// One stamp for each launch and thread that worked for it, launch after launch.
    pub stamps: Vec<Stamp>,
}

/// A machine.
pub trait Backend: Send + Sync {
    /// What configurations must fit in.
    fn limits(&self) -> &Limits;
    /// What the machine is.
    fn identity(&self) -> &Identity;
    /// New memory of `bytes` bytes, 64-byte aligned or better.
    fn alloc(&self, bytes: usize, init: Init) -> Result<Buffer, Error>;
    /// New memory of `bytes` bytes that `fill` writes before anyone else sees it; in place where the host can reach it.
    fn alloc_with(&self, bytes: usize, fill: &mut dyn FnMut(&mut [u8])) -> Result<Buffer, Error> {
        let mut staged = vec![0; bytes];
        fill(&mut staged);
        let buffer = self.alloc(bytes, Init::Zero)?;
        self.write(&buffer.all(), &staged)?;
        Ok(buffer)
    }
    /// `range` of host bytes as device memory: in place where the device can read them, else a copy.
    fn adopt(&self, bytes: HostBytes, range: Range<usize>) -> Result<Buffer, Error>;
    /// Copies host bytes into a slice of the same size; waits for submitted work first.
    fn write(&self, to: &Slice, bytes: &[u8]) -> Result<(), Error>;
    /// Copies a slice to host bytes of the same size; waits for submitted work first.
    fn read(&self, from: &Slice, bytes: &mut [u8]) -> Result<(), Error>;
    /// Copies a slice to host bytes of the same size, beside submitted work where the machine can: it need not wait.
    ///
    /// What a finished sequence wrote is seen whole; of what a sequence still running writes, each aligned 32-bit word
    /// may be the old or the new one.
    fn peek(&self, from: &Slice, bytes: &mut [u8]) -> Result<(), Error> {
        self.read(from, bytes)
    }
    /// Makes a program ready to launch.
    fn load(&self, source: &Source) -> Result<Program, Error>;
    /// What a program takes of a processor; none where the machine does not tell.
    fn footprint(&self, _program: &Program) -> Option<Footprint> {
        None
    }
    /// Groups of `threads` threads and `shared_bytes` dynamic shared bytes that one processor holds at the same time;
    /// none where the machine does not tell. A grid that waits for itself must not have more of them than fit at once.
    fn resident(&self, _program: &Program, _threads: u32, _shared_bytes: u32) -> Option<u32> {
        None
    }
    /// The vendor's library that makes products of matrices, as name and version; an error that says why there is none.
    fn library(&self) -> Result<String, Error> {
        Err(Error::new(ErrorKind::Unavailable, "this machine has no library of its vendor's"))
    }
    /// Checks the launches and records them in order.
    fn record(&self, launches: &[Launch]) -> Result<Sequence, Error>;
    /// The same for a sequence that will run very often: handed over as a whole where the machine has a way to do that,
    /// with the launches that overlap as branches. Costs more to record and less to submit; the results are the same.
    fn record_graph(&self, launches: &[Launch]) -> Result<Sequence, Error> {
        self.record(launches)
    }
    /// The same as `record`, but every run keeps when each thread worked for which launch; none where the machine cannot
    /// tell. A run of it takes longer by the reading of clocks.
    fn record_stamped(&self, _launches: &[Launch]) -> Result<Option<Sequence>, Error> {
        Ok(None)
    }
    /// What the last run of a sequence of `record_stamped` kept; waits for submitted work first. None for other sequences.
    fn stamps(&self, _sequence: &Sequence) -> Result<Option<Stamps>, Error> {
        Ok(None)
    }
    /// Starts a sequence after all submitted before it; returns at once where the device is not this thread.
    fn submit(&self, sequence: &Sequence) -> Result<Token, Error>;
    /// Waits until `token` has finished, or fails with `Timeout`.
    fn wait(&self, token: Token, deadline: Duration) -> Result<(), Error>;
    /// Runs the sequences in turn `reps` times in all and times them as one batch.
    fn time(&self, sequences: &[Sequence], reps: u32) -> Result<Timing, Error>;
}

/// Refuses a launch with views, for machines that have no engine to fetch them.
pub fn without_views(launch: &Launch) -> Result<(), Error> {
    match launch.views.len() {
        0 => Ok(()),
        n => {
            Err(Error::new(ErrorKind::BadLaunch, format!("{}: {n} views, this machine has none", launch.program.name)))
        }
    }
}

/// Refuses a product of the vendor's library, for machines that have none.
pub fn no_library(product: &VendorProduct, machine: &str) -> Error {
    Error::new(ErrorKind::Build, format!("a product of {product}: {machine} has no library that makes it"))
}

/// The error for a program or sequence that another backend made.
pub fn foreign(what: &str) -> Error {
    Error::new(ErrorKind::BadLaunch, format!("{what} was made by another backend"))
}
