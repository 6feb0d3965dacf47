//! The token list of a file in three flat arrays: texts, where each begins, and a hash index over them.

use std::hash::{BuildHasher, RandomState};

use crate::error::{Error, Result};
use crate::gguf::{Gguf, MetaType, required};

/// What a token stands for, numbered as in `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

impl Kind {
    fn from_id(id: i64) -> Option<Kind> {
        const KINDS: [Kind; 6] =
            [Kind::Normal, Kind::Unknown, Kind::Control, Kind::UserDefined, Kind::Unused, Kind::Byte];
        KINDS.get(usize::try_from(id).ok()?.checked_sub(1)?).copied()
    }
}

/// Every token by id and by text. About 20 bytes a token beside its text, where a map of strings takes over 100.
#[derive(Debug)]
pub(super) struct Vocab {
    texts: Vec<u8>,
    ends: Vec<u32>,
    kinds: Vec<Kind>,
    slots: Vec<u32>,
    hasher: RandomState,
}

const EMPTY: u32 = u32::MAX;

impl Vocab {
    pub(super) fn read(file: &Gguf) -> Result<Vocab> {
        let key = "tokenizer.ggml.tokens";
        let tokens = required(key, file.array(key, MetaType::Str)?)?;
        if tokens.len == 0 || tokens.bytes().len() >= EMPTY as usize {
            let (len, bytes) = (tokens.len, tokens.bytes().len());
            return Err(Error::text(format!("metadata {key} has {len} tokens of {bytes} bytes in all")));
        }
        let mut vocab = Vocab {
            texts: Vec::with_capacity(tokens.bytes().len() - 8 * tokens.len),
            ends: Vec::with_capacity(tokens.len),
            kinds: kinds(file, tokens.len)?,
            slots: vec![EMPTY; (2 * tokens.len).next_power_of_two()],
            hasher: RandomState::new(),
        };
        for text in tokens.strings() {
            vocab.texts.extend_from_slice(text.as_bytes());
            vocab.ends.push(vocab.texts.len() as u32);
        }
        for id in 0..vocab.len() as u32 {
            vocab.index(id)?;
        }
        Ok(vocab)
    }

    fn index(&mut self, id: u32) -> Result<()> {
        let text = self.text(id);
        if text.is_empty() {
            return Ok(()); // matches nothing
        }
        let mut slot = self.home(text);
        while self.slots[slot] != EMPTY {
            let other = self.slots[slot];
            if self.text(other) == text {
                let shown = String::from_utf8_lossy(text);
                return Err(Error::text(format!(
                    "metadata tokenizer.ggml.tokens: {other} and {id} are both {shown:?}"
                )));
            }
            slot = (slot + 1) & (self.slots.len() - 1);
        }
        self.slots[slot] = id;
        Ok(())
    }

    fn home(&self, text: &[u8]) -> usize {
        self.hasher.hash_one(text) as usize & (self.slots.len() - 1)
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Text of token `id`, which must be below [`Vocab::len`].
    pub(super) fn text(&self, id: u32) -> &[u8] {
        let start = if id == 0 { 0 } else { self.ends[id as usize - 1] };
        &self.texts[start as usize..self.ends[id as usize] as usize]
    }

    pub(super) fn kind(&self, id: u32) -> Kind {
        self.kinds[id as usize]
    }

    /// The token with this text.
    pub(super) fn find(&self, text: &[u8]) -> Option<u32> {
        let mut slot = self.home(text);
        while self.slots[slot] != EMPTY {
            if self.text(self.slots[slot]) == text {
                return Some(self.slots[slot]);
            }
            slot = (slot + 1) & (self.slots.len() - 1);
        }
        None
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = u32> + use<> {
        0..self.len() as u32
    }
}

fn kinds(file: &Gguf, len: usize) -> Result<Vec<Kind>> {
    let key = "tokenizer.ggml.token_type";
    let types = required(key, file.array(key, MetaType::I32)?)?;
    if types.len != len {
        return Err(Error::text(format!("metadata {key} has {} entries for {len} tokens", types.len)));
    }
    let kind = |(id, value): (usize, crate::gguf::Value)| {
        let number = value.as_i64().unwrap_or(0);
        Kind::from_id(number)
            .ok_or_else(|| Error::text(format!("metadata {key}: token {id} has type {number}, known are 1 to 6")))
    };
    types.values().enumerate().map(kind).collect()
}
