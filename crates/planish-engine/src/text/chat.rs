//! Chat templates: the Jinja text of a model file, rendered as its authors' own software renders it.

use minijinja::value::{Kwargs, Value};
use minijinja::{Environment, ErrorKind, context};
use minijinja_contrib::pycompat::unknown_method_callback;
use serde::Serialize;

use super::tokenizer::Tokenizer;
use crate::error::{Error, Result};
use crate::gguf::Gguf;

/// Steps that a template may take; real ones take a few hundred a message.
const FUEL: u64 = 5_000_000;
/// Longest template that is compiled, bytes.
const TEMPLATE_BYTES_MAX: usize = 1 << 20;
/// The plain form of ChatML, for files that have its tokens and no template.
const CHATML: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + \
    '<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

/// One message of a chat.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Message {
    /// `system`, `user` or `assistant`; templates refuse what they do not know.
    pub role: String,
    /// The text.
    pub content: String,
}

impl Message {
    /// A message of `role`.
    pub fn new(role: &str, content: impl Into<String>) -> Message {
        Message { role: role.to_string(), content: content.into() }
    }
}

/// What follows the messages of a rendered chat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// The opening of the assistant's reply, for the model to go on.
    Reply,
    /// Nothing.
    Nothing,
}

/// A compiled chat template with the control texts it may name.
pub struct ChatTemplate {
    environment: Environment<'static>,
    bos: String,
    eos: String,
}

impl std::fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ChatTemplate")
    }
}

impl ChatTemplate {
    /// The template of a model file; ChatML where the file has none but has its tokens.
    pub fn read(file: &Gguf, tokenizer: &Tokenizer) -> Result<ChatTemplate> {
        let text = |id: Option<u32>| id.map_or(Ok(String::new()), |id| tokenizer.text_of(id).map(|t| t.into_owned()));
        let source = match file.str("tokenizer.chat_template")? {
            Some(source) => source,
            None if tokenizer.id_of("<|im_start|>").is_some() => CHATML,
            None => {
                return Err(Error::text("the file has no chat template (tokenizer.chat_template)")
                    .with_hint("it is a base model: use `run` with plain text instead of `chat`"));
            }
        };
        ChatTemplate::compile(source, &text(tokenizer.bos())?, &text(tokenizer.eos())?)
    }

    /// Compiles a template; `bos` and `eos` are what it sees as `bos_token` and `eos_token`.
    pub fn compile(source: &str, bos: &str, eos: &str) -> Result<ChatTemplate> {
        if source.len() > TEMPLATE_BYTES_MAX {
            let len = source.len();
            return Err(Error::text(format!(
                "the chat template has {len} bytes, at most {TEMPLATE_BYTES_MAX} are compiled"
            )));
        }
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_fuel(Some(FUEL));
        environment.set_unknown_method_callback(unknown_method_callback);
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.add_function("raise_exception", |message: String| -> Result<String, minijinja::Error> {
            Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
        });
        environment.add_function("strftime_now", |format: String| strftime(&format, now_s()));
        environment.add_filter("tojson", to_json);
        environment.add_template_owned("chat", source.to_string()).map_err(|e| refused("compile", &e))?;
        Ok(ChatTemplate { environment, bos: bos.to_string(), eos: eos.to_string() })
    }

    /// The prompt that the messages make.
    pub fn render(&self, messages: &[Message], then: Then) -> Result<String> {
        let template = self.environment.get_template("chat").map_err(|e| refused("compile", &e))?;
        let context = context! {
            messages => messages,
            add_generation_prompt => then == Then::Reply,
            bos_token => self.bos,
            eos_token => self.eos,
        };
        template.render(context).map_err(|e| refused("render", &e))
    }
}

fn refused(what: &str, error: &minijinja::Error) -> Error {
    let line = error.line().map_or(String::new(), |l| format!(", line {l}"));
    let detail = error.detail().map_or(error.kind().to_string(), |d| format!("{}: {d}", error.kind()));
    Error::text(format!("{what} the chat template{line}: {detail}"))
}

