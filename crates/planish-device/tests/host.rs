//! The host executor on kernels that are right, and on kernels that each do one thing that a GPU punishes silently.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use planish_device::host::{Host, HostOptions, Mode};
use planish_device::{Backend, Error, ErrorKind, Init, Launch, Params, Slice, Source};

fn host(mode: Mode) -> Option<Host> {
    let cache = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("host");
    std::fs::create_dir_all(&cache).expect("the build folder can be written");
    Host::new(HostOptions { cache, mode }).ok()
}

fn executor(mode: Mode) -> Option<&'static Host> {
    static HOSTS: [OnceLock<Option<Host>>; 3] = [const { OnceLock::new() }; 3];
    HOSTS[mode as usize].get_or_init(|| host(mode)).as_ref()
}

/// One launch of the kernel `k` in `text` on zeroed arguments of `bytes` each.
struct Run<'a> {
    text: &'a str,
    constants: &'a [(&'a str, i64)],
    bytes: &'a [usize],
    params: &'a [u32],
    groups: u32,
    threads: u32,
    dynamic_bytes: u32,
}

impl Run<'_> {
    fn on(&self, host: &Host) -> Result<Vec<Vec<u8>>, Error> {
        let constants: BTreeMap<String, i64> = self.constants.iter().map(|(k, v)| ((*k).to_owned(), *v)).collect();
        let text = format!("#line 1 \"k.k\"\n{}", self.text);
        let source = Source::Text { name: "k".into(), text, constants, threads: self.threads };
        let args: Vec<Slice> =
            self.bytes.iter().map(|n| host.alloc(*n, Init::Zero).map(|b| b.all())).collect::<Result<_, _>>()?;
        let launch = Launch {
            program: host.load(&source)?,
            args: args.clone(),
            params: Params::words(self.params),
            tasks: self.groups,
            threads: self.threads,
            scratch_bytes: self.dynamic_bytes,
            overlap: false,
            views: Vec::new(),
        };
        host.submit(&host.record(&[launch])?)?;
        let read = |a: &Slice| {
            let mut bytes = vec![0; a.len];
            host.read(a, &mut bytes).map(|()| bytes)
        };
        args.iter().map(read).collect()
    }
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|w| u32::from_le_bytes([w[0], w[1], w[2], w[3]])).collect()
}

const P: &str = "struct P { uint n; };\n";

/// Runs `body` with one output of 64 words in two groups of 64 threads and wants an error that says `says`.
#[track_caller]
fn refused(mode: Mode, body: &str, says: &str) {
    let Some(host) = executor(mode) else { return };
    let text = format!("{P}KERNEL(k, OUT(uint, y, 0), PARAMS(P, p, 1))\n{{\n{body}\n}}\n");
    let run =
        Run { text: &text, constants: &[], bytes: &[256], params: &[64], groups: 2, threads: 64, dynamic_bytes: 0 };
    let error = run.on(host).expect_err("a fault").to_string();
    assert!(error.contains(says), "wanted {says:?}: {error}");
}

#[test]
fn wrong_kernels_are_named_by_their_fault() {
    for (body, says) in [
        ("y[TG_X * 64 + TID] = 1u;", "of 256"),
        ("SHARED(float, s, 32); s[TID] = 1.0f; TG_BARRIER(); y[TID] = 0u;", "out of bounds: threadgroup array s["),
        ("SHARED(uint, s, 64); TG_BARRIER(); y[TID] = s[TID];", "uninitialised threadgroup memory s["),
        (
            "SHARED(uint, s, 64); s[TID] = 0u; TG_BARRIER(); s[TID] = TID; y[TID] = s[63 - TID];",
            "with no barrier between",
        ),
        ("SHARED(uint, s, 64); s[TID] = TID; TG_BARRIER(); uint v = s[63 - TID]; s[TID] = v; y[TID] = v;", "data race"),
        ("if (TID < 16) { TG_BARRIER(); } y[TID] = 0u;", "barrier divergence"),
        ("if (TID < 32) {\nTG_BARRIER();\n} else {\nTG_BARRIER();\n} y[TID] = 0u;", "different barriers"),
        ("if (LANE < 3) y[TID] = simd_sum(1u); else y[TID] = 0u;", "barrier divergence"),
        ("if (LANE < 3)\n y[TID] = simd_sum(1u);\n else y[TID] = simd_max(1u);", "SIMD group diverged"),
        ("SHARED(float, s, 9000); s[TID] = 0.0f; y[TID] = 0u;", "threadgroup memory of 36000 bytes"),
        ("GRID_BARRIER(0); y[TID] = 0u;", "not declared with KERNEL_GRID"),
    ] {
        refused(Mode::Checked, body, says);
    }
}

