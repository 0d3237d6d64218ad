/* update_avx512.c - update_v16.h on AVX-512. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/philox_avx512.h"
#include "kernels/cpu/v16_avx512.h"

typedef __m512i v16_ints;

V16_INLINE v16 v16_min(v16 a, v16 b) { return _mm512_min_ps(a, b); }
V16_INLINE v16 v16_step_towards(v16 step, v16 c)
{
    const __m512 signed_step = _mm512_or_ps(step, _mm512_and_ps(c, _mm512_set1_ps(-0.0f)));
    const __m512 towards = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(c, _mm512_setzero_ps(), _CMP_NEQ_OQ), signed_step);
    return _mm512_mask_mov_ps(towards, _mm512_cmp_ps_mask(c, c, _CMP_UNORD_Q), c);
}

#define V16_STREAM_BYTES sizeof(__m512)
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

#include "kernels/cpu/update_v16.h"
