/* pipeline_open.c - the grid, the cut of the model into stages, and the layout of all stages.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/hash.h"
#include "engine/buffers.h"
#include "engine/fp8.h"
#include "engine/init_values.h"
#include "engine/internal.h"
#include "engine/pipeline.h"

/* ---- the grid ---- */

dsc_status dsc_stages_place(dsc_engine *engine, dsc_error *err)
{
    dsc_engine_stages *stages = &engine->stages;
    const dsc_grid_section *wanted = &engine->config.own.grid;
    const int32_t size = engine->place.size, count = (int32_t)wanted->pipeline, tensor = (int32_t)wanted->tensor;
    stages->grid = (dsc_grid) { .pipeline = 1, .data = size, .sequence = 1, .tensor = 1 };
    stages->data_rank = engine->place.rank;
    stages->tied_owner = -1;
    if (count == 1 && tensor == 1)
        return DSC_OK;
    const dsc_config_facts facts = { .world_size = size };
    DSC_TRY(dsc_config_resolve(&engine->config, &facts, err)); /* refuses sizes that do not divide */
    stages->grid = (dsc_grid) { count, size / count / tensor, 1, tensor };
    stages->tensor_rank = engine->place.rank % tensor;
    stages->data_rank = engine->place.rank / tensor % stages->grid.data;
    stages->stage = engine->place.rank / tensor / stages->grid.data;
    return DSC_OK;
}

static dsc_status refuse(const dsc_engine *engine, const char *what, dsc_error *err)
{
    return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "dsc.grid.pipeline",
                    "%d stages do not work with %s in this version; leave one of them out",
                    (int)engine->stages.grid.pipeline, what);
}

static dsc_status check_model(const dsc_engine *engine, dsc_error *err)
{
    const dsc_model *model = engine->model;
    const int32_t stages = engine->stages.grid.pipeline;
    if (engine->clock != NULL || engine->times_of_launches != NULL)
        return refuse(engine, "virtual ranks", err);
    if (model->module_count >= stages)
        return DSC_OK;
    return DSC_FAIL(err, DSC_ERR_CONFIG, "dsc.grid.pipeline",
                    "%d stages for the %d modules of %s; a stage has one module at least: use at most %d stages",
                    (int)stages, (int)model->module_count, model->name, (int)model->module_count);
}

/* ---- the cut ---- */

/* A module's plan without its products, for the sizes that follow from the model alone. */
static dsc_status plan_module(const dsc_engine *engine, const dsc_model *whole, int32_t m, dsc_module_plan *out,
                              dsc_error *err)
{
    const dsc_module *module = &whole->modules[m];
    const dsc_plan_sink sink = { .chunk_bytes = engine->config.own.head_chunk_bytes };
    return module->plan(module, engine->config.train_micro_batch_size_per_gpu, dsc_engine_dtype(engine), &sink, out,
                        err);
}

static double parameters_of(const dsc_module *module)
{
    double sum = 0;
    for (int32_t p = 0; p < module->param_count; p++) {
        double count = module->params[p].shared_module < 0;
        for (int32_t d = 0; d < module->params[p].dim_count; d++)
            count *= (double)module->params[p].dim[d];
        sum += count;
    }
    return sum;
}

static dsc_status flops_of(const dsc_engine *engine, const dsc_model *whole, int32_t m, double *out, dsc_error *err)
{
    dsc_module_plan plan;
    DSC_TRY(plan_module(engine, whole, m, &plan, err));
    *out =
        plan.forward_flops + plan.backward_flops + dsc_plan_recompute_flops(&engine->config, &whole->modules[m], &plan);
    return DSC_OK;
}

/* weight[module_count] of the modules. */
static dsc_status weigh(const dsc_engine *engine, double *weight, dsc_error *err)
{
    const dsc_model *whole = engine->stages.whole;
    for (int32_t m = 0; m < whole->module_count; m++) {
        DSC_TRY(flops_of(engine, whole, m, &weight[m], err));
        if (engine->config.own.grid.partition == DSC_PARTITION_PARAMETERS)
            weight[m] = parameters_of(&whole->modules[m]);
    }
    return DSC_OK;
}

