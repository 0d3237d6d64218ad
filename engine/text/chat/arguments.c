/* arguments.c - arguments of filters, tests, methods and functions by position and by name.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/text/chat/chat_internal.h"

/* The number of a name in "one two three", -1: it is none of them. */
static int find_param(const char *params, const char *name, int64_t bytes)
{
    int i = 0;
    DSC_ASSERT(bytes >= 0);
    for (const char *at = params; *at != 0; i++) {
        const size_t length = strcspn(at, " ");
        if ((int64_t)length == bytes && memcmp(at, name, length) == 0)
            return i;
        at += length;
        at += *at == ' ';
    }
    return -1;
}

static int count_params(const char *params)
{
    int count = *params != 0;
    for (const char *at = params; *at != 0; at++)
        count += *at == ' ';
    return count;
}

dsc_status chat_bind(chat_run *r, const char *name, const char *params, int required, const chat_args *args,
                     chat_value bound[CHAT_PARAMS_MAX])
{
    const int count = count_params(params);
    DSC_ASSERT(count <= CHAT_PARAMS_MAX && required <= count);
    for (int i = 0; i < CHAT_PARAMS_MAX; i++)
        bound[i] = (chat_value){ .kind = CHAT_MISSING };
    if (args->count > count)
        return chat_fail(r, DSC_ERR_INPUT, "'%s' has %lld arguments, and it takes at most %d", name,
                         (long long)args->count, count);
    for (int64_t i = 0; i < args->count; i++)
        bound[i] = args->value[i];
    for (int64_t i = 0; i < args->keyword_count; i++) {
        const chat_keyword *keyword = &args->keyword[i];
        const int at = find_param(params, keyword->name, keyword->bytes);
        if (at < 0 || bound[at].kind != CHAT_MISSING)
            return chat_fail(r, DSC_ERR_INPUT, "'%s' %s the argument '%.*s'", name, at < 0 ? "has not" : "has twice",
                             (int)dsc_min_i64(keyword->bytes, 60), keyword->name);
        bound[at] = keyword->value;
    }
    for (int i = 0; i < required; i++)
        if (bound[i].kind == CHAT_MISSING)
            return chat_fail(r, DSC_ERR_INPUT, "'%s' needs %d arguments: %s", name, required, params);
    return DSC_OK;
}

dsc_status chat_integer_argument(chat_run *r, const chat_value *v, const char *name, int64_t otherwise, int64_t *out)
{
    *out = otherwise;
    if (v->kind == CHAT_MISSING || v->kind == CHAT_NONE || chat_is_integer(v, out))
        return DSC_OK;
    return chat_fail(r, DSC_ERR_INPUT, "the argument '%s' must be an integer, not a value of type %s", name,
                     chat_type_name((chat_kind)v->kind));
}
