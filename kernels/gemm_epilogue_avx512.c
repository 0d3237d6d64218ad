/* gemm_epilogue_avx512.c - what is done to a tile in cache, panels to fp32, column sums: 16 lanes.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/gemm_internal.h"

#include "kernels/vmath_avx512.h"

#define INLINE static inline __attribute__((always_inline))

INLINE __m512 load(const void *p, bool bf16, int64_t i, __mmask16 lanes)
{
    return bf16 ? dsc_load_bf16_avx512((const uint16_t *)p + i, lanes)
                : _mm512_maskz_loadu_ps(lanes, (const float *)p + i);
}

INLINE void store(void *p, bool bf16, int64_t i, __mmask16 lanes, __m512 x)
{
    if (bf16)
        dsc_store_bf16_avx512((uint16_t *)p + i, lanes, x);
    else
        _mm512_mask_storeu_ps((float *)p + i, lanes, x);
}

/* Stores x unless p is NULL, and returns it as stored: rounded once. */
INLINE __m512 store_rounded(void *p, bool bf16, int64_t i, __mmask16 lanes, __m512 x)
{
    if (!bf16) {
        if (p != NULL)
            store(p, false, i, lanes, x);
        return x;
    }
    const __m512i high = _mm512_and_si512(dsc_bf16_round_avx512(x), _mm512_set1_epi32((int)0xffff0000u));
    if (p != NULL)
        _mm256_mask_storeu_epi16((uint16_t *)p + i, lanes, _mm512_cvtepi32_epi16(_mm512_srli_epi32(high, 16)));
    return _mm512_castsi512_ps(high);
}

/* `kind`, `bf16` and `bias_bf16` are constants at every call, so each call is its own loop. */
INLINE void rows(const dsc_epilogue_tile *t, dsc_epilogue kind, bool bf16, bool bias_bf16)
{
    for (int64_t r = 0; r < t->rows; r++)
        for (int64_t c = 0; c < t->cols; c += 16) {
            const __mmask16 lanes = dsc_mask_avx512(t->cols - c);
            const int64_t at = r * t->ldc + c;
            __m512 x = _mm512_maskz_loadu_ps(lanes, t->x + r * t->ldx + c);
            if (dsc_epilogue_has_bias(kind) && t->bias != NULL)
                x = _mm512_add_ps(x, load(t->bias, bias_bf16, c, lanes));
            if (kind == DSC_EPILOGUE_BIAS_GELU) {
                x = store_rounded(t->aux, bf16, at, lanes, x);
                x = dsc_gelu_avx512(x);
            } else if (dsc_epilogue_adds(kind)) {
                x = _mm512_add_ps(x, load(t->aux, bf16, at, lanes));
            } else if (kind == DSC_EPILOGUE_DGELU) {
                x = _mm512_mul_ps(x, dsc_gelu_slope_avx512(load(t->aux, bf16, at, lanes)));
            }
            store(t->c, bf16, at, lanes, x);
        }
}

#include "kernels/gemm_epilogue_kinds.h"

void dsc_epilogue_avx512(const dsc_epilogue_tile *t) { by_dtypes(t); }

void dsc_panel_avx512(float *to, const uint16_t *from, int64_t row_count, int64_t cols, int64_t ld)
{
    for (int64_t r = 0; r < row_count; r++)
        for (int64_t c = 0; c < cols; c += 16) {
            const __mmask16 lanes = dsc_mask_avx512(cols - c);
            _mm512_mask_storeu_ps(to + r * cols + c, lanes, dsc_load_bf16_avx512(from + r * ld + c, lanes));
        }
}

void dsc_colsum_avx512(const dsc_colsum_args *a, int64_t first, int64_t last)
{
    const bool bf16 = a->x_dtype == DSC_BF16;
    for (int64_t c = first; c < last; c += 64) {
        __mmask16 lanes[4];
        __m512 total[4];
        for (int v = 0; v < 4; v++) {
            lanes[v] = dsc_mask_avx512(dsc_max_i64(last - c - 16 * v, 0));
            total[v] = _mm512_setzero_ps();
        }
        for (int64_t block = 0; block < a->rows; block += 64) {
            __m512 sum[4] = { _mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps() };
            for (int64_t r = block; r < dsc_min_i64(block + 64, a->rows); r++)
                for (int v = 0; v < 4; v++)
                    sum[v] = _mm512_add_ps(sum[v], load(a->x, bf16, r * a->ld + c + 16 * v, lanes[v]));
            for (int v = 0; v < 4; v++)
                total[v] = _mm512_add_ps(total[v], sum[v]);
        }
        for (int v = 0; v < 4; v++) {
            if (a->accumulate)
                total[v] = _mm512_add_ps(_mm512_maskz_loadu_ps(lanes[v], a->out + c + 16 * v), total[v]);
            _mm512_mask_storeu_ps(a->out + c + 16 * v, lanes[v], total[v]);
        }
    }
}
