//! The kernel dialect's forms: the same text under one prelude of names for each compiler.
//!
//! `host.h` is the list of names; `cuda.h` and `metal.h` give the same ones to NVRTC and to Metal's compiler.

use std::collections::BTreeMap;

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
    text.match_indices("KERNEL_GRID(").any(|(at, declared)| {
        let rest = text[at + declared.len()..].trim_start();
        rest.strip_prefix(name).is_some_and(|after| after.trim_start().starts_with(','))
    })
}

#[cfg(test)]
mod tests {
    use super::{cuda_options, is_grid, metal};
    use std::collections::BTreeMap;

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
    }
}
