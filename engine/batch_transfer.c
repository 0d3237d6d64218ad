/* batch_transfer.c - micro-batches to the device, losses and logits back to the host.
 *
 * If the host can use device memory, no copy is made. Otherwise the compute stream copies a micro-batch before its
 * forward pass, and the losses of a micro-step after its loss module. Each micro-step has a slot for its losses, so
 * that the host waits only at the step's end. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "engine/batch_transfer.h"
#include "engine/internal.h"

dsc_status dsc_engine_give_batch(dsc_engine *engine, int32_t mb, const void *const *host, dsc_error *err)
{
    engine->work.batch[mb] = host;
    dsc_engine_keep_references(engine, engine->progress.micro_step + mb, host);
    if (engine->work.batch_buf.ptr == NULL)
        return DSC_OK;
    void **device = engine->work.device_batch + mb * engine->model->batch_count;
    for (int32_t i = 0; i < engine->models.now->batch_count; i++) {
        const int64_t bytes =
            dsc_batch_tensor_bytes(engine->models.now, engine->config.train_micro_batch_size_per_gpu, i);
        DSC_TRY(dsc_copy(engine->compute, device[i], host[i], bytes, err));
    }
    engine->work.batch[mb] = (const void *const *)device;
    return dsc_event_record(engine->batch_given, engine->compute, err);
}

dsc_status dsc_engine_batch_passed(dsc_engine *engine, dsc_error *err)
{
    return dsc_event_sync(engine->batch_given, err);
}

static float *slot_of(const dsc_engine *engine, int64_t micro_step)
{
    const int64_t slot = micro_step % engine->plan.loss_slots;
    return (float *)((char *)engine->work.host_losses + slot * engine->plan.losses_bytes);
}

static int64_t loss_count(const dsc_engine *engine)
{
    return engine->config.train_micro_batch_size_per_gpu * engine->models.now->losses_per_sample;
}

dsc_status dsc_engine_fetch_losses(dsc_engine *engine, int64_t micro_step, dsc_error *err)
{
    if (engine->host_visible)
        return DSC_OK;
    return dsc_copy(engine->compute, slot_of(engine, micro_step), engine->work.losses, loss_count(engine) * 4, err);
}

int32_t *dsc_engine_places(const dsc_engine *engine)
{
    const dsc_plan *plan = &engine->plan;
    return plan->places_bytes > 0
               ? (int32_t *)(void *)((char *)engine->work.losses + plan->losses_bytes - plan->places_bytes)
               : NULL;
}

dsc_status dsc_engine_fetch_places(dsc_engine *engine, dsc_error *err)
{
    const int64_t before = engine->plan.losses_bytes - engine->plan.places_bytes;
    if (engine->host_visible || engine->plan.places_bytes == 0)
        return DSC_OK;
    return dsc_copy(engine->compute, (char *)slot_of(engine, 0) + before, dsc_engine_places(engine),
                    loss_count(engine) * 4, err);
}

int64_t dsc_engine_count_behind(const dsc_engine *engine, int64_t count, int32_t most)
{
    const dsc_plan *plan = &engine->plan;
    const int32_t *places = (const int32_t *)(const void *)((const char *)slot_of(engine, 0) + plan->losses_bytes -
                                                            plan->places_bytes);
    int64_t behind = 0;
    for (int64_t i = 0; plan->places_bytes > 0 && i < count * engine->models.now->losses_per_sample; i++)
        behind += places[i] >= most;
    return behind;
}

/* Summed in double in order. */
double dsc_engine_mean_loss(const dsc_engine *engine, int64_t micro_step)
{
    const float *losses = slot_of(engine, micro_step);
    const int64_t count = loss_count(engine);
    double sum = 0;
    if (dsc_model_prefers(engine->model))
        return dsc_engine_pair_loss(engine, micro_step, losses);
    for (int64_t i = 0; i < count; i++)
        sum += (double)losses[i];
    return sum / (double)count;
}

double dsc_engine_sample_loss(const dsc_engine *engine, int64_t micro_step, int64_t sample)
{
    const int64_t items = engine->models.now->losses_per_sample;
    const float *losses = slot_of(engine, micro_step) + sample * items;
    double sum = 0;
    for (int64_t i = 0; i < items; i++)
        sum += (double)losses[i];
    return sum / (double)items;
}

int64_t dsc_engine_sample_losses(const dsc_engine *engine, int64_t count, double *out)
{
    const float *losses = slot_of(engine, 0);
    const int64_t items = engine->models.now->losses_per_sample;
    const dsc_label_kind kind = engine->model->labels.kind;
    const bool labels = kind != DSC_LABELS_NONE && !dsc_label_kind_pairs(kind);
    int64_t wrong = 0;
    for (int64_t k = 0; k < engine->config.train_micro_batch_size_per_gpu; k++) {
        double sum = 0;
        for (int64_t i = 0; i < items; i++)
            sum += (double)(labels ? fabsf(losses[k * items + i]) : losses[k * items + i]);
        out[k] = sum / (double)items;
    }
    for (int64_t i = 0; labels && i < count * items; i++)
        wrong += losses[i] < 0;
    return wrong;
}

dsc_status dsc_engine_fetch_logits(dsc_engine *engine, dsc_error *err)
{
    if (!engine->host_visible)
        DSC_TRY(dsc_copy(engine->compute, engine->work.host_logits, engine->work.logits, engine->model->vocab_size * 4,
                         err));
    return dsc_stream_sync(engine->compute, err);
}
