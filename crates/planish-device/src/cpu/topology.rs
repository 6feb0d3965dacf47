//! What this processor is: silicon facts for keys, and what this process may use of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::backend::Identity;

/// The processor and this process's share of it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Topology {
    /// Marketing name, for people only.
    pub label: String,
    /// Named facts of the silicon: vendor, family, model, stepping (x86), MIDR values (Arm), CPU family (Apple).
    pub facts: BTreeMap<String, String>,
    /// Instruction set extensions that kernels choose by, in a fixed order; only what the system also enables.
    pub isa: Vec<String>,
    /// Logical processors that this process may run on.
    pub threads: u32,
    /// Physical cores behind them.
    pub cores: u32,
    /// Processors' worth of time that a control group allows, where it sets a limit.
    pub quota: Option<f64>,
    /// Level 1 data cache of one core, bytes; 0 where unknown.
    pub l1_bytes: u64,
    /// Level 2 cache that one core sees, bytes; 0 where unknown.
    pub l2_bytes: u64,
    /// Last-level cache that one core sees, bytes; the largest known level.
    pub llc_bytes: u64,
    /// Whether a hypervisor says that it is there; `None` where it cannot be asked.
    pub hypervisor: Option<bool>,
    /// Memory nodes.
    pub numa_nodes: u32,
    /// Kinds of cores, and how many logical processors of each this process may run on; empty where the machine has but
    /// one kind, or the system does not tell.
    pub classes: BTreeMap<String, u32>,
}

impl Topology {
    /// Threads to use unless told otherwise: one per physical core, within the quota, at least one.
    pub fn default_threads(&self) -> u32 {
        let quota = self.quota.map_or(u32::MAX, |q| (q.floor() as u32).max(1));
        self.cores.min(self.threads).min(quota).max(1)
    }

    /// The identity that stored measurements are keyed by.
    pub fn identity(&self) -> Identity {
        let mut silicon = self.facts.clone();
        let numbers = [
            ("cores", u64::from(self.cores)),
            ("threads", u64::from(self.threads)),
            ("threads_default", u64::from(self.default_threads())),
            ("l1_bytes", self.l1_bytes),
            ("l2_bytes", self.l2_bytes),
            ("llc_bytes", self.llc_bytes),
            ("numa_nodes", u64::from(self.numa_nodes)),
        ];
        silicon.extend(numbers.map(|(name, value)| (name.to_string(), value.to_string())));
        silicon.insert("arch".into(), std::env::consts::ARCH.into());
        silicon.insert("isa".into(), self.isa.join(" "));
        if let Some(hypervisor) = self.hypervisor {
            silicon.insert("hypervisor".into(), hypervisor.to_string());
        }
        if !self.classes.is_empty() {
            let classes: Vec<String> = self.classes.iter().map(|(name, n)| format!("{n} of {name}")).collect();
            silicon.insert("classes".into(), classes.join(", "));
        }
        let toolchain = [
            ("rustc", env!("PLANISH_RUSTC")),
            ("target", env!("PLANISH_TARGET")),
            ("target_features", env!("PLANISH_FEATURES")),
        ];
        let toolchain = toolchain.map(|(name, value)| (name.to_string(), value.to_string())).into();
        Identity { silicon, toolchain, label: self.label.clone() }
    }
}

/// Asks the processor and the system; what they do not tell stays empty.
pub fn probe() -> Topology {
    let mut found = Topology { isa: isa(), numa_nodes: numa_nodes().max(1), quota: quota(), ..Topology::default() };
    let (allowed, sys) = (affinity(), Path::new("/sys/devices"));
    let first = allowed.as_deref().and_then(|cpus| cpus.first().copied()).unwrap_or(0);
    found.threads = match &allowed {
        Some(cpus) => cpus.len() as u32,
        None => std::thread::available_parallelism().map_or(1, |n| n.get() as u32),
    };
    found.cores = allowed.as_deref().and_then(physical_cores).unwrap_or(found.threads);
    for (level, kind, bytes) in caches(sys, first) {
        set_cache(&mut found, level, kind == "Instruction", bytes);
    }
    found.classes = core_classes(sys, allowed.as_deref());
    // Where cores differ, what the instruction tells is of the core that it runs on: always the same one.
    std::thread::scope(|s| {
        s.spawn(|| {
            run_on(first);
            silicon(&mut found);
        });
    });
    found.llc_bytes = found.llc_bytes.max(found.l2_bytes).max(found.l1_bytes);
    found
}

