//! From a prompt to a stream of text: prefill, then sample and feed one token at a time.

use std::time::{Duration, Instant};

use planish_kernels::cpu::isa::Isa;
use planish_kernels::cpu::sample::{Draw, Params, TokenCount, Workspace, argmax, sample};

use crate::decoder::Decoder;
use crate::error::{Error, NOT_FINITE_HINT, Result};
use crate::text::{Tokenizer, Utf8Stream};

/// How tokens are drawn and when generation ends.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Filters, temperature and penalties; temperature 0 is greedy.
    pub sampling: Params,
    /// Tokens before the present one that penalties count, the prompt's included.
    pub penalty_window: usize,
    /// Key of the random numbers: the same seed gives the same text.
    pub seed: u64,
    /// Most tokens to generate.
    pub max_tokens: usize,
}

/// Why generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// The model gave an end token.
    EndToken,
    /// `max_tokens` were generated.
    MaxTokens,
    /// The cache is full.
    Context,
    /// The receiver of the text asked to stop.
    Stopped,
}

/// What a generation did.
#[derive(Clone, Debug)]
pub struct Generated {
    /// Generated ids, the end token not included.
    pub ids: Vec<u32>,
    /// Why it ended.
    pub ended: Ended,
    /// Tokens of the prompt that were fed.
    pub prompt_tokens: usize,
    /// Time to feed the prompt and draw the first token.
    pub first_token: Duration,
    /// Time after the first token.
    pub rest: Duration,
}

impl Generated {
    /// Tokens a second after the first token; `None` for fewer than two tokens.
    pub fn decode_tok_s(&self) -> Option<f64> {
        (self.ids.len() > 1).then(|| (self.ids.len() - 1) as f64 / self.rest.as_secs_f64())
    }
}

/// Whether to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Generate the next token.
    Continue,
    /// Stop after this one.
    Stop,
}

/// Tokens on their way to text and to who receives it.
pub(crate) struct Output<'o> {
    tokenizer: &'o Tokenizer,
    emit: &'o mut dyn FnMut(&str) -> Flow,
    start: Instant,
    first_token: Option<Duration>,
    ids: Vec<u32>,
    stream: Utf8Stream,
}

impl<'o> Output<'o> {
    /// Nothing yet; times count from here. `emit` gets text that never splits a character.
    pub fn new(tokenizer: &'o Tokenizer, emit: &'o mut dyn FnMut(&str) -> Flow) -> Self {
        let (start, stream) = (Instant::now(), Utf8Stream::default());
        Output { tokenizer, emit, start, first_token: None, ids: Vec::new(), stream }
    }

    /// Tokens taken.
    pub fn count(&self) -> usize {
        self.ids.len()
    }

    /// Takes a drawn token, and says why it is the last one, if it is; an end token is not kept.
    pub fn take(&mut self, id: u32) -> Result<Option<Ended>> {
        self.first_token.get_or_insert_with(|| self.start.elapsed());
        if self.tokenizer.is_end(id) {
            return Ok(Some(Ended::EndToken));
        }
        self.ids.push(id);
        let text = self.stream.push(&self.tokenizer.decode_bytes(id)?);
        let stopped = !text.is_empty() && (self.emit)(&text) == Flow::Stop;
        Ok(stopped.then_some(Ended::Stopped))
    }

    /// Hands out what is left of the text; what the generation did.
    pub fn generated(mut self, ended: Ended, prompt_tokens: usize) -> Generated {
        let tail = self.stream.finish();
        if !tail.is_empty() {
            (self.emit)(&tail);
        }
        let total = self.start.elapsed();
        let first_token = self.first_token.unwrap_or(total);
        Generated { ids: self.ids, ended, prompt_tokens, first_token, rest: total - first_token }
    }
}

/// Feeds `prompt` after what the decoder holds and generates; `emit` gets text that never splits a character, and none
/// after each chunk of a long prompt, where it may stop too.
///
/// A token drawn last is fed too, so that a following turn of a conversation goes on from there.
pub fn generate(
    decoder: &mut Decoder<'_>,
    tokenizer: &Tokenizer,
    prompt: &[u32],
    settings: &Settings,
    emit: &mut dyn FnMut(&str) -> Flow,
) -> Result<Generated> {
    let mut output = Output::new(tokenizer, emit);
    let mut session = Session::new(decoder.isa(), decoder.hyper().vocab, prompt, settings);
    let mut logits = feed(decoder, prompt, output.emit)?;
    let ended = loop {
        let Some(logits) = &mut logits else { break Ended::Stopped };
        if output.count() == settings.max_tokens {
            break Ended::MaxTokens;
        }
        let id = session.draw(logits)?;
        if let Some(ended) = output.take(id)? {
            break ended;
        }
        if decoder.position() == decoder.options().context {
            break Ended::Context;
        }
        logits.copy_from_slice(decoder.feed(&[id])?);
    };
    Ok(output.generated(ended, prompt.len()))
}

/// Feeds `prompt` chunk by chunk, between which `emit` may stop it; the logits after all of it, if it came to that.
fn feed(decoder: &mut Decoder<'_>, prompt: &[u32], emit: &mut dyn FnMut(&str) -> Flow) -> Result<Option<Vec<f32>>> {
    decoder.admit(prompt)?;
    let mut rest = prompt;
    while rest.len() > decoder.options().chunk {
        let (part, after) = rest.split_at(decoder.options().chunk);
        decoder.feed(part)?;
        if emit("") == Flow::Stop {
            return Ok(None);
        }
        rest = after;
    }
    Ok(Some(decoder.feed(rest)?.to_vec()))
}

/// The token that greedy sampling takes; `None` where no logit is above -inf or one is +inf.
pub fn greedy_token(isa: Isa, logits: &[f32]) -> Option<u32> {
    argmax(isa, logits, &mut Workspace::new(0)).ok()
}

/// The state of the sampler over one generation.
struct Session<'s> {
    isa: Isa,
    settings: &'s Settings,
    workspace: Workspace,
    /// The prompt, and what was drawn.
    seen: Vec<u32>,
    /// Tokens that penalties count, sorted; and how often each occurs.
    window: Vec<u32>,
    history: Vec<TokenCount>,
}

impl<'s> Session<'s> {
    fn new(isa: Isa, vocab: usize, prompt: &[u32], settings: &'s Settings) -> Self {
        let (workspace, seen) = (Workspace::new(vocab), prompt.to_vec());
        Session { isa, settings, workspace, seen, window: Vec::new(), history: Vec::new() }
    }

    fn draw(&mut self, logits: &mut [f32]) -> Result<u32> {
        let from = self.seen.len().saturating_sub(self.settings.penalty_window);
        self.window.clear();
        self.window.extend_from_slice(&self.seen[from..]);
        self.window.sort_unstable();
        self.history.clear();
        let runs = self.window.chunk_by(|a, b| a == b);
        self.history.extend(runs.map(|run| TokenCount { token: run[0], count: run.len() as u32 }));
        let draw = Draw { seed: self.settings.seed, sequence: 0, step: self.seen.len() as u64 };
        let drawn = sample(self.isa, (logits, &self.history), &self.settings.sampling, draw, &mut self.workspace);
        let id = drawn.map_err(|e| {
            let error = Error::request(e.to_string());
            if logits.iter().all(|v| v.is_finite()) { error } else { error.with_hint(NOT_FINITE_HINT) }
        })?;
        self.seen.push(id);
        Ok(id)
    }
}
