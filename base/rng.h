/* rng.h - counter-based random numbers: Philox4x32-10 (Salmon et al., SC'11), keyed by what a number is for.
 *
 * A number depends on (seed, stream, index) only: never on the rank, the thread or the order of calls.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_BASE_RNG_H
#define DSC_BASE_RNG_H

#include "base/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Streams keep purposes apart; the low 32 bits of a stream are the purpose's own (a parameter's index, an epoch). */
enum {
    DSC_RNG_INIT = 1,
    DSC_RNG_SHUFFLE = 2,
    DSC_RNG_DROPOUT = 3,
    DSC_RNG_SAMPLE = 4,
    DSC_RNG_TEST = 5,
    DSC_RNG_MOMENT = 6,  /* stored bf16 moments: the number of the update */
    DSC_RNG_MASK = 7,    /* samples of masked models: the epoch; in a sample's own seed: positions, replacements */
    DSC_RNG_AUGMENT = 8, /* pictures: the epoch */
    DSC_RNG_FACTORS = 10, /* first factors of PowerSGD: the tensor */
    DSC_RNG_MIX = 9,     /* pictures that are mixed: the number of a draw */
    DSC_RNG_SHAPES = 16, /* drawn pictures: the picture */
    DSC_RNG_PART = 256   /* and a file's number: which of its samples an epoch takes that does not take all */
};
static inline uint64_t dsc_rng_stream(uint32_t purpose, uint32_t sub) { return ((uint64_t)purpose << 32) | sub; }

/* Four 32-bit words for a 64-bit block counter. */
void dsc_rng_block(uint64_t seed, uint64_t stream, uint64_t counter, uint32_t out[4]);
/* Element `index` of the stream: 32 random bits; block index / 4, word index % 4. */
uint32_t dsc_rng_u32(uint64_t seed, uint64_t stream, uint64_t index);
/* out[i] = mean + std * z(first + i), z by Box-Muller in double from the two halves of a block, rounded once. So any
 * slice of a tensor can be filled alone with equal bits on every CPU, compiler and C library. Elements 2k and 2k+1
 * share block k. */
void dsc_rng_normal(uint64_t seed, uint64_t stream, int64_t first, int64_t count, float mean, float std, float *out);
/* out[i] = (2 u - 1) * bound with u = (w + 1/2) / 2^32 and w the word of element first + i; in double, rounded once. */
void dsc_rng_uniform(uint64_t seed, uint64_t stream, int64_t first, int64_t count, float bound, float *out);
/* Bijection of [0, n): where element i goes. Feistel network with cycle walking; O(1) memory. n >= 1. */
uint64_t dsc_rng_permute(uint64_t seed, uint64_t stream, uint64_t n, uint64_t i);

#ifdef __cplusplus
}
#endif
#endif
