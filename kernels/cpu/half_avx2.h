/* half_avx2.h - exact fp32 <-> bf16 and fp16 on 8 lanes, the same bits as base/bf16.h and base/f16.h. Include only from
 * *_avx2.c.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CPU_HALF_AVX2_H
#define DSC_KERNELS_CPU_HALF_AVX2_H

#include <immintrin.h>
#include <stdint.h>

#include <dsc/types.h>

/* The rounded value in the upper half of each lane; the lower half is what carried nothing up: drop it. */
static inline __m256i dsc_bf16_round_avx2(__m256 x)
{
    const __m256i u = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd);
    const __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x00400000));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(rounded, quiet, nan);
}

static inline __m128i dsc_bf16_from_f32_avx2(__m256 x)
{
    const __m256i h = _mm256_srli_epi32(dsc_bf16_round_avx2(x), 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1));
}

static inline __m256 dsc_f32_from_bf16_avx2(__m128i h)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

/* To bf16 and back. */
static inline __m256 dsc_bf16_trip_avx2(__m256 x)
{
    return _mm256_castsi256_ps(_mm256_and_si256(dsc_bf16_round_avx2(x), _mm256_set1_epi32((int)0xffff0000u)));
}

/* Either half dtype; `dtype` is BF16 or F16. */
static inline __m256 dsc_f32_from_half_avx2(__m128i h, dsc_dtype dtype)
{
    return dtype == DSC_F16 ? _mm256_cvtph_ps(h) : dsc_f32_from_bf16_avx2(h);
}

static inline __m128i dsc_half_from_f32_avx2(__m256 x, dsc_dtype dtype)
{
    return dtype == DSC_F16 ? _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT) : dsc_bf16_from_f32_avx2(x);
}

static inline __m256 dsc_half_trip_avx2(__m256 x, dsc_dtype dtype)
{
    return dtype == DSC_F16 ? _mm256_cvtph_ps(_mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT)) : dsc_bf16_trip_avx2(x);
}

/* 8 elements rounded stochastically to bf16, and their 16 random bits each, in the lower halves of lanes. */
static inline __m256i dsc_up_or_down_avx2(__m256 x, __m256i random_bits)
{
    const __m256i u = _mm256_castps_si256(x), sum = _mm256_add_epi32(u, random_bits);
    const __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x00400000));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    return _mm256_srli_epi32(_mm256_blendv_epi8(sum, quiet, nan), 16);
}

#endif
