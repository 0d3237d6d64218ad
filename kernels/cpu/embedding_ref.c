/* embedding_ref.c - token plus position, and the sums of their gradients. The variants give these bits.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "kernels/cpu/embedding_sort.h"
#include "kernels/cpu/range.h"
#include "kernels/scalar.h"

void dsc_embedding_fwd_ref(const void *args, int64_t first, int64_t last)
{
    const dsc_embedding_fwd_args *a = args;
    const float factor = dsc_embedding_factor(a->factor);
    for (int64_t r = first; r < last; r++) {
        const int64_t row = dsc_embedding_row(a, r);
        DSC_ASSERT(row >= 0 || a->parted);
        for (int64_t c = 0; c < a->channels; c++) {
            const float x = row >= 0 ? dsc_get(a->table, row * a->channels + c, a->dtype) : 0;
            float y = factor * x;
            if (a->position != NULL)
                y = fmaf(factor, x, dsc_get(a->position, dsc_embedding_position(a, r) * a->channels + c, a->dtype));
            dsc_put(a->out, r * a->channels + c, a->dtype, y);
        }
    }
}

static void add_row(const dsc_embedding_bwd_args *a, float *to, int64_t r)
{
    for (int64_t c = 0; c < a->channels; c++)
        to[c] = to[c] + dsc_get(a->d_out, r * a->channels + c, a->dtype);
}

void dsc_embedding_bwd_table_ref(const void *args, int64_t first, int64_t last)
{
    const dsc_embedding_bwd_args *a = args;
    const dsc_embedding_sort sort = dsc_embedding_sort_of(a);
    const int64_t end = dsc_min_i64(last * DSC_EMBEDDING_TABLE_ROWS, a->vocab);
    const float factor = dsc_embedding_factor(a->factor);
    for (int64_t v = first * DSC_EMBEDDING_TABLE_ROWS; v < end; v++) {
        float *to = a->d_table + v * a->channels;
        memset(to, 0, (size_t)a->channels * sizeof *to);
        const bool padding = v == dsc_embedding_padding(a);
        for (int32_t k = v == 0 ? 0 : sort.end[v - 1]; k < sort.end[v] && !padding; k++)
            add_row(a, to, sort.row[k]);
        for (int64_t c = 0; c < a->channels; c++)
            to[c] = to[c] * factor;
    }
}

void dsc_embedding_bwd_position_ref(const void *args, int64_t first, int64_t last)
{
    const dsc_embedding_bwd_args *a = args;
    for (int64_t p = first; p < last; p++) {
        const int64_t t = p - a->position_first;
        float *to = a->d_position + p * a->channels;
        memset(to, 0, (size_t)a->channels * sizeof *to);
        if (t >= 0 && t < a->sequence)
            for (int64_t r = t; r < a->rows; r += a->sequence)
                add_row(a, to, r);
    }
}
