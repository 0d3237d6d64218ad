/* tune_space.c - see tune.h. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "engine/planned.h"
#include "tools/dsc/config_tool.h"
#include "tools/dsc/tune.h"

static bool in_files(tune_tier tier) { return tier == TUNE_OPTIMIZER_IN_FILES || tier == TUNE_ALL_IN_FILES; }

/* Where the config has its files, of whichever section; NULL: it names no folder. */
static cJSON *folder_of(cJSON *config)
{
    cJSON *folder = dsc_config_tool_get(config, "zero_optimization.offload_optimizer.nvme_path");
    return folder != NULL ? folder : dsc_config_tool_get(config, "zero_optimization.offload_param.nvme_path");
}

bool tune_can_be(const trial_setup *setup, tune_tier tier, bool on_gpus)
{
    return tier <= TUNE_DEVICE || (in_files(tier) ? folder_of(setup->config) != NULL : on_gpus);
}

static dsc_status put_section(cJSON *config, const char *section, const char *device, const cJSON *folder,
                              dsc_error *err)
{
    char path[96];
    snprintf(path, sizeof path, "%s.device", section);
    DSC_TRY(dsc_config_tool_put(config, path, cJSON_CreateString(device), err));
    snprintf(path, sizeof path, "%s.nvme_path", section);
    return folder == NULL ? DSC_OK : dsc_config_tool_put(config, path, cJSON_Duplicate(folder, true), err);
}

static dsc_status put_tier(cJSON *config, tune_tier tier, dsc_error *err)
{
    static const char *const sections[] = { "zero_optimization.offload_optimizer", "zero_optimization.offload_param" };
    const bool parameters = tier == TUNE_ALL_ON_HOST || tier == TUNE_ALL_IN_FILES;
    if (tier == TUNE_AS_IT_IS)
        return DSC_OK;
    cJSON *folder = in_files(tier) ? cJSON_Duplicate(folder_of(config), true) : NULL;
    dsc_status status = DSC_OK;
    for (int i = 0; i < 2 && status == DSC_OK; i++)
        if (tier == TUNE_DEVICE || (i == 1 && !parameters))
            dsc_config_tool_remove(config, sections[i]);
        else
            status = put_section(config, sections[i], in_files(tier) ? "nvme" : "cpu", folder, err);
    cJSON_Delete(folder);
    return status;
}

static dsc_status put_of_files(cJSON *config, const tune_choice *c, dsc_error *err)
{
    if (c->grouped)
        DSC_TRY(dsc_config_tool_put(config, "dsc.micro_batches_together", cJSON_CreateNumber((double)c->accumulation),
                                    err));
    if (c->speculative)
        DSC_TRY(dsc_config_tool_put(config, "dsc.early_update", cJSON_CreateTrue(), err));
    if (c->ratio >= 0)
        DSC_TRY(dsc_config_tool_put(config, "zero_optimization.offload_optimizer.ratio", cJSON_CreateNumber(c->ratio),
                                    err));
    if (c->gradients >= 0)
        DSC_TRY(dsc_config_tool_put(config, "dsc.gradients_in_memory", cJSON_CreateNumber(c->gradients), err));
    return DSC_OK;
}

/* The ranks of a stage follow from the number of stages. */
static dsc_status put_stages(cJSON *config, int64_t stages, dsc_error *err)
{
    static const char *const others[] = { "pipeline.stages", "dsc.grid.data" };
    for (size_t i = 0; i < DSC_COUNT(others); i++)
        dsc_config_tool_remove(config, others[i]);
    return dsc_config_tool_put(config, "dsc.grid.pipeline", cJSON_CreateNumber((double)stages), err);
}

static dsc_status put_choice(cJSON *config, const tune_choice *c, dsc_error *err)
{
    if (c->stage < 0)
        return DSC_OK;
    if (!cJSON_IsObject(dsc_config_tool_get(config, "zero_optimization"))) /* true, as old files have it */
        dsc_config_tool_remove(config, "zero_optimization");
    DSC_TRY(dsc_config_tool_put(config, "zero_optimization.stage", cJSON_CreateNumber(c->stage), err));
    DSC_TRY(dsc_config_tool_put(config, "dsc.recompute", cJSON_CreateString(dsc_recompute_text(c->recompute)), err));
    DSC_TRY(put_tier(config, c->tier, err));
    DSC_TRY(trial_put_batch(config, c->micro_batch, c->accumulation, err));
    if (c->pipeline > 0)
        DSC_TRY(put_stages(config, c->pipeline, err));
    if (c->overlap != TUNE_OVERLAP_AS_IT_IS)
        DSC_TRY(dsc_config_tool_put(config, "zero_optimization.overlap_comm",
                                    cJSON_CreateBool(c->overlap == TUNE_OVERLAP_ON), err));
    if (c->reduce_bucket >= 0)
        DSC_TRY(dsc_config_tool_put(config, "zero_optimization.reduce_bucket_size",
                                    cJSON_CreateNumber((double)c->reduce_bucket), err));
    if (c->prefetch_bucket >= 0)
        DSC_TRY(dsc_config_tool_put(config, "zero_optimization.stage3_prefetch_bucket_size",
                                    cJSON_CreateNumber((double)c->prefetch_bucket), err));
    return put_of_files(config, c, err);
}

