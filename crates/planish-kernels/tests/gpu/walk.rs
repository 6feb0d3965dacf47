//! The order in which groups take tiles is a bijection for every grid up to 64 by 64, as the kernels' own text has it.

use std::collections::BTreeMap;

use planish_device::host::Mode;
use planish_device::{Backend, Init, Launch, Params, Source};
use planish_kernels::gpu::tiles::WALK;

/// Tiles of the largest grid along a side.
const SIDE: usize = 64;

/// Group `TG_X` stands for one walk of one grid, and writes at each place which group of that grid takes it.
const MAP: &str = "
struct P { uint side; };
KERNEL(walk_map, OUT(uint, order, 0), PARAMS(P, p, 1))
{
    const uint rows = TG_X / p.side % p.side + 1u, columns = TG_X % p.side + 1u, walk = TG_X / (p.side * p.side);
    for (uint i = TID; i < rows * columns; i += 32u) {
        const uint2 tile = walk_tile(i, rows, columns, walk);
        if (tile.x < rows && tile.y < columns) order[(TG_X * p.side + tile.x) * p.side + tile.y] = i + 1u;
    }
}
";

#[test]
fn walks_take_every_tile_of_every_grid_once() {
    let Some(host) = super::host(Mode::Checked) else { return };
    let source = Source::Text {
        name: "walk_map".into(),
        text: WALK.1.to_owned() + MAP,
        constants: BTreeMap::new(),
        threads: 32,
    };
    let order = host.alloc(2 * SIDE.pow(4) * 4, Init::Zero).expect("memory");
    let launch = Launch {
        program: host.load(&source).expect("text that compiles"),
        args: vec![order.all()],
        params: Params::words(&[SIDE as u32]),
        tasks: 2 * SIDE.pow(2) as u32,
        threads: 32,
        scratch_bytes: 0,
        overlap: false,
        views: Vec::new(),
    };
    host.submit(&host.record(&[launch]).expect("a launch")).expect("a run");
    let mut bytes = vec![0; order.len()];
    host.read(&order.all(), &mut bytes).expect("a read");
    // There are as many groups as tiles: where every tile has one, none has two.
    for (grid, map) in bytes.chunks(SIDE * SIDE * 4).enumerate() {
        let (walk, rows, columns) = (grid / SIDE.pow(2), grid / SIDE % SIDE + 1, grid % SIDE + 1);
        let taken = map.chunks(4).filter(|w| **w != [0; 4]).count();
        assert_eq!(taken, rows * columns, "walk {walk} of {rows} x {columns} tiles");
    }
}
