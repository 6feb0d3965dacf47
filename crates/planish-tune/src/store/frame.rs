//! One record as one line of JSON with a checksum, and a line reader whose memory is bounded.
//!
//! `{"planish":1,"kind":"choice","sum":"<32 hex>","rec":{…}}`: the sum is over the kind and the exact bytes of `rec`,
//! so it is also the record's name, and a copy of the line is a copy of the record.

use std::io::{self, BufRead};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::error::Error;
use super::record::{clip, sum128};

/// Version of the line layout; a line of another version is left alone, never rewritten or dropped.
pub(super) const SCHEMA: u32 = 1;

/// The two kinds of record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// What a launch needs.
    Choice,
    /// Why it was chosen.
    Evidence,
}

impl Kind {
    /// Both kinds.
    pub const ALL: [Kind; 2] = [Kind::Choice, Kind::Evidence];

    /// The kind's name in a line.
    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Choice => "choice",
            Kind::Evidence => "evidence",
        }
    }

    /// The kind's folder inside a silicon's directory.
    pub(super) fn folder(self) -> &'static str {
        match self {
            Kind::Choice => "choices",
            Kind::Evidence => "evidence",
        }
    }

    /// Longest legal line in bytes, newline excluded.
    pub(super) fn line_bytes_max(self) -> usize {
        match self {
            Kind::Choice => 64 << 10,
            Kind::Evidence => 16 << 20,
        }
    }
}

/// A line whose checksum holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Framed<'a> {
    pub kind: Kind,
    pub sum: u128,
    pub body: &'a str,
}

/// Why a line is no record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Written by another version of this layout: unknown, not damaged.
    Schema(u32),
    /// Torn, flipped, truncated or never a record; what gave it away.
    Damaged(String),
}

impl Fault {
    fn damaged(what: impl Into<String>) -> Self {
        Fault::Damaged(what.into())
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Fault::Schema(v) => write!(f, "planish: layout version {v}, this program reads {SCHEMA}"),
            Fault::Damaged(what) => f.write_str(what),
        }
    }
}

/// The line of `record`, newline included, and its sum; refuses one longer than its kind allows.
pub(super) fn encode<T: Serialize>(kind: Kind, record: &T) -> Result<(Vec<u8>, u128), Error> {
    let body =
        serde_json::to_string(record).map_err(|e| Error::new(format!("{} cannot be written: {e}", kind.name())))?;
    let sum = sum128(&[kind.name().as_bytes(), body.as_bytes()]);
    let line = format!("{{\"planish\":{SCHEMA},\"kind\":\"{}\",\"sum\":\"{sum:032x}\",\"rec\":{body}}}\n", kind.name());
    if line.len() - 1 > kind.line_bytes_max() {
        let (found, max) = (line.len() - 1, kind.line_bytes_max());
        return Err(Error::new(format!("{} record has {found} bytes, at most {max} are kept", kind.name())));
    }
    Ok((line.into_bytes(), sum))
}

/// The framed body of `line` (no newline), if the layout and the checksum hold.
pub(super) fn decode(line: &[u8]) -> Result<Framed<'_>, Fault> {
    let text =
        std::str::from_utf8(line).map_err(|e| Fault::damaged(format!("not UTF-8 at byte {}", e.valid_up_to())))?;
    let rest =
        text.strip_prefix("{\"planish\":").ok_or_else(|| Fault::damaged("planish: the line does not begin with it"))?;
    let (version, rest) = rest.split_once(',').ok_or_else(|| Fault::damaged("planish: version is cut off"))?;
    let version: u32 = version.parse().map_err(|_| Fault::damaged("planish: version is not a number"))?;
    if version != SCHEMA {
        return Err(Fault::Schema(version));
    }
    let rest = rest.strip_prefix("\"kind\":\"").ok_or_else(|| Fault::damaged("kind: missing"))?;
    let (name, rest) = rest.split_once("\",\"sum\":\"").ok_or_else(|| Fault::damaged("sum: missing"))?;
    let kind = Kind::ALL.into_iter().find(|k| k.name() == name).ok_or_else(|| Fault::damaged("kind: unknown"))?;
    let (sum, rest) = rest.split_once("\",\"rec\":").ok_or_else(|| Fault::damaged("rec: missing"))?;
    let body = rest.strip_suffix('}').ok_or_else(|| Fault::damaged("rec: cut off"))?;
    let expected = sum128(&[name.as_bytes(), body.as_bytes()]);
    if sum != format!("{expected:032x}") {
        return Err(Fault::damaged("sum: the checksum does not match the record"));
    }
    Ok(Framed { kind, sum: expected, body })
}

/// The value of one line of JSON, or a short message that begins with the field where reading stopped.
pub(super) fn from_json<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_json::from_str(text).map_err(|e| {
        let before = text.get(..e.column()).unwrap_or(text);
        let name = before.rsplit_once("\":").and_then(|(head, _)| head.rsplit_once('"')).map(|(_, name)| name);
        format!("{}: {}", clip(name.unwrap_or("first field")), e.to_string().chars().take(160).collect::<String>())
    })
}

/// The record of a framed body.
pub(super) fn parse<T: DeserializeOwned>(framed: &Framed<'_>) -> Result<T, Fault> {
    from_json(framed.body).map_err(|what| Fault::damaged(format!("{}: {what}", framed.kind.name())))
}

/// One line as the reader saw it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Line<'a> {
    /// Counted from 1.
    pub number: u64,
    /// The bytes without the newline; `None` when the line is longer than allowed.
    pub bytes: Option<&'a [u8]>,
    /// Whether a newline ended it; false only for the tail of a file.
    pub ended: bool,
}

/// Calls `visit` with each line of `reader`, holding at most `bytes_max` bytes of one line in memory.
pub(super) fn for_each_line(
    reader: &mut dyn BufRead,
    bytes_max: usize,
    mut visit: impl FnMut(Line<'_>),
) -> io::Result<()> {
    let (mut held, mut too_long, mut number) = (Vec::new(), false, 1);
    loop {
        let chunk = match reader.fill_buf() {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            other => other?,
        };
        if chunk.is_empty() {
            if too_long || !held.is_empty() {
                visit(Line { number, bytes: (!too_long).then_some(&held), ended: false });
            }
            return Ok(());
        }
        let newline = chunk.iter().position(|b| *b == b'\n');
        let part = &chunk[..newline.unwrap_or(chunk.len())];
        too_long |= held.len() + part.len() > bytes_max;
        if !too_long {
            held.extend_from_slice(part);
        }
        let used = part.len() + usize::from(newline.is_some());
        reader.consume(used);
        if newline.is_some() {
            visit(Line { number, bytes: (!too_long).then_some(&held), ended: true });
            held.clear();
            too_long = false;
            number += 1;
        }
    }
}
