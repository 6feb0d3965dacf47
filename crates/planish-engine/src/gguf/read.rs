//! Reading and checking the bytes of a GGUF file: header, metadata and tensor directory, each count before it is used.

use std::collections::HashMap;
use std::ops::Range;

use super::types::{TensorType, tensor_type, type_label};
use super::value::MetaType;
use crate::error::{Error, Result};

/// Longest key or tensor name that is accepted, bytes; the format allows 65535 for keys.
const NAME_BYTES_MAX: usize = 65535;
/// Arrays of arrays deeper than this are refused; no known file nests at all.
const ARRAY_DEPTH_MAX: u32 = 4;
/// The alignment when `general.alignment` is absent.
const ALIGNMENT_DEFAULT: u64 = 32;
/// Largest alignment that is accepted, bytes.
const ALIGNMENT_MAX: u64 = 1 << 20;
/// Least bytes of a metadata entry: key length, one byte of key, type, one byte of value.
const META_BYTES_MIN: u64 = 8 + 1 + 4 + 1;
/// Least bytes of a directory entry: name length, one byte of name, one dimension, type, offset.
const TENSOR_BYTES_MIN: u64 = 8 + 1 + 4 + 8 + 4 + 8;
const DOWNLOAD_HINT: &str = "the file looks truncated: download it again and compare its size";

/// A position in the bytes of a file that never leaves them.
#[derive(Clone)]
pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Cursor<'a> {
        Cursor { bytes, at: 0 }
    }

    fn left(&self) -> u64 {
        (self.bytes.len() - self.at) as u64
    }

    /// The next `len` bytes; `what` names them in the error.
    fn take(&mut self, len: u64, what: &str) -> Result<&'a [u8]> {
        if len > self.left() {
            let (at, left) = (self.at, self.left());
            return Err(Error::file(format!("{what} at byte {at} needs {len} bytes, the file has {left} more"))
                .with_hint(DOWNLOAD_HINT));
        }
        let start = self.at;
        self.at += len as usize; // `len` is at most what is left, which is a usize
        Ok(&self.bytes[start..self.at])
    }

    pub(crate) fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N]> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N as u64, what)?);
        Ok(out)
    }

    fn u32(&mut self, what: &str) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    fn u64(&mut self, what: &str) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    pub(crate) fn string(&mut self, what: &str) -> Result<&'a str> {
        let len = self.u64(what)?;
        let at = self.at;
        let bytes = self.take(len, what)?;
        std::str::from_utf8(bytes).map_err(|e| Error::file(format!("{what} at byte {at} is not UTF-8: {e}")))
    }

    /// A key or tensor name: a string of 1 to [`NAME_BYTES_MAX`] bytes.
    fn name(&mut self, what: &str) -> Result<&'a str> {
        let at = self.at;
        let name = self.string(what)?;
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            let len = name.len();
            return Err(Error::file(format!("{what} at byte {at} has {len} bytes, allowed are 1 to {NAME_BYTES_MAX}")));
        }
        Ok(name)
    }
}

/// Where a metadata value lies.
#[derive(Clone, Debug)]
pub(crate) struct MetaEntry {
    pub(crate) kind: MetaType,
    /// Element type and count of an array.
    pub(crate) array: Option<(MetaType, usize)>,
    /// Bytes of the value, or of the elements of an array.
    pub(crate) bytes: Range<usize>,
}

/// A tensor of the directory; its bytes lie inside the file and overlap no other tensor's.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorInfo {
    /// Name, unique in the file.
    pub name: Box<str>,
    /// One to four sizes, fastest first: `dims[0]` is the row length (input width of a matrix), `dims[1]` the rows.
    pub dims: Vec<u64>,
    /// Number of the type in the file.
    pub type_id: u32,
    /// The type behind that number.
    pub kind: &'static TensorType,
    /// Bytes of the data, from the start of the file.
    pub bytes: Range<usize>,
}

impl TensorInfo {
    /// Row length: the values that lie next to each other.
    pub fn cols(&self) -> u64 {
        self.dims[0]
    }

    /// Rows: the product of all sizes but the first.
    pub fn rows(&self) -> u64 {
        self.dims[1..].iter().product()
    }

    /// Bytes of one row.
    pub fn row_bytes(&self) -> usize {
        self.bytes.len() / self.rows() as usize // dims are checked to be at least 1
    }
}

/// Everything before the tensor data, checked.
pub(crate) struct Parsed {
    pub(crate) version: u32,
    pub(crate) alignment: u64,
    pub(crate) meta_order: Vec<Box<str>>,
    pub(crate) meta: HashMap<Box<str>, MetaEntry>,
    pub(crate) tensors: Vec<TensorInfo>,
    pub(crate) by_name: HashMap<Box<str>, usize>,
}

