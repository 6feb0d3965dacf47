//! Tokenizers against the goldens: every vector of the tiny models, and of the real files where they are.

#![allow(clippy::print_stdout, reason = "a skipped test says why")]

mod common;

use common::{golden_dir, model_file};
use planish_engine::gguf::Gguf;
use planish_engine::text::{Special, Tokenizer};
use serde_json::Value;

/// Checks every vector of `list` and returns how many there were.
#[track_caller]
fn check(name: &str, tokenizer: &Tokenizer, list: &Value) -> usize {
    let list = list.as_array().expect("a list of vectors");
    for vector in list {
        let text = vector["text"].as_str().expect("text");
        let want: Vec<u32> =
            vector["ids"].as_array().expect("ids").iter().map(|v| v.as_u64().expect("an id") as u32).collect();
        let parse = vector["parse_special"].as_bool().expect("parse_special");
        let special = if parse { Special::Parse } else { Special::Plain };
        let begun = vector["add_special"].as_bool().unwrap_or(true);
        let got = if begun { tokenizer.encode_prompt(text, special) } else { tokenizer.encode(text, special) };
        let got = got.expect("the text is encoded");
        assert_eq!(got, want, "{name}: ids of {text:?}");
        if vector["lossless"].as_bool().unwrap_or(true) {
            let body = &got[usize::from(begun && tokenizer.adds_bos())..];
            let spelled = tokenizer.decode(body).expect("its own ids");
            assert_eq!(String::from_utf8_lossy(&spelled), text, "{name}: text of {body:?}");
        }
    }
    list.len()
}

fn read_json(path: &std::path::Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).expect("a golden file")).expect("JSON")
}

#[test]
fn tiny_models() {
    let mut vectors = 0;
    for entry in std::fs::read_dir(golden_dir().join("tiny_expected")).expect("goldens are in the repository") {
        let path = entry.expect("a directory entry").path();
        if path.extension().is_none_or(|e| e != "json") {
            continue;
        }
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        let file = Gguf::open(&golden_dir().join("tiny").join(format!("{name}.gguf"))).expect("the tiny model opens");
        let tokenizer = Tokenizer::read(&file).expect("its tokenizer is read");
        vectors += check(&name, &tokenizer, &read_json(&path)["tokenizer"]);
    }
    assert!(vectors > 300, "only {vectors} vectors");
}

#[track_caller]
fn check_real(model: &str, vectors: &str) {
    let Some(path) = model_file(model) else { return };
    let file = Gguf::open(&path).expect("a good file opens");
    let begun = std::time::Instant::now();
    let tokenizer = Tokenizer::read(&file).expect("its tokenizer is read");
    println!("{model}: tokenizer read in {:.1} ms", begun.elapsed().as_secs_f64() * 1e3);
    let golden = read_json(&golden_dir().join("tokenizer").join(vectors));
    assert!(check(model, &tokenizer, &golden["vectors"]) > 80);
}

#[test]
fn smollm2() {
    check_real("smollm2-q4_1.gguf", "smollm2.json");
}

#[test]
fn gemma3() {
    check_real("gemma-3-270m-q4_k_m.gguf", "gemma3.json");
}

#[test]
fn ends_and_bounds() {
    let file = Gguf::open(&golden_dir().join("tiny/qwen2-f16.gguf")).expect("the tiny model opens");
    let tokenizer = Tokenizer::read(&file).expect("its tokenizer is read");
    let end = tokenizer.id_of("<|im_end|>").expect("a ChatML token");
    assert!(tokenizer.is_end(end) && tokenizer.is_control(end) && !tokenizer.is_end(0));
    let size = tokenizer.vocab_size() as u32;
    let refused = tokenizer.decode_bytes(size).expect_err("one past the end").to_string();
    assert_eq!(refused, format!("token {size} is outside the vocabulary of {size}"));
}
