/* functions.c - global functions of templates. SPDX-License-Identifier: Apache-2.0 */
#include "engine/text/chat/chat_internal.h"

#define RANGE_MAX 100000 /* items of a range, as in jinja2's sandbox */

static dsc_status call_range(chat_run *r, const chat_args *args, chat_value *out)
{
    chat_value bound[CHAT_PARAMS_MAX];
    int64_t first, second, step, count = 0;
    DSC_TRY(chat_bind(r, "range", "start stop step", 1, args, bound));
    for (int i = 0; i < 3; i++)
        if (bound[i].kind == CHAT_NONE || args->keyword_count > 0)
            return chat_fail(r, DSC_ERR_INPUT, "range takes integers by position");
    DSC_TRY(chat_integer_argument(r, &bound[0], "start", 0, &first));
    DSC_TRY(chat_integer_argument(r, &bound[1], "stop", 0, &second));
    DSC_TRY(chat_integer_argument(r, &bound[2], "step", 1, &step));
    const int64_t start = bound[1].kind == CHAT_MISSING ? 0 : first;
    const int64_t stop = bound[1].kind == CHAT_MISSING ? first : second;
    if (step == 0)
        return chat_fail(r, DSC_ERR_INPUT, "the step of a range is 0");
    const __int128 distance = step > 0 ? (__int128)stop - start : (__int128)start - stop;
    const __int128 stride = step > 0 ? (__int128)step : -(__int128)step;
    const __int128 wide = distance > 0 ? (distance - 1) / stride + 1 : 0;
    if (wide > RANGE_MAX)
        return chat_fail(r, DSC_ERR_INPUT, "a range of more than %d items", RANGE_MAX);
    count = (int64_t)wide;
    *out = (chat_value){ .kind = CHAT_RANGE };
    DSC_TRY(chat_new(r, 1, sizeof *out->range, &out->range));
    *out->range = (chat_range){ start, step, count, stop };
    return DSC_OK;
}

static dsc_status add_pairs(chat_run *r, const chat_value *v, chat_dict *dict)
{
    chat_value items, pair;
    DSC_ASSERT(dict != NULL);
    if (v->kind == CHAT_DICT) {
        for (int64_t i = 0; i < v->dict->count; i++)
            DSC_TRY(chat_dict_set(r, dict, v->dict->entry[i].key, v->dict->entry[i].value));
        return DSC_OK;
    }
    DSC_TRY(chat_to_list(r, v, CHAT_LIST, &items));
    for (int64_t i = 0; i < items.list->count; i++) {
        DSC_TRY(chat_to_list(r, &items.list->item[i], CHAT_LIST, &pair));
        if (pair.list->count != 2)
            return chat_fail(r, DSC_ERR_INPUT, "dict needs pairs, and item %lld has %lld values", (long long)i,
                             (long long)pair.list->count);
        DSC_TRY(chat_dict_set(r, dict, pair.list->item[0], pair.list->item[1]));
    }
    return DSC_OK;
}

static dsc_status call_dict(chat_run *r, const chat_args *args, chat_value *out)
{
    DSC_TRY(chat_new_dict(r, out));
    if (args->count > 1)
        return chat_fail(r, DSC_ERR_INPUT, "dict and namespace take one value by position at most");
    if (args->count == 1)
        DSC_TRY(add_pairs(r, &args->value[0], out->dict));
    for (int64_t i = 0; i < args->keyword_count; i++) {
        const chat_keyword *k = &args->keyword[i];
        DSC_TRY(chat_dict_set(r, out->dict, chat_string(k->name, k->bytes), k->value));
    }
    return DSC_OK;
}

static dsc_status call_namespace(chat_run *r, const chat_args *args, chat_value *out)
{
    DSC_TRY(call_dict(r, args, out));
    DSC_ASSERT(out->kind == CHAT_DICT);
    for (int64_t i = 0; i < out->dict->count; i++)
        DSC_TRY(chat_check_stored(r, &out->dict->entry[i].key));
    out->kind = CHAT_NAMESPACE;
    return DSC_OK;
}

static dsc_status call_raise(chat_run *r, const chat_args *args, chat_value *out)
{
    chat_value bound[CHAT_PARAMS_MAX], text;
    (void)out;
    DSC_TRY(chat_bind(r, "raise_exception", "message", 1, args, bound));
    DSC_TRY(chat_str(r, &bound[0], &text));
    return chat_fail(r, DSC_ERR_INPUT, "the template refuses the conversation: %.*s",
                     (int)dsc_min_i64(text.bytes, 300), text.text);
}

static dsc_status call_strftime(chat_run *r, const chat_args *args, chat_value *out)
{
    chat_value bound[CHAT_PARAMS_MAX];
    DSC_TRY(chat_bind(r, "strftime_now", "format", 1, args, bound));
    if (bound[0].kind != CHAT_STRING)
        return chat_fail(r, DSC_ERR_INPUT, "strftime_now needs a string");
    return chat_strftime(r, &bound[0], out);
}

static dsc_status call_refused(chat_run *r, const chat_args *args, chat_value *out)
{
    (void)args;
    (void)out;
    return chat_fail(r, DSC_ERR_UNSUPPORTED,
                     "this function of jinja2 is not supported; supported functions are range, dict, namespace, "
                     "raise_exception, strftime_now");
}

static const struct { const char *name; dsc_status (*call)(chat_run *r, const chat_args *args, chat_value *out); }
    function[] = {
        { "range", call_range }, { "dict", call_dict }, { "namespace", call_namespace },
        { "raise_exception", call_raise }, { "strftime_now", call_strftime }, { "cycler", call_refused },
        { "joiner", call_refused }, { "lipsum", call_refused },
    };

int chat_find_function(const char *name, int64_t bytes)
{
    const chat_value text = chat_string(name, bytes);
    for (size_t i = 0; i < DSC_COUNT(function); i++)
        if (chat_is(&text, function[i].name))
            return (int)i;
    return -1;
}

dsc_status chat_call_function(chat_run *r, int at, const chat_args *args, chat_value *out)
{
    DSC_ASSERT(at >= 0 && at < (int)DSC_COUNT(function));
    return function[at].call(r, args, out);
}
