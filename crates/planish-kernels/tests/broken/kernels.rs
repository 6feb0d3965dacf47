//! Plain kernels of a few ops, right or with one planted fault each, that run on the ops' own problems.

use std::sync::atomic::{AtomicU32, Ordering};

use half::f16;
use planish_device::{Backend, Call, Launch, Native, Params, Plain, Slice, Source};
use planish_kernels::cpu::kv::KvLayout;
use planish_kernels::gate::Case;
use planish_kernels::op::Op;
use planish_kernels::step::Step;
use planish_tune::Rejection;

/// What is wrong with a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing, and it takes its time.
    Slow,
    /// Nothing.
    Nothing,
    /// Does nothing at all.
    NoOp,
    /// Computes the first half of the rows.
    HalfTheRows,
    /// Computes whole groups of eight rows.
    MissedRowTail,
    /// Sums whole groups of 32 columns.
    MissedColumnTail,
    /// Writes in its first run only.
    Stale,
    /// Gives back what its first run computed.
    Replay,
    /// NaN where the number of rows is odd.
    NanOnOddRows,
    /// Writes one value past the end.
    PastTheEnd,
    /// Writes one value before the start.
    BeforeTheStart,
    /// Sums one value past the end of the input.
    ReadsPastTheEnd,
    /// Sums pairs of tiles of 32 columns: the last one too where the number of tiles is odd.
    RoundsUpStages,
    /// Squares before it sums, which overflows in f32 where the result does not.
    OverflowsAtScale,
    /// Takes what is small for nothing.
    FlushesAtScale,
    /// Sets the output where it should add to it.
    IgnoresAdd,
    /// Adds to the output where it should set it.
    AlwaysAdds,
    /// Sums in f16.
    HalfPrecisionSum,
    /// Changes an input, but only every other run.
    ChangesInputLater,
    /// The last bit depends on how often it ran.
    Unsteady,
    /// Writes a row behind those of a short step.
    PaddingRow,
    /// e^a / (1 + e^a), which overflows.
    OverflowsOnHuge,
    /// Sees one key more than the window.
    WindowOffByOne,
    /// Sees the key after the query.
    SeesTheFuture,
}

