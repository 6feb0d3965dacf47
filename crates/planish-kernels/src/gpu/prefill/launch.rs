//! The launches of a chunk.

use planish_device::{Launch, Slice};
use planish_tune::{Config, Rejection};

use super::{ATTEND_THREADS, OP, ROWS, head_size, io};
use crate::gpu::decode;
use crate::gpu::decode::model::{At, LayerAt, Memory, Model, ModelAt};
use crate::gpu::gemm;
use crate::gpu::text::{KernelLaunch, io_code, knob};
use crate::gpu::unpack::{self, Part};
use crate::op::{Attrs, Dtype, Machine, OpCall, Shape};

/// Memory of a chunk beside that of a step.
#[derive(Clone, Debug)]
pub struct PrefillMemory {
    /// Tokens of the chunk, the position of the first, two spare words, and the ids: `words_bytes` bytes, which the host
    /// writes before a submit. The last token's position is below the model's capacity.
    pub words: Slice,
    /// The weights of two layers as floats, `weights_bytes` bytes: those of the next layer come while one is at work.
    pub weights: Slice,
    /// Rows between the operations of a layer, `rows_bytes` bytes.
    pub rows: Slice,
}

/// Words before the ids.
const HEADER: usize = 4;
/// What rows of each kind begin on, in bytes.
const ALIGN: usize = 256;

impl PrefillMemory {
    /// Bytes of the words of chunks of up to `chunk` tokens.
    pub fn words_bytes(chunk: usize) -> usize {
        4 * (HEADER + chunk)
    }

    /// The words of a chunk of `ids` whose first position is `first`.
    pub fn words(first: usize, ids: &[u32]) -> Vec<u8> {
        let header = [ids.len() as u32, first as u32, 0, 0];
        header.iter().chain(ids).flat_map(|w| w.to_le_bytes()).collect()
    }

    /// Bytes of the weights of two layers of `model`.
    pub fn weights_bytes(model: (&Model, &ModelAt)) -> usize {
        2 * layer_bytes(model.0, io(model))
    }

    /// Bytes of the rows of chunks of up to `chunk` tokens.
    pub fn rows_bytes(model: (&Model, &ModelAt), chunk: usize) -> usize {
        Rows::places((model.0, io(model)), chunk).1
    }
}

/// Rows and columns of a layer's matrices: q, k, v, out, gate and up, down.
fn parts_of(m: &Model) -> [(usize, usize); 6] {
    [
        (m.wide(), m.hidden),
        (m.kv_wide(), m.hidden),
        (m.kv_wide(), m.hidden),
        (m.hidden, m.wide()),
        (2 * m.ffn, m.hidden),
        (m.hidden, m.ffn),
    ]
}

/// Bytes of the weights of one layer.
fn layer_bytes(m: &Model, io: Dtype) -> usize {
    let elements: usize = parts_of(m).iter().map(|(rows, cols)| rows * cols).sum();
    (io.bytes() as usize * elements).next_multiple_of(ALIGN)
}

/// Rows of a chunk.
struct Rows {
    /// f32 `[chunk][hidden]`.
    residual: Slice,
    /// What products take: normed rows, or heads behind attention.
    input: Slice,
    /// What a block gives to the norm behind it.
    block: Slice,
    /// Heads of queries, keys and values.
    heads: Slice,
    /// Gate and up.
    both: Slice,
    /// Gated units.
    gated: Slice,
    /// Work memory of a step, for the head.
    work: Slice,
}

impl Rows {
    /// Where each begins and its bytes, and the bytes of all.
    fn places((m, io): (&Model, Dtype), chunk: usize) -> ([(usize, usize); 7], usize) {
        let io = io.bytes() as usize;
        let widths = [
            4 * m.hidden,
            io * m.hidden.max(m.wide()),
            io * m.hidden,
            io * (m.wide() + 2 * m.kv_wide()),
            io * 2 * m.ffn,
            io * m.ffn,
        ];
        let [a, b, c, d, e, f] = widths.map(|width| width * chunk);
        let mut end = 0;
        let places = [a, b, c, d, e, f, m.work_bytes()].map(|bytes| {
            let start = end;
            end = (start + bytes).next_multiple_of(ALIGN);
            (start, bytes)
        });
        (places, end)
    }

