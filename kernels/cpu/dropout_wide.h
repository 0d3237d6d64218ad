/* dropout_wide.h - random words of many blocks at once; include after philox_avx2.h or philox_avx512.h.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/dropout_range.h"

enum { WIDE_WORDS = 4 * (int)(sizeof(wide) / sizeof(uint32_t)), WIDE_BLOCKS = WIDE_WORDS / 4 };

static inline void dropout_words_wide(const dsc_dropout_args *a, uint64_t index, int64_t count, uint32_t *words)
{
    int64_t i = dsc_min_i64(count, (int64_t)((4 - index % 4) % 4));
    dropout_words_plain(a, index, i, words);
    for (; i + WIDE_WORDS <= count; i += WIDE_WORDS) {
        const uint64_t counter = (index + (uint64_t)i) / 4;
        if ((uint32_t)counter > UINT32_MAX - (WIDE_BLOCKS - 1)) {
            dropout_words_plain(a, index + (uint64_t)i, WIDE_WORDS, words + i);
            continue;
        }
        wide block[4];
        philox_blocks(a->seed, a->stream, counter, block);
        memcpy(words + i, block, sizeof block);
    }
    dropout_words_plain(a, index + (uint64_t)i, count - i, words + i);
}
