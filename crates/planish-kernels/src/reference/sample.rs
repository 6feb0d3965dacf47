//! Sampler reference.
