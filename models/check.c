/* check.c - validates a table of modules, which may be a user's own, before the engine uses it.
 *
 * Everything that later code indexes, multiplies or compares is checked here once. Plans and numbers that a module
 * computes are not: they are code, and code can be wrong in ways that no check sees.
 * SPDX-License-Identifier: Apache-2.0 */
#include <dsc/model.h>

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "kernels/moe.h"

#define MODULES_MAX 65536
#define PARAMS_MAX 65536   /* of one module */
#define NAME_BYTES_MAX 512 /* fits every message and file that carries it */

#define REFUSE(err, where, ...) DSC_FAIL((err), DSC_ERR_STATE, (where), __VA_ARGS__)

/* Names go to terminals, logs and JSON headers. */
static bool good_name(const char *name)
{
    const size_t bytes = name == NULL ? 0 : strlen(name);
    for (size_t i = 0; i < bytes; i++)
        if ((unsigned char)name[i] < 0x20 || name[i] == 0x7f)
            return false;
    return bytes > 0 && bytes <= NAME_BYTES_MAX;
}

/* Elements of a shape; false when a dimension is not positive or the bytes of 8-byte elements overflow. */
static bool good_shape(const int64_t *dim, int32_t dim_count, int64_t *elements)
{
    *elements = 8;
    if (dim_count < 0 || dim_count > DSC_DIMS_MAX)
        return false;
    for (int32_t i = 0; i < dim_count; i++)
        if (dim[i] < 1 || !dsc_mul_i64(*elements, dim[i], elements))
            return false;
    *elements /= 8;
    return true;
}

static dsc_status check_shared(const dsc_model *model, int32_t index, const dsc_param_spec *spec, dsc_error *err)
{
    if (spec->shared_module < 0)
        return DSC_OK;
    if (spec->shared_module >= index)
        return REFUSE(err, spec->name, "shared with module %d, which does not come before module %d",
                      spec->shared_module, index);
    const dsc_module *owner_module = &model->modules[spec->shared_module];
    if (spec->shared_param < 0 || spec->shared_param >= owner_module->param_count)
        return REFUSE(err, spec->name, "shared with parameter %d of module \"%s\", which has %d", spec->shared_param,
                      owner_module->name, owner_module->param_count);
    const dsc_param_spec *owner = &owner_module->params[spec->shared_param];
    if (owner->shared_module >= 0)
        return REFUSE(err, spec->name, "shared with \"%s\", which is shared itself; name its owner", owner->name);
    if (owner->dim_count != spec->dim_count ||
        memcmp(owner->dim, spec->dim, (size_t)spec->dim_count * sizeof *spec->dim) != 0 ||
        owner->part.count != spec->part.count || owner->part.index != spec->part.index)
        return REFUSE(err, spec->name, "its shape is not that of \"%s\", which it shares", owner->name);
    if (owner->trainable != spec->trainable)
        return REFUSE(err, spec->name, "one use is trainable and the other is not");
    return DSC_OK;
}

static bool is_norms(const dsc_param_spec *spec)
{
    return spec->init == DSC_INIT_ROW_NORMS || spec->init == DSC_INIT_COLUMN_NORMS;
}

/* A vector of norms has one for each row, or column, of a matrix of its module. */
static dsc_status check_norms(const dsc_module *module, const dsc_param_spec *spec, dsc_error *err)
{
    if (spec->shared_module >= 0 || spec->shared_param < 0 || spec->shared_param >= module->param_count)
        return REFUSE(err, spec->name, "its first values are norms of parameter %d of module \"%s\", which has %d",
                      spec->shared_param, module->name, module->param_count);
    const dsc_param_spec *of = &module->params[spec->shared_param];
    if (spec->dim_count != 1 || of->dim_count != 2 || is_norms(of) || of->shared_module >= 0 ||
        of->dim[spec->init == DSC_INIT_ROW_NORMS ? 0 : 1] != spec->dim[0])
        return REFUSE(err, spec->name,
                      "its first values cannot be norms of \"%.200s\": that needs a matrix of the "
                      "module's own and a vector with an element for each of its rows or columns",
                      of->name);
    return DSC_OK;
}

/* Every part has some of each run, and the dimension is what this rank gets of them. */
static bool good_part(const dsc_param_spec *spec)
{
    const dsc_param_part *part = &spec->part;
    int64_t whole = 0;
    if (part->index < 0 || part->index >= part->count || part->axis < 0 || part->axis >= spec->dim_count ||
        part->run_count < 1 || part->run_count > DSC_PART_RUNS || spec->parted)
        return false;
    for (int32_t i = 0; i < part->run_count; i++) {
        if (part->run[i] < part->count || !dsc_add_i64(whole, part->run[i], &whole))
            return false;
    }
    return dsc_param_part_length(part, part->index) == spec->dim[part->axis];
}

