/* layernorm.cu - layer normalisation and its gradient; norm.h says how.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/norm.h"

namespace {

/* ---- forward ---- */

template <class T> struct fwd_arrays {
    T *out, *sum;
    const T *in, *add, *weight, *bias;
    float *mean, *rstd;
    int64_t rows, channels;
    float eps;
};

template <class T, int W, class Row> __global__ void __launch_bounds__(FWD_THREADS) fwd_kernel(const fwd_arrays<T> a)
{
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int64_t r = static_cast<int64_t>(blockIdx.x) * FWD_ROWS + threadIdx.x / 32;
    if (r >= a.rows)
        return; /* the whole warp */
    const int64_t channels = a.channels;
    const T *in = a.in + r * channels;
    Row row;
    if (a.add != NULL) {
        T *const total = a.sum + r * channels;
        row.load_sum(total, in, a.add + r * channels, channels, lane);
        in = total;
    } else {
        row.load_row(in, channels, lane);
    }
    float sum = 0;
    row.visit(in, channels, lane, [&](int64_t, const float (&x)[W]) {
#pragma unroll
        for (int j = 0; j < W; j++)
            sum += x[j];
    });
    const float mean = warp_sum(sum) / static_cast<float>(channels);
    float squares = 0;
    row.visit(in, channels, lane, [&](int64_t, const float (&x)[W]) {
#pragma unroll
        for (int j = 0; j < W; j++)
            squares = fmaf(x[j] - mean, x[j] - mean, squares);
    });
    const float rstd = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(channels) + a.eps);
    row.visit(in, channels, lane, [&](int64_t c, const float (&x)[W]) {
        float w[W], b[W], y[W];
        load<W>(w, a.weight + c);
        load<W>(b, a.bias + c);
#pragma unroll
        for (int j = 0; j < W; j++)
            y[j] = fmaf((x[j] - mean) * rstd, w[j], b[j]);
        store<W>(a.out + r * channels + c, y);
    });
    if (lane == 0) {
        a.mean[r] = mean;
        a.rstd[r] = rstd;
    }
}

template <class T, int W, class Row> void fwd_launch(const dsc_cuda_launch *at, const fwd_arrays<T> &a)
{
    DSC_CUDA_LAUNCH((fwd_kernel<T, W, Row>), grid_size(dsc_div_ceil(a.rows, FWD_ROWS)), FWD_THREADS, 0, at->stream, a);
}

template <class T> void fwd(const dsc_cuda_launch *at, const dsc_layernorm_fwd_args *args)
{
    constexpr int W = 16 / static_cast<int>(sizeof(T));
    const fwd_arrays<T> a = {
        static_cast<T *>(args->out), static_cast<T *>(args->sum), static_cast<const T *>(args->in),
        static_cast<const T *>(args->add), static_cast<const T *>(args->weight), static_cast<const T *>(args->bias),
        args->mean, args->rstd, args->rows, args->channels, args->eps
    };
    const bool aligned = a.channels % W == 0 && is_aligned(a.out) && is_aligned(a.sum) && is_aligned(a.in) &&
                         is_aligned(a.add) && is_aligned(a.weight) && is_aligned(a.bias);
    if (!aligned)
        fwd_launch<T, 1, reread_row<T, 1>>(at, a);
    else if (a.channels <= 32 * 32)
        fwd_launch<T, W, kept_row<T, W, 32 / W>>(at, a);
    else if (a.channels <= 32 * 64)
        fwd_launch<T, W, kept_row<T, W, 64 / W>>(at, a);
    else
        fwd_launch<T, W, reread_row<T, W>>(at, a);
}

/* ---- backward ---- */

template <class T> struct bwd_arrays {
    T *d_in;
    const T *d_out, *d_residual, *in, *weight;
    const float *mean, *rstd;
    float *partial; /* [blocks, 2, C], or NULL: weights are frozen */
    int64_t rows, channels;
};

