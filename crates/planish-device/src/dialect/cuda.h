// The dialect on CUDA, for NVRTC alone: no header of the toolkit is needed. From sm_80 on.
// GROUP_THREADS, the threads of a group, comes from outside and bounds the registers of a thread.
typedef unsigned int uint; typedef unsigned short ushort; typedef unsigned char uchar; typedef signed char schar;

#define INLINE static __device__ __forceinline__
#define UNROLL _Pragma("unroll")

struct __align__(2) half {
    ushort u; half() = default;
    __device__ __forceinline__ explicit half(float f) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(u) : "f"(f)); }
    __device__ __forceinline__ explicit operator float() const { float f; asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(u)); return f; }
};
struct __align__(2) bfloat {
    ushort u; bfloat() = default;
    __device__ __forceinline__ explicit bfloat(float f) { asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(u) : "f"(f)); }
    __device__ __forceinline__ explicit operator float() const { return __uint_as_float((uint)u << 16); }
};
struct __align__(8) half4 { half x, y, z, w; };
struct __align__(8) bfloat4 { bfloat x, y, z, w; };
INLINE float2 half_pair(uint u) { half a, b; a.u = (ushort)u; b.u = (ushort)(u >> 16); return make_float2(float(a), float(b)); }
INLINE uint half_word(float x, float y) { uint w; asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(y), "f"(x)); return w; }
// float2, float4, uint2, uint4, make_float2, make_float4, make_uint2 and make_uint4 are the compiler's own.
INLINE float4 to_float4(float4 v) { return v; }
INLINE float4 to_float4(half4 h) { return make_float4(float(h.x), float(h.y), float(h.z), float(h.w)); }
INLINE float4 to_float4(bfloat4 h) { return make_float4(float(h.x), float(h.y), float(h.z), float(h.w)); }
INLINE float4 operator+(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }
INLINE float4 operator-(float4 a, float4 b) { return make_float4(a.x - b.x, a.y - b.y, a.z - b.z, a.w - b.w); }
INLINE float4 operator*(float4 a, float4 b) { return make_float4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w); }
INLINE float4 operator*(float4 a, float b) { return make_float4(a.x * b, a.y * b, a.z * b, a.w * b); }
INLINE float dot(float4 a, float4 b) { return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w; }

// abs, ceil, cos, exp, exp2, floor, fma, isinf, isnan, log, log2, max, min, pow, rint, rsqrt, sin, sqrt and tanh of float
// are the compiler's own, and accurate: no fast mathematics.
INLINE float clamp(float x, float lo, float hi) { return fminf(fmaxf(x, lo), hi); }
INLINE float as_float(uint u) { return __uint_as_float(u); }
INLINE uint as_uint(float f) { return __float_as_uint(f); }
INLINE uint popcount(uint x) { return __popc(x); }
INLINE uint mul_hi(uint a, uint b) { return __umulhi(a, b); }
INLINE int dot4(int a, int b, int c) { int r; asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c)); return r; }
// One byte permutation looks four codes up in eight bytes; the codes' top bits choose between the table's halves.
INLINE uint table16(uint4 t, uint codes) {
    const uint pick = __byte_perm((codes | codes >> 4) & 0x00ff00ffu, 0u, 0x4420u) & 0x7777u;
    const uint upper = (codes >> 3 & 0x01010101u) * 255u;
    return (__byte_perm(t.x, t.y, pick) & ~upper) | (__byte_perm(t.z, t.w, pick) & upper);
}
#define INF (as_float(0x7f800000u))

// Declarations. Arguments bind by position.
#ifndef GROUP_THREADS
#define GROUP_THREADS 1024
#endif
#define KERNEL(name, ...) extern "C" __global__ void __launch_bounds__(GROUP_THREADS, 1) name(__VA_ARGS__)
#define KERNEL_GRID(name, ...) KERNEL(name, __VA_ARGS__)          // launched cooperatively: all groups are resident
#define IN(T, n, i) const T* __restrict__ n
#define OUT(T, n, i) T* __restrict__ n
#define INOUT(T, n, i) T* __restrict__ n
#define ATOMIC(T, n, i) T* n
#define PARAMS(T, n, i) const __grid_constant__ T n
#define DPTR(T) T*
#define TPTR(T) T*
#define APTR(T) T*
#define LREF(T) T&
#define LPTR(T) T*
#define DCAST(T, p) ((T*)(p))
#define SHARED(T, n, N) __shared__ __align__(16) T n[N]
#define SHARED_DYNAMIC(T, n) extern __shared__ __align__(128) uchar n##_bytes[]; T* n = (T*)n##_bytes
#define SPEC_U32(n, i) constexpr uint n = SPEC_##n;
#define SPEC_BOOL(n, i) constexpr bool n = SPEC_##n;
#define CONST_TABLE(T, n, N) static __device__ const T n[N]

