//! The rules of kernel text: what none of its three compilers refuses everywhere, or what only one of them would.
//!
//! Metal has address spaces, keywords of its own and arguments by index; CUDA binds arguments by position.

use std::collections::BTreeSet;

/// Names of other languages that some form of the dialect would let through, and keywords of Metal.
const FOREIGN: &[&str] = &[
    "double",
    "long",
    "size_t",
    "int8_t",
    "int16_t",
    "int32_t",
    "int64_t",
    "uint8_t",
    "uint16_t",
    "uint32_t",
    "uint64_t",
    "ptrdiff_t",
    "intptr_t",
    "uintptr_t",
    "asm",
    "goto",
    "new",
    "delete",
    "virtual",
    "try",
    "throw",
    "auto",
    "volatile",
    "union",
    "namespace",
    "using",
    "std",
    "metal",
    "exec",
    "reinterpret_cast",
    "dynamic_cast",
    "thread_local",
    "threadIdx",
    "blockIdx",
    "blockDim",
    "gridDim",
    "warpSize",
    "device",
    "constant",
    "threadgroup",
    "thread",
    "kernel",
    "vertex",
    "fragment",
    "visible",
    "access",
    "texture",
    "sampler",
];
/// How names of CUDA and of Metal begin.
const FOREIGN_PREFIXES: &[&str] =
    &["__", "atomicA", "atomicM", "atomicC", "atomicE", "simdgroup_", "threadgroup_", "memory_order"];
/// Words of C++ that a parenthesis may follow.
const KEYWORDS: &[&str] =
    &["if", "for", "while", "switch", "return", "sizeof", "static_assert", "defined", "else", "do", "alignas"];
/// Types that a pointer may be made of, besides those that kernels declare.
const TYPES: &[&str] = &[
    "void", "bool", "char", "schar", "uchar", "short", "ushort", "int", "uint", "unsigned", "signed", "float", "half",
    "bfloat", "float2", "float4", "half4", "bfloat4", "uint2", "uint4", "mm_acc", "mm_a", "mm_b",
];
/// What may begin a declaration outside functions; macros of kernels may too.
const OUTSIDE: &[&str] = &[
    "KERNEL",
    "KERNEL_GRID",
    "INLINE",
    "SPEC_U32",
    "SPEC_BOOL",
    "CONST_TABLE",
    "struct",
    "typedef",
    "enum",
    "template",
    "static_assert",
];
/// What declares an argument of a kernel.
const ARGUMENTS: &[&str] = &["IN", "OUT", "INOUT", "ATOMIC", "PARAMS"];

/// A word or a sign of kernel text.
struct Token<'a> {
    line: usize,
    text: &'a str,
    /// Inside a preprocessor line.
    directive: bool,
}

/// Names that kernel text itself declares: macros, functions, kernels, structures and types.
pub fn declared(content: &str) -> BTreeSet<String> {
    let tokens = tokens(content);
    let mut names = BTreeSet::new();
    let at = |i: usize| tokens.get(i).map_or("", |t| t.text);
    for i in 0..tokens.len() {
        match at(i) {
            "#" if at(i + 1) == "define" => drop(names.insert(at(i + 2).to_owned())),
            "struct" | "enum" => drop(names.insert(at(i + 1).to_owned())),
            "KERNEL" | "KERNEL_GRID" | "SPEC_U32" | "SPEC_BOOL" => drop(names.insert(at(i + 2).to_owned())),
            "typedef" => {
                let end = (i..tokens.len()).find(|j| at(*j) == ";").unwrap_or(i);
                names.insert(at(end.saturating_sub(1)).to_owned());
            }
            // The last word before the first parenthesis that does not belong to the type.
            "INLINE" => {
                let name =
                    (i + 1..tokens.len()).find(|j| is_word(at(*j)) && at(j + 1) == "(" && !at(*j).ends_with("PTR"));
                names.extend(name.map(|j| at(j).to_owned()));
            }
            _ => {}
        }
    }
    names
}

/// What is wrong with kernel text, by line; `prelude` are the dialect's names and `declared` those of all kernels.
pub fn complaints(content: &str, prelude: &BTreeSet<String>, declared: &BTreeSet<String>) -> Vec<(usize, String)> {
    let tokens = tokens(content);
    let mut found = Vec::new();
    words(&tokens, prelude, declared, &mut found);
    program_scope(&tokens, declared, &mut found);
    arguments(&tokens, &mut found);
    found.sort();
    found
}

