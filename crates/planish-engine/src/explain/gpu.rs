//! A token on a GPU taken apart: each phase alone over all layers, and by stamps of the grids where one launch holds many.

use planish_device::Launch;
use planish_kernels::gpu::decode::model::{At as Place, LayerAt};
use planish_kernels::gpu::decode::stamped::Span;
use planish_kernels::gpu::planes::Planes;

use super::direct::{Direct, Times};
use super::step::{Demand, Piece, Plan, Step};
use super::{
    At, Barriers, Beside, Bounds, Effort, InPlace, Launches, Measured, ROUNDS_MIN, Row, cpu, left_over, token,
};
use crate::arch::Hyper;
use crate::error::{Error, Result};
use crate::generate::Flow;
use crate::gpu::{By, GpuDecoder, Route, Weights};
use crate::probes::Roof;

/// What is taken apart.
pub struct Subject<'s, 'd> {
    /// The decoder.
    pub decoder: &'s mut GpuDecoder<'d>,
    /// The weights that it was built with.
    pub weights: &'s Weights,
    /// Ceilings at the decoder's grid: what a launch costs that does nothing stands for the begin of each grid.
    pub roof: &'s Roof,
    /// Nanoseconds of the host.
    pub clock: &'s dyn Fn() -> f64,
    /// Whether to end early.
    pub stop: &'s dyn Fn() -> bool,
    /// Tokens drawn in a row, as `Effort` says.
    pub drawn: usize,
}

/// The host's time for a drawn token, nanoseconds.
#[derive(Default)]
struct Spent {
    queue: Vec<f64>,
    wait: Vec<f64>,
}

/// Nanoseconds of each row in one stamped step: of its phases and of the barriers behind them.
struct Inside {
    work: Vec<f64>,
    waiting: Vec<f64>,
}

/// Takes a token apart; the cache is filled up to the last position first.
pub fn measure(subject: &mut Subject<'_, '_>, effort: &Effort) -> Result<Measured> {
    let step = step(subject)?;
    let plan = step.plan();
    fill(subject, effort)?;
    let (position, rounds) = (effort.position, effort.rounds.max(ROUNDS_MIN));
    let mut spent = Spent::default();
    let (mut points, context, mut found) = (Vec::new(), subject.decoder.options().context, None);
    let drawn = subject.drawn;
    for at in cpu::descending(effort).into_iter().filter(|p| p + drawn < context) {
        points.push(attention(subject, (&step, &plan), at)?);
        if at == position {
            let apart = apart(subject, &mut spent, (&step, &plan), position, rounds)?;
            found = Some((apart, stamped(subject, &plan, position, effort.tokens)?));
        }
    }
    let ((alone, prefixes), (stamped, ratios)) = found.expect("the own position is among them");
    let rows: Vec<Row> = (0..plan.rows.len())
        .map(|r| row(&step, &plan, r, position, (&stamped, &alone.parts[r], prefixes[r])))
        .collect();
    let beside = beside(subject, stamped.is_some());
    let (attributed, unattributed_ns) = left_over(&alone.wholes, &parts(&alone, &stamped, &beside));
    let (groups, threads) = grid(subject.decoder);
    let barriers = subject.decoder.stamped(subject.weights)?.map_or(0, |(s, _)| s.barriers());
    let waits: Option<Vec<f64>> = stamped.as_ref().map(|all| all.iter().map(|i| i.waiting.iter().sum()).collect());
    Ok(Measured {
        path: subject.decoder.route().name().to_owned(),
        method: method(stamped.is_some()).to_owned(),
        position,
        token_ns: Bounds::of(&alone.wholes),
        stamped_ratio: ratios.map(|r| Bounds::of(&r)),
        rows,
        beside,
        attributed,
        unattributed_ns,
        launches: Launches {
            count: subject.decoder.launches(),
            queue_ns: Bounds::of(&spent.queue),
            wait_ns: Bounds::of(&spent.wait),
            probed_ns: None,
        },
        barriers: Barriers {
            count: barriers,
            width: groups,
            threads,
            probed_ns: None,
            stamped_ns: waits.map(|w| Bounds::of(&w)),
        },
        context: cpu::context(points, &step),
        token_samples_ns: alone.wholes,
    })
}

