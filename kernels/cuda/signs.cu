/* signs.cu - numbers sent as their signs (signs.h), an operation a line as in signs_ref.c: a thread has a byte of signs
 * and its eight elements. Compiled as exact.cu is, whose first lines say why. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/elements.h"
#include "kernels/cuda/launchers.h"

namespace {

struct add_signs_op {
    float *error;
    const float *moment, *grad;
    float grad_scale, one_minus_beta1;
    template <int W> __device__ __forceinline__ void run(int64_t i) const
    {
        float e[W], m[W], g[W];
        load<W>(e, error + i);
        load<W>(m, moment + i);
        load<W>(g, grad + i);
#pragma unroll
        for (int j = 0; j < W; j++) {
            const float scaled = g[j] * grad_scale;
            e[j] = e[j] + fmaf(one_minus_beta1, scaled - m[j], m[j]);
        }
        store<W>(error + i, e);
    }
};

struct mask_signs_op {
    float *x;
    const float *mask;
    template <int W> __device__ __forceinline__ void run(int64_t i) const
    {
        float v[W], m[W];
        load<W>(v, x + i);
        load<W>(m, mask + i);
#pragma unroll
        for (int j = 0; j < W; j++)
            v[j] = m[j] == 0.0f ? 0.0f : v[j];
        store<W>(x + i, v);
    }
};

/* Weights after a local update from the shared weights. */
__device__ __forceinline__ float weight(float decays, float shared, float local_update, float variance, float eps)
{
    const float d = sqrtf(variance) + eps;
    return fmaf(decays, shared, local_update / d);
}

struct local_step_signs_op {
    dsc_signs_local_step_args a;
    template <int W> __device__ __forceinline__ void run(int64_t i) const
    {
        float local_update[W], moment[W], variance[W], grad[W], shared[W];
        load<W>(local_update, a.local_update + i);
        load<W>(moment, a.moment + i);
        load<W>(variance, a.variance + i);
        load<W>(grad, a.grad + i);
        load<W>(shared, a.shared + i);
#pragma unroll
        for (int j = 0; j < W; j++) {
            const float g = grad[j] * a.grad_scale;
            const float m = fmaf(a.one_minus_beta1, g - moment[j], moment[j]);
            moment[j] = variance[j] == 0.0f ? 0.0f : m;
            local_update[j] = fmaf(-a.rate, moment[j], a.decay * local_update[j]);
            shared[j] = weight(a.decays, shared[j], local_update[j], variance[j], a.eps);
        }
        store<W>(a.moment + i, moment);
        store<W>(a.local_update + i, local_update);
        store<W>(a.to + i, shared);
    }
};

struct synchronize_signs_op {
    dsc_signs_synchronize_args a;
    template <int W> __device__ __forceinline__ void run(int64_t i) const
    {
        float local_update[W], variance[W], shared[W];
        load<W>(local_update, a.local_update + i);
        load<W>(variance, a.variance + i);
        load<W>(shared, a.shared + i);
#pragma unroll
        for (int j = 0; j < W; j++) {
            shared[j] = weight(a.decays, shared[j], local_update[j], variance[j], a.eps);
            local_update[j] = local_update[j] * a.per_rate;
        }
        store<W>(a.to + i, shared);
        if (a.moment != NULL)
            store<W>(a.moment + i, local_update);
    }
};

/* The largest ratio of W elements. */
template <int W> __device__ __forceinline__ float regain(const dsc_signs_regain_args &a, int64_t i)
{
    float x[W], moment[W], fresh[W], variance[W], most = 0.0f;
    load<W>(x, a.x + i);
    load<W>(moment, a.moment + i);
    load<W>(fresh, a.fresh + i);
    load<W>(variance, a.variance + i);
#pragma unroll
    for (int j = 0; j < W; j++) {
        const float s = x[j] * a.scale;
        const float g = fmaf(a.unmix, s - moment[j], moment[j]);
        moment[j] = fmaf(a.one_minus_beta1, g - moment[j], moment[j]);
        fresh[j] = fmaf(a.one_minus_beta2 * g, g, a.beta2 * fresh[j]);
        const float frozen_root = sqrtf(variance[j]) + a.eps, fresh_root = sqrtf(fresh[j]) + a.eps;
        most = fmaxf(most, frozen_root / fresh_root); /* ignores a NaN ratio */
    }
    store<W>(a.moment + i, moment);
    store<W>(a.fresh + i, fresh);
    return most;
}

