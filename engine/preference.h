/* preference.h - training on pairs (dsc.dpo): the frozen reference, and what a step reports about rewards.
 *
 * The reference is the run's starting weights. They have the adapter that the run goes on from, as in TRL; a fresh
 * adapter changes nothing, so its reference is the base model. A model has these weights once, before its first step.
 * One pass over the data without gradients finds the log-probability of each sequence then. A sequence takes 16 bytes,
 * with a hash of its tokens. So no second model is in memory, whatever stage and placement. Checkpoints hold these
 * values: a run that resumes has the reference of its beginning. Each sequence is computed in the shape of a
 * micro-batch, so its log-probability has the bits that the first step's own pass has.
 *
 * The model's head makes the pairs' gradients on the device (models/program/ops_loss.c). Losses of tokens come to the
 * host in any case, and there the loss of a pair and its rewards are made from them. A reward is beta times the
 * log-probability above the reference's. All pairs of a step count alike, whatever number of tokens they have.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_PREFERENCE_H
#define DSC_ENGINE_PREFERENCE_H

#include <dsc/dsc.h>

#include "engine/data/data.h"

/* Means over pairs. */
typedef struct dsc_pair_sums {
    double loss, chosen, rejected, accuracy; /* rewards; the share of pairs with a margin above 0 */
} dsc_pair_sums;
#define DSC_PAIR_STATS 3 /* doubles behind a micro-step's loss in the facts of a step: all but the loss */

/* The part of struct dsc_engine. */
typedef struct dsc_engine_preference {
    dsc_data_reference *train, *eval; /* [stored samples] of the files that the config names; NULL: no such files */
    bool known;                       /* they have their values, on all ranks alike */
} dsc_engine_preference;

static inline bool dsc_model_prefers(const dsc_model *model) { return model->preference.beta > 0; }

/* After the model and the data are open: memory of references. */
dsc_status dsc_engine_open_preference(dsc_engine *engine, dsc_error *err);
void dsc_engine_close_preference(dsc_engine *engine);
/* References of all files, unless known. Collective; precedes the first step. */
dsc_status dsc_engine_need_references(dsc_engine *engine, dsc_error *err);
/* References from a checkpoint's folder, or its parent, instead. Collective; a failure changes nothing. */
dsc_status dsc_engine_load_references(dsc_engine *engine, const char *dir, dsc_error *err);

/* The host's copy of a micro-batch's references, for the losses of that micro-step. */
void dsc_engine_keep_references(dsc_engine *engine, int64_t micro_step, const void *const *host);
/* Log-probabilities above the reference's of the samples of a micro-step, whose fetched losses are given; [M]. */
void dsc_engine_sample_rewards(const dsc_engine *engine, int64_t micro_step, const float *losses, double *out);
/* Adds a pair, of the two samples at `above`, to sums; and their means over `pairs`. */
void dsc_pair_add(const dsc_preference *preference, const double *above, dsc_pair_sums *sums);
dsc_pair_sums dsc_pair_means(dsc_pair_sums sums, int64_t pairs);
/* The mean loss of a micro-step's pairs; writes the others to its place in the facts of the step. */
double dsc_engine_pair_loss(const dsc_engine *engine, int64_t micro_step, const float *losses);
/* Means over the step from the facts of all ranks, in the order of micro-steps, then of ranks. */
dsc_pair_sums dsc_engine_step_pairs(const dsc_engine *engine);

#endif
