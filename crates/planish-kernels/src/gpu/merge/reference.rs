//! Merges by their definitions: full sorts for ranks, one loop an index.

use crate::cpu::sample::philox;
use crate::reference::Real;

/// How tensors are merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Weighted mean.
    Linear,
    /// Along the arc between two.
    Slerp,
    /// Base and weighted differences.
    Task,
    /// Trimmed, elected, averaged.
    Ties,
    /// Dropped at random, rescaled, added.
    DareLinear,
    /// Dropped at random, rescaled, elected, averaged.
    DareTies,
    /// Dropped at random by rank, rescaled, elected, averaged.
    Della,
    /// A band of magnitudes, added.
    Breadcrumbs,
    /// Between mean and base, by the angle of the differences.
    ModelStock,
}

/// The methods by name, in the order of their numbers in the kernel.
pub const METHODS: [(&str, Method); 9] = [
    ("linear", Method::Linear),
    ("slerp", Method::Slerp),
    ("task", Method::Task),
    ("ties", Method::Ties),
    ("dare_linear", Method::DareLinear),
    ("dare_ties", Method::DareTies),
    ("della", Method::Della),
    ("breadcrumbs", Method::Breadcrumbs),
    ("model_stock", Method::ModelStock),
];

/// Scalars of a merge.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Method.
    pub method: Method,
    /// Columns of a row, over which della ranks.
    pub cols: usize,
    /// Factor of the merged difference.
    pub lambda: f32,
    /// Share that is kept.
    pub density: f32,
    /// Half the spread of della's probabilities.
    pub epsilon: f32,
    /// Share of the largest that breadcrumbs drops.
    pub gamma: f32,
    /// Place of slerp between the two.
    pub t: f32,
    /// Key of the masks.
    pub seed: u64,
    /// Which tensor.
    pub tensor: u32,
}

impl Settings {
    /// How many of `n` a density keeps.
    pub fn kept(&self, n: usize) -> usize {
        ((f64::from(self.density) * n as f64).floor().max(0.0) as usize).min(n)
    }

    /// How many of `n` breadcrumbs drops at the top.
    pub fn dropped(&self, n: usize) -> usize {
        ((f64::from(self.gamma) * n as f64).floor().max(0.0) as usize).min(n)
    }

    /// Smallest probability of della, and its rise with each rank.
    pub fn keep_line(&self) -> (f32, f32) {
        let steps = (self.cols.max(2) - 1) as f32;
        (self.density - self.epsilon, 2.0 * self.epsilon / steps)
    }
}

/// Uniform in 0..1 for element i of model m.
fn uniform(s: &Settings, m: usize, i: usize) -> f32 {
    let [a, b, ..] = philox([m as u32, s.tensor, 0, 0], [s.seed as u32, (s.seed >> 32) as u32]);
    let mix = |h: u32| {
        let h = (h ^ h >> 16).wrapping_mul(0x85eb_ca6b);
        let h = (h ^ h >> 13).wrapping_mul(0xc2b2_ae35);
        h ^ h >> 16
    };
    (mix(mix(i as u32 ^ a).wrapping_add(b)) >> 8) as f32 / 16_777_216.0
}

/// Indices by falling magnitude of the f32 differences, the lower index first among equals.
fn falling(tau: &[f32]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..tau.len()).collect();
    order.sort_by(|a, b| tau[*b].abs().total_cmp(&tau[*a].abs()).then(a.cmp(b)));
    order
}

