/* pool.cu - a thread has a channel of an output, or of a gradient. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/elements.h"
#include "kernels/cuda/launchers.h"
#include "kernels/pool.h"

namespace
{

/* Element i of a feature map: its channel, pixel and sample. */
struct place {
    int64_t channel, x, y, sample;
};

__device__ __forceinline__ place place_of(int64_t i, int64_t channels, int64_t width, int64_t height)
{
    const int64_t pixel = i / channels, row = pixel / width;
    return { i % channels, pixel % width, row % height, row / height };
}

template <class T> struct forward_op {
    T *out;
    const T *in;
    int32_t *chosen;
    dsc_pool_shape of;
    int64_t channels;
    template <int W> __device__ __forceinline__ void run(int64_t i) const
    {
        const place at = place_of(i, channels, of.out_width, of.out_height);
        int64_t top, bottom, left, right;
        dsc_pool_window(&of, at.y, of.height, of.out_height, &top, &bottom);
        dsc_pool_window(&of, at.x, of.width, of.out_width, &left, &right);
        const T *sample = in + at.sample * of.height * of.width * channels + at.channel;
        int64_t best = top * of.width + left;
        float most = to_f32(sample[best * channels]), sum = 0;
        for (int64_t y = top; y < bottom; y++)
            for (int64_t x = left; x < right; x++) {
                const int64_t pixel = y * of.width + x;
                const float value = to_f32(sample[pixel * channels]);
                sum += value;
                if (value > most || value != value) {
                    most = value;
                    best = pixel;
                }
            }
        if (of.kind == DSC_POOL_MAX)
            chosen[i] = static_cast<int32_t>(best);
        out[i] =
            element<T>::from(of.kind == DSC_POOL_MAX ? most : sum / dsc_pool_count(&of, bottom - top, right - left));
    }
};

template <class T> struct backward_op {
    T *d_in;
    const T *d_out;
    const int32_t *chosen;
    dsc_pool_shape of;
    int64_t channels;
    __device__ __forceinline__ float share(int64_t at, int64_t pixel, int64_t y, int64_t x) const
    {
        const float d = to_f32(d_out[at]);
        int64_t top, bottom, left, right;
        if (of.kind == DSC_POOL_MAX)
            return chosen[at] == pixel ? d : 0.0f;
        dsc_pool_window(&of, y, of.height, of.out_height, &top, &bottom);
        dsc_pool_window(&of, x, of.width, of.out_width, &left, &right);
        return d / dsc_pool_count(&of, bottom - top, right - left);
    }
    template <int W> __device__ __forceinline__ void run(int64_t i) const
    {
        const place at = place_of(i, channels, of.width, of.height);
        int64_t top, bottom, left, right;
        float sum = 0;
        dsc_pool_windows_of(&of, at.y, of.height, of.out_height, &top, &bottom);
        dsc_pool_windows_of(&of, at.x, of.width, of.out_width, &left, &right);
        for (int64_t y = top; y < bottom; y++)
            for (int64_t x = left; x < right; x++) {
                const int64_t window = (at.sample * of.out_height + y) * of.out_width + x;
                sum += share(window * channels + at.channel, at.y * of.width + at.x, y, x);
            }
        d_in[i] = element<T>::from(sum);
    }
};

template <class T> void pool(const dsc_cuda_launch *at, const dsc_pool_args *a, bool back)
{
    const dsc_pool_shape &of = a->shape;
    const int64_t maps = a->samples * a->channels;
    T *const out = static_cast<T *>(a->out), *const in = static_cast<T *>(a->in);
    if (back)
        each<1>(at, backward_op<T> { in, out, a->chosen, of, a->channels }, maps * of.height * of.width, false);
    else
        each<1>(at, forward_op<T> { out, in, a->chosen, of, a->channels }, maps * of.out_height * of.out_width, false);
}

dsc_status run(const dsc_cuda_launch *at, const dsc_pool_args *a, bool back, const char *name, dsc_error *err)
{
    DSC_TRY(dtype_check(name, a->dtype, err));
    DSC_ASSERT((a->shape.kind == DSC_POOL_MAX) == (a->chosen != NULL));
    DSC_CUDA_FOR_DTYPE(a->dtype, T, pool<T>(at, a, back));
    return DSC_OK;
}

} // namespace

dsc_status dsc_cuda_run_POOL_FWD(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    return run(at, static_cast<const dsc_pool_args *>(args), false, "POOL_FWD", err);
}

dsc_status dsc_cuda_run_POOL_BWD(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    return run(at, static_cast<const dsc_pool_args *>(args), true, "POOL_BWD", err);
}
