/* binned_sum_ref.c - the recipe of binned_sum.h, one operation a line. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/binned_sum_range.h"

static void add(dsc_binned_sum *sum, const dsc_binned_grid *grid, float g)
{
    double q = (double)g * (double)g;
    for (int k = 0; k < DSC_BINS; k++) {
        const double shifted = q + grid->magic[k];
        const double r = shifted - grid->magic[k];
        sum->bin[k] = sum->bin[k] + r;
        q = q - r;
    }
}

static void rows(const dsc_matrix_squares_args *a, int64_t first, int64_t last)
{
    for (int64_t r = first; r < last; r++) {
        int64_t col, count;
        const float *x = dsc_binned_sum_row(a, r, &col, &count);
        for (int64_t i = 0; i < count; i++)
            add(&a->row[r], &a->grid, x[i] * a->scale);
    }
}

static void cols(const dsc_matrix_squares_args *a, int64_t first, int64_t last)
{
    for (int64_t i = 0; i < a->count; i++) {
        const int64_t col = (a->at + i) % a->cols;
        if (col >= first && col < last)
            add(&a->col[col], &a->grid, a->x[i] * a->scale);
    }
}

const dsc_binned_sum_ops dsc_binned_sum_ref = { rows, cols };
