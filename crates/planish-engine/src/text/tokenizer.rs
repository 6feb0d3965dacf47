//! Text to token ids and back, from a file's own metadata: byte-level BPE ("gpt2") and score-driven BPE ("llama").

use std::borrow::Cow;
use std::collections::HashMap;

use super::merge::{Symbol, merge};
use super::pre::Pre;
use super::vocab::{Kind, Vocab};
use crate::error::{Error, Result};
use crate::gguf::{Gguf, MetaType, required};

/// What becomes of the texts of control tokens, such as `<|im_end|>`, inside a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    /// They become the control tokens: for rendered chat templates.
    Parse,
    /// They are characters like any others: for text from strangers.
    Plain,
}

/// Texts that end a reply where a control token has them, beside the ids that the file names.
const END_TEXTS: &[&str] = &[
    "<|im_end|>",
    "<end_of_turn>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|end|>",
    "<eos>",
    "</s>",
];
/// Longest text that is encoded in one piece, bytes; positions inside it are 32-bit.
const TEXT_BYTES_MAX: usize = 1 << 30;
/// The stand-in for a space in score-driven vocabularies.
const SPACE: &str = "\u{2581}";

/// Turns text into token ids and back.
pub struct Tokenizer {
    vocab: Vocab,
    model: Model,
    /// Tokens that are matched in the text before anything else, by first byte, longest first.
    matched: HashMap<u8, Vec<u32>>,
    ends: Vec<u32>,
    bos: Option<u32>,
    eos: Option<u32>,
    add_bos: bool,
    add_eos: bool,
}

enum Model {
    ByteLevel {
        pre: Box<Pre>,
        /// Pair of tokens to rank and joined token.
        merges: HashMap<(u32, u32), (u32, u32)>,
        /// Token of each byte, where the vocabulary has it.
        bytes: Box<[Option<u32>; 256]>,
    },
    Scored {
        /// Rank of each token, lower is better.
        ranks: Vec<u32>,
        /// Token of each byte, where the vocabulary has it.
        bytes: Box<[Option<u32>; 256]>,
        unknown: Option<u32>,
        space_prefix: bool,
    },
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tokenizer({} tokens)", self.vocab.len())
    }
}

impl Tokenizer {
    /// Reads the tokenizer of a model file.
    pub fn read(file: &Gguf) -> Result<Tokenizer> {
        let vocab = Vocab::read(file)?;
        let key = "tokenizer.ggml.model";
        let model = match required(key, file.str(key)?)? {
            "gpt2" => byte_level(file, &vocab)?,
            "llama" => scored(file, &vocab)?,
            other => {
                let shown: String = other.chars().take(64).collect();
                return Err(Error::text(format!(
                    "tokenizer {shown:?} ({key}) is not supported; supported are gpt2, llama"
                )));
            }
        };
        let adds_bos = match &model {
            Model::ByteLevel { pre, .. } => pre.adds_bos,
            Model::Scored { .. } => true,
        };
        let bos = token_id(file, &vocab, "bos_token_id")?;
        let eos = token_id(file, &vocab, "eos_token_id")?;
        let add_bos = file.bool("tokenizer.ggml.add_bos_token")?.unwrap_or(adds_bos);
        let add_eos = file.bool("tokenizer.ggml.add_eos_token")?.unwrap_or(false);
        for (adds, id, name) in [(add_bos, bos, "bos"), (add_eos, eos, "eos")] {
            if adds && id.is_none() {
                return Err(Error::text(format!(
                    "the file has no tokenizer.ggml.{name}_token_id, which it says to add"
                )));
            }
        }
        let mut ends: Vec<u32> = eos.into_iter().collect();
        for name in ["eot_token_id", "eom_token_id"] {
            ends.extend(token_id(file, &vocab, name)?);
        }
        let known = |text: &&str| vocab.find(text.as_bytes()).filter(|&id| vocab.kind(id) == Kind::Control);
        ends.extend(END_TEXTS.iter().filter_map(known));
        let matched = matched(&vocab);
        Ok(Tokenizer { vocab, model, matched, ends, bos, eos, add_bos, add_eos })
    }

    /// Number of tokens; ids are below it.
    pub fn vocab_size(&self) -> usize {
        self.vocab.len()
    }

    /// The beginning-of-sequence token, if the file names one.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// The end-of-sequence token, if the file names one.
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// Whether prompts of this model begin with [`Tokenizer::bos`].
    pub fn adds_bos(&self) -> bool {
        self.add_bos
    }

