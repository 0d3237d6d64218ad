/* operators.c - arithmetic and comparison operators with Python's rules. Integers have 64 bits.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "engine/text/chat/chat_internal.h"

static const char *operator_text(int op, char out[4])
{
    static const struct { int op; const char *text; } known[] = {
        { CHAT_T_FLOORDIV, "//" }, { CHAT_T_POW, "**" }, { CHAT_T_GE, ">=" }, { CHAT_T_LE, "<=" },
    };
    for (size_t i = 0; i < DSC_COUNT(known); i++)
        if (known[i].op == op)
            return known[i].text;
    DSC_ASSERT(op > ' ' && op < 127);
    out[0] = (char)op;
    out[1] = 0;
    return out;
}

static dsc_status overflow(chat_run *r)
{
    return chat_fail(r, DSC_ERR_UNSUPPORTED, "an integer beyond 64 bits is not supported");
}

static dsc_status power_integer(chat_run *r, int64_t base, int64_t exponent, chat_value *out)
{
    int64_t result = 1;
    DSC_ASSERT(exponent >= 0);
    if (base == 0 || base == 1 || base == -1)
        exponent = exponent == 0 ? 0 : exponent % 2 == 0 ? 2 : 1;
    for (int64_t i = 0; i < exponent; i++)
        if (__builtin_mul_overflow(result, base, &result))
            return overflow(r);
    *out = chat_int(result);
    return DSC_OK;
}

static dsc_status divide_integer(chat_run *r, int op, int64_t a, int64_t b, chat_value *out)
{
    DSC_ASSERT(b != 0);
    if (b == -1) {
        int64_t negative = 0;
        if (op == CHAT_T_FLOORDIV && __builtin_sub_overflow((int64_t)0, a, &negative))
            return overflow(r);
        *out = chat_int(negative);
        return DSC_OK;
    }
    const int64_t rest = a % b;
    const bool other_sign = rest != 0 && (rest < 0) != (b < 0);
    *out = chat_int(op == '%' ? rest + (other_sign ? b : 0) : a / b - other_sign);
    return DSC_OK;
}

static dsc_status binary_integer(chat_run *r, int op, int64_t a, int64_t b, chat_value *out)
{
    int64_t result = 0;
    bool overflows = false;
    const int64_t exact = INT64_C(1) << 53;
    switch (op) {
    case '+': overflows = __builtin_add_overflow(a, b, &result); break;
    case '-': overflows = __builtin_sub_overflow(a, b, &result); break;
    case '*': overflows = __builtin_mul_overflow(a, b, &result); break;
    case '/':
        if (a > exact || a < -exact || b > exact || b < -exact)
            return chat_fail(r, DSC_ERR_UNSUPPORTED, "a division of integers beyond 53 bits is not supported");
        *out = chat_float((double)a / (double)b);
        return DSC_OK;
    case CHAT_T_POW: return power_integer(r, a, b, out);
    default: return divide_integer(r, op, a, b, out);
    }
    if (overflows)
        return overflow(r);
    *out = chat_int(result);
    return DSC_OK;
}

/* The quotient and remainder of Python's float_divmod. */
static void divide_float(double a, double b, double *quotient, double *rest)
{
    DSC_ASSERT(b != 0);
    *rest = fmod(a, b);
    double div = (a - *rest) / b;
    if (*rest == 0) {
        *rest = copysign(0, b);
    } else if ((b < 0) != (*rest < 0)) {
        *rest += b;
        div -= 1;
    }
    *quotient = div == 0 ? copysign(0, a / b) : floor(div);
    if (div - *quotient > 0.5)
        *quotient += 1;
}

static dsc_status binary_float(chat_run *r, int op, double a, double b, chat_value *out)
{
    double quotient, rest;
    switch (op) {
    case '+': *out = chat_float(a + b); return DSC_OK;
    case '-': *out = chat_float(a - b); return DSC_OK;
    case '*': *out = chat_float(a * b); return DSC_OK;
    case '/': *out = chat_float(a / b); return DSC_OK;
    case CHAT_T_POW:
        if (a < 0 && b != floor(b))
            return chat_fail(r, DSC_ERR_UNSUPPORTED, "a power that is a complex number is not supported");
        rest = pow(a, b);
        if (isinf(rest) && !isinf(a) && !isinf(b))
            return chat_fail(r, DSC_ERR_INPUT, "a power is beyond the range of a float");
        *out = chat_float(rest);
        return DSC_OK;
    default:
        divide_float(a, b, &quotient, &rest);
        *out = chat_float(op == '%' ? rest : quotient);
        return DSC_OK;
    }
}

static dsc_status binary_number(chat_run *r, int op, const chat_value *a, const chat_value *b, chat_value *out)
{
    int64_t i, j;
    double x, y;
    const bool integers = chat_is_integer(a, &i) && chat_is_integer(b, &j);
    const bool numbers = chat_is_number(a, &x) && chat_is_number(b, &y);
    DSC_ASSERT(numbers);
    if (y == 0 && (op == '/' || op == '%' || op == CHAT_T_FLOORDIV))
        return chat_fail(r, DSC_ERR_INPUT, "a division by zero");
    if (op == CHAT_T_POW && x == 0 && y < 0)
        return chat_fail(r, DSC_ERR_INPUT, "zero to a negative power");
    if (integers && !(op == CHAT_T_POW && j < 0))
        return binary_integer(r, op, i, j, out);
    return binary_float(r, op, x, y, out);
}

