/* freeze.c - parameters that a run leaves as they are: dsc.freeze's patterns over the names of the model's table.
 *
 * The engine works on a copy of the table whose specs say which are trainable; all else is the model's own. A frozen
 * parameter has no gradient, master or moments anywhere: the layout puts it into its module's frozen group.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "engine/internal.h"
#include "engine/model.h"

/* '*' stands for any text, '?' for one byte. Iterative: after a mismatch the last star takes one byte more. */
bool dsc_name_matches(const char *pattern, const char *name)
{
    const char *star = NULL, *after = NULL;
    while (*name != 0) {
        if (*pattern == '*') {
            star = pattern++;
            after = name;
        } else if (*pattern == '?' || *pattern == *name) {
            pattern++;
            name++;
        } else if (star != NULL) {
            pattern = star + 1;
            name = ++after;
        } else {
            return false;
        }
    }
    while (*pattern == '*')
        pattern++;
    return *pattern == 0;
}

/* Later patterns win; one that begins with '!' takes parameters out again. used[i]: pattern i matched some name. */
static bool is_frozen(const dsc_ext_config *own, const char *name, bool *used)
{
    bool frozen = false;
    for (int i = 0; i < own->freeze_count; i++) {
        const char *pattern = own->freeze[i];
        const bool out = pattern[0] == '!';
        if (!dsc_name_matches(pattern + out, name))
            continue;
        used[i] = true;
        frozen = !out;
    }
    return frozen;
}

/* Own parameters by their names; shared ones follow their owner. */
static int64_t apply(const dsc_ext_config *own, dsc_module *modules, int32_t count, dsc_param_spec *specs, bool *used)
{
    int64_t trainable = 0;
    for (int32_t m = 0; m < count; m++) {
        modules[m].params = specs;
        for (int32_t p = 0; p < modules[m].param_count; p++, specs++) {
            if (specs->shared_module >= 0)
                specs->trainable = modules[specs->shared_module].params[specs->shared_param].trainable;
            else if (is_frozen(own, specs->name, used))
                specs->trainable = false;
            trainable += specs->trainable;
        }
    }
    return trainable;
}

/* Whether a buffer is of a batch norm all of whose parameters are frozen: "NAME.running_mean" beside "NAME.weight". */
static bool is_of_frozen_norm(const dsc_module *module, const char *buffer)
{
    const char *const point = strrchr(buffer, '.');
    const size_t bytes = point != NULL ? (size_t)(point - buffer) + 1 : 0;
    int32_t count = 0;
    for (int32_t p = 0; p < module->param_count && bytes > 0; p++) {
        const char *const name = module->params[p].name;
        if (strncmp(name, buffer, bytes) != 0 || strchr(name + bytes, '.') != NULL)
            continue;
        if (module->params[p].trainable)
            return false;
        count++;
    }
    return count > 0;
}

/* Copies the buffers' specs for those that the run keeps. */
static dsc_status freeze_buffers(dsc_engine *engine, dsc_frozen_model *frozen, dsc_error *err)
{
    const int32_t modules = engine->model->module_count;
    int64_t count = 0, kept = 0;
    for (int32_t m = 0; m < modules; m++)
        count += frozen->modules[m].buffer_count;
    DSC_TRY(
        dsc_alloc_zeroed(engine->alloc, DSC_TAG_CONTROL, count + 1, sizeof *frozen->buffers, &frozen->buffers, err));
    dsc_buffer_spec *spec = frozen->buffers;
    for (int32_t m = 0; m < modules; m++) {
        dsc_module *const module = &frozen->modules[m];
        dsc_buffer_spec *const first = spec;
        for (int32_t b = 0; b < module->buffer_count; b++, spec++) {
            *spec = module->buffers[b];
            spec->frozen = spec->frozen || is_of_frozen_norm(module, spec->name);
            kept += spec->frozen && !module->buffers[b].frozen;
        }
        module->buffers = module->buffer_count > 0 ? first : NULL;
    }
    DSC_ASSERT(spec - frozen->buffers == count);
    if (kept == 0)
        return DSC_FAIL(err, DSC_ERR_CONFIG, "dsc.freeze_batch_norm",
                        "no batch norm of %s has a weight and a bias that dsc.freeze names; name some, as "
                        "\"*.bn1.*\", or leave this key out",
                        engine->model->name);
    return DSC_OK;
}

dsc_status dsc_engine_freeze(dsc_engine *engine, dsc_error *err)
{
    const dsc_ext_config *own = &engine->config.own;
    const dsc_model *model = engine->model;
    dsc_frozen_model *const frozen = &engine->models.frozen;
    bool used[DSC_CONFIG_TEXTS_MAX] = { false };
    int64_t count = 0;
    if (own->freeze_count == 0 && !own->freeze_batch_norm)
        return DSC_OK;
    for (int32_t m = 0; m < model->module_count; m++)
        count += model->modules[m].param_count;
    DSC_TRY(dsc_alloc_zeroed(engine->alloc, DSC_TAG_CONTROL, 1, sizeof *frozen->model, &frozen->model, err));
    DSC_TRY(dsc_alloc_zeroed(engine->alloc, DSC_TAG_CONTROL, model->module_count, sizeof *frozen->modules,
                             &frozen->modules, err));
    DSC_TRY(dsc_alloc_zeroed(engine->alloc, DSC_TAG_CONTROL, count, sizeof *frozen->specs, &frozen->specs, err));
    count = 0;
    for (int32_t m = 0; m < model->module_count; m++) {
        frozen->modules[m] = model->modules[m];
        for (int32_t p = 0; p < model->modules[m].param_count; p++)
            frozen->specs[count++] = model->modules[m].params[p];
    }
    const int64_t trainable = apply(own, frozen->modules, model->module_count, frozen->specs, used);
    for (int i = 0; i < own->freeze_count; i++)
        if (!used[i])
            return DSC_FAIL(err, DSC_ERR_CONFIG, "dsc.freeze",
                            "\"%.200s\" is the name of no parameter of %s; names are those of its safetensors files, "
                            "'*' stands for any text", own->freeze[i], model->name);
    if (trainable == 0)
        return DSC_FAIL(err, DSC_ERR_CONFIG, "dsc.freeze", "nothing is left to train; a pattern \"!NAME\" after the "
                        "others takes parameters out again");
    if (own->freeze_batch_norm)
        DSC_TRY(freeze_buffers(engine, frozen, err));
    *frozen->model = *model;
    frozen->model->modules = frozen->modules;
    frozen->model->close = NULL; /* the copied one is closed */
    engine->model = frozen->model;
    return DSC_OK;
}

void dsc_engine_close_freeze(dsc_engine *engine)
{
    dsc_alloc_free(engine->alloc, engine->models.frozen.buffers);
    dsc_alloc_free(engine->alloc, engine->models.frozen.specs);
    dsc_alloc_free(engine->alloc, engine->models.frozen.modules);
    dsc_alloc_free(engine->alloc, engine->models.frozen.model);
}
