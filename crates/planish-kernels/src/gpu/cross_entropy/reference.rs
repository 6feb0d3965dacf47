//! Cross entropy with logit scale, softcap, label smoothing and z-loss.

use crate::reference::Real;

/// What a loss is made of beside logits and targets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Loss {
    /// Logits of a token.
    pub vocab: usize,
    /// A target that does not count; those outside the vocabulary do not either.
    pub ignore: u32,
    /// Factor of the logits, before the cap.
    pub scale: f64,
    /// Softcap; 0 is none.
    pub cap: f64,
    /// Weight of label smoothing.
    pub smooth: f64,
    /// Weight of the squared log-sum-exp.
    pub z: f64,
    /// How the losses of tokens become one.
    pub reduction: Reduction,
}

/// How the losses of tokens become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// They do not: gradients come by token.
    None,
    /// Their sum.
    Sum,
    /// Their mean over the tokens that count, 0 where none does.
    Mean,
}

impl Reduction {
    /// The reduction called `name`.
    pub fn of(name: &str) -> Option<Reduction> {
        match name {
            "none" => Some(Reduction::None),
            "sum" => Some(Reduction::Sum),
            "mean" => Some(Reduction::Mean),
            _ => None,
        }
    }
}

impl Loss {
    /// Whether a token with `target` counts.
    pub fn live(&self, target: u32) -> bool {
        (target as usize) < self.vocab && target != self.ignore
    }

    /// The logit after scale and cap.
    pub fn logit<T: Real>(&self, x: T) -> T {
        let x = x * T::of(self.scale);
        if self.cap > 0.0 { T::of(self.cap) * (x / T::of(self.cap)).tanh() } else { x }
    }

    /// The gradient that reaches each token's loss.
    pub fn upstream<T: Real>(&self, targets: &[u32], up: &[T]) -> Vec<T> {
        let live = targets.iter().filter(|t| self.live(**t)).count().max(1);
        (0..targets.len())
            .map(|t| match self.reduction {
                Reduction::None => up[t],
                Reduction::Sum => up[0],
                Reduction::Mean => up[0] / T::of(live as f64),
            })
            .collect()
    }
}

/// Loss and log-sum-exp of each token, and the reduced loss with the number of tokens that count.
pub fn cross_entropy<T: Real>(x: &[T], targets: &[u32], o: &Loss) -> [Vec<T>; 3] {
    let (mut losses, mut lses) = (Vec::new(), Vec::new());
    let (mut sum, mut live) = (T::of(0.0), 0usize);
    for (x, target) in x.chunks(o.vocab).zip(targets) {
        let (mut loss, mut lse) = (T::of(0.0), T::of(0.0));
        if o.live(*target) {
            let c: Vec<T> = x.iter().map(|x| o.logit(*x)).collect();
            lse = log_sum_exp(&c);
            let mut all = T::of(0.0);
            c.iter().for_each(|c| all += *c);
            loss = lse - T::of(1.0 - o.smooth) * c[*target as usize] + T::of(o.z) * lse * lse;
            if o.smooth > 0.0 {
                loss += -T::of(o.smooth) * (all / T::of(o.vocab as f64));
            }
            sum += loss;
            live += 1;
        }
        losses.push(loss);
        lses.push(lse);
    }
    if o.reduction == Reduction::Mean {
        sum = sum / T::of(live.max(1) as f64);
    }
    [losses, lses, vec![sum, T::of(live as f64)]]
}

fn log_sum_exp<T: Real>(c: &[T]) -> T {
    let top = c.iter().fold(T::of(f64::NEG_INFINITY), |m, c| if *c > m { *c } else { m });
    if top.f64() == f64::NEG_INFINITY {
        return top;
    }
    let mut sum = T::of(0.0);
    c.iter().for_each(|c| sum += (*c - top).exp());
    top + sum.ln()
}
