//! Pre-tokenizers: where byte-level BPE cuts a text into words, as `tokenizer.ggml.pre` names it.

use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::tokenizer::SplitDelimiterBehavior;
use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer};

use crate::error::{Error, Result};

/// The rule of GPT-2.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
/// The rule of Llama 3: up to three digits together.
const LLAMA3: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
/// The rule of Qwen 2: digits one by one.
const QWEN2: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// A rule as the files name it.
struct Rule {
    names: &'static [&'static str],
    pattern: &'static str,
    /// Digits are cut off one by one before the pattern sees the text.
    single_digits: bool,
    /// A word that is a token as a whole is taken without merging.
    whole_words: bool,
    /// A beginning-of-sequence token is added where the file does not say.
    adds_bos: bool,
}

const RULES: &[Rule] = &[
    Rule { names: &["gpt-2"], pattern: GPT2, single_digits: false, whole_words: false, adds_bos: false },
    Rule { names: &["smollm"], pattern: GPT2, single_digits: true, whole_words: false, adds_bos: false },
    Rule {
        names: &["llama-bpe", "llama3", "llama-v3"],
        pattern: LLAMA3,
        single_digits: false,
        whole_words: true,
        adds_bos: true,
    },
    Rule {
        names: &["qwen2", "deepseek-r1-qwen"],
        pattern: QWEN2,
        single_digits: false,
        whole_words: false,
        adds_bos: false,
    },
];

/// A pre-tokenizer, ready to cut.
pub(super) struct Pre {
    digits: Option<Digits>,
    split: Split,
    pub(super) whole_words: bool,
    pub(super) adds_bos: bool,
}

impl Pre {
    pub(super) fn named(name: &str) -> Result<Pre> {
        let Some(rule) = RULES.iter().find(|r| r.names.contains(&name)) else {
            let known = RULES.iter().flat_map(|r| r.names).copied().collect::<Vec<_>>().join(", ");
            let shown: String = name.chars().take(64).collect();
            return Err(Error::text(format!(
                "pre-tokenizer {shown:?} (tokenizer.ggml.pre) is not supported; supported are {known}"
            )));
        };
        let pattern = SplitPattern::Regex(rule.pattern.to_string());
        let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false)
            .map_err(|e| Error::text(format!("the pattern of pre-tokenizer {name:?}: {e}")))?;
        let digits = rule.single_digits.then(|| Digits::new(true));
        Ok(Pre { digits, split, whole_words: rule.whole_words, adds_bos: rule.adds_bos })
    }

    /// Gives `each` the words of `text`, in order; together they are the text.
    pub(super) fn words(&self, text: &str, mut each: impl FnMut(&str)) -> Result<()> {
        let mut pieces = PreTokenizedString::from(text);
        let cut = |pieces: &mut PreTokenizedString| {
            if let Some(digits) = &self.digits {
                digits.pre_tokenize(pieces)?;
            }
            self.split.pre_tokenize(pieces)
        };
        cut(&mut pieces).map_err(|e| Error::text(format!("cut the text into words: {e}")))?;
        for (word, _, _) in pieces.get_splits(OffsetReferential::Normalized, OffsetType::Byte) {
            each(word);
        }
        Ok(())
    }
}
