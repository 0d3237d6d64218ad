/* exact.cu - the kernels whose bits are a contract (exact.h), an operation a line as in exact_ref.c.
 *
 * Compiled with -fmad=false -ftz=false -prec-div=true -prec-sqrt=true, so every operation below rounds once, as IEEE
 * says, and an FMA is one only where it is written. SPDX-License-Identifier: Apache-2.0 */
#include <float.h>

#include "kernels/cuda/stochastic_round.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/launchers.h"

namespace {

/* ---- CAST ---- */

template <class To, class From> struct cast_op {
    To *to;
    const From *from;
    template <int W> __device__ __forceinline__ void run(int64_t i) const
    {
        float x[W];
        load<W>(x, from + i);
        store<W>(to + i, x);
    }
};

/* Runs that are apart in `from`; element i of `to` is element i % count of its run. */
template <class Op> struct rows_op {
    Op op;
    int64_t count, gap;
    template <int W> __device__ __forceinline__ void run(int64_t i) const
    {
        Op moved = op;
        moved.from += i / count * gap;
        moved.template run<W>(i);
    }
};

/* W elements at a time are of one run where its length and its stride are multiples of W. */
template <int W, class Op>
void each_of_rows(const dsc_cuda_launch *at, const Op &op, int64_t rows, int64_t count, int64_t stride, bool aligned)
{
    if (rows <= 1)
        each<W>(at, op, count, aligned);
    else
        each<W>(at, rows_op<Op> { op, count, stride - count }, rows * count,
                aligned && count % W == 0 && stride % W == 0);
}

template <class To, class From> void cast(const dsc_cuda_launch *at, const dsc_cast_args *a)
{
    const cast_op<To, From> op = { static_cast<To *>(a->to), static_cast<const From *>(a->from) };
    each_of_rows<8>(at, op, a->rows, a->count, a->from_stride, is_aligned(a->to) && is_aligned(a->from));
}

/* Any bytes, W = 16 of them as words. */
struct copy_op {
    unsigned char *to;
    const unsigned char *from;
    template <int W> __device__ __forceinline__ void run(int64_t i) const
    {
        if (W == 16)
            *reinterpret_cast<uint4 *>(to + i) = *reinterpret_cast<const uint4 *>(from + i);
        else
            to[i] = from[i];
    }
};

/* ---- CAST_STOCHASTIC ---- */

/* first % 8 == 0 where W is 8: such a run is one block's. */
struct cast_stochastic_op {
    uint16_t *to;
    const float *from;
    int64_t first;
    uint64_t seed, stream;
    template <int W> __device__ __forceinline__ void run(int64_t i) const
    {
        static_assert(W == 8 || W == 1, "a block has 8 elements");
        const uint64_t n = static_cast<uint64_t>(first + i);
        uint32_t word[4];
        float x[W];
        load<W>(x, from + i);
        philox(word, seed, stream, n / 8);
#pragma unroll
        for (int j = 0; j < W; j++) {
            const uint32_t at = W == 8 ? static_cast<uint32_t>(j) : static_cast<uint32_t>(n % 8);
            const uint32_t low = at / 4 == 0 ? word[0] : word[2], high = at / 4 == 0 ? word[1] : word[3];
            x[j] = up_or_down(x[j], ((at / 2 % 2 == 0 ? low : high) >> at % 2 * 16) & 0xffffu);
        }
        store<W>(to + i, x);
    }
};

/* ---- ORDERED_REDUCE ---- */

enum { POINTERS_MAX = 256 }; /* they travel in the launch: 2 KiB of the 4 that a kernel's arguments may have */

struct strided_parts {
    const char *first;
    int64_t stride_bytes;
    __device__ __forceinline__ const void *leaf(int64_t k) const { return first + k * stride_bytes; }
};

struct pointer_parts {
    const void *pointer[POINTERS_MAX];
    __device__ __forceinline__ const void *leaf(int64_t k) const { return pointer[k]; }
};

template <class Leaf, class Wire, class Leaves> struct ordered_reduce_op {
    float *acc;
    Leaves leaves;
    int64_t grad_part_count;
    bool overwrite;

    template <int W> __device__ __forceinline__ void take(float (&x)[W], int64_t k, int64_t i) const
    {
        load<W>(x, static_cast<const Leaf *>(leaves.leaf(k)) + i);
        if (sizeof(Leaf) != sizeof(Wire))
#pragma unroll
            for (int j = 0; j < W; j++)
                x[j] = to_f32(element<Wire>::from(x[j]));
    }

    template <int W> __device__ __forceinline__ void run(int64_t i) const
    {
        float s[W], x[W];
        take<W>(s, 0, i);
        if (!overwrite) {
            load<W>(x, acc + i);
#pragma unroll
            for (int j = 0; j < W; j++)
                s[j] = x[j] + s[j];
        }
#pragma unroll 4
        for (int64_t k = 1; k < grad_part_count; k++) {
            take<W>(x, k, i);
#pragma unroll
            for (int j = 0; j < W; j++)
                s[j] = s[j] + x[j];
        }
        store<W>(acc + i, s);
    }
};

/* Fp32 leaves are rounded to the wire's type first. */
template <class Leaf, class Wire, class Leaves>
void ordered_reduce(const dsc_cuda_launch *at, const dsc_ordered_reduce_args *a, const Leaves &leaves, bool aligned)
{
    const ordered_reduce_op<Leaf, Wire, Leaves> op = { a->acc, leaves, a->grad_part_count, a->overwrite };
    each<8>(at, op, a->count, aligned && is_aligned(a->acc));
}

template <class Leaves>
void ordered_reduce_any(const dsc_cuda_launch *at, const dsc_ordered_reduce_args *a, const Leaves &leaves, bool aligned)
{
    if (a->leaf_dtype == DSC_F32)
        DSC_CUDA_FOR_DTYPE(a->wire_dtype, T, ordered_reduce<float, T>(at, a, leaves, aligned));
    else
        DSC_CUDA_FOR_DTYPE(a->leaf_dtype, T, ordered_reduce<T, T>(at, a, leaves, aligned));
}

/* ---- ADD ---- */

struct add_op {
    float *to;
    const float *a, *b;
    template <int W> __device__ __forceinline__ void run(int64_t i) const
    {
        float x[W], y[W];
        load<W>(x, a + i);
        load<W>(y, b + i);
#pragma unroll
        for (int j = 0; j < W; j++)
            x[j] = x[j] + y[j];
        store<W>(to + i, x);
    }
};

/* ---- SUMSQ: four threads have a chunk, each four of its sixteen lanes ---- */

enum { SUMSQ_THREADS = 256, SUMSQ_CHUNKS = SUMSQ_THREADS / 4, FIXED_BIAS = 1152 };
typedef unsigned long long limb_word; /* the type of atomicAdd; the sums are the same modulo 2^64 */

/* As dsc_fixed_sum_add, into limbs that several threads add to; integer sums have no order. */
__device__ void fixed_add(limb_word *limb, limb_word *nonfinite_count, double value)
{
    if (!(value >= 0.0 && value <= DBL_MAX)) {
        atomicAdd(nonfinite_count, 1ull);
        return;
    }
    const limb_word bits = static_cast<limb_word>(__double_as_longlong(value));
    const int biased = static_cast<int>(bits >> 52 & 0x7ff);
    const limb_word mantissa = (bits & 0xfffffffffffffull) | static_cast<limb_word>(biased != 0) << 52;
    const int shift = (biased > 1 ? biased : 1) - 1075 + FIXED_BIAS, rest = shift % 32;
    const limb_word low = mantissa << rest, high = rest == 0 ? 0 : mantissa >> (64 - rest);
    const limb_word part[3] = { low & 0xffffffffull, low >> 32, high };
#pragma unroll
    for (int i = 0; i < 3; i++)
        if (part[i] != 0)
            atomicAdd(&limb[shift / 32 + i], part[i]);
}

/* Lanes q*4 .. q*4+3 of the chunk at x; a short chunk is padded with zeros, which change no sum. */
template <bool ALIGNED>
__device__ void sumsq_lanes(double (&lane)[4], const float *x, int64_t count, int q, dsc_dtype round_dtype)
{
#pragma unroll 8
    for (int i = q * 4; i < DSC_SUMSQ_CHUNK; i += 16) {
        float v[4] = { 0, 0, 0, 0 };
        if (ALIGNED && i + 4 <= count)
            load<4>(v, x + i);
        else
#pragma unroll
            for (int j = 0; j < 4; j++)
                if (i + j < count)
                    v[j] = x[i + j];
        round_to(v, round_dtype);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const double value = static_cast<double>(v[j]);
            lane[j] = fma(value, value, lane[j]);
        }
    }
}

