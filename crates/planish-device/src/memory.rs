//! Device memory: owned buffers, slices of them, and the raw view a running kernel gets.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::error::{Error, ErrorKind};

/// Host bytes that a backend may use in place (a memory-mapped file); kept alive by the buffers made from it.
pub type HostBytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// What a new buffer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Init {
    /// Every byte zero.
    Zero,
    /// Every byte this value; 0xff makes every float a NaN, which is how outputs are poisoned.
    Fill(u8),
}

/// One allocation of one device.
pub trait Memory: Send + Sync {
    /// Size in bytes.
    fn len(&self) -> usize;
    /// Whether there are no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Which backend instance made it; a launch refuses the memory of another.
    fn owner(&self) -> u64;
    /// Where the host can reach it; `None` for memory that only the device sees.
    fn host(&self) -> Option<NonNull<u8>>;
    /// Whether kernels may write it; a mapped file is read-only.
    fn writable(&self) -> bool;
    /// Where a device with memory of its own reaches it; none for memory of the host.
    fn device(&self) -> Option<u64> {
        None
    }
}

/// A shared handle to one allocation.
#[derive(Clone)]
pub struct Buffer(pub Arc<dyn Memory>);

impl Buffer {
    /// Size in bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.0.len() == 0
    }

    /// The whole buffer as a slice.
    pub fn all(&self) -> Slice {
        Slice { buffer: self.clone(), offset: 0, len: self.len() }
    }

    /// `len` bytes from `offset`; an error when they do not lie inside.
    pub fn slice(&self, offset: usize, len: usize) -> Result<Slice, Error> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len() => Ok(Slice { buffer: self.clone(), offset, len }),
            _ => Err(Error::new(
                ErrorKind::BadLaunch,
                format!("slice of {len} bytes at {offset} does not fit a buffer of {} bytes", self.len()),
            )),
        }
    }
}

/// A byte range of a buffer, bound to a launch by position.
#[derive(Clone)]
pub struct Slice {
    /// The allocation.
    pub buffer: Buffer,
    /// First byte.
    pub offset: usize,
    /// Size in bytes.
    pub len: usize,
}

impl std::fmt::Debug for Slice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "[{}..{}] of {} bytes", self.offset, self.offset + self.len, self.buffer.len())
    }
}

/// What a native kernel sees of a slice: an address and a size, shared by all threads of the launch.
#[derive(Clone, Copy, Debug)]
pub struct RawSlice {
    /// First byte.
    pub ptr: *mut u8,
    /// Size in bytes.
    pub len: usize,
}

// SAFETY: a RawSlice is only an address and a size; every dereference is an unsafe act of the kernel that does it.
unsafe impl Send for RawSlice {}
// SAFETY: as above.
unsafe impl Sync for RawSlice {}

impl RawSlice {
    /// The bytes as `T`s.
    ///
    /// # Safety
    /// The memory must be valid for `'a`, initialised as `T`, and not written by anyone during `'a`.
    pub unsafe fn read<'a, T>(self) -> &'a [T] {
        assert!(
            (self.ptr as usize).is_multiple_of(align_of::<T>()),
            "slice of {} bytes is not aligned for its type",
            self.len
        );
        // SAFETY: the caller vouches for validity and initialisation; alignment was just checked.
        unsafe { std::slice::from_raw_parts(self.ptr.cast(), self.len / size_of::<T>()) }
    }

    /// Elements `from..from + n` of the bytes seen as `T`s, for writing.
    ///
    /// # Safety
    /// As for `read`, and no other thread may touch these elements during `'a`.
    pub unsafe fn write<'a, T>(self, from: usize, n: usize) -> &'a mut [T] {
        assert!(
            (self.ptr as usize).is_multiple_of(align_of::<T>()),
            "slice of {} bytes is not aligned for its type",
            self.len
        );
        assert!((from + n) * size_of::<T>() <= self.len, "elements {from}..{} exceed {} bytes", from + n, self.len);
        // SAFETY: in bounds and aligned by the checks above; the caller vouches for exclusive access.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.cast::<T>().add(from), n) }
    }
}
