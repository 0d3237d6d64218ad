/* quant.cu - numbers packed for the wire (quant.h), an operation a line as in quant_ref.c: a warp has a block of 128
 * elements, a lane four that follow each other. Compiled as exact.cu is, whose first lines say why.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/elements.h"
#include "kernels/cuda/launchers.h"

namespace {

enum { QUANT_THREADS = 256, QUANT_WARPS = QUANT_THREADS / 32, LANE_ELEMENTS = DSC_QUANT_BLOCK / 32 };

/* The warp's block: of which piece, and which of its blocks. */
struct quant_place {
    int64_t piece, block;
    int lane;
};

__device__ __forceinline__ bool find_place(quant_place &at, int64_t blocks_each, int64_t pieces)
{
    const int64_t warp = static_cast<int64_t>(blockIdx.x) * QUANT_WARPS + threadIdx.x / 32;
    at.piece = warp / blocks_each;
    at.block = warp % blocks_each;
    at.lane = static_cast<int>(threadIdx.x % 32);
    return at.piece < pieces;
}

/* Packed form of the lane's four elements. */
template <dsc_quant Q> struct packed;
template <> struct packed<DSC_QUANT_INT8> {
    typedef uint32_t word;
    static __device__ __forceinline__ float levels() { return 127.0f; }
    static __device__ __forceinline__ word of(const int (&q)[LANE_ELEMENTS])
    {
        word w = 0;
#pragma unroll
        for (int j = 0; j < LANE_ELEMENTS; j++)
            w |= (static_cast<uint32_t>(q[j]) & 0xffu) << (8 * j);
        return w;
    }
    static __device__ __forceinline__ int at(word w, int j) { return static_cast<int8_t>(w >> (8 * j) & 0xffu); }
};
template <> struct packed<DSC_QUANT_INT4> {
    typedef uint16_t word;
    static __device__ __forceinline__ float levels() { return 7.0f; }
    static __device__ __forceinline__ word of(const int (&q)[LANE_ELEMENTS])
    {
        uint32_t w = 0;
#pragma unroll
        for (int j = 0; j < LANE_ELEMENTS; j++)
            w |= (static_cast<uint32_t>(q[j] + 8) & 15u) << (4 * j);
        return static_cast<word>(w);
    }
    static __device__ __forceinline__ int at(word w, int j) { return static_cast<int>(w >> (4 * j) & 15u) - 8; }
};

template <dsc_quant Q> __device__ __forceinline__ typename packed<Q>::word *words(void *piece, int64_t count,
                                                                                  const quant_place &at)
{
    typedef typename packed<Q>::word word;
    uint16_t *scales = static_cast<uint16_t *>(piece); /* the elements follow them */
    return reinterpret_cast<word *>(scales + count / DSC_QUANT_BLOCK) + at.block * 32 + at.lane;
}

/* The block's scale from its largest |x|, and what elements are multiplied with; as dsc_quant_inverse. */
template <dsc_quant Q> __device__ __forceinline__ float inverse_of(uint32_t top, uint16_t &scale)
{
    scale = 0x7fc0;
    if (top >= 0x7f800000u)
        return 0.0f;
    const uint32_t bits = __float_as_uint(__uint_as_float(top) / packed<Q>::levels());
    const uint32_t up = (bits + 0xffffu) >> 16;
    scale = up < 0x0080u ? static_cast<uint16_t>(0) : static_cast<uint16_t>(up);
    return scale == 0 ? 0.0f : 1.0f / to_f32(scale);
}

template <class T, dsc_quant Q> __global__ void quantize_kernel(const dsc_quantize_args a)
{
    quant_place at;
    if (!find_place(at, a.count / DSC_QUANT_BLOCK, a.pieces))
        return;
    const int64_t i = at.piece * a.from_stride + at.block * DSC_QUANT_BLOCK + at.lane * LANE_ELEMENTS;
    char *piece = static_cast<char *>(a.to) + at.piece * a.to_stride_bytes;
    float x[LANE_ELEMENTS], e[LANE_ELEMENTS];
    load<LANE_ELEMENTS>(x, static_cast<const T *>(a.from) + i);
    if (a.error != NULL)
        load<LANE_ELEMENTS>(e, a.error + i);
    uint32_t top = 0;
#pragma unroll
    for (int j = 0; j < LANE_ELEMENTS; j++) {
        if (a.error != NULL)
            x[j] = x[j] + e[j];
        const uint32_t bits = __float_as_uint(x[j]) & 0x7fffffffu;
        top = bits > top ? bits : top;
    }
#pragma unroll
    for (int width = 16; width >= 1; width /= 2) {
        const uint32_t other = __shfl_xor_sync(0xffffffffu, top, width);
        top = other > top ? other : top;
    }
    uint16_t scale;
    const float inverse = inverse_of<Q>(top, scale), step = to_f32(scale);
    int q[LANE_ELEMENTS];
#pragma unroll
    for (int j = 0; j < LANE_ELEMENTS; j++) {
        q[j] = inverse == 0.0f ? 0 : __float2int_rn(x[j] * inverse);
        e[j] = top >= 0x7f800000u ? 0.0f : x[j] - static_cast<float>(q[j]) * step;
    }
    *words<Q>(piece, a.count, at) = packed<Q>::of(q);
    if (at.lane == 0)
        reinterpret_cast<uint16_t *>(piece)[at.block] = scale;
    if (a.error != NULL)
        store<LANE_ELEMENTS>(a.error + i, e);
}

