//! The word that shows that a launch ran.

/// What the launch writes: a word that no poison holds.
pub const WORD: u32 = 0x600d_f00d;
