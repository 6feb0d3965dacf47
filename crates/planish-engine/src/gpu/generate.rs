//! From a prompt to a stream of text on a GPU: the device draws and goes on, the host reads the tokens behind it.

use std::time::Instant;

use planish_kernels::cpu::sample::Draw;
use planish_kernels::gpu::sample;

use super::decoder::{By, GpuDecoder};
use crate::error::{Error, Result};
use crate::generate::{Ended, Flow, Generated, Settings};
use crate::text::{Tokenizer, Utf8Stream};

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
    let start = Instant::now();
    let by = by(settings, prompt.len())?;
    decoder.admit(prompt)?;
    let (last, before) = prompt.split_last().expect("an admitted prompt has a token");
    decoder.prefill(before)?;
    let room = decoder.options().context - decoder.position();
    let (mut ids, mut stream, mut first_token, mut ended) = (Vec::new(), Utf8Stream::default(), None, None);
    let mut take = |id: u32| -> Result<Flow> {
        first_token.get_or_insert_with(|| start.elapsed());
        if tokenizer.is_end(id) {
            ended = Some(Ended::EndToken);
            return Ok(Flow::Stop);
        }
        ids.push(id);
        let text = stream.push(&tokenizer.decode_bytes(id)?);
        if !text.is_empty() && emit(&text) == Flow::Stop {
            ended = Some(Ended::Stopped);
            return Ok(Flow::Stop);
        }
        Ok(Flow::Continue)
    };
    decoder.draw(*last, &by, settings.max_tokens, &mut take)?;
    let tail = stream.finish();
    if !tail.is_empty() {
        emit(&tail);
    }
    let total = start.elapsed();
    let first_token = first_token.unwrap_or(total);
    let full = if ids.len() == room { Ended::Context } else { Ended::MaxTokens };
    let (ended, rest) = (ended.unwrap_or(full), total - first_token);
    Ok(Generated { ids, ended, prompt_tokens: prompt.len(), first_token, rest })
}