    /// The token with exactly this text.
    pub fn id_of(&self, text: &str) -> Option<u32> {
        self.vocab.find(text.as_bytes())
    }

    /// The text of token `id` as the file spells it.
    pub fn text_of(&self, id: u32) -> Result<Cow<'_, str>> {
        self.check(id)?;
        Ok(String::from_utf8_lossy(self.vocab.text(id)))
    }

    /// True if `id` ends a reply.
    pub fn is_end(&self, id: u32) -> bool {
        self.ends.contains(&id)
    }

    /// True if `id` steers the model and is no text to show.
    pub fn is_control(&self, id: u32) -> bool {
        (id as usize) < self.vocab.len() && matches!(self.vocab.kind(id), Kind::Control | Kind::Unknown)
    }

    fn check(&self, id: u32) -> Result<()> {
        if (id as usize) < self.vocab.len() {
            return Ok(());
        }
        Err(Error::request(format!("token {id} is outside the vocabulary of {}", self.vocab.len())))
    }

    /// The ids of `text` as a prompt: with the tokens that this model wants at its beginning and end.
    pub fn encode_prompt(&self, text: &str, special: Special) -> Result<Vec<u32>> {
        let mut ids: Vec<u32> = self.bos.filter(|_| self.add_bos).into_iter().collect();
        ids.extend(self.encode(text, special)?);
        ids.extend(self.eos.filter(|_| self.add_eos));
        Ok(ids)
    }

    /// The ids of a rendered chat: its control tokens count, and a beginning that the template wrote is not doubled.
    pub fn encode_chat(&self, rendered: &str) -> Result<Vec<u32>> {
        let mut ids = self.encode(rendered, Special::Parse)?;
        if let Some(bos) = self.bos.filter(|&b| self.add_bos && ids.first() != Some(&b)) {
            ids.insert(0, bos);
        }
        Ok(ids)
    }

    /// The ids of `text` alone.
    pub fn encode(&self, text: &str, special: Special) -> Result<Vec<u32>> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(Error::request(format!(
                "a text of {} bytes, at most {TEXT_BYTES_MAX} are encoded",
                text.len()
            )));
        }
        let mut ids = Vec::new();
        let (mut start, mut at, mut after_match) = (0, 0, true);
        while at < text.len() {
            let Some(id) = self.match_at(&text.as_bytes()[at..], special) else {
                at += 1;
                continue;
            };
            if start < at {
                self.encode_piece(&text[start..at], after_match, &mut ids)?;
            }
            ids.push(id);
            at += self.vocab.text(id).len();
            (start, after_match) = (at, true);
        }
        if start < text.len() {
            self.encode_piece(&text[start..], after_match, &mut ids)?;
        }
        Ok(ids)
    }

    /// The longest matched token that `rest` begins with.
    fn match_at(&self, rest: &[u8], special: Special) -> Option<u32> {
        let counts = |id: u32| special == Special::Parse || self.vocab.kind(id) == Kind::UserDefined;
        let candidates = self.matched.get(rest.first()?)?;
        candidates.iter().copied().find(|&id| counts(id) && rest.starts_with(self.vocab.text(id)))
    }

    /// Encodes text without matched tokens; `first` if it begins the text or follows a matched token.
    fn encode_piece(&self, text: &str, first: bool, ids: &mut Vec<u32>) -> Result<()> {
        match &self.model {
            Model::ByteLevel { pre, merges, bytes } => {
                let mut word = Word::default();
                pre.words(text, |w| word.encode(w, &self.vocab, (merges, bytes, pre.whole_words), ids))
            }
            Model::Scored { ranks, bytes, unknown, space_prefix } => {
                let prefix = if *space_prefix && first { SPACE } else { "" };
                let text = prefix.to_string() + &text.replace(' ', SPACE);
                let normal = |id: &u32| self.vocab.kind(*id) == Kind::Normal;
                let find = |start: usize, end: usize| self.vocab.find(&text.as_bytes()[start..end]).filter(normal);
                let mut symbols: Vec<Symbol> = text
                    .char_indices()
                    .map(|(at, c)| Symbol::new(at, at + c.len_utf8(), find(at, at + c.len_utf8())))
                    .collect();
                merge(&mut symbols, |a, b| {
                    let id = find(a.start as usize, b.end as usize)?;
                    Some((ranks[id as usize], id))
                });
                for symbol in &symbols {
                    let fallback = &text.as_bytes()[symbol.start as usize..symbol.end as usize];
                    match symbol.id {
                        Some(id) => ids.push(id),
                        None => fall_back(fallback, bytes, *unknown, ids),
                    }
                }
                Ok(())
            }
        }
    }

    /// The bytes that token `id` stands for; control tokens give their text.
    pub fn decode_bytes(&self, id: u32) -> Result<Cow<'_, [u8]>> {
        self.check(id)?;
        let text = self.vocab.text(id);
        let kind = self.vocab.kind(id);
        Ok(match (&self.model, kind) {
            (_, Kind::Control | Kind::UserDefined | Kind::Unknown) => Cow::Borrowed(text),
            (_, Kind::Byte) => byte_value(text).map_or(Cow::Borrowed(text), |b| Cow::Owned(vec![b])),
            (Model::ByteLevel { .. }, _) => Cow::Owned(bytes_of(text)),
            (Model::Scored { .. }, _) => Cow::Owned(String::from_utf8_lossy(text).replace(SPACE, " ").into_bytes()),
        })
    }

    /// The bytes of a list of tokens.
    pub fn decode(&self, ids: &[u32]) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        for &id in ids {
            out.extend_from_slice(&self.decode_bytes(id)?);
        }
        Ok(out)
    }
}

