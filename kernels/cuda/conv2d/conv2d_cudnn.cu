/* conv2d_cudnn.cu - see conv2d_cudnn.h. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/conv2d/conv2d_cudnn.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/launchers.h"

#include <inttypes.h>

namespace {

/* A work space lies in memory even where no plan needs a byte of it. */
constexpr int64_t WORKSPACE_LEAST = 256;

dsc_status open_plan(cudnn_library *c, const dsc_conv2d_args *shape, int64_t bytes_most, cudnn_plan *out,
                     dsc_error *err)
{
    dsc_cudnn_plan_info info = {};
    DSC_TRY(c->table->conv2d_plan_open(c->library, shape, &out->plan, &info, err));
    DSC_TRY(dsc_cuda_cudnn_name(c, &info, out, err));
    const int64_t bytes = dsc_max_i64(WORKSPACE_LEAST, dsc_align_up(info.workspace_bytes, 256));
    if (bytes > bytes_most)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "dsc.convolutions",
                        "its work space would be %" PRId64 " MiB for %" PRId64 " pictures, and %" PRId64 " MiB are the "
                        "most (\"dsc\": {\"convolutions\": \"cudnn\"} takes any)",
                        bytes >> 20, shape->shape.batch, bytes_most >> 20);
    c->needed_bytes = dsc_max_i64(c->needed_bytes, bytes);
    return DSC_OK;
}

/* ---- around cuDNN's launch ---- */

/* The gradient in PyTorch's order and in fp32; cuDNN's has the operands' dtype. */
template <class T> struct gradient_op {
    float *to;
    const T *from;
    dsc_conv2d_shape shape;
    template <int W> __device__ __forceinline__ void run(int64_t i) const
    {
#pragma unroll
        for (int k = 0; k < W; k++)
            to[i + k] = to_f32(from[dsc_conv2d_weight_from(&shape, DSC_CONV2D_GRADIENT, i + k)]);
    }
};

template <class T> struct sum_op {
    T *to;
    const T *from, *add;
    template <int W> __device__ __forceinline__ void run(int64_t i) const
    {
        float x[W], y[W];
        load<W>(x, from + i);
        load<W>(y, add + i);
#pragma unroll
        for (int k = 0; k < W; k++)
            x[k] += y[k];
        store<W>(to + i, x);
    }
};

template <class T> void put_gradient(const dsc_cuda_launch *at, const dsc_conv2d_args *a, const void *from)
{
    each<4>(at, gradient_op<T>{ static_cast<float *>(a->out), static_cast<const T *>(from), a->shape },
            dsc_conv2d_weights(&a->shape), true);
}

template <class T> void put_sum(const dsc_cuda_launch *at, const dsc_conv2d_args *a, const void *from)
{
    const dsc_conv2d_shape *s = &a->shape;
    each<16 / static_cast<int>(sizeof(T))>(
        at, sum_op<T>{ static_cast<T *>(a->out), static_cast<const T *>(from), static_cast<const T *>(a->add) },
        s->batch * s->height * s->width * s->in, true);
}

/* A weight in cuDNN's order is that of windows' columns; one of windows of one pixel is the same in each order. */
dsc_status order_weight(const dsc_cuda_launch *at, const dsc_conv2d_args *a, const void **out, dsc_error *err)
{
    const dsc_conv2d_weight_args args = { a->scratch, a->with, DSC_CONV2D_FORWARD, a->shape, a->dtype };
    *out = a->with;
    if (dsc_conv2d_taps(&a->shape) == 1)
        return DSC_OK;
    *out = a->scratch;
    return dsc_cuda_run_CONV2D_WEIGHT(at, &args, err);
}

} // namespace

bool dsc_cuda_conv2d_cudnn_aligned(const dsc_conv2d_args *a)
{
    for (const void *p : { static_cast<const void *>(a->out), a->in, a->with, a->add,
                           static_cast<const void *>(a->scratch) })
        if (!is_aligned(p))
            return false;
    return true;
}

bool dsc_cuda_conv2d_cudnn_plan(cudnn_library *c, int32_t arch, const dsc_conv2d_args *shape, int64_t bytes_most,
                                cudnn_plan *out)
{
    dsc_error why = DSC_ERROR_INIT;
    out->plan = NULL;
    if (!dsc_cuda_cudnn_look(c, arch))
        return false;
    if (open_plan(c, shape, bytes_most, out, &why) == DSC_OK)
        return true;
    dsc_cuda_cudnn_note(c, why.message);
    dsc_cuda_cudnn_plan_close(c, out);
    return false;
}

dsc_status dsc_cuda_conv2d_cudnn_run(const dsc_cuda_launch *at, const cudnn_library *c, void *plan,
                                     const dsc_conv2d_args *a, dsc_error *err)
{
    const bool gradient = a->pass == DSC_CONV2D_DW, sums = a->pass == DSC_CONV2D_DX && a->add != NULL;
    dsc_conv2d_args args = *a;
    DSC_ASSERT(c->workspace != NULL);
    DSC_ASSERT(dsc_cuda_conv2d_cudnn_aligned(a));
    if (!gradient)
        DSC_TRY(order_weight(at, a, &args.with, err));
    if (gradient)
        args.out = a->scratch;
    else if (sums)
        args.out = static_cast<char *>(a->scratch) + dsc_conv2d_sum_at(&a->shape);
    DSC_TRY(c->table->conv2d(plan, at->stream, c->workspace, &args, err));
    if (gradient)
        DSC_CUDA_FOR_DTYPE(a->dtype, T, put_gradient<T>(at, a, args.out));
    else if (sums)
        DSC_CUDA_FOR_DTYPE(a->dtype, T, put_sum<T>(at, a, args.out));
    return DSC_OK;
}