// Where a thread is.
#define MAX_SIMD 32
#define TG_X (blockIdx.x)
#define TG_COUNT (gridDim.x)
#define TID (threadIdx.x)
#define LANE (threadIdx.x & 31u)
#define SIMD (threadIdx.x >> 5)
#define TG_BARRIER() __syncthreads()
#define SIMD_BARRIER() __syncwarp()

// Atomics on device memory, relaxed.
template <class T> INLINE T atomic_add(T* a, uint i, T v) { return atomicAdd(a + i, v); }
INLINE uint atomic_max(uint* a, uint i, uint v) { return atomicMax(a + i, v); }
template <class T> INLINE T atomic_load(T* a, uint i) { return *(volatile T*)(a + i); }
template <class T> INLINE void atomic_store(T* a, uint i, T v) { *(volatile T*)(a + i) = v; }

// A round adds 2^31 in all, so the top bit of the counter's first word turns when the last group comes, for ever:
// whoever launches first makes its other bits zero, and nobody sets it back.
INLINE uint grid_step() { return blockIdx.x == 0 ? 0x80000000u - (gridDim.x - 1) : 1u; }
INLINE void grid_barrier(uint* counter) {
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        const uint old = atomicAdd(counter, grid_step());
        while (((old ^ *(volatile uint*)counter) & 0x80000000u) == 0) {}
        __threadfence();
    }
    __syncthreads();
}
#define GRID_BARRIER(counter) grid_barrier(counter)
// The same in two halves, for kernels that have work between: how the top bit is before the first round, then in each
// round that this group has come, and that all have.
INLINE uint grid_sense(uint* counter) { return *(volatile uint*)counter & 0x80000000u; }
// The last SIMD group does both: it is the one that most often has no other work.
INLINE bool grid_speaks() { return threadIdx.x == GROUP_THREADS - 32; }
INLINE void grid_arrive(uint* counter) {
    __syncthreads();
    if (grid_speaks())
        asm volatile("{ .reg .u64 g; cvta.to.global.u64 g, %0; red.release.gpu.global.add.u32 [g], %1; }"
                     :: "l"(counter), "r"(grid_step()) : "memory");
}
INLINE void grid_wait(uint* counter, uint& sense) {
    if (grid_speaks()) {
        uint now;
        do asm volatile("{ .reg .u64 g; cvta.to.global.u64 g, %1; ld.acquire.gpu.global.u32 %0, [g]; }" : "=r"(now) : "l"(counter) : "memory");
        while (((now ^ sense) & 0x80000000u) == 0);
    }
    sense ^= 0x80000000u;
    __syncthreads();
}
// The same where what crosses says itself that it has come, by marks that the kernel puts into it: nothing waits for writes
// to be seen, unless `fenced`. What crosses is stored and loaded relaxed.
INLINE void grid_arrive_loose(uint* counter, bool fenced) {
    __syncthreads();
    if (grid_speaks()) {
        if (fenced) __threadfence();
        asm volatile("{ .reg .u64 g; cvta.to.global.u64 g, %0; red.relaxed.gpu.global.add.u32 [g], %1; }"
                     :: "l"(counter), "r"(grid_step()) : "memory");
    }
}
INLINE void grid_wait_loose(uint* counter, uint& sense, bool fenced) {
    if (grid_speaks()) {
        uint now;
        do asm volatile("{ .reg .u64 g; cvta.to.global.u64 g, %1; ld.relaxed.gpu.global.u32 %0, [g]; }" : "=r"(now) : "l"(counter) : "memory");
        while (((now ^ sense) & 0x80000000u) == 0);
        if (fenced) __threadfence();
    }
    sense ^= 0x80000000u;
    __syncthreads();
}
#define GRID_SENSE(counter) grid_sense(counter)
#define GRID_ARRIVE(counter) grid_arrive(counter)
#define GRID_WAIT(counter, sense) grid_wait(counter, sense)
#define GRID_ARRIVE_LOOSE(counter, fenced) grid_arrive_loose(counter, fenced)
#define GRID_WAIT_LOOSE(counter, sense, fenced) grid_wait_loose(counter, sense, fenced)
// Groups of a grid may wait for relaxed words without a barrier: behind each look in vain stands LOOK_AGAIN.
#define GRID_LOOKS 1
#define LOOK_AGAIN() ((void)0)
// Words that other groups may write meanwhile: each is whole, in no order with others.
INLINE uint relaxed_load(const uint* p) {
    uint v; asm volatile("{ .reg .u64 g; cvta.to.global.u64 g, %1; ld.relaxed.gpu.global.u32 %0, [g]; }" : "=r"(v) : "l"(p) : "memory"); return v;
}
INLINE uint2 relaxed_load(const uint2* p) {
    uint2 v; asm volatile("{ .reg .u64 g; cvta.to.global.u64 g, %2; ld.relaxed.gpu.global.v2.u32 {%0, %1}, [g]; }" : "=r"(v.x), "=r"(v.y) : "l"(p) : "memory"); return v;
}
INLINE uint4 relaxed_load(const uint4* p) {
    uint4 v; asm volatile("{ .reg .u64 g; cvta.to.global.u64 g, %4; ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [g]; }"
                          : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory"); return v;
}
INLINE void relaxed_store(uint* p, uint v) {
    asm volatile("{ .reg .u64 g; cvta.to.global.u64 g, %0; st.relaxed.gpu.global.u32 [g], %1; }" :: "l"(p), "r"(v) : "memory");
}
INLINE void relaxed_store(uint4* p, uint4 v) {
    asm volatile("{ .reg .u64 g; cvta.to.global.u64 g, %0; st.relaxed.gpu.global.v4.u32 [g], {%1, %2, %3, %4}; }"
                 :: "l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
// A clock of the device in nanoseconds, its low 32 bits; it may tick in steps of a microsecond.
INLINE uint device_ticks() { uint t; asm volatile("mov.u32 %0, %%globaltimer_lo;" : "=r"(t) :: "memory"); return t; }
#define TICKS() device_ticks()
// The same behind a barrier of the group: a SIMD group goes on past a barrier until it needs memory, and a clock is none, so
// a word of threadgroup memory is read first, and the clock waits for what it is.
INLINE uint device_ticks_behind(const volatile uint* word) {
    uint t;
    asm volatile("{ .reg .pred p; setp.eq.u32 p, %1, 0x7ff00ff7; @p nanosleep.u32 0; mov.u32 %0, %%globaltimer_lo; }" : "=r"(t) : "r"(*word) : "memory");
    return t;
}
#define TICKS_BEHIND(word) device_ticks_behind(word)

// Brings `bytes` from p on closer, and changes no result; both are multiples of 16.
INLINE void prefetch(const void* p, uint bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("{ .reg .u64 g; cvta.to.global.u64 g, %0; cp.async.bulk.prefetch.L2.global [g], %1; }" :: "l"(p), "r"(bytes));
#else
    for (uint i = 0; i < bytes; i += 128)
        asm volatile("{ .reg .u64 g; cvta.to.global.u64 g, %0; prefetch.global.L2 [g]; }" :: "l"((const char*)p + i));
#endif
}

// Copies of a SIMD group into threadgroup memory that go on while it does other work: one copy_t for each that may be
// under way. From sm_90 on the copy engine makes them; before, they are over at once.
typedef unsigned long long copy_t;
INLINE uint shared_place(const void* p) {
    uint a; asm("{ .reg .u64 s; cvta.to.shared.u64 s, %1; cvt.u32.u64 %0, s; }" : "=r"(a) : "l"(p)); return a;
}
INLINE void simd_copies(copy_t* c, uint n, uint lane) {
#if __CUDA_ARCH__ >= 900
    if (lane < n) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(shared_place(c + lane)) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
    __syncwarp();
}
// True in one lane of a SIMD group, all of whose lanes ask; where the assembler sees that one is left, it needs no loop over
// lanes to give an address to the copy engine.
INLINE bool simd_elect() {
    uint one = 0;
#if __CUDA_ARCH__ >= 900
    asm volatile("{ .reg .pred p; elect.sync _|p, 0xffffffff; @p mov.u32 %0, 1; }" : "+r"(one));
#endif
    return one != 0;
}
// Starts a copy of `rows` rows of `quads` each: row r begins at sixteen `at` + r * stride of `from`, and goes to `to` from
// r * pitch on, moved up by the place of its begin in 128 bytes: lines are copied as they lie.
INLINE void simd_copy(uint4* to, uint pitch, const uint4* from, uint at, uint stride, uint quads, uint rows, copy_t* c, uint lane) {
    __syncwarp();
#if __CUDA_ARCH__ >= 900
    if (simd_elect()) {
        const uint bar = shared_place(c), place = shared_place(to);
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(bar), "r"(16 * quads * rows) : "memory");
        _Pragma("unroll 1") for (uint r = 0; r < rows; ++r) {
            const uint first = at + r * stride;
            asm volatile("{ .reg .u64 g; cvta.to.global.u64 g, %1;\n"
                         "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [g], %2, [%3]; }"
                         :: "r"(place + 16 * (r * pitch + (first & 7))), "l"(from + first), "r"(16 * quads), "r"(bar) : "memory");
        }
    }
#else
    for (uint r = 0; r < rows; ++r) {
        const uint first = at + r * stride;
        for (uint i = lane; i < quads; i += 32) to[r * pitch + (first & 7) + i] = from[first + i];
    }
#endif
}
// Waits for the copy that was started as number `turn` with `c`, counted from 0; its low bit is enough.
INLINE void simd_copy_wait(copy_t* c, uint turn) {
#if __CUDA_ARCH__ >= 900
    uint done = 0;
    while (!done)
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done) : "r"(shared_place(c)), "r"(turn & 1u) : "memory");
#else
    __syncwarp();
#endif
}

