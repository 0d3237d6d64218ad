/* fp8.c - see fp8.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/fp8.h"

#define ARCH_WITH_FP8 89

static int32_t params_before(const dsc_model *model, int32_t module)
{
    int32_t count = 0;
    for (int32_t m = 0; m < module; m++)
        count += model->modules[m].param_count;
    return count;
}

/* Parameters that stay where they are can have a second copy. Others are gathered or fetched for each use. */
static bool keeps_weights(const dsc_config *config)
{
    const bool stay = config->zero.stage < 3 && config->zero.offload_param == DSC_OFFLOAD_NONE;
    return config->own.fp8.weights == DSC_FP8_WEIGHTS_KEPT || (config->own.fp8.weights == DSC_FP8_WEIGHTS_AUTO && stay);
}

dsc_status dsc_plan_fp8_open(const dsc_plan_options *o, dsc_plan *plan, dsc_error *err)
{
    const dsc_fp8_section *fp8 = &o->config->own.fp8;
    const int64_t count = params_before(o->model, o->model->module_count);
    if (!fp8->enabled)
        return DSC_OK;
    DSC_ASSERT(o->compute_dtype == DSC_BF16);
    plan->fp8.options = (dsc_fp8_options) { .gradients = fp8->hybrid ? DSC_FP8_E5M2 : DSC_FP8_E4M3,
                                            .fast = fp8->fast,
                                            .keeps_weights = keeps_weights(o->config) };
    DSC_TRY(dsc_alloc_zeroed(o->alloc, DSC_TAG_CONTROL, count, sizeof *plan->fp8.weight_at, &plan->fp8.weight_at, err));
    for (int64_t i = 0; i < count; i++)
        plan->fp8.weight_at[i] = -1;
    return dsc_alloc_zeroed(o->alloc, DSC_TAG_CONTROL, o->model->module_count, sizeof *plan->fp8_inputs,
                            &plan->fp8_inputs, err);
}

static bool has_products(bool enabled, const dsc_model *model, int32_t module)
{
    return enabled && (model->modules[module].flags & DSC_MODULE_FP8) != 0;
}

dsc_fp8_plan *dsc_plan_fp8_of(const dsc_plan_options *o, dsc_plan *plan, int32_t module)
{
    if (!has_products(o->config->own.fp8.enabled, o->model, module))
        return NULL;
    dsc_fp8_plan_module(&plan->fp8, params_before(o->model, module), o->model->modules[module].param_count);
    return &plan->fp8;
}

void dsc_plan_fp8_inputs(const dsc_plan_options *o, dsc_plan *plan, int32_t module)
{
    int64_t *const bytes = &plan->module[module].repeated_bytes;
    if (!has_products(o->config->own.fp8.enabled, o->model, module) || *bytes == 0 ||
        o->config->own.recompute != DSC_RECOMPUTE_KEPT)
        return;
    plan->fp8_inputs[module] = plan->fp8.input_bytes;
    *bytes = dsc_align_up(*bytes, 256) + plan->fp8.input_bytes;
}

dsc_status dsc_engine_check_fp8(const dsc_engine *engine, dsc_error *err)
{
    dsc_device_props props;
    dsc_device_props_get(engine->device, &props);
    if (!engine->config.own.fp8.enabled || props.arch == 0 || props.arch >= ARCH_WITH_FP8)
        return DSC_OK;
    return DSC_FAIL(
        err, DSC_ERR_UNSUPPORTED, "dsc.fp8",
        "%s (sm_%d) has no products in fp8; they need sm_%d or newer (RTX 40, L40S, H100); leave dsc.fp8 out",
        props.name, (int)props.arch, ARCH_WITH_FP8);
}

void dsc_engine_open_fp8(dsc_engine *engine)
{
    if (!engine->config.own.fp8.enabled)
        return;
    dsc_fp8_cache_open(&engine->work.fp8, &engine->plan.fp8, engine->work.fp8_buf.ptr, engine->work.fp8_is_cast);
    dsc_engine_fp8_changed(engine);
}

dsc_fp8_cache *dsc_engine_fp8(dsc_engine *engine, int32_t module, int32_t mb, dsc_fp8_pass pass)
{
    if (!has_products(engine->config.own.fp8.enabled, engine->model, module))
        return NULL;
    const int64_t bytes = pass != DSC_FP8_ALONE ? engine->plan.fp8_inputs[module] : 0;
    const int64_t all_params = params_before(engine->model, engine->model->module_count);
    char *const repeated = engine->work.repeated[dsc_engine_at(engine, mb, module)];
    const dsc_fp8_call call = {
        .first = params_before(engine->model, module),
        .count = engine->model->modules[module].param_count,
        .saves = pass == DSC_FP8_SAVES,
        .inputs = bytes > 0 ? engine->work.fp8_kept + mb * all_params : NULL,
        .room = bytes > 0 ? repeated + engine->plan.module[module].repeated_bytes - bytes : NULL,
        .room_bytes = bytes,
    };
    dsc_fp8_begin(&engine->work.fp8, &call);
    return &engine->work.fp8;
}

void dsc_engine_fp8_changed(dsc_engine *engine)
{
    if (engine->config.own.fp8.enabled)
        dsc_fp8_new_weights(&engine->work.fp8, params_before(engine->model, engine->model->module_count));
}
