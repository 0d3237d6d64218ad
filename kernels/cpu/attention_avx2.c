/* attention_avx2.c - attention on 8 lanes of fp32; 16-bit tensors are widened when they are packed.
 * SPDX-License-Identifier: Apache-2.0 */
#include <immintrin.h>
#include <string.h>

#include "kernels/cpu/attention_part.h"
#include "kernels/cpu/half_avx2.h"

#define ATT_PAIR 1
#define ATT_LANES 8
#define ATT_ROWS 4
#define ATT_VECS 3

typedef __m256 att_vec;
typedef __m256i att_word;

static inline att_vec att_load(const float *p) { return _mm256_loadu_ps(p); }
static inline void att_store(float *p, att_vec x) { _mm256_storeu_ps(p, x); }
static inline att_vec att_set1(float x) { return _mm256_set1_ps(x); }
static inline att_vec att_add(att_vec a, att_vec b) { return _mm256_add_ps(a, b); }
static inline att_vec att_sub(att_vec a, att_vec b) { return _mm256_sub_ps(a, b); }
static inline att_vec att_mul(att_vec a, att_vec b) { return _mm256_mul_ps(a, b); }
static inline att_vec att_fma(att_vec a, att_vec b, att_vec c) { return _mm256_fmadd_ps(a, b, c); }
static inline att_vec att_div(att_vec a, att_vec b) { return _mm256_div_ps(a, b); }
static inline att_vec att_max(att_vec a, att_vec b) { return _mm256_max_ps(a, b); }
static inline att_vec att_as_vec(att_word x) { return _mm256_castsi256_ps(x); }
static inline att_word att_as_word(att_vec x) { return _mm256_castps_si256(x); }

static inline att_word att_word_load(const float *p) { return _mm256_castps_si256(_mm256_loadu_ps(p)); }
static inline void att_word_store(float *p, att_word x) { _mm256_storeu_ps(p, _mm256_castsi256_ps(x)); }
static inline att_word att_word_zero(void) { return _mm256_setzero_si256(); }
static inline att_word att_word_set1(const float *p) { return _mm256_castps_si256(_mm256_broadcast_ss(p)); }
static inline void att_p_row(float *to, att_vec x) { _mm256_storeu_ps(to, x); }

static inline att_vec att_dot(att_vec sum, att_word a, att_word b)
{
    return _mm256_fmadd_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), sum);
}

/* 2^x: x = n + f with |f| <= 1/2; 2^f by its minimax polynomial, relative error 8e-8. Below -127 it is 0, NaN stays. */
static inline att_vec att_exp2(att_vec x)
{
    x = _mm256_max_ps(_mm256_set1_ps(-127.0f), x); /* the second operand is what a NaN in either gives */
    const att_vec n = _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const att_vec f = _mm256_sub_ps(x, n);
    att_vec p = _mm256_set1_ps(0x1.41d332p-13f);
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0x1.5f456ap-10f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0x1.3b2dbcp-7f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0x1.c6aed4p-5f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0x1.ebfbdap-3f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0x1.62e430p-1f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.0f));
    const __m256i exponent = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    return _mm256_mul_ps(p, _mm256_castsi256_ps(exponent));
}

static inline att_vec att_from_lane(att_vec x, int64_t n, att_vec low)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_blendv_ps(x, low, _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), lane)));
}

/* 8 x 8 words: neighbours, then pairs inside 128-bit parts, then the parts themselves. */
static inline __attribute__((always_inline)) void att_transpose(att_word r[8])
{
    att_word t[8];
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_epi32(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        r[i] = _mm256_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm256_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm256_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm256_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        t[i] = _mm256_permute2x128_si256(r[i], r[i + 4], 0x20);
        t[i + 4] = _mm256_permute2x128_si256(r[i], r[i + 4], 0x31);
    }
    memcpy(r, t, sizeof t);
}

static inline att_word att_words(const char *row, dsc_dtype dtype, int64_t first, int64_t count)
{
    char tail[32] = { 0 }; /* AVX2 has no masked load of 16-bit elements */
    const int64_t left = count - first, each = (int64_t)dsc_dtype_bytes(dtype);
    const char *from = row + each * first;
    if (left < 8) {
        if (left > 0)
            memcpy(tail, from, (size_t)(left * each));
        from = tail;
    }
    if (dtype != DSC_F32)
        return att_as_word(dsc_f32_from_half_avx2(_mm_loadu_si128((const __m128i *)(const void *)from), dtype));
    return _mm256_loadu_si256((const __m256i *)(const void *)from);
}

static inline void att_put(char *row, dsc_dtype dtype, int64_t first, int64_t count, att_vec x)
{
    char all[32];
    if (dtype != DSC_F32)
        _mm_storeu_si128((__m128i *)(void *)all, dsc_half_from_f32_avx2(x, dtype));
    else
        _mm256_storeu_ps((float *)(void *)all, x);
    const int64_t left = count - first, each = (int64_t)dsc_dtype_bytes(dtype);
    memcpy(row + each * first, all, (size_t)((left < 8 ? left : 8) * each));
}

#include "kernels/cpu/attention_tile.h"

const dsc_attention_ops dsc_attention_avx2 = { forward, backward };