fn text(path: impl AsRef<Path>) -> Option<String> {
    fs::read_to_string(path).ok().map(|t| t.trim().to_string())
}

const CPUS: &str = "/sys/devices/system/cpu";

/// Logical processors that this process may run on.
#[cfg(target_os = "linux")]
fn affinity() -> Option<Vec<usize>> {
    // SAFETY: all-zero is an empty set, and the call writes at most the size it is told.
    let set = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        if libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) != 0 {
            return None;
        }
        set
    };
    // SAFETY: `cpu` is below the size of the set.
    Some((0..libc::CPU_SETSIZE as usize).filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) }).collect())
}

#[cfg(not(target_os = "linux"))]
fn affinity() -> Option<Vec<usize>> {
    None
}

/// Keeps this thread on one logical processor; without effect where that cannot be had.
#[cfg(target_os = "linux")]
fn run_on(cpu: usize) {
    // SAFETY: all-zero is an empty set, `cpu` came out of such a set, and the call reads as much as it is told.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
    }
}

#[cfg(not(target_os = "linux"))]
fn run_on(_cpu: usize) {}

fn physical_cores(cpus: &[usize]) -> Option<u32> {
    let core = |cpu: &usize| {
        let topology = PathBuf::from(format!("{CPUS}/cpu{cpu}/topology"));
        Some((text(topology.join("physical_package_id"))?, text(topology.join("core_id"))?))
    };
    let cores: Option<BTreeSet<_>> = cpus.iter().map(core).collect();
    cores.map(|set| set.len() as u32).filter(|&n| n > 0)
}

fn numa_nodes() -> u32 {
    let Ok(entries) = fs::read_dir("/sys/devices/system/node") else { return 0 };
    let is_node = |name: &str| name.strip_prefix("node").is_some_and(|n| n.parse::<u32>().is_ok());
    entries.flatten().filter(|e| e.file_name().to_str().is_some_and(is_node)).count() as u32
}

/// The tightest limit on processor time of the control groups around this process.
fn quota() -> Option<f64> {
    let groups = text("/proc/self/cgroup")?;
    let mut tightest: Option<f64> = None;
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, group) = (fields.next()?, fields.next()?);
        let root = match controllers {
            "" => "/sys/fs/cgroup",
            list if list.split(',').any(|c| c == "cpu") => "/sys/fs/cgroup/cpu",
            _ => continue,
        };
        for up in Path::new(group.trim_start_matches('/')).ancestors() {
            let limit = group_limit(&Path::new(root).join(up));
            tightest = [tightest, limit].into_iter().flatten().reduce(f64::min);
        }
    }
    tightest
}

fn group_limit(dir: &Path) -> Option<f64> {
    let (quota, period) = match text(dir.join("cpu.max")) {
        Some(both) => both.split_once(' ').map(|(q, p)| (q.to_string(), p.to_string()))?,
        None => (text(dir.join("cpu.cfs_quota_us"))?, text(dir.join("cpu.cfs_period_us"))?),
    };
    let (quota, period) = (quota.parse::<f64>().ok()?, period.parse::<f64>().ok()?);
    (quota > 0.0 && period > 0.0).then(|| quota / period)
}

/// Level, kind and bytes of each cache that logical processor `cpu` sees.
fn caches(sys: &Path, cpu: usize) -> Vec<(u32, String, u64)> {
    let one = |index: u32| {
        let dir = sys.join(format!("system/cpu/cpu{cpu}/cache/index{index}"));
        let (level, kind, size) = (text(dir.join("level"))?, text(dir.join("type"))?, text(dir.join("size"))?);
        let bytes = match (size.strip_suffix('K'), size.strip_suffix('M')) {
            (Some(k), _) => k.parse::<u64>().unwrap_or(0) << 10,
            (_, Some(m)) => m.parse::<u64>().unwrap_or(0) << 20,
            _ => size.parse().unwrap_or(0),
        };
        Some((level.parse().unwrap_or(0), kind, bytes))
    };
    (0..8).map_while(one).collect()
}

