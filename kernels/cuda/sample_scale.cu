/* sample_scale.cu - a thread has an element, or a channel's sum over the rows of a sample.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/stochastic_round.h"
#include "kernels/sample_scale.h"

namespace
{

template <class T> struct scale_op {
    T *out;
    const T *in, *scale;
    int64_t channels, elements; /* elements of a sample */
    template <int W> __device__ __forceinline__ void run(int64_t i) const
    {
        float x[W], s[W];
        load<W>(x, in + i);
        load<W>(s, scale + i / elements * channels + i % channels);
#pragma unroll
        for (int j = 0; j < W; j++)
            x[j] *= s[j];
        store<W>(out + i, x);
    }
};

template <class T> struct product_op {
    T *scale;
    const T *d_out, *in;
    int64_t channels, rows;
    template <int W> __device__ __forceinline__ void run(int64_t i) const
    {
        const int64_t first = i / channels * rows * channels + i % channels;
        const T *d = d_out + first, *x = in + first;
        float sum = 0;
        for (int64_t r = 0; r < rows; r++)
            sum = fmaf(to_f32(d[r * channels]), to_f32(x[r * channels]), sum);
        scale[i] = element<T>::from(sum);
    }
};

template <class T> struct drop_op {
    T *out;
    const T *in;
    int64_t elements;
    uint64_t seed, stream, first;
    uint32_t threshold;
    float factor;
    template <int W> __device__ __forceinline__ void run(int64_t i) const
    {
        const uint64_t index = first + static_cast<uint64_t>(i / elements);
        const uint32_t which = static_cast<uint32_t>(index % 4);
        uint32_t block[4];
        float x[W];
        philox(block, seed, stream, index / 4);
        const uint32_t word = which == 0 ? block[0] : which == 1 ? block[1] : which == 2 ? block[2] : block[3];
        load<W>(x, in + i);
#pragma unroll
        for (int j = 0; j < W; j++)
            x[j] = word >= threshold ? x[j] * factor : 0.0f;
        store<W>(out + i, x);
    }
};

template <class T> void scale(const dsc_cuda_launch *at, const dsc_sample_scale_args *a)
{
    const scale_op<T> op = { static_cast<T *>(a->out), static_cast<const T *>(a->in), static_cast<const T *>(a->scale),
                             a->channels, a->rows * a->channels };
    const bool aligned = a->channels % 8 == 0 && is_aligned(a->out) && is_aligned(a->in) && is_aligned(a->scale);
    each<8>(at, op, a->samples * op.elements, aligned);
}

template <class T> void products(const dsc_cuda_launch *at, const dsc_sample_scale_args *a)
{
    const product_op<T> op = { static_cast<T *>(a->scale), static_cast<const T *>(a->out),
                               static_cast<const T *>(a->in), a->channels, a->rows };
    each<1>(at, op, a->samples * a->channels, false);
}

template <class T> void drop(const dsc_cuda_launch *at, const dsc_sample_dropout_args *a)
{
    const drop_op<T> op = { static_cast<T *>(a->out),
                            static_cast<const T *>(a->in),
                            a->elements,
                            a->seed,
                            a->stream,
                            a->first,
                            a->threshold,
                            a->factor };
    each<8>(at, op, a->samples * a->elements, a->elements % 8 == 0 && is_aligned(a->out) && is_aligned(a->in));
}

} // namespace

dsc_status dsc_cuda_run_SAMPLE_SCALE_FWD(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_sample_scale_args *a = static_cast<const dsc_sample_scale_args *>(args);
    DSC_TRY(dtype_check("SAMPLE_SCALE_FWD", a->dtype, err));
    DSC_CUDA_FOR_DTYPE(a->dtype, T, scale<T>(at, a));
    return DSC_OK;
}

dsc_status dsc_cuda_run_SAMPLE_SCALE_BWD(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_sample_scale_args *a = static_cast<const dsc_sample_scale_args *>(args);
    DSC_TRY(dtype_check("SAMPLE_SCALE_BWD", a->dtype, err));
    DSC_CUDA_FOR_DTYPE(a->dtype, T, products<T>(at, a));
    return DSC_OK;
}

dsc_status dsc_cuda_run_SAMPLE_DROPOUT(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_sample_dropout_args *a = static_cast<const dsc_sample_dropout_args *>(args);
    DSC_TRY(dtype_check("SAMPLE_DROPOUT", a->dtype, err));
    DSC_CUDA_FOR_DTYPE(a->dtype, T, drop<T>(at, a));
    return DSC_OK;
}
