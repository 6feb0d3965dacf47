//! From a prompt to a stream of text on a GPU: the device draws and goes on, the host reads the tokens behind it.

use planish_kernels::cpu::sample::Draw;
use planish_kernels::gpu::sample;

use super::decoder::{By, GpuDecoder, Window};
use crate::error::Result;
use crate::generate::{Ended, Flow, Generated, Output, Settings};
use crate::text::Tokenizer;

/// How the device draws under `settings` after `prompt`; the draws are those of the CPU.
pub fn by(settings: &Settings, prompt: &[u32]) -> Result<By> {
    let p = &settings.sampling;
    let penalties = p.repetition != 1.0 || p.frequency != 0.0 || p.presence != 0.0;
    let draw = Draw { seed: settings.seed, sequence: 0, step: prompt.len() as u64 };
    if penalties && settings.penalty_window > 0 {
        let window = Window { room: settings.penalty_window, tokens: prompt.to_vec() };
        return Ok(By::Penalised(sample::settings(p, draw), window));
    }
    Ok(if p.temperature <= 0.0 { By::Likeliest } else { By::Settings(sample::settings(p, draw)) })
}

/// Feeds `prompt` after what the decoder holds and generates; `emit` gets text that never splits a character.
///
/// The same as on the CPU, but that a token which ends the generation by `max_tokens` is not fed any more.
pub fn generate(
    decoder: &mut GpuDecoder<'_>,
    tokenizer: &Tokenizer,
    prompt: &[u32],
    settings: &Settings,
    emit: &mut dyn FnMut(&str) -> Flow,
) -> Result<Generated> {
    let mut output = Output::new(tokenizer, emit);
    let by = by(settings, prompt)?;
    decoder.admit(prompt)?;
    let (last, before) = prompt.split_last().expect("an admitted prompt has a token");
    decoder.prefill(before)?;
    let (room, mut ended) = (decoder.options().context - decoder.position(), None);
    let mut take = |id: u32| -> Result<Flow> {
        ended = output.take(id)?;
        Ok(if ended.is_some() { Flow::Stop } else { Flow::Continue })
    };
    decoder.draw(*last, &by, settings.max_tokens, &mut take)?;
    let full = if output.count() == room { Ended::Context } else { Ended::MaxTokens };
    Ok(output.generated(ended.unwrap_or(full), prompt.len()))
}
