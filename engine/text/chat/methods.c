/* methods.c - methods of Python's str, list, tuple and dict. SPDX-License-Identifier: Apache-2.0 */
#include "engine/text/chat/chat_internal.h"
#include "engine/text/unicode.h"

#define STR CHAT_BIT(CHAT_STRING)
#define LISTS (CHAT_BIT(CHAT_LIST) | CHAT_BIT(CHAT_TUPLE))
#define DICT CHAT_BIT(CHAT_DICT)
#define INTEGER_MEMBERS \
    "real imag numerator denominator bit_length bit_count conjugate as_integer_ratio to_bytes from_bytes"

typedef dsc_status (*method_fn)(chat_run *r, const chat_value *self, const chat_value *arg, chat_value *out);

static dsc_status need_string(chat_run *r, const chat_value *v, const char *method)
{
    if (v->kind == CHAT_UNDEFINED)
        return chat_undefined_error(r, v);
    if (v->kind == CHAT_STRING)
        return DSC_OK;
    return chat_fail(r, DSC_ERR_INPUT, "%s needs a string, not a value of type %s", method,
                     chat_type_name((chat_kind)v->kind));
}

/* ---- str ---- */

static bool has_at(const chat_value *s, const chat_value *part, bool at_end)
{
    return s->bytes >= part->bytes &&
           memcmp(s->text + (at_end ? s->bytes - part->bytes : 0), part->text, (size_t)part->bytes) == 0;
}

/* A tuple holds alternatives. */
static dsc_status starts_or_ends(chat_run *r, const chat_value *self, const chat_value *arg, bool at_end,
                                 chat_value *out)
{
    chat_value only = *arg;
    const chat_list one = { &only, 1, 1 };
    const chat_list *list = arg->kind == CHAT_TUPLE ? arg->list : &one;
    bool has = false;
    for (int64_t i = 0; i < list->count && !has; i++) {
        DSC_TRY(need_string(r, &list->item[i], at_end ? "endswith" : "startswith"));
        DSC_TRY(chat_spend(r, chat_text_steps(list->item[i].bytes)));
        has = has_at(self, &list->item[i], at_end);
    }
    *out = chat_bool(has);
    return DSC_OK;
}

static dsc_status m_startswith(chat_run *r, const chat_value *self, const chat_value *arg, chat_value *out)
{
    return starts_or_ends(r, self, arg, false, out);
}

static dsc_status m_endswith(chat_run *r, const chat_value *self, const chat_value *arg, chat_value *out)
{
    return starts_or_ends(r, self, arg, true, out);
}

static dsc_status m_strip(chat_run *r, const chat_value *self, const chat_value *arg, chat_value *out)
{
    return chat_strip(r, self, arg, true, true, out);
}

static dsc_status m_lstrip(chat_run *r, const chat_value *self, const chat_value *arg, chat_value *out)
{
    return chat_strip(r, self, arg, true, false, out);
}

static dsc_status m_rstrip(chat_run *r, const chat_value *self, const chat_value *arg, chat_value *out)
{
    return chat_strip(r, self, arg, false, true, out);
}

static dsc_status split(chat_run *r, const chat_value *self, const chat_value *arg, bool from_right, chat_value *out)
{
    int64_t most;
    if (arg[0].kind != CHAT_MISSING && arg[0].kind != CHAT_NONE)
        DSC_TRY(need_string(r, &arg[0], "split"));
    DSC_TRY(chat_integer_argument(r, &arg[1], "maxsplit", -1, &most));
    return chat_split(r, self, &arg[0], most, from_right, out);
}

static dsc_status m_split(chat_run *r, const chat_value *self, const chat_value *arg, chat_value *out)
{
    return split(r, self, arg, false, out);
}

static dsc_status m_rsplit(chat_run *r, const chat_value *self, const chat_value *arg, chat_value *out)
{
    return split(r, self, arg, true, out);
}

static dsc_status m_splitlines(chat_run *r, const chat_value *self, const chat_value *arg, chat_value *out)
{
    return chat_split_lines(r, self, arg->kind != CHAT_MISSING && chat_truth(arg), out);
}

