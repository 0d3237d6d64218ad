/* dropout_range.h - the body of the dropout kernels, which differ in how they make random words alone.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CPU_DROPOUT_RANGE_H
#define DSC_KERNELS_CPU_DROPOUT_RANGE_H

#include "base/rng.h"
#include "kernels/cpu/range.h"

#define DROPOUT_WORDS 256

/* words[0 .. count - 1] <- those from `index` on, one at a time; a block is four of them. */
static inline void dropout_words_plain(const dsc_dropout_args *a, uint64_t index, int64_t count, uint32_t *words)
{
    uint32_t block[4];
    for (int64_t i = 0; i < count; i++, index++) {
        if (i == 0 || index % 4 == 0)
            dsc_rng_block(a->seed, a->stream, index / 4, block);
        words[i] = block[index % 4];
    }
}

typedef void (*dropout_words_fn)(const dsc_dropout_args *a, uint64_t index, int64_t count, uint32_t *words);

static inline __attribute__((always_inline)) void dropout_range(const dsc_dropout_args *a, int64_t first, int64_t last,
                                                                dsc_dtype dtype, dropout_words_fn make_words)
{
    uint32_t words[DROPOUT_WORDS];
    const uint32_t threshold = a->threshold;
    const float factor = a->factor;
    for (int64_t i = first; i < last; i += DROPOUT_WORDS) {
        const int64_t count = dsc_min_i64(DROPOUT_WORDS, last - i);
        make_words(a, a->first + (uint64_t)i, count, words);
        for (int64_t k = 0; k < count; k++) {
            const float kept = words[k] >= threshold ? dsc_get(a->x, i + k, dtype) * factor : 0.0f;
            dsc_put(a->out, i + k, dtype, a->add ? dsc_get(a->out, i + k, dtype) + kept : kept);
        }
    }
}

#define DROPOUT_DEFINE(isa, make_words)                                                                                \
    void dsc_dropout_##isa(const void *args, int64_t first, int64_t last)                                              \
    {                                                                                                                  \
        const dsc_dropout_args *a = args;                                                                              \
        const int64_t end = dsc_min_i64(last * DSC_DROPOUT_BLOCK, a->count);                                           \
        DSC_FOR_DTYPE(a->dtype, dropout_range(a, first *DSC_DROPOUT_BLOCK, end, dtype, make_words));                   \
    }

#endif
