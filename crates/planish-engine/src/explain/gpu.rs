//! A token on a GPU taken apart: each phase alone over all layers, and by stamps of the grids where one launch holds many.

use std::time::Duration;

use planish_device::{Launch, Sequence};
use planish_kernels::gpu::decode::model::{At as Place, LayerAt};
use planish_kernels::gpu::decode::stamped::{Span, Stamped};
use planish_kernels::gpu::planes::Planes;

use super::direct::{Direct, Times};
use super::inside::{Inside, row};
use super::position::{context, descending, fill, held};
use super::step::{Demand, Piece, Plan, Step};
use super::{At, Barriers, Beside, Bounds, Effort, Launches, Measured, ROUNDS_MIN, Row, left_over, token};
use crate::arch::Hyper;
use crate::decoder::DEADLINE;
use crate::error::{Error, Result};
use crate::generate::Flow;
use crate::gpu::{By, GpuDecoder, Route, Weights};

/// What is taken apart.
pub struct Subject<'s, 'd> {
    /// The decoder.
    pub decoder: &'s mut GpuDecoder<'d>,
    /// The weights that it was built with.
    pub weights: &'s Weights,
    /// Nanoseconds of the host.
    pub clock: &'s dyn Fn() -> f64,
    /// Whether to end early.
    pub stop: &'s dyn Fn() -> bool,
}

/// The host's time for a drawn token, nanoseconds.
#[derive(Default)]
struct Spent {
    queue: Vec<f64>,
    wait: Vec<f64>,
}

/// Takes a token apart; the cache is filled up to the last position first.
pub fn measure(subject: &mut Subject<'_, '_>, effort: &Effort) -> Result<Measured> {
    let step = step(subject)?;
    let plan = step.plan();
    let sizes = (subject.decoder.hyper().vocab, subject.decoder.options().context);
    fill(subject.decoder, effort, sizes, effort.drawn)?;
    let (position, mut spent, mut points, mut found) = (effort.position, Spent::default(), Vec::new(), None);
    for at in descending(effort) {
        points.push(attention(subject, (&step, &plan), at, effort.drawn)?);
        if at == position {
            let apart = apart(subject, &mut spent, (&step, &plan), effort)?;
            found = Some((apart, stamped(subject, (&step, &plan), position, effort.tokens)?));
        }
    }
    let ((alone, prefixes), stamped) = found.expect("the own position is among them");
    let inside: Vec<&Inside> = stamped.iter().flat_map(|s| &s.inside).collect();
    let rows: Vec<Row> = (0..plan.rows.len())
        .map(|r| row((&step, &plan), r, position, (&inside, &alone.parts[r], prefixes[r])))
        .collect();
    let (attributed, unattributed_ns) = left_over(&alone.wholes, &parts(&alone, &inside));
    let over = |of: &dyn Fn(&Inside) -> f64| Bounds::of(&inside.iter().map(|i| of(i)).collect::<Vec<_>>());
    let (groups, threads) = grid(subject.decoder);
    let (rest, grids) = (over(&|i| i.rest), stamped.as_ref().is_some_and(|s| s.by == Clock::Kernels));
    let waiting = over(&|i| i.wall.iter().sum::<f64>() - i.work.iter().sum::<f64>());
    Ok(Measured {
        path: subject.decoder.route().name().to_owned(),
        method: stamped.as_ref().map_or(ALONE, |s| s.by.method()).to_owned(),
        position,
        token_ns: Bounds::of(&alone.wholes),
        stamped_ratio: stamped.as_ref().map(|s| Bounds::of(&s.ratios)),
        rows,
        beside: stamped.iter().map(|s| s.by.beside(rest)).collect(),
        attributed,
        unattributed_ns,
        launches: Launches {
            count: subject.decoder.launches(),
            queue_ns: Bounds::of(&spent.queue),
            wait_ns: Bounds::of(&spent.wait),
            probed_ns: None,
            stamped_ns: grids.then_some(rest),
        },
        barriers: Barriers {
            count: subject.decoder.stamped(subject.weights)?.map_or(0, |(s, _)| s.barriers()),
            width: groups,
            threads,
            probed_ns: None,
            stamped_ns: grids.then_some(waiting),
        },
        context: context(points, &step),
        token_samples_ns: alone.wholes,
    })
}

