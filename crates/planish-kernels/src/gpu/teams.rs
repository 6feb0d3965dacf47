//! The space of ops that give each dot product to a team of threads, for `include/teams.k`.

use planish_tune::{Config, Constraint, Param, Rejection, Space};

use crate::gpu::Tier;
use crate::gpu::text::{ints, knob};
use crate::op::Machine;

/// The text of team sums.
pub const TEAMS: (&str, &str) = ("teams.k", include_str!("include/teams.k"));

/// Threads of a group, for which the text has room.
const MAX_GROUP: i64 = 1024;

/// The parameters of a team, and `more`.
pub fn space(machine: &Machine<'_>, more: Vec<Param>, default: Config) -> Space {
    let most = i64::from(machine.backend.limits().max_threads).min(MAX_GROUP);
    let mut params = vec![
        ints("THREADS", "loads of a row in flight against a longer reduction", &[32, 64, 128, 256]),
        ints("TEAMS", "fewer, larger groups against teams that wait for each other", &[1, 2, 4, 8]),
        ints("ROWS", "loads of x saved against registers", &[1, 2, 4]),
        ints("REDUCE", "0 shuffles; 1 a tree in threadgroup memory", &[0, 1]),
    ];
    params.extend(more);
    Space {
        params,
        constraints: vec![Constraint::new(format!("THREADS TEAMS <= {most}"), move |c| {
            c.int("THREADS").zip(c.int("TEAMS")).is_some_and(|(threads, teams)| threads * teams <= most)
        })],
        default: default
            .with("THREADS", Tier::on(machine).pick([32, 32, 64, 64]))
            .with("TEAMS", 4)
            .with("ROWS", 2)
            .with("REDUCE", 0),
    }
}

/// How the rows of a matrix are spread over a grid.
pub struct Spread {
    /// Constants of the text.
    pub constants: Vec<(&'static str, i64)>,
    /// Groups of the grid.
    pub groups: usize,
    /// Threads of a group.
    pub threads: usize,
}

/// `rows` rows under `config`.
pub fn spread(config: &Config, rows: usize) -> Result<Spread, Rejection> {
    let [threads, teams, per_team, reduce] = ["THREADS", "TEAMS", "ROWS", "REDUCE"].map(|n| knob(config, n));
    let (threads, teams, per_team) = (threads?, teams?, per_team?);
    Ok(Spread {
        constants: vec![
            ("THREADS", threads as i64),
            ("TEAMS", teams as i64),
            ("ROWS", per_team as i64),
            ("REDUCE", reduce? as i64),
        ],
        groups: rows.div_ceil(teams * per_team),
        threads: threads * teams,
    })
}