// The same by the lanes themselves, in fewer instructions and at less than the copy engine's rate. Copies are over in the
// order in which they were started; simd_load_none counts as one.
INLINE void simd_load_none() { asm volatile("cp.async.commit_group;" ::: "memory"); }
INLINE void simd_load(uint4* to, uint pitch, const uint4* from, uint at, uint stride, uint quads, uint rows, uint lane) {
    __syncwarp();
    // Of 128 quads of a row a lane has four; which of them there are is the same in every row. There is one of each at least.
    uint c = 0;
    _Pragma("unroll 1") do {
        bool there[4];
        UNROLL
        for (uint j = 0; j < 4; ++j) there[j] = c + 32 * j + lane < quads;
        uint first = at + c + lane, row = shared_place(to) + 16 * (c + lane), left = rows, line = at;
        _Pragma("unroll 1") do {
            const uint4* own = from + first;
            asm("cvta.to.global.u64 %0, %0;" : "+l"(own));     // one address: else each copy makes its own
            const uint near = row + 16 * (line & 7);
            UNROLL
            for (uint j = 0; j < 4; ++j)
                if (there[j]) asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(near + 512 * j), "l"(own + 32 * j) : "memory");
            first += stride;
            line += stride;
            row += 16 * pitch;
        } while (--left != 0);
        c += 128;
    } while (c < quads);
    simd_load_none();
}
// Waits until at most LEFT of the copies that were started are under way, the last ones.
template <uint LEFT> INLINE void simd_load_wait() { asm volatile("cp.async.wait_group %0;" :: "n"(LEFT) : "memory"); __syncwarp(); }
#define SIMD_LOAD_WAIT(left) simd_load_wait<(left)>()

