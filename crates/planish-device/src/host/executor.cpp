// Runs kernels of the dialect on one CPU thread: every GPU thread is a fiber, and the scheduler owns all barriers.
//
// A group runs at a time, except in a grid launch, where all groups are resident.
// Barrier divergence, races and uninitialised reads of threadgroup memory, and accesses out of bounds end the launch
// with a message; races on device memory are the thread sanitizer's to find, for which each fiber has an identity.
#include "executor.h"
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <string>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>
// This file itself is never instrumented: it would see every fiber's stack and every hand-over as a fault.
#ifdef EXEC_THREAD
#include <sanitizer/tsan_interface.h>
#endif
#ifdef EXEC_ADDRESS
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace exec {
static constexpr size_t STACK = 96 << 10, PAGE = 4096;
static constexpr size_t SHARED_LIMIT = 32 << 10;       // Metal's; a kernel for CUDA alone may use more, as dynamic memory
static constexpr uint32_t LANES = 32, MOST_THREADS = 1024, MOST_SLOTS = 256;
enum class State : uint8_t { Runnable, AtSimd, AtGroup, AtGrid, Done };

struct Group;
struct Fiber {
    void* sp = nullptr; char* stack = nullptr; size_t size = 0; void* tsan = nullptr; void* fake = nullptr;
    Ids ids{}; Group* group = nullptr; State state = State::Done; const char* op = ""; int line = 0; uint32_t parity = 0;
};
struct Simd { uint32_t waiting = 0; const char* op = ""; int line = 0; uint32_t v[2][LANES]; void* p[2][LANES]; uint32_t epoch = 1; };
struct Free { void operator()(void* p) const { free(p); } };
using Bytes = std::unique_ptr<unsigned char, Free>;
static Bytes aligned(size_t bytes) {
    void* m = nullptr;
    if (posix_memalign(&m, 64, bytes ? bytes : 1)) { fprintf(stderr, "no memory for %zu bytes\n", bytes); _exit(3); }
    return Bytes((unsigned char*)m);
}
struct Shared { size_t bytes = 0; Bytes mem; std::vector<Cell> cells; uint64_t serial = 0; };
struct Group {
    Simd simd[MOST_THREADS / LANES]; uint32_t first = 0, waiting = 0, done = 0, epoch = 1; int line = 0; uint64_t serial = 0; size_t used = 0;
    std::deque<Shared> shared; Bytes dynamic; std::vector<Cell> dynamic_cells; bool dynamic_bound = false;
    Bytes tokens;        // addresses by which the thread sanitizer knows the barriers, fresh for every group: its own, then its SIMD groups'
};

Ids ids; uint32_t grid_groups; const Arg* args; uint32_t n_args;
static Kernel* kernels; static Spec* specs; static uint32_t slots;
static Fiber home; static std::deque<Fiber> fibers; static std::vector<Fiber*> at; static Fiber* current;
static std::vector<Fiber*> ring; static size_t ring_head, ring_tail;       // fibers that can run; nothing is allocated while they do
static std::vector<Bytes> garbage;                                       // blocks of groups before, freed when the launch is over
static std::deque<Group> groups; static const Kernel* kernel; static uint32_t threads, resident, grid_waiting, dynamic_bytes; static int grid_line;
static uint64_t serials; static bool failed; static std::string failure; static uint64_t order;
static char start_sync, end_sync, grid_sync;

Spec::Spec(const char* n) : name(n), value(0), given(false), next(specs) { specs = this; }
Kernel::Kernel(const char* n, void (*f)(), const char* k, bool g) : name(n), run(f), kinds(k), grid(g), next(kernels) { kernels = this; }
uint32_t new_slot() {
    if (slots == MOST_SLOTS) fail("more than %u threadgroup arrays", MOST_SLOTS);
    return slots++;
}

static inline void release([[maybe_unused]] void* p) {
#ifdef EXEC_THREAD
    __tsan_release(p);
#endif
}
static inline void acquire([[maybe_unused]] void* p) {
#ifdef EXEC_THREAD
    __tsan_acquire(p);
#endif
}
void atomic_guard(void* p) { acquire(p); release(p); }

// Switches stacks: saves the callee-saved registers, stores the stack pointer, loads the other's.
extern "C" void exec_switch(void** save, void* load);
#if defined(__x86_64__)
asm(R"(
.text
.globl exec_switch
.type exec_switch,@function
exec_switch:
    pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
    ret
.size exec_switch, .-exec_switch
)");
static constexpr int FRAME_WORDS = 6;
#elif defined(__aarch64__)
#ifdef __APPLE__
#define EXEC_SYMBOL "_exec_switch"
#else
#define EXEC_SYMBOL "exec_switch"
#endif
asm(".text\n.globl " EXEC_SYMBOL "\n.p2align 2\n" EXEC_SYMBOL ":\n" R"(
    sub sp, sp, #176
    stp x19, x20, [sp]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #176
    ret
)");
#else
#error "the host executor switches stacks on x86-64 and AArch64 only"
#endif

static void go(Fiber& from, Fiber& to) {
    from.ids = ids; ids = to.ids; current = &to;
#ifdef EXEC_THREAD
    __tsan_switch_to_fiber(to.tsan, __tsan_switch_to_fiber_no_sync);
#endif
#ifdef EXEC_ADDRESS
    __sanitizer_start_switch_fiber(&from.fake, to.stack, to.size);
#endif
    exec_switch(&from.sp, to.sp);
#ifdef EXEC_ADDRESS
    const void* bottom; size_t size; __sanitizer_finish_switch_fiber(from.fake, &bottom, &size);
#endif
}

static void leave_failed() { failed = true; go(*current, home); abort(); }
void fail(const char* fmt, ...) {
    char text[768]; va_list a; va_start(a, fmt); vsnprintf(text, sizeof text, fmt, a); va_end(a);
    failure = "group " + std::to_string(ids.group) + " thread " + std::to_string(ids.thread) + ": " + text;
    leave_failed(); abort();
}

// Who waits where, neighbours in one place taken together.
static std::string standing() {
    std::string out; int shown = 0;
    for (size_t i = 0; i < at.size() && shown < 6; ++shown) {
        size_t j = i;
        const Fiber& f = *at[i];
        const auto same = [&](const Fiber& o) { return o.state == f.state && o.line == f.line && o.ids.group == f.ids.group; };
        while (j < at.size() && same(*at[j])) ++j;
        const char* what = f.state == State::Done ? "returned" : f.state == State::AtGroup ? "at TG_BARRIER" : f.state == State::AtGrid ? "at GRID_BARRIER" : f.state == State::AtSimd ? f.op : "running";
        out += "; group " + std::to_string(f.ids.group) + " threads " + std::to_string(f.ids.thread) + ".." + std::to_string(at[j - 1]->ids.thread) + " " + what;
        if (f.state != State::Done) out += " line " + std::to_string(f.line);
        i = j;
    }
    return out;
}

static void push(Fiber* f) { ring[ring_tail] = f; if (++ring_tail == ring.size()) ring_tail = 0; }
static Fiber* pop() { Fiber* f = ring[ring_head]; if (++ring_head == ring.size()) ring_head = 0; return f; }
static void next() {
    if (ring_head == ring_tail) { failure = "barrier divergence" + standing(); leave_failed(); }
    Fiber* to = pop();
    Fiber& from = *current; if (to != &from) go(from, *to);
}
static void wake_others(size_t first, size_t n) {
    for (size_t i = first; i < first + n; ++i) if (at[i] != current) { at[i]->state = State::Runnable; push(at[i]); }
}

static void entry() {
#ifdef EXEC_ADDRESS
    { const void* b; size_t s; __sanitizer_finish_switch_fiber(nullptr, &b, &s); if (!home.stack) { home.stack = (char*)b; home.size = s; } }
#endif
    for (;;) {
        acquire(&start_sync); kernel->run(); release(&end_sync);
        Fiber& f = *current; f.state = State::Done; ++f.group->done;
        bool all = true;
        for (uint32_t g = 0; g < resident; ++g) all &= groups[g].done == threads;
        if (all) go(f, home); else next();
    }
}
static void fiber_reset(Fiber& f, uint32_t t) {
    [[maybe_unused]] const size_t color = 320 * (t % LANES);      // or all stacks share the same cache sets
    if (!f.stack) {
        char* m = (char*)mmap(nullptr, STACK + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON, -1, 0);
        if (m == MAP_FAILED) { fprintf(stderr, "no memory for the stack of a thread\n"); _exit(3); }
        mprotect(m, PAGE, PROT_NONE);                             // an overflow faults
        f.stack = m + PAGE; f.size = STACK;
#ifdef EXEC_THREAD
        f.tsan = __tsan_create_fiber(0);
#endif
    }
#ifdef EXEC_ADDRESS
    __asan_unpoison_memory_region(f.stack, f.size);
#endif
#if defined(__x86_64__)
    void** s = (void**)(f.stack + STACK - color); *--s = nullptr; *--s = (void*)entry; s -= FRAME_WORDS; memset(s, 0, 8 * FRAME_WORDS); f.sp = s;
#else
    void** s = (void**)(f.stack + STACK - color) - 22; memset(s, 0, 176); s[11] = (void*)entry; f.sp = s;
#endif
}

static Simd& my_simd() { return current->group->simd[ids.thread / LANES]; }
static uint32_t my_lanes() { const uint32_t lo = ids.thread / LANES * LANES; return lo + LANES < threads ? LANES : threads - lo; }
static void simd_wait(const char* op, int line) {
    Simd& w = my_simd(); Fiber& f = *current;
    if (w.waiting && (w.line != line || strcmp(w.op, op)))
        fail("SIMD group diverged: other lanes wait in %s line %d, this one reached %s line %d", w.op, w.line, op, line);
    w.op = op; w.line = line; f.op = op; f.line = line;
    if (++w.waiting == my_lanes()) {
        w.waiting = 0;
        wake_others(f.group->first + ids.thread / LANES * LANES, my_lanes());
    } else { f.state = State::AtSimd; next(); }
}
uint32_t* simd_post(uint32_t v, const char* op, int line) {
    Simd& w = my_simd(); const uint32_t p = current->parity ^= 1;
    w.v[p][ids.thread % LANES] = v; simd_wait(op, line); return w.v[p];
}
static void* my_token() { return current->group->tokens.get() + 1 + ids.thread / LANES; }
void simd_sync(const char* op, int line) { release(my_token()); simd_wait(op, line); acquire(my_token()); }
void** simd_pointers(void* q, int slot, const char* op, int line) {
    Simd& w = my_simd(); w.p[slot][ids.thread % LANES] = q; simd_sync(op, line); return w.p[slot];
}
void simd_barrier(int line) {
    Simd& w = my_simd(); release(my_token()); const uint32_t e = w.epoch;
    simd_wait("SIMD_BARRIER", line); if (w.epoch == e) ++w.epoch; acquire(my_token());
}
void group_barrier(int line) {
    Fiber& f = *current; Group& g = *f.group;
    if (g.waiting && g.line != line) fail("different barriers: others wait at line %d, this thread at line %d", g.line, line);
    g.line = line; f.line = line; release(g.tokens.get());
    if (++g.waiting == threads) {
        g.waiting = 0; ++g.epoch;
        wake_others(g.first, threads);
    } else { f.state = State::AtGroup; next(); }
    acquire(g.tokens.get());
}
void grid_barrier(int line) {
    Fiber& f = *current;
    if (!kernel->grid) fail("GRID_BARRIER in a kernel not declared with KERNEL_GRID");
    if (grid_waiting && grid_line != line) fail("different grid barriers: others wait at line %d, this thread at line %d", grid_line, line);
    grid_line = line; f.line = line; release(&grid_sync);
    if (++grid_waiting == threads * resident) {
        grid_waiting = 0;
        for (uint32_t g = 0; g < resident; ++g) ++groups[g].epoch;
        wake_others(0, at.size());
    } else { f.state = State::AtGrid; next(); }
    acquire(&grid_sync);
}

void yield(int line) {
    Fiber& f = *current;
    f.line = line; push(&f); next();
}

static void count_shared(Group& g, size_t bytes, const char* name) {
    if ((g.used += bytes) > SHARED_LIMIT) fail("threadgroup memory of %zu bytes at %s: Metal allows %zu", g.used, name, SHARED_LIMIT);
}
Block shared_block(uint32_t slot, size_t elements, size_t element_bytes, const char* name) {
    Group& g = *current->group; Shared& s = g.shared[slot];
    if (s.serial != g.serial) {
        const size_t bytes = elements * element_bytes;
        count_shared(g, bytes, name);
        s.serial = g.serial;
#ifdef EXEC_THREAD       // a fresh block for each group, so that the sanitizer forgets the group before
        garbage.push_back(std::move(s.mem)); s.mem = aligned(bytes);
#else
        if (s.bytes != bytes) { s.mem = aligned(bytes); s.bytes = bytes; }
#endif
#ifndef EXEC_RAW
        s.cells.assign(elements, Cell{});
#endif
        memset(s.mem.get(), 0xff, bytes); release(s.mem.get());
    } else acquire(s.mem.get());
    return {s.mem.get(), s.cells.data()};
}
Block dynamic_block(size_t element_bytes, size_t& elements, const char* name) {
    Group& g = *current->group; elements = dynamic_bytes / element_bytes;
    if (!g.dynamic_bound) {
        g.dynamic_bound = true; count_shared(g, dynamic_bytes, name);
#ifndef EXEC_RAW
        g.dynamic_cells.assign(elements, Cell{});
#endif
    }
    return {g.dynamic.get(), g.dynamic_cells.data()};
}
static bool ordered(uint32_t epoch, uint32_t simd_epoch, uint32_t thread) {
    const Group& g = *current->group;
    return epoch < g.epoch || thread == ids.thread || (thread / LANES == ids.thread / LANES && simd_epoch < my_simd().epoch);
}
void check_read(Cell* c, const char* name, size_t i) {
    if (!c->w_epoch) fail("read of uninitialised threadgroup memory %s[%zu]", name, i);
    if (!ordered(c->w_epoch, c->w_simd, c->w_thread)) fail("data race: %s[%zu] read here, written by thread %u with no barrier between", name, i, c->w_thread);
    // Readers since the last barrier of the group: wide, of several SIMD groups; many, of this one since its last barrier.
    const uint32_t epoch = current->group->epoch, simd = my_simd().epoch; const bool same = c->r_epoch == epoch;
    c->r_wide = same && (c->r_wide || c->r_thread / LANES != ids.thread / LANES);
    c->r_many = same && (c->r_wide || (c->r_simd == simd && (c->r_many || c->r_thread != ids.thread)));
    c->r_epoch = epoch; c->r_simd = simd; c->r_thread = ids.thread;
}
void check_write(Cell* c, const char* name, size_t i) {
    if (c->w_epoch && !ordered(c->w_epoch, c->w_simd, c->w_thread)) fail("data race: %s[%zu] written here and by thread %u with no barrier between", name, i, c->w_thread);
    if (c->r_epoch && !ordered(c->r_epoch, c->r_simd, c->r_thread)) fail("data race: %s[%zu] written here, read by thread %u with no barrier between", name, i, c->r_thread);
    const bool fresh = c->r_epoch == current->group->epoch && c->r_many && (c->r_wide || c->r_simd == my_simd().epoch);
    if (fresh) fail("data race: %s[%zu] written here, read by another thread with no barrier between", name, i);
    c->w_epoch = current->group->epoch; c->w_simd = my_simd().epoch; c->w_thread = ids.thread;
}

static uint64_t shuffle() { order ^= order << 13; order ^= order >> 7; order ^= order << 17; return order; }
// Runs groups first..first+n together to their end.
static bool run_groups(uint32_t first, uint32_t n) {
    resident = n; grid_waiting = 0; failed = false; ring.assign((size_t)n * threads + 1, nullptr); ring_head = ring_tail = 0;
    while (groups.size() < n) groups.emplace_back();
    // Room that fibers need is made here: the thread sanitizer would take an allocation by one and its release by another for a race.
    garbage.reserve(garbage.size() + n * (MOST_SLOTS + 2));
    for (uint32_t g = 0; g < n; ++g) {
        Group& it = groups[g];
        it.serial = ++serials; it.first = g * threads; it.used = 0; it.done = it.waiting = 0; it.epoch = 1;
        garbage.push_back(std::move(it.tokens)); garbage.push_back(std::move(it.dynamic));
        it.tokens = aligned(1 + MOST_THREADS / LANES); it.dynamic = aligned(dynamic_bytes); it.dynamic_bound = false; memset(it.dynamic.get(), 0xff, dynamic_bytes);
        while (it.shared.size() < MOST_SLOTS) it.shared.emplace_back();
        for (Simd& s : it.simd) { s.waiting = 0; s.epoch = 1; }
    }
    at.assign((size_t)n * threads, nullptr);
    for (uint32_t g = 0; g < n; ++g) for (uint32_t t = 0; t < threads; ++t) {
        // Thread t of the next group is another fiber, so that races between groups show even for equal thread ids.
        Fiber& f = fibers[g * threads + (t + first) % threads];
        f.state = State::Runnable; f.parity = 0; f.line = 0; f.ids = {first + g, t}; f.group = &groups[g]; at[g * threads + t] = &f;
    }
    std::vector<Fiber*> start = at;
    if (order) for (size_t i = start.size(); i > 1; --i) std::swap(start[i - 1], start[shuffle() % i]);
    for (Fiber* f : start) push(f);
    release(&start_sync);
    go(home, *pop());
    return !failed;
}

struct Request { std::string name; uint32_t groups, threads, dynamic, seed; };
static std::string launch(const Request& r, const std::vector<Arg>& given) {
    for (kernel = kernels; kernel && r.name != kernel->name; kernel = kernel->next) {}
    if (!kernel) return "there is no kernel " + r.name;
    if (strlen(kernel->kinds) != given.size()) return r.name + " takes " + std::to_string(strlen(kernel->kinds)) + " arguments, " + std::to_string(given.size()) + " were given";
    if (r.threads == 0 || r.threads > MOST_THREADS || r.threads % LANES) return "a group of " + std::to_string(r.threads) + " threads";
    for (Spec* s = specs; s; s = s->next) if (!s->given) return std::string("constant SPEC_") + s->name + " was not given";
    const uint32_t together = kernel->grid ? r.groups : 1;
    if ((uint64_t)together * r.threads > 16384) return "a grid of " + std::to_string(together) + " resident groups of " + std::to_string(r.threads) + " threads";
    threads = r.threads; grid_groups = r.groups; dynamic_bytes = r.dynamic; args = given.data(); n_args = given.size(); order = r.seed ? r.seed * 0x9E3779B97F4A7C15ull : 0;
    while (fibers.size() > (size_t)together * threads) { munmap(fibers.back().stack - PAGE, STACK + PAGE); fibers.pop_back(); }
    while (fibers.size() < (size_t)together * threads) fibers.emplace_back();
    for (uint32_t t = 0; t < fibers.size(); ++t) fiber_reset(fibers[t], t);
#ifdef EXEC_THREAD
    home.tsan = __tsan_get_current_fiber();
#endif
    // Each group comes after what was done here before it, but groups are not ordered among each other.
    for (uint32_t g = 0; g < r.groups; g += together) if (!run_groups(g, together)) return r.name + ": " + failure;
    acquire(&end_sync); garbage.clear();
    return "";
}

// The protocol: little-endian frames on standard input and output, as `runner.rs` writes and reads them.
static void read_all(void* to, size_t n) {
    char* p = (char*)to;
    while (n) { const ssize_t k = read(0, p, n); if (k <= 0) _exit(0); p += k; n -= k; }
}
static void write_all(const void* from, size_t n) {
    const char* p = (const char*)from;
    while (n) { const ssize_t k = write(1, p, n); if (k <= 0) _exit(0); p += k; n -= k; }
}
static uint32_t read_u32() { uint32_t v; read_all(&v, 4); return v; }
static uint64_t read_u64() { uint64_t v; read_all(&v, 8); return v; }
static std::string read_text() { std::string s(read_u32(), 0); read_all(s.data(), s.size()); return s; }
static void write_u32(uint32_t v) { write_all(&v, 4); }

static void serve() {
    for (;;) {
        Request r; r.name = read_text(); r.groups = read_u32(); r.threads = read_u32(); r.dynamic = read_u32(); r.seed = read_u32();
        std::string error;
        for (Spec* s = specs; s; s = s->next) s->given = false;
        for (uint32_t n = read_u32(); n; --n) {
            const std::string name = read_text(); const uint32_t value = read_u32(); Spec* s = specs;
            while (s && name != s->name) s = s->next;
            if (s) { s->value = value; s->given = true; } else error = "constant SPEC_" + name + " does not reach the kernel";
        }
        // Each block is an allocation of its own size, so that the address sanitizer knows its end.
        std::vector<Bytes> blocks; std::vector<uint64_t> sizes;
        for (uint32_t n = read_u32(); n; --n) {
            const uint64_t len = read_u64();
            blocks.push_back(aligned(len)); sizes.push_back(len); read_all(blocks.back().get(), len);
        }
        std::vector<Arg> given; std::vector<uint32_t> from;
        for (uint32_t n = read_u32(); n; --n) {
            const uint32_t b = read_u32(); const uint64_t at = read_u64(), len = read_u64();
            given.push_back({blocks[b].get() + at, len}); from.push_back(b);
        }
        if (error.empty()) error = launch(r, given);
        write_u32(error.size()); write_all(error.data(), error.size());
        std::vector<bool> changed(blocks.size());
        if (error.empty()) for (size_t i = 0; i < given.size(); ++i) if (kernel->kinds[i] == 'w') changed[from[i]] = true;
        uint32_t n = 0; for (bool c : changed) n += c;
        write_u32(n);
        for (uint32_t b = 0; b < blocks.size(); ++b) if (changed[b]) { write_u32(b); write_all(blocks[b].get(), sizes[b]); }
    }
}
}  // namespace exec

int main() { exec::serve(); }
