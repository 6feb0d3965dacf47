//! The kernel dialect's forms: the same text under one prelude of names for each compiler.
//!
//! `host.h` is the list of names; `cuda.h` and `metal.h` give the same ones to NVRTC and to Metal's compiler.

use std::collections::{BTreeMap, BTreeSet};

/// Names for the host executor's C++ compiler.
pub const HOST: &str = include_str!("host.h");
/// Names for NVRTC; needs no header of the CUDA toolkit.
pub const CUDA: &str = include_str!("cuda.h");
/// Names for Metal's compiler.
pub const METAL: &str = include_str!("metal.h");

/// Whole CUDA source of `text`; its constants are options of the compiler, see `cuda_options`.
pub fn cuda(text: &str) -> String {
    format!("{CUDA}\n{text}")
}

/// Definitions of `constants` for a group of `threads` threads, as options of NVRTC.
pub fn cuda_options(constants: &BTreeMap<String, i64>, threads: u32) -> Vec<String> {
    let mut options = vec![format!("-DGROUP_THREADS={threads}")];
    options.extend(constants.iter().map(|(name, value)| match name.strip_prefix("SPEC_") {
        Some(_) => format!("-D{name}={value}u"),
        None => format!("-D{name}={value}"),
    }));
    options
}

/// Whole Metal source of `text`: `SHAPE_*` constants are definitions; `SPEC_*` ones are function constants, set when a
/// pipeline is made.
pub fn metal(text: &str, constants: &BTreeMap<String, i64>) -> String {
    let shapes = constants.iter().filter(|(name, _)| !name.starts_with("SPEC_"));
    let defines: String = shapes.map(|(name, value)| format!("#define {name} {value}\n")).collect();
    format!("{defines}{METAL}\n{text}")
}

/// Whether entry point `name` of `text` uses grid barriers, so that all its groups must be resident at once.
pub fn is_grid(text: &str, name: &str) -> bool {
    declaration(text, name).is_some_and(|(grid, _)| grid)
}

/// Arguments of entry point `name`, its parameter block included; none where `text` has no such kernel.
pub fn arguments(text: &str, name: &str) -> Option<usize> {
    declared(text, name, &["IN", "OUT", "INOUT", "ATOMIC", "PARAMS"])
}

/// Views that entry point `name` takes after its parameter block, `VIEW(name, index)`; native text for cards has them.
pub fn views(text: &str, name: &str) -> Option<usize> {
    declared(text, name, &["VIEW"])
}

/// How often entry point `name` declares an argument by one of the macros `kinds`.
fn declared(text: &str, name: &str, kinds: &[&str]) -> Option<usize> {
    let (_, declared) = declaration(text, name)?;
    let words = declared.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    Some(words.filter(|w| kinds.contains(w)).count())
}

/// How entry point `name` is declared: whether as a grid, and its arguments.
fn declaration<'a>(text: &'a str, name: &str) -> Option<(bool, &'a str)> {
    ["KERNEL(", "KERNEL_GRID("].iter().find_map(|kind| {
        text.match_indices(kind).find_map(|(at, _)| {
            let rest = text[at + kind.len()..].trim_start().strip_prefix(name)?.trim_start().strip_prefix(',')?;
            let mut depth = 1;
            let end = rest.find(|c| {
                depth += i32::from(c == '(') - i32::from(c == ')');
                depth == 0
            })?;
            Some((*kind == "KERNEL_GRID(", &rest[..end]))
        })
    })
}

/// Every name of the dialect: macros, functions and types of `host.h`, which is the list.
pub fn names() -> BTreeSet<&'static str> {
    let mut names = BTreeSet::new();
    let mut inner = false;
    for line in HOST.lines() {
        // The executor's own names are no part of the dialect.
        inner |= line.starts_with("namespace exec {");
        inner &= !line.starts_with("}  // namespace exec");
        if inner {
            continue;
        }
        let mut rest = line;
        while let Some(at) = rest.find("using std::").or_else(|| rest.find("#define ")) {
            rest = &rest[at..];
            rest = rest.strip_prefix("using std::").or_else(|| rest.strip_prefix("#define ")).unwrap_or_default();
            names.insert(word(rest));
        }
        if let Some(at) = line.find("struct ").filter(|_| !line.starts_with("template")) {
            let named = line[at + "struct ".len()..].trim_start();
            let named = named.strip_prefix("alignas(").map_or(named, |r| r.split_once(") ").map_or(r, |(_, n)| n));
            names.insert(word(named));
        }
        names.extend(
            line.split("typedef ").skip(1).filter_map(|t| Some(word(t.split(';').next()?.rsplit(' ').next()?))),
        );
        if let Some(head) = line.split("static inline ").nth(1).and_then(|f| f.split('(').next()) {
            names.insert(word(head.rsplit(' ').next().unwrap_or_default()));
        }
    }
    names.retain(|n| !n.is_empty() && !n.starts_with("EXEC_") && *n != "operator" && *n != "mm_load");
    names
}

/// The word that `text` begins with.
fn word(text: &str) -> &str {
    let part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    &text[..text.find(|c| !part(c)).unwrap_or(text.len())]
}

#[cfg(test)]
mod tests {
    use super::{CUDA, METAL, arguments, cuda_options, is_grid, metal, names, views};
    use std::collections::{BTreeMap, BTreeSet};

    #[test]
    fn all_preludes_have_the_same_names() {
        let names = names();
        for known in
            ["KERNEL", "SPEC_U32", "half4", "uint4", "float2", "rsqrt", "exp", "simd_sum", "mm_mac", "schar", "INF"]
        {
            assert!(names.contains(known), "{known} is a name of the dialect");
        }
        for (prelude, text) in [("cuda.h", CUDA), ("metal.h", METAL)] {
            let words: BTreeSet<&str> = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).collect();
            let missing: Vec<_> = names.iter().filter(|n| !words.contains(*n)).collect();
            assert!(missing.is_empty(), "{prelude} lacks {missing:?}, or a word on whose they are");
        }
    }

    #[test]
    fn constants_reach_each_compiler_in_its_own_way() {
        let constants = BTreeMap::from([("SPEC_ROWS".to_owned(), 3), ("SHAPE_IO".to_owned(), 2)]);
        assert_eq!(cuda_options(&constants, 64), ["-DGROUP_THREADS=64", "-DSHAPE_IO=2", "-DSPEC_ROWS=3u"]);
        let text = metal("KERNEL(a)", &constants);
        assert!(text.starts_with("#define SHAPE_IO 2\n") && !text.contains("SPEC_ROWS") && text.ends_with("KERNEL(a)"));
    }

    #[test]
    fn grid_kernels_are_known_by_their_declaration() {
        let text =
            "KERNEL(sum, IN(float, x, 0))\nKERNEL_GRID(sums, IN(float, x, 0))\nKERNEL_GRID( wide , OUT(float, y, 0))";
        assert!(is_grid(text, "sums") && is_grid(text, "wide"));
        assert!(!is_grid(text, "sum") && !is_grid(text, "wid") && !is_grid(text, "x"));
        let text =
            "KERNEL(a, IN(P(x), p, 0),\n INOUT(float, y, 1), ATOMIC(uint, n, 2), PARAMS(P, q, 3))\n{ f(IN(0)); }";
        assert_eq!((arguments(text, "a"), arguments(text, "b")), (Some(4), None));
        let text = "KERNEL(a, IN(half, x, 0), PARAMS(Q, q, 1), VIEW(left, 2), VIEW(right, 3))";
        assert_eq!((arguments(text, "a"), views(text, "a"), views(text, "b")), (Some(2), Some(2), None));
    }
}