    fn of(model: (&Model, Dtype), chunk: usize, memory: &Slice) -> Result<Rows, Rejection> {
        let part = |(start, len)| part(memory, start, len);
        let [a, b, c, d, e, f, g] = Rows::places(model, chunk).0.map(part);
        Ok(Rows { residual: a?, input: b?, block: c?, heads: d?, both: e?, gated: f?, work: g? })
    }
}

fn part(of: &Slice, start: usize, len: usize) -> Result<Slice, Rejection> {
    of.buffer.slice(of.offset + start, len).map_err(|e| Rejection::Launch(e.to_string()))
}

/// What a product is added to.
#[derive(Clone, Copy)]
enum Adds {
    Nothing,
    Residual,
}

struct Chunk<'a> {
    model: &'a Model,
    at: &'a ModelAt,
    memory: &'a Memory,
    prefill: &'a PrefillMemory,
    rows: Rows,
    size: usize,
    io: Dtype,
    config: &'a Config,
    machine: &'a Machine<'a>,
    constants: Vec<(&'static str, i64)>,
}

fn constants(model: &Model, at: &ModelAt, config: &Config) -> Result<Vec<(&'static str, i64)>, Rejection> {
    let own = vec![
        ("IO", io_code(io((model, at)))),
        ("HEAD_SIZE", head_size(model) as i64),
        ("BLOCK_K", knob(config, "BLOCK_K")? as i64),
        ("THREADS", knob(config, "THREADS")? as i64),
        ("TYPE_EMBED", at.embedding.ty as i64),
    ];
    Ok([model.constants(), own].concat())
}

/// A place in the arena, counted in sixteen bytes; what is not there is at the last one.
fn place(at: Option<usize>) -> u32 {
    at.map_or(u32::MAX, |n| (n / 16) as u32)
}

