/* host_optimizer.c - sharded optimizer around a host program's own parameters and gradients.
 *
 * The host's tensors are the parameters of one module without computation. The code of a model averages, clips and
 * updates the gradients at stage 1 in fp32. SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/clock.h"
#include "engine/device.h"
#include "engine/hooks.h"
#include "engine/internal.h"
#include "engine/model.h"
#include "engine/update.h"

struct dsc_optimizer {
    dsc_engine *engine;
    dsc_model model;
    dsc_module module;
    dsc_param_spec *specs;
    float **data;   /* the host's tensors */
    int64_t *count; /* and their elements */
    dsc_layout layout;
    dsc_zero *zero;
    bool reads_params;
    const void **param;
    float **grad;
    int64_t step, update_count;
};

static dsc_status check_tensors(const dsc_host_tensor *tensors, int32_t count, dsc_error *err)
{
    if (count < 1)
        return DSC_FAIL(err, DSC_ERR_STATE, "", "an optimizer needs at least one tensor");
    int64_t total = 0;
    for (int32_t i = 0; i < count; i++) {
        if (tensors[i].name == NULL || tensors[i].data == NULL || tensors[i].count < 1 ||
            !dsc_add_i64(total, tensors[i].count, &total) || total > INT64_MAX / 64)
            return DSC_FAIL(err, DSC_ERR_STATE, "", "tensor %d needs a name, data and at least one element", (int)i);
        if (tensors[i].columns < 0 || (tensors[i].columns > 0 && tensors[i].count % tensors[i].columns != 0))
            return DSC_FAIL(err, DSC_ERR_STATE, "", "tensor %d has %lld elements, and no whole rows of %lld columns",
                            (int)i, (long long)tensors[i].count, (long long)tensors[i].columns);
    }
    return DSC_OK;
}

static dsc_status describe(dsc_optimizer *o, const dsc_host_tensor *tensors, int32_t count, dsc_error *err)
{
    dsc_alloc *alloc = o->engine->alloc;
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, count, sizeof *o->specs, &o->specs, err));
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, count, sizeof(float *), &o->data, err));
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, count, sizeof(int64_t), &o->count, err));
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, count, sizeof(void *), &o->param, err));
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, count, sizeof(float *), &o->grad, err));
    for (int32_t i = 0; i < count; i++) {
        const int64_t columns = tensors[i].columns;
        o->data[i] = tensors[i].data;
        o->count[i] = tensors[i].count;
        o->specs[i] = (dsc_param_spec) { .name = tensors[i].name,
                                         .dim_count = columns > 0 ? 2 : 1,
                                         .dim = { columns > 0 ? tensors[i].count / columns : tensors[i].count,
                                                  columns },
                                         .trainable = true,
                                         .decay = true,
                                         .shared_module = -1,
                                         .shared_param = -1 };
    }
    o->module = (dsc_module){ .struct_bytes = (uint32_t)sizeof o->module, .flags = DSC_MODULE_LOSS, .name = "host",
                              .param_count = count, .params = o->specs };
    o->model = (dsc_model) {
        .struct_bytes = (uint32_t)sizeof o->model, .name = "host", .module_count = 1, .modules = &o->module
    };
    return DSC_OK;
}

/* Rank 0's values become everybody's: the owner's master, then every rank's parameters. */
static dsc_status take_values(dsc_optimizer *o, dsc_error *err)
{
    dsc_engine *engine = o->engine;
    for (int32_t t = 0; t < o->layout.tensor_count; t++) {
        const dsc_layout_tensor *tensor = &o->layout.tensor[t];
        float *data = o->data[tensor->param];
        dsc_zero_slice slice;
        dsc_zero_slice_get(o->zero, tensor->group, &slice);
        DSC_TRY(dsc_comm_broadcast(engine->comms.all, DSC_CHANNEL_CONTROL, data, tensor->count * 4, 0, NULL, err));
        int64_t first;
        int64_t count = dsc_layout_span(tensor, slice.first, slice.count, &first);
        void *to;
        if (count == 0)
            continue;
        DSC_TRY(dsc_zero_view(o->zero, tensor->group, DSC_PLANE_MASTER, tensor->offset + first - slice.first, &count,
                              true, &to, err));
        DSC_TRY(dsc_copy(engine->compute, to, data + first, count * 4, err));
    }
    return dsc_zero_publish(o->zero, err);
}

static dsc_status open_optimizer(dsc_optimizer *o, const dsc_host_tensor *tensors, int32_t count, dsc_error *err)
{
    dsc_engine *engine = o->engine;
    DSC_TRY(describe(o, tensors, count, err));
    const dsc_layout_rules rules = { .recipe = engine->config.optimizer.recipe,
                                     .moment_dtype = DSC_F32,
                                     .world_size = engine->place.size };
    DSC_TRY(dsc_layout_open(engine->alloc, &o->model, &rules, &o->layout, err));
    DSC_TRY(dsc_engine_group_params(engine, &o->layout, err));
    const dsc_power_sgd_options power = dsc_hooks_power_sgd(&engine->config);
    const dsc_zero_options options = {
        .alloc = engine->alloc,
        .model = &o->model,
        .layout = &o->layout,
        .stage = dsc_config_compresses_signs(&engine->config) || power.rank > 0 ? 0 : 1,
        .rank = engine->place.rank,
        .compute_dtype = DSC_F32,
        .wire_dtype = engine->config.communication_dtype,
        .grad_part_factor = dsc_config_grad_part_factor(&engine->config, engine->place.size),
        .recipe = engine->config.optimizer.recipe,
        .power_sgd = power,
        .signs = dsc_config_signs(&engine->config),
        .seed = (uint64_t)engine->config.seed,
        .quota = dsc_quota_even(engine->place.size, engine->place.size),
        .micro_batch_group = 1,
        .backward_reads_params = &o->reads_params,
        .world_size_reproducible = engine->config.own.reproducible == DSC_REPRODUCIBLE_WORLD_SIZE,
        .device = engine->device,
        .comm = engine->comms.device,
        .host_comm = engine->comms.all,
        .compute = engine->compute,
    };
    DSC_TRY(dsc_zero_open(&options, &o->zero, err));
    return take_values(o, err);
}

