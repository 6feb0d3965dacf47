//! The repository's own rules, checked on its files: layers, names, sizes, links, hosts and where `unsafe` may live.
//!
//! Each rule is a function from the files to complaints; every exception stands in a table next to its rule.

// A failure anywhere in a test file is a failed test.
#![allow(clippy::unwrap_used)]

#[path = "tidy/dialect.rs"]
mod dialect;
#[path = "tidy/faults.rs"]
mod faults;
#[path = "tidy/figures.rs"]
mod figures;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use planish_kernels::ops::OPS;

/// Which of our crates a crate may use: arrows point down only.
const LAYERS: &[(&str, &[&str])] = &[
    ("planish-tune", &[]),
    ("planish-device", &[]),
    ("planish-kernels", &["planish-tune", "planish-device"]),
    ("planish-engine", &["planish-tune", "planish-device", "planish-kernels"]),
    ("planish", &["planish-tune", "planish-device", "planish-kernels", "planish-engine"]),
];

/// What ops are also called; the names in the table of ops are taken from there.
const OP_SYNONYMS: &[&str] = &["matmul", "rmsnorm", "swiglu", "geglu", "embedding", "softmax", "cross_entropy", "lora"];

/// Words that would tie the tuner or the device to an op.
fn op_names() -> impl Iterator<Item = &'static str> {
    OPS.iter().map(|op| op.name).chain(OP_SYNONYMS.iter().copied())
}

/// Words that would tie the kernels to a model.
const MODEL_NAMES: &[&str] = &["llama", "qwen", "gemma", "smollm", "mistral", "phi3"];

/// Words that hold a model name and are not one: an engine we compare with, and a way of scaling rotary angles.
const NOT_MODELS: &[&str] = &["llama.cpp", "llama3"];

/// Folders and files where the target may be asked for, and `unsafe` may stand.
/// An op's folder holds the entry points of its kernels, which are `unsafe fn` by the device's contract.
const MACHINE_CODE: &[&str] =
    &["crates/planish-device/src/", "crates/planish-kernels/src/cpu/", "crates/planish-kernels/src/ops/"];

/// Further files with `unsafe` or `cfg` of the target, each with its reason.
const MACHINE_CODE_EXCEPTIONS: &[(&str, &str)] = &[
    ("crates/planish/src/interrupt.rs", "the signal handler for Ctrl-C"),
    ("crates/planish-kernels/src/step.rs", "parameter blocks and arguments of native calls"),
    ("crates/planish-engine/src/gguf/map.rs", "the one mapping of a model file"),
    ("crates/planish-engine/tests/allocations.rs", "an allocator that counts is unsafe to implement"),
];

/// Library files that use a standard stream, each with its reason.
const STREAMS: &[(&str, &str)] =
    &[("crates/planish-tune/src/contain/worker.rs", "a worker answers its parent over a pipe on standard output")];

const MAX_FILE_LINES: usize = 800;
const MAX_FN_LINES: usize = 70;
/// Formatting holds code at 120 columns; comments and strings that it cannot break may be a little wider.
const MAX_COLUMNS: usize = 128;
const MAX_README_LINES: usize = 120;
const MAX_ARCHITECTURE_LINES: usize = 199;

/// One text file: its path from the root with `/`, and its content.
struct Text {
    path: String,
    content: String,
}

impl Text {
    fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// Whether the whole file is tests, which may print and use any name as an example.
    fn is_test(&self) -> bool {
        self.path.contains("/tests/") || self.path.ends_with("tests.rs")
    }

    /// Numbered lines without line comments; doc comments are comments too.
    fn code_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.content.lines().enumerate().map(|(i, line)| (i + 1, line.split("//").next().unwrap_or_default()))
    }

    fn at(&self, line: usize, complaint: &str) -> String {
        format!("{}:{line}: {complaint}", self.path)
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace root exists")
}

/// Every text file of the repository that people write.
fn texts() -> Vec<Text> {
    let mut texts = Vec::new();
    visit(&root(), &root(), &mut texts);
    assert!(texts.iter().any(|t| t.path == "crates/planish/tests/tidy.rs"), "the walk misses this very file");
    texts
}

