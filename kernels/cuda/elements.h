/* elements.h - elements of F32 (float), BF16 (uint16_t) and F16 (half_bits) on the device. They are accessed one at a
 * time or W in as few 16-byte accesses as possible. Also loops over flat arrays, and sums over a warp or a block.
 *
 * `store` rounds bf16 by integers (nearest even, denormals kept, NaN quiet), as base/bf16.h does it: exact kernels need
 * those bits. `store_fast` takes the hardware's instruction, which differs in the bits of a NaN alone. fp16 is the
 * hardware's, which has those bits except for NaN.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CUDA_ELEMENTS_H
#define DSC_KERNELS_CUDA_ELEMENTS_H

#include "base/base.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/ptx.h"

namespace {

enum { DSC_CUDA_EACH_THREADS = 256 };

__device__ __forceinline__ float to_f32(float x) { return x; }
__device__ __forceinline__ float to_f32(uint16_t h) { return __uint_as_float(static_cast<uint32_t>(h) << 16); }

__device__ __forceinline__ uint16_t to_bf16(float x)
{
    const uint32_t u = __float_as_uint(x);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return static_cast<uint16_t>((u >> 16) | 0x40u);
    return static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

/* An fp16. */
struct half_bits { uint16_t bits; };

__device__ __forceinline__ float to_f32(half_bits h)
{
    if ((h.bits & 0x7fffu) > 0x7c00u)
        return __uint_as_float((h.bits & 0x8000u) << 16 | 0x7fc00000u | (h.bits & 0x3ffu) << 13);
    return f32_from_f16_bits(h.bits);
}

__device__ __forceinline__ half_bits to_f16(float x)
{
    const uint32_t u = __float_as_uint(x);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return { static_cast<uint16_t>((u >> 16 & 0x8000u) | 0x7e00u | (u >> 13 & 0x1ffu)) };
    return { f16_bits_from_f32(x) };
}

template <class T> struct element;
template <> struct element<float> {
    static __device__ __forceinline__ float from(float x) { return x; }
};
template <> struct element<uint16_t> {
    static __device__ __forceinline__ uint16_t from(float x) { return to_bf16(x); }
};
template <> struct element<half_bits> {
    static __device__ __forceinline__ half_bits from(float x) { return to_f16(x); }
};

/* x as numbers of this dtype, which is the same for all threads. */
template <int W> __device__ __forceinline__ void round_to(float (&x)[W], dsc_dtype dtype)
{
    if (dtype == DSC_BF16)
#pragma unroll
        for (int j = 0; j < W; j++)
            x[j] = to_f32(to_bf16(x[j]));
    else if (dtype == DSC_F16)
#pragma unroll
        for (int j = 0; j < W; j++)
            x[j] = to_f32(to_f16(x[j]));
}

/* Elements of one access. */
template <int BYTES> struct word;
template <> struct word<2> { typedef uint16_t type; };
template <> struct word<4> { typedef uint32_t type; };
template <> struct word<8> { typedef uint2 type; };
template <> struct word<16> { typedef uint4 type; };

/* W elements in as few accesses as possible, up to 16 bytes each. */
template <class T, int W> union vector {
    enum { BYTES = W * static_cast<int>(sizeof(T)), EACH = BYTES < 16 ? BYTES : 16, WORDS = BYTES / EACH };
    typename word<EACH>::type words[WORDS];
    T elements[W];
};

template <class T, int W> __device__ __forceinline__ void unpack(float (&x)[W], const vector<T, W> &v)
{
#pragma unroll
    for (int i = 0; i < W; i++)
        x[i] = to_f32(v.elements[i]);
}

/* Pairs of bf16: one instruction an element. */
template <int W> __device__ __forceinline__ void unpack(float (&x)[W], const vector<uint16_t, W> &v)
{
    uint32_t pairs[(W + 1) / 2] = {};
    memcpy(pairs, v.elements, sizeof v.elements);
#pragma unroll
    for (int i = 0; i < W; i++)
        x[i] = __uint_as_float(i % 2 == 0 ? pairs[i / 2] << 16 : pairs[i / 2] & 0xffff0000u);
}

/* W elements at p, which is aligned to them, up to 16 bytes. */
template <class T, int W> __device__ __forceinline__ void load_vector(vector<T, W> &v, const T *p)
{
#pragma unroll
    for (int i = 0; i < vector<T, W>::WORDS; i++)
        v.words[i] = reinterpret_cast<const typename word<vector<T, W>::EACH>::type *>(p)[i];
}

