/* probe.c - access to an engine, its communicators and checkpoints for probe.h. SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/probe.h"

#include <string.h>

#include "comm/comm_front.h"
#include "engine/checkpoint/internal.h"
#include "engine/device.h"
#include "engine/internal.h"
#include "engine/memory.h"

dsc_alloc *dsc_probe_alloc(const dsc_engine *engine) { return engine->alloc; }
dsc_device *dsc_probe_device(const dsc_engine *engine) { return engine->device; }
dsc_stream *dsc_probe_compute_stream(const dsc_engine *engine) { return engine->compute; }
bool dsc_probe_host_visible(const dsc_engine *engine) { return engine->host_visible; }
const dsc_config *dsc_probe_config(const dsc_engine *engine) { return &engine->config; }
const dsc_layout *dsc_probe_layout(const dsc_engine *engine) { return &engine->layout; }
const dsc_layout *dsc_probe_whole_layout(const dsc_engine *engine) { return dsc_stages_whole_layout(engine); }
int32_t dsc_probe_own_tensor(const dsc_engine *engine, int32_t tensor)
{
    return dsc_stages_are_used(&engine->stages) ? engine->stages.tensor[tensor] : tensor;
}
bool *dsc_probe_trains_tied(dsc_engine *engine) { return &engine->stages.trains_tied; }

dsc_stage_op *dsc_probe_stage_ops(dsc_engine *engine, int64_t **count)
{
    *count = &engine->stages.op_count;
    return engine->stages.op;
}
void dsc_probe_stage_modules(const dsc_engine *engine, int32_t *first, int32_t *end)
{
    *first = engine->stages.own.first;
    *end = *first + engine->stages.own.count;
}
int64_t dsc_probe_scalar_bytes(const dsc_engine *engine)
{
    const dsc_layout *layout = &engine->layout;
    int64_t numbers =
        dsc_step_stat_count(&engine->config) + dsc_model_router_stats(engine->model, engine->config.micro_steps_most);
    if (dsc_batch_targets(engine->model) >= 0 && engine->input.masks)
        numbers += 1; /* counted targets */
    if (engine->config.own.check_replicas > 0)
        numbers += (int64_t)layout->group_count * layout->world_size; /* fingerprints */
    return (engine->place.size - 1) * (numbers * (int64_t)sizeof(double) + (int64_t)sizeof(dsc_fixed_sum));
}

const dsc_plan *dsc_probe_plan(const dsc_engine *engine) { return &engine->plan; }
dsc_zero *dsc_probe_zero(const dsc_engine *engine) { return engine->zero; }

static const dsc_side_comm *sub_comm(const dsc_engine *engine, dsc_probe_comm which)
{
    return &engine->comms.side[which == DSC_PROBE_COMM_NEIGHBOURS ? DSC_SUB_NEIGHBOURS
                               : which == DSC_PROBE_COMM_SHARDS   ? DSC_SUB_SHARDS
                               : which == DSC_PROBE_COMM_PIPELINE ? DSC_SUB_PIPELINE
                               : which == DSC_PROBE_COMM_TIED     ? DSC_SUB_TIED
                               : which == DSC_PROBE_COMM_TENSOR   ? DSC_SUB_TENSOR
                                                                  : DSC_SUB_REPLICAS];
}

dsc_comm *dsc_probe_host_comm(const dsc_engine *engine, dsc_probe_comm which)
{
    return which == DSC_PROBE_COMM_ALL ? engine->comms.all : sub_comm(engine, which)->host;
}

dsc_comm *dsc_probe_device_comm(const dsc_engine *engine, dsc_probe_comm which)
{
    return which == DSC_PROBE_COMM_ALL ? engine->comms.device : sub_comm(engine, which)->device;
}

dsc_status dsc_probe_tensor_sent_bytes(const dsc_engine *engine, int64_t *bytes, dsc_error *err)
{
    return dsc_tensor_sent_bytes(engine, bytes, err);
}

const dsc_comm_ops *dsc_probe_comm_ops(const dsc_comm *comm) { return comm->transport->ops; }
void dsc_probe_set_comm_ops(dsc_comm *comm, const dsc_comm_ops *ops) { comm->transport->ops = ops; }

int64_t dsc_probe_shm_plan_bytes(const dsc_comm_options *options)
{
    dsc_need list[DSC_COMM_NEEDS_MAX];
    int64_t bytes = 0;
    for (int i = dsc_comm_shm.list_needs(options, NULL, list); i-- > 0;)
        bytes += dsc_need_planned_bytes(&list[i]);
    return bytes;
}

dsc_quota dsc_probe_quota(const dsc_engine *engine) { return engine->quota.now; }

int64_t dsc_probe_step(const dsc_engine *engine) { return engine->progress.step; }
int64_t dsc_probe_update_count(const dsc_engine *engine) { return engine->progress.update_count; }
void dsc_probe_set_update_count(dsc_engine *engine, int64_t count) { engine->progress.update_count = count; }
dsc_loss_scaler dsc_probe_loss_scaler(const dsc_engine *engine) { return engine->progress.loss_scaler; }
bool dsc_probe_has_failed(const dsc_engine *engine) { return engine->failed; }
bool dsc_probe_values_due(const dsc_engine *engine) { return engine->values_due; }
dsc_status dsc_probe_settle(dsc_engine *engine, dsc_error *err) { return dsc_engine_settle(engine, err); }

dsc_status dsc_probe_buffer(dsc_engine *engine, const char *name, void *out, dsc_error *err)
{
    const dsc_engine_buffers *all = &engine->buffers;
    int32_t n = 0;
    while (n < all->count && strcmp(all->stored[n].spec->name, name) != 0)
        n++;
    if (n == all->count)
        return DSC_FAIL(err, DSC_ERR_INTERNAL, name, "is not a buffer");
    if (all->on_device[n] == NULL)
        memcpy(out, all->stored[n].value, sizeof(int64_t));
    else
        DSC_TRY(dsc_copy(engine->compute, out, all->on_device[n], all->stored[n].spec->count * 4, err));
    return dsc_stream_sync(engine->compute, err);
}

bool dsc_probe_has_snapshot(const dsc_engine *engine) { return engine->work.snapshot_buf.ptr != NULL; }

dsc_status dsc_probe_resize_io_buffer(dsc_engine *engine, int64_t bytes, dsc_error *err)
{
    dsc_mem_close(engine->device, &engine->io_buf);
    return dsc_mem_open(engine->device, DSC_TAG_IO, DSC_TIER_PINNED, bytes, &engine->io_buf, err);
}

void dsc_probe_set_threads(dsc_engine *engine, int32_t threads) { engine->threads = threads; }
void dsc_probe_set_host_free_bytes(dsc_engine *engine, int64_t bytes) { engine->host_free_bytes = bytes; }
dsc_status dsc_probe_check_fit(const dsc_engine *engine, dsc_error *err) { return dsc_engine_check_fit(engine, err); }
dsc_status dsc_probe_check_world(const dsc_engine *engine, int32_t ranks, dsc_error *err)
{
    return dsc_engine_check_world(engine, ranks, err);
}
void dsc_probe_set_io_hook(dsc_engine *engine, dsc_io_hook hook) { engine->io.hook = hook; }
void dsc_probe_set_block_hook(dsc_engine *engine, const dsc_aio_hook *hook) { engine->io.blocks = hook; }
int64_t dsc_probe_step_of_folder(const char *path) { return dsc_ckpt_step_of(path); }
