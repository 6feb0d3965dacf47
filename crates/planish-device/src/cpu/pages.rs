//! Host memory: aligned allocations, huge pages for big ones, adopted bytes, and advice about file pages.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ops::Range;
use std::ptr::NonNull;

use crate::error::{Error, ErrorKind};
use crate::memory::{HostBytes, Init, Memory};

/// Alignment of every allocation: a cache line, and the widest vector.
pub const ALIGN: usize = 64;
/// From this size on an allocation gets its own mapping, whose zeros cost nothing until they are used; the allocator writes
/// them.
pub const MAPPED: usize = 128 << 10;
/// From this size on a mapping is on huge pages.
pub const BIG: usize = 4 << 20;
const HUGE_PAGE: usize = 2 << 20;

/// Memory that this process allocated.
pub(crate) struct Region {
    owner: u64,
    ptr: NonNull<u8>,
    len: usize,
    /// The whole mapping, for big regions; others came from the allocator.
    mapping: Option<Range<usize>>,
}

// SAFETY: a Region is plain memory that it owns; what threads do with it through pointers is the kernels' concern.
unsafe impl Send for Region {}
// SAFETY: as above; a shared Region hands out its address only.
unsafe impl Sync for Region {}

fn small_layout(len: usize) -> Layout {
    Layout::from_size_align(len.max(1), ALIGN).expect("a small region fits a layout")
}

impl Region {
    /// `len` bytes holding `init`; pages of a mapped zero region are touched by whoever uses them first.
    pub fn new(owner: u64, len: usize, init: Init) -> Result<Region, Error> {
        let refused = || Error::new(ErrorKind::OutOfMemory, format!("{len} bytes of host memory were refused"));
        let (ptr, mapping) = if len < MAPPED {
            // SAFETY: the layout has a size of at least one byte.
            (NonNull::new(unsafe { alloc_zeroed(small_layout(len)) }).ok_or_else(refused)?, None)
        } else {
            let (ptr, mapping) = if len < BIG { map(len, page_bytes()) } else { map_huge(len) }.ok_or_else(refused)?;
            (ptr, Some(mapping))
        };
        if let Init::Fill(byte) = init {
            // SAFETY: the region has `len` bytes and nobody else knows it yet.
            unsafe { ptr.as_ptr().write_bytes(byte, len) };
        }
        Ok(Region { owner, ptr, len, mapping })
    }

    /// The bytes, while nobody else knows the region.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: `len` initialised bytes, and the region is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

/// `len` bytes from a 2 MiB boundary in a mapping of their own, on huge pages where the system has them.
fn map_huge(len: usize) -> Option<(NonNull<u8>, Range<usize>)> {
    let (ptr, mapping) = map(len, HUGE_PAGE)?;
    #[cfg(target_os = "linux")]
    // SAFETY: the range lies inside the mapping just made; a kernel without huge pages refuses and nothing changes.
    unsafe {
        libc::madvise(ptr.as_ptr().cast(), len, libc::MADV_HUGEPAGE);
    }
    Some((ptr, mapping))
}

/// An anonymous mapping, and in it `len` bytes from a multiple of `align`, which is of whole pages.
fn map(len: usize, align: usize) -> Option<(NonNull<u8>, Range<usize>)> {
    let whole = len.checked_add(align)?;
    // SAFETY: a fresh anonymous mapping touches no existing memory.
    let base = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            whole,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANON,
            -1,
            0,
        )
    };
    if base == libc::MAP_FAILED {
        return None;
    }
    let base_at = base as usize;
    let skip = base_at.next_multiple_of(align) - base_at;
    let ptr = base.cast::<u8>().wrapping_add(skip);
    Some((NonNull::new(ptr)?, base_at..base_at + whole))
}