/// Whose clock the stamps of a step are of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Clock {
    /// That which kernels read.
    Kernels,
    /// The machine's own at the borders of launches.
    Machine,
}

const ALONE: &str = "each phase alone over all layers as the path launches it, after whole tokens";

impl Clock {
    fn method(self) -> &'static str {
        match self {
            Clock::Kernels => {
                "stamps of the first thread of every group behind phases, barriers and launches, from one drawn token to \
                 the next; phases alone as nodes of a graph, their own cost included"
            }
            Clock::Machine => "times that the machine keeps of each launch, in steps beside plain ones in turns",
        }
    }

    /// What a step takes outside of its rows.
    fn beside(self, time_ns: Bounds) -> Beside {
        let (name, by) = match self {
            Clock::Kernels => ("launches", "stamps, from the end of each launch to the begin of the next"),
            Clock::Machine => ("handing over", "the host's clock, outside of the step's own begin and end"),
        };
        Beside { name: name.to_owned(), by: by.to_owned(), time_ns }
    }
}

/// What stamps say of several steps.
struct Stamps {
    by: Clock,
    inside: Vec<Inside>,
    /// How many times as long those steps took as plain ones.
    ratios: Vec<f64>,
}

/// Groups and threads of the decoder's grid.
pub fn grid(decoder: &GpuDecoder<'_>) -> (usize, usize) {
    let of = |name| decoder.chosen().config.int(name).and_then(|n| usize::try_from(n).ok()).unwrap_or(1);
    (of("BLOCKS"), of("THREADS"))
}

/// Bytes that a token at `position` reads: weights, and keys and values.
pub fn read_bytes(decoder: &GpuDecoder<'_>, weights: &Weights, position: usize) -> f64 {
    let layers = weights.at.layers.iter().enumerate();
    let all = layers.flat_map(|(i, l)| LAYER.iter().map(move |phase| (phase, i, l)));
    let read: f64 =
        all.map(|(phase, i, l)| layer_piece(phase, decoder.hyper(), (l, i), false).demand(position).read_bytes).sum();
    read + matrix(&weights.at.head, decoder.hyper().vocab, decoder.hyper().hidden, false).read_bytes
}

/// Names of the phases of a layer.
const LAYER: [&str; 5] = ["qkv", "attend", "out", "up", "down"];

fn matrix(at: &Place, rows: usize, cols: usize, int8: bool) -> Demand {
    let bytes = Planes { ty: at.ty, rows, cols }.bytes() as f64;
    let ops = 2.0 * (rows * cols) as f64;
    let (flops, int8_ops) = if int8 && !at.ty.is_float() { (0.0, ops) } else { (ops, 0.0) };
    Demand { read_bytes: bytes, write_bytes: 4.0 * rows as f64, flops, int8_ops }
}

fn layer_piece(phase: &str, h: &Hyper, (l, index): (&LayerAt, usize), int8: bool) -> Piece {
    let window = h.windows.get(index).copied().unwrap_or(0);
    let (wide, kv) = (h.heads * h.head_dim, h.kv_heads * h.head_dim);
    let (fixed, a_key, about) = match phase {
        "qkv" => {
            let [q, k, v] = &l.qkv;
            let all = matrix(q, wide, h.hidden, int8) + matrix(k, kv, h.hidden, int8) + matrix(v, kv, h.hidden, int8);
            (all, Demand::default(), format!("{} {}x{} and norm", q.ty, wide + 2 * kv, h.hidden))
        }
        "attend" => {
            let flops = 4.0 * wide as f64;
            let a_key = Demand { read_bytes: 4.0 * kv as f64, flops, ..Demand::default() };
            (Demand::default(), a_key, format!("{} heads of {} on {}, f16", h.heads, h.head_dim, h.kv_heads))
        }
        "out" => (matrix(&l.out, h.hidden, wide, int8), Demand::default(), format!("{} {}x{wide}", l.out.ty, h.hidden)),
        "up" => {
            let about = format!("{} {}x{} and norm", l.gate_up.ty, 2 * h.ffn, h.hidden);
            (matrix(&l.gate_up, 2 * h.ffn, h.hidden, int8), Demand::default(), about)
        }
        _ => {
            (matrix(&l.down, h.hidden, h.ffn, int8), Demand::default(), format!("{} {}x{}", l.down.ty, h.hidden, h.ffn))
        }
    };
    let grows = a_key != Demand::default();
    Piece { name: phase.to_owned(), about, fixed, a_key, window, grows }
}

