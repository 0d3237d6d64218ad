/* grouped_gemm_ref.c - a tile of a grouped product in plain C. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "kernels/cpu/moe_internal.h"
#include "kernels/scalar.h"

typedef struct element_at {
    int64_t first, row, k; /* elements to the next row or column, and to the next k */
} element_at;

static void tile(const dsc_grouped_gemm_args *a, const dsc_grouped_tile *t)
{
    const dsc_grouped_shape s = dsc_grouped_shape_of(a, t->expert);
    const bool weight = a->kind == DSC_GROUPED_WEIGHT;
    const element_at of_a = { dsc_grouped_a_at(a, t->expert), weight ? 1 : s.k, weight ? s.m : 1 };
    const bool across = a->kind == DSC_GROUPED_FORWARD;
    const element_at of_b = { dsc_grouped_b_at(a, t->expert), across ? s.k : 1, across ? 1 : s.n };
    for (int64_t i = t->m0; i < t->m0 + t->rows; i++)
        for (int64_t j = t->n0; j < t->n0 + t->cols; j++) {
            const int64_t at = dsc_grouped_c_at(a, t->expert) + i * s.n + j;
            float sum = 0;
            for (int64_t k = 0; k < s.k; k++)
                sum = fmaf(dsc_get(a->a, of_a.first + i * of_a.row + k * of_a.k, a->dtype),
                           dsc_get(a->b, of_b.first + j * of_b.row + k * of_b.k, a->dtype), sum);
            if (a->add != NULL)
                sum += dsc_get(a->add, at, a->dtype);
            dsc_put(a->c, at, weight ? DSC_F32 : a->dtype, sum);
        }
}

void dsc_grouped_gemm_ref(const void *args, int64_t first, int64_t last)
{
    for (int64_t block = first; block < last; block++) {
        const dsc_grouped_tile t = dsc_grouped_tile_of(args, block);
        tile(args, &t);
    }
}
