// The dialect on the host executor: ordinary C++, every access to device and threadgroup memory checked.
// With EXEC_RAW memory is reached through plain pointers, which is what the sanitizers watch.
#pragma once
#include "executor.h"
#include <chrono>
#include <cmath>
#include <type_traits>

typedef unsigned int uint; typedef unsigned short ushort; typedef unsigned char uchar; typedef signed char schar;

namespace exec {
static inline float half_to_float(ushort h) {
    const uint s = (uint)(h & 0x8000) << 16, e = h >> 10 & 31, m = h & 1023;
    if (e == 31) return from_bits<float>(s | 0x7f800000u | m << 13);
    if (e) return from_bits<float>(s | (e + 112) << 23 | m << 13);
    const float v = (float)m * 0x1p-24f; return s ? -v : v;
}
static inline ushort float_to_half(float f) {                    // round to nearest, ties to even
    uint x = bits(f); const uint s = x >> 16 & 0x8000; x &= 0x7fffffff;
    if (x >= 0x7f800000) return s | 0x7c00 | (x > 0x7f800000 ? 0x200 : 0);
    if (x >= 0x477ff000) return s | 0x7c00;
    if (x < 0x38800000) return s | (ushort)bits(from_bits<float>(x) + 0.5f);     // subnormal: the adder rounds at 2^-24
    const uint r = x + 0xc8000fff + (x >> 13 & 1); return s | r >> 13;
}
static inline ushort float_to_bfloat(float f) {
    const uint x = bits(f); if ((x & 0x7fffffff) > 0x7f800000) return x >> 16 | 0x40;
    return (x + 0x7fff + (x >> 16 & 1)) >> 16;
}
}  // namespace exec

struct half {
    ushort u; half() = default;
    explicit half(float f) : u(exec::float_to_half(f)) {}
    explicit operator float() const { return exec::half_to_float(u); }
};
struct bfloat {
    ushort u; bfloat() = default;
    explicit bfloat(float f) : u(exec::float_to_bfloat(f)) {}
    explicit operator float() const { return exec::from_bits<float>((uint)u << 16); }
};
struct alignas(8) half4 { half x, y, z, w; };
struct alignas(8) bfloat4 { bfloat x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(8) uint2 { uint x, y; };
struct alignas(16) uint4 { uint x, y, z, w; };
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline uint2 make_uint2(uint x, uint y) { return {x, y}; }
static inline uint4 make_uint4(uint x, uint y, uint z, uint w) { return {x, y, z, w}; }
// The floats of the low and of the high 16 bits.
static inline float2 half_pair(uint u) { return {exec::half_to_float((ushort)u), exec::half_to_float((ushort)(u >> 16))}; }
// Two floats as half in one word, the first in its low 16 bits.
static inline uint half_word(float x, float y) { return (uint)exec::float_to_half(x) | (uint)exec::float_to_half(y) << 16; }
static inline float4 to_float4(float4 v) { return v; }
static inline float4 to_float4(half4 h) { return {float(h.x), float(h.y), float(h.z), float(h.w)}; }
static inline float4 to_float4(bfloat4 h) { return {float(h.x), float(h.y), float(h.z), float(h.w)}; }
static inline float4 operator+(float4 a, float4 b) { return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w}; }
static inline float4 operator-(float4 a, float4 b) { return {a.x - b.x, a.y - b.y, a.z - b.z, a.w - b.w}; }
static inline float4 operator*(float4 a, float4 b) { return {a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w}; }
static inline float4 operator*(float4 a, float b) { return {a.x * b, a.y * b, a.z * b, a.w * b}; }
static inline float dot(float4 a, float4 b) { return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w; }

