//! Weights on the device: quantised matrices repacked for the kernels, float ones used where the file lies.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use planish_device::{Backend, Buffer, HostBytes, Slice};
use planish_kernels::cpu::matmul::{GROUP, Layout};
use planish_kernels::cpu::rope::{Pairs, RopeTable, Scaling, Yarn, rope_table};
use planish_kernels::quant::{WeightType, dequantize};
use planish_kernels::weight::{Activations, Weight};

use crate::arch::{Hyper, RopeScaling};
use crate::error::{Error, Result};
use crate::gguf::{Gguf, TensorInfo};

/// The tensors of one block.
#[derive(Clone)]
pub struct Layer {
    /// Norm before attention.
    pub attn_norm: Slice,
    /// Query projection.
    pub q: Weight,
    /// Key projection.
    pub k: Weight,
    /// Value projection.
    pub v: Weight,
    /// Biases of the three, where the architecture has them.
    pub q_bias: Option<Slice>,
    /// Key bias.
    pub k_bias: Option<Slice>,
    /// Value bias.
    pub v_bias: Option<Slice>,
    /// Norms of every query head and of every key head.
    pub head_norms: Option<[Slice; 2]>,
    /// Output projection.
    pub o: Weight,
    /// Norm behind attention, before the residual is added.
    pub attn_post_norm: Option<Slice>,
    /// Norm before the feed-forward block.
    pub ffn_norm: Slice,
    /// Gate projection.
    pub gate: Weight,
    /// Up projection.
    pub up: Weight,
    /// Down projection.
    pub down: Weight,
    /// Norm behind the feed-forward block.
    pub ffn_post_norm: Option<Slice>,
    /// Keys a query sees, its own included; 0 for all.
    pub window: usize,
    /// Which of `Weights::tables` the layer rotates by.
    pub table: usize,
}

/// All tensors of a model.
pub struct Weights {
    /// Token embedding.
    pub embedding: Weight,
    /// Blocks.
    pub layers: Vec<Layer>,
    /// Norm before the head.
    pub output_norm: Slice,
    /// Output projection; the embedding again where the two are tied.
    pub head: Weight,
    /// Rotary frequencies, one table for each base in use.
    pub tables: Vec<RopeTable>,
    /// Bytes of weights that one decode step reads, in the file's own formats.
    pub bytes_per_token: u64,
}

/// Which forms of activations the weights of a model meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forms {
    /// Some weight meets f32 rows.
    pub f32: bool,
    /// Some weight meets 8-bit blocks.
    pub int8: bool,
}

impl Weights {
    /// The same tensors for a model of the first `layers` blocks, to see where a fault begins.
    pub fn first(&self, layers: usize) -> Weights {
        Weights {
            embedding: self.embedding.clone(),
            layers: self.layers.iter().take(layers).cloned().collect(),
            output_norm: self.output_norm.clone(),
            head: self.head.clone(),
            tables: self.tables.clone(),
            bytes_per_token: self.bytes_per_token,
        }
    }

    /// Forms that producers of activations must write in class `class`.
    pub fn forms(&self, class: Activations) -> Forms {
        let blocks = self.layers.iter().flat_map(|l| [&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down]);
        let mut forms = Forms { f32: false, int8: false };
        for weight in blocks.chain([&self.head]) {
            match class.meeting(weight.ty) {
                Activations::F32 => forms.f32 = true,
                Activations::Int8 => forms.int8 = true,
            }
        }
        forms
    }

