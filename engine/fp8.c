/* fp8.c - see fp8.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/fp8.h"

#include <string.h>

#include "engine/init_values.h"

#define ARCH_WITH_FP8 89
#define ARCH_WITH_BLOCKS 90 /* as cuBLASLt's manual says of VEC128_32F and BLK128x128_32F */

static int32_t params_before(const dsc_model *model, int32_t module)
{
    int32_t count = 0;
    for (int32_t m = 0; m < module; m++)
        count += model->modules[m].param_count;
    return count;
}

/* ---- what stage 3 gathers in fp8 ---- */

/* Whether weights in fp8 have groups apart. It does not depend on the stage and the ranks, and so neither does the
 * order of a norm's sum. */
static bool has_groups(const dsc_engine *engine)
{
    const dsc_fp8_section *fp8 = &engine->config.own.fp8;
    return fp8->enabled && !fp8->gather_bf16 && !fp8->blocks && dsc_engine_packed_kind(engine) == DSC_NF4_NONE;
}

bool dsc_plan_gathers_fp8(const dsc_config *config, int32_t world_size)
{
    const dsc_zero_config *zero = &config->zero;
    const dsc_fp8_section *fp8 = &config->own.fp8;
    return fp8->enabled && !fp8->gather_bf16 && !fp8->blocks && fp8->weights != DSC_FP8_WEIGHTS_KEPT &&
           zero->stage == 3 && dsc_plan_shards(config, world_size) > 1 && zero->offload_param == DSC_OFFLOAD_NONE &&
           dsc_plan_neighbours(config, world_size) <= 1 && !zero->quantized_weights && !zero->quantized_frozen_weights;
}

/* layer_numbers[i] <- elements of the weight of the layer in fp8 whose weight begins with parameter i; 0: none does. */
static dsc_status list_layers(const dsc_engine *engine, const dsc_model *model, int64_t *layer_numbers, dsc_error *err)
{
    dsc_fp8_plan plan = { .options = { .gradients = DSC_FP8_E4M3 }, .layer_numbers = layer_numbers };
    const dsc_plan_sink sink = { .fp8 = &plan,
                                 .tensor_align =
                                     engine->config.own.moments == DSC_U8 ? DSC_Q8_BLOCK : DSC_LAYOUT_TENSOR_ALIGN };
    for (int32_t m = 0; m < model->module_count; m++) {
        const dsc_module *module = &model->modules[m];
        dsc_module_plan ignored;
        if ((module->flags & DSC_MODULE_FP8) == 0)
            continue;
        dsc_fp8_plan_module(&plan, params_before(model, m), module->param_count);
        DSC_TRY(module->plan(module, engine->config.train_micro_batch_size_per_gpu, dsc_engine_dtype(engine), &sink,
                             &ignored, err));
    }
    return DSC_OK;
}

static bool is_shared(const dsc_model *model, int32_t m, int32_t p)
{
    bool shared = model->modules[m].params[p].shared_module >= 0;
    for (int32_t i = 0; i < model->module_count; i++)
        for (int32_t j = 0; j < model->modules[i].param_count; j++) {
            const dsc_param_spec *spec = &model->modules[i].params[j];
            shared = shared || (spec->shared_module == m && spec->shared_param == p);
        }
    return shared;
}

/* Parameters of module m from p on whose elements are that many, as one matrix: weights alone, which are trained alike.
 * Returns false if there are no such. */
static bool mark(const dsc_model *model, int32_t m, int32_t p, int64_t numbers, int64_t *of_module)
{
    const dsc_module *module = &model->modules[m];
    int64_t left = numbers;
    for (int pass = 0; pass < 2; pass++, left = numbers)
        for (int32_t i = p; left > 0; i++) {
            if (i == module->param_count)
                return false;
            const dsc_param_spec *spec = &module->params[i];
            if (spec->dim_count != 2)
                continue;
            left -= spec->dim[0] * spec->dim[1];
            if (left < 0 || spec->trainable != module->params[p].trainable || is_shared(model, m, i))
                return false;
            if (pass == 1)
                of_module[i] = i == p ? numbers : -1;
        }
    return true;
}

