/* counted_targets.h - the number of counted targets of a step, over all ranks and micro-batches.
 *
 * Loss and gradient of a step are divided by its counted targets. A loss module cannot do it, because a micro-batch
 * does not know those of later micro-batches and of other ranks. It divides by all R targets of a micro-batch, counted
 * or not, which is a constant. The engine divides the step's sums by the share of counted targets: N of the K R targets
 * of K micro-batches. For gradients this share joins 1 / K and 1 / loss scale in the update's one factor.
 *
 * So micro-batches of a data source and those that a host program gives one by one have the same path. Kernels have the
 * same arguments in every step, and captured graphs stay valid. The share does not depend on stage, placement, overlap
 * or the number of ranks, so neither do the bits. Without masked targets it is exactly 1 and changes no bit.
 *
 * Ranks exchange their counts (8 bytes) before the passes of a step's last micro-step, because a speculative update
 * begins in these passes with the scalars of the update. Token files have no masked targets, and train_batch with them
 * exchanges nothing. A model for pairs divides by its pairs, which all count: its share is 1.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_COUNTED_TARGETS_H
#define DSC_ENGINE_COUNTED_TARGETS_H

#include <math.h>

#include <dsc/dsc.h>

#include "base/base.h"

/* The part of struct dsc_engine. */
typedef struct dsc_engine_counts {
    int64_t own;     /* sum of this rank's micro-batches in the step so far */
    int64_t of_pass; /* part of `own` from the last pass */
    int64_t all;     /* sum over all ranks, from the exchange to the next step */
    bool masked;     /* a step of this run had masked targets */
} dsc_engine_counts;

/* A mean over all targets becomes the mean over the counted ones; NaN: none is counted. */
static inline double dsc_counted_mean(double mean, int64_t counted, int64_t targets)
{
    DSC_ASSERT(counted >= 0 && counted <= targets);
    return counted == 0 ? (double)NAN : mean / ((double)counted / (double)targets);
}

void dsc_engine_counts_begin(dsc_engine *engine); /* of a step */
void dsc_engine_counts_begin_pass(dsc_engine *engine);
void dsc_engine_counts_add(dsc_engine *engine, int64_t counted); /* a micro-batch's */
/* After the last micro-batch of a step was added. Collective. */
dsc_status dsc_engine_counts_exchange(dsc_engine *engine, dsc_error *err);
int64_t dsc_engine_pass_targets(const dsc_engine *engine); /* R times the micro-batches of a pass */
/* The update divides the gradients' sums by this number and by K: loss scale times the share, or 1 if no target is
 * counted. */
double dsc_engine_sum_divisor(const dsc_engine *engine);
/* Of losses of tokens; the mean of pairs' losses stays. */
double dsc_engine_counted_mean(const dsc_engine *engine, double mean, int64_t counted, int64_t targets);

#endif
