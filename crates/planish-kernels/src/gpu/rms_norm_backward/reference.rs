//! dx = r (dy w - n mean(dy w n)) and dw = sum of dy n, with n = x r and r = rsqrt(mean(x^2) + eps).

use crate::reference::Real;

/// The gradients of `x` and of `w`, which has one value a column.
pub fn rms_norm_backward<T: Real>(x: &[T], w: &[T], dy: &[T], eps: f64) -> [Vec<T>; 2] {
    let (cols, n) = (w.len(), T::of(w.len() as f64));
    let (mut dx, mut dw) = (Vec::with_capacity(x.len()), vec![T::of(0.0); cols]);
    for (x, dy) in x.chunks(cols).zip(dy.chunks(cols)) {
        let mut squares = T::of(0.0);
        for v in x {
            squares += *v * *v;
        }
        let r = T::of(1.0) / (squares / n + T::of(eps)).sqrt();
        let mut mean = T::of(0.0);
        for c in 0..cols {
            mean += dy[c] * w[c] * (x[c] * r) / n;
            dw[c] += dy[c] * (x[c] * r);
        }
        dx.extend((0..cols).map(|c| r * (dy[c] * w[c] - x[c] * r * mean)));
    }
    [dx, dw]
}

/// The magnitudes of the terms that dx and dw are sums of: r |dy w| and r |n| mean(|dy w n|), and |dy n|.
///
/// Every way to dx ends in a difference of the first two, whose factors each carry some roundings: r and the mean those of a
/// sum over the row, the others one each. So dx is known within some roundings of both terms together, however little of
/// them is left: of one column, where n = x / sqrt(x^2 + eps) is nearly 1, only r dy w (1 - n^2) = dy w r eps / (x^2 + eps).
pub fn magnitudes(x: &[f64], w: &[f64], dy: &[f64], eps: f64) -> [Vec<f64>; 2] {
    let cols = w.len();
    let (mut dx, mut dw) = (Vec::with_capacity(x.len()), vec![0.0; cols]);
    for (x, dy) in x.chunks(cols).zip(dy.chunks(cols)) {
        let r = (x.iter().map(|x| x * x).sum::<f64>() / cols as f64 + eps).sqrt().recip();
        let pull = (0..cols).map(|c| (dy[c] * w[c] * x[c] * r).abs()).sum::<f64>() / cols as f64;
        dx.extend((0..cols).map(|c| r * ((dy[c] * w[c]).abs() + (x[c] * r).abs() * pull)));
        (0..cols).for_each(|c| dw[c] += (dy[c] * x[c] * r).abs());
    }
    [dx, dw]
}

#[cfg(test)]
mod tests {
    use super::rms_norm_backward;
    use crate::gpu::rms_norm::reference::rms_norm;

    #[test]
    fn gradients_are_the_slopes_of_the_forward_pass() {
        let x: Vec<f64> = (0..10).map(|i| (f64::from(i) * 1.7).sin()).collect();
        let dy: Vec<f64> = (0..10).map(|i| (f64::from(i) * 0.9).cos()).collect();
        let (w, eps, h) = ([0.5, -1.0, 2.0, 0.1, 1.3], 1e-3, 1e-6);
        let [dx, dw] = rms_norm_backward(&x, &w, &dy, eps);
        let loss = |x: &[f64], w: &[f64]| rms_norm(x, w, eps).iter().zip(&dy).map(|(y, d)| y * d).sum::<f64>();
        let slope = |v: &[f64], i: usize, f: &dyn Fn(&[f64]) -> f64| {
            let at = |h: f64| {
                let mut v = v.to_vec();
                v[i] += h;
                f(&v)
            };
            (at(h) - at(-h)) / (2.0 * h)
        };
        for (i, d) in dx.iter().enumerate() {
            assert!((d - slope(&x, i, &|x| loss(x, &w))).abs() < 1e-8, "dx[{i}]");
        }
        for (i, d) in dw.iter().enumerate() {
            assert!((d - slope(&w, i, &|w| loss(&x, w))).abs() < 1e-8, "dw[{i}]");
        }
    }

    #[test]
    fn a_zero_row_is_finite() {
        let [dx, dw] = rms_norm_backward::<f64>(&[0.0; 3], &[2.0; 3], &[1.0; 3], 1e-6);
        assert!(dx.iter().all(|d| (d - 2000.0).abs() < 1e-9) && dw == [0.0; 3]);
    }
}
