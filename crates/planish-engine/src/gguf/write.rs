//! Writing GGUF files: for tests, and for random-weight models that stand in for real ones.

use std::io::{self, Write};

use super::types::tensor_type;
use super::value::MetaType;
use crate::error::{Error, Result};

/// A metadata value to write.
#[derive(Clone, Debug, PartialEq)]
pub enum MetaValue {
    /// Unsigned 32-bit integer.
    U32(u32),
    /// Signed 32-bit integer.
    I32(i32),
    /// Unsigned 64-bit integer.
    U64(u64),
    /// 32-bit float.
    F32(f32),
    /// Truth value.
    Bool(bool),
    /// Text.
    Str(String),
    /// List of text.
    Strs(Vec<String>),
    /// List of floats.
    F32s(Vec<f32>),
    /// List of signed integers.
    I32s(Vec<i32>),
    /// List of unsigned integers.
    U32s(Vec<u32>),
    /// List of truth values.
    Bools(Vec<bool>),
    /// A value of another file as it lies there, from its type on.
    Raw(Vec<u8>),
}

macro_rules! meta_from {
    ($($from:ty => $variant:ident),*) => {
        $(impl From<$from> for MetaValue {
            fn from(v: $from) -> MetaValue {
                MetaValue::$variant(v.into())
            }
        })*
    };
}
meta_from!(u32 => U32, i32 => I32, u64 => U64, f32 => F32, bool => Bool, &str => Str, String => Str,
    Vec<String> => Strs, Vec<f32> => F32s, Vec<i32> => I32s, Vec<u32> => U32s, Vec<bool> => Bools);

/// A tensor to write: what the directory says of it.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorDecl {
    /// Name.
    pub name: String,
    /// Sizes, row length first.
    pub dims: Vec<u64>,
    /// Number of the type.
    pub type_id: u32,
}

impl TensorDecl {
    /// Bytes of the data; an error for an unknown type or sizes that do not fit it.
    pub fn size(&self) -> Result<u64> {
        let sized = || {
            let (cols, rows) = self.dims.split_first()?;
            let rows = rows.iter().try_fold(1u64, |a, &b| a.checked_mul(b))?;
            tensor_type(self.type_id)?.size(*cols, rows)
        };
        sized().ok_or_else(|| {
            Error::file(format!("tensor {}: type {} cannot hold {:?}", self.name, self.type_id, self.dims))
        })
    }
}

/// Collects metadata and tensors and writes them as a file of version 3.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Writer {
    meta: Vec<(String, MetaValue)>,
    tensors: Vec<(TensorDecl, Vec<u8>)>,
}

impl Writer {
    /// An empty file for `arch`.
    pub fn new(arch: &str) -> Writer {
        let mut writer = Writer::default();
        writer.meta("general.architecture", arch);
        writer
    }

    /// Adds metadata; a key given twice takes the later value in the earlier place.
    pub fn meta(&mut self, key: &str, value: impl Into<MetaValue>) -> &mut Writer {
        let value = value.into();
        match self.meta.iter_mut().find(|(k, _)| k == key) {
            Some(entry) => entry.1 = value,
            None => self.meta.push((key.to_string(), value)),
        }
        self
    }

    /// Takes metadata out again.
    pub fn without(&mut self, key: &str) -> &mut Writer {
        self.meta.retain(|(k, _)| k != key);
        self
    }

    /// Adds a tensor with its data; [`Writer::to_bytes`] checks that the data has the declared size.
    pub fn tensor(&mut self, name: &str, dims: &[u64], type_id: u32, data: Vec<u8>) -> &mut Writer {
        self.tensors.push((TensorDecl { name: name.to_string(), dims: dims.to_vec(), type_id }, data));
        self
    }

    /// Adds a tensor whose data [`Writer::write_to`] asks for.
    pub fn declare(&mut self, decl: TensorDecl) -> &mut Writer {
        self.tensors.push((decl, Vec::new()));
        self
    }

