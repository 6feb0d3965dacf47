// The dialect on Metal (MSL 3.1, for bfloat). Nearly empty: the dialect's names are Metal's own wherever Metal has one.
// Compiled with fast mathematics off: infinities, NaN and the order of sums are part of what an op promises.
#include <metal_stdlib>
using namespace metal;

typedef char schar;

#define INLINE inline
#define UNROLL _Pragma("clang loop unroll(full)")

inline float2 make_float2(float x, float y) { return float2(x, y); }
inline float4 make_float4(float x, float y, float z, float w) { return float4(x, y, z, w); }
inline uint2 make_uint2(uint x, uint y) { return uint2(x, y); }
inline uint4 make_uint4(uint x, uint y, uint z, uint w) { return uint4(x, y, z, w); }
inline float2 half_pair(uint u) { return float2(float(as_type<half>(ushort(u))), float(as_type<half>(ushort(u >> 16)))); }
inline uint half_word(float x, float y) { return uint(as_type<ushort>(half(x))) | uint(as_type<ushort>(half(y))) << 16; }
inline float4 to_float4(float4 v) { return v; }
inline float4 to_float4(half4 v) { return float4(v); }
inline float4 to_float4(bfloat4 v) { return float4(v); }
// uint, ushort, uchar, half, bfloat, their vectors float2, float4, half4, bfloat4, uint2 and uint4 with arithmetic and dot,
// and abs, ceil, clamp, cos, exp, exp2, floor, fma, isinf, isnan, log, log2, max, min, popcount, pow, rint, rsqrt, sin,
// sqrt and tanh are Metal's own.
inline float as_float(uint u) { return as_type<float>(u); }
inline uint as_uint(float f) { return as_type<uint>(f); }
inline uint mul_hi(uint a, uint b) { return mulhi(a, b); }
inline int dot4(int a, int b, int c) {
    const char4 x = as_type<char4>(a), y = as_type<char4>(b);
    return c + int(x.x) * int(y.x) + int(x.y) * int(y.y) + int(x.z) * int(y.z) + int(x.w) * int(y.w);
}
inline uint table16(uint4 t, uint codes) {
    uint r = 0;
    for (uint i = 0; i < 32; i += 8) {
        const uint c = codes >> i & 15u;
        const uint word = (c & 8u) ? ((c & 4u) ? t.w : t.z) : ((c & 4u) ? t.y : t.x);
        r |= (word >> (8u * (c & 3u)) & 255u) << i;
    }
    return r;
}
#define INF (as_type<float>(0x7f800000u))

// Declarations. SPEC constants are function constants by index; SHAPE constants are definitions above this text.
#define KERNEL(name, ...) kernel void name(__VA_ARGS__, uint group_ [[threadgroup_position_in_grid]], \
    uint groups_ [[threadgroups_per_grid]], uint thread_ [[thread_index_in_threadgroup]], \
    uint lane_ [[thread_index_in_simdgroup]], uint simd_ [[simdgroup_index_in_threadgroup]])
#define IN(T, n, i) DEVICE const T* n [[buffer(i)]]
#define OUT(T, n, i) DEVICE T* n [[buffer(i)]]
#define INOUT(T, n, i) DEVICE T* n [[buffer(i)]]
#define ATOMIC(T, n, i) device atomic<T>* n [[buffer(i)]]
#ifndef PARAMS
#define PARAMS(T, n, i) constant T& n [[buffer(i)]]
#endif
#define DPTR(T) DEVICE T*
#define TPTR(T) threadgroup T*
#define APTR(T) device atomic<T>*
#define LREF(T) thread T&
#define LPTR(T) thread T*
#ifndef DCAST
#define DCAST(T, p) ((DEVICE T*)(p))
#endif
#ifndef SHARED
#define SHARED(T, n, N) threadgroup T n[N]
#endif
// Bytes of the one array whose size the launch decides; on Metal the backend compiles them in.
#ifndef DYNAMIC_BYTES
#define DYNAMIC_BYTES 16
#endif
#define SHARED_DYNAMIC(T, n) SHARED(T, n, DYNAMIC_BYTES / sizeof(T))
#ifndef SPEC_U32
#define SPEC_U32(n, i) constant uint n [[function_constant(i)]];
#define SPEC_BOOL(n, i) constant bool n [[function_constant(i)]];
#endif
#define CONST_TABLE(T, n, N) constant T n[N]

