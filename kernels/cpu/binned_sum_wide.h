/* binned_sum_wide.h - matrix_squares in lanes that the compiler makes vectors of: no sum depends on their order.
 * Private to binned_sum_avx2.c and binned_sum_avx512.c. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CPU_BINNED_SUM_WIDE_H
#define DSC_KERNELS_CPU_BINNED_SUM_WIDE_H

#include <string.h>

#include "kernels/cpu/binned_sum_range.h"

#define LANES 16
#define STRIP 64 /* columns whose sums a walk down the rows keeps in the nearest cache */

/* lane[k][j] += what x[j] has on grid k, of `count` elements. */
static inline __attribute__((always_inline)) void add(double *restrict lane, int64_t stride, const float *restrict x,
                                                      int64_t count, const dsc_binned_grid *grid, float scale)
{
    const double first = grid->magic[0], second = grid->magic[1], third = grid->magic[2];
    for (int64_t j = 0; j < count; j++) {
        const float g = x[j] * scale;
        const double q = (double)g * (double)g;
        const double r0 = (q + first) - first, q1 = q - r0;
        const double r1 = (q1 + second) - second, q2 = q1 - r1;
        lane[j] += r0;
        lane[stride + j] += r1;
        lane[2 * stride + j] += (q2 + third) - third;
    }
}

static void rows(const dsc_matrix_squares_args *a, int64_t first, int64_t last)
{
    for (int64_t r = first; r < last; r++) {
        double lane[DSC_BINS * LANES] = { 0 };
        int64_t col, count, i = 0;
        const float *x = dsc_binned_sum_row(a, r, &col, &count);
        for (; i + LANES <= count; i += LANES)
            add(lane, LANES, x + i, LANES, &a->grid, a->scale);
        add(lane, LANES, x + i, count - i, &a->grid, a->scale);
        for (int k = 0; k < DSC_BINS; k++)
            for (int j = 0; j < LANES; j++)
                a->row[r].bin[k] += lane[k * LANES + j];
    }
}

static void strip(const dsc_matrix_squares_args *a, int64_t first, int64_t last)
{
    double lane[DSC_BINS * STRIP] = { 0 };
    const int64_t end_row = dsc_div_ceil(a->at + a->count, a->cols);
    for (int64_t r = a->at / a->cols; r < end_row; r++) {
        int64_t col, count;
        const float *x = dsc_binned_sum_row(a, r, &col, &count);
        const int64_t begin = dsc_max_i64(first, col), end = dsc_min_i64(last, col + count);
        if (begin == first && end == first + STRIP)
            add(lane, STRIP, x + (first - col), STRIP, &a->grid, a->scale);
        else if (begin < end)
            add(lane + (begin - first), STRIP, x + (begin - col), end - begin, &a->grid, a->scale);
    }
    for (int64_t c = first; c < last; c++)
        for (int k = 0; k < DSC_BINS; k++)
            a->col[c].bin[k] += lane[k * STRIP + (c - first)];
}

static void cols(const dsc_matrix_squares_args *a, int64_t first, int64_t last)
{
    for (int64_t c = first; c < last; c += STRIP)
        strip(a, c, dsc_min_i64(last, c + STRIP));
}

#endif
