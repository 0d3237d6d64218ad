/* filters.c - filters of texts and numbers, and the table of all. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "engine/text/chat/chat_internal.h"

/* ---- Text ---- */

static dsc_status f_trim(chat_run *r, const chat_value *v, const chat_value *arg, chat_value *out)
{
    chat_value text;
    DSC_TRY(chat_str(r, v, &text));
    return chat_strip(r, &text, &arg[0], true, true, out);
}

static dsc_status change_case(chat_run *r, const chat_value *v, chat_case how, chat_value *out)
{
    chat_value text;
    DSC_TRY(chat_str(r, v, &text));
    return chat_change_case(r, &text, how, out);
}

static dsc_status f_upper(chat_run *r, const chat_value *v, const chat_value *arg, chat_value *out)
{
    return change_case(r, v, CHAT_UPPER, out);
}

static dsc_status f_lower(chat_run *r, const chat_value *v, const chat_value *arg, chat_value *out)
{
    return change_case(r, v, CHAT_LOWER, out);
}

static dsc_status f_title(chat_run *r, const chat_value *v, const chat_value *arg, chat_value *out)
{
    return change_case(r, v, CHAT_JINJA_TITLE, out);
}

static dsc_status f_capitalize(chat_run *r, const chat_value *v, const chat_value *arg, chat_value *out)
{
    return change_case(r, v, CHAT_CAPITALIZE, out);
}

static dsc_status f_string(chat_run *r, const chat_value *v, const chat_value *arg, chat_value *out)
{
    *out = *v;
    return v->kind == CHAT_STRING ? DSC_OK : chat_str(r, v, out);
}

static dsc_status f_safe(chat_run *r, const chat_value *v, const chat_value *arg, chat_value *out)
{
    DSC_TRY(chat_str(r, v, out));
    out->flag = true;
    return DSC_OK;
}

static dsc_status f_replace(chat_run *r, const chat_value *v, const chat_value *arg, chat_value *out)
{
    chat_value text, from, to;
    int64_t most;
    DSC_TRY(chat_str(r, v, &text));
    DSC_TRY(chat_str(r, &arg[0], &from));
    DSC_TRY(chat_str(r, &arg[1], &to));
    DSC_TRY(chat_integer_argument(r, &arg[2], "count", -1, &most));
    return chat_replace(r, &text, &from, &to, most, out);
}

static dsc_status f_indent(chat_run *r, const chat_value *v, const chat_value *arg, chat_value *out)
{
    chat_value lines, width = arg[0];
    chat_bytes b = { 0 }, text = { 0 };
    int64_t blanks;
    const bool first = arg[1].kind != CHAT_MISSING && chat_truth(&arg[1]);
    const bool blank = arg[2].kind != CHAT_MISSING && chat_truth(&arg[2]);
    if (v->kind != CHAT_STRING || v->flag)
        return chat_fail(r, DSC_ERR_INPUT, "indent needs a plain string, not a value of type %s",
                         chat_type_name((chat_kind)v->kind));
    if (width.kind != CHAT_STRING) {
        const chat_value space = chat_string(" ", 1);
        DSC_TRY(chat_integer_argument(r, &width, "width", 4, &blanks));
        DSC_TRY(chat_repeat(r, &space, blanks, &width));
    }
    DSC_TRY(chat_add_str(r, &text, v));
    DSC_TRY(chat_add_text(r, &text, "\n")); /* so that the last line is one, even when it is empty */
    const chat_value ended = chat_bytes_value(&text);
    DSC_TRY(chat_split_lines(r, &ended, false, &lines));
    DSC_ASSERT(lines.list->count > 0);
    for (int64_t i = 0; i < lines.list->count; i++) {
        if (i > 0)
            DSC_TRY(chat_add_text(r, &b, "\n"));
        if (i == 0 ? first : blank || lines.list->item[i].bytes > 0)
            DSC_TRY(chat_add_str(r, &b, &width));
        DSC_TRY(chat_add_str(r, &b, &lines.list->item[i]));
    }
    *out = chat_bytes_value(&b);
    return DSC_OK;
}

