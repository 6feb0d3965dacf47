//! The kernels of a step: each phase on its own, and the grid that runs them all with barriers between.

/// Arguments of every kernel of a phase.
macro_rules! arguments {
    () => {
        "IN(uint4, arena, 0), IN(uint, table, 1), IN(uint, step, 2), IN(float, ropes, 3),
       INOUT(half, keys, 4), INOUT(half, values, 5), INOUT(float, work, 6), OUT(float, logits, 7), ATOMIC(uint, sync, 8),
       PARAMS(DecodeParams, p, 9)"
    };
}

/// Threadgroup memory of every kernel of a phase.
macro_rules! shared {
    () => {
        "    SHARED(uint4, x, 2 * SHAPE_TILES);
    SHARED(float, xs, 3 * SHAPE_TILES);
    SHARED(float4, xf, SHAPE_QUADS);
    SHARED(float, scratch, MAX_SIMD);
    SHARED(uint, bests, 2 * MAX_SIMD);
    SHARED(float, qs, SHAPE_HEADS_SHARED * SHAPE_HEAD_SIZE);
    SHARED(float, fresh, 2 * SHAPE_HEAD_SIZE);
    SHARED(float, merge, SHAPE_SIMDS * SHAPE_HEAD_SIZE);
    SHARED(float, merge_sums, 2 * SHAPE_SIMDS);
    Where at;
    at.tid = TID;
    at.lane = LANE;
    at.simd = SIMD;
    at.group = TG_X;
    at.groups = TG_COUNT;
"
    };
}

macro_rules! embed {
    () => {
        "phase_embed(arena, table, step, work, p.embedding_scale, at);"
    };
}
macro_rules! qkv {
    ($layer:literal) => {
        concat!("phase_qkv(arena, table, work, ", $layer, ", p.eps, x, xs, xf, scratch, at);")
    };
}
macro_rules! attend {
    ($layer:literal) => {
        concat!(
            "phase_attend(arena, table, step, ropes, keys, values, work, ",
            $layer,
            ", p, qs, fresh, merge, merge_sums, at);"
        )
    };
}
macro_rules! out {
    ($layer:literal) => {
        concat!("phase_out(arena, table, work, ", $layer, ", x, xs, xf, at);")
    };
}
macro_rules! up {
    ($layer:literal) => {
        concat!("phase_up(arena, table, work, ", $layer, ", p.eps, x, xs, xf, scratch, at);")
    };
}
macro_rules! down {
    ($layer:literal) => {
        concat!("phase_down(arena, table, work, ", $layer, ", x, xs, xf, at);")
    };
}
macro_rules! head {
    () => {
        "phase_head(arena, table, work, logits, p.eps, p.logit_softcap, x, xs, xf, scratch, bests, at);"
    };
}
macro_rules! kernel {
    ($name:literal, $body:expr) => {
        concat!("KERNEL(", $name, ", ", arguments!(), ")\n{\n", shared!(), "    ", $body, "\n}\n\n")
    };
}
macro_rules! next_rows {
    ($word:literal, $types:literal, $rows:literal, $cols:literal, $turn:literal) => {
        concat!(
            "prefetch_rows(arena, table[",
            $word,
            " + 1u], ",
            $types,
            ", matrix_of(table, ",
            $word,
            ", ",
            $rows,
            ", ",
            $cols,
            "), ",
            $turn,
            ", at);"
        )
    };
}

/// The phases of a layer, in order.
pub const LAYER: [&str; 5] = ["decode_qkv", "decode_attend", "decode_out", "decode_up", "decode_down"];

/// Every phase as a kernel, and the grid of all.
pub const TEXT: &str = concat!(
    kernel!("decode_embed", embed!()),
    kernel!("decode_qkv", qkv!("p.first")),
    kernel!("decode_attend", attend!("p.first")),
    kernel!("decode_out", out!("p.first")),
    kernel!("decode_up", up!("p.first")),
    kernel!("decode_down", down!("p.first")),
    kernel!("decode_head", head!()),
    // Metal has grids only where its backend vouches for them.
    "#ifdef KERNEL_GRID\nKERNEL_GRID(decode_fused, ",
    arguments!(),
    ")\n{\n",
    shared!(),
    "    if ((p.ends & 1u) != 0u) {\n        ",
    embed!(),
    "\n        ",
    next_rows!("layer_at(0u) + LAYER_QKV", "TYPES_QKV", "HEADS * HEAD_DIM", "HIDDEN", "ROWS_QKV"),
    "\n        GRID_BARRIER(sync);\n    }\n    for (uint layer = p.first; layer < p.first + p.count; ++layer) {\n        ",
    qkv!("layer"),
    "\n        ",
    next_rows!("layer_at(layer) + LAYER_OUT", "TYPES_OUT", "HIDDEN", "HEADS * HEAD_DIM", "ROWS_OUT"),
    "\n        GRID_BARRIER(sync);\n        ",
    attend!("layer"),
    "\n        ",
    next_rows!("layer_at(layer) + LAYER_UP", "TYPES_UP", "2u * FFN", "HIDDEN", "ROWS_UP"),
    "\n        GRID_BARRIER(sync);\n        ",
    out!("layer"),
    "\n        GRID_BARRIER(sync);\n        ",
    up!("layer"),
    "\n        ",
    next_rows!("layer_at(layer) + LAYER_DOWN", "TYPES_DOWN", "HIDDEN", "FFN", "ROWS_DOWN"),
    "\n        GRID_BARRIER(sync);\n        ",
    down!("layer"),
    "\n        if (layer + 1u < p.first + p.count) {\n            ",
    next_rows!("layer_at(layer + 1u) + LAYER_QKV", "TYPES_QKV", "HEADS * HEAD_DIM", "HIDDEN", "ROWS_QKV"),
    "\n            GRID_BARRIER(sync);\n        } else if ((p.ends & 2u) != 0u) {\n            ",
    next_rows!("MODEL_HEAD", "TYPES_HEAD", "VOCAB", "HIDDEN", "ROWS_HEAD"),
    "\n            GRID_BARRIER(sync);\n        }\n    }\n    if ((p.ends & 2u) != 0u) {\n        ",
    head!(),
    "\n    }\n}\n#endif\n",
);
