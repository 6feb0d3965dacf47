//! A guess at the time of a candidate that was not tried: every value of every parameter has a factor of its own.
//!
//! It only orders what is tried next; what it says is never reported, stored or believed.

/// Samples that a value's effect is drawn towards zero by: one look at a value is half believed.
const SHRINK: f64 = 0.35;

/// Distance behind the best, as a log ratio, at which a candidate counts half: the fit is best where it matters.
const NEAR: f64 = 0.25;

/// Sweeps over the parameters; the effects of a design in which parameters vary one by one settle in few.
const SWEEPS: usize = 24;

/// How a parameter's values lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Axis {
    /// Sizes in rising order: a value between two others behaves like something between them.
    Sizes,
    /// Names, which say nothing about each other.
    Names,
}

/// Factors of values, as logarithms.
pub(crate) struct Additive {
    base: f64,
    effects: Vec<Vec<f64>>,
}

impl Additive {
    /// The factors that explain `tried` best: positions of a candidate's values, and its log ratio to the default.
    pub fn fit(axes: &[(Axis, usize)], tried: &[(&[usize], f64)]) -> Self {
        let best = tried.iter().map(|(_, y)| *y).fold(f64::INFINITY, f64::min);
        let weights: Vec<f64> = tried.iter().map(|(_, y)| 1.0 / (1.0 + ((y - best) / NEAR).powi(2))).collect();
        let mut model = Additive { base: 0.0, effects: axes.iter().map(|(_, n)| vec![0.0; *n]).collect() };
        for _ in 0..SWEEPS {
            let (sum, all) = model.residuals(tried, &weights, |_| 0);
            model.base += sum.first().copied().unwrap_or(0.0) / all.first().copied().unwrap_or(1.0).max(1e-12);
            for p in 0..axes.len() {
                let (sum, all) = model.residuals(tried, &weights, |at| at[p]);
                for (v, effect) in model.effects[p].iter_mut().enumerate() {
                    let (sum, all) = (sum.get(v).copied().unwrap_or(0.0), all.get(v).copied().unwrap_or(0.0));
                    *effect = (sum + all * *effect) / (all + SHRINK);
                }
            }
        }
        for (p, (_, values)) in axes.iter().enumerate().filter(|(_, (axis, _))| *axis == Axis::Sizes) {
            let seen: Vec<bool> = (0..*values).map(|v| tried.iter().any(|(at, _)| at[p] == v)).collect();
            fill_between(&mut model.effects[p], &seen);
        }
        model
    }

    /// Weighted sums of what the model leaves unexplained, and of the weights, by the group that `group` puts each into.
    fn residuals(
        &self,
        tried: &[(&[usize], f64)],
        weights: &[f64],
        group: impl Fn(&[usize]) -> usize,
    ) -> (Vec<f64>, Vec<f64>) {
        let (mut sums, mut all) = (Vec::new(), Vec::new());
        for ((at, y), w) in tried.iter().zip(weights) {
            let g = group(at);
            if sums.len() <= g {
                sums.resize(g + 1, 0.0);
                all.resize(g + 1, 0.0);
            }
            sums[g] += w * (y - self.predict(at));
            all[g] += w;
        }
        (sums, all)
    }

    /// Places of the values that together are expected to be fastest, each the first of its equals.
    pub fn best(&self) -> Vec<usize> {
        let least = |e: &Vec<f64>| (0..e.len()).min_by(|&a, &b| e[a].total_cmp(&e[b])).unwrap_or(0);
        self.effects.iter().map(least).collect()
    }

    /// The log ratio to the default that is expected of the candidate with values at these positions.
    pub fn predict(&self, at: &[usize]) -> f64 {
        self.base + self.effects.iter().zip(at).map(|(e, v)| e[*v]).sum::<f64>()
    }
}

/// Gives values without a sample what their neighbours with one suggest: between two a straight line, else the nearest.
fn fill_between(effects: &mut [f64], seen: &[bool]) {
    for v in (0..effects.len()).filter(|v| !seen[*v]) {
        let below = (0..v).rev().find(|u| seen[*u]);
        let above = (v + 1..effects.len()).find(|u| seen[*u]);
        effects[v] = match (below, above) {
            (Some(a), Some(b)) => {
                let part = (v - a) as f64 / (b - a) as f64;
                effects[a] + part * (effects[b] - effects[a])
            }
            (Some(one), None) | (None, Some(one)) => effects[one],
            (None, None) => 0.0,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_are_found_from_one_change_at_a_time() {
        let axes = [(Axis::Sizes, 4), (Axis::Names, 3)];
        let truth = |at: &[usize]| [0.0, -0.2, -0.4, 0.3][at[0]] + [0.0, 0.5, -0.3][at[1]];
        let tried: Vec<Vec<usize>> = vec![vec![0, 0], vec![1, 0], vec![2, 0], vec![3, 0], vec![0, 1], vec![0, 2]];
        let tried: Vec<(&[usize], f64)> = tried.iter().map(|at| (&at[..], truth(at))).collect();
        let model = Additive::fit(&axes, &tried);
        let all = (0..4).flat_map(|a| (0..3).map(move |b| [a, b]));
        let best = all.min_by(|a, b| model.predict(a).total_cmp(&model.predict(b))).expect("twelve");
        assert_eq!(best, [2, 2]);
    }

    #[test]
    fn values_between_lie_between() {
        let mut effects = [0.0, 9.0, 1.0, 9.0, 9.0];
        fill_between(&mut effects, &[true, false, true, false, false]);
        assert_eq!(effects, [0.0, 0.5, 1.0, 1.0, 1.0]);
    }
}