#[test]
fn the_sanitizers_see_what_checked_pointers_cannot() {
    // Threads of one group, and thread 0 of two groups, write the same word of device memory.
    refused(Mode::Thread, "y[TID / 2] = TID;", "ThreadSanitizer: data race");
    refused(Mode::Thread, "if (TID == 0) y[0] = TG_X;", "ThreadSanitizer: data race");
    refused(Mode::Address, "y[TG_X * 64 + TID] = 1u;", "AddressSanitizer: heap-buffer-overflow");
    refused(Mode::Address, "int big = 2147483647; y[TID] = uint(big + int(p.n));", "signed integer overflow");
}

#[test]
fn barriers_order_what_they_should_under_every_watcher() {
    let text = format!(
        "{P}SPEC_U32(ROUNDS, 0)
KERNEL_GRID(k, ATOMIC(uint, sync, 0), INOUT(uint, a, 1), OUT(uint, y, 2), PARAMS(P, p, 3))
{{
    for (uint r = 0; r < ROUNDS; ++r) {{
        if (TID == 0) a[TG_X] = a[TG_X] + 1u;
        GRID_BARRIER(sync);
        uint sum = 0u;
        for (uint g = 0; g < TG_COUNT; ++g) sum += a[g];
        if (TID == 0) y[TG_X * ROUNDS + r] = sum;
        GRID_BARRIER(sync);
    }}
}}
"
    );
    for mode in [Mode::Checked, Mode::Address, Mode::Thread] {
        let Some(host) = executor(mode) else { return };
        let constants = &[("SPEC_ROUNDS", 5)];
        let run =
            Run { text: &text, constants, bytes: &[8, 16, 80], params: &[0], groups: 4, threads: 64, dynamic_bytes: 0 };
        let out = run.on(host).unwrap_or_else(|e| panic!("{}: {e}", mode.name()));
        let wanted: Vec<u32> = (0..4).flat_map(|_| (1..=5).map(|r| 4 * r)).collect();
        assert_eq!(words(&out[2]), wanted, "{}", mode.name());
    }
}

#[test]
fn groups_of_a_grid_look_for_words_of_others_without_a_barrier() {
    // Each group waits for what the one behind it adds to; the last one waits for nobody.
    let text = format!(
        "{P}KERNEL_GRID(k, INOUT(uint, y, 0), PARAMS(P, p, 1))
{{
    uint before = TG_X + 1u < TG_COUNT ? 0u : p.n;
    while (before == 0u) {{
        before = relaxed_load(DCAST(const uint, y + TG_X + 1u));
        if (before == 0u) LOOK_AGAIN();
    }}
    if (TID == 0u) relaxed_store(DCAST(uint, y + TG_X), before + 1u);
}}
"
    );
    for mode in [Mode::Checked, Mode::Address, Mode::Thread] {
        let Some(host) = executor(mode) else { return };
        let run =
            Run { text: &text, constants: &[], bytes: &[16], params: &[7], groups: 4, threads: 64, dynamic_bytes: 0 };
        let out = run.on(host).unwrap_or_else(|e| panic!("{}: {e}", mode.name()));
        assert_eq!(words(&out[0]), [11, 10, 9, 8], "{}", mode.name());
    }
}

