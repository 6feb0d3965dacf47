//! Numbers in sentences.

use std::fmt::Display;

/// `1 kernel`, `2 kernels`: a number and what it counts, a noun whose plural has an s.
pub fn counted<N: Display + PartialEq + From<u8>>(n: N, what: &str) -> String {
    let plural = if n == N::from(1) { "" } else { "s" };
    format!("{n} {what}{plural}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_no_plural() {
        assert_eq!(
            [0u64, 1, 2].map(|n| counted(n, "more record")),
            ["0 more records", "1 more record", "2 more records"]
        );
        assert_eq!((counted(1usize, "kernel"), counted(11u32, "kernel")), ("1 kernel".into(), "11 kernels".into()));
    }
}
