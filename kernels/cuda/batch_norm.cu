/* batch_norm.cu - sums over rows by parts, which are put together in order, and passes element by element.
 *
 * Eight warps of a block share a part of 32 columns: warp w adds rows w, w + 8, ...; warps are added in order.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/batch_norm.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/gelu.h"
#include "kernels/cuda/launchers.h"

namespace
{

enum { THREADS = 256, WARPS = THREADS / 32 };

/* The sum of all warps' numbers of this lane, the same in each warp. */
__device__ __forceinline__ float over_warps(float (&shared)[WARPS][32], int warp, int lane, float x)
{
    __syncthreads();
    shared[warp][lane] = x;
    __syncthreads();
    float sum = shared[0][lane];
#pragma unroll
    for (int k = 1; k < WARPS; k++)
        sum += shared[k][lane];
    return sum;
}

/* ---- statistics -------------------------------------------------------------------------------------------------- */

template <class T>
__global__ void __launch_bounds__(THREADS)
    part_stats_kernel(float *scratch, const T *x, int64_t rows, int64_t channels, int64_t part_rows)
{
    __shared__ float shared[WARPS][32];
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    const int64_t c = static_cast<int64_t>(blockIdx.x) * 32 + lane, part = blockIdx.y, first = part * part_rows;
    const int64_t last = first + part_rows < rows ? first + part_rows : rows;
    float sum = 0, squares = 0;
    if (c < channels)
        for (int64_t r = first + warp; r < last; r += WARPS)
            sum += to_f32(x[r * channels + c]);
    const float mean = over_warps(shared, warp, lane, sum) / static_cast<float>(last - first);
    if (c < channels)
        for (int64_t r = first + warp; r < last; r += WARPS) {
            const float d = to_f32(x[r * channels + c]) - mean;
            squares = fmaf(d, d, squares);
        }
    squares = over_warps(shared, warp, lane, squares);
    if (warp != 0 || c >= channels)
        return;
    scratch[2 * part * channels + c] = mean;
    scratch[(2 * part + 1) * channels + c] = squares;
}

struct outputs_of_stats {
    float *stats, *mean, *variance;
};

__global__ void __launch_bounds__(THREADS) finish_stats_kernel(outputs_of_stats out, const float *scratch, int64_t rows,
                                                               int64_t channels, int64_t part_rows, double eps)
{
    const int64_t c = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x, parts = (rows - 1) / part_rows + 1;
    double sum = 0, squares = 0;
    if (c >= channels)
        return;
    for (int64_t p = 0; p < parts; p++) {
        const int64_t count = p + 1 < parts ? part_rows : rows - p * part_rows;
        sum += static_cast<double>(count) * static_cast<double>(scratch[2 * p * channels + c]);
    }
    const double mean = sum / static_cast<double>(rows);
    for (int64_t p = 0; p < parts; p++) {
        const int64_t count = p + 1 < parts ? part_rows : rows - p * part_rows;
        const double d = static_cast<double>(scratch[2 * p * channels + c]) - mean;
        squares += static_cast<double>(scratch[(2 * p + 1) * channels + c]);
        squares += static_cast<double>(count) * (d * d);
    }
    out.stats[c] = static_cast<float>(mean);
    out.stats[channels + c] = static_cast<float>(1 / sqrt(squares / static_cast<double>(rows) + eps));
    if (out.mean != nullptr)
        out.mean[c] = static_cast<float>(mean);
    if (out.variance != nullptr)
        out.variance[c] = static_cast<float>(squares / static_cast<double>(rows > 1 ? rows - 1 : 1));
}

__global__ void __launch_bounds__(THREADS)
    constant_stats_kernel(outputs_of_stats out, const float *mean, const float *variance, int64_t channels, double eps)
{
    const int64_t c = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (c >= channels)
        return;
    out.stats[c] = mean[c];
    out.stats[channels + c] = static_cast<float>(1 / sqrt(static_cast<double>(variance[c]) + eps));
    if (out.mean != nullptr)
        out.mean[c] = mean[c];
    if (out.variance != nullptr)
        out.variance[c] = variance[c];
}

