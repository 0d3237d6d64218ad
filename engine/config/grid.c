/* grid.c - the section "dsc.grid" and DeepSpeed's "pipeline": stages of modules, and what a run with several stages
 * does not do yet. SPDX-License-Identifier: Apache-2.0 */
#include "engine/config/internal.h"

#include <stdio.h>
#include <string.h>

#define SIZES_SHOWN 8

static dsc_status fill_stages(dsc_config_parse_state *s)
{
    dsc_grid_section *grid = &s->config->own.grid;
    bool from_text;
    int64_t stages = 1;
    grid->key = DSC_ID_GRID_PIPELINE;
    if (dsc_config_has(s, DSC_ID_PIPELINE_STAGES) &&
        dsc_value_int(s->given[DSC_ID_PIPELINE_STAGES], &stages, &from_text)) { /* not "auto" */
        if (dsc_config_has(s, DSC_ID_GRID_PIPELINE) && grid->pipeline != stages)
            return dsc_config_fail(s, DSC_ID_PIPELINE_STAGES, DSC_ERR_CONFIG,
                                   "%lld is not dsc.grid.pipeline, which is %lld; keep one of them", (long long)stages,
                                   (long long)grid->pipeline);
        grid->pipeline = stages;
        if (!dsc_config_has(s, DSC_ID_GRID_PIPELINE))
            grid->key = DSC_ID_PIPELINE_STAGES;
    }
    s->config->unresolved.grid = dsc_config_source_pos(s, grid->key);
    return DSC_OK;
}

static dsc_status fill_partition(dsc_config_parse_state *s)
{
    static const char *const names[] = { "best", "parameters", "uniform" }; /* in the order of dsc_partition */
    dsc_grid_section *grid = &s->config->own.grid;
    grid->partition = DSC_PARTITION_FLOPS;
    if (dsc_config_has(s, DSC_ID_PIPELINE_PARTITION)) {
        size_t i = 0;
        while (i < DSC_COUNT(names) && strcmp(names[i], s->given[DSC_ID_PIPELINE_PARTITION]->valuestring) != 0)
            i++;
        if (i == DSC_COUNT(names))
            return dsc_config_not_built(s, DSC_ID_PIPELINE_PARTITION, "best, uniform and parameters work");
        grid->partition = (dsc_partition)i;
    }
    grid->partition = (dsc_partition)dsc_config_choice_or(s, DSC_ID_GRID_PARTITION, grid->partition);
    return DSC_OK;
}

static bool with_hpz(const dsc_config *c) { return c->zero.hpz_partition_size > 1; }
static bool with_mics(const dsc_config *c) { return c->zero.mics_shard_size > 0; }
static bool with_outputs(const dsc_config *c) { return c->own.outputs_on_host; }
static bool with_graphs(const dsc_config *c) { return c->own.cuda_graphs; }
static bool with_packed_params(const dsc_config *c)
{
    return c->zero.quantized_weights || c->zero.quantized_frozen_weights;
}
static bool with_early_updates(const dsc_config *c) { return c->own.early_update; }
static bool with_elasticity(const dsc_config *c) { return c->unresolved.elastic.enabled; }
static bool with_quota(const dsc_config *c) { return c->own.quota.kind != DSC_QUOTA_ABSENT; }
static bool with_spikes(const dsc_config *c) { return c->own.spikes.enabled; }
static bool with_gradient_checks(const dsc_config *c) { return c->own.check_gradients > 0; }
static bool with_replica_checks(const dsc_config *c) { return c->own.check_replicas > 0; }
static bool with_powersgd(const dsc_config *c) { return c->own.hook.kind == DSC_HOOK_POWERSGD; }