// Where a thread is; in kernel bodies only.
#define MAX_SIMD 32
#define TG_X (group_)
#define TG_COUNT (groups_)
#define TID (thread_)
#define LANE (lane_)
#define SIMD (simd_)
#define TG_BARRIER() threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup)
#define SIMD_BARRIER() simdgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup)

// Atomics on device memory, relaxed.
template <class T> inline T atomic_add(device atomic<T>* a, uint i, T v) { return atomic_fetch_add_explicit(a + i, v, memory_order_relaxed); }
inline uint atomic_max(device atomic<uint>* a, uint i, uint v) { return atomic_fetch_max_explicit(a + i, v, memory_order_relaxed); }
template <class T> inline T atomic_load(device atomic<T>* a, uint i) { return atomic_load_explicit(a + i, memory_order_relaxed); }
template <class T> inline void atomic_store(device atomic<T>* a, uint i, T v) { atomic_store_explicit(a + i, v, memory_order_relaxed); }

// TICKS() and TICKS_BEHIND() are not here: shaders read no clock.

// Metal promises no progress of one group while another waits, so a grid barrier may hang.
// A backend that knows its device defines METAL_GRID_BARRIER and launches no more groups than are resident at once;
// memory is then `coherent` over the device (MSL 3.2), and groups meet as on CUDA: the top bit of the counter turns.
#ifdef METAL_GRID_BARRIER
#define DEVICE coherent(device) device
#define KERNEL_GRID(name, ...) KERNEL(name, __VA_ARGS__)
inline void grid_barrier(device atomic<uint>* counter, uint group, uint groups, uint thread_id) {
    atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_device);
    threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
    if (thread_id == 0) {
        const uint old = atomic_add(counter, 0u, group == 0 ? 0x80000000u - (groups - 1) : 1u);
        while (((old ^ atomic_load(counter, 0u)) & 0x80000000u) == 0) {}
    }
    threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
    atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_device);
}
#define GRID_BARRIER(counter) grid_barrier(counter, group_, groups_, thread_)
inline void grid_arrive(device atomic<uint>* counter, uint group, uint groups, uint thread_id) {
    atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_device);
    threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
    if (thread_id == 0) atomic_add(counter, 0u, group == 0 ? 0x80000000u - (groups - 1) : 1u);
}
inline void grid_wait(device atomic<uint>* counter, thread uint& sense, uint thread_id) {
    if (thread_id == 0)
        while (((atomic_load(counter, 0u) ^ sense) & 0x80000000u) == 0) {}
    sense ^= 0x80000000u;
    threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
    atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_device);
}
#define GRID_SENSE(counter) (atomic_load(counter, 0u) & 0x80000000u)
#define GRID_ARRIVE(counter) grid_arrive(counter, group_, groups_, thread_)
#define GRID_WAIT(counter, sense) grid_wait(counter, sense, thread_)
#define GRID_ARRIVE_LOOSE(counter, fenced) GRID_ARRIVE(counter)
#define GRID_WAIT_LOOSE(counter, sense, fenced) GRID_WAIT(counter, sense)
#else
#define DEVICE device
#endif
// Metal promises no progress that would let a group look for another's words without a barrier.
#define GRID_LOOKS 0
#define LOOK_AGAIN() ((void)0)
// Words that other groups may write meanwhile; here a barrier is between.
template <class T> inline T relaxed_load(DEVICE const T* p) { return p[0]; }
template <class T> inline T relaxed_load(DEVICE T* p) { return p[0]; }
template <class T> inline void relaxed_store(DEVICE T* p, T v) { p[0] = v; }

// Metal has no way to bring memory closer ahead of its use.
template <class P> inline void prefetch(P p, uint bytes) {}