static dsc_status cut(dsc_engine *engine, dsc_error *err)
{
    dsc_engine_stages *stages = &engine->stages;
    const int32_t modules = stages->whole->module_count;
    double *weight = NULL;
    DSC_TRY(dsc_alloc_zeroed(engine->alloc, DSC_TAG_CONTROL, modules, sizeof *weight, &weight, err));
    const dsc_status status = weigh(engine, weight, err);
    if (status == DSC_OK)
        dsc_stage_cut(weight, modules, stages->grid.pipeline,
                      engine->config.own.grid.partition == DSC_PARTITION_UNIFORM, stages->first_module);
    dsc_alloc_free(engine->alloc, weight);
    return status;
}

/* Sizes from the modules of all stages, for samples of whatever length. */
static dsc_status find_sizes(const dsc_engine *engine, const dsc_model *whole, dsc_stage_sizes *out, dsc_error *err)
{
    const dsc_engine_stages *stages = &engine->stages;
    const int32_t first = stages->first_module[stages->stage], end = stages->first_module[stages->stage + 1];
    const int64_t each = (int64_t)dsc_dtype_bytes(dsc_engine_dtype(engine));
    dsc_module_plan plan;
    *out = (dsc_stage_sizes) { 0 };
    for (int32_t m = 0; m < whole->module_count; m++) {
        double flops;
        DSC_TRY(flops_of(engine, whole, m, &flops, err));
        out->flops += flops;
    }
    if (first > 0) {
        DSC_TRY(plan_module(engine, whole, first - 1, &plan, err));
        out->in_bytes = plan.out_elements * each;
    }
    if (end < whole->module_count) {
        DSC_TRY(plan_module(engine, whole, end - 1, &plan, err));
        out->out_bytes = plan.out_elements * each;
    }
    return DSC_OK;
}

static dsc_status find_ties(dsc_engine *engine, dsc_error *err)
{
    dsc_engine_stages *stages = &engine->stages;
    dsc_stage_tie ties[DSC_STAGE_TIES_MAX];
    DSC_TRY(dsc_stage_find_ties(stages->whole, stages->first_module, stages->grid.pipeline, ties, &stages->tied_count,
                                err));
    for (int32_t i = 0; i < stages->tied_count; i++) {
        stages->tied[i].tie = ties[i];
        stages->tied_owner = dsc_stage_of_module(stages->first_module, stages->grid.pipeline, ties[i].owner_module);
        stages->trains_tied = stages->trains_tied || ties[i].trainable;
        if (ties[i].trainable && dsc_stages_is_last(stages))
            stages->tied_bytes += dsc_align_up(ties[i].elements * 4, 256);
    }
    stages->shape =
        (dsc_stage_shape) { .stages = stages->grid.pipeline,
                            .stage = stages->stage,
                            .modules = stages->first_module[stages->stage + 1] - stages->first_module[stages->stage],
                            .micro_batches = engine->config.gradient_accumulation_steps,
                            .group = dsc_config_micro_batch_group(&engine->config),
                            .order = engine->config.own.grid.order,
                            .tied_owner = stages->trains_tied ? stages->tied_owner : -1 };
    stages->slots = dsc_stage_slots(&stages->shape);
    const bool kept = engine->config.zero.offload_param == DSC_OFFLOAD_NONE ||
                      (engine->config.zero.offload_param == DSC_OFFLOAD_CPU && engine->host_visible);
    return stages->tied_count == 0 || kept
               ? DSC_OK
               : refuse(engine, "zero_optimization.offload_param and a table that two of them share", err);
}

static dsc_status open_own(const dsc_engine *engine, const dsc_model *whole, dsc_stage_model *out, dsc_error *err)
{
    const dsc_engine_stages *stages = &engine->stages;
    dsc_stage_tie ties[DSC_STAGE_TIES_MAX];
    for (int32_t i = 0; i < stages->tied_count; i++)
        ties[i] = stages->tied[i].tie;
    return dsc_stage_model_open(engine->alloc, whole, stages->first_module[stages->stage],
                                stages->first_module[stages->stage + 1], ties, stages->tied_count, out, err);
}