impl Chunk<'_> {
    fn kernel(
        &self,
        entry: &str,
        (groups, threads): (usize, usize),
        params: Vec<u32>,
        args: &[&Slice],
    ) -> Result<Launch, Rejection> {
        let constants = self.constants.clone();
        KernelLaunch { text: &OP.text, entry, constants, params, groups, threads, shared_bytes: 0 }
            .on(self.machine, args.iter().map(|a| (*a).clone()).collect())
    }

    fn threads(&self) -> Result<usize, Rejection> {
        knob(self.config, "THREADS")
    }

    /// `c = a bᵀ`, or with `Adds::Residual` the residual `c += a bᵀ`; b has `n` rows and `k` columns.
    fn product(
        &self,
        (n, k): (usize, usize),
        (a, b): (&Slice, Slice),
        c: &Slice,
        adds: Adds,
    ) -> Result<Vec<Launch>, Rejection> {
        let (op, io) = (&gemm::OP.op, if self.io == Dtype::F16 { "f16" } else { "f32" });
        let (out, out_bytes, beta) = match adds {
            Adds::Nothing => (io, self.io.bytes() as usize, 0.0),
            Adds::Residual => ("f32", 4, 1.0),
        };
        let sizes = Shape::new().with("m", self.size as i64).with("n", n as i64).with("k", k as i64);
        let shape = sizes.with("layout", "nt").with("type", io).with("out", out);
        let config = gemm::own(&shape, self.machine).default;
        let attrs = Attrs::new().with("alpha", 1.0).with("beta", beta);
        let a = part(a, 0, self.io.bytes() as usize * self.size * k)?;
        let args = vec![a, b, part(c, 0, out_bytes * self.size * n)?];
        OpCall { op, shape, attrs, args }.steps(&config, self.machine)
    }

    /// A product that ends a block: to the residual, or to the norm behind the block.
    fn ends(&self, sizes: (usize, usize), a: &Slice, b: Slice) -> Result<Vec<Launch>, Rejection> {
        match self.model.post_norms {
            true => self.product(sizes, (a, b), &self.rows.block, Adds::Nothing),
            false => self.product(sizes, (a, b), &self.rows.residual, Adds::Residual),
        }
    }

    /// The launch that takes the weights of layer `index` apart.
    fn unpack(&self, index: usize) -> Result<Launch, Rejection> {
        let layer = &self.at.layers[index];
        let [q, k, v] = layer.qkv;
        let (sizes, at) = (parts_of(self.model), [q, k, v, layer.out, layer.gate_up, layer.down]);
        let parts: Vec<Part> = sizes.iter().zip(at).map(|(&(rows, cols), at)| Part { at, rows, cols }).collect();
        let all = self.at.layers.iter().flat_map(|l| l.qkv.into_iter().chain([l.out, l.gate_up, l.down]));
        let config = unpack::space(&Shape::new(), self.machine).default;
        let (arena, to) = (&self.memory.arena, self.weights(index)?);
        unpack::launch(&parts, all.map(|at: At| at.ty), (arena, &to, self.io), &config, self.machine)
    }

    /// Where the weights of layer `index` are as floats.
    fn weights(&self, index: usize) -> Result<Slice, Rejection> {
        let bytes = layer_bytes(self.model, self.io);
        part(&self.prefill.weights, index % 2 * bytes, bytes)
    }

    /// The parts of those weights that products take: q, k and v in one, out, gate and up, down.
    fn operands(&self, index: usize) -> Result<[Slice; 4], Rejection> {
        let (of, mut end) = (self.weights(index)?, 0);
        let mut next = |n: usize| {
            let start = end;
            end += self.io.bytes() as usize * n;
            part(&of, start, end - start)
        };
        let [q, k, v, out, both, down] = parts_of(self.model).map(|(rows, cols)| rows * cols);
        Ok([next(q + k + v)?, next(out)?, next(both)?, next(down)?])
    }

    /// What the block before gave is added through the norm at `post`, where there is one; then the norm at `norm`.
    fn norm(&self, norm: usize, post: Option<usize>) -> Result<Launch, Rejection> {
        let params = vec![place(Some(norm)), place(post), self.model.eps.to_bits()];
        let (m, rows) = (self.memory, &self.rows);
        let args = [&m.arena, &self.prefill.words, &rows.residual, &rows.block, &rows.input];
        self.kernel("prefill_norm", (self.size, self.threads()?), params, &args)
    }

    fn rotate(&self, index: usize, l: &LayerAt) -> Result<Launch, Rejection> {
        let (model, m, threads) = (self.model, self.memory, self.threads()?);
        let norms = l.head_norms.map_or([None; 2], |n| n.map(Some)).map(place);
        let biases = l.biases.map_or([None; 3], |b| b.map(Some)).map(place);
        let mut params = vec![index as u32, l.table as u32];
        params.extend(norms.iter().chain(&biases));
        params.extend([model.eps.to_bits(), model.scale.to_bits()]);
        let groups = (self.size * (model.heads + 2 * model.kv_heads)).div_ceil(threads / 32);
        let args = [&m.arena, &self.prefill.words, &m.ropes, &self.rows.heads, &m.keys, &m.values];
        self.kernel("prefill_rotate", (groups, threads), params, &args)
    }

    fn attend(&self, index: usize, l: &LayerAt) -> Result<Launch, Rejection> {
        let (model, m) = (self.model, self.memory);
        let params = vec![index as u32, l.window as u32, model.softcap.to_bits(), self.size as u32];
        let simds = ATTEND_THREADS / 32;
        let (entry, groups) = match self.config.name("ATTEND") {
            Some("tiles") if self.io == Dtype::F16 => {
                ("prefill_attend", model.kv_heads * (self.size / ROWS * model.group()).div_ceil(simds))
            }
            Some("plain") => ("prefill_attend_plain", (self.size * model.heads).div_ceil(simds)),
            other => {
                let (way, bytes) = (other.unwrap_or("none"), self.io.bytes());
                return Err(Rejection::Constraint(format!("ATTEND={way} is not for activations of {bytes} bytes")));
            }
        };
        let args = [&self.prefill.words, &self.rows.heads, &m.keys, &m.values, &self.rows.input];
        self.kernel(entry, (groups, ATTEND_THREADS), params, &args)
    }

    fn gate(&self) -> Result<Launch, Rejection> {
        let threads = self.threads()?;
        let groups = (self.size * self.model.ffn / 4).div_ceil(threads);
        let args = [&self.prefill.words, &self.rows.both, &self.rows.gated];
        self.kernel("prefill_gate", (groups, threads), vec![0], &args)
    }

    fn layer(&self, index: usize, launches: &mut Vec<Launch>) -> Result<(), Rejection> {
        let (model, l, rows) = (self.model, &self.at.layers[index], &self.rows);
        let before = index.checked_sub(1).map(|i| &self.at.layers[i]);
        let [qkv, out, both, down] = self.operands(index)?;
        if index == 0 {
            launches.push(self.unpack(0)?);
        }
        let post = before.and_then(|l| l.post_norms).map(|p| p[1]);
        launches.push(self.norm(l.attn_norm, post)?);
        let heads = (model.wide() + 2 * model.kv_wide(), model.hidden);
        launches.extend(self.product(heads, (&rows.input, qkv), &rows.heads, Adds::Nothing)?);
        launches.push(self.rotate(index, l)?);
        launches.push(self.attend(index, l)?);
        if index + 1 < model.layers {
            // Attention leaves the memory idle, and at small sizes most processors.
            launches.push(Launch { overlap: true, ..self.unpack(index + 1)? });
        }
        launches.extend(self.ends((model.hidden, model.wide()), &rows.input, out)?);
        launches.push(self.norm(l.ffn_norm, l.post_norms.map(|p| p[0]))?);
        launches.extend(self.product((2 * model.ffn, model.hidden), (&rows.input, both), &rows.both, Adds::Nothing)?);
        launches.push(self.gate()?);
        launches.extend(self.ends((model.hidden, model.ffn), &rows.gated, down)?);
        Ok(())
    }

    fn embed(&self) -> Result<Launch, Rejection> {
        let params = vec![place(Some(self.at.embedding.offset)), self.model.embedding_scale.to_bits()];
        let args = [&self.memory.arena, &self.prefill.words, &self.rows.residual];
        self.kernel("prefill_embed", (self.size, self.threads()?), params, &args)
    }

    /// The last token's residual to the head of a decode step, and the head.
    fn head(&self) -> Result<[Launch; 2], Rejection> {
        let (model, m) = (self.model, self.memory);
        let post = self.at.layers.last().and_then(|l| l.post_norms);
        let [whole, before, block] = model.residual_at().map(|n| n as u32);
        let params = vec![u32::from(post.is_some()), whole, before, block];
        let args = [&self.prefill.words, &self.rows.residual, &self.rows.block, &self.rows.work, &m.step];
        let last = self.kernel("prefill_last", (1, self.threads()?), params, &args)?;
        let config = decode::space((model, self.at), self.machine).default.with("PATH", "launches");
        let memory = Memory { work: self.rows.work.clone(), ..m.clone() };
        Ok([last, decode::head((model, self.at), &memory, &config, self.machine)?])
    }
}

