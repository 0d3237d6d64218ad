/* gelu_v16.h - GELU and other activations, forward and backward, on 16 lanes; compiled by gelu_avx2.c and gelu_avx512.c
 * after their v16 words. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/range.h"

V16_INLINE v16 gelu_value(dsc_activation kind, v16 x)
{
    switch (kind) {
    case DSC_RELU: return v16_relu(x);
    case DSC_GELU_ERF: return v16_gelu_erf(x);
    case DSC_RELU_SQUARED: return v16_mul(v16_relu(x), v16_relu(x));
    case DSC_SIGMOID: return v16_sigmoid(x);
    case DSC_SILU: return v16_mul(v16_max(v16_set(-128), x), v16_sigmoid(x));
    case DSC_HALF_SQUARE: return v16_mul(v16_mul(v16_set(0.5f), x), x);
    default: return v16_gelu(x);
    }
}

/* s (1 - s) of s, the sigmoid of x, without the cancellation of 1 - s. */
V16_INLINE v16 gelu_bell(v16 x, v16 s) { return v16_mul(s, v16_sigmoid(v16_sub(v16_set(0), x))); }

/* s + x s (1 - s). Beyond 128 the sigmoid is 0 or 1; the bounds keep it from Inf times 0. */
V16_INLINE v16 silu_slope(v16 x)
{
    const v16 s = v16_sigmoid(x), low = v16_max(v16_set(-128), x), zero = v16_set(0);
    const v16 y = v16_sub(zero, v16_max(v16_set(-128), v16_sub(zero, low)));
    return v16_fma(y, gelu_bell(x, s), s);
}

V16_INLINE v16 gelu_slope(dsc_activation kind, v16 x)
{
    switch (kind) {
    case DSC_RELU: return v16_relu_slope(x);
    case DSC_GELU_ERF: return v16_gelu_erf_slope(x);
    case DSC_RELU_SQUARED: return v16_add(v16_relu(x), v16_relu(x));
    case DSC_SIGMOID: return gelu_bell(x, v16_sigmoid(x));
    case DSC_SILU: return silu_slope(x);
    case DSC_HALF_SQUARE: return x;
    default: return v16_gelu_slope(x);
    }
}

V16_INLINE void gelu_fwd(const dsc_gelu_fwd_args *a, int64_t first, int64_t last, dsc_dtype dtype, dsc_activation kind)
{
    int64_t i = first;
    for (; i + 16 <= last; i += 16)
        v16_store(a->out, i, 16, dtype, gelu_value(kind, v16_load(a->in, i, 16, dtype)));
    if (i < last)
        v16_store(a->out, i, last - i, dtype, gelu_value(kind, v16_load(a->in, i, last - i, dtype)));
}

V16_INLINE v16 gelu_grad(const dsc_gelu_bwd_args *a, int64_t i, int64_t left, dsc_dtype dtype, dsc_activation kind)
{
    return v16_mul(v16_load(a->d_out, i, left, dtype), gelu_slope(kind, v16_load(a->in, i, left, dtype)));
}

V16_INLINE void gelu_bwd(const dsc_gelu_bwd_args *a, int64_t first, int64_t last, dsc_dtype dtype, dsc_activation kind)
{
    int64_t i = first;
    for (; i + 16 <= last; i += 16)
        v16_store(a->d_in, i, 16, dtype, gelu_grad(a, i, 16, dtype, kind));
    if (i < last)
        v16_store(a->d_in, i, last - i, dtype, gelu_grad(a, i, last - i, dtype, kind));
}

/* One loop for each kind and dtype: neither is looked at inside. */
#define GELU_LOOPS(op)                                                                                                \
    V16_INLINE void op##_kind(const dsc_##op##_args *a, int64_t first, int64_t last, dsc_activation kind)             \
    {                                                                                                                 \
        DSC_FOR_DTYPE(a->dtype, op(a, first, last, dtype, kind));                                                     \
    }                                                                                                                 \
    void V16_NAME(op)(const void *args, int64_t first, int64_t last)                                                  \
    {                                                                                                                 \
        const dsc_##op##_args *a = args;                                                                              \
        const int64_t start = first * DSC_GELU_BLOCK, end = dsc_min_i64(last * DSC_GELU_BLOCK, a->count);             \
        switch (a->kind) {                                                                                            \
        case DSC_GELU_TANH: op##_kind(a, start, end, DSC_GELU_TANH); break;                                           \
        case DSC_GELU_ERF: op##_kind(a, start, end, DSC_GELU_ERF); break;                                             \
        case DSC_RELU: op##_kind(a, start, end, DSC_RELU); break;                                                     \
        case DSC_RELU_SQUARED: op##_kind(a, start, end, DSC_RELU_SQUARED); break;                                     \
        case DSC_SIGMOID: op##_kind(a, start, end, DSC_SIGMOID); break;                                               \
        case DSC_SILU: op##_kind(a, start, end, DSC_SILU); break;                                                     \
        case DSC_HALF_SQUARE: op##_kind(a, start, end, DSC_HALF_SQUARE); break;                                       \
        case DSC_ACTIVATIONS: break;                                                                                  \
        }                                                                                                             \
    }
GELU_LOOPS(gelu_fwd)
GELU_LOOPS(gelu_bwd)
