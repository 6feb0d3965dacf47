//! The tensor types of GGUF files: number, name, block length and block bytes, for sizing and for refusing by name.

/// One tensor type of the file format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorType {
    /// The number that stands in the file.
    pub id: u32,
    /// The name that people use for it.
    pub name: &'static str,
    /// Values in a block; a row is a whole number of blocks.
    pub block: u32,
    /// Bytes of a block.
    pub bytes: u32,
    /// Whether this engine has kernels for weights of this type.
    pub runs: bool,
}

const fn runs(id: u32, name: &'static str, block: u32, bytes: u32) -> TensorType {
    TensorType { id, name, block, bytes, runs: true }
}

const fn known(id: u32, name: &'static str, block: u32, bytes: u32) -> TensorType {
    TensorType { id, name, block, bytes, runs: false }
}

/// Every type that can be sized; sizes are those of ggml's block structures.
pub const TENSOR_TYPES: &[TensorType] = &[
    runs(0, "F32", 1, 4),
    runs(1, "F16", 1, 2),
    runs(2, "Q4_0", 32, 18),
    runs(3, "Q4_1", 32, 20),
    runs(6, "Q5_0", 32, 22),
    runs(7, "Q5_1", 32, 24),
    runs(8, "Q8_0", 32, 34),
    known(9, "Q8_1", 32, 36),
    runs(10, "Q2_K", 256, 84),
    runs(11, "Q3_K", 256, 110),
    runs(12, "Q4_K", 256, 144),
    runs(13, "Q5_K", 256, 176),
    runs(14, "Q6_K", 256, 210),
    known(15, "Q8_K", 256, 292),
    known(16, "IQ2_XXS", 256, 66),
    known(17, "IQ2_XS", 256, 74),
    known(18, "IQ3_XXS", 256, 98),
    known(19, "IQ1_S", 256, 50),
    runs(20, "IQ4_NL", 32, 18),
    known(21, "IQ3_S", 256, 110),
    known(22, "IQ2_S", 256, 82),
    runs(23, "IQ4_XS", 256, 136),
    known(24, "I8", 1, 1),
    known(25, "I16", 1, 2),
    known(26, "I32", 1, 4),
    known(27, "I64", 1, 8),
    known(28, "F64", 1, 8),
    known(29, "IQ1_M", 256, 56),
    runs(30, "BF16", 1, 2),
    known(34, "TQ1_0", 256, 54),
    known(35, "TQ2_0", 256, 66),
    known(39, "MXFP4", 32, 17),
];

/// Numbers that the format has given up; a file with one of them must be converted again.
const REMOVED: &[(u32, &str)] = &[
    (4, "Q4_2"),
    (5, "Q4_3"),
    (31, "Q4_0_4_4"),
    (32, "Q4_0_4_8"),
    (33, "Q4_0_8_8"),
    (36, "IQ4_NL_4_4"),
    (37, "IQ4_NL_4_8"),
    (38, "IQ4_NL_8_8"),
];

/// The type with number `id`, if it is one that can be sized.
pub fn tensor_type(id: u32) -> Option<&'static TensorType> {
    TENSOR_TYPES.iter().find(|t| t.id == id)
}

/// `id` for a message: its name where it has or had one.
pub(crate) fn type_label(id: u32) -> String {
    match (tensor_type(id), REMOVED.iter().find(|r| r.0 == id)) {
        (Some(t), _) => t.name.to_string(),
        (None, Some((_, name))) => format!("{name} (type {id}, removed from the format)"),
        (None, None) => format!("type {id}, unknown"),
    }
}

impl TensorType {
    /// Bytes of `rows` rows of `cols` values; `None` if a row is no whole number of blocks or the size overflows.
    pub fn size(&self, cols: u64, rows: u64) -> Option<u64> {
        if !cols.is_multiple_of(u64::from(self.block)) {
            return None;
        }
        (cols / u64::from(self.block)).checked_mul(u64::from(self.bytes))?.checked_mul(rows)
    }
}
