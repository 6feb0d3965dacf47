//! Hostile files: crafted faults are refused with the field and its numbers, and no mutation panics.

mod common;

use common::golden_dir;
use planish_engine::arch::Hyper;
use planish_engine::gguf::{Gguf, MetaValue, Writer};
use planish_engine::text::chat::ChatTemplate;
use planish_engine::text::{Special, Tokenizer};
use planish_kernels::data::Rng;

/// The reader and the architecture table, as far as they get.
fn read_model(bytes: &[u8]) -> Result<Gguf, String> {
    let file = Gguf::from_bytes(bytes).map_err(|e| e.to_string())?;
    Hyper::read(&file).map_err(|e| e.to_string())?;
    Ok(file)
}

/// The tokenizer, there and back.
fn read_text(bytes: &[u8]) -> Result<(), String> {
    let file = Gguf::from_bytes(bytes).map_err(|e| e.to_string())?;
    let tokenizer = Tokenizer::read(&file).map_err(|e| e.to_string())?;
    let ids = tokenizer.encode_prompt("It's 2024, <|im_end|> \u{4f60} na\u{ef}ve", Special::Parse);
    tokenizer.decode(&ids.map_err(|e| e.to_string())?).map(|_| ()).map_err(|e| e.to_string())
}

/// One F32 tensor of four values behind a header with `meta`.
fn small() -> Writer {
    let mut writer = Writer::new("llama");
    writer.tensor("t", &[4], 0, vec![0; 16]);
    writer
}

/// `bytes` with the integer `value` written over what stands `after` the first place where `mark` ends.
#[track_caller]
fn patched(bytes: &[u8], mark: &[u8], after: usize, value: &[u8]) -> Vec<u8> {
    let found = bytes.windows(mark.len()).position(|w| w == mark).expect("the mark is in the file");
    let at = found + mark.len() + after;
    let mut out = bytes.to_vec();
    out[at..at + value.len()].copy_from_slice(value);
    out
}

#[track_caller]
fn refused(bytes: &[u8], wanted: &[&str]) {
    let refusal = Gguf::from_bytes(bytes).expect_err("the file must be refused");
    let error = refusal.to_string();
    assert!(refusal.hint().is_some(), "{error:?} has no hint");
    for part in wanted {
        assert!(error.contains(part), "{error:?} does not name {part:?}");
    }
}

#[test]
fn header() {
    let good = small().to_bytes().expect("a good file");
    assert_eq!(Gguf::from_bytes(&good).expect("it opens").tensors().len(), 1);
    refused(b"", &["magic", "4 bytes"]);
    refused(b"PK\x03\x04....", &["not a GGUF file"]);
    refused(&patched(&good, b"GGUF", 0, &1u32.to_le_bytes()), &["version 1"]);
    refused(&patched(&good, b"GGUF", 0, &9u32.to_le_bytes()), &["version 9"]);
    refused(&patched(&good, b"GGUF", 0, &3u32.to_be_bytes()), &["big-endian", "version 3"]);
    refused(&patched(&good, b"GGUF", 4, &(1u64 << 60).to_le_bytes()), &["tensor count", "1152921504606846976"]);
    refused(&patched(&good, b"GGUF", 12, &u64::MAX.to_le_bytes()), &["metadata count", "18446744073709551615"]);
    assert!(Gguf::from_bytes(&patched(&good, b"GGUF", 0, &2u32.to_le_bytes())).is_ok());
}

#[test]
fn metadata() {
    let mut writer = small();
    writer.meta("text", "abc").meta("list", vec![1u32, 2, 3]).meta("flag", true);
    let good = writer.to_bytes().expect("a good file");
    refused(&patched(&good, b"text", 4, &(1u64 << 63).to_le_bytes()), &["metadata text", "9223372036854775808"]);
    refused(&patched(&good, b"text", 12, b"\xff"), &["metadata text", "UTF-8"]);
    refused(&patched(&good, b"text", 0, &77u32.to_le_bytes()), &["metadata text", "value type 77"]);
    refused(&patched(&good, b"list", 4, &13u32.to_le_bytes()), &["metadata list", "element type 13"]);
    refused(
        &patched(&good, b"list", 8, &(1u64 << 60).to_le_bytes()),
        &["metadata list", "array length", "1152921504606846976"],
    );
    refused(&patched(&good, b"flag", 4, &[2]), &["metadata flag", "bool is 2"]);
    refused(&patched(&good, b"list", 0, &8u32.to_le_bytes()), &["metadata list"]);
    let twice = small().meta("aaaa", 1u32).meta("aaab", 2u32).to_bytes().expect("a good file");
    refused(&patched(&twice, b"aaa", 20, b"a"), &["aaaa stands twice"]);
}