/// A kernel for a case, `launches` of it, counting its runs in `runs`.
pub fn launch(
    fault: Fault,
    runs: &'static AtomicU32,
    (op, case): (&'static Op, &Case),
    backend: &dyn Backend,
    args: &[Slice],
) -> Result<Vec<Launch>, Rejection> {
    let (shape, attrs) = (&case.launched, &case.problem.attrs);
    let mut p = P {
        fault,
        runs,
        batch: shape.size("batch"),
        rows: 0,
        cols: 0,
        add: attrs.is("add"),
        bias: attrs.is("bias"),
        heads: 0,
        layout: KvLayout::new(1, 1, 1),
        scale: attrs.get("scale"),
        softcap: attrs.get("softcap"),
        window: attrs.get("window") as usize,
    };
    let run: Native = match op.name {
        "matvec" | "gemm" => {
            (p.rows, p.cols) = (shape.size("rows"), shape.size("cols"));
            matvec
        }
        "glu" => {
            p.cols = shape.size("cols");
            glu
        }
        "attention" | "attention_decode" => {
            p.heads = shape.size("heads");
            p.layout = KvLayout::new(shape.size("kv_heads"), shape.size("head_dim"), shape.size("context"));
            attention
        }
        other => panic!("no plain kernel of {other}"),
    };
    let error = |e: planish_device::Error| Rejection::Compile(e.to_string());
    let program = backend.load(&Source::Native { name: "broken", run }).map_err(error)?;
    let params = Params::new(p);
    Ok(vec![Launch {
        program,
        args: args.to_vec(),
        params,
        tasks: 1,
        threads: 1,
        scratch_bytes: 0,
        overlap: false,
        views: Vec::new(),
    }])
}

#[derive(Clone, Copy)]
struct P {
    fault: Fault,
    runs: &'static AtomicU32,
    batch: usize,
    rows: usize,
    cols: usize,
    add: bool,
    bias: bool,
    heads: usize,
    layout: KvLayout,
    scale: f64,
    softcap: f64,
    window: usize,
}

// SAFETY: plain values and a static reference, made and read by this program only.
unsafe impl Plain for P {}

/// # Safety
/// Arguments as documented at `MATVEC`, type f32; a faulty kernel touches up to 128 bytes around them too.
unsafe fn matvec(call: &Call<'_>) {
    let p = call.params.get::<P>();
    let run = p.runs.fetch_add(1, Ordering::Relaxed);
    if p.fault == Fault::NoOp || (p.fault == Fault::Stale && run % 2 == 1) {
        return;
    }
    let repeats = if p.fault == Fault::Slow { 8 } else { 1 };
    // SAFETY: the contract of the op; one task has everything; fences around arguments are memory of the same buffers.
    unsafe {
        let step = Step::of(call, 1);
        let y = call.args[2].ptr.cast::<f32>();
        let rows = match p.fault {
            Fault::HalfTheRows => p.rows / 2,
            Fault::MissedRowTail => p.rows - p.rows % 8,
            _ => p.rows,
        };
        for (t, r) in (0..step.n).flat_map(|t| (0..rows).map(move |r| (t, r))) {
            let mut sum = 0.0;
            for _ in 0..repeats {
                sum = std::hint::black_box(dot(call, p, t, r));
            }
            if p.bias {
                sum += f64::from(call.args[call.args.len() - 1].read::<f32>()[r]);
            }
            let at = y.add(t * p.rows + r);
            let add = p.add && p.fault != Fault::IgnoresAdd || p.fault == Fault::AlwaysAdds;
            at.write((if add { sum + f64::from(at.read()) } else { sum }) as f32);
        }
        let end = step.n * p.rows;
        match p.fault {
            Fault::NanOnOddRows if p.rows % 2 == 1 => y.add(end - 1).write(f32::NAN),
            Fault::PastTheEnd => y.add(end).write(0.0),
            Fault::BeforeTheStart => y.sub(1).write(0.0),
            Fault::ChangesInputLater if run % 2 == 1 => *call.args[3].ptr ^= 1,
            Fault::Unsteady => y.write(f32::from_bits(y.read().to_bits() ^ (run & 1))),
            Fault::PaddingRow if step.n < p.batch => (0..p.rows.min(32)).for_each(|r| y.add(end + r).write(0.0)),
            Fault::Replay => replay(p, std::slice::from_raw_parts_mut(y, end)),
            _ => {}
        }
    }
}

/// # Safety
/// As `matvec`.
unsafe fn dot(call: &Call<'_>, p: &P, t: usize, r: usize) -> f64 {
    // SAFETY: forwarded.
    unsafe {
        let w = &call.args[0].read::<f32>()[r * p.cols..][..p.cols];
        let x = &call.args[3].read::<f32>()[t * p.cols..][..p.cols];
        let pairs = || w.iter().zip(x);
        let product = |(w, x): (&f32, &f32)| f64::from(*w) * f64::from(*x);
        match p.fault {
            Fault::MissedColumnTail => pairs().take(p.cols - p.cols % 32).map(product).sum(),
            Fault::RoundsUpStages => {
                let past = p.cols..p.cols.div_ceil(64) * 64;
                let more = past.map(|c| f64::from(*w.as_ptr().add(c)) * f64::from(*x.as_ptr().add(c)));
                pairs().map(product).sum::<f64>() + more.sum::<f64>()
            }
            Fault::OverflowsAtScale => {
                let norm: f32 = x.iter().map(|x| x * x * x * x).sum();
                pairs().map(product).sum::<f64>() / f64::from(norm) * f64::from(norm)
            }
            Fault::FlushesAtScale => pairs().filter(|(_, x)| x.abs() > 1e-9).map(product).sum(),
            Fault::HalfPrecisionSum => pairs().fold(f16::ZERO, |s, (w, x)| s + f16::from_f32(w * x)).to_f64(),
            Fault::ReadsPastTheEnd => pairs().map(product).sum::<f64>() + product((&w[0], &*x.as_ptr().add(p.cols))),
            _ => pairs().map(product).sum(),
        }
    }
}

/// Puts the first value that a kernel ever computed in the place of the present one.
fn replay(p: &P, y: &mut [f32]) {
    static FIRST: AtomicU32 = AtomicU32::new(0);
    if p.runs.load(Ordering::Relaxed) == 1 {
        FIRST.store(y[0].to_bits(), Ordering::Relaxed);
    }
    y[0] = f32::from_bits(FIRST.load(Ordering::Relaxed));
}

/// # Safety
/// Arguments as documented at `GLU`, gate silu, form f32.
unsafe fn glu(call: &Call<'_>) {
    let p = call.params.get::<P>();
    // SAFETY: the contract of the op; one task has everything.
    unsafe {
        let n = Step::of(call, 2).n * p.cols;
        let (gate, up) = (call.args[0].read::<f32>(), call.args[1].read::<f32>());
        for (i, y) in call.args[3].write::<f32>(0, n).iter_mut().enumerate() {
            let silu = match p.fault {
                Fault::OverflowsOnHuge => f64::from(gate[i] * (gate[i].exp() / (1.0 + gate[i].exp()))),
                _ => f64::from(gate[i]) / (1.0 + (-f64::from(gate[i])).exp()),
            };
            *y = (silu * f64::from(up[i])) as f32;
        }
    }
}

/// # Safety
/// Arguments as documented at `ATTENTION`, cache and form f32.
unsafe fn attention(call: &Call<'_>) {
    let p = call.params.get::<P>();
    let (dim, group) = (p.layout.head_dim, p.heads / p.layout.kv_heads);
    // SAFETY: the contract of the op; one task has everything.
    unsafe {
        let step = Step::of(call, 3);
        let (q, k, v) = (call.args[0].read::<f32>(), call.args[1].read::<f32>(), call.args[2].read::<f32>());
        let out = call.args[5].write::<f32>(0, step.n * p.heads * dim);
        for (row, out) in out.chunks_exact_mut(dim).enumerate() {
            let (t, head) = (row / p.heads, row % p.heads / group);
            let last = step.pos + t + usize::from(p.fault == Fault::SeesTheFuture && t + 1 < step.n);
            let window = p.window + usize::from(p.fault == Fault::WindowOffByOne);
            let first = if p.window > 0 { (step.pos + t + 1).saturating_sub(window) } else { 0 };
            let score = |j: usize| {
                let key = (0..dim).map(|d| f64::from(k[p.layout.k_at(head, j) + 16 * d]));
                let s = p.scale * q[row * dim..][..dim].iter().zip(key).map(|(q, k)| f64::from(*q) * k).sum::<f64>();
                if p.softcap > 0.0 { p.softcap * (s / p.softcap).tanh() } else { s }
            };
            let scores: Vec<f64> = (first..=last).map(score).collect();
            let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|s| (s - largest).exp()).collect();
            let total: f64 = weights.iter().sum();
            for (d, out) in out.iter_mut().enumerate() {
                let value = |j: usize| f64::from(v[p.layout.v_at(head, j) + d]);
                *out = ((first..=last).zip(&weights).map(|(j, w)| w * value(j)).sum::<f64>() / total) as f32;
            }
        }
    }
}