fn method(stamped: bool) -> &'static str {
    if stamped {
        "stamps of the first thread of every group behind phases and barriers; phases alone as nodes of a graph, their own \
         cost included"
    } else {
        "each phase alone over all layers as the path launches it, after whole tokens"
    }
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

/// Fills the cache with tokens that differ, up to the last position that is measured.
fn fill(subject: &mut Subject<'_, '_>, effort: &Effort) -> Result<()> {
    let context = subject.decoder.options().context;
    let drawn = subject.drawn;
    let deepest = effort.positions.iter().copied().filter(|p| p + drawn < context).fold(effort.position, usize::max);
    if effort.position + drawn >= context {
        let message = format!("position {} and {drawn} tokens behind it of a cache of {context}", effort.position);
        return Err(Error::request(message).with_hint("use a larger --context, or a smaller --position"));
    }
    subject.decoder.truncate(0);
    let vocab = subject.decoder.hyper().vocab;
    let ids: Vec<u32> = (0..deepest).map(|i| token(i, vocab)).collect();
    if !ids.is_empty() {
        subject.decoder.feed(&ids)?;
    }
    Ok(())
}

/// Nanoseconds of a token that is drawn with others behind and before it, at `position`; the next step is at it, too.
fn drawn(subject: &mut Subject<'_, '_>, spent: &mut Spent, position: usize) -> Result<f64> {
    let Subject { decoder, clock, drawn, .. } = subject;
    decoder.truncate(position);
    cpu::held(decoder.position(), position)?;
    let id = token(position, decoder.hyper().vocab);
    let start = clock();
    let n = decoder.draw(id, &By::Likeliest, *drawn, &mut |_| Ok(Flow::Continue))?;
    let ns = (clock() - start) / n as f64;
    let each = |time: std::time::Duration| time.as_nanos() as f64 / n as f64;
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
    position: usize,
    rounds: usize,
) -> Result<(Times, Vec<Bounds>)> {
    let (backend, stop, route) = (subject.decoder.machine().backend, subject.stop, subject.decoder.route());
    let record = |launches: &[Launch]| -> Result<_> {
        Ok(if route == Route::Launches { backend.record(launches)? } else { backend.record_graph(launches)? })
    };
    let mut token = || drawn(subject, spent, position);
    let mut direct = Direct { backend, record: &record, token: &mut token, stop };
    Ok((direct.alone(step, plan, rounds)?, direct.prefixes(step, plan, rounds)?))
}

/// What the stamps of several steps say, and how much longer those steps took than plain ones; none on a path without grids.
type InsideAll = (Option<Vec<Inside>>, Option<Vec<f64>>);

/// Stamped steps and, in turns, plain ones by the device's clock.
fn stamped(subject: &mut Subject<'_, '_>, plan: &Plan, position: usize, tokens: usize) -> Result<InsideAll> {
    let Some((stamped, ticks)) = subject.decoder.stamped(subject.weights)? else { return Ok((None, None)) };
    let backend = subject.decoder.machine().backend;
    let sequence = subject.decoder.record(&stamped.launches)?;
    let id = token(position, subject.decoder.hyper().vocab);
    let (mut all, mut ratios, mut bytes) = (Vec::new(), Vec::new(), vec![0; ticks.len]);
    subject.decoder.truncate(position);
    for i in 0..=tokens.max(ROUNDS_MIN) {
        if (subject.stop)() {
            return Err(Error::request("interrupted"));
        }
        subject.decoder.at(id)?;
        let plain = backend.time(std::slice::from_ref(subject.decoder.likeliest()), 1)?.ns;
        subject.decoder.at(id)?;
        let ns = backend.time(std::slice::from_ref(&sequence), 1)?.ns;
        // The first pair warms up.
        if i == 0 {
            continue;
        }
        backend.read(&ticks, &mut bytes)?;
        ratios.push(ns / plain);
        let mut inside = Inside { work: vec![0.0; plan.rows.len()], waiting: vec![0.0; plan.rows.len()] };
        let mut row = 0;
        for (span, ns) in stamped.read(&bytes) {
            match span {
                Span::Phase(name) => {
                    let known = plan.rows.iter().position(|r| r == short(name));
                    row =
                        known.ok_or_else(|| Error::request(format!("a stamped step has a phase {name} of its own")))?;
                    inside.work[row] += ns;
                }
                Span::Barrier => inside.waiting[row] += ns,
            }
        }
        all.push(inside);
    }
    Ok((Some(all), Some(ratios)))
}