/* For shorter samples too. */
static dsc_status open_models(dsc_engine *engine, dsc_error *err)
{
    dsc_engine_stages *stages = &engine->stages;
    dsc_engine_models *models = &engine->models;
    DSC_TRY(find_sizes(engine, stages->whole, &stages->sizes, err));
    DSC_TRY(open_own(engine, stages->whole, &stages->own, err));
    engine->model = models->now = &stages->own.run;
    if (models->cut_count == 0)
        return DSC_OK;
    DSC_TRY(
        dsc_alloc_zeroed(engine->alloc, DSC_TAG_CONTROL, models->cut_count, sizeof *stages->cut, &stages->cut, err));
    for (int32_t c = 0; c < models->cut_count; c++) {
        DSC_TRY(find_sizes(engine, &models->cut[c].whole, &stages->cut[c].sizes, err));
        DSC_TRY(open_own(engine, &models->cut[c].whole, &stages->cut[c].own, err));
        models->cut[c].model = &stages->cut[c].own.run;
    }
    return DSC_OK;
}

/* ---- all ranks have the same schedule ---- */

typedef struct schedule_sum {
    uint64_t hash;
    int64_t stages, data_ranks, micro_batches;
} schedule_sum;

static dsc_status sum_schedule(const dsc_engine *engine, schedule_sum *out, dsc_error *err)
{
    const dsc_engine_stages *stages = &engine->stages;
    const int64_t numbers[] = { engine->config.train_micro_batch_size_per_gpu, stages->whole->module_count,
                                engine->config.zero.stage, stages->tied_count, stages->tied_owner };
    uint64_t hash = dsc_xxh3_128(numbers, sizeof numbers, 0).low;
    hash = dsc_xxh3_128(stages->first_module, (size_t)(stages->grid.pipeline + 1) * sizeof *stages->first_module, hash)
               .low;
    for (int32_t s = 0; s < stages->grid.pipeline; s++) {
        dsc_stage_shape shape = stages->shape;
        dsc_stage_op *op = NULL;
        shape.stage = s;
        shape.modules = stages->first_module[s + 1] - stages->first_module[s];
        const int64_t count = dsc_stage_list(&shape, NULL);
        DSC_TRY(dsc_alloc_zeroed(engine->alloc, DSC_TAG_CONTROL, count, sizeof *op, &op, err));
        dsc_stage_list(&shape, op);
        for (int64_t i = 0; i < count; i++) {
            const int64_t words[] = { op[i].work, op[i].module, op[i].micro_batch };
            hash = dsc_xxh3_128(words, sizeof words, hash).low;
        }
        dsc_alloc_free(engine->alloc, op);
    }
    *out =
        (schedule_sum) { hash, stages->grid.pipeline, stages->grid.data, engine->config.gradient_accumulation_steps };
    return DSC_OK;
}

static dsc_status compare(const schedule_sum *all, int32_t size, dsc_error *err)
{
    for (int32_t r = 1; r < size; r++)
        if (memcmp(&all[r], &all[0], sizeof *all) != 0)
            return DSC_FAIL(err, DSC_ERR_CONFIG, "dsc.grid",
                            "rank %d has another schedule than rank 0: %lld stages x %lld data ranks with %lld "
                            "micro-batches (hash %016llx), rank 0 has %lld x %lld with %lld (hash %016llx); give all "
                            "ranks the same config and model",
                            (int)r, (long long)all[r].stages, (long long)all[r].data_ranks,
                            (long long)all[r].micro_batches, (unsigned long long)all[r].hash, (long long)all[0].stages,
                            (long long)all[0].data_ranks, (long long)all[0].micro_batches,
                            (unsigned long long)all[0].hash);
    return DSC_OK;
}

static dsc_status agree_schedule(dsc_engine *engine, dsc_error *err)
{
    schedule_sum own, *all = NULL;
    DSC_TRY(sum_schedule(engine, &own, err));
    DSC_TRY(dsc_alloc_zeroed(engine->alloc, DSC_TAG_CONTROL, engine->place.size, sizeof *all, &all, err));
    dsc_status status =
        dsc_comm_all_gather(engine->comms.all, DSC_CHANNEL_CONTROL, all, &own, (int64_t)sizeof own, DSC_U8, NULL, err);
    if (status == DSC_OK)
        status = compare(all, engine->place.size, err);
    dsc_alloc_free(engine->alloc, all);
    return status;
}

/* ---- open ---- */

