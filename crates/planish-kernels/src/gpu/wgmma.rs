//! Products of warpgroups, which Hopper alone has (sm_90a): whether a machine does, and views of matrices for them.

use planish_device::{Slice, View};
use planish_tune::Rejection;

use crate::op::{Dtype, Machine};

/// The text of barriers, copies of tiles and products of warpgroups.
pub const WGMMA: (&str, &str) = ("wgmma.k", include_str!("include/wgmma.k"));
/// The text of C = A B^T on warpgroups; it needs the one above before it.
pub const WGMMA_GEMM: (&str, &str) = ("wgmma_gemm.k", include_str!("include/wgmma_gemm.k"));

/// Elements of 16 bits in the 128 bytes of a tile's row.
pub const ROW: usize = 64;
/// Bytes that the alignment of tiles may cost: the swizzle counts rows from multiples of this.
pub const ALIGN: usize = 1024;

/// Whether `machine` has products of warpgroups.
pub fn has(machine: &Machine<'_>) -> bool {
    let silicon = &machine.backend.identity().silicon;
    machine.backend.limits().backend == "cuda" && silicon.get("arch").is_some_and(|a| a == "sm_90a")
}

/// Whether `machine` has products of warpgroups of elements `io`.
pub fn has_of(machine: &Machine<'_>, io: Dtype) -> bool {
    matches!(io, Dtype::F16 | Dtype::Bf16) && has(machine)
}

/// Dynamic shared bytes of `machine` that tiles may take, after `fixed` bytes of barriers and what alignment costs.
pub fn tile_bytes(machine: &Machine<'_>, fixed: usize) -> usize {
    (machine.backend.limits().dynamic_shared_bytes as usize).saturating_sub(ALIGN + fixed)
}

/// Tiles of `rows` rows and [`ROW`] columns of argument `arg`, which holds `planes` matrices of 16-bit elements by rows.
pub fn view(arg: usize, [planes, height, width]: [usize; 3], rows: usize) -> View {
    let (row, [planes, height, width]) = (2 * width as u64, [planes, height, width].map(|n| n as u64));
    let mut view = View {
        arg,
        element: 2,
        extents: vec![width, height],
        strides: vec![row],
        tile: vec![ROW as u32, rows as u32],
        swizzled: true,
    };
    if planes > 0 {
        view.extents.push(planes);
        view.strides.push(row * height);
        view.tile.push(1);
    }
    view
}

/// Refuses arguments that do not begin at multiples of 16 bytes, as copies and stores of 16 bytes need.
pub fn aligned(args: &[Slice]) -> Result<(), Rejection> {
    match args.iter().position(|a| !a.offset.is_multiple_of(16)) {
        None => Ok(()),
        Some(at) => Err(Rejection::Constraint(format!("argument {at} begins at a multiple of 16 bytes"))),
    }
}
