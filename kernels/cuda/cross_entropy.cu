/* cross_entropy.cu - a block has a row of logits. Its threads copy the row into shared memory, so that global memory is
 * read once.
 *
 * One sweep over the row takes maximum and sum together (Milakov & Gimelshein 2018), and the next one overwrites the
 * row with its gradient. A thread reads only what it has copied itself. The part of a long row that shared memory
 * cannot hold is read twice.
 *
 * Exponentials have the base 2: e^(x - m) = 2^(x log2(e) - m log2(e)), one multiply-add and one instruction. Every
 * exponent has the same rounded m log2(e), also that of the target, so this rounding cancels. A maximum beyond 2^127 in
 * size gives NaN.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/elements.h"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/shared.h"

namespace
{

/* A thread has BATCH vectors of a round at a time. The row comes in PARTS groups of copies. */
enum { THREADS_FEW = 512, THREADS_MOST = 1024, WARPS_MOST = THREADS_MOST / 32, BATCH = 4, PARTS = 4 };
constexpr float LOG2_E = 1.44269504f, LN_2 = 0.693147181f;

/* The largest exponent to the base 2 so far, and the sum of 2^(exponent - largest). */
struct running { float top, sum; };

/* Exponents are relative to it: -Inf less the shift must not be NaN. */
__device__ __forceinline__ float shift_of(float top) { return top == -INFINITY ? 0.0f : top; }

__device__ __forceinline__ float power_of(float x, float shift) { return fast_exp2(fmaf(x, LOG2_E, -shift)); }

/* The tanh of a curve. Its error matters in units of 1: exponents take differences of logits. */
template <class T> __device__ __forceinline__ float curve_tanh(float x)
{
    if (sizeof(T) == sizeof(float))
        return tanhf(x);
    return fmaf(-2.0f, fast_reciprocal(1.0f + fast_exp2(2.0f * LOG2_E * x)), 1.0f);
}

/* z of a logit (cross_entropy.h). */
template <class T, bool BENDS> __device__ __forceinline__ float bend(float x, const dsc_logit_curve &curve)
{
    if (!BENDS)
        return x;
    x *= curve.inner;
    return curve.outer > 0.0f ? curve.outer * curve_tanh<T>(x) : x;
}

/* d times dz/dlogit, at z. */
template <bool BENDS> __device__ __forceinline__ float sloped(float d, float z, const dsc_logit_curve &curve)
{
    if (!BENDS)
        return d;
    return d * curve.inner * (curve.outer > 0.0f ? fmaf(-z / curve.outer, z, curve.outer) : 1.0f);
}

/* The sum relative to `top`, which is not below the own one. 0 terms are 0, and NaN stays. */
__device__ __forceinline__ float sum_below(running r, float top) { return r.sum * fast_exp2(r.top - shift_of(top)); }

__device__ __forceinline__ running warp_running(running r)
{
    const float top = warp_max(r.top);
    return { top, warp_sum(sum_below(r, top)) };
}

/* Value of the whole block, in every thread; `warps` is shared memory. */
__device__ running block_running(running r, running *warps)
{
    const unsigned lane = threadIdx.x % 32;
    r = warp_running(r);
    if (lane == 0)
        warps[threadIdx.x / 32] = r;
    __syncthreads();
    return warp_running(lane < blockDim.x / 32 ? warps[lane] : running{ -INFINITY, 0.0f });
}

/* The largest element; NaN is passed over. */
template <class T, int W> struct largest {
    float value = -INFINITY;
    __device__ __forceinline__ void take(const vector<T, W> &x)
    {
#pragma unroll
        for (int j = 0; j < W; j++)
            value = fmaxf(value, to_f32(x.elements[j]));
    }
    __device__ __forceinline__ float get() const { return value; }
};

template <> struct largest<uint16_t, 8> {
    unsigned value = 0xff80ff80u; /* -Inf twice */
    __device__ __forceinline__ void take(const vector<uint16_t, 8> &x)
    {
        const unsigned low = max_bf16x2(x.words[0].x, x.words[0].y), high = max_bf16x2(x.words[0].z, x.words[0].w);
        value = max_bf16x2(value, max_bf16x2(low, high));
    }
    __device__ __forceinline__ float get() const
    {
        return fmaxf(__uint_as_float(value << 16), __uint_as_float(value & 0xffff0000u));
    }
};

