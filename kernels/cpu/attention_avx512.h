/* attention_avx512.h - the vector primitives of attention_tile.h on 16 lanes, for ATT_PAIR 1 and 2.
 * Private to kernels/attention_avx512*.c. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CPU_ATTENTION_AVX512_H
#define DSC_KERNELS_CPU_ATTENTION_AVX512_H

#include <immintrin.h>

#include "kernels/cpu/attention_part.h"
#include "kernels/cpu/half_avx512.h"
#include "kernels/cpu/transpose_avx512.h"

#define ATT_LANES 16
#define ATT_ROWS 4
#define ATT_VECS 4

typedef __m512 att_vec;
typedef __m512i att_word;

static inline att_vec att_load(const float *p) { return _mm512_loadu_ps(p); }
static inline void att_store(float *p, att_vec x) { _mm512_storeu_ps(p, x); }
static inline att_vec att_set1(float x) { return _mm512_set1_ps(x); }
static inline att_vec att_add(att_vec a, att_vec b) { return _mm512_add_ps(a, b); }
static inline att_vec att_sub(att_vec a, att_vec b) { return _mm512_sub_ps(a, b); }
static inline att_vec att_mul(att_vec a, att_vec b) { return _mm512_mul_ps(a, b); }
static inline att_vec att_fma(att_vec a, att_vec b, att_vec c) { return _mm512_fmadd_ps(a, b, c); }
static inline att_vec att_div(att_vec a, att_vec b) { return _mm512_div_ps(a, b); }
static inline att_vec att_max(att_vec a, att_vec b) { return _mm512_max_ps(a, b); }
static inline att_vec att_as_vec(att_word x) { return _mm512_castsi512_ps(x); }
static inline att_word att_as_word(att_vec x) { return _mm512_castps_si512(x); }

static inline att_word att_word_load(const float *p) { return _mm512_loadu_si512(p); }
static inline void att_word_store(float *p, att_word x) { _mm512_storeu_si512(p, x); }
static inline att_word att_word_zero(void) { return _mm512_setzero_si512(); }
static inline att_word att_word_set1(const float *p) { return _mm512_castps_si512(_mm512_set1_ps(*p)); }

/* 2^x: x = n + f with |f| <= 1/2; 2^f by its minimax polynomial. Its relative error is 8e-8 of degree 6 in fp32, and
 * 3e-6 of degree 4, far below the rounding to bf16. Below -200 it is 0, NaN stays. */
static inline att_vec att_exp2(att_vec x)
{
    x = _mm512_max_ps(_mm512_set1_ps(-200.0f), x); /* the second operand is what a NaN in either gives */
    const att_vec n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const att_vec f = _mm512_sub_ps(x, n);
#if ATT_PAIR == 1
    att_vec p = _mm512_set1_ps(0x1.41d332p-13f);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.5f456ap-10f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.3b2dbcp-7f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.c6aed4p-5f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.ebfbdap-3f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.62e430p-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
#else
    att_vec p = _mm512_set1_ps(0x1.3997d4p-7f);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.ca1440p-5f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.ec06dap-3f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.62e0dcp-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.ffffe8p-1f));
#endif
    return _mm512_scalef_ps(p, n);
}

static inline att_vec att_from_lane(att_vec x, int64_t n, att_vec low)
{
    return _mm512_mask_mov_ps(low, (__mmask16)(0xffffu << n), x);
}

static inline __attribute__((always_inline)) void att_transpose(att_word r[16]) { dsc_transpose_avx512(r); }

/* Lanes first..first+15 of a row that ends at `count`, as 16 halves. */
static inline __mmask16 att_lanes(int64_t first, int64_t count)
{
    return dsc_mask_avx512(dsc_max_i64(count - first, 0));
}

static inline __m256i att_load_half(const char *row, int64_t first, int64_t count)
{
    if (count - first >= 16)
        return _mm256_loadu_si256((const __m256i *)(const void *)(row + 2 * first));
    return _mm256_maskz_loadu_epi16(att_lanes(first, count), row + 2 * first);
}

#if ATT_PAIR == 1

static inline att_vec att_dot(att_vec sum, att_word a, att_word b)
{
    return _mm512_fmadd_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), sum);
}

static inline att_word att_words(const char *row, dsc_dtype dtype, int64_t first, int64_t count)
{
    if (dtype != DSC_F32)
        return _mm512_castps_si512(dsc_f32_from_half_avx512(att_load_half(row, first, count), dtype));
    return _mm512_maskz_loadu_epi32(att_lanes(first, count), row + 4 * first);
}

static inline void att_p_row(float *to, att_vec x) { _mm512_storeu_ps(to, x); }

static inline __m256i att_half(att_vec x, dsc_dtype dtype) { return dsc_half_from_f32_avx512(x, dtype); }

#else

static inline att_vec att_dot(att_vec sum, att_word a, att_word b)
{
    return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
}

static inline att_word att_words(const char *row, dsc_dtype dtype, int64_t first, int64_t count)
{
    (void)dtype;
    const int64_t left = count - 2 * first;
    if (left >= 32)
        return _mm512_loadu_si512(row + 4 * first);
    if (left <= 0)
        return _mm512_setzero_si512();
    return _mm512_maskz_loadu_epi16((__mmask32)((1u << left) - 1u), row + 4 * first);
}

static inline att_word att_pairs(const char *row0, const char *row1, int64_t first, int64_t count)
{
    const __m256i x0 = row0 == NULL ? _mm256_setzero_si256() : att_load_half(row0, first, count);
    const __m256i x1 = row1 == NULL ? _mm256_setzero_si256() : att_load_half(row1, first, count);
    return _mm512_or_si512(_mm512_cvtepu16_epi32(x0), _mm512_slli_epi32(_mm512_cvtepu16_epi32(x1), 16));
}

static inline __m256i att_half(att_vec x, dsc_dtype dtype)
{
    (void)dtype;
    return (__m256i)_mm512_cvtneps_pbh(x);
}

static inline void att_p_row(float *to, att_vec x)
{
    _mm256_storeu_si256((__m256i *)(void *)to, att_half(x, DSC_BF16));
}

static inline att_word att_p_pair(att_vec x0, att_vec x1)
{
    const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(x1, x0); /* x0 in the low half */
    const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                                           21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_permutexvar_epi16(order, both);
}

#endif

/* Only tails are stored under a mask: on Zen 4 that took 11 % of the time at T = 64, where this takes 6. */
static inline void att_put(char *row, dsc_dtype dtype, int64_t first, int64_t count, att_vec x)
{
    const bool whole = count - first >= 16;
    if (dtype != DSC_F32) {
        const __m256i h = att_half(x, dtype);
        if (whole)
            _mm256_storeu_si256((__m256i *)(void *)(row + 2 * first), h);
        else
            _mm256_mask_storeu_epi16(row + 2 * first, att_lanes(first, count), h);
    } else if (whole) {
        _mm512_storeu_ps(row + 4 * first, x);
    } else {
        _mm512_mask_storeu_ps(row + 4 * first, att_lanes(first, count), x);
    }
}

#endif
