/* batch_norm.h - batch normalization of the columns of a matrix (Ioffe & Szegedy 2015), with what follows it in a
 * convolutional network: a sum with another matrix, and an activation.
 * reference: cpu/batch_norm_ref.c   variants: cpu/batch_norm_v16.h   check: tests/checkkern/batch_norm.c
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_BATCH_NORM_H
#define DSC_KERNELS_BATCH_NORM_H
#include <dsc/types.h>

#include "kernels/gelu.h"
#ifdef __cplusplus
extern "C" {
#endif

/* Rows are summed in parts, which are added in order: sums depend on the shape alone. */
#define DSC_BATCH_NORM_PARTS 256             /* at most */
#define DSC_BATCH_NORM_PART_ROWS INT64_C(64) /* at least */

static inline int64_t dsc_batch_norm_part_rows(int64_t rows)
{
    const int64_t least = (rows + DSC_BATCH_NORM_PARTS - 1) / DSC_BATCH_NORM_PARTS;
    return least > DSC_BATCH_NORM_PART_ROWS ? least : DSC_BATCH_NORM_PART_ROWS;
}

static inline int64_t dsc_batch_norm_parts(int64_t rows)
{
    const int64_t each = dsc_batch_norm_part_rows(rows);
    return (rows + each - 1) / each;
}

static inline bool dsc_batch_norm_activates(dsc_activation kind)
{
    return kind == DSC_RELU || kind == DSC_RELU6 || kind == DSC_SILU || kind == DSC_HARD_SWISH;
}

/* Floats of scratch: two sums of each part, and two of all rows. */
static inline int64_t dsc_batch_norm_scratch(int64_t rows, int64_t channels)
{
    return 2 * (dsc_batch_norm_parts(rows) + 1) * channels;
}

/* stats[0,c] = mean of column c, stats[1,c] = 1 / sqrt(variance + eps), the variance over n rows being biased. A part
 * has its mean and its squares about that mean in fp32; parts are put together in double (Chan et al. 1979). With
 * running_mean the statistics are those of running_mean and running_variance, and x is not read. */
typedef struct dsc_batch_stats_args {
    float *stats;           /* [2, C] */
    float *mean, *variance; /* [C], or NULL: the mean and the variance times n / (n - 1), or the running ones */
    const void *x;          /* [rows, C] */
    const float *running_mean, *running_variance; /* [C]; NULL: those of x */
    float *scratch;                               /* [dsc_batch_norm_scratch] */
    int64_t rows, channels;
    float eps;
    dsc_dtype dtype; /* of x: F32, BF16 or F16 */
} dsc_batch_stats_args;

/* z = (x - mean) * rstd * weight + bias, or with `add` that + add; out = f(z). z is rounded to the dtype before and
 * after the sum, as three kernels would do it. `out` may be the memory of x or of add. */
typedef struct dsc_batch_norm_fwd_args {
    void *out;                 /* [rows, C] */
    const void *x, *add;       /* [rows, C]; add NULL: nothing is added */
    const float *stats;        /* [2, C] */
    const void *weight, *bias; /* [C] */
    int64_t rows, channels;
    bool activates;
    dsc_activation kind; /* f, with `activates`: RELU, RELU6, SILU or HARD_SWISH */
    dsc_dtype dtype;
} dsc_batch_norm_fwd_args;

/* With d = d_out f'(z), rounded to the dtype, n rows and h = (x - mean) * rstd:
 *
 *     d_bias = sum d            d_weight = sum d h            d_add = d
 *     d_x = weight rstd (d - d_bias / n - h d_weight / n)     or, where the statistics are constants, weight rstd d
 *
 * Sums are over rows, in fp32 in a part, and in double over parts. d_x may be the memory of d_out or x, and d_add that
 * of d_out. */
typedef struct dsc_batch_norm_bwd_args {
    void *d_x, *d_add;           /* [rows, C]; d_x NULL: not wanted; d_add: NULL without `add` */
    float *d_weight, *d_bias;    /* [C], overwritten; NULL: frozen */
    const void *d_out, *x, *add; /* as given to forward; `add` is read with `activates` alone */
    const float *stats;
    const void *weight, *bias;
    float *scratch; /* [dsc_batch_norm_scratch] */
    int64_t rows, channels;
    bool activates, constant; /* constant: the statistics do not depend on x */
    /* With a group, d_x takes the means that BATCH_NORM_JOIN has put behind scratch's parts (dsc_batch_norm_means).
     * Sums are not made, and d_weight and d_bias are NULL. */
    bool joined;
    dsc_activation kind;
    dsc_dtype dtype;
} dsc_batch_norm_bwd_args;

static inline float *dsc_batch_norm_means(float *scratch, int64_t rows, int64_t channels)
{
    return scratch + 2 * dsc_batch_norm_parts(rows) * channels;
}

/* Micro-batches whose rows are normalised together, of `rows` rows each. Micro-batch m of rank r has
 * parts[r,m]. They are put together in double, in the order of m and then of r. So the result does not depend on how
 * many ranks share the micro-batches.
 *
 * A part of statistics is mean and variance as BATCH_STATS gives them to the running ones. The result is that of
 * BATCH_STATS over all rows. A part of gradients is d_bias and d_weight, and the result is their sums by all rows. */
typedef struct dsc_batch_norm_join_args {
    float *out;             /* [2, C]: stats, or means of gradients */
    float *mean, *variance; /* [C] of statistics, or NULL */
    const float *parts;     /* [ranks, each, 2, C] */
    int64_t ranks, each, rows, channels;
    float eps;
    bool gradients;
} dsc_batch_norm_join_args;

#ifdef __cplusplus
}
#endif
#endif
