//! The host executor: kernel text of the dialect compiled as C++ and run on this CPU, every thread of a group a fiber.
//!
//! It exists to prove kernels right, not to run them fast.
//! A program is a process of its own, so a kernel that crashes, hangs or trips a sanitizer is an error of its launch.
//! Building planish needs no C++ compiler; making this backend does, and says so where there is none.

mod compile;
mod runner;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use crate::backend::{
    Backend, Identity, Launch, Limits, Program, Sequence, Source, Timing, Token, foreign, without_views,
};
use crate::cpu::pages::Region;
use crate::cpu::{copy_in, copy_out, new_owner};
use crate::error::{Error, ErrorKind};
use crate::memory::{Buffer, HostBytes, Init, Slice};
use compile::Compiler;
use runner::{Request, Runner};

/// What watches the kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Bounds, uninitialised reads and races of threadgroup memory, divergence.
    Checked,
    /// The address and undefined-behaviour sanitizers, on plain pointers.
    Address,
    /// The thread sanitizer, on plain pointers: races on device memory too, within and between groups.
    Thread,
}

impl Mode {
    fn flags(self) -> &'static [&'static str] {
        match self {
            Mode::Checked => &["-O1"],
            Mode::Address => &["-O1", "-DEXEC_RAW", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
            Mode::Thread => &["-O1", "-DEXEC_RAW", "-fsanitize=thread"],
        }
    }

    /// The executor itself is not instrumented, it only tells the sanitizer of its fibers.
    fn executor_flags(self) -> &'static [&'static str] {
        match self {
            Mode::Checked => &["-O2"],
            Mode::Address => &["-O1", "-DEXEC_RAW", "-DEXEC_ADDRESS"],
            Mode::Thread => &["-O1", "-DEXEC_RAW", "-DEXEC_THREAD"],
        }
    }

    fn environment(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Mode::Checked => &[],
            Mode::Address => {
                &[("ASAN_OPTIONS", "detect_leaks=0:abort_on_error=0"), ("UBSAN_OPTIONS", "print_stacktrace=0")]
            }
            Mode::Thread => &[("TSAN_OPTIONS", "halt_on_error=1:report_signal_unsafe=0")],
        }
    }

    /// Name for reports.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Checked => "checked",
            Mode::Address => "address sanitizer",
            Mode::Thread => "thread sanitizer",
        }
    }
}

/// How to set the host executor up.
#[derive(Clone, Debug)]
pub struct HostOptions {
    /// Folder that keeps compiled programs between runs.
    pub cache: PathBuf,
    /// What watches the kernels.
    pub mode: Mode,
}

/// Most threads of a group, and most bytes of threadgroup memory: the least that any GPU backend gives.
const MAX_THREADS: u32 = 1024;
const SHARED_BYTES: u32 = 32 << 10;
/// It holds any number of groups; a grid that is made for the processors of a machine shall have few.
const PROCESSORS: u32 = 4;
/// A launch that takes longer hangs.
const LAUNCH_DEADLINE: Duration = Duration::from_secs(120);

/// This CPU as the executor of GPU kernels.
pub struct Host {
    owner: u64,
    limits: Limits,
    identity: Identity,
    compiler: Compiler,
    options: HostOptions,
    deadline: Duration,
    seed: AtomicU32,
    submitted: AtomicU64,
    /// The processes of executables that some program still holds.
    runners: Mutex<BTreeMap<PathBuf, Weak<Mutex<Option<Runner>>>>>,
}

struct HostProgram {
    owner: u64,
    executable: PathBuf,
    specs: Vec<(String, u32)>,
    /// One process for all entry points and constants of an executable.
    runner: Arc<Mutex<Option<Runner>>>,
}

struct HostSequence {
    owner: u64,
    launches: Vec<Launch>,
}

impl Host {
    /// Finds the compiler; an error where there is none.
    pub fn new(options: HostOptions) -> Result<Host, Error> {
        let compiler = Compiler::find(options.cache.clone(), options.mode, None)?;
        Ok(Host::of(options, compiler))
    }

    /// The same with this compiler.
    pub fn with_compiler(options: HostOptions, compiler: &str) -> Result<Host, Error> {
        let compiler = Compiler::find(options.cache.clone(), options.mode, Some(compiler.to_owned()))?;
        Ok(Host::of(options, compiler))
    }

