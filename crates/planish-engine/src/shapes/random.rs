//! A model file of random weights with the true shape of a well-known model, for speed where no file can be had.
//!
//! Quantised blocks hold random bytes under scales that give a row unit gain, so that activations keep their size.

use std::io::Write;

use half::f16;
use planish_kernels::data::Rng;
use planish_kernels::quant::WeightType;

use super::Preset;
use crate::error::{Error, Result};
use crate::gguf::{Gguf, TensorDecl, Writer};
use crate::text::stand_in;

/// Which types the tensors get, as the usual files of that name have them.
#[allow(non_camel_case_types)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mix {
    /// Everything in Q8_0.
    Q8_0,
    /// Q4_0, the head in Q6_K.
    Q4_0,
    /// Q4_1, the head in Q6_K.
    Q4_1,
    /// Q4_K; the head, and in half of the layers the values and the way down, in Q6_K.
    Q4_K_M,
}

impl Mix {
    /// Every mix.
    pub const ALL: [Mix; 4] = [Mix::Q8_0, Mix::Q4_0, Mix::Q4_1, Mix::Q4_K_M];

    /// What a user types.
    pub fn name(self) -> &'static str {
        match self {
            Mix::Q8_0 => "q8_0",
            Mix::Q4_0 => "q4_0",
            Mix::Q4_1 => "q4_1",
            Mix::Q4_K_M => "q4_k_m",
        }
    }

    /// The mix called `name`.
    pub fn from_name(name: &str) -> Option<Mix> {
        Mix::ALL.into_iter().find(|m| m.name() == name)
    }

    /// The number of this mix in `general.file_type`.
    fn file_type(self) -> u32 {
        match self {
            Mix::Q4_0 => 2,
            Mix::Q4_1 => 3,
            Mix::Q8_0 => 7,
            Mix::Q4_K_M => 15,
        }
    }

    /// The type of a matrix with rows of `cols`; rows that are no whole number of large blocks take smaller ones.
    pub(super) fn of(self, role: Role, cols: usize) -> WeightType {
        let fits = |ty: WeightType, small: WeightType| if ty.row_bytes(cols).is_some() { ty } else { small };
        match (self, role) {
            (Mix::Q8_0, _) => WeightType::Q8_0,
            (_, Role::Head) => fits(WeightType::Q6_K, WeightType::Q8_0),
            (Mix::Q4_0, _) => WeightType::Q4_0,
            (Mix::Q4_1, _) => WeightType::Q4_1,
            (Mix::Q4_K_M, Role::Body) => fits(WeightType::Q4_K, WeightType::Q5_0),
            (Mix::Q4_K_M, Role::More) => fits(WeightType::Q6_K, WeightType::Q8_0),
        }
    }
}

/// What a matrix is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Any other.
    Body,
    /// Spared by a mix that spares some.
    More,
    /// What gives the logits, which is the embedding too where both are one.
    Head,
}

/// Bytes that one random stream fills, at most: what a thread takes at a time, whatever the number of threads.
const PART_BYTES: usize = 1 << 20;
/// Tokens before the ones that fill the vocabulary up: every byte, and one that ends a text.
const TOKENS_REAL: usize = 257;
/// Different scales of a tensor's blocks.
const SCALES: usize = 16;

impl Preset {
    /// Writes the file to `out`; the same seed gives the same bytes. `threads` fill, `progress` hears the bytes so far.
    pub fn write_random(
        &self,
        mix: Mix,
        seed: u64,
        threads: usize,
        out: &mut dyn Write,
        progress: &mut dyn FnMut(u64),
    ) -> Result<()> {
        let (mut tensor, mut done) = (0u64, 0u64);
        self.random_header(mix)?.write_to(out, &mut |decl, buffer| {
            buffer.resize(decl.size()? as usize, 0);
            tensor += 1;
            fill(decl, buffer, Rng::new(seed ^ tensor << 32).bits(), threads)?;
            done += buffer.len() as u64;
            progress(done);
            Ok(())
        })
    }

