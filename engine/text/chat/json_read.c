/* json_read.c - a JSON text as values of a template. SPDX-License-Identifier: Apache-2.0 */
#include "base/formats/json.h"
#include "engine/text/chat/chat_internal.h"

#define VALUES_MAX 1000000

static dsc_status value_of(chat_run *r, const cJSON *item, chat_value *out);

/* Strings of a tree are zero-terminated; the copy lives as long as the render. */
static dsc_status copy_string(chat_run *r, const char *text, chat_value *out)
{
    const int64_t bytes = (int64_t)strlen(text);
    char *copy = NULL;
    DSC_TRY(chat_new_text(r, bytes + 1, &copy));
    memcpy(copy, text, (size_t)bytes + 1);
    *out = chat_string(copy, bytes);
    return DSC_OK;
}

static dsc_status list_of(chat_run *r, const cJSON *array, chat_value *out)
{
    chat_value item;
    DSC_TRY(chat_new_list(r, CHAT_LIST, 0, out));
    for (const cJSON *child = array->child; child != NULL; child = child->next) {
        DSC_TRY(value_of(r, child, &item));
        DSC_TRY(chat_append(r, out->list, item));
    }
    return DSC_OK;
}

static dsc_status dict_of(chat_run *r, const cJSON *object, chat_value *out)
{
    chat_value key, value;
    DSC_TRY(chat_new_dict(r, out));
    for (const cJSON *child = object->child; child != NULL; child = child->next) {
        DSC_TRY(copy_string(r, child->string, &key));
        DSC_TRY(value_of(r, child, &value));
        DSC_TRY(chat_dict_set(r, out->dict, key, value));
    }
    return DSC_OK;
}

/* As Python reads it: 1 is an integer, 1.0 is none. */
static dsc_status value_of(chat_run *r, const cJSON *item, chat_value *out)
{
    int64_t integer = 0;
    DSC_TRY(chat_spend(r, 1));
    if (cJSON_IsString(item))
        return copy_string(r, item->valuestring, out);
    if (cJSON_IsArray(item))
        return list_of(r, item, out);
    if (cJSON_IsObject(item))
        return dict_of(r, item, out);
    if (dsc_json_integer(item, -DSC_JSON_INTEGER_MAX, DSC_JSON_INTEGER_MAX, &integer))
        *out = chat_int(integer);
    else
        *out = cJSON_IsNumber(item) ? chat_float(item->valuedouble)
               : cJSON_IsBool(item) ? chat_bool(cJSON_IsTrue(item)) : chat_none();
    return DSC_OK;
}

dsc_status chat_read_json(chat_run *r, const char *text, int64_t bytes, chat_value *out)
{
    const int64_t values = dsc_min_i64(VALUES_MAX, r->memory_limit / (int64_t)sizeof *out);
    const dsc_json_limits limits = { DSC_CHAT_CONTEXT_BYTES_MAX, DSC_CHAT_NESTING_MAX, values };
    dsc_json *json = NULL;
    DSC_TRY(dsc_json_open(r->alloc, "chat context", text, bytes, DSC_JSON_DATA, &limits, &json, r->err));
    const dsc_status status = value_of(r, dsc_json_root(json), out);
    dsc_json_close(&json);
    return status;
}
