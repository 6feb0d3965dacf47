//! The tuned shape itself, where the gate's cases are smaller stand-ins: what a candidate computes at full size, held
//! against what the default computes there.
//!
//! A kernel may be right at a thousand rows and wrong behind the four thousandth; an f64 reference of that size would
//! take longer than all candidates together.

use planish_device::{Backend, Buffer, Error, Init, Slice};
use planish_tune::{Rejection, Wrong};

use crate::gate::{self, FENCE, FENCE_BYTE, POISONS, Steps};
use crate::op::{Arg, Dtype, Shape};

/// How far two right results may be apart, of the root mean square of all: sums of tens of thousands of terms in f32.
const APART: f64 = 2e-3;
/// Roundings to the type of an output, of the larger of the two.
const ROUNDINGS: f64 = 4.0;

/// Outputs between fences, over inputs that lie elsewhere.
pub(crate) struct Whole {
    slices: Vec<Slice>,
    /// Everything but the inputs, with its memory.
    outputs: Vec<(Arg, Buffer)>,
    /// What the default computes, fences included.
    pub want: Option<Vec<Vec<u8>>>,
}

impl Whole {
    /// Memory for what `args` write; their inputs are those of `set`.
    pub fn new(backend: &dyn Backend, args: &[Arg], set: &[Slice]) -> Result<Whole, Error> {
        let mut whole = Whole { slices: Vec::new(), outputs: Vec::new(), want: None };
        for (arg, slice) in args.iter().zip(set) {
            if let Arg::In(_) = arg {
                whole.slices.push(slice.clone());
                continue;
            }
            let len = gate::arg_len(arg);
            let buffer = backend.alloc(len + 2 * FENCE, Init::Fill(FENCE_BYTE))?;
            whole.slices.push(buffer.slice(FENCE, len)?);
            whole.outputs.push((arg.clone(), buffer));
        }
        Ok(whole)
    }

    /// What `steps` compute, each output with its fences.
    pub fn run(&self, backend: &dyn Backend, steps: Steps<'_>) -> Result<Vec<Vec<u8>>, Rejection> {
        let launch = |e: Error| gate::refused(&e, gate::DEADLINE);
        let sequence = backend.record(&steps(&self.slices)?).map_err(gate::unfit)?;
        for (arg, buffer) in &self.outputs {
            let slice = buffer.slice(FENCE, gate::arg_len(arg)).map_err(launch)?;
            match arg {
                Arg::InOut(bytes, _) => backend.write(&slice, bytes).map_err(launch)?,
                _ => backend.write(&slice, &vec![POISONS[0]; slice.len]).map_err(launch)?,
            }
        }
        gate::run(backend, &sequence)?;
        let read = |(_, buffer): &(Arg, Buffer)| {
            let mut bytes = vec![0; buffer.len()];
            backend.read(&buffer.all(), &mut bytes).map(|()| bytes)
        };
        self.outputs.iter().map(read).collect::<Result<_, _>>().map_err(launch)
    }

    /// Refuses results that are not those of the default, to the bit where `same_bits`.
    pub fn agree(&self, shape: &Shape, got: &[Vec<u8>], same_bits: bool) -> Result<(), Rejection> {
        let want = self.want.as_ref().expect("the default has run");
        for (i, ((arg, _), (got, want))) in self.outputs.iter().zip(got.iter().zip(want)).enumerate() {
            let found = match arg {
                Arg::Out(e) | Arg::InOut(_, e) => {
                    fences(got).or_else(|| differs(e.dtype, e.values.len(), got, want, same_bits))
                }
                Arg::In(_) | Arg::Scratch(_) => fences(got),
            };
            if let Some((check, detail)) = found {
                let (check, case) = (check.to_owned(), format!("{shape} itself, against the default"));
                let detail = format!("output {i}: {detail}");
                return Err(Rejection::Wrong(Wrong { check, case, error_over_bound: f64::INFINITY, detail }));
            }
        }
        Ok(())
    }
}

fn fences(got: &[u8]) -> Option<(&'static str, String)> {
    let end = got.len() - FENCE;
    let broken = got[..FENCE].iter().chain(&got[end..]).any(|b| *b != FENCE_BYTE);
    broken.then(|| ("canary", "wrote outside".to_owned()))
}

fn differs(dtype: Dtype, n: usize, got: &[u8], want: &[u8], same_bits: bool) -> Option<(&'static str, String)> {
    let (got, want) = (&got[FENCE..got.len() - FENCE], &want[FENCE..want.len() - FENCE]);
    if same_bits {
        let at = got.iter().zip(want).position(|(a, b)| a != b)?;
        return Some(("reduction order", format!("byte {at} has other bits than the default's")));
    }
    let value = |bytes: &[u8], i: usize| dtype.value(&bytes[dtype.span(i)]);
    let squares: f64 = (0..n).map(|i| value(want, i).powi(2)).filter(|v| v.is_finite()).sum();
    let rms = (squares / n.max(1) as f64).sqrt();
    for i in 0..n {
        let (a, b) = (value(got, i), value(want, i));
        if a == b || a.is_nan() && b.is_nan() {
            continue;
        }
        let within = allowed(dtype, rms, a.abs().max(b.abs()));
        // Not a number is within nothing.
        let close = (a - b).abs() <= within;
        if !close {
            return Some(("tolerance", format!("element {i}: got {a:e}, the default gives {b:e}, within {within:e}")));
        }
    }
    None
}

/// How far two right values may be apart where the larger of them is `large`.
fn allowed(dtype: Dtype, rms: f64, large: f64) -> f64 {
    match dtype.unit() {
        Some(unit) => APART * rms + ROUNDINGS * unit * large,
        // Codes may turn by one where what they round is on the edge.
        None if matches!(dtype, Dtype::I8 | Dtype::Block) => 1.0 + APART * rms,
        None => 0.0,
    }
}
