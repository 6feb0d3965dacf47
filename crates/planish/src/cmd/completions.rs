//! `planish completions SHELL`: the completion script of a shell, derived from the flag declarations.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::{Cli, Outcome, report};

/// Print the completion script of a shell
#[derive(Args)]
pub struct CompletionsArgs {
    /// The shell to complete for
    shell: Shell,
}

/// Writes the script to standard output.
pub fn run(args: &CompletionsArgs) -> anyhow::Result<Outcome> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "planish", &mut script);
    report::print(&String::from_utf8_lossy(&script))?;
    Ok(Outcome::Done)
}