#[test]
fn nested_arrays() {
    // key "n", type array, then heads of arrays of arrays; each head is 12 bytes.
    let nested = |depth: usize| {
        let mut bytes = b"GGUF\x03\0\0\0".to_vec();
        bytes.extend(0u64.to_le_bytes());
        bytes.extend(1u64.to_le_bytes());
        bytes.extend(1u64.to_le_bytes());
        bytes.extend(b"n\x09\0\0\0");
        for level in 0..depth {
            bytes.extend(if level + 1 == depth { 0u32 } else { 9u32 }.to_le_bytes());
            bytes.extend(1u64.to_le_bytes());
        }
        bytes.push(7);
        bytes
    };
    assert!(Gguf::from_bytes(&nested(3)).is_ok());
    refused(&nested(100_000), &["metadata n", "nested more than 4 deep"]);
}

#[test]
fn alignment() {
    for value in [0u32, 3, 4, 1 << 21, u32::MAX] {
        let good = small().meta("general.alignment", 32u32).to_bytes().expect("a good file");
        let bytes = patched(&good, b"general.alignment", 4, &value.to_le_bytes());
        refused(&bytes, &["general.alignment", &value.to_string()]);
    }
    let odd = small().meta("general.alignment", "x").to_bytes().expect("a file");
    refused(&odd, &["general.alignment is a string"]);
}

#[test]
fn directory() {
    let mut writer = Writer::new("llama");
    writer.tensor("first", &[32, 2], 0, vec![0; 256]).tensor("secnd", &[32], 0, vec![0; 128]);
    let good = writer.to_bytes().expect("a good file");
    let file = Gguf::from_bytes(&good).expect("it opens");
    assert_eq!(file.data(file.tensor("secnd").expect("it is there")).len(), 128);
    let first = |after, value: &[u8]| patched(&good, b"first", after, value);
    refused(&first(0, &5u32.to_le_bytes()), &["first", "5 dimensions"]);
    refused(&first(0, &0u32.to_le_bytes()), &["first", "0 dimensions"]);
    refused(&first(4, &0u64.to_le_bytes()), &["first", "dimension of zero"]);
    refused(&first(4, &(1u64 << 62).to_le_bytes()), &["first", "overflows"]);
    refused(&first(20, &2000u32.to_le_bytes()), &["first", "type 2000"]);
    refused(&first(20, &4u32.to_le_bytes()), &["first", "Q4_2", "removed"]);
    refused(&first(20, &12u32.to_le_bytes()), &["first", "32 values", "256 of Q4_K"]);
    refused(&first(24, &7u64.to_le_bytes()), &["first", "offset 7", "alignment 32"]);
    refused(&first(24, &(1u64 << 40).to_le_bytes()), &["first", "ends at byte"]);
    refused(&first(24, &(u64::MAX - 31).to_le_bytes()), &["first", "overflows"]);
    refused(&first(24, &256u64.to_le_bytes()), &["ends at byte"]);
    refused(&patched(&good, b"secnd", 16, &128u64.to_le_bytes()), &["first", "secnd", "overlap"]);
    let twice = writer.tensor("first", &[1], 0, vec![0; 4]).to_bytes().expect("a file");
    refused(&twice, &["tensor first stands twice"]);
}

#[test]
fn every_truncation_is_refused_with_a_hint() {
    let good = std::fs::read(golden_dir().join("tiny/llama-q4_0.gguf")).expect("a golden");
    let data = Gguf::from_bytes(&good).expect("it opens").tensors().iter().map(|t| t.bytes.end).max();
    let end = data.expect("it has tensors");
    for len in (0..end).step_by(97).chain([end - 1]) {
        let error = Gguf::from_bytes(&good[..len]).expect_err("a truncated file");
        assert!(error.hint().is_some_and(|h| h.contains("truncated")), "{len} bytes: {error}");
    }
}

/// How often the patterns of a tokenizer are compiled for a mutation: one in so many, since it takes milliseconds.
const TEXT_EVERY: usize = 8;

