/* lora.c - the sections "dsc.lora" and "dsc.quantize_base". SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "engine/config/internal.h"

/* A text is a regular expression, as in PEFT, but for all-linear; a list has names. */
static bool is_regex(const cJSON *item)
{
    return cJSON_IsString(item) && strcasecmp(item->valuestring, "all-linear") != 0;
}

/* One number of a block or a list of them. */
static dsc_status fill_lora_layers(dsc_config_parse_state *s, dsc_lora_section *lora)
{
    const cJSON *const item = s->given[DSC_ID_LORA_LAYERS];
    bool from_text, good = true;
    if (item == NULL || cJSON_IsNull(item))
        return DSC_OK;
    for (const cJSON *each = cJSON_IsArray(item) ? item->child : item; each != NULL && good;
         each = cJSON_IsArray(item) ? each->next : NULL) {
        good = lora->layer_count < DSC_LORA_LAYERS_MAX &&
               dsc_value_int(each, &lora->layers[lora->layer_count], &from_text) &&
               lora->layers[lora->layer_count] >= 0;
        lora->layer_count++;
    }
    return good ? DSC_OK
                : dsc_config_fail(s, DSC_ID_LORA_LAYERS, DSC_ERR_CONFIG,
                                  "expected the number of a block, from 0, or a list of at most %d",
                                  DSC_LORA_LAYERS_MAX);
}

static dsc_status fill_lora_pattern(dsc_config_parse_state *s, int id, dsc_lora_pattern_config *out)
{
    const cJSON *const item = s->given[id];
    bool from_text, good = item == NULL || cJSON_IsNull(item) || cJSON_IsObject(item);
    for (const cJSON *each = good && item != NULL ? item->child : NULL; each != NULL && good; each = each->next) {
        good = out->count < DSC_LORA_NUMBERS_MAX && strlen(each->string) < sizeof out->pattern[0] &&
               dsc_value_float(each, &out->value[out->count], &from_text);
        if (good)
            snprintf(out->pattern[out->count++], sizeof out->pattern[0], "%s", each->string);
    }
    return good ? DSC_OK
                : dsc_config_fail(s, id, DSC_ERR_CONFIG,
                                  "expected an object of at most %d regular expressions of at most %d bytes, each with "
                                  "its number",
                                  DSC_LORA_NUMBERS_MAX, (int)sizeof out->pattern[0] - 1);
}

dsc_status dsc_config_fill_lora(dsc_config_parse_state *s)
{
    dsc_lora_section *lora = &s->config->own.lora;
    lora->target_is_regex = is_regex(s->given[DSC_ID_LORA_TARGETS]);
    lora->exclude_is_regex = is_regex(s->given[DSC_ID_LORA_EXCLUDE]);
    lora->exclude_count = dsc_config_copy_texts(s->given[DSC_ID_LORA_EXCLUDE], lora->exclude, DSC_CONFIG_TEXTS_MAX);
    lora->layers_pattern_count =
        dsc_config_copy_texts(s->given[DSC_ID_LORA_LAYERS_PATTERN], lora->layers_pattern, DSC_CONFIG_TEXTS_MAX);
    lora->enabled = s->given[DSC_ID_LORA] != NULL;
    lora->target_count = dsc_config_copy_texts(s->given[DSC_ID_LORA_TARGETS], lora->targets, DSC_CONFIG_TEXTS_MAX);
    lora->parameter_count =
        dsc_config_copy_texts(s->given[DSC_ID_LORA_PARAMETERS], lora->parameters, DSC_CONFIG_TEXTS_MAX);
    lora->save_count = dsc_config_copy_texts(s->given[DSC_ID_LORA_SAVE], lora->save, DSC_CONFIG_TEXTS_MAX);
    DSC_TRY(fill_lora_layers(s, lora));
    DSC_TRY(fill_lora_pattern(s, DSC_ID_LORA_RANKS, &lora->rank_pattern));
    DSC_TRY(fill_lora_pattern(s, DSC_ID_LORA_ALPHAS, &lora->alpha_pattern));
    /* A flag gives a key without its section. */
    s->config->own.quantize.enabled = s->given[DSC_ID_QUANTIZE_BASE] != NULL ||
                                      dsc_config_has(s, DSC_ID_QUANTIZE_DOUBLE) ||
                                      dsc_config_has(s, DSC_ID_QUANTIZE_EXPERTS);
    return DSC_OK;
}
