/* cross_entropy_ref.c - softmax, loss and dlogits of a row in double, rounded once. SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>

#include "kernels/cpu/range.h"
#include "kernels/scalar.h"

/* The row of a target that is not counted. */
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

/* Sum and target of a row, with exponents relative to the largest z. */
typedef struct row_sum {
    double max, sum, at_target;
} row_sum;

static row_sum sum_row(const dsc_cross_entropy_args *a, int64_t r, int64_t target)
{
    row_sum out = { -(double)INFINITY, 0, -(double)INFINITY };
    const int64_t at = r * a->stride;
    double slope = 0;
    for (int64_t v = 0; v < a->vocab; v++)
        out.max = fmax(out.max, curved(a, at + v, &slope));
    for (int64_t v = 0; v < a->vocab; v++)
        out.sum += exp(curved(a, at + v, &slope) - out.max);
    if (target >= 0)
        out.at_target = curved(a, at + target, &slope);
    return out;
}

static void write_row(const dsc_cross_entropy_args *a, int64_t r, int64_t target, row_sum of)
{
    const float scale = a->weights != NULL && a->write_gradient ? a->scale * a->weights[r] : a->scale;
    double slope = 0;
    a->losses[r] = (float)(log(of.sum) - (of.at_target - of.max));
    for (int64_t v = 0; a->write_gradient && v < a->stride; v++) {
        double d = 0;
        if (v < a->vocab)
            d = exp(curved(a, r * a->stride + v, &slope) - of.max) / of.sum - (v == target ? 1 : 0);
        dsc_put(a->logits, r * a->stride + v, a->dtype, (float)(d * (double)scale * slope));
    }
}

void dsc_cross_entropy_ref(const void *args, int64_t first, int64_t last)
{
    const dsc_cross_entropy_args *a = args;
    for (int64_t r = first; r < last; r++) {
        DSC_ASSERT(a->targets[r] < a->vocab);
        if (a->targets[r] < 0)
            skip_row(a, r);
        else
            write_row(a, r, a->targets[r], sum_row(a, r, a->targets[r]));
    }
}

void dsc_cross_entropy_part_ref(const void *args, int64_t first, int64_t last)
{
    const dsc_cross_entropy_parts_args *a = args;
    for (int64_t r = first; r < last; r++) {
        const row_sum sum = sum_row(&a->of, r, dsc_cross_entropy_column(a, r));
        float *part = a->parts + r * DSC_CROSS_ENTROPY_PART;
        part[0] = (float)sum.max, part[1] = (float)sum.sum, part[2] = (float)sum.at_target;
    }
}

static row_sum join_row(const dsc_cross_entropy_parts_args *a, int64_t r)
{
    const float *parts = a->parts + r * DSC_CROSS_ENTROPY_PART;
    const int64_t apart = a->of.rows * DSC_CROSS_ENTROPY_PART;
    row_sum out = { -(double)INFINITY, 0, -(double)INFINITY };
    for (int32_t k = 0; k < a->ranks; k++) {
        out.max = fmax(out.max, (double)parts[k * apart]);
        out.at_target = fmax(out.at_target, (double)parts[k * apart + 2]);
    }
    for (int32_t k = 0; k < a->ranks; k++) {
        const double sum = (double)parts[k * apart + 1];
        out.sum += sum == 0 ? 0 : sum * exp((double)parts[k * apart] - out.max);
    }
    return out;
}

void dsc_cross_entropy_join_ref(const void *args, int64_t first, int64_t last)
{
    const dsc_cross_entropy_parts_args *a = args;
    for (int64_t r = first; r < last; r++) {
        if (a->of.targets[r] < 0)
            skip_row(&a->of, r);
        else
            write_row(&a->of, r, dsc_cross_entropy_column(a, r), join_row(a, r));
    }
}
