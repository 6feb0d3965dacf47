//! A new op is three files and one line: this one is added outside the library and is proven like every other.

#[path = "../support/mod.rs"]
mod support;

use std::path::Path;

use planish_device::host::Mode;
use planish_kernels::cpu::isa::Isa;
use planish_kernels::gpu::tier;
use planish_kernels::op::Machine;

planish_kernels::gpu_ops! { scale_add }

#[test]
fn a_new_op_is_three_files_and_one_line() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gpu_toy");
    let files = std::fs::read_dir(here.join("scale_add")).expect("the op's folder").count();
    assert_eq!(files, 3);
    let text = std::fs::read_to_string(here.join("main.rs")).expect("this file");
    let lines = text.lines().filter(|l| l.starts_with("planish_kernels::gpu_ops!") && l.contains("scale_add"));
    assert_eq!(lines.count(), 1);

    let Ok(host) = support::host(Mode::Checked) else { return };
    let proof = tier::prove(OPS[0], &Machine { backend: &host, isa: Isa::Portable }, tier::Depth::Corners);
    assert!(proof.refused.is_empty(), "{:?}", proof.refused);
    assert!(proof.passed > 8 && proof.configs > 2, "{proof:?}");
}
