//! `sample`: the fused sampler, one token a row of logits; bound by the latency of reading a row a few times.

mod reference;

use planish_device::Launch;
use planish_tune::{Config, Constraint, Rejection, Space};

use crate::cpu::sample::{Draw, uniform};
use crate::data::{self, Rng};
use crate::gpu::text::{KernelLaunch, PHILOX, Text, ints, knob};
use crate::gpu::{GpuOp, Tier};
use crate::op::{Arg, Attrs, Cost, Dtype, Expected, Fill, Machine, Op, OpCall, Problem, Shape};
use crate::reference::sample::{Order, Params, TokenCount, penalised};

/// Arguments: logits f32 `[rows][vocab]`, left with the penalties applied; history, three words an entry (row, token,
/// count, no token twice in a row; one of count 0 stands for none), `history` entries; settings `[rows][18]` words as
/// `settings` gives them; the tokens `[rows]`, `NONE` where every logit is -inf or one is +inf.
pub static OP: GpuOp = GpuOp {
    op: Op {
        name: "sample",
        about: "penalties, top-k, top-p, min-p, temperature, draw; bound by latency",
        check: |s| {
            s.check(&["rows", "vocab", "history"], &[])?;
            let (rows, vocab) = (s.size("rows"), s.size("vocab"));
            let legal = rows > 0 && (1..=1 << 22).contains(&vocab) && rows * vocab < 1 << 32;
            let legal = legal && s.size("history") < 1 << 30;
            legal
                .then_some(())
                .ok_or_else(|| format!("{s}: at least one row, 1 to 2^22 logits, fewer than 2^30 entries"))
        },
        space,
        cost: |s| {
            let n = (s.size("rows") * s.size("vocab")) as u64;
            Cost { flops: 5 * n, int8_ops: 0, read_bytes: 4 * n, write_bytes: 4 * s.size("rows") as u64 }
        },
        cases: |s| vec![s.clone().with("rows", 12), s.clone().with("rows", 1)],
        problem,
        steps,
        rotated: &[0],
        reduces: &["THREADS", "CANDIDATES"],
    },
    text: Text(&[PHILOX, ("sample.k", include_str!("sample.k"))]),
    shapes: &[
        "rows=2,vocab=1,history=0",
        "rows=9,vocab=13,history=27",
        "rows=9,vocab=337,history=60",
        "rows=7,vocab=1999,history=0",
    ],
};

/// Written where no token can be drawn.
pub const NONE: u32 = u32::MAX;

/// What a row asks of the sampler, in the words that the kernel reads.
pub fn settings(params: &Params, draw: Draw) -> [u32; 18] {
    let heat = if params.order == Order::TemperatureFirst { params.temperature } else { 1.0 };
    let reciprocal = |x: f32| (1.0 / x).min(f32::MAX).to_bits();
    // Exact for every f32 from 2^-40 up; all ones is off.
    let top_p = if params.top_p < 1.0 { (f64::from(params.top_p) * f64::exp2(64.0)) as u64 } else { u64::MAX };
    let min_p = if params.min_p > 0.0 { params.min_p.ln() * heat } else { f32::NEG_INFINITY };
    let [seed, sequence, step] = [draw.seed, draw.sequence, draw.step].map(|x| [x as u32, (x >> 32) as u32]);
    [
        params.temperature.to_bits(),
        u32::try_from(params.top_k).unwrap_or(u32::MAX),
        (top_p >> 32) as u32,
        top_p as u32,
        min_p.to_bits(),
        u32::from(params.order == Order::TemperatureFirst),
        heat.to_bits(),
        reciprocal(heat),
        reciprocal(params.temperature),
        params.repetition.to_bits(),
        params.frequency.to_bits(),
        params.presence.to_bits(),
        seed[0],
        seed[1],
        sequence[0],
        sequence[1],
        step[0],
        step[1],
    ]
}