// Reductions and shuffles over the 32 lanes; the order of a float sum is the butterfly's.
#define ALL_LANES 0xffffffffu
template <class T> INLINE T simd_shuffle(T v, uint l) { return __shfl_sync(ALL_LANES, v, l); }
template <class T> INLINE T simd_shuffle_xor(T v, uint m) { return __shfl_xor_sync(ALL_LANES, v, m); }
template <class T> INLINE T simd_shuffle_up(T v, uint d) { return __shfl_up_sync(ALL_LANES, v, d); }
INLINE float simd_sum(float v) { UNROLL for (int m = 16; m; m >>= 1) v += __shfl_xor_sync(ALL_LANES, v, m); return v; }
INLINE float simd_max(float v) { UNROLL for (int m = 16; m; m >>= 1) v = fmaxf(v, __shfl_xor_sync(ALL_LANES, v, m)); return v; }
INLINE float simd_min(float v) { UNROLL for (int m = 16; m; m >>= 1) v = fminf(v, __shfl_xor_sync(ALL_LANES, v, m)); return v; }
INLINE uint simd_sum(uint v) { return __reduce_add_sync(ALL_LANES, v); }
INLINE uint simd_max(uint v) { return __reduce_max_sync(ALL_LANES, v); }
INLINE uint simd_min(uint v) { return __reduce_min_sync(ALL_LANES, v); }
INLINE int simd_sum(int v) { return __reduce_add_sync(ALL_LANES, v); }
INLINE int simd_max(int v) { return __reduce_max_sync(ALL_LANES, v); }
INLINE int simd_min(int v) { return __reduce_min_sync(ALL_LANES, v); }