/// The launches of up to `chunk` tokens, a multiple of `ROWS`: from the tokens in `prefill.words` to their keys and values
/// in the cache and the logits of the last one; the position of the step in `memory` is then the one behind it.
///
/// Rows past the last token are computed, by products alone, and go nowhere.
pub fn launches(
    (model, at): (&Model, &ModelAt),
    memory: &Memory,
    prefill: &PrefillMemory,
    chunk: usize,
    config: &Config,
    machine: &Machine<'_>,
) -> Result<Vec<Launch>, Rejection> {
    model.check().map_err(Rejection::Constraint)?;
    if chunk == 0 || !chunk.is_multiple_of(ROWS) {
        return Err(Rejection::Constraint(format!("chunks of {chunk} tokens: whole {ROWS} are run")));
    }
    let [hidden, ffn] = [model.hidden, model.ffn];
    if !hidden.is_multiple_of(8) || !ffn.is_multiple_of(8) {
        return Err(Rejection::Constraint(format!("widths of {hidden} and {ffn}: multiples of 8 are run in chunks")));
    }
    let chunk = Chunk {
        model,
        at,
        memory,
        prefill,
        rows: Rows::of((model, io((model, at))), chunk, &prefill.rows)?,
        size: chunk,
        io: io((model, at)),
        config,
        machine,
        constants: constants(model, at, config)?,
    };
    let mut launches = vec![chunk.embed()?];
    for layer in 0..model.layers {
        chunk.layer(layer, &mut launches)?;
    }
    launches.extend(chunk.head()?);
    Ok(launches)
}
