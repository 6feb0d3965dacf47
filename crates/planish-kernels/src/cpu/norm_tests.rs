//! Tests of `norm`.
