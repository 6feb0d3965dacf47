//! `planish dev`: what developers of planish need and users do not.

mod picture;

use std::fs::{self, File};
use std::path::PathBuf;

use anyhow::{Context, Result, anyhow};
use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};
use planish_engine::shapes::random::Mix;
use planish_engine::shapes::{self, PRESETS};
use serde_json::json;

use crate::page::{self, Plot};
use crate::ui::Ui;
use crate::{Outcome, interrupt, report, since_start};

/// What developers need
#[derive(Args)]
pub struct DevArgs {
    #[command(subcommand)]
    command: DevCommand,
}

#[derive(Subcommand)]
enum DevCommand {
    WriteModel(WriteModelArgs),
    Plot(PlotArgs),
    Picture(PictureArgs),
}

/// Draw the picture of the README from its data
#[derive(Args)]
struct PictureArgs {
    /// The data
    data: PathBuf,
    /// The SVG file to write
    out: PathBuf,
}

/// Draw a plot that is given as JSON, as an SVG file that follows light and dark
#[derive(Args)]
struct PlotArgs {
    /// The plot: `intervals`, `roofline`, `stacked`, `fit` or `curves`
    data: PathBuf,
    /// Its width in pixels
    #[arg(long, value_name = "PIXELS", default_value_t = 860, value_parser = clap::value_parser!(u32).range(200..=4000))]
    width: u32,
    /// The file to write
    out: PathBuf,
}

/// Write a GGUF file of random weights with the true shape of a well-known model
#[derive(Args)]
struct WriteModelArgs {
    /// The shape
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(PRESETS.iter().map(|p| p.name)))]
    shapes: String,
    /// The types of its tensors
    #[arg(long, value_name = "TYPES", default_value = "q4_k_m", value_parser = mixes())]
    types: String,
    /// The same seed gives the same file
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Threads that make the weights up; by default one for each processor
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    threads: Option<u32>,
    /// The file to write
    out: PathBuf,
}

fn mixes() -> PossibleValuesParser {
    PossibleValuesParser::new(Mix::ALL.map(Mix::name))
}

/// Runs the developer's command.
pub fn run(args: &DevArgs, ui: Ui) -> Result<Outcome> {
    match &args.command {
        DevCommand::WriteModel(args) => write_model(args, ui),
        DevCommand::Plot(args) => draw(args),
        DevCommand::Picture(args) => {
            let text =
                fs::read_to_string(&args.data).with_context(|| format!("cannot read {}", args.data.display()))?;
            let svg = picture::draw(&text).map_err(|e| anyhow!("{}: {e}", args.data.display()))?;
            fs::write(&args.out, svg).with_context(|| format!("cannot write {}", args.out.display()))?;
            Ok(Outcome::Done)
        }
    }
}

fn draw(args: &PlotArgs) -> Result<Outcome> {
    let data = &args.data;
    let text = fs::read_to_string(data).with_context(|| format!("cannot read {}", data.display()))?;
    let plot: Plot = serde_json::from_str(&text).with_context(|| format!("{} is no plot", data.display()))?;
    fs::write(&args.out, plot.file(f64::from(args.width)))
        .with_context(|| format!("cannot write {}", args.out.display()))?;
    Ok(Outcome::Done)
}

/// Writes beside the wanted place first, so that no half-written model ever has its name.
fn write_model(args: &WriteModelArgs, ui: Ui) -> Result<Outcome> {
    page::must_have_folder(&args.out)?;
    let preset = shapes::preset(&args.shapes)?;
    let mix = Mix::from_name(&args.types).context("the types were checked")?;
    let threads =
        args.threads.map_or_else(|| std::thread::available_parallelism().map_or(1, usize::from), |n| n as usize);
    let part = args.out.with_extension("part");
    let total = preset.random_bytes(mix)?;
    let bar = ui.bytes_bar(&format!("writing {}", args.out.display()), total);
    let write = || -> Result<()> {
        let mut file = File::create(&part).with_context(|| format!("cannot create {}", part.display()))?;
        preset.write_random(mix, args.seed, threads, &mut file, &mut |done| bar.set_position(done))?;
        interrupt::check()?;
        fs::rename(&part, &args.out).with_context(|| format!("cannot write {}", args.out.display()))
    };
    let written = write();
    bar.finish_and_clear();
    if written.is_err() {
        // What is left of it is of no use, and may be what filled the disk.
        let _ = fs::remove_file(&part);
    }
    written?;
    let seconds = since_start().as_secs_f64();
    if ui.json {
        let (shapes, types, seed) = (&args.shapes, &args.types, args.seed);
        let file = args.out.display().to_string();
        let data = json!({ "file": file, "shapes": shapes, "types": types, "seed": seed, "tensor_bytes": total });
        report::print_json(&data)?;
    } else {
        report::print(&format!("{}: {} of weights in {seconds:.1} s\n", args.out.display(), report::bytes(total)))?;
    }
    Ok(Outcome::Done)
}
