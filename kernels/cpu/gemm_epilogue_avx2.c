/* gemm_epilogue_avx2.c - epilogues of a tile in cache, panels to fp32, column sums: 8 lanes.
 * A tail of fewer than 8 elements goes through a small buffer. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/gemm_internal.h"

#include <string.h>

#include "kernels/cpu/v16_avx2.h"

#define INLINE static inline __attribute__((always_inline))

INLINE __m256 load(const void *p, dsc_dtype dtype, int64_t i, int64_t lanes)
{
    const size_t each = dsc_dtype_bytes(dtype);
    const char *from = (const char *)p + i * (int64_t)each;
    _Alignas(32) char tail[32] = { 0 };
    if (lanes < 8)
        from = memcpy(tail, from, (size_t)lanes * each);
    return dtype == DSC_F32 ? _mm256_loadu_ps((const float *)(const void *)from)
                            : dsc_load_half_avx2((const uint16_t *)(const void *)from, dtype);
}

INLINE void store(void *p, dsc_dtype dtype, int64_t i, int64_t lanes, __m256 x)
{
    const size_t each = dsc_dtype_bytes(dtype);
    char *to = (char *)p + i * (int64_t)each;
    _Alignas(32) char tail[32];
    char *at = lanes >= 8 ? to : tail;
    if (dtype == DSC_F32)
        _mm256_storeu_ps((float *)(void *)at, x);
    else
        dsc_state_store_half_avx2((uint16_t *)(void *)at, x, dtype);
    if (lanes < 8)
        memcpy(to, tail, (size_t)lanes * each);
}

/* `kind`, `dtype` and `bias_dtype` are constants at every call, so each call is its own loop. */
INLINE void rows(const dsc_epilogue_tile *t, dsc_epilogue kind, dsc_dtype dtype, dsc_dtype bias_dtype)
{
    for (int64_t r = 0; r < t->rows; r++)
        for (int64_t c = 0; c < t->cols; c += 8) {
            const int64_t lanes = t->cols - c, at = r * t->ldc + c;
            __m256 x = load(t->x, DSC_F32, r * t->ldx + c, lanes);
            if (dsc_epilogue_has_bias(kind) && t->bias != NULL)
                x = _mm256_add_ps(x, load(t->bias, bias_dtype, c, lanes));
            if (kind == DSC_EPILOGUE_BIAS_GELU) {
                if (dtype != DSC_F32)
                    x = dsc_half_trip_avx2(x, dtype);
                if (t->aux != NULL)
                    store(t->aux, dtype, at, lanes, x);
                x = dsc_gelu_avx2(x);
            } else if (dsc_epilogue_adds(kind)) {
                x = _mm256_add_ps(x, load(t->aux, dtype, at, lanes));
            } else if (kind == DSC_EPILOGUE_DGELU) {
                x = _mm256_mul_ps(x, dsc_gelu_slope_avx2(load(t->aux, dtype, at, lanes)));
            }
            store(t->c, dtype, at, lanes, x);
        }
}

#include "kernels/cpu/gemm_epilogue_v16.h"

#include "kernels/cpu/gemm_epilogue_kinds.h"

void dsc_epilogue_avx2(const dsc_epilogue_tile *t) { by_dtypes(t); }

INLINE void panel(float *to, const dsc_panel *p, dsc_dtype dtype)
{
    for (int64_t r = 0; r < p->rows; r++)
        for (int64_t c = 0; c < p->cols; c += 8)
            store(to, DSC_F32, r * p->cols + c, p->cols - c, load(p->from, dtype, r * p->ld + c, p->cols - c));
}

void dsc_panel_avx2(float *to, const dsc_panel *p)
{
    p->dtype == DSC_F16 ? panel(to, p, DSC_F16) : panel(to, p, DSC_BF16);
}

INLINE void colsum(const dsc_colsum_args *a, int64_t first, int64_t last, dsc_dtype dtype)
{
    for (int64_t c = first; c < last; c += 8) {
        const int64_t lanes = last - c;
        __m256 total = _mm256_setzero_ps();
        for (int64_t block = 0; block < a->rows; block += 64) {
            __m256 sum = _mm256_setzero_ps();
            for (int64_t r = block; r < dsc_min_i64(block + 64, a->rows); r++)
                sum = _mm256_add_ps(sum, load(a->x, dtype, r * a->ld + c, lanes));
            total = _mm256_add_ps(total, sum);
        }
        if (a->accumulate)
            total = _mm256_add_ps(load(a->out, DSC_F32, c, lanes), total);
        store(a->out, DSC_F32, c, lanes, total);
    }
}

void dsc_colsum_avx2(const dsc_colsum_args *a, int64_t first, int64_t last)
{
    DSC_FOR_DTYPE(a->x_dtype, colsum(a, first, last, dtype));
}
