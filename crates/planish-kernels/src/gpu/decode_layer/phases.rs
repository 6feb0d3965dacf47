//! The phases of a layer, and the kernels generated from them.

use crate::gpu::fused::fused_phases;

/// Arguments of every kernel of the layer.
macro_rules! arguments {
    () => {
        "IN(float, vectors, 0), IN(float, rope, 1), IN(io_t, w_qkv, 2), IN(io_t, w_o, 3), IN(io_t, w_up, 4),
       IN(io_t, w_down, 5), INOUT(float, h, 6), INOUT(io_t, keys, 7), INOUT(io_t, values, 8), INOUT(float, work, 9),
       ATOMIC(uint, sync, 10), PARAMS(LayerParams, p, 11)"
    };
}

/// Threadgroup memory of every kernel of the layer.
macro_rules! shared {
    () => {
        "    SHARED(float, stage, STAGE);
    SHARED(float, scratch, MAX_SIMD);
    SHARED(float, q, HEAD_MAX);
    SHARED(float, k, HEAD_MAX);
    SHARED(float, o, HEAD_MAX);
"
    };
}

fused_phases! {
    layer_fused, arguments!(), shared!();
    layer_qkv = "multiply(FROM_H, w_qkv, qkv_rows(p), p.hidden, COMMON);",
    layer_attend = "attend(vectors, rope, keys, values, work, p, stage, scratch, q, k, o, TG_X, TG_COUNT, TID);",
    layer_o = "multiply(FROM_HEADS, w_o, p.hidden, p.heads * p.head_dim, COMMON);",
    layer_up = "multiply(FROM_H2, w_up, 2 * p.ffn, p.hidden, COMMON);",
    layer_down = "multiply(FROM_GATE, w_down, p.hidden, p.ffn, COMMON);",
}
