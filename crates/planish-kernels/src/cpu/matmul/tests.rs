//! Every instruction set that this machine has agrees with the portable kernels.

#[test]
fn every_set_passes_its_self_check() {
    for isa in crate::cpu::isa::Isa::ALL.into_iter().filter(|i| i.is_supported()) {
        super::self_check(isa).expect("kernels agree");
    }
}
