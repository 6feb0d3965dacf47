//! y = x.

/// The words of `x`, as the gate compares them.
pub fn copy(x: &[u32]) -> Vec<f64> {
    x.iter().map(|w| f64::from(*w)).collect()
}
