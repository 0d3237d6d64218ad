/* world_fit.c - can the run go on with other numbers of ranks? A rank of a smaller world has longer slices, and not
 * every number of ranks can share a batch. A run that may come to such a world is refused at the start.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "engine/device.h"
#include "engine/internal.h"
#include "engine/memory.h"

/* The batch of the same run on so many ranks. */
static dsc_status share_batch(const dsc_engine *engine, int32_t ranks, dsc_config *config, dsc_error *err)
{
    const dsc_config_facts facts = { .world_size = ranks,
                                     .hidden_size = engine->model->hidden_size,
                                     .total_steps = engine->input.total_steps,
                                     .device = engine->device->ops->name };
    return dsc_config_resolve(config, &facts, err);
}

/* The same run on so many ranks, as far as its plan needs it: a copy of the engine, of which only the parts below are
 * its own. */
static dsc_status plan_world(dsc_engine *other, int32_t ranks, dsc_error *err)
{
    dsc_plan_options options;
    other->place.rank = other->place.local_rank = 0;
    other->place.local_size = (int32_t)dsc_min_i64(ranks, other->place.local_size);
    other->place.node_count = (int32_t)dsc_div_ceil(ranks, other->place.local_size);
    other->place.size = other->stages.grid.data = ranks;
    other->stages.data_rank = 0;
    DSC_TRY(share_batch(other, ranks, &other->config, err));
    other->quota = (dsc_engine_quota) { .now = dsc_config_quota(&other->config, ranks) };
    DSC_TRY(dsc_stages_open_layout(other, err));
    dsc_engine_plan_options(other, &options);
    DSC_TRY(dsc_plan_open(&options, &other->plan, err));
    return dsc_engine_check_fit(other, err);
}

dsc_status dsc_engine_check_world(const dsc_engine *engine, int32_t ranks, dsc_error *err)
{
    dsc_engine *other = NULL;
    dsc_error why = DSC_ERROR_INIT;
    DSC_TRY(dsc_alloc_zeroed(engine->alloc, DSC_TAG_CONTROL, 1, sizeof *other, &other, err));
    *other = *engine;
    memset(&other->layout, 0, sizeof other->layout);
    memset(&other->plan, 0, sizeof other->plan);
    const dsc_status status = plan_world(other, ranks, &why);
    dsc_plan_close(&other->plan);
    dsc_layout_close(&other->layout);
    dsc_alloc_free(engine->alloc, other);
    return status == DSC_OK ? DSC_OK
                            : DSC_FAIL(err, status, "dsc.elastic.min_ranks", "shrinking to %d rank%s: %s", (int)ranks,
                                       ranks == 1 ? "" : "s", why.message);
}

/* Every number of ranks that the run may come to. */
static dsc_status check_batches(const dsc_engine *engine, int64_t least, int64_t most, dsc_error *err)
{
    dsc_config *config = NULL;
    dsc_status status = DSC_OK;
    dsc_error why = DSC_ERROR_INIT;
    int64_t ranks = least;
    DSC_TRY(dsc_alloc_zeroed(engine->alloc, DSC_TAG_CONTROL, 1, sizeof *config, &config, err));
    for (; ranks <= most; ranks++) {
        *config = engine->config;
        status = share_batch(engine, (int32_t)ranks, config, &why);
        if (status != DSC_OK)
            break;
    }
    dsc_alloc_free(engine->alloc, config);
    return status == DSC_OK ? DSC_OK
                            : DSC_FAIL(err, status, why.where,
                                       "the run may come to %lld rank%s: %s; \"dsc\": {\"quota\": \"even\"} lets any "
                                       "number share the batch",
                                       (long long)ranks, ranks == 1 ? "" : "s", why.message);
}

dsc_status dsc_engine_check_worlds(const dsc_engine *engine, dsc_error *err)
{
    const int64_t least = engine->config.own.min_ranks, size = engine->place.size;
    const int64_t most = engine->config.own.max_ranks > 0 ? engine->config.own.max_ranks : size;
    const dsc_ckpt_ctx ctx = { .comm = engine->comms.all, .stream = engine->compute, .buffer = engine->io_buf };
    dsc_error mine = DSC_ERROR_INIT;
    if (least == 0 || (least >= size && most <= size))
        return DSC_OK;
    if (dsc_stages_are_used(&engine->stages) || dsc_tensor_is_shared_out(engine))
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "dsc.elastic.min_ranks",
                        "pipeline stages and tensor ranks have a fixed number of ranks in this version; leave the key "
                        "out");
    dsc_status status = check_batches(engine, least, most, &mine);
    if (status == DSC_OK && least < size)
        status = dsc_engine_check_world(engine, (int32_t)least, &mine);
    return dsc_ckpt_agree(&ctx, status, &mine, err);
}