__global__ void regain_signs_kernel(const dsc_signs_regain_args a)
{
    __shared__ uint32_t most;
    const int64_t i = (static_cast<int64_t>(blockIdx.x) * DSC_CUDA_EACH_THREADS + threadIdx.x) * 4;
    float ratio = 0.0f;
    if (threadIdx.x == 0)
        most = 0;
    __syncthreads();
    if (i + 4 <= a.count)
        ratio = regain<4>(a, i);
    else
        for (int64_t k = i; k < a.count; k++)
            ratio = fmaxf(ratio, regain<1>(a, k));
    ratio = warp_max(ratio);
    if (threadIdx.x % 32 == 0)
        atomicMax(&most, __float_as_uint(ratio));
    __syncthreads();
    if (threadIdx.x == 0)
        atomicMax(a.most, most);
}

/* Elements of a byte that are not there are 0. */
__device__ __forceinline__ void load_eight(float (&x)[8], const float *p, int64_t count)
{
    if (count >= 8) {
        load<8>(x, p);
        return;
    }
#pragma unroll
    for (int j = 0; j < 8; j++)
        x[j] = j < count ? p[j] : 0.0f;
}

__device__ __forceinline__ void store_eight(float *p, const float (&x)[8], int64_t count)
{
    if (count >= 8) {
        store<8>(p, x);
        return;
    }
    for (int j = 0; j < count; j++)
        p[j] = x[j];
}

__device__ __forceinline__ float with_sign(float scale, uint32_t signs, int j)
{
    return (signs >> j & 1u) != 0 ? -scale : scale;
}

__device__ __forceinline__ void run_byte(const dsc_signs_pack_args &a, int64_t b)
{
    const int64_t i = b * 8;
    float x[8];
    uint32_t signs = 0;
    load_eight(x, a.x + i, a.count - i);
#pragma unroll
    for (int j = 0; j < 8; j++) {
        signs |= __float_as_uint(x[j]) >> 31 << j;
        x[j] = x[j] - with_sign(a.scale, signs, j);
    }
    a.to[b] = static_cast<uint8_t>(signs);
    store_eight(a.x + i, x, a.count - i);
}

__device__ __forceinline__ void run_byte(const dsc_signs_reduce_args &a, int64_t b)
{
    const int64_t i = b * 8;
    float acc[8], s[8];
    load_eight(acc, a.acc + i, a.count - i);
    const uint32_t first = a.from[b];
#pragma unroll
    for (int j = 0; j < 8; j++)
        s[j] = with_sign(a.scale[0], first, j);
    for (int64_t k = 1; k < a.piece_count; k++) {
        const uint32_t signs = a.from[k * a.from_stride + b];
        const float scale = a.scale[k];
#pragma unroll
        for (int j = 0; j < 8; j++)
            s[j] = s[j] + with_sign(scale, signs, j);
    }
#pragma unroll
    for (int j = 0; j < 8; j++)
        s[j] = s[j] + acc[j];
    store_eight(a.acc + i, s, a.count - i);
}

__device__ __forceinline__ void run_byte(const dsc_signs_unpack_args &a, int64_t b)
{
    const int64_t i = b * 8;
    float x[8];
    load_eight(x, a.mask + i, a.count - i);
    const uint32_t signs = a.from[b];
#pragma unroll
    for (int j = 0; j < 8; j++)
        x[j] = x[j] == 0.0f ? 0.0f : with_sign(a.scale, signs, j);
    store_eight(a.to + i, x, a.count - i);
}

/* A thread has a byte, if there are so many. */
template <class Args> __global__ void byte_kernel(const Args a)
{
    const int64_t b = static_cast<int64_t>(blockIdx.x) * DSC_CUDA_EACH_THREADS + threadIdx.x;
    if (b * 8 < a.count)
        run_byte(a, b);
}