static dsc_status f_format(chat_run *r, const chat_value *v, const chat_args *args, chat_value *out)
{
    chat_value text, values;
    if (args->keyword_count > 0)
        return chat_fail(r, DSC_ERR_UNSUPPORTED, "format with arguments by name is not supported");
    DSC_TRY(chat_str(r, v, &text));
    DSC_TRY(chat_new_list(r, CHAT_TUPLE, args->count, &values));
    for (int64_t i = 0; i < args->count; i++)
        DSC_TRY(chat_append(r, values.list, args->value[i]));
    return chat_percent_format(r, &text, &values, out);
}

/* ---- JSON ---- */

static dsc_status set_separators(chat_run *r, const chat_value *v, chat_json_style *style)
{
    if (v->kind == CHAT_MISSING || v->kind == CHAT_NONE)
        return DSC_OK;
    if ((v->kind != CHAT_LIST && v->kind != CHAT_TUPLE) || v->list->count != 2 ||
        v->list->item[0].kind != CHAT_STRING || v->list->item[1].kind != CHAT_STRING)
        return chat_fail(r, DSC_ERR_INPUT, "the argument 'separators' must be two strings");
    style->item_separator = v->list->item[0];
    style->key_separator = v->list->item[1];
    return DSC_OK;
}

static dsc_status f_tojson(chat_run *r, const chat_value *v, const chat_value *arg, chat_value *out)
{
    chat_json_style style = { .indent = chat_none(), .key_separator = chat_string(": ", 2) };
    chat_bytes b = { 0 };
    const bool indents = arg[1].kind != CHAT_MISSING && arg[1].kind != CHAT_NONE;
    style.ascii = arg[0].kind != CHAT_MISSING && chat_truth(&arg[0]);
    style.sort = arg[3].kind != CHAT_MISSING && chat_truth(&arg[3]);
    style.item_separator = indents ? chat_string(",", 1) : chat_string(", ", 2);
    if (indents && arg[1].kind == CHAT_STRING) {
        style.indent = arg[1];
    } else if (indents) {
        const chat_value space = chat_string(" ", 1);
        int64_t width;
        DSC_TRY(chat_integer_argument(r, &arg[1], "indent", 0, &width));
        DSC_TRY(chat_repeat(r, &space, width, &style.indent));
    }
    DSC_TRY(set_separators(r, &arg[2], &style));
    DSC_TRY(chat_add_json(r, &b, v, &style));
    *out = chat_bytes_value(&b);
    return DSC_OK;
}

/* ---- Numbers ---- */

/* Python's float() of a text: blanks around it, underscores between digits. False: no number. */
static bool text_to_float(const chat_value *v, double *out)
{
    const char *end = v->text + v->bytes, *at = chat_skip_space(v->text, end);
    char copy[128];
    int64_t bytes = 0;
    end = chat_skip_space_back(end, at);
    for (const char *c = at; c < end; c++) {
        const bool digits_around = c > at && end - c > 1 && c[-1] >= '0' && c[-1] <= '9' && c[1] >= '0' && c[1] <= '9';
        if (*c == '_' && digits_around)
            continue;
        if (bytes == (int64_t)sizeof copy || *c == 0 || strchr("0123456789+-.eE", *c) == NULL)
            return false;
        copy[bytes++] = *c;
    }
    DSC_ASSERT(bytes <= (int64_t)sizeof copy);
    return bytes > 0 && chat_parse_float(copy, bytes, out);
}

