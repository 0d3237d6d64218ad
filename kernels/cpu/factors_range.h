/* factors_range.h - matrix_squares on one thread over some rows or columns: what a variant has to provide. Private to
 * kernels/factors*.c. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CPU_FACTORS_RANGE_H
#define DSC_KERNELS_CPU_FACTORS_RANGE_H

#include "base/base.h"
#include "kernels/factors.h"

/* Sums of rows, or of columns, first..last-1 of the matrix. */
typedef struct dsc_factors_ops {
    void (*rows)(const dsc_matrix_squares_args *a, int64_t first, int64_t last);
    void (*cols)(const dsc_matrix_squares_args *a, int64_t first, int64_t last);
} dsc_factors_ops;

extern const dsc_factors_ops dsc_factors_ref, dsc_factors_avx2, dsc_factors_avx512;

/* What the arguments have of a row: columns [*first, *first + count), returned as a pointer to the first of them. */
static inline const float *dsc_factors_row(const dsc_matrix_squares_args *a, int64_t row, int64_t *first,
                                           int64_t *count)
{
    const int64_t begin = dsc_max_i64(a->at, row * a->cols), end = dsc_min_i64(a->at + a->count, (row + 1) * a->cols);
    *first = begin - row * a->cols;
    *count = end - begin;
    return a->x + (begin - a->at);
}

#endif