dsc_status dsc_optimizer_open(dsc_optimizer **out, dsc_engine *engine, const dsc_host_tensor *tensors,
                              int32_t tensor_count, dsc_error *err)
{
    *out = NULL;
    if (engine->failed || engine->comms.all == NULL)
        return DSC_FAIL(err, DSC_ERR_STATE, "", "the engine cannot train any more, or only plans");
    DSC_TRY(check_tensors(tensors, tensor_count, err));
    if (engine->config.own.ema.enabled)
        return DSC_FAIL(err, DSC_ERR_CONFIG, "dsc.ema",
                        "the tensors of a host program have no averages here; leave this section out");
    if (engine->config.own.local_sgd.inner_steps > 0)
        return DSC_FAIL(err, DSC_ERR_CONFIG, "dsc.local_sgd",
                        "the tensors of a host program have one copy of the states; leave this section out");
    dsc_alloc_freeze(engine->alloc, false);
    dsc_optimizer *o = NULL;
    DSC_TRY(dsc_alloc_zeroed(engine->alloc, DSC_TAG_CONTROL, 1, sizeof *o, &o, err));
    o->engine = engine;
    const dsc_status status = open_optimizer(o, tensors, tensor_count, err);
    if (status != DSC_OK) {
        (void)dsc_engine_fail(engine, status, err);
        dsc_optimizer_close(&o);
    }
    *out = o;
    return status;
}

void dsc_optimizer_close(dsc_optimizer **optimizer)
{
    dsc_optimizer *o = *optimizer;
    if (o == NULL)
        return;
    dsc_alloc *alloc = o->engine->alloc;
    dsc_zero_close(&o->zero);
    dsc_layout_close(&o->layout);
    dsc_alloc_free(alloc, o->grad);
    dsc_alloc_free(alloc, o->param);
    dsc_alloc_free(alloc, o->count);
    dsc_alloc_free(alloc, o->data);
    dsc_alloc_free(alloc, o->specs);
    dsc_alloc_free(alloc, o);
    *optimizer = NULL;
}

static dsc_status update(dsc_optimizer *o, const float *const *grads, dsc_update *decided, dsc_error *err)
{
    dsc_engine *engine = o->engine;
    if (engine->zero != NULL)
        DSC_TRY(dsc_zero_sync(engine->zero, err)); /* both use the same channels */
    dsc_zero_begin(o->zero, o->update_count + 1);
    DSC_TRY(dsc_zero_step_event(o->zero, DSC_ZERO_HEAD_BEGINS, err));
    DSC_TRY(dsc_zero_grad_part(o->zero, 0, 0, o->grad, err));
    for (int32_t p = 0; p < o->module.param_count; p++)
        DSC_TRY(dsc_copy(engine->compute, o->grad[p], grads[p], o->count[p] * 4, err));
    DSC_TRY(dsc_zero_reduce(o->zero, 0, 0, err));
    DSC_TRY(dsc_update_decide(engine, o->zero, engine->place.size, 1.0, o->update_count + 1, decided, err));
    if (decided->skip)
        return dsc_zero_forget_errors(o->zero, err);
    DSC_TRY(dsc_zero_update(o->zero, decided->scalars, decided->class_count, o->update_count + 1, err));
    DSC_TRY(dsc_zero_acquire(o->zero, 0, 0, o->param, err));
    for (int32_t p = 0; p < o->module.param_count; p++)
        DSC_TRY(dsc_copy(engine->compute, o->data[p], o->param[p], o->count[p] * 4, err));
    DSC_TRY(dsc_zero_sync(o->zero, err));
    o->update_count++;
    return DSC_OK;
}

dsc_status dsc_optimizer_step(dsc_optimizer *o, const float *const *grads, dsc_step_result *result, dsc_error *err)
{
    dsc_engine *engine = o->engine;
    if (engine->failed)
        return DSC_FAIL(err, DSC_ERR_STATE, "", "the engine failed before; close it");
    const int64_t start = dsc_clock_ns();
    dsc_update decided;
    const dsc_status status = update(o, grads, &decided, err);
    if (status != DSC_OK)
        return dsc_engine_fail(engine, status, err);
    o->step++;
    if (result != NULL) {
        dsc_step_result full = DSC_STEP_RESULT_INIT;
        full.step = o->step;
        full.lr = decided.lr;
        full.grad_norm = decided.grad_norm;
        full.skipped = decided.skip;
        full.step_ns = dsc_clock_ns() - start;
        dsc_step_result_give(&full, result);
    }
    return DSC_OK;
}
