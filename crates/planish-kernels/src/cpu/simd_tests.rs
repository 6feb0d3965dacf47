//! Tests of `simd`.
