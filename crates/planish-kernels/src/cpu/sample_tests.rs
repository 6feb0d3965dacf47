//! Tests of `sample`.
