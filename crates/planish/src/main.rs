//! The `planish` command: parses flags, runs one command, turns its outcome into an exit code.

mod args;
mod cmd;
mod device;
mod fetch;
mod gpu;
mod hint;
mod home;
mod interrupt;
mod page;
mod presets;
mod report;
mod runner;
mod session;
mod tuned;
mod ui;
mod workbench;

use std::process::ExitCode;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use clap::{Args, Parser, Subcommand};

/// Makes LLM kernels fast on the machine they run on, and proves it.
#[derive(Parser)]
#[command(name = "planish", version, max_term_width = 100, after_help = AFTER_HELP)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

const AFTER_HELP: &str = "Exit codes: 0 done, 1 it ran but the answer is no, 2 it could not run, 130 interrupted.\n\
    Files live in PLANISH_HOME, else XDG_CACHE_HOME/planish, else ~/.cache/planish.";

/// Flags that every command takes.
#[derive(Args)]
struct Global {
    /// Print the report as JSON on standard output
    #[arg(long, global = true)]
    json: bool,
    /// Say nothing on standard error but errors
    #[arg(long, global = true)]
    quiet: bool,
}

#[derive(Subcommand)]
enum Command {
    Info(cmd::info::InfoArgs),
    Pull(cmd::pull::PullArgs),
    Store(cmd::store::StoreArgs),
    Run(cmd::run::RunArgs),
    Chat(cmd::chat::ChatArgs),
    Bench(cmd::bench::BenchArgs),
    Explain(cmd::explain::ExplainArgs),
    Verify(cmd::verify::VerifyArgs),
    Tune(cmd::tune::TuneArgs),
    Probe(cmd::probe::ProbeArgs),
    Sweep(cmd::sweep::SweepArgs),
    Ab(cmd::ab::AbArgs),
    #[command(hide = true)]
    Compile(cmd::compile::CompileArgs),
    #[command(hide = true)]
    Worker(cmd::worker::WorkerArgs),
    #[command(hide = true)]
    Dev(cmd::dev::DevArgs),
    Completions(cmd::completions::CompletionsArgs),
}

/// How a command that could run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// It did what was asked.
    Done,
    /// It ran, but the answer is no.
    No,
}

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Time since the command began.
fn since_start() -> Duration {
    START.elapsed()
}

fn main() -> ExitCode {
    LazyLock::force(&START);
    interrupt::install();
    let cli = match args::parse() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    match run(&cli) {
        Ok(Outcome::Done) => ExitCode::SUCCESS,
        Ok(Outcome::No) => ExitCode::from(1),
        Err(error) if error.is::<report::Closed>() => ExitCode::SUCCESS,
        Err(_) if interrupt::requested() => {
            ui::say("interrupted");
            ExitCode::from(130)
        }
        Err(error) => {
            ui::say_error(&error);
            ExitCode::from(2)
        }
    }
}

fn run(cli: &Cli) -> anyhow::Result<Outcome> {
    let ui = ui::Ui { quiet: cli.global.quiet, json: cli.global.json };
    match &cli.command {
        Command::Info(args) => cmd::info::run(args, ui),
        Command::Pull(args) => cmd::pull::run(args, ui),
        Command::Store(args) => cmd::store::run(args, ui),
        Command::Run(args) => cmd::run::run(args, ui),
        Command::Chat(args) => cmd::chat::run(args, ui),
        Command::Bench(args) => cmd::bench::run(args, ui),
        Command::Explain(args) => cmd::explain::run(args, ui),
        Command::Verify(args) => cmd::verify::run(args, ui),
        Command::Tune(args) => cmd::tune::run(args, ui),
        Command::Probe(args) => cmd::probe::run(args, ui),
        Command::Sweep(args) => cmd::sweep::run(args, ui),
        Command::Ab(args) => cmd::ab::run(args, ui),
        Command::Compile(args) => cmd::compile::run(args, ui),
        Command::Worker(args) => cmd::worker::run(args),
        Command::Dev(args) => cmd::dev::run(args, ui),
        Command::Completions(args) => cmd::completions::run(args),
    }
}
