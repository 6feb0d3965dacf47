//! The machines planish runs on: memory, programs, sequences, clocks, identity; no op names.
//!
//! `Backend` is the whole contract with a machine.
//! A `Launch` binds a `Program` to buffers and parameters; a recorded `Sequence` of launches is what runs for every token.

pub mod backend;
pub mod cpu;
pub mod cuda;
pub mod dialect;
pub mod error;
pub mod fake;
pub mod host;
pub mod memory;
pub mod recorder;
pub mod system;
pub mod vendor;

pub use backend::{
    Backend, Call, Footprint, Identity, Launch, Limits, Native, Params, Plain, Program, Sequence, Source, Stamp,
    Stamps, Timing, Token, View,
};
pub use cpu::{Cpu, CpuOptions, prefetch};
pub use cuda::{Cuda, CudaOptions};
pub use error::{Error, ErrorKind};
pub use fake::Fake;
pub use host::{Host, HostOptions};
pub use memory::{Buffer, HostBytes, Init, Memory, RawSlice, Slice};
pub use recorder::Recorder;
pub use vendor::{Float, VendorProduct};
