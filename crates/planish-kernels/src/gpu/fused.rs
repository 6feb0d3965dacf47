//! Fused kernels: one grid that runs several phases with grid barriers between, generated from a list of phases.
//!
//! The same list gives each phase as a kernel of its own, so that both forms run the same text and give the same bits.

/// From a list `name = "call of the phase's body"` the constants `PHASES`, the names of the single kernels, and `TEXT`,
/// their text and that of the fused kernel. All take the arguments `$args`, among them an `ATOMIC(uint, sync, ..)` that
/// is zero when the fused kernel starts, and have the threadgroup memory `$shared`.
macro_rules! fused_phases {
    ($fused:ident, $args:expr, $shared:expr; $first:ident = $body:literal, $($next:ident = $next_body:literal,)*) => {
        /// The phases in order, each a kernel of its own.
        pub const PHASES: &[&str] = &[stringify!($first), $(stringify!($next)),*];
        /// Every phase as a kernel, and the kernel of all of them.
        pub const TEXT: &str = concat!(
            "// Generated from the list of phases.\n",
            "KERNEL(", stringify!($first), ", ", $args, ")\n{\n", $shared, "    ", $body, "\n}\n\n",
            $("KERNEL(", stringify!($next), ", ", $args, ")\n{\n", $shared, "    ", $next_body, "\n}\n\n",)*
            // Metal has grids only where its backend vouches for them.
            "#ifdef KERNEL_GRID\nKERNEL_GRID(", stringify!($fused), ", ", $args, ")\n{\n", $shared, "    ", $body, "\n",
            $("    GRID_BARRIER(sync);\n    ", $next_body, "\n",)*
            "}\n#endif\n",
        );
    };
}
pub(crate) use fused_phases;