/* Python's int() of a text. False: no integer, or one beyond 64 bits. */
static bool text_to_int(const chat_value *v, int64_t *out)
{
    const char *end = v->text + v->bytes, *at = chat_skip_space(v->text, end);
    end = chat_skip_space_back(end, at);
    const bool negative = at < end && *at == '-';
    at += at < end && (*at == '-' || *at == '+');
    *out = 0;
    if (at == end)
        return false;
    for (bool digit_before = false; at < end; at++) {
        const bool is_digit = *at >= '0' && *at <= '9';
        if (!is_digit && !(*at == '_' && digit_before && end - at > 1))
            return false;
        digit_before = is_digit;
        if (is_digit && (__builtin_mul_overflow(*out, (int64_t)10, out) ||
                         __builtin_sub_overflow(*out, (int64_t)(*at - '0'), out)))
            return false;
    }
    return negative || !__builtin_sub_overflow((int64_t)0, *out, out);
}

static dsc_status f_int(chat_run *r, const chat_value *v, const chat_value *arg, chat_value *out)
{
    int64_t base, integer = 0;
    double number = 0;
    DSC_TRY(chat_integer_argument(r, &arg[1], "base", 10, &base));
    if (v->kind == CHAT_UNDEFINED)
        return chat_undefined_error(r, v);
    DSC_TRY(chat_spend(r, chat_char_steps(v->kind == CHAT_STRING ? v->bytes : 0)));
    if (base != 10)
        return chat_fail(r, DSC_ERR_UNSUPPORTED, "int with a base other than 10 is not supported");
    if (chat_is_integer(v, &integer) || (v->kind == CHAT_STRING && text_to_int(v, &integer))) {
        *out = chat_int(integer);
        return DSC_OK;
    }
    const bool is_number = v->kind == CHAT_STRING ? text_to_float(v, &number) : chat_is_number(v, &number);
    if (is_number && fabs(number) >= 9.2e18)
        return chat_fail(r, DSC_ERR_UNSUPPORTED, "an integer beyond 64 bits is not supported");
    if (is_number && !isnan(number))
        *out = chat_int((int64_t)number);
    else
        *out = arg[0].kind != CHAT_MISSING ? arg[0] : chat_int(0);
    return DSC_OK;
}

static dsc_status f_float(chat_run *r, const chat_value *v, const chat_value *arg, chat_value *out)
{
    double number = 0;
    if (v->kind == CHAT_UNDEFINED)
        return chat_undefined_error(r, v);
    DSC_TRY(chat_spend(r, chat_char_steps(v->kind == CHAT_STRING ? v->bytes : 0)));
    const bool is_number = v->kind == CHAT_STRING ? text_to_float(v, &number) : chat_is_number(v, &number);
    *out = is_number || arg[0].kind == CHAT_MISSING ? chat_float(number) : arg[0];
    return DSC_OK;
}

static dsc_status f_abs(chat_run *r, const chat_value *v, const chat_value *arg, chat_value *out)
{
    double number;
    const bool is_number = chat_is_number(v, &number);
    return chat_negative(r, v, is_number && number < 0, out);
}

static dsc_status f_default(chat_run *r, const chat_value *v, const chat_value *arg, chat_value *out)
{
    const bool by_truth = arg[1].kind != CHAT_MISSING && chat_truth(&arg[1]);
    *out = *v;
    if (v->kind == CHAT_UNDEFINED || (by_truth && !chat_truth(v)))
        *out = arg[0].kind != CHAT_MISSING ? arg[0] : chat_string("", 0);
    return DSC_OK;
}

static dsc_status f_length(chat_run *r, const chat_value *v, const chat_value *arg, chat_value *out)
{
    int64_t length = 0;
    DSC_TRY(chat_spend(r, v->kind == CHAT_STRING ? chat_scan_steps(v->bytes) : 1));
    if (v->kind == CHAT_LOOP)
        return chat_loop_member(r, v->loop, "length", 6, out);
    if (!chat_length(v, &length))
        return chat_fail(r, DSC_ERR_INPUT, "a value of type %s has no length", chat_type_name((chat_kind)v->kind));
    *out = chat_int(length);
    return DSC_OK;
}

/* ---- The table ---- */