/// Buffers of one word of byte-level BPE.
#[derive(Default)]
struct Word {
    text: String,
    symbols: Vec<Symbol>,
}

type ByteLevelTables<'a> = (&'a HashMap<(u32, u32), (u32, u32)>, &'a [Option<u32>; 256], bool);

impl Word {
    fn encode(&mut self, word: &str, vocab: &Vocab, tables: ByteLevelTables, ids: &mut Vec<u32>) {
        let (merges, bytes, whole_words) = tables;
        self.symbols.clear();
        if whole_words {
            self.text.clear();
            self.text.extend(word.bytes().map(stand_in));
            if let Some(id) = vocab.find(self.text.as_bytes()) {
                ids.push(id);
                return;
            }
        }
        self.symbols.extend(word.bytes().enumerate().map(|(i, b)| Symbol::new(i, i + 1, bytes[b as usize])));
        merge(&mut self.symbols, |a, b| merges.get(&(a.id?, b.id?)).copied());
        ids.extend(self.symbols.iter().filter_map(|s| s.id)); // a byte that the vocabulary lacks has no token
    }
}

/// The bytes of text that is no token: as byte tokens, or else as one unknown token.
fn fall_back(text: &[u8], bytes: &[Option<u32>; 256], unknown: Option<u32>, ids: &mut Vec<u32>) {
    if text.iter().all(|&b| bytes[b as usize].is_some()) {
        ids.extend(text.iter().filter_map(|&b| bytes[b as usize]));
    } else {
        ids.extend(unknown);
    }
}

/// GPT-2's printable stand-in for a byte: itself where printable Latin-1, else the next unused one from U+0100.
pub(crate) fn stand_in(byte: u8) -> char {
    let shifted = match byte {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => return char::from(byte),
        0x00..=0x20 => u32::from(byte),
        0x7f..=0xa0 => 33 + u32::from(byte) - 0x7f,
        0xad => 67,
    };
    char::from_u32(0x100 + shifted).expect("stand-ins lie between U+0100 and U+0143")
}

/// The byte behind a stand-in.
fn stood_for(c: char) -> Option<u8> {
    match u32::from(c) {
        0x100..=0x120 => Some((u32::from(c) - 0x100) as u8),
        0x121..=0x142 => Some((u32::from(c) - 0x121) as u8 + 0x7f),
        0x143 => Some(0xad),
        v @ (0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff) => Some(v as u8),
        _ => None,
    }
}