    /// The file in memory, with the types of the preset; the same seed gives the same bytes.
    pub fn random(&self, seed: u64, threads: usize) -> Result<Gguf> {
        let bytes = self.random_header(self.mix)?.size()?;
        let mut write = |mut out: &mut [u8]| self.write_random(self.mix, seed, threads, &mut out, &mut |_| {});
        Gguf::made(bytes, &mut write)
    }

    /// The same with zeros for all tensors, which take no memory, for questions about a model that is not run.
    pub fn zeros(&self) -> Result<Gguf> {
        let writer = self.random_header(self.mix)?;
        let header = writer.header()?;
        Gguf::made(writer.size()?, &mut |out| {
            out[..header.len()].copy_from_slice(&header);
            Ok(())
        })
    }

    /// Bytes of all tensors of the file.
    pub fn random_bytes(&self, mix: Mix) -> Result<u64> {
        self.tensors(mix).iter().map(TensorDecl::size).sum()
    }

    /// The file without its data.
    fn random_header(&self, mix: Mix) -> Result<Writer> {
        if self.vocab < TOKENS_REAL {
            return Err(Error::request(format!("{}: {} tokens are fewer than {TOKENS_REAL}", self.name, self.vocab)));
        }
        let mut writer = Writer::new(self.arch);
        writer.meta("general.name", format!("{} of random weights", self.name));
        writer.meta("general.file_type", mix.file_type()).meta("general.quantization_version", 2u32);
        let sizes = [
            ("block_count", self.layers),
            ("context_length", self.context),
            ("embedding_length", self.hidden),
            ("feed_forward_length", self.ffn),
            ("attention.head_count", self.heads),
            ("attention.head_count_kv", self.kv_heads),
            ("rope.dimension_count", self.hidden / self.heads),
            ("vocab_size", self.vocab),
        ];
        for (key, size) in sizes {
            writer.meta(&format!("{}.{key}", self.arch), size as u32);
        }
        writer.meta(&format!("{}.attention.layer_norm_rms_epsilon", self.arch), self.eps);
        writer.meta(&format!("{}.rope.freq_base", self.arch), self.rope_base);
        self.tokens(&mut writer);
        for decl in self.tensors(mix) {
            writer.declare(decl);
        }
        Ok(writer)
    }

    /// A vocabulary of every byte, an end, and names that no text has; no pair of tokens is ever joined.
    fn tokens(&self, writer: &mut Writer) {
        const NORMAL: i32 = 1;
        const CONTROL: i32 = 3;
        const UNUSED: i32 = 5;
        let mut texts: Vec<String> = (0..=255).map(|b| stand_in(b).to_string()).collect();
        texts.push("<|endoftext|>".to_owned());
        texts.extend((TOKENS_REAL..self.vocab).map(|id| format!("<|unused{id}|>")));
        let kinds = (0..self.vocab).map(|id| match id {
            0..256 => NORMAL,
            256 => CONTROL,
            _ => UNUSED,
        });
        writer.meta("tokenizer.ggml.model", "gpt2").meta("tokenizer.ggml.pre", "default");
        writer.meta("tokenizer.ggml.tokens", texts).meta("tokenizer.ggml.token_type", kinds.collect::<Vec<i32>>());
        writer.meta("tokenizer.ggml.merges", Vec::<String>::new());
        writer.meta("tokenizer.ggml.bos_token_id", 256u32).meta("tokenizer.ggml.eos_token_id", 256u32);
        writer.meta("tokenizer.ggml.add_bos_token", false);
    }

