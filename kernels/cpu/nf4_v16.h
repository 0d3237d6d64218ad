/* nf4_v16.h - NF4_UNPACK on 16 lanes; compiled by nf4_avx2.c and nf4_avx512.c after their v16 words and v16_nf4, which
 * makes 16 numbers of codes, one in a byte. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/nf4_range.h"

/* The codes of 8 bytes in the order of their elements. */
V16_INLINE __m128i nf4_spread(const uint8_t *codes)
{
    const __m128i bytes = _mm_loadl_epi64((const __m128i *)(const void *)codes), mask = _mm_set1_epi8(15);
    return _mm_unpacklo_epi8(_mm_and_si128(_mm_srli_epi16(bytes, 4), mask), _mm_and_si128(bytes, mask));
}

V16_INLINE void unpack_block(void *to, int64_t at, int64_t count, const uint8_t *codes, float scale, dsc_dtype dtype)
{
    const v16 factor = v16_set(scale);
    for (int64_t i = 0; i < count; i += 16)
        v16_store(to, at + i, count - i, dtype, v16_mul(v16_nf4(nf4_spread(codes + i / 2)), factor));
}

#ifdef __AVX512F__
NF4_DEFINE(avx512, unpack_block)
#else
NF4_DEFINE(avx2, unpack_block)
#endif
