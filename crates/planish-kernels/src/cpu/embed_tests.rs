//! Tests of `embed`.