dsc_status dsc_stages_open(dsc_engine *engine, dsc_error *err)
{
    dsc_engine_stages *stages = &engine->stages;
    if (stages->grid.pipeline == 1)
        return DSC_OK;
    DSC_TRY(check_model(engine, err));
    stages->whole = engine->model;
    DSC_TRY(dsc_alloc_zeroed(engine->alloc, DSC_TAG_CONTROL, stages->grid.pipeline + 1, sizeof *stages->first_module,
                             &stages->first_module, err));
    DSC_TRY(cut(engine, err));
    DSC_TRY(find_ties(engine, err));
    DSC_TRY(open_models(engine, err));
    stages->record_bytes = dsc_model_records_bytes(stages->whole, engine->config.train_micro_batch_size_per_gpu);
    return engine->plan_only ? DSC_OK : agree_schedule(engine, err);
}

const dsc_stage_sizes *dsc_stages_sizes_of(const dsc_engine *engine, int64_t length)
{
    const int32_t cut = dsc_engine_cut_of(engine, length);
    return cut < 0 ? &engine->stages.sizes : &engine->stages.cut[cut].sizes;
}

const dsc_stage_sizes *dsc_stages_sizes_now(const dsc_engine *engine)
{
    return dsc_stages_sizes_of(engine, engine->models.now->seq_length);
}

const dsc_model *dsc_stages_whole_model(const dsc_engine *engine)
{
    return dsc_stages_are_used(&engine->stages) ? engine->stages.whole : engine->model;
}

const dsc_layout *dsc_stages_whole_layout(const dsc_engine *engine)
{
    return dsc_stages_are_used(&engine->stages) ? &engine->stages.layout : &engine->layout;
}

/* ---- layouts of this stage and of the whole model ---- */

/* The layout of modules from `first` on, with the numbers that they have in the whole model. */
static dsc_status open_layout(const dsc_engine *engine, const dsc_model *model, int32_t first,
                              const dsc_layout_rules *of_whole, dsc_layout *out, dsc_error *err)
{
    dsc_layout_rules rules = *of_whole;
    rules.first_module = first;
    rules.whole_modules = engine->stages.whole->module_count;
    for (int32_t m = 0; rules.fp8 != NULL && m < first; m++)
        rules.fp8 += engine->stages.whole->modules[m].param_count;
    return dsc_layout_open(engine->alloc, model, &rules, out, err);
}

/* The tensor of the whole layout that a stage's tensor is; -1: the tensor is a copy of a tied one. */
static int32_t whole_tensor(const dsc_layout *whole, const dsc_layout *of_stage, int32_t first_module, int32_t t)
{
    const dsc_layout_tensor *tensor = &of_stage->tensor[t];
    const dsc_layout_param *param =
        &whole->param[whole->module_first_param[first_module + tensor->module] + tensor->param];
    return param->shared ? -1 : param->tensor;
}

/* Places in the whole layout become those of the stage: a copy of a tied tensor may lie before a tensor, and slices of
 * its group are longer. */
static void take_places(dsc_layout *whole, const dsc_layout *of_stage, int32_t first_module)
{
    for (int32_t t = 0; t < of_stage->tensor_count; t++) {
        const int32_t w = whole_tensor(whole, of_stage, first_module, t);
        if (w < 0)
            continue;
        const dsc_layout_group *group = &of_stage->group[of_stage->tensor[t].group];
        whole->tensor[w].offset = of_stage->tensor[t].offset;
        whole->group[whole->tensor[w].group].slice = group->slice;
        whole->group[whole->tensor[w].group].padded = group->padded;
    }
}

/* Numbers from which first values and random roundings are drawn are those of the whole model; so are the classes of
 * scalars. */
static void take_numbers(dsc_engine *engine)
{
    dsc_engine_stages *stages = &engine->stages;
    dsc_layout *own = &engine->layout;
    for (int32_t t = 0; t < own->tensor_count; t++) {
        const int32_t w = whole_tensor(&stages->layout, own, stages->own.first, t);
        if (w < 0)
            continue;
        const dsc_layout_tensor *from = &stages->layout.tensor[w];
        DSC_ASSERT(from->count == own->tensor[t].count);
        own->tensor[t].number = from->number;
        own->tensor[t].drawn = from->drawn;
        own->tensor[t].update_class = from->update_class;
        own->group[own->tensor[t].group].position = stages->layout.group[from->group].position;
        stages->tensor[w] = t;
        stages->group[from->group] = own->tensor[t].group;
    }
}

