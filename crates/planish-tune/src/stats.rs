//! Robust, deterministic statistics: medians, spreads, and order-statistic bounds on a median.

/// Median of `values`; `None` when empty or when a value is not a number.
pub fn median(values: &[f64]) -> Option<f64> {
    let sorted = sorted(values)?;
    let (low, high) = (sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2]);
    Some(0.5 * (low + high))
}

/// Spread of `values` as a standard deviation: 1.4826 times the median absolute deviation; 0 for one value.
pub fn spread(values: &[f64]) -> Option<f64> {
    let m = median(values)?;
    let deviations: Vec<f64> = values.iter().map(|v| (v - m).abs()).collect();
    median(&deviations).map(|d| 1.4826 * d)
}

/// Mean of `values`, each moved to within `reach` of their median first; `None` when empty.
pub fn clipped_mean(values: &[f64], reach: f64) -> Option<f64> {
    let m = median(values)?;
    Some(values.iter().map(|v| v.clamp(m - reach, m + reach)).sum::<f64>() / values.len() as f64)
}

/// One-sided lower and upper bounds on the true median, each at level `alpha`, by the sign test.
///
/// With `n` independent values the `k`-th smallest exceeds the true median with probability P(Bin(n, 1/2) < k),
/// whatever the distribution.
/// `None` when `n` is too small for any bound at this level.
pub fn median_bounds(values: &[f64], alpha: f64) -> Option<(f64, f64)> {
    let sorted = sorted(values)?;
    let k = sign_rank(sorted.len(), alpha)?;
    Some((sorted[k - 1], sorted[sorted.len() - k]))
}

/// The largest `k >= 1` with P(Bin(n, 1/2) < k) <= alpha; `None` when there is none.
fn sign_rank(n: usize, alpha: f64) -> Option<usize> {
    let mut term = 0.5f64.powi(i32::try_from(n).ok()?);
    let mut below = 0.0;
    let mut k = 0;
    while k < n.div_ceil(2) && below + term <= alpha {
        below += term;
        term *= (n - k) as f64 / (k + 1) as f64;
        k += 1;
    }
    (k > 0).then_some(k)
}

fn sorted(values: &[f64]) -> Option<Vec<f64>> {
    if values.is_empty() || values.iter().any(|v| v.is_nan()) {
        return None;
    }
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    Some(sorted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_spreads() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[1.0, f64::NAN]), None);
        assert_eq!(spread(&[5.0]), Some(0.0));
        assert!((spread(&[1.0, 2.0, 3.0, 4.0, 500.0]).expect("five values") - 1.4826).abs() < 1e-12);
        let one_wild: Vec<f64> = (0..10).map(|i| if i == 9 { 1e9 } else { 1.0 }).collect();
        assert!((clipped_mean(&one_wild, 0.5).expect("ten values") - 1.05).abs() < 1e-12);
    }

    /// Ranks checked against binomial tails summed by hand: 2^-8 = 0.0039, (1+8)/2^8 = 0.035, 1/2^7 = 0.0078.
    #[test]
    fn sign_ranks_are_the_binomial_tails() {
        for (n, alpha, want) in
            [(8, 0.004, Some(1)), (8, 0.0039, None), (8, 0.0352, Some(2)), (7, 0.004, None), (32, 0.0042, Some(9))]
        {
            assert_eq!(sign_rank(n, alpha), want, "n={n} alpha={alpha}");
        }
        assert_eq!(sign_rank(0, 0.05), None);
        assert_eq!(sign_rank(1000, 0.025), Some(469));
    }

    #[test]
    fn bounds_enclose_the_median() {
        let v: Vec<f64> = (1..=32).map(f64::from).collect();
        assert_eq!(median_bounds(&v, 0.0042), Some((9.0, 24.0)));
        assert_eq!(median_bounds(&v[..5], 0.0042), None);
    }
}
