/* truncated_model.c - curriculum learning: the model for samples that are shorter than its own.
 *
 * A module has a fixed sample length. Each length of the schedule therefore has a separate table of modules over the
 * whole model's parameters, opened and planned before the run. The memory is that of the whole model. A training step
 * runs one of the tables. Evaluation and generation between steps run the whole model.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "engine/internal.h"
#include "engine/model.h"

static bool same_params(const dsc_module *a, const dsc_module *b)
{
    bool same = a->param_count == b->param_count;
    for (int32_t p = 0; same && p < a->param_count; p++) {
        const dsc_param_spec *left = &a->params[p], *right = &b->params[p];
        same = strcmp(left->name, right->name) == 0 && left->dim_count == right->dim_count &&
               memcmp(left->dim, right->dim, (size_t)left->dim_count * sizeof *left->dim) == 0;
    }
    return same;
}

static dsc_status open_cut(dsc_engine *engine, dsc_truncated_model *cut, dsc_error *err)
{
    const dsc_model *whole = engine->model;
    DSC_TRY(dsc_engine_open_config_model(engine, cut->length, false, &cut->opened, err));
    DSC_ASSERT(cut->opened->module_count == whole->module_count);
    DSC_TRY(dsc_alloc_zeroed(engine->alloc, DSC_TAG_CONTROL, whole->module_count, sizeof *cut->modules, &cut->modules,
                             err));
    for (int32_t m = 0; m < whole->module_count; m++) {
        DSC_ASSERT(same_params(&cut->opened->modules[m], &whole->modules[m]));
        cut->modules[m] = cut->opened->modules[m];
        cut->modules[m].params = whole->modules[m].params; /* which says what is frozen */
    }
    cut->whole = *cut->opened;
    cut->whole.modules = cut->modules;
    cut->model = &cut->whole;
    return DSC_OK;
}

/* A causal model's first tokens are what they are whatever follows them; that is what can be cut. */
static dsc_status check_model(const dsc_engine *engine, dsc_error *err)
{
    const char *const where = "curriculum_learning";
    const dsc_model *model = engine->model;
    if (engine->models.opened == NULL)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, where, "the model is the host program's own, for samples of one "
                        "length; name one by dsc.model");
    if (model->seq_length <= 0 || model->losses_per_sample != model->seq_length ||
        model->labels.kind != DSC_LABELS_NONE)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, where, "%s does not predict each next token: its samples cannot be "
                        "cut; leave the section out", model->name);
    if (engine->config.own.cuda_graphs)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, where, "graphs are of one length of samples; leave out "
                        "dsc.cuda_graphs");
    return DSC_OK;
}

dsc_status dsc_engine_open_cuts(dsc_engine *engine, dsc_error *err)
{
    int64_t lengths[DSC_CURRICULUM_LENGTHS_MAX];
    if (!engine->config.curriculum.enabled)
        return DSC_OK;
    DSC_TRY(check_model(engine, err));
    const int count = dsc_curriculum_lengths(&engine->config.curriculum, engine->model->seq_length, lengths);
    if (count > DSC_CURRICULUM_LENGTHS_MAX)
        return DSC_FAIL(err, DSC_ERR_CONFIG, "curriculum_learning", "samples would have more than %d different "
                        "lengths; give a larger difficulty_step", DSC_CURRICULUM_LENGTHS_MAX);
    DSC_TRY(dsc_alloc_zeroed(engine->alloc, DSC_TAG_CONTROL, count, sizeof *engine->models.cut, &engine->models.cut,
                             err));
    for (; engine->models.cut_count < count; engine->models.cut_count++) {
        engine->models.cut[engine->models.cut_count].length = lengths[engine->models.cut_count];
        const dsc_status status = open_cut(engine, &engine->models.cut[engine->models.cut_count], err);
        if (status != DSC_OK) {
            engine->models.cut_count++; /* as far as it came */
            return status;
        }
    }
    return DSC_OK;
}

void dsc_engine_close_cuts(dsc_engine *engine)
{
    for (int32_t c = 0; c < engine->models.cut_count; c++) {
        dsc_alloc_free(engine->alloc, engine->models.cut[c].modules);
        dsc_model_close(&engine->models.cut[c].opened);
    }
    dsc_alloc_free(engine->alloc, engine->models.cut);
}

int32_t dsc_engine_cut_of(const dsc_engine *engine, int64_t length)
{
    for (int32_t c = 0; c < engine->models.cut_count; c++)
        if (engine->models.cut[c].length == length)
            return c;
    DSC_ASSERT(engine->model == NULL || length == engine->model->seq_length);
    return -1;
}

void dsc_engine_set_length(dsc_engine *engine, int64_t length)
{
    const int32_t cut = dsc_engine_cut_of(engine, length);
    engine->models.now = cut < 0 ? engine->model : engine->models.cut[cut].model;
}

int64_t dsc_engine_length(const dsc_engine *engine, int64_t step)
{
    return engine->model == NULL ? 0
                                 : dsc_curriculum_length(&engine->config.curriculum, step, engine->model->seq_length);
}

int64_t dsc_engine_step_tokens(const dsc_engine *engine, int64_t step)
{
    const int64_t length = dsc_engine_length(engine, step);
    if (engine->model == NULL)
        return 0;
    return engine->config.train_batch_size * (length > 0 ? length : engine->model->losses_per_sample);
}

int64_t dsc_engine_step_targets(const dsc_engine *engine, int64_t step)
{
    const int32_t cut = dsc_engine_cut_of(engine, dsc_engine_length(engine, step));
    const dsc_model *model = cut < 0 ? engine->model : engine->models.cut[cut].model;
    return engine->config.train_batch_size * model->losses_per_sample;
}

double dsc_engine_step_flops(const dsc_engine *engine, int64_t step)
{
    const dsc_config *config = &engine->config;
    const int32_t cut = dsc_engine_cut_of(engine, dsc_engine_length(engine, step));
    const double all = (double)engine->quota.now.total;
    if (dsc_stages_are_used(&engine->stages))
        return all * dsc_stages_sizes_of(engine, dsc_engine_length(engine, step))->flops;
    return all * (cut < 0 ? engine->plan.flops_per_micro_batch
                          : dsc_plan_flops(config, engine->model,
                                           &engine->plan.shorter[cut * engine->model->module_count]));
}
