/* planned.c - see planned.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/planned.h"

#include "engine/internal.h"

/* All zero for an engine without a model. */
static dsc_planned_stage stage_of(const dsc_engine *engine)
{
    const dsc_engine_stages *stages = &engine->stages;
    const bool pipelined = dsc_stages_are_used(stages);
    int64_t parameters = 0;
    if (engine->model == NULL)
        return (dsc_planned_stage) { 0 };
    int64_t tensor_bytes = 0;
    if (dsc_tensor_sent_bytes(engine, &tensor_bytes, NULL) != DSC_OK)
        tensor_bytes = 0; /* the plan has called the same modules */
    const int32_t count = pipelined ? stages->own.count : engine->model->module_count;
    for (int32_t t = 0; t < engine->layout.tensor_count; t++)
        parameters += dsc_stages_is_copy(engine, t) ? 0 : engine->layout.tensor[t].count;
    return (dsc_planned_stage) { .index = stages->stage,
                                 .modules = count,
                                 .first_module = engine->model->modules[0].name,
                                 .last_module = engine->model->modules[count - 1].name,
                                 .parameters = parameters,
                                 .sent_bytes = pipelined ? dsc_stages_sent_bytes(engine) : 0,
                                 .tensor_sent_bytes = tensor_bytes };
}

void dsc_engine_planned_get(const dsc_engine *engine, dsc_engine_planned *out)
{
    *out = (dsc_engine_planned) { .config = &engine->config,
                                  .model = engine->model,
                                  .alloc = engine->alloc,
                                  .compute = engine->compute,
                                  .host_visible = engine->host_visible,
                                  .local_size = engine->place.local_size,
                                  .total_bytes = engine->plan.total_bytes,
                                  .host_free_bytes = engine->host_free_bytes,
                                  .flops_per_micro_batch = engine->plan.flops_per_micro_batch,
                                  .traffic = engine->plan.traffic,
                                  .kept = engine->plan.kept,
                                  .grid = engine->stages.grid,
                                  .stage = stage_of(engine),
                                  .prefetch_held =
                                      engine->plan.prefetch_held || (engine->config.zero.prefetch_within_bucket &&
                                                                     !dsc_stages_are_used(&engine->stages)) };
    if (!engine->host_visible) {
        dsc_device_props props;
        dsc_device_props_get(engine->device, &props);
        out->device_free_bytes = props.free_bytes;
    }
}