dsc_status tune_apply(const trial_setup *setup, const tune_choice *choice, cJSON **out, dsc_error *err)
{
    cJSON *config = cJSON_Duplicate(setup->config, true);
    if (config == NULL)
        return DSC_FAIL(err, DSC_ERR_NOMEM, setup->path, "out of host memory");
    const dsc_status status = put_choice(config, choice, err);
    *out = status == DSC_OK ? config : NULL;
    if (status != DSC_OK)
        cJSON_Delete(config);
    return status;
}

/* One rank's plan; a stage's ranks have the same. */
static dsc_status plan_rank(const char *text, int64_t ranks, int32_t rank, dsc_grid *grid, tune_fit *out,
                            dsc_error *err)
{
    dsc_engine_options options = DSC_ENGINE_OPTIONS_INIT;
    dsc_engine *engine = NULL;
    options.config_text = text;
    options.flags = DSC_ENGINE_PLAN_ONLY;
    options.plan_world_size = (int32_t)ranks;
    options.rank = rank;
    dsc_status status = dsc_engine_open(&engine, &options, err);
    if (status == DSC_OK) {
        dsc_engine_planned planned;
        dsc_engine_planned_get(engine, &planned);
        *grid = planned.grid;
        out->bytes = dsc_max_i64(out->bytes, planned.total_bytes);
        out->on_gpus = !planned.host_visible;
        out->first_ratio = rank == 0 ? dsc_zero_first_share(&planned.kept) : out->first_ratio;
        status = dsc_engine_check_fit(engine, err);
    }
    dsc_engine_close(&engine);
    return status;
}

dsc_status tune_plan(const trial_setup *setup, const tune_choice *choice, int64_t ranks, tune_fit *out, dsc_error *err)
{
    *out = (tune_fit) { .first_ratio = 1 };
    dsc_grid grid = { .pipeline = 1, .data = (int32_t)ranks, .tensor = 1 };
    cJSON *config = NULL;
    dsc_error refusal = DSC_ERROR_INIT;
    DSC_TRY(tune_apply(setup, choice, &config, err));
    char *text = cJSON_PrintUnformatted(config);
    cJSON_Delete(config);
    if (text == NULL)
        return DSC_FAIL(err, DSC_ERR_NOMEM, setup->path, "out of host memory");
    dsc_status status = DSC_OK;
    for (int32_t stage = 0; stage < grid.pipeline && status == DSC_OK; stage++)
        status = plan_rank(text, ranks, stage * grid.data * grid.tensor, &grid, out, &refusal);
    cJSON_free(text);
    out->fits = status == DSC_OK;
    if (status == DSC_OK || status == DSC_ERR_NOFIT || status == DSC_ERR_CONFIG || status == DSC_ERR_UNSUPPORTED)
        return DSC_OK;
    *err = refusal;
    return status;
}

int64_t tune_data_ranks(const tune_limits *limits, const tune_choice *choice)
{
    return limits->ranks / limits->tensor / (choice->pipeline > 0 ? choice->pipeline : limits->stages);
}

bool tune_next_batch(const tune_limits *limits, int64_t micro_batch, tune_choice *choice)
{
    const int64_t each = limits->batch > 0 ? limits->batch / tune_data_ranks(limits, choice) : 0;
    int64_t micro = micro_batch > 0 ? micro_batch - 1 : each > 0 ? dsc_min_i64(each, limits->micro_most) : 0;
    if (each > 0) {
        while (micro > 0 && each % micro != 0)
            micro--;
    } else { /* powers of two */
        for (micro = 1; 2 * micro <= limits->micro_most && (micro_batch == 0 || 2 * micro < micro_batch); micro *= 2)
            ;
        micro = micro_batch == 0 || micro < micro_batch ? micro : 0;
    }
    if (micro <= 0)
        return false;
    choice->micro_batch = micro;
    choice->accumulation = each > 0 ? each / micro : limits->accumulation;
    return true;
}

const char *tune_words(const tune_choice *c, char out[160])
{
    static const char *const places[] = {
        "", "", ", optimizer on host", ", optimizer and parameters on host", ", optimizer in files", ", all in files"
    };
    static const char *const overlaps[] = { "", ", no overlap", ", overlap" };
    if (c->stage < 0) {
        snprintf(out, 160, "the file as it is");
        return out;
    }
    const bool again = c->recompute != DSC_RECOMPUTE_NONE;
    int used = snprintf(out, 160, "stage %d%s%s%s%s", c->stage, again ? ", recompute " : "",
                        again ? dsc_recompute_text(c->recompute) : "", places[c->tier], overlaps[c->overlap]);
    if (c->reduce_bucket >= 0)
        used += snprintf(out + used, 160 - (size_t)used, ", reduce bucket %.0e", (double)c->reduce_bucket);
    if (c->prefetch_bucket >= 0)
        used += snprintf(out + used, 160 - (size_t)used, ", prefetch %.0e", (double)c->prefetch_bucket);
    used += snprintf(out + used, 160 - (size_t)used, "%s%s", c->grouped ? ", micro-batches together" : "",
                     c->speculative ? ", early updates" : "");
    if (c->gradients >= 0)
        used += snprintf(out + used, 160 - (size_t)used, ", gradients %.2g in memory", c->gradients);
    if (c->ratio >= 0)
        used += snprintf(out + used, 160 - (size_t)used, ", ratio %.2g", c->ratio);
    if (c->pipeline > 0)
        snprintf(out + used, 160 - (size_t)used, ", pipeline %d", (int)c->pipeline);
    return out;
}