/// Reads and checks a whole file; nothing is allocated whose size the file does not cover with its own bytes.
pub(crate) fn parse(bytes: &[u8]) -> Result<Parsed> {
    let mut cursor = Cursor::new(bytes);
    let version = header(&mut cursor)?;
    let tensor_count = cursor.u64("tensor count")?;
    let meta_count = cursor.u64("metadata count")?;
    bounded("metadata count", meta_count, META_BYTES_MIN, &cursor)?;
    bounded("tensor count", tensor_count, TENSOR_BYTES_MIN, &cursor)?;

    let (mut meta_order, mut meta) = (Vec::new(), HashMap::new());
    for index in 0..meta_count {
        let key = cursor.name("metadata key").map_err(|e| e.context(format!("metadata entry {index}")))?;
        let entry = meta_entry(&mut cursor).map_err(|e| e.context(format!("metadata {key}")))?;
        if meta.insert(key.into(), entry).is_some() {
            return Err(Error::file(format!("metadata key {key} stands twice in the file")));
        }
        meta_order.push(key.into());
    }
    let alignment = alignment(bytes, meta.get("general.alignment"))?;

    let (mut raw, mut by_name) = (Vec::new(), HashMap::new());
    for index in 0..tensor_count {
        let tensor = raw_tensor(&mut cursor).map_err(|e| e.context(format!("tensor {index}")))?;
        if by_name.insert(tensor.name.into(), raw.len()).is_some() {
            return Err(Error::file(format!("tensor {} stands twice in the file", tensor.name)));
        }
        raw.push(tensor);
    }
    let data_start = (cursor.at as u64).next_multiple_of(alignment);
    let tensors = raw.iter().map(|t| place(t, data_start, alignment, bytes.len())).collect::<Result<Vec<_>>>()?;
    no_overlap(&tensors)?;
    Ok(Parsed { version, alignment, meta_order, meta, tensors, by_name })
}

/// Magic and version.
fn header(cursor: &mut Cursor) -> Result<u32> {
    let magic: [u8; 4] = cursor.array("magic")?;
    if &magic != b"GGUF" {
        let hint = if magic.starts_with(b"PK") { "this is a zip archive" } else { "planish reads GGUF model files" };
        return Err(
            Error::file(format!("not a GGUF file: it starts with {magic:02x?}, not with \"GGUF\"")).with_hint(hint)
        );
    }
    let version = cursor.u32("version")?;
    match version {
        2 | 3 => Ok(version),
        1 => Err(Error::file("GGUF version 1 is not supported, 2 and 3 are").with_hint("convert the model again")),
        v if matches!(v.swap_bytes(), 1..=3) => Err(Error::file(format!(
            "the file is big-endian (version {} with its bytes reversed); only little-endian files are read",
            v.swap_bytes()
        ))
        .with_hint("convert the model again on or for a little-endian machine")),
        v => Err(Error::file(format!("GGUF version {v} is not supported, 2 and 3 are"))),
    }
}

/// Refuses a count whose entries, at their least size, would not fit the rest of the file.
fn bounded(what: &str, count: u64, bytes_min: u64, cursor: &Cursor) -> Result<()> {
    match count.checked_mul(bytes_min) {
        Some(need) if need <= cursor.left() => Ok(()),
        _ => Err(Error::file(format!(
            "{what} is {count}, at least {bytes_min} bytes each, but the file has {} more bytes",
            cursor.left()
        ))
        .with_hint(DOWNLOAD_HINT)),
    }
}

fn meta_kind(cursor: &mut Cursor, what: &str) -> Result<MetaType> {
    let id = cursor.u32(what)?;
    MetaType::from_id(id).ok_or_else(|| Error::file(format!("{what} {id} is unknown, known are 0 to 12")))
}

fn meta_entry(cursor: &mut Cursor) -> Result<MetaEntry> {
    let kind = meta_kind(cursor, "value type")?;
    if kind != MetaType::Array {
        let start = cursor.at;
        super::value::Value::scalar(kind, cursor)?;
        return Ok(MetaEntry { kind, array: None, bytes: start..cursor.at });
    }
    let (element, len) = array_head(cursor)?;
    let start = cursor.at;
    skip_elements(cursor, element, len, 1)?;
    // Each element took at least one byte, so the count fits a usize.
    Ok(MetaEntry { kind, array: Some((element, len as usize)), bytes: start..cursor.at })
}

fn array_head(cursor: &mut Cursor) -> Result<(MetaType, u64)> {
    let element = meta_kind(cursor, "array element type")?;
    let len = cursor.u64("array length")?;
    let bytes_min = element.width().unwrap_or(if element == MetaType::Str { 8 } else { 12 });
    bounded("array length", len, bytes_min as u64, cursor)?;
    Ok((element, len))
}