fn visit(root: &Path, folder: &Path, texts: &mut Vec<Text>) {
    let mut entries: Vec<_> = fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if name == "target" || name == ".git" || name == "shared" {
            continue;
        }
        if path.is_dir() {
            visit(root, &path, texts);
        } else if let (true, Ok(content)) = (name != "Cargo.lock", fs::read_to_string(&path)) {
            let path = path.strip_prefix(root).unwrap().to_string_lossy().replace('\\', "/");
            texts.push(Text { path, content });
        }
    }
}

#[track_caller]
fn check(rule: impl Fn(&Text) -> Vec<String>) {
    let complaints: Vec<_> = texts().iter().flat_map(rule).collect();
    assert!(complaints.is_empty(), "{} complaints:\n{}", complaints.len(), complaints.join("\n"));
}

/// The lines of a text on which `complain` finds something.
fn on_lines(text: &Text, complain: impl Fn(&str) -> Option<String>) -> Vec<String> {
    text.code_lines().filter_map(|(n, line)| complain(line).map(|c| text.at(n, &c))).collect()
}

/// Whether `word` stands in `line` with no letter, digit or underscore beside it.
fn has_word(line: &str, word: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        !line[..at].chars().next_back().is_some_and(part) && !line[at + word.len()..].chars().next().is_some_and(part)
    })
}

#[test]
fn arrows_point_down() {
    check(|text| {
        let Some((name, below)) = LAYERS.iter().find(|(name, _)| text.path.starts_with(&format!("crates/{name}/")))
        else {
            return Vec::new();
        };
        if !text.is_rust() && !text.path.ends_with("Cargo.toml") {
            return Vec::new();
        }
        let above: Vec<_> = LAYERS.iter().map(|l| l.0).filter(|n| n != name && !below.contains(n)).collect();
        on_lines(text, |line| {
            let used = above.iter().find(|n| {
                let snake = n.replace('-', "_");
                if text.is_rust() {
                    line.contains(&format!("{snake}::")) || has_word(line, &format!("use {snake}"))
                } else {
                    line.starts_with(&format!("{n}.")) || line.starts_with(&format!("{n} "))
                }
            })?;
            Some(format!("{name} may not use {used}"))
        })
    });
}

#[test]
fn every_crate_has_a_layer() {
    let crates = fs::read_dir(root().join("crates")).unwrap();
    let mut names: Vec<_> = crates.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    let mut layers: Vec<_> = LAYERS.iter().map(|l| l.0.to_owned()).collect();
    names.sort();
    layers.sort();
    assert_eq!(names, layers);
}

#[test]
fn tuner_and_device_know_no_op_and_no_model() {
    check(|text| {
        let below = ["crates/planish-device/src/", "crates/planish-tune/src/"];
        if !below.iter().any(|b| text.path.starts_with(b)) || text.is_test() {
            return Vec::new();
        }
        on_lines(text, |line| {
            let name = op_names().find(|n| has_word(line, n)).or_else(|| model_name(line).copied())?;
            Some(format!("`{name}` names an op or a model"))
        })
    });
}

#[test]
fn kernels_know_no_model() {
    check(|text| {
        if !text.path.starts_with("crates/planish-kernels/src/") {
            return Vec::new();
        }
        on_lines(text, |line| Some(format!("`{}` names a model", model_name(line)?)))
    });
}

fn model_name(line: &str) -> Option<&'static &'static str> {
    let line = NOT_MODELS.iter().fold(line.to_lowercase(), |l, phrase| l.replace(phrase, ""));
    MODEL_NAMES.iter().find(|n| line.contains(**n))
}

#[test]
fn only_the_cli_prints() {
    check(|text| {
        let library = text.path.starts_with("crates/planish-") && text.path.contains("/src/") && !text.is_test();
        if !library || STREAMS.iter().any(|(p, _)| *p == text.path) {
            return Vec::new();
        }
        let prints = ["println!(", "print!(", "dbg!(", "stdout()", "stderr()"];
        on_lines(text, |line| Some(format!("`{}` outside the CLI", prints.iter().find(|p| line.contains(**p))?)))
    });
}