template <bool ALIGNED>
__global__ void sumsq_kernel(dsc_fixed_sum *sum, const float *x, int64_t count, dsc_dtype round_dtype)
{
    __shared__ limb_word limb[DSC_FIXED_LIMBS + 1]; /* the last one counts Inf and NaN */
    for (int i = static_cast<int>(threadIdx.x); i <= DSC_FIXED_LIMBS; i += SUMSQ_THREADS)
        limb[i] = 0;
    __syncthreads();
    const int64_t start =
        (static_cast<int64_t>(blockIdx.x) * SUMSQ_CHUNKS + threadIdx.x / 4) * DSC_SUMSQ_CHUNK;
    const int q = static_cast<int>(threadIdx.x % 4);
    double lane[4] = { 0, 0, 0, 0 };
    if (start < count)
        sumsq_lanes<ALIGNED>(lane, x + start, count - start, q, round_dtype);
#pragma unroll
    for (int width = 2; width >= 1; width /= 2) /* lanes 8 and 4 apart are threads 2 and 1 apart */
#pragma unroll
        for (int j = 0; j < 4; j++)
            lane[j] = lane[j] + __shfl_down_sync(0xffffffffu, lane[j], static_cast<unsigned>(width), 4);
    if (q == 0 && start < count)
        fixed_add(limb, &limb[DSC_FIXED_LIMBS], (lane[0] + lane[2]) + (lane[1] + lane[3]));
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i <= DSC_FIXED_LIMBS; i += SUMSQ_THREADS) {
        int64_t *to = i < DSC_FIXED_LIMBS ? &sum->limb[i] : &sum->nonfinite_count;
        if (limb[i] != 0)
            atomicAdd(reinterpret_cast<limb_word *>(to), limb[i]);
    }
}

} // namespace

