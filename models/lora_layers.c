/* lora_layers.c - which layers of a model have an adapter, of what rank and scale; which modules are trained whole. The
 * rules are PEFT's: a list has names or their ends, a text is a regular expression. SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/module_names.h"
#include "base/name_regex.h"
#include "models/lora_config.h"

#define ALL_LINEAR "all-linear"

bool dsc_lora_is_named(const char *layer, const char *target)
{
    const size_t bytes = strlen(layer), end = strlen(target);
    if (bytes < end || strcmp(layer + bytes - end, target) != 0)
        return false;
    return bytes == end || layer[bytes - end - 1] == '.';
}

bool dsc_lora_is_adapter(const char *param)
{
    return strstr(param, ".lora_A.") != NULL || strstr(param, ".lora_B.") != NULL ||
           strstr(param, "." DSC_LORA_MAGNITUDE) != NULL;
}

const dsc_weight *dsc_lora_find(const dsc_weights *weights, const char *name)
{
    char key[512], live[512];
    snprintf(key, sizeof key, DSC_LORA_PREFIX "%s", name);
    const dsc_weight *found = dsc_weights_find(weights, key);
    if (found != NULL || !dsc_module_is_vit(name))
        return found;
    dsc_module_vit_in_peft(name, live, sizeof live);
    snprintf(key, sizeof key, DSC_LORA_PREFIX "%.480s", live);
    return dsc_weights_find(weights, key);
}

/* Whether `target` is a layer's name, or the end of it, in files or in PEFT. */
static bool is_named_anywhere(const char *layer, const char *target)
{
    char live[256];
    if (dsc_lora_is_named(layer, target) || !dsc_module_is_vit(layer))
        return dsc_lora_is_named(layer, target);
    dsc_module_vit_in_peft(layer, live, sizeof live);
    return dsc_lora_is_named(live, target);
}

/* ---- regular expressions ---- */

/* The first failure is kept for dsc_lora_check; patterns that were checked fail by their steps alone. */
static bool fits(dsc_lora_config *config, const char *key, const char *before, const char *pattern, const char *after,
                 const char *name)
{
    char where[64], whole[DSC_LORA_REGEX_BYTES + 32];
    bool matches = false;
    snprintf(where, sizeof where, "dsc.lora.%s", key);
    snprintf(whole, sizeof whole, "%s%s%s", before, pattern, after);
    if (config->status == DSC_OK)
        config->status = dsc_name_regex_match(whole, name, where, &config->steps_left, &matches, &config->err);
    return matches;
}

/* PEFT's get_pattern_key: a key of rank_pattern or alpha_pattern fits a layer's name or what follows a point in it. */
static bool fits_key(dsc_lora_config *config, const char *key, const char *pattern, const char *layer)
{
    return fits(config, key, "(.*\\.)?(", pattern, ")$", layer);
}

dsc_status dsc_lora_check_patterns(dsc_lora_config *config, dsc_error *err)
{
    config->steps_left = DSC_LORA_STEPS;
    for (int32_t i = 0; i < config->rank_pattern_count; i++)
        (void)fits_key(config, "rank_pattern", config->rank_pattern[i].name, "");
    for (int32_t i = 0; i < config->alpha_pattern_count; i++)
        (void)fits_key(config, "alpha_pattern", config->alpha_pattern[i].name, "");
    if (config->target_regex != NULL)
        (void)fits(config, "target_modules", "", config->target_regex, "", "");
    if (config->exclude_regex != NULL)
        (void)fits(config, "exclude_modules", "", config->exclude_regex, "", "");
    for (int32_t i = 0; i < config->layers_pattern_count; i++)
        (void)fits(config, "layers_pattern", "(?:^|.*?\\.)", config->layers_pattern[i], "", "");
    return dsc_lora_check(config, err);
}

dsc_status dsc_lora_check(const dsc_lora_config *config, dsc_error *err)
{
    if (config->status != DSC_OK && err != NULL)
        *err = config->err;
    return config->status;
}

/* ---- which layers ---- */

bool dsc_lora_saves(dsc_lora_config *config, const char *param)
{
    bool saves = false;
    for (int32_t i = 0; i < config->saved_count; i++) {
        const bool here = dsc_module_around(param, config->saved[i]) != DSC_MODULE_OTHER;
        config->saved_used[i] |= here;
        saves |= here;
    }
    return saves;
}

/* PEFT gives no adapter to layers in modules whose whole name was given. Layers that a part of a name fits would have
 * both in PEFT, and are refused later. */
