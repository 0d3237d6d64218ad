/* conv2d.cu - two-dimensional convolutions: windows, orders of weights, and depthwise ones. A thread makes an element,
 * but for the sums of a depthwise weight's gradient. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/elements.h"
#include "kernels/cuda/launchers.h"

namespace
{

enum { THREADS = 256, WARPS = THREADS / 32 };

/* ---- windows ---- */

/* Elements of T, of which a group has `count` in a pixel and a pixel has `channels`. */
template <class T>
__global__ void __launch_bounds__(THREADS)
    windows_kernel(T *out, const T *in, const dsc_conv2d_shape s, int64_t first, int64_t elements, int64_t start,
                   int64_t count, int64_t channels, bool back)
{
    const int64_t n = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (n >= elements)
        return;
    const int64_t down = dsc_conv2d_out(&s, 0), across = dsc_conv2d_out(&s, 1);
    const int64_t height = back ? s.height : down, width = back ? s.width : across;
    const int64_t c = n % count, tap = n / count % dsc_conv2d_taps(&s), row = first + n / count / dsc_conv2d_taps(&s);
    const int64_t b = row / (height * width), i = row / width % height, j = row % width;
    const int64_t u = tap / s.kernel[1], v = tap % s.kernel[1];
    const int64_t y = back ? dsc_conv2d_output(&s, 0, i, u) : dsc_conv2d_input(&s, 0, i, u);
    const int64_t x = back ? dsc_conv2d_output(&s, 1, j, v) : dsc_conv2d_input(&s, 1, j, v);
    const int64_t pixel = (b * (back ? down : s.height) + y) * (back ? across : s.width) + x;
    out[n] = y >= 0 && x >= 0 ? in[pixel * channels + start + c] : T {};
}

template <class T> void gather(const dsc_cuda_launch *at, const dsc_windows_args *a)
{
    const int64_t per = static_cast<int64_t>(sizeof(T) / dsc_dtype_bytes(a->dtype));
    const int64_t channels = (a->back ? a->shape.out : a->shape.in) / per, count = channels / a->shape.groups;
    const int64_t elements = a->rows * dsc_conv2d_taps(&a->shape) * count;
    DSC_CUDA_LAUNCH((windows_kernel<T>), grid_size(dsc_div_ceil(elements, THREADS)), THREADS, 0, at->stream,
                    static_cast<T *>(a->out), static_cast<const T *>(a->in), a->shape, a->first, elements,
                    a->group * count, count, channels, a->back);
}

/* ---- orders of weights ---- */

template <class T>
__global__ void __launch_bounds__(THREADS)
    weight_kernel(T *out, const T *in, const dsc_conv2d_shape s, dsc_conv2d_order order, int64_t count)
{
    const int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (i < count)
        out[i] = in[dsc_conv2d_weight_from(&s, order, i)];
}

template <class T> void reorder(const dsc_cuda_launch *at, const dsc_conv2d_weight_args *a)
{
    const int64_t count = dsc_conv2d_weights(&a->shape);
    DSC_CUDA_LAUNCH((weight_kernel<T>), grid_size(dsc_div_ceil(count, THREADS)), THREADS, 0, at->stream,
                    static_cast<T *>(a->out), static_cast<const T *>(a->in), a->shape, a->order, count);
}

/* ---- depthwise ---- */

template <class T>
__global__ void __launch_bounds__(THREADS)
    fwd_kernel(T *out, const T *in, const T *weight, const T *bias, const dsc_conv2d_shape s, int64_t count)
{
    const int64_t n = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (n >= count)
        return;
    const int64_t down = dsc_conv2d_out(&s, 0), across = dsc_conv2d_out(&s, 1);
    const int64_t o = n % s.out, row = n / s.out, b = row / (down * across), c = o / (s.out / s.in);
    float sum = 0;
    for (int64_t u = 0; u < s.kernel[0]; u++) {
        const int64_t y = dsc_conv2d_input(&s, 0, row / across % down, u);
        for (int64_t v = 0; v < s.kernel[1] && y >= 0; v++) {
            const int64_t x = dsc_conv2d_input(&s, 1, row % across, v);
            if (x >= 0)
                sum += to_f32(in[((b * s.height + y) * s.width + x) * s.in + c]) *
                       to_f32(weight[(u * s.kernel[1] + v) * s.out + o]);
        }
    }
    out[n] = element<T>::from(bias != nullptr ? sum + to_f32(bias[o]) : sum);
}