fn may_hold_machine_code(path: &str) -> bool {
    MACHINE_CODE.iter().any(|m| path.starts_with(m)) || MACHINE_CODE_EXCEPTIONS.iter().any(|(p, _)| *p == path)
}

#[test]
fn unsafe_and_targets_stay_in_machine_code() {
    check(|text| {
        if !text.is_rust() || !text.path.contains("/src/") || may_hold_machine_code(&text.path) {
            return Vec::new();
        }
        on_lines(text, |line| {
            if has_word(line, "unsafe") && !line.contains("unsafe_op_in_unsafe_fn") {
                return Some("`unsafe` outside machine code".into());
            }
            let asks = line.contains("cfg") && (line.contains("target_") || line.contains("(unix)"));
            asks.then(|| "the target is asked for outside machine code".into())
        })
    });
}

#[test]
fn files_begin_with_their_purpose_and_stay_short() {
    check(|text| {
        let mut complaints = Vec::new();
        let lines = text.content.lines().count();
        if text.is_rust() && !text.content.starts_with("//! ") {
            complaints.push(text.at(1, "the first line is no `//!` sentence"));
        }
        if text.is_rust() && lines > MAX_FILE_LINES {
            complaints.push(text.at(lines, &format!("{lines} lines, at most {MAX_FILE_LINES}")));
        }
        complaints
    });
}

#[test]
fn lines_fit_the_screen() {
    let narrow = [".rs", ".toml", ".sh", "/run", "test"];
    check(|text| {
        if !narrow.iter().any(|n| text.path.ends_with(n)) {
            return Vec::new();
        }
        let wide = text.content.lines().enumerate().filter(|(_, l)| l.chars().count() > MAX_COLUMNS);
        wide.map(|(i, l)| text.at(i + 1, &format!("{} columns, at most {MAX_COLUMNS}", l.chars().count()))).collect()
    });
}

#[test]
fn functions_stay_short() {
    check(|text| if text.is_rust() { long_functions(text) } else { Vec::new() });
}

/// Functions over the limit. Formatted code ends a function with a `}` at the indentation of its first line.
fn long_functions(text: &Text) -> Vec<String> {
    let lines: Vec<_> = text.content.lines().collect();
    let mut complaints = Vec::new();
    for (start, line) in lines.iter().enumerate() {
        let indent = line.len() - line.trim_start().len();
        if !is_fn(line.trim_start()) || line.ends_with('}') || line.ends_with(';') {
            continue;
        }
        let at_indent = |l: &str| l.len() > indent && l[..indent].trim().is_empty() && !l[indent..].starts_with(' ');
        let end = lines[start + 1..].iter().position(|l| {
            l.is_char_boundary(indent.min(l.len())) && at_indent(l) && (&l[indent..] == "}" || l.ends_with(';'))
        });
        let length = end.map_or(lines.len() - start, |e| e + 2);
        if length > MAX_FN_LINES {
            complaints.push(text.at(start + 1, &format!("function of {length} lines, at most {MAX_FN_LINES}")));
        }
    }
    complaints
}

fn is_fn(line: &str) -> bool {
    let head = line.split("fn ").next().unwrap_or_default();
    let qualifier = |w: &str| {
        ["pub", "pub(crate)", "pub(super)", "const", "unsafe", "async", "extern", "\"C\"", "default"].contains(&w)
    };
    line.contains("fn ") && head.split_whitespace().all(qualifier)
}

