//! Seeded inputs for problems: ordinary and extreme floats, and weights in every format.

use half::{bf16, f16};

use crate::cpu::matmul::Layout;
use crate::op::{Dtype, Fill};
use crate::quant::WeightType;

/// A small counter-free generator (SplitMix64); the same seed gives the same inputs everywhere.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A generator started at `seed`.
    pub fn new(seed: u64) -> Self {
        Rng(seed ^ 0x9e37_79b9_7f4a_7c15)
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`; `n` is not zero.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(n)) >> 64) as u64
    }

    /// An index below `n`, which is not zero.
    pub fn index(&mut self, n: usize) -> usize {
        self.below(n as u64) as usize
    }

    /// Uniform in -1..1.
    pub fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    /// About normal with unit variance.
    pub fn normal(&mut self) -> f32 {
        let sum: f32 = (0..6).map(|_| self.unit()).sum();
        sum * std::f32::consts::FRAC_1_SQRT_2
    }
}

/// `n` values: normal, or with one in sixteen a thousand times larger or smaller, or all of another magnitude.
pub fn floats(rng: &mut Rng, n: usize, fill: Fill) -> Vec<f32> {
    let one = |rng: &mut Rng| {
        let v = rng.normal();
        match (fill, rng.below(32)) {
            (Fill::Extreme, 0) => v * 1000.0,
            (Fill::Extreme, 1) => v * 1e-3,
            (Fill::Extreme, 2) => 0.0,
            (Fill::Huge, _) => v * 1e12,
            (Fill::Tiny, _) => v * 1e-12,
            _ => v,
        }
    };
    (0..n).map(|_| one(rng)).collect()
}

/// Little-endian bytes of f32 values.
pub fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// Little-endian bytes of values rounded to f16.
pub fn bytes_f16(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect()
}

/// The value of float type `dtype` that is nearest to `v`.
pub fn nearest(v: f32, dtype: Dtype) -> f32 {
    match dtype {
        Dtype::F16 => f16::from_f32(v).to_f32(),
        Dtype::Bf16 => bf16::from_f32(v).to_f32(),
        _ => v,
    }
}

/// Rounds `values` to float type `dtype` and gives their little-endian bytes.
pub fn rounded(values: &mut [f32], dtype: Dtype) -> Vec<u8> {
    match dtype {
        Dtype::F16 => {
            values.iter_mut().for_each(|v| *v = f16::from_f32(*v).to_f32());
            bytes_f16(values)
        }
        Dtype::Bf16 => {
            values.iter_mut().for_each(|v| *v = bf16::from_f32(*v).to_f32());
            values.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect()
        }
        _ => bytes(values),
    }
}

/// Little-endian bytes of 32-bit numbers.
pub fn bytes_u32(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// File bytes of a `rows` by `cols` matrix of `ty` with random codes and scales of ordinary size (or, extreme, some zero
/// and some large), so that values look like weights.
pub fn weights(rng: &mut Rng, ty: WeightType, rows: usize, cols: usize, fill: Fill) -> Vec<u8> {
    let n = rows * ty.row_bytes(cols).expect("columns are whole blocks");
    match ty {
        WeightType::F32 => return bytes(&floats(rng, rows * cols, fill)),
        // A half holds no number of the other magnitudes.
        WeightType::F16 if matches!(fill, Fill::Huge | Fill::Tiny) => {
            return bytes_f16(&floats(rng, rows * cols, Fill::Random));
        }
        WeightType::F16 => return bytes_f16(&floats(rng, rows * cols, fill)),
        WeightType::BF16 => {
            let values = floats(rng, rows * cols, fill);
            return values.iter().flat_map(|v| half::bf16::from_f32(*v).to_le_bytes()).collect();
        }
        _ => {}
    }
    let mut out = vec![0u8; n];
    for chunk in out.chunks_mut(8) {
        let bits = rng.bits().to_le_bytes();
        chunk.copy_from_slice(&bits[..chunk.len()]);
    }
    let record = ty.record();
    for block in out.chunks_exact_mut(record.block_bytes) {
        for at in scale_offsets(ty) {
            let v = 0.01 * (1.0 + rng.unit().abs());
            let v = match (fill, rng.below(16)) {
                (Fill::Extreme, 0) => 0.0,
                (Fill::Extreme, 1) => -v * 50.0,
                (Fill::Extreme, 2) => 1e-6,
                _ => v,
            };
            block[*at..*at + 2].copy_from_slice(&f16::from_f32(v).to_le_bytes());
        }
    }
    out
}

/// Multiplies the weights in `file` by `factor`, up to the rounding of scales or floats.
pub fn rescale(ty: WeightType, file: &mut [u8], factor: f64) {
    let f16 = |at: &mut [u8]| {
        let v = f64::from(f16::from_le_bytes([at[0], at[1]]).to_f32()) * factor;
        at.copy_from_slice(&f16::from_f64(v).to_le_bytes());
    };
    match ty {
        WeightType::F32 => file.chunks_exact_mut(4).for_each(|at| {
            let v = f64::from(f32::from_le_bytes([at[0], at[1], at[2], at[3]])) * factor;
            at.copy_from_slice(&(v as f32).to_le_bytes());
        }),
        WeightType::BF16 => file.chunks_exact_mut(2).for_each(|at| {
            let v = f64::from(bf16::from_le_bytes([at[0], at[1]]).to_f32()) * factor;
            at.copy_from_slice(&bf16::from_f64(v).to_le_bytes());
        }),
        WeightType::F16 => file.chunks_exact_mut(2).for_each(f16),
        _ => {
            for block in file.chunks_exact_mut(ty.record().block_bytes) {
                scale_offsets(ty).iter().for_each(|at| f16(&mut block[*at..*at + 2]));
            }
        }
    }
}

/// Where the f16 scales of a block lie.
fn scale_offsets(ty: WeightType) -> &'static [usize] {
    match ty {
        WeightType::Q4_1 | WeightType::Q5_1 | WeightType::Q4_K | WeightType::Q5_K => &[0, 2],
        WeightType::Q2_K => &[80, 82],
        WeightType::Q3_K => &[108],
        WeightType::Q6_K => &[208],
        _ => &[0],
    }
}

/// The bytes that kernels read of a matrix whose file bytes are `file`.
pub fn pack(layout: &Layout, file: &[u8]) -> Vec<u8> {
    let mut packed = vec![0; layout.packed_bytes()];
    layout.pack_rows(file, 0, &mut packed);
    packed
}