static bool is_in_saved(dsc_lora_config *config, const char *weight)
{
    bool in = false;
    for (int32_t i = 0; i < config->saved_count; i++) {
        const dsc_module_match match = dsc_module_around(weight, config->saved[i]);
        in |= match == DSC_MODULE_WHOLE;
        config->saved_partly[i] |= match == DSC_MODULE_PARTLY;
    }
    return in;
}

static bool is_excluded(dsc_lora_config *config, const char *layer)
{
    bool excluded = false;
    if (config->exclude_regex != NULL) {
        excluded = fits(config, "exclude_modules", "", config->exclude_regex, "", layer);
        config->exclude_used[0] |= excluded;
    }
    for (int32_t i = 0; i < config->exclude_count; i++) {
        const bool here = is_named_anywhere(layer, config->exclude[i]);
        config->exclude_used[i] |= here;
        excluded |= here;
    }
    return excluded;
}

/* Whether the text before a number in a layer's name is the name of a list of layers. It fits one of the patterns.
 * Without patterns it has at least two components, as in PEFT. */
static bool is_layer_list(dsc_lora_config *config, const char *before)
{
    bool is = config->layers_pattern_count == 0 && strchr(before, '.') != NULL;
    for (int32_t i = 0; i < config->layers_pattern_count; i++)
        is |= fits(config, "layers_pattern", "(?:^|.*?\\.)", config->layers_pattern[i], "", before);
    return is;
}

/* The number of a layer's block: the first component that is one behind the name of a list of layers; -1: none is. */
static int64_t block_of(dsc_lora_config *config, const char *layer)
{
    char before[256];
    for (const char *at = strchr(layer, '.'); at != NULL; at = strchr(at + 1, '.')) {
        const size_t digits = strspn(at + 1, "0123456789");
        snprintf(before, sizeof before, "%.*s", (int)(at - layer), layer);
        if (digits == 0 || digits > 9 || at[1 + digits] != '.' || !is_layer_list(config, before))
            continue;
        int64_t number = 0;
        for (size_t i = 1; i <= digits; i++)
            number = number * 10 + (at[i] - '0');
        return number;
    }
    return -1;
}

static bool is_in_layers(dsc_lora_config *config, const char *layer)
{
    bool in = config->layer_count == 0;
    const int64_t block = in ? -1 : block_of(config, layer);
    for (int32_t i = 0; i < config->layer_count; i++) {
        const bool here = block == config->layers[i];
        config->layer_used[i] |= here;
        in |= here;
    }
    return in;
}

bool dsc_lora_is_all_linear(const char *target) { return strcasecmp(target, ALL_LINEAR) == 0; }

bool dsc_lora_is_fused(const dsc_lora_config *config, const char *layer)
{
    bool fused = false;
    for (int32_t i = 0; i < config->fused_count; i++)
        fused |= dsc_lora_is_named(layer, config->fused[i]);
    return fused;
}

/* By the targets alone. Parameters without targets leave no usual ones, as in PEFT. */
static bool is_target(dsc_lora_config *config, const char *layer, const char *const *usual)
{
    bool target = false;
    if (config->target_regex != NULL)
        return fits(config, "target_modules", "", config->target_regex, "", layer);
    for (int32_t i = 0; config->target_count + config->parameter_count == 0 && usual[i] != NULL; i++)
        target |= dsc_lora_is_named(layer, usual[i]);
    for (int32_t i = 0; i < config->target_count; i++) {
        const bool all = dsc_lora_is_all_linear(config->targets[i]) && !dsc_lora_is_fused(config, layer);
        const bool here = !config->taken[i] && (all || is_named_anywhere(layer, config->targets[i]));
        config->used[i] |= here;
        target |= here;
    }
    return target;
}

bool dsc_lora_wants(dsc_lora_config *config, const char *layer, const char *const *usual)
{
    char name[256];
    snprintf(name, sizeof name, "%s.weight", layer);
    if (is_in_saved(config, name))
        return false;
    if (config->weights != NULL) {
        snprintf(name, sizeof name, "%s.lora_A.weight", layer);
        const char *const point = config->of_base ? strchr(name, '.') : NULL;
        return dsc_lora_find(config->weights, name) != NULL ||
               (point != NULL && dsc_lora_find(config->weights, point + 1) != NULL);
    }
    const bool excluded = is_excluded(config, layer), target = is_target(config, layer, usual);
    return target && !excluded && is_in_layers(config, layer);
}

/* ---- parameters ---- */