static dsc_status m_join(chat_run *r, const chat_value *self, const chat_value *arg, chat_value *out)
{
    return chat_join(r, self, arg, false, out);
}

static dsc_status m_replace(chat_run *r, const chat_value *self, const chat_value *arg, chat_value *out)
{
    int64_t most;
    DSC_TRY(need_string(r, &arg[0], "replace"));
    DSC_TRY(need_string(r, &arg[1], "replace"));
    DSC_TRY(chat_integer_argument(r, &arg[2], "count", -1, &most));
    return chat_replace(r, self, &arg[0], &arg[1], most, out);
}

static dsc_status m_upper(chat_run *r, const chat_value *self, const chat_value *arg, chat_value *out)
{
    return chat_change_case(r, self, CHAT_UPPER, out);
}

static dsc_status m_lower(chat_run *r, const chat_value *self, const chat_value *arg, chat_value *out)
{
    return chat_change_case(r, self, CHAT_LOWER, out);
}

static dsc_status m_title(chat_run *r, const chat_value *self, const chat_value *arg, chat_value *out)
{
    return chat_change_case(r, self, CHAT_TITLE, out);
}

static dsc_status m_capitalize(chat_run *r, const chat_value *self, const chat_value *arg, chat_value *out)
{
    return chat_change_case(r, self, CHAT_CAPITALIZE, out);
}

/* The index of a part in characters, -1: none. */
static dsc_status find(chat_run *r, const chat_value *self, const chat_value *arg, bool last, int64_t *out)
{
    const char *end = self->text + self->bytes;
    DSC_TRY(need_string(r, arg, "find"));
    DSC_TRY(chat_spend(r, chat_scan_steps(self->bytes)));
    const char *at = chat_find(self->text, end, arg);
    if (last)
        DSC_TRY(chat_find_last(r, self->text, end, arg, &at));
    DSC_ASSERT(at == NULL || (at >= self->text && at <= end));
    *out = at != NULL ? chat_char_count(self->text, at - self->text) : -1;
    return DSC_OK;
}

static dsc_status m_find(chat_run *r, const chat_value *self, const chat_value *arg, chat_value *out)
{
    *out = chat_int(-1);
    return find(r, self, arg, false, &out->integer);
}

static dsc_status m_rfind(chat_run *r, const chat_value *self, const chat_value *arg, chat_value *out)
{
    *out = chat_int(-1);
    return find(r, self, arg, true, &out->integer);
}

static dsc_status m_index(chat_run *r, const chat_value *self, const chat_value *arg, chat_value *out)
{
    *out = chat_int(-1);
    DSC_TRY(find(r, self, arg, false, &out->integer));
    return out->integer >= 0 ? DSC_OK : chat_fail(r, DSC_ERR_INPUT, "index: the string does not have this part");
}

static dsc_status m_count(chat_run *r, const chat_value *self, const chat_value *arg, chat_value *out)
{
    const char *at = self->text, *end = self->text + self->bytes;
    int64_t count = 0;
    DSC_TRY(need_string(r, arg, "count"));
    DSC_TRY(chat_spend(r, chat_char_steps(self->bytes)));
    if (arg->bytes == 0)
        count = chat_char_count(at, self->bytes) + 1;
    else
        for (; (at = chat_find(at, end, arg)) != NULL; at += arg->bytes)
            count++;
    *out = chat_int(count);
    return DSC_OK;
}

static dsc_status m_removeprefix(chat_run *r, const chat_value *self, const chat_value *arg, chat_value *out)
{
    DSC_TRY(need_string(r, arg, "removeprefix"));
    const int64_t bytes = has_at(self, arg, false) ? arg->bytes : 0;
    *out = chat_string(self->text + bytes, self->bytes - bytes);
    return DSC_OK;
}

static dsc_status m_removesuffix(chat_run *r, const chat_value *self, const chat_value *arg, chat_value *out)
{
    DSC_TRY(need_string(r, arg, "removesuffix"));
    *out = chat_string(self->text, self->bytes - (has_at(self, arg, true) ? arg->bytes : 0));
    return DSC_OK;
}