fn words(
    tokens: &[Token<'_>],
    prelude: &BTreeSet<String>,
    declared: &BTreeSet<String>,
    found: &mut Vec<(usize, String)>,
) {
    let of = |i: usize| tokens.get(i).map_or("", |t| t.text);
    for (i, token) in tokens.iter().enumerate() {
        let (word, next) = (token.text, of(i + 1));
        let mut complain = |what: &str| found.push((token.line, format!("{word}: {what}")));
        if token.text == "#" && ["include", "pragma"].contains(&next) {
            complain(&format!("no #{next} in kernel text"));
        }
        if !is_word(word) {
            continue;
        }
        let is_type =
            TYPES.contains(&word) || (declared.contains(word) && (word.ends_with("_t") || starts_upper(word)));
        if FOREIGN.contains(&word) || FOREIGN_PREFIXES.iter().any(|p| word.starts_with(p)) {
            complain("not in the dialect");
        } else if word == "LREF" && of(i + 2) == "const" && starts_upper(of(i + 3)) {
            complain("a structure goes by value: parameters lie in a memory of their own on Metal");
        } else if is_type && ["*", "&"].contains(&next) && !word.chars().all(|c| !c.is_lowercase()) {
            complain("a raw pointer or reference: DPTR, TPTR, LPTR or LREF");
        } else if next == "(" {
            let known = KEYWORDS.contains(&word) || TYPES.contains(&word) || word.starts_with("SHAPE_");
            if !known && !prelude.contains(word) && !declared.contains(word) {
                complain("neither the prelude nor a kernel file has it");
            }
        }
    }
}

fn starts_upper(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_uppercase())
}

