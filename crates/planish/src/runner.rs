//! A model opened on the device that was asked for, and one decoder of it: what `run` and `chat` need of either kind.

use anyhow::Result;
use planish_engine::decoder::Decoder;
use planish_engine::generate::{self, Flow, Generated, Settings};
use planish_engine::gpu::{self, By, GpuDecoder, Options};
use planish_engine::model::ModelFile;
use serde_json::{Map, Value, json};

use crate::device::Device;
use crate::gpu::GpuSession;
use crate::session::{self, Session, SessionArgs, Unknown};
use crate::ui::Ui;
use crate::{interrupt, report};

/// A model on its device.
pub enum Opened {
    /// On the processor.
    Cpu(Box<Session>),
    /// On a GPU.
    Gpu(Box<GpuSession>),
}

/// A decoder of an opened model.
pub enum Runner<'s> {
    /// On the processor.
    Cpu(&'s Session, Box<Decoder<'s>>),
    /// On a GPU.
    Gpu(&'s GpuSession, Box<GpuDecoder<'s>>),
}

/// What a report says of the machine and of the configurations, for people and for programs.
pub struct Facts {
    /// Lines of a name and a value.
    pub rows: Vec<(&'static str, String)>,
    /// Fields of the report's object.
    pub fields: Map<String, Value>,
}

impl Opened {
    /// Opens `model` on the device that `args` names.
    pub fn open(model: &str, args: &SessionArgs, ui: Ui) -> Result<Opened> {
        Ok(match args.place().device() {
            Device::Cpu => Opened::Cpu(Session::open(model, args, ui)?.into()),
            Device::Host | Device::Cuda(_) => Opened::Gpu(GpuSession::open(model, args, ui)?.into()),
        })
    }

    /// The model's file.
    pub fn file(&self) -> &ModelFile {
        match self {
            Opened::Cpu(session) => &session.model.file,
            Opened::Gpu(session) => &session.file,
        }
    }

    /// Positions of the cache.
    pub fn context(&self) -> usize {
        match self {
            Opened::Cpu(session) => session.options.context,
            Opened::Gpu(session) => session.options.context,
        }
    }

    /// A decoder that can draw under `settings`; settings that the device lacks are refused.
    ///
    /// Says once if it runs kernels that the store does not know.
    pub fn runner(&self, settings: &Settings, ui: Ui) -> Result<Runner<'_>> {
        let runner = match self {
            Opened::Cpu(session) => Runner::Cpu(session, session.decoder()?.into()),
            Opened::Gpu(session) => {
                let sampled = gpu::generate::by(settings, &[])? != By::Likeliest;
                Runner::Gpu(session, session.decoder(Options { sampled, ..session.options })?.into())
            }
        };
        if let Some(unknown) = runner.unknown() {
            ui.note(&format!("note: {unknown}"));
        }
        Ok(runner)
    }
}

impl Runner<'_> {
    /// What it runs without a choice of the store for it.
    fn unknown(&self) -> Option<Unknown> {
        match self {
            Runner::Cpu(session, decoder) => session.unknown(decoder),
            Runner::Gpu(session, decoder) => session.unknown(decoder),
        }
    }

    /// Tokens in the cache.
    pub fn position(&self) -> usize {
        match self {
            Runner::Cpu(_, decoder) => decoder.position(),
            Runner::Gpu(_, decoder) => decoder.position(),
        }
    }

    /// Positions of the cache.
    pub fn context(&self) -> usize {
        match self {
            Runner::Cpu(_, decoder) => decoder.options().context,
            Runner::Gpu(_, decoder) => decoder.options().context,
        }
    }

    /// Forgets all tokens after the first `position`.
    pub fn truncate(&mut self, position: usize) {
        match self {
            Runner::Cpu(_, decoder) => decoder.truncate(position),
            Runner::Gpu(_, decoder) => decoder.truncate(position),
        }
    }

    /// Feeds `prompt` after what the cache holds and generates.
    fn generate(
        &mut self,
        prompt: &[u32],
        settings: &Settings,
        emit: &mut dyn FnMut(&str) -> Flow,
    ) -> Result<Generated> {
        Ok(match self {
            Runner::Cpu(session, decoder) => {
                generate::generate(decoder, &session.model.file.tokenizer, prompt, settings, emit)?
            }
            Runner::Gpu(session, decoder) => {
                gpu::generate::generate(decoder, &session.file.tokenizer, prompt, settings, emit)?
            }
        })
    }

    /// The same, printed as it comes unless the report is JSON, until Ctrl-C or the reader leaves; what was done, and its text.
    pub fn stream(&mut self, prompt: &[u32], settings: &Settings, ui: Ui) -> Result<(Generated, String)> {
        let (mut text, mut printed) = (String::new(), Ok(()));
        let done = self.generate(prompt, settings, &mut |piece| {
            text.push_str(piece);
            if !ui.json && printed.is_ok() {
                printed = report::print(piece);
            }
            if interrupt::requested() || printed.is_err() { Flow::Stop } else { Flow::Continue }
        })?;
        printed.map(|()| (done, text))
    }

    /// What it runs on and with.
    pub fn facts(&self) -> Result<Facts> {
        let (rows, fields) = match self {
            Runner::Cpu(session, decoder) => {
                let (threads, isa) = (session.cpu.threads(), session.isa);
                let (tiers, frozen, unknown) = (session::tiers(decoder), decoder.frozen(), session.unknown(decoder));
                let mut rows = vec![
                    ("threads", format!("{threads}, {isa}")),
                    ("choices", session::tiers_text(&tiers)),
                    ("digest", frozen.digest().to_owned()),
                ];
                rows.extend(unknown.as_ref().map(|u| ("unknown", u.to_string())));
                let (isa, digest) = (isa.name(), frozen.digest());
                let fields =
                    json!({ "threads": threads, "isa": isa, "tiers": tiers, "digest": digest, "unknown": unknown });
                (rows, fields)
            }
            Runner::Gpu(session, decoder) => gpu_facts(session, decoder)?,
        };
        let Value::Object(fields) = fields else { unreachable!("facts are an object") };
        Ok(Facts { rows, fields })
    }
}

/// What a GPU's decoder runs on and with.
pub fn gpu_facts(session: &GpuSession, decoder: &GpuDecoder<'_>) -> Result<(Vec<(&'static str, String)>, Value)> {
    let (path, launches, chosen) = (decoder.route().name(), decoder.launches(), decoder.chosen());
    let (frozen, unknown) = (decoder.frozen(), session.unknown(decoder));
    let mut rows = vec![
        ("device", format!("{}, {}", session.device, session.label())),
        ("path", format!("{path}, {launches} launches a token")),
        ("choices", format!("{}, {}", chosen.tier, chosen.config)),
    ];
    let chunks = decoder.parts().nth(1).map(|(_, chosen)| chosen);
    rows.extend(chunks.map(|c| ("in chunks", format!("{}, {}", c.tier, c.config))));
    rows.push(("digest", frozen.digest().to_owned()));
    let prefill = chunks.map(|c| json!({ "config": c.config, "tier": c.tier }));
    let fields = json!({
        "device": session.device.to_string(), "label": session.label(), "path": path, "launches": launches,
        "config": chosen.config, "tier": chosen.tier, "prefill": prefill, "digest": frozen.digest(), "unknown": unknown,
    });
    rows.extend(unknown.map(|u| ("unknown", u.to_string())));
    Ok((rows, fields))
}
