/* tune_space.c - see tune.h. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "engine/internal.h"
#include "tools/dsc/config_tool.h"
#include "tools/dsc/tune.h"

static dsc_status put_place(cJSON *config, tune_place place, dsc_error *err)
{
    static const char *const sections[] = { "zero_optimization.offload_optimizer", "zero_optimization.offload_param" };
    if (place == TUNE_AS_IT_IS)
        return DSC_OK;
    for (int i = 0; i < 2; i++) {
        char path[96];
        snprintf(path, sizeof path, "%s.device", sections[i]);
        if (place == TUNE_DEVICE || (place == TUNE_OPTIMIZER_AWAY && i == 1))
            dsc_config_tool_remove(config, sections[i]);
        else
            DSC_TRY(dsc_config_tool_put(config, path, cJSON_CreateString("cpu"), err));
    }
    return DSC_OK;
}

static dsc_status put_choice(cJSON *config, const tune_choice *c, dsc_error *err)
{
    if (c->stage < 0)
        return DSC_OK;
    if (!cJSON_IsObject(dsc_config_tool_get(config, "zero_optimization"))) /* true, as old files have it */
        dsc_config_tool_remove(config, "zero_optimization");
    DSC_TRY(dsc_config_tool_put(config, "zero_optimization.stage", cJSON_CreateNumber(c->stage), err));
    DSC_TRY(dsc_config_tool_put(config, "dsc.recompute", cJSON_CreateString(dsc_recompute_text(c->recompute)), err));
    DSC_TRY(put_place(config, c->place, err));
    DSC_TRY(trial_put_batch(config, c->micro_batch, c->accumulation, err));
    if (c->overlap != TUNE_OVERLAP_AS_IT_IS)
        DSC_TRY(dsc_config_tool_put(config, "zero_optimization.overlap_comm",
                                    cJSON_CreateBool(c->overlap == TUNE_OVERLAP_ON), err));
    if (c->reduce_bucket >= 0)
        DSC_TRY(dsc_config_tool_put(config, "zero_optimization.reduce_bucket_size",
                                    cJSON_CreateNumber((double)c->reduce_bucket), err));
    if (c->prefetch_bucket >= 0)
        DSC_TRY(dsc_config_tool_put(config, "zero_optimization.stage3_prefetch_bucket_size",
                                    cJSON_CreateNumber((double)c->prefetch_bucket), err));
    return DSC_OK;
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

dsc_status tune_plan(const trial_setup *setup, const tune_choice *choice, int64_t ranks, bool *fits, int64_t *bytes,
                     bool *on_gpus, dsc_error *err)
{
    dsc_engine_options options = DSC_ENGINE_OPTIONS_INIT;
    dsc_engine *engine = NULL;
    cJSON *config = NULL;
    dsc_error refusal = DSC_ERROR_INIT;
    DSC_TRY(tune_apply(setup, choice, &config, err));
    char *text = cJSON_PrintUnformatted(config);
    cJSON_Delete(config);
    if (text == NULL)
        return DSC_FAIL(err, DSC_ERR_NOMEM, setup->path, "out of host memory");
    options.config_text = text;
    options.flags = DSC_ENGINE_PLAN_ONLY;
    options.plan_world_size = (int32_t)ranks;
    dsc_status status = dsc_engine_open(&engine, &options, &refusal);
    *bytes = 0;
    if (status == DSC_OK) {
        *bytes = engine->plan.total_bytes;
        *on_gpus = !engine->host_visible;
        status = dsc_engine_check_fit(engine, &refusal);
    }
    dsc_engine_close(&engine);
    cJSON_free(text);
    *fits = status == DSC_OK;
    if (status == DSC_OK || status == DSC_ERR_NOFIT || status == DSC_ERR_CONFIG || status == DSC_ERR_UNSUPPORTED)
        return DSC_OK;
    *err = refusal;
    return status;
}

bool tune_next_batch(const tune_limits *limits, int64_t micro_batch, tune_choice *choice)
{
    const int64_t each = limits->batch > 0 ? limits->batch / limits->ranks : 0;
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
    static const char *const places[] = { "", "", ", optimizer on host", ", optimizer and parameters on host" };
    static const char *const overlaps[] = { "", ", no overlap", ", overlap" };
    if (c->stage < 0) {
        snprintf(out, 160, "the file as it is");
        return out;
    }
    const bool again = c->recompute != DSC_RECOMPUTE_NONE;
    int used = snprintf(out, 160, "stage %d%s%s%s%s", c->stage, again ? ", recompute " : "",
                        again ? dsc_recompute_text(c->recompute) : "", places[c->place], overlaps[c->overlap]);
    if (c->reduce_bucket >= 0)
        used += snprintf(out + used, 160 - (size_t)used, ", reduce bucket %.0e", (double)c->reduce_bucket);
    if (c->prefetch_bucket >= 0)
        snprintf(out + used, 160 - (size_t)used, ", prefetch %.0e", (double)c->prefetch_bucket);
    return out;
}