// Copies of a SIMD group into threadgroup memory: over at once here.
typedef uint copy_t;
inline void simd_copies(threadgroup copy_t* c, uint n, uint lane) {}
inline void simd_copy(threadgroup uint4* to, uint pitch, DEVICE const uint4* from, uint at, uint stride, uint quads, uint rows,
                      threadgroup copy_t* c, uint lane) {
    SIMD_BARRIER();
    for (uint r = 0; r < rows; ++r) {
        const uint first = at + r * stride;
        for (uint i = lane; i < quads; i += 32) to[r * pitch + (first & 7) + i] = from[ulong(first) + i];
    }
}
inline void simd_copy_wait(threadgroup copy_t* c, uint turn) { SIMD_BARRIER(); }
inline void simd_load_none() {}
inline void simd_load(threadgroup uint4* to, uint pitch, DEVICE const uint4* from, uint at, uint stride, uint quads, uint rows,
                      uint lane) {
    simd_copy(to, pitch, from, at, stride, quads, rows, (threadgroup copy_t*)0, lane);
}
#define SIMD_LOAD_WAIT(left) SIMD_BARRIER()

// simd_max, simd_min, simd_shuffle, simd_shuffle_up, simd_shuffle_xor and simd_sum over the 32 lanes are Metal's own.

// 16x16 tiles as 2x2 tiles of 8x8. A tile is half or bfloat by what it was loaded from; the other form is never touched,
// and which one it is, is known at compile time wherever a tile is loaded in sight.
struct mm_acc { simdgroup_float8x8 v[2][2]; };
struct mm_a { simdgroup_half8x8 h[2][2]; simdgroup_bfloat8x8 b[2][2]; bool wide; };
struct mm_b { simdgroup_half8x8 h[2][2]; simdgroup_bfloat8x8 b[2][2]; bool wide; };
#define MM_EACH for (ushort i = 0; i < 2; ++i) for (ushort j = 0; j < 2; ++j)
#define MM_LOADS(SPACE) \
    inline void mm_load_a(thread mm_a& a, SPACE const half* p, uint s) { \
        a.wide = false; MM_EACH simdgroup_load(a.h[i][j], p + i * 8 * s + j * 8, s, ulong2(0), false); } \
    inline void mm_load_a(thread mm_a& a, SPACE const bfloat* p, uint s) { \
        a.wide = true; MM_EACH simdgroup_load(a.b[i][j], p + i * 8 * s + j * 8, s, ulong2(0), false); } \
    inline void mm_load_bt(thread mm_b& b, SPACE const half* p, uint s) { \
        b.wide = false; MM_EACH simdgroup_load(b.h[i][j], p + j * 8 * s + i * 8, s, ulong2(0), true); } \
    inline void mm_load_bt(thread mm_b& b, SPACE const bfloat* p, uint s) { \
        b.wide = true; MM_EACH simdgroup_load(b.b[i][j], p + j * 8 * s + i * 8, s, ulong2(0), true); } \
    inline void mm_store(thread const mm_acc& c, SPACE float* p, uint s) { \
        MM_EACH simdgroup_store(c.v[i][j], p + i * 8 * s + j * 8, s, ulong2(0), false); }
MM_LOADS(device)
MM_LOADS(threadgroup)
inline void mm_load_b(thread mm_b& b, threadgroup const half* p, uint s) {
    b.wide = false; MM_EACH simdgroup_load(b.h[i][j], p + i * 8 * s + j * 8, s, ulong2(0), false); }
inline void put_halves(threadgroup half* p, uint4 v) {
    const uint words[4] = {v.x, v.y, v.z, v.w};
    for (ushort i = 0; i < 8; ++i) p[i] = as_type<half>(ushort(words[i / 2] >> (16 * (i % 2)))); }
inline void mm_zero(thread mm_acc& c) { MM_EACH c.v[i][j] = make_filled_simdgroup_matrix<float, 8>(0.0f); }
inline void mm_mac(thread mm_acc& c, thread const mm_a& a, thread const mm_b& b) {
    MM_EACH for (ushort k = 0; k < 2; ++k) {
        if (a.wide) simdgroup_multiply_accumulate(c.v[i][j], a.b[i][k], b.b[k][j], c.v[i][j]);
        else simdgroup_multiply_accumulate(c.v[i][j], a.h[i][k], b.h[k][j], c.v[i][j]);
    }
}// Both elements that a lane has of an 8x8 tile are in one row.
inline void mm_scale_rows(thread mm_acc& c, threadgroup const float* rows, uint lane) {
    const uint row = (lane >> 2 & 4u) + (lane >> 1 & 3u);
    MM_EACH { c.v[i][j].thread_elements()[0] *= rows[8 * i + row]; c.v[i][j].thread_elements()[1] *= rows[8 * i + row]; }
}
