//! Where a model runs: the CPU, an NVIDIA card, or GPU kernels on this CPU; asked for by name and never replaced.

use std::fmt;
use std::fs;
use std::str::FromStr;

use anyhow::{Context, Result, anyhow};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use planish_device::host::{HostOptions, Mode};
use planish_device::{Backend, Cuda, CudaOptions, Host};
use planish_engine::gpu::Route;

use crate::hint::WithHint;
use crate::home::Home;

/// A device by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// The processor, with kernels of its own.
    Cpu,
    /// GPU kernels on the processor, through the host executor.
    Host,
    /// An NVIDIA card, by its place among the visible ones.
    Cuda(u32),
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Cpu => f.write_str("cpu"),
            Device::Host => f.write_str("host"),
            Device::Cuda(0) => f.write_str("cuda"),
            Device::Cuda(n) => write!(f, "cuda:{n}"),
        }
    }
}

impl FromStr for Device {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.strip_prefix("cuda:").map(str::parse)) {
            ("cpu", _) => Ok(Device::Cpu),
            ("host", _) => Ok(Device::Host),
            ("cuda", _) => Ok(Device::Cuda(0)),
            (_, Some(Ok(n))) => Ok(Device::Cuda(n)),
            _ => Err(format!("`{text}` is no device; there are cpu, cuda, cuda:1 and so on, and host")),
        }
    }
}

/// Where a model runs, and how a GPU is handed its work.
#[derive(Args)]
pub struct Place {
    /// Where to run: cpu, cuda (cuda:1 is the second card), or host, which runs the kernels of GPUs on this CPU
    /// [default: cpu]
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<Device>,
    /// How a GPU is handed the work of a token; by default as its configuration says
    #[arg(long, value_name = "PATH", value_parser = route())]
    pub path: Option<Route>,
    /// Steps handed to a GPU before the token of the first of them is known; 1 waits for each token [default: 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub ahead: Option<u32>,
}

fn route() -> impl TypedValueParser<Value = Route> {
    PossibleValuesParser::new(Route::ALL.map(Route::name)).try_map(|s| Route::from_name(&s).ok_or("no such path"))
}

impl Place {
    /// The device asked for, else the CPU.
    pub fn device(&self) -> Device {
        self.device.unwrap_or(Device::Cpu)
    }

    /// Refuses flags of GPUs.
    pub fn must_be_cpu(&self) -> Result<()> {
        if self.device() != Device::Cpu {
            return Err(anyhow!("--device {}: this runs on the CPU alone", self.device()))
                .hint("leave --device out; run, chat, bench and verify take it");
        }
        let flags = [("--path", self.path.is_some()), ("--ahead", self.ahead.is_some())];
        match flags.iter().find(|(_, given)| *given) {
            None => Ok(()),
            Some((flag, _)) => Err(anyhow!("{flag}: the CPU is handed work in one way"))
                .hint(format!("leave {flag} out, or give --device")),
        }
    }
}

/// The backend of `device`, which a flag asks for; an error where it is not there.
pub fn open(device: Device) -> Result<Box<dyn Backend>> {
    find(device).with_context(|| format!("--device {device}"))
}

/// The backend of `device`, which nobody asks for by name.
pub fn find(device: Device) -> Result<Box<dyn Backend>> {
    let home = Home::from_env()?;
    let folder = |path: std::path::PathBuf| -> Result<std::path::PathBuf> {
        let made = fs::create_dir_all(&path).with_context(|| format!("cannot create {}", path.display()));
        made.hint("set PLANISH_HOME to a folder that can be written")?;
        Ok(path)
    };
    match device {
        Device::Cpu => Err(anyhow!("the processor itself runs no kernels of GPUs")).hint("give --device host or cuda"),
        Device::Host => {
            let options = HostOptions { cache: folder(home.host())?, mode: Mode::Checked };
            Ok(Box::new(Host::new(options)?))
        }
        Device::Cuda(ordinal) => {
            let options = CudaOptions { ordinal, cache: folder(home.cuda())? };
            let card = Cuda::new(options);
            Ok(Box::new(card.or_hint("run with --device cpu, or on a machine with an NVIDIA card and its driver")?))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_have_names() {
        for name in ["cpu", "host", "cuda", "cuda:1"] {
            assert_eq!(name.parse::<Device>().unwrap().to_string(), name);
        }
        for bad in ["", "gpu", "cuda:", "cuda:x", "cuda:-1", "CPU"] {
            assert!(bad.parse::<Device>().is_err(), "{bad}");
        }
    }
}