template <class T>
__global__ void __launch_bounds__(THREADS)
    dx_kernel(T *out, const T *in, const T *weight, const T *add, const dsc_conv2d_shape s, int64_t count)
{
    const int64_t n = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (n >= count)
        return;
    const int64_t down = dsc_conv2d_out(&s, 0), across = dsc_conv2d_out(&s, 1), each = s.out / s.in;
    const int64_t c = n % s.in, row = n / s.in, b = row / (s.height * s.width);
    float sum = 0;
    for (int64_t u = 0; u < s.kernel[0]; u++) {
        const int64_t i = dsc_conv2d_output(&s, 0, row / s.width % s.height, u);
        for (int64_t v = 0; v < s.kernel[1] && i >= 0; v++) {
            const int64_t j = dsc_conv2d_output(&s, 1, row % s.width, v);
            for (int64_t k = c * each; k < (c + 1) * each && j >= 0; k++)
                sum += to_f32(in[((b * down + i) * across + j) * s.out + k]) *
                       to_f32(weight[(u * s.kernel[1] + v) * s.out + k]);
        }
    }
    out[n] = element<T>::from(add != nullptr ? sum + to_f32(add[n]) : sum);
}

/* A block has one tap of 32 outputs of a strip; its warps share out the outputs' places. */
template <class T>
__global__ void __launch_bounds__(THREADS)
    dw_kernel(float *parts, const T *in, const T *d_out, const dsc_conv2d_shape s)
{
    __shared__ float shared[WARPS][32];
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    const int64_t blocks = (s.out + 31) / 32, taps = dsc_conv2d_taps(&s), across = dsc_conv2d_out(&s, 1);
    const int64_t o = blockIdx.x % blocks * 32 + lane, tap = blockIdx.x / blocks % taps;
    const int64_t strip = blockIdx.x / blocks / taps, down = dsc_conv2d_out(&s, 0);
    const int64_t end = dsc_depthwise_line(&s, strip + 1) * across;
    float sum = 0;
    for (int64_t row = dsc_depthwise_line(&s, strip) * across + warp; row < end && o < s.out; row += WARPS) {
        const int64_t y = dsc_conv2d_input(&s, 0, row / across % down, tap / s.kernel[1]);
        const int64_t x = dsc_conv2d_input(&s, 1, row % across, tap % s.kernel[1]);
        const int64_t pixel = (row / (down * across) * s.height + y) * s.width + x;
        if (y >= 0 && x >= 0)
            sum += to_f32(in[pixel * s.in + o / (s.out / s.in)]) * to_f32(d_out[row * s.out + o]);
    }
    shared[warp][lane] = sum;
    __syncthreads();
    if (warp != 0 || o >= s.out)
        return;
    for (int k = 1; k < WARPS; k++)
        sum += shared[k][lane];
    parts[(strip * taps + tap) * s.out + o] = sum;
}

__global__ void __launch_bounds__(THREADS)
    strips_kernel(float *d_weight, const float *parts, int64_t strips, int64_t taps, int64_t out)
{
    const int64_t n = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (n >= taps * out)
        return;
    float sum = 0;
    for (int64_t strip = 0; strip < strips; strip++)
        sum += parts[strip * taps * out + n];
    d_weight[n % out * taps + n / out] = sum;
}

template <class T> void depthwise(const dsc_cuda_launch *at, const dsc_depthwise_args *a, bool back)
{
    const dsc_conv2d_shape *s = &a->shape;
    const int64_t count = back ? s->batch * s->height * s->width * s->in
                               : s->batch * dsc_conv2d_out(s, 0) * dsc_conv2d_out(s, 1) * s->out;
    const T *in = static_cast<const T *>(a->in), *weight = static_cast<const T *>(a->weight);
    const T *add = static_cast<const T *>(a->add);
    if (count == 0)
        return;
    const unsigned grid = grid_size(dsc_div_ceil(count, THREADS));
    if (back)
        DSC_CUDA_LAUNCH((dx_kernel<T>), grid, THREADS, 0, at->stream, static_cast<T *>(a->out), in, weight, add, *s,
                        count);
    else
        DSC_CUDA_LAUNCH((fwd_kernel<T>), grid, THREADS, 0, at->stream, static_cast<T *>(a->out), in, weight, add, *s,
                        count);
}

