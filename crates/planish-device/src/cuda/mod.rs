//! NVIDIA cards, through the driver and its run-time compiler; both are found at run time or not at all.
//!
//! All work of a backend goes through one stream, in order; a recorded sequence is a list of launches or a graph of them.
//! Only `peek` uses a stream of its own, so that it does not wait for work.

mod bandwidth;
mod cublaslt;
mod driver;
mod graph;
mod library;
pub mod nvrtc;
mod sequence;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use cudarc::driver::sys::CUdevice_attribute as Attribute;

use crate::backend::{Backend, Footprint, Identity, Launch, Limits, Program, Sequence, Source, Timing, Token, foreign};
use crate::cpu::new_owner;
use crate::dialect;
use crate::error::{Error, ErrorKind, Poison};
use crate::memory::{Buffer, HostBytes, Init, Slice};
use crate::vendor::VendorProduct;
use cublaslt::{CublasLt, Vendor, WORKSPACE_BYTES};
use cudarc::driver::sys::CUfunction_attribute as FunctionFact;
use driver::{Context, Event, Function, PINNED_BYTES, Pinned, Region, Stream};
use nvrtc::{Nvrtc, Resources};
use sequence::{CudaSequence, Recorded};

/// How to set a card up.
#[derive(Clone, Debug)]
pub struct CudaOptions {
    /// Which of the visible cards.
    pub ordinal: u32,
    /// Folder that keeps compiled programs between runs.
    pub cache: PathBuf,
}

/// Waiting asks without pause for this long, then leaves the processor to others between questions.
const SPIN: Duration = Duration::from_millis(1);
/// After this long it sleeps between questions.
const DOZE: Duration = Duration::from_millis(20);

/// An NVIDIA card.
pub struct Cuda {
    owner: u64,
    context: Arc<Context>,
    stream: Stream,
    nvrtc: Nvrtc,
    arch: String,
    limits: Limits,
    identity: Identity,
    submitted: Mutex<Submitted>,
    staging: Mutex<Pinned>,
    aside: Mutex<(Stream, Pinned)>,
    timers: Mutex<[Event; 2]>,
    poison: Poison,
    loaded: Mutex<HashMap<Key, Weak<CudaProgram>>>,
    vendor: Vendor,
}

/// All that a program is made from: entry point, text, constants, threads.
type Key = (String, String, BTreeMap<String, i64>, u32);

/// Work that may not have finished, oldest first, and events that are free to mark the end of more.
#[derive(Default)]
struct Submitted {
    issued: u64,
    ends: VecDeque<End>,
    free: Vec<Event>,
}

/// The end of a submitted sequence, which it keeps until then.
struct End {
    token: u64,
    event: Event,
    _sequence: Arc<CudaSequence>,
}

struct CudaProgram {
    owner: u64,
    function: Function,
    resources: Resources,
    footprint: Footprint,
    /// Most threads of a group: what the registers were bounded for.
    threads: u32,
    arguments: usize,
    /// Views after the parameter block.
    views: usize,
    together: bool,
}

impl Cuda {
    /// Opens the card; an error where there is no driver, no such card, or no NVRTC.
    pub fn new(options: CudaOptions) -> Result<Cuda, Error> {
        let context = Arc::new(Context::new(options.ordinal)?);
        let nvrtc = Nvrtc::find(options.cache)?;
        let stream = Stream::new(&context)?;
        let major = context.attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
        let minor = context.attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
        if major < 8 {
            let message =
                format!("{} is of compute capability {major}.{minor}, at least 8.0 is needed", context.name());
            return Err(Error::new(ErrorKind::Unavailable, message));
        }
        // From 9.0 on a card has instructions of its own, which code for this very card may use.
        let arch = format!("sm_{major}{minor}{}", if major >= 9 { "a" } else { "" });
        let (identity, limits) = (identity(&context, &arch, &nvrtc), limits(&context));
        let mut cuda = Cuda {
            owner: new_owner(),
            submitted: Mutex::default(),
            staging: Mutex::new(Pinned::new(&context)?),
            aside: Mutex::new((Stream::new(&context)?, Pinned::new(&context)?)),
            timers: Mutex::new([Event::timed(&context)?, Event::timed(&context)?]),
            poison: Poison::default(),
            loaded: Mutex::default(),
            vendor: Vendor::default(),
            context,
            stream,
            nvrtc,
            arch,
            limits,
            identity,
        };
        cuda.limits.read_gb_s = Some(bandwidth::read_gb_s(&cuda, cuda.context.memory_bytes())?);
        Ok(cuda)
    }