    fn of(options: HostOptions, compiler: Compiler) -> Host {
        let fact = |k: &str, v: &str| (k.to_owned(), v.to_owned());
        let identity = Identity {
            silicon: BTreeMap::from([fact("backend", "host")]),
            toolchain: BTreeMap::from([fact("compiler", &compiler.version), fact("mode", options.mode.name())]),
            label: format!("host executor ({})", options.mode.name()),
        };
        let limits = Limits {
            backend: "host".into(),
            max_threads: MAX_THREADS,
            processors: PROCESSORS,
            shared_bytes: SHARED_BYTES,
            dynamic_shared_bytes: SHARED_BYTES,
            l1_bytes: 32 << 10,
            l2_bytes: 1 << 20,
            llc_bytes: 1 << 20,
            read_gb_s: None,
        };
        Host {
            owner: new_owner(),
            limits,
            identity,
            compiler,
            options,
            deadline: LAUNCH_DEADLINE,
            seed: AtomicU32::new(0),
            submitted: AtomicU64::new(0),
            runners: Mutex::default(),
        }
    }

    /// The same, with launches that take longer than `deadline` ended.
    pub fn with_deadline(mut self, deadline: Duration) -> Host {
        self.deadline = deadline;
        self
    }

    /// The compiler in use.
    pub fn compiler(&self) -> &str {
        &self.compiler.version
    }

    fn program<'a>(&self, launch: &'a Launch) -> Result<&'a HostProgram, Error> {
        let program = launch.program.inner.downcast_ref::<HostProgram>().filter(|p| p.owner == self.owner);
        program.ok_or_else(|| foreign("the program"))
    }

    /// The place of the process of `executable`, shared by all programs of it that live.
    fn runner(&self, executable: &Path) -> Arc<Mutex<Option<Runner>>> {
        let mut runners = self.runners.lock().unwrap_or_else(PoisonError::into_inner);
        runners.retain(|_, runner| runner.strong_count() > 0);
        if let Some(runner) = runners.get(executable).and_then(Weak::upgrade) {
            return runner;
        }
        let runner = Arc::new(Mutex::new(None));
        runners.insert(executable.to_owned(), Arc::downgrade(&runner));
        runner
    }

    fn run(&self, launch: &Launch) -> Result<(), Error> {
        let program = self.program(launch)?;
        let pieces = Pieces::of(self, launch)?;
        let mut runner = program.runner.lock().unwrap_or_else(PoisonError::into_inner);
        if runner.is_none() {
            *runner = Some(Runner::start(&program.executable, &self.options.cache, self.options.mode.environment())?);
        }
        let request = Request {
            kernel: &launch.program.name,
            groups: launch.tasks,
            threads: launch.threads,
            dynamic_bytes: launch.scratch_bytes,
            // Every launch starts its threads in another order, the first one in the natural order.
            seed: self.seed.fetch_add(1, Ordering::Relaxed),
            specs: &program.specs,
            blocks: &pieces.blocks,
            args: &pieces.args,
        };
        let answer = runner.as_mut().expect("just started").launch(&request, self.deadline);
        if answer.as_ref().is_err_and(|e| e.kind() != ErrorKind::BadLaunch) {
            *runner = None;
        }
        for (block, bytes) in answer? {
            if let Some(slice) = pieces.slices.get(block as usize) {
                copy_in(self.owner, slice, &bytes)?;
            }
        }
        Ok(())
    }
}

/// The memory of a launch as distinct pieces: slices that overlap are one piece, so that aliases stay aliases.
struct Pieces {
    slices: Vec<Slice>,
    blocks: Vec<Vec<u8>>,
    args: Vec<(u32, u64, u64)>,
}

impl Pieces {
    fn of(host: &Host, launch: &Launch) -> Result<Pieces, Error> {
        let mut slices: Vec<Slice> = Vec::new();
        for arg in &launch.args {
            let mut merged = arg.clone();
            slices.retain(|s| {
                let same = Arc::ptr_eq(&s.buffer.0, &merged.buffer.0);
                let apart = s.offset + s.len <= merged.offset || merged.offset + merged.len <= s.offset;
                if !same || apart {
                    return true;
                }
                let end = (s.offset + s.len).max(merged.offset + merged.len);
                merged.offset = merged.offset.min(s.offset);
                merged.len = end - merged.offset;
                false
            });
            slices.push(merged);
        }
        let mut blocks = Vec::new();
        for slice in &slices {
            let mut bytes = vec![0; slice.len];
            copy_out(host.owner, slice, &mut bytes)?;
            blocks.push(bytes);
        }
        let find = |arg: &Slice| {
            let holds = |s: &Slice| {
                Arc::ptr_eq(&s.buffer.0, &arg.buffer.0)
                    && s.offset <= arg.offset
                    && arg.offset + arg.len <= s.offset + s.len
            };
            let at = slices.iter().position(holds).expect("every argument lies in a piece");
            (at as u32, (arg.offset - slices[at].offset) as u64, arg.len as u64)
        };
        let mut args: Vec<_> = launch.args.iter().map(find).collect();
        let params = launch.params.bytes();
        args.push((blocks.len() as u32, 0, params.len() as u64));
        blocks.push(params.to_vec());
        Ok(Pieces { slices, blocks, args })
    }
}

