//! Rounding floats to block formats, with the bits of the reference quantiser of GGUF files where it has the format.
//!
//! Only what a corpus of derived models needs: formats of one scale a block, rounded to the nearest level.

use half::{bf16, f16};
use planish_kernels::quant::WeightType;

use crate::error::{Error, Result};

/// Elements of a block.
const BLOCK: usize = 32;
/// Levels of IQ4_NL; the format is made of them.
const IQ4_LEVELS: [f32; 16] =
    [-127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0, 113.0];

/// Appends `values`, whole blocks of them, in the format `ty` to `out`; a format that is not listed here is refused.
pub fn quantize(ty: WeightType, values: &[f32], out: &mut Vec<u8>) -> Result<()> {
    let block: fn(&[f32; BLOCK], &mut Vec<u8>) = match ty {
        WeightType::F32 => return each(values, out, f32::to_le_bytes),
        WeightType::F16 => return each(values, out, |v| f16::from_f32(v).to_le_bytes()),
        WeightType::BF16 => return each(values, out, |v| bf16::from_f32(v).to_le_bytes()),
        WeightType::Q8_0 => q8_0,
        WeightType::Q4_0 => |x, out| signed(x, 8.0, out),
        WeightType::Q5_0 => |x, out| signed(x, 16.0, out),
        WeightType::Q4_1 => |x, out| shifted(x, 15.0, out),
        WeightType::Q5_1 => |x, out| shifted(x, 31.0, out),
        WeightType::IQ4_NL => iq4_nl,
        other => return Err(Error::request(format!("no model is derived in {other}"))),
    };
    let (blocks, rest) = values.as_chunks::<BLOCK>();
    if !rest.is_empty() {
        return Err(Error::request(format!("{} values are no whole blocks of {ty}", values.len())));
    }
    blocks.iter().for_each(|b| block(b, out));
    Ok(())
}

fn each<const N: usize>(values: &[f32], out: &mut Vec<u8>, bytes: impl Fn(f32) -> [u8; N]) -> Result<()> {
    out.extend(values.iter().flat_map(|v| bytes(*v)));
    Ok(())
}

fn inverse(d: f32) -> f32 {
    if d == 0.0 { 0.0 } else { 1.0 / d }
}

fn scale(d: f32, out: &mut Vec<u8>) {
    out.extend(f16::from_f32(d).to_le_bytes());
}

/// The value of largest magnitude, the first of equals.
fn extreme(x: &[f32; BLOCK]) -> f32 {
    x.iter().fold(0.0f32, |m, v| if v.abs() > m.abs() { *v } else { m })
}

/// Eight bits, halves rounded away from zero.
fn q8_0(x: &[f32; BLOCK], out: &mut Vec<u8>) {
    let d = extreme(x).abs() / 127.0;
    let id = inverse(d);
    scale(d, out);
    out.extend(x.iter().map(|v| (v * id).round() as i8 as u8));
}

/// Codes around `zero`, whose lowest is the extreme value: Q4_0 and Q5_0.
fn signed(x: &[f32; BLOCK], zero: f32, out: &mut Vec<u8>) {
    let d = extreme(x) / -zero;
    let (id, most) = (inverse(d), 2.0 * zero - 1.0);
    scale(d, out);
    // Two roundings, as the reference has them: a fused product would give other codes.
    let code = |v: f32| (v * id + (zero + 0.5)).trunc().clamp(0.0, most) as u8;
    codes(&x.map(code), zero > 8.0, out);
}

/// Codes from the least value up to `most` steps: Q4_1 and Q5_1.
fn shifted(x: &[f32; BLOCK], most: f32, out: &mut Vec<u8>) {
    let max = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let min = x.iter().copied().fold(f32::INFINITY, f32::min);
    let d = (max - min) / most;
    let id = inverse(d);
    scale(d, out);
    scale(min, out);
    codes(&x.map(|v| ((v - min) * id + 0.5).trunc().clamp(0.0, most) as u8), most > 15.0, out);
}

