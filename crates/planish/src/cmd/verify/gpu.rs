//! The same comparison on a GPU: every path against the expected logits and, bit for bit, against each other.

use anyhow::{Context, Result, anyhow};
use planish_engine::gpu::{Options, Route};
use planish_engine::verify::{self, Dump, ExpectedFile, Path as Feed, Verdict};
use planish_kernels::weight::Activations;
use planish_tune::{Config, Space};
use serde_json::{Value, json};

use super::{VerifyArgs, line, write};
use crate::gpu::GpuSession;
use crate::hint::WithHint;
use crate::ui::Ui;
use crate::{Outcome, interrupt, report};

/// Caches are multiples of this, so that models of one shape share compiled kernels.
const CONTEXT_STEP: usize = 256;

/// One way to run: a path, values that differ from the configuration, and a name for both.
struct Way {
    route: Route,
    pinned: Config,
}

impl Way {
    fn name(&self) -> String {
        let values = if self.pinned.is_empty() { String::new() } else { format!(" {}", self.pinned) };
        format!("{}{values}", self.route.name())
    }
}

/// Feeds every prompt in every way, prints a line for each and judges.
pub fn run(args: &VerifyArgs, model: &str, expected: &ExpectedFile, ui: Ui) -> Result<Outcome> {
    let session = GpuSession::open(model, &args.session, ui)?;
    // A cache of little more than the prompts need: the host executor carries all of it into every launch.
    let longest = expected.prompts.iter().map(|p| p.ids.len() + p.greedy_ids.len()).max().unwrap_or(1);
    let context = longest.next_multiple_of(CONTEXT_STEP).min(session.file.hyper.context);
    let options = Options { context, ..session.options };
    let mode = if options.activations == Activations::F32 { "f32_kv16" } else { "int8_kv16" };
    let (mut verdicts, mut data, mut illegal) = (Vec::new(), Vec::new(), Vec::new());
    let (space, chosen) = session.space()?;
    for pinned in widths(&space, &chosen, args.every_width) {
        let mut first: Option<(String, Vec<Dump>)> = None;
        for route in options.route.map_or(Route::ALL.to_vec(), |r| vec![r]) {
            let way = Way { route, pinned: pinned.clone() };
            if let Some(why) = not_legal(&space, &chosen, &way) {
                illegal.push(format!("{}: {why}", way.name()));
                continue;
            }
            let mut decoder = session.decoder_with(Options { route: Some(route), ..options }, &way.pinned)?;
            let mut dumps = Vec::new();
            for (i, prompt) in expected.prompts.iter().enumerate() {
                // Prefill is one text for all ways, so the first of them shows it.
                let once = first.is_none() && pinned.is_empty();
                let feeds = if once { vec![Feed::Prefill, Feed::Steps] } else { vec![Feed::Steps] };
                for feed in feeds {
                    interrupt::check()?;
                    let context = || format!("prompt {} on {}", prompt.name, way.name());
                    let dump = verify::run(&mut decoder, prompt, feed).with_context(context)?;
                    if let (Some(folder), None) = (&args.dump, &first) {
                        write(&folder.join(if feed == Feed::Steps { "steps" } else { "" }), &prompt.name, &dump)?;
                    }
                    let mut verdict = verify::judge(prompt, &dump, mode, feed).with_context(context)?;
                    if feed == Feed::Steps {
                        let other = first.as_ref().and_then(|(name, dumps)| Some((name, differs(&dumps[i], &dump)?)));
                        verdict.reasons.extend(other.map(|(name, what)| format!("{what} from {name}")));
                        dumps.push(dump);
                    }
                    say(&expected.model, &way, &verdict, ui)?;
                    data.push(json!({
                        "device": session.device.to_string(), "way": way.name(), "config": decoder.chosen().config,
                        "verdict": verdict,
                    }));
                    verdicts.push(verdict);
                }
            }
            first.get_or_insert((way.name(), dumps));
        }
    }
    let done = Done { verdicts, data, illegal };
    conclude(&session, mode, &done, args.not_worse_than_llama, ui)
}

/// No change, and with `every` each other value of the parameters that are widths, one at a time.
fn widths(space: &Space, chosen: &Config, every: bool) -> Vec<Config> {
    let mut all = vec![Config::new()];
    let is_width = |name: &str| name == "THREADS" || name.starts_with("ROWS");
    for param in space.params.iter().filter(|p| every && is_width(p.name)) {
        let others = param.values.iter().filter(|v| chosen.get(param.name) != Some(v));
        all.extend(others.map(|v| Config::new().with(param.name, v.clone())));
    }
    all
}

/// Why the space does not allow this way, if it does not.
fn not_legal(space: &Space, chosen: &Config, way: &Way) -> Option<String> {
    space.violated(&chosen.clone().overlaid(&way.pinned).with("PATH", way.route.name()))
}

/// In how many values two dumps differ, if they do.
fn differs(a: &Dump, b: &Dump) -> Option<String> {
    let (count, of) = a.apart(b);
    (count > 0).then(|| format!("{count} of {of} logits differ in bits"))
}

fn say(model: &str, way: &Way, verdict: &Verdict, ui: Ui) -> Result<()> {
    if ui.json { Ok(()) } else { report::print(&line(&format!("{model} on {}", way.name()), verdict)) }
}

/// All that was judged.
struct Done {
    verdicts: Vec<Verdict>,
    /// The verdicts with the ways that they are of.
    data: Vec<Value>,
    /// Ways that the space forbids, with why.
    illegal: Vec<String>,
}

fn conclude(session: &GpuSession, mode: &str, done: &Done, ask_llama: bool, ui: Ui) -> Result<Outcome> {
    let failed = done.verdicts.iter().filter(|v| !v.reasons.is_empty()).count();
    let (passed, llama) = (done.verdicts.len() - failed, verify::not_worse_than_llama(&done.verdicts));
    if ask_llama && llama.is_none() {
        return Err(anyhow!("the expected file has no deviation of llama.cpp to compare with"))
            .hint("run without --not-worse-than-llama");
    }
    if ui.json {
        report::print_json(&json!({
            "device": session.device.to_string(), "label": session.label(), "mode": mode, "passed": passed,
            "failed": failed, "over_llama": llama.map(|l| l.0), "not_worse_than_llama": llama.map(|l| l.1),
            "not_legal": done.illegal, "verdicts": done.data,
        }))?;
    } else {
        done.illegal.iter().try_for_each(|what| report::print(&format!("not legal: {what}\n")))?;
        let mean = llama.map_or(String::new(), |(mean, _)| format!("; rms {mean:.2}x llama.cpp's in the mean"));
        let label = session.label();
        report::print(&format!("{mode} on {}, {label}: {passed} passed, {failed} failed{mean}\n", session.device))?;
    }
    let worse = ask_llama && llama.is_some_and(|(_, holds)| !holds);
    Ok(if failed == 0 && passed > 0 && !worse { Outcome::Done } else { Outcome::No })
}
