/* grid.c - the section "dsc.grid" and DeepSpeed's "pipeline" and "tensor_parallel": sizes of the axes, and what a run
 * with several stages or tensor ranks does not do yet. SPDX-License-Identifier: Apache-2.0 */
#include "engine/config/internal.h"

#include <stdio.h>
#include <string.h>

#define SIZES_SHOWN 8

/* The size of an axis: by dsc's key, or by one of DeepSpeed's, which all must agree. *key <- the row that gave it. */
static dsc_status fill_axis(dsc_config_parse_state *s, int own, const int *theirs, int count, int64_t *size, int *key)
{
    *key = own;
    for (int i = 0; i < count; i++) {
        const bool given = dsc_config_has(s, *key);
        bool from_text;
        int64_t value = 1;
        if (!dsc_config_has(s, theirs[i]) || !dsc_value_int(s->given[theirs[i]], &value, &from_text)) /* or "auto" */
            continue;
        value = value > 0 ? value : 1;
        if (given && *size != value)
            return dsc_config_fail(s, theirs[i], DSC_ERR_CONFIG, "%lld is not %s, which is %lld; keep one of them",
                                   (long long)value, dsc_config_keys[*key].path, (long long)*size);
        *size = value;
        *key = given ? *key : theirs[i];
    }
    return DSC_OK;
}