/* Features that several stages do not have yet. */
static const struct {
    bool (*is_set)(const dsc_config *c);
    const char *key;
} unsupported[] = {
    { with_hpz, "zero_optimization.zero_hpz_partition_size" },
    { with_mics, "zero_optimization.mics_shard_size" },
    { with_outputs, "activation_checkpointing.cpu_checkpointing" },
    { with_graphs, "dsc.cuda_graphs" },
    { with_packed_params, "zero_optimization.zero_quantized_weights" },
    { with_early_updates, "dsc.early_update" },
    { with_elasticity, "elasticity" },
    { with_quota, "dsc.quota" },
    { with_spikes, "dsc.spikes" },
    { with_gradient_checks, "dsc.check_gradients" },
    { with_replica_checks, "dsc.check_replicas" },
    { with_powersgd, "dsc.communication_hook.type" },
};

static dsc_status check_unsupported(dsc_config_parse_state *s)
{
    const dsc_grid_section *grid = &s->config->own.grid;
    for (size_t i = 0; i < DSC_COUNT(unsupported); i++)
        if (unsupported[i].is_set(s->config))
            return dsc_config_not_built(s, grid->key,
                                        "%lld stages do not work with %s in this version; leave one of "
                                        "them out",
                                        (long long)grid->pipeline, unsupported[i].key);
    return DSC_OK;
}

dsc_status dsc_config_fill_grid(dsc_config_parse_state *s)
{
    dsc_ext_config *own = &s->config->own;
    bool from_text;
    int64_t interval = 0;
    DSC_TRY(fill_stages(s));
    DSC_TRY(fill_partition(s));
    own->grid.order = (dsc_stage_order)dsc_config_choice_or(s, DSC_ID_GRID_ORDER, DSC_STAGES_1F1B);
    if (own->grid.pipeline == 1)
        return DSC_OK;
    if (dsc_config_has(s, DSC_ID_PIPELINE_INTERVAL))
        (void)dsc_value_int(s->given[DSC_ID_PIPELINE_INTERVAL], &interval, &from_text);
    if (interval > 0 && !own->recompute_given) {
        own->recompute = DSC_RECOMPUTE_FULL;
        own->recompute_given = true;
    }
    return check_unsupported(s);
}

/* "1, 2, 4": stages that divide `world`. */
static void stages_that_work(int64_t world, char *out, size_t out_bytes)
{
    size_t used = 0;
    int count = 0;
    out[0] = 0;
    for (int64_t p = 1; p <= world && count < SIZES_SHOWN; p++)
        if (world % p == 0)
            used += (size_t)snprintf(out + used, out_bytes - used, "%s%lld", count++ > 0 ? ", " : "", (long long)p);
    DSC_ASSERT(used < out_bytes);
}

dsc_status dsc_config_resolve_grid(const dsc_config *config, int64_t world_size, dsc_error *err)
{
    const dsc_grid_section *grid = &config->own.grid;
    const int64_t p = grid->pipeline;
    const char *key = dsc_config_keys[grid->key].path;
    char where[256], sizes[128];
    if (world_size == 0)
        return DSC_OK;
    stages_that_work(world_size, sizes, sizeof sizes);
    if (world_size % p != 0)
        return DSC_FAIL(err, DSC_ERR_CONFIG, dsc_config_source_text(config, config->unresolved.grid, where),
                        "%s: %lld stages do not divide %lld rank%s; sizes that work: %s stage%s, or %lld, %lld, %lld, "
                        "... ranks",
                        key, (long long)p, (long long)world_size, world_size == 1 ? "" : "s", sizes,
                        world_size == 1 ? "" : "s", (long long)p, (long long)(2 * p), (long long)(3 * p));
    if (grid->data == 0 || grid->data * p == world_size)
        return DSC_OK;
    return DSC_FAIL(err, DSC_ERR_CONFIG, dsc_config_source_text(config, config->unresolved.grid, where),
                    "dsc.grid.data: %lld, and %lld ranks in %lld stage%s are %lld for the data; give that number, or "
                    "leave the key out",
                    (long long)grid->data, (long long)world_size, (long long)p, p == 1 ? "" : "s",
                    (long long)(world_size / p));
}