/// What is kept of the differences `tau` of model m, and by what it is divided.
fn mask(s: &Settings, m: usize, tau: &[f32]) -> Vec<Option<f32>> {
    let n = tau.len();
    let mut keep = vec![None; n];
    match s.method {
        Method::Ties => falling(tau)[..s.kept(n)].iter().for_each(|i| keep[*i] = Some(1.0)),
        Method::Breadcrumbs => {
            let band = falling(tau).into_iter().skip(s.dropped(n)).take(s.kept(n));
            band.for_each(|i| keep[i] = Some(1.0));
        }
        Method::DareLinear | Method::DareTies => {
            for (i, k) in keep.iter_mut().enumerate() {
                *k = (uniform(s, m, i) < s.density).then_some(s.density);
            }
        }
        Method::Della => {
            let (lowest, rise) = s.keep_line();
            for row in 0..n / s.cols {
                let part = &tau[row * s.cols..][..s.cols];
                let mut order: Vec<usize> = (0..s.cols).collect();
                order.sort_by(|a, b| part[*a].abs().total_cmp(&part[*b].abs()).then(a.cmp(b)));
                for (rank, c) in order.into_iter().enumerate() {
                    let (p, i) = ((rank as f32).mul_add(rise, lowest), row * s.cols + c);
                    keep[i] = (uniform(s, m, i) < p).then_some(p);
                }
            }
        }
        _ => keep.fill(Some(1.0)),
    }
    keep
}

/// Merges `models` under `weights`.
pub fn merge<T: Real>(s: &Settings, base: &[f32], models: &[Vec<f32>], weights: &[f32]) -> Vec<T> {
    let (n, of) = (base.len(), |v: f32| T::of(f64::from(v)));
    let (zero, one) = (T::of(0.0), T::of(1.0));
    match s.method {
        Method::Linear => {
            let mut total = zero;
            weights.iter().for_each(|w| total += of(*w));
            let sum = |i: usize| models.iter().zip(weights).fold(zero, |a, (m, w)| a + of(*w) * of(m[i]));
            return (0..n).map(|i| sum(i) / total).collect();
        }
        Method::Slerp => {
            let (a, b) = slerp::<T>(of(s.t), &models[0], &models[1]);
            return (0..n).map(|i| a * of(models[0][i]) + b * of(models[1][i])).collect();
        }
        Method::ModelStock => {
            let tau = |m: &Vec<f32>| m.iter().zip(base).map(|(m, b)| m - b).collect();
            let t = stock::<T>(&models.iter().map(tau).collect::<Vec<Vec<f32>>>());
            let mean = |i: usize| models.iter().fold(zero, |a, m| a + of(m[i])) / T::of(models.len() as f64);
            return (0..n).map(|i| t * mean(i) + (one - t) * of(base[i])).collect();
        }
        _ => {}
    }
    let mut masked: Vec<Vec<T>> = Vec::new();
    for (m, model) in models.iter().enumerate() {
        let tau: Vec<f32> = model.iter().zip(base).map(|(m, b)| m - b).collect();
        let keep = mask(s, m, &tau);
        let one = |i: usize| keep[i].map_or(zero, |p| (of(model[i]) - of(base[i])) / of(p));
        masked.push((0..n).map(one).collect());
    }
    let elects = matches!(s.method, Method::Ties | Method::DareTies | Method::Della);
    let delta = |i: usize| {
        let pairs = || masked.iter().map(|v| v[i]).zip(weights.iter().map(|w| of(*w)));
        let sum = pairs().fold(zero, |a, (v, w)| a + w * v);
        if !elects {
            return sum;
        }
        let agree = || pairs().filter(|(v, _)| if sum >= zero { *v > zero } else { *v < zero });
        let (top, bottom) = agree().fold((zero, zero), |(t, b), (v, w)| (t + w * v, b + w));
        if bottom == zero { top } else { top / bottom }
    };
    (0..n).map(|i| of(base[i]) + of(s.lambda) * delta(i)).collect()
}

fn dot<T: Real>(a: &[f32], b: &[f32]) -> T {
    a.iter().zip(b).fold(T::of(0.0), |sum, (a, b)| sum + T::of(f64::from(*a)) * T::of(f64::from(*b)))
}

fn cosine<T: Real>(a: &[f32], b: &[f32]) -> T {
    let norms = dot::<T>(a, a).sqrt() * dot::<T>(b, b).sqrt();
    if norms > T::of(0.0) { dot::<T>(a, b) / norms } else { T::of(0.0) }
}

