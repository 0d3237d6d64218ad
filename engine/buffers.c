/* buffers.c - see buffers.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/buffers.h"

#include <math.h>
#include <string.h>

#include "engine/internal.h"
#include "engine/model.h"

dsc_buffer_sizes dsc_buffer_sizes_of(const dsc_model *model)
{
    dsc_buffer_sizes out = { 0 };
    for (int32_t m = 0; m < model->module_count; m++) {
        const dsc_module *module = &model->modules[m];
        out.count += module->buffer_count;
        out.most = dsc_max_i64(out.most, module->buffer_count);
        for (int32_t b = 0; b < module->buffer_count; b++) {
            const int64_t elements = dsc_align_up(module->buffers[b].count, DSC_BUFFER_ALIGN);
            out.values += module->buffers[b].kind == DSC_BUFFER_AVERAGE ? elements : 0;
            out.statistics += dsc_buffer_is_folded(&module->buffers[b]) ? elements : 0;
        }
    }
    DSC_ASSERT(out.statistics <= out.values);
    return out;
}

void dsc_buffer_fold(float *value, const float *statistic, int64_t count, float momentum)
{
    for (int64_t i = 0; i < count; i++) {
        const float difference = statistic[i] - value[i];
        const float change = momentum * difference;
        value[i] = value[i] + change;
    }
}

/* ---- open ---- */

static float *host_values(const dsc_engine *engine)
{
    return engine->host_visible ? engine->work.buffers_buf.ptr : engine->work.buffers_mirror.ptr;
}

static void place_buffers(dsc_engine *engine)
{
    const dsc_model *model = dsc_stages_whole_model(engine);
    dsc_engine_buffers *const all = &engine->buffers;
    float *host = host_values(engine), *device = engine->work.buffers_buf.ptr, *mean = engine->work.buffer_means;
    int64_t statistic = 0;
    int32_t n = 0;
    for (int32_t m = 0; m < model->module_count; m++) {
        all->first[m] = n;
        for (int32_t b = 0; b < model->modules[m].buffer_count; b++, n++) {
            const dsc_buffer_spec *spec = &model->modules[m].buffers[b];
            const int64_t elements = dsc_align_up(spec->count, DSC_BUFFER_ALIGN);
            const bool average = spec->kind == DSC_BUFFER_AVERAGE, folded = dsc_buffer_is_folded(spec);
            all->stored[n].spec = spec;
            all->stored[n].value = average ? (void *)host : (void *)&engine->work.buffer_steps[n];
            all->stored[n].average = dsc_buffer_has_mean(&engine->config, spec) ? mean : NULL;
            all->on_device[n] = average ? device : NULL;
            all->constant[n] = spec->frozen;
            all->at[n] = folded ? statistic : -1;
            host += average ? elements : 0;
            device += average ? elements : 0;
            mean += all->stored[n].average != NULL ? elements : 0;
            statistic += folded ? elements : 0;
        }
    }
    DSC_ASSERT(n == all->count);
}

dsc_status dsc_engine_open_buffers(dsc_engine *engine, dsc_error *err)
{
    dsc_engine_buffers *const all = &engine->buffers;
    const dsc_model *model = dsc_stages_whole_model(engine);
    const dsc_buffer_sizes sizes = dsc_buffer_sizes_of(model);
    dsc_alloc *alloc = engine->alloc;
    if (sizes.count == 0)
        return DSC_OK;
    all->count = (int32_t)sizes.count;
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, model->module_count, sizeof *all->first, &all->first, err));
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, all->count, sizeof *all->at, &all->at, err));
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, all->count, sizeof *all->stored, &all->stored, err));
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, all->count, sizeof *all->on_device, &all->on_device, err));
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, all->count, sizeof *all->constant, &all->constant, err));
    place_buffers(engine);
    return DSC_OK;
}

void dsc_engine_close_buffers(dsc_engine *engine)
{
    dsc_engine_buffers *const all = &engine->buffers;
    dsc_alloc_free(engine->alloc, all->constant);
    dsc_alloc_free(engine->alloc, all->on_device);
    dsc_alloc_free(engine->alloc, all->stored);
    dsc_alloc_free(engine->alloc, all->at);
    dsc_alloc_free(engine->alloc, all->first);
    *all = (dsc_engine_buffers) { 0 };
}

/* ---- first values ---- */

static dsc_status check_loaded(const dsc_engine *engine, const dsc_ckpt_buffer *b, dsc_error *err)
{
    const char *const model = engine->config.own.model[0] != 0 ? engine->config.own.model : "the model";
    if (b->spec->kind == DSC_BUFFER_STEPS)
        return *(const int64_t *)b->value >= 0
                   ? DSC_OK
                   : DSC_FAIL(err, DSC_ERR_INPUT, model, "buffer \"%.200s\" counts %lld steps; expected 0 or more",
                              b->spec->name, (long long)*(const int64_t *)b->value);
    for (int64_t i = 0; i < b->spec->count; i++)
        if (!isfinite(((const float *)b->value)[i]))
            return DSC_FAIL(err, DSC_ERR_INPUT, model,
                            "buffer \"%.200s\" has the value %g at element %lld; expected finite values", b->spec->name,
                            (double)((const float *)b->value)[i], (long long)i);
    return DSC_OK;
}

