//! y = gate(a) b.

use crate::reference::Real;

/// The gate of a gated unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// a / (1 + e^-a).
    Silu,
    /// a/2 (1 + tanh(sqrt(2/pi) (a + 0.044715 a^3))).
    Gelu,
}

impl Gate {
    /// The gate called `name`.
    pub fn of(name: &str) -> Option<Gate> {
        match name {
            "silu" => Some(Gate::Silu),
            "gelu" => Some(Gate::Gelu),
            _ => None,
        }
    }

    /// The gate's value at `a`.
    pub fn at<T: Real>(self, a: T) -> T {
        match self {
            Gate::Silu => a / (T::of(1.0) + (-a).exp()),
            Gate::Gelu => T::of(0.5) * a * (T::of(1.0) + bend(a).tanh()),
        }
    }

    /// Its derivative at `a`.
    pub fn slope<T: Real>(self, a: T) -> T {
        let (one, half) = (T::of(1.0), T::of(0.5));
        match self {
            Gate::Silu => {
                let s = one / (one + (-a).exp());
                s + a * s * (one - s)
            }
            Gate::Gelu => {
                let t = bend(a).tanh();
                let inner = bend(one) / T::of(1.044715) * (one + T::of(3.0 * 0.044715) * a * a);
                half * (one + t) + half * a * (one - t * t) * inner
            }
        }
    }
}

/// sqrt(2/pi) (a + 0.044715 a^3).
fn bend<T: Real>(a: T) -> T {
    T::of((2.0 / std::f64::consts::PI).sqrt()) * (a + T::of(0.044715) * a * a * a)
}

/// `gate(a) b` for each pair.
pub fn swiglu<T: Real>(a: &[T], b: &[T], gate: Gate) -> Vec<T> {
    a.iter().zip(b).map(|(a, b)| gate.at(*a) * *b).collect()
}