/// The coefficients of both ends.
fn slerp<T: Real>(t: T, a: &[f32], b: &[f32]) -> (T, T) {
    let (c, one) = (cosine::<T>(a, b), T::of(1.0));
    let none = |v: &[f32]| v.iter().all(|v| *v == 0.0);
    if c.f64().abs() > f64::from(0.9995f32) || none(a) || none(b) {
        return (one - t, t);
    }
    let angle = T::of(c.f64().acos());
    (((one - t) * angle).sin() / angle.sin(), (t * angle).sin() / angle.sin())
}

/// The share of the mean.
fn stock<T: Real>(tau: &[Vec<f32>]) -> T {
    let (mut sum, mut pairs) = (T::of(0.0), 0.0);
    for (j, b) in tau.iter().enumerate() {
        for a in &tau[..j] {
            sum += cosine::<T>(a, b);
            pairs += 1.0;
        }
    }
    let (n, one) = (T::of(tau.len() as f64), T::of(1.0));
    let c = if pairs > 0.0 { sum / T::of(pairs) } else { one };
    n * c / (one + (n - one) * c)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(method: Method) -> Settings {
        let (lambda, density, epsilon, gamma, t) = (1.0, 0.5, 0.0, 0.25, 0.5);
        Settings { method, cols: 4, lambda, density, epsilon, gamma, t, seed: 1, tensor: 0 }
    }

    #[test]
    fn small_merges_by_hand() {
        let base = [0.0f32; 4];
        let models = [vec![4.0f32, 1.0, -3.0, 2.0], vec![-8.0, 1.0, -1.0, 2.0]];
        let w = [1.0f32, 3.0];
        let check = |method, want: [f64; 4]| {
            assert_eq!(merge::<f64>(&settings(method), &base, &models, &w), want, "{method:?}");
        };
        check(Method::Linear, [-5.0, 1.0, -1.5, 2.0]);
        check(Method::Task, [-20.0, 4.0, -6.0, 8.0]);
        // Kept are 4 and -3 of the first, -8 and 2 of the second; -8 outvotes 4.
        check(Method::Ties, [-8.0, 0.0, -3.0, 2.0]);
        // One of four is dropped at the top, then two are kept, the lower index first among equals.
        check(Method::Breadcrumbs, [0.0, 3.0, -3.0, 2.0 + 6.0]);
    }

    #[test]
    fn slerp_of_right_angles_keeps_the_length_and_stock_of_equals_is_their_mean() {
        let base = [0.0f32; 2];
        let half = merge::<f64>(&settings(Method::Slerp), &base, &[vec![2.0, 0.0], vec![0.0, 2.0]], &[1.0, 1.0]);
        assert!((half[0] - 2f64.sqrt()).abs() < 1e-12 && (half[1] - 2f64.sqrt()).abs() < 1e-12, "{half:?}");
        let same = vec![vec![1.0f32, -2.0]; 3];
        let mean = merge::<f64>(&settings(Method::ModelStock), &base, &same, &[1.0; 3]);
        assert!((mean[0] - 1.0).abs() < 1e-12 && (mean[1] + 2.0).abs() < 1e-12, "{mean:?}");
    }

    #[test]
    fn masks_keep_their_share_and_differ_between_models() {
        let s = Settings { method: Method::DareLinear, ..settings(Method::DareLinear) };
        let tau = vec![1.0f32; 10_000];
        let share = |m| mask(&s, m, &tau).iter().flatten().count() as f64 / tau.len() as f64;
        assert!((share(0) - 0.5).abs() < 0.02 && (share(1) - 0.5).abs() < 0.02);
        let both = mask(&s, 0, &tau).iter().zip(mask(&s, 1, &tau)).filter(|(a, b)| a.is_some() && b.is_some()).count();
        assert!((both as f64 / tau.len() as f64 - 0.25).abs() < 0.02, "{both} are kept by both");
    }
}