/// Threadgroup bytes besides the candidates: two words a thread, six a SIMD group.
const FIXED_SHARED: usize = 4 * (2 * 1024 + 6 * 32);

fn space(_: &Shape, machine: &Machine<'_>) -> Space {
    let shared = machine.backend.limits().shared_bytes as usize;
    Space {
        params: vec![
            ints("THREADS", "loads in flight against longer reductions", &[32, 64, 128, 256, 512, 1024]),
            ints("CANDIDATES", "rows read again and again against threadgroup memory", &[64, 512, 1024, 2048]),
        ],
        constraints: vec![Constraint::new(format!("candidates fit {shared} threadgroup bytes"), move |c| {
            knob(c, "CANDIDATES").is_ok_and(|n| 8 * n + FIXED_SHARED <= shared)
        })],
        default: Config::new().with("THREADS", Tier::on(machine).pick([256, 512, 512, 512])).with("CANDIDATES", 1024),
    }
}

fn steps(call: &OpCall, config: &Config, machine: &Machine<'_>) -> Result<Vec<Launch>, Rejection> {
    let size = |n: &str| call.shape.size(n);
    let (threads, candidates) = (knob(config, "THREADS")?, knob(config, "CANDIDATES")?);
    let launch = |entry, groups| KernelLaunch {
        text: &OP.text,
        entry,
        constants: vec![("THREADS", threads as i64), ("CANDIDATES", candidates as i64)],
        params: vec![size("vocab") as u32, size("history") as u32],
        groups,
        threads,
        shared_bytes: 0,
    };
    let [logits, history, settings, drawn] = &call.args[..] else {
        return Err(Rejection::Constraint(format!("sample takes 4 arguments, not {}", call.args.len())));
    };
    let mut launches = Vec::new();
    if size("history") > 0 {
        let args = vec![logits.clone(), history.clone(), settings.clone()];
        launches.push(launch("sample_penalties", size("history").div_ceil(threads)).on(machine, args)?);
    }
    let args = vec![logits.clone(), settings.clone(), drawn.clone()];
    launches.push(launch("sample_draw", size("rows")).on(machine, args)?);
    Ok(launches)
}

/// Requests of every kind, of which the rows take some in turn.
fn requests() -> Vec<Params> {
    let base = Params { temperature: 0.8, ..Params::default() };
    let mut all = vec![
        Params { temperature: 0.0, ..base },
        Params { temperature: 1.7, repetition: 1.3, frequency: 0.2, presence: 0.4, ..base },
        Params { temperature: 1e-44, ..base },
    ];
    for order in [Order::TemperatureLast, Order::TemperatureFirst] {
        let filters = [(0, 1.0, 0.0), (1, 1.0, 0.0), (40, 0.95, 0.05), (7, 0.6, 0.0), (0, 0.9, 0.0), (0, 0.3, 0.02)];
        let more = [(0, 1.0, 0.1), (500, 1.0, 0.0), (100_000, 0.999, 0.0), (3, 0.0, 0.0), (50, 0.999, 0.0)];
        for (top_k, top_p, min_p) in filters.into_iter().chain(more) {
            all.push(Params { order, top_k, top_p, min_p, ..base });
        }
    }
    all
}

/// A row of logits: flat or peaked; extreme, one of many ties, of few that are not -inf, of NaN, huge, or with none.
fn row(rng: &mut Rng, vocab: usize, fill: Fill) -> Vec<f32> {
    let kind = rng.below(8);
    let spread = [0.1, 1.0, 2.0, 4.0][rng.below(4) as usize];
    let mut x: Vec<f32> = (0..vocab).map(|_| spread * rng.normal()).collect();
    let keep = rng.below(vocab as u64) as usize;
    let every = |x: &mut [f32], f: &dyn Fn(f32, usize) -> f32| {
        x.iter_mut().enumerate().for_each(|(i, v)| *v = f(*v, i));
    };
    if fill == Fill::Extreme {
        match kind {
            0 | 1 => every(&mut x, &|v, _| (2.0 * v).round() + 0.0),
            2 => every(&mut x, &|v, i| if i == keep { v } else { f32::NEG_INFINITY }),
            3 => every(&mut x, &|v, i| if i % 3 == 1 && i != keep { f32::NAN } else { v }),
            4 => every(&mut x, &|v, i| if i % 50 == keep % 50 { v * 1e4 } else { v * 1e-3 }),
            5 => every(&mut x, &|v, i| if i == keep { f32::INFINITY } else { v }),
            6 => every(&mut x, &|_, i| if i % 2 == 0 { f32::NEG_INFINITY } else { f32::NAN }),
            _ => every(&mut x, &|_, _| 1.5),
        }
    }
    x
}

