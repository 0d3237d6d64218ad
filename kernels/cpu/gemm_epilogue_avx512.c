/* gemm_epilogue_avx512.c - epilogues of a tile in cache, panels to fp32, column sums: 16 lanes.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/gemm_internal.h"

#include "kernels/cpu/v16_avx512.h"

#define INLINE static inline __attribute__((always_inline))

INLINE __m512 load(const void *p, dsc_dtype dtype, int64_t i, __mmask16 lanes)
{
    return dtype == DSC_F32 ? _mm512_maskz_loadu_ps(lanes, (const float *)p + i)
                            : dsc_load_half_avx512((const uint16_t *)p + i, lanes, dtype);
}

INLINE void store(void *p, dsc_dtype dtype, int64_t i, __mmask16 lanes, __m512 x)
{
    if (dtype == DSC_F32)
        _mm512_mask_storeu_ps((float *)p + i, lanes, x);
    else
        dsc_state_store_half_avx512((uint16_t *)p + i, lanes, x, dtype);
}

/* Stores x unless p is NULL, and returns it as stored: rounded once. */
INLINE __m512 store_rounded(void *p, dsc_dtype dtype, int64_t i, __mmask16 lanes, __m512 x)
{
    if (dtype == DSC_F32) {
        if (p != NULL)
            store(p, DSC_F32, i, lanes, x);
        return x;
    }
    if (dtype == DSC_F16) {
        const __m256i half = dsc_half_from_f32_avx512(x, DSC_F16);
        if (p != NULL)
            _mm256_mask_storeu_epi16((uint16_t *)p + i, lanes, half);
        return dsc_f32_from_half_avx512(half, DSC_F16);
    }
    const __m512i high = _mm512_and_si512(dsc_bf16_round_avx512(x), _mm512_set1_epi32((int)0xffff0000u));
    if (p != NULL)
        _mm256_mask_storeu_epi16((uint16_t *)p + i, lanes, _mm512_cvtepi32_epi16(_mm512_srli_epi32(high, 16)));
    return _mm512_castsi512_ps(high);
}

/* `kind`, `dtype` and `bias_dtype` are constants at every call, so each call is its own loop. */
INLINE void rows(const dsc_epilogue_tile *t, dsc_epilogue kind, dsc_dtype dtype, dsc_dtype bias_dtype)
{
    for (int64_t r = 0; r < t->rows; r++)
        for (int64_t c = 0; c < t->cols; c += 16) {
            const __mmask16 lanes = dsc_mask_avx512(t->cols - c);
            const int64_t at = r * t->ldc + c;
            __m512 x = _mm512_maskz_loadu_ps(lanes, t->x + r * t->ldx + c);
            if (dsc_epilogue_has_bias(kind) && t->bias != NULL)
                x = _mm512_add_ps(x, load(t->bias, bias_dtype, c, lanes));
            if (kind == DSC_EPILOGUE_BIAS_GELU) {
                x = store_rounded(t->aux, dtype, at, lanes, x);
                x = dsc_gelu_avx512(x);
            } else if (dsc_epilogue_adds(kind)) {
                x = _mm512_add_ps(x, load(t->aux, dtype, at, lanes));
            } else if (kind == DSC_EPILOGUE_DGELU) {
                x = _mm512_mul_ps(x, dsc_gelu_slope_avx512(load(t->aux, dtype, at, lanes)));
            }
            store(t->c, dtype, at, lanes, x);
        }
}

#include "kernels/cpu/gemm_epilogue_v16.h"

#include "kernels/cpu/gemm_epilogue_kinds.h"

void dsc_epilogue_avx512(const dsc_epilogue_tile *t) { by_dtypes(t); }

INLINE void panel(float *to, const dsc_panel *p, dsc_dtype dtype)
{
    for (int64_t r = 0; r < p->rows; r++)
        for (int64_t c = 0; c < p->cols; c += 16) {
            const __mmask16 lanes = dsc_mask_avx512(p->cols - c);
            store(to, DSC_F32, r * p->cols + c, lanes, load(p->from, dtype, r * p->ld + c, lanes));
        }
}

void dsc_panel_avx512(float *to, const dsc_panel *p)
{
    p->dtype == DSC_F16 ? panel(to, p, DSC_F16) : panel(to, p, DSC_BF16);
}

INLINE void colsum(const dsc_colsum_args *a, int64_t first, int64_t last, dsc_dtype dtype)
{
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
                    sum[v] = _mm512_add_ps(sum[v], load(a->x, dtype, r * a->ld + c + 16 * v, lanes[v]));
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

void dsc_colsum_avx512(const dsc_colsum_args *a, int64_t first, int64_t last)
{
    DSC_FOR_DTYPE(a->x_dtype, colsum(a, first, last, dtype));
}
