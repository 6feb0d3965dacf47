//! NVRTC, found at run time: kernel text to device code for an architecture, with what the assembler says of each kernel.
//!
//! No card and no driver are needed, and no header of the toolkit.
//! The library is opened by name, any version: the ten functions used here have not changed since CUDA 11.2.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fs;
use std::path::{Path, PathBuf};

use libloading::Library;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::library::{self, Wanted};
use crate::backend::Source;
use crate::dialect;
use crate::error::{Error, ErrorKind};

/// Where to look.
const WANTED: Wanted = Wanted {
    what: "NVRTC",
    place: "PLANISH_NVRTC",
    names: &["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"],
    folders: &["lib64", "nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib"],
    wheel: "nvidia-cuda-nvrtc-cu12",
};
/// The library's code for errors in the text.
const ERROR_COMPILATION: c_int = 6;

/// What the assembler says of one kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resources {
    /// Entry point.
    pub entry: String,
    /// Registers of a thread.
    pub registers: u32,
    /// Static shared bytes of a group.
    pub shared_bytes: u32,
    /// Bytes of a thread that moved from registers to memory, stores and loads together.
    pub spill_bytes: u32,
    /// Bytes of local memory of a thread, spilled or indexed.
    pub stack_bytes: u32,
}

/// Device code.
#[derive(Clone, Debug)]
pub struct Cubin {
    /// What a driver loads.
    pub bytes: Vec<u8>,
    /// Every kernel in it.
    pub kernels: Vec<Resources>,
}

impl Cubin {
    /// What the assembler says of entry point `name`.
    pub fn kernel(&self, name: &str) -> Option<&Resources> {
        self.kernels.iter().find(|k| k.entry == name)
    }
}

type Handle = *mut c_void;
type SizeOf = unsafe extern "C" fn(Handle, *mut usize) -> c_int;
type Get = unsafe extern "C" fn(Handle, *mut c_char) -> c_int;

/// The functions of the library.
struct Api {
    version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int,
    error_text: unsafe extern "C" fn(c_int) -> *const c_char,
    create: unsafe extern "C" fn(
        *mut Handle,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> c_int,
    destroy: unsafe extern "C" fn(*mut Handle) -> c_int,
    compile: unsafe extern "C" fn(Handle, c_int, *const *const c_char) -> c_int,
    log_size: SizeOf,
    log: Get,
    cubin_size: SizeOf,
    cubin: Get,
}

impl Api {
    fn of(library: &'static Library) -> Result<Api, libloading::Error> {
        // SAFETY: these are the types that the library's header declares; the library is never closed.
        unsafe {
            Ok(Api {
                version: *library.get(b"nvrtcVersion")?,
                error_text: *library.get(b"nvrtcGetErrorString")?,
                create: *library.get(b"nvrtcCreateProgram")?,
                destroy: *library.get(b"nvrtcDestroyProgram")?,
                compile: *library.get(b"nvrtcCompileProgram")?,
                log_size: *library.get(b"nvrtcGetProgramLogSize")?,
                log: *library.get(b"nvrtcGetProgramLog")?,
                cubin_size: *library.get(b"nvrtcGetCUBINSize")?,
                cubin: *library.get(b"nvrtcGetCUBIN")?,
            })
        }
    }
}

/// A library of NVRTC and where its results are kept.
pub struct Nvrtc {
    api: Api,
    version: (i32, i32),
    library: PathBuf,
    cache: PathBuf,
}

impl Nvrtc {
    /// Opens the library that `PLANISH_NVRTC` names, else one that the loader knows, else the one of the active virtual
    /// environment or of the toolkit; an error that says where it looked when there is none.
    /// Results are kept in folder `cache`.
    pub fn find(cache: PathBuf) -> Result<Nvrtc, Error> {
        WANTED.find(|path| Nvrtc::open(path, &cache))
    }

    fn open(path: &Path, cache: &Path) -> Result<Nvrtc, libloading::Error> {
        // SAFETY: NVRTC may be opened at any time and has no requirements of its loader.
        let api = Api::of(unsafe { library::open(path) }?)?;
        let (mut major, mut minor) = (0, 0);
        // SAFETY: two places for two numbers.
        unsafe { (api.version)(&raw mut major, &raw mut minor) };
        Ok(Nvrtc { api, version: (major, minor), library: path.to_owned(), cache: cache.to_owned() })
    }

    /// Major and minor version.
    pub fn version(&self) -> (i32, i32) {
        self.version
    }

    /// Where the library was found.
    pub fn library(&self) -> &Path {
        &self.library
    }

