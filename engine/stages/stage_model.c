/* stage_model.c - see stage_model.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/stages/stage_model.h"

#include <string.h>

#include "base/base.h"

int32_t dsc_stage_of_module(const int32_t *first, int32_t stages, int32_t module)
{
    int32_t s = 0;
    DSC_ASSERT(module >= 0 && module < first[stages]);
    while (module >= first[s + 1])
        s++;
    return s;
}

static dsc_status refuse_shared(const dsc_param_spec *spec, const char *why, dsc_error *err)
{
    return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "dsc.grid.pipeline",
                    "parameter \"%.160s\" is shared by modules of several stages, and %s; use fewer stages", spec->name,
                    why);
}

static dsc_status add_tie(const dsc_model *whole, const int32_t *first, int32_t stages, int32_t param,
                          dsc_stage_tie ties[DSC_STAGE_TIES_MAX], int32_t *count, dsc_error *err)
{
    const dsc_module *loss = &whole->modules[whole->module_count - 1];
    const dsc_param_spec *spec = &loss->params[param];
    const int32_t owner = dsc_stage_of_module(first, stages, spec->shared_module);
    if (*count == DSC_STAGE_TIES_MAX)
        return refuse_shared(spec, "the loss module has more than 4 such parameters", err);
    dsc_stage_tie *tie = &ties[(*count)++];
    *tie = (dsc_stage_tie) { .owner_module = spec->shared_module,
                             .owner_param = spec->shared_param,
                             .user_param = param,
                             .elements = 1,
                             .trainable = spec->trainable };
    for (int32_t d = 0; d < spec->dim_count; d++)
        tie->elements *= spec->dim[d];
    for (int32_t i = 0; i < *count - 1; i++) {
        if (dsc_stage_of_module(first, stages, ties[i].owner_module) != owner)
            return refuse_shared(spec, "the owners of such parameters are in different stages", err);
        if (ties[i].owner_module == tie->owner_module && ties[i].owner_param == tie->owner_param)
            return refuse_shared(spec, "the loss module uses it twice", err);
    }
    return DSC_OK;
}

dsc_status dsc_stage_find_ties(const dsc_model *whole, const int32_t *first, int32_t stages,
                               dsc_stage_tie ties[DSC_STAGE_TIES_MAX], int32_t *count, dsc_error *err)
{
    *count = 0;
    for (int32_t m = 0; m < whole->module_count; m++)
        for (int32_t p = 0; p < whole->modules[m].param_count; p++) {
            const dsc_param_spec *spec = &whole->modules[m].params[p];
            const int32_t stage = dsc_stage_of_module(first, stages, m);
            if (spec->shared_module < 0 || spec->shared_module >= first[stage])
                continue;
            if (m != whole->module_count - 1)
                return refuse_shared(spec, "its later user is not the loss module", err);
            DSC_TRY(add_tie(whole, first, stages, p, ties, count, err));
        }
    return DSC_OK;
}

/* ---- the boundary ---- */

static dsc_status plan_boundary(const dsc_module *module, int64_t batch, dsc_dtype dtype, const dsc_plan_sink *sink,
                                dsc_module_plan *out, dsc_error *err)
{
    *out = (dsc_module_plan) { .out_elements = 0 };
    return DSC_OK;
}

/* The schedule works on the boundary; nobody calls its passes. */
static dsc_status pass_boundary(const dsc_module *module, dsc_module_ctx *ctx, dsc_error *err)
{
    DSC_ASSERT(false);
    return DSC_ERR_INTERNAL;
}

/* The trainable tied parameters that this stage owns, as uses by the boundary. Returns their number. */
static int32_t fill_boundary_specs(const dsc_stage_model *stage, const dsc_stage_tie *ties, int32_t tie_count,
                                   dsc_param_spec *specs)
{
    int32_t count = 0;
    for (int32_t i = 0; i < tie_count; i++) {
        const dsc_stage_tie *tie = &ties[i];
        if (!tie->trainable || tie->owner_module < stage->first || tie->owner_module >= stage->first + stage->count)
            continue;
        specs[count] = stage->whole->modules[tie->owner_module].params[tie->owner_param];
        specs[count].shared_module = tie->owner_module - stage->first;
        specs[count].shared_param = tie->owner_param;
        count++;
    }
    return count;
}

static void fill_boundary(dsc_stage_model *stage, const dsc_stage_tie *ties, int32_t tie_count, int64_t at)
{
    const dsc_module *loss = &stage->whole->modules[stage->whole->module_count - 1];
    const dsc_module boundary = {
        .struct_bytes = (uint32_t)sizeof boundary,
        .flags = loss->flags | DSC_MODULE_BACKWARD_WITHOUT_PARAMS, /* it stands for the loss module */
        .name = "boundary",
        .param_count = fill_boundary_specs(stage, ties, tie_count, stage->state_specs + at),
        .params = stage->state_specs + at,
        .plan = plan_boundary,
        .forward = pass_boundary,
        .backward = pass_boundary,
    };
    memcpy(stage->run_specs + at, stage->state_specs + at, (size_t)boundary.param_count * sizeof *stage->run_specs);
    stage->run_modules[stage->count] = stage->state_modules[stage->count] = boundary;
    stage->run_modules[stage->count].params = stage->run_specs + at;
}