/* COUNT vectors: first, first + threads, ... of `from`. */
template <class T, int W, int COUNT, bool BENDS>
__device__ __forceinline__ running take_batch(running r, const vector<T, W> *from, int first,
                                              const dsc_logit_curve &curve)
{
    vector<T, W> x[COUNT];
    largest<T, W> most;
#pragma unroll
    for (int k = 0; k < COUNT; k++)
        load_vector(x[k], from[first + k * static_cast<int>(blockDim.x)].elements);
#pragma unroll
    for (int k = 0; k < COUNT; k++)
        most.take(x[k]);
    const float top = fmaxf(r.top, bend<T, BENDS>(most.get(), curve) * LOG2_E), shift = shift_of(top);
    r = { top, sum_below(r, top) };
#pragma unroll
    for (int k = 0; k < COUNT; k++) {
        float e[W];
        unpack(e, x[k]);
#pragma unroll
        for (int j = 0; j < W; j++)
            e[j] = power_of(bend<T, BENDS>(e[j], curve), shift);
#pragma unroll
        for (int width = W / 2; width >= 1; width /= 2)
            for (int j = 0; j < width; j++)
                e[j] += e[j + width];
        r.sum += e[0];
    }
    return r;
}

template <class T, int W, bool BENDS>
__device__ __forceinline__ running take_range(running r, const vector<T, W> *from, int first, int end,
                                              const dsc_logit_curve &curve)
{
    const int threads = static_cast<int>(blockDim.x);
    int v = first + static_cast<int>(threadIdx.x);
#pragma unroll 1
    for (; v + (BATCH - 1) * threads < end; v += BATCH * threads)
        r = take_batch<T, W, BATCH, BENDS>(r, from, v, curve);
#pragma unroll 1
    for (; v < end; v += threads)
        r = take_batch<T, W, 1, BENDS>(r, from, v, curve);
    return r;
}

__device__ __forceinline__ void wait_for_part(int part)
{
    static_assert(PARTS == 4, "one case each");
    switch (part) {
    case 0: cp_async_wait<3>(); break;
    case 1: cp_async_wait<2>(); break;
    case 2: cp_async_wait<1>(); break;
    default: cp_async_wait<0>(); break;
    }
}

/* All of the row's `count` vectors; the first `kept` ones are copied into shared memory and read there. */
template <class T, int W, bool BENDS>
__device__ __forceinline__ running take_row(const vector<T, W> *row, vector<T, W> *shared, int count, int kept,
                                            const dsc_logit_curve &curve)
{
    const int threads = static_cast<int>(blockDim.x), round = threads * BATCH;
    const int part = (kept + PARTS * round - 1) / (PARTS * round) * round; /* whole rounds */
    running r = { -INFINITY, 0.0f };
    if (kept > 0) {
#pragma unroll
        for (int p = 0; p < PARTS; p++) {
            for (int v = p * part + static_cast<int>(threadIdx.x); v < min((p + 1) * part, kept); v += threads)
                cp_async16(shared + v, row + v, true);
            cp_async_commit();
        }
#pragma unroll 1
        for (int p = 0; p < PARTS; p++) {
            wait_for_part(p);
            r = take_range<T, W, BENDS>(r, shared, p * part, min((p + 1) * part, kept), curve);
        }
    }
    return take_range<T, W, BENDS>(r, row, kept, count, curve);
}

/* The row's `vocab` elements, of which fewer than W are not in vectors. */
template <class T, int W, bool BENDS>
__device__ __forceinline__ running take_all(const T *row, vector<T, W> *shared, int64_t vocab, int kept,
                                            const dsc_logit_curve &curve)
{
    const int count = static_cast<int>(vocab / W);
    const int64_t whole = static_cast<int64_t>(count) * W;
    const running r = take_row<T, W, BENDS>(reinterpret_cast<const vector<T, W> *>(row), shared, count, kept, curve);
    if (whole + threadIdx.x >= vocab)
        return r;
    return take_batch<T, 1, 1, BENDS>(r, reinterpret_cast<const vector<T, 1> *>(row + whole),
                                      static_cast<int>(threadIdx.x), curve);
}

/* The gradients of whole vectors [first, end), from the logits `from`, but for the target's -1. */
template <class T, int W, bool BENDS>
__device__ __forceinline__ void gradients(vector<T, W> *row, const vector<T, W> *from, int first, int end, float shift,
                                          float factor, const dsc_logit_curve &curve)
{
    const int threads = static_cast<int>(blockDim.x);
#pragma unroll 2
    for (int v = first + static_cast<int>(threadIdx.x); v < end; v += threads) {
        float y[W];
        load<W>(y, from[v].elements);
#pragma unroll
        for (int j = 0; j < W; j++) {
            const float z = bend<T, BENDS>(y[j], curve);
            y[j] = sloped<BENDS>(power_of(z, shift) * factor, z, curve);
        }
        store_fast<W>(row[v].elements, y);
    }
}

