//! What the driver gives, owned: a context, memory, loaded code, a stream and events; each is released when dropped.

use std::ffi::{CStr, CString, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{self, CUdevice_attribute as Attribute, CUresult};

use crate::error::{Error, ErrorKind};
use crate::memory::{Init, Memory};

/// The error for a refusal of the driver while it did `what`.
pub(super) fn refused(what: &str, e: DriverError) -> Error {
    let kind = match e.0 {
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => ErrorKind::OutOfMemory,
        CUresult::CUDA_ERROR_ILLEGAL_ADDRESS
        | CUresult::CUDA_ERROR_LAUNCH_FAILED
        | CUresult::CUDA_ERROR_LAUNCH_TIMEOUT
        | CUresult::CUDA_ERROR_ASSERT
        | CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR
        | CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION
        | CUresult::CUDA_ERROR_MISALIGNED_ADDRESS
        | CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE
        | CUresult::CUDA_ERROR_INVALID_PC
        | CUresult::CUDA_ERROR_ECC_UNCORRECTABLE => ErrorKind::Poisoned,
        CUresult::CUDA_ERROR_NO_DEVICE | CUresult::CUDA_ERROR_INVALID_DEVICE | CUresult::CUDA_ERROR_NOT_INITIALIZED => {
            ErrorKind::Unavailable
        }
        _ => ErrorKind::BadLaunch,
    };
    let text = |t: Result<&CStr, DriverError>| t.map_or("unknown".to_owned(), |t| t.to_string_lossy().into_owned());
    Error::new(kind, format!("{what}: {} ({})", text(e.error_string()), text(e.error_name())))
}

/// A card's primary context.
pub(super) struct Context {
    device: sys::CUdevice,
    handle: sys::CUcontext,
}

// SAFETY: the driver's handles may be used from any thread; `current` makes the context the calling thread's.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// The context of card number `ordinal`; an error where there is no driver or no such card.
    pub fn new(ordinal: u32) -> Result<Context, Error> {
        let missing = |why: &str| Error::new(ErrorKind::Unavailable, format!("no NVIDIA card: {why}"));
        // SAFETY: only looks for the library; every other call would panic without it.
        if !unsafe { sys::is_culib_present() } {
            return Err(missing("the driver's library is not here"));
        }
        let absent = |e: DriverError| missing(&refused("the driver", e).to_string());
        result::init().map_err(absent)?;
        let count = result::device::get_count().map_err(absent)?;
        if i64::from(ordinal) >= i64::from(count) {
            return Err(missing(&format!("card {ordinal} of {count}")));
        }
        let device = result::device::get(ordinal as i32).map_err(absent)?;
        // SAFETY: the device was just returned by the driver.
        let handle = unsafe { result::primary_ctx::retain(device) }.map_err(absent)?;
        let context = Context { device, handle };
        context.current()?;
        Ok(context)
    }

    /// Makes this the context of the calling thread.
    pub fn current(&self) -> Result<(), Error> {
        // SAFETY: the handle lives as long as `self`.
        unsafe { result::ctx::set_current(self.handle) }.map_err(|e| refused("the context", e))
    }

    /// A fact of the card; 0 where the driver does not know it.
    pub fn attribute(&self, which: Attribute) -> u64 {
        // SAFETY: the device was returned by the driver.
        unsafe { result::device::get_attribute(self.device, which) }.map_or(0, |v| v.max(0) as u64)
    }

    /// Marketing name.
    pub fn name(&self) -> String {
        result::device::get_name(self.device).unwrap_or_default()
    }

    /// Bytes of the card's memory.
    pub fn memory_bytes(&self) -> u64 {
        // SAFETY: the device was returned by the driver.
        unsafe { result::device::total_mem(self.device) }.map_or(0, |n| n as u64)
    }

    /// The driver's version as it tells it, such as 13000.
    pub fn driver_version() -> i32 {
        let mut version = 0;
        // SAFETY: a place for one number.
        unsafe { sys::cuDriverGetVersion(&raw mut version) };
        version
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained in `new`, released once.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}

/// Memory of a card.
pub(super) struct Region {
    context: Arc<Context>,
    owner: u64,
    pub pointer: sys::CUdeviceptr,
    len: usize,
}

impl Region {
    /// `len` bytes that hold `init`, on `stream`.
    pub fn new(context: &Arc<Context>, owner: u64, len: usize, init: Init, stream: &Stream) -> Result<Region, Error> {
        context.current()?;
        let failed = |e| refused(&format!("{len} bytes of device memory"), e);
        // SAFETY: the context is current; the driver refuses 0 bytes.
        let pointer = unsafe { result::malloc_sync(len.max(1)) }.map_err(failed)?;
        let region = Region { context: context.clone(), owner, pointer, len };
        let byte = match init {
            Init::Zero => 0,
            Init::Fill(byte) => byte,
        };
        // SAFETY: `len` bytes were just allocated.
        unsafe { result::memset_d8_async(pointer, byte, len, stream.handle) }.map_err(failed)?;
        Ok(region)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if self.context.current().is_ok() {
            // SAFETY: allocated in `new`, freed once; the driver waits for work that uses it.
            let _ = unsafe { result::free_sync(self.pointer) };
        }
    }
}

impl Memory for Region {
    fn len(&self) -> usize {
        self.len
    }
    fn owner(&self) -> u64 {
        self.owner
    }
    fn host(&self) -> Option<NonNull<u8>> {
        None
    }
    fn writable(&self) -> bool {
        true
    }
    fn device(&self) -> Option<u64> {
        Some(self.pointer)
    }
}

/// Loaded device code.
pub(super) struct Module {
    context: Arc<Context>,
    handle: sys::CUmodule,
}

// SAFETY: as for `Context`.
unsafe impl Send for Module {}
// SAFETY: as for `Context`.
unsafe impl Sync for Module {}

/// An entry point of a module.
pub(super) struct Function {
    _module: Module,
    pub handle: sys::CUfunction,
}

// SAFETY: as for `Context`; the module lives as long as the function.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

impl Function {
    /// Entry point `name` of device code `cubin`.
    pub fn load(context: &Arc<Context>, cubin: &[u8], name: &str) -> Result<Function, Error> {
        context.current()?;
        let failed = |e| refused(name, e);
        // SAFETY: a whole image in memory; the driver copies it.
        let handle = unsafe { result::module::load_data(cubin.as_ptr().cast()) }.map_err(failed)?;
        let module = Module { context: context.clone(), handle };
        let symbol = CString::new(name).map_err(|_| Error::new(ErrorKind::Build, format!("{name}: a zero byte")))?;
        // SAFETY: the module is loaded.
        let handle = unsafe { result::module::get_function(module.handle, symbol) }.map_err(failed)?;
        Ok(Function { _module: module, handle })
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if self.context.current().is_ok() {
            // SAFETY: loaded once, unloaded once; sequences that use it hold it.
            let _ = unsafe { result::module::unload(self.handle) };
        }
    }
}

/// The stream that all work of a backend goes through, in order.
pub(super) struct Stream {
    context: Arc<Context>,
    pub handle: sys::CUstream,
}

// SAFETY: as for `Context`.
unsafe impl Send for Stream {}
// SAFETY: as for `Context`.
unsafe impl Sync for Stream {}

impl Stream {
    /// A stream that does not wait for the default one.
    pub fn new(context: &Arc<Context>) -> Result<Stream, Error> {
        context.current()?;
        let handle =
            result::stream::create(result::stream::StreamKind::NonBlocking).map_err(|e| refused("stream", e))?;
        Ok(Stream { context: context.clone(), handle })
    }

    /// Waits for all work so far.
    pub fn drain(&self, what: &str) -> Result<(), Error> {
        self.context.current()?;
        // SAFETY: the stream lives.
        unsafe { result::stream::synchronize(self.handle) }.map_err(|e| refused(what, e))
    }

    /// Copies host bytes to device memory and waits.
    ///
    /// # Safety
    /// `to` must be the address of at least as many bytes of this context.
    pub unsafe fn copy_in(&self, to: sys::CUdeviceptr, bytes: &[u8]) -> Result<(), Error> {
        self.context.current()?;
        // SAFETY: the caller vouches for the target; the bytes live until the copy is over.
        unsafe { result::memcpy_htod_async(to, bytes, self.handle) }.map_err(|e| refused("write", e))?;
        self.drain("write")
    }

    /// Copies device memory to host bytes and waits.
    ///
    /// # Safety
    /// `from` must be the address of at least as many bytes of this context.
    pub unsafe fn copy_out(&self, from: sys::CUdeviceptr, bytes: &mut [u8]) -> Result<(), Error> {
        self.context.current()?;
        // SAFETY: the caller vouches for the source; the bytes live until the copy is over.
        unsafe { result::memcpy_dtoh_async(bytes, from, self.handle) }.map_err(|e| refused("read", e))?;
        self.drain("read")
    }

    /// Starts one kernel.
    ///
    /// # Safety
    /// `arguments` must point to one value for each of the kernel's parameters, of its size, and the addresses among
    /// them to memory of this context that lives until the kernel is over.
    pub unsafe fn launch(&self, what: &Grid<'_>, arguments: &mut [*mut c_void]) -> Result<(), Error> {
        let (grid, group) = ((what.groups, 1, 1), (what.threads, 1, 1));
        let (function, shared) = (what.function.handle, what.shared_bytes);
        // SAFETY: the function's module is loaded; the caller vouches for the arguments.
        let done = unsafe {
            if what.together {
                result::launch_cooperative_kernel(function, grid, group, shared, self.handle, arguments)
            } else {
                result::launch_kernel(function, grid, group, shared, self.handle, arguments)
            }
        };
        done.map_err(|e| refused(what.name, e))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.context.current().is_ok() {
            // SAFETY: created in `new`, destroyed once.
            let _ = unsafe { result::stream::destroy(self.handle) };
        }
    }
}

/// A grid of one kernel.
pub(super) struct Grid<'a> {
    pub name: &'a str,
    pub function: &'a Function,
    pub groups: u32,
    pub threads: u32,
    pub shared_bytes: u32,
    /// All groups are resident at once, as grid barriers need.
    pub together: bool,
}

