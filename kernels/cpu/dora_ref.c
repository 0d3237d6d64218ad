/* dora_ref.c - DoRA's kernels, an operation a line. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "kernels/cpu/range.h"

static float norm_of(const dsc_dora_factors_args *a, int64_t o)
{
    double lane[DSC_DORA_LANES] = { 0 };
    for (int64_t i = 0; i < a->in; i++) {
        float d = 0;
        for (int64_t k = 0; k < a->rank; k++)
            d = fmaf(dsc_get(a->b, o * a->rank + k, a->dtype), dsc_get(a->a, k * a->in + i, a->dtype), d);
        const int64_t at = a->in_out ? i * a->out + o : o * a->in + i;
        const float v = fmaf(a->scale, d, dsc_get(a->weight, at, a->dtype));
        lane[i % DSC_DORA_LANES] += (double)v * (double)v;
    }
    return dsc_dora_norm(lane, a->dtype);
}

void dsc_dora_factors_ref(const void *args, int64_t first, int64_t last)
{
    const dsc_dora_factors_args *a = args;
    for (int64_t o = first * DSC_DORA_OUTPUTS; o < dsc_min_i64(last * DSC_DORA_OUTPUTS, a->out); o++) {
        a->norms[o] = norm_of(a, o);
        a->factors[o] = dsc_dora_factor(dsc_get(a->magnitude, o, a->dtype), a->norms[o]);
    }
}

void dsc_dora_scale_ref(const void *args, int64_t first, int64_t last)
{
    const dsc_dora_scale_args *a = args;
    for (int64_t r = first; r < last; r++)
        for (int64_t c = 0; c < a->cols; c++) {
            const int64_t at = r * a->cols + c;
            float x = dsc_get(a->x, at, a->dtype) * (a->factors[c] + a->offset);
            if (a->bias != NULL)
                x = x + dsc_get(a->bias, c, a->dtype);
            if (a->add != NULL)
                x = x + dsc_get(a->add, at, a->dtype);
            dsc_put(a->out, at, a->dtype, x);
        }
}

void dsc_dora_gradient_ref(const void *args, int64_t first, int64_t last)
{
    const dsc_dora_gradient_args *a = args;
    for (int64_t c = first * DSC_DORA_COLS; c < dsc_min_i64(last * DSC_DORA_COLS, a->cols); c++) {
        float total = 0;
        for (int64_t block = 0; block < a->rows; block += 64) {
            float sum = 0;
            for (int64_t r = block; r < dsc_min_i64(block + 64, a->rows); r++)
                sum += dsc_get(a->d, r * a->cols + c, a->dtype) * dsc_get(a->z, r * a->cols + c, a->dtype);
            total += sum;
        }
        a->out[c] = dsc_dora_factor(total, a->norms[c]);
    }
}
