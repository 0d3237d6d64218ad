/* tensor_open.c - see tensor.h. SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/hash.h"
#include "engine/internal.h"

bool dsc_tensor_is_shared_out(const dsc_engine *engine) { return engine->stages.grid.tensor > 1; }

const dsc_exchange_group *dsc_tensor_group(const dsc_engine *engine)
{
    return engine->tensor.group.comm != NULL ? &engine->tensor.group.group : NULL;
}

static dsc_status refuse(const dsc_engine *engine, const char *what, dsc_error *err)
{
    return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "dsc.grid.tensor",
                    "%d tensor ranks do not work with %s in this version; leave one of them out",
                    (int)engine->stages.grid.tensor, what);
}

dsc_status dsc_tensor_check(const dsc_engine *engine, dsc_error *err)
{
    const dsc_model *model = engine->model;
    const dsc_grid *grid = &engine->stages.grid;
    const int32_t ranks = model->tensor_ranks > 1 ? model->tensor_ranks : 1;
    if (ranks != grid->tensor || (ranks > 1 && model->tensor_rank != engine->stages.tensor_rank))
        return DSC_FAIL(err, DSC_ERR_STATE, "dsc.grid.tensor",
                        "the model was opened for rank %d of %d tensor ranks, and this is rank %d of %d; open it with "
                        "these numbers (dsc_model_options.tensor_ranks, tensor_rank)",
                        (int)model->tensor_rank, (int)ranks, (int)engine->stages.tensor_rank, (int)grid->tensor);
    if (grid->tensor == 1)
        return DSC_OK;
    if (!engine->host_visible)
        return refuse(engine, "GPUs (dsc.device \"cpu\" works)", err);
    if (engine->clock != NULL || engine->times_of_launches != NULL)
        return refuse(engine, "virtual ranks", err);
    return DSC_OK;
}

/* Numbers that decide the exchanges of a rank. */
typedef struct exchange_list {
    uint64_t hash; /* number of the payload of all modules, and of what repeats their passes */
    int64_t data_ranks, tensor_ranks, micro_batches;
} exchange_list;

static dsc_status list_exchanges(const dsc_engine *engine, exchange_list *out, dsc_error *err)
{
    const dsc_config *config = &engine->config;
    /* Rows of the loss's chunks follow from head_chunk_bytes and the model. */
    const int64_t numbers[] = {
        config->train_micro_batch_size_per_gpu, engine->model->module_count, config->own.recompute,
        dsc_config_micro_batch_group(config),   config->zero.stage,          config->own.head_chunk_bytes
    };
    const dsc_plan_sink sink = { .chunk_bytes = config->own.head_chunk_bytes };
    uint64_t hash = dsc_xxh3_128(numbers, sizeof numbers, 0).low;
    for (int32_t m = 0; m < engine->model->module_count; m++) {
        const dsc_module *module = &engine->model->modules[m];
        dsc_module_plan plan;
        DSC_TRY(
            module->plan(module, config->train_micro_batch_size_per_gpu, dsc_engine_dtype(engine), &sink, &plan, err));
        const int64_t bytes[] = { plan.forward_sent_bytes, plan.backward_sent_bytes };
        hash = dsc_xxh3_128(bytes, sizeof bytes, hash).low;
    }
    *out = (exchange_list) { hash, engine->stages.grid.data, engine->stages.grid.tensor,
                             config->gradient_accumulation_steps };
    return DSC_OK;
}

static dsc_status compare_lists(const exchange_list *all, int32_t size, dsc_error *err)
{
    for (int32_t r = 1; r < size; r++)
        if (memcmp(&all[r], &all[0], sizeof *all) != 0)
            return DSC_FAIL(err, DSC_ERR_CONFIG, "dsc.grid.tensor",
                            "rank %d has other exchanges than rank 0: %lld data x %lld tensor ranks with %lld "
                            "micro-batches (hash %016llx), rank 0 has %lld x %lld with %lld (hash %016llx); give all "
                            "ranks the same config and model",
                            (int)r, (long long)all[r].data_ranks, (long long)all[r].tensor_ranks,
                            (long long)all[r].micro_batches, (unsigned long long)all[r].hash,
                            (long long)all[0].data_ranks, (long long)all[0].tensor_ranks,
                            (long long)all[0].micro_batches, (unsigned long long)all[0].hash);
    return DSC_OK;
}

dsc_status dsc_tensor_agree(const dsc_engine *engine, dsc_error *err)
{
    exchange_list own, *all = NULL;
    if (!dsc_tensor_is_shared_out(engine) || engine->plan_only)
        return DSC_OK;
    DSC_TRY(list_exchanges(engine, &own, err));
    DSC_TRY(dsc_alloc_zeroed(engine->alloc, DSC_TAG_CONTROL, engine->place.size, sizeof *all, &all, err));
    dsc_status status =
        dsc_comm_all_gather(engine->comms.all, DSC_CHANNEL_CONTROL, all, &own, (int64_t)sizeof own, DSC_U8, NULL, err);
    if (status == DSC_OK)
        status = compare_lists(all, engine->place.size, err);
    dsc_alloc_free(engine->alloc, all);
    return status;
}

void dsc_tensor_open(dsc_engine *engine)
{
    dsc_comm *const comm = engine->comms.side[DSC_SUB_TENSOR].host;
    if (comm != NULL)
        dsc_comm_group_init(&engine->tensor.group, comm, 0);
}

dsc_status dsc_tensor_add_sums(dsc_engine *engine, dsc_fixed_sum *sum, dsc_error *err)
{
    dsc_comm *const comm = engine->comms.side[DSC_SUB_TENSOR].host;
    const dsc_fixed_sum own = *sum;
    for (int32_t r = 0; comm != NULL && r < dsc_comm_size(comm); r++) {
        dsc_fixed_sum theirs = own;
        DSC_TRY(dsc_comm_broadcast(comm, 0, &theirs, (int64_t)sizeof theirs, r, NULL, err));
        if (r != dsc_comm_rank(comm))
            dsc_fixed_sum_merge(sum, &theirs);
    }
    return DSC_OK;
}

dsc_status dsc_tensor_sent_bytes(const dsc_engine *engine, int64_t *bytes, dsc_error *err)
{
    const dsc_config *config = &engine->config;
    const dsc_plan_sink sink = { .chunk_bytes = engine->plan.chunk_bytes };
    *bytes = 0;
    for (int32_t m = 0; m < engine->model->module_count; m++) {
        const dsc_module *module = &engine->model->modules[m];
        dsc_module_plan plan;
        DSC_TRY(
            module->plan(module, config->train_micro_batch_size_per_gpu, dsc_engine_dtype(engine), &sink, &plan, err));
        const bool again = dsc_plan_recompute(config, module, &plan) == DSC_RECOMPUTE_FORWARD;
        *bytes += (again ? 2 : 1) * plan.forward_sent_bytes + plan.backward_sent_bytes;
    }
    *bytes *= config->gradient_accumulation_steps;
    return DSC_OK;
}
