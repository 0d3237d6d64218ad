/* update_avx2.c - update_v16.h on AVX2 with FMA3. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/philox_avx2.h"
#include "kernels/cpu/v16_avx2.h"

typedef struct v16_ints { __m256i low, high; } v16_ints;


V16_INLINE __m256 step_towards_8(__m256 step, __m256 c)
{
    const __m256 signed_step = _mm256_or_ps(step, _mm256_and_ps(c, _mm256_set1_ps(-0.0f)));
    const __m256 towards = _mm256_and_ps(signed_step, _mm256_cmp_ps(c, _mm256_setzero_ps(), _CMP_NEQ_OQ));
    return _mm256_or_ps(towards, _mm256_and_ps(c, _mm256_cmp_ps(c, c, _CMP_UNORD_Q)));
}
V16_BINARY(v16_step_towards, step_towards_8)

#define V16_STREAM_BYTES sizeof(__m256)
V16_INLINE void v16_stream(float *to, v16 x)
{
    _mm256_stream_ps(to, x.low);
    _mm256_stream_ps(to + 8, x.high);
}
V16_INLINE void v16_stream_pair(uint16_t *to, v16 a, v16 b, dsc_dtype dtype)
{
    const v16 x[2] = { a, b };
    for (int k = 0; k < 2; k++) {
        const __m128i low = dsc_half_from_f32_avx2(x[k].low, dtype), high = dsc_half_from_f32_avx2(x[k].high, dtype);
        _mm256_stream_si256((__m256i *)(void *)(to + 16 * k), _mm256_set_m128i(high, low));
    }
}

V16_INLINE __m128i round_stochastic_8(__m256 x, __m256i random_bits, bool upper)
{
    const __m256i bits = upper ? _mm256_srli_epi32(random_bits, 16)
                               : _mm256_and_si256(random_bits, _mm256_set1_epi32(0xffff));
    const __m256i rounded = dsc_up_or_down_avx2(x, bits);
    return _mm_packus_epi32(_mm256_castsi256_si128(rounded), _mm256_extracti128_si256(rounded, 1));
}
V16_INLINE void v16_store_stochastic(uint16_t *to, v16 x, v16_ints random_bits, bool upper)
{
    _mm_storeu_si128((__m128i *)(void *)to, round_stochastic_8(x.low, random_bits.low, upper));
    _mm_storeu_si128((__m128i *)(void *)(to + 8), round_stochastic_8(x.high, random_bits.high, upper));
}

#define V16_RANDOMS 2
V16_INLINE void v16_random_words(uint64_t seed, uint64_t stream, uint64_t counter, v16_ints words[V16_RANDOMS])
{
    __m256i block[4];
    philox_blocks(seed, stream, counter, block);
    words[0] = (v16_ints){ block[0], block[1] };
    words[1] = (v16_ints){ block[2], block[3] };
}

V16_INLINE v16 v16_abs(v16 x)
{
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return (v16) { _mm256_andnot_ps(sign, x.low), _mm256_andnot_ps(sign, x.high) };
}

V16_INLINE v16 v16_from(v16 x, float least, v16 a, v16 b)
{
    const __m256 bound = _mm256_set1_ps(least);
    return (v16) { _mm256_blendv_ps(b.low, a.low, _mm256_cmp_ps(x.low, bound, _CMP_GE_OQ)),
                   _mm256_blendv_ps(b.high, a.high, _mm256_cmp_ps(x.high, bound, _CMP_GE_OQ)) };
}

V16_INLINE v16_ints v16_ints_zero(void) { return (v16_ints) { _mm256_setzero_si256(), _mm256_setzero_si256() }; }
V16_INLINE v16_ints v16_ints_largest(v16_ints a, v16 b)
{
    return (v16_ints) { _mm256_max_epu32(a.low, _mm256_castps_si256(b.low)),
                        _mm256_max_epu32(a.high, _mm256_castps_si256(b.high)) };
}
V16_INLINE uint32_t v16_ints_top(v16_ints a)
{
    const __m256i l8 = _mm256_max_epu32(a.low, a.high);
    const __m128i l4 = _mm_max_epu32(_mm256_castsi256_si128(l8), _mm256_extracti128_si256(l8, 1));
    const __m128i l2 = _mm_max_epu32(l4, _mm_shuffle_epi32(l4, _MM_SHUFFLE(1, 0, 3, 2)));
    return (uint32_t)_mm_cvtsi128_si32(_mm_max_epu32(l2, _mm_shuffle_epi32(l2, _MM_SHUFFLE(2, 3, 0, 1))));
}

/* Numbers of a table by single loads, as in update_avx512.c. */
#define AT4(t, i, j) _mm_setr_ps((t)[(i)[j]], (t)[(i)[(j) + 1]], (t)[(i)[(j) + 2]], (t)[(i)[(j) + 3]])
#define AT8(t, i, j) _mm256_set_m128(AT4(t, i, (j) + 4), AT4(t, i, j))

V16_INLINE v16 v16_load_codes(const uint8_t *code, const float *map)
{
    return (v16) { AT8(map, code, 0), AT8(map, code, 8) };
}

V16_INLINE __m256i codes_8(__m256 y, __m256 place, const float *middles, bool two_signs)
{
    const __m256i one = _mm256_set1_epi32(1);
    __m256i code = _mm256_cvttps_epi32(_mm256_floor_ps(place));
    if (two_signs) {
        const __m256 up = _mm256_castsi256_ps(_mm256_add_epi32(code, _mm256_set1_epi32(127)));
        const __m256 down = _mm256_castsi256_ps(_mm256_sub_epi32(_mm256_set1_epi32(126), code));
        code = _mm256_castps_si256(_mm256_blendv_ps(up, down, y));
    }
    int32_t next[8];
    _mm256_storeu_si256((__m256i *)(void *)next, _mm256_add_epi32(code, one));
    const __m256 middle = AT8(middles, next, 0);
    return _mm256_sub_epi32(code, _mm256_castps_si256(_mm256_cmp_ps(middle, y, _CMP_LT_OQ)));
}
V16_INLINE void v16_store_codes(uint8_t *to, v16 y, v16 place, const float *middles, bool two_signs)
{
    const __m256i low = codes_8(y.low, place.low, middles, two_signs);
    const __m256i high = codes_8(y.high, place.high, middles, two_signs);
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), _MM_SHUFFLE(3, 1, 2, 0));
    const __m128i bytes = _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128((__m128i *)(void *)to, bytes);
}

#include "kernels/cpu/update_v16.h"