/// JSON as Python's `json.dumps` spells it: a space after commas and colons, no escapes of HTML.
fn to_json(value: &Value, kwargs: Kwargs) -> Result<String, minijinja::Error> {
    let failed = |e: serde_json::Error| minijinja::Error::new(ErrorKind::BadSerialization, e.to_string());
    let indent: Option<usize> = kwargs.get("indent")?;
    for ignored in ["ensure_ascii", "sort_keys", "separators"] {
        let _: Option<Value> = kwargs.get(ignored)?;
    }
    kwargs.assert_all_used()?;
    let mut out = Vec::new();
    match indent {
        Some(n) => {
            let spaces = " ".repeat(n.min(16));
            let pretty = serde_json::ser::PrettyFormatter::with_indent(spaces.as_bytes());
            value.serialize(&mut serde_json::Serializer::with_formatter(&mut out, pretty)).map_err(failed)?;
        }
        None => value.serialize(&mut serde_json::Serializer::with_formatter(&mut out, Spaced)).map_err(failed)?,
    }
    Ok(String::from_utf8_lossy(&out).into_owned())
}

/// One line, with a space after commas and colons.
struct Spaced;

impl serde_json::ser::Formatter for Spaced {
    fn begin_array_value<W: std::io::Write + ?Sized>(&mut self, w: &mut W, first: bool) -> std::io::Result<()> {
        if first { Ok(()) } else { w.write_all(b", ") }
    }

    fn begin_object_key<W: std::io::Write + ?Sized>(&mut self, w: &mut W, first: bool) -> std::io::Result<()> {
        if first { Ok(()) } else { w.write_all(b", ") }
    }

    fn begin_object_value<W: std::io::Write + ?Sized>(&mut self, w: &mut W) -> std::io::Result<()> {
        w.write_all(b": ")
    }
}

fn now_s() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];

/// `format` filled with the UTC time `seconds` after 1970; a field that templates do not use is an error.
fn strftime(format: &str, seconds: u64) -> Result<String, minijinja::Error> {
    let (year, month, day) = date(seconds / 86400);
    let weekday = DAYS[(seconds / 86400 % 7) as usize];
    let name = MONTHS[month as usize - 1];
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('Y') => out += &year.to_string(),
            Some('y') => out += &format!("{:02}", year % 100),
            Some('m') => out += &format!("{month:02}"),
            Some('d') => out += &format!("{day:02}"),
            Some('B') => out += name,
            Some('b') => out += &name[..3],
            Some('A') => out += weekday,
            Some('a') => out += &weekday[..3],
            Some('H') => out += &format!("{:02}", seconds / 3600 % 24),
            Some('M') => out += &format!("{:02}", seconds / 60 % 60),
            Some('S') => out += &format!("{:02}", seconds % 60),
            Some('%') => out.push('%'),
            other => {
                let shown = other.map_or(String::new(), String::from);
                return Err(minijinja::Error::new(
                    ErrorKind::InvalidOperation,
                    format!("strftime_now: no field %{shown}"),
                ));
            }
        }
    }
    Ok(out)
}

/// Year, month and day of the day `days` after 1 January 1970, by counting whole years and months.
fn date(mut days: u64) -> (u64, u64, u64) {
    let leap = |y: u64| y.is_multiple_of(4) && (!y.is_multiple_of(100) || y.is_multiple_of(400));
    let mut year = 1970;
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let lengths = [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while days >= lengths[month] {
        days -= lengths[month];
        month += 1;
    }
    (year, month as u64 + 1, days + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        let at = |s| strftime("%a %d %b %Y, %H:%M:%S %m %y %B %A %%", s).expect("known fields");
        assert_eq!(at(0), "Thu 01 Jan 1970, 00:00:00 01 70 January Thursday %");
        assert_eq!(at(951_827_696), "Tue 29 Feb 2000, 12:34:56 02 00 February Tuesday %");
        assert_eq!(at(1_735_689_599), "Tue 31 Dec 2024, 23:59:59 12 24 December Tuesday %");
        assert!(strftime("%Q", 0).is_err());
    }
}