/// The phases with what each must do.
fn step(subject: &Subject<'_, '_>) -> Result<Step> {
    let (decoder, weights) = (&*subject.decoder, subject.weights);
    let launches = decoder.phases(weights)?;
    let (hyper, at) = (decoder.hyper(), &weights.at);
    let int8 = decoder.options().activations == planish_kernels::weight::Activations::Int8;
    let mut seen = 0;
    let piece = |launch: &Launch| {
        let name = short(&launch.program.name);
        if LAYER.contains(&name) {
            let layer = seen / LAYER.len();
            seen += 1;
            return layer_piece(name, hyper, (&at.layers[layer], layer), int8);
        }
        let (fixed, about) = match name {
            "embed" => (matrix(&at.embedding, 1, hyper.hidden, false), format!("a row of {}", at.embedding.ty)),
            "head" => {
                let about = format!("{} {}x{} and norm", at.head.ty, hyper.vocab, hyper.hidden);
                (matrix(&at.head, hyper.vocab, hyper.hidden, int8), about)
            }
            _ => (Demand::default(), "the likeliest token".to_owned()),
        };
        Piece { name: name.to_owned(), about, fixed, a_key: Demand::default(), window: 0, grows: false }
    };
    let pieces = launches.iter().map(piece).collect();
    Ok(Step { launches, pieces })
}

/// A phase by the name of its kernel.
fn short(kernel: &str) -> &str {
    kernel.strip_prefix("decode_").unwrap_or(kernel)
}

/// Nanoseconds of a token that is drawn with others behind and before it, at `position`; the next step is at it, too.
fn drawn(subject: &mut Subject<'_, '_>, spent: &mut Spent, position: usize, drawn: usize) -> Result<f64> {
    let Subject { decoder, clock, .. } = subject;
    decoder.truncate(position);
    held(decoder.position(), position)?;
    let id = token(position, decoder.hyper().vocab);
    let start = clock();
    let n = decoder.draw(id, &By::Likeliest, drawn, &mut |_| Ok(Flow::Continue))?;
    let ns = (clock() - start) / n as f64;
    let each = |time: Duration| time.as_nanos() as f64 / n as f64;
    spent.queue.push(each(decoder.spent().submitting));
    spent.wait.push(each(decoder.spent().waiting));
    decoder.truncate(position);
    decoder.at(id)?;
    Ok(ns)
}

/// Every row alone and every prefix, after whole tokens; on a path of grids phases are nodes of a graph.
fn apart(
    subject: &mut Subject<'_, '_>,
    spent: &mut Spent,
    (step, plan): (&Step, &Plan),
    effort: &Effort,
) -> Result<(Times, Vec<Bounds>)> {
    let (backend, stop, route) = (subject.decoder.machine().backend, subject.stop, subject.decoder.route());
    let record = |launches: &[Launch]| -> Result<_> {
        Ok(if route == Route::Launches { backend.record(launches)? } else { backend.record_graph(launches)? })
    };
    let mut token = || drawn(subject, spent, effort.position, effort.drawn);
    let (mut direct, rounds) =
        (Direct { backend, record: &record, token: &mut token, stop }, effort.rounds.max(ROUNDS_MIN));
    Ok((direct.alone(step, plan, rounds)?, direct.prefixes(step, plan, rounds)?))
}

