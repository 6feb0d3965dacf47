//! A model opened for work on a GPU: device, weights on it, numerics, and where its configuration comes from.

use anyhow::Result;
use planish_device::Backend;
use planish_engine::gpu::parts::freeze;
use planish_engine::gpu::{self, GpuDecoder, Options, Part, Route, Weights};
use planish_engine::identity::{Identities, StoreChoices};
use planish_engine::model::{Made, ModelFile, Origin};
use planish_engine::plan::{Choices, Chosen};
use planish_kernels::cpu::isa::Isa;
use planish_kernels::op::{Machine, Op, Shape};
use planish_tune::store::{Frozen, Mode, Store};
use planish_tune::{Config, Policy, Space};

use crate::device::{self, Device};
use crate::hint::WithHint;
use crate::session::{self, SessionArgs, Unknown};
use crate::ui::Ui;

/// A model as a user names it.
#[derive(Clone, Copy)]
pub enum Named<'a> {
    /// A preset, a cached model, one to be had, or the path of a file.
    Model(&'a str),
    /// Shapes without a file.
    Shapes(&'a str),
}

/// What of a model goes to the device.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Load {
    /// Its weights.
    Weights,
    /// Zeros, for questions about a model that is not run.
    Zeros,
}

/// Everything that stays the same while a model is in use on a GPU.
pub struct GpuSession {
    /// The device by its name.
    pub device: Device,
    /// The device.
    pub backend: Box<dyn Backend>,
    /// Where the model comes from.
    pub origin: Origin,
    /// The model.
    pub file: ModelFile,
    /// Its tensors on the device.
    pub weights: Weights,
    /// Numerics and cache of its decoders.
    pub options: Options,
    /// What tuning found on this and other machines.
    pub store: Store,
    /// Under which identity this machine and build look configurations up.
    pub identities: Identities,
    mode: Mode,
    tune_command: String,
    deterministic: bool,
}

impl GpuSession {
    /// Resolves `model`, opens the device that `args` names, and puts the tensors there.
    pub fn open(model: &str, args: &SessionArgs, ui: Ui) -> Result<GpuSession> {
        GpuSession::open_as(Named::Model(model), Load::Weights, args, ui)
    }

    /// The same for any kind of name, and for a model that is only asked about.
    pub fn open_as(named: Named<'_>, load: Load, args: &SessionArgs, ui: Ui) -> Result<GpuSession> {
        let device = args.place().device();
        let mode = args.mode(device)?;
        // What can be refused is refused before anything is loaded.
        args.gpu_options(1)?;
        let (name, origin) = match named {
            Named::Model(name) => (name, Origin::File(session::resolve(name, ui)?)),
            Named::Shapes(name) => (name, Origin::Shapes(name.to_owned())),
        };
        let backend = device::open(device)?;
        let threads = args.host_threads()?;
        let (file, weights) = match load {
            Load::Weights => origin.open_with(Made::Random(threads), |gguf, hyper| {
                Weights::load(gguf, hyper, backend.as_ref(), threads)
            })?,
            Load::Zeros => {
                origin.open_with(Made::Zeros, |gguf, hyper| Weights::empty(gguf, hyper, backend.as_ref()))?
            }
        };
        let options = args.gpu_options(file.hyper.context)?;
        let store = session::open_store(ui);
        let identities = Identities::new(&machine(backend.as_ref()), &Policy::default());
        let deterministic = args.deterministic();
        let tune_command = args.tune_command(name);
        let mut session = GpuSession {
            device,
            backend,
            origin,
            file,
            weights,
            options,
            store,
            identities,
            mode,
            tune_command,
            deterministic,
        };
        if let Some(lock) = args.lock().filter(|_| session.mode == Mode::Stored) {
            session.mode = Mode::Replay(session.frozen()?.settle(lock).or_hint(session::LOCK_HINT)?);
        }
        Ok(session)
    }

    /// The machine that kernels are launched on.
    pub fn machine(&self) -> Machine<'_> {
        machine(self.backend.as_ref())
    }

    /// A decoder with an empty cache, configured as the store stands now.
    pub fn decoder(&self, options: Options) -> Result<GpuDecoder<'_>> {
        self.decoder_with(options, &Config::new())
    }

    /// The same with the values of `pinned` in the place of those that were chosen.
    pub fn decoder_with(&self, options: Options, pinned: &Config) -> Result<GpuDecoder<'_>> {
        let choose = |op: &'static Op, shape: &Shape, space: &Space| {
            let chosen = self.choices().choose(op, shape, space)?;
            if pinned.is_empty() || op.name != gpu::DECODE {
                return Ok(chosen);
            }
            let base = chosen.map_or_else(|| space.default.clone(), |c| c.config);
            Ok(Some(Chosen { config: base.overlaid(pinned), tier: "pinned" }))
        };
        self.decoder_of(options, &choose)
    }

    /// The same by other choices.
    pub fn decoder_of(&self, options: Options, choices: &dyn Choices) -> Result<GpuDecoder<'_>> {
        Ok(GpuDecoder::new(self.machine(), &self.file.hyper, &self.weights, options, choices)?)
    }

    /// What has a configuration: the step, and the chunk of a prompt.
    pub fn parts(&self) -> Vec<Part> {
        gpu::parts(self.machine(), &self.file.hyper, &self.weights, &self.options)
    }

    /// What is chosen for all parts, as a decoder would freeze it.
    pub fn frozen(&self) -> Result<Frozen> {
        let parts = self.parts();
        let chosen = parts.iter().map(|p| Ok(p.chosen(&self.choices())?)).collect::<Result<Vec<_>>>()?;
        Ok(freeze(&self.machine(), parts.iter().zip(&chosen))?)
    }

    /// The parts of `decoder` for which the store was asked and has no choice.
    pub fn unknown(&self, decoder: &GpuDecoder<'_>) -> Option<Unknown> {
        let asked = matches!(self.mode, Mode::Stored | Mode::Pin(_));
        let is_unknown = |(_, chosen): &(&Part, &Chosen)| matches!(chosen.tier, "default" | "prior");
        let (kernels, of) = (decoder.parts().filter(is_unknown).count(), decoder.parts().count());
        (asked && kernels > 0).then(|| Unknown { kernels, of, tune_with: self.tune_command.clone() })
    }

    /// What may be chosen for the step of this model, and what is.
    pub fn space(&self) -> Result<(Space, Config)> {
        let step = self.parts().swap_remove(0);
        let chosen = step.chosen(&self.choices())?.config;
        Ok((step.space, chosen))
    }

    /// Why the configuration does not allow this path, if it does not.
    pub fn not_legal(&self, route: Route) -> Result<Option<String>> {
        let (space, chosen) = self.space()?;
        Ok(space.violated(&chosen.with("PATH", route.name())))
    }

    /// Where configurations come from, as the store stands now.
    pub fn choices(&self) -> StoreChoices<'_> {
        let (snapshot, deterministic) = (self.store.snapshot(), self.deterministic);
        StoreChoices { snapshot, identities: &self.identities, mode: &self.mode, deterministic }
    }

    /// The device in words.
    pub fn label(&self) -> &str {
        &self.backend.identity().label
    }
}

/// The machine of a GPU's `backend`.
pub fn machine(backend: &dyn Backend) -> Machine<'_> {
    Machine { backend, isa: Isa::Portable }
}