static dsc_status init_buffer(dsc_engine *engine, int32_t module, int32_t buffer, dsc_error *err)
{
    const dsc_model *model = dsc_stages_whole_model(engine);
    const dsc_ckpt_buffer *b = &engine->buffers.stored[engine->buffers.first[module] + buffer];
    bool found = false;
    if (model->load_buffer != NULL)
        DSC_TRY(model->load_buffer(model, module, buffer, b->value, &found, err));
    if (found)
        return check_loaded(engine, b, err);
    if (b->spec->kind == DSC_BUFFER_STEPS)
        *(int64_t *)b->value = (int64_t)b->spec->init;
    for (int64_t i = 0; b->spec->kind == DSC_BUFFER_AVERAGE && i < b->spec->count; i++)
        ((float *)b->value)[i] = (float)b->spec->init;
    return DSC_OK;
}

static dsc_status init_all(dsc_engine *engine, dsc_error *err)
{
    const dsc_model *model = dsc_stages_whole_model(engine);
    memset(host_values(engine), 0, (size_t)engine->work.buffers_buf.bytes); /* padding is folded with nothing */
    for (int32_t m = 0; m < model->module_count; m++)
        for (int32_t b = 0; b < model->modules[m].buffer_count; b++)
            DSC_TRY(init_buffer(engine, m, b, err));
    return DSC_OK;
}

dsc_status dsc_engine_init_buffers(dsc_engine *engine, dsc_error *err)
{
    const dsc_buffer_sizes sizes = dsc_buffer_sizes_of(dsc_stages_whole_model(engine));
    dsc_error verdict;
    if (sizes.count == 0)
        return DSC_OK;
    DSC_TRY(dsc_stream_sync(engine->compute, err));
    memset(&verdict, 0, sizeof verdict);
    if (engine->place.rank == 0)
        verdict.status = init_all(engine, &verdict);
    DSC_TRY(
        dsc_comm_broadcast(engine->comms.all, DSC_CHANNEL_CONTROL, &verdict, (int64_t)sizeof verdict, 0, NULL, err));
    if (verdict.status != DSC_OK)
        return DSC_FAIL(err, verdict.status, verdict.where, "%s", verdict.message);
    if (sizes.values > 0)
        DSC_TRY(dsc_comm_broadcast(engine->comms.all, DSC_CHANNEL_CONTROL, host_values(engine), sizes.values * 4, 0,
                                   NULL, err));
    DSC_TRY(dsc_comm_broadcast(engine->comms.all, DSC_CHANNEL_CONTROL, engine->work.buffer_steps,
                               sizes.count * (int64_t)sizeof(int64_t), 0, NULL, err));
    return dsc_engine_give_buffers(engine, err);
}

dsc_status dsc_engine_give_buffers(dsc_engine *engine, dsc_error *err)
{
    const dsc_work *work = &engine->work;
    if (engine->host_visible || work->buffers_buf.bytes == 0)
        return DSC_OK;
    DSC_ASSERT(work->buffers_mirror.bytes >= work->buffers_buf.bytes);
    DSC_TRY(dsc_copy(engine->compute, work->buffers_buf.ptr, work->buffers_mirror.ptr, work->buffers_buf.bytes, err));
    return dsc_stream_sync(engine->compute, err); /* the next fold writes the mirror */
}

/* ---- a step ---- */

/* The first buffer of a module of this rank. */
static int32_t first_of(const dsc_engine *engine, int32_t module)
{
    return engine->buffers.first[engine->stages.own.first + module];
}

const float *const *dsc_engine_buffer_values(const dsc_engine *engine, int32_t module)
{
    const int32_t count = engine->model->modules[module].buffer_count;
    for (int32_t b = 0; b < count; b++)
        engine->work.buffer_values[b] = engine->buffers.on_device[first_of(engine, module) + b];
    return count > 0 ? engine->work.buffer_values : NULL;
}

const bool *dsc_engine_buffer_constants(const dsc_engine *engine, int32_t module)
{
    return engine->model->modules[module].buffer_count > 0 ? engine->buffers.constant + first_of(engine, module) : NULL;
}

static int64_t statistics_of(const dsc_engine *engine)
{
    return engine->buffers.count > 0 ? dsc_buffer_sizes_of(dsc_stages_whole_model(engine)).statistics : 0;
}

float *const *dsc_engine_buffer_statistics(const dsc_engine *engine, int32_t module, int32_t mb)
{
    const int32_t count = engine->model->modules[module].buffer_count;
    if (count == 0)
        return NULL;
    float *const slot = (float *)engine->work.statistics_buf.ptr + mb * statistics_of(engine);
    for (int32_t b = 0; b < count; b++) {
        const int64_t at = engine->buffers.at[first_of(engine, module) + b];
        engine->work.buffer_statistics[b] = at < 0 ? NULL : slot + at;
    }
    return engine->work.buffer_statistics;
}

