/* conv2d.cu - two-dimensional convolutions: windows, orders of weights, and depthwise ones. A thread makes an element,
 * but for the sums of a depthwise weight's gradient. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/elements.h"
#include "kernels/cuda/launchers.h"

namespace
{

enum { THREADS = 256, WARPS = THREADS / 32 };

/* ---- windows ---- */

/* The gather of rows of windows. Elements are of T, of which a group has `count` in a pixel and a pixel has `channels`.
 * I counts them all: in 32 bits a place is found in a third of the instructions. */
template <class I> struct window_places {
    I elements, first, count, channels, start, taps, height, width, in_height, in_width;
    int kernel, stride[2], padding[2], dilation[2];
    bool back;

    /* dsc_conv2d_input, or dsc_conv2d_output. */
    __device__ __forceinline__ int place(int axis, int at, int tap, int size) const
    {
        if (!back) {
            const int x = at * stride[axis] - padding[axis] + tap * dilation[axis];
            return x < size ? x : -1;
        }
        const int x = at + padding[axis] - tap * dilation[axis];
        return x >= 0 && x % stride[axis] == 0 && x / stride[axis] < size ? x / stride[axis] : -1;
    }
};

template <class T, class I>
__global__ void __launch_bounds__(THREADS) windows_kernel(T *out, const T *in, const window_places<I> s)
{
    const I n = static_cast<I>(blockIdx.x) * THREADS + threadIdx.x;
    if (n >= s.elements)
        return;
    const I window = n / s.count, c = n - window * s.count, relative = window / s.taps;
    const int tap = static_cast<int>(window - relative * s.taps), u = tap / s.kernel, v = tap - u * s.kernel;
    const I line = (s.first + relative) / s.width, b = line / s.height;
    const int j = static_cast<int>(s.first + relative - line * s.width), i = static_cast<int>(line - b * s.height);
    const int y = s.place(0, i, u, static_cast<int>(s.in_height)), x = s.place(1, j, v, static_cast<int>(s.in_width));
    T value = {};
    if (y >= 0 && x >= 0)
        value = in[((b * s.in_height + static_cast<I>(y)) * s.in_width + static_cast<I>(x)) * s.channels + s.start + c];
    out[n] = value;
}

template <class T, class I> void gather_places(const dsc_cuda_launch *at, const dsc_windows_args *a)
{
    const dsc_conv2d_shape *s = &a->shape;
    const int64_t per = static_cast<int64_t>(sizeof(T) / dsc_dtype_bytes(a->dtype));
    const int64_t channels = (a->back ? s->out : s->in) / per, down = dsc_conv2d_out(s, 0),
                  across = dsc_conv2d_out(s, 1);
    window_places<I> places = {};
    places.count = static_cast<I>(channels / s->groups), places.channels = static_cast<I>(channels);
    places.start = static_cast<I>(a->group) * places.count, places.first = static_cast<I>(a->first);
    places.taps = static_cast<I>(dsc_conv2d_taps(s));
    places.elements = static_cast<I>(a->rows) * places.taps * places.count;
    places.height = static_cast<I>(a->back ? s->height : down),
    places.width = static_cast<I>(a->back ? s->width : across);
    places.in_height = static_cast<I>(a->back ? down : s->height);
    places.in_width = static_cast<I>(a->back ? across : s->width);
    places.kernel = static_cast<int>(s->kernel[1]), places.back = a->back;
    for (int i = 0; i < 2; i++) {
        places.stride[i] = static_cast<int>(s->stride[i]), places.padding[i] = static_cast<int>(s->padding[i]);
        places.dilation[i] = static_cast<int>(s->dilation[i]);
    }
    DSC_CUDA_LAUNCH((windows_kernel<T, I>), grid_size(dsc_div_ceil(static_cast<int64_t>(places.elements), THREADS)),
                    THREADS, 0, at->stream, static_cast<T *>(a->out), static_cast<const T *>(a->in), places);
}