fn set_cache(found: &mut Topology, level: u32, instructions: bool, bytes: u64) {
    match level {
        1 if !instructions => found.l1_bytes = bytes,
        2 => found.l2_bytes = bytes,
        3.. => found.llc_bytes = found.llc_bytes.max(bytes),
        _ => {}
    }
}

/// Kinds of cores, with as many of each as `allowed` has; empty where all of the machine's are alike.
///
/// Intel's hybrid parts list them and Arm's have identification registers; clusters of one register differ in capacity, and
/// dies of one kind in their caches.
fn core_classes(sys: &Path, allowed: Option<&[usize]>) -> BTreeMap<String, u32> {
    let listed: Vec<(&str, Vec<usize>)> = ["cpu_core", "cpu_atom", "cpu_lowpower"]
        .into_iter()
        .filter_map(|kind| Some((kind, cpu_list(&text(sys.join(kind).join("cpus"))?))))
        .collect();
    let class = |cpu: usize| {
        let dir = sys.join(format!("system/cpu/cpu{cpu}"));
        let kind = listed.iter().find(|(_, cpus)| cpus.contains(&cpu)).map(|(kind, _)| (*kind).to_owned());
        let midr = text(dir.join("regs/identification/midr_el1"));
        let mut parts = vec![kind.or(midr).unwrap_or_else(|| "core".to_owned())];
        parts.extend(text(dir.join("cpu_capacity")).map(|c| format!("capacity {c}")));
        let cached = caches(sys, cpu).into_iter().filter(|(_, kind, _)| kind != "Instruction");
        parts.extend(cached.map(|(level, _, bytes)| format!("L{level} {}K", bytes >> 10)));
        parts.join(" ")
    };
    let present = cpu_list(&text(sys.join("system/cpu/present")).unwrap_or_default());
    let mut classes: BTreeMap<String, u32> = present.iter().map(|cpu| (class(*cpu), 0)).collect();
    if classes.len() < 2 {
        return BTreeMap::new();
    }
    for cpu in allowed.unwrap_or(&present) {
        *classes.entry(class(*cpu)).or_default() += 1;
    }
    classes.retain(|_, n| *n > 0);
    classes
}

/// The numbers in a list such as `0-3,8`.
fn cpu_list(text: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        Some(from.trim().parse().ok()?..=to.trim().parse().ok()?)
    };
    text.split(',').filter_map(range).flatten().collect()
}

macro_rules! detected {
    ($probe:ident: $($name:tt)*) => {
        [$(($name, std::arch::$probe!($name))),*].into_iter().filter(|f| f.1).map(|f| f.0.to_string()).collect()
    };
}

#[cfg(target_arch = "x86_64")]
fn isa() -> Vec<String> {
    let mut found: Vec<String> = detected!(is_x86_feature_detected: "sse4.2" "avx" "f16c" "fma" "avx2" "avxvnni"
        "avxvnniint8" "avx512f" "avx512bw" "avx512vl" "avx512dq" "avx512vnni" "avx512bf16" "avx512fp16");
    if super::tiles::granted() {
        found.push("amx-int8".into());
    }
    found
}

