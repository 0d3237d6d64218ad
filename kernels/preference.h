/* preference.h - weights of sequences' gradients in direct preference optimization (Rafailov et al. 2023).
 *
 * A pair is two sequences, the chosen one first. l is the log-probability of a sequence: minus the sum of its items'
 * losses. ref is that of the reference. s smooths the labels, as in Mitchell's conservative DPO.
 *
 *     margin       = (l - ref of the chosen one) - (l - ref of the rejected one)
 *     loss(margin) = -(1 - s) log sigmoid(beta margin) - s log sigmoid(-beta margin)
 *     weight       = -d loss / d l of the chosen one, and its negative for the rejected one
 *
 * reference, the only CPU variant: cpu/preference.c   check: tests/checkkern/preference.c
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_PREFERENCE_H
#define DSC_KERNELS_PREFERENCE_H
#include <math.h>

#include <dsc/types.h>
#ifdef __cplusplus
extern "C" {
#endif

#define DSC_PREFERENCE_LANES 256

/* weights[i] of item i of a sequence is the sequence's: the factor of the gradient of the item's loss. Margins are in
 * double. The sum of a sequence runs in 256 interleaved lanes; then their second half is added to the first one, until
 * one is left. So sums have the same bits on every device. Weights of one margin may differ by two roundings. */
typedef struct dsc_preference_args {
    float *weights;          /* [2 * pairs * items] written */
    const float *losses;     /* [2 * pairs * items] */
    const double *reference; /* [2 * pairs] log-probabilities */
    int64_t pairs, items;
    double beta, smoothing; /* s, from 0 to less than 0.5 */
} dsc_preference_args;

/* Minus the log-probability of a sequence. */
static inline double dsc_preference_sum(const float *losses, int64_t items)
{
    double lane[DSC_PREFERENCE_LANES] = { 0 };
    for (int64_t i = 0; i < items; i++)
        lane[i % DSC_PREFERENCE_LANES] += (double)losses[i];
    for (int half = DSC_PREFERENCE_LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            lane[i] += lane[i + half];
    return lane[0];
}

/* -log sigmoid(x) without overflow. */
static inline double dsc_preference_softplus(double x) { return fmax(-x, 0) + log1p(exp(-fabs(x))); }

static inline double dsc_preference_loss(double beta, double smoothing, double margin)
{
    return (1 - smoothing) * dsc_preference_softplus(beta * margin) +
           smoothing * dsc_preference_softplus(-beta * margin);
}

/* Of the chosen sequence. */
static inline double dsc_preference_weight(double beta, double smoothing, double margin)
{
    return beta * ((1 - smoothing) / (1 + exp(beta * margin)) - smoothing / (1 + exp(-beta * margin)));
}

#ifdef __cplusplus
}
#endif
#endif
