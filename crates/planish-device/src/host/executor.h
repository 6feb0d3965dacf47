// The executor's own interface: what the host prelude needs of the scheduler, free of dialect names.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace exec {
[[noreturn]] void fail(const char* fmt, ...) __attribute__((format(printf, 1, 2)));

struct Ids { uint32_t group, thread; };
extern Ids ids;                        // of the fiber that runs now
extern uint32_t grid_groups;           // groups of the launch

struct Arg { unsigned char* ptr; uint64_t len; };
extern const Arg* args;                // of the launch, in the kernel's order, the parameter block last
extern uint32_t n_args;

// Rendezvous of the 32 lanes of a SIMD group; op and line name the call site, so that divergence is reported by name.
uint32_t* simd_post(uint32_t bits, const char* op, int line);
void simd_sync(const char* op, int line);
void** simd_pointers(void* p, int slot, const char* op, int line);
void group_barrier(int line);
void simd_barrier(int line);
void grid_barrier(int line);
void yield(int line);                  // lets every other thread that can run go first

// Threadgroup memory: one slot per declaration, one block per slot and group, poisoned with NaN when a group starts.
struct Cell { uint32_t w_epoch, r_epoch, w_simd, r_simd; uint16_t w_thread, r_thread; bool r_many, r_wide; };
struct Block { unsigned char* bytes; Cell* cells; };
uint32_t new_slot();
Block shared_block(uint32_t slot, size_t elements, size_t element_bytes, const char* name);
Block dynamic_block(size_t element_bytes, size_t& elements, const char* name);   // the array whose size the launch decides
void check_read(Cell* c, const char* name, size_t i);
void check_write(Cell* c, const char* name, size_t i);
void atomic_guard(void* address);      // orders atomic operations for the race detector

// A SPEC constant: registered by name, set for each launch.
struct Spec {
    const char* name; uint32_t value; bool given; Spec* next;
    explicit Spec(const char* n);
};
// A kernel: registered by name with the kinds of its arguments (r: read, w: written, p: parameter block).
struct Kernel {
    const char* name; void (*run)(); const char* kinds; bool grid; Kernel* next;
    Kernel(const char* n, void (*f)(), const char* k, bool g);
};

static inline uint32_t bits(float f) { uint32_t u; memcpy(&u, &f, 4); return u; }
static inline uint32_t bits(uint32_t u) { return u; }
static inline uint32_t bits(int32_t i) { return (uint32_t)i; }
template <class T> static inline T from_bits(uint32_t u) { T t; memcpy(&t, &u, 4); return t; }
}  // namespace exec