static dsc_status check_param(const dsc_model *model, int32_t index, int32_t param, int64_t *total, dsc_error *err)
{
    const dsc_module *module = &model->modules[index];
    const dsc_param_spec *spec = &module->params[param];
    int64_t elements = 0;
    if (!good_name(spec->name))
        return REFUSE(err, module->name, "parameter %d: a name of 1 to %d plain characters is needed", param,
                      NAME_BYTES_MAX);
    if (spec->dim_count < 1 || !good_shape(spec->dim, spec->dim_count, &elements) ||
        !dsc_add_i64(*total, elements, total))
        return REFUSE(err, spec->name, "its shape is not a possible size");
    if (spec->part.count > 0 && !good_part(spec))
        return REFUSE(err, spec->name, "part %d of %d along dimension %d does not fit its shape", (int)spec->part.index,
                      (int)spec->part.count, (int)spec->part.axis);
    const bool random = spec->init == DSC_INIT_NORMAL || spec->init == DSC_INIT_UNIFORM;
    if (is_norms(spec))
        return check_norms(module, spec, err);
    if (spec->init != DSC_INIT_ZEROS && spec->init != DSC_INIT_ONES && !random)
        return REFUSE(err, spec->name, "no such initialisation: %d", (int)spec->init);
    if (random && !(isfinite(spec->init_std) && spec->init_std >= 0))
        return REFUSE(err, spec->name, "init_std must be finite and at least 0");
    return check_shared(model, index, spec, err);
}

/* `elements`: of all buffers so far. */
static dsc_status check_buffer(const dsc_module *module, int32_t buffer, int64_t *elements, dsc_error *err)
{
    const dsc_buffer_spec *spec = &module->buffers[buffer];
    const bool steps = spec->kind == DSC_BUFFER_STEPS;
    if (!good_name(spec->name))
        return REFUSE(err, module->name, "buffer %d: a name of 1 to %d plain characters is needed", buffer,
                      NAME_BYTES_MAX);
    if (!steps && spec->kind != DSC_BUFFER_AVERAGE)
        return REFUSE(err, spec->name, "no such kind of buffer: %d", (int)spec->kind);
    if (spec->count < 1 || spec->count > (steps ? 1 : DSC_BUFFERS_ELEMENTS_MAX - *elements))
        return REFUSE(err, spec->name, "a buffer of %lld elements; expected 1%s", (long long)spec->count,
                      steps ? " of a count of steps" : " or more, and at most 3145728 in all buffers together");
    if (!isfinite(spec->init) || fabs(spec->init) > (steps ? 9007199254740992.0 : (double)FLT_MAX) ||
        (steps && (spec->init < 0 || spec->init != floor(spec->init))))
        return REFUSE(err, spec->name, "its first value is %g; expected a %s", spec->init,
                      steps ? "whole number, at least 0" : "finite fp32 number");
    if (!steps && !(spec->momentum >= 0 && spec->momentum <= 1))
        return REFUSE(err, spec->name, "its momentum is %g; expected 0 to 1", spec->momentum);
    *elements += spec->count;
    return DSC_OK;
}

static dsc_status check_buffers(const dsc_model *model, dsc_error *err)
{
    int64_t elements = 0;
    for (int32_t m = 0; m < model->module_count; m++) {
        const dsc_module *module = &model->modules[m];
        if (module->buffer_count < 0 || module->buffer_count > DSC_MODULE_BUFFERS_MAX ||
            (module->buffer_count > 0 && module->buffers == NULL))
            return REFUSE(err, module->name, "%d buffers; expected 0 to %d", module->buffer_count,
                          DSC_MODULE_BUFFERS_MAX);
        for (int32_t b = 0; b < module->buffer_count; b++)
            DSC_TRY(check_buffer(module, b, &elements, err));
    }
    return DSC_OK;
}

