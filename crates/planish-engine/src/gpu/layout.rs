//! Where the tensors of a model file go in one arena of the device, and which rows of the file make up each part.

use planish_kernels::gpu::decode::model::{At, LayerAt, ModelAt};
use planish_kernels::gpu::planes::Planes;
use planish_kernels::quant::WeightType;

use crate::arch::Hyper;
use crate::error::{Error, Result};
use crate::gguf::{Gguf, TensorInfo};
use crate::weights::weight_type;

/// What every tensor starts on, in bytes: a line of a card's cache.
const ALIGN: usize = 256;

/// A matrix of the arena; row r of tensor t is its row `r * tensors.len() + t`.
pub struct Matrix<'g> {
    /// Its form.
    pub planes: Planes,
    /// First byte in the arena.
    pub offset: usize,
    /// Tensors of one type and size whose rows take turns.
    pub tensors: Vec<&'g TensorInfo>,
}

/// A vector of f32 in the arena.
pub struct Vector<'g> {
    /// First byte in the arena.
    pub offset: usize,
    /// Where it comes from.
    pub tensor: &'g TensorInfo,
}

/// The arena of a model.
pub struct Layout<'g> {
    gguf: &'g Gguf,
    /// Bytes of all tensors.
    pub bytes: usize,
    /// Matrices in the order of the arena.
    pub matrices: Vec<Matrix<'g>>,
    /// Vectors.
    pub vectors: Vec<Vector<'g>>,
}

impl<'g> Layout<'g> {
    /// Gives every tensor that a step reads its place; an error where kernels cannot read one.
    pub fn new(gguf: &'g Gguf, hyper: &Hyper) -> Result<(Layout<'g>, ModelAt)> {
        let mut layout = Layout { gguf, bytes: 0, matrices: Vec::new(), vectors: Vec::new() };
        let embedding = layout.matrix(&["token_embd.weight"])?;
        let tied = gguf.find("output.weight").is_none();
        let head = if tied { embedding } else { layout.matrix(&["output.weight"])? };
        let output_norm = layout.vector("output_norm.weight")?;
        let layers = (0..hyper.layers).map(|i| layout.layer(hyper, i)).collect::<Result<Vec<_>>>()?;
        alike(&layers)?;
        Ok((layout, ModelAt { embedding, head, output_norm, layers }))
    }

    fn layer(&mut self, hyper: &Hyper, index: usize) -> Result<LayerAt> {
        let name = |part: &str| format!("blk.{index}.{part}");
        let window = hyper.windows.get(index).copied().unwrap_or(0);
        Ok(LayerAt {
            attn_norm: self.vector(&name("attn_norm.weight"))?,
            ffn_norm: self.vector(&name("ffn_norm.weight"))?,
            head_norms: self.together(["attn_q_norm.weight", "attn_k_norm.weight"].map(name))?,
            biases: self.together(["attn_q.bias", "attn_k.bias", "attn_v.bias"].map(name))?,
            post_norms: self.together(["post_attention_norm.weight", "post_ffw_norm.weight"].map(name))?,
            qkv: [
                self.matrix(&[&name("attn_q.weight")])?,
                self.matrix(&[&name("attn_k.weight")])?,
                self.matrix(&[&name("attn_v.weight")])?,
            ],
            out: self.matrix(&[&name("attn_output.weight")])?,
            gate_up: self.matrix(&[&name("ffn_gate.weight"), &name("ffn_up.weight")])?,
            down: self.matrix(&[&name("ffn_down.weight")])?,
            window,
            table: usize::from(window > 0 && hyper.rope_base_swa.is_some()),
        })
    }

    fn place(&mut self, bytes: usize) -> usize {
        let offset = self.bytes.next_multiple_of(ALIGN);
        self.bytes = offset + bytes;
        offset
    }

    fn matrix(&mut self, names: &[&str]) -> Result<At> {
        let tensors = names.iter().map(|n| self.gguf.tensor(n)).collect::<Result<Vec<_>>>()?;
        let first = tensors[0];
        if let Some(other) = tensors.iter().find(|t| t.type_id != first.type_id || t.dims != first.dims) {
            let message = format!(
                "{} is {} {:?} and {} is {} {:?}: GPU kernels take the two as one matrix",
                first.name, first.kind.name, first.dims, other.name, other.kind.name, other.dims
            );
            return Err(Error::model(message).with_hint("run it with --device cpu"));
        }
        let (ty, rows) = (weight_type(first)?, first.rows() as usize * tensors.len());
        let planes = self.planes(&first.name, ty, rows, first.cols() as usize)?;
        let offset = self.place(planes.bytes());
        self.matrices.push(Matrix { planes, offset, tensors });
        Ok(At { ty, offset })
    }

    fn planes(&self, name: &str, ty: WeightType, rows: usize, cols: usize) -> Result<Planes> {
        let refused = |e: String| Error::model(format!("tensor {name}: {e}")).with_hint("run it with --device cpu");
        Planes::new(ty, rows, cols).map_err(refused)
    }

    fn vector(&mut self, name: &str) -> Result<usize> {
        let tensor = self.gguf.tensor(name)?;
        let offset = self.place(4 * (tensor.rows() * tensor.cols()) as usize);
        self.vectors.push(Vector { offset, tensor });
        Ok(offset)
    }

    /// Vectors that a layer has all of, or none.
    fn together<const N: usize>(&mut self, names: [String; N]) -> Result<Option<[usize; N]>> {
        let missing = names.iter().filter(|n| self.gguf.find(n).is_none()).count();
        if missing == N {
            return Ok(None);
        }
        let mut places = [0; N];
        for (place, name) in places.iter_mut().zip(&names) {
            let found = self.vector(name);
            *place = found.map_err(|e| e.context(format!("{missing} of {} lack", names.join(", "))))?;
        }
        Ok(Some(places))
    }
}

/// Refuses layers that differ in the parts they have: a step is the same text for all.
fn alike(layers: &[LayerAt]) -> Result<()> {
    let has = |l: &LayerAt| (l.head_norms.is_some(), l.biases.is_some(), l.post_norms.is_some());
    let other = layers.iter().position(|l| has(l) != has(&layers[0]));
    other.map_or(Ok(()), |index| {
        let message = format!("layers 0 and {index} differ in their norms or biases: GPU kernels run layers alike");
        Err(Error::model(message).with_hint("run it with --device cpu"))
    })
}
