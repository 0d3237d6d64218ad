/* plan_options.c - the options of the run's plan and of its reader, which the planner and open share.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/memory.h"

#include "engine/device.h"
#include "engine/internal.h"

void dsc_engine_reader_options(const dsc_engine *engine, dsc_reader_options *out)
{
    const int32_t group_size = dsc_config_micro_batch_group(&engine->config);
    *out = (dsc_reader_options) { .alloc = engine->alloc,
                                  .device = engine->device,
                                  .source = engine->input.source,
                                  .model = engine->model,
                                  .micro_batch = engine->config.train_micro_batch_size_per_gpu,
                                  .quota = engine->quota.now,
                                  .rank = engine->stages.data_rank,
                                  .depth = group_size + (int32_t)dsc_max_i64(DSC_READER_AHEAD, group_size),
                                  .curriculum = &engine->config.curriculum,
                                  .waits = dsc_model_prefers(engine->model) && engine->input.data != NULL };
}

void dsc_engine_plan_options(const dsc_engine *engine, dsc_plan_options *out)
{
    dsc_reader_options reader;
    dsc_engine_reader_options(engine, &reader);
    const dsc_engine_stages *stages = &engine->stages;
    dsc_plan_stage stage = { .lanes = 0 };
    if (dsc_stages_are_used(stages))
        stage = (dsc_plan_stage) { .lanes = dsc_stage_lanes(&stages->shape),
                                   .slots = stages->slots,
                                   .in_bytes = stages->sizes.in_bytes,
                                   .record_bytes = stages->record_bytes,
                                   .tied_bytes = stages->tied_bytes,
                                   .header_bytes =
                                       dsc_stage_header_count(&stages->shape) * (int64_t)sizeof(dsc_stage_header) };
    *out = (dsc_plan_options) { .alloc = engine->alloc,
                                .model = engine->model,
                                .whole = dsc_stages_whole_model(engine),
                                .cut = engine->models.cut,
                                .cut_count = engine->models.cut_count,
                                .config = &engine->config,
                                .layout = &engine->layout,
                                .compute_dtype = dsc_engine_dtype(engine),
                                .rank = engine->stages.data_rank % engine->layout.world_size,
                                .world_size = engine->place.size,
                                .data_ranks = engine->stages.grid.data,
                                .stage = stage,
                                .io = &engine->io,
                                .threads = engine->threads,
                                .cpu_caps = engine->cpu_caps,
                                .device = engine->device,
                                .data_bytes = engine->input.source.fill != NULL || engine->plan_only
                                                  ? dsc_reader_plan_bytes(&reader)
                                                  : 0,
                                .decoder_bytes = engine->plan_only ? dsc_engine_decoder_bytes(engine) : 0 };
    out->mirror_bytes = dsc_engine_mirror_bytes(engine);
    dsc_engine_comm_plan(engine, out);
}
