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
        "    SHARED_DYNAMIC(uint4, ring);
    SHARED(copy_t, copies, SHAPE_SIMDS * SHAPE_SLOTS);
    SHARED(uint, words, SHAPE_WORDS);
    SHARED(uint4, x, 2 * SHAPE_TILES);
    SHARED(float, xs, 3 * SHAPE_TILES);
    SHARED(float4, xf, SHAPE_QUADS);
    SHARED(float, scratch, 2 * MAX_SIMD);
    SHARED(uint, bests, 2 * MAX_SIMD);
    SHARED(float, qs, SHAPE_HEADS_SHARED * SHAPE_HEAD_SIZE);
    SHARED(float, fresh, 2 * SHAPE_HEAD_SIZE);
    SHARED(float, merge_sums, 2 * SHAPE_SIMDS * SHAPE_HEADS_SHARED);
    SHARED(float, weights, SHAPE_PARTS);
    Where at;
    at.tid = TID;
    at.lane = LANE;
    at.simd = SIMD;
    at.group = TG_X;
    at.groups = TG_COUNT;
    load_words(words, table, p.first, p.count, at);
    const Tag THERE = tag_of(0u, false);
"
    };
}

macro_rules! ahead {
    ($phase:literal) => {
        concat!(
            "Ahead ahead = ahead_start(",
            $phase,
            ", p.first, p.first + p.count, p.ends >> 1 & 1u, p.only, words, arena, ring, copies, at);\n    "
        )
    };
}
macro_rules! embed {
    () => {
        "phase_embed(arena, words, step, work, p.embedding_scale, at);"
    };
}
macro_rules! qkv {
    ($layer:literal, $tags:literal) => {
        concat!("phase_qkv(work, ", $layer, ", ", $tags, ", p.eps, ahead, arena, words, ring, copies, x, xs, xf, scratch, at);")
    };
}
macro_rules! attend {
    ($layer:literal, $newest:literal, $tag:literal) => {
        concat!(
            "phase_attend(arena, words, ",
            $newest,
            ", ",
            $tag,
            ", ropes, keys, values, work, ",
            $layer,
            ", p, qs, fresh, ring + SHAPE_SIMDS * SHAPE_SLOTS * SLOT_QUADS, merge_sums, at);"
        )
    };
}
macro_rules! out {
    ($layer:literal, $tags:literal) => {
        concat!("phase_out(work, ", $layer, ", ", $tags, ", weights, ahead, arena, words, ring, copies, x, xs, xf, at);")
    };
}
macro_rules! up {
    ($layer:literal, $tag:literal) => {
        concat!("phase_up(work, ", $layer, ", ", $tag, ", p.eps, ahead, arena, words, ring, copies, x, xs, xf, scratch, at);")
    };
}
macro_rules! down {
    ($layer:literal, $tag:literal) => {
        concat!("phase_down(work, ", $layer, ", ", $tag, ", ahead, arena, words, ring, copies, x, xs, xf, at);")
    };
}
macro_rules! head {
    ($tag:literal) => {
        concat!(
            "phase_head(work, logits, ",
            $tag,
            ", p.eps, p.logit_softcap, ahead, arena, words, ring, copies, x, xs, xf, scratch, bests, at);"
        )
    };
}
macro_rules! kernel {
    ($name:literal, $body:expr) => {
        concat!("KERNEL(", $name, ", ", arguments!(), ")\n{\n", shared!(), "    ", $body, "\n}\n\n")
    };
}

/// The phases of a layer, in order.
pub const LAYER: [&str; 5] = ["decode_qkv", "decode_attend", "decode_out", "decode_up", "decode_down"];

/// Every phase as a kernel, and the grid of all.
pub const TEXT: &str = concat!(
    kernel!("decode_embed", embed!()),
    kernel!("decode_qkv", concat!(ahead!("PHASE_QKV"), qkv!("p.first", "THERE, THERE"))),
    kernel!("decode_attend", attend!("p.first", "step[STEP_POSITION]", "THERE")),
    kernel!("decode_out", concat!(ahead!("PHASE_OUT"), out!("p.first", "THERE, THERE"))),
    kernel!("decode_up", concat!(ahead!("PHASE_UP"), up!("p.first", "THERE"))),
    kernel!("decode_down", concat!(ahead!("PHASE_DOWN"), down!("p.first", "THERE"))),
    kernel!("decode_head", concat!(ahead!("PHASE_HEAD"), head!("THERE"))),
    // Metal has grids only where its backend vouches for them.
    "#ifdef KERNEL_GRID\nKERNEL_GRID(decode_fused, ",
    arguments!(),
    ")\n{\n",
    shared!(),
    "    ",
    ahead!("PHASE_QKV"),
    "const uint newest = step[STEP_POSITION], tags = atomic_load(sync, 1u);
    uint sense = GRID_SENSE(sync);
    Tag before = THERE;
    if ((p.ends & 1u) != 0u) {
        ",
    embed!(),
    "
        BARRIER;
    }
    for (uint layer = p.first; layer < p.first + p.count; ++layer) {
        const Tag now = tag_of(tags + layer - p.first + 1u, true);
        prefetch_cache(keys, values, words, layer, newest, at);
        ",
    qkv!("layer", "before, now"),
    "
        BETWEEN;
        ",
    attend!("layer", "newest", "now"),
    "
        if (layer + 1u < p.first + p.count) prefetch_norms(arena, words, layer + 1u, at);
        BARRIER;
        ",
    out!("layer", "before, now"),
    "
        BETWEEN;
        ",
    up!("layer", "now"),
    "
        BETWEEN;
        ",
    down!("layer", "now"),
    "
        if (layer + 1u < p.first + p.count || (p.ends & 2u) != 0u) BETWEEN;
        before = now;
    }
    if ((p.ends & 2u) != 0u) {
        ",
    head!("before"),
    "
    }
    // Every group has seen the tags before by now: a barrier of each layer says so.
    if (at.group == 0u && at.tid == 0u) atomic_store(sync, 1u, tags + p.count);
}
#endif
",
);