    /// Device code of `source` for `arch`, such as `sm_90a`; from the cache where the same was compiled before.
    pub fn compile(&self, arch: &str, source: &Source) -> Result<Cubin, Error> {
        let Source::Text { name, text, constants, threads } = source else {
            return Err(Error::new(ErrorKind::Build, "NVRTC compiles kernel text and nothing else"));
        };
        if let Some(idle) = constants.keys().find(|key| !text.contains(key.trim_start_matches("SPEC_"))) {
            let message = format!("{name}: constant {idle} does not reach the kernel");
            return Err(Error::new(ErrorKind::Build, message));
        }
        let mut options = vec![format!("-arch={arch}"), "-std=c++17".into(), "--ptxas-options=-v".into()];
        // Not every kernel uses every function of the prelude.
        options.push("-diag-suppress=177".into());
        // A result out of NVRTC's own cache comes without the assembler's report.
        if self.version >= (12, 9) {
            options.push("--no-cache".into());
        }
        options.extend(dialect::cuda_options(constants, *threads));
        let whole = dialect::cuda(text);
        let kept = self.cache.join(format!("{}.cubin", self.hash(&whole, &options)));
        if let Some(cubin) = load(&kept) {
            return Ok(cubin);
        }
        // What did not compile once does not compile the next time, whatever shape or run asks for it.
        let refused = kept.with_extension("refused");
        if let Ok(log) = fs::read_to_string(&refused) {
            return Err(failed(name, &log));
        }
        match self.build(name, &whole, &options)? {
            Ok(cubin) => {
                store(&kept, &cubin);
                Ok(cubin)
            }
            Err(log) => {
                keep(&refused, log.as_bytes());
                Err(failed(name, &log))
            }
        }
    }

    fn hash(&self, whole: &str, options: &[String]) -> String {
        let mut hash = Sha256::new();
        for part in [whole, &options.join("\n"), &format!("{:?}", self.version)] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part.as_bytes());
        }
        hash.finalize().iter().take(16).map(|b| format!("{b:02x}")).collect()
    }

    /// Runs the compiler; inside are the errors that it found in the text, outside what kept it from its work.
    fn build(&self, name: &str, whole: &str, options: &[String]) -> Result<Result<Cubin, String>, Error> {
        let plain = |text: &str| CString::new(text).map_err(|_| failed(name, "a zero byte in the text"));
        let (whole, file) = (plain(whole)?, plain("cuda.h")?);
        let options = options.iter().map(|o| plain(o)).collect::<Result<Vec<CString>, Error>>()?;
        let pointers: Vec<*const c_char> = options.iter().map(|o| o.as_ptr()).collect();
        let program = Program::new(self, name, &whole, &file)?;
        // SAFETY: the options live until the call returns, and their number is given.
        let code = unsafe { (self.api.compile)(program.handle, pointers.len() as c_int, pointers.as_ptr()) };
        let log = program.bytes(self.api.log_size, self.api.log)?;
        let log = String::from_utf8_lossy(&log);
        if code != 0 {
            let said: Vec<&str> = log.lines().filter(|l| l.contains("error")).take(8).collect();
            if code == ERROR_COMPILATION && !said.is_empty() {
                return Ok(Err(said.join("\n")));
            }
            return Err(failed(name, &if said.is_empty() { self.text_of(code) } else { said.join("\n") }));
        }
        let bytes = program.bytes(self.api.cubin_size, self.api.cubin)?;
        Ok(Ok(Cubin { bytes, kernels: resources(&log) }))
    }

    fn text_of(&self, code: c_int) -> String {
        // SAFETY: the library answers any number with a constant text.
        unsafe { CStr::from_ptr((self.api.error_text)(code)) }.to_string_lossy().into_owned()
    }
}

/// A program of the library, destroyed when dropped.
struct Program<'a> {
    nvrtc: &'a Nvrtc,
    name: &'a str,
    handle: Handle,
}

impl<'a> Program<'a> {
    fn new(nvrtc: &'a Nvrtc, name: &'a str, text: &CStr, file: &CStr) -> Result<Program<'a>, Error> {
        let mut program = Program { nvrtc, name, handle: std::ptr::null_mut() };
        let (none, handle) = (std::ptr::null(), &raw mut program.handle);
        // SAFETY: both texts end with a zero byte and are copied; there are no headers.
        program.checked(unsafe { (nvrtc.api.create)(handle, text.as_ptr(), file.as_ptr(), 0, none, none) })?;
        Ok(program)
    }

    fn checked(&self, code: c_int) -> Result<(), Error> {
        if code == 0 { Ok(()) } else { Err(failed(self.name, &self.nvrtc.text_of(code))) }
    }

    fn bytes(&self, size: SizeOf, get: Get) -> Result<Vec<u8>, Error> {
        let mut n = 0;
        // SAFETY: a live program, and a place for one size.
        self.checked(unsafe { size(self.handle, &raw mut n) })?;
        let mut bytes = vec![0u8; n];
        // SAFETY: as many bytes as the library asked for.
        self.checked(unsafe { get(self.handle, bytes.as_mut_ptr().cast()) })?;
        Ok(bytes)
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        // SAFETY: made by `create`, or null, which the library refuses.
        unsafe { (self.nvrtc.api.destroy)(&raw mut self.handle) };
    }
}

