//! From the words of the command line to `Cli`, or to how the process ends without a command.

use std::env::args_os;
use std::io::{Write, stdout};
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Arg, Command, CommandFactory, FromArgMatches};

use crate::hint::WithHint;
use crate::{Cli, report, ui};

/// The command with its flags; a wrong flag ends with 2, help that was asked for with 0.
pub fn parse() -> Result<Cli, ExitCode> {
    let mut command = signed(Cli::command());
    let matches = command.try_get_matches_from_mut(args_os());
    let error = match matches.and_then(|mut m| Cli::from_arg_matches_mut(&mut m).map_err(|e| e.format(&mut command))) {
        Ok(cli) => return Ok(cli),
        Err(error) => error,
    };
    if let (ErrorKind::InvalidUtf8, Some(what)) = (error.kind(), not_utf8()) {
        let failed: anyhow::Result<()> = Err(anyhow::anyhow!("{what} is not UTF-8"));
        let hint = "a file with such a name can be given through a symbolic link";
        ui::say_error(&failed.hint(hint).expect_err("made as an error above"));
        return Err(ExitCode::from(2));
    }
    if error.use_stderr() {
        // What nobody can read any more changes nothing about the flags.
        let _ = error.print();
        return Err(ExitCode::from(2));
    }
    match report::written(error.print().and_then(|()| stdout().flush())) {
        Err(failed) if !failed.is::<report::Closed>() => {
            ui::say_error(&failed);
            Err(ExitCode::from(2))
        }
        _ => Err(ExitCode::SUCCESS),
    }
}

/// `-1` behind a flag is its value, so that the error names both and not `-1` alone.
fn signed(command: Command) -> Command {
    let signed_arg = |arg: Arg| {
        let takes_values = arg.get_action().takes_values();
        if takes_values { arg.allow_negative_numbers(true) } else { arg }
    };
    command.mut_args(signed_arg).mut_subcommands(signed)
}

/// The first argument that is not UTF-8, by its place and with marks for what cannot be shown.
fn not_utf8() -> Option<String> {
    let (place, arg) = args_os().enumerate().find(|(_, arg)| arg.to_str().is_none())?;
    Some(format!("argument {place}, `{}`,", arg.to_string_lossy()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_consistent() {
        signed(Cli::command()).debug_assert();
    }
}