/// Outside functions there are only declarations that every form of the dialect has.
fn program_scope(tokens: &[Token<'_>], declared: &BTreeSet<String>, found: &mut Vec<(usize, String)>) {
    let (mut depth, mut begins) = (0, true);
    for token in tokens.iter().filter(|t| !t.directive) {
        if begins && depth == 0 && is_word(token.text) {
            if !OUTSIDE.contains(&token.text) && !declared.contains(token.text) {
                let what = format!("{}: a variable outside functions: CONST_TABLE or #define", token.text);
                found.push((token.line, what));
            }
            begins = false;
        }
        match token.text {
            "{" | "(" => depth += 1,
            "}" | ")" => depth -= 1,
            _ => {}
        }
        // A macro's call ends a declaration too, where another word begins one; SPEC and tables are told so.
        begins |= depth == 0 && [";", "}", ")"].contains(&token.text);
    }
}

/// The indices of a kernel's arguments count from 0 in order, its parameter block being the last.
fn arguments(tokens: &[Token<'_>], found: &mut Vec<(usize, String)>) {
    let at = |i: usize| tokens.get(i).map_or("", |t| t.text);
    for (i, kernel) in tokens.iter().enumerate() {
        if !kernel.text.starts_with("KERNEL") || at(i + 1) != "(" || kernel.directive {
            continue;
        }
        let end = closing(tokens, i + 1);
        let macros: Vec<usize> = (i + 2..end).filter(|j| ARGUMENTS.contains(&at(*j)) && at(j + 1) == "(").collect();
        let indices: Vec<&str> = macros.iter().map(|j| at(closing(tokens, j + 1) - 1)).collect();
        let right = indices.iter().enumerate().all(|(n, index)| index.parse() == Ok(n));
        let name = at(i + 2);
        if !right {
            found.push((kernel.line, format!("{name}: argument indices {} are not 0, 1, ...", indices.join(", "))));
        }
        let blocks = macros.iter().filter(|j| at(**j) == "PARAMS").count();
        if blocks != 1 || macros.last().is_none_or(|j| at(*j) != "PARAMS") {
            found.push((kernel.line, format!("{name}: the last argument, and only that, is PARAMS")));
        }
    }
}

/// Where the parenthesis that opens at `open` closes.
fn closing(tokens: &[Token<'_>], open: usize) -> usize {
    let mut depth = 0;
    for (i, token) in tokens.iter().enumerate().skip(open) {
        match token.text {
            "(" => depth += 1,
            ")" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return i;
        }
    }
    tokens.len()
}

fn is_word(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
}

/// Words, numbers and single signs, without comments; a directive lasts as long as its lines end with a backslash.
fn tokens(content: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    let (mut continued, mut comment) = (false, false);
    for (number, whole) in content.lines().enumerate() {
        let mut rest = whole.split("//").next().unwrap_or_default();
        let directive = continued || rest.trim_start().starts_with('#');
        continued = directive && rest.trim_end().ends_with('\\');
        while let Some(first) = rest.chars().next() {
            if comment || rest.starts_with("/*") {
                let end = rest.find("*/");
                comment = end.is_none();
                rest = end.map_or("", |at| &rest[at + 2..]);
                continue;
            }
            let part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
            let len = if part(first) { rest.find(|c| !part(c)).unwrap_or(rest.len()) } else { first.len_utf8() };
            // A member is a word of its own: `p.n` reads no `p.n` but `p`, `.` and `n`.
            let len = if is_word(rest) { rest[..len].find('.').unwrap_or(len) } else { len };
            if !first.is_whitespace() {
                tokens.push(Token { line: number + 1, text: &rest[..len], directive });
            }
            rest = &rest[len.max(1)..];
        }
    }
    tokens
}

#[test]
fn the_rules_of_kernel_text_catch_what_they_are_for() {
    let prelude: BTreeSet<String> =
        ["IN", "OUT", "INOUT", "ATOMIC", "PARAMS", "KERNEL", "KERNEL_GRID", "INLINE", "SPEC_U32"]
            .iter()
            .chain(&["DPTR", "LREF", "CONST_TABLE", "exp", "TG_BARRIER"])
            .map(|n| (*n).to_owned())
            .collect();
    let good = "// y = double x\nSPEC_U32(THREADS, 0)\n#define TWICE(v) (2.0f * (v))\n/* long */ struct P { uint n; };\n\
        CONST_TABLE(float, powers, 2) = {1.0f, 2.0f};\ntypedef float io_t;\n\
        INLINE DPTR(const float) at(DPTR(const float) x, LREF(uint) i) { i += 1; return x + i; }\n\
        KERNEL(one,\n    IN(float, x, 0), OUT(io_t, y, 1), PARAMS(P, p, 2))\n{\n    const uint n = p.n * 2 & 3;\n\
        \x20   if (n > 0) y[0] = io_t(exp(TWICE(float(n) * x[0])));\n    TG_BARRIER();\n}\n";
    let check = |text: &str| {
        let found = complaints(text, &prelude, &declared(text));
        found.into_iter().map(|(line, what)| format!("{line}: {what}")).collect::<Vec<_>>().join("\n")
    };
    assert_eq!(check(good), "");
    let bad = [
        ("const uint LIMIT = 4;", "1: const: a variable outside functions"),
        ("uint limit;", "1: uint: a variable outside functions"),
        ("INLINE void f() { float* q = 0; }", "1: float: a raw pointer"),
        ("struct Pair { uint n; };\nINLINE void f(const Pair& p) {}", "2: Pair: a raw pointer"),
        ("INLINE void f(LREF(const Params) p) {}", "1: LREF: a structure goes by value"),
        ("INLINE float f(float x) { return expf(x); }", "1: expf: neither the prelude"),
        ("INLINE float f(float x) { return __expf(x); }", "1: __expf: not in the dialect"),
        ("INLINE uint f() { return threadIdx.x; }", "1: threadIdx: not in the dialect"),
        ("INLINE uint f() { uint thread = 1; return thread; }", "1: thread: not in the dialect"),
        ("INLINE float f() { return (float)(double)1; }", "1: double: not in the dialect"),
        ("#define F(x) std::exp(x)\n", "1: std: not in the dialect"),
        ("#include \"a.h\"", "1: #: no #include"),
        ("KERNEL(k, IN(float, x, 1), OUT(float, y, 0), PARAMS(P, p, 2)) {}", "1: k: argument indices 1, 0, 2"),
        ("KERNEL(k, PARAMS(P, p, 0), OUT(float, y, 1)) {}", "1: k: the last argument"),
        ("KERNEL_GRID(k, OUT(float, y, 0)) {}", "1: k: the last argument"),
    ];
    for (text, wanted) in bad {
        let told = check(text);
        assert!(told.starts_with(wanted), "{text}\nis told {told:?}, not {wanted:?}");
    }
}