impl Drop for Region {
    fn drop(&mut self) {
        match &self.mapping {
            // SAFETY: this is the mapping made in `new`, whole, and nothing uses it any more.
            Some(range) => unsafe {
                libc::munmap(std::ptr::with_exposed_provenance_mut(range.start), range.len());
            },
            // SAFETY: allocated in `new` with this layout.
            None => unsafe { dealloc(self.ptr.as_ptr(), small_layout(self.len)) },
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
        Some(self.ptr)
    }
    fn writable(&self) -> bool {
        true
    }
}

/// Host bytes used in place, read-only.
pub(crate) struct Adopted {
    owner: u64,
    bytes: HostBytes,
    range: Range<usize>,
}

impl Adopted {
    /// `range` of `bytes`; an error when it does not lie inside.
    pub fn new(owner: u64, bytes: HostBytes, range: Range<usize>) -> Result<Adopted, Error> {
        let len = (*bytes).as_ref().len();
        if range.start > range.end || range.end > len {
            let message = format!("bytes {}..{} do not lie in host memory of {len} bytes", range.start, range.end);
            return Err(Error::new(ErrorKind::BadLaunch, message));
        }
        Ok(Adopted { owner, bytes, range })
    }
}

impl Memory for Adopted {
    fn len(&self) -> usize {
        self.range.len()
    }
    fn owner(&self) -> u64 {
        self.owner
    }
    fn host(&self) -> Option<NonNull<u8>> {
        let bytes: &[u8] = (*self.bytes).as_ref();
        NonNull::new(bytes[self.range.clone()].as_ptr().cast_mut())
    }
    fn writable(&self) -> bool {
        false
    }
}

/// Size of a page of this system, bytes.
pub fn page_bytes() -> usize {
    // SAFETY: sysconf reads a constant of the system.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

/// The whole pages inside `bytes`.
fn whole_pages(bytes: &[u8]) -> Range<usize> {
    let page = page_bytes();
    let start = (bytes.as_ptr() as usize).next_multiple_of(page);
    let end = (bytes.as_ptr() as usize + bytes.len()) / page * page;
    start..end.max(start)
}

/// Gives the memory of the whole pages inside `bytes` back to the system; the next read loads them from the file again.
///
/// Returns the bytes given back, 0 where the system refused.
///
/// # Safety
/// `bytes` must lie in a read-only mapping of a file: other memory would lose its contents.
pub unsafe fn release(bytes: &[u8]) -> usize {
    let pages = whole_pages(bytes);
    if pages.is_empty() {
        return 0;
    }
    // SAFETY: the pages lie inside `bytes`, which the caller vouches to be file-backed, so their contents come back.
    let refused = unsafe { libc::madvise(pages.start as *mut _, pages.len(), libc::MADV_DONTNEED) } != 0;
    if refused { 0 } else { pages.len() }
}

/// Asks the system to read `bytes` of a mapped file ahead; returns at once.
pub fn will_need(bytes: &[u8]) {
    let start = bytes.as_ptr() as usize / page_bytes() * page_bytes();
    let len = bytes.as_ptr() as usize + bytes.len() - start;
    // SAFETY: WILLNEED only reads ahead; it changes no contents and refuses addresses that are not mapped.
    unsafe { libc::madvise(start as *mut _, len, libc::MADV_WILLNEED) };
}

/// Touches every page of `bytes`, so that no later read faults.
pub fn prefault(bytes: &[u8]) {
    for page in bytes.chunks(page_bytes()) {
        // SAFETY: a reference is readable; volatile keeps the compiler from dropping the read.
        unsafe { std::ptr::read_volatile(&page[0]) };
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    /// File pages that are in memory for this process, kB.
    fn resident_kb() -> usize {
        let status = std::fs::read_to_string("/proc/self/status").expect("readable");
        let line = status.lines().find_map(|l| l.strip_prefix("RssFile:")).expect("known field");
        line.trim().trim_end_matches("kB").trim().parse().expect("a number")
    }

    #[test]
    fn mapped_zeros_take_no_memory_until_they_are_used() {
        for len in [MAPPED, BIG - 1, BIG] {
            let mut region = Region::new(1, len, Init::Zero).expect("mapped");
            let resident = |region: &Region| {
                let mut pages = vec![0u8; len.div_ceil(page_bytes())];
                // SAFETY: the region begins at a page, and `pages` has a byte for each of its pages.
                let asked = unsafe { libc::mincore(region.ptr.as_ptr().cast(), len, pages.as_mut_ptr()) };
                assert_eq!(asked, 0, "{}", std::io::Error::last_os_error());
                pages.iter().filter(|p| **p & 1 == 1).count()
            };
            assert_eq!(resident(&region), 0, "{len} bytes");
            assert!(region.bytes_mut()[len / 2..].iter().all(|b| *b == 0), "{len} bytes");
            region.bytes_mut()[len - 1] = 7;
            assert!(resident(&region) > 0, "{len} bytes");
        }
    }

    #[test]
    fn released_file_pages_come_back_with_their_contents() {
        let path = std::env::temp_dir().join(format!("planish-release-{}", std::process::id()));
        let contents: Vec<u8> = (0..32u32 << 20).map(|i| (i / 4096 + i) as u8).collect();
        std::fs::write(&path, &contents).expect("written");
        let file = std::fs::File::open(&path).expect("opened");
        let fd = file.as_raw_fd();
        // SAFETY: a fresh private mapping of a file that nobody changes; its whole length is there.
        let bytes = unsafe {
            let at = libc::mmap(std::ptr::null_mut(), contents.len(), libc::PROT_READ, libc::MAP_PRIVATE, fd, 0);
            assert_ne!(at, libc::MAP_FAILED);
            std::slice::from_raw_parts(at.cast::<u8>(), contents.len())
        };
        will_need(&bytes[5..]);
        prefault(bytes);
        let before = resident_kb();
        // SAFETY: `bytes` is a read-only mapping of a file.
        let released = unsafe { release(&bytes[100..contents.len() - 100]) };
        let after = resident_kb();
        assert_eq!(released, contents.len() - 2 * page_bytes(), "the first and last page are not whole");
        assert!(before > after + (24 << 10), "{before} kB before, {after} kB after");
        assert!(bytes == contents);
        // SAFETY: within one page no whole page lies, so nothing happens.
        assert_eq!(unsafe { release(&bytes[1..page_bytes()]) }, 0);
        // SAFETY: mapped above and not used after this.
        unsafe { libc::munmap(bytes.as_ptr().cast_mut().cast(), bytes.len()) };
        std::fs::remove_file(path).expect("removed");
    }
}
