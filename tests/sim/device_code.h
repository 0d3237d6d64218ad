/* device_code.h - CUDA's language on the simulator: qualifiers, built-in variables, vector types, warp operations, the
 * intrinsics that kernels use, and the launch. Included by include/cuda_runtime.h. SPDX-License-Identifier: Apache-2.0
 */
#ifndef DSC_TESTS_SIM_DEVICE_CODE_H
#define DSC_TESTS_SIM_DEVICE_CODE_H

#include <cmath>
#include <cstring>
#include <type_traits>
#include <utility>

#include "tests/sim/block.h"
#include "tests/sim/cusim.h"
#include "tests/sim/launch.h"

#define __global__ static
#define __device__
#define __host__
#define __constant__ static const
#define __shared__ static thread_local /* one block at a time per host thread */
#define __launch_bounds__(...)
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(n) alignas(n)
#define __builtin_align__(n) alignas(n)

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(8) int2 { int x, y; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(8) ushort4 { unsigned short x, y, z, w; };
struct alignas(16) double2 { double x, y; };
static inline float2 make_float2(float x, float y) { return { x, y }; }
static inline float4 make_float4(float x, float y, float z, float w) { return { x, y, z, w }; }
static inline int2 make_int2(int x, int y) { return { x, y }; }
static inline int4 make_int4(int x, int y, int z, int w) { return { x, y, z, w }; }
static inline uint2 make_uint2(unsigned x, unsigned y) { return { x, y }; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return { x, y, z, w }; }
static inline double2 make_double2(double x, double y) { return { x, y }; }

#define threadIdx (cusim::thread_index())
#define blockIdx (cusim::block_index())
#define blockDim (cusim::block_size())
#define gridDim (cusim::grid_size())
static const int warpSize = 32;

#define CUSIM_SITE (cusim::site{ __FILE__, __LINE__ })
#define __syncthreads() ((void)cusim::barrier(CUSIM_SITE, 0, cusim::OR))
#define __syncthreads_or(p) cusim::barrier(CUSIM_SITE, (p), cusim::OR)
#define __syncthreads_and(p) cusim::barrier(CUSIM_SITE, (p), cusim::AND)
#define __syncthreads_count(p) cusim::barrier(CUSIM_SITE, (p), cusim::COUNT)
#define __syncwarp(...) cusim::sync_warp(CUSIM_SITE, ##__VA_ARGS__)
#define __shfl_sync(...) cusim::shuffle_call(CUSIM_SITE, cusim::to_index{}, __VA_ARGS__)
#define __shfl_xor_sync(...) cusim::shuffle_call(CUSIM_SITE, cusim::to_xor{}, __VA_ARGS__)
#define __shfl_down_sync(...) cusim::shuffle_call(CUSIM_SITE, cusim::to_down{}, __VA_ARGS__)
#define __shfl_up_sync(...) cusim::shuffle_call(CUSIM_SITE, cusim::to_up{}, __VA_ARGS__)
#define __ballot_sync(mask, p) cusim::ballot(CUSIM_SITE, (mask), (p) != 0)
#define __any_sync(mask, p) (cusim::ballot(CUSIM_SITE, (mask), (p) != 0) != 0)
#define __all_sync(mask, p) (cusim::ballot(CUSIM_SITE, (mask), !(p)) == 0)

/* Code of the simulator among a kernel's: its accesses are not the kernel's, and are not looked at. */
#define CUSIM_OWN __attribute__((no_sanitize("thread")))

namespace cusim {

inline void sync_warp(site at, unsigned mask = 0xffffffffu) { synchronize(at, mask, nullptr, nullptr); }

/* Which lane each kind of shuffle reads, inside sections of `width` lanes; -1: the lane's own value. */
struct to_index {
    static __forceinline__ int from(int lane, int i, int width) { return lane / width * width + (i & (width - 1)); }
};
struct to_xor {
    static __forceinline__ int from(int lane, int i, int width)
    {
        return (lane ^ i) / width == lane / width ? lane ^ i : -1;
    }
};
struct to_down {
    static __forceinline__ int from(int lane, int i, int width) { return lane % width + i < width ? lane + i : -1; }
};
struct to_up {
    static __forceinline__ int from(int lane, int i, int width) { return lane % width >= i ? lane - i : -1; }
};

template <class T> struct shuffled { T value, result; int from; };
[[noreturn]] void bad_shuffle(int from, unsigned mask);

template <class K, class T> CUSIM_OWN inline T shuffle_call(site at, K, unsigned mask, T value, int i, int width = 32)
{
    const int lane = static_cast<int>(current->now->lane);
    shuffled<T> mine = { value, value, K::from(lane, i, width) };
    synchronize(at, mask, &mine, [](warp &w, unsigned all) CUSIM_OWN {
        for (int l = 0; l < WARP; l++) {
            if ((all >> l & 1) == 0)
                continue;
            shuffled<T> *to = static_cast<shuffled<T> *>(w.given[l]);
            if (to->from < 0)
                continue;
            if ((all >> to->from & 1) == 0)
                bad_shuffle(to->from, all);
            to->result = static_cast<shuffled<T> *>(w.given[to->from])->value;
        }
    });
    return mine.result;
}

CUSIM_OWN inline unsigned ballot(site at, unsigned mask, bool mine_is)
{
    struct vote { bool value; unsigned result; } mine = { mine_is, 0 };
    synchronize(at, mask, &mine, [](warp &w, unsigned all) CUSIM_OWN {
        unsigned sum = 0;
        for (int l = 0; l < WARP; l++)
            if ((all >> l & 1) != 0 && static_cast<vote *>(w.given[l])->value)
                sum |= 1u << l;
        for (int l = 0; l < WARP; l++)
            if ((all >> l & 1) != 0)
                static_cast<vote *>(w.given[l])->result = sum;
    });
    return mine.result;
}

/* A kernel's arguments. Every thread of a kernel would call the functions of std::tuple, which are instrumented. */
template <class... P> struct arguments {};
template <class H, class... T> struct arguments<H, T...> {
    H head;
    arguments<T...> rest;
    template <class A, class... B>
    explicit arguments(A &&first, B &&...others) : head(static_cast<H>(first)), rest(static_cast<B &&>(others)...)
    {
    }
};
template <class K, class... D> CUSIM_OWN __forceinline__ void call_with(K kernel, arguments<> &, D &...done)
{
    kernel(done...);
}
template <class K, class H, class... T, class... D>
CUSIM_OWN __forceinline__ void call_with(K kernel, arguments<H, T...> &left, D &...done)
{
    call_with(kernel, left.rest, done..., left.head);
}
inline void check_arguments(const launch_info &, int, arguments<> &) {}
template <class H, class... T> inline void check_arguments(const launch_info &info, int number, arguments<H, T...> &a)
{
    check_argument(info, number, a.head);
    check_arguments(info, number + 1, a.rest);
}

/* The arguments are kept by value in the kernel's own parameter types, as a GPU does. */
template <class... P, class... A>
inline void launch(const char *name, void (*kernel)(P...), dim3 grid, dim3 size, size_t shared_bytes,
                   cudaStream_t stream, A &&...args)
{
    struct kept {
        void (*kernel)(P...);
        arguments<std::decay_t<P>...> args;
    };
    kept *k = new kept { kernel, arguments<std::decay_t<P>...>(static_cast<A &&>(args)...) };
    launch_info info = { name, reinterpret_cast<const void *>(kernel), { grid.x, grid.y, grid.z },
                         { size.x, size.y, size.z }, shared_bytes, stream };
    check_arguments(info, 0, k->args);
    enqueue_launch(
        info, k,
        [](void *p) CUSIM_OWN {
            kept *own = static_cast<kept *>(p);
            call_with(own->kernel, own->args);
        },
        [](void *p) { delete static_cast<kept *>(p); });
}

} // namespace cusim

#define CUSIM_LAUNCH(kernel, grid, block, shared_bytes, stream, ...) \
    cusim::launch(#kernel, kernel, grid, block, shared_bytes, stream, __VA_ARGS__)
#define CUSIM_SHARED(type, name) type *name = reinterpret_cast<type *>(cusim::dynamic_shared())

/* ---- intrinsics ---- */

static inline void __trap() { cusim::trap(); }
static inline void __threadfence() {}
static inline void __threadfence_block() {}
template <class T> static inline T __ldg(const T *p) { return *p; }
template <class T> static inline T __ldcs(const T *p) { return *p; }
template <class T> static inline T __ldcg(const T *p) { return *p; }
template <class T> static inline void __stcs(T *p, T v) { *p = v; }
template <class T> static inline void __stcg(T *p, T v) { *p = v; }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __fsqrt_rn(float a) { return std::sqrt(a); }
static inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
static inline double __dadd_rn(double a, double b) { return a + b; }
static inline double __dmul_rn(double a, double b) { return a * b; }
static inline double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }
static inline float __fdividef(float a, float b) { return a / b; }
#define __expf(a) std::exp(static_cast<float>(a))
#define __logf(a) std::log(static_cast<float>(a))
static inline float __frcp_rn(float a) { return 1.0f / a; }
static inline float rsqrtf(float a) { return 1.0f / std::sqrt(a); }
static inline int __float2int_rn(float x) { return (int)nearbyintf(x); } /* within an int's range */
static __forceinline__ float __uint_as_float(unsigned u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}
static inline unsigned __float_as_uint(float f) { unsigned u; memcpy(&u, &f, sizeof u); return u; }
static inline float __int_as_float(int u) { float f; memcpy(&f, &u, sizeof f); return f; }
static inline int __float_as_int(float f) { int u; memcpy(&u, &f, sizeof u); return u; }
static inline long long __double_as_longlong(double d) { long long u; memcpy(&u, &d, sizeof u); return u; }
static inline double __longlong_as_double(long long u) { double d; memcpy(&d, &u, sizeof d); return d; }
static inline int __popc(unsigned u) { return __builtin_popcount(u); }
static inline int __clz(int u) { return u == 0 ? 32 : __builtin_clz(static_cast<unsigned>(u)); }
static inline int __ffs(int u) { return __builtin_ffs(u); }
static inline unsigned __umulhi(unsigned a, unsigned b)
{
    return static_cast<unsigned>(static_cast<unsigned long long>(a) * b >> 32);
}
template <class T> static inline T min(T a, T b) { return b < a ? b : a; }
template <class T> static inline T max(T a, T b) { return a < b ? b : a; }
/* Out of line and not instrumented: atomic operations report their own accesses to the tracking. */
#define CUSIM_ATOMIC CUSIM_OWN __attribute__((noinline)) static
template <class T> CUSIM_ATOMIC T atomicAdd(T *p, T v)
{
    cusim::touch_atomic(p, sizeof *p);
    const T before = *p;
    *p = static_cast<T>(before + v);
    return before;
}
template <class T> CUSIM_ATOMIC T atomicMax(T *p, T v)
{
    cusim::touch_atomic(p, sizeof *p);
    const T before = *p;
    *p = before < v ? v : before;
    return before;
}
template <class T> CUSIM_ATOMIC T atomicOr(T *p, T v)
{
    cusim::touch_atomic(p, sizeof *p);
    const T before = *p;
    *p = static_cast<T>(before | v);
    return before;
}
template <class T> CUSIM_ATOMIC T atomicCAS(T *p, T expected, T v)
{
    cusim::touch_atomic(p, sizeof *p);
    const T before = *p;
    if (before == expected)
        *p = v;
    return before;
}

#endif
