/* resample_avx2.c - sums of weighted pixels with the bits of resample.c, on CPUs with AVX2. A weight of 22 bits is
 * taken as two numbers of 16 bits: products of two taps are added by one instruction, and the sums stay exact.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/data/images/resample_sums.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <string.h>

enum { LOW_BITS = 11, LOW = (1 << LOW_BITS) - 1, TAPS = 4 };

/* Sums of the upper and of the lower parts of weights. */
typedef struct parts {
    __m256i high, low;
} parts;

static inline parts add_products(parts sum, __m256i pixels, parts weight)
{
    sum.high = _mm256_add_epi32(sum.high, _mm256_madd_epi16(pixels, weight.high));
    sum.low = _mm256_add_epi32(sum.low, _mm256_madd_epi16(pixels, weight.low));
    return sum;
}

/* Weights 0 and 1 in the lower half, 2 and 3 in the upper one, for each channel. */
static inline parts weights_of_four(const int32_t *weight)
{
    const __m256i high_of = _mm256_setr_epi8(0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7, 4, 5, 6, 7, 4,
                                             5, 6, 7, 4, 5, 6, 7);
    const __m128i four = _mm_loadu_si128((const __m128i *)(const void *)weight);
    const __m128i both = _mm_packs_epi32(_mm_srai_epi32(four, LOW_BITS), _mm_and_si128(four, _mm_set1_epi32(LOW)));
    const __m256i all = _mm256_broadcastsi128_si256(both);
    return (parts) { _mm256_shuffle_epi8(all, high_of),
                     _mm256_shuffle_epi8(all, _mm256_add_epi8(high_of, _mm256_set1_epi8(8))) };
}

/* Channels of pixels 0 and 1, and of 2 and 3, in pairs of 16 bits. Sixteen bytes are read, of which twelve count. */
static inline __m256i pixels_of_four(const uint8_t *from)
{
    const __m256i pairs = _mm256_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1, /* 0 and 1 */
                                           6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1);
    const __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)from);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(bytes), pairs);
}

/* Both halves added; the lower one of `low` begins with DSC_RESAMPLE_HALF. */
static inline __m128i value_of(parts sum)
{
    const __m256i both = _mm256_add_epi32(_mm256_slli_epi32(sum.high, LOW_BITS), sum.low);
    const __m128i all = _mm_add_epi32(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
    return _mm_srai_epi32(all, DSC_RESAMPLE_BITS);
}

/* Three bytes of each row. */
static inline void put_pixels(const parts *sum, int count, uint8_t *out, int64_t pitch)
{
    int32_t bytes[DSC_RESAMPLE_ROWS];
    const __m128i first = _mm_packs_epi32(value_of(sum[0]), value_of(sum[count > 1 ? 1 : 0]));
    const __m128i second = count > 2 ? _mm_packs_epi32(value_of(sum[2]), value_of(sum[3])) : first;
    _mm_storeu_si128((__m128i *)(void *)bytes, _mm_packus_epi16(first, second));
    for (int row = 0; row < count; row++)
        memcpy(out + row * pitch, &bytes[row], DSC_IMAGE_CHANNELS);
}

static inline void sum_rows(const uint8_t *rows, int64_t pitch, int count, const dsc_resample_weights *w, int32_t width,
                            uint8_t *out, int64_t out_pitch)
{
    const __m256i half = _mm256_zextsi128_si256(_mm_set1_epi32(DSC_RESAMPLE_HALF));
    for (int32_t x = 0; x < width; x++) {
        const int32_t *head = w->number + x * w->stride;
        parts sum[DSC_RESAMPLE_ROWS];
        for (int row = 0; row < count; row++)
            sum[row] = (parts) { _mm256_setzero_si256(), half };
        for (int32_t k = 0; k < head[1]; k += TAPS) {
            const parts weight = weights_of_four(head + DSC_RESAMPLE_HEAD + k);
            const uint8_t *from = rows + ((int64_t)head[0] + k) * DSC_IMAGE_CHANNELS;
            for (int row = 0; row < count; row++)
                sum[row] = add_products(sum[row], pixels_of_four(from + row * pitch), weight);
        }
        put_pixels(sum, count, out + (int64_t)x * DSC_IMAGE_CHANNELS, out_pitch);
    }
}

void dsc_resample_along_avx2(const uint8_t *rows, int64_t pitch, int32_t count, const dsc_resample_weights *w,
                             int32_t width, uint8_t *out, int64_t out_pitch)
{
    if (count == DSC_RESAMPLE_ROWS) {
        sum_rows(rows, pitch, DSC_RESAMPLE_ROWS, w, width, out, out_pitch);
        return;
    }
    for (int32_t row = 0; row < count; row++)
        sum_rows(rows + row * pitch, pitch, 1, w, width, out + row * out_pitch, out_pitch);
}

/* Products of 16 bytes of two rows, in pairs. */
static inline void add_sixteen(const uint8_t *first, const uint8_t *second, parts weight, parts sum[2])
{
    const __m128i a = _mm_loadu_si128((const __m128i *)(const void *)first);
    const __m128i b = _mm_loadu_si128((const __m128i *)(const void *)second);
    sum[0] = add_products(sum[0], _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(a, b)), weight);
    sum[1] = add_products(sum[1], _mm256_cvtepu8_epi16(_mm_unpackhi_epi8(a, b)), weight);
}

static inline __m256i values_of(parts sum)
{
    const __m256i all = _mm256_add_epi32(_mm256_slli_epi32(sum.high, LOW_BITS), sum.low);
    return _mm256_srai_epi32(_mm256_add_epi32(all, _mm256_set1_epi32(DSC_RESAMPLE_HALF)), DSC_RESAMPLE_BITS);
}

static inline void put_sixteen(const parts sum[2], uint8_t *out)
{
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(values_of(sum[0]), values_of(sum[1])), 0xd8);
    const __m128i bytes = _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128((__m128i *)(void *)out, bytes);
}

static inline __m256i pair_of(int32_t a, int32_t b)
{
    return _mm256_set1_epi32((int32_t)((uint32_t)b << 16 | ((uint32_t)a & 0xffff)));
}

void dsc_resample_across_avx2(const uint8_t *first, int64_t pitch, const int32_t *head, int64_t bytes, uint8_t *out)
{
    enum { AT_ONCE = DSC_IMAGE_SPARE_BYTES };
    const int32_t *weight = head + DSC_RESAMPLE_HEAD;
    for (int64_t at = 0; at < bytes; at += AT_ONCE) {
        const parts zero = { _mm256_setzero_si256(), _mm256_setzero_si256() };
        parts sum[4] = { zero, zero, zero, zero };
        for (int32_t k = 0; k < head[1]; k += 2) {
            const bool last = k + 1 == head[1];
            const int32_t a = weight[k], b = last ? 0 : weight[k + 1];
            const parts pair = { pair_of(a >> LOW_BITS, b >> LOW_BITS), pair_of(a & LOW, b & LOW) };
            const uint8_t *row = first + (head[0] + k) * pitch + at, *next = last ? row : row + pitch;
            add_sixteen(row, next, pair, sum);
            add_sixteen(row + 16, next + 16, pair, sum + 2);
        }
        put_sixteen(sum, out + at);
        put_sixteen(sum + 2, out + at + 16);
    }
}
#else
typedef int dsc_resample_has_no_avx2;
#endif
