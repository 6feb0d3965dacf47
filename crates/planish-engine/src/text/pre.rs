//! Pre-tokenizers: where byte-level BPE cuts a text into words, as `tokenizer.ggml.pre` names it.

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
    /// Each cuts what the ones before it left.
    patterns: &'static [&'static str],
    /// A word that is a token as a whole is taken without merging.
    whole_words: bool,
    /// A beginning-of-sequence token is added where the file does not say.
    adds_bos: bool,
}

const RULES: &[Rule] = &[
    Rule { names: &["gpt-2"], patterns: &[GPT2], whole_words: false, adds_bos: false },
    Rule { names: &["smollm"], patterns: &[r"\p{N}", GPT2], whole_words: false, adds_bos: false },
    Rule { names: &["llama-bpe", "llama3", "llama-v3"], patterns: &[LLAMA3], whole_words: true, adds_bos: true },
    Rule { names: &["qwen2", "deepseek-r1-qwen"], patterns: &[QWEN2], whole_words: false, adds_bos: false },
    // What converters write that know of no rule, and llama.cpp's for it: runs of punctuation, words, digits by threes.
    Rule {
        names: &["default"],
        patterns: &[r"[\p{P}$+<=>^~|]+", GPT2, r"\p{N}+", "[0-9]{3}"],
        whole_words: false,
        adds_bos: false,
    },
];

/// A pre-tokenizer, ready to cut.
pub(super) struct Pre {
    splits: Vec<Split>,
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
        let split = |pattern: &&str| {
            Split::new(SplitPattern::Regex(pattern.to_string()), SplitDelimiterBehavior::Isolated, false)
                .map_err(|e| Error::text(format!("the pattern of pre-tokenizer {name:?}: {e}")))
        };
        let splits = rule.patterns.iter().map(split).collect::<Result<_>>()?;
        Ok(Pre { splits, whole_words: rule.whole_words, adds_bos: rule.adds_bos })
    }

    /// Gives `each` the words of `text`, in order; together they are the text.
    pub(super) fn words(&self, text: &str, mut each: impl FnMut(&str)) -> Result<()> {
        let mut pieces = PreTokenizedString::from(text);
        for split in &self.splits {
            split.pre_tokenize(&mut pieces).map_err(|e| Error::text(format!("cut the text into words: {e}")))?;
        }
        for (word, _, _) in pieces.get_splits(OffsetReferential::Normalized, OffsetType::Byte) {
            each(word);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(name: &str, text: &str, wanted: &[&str]) {
        let mut words = Vec::new();
        Pre::named(name).expect("a rule").words(text, |w| words.push(w.to_owned())).expect("words");
        assert_eq!(words, wanted, "{name}: {text:?}");
    }

    #[test]
    fn rules_cut_as_they_say() {
        let text = "It's 12345 <= x_1?  Yes";
        check("gpt-2", text, &["It", "'s", " 12345", " <=", " x", "_", "1", "?", " ", " Yes"]);
        check("smollm", text, &["It", "'s", " ", "1", "2", "3", "4", "5", " <=", " x", "_", "1", "?", " ", " Yes"]);
        check("qwen2", text, &["It", "'s", " ", "1", "2", "3", "4", "5", " <=", " x", "_", "1", "?", " ", " Yes"]);
        check("llama-bpe", text, &["It", "'s", " ", "123", "45", " <=", " x", "_", "1", "?", " ", " Yes"]);
        check("default", text, &["It", "'", "s", " ", "123", "45", " ", "<=", " x", "_", "1", "?", " ", " Yes"]);
        check(
            "default",
            "a\n\n1 ++b, \u{663}\u{664}",
            &["a", "\n", "\n", "1", " ", "++", "b", ",", " ", "\u{663}\u{664}"],
        );
    }
}