/// Packs codes: fifth bits first where there are any, then the lower halves of bytes, then the upper ones.
fn codes(q: &[u8; BLOCK], fifth: bool, out: &mut Vec<u8>) {
    if fifth {
        let bits = q.iter().enumerate().fold(0u32, |bits, (i, q)| bits | u32::from(q >> 4) << i);
        out.extend(bits.to_le_bytes());
    }
    out.extend((0..BLOCK / 2).map(|i| q[i] & 15 | q[i + BLOCK / 2] << 4));
}

/// Levels of a table; the scale that puts the extreme on the lowest level, then the best one for the chosen levels.
fn iq4_nl(x: &[f32; BLOCK], out: &mut Vec<u8>) {
    let id = inverse(extreme(x) / IQ4_LEVELS[0]);
    let nearest = |v: f32| {
        let away = |i: &usize| (IQ4_LEVELS[*i] - v * id).abs();
        (0..16).min_by(|a, b| away(a).total_cmp(&away(b))).unwrap_or(0)
    };
    let q = x.map(nearest);
    let products = q.iter().zip(x).map(|(q, x)| f64::from(IQ4_LEVELS[*q]) * f64::from(*x)).sum::<f64>();
    let squares = q.iter().map(|q| f64::from(IQ4_LEVELS[*q]).powi(2)).sum::<f64>();
    scale((products / squares) as f32, out);
    codes(&q.map(|q| q as u8), false, out);
}

#[cfg(test)]
mod tests {
    use planish_kernels::data::{Rng, floats};
    use planish_kernels::op::Fill;
    use planish_kernels::quant::dequantize;

    use super::*;

    const TYPES: [WeightType; 9] = [
        WeightType::F32,
        WeightType::F16,
        WeightType::BF16,
        WeightType::Q8_0,
        WeightType::Q5_1,
        WeightType::Q5_0,
        WeightType::Q4_1,
        WeightType::Q4_0,
        WeightType::IQ4_NL,
    ];

    /// Steps of a format over the spread of a block, from the widest block that there is.
    fn steps(ty: WeightType) -> f64 {
        match ty {
            WeightType::F32 => f64::exp2(24.0),
            WeightType::F16 => f64::exp2(11.0),
            WeightType::BF16 | WeightType::Q8_0 => f64::exp2(8.0),
            WeightType::Q5_0 | WeightType::Q5_1 => f64::exp2(5.0),
            _ => f64::exp2(4.0),
        }
    }

    #[test]
    fn rounding_is_within_a_step_and_again_changes_nothing() {
        let mut rng = Rng::new(5);
        for ty in TYPES {
            let x = floats(&mut rng, 64 * BLOCK, Fill::Random);
            let (mut file, mut back, mut again) = (Vec::new(), vec![0f32; x.len()], Vec::new());
            quantize(ty, &x, &mut file).unwrap();
            assert_eq!(file.len(), ty.row_bytes(x.len()).unwrap(), "{ty}");
            dequantize(ty, &file, &mut back);
            for (x, back) in x.as_chunks::<BLOCK>().0.iter().zip(back.as_chunks::<BLOCK>().0) {
                let widest = 2.0 * f64::from(extreme(x).abs()) / steps(ty);
                let off = x.iter().zip(back).map(|(x, b)| f64::from((x - b).abs())).fold(0.0, f64::max);
                // The table of IQ4_NL has steps of up to 24 of its 240 units.
                let most = if ty == WeightType::IQ4_NL { 1.1 * widest } else { widest };
                assert!(off <= most, "{ty}: off by {off}, a step is {widest}");
            }
            quantize(ty, &back, &mut again).unwrap();
            if ty.is_float() {
                assert_eq!(file, again, "{ty}");
            }
        }
        let mut out = Vec::new();
        assert!(quantize(WeightType::Q4_K, &[0.0; 256], &mut out).is_err());
        assert!(quantize(WeightType::Q4_0, &[0.0; 33], &mut out).is_err());
    }

    #[test]
    fn a_block_of_zeros_stays_one() {
        for ty in TYPES {
            let (mut file, mut back) = (Vec::new(), [1f32; BLOCK]);
            quantize(ty, &[0.0; BLOCK], &mut file).unwrap();
            dequantize(ty, &file, &mut back);
            assert_eq!(back, [0.0; BLOCK], "{ty}");
        }
    }
}
