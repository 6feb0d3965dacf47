//! Seeded inputs, fenced outputs and the list of instruction sets, for the tests of kernels.

use crate::cpu::isa::Isa;
use crate::cpu::sample::philox;
use crate::cpu::simd::Shared;

/// The instruction sets of this processor.
pub fn sets() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().filter(|isa| isa.is_supported())
}

/// `n` values with mean 0 and variance 1, roughly normal.
pub fn normal(seed: u32, n: usize) -> Vec<f32> {
    let uniform = |x: u32| x as f64 / (1u64 << 32) as f64 - 0.5;
    (0..n)
        .map(|i| {
            let x = philox([i as u32, seed, 0, 0], [1, 2]);
            (x.into_iter().map(uniform).sum::<f64>() * 3f64.sqrt()) as f32
        })
        .collect()
}

const CANARY: u32 = 0x5a5a_1234;
const FENCE: usize = 17;

/// A buffer full of NaN between two canaries.
pub struct Fenced {
    memory: Vec<f32>,
}

impl Fenced {
    pub fn new(n: usize) -> Fenced {
        let mut memory = vec![f32::from_bits(CANARY); n + 2 * FENCE];
        memory[FENCE..FENCE + n].fill(f32::NAN);
        Fenced { memory }
    }

    pub fn shared(&mut self) -> Shared<'_, f32> {
        let n = self.memory.len() - FENCE;
        Shared::new(&mut self.memory[FENCE..n])
    }

    #[track_caller]
    pub fn take(self) -> Vec<f32> {
        let n = self.memory.len() - FENCE;
        let fence = self.memory[..FENCE].iter().chain(&self.memory[n..]);
        assert!(fence.into_iter().all(|v| v.to_bits() == CANARY), "written outside the output");
        self.memory[FENCE..n].to_vec()
    }
}

/// Bits, so that comparisons see NaN and the sign of zero.
pub fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|v| v.to_bits()).collect()
}
