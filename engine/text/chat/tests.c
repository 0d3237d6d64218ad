/* tests.c - tests of templates: `value is odd`. SPDX-License-Identifier: Apache-2.0 */
#include "engine/text/chat/chat_internal.h"

typedef enum test_id {
    T_DEFINED, T_UNDEFINED, T_NONE, T_STRING, T_MAPPING, T_SEQUENCE, T_ITERABLE, T_NUMBER, T_INTEGER, T_FLOAT,
    T_BOOLEAN, T_TRUE, T_FALSE, T_CALLABLE, T_ODD, T_EVEN, T_DIVISIBLE, T_SAME, T_IN, T_EQ, T_NE, T_LT, T_LE, T_GT, T_GE
} test_id;

static const struct { const char *name; test_id id; int args; } test[] = {
    { "defined", T_DEFINED, 0 }, { "undefined", T_UNDEFINED, 0 }, { "none", T_NONE, 0 }, { "string", T_STRING, 0 },
    { "mapping", T_MAPPING, 0 }, { "sequence", T_SEQUENCE, 0 }, { "iterable", T_ITERABLE, 0 },
    { "number", T_NUMBER, 0 }, { "integer", T_INTEGER, 0 }, { "float", T_FLOAT, 0 }, { "boolean", T_BOOLEAN, 0 },
    { "true", T_TRUE, 0 }, { "false", T_FALSE, 0 }, { "callable", T_CALLABLE, 0 }, { "odd", T_ODD, 0 },
    { "even", T_EVEN, 0 }, { "divisibleby", T_DIVISIBLE, 1 }, { "sameas", T_SAME, 1 }, { "in", T_IN, 1 },
    { "equalto", T_EQ, 1 }, { "eq", T_EQ, 1 }, { "==", T_EQ, 1 }, { "ne", T_NE, 1 }, { "!=", T_NE, 1 },
    { "lessthan", T_LT, 1 }, { "lt", T_LT, 1 }, { "<", T_LT, 1 }, { "le", T_LE, 1 }, { "<=", T_LE, 1 },
    { "greaterthan", T_GT, 1 }, { "gt", T_GT, 1 }, { ">", T_GT, 1 }, { "ge", T_GE, 1 }, { ">=", T_GE, 1 },
};

int chat_find_test(const char *name, int64_t bytes)
{
    const chat_value text = chat_string(name, bytes);
    for (size_t i = 0; i < DSC_COUNT(test); i++)
        if (chat_is(&text, test[i].name))
            return (int)i;
    return -1;
}

dsc_status chat_no_test(chat_run *r, const char *name, int64_t bytes)
{
    chat_bytes known = { 0 };
    DSC_ASSERT(chat_find_test(name, bytes) < 0);
    for (size_t i = 0; i < DSC_COUNT(test); i++) {
        DSC_TRY(chat_add_text(r, &known, i > 0 ? ", " : ""));
        DSC_TRY(chat_add_text(r, &known, test[i].name));
    }
    return chat_fail(r, DSC_ERR_UNSUPPORTED, "test '%.*s' is not supported; supported tests are %.*s",
                     (int)dsc_min_i64(bytes, 40), name, (int)known.bytes, known.ptr);
}

/* value % number == rest, by the operators of the language. */
static dsc_status has_rest(chat_run *r, const chat_value *v, chat_value number, int64_t rest, bool *out)
{
    chat_value result;
    const chat_value expected = chat_int(rest);
    DSC_ASSERT(rest == 0 || rest == 1);
    DSC_TRY(chat_binary(r, '%', v, &number, &result));
    return chat_equal(r, &result, &expected, out);
}

/* `sameas` is the identity of Python's objects, which the subset knows for constants and containers. */
static dsc_status is_same(chat_run *r, const chat_value *a, const chat_value *b, bool *out)
{
    *out = false;
    if (a->kind != b->kind)
        return DSC_OK;
    switch (a->kind) {
    case CHAT_NONE: *out = true; return DSC_OK;
    case CHAT_BOOL: *out = a->boolean == b->boolean; return DSC_OK;
    case CHAT_LIST: case CHAT_TUPLE: case CHAT_DICT: case CHAT_NAMESPACE: case CHAT_MACRO:
        *out = a->list == b->list;
        return DSC_OK;
    default:
        return chat_fail(r, DSC_ERR_UNSUPPORTED, "sameas of two values of type %s is not supported; use ==",
                         chat_type_name((chat_kind)a->kind));
    }
}

static bool is_kind(test_id id, const chat_value *v)
{
    const chat_kind kind = (chat_kind)v->kind;
    switch (id) {
    case T_DEFINED: return kind != CHAT_UNDEFINED;
    case T_UNDEFINED: return kind == CHAT_UNDEFINED;
    case T_NONE: return kind == CHAT_NONE;
    case T_STRING: return kind == CHAT_STRING;
    case T_MAPPING: return kind == CHAT_DICT;
    case T_SEQUENCE:
        return kind == CHAT_UNDEFINED || kind == CHAT_STRING || kind == CHAT_LIST || kind == CHAT_TUPLE ||
               kind == CHAT_DICT || kind == CHAT_RANGE;
    case T_ITERABLE: return chat_iterable(kind) || kind == CHAT_LOOP;
    case T_NUMBER: return kind == CHAT_INT || kind == CHAT_FLOAT || kind == CHAT_BOOL;
    case T_INTEGER: return kind == CHAT_INT;
    case T_FLOAT: return kind == CHAT_FLOAT;
    case T_BOOLEAN: return kind == CHAT_BOOL;
    case T_TRUE: return kind == CHAT_BOOL && v->boolean;
    case T_FALSE: return kind == CHAT_BOOL && !v->boolean;
    default:
        DSC_ASSERT(id == T_CALLABLE);
        return kind == CHAT_UNDEFINED || (kind >= CHAT_MACRO && kind <= CHAT_LOOP);
    }
}

dsc_status chat_apply_test(chat_run *r, int at, const chat_value *v, const chat_args *args, bool *out)
{
    DSC_ASSERT(at >= 0 && at < (int)DSC_COUNT(test));
    if (args->count != test[at].args || args->keyword_count > 0)
        return chat_fail(r, DSC_ERR_INPUT, "test '%s' takes %d arguments", test[at].name, test[at].args);
    DSC_TRY(chat_spend(r, 1));
    const chat_value *arg = args->value;
    switch (test[at].id) {
    case T_ODD: return has_rest(r, v, chat_int(2), 1, out);
    case T_EVEN: return has_rest(r, v, chat_int(2), 0, out);
    case T_DIVISIBLE: return has_rest(r, v, *arg, 0, out);
    case T_SAME: return is_same(r, v, arg, out);
    case T_IN: return chat_contains(r, arg, v, out);
    case T_EQ: return chat_compare(r, CHAT_T_EQ, v, arg, out);
    case T_NE: return chat_compare(r, CHAT_T_NE, v, arg, out);
    case T_LT: return chat_compare(r, '<', v, arg, out);
    case T_LE: return chat_compare(r, CHAT_T_LE, v, arg, out);
    case T_GT: return chat_compare(r, '>', v, arg, out);
    case T_GE: return chat_compare(r, CHAT_T_GE, v, arg, out);
    default: *out = is_kind(test[at].id, v); return DSC_OK;
    }
}
