/* exact.h - kernels whose bits are a contract: casts, also stochastic, ordered reduction of gradient parts, sum of
 * squares. The optimizers are in update.h.
 *
 * Each is a fixed sequence of IEEE-754 operations per element, FMAs written out, so that reference, AVX2, AVX-512 and
 * CUDA give the same bits for any thread count. Denormals are kept; FTZ and DAZ are off on every thread. The payload of
 * a NaN result is left open, except that CAST keeps its sign and upper bits.
 * reference: cpu/exact_ref.c   variants: exact_avx2.c exact_avx512.c   check and bench: tests/checkkern/exact.c
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_EXACT_H
#define DSC_KERNELS_EXACT_H

#include <dsc/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* to[i] = from[i] in another dtype: F32 <-> BF16 or F16 (round to nearest even), or a plain copy. No overlap.
 * With `rows` above 1: so many runs of `count` elements, `from_stride` >= count apart in `from`, one behind the other
 * in `to`. */
typedef struct dsc_cast_args {
    void *to;
    const void *from;
    dsc_dtype to_dtype, from_dtype;
    int64_t count;
    int64_t rows, from_stride; /* rows 0: one */
} dsc_cast_args;

/* to[i] = from[i] rounded stochastically to one of its two neighbours in bf16; the mean is from[i] (Gupta et al.
 * 2015):
 *   to[i] = (bits(from[i]) + r) >> 16;  Inf stays, NaN is as in CAST
 * with r = 16 random bits of position n = first + i: half n % 2 (0: the lower) of word n / 2 % 4 of block n / 8 of
 * (seed, stream), base/rng.h. So the bits depend on an element's position in its tensor, never on the rank or thread
 * that rounds it. Beyond bf16's largest number the upper neighbour is Inf. No overlap. */
typedef struct dsc_cast_stochastic_args {
    uint16_t *to;
    const float *from;
    int64_t count, first; /* first >= 0: position of from[0] */
    uint64_t seed, stream;
} dsc_cast_stochastic_args;

/* Adds grad_part_count gradient parts (leaves of the summation tree) to an fp32 accumulator, in order:
 *   s = overwrite ? r(leaf_0[i]) : acc[i] + r(leaf_0[i])
 *   s = s + r(leaf_k[i]) for k = 1..grad_part_count-1;  acc[i] = s
 * r(x) rounds an fp32 part to the wire dtype and back (identity for wire F32; a 16-bit part is already rounded).
 * leaf_k starts at (char *)leaf + k * leaf_stride_bytes, or at leaf_ptr[k] when `leaf_ptr` is not NULL. acc may be
 * one of the parts itself when leaf_dtype is F32: for each element all parts are read before acc is written. */
typedef struct dsc_ordered_reduce_args {
    float *acc;
    const void *leaf;
    const void *const *leaf_ptr;
    int64_t leaf_stride_bytes;
    int64_t grad_part_count; /* >= 1 */
    int64_t count;
    dsc_dtype leaf_dtype; /* F32, BF16 or F16 */
    dsc_dtype wire_dtype; /* F32, BF16 or F16 */
    bool overwrite;
} dsc_ordered_reduce_args;

/* to[i] = a[i] + b[i], fp32; `to` may be a or b. */
typedef struct dsc_add_args {
    float *to;
    const float *a, *b;
    int64_t count;
} dsc_add_args;

#define DSC_SUMSQ_CHUNK 1024
#define DSC_FIXED_LIMBS 72
/* An associative sum of non-negative doubles: fixed point in 32-bit limbs held in int64 (2^31 additions never carry
 * out), from 2^-1152 up to 2^1151. Any order of additions and of merges gives the same limbs. */
typedef struct dsc_fixed_sum {
    int64_t limb[DSC_FIXED_LIMBS];
    int64_t nonfinite_count; /* chunks that were Inf or NaN */
} dsc_fixed_sum;

/* Adds the sum of squares of each 1024-element chunk, from x[0] on, to *sum. Lane j (0..15) sums (double)x^2 over
 * elements j, j+16, ... in order with fma(x, x, lane). Lanes are added by the fixed tree ((l0+l8)+(l4+l12)) ... :
 *   for w in 8,4,2,1: l[j] += l[j+w]
 * A last short chunk is padded with zeros. *sum is not cleared first. Each x is rounded to `round_dtype` (BF16 or F16;
 * F32: it is not) before it is squared. */
typedef struct dsc_sumsq_args {
    const float *x;
    int64_t count;
    dsc_fixed_sum *sum;
    dsc_dtype round_dtype;
} dsc_sumsq_args;
void dsc_fixed_sum_add(dsc_fixed_sum *sum, double value); /* value >= 0 and finite, else counted as nonfinite */
void dsc_fixed_sum_merge(dsc_fixed_sum *sum, const dsc_fixed_sum *other);
/* The sum rounded once to double (round to nearest even of the exact fixed-point value); Inf when nonfinite. */
double dsc_fixed_sum_value(const dsc_fixed_sum *sum);

#ifdef __cplusplus
}
#endif
#endif