fn problem(shape: &Shape, seed: u64, fill: Fill) -> Problem {
    let (rows, vocab, entries) = (shape.size("rows"), shape.size("vocab"), shape.size("history"));
    let (mut rng, requests) = (Rng::new(seed), requests());
    let (mut logits, mut penalised_logits) = (Vec::new(), Vec::new());
    let (mut history, mut words, mut drawn) = (Vec::new(), Vec::new(), Vec::new());
    for r in 0..rows {
        let x = row(&mut rng, vocab, fill);
        let params = requests[(r + 9 * seed as usize) % requests.len()];
        // The entries are spread over the rows, each row's tokens being distinct.
        let count = entries * (r + 1) / rows - entries * r / rows;
        let first = rng.below(vocab as u64) as usize;
        let seen: Vec<TokenCount> = (0..count)
            .map(|i| TokenCount { token: ((first + i) % vocab) as u32, count: 1 + rng.below(3) as u32 })
            .collect();
        history.extend(seen.iter().flat_map(|h| [r as u32, h.token, h.count]));
        let mut after = x.clone();
        for h in &seen {
            after[h.token as usize] = penalised(after[h.token as usize], h.count, &params);
        }
        let mut draw = Draw { seed: seed << 17 | 5, sequence: 7 + r as u64, step: 0 };
        let token = loop {
            if fill == Fill::Unjudged {
                break None;
            }
            match reference::draw(&after, &[], &params, uniform(draw)) {
                Ok(token) => break token,
                Err(()) => draw.step += 1,
            }
        };
        words.extend(settings(&params, draw));
        drawn.push(f64::from(token.unwrap_or(NONE)));
        logits.extend(x);
        penalised_logits.extend(after);
    }
    let exact = penalised_logits.iter().map(|v| f64::from(*v)).collect();
    Problem {
        shape: shape.clone(),
        attrs: Attrs::new(),
        args: vec![
            Arg::InOut(data::bytes(&logits), Expected::f32(exact, &penalised_logits)),
            Arg::In(data::bytes_u32(&history)),
            Arg::In(data::bytes_u32(&words)),
            Arg::Out(Expected::exact(Dtype::U32, drawn)),
        ],
        label: format!("{fill:?} seed={seed}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::isa::Isa;
    use crate::cpu::sample::{Workspace, sample};

    #[test]
    fn the_reference_and_the_cpu_sampler_draw_the_same_tokens() {
        let (mut rng, mut decided) = (Rng::new(11), 0);
        for (i, params) in requests().into_iter().cycle().take(200).enumerate() {
            let fill = if i % 2 == 0 { Fill::Random } else { Fill::Extreme };
            let x = row(&mut rng, 700, fill);
            let draw = Draw { seed: 3, sequence: 1, step: i as u64 };
            let got = sample(Isa::Portable, (&mut x.clone(), &[]), &params, draw, &mut Workspace::new(700)).ok();
            if let Ok(want) = reference::draw(&x, &[], &params, uniform(draw)) {
                assert_eq!(got, want, "{params:?} {fill:?} {i}");
                decided += 1;
            }
        }
        assert!(decided > 180, "only {decided} of 200 draws were decided");
    }
}
