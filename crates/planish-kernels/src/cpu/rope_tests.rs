//! Tests of `rope`.