dsc_status dsc_engine_fetch_statistics(dsc_engine *engine, int64_t micro_step, dsc_error *err)
{
    const int64_t count = statistics_of(engine), mb = micro_step % engine->plan.lanes;
    if (count == 0)
        return DSC_OK;
    DSC_ASSERT(micro_step < engine->config.micro_steps_most);
    return dsc_copy(engine->compute, (float *)engine->work.statistics_own.ptr + micro_step * count,
                    (const float *)engine->work.statistics_buf.ptr + mb * count, count * 4, err);
}

/* The order of micro-batches: micro-steps, then ranks; statistics of a module are those of the ranks that have it. A
 * norm group is one batch, whose statistics its first micro-batch has. */
static void fold_module(dsc_engine *engine, int32_t module, int64_t statistics)
{
    const dsc_quota *quota = &engine->quota.now;
    const int64_t most = engine->config.micro_steps_most, ranks = engine->stages.grid.data;
    const int64_t group = engine->plan.norm_each > 0 ? engine->plan.norm_each * ranks : 1;
    const int64_t first_rank = dsc_stages_first_rank_of(&engine->stages, module);
    const int32_t first = engine->buffers.first[module];
    const int32_t count = dsc_stages_whole_model(engine)->modules[module].buffer_count;
    for (int32_t n = first; n < first + count; n++) {
        const dsc_ckpt_buffer *b = &engine->buffers.stored[n];
        if (b->spec->kind == DSC_BUFFER_STEPS && !b->spec->frozen)
            *(int64_t *)b->value += quota->total / group;
        for (int64_t k = 0; engine->buffers.at[n] >= 0 && k < engine->quota.micro_steps * ranks; k += group) {
            if (!dsc_quota_has(quota, (int32_t)(k % ranks), k / ranks))
                continue;
            const int64_t row = (first_rank + k % ranks * engine->stages.grid.tensor) * most + k / ranks;
            dsc_buffer_fold(b->value, engine->work.statistics_all + row * statistics + engine->buffers.at[n],
                            b->spec->count, (float)b->spec->momentum);
        }
    }
}

/* As in PyTorch such a value stays, and evaluations by it are not finite either. */
static void warn_nonfinite(dsc_engine *engine)
{
    dsc_engine_buffers *const all = &engine->buffers;
    for (int32_t n = 0; n < all->count && !all->warned; n++) {
        const float *value = all->stored[n].value;
        for (int64_t i = 0; all->at[n] >= 0 && i < all->stored[n].spec->count && !all->warned; i++)
            all->warned = !isfinite(value[i]);
        if (all->warned && engine->place.rank == 0)
            dsc_log_printf(&engine->log, DSC_LOG_WARNING,
                           "buffer %.160s is not finite after step %lld: a micro-batch had Inf or NaN there, which an "
                           "average never loses; load an earlier checkpoint, with a lower rate or in bf16",
                           all->stored[n].spec->name, (long long)(engine->progress.step + 1));
    }
}

dsc_status dsc_engine_fold_buffers(dsc_engine *engine, dsc_error *err)
{
    const int64_t count = statistics_of(engine), steps = engine->config.micro_steps_most;
    if (engine->buffers.count == 0)
        return DSC_OK;
    DSC_TRY(dsc_stream_sync(engine->compute, err));
    if (count > 0)
        DSC_TRY(dsc_comm_all_gather(engine->comms.all, DSC_CHANNEL_CONTROL, engine->work.statistics_all,
                                    engine->work.statistics_own.ptr, steps * count, DSC_F32, NULL, err));
    if (engine->clock != NULL) /* virtual GPUs have no values */
        return DSC_OK;
    for (int32_t m = 0; m < dsc_stages_whole_model(engine)->module_count; m++)
        fold_module(engine, m, count);
    warn_nonfinite(engine);
    return dsc_engine_give_buffers(engine, err);
}

/* ---- averages of dsc.ema ---- */

void dsc_engine_average_buffers(dsc_engine *engine, bool first)
{
    const float share = (float)(1 - engine->config.own.ema.decay);
    for (int32_t n = 0; n < engine->buffers.count && engine->clock == NULL; n++) {
        const dsc_ckpt_buffer *b = &engine->buffers.stored[n];
        if (b->average != NULL && first)
            memcpy(b->average, b->value, (size_t)b->spec->count * sizeof *b->average);
        else if (b->average != NULL)
            dsc_buffer_fold(b->average, b->value, b->spec->count, share);
    }
}

dsc_status dsc_engine_exchange_buffers(dsc_engine *engine, dsc_error *err)
{
    for (int32_t n = 0; n < engine->buffers.count; n++) {
        const dsc_ckpt_buffer *b = &engine->buffers.stored[n];
        float *const value = b->value;
        for (int64_t i = 0; b->average != NULL && i < b->spec->count; i++) {
            const float kept = value[i];
            value[i] = b->average[i];
            b->average[i] = kept;
        }
    }
    return dsc_engine_give_buffers(engine, err);
}