#[test]
fn launches_that_do_not_fit_the_kernel_are_refused() {
    let Some(host) = executor(Mode::Checked) else { return };
    let text = format!("SPEC_U32(N, 0)\n{P}KERNEL(k, OUT(uint, y, 0), PARAMS(P, p, 1)) {{ y[TID] = N; }}\n");
    let good = || Run {
        text: &text,
        constants: &[("SPEC_N", 7)],
        bytes: &[128],
        params: &[0],
        groups: 1,
        threads: 32,
        dynamic_bytes: 0,
    };
    assert_eq!(words(&good().on(host).expect("a launch that fits")[0]), [7; 32]);
    let says = |run: Run<'_>, what: &str| {
        let error = run.on(host).expect_err(what).to_string();
        assert!(error.contains(what), "wanted {what:?}: {error}");
    };
    says(Run { constants: &[], ..good() }, "constant SPEC_N was not given");
    says(Run { constants: &[("SPEC_N", 7), ("SPEC_M", 1)], ..good() }, "SPEC_M does not reach the kernel");
    says(Run { constants: &[("SPEC_N", 7), ("SHAPE_M", 1)], ..good() }, "SHAPE_M does not reach the kernel");
    says(Run { bytes: &[128, 128], ..good() }, "takes 2 arguments, 3 were given");
    says(Run { params: &[0, 0], ..good() }, "the parameter block has 8 bytes, the kernel's has 4");
    says(Run { threads: 48, ..good() }, "48 threads");
    let compile = Run { text: "KERNEL(k, OUT(uint, y, 0)) { y[0] = undeclared; }", ..good() };
    let error = compile.on(host).expect_err("text that does not compile");
    assert_eq!(error.kind(), ErrorKind::Build);
    assert!(error.to_string().contains("undeclared"), "{error}");
}

#[test]
fn a_crash_and_a_hang_are_errors_of_their_launch() {
    let Some(host) = host(Mode::Checked) else { return };
    let text = |body: &str| format!("{P}KERNEL(k, OUT(uint, y, 0), PARAMS(P, p, 1)) {{ {body} y[TID] = p.n; }}\n");
    let run = |host: &Host, body: &str| {
        let text = text(body);
        Run { text: &text, constants: &[], bytes: &[128], params: &[9], groups: 1, threads: 32, dynamic_bytes: 0 }
            .on(host)
    };
    let crash = run(&host, "if (TID == 0) __builtin_trap();").expect_err("a crash");
    assert!(crash.to_string().contains("ended its process"), "{crash}");
    // The executor goes on with the next launch.
    assert_eq!(words(&run(&host, "").expect("a right kernel")[0]), [9; 32]);
    let host = host.with_deadline(Duration::from_millis(500));
    let hang = run(&host, "y[TID] = 0u; while (y[TID] == 0u) {}").expect_err("a hang");
    assert_eq!(hang.kind(), ErrorKind::Timeout, "{hang}");
    // And with this one, unless the machine itself stands still for as long.
    let next = (0..20).find_map(|_| run(&host, "").ok()).expect("a right kernel");
    assert_eq!(words(&next[0]), [9; 32]);
}

#[test]
fn the_launch_decides_the_size_of_dynamic_memory() {
    let text = format!(
        "{P}KERNEL(k, OUT(uint, y, 0), PARAMS(P, p, 1))
{{
    SHARED(uint, fixed, 64);
    SHARED_DYNAMIC(uint, s);
    fixed[TID] = TID;
    s[p.n + TID] = TID;
    TG_BARRIER();
    if (TG_X == 1) y[TID] = s[p.n + 63 - TID] + fixed[63 - TID];
}}
"
    );
    for mode in [Mode::Checked, Mode::Address, Mode::Thread] {
        let Some(host) = executor(mode) else { return };
        let bytes = &[256];
        let run = |n, dynamic_bytes| {
            Run { text: &text, constants: &[], bytes, params: &[n], groups: 2, threads: 64, dynamic_bytes }.on(host)
        };
        let out = run(3, 4 * 67).unwrap_or_else(|e| panic!("{}: {e}", mode.name()));
        assert_eq!(words(&out[0]), (0..64).rev().map(|t| 2 * t).collect::<Vec<u32>>(), "{}", mode.name());
        if mode != Mode::Thread {
            let error = run(4, 4 * 67).expect_err("past the end").to_string();
            assert!(error.contains("s[67] of 67") || error.contains("heap-buffer-overflow"), "{error}");
        }
    }
}
