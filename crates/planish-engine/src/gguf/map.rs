//! The bytes of a model file: a read-only memory map, or a page-aligned copy of bytes made in memory.

use std::fs::{self, File};
use std::ops::Range;
use std::path::Path;

use memmap2::{Mmap, MmapMut, UncheckedAdvice};

use crate::error::{Error, Result};

/// Bytes that start at a page boundary and stay where they are.
#[derive(Debug)]
pub(crate) struct Map {
    map: Mmap,
    from_file: bool,
}

impl Map {
    pub(crate) fn open(path: &Path) -> Result<Map> {
        let shown = path.display();
        // Opening a pipe that nobody writes to would wait for ever.
        let info = fs::metadata(path).map_err(|e| Error::io(format!("open {shown}"), &e))?;
        if !info.is_file() {
            return Err(Error::file(format!("{shown} is not a file")).with_hint("name the .gguf file itself"));
        }
        let file = File::open(path).map_err(|e| Error::io(format!("open {shown}"), &e))?;
        let info = file.metadata().map_err(|e| Error::io(format!("read the size of {shown}"), &e))?;
        if info.len() == 0 {
            return Err(Error::file(format!("{shown} is empty")).with_hint("download it again"));
        }
        // SAFETY: the map is read-only and private to this process; another process that shortens the file while it is
        // mapped ends this one with SIGBUS, as with every mapped reader, and cannot make it read foreign memory.
        let map = unsafe { Mmap::map(&file) }.map_err(|e| Error::io(format!("map {shown}"), &e))?;
        Ok(Map { map, from_file: true })
    }

    pub(crate) fn copy_of(bytes: &[u8]) -> Result<Map> {
        Map::made(bytes.len(), &mut |map| {
            map.copy_from_slice(bytes);
            Ok(())
        })
    }

    /// Memory of its own, zeros before `write`; pages that it leaves alone take none.
    pub(crate) fn made(bytes: usize, write: &mut dyn FnMut(&mut [u8]) -> Result<()>) -> Result<Map> {
        let io = |e| Error::io(format!("allocate {bytes} bytes"), &e);
        let mut map = MmapMut::map_anon(bytes.max(1)).map_err(io)?;
        write(&mut map[..bytes])?;
        Ok(Map { map: map.make_read_only().map_err(io)?, from_file: false })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// Lets go of the whole pages inside `range`; reading them again fetches them from the file.
    pub(crate) fn release(&self, range: Range<usize>) {
        if !self.from_file || range.is_empty() || range.end > self.map.len() {
            return;
        }
        // SAFETY: the map is a read-only file map, so a dropped page is read back from the file unchanged.
        // It is advice: a system that refuses it only keeps more memory.
        let _ = unsafe { self.map.unchecked_advise_range(UncheckedAdvice::DontNeed, range.start, range.len()) };
    }
}
