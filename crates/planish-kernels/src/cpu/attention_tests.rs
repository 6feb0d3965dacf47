//! Tests of `attention`.