static dsc_status partition(chat_run *r, const chat_value *self, const chat_value *arg, bool last, chat_value *out)
{
    const char *end = self->text + self->bytes;
    DSC_TRY(need_string(r, arg, "partition"));
    DSC_TRY(chat_spend(r, chat_scan_steps(self->bytes)));
    if (arg->bytes == 0)
        return chat_fail(r, DSC_ERR_INPUT, "partition with an empty separator");
    const char *at = chat_find(self->text, end, arg);
    if (last)
        DSC_TRY(chat_find_last(r, self->text, end, arg, &at));
    const chat_value empty = chat_string("", 0), whole = chat_string(self->text, self->bytes);
    const chat_value before = at != NULL ? chat_string(self->text, at - self->text) : last ? empty : whole;
    const chat_value behind = at != NULL ? chat_string(at + arg->bytes, end - at - arg->bytes) : last ? whole : empty;
    DSC_TRY(chat_new_list(r, CHAT_TUPLE, 3, out));
    DSC_TRY(chat_append(r, out->list, before));
    DSC_TRY(chat_append(r, out->list, at != NULL ? *arg : empty));
    return chat_append(r, out->list, behind);
}

static dsc_status m_partition(chat_run *r, const chat_value *self, const chat_value *arg, chat_value *out)
{
    return partition(r, self, arg, false, out);
}

static dsc_status m_rpartition(chat_run *r, const chat_value *self, const chat_value *arg, chat_value *out)
{
    return partition(r, self, arg, true, out);
}

typedef enum string_class { ALPHA = 1, DIGIT = 2, SPACE = 4 } string_class;

/* True when the string has characters and all are of the classes. */
static dsc_status all_of(chat_run *r, const chat_value *self, int classes, chat_value *out)
{
    bool all = self->bytes > 0;
    DSC_TRY(chat_spend(r, chat_char_steps(self->bytes)));
    for (int64_t i = 0; i < self->bytes && all; i++) {
        const unsigned char c = (unsigned char)self->text[i];
        if (c >= 0x80)
            return chat_fail(r, DSC_ERR_UNSUPPORTED, "isalpha, isdigit and isalnum support characters of ASCII only");
        all = ((classes & ALPHA) != 0 && (c | 0x20) >= 'a' && (c | 0x20) <= 'z') ||
              ((classes & DIGIT) != 0 && c >= '0' && c <= '9') || ((classes & SPACE) != 0 && chat_is_space(c));
    }
    *out = chat_bool(all);
    return DSC_OK;
}

static dsc_status m_isalpha(chat_run *r, const chat_value *self, const chat_value *arg, chat_value *out)
{
    return all_of(r, self, ALPHA, out);
}

static dsc_status m_isdigit(chat_run *r, const chat_value *self, const chat_value *arg, chat_value *out)
{
    return all_of(r, self, DIGIT, out);
}

static dsc_status m_isalnum(chat_run *r, const chat_value *self, const chat_value *arg, chat_value *out)
{
    return all_of(r, self, ALPHA | DIGIT, out);
}

static dsc_status m_isspace(chat_run *r, const chat_value *self, const chat_value *arg, chat_value *out)
{
    DSC_TRY(chat_spend(r, chat_char_steps(self->bytes)));
    const char *end = self->text + self->bytes;
    *out = chat_bool(self->bytes > 0 && chat_skip_space(self->text, end) == end);
    return DSC_OK;
}

/* ---- list, tuple and dict ---- */

static dsc_status m_list_index(chat_run *r, const chat_value *self, const chat_value *arg, chat_value *out)
{
    bool equal = false;
    for (int64_t i = 0; i < self->list->count; i++) {
        DSC_TRY(chat_equal(r, &self->list->item[i], arg, &equal));
        if (equal) {
            *out = chat_int(i);
            return DSC_OK;
        }
    }
    return chat_fail(r, DSC_ERR_INPUT, "index: the list does not have this value");
}