    /// Puts the tensors of `gguf` on `backend`; `threads` host threads repack.
    pub fn load(gguf: &Arc<Gguf>, hyper: &Hyper, backend: &dyn Backend, threads: usize) -> Result<Weights> {
        let loader = Loader::new(gguf, backend, threads)?;
        let table = |window: usize| usize::from(window > 0 && hyper.rope_base_swa.is_some());
        let layer = |i: usize| -> Result<Layer> {
            let name = |part: &str| format!("blk.{i}.{part}");
            let window = hyper.windows.get(i).copied().unwrap_or(0);
            Ok(Layer {
                attn_norm: loader.vector(&name("attn_norm.weight"))?,
                q: loader.matrix(&name("attn_q.weight"))?,
                k: loader.matrix(&name("attn_k.weight"))?,
                v: loader.matrix(&name("attn_v.weight"))?,
                q_bias: loader.optional(&name("attn_q.bias"))?,
                k_bias: loader.optional(&name("attn_k.bias"))?,
                v_bias: loader.optional(&name("attn_v.bias"))?,
                head_norms: loader.head_norms(i)?,
                o: loader.matrix(&name("attn_output.weight"))?,
                attn_post_norm: loader.optional(&name("post_attention_norm.weight"))?,
                ffn_norm: loader.vector(&name("ffn_norm.weight"))?,
                gate: loader.matrix(&name("ffn_gate.weight"))?,
                up: loader.matrix(&name("ffn_up.weight"))?,
                down: loader.matrix(&name("ffn_down.weight"))?,
                ffn_post_norm: loader.optional(&name("post_ffw_norm.weight"))?,
                window,
                table: table(window),
            })
        };
        let layers = (0..hyper.layers).map(layer).collect::<Result<Vec<_>>>()?;
        let embedding = loader.matrix("token_embd.weight")?;
        let tied = gguf.find("output.weight").is_none();
        let head = if tied { embedding.clone() } else { loader.matrix("output.weight")? };
        let bytes_per_token = bytes_per_token(gguf, tied);
        Ok(Weights {
            embedding,
            layers,
            output_norm: loader.vector("output_norm.weight")?,
            head,
            tables: tables(gguf, hyper)?,
            bytes_per_token,
        })
    }
}

/// Every tensor is read once a token, except the embedding, of which one row is, unless it is the head too.
pub(crate) fn bytes_per_token(gguf: &Gguf, tied: bool) -> u64 {
    let read = |t: &&TensorInfo| tied || &*t.name != "token_embd.weight";
    gguf.tensors().iter().filter(read).map(|t| t.bytes.len() as u64).sum()
}

/// A table for the layers that see every position and, where the model has windows, one for those.
pub(crate) fn tables(gguf: &Gguf, hyper: &Hyper) -> Result<Vec<RopeTable>> {
    let pairs = if hyper.rope_interleaved { Pairs::Neighbours } else { Pairs::Halves };
    let factors = gguf.find("rope_freqs.weight").map(|t| floats(gguf, t)).transpose()?;
    let table = |base: f32, factors: Option<&[f32]>, scaling| {
        rope_table(hyper.rope_dims, f64::from(base), factors, scaling, pairs).map_err(|e| Error::model(e.to_string()))
    };
    let mut tables = vec![table(hyper.rope_base, factors.as_deref(), scaling(hyper.rope_scaling))?];
    if let Some(base) = hyper.rope_base_swa {
        // The factors and the scaling describe the global layers; windowed ones rotate by their base alone.
        tables.push(table(base, None, Scaling::None)?);
    }
    Ok(tables)
}

fn scaling(scaling: RopeScaling) -> Scaling<'static> {
    match scaling {
        RopeScaling::None => Scaling::None,
        RopeScaling::Linear { factor } => Scaling::Linear { factor: f64::from(factor) },
        RopeScaling::Yarn { factor, original_context, attn_factor, beta_fast, beta_slow } => Scaling::Yarn(Yarn {
            beta_fast: f64::from(beta_fast),
            beta_slow: f64::from(beta_slow),
            attention_factor: Some(f64::from(attn_factor) * (0.1 * f64::from(factor).max(1.0).ln() + 1.0)),
            ..Yarn::new(f64::from(factor), original_context as f64)
        }),
    }
}

pub(crate) fn floats(gguf: &Gguf, tensor: &TensorInfo) -> Result<Vec<f32>> {
    let ty = weight_type(tensor)?;
    let mut out = vec![0.0; (tensor.cols() * tensor.rows()) as usize];
    dequantize(ty, gguf.data(tensor), &mut out);
    Ok(out)
}

pub(crate) fn weight_type(tensor: &TensorInfo) -> Result<WeightType> {
    WeightType::from_gguf(tensor.type_id).ok_or_else(|| {
        Error::model(format!("tensor {} has type {}, which planish does not run", tensor.name, tensor.kind.name))
    })
}

/// Rows to repack: from which bytes of the file to how many bytes of the arena, in arena order.
struct Job {
    source: Range<usize>,
    layout: Layout,
    gap: usize,
}

/// Bytes of the file that one job repacks, about; small enough to spread over threads and to release as it goes.
const JOB_BYTES: usize = 1 << 20;