/// A point in a stream, with its time.
pub(super) struct Event {
    context: Arc<Context>,
    handle: sys::CUevent,
}

// SAFETY: as for `Context`.
unsafe impl Send for Event {}
// SAFETY: as for `Context`.
unsafe impl Sync for Event {}

impl Event {
    /// The end of all work in `stream` so far.
    pub fn now(stream: &Stream) -> Result<Event, Error> {
        let context = stream.context.clone();
        context.current()?;
        let handle = result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT).map_err(|e| refused("event", e))?;
        let event = Event { context, handle };
        // SAFETY: both were made by the driver and live.
        unsafe { result::event::record(event.handle, stream.handle) }.map_err(|e| refused("event", e))?;
        Ok(event)
    }

    /// Whether it has been reached; an error of a kernel before it shows here.
    pub fn reached(&self) -> Result<bool, Error> {
        self.context.current()?;
        // SAFETY: the event was recorded.
        match unsafe { result::event::query(self.handle) } {
            Ok(()) => Ok(true),
            Err(e) if e.0 == CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            Err(e) => Err(refused("wait", e)),
        }
    }

    /// Nanoseconds from `start` to this, both reached.
    pub fn ns_since(&self, start: &Event) -> Result<f64, Error> {
        // SAFETY: both events were recorded in one stream.
        let ms = unsafe { result::event::elapsed(start.handle, self.handle) }.map_err(|e| refused("time", e))?;
        Ok(f64::from(ms) * 1e6)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.context.current().is_ok() {
            // SAFETY: created in `now`, destroyed once.
            let _ = unsafe { result::event::destroy(self.handle) };
        }
    }
}
