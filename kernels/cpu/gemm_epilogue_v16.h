/* gemm_epilogue_v16.h - activations of a tile in cache, and products with their slopes, on 16 lanes. They round where a
 * product and an activation of its own do (gelu_v16.h), and so have the same bits. Included by gemm_epilogue_*.c after
 * the v16 words. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CPU_GEMM_EPILOGUE_V16_H
#define DSC_KERNELS_CPU_GEMM_EPILOGUE_V16_H

#include "kernels/cpu/activation_v16.h"
#include "kernels/cpu/gemm_internal.h"

/* `dtype`, `bias_dtype` and `kind` are constants at every call. */
V16_INLINE void activation_part(const dsc_epilogue_tile *t, int64_t r, int64_t c, int64_t left, dsc_dtype dtype,
                                dsc_dtype bias_dtype, dsc_activation kind)
{
    const int64_t at = r * t->ldc + c;
    v16 x = v16_load(t->x, r * t->ldx + c, left, DSC_F32);
    if (t->kind == DSC_EPILOGUE_BIAS_ACTIVATION && t->bias != NULL)
        x = v16_add(x, v16_load(t->bias, c, left, bias_dtype));
    x = v16_rounded(x, dtype);
    if (t->aux != NULL)
        v16_store(t->aux, at, left, dtype, x);
    v16_store(t->c, at, left, dtype, activation_value(kind, x));
}

V16_INLINE void activation_rows(const dsc_epilogue_tile *t, dsc_dtype dtype, dsc_dtype bias_dtype, dsc_activation kind)
{
    for (int64_t r = 0; r < t->rows; r++) {
        int64_t c = 0;
        for (; c + 16 <= t->cols; c += 16)
            activation_part(t, r, c, 16, dtype, bias_dtype, kind);
        if (c < t->cols)
            activation_part(t, r, c, t->cols - c, dtype, bias_dtype, kind);
    }
}

V16_INLINE void slope_part(const dsc_epilogue_tile *t, int64_t r, int64_t c, int64_t left, dsc_dtype dtype,
                           dsc_activation kind)
{
    const int64_t at = r * t->ldc + c;
    const v16 x = v16_rounded(v16_load(t->x, r * t->ldx + c, left, DSC_F32), dtype);
    v16_store(t->c, at, left, dtype, v16_mul(x, activation_slope(kind, v16_load(t->aux, at, left, dtype))));
}

V16_INLINE void slope_rows(const dsc_epilogue_tile *t, dsc_dtype dtype, dsc_activation kind)
{
    for (int64_t r = 0; r < t->rows; r++) {
        int64_t c = 0;
        for (; c + 16 <= t->cols; c += 16)
            slope_part(t, r, c, 16, dtype, kind);
        if (c < t->cols)
            slope_part(t, r, c, t->cols - c, dtype, kind);
    }
}

/* The dtype of a bias is that of C, or one of both is fp32. */
static void activation_by_kind(const dsc_epilogue_tile *t)
{
#define RUN(kind)                                                                                                      \
    if (t->c_dtype == DSC_F32)                                                                                         \
        DSC_FOR_DTYPE(t->bias_dtype, activation_rows(t, DSC_F32, dtype, kind));                                        \
    else if (t->bias_dtype == DSC_F32)                                                                                 \
        DSC_FOR_DTYPE(t->c_dtype, activation_rows(t, dtype, DSC_F32, kind));                                           \
    else                                                                                                               \
        DSC_FOR_DTYPE(t->c_dtype, activation_rows(t, dtype, dtype, kind))
    FOR_ACTIVATION(t->activation, RUN);
#undef RUN
}

static void slope_by_kind(const dsc_epilogue_tile *t)
{
#define RUN(kind) DSC_FOR_DTYPE(t->c_dtype, slope_rows(t, dtype, kind))
    FOR_ACTIVATION(t->activation, RUN);
#undef RUN
}

#endif