// 16x16 tiles of the matrix unit, as two m16n8k16 products side by side: lane l has rows l / 4 and l / 4 + 8, and
// columns 2 (l % 4) and the next. Two elements are loaded as one word: addresses and strides are even.
struct mm_acc { float v[8]; };
struct mm_a { uint v[4]; bool wide; };         // wide: bfloat; known at compile time wherever a tile is loaded in sight
struct mm_b { uint v[4]; bool wide; };         // of the transposed right operand
INLINE void mm_zero(mm_acc& c) { UNROLL for (int i = 0; i < 8; ++i) c.v[i] = 0.0f; }
INLINE bool mm_wide(const half*) { return false; }
INLINE bool mm_wide(const bfloat*) { return true; }
template <class T> INLINE uint mm_pair(const T* p) { return *(const uint*)p; }
template <class T> INLINE void mm_load_a(mm_a& a, const T* p, uint s) {
    const T* q = p + (LANE >> 2) * s + (LANE & 3) * 2;
    a.v[0] = mm_pair(q); a.v[1] = mm_pair(q + 8 * s); a.v[2] = mm_pair(q + 8); a.v[3] = mm_pair(q + 8 * s + 8);
    a.wide = mm_wide(p);
}
template <class T> INLINE void mm_load_bt(mm_b& b, const T* p, uint s) {
    const T* q = p + (LANE >> 2) * s + (LANE & 3) * 2;
    b.v[0] = mm_pair(q); b.v[1] = mm_pair(q + 8); b.v[2] = mm_pair(q + 8 * s); b.v[3] = mm_pair(q + 8 * s + 8);
    b.wide = mm_wide(p);
}
// Lanes 8j to 8j + 7 name the rows of the j-th 8x8 tile, which are turned on the way.
INLINE void mm_load_b(mm_b& b, const half* p, uint s) {
    const half* q = p + ((LANE & 7) + (LANE & 8)) * s + (LANE >> 4) * 8;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
        : "=r"(b.v[0]), "=r"(b.v[1]), "=r"(b.v[2]), "=r"(b.v[3]) : "r"((uint)__cvta_generic_to_shared(q)) : "memory");
    b.wide = false;
}
INLINE void mm_scale_rows(mm_acc& c, const float* rows, uint lane) {
    const float a = rows[lane >> 2], b = rows[(lane >> 2) + 8];
    UNROLL for (int i = 0; i < 8; ++i) c.v[i] *= (i & 2) ? b : a;
}
INLINE void put_halves(half* p, uint4 v) { *(uint4*)p = v; }
#define MM_MAC(type, h) \
    asm("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
        : "+f"(c.v[4 * h]), "+f"(c.v[4 * h + 1]), "+f"(c.v[4 * h + 2]), "+f"(c.v[4 * h + 3]) \
        : "r"(a.v[0]), "r"(a.v[1]), "r"(a.v[2]), "r"(a.v[3]), "r"(b.v[2 * h]), "r"(b.v[2 * h + 1]))
INLINE void mm_mac(mm_acc& c, const mm_a& a, const mm_b& b) {
    if (a.wide) { MM_MAC("bf16", 0); MM_MAC("bf16", 1); } else { MM_MAC("f16", 0); MM_MAC("f16", 1); }
}
INLINE void mm_store(const mm_acc& c, float* p, uint s) {
    float* q = p + (LANE >> 2) * s + (LANE & 3) * 2;
    UNROLL for (int h = 0; h < 2; ++h) {
        q[8 * h] = c.v[4 * h]; q[8 * h + 1] = c.v[4 * h + 1];
        q[8 * s + 8 * h] = c.v[4 * h + 2]; q[8 * s + 8 * h + 1] = c.v[4 * h + 3];
    }
}
