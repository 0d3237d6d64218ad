/* rmsnorm.cu - RMS normalisation and its gradient; norm.h says how, but that rows of up to 4096 channels (Llama's) stay
 * in registers. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/norm.h"

namespace {

/* ---- forward ---- */

template <class T> struct fwd_arrays {
    typedef T element;
    T *out, *sum;
    const T *in, *add, *weight;
    float *row_rstd;
    int64_t rows, channels;
    float eps;

    template <int W, class Row>
    __device__ __forceinline__ void finish(Row &row, const T *from, int64_t r, int lane) const
    {
        float squares = 0;
        row.visit(from, channels, lane, [&](int64_t, const float (&x)[W]) {
#pragma unroll
            for (int j = 0; j < W; j++)
                squares = fmaf(x[j], x[j], squares);
        });
        const float rstd = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(channels) + eps);
        row.visit(from, channels, lane, [&](int64_t c, const float (&x)[W]) {
            float w[W], y[W];
            load<W>(w, weight + c);
#pragma unroll
            for (int j = 0; j < W; j++)
                y[j] = x[j] * rstd * w[j];
            store<W>(out + r * channels + c, y);
        });
        if (lane == 0)
            row_rstd[r] = rstd;
    }
};

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
        fwd_launch<1, reread_row<T, 1>>(at, a);
    else if (a.channels <= 32 * 8) /* a head */
        fwd_launch<W, kept_row<T, W, 8 / W>>(at, a);
    else if (a.channels <= 32 * 32)
        fwd_launch<W, kept_row<T, W, 32 / W>>(at, a);
    else if (a.channels <= 32 * 64)
        fwd_launch<W, kept_row<T, W, 64 / W>>(at, a);
    else if (a.channels <= 32 * 128)
        fwd_launch<W, kept_row<T, W, 128 / W>>(at, a);
    else
        fwd_launch<W, reread_row<T, W>>(at, a);
}

/* ---- backward ---- */

template <class T> struct bwd_arrays {
    typedef T element;
    typedef float means;
    enum { WEIGHTS = 1 };
    T *d_in;
    const T *d_out, *d_residual, *in, *weight;
    const float *row_rstd;
    float *partial; /* [blocks, C], or NULL: the weight is frozen */
    int64_t rows, channels;

    /* Mean over the channels of d_out * weight * x_hat. */
    template <int W> __device__ __forceinline__ means means_of(int64_t r, int lane) const
    {
        const float rstd = row_rstd[r];
        float sum = 0;
        for (int64_t c = static_cast<int64_t>(lane) * W; c < channels; c += 32 * W) {
            float g[W], x[W], w[W];
            load<W>(g, d_out + r * channels + c);
            load<W>(x, in + r * channels + c);
            load<W>(w, weight + c);
#pragma unroll
            for (int j = 0; j < W; j++)
                sum = fmaf(g[j] * w[j], x[j] * rstd, sum);
        }
        return warp_sum(sum) / static_cast<float>(channels);
    }

    /* Row r's gradient at columns c .. c + W - 1, and its part of their weights' sums. */
    template <int W>
    __device__ __forceinline__ void columns(int64_t r, int64_t c, means mean, const float (&w)[W],
                                            float (&sum)[WEIGHTS][W]) const
    {
        const int64_t i = r * channels + c;
        const float rstd = row_rstd[r];
        float g[W], x[W], y[W];
        load<W>(g, d_out + i);
        load<W>(x, in + i);
        if (d_residual != NULL)
            load<W>(y, d_residual + i);
#pragma unroll
        for (int j = 0; j < W; j++) {
            const float x_hat = x[j] * rstd;
            sum[0][j] = fmaf(g[j], x_hat, sum[0][j]);
            y[j] = fmaf(rstd, fmaf(-x_hat, mean, g[j] * w[j]), d_residual != NULL ? y[j] : 0.0f);
        }
        store<W>(d_in + i, y);
    }
};

template <class T> void bwd(const dsc_cuda_launch *at, const dsc_rmsnorm_bwd_args *a)
{
    const bwd_arrays<T> arrays = {
        static_cast<T *>(a->d_in), static_cast<const T *>(a->d_out), static_cast<const T *>(a->d_residual),
        static_cast<const T *>(a->in), static_cast<const T *>(a->weight), a->rstd,
        a->d_weight != NULL ? static_cast<float *>(a->scratch) : NULL, a->rows, a->channels
    };
    bwd_launch(at, arrays);
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
    DSC_CUDA_FOR_DTYPE(a->dtype, T, fwd<T>(at, a));
    return DSC_OK;
}

dsc_status dsc_cuda_run_RMSNORM_BWD(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_rmsnorm_bwd_args *a = static_cast<const dsc_rmsnorm_bwd_args *>(args);
    DSC_TRY(dtype_check("RMSNORM_BWD", a->dtype, err));
    DSC_ASSERT(a->channels >= 1);
    if (a->rows > 0)
        DSC_CUDA_FOR_DTYPE(a->dtype, T, bwd<T>(at, a));
    const sum_targets targets = { { a->d_weight, NULL } };
    if (a->d_weight != NULL)
        sum_blocks(at, targets, 1, a->scratch, a->rows, a->channels);
    return DSC_OK;
}
