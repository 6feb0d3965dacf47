//! GGUF files: a checked reader over a memory map, typed metadata, the tensor directory, and a writer.

mod map;
mod read;
mod types;
mod value;
mod write;

use std::ops::Range;
use std::path::Path;

use map::Map;
use read::{Cursor, MetaEntry, Parsed, parse};

pub use read::TensorInfo;
pub(crate) use types::type_label;
pub use types::{TENSOR_TYPES, TensorType, tensor_type};
pub use value::{Array, MetaType, Value};
pub use write::{MetaValue, TensorDecl, Writer};

use crate::error::{Error, Result};

/// An opened model file; every count, length and extent in it was checked.
pub struct Gguf {
    map: Map,
    parsed: Parsed,
}

impl std::fmt::Debug for Gguf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (meta, tensors) = (self.parsed.meta.len(), self.parsed.tensors.len());
        write!(f, "Gguf({} bytes, {meta} metadata entries, {tensors} tensors)", self.bytes().len())
    }
}

impl AsRef<[u8]> for Gguf {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

impl Gguf {
    /// Maps and checks the file at `path`; the error begins with the path.
    pub fn open(path: &Path) -> Result<Gguf> {
        let map = Map::open(path)?;
        let parsed = parse(map.bytes()).map_err(|e| e.context(path.display()))?;
        Ok(Gguf { map, parsed })
    }

    /// Checks a file that lies in memory, and keeps a copy of it.
    pub fn from_bytes(bytes: &[u8]) -> Result<Gguf> {
        let parsed = parse(bytes)?;
        Ok(Gguf { map: Map::copy_of(bytes)?, parsed })
    }

    /// Checks a file that `write` makes in `bytes` zeros of memory.
    pub fn made(bytes: usize, write: &mut dyn FnMut(&mut [u8]) -> Result<()>) -> Result<Gguf> {
        let map = Map::made(bytes, write)?;
        let parsed = parse(map.bytes())?;
        Ok(Gguf { map, parsed })
    }

    /// All bytes of the file.
    pub fn bytes(&self) -> &[u8] {
        self.map.bytes()
    }

    /// Version of the format, 2 or 3.
    pub fn version(&self) -> u32 {
        self.parsed.version
    }

    /// Alignment of tensor data in the file, bytes.
    pub fn alignment(&self) -> u64 {
        self.parsed.alignment
    }

    /// The tensors in the order of the directory.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.parsed.tensors
    }

    /// The tensor `name`, if the file has it.
    pub fn find(&self, name: &str) -> Option<&TensorInfo> {
        self.parsed.by_name.get(name).map(|&i| &self.parsed.tensors[i])
    }

    /// The tensor `name`; its absence is an error.
    pub fn tensor(&self, name: &str) -> Result<&TensorInfo> {
        self.find(name).ok_or_else(|| Error::model(format!("the file has no tensor {name}")))
    }

    /// The data of a tensor of this file, aligned to at least 8 bytes.
    pub fn data(&self, tensor: &TensorInfo) -> &[u8] {
        &self.map.bytes()[tensor.bytes.clone()]
    }

    /// Lets the operating system take back the pages of a range of the file whose values were copied elsewhere.
    pub fn release(&self, range: Range<usize>) {
        self.map.release(range);
    }

    /// The metadata keys in the order of the file.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.parsed.meta_order.iter().map(AsRef::as_ref)
    }

    /// The value of `key`, if the file has it.
    pub fn get(&self, key: &str) -> Option<Value<'_>> {
        let MetaEntry { kind, array, bytes } = self.parsed.meta.get(key)?;
        let bytes = &self.map.bytes()[bytes.clone()];
        match array {
            Some((element, len)) => Some(Value::Array(Array::new(*element, *len, bytes))),
            None => Value::scalar(*kind, &mut Cursor::new(bytes)).ok(),
        }
    }

    /// The value of `key` as it lies in the file, from its type on.
    pub(crate) fn raw(&self, key: &str) -> Option<Vec<u8>> {
        let MetaEntry { kind, array, bytes } = self.parsed.meta.get(key)?;
        let mut raw = (*kind as u32).to_le_bytes().to_vec();
        if let Some((element, len)) = array {
            raw.extend((*element as u32).to_le_bytes());
            raw.extend((*len as u64).to_le_bytes());
        }
        raw.extend(&self.map.bytes()[bytes.clone()]);
        Some(raw)
    }

    /// `key` through `read`, which says no to a wrong type; `wanted` names the right one.
    fn typed<'a, T>(&'a self, key: &str, wanted: &str, read: impl Fn(&Value<'a>) -> Option<T>) -> Result<Option<T>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match read(&value) {
            Some(v) => Ok(Some(v)),
            None => Err(Error::file(format!("metadata {key} is {}, not {wanted}", describe(&value)))),
        }
    }

    /// An integer from 0 to 2^32 - 1, of any width in the file.
    pub fn u32(&self, key: &str) -> Result<Option<u32>> {
        self.typed(key, "an integer below 2^32", |v| u32::try_from(v.as_u64()?).ok())
    }

    /// An integer that is not negative, of any width in the file.
    pub fn u64(&self, key: &str) -> Result<Option<u64>> {
        self.typed(key, "an integer that is not negative", Value::as_u64)
    }

    /// An integer from -2^31 to 2^31 - 1, of any width in the file.
    pub fn i32(&self, key: &str) -> Result<Option<i32>> {
        self.typed(key, "an integer of 32 bits", |v| i32::try_from(v.as_i64()?).ok())
    }

    /// A finite float.
    pub fn f32(&self, key: &str) -> Result<Option<f32>> {
        self.typed(key, "a finite f32", |v| v.as_f64().map(|x| x as f32).filter(|x| x.is_finite()))
    }

    /// A truth value.
    pub fn bool(&self, key: &str) -> Result<Option<bool>> {
        self.typed(key, "a bool", |v| if let Value::Bool(b) = v { Some(*b) } else { None })
    }

    /// Text.
    pub fn str(&self, key: &str) -> Result<Option<&str>> {
        self.typed(key, "a string", |v| if let Value::Str(s) = *v { Some(s) } else { None })
    }

    /// An array whose elements are of type `kind`.
    pub fn array(&self, key: &str, kind: MetaType) -> Result<Option<Array<'_>>> {
        let wanted = format!("an array of {}", kind.name());
        self.typed(key, &wanted, |v| if let Value::Array(a) = *v { (a.kind == kind).then_some(a) } else { None })
    }
}

/// Turns an absent value into an error that names its key.
pub fn required<T>(key: &str, value: Option<T>) -> Result<T> {
    value.ok_or_else(|| Error::model(format!("the file has no metadata {key}")))
}

/// A value for a message: its type and, if short, what it is.
fn describe(value: &Value) -> String {
    match value {
        Value::Array(a) => format!("an array of {} {}", a.len, a.kind.name()),
        Value::Str(s) => format!("the string {:?}", s.chars().take(40).collect::<String>()),
        Value::Bool(b) => format!("the bool {b}"),
        Value::Unsigned(v, t) => format!("the {} {v}", t.name()),
        Value::Signed(v, t) => format!("the {} {v}", t.name()),
        Value::Float(v, t) => format!("the {} {v}", t.name()),
    }
}
