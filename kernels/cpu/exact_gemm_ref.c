/* exact_gemm_ref.c - exact_gemm.h, one operation a line. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "kernels/cpu/exact_gemm_tile.h"

static float element(const dsc_exact_gemm_args *a, int64_t i, int64_t j)
{
    float s = 0;
    for (int64_t k = 0; k < a->k; k++)
        s = fmaf(a->a[i * a->a_row + k * a->a_col], a->b[k * a->b_row + j * a->b_col], s);
    s = s + 0.0f;
    if (a->d == NULL)
        return a->alpha * s;
    const float kept = a->beta * a->d[i * a->n + j];
    return fmaf(a->alpha, s, kept);
}

void dsc_exact_gemm_ref(const void *args, int64_t first, int64_t last)
{
    const dsc_exact_gemm_args *a = args;
    for (int64_t block = first; block < last; block++) {
        const exact_gemm_tile t = exact_gemm_tile_of(a, block);
        for (int64_t i = t.row; i < t.row + t.rows; i++)
            for (int64_t j = t.col; j < t.col + t.cols; j++)
                a->c[i * a->n + j] = element(a, i, j);
    }
}