static dsc_status m_list_count(chat_run *r, const chat_value *self, const chat_value *arg, chat_value *out)
{
    int64_t count = 0;
    for (int64_t i = 0; i < self->list->count; i++) {
        bool equal = false;
        DSC_TRY(chat_equal(r, &self->list->item[i], arg, &equal));
        count += equal;
    }
    *out = chat_int(count);
    return DSC_OK;
}

static dsc_status m_get(chat_run *r, const chat_value *self, const chat_value *arg, chat_value *out)
{
    chat_value *found = NULL;
    if (arg[0].kind == CHAT_UNDEFINED)
        arg = &arg[0]; /* hashable, and the key of no entry */
    else if (!chat_hashable(&arg[0]))
        return chat_fail(r, DSC_ERR_INPUT, "a value of type %s cannot be the key of a dict",
                         chat_type_name((chat_kind)arg[0].kind));
    else
        DSC_TRY(chat_dict_find(r, self->dict, &arg[0], &found));
    *out = found != NULL ? *found : arg[1].kind != CHAT_MISSING ? arg[1] : chat_none();
    return DSC_OK;
}

static void make_view(const chat_value *self, int view, chat_value *out)
{
    DSC_ASSERT(self->kind == CHAT_DICT);
    *out = (chat_value){ .kind = CHAT_VIEW, .flag = (uint8_t)view, .dict = self->dict };
}

static dsc_status m_keys(chat_run *r, const chat_value *self, const chat_value *arg, chat_value *out)
{
    make_view(self, CHAT_KEYS, out);
    return DSC_OK;
}

static dsc_status m_values(chat_run *r, const chat_value *self, const chat_value *arg, chat_value *out)
{
    make_view(self, CHAT_VALUES, out);
    return DSC_OK;
}

static dsc_status m_items(chat_run *r, const chat_value *self, const chat_value *arg, chat_value *out)
{
    make_view(self, CHAT_ITEMS, out);
    return DSC_OK;
}

/* Lists and dicts never change, so a copy is the object. */
static dsc_status m_copy(chat_run *r, const chat_value *self, const chat_value *arg, chat_value *out)
{
    *out = *self;
    return DSC_OK;
}

/* ---- The table ---- */

static const struct method {
    uint32_t kinds;
    const char *name, *params;
    int required;
    bool named; /* arguments may be given by name */
    method_fn fn;
} method[] = {
    { STR, "startswith", "prefix", 1, false, m_startswith },
    { STR, "endswith", "suffix", 1, false, m_endswith },
    { STR, "strip", "chars", 0, false, m_strip },
    { STR, "lstrip", "chars", 0, false, m_lstrip },
    { STR, "rstrip", "chars", 0, false, m_rstrip },
    { STR, "split", "sep maxsplit", 0, true, m_split },
    { STR, "rsplit", "sep maxsplit", 0, true, m_rsplit },
    { STR, "splitlines", "keepends", 0, true, m_splitlines },
    { STR, "join", "iterable", 1, false, m_join },
    { STR, "replace", "old new count", 2, false, m_replace },
    { STR, "upper", "", 0, false, m_upper },
    { STR, "lower", "", 0, false, m_lower },
    { STR, "title", "", 0, false, m_title },
    { STR, "capitalize", "", 0, false, m_capitalize },
    { STR, "find", "sub", 1, false, m_find },
    { STR, "rfind", "sub", 1, false, m_rfind },
    { STR, "index", "sub", 1, false, m_index },
    { STR, "count", "sub", 1, false, m_count },
    { STR, "removeprefix", "prefix", 1, false, m_removeprefix },
    { STR, "removesuffix", "suffix", 1, false, m_removesuffix },
    { STR, "partition", "sep", 1, false, m_partition },
    { STR, "rpartition", "sep", 1, false, m_rpartition },
    { STR, "isalpha", "", 0, false, m_isalpha },
    { STR, "isdigit", "", 0, false, m_isdigit },
    { STR, "isalnum", "", 0, false, m_isalnum },
    { STR, "isspace", "", 0, false, m_isspace },
    { STR, "format", "", 0, true, NULL },
    { LISTS, "index", "value", 1, false, m_list_index },
    { LISTS, "count", "value", 1, false, m_list_count },
    { DICT, "get", "key default", 1, false, m_get },
    { DICT, "keys", "", 0, false, m_keys },
    { DICT, "values", "", 0, false, m_values },
    { DICT, "items", "", 0, false, m_items },
    { DICT | CHAT_BIT(CHAT_LIST), "copy", "", 0, false, m_copy },
    { CHAT_BIT(CHAT_LOOP), "cycle", "", 0, false, NULL },
};