dim3 grid_of_parts(int64_t rows, int64_t channels)
{
    return dim3(grid_size(dsc_div_ceil(channels, 32)), grid_size(dsc_batch_norm_parts(rows)));
}

template <class T> void stats_of(const dsc_cuda_launch *at, const dsc_batch_stats_args *a)
{
    const int64_t part_rows = dsc_batch_norm_part_rows(a->rows);
    const unsigned blocks = grid_size(dsc_div_ceil(a->channels, THREADS));
    const outputs_of_stats out = { a->stats, a->mean, a->variance };
    DSC_CUDA_LAUNCH((part_stats_kernel<T>), grid_of_parts(a->rows, a->channels), THREADS, 0, at->stream, a->scratch,
                    static_cast<const T *>(a->x), a->rows, a->channels, part_rows);
    DSC_CUDA_LAUNCH(finish_stats_kernel, blocks, THREADS, 0, at->stream, out, a->scratch, a->rows, a->channels,
                    part_rows, static_cast<double>(a->eps));
}

/* ---- element by element ------------------------------------------------------------------------------------------ */

template <bool FAST> __device__ __forceinline__ float activate(dsc_activation kind, float x)
{
    switch (kind) {
    case DSC_RELU:
        return activation_of<DSC_RELU, FAST>(x);
    case DSC_RELU6:
        return activation_of<DSC_RELU6, FAST>(x);
    case DSC_SILU:
        return activation_of<DSC_SILU, FAST>(x);
    default:
        return activation_of<DSC_HARD_SWISH, FAST>(x);
    }
}

template <bool FAST> __device__ __forceinline__ float slope_of(dsc_activation kind, float x)
{
    switch (kind) {
    case DSC_RELU:
        return activation_slope<DSC_RELU, FAST>(x);
    case DSC_RELU6:
        return activation_slope<DSC_RELU6, FAST>(x);
    case DSC_SILU:
        return activation_slope<DSC_SILU, FAST>(x);
    default:
        return activation_slope<DSC_HARD_SWISH, FAST>(x);
    }
}

template <class T> __device__ __forceinline__ float rounded(float x) { return to_f32(element<T>::from(x)); }

/* Operands of forward for W channels. */
template <class T> struct norm_of {
    const T *x, *add, *weight, *bias;
    const float *stats;
    int64_t channels;
    bool activates;
    dsc_activation kind;

    /* h, the normalized x, and z, which the activation is of. */
    template <int W> __device__ __forceinline__ void run(float (&h)[W], float (&z)[W], int64_t i, int64_t c) const
    {
        float mean[W], rstd[W], w[W], b[W];
        load<W>(h, x + i);
        load<W>(mean, stats + c);
        load<W>(rstd, stats + channels + c);
        load<W>(w, weight + c);
        load<W>(b, bias + c);
#pragma unroll
        for (int j = 0; j < W; j++) {
            h[j] = (h[j] - mean[j]) * rstd[j];
            z[j] = rounded<T>(fmaf(h[j], w[j], b[j]));
        }
        if (add == nullptr)
            return;
        load<W>(mean, add + i);
#pragma unroll
        for (int j = 0; j < W; j++)
            z[j] = rounded<T>(z[j] + mean[j]);
    }

    /* d, the gradient of z. */
    template <int W> __device__ __forceinline__ void gradient(float (&d)[W], const float (&z)[W]) const
    {
#pragma unroll
        for (int j = 0; j < W; j++)
            if (activates)
                d[j] = rounded<T>(d[j] * slope_of<sizeof(T) == 2>(kind, z[j]));
    }
};

