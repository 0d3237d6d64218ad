/* skipped_step.c - a step whose gradients are not finite: no update, no step of the rate's schedule, a lower loss
 * scale. Rank 0 logs the first place. A step without a counted target has no update either, and keeps the loss scale.
 * All ranks decide equally. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>

#include "engine/internal.h"
#include "engine/model.h"
#include "engine/update.h"

/* "; the loss of rank 1 in micro-step 2 is not finite either": a forward pass, whose rank is known. */
static void describe_losses(const dsc_engine *engine, char *out, size_t out_bytes)
{
    const int64_t words = dsc_step_stat_count(&engine->config);
    out[0] = 0;
    for (int64_t m = 0; m < engine->quota.micro_steps; m++)
        for (int32_t d = 0; d < engine->stages.grid.data; d++) {
            const int32_t r = dsc_engine_loss_rank(engine, d);
            if (!dsc_quota_has(&engine->quota.now, d, m) || isfinite(engine->work.step_stat_count[r * words + m]))
                continue;
            snprintf(out, out_bytes, "; the loss of rank %d in micro-step %lld is not finite either", (int)r,
                     (long long)(m + 1));
            return;
        }
}

/* The first gradient that is not finite; name "": none. */
typedef struct bad_gradient {
    char name[164];
    int64_t rank;
} bad_gradient;

/* The result of all tensor ranks: the first that has one. Collective. */
static dsc_status of_first_tensor_rank(dsc_engine *engine, bad_gradient *own, dsc_error *err)
{
    dsc_comm *const comm = engine->comms.side[DSC_SUB_TENSOR].host;
    const bad_gradient mine = *own;
    for (int32_t t = engine->stages.grid.tensor - 1; t >= 0 && comm != NULL; t--) {
        bad_gradient theirs = mine;
        DSC_TRY(dsc_comm_broadcast(comm, 0, &theirs, (int64_t)sizeof theirs, t, NULL, err));
        if (theirs.name[0] != 0 || t == engine->stages.grid.tensor - 1)
            *own = theirs;
    }
    return DSC_OK;
}

/* The result of all stages. Collective. */
static dsc_status find_gradient(dsc_engine *engine, bad_gradient *out, dsc_error *err)
{
    const dsc_engine_stages *stages = &engine->stages;
    bad_gradient own = { .rank = 0 }, of_stage;
    int32_t tensor, rank;
    DSC_TRY(dsc_zero_find_nonfinite(engine->zero, &tensor, &rank, err));
    if (tensor >= 0)
        snprintf(own.name, sizeof own.name, "%.160s", engine->layout.tensor[tensor].spec->name);
    own.rank = (stages->stage * stages->grid.data + rank) * stages->grid.tensor + stages->tensor_rank;
    DSC_TRY(of_first_tensor_rank(engine, &own, err));
    *out = own;
    for (int32_t s = stages->grid.pipeline - 1; s >= 0 && dsc_stages_are_used(stages); s--) {
        of_stage = own;
        DSC_TRY(dsc_comm_broadcast(engine->comms.side[DSC_SUB_PIPELINE].host, 0, &of_stage, (int64_t)sizeof of_stage, s,
                                   NULL, err));
        if (of_stage.name[0] != 0 || s == stages->grid.pipeline - 1)
            *out = of_stage;
    }
    return DSC_OK;
}

/* Kind and first place of a value that is not finite. Collective. */
static dsc_status describe(dsc_engine *engine, char *out, size_t out_bytes, dsc_error *err)
{
    bad_gradient bad;
    char losses[96];
    DSC_TRY(find_gradient(engine, &bad, err));
    describe_losses(engine, losses, sizeof losses);
    if (bad.name[0] != 0)
        snprintf(out, out_bytes, "the gradient of %.160s, of rank %d's part, has Inf or NaN%s", bad.name, (int)bad.rank,
                 losses);
    else
        snprintf(out, out_bytes, "the gradients' norm is not a number%s", losses);
    return DSC_OK;
}

static dsc_status count_skip(dsc_engine *engine, const char *what, dsc_error *err)
{
    const int64_t limit = engine->config.own.skip_limit;
    if (limit > 0 && engine->progress.skipped_in_row >= limit)
        return DSC_FAIL(err, DSC_ERR_NUMERIC, "dsc.skip_limit",
                        "%lld steps in a row were skipped, the last at step %lld: %s", (long long)limit,
                        (long long)(engine->progress.step + 1), what);
    return DSC_OK;
}

static dsc_status skip_uncounted(dsc_engine *engine, dsc_error *err)
{
    char what[96];
    snprintf(what, sizeof what, "none of its %lld targets is counted, all are -1 or -100",
             (long long)dsc_engine_step_targets(engine, engine->progress.step + 1));
    engine->progress.skipped_in_row++;
    if (engine->place.rank == 0)
        dsc_log_printf(&engine->log, DSC_LOG_WARNING, "step %lld is skipped: %s",
                       (long long)(engine->progress.step + 1), what);
    return count_skip(engine, what, err);
}

/* spikes.c has the step's line. */
static dsc_status skip_spike(dsc_engine *engine, dsc_error *err)
{
    engine->progress.skipped_in_row++;
    return count_skip(engine, "its loss or gradient norm is a spike (dsc.spikes)", err);
}

dsc_status dsc_engine_skip_step(dsc_engine *engine, dsc_error *err)
{
    const int64_t step = engine->progress.step + 1;
    const double scale = engine->progress.loss_scaler.scale;
    const bool fp16 = dsc_engine_dtype(engine) == DSC_F16;
    char what[320], scales[96] = "";
    if (engine->counts.all == 0)
        return skip_uncounted(engine, err);
    if (engine->spikes.skips)
        return skip_spike(engine, err);
    DSC_TRY(describe(engine, what, sizeof what, err));
    engine->progress.skipped_in_row++;
    if (!dsc_loss_scaler_next(&engine->config, true, &engine->progress.loss_scaler))
        return DSC_FAIL(err, DSC_ERR_NUMERIC, "fp16.min_loss_scale",
                        "step %lld: %s, and the loss scale is at its minimum %.9g already", (long long)step, what,
                        scale);
    if (fp16 && engine->progress.loss_scaler.scale != scale)
        snprintf(scales, sizeof scales, ", loss scale %.9g becomes %.9g", scale, engine->progress.loss_scaler.scale);
    else if (fp16)
        snprintf(scales, sizeof scales, ", loss scale stays %.9g", scale);
    if (engine->place.rank == 0)
        dsc_log_printf(&engine->log, DSC_LOG_WARNING, "step %lld is skipped: %s%s", (long long)step, what, scales);
    return count_skip(engine, what, err);
}