template <class T> void gather(const dsc_cuda_launch *at, const dsc_windows_args *a)
{
    const dsc_conv2d_shape *s = &a->shape;
    const int64_t pixels = dsc_max_i64(s->height * s->width, dsc_conv2d_out(s, 0) * dsc_conv2d_out(s, 1));
    const int64_t windows = a->rows * dsc_conv2d_taps(s), channels = dsc_max_i64(s->in, s->out);
    if (dsc_max_i64(s->batch * pixels, windows) * channels < INT32_MAX)
        gather_places<T, uint32_t>(at, a);
    else
        gather_places<T, uint64_t>(at, a);
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

/* Shapes in 32 bits: pictures of at most 2^31 elements. */
struct depthwise_shape {
    int height, width, in, down, across, out, each; /* each: outputs of an input channel */
    int kernel[2], stride[2], padding[2], dilation[2];

    __device__ __forceinline__ int input(int axis, int at, int tap) const
    {
        const int x = at * stride[axis] - padding[axis] + tap * dilation[axis];
        return x < (axis == 0 ? height : width) ? x : -1;
    }

    __device__ __forceinline__ int output(int axis, int at, int tap) const
    {
        const int x = at + padding[axis] - tap * dilation[axis];
        if (x < 0 || x % stride[axis] != 0)
            return -1;
        return x / stride[axis] < (axis == 0 ? down : across) ? x / stride[axis] : -1;
    }
};

depthwise_shape depthwise_of(const dsc_conv2d_shape *s)
{
    depthwise_shape to = {};
    to.height = static_cast<int>(s->height), to.width = static_cast<int>(s->width), to.in = static_cast<int>(s->in);
    to.down = static_cast<int>(dsc_conv2d_out(s, 0)), to.across = static_cast<int>(dsc_conv2d_out(s, 1));
    to.out = static_cast<int>(s->out), to.each = static_cast<int>(s->out / s->in);
    for (int i = 0; i < 2; i++) {
        to.kernel[i] = static_cast<int>(s->kernel[i]), to.stride[i] = static_cast<int>(s->stride[i]);
        to.padding[i] = static_cast<int>(s->padding[i]), to.dilation[i] = static_cast<int>(s->dilation[i]);
    }
    return to;
}

/* W channels of a pixel, of rows of `channels`: the pixel's place, and the first channel. */
template <int W> struct pixel_of {
    unsigned sample;
    int i, j, c;

    __device__ __forceinline__ pixel_of(unsigned n, int channels, int height, int width)
    {
        const unsigned vectors = static_cast<unsigned>(channels / W), pixel = n / vectors;
        const unsigned line = pixel / static_cast<unsigned>(width);
        c = static_cast<int>(n - pixel * vectors) * W;
        sample = line / static_cast<unsigned>(height);
        i = static_cast<int>(line - sample * static_cast<unsigned>(height));
        j = static_cast<int>(pixel - line * static_cast<unsigned>(width));
    }
};

__device__ __forceinline__ int64_t row_at(unsigned sample, int height, int width, int i, int j)
{
    return (static_cast<int64_t>(sample) * height + i) * width + j;
}

template <int W, class T>
__global__ void __launch_bounds__(THREADS)
    fwd_kernel(T *out, const T *in, const T *weight, const T *bias, const depthwise_shape s, unsigned count)
{
    const unsigned n = blockIdx.x * THREADS + threadIdx.x;
    if (n >= count)
        return;
    const pixel_of<W> at(n, s.out, s.down, s.across);
    const int c = W == 1 ? at.c / s.each : at.c;
    float sum[W] = {}, x[W], w[W];
    for (int u = 0; u < s.kernel[0]; u++) {
        const int i = s.input(0, at.i, u);
        for (int v = 0; v < s.kernel[1] && i >= 0; v++) {
            const int j = s.input(1, at.j, v);
            if (j < 0)
                continue;
            load<W>(x, in + row_at(at.sample, s.height, s.width, i, j) * s.in + c);
            load<W>(w, weight + static_cast<int64_t>(u * s.kernel[1] + v) * s.out + at.c);
#pragma unroll
            for (int k = 0; k < W; k++)
                sum[k] = fmaf(x[k], w[k], sum[k]);
        }
    }
    if (bias != nullptr) {
        load<W>(w, bias + at.c);
#pragma unroll
        for (int k = 0; k < W; k++)
            sum[k] += w[k];
    }
    store<W>(out + static_cast<int64_t>(n) * W, sum);
}

template <int W, class T>
__global__ void __launch_bounds__(THREADS)
    dx_kernel(T *out, const T *in, const T *weight, const T *add, const depthwise_shape s, unsigned count)
{
    const unsigned n = blockIdx.x * THREADS + threadIdx.x;
    if (n >= count)
        return;
    const pixel_of<W> at(n, s.in, s.height, s.width);
    const int each = W == 1 ? s.each : 1;
    float sum[W] = {}, y[W], w[W];
    for (int u = 0; u < s.kernel[0]; u++) {
        const int i = s.output(0, at.i, u);
        for (int v = 0; v < s.kernel[1] && i >= 0; v++) {
            const int j = s.output(1, at.j, v);
            if (j < 0)
                continue;
            const T *from = in + row_at(at.sample, s.down, s.across, i, j) * s.out;
            const T *taps = weight + static_cast<int64_t>(u * s.kernel[1] + v) * s.out;
            for (int k = 0; k < each; k++) {
                const int o = at.c * each + k;
                load<W>(y, from + o);
                load<W>(w, taps + o);
#pragma unroll
                for (int m = 0; m < W; m++)
                    sum[m] = fmaf(y[m], w[m], sum[m]);
            }
        }
    }
    if (add != nullptr) {
        load<W>(w, add + static_cast<int64_t>(n) * W);
#pragma unroll
        for (int k = 0; k < W; k++)
            sum[k] += w[k];
    }
    store<W>(out + static_cast<int64_t>(n) * W, sum);
}

/* A block has 32 * W outputs of a strip, and all taps of a square window or, with SIDE 0, one tap. Its warps share out
 * the outputs' places, and are added in order. Each d_out is read once for all taps. */
template <int W, int SIDE, class T>
__global__ void __launch_bounds__(THREADS)
    dw_kernel(float *parts, const T *in, const T *d_out, const depthwise_shape s, const int64_t lines, int strips)
{
    constexpr int TAPS = SIDE > 0 ? SIDE * SIDE : 1;
    __shared__ float shared[WARPS][32 * W];
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    const int blocks = (s.out + 32 * W - 1) / (32 * W), taps = s.kernel[0] * s.kernel[1];
    const int o = (static_cast<int>(blockIdx.x) % blocks * 32 + lane) * W, c = W == 1 ? o / s.each : o;
    const int rest = static_cast<int>(blockIdx.x) / blocks, only = SIDE > 0 ? 0 : rest % taps;
    const int strip = SIDE > 0 ? rest : rest / taps;
    const int64_t end = (strip + 1) * lines / strips * s.across;
    float sum[TAPS][W] = {}, x[W], y[W];
    for (int64_t row = strip * lines / strips * s.across + warp; row < end && o < s.out; row += WARPS) {
        const unsigned line = static_cast<unsigned>(row / s.across), sample = line / static_cast<unsigned>(s.down);
        const int i = static_cast<int>(line - sample * static_cast<unsigned>(s.down));
        const int j = static_cast<int>(row - static_cast<int64_t>(line) * s.across);
        load<W>(y, d_out + row * s.out + o);
#pragma unroll
        for (int t = 0; t < TAPS; t++) {
            const int u = SIDE > 0 ? t / (SIDE > 0 ? SIDE : 1) : only / s.kernel[1];
            const int v = SIDE > 0 ? t % (SIDE > 0 ? SIDE : 1) : only % s.kernel[1];
            const int from_i = s.input(0, i, u), from_j = s.input(1, j, v);
            if (from_i < 0 || from_j < 0)
                continue;
            load<W>(x, in + row_at(sample, s.height, s.width, from_i, from_j) * s.in + c);
#pragma unroll
            for (int k = 0; k < W; k++)
                sum[t][k] = fmaf(x[k], y[k], sum[t][k]);
        }
    }
#pragma unroll
    for (int t = 0; t < TAPS; t++) {
        __syncthreads();
#pragma unroll
        for (int k = 0; k < W; k++)
            shared[warp][lane * W + k] = sum[t][k];
        __syncthreads();
        const int column = static_cast<int>(threadIdx.x), to = static_cast<int>(blockIdx.x) % blocks * 32 * W + column;
        if (column >= 32 * W || to >= s.out)
            continue;
        float total = shared[0][column];
        for (int k = 1; k < WARPS; k++)
            total += shared[k][column];
        parts[(static_cast<int64_t>(strip) * taps + (SIDE > 0 ? t : only)) * s.out + to] = total;
    }
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

/* Launches with W channels a thread. */
template <int W, class T>
void depthwise_by(const dsc_cuda_launch *at, const dsc_depthwise_args *a, bool back, int64_t count)
{
    const depthwise_shape s = depthwise_of(&a->shape);
    const unsigned threads = static_cast<unsigned>(count / W), grid = grid_size(dsc_div_ceil(count / W, THREADS));
    const T *in = static_cast<const T *>(a->in), *weight = static_cast<const T *>(a->weight);
    const T *add = static_cast<const T *>(a->add);
    if (back)
        DSC_CUDA_LAUNCH((dx_kernel<W, T>), grid, THREADS, 0, at->stream, static_cast<T *>(a->out), in, weight, add, s,
                        threads);
    else
        DSC_CUDA_LAUNCH((fwd_kernel<W, T>), grid, THREADS, 0, at->stream, static_cast<T *>(a->out), in, weight, add, s,
                        threads);
}

template <class T> void depthwise(const dsc_cuda_launch *at, const dsc_depthwise_args *a, bool back)
{
    constexpr int W = 16 / static_cast<int>(sizeof(T));
    const dsc_conv2d_shape *s = &a->shape;
    const int64_t count = back ? s->batch * s->height * s->width * s->in
                               : s->batch * dsc_conv2d_out(s, 0) * dsc_conv2d_out(s, 1) * s->out;
    const bool aligned = is_aligned(a->out) && is_aligned(a->in) && is_aligned(a->weight) && is_aligned(a->add);
    if (count == 0)
        return;
    if (s->in == s->out && s->in % W == 0 && aligned)
        depthwise_by<W, T>(at, a, back, count);
    else
        depthwise_by<1, T>(at, a, back, count);
}

template <int W, int SIDE, class T> void depthwise_dw_by(const dsc_cuda_launch *at, const dsc_depthwise_dw_args *a)
{
    const dsc_conv2d_shape *s = &a->shape;
    const int64_t strips = dsc_depthwise_strips(s), taps = SIDE > 0 ? 1 : dsc_conv2d_taps(s);
    DSC_CUDA_LAUNCH((dw_kernel<W, SIDE, T>), grid_size(strips * taps * dsc_div_ceil(s->out, 32 * W)), THREADS, 0,
                    at->stream, a->scratch, static_cast<const T *>(a->in), static_cast<const T *>(a->d_out),
                    depthwise_of(s), s->batch * dsc_conv2d_out(s, 0), static_cast<int>(strips));
}

template <class T> void depthwise_dw(const dsc_cuda_launch *at, const dsc_depthwise_dw_args *a)
{
    const dsc_conv2d_shape *s = &a->shape;
    const int64_t strips = dsc_depthwise_strips(s), taps = dsc_conv2d_taps(s);
    const bool pairs = s->in == s->out && s->in % 2 == 0 && is_aligned(a->in) && is_aligned(a->d_out);
    const bool square = s->kernel[0] == s->kernel[1] && pairs;
    if (strips > 0 && square && s->kernel[0] == 3)
        depthwise_dw_by<2, 3, T>(at, a);
    else if (strips > 0 && square && s->kernel[0] == 5)
        depthwise_dw_by<2, 5, T>(at, a);
    else if (strips > 0)
        depthwise_dw_by<1, 0, T>(at, a);
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