template <class T> struct forward_op {
    T *out;
    norm_of<T> norm;
    template <int W> __device__ __forceinline__ void run(int64_t i) const
    {
        float h[W], z[W];
        norm.template run<W>(h, z, i, i % norm.channels);
#pragma unroll
        for (int j = 0; j < W; j++)
            z[j] = norm.activates ? activate<sizeof(T) == 2>(norm.kind, z[j]) : z[j];
        store<W>(out + i, z);
    }
};

/* Vectors of 4 channels need them all in a row. */
template <class T> bool lies_well(const norm_of<T> &of)
{
    return of.channels % 4 == 0 && is_aligned(of.x) && is_aligned(of.add) && is_aligned(of.weight) &&
           is_aligned(of.bias) && is_aligned(of.stats);
}

template <class T> void forward(const dsc_cuda_launch *at, const dsc_batch_norm_fwd_args *a)
{
    const forward_op<T> op = { static_cast<T *>(a->out),
                               { static_cast<const T *>(a->x), static_cast<const T *>(a->add),
                                 static_cast<const T *>(a->weight), static_cast<const T *>(a->bias), a->stats,
                                 a->channels, a->activates, a->kind } };
    each<4>(at, op, a->rows * a->channels, lies_well(op.norm) && is_aligned(a->out));
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

template <class T>
__global__ void __launch_bounds__(THREADS)
    part_gradients_kernel(float *scratch, const T *d_out, const norm_of<T> norm, int64_t rows, int64_t part_rows)
{
    __shared__ float shared[WARPS][32];
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    const int64_t c = static_cast<int64_t>(blockIdx.x) * 32 + lane, part = blockIdx.y, first = part * part_rows;
    const int64_t last = first + part_rows < rows ? first + part_rows : rows;
    float sum = 0, along = 0;
    if (c < norm.channels)
#pragma unroll 1 /* registers are saved around calls otherwise */
        for (int64_t r = first + warp; r < last; r += WARPS) {
            const int64_t i = r * norm.channels + c;
            float h[1], z[1], d[1];
            load<1>(d, d_out + i);
            norm.template run<1>(h, z, i, c);
            norm.template gradient<1>(d, z);
            sum += d[0];
            along = fmaf(d[0], h[0], along);
        }
    sum = over_warps(shared, warp, lane, sum);
    along = over_warps(shared, warp, lane, along);
    if (warp != 0 || c >= norm.channels)
        return;
    scratch[2 * part * norm.channels + c] = sum;
    scratch[(2 * part + 1) * norm.channels + c] = along;
}

/* Sums over rows, and behind the parts their means. */
__global__ void __launch_bounds__(THREADS) finish_gradients_kernel(float *d_weight, float *d_bias, float *scratch,
                                                                   int64_t rows, int64_t channels, int64_t parts)
{
    const int64_t c = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    double sum = 0, along = 0;
    if (c >= channels)
        return;
    for (int64_t p = 0; p < parts; p++) {
        sum += static_cast<double>(scratch[2 * p * channels + c]);
        along += static_cast<double>(scratch[(2 * p + 1) * channels + c]);
    }
    scratch[2 * parts * channels + c] = static_cast<float>(sum / static_cast<double>(rows));
    scratch[(2 * parts + 1) * channels + c] = static_cast<float>(along / static_cast<double>(rows));
    if (d_bias != nullptr)
        d_bias[c] = static_cast<float>(sum);
    if (d_weight != nullptr)
        d_weight[c] = static_cast<float>(along);
}

template <class T> struct backward_op {
    T *d_x, *d_add;
    const T *d_out;
    const float *means; /* [2, channels]: of d, and of d h */
    norm_of<T> norm;
    bool constant;
    template <int W> __device__ __forceinline__ void run(int64_t i) const
    {
        const int64_t c = i % norm.channels;
        float h[W], z[W], d[W], sum[W], along[W];
        load<W>(d, d_out + i);
        norm.template run<W>(h, z, i, c);
        norm.template gradient<W>(d, z);
        if (d_add != nullptr)
            store<W>(d_add + i, d);
        if (d_x == nullptr)
            return;
        load<W>(sum, means + c);
        load<W>(along, means + norm.channels + c);
#pragma unroll
        for (int j = 0; j < W; j++)
            d[j] = constant ? d[j] : d[j] - sum[j] - h[j] * along[j];
        load<W>(sum, norm.weight + c);
        load<W>(along, norm.stats + norm.channels + c);
#pragma unroll
        for (int j = 0; j < W; j++)
            d[j] *= sum[j] * along[j];
        store<W>(d_x + i, d);
    }
};

template <class T> void backward(const dsc_cuda_launch *at, const dsc_batch_norm_bwd_args *a)
{
    const int64_t parts = dsc_batch_norm_parts(a->rows);
    const backward_op<T> op = { static_cast<T *>(a->d_x),
                                static_cast<T *>(a->d_add),
                                static_cast<const T *>(a->d_out),
                                a->scratch + 2 * parts * a->channels,
                                { static_cast<const T *>(a->x), static_cast<const T *>(a->activates ? a->add : nullptr),
                                  static_cast<const T *>(a->weight), static_cast<const T *>(a->bias), a->stats,
                                  a->channels, a->activates, a->kind },
                                a->constant };
    const bool aligned = lies_well(op.norm) && is_aligned(a->d_x) && is_aligned(a->d_add) && is_aligned(a->d_out) &&
                         is_aligned(op.means);
    DSC_CUDA_LAUNCH((part_gradients_kernel<T>), grid_of_parts(a->rows, a->channels), THREADS, 0, at->stream, a->scratch,
                    op.d_out, op.norm, a->rows, dsc_batch_norm_part_rows(a->rows));
    DSC_CUDA_LAUNCH(finish_gradients_kernel, grid_size(dsc_div_ceil(a->channels, THREADS)), THREADS, 0, at->stream,
                    a->d_weight, a->d_bias, a->scratch, a->rows, a->channels, parts);
    each<4>(at, op, a->rows * a->channels, aligned);
}

} // namespace