/// Carves the arena into the targets of the jobs and repacks them on `threads` threads.
fn pack(gguf: &Gguf, jobs: &[Job], arena: &mut [u8], threads: usize) {
    let mut rest = arena;
    let mut work = Vec::with_capacity(jobs.len());
    for job in jobs {
        let (target, tail) = std::mem::take(&mut rest).split_at_mut(job.layout.packed_bytes());
        work.push((job, target));
        rest = &mut tail[job.gap..];
    }
    let work = Mutex::new(work.into_iter());
    let next = || work.lock().unwrap_or_else(PoisonError::into_inner).next();
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                while let Some((job, target)) = next() {
                    job.layout.pack_rows(&gguf.bytes()[job.source.clone()], 0, target);
                    gguf.release(job.source.clone());
                }
            });
        }
    });
}

/// The jobs of one matrix whose groups start at a multiple of `GROUP` rows, so that each part is a matrix of its own.
fn jobs(tensor: &TensorInfo, layout: Layout, gap: usize) -> Result<Vec<Job>> {
    let row_bytes = layout.row_bytes();
    let rows = (JOB_BYTES / row_bytes.max(1)).next_multiple_of(GROUP).max(GROUP);
    let mut parts = Vec::new();
    let mut first = 0;
    while first < layout.rows() {
        let count = rows.min(layout.rows() - first);
        let source = tensor.bytes.start + first * row_bytes..tensor.bytes.start + (first + count) * row_bytes;
        let last = first + count == layout.rows();
        let part = Layout::of(layout.weight(), count, layout.cols()).map_err(|e| Error::model(e.to_string()))?;
        parts.push(Job { source, layout: part, gap: if last { gap } else { 0 } });
        first += count;
    }
    Ok(parts)
}

struct Loader<'a> {
    gguf: &'a Arc<Gguf>,
    backend: &'a dyn Backend,
    arena: Buffer,
    places: HashMap<Box<str>, Range<usize>>,
}

impl<'a> Loader<'a> {
    /// Repacks every quantised matrix into one arena, releasing the file pages it replaces.
    fn new(gguf: &'a Arc<Gguf>, backend: &'a dyn Backend, threads: usize) -> Result<Self> {
        let mut places = HashMap::new();
        let mut work = Vec::new();
        let mut end = 0usize;
        for tensor in gguf.tensors() {
            let ty = weight_type(tensor)?;
            if ty.is_float() || tensor.dims.len() != 2 {
                continue;
            }
            let layout = Layout::of(ty, tensor.rows() as usize, tensor.cols() as usize)
                .map_err(|e| Error::model(format!("tensor {}: {e}", tensor.name)))?;
            let target = end..end + layout.packed_bytes();
            end = target.end.next_multiple_of(256);
            work.extend(jobs(tensor, layout, end - target.end)?);
            places.insert(tensor.name.clone(), target);
        }
        let arena = backend.alloc_with(end, &mut |arena| pack(gguf, &work, arena, threads))?;
        // Faults bring in pages around the wanted one, some of them after their job was done.
        gguf.release(0..gguf.bytes().len());
        Ok(Loader { gguf, backend, arena, places })
    }

    fn matrix(&self, name: &str) -> Result<Weight> {
        let tensor = self.gguf.tensor(name)?;
        let data = match self.places.get(name) {
            Some(place) => self.arena.slice(place.start, place.len())?,
            None => self.adopt(tensor)?,
        };
        Ok(Weight { ty: weight_type(tensor)?, rows: tensor.rows() as usize, cols: tensor.cols() as usize, data })
    }

    fn adopt(&self, tensor: &TensorInfo) -> Result<Slice> {
        let bytes: HostBytes = self.gguf.clone();
        Ok(self.backend.adopt(bytes, tensor.bytes.clone())?.all())
    }

    /// A vector as f32.
    fn vector(&self, name: &str) -> Result<Slice> {
        let tensor = self.gguf.tensor(name)?;
        let values = floats(self.gguf, tensor)?;
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Ok(self.backend.alloc_with(bytes.len(), &mut |to| to.copy_from_slice(&bytes))?.all())
    }

    fn head_norms(&self, layer: usize) -> Result<Option<[Slice; 2]>> {
        let of = |kind: &str| self.optional(&format!("blk.{layer}.attn_{kind}_norm.weight"));
        Ok(of("q")?.zip(of("k")?).map(|(q, k)| [q, k]))
    }

    fn optional(&self, name: &str) -> Result<Option<Slice>> {
        self.gguf.find(name).map(|_| self.vector(name)).transpose()
    }
}
