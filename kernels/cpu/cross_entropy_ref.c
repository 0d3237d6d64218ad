/* cross_entropy_ref.c - softmax, loss and dlogits of a row in double, rounded once. SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>

#include "kernels/cpu/range.h"
#include "kernels/scalar.h"

static void skip_row(const dsc_cross_entropy_args *a, int64_t r)
{
    a->losses[r] = 0;
    for (int64_t v = 0; a->write_gradient && v < a->stride; v++)
        dsc_put(a->logits, r * a->stride + v, a->dtype, 0);
}

/* z of a logit, and its slope. */
static double curved(const dsc_cross_entropy_args *a, int64_t at, double *slope)
{
    const dsc_logit_curve curve = dsc_logit_curve_of(a);
    const double x = (double)curve.inner * (double)dsc_get(a->logits, at, a->dtype), t = tanh(x);
    const double inner = (double)curve.inner, outer = (double)curve.outer;
    *slope = outer > 0 ? inner * outer * (1 - t * t) : inner;
    return outer > 0 ? outer * t : x;
}

void dsc_cross_entropy_ref(const void *args, int64_t first, int64_t last)
{
    const dsc_cross_entropy_args *a = args;
    for (int64_t r = first; r < last; r++) {
        const int64_t at = r * a->stride;
        const int32_t target = a->targets[r];
        DSC_ASSERT(target < a->vocab);
        if (target < 0) {
            skip_row(a, r);
            continue;
        }
        double max = -(double)INFINITY, sum = 0, slope = 0;
        for (int64_t v = 0; v < a->vocab; v++)
            max = fmax(max, curved(a, at + v, &slope));
        for (int64_t v = 0; v < a->vocab; v++)
            sum += exp(curved(a, at + v, &slope) - max);
        const float scale = a->weights != NULL && a->write_gradient ? a->scale * a->weights[r] : a->scale;
        a->losses[r] = (float)(log(sum) - (curved(a, at + target, &slope) - max));
        for (int64_t v = 0; a->write_gradient && v < a->stride; v++) {
            double d = 0;
            if (v < a->vocab)
                d = exp(curved(a, at + v, &slope) - max) / sum - (v == target ? 1 : 0);
            dsc_put(a->logits, at + v, a->dtype, (float)(d * (double)scale * slope));
        }
    }
}