/* Gradients from column `whole` on, in vectors of which at most one has logits; those of padding columns are 0. */
template <class T, int W, bool BENDS>
__device__ __forceinline__ void last_gradients(T *row, int64_t whole, int64_t vocab, int64_t stride, float shift,
                                               float factor, const dsc_logit_curve &curve)
{
    for (int64_t c = whole + static_cast<int64_t>(threadIdx.x) * W; c < stride;
         c += static_cast<int64_t>(blockDim.x) * W) {
        float y[W];
#pragma unroll
        for (int j = 0; j < W; j++) {
            const float z = c + j < vocab ? bend<T, BENDS>(to_f32(row[c + j]), curve) : 0.0f;
            y[j] = c + j < vocab ? sloped<BENDS>(power_of(z, shift) * factor, z, curve) : 0.0f;
        }
        store<W>(row + c, y);
    }
}

/* The row of a target that is not counted: nothing of it is read. */
template <class T, int W> __device__ __forceinline__ void skip_row(T *row, float *loss, int64_t stride, bool gradient)
{
    const float zeros[W] = {};
    if (threadIdx.x == 0)
        *loss = 0.0f;
    for (int64_t c = static_cast<int64_t>(threadIdx.x) * W; gradient && c < stride;
         c += static_cast<int64_t>(blockDim.x) * W)
        store<W>(row + c, zeros);
}

struct rows_of_logits {
    float *losses;
    const int32_t *targets;
    const float *weights; /* NULL: all 1 */
    int64_t vocab, stride;
    int32_t kept; /* vectors that shared memory holds */
    float scale;
    bool write_gradient;
    dsc_logit_curve curve;
};

template <class T, int W, bool BENDS>
__global__ void __launch_bounds__(THREADS_MOST, 1) cross_entropy_kernel(T *logits, const rows_of_logits a)
{
    typedef vector<T, W> vectors;
    DSC_CUDA_SHARED(running, warps); /* no static memory beside it: its alignment would cost up to 1 KiB */
    vectors *const shared = reinterpret_cast<vectors *>(warps + WARPS_MOST);
    T *const row = logits + static_cast<int64_t>(blockIdx.x) * a.stride;
    const int32_t target = a.targets[blockIdx.x];
    if (target < 0) { /* the target of all threads */
        skip_row<T, W>(row, a.losses + blockIdx.x, a.stride, a.write_gradient);
        return;
    }
    /* Read before block_running's barrier, overwritten after it. */
    const float at_target = bend<T, BENDS>(to_f32(row[target]), a.curve);
    vectors *const places = reinterpret_cast<vectors *>(row);
    const int count = static_cast<int>(a.vocab / W);
    const int64_t whole = static_cast<int64_t>(count) * W;
    const running r = block_running(take_all<T, W, BENDS>(row, shared, a.vocab, a.kept, a.curve), warps);
    const float scale = a.weights != nullptr ? a.scale * a.weights[blockIdx.x] : a.scale;
    const float shift = shift_of(r.top), factor = scale / r.sum;
    if (threadIdx.x == 0)
        a.losses[blockIdx.x] = logf(r.sum) - LN_2 * fmaf(at_target, LOG2_E, -shift);
    if (!a.write_gradient)
        return;
    gradients<T, W, BENDS>(places, shared, 0, a.kept, shift, factor, a.curve);
    gradients<T, W, BENDS>(places, places, a.kept, count, shift, factor, a.curve);
    last_gradients<T, W, BENDS>(row, whole, a.vocab, a.stride, shift, factor, a.curve);
    __syncthreads(); /* the target's column is written once more */
    if (threadIdx.x == 0)
        row[target] =
            element<T>::from(sloped<BENDS>((power_of(at_target, shift) / r.sum - 1.0f) * scale, at_target, a.curve));
}

/* ---- ranks that share out the vocabulary: a row is read for its part, and once more for its gradient ---- */

