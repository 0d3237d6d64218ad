/* update_avx512.c - update_v16.h on AVX-512. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/philox_avx512.h"
#include "kernels/cpu/v16_avx512.h"

typedef __m512i v16_ints;

V16_INLINE v16 v16_step_towards(v16 step, v16 c)
{
    const __m512 signed_step = _mm512_or_ps(step, _mm512_and_ps(c, _mm512_set1_ps(-0.0f)));
    const __m512 towards = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(c, _mm512_setzero_ps(), _CMP_NEQ_OQ), signed_step);
    return _mm512_mask_mov_ps(towards, _mm512_cmp_ps_mask(c, c, _CMP_UNORD_Q), c);
}

#define V16_STREAM_BYTES sizeof(__m512)
V16_INLINE void v16_stream(float *to, v16 x) { _mm512_stream_ps(to, x); }
V16_INLINE void v16_stream_pair(uint16_t *to, v16 a, v16 b, dsc_dtype dtype)
{
    const __m512i first = _mm512_castsi256_si512(dsc_half_from_f32_avx512(a, dtype));
    _mm512_stream_si512((__m512i *)(void *)to, _mm512_inserti64x4(first, dsc_half_from_f32_avx512(b, dtype), 1));
}

V16_INLINE void v16_store_stochastic(uint16_t *to, v16 x, v16_ints random_bits, bool upper)
{
    const __m512i bits = upper ? _mm512_srli_epi32(random_bits, 16)
                               : _mm512_and_si512(random_bits, _mm512_set1_epi32(0xffff));
    _mm256_storeu_si256((__m256i *)(void *)to, dsc_up_or_down_avx512(x, bits));
}

#define V16_RANDOMS 4
V16_INLINE void v16_random_words(uint64_t seed, uint64_t stream, uint64_t counter, v16_ints words[V16_RANDOMS])
{
    philox_blocks(seed, stream, counter, words);
}

V16_INLINE v16 v16_abs(v16 x) { return _mm512_abs_ps(x); }
V16_INLINE v16 v16_from(v16 x, float least, v16 a, v16 b)
{
    return _mm512_mask_mov_ps(b, _mm512_cmp_ps_mask(x, _mm512_set1_ps(least), _CMP_GE_OQ), a);
}

V16_INLINE v16_ints v16_ints_zero(void) { return _mm512_setzero_si512(); }
V16_INLINE v16_ints v16_ints_largest(v16_ints a, v16 b) { return _mm512_max_epu32(a, _mm512_castps_si512(b)); }
V16_INLINE uint32_t v16_ints_top(v16_ints a) { return _mm512_reduce_max_epu32(a); }

/* Numbers of a table by single loads: on AMD's Zen a gather takes twice the time (measured). */
#define AT4(t, i, j) _mm_setr_ps((t)[(i)[j]], (t)[(i)[(j) + 1]], (t)[(i)[(j) + 2]], (t)[(i)[(j) + 3]])
#define AT8(t, i, j) _mm256_set_m128(AT4(t, i, (j) + 4), AT4(t, i, j))
#define AT16(t, i) _mm512_insertf32x8(_mm512_castps256_ps512(AT8(t, i, 0)), AT8(t, i, 8), 1)

V16_INLINE v16 v16_load_codes(const uint8_t *code, const float *map) { return AT16(map, code); }

V16_INLINE void v16_store_codes(uint8_t *to, v16 y, v16 place, const float *middles, bool two_signs)
{
    const __m512i one = _mm512_set1_epi32(1);
    __m512i code = _mm512_cvt_roundps_epi32(place, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    if (two_signs) {
        const __m512i up = _mm512_add_epi32(code, _mm512_set1_epi32(127));
        const __m512i down = _mm512_sub_epi32(_mm512_set1_epi32(126), code);
        code = _mm512_mask_mov_epi32(up, _mm512_movepi32_mask(_mm512_castps_si512(y)), down);
    }
    int32_t next[16];
    _mm512_storeu_si512(next, _mm512_add_epi32(code, one));
    const __m512 middle = AT16(middles, next);
    code = _mm512_mask_add_epi32(code, _mm512_cmp_ps_mask(middle, y, _CMP_LT_OQ), code, one);
    _mm_storeu_si128((__m128i *)(void *)to, _mm512_cvtepi32_epi8(code));
}

#include "kernels/cpu/update_v16.h"
