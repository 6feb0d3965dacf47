//! What the driver gives, owned: a context, memory, loaded code, a stream and events; each is released when dropped.

use std::ffi::{CStr, CString, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{self, CUdevice_attribute as Attribute, CUfunction_attribute as FunctionFact, CUresult};

use crate::backend::View;
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
        | CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED
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
    module: Module,
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
        Ok(Function { module, handle })
    }

    /// A fact that the driver knows of the code; 0 where it does not.
    pub fn attribute(&self, which: FunctionFact) -> u32 {
        // SAFETY: the module is loaded.
        let value = unsafe { result::function::get_function_attribute(self.handle, which) };
        value.map_or(0, |v| u32::try_from(v).unwrap_or(0))
    }

    /// Lets launches take up to `bytes` of dynamic shared memory; without this it is what any card has.
    pub fn allow_shared(&self, name: &str, bytes: u32) -> Result<(), Error> {
        let most = i32::try_from(bytes).unwrap_or(i32::MAX);
        let which = FunctionFact::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the module is loaded.
        unsafe { result::function::set_function_attribute(self.handle, which, most) }.map_err(|e| refused(name, e))
    }

    /// Groups of `threads` threads with `shared_bytes` dynamic shared bytes that one processor holds at once.
    pub fn resident(&self, threads: u32, shared_bytes: u32) -> Result<u32, Error> {
        self.module.context.current()?;
        let threads = i32::try_from(threads).unwrap_or(i32::MAX);
        let ask = result::occupancy::max_active_block_per_multiprocessor;
        // SAFETY: the module is loaded.
        let groups =
            unsafe { ask(self.handle, threads, shared_bytes as usize) }.map_err(|e| refused("residency", e))?;
        Ok(u32::try_from(groups).unwrap_or(0))
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
    pub context: Arc<Context>,
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

    /// Copies device memory to host bytes by way of `pinned`, piece by piece, and waits.
    ///
    /// # Safety
    /// `from` must be the address of at least as many bytes of this context.
    pub unsafe fn copy_out_by(
        &self,
        pinned: &mut Pinned,
        from: sys::CUdeviceptr,
        bytes: &mut [u8],
    ) -> Result<(), Error> {
        self.context.current()?;
        let mut from = from;
        for piece in bytes.chunks_mut(PINNED_BYTES) {
            let staged = &mut pinned.bytes()[..piece.len()];
            // SAFETY: the caller vouches for the source; the target lives until the copy is over.
            unsafe { result::memcpy_dtoh_async(staged, from, self.handle) }.map_err(|e| refused("read", e))?;
            self.drain("read")?;
            piece.copy_from_slice(staged);
            from += piece.len() as u64;
        }
        Ok(())
    }

    /// Starts one kernel; the context is current.
    ///
    /// # Safety
    /// The addresses among the arguments must be of memory of this context that lives until the kernel is over.
    pub unsafe fn launch(&self, name: &str, grid: &Grid) -> Result<(), Error> {
        let (f, groups, threads, shared) = (grid.function, grid.groups, grid.threads, grid.shared_bytes);
        let arguments = grid.arguments.pointers();
        // SAFETY: the grid keeps as many arguments as the kernel declares; the caller vouches for what they point to.
        let code = unsafe {
            if grid.together {
                sys::cuLaunchCooperativeKernel(f, groups, 1, 1, threads, 1, 1, shared, self.handle, arguments)
            } else {
                let none = std::ptr::null_mut();
                sys::cuLaunchKernel(f, groups, 1, 1, threads, 1, 1, shared, self.handle, arguments, none)
            }
        };
        code.result().map_err(|e| refused(name, e))
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

/// Bytes that are copied at a time by way of pinned memory.
pub(super) const PINNED_BYTES: usize = 64 << 10;

/// Host memory that the card reaches without help of the driver.
pub(super) struct Pinned {
    context: Arc<Context>,
    pointer: NonNull<u8>,
}

// SAFETY: plain memory with one owner.
unsafe impl Send for Pinned {}

impl Pinned {
    /// `PINNED_BYTES` bytes of zeros.
    pub fn new(context: &Arc<Context>) -> Result<Pinned, Error> {
        context.current()?;
        let failed = |e| refused(&format!("{PINNED_BYTES} bytes of pinned memory"), e);
        // SAFETY: the context is current.
        let pointer = unsafe { result::malloc_host(PINNED_BYTES, 0) }.map_err(failed)?;
        let pointer = NonNull::new(pointer.cast::<u8>()).expect("the driver gives memory or an error");
        // SAFETY: as many bytes were just allocated.
        unsafe { pointer.write_bytes(0, PINNED_BYTES) };
        Ok(Pinned { context: context.clone(), pointer })
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: allocated and written in `new`; the borrow is exclusive, and copies into it end before it does.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.as_ptr(), PINNED_BYTES) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if self.context.current().is_ok() {
            // SAFETY: allocated in `new`, freed once.
            let _ = unsafe { result::free_host(self.pointer.as_ptr().cast()) };
        }
    }
}

/// Arguments of a kernel as the driver takes them: a pointer to each value, made once.
pub(super) struct Arguments {
    pointers: Vec<*mut c_void>,
    _addresses: Vec<u64>,
    _params: Vec<u128>,
    _views: Vec<sys::CUtensorMap>,
}

// SAFETY: the pointers lead into the other fields, which are never changed.
unsafe impl Send for Arguments {}
// SAFETY: as above.
unsafe impl Sync for Arguments {}

impl Arguments {
    /// Addresses of slices, then the parameter block, then views.
    pub fn new(addresses: Vec<u64>, params: Vec<u128>, views: Vec<sys::CUtensorMap>) -> Arguments {
        let mut pointers: Vec<*mut c_void> =
            addresses.iter().map(|a| std::ptr::from_ref(a).cast_mut().cast()).collect();
        pointers.push(params.as_ptr().cast_mut().cast());
        pointers.extend(views.iter().map(|v| std::ptr::from_ref(v).cast_mut().cast::<c_void>()));
        Arguments { pointers, _addresses: addresses, _params: params, _views: views }
    }

    /// As the driver takes them; it reads them only.
    pub fn pointers(&self) -> *mut *mut c_void {
        self.pointers.as_ptr().cast_mut()
    }
}

/// A view of memory at `address` as the copy engine takes it; the caller has checked that it lies inside.
pub(super) fn encode(view: &View, address: u64) -> Result<sys::CUtensorMap, Error> {
    use sys::{CUtensorMapDataType as Type, CUtensorMapSwizzle as Swizzle};
    let refuse = |what: &str| Error::new(ErrorKind::BadLaunch, format!("{view:?} {what}"));
    let kind = match view.element {
        1 => Type::CU_TENSOR_MAP_DATA_TYPE_UINT8,
        2 => Type::CU_TENSOR_MAP_DATA_TYPE_UINT16,
        4 => Type::CU_TENSOR_MAP_DATA_TYPE_UINT32,
        _ => return Err(refuse("has elements of another size than 1, 2 or 4 bytes")),
    };
    let swizzle = if view.swizzled { Swizzle::CU_TENSOR_MAP_SWIZZLE_128B } else { Swizzle::CU_TENSOR_MAP_SWIZZLE_NONE };
    let (rank, steps) = (view.extents.len(), vec![1u32; view.extents.len()]);
    let mut map = sys::CUtensorMap { opaque: [0; 16] };
    // SAFETY: a place for the result; as many extents, strides and sizes as the rank says, which `View::bytes` has checked.
    let code = unsafe {
        sys::cuTensorMapEncodeTiled(
            &raw mut map,
            kind,
            rank as u32,
            address as *mut c_void,
            view.extents.as_ptr(),
            view.strides.as_ptr(),
            view.tile.as_ptr(),
            steps.as_ptr(),
            sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
            swizzle,
            sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
            sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    };
    code.result().map_err(|_| refuse(&format!("at {address:#x} is none that the card can fetch")))?;
    Ok(map)
}

/// A grid of one kernel, whose function whoever has the grid keeps loaded.
pub(super) struct Grid {
    pub function: sys::CUfunction,
    pub groups: u32,
    pub threads: u32,
    pub shared_bytes: u32,
    /// All groups are resident at once, as grid barriers need.
    pub together: bool,
    pub arguments: Arguments,
}

// SAFETY: as for `Context`.
unsafe impl Send for Grid {}
// SAFETY: as for `Context`.
unsafe impl Sync for Grid {}

/// A point in a stream, with its time if it was asked for.
pub(super) struct Event {
    context: Arc<Context>,
    handle: sys::CUevent,
}

// SAFETY: as for `Context`.
unsafe impl Send for Event {}
// SAFETY: as for `Context`.
unsafe impl Sync for Event {}

impl Event {
    /// A point that is cheap to set and to ask for.
    pub fn new(context: &Arc<Context>) -> Result<Event, Error> {
        Event::with(context, sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)
    }

    /// A point with its time.
    pub fn timed(context: &Arc<Context>) -> Result<Event, Error> {
        Event::with(context, sys::CUevent_flags::CU_EVENT_DEFAULT)
    }

    fn with(context: &Arc<Context>, flags: sys::CUevent_flags) -> Result<Event, Error> {
        context.current()?;
        let handle = result::event::create(flags).map_err(|e| refused("event", e))?;
        Ok(Event { context: context.clone(), handle })
    }

    /// Sets it to the end of all work in `stream` so far.
    pub fn record(&self, stream: &Stream) -> Result<(), Error> {
        // SAFETY: both were made by the driver and live.
        unsafe { result::event::record(self.handle, stream.handle) }.map_err(|e| refused("event", e))
    }

    /// Whether it has been reached; an error of a kernel before it shows here. The context is current.
    pub fn reached(&self) -> Result<bool, Error> {
        // SAFETY: the event was recorded.
        match unsafe { result::event::query(self.handle) } {
            Ok(()) => Ok(true),
            Err(e) if e.0 == CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            Err(e) => Err(refused("wait", e)),
        }
    }

    /// Nanoseconds from `start` to this, both timed and reached.
    pub fn ns_since(&self, start: &Event) -> Result<f64, Error> {
        // SAFETY: both events were recorded in one stream.
        let ms = unsafe { result::event::elapsed(start.handle, self.handle) }.map_err(|e| refused("time", e))?;
        Ok(f64::from(ms) * 1e6)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.context.current().is_ok() {
            // SAFETY: created in `with`, destroyed once.
            let _ = unsafe { result::event::destroy(self.handle) };
        }
    }
}
