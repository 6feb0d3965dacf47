//! The cache: every element where the layout says, and nothing else touched.

use super::*;
use crate::cpu::testing::{bits, normal, sets};

#[test]
fn rows_go_to_their_places_and_nowhere_else() {
    for (isa, dim) in sets().flat_map(|isa| [1, 16, 50, 64, 80].map(|dim| (isa, dim))) {
        let layout = KvLayout::new(3, dim, 40);
        assert_eq!(layout.capacity, 48);
        let (first, tokens, stride) = (13, 7, 3 * dim + 2);
        let (k, v) = (normal(10, tokens * stride), normal(11, tokens * stride));
        let (mut k32, mut v32) = (vec![-7.0; layout.k_len()], vec![-7.0; layout.v_len()]);
        let (mut k16, mut v16) = (vec![9u16; layout.k_len()], vec![9u16; layout.v_len()]);
        let f32s = KvData::F32 { k: Shared::new(&mut k32), v: Shared::new(&mut v32) };
        let f16s = KvData::F16 { k: Shared::new(&mut k16), v: Shared::new(&mut v16) };
        for data in [f32s, f16s] {
            let args = KvStore { k: &k, v: &v, stride, first, cache: KvCache { layout, data } };
            args.cache.check().unwrap();
            // SAFETY: one call at a time, disjoint ranges.
            unsafe {
                kv_store(isa)(&args, 0..5);
                kv_store(isa)(&args, 5..tokens * 3);
            }
        }
        let (mut wk, mut wv) = (vec![-7.0; layout.k_len()], vec![-7.0; layout.v_len()]);
        for (t, h) in (0..tokens).flat_map(|t| (0..3).map(move |h| (t, h))) {
            wv[layout.v_at(h, first + t)..][..layout.v_row()].fill(0.0);
            for d in 0..dim {
                wk[layout.k_at(h, first + t) + 16 * d] = k[t * stride + h * dim + d];
                wv[layout.v_at(h, first + t) + d] = v[t * stride + h * dim + d];
            }
        }
        assert_eq!((bits(&k32), bits(&v32)), (bits(&wk), bits(&wv)), "{isa:?} {dim}");
        let halves = |x: &[f32]| -> Vec<u16> {
            x.iter().map(|&v| if v == -7.0 { 9 } else { half::f16::from_f32(v).to_bits() }).collect()
        };
        assert_eq!((k16, v16), (halves(&wk), halves(&wv)), "{isa:?} {dim}");
    }
}
