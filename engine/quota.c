/* quota.c - see quota.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/quota.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/internal.h"

#define SKIPPED_STEPS 1  /* caches and pages are cold */
#define MEASURED_STEPS 3 /* after them */

static void use_quota(dsc_engine *engine, const dsc_quota *quota)
{
    engine->quota.now = *quota;
    engine->quota.micro_steps = dsc_quota_micro_steps(quota);
    engine->quota.own = dsc_quota_of(quota, engine->stages.data_rank);
    DSC_ASSERT(engine->quota.micro_steps <= engine->config.micro_steps_most);
}

dsc_status dsc_engine_open_quota(dsc_engine *engine, dsc_error *err)
{
    const int32_t ranks = engine->stages.grid.data;
    const dsc_quota quota = dsc_config_quota(&engine->config, ranks);
    use_quota(engine, &quota);
    engine->quota.settled = true;
    if (engine->config.own.quota.kind != DSC_QUOTA_MEASURED)
        return DSC_OK;
    if (!engine->host_visible)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "dsc.quota",
                        "\"measured\" times the modules of CPU ranks alone in this version; give a list of quotas");
    engine->quota.settled = quota.total == ranks; /* one each, whatever their speeds are */
    DSC_TRY(dsc_alloc_zeroed(engine->alloc, DSC_TAG_CONTROL, ranks, sizeof *engine->quota.of_rank,
                             &engine->quota.of_rank, err));
    return dsc_alloc_zeroed(engine->alloc, DSC_TAG_CONTROL, ranks, sizeof *engine->quota.seconds,
                            &engine->quota.seconds, err);
}

void dsc_engine_close_quota(dsc_engine *engine)
{
    dsc_alloc_free(engine->alloc, engine->quota.seconds);
    dsc_alloc_free(engine->alloc, engine->quota.of_rank);
}

bool dsc_engine_has_micro_batch(const dsc_engine *engine, int64_t micro_step) { return micro_step < engine->quota.own; }

bool dsc_engine_quotas_differ(const dsc_engine *engine)
{
    return engine->quota.of_rank != NULL || !dsc_quota_is_full(&engine->quota.now, engine->quota.micro_steps - 1);
}

/* The time of the slowest rank. */
static double longest(const double *seconds, const dsc_quota *quota)
{
    double most = 0;
    for (int32_t r = 0; r < quota->ranks; r++)
        most = fmax(most, (double)dsc_quota_of(quota, r) * seconds[r]);
    return most;
}

static void report(const dsc_engine *engine, const dsc_quota *before, const dsc_quota *quota)
{
    const double *seconds = engine->quota.seconds;
    char list[512];
    size_t used = 0;
    for (int32_t r = 0; r < quota->ranks && used < sizeof list - 48; r++)
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%lld (%.1f ms)", r > 0 ? ", " : "",
                                 (long long)dsc_quota_of(quota, r), seconds[r] * 1e3);
    if (engine->place.rank == 0)
        dsc_log_printf(&engine->log, DSC_LOG_INFO,
                       "dsc.quota: micro-batches of each rank, and the measured time of one: %s; the slowest rank "
                       "computes %.1f ms a step instead of %.1f",
                       list, longest(seconds, quota) * 1e3, longest(seconds, before) * 1e3);
}

dsc_status dsc_engine_measure_quota(dsc_engine *engine, dsc_error *err)
{
    dsc_engine_quota *const q = &engine->quota;
    const int64_t words = dsc_step_stat_count(&engine->config);
    const double *own = engine->work.step_stat_count + engine->config.micro_steps_most;
    q->module_ns = 0;
    if (q->settled || q->steps++ < SKIPPED_STEPS)
        return DSC_OK;
    for (int32_t r = 0; r < q->now.ranks; r++)
        q->seconds[r] += own[r * words + DSC_STAT_MODULE_NS] * 1e-9 / (double)dsc_quota_of(&q->now, r) / MEASURED_STEPS;
    if (q->steps < SKIPPED_STEPS + MEASURED_STEPS)
        return DSC_OK;
    q->settled = true;
    const dsc_quota before = q->now;
    int64_t *const proposed = q->of_rank;
    for (int32_t r = 0; r < q->now.ranks; r++)
        if (!(q->seconds[r] > 0))
            return DSC_OK; /* a model without work, whose times say nothing */
    dsc_quota_balance(q->seconds, before.ranks, before.total, engine->config.micro_steps_most, proposed);
    const dsc_quota quota = { before.total, before.ranks, proposed };
    report(engine, &before, &quota);
    use_quota(engine, &quota);
    dsc_zero_set_quota(engine->zero, &quota);
    return engine->input.reader == NULL
               ? DSC_OK
               : dsc_reader_set_quota(engine->input.reader, &quota, engine->progress.step, err);
}