dsc_status dsc_cuda_run_BATCH_STATS(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_batch_stats_args *a = static_cast<const dsc_batch_stats_args *>(args);
    DSC_TRY(dtype_check("BATCH_STATS", a->dtype, err));
    DSC_ASSERT(a->rows >= 1 && a->channels >= 1);
    const outputs_of_stats out = { a->stats, a->mean, a->variance };
    if (a->running_mean != NULL)
        DSC_CUDA_LAUNCH(constant_stats_kernel, grid_size(dsc_div_ceil(a->channels, THREADS)), THREADS, 0, at->stream,
                        out, a->running_mean, a->running_variance, a->channels, static_cast<double>(a->eps));
    else
        DSC_CUDA_FOR_DTYPE(a->dtype, T, stats_of<T>(at, a));
    return DSC_OK;
}

dsc_status dsc_cuda_run_BATCH_NORM_FWD(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_batch_norm_fwd_args *a = static_cast<const dsc_batch_norm_fwd_args *>(args);
    DSC_TRY(dtype_check("BATCH_NORM_FWD", a->dtype, err));
    DSC_ASSERT(!a->activates || dsc_batch_norm_activates(a->kind));
    DSC_CUDA_FOR_DTYPE(a->dtype, T, forward<T>(at, a));
    return DSC_OK;
}

dsc_status dsc_cuda_run_BATCH_NORM_BWD(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_batch_norm_bwd_args *a = static_cast<const dsc_batch_norm_bwd_args *>(args);
    DSC_TRY(dtype_check("BATCH_NORM_BWD", a->dtype, err));
    DSC_ASSERT(a->rows >= 1 && (!a->activates || dsc_batch_norm_activates(a->kind)));
    DSC_CUDA_FOR_DTYPE(a->dtype, T, backward<T>(at, a));
    return DSC_OK;
}