dsc_status dsc_engine_fp8_matrices(const dsc_engine *engine, const dsc_model *model, int64_t **out, dsc_error *err)
{
    const int64_t count = params_before(model, model->module_count);
    int64_t *matrix = NULL, *layers = NULL;
    dsc_status status = DSC_OK;
    *out = NULL;
    if (!has_groups(engine))
        return DSC_OK;
    DSC_TRY(dsc_alloc_zeroed(engine->alloc, DSC_TAG_CONTROL, count, sizeof *matrix, &matrix, err));
    DSC_TRY_OUT(dsc_alloc_zeroed(engine->alloc, DSC_TAG_CONTROL, 2 * count, sizeof *layers, &layers, err));
    DSC_TRY_OUT(list_layers(engine, model, layers, err));
    for (int32_t c = 0; c < engine->models.cut_count; c++) { /* what is in bf16 for any length is gathered in bf16 */
        memset(layers + count, 0, (size_t)count * sizeof *layers);
        DSC_TRY_OUT(list_layers(engine, &engine->models.cut[c].whole, layers + count, err));
        for (int64_t i = 0; i < count; i++)
            layers[i] = layers[i] == layers[count + i] ? layers[i] : 0;
    }
    for (int32_t m = 0; m < model->module_count; m++)
        for (int32_t p = 0; p < model->modules[m].param_count; p++) {
            int64_t *const of_module = matrix + params_before(model, m);
            if (layers[params_before(model, m) + p] > 0 && of_module[p] == 0)
                (void)mark(model, m, p, layers[params_before(model, m) + p], of_module);
        }
    *out = matrix;
    dsc_alloc_free(engine->alloc, layers);
    return DSC_OK;
out:
    dsc_alloc_free(engine->alloc, layers);
    dsc_alloc_free(engine->alloc, matrix);
    return status;
}

/* ---- the plan ---- */

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
                                            .blocks = fp8->blocks,
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
    const dsc_config *config = o->config;
    const bool all = config->own.recompute == DSC_RECOMPUTE_KEPT;
    const bool alone = config->own.fp8.inputs == DSC_FP8_INPUTS_KEPT && config->own.recompute < DSC_RECOMPUTE_FULL;
    int64_t *const bytes = &plan->module[module].repeated_bytes;
    const int64_t room = *bytes > 0 ? plan->fp8.input_bytes : 0;
    if (!all)
        *bytes = 0;
    if (!has_products(config->own.fp8.enabled, o->model, module) || config->own.fp8.inputs == DSC_FP8_INPUTS_AGAIN ||
        !(all || alone))
        return;
    plan->fp8_inputs[module] = room;
    *bytes = dsc_align_up(*bytes, 256) + room;
}

dsc_status dsc_engine_check_fp8(const dsc_engine *engine, dsc_error *err)
{
    dsc_device_props props;
    dsc_device_props_get(engine->device, &props);
    if (!engine->config.own.fp8.enabled || props.arch == 0)
        return DSC_OK;
    if (engine->config.own.fp8.blocks && props.arch != ARCH_WITH_BLOCKS && props.arch >= ARCH_WITH_FP8)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "dsc.fp8.scaling",
                        "%s (sm_%d) has no products in fp8 with scales of blocks; they need sm_%d (H100, H200); set "
                        "dsc.fp8.scaling tensor",
                        props.name, (int)props.arch, ARCH_WITH_BLOCKS);
    if (props.arch >= ARCH_WITH_FP8)
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
    for (int32_t p = 0; p < engine->layout.param_count; p++)
        engine->work.fp8_gathered[p] = dsc_zero_fp8_scale(engine->zero, engine->layout.param[p].tensor);
    engine->work.fp8.gathered = engine->work.fp8_gathered;
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
