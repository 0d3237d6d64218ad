/* layernorm.cu - layer normalisation and its gradient; norm.h says how.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/norm.h"

namespace {

/* ---- forward ---- */

template <class T> struct fwd_arrays {
    typedef T element;
    T *out, *sum;
    const T *in, *add, *weight, *bias;
    float *row_mean, *row_rstd;
    int64_t rows, channels;
    float eps;
    bool plus_one;
    dsc_norm_rows wide;

    template <int W, class Row>
    __device__ __forceinline__ void finish(Row &row, const T *from, int64_t r, int lane) const
    {
        float total = 0;
        row.visit(from, channels, lane, [&](int64_t, const float (&x)[W]) {
#pragma unroll
            for (int j = 0; j < W; j++)
                total += x[j];
        });
        const float mean = warp_sum(total) / static_cast<float>(channels);
        float squares = 0;
        row.visit(from, channels, lane, [&](int64_t, const float (&x)[W]) {
#pragma unroll
            for (int j = 0; j < W; j++)
                squares = fmaf(x[j] - mean, x[j] - mean, squares);
        });
        const float rstd = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(channels) + eps);
        row.visit(from, channels, lane, [&](int64_t c, const float(&x)[W]) {
            float w[W], b[W] = {}, y[W];
            load_weight<W>(w, weight, c, plus_one);
            if (bias != NULL)
                load<W>(b, bias + c);
#pragma unroll
            for (int j = 0; j < W; j++)
                y[j] = fmaf((x[j] - mean) * rstd, w[j], b[j]);
            store_fast<W>(out + r * channels + c, y);
        });
        if (lane == 0) {
            row_mean[r] = mean;
            row_rstd[r] = rstd;
        }
    }
};

template <class T> dsc_status fwd(const dsc_cuda_launch *at, const dsc_layernorm_fwd_args *args, dsc_error *err)
{
    constexpr int W = 16 / static_cast<int>(sizeof(T));
    const fwd_arrays<T> a = { static_cast<T *>(args->out),
                              static_cast<T *>(args->sum),
                              static_cast<const T *>(args->in),
                              static_cast<const T *>(args->add),
                              static_cast<const T *>(args->weight),
                              static_cast<const T *>(args->bias),
                              args->mean,
                              args->rstd,
                              args->rows,
                              args->channels,
                              args->eps,
                              args->plus_one,
                              args->wide };
    const bool aligned = a.channels % W == 0 && a.wide.stride % W == 0 && is_aligned(a.out) && is_aligned(a.sum) &&
                         is_aligned(a.in) && is_aligned(a.add) && is_aligned(a.weight) && is_aligned(a.bias);
    if (!aligned)
        fwd_launch<1, reread_row<T, 1>>(at, a, 0);
    else if (a.channels <= FWD_CHANNELS_KEPT)
        fwd_launch<W, kept_row<T, W, FWD_CHANNELS_KEPT / 32 / W>>(at, a, 0);
    else
        return fwd_launch_long<W>(at, "LAYERNORM_FWD", a, err);
    return DSC_OK;
}

/* ---- backward ---- */

template <class T> struct bwd_arrays {
    typedef T element;
    typedef float2 stats; /* mean, 1 / deviation */
    enum { SUMS = 2, WEIGHTS = 2 };
    T *d_in;
    const T *d_out, *d_residual, *in, *weight;
    const float *row_mean, *row_rstd;
    float *partial; /* [blocks, 2, C], or NULL: weights are frozen */
    int64_t rows, channels;
    bool plus_one;
    dsc_norm_rows wide;

    __device__ __forceinline__ stats stats_of(int64_t r) const { return make_float2(row_mean[r], row_rstd[r]); }

    template <int W> __device__ __forceinline__ void normalise(stats s, float (&x)[W]) const
    {
#pragma unroll
        for (int j = 0; j < W; j++)
            x[j] = (x[j] - s.x) * s.y;
    }

    /* Terms of the means of d = d_out * weight and of d * x_hat. */
    template <int W>
    __device__ __forceinline__ void add_terms(const float (&g)[W], const float (&x_hat)[W], const float (&w)[W],
                                              float *sum) const
    {
#pragma unroll
        for (int j = 0; j < W; j++) {
            const float d = g[j] * w[j];
            sum[0] += d;
            sum[1] = fmaf(d, x_hat[j], sum[1]);
        }
    }

    template <int W>
    __device__ __forceinline__ void gradient(stats s, const float *mean, const float (&g)[W], const float (&x_hat)[W],
                                             const float (&w)[W], float (&y)[W], float (&total)[WEIGHTS][W]) const
    {
#pragma unroll
        for (int j = 0; j < W; j++) {
            total[0][j] = fmaf(g[j], x_hat[j], total[0][j]);
            total[1][j] += g[j];
            y[j] = fmaf(s.y, fmaf(-x_hat[j], mean[1], fmaf(g[j], w[j], -mean[0])), y[j]);
        }
    }
};

template <class T> dsc_status bwd(const dsc_cuda_launch *at, const dsc_layernorm_bwd_args *a, dsc_error *err)
{
    const bwd_arrays<T> arrays = { static_cast<T *>(a->d_in),
                                   static_cast<const T *>(a->d_out),
                                   static_cast<const T *>(a->d_residual),
                                   static_cast<const T *>(a->in),
                                   static_cast<const T *>(a->weight),
                                   a->mean,
                                   a->rstd,
                                   a->d_weight != NULL || a->d_bias != NULL ? static_cast<float *>(a->scratch) : NULL,
                                   a->rows,
                                   a->channels,
                                   a->plus_one,
                                   a->wide };
    return bwd_launch(at, "LAYERNORM_BWD", arrays, err);
}

} // namespace

dsc_status dsc_cuda_run_LAYERNORM_FWD(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_layernorm_fwd_args *a = static_cast<const dsc_layernorm_fwd_args *>(args);
    DSC_TRY(dtype_check("LAYERNORM_FWD", a->dtype, err));
    DSC_ASSERT(a->channels >= 1);
    DSC_ASSERT((a->add == NULL) == (a->sum == NULL));
    DSC_ASSERT(a->wide.stride == 0 || a->add == NULL);
    DSC_ASSERT(dsc_norm_rows_fit(&a->wide, a->rows, a->channels));
    if (a->rows == 0)
        return DSC_OK;
    DSC_CUDA_FOR_DTYPE(a->dtype, T, return fwd<T>(at, a, err));
}

dsc_status dsc_cuda_run_LAYERNORM_BWD(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_layernorm_bwd_args *a = static_cast<const dsc_layernorm_bwd_args *>(args);
    DSC_TRY(dtype_check("LAYERNORM_BWD", a->dtype, err));
    DSC_ASSERT(a->channels >= 1);
    DSC_ASSERT(a->weight != NULL || a->d_weight == NULL);
    DSC_ASSERT(a->wide.stride == 0 || a->d_residual == NULL);
    DSC_ASSERT(dsc_norm_rows_fit(&a->wide, a->rows, a->channels));
    if (a->rows > 0)
        DSC_CUDA_FOR_DTYPE(a->dtype, T, DSC_TRY(bwd<T>(at, a, err)));
    const sum_targets targets = { { a->d_weight, a->d_bias } };
    if (a->d_weight != NULL || a->d_bias != NULL)
        sum_blocks(at, targets, 2, a->scratch, a->rows, a->channels);
    return DSC_OK;
}
