/* update_avx2.c - update_v16.h on AVX2 with FMA3. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/philox_avx2.h"
#include "kernels/cpu/v16_avx2.h"

typedef struct v16_ints { __m256i low, high; } v16_ints;

V16_BINARY(v16_min, _mm256_min_ps)

V16_INLINE __m256 step_towards_8(__m256 step, __m256 c)
{
    const __m256 signed_step = _mm256_or_ps(step, _mm256_and_ps(c, _mm256_set1_ps(-0.0f)));
    const __m256 towards = _mm256_and_ps(signed_step, _mm256_cmp_ps(c, _mm256_setzero_ps(), _CMP_NEQ_OQ));
    return _mm256_or_ps(towards, _mm256_and_ps(c, _mm256_cmp_ps(c, c, _CMP_UNORD_Q)));
}
V16_BINARY(v16_step_towards, step_towards_8)

#define V16_STREAM_BYTES sizeof(__m256)
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

#include "kernels/cpu/update_v16.h"
