//! Gather of rows, exactly.

use super::*;
use crate::cpu::testing::{Fenced, bits, normal, sets};

#[test]
fn rows_of_every_type_are_gathered_and_scaled_exactly() {
    let tokens = [4u32, 0, 4, 2];
    for columns in [1, 15, 16, 97, 576] {
        let x = normal(8, 5 * columns);
        let f16: Vec<u16> = x.iter().map(|&v| half::f16::from_f32(v).to_bits()).collect();
        let bf16: Vec<u16> = x.iter().map(|&v| half::bf16::from_f32(v).to_bits()).collect();
        let widened = |t: &Table, i: usize| match t {
            Table::F32(x) => x[i],
            Table::F16(x) => half::f16::from_bits(x[i]).to_f32(),
            Table::Bf16(x) => half::bf16::from_bits(x[i]).to_f32(),
        };
        for (isa, table) in
            sets().flat_map(|isa| [Table::F32(&x), Table::F16(&f16), Table::Bf16(&bf16)].map(|t| (isa, t)))
        {
            let mut out = Fenced::new(4 * columns);
            let args = Gather { table, tokens: &tokens, out: out.shared(), columns, factor: 24.0 };
            // SAFETY: one call at a time, disjoint ranges.
            unsafe {
                gather(isa)(&args, 0..1);
                gather(isa)(&args, 1..4);
            }
            let want: Vec<f32> = (0..4 * columns)
                .map(|i| widened(&table, tokens[i / columns] as usize * columns + i % columns) * 24.0)
                .collect();
            assert_eq!(bits(&out.take()), bits(&want), "{isa:?} {columns}");
        }
    }
}

#[test]
#[should_panic]
fn a_token_outside_the_table_is_a_panic_not_a_read() {
    let (x, mut out) = (vec![0.0; 8], vec![0.0; 4]);
    let args = Gather { table: Table::F32(&x), tokens: &[2], out: Shared::new(&mut out), columns: 4, factor: 1.0 };
    // SAFETY: one call.
    unsafe { gather(crate::cpu::isa::Isa::Portable)(&args, 0..1) };
}
