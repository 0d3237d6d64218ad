/* counted_targets.c - see counted_targets.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/counted_targets.h"

#include "engine/internal.h"
#include "engine/model.h"

void dsc_engine_counts_begin(dsc_engine *engine) { engine->counts.own = engine->counts.all = 0; }

void dsc_engine_counts_begin_pass(dsc_engine *engine) { engine->counts.of_pass = 0; }

void dsc_engine_counts_add(dsc_engine *engine, int64_t counted)
{
    DSC_ASSERT(counted >= 0);
    engine->counts.of_pass += counted;
    engine->counts.own += counted;
}

static int64_t step_targets(const dsc_engine *engine)
{
    return dsc_engine_step_targets(engine, engine->progress.step + 1);
}

int64_t dsc_engine_pass_targets(const dsc_engine *engine)
{
    return engine->config.train_micro_batch_size_per_gpu * engine->models.now->losses_per_sample *
           engine->plan.micro_batch_group;
}

/* Equal on all ranks. */
static bool may_be_masked(const dsc_engine *engine)
{
    return dsc_batch_targets(engine->model) >= 0 && (engine->input.masks || !engine->progress.in_train_batch);
}

dsc_status dsc_engine_counts_exchange(dsc_engine *engine, dsc_error *err)
{
    dsc_engine_counts *counts = &engine->counts;
    const int64_t size = engine->stages.grid.data; /* every stage reads the same batches */
    const double own = (double)counts->own;
    double *const all = engine->work.step_stat_count; /* free until the step's end */
    const int64_t own_targets = step_targets(engine) / engine->quota.now.total * engine->quota.own;
    DSC_ASSERT(counts->own <= own_targets);
    if (!may_be_masked(engine)) {
        DSC_ASSERT(counts->own == own_targets);
        counts->all = step_targets(engine);
        return DSC_OK;
    }
    DSC_TRY(dsc_comm_all_gather(engine->comms.all, DSC_CHANNEL_CONTROL, all, &own, 1, DSC_F64, NULL, err));
    for (int32_t d = 0; d < size; d++)
        counts->all += (int64_t)all[dsc_engine_loss_rank(engine, d)];
    counts->masked = counts->masked || counts->all < step_targets(engine);
    return DSC_OK;
}

double dsc_engine_sum_divisor(const dsc_engine *engine)
{
    const double scale = engine->progress.loss_scaler.scale;
    if (engine->counts.all == 0 || dsc_model_prefers(engine->model)) /* the step is skipped; pairs count alike */
        return scale;
    return scale * ((double)engine->counts.all / (double)step_targets(engine));
}

double dsc_engine_counted_mean(const dsc_engine *engine, double mean, int64_t counted, int64_t targets)
{
    return dsc_model_prefers(engine->model) ? mean : dsc_counted_mean(mean, counted, targets);
}