dsc_status dsc_cuda_run_CAST(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_cast_args *a = static_cast<const dsc_cast_args *>(args);
    const int64_t bytes = static_cast<int64_t>(dsc_dtype_bytes(a->to_dtype));
    DSC_ASSERT(a->rows <= 1 || a->from_stride >= a->count);
    if (a->to_dtype == a->from_dtype && bytes != 0)
        each_of_rows<16>(at,
                         copy_op { static_cast<unsigned char *>(a->to), static_cast<const unsigned char *>(a->from) },
                         a->rows, a->count * bytes, a->from_stride * bytes, is_aligned(a->to) && is_aligned(a->from));
    else if (a->to_dtype == DSC_BF16 && a->from_dtype == DSC_F32)
        cast<uint16_t, float>(at, a);
    else if (a->to_dtype == DSC_F16 && a->from_dtype == DSC_F32)
        cast<half_bits, float>(at, a);
    else if (a->to_dtype == DSC_F32 && a->from_dtype == DSC_BF16)
        cast<float, uint16_t>(at, a);
    else if (a->to_dtype == DSC_F32 && a->from_dtype == DSC_F16)
        cast<float, half_bits>(at, a);
    else
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "CAST", "no cast from dtype %d to dtype %d",
                        static_cast<int>(a->from_dtype), static_cast<int>(a->to_dtype));
    return DSC_OK;
}

dsc_status dsc_cuda_run_CAST_STOCHASTIC(const dsc_cuda_launch *at, const void *args, dsc_error *)
{
    const dsc_cast_stochastic_args *a = static_cast<const dsc_cast_stochastic_args *>(args);
    DSC_ASSERT(a->first >= 0);
    const cast_stochastic_op op = { a->to, a->from, a->first, a->seed, a->stream };
    each<8>(at, op, a->count, a->first % 8 == 0 && is_aligned(a->to) && is_aligned(a->from));
    return DSC_OK;
}

dsc_status dsc_cuda_run_ORDERED_REDUCE(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_ordered_reduce_args *a = static_cast<const dsc_ordered_reduce_args *>(args);
    DSC_ASSERT(a->grad_part_count >= 1);
    DSC_TRY(dtype_check("ORDERED_REDUCE", a->leaf_dtype, err));
    DSC_TRY(dtype_check("ORDERED_REDUCE", a->wire_dtype, err));
    if (a->leaf_ptr == NULL) {
        const strided_parts leaves = { static_cast<const char *>(a->leaf), a->leaf_stride_bytes };
        ordered_reduce_any(at, a, leaves, is_aligned(a->leaf) && a->leaf_stride_bytes % 16 == 0);
        return DSC_OK;
    }
    if (a->grad_part_count > POINTERS_MAX)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "ORDERED_REDUCE", "%lld leaves by pointer; at most %d",
                        static_cast<long long>(a->grad_part_count), static_cast<int>(POINTERS_MAX));
    pointer_parts leaves = {};
    bool aligned = true;
    for (int64_t k = 0; k < a->grad_part_count; k++) {
        leaves.pointer[k] = a->leaf_ptr[k];
        aligned = aligned && is_aligned(a->leaf_ptr[k]);
    }
    ordered_reduce_any(at, a, leaves, aligned);
    return DSC_OK;
}

dsc_status dsc_cuda_run_ADD(const dsc_cuda_launch *at, const void *args, dsc_error *)
{
    const dsc_add_args *a = static_cast<const dsc_add_args *>(args);
    each<8>(at, add_op{ a->to, a->a, a->b }, a->count, is_aligned(a->to) && is_aligned(a->a) && is_aligned(a->b));
    return DSC_OK;
}

dsc_status dsc_cuda_run_SUMSQ(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_sumsq_args *a = static_cast<const dsc_sumsq_args *>(args);
    DSC_ASSERT(a->count >= 0);
    DSC_TRY(dtype_check("SUMSQ", a->round_dtype, err));
    if (a->count == 0)
        return DSC_OK;
    const unsigned blocks = grid_size(dsc_div_ceil(a->count, static_cast<int64_t>(SUMSQ_CHUNKS) * DSC_SUMSQ_CHUNK));
    if (is_aligned(a->x))
        DSC_CUDA_LAUNCH(sumsq_kernel<true>, blocks, SUMSQ_THREADS, 0, at->stream, a->sum, a->x, a->count,
                        a->round_dtype);
    else
        DSC_CUDA_LAUNCH(sumsq_kernel<false>, blocks, SUMSQ_THREADS, 0, at->stream, a->sum, a->x, a->count,
                        a->round_dtype);
    return DSC_OK;
}
