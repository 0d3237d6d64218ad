/* experts.c - see experts.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/experts.h"

#include <math.h>
#include <string.h>

#include "engine/internal.h"
#include "engine/model.h"

static int64_t micro_steps(const dsc_engine *engine) { return engine->config.micro_steps_most; }

static int64_t samples(const dsc_engine *engine) { return engine->config.train_micro_batch_size_per_gpu; }

static int64_t stats_of_rank(const dsc_engine *engine)
{
    return dsc_model_router_stats(engine->model, micro_steps(engine));
}

/* A micro-step's records where the host reads them. */
static void *records_of(const dsc_engine *engine, int64_t micro_step)
{
    const int64_t bytes = dsc_model_records_bytes(engine->model, samples(engine));
    const int64_t slot = engine->host_visible ? micro_step % engine->plan.lanes : micro_step % engine->plan.loss_slots;
    DSC_ASSERT(bytes > 0);
    const dsc_buf *from = engine->host_visible ? &engine->work.records_buf : &engine->work.records_mirror;
    return (char *)from->ptr + slot * bytes;
}

void *dsc_engine_records(const dsc_engine *engine, int32_t mb)
{
    const int64_t bytes = dsc_model_records_bytes(engine->model, samples(engine));
    return bytes > 0 ? (char *)engine->work.records_buf.ptr + mb * bytes : NULL;
}

void dsc_engine_experts_begin(dsc_engine *engine)
{
    if (dsc_model_has_routers(engine->model))
        memset(engine->work.router_stats, 0, (size_t)stats_of_rank(engine) * sizeof *engine->work.router_stats);
}

dsc_status dsc_engine_fetch_records(dsc_engine *engine, int64_t micro_step, dsc_error *err)
{
    const int64_t bytes = dsc_model_records_bytes(engine->model, samples(engine));
    const int64_t mb = micro_step % engine->plan.lanes;
    if (bytes == 0 || engine->host_visible)
        return DSC_OK;
    return dsc_copy(engine->compute, records_of(engine, micro_step), (char *)engine->work.records_buf.ptr + mb * bytes,
                    bytes, err);
}

/* Sums of a micro-batch over all routers; its losses without their factors. 0 without tokens. */
typedef struct router_losses {
    double balance, z, weight;
} router_losses;

static router_losses losses_of(const dsc_engine *engine, void *records)
{
    const dsc_model_experts *x = &engine->model->experts;
    const dsc_moe_record first = dsc_moe_record_at(records, 0, x->experts, samples(engine));
    const double n = (double)*first.tokens * x->routers;
    const double targets = (double)(samples(engine) * engine->models.now->losses_per_sample);
    router_losses out = { .weight = dsc_model_prefers(engine->model) ? 1 : (double)*first.counted / targets };
    if (x->targets < 0)
        out.weight = 1;
    for (int32_t e = 0; e < x->experts && n > 0; e++) {
        double load = 0, probability = 0;
        for (int32_t r = 0; r < x->routers; r++) {
            const dsc_moe_record record = dsc_moe_record_at(records, r, x->experts, samples(engine));
            load += record.load[e];
            probability += (double)record.probability[e];
        }
        out.balance += x->experts * (load / n) * (probability / n);
    }
    for (int32_t r = 0; r < x->routers && n > 0; r++)
        out.z += (double)*dsc_moe_record_at(records, r, x->experts, samples(engine)).z / n;
    return out;
}

double dsc_engine_router_loss(dsc_engine *engine, int64_t micro_step)
{
    const dsc_model_experts *x = &engine->model->experts;
    double *const stats = engine->work.router_stats;
    if (x->routers == 0)
        return 0;
    void *const records = records_of(engine, micro_step);
    const router_losses losses = losses_of(engine, records);
    DSC_ASSERT(micro_step < micro_steps(engine));
    for (int32_t r = 0; r < x->routers; r++) {
        const dsc_moe_record record = dsc_moe_record_at(records, r, x->experts, samples(engine));
        for (int32_t e = 0; e < x->experts; e++)
            stats[DSC_ROUTER_LOSSES * micro_steps(engine) + (int64_t)r * x->experts + e] += record.load[e];
    }
    if (x->balance == 0 && x->z == 0)
        return 0;
    stats[DSC_ROUTER_LOSSES * micro_step] = losses.weight * losses.balance;
    stats[DSC_ROUTER_LOSSES * micro_step + 1] = losses.weight * losses.z;
    return losses.weight * (x->balance * losses.balance + x->z * losses.z);
}

/* The mean of a loss over the step's micro-batches, in the order of micro-steps, then of ranks. */
static double mean_of(const dsc_engine *engine, int loss)
{
    double sum = 0;
    for (int64_t m = 0; m < engine->quota.micro_steps; m++)
        for (int32_t d = 0; d < engine->stages.grid.data; d++) /* 0: no such micro-batch */
            sum += engine->work.router_stats_all[dsc_engine_loss_rank(engine, d) * stats_of_rank(engine) +
                                                 DSC_ROUTER_LOSSES * m + loss];
    return dsc_engine_counted_mean(engine, sum / (double)engine->quota.now.total, engine->counts.all,
                                   dsc_engine_step_targets(engine, engine->progress.step + 1));
}

dsc_status dsc_engine_experts_exchange(dsc_engine *engine, dsc_error *err)
{
    const dsc_model_experts *x = &engine->model->experts;
    const int64_t count = stats_of_rank(engine), first = DSC_ROUTER_LOSSES * micro_steps(engine);
    if (x->routers == 0)
        return DSC_OK;
    DSC_TRY(dsc_comm_all_gather(engine->comms.all, DSC_CHANNEL_CONTROL, engine->work.router_stats_all,
                                engine->work.router_stats, count, DSC_F64, NULL, err));
    for (int64_t i = 0; i < count - first; i++) {
        int64_t sum = 0;
        for (int32_t d = 0; d < engine->stages.grid.data; d++)
            sum += (int64_t)engine->work.router_stats_all[dsc_engine_loss_rank(engine, d) * count + first + i];
        engine->work.expert_load[i] = sum;
    }
    engine->experts.balance = x->balance > 0 ? mean_of(engine, 0) : 0;
    engine->experts.z = x->z > 0 ? mean_of(engine, 1) : 0;
    return DSC_OK;
}

void dsc_engine_tell_experts(const dsc_engine *engine, dsc_step_result *out)
{
    const dsc_model_experts *x = &engine->model->experts;
    const int64_t *load = engine->work.expert_load;
    int64_t most = 0;
    double sum = 0;
    if (x->routers == 0)
        return;
    for (int64_t i = 0; i < (int64_t)x->routers * x->experts; i++) {
        most = load[i] > load[most] ? i : most;
        sum += (double)load[i];
        out->experts_idle += load[i] == 0;
    }
    out->aux_loss = engine->experts.balance;
    out->z_loss = engine->experts.z;
    out->busiest_router = (int32_t)(most / x->experts);
    out->busiest_expert = (int32_t)(most % x->experts);
    out->expert_load_ratio = sum == 0 ? 0 : (double)load[most] * x->routers * x->experts / sum;
}

const int64_t *dsc_engine_expert_load(const dsc_engine *engine)
{
    return engine->model != NULL && engine->progress.step > 0 ? engine->work.expert_load : NULL;
}
