/* preference.c - weights of pairs against the formula in double: one rounding beside that of exp.
 * SPDX-License-Identifier: Apache-2.0 */
#include "tests/checkkern/ck.h"

#include <math.h>

/* Minus the sum in any order: fp32 numbers of one size add up in double without an error that counts here. */
static double log_probability(const dsc_preference_args *a, int64_t sequence)
{
    double sum = 0;
    for (int64_t i = 0; i < a->items; i++)
        sum += ck_start(a->losses, sequence * a->items + i);
    return -sum;
}

static double reward(const dsc_preference_args *a, int64_t sequence)
{
    return a->beta * (log_probability(a, sequence) - a->reference[sequence]);
}

/* -d loss / d l of the chosen sequence as the difference of two losses. */
static double slope(const dsc_preference_args *a, double margin)
{
    const double h = 1e-4;
    return (dsc_preference_loss(a->beta, a->smoothing, margin - h) -
            dsc_preference_loss(a->beta, a->smoothing, margin + h)) /
           (2 * h);
}

static void verify(const void *args)
{
    const dsc_preference_args *a = args;
    for (int64_t p = 0; p < a->pairs; p++) {
        const double margin = reward(a, 2 * p) - reward(a, 2 * p + 1);
        const double good = 1 / (1 + exp(-margin)), bad = 1 / (1 + exp(margin));
        const double weight = a->beta * ((1 - a->smoothing) * bad - a->smoothing * good);
        const double off = a->beta * 0x1p-22;
        for (int64_t i = 0; i < 2 * a->items; i++)
            ck_near(a->weights, 2 * p * a->items + i, i < a->items ? weight : -weight, off);
        if (fabs(slope(a, margin / a->beta) - weight) > 1e-6 * a->beta)
            ck_fail("the weight of pair %lld is %.9g and the slope of its loss %.9g", (long long)p, weight,
                    slope(a, margin / a->beta));
    }
    ck_same(a->weights);
}

static void check(int64_t pairs, int64_t items, double beta, double smoothing)
{
    if (!ck_case("preference pairs=%lld items=%lld beta=%g smoothing=%g", (long long)pairs, (long long)items, beta,
                 smoothing))
        return;
    float *losses = ck_buf(CK_IN, DSC_F32, 2 * pairs * items, "losses");
    double *reference = ck_buf(CK_IN, DSC_F64, 2 * pairs, "reference");
    ck_normal(losses, 2, 1);
    for (int64_t s = 0; s < 2 * pairs; s++) {
        double sum = 0;
        for (int64_t i = 0; i < items; i++)
            sum += (double)losses[s * items + i];
        reference[s] = -sum + (double)(s % 7) - 3; /* margins of some units, of either sign, and 0 */
    }
    const dsc_preference_args args = { .weights = ck_buf(CK_OUT, DSC_F32, 2 * pairs * items, "weights"),
                                       .losses = losses,
                                       .reference = reference,
                                       .pairs = pairs,
                                       .items = items,
                                       .beta = beta,
                                       .smoothing = smoothing };
    ck_kernel(DSC_KERNEL_PREFERENCE, &args, sizeof args, verify);
}

void ck_preference(void)
{
    static const int64_t lengths[] = { 1, 2, 255, 256, 257, 513, 4096 };
    for (size_t l = 0; l < DSC_COUNT(lengths); l++) {
        check(3, lengths[l], 0.1, 0);
        check(4, lengths[l], 1, 0.25);
    }
    check(0, 16, 0.1, 0);
    check(65, 33, 200, 0); /* sigmoids of 0 and 1 */
}
