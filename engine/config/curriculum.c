/* curriculum.c - "curriculum_learning", and "data_efficiency" as far as it says the same thing: samples of
 * a step are as long as a schedule says.
 *
 * DeepSpeed looks at a schedule when a run begins, not when it reads its config. So what is wrong with one is an error
 * for who runs it and a warning for who reads it. SPDX-License-Identifier: Apache-2.0 */
#include "engine/config/internal.h"

#include <stdio.h>
#include <string.h>

/* Position of a schedule in the config: the row that enables it, and the object of its members. */
typedef struct place {
    dsc_config_parse_state *s;
    int id;
    const cJSON *schedule, *config; /* and its "schedule_config" */
    bool wrong;                     /* something was */
} place;

static dsc_status wrong(place *at, const char *what)
{
    at->wrong = true;
    return dsc_config_not_built(at->s, at->id, "%s", what);
}

static bool read_int(const cJSON *item, int64_t *out)
{
    bool from_text;
    return item != NULL && dsc_value_int(item, out, &from_text) && *out >= 1 && *out <= INT32_MAX;
}

static dsc_status need_int(place *at, const cJSON *object, const char *name, int64_t *out)
{
    char text[128];
    if (read_int(cJSON_GetObjectItemCaseSensitive(object, name), out))
        return DSC_OK;
    snprintf(text, sizeof text, "it needs a %s, from 1 to 2147483647", name);
    return wrong(at, text);
}

/* Whole numbers >= 1; returns how many, 0: no such list. */
static int read_list(const cJSON *list, int64_t *out)
{
    int count = 0;
    for (const cJSON *each = cJSON_IsArray(list) ? list->child : NULL; each != NULL; each = each->next)
        if (count == DSC_CURRICULUM_STAIRS_MAX || !read_int(each, &out[count++]))
            return 0;
    return count;
}

static dsc_status fill_stairs(place *at, dsc_curriculum *out)
{
    const cJSON *difficulty = cJSON_GetObjectItemCaseSensitive(at->config, "difficulty");
    const int steps = read_list(cJSON_GetObjectItemCaseSensitive(at->config, "max_step"), out->last_step);
    out->stair_count = read_list(difficulty, out->stair);
    if (steps < 1 || out->stair_count != steps + 1)
        return wrong(at, "fixed_discrete needs a difficulty list and a max_step list in its schedule_config, of whole "
                         "numbers from 1, at most 64, with one max_step less than there are difficulties");
    return DSC_OK;
}

static dsc_status fill_root(place *at, bool linear, dsc_curriculum *out)
{
    bool from_text;
    out->root_degree = 1;
    DSC_TRY(need_int(at, at->config, "total_curriculum_step", &out->total_steps));
    DSC_TRY(need_int(at, at->config, "difficulty_step", &out->difficulty_step));
    const cJSON *degree = linear ? NULL : cJSON_GetObjectItemCaseSensitive(at->config, "root_degree");
    if (!linear && (degree == NULL || !dsc_value_float(degree, &out->root_degree, &from_text) ||
                    !(out->root_degree > 0 && out->root_degree <= 1e9)))
        return wrong(at, "fixed_root needs a root_degree above 0");
    return DSC_OK;
}

static dsc_status fill_schedule(place *at)
{
    dsc_curriculum out = { .enabled = true };
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(at->schedule, "schedule_type");
    const char *name = cJSON_IsString(type) ? type->valuestring : "";
    at->config = cJSON_GetObjectItemCaseSensitive(at->schedule, "schedule_config");
    DSC_TRY(need_int(at, at->schedule, "min_difficulty", &out.min_difficulty));
    DSC_TRY(need_int(at, at->schedule, "max_difficulty", &out.max_difficulty));
    if (strcmp(name, "fixed_discrete") == 0)
        DSC_TRY(fill_stairs(at, &out));
    else if (strcmp(name, "fixed_linear") == 0 || strcmp(name, "fixed_root") == 0)
        DSC_TRY(fill_root(at, strcmp(name, "fixed_linear") == 0, &out));
    else
        DSC_TRY(wrong(at, "it needs a schedule_type: fixed_linear, fixed_root or fixed_discrete; custom ones are "
                          "functions of a Python program"));
    if (!at->wrong)
        at->s->config->curriculum = out;
    return DSC_OK;
}

static dsc_status fill_metrics(dsc_config_parse_state *s)
{
    place at = { .s = s, .id = DSC_ID_METRICS_ENABLED };
    const cJSON *metrics = dsc_config_has(s, DSC_ID_METRICS) ? s->given[DSC_ID_METRICS] : NULL;
    const cJSON *metric = cJSON_IsObject(metrics) ? metrics->child : NULL;
    if (metric == NULL || metric->next != NULL)
        return wrong(&at, "it needs one metric in its curriculum_metrics: seqlen");
    if (strcmp(metric->string, "seqlen") != 0 && strcmp(metric->string, "seqlen_truncate") != 0)
        return wrong(&at, "of curriculum_metrics seqlen and seqlen_truncate are supported in this version: samples are "
                          "cut, none is chosen by an index");
    if (cJSON_GetObjectItemCaseSensitive(metric, "index_to_sample_path") != NULL ||
        cJSON_GetObjectItemCaseSensitive(metric, "index_to_metric_path") != NULL)
        return wrong(&at, "samples are cut, none is chosen by an index: leave index_to_sample_path and "
                          "index_to_metric_path out");
    at.schedule = metric;
    return fill_schedule(&at);
}

dsc_status dsc_config_fill_curriculum(dsc_config_parse_state *s)
{
    const bool efficiency = dsc_config_bool_or(s, DSC_ID_DATA_EFFICIENCY, false);
    const bool sampling = dsc_config_bool_or(s, DSC_ID_DATA_SAMPLING, false);
    const bool metrics = dsc_config_bool_or(s, DSC_ID_METRICS_ENABLED, false);
    if (efficiency && sampling && metrics)
        DSC_TRY(fill_metrics(s));
    else if (efficiency || sampling || metrics)
        DSC_TRY(dsc_config_not_built(s, efficiency ? DSC_ID_DATA_EFFICIENCY : sampling ? DSC_ID_DATA_SAMPLING
                                                                                       : DSC_ID_METRICS_ENABLED,
                                     "only a curriculum is supported in this version: enabled in data_efficiency, in "
                                     "its data_sampling and in that one's curriculum_learning"));
    if (!dsc_config_bool_or(s, DSC_ID_CURRICULUM_ENABLED, false))
        return DSC_OK;
    place at = { .s = s, .id = DSC_ID_CURRICULUM_ENABLED, .schedule = s->given[DSC_ID_CURRICULUM] };
    if (s->config->curriculum.enabled)
        return dsc_config_fail(s, DSC_ID_CURRICULUM_ENABLED, DSC_ERR_CONFIG,
                               "true conflicts with "
                               "data_efficiency.data_sampling.curriculum_learning (each sets the length of samples); "
                               "keep one of them");
    if (dsc_config_has(s, DSC_ID_CURRICULUM_TYPE) &&
        strcmp(s->given[DSC_ID_CURRICULUM_TYPE]->valuestring, "seqlen") != 0)
        return dsc_config_not_built(s, DSC_ID_CURRICULUM_TYPE, "seqlen is what is supported in this version");
    return fill_schedule(&at);
}