static dsc_status fill_axes(dsc_config_parse_state *s)
{
    static const int stages[] = { DSC_ID_PIPELINE_STAGES }, tensor[] = { DSC_ID_AUTOTP_SIZE, DSC_ID_TP_SIZE };
    dsc_grid_section *grid = &s->config->own.grid;
    DSC_TRY(fill_axis(s, DSC_ID_GRID_PIPELINE, stages, (int)DSC_COUNT(stages), &grid->pipeline, &grid->key));
    DSC_TRY(fill_axis(s, DSC_ID_GRID_TENSOR, tensor, (int)DSC_COUNT(tensor), &grid->tensor, &grid->tensor_key));
    s->config->unresolved.grid = dsc_config_source_pos(s, grid->key);
    s->config->unresolved.grid_tensor = dsc_config_source_pos(s, grid->tensor_key);
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
static bool with_packed_params(const dsc_config *c)
{
    return c->zero.quantized_weights || c->zero.quantized_frozen_weights;
}
static bool with_packed_gradients(const dsc_config *c) { return c->zero.quantized_gradients; }
static bool with_compression(const dsc_config *c) { return c->own.compression != DSC_QUANT_NONE; }
static bool with_muon(const dsc_config *c) { return c->optimizer.kind == DSC_OPTIMIZER_MUON; }
static bool with_fp8(const dsc_config *c) { return c->own.fp8.enabled; }
static bool with_quantize(const dsc_config *c) { return c->own.quantize.enabled; }
static bool with_pairs(const dsc_config *c) { return c->own.dpo.enabled; }
static bool with_embedding(const dsc_config *c) { return c->own.embedding.enabled; }
static bool with_local_saves(const dsc_config *c) { return c->own.node_local; }
static bool with_outputs(const dsc_config *c) { return c->own.outputs_on_host; }
static bool with_graphs(const dsc_config *c) { return c->own.cuda_graphs; }
static bool with_early_updates(const dsc_config *c) { return c->own.early_update; }
static bool with_elasticity(const dsc_config *c) { return c->unresolved.elastic.enabled; }
static bool with_quota(const dsc_config *c) { return c->own.quota.kind != DSC_QUOTA_ABSENT; }
static bool with_spikes(const dsc_config *c) { return c->own.spikes.enabled; }
static bool with_gradient_checks(const dsc_config *c) { return c->own.check_gradients > 0; }
static bool with_replica_checks(const dsc_config *c) { return c->own.check_replicas > 0; }
static bool with_powersgd(const dsc_config *c) { return c->own.hook.kind == DSC_HOOK_POWERSGD; }
static bool with_local_sgd(const dsc_config *c) { return c->own.local_sgd.inner_steps > 0; }
static bool with_averages(const dsc_config *c) { return c->own.ema.enabled; }
static bool with_trace(const dsc_config *c) { return c->own.trace[0] != 0; }
static bool with_async_saves(const dsc_config *c) { return c->own.save_async; }
static bool with_lora(const dsc_config *c) { return c->own.lora.enabled; }
static bool with_8bit_moments(const dsc_config *c) { return c->own.moments == DSC_U8; }

/* Whether an update needs more of a tensor than one element at a time. */
static bool with_whole_tensors(const dsc_config *c) { return dsc_recipes[c->optimizer.recipe].needs != 0; }

typedef struct grid_exclusion {
    bool (*is_set)(const dsc_config *c);
    const char *key;
} grid_exclusion;

/* Features that tensor ranks do not have yet, in addition to those that several stages do not have. */
static const grid_exclusion unsupported_tensor[] = {
    { with_packed_gradients, "zero_optimization.zero_quantized_gradients" },
    { with_compression, "dsc.gradient_compression" },
    { dsc_config_compresses_signs, "optimizers that exchange signs (1-bit Adam, 0/1 Adam, 1-bit LAMB)" },
    { with_muon, "the optimizer Muon" },
    { with_whole_tensors, "optimizers that look at whole tensors (LAMB, LARS, Adafactor)" },
    { with_8bit_moments, "dsc.moments \"8bit\"" },
    { with_averages, "dsc.ema" },
    { with_fp8, "dsc.fp8" },
    { with_quantize, "dsc.quantize_base" },
    { with_lora, "dsc.lora" },
    { with_pairs, "dsc.dpo" },
    { with_embedding, "dsc.embedding" },
    { with_trace, "dsc.trace" },
    { with_local_saves, "checkpoint.use_node_local_storage" },
    { with_async_saves, "dsc.save_async" },
};

/* Features that several stages do not have yet. */
static const grid_exclusion unsupported[] = {
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
    { with_local_sgd, "dsc.local_sgd" },
};

static dsc_status refuse_first(dsc_config_parse_state *s, int key, int64_t size, const char *what,
                               const grid_exclusion *list, size_t count)
{
    for (size_t i = 0; i < count && size > 1; i++)
        if (list[i].is_set(s->config))
            return dsc_config_not_built(s, key, "%lld %s do not work with %s in this version; leave one of them out",
                                        (long long)size, what, list[i].key);
    return DSC_OK;
}

static dsc_status check_unsupported(dsc_config_parse_state *s)
{
    const dsc_grid_section *grid = &s->config->own.grid;
    const int64_t ranks = grid->tensor;
    DSC_TRY(refuse_first(s, grid->key, grid->pipeline, "stages", unsupported, DSC_COUNT(unsupported)));
    DSC_TRY(refuse_first(s, grid->tensor_key, ranks, "tensor ranks", unsupported, DSC_COUNT(unsupported)));
    return refuse_first(s, grid->tensor_key, ranks, "tensor ranks", unsupported_tensor, DSC_COUNT(unsupported_tensor));
}

dsc_status dsc_config_fill_grid(dsc_config_parse_state *s)
{
    dsc_ext_config *own = &s->config->own;
    bool from_text;
    int64_t interval = 0;
    DSC_TRY(fill_axes(s));
    DSC_TRY(fill_partition(s));
    own->grid.order = (dsc_stage_order)dsc_config_choice_or(s, DSC_ID_GRID_ORDER, DSC_STAGES_1F1B);
    if (own->grid.pipeline > 1 && dsc_config_has(s, DSC_ID_PIPELINE_INTERVAL))
        (void)dsc_value_int(s->given[DSC_ID_PIPELINE_INTERVAL], &interval, &from_text);
    if (interval > 0 && !own->recompute_given) {
        own->recompute = DSC_RECOMPUTE_FULL;
        own->recompute_given = true;
    }
    return check_unsupported(s);
}

/* "1, 2, 4": sizes that divide `ranks`. */
static void sizes_that_work(int64_t ranks, char *out, size_t out_bytes)
{
    size_t used = 0;
    int count = 0;
    out[0] = 0;
    for (int64_t p = 1; p <= ranks && count < SIZES_SHOWN; p++)
        if (ranks % p == 0)
            used += (size_t)snprintf(out + used, out_bytes - used, "%s%lld", count++ > 0 ? ", " : "", (long long)p);
    DSC_ASSERT(used < out_bytes);
}

/* `each`: what there is one of for each of `size` ranks, "stage". */
static dsc_status check_divides(const dsc_config *config, const dsc_source_pos *pos, int key, int64_t size,
                                int64_t ranks, const char *each, dsc_error *err)
{
    char where[256], sizes[128];
    if (ranks % size == 0)
        return DSC_OK;
    sizes_that_work(ranks, sizes, sizeof sizes);
    return DSC_FAIL(err, DSC_ERR_CONFIG, dsc_config_source_text(config, *pos, where),
                    "%s: %lld %ss do not divide %lld rank%s; sizes that work: %s %s%s, or %lld, %lld, %lld, ... ranks",
                    dsc_config_keys[key].path, (long long)size, each, (long long)ranks, ranks == 1 ? "" : "s", sizes,
                    each, ranks == 1 ? "" : "s", (long long)size, (long long)(2 * size), (long long)(3 * size));
}

dsc_status dsc_config_resolve_grid(const dsc_config *config, int64_t world_size, dsc_error *err)
{
    const dsc_grid_section *grid = &config->own.grid;
    const int64_t p = grid->pipeline, t = grid->tensor;
    char where[256], tensor[64] = "";
    if (world_size == 0)
        return DSC_OK;
    DSC_TRY(check_divides(config, &config->unresolved.grid, grid->key, p, world_size, "stage", err));
    DSC_TRY(check_divides(config, &config->unresolved.grid_tensor, grid->tensor_key, t, world_size / p, "tensor rank",
                          err));
    if (grid->data == 0 || grid->data * p * t == world_size)
        return DSC_OK;
    if (t > 1)
        snprintf(tensor, sizeof tensor, " and %lld tensor ranks", (long long)t);
    return DSC_FAIL(err, DSC_ERR_CONFIG, dsc_config_source_text(config, config->unresolved.grid, where),
                    "dsc.grid.data: %lld, and %lld ranks in %lld stage%s%s are %lld for the data; give that number, or "
                    "leave the key out",
                    (long long)grid->data, (long long)world_size, (long long)p, p == 1 ? "" : "s", tensor,
                    (long long)(world_size / (p * t)));
}