static dsc_status check_module(const dsc_model *model, int32_t index, int64_t *total, dsc_error *err)
{
    const dsc_module *module = &model->modules[index];
    const bool last = index == model->module_count - 1;
    if (module->struct_bytes < sizeof *module)
        return REFUSE(err, "", "module %d: struct_bytes is %u, this library needs %zu", index, module->struct_bytes,
                      sizeof *module);
    if (!good_name(module->name))
        return REFUSE(err, "", "module %d: a name of 1 to %d plain characters is needed", index, NAME_BYTES_MAX);
    if ((module->flags & ~(uint32_t)(DSC_MODULE_LOSS | DSC_MODULE_BACKWARD_WITHOUT_PARAMS | DSC_MODULE_MASKS_TARGETS |
                                     DSC_MODULE_FP8)) != 0)
        return REFUSE(err, module->name, "unknown flags 0x%x", module->flags);
    if (((module->flags & DSC_MODULE_LOSS) != 0) != last)
        return REFUSE(err, module->name, last ? "the last module must have DSC_MODULE_LOSS"
                                              : "only the last module may have DSC_MODULE_LOSS");
    if ((module->flags & DSC_MODULE_MASKS_TARGETS) != 0 && !last)
        return REFUSE(err, module->name, "only the last module may have DSC_MODULE_MASKS_TARGETS");
    if (module->plan == NULL || module->forward == NULL || (module->backward == NULL && !last))
        return REFUSE(err, module->name, "plan, forward and backward are needed");
    if (module->rebuild != NULL && last)
        return REFUSE(err, module->name, "the last module has no backward to rebuild anything for");
    if (module->param_count < 0 || module->param_count > PARAMS_MAX ||
        (module->param_count > 0 && module->params == NULL))
        return REFUSE(err, module->name, "%d parameters; expected 0 to %d", module->param_count, PARAMS_MAX);
    for (int32_t i = 0; i < module->param_count; i++)
        DSC_TRY(check_param(model, index, i, total, err));
    return DSC_OK;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Names of buffers, and of parameters that are not shared, are keys of checkpoints. */
static dsc_status check_unique(const dsc_model *model, dsc_error *err)
{
    int64_t count = 0;
    for (int32_t m = 0; m < model->module_count; m++)
        count += model->modules[m].param_count + model->modules[m].buffer_count;
    const char **names = calloc((size_t)count + 1, sizeof *names);
    if (names == NULL)
        return DSC_FAIL(err, DSC_ERR_NOMEM, "", "out of host memory: %lld names", (long long)count);
    count = 0;
    for (int32_t m = 0; m < model->module_count; m++) {
        const dsc_module *module = &model->modules[m];
        for (int32_t p = 0; p < module->param_count; p++)
            if (module->params[p].shared_module < 0)
                names[count++] = module->params[p].name;
        for (int32_t b = 0; b < module->buffer_count; b++)
            names[count++] = module->buffers[b].name;
    }
    qsort(names, (size_t)count, sizeof *names, compare_names);
    dsc_status status = DSC_OK;
    for (int64_t i = 1; i < count && status == DSC_OK; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            status = REFUSE(err, names[i],
                            "two parameters or buffers have this name; set shared_module when they are one parameter");
    free(names);
    return status;
}

/* One int32 target for each loss item. */
static dsc_status check_targets(const dsc_model *model, dsc_error *err)
{
    if ((model->modules[model->module_count - 1].flags & DSC_MODULE_MASKS_TARGETS) == 0)
        return DSC_OK;
    for (int32_t i = 0; i < model->batch_count && model->vocab_size > 0; i++) {
        int64_t elements = 0;
        if (strcmp(model->batch[i].name, DSC_BATCH_TARGETS) == 0 && model->batch[i].dtype == DSC_I32 &&
            good_shape(model->batch[i].dim, model->batch[i].dim_count, &elements) &&
            elements == model->losses_per_sample)
            return DSC_OK;
    }
    return REFUSE(err, model->name,
                  "DSC_MODULE_MASKS_TARGETS needs a vocabulary and an int32 batch tensor \"%s\" with losses_per_sample "
                  "elements",
                  DSC_BATCH_TARGETS);
}

/* The reference of a preference: one double for each sample, behind all other tensors. */
static dsc_status check_preference(const dsc_model *model, dsc_error *err)
{
    const dsc_preference *p = &model->preference;
    const dsc_batch_spec *last = &model->batch[model->batch_count - 1];
    const bool has = strcmp(last->name, DSC_BATCH_REFERENCE) == 0;
    if (p->beta == 0 && !has)
        return DSC_OK;
    if (!(p->beta > 0 && p->beta <= 1e9) || !(p->smoothing >= 0 && p->smoothing < 0.5))
        return REFUSE(err, model->name,
                      "preference: beta %g and smoothing %g; expected a beta above 0 and a smoothing from 0 to less "
                      "than 0.5",
                      p->beta, p->smoothing);
    if (!has || last->dtype != DSC_F64 || last->dim_count != 1 || last->dim[0] != 1 ||
        (model->modules[model->module_count - 1].flags & DSC_MODULE_MASKS_TARGETS) == 0)
        return REFUSE(err, model->name,
                      "a preference needs DSC_MODULE_MASKS_TARGETS and a last batch tensor \"%s\" of one F64",
                      DSC_BATCH_REFERENCE);
    return DSC_OK;
}

/* The batch of labels, in its order. */
static dsc_status check_labels(const dsc_model *model, dsc_error *err)
{
    static const char *const names[] = { "tokens", DSC_BATCH_TARGETS, DSC_BATCH_POSITIONS, DSC_BATCH_POOLED,
                                         DSC_BATCH_SEGMENTS };
    const dsc_labels *labels = &model->labels;
    const bool one = labels->kind == DSC_LABELS_CLASS;
    if (labels->kind == DSC_LABELS_NONE)
        return DSC_OK;
    const int64_t tokens = model->seq_length, items = labels->tokens > 0 ? tokens : 1;
    const bool pairs = dsc_label_kind_pairs(labels->kind);
    const int64_t wanted[] = { tokens, one ? items : pairs ? 2 : labels->count, tokens, items, tokens };
    const bool text = labels->names != NULL || !one;
    bool good = labels->count >= 1 && labels->count <= DSC_LABELS_MAX && model->losses_per_sample == items &&
                model->vocab_size > 0 && (one || labels->tokens == 0) && !(pairs && labels->segments) &&
                model->batch_count == (!text              ? 2
                                       : labels->segments ? 5
                                                          : 4);
    for (int32_t i = text ? 0 : 1; i < model->batch_count && good; i++)
        good = strcmp(model->batch[i].name, names[i]) == 0 && model->batch[i].dim_count == 1 &&
               model->batch[i].dim[0] == wanted[i] && model->batch[i].dtype == (i == 1 && !one ? DSC_F32 : DSC_I32);
    return good ? DSC_OK : REFUSE(err, model->name, "labels need the batch that dsc_labels describes");
}

/* Records of routers. */
static dsc_status check_experts(const dsc_model *model, dsc_error *err)
{
    const dsc_model_experts *x = &model->experts;
    if (x->routers == 0)
        return DSC_OK;
    if (x->routers < 0 || x->routers > MODULES_MAX * 16 || x->experts < 1 || x->experts > DSC_MOE_EXPERTS_MAX ||
        x->top_k < 1 || x->top_k > x->experts || !(x->balance >= 0) || !(x->z >= 0))
        return REFUSE(err, model->name, "%d routers of %d experts, %d for a token; expected at least 1, and 1 to %d",
                      x->routers, x->experts, x->top_k, DSC_MOE_EXPERTS_MAX);
    if (x->targets < -1 || x->targets >= model->batch_count ||
        (x->targets >= 0 && model->batch[x->targets].dtype != DSC_I32))
        return REFUSE(err, model->name, "the routers' targets are batch tensor %d; expected one of I32, or -1",
                      x->targets);
    return DSC_OK;
}

static dsc_status check_batch(const dsc_model *model, dsc_error *err)
{
    int64_t elements = 0;
    if (model->batch_count < 1 || model->batch_count > 16 || model->batch == NULL)
        return REFUSE(err, model->name, "%d batch tensors; expected 1 to 16", model->batch_count);
    for (int32_t i = 0; i < model->batch_count; i++) {
        const dsc_batch_spec *batch = &model->batch[i];
        if (!good_name(batch->name) || dsc_dtype_bytes(batch->dtype) == 0 ||
            !good_shape(batch->dim, batch->dim_count, &elements))
            return REFUSE(err, model->name, "batch tensor %d: its name, dtype or shape is not possible", i);
    }
    if (model->losses_per_sample < 1 || model->losses_per_sample > INT32_MAX)
        return REFUSE(err, model->name, "losses_per_sample is %lld; expected at least 1",
                      (long long)model->losses_per_sample);
    if (model->hidden_size < 0 || model->vocab_size < 0 || model->seq_length < 0)
        return REFUSE(err, model->name, "hidden_size, vocab_size and seq_length must be at least 0");
    DSC_TRY(check_preference(model, err));
    DSC_TRY(check_labels(model, err));
    DSC_TRY(check_experts(model, err));
    return check_targets(model, err);
}

dsc_status dsc_model_check(const dsc_model *model, dsc_error *err)
{
    int64_t total = 0;
    if (model == NULL || model->struct_bytes < sizeof *model)
        return REFUSE(err, "", "dsc_model.struct_bytes is %u, this library needs %zu",
                      model == NULL ? 0 : model->struct_bytes, sizeof *model);
    if (!good_name(model->name))
        return REFUSE(err, "", "a model needs a name of 1 to %d plain characters", NAME_BYTES_MAX);
    if (model->module_count < 1 || model->module_count > MODULES_MAX || model->modules == NULL)
        return REFUSE(err, model->name, "%d modules; expected 1 to %d", model->module_count, MODULES_MAX);
    for (int32_t i = 0; i < model->module_count; i++)
        DSC_TRY(check_module(model, i, &total, err));
    DSC_TRY(check_buffers(model, err));
    DSC_TRY(check_unique(model, err));
    return check_batch(model, err);
}
