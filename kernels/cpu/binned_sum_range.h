/* binned_sum_range.h - matrix_squares on one thread over some rows or columns: what a variant has to provide. Private
 * to kernels/binned_sum*.c. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CPU_BINNED_SUM_RANGE_H
#define DSC_KERNELS_CPU_BINNED_SUM_RANGE_H

#include "base/base.h"
#include "kernels/binned_sum.h"

/* Sums of rows, or of columns, first..last-1 of the matrix. */
typedef struct dsc_binned_sum_ops {
    void (*rows)(const dsc_matrix_squares_args *a, int64_t first, int64_t last);
    void (*cols)(const dsc_matrix_squares_args *a, int64_t first, int64_t last);
} dsc_binned_sum_ops;

extern const dsc_binned_sum_ops dsc_binned_sum_ref, dsc_binned_sum_avx2, dsc_binned_sum_avx512;

/* Columns [*first, *first + count) of a row that the arguments cover; returns a pointer to the first of them. */
static inline const float *dsc_binned_sum_row(const dsc_matrix_squares_args *a, int64_t row, int64_t *first,
                                              int64_t *count)
{
    const int64_t begin = dsc_max_i64(a->at, row * a->cols), end = dsc_min_i64(a->at + a->count, (row + 1) * a->cols);
    *first = begin - row * a->cols;
    *count = end - begin;
    return a->x + (begin - a->at);
}

#endif
