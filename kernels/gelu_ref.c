/* gelu_ref.c - GELU in double, rounded once. 0.5 (1 + tanh(u)) is written as 1 / (1 + exp(-2 u)), which keeps its
 * digits far below zero. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "kernels/range.h"
#include "kernels/scalar.h"

#define SQRT_2_OVER_PI 0.79788456080286535588
#define CUBIC 0.044715

static double gate(double x)
{
    return 1 / (1 + exp(-2 * SQRT_2_OVER_PI * (x + CUBIC * x * x * x)));
}

void dsc_gelu_fwd_ref(const void *args, int64_t first, int64_t last)
{
    const dsc_gelu_fwd_args *a = args;
    const int64_t end = dsc_min_i64(last * DSC_GELU_BLOCK, a->count);
    for (int64_t i = first * DSC_GELU_BLOCK; i < end; i++) {
        const double x = (double)dsc_get(a->in, i, a->dtype);
        dsc_put(a->out, i, a->dtype, (float)(x * gate(x)));
    }
}

void dsc_gelu_bwd_ref(const void *args, int64_t first, int64_t last)
{
    const dsc_gelu_bwd_args *a = args;
    const int64_t end = dsc_min_i64(last * DSC_GELU_BLOCK, a->count);
    for (int64_t i = first * DSC_GELU_BLOCK; i < end; i++) {
        const double x = (double)dsc_get(a->in, i, a->dtype), s = gate(x);
        const double inner = 2 * SQRT_2_OVER_PI * (1 + 3 * CUBIC * x * x);
        /* 1 - s as the gate of -x: without cancellation, and 0 where x^2 times it would be Inf times 0 */
        const double far = gate(-x);
        const double slope = s == 0 || far == 0 ? s : s + x * s * far * inner;
        dsc_put(a->d_in, i, a->dtype, (float)((double)dsc_get(a->d_out, i, a->dtype) * slope));
    }
}
