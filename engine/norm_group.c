/* norm_group.c - see norm_group.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/norm_group.h"

#include "engine/internal.h"
#include "engine/model.h"
#include "engine/report.h"
#include "engine/step.h"

/* ---- the model --------------------------------------------------------------------------------------------------- */

static bool has_norms(const dsc_module *module)
{
    return module->forward_group != NULL && module->norm_numbers != NULL && module->norm_numbers(module) > 0;
}

static int64_t elements_of(const dsc_param_spec *spec)
{
    int64_t elements = 1;
    for (int32_t i = 0; i < spec->dim_count; i++)
        elements *= spec->dim[i];
    return elements;
}

/* Elements of a module's gradients, one behind the other. */
static int64_t grad_elements(const dsc_module *module)
{
    int64_t sum = 0;
    for (int32_t p = 0; p < module->param_count; p++)
        sum += module->params[p].trainable ? dsc_align_up(elements_of(&module->params[p]), DSC_BUFFER_ALIGN) : 0;
    return sum;
}

dsc_norm_group_sizes dsc_norm_group_sizes_of(const dsc_model *model)
{
    dsc_norm_group_sizes out = { 0 };
    for (int32_t m = 0; m < model->module_count; m++) {
        const dsc_module *module = &model->modules[m];
        if (!has_norms(module))
            continue;
        out.numbers = dsc_max_i64(out.numbers, module->norm_numbers(module));
        out.grads = dsc_max_i64(out.grads, grad_elements(module));
    }
    return out;
}

dsc_status dsc_norm_group_check(const dsc_engine *engine, dsc_error *err)
{
    const dsc_model *model = engine->model;
    if (engine->config.own.norm_group == 0)
        return DSC_OK;
    for (int32_t m = 0; m < model->module_count; m++)
        for (int32_t b = 0; b < model->modules[m].buffer_count; b++)
            if (dsc_buffer_is_folded(&model->modules[m].buffers[b]) && !has_norms(&model->modules[m]))
                return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "dsc.batch_norm.synchronized",
                                "module %.60s of model %.60s has the running average \"%.100s\" and no pass over a "
                                "group of micro-batches; leave the key out",
                                model->modules[m].name, model->name, model->modules[m].buffers[b].name);
    if (dsc_norm_group_sizes_of(model).numbers > 0)
        return DSC_OK;
    return DSC_FAIL(err, DSC_ERR_CONFIG, "dsc.batch_norm.synchronized",
                    "model %.60s has no batch norm; leave the key out", model->name);
}

bool dsc_norm_group_has(const dsc_engine *engine, int32_t module)
{
    return engine->plan.norm_each > 0 && has_norms(&engine->models.now->modules[module]);
}

/* ---- exchange ---------------------------------------------------------------------------------------------------- */

static dsc_status gather(dsc_engine *engine, void *all, const void *own, int64_t numbers, dsc_error *err)
{
    if (engine->clock != NULL) /* virtual GPUs have no values */
        return DSC_OK;
    return dsc_comm_all_gather(engine->comms.all, DSC_CHANNEL_CONTROL, all, own, numbers, DSC_F32, NULL, err);
}

/* In host memory, where a GPU's numbers go for it. */
static dsc_status exchange(dsc_norm_group *group, int64_t count, dsc_error *err)
{
    dsc_engine *engine = group->user;
    const int64_t numbers = group->each * count, bytes = numbers * (int64_t)sizeof(float);
    float *const mirror = engine->work.norm_mirror.ptr;
    if (group->ranks == 1)
        return dsc_copy(engine->compute, group->all, group->own, bytes, err);
    if (engine->host_visible) {
        DSC_TRY(dsc_stream_sync(engine->compute, err));
        return gather(engine, group->all, group->own, numbers, err);
    }
    DSC_TRY(dsc_copy(engine->compute, mirror, group->own, bytes, err));
    DSC_TRY(dsc_stream_sync(engine->compute, err));
    DSC_TRY(gather(engine, mirror + numbers, mirror, numbers, err));
    return dsc_copy(engine->compute, group->all, mirror + numbers, group->ranks * bytes, err);
}

/* ---- passes ------------------------------------------------------------------------------------------------------ */

typedef struct group_call {
    dsc_engine *engine;
    int32_t module, each;
    dsc_norm_group group;
    dsc_module_ctx *ctx; /* [each] */
} group_call;

