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

/// Mean of `values` without the lowest and the highest `share` of them; `None` when empty.
pub fn trimmed_mean(values: &[f64], share: f64) -> Option<f64> {
    let sorted = sorted(values)?;
    let k = ((sorted.len() as f64 * share) as usize).min((sorted.len() - 1) / 2);
    let kept = &sorted[k..sorted.len() - k];
    Some(kept.iter().sum::<f64>() / kept.len() as f64)
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

/// Chance that the lower bound of `median_bounds` reaches `bar` at `alpha` once there are `all` values, by those so far.
///
/// As many of the rest are taken to reach it as a kind reading of the values so far allows: their share, smoothed, and
/// `KIND` of its standard deviations more.
pub fn chance_of_bound(values: &[f64], bar: f64, alpha: f64, all: usize) -> f64 {
    let (n, below) = (values.len(), values.iter().filter(|v| **v < bar).count());
    let Some(may_be_below) = sign_rank(all.max(n), alpha).map(|k| k - 1) else { return 0.0 };
    let Some(room) = may_be_below.checked_sub(below) else { return 0.0 };
    let share = (below + 1) as f64 / (n + 2) as f64;
    let miss = (share - KIND * (share * (1.0 - share) / (n + 2) as f64).sqrt()).max(0.0);
    let rest = all.saturating_sub(n);
    let mut term = (1.0 - miss).powi(i32::try_from(rest).unwrap_or(i32::MAX));
    let mut sum = 0.0;
    for k in 0..=room.min(rest) {
        sum += term;
        term *= (rest - k) as f64 / (k + 1) as f64 * miss / (1.0 - miss);
    }
    sum.min(1.0)
}

/// How many standard deviations a share is read kindly by.
const KIND: f64 = 1.3;

/// The median of all means of two values (Hodges and Lehmann) with its bounds, each at level `alpha` (Wilcoxon).
///
/// For values that scatter alike to both sides it needs two thirds of the samples that `median_bounds` does.
/// `None` when a value is not a number or there are fewer than eight: the ranks' normal approximation needs as many.
pub fn center_bounds(values: &[f64], alpha: f64) -> Option<(f64, f64, f64)> {
    let n = values.len();
    if n < 8 {
        return None;
    }
    let means = values.iter().enumerate().flat_map(|(i, a)| values[i..].iter().map(move |b| 0.5 * (a + b)));
    let means = sorted(&means.collect::<Vec<f64>>())?;
    let (all, n) = (means.len(), n as f64);
    let rank = n * (n + 1.0) / 4.0 - normal_quantile(1.0 - alpha) * (n * (n + 1.0) * (2.0 * n + 1.0) / 24.0).sqrt();
    let k = (rank.floor().max(1.0) as usize).min(all.div_ceil(2));
    Some((means[k - 1], 0.5 * (means[(all - 1) / 2] + means[all / 2]), means[all - k]))
}

/// The value under which a standard normal falls with probability `p`, to 1e-9, by bisection of its distribution.
fn normal_quantile(p: f64) -> f64 {
    let (mut low, mut high) = (-9.0f64, 9.0f64);
    while high - low > 1e-9 {
        let middle = 0.5 * (low + high);
        if normal_below(middle) < p {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}

/// Probability that a standard normal is below `x`: the series of its integral, in which every term is positive.
fn normal_below(x: f64) -> f64 {
    let (mut term, mut sum, mut k) = (x, x, 1.0);
    while term.abs() > 1e-17 * sum.abs() {
        k += 2.0;
        term *= x * x / k;
        sum += term;
    }
    0.5 + sum * (-0.5 * x * x).exp() / std::f64::consts::TAU.sqrt()
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
    fn a_chance_of_a_bound_falls_with_every_value_below_it() {
        let values = |below: usize, n: usize| (0..n).map(|i| if i < below { 0.0 } else { 2.0 }).collect::<Vec<_>>();
        let chance = |below, n| chance_of_bound(&values(below, n), 1.0, 2.5e-4, 128);
        let chances: Vec<f64> = (0..=12).map(|below| chance(below, 12)).collect();
        assert!(chances.is_sorted_by(|a, b| *a >= b - 1e-9), "{chances:?}");
        assert!(chances[1] > 0.999 && chances[3] > 0.5 && chances[8] < 1e-3 && chances[12] < 1e-9, "{chances:?}");
        // With nothing left to come it is what the bound itself says.
        for below in 0..=128 {
            let bound = median_bounds(&values(below, 128), 2.5e-4).expect("enough values").0;
            assert_eq!(chance(below, 128) > 0.5, bound >= 1.0, "{below} below");
        }
        assert_eq!(chance_of_bound(&values(0, 4), 1.0, 2.5e-4, 5), 0.0, "five are never enough");
    }

    #[test]
    fn medians_and_spreads() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[1.0, f64::NAN]), None);
        assert_eq!(spread(&[5.0]), Some(0.0));
        assert!((spread(&[1.0, 2.0, 3.0, 4.0, 500.0]).expect("five values") - 1.4826).abs() < 1e-12);
        let wild: Vec<f64> = (0..20).map(|i| if i == 9 { 1e9 } else { f64::from(i % 2) }).collect();
        assert_eq!(trimmed_mean(&wild, 0.05), Some(0.5));
        assert!(trimmed_mean(&wild, 0.0).expect("twenty values") > 1e7);
        assert_eq!(trimmed_mean(&[3.0], 0.5), Some(3.0));
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

    /// Against published normal quantiles, and Wilcoxon's table: n = 20 at 0.025 one-sided has the critical sum 52.
    #[test]
    fn centers_have_the_bounds_of_the_signed_ranks() {
        for (p, want) in [(0.975, 1.959_963_985), (0.99, 2.326_347_874), (0.5, 0.0), (0.001, -3.090_232_306)] {
            assert!((normal_quantile(p) - want).abs() < 1e-6, "{p}: {}", normal_quantile(p));
        }
        let v: Vec<f64> = (0..20).map(f64::from).collect();
        let (lo, mid, hi) = center_bounds(&v, 0.025).expect("twenty values");
        assert_eq!((mid, lo + hi), (9.5, 19.0));
        let mut means: Vec<f64> = (0..20).flat_map(|i| (i..20).map(move |j| 0.5 * f64::from(i + j))).collect();
        means.sort_by(f64::total_cmp);
        assert_eq!((lo, means.len()), (means[51], 210));
        assert_eq!(center_bounds(&v[..7], 0.025), None);
        assert_eq!(center_bounds(&[f64::NAN; 9], 0.025), None);
    }

    #[test]
    fn bounds_enclose_the_median() {
        let v: Vec<f64> = (1..=32).map(f64::from).collect();
        assert_eq!(median_bounds(&v, 0.0042), Some((9.0, 24.0)));
        assert_eq!(median_bounds(&v[..5], 0.0042), None);
    }
}
