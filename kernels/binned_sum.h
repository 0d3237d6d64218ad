/* binned_sum.h - exact sums of squares along the rows and along the columns of a matrix. Adafactor (Shazeer & Stern
 * 2018) keeps these sums instead of a second moment per element. The same numbers give the same bits when added in any
 * order, in any parts and by any rank.
 *
 * A sum is three doubles. Each term is split among them on grids that are fixed beforehand (Demmel & Nguyen 2015). The
 * multiple of the first grid's step comes first, then that of the second's, then, rounded, that of the third's. Such
 * multiples add up without any rounding, up to DSC_BINNED_TERMS_MAX terms whose total is at most the bound that the
 * grids were made for.
 * reference: cpu/binned_sum_ref.c   variants: binned_sum_wide.h in binned_sum_avx2.c and binned_sum_avx512.c
 * check and bench: tests/checkkern/binned_sum.c
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_BINNED_SUM_H
#define DSC_KERNELS_BINNED_SUM_H

#include <math.h>

#include <dsc/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DSC_BINS 3
#define DSC_BIN_BITS 30 /* a grid's steps in those of the one before */
#define DSC_BINNED_TERMS_MAX ((int64_t)1 << 23)

typedef struct dsc_binned_sum {
    double bin[DSC_BINS];
} dsc_binned_sum;

/* magic[k] + x - magic[k] is x on grid k: magic[k] is 1.5 * 2^52 of its steps. */
typedef struct dsc_binned_grid {
    double magic[DSC_BINS];
} dsc_binned_grid;

/* For terms that are finite, >= 0 and at most `most` in total. The part of a term below 2^-90 of `most` is rounded. */
static inline dsc_binned_grid dsc_binned_grid_for(double most)
{
    dsc_binned_grid grid;
    int exponent;
    (void)frexp(most, &exponent); /* most < 2^exponent */
    for (int k = 0; k < DSC_BINS; k++)
        grid.magic[k] = ldexp(1.5, 52 + exponent - DSC_BIN_BITS * (k + 1));
    return grid;
}

static inline void dsc_binned_merge(dsc_binned_sum *sum, const dsc_binned_sum *other)
{
    for (int k = 0; k < DSC_BINS; k++)
        sum->bin[k] = sum->bin[k] + other->bin[k];
}

static inline double dsc_binned_value(const dsc_binned_sum *sum) { return sum->bin[0] + (sum->bin[1] + sum->bin[2]); }

/* Elements at .. at + count - 1 of a matrix of `cols` columns, row by row:
 *   g = x * scale, rounded to fp32;  q = g * g, exact in double
 *   row[n / cols] and col[n % cols] of element n: on each grid k in turn
 *     r = (q + magic[k]) - magic[k];  bin[k] = bin[k] + r;  q = q - r */
typedef struct dsc_matrix_squares_args {
    const float *x; /* [count] */
    int64_t count, at, cols;
    float scale;
    dsc_binned_grid grid;
    dsc_binned_sum *row, *col; /* those of the whole matrix; read and written */
} dsc_matrix_squares_args;

#ifdef __cplusplus
}
#endif
#endif