template <class Args> dsc_status run_bytes(const dsc_cuda_launch *at, const Args &a, bool aligned)
{
    DSC_ASSERT(aligned && a.count >= 0);
    if (a.count > 0)
        DSC_CUDA_LAUNCH((byte_kernel<Args>), grid_size(dsc_div_ceil(dsc_signs_bytes(a.count), DSC_CUDA_EACH_THREADS)),
                        DSC_CUDA_EACH_THREADS, 0, at->stream, a);
    return DSC_OK;
}

} // namespace

dsc_status dsc_cuda_run_SIGNS_ADD(const dsc_cuda_launch *at, const void *args, dsc_error *)
{
    const dsc_signs_add_args *a = static_cast<const dsc_signs_add_args *>(args);
    const add_signs_op op = { a->error, a->moment, a->grad, a->grad_scale, a->one_minus_beta1 };
    each<4>(at, op, a->count, is_aligned(a->error) && is_aligned(a->moment) && is_aligned(a->grad));
    return DSC_OK;
}

dsc_status dsc_cuda_run_SIGNS_MASK(const dsc_cuda_launch *at, const void *args, dsc_error *)
{
    const dsc_signs_mask_args *a = static_cast<const dsc_signs_mask_args *>(args);
    const mask_signs_op op = { a->x, a->mask };
    each<4>(at, op, a->count, is_aligned(a->x) && is_aligned(a->mask));
    return DSC_OK;
}

dsc_status dsc_cuda_run_SIGNS_LOCAL_STEP(const dsc_cuda_launch *at, const void *args, dsc_error *)
{
    const local_step_signs_op op = { *static_cast<const dsc_signs_local_step_args *>(args) };
    each<4>(at, op, op.a.count,
            is_aligned(op.a.local_update) && is_aligned(op.a.moment) && is_aligned(op.a.to) &&
                is_aligned(op.a.variance) && is_aligned(op.a.grad) && is_aligned(op.a.shared));
    return DSC_OK;
}

dsc_status dsc_cuda_run_SIGNS_SYNCHRONIZE(const dsc_cuda_launch *at, const void *args, dsc_error *)
{
    const synchronize_signs_op op = { *static_cast<const dsc_signs_synchronize_args *>(args) };
    each<4>(at, op, op.a.count,
            is_aligned(op.a.to) && is_aligned(op.a.moment) && is_aligned(op.a.variance) &&
                is_aligned(op.a.local_update) && is_aligned(op.a.shared));
    return DSC_OK;
}

dsc_status dsc_cuda_run_SIGNS_REGAIN(const dsc_cuda_launch *at, const void *args, dsc_error *)
{
    const dsc_signs_regain_args *a = static_cast<const dsc_signs_regain_args *>(args);
    DSC_ASSERT(a->count >= 0 && is_aligned(a->moment) && is_aligned(a->fresh) && is_aligned(a->x) &&
               is_aligned(a->variance));
    if (a->count > 0)
        DSC_CUDA_LAUNCH(regain_signs_kernel, grid_size(dsc_div_ceil(a->count, DSC_CUDA_EACH_THREADS * 4)),
                        DSC_CUDA_EACH_THREADS, 0, at->stream, *a);
    return DSC_OK;
}

dsc_status dsc_cuda_run_SIGNS_PACK(const dsc_cuda_launch *at, const void *args, dsc_error *)
{
    const dsc_signs_pack_args *a = static_cast<const dsc_signs_pack_args *>(args);
    return run_bytes(at, *a, is_aligned(a->x));
}

dsc_status dsc_cuda_run_SIGNS_REDUCE(const dsc_cuda_launch *at, const void *args, dsc_error *)
{
    const dsc_signs_reduce_args *a = static_cast<const dsc_signs_reduce_args *>(args);
    DSC_ASSERT(a->piece_count >= 1);
    return run_bytes(at, *a, is_aligned(a->acc));
}

dsc_status dsc_cuda_run_SIGNS_UNPACK(const dsc_cuda_launch *at, const void *args, dsc_error *)
{
    const dsc_signs_unpack_args *a = static_cast<const dsc_signs_unpack_args *>(args);
    return run_bytes(at, *a, is_aligned(a->to) && is_aligned(a->mask));
}
