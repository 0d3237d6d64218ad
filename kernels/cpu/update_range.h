/* update_range.h - a recipe on one thread over a range of elements: what a variant has to provide. Private to
 * kernels/update*.c. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CPU_UPDATE_RANGE_H
#define DSC_KERNELS_CPU_UPDATE_RANGE_H

#include <string.h>

#include "base/base.h"
#include "kernels/cpu/blocks.h"
#include "kernels/scalar.h"
#include "kernels/update.h"

/* Elements first..last-1 of the arguments' arrays. Any length, any alignment of the element type. */
typedef void (*dsc_update_range_fn)(const dsc_update_args *a, int64_t first, int64_t last);
typedef struct dsc_update_ops { dsc_update_range_fn step[DSC_RECIPE_COUNT]; } dsc_update_ops;

extern const dsc_update_ops dsc_update_ref, dsc_update_avx2, dsc_update_avx512;

/* If a step is too large for any cache, its 16-bit copy is written around the caches. A plain store would first read
 * each line of it (measured at 64 M parameters, 2 threads: 7 to 10 % of the whole step). */
#define DSC_UPDATE_STREAM_MIN ((int64_t)1 << 20) /* elements; all arrays together are then 30 MiB */

/* Destination of the rounded weights. */
typedef enum dsc_copy_kind { DSC_COPY_NONE, DSC_COPY_STORE, DSC_COPY_STREAM } dsc_copy_kind;

/* Constants of each instance of a variant's loop. */
typedef struct dsc_update_kind {
    dsc_recipe recipe;
    int state_count;
    bool l2;
    dsc_copy_kind copy;
} dsc_update_kind;

/* How many of them has a recipe, where the compiler has to know. */
#define DSC_UPDATE_STATES_OF(recipe)                                                                                   \
    ((recipe) == DSC_RECIPE_ADAMW || (recipe) == DSC_RECIPE_LAMB || (recipe) == DSC_RECIPE_ADAFACTOR_FLAT_M ||         \
             (recipe) == DSC_RECIPE_RMSPROP_M || (recipe) == DSC_RECIPE_RMSPROP_C                           ? 2        \
     : (recipe) == DSC_RECIPE_RMSPROP_CM                                                                    ? 3        \
     : (recipe) == DSC_RECIPE_SGD || (recipe) == DSC_RECIPE_ADAFACTOR                                       ? 0        \
                                                                                                            : 1)

/* The random bits of state k in a word. */
static inline uint32_t dsc_update_bits(uint32_t word, int k) { return word >> (k == 2 ? 8 : 16 * k) & 0xffffu; }

/* Recipes whose elements have something made before: an array of it, or their row's and column's. */
#define DSC_UPDATE_HAS_FACTORS(recipe) ((recipe) == DSC_RECIPE_ADAFACTOR || (recipe) == DSC_RECIPE_ADAFACTOR_M)

/* Where the weights and the states before the step are. */
static inline const float *dsc_update_master_from(const dsc_update_args *a)
{
    return a->master_from != NULL ? a->master_from : a->master;
}
static inline const void *dsc_update_state_from(const dsc_update_args *a, int k)
{
    DSC_ASSERT(a->master_from == NULL || k < DSC_UPDATE_STATES_U8);
    return a->master_from != NULL ? a->state_from[k] : a->state[k];
}

/* Weights and fp32 states that are written to another place go around the caches too, as the copy does. */
static inline bool dsc_update_streams_states(const dsc_update_args *a, int64_t first, size_t register_bytes)
{
    uintptr_t places = (uintptr_t)(a->master + first);
    for (int k = 0; k < DSC_UPDATE_STATES_U8; k++)
        places |= (uintptr_t)((const float *)a->state[k] + (a->state[k] != NULL ? first : 0));
    return a->master_from != NULL && a->count >= DSC_UPDATE_STREAM_MIN && a->state_dtype == DSC_F32 &&
           places % register_bytes == 0;
}

/* Writing around the caches wants whole registers. */
static inline dsc_copy_kind dsc_update_copy_kind(const dsc_update_args *a, int64_t first, size_t register_bytes)
{
    if (a->param_half == NULL)
        return DSC_COPY_NONE;
    return a->count >= DSC_UPDATE_STREAM_MIN && (uintptr_t)(a->param_half + first) % register_bytes == 0
               ? DSC_COPY_STREAM : DSC_COPY_STORE;
}

/* One instance of `loop` for each kind with this recipe: `kind` is a constant in it. */
#define DSC_FOR_UPDATE_KIND(recipe, has_l2, copy_kind, loop)                                      \
    do {                                                                                          \
        const int states_ = DSC_UPDATE_STATES_OF(recipe);                                         \
        if ((has_l2) && (copy_kind) == DSC_COPY_NONE) {                                           \
            const dsc_update_kind kind = { (recipe), states_, true, DSC_COPY_NONE };              \
            loop;                                                                                 \
        } else if ((has_l2) && (copy_kind) == DSC_COPY_STORE) {                                   \
            const dsc_update_kind kind = { (recipe), states_, true, DSC_COPY_STORE };             \
            loop;                                                                                 \
        } else if (has_l2) {                                                                      \
            const dsc_update_kind kind = { (recipe), states_, true, DSC_COPY_STREAM };            \
            loop;                                                                                 \
        } else if ((copy_kind) == DSC_COPY_NONE) {                                                \
            const dsc_update_kind kind = { (recipe), states_, false, DSC_COPY_NONE };             \
            loop;                                                                                 \
        } else if ((copy_kind) == DSC_COPY_STORE) {                                               \
            const dsc_update_kind kind = { (recipe), states_, false, DSC_COPY_STORE };            \
            loop;                                                                                 \
        } else {                                                                                  \
            const dsc_update_kind kind = { (recipe), states_, false, DSC_COPY_STREAM };           \
            loop;                                                                                 \
        }                                                                                         \
    } while (0)

_Static_assert(DSC_BLOCK % DSC_Q8_BLOCK == 0, "threads share no block of U8 states");
/* Numbers of a U8 state, from q8_tables.h. */
typedef struct dsc_q8_table {
    float map[256], middles[256]; /* middles[0]: minus infinity */
} dsc_q8_table;
extern const dsc_q8_table dsc_q8_tables[DSC_UPDATE_STATES_U8]; /* update_ref.c */
#define DSC_Q8_ABSMAX_LEAST 1e-38f
#define DSC_Q8_DECADES 6 /* from 1e-6 to 1 */

/* From the largest bits of |x| in a block to its absmax. Returns what elements are multiplied with, 0 if absmax is NaN.
 */
static inline float dsc_q8_inverse(uint32_t top, float *absmax)
{
    const uint32_t quiet_nan = 0x7fc00000u, bits = top >= 0x7f800000u ? quiet_nan : top;
    memcpy(absmax, &bits, sizeof bits);
    return top >= 0x7f800000u ? 0.0f : 1.0f / (*absmax > DSC_Q8_ABSMAX_LEAST ? *absmax : DSC_Q8_ABSMAX_LEAST);
}

/* The first element of the range that begins a random block, or its end. */
static inline int64_t dsc_update_block_start(const dsc_update_args *a, int64_t first, int64_t last)
{
    return dsc_min_i64(last, first + (4 - (a->first + first) % 4) % 4);
}

#endif
