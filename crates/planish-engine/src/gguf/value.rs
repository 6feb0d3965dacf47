//! Metadata values: what the file says, borrowed from its bytes, and the types it may have.

use super::read::Cursor;
use crate::error::{Error, Result};

/// The type of a metadata value, numbered as in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum MetaType {
    /// Unsigned byte.
    U8 = 0,
    /// Signed byte.
    I8 = 1,
    /// Unsigned 16-bit integer.
    U16 = 2,
    /// Signed 16-bit integer.
    I16 = 3,
    /// Unsigned 32-bit integer.
    U32 = 4,
    /// Signed 32-bit integer.
    I32 = 5,
    /// 32-bit float.
    F32 = 6,
    /// One byte, 0 or 1.
    Bool = 7,
    /// Length and UTF-8 bytes.
    Str = 8,
    /// Element type, count, elements.
    Array = 9,
    /// Unsigned 64-bit integer.
    U64 = 10,
    /// Signed 64-bit integer.
    I64 = 11,
    /// 64-bit float.
    F64 = 12,
}

impl MetaType {
    const ALL: [MetaType; 13] = [
        MetaType::U8,
        MetaType::I8,
        MetaType::U16,
        MetaType::I16,
        MetaType::U32,
        MetaType::I32,
        MetaType::F32,
        MetaType::Bool,
        MetaType::Str,
        MetaType::Array,
        MetaType::U64,
        MetaType::I64,
        MetaType::F64,
    ];

    pub(crate) fn from_id(id: u32) -> Option<MetaType> {
        MetaType::ALL.get(id as usize).copied()
    }

    /// Bytes of a value of this type, or `None` where they vary.
    pub(crate) fn width(self) -> Option<usize> {
        match self {
            MetaType::U8 | MetaType::I8 | MetaType::Bool => Some(1),
            MetaType::U16 | MetaType::I16 => Some(2),
            MetaType::U32 | MetaType::I32 | MetaType::F32 => Some(4),
            MetaType::U64 | MetaType::I64 | MetaType::F64 => Some(8),
            MetaType::Str | MetaType::Array => None,
        }
    }

    /// The name used in messages.
    pub fn name(self) -> &'static str {
        match self {
            MetaType::U8 => "u8",
            MetaType::I8 => "i8",
            MetaType::U16 => "u16",
            MetaType::I16 => "i16",
            MetaType::U32 => "u32",
            MetaType::I32 => "i32",
            MetaType::F32 => "f32",
            MetaType::Bool => "bool",
            MetaType::Str => "string",
            MetaType::Array => "array",
            MetaType::U64 => "u64",
            MetaType::I64 => "i64",
            MetaType::F64 => "f64",
        }
    }
}

/// A metadata value; strings and arrays borrow from the file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    /// Any unsigned integer, of the width that the type names.
    Unsigned(u64, MetaType),
    /// Any signed integer, of the width that the type names.
    Signed(i64, MetaType),
    /// A float of either width.
    Float(f64, MetaType),
    /// A truth value.
    Bool(bool),
    /// Text.
    Str(&'a str),
    /// A list of values of one type.
    Array(Array<'a>),
}

impl<'a> Value<'a> {
    /// The type that the file gives the value.
    pub fn kind(&self) -> MetaType {
        match self {
            Value::Unsigned(_, t) | Value::Signed(_, t) | Value::Float(_, t) => *t,
            Value::Bool(_) => MetaType::Bool,
            Value::Str(_) => MetaType::Str,
            Value::Array(_) => MetaType::Array,
        }
    }

    /// An integer that is not negative, whatever its width and sign in the file.
    pub fn as_u64(&self) -> Option<u64> {
        match self {
            Value::Unsigned(v, _) => Some(*v),
            Value::Signed(v, _) => u64::try_from(*v).ok(),
            _ => None,
        }
    }

    /// An integer.
    pub fn as_i64(&self) -> Option<i64> {
        match self {
            Value::Unsigned(v, _) => i64::try_from(*v).ok(),
            Value::Signed(v, _) => Some(*v),
            _ => None,
        }
    }

    /// A float.
    pub fn as_f64(&self) -> Option<f64> {
        match self {
            Value::Float(v, _) => Some(*v),
            _ => None,
        }
    }

    /// Reads one value that is no array; the file has been validated up to its end.
    pub(crate) fn scalar(kind: MetaType, cursor: &mut Cursor<'a>) -> Result<Value<'a>> {
        let what = "metadata value";
        Ok(match kind {
            MetaType::U8 => Value::Unsigned(cursor.array::<1>(what)?[0].into(), kind),
            MetaType::I8 => Value::Signed((cursor.array::<1>(what)?[0] as i8).into(), kind),
            MetaType::U16 => Value::Unsigned(u16::from_le_bytes(cursor.array(what)?).into(), kind),
            MetaType::I16 => Value::Signed(i16::from_le_bytes(cursor.array(what)?).into(), kind),
            MetaType::U32 => Value::Unsigned(u32::from_le_bytes(cursor.array(what)?).into(), kind),
            MetaType::I32 => Value::Signed(i32::from_le_bytes(cursor.array(what)?).into(), kind),
            MetaType::F32 => Value::Float(f32::from_le_bytes(cursor.array(what)?).into(), kind),
            MetaType::U64 => Value::Unsigned(u64::from_le_bytes(cursor.array(what)?), kind),
            MetaType::I64 => Value::Signed(i64::from_le_bytes(cursor.array(what)?), kind),
            MetaType::F64 => Value::Float(f64::from_le_bytes(cursor.array(what)?), kind),
            MetaType::Bool => match cursor.array::<1>(what)?[0] {
                0 => Value::Bool(false),
                1 => Value::Bool(true),
                other => return Err(Error::file(format!("a bool is {other}, not 0 or 1"))),
            },
            MetaType::Str => Value::Str(cursor.string(what)?),
            MetaType::Array => return Err(Error::file("an array where a plain value belongs")),
        })
    }
}

/// An array of the metadata, still in the bytes of the file; every element was checked when the file was opened.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Array<'a> {
    /// Type of the elements.
    pub kind: MetaType,
    /// Number of elements.
    pub len: usize,
    bytes: &'a [u8],
}

impl<'a> Array<'a> {
    pub(crate) fn new(kind: MetaType, len: usize, bytes: &'a [u8]) -> Array<'a> {
        Array { kind, len, bytes }
    }

    /// The bytes of the elements as they lie in the file.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The elements of an array of plain values or strings, in order; arrays of arrays yield nothing.
    pub fn values(&self) -> impl Iterator<Item = Value<'a>> + use<'a> {
        let (mut cursor, kind) = (Cursor::new(self.bytes), self.kind);
        (0..self.len).map_while(move |_| Value::scalar(kind, &mut cursor).ok())
    }

    /// The elements of an array of strings, in order; nothing for another type.
    pub fn strings(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.values().map_while(|v| if let Value::Str(s) = v { Some(s) } else { None })
    }
}