/* The last stage's places on the other stages. */
static dsc_status take_last_places(dsc_engine *engine, const dsc_layout_rules *rules, dsc_error *err)
{
    dsc_engine_stages *stages = &engine->stages;
    const int32_t last = stages->grid.pipeline - 1;
    dsc_stage_model model = { .alloc = NULL };
    dsc_layout layout = { 0 };
    DSC_TRY(dsc_stage_model_open(engine->alloc, stages->whole, stages->first_module[last],
                                 stages->first_module[last + 1], NULL, 0, &model, err));
    const dsc_status status = open_layout(engine, &model.states, stages->first_module[last], rules, &layout, err);
    if (status == DSC_OK)
        take_places(&stages->layout, &layout, stages->first_module[last]);
    dsc_layout_close(&layout);
    dsc_stage_model_close(&model);
    return status;
}

static dsc_status open_layouts(dsc_engine *engine, const dsc_layout_rules *rules, dsc_error *err)
{
    dsc_engine_stages *stages = &engine->stages;
    DSC_TRY(open_layout(engine, stages->whole, 0, rules, &stages->layout, err));
    DSC_TRY(dsc_engine_group_params(engine, &stages->layout, err));
    DSC_TRY(open_layout(engine, &stages->own.states, stages->own.first, rules, &engine->layout, err));
    const int32_t groups = stages->layout.group_count, tensors = stages->layout.tensor_count;
    DSC_TRY(dsc_alloc_zeroed(engine->alloc, DSC_TAG_CONTROL, groups, sizeof(int32_t), &stages->group, err));
    DSC_TRY(dsc_alloc_zeroed(engine->alloc, DSC_TAG_CONTROL, tensors, sizeof(int32_t), &stages->tensor, err));
    for (int32_t g = 0; g < groups; g++)
        stages->group[g] = -1;
    for (int32_t t = 0; t < tensors; t++)
        stages->tensor[t] = -1;
    take_numbers(engine);
    take_places(&stages->layout, &engine->layout, stages->own.first);
    if (stages->tied_count > 0 && !dsc_stages_is_last(stages))
        DSC_TRY(take_last_places(engine, rules, err));
    stages->owners = (dsc_ckpt_stages) { .count = stages->grid.pipeline,
                                         .data_ranks = stages->grid.data,
                                         .first_module = stages->first_module,
                                         .group = stages->group,
                                         .tensor = stages->tensor };
    return DSC_OK;
}

dsc_status dsc_stages_open_layout(dsc_engine *engine, dsc_error *err)
{
    const bool pipelined = dsc_stages_are_used(&engine->stages);
    int64_t *fp8;
    DSC_TRY(dsc_engine_fp8_matrices(engine, dsc_stages_whole_model(engine), &fp8, err));
    const dsc_layout_rules rules = { .recipe = engine->config.optimizer.recipe,
                                     .moment_dtype = engine->config.own.moments,
                                     .world_size = dsc_plan_shards(&engine->config, engine->place.size),
                                     .packed = dsc_engine_packed_kind(engine),
                                     .experts = engine->config.own.quantize.experts,
                                     .fp8 = fp8 };
    dsc_status status = pipelined ? open_layouts(engine, &rules, err)
                                  : dsc_layout_open(engine->alloc, engine->model, &rules, &engine->layout, err);
    if (status == DSC_OK && !pipelined)
        status = dsc_engine_group_params(engine, &engine->layout, err);
    dsc_alloc_free(engine->alloc, fp8);
    return status;
}

bool dsc_stages_is_copy(const dsc_engine *engine, int32_t tensor)
{
    const dsc_engine_stages *stages = &engine->stages;
    return dsc_stages_are_used(stages) && whole_tensor(&stages->layout, &engine->layout, stages->own.first, tensor) < 0;
}

void dsc_stages_close(dsc_engine *engine)
{
    dsc_engine_stages *stages = &engine->stages;
    dsc_layout_close(&stages->layout);
    dsc_stage_model_close(&stages->own);
    for (int32_t c = 0; stages->cut != NULL && c < engine->models.cut_count; c++)
        dsc_stage_model_close(&stages->cut[c].own);
    dsc_alloc_free(engine->alloc, stages->cut);
    dsc_alloc_free(engine->alloc, stages->op);
    dsc_alloc_free(engine->alloc, stages->group);
    dsc_alloc_free(engine->alloc, stages->tensor);
    dsc_alloc_free(engine->alloc, stages->first_module);
}