static dsc_status add_strings(chat_run *r, const chat_value *a, const chat_value *b, chat_value *out)
{
    chat_bytes sum = { 0 };
    chat_value left = *a, right = *b;
    if (a->flag || b->flag) {
        DSC_TRY(chat_escape(r, a, &left));
        DSC_TRY(chat_escape(r, b, &right));
    }
    DSC_TRY(chat_spend(r, chat_text_steps(left.bytes + right.bytes)));
    DSC_TRY(chat_add(r, &sum, left.text, left.bytes));
    DSC_TRY(chat_add(r, &sum, right.text, right.bytes));
    *out = chat_bytes_value(&sum);
    out->flag = a->flag || b->flag;
    return DSC_OK;
}

static dsc_status add_lists(chat_run *r, const chat_value *a, const chat_value *b, chat_value *out)
{
    DSC_TRY(chat_new_list(r, (chat_kind)a->kind, a->list->count + b->list->count, out));
    for (int64_t i = 0; i < a->list->count; i++)
        DSC_TRY(chat_append(r, out->list, a->list->item[i]));
    for (int64_t i = 0; i < b->list->count; i++)
        DSC_TRY(chat_append(r, out->list, b->list->item[i]));
    return DSC_OK;
}

static bool is_list(const chat_value *v) { return v->kind == CHAT_LIST || v->kind == CHAT_TUPLE; }

static dsc_status repeat(chat_run *r, const chat_value *v, int64_t times, chat_value *out)
{
    if (v->kind == CHAT_STRING)
        return chat_repeat(r, v, times, out);
    DSC_ASSERT(is_list(v));
    DSC_TRY(chat_new_list(r, (chat_kind)v->kind, 0, out));
    for (int64_t i = 0; i < times && v->list->count > 0; i++)
        for (int64_t j = 0; j < v->list->count; j++)
            DSC_TRY(chat_append(r, out->list, v->list->item[j]));
    return DSC_OK;
}

dsc_status chat_binary(chat_run *r, int op, const chat_value *a, const chat_value *b, chat_value *out)
{
    double x;
    int64_t times;
    char text[4];
    if (op == '%' && a->kind == CHAT_STRING)
        return chat_percent_format(r, a, b, out);
    if (a->kind == CHAT_UNDEFINED || b->kind == CHAT_UNDEFINED)
        return chat_undefined_error(r, a->kind == CHAT_UNDEFINED ? a : b);
    if (chat_is_number(a, &x) && chat_is_number(b, &x))
        return binary_number(r, op, a, b, out);
    if (op == '+' && a->kind == CHAT_STRING && b->kind == CHAT_STRING)
        return add_strings(r, a, b, out);
    if (op == '+' && a->kind == b->kind && is_list(a))
        return add_lists(r, a, b, out);
    if (op == '*' && (a->kind == CHAT_STRING || is_list(a)) && chat_is_integer(b, &times))
        return repeat(r, a, times, out);
    if (op == '*' && (b->kind == CHAT_STRING || is_list(b)) && chat_is_integer(a, &times))
        return repeat(r, b, times, out);
    return chat_fail(r, DSC_ERR_INPUT, "%s does not combine a value of type %s and one of type %s",
                     operator_text(op, text), chat_type_name((chat_kind)a->kind), chat_type_name((chat_kind)b->kind));
}

dsc_status chat_negative(chat_run *r, const chat_value *a, bool negative, chat_value *out)
{
    int64_t integer;
    if (a->kind == CHAT_UNDEFINED)
        return chat_undefined_error(r, a);
    if (a->kind == CHAT_FLOAT) {
        *out = chat_float(negative ? -a->number : a->number);
        return DSC_OK;
    }
    if (!chat_is_integer(a, &integer))
        return chat_fail(r, DSC_ERR_INPUT, "a value of type %s has no sign", chat_type_name((chat_kind)a->kind));
    if (negative && __builtin_sub_overflow((int64_t)0, integer, &integer))
        return overflow(r);
    *out = chat_int(integer);
    return DSC_OK;
}

dsc_status chat_compare(chat_run *r, int op, const chat_value *a, const chat_value *b, bool *out)
{
    int order = 0;
    char text[4];
    switch (op) {
    case CHAT_T_EQ: return chat_equal(r, a, b, out);
    case CHAT_T_NE:
        DSC_TRY(chat_equal(r, a, b, out));
        *out = !*out;
        return DSC_OK;
    case CHAT_OP_IN: return chat_contains(r, b, a, out);
    case CHAT_OP_NOT_IN:
        DSC_TRY(chat_contains(r, b, a, out));
        *out = !*out;
        return DSC_OK;
    default: break;
    }
    DSC_TRY(chat_order(r, a, b, operator_text(op, text), &order));
    DSC_ASSERT(op == '<' || op == '>' || op == CHAT_T_LE || op == CHAT_T_GE);
    *out = order != 2 && (op == '<' ? order < 0 : op == '>' ? order > 0 : op == CHAT_T_LE ? order <= 0 : order >= 0);
    return DSC_OK;
}