/* The lane's elements of a packed piece. */
template <dsc_quant Q>
__device__ __forceinline__ void unpack(float (&x)[LANE_ELEMENTS], const void *from, int64_t count,
                                       const quant_place &at)
{
    void *piece = const_cast<void *>(from);
    const typename packed<Q>::word w = *words<Q>(piece, count, at);
    const float step = to_f32(static_cast<const uint16_t *>(from)[at.block]);
#pragma unroll
    for (int j = 0; j < LANE_ELEMENTS; j++)
        x[j] = static_cast<float>(packed<Q>::at(w, j)) * step;
}

template <class H> __device__ __forceinline__ void unpack_half(float (&x)[LANE_ELEMENTS], const void *from,
                                                               const quant_place &at)
{
    load<LANE_ELEMENTS>(x, static_cast<const H *>(from) + at.block * DSC_QUANT_BLOCK + at.lane * LANE_ELEMENTS);
}
template <>
__device__ __forceinline__ void unpack<DSC_QUANT_BF16>(float (&x)[LANE_ELEMENTS], const void *from, int64_t,
                                                       const quant_place &at)
{
    unpack_half<uint16_t>(x, from, at);
}
template <>
__device__ __forceinline__ void unpack<DSC_QUANT_F16>(float (&x)[LANE_ELEMENTS], const void *from, int64_t,
                                                      const quant_place &at)
{
    unpack_half<half_bits>(x, from, at);
}

template <class T, dsc_quant Q> __global__ void dequantize_kernel(const dsc_dequantize_args a)
{
    quant_place at;
    if (!find_place(at, a.count / DSC_QUANT_BLOCK, a.pieces))
        return;
    float x[LANE_ELEMENTS];
    unpack<Q>(x, static_cast<const char *>(a.from) + at.piece * a.from_stride_bytes, a.count, at);
    store<LANE_ELEMENTS>(static_cast<T *>(a.to) + at.piece * a.to_stride + at.block * DSC_QUANT_BLOCK +
                             at.lane * LANE_ELEMENTS, x);
}

template <dsc_quant Q> __global__ void ordered_reduce_quantized_kernel(const dsc_ordered_reduce_quantized_args a)
{
    quant_place at;
    if (!find_place(at, a.count / DSC_QUANT_BLOCK, 1))
        return;
    float *acc = a.acc + at.block * DSC_QUANT_BLOCK + at.lane * LANE_ELEMENTS;
    float s[LANE_ELEMENTS], x[LANE_ELEMENTS];
    unpack<Q>(s, a.leaf, a.count, at);
    if (!a.overwrite) {
        load<LANE_ELEMENTS>(x, acc);
#pragma unroll
        for (int j = 0; j < LANE_ELEMENTS; j++)
            s[j] = x[j] + s[j];
    }
    for (int64_t k = 1; k < a.grad_part_count; k++) {
        unpack<Q>(x, static_cast<const char *>(a.leaf) + k * a.leaf_stride_bytes, a.count, at);
#pragma unroll
        for (int j = 0; j < LANE_ELEMENTS; j++)
            s[j] = s[j] + x[j];
    }
    store<LANE_ELEMENTS>(acc, s);
}

/* ---- BF16 and F16: a thread has a lane's elements ---- */

template <class H> __global__ void quantize_half_kernel(const dsc_quantize_args a)
{
    quant_place at;
    if (!find_place(at, a.count / DSC_QUANT_BLOCK, a.pieces))
        return;
    const int64_t in_piece = at.block * DSC_QUANT_BLOCK + at.lane * LANE_ELEMENTS;
    const int64_t i = at.piece * a.from_stride + in_piece;
    char *piece = static_cast<char *>(a.to) + at.piece * a.to_stride_bytes;
    float x[LANE_ELEMENTS], e[LANE_ELEMENTS];
    load<LANE_ELEMENTS>(x, static_cast<const float *>(a.from) + i);
    if (a.error != NULL)
        load<LANE_ELEMENTS>(e, a.error + i);
#pragma unroll
    for (int j = 0; j < LANE_ELEMENTS; j++) {
        if (a.error != NULL)
            x[j] = x[j] + e[j];
        const float rounded = to_f32(element<H>::from(x[j]));
        e[j] = (__float_as_uint(rounded) & 0x7fffffffu) < 0x7f800000u ? x[j] - rounded : 0.0f;
    }
    store<LANE_ELEMENTS>(reinterpret_cast<H *>(piece) + in_piece, x);
    if (a.error != NULL)
        store<LANE_ELEMENTS>(a.error + i, e);
}

