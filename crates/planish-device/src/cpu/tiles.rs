//! Leave to use the tile registers of AMX: the system keeps no room for them in a thread until the process asks.

use std::sync::LazyLock;

/// Whether this process may multiply bytes in tiles; the processor and the system are asked once.
///
/// The leave counts for every thread of the process, also for those that run already.
pub fn granted() -> bool {
    static GRANTED: LazyLock<bool> = LazyLock::new(ask);
    *GRANTED
}

/// `arch_prctl` that asks for a part of the processor state (Linux, `asm/prctl.h`).
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
const ARCH_REQ_XCOMP_PERM: libc::c_ulong = 0x1023;

/// The contents of the tile registers, as numbered in XCR0; their configuration is the number before.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
const TILE_DATA: libc::c_ulong = 18;

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn ask() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};
    const TILES: u32 = 1 << 24;
    const BYTE_PRODUCTS: u32 = 1 << 25;
    const OSXSAVE: u32 = 1 << 27;
    let has = |word: u64, bits: u64| word & bits == bits;
    if __cpuid(0).eax < 7 || !has(__cpuid(1).ecx.into(), OSXSAVE.into()) {
        return false;
    }
    if !has(__cpuid_count(7, 0).edx.into(), (TILES | BYTE_PRODUCTS).into()) {
        return false;
    }
    // SAFETY: OSXSAVE says that the instruction is there.
    let enabled = unsafe { _xgetbv(0) };
    if !has(enabled, 0b11 << (TILE_DATA - 1)) {
        return false;
    }
    // SAFETY: the call takes two numbers and touches no memory of ours.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0 }
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
fn ask() -> bool {
    false
}
