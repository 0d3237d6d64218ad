/* quota.h - the micro-batches of a step over the ranks of a run (base/quota.h), and their measurement.
 *
 * With "dsc.quota": "measured" the first steps have even quotas. Each rank times its modules meanwhile, without its
 * waits for other ranks. After MEASURED_STEPS steps every rank computes the same new quotas from all times: those with
 * which the slowest rank ends soonest. Later steps keep them. Memory is planned for the largest quota that a
 * measurement may give (dsc_config.micro_steps_most). SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_QUOTA_H
#define DSC_ENGINE_QUOTA_H

#include <dsc/dsc.h>

#include "base/quota.h"

/* The part of struct dsc_engine. */
typedef struct dsc_engine_quota {
    dsc_quota now;       /* quotas of the data ranks */
    int64_t micro_steps; /* the largest quota of a step */
    int64_t own;         /* this rank's */
    int64_t *of_rank;    /* [W] memory of measured quotas; NULL: quotas are not measured */
    double *seconds;     /* [W] of a micro-batch, over the measured steps */
    int64_t steps;       /* measured so far */
    int64_t module_ns;   /* time in modules of this rank in the step so far */
    bool settled;        /* nothing is measured any more */
} dsc_engine_quota;

dsc_status dsc_engine_open_quota(dsc_engine *engine, dsc_error *err); /* after the config is resolved */
void dsc_engine_close_quota(dsc_engine *engine);
/* This rank has a micro-batch in that micro-step. */
bool dsc_engine_has_micro_batch(const dsc_engine *engine, int64_t micro_step);
/* Quotas differ, or may come to: passes are those of train_batch. */
bool dsc_engine_quotas_differ(const dsc_engine *engine);
/* After a step, whose statistics all ranks have: perhaps the quotas of the next one. */
dsc_status dsc_engine_measure_quota(dsc_engine *engine, dsc_error *err);

#endif
