//! Bytes of tokens in, whole characters out: a token may end in the middle of a character.

/// Holds back the bytes of a character that is not complete yet, at most three.
#[derive(Clone, Debug, Default)]
pub struct Utf8Stream {
    pending: Vec<u8>,
}

impl Utf8Stream {
    /// The whole characters that `bytes` complete. Bytes that can no longer begin a character become U+FFFD.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        self.pending.extend_from_slice(bytes);
        let mut out = String::new();
        let mut done = 0;
        for chunk in self.pending.utf8_chunks() {
            out.push_str(chunk.valid());
            done += chunk.valid().len();
            let invalid = chunk.invalid();
            let at_end = done + invalid.len() == self.pending.len();
            if invalid.is_empty() || (at_end && may_go_on(invalid)) {
                continue;
            }
            out.push(char::REPLACEMENT_CHARACTER);
            done += invalid.len();
        }
        self.pending.drain(..done);
        out
    }

    /// What is left when no more bytes come: U+FFFD for a character that was never completed.
    pub fn finish(&mut self) -> String {
        let out = if self.pending.is_empty() { String::new() } else { char::REPLACEMENT_CHARACTER.to_string() };
        self.pending.clear();
        out
    }
}

/// True if more bytes can make `bytes`, which are no whole character, into one.
fn may_go_on(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|e| e.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(pieces: &[&[u8]], want: &[&str]) {
        let mut stream = Utf8Stream::default();
        let mut got: Vec<String> = pieces.iter().map(|p| stream.push(p)).collect();
        got.push(stream.finish());
        assert_eq!(got, want);
    }

    #[test]
    fn characters_come_whole() {
        check(&[b"caf\xc3", b"\xa9!"], &["caf", "\u{e9}!", ""]);
        check(&[b"\xf0", b"\x9f", b"\x98", b"\x80"], &["", "", "", "\u{1f600}", ""]);
    }

    #[test]
    fn invalid_bytes_are_replaced_once_certain() {
        check(&[b"\xff", b"a"], &["\u{fffd}", "a", ""]);
        check(&[b"\xc3", b"a"], &["", "\u{fffd}a", ""]);
        check(&[b"\xe4\xbd"], &["", "\u{fffd}"]);
        check(&[b"\xed\xa0", b"x"], &["\u{fffd}\u{fffd}", "x", ""]);
    }

    #[test]
    fn any_cut_of_a_text_gives_the_text() {
        let text = "a\u{e9}\u{4f60}\u{597d}\u{1f600} z";
        for cut in 0..=text.len() {
            let mut stream = Utf8Stream::default();
            let (a, b) = text.as_bytes().split_at(cut);
            let got = stream.push(a) + &stream.push(b) + &stream.finish();
            assert_eq!(got, text);
        }
    }
}
