//! The variant of `gemm` that the machine's vendor has in a library: one more configuration, and its launch.

use planish_device::{Error, Float, Launch, Params, Source, VendorProduct};
use planish_tune::{Config, Constraint, Rejection, Space, Value};

use super::{GemmTypes, turned, types};
use crate::op::{Dtype, Machine, OpCall, Shape};

/// Value of `VARIANT`.
pub const NAME: &str = "cublaslt";

/// `own` with the library's product beside it where `machine` has the library.
///
/// The library's version is in the name of a constraint, so that a choice is known to be of another one.
pub fn with(own: Space, shape: &Shape, machine: &Machine<'_>) -> Space {
    // It makes no empty sums.
    let (true, Ok(library)) = (shape.size("k") > 0, machine.backend.library()) else { return own };
    let vendors = |c: &Config| c.name("VARIANT") == Some(NAME);
    let mut space = own.except(vendors);
    for param in space.params.iter_mut().filter(|p| p.name == "VARIANT") {
        param.values.push(Value::from(NAME));
    }
    // One value off the default: a search tries it among the first.
    let only = space.default.clone().with("VARIANT", NAME);
    let name = format!("{library} has no tiles: all else is as in the default");
    space.constraints.push(Constraint::new(name, move |c| !vendors(c) || *c == only));
    space
}

/// The call of the library, with α and β as bits.
pub fn steps(call: &OpCall, scales: [u32; 2], machine: &Machine<'_>) -> Result<Vec<Launch>, Rejection> {
    let (shape, GemmTypes { io, out }) = (&call.shape, types(&call.shape));
    let product = VendorProduct {
        sizes: ["m", "n", "k"].map(|s| shape.size(s)),
        turned: turned(shape),
        io: float(io),
        out: float(out),
    };
    let refused = |e: Error| {
        let hint = e.hint().map(|hint| format!("; hint: {hint}")).unwrap_or_default();
        Rejection::Compile(format!("{e}{hint}"))
    };
    let program = machine.backend.load(&Source::Vendor(product)).map_err(refused)?;
    Ok(vec![Launch {
        program,
        args: call.args.clone(),
        params: Params::words(&scales),
        views: Vec::new(),
        tasks: 1,
        threads: 1,
        scratch_bytes: 0,
        overlap: false,
    }])
}

fn float(ty: Dtype) -> Float {
    match ty {
        Dtype::F16 => Float::F16,
        Dtype::Bf16 => Float::Bf16,
        _ => Float::F32,
    }
}

#[cfg(test)]
mod tests {
    use planish_device::Recorder;

    use super::*;
    use crate::cpu::isa::Isa;
    use crate::gpu::gemm::OP;
    use crate::gpu::{record, tier};

    const SHAPE: &str = "m=140,n=264,k=136,layout=nn,out=f32,type=f16";

    fn space(shape: &str, card: &Recorder) -> Space {
        (OP.op.space)(&shape.parse().expect("a shape"), &Machine { backend: card, isa: Isa::Portable })
    }

    fn with_library(arch: &str, version: &str) -> Recorder {
        record::card(arch).with_library(&format!("{NAME} {version}"))
    }

    #[test]
    fn the_library_is_one_more_candidate_that_every_search_tries() {
        for arch in ["sm_80", "sm_90a"] {
            for shape in [SHAPE, "m=5,n=7,k=3,layout=tn,out=f32,type=f32", "m=1,n=1,k=1,layout=nt,out=bf16,type=bf16"] {
                let (own, both) = (space(shape, &record::card(arch)), space(shape, &with_library(arch, "12.9.3")));
                let legal = |space: &Space| {
                    let all = space.candidates().into_iter();
                    all.filter(|c| space.violated(c).is_none()).collect::<Vec<Config>>()
                };
                let config = own.default.clone().with("VARIANT", NAME);
                let (of_both, mut of_own) = (legal(&both), legal(&own));
                assert_eq!(both.default, own.default);
                assert!(tier::corners(&OP.text, &both, tier::Depth::Corners)[1..].contains(&config), "{shape}");
                of_own.push(config);
                assert_eq!(of_both.len(), of_own.len(), "{shape} on {arch}");
                assert!(of_own.iter().all(|c| of_both.contains(c)), "{shape} on {arch}");
            }
        }
    }

    #[test]
    fn a_choice_knows_the_version_that_it_was_made_with() {
        let digest = |card: &Recorder| space(SHAPE, card).digest();
        let [old, new] = ["12.9.3", "13.1.0"].map(|version| with_library("sm_90a", version));
        assert_eq!(digest(&old), digest(&with_library("sm_90a", "12.9.3")));
        assert!(digest(&old) != digest(&new) && digest(&old) != digest(&record::card("sm_90a")));
    }

    #[test]
    fn empty_sums_and_machines_without_the_library_keep_their_space() {
        let (empty, own) = (with_library("sm_90a", "12.9.3"), record::card("sm_90a"));
        let shape = "m=5,n=3,k=0,layout=nt,out=f32,type=f32";
        assert_eq!(space(shape, &empty).digest(), space(shape, &own).digest());
        let config = space(SHAPE, &own).default.with("VARIANT", NAME);
        assert_eq!(space(SHAPE, &own).violated(&config).as_deref(), Some("VARIANT=cublaslt is not a candidate value"));
    }

    #[test]
    fn the_library_is_asked_for_the_product_of_the_shape() {
        let card = with_library("sm_90a", "12.9.3");
        let shape = SHAPE.parse().expect("a shape");
        let config = space(SHAPE, &card).default.with("VARIANT", NAME);
        let launches = record::launches(&OP, &shape, &config, &card).expect("a launch");
        let [launch] = &launches[..] else { panic!("{} launches", launches.len()) };
        assert_eq!(launch.text, "140 x 264 x 136, A and B by columns of f16, C of f32");
        assert_eq!((launch.groups, launch.threads), (1, 1));
        assert_eq!(launch.params, [1f32, 0.0].map(f32::to_le_bytes).concat());
        assert_eq!(launch.args, [(0, 2 * 140 * 136), (0, 2 * 264 * 136), (0, 4 * 140 * 264)]);
    }
}
