/* rope.cu - tables of rotary embeddings, and heads turned by them: a block has a token's row, a thread W pairs of a
 * head at a time. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/elements.h"
#include "kernels/cuda/launchers.h"

namespace {

enum { ROPE_THREADS = 256 };

/* ---- tables ---- */

struct rope_frequencies { float of[DSC_ROPE_PAIRS_MAX]; }; /* travel in the launch */

struct table_arrays {
    float *cos, *sin;
    int64_t first, count; /* count: of all elements */
    int32_t pairs;
    float factor;
};

__global__ void __launch_bounds__(ROPE_THREADS) table_kernel(const table_arrays a, const rope_frequencies frequency)
{
    const int64_t i = static_cast<int64_t>(blockIdx.x) * ROPE_THREADS + threadIdx.x;
    if (i >= a.count)
        return;
    const double angle = static_cast<double>(static_cast<float>(a.first + i / a.pairs) * frequency.of[i % a.pairs]);
    double sine, cosine;
    sincos(angle, &sine, &cosine); /* one reduction of the angle for both */
    a.cos[i] = static_cast<float>(static_cast<double>(a.factor) * cosine);
    a.sin[i] = static_cast<float>(static_cast<double>(a.factor) * sine);
}

/* ---- application ---- */

template <class T> struct rope_arrays {
    T *out;
    const T *in;
    const float *cos, *sin;
    const int32_t *places;
    int64_t tokens, stride;
    int32_t heads, head_size, pairs;
};

/* x and y are the first and second elements of W pairs: neighbours from `at` on, or with the second ones `apart`
 * further. W is 1 where the elements are not aligned to pairs either. */
template <bool NEIGHBOURS, int W, class T>
__device__ __forceinline__ void load_pairs(float (&x)[W], float (&y)[W], const T *at, int32_t apart)
{
    if constexpr (NEIGHBOURS && W > 1) {
        float both[2 * W];
        load<2 * W>(both, at);
#pragma unroll
        for (int j = 0; j < W; j++)
            x[j] = both[2 * j], y[j] = both[2 * j + 1];
    } else {
        load<W>(x, at);
        load<W>(y, at + (NEIGHBOURS ? 1 : apart));
    }
}

template <bool NEIGHBOURS, int W, class T>
__device__ __forceinline__ void store_pairs(T *at, const float (&x)[W], const float (&y)[W], int32_t apart)
{
    if constexpr (NEIGHBOURS && W > 1) {
        float both[2 * W];
#pragma unroll
        for (int j = 0; j < W; j++)
            both[2 * j] = x[j], both[2 * j + 1] = y[j];
        store<2 * W>(at, both);
    } else {
        store<W>(at, x);
        store<W>(at + (NEIGHBOURS ? 1 : apart), y);
    }
}

template <class T, int W, bool INVERSE, bool NEIGHBOURS>
__global__ void __launch_bounds__(ROPE_THREADS) rope_kernel(const rope_arrays<T> a)
{
    const int64_t row = blockIdx.x, table = (a.places != NULL ? a.places[row] : row % a.tokens) * a.pairs;
    const int32_t parts = a.pairs / W, step = static_cast<int32_t>(blockDim.x);
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < a.heads * parts; i += step) {
        const int32_t head = i / parts, pair = i % parts * W;
        const int64_t at = row * a.stride + static_cast<int64_t>(head) * a.head_size + (NEIGHBOURS ? 2 * pair : pair);
        float x[W], y[W], c[W], s[W];
        load_pairs<NEIGHBOURS>(x, y, a.in + at, a.pairs);
        load<W>(c, a.cos + table + pair);
        load<W>(s, a.sin + table + pair);
#pragma unroll
        for (int j = 0; j < W; j++) {
            const float sine = INVERSE ? -s[j] : s[j], xc = x[j] * c[j], yc = y[j] * c[j];
            c[j] = fmaf(-y[j], sine, xc);
            s[j] = fmaf(x[j], sine, yc);
        }
        store_pairs<NEIGHBOURS>(a.out + at, c, s, a.pairs);
    }
    if (a.out == a.in)
        return;
    const int32_t rest = a.head_size - 2 * a.pairs;
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < a.heads * rest; i += step) {
        const int64_t at = row * a.stride + static_cast<int64_t>(i / rest) * a.head_size + 2 * a.pairs + i % rest;
        a.out[at] = a.in[at];
    }
}

template <class T, int W, bool NEIGHBOURS> void launch(const dsc_cuda_launch *at, const dsc_rope_args *args)
{
    const rope_arrays<T> a = { static_cast<T *>(args->out), static_cast<const T *>(args->in), args->cos, args->sin,
                               args->places, args->tokens, args->stride, args->heads, args->head_size, args->pairs };
    const unsigned blocks = grid_size(args->rows);
    const int64_t items = a.pairs > 0 ? a.pairs / W : a.head_size; /* without pairs all is copied */
    const unsigned threads = threads_for(a.heads * items, ROPE_THREADS);
    if (args->inverse)
        DSC_CUDA_LAUNCH((rope_kernel<T, W, true, NEIGHBOURS>), blocks, threads, 0, at->stream, a);
    else
        DSC_CUDA_LAUNCH((rope_kernel<T, W, false, NEIGHBOURS>), blocks, threads, 0, at->stream, a);
}

template <class T, int W> void launch_kind(const dsc_cuda_launch *at, const dsc_rope_args *a)
{
    a->neighbours ? launch<T, W, true>(at, a) : launch<T, W, false>(at, a);
}

template <class T> void rope(const dsc_cuda_launch *at, const dsc_rope_args *a)
{
    constexpr int W = 16 / static_cast<int>(sizeof(T));
    const bool aligned = a->pairs % W == 0 && a->head_size % W == 0 && a->stride % W == 0 && is_aligned(a->out) &&
                         is_aligned(a->in) && is_aligned(a->cos) && is_aligned(a->sin);
    aligned ? launch_kind<T, W>(at, a) : launch_kind<T, 1>(at, a);
}

} // namespace

dsc_status dsc_cuda_run_ROPE_TABLE(const dsc_cuda_launch *at, const void *args, dsc_error *)
{
    const dsc_rope_table_args *a = static_cast<const dsc_rope_table_args *>(args);
    DSC_ASSERT(a->positions >= 0 && a->first >= 0);
    DSC_ASSERT(a->pairs >= 1 && a->pairs <= DSC_ROPE_PAIRS_MAX);
    if (a->positions == 0)
        return DSC_OK;
    rope_frequencies frequency = {};
    for (int32_t i = 0; i < a->pairs; i++)
        frequency.of[i] = a->frequency[i];
    const table_arrays arrays = { a->cos, a->sin, a->first, a->positions * a->pairs, a->pairs, a->factor };
    DSC_CUDA_LAUNCH(table_kernel, grid_size(dsc_div_ceil(arrays.count, ROPE_THREADS)), ROPE_THREADS, 0, at->stream,
                    arrays, frequency);
    return DSC_OK;
}

dsc_status dsc_cuda_run_ROPE(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_rope_args *a = static_cast<const dsc_rope_args *>(args);
    DSC_TRY(dtype_check("ROPE", a->dtype, err));
    DSC_ASSERT(a->tokens >= 1 && a->heads >= 1 && a->pairs >= 0 && 2 * a->pairs <= a->head_size);
    DSC_ASSERT(a->stride >= static_cast<int64_t>(a->heads) * a->head_size);
    if (a->rows == 0)
        return DSC_OK;
    DSC_CUDA_FOR_DTYPE(a->dtype, T, rope<T>(at, a));
    return DSC_OK;
}
