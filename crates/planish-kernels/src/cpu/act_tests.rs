//! Tests of `act`.
