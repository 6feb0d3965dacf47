//! The tuner admits the default at shapes whose cases at the gate are of another kind: without whole tiles, or in steps.

use planish_device::Host;
use planish_kernels::cpu::isa::Isa;
use planish_kernels::op::Machine;
use planish_kernels::subject::{OpSubject, Spec};
use planish_tune::Subject;

/// Ops and shapes: of whole tiles, gated whole and by smaller ones, and of several sequences.
const SHAPES: [(&str, &str); 6] = [
    ("gemm", "m=128,n=128,k=64,layout=nt,out=f32,type=f32"),
    ("gemm", "m=64,n=512,k=32,layout=nn,out=f16,type=f16"),
    ("gemm_quant", "type=q8_0,io=f16,weights=rounded,rows=64,cols=64,tokens=384"),
    ("conv1d", "batch=2,channels=33,init=1,mask=0,steps=2,taps=4,type=f32"),
    ("gdn_recurrent", "batch=2,heads=2,init=1,key_dim=9,key_heads=1,mask=0,steps=64,type=f32,value_dim=3"),
    ("gdn_chunked", "batch=2,heads=2,init=1,key_dim=9,key_heads=1,mask=0,steps=64,type=f32,value_dim=3"),
];

/// Admits the default of each.
pub fn all(host: &Host) {
    for (name, shape) in SHAPES {
        let spec = Spec {
            device: "host".to_owned(),
            op: name.to_owned(),
            shape: shape.parse().expect("a shape"),
            rotate_bytes: 0,
            read_gb_s: None,
            peak: None,
            seed: 3,
            deterministic: false,
        };
        let mut subject = OpSubject::new(spec, Machine { backend: host, isa: Isa::Portable }).expect("a subject");
        let default = subject.space().default.clone();
        let admitted = subject.admit(&default);
        admitted.unwrap_or_else(|why| panic!("{name} at {shape}, {default}: {why}"));
    }
}
