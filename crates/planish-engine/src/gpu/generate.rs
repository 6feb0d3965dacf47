//! From a prompt to a stream of text on a GPU: the device draws and goes on, the host reads the tokens behind it.

use planish_kernels::cpu::sample::Draw;
use planish_kernels::gpu::sample;

use super::decoder::{By, GpuDecoder};
use crate::error::{Error, Result};
use crate::generate::{Ended, Flow, Generated, Output, Settings};
use crate::text::Tokenizer;

/// How the device draws under `settings` after a prompt of `prompt_tokens`; the draws are those of the CPU.
///
/// Penalties are refused: the device keeps no history of tokens.
pub fn by(settings: &Settings, prompt_tokens: usize) -> Result<By> {
    let p = &settings.sampling;
    let penalties = p.repetition != 1.0 || p.frequency != 0.0 || p.presence != 0.0;
    if penalties && settings.penalty_window > 0 {
        return Err(Error::request("penalties on a GPU: repetition, frequency and presence are not counted there")
            .with_hint("leave out --repeat-penalty, or run with --device cpu"));
    }
    if p.temperature <= 0.0 {
        return Ok(By::Likeliest);
    }
    let draw = Draw { seed: settings.seed, sequence: 0, step: prompt_tokens as u64 };
    Ok(By::Settings(sample::settings(p, draw)))
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
    let by = by(settings, prompt.len())?;
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