fn failed(name: &str, why: &str) -> Error {
    Error::new(ErrorKind::Build, format!("{name} does not compile: {why}"))
}

/// The assembler's report: a kernel's name, then its memory, then its registers.
fn resources(log: &str) -> Vec<Resources> {
    let mut kernels: Vec<Resources> = Vec::new();
    for line in log.lines() {
        if let Some(rest) = line.split("Compiling entry function '").nth(1) {
            let entry = rest.split('\'').next().unwrap_or_default().to_owned();
            kernels.push(Resources { entry, ..Resources::default() });
        }
        let Some(kernel) = kernels.last_mut() else { continue };
        kernel.registers = before(line, " registers").unwrap_or(kernel.registers);
        kernel.shared_bytes = before(line, " bytes smem").unwrap_or(kernel.shared_bytes);
        kernel.stack_bytes = before(line, " bytes stack frame").unwrap_or(kernel.stack_bytes);
        kernel.spill_bytes += before(line, " bytes spill stores").unwrap_or(0);
        kernel.spill_bytes += before(line, " bytes spill loads").unwrap_or(0);
    }
    kernels
}

/// The number that stands before `unit` in `line`.
fn before(line: &str, unit: &str) -> Option<u32> {
    line[..line.find(unit)?].rsplit(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// A kept result: one line with what the assembler said, then the code. Anything wrong with it is a miss.
fn load(path: &Path) -> Option<Cubin> {
    let whole = fs::read(path).ok()?;
    let end = whole.iter().position(|b| *b == b'\n')?;
    let (size, kernels): (usize, Vec<Resources>) = serde_json::from_slice(&whole[..end]).ok()?;
    let bytes = whole[end + 1..].to_vec();
    (bytes.len() == size).then_some(Cubin { bytes, kernels })
}

/// Keeps a result; where that fails, the next run compiles again.
fn store(path: &Path, cubin: &Cubin) {
    let Ok(mut whole) = serde_json::to_vec(&(cubin.bytes.len(), &cubin.kernels)) else { return };
    whole.push(b'\n');
    whole.extend(&cubin.bytes);
    keep(path, &whole);
}

/// Writes a file of the cache, whole or not at all.
fn keep(path: &Path, whole: &[u8]) {
    let part = path.with_extension(format!("part{}{:?}", std::process::id(), std::thread::current().id()));
    if let Some(folder) = path.parent() {
        let _ = fs::create_dir_all(folder);
    }
    let _ = fs::write(&part, whole).and_then(|()| fs::rename(&part, path));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_assemblers_report_is_read() {
        let log = "ptxas info    : 33 bytes gmem\n\
            ptxas info    : Compiling entry function 'first' for 'sm_90a'\n\
            ptxas info    : Function properties for first\n\
            ptxas         .     16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads\n\
            ptxas info    : Used 14 registers, used 1 barriers\n\
            ptxas info    : Compiling entry function 'second' for 'sm_90a'\n\
            \x20   0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n\
            ptxas info    : Used 255 registers, used 1 barriers, 32 bytes cumulative stack size, 8192 bytes smem\n";
        let kernel = |entry: &str, registers, shared_bytes, spill_bytes, stack_bytes| Resources {
            entry: entry.to_owned(),
            registers,
            shared_bytes,
            spill_bytes,
            stack_bytes,
        };
        assert_eq!(resources(log), [kernel("first", 14, 0, 20, 16), kernel("second", 255, 8192, 0, 0)]);
    }

    #[test]
    fn kept_code_comes_back_whole_or_not_at_all() {
        let folder = std::env::temp_dir().join(format!("planish-nvrtc-{}", std::process::id()));
        let path = folder.join("a.cubin");
        let kernels = vec![Resources { entry: "k".into(), registers: 7, ..Resources::default() }];
        let cubin = Cubin { bytes: vec![1, b'\n', 3], kernels };
        store(&path, &cubin);
        let back = load(&path).expect("stored");
        assert_eq!((back.bytes, back.kernels), (cubin.bytes, cubin.kernels));
        let whole = fs::read(&path).expect("readable");
        fs::write(&path, &whole[..whole.len() - 1]).expect("written");
        assert!(load(&path).is_none(), "a cut file is a miss");
        fs::remove_dir_all(folder).expect("removed");
    }
}