    /// What the file holds, in order.
    fn tensors(&self, mix: Mix) -> Vec<TensorDecl> {
        let (hidden, kv) = (self.hidden, self.kv_heads * (self.hidden / self.heads));
        let mut all = Vec::new();
        let mut add = |name: String, ty: WeightType, dims: &[usize]| {
            let dims = dims.iter().map(|d| *d as u64).collect();
            all.push(TensorDecl { name, dims, type_id: ty.record().gguf_id });
        };
        let embedding = if self.tied { Role::Head } else { Role::Body };
        add("token_embd.weight".into(), mix.of(embedding, hidden), &[hidden, self.vocab]);
        if !self.tied {
            add("output.weight".into(), mix.of(Role::Head, hidden), &[hidden, self.vocab]);
        }
        add("output_norm.weight".into(), WeightType::F32, &[hidden]);
        for i in 0..self.layers {
            let eighth = self.layers / 8;
            // The first and the last eighth, and every third between.
            let more = i < eighth || i >= 7 * self.layers / 8 || (i - eighth) % 3 == 2;
            let spared = if more { Role::More } else { Role::Body };
            let mut matrix = |name: &str, role: Role, cols: usize, rows: usize| {
                add(format!("blk.{i}.{name}.weight"), mix.of(role, cols), &[cols, rows]);
            };
            matrix("attn_q", Role::Body, hidden, hidden);
            matrix("attn_k", Role::Body, hidden, kv);
            matrix("attn_v", spared, hidden, kv);
            matrix("attn_output", Role::Body, hidden, hidden);
            matrix("ffn_gate", Role::Body, hidden, self.ffn);
            matrix("ffn_up", Role::Body, hidden, self.ffn);
            matrix("ffn_down", spared, self.ffn, hidden);
            let mut vector = |name: &str, n: usize| add(format!("blk.{i}.{name}"), WeightType::F32, &[n]);
            vector("attn_norm.weight", hidden);
            vector("ffn_norm.weight", hidden);
            if self.arch == "qwen2" {
                vector("attn_q.bias", hidden);
                vector("attn_k.bias", kv);
                vector("attn_v.bias", kv);
            }
        }
        all
    }
}

/// Fills the data of a tensor, part by part, each from a stream of its own.
fn fill(decl: &TensorDecl, data: &mut [u8], seed: u64, threads: usize) -> Result<()> {
    let unknown = || Error::request(format!("{} has type {}, which cannot be made up", decl.name, decl.type_id));
    let ty = WeightType::from_gguf(decl.type_id).ok_or_else(unknown)?;
    if ty == WeightType::F32 {
        // Norms near one, biases near nothing.
        let centre = if decl.name.ends_with("norm.weight") { 1.0 } else { 0.0 };
        let mut rng = Rng::new(seed);
        data.chunks_exact_mut(4).for_each(|v| v.copy_from_slice(&(centre + 0.1 * rng.unit()).to_le_bytes()));
        return Ok(());
    }
    let scales = Scales::new(ty, decl.dims[0] as usize).ok_or_else(unknown)?;
    let block = ty.record().block_bytes;
    let mut parts: Vec<(usize, &mut [u8])> = data.chunks_mut(PART_BYTES / block * block).enumerate().collect();
    let share = parts.len().div_ceil(threads.max(1)).max(1);
    std::thread::scope(|scope| {
        for mine in parts.chunks_mut(share) {
            let scales = &scales;
            scope.spawn(move || {
                for (i, part) in mine {
                    scales.fill(part, &mut Rng::new(seed.wrapping_add(*i as u64)));
                }
            });
        }
    });
    Ok(())
}

/// The scales of a type's blocks for rows of unit gain.
struct Scales {
    block_bytes: usize,
    /// Where a scale lies in a block, and values for it.
    fields: Vec<(usize, [[u8; 2]; SCALES])>,
}