int chat_find_method(chat_kind kind, const char *name, int64_t bytes)
{
    const chat_value text = chat_string(name, bytes);
    DSC_ASSERT(kind < CHAT_KIND_COUNT);
    for (size_t i = 0; i < DSC_COUNT(method); i++)
        if ((method[i].kinds & CHAT_BIT(kind)) != 0 && chat_is(&text, method[i].name))
            return (int)i;
    return -1;
}

static bool is_in_words(const char *words, const char *name, int64_t bytes)
{
    for (const char *at = words; *at != 0;) {
        const size_t length = strcspn(at, " ");
        if ((int64_t)length == bytes && memcmp(at, name, length) == 0)
            return true;
        at += length;
        at += *at == ' ';
    }
    return false;
}

bool chat_method_refused(chat_kind kind, const char *name, int64_t bytes)
{
    static const char *const words[CHAT_KIND_COUNT] = {
        [CHAT_BOOL] = INTEGER_MEMBERS,
        [CHAT_INT] = INTEGER_MEMBERS,
        [CHAT_FLOAT] = "real imag conjugate is_integer hex fromhex as_integer_ratio",
        [CHAT_STRING] = "casefold center encode expandtabs format_map isascii isdecimal isidentifier islower isnumeric "
                        "isprintable istitle isupper ljust maketrans rindex rjust swapcase translate zfill",
        [CHAT_DICT] = "fromkeys",
        [CHAT_VIEW] = "mapping isdisjoint",
        [CHAT_RANGE] = "start stop step count index",
        [CHAT_ITERATOR] = "send throw close",
        [CHAT_MACRO] = "name arguments catch_kwargs catch_varargs caller explicit_caller",
        [CHAT_METHOD] = "",
    };
    DSC_ASSERT(kind < CHAT_KIND_COUNT);
    return words[kind] != NULL && is_in_words(words[kind], name, bytes);
}

bool chat_method_unsafe(chat_kind kind, const char *name, int64_t bytes)
{
    DSC_ASSERT(bytes >= 0);
    return (kind == CHAT_LIST && is_in_words("append clear pop reverse insert sort extend remove", name, bytes)) ||
           (kind == CHAT_DICT && is_in_words("clear pop popitem setdefault update", name, bytes));
}

static dsc_status call_cycle(chat_run *r, const chat_loop *loop, const chat_args *args, chat_value *out)
{
    if (args->count == 0 || args->keyword_count > 0)
        return chat_fail(r, DSC_ERR_INPUT, "loop.cycle needs values to cycle through");
    DSC_ASSERT(loop->index0 >= 0);
    *out = args->value[loop->index0 % args->count];
    return DSC_OK;
}

dsc_status chat_call_method(chat_run *r, const chat_value *callee, const chat_args *args, chat_value *out)
{
    chat_value bound[CHAT_PARAMS_MAX];
    DSC_ASSERT(callee->kind == CHAT_METHOD && callee->id >= 0 && callee->id < (int)DSC_COUNT(method));
    const struct method *m = &method[callee->id];
    if (callee->self->kind == CHAT_LOOP)
        return call_cycle(r, callee->self->loop, args, out);
    if (callee->self->kind == CHAT_STRING && callee->self->flag)
        return chat_fail(r, DSC_ERR_UNSUPPORTED, "the method '%s' of a safe string is not supported", m->name);
    if (m->fn == NULL)
        return chat_brace_format(r, callee->self, args, out);
    if (!m->named && args->keyword_count > 0)
        return chat_fail(r, DSC_ERR_INPUT, "the method '%s' takes no arguments by name", m->name);
    DSC_TRY(chat_bind(r, m->name, m->params, m->required, args, bound));
    return m->fn(r, callee->self, bound, out);
}
