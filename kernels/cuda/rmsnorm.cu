/* rmsnorm.cu - RMS normalisation and its gradient; norm.h says how, but that rows of up to 4096 channels (Llama's) stay
 * in registers. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/norm.h"

namespace {

/* ---- forward ---- */

template <class T> struct fwd_arrays {
    T *out, *sum;
    const T *in, *add, *weight;
    float *rstd;
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
    float squares = 0;
    row.visit(in, channels, lane, [&](int64_t, const float (&x)[W]) {
#pragma unroll
        for (int j = 0; j < W; j++)
            squares = fmaf(x[j], x[j], squares);
    });
    const float rstd = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(channels) + a.eps);
    row.visit(in, channels, lane, [&](int64_t c, const float (&x)[W]) {
        float w[W], y[W];
        load<W>(w, a.weight + c);
#pragma unroll
        for (int j = 0; j < W; j++)
            y[j] = x[j] * rstd * w[j];
        store<W>(a.out + r * channels + c, y);
    });
    if (lane == 0)
        a.rstd[r] = rstd;
}

template <class T, int W, class Row> void fwd_launch(const dsc_cuda_launch *at, const fwd_arrays<T> &a)
{
    DSC_CUDA_LAUNCH((fwd_kernel<T, W, Row>), grid_size(dsc_div_ceil(a.rows, FWD_ROWS)), FWD_THREADS, 0, at->stream, a);
}

template <class T> void fwd(const dsc_cuda_launch *at, const dsc_rmsnorm_fwd_args *args)
{
    constexpr int W = 16 / static_cast<int>(sizeof(T));
    const fwd_arrays<T> a = {
        static_cast<T *>(args->out), static_cast<T *>(args->sum), static_cast<const T *>(args->in),
        static_cast<const T *>(args->add), static_cast<const T *>(args->weight), args->rstd, args->rows,
        args->channels, args->eps
    };
    const bool aligned = a.channels % W == 0 && is_aligned(a.out) && is_aligned(a.sum) && is_aligned(a.in) &&
                         is_aligned(a.add) && is_aligned(a.weight);
    if (!aligned)
        fwd_launch<T, 1, reread_row<T, 1>>(at, a);
    else if (a.channels <= 32 * 8) /* a head */
        fwd_launch<T, W, kept_row<T, W, 8 / W>>(at, a);
    else if (a.channels <= 32 * 32)
        fwd_launch<T, W, kept_row<T, W, 32 / W>>(at, a);
    else if (a.channels <= 32 * 64)
        fwd_launch<T, W, kept_row<T, W, 64 / W>>(at, a);
    else if (a.channels <= 32 * 128)
        fwd_launch<T, W, kept_row<T, W, 128 / W>>(at, a);
    else
        fwd_launch<T, W, reread_row<T, W>>(at, a);
}

/* ---- backward ---- */

template <class T> struct bwd_arrays {
    T *d_in;
    const T *d_out, *d_residual, *in, *weight;
    const float *rstd;
    float *partial; /* [blocks, C], or NULL: the weight is frozen */
    int64_t rows, channels;
};

/* Mean over the channels of d_out * weight * x_hat. */
template <int W, class T> __device__ __forceinline__ float row_mean(const bwd_arrays<T> &a, int64_t r, int lane)
{
    const float rstd = a.rstd[r];
    float sum = 0;
    for (int64_t c = static_cast<int64_t>(lane) * W; c < a.channels; c += 32 * W) {
        float g[W], x[W], w[W];
        load<W>(g, a.d_out + r * a.channels + c);
        load<W>(x, a.in + r * a.channels + c);
        load<W>(w, a.weight + c);
#pragma unroll
        for (int j = 0; j < W; j++)
            sum = fmaf(g[j] * w[j], x[j] * rstd, sum);
    }
    return warp_sum(sum) / static_cast<float>(a.channels);
}

/* Row r's gradient at columns c .. c + W - 1, and its part of their weights' sums. */
template <int W, class T>
__device__ __forceinline__ void bwd_columns(const bwd_arrays<T> &a, int64_t r, int64_t c, float mean,
                                            const float (&w)[W], float (&sum_weight)[W])
{
    const int64_t i = r * a.channels + c;
    const float rstd = a.rstd[r];
    float g[W], x[W], y[W];
    load<W>(g, a.d_out + i);
    load<W>(x, a.in + i);
    if (a.d_residual != NULL)
        load<W>(y, a.d_residual + i);
#pragma unroll
    for (int j = 0; j < W; j++) {
        const float x_hat = x[j] * rstd;
        sum_weight[j] = fmaf(g[j], x_hat, sum_weight[j]);
        y[j] = fmaf(rstd, fmaf(-x_hat, mean, g[j] * w[j]), a.d_residual != NULL ? y[j] : 0.0f);
    }
    store<W>(a.d_in + i, y);
}