#[cfg(target_arch = "aarch64")]
fn isa() -> Vec<String> {
    detected!(is_aarch64_feature_detected: "neon" "fp16" "dotprod" "i8mm" "bf16" "sve" "sve2")
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn isa() -> Vec<String> {
    Vec::new()
}

/// Vendor, family, model, stepping and brand by the CPUID instruction; caches by its leaves, which know shared ones best.
#[cfg(target_arch = "x86_64")]
fn silicon(found: &mut Topology) {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    let bytes = |words: &[u32]| -> String {
        let bytes = words.iter().flat_map(|w| w.to_le_bytes()).take_while(|&b| b != 0).collect::<Vec<u8>>();
        String::from_utf8_lossy(&bytes).trim().to_string()
    };
    let (top, one) = (__cpuid(0), __cpuid(1));
    let vendor = bytes(&[top.ebx, top.edx, top.ecx]);
    let (mut family, mut model) = ((one.eax >> 8) & 15, (one.eax >> 4) & 15);
    if family == 6 || family == 15 {
        model += ((one.eax >> 16) & 15) << 4;
    }
    if family == 15 {
        family += (one.eax >> 20) & 255;
    }
    found.hypervisor = Some(one.ecx >> 31 == 1);
    let extended = __cpuid(0x8000_0000).eax;
    if extended >= 0x8000_0004 {
        let words: Vec<u32> =
            (0x8000_0002..=0x8000_0004u32).map(__cpuid).flat_map(|r| [r.eax, r.ebx, r.ecx, r.edx]).collect();
        found.label = bytes(&words);
    }
    let caches = match vendor.as_str() {
        "AuthenticAMD" | "HygonGenuine" if extended >= 0x8000_001d => 0x8000_001d,
        "GenuineIntel" if top.eax >= 4 => 4,
        _ => 0,
    };
    for index in 0..if caches == 0 { 0 } else { 8 } {
        let leaf = __cpuid_count(caches, index);
        let kind = leaf.eax & 31;
        if kind == 0 {
            break;
        }
        let (ways, parts, line) = ((leaf.ebx >> 22) + 1, ((leaf.ebx >> 12) & 1023) + 1, (leaf.ebx & 4095) + 1);
        let size = u64::from(ways) * u64::from(parts) * u64::from(line) * (u64::from(leaf.ecx) + 1);
        set_cache(found, (leaf.eax >> 5) & 7, kind == 2, size);
    }
    let numbers = [("family", family), ("model", model), ("stepping", one.eax & 15)];
    found.facts.extend(numbers.map(|(name, value)| (name.to_string(), value.to_string())));
    found.facts.insert("vendor".into(), vendor);
}

/// Identification registers from sysfs, else the fields of /proc/cpuinfo.
#[cfg(all(not(target_arch = "x86_64"), target_os = "linux"))]
fn silicon(found: &mut Topology) {
    let midr = |cpu: usize| text(format!("{CPUS}/cpu{cpu}/regs/identification/midr_el1"));
    let registers: BTreeSet<String> = (0..).map_while(midr).collect();
    if !registers.is_empty() {
        found.facts.insert("midr".into(), registers.into_iter().collect::<Vec<_>>().join(" "));
    }
    let info = text("/proc/cpuinfo").unwrap_or_default();
    let field = |wanted: &str| {
        info.lines()
            .filter_map(|l| l.split_once(':'))
            .find(|(name, _)| name.trim() == wanted)
            .map(|(_, v)| v.trim().to_string())
    };
    let fields = [
        ("CPU implementer", "implementer"),
        ("CPU part", "part"),
        ("CPU variant", "variant"),
        ("CPU revision", "revision"),
    ];
    for (theirs, ours) in fields {
        found.facts.extend(field(theirs).map(|value| (ours.to_string(), value)));
    }
    let model = text("/sys/firmware/devicetree/base/model").map(|m| m.trim_end_matches('\0').to_string());
    found.label = field("model name").or(model).unwrap_or_else(|| std::env::consts::ARCH.to_string());
}

/// Facts by `sysctl`; compiled for this target but not tested on one.
#[cfg(all(not(target_arch = "x86_64"), target_vendor = "apple"))]
fn silicon(found: &mut Topology) {
    let number = |name: &std::ffi::CStr| {
        let (mut value, mut size) = (0u64, size_of::<u64>());
        // SAFETY: the name ends in NUL, and value and size describe eight writable bytes.
        let rc =
            unsafe { libc::sysctlbyname(name.as_ptr(), (&raw mut value).cast(), &mut size, std::ptr::null_mut(), 0) };
        (rc == 0).then_some(value)
    };
    let mut brand = [0u8; 128];
    let mut size = brand.len();
    let name = c"machdep.cpu.brand_string";
    // SAFETY: as above, with 128 writable bytes.
    let rc =
        unsafe { libc::sysctlbyname(name.as_ptr(), brand.as_mut_ptr().cast(), &mut size, std::ptr::null_mut(), 0) };
    if rc == 0 {
        found.label = String::from_utf8_lossy(&brand[..size]).trim_end_matches('\0').to_string();
    }
    found.facts.insert("vendor".into(), "Apple".into());
    found.facts.extend(number(c"hw.cpufamily").map(|v| ("family".to_string(), v.to_string())));
    found.cores = number(c"hw.physicalcpu").map_or(found.cores, |n| n as u32);
    found.l1_bytes = number(c"hw.perflevel0.l1dcachesize").or(number(c"hw.l1dcachesize")).unwrap_or(0);
    found.l2_bytes = number(c"hw.perflevel0.l2cachesize").or(number(c"hw.l2cachesize")).unwrap_or(0);
    for (name, level) in [(c"hw.perflevel0.physicalcpu", "performance"), (c"hw.perflevel1.physicalcpu", "efficiency")] {
        found.classes.extend(number(name).map(|n| (level.to_string(), n as u32)));
    }
    found.hypervisor = number(c"kern.hv_vmm_present").map(|v| v == 1);
}

#[cfg(not(any(target_arch = "x86_64", target_os = "linux", target_vendor = "apple")))]
fn silicon(found: &mut Topology) {
    found.label = std::env::consts::ARCH.to_string();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_a_plausible_identity() {
        let found = probe();
        assert!(
            found.cores >= 1 && found.cores <= found.threads && found.default_threads() <= found.threads,
            "{found:?}"
        );
        assert!(found.llc_bytes >= found.l2_bytes && found.l2_bytes >= found.l1_bytes, "{found:?}");
        let identity = found.identity();
        assert!(!identity.label.is_empty() && identity.toolchain["rustc"].starts_with("rustc 1."), "{identity:?}");
        assert_eq!(identity, probe().identity());
        if cfg!(target_arch = "x86_64") {
            assert!(found.isa.iter().any(|f| f == "sse4.2") && found.l1_bytes >= 16 << 10, "{found:?}");
            let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
            let family =
                info.lines().find_map(|l| l.strip_prefix("cpu family")).map(|l| l.trim_matches([' ', '\t', ':']));
            assert!(family.is_none_or(|f| f == identity.silicon["family"]), "{family:?} {identity:?}");
            let tiles = found.isa.iter().any(|f| f == "amx-int8");
            // The system may refuse what the processor has, never the reverse.
            assert!(!tiles || info.is_empty() || info.contains(" amx_int8"), "{found:?}");
        }
    }

    /// A machine of six logical processors as its system lists it: what each sees of caches, and what lists it has.
    fn listed(lists: &[(&str, &str)], l2_kib: [u32; 6]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            fs::write(path, format!("{text}\n")).expect("written");
        };
        write("system/cpu/present", "0-5");
        for (cpu, kib) in l2_kib.iter().enumerate() {
            for (index, (level, kind, size)) in
                [(1, "Data", 32), (1, "Instruction", 64), (2, "Unified", *kib)].iter().enumerate()
            {
                for (name, text) in
                    [("level", level.to_string()), ("type", (*kind).to_owned()), ("size", format!("{size}K"))]
                {
                    write(&format!("system/cpu/cpu{cpu}/cache/index{index}/{name}"), &text);
                }
            }
        }
        lists.iter().for_each(|(path, text)| write(path, text));
        dir
    }

    /// Performance and efficiency cores: as many of each as the process may run on make another machine, which ones do not.
    #[test]
    fn unlike_cores_are_counted_by_kind_as_far_as_this_process_may_run_on_them() {
        let hybrid =
            listed(&[("cpu_core/cpus", "0-3"), ("cpu_atom/cpus", "4,5")], [1280, 1280, 1280, 1280, 2048, 2048]);
        let of = |allowed: &[usize]| {
            let classes = core_classes(hybrid.path(), Some(allowed));
            let threads = allowed.len() as u32;
            Topology { cores: threads, threads, classes, ..Topology::default() }
        };
        let text = |allowed: &[usize]| of(allowed).identity().silicon["classes"].clone();
        assert_eq!(text(&[0, 1, 2, 3, 4, 5]), "2 of cpu_atom L1 32K L2 2048K, 4 of cpu_core L1 32K L2 1280K");
        assert_eq!(text(&[4, 5]), "2 of cpu_atom L1 32K L2 2048K", "one kind alone is named too");
        let same = of(&[0, 1]).identity();
        assert_eq!(same, of(&[2, 3]).identity(), "which cores of a kind they are is no matter");
        assert!(same != of(&[4, 5]).identity() && same != of(&[0, 4]).identity(), "of which kind they are is");
        assert_eq!(core_classes(hybrid.path(), None).values().sum::<u32>(), 6);
    }

    #[test]
    fn cores_that_no_list_tells_apart_differ_by_capacity_or_cache() {
        let capacity = |cpu: usize, n: &str| (format!("system/cpu/cpu{cpu}/cpu_capacity"), n.to_owned());
        let capacities = [capacity(0, "1024"), capacity(1, "1024"), capacity(2, "512"), capacity(3, "512")];
        let lists: Vec<(&str, &str)> = capacities.iter().map(|(p, n)| (p.as_str(), n.as_str())).collect();
        assert_eq!(core_classes(listed(&lists, [512; 6]).path(), Some(&[0, 2, 3])).len(), 2);
        let dies = listed(&[], [512, 512, 512, 1024, 1024, 1024]);
        let counts: Vec<u32> = core_classes(dies.path(), Some(&[1, 2, 3])).into_values().collect();
        assert_eq!(counts, [1, 2], "by name: 1024K before 512K");
        let alike = listed(&[], [512; 6]);
        assert!(core_classes(alike.path(), Some(&[0, 1])).is_empty(), "on an ordinary machine nothing is said");
        assert!(core_classes(Path::new("/nowhere"), Some(&[0, 1])).is_empty());
        assert_eq!(cpu_list("0-2,5"), [0, 1, 2, 5]);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_process_that_may_run_on_fewer_processors_is_another_machine() {
        let all = probe();
        let allowed = affinity().expect("it can be asked");
        let one = std::thread::spawn(move || {
            run_on(allowed[0]);
            probe()
        });
        let one = one.join().expect("no panic");
        assert_eq!((one.threads, one.cores), (1, 1));
        assert_eq!(all.threads == 1, all.identity() == one.identity(), "{all:?} {one:?}");
        // The probe itself leaves the thread where it was.
        assert_eq!(probe().threads, all.threads);
    }

    #[test]
    fn quota_bounds_the_default() {
        let found = |quota| Topology { cores: 8, threads: 16, quota, ..Topology::default() }.default_threads();
        assert_eq!([found(None), found(Some(2.5)), found(Some(0.5)), found(Some(64.0))], [8, 2, 1, 8]);
    }

    #[test]
    fn group_limits_are_read_in_both_versions() {
        let dir = std::env::temp_dir().join(format!("planish-quota-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("a temporary folder");
        fs::write(dir.join("cpu.max"), "150000 100000\n").expect("written");
        assert_eq!(group_limit(&dir), Some(1.5));
        fs::write(dir.join("cpu.max"), "max 100000\n").expect("written");
        assert_eq!(group_limit(&dir), None);
        fs::remove_file(dir.join("cpu.max")).expect("removed");
        fs::write(dir.join("cpu.cfs_quota_us"), "-1\n").expect("written");
        fs::write(dir.join("cpu.cfs_period_us"), "100000\n").expect("written");
        assert_eq!(group_limit(&dir), None);
        fs::write(dir.join("cpu.cfs_quota_us"), "400000\n").expect("written");
        assert_eq!(group_limit(&dir), Some(4.0));
        fs::remove_dir_all(&dir).expect("removed");
    }
}
