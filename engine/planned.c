/* planned.c - see planned.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/planned.h"

#include "engine/internal.h"

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
                                  .prefetch_held = engine->plan.prefetch_held ||
                                                   engine->config.zero.prefetch_within_bucket };
    if (!engine->host_visible) {
        dsc_device_props props;
        dsc_device_props_get(engine->device, &props);
        out->device_free_bytes = props.free_bytes;
    }
}