template <class T, int W, bool BENDS>
__global__ void __launch_bounds__(THREADS_MOST, 1)
    part_kernel(const T *logits, const dsc_cross_entropy_parts_args a, const dsc_logit_curve curve)
{
    __shared__ running warps[WARPS_MOST];
    const T *const row = logits + static_cast<int64_t>(blockIdx.x) * a.of.stride;
    const running r = block_running(take_all<T, W, BENDS>(row, nullptr, a.of.vocab, 0, curve), warps);
    if (threadIdx.x == 0) {
        const int64_t column = dsc_cross_entropy_column(&a, blockIdx.x);
        float *const part = a.parts + static_cast<int64_t>(blockIdx.x) * DSC_CROSS_ENTROPY_PART;
        part[0] = r.top;
        part[1] = r.sum;
        part[2] = column >= 0 ? bend<T, BENDS>(to_f32(row[column]), curve) : -INFINITY;
    }
}

/* Row r of all ranks' parts, added from rank 0 on, and the target's z. */
__device__ __forceinline__ running join_parts(const dsc_cross_entropy_parts_args &a, int64_t r, float *at_target)
{
    const float *const parts = a.parts + r * DSC_CROSS_ENTROPY_PART;
    const int64_t apart = a.of.rows * DSC_CROSS_ENTROPY_PART;
    running all = { -INFINITY, 0.0f };
    *at_target = -INFINITY;
    for (int32_t k = 0; k < a.ranks; k++) {
        all.top = fmaxf(all.top, parts[k * apart]);
        *at_target = fmaxf(*at_target, parts[k * apart + 2]);
    }
    for (int32_t k = 0; k < a.ranks; k++)
        all.sum = all.sum + sum_below(running { parts[k * apart], parts[k * apart + 1] }, all.top);
    return all;
}

template <class T, int W, bool BENDS>
__global__ void __launch_bounds__(THREADS_MOST, 1)
    join_kernel(T *logits, const dsc_cross_entropy_parts_args a, const dsc_logit_curve curve)
{
    T *const row = logits + static_cast<int64_t>(blockIdx.x) * a.of.stride;
    vector<T, W> *const places = reinterpret_cast<vector<T, W> *>(row);
    const int count = static_cast<int>(a.of.vocab / W);
    float at_target;
    if (a.of.targets[blockIdx.x] < 0) { /* the target of all threads */
        skip_row<T, W>(row, a.of.losses + blockIdx.x, a.of.stride, a.of.write_gradient);
        return;
    }
    const running r = join_parts(a, blockIdx.x, &at_target);
    const float scale =
        a.of.weights != nullptr && a.of.write_gradient ? a.of.scale * a.of.weights[blockIdx.x] : a.of.scale;
    const float shift = shift_of(r.top), factor = scale / r.sum;
    if (threadIdx.x == 0)
        a.of.losses[blockIdx.x] = logf(r.sum) - LN_2 * fmaf(at_target, LOG2_E, -shift);
    if (!a.of.write_gradient)
        return;
    gradients<T, W, BENDS>(places, places, 0, count, shift, factor, curve);
    last_gradients<T, W, BENDS>(row, static_cast<int64_t>(count) * W, a.of.vocab, a.of.stride, shift, factor, curve);
    __syncthreads(); /* the target's column is written once more */
    const int64_t column = dsc_cross_entropy_column(&a, blockIdx.x);
    if (threadIdx.x == 0 && column >= 0)
        row[column] =
            element<T>::from(sloped<BENDS>((power_of(at_target, shift) / r.sum - 1.0f) * scale, at_target, curve));
}

template <class T, int W, bool BENDS>
void launch_parts(const dsc_cuda_launch *at, const dsc_cross_entropy_parts_args *a, bool join)
{
    const unsigned threads = threads_for(a->of.stride / W, THREADS_MOST), rows = grid_size(a->of.rows);
    const dsc_logit_curve curve = dsc_logit_curve_of(&a->of);
    T *const logits = static_cast<T *>(a->of.logits);
    if (join)
        DSC_CUDA_LAUNCH((join_kernel<T, W, BENDS>), rows, threads, 0, at->stream, logits, *a, curve);
    else
        DSC_CUDA_LAUNCH((part_kernel<T, W, BENDS>), rows, threads, 0, at->stream, logits, *a, curve);
}

template <class T> void classify_parts(const dsc_cuda_launch *at, const dsc_cross_entropy_parts_args *a, bool join)
{
    constexpr int W = 16 / static_cast<int>(sizeof(T));
    const bool aligned = is_aligned(a->of.logits) && a->of.stride % W == 0;
    if (dsc_logits_bend(&a->of))
        aligned ? launch_parts<T, W, true>(at, a, join) : launch_parts<T, 1, true>(at, a, join);
    else
        aligned ? launch_parts<T, W, false>(at, a, join) : launch_parts<T, 1, false>(at, a, join);
}

