//! Products of warpgroups, which Hopper alone has (sm_90a): whether a machine does, the space of a variant that uses them
//! beside a portable kernel's, and views of matrices for them.

use planish_device::{Slice, View};
use planish_tune::{Config, Constraint, Param, Rejection, Space, Value};

use crate::op::{Dtype, Machine};

/// The text of barriers, copies of tiles and products of warpgroups.
pub const WGMMA: (&str, &str) = ("wgmma.k", include_str!("include/wgmma.k"));
/// The text of C = A B^T on warpgroups; it needs the one above before it.
pub const WGMMA_GEMM: (&str, &str) = ("wgmma_gemm.k", include_str!("include/wgmma_gemm.k"));

/// Value of `VARIANT` of what runs on warpgroups; the other one is `portable`.
pub const NAME: &str = "wgmma";

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

/// Whether `config` is of the variant.
pub fn native(config: &Config) -> bool {
    config.name("VARIANT") == Some(NAME)
}

/// A constraint of the variant alone.
pub fn constraint(name: &str, holds: impl Fn(&Config) -> bool + Send + Sync + 'static) -> Constraint {
    Constraint::new(name, move |c| !native(c) || holds(c))
}

/// `portable` with the variant beside it: its parameters have `more` values then, and `mine`, a constraint called `name`,
/// says which are the variant's.
pub fn beside(
    portable: Space,
    more: impl Fn(&str) -> &'static [i64],
    (name, mine): (&str, impl Fn(&Config) -> bool + Send + Sync + 'static),
) -> Space {
    // A size that both have must mean the same to neither: the portable kernel keeps its own.
    let own: Vec<(&str, Vec<Value>)> = portable.params.iter().map(|p| (p.name, p.values.clone())).collect();
    let own = move |c: &Config| own.iter().all(|(name, values)| c.get(name).is_some_and(|v| values.contains(v)));
    let mut space = portable.except(native);
    for Param { name, values, .. } in &mut space.params {
        let more = more(name).iter().map(|v| Value::Int(*v)).filter(|v| !values.contains(v)).collect::<Vec<_>>();
        values.extend(more);
    }
    let values = ["portable", NAME].map(Value::from).into();
    space.params.insert(0, Param { name: "VARIANT", trades: "any machine against warpgroups", values });
    space.constraints.push(Constraint::new(name, move |c| if native(c) { mine(c) } else { own(c) }));
    space
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