/* The contexts point into *out. */
static void begin(dsc_engine *engine, int32_t module, bool save, group_call *out)
{
    const int64_t numbers = dsc_norm_group_sizes_of(engine->model).numbers;
    float *const own = engine->work.norm_buf.ptr;
    const int32_t each = engine->plan.norm_each;
    *out = (group_call) { .engine = engine, .module = module, .each = each, .ctx = engine->work.norm_ctx };
    out->group = (dsc_norm_group) { .ranks = engine->place.size,
                                    .each = each,
                                    .own = own,
                                    .all = own + each * numbers,
                                    .exchange = exchange,
                                    .user = engine };
    for (int32_t mb = 0; mb < each; mb++) {
        dsc_module_ctx *ctx = &out->ctx[mb];
        dsc_step_context(engine, module, mb, save, ctx);
        ctx->training = true;
        ctx->norm_group = &out->group;
        ctx->scratch = (char *)engine->work.scratch_buf.ptr + mb * engine->plan.scratch_frame;
        ctx->out = engine->work.out[dsc_engine_at(engine, mb, module)];
    }
}

/* The statistics of the group are those of each of its micro-batches; the first one's are folded. */
static dsc_status forward(dsc_engine *engine, int32_t m, bool save, dsc_span_kind kind, dsc_error *err)
{
    const dsc_module *module = &engine->models.now->modules[m];
    group_call call;
    begin(engine, m, save, &call);
    if (kind == DSC_SPAN_FORWARD)
        call.ctx[0].statistic = dsc_engine_buffer_statistics(engine, m, 0);
    const int64_t start = dsc_engine_span_start(engine, kind, m);
    DSC_TRY(module->forward_group(module, call.ctx, call.each, err));
    dsc_engine_span_end(engine, kind, m, start);
    return DSC_OK;
}

dsc_status dsc_norm_group_forward(dsc_engine *engine, int32_t module, dsc_error *err)
{
    return forward(engine, module, engine->config.own.recompute != DSC_RECOMPUTE_FULL, DSC_SPAN_FORWARD, err);
}

/* Gradients of a micro-batch wait here, since a part has its memory when its turn comes. */
static float **place_gradients(const dsc_engine *engine, const dsc_module *module, int32_t mb)
{
    float **const grad = engine->work.norm_grad + mb * module->param_count;
    float *at = (float *)engine->work.norm_grads_buf.ptr + mb * dsc_norm_group_sizes_of(engine->model).grads;
    for (int32_t p = 0; p < module->param_count; p++) {
        const bool trained = module->params[p].trainable;
        grad[p] = trained ? at : NULL;
        at += trained ? dsc_align_up(elements_of(&module->params[p]), DSC_BUFFER_ALIGN) : 0;
    }
    return grad;
}

static dsc_status give_gradients(dsc_engine *engine, int32_t m, int32_t mb, dsc_error *err)
{
    const dsc_module *module = &engine->models.now->modules[m];
    float *const *from = engine->work.norm_grad + mb * module->param_count;
    const int64_t micro_step = engine->progress.micro_step + mb;
    DSC_TRY(dsc_zero_grad_part(engine->zero, m, micro_step, engine->work.grad, err));
    for (int32_t p = 0; p < module->param_count; p++)
        if (engine->work.grad[p] != NULL)
            DSC_TRY(dsc_copy(engine->compute, engine->work.grad[p], from[p],
                             elements_of(&module->params[p]) * (int64_t)sizeof(float), err));
    return dsc_zero_reduce(engine->zero, m, micro_step, err);
}

static dsc_status compute_again(dsc_engine *engine, int32_t m, dsc_error *err)
{
    const dsc_recompute_policy again =
        dsc_plan_recompute(&engine->config, &engine->models.now->modules[m], &engine->plan.module[m]);
    if (again == DSC_RECOMPUTE_FORWARD)
        return forward(engine, m, true, DSC_SPAN_RECOMPUTE, err);
    for (int32_t mb = 0; mb < engine->plan.norm_each && again != DSC_RECOMPUTE_NOTHING; mb++)
        DSC_TRY(dsc_step_module_rebuild(engine, m, mb, err));
    return DSC_OK;
}

dsc_status dsc_norm_group_backward(dsc_engine *engine, int32_t m, dsc_error *err)
{
    const dsc_module *module = &engine->models.now->modules[m];
    group_call call;
    DSC_TRY(compute_again(engine, m, err));
    begin(engine, m, true, &call);
    for (int32_t mb = 0; mb < call.each; mb++) {
        call.ctx[mb].grad = place_gradients(engine, module, mb);
        call.ctx[mb].d_out = dsc_step_output_gradient(engine, m, mb);
        DSC_TRY(dsc_step_input_gradient(engine, m, mb, &call.ctx[mb].d_in, err));
    }
    const int64_t start = dsc_engine_span_start(engine, DSC_SPAN_BACKWARD, m);
    DSC_TRY(module->backward_group(module, call.ctx, call.each, err));
    dsc_engine_span_end(engine, DSC_SPAN_BACKWARD, m, start);
    for (int32_t mb = 0; mb < call.each; mb++)
        DSC_TRY(give_gradients(engine, m, mb, err));
    return DSC_OK;
}