/// Walks over the elements of an array and checks each.
fn skip_elements(cursor: &mut Cursor, element: MetaType, len: u64, depth: u32) -> Result<()> {
    match element {
        MetaType::Array if depth >= ARRAY_DEPTH_MAX => {
            Err(Error::file(format!("arrays are nested more than {ARRAY_DEPTH_MAX} deep")))
        }
        MetaType::Array => (0..len).try_for_each(|_| {
            let (inner, inner_len) = array_head(cursor)?;
            skip_elements(cursor, inner, inner_len, depth + 1)
        }),
        MetaType::Str => (0..len)
            .try_for_each(|i| cursor.string("string").map(|_| ()).map_err(|e| e.context(format!("array element {i}")))),
        MetaType::Bool => {
            let bytes = cursor.take(len, "array of bool")?;
            match bytes.iter().position(|&b| b > 1) {
                Some(i) => Err(Error::file(format!("array element {i} is a bool with value {}", bytes[i]))),
                None => Ok(()),
            }
        }
        plain => {
            let width = plain.width().expect("strings and arrays are matched above") as u64;
            cursor.take(len * width, "array").map(|_| ()) // `bounded` checked the product
        }
    }
}

fn alignment(bytes: &[u8], entry: Option<&MetaEntry>) -> Result<u64> {
    let Some(entry) = entry else { return Ok(ALIGNMENT_DEFAULT) };
    if entry.kind != MetaType::U32 {
        return Err(Error::file(format!("metadata general.alignment is a {}, not a u32", entry.kind.name())));
    }
    let value = Cursor::new(&bytes[entry.bytes.clone()]).u32("general.alignment")?;
    let value = u64::from(value);
    if !(8..=ALIGNMENT_MAX).contains(&value) || !value.is_power_of_two() {
        let range = format!("a power of two from 8 to {ALIGNMENT_MAX}");
        return Err(Error::file(format!("metadata general.alignment is {value}, not {range}")));
    }
    Ok(value)
}

/// A directory entry as it stands, before its extent is checked.
struct RawTensor<'a> {
    name: &'a str,
    dims: Vec<u64>,
    type_id: u32,
    offset: u64,
}

fn raw_tensor<'a>(cursor: &mut Cursor<'a>) -> Result<RawTensor<'a>> {
    let name = cursor.name("tensor name")?;
    let rest = |cursor: &mut Cursor| {
        let count = cursor.u32("number of dimensions")?;
        if !(1..=4).contains(&count) {
            return Err(Error::file(format!("it has {count} dimensions, allowed are 1 to 4")));
        }
        let dims = (0..count).map(|_| cursor.u64("dimension")).collect::<Result<Vec<_>>>()?;
        Ok((dims, cursor.u32("tensor type")?, cursor.u64("tensor offset")?))
    };
    let (dims, type_id, offset) = rest(cursor).map_err(|e| e.context(name))?;
    Ok(RawTensor { name, dims, type_id, offset })
}

/// Checks the extent of a tensor and turns its offset into a range of the file.
fn place(raw: &RawTensor, data_start: u64, alignment: u64, file_bytes: usize) -> Result<TensorInfo> {
    let RawTensor { name, dims, type_id, offset } = raw;
    let kind = tensor_type(*type_id)
        .ok_or_else(|| Error::file(format!("tensor {name} has a type that is not known: {}", type_label(*type_id))))?;
    if dims.contains(&0) {
        return Err(Error::file(format!("tensor {name} has a dimension of zero: {dims:?}")));
    }
    let rows = dims[1..].iter().try_fold(1u64, |a, &b| a.checked_mul(b));
    let whole_blocks = dims[0].is_multiple_of(u64::from(kind.block));
    if !whole_blocks {
        let (cols, block, ty) = (dims[0], kind.block, kind.name);
        return Err(Error::file(format!(
            "tensor {name} has rows of {cols} values, which is no multiple of the {block} of {ty}"
        )));
    }
    let size = rows
        .and_then(|rows| kind.size(dims[0], rows))
        .ok_or_else(|| Error::file(format!("tensor {name}: the size of {dims:?} in {} overflows", kind.name)))?;
    if !offset.is_multiple_of(alignment) {
        return Err(Error::file(format!(
            "tensor {name} has offset {offset}, no multiple of the alignment {alignment}"
        )));
    }
    let start = data_start.checked_add(*offset);
    let range = start.and_then(|s| Some((s, s.checked_add(size)?)));
    match range {
        Some((start, end)) if end <= file_bytes as u64 => Ok(TensorInfo {
            name: (*name).into(),
            dims: dims.clone(),
            type_id: *type_id,
            kind,
            bytes: start as usize..end as usize,
        }),
        Some((_, end)) => Err(Error::file(format!(
            "tensor {name} ({dims:?} {}, {size} bytes at offset {offset}) ends at byte {end}, the file has {file_bytes} bytes",
            kind.name
        ))
        .with_hint(DOWNLOAD_HINT)),
        None => Err(Error::file(format!("tensor {name}: offset {offset} plus {size} bytes overflows"))),
    }
}

fn no_overlap(tensors: &[TensorInfo]) -> Result<()> {
    let mut order: Vec<&TensorInfo> = tensors.iter().collect();
    order.sort_by_key(|t| t.bytes.start);
    match order.windows(2).find(|w| w[1].bytes.start < w[0].bytes.end) {
        Some([a, b]) => Err(Error::file(format!(
            "tensors {} (bytes {:?}) and {} (bytes {:?}) overlap",
            a.name, a.bytes, b.name, b.bytes
        ))),
        _ => Ok(()),
    }
}
