//! Real model files, where a directory of them is given: the reader and the architecture table accept what exists.

mod common;

use planish_engine::arch::{Hyper, RopeScaling};
use planish_engine::gguf::Gguf;

fn open(name: &str) -> Option<(Gguf, Hyper)> {
    let path = common::model_file(name)?;
    let file = Gguf::open(&path).expect("a good file opens");
    let hyper = Hyper::read(&file).expect("a good model is accepted");
    Some((file, hyper))
}

#[test]
fn smollm2_is_read() {
    let Some((file, hyper)) = open("smollm2-q4_1.gguf") else { return };
    assert_eq!(file.tensors().len(), 272);
    assert_eq!((hyper.hidden, hyper.vocab, hyper.context, hyper.layers), (576, 49152, 8192, 30));
    assert_eq!((hyper.head_dim, hyper.heads, hyper.kv_heads), (64, 9, 3));
    assert!(hyper.tied);
    let payload: usize = file.tensors().iter().map(|t| t.bytes.len()).sum();
    assert!(payload < file.bytes().len() && payload > file.bytes().len() - (4 << 20));
}

#[test]
fn gemma3_is_read() {
    let Some((_, hyper)) = open("gemma-3-270m-q4_k_m.gguf") else { return };
    let global: Vec<usize> = (0..hyper.layers).filter(|&l| hyper.window_of(l) == 0).collect();
    assert_eq!(global, [5, 11, 17]);
    assert_eq!((hyper.window_of(0), hyper.rope_base_swa, hyper.rope_base), (512, Some(10000.0), 1e6));
    assert_eq!(hyper.rope_scaling, RopeScaling::None);
    assert_eq!(hyper.attn_scale, 1.0 / 16.0);
    assert_eq!(hyper.embedding_scale, 640f32.sqrt());
}