/// The phase that grows with the position, alone at `position`, and whole tokens there.
fn attention(subject: &mut Subject<'_, '_>, (step, plan): (&Step, &Plan), position: usize) -> Result<At> {
    let grows = |row: usize| step.of(plan, row).any(|p| p.grows);
    let sequence = subject.decoder.record(&step.only(plan, grows))?;
    let backend = subject.decoder.machine().backend;
    let (mut attention, mut whole, mut spent) = (Vec::new(), Vec::new(), Spent::default());
    for _ in 0..ROUNDS_MIN {
        whole.push(drawn(subject, &mut spent, position)?);
        attention.push(backend.time(std::slice::from_ref(&sequence), 1)?.ns);
    }
    Ok(At { position, token_ns: Bounds::of(&whole), attention_ns: Bounds::of(&attention) })
}

fn row(
    step: &Step,
    plan: &Plan,
    at: usize,
    position: usize,
    (stamped, alone, prefix_ns): (&Option<Vec<Inside>>, &[f64], Bounds),
) -> Row {
    let in_place = stamped.as_ref().filter(|all| all.iter().any(|i| i.work[at] > 0.0)).map(|all| {
        let of = |value: &dyn Fn(&Inside) -> f64| Bounds::of(&all.iter().map(value).collect::<Vec<_>>());
        InPlace {
            wall_ns: of(&|i| i.work[at] + i.waiting[at]),
            work_ns: of(&|i| i.work[at]),
            waiting_ns: of(&|i| i.waiting[at]),
        }
    });
    let (alone_ns, demand) = (Bounds::of(alone), step.demand(plan, at, position));
    let time_ns = in_place.map_or(alone_ns, |i| i.wall_ns);
    let launches = plan.groups.iter().filter(|g| g.row == at).count();
    Row {
        name: plan.rows[at].clone(),
        about: step.about(plan, at),
        launches,
        barriers: launches,
        time_ns,
        in_place,
        alone_ns,
        prefix_ns,
        demand,
        gb_s: demand.read_bytes / time_ns.median.max(1.0),
        percent_of_read: None,
        percent_of_arithmetic: None,
        grows: step.of(plan, at).any(|p| p.grows),
    }
}

/// What the stamps of grids do not see: the begin of their launches.
fn beside(subject: &Subject<'_, '_>, stamped: bool) -> Vec<Beside> {
    let grids = subject.decoder.launches() - 1;
    let Some(each) = subject.roof.launch_ns.filter(|_| stamped) else { return Vec::new() };
    let ns = each * grids as f64;
    let time_ns = Bounds { median: ns, lo: ns, hi: ns, samples: 1 };
    vec![Beside { name: "launches of grids".to_owned(), by: format!("count {grids} times the probe"), time_ns }]
}

/// The samples of all parts: of rows in place where they have stamps, else alone.
fn parts(alone: &Times, stamped: &Option<Vec<Inside>>, beside: &[Beside]) -> Vec<Vec<f64>> {
    let row = |at: usize| match stamped {
        Some(all) if all.iter().any(|i| i.work[at] > 0.0) => all.iter().map(|i| i.work[at] + i.waiting[at]).collect(),
        _ => alone.parts[at].clone(),
    };
    let beside = beside.iter().map(|b| vec![b.time_ns.median]);
    (0..alone.parts.len()).map(row).chain(beside).collect()
}
