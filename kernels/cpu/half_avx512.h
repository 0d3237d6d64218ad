/* half_avx512.h - exact fp32 <-> bf16 and fp16 on 16 lanes, the same bits as base/bf16.h and base/f16.h (VCVTNEPS2BF16
 * would flush denormals). Include only from *_avx512*.c. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CPU_HALF_AVX512_H
#define DSC_KERNELS_CPU_HALF_AVX512_H

#include <immintrin.h>
#include <stdint.h>

#include <dsc/types.h>

/* The rounded value in the upper half of each lane; the lower half is what carried nothing up: drop it. */
static inline __m512i dsc_bf16_round_avx512(__m512 x)
{
    const __m512i u = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd);
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    return _mm512_mask_or_epi32(rounded, nan, u, _mm512_set1_epi32(0x00400000));
}

static inline __m256i dsc_bf16_from_f32_avx512(__m512 x)
{
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(dsc_bf16_round_avx512(x), 16));
}

static inline __m512 dsc_f32_from_bf16_avx512(__m256i h)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

/* To bf16 and back. */
static inline __m512 dsc_bf16_trip_avx512(__m512 x)
{
    return _mm512_castsi512_ps(_mm512_and_si512(dsc_bf16_round_avx512(x), _mm512_set1_epi32((int)0xffff0000u)));
}

/* Either half dtype; `dtype` is BF16 or F16. */
static inline __m512 dsc_f32_from_half_avx512(__m256i h, dsc_dtype dtype)
{
    return dtype == DSC_F16 ? _mm512_cvtph_ps(h) : dsc_f32_from_bf16_avx512(h);
}

static inline __m256i dsc_half_from_f32_avx512(__m512 x, dsc_dtype dtype)
{
    return dtype == DSC_F16 ? _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT) : dsc_bf16_from_f32_avx512(x);
}

static inline __m512 dsc_half_trip_avx512(__m512 x, dsc_dtype dtype)
{
    return dtype == DSC_F16 ? _mm512_cvtph_ps(_mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT)) : dsc_bf16_trip_avx512(x);
}

/* The first `count` lanes, 0 <= count; all from 16 on. */
static inline __mmask16 dsc_mask_avx512(int64_t count)
{
    return count >= 16 ? (__mmask16)0xffff : (__mmask16)((1u << count) - 1u);
}

/* 16 elements rounded stochastically to bf16, and their 16 random bits each, in the lower halves of lanes. */
static inline __m256i dsc_up_or_down_avx512(__m512 x, __m512i random_bits)
{
    const __m512i u = _mm512_castps_si512(x), sum = _mm512_add_epi32(u, random_bits);
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    const __m512i rounded = _mm512_mask_or_epi32(sum, nan, u, _mm512_set1_epi32(0x00400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
}

#endif
