/* load_values.c - values of a tokenizer.json, and failures at their places. SPDX-License-Identifier: Apache-2.0 */
#include "engine/text/load.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

dsc_status tok_fail(const tok_loader *l, const cJSON *item, dsc_status status, const char *fmt, ...)
{
    char where[256], text[400];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return DSC_FAIL(l->err, status, dsc_json_where(l->json, item, where, sizeof where), "%s", text);
}

static bool has_word(const char *words, const char *word)
{
    const size_t bytes = strlen(word); /* an empty word is found behind the end too */
    for (const char *at = words; bytes > 0 && (at = strstr(at, word)) != NULL; at++)
        if ((at == words || at[-1] == ' ') && at[bytes] == ' ')
            return true;
    return false;
}

dsc_status tok_check_keys(const tok_loader *l, const cJSON *object, const char *keys)
{
    for (const cJSON *item = object->child; item != NULL; item = item->next)
        if (strchr(item->string, ' ') != NULL || !has_word(keys, item->string))
            return tok_fail(l, item, DSC_ERR_UNSUPPORTED, "\"%.100s\" is not known here; known are: %s", item->string,
                            keys);
    return DSC_OK;
}

const cJSON *tok_get(const cJSON *object, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    return cJSON_IsNull(item) ? NULL : item;
}

dsc_status tok_get_bool(const tok_loader *l, const cJSON *object, const char *key, bool fallback, bool *out)
{
    const cJSON *item = tok_get(object, key);
    if (item != NULL && !cJSON_IsBool(item))
        return tok_fail(l, item, DSC_ERR_INPUT, "\"%s\" must be true or false", key);
    *out = item != NULL ? cJSON_IsTrue(item) : fallback;
    return DSC_OK;
}

dsc_status tok_get_integer(const tok_loader *l, const cJSON *object, const char *key, int64_t most, int64_t *out)
{
    const cJSON *item = cJSON_IsObject(object) ? tok_get(object, key) : object;
    if (!dsc_json_integer(item, 0, most, out))
        return tok_fail(l, item != NULL ? item : object, DSC_ERR_INPUT, "\"%s\" must be a whole number from 0 to %lld",
                        key, (long long)most);
    return DSC_OK;
}

tok_string tok_keep(const tok_loader *l, const char *text, int64_t bytes)
{
    dsc_text *strings = &l->t->strings;
    DSC_ASSERT(strings->capacity - strings->bytes > bytes); /* stored strings must not move */
    char *at = strings->ptr + strings->bytes;
    memcpy(at, text, (size_t)bytes);
    at[bytes] = 0;
    strings->bytes += bytes + 1;
    return (tok_string){ at, bytes };
}

dsc_status tok_get_string(const tok_loader *l, const cJSON *object, const char *key, bool may_be_empty, tok_string *out)
{
    const cJSON *item = tok_get(object, key);
    if (!cJSON_IsString(item) || (!may_be_empty && item->valuestring[0] == 0))
        return tok_fail(l, item != NULL ? item : object, DSC_ERR_INPUT, "\"%s\" must be a string%s", key,
                        may_be_empty ? "" : " that is not empty");
    *out = tok_keep(l, item->valuestring, (int64_t)strlen(item->valuestring));
    return DSC_OK;
}
