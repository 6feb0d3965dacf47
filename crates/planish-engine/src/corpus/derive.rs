//! A model file in another weight type, the same bytes every time: `derive_quant.py` beside the goldens, in Rust.

use std::io::Write;

use planish_kernels::quant::{WeightType, dequantize};

use super::quantize::quantize;
use crate::error::{Error, Result};
use crate::gguf::{Gguf, MetaValue, TensorDecl, Writer};
use crate::weights::weight_type;

const FILE_TYPE: &str = "general.file_type";
const EMBEDDING: &str = "token_embd.weight";
/// Values that are rounded at a time.
const PIECE: usize = 1 << 20;

/// The numbers of whole-file types, as `general.file_type` has them.
fn file_type(ty: WeightType) -> Result<u32> {
    Ok(match ty {
        WeightType::F32 => 0,
        WeightType::F16 => 1,
        WeightType::Q4_0 => 2,
        WeightType::Q4_1 => 3,
        WeightType::Q8_0 => 7,
        WeightType::Q5_0 => 8,
        WeightType::Q5_1 => 9,
        WeightType::IQ4_NL => 25,
        WeightType::BF16 => 32,
        other => return Err(Error::request(format!("no model is derived in {other}"))),
    })
}

/// The type that a tensor gets: matrices the wanted one, but the embedding its own, unless all becomes F16.
fn target(source: WeightType, name: &str, dims: &[u64], ty: WeightType) -> WeightType {
    let keeps = dims.len() < 2 || (name == EMBEDDING && ty != WeightType::F16);
    if keeps { source } else { ty }
}

/// Writes `source` to `out` with its matrices in `ty`; metadata stays, but for the file's type.
pub fn derive(source: &Gguf, ty: WeightType, out: &mut dyn Write) -> Result<()> {
    let arch = source.str("general.architecture")?.unwrap_or_default().to_owned();
    let mut writer = Writer::new(&arch);
    for key in source.keys().filter(|k| !["general.architecture", FILE_TYPE].contains(k)) {
        if key == "general.alignment" {
            writer.meta(key, source.alignment() as u32);
            continue;
        }
        let value = source.raw(key).ok_or_else(|| Error::file(format!("metadata {key} went away")))?;
        writer.meta(key, MetaValue::Raw(value));
    }
    writer.meta(FILE_TYPE, file_type(ty)?);
    for tensor in source.tensors() {
        let to = target(weight_type(tensor)?, &tensor.name, &tensor.dims, ty);
        writer.declare(TensorDecl {
            name: tensor.name.to_string(),
            dims: tensor.dims.to_vec(),
            type_id: to.record().gguf_id,
        });
    }
    writer.write_to(out, &mut |decl, buffer| {
        let tensor = source.tensor(&decl.name)?;
        let from = weight_type(tensor)?;
        let to = target(from, &tensor.name, &tensor.dims, ty);
        if from == to {
            buffer.extend_from_slice(source.data(tensor));
            return Ok(());
        }
        let cols = tensor.cols() as usize;
        let row =
            from.row_bytes(cols).ok_or_else(|| Error::file(format!("tensor {} has no whole rows", tensor.name)))?;
        let mut values = Vec::new();
        for bytes in source.data(tensor).chunks(row * (PIECE / cols).max(1)) {
            values.resize(bytes.len() / row * cols, 0f32);
            dequantize(from, bytes, &mut values);
            quantize(to, &values, buffer)?;
        }
        Ok(())
    })
}