    /// The architecture that programs are compiled for.
    pub fn arch(&self) -> &str {
        &self.arch
    }

    /// What the assembler said of a program of this backend.
    pub fn resources(program: &Program) -> Option<&Resources> {
        program.inner.downcast_ref::<CudaProgram>().map(|p| &p.resources)
    }

    fn region(&self, bytes: usize, init: Init) -> Result<Region, Error> {
        Region::new(&self.context, self.owner, bytes, init, &self.stream)
    }

    fn program<'p>(&self, program: &'p Program) -> Option<&'p CudaProgram> {
        program.inner.downcast_ref::<CudaProgram>().filter(|p| p.owner == self.owner)
    }

    fn compiled(&self, source: &Source, name: &str, text: &str, threads: u32) -> Result<CudaProgram, Error> {
        let cubin = self.nvrtc.compile(&self.arch, source)?;
        let missing = || Error::new(ErrorKind::Build, format!("the text has no kernel {name}"));
        let resources = cubin.kernel(name).ok_or_else(missing)?.clone();
        let function = Function::load(&self.context, &cubin.bytes, name)?;
        let footprint = Footprint {
            registers: function.attribute(FunctionFact::CU_FUNC_ATTRIBUTE_NUM_REGS),
            shared_bytes: function.attribute(FunctionFact::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES),
            local_bytes: function.attribute(FunctionFact::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES),
            threads: function.attribute(FunctionFact::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK),
        };
        function.allow_shared(name, self.limits.dynamic_shared_bytes.saturating_sub(footprint.shared_bytes))?;
        Ok(CudaProgram {
            owner: self.owner,
            function,
            resources,
            footprint,
            threads,
            arguments: dialect::arguments(text, name).ok_or_else(missing)?,
            views: dialect::views(text, name).ok_or_else(missing)?,
            together: dialect::is_grid(text, name),
        })
    }

    /// The vendor's library, opened when it is first asked for.
    fn vendors(&self) -> Result<&Arc<CublasLt>, Error> {
        self.vendor.library(&self.context, self.owner)
    }

    fn product(&self, product: &VendorProduct) -> Result<Program, Error> {
        self.poison.guard(|| {
            let library = self.vendors()?;
            let memory = || self.region(WORKSPACE_BYTES, Init::Zero);
            let inner = self.vendor.product(library, product, memory)?;
            Ok(Program { name: library.name().into(), inner })
        })
    }

    /// Where a slice of this card's memory lies; host memory and that of other backends is refused.
    fn address(&self, slice: &Slice) -> Result<u64, Error> {
        if slice.buffer.0.owner() != self.owner {
            return Err(foreign("its buffer"));
        }
        slice.buffer.slice(slice.offset, slice.len)?;
        let base = slice.buffer.0.device().ok_or_else(|| foreign("its buffer"))?;
        Ok(base + slice.offset as u64)
    }

    fn kept(&self, launches: &[Launch], graph: bool) -> Result<Sequence, Error> {
        self.poison.guard(|| {
            let recorded: Result<Vec<Recorded>, Error> =
                launches.iter().enumerate().map(|(at, launch)| self.checked(at, launch)).collect();
            let sequence = CudaSequence::new(self.owner, recorded?, graph.then_some(&self.stream))?;
            Ok(Sequence { inner: Arc::new(sequence), launches: launches.len() })
        })
    }

    fn recorded(&self, sequence: &Sequence) -> Result<Arc<CudaSequence>, Error> {
        let recorded = sequence.inner.clone().downcast::<CudaSequence>().ok().filter(|s| s.owner == self.owner);
        recorded.ok_or_else(|| foreign("the sequence"))
    }

    /// Whether all work up to `token` is over; events of work that is go back to the free ones.
    fn ended(&self, token: Token) -> Result<bool, Error> {
        let mut work = locked(&self.submitted);
        if token.0 > work.issued {
            let message = format!("token {} is not among the {} submitted", token.0, work.issued);
            return Err(Error::new(ErrorKind::BadLaunch, message));
        }
        while let Some(end) = work.ends.pop_front_if(|end| end.token <= token.0) {
            if !end.event.reached()? {
                work.ends.push_front(end);
                return Ok(false);
            }
            work.free.push(end.event);
        }
        Ok(true)
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Checks that host bytes and a slice are of one size.
fn same_size(what: &str, slice: &Slice, bytes: usize) -> Result<(), Error> {
    if slice.len == bytes {
        return Ok(());
    }
    let message = format!("{what} of {bytes} bytes, the slice has {}", slice.len);
    Err(Error::new(ErrorKind::BadLaunch, message))
}

fn identity(context: &Context, arch: &str, nvrtc: &Nvrtc) -> Identity {
    let fact = |k: &str, v: String| (k.to_owned(), v);
    let of = |which| context.attribute(which).to_string();
    let (major, minor) = nvrtc.version();
    Identity {
        silicon: BTreeMap::from([
            fact("vendor", "nvidia".into()),
            fact("arch", arch.into()),
            fact("processors", of(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)),
            fact("l2_bytes", of(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)),
            fact("memory_bytes", context.memory_bytes().to_string()),
            fact("memory_bus_bits", of(Attribute::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH)),
        ]),
        toolchain: BTreeMap::from([
            fact("driver", Context::driver_version().to_string()),
            fact("nvrtc", format!("{major}.{minor}")),
        ]),
        label: context.name(),
    }
}

fn limits(context: &Context) -> Limits {
    let l2_bytes = context.attribute(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
    let of = |which| u32::try_from(context.attribute(which)).unwrap_or(u32::MAX);
    Limits {
        backend: "cuda".into(),
        max_threads: of(Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK),
        processors: of(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT),
        shared_bytes: of(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK),
        dynamic_shared_bytes: of(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN),
        // Shared memory and the first cache are one memory.
        l1_bytes: context.attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR),
        l2_bytes,
        llc_bytes: l2_bytes,
        read_gb_s: None,
    }
}

impl Backend for Cuda {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn alloc(&self, bytes: usize, init: Init) -> Result<Buffer, Error> {
        self.poison.guard(|| Ok(Buffer(Arc::new(self.region(bytes, init)?))))
    }

    fn adopt(&self, bytes: HostBytes, range: Range<usize>) -> Result<Buffer, Error> {
        let whole: &[u8] = (*bytes).as_ref();
        let Some(part) = whole.get(range.clone()) else {
            return Err(Error::new(ErrorKind::BadLaunch, format!("bytes {range:?} of {}", whole.len())));
        };
        let buffer = self.alloc(part.len(), Init::Zero)?;
        self.write(&buffer.all(), part)?;
        Ok(buffer)
    }

    fn write(&self, to: &Slice, bytes: &[u8]) -> Result<(), Error> {
        self.poison.guard(|| {
            let address = self.address(to)?;
            same_size("a write", to, bytes.len())?;
            // SAFETY: the slice lies inside memory of this card, and has as many bytes.
            unsafe { self.stream.copy_in(address, bytes) }
        })
    }

    fn read(&self, from: &Slice, bytes: &mut [u8]) -> Result<(), Error> {
        self.poison.guard(|| {
            let address = self.address(from)?;
            same_size("a read", from, bytes.len())?;
            // SAFETY: the slice lies inside memory of this card, and has as many bytes.
            unsafe {
                if bytes.len() <= PINNED_BYTES {
                    self.stream.copy_out_by(&mut locked(&self.staging), address, bytes)
                } else {
                    self.stream.copy_out(address, bytes)
                }
            }
        })
    }

    fn peek(&self, from: &Slice, bytes: &mut [u8]) -> Result<(), Error> {
        self.poison.guard(|| {
            let address = self.address(from)?;
            same_size("a peek", from, bytes.len())?;
            let (stream, pinned) = &mut *locked(&self.aside);
            // SAFETY: the slice lies inside memory of this card, and has as many bytes; any bytes are a value.
            unsafe { stream.copy_out_by(pinned, address, bytes) }
        })
    }

    /// A program that is loaded already is given again: a sequence launches one of them many times.
    fn load(&self, source: &Source) -> Result<Program, Error> {
        let (name, text, constants, threads) = match source {
            Source::Text { name, text, constants, threads } => (name, text, constants, threads),
            Source::Vendor(product) => return self.product(product),
            Source::Native { name, .. } => {
                let message =
                    format!("{name} is a native program; a card runs kernel text and products of its vendor's");
                return Err(Error::new(ErrorKind::Build, message));
            }
        };
        let shown: Arc<str> = name.as_str().into();
        let key = (name.clone(), text.clone(), constants.clone(), *threads);
        if let Some(inner) = locked(&self.loaded).get(&key).and_then(Weak::upgrade) {
            self.poison.check()?;
            return Ok(Program { name: shown, inner });
        }
        let program = self.poison.guard(|| self.compiled(source, name, text, *threads)).map(Arc::new)?;
        let mut loaded = locked(&self.loaded);
        loaded.retain(|_, program| program.strong_count() > 0);
        loaded.insert(key, Arc::downgrade(&program));
        Ok(Program { name: shown, inner: program })
    }

    fn footprint(&self, program: &Program) -> Option<Footprint> {
        self.program(program).map(|p| p.footprint)
    }

    fn resident(&self, program: &Program, threads: u32, shared_bytes: u32) -> Option<u32> {
        self.program(program)?.function.resident(threads, shared_bytes).ok()
    }

    fn library(&self) -> Result<String, Error> {
        self.poison.guard(|| self.vendors().map(|library| library.name().to_owned()))
    }

    fn record(&self, launches: &[Launch]) -> Result<Sequence, Error> {
        self.kept(launches, false)
    }

    fn record_graph(&self, launches: &[Launch]) -> Result<Sequence, Error> {
        self.kept(launches, true)
    }

    fn submit(&self, sequence: &Sequence) -> Result<Token, Error> {
        self.poison.guard(|| {
            let recorded = self.recorded(sequence)?;
            let mut work = locked(&self.submitted);
            self.context.current()?;
            recorded.start(&self.stream)?;
            let event = work.free.pop().map_or_else(|| Event::new(&self.context), Ok)?;
            event.record(&self.stream)?;
            work.issued += 1;
            let token = work.issued;
            work.ends.push_back(End { token, event, _sequence: recorded });
            Ok(Token(token))
        })
    }

    /// A kernel that never ends keeps the card: it is for the caller's process to end.
    fn wait(&self, token: Token, deadline: Duration) -> Result<(), Error> {
        self.poison.guard(|| {
            self.context.current()?;
            let start = Instant::now();
            while !self.ended(token)? {
                match start.elapsed() {
                    waited if waited > deadline => {
                        return Err(Error::new(ErrorKind::Timeout, format!("no end within {deadline:?}")));
                    }
                    waited if waited < SPIN => std::hint::spin_loop(),
                    waited if waited < DOZE => std::thread::yield_now(),
                    _ => std::thread::sleep(Duration::from_micros(50)),
                }
            }
            Ok(())
        })
    }

    fn time(&self, sequences: &[Sequence], reps: u32) -> Result<Timing, Error> {
        if sequences.is_empty() || reps == 0 {
            let message = format!("timing {} sequences {reps} times", sequences.len());
            return Err(Error::new(ErrorKind::BadLaunch, message));
        }
        self.poison.guard(|| {
            let recorded = sequences.iter().map(|s| self.recorded(s)).collect::<Result<Vec<_>, Error>>()?;
            let _work = locked(&self.submitted);
            let [start, end] = &*locked(&self.timers);
            self.stream.drain("time")?;
            start.record(&self.stream)?;
            for sequence in recorded.iter().cycle().take(reps as usize) {
                sequence.start(&self.stream)?;
            }
            end.record(&self.stream)?;
            self.stream.drain("time")?;
            Ok(Timing { ns: end.ns_since(start)? / f64::from(reps), reps })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::sequence::padded;
    use super::{Cuda, CudaOptions};

    #[test]
    fn a_parameter_block_keeps_its_bytes_and_ends_in_zeros() {
        let block = padded(&(1..=20).collect::<Vec<u8>>());
        assert_eq!(block[0].to_le_bytes().to_vec(), (1..=16).collect::<Vec<u8>>());
        assert_eq!(&block[1].to_le_bytes()[..5], [17, 18, 19, 20, 0]);
        assert!(block[2..].iter().all(|word| *word == 0));
    }

    #[test]
    fn a_card_that_is_not_there_is_an_error_and_no_panic() {
        let cache = std::env::temp_dir().join("planish-no-card");
        let Err(e) = Cuda::new(CudaOptions { ordinal: 4096, cache }) else { panic!("there is no card 4096") };
        assert!(e.to_string().contains("NVIDIA card"), "{e}");
    }
}