/* A warp for each block of all pieces; 0: there is nothing to do. */
unsigned grid_of(int64_t count, int64_t pieces)
{
    DSC_ASSERT(count >= 0 && count % DSC_QUANT_UNIT == 0);
    DSC_ASSERT(pieces >= 0);
    const int64_t warps = count / DSC_QUANT_BLOCK * pieces;
    return warps == 0 ? 0 : grid_size(dsc_div_ceil(warps, QUANT_WARPS));
}

/* As the CPU's kernels. */
dsc_status check(const char *kernel, dsc_quant quant, dsc_dtype dtype, dsc_error *err)
{
    if (dsc_quant_is_half(quant) && dtype != DSC_F32)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, kernel, "dtype %d; expected F32", static_cast<int>(dtype));
    return dtype_check(kernel, dtype, err);
}

template <dsc_quant Q> void quantize(const dsc_cuda_launch *at, const dsc_quantize_args *a, unsigned grid)
{
    DSC_CUDA_FOR_DTYPE(a->from_dtype, T,
                       DSC_CUDA_LAUNCH((quantize_kernel<T, Q>), grid, QUANT_THREADS, 0, at->stream, *a));
}

template <dsc_quant Q> void dequantize(const dsc_cuda_launch *at, const dsc_dequantize_args *a, unsigned grid)
{
    DSC_CUDA_FOR_DTYPE(a->to_dtype, T,
                       DSC_CUDA_LAUNCH((dequantize_kernel<T, Q>), grid, QUANT_THREADS, 0, at->stream, *a));
}

} // namespace

dsc_status dsc_cuda_run_QUANTIZE(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_quantize_args *a = static_cast<const dsc_quantize_args *>(args);
    DSC_TRY(check("QUANTIZE", a->quant, a->from_dtype, err));
    const unsigned grid = grid_of(a->count, a->pieces);
    if (grid == 0)
        return DSC_OK;
    if (a->quant == DSC_QUANT_BF16)
        DSC_CUDA_LAUNCH((quantize_half_kernel<uint16_t>), grid, QUANT_THREADS, 0, at->stream, *a);
    else if (a->quant == DSC_QUANT_F16)
        DSC_CUDA_LAUNCH((quantize_half_kernel<half_bits>), grid, QUANT_THREADS, 0, at->stream, *a);
    else if (a->quant == DSC_QUANT_INT4)
        quantize<DSC_QUANT_INT4>(at, a, grid);
    else
        quantize<DSC_QUANT_INT8>(at, a, grid);
    return DSC_OK;
}

dsc_status dsc_cuda_run_DEQUANTIZE(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_dequantize_args *a = static_cast<const dsc_dequantize_args *>(args);
    DSC_TRY(check("DEQUANTIZE", a->quant, a->to_dtype, err));
    const unsigned grid = grid_of(a->count, a->pieces);
    if (grid == 0)
        return DSC_OK;
    if (a->quant == DSC_QUANT_BF16)
        DSC_CUDA_LAUNCH((dequantize_kernel<float, DSC_QUANT_BF16>), grid, QUANT_THREADS, 0, at->stream, *a);
    else if (a->quant == DSC_QUANT_F16)
        DSC_CUDA_LAUNCH((dequantize_kernel<float, DSC_QUANT_F16>), grid, QUANT_THREADS, 0, at->stream, *a);
    else if (a->quant == DSC_QUANT_INT4)
        dequantize<DSC_QUANT_INT4>(at, a, grid);
    else
        dequantize<DSC_QUANT_INT8>(at, a, grid);
    return DSC_OK;
}

dsc_status dsc_cuda_run_ORDERED_REDUCE_QUANTIZED(const dsc_cuda_launch *at, const void *args, dsc_error *)
{
    const dsc_ordered_reduce_quantized_args *a = static_cast<const dsc_ordered_reduce_quantized_args *>(args);
    DSC_ASSERT(a->grad_part_count >= 1);
    const unsigned grid = grid_of(a->count, 1);
    if (grid == 0)
        return DSC_OK;
    if (a->quant == DSC_QUANT_BF16)
        DSC_CUDA_LAUNCH((ordered_reduce_quantized_kernel<DSC_QUANT_BF16>), grid, QUANT_THREADS, 0, at->stream, *a);
    else if (a->quant == DSC_QUANT_F16)
        DSC_CUDA_LAUNCH((ordered_reduce_quantized_kernel<DSC_QUANT_F16>), grid, QUANT_THREADS, 0, at->stream, *a);
    else if (a->quant == DSC_QUANT_INT4)
        DSC_CUDA_LAUNCH((ordered_reduce_quantized_kernel<DSC_QUANT_INT4>), grid, QUANT_THREADS, 0, at->stream, *a);
    else
        DSC_CUDA_LAUNCH((ordered_reduce_quantized_kernel<DSC_QUANT_INT8>), grid, QUANT_THREADS, 0, at->stream, *a);
    return DSC_OK;
}
