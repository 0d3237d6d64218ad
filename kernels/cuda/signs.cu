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

__device__ __forceinline__ int64_t byte_index()
{
    return static_cast<int64_t>(blockIdx.x) * DSC_CUDA_EACH_THREADS + threadIdx.x;
}

__device__ __forceinline__ float with_sign(float scale, uint32_t signs, int j)
{
    return (signs >> j & 1u) != 0 ? -scale : scale;
}

__global__ void signs_pack_kernel(const dsc_signs_pack_args a)
{
    const int64_t b = byte_index(), i = b * 8;
    float x[8];
    uint32_t signs = 0;
    if (i >= a.count)
        return;
    load_eight(x, a.x + i, a.count - i);
#pragma unroll
    for (int j = 0; j < 8; j++) {
        signs |= __float_as_uint(x[j]) >> 31 << j;
        x[j] = x[j] - with_sign(a.scale, signs, j);
    }
    a.to[b] = static_cast<uint8_t>(signs);
    store_eight(a.x + i, x, a.count - i);
}

__global__ void signs_fold_kernel(const dsc_signs_fold_args a)
{
    const int64_t b = byte_index(), i = b * 8;
    float acc[8], s[8];
    if (i >= a.count)
        return;
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

__global__ void signs_unpack_kernel(const dsc_signs_unpack_args a)
{
    const int64_t b = byte_index(), i = b * 8;
    float x[8];
    if (i >= a.count)
        return;
    load_eight(x, a.mask + i, a.count - i);
    const uint32_t signs = a.from[b];
#pragma unroll
    for (int j = 0; j < 8; j++)
        x[j] = x[j] == 0.0f ? 0.0f : with_sign(a.scale, signs, j);
    store_eight(a.to + i, x, a.count - i);
}

/* Threads for the bytes; 0: there is nothing to do. */
unsigned grid_of(int64_t count)
{
    DSC_ASSERT(count >= 0);
    return count == 0 ? 0 : grid_size(dsc_div_ceil(dsc_signs_bytes(count), DSC_CUDA_EACH_THREADS));
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

dsc_status dsc_cuda_run_SIGNS_PACK(const dsc_cuda_launch *at, const void *args, dsc_error *)
{
    const dsc_signs_pack_args *a = static_cast<const dsc_signs_pack_args *>(args);
    DSC_ASSERT(is_aligned(a->x));
    if (grid_of(a->count) > 0)
        DSC_CUDA_LAUNCH((signs_pack_kernel), grid_of(a->count), DSC_CUDA_EACH_THREADS, 0, at->stream, *a);
    return DSC_OK;
}

dsc_status dsc_cuda_run_SIGNS_FOLD(const dsc_cuda_launch *at, const void *args, dsc_error *)
{
    const dsc_signs_fold_args *a = static_cast<const dsc_signs_fold_args *>(args);
    DSC_ASSERT(a->piece_count >= 1);
    DSC_ASSERT(is_aligned(a->acc));
    if (grid_of(a->count) > 0)
        DSC_CUDA_LAUNCH((signs_fold_kernel), grid_of(a->count), DSC_CUDA_EACH_THREADS, 0, at->stream, *a);
    return DSC_OK;
}

dsc_status dsc_cuda_run_SIGNS_UNPACK(const dsc_cuda_launch *at, const void *args, dsc_error *)
{
    const dsc_signs_unpack_args *a = static_cast<const dsc_signs_unpack_args *>(args);
    DSC_ASSERT(is_aligned(a->to));
    DSC_ASSERT(is_aligned(a->mask));
    if (grid_of(a->count) > 0)
        DSC_CUDA_LAUNCH((signs_unpack_kernel), grid_of(a->count), DSC_CUDA_EACH_THREADS, 0, at->stream, *a);
    return DSC_OK;
}
