//! Arithmetic ceiling of a GPU's matrix unit: products of tiles that stay in registers, as many in flight as it takes.

use planish_device::{Backend, Error, ErrorKind, Init, Launch, Slice};
use planish_tune::Rejection;

use crate::data;
use crate::gpu::text::{IO, KernelLaunch, Text, io_code};
use crate::op::{Dtype, Machine};

/// Side of a tile.
const SIDE: usize = 16;
/// Elements of a tile.
const TILE: usize = SIDE * SIDE;
/// Products in flight in a team of 32 threads.
const CHAINS: usize = 8;
/// Teams of a group.
const TEAMS: usize = 8;
/// Threads of a group.
pub const THREADS: usize = 32 * TEAMS;

const TEXT: Text = Text(&[IO, ("peak.k", include_str!("peak.k"))]);

/// A launch that keeps the matrix unit busy.
pub struct Probe {
    /// The launch.
    pub launch: Launch,
    /// Additions and multiplications in it.
    pub flops: u64,
    y: Slice,
    expected: Vec<f32>,
}

/// `groups` groups of `THREADS` threads that multiply tiles of `io`, f16 or bf16, for `rounds` rounds.
pub fn probe(machine: &Machine<'_>, io: Dtype, groups: usize, rounds: u32) -> Result<Probe, Rejection> {
    let fault = |e: Error| Rejection::Launch(e.to_string());
    // Small whole numbers: sums of some million are exact.
    let value = |i: usize| ((i * 7 + i / SIDE * 3) % 5) as f32 - 2.0;
    let (mut a, mut b): (Vec<f32>, Vec<f32>) =
        ((0..CHAINS * TILE).map(value).collect(), (0..TILE).map(|i| value(i + 3)).collect());
    let placed = |values: &mut [f32]| -> Result<Slice, Error> {
        let bytes = data::rounded(values, io);
        let slice = machine.backend.alloc(bytes.len(), Init::Zero)?.all();
        machine.backend.write(&slice, &bytes).map(|()| slice)
    };
    let args = [placed(&mut a).map_err(fault)?, placed(&mut b).map_err(fault)?];
    let y = machine.backend.alloc(4 * groups * TEAMS * CHAINS * TILE, Init::Fill(0xff)).map_err(fault)?.all();
    let launch = KernelLaunch {
        text: &TEXT,
        entry: "matrix_peak",
        constants: vec![("IO", io_code(io)), ("CHAINS", CHAINS as i64), ("TEAMS", TEAMS as i64)],
        params: vec![rounds],
        groups,
        threads: THREADS,
        shared_bytes: 0,
    };
    let launch = launch.on(machine, args.into_iter().chain([y.clone()]).collect())?;
    let dot = |(row, column): (&[f32], &[f32])| row.iter().zip(column).map(|(x, w)| x * w).sum::<f32>() * rounds as f32;
    let expected = a.chunks(SIDE).flat_map(|row| b.chunks(SIDE).map(move |column| dot((row, column)))).collect();
    let products = (groups * TEAMS * CHAINS) as u64 * u64::from(rounds);
    Ok(Probe { launch, flops: products * 2 * (SIDE * TILE) as u64, y, expected })
}

impl Probe {
    /// Whether the launch, which has run, did all its products; an error names the first that is wrong.
    pub fn check(&self, backend: &dyn Backend) -> Result<(), Error> {
        let mut bytes = vec![0; self.y.len];
        backend.read(&self.y, &mut bytes)?;
        for (team, tiles) in bytes.chunks(4 * CHAINS * TILE).enumerate() {
            let values = tiles.chunks(4).map(|w| f32::from_le_bytes([w[0], w[1], w[2], w[3]]));
            for (i, (got, want)) in values.zip(&self.expected).enumerate() {
                if got != *want {
                    let message = format!("matrix probe: team {team}, sum {i} is {got}, not {want}");
                    return Err(Error::new(ErrorKind::BadLaunch, message));
                }
            }
        }
        Ok(())
    }
}