static const chat_filter text_filter[] = {
    { "trim", "chars", 0, false, f_trim, NULL },
    { "upper", "", 0, false, f_upper, NULL },
    { "lower", "", 0, false, f_lower, NULL },
    { "title", "", 0, false, f_title, NULL },
    { "capitalize", "", 0, false, f_capitalize, NULL },
    { "string", "", 0, false, f_string, NULL },
    { "safe", "", 0, false, f_safe, NULL },
    { "replace", "old new count", 2, false, f_replace, NULL },
    { "indent", "width first blank", 0, false, f_indent, NULL },
    { "format", "", 0, false, NULL, f_format },
    { "tojson", "ensure_ascii indent separators sort_keys", 0, false, f_tojson, NULL },
    { "int", "default base", 0, false, f_int, NULL },
    { "float", "default", 0, false, f_float, NULL },
    { "abs", "", 0, false, f_abs, NULL },
    { "default", "default_value boolean", 0, false, f_default, NULL },
    { "d", "default_value boolean", 0, false, f_default, NULL },
    { "length", "", 0, false, f_length, NULL },
    { "count", "", 0, false, f_length, NULL },
};

static const chat_filter *filter_at(int at)
{
    const int texts = (int)DSC_COUNT(text_filter);
    DSC_ASSERT(at >= 0 && at < texts + chat_sequence_filter_count);
    return at < texts ? &text_filter[at] : &chat_sequence_filter[at - texts];
}

int chat_find_filter(const char *name, int64_t bytes)
{
    const chat_value text = chat_string(name, bytes);
    for (int i = 0; i < (int)DSC_COUNT(text_filter) + chat_sequence_filter_count; i++)
        if (chat_is(&text, filter_at(i)->name))
            return i;
    return -1;
}

dsc_status chat_no_filter(chat_run *r, const char *name, int64_t bytes)
{
    chat_bytes known = { 0 };
    DSC_ASSERT(chat_find_filter(name, bytes) < 0);
    for (int i = 0; i < (int)DSC_COUNT(text_filter) + chat_sequence_filter_count; i++) {
        DSC_TRY(chat_add_text(r, &known, i > 0 ? ", " : ""));
        DSC_TRY(chat_add_text(r, &known, filter_at(i)->name));
    }
    return chat_fail(r, DSC_ERR_UNSUPPORTED, "filter '%.*s' is not supported; supported filters are %.*s",
                     (int)dsc_min_i64(bytes, 40), name, (int)known.bytes, known.ptr);
}

/* A generator of Python raises its error when the item is read. */
static dsc_status defer(chat_run *r, dsc_status status, int64_t depth, const chat_value *out)
{
    dsc_error *failure = NULL;
    if (status != DSC_ERR_INPUT || out->kind != CHAT_ITERATOR || r->half_done)
        return status;
    DSC_ASSERT(depth <= r->depth);
    DSC_TRY(chat_spend(r, 64 + r->at / 16)); /* the line and column of the error */
    r->depth = depth;
    DSC_TRY(chat_new(r, 1, sizeof *failure, &failure));
    *failure = *r->err;
    out->iterator->failure = failure;
    return DSC_OK;
}

dsc_status chat_apply_filter(chat_run *r, int at, const chat_value *v, const chat_args *args, chat_value *out)
{
    const chat_filter *filter = filter_at(at);
    chat_value bound[CHAT_PARAMS_MAX];
    const chat_value value = *v; /* out may be its place */
    const int64_t depth = r->depth;
    dsc_status status;
    DSC_TRY(chat_spend(r, 1));
    *out = chat_none();
    if (filter->any != NULL) {
        status = filter->any(r, &value, args, out);
    } else {
        DSC_TRY(chat_bind(r, filter->name, filter->params, filter->required, args, bound));
        status = filter->fn(r, &value, bound, out);
    }
    return filter->lazy ? defer(r, status, depth, out) : status;
}