impl Scales {
    fn new(ty: WeightType, cols: usize) -> Option<Scales> {
        // Where the scales lie, and what each is divided by: the deviation of what random bytes give under scale one.
        // The second scale takes the mean away again: it is as many times the first as the codes are on average.
        let (at, deviation, mean) = match ty {
            WeightType::Q8_0 => (0, 73.9, None),
            WeightType::Q5_0 => (0, 9.2, None),
            WeightType::Q4_0 => (0, 4.64, None),
            WeightType::Q4_1 => (0, 4.6, Some(-7.5)),
            WeightType::Q4_K => (0, 258.0, Some(7.5)),
            WeightType::Q6_K => (208, 1367.0, None),
            _ => return None,
        };
        let unit = 1.0 / ((cols as f32).sqrt() * deviation);
        // The same unevenness for both scales of a block, or their means would not cancel.
        // Codes of four bits are half a step below nothing on average, so every other scale is negative.
        let turned = |i: usize| if ty == WeightType::Q4_0 && !i.is_multiple_of(2) { -unit } else { unit };
        let values = |factor: f32| {
            std::array::from_fn(|i| {
                f16::from_f32(turned(i) * factor * (0.75 + 0.5 * i as f32 / SCALES as f32)).to_le_bytes()
            })
        };
        let mut fields = vec![(at, values(1.0))];
        fields.extend(mean.map(|m| (2, values(m))));
        Some(Scales { block_bytes: ty.record().block_bytes, fields })
    }