/// The bytes of a byte-level token; a character that stands for no byte counts as itself.
fn bytes_of(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    for c in String::from_utf8_lossy(text).chars() {
        match stood_for(c) {
            Some(byte) => out.push(byte),
            None => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    out
}

/// The byte of a token like `<0x0A>`.
fn byte_value(text: &[u8]) -> Option<u8> {
    let digits = text.strip_prefix(b"<0x")?.strip_suffix(b">")?;
    let digits = std::str::from_utf8(digits).ok().filter(|d| d.len() == 2)?;
    u8::from_str_radix(digits, 16).ok()
}

fn token_id(file: &Gguf, vocab: &Vocab, name: &str) -> Result<Option<u32>> {
    let key = format!("tokenizer.ggml.{name}");
    match file.u32(&key)? {
        Some(id) if id as usize >= vocab.len() => {
            Err(Error::text(format!("metadata {key} is {id}, outside the vocabulary of {}", vocab.len())))
        }
        other => Ok(other),
    }
}

fn matched(vocab: &Vocab) -> HashMap<u8, Vec<u32>> {
    let mut by_first: HashMap<u8, Vec<u32>> = HashMap::new();
    for id in vocab.ids() {
        if matches!(vocab.kind(id), Kind::Control | Kind::UserDefined | Kind::Unknown)
            && let Some(&first) = vocab.text(id).first()
        {
            by_first.entry(first).or_default().push(id);
        }
    }
    for ids in by_first.values_mut() {
        ids.sort_by_key(|&id| std::cmp::Reverse(vocab.text(id).len()));
    }
    by_first
}

fn byte_level(file: &Gguf, vocab: &Vocab) -> Result<Model> {
    let key = "tokenizer.ggml.pre";
    let pre = Pre::named(required(key, file.str(key)?)?)?;
    let key = "tokenizer.ggml.merges";
    let list = required(key, file.array(key, MetaType::Str)?)?;
    let mut merges = HashMap::with_capacity(list.len);
    let mut joined = Vec::new();
    for (rank, text) in list.strings().enumerate() {
        let refuse = |what: &str| Error::text(format!("metadata {key}: entry {rank}, {text:?}, {what}"));
        // A token may begin with a space in a broken list only; the separator is the first space after a character.
        let split = text.char_indices().skip(1).find(|(_, c)| *c == ' ').map(|(at, _)| text.split_at(at));
        let (left, right) = split.ok_or_else(|| refuse("is not two tokens with a space between"))?;
        let right = &right[1..];
        joined.clear();
        joined.extend_from_slice(left.as_bytes());
        joined.extend_from_slice(right.as_bytes());
        let (Some(a), Some(b), Some(id)) =
            (vocab.find(left.as_bytes()), vocab.find(right.as_bytes()), vocab.find(&joined))
        else {
            return Err(refuse("joins or makes something that is no token"));
        };
        merges.entry((a, b)).or_insert((rank as u32, id));
    }
    let bytes = std::array::from_fn(|b| vocab.find(stand_in(b as u8).encode_utf8(&mut [0; 4]).as_bytes()));
    Ok(Model::ByteLevel { pre: Box::new(pre), merges, bytes: Box::new(bytes) })
}

fn scored(file: &Gguf, vocab: &Vocab) -> Result<Model> {
    let key = "tokenizer.ggml.scores";
    let scores = required(key, file.array(key, MetaType::F32)?)?;
    if scores.len != vocab.len() {
        return Err(Error::text(format!("metadata {key} has {} entries for {} tokens", scores.len, vocab.len())));
    }
    let mut ranks = Vec::with_capacity(scores.len);
    for (id, value) in scores.values().enumerate() {
        let score = value.as_f64().unwrap_or(f64::NAN) as f32;
        if !score.is_finite() {
            return Err(Error::text(format!("metadata {key}: token {id} has the score {score}")));
        }
        ranks.push(rank_of(score));
    }
    let mut bytes = Box::new([None; 256]);
    for id in vocab.ids().filter(|&id| vocab.kind(id) == Kind::Byte) {
        let Some(byte) = byte_value(vocab.text(id)) else {
            let shown = String::from_utf8_lossy(vocab.text(id));
            return Err(Error::text(format!(
                "metadata tokenizer.ggml.tokens: byte token {id} is {shown:?}, not <0x..>"
            )));
        };
        bytes[byte as usize] = Some(id);
    }
    let unknown = token_id(file, vocab, "unknown_token_id")?;
    let space_prefix = file.bool("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
    Ok(Model::Scored { ranks, bytes, unknown, space_prefix })
}

/// An integer that falls as a finite score rises; equal for 0 and -0.
fn rank_of(score: f32) -> u32 {
    let bits = (score + 0.0).to_bits();
    let rising = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    !rising
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stand_ins_come_back_and_differ() {
        let all: std::collections::HashSet<char> = (0..=255).map(stand_in).collect();
        assert_eq!(all.len(), 256);
        assert!((0..=255u8).all(|b| stood_for(stand_in(b)) == Some(b)));
        assert_eq!((stand_in(b' '), stand_in(b'\n'), stand_in(0xad)), ('\u{120}', '\u{10a}', '\u{143}'));
    }

    #[test]
    fn ranks_fall_as_scores_rise() {
        let scores = [f32::MAX, 3.5, 1e-30, 0.0, -1e-30, -1.0, -1000.0, f32::MIN];
        assert!(scores.windows(2).all(|w| rank_of(w[0]) < rank_of(w[1])));
        assert_eq!(rank_of(0.0), rank_of(-0.0));
    }
}