template <int W, class T> __device__ __forceinline__ void load(float (&x)[W], const T *p)
{
    vector<T, W> v;
    load_vector(v, p);
    unpack(x, v);
}

template <class T, int W> __device__ __forceinline__ void store_vector(T *p, const vector<T, W> &v)
{
#pragma unroll
    for (int i = 0; i < vector<T, W>::WORDS; i++)
        reinterpret_cast<typename word<vector<T, W>::EACH>::type *>(p)[i] = v.words[i];
}

template <int W, class T> __device__ __forceinline__ void store(T *p, const float (&x)[W])
{
    vector<T, W> v;
#pragma unroll
    for (int i = 0; i < W; i++)
        v.elements[i] = element<T>::from(x[i]);
    store_vector(p, v);
}

/* As `store`, but that a NaN in bf16 becomes the instruction's own NaN: one instruction for two elements. */
template <int W, class T> __device__ __forceinline__ void store_fast(T *p, const float (&x)[W]) { store<W>(p, x); }

template <int W> __device__ __forceinline__ void store_fast(uint16_t *p, const float (&x)[W])
{
    vector<uint16_t, W> v;
    uint32_t pairs[(W + 1) / 2];
#pragma unroll
    for (int i = 0; i < W; i += 2)
        pairs[i / 2] = pack_bf16(x[i], i + 1 < W ? x[i + 1] : 0.0f);
    memcpy(v.elements, pairs, sizeof v.elements);
    store_vector(p, v);
}

/* op.run<W>(i) computes elements i .. i + W - 1. A thread has W of them, once: the grid follows from the count. */
template <int W, class Op> __global__ void each_kernel(const Op op, int64_t count)
{
    const int64_t i = (static_cast<int64_t>(blockIdx.x) * DSC_CUDA_EACH_THREADS + threadIdx.x) * W;
    if (i + W <= count) {
        op.template run<W>(i);
        return;
    }
    for (int64_t k = i; k < count; k++)
        op.template run<1>(k);
}

/* ---- warps and blocks: fixed trees, the same bits in every lane ---- */

__device__ __forceinline__ float warp_sum(float x)
{
#pragma unroll
    for (int width = 16; width >= 1; width /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, width);
    return x;
}

__device__ __forceinline__ float warp_max(float x)
{
#pragma unroll
    for (int width = 16; width >= 1; width /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, width));
    return x;
}

/* ---- host ---- */

/* Threads of a block that walks `items` things together: a power of two from one warp up, by the shape alone. */
inline unsigned threads_for(int64_t items, int64_t most)
{
    int64_t threads = 32;
    while (threads < items && threads < most)
        threads *= 2;
    return static_cast<unsigned>(threads);
}

inline unsigned grid_size(int64_t blocks)
{
    DSC_ASSERT(blocks >= 1 && blocks <= INT32_MAX);
    return static_cast<unsigned>(blocks);
}

inline bool is_aligned(const void *p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

/* `aligned`: every array starts at a multiple of 16 bytes. */
template <int W, class Op> void each(const dsc_cuda_launch *at, const Op &op, int64_t count, bool aligned)
{
    DSC_ASSERT(count >= 0);
    if (count == 0)
        return;
    const unsigned blocks = grid_size(dsc_div_ceil(count, DSC_CUDA_EACH_THREADS * (aligned ? W : 1)));
    if (aligned)
        DSC_CUDA_LAUNCH((each_kernel<W, Op>), blocks, DSC_CUDA_EACH_THREADS, 0, at->stream, op, count);
    else
        DSC_CUDA_LAUNCH((each_kernel<1, Op>), blocks, DSC_CUDA_EACH_THREADS, 0, at->stream, op, count);
}

inline dsc_status dtype_check(const char *kernel, dsc_dtype dtype, dsc_error *err)
{
    if (dtype == DSC_F32 || dtype == DSC_BF16 || dtype == DSC_F16)
        return DSC_OK;
    return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, kernel, "dtype %d; expected F32, BF16 or F16", static_cast<int>(dtype));
}

/* Runs the code after `T` with T the type of the dtype's elements. */
#define DSC_CUDA_FOR_DTYPE(dtype, T, ...) \
    do {                                  \
        if ((dtype) == DSC_F32) {         \
            typedef float T;              \
            __VA_ARGS__;                  \
        } else if ((dtype) == DSC_BF16) { \
            typedef uint16_t T;           \
            __VA_ARGS__;                  \
        } else {                          \
            typedef half_bits T;          \
            __VA_ARGS__;                  \
        }                                 \
    } while (0)

} // namespace

#endif