impl Backend for Host {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn alloc(&self, bytes: usize, init: Init) -> Result<Buffer, Error> {
        Ok(Buffer(Arc::new(Region::new(self.owner, bytes, init)?)))
    }

    fn adopt(&self, bytes: HostBytes, range: Range<usize>) -> Result<Buffer, Error> {
        let whole: &[u8] = (*bytes).as_ref();
        let Some(part) = whole.get(range.clone()) else {
            let message = format!("bytes {range:?} of {}", whole.len());
            return Err(Error::new(ErrorKind::BadLaunch, message));
        };
        let buffer = self.alloc(part.len(), Init::Zero)?;
        self.write(&buffer.all(), part)?;
        Ok(buffer)
    }

    fn write(&self, to: &Slice, bytes: &[u8]) -> Result<(), Error> {
        copy_in(self.owner, to, bytes)
    }

    fn read(&self, from: &Slice, bytes: &mut [u8]) -> Result<(), Error> {
        copy_out(self.owner, from, bytes)
    }

    fn load(&self, source: &Source) -> Result<Program, Error> {
        let Source::Text { name, text, constants, .. } = source else {
            return Err(Error::new(ErrorKind::Build, "the host executor runs kernel text and nothing else"));
        };
        let mut shapes = BTreeMap::new();
        let mut specs = Vec::new();
        for (key, value) in constants {
            match key.strip_prefix("SPEC_") {
                Some(spec) => {
                    let word = u32::try_from(*value).map_err(|_| {
                        Error::new(ErrorKind::Build, format!("{name}: constant {key}={value} is not a 32-bit count"))
                    })?;
                    specs.push((spec.to_owned(), word));
                }
                None if !text.contains(key.as_str()) => {
                    let message = format!("{name}: constant {key} does not reach the kernel");
                    return Err(Error::new(ErrorKind::Build, message));
                }
                None => drop(shapes.insert(key.clone(), *value)),
            }
        }
        let executable = self.compiler.executable(name, text, &shapes)?;
        let runner = self.runner(&executable);
        let program = HostProgram { owner: self.owner, executable, specs, runner };
        Ok(Program { name: name.as_str().into(), inner: Arc::new(program) })
    }

    fn record(&self, launches: &[Launch]) -> Result<Sequence, Error> {
        for launch in launches {
            self.program(launch)?;
            without_views(launch)?;
            if launch.tasks == 0 || launch.threads == 0 || launch.threads > MAX_THREADS || launch.threads % 32 != 0 {
                let message = format!("{}: {} groups of {} threads", launch.program.name, launch.tasks, launch.threads);
                return Err(Error::new(ErrorKind::BadLaunch, message));
            }
        }
        let inner = Arc::new(HostSequence { owner: self.owner, launches: launches.to_vec() });
        Ok(Sequence { inner, launches: launches.len() })
    }

    /// Runs to the end: this device is the calling thread.
    fn submit(&self, sequence: &Sequence) -> Result<Token, Error> {
        let recorded = sequence.inner.downcast_ref::<HostSequence>().filter(|s| s.owner == self.owner);
        for launch in &recorded.ok_or_else(|| foreign("the sequence"))?.launches {
            self.run(launch)?;
        }
        Ok(Token(self.submitted.fetch_add(1, Ordering::Relaxed)))
    }

    fn wait(&self, _: Token, _: Duration) -> Result<(), Error> {
        Ok(())
    }

    fn time(&self, sequences: &[Sequence], reps: u32) -> Result<Timing, Error> {
        let start = Instant::now();
        for sequence in sequences.iter().cycle().take(reps as usize) {
            self.submit(sequence)?;
        }
        Ok(Timing { ns: start.elapsed().as_nanos() as f64 / f64::from(reps.max(1)), reps })
    }
}
