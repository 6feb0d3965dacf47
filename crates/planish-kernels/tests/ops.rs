//! Every op of the table passes its own gate on the CPU, at the corners of its space, on every instruction set here.

use planish_device::cpu::{Cpu, CpuOptions};
use planish_kernels::cpu::isa::Isa;
use planish_kernels::cpu::peak::Peak;
use planish_kernels::op::{Machine, Shape};
use planish_kernels::ops::{self, OPS};
use planish_kernels::quant::TYPES;
use planish_kernels::subject::{OpSubject, Spec};
use planish_tune::{Config, Point, Rejection, Space, Subject};

fn cpu() -> Cpu {
    Cpu::new(CpuOptions { threads: Some(2) }).expect("a CPU backend")
}

/// The default, and for every parameter its first and last value with the others at their defaults.
fn corners(space: &Space) -> Vec<Config> {
    let mut all = vec![space.default.clone()];
    for p in &space.params {
        for value in [p.values.first(), p.values.last()].into_iter().flatten() {
            let config = space.default.clone().with(p.name, value.clone());
            if space.violated(&config).is_none() && !all.contains(&config) {
                all.push(config);
            }
        }
    }
    all
}

#[track_caller]
fn check(machine: Machine<'_>, op: &str, shape: Shape) {
    let (device, op_name) = ("cpu".to_owned(), op.to_owned());
    let spec =
        Spec { device, op: op_name, shape, rotate_bytes: 0, read_gb_s: None, peak: None, seed: 7, deterministic: true };
    let named = format!("{op} {} on {}", spec.shape, machine.isa);
    let mut subject = OpSubject::new(spec, machine).unwrap_or_else(|e| panic!("{named}: {e}"));
    for config in corners(&subject.space().clone()) {
        subject.admit(&config).unwrap_or_else(|r: Rejection| panic!("{named} with {config}: {r}"));
    }
}

fn isas() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().filter(|i| i.is_supported())
}

fn shape(fields: &str) -> Shape {
    fields.parse().expect("a shape")
}

#[test]
fn matmul_of_every_type_and_class() {
    let cpu = cpu();
    for isa in isas() {
        let machine = Machine { backend: &cpu, isa };
        for t in &TYPES {
            let cols = (3 * t.block_elements).max(96);
            for act in if t.weight.is_float() { &["f32"][..] } else { &["f32", "int8"] } {
                for (op, batch) in [("matvec", 1), ("gemm", 19)] {
                    let fields = format!("type={},rows=77,cols={cols},act={act},batch={batch}", t.name);
                    check(machine, op, shape(&fields));
                }
            }
        }
    }
}

#[test]
fn every_other_op() {
    let cpu = cpu();
    let shapes = [
        ("embed", "type=q8_0,rows=40,cols=96,batch=5"),
        ("embed", "type=f16,rows=40,cols=50,batch=5"),
        ("embed", "type=q6_k,rows=40,cols=512,batch=5"),
        ("rms_norm", "cols=576,batch=4,forms=f32"),
        ("rms_norm", "cols=576,batch=4,forms=int8"),
        ("rms_norm", "cols=96,batch=1,forms=both"),
        ("rms_norm", "cols=50,batch=3,forms=f32"),
        ("rms_norm_add", "cols=576,batch=4"),
        ("rope", "heads=9,kv_heads=3,head_dim=64,dims=64,pairs=neighbours,norm=0,kv=f16,context=64,batch=4"),
        ("rope", "heads=4,kv_heads=2,head_dim=80,dims=40,pairs=halves,norm=1,kv=f32,context=40,batch=4"),
        ("attention", "heads=9,kv_heads=3,head_dim=64,kv=f16,context=512,batch=16,forms=int8"),
        ("attention", "heads=4,kv_heads=4,head_dim=50,kv=f32,context=256,batch=16,forms=f32"),
        ("attention_decode", "heads=9,kv_heads=3,head_dim=64,kv=f16,context=512,batch=1,forms=both"),
        ("attention_decode", "heads=4,kv_heads=1,head_dim=256,kv=f32,context=512,batch=1,forms=int8"),
        ("glu", "gate=silu,cols=1536,batch=3,forms=int8"),
        ("glu", "gate=gelu,cols=151,batch=3,forms=f32"),
        ("softcap", "cols=5000,batch=2"),
        ("read_only", "words=70000"),
    ];
    for op in OPS {
        let covered = shapes.iter().any(|(name, _)| *name == op.name) || matches!(op.name, "matvec" | "gemm");
        assert!(covered, "op {} has no shape in this test", op.name);
    }
    for isa in isas() {
        for (op, fields) in shapes {
            check(Machine { backend: &cpu, isa }, op, shape(fields));
        }
    }
    assert!(ops::find("no such op").is_none());
}