// Mathematics, under the names that Metal has.
using std::abs; using std::ceil; using std::cos; using std::exp; using std::exp2; using std::floor; using std::fma; using std::isinf;
using std::isnan; using std::log; using std::log2; using std::pow; using std::rint; using std::sin; using std::sqrt; using std::tanh;
static inline float rsqrt(float x) { return 1.0f / std::sqrt(x); }
static inline float min(float a, float b) { return std::fmin(a, b); }
static inline float max(float a, float b) { return std::fmax(a, b); }
static inline int min(int a, int b) { return a < b ? a : b; }
static inline int max(int a, int b) { return a > b ? a : b; }
static inline uint min(uint a, uint b) { return a < b ? a : b; }
static inline uint max(uint a, uint b) { return a > b ? a : b; }
static inline float clamp(float x, float lo, float hi) { return std::fmin(std::fmax(x, lo), hi); }
static inline float as_float(uint u) { return exec::from_bits<float>(u); }
static inline uint as_uint(float f) { return exec::bits(f); }
static inline uint popcount(uint x) { return __builtin_popcount(x); }
static inline uint mul_hi(uint a, uint b) { return (uint)((unsigned long long)a * b >> 32); }
// c plus the four products of the signed bytes of a and b.
static inline int dot4(int a, int b, int c) {
    for (int i = 0; i < 32; i += 8) c += (int)(schar)(a >> i) * (int)(schar)(b >> i);
    return c;
}
// The bytes that the bytes of `codes`, each under 16, name in a table of sixteen.
static inline uint table16(uint4 t, uint codes) {
    const uint words[4] = {t.x, t.y, t.z, t.w}; uint r = 0;
    for (int i = 0; i < 32; i += 8) { const uint c = codes >> i & 15u; r |= (words[c >> 2] >> 8 * (c & 3) & 255u) << i; }
    return r;
}
#define INF (as_float(0x7f800000u))

