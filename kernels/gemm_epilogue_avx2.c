/* gemm_epilogue_avx2.c - what is done to a tile in cache, panels to fp32, column sums: 8 lanes.
 * A tail of fewer than 8 elements goes through a small buffer. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/gemm_internal.h"

#include <string.h>

#include "kernels/vmath_avx2.h"

#define INLINE static inline __attribute__((always_inline))

INLINE __m256 load(const void *p, bool bf16, int64_t i, int64_t lanes)
{
    const char *from = (const char *)p + i * (bf16 ? 2 : 4);
    if (lanes >= 8)
        return bf16 ? dsc_load_bf16_avx2((const uint16_t *)(const void *)from)
                    : _mm256_loadu_ps((const float *)(const void *)from);
    _Alignas(32) char tail[32] = { 0 };
    memcpy(tail, from, (size_t)lanes * (bf16 ? 2 : 4));
    return bf16 ? dsc_load_bf16_avx2((const uint16_t *)(const void *)tail)
                : _mm256_load_ps((const float *)(const void *)tail);
}

INLINE void store(void *p, bool bf16, int64_t i, int64_t lanes, __m256 x)
{
    char *to = (char *)p + i * (bf16 ? 2 : 4);
    _Alignas(32) char tail[32];
    char *at = lanes >= 8 ? to : tail;
    if (bf16)
        dsc_store_bf16_avx2((uint16_t *)(void *)at, x);
    else
        _mm256_storeu_ps((float *)(void *)at, x);
    if (lanes < 8)
        memcpy(to, tail, (size_t)lanes * (bf16 ? 2 : 4));
}

/* `kind`, `bf16` and `bias_bf16` are constants at every call, so each call is its own loop. */
INLINE void rows(const dsc_epilogue_tile *t, dsc_epilogue kind, bool bf16, bool bias_bf16)
{
    for (int64_t r = 0; r < t->rows; r++)
        for (int64_t c = 0; c < t->cols; c += 8) {
            const int64_t lanes = t->cols - c, at = r * t->ldc + c;
            __m256 x = load(t->x, false, r * t->ldx + c, lanes);
            if (dsc_epilogue_has_bias(kind) && t->bias != NULL)
                x = _mm256_add_ps(x, load(t->bias, bias_bf16, c, lanes));
            if (kind == DSC_EPILOGUE_BIAS_GELU) {
                if (bf16)
                    x = dsc_bf16_trip_avx2(x);
                if (t->aux != NULL)
                    store(t->aux, bf16, at, lanes, x);
                x = dsc_gelu_avx2(x);
            } else if (dsc_epilogue_adds(kind)) {
                x = _mm256_add_ps(x, load(t->aux, bf16, at, lanes));
            } else if (kind == DSC_EPILOGUE_DGELU) {
                x = _mm256_mul_ps(x, dsc_gelu_slope_avx2(load(t->aux, bf16, at, lanes)));
            }
            store(t->c, bf16, at, lanes, x);
        }
}

#include "kernels/gemm_epilogue_kinds.h"

void dsc_epilogue_avx2(const dsc_epilogue_tile *t) { by_dtypes(t); }

void dsc_panel_avx2(float *to, const uint16_t *from, int64_t row_count, int64_t cols, int64_t ld)
{
    for (int64_t r = 0; r < row_count; r++)
        for (int64_t c = 0; c < cols; c += 8)
            store(to, false, r * cols + c, cols - c, load(from, true, r * ld + c, cols - c));
}

void dsc_colsum_avx2(const dsc_colsum_args *a, int64_t first, int64_t last)
{
    const bool bf16 = a->x_dtype == DSC_BF16;
    for (int64_t c = first; c < last; c += 8) {
        const int64_t lanes = last - c;
        __m256 total = _mm256_setzero_ps();
        for (int64_t block = 0; block < a->rows; block += 64) {
            __m256 sum = _mm256_setzero_ps();
            for (int64_t r = block; r < dsc_min_i64(block + 64, a->rows); r++)
                sum = _mm256_add_ps(sum, load(a->x, bf16, r * a->ld + c, lanes));
            total = _mm256_add_ps(total, sum);
        }
        if (a->accumulate)
            total = _mm256_add_ps(load(a->out, false, c, lanes), total);
        store(a->out, false, c, lanes, total);
    }
}