#[test]
fn a_shape_is_read_as_it_is_written() {
    let text = "act=int8,batch=1,cols=64,type=q4_0";
    let shape: Shape = text.parse().unwrap();
    assert_eq!((shape.to_string().as_str(), shape.size("cols"), shape.name("type")), (text, 64, "q4_0"));
    assert_eq!("type=q4_0,cols=64,batch=1,act=int8".parse(), Ok(shape));
    assert_eq!("".parse(), Ok(Shape::new()));
    for bad in ["cols", "cols=", "=1", "cols=1,", "cols=1,cols=2"] {
        assert!(bad.parse::<Shape>().is_err(), "{bad:?}");
    }
}

#[test]
fn the_floor_is_the_higher_of_reading_and_arithmetic() {
    let cpu = Cpu::new(CpuOptions { threads: Some(1) }).expect("a thread");
    let machine = Machine { backend: &cpu, isa: Isa::Portable };
    let peak = Some(Peak { f32_gflop_s: 10.0, int8_gop_s: 40.0, threads: 1 });
    let floor_ns = |op: &str, shape: &str, rotate_bytes: u64, read_gb_s: Option<f64>, peak: Option<Peak>| {
        let shape = shape.parse().expect("a shape");
        let (device, op) = ("cpu".to_owned(), op.to_owned());
        let spec = Spec { device, op, shape, rotate_bytes, read_gb_s, peak, seed: 1, deterministic: false };
        OpSubject::new(spec, machine).expect("a subject").floor(Point(0)).map(|d| d.as_nanos())
    };
    let int8 = "act=int8,batch=100,cols=320,rows=1000,type=q8_0";
    // 64 million operations on bytes at 40 a nanosecond; a third of a megabyte at 10 bytes a nanosecond.
    assert_eq!(floor_ns("gemm", int8, 1, Some(10.0), peak), Some(1_600_000));
    assert_eq!(floor_ns("gemm", &int8.replace("int8", "f32"), 1, Some(10.0), peak), Some(6_400_000));
    assert_eq!(floor_ns("gemm", int8, 1, Some(10.0), None), Some(34_000));
    assert_eq!(floor_ns("matvec", &int8.replace("batch=100", "batch=1"), 1, Some(10.0), peak), Some(34_000));
    assert_eq!(floor_ns("gemm", int8, 0, Some(10.0), peak), Some(1_600_000));
    assert_eq!(floor_ns("gemm", int8, 0, Some(10.0), None), None);
    // As many copies as there may be of 4 KB stay in a cache of 16 MB: memory's bandwidth is no bound there.
    let tiny = "act=int8,batch=1,cols=96,rows=40,type=q8_0";
    assert_eq!(floor_ns("matvec", tiny, 1 << 20, Some(10.0), None), Some(408));
    assert_eq!(floor_ns("matvec", tiny, 16 << 20, Some(10.0), None), None);
    // Two multiply-adds for each of 8 heads, 64 elements and 136 pairs of a query and a key that it sees.
    let attention = "batch=16,context=16,forms=f32,head_dim=64,heads=8,kv=f16,kv_heads=2";
    assert_eq!(floor_ns("attention", attention, 0, None, peak), Some((4 * 8 * 64 * 136 + 5) / 10));
}

#[test]
fn a_subject_of_another_device_is_refused() {
    let cpu = Cpu::new(CpuOptions { threads: Some(1) }).expect("a thread");
    let machine = Machine { backend: &cpu, isa: Isa::Portable };
    let of = |device: &str, op: &str| {
        let (device, op, shape) = (device.to_owned(), op.to_owned(), shape("rows=3,cols=5,type=f32"));
        let spec =
            Spec { device, op, shape, rotate_bytes: 0, read_gb_s: None, peak: None, seed: 1, deterministic: false };
        OpSubject::new(spec, machine).err().expect("refused")
    };
    assert!(of("cuda", "rms_norm").contains("is to run on cuda, and this machine is cpu"));
    assert!(of("cpu", "swiglu").contains("no op of cpu is called swiglu"));
}