template <class T, int W> __global__ void __launch_bounds__(BWD_THREADS) bwd_kernel(const bwd_arrays<T> a)
{
    __shared__ float means[BWD_ROWS];
    __shared__ float shared[BWD_WARPS * W * 32];
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    const int64_t first = static_cast<int64_t>(blockIdx.x) * BWD_ROWS;
    const int64_t last = first + BWD_ROWS < a.rows ? first + BWD_ROWS : a.rows;
    for (int64_t r = first + warp; r < last; r += BWD_WARPS) {
        const float mean = row_mean<W>(a, r, lane);
        if (lane == 0)
            means[r - first] = mean;
    }
    __syncthreads();
    for (int64_t base = 0; base < a.channels; base += 32 * W) {
        const int64_t c = base + lane * W;
        float w[W] = {}, sum_weight[W] = {};
        if (c < a.channels) {
            load<W>(w, a.weight + c);
#pragma unroll 4
            for (int64_t r = first + warp; r < last; r += BWD_WARPS)
                bwd_columns<W>(a, r, c, means[r - first], w, sum_weight);
        }
        if (a.partial != NULL)
            add_warps<W>(a.partial + static_cast<int64_t>(blockIdx.x) * a.channels, sum_weight, c, a.channels, shared);
    }
}

template <class T, int W, int K>
__global__ void __launch_bounds__(BWD_THREADS, 2) bwd_wide_kernel(const bwd_arrays<T> a)
{
    __shared__ float means[2][BWD_WARPS]; /* of these eight rows, and of the eight before while some still read them */
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    const int64_t first = static_cast<int64_t>(blockIdx.x) * BWD_ROWS;
    const int64_t last = first + BWD_ROWS < a.rows ? first + BWD_ROWS : a.rows;
    float sum_weight[K][W] = {};
    for (int64_t row = first; row < last; row += BWD_WARPS) {
        float *const now = means[(row - first) / BWD_WARPS % 2];
        const float mean = row + warp < last ? row_mean<W>(a, row + warp, lane) : 0.0f;
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
                bwd_columns<W>(a, row + r, c, now[r], w, sum_weight[k]);
        }
    }
#pragma unroll
    for (int k = 0; k < K; k++) {
        const int64_t c = static_cast<int64_t>(k * BWD_THREADS + static_cast<int>(threadIdx.x)) * W;
        if (a.partial != NULL && c < a.channels)
            store<W>(a.partial + static_cast<int64_t>(blockIdx.x) * a.channels + c, sum_weight[k]);
    }
}

template <class T> void bwd(const dsc_cuda_launch *at, const dsc_rmsnorm_bwd_args *a)
{
    constexpr int W = 16 / static_cast<int>(sizeof(T));
    const bwd_arrays<T> arrays = {
        static_cast<T *>(a->d_in), static_cast<const T *>(a->d_out), static_cast<const T *>(a->d_residual),
        static_cast<const T *>(a->in), static_cast<const T *>(a->weight), a->rstd,
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

dsc_status dsc_cuda_run_RMSNORM_FWD(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_rmsnorm_fwd_args *a = static_cast<const dsc_rmsnorm_fwd_args *>(args);
    DSC_TRY(dtype_check("RMSNORM_FWD", a->dtype, err));
    DSC_ASSERT(a->channels >= 1);
    DSC_ASSERT((a->add == NULL) == (a->sum == NULL));
    if (a->rows == 0)
        return DSC_OK;
    a->dtype == DSC_BF16 ? fwd<uint16_t>(at, a) : fwd<float>(at, a);
    return DSC_OK;
}

dsc_status dsc_cuda_run_RMSNORM_BWD(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_rmsnorm_bwd_args *a = static_cast<const dsc_rmsnorm_bwd_args *>(args);
    DSC_TRY(dtype_check("RMSNORM_BWD", a->dtype, err));
    DSC_ASSERT(a->channels >= 1);
    if (a->rows > 0)
        a->dtype == DSC_BF16 ? bwd<uint16_t>(at, a) : bwd<float>(at, a);
    const sum_targets targets = { { a->d_weight, NULL } };
    if (a->d_weight != NULL)
        sum_blocks(at, targets, 1, a->scratch, a->rows, a->channels);
    return DSC_OK;
}