template <class T> void depthwise_dw(const dsc_cuda_launch *at, const dsc_depthwise_dw_args *a)
{
    const dsc_conv2d_shape *s = &a->shape;
    const int64_t strips = dsc_depthwise_strips(s), taps = dsc_conv2d_taps(s);
    if (strips > 0)
        DSC_CUDA_LAUNCH((dw_kernel<T>), grid_size(strips * taps * dsc_div_ceil(s->out, 32)), THREADS, 0, at->stream,
                        a->scratch, static_cast<const T *>(a->in), static_cast<const T *>(a->d_out), *s);
    DSC_CUDA_LAUNCH(strips_kernel, grid_size(dsc_div_ceil(taps * s->out, THREADS)), THREADS, 0, at->stream, a->d_weight,
                    a->scratch, strips, taps, s->out);
}

/* Whether pixels and groups are whole numbers of 16-byte words. */
bool moves_words(const dsc_windows_args *a)
{
    const int64_t channels = (a->back ? a->shape.out : a->shape.in) / a->shape.groups;
    return channels * static_cast<int64_t>(dsc_dtype_bytes(a->dtype)) % 16 == 0 && is_aligned(a->in) &&
           is_aligned(a->out);
}

} // namespace

dsc_status dsc_cuda_run_WINDOWS(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_windows_args *a = static_cast<const dsc_windows_args *>(args);
    DSC_ASSERT(a->rows >= 1 && a->group < a->shape.groups);
    DSC_TRY(dtype_check("WINDOWS", a->dtype, err));
    if (moves_words(a))
        gather<word<16>::type>(at, a);
    else if (a->dtype == DSC_F32)
        gather<float>(at, a);
    else
        gather<uint16_t>(at, a);
    return DSC_OK;
}

dsc_status dsc_cuda_run_CONV2D_WEIGHT(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_conv2d_weight_args *a = static_cast<const dsc_conv2d_weight_args *>(args);
    DSC_TRY(dtype_check("CONV2D_WEIGHT", a->dtype, err));
    if (a->dtype == DSC_F32)
        reorder<float>(at, a);
    else
        reorder<uint16_t>(at, a);
    return DSC_OK;
}

dsc_status dsc_cuda_run_DEPTHWISE_FWD(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_depthwise_args *a = static_cast<const dsc_depthwise_args *>(args);
    DSC_ASSERT(a->shape.groups == a->shape.in);
    DSC_TRY(dtype_check("DEPTHWISE_FWD", a->dtype, err));
    DSC_CUDA_FOR_DTYPE(a->dtype, T, depthwise<T>(at, a, false));
    return DSC_OK;
}

dsc_status dsc_cuda_run_DEPTHWISE_DX(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_depthwise_args *a = static_cast<const dsc_depthwise_args *>(args);
    DSC_ASSERT(a->shape.groups == a->shape.in);
    DSC_TRY(dtype_check("DEPTHWISE_DX", a->dtype, err));
    DSC_CUDA_FOR_DTYPE(a->dtype, T, depthwise<T>(at, a, true));
    return DSC_OK;
}

dsc_status dsc_cuda_run_DEPTHWISE_DW(const dsc_cuda_launch *at, const void *args, dsc_error *err)
{
    const dsc_depthwise_dw_args *a = static_cast<const dsc_depthwise_dw_args *>(args);
    DSC_ASSERT(a->shape.groups == a->shape.in);
    DSC_TRY(dtype_check("DEPTHWISE_DW", a->dtype, err));
    DSC_CUDA_FOR_DTYPE(a->dtype, T, depthwise_dw<T>(at, a));
    return DSC_OK;
}
