/* groups.c - dsc.param_groups: which parameters, by name, have a rate or a weight decay of their own.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/config/internal.h"

#include <stdio.h>
#include <string.h>

static dsc_status bad(const dsc_config_parse_state *s, const cJSON *item, const char *what)
{
    char where[256], value[128];
    return DSC_FAIL(s->err, DSC_ERR_CONFIG, dsc_config_where_item(s, item, where), "dsc.param_groups: %s: %s",
                    dsc_value_text(item, value, sizeof value), what);
}

static dsc_status add_pattern(dsc_config_parse_state *s, const cJSON *item, dsc_param_group *group)
{
    if (!cJSON_IsString(item) || *item->valuestring == 0 ||
        strlen(item->valuestring) >= sizeof group->pattern[0])
        return bad(s, item, "params is a name or a list of names, each of at most 127 bytes; * stands for any text");
    if (group->pattern_count == DSC_GROUP_PATTERNS_MAX)
        return bad(s, item, "a group has at most 16 names; write another group with the same values");
    snprintf(group->pattern[group->pattern_count++], sizeof group->pattern[0], "%s", item->valuestring);
    return DSC_OK;
}

static dsc_status add_patterns(dsc_config_parse_state *s, const cJSON *item, dsc_param_group *group)
{
    if (!cJSON_IsArray(item))
        return add_pattern(s, item, group);
    for (const cJSON *each = item->child; each != NULL; each = each->next)
        DSC_TRY(add_pattern(s, each, group));
    return DSC_OK;
}

static dsc_status number(const dsc_config_parse_state *s, const cJSON *item, double *out)
{
    bool from_text;
    if (!dsc_value_float(item, out, &from_text) || !(*out >= 0 && *out <= 1e9))
        return bad(s, item, "expected a number from 0 to 1e9");
    return DSC_OK;
}

/* A rate is kept as a share of the optimizer's: the schedule moves all groups together. */
static dsc_status read_lr(dsc_config_parse_state *s, const cJSON *item, dsc_param_group *group)
{
    double lr = 0;
    DSC_TRY(number(s, item, &lr));
    if (s->config->optimizer.adafactor.relative_step && s->config->optimizer.kind == DSC_OPTIMIZER_ADAFACTOR)
        return bad(s, item, "Adafactor makes its own rate (relative_step); use lr_scale");
    if (s->config->optimizer.lr == 0)
        return bad(s, item, "lr is taken as a share of the optimizer's lr, which is 0; use lr_scale");
    group->lr_scale = lr / s->config->optimizer.lr;
    return DSC_OK;
}

static dsc_status read_member(dsc_config_parse_state *s, const cJSON *item, dsc_param_group *group)
{
    const char *name = item->string;
    if (strcmp(name, "params") == 0)
        return add_patterns(s, item, group);
    if (strcmp(name, "lr") == 0)
        return read_lr(s, item, group);
    if (strcmp(name, "lr_scale") == 0)
        return number(s, item, &group->lr_scale);
    if (strcmp(name, "weight_decay") == 0) {
        group->has_weight_decay = true;
        return number(s, item, &group->weight_decay);
    }
    char text[192];
    snprintf(text, sizeof text, "\"%.60s\" is not a member of a group; expected params, lr or lr_scale, weight_decay",
             name);
    return bad(s, item, text);
}

static dsc_status read_group(dsc_config_parse_state *s, const cJSON *item)
{
    dsc_ext_config *own = &s->config->own;
    if (!cJSON_IsObject(item))
        return bad(s, item, "a group is an object: {\"params\": [\"*.bias\"], \"weight_decay\": 0}");
    if (own->group_count == DSC_PARAM_GROUPS_MAX)
        return bad(s, item, "at most 15 groups");
    dsc_param_group *group = &own->group[own->group_count++];
    *group = (dsc_param_group){ .lr_scale = 1 };
    for (const cJSON *member = item->child; member != NULL; member = member->next)
        DSC_TRY(read_member(s, member, group));
    if (group->pattern_count == 0)
        return bad(s, item, "a group names its parameters: \"params\": [\"*.bias\"]");
    if (cJSON_GetObjectItemCaseSensitive(item, "lr") != NULL &&
        cJSON_GetObjectItemCaseSensitive(item, "lr_scale") != NULL)
        return bad(s, item, "lr and lr_scale say the same thing; keep one");
    return DSC_OK;
}

dsc_status dsc_config_fill_groups(dsc_config_parse_state *s)
{
    if (!dsc_config_has(s, DSC_ID_PARAM_GROUPS))
        return DSC_OK;
    for (const cJSON *each = s->given[DSC_ID_PARAM_GROUPS]->child; each != NULL; each = each->next)
        DSC_TRY(read_group(s, each));
    return DSC_OK;
}
