/* pool_avx2.c - pool_v16.h on AVX2. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/v16_avx2.h"

/* Numbers of pixels on 16 lanes. */
typedef struct chosen_lanes {
    __m256i low, high;
} chosen_lanes;

V16_INLINE chosen_lanes chosen_set(int32_t pixel)
{
    return (chosen_lanes) { _mm256_set1_epi32(pixel), _mm256_set1_epi32(pixel) };
}

V16_INLINE void take_8(__m256 *most, __m256i *best, __m256 value, __m256i pixel)
{
    const __m256 more =
        _mm256_or_ps(_mm256_cmp_ps(value, *most, _CMP_GT_OQ), _mm256_cmp_ps(value, value, _CMP_UNORD_Q));
    *most = _mm256_blendv_ps(*most, value, more);
    *best = _mm256_castps_si256(_mm256_blendv_ps(_mm256_castsi256_ps(*best), _mm256_castsi256_ps(pixel), more));
}

/* Where `value` is above `most` or NaN, it and its pixel are taken. */
V16_INLINE void chosen_take(v16 *most, chosen_lanes *best, v16 value, int32_t pixel)
{
    take_8(&most->low, &best->low, value.low, _mm256_set1_epi32(pixel));
    take_8(&most->high, &best->high, value.high, _mm256_set1_epi32(pixel));
}

V16_INLINE void chosen_store(int32_t *to, int64_t left, chosen_lanes best)
{
    int32_t part[16];
    _mm256_storeu_si256((__m256i *)(void *)part, best.low);
    _mm256_storeu_si256((__m256i *)(void *)(part + 8), best.high);
    memcpy(to, part, (size_t)left * sizeof *to);
}

/* d where the pixel was chosen, else 0. */
V16_INLINE v16 chosen_where(const int32_t *from, int64_t left, int32_t pixel, v16 d)
{
    int32_t part[16] = { 0 };
    memcpy(part, from, (size_t)left * sizeof *from);
    const __m256i one = _mm256_set1_epi32(pixel);
    const __m256i low = _mm256_cmpeq_epi32(_mm256_loadu_si256((const __m256i *)(const void *)part), one);
    const __m256i high = _mm256_cmpeq_epi32(_mm256_loadu_si256((const __m256i *)(const void *)(part + 8)), one);
    return (v16) { _mm256_and_ps(d.low, _mm256_castsi256_ps(low)), _mm256_and_ps(d.high, _mm256_castsi256_ps(high)) };
}

#include "kernels/cpu/pool_v16.h"
