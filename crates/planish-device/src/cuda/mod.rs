//! NVIDIA cards, through the driver and its run-time compiler; both are found at run time or not at all.
//!
//! All work of a backend goes through one stream, in order; a recorded sequence is a list of launches.

mod driver;
pub mod nvrtc;

use std::collections::{BTreeMap, VecDeque};
use std::ffi::c_void;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cudarc::driver::sys::CUdevice_attribute as Attribute;

use crate::backend::{Backend, Identity, Launch, Limits, Program, Sequence, Source, Timing, Token, foreign};
use crate::cpu::new_owner;
use crate::dialect;
use crate::error::{Error, ErrorKind};
use crate::memory::{Buffer, HostBytes, Init, Slice};
use driver::{Context, Event, Function, Grid, Region, Stream};
use nvrtc::{Nvrtc, Resources};

/// How to set a card up.
#[derive(Clone, Debug)]
pub struct CudaOptions {
    /// Which of the visible cards.
    pub ordinal: u32,
    /// Folder that keeps compiled programs between runs.
    pub cache: PathBuf,
}

/// Room for a parameter block: a kernel reads as many bytes as it declares, whatever was given.
const PARAMS_BYTES: usize = 4096;
/// Bytes that are copied to tell the card's bandwidth.
const COPIED_BYTES: usize = 256 << 20;

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
}

/// Work that may not have finished, oldest first.
#[derive(Default)]
struct Submitted {
    issued: u64,
    ends: VecDeque<End>,
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
    /// Most threads of a group: what the registers were bounded for.
    threads: u32,
    arguments: usize,
    together: bool,
}

struct CudaSequence {
    owner: u64,
    launches: Vec<Recorded>,
}

/// A launch with its arguments as the driver takes them, and what keeps them alive.
struct Recorded {
    launch: Launch,
    program: Arc<CudaProgram>,
    pointers: Vec<u64>,
    params: Vec<u128>,
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
        let submitted = Mutex::default();
        let mut cuda = Cuda { owner: new_owner(), context, stream, nvrtc, arch, limits, identity, submitted };
        cuda.limits.read_gb_s = Some(cuda.copy_gb_s()?);
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

    /// Bytes read and written in a copy within the card's memory, GB/s.
    fn copy_gb_s(&self) -> Result<f64, Error> {
        let (from, to) = (self.region(COPIED_BYTES, Init::Zero)?, self.region(COPIED_BYTES, Init::Zero)?);
        let mut best = f64::INFINITY;
        for _ in 0..3 {
            let start = Event::now(&self.stream)?;
            // SAFETY: two regions of that size, alive until the stream is drained below.
            let copied = unsafe {
                use cudarc::driver::result::memcpy_dtod_async;
                memcpy_dtod_async(to.pointer, from.pointer, COPIED_BYTES, self.stream.handle)
            };
            copied.map_err(|e| driver::refused("copy", e))?;
            let end = Event::now(&self.stream)?;
            self.stream.drain("copy")?;
            best = best.min(end.ns_since(&start)?);
        }
        Ok(2.0 * COPIED_BYTES as f64 / best)
    }

    fn region(&self, bytes: usize, init: Init) -> Result<Region, Error> {
        Region::new(&self.context, self.owner, bytes, init, &self.stream)
    }

    fn work(&self) -> MutexGuard<'_, Submitted> {
        self.submitted.lock().unwrap_or_else(PoisonError::into_inner)
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

    fn checked(&self, at: usize, launch: &Launch) -> Result<Recorded, Error> {
        let name = &launch.program.name;
        let refuse = |what: String| Error::new(ErrorKind::BadLaunch, format!("launch {at} ({name}): {what}"));
        let program = launch.program.inner.clone().downcast::<CudaProgram>().ok().filter(|p| p.owner == self.owner);
        let program = program.ok_or_else(|| refuse("the program was made by another backend".into()))?;
        if launch.tasks == 0
            || launch.threads == 0
            || launch.threads > program.threads
            || !launch.threads.is_multiple_of(32)
        {
            let most = program.threads;
            return Err(refuse(format!("{} groups of {} threads, made for {most}", launch.tasks, launch.threads)));
        }
        if launch.args.len() + 1 != program.arguments {
            let (given, taken) = (launch.args.len(), program.arguments);
            return Err(refuse(format!("{given} arguments and a parameter block, the kernel takes {taken} in all")));
        }
        let shared = program.resources.shared_bytes + launch.scratch_bytes;
        if shared > self.limits.shared_bytes || launch.params.bytes().len() > PARAMS_BYTES {
            let (most, block) = (self.limits.shared_bytes, launch.params.bytes().len());
            return Err(refuse(format!("{shared} of {most} shared bytes, {block} of {PARAMS_BYTES} parameter bytes")));
        }
        let place = |(i, slice)| self.address(slice).map_err(|e| refuse(format!("argument {i}: {e}")));
        let pointers = launch.args.iter().enumerate().map(place).collect::<Result<_, _>>()?;
        Ok(Recorded { launch: launch.clone(), program, pointers, params: padded(launch.params.bytes()) })
    }

    fn start(&self, recorded: &Recorded) -> Result<(), Error> {
        let mut arguments: Vec<*mut c_void> =
            recorded.pointers.iter().map(|p| std::ptr::from_ref(p).cast_mut().cast()).collect();
        arguments.push(recorded.params.as_ptr().cast_mut().cast());
        let (launch, program) = (&recorded.launch, &recorded.program);
        let grid = Grid {
            name: &launch.program.name,
            function: &program.function,
            groups: launch.tasks,
            threads: launch.threads,
            shared_bytes: launch.scratch_bytes,
            together: program.together,
        };
        // SAFETY: as many arguments as the kernel declares, checked at `record`: addresses of slices that the recorded
        // launch keeps alive, then a block of the largest size that a kernel may declare. The driver copies all of them.
        unsafe { self.stream.launch(&grid, &mut arguments) }
    }