    fn fill(&self, data: &mut [u8], rng: &mut Rng) {
        for word in data.chunks_mut(8) {
            let bits = rng.bits().to_le_bytes();
            word.copy_from_slice(&bits[..word.len()]);
        }
        for block in data.chunks_exact_mut(self.block_bytes) {
            // A byte of codes, random as any, chooses.
            let which = usize::from(block[self.block_bytes / 2]) % SCALES;
            for (at, values) in &self.fields {
                block[*at..*at + 2].copy_from_slice(&values[which]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use planish_device::{Cpu, CpuOptions};
    use planish_kernels::cpu::isa::Isa;
    use planish_kernels::op::Machine;
    use planish_kernels::quant::dequantize;
    use planish_kernels::weight::Activations;

    use super::*;
    use crate::arch::Hyper;
    use crate::decoder::{Decoder, KvType, Options};
    use crate::plan::Defaults;
    use crate::text::{Special, Tokenizer};
    use crate::weights::Weights;

    fn preset(arch: &'static str, tied: bool) -> Preset {
        let like = *crate::shapes::preset("llama-3.1-8b").expect("a preset");
        let sizes =
            Preset { hidden: 256, layers: 9, heads: 4, kv_heads: 2, ffn: 768, vocab: 600, context: 128, ..like };
        Preset { name: "small", arch, tied, ..sizes }
    }

    fn written(preset: &Preset, mix: Mix, seed: u64, threads: usize) -> Vec<u8> {
        let (mut bytes, mut heard) = (Vec::new(), 0);
        preset.write_random(mix, seed, threads, &mut bytes, &mut |n| heard = n).expect("memory does not fail");
        assert_eq!(heard, preset.random_bytes(mix).expect("whole blocks"));
        bytes
    }

    #[test]
    fn random_models_load_and_decode_to_finite_logits() {
        let cpu = Cpu::new(CpuOptions { threads: Some(2) }).expect("a CPU");
        let machine = Machine { backend: &cpu, isa: Isa::detect() };
        for (arch, tied) in [("llama", false), ("qwen2", true)] {
            for mix in Mix::ALL {
                let bytes = written(&preset(arch, tied), mix, 7, 2);
                let gguf = Arc::new(Gguf::from_bytes(&bytes).expect("a file"));
                let hyper = Hyper::read(&gguf).expect("numbers");
                assert_eq!(
                    Tokenizer::read(&gguf).expect("tokens").encode_prompt("ab", Special::Plain).expect("ids").len(),
                    2
                );
                let weights = Weights::load(&gguf, &hyper, &cpu, 1).expect("weights");
                let (activations, kv) = (Activations::F32, KvType::F32);
                let options = Options { context: 16, chunk: 4, activations, kv, all_logits: false };
                let mut decoder = Decoder::new(machine, &hyper, &weights, options, &Defaults).expect("a decoder");
                let logits = decoder.feed(&[1, 2, 300, 599, 4, 5]).expect("logits");
                let size = (logits.iter().map(|l| l * l).sum::<f32>() / logits.len() as f32).sqrt();
                assert!(logits.iter().all(|l| l.is_finite()) && (0.2..5.0).contains(&size), "{arch} {mix:?}: {size}");
            }
        }
    }

    #[test]
    fn rows_have_unit_gain_in_every_type() {
        for ty in
            [WeightType::Q8_0, WeightType::Q5_0, WeightType::Q4_0, WeightType::Q4_1, WeightType::Q4_K, WeightType::Q6_K]
        {
            let (cols, rows) = (512, 200);
            let decl = TensorDecl { name: "w".into(), dims: vec![cols, rows], type_id: ty.record().gguf_id };
            let mut data = vec![0; decl.size().expect("whole blocks") as usize];
            fill(&decl, &mut data, 3, 2).expect("a type that is made up");
            let mut w = vec![0f32; (cols * rows) as usize];
            dequantize(ty, &data, &mut w);
            let mean = w.iter().sum::<f32>() / w.len() as f32;
            let gain = (w.iter().map(|v| v * v).sum::<f32>() / w.len() as f32 * cols as f32).sqrt();
            assert!((0.9..1.1).contains(&gain) && mean.abs() < 0.1 / (cols as f32).sqrt(), "{ty}: {gain} {mean}");
        }
    }

    #[test]
    fn the_seed_alone_decides_the_bytes() {
        let preset = preset("llama", false);
        let one = written(&preset, Mix::Q4_K_M, 1, 1);
        assert_eq!(one, written(&preset, Mix::Q4_K_M, 1, 3));
        assert_ne!(one, written(&preset, Mix::Q4_K_M, 2, 1));
    }

    #[test]
    fn a_model_in_memory_is_the_file() {
        let preset = preset("llama", false);
        let (random, zeros) = (preset.random(1, 2).expect("memory"), preset.zeros().expect("memory"));
        assert_eq!(random.bytes(), written(&preset, preset.mix, 1, 1));
        let tensor = random.tensor("output.weight").expect("a head");
        assert!(random.data(tensor).iter().any(|b| *b != 0) && zeros.data(tensor).iter().all(|b| *b == 0));
        assert_eq!((zeros.bytes().len(), zeros.tensors().len()), (random.bytes().len(), random.tensors().len()));
    }

    #[test]
    fn the_true_shapes_have_their_true_sizes() {
        let bytes = |name: &str, mix| crate::shapes::preset(name).and_then(|p| p.random_bytes(mix)).expect("a size");
        let gb = |name: &str, mix| bytes(name, mix) as f64 / 1e9;
        assert!((4.90..4.95).contains(&gb("llama-3.1-8b", Mix::Q4_K_M)), "{}", gb("llama-3.1-8b", Mix::Q4_K_M));
        assert!((0.52..0.54).contains(&gb("qwen2.5-0.5b", Mix::Q8_0)), "{}", gb("qwen2.5-0.5b", Mix::Q8_0));
        assert!((0.09..0.1).contains(&gb("smollm2-135m", Mix::Q4_1)), "{}", gb("smollm2-135m", Mix::Q4_1));
        // Sizes for a fit: a row of steps of a third or more, from 20 to 400 MB.
        let row = ["384", "512", "768", "1024", "1280", "1536"].map(|n| gb(&format!("ladder-{n}"), Mix::Q8_0));
        assert!(row[0] > 0.02 && row[5] < 0.4 && row.windows(2).all(|w| w[1] > 1.33 * w[0]), "{row:?}");
    }
}
