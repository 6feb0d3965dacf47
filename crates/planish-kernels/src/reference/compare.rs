//! The error rule: a kernel may be twice as wrong as the plain same-precision reference, plus one rounding.

/// How far an f32 output is from the f64 oracle, beside the plain f32 reference.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Errors {
    /// Largest |y - y64|.
    pub kernel: f64,
    /// Largest |y32 - y64|.
    pub plain: f64,
    /// Largest |y64|.
    pub scale: f64,
    /// Root mean square of y - y64, relative to that of y64.
    pub rms: f64,
}

/// Half a unit in the last place of f32, relative.
const ROUNDING: f64 = 1.0 / (1 << 24) as f64;
/// The ceilings of f32 outputs, whatever the plain reference does.
const RTOL: f64 = 1e-5;
const ATOL: f64 = 2e-6;
const RMS: f64 = 1e-6;

/// Judges `y` against the oracle `y64` and the plain reference `y32`, all of one length.
///
/// Where the oracle is not finite (or lies beyond f32) the output must be the same infinity or a NaN alike.
/// Otherwise the largest error is at most twice the plain reference's plus one rounding of the largest value, every
/// element is inside `2e-6 max|y64| + 1e-5 |y64|`, and the relative RMS error is at most 1e-6 (or twice the plain one).
///
/// # Errors
/// The sentence that says which bound fails, with its numbers.
pub fn compare(y: &[f32], y32: &[f32], y64: &[f64]) -> Result<Errors, String> {
    assert!(y.len() == y64.len() && y32.len() == y64.len(), "{} {} {} outputs", y.len(), y32.len(), y64.len());
    let mut e = Errors { kernel: 0.0, plain: 0.0, scale: 0.0, rms: 0.0 };
    let (mut squares, mut plain_squares, mut norm) = (0.0, 0.0, 0.0);
    for (i, &want) in y64.iter().enumerate() {
        let rounded = want as f32;
        if !rounded.is_finite() {
            if y[i].to_bits() != rounded.to_bits() && !(y[i].is_nan() && rounded.is_nan()) {
                return Err(format!("element {i} is {} instead of {rounded}", y[i]));
            }
            continue;
        }
        let (error, plain) = ((y[i] as f64 - want).abs(), (y32[i] as f64 - want).abs());
        if !error.is_finite() {
            return Err(format!("element {i} is {} instead of {want}", y[i]));
        }
        e.kernel = e.kernel.max(error);
        e.plain = e.plain.max(plain);
        e.scale = e.scale.max(want.abs());
        squares += error * error;
        plain_squares += plain * plain;
        norm += want * want;
    }
    let limit = 2.0 * e.plain + ROUNDING * e.scale;
    if e.kernel > limit {
        return Err(format!("largest error {:.3e} exceeds {limit:.3e}, twice the plain one plus a rounding", e.kernel));
    }
    ceilings(y, y64, &e)?;
    if norm > 0.0 {
        e.rms = (squares / norm).sqrt();
        let rms_limit = RMS.max(2.0 * (plain_squares / norm).sqrt());
        if e.rms > rms_limit {
            return Err(format!("relative RMS error {:.3e} exceeds {rms_limit:.3e}", e.rms));
        }
    }
    Ok(e)
}

fn ceilings(y: &[f32], y64: &[f64], e: &Errors) -> Result<(), String> {
    // Where the plain reference is itself beyond the ceiling (huge scores), twice its error governs.
    let floor = 2.0 * e.plain;
    for (i, (&got, &want)) in y.iter().zip(y64).enumerate() {
        let bound = (ATOL * e.scale + RTOL * want.abs()).max(floor);
        if (want as f32).is_finite() && (got as f64 - want).abs() > bound {
            return Err(format!("element {i} is {got} instead of {want}, beyond {bound:.3e}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::compare;

    #[test]
    fn accepts_what_the_plain_reference_would_give_and_rejects_a_planted_fault() {
        let y64: Vec<f64> = (0..100).map(|i| (i as f64 * 0.7).sin()).collect();
        let y32: Vec<f32> = y64.iter().map(|&v| v as f32).collect();
        assert!(compare(&y32, &y32, &y64).is_ok());
        let mut wrong = y32.clone();
        wrong[99] += 3e-7;
        assert!(compare(&wrong, &y32, &y64).is_err());
        wrong[99] = f32::NAN;
        assert!(compare(&wrong, &y32, &y64).is_err());
    }

    #[test]
    fn non_finite_values_must_match_exactly() {
        let oracle = [f64::INFINITY, f64::NAN, 1.0, 1e300];
        assert!(compare(&[f32::INFINITY, f32::NAN, 1.0, f32::INFINITY], &[0.0; 4], &oracle).is_ok());
        assert!(compare(&[f32::NEG_INFINITY, f32::NAN, 1.0, f32::INFINITY], &[0.0; 4], &oracle).is_err());
        assert!(compare(&[f32::INFINITY, 0.0, 1.0, f32::INFINITY], &[0.0; 4], &oracle).is_err());
    }
}