/// Stamped steps and plain ones in turns, after a pair that warms up: by kernels on a path of grids, else by the machine
/// where it keeps times of launches; none where neither does.
fn stamped(
    subject: &mut Subject<'_, '_>,
    (step, plan): (&Step, &Plan),
    position: usize,
    tokens: usize,
) -> Result<Option<Stamps>> {
    let backend = subject.decoder.machine().backend;
    let kernels = subject.decoder.stamped(subject.weights)?;
    let (by, sequence) = match &kernels {
        Some((stamped, _)) => (Clock::Kernels, Some(subject.decoder.record(&stamped.launches)?)),
        None => (Clock::Machine, backend.record_stamped(&step.launches)?),
    };
    let Some(sequence) = sequence else { return Ok(None) };
    let id = token(position, subject.decoder.hyper().vocab);
    // Of steps in a row the last is the one at the position.
    let steps = if kernels.is_some() { Stamped::STEPS } else { 1 };
    subject.decoder.truncate((position + 1).saturating_sub(steps));
    let mut stamps = Stamps { by, inside: Vec::new(), ratios: Vec::new() };
    for i in 0..=tokens.max(ROUNDS_MIN) {
        if (subject.stop)() {
            return Err(Error::request("interrupted"));
        }
        subject.decoder.at(id)?;
        let plain = backend.time(std::slice::from_ref(subject.decoder.likeliest()), steps as u32)?.ns;
        subject.decoder.at(id)?;
        let (inside, ns) = match &kernels {
            Some((stamped, ticks)) => {
                let ns = backend.time(std::slice::from_ref(&sequence), 1)?.ns / steps as f64;
                let mut bytes = vec![0; ticks.len];
                backend.read(ticks, &mut bytes)?;
                (by_kernels(plan, stamped.read(&bytes))?, ns)
            }
            None => by_machine(subject, &sequence, (step, plan))?,
        };
        if i > 0 {
            stamps.inside.push(inside);
            stamps.ratios.push(ns / plain);
        }
    }
    Ok(Some(stamps))
}

/// The spans of a step by the rows of `plan`.
fn by_kernels(plan: &Plan, spans: Vec<(Span, f64)>) -> Result<Inside> {
    let rows = plan.rows.len();
    let mut inside = Inside { wall: vec![0.0; rows], work: vec![0.0; rows], rest: 0.0 };
    let mut row = 0;
    for (span, ns) in spans {
        match span {
            Span::Phase(name) => {
                let known = plan.rows.iter().position(|r| r == short(name));
                row = known.ok_or_else(|| Error::request(format!("a stamped step has a phase {name} of its own")))?;
                inside.work[row] += ns;
                inside.wall[row] += ns;
            }
            Span::Barrier => inside.wall[row] += ns,
            Span::Launch => inside.rest += ns,
        }
    }
    Ok(inside)
}

/// One step by the machine's times, and its nanoseconds from its own begin to its end.
fn by_machine(subject: &Subject<'_, '_>, sequence: &Sequence, (step, plan): (&Step, &Plan)) -> Result<(Inside, f64)> {
    let backend = subject.decoder.machine().backend;
    let start = (subject.clock)();
    backend.wait(backend.submit(sequence)?, DEADLINE)?;
    let whole = (subject.clock)() - start;
    let stamps = backend.stamps(sequence)?;
    let stamps = stamps.ok_or_else(|| Error::request("the machine kept no times of a stamped sequence"))?;
    let mut inside = Inside::of(&stamps, &step.launches, plan);
    inside.rest += whole - stamps.total_ns;
    Ok((inside, stamps.total_ns))
}

/// The phase that grows with the position, alone at `position`, and whole tokens there.
fn attention(
    subject: &mut Subject<'_, '_>,
    (step, plan): (&Step, &Plan),
    position: usize,
    tokens: usize,
) -> Result<At> {
    let grows = |row: usize| step.of(plan, row).any(|p| p.grows);
    let sequence = subject.decoder.record(&step.only(plan, grows))?;
    let backend = subject.decoder.machine().backend;
    let (mut attention, mut whole, mut spent) = (Vec::new(), Vec::new(), Spent::default());
    for _ in 0..ROUNDS_MIN {
        whole.push(drawn(subject, &mut spent, position, tokens)?);
        attention.push(backend.time(std::slice::from_ref(&sequence), 1)?.ns);
    }
    Ok(At { position, token_ns: Bounds::of(&whole), attention_ns: Bounds::of(&attention) })
}

/// The samples of all parts: of rows in place where there are stamps of them, else alone; then what lies beside.
fn parts(alone: &Times, stamped: &[&Inside]) -> Vec<Vec<f64>> {
    let row = |at: usize| {
        if stamped.iter().any(|i| i.work[at] > 0.0) {
            stamped.iter().map(|i| i.wall[at]).collect()
        } else {
            alone.parts[at].clone()
        }
    };
    let rest: Vec<f64> = stamped.iter().map(|i| i.rest).collect();
    (0..alone.parts.len()).map(row).chain((!rest.is_empty()).then_some(rest)).collect()
}