    fn recorded(&self, sequence: &Sequence) -> Result<Arc<CudaSequence>, Error> {
        let recorded = sequence.inner.clone().downcast::<CudaSequence>().ok().filter(|s| s.owner == self.owner);
        recorded.ok_or_else(|| foreign("the sequence"))
    }
}

/// `bytes` followed by zeros, as long as a parameter block may be.
fn padded(bytes: &[u8]) -> Vec<u128> {
    let mut block = vec![0u128; PARAMS_BYTES / 16];
    for (i, byte) in bytes.iter().enumerate() {
        block[i / 16] |= u128::from(*byte) << (8 * (i % 16));
    }
    block
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
        shared_bytes: of(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK),
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
        Ok(Buffer(Arc::new(self.region(bytes, init)?)))
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
        let address = self.address(to)?;
        if to.len != bytes.len() {
            let message = format!("write of {} bytes to a slice of {} bytes", bytes.len(), to.len);
            return Err(Error::new(ErrorKind::BadLaunch, message));
        }
        // SAFETY: the slice lies inside memory of this card, and has as many bytes.
        unsafe { self.stream.copy_in(address, bytes) }
    }

    fn read(&self, from: &Slice, bytes: &mut [u8]) -> Result<(), Error> {
        let address = self.address(from)?;
        if from.len != bytes.len() {
            let message = format!("read of {} bytes from a slice of {} bytes", bytes.len(), from.len);
            return Err(Error::new(ErrorKind::BadLaunch, message));
        }
        // SAFETY: the slice lies inside memory of this card, and has as many bytes.
        unsafe { self.stream.copy_out(address, bytes) }
    }

    fn load(&self, source: &Source) -> Result<Program, Error> {
        let cubin = self.nvrtc.compile(&self.arch, source)?;
        let Source::Text { name, text, threads, .. } = source else {
            return Err(Error::new(ErrorKind::Build, "a card runs kernel text, not native programs"));
        };
        let missing = || Error::new(ErrorKind::Build, format!("the text has no kernel {name}"));
        let program = CudaProgram {
            owner: self.owner,
            function: Function::load(&self.context, &cubin.bytes, name)?,
            resources: cubin.kernel(name).ok_or_else(missing)?.clone(),
            threads: *threads,
            arguments: dialect::arguments(text, name).ok_or_else(missing)?,
            together: dialect::is_grid(text, name),
        };
        Ok(Program { name: name.as_str().into(), inner: Arc::new(program) })
    }

    fn record(&self, launches: &[Launch]) -> Result<Sequence, Error> {
        let checked: Result<Vec<Recorded>, Error> =
            launches.iter().enumerate().map(|(at, launch)| self.checked(at, launch)).collect();
        let inner = Arc::new(CudaSequence { owner: self.owner, launches: checked? });
        Ok(Sequence { inner, launches: launches.len() })
    }

    fn submit(&self, sequence: &Sequence) -> Result<Token, Error> {
        let recorded = self.recorded(sequence)?;
        let mut work = self.work();
        self.context.current()?;
        recorded.launches.iter().try_for_each(|launch| self.start(launch))?;
        work.issued += 1;
        let token = work.issued;
        let event = Event::now(&self.stream)?;
        work.ends.push_back(End { token, event, _sequence: recorded });
        Ok(Token(token))
    }

    /// A kernel that never ends keeps the card: it is for the caller's process to end.
    fn wait(&self, token: Token, deadline: Duration) -> Result<(), Error> {
        let start = Instant::now();
        loop {
            let mut work = self.work();
            if token.0 > work.issued {
                let message = format!("token {} is not among the {} submitted", token.0, work.issued);
                return Err(Error::new(ErrorKind::BadLaunch, message));
            }
            while let Some(end) = work.ends.front().filter(|end| end.token <= token.0) {
                if !end.event.reached()? {
                    break;
                }
                work.ends.pop_front();
            }
            if work.ends.front().is_none_or(|end| end.token > token.0) {
                return Ok(());
            }
            drop(work);
            let waited = start.elapsed();
            if waited > deadline {
                return Err(Error::new(ErrorKind::Timeout, format!("no end within {deadline:?}")));
            }
            // Short work ends while this spins; long work leaves the processor to others.
            if waited > Duration::from_millis(1) {
                std::thread::sleep(Duration::from_micros(50));
            }
        }
    }

    fn time(&self, sequences: &[Sequence], reps: u32) -> Result<Timing, Error> {
        if sequences.is_empty() || reps == 0 {
            let message = format!("timing {} sequences {reps} times", sequences.len());
            return Err(Error::new(ErrorKind::BadLaunch, message));
        }
        let recorded = sequences.iter().map(|s| self.recorded(s)).collect::<Result<Vec<_>, Error>>()?;
        let _work = self.work();
        self.stream.drain("time")?;
        let start = Event::now(&self.stream)?;
        for sequence in recorded.iter().cycle().take(reps as usize) {
            sequence.launches.iter().try_for_each(|launch| self.start(launch))?;
        }
        let end = Event::now(&self.stream)?;
        self.stream.drain("time")?;
        Ok(Timing { ns: end.ns_since(&start)? / f64::from(reps), reps })
    }
}

#[cfg(test)]
mod tests {
    use super::{Cuda, CudaOptions, padded};

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