/* Means over the channels of d = d_out * weight and of d * x_hat. */
template <int W, class T> __device__ __forceinline__ float2 row_means(const bwd_arrays<T> &a, int64_t r, int lane)
{
    const float mean = a.mean[r], rstd = a.rstd[r];
    float sum_d = 0, sum_dx = 0;
    for (int64_t c = static_cast<int64_t>(lane) * W; c < a.channels; c += 32 * W) {
        float g[W], x[W], w[W];
        load<W>(g, a.d_out + r * a.channels + c);
        load<W>(x, a.in + r * a.channels + c);
        load<W>(w, a.weight + c);
#pragma unroll
        for (int j = 0; j < W; j++) {
            const float d = g[j] * w[j];
            sum_d += d;
            sum_dx = fmaf(d, (x[j] - mean) * rstd, sum_dx);
        }
    }
    return make_float2(warp_sum(sum_d) / static_cast<float>(a.channels),
                       warp_sum(sum_dx) / static_cast<float>(a.channels));
}

/* Row r's gradient at columns c .. c + W - 1, and its part of their weights' sums. */
template <int W, class T>
__device__ __forceinline__ void bwd_columns(const bwd_arrays<T> &a, int64_t r, int64_t c, float2 means,
                                            const float (&w)[W], float (&sum_weight)[W], float (&sum_bias)[W])
{
    const int64_t i = r * a.channels + c;
    const float mean = a.mean[r], rstd = a.rstd[r];
    float g[W], x[W], y[W];
    load<W>(g, a.d_out + i);
    load<W>(x, a.in + i);
    if (a.d_residual != NULL)
        load<W>(y, a.d_residual + i);
#pragma unroll
    for (int j = 0; j < W; j++) {
        const float x_hat = (x[j] - mean) * rstd;
        sum_weight[j] = fmaf(g[j], x_hat, sum_weight[j]);
        sum_bias[j] += g[j];
        const float through = fmaf(-x_hat, means.y, g[j] * w[j] - means.x);
        y[j] = fmaf(rstd, through, a.d_residual != NULL ? y[j] : 0.0f);
    }
    store<W>(a.d_in + i, y);
}

template <class T, int W> __global__ void __launch_bounds__(BWD_THREADS) bwd_kernel(const bwd_arrays<T> a)
{
    __shared__ float2 means[BWD_ROWS];
    __shared__ float shared[BWD_WARPS * W * 32];
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    const int64_t first = static_cast<int64_t>(blockIdx.x) * BWD_ROWS;
    const int64_t last = first + BWD_ROWS < a.rows ? first + BWD_ROWS : a.rows;
    for (int64_t r = first + warp; r < last; r += BWD_WARPS) {
        const float2 m = row_means<W>(a, r, lane);
        if (lane == 0)
            means[r - first] = m;
    }
    __syncthreads();
    for (int64_t base = 0; base < a.channels; base += 32 * W) {
        const int64_t c = base + lane * W;
        float w[W] = {}, sum_weight[W] = {}, sum_bias[W] = {};
        if (c < a.channels) {
            load<W>(w, a.weight + c);
#pragma unroll 4
            for (int64_t r = first + warp; r < last; r += BWD_WARPS)
                bwd_columns<W>(a, r, c, means[r - first], w, sum_weight, sum_bias);
        }
        if (a.partial != NULL) {
            float *to = a.partial + static_cast<int64_t>(blockIdx.x) * 2 * a.channels;
            add_warps<W>(to, sum_weight, c, a.channels, shared);
            add_warps<W>(to + a.channels, sum_bias, c, a.channels, shared);
        }
    }
}