#[test]
fn kernel_text_has_only_the_dialects_names() {
    let prelude: BTreeSet<String> = planish_device::dialect::names().into_iter().map(str::to_owned).collect();
    // Native variants are texts of one compiler.
    let native = |path: &str| path.rsplit('/').next().is_some_and(|name| name.contains("wgmma"));
    let is_kernel = |text: &Text| text.path.ends_with(".k") && text.path.contains("/src/") && !native(&text.path);
    let declared: BTreeSet<String> =
        texts().iter().filter(|t| is_kernel(t)).flat_map(|t| dialect::declared(&t.content)).collect();
    check(|text| {
        let found = if is_kernel(text) { dialect::complaints(&text.content, &prelude, &declared) } else { Vec::new() };
        found.iter().map(|(line, what)| text.at(*line, what)).collect()
    });
}

#[test]
fn no_test_is_ignored() {
    let ignored = concat!("#[", "ignore");
    check(|text| on_lines(text, |line| line.trim_start().starts_with(ignored).then(|| "an ignored test".into())));
}

#[test]
fn no_registry_host_is_written() {
    // In halves, so that this file does not break its own rule.
    let hosts = [
        ("crates", ".io"),
        ("pypi", ".org"),
        ("pythonhosted", ".org"),
        ("huggingface", ".co"),
        ("hf", ".co"),
        ("debian", ".org"),
        ("npmjs", ".org"),
        ("rust-lang", ".org"),
    ];
    check(|text| {
        let found = |line: &str| {
            let host = hosts.iter().map(|(a, b)| format!("{a}{b}")).find(|h| has_word(line, h))?;
            Some(format!("names the host {host}"))
        };
        let lines = text.content.lines().enumerate();
        lines.filter_map(|(i, line)| found(line).map(|c| text.at(i + 1, &c))).collect()
    });
}

#[test]
fn links_and_named_paths_exist() {
    check(|text| {
        if !text.path.ends_with(".md") {
            return Vec::new();
        }
        let folder = root().join(&text.path).parent().unwrap().to_owned();
        let mut complaints = Vec::new();
        for (i, line) in text.content.lines().enumerate() {
            let links = line.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
            let dead = links.filter(|l| !l.is_empty() && !l.contains("://") && !folder.join(l).exists());
            complaints.extend(dead.map(|l| text.at(i + 1, &format!("dead link {l}"))));
            let named = line.split('`').skip(1).step_by(2).filter(|p| is_repository_path(p));
            let missing = named.filter(|p| !root().join(p).exists());
            complaints.extend(missing.map(|p| text.at(i + 1, &format!("no such path {p}"))));
        }
        complaints
    });
}

/// Whether a quoted word in a document means a path from the root; patterns and placeholders do not.
fn is_repository_path(word: &str) -> bool {
    let rooted = ["crates/", "docs/", ".ci/"].iter().any(|p| word.starts_with(p));
    rooted && !word.contains(['*', '<', '{', ' ', '…']) && !word.contains("NAME") && !word.contains("NNNN")
}

#[test]
fn front_pages_stay_short() {
    for (path, limit) in [("README.md", MAX_README_LINES), ("ARCHITECTURE.md", MAX_ARCHITECTURE_LINES)] {
        let lines = fs::read_to_string(root().join(path)).unwrap().lines().count();
        assert!(lines <= limit, "{path}: {lines} lines, at most {limit}");
    }
}

#[test]
fn the_rules_catch_what_they_are_for() {
    let long = format!("fn f() {{\n{}}}\n", "    g();\n".repeat(MAX_FN_LINES));
    assert_eq!(long_functions(&Text { path: "a.rs".into(), content: long }).len(), 1);
    let short = "impl A {\n    pub fn f(\n        a: u8,\n    ) -> u8 {\n        a\n    }\n}\n".repeat(30);
    assert_eq!(long_functions(&Text { path: "a.rs".into(), content: short }), Vec::<String>::new());
    assert!(has_word("a rope b", "rope") && !has_word("a ropes b", "rope") && !has_word("_rope", "rope"));
    assert_eq!(model_name("// as llama.cpp does"), None);
    assert!(model_name("fn qwen2()").is_some());
    assert!(is_repository_path("crates/x/src") && !is_repository_path("crates/*/src"));
    assert!(
        may_hold_machine_code("crates/planish-device/src/a.rs") && !may_hold_machine_code("crates/planish/src/a.rs")
    );
}
