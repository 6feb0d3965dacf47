//! w = scale q + offset.

use crate::reference::Real;

/// A matrix in MLX's affine groups.
pub struct Affine<'a, T> {
    /// Bits of a code.
    pub bits: usize,
    /// Neighbours of a row that share a scale and an offset.
    pub group: usize,
    /// Codes: element j of a row is bits `j * bits..` of the row's stream, lowest first.
    pub codes: &'a [u8],
    /// One a group.
    pub scales: &'a [T],
    /// One a group.
    pub offsets: &'a [T],
}

impl<T: Real> Affine<'_, T> {
    /// The weights, row after row.
    ///
    /// Rows are whole bytes, so the stream of a row begins where the one before ends.
    pub fn weights(&self) -> Vec<T> {
        let bit = |at: usize| u32::from(self.codes[at / 8]) >> (at % 8) & 1;
        let weight = |i: usize| {
            let code: u32 = (0..self.bits).map(|b| bit(i * self.bits + b) << b).sum();
            self.scales[i / self.group] * T::of(f64::from(code)) + self.offsets[i / self.group]
        };
        (0..self.scales.len() * self.group).map(weight).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::Affine;

    /// Codes 0 to 7 in three bits are the bytes 0x88 0xc6 0xfa, lowest bits first.
    #[test]
    fn codes_straddle_bytes() {
        let codes = [0x88, 0xc6, 0xfa];
        let affine = Affine::<f64> { bits: 3, group: 8, codes: &codes, scales: &[-2.0], offsets: &[7.0] };
        assert_eq!(affine.weights(), [7.0, 5.0, 3.0, 1.0, -1.0, -3.0, -5.0, -7.0]);
    }
}