namespace exec {
#ifdef EXEC_RAW
template <class T> using dptr = T*;
template <class T> using tptr = T*;
template <class U, class T> U* dcast(T* p) { return (U*)p; }
#else
template <class T> struct dptr {       // device memory: bounds
    T* p; const char *lo, *hi;
    template <class N> T& operator[](N i) const {
        T* q = p + (ptrdiff_t)i;
        if ((const char*)q < lo || (const char*)(q + 1) > hi)
            fail("out of bounds: element %lld, byte %lld of %lld", (long long)(ptrdiff_t)i, (long long)((const char*)q - lo), (long long)(hi - lo));
        return *q;
    }
    T& operator*() const { return (*this)[0]; }
    template <class N> dptr operator+(N n) const { return {p + (ptrdiff_t)n, lo, hi}; }
    template <class N> dptr operator-(N n) const { return {p - (ptrdiff_t)n, lo, hi}; }
    template <class N> dptr& operator+=(N n) { p += (ptrdiff_t)n; return *this; }
    operator dptr<const T>() const { return {p, lo, hi}; }
};
template <class U, class T> dptr<U> dcast(dptr<T> d) {
    if ((uintptr_t)d.p % alignof(U)) fail("misaligned device pointer cast: %p to alignment %zu", (const void*)d.p, alignof(U));
    return {(U*)d.p, d.lo, d.hi};
}
template <class T> struct tref {       // an element of threadgroup memory: reads and writes are tracked
    using V = std::remove_const_t<T>;
    T* p; Cell* c; const char* n; size_t i;
    tref(T* p_, Cell* c_, const char* n_, size_t i_) : p(p_), c(c_), n(n_), i(i_) {}
    tref(const tref&) = default;
    operator V() const { check_read(c, n, i); return *p; }
    explicit operator float() const requires(!std::is_same_v<V, float>) { check_read(c, n, i); return float(*p); }
    const tref& operator=(const V& v) const { check_write(c, n, i); *p = v; return *this; }
    const tref& operator=(const tref& o) const { return *this = (V)o; }
    const tref& operator+=(const V& v) const { return *this = V(*this) + v; }
    const tref& operator*=(const V& v) const { return *this = V(*this) * v; }
};
template <class T> struct tptr {       // threadgroup memory: bounds and the record of accesses
    T* p; T* base; Cell* cells; size_t n; const char* name;
    template <class N> tref<T> operator[](N k) const {
        const ptrdiff_t i = (p - base) + (ptrdiff_t)k;
        if (i < 0 || (size_t)i >= n) fail("out of bounds: threadgroup array %s[%td] of %zu", name, i, n);
        return {base + i, cells + i, name, (size_t)i};
    }
    template <class N> tptr operator+(N k) const { return {p + (ptrdiff_t)k, base, cells, n, name}; }
    operator tptr<const T>() const { return {p, base, cells, n, name}; }
};
#endif
static inline void bounds(uint64_t bytes, size_t size, uint64_t i) {
    if ((i + 1) * size > bytes) fail("out of bounds: atomic element %llu of %llu bytes", (unsigned long long)i, (unsigned long long)bytes);
}
template <class T> struct atomics { T* p; uint64_t bytes; T* at(uint i) const { bounds(bytes, sizeof(T), i); return p + i; } };

// Arguments bind by position.
template <class T, int I> struct Buf
#ifndef EXEC_RAW
    : dptr<T> {
    static Buf bind() { Buf b; b.p = (T*)args[I].ptr; b.lo = (const char*)b.p; b.hi = b.lo + args[I].len; return b; }
#else
    { T* p; operator T*() const { return p; }
    template <class N> T& operator[](N i) const { return p[i]; }
    static Buf bind() { return {(T*)args[I].ptr}; }
#endif
    static constexpr char kind = std::is_const_v<T> ? 'r' : 'w';
};
#ifdef EXEC_RAW
template <class U, class T, int I> U* dcast(Buf<T, I> b) { return (U*)b.p; }
#else
template <class U, class T, int I> dptr<U> dcast(Buf<T, I> b) { return dcast<U>((dptr<T>)b); }
#endif
template <class T, int I> struct Atomic : atomics<T> {
    static Atomic bind() { Atomic a; a.p = (T*)args[I].ptr; a.bytes = args[I].len; return a; }
    static constexpr char kind = 'w';
};
template <class T, int I> struct Par : T {
    static Par bind() {
        if (args[I].len != sizeof(T)) fail("the parameter block has %llu bytes, the kernel's has %zu", (unsigned long long)args[I].len, sizeof(T));
        Par p; memcpy((void*)static_cast<T*>(&p), args[I].ptr, sizeof(T)); return p;
    }
    static constexpr char kind = 'p';
};
template <class T> struct Constant { Spec s; explicit Constant(const char* n) : s(n) {} operator T() const { return (T)s.value; } };
template <class... A> void call(void (*f)(A...)) { f(A::bind()...); }
template <class... A> const char* kinds(void (*)(A...)) { static const char k[] = {A::kind..., 0}; return k; }

struct Slot { uint32_t i = new_slot(); };
template <class T, size_t N> tptr<T> shared(Slot& s, const char* name) {
    const Block b = shared_block(s.i, N, sizeof(T), name);
#ifdef EXEC_RAW
    return (T*)b.bytes;
#else
    return {(T*)b.bytes, (T*)b.bytes, b.cells, N, name};
#endif
}
template <class T> tptr<T> dynamic(const char* name) {
    size_t elements; const Block b = dynamic_block(sizeof(T), elements, name);
#ifdef EXEC_RAW
    return (T*)b.bytes;
#else
    return {(T*)b.bytes, (T*)b.bytes, b.cells, elements, name};
#endif
}
}  // namespace exec

// Declarations.
#define INLINE static inline
#define UNROLL
#define EXEC_KERNEL(name, grid, ...) \
    static void name(__VA_ARGS__); \
    static ::exec::Kernel name##_kernel(#name, [] { ::exec::call(&name); }, ::exec::kinds(&name), grid); \
    static void name(__VA_ARGS__)
#define KERNEL(name, ...) EXEC_KERNEL(name, false, __VA_ARGS__)
#define KERNEL_GRID(name, ...) EXEC_KERNEL(name, true, __VA_ARGS__)
#define IN(T, n, i) ::exec::Buf<const T, i> n
#define OUT(T, n, i) ::exec::Buf<T, i> n
#define INOUT(T, n, i) ::exec::Buf<T, i> n
#define ATOMIC(T, n, i) ::exec::Atomic<T, i> n
#define PARAMS(T, n, i) ::exec::Par<T, i> n
#define DPTR(T) ::exec::dptr<T>
#define TPTR(T) ::exec::tptr<T>
#define APTR(T) ::exec::atomics<T>
#define LREF(T) T&
#define LPTR(T) T*
#define DCAST(T, p) (::exec::dcast<T>(p))
#define SHARED(T, n, N) static ::exec::Slot n##_slot; ::exec::tptr<T> n = ::exec::shared<T, (N)>(n##_slot, #n)
#define SHARED_DYNAMIC(T, n) ::exec::tptr<T> n = ::exec::dynamic<T>(#n)
#define SPEC_U32(n, i) static const ::exec::Constant<uint> n(#n);
#define SPEC_BOOL(n, i) static const ::exec::Constant<bool> n(#n);
#define CONST_TABLE(T, n, N) static const T n[N]

// Where a thread is.
#define MAX_SIMD 32
#define TG_X (::exec::ids.group)
#define TG_COUNT (::exec::grid_groups)
#define TID (::exec::ids.thread)
#define LANE (::exec::ids.thread & 31u)
#define SIMD (::exec::ids.thread >> 5)
#define TG_BARRIER() ::exec::group_barrier(__LINE__)
#define SIMD_BARRIER() ::exec::simd_barrier(__LINE__)
#define GRID_BARRIER(counter) ::exec::grid_barrier(__LINE__)
// The same in two halves, for kernels that have work between.
#define GRID_SENSE(counter) 0u
#define GRID_ARRIVE(counter)
#define GRID_WAIT(counter, sense) ::exec::grid_barrier(__LINE__)
#define GRID_ARRIVE_LOOSE(counter, fenced)
#define GRID_WAIT_LOOSE(counter, sense, fenced) ::exec::grid_barrier(__LINE__)
// Words that other groups may write meanwhile: each is whole, in no order with others.
template <class P> static inline auto relaxed_load(P p) {
    const auto& from = p[0];
    std::remove_cvref_t<decltype(from)> v;
    for (size_t i = 0; i < sizeof v / 4; ++i) ((uint*)&v)[i] = __atomic_load_n((const uint*)&from + i, __ATOMIC_RELAXED);
    return v;
}
template <class P, class T> static inline void relaxed_store(P p, T v) {
    for (size_t i = 0; i < sizeof v / 4; ++i) __atomic_store_n((uint*)&p[0] + i, ((const uint*)&v)[i], __ATOMIC_RELAXED);
}
// Groups of a grid may wait for such words without a barrier: behind each look in vain stands LOOK_AGAIN.
#define GRID_LOOKS 1
#define LOOK_AGAIN() ::exec::yield(__LINE__)
// A clock of the device in nanoseconds, its low 32 bits.
#define TICKS() ((uint)std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count())
#define TICKS_BEHIND(word) (TICKS() + 0u * uint((word)[0]))

// Atomics on device memory, relaxed.
template <class T> static inline T atomic_add(::exec::atomics<T> a, uint i, T v) { T* p = a.at(i); exec::atomic_guard(p); T old = *p; *p = old + v; exec::atomic_guard(p); return old; }
static inline uint atomic_max(::exec::atomics<uint> a, uint i, uint v) { uint* p = a.at(i); exec::atomic_guard(p); uint old = *p; if (v > old) *p = v; exec::atomic_guard(p); return old; }
template <class T> static inline T atomic_load(::exec::atomics<T> a, uint i) { T* p = a.at(i); exec::atomic_guard(p); return *p; }
template <class T> static inline void atomic_store(::exec::atomics<T> a, uint i, T v) { T* p = a.at(i); exec::atomic_guard(p); *p = v; exec::atomic_guard(p); }

// Brings `bytes` from p on closer, and changes no result; both are multiples of 16.
template <class P> static inline void prefetch(P, uint) {}

// Reductions and shuffles over the 32 lanes; the order of a sum is the butterfly's on every backend.
#define EXEC_LINE int line = __builtin_LINE()
static inline float simd_shuffle(float v, uint l, EXEC_LINE) { return as_float(exec::simd_post(exec::bits(v), "simd_shuffle", line)[l & 31]); }
static inline uint simd_shuffle(uint v, uint l, EXEC_LINE) { return exec::simd_post(v, "simd_shuffle", line)[l & 31]; }
static inline float simd_shuffle_xor(float v, uint m, EXEC_LINE) { return as_float(exec::simd_post(exec::bits(v), "simd_shuffle_xor", line)[(LANE ^ m) & 31]); }
static inline uint simd_shuffle_xor(uint v, uint m, EXEC_LINE) { return exec::simd_post(v, "simd_shuffle_xor", line)[(LANE ^ m) & 31]; }
static inline float simd_shuffle_up(float v, uint d, EXEC_LINE) { return as_float(exec::simd_post(exec::bits(v), "simd_shuffle_up", line)[LANE >= d ? LANE - d : LANE]); }
static inline uint simd_shuffle_up(uint v, uint d, EXEC_LINE) { return exec::simd_post(v, "simd_shuffle_up", line)[LANE >= d ? LANE - d : LANE]; }
namespace exec {
template <class T, class F> static inline T fold(T v, const char* op, int line, F f) {
    const uint32_t* all = simd_post(bits(v), op, line); T t[32];
    for (int i = 0; i < 32; ++i) t[i] = from_bits<T>(all[i]);
    for (int m = 16; m; m >>= 1) for (int i = 0; i < m; ++i) t[i] = f(t[i], t[i + m]);
    return t[0];
}
}  // namespace exec
static inline float simd_sum(float v, EXEC_LINE) { return exec::fold(v, "simd_sum", line, [](float a, float b) { return a + b; }); }
static inline uint simd_sum(uint v, EXEC_LINE) { return exec::fold(v, "simd_sum", line, [](uint a, uint b) { return a + b; }); }
static inline int simd_sum(int v, EXEC_LINE) { return exec::fold(v, "simd_sum", line, [](int a, int b) { return a + b; }); }
static inline float simd_max(float v, EXEC_LINE) { return exec::fold(v, "simd_max", line, [](float a, float b) { return max(a, b); }); }
static inline uint simd_max(uint v, EXEC_LINE) { return exec::fold(v, "simd_max", line, [](uint a, uint b) { return max(a, b); }); }
static inline float simd_min(float v, EXEC_LINE) { return exec::fold(v, "simd_min", line, [](float a, float b) { return min(a, b); }); }
static inline uint simd_min(uint v, EXEC_LINE) { return exec::fold(v, "simd_min", line, [](uint a, uint b) { return min(a, b); }); }

// 16x16 tiles of the matrix unit, spread over a SIMD group: element lane * 8 + i of the row-major tile is lane's i-th.
struct mm_acc { float v[8]; };
struct mm_a { float v[8]; };
struct mm_b { float v[8]; };           // of the transposed right operand
static inline void mm_zero(mm_acc& c) { for (float& v : c.v) v = 0.0f; }
template <class P> static inline void mm_load(float* v, P p, uint s) { for (uint i = 0; i < 8; ++i) { const uint e = LANE * 8 + i; v[i] = float(p[e / 16 * s + e % 16]); } }
template <class P> static inline void mm_load_a(mm_a& a, P p, uint s, EXEC_LINE) { exec::simd_sync("mm_load_a", line); mm_load(a.v, p, s); }
template <class P> static inline void mm_load_bt(mm_b& b, P p, uint s, EXEC_LINE) { exec::simd_sync("mm_load_bt", line); mm_load(b.v, p, s); }
static inline void mm_mac(mm_acc& c, const mm_a& a, const mm_b& b, EXEC_LINE) {
    void** const pa = exec::simd_pointers((void*)a.v, 0, "mm_mac", line); void** const pb = exec::simd_pointers((void*)b.v, 1, "mm_mac", line);
    for (uint i = 0; i < 8; ++i) {
        const uint r = (LANE * 8 + i) / 16, q = (LANE * 8 + i) % 16; float s = c.v[i];
        for (uint k = 0; k < 16; ++k) s += ((const float*)pa[r * 2 + k / 8])[k % 8] * ((const float*)pb[q * 2 + k / 8])[k % 8];
        c.v[i] = s;
    }
    exec::simd_sync("mm_mac", line);
}
// Of the right operand as it is stored, in threadgroup memory: its rows begin on sixteen bytes.
template <class P> static inline void mm_load_b(mm_b& b, P p, uint s, EXEC_LINE) {
    exec::simd_sync("mm_load_b", line);
    for (uint i = 0; i < 8; ++i) { const uint e = LANE * 8 + i; b.v[i] = float(p[e % 16 * s + e / 16]); }
}
// Row r of the tile times rows[r], sixteen factors in threadgroup memory.
template <class P> static inline void mm_scale_rows(mm_acc& c, P rows, uint lane) { for (float& v : c.v) v *= float(rows[lane / 2]); }
// The eight halves that the words of v hold go to p, which is on sixteen bytes of threadgroup memory.
template <class P> static inline void put_halves(P p, uint4 v) {
    const uint words[4] = {v.x, v.y, v.z, v.w};
    for (uint i = 0; i < 8; ++i) { half h; h.u = (ushort)(words[i / 2] >> 16 * (i % 2)); p[i] = h; }
}
template <class P> static inline void mm_store(const mm_acc& c, P p, uint s, EXEC_LINE) {
    exec::simd_sync("mm_store", line);
    for (uint i = 0; i < 8; ++i) { const uint e = LANE * 8 + i; p[e / 16 * s + e % 16] = c.v[i]; }
}

// Copies of a SIMD group into threadgroup memory that go on while it does other work: one copy_t for each that may be
// under way, made ready by simd_copies. A copy takes `rows` rows of `quads` each: row r begins at sixteen
// `at` + r * stride of `from`, and goes to `to` from r * pitch on, moved up by the place of its begin in 128 bytes. What is
// waited for is the copy started as number `turn` with `c`.
typedef uint copy_t;
template <class C> static inline void simd_copies(C, uint, uint) {}
template <class P, class Q, class C> static inline void simd_copy(P to, uint pitch, Q from, uint at, uint stride, uint quads, uint rows, C, uint lane, EXEC_LINE) {
    exec::simd_barrier(line);
    for (uint r = 0; r < rows; ++r) {
        const uint first = at + r * stride;
        for (uint i = lane; i < quads; i += 32) to[r * pitch + (first & 7) + i] = uint4(from[(size_t)first + i]);
    }
}
template <class C> static inline void simd_copy_wait(C, uint, EXEC_LINE) { exec::simd_barrier(line); }
// The same by the lanes themselves: SIMD_LOAD_WAIT(left) waits until at most `left`, a constant, of those that were started are
// under way, the last ones; simd_load_none counts as one.
static inline void simd_load_none() {}
template <class P, class Q> static inline void simd_load(P to, uint pitch, Q from, uint at, uint stride, uint quads, uint rows, uint lane, EXEC_LINE) {
    simd_copy(to, pitch, from, at, stride, quads, rows, 0, lane, line);
}
#define SIMD_LOAD_WAIT(left) ::exec::simd_barrier(__LINE__)
