//! A decoder that stops after every layer, so that hidden states can be compared with expected ones.

use planish_device::Sequence;
use planish_kernels::op::Machine;

use super::{DEADLINE, Decoder, Graph, Options};
use crate::arch::Hyper;
use crate::error::Result;
use crate::plan::{self, Calls, Choices};
use crate::weights::Weights;

/// The steps of a decoder, each cut into the embedding and the layers.
pub struct Watched<'a> {
    decoder: Decoder<'a>,
    decode: Vec<Sequence>,
    prefill: Vec<Sequence>,
}

impl<'a> Watched<'a> {
    /// Records the parts of both steps with the configurations that `choices` gives for the whole.
    pub fn new(
        machine: Machine<'a>,
        hyper: &'a Hyper,
        weights: &Weights,
        options: Options,
        choices: &dyn Choices,
    ) -> Result<Self> {
        let decoder = Decoder::new(machine, hyper, weights, options, choices)?;
        let graph = Graph { hyper, weights, buffers: &decoder.buffers, options: &decoder.options };
        let record = |batch: usize| -> Result<Vec<Sequence>> {
            let part = |part: usize| {
                let mut calls = Calls::default();
                graph.part(&mut calls, batch, part);
                let frozen = plan::freeze(&calls.plan(&machine, choices)?, &machine)?;
                Ok(machine.backend.record(&calls.launches(&machine, &frozen)?)?)
            };
            (0..=hyper.layers).map(part).collect()
        };
        let (decode, prefill) = (record(1)?, record(options.chunk)?);
        Ok(Watched { decoder, decode, prefill })
    }

    /// Feeds `ids` from an empty cache, as prefill or one by one, and returns what the last of them is after the embedding
    /// and after every layer, `[layers + 1][hidden]`.
    pub fn hidden(&mut self, ids: &[u32], prefill: bool) -> Result<Vec<Vec<f32>>> {
        let d = &mut self.decoder;
        d.truncate(0);
        d.admit(ids)?;
        let most = if prefill { d.options.chunk } else { 1 };
        let mut states = Vec::new();
        for part in ids.chunks(most) {
            d.prepare(part)?;
            let last = d.position + part.len() == ids.len();
            let step = if part.len() == 1 { &self.decode } else { &self.prefill };
            for sequence in step {
                let token = d.machine.backend.submit(sequence)?;
                d.machine.backend.wait(token, DEADLINE)?;
                if last {
                    let (hidden, row) = (d.hyper.hidden, part.len() - 1);
                    let mut state = vec![0.0; hidden];
                    let x = &d.buffers.x;
                    d.host.read_f32(
                        d.machine,
                        &x.buffer.slice(x.offset + 4 * row * hidden, 4 * hidden)?,
                        &mut state,
                    )?;
                    states.push(state);
                }
            }
            d.position += part.len();
        }
        Ok(states)
    }
}