/* ---- the modules ---- */

static void fill_specs(const dsc_stage_model *stage, const dsc_module *module, int64_t at)
{
    for (int32_t p = 0; p < module->param_count; p++) {
        dsc_param_spec *run = &stage->run_specs[at + p], *states = &stage->state_specs[at + p];
        *run = module->params[p];
        const bool shared = run->shared_module >= 0, copied = shared && run->shared_module < stage->first;
        if (copied)
            run->shared_module = run->shared_param = -1;
        else if (shared)
            run->shared_module -= stage->first;
        *states = *run;
        states->trainable = run->trainable && !copied;
    }
}

static void fill_modules(dsc_stage_model *stage, const dsc_stage_tie *ties, int32_t tie_count)
{
    int64_t at = 0;
    for (int32_t i = 0; i < stage->count; i++) {
        const dsc_module *module = &stage->whole->modules[stage->first + i];
        fill_specs(stage, module, at);
        stage->run_modules[i] = stage->state_modules[i] = *module;
        stage->run_modules[i].params = stage->run_specs + at;
        stage->state_modules[i].params = stage->state_specs + at;
        at += module->param_count;
    }
    if (!stage->ends)
        fill_boundary(stage, ties, tie_count, at);
}

static dsc_status load_param(const dsc_model *model, int32_t module, int32_t param, int64_t first, int64_t count,
                             float *out, bool *found, dsc_error *err)
{
    const dsc_stage_model *stage = (const dsc_stage_model *)(const void *)model;
    DSC_ASSERT(model == &stage->run && module < stage->count);
    return stage->whole->load_param(stage->whole, stage->first + module, param, first, count, out, found, err);
}

static dsc_status load_packed(const dsc_model *model, int32_t module, int32_t param, dsc_packed_part part,
                              int64_t first, int64_t bytes, void *out, bool *found, dsc_error *err)
{
    const dsc_stage_model *stage = (const dsc_stage_model *)(const void *)model;
    DSC_ASSERT(model == &stage->run && module < stage->count);
    return stage->whole->load_packed(stage->whole, stage->first + module, param, part, first, bytes, out, found, err);
}

static void fill_models(dsc_stage_model *stage)
{
    stage->run = *stage->whole;
    stage->run.module_count = stage->count + !stage->ends;
    stage->run.modules = stage->run_modules;
    stage->run.close = NULL;
    stage->run.show_module = NULL;
    stage->run.load_buffer = NULL;
    if (stage->run.load_param != NULL)
        stage->run.load_param = load_param;
    if (stage->run.load_packed != NULL)
        stage->run.load_packed = load_packed;
    stage->states = stage->run;
    stage->states.modules = stage->state_modules;
}

dsc_status dsc_stage_model_open(dsc_alloc *alloc, const dsc_model *whole, int32_t first, int32_t end,
                                const dsc_stage_tie *ties, int32_t tie_count, dsc_stage_model *out, dsc_error *err)
{
    dsc_status status = DSC_OK;
    int64_t specs = DSC_STAGE_TIES_MAX;
    DSC_ASSERT(first < end && end <= whole->module_count);
    dsc_stage_model stage = {
        .whole = whole, .first = first, .count = end - first, .alloc = alloc, .ends = end == whole->module_count
    };
    for (int32_t m = first; m < end; m++)
        specs += whole->modules[m].param_count;
    DSC_TRY_OUT(
        dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, stage.count + 1, sizeof *stage.run_modules, &stage.run_modules, err));
    DSC_TRY_OUT(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, stage.count + 1, sizeof *stage.state_modules,
                                 &stage.state_modules, err));
    DSC_TRY_OUT(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, specs, sizeof *stage.run_specs, &stage.run_specs, err));
    DSC_TRY_OUT(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, specs, sizeof *stage.state_specs, &stage.state_specs, err));
    fill_modules(&stage, ties, tie_count);
    fill_models(&stage);
    *out = stage;
    return DSC_OK;
out:
    dsc_stage_model_close(&stage);
    return status;
}

void dsc_stage_model_close(dsc_stage_model *stage)
{
    if (stage->alloc == NULL)
        return;
    dsc_alloc_free(stage->alloc, stage->state_specs);
    dsc_alloc_free(stage->alloc, stage->run_specs);
    dsc_alloc_free(stage->alloc, stage->state_modules);
    dsc_alloc_free(stage->alloc, stage->run_modules);
    *stage = (dsc_stage_model) { .alloc = NULL };
}