dsc_status run_parts(const char *kernel, const dsc_cuda_launch *at, const dsc_cross_entropy_parts_args *a, bool join,
                     dsc_error *err)
{
    DSC_TRY(dtype_check(kernel, a->of.dtype, err));
    DSC_ASSERT(a->of.vocab >= 0 && a->of.vocab <= a->of.stride && a->of.stride <= INT32_MAX / 2 && a->first >= 0);
    if (a->of.rows > 0)
        DSC_CUDA_FOR_DTYPE(a->of.dtype, T, classify_parts<T>(at, a, join));
    return DSC_OK;
}

constexpr int64_t SUMS_BYTES = static_cast<int64_t>(sizeof(running)) * WARPS_MOST;

/* Bytes of a row that a block can keep where `blocks` of them share a multiprocessor. */
int64_t row_room(const dsc_cuda_launch *at, int64_t blocks)
{
    const int64_t system = 1024;
    return (at->shared_bytes + system) / blocks - system - SUMS_BYTES;
}

template <class T, int W, bool BENDS>
dsc_status launch(const dsc_cuda_launch *at, const dsc_cross_entropy_args *a, bool keep, dsc_error *err)
{
    const int64_t count = a->vocab / W, each = static_cast<int64_t>(sizeof(vector<T, W>));
    const unsigned threads = threads_for(a->stride / W, count * each <= row_room(at, 2) ? THREADS_FEW : THREADS_MOST);
    const int64_t round = static_cast<int64_t>(threads) * BATCH;
    /* Whole rounds where not all: the order of a row's sum does not depend on what is kept. */
    const int64_t fits = count * each <= row_room(at, 1) ? count : row_room(at, 1) / each / round * round;
    const int64_t kept = keep && a->write_gradient ? fits : 0, bytes = SUMS_BYTES + kept * each;
    const float *const weights = a->write_gradient ? a->weights : nullptr;
    const int32_t kept_vectors = static_cast<int32_t>(kept);
    const rows_of_logits rows = { a->losses, a->targets,        weights,
                                  a->vocab,  a->stride,         kept_vectors,
                                  a->scale,  a->write_gradient, dsc_logit_curve_of(a) };
    DSC_TRY((shared_allow("CROSS_ENTROPY", cross_entropy_kernel<T, W, BENDS>, bytes, err)));
    DSC_CUDA_LAUNCH((cross_entropy_kernel<T, W, BENDS>), grid_size(a->rows), threads, static_cast<size_t>(bytes),
                    at->stream, static_cast<T *>(a->logits), rows);
    return DSC_OK;
}

template <class T, bool BENDS>
dsc_status classify(const dsc_cuda_launch *at, const dsc_cross_entropy_args *a, dsc_error *err)
{
    constexpr int W = 16 / static_cast<int>(sizeof(T));
    const bool aligned = is_aligned(a->logits) && a->stride % W == 0;
    return aligned ? launch<T, W, BENDS>(at, a, true, err) : launch<T, 1, BENDS>(at, a, false, err);
}

} // namespace

dsc_status dsc_cuda_run_CROSS_ENTROPY(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_cross_entropy_args *a = static_cast<const dsc_cross_entropy_args *>(args);
    DSC_TRY(dtype_check("CROSS_ENTROPY", a->dtype, err));
    DSC_ASSERT(a->vocab >= 1 && a->vocab <= a->stride && a->stride <= INT32_MAX / 2);
    if (a->rows == 0)
        return DSC_OK;
    DSC_ASSERT(a->logit_scale >= 0 && a->softcap >= 0);
    if (dsc_logits_bend(a))
        DSC_CUDA_FOR_DTYPE(a->dtype, T, return (classify<T, true>(at, a, err)));
    DSC_CUDA_FOR_DTYPE(a->dtype, T, return (classify<T, false>(at, a, err)));
}

dsc_status dsc_cuda_run_CROSS_ENTROPY_PART(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    return run_parts("CROSS_ENTROPY_PART", at, static_cast<const dsc_cross_entropy_parts_args *>(args), false, err);
}

dsc_status dsc_cuda_run_CROSS_ENTROPY_JOIN(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    return run_parts("CROSS_ENTROPY_JOIN", at, static_cast<const dsc_cross_entropy_parts_args *>(args), true, err);
}