template <class T, int W, int K>
__global__ void __launch_bounds__(BWD_THREADS, 2) bwd_wide_kernel(const bwd_arrays<T> a)
{
    __shared__ float2 means[2][BWD_WARPS]; /* of these eight rows, and of the eight before while some still read them */
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    const int64_t first = static_cast<int64_t>(blockIdx.x) * BWD_ROWS;
    const int64_t last = first + BWD_ROWS < a.rows ? first + BWD_ROWS : a.rows;
    float sum_weight[K][W] = {}, sum_bias[K][W] = {};
    for (int64_t row = first; row < last; row += BWD_WARPS) {
        float2 *const now = means[(row - first) / BWD_WARPS % 2];
        const float2 mean = row + warp < last ? row_means<W>(a, row + warp, lane) : make_float2(0.0f, 0.0f);
        if (lane == 0)
            now[warp] = mean;
        __syncthreads();
        const int rows = static_cast<int>(min(last - row, static_cast<int64_t>(BWD_WARPS)));
#pragma unroll
        for (int k = 0; k < K; k++) {
            const int64_t c = static_cast<int64_t>(k * BWD_THREADS + static_cast<int>(threadIdx.x)) * W;
            float w[W];
            if (c >= a.channels)
                continue;
            load<W>(w, a.weight + c);
#pragma unroll 4
            for (int r = 0; r < rows; r++)
                bwd_columns<W>(a, row + r, c, now[r], w, sum_weight[k], sum_bias[k]);
        }
    }
#pragma unroll
    for (int k = 0; k < K; k++) {
        const int64_t c = static_cast<int64_t>(k * BWD_THREADS + static_cast<int>(threadIdx.x)) * W;
        float *const to = a.partial + static_cast<int64_t>(blockIdx.x) * 2 * a.channels + c;
        if (a.partial == NULL || c >= a.channels)
            continue;
        store<W>(to, sum_weight[k]);
        store<W>(to + a.channels, sum_bias[k]);
    }
}

template <class T> void bwd(const dsc_cuda_launch *at, const dsc_layernorm_bwd_args *a)
{
    constexpr int W = 16 / static_cast<int>(sizeof(T));
    const bwd_arrays<T> arrays = {
        static_cast<T *>(a->d_in), static_cast<const T *>(a->d_out), static_cast<const T *>(a->d_residual),
        static_cast<const T *>(a->in), static_cast<const T *>(a->weight), a->mean, a->rstd,
        a->d_weight != NULL ? static_cast<float *>(a->scratch) : NULL, a->rows, a->channels
    };
    const bool aligned = a->channels % W == 0 && is_aligned(a->d_in) && is_aligned(a->d_out) &&
                         is_aligned(a->d_residual) && is_aligned(a->in) && is_aligned(a->weight) &&
                         is_aligned(a->scratch);
    const unsigned blocks = grid_size(dsc_div_ceil(a->rows, BWD_ROWS));
    const int wide = aligned ? wide_vectors<W>(a->channels) : 0;
    if (wide == 1)
        DSC_CUDA_LAUNCH((bwd_wide_kernel<T, W, 1>), blocks, BWD_THREADS, 0, at->stream, arrays);
    else if (wide == 2)
        DSC_CUDA_LAUNCH((bwd_wide_kernel<T, W, 2>), blocks, BWD_THREADS, 0, at->stream, arrays);
    else if (wide == 4)
        DSC_CUDA_LAUNCH((bwd_wide_kernel<T, W, 4>), blocks, BWD_THREADS, 0, at->stream, arrays);
    else if (aligned)
        DSC_CUDA_LAUNCH((bwd_kernel<T, W>), blocks, BWD_THREADS, 0, at->stream, arrays);
    else
        DSC_CUDA_LAUNCH((bwd_kernel<T, 1>), blocks, BWD_THREADS, 0, at->stream, arrays);
}

} // namespace

dsc_status dsc_cuda_run_LAYERNORM_FWD(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_layernorm_fwd_args *a = static_cast<const dsc_layernorm_fwd_args *>(args);
    DSC_TRY(dtype_check("LAYERNORM_FWD", a->dtype, err));
    DSC_ASSERT(a->channels >= 1);
    DSC_ASSERT((a->add == NULL) == (a->sum == NULL));
    if (a->rows == 0)
        return DSC_OK;
    a->dtype == DSC_BF16 ? fwd<uint16_t>(at, a) : fwd<float>(at, a);
    return DSC_OK;
}

dsc_status dsc_cuda_run_LAYERNORM_BWD(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_layernorm_bwd_args *a = static_cast<const dsc_layernorm_bwd_args *>(args);
    DSC_TRY(dtype_check("LAYERNORM_BWD", a->dtype, err));
    DSC_ASSERT(a->channels >= 1);
    DSC_ASSERT((a->d_weight == NULL) == (a->d_bias == NULL));
    if (a->rows > 0)
        a->dtype == DSC_BF16 ? bwd<uint16_t>(at, a) : bwd<float>(at, a);
    const sum_targets targets = { { a->d_weight, a->d_bias } };
    if (a->d_weight != NULL)
        sum_blocks(at, targets, 2, a->scratch, a->rows, a->channels);
    return DSC_OK;
}
