//! The kernels of a step: each phase on its own, and the grid that runs them all with barriers between.

/// Arguments of every kernel of a phase.
macro_rules! arguments {
    ($last:literal) => {
        concat!(
            "IN(uint4, arena, 0), IN(uint, table, 1), INOUT(uint, step, 2), IN(float, ropes, 3),
       INOUT(half, keys, 4), INOUT(half, values, 5), INOUT(float, work, 6), OUT(float, logits, 7), ATOMIC(uint, sync, 8),
       ",
            $last
        )
    };
}

/// Threadgroup memory of every kernel of a phase.
macro_rules! shared {
    () => {
        "    SHARED_DYNAMIC(uint4, ring);
    SHARED(copy_t, copies, SHAPE_SIMDS * SHAPE_SLOTS);
    SHARED(uint, words, SHAPE_WORDS + 5 * PLAN_WORDS);
    SHARED(uint4, x, 2 * SHAPE_TILES);
    SHARED(float, xs, 3 * SHAPE_TILES);
    SHARED(float4, xf, SHAPE_QUADS);
    SHARED(float, scratch, 2 * MAX_SIMD);
    SHARED(uint, bests, 2 * MAX_SIMD);
    SHARED(float, qs, SHAPE_HEADS_SHARED * SHAPE_HEAD_SIZE);
    SHARED(float, fresh, 2 * SHAPE_HEAD_SIZE);
    SHARED(float, merge_sums, 2 * SHAPE_SIMDS * SHAPE_HEADS_SHARED);
    Where at;
    at.tid = TID;
    at.lane = LANE;
    at.simd = SIMD;
    at.group = TG_X;
    at.groups = TG_COUNT;
    load_words(words, table, p.first, p.count, at);
    float4 weights[SHAPE_NORM_QUADS];
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
/// Loads the weights of a norm, named by its word.
macro_rules! norm {
    ($word:literal) => {
        concat!("norm_weights(weights, arena, words[", $word, "], at);\n    ")
    };
}
macro_rules! embed {
    () => {
        "phase_embed(arena, words, step, work, p.embedding_scale, mark, at);"
    };
}
macro_rules! qkv {
    ($layer:literal, $marks:literal) => {
        concat!(
            "phase_qkv(work, ",
            $layer,
            ", weights, p.eps, ",
            $marks,
            ", ahead, arena, words, ring, copies, x, xs, xf, scratch, at);"
        )
    };
}
macro_rules! attend {
    ($layer:literal, $newest:literal, $marks:literal) => {
        concat!(
            "phase_attend(arena, words, ",
            $newest,
            ", ropes, keys, values, work, ",
            $layer,
            ", p, ",
            $marks,
            ", qs, fresh, ring + SHAPE_SIMDS * SHAPE_SLOTS * SLOT_QUADS, merge_sums, at);"
        )
    };
}
macro_rules! out {
    ($layer:literal, $marks:literal) => {
        concat!("phase_out(work, ", $layer, ", ", $marks, ", ahead, arena, words, ring, copies, x, xs, xf, at);")
    };
}
macro_rules! up {
    ($layer:literal, $marks:literal) => {
        concat!(
            "phase_up(work, ",
            $layer,
            ", weights, p.eps, ",
            $marks,
            ", ahead, arena, words, ring, copies, x, xs, xf, scratch, at);"
        )
    };
}
macro_rules! down {
    ($layer:literal, $marks:literal) => {
        concat!("phase_down(work, ", $layer, ", ", $marks, ", ahead, arena, words, ring, copies, x, xs, xf, at);")
    };
}
macro_rules! head {
    ($marks:literal) => {
        concat!(
            "phase_head(work, logits, weights, p.eps, p.logit_softcap, ",
            $marks,
            ", ahead, arena, words, ring, copies, x, xs, xf, scratch, bests, at);"
        )
    };
}
macro_rules! kernel {
    ($name:literal, $body:expr) => {
        concat!(
            "KERNEL(",
            $name,
            ", ",
            arguments!("PARAMS(DecodeParams, p, 9)"),
            ")\n{\n",
            shared!(),
            "    const uint mark = mark_alone(sync, p.first, at);
    const Marks any = marks_of(mark, MARK_ANY, MARK_ANY);
    ",
            $body,
            "\n}\n\n"
        )
    };
}

/// The grid of all phases: its name, its last arguments, and what stands at its begin, at each border and at its end.
macro_rules! grid {
    ($name:literal, $last:literal, $begin:literal, $border:literal, $end:literal) => {
        concat!(
            // Metal has grids only where its backend vouches for them.
            "#ifdef KERNEL_GRID\nKERNEL_GRID(",
            $name,
            ", ",
            arguments!($last),
            ")\n{\n",
            $begin,
            shared!(),
            "    const uint newest = step[STEP_POSITION], odd = grid_odd(sync);
    const bool fences = grid_fences(sync);
    uint sense = GRID_SENSE(sync);
    if ((p.ends & 1u) != 0u) {
        const uint mark = mark_of(odd, 1u);            // of the layer before the first
        ",
            embed!(),
            "
        // The first layer overwrites this from other threads, so here what is written is seen.
        ARRIVE(true);
",
            $border,
            "    }
    if (!idle(PHASE_QKV, at)) ",
            norm!("layer_at(p.first) + LAYER_ATTN_NORM"),
            ahead!("PHASE_QKV"),
            "if ((p.ends & 1u) != 0u) {
        WAIT(true);
",
            $border,
            "    }
    for (uint layer = p.first; layer < p.first + p.count; ++layer) {
        // What an earlier launch has left is there.
        const uint mark = mark_of(odd, layer), before = (layer > p.first || (p.ends & 1u) != 0u) ? mark ^ 1u : MARK_ANY;
        const Marks first = marks_of(mark, before, before), out = marks_of(mark, mark, before);
        const Marks marks = marks_of(mark, mark, mark);
        prefetch_cache(keys, values, words, layer, newest, at);
        ",
            qkv!("layer", "first"),
            "
        if (MEETS) ARRIVE(fences);
        if (MARKS == 0) {
",
            $border,
            "        }
        ahead_pay(ahead, words, arena, ring, copies, at);
        if (MEETS) WAIT(fences);
",
            $border,
            "        ",
            attend!("layer", "newest", "marks"),
            "
        ARRIVE(fences);
",
            $border,
            "        if (layer + 1u < p.first + p.count) prefetch_norms(arena, words, layer + 1u, at);
        WAIT(fences);
",
            $border,
            "        ",
            out!("layer", "out"),
            "
        ARRIVE(fences);
",
            $border,
            "        if (!idle(PHASE_UP, at)) ",
            norm!("layer_at(layer) + LAYER_FFN_NORM"),
            "    ahead_pay(ahead, words, arena, ring, copies, at);
        WAIT(fences);
",
            $border,
            "        ",
            up!("layer", "marks"),
            "
        ARRIVE(fences);
",
            $border,
            "        ahead_pay(ahead, words, arena, ring, copies, at);
        WAIT(fences);
",
            $border,
            "        ",
            down!("layer", "marks"),
            "
        const bool next = layer + 1u < p.first + p.count;
        if (next || (p.ends & 2u) != 0u) {
            // The head is read by groups that have not seen the residual of the layer before where few have q, k and v.
            const bool all = fences || (DENSE > 0 && !next);
            ARRIVE(all);
",
            $border,
            "            if (!next || !idle(PHASE_QKV, at)) ",
            norm!("next ? layer_at(layer + 1u) + LAYER_ATTN_NORM : MODEL_NORM"),
            "        ahead_pay(ahead, words, arena, ring, copies, at);
            WAIT(all);
",
            $border,
            "        }
    }
    if ((p.ends & 2u) != 0u) {
        const uint last = mark_of(odd, p.first + p.count - 1u);
        ",
            head!("marks_of(last, last, last)"),
            "
    }
    if ((p.ends & 4u) != 0u) {
        ARRIVE(true);
",
            $border,
            "        WAIT(true);
",
            $border,
            "        // Every group draws, so that none ends long before the others; one goes on.
        if (at.simd == 0u) pick(work + WORK_BEST, step, at.groups, at.lane, at.group == 0u);
    }
    grid_ends(sync, odd, at);
",
            $end,
            "}
#endif
"
        )
    };
}

/// The phases of a layer, in order.
pub const LAYER: [&str; 5] = ["decode_qkv", "decode_attend", "decode_out", "decode_up", "decode_down"];

/// Every phase as a kernel, and the grid of all.
pub const TEXT: &str = concat!(
    kernel!("decode_embed", embed!()),
    kernel!(
        "decode_qkv",
        concat!(ahead!("PHASE_QKV"), norm!("layer_at(p.first) + LAYER_ATTN_NORM"), qkv!("p.first", "any"))
    ),
    kernel!("decode_attend", attend!("p.first", "step[STEP_POSITION]", "any")),
    kernel!("decode_out", concat!(ahead!("PHASE_OUT"), out!("p.first", "any"))),
    kernel!(
        "decode_up",
        concat!(ahead!("PHASE_UP"), norm!("layer_at(p.first) + LAYER_FFN_NORM"), up!("p.first", "any"))
    ),
    kernel!("decode_down", concat!(ahead!("PHASE_DOWN"), down!("p.first", "any"))),
    kernel!("decode_head", concat!(ahead!("PHASE_HEAD"), norm!("MODEL_NORM"), head!("any"))),
    grid!("decode_fused", "PARAMS(DecodeParams, p, 9)", "", "", ""),
);

/// The grid once more, as a text of its own, in which the first thread of every group leaves the time at its begin, behind
/// every phase, behind every barrier and at its end: `ticks` is uint `[stamps][groups]`.
pub const STAMPED: &str = grid!(
    "decode_stamped",
    "OUT(uint, ticks, 9), PARAMS(DecodeParams, p, 10)",
    "    uint stamps = 0u;
    if (TID == 0u) ticks[stamps++ * TG_COUNT + TG_X] = TICKS();
",
    "        if (TID == 0u) ticks[stamps++ * TG_COUNT + TG_X] = TICKS_BEHIND(words);
",
    "    TG_BARRIER();
    if (TID == 0u) ticks[stamps++ * TG_COUNT + TG_X] = TICKS_BEHIND(words);
"
);
