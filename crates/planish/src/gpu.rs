//! A model opened for work on a GPU: device, weights on it, numerics, and where its configuration comes from.

use anyhow::Result;
use planish_device::Backend;
use planish_engine::gpu::{self, GpuDecoder, Options, Route, Weights};
use planish_engine::identity::{self, Identities, StoreChoices};
use planish_engine::model::{Made, ModelFile, Origin};
use planish_engine::plan::{Choices, Chosen};
use planish_engine::tuning::Work;
use planish_kernels::cpu::isa::Isa;
use planish_kernels::gpu::decode;
use planish_kernels::op::{Machine, Shape};
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
    store: Store,
    identities: Identities,
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
            let (shape, space) = session.space_at();
            let config = session.choose(&shape, &space)?.map_or_else(|| space.default.clone(), |c| c.config);
            let frozen = Frozen::new([session.identities.locked(identity::key_of(gpu::OP, &shape)?, &config)]);
            session.mode = Mode::Replay(frozen.settle(lock).or_hint(session::LOCK_HINT)?);
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
        let choose = |shape: &Shape, space: &Space| {
            let chosen = self.choose(shape, space)?;
            if pinned.is_empty() {
                return Ok(chosen);
            }
            let base = chosen.map_or_else(|| space.default.clone(), |c| c.config);
            Ok(Some(Chosen { config: base.overlaid(pinned), tier: "pinned" }))
        };
        Ok(GpuDecoder::new(self.machine(), &self.file.hyper, &self.weights, options, &choose)?)
    }

    /// Under which shape a choice for this model is stored, and what may be chosen.
    fn space_at(&self) -> (Shape, Space) {
        gpu::decoder::space(self.machine(), &self.file.hyper, &self.weights, &self.options)
    }

    /// The step of `decoder` if the store was asked and has no choice for it.
    pub fn unknown(&self, decoder: &GpuDecoder<'_>) -> Option<Unknown> {
        let asked = matches!(self.mode, Mode::Stored | Mode::Pin(_));
        let unknown = asked && matches!(decoder.chosen().tier, "default" | "prior");
        unknown.then(|| Unknown { kernels: 1, of: 1, tune_with: self.tune_command.clone() })
    }

    /// What may be chosen for this model, and what is.
    pub fn space(&self) -> Result<(Space, Config)> {
        let (shape, space) = self.space_at();
        let chosen = self.choose(&shape, &space)?.map_or_else(|| space.default.clone(), |c| c.config);
        Ok((space, chosen))
    }

    /// Why the configuration does not allow this path, if it does not.
    pub fn not_legal(&self, route: Route) -> Result<Option<String>> {
        let (space, chosen) = self.space()?;
        Ok(space.violated(&chosen.with("PATH", route.name())))
    }

    /// What is chosen for the step as an item of a worklist.
    pub fn chosen(&self, work: &Work) -> Result<Chosen> {
        let space = work.space(&self.machine());
        let chosen = self.choose(&work.shape, &space)?;
        Ok(chosen.unwrap_or_else(|| Chosen { config: space.default.clone(), tier: "default" }))
    }

    fn choose(&self, shape: &Shape, space: &Space) -> planish_engine::Result<Option<Chosen>> {
        let (snapshot, deterministic) = (self.store.snapshot(), self.deterministic);
        let choices = StoreChoices { snapshot, identities: &self.identities, mode: &self.mode, deterministic };
        choices.choose(&decode::OP.op, shape, space)
    }

    /// The device in words.
    pub fn label(&self) -> &str {
        &self.backend.identity().label
    }
}

fn machine(backend: &dyn Backend) -> Machine<'_> {
    Machine { backend, isa: Isa::Portable }
}
