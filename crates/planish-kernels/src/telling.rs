//! A machine that tells when it compiles, so that a compiler which never ends is not taken for a slow kernel.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::time::Duration;

use planish_device::{
    Backend, Buffer, Error, Footprint, HostBytes, Identity, Init, Launch, Limits, Program, Sequence, Slice, Source,
    Timing, Token,
};
use planish_tune::contain::{Stage, Tell};

/// A backend whose compilations are told.
pub struct Telling {
    inner: &'static dyn Backend,
    tell: Tell,
}

impl Telling {
    /// `inner`, telling by `tell`.
    pub fn new(inner: &'static dyn Backend, tell: &Tell) -> Telling {
        Telling { inner, tell: tell.clone() }
    }

    /// Stands for everything that decides how the compilation of `source` ends.
    fn name(&self, source: &Source) -> Option<String> {
        let Source::Text { name, text, constants, threads } = source else { return None };
        let mut hash = DefaultHasher::new();
        let Identity { silicon, toolchain, .. } = self.inner.identity();
        (silicon, toolchain, text, constants, threads).hash(&mut hash);
        Some(format!("{name} {:016x}", hash.finish()))
    }
}

impl Backend for Telling {
    fn load(&self, source: &Source) -> Result<Program, Error> {
        let Some(name) = self.name(source) else { return self.inner.load(source) };
        (self.tell)(Stage::Compile(name));
        let loaded = self.inner.load(source);
        (self.tell)(Stage::Run);
        loaded
    }

    fn limits(&self) -> &Limits {
        self.inner.limits()
    }
    fn identity(&self) -> &Identity {
        self.inner.identity()
    }
    fn alloc(&self, bytes: usize, init: Init) -> Result<Buffer, Error> {
        self.inner.alloc(bytes, init)
    }
    fn alloc_with(&self, bytes: usize, fill: &mut dyn FnMut(&mut [u8])) -> Result<Buffer, Error> {
        self.inner.alloc_with(bytes, fill)
    }
    fn adopt(&self, bytes: HostBytes, range: Range<usize>) -> Result<Buffer, Error> {
        self.inner.adopt(bytes, range)
    }
    fn write(&self, to: &Slice, bytes: &[u8]) -> Result<(), Error> {
        self.inner.write(to, bytes)
    }
    fn read(&self, from: &Slice, bytes: &mut [u8]) -> Result<(), Error> {
        self.inner.read(from, bytes)
    }
    fn peek(&self, from: &Slice, bytes: &mut [u8]) -> Result<(), Error> {
        self.inner.peek(from, bytes)
    }
    fn footprint(&self, program: &Program) -> Option<Footprint> {
        self.inner.footprint(program)
    }
    fn resident(&self, program: &Program, threads: u32, shared_bytes: u32) -> Option<u32> {
        self.inner.resident(program, threads, shared_bytes)
    }
    fn library(&self) -> Result<String, Error> {
        self.inner.library()
    }
    fn record(&self, launches: &[Launch]) -> Result<Sequence, Error> {
        self.inner.record(launches)
    }
    fn record_graph(&self, launches: &[Launch]) -> Result<Sequence, Error> {
        self.inner.record_graph(launches)
    }
    fn submit(&self, sequence: &Sequence) -> Result<Token, Error> {
        self.inner.submit(sequence)
    }
    fn wait(&self, token: Token, deadline: Duration) -> Result<(), Error> {
        self.inner.wait(token, deadline)
    }
    fn time(&self, sequences: &[Sequence], reps: u32) -> Result<Timing, Error> {
        self.inner.time(sequences, reps)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::cpu::isa::Isa;
    use crate::gpu::record;
    use crate::op::Machine;
    use crate::subject::{OpSubject, Spec};
    use planish_tune::Subject;

    #[test]
    fn a_worker_sees_the_machine_that_it_wraps() {
        let card: &'static dyn Backend = Box::leak(Box::new(record::card("sm_90a").with_library("cublaslt 12.9.3")));
        let tell: Tell = Arc::new(|_| {});
        let telling = Telling::new(card, &tell);
        assert_eq!(telling.identity(), card.identity());
        assert_eq!(format!("{:?}", telling.limits()), format!("{:?}", card.limits()));
        assert_eq!(telling.library().expect("a library"), "cublaslt 12.9.3");
        let spec = Spec {
            device: "cuda:0".to_owned(),
            op: "gemm".to_owned(),
            shape: "m=4096,n=4096,k=4096,layout=nt,out=bf16,type=bf16".parse().expect("a shape"),
            rotate_bytes: 0,
            read_gb_s: None,
            peak: None,
            seed: 1,
            deterministic: false,
        };
        let space = |backend| {
            let subject = OpSubject::new(spec.clone(), Machine { backend, isa: Isa::Portable }).expect("a subject");
            (subject.space().digest(), subject.space().default.clone())
        };
        assert_eq!(space(&telling), space(card));
        assert_eq!(space(&telling).1.name("VARIANT"), Some("wgmma"));
    }
}
