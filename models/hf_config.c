/* hf_config.c - see hf_config.h. SPDX-License-Identifier: Apache-2.0 */
#include "models/hf_config.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const cJSON *dsc_hf_field(dsc_hf_config *reader, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(reader->object, key);
    if (item != NULL && reader->asked_count < DSC_HF_ASKED_MAX)
        reader->asked[reader->asked_count++] = key;
    dsc_json_where(reader->json, item != NULL ? item : reader->object, reader->where, sizeof reader->where);
    return item == NULL || cJSON_IsNull(item) ? NULL : item;
}

bool dsc_hf_was_asked(const dsc_hf_config *reader, const char *key)
{
    for (int32_t i = 0; i < reader->asked_count; i++)
        if (strcmp(reader->asked[i], key) == 0)
            return true;
    return false;
}

/* As dsc_hf_field, but null is a value. */
static const cJSON *value_of(dsc_hf_config *reader, const char *key)
{
    (void)dsc_hf_field(reader, key);
    return cJSON_GetObjectItemCaseSensitive(reader->object, key);
}

dsc_status dsc_hf_int(dsc_hf_config *reader, const char *key, int64_t max, int64_t fallback, int64_t *out)
{
    const cJSON *item = value_of(reader, key);
    *out = fallback;
    if (item == NULL)
        return DSC_OK;
    if (!dsc_json_integer(item, 1, max, out))
        return DSC_HF_REFUSE(reader, DSC_ERR_INPUT, "\"%s\" must be a whole number from 1 to %lld", key,
                             (long long)max);
    return DSC_OK;
}

dsc_status dsc_hf_int_or_null(dsc_hf_config *reader, const char *key, int64_t max, int64_t fallback, int64_t *out)
{
    *out = fallback;
    return dsc_hf_field(reader, key) != NULL ? dsc_hf_int(reader, key, max, fallback, out) : DSC_OK;
}

dsc_status dsc_hf_int_from(dsc_hf_config *reader, const char *key, int64_t min, int64_t max, int64_t fallback,
                           int64_t *out)
{
    const cJSON *item = dsc_hf_field(reader, key);
    *out = fallback;
    if (item != NULL && !dsc_json_integer(item, min, max, out))
        return DSC_HF_REFUSE(reader, DSC_ERR_INPUT, "\"%s\" must be a whole number from %lld to %lld", key,
                             (long long)min, (long long)max);
    return DSC_OK;
}

dsc_status dsc_hf_number(dsc_hf_config *reader, const char *key, dsc_hf_range range, double fallback, double *out)
{
    const cJSON *item = value_of(reader, key);
    *out = fallback;
    if (item == NULL)
        return DSC_OK;
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= range.min) || !(item->valuedouble <= range.max))
        return DSC_HF_REFUSE(reader, DSC_ERR_INPUT, "\"%s\" must be a number from %g to %g", key, range.min, range.max);
    *out = item->valuedouble;
    return DSC_OK;
}

dsc_status dsc_hf_number_or_null(dsc_hf_config *reader, const char *key, dsc_hf_range range, double fallback,
                                 double *out)
{
    *out = fallback;
    return dsc_hf_field(reader, key) != NULL ? dsc_hf_number(reader, key, range, fallback, out) : DSC_OK;
}

dsc_status dsc_hf_bool(dsc_hf_config *reader, const char *key, bool fallback, bool *out)
{
    const cJSON *item = value_of(reader, key);
    *out = fallback;
    if (item == NULL)
        return DSC_OK;
    if (!cJSON_IsBool(item))
        return DSC_HF_REFUSE(reader, DSC_ERR_INPUT, "\"%s\" must be true or false", key);
    *out = cJSON_IsTrue(item);
    return DSC_OK;
}

dsc_status dsc_hf_only(dsc_hf_config *reader, const char *key, bool value)
{
    bool is = value;
    DSC_TRY(dsc_hf_bool(reader, key, value, &is));
    if (is != value)
        return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED, "\"%s\": %s is not built; what exists: %s", key,
                             is ? "true" : "false", value ? "true" : "false");
    return DSC_OK;
}

dsc_status dsc_hf_only_word(dsc_hf_config *reader, const char *key, const char *word)
{
    int32_t index = 0;
    return dsc_hf_choice(reader, key, &word, 1, &index);
}

void dsc_hf_skip(dsc_hf_config *reader, const char *const *keys)
{
    for (int32_t i = 0; keys[i] != NULL; i++)
        (void)dsc_hf_field(reader, keys[i]);
}

dsc_status dsc_hf_choice(dsc_hf_config *reader, const char *key, const char *const *names, int32_t count,
                         int32_t *index)
{
    const cJSON *item = value_of(reader, key);
    char list[200] = "";
    *index = 0;
    if (item == NULL)
        return DSC_OK;
    if (!cJSON_IsString(item))
        return DSC_HF_REFUSE(reader, DSC_ERR_INPUT, "\"%s\" must be a string", key);
    for (; *index < count; ++*index)
        if (strcmp(item->valuestring, names[*index]) == 0)
            return DSC_OK;
    for (int32_t i = 0; i < count; i++) {
        const size_t used = strlen(list);
        snprintf(list + used, sizeof list - used, "%s%s", i > 0 ? ", " : "", names[i]);
    }
    return DSC_HF_REFUSE(reader, DSC_ERR_UNSUPPORTED, "%s \"%.60s\" is not built; what exists: %s", key,
                         item->valuestring, list);
}

void dsc_hf_warn(char *warnings, size_t bytes, const char *fmt, ...)
{
    const size_t used = strlen(warnings);
    va_list args;
    va_start(args, fmt);
    if (used + 1 < bytes) {
        if (used > 0)
            snprintf(warnings + used, bytes - used, "; ");
        vsnprintf(warnings + strlen(warnings), bytes - strlen(warnings), fmt, args);
    }
    va_end(args);
}

const char *dsc_hf_number_text(double value, char *out, size_t bytes)
{
    snprintf(out, bytes, "%.9g", value);
    char *comma = strchr(out, ',');
    if (comma != NULL)
        *comma = '.';
    return out;
}