bool dsc_lora_wants_parameter(dsc_lora_config *config, const char *param)
{
    bool wants = false;
    for (int32_t i = 0; i < config->parameter_count; i++) {
        const bool here = dsc_lora_is_named(param, config->parameters[i]);
        config->parameter_used[i] |= here;
        wants |= here;
    }
    return wants;
}

dsc_status dsc_lora_add_parameter(dsc_lora_config *config, const char *name, const char *where, dsc_error *err)
{
    for (int32_t i = 0; i < config->parameter_count; i++)
        if (strcmp(config->parameters[i], name) == 0)
            return DSC_OK;
    if (config->parameter_count == DSC_LORA_PARAMETERS_MAX || name[0] == 0 || strlen(name) >= DSC_LORA_NAME_BYTES)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, where,
                        "target_parameters: at most %d names of 1 to %d bytes are read; \"mlp.experts.down_proj\" is "
                        "that of all blocks",
                        DSC_LORA_PARAMETERS_MAX, DSC_LORA_NAME_BYTES - 1);
    snprintf(config->parameters[config->parameter_count++], DSC_LORA_NAME_BYTES, "%s", name);
    return DSC_OK;
}

dsc_status dsc_lora_check_parameters(const dsc_lora_config *config, const char *where, dsc_error *err)
{
    if (config->parameter_count == 0 || (!(config->dropout > 0) && !config->use_dora))
        return DSC_OK;
    return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, where,
                    "adapters of parameters, as of \"%.100s\", have no %s, as in PEFT; leave %s out, or these targets",
                    config->parameters[0], config->use_dora ? "magnitudes" : "dropout",
                    config->use_dora ? "use_dora" : "the dropout");
}

/* ---- numbers ---- */

/* The first pattern that fits, as in PEFT. */
static double find_pattern(dsc_lora_config *config, const char *key, dsc_lora_pattern *patterns, int32_t count,
                           const char *layer, double otherwise)
{
    char live[256];
    snprintf(live, sizeof live, "%s", layer);
    if (dsc_module_is_vit(layer))
        dsc_module_vit_in_peft(layer, live, sizeof live);
    for (int32_t i = 0; i < count; i++)
        if (fits_key(config, key, patterns[i].name, layer) || fits_key(config, key, patterns[i].name, live)) {
            patterns[i].used = true;
            return patterns[i].value;
        }
    return otherwise;
}

int64_t dsc_lora_rank(dsc_lora_config *config, const char *layer)
{
    return (int64_t)find_pattern(config, "rank_pattern", config->rank_pattern, config->rank_pattern_count, layer,
                                 (double)config->rank);
}

float dsc_lora_scale(dsc_lora_config *config, const char *layer)
{
    const double rank = (double)dsc_lora_rank(config, layer);
    const double alpha =
        find_pattern(config, "alpha_pattern", config->alpha_pattern, config->alpha_pattern_count, layer, config->alpha);
    return (float)(alpha / (config->rank_stabilized ? sqrt(rank) : rank));
}

/* ---- what nothing fitted ---- */

static dsc_status refuse_unused(const char *key, const char *text, const char *model, dsc_error *err)
{
    char where[64];
    snprintf(where, sizeof where, "dsc.lora.%s", key);
    return DSC_FAIL(err, DSC_ERR_INPUT, where,
                    "\"%.100s\" fits no layer of %.200s that can have an adapter; names are as \"%s\"", text, model,
                    "model.layers.0.self_attn.q_proj");
}

dsc_status dsc_lora_check_used(const dsc_lora_config *config, const char *model, dsc_error *err)
{
    char number[32];
    for (int32_t i = 0; i < config->rank_pattern_count; i++)
        if (!config->rank_pattern[i].used)
            return refuse_unused("rank_pattern", config->rank_pattern[i].name, model, err);
    for (int32_t i = 0; i < config->alpha_pattern_count; i++)
        if (!config->alpha_pattern[i].used)
            return refuse_unused("alpha_pattern", config->alpha_pattern[i].name, model, err);
    for (int32_t i = 0; i < config->exclude_count; i++)
        if (!config->exclude_used[i])
            return refuse_unused("exclude_modules", config->exclude[i], model, err);
    if (config->exclude_regex != NULL && !config->exclude_used[0])
        return refuse_unused("exclude_modules", config->exclude_regex, model, err);
    for (int32_t i = 0; i < config->layer_count; i++) {
        snprintf(number, sizeof number, "%lld", (long long)config->layers[i]);
        if (!config->layer_used[i])
            return refuse_unused("layers_to_transform", number, model, err);
    }
    return DSC_OK;
}