    /// The file in memory.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        let io = |e| Error::io("write to memory", &e);
        out.write_all(&self.header()?).map_err(io)?;
        for (decl, data) in &self.tensors {
            self.put_data(&mut out, decl, data)?;
        }
        Ok(out)
    }

    /// Writes the file to `out`; `fill` puts the data of each tensor into the empty buffer it is given, one at a time.
    pub fn write_to(
        &self,
        out: &mut dyn Write,
        fill: &mut dyn FnMut(&TensorDecl, &mut Vec<u8>) -> Result<()>,
    ) -> Result<()> {
        out.write_all(&self.header()?).map_err(|e| Error::io("write the header", &e))?;
        let mut buffer = Vec::new();
        for (decl, data) in &self.tensors {
            buffer.clear();
            if data.is_empty() {
                fill(decl, &mut buffer)?;
            } else {
                buffer.extend_from_slice(data);
            }
            self.put_data(out, decl, &buffer)?;
        }
        out.flush().map_err(|e| Error::io("write the model", &e))
    }

    fn alignment(&self) -> u64 {
        match self.meta.iter().find(|(k, _)| k == "general.alignment") {
            Some((_, MetaValue::U32(a))) if a.is_power_of_two() => u64::from(*a),
            _ => 32,
        }
    }

    fn put_data(&self, out: &mut dyn Write, decl: &TensorDecl, data: &[u8]) -> Result<()> {
        let (size, have) = (decl.size()?, data.len() as u64);
        if have != size {
            return Err(Error::file(format!("tensor {} has {have} bytes of data, its sizes need {size}", decl.name)));
        }
        let pad = (size.next_multiple_of(self.alignment()) - size) as usize;
        let io = |e: io::Error| Error::io(format!("write tensor {}", decl.name), &e);
        out.write_all(data).map_err(io)?;
        out.write_all(&vec![0; pad]).map_err(io)
    }

    /// Bytes of the whole file.
    pub fn size(&self) -> Result<usize> {
        let padded = |(decl, _): &(TensorDecl, _)| Ok(decl.size()?.next_multiple_of(self.alignment()) as usize);
        Ok(self.header()?.len() + self.tensors.iter().map(padded).sum::<Result<usize>>()?)
    }

    /// Everything before the tensor data, padded to the alignment.
    pub fn header(&self) -> Result<Vec<u8>> {
        let mut out = b"GGUF".to_vec();
        out.extend(3u32.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.meta.len() as u64).to_le_bytes());
        for (key, value) in &self.meta {
            put_str(&mut out, key);
            put_value(&mut out, value);
        }
        let (alignment, mut offset) = (self.alignment(), 0u64);
        for (decl, _) in &self.tensors {
            put_str(&mut out, &decl.name);
            out.extend((decl.dims.len() as u32).to_le_bytes());
            decl.dims.iter().for_each(|d| out.extend(d.to_le_bytes()));
            out.extend(decl.type_id.to_le_bytes());
            out.extend(offset.to_le_bytes());
            offset = (offset + decl.size()?).next_multiple_of(alignment);
        }
        out.resize(out.len().next_multiple_of(alignment as usize), 0);
        Ok(out)
    }
}

fn put_str(out: &mut Vec<u8>, s: &str) {
    out.extend((s.len() as u64).to_le_bytes());
    out.extend(s.as_bytes());
}

fn put_array<T>(out: &mut Vec<u8>, kind: MetaType, items: &[T], put: impl Fn(&mut Vec<u8>, &T)) {
    out.extend((MetaType::Array as u32).to_le_bytes());
    out.extend((kind as u32).to_le_bytes());
    out.extend((items.len() as u64).to_le_bytes());
    items.iter().for_each(|item| put(out, item));
}

fn put_value(out: &mut Vec<u8>, value: &MetaValue) {
    fn plain(out: &mut Vec<u8>, kind: MetaType, bytes: &[u8]) {
        out.extend((kind as u32).to_le_bytes());
        out.extend(bytes);
    }
    match value {
        MetaValue::U32(v) => plain(out, MetaType::U32, &v.to_le_bytes()),
        MetaValue::I32(v) => plain(out, MetaType::I32, &v.to_le_bytes()),
        MetaValue::U64(v) => plain(out, MetaType::U64, &v.to_le_bytes()),
        MetaValue::F32(v) => plain(out, MetaType::F32, &v.to_le_bytes()),
        MetaValue::Bool(v) => plain(out, MetaType::Bool, &[u8::from(*v)]),
        MetaValue::Str(v) => {
            out.extend((MetaType::Str as u32).to_le_bytes());
            put_str(out, v);
        }
        MetaValue::Strs(v) => put_array(out, MetaType::Str, v, |o, s| put_str(o, s)),
        MetaValue::F32s(v) => put_array(out, MetaType::F32, v, |o, x| o.extend(x.to_le_bytes())),
        MetaValue::I32s(v) => put_array(out, MetaType::I32, v, |o, x| o.extend(x.to_le_bytes())),
        MetaValue::U32s(v) => put_array(out, MetaType::U32, v, |o, x| o.extend(x.to_le_bytes())),
        MetaValue::Bools(v) => put_array(out, MetaType::Bool, v, |o, x| o.push(u8::from(*x))),
        MetaValue::Raw(bytes) => out.extend(bytes),
    }
}