/// Mutates the first `head` bytes of `bytes` `count` times, reads what comes out, and returns how many were refused.
fn mutate(bytes: &[u8], head: usize, count: usize, seed: u64) -> usize {
    let mut random = Rng::new(seed);
    let mut refused = 0;
    let mut copy = bytes.to_vec();
    for round in 0..count {
        let mut touched = Vec::new();
        for _ in 0..1 + random.index(3) {
            let at = random.index(head - 8);
            let width = [1, 1, 2, 4, 8][random.index(5)];
            let value = [0, 1, u64::MAX, 1 << 63, 1 << 31, random.bits(), random.bits() % 64][random.index(7)];
            copy[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
            touched.push(at..at + width);
        }
        let refuses = match round % TEXT_EVERY {
            0 => read_text(&copy).is_err(),
            _ => read_model(&copy).is_err(),
        };
        refused += usize::from(refuses);
        for range in touched {
            copy[range.clone()].copy_from_slice(&bytes[range]);
        }
    }
    refused
}

#[test]
fn no_mutation_of_a_file_panics() {
    for (name, seed) in [("llama-q4_0", 1), ("qwen2-f16", 2), ("gemma3-f16", 3), ("llama3rope-q8_0", 4)] {
        let bytes = std::fs::read(golden_dir().join(format!("tiny/{name}.gguf"))).expect("a golden");
        let file = read_model(&bytes).expect("the model as it is");
        assert_eq!(read_text(&bytes), Ok(()), "{name} as it is");
        let head = file.tensors().iter().map(|t| t.bytes.start).min().expect("it has tensors");
        let refused = mutate(&bytes, head, 5_000, seed);
        assert!(refused > 500, "{name}: only {refused} of 5000 mutations were refused");
    }
}

/// A byte-level tokenizer of `a`, `b`, `ab` and an end token.
fn byte_level() -> Writer {
    let mut writer = small();
    let strings = |list: &[&str]| list.iter().map(|s| s.to_string()).collect::<Vec<String>>();
    writer
        .meta("tokenizer.ggml.model", "gpt2")
        .meta("tokenizer.ggml.pre", "qwen2")
        .meta("tokenizer.ggml.tokens", strings(&["a", "b", "ab", "<end>"]))
        .meta("tokenizer.ggml.token_type", vec![1i32, 1, 1, 3])
        .meta("tokenizer.ggml.merges", strings(&["a b"]))
        .meta("tokenizer.ggml.eos_token_id", 3u32);
    writer
}

/// A score-driven tokenizer of the same tokens.
fn scored() -> Writer {
    let mut writer = byte_level();
    writer
        .meta("tokenizer.ggml.model", "llama")
        .meta("tokenizer.ggml.scores", vec![-1.0f32, -2.0, -3.0, 0.0])
        .meta("tokenizer.ggml.add_bos_token", false);
    writer
}

#[track_caller]
fn check(mut writer: Writer, key: &str, value: Option<MetaValue>, wanted: &[&str]) {
    match value {
        Some(value) => writer.meta(key, value),
        None => writer.without(key),
    };
    let bytes = writer.to_bytes().expect("a file");
    let file = Gguf::from_bytes(&bytes).expect("it opens");
    let error = Tokenizer::read(&file).expect_err("the tokenizer must be refused").to_string();
    for part in [&[key], wanted].concat() {
        assert!(error.contains(part), "{error:?} does not name {part:?}");
    }
}

#[test]
fn tokenizer_metadata() {
    for writer in [byte_level(), scored()] {
        let file = Gguf::from_bytes(&writer.to_bytes().expect("a file")).expect("it opens");
        let tokenizer = Tokenizer::read(&file).expect("a good tokenizer");
        assert_eq!(tokenizer.encode("ab<end>b", Special::Parse).expect("ids"), [2, 3, 1]);
        assert!(tokenizer.is_end(3));
    }
    let strings = |list: &[&str]| Some(MetaValue::Strs(list.iter().map(|s| s.to_string()).collect()));
    let key = |tail: &str| format!("tokenizer.ggml.{tail}");
    for tail in ["model", "tokens", "token_type", "merges", "pre"] {
        check(byte_level(), &key(tail), None, &[]);
    }
    check(scored(), &key("scores"), None, &[]);
    check(byte_level(), &key("model"), Some("bert".into()), &["bert", "gpt2, llama"]);
    check(byte_level(), &key("pre"), Some("nobody".into()), &["nobody", "smollm"]);
    check(byte_level(), &key("tokens"), strings(&["a", "b", "ab", "a"]), &["0 and 3", "\"a\""]);
    check(byte_level(), &key("tokens"), strings(&[]), &["0 tokens"]);
    check(byte_level(), &key("tokens"), Some(7u32.into()), &["array of string"]);
    check(byte_level(), &key("token_type"), Some(vec![1i32, 1].into()), &["2 entries", "4 tokens"]);
    check(byte_level(), &key("token_type"), Some(vec![1i32, 1, 1, 9].into()), &["token 3", "type 9"]);
    check(byte_level(), &key("merges"), strings(&["ab"]), &["entry 0", "\"ab\""]);
    check(byte_level(), &key("merges"), strings(&["a b", "b a"]), &["entry 1", "no token"]);
    check(byte_level(), &key("eos_token_id"), Some(4u32.into()), &["is 4", "vocabulary of 4"]);
    check(byte_level(), &key("eos_token_id"), Some("x".into()), &["string \"x\""]);
    check(scored(), &key("scores"), Some(vec![1.0f32].into()), &["1 entries", "4 tokens"]);
    check(scored(), &key("scores"), Some(vec![1.0, f32::NAN, 0.0, 0.0].into()), &["token 1", "NaN"]);
    let mut adds = byte_level();
    adds.meta("tokenizer.ggml.add_bos_token", true);
    check(adds, &key("bos_token_id"), None, &["add"]);
}

#[test]
fn templates_are_bounded() {
    let endless = "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}";
    let template = ChatTemplate::compile(endless, "", "").expect("it is well formed");
    let error = template.render(&[], planish_engine::text::chat::Then::Nothing).expect_err("it must be stopped");
    assert!(error.to_string().contains("fuel"), "{error}");
    let included = ChatTemplate::compile("{% include '/etc/passwd' %}", "", "").expect("it is well formed");
    assert!(included.render(&[], planish_engine::text::chat::Then::Nothing).is_err());
    let error = ChatTemplate::compile("{% if %}", "", "").expect_err("bad syntax").to_string();
    assert!(error.contains("line 1"), "{error}");
}
