//! A machine that runs nothing and keeps everything: programs their source, sequences their launches, buffers no bytes.
//!
//! It answers what an op would launch under a configuration, for compilers and for checks of the ops themselves.

use std::collections::BTreeMap;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::{Backend, Identity, Launch, Limits, Program, Sequence, Source, Timing, Token, foreign};
use crate::cpu::new_owner;
use crate::error::{Error, ErrorKind};
use crate::memory::{Buffer, HostBytes, Init, Memory, Slice};

/// The recording machine.
pub struct Recorder {
    owner: u64,
    limits: Limits,
    identity: Identity,
    library: Option<String>,
}

struct Unbacked {
    owner: u64,
    len: usize,
}

impl Memory for Unbacked {
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
}

impl Recorder {
    /// A machine that says it has `limits`.
    pub fn new(limits: Limits) -> Recorder {
        let facts = BTreeMap::from([("vendor".to_owned(), "recorder".to_owned())]);
        let identity = Identity { silicon: facts.clone(), toolchain: facts, label: "recorder".into() };
        Recorder { owner: new_owner(), limits, identity, library: None }
    }

    /// The same machine with one more fact of its silicon.
    pub fn with_fact(mut self, name: &str, value: &str) -> Recorder {
        self.identity.silicon.insert(name.to_owned(), value.to_owned());
        self
    }

    /// The same machine with a library of its vendor's, by name and version.
    pub fn with_library(mut self, library: &str) -> Recorder {
        self.library = Some(library.to_owned());
        self
    }

    fn runs_nothing<T>(&self, what: &str) -> Result<T, Error> {
        Err(Error::new(ErrorKind::Unavailable, format!("{what}: a recorder runs nothing")))
    }
}

/// What `program` of a recorder was loaded from; none for programs of other backends.
pub fn source(program: &Program) -> Option<&Source> {
    program.inner.downcast_ref()
}

/// The launches of a sequence of a recorder; none for sequences of other backends.
pub fn launches(sequence: &Sequence) -> Option<&[Launch]> {
    sequence.inner.downcast_ref::<Vec<Launch>>().map(Vec::as_slice)
}

impl Backend for Recorder {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn alloc(&self, bytes: usize, _: Init) -> Result<Buffer, Error> {
        Ok(Buffer(Arc::new(Unbacked { owner: self.owner, len: bytes })))
    }

    fn adopt(&self, _: HostBytes, range: Range<usize>) -> Result<Buffer, Error> {
        self.alloc(range.len(), Init::Zero)
    }

    fn write(&self, _: &Slice, _: &[u8]) -> Result<(), Error> {
        Ok(())
    }

    fn read(&self, _: &Slice, _: &mut [u8]) -> Result<(), Error> {
        self.runs_nothing("read")
    }

    fn load(&self, source: &Source) -> Result<Program, Error> {
        let name = match source {
            Source::Native { name, .. } => (*name).into(),
            Source::Text { name, .. } => name.as_str().into(),
            Source::Vendor(_) => "product".into(),
        };
        Ok(Program { name, inner: Arc::new(source.clone()) })
    }

    fn library(&self) -> Result<String, Error> {
        self.library.clone().ok_or_else(|| Error::new(ErrorKind::Unavailable, "the recorder was given no library"))
    }

    fn record(&self, launches: &[Launch]) -> Result<Sequence, Error> {
        if launches.iter().flat_map(|l| &l.args).any(|a| a.buffer.0.owner() != self.owner) {
            return Err(foreign("a buffer"));
        }
        Ok(Sequence { inner: Arc::new(launches.to_vec()), launches: launches.len() })
    }

    fn submit(&self, _: &Sequence) -> Result<Token, Error> {
        self.runs_nothing("submit")
    }

    fn wait(&self, _: Token, _: Duration) -> Result<(), Error> {
        self.runs_nothing("wait")
    }

    fn time(&self, _: &[Sequence], _: u32) -> Result<Timing, Error> {
        self.runs_nothing("time")
    }
}
