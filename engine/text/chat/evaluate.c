/* evaluate.c - expressions to values. SPDX-License-Identifier: Apache-2.0 */
#include "engine/text/chat/chat_internal.h"

static dsc_status eval_list(chat_run *r, const chat_node *node, chat_scope *scope, chat_value *out)
{
    chat_value item;
    DSC_TRY(chat_new_list(r, node->kind == CHAT_N_LIST ? CHAT_LIST : CHAT_TUPLE, 0, out));
    for (const chat_node *n = node->list; n != NULL; n = n->next) {
        DSC_TRY(chat_eval(r, n, scope, &item));
        DSC_TRY(chat_append(r, out->list, item));
    }
    return DSC_OK;
}

static dsc_status eval_dict(chat_run *r, const chat_node *node, chat_scope *scope, chat_value *out)
{
    chat_value key, value;
    DSC_TRY(chat_new_dict(r, out));
    for (const chat_node *n = node->list; n != NULL; n = n->next->next) {
        DSC_ASSERT(n->next != NULL);
        DSC_TRY(chat_eval(r, n, scope, &key));
        DSC_TRY(chat_eval(r, n->next, scope, &value));
        DSC_TRY(chat_dict_set(r, out->dict, key, value));
    }
    return DSC_OK;
}

static dsc_status eval_member(chat_run *r, const chat_node *node, chat_scope *scope, chat_value *out)
{
    chat_value object;
    DSC_TRY(chat_eval(r, node->a, scope, &object));
    r->at = node->at;
    return chat_get_member(r, &object, node->name->text, node->name->bytes, out);
}

static dsc_status eval_item(chat_run *r, const chat_node *node, chat_scope *scope, chat_value *out)
{
    chat_value object, key, part[3];
    DSC_TRY(chat_eval(r, node->a, scope, &object));
    if (node->b->kind != CHAT_N_SLICE) {
        DSC_TRY(chat_eval(r, node->b, scope, &key));
        r->at = node->at;
        return chat_get_item(r, &object, &key, out);
    }
    const chat_node *const source[3] = { node->b->a, node->b->b, node->b->c };
    for (int i = 0; i < 3; i++) {
        part[i] = chat_none();
        if (source[i] != NULL)
            DSC_TRY(chat_eval(r, source[i], scope, &part[i]));
    }
    r->at = node->at;
    return chat_get_slice(r, &object, part, out);
}

/* The object of a call, filter or test, and its arguments. */
static dsc_status eval_operands(chat_run *r, const chat_node *node, chat_scope *scope, chat_value *subject,
                                chat_args *args)
{
    DSC_TRY(chat_eval(r, node->a, scope, subject));
    DSC_TRY(chat_eval_args(r, node->list, scope, args));
    r->at = node->at;
    return DSC_OK;
}

static dsc_status eval_call(chat_run *r, const chat_node *node, chat_scope *scope, chat_value *out)
{
    chat_value callee;
    chat_args args;
    DSC_TRY(eval_operands(r, node, scope, &callee, &args));
    return chat_call(r, &callee, &args, out);
}

static dsc_status eval_filter(chat_run *r, const chat_node *node, chat_scope *scope, chat_value *out)
{
    chat_value value;
    chat_args args;
    DSC_TRY(eval_operands(r, node, scope, &value, &args));
    return chat_apply_filter(r, node->value.id, &value, &args, out);
}

static dsc_status eval_test(chat_run *r, const chat_node *node, chat_scope *scope, chat_value *out)
{
    chat_value value;
    chat_args args;
    bool is;
    DSC_TRY(eval_operands(r, node, scope, &value, &args));
    DSC_TRY(chat_apply_test(r, node->value.id, &value, &args, &is));
    *out = chat_bool(is);
    return DSC_OK;
}

static dsc_status eval_condition(chat_run *r, const chat_node *node, chat_scope *scope, chat_value *out)
{
    static const char reason[] = "the inline if-expression has no else, and its condition is false";
    chat_value condition;
    DSC_TRY(chat_eval(r, node->a, scope, &condition));
    if (chat_truth(&condition))
        return chat_eval(r, node->b, scope, out);
    if (node->c != NULL)
        return chat_eval(r, node->c, scope, out);
    *out = chat_undefined(CHAT_NO_VALUE, reason, (int64_t)sizeof reason - 1, CHAT_UNDEFINED);
    return DSC_OK;
}

/* The left operand decides, and is the result of `and` and `or` unless the right one is needed. */
static dsc_status eval_logic(chat_run *r, const chat_node *node, chat_scope *scope, chat_value *out)
{
    DSC_ASSERT(node->kind == CHAT_N_AND || node->kind == CHAT_N_OR);
    DSC_TRY(chat_eval(r, node->a, scope, out));
    return chat_truth(out) == (node->kind == CHAT_N_OR) ? DSC_OK : chat_eval(r, node->b, scope, out);
}

static dsc_status eval_unary(chat_run *r, const chat_node *node, chat_scope *scope, chat_value *out)
{
    chat_value value;
    DSC_TRY(chat_eval(r, node->a, scope, &value));
    r->at = node->at;
    if (node->kind != CHAT_N_NOT)
        return chat_negative(r, &value, node->kind == CHAT_N_NEGATIVE, out);
    *out = chat_bool(!chat_truth(&value));
    return DSC_OK;
}

static dsc_status eval_compare(chat_run *r, const chat_node *node, chat_scope *scope, chat_value *out)
{
    chat_value left, right;
    bool is = true;
    DSC_TRY(chat_eval(r, node->a, scope, &left));
    for (const chat_node *n = node->list; n != NULL && is; n = n->next) {
        DSC_TRY(chat_eval(r, n->a, scope, &right));
        r->at = n->at;
        DSC_TRY(chat_compare(r, n->op, &left, &right, &is));
        left = right;
    }
    *out = chat_bool(is);
    return DSC_OK;
}

static dsc_status eval_binary(chat_run *r, const chat_node *node, chat_scope *scope, chat_value *out)
{
    chat_value left, right;
    DSC_TRY(chat_eval(r, node->a, scope, &left));
    DSC_TRY(chat_eval(r, node->b, scope, &right));
    r->at = node->at;
    return chat_binary(r, node->op, &left, &right, out);
}

static dsc_status eval_concat(chat_run *r, const chat_node *node, chat_scope *scope, chat_value *out)
{
    chat_bytes b = { 0 };
    chat_value part;
    for (const chat_node *n = node->list; n != NULL; n = n->next) {
        DSC_TRY(chat_eval(r, n, scope, &part));
        r->at = n->at;
        DSC_TRY(chat_add_str(r, &b, &part));
    }
    *out = chat_bytes_value(&b);
    return DSC_OK;
}

static dsc_status eval_nested(chat_run *r, const chat_node *node, chat_scope *scope, chat_value *out)
{
    switch (node->kind) {
    case CHAT_N_LIST: case CHAT_N_TUPLE: return eval_list(r, node, scope, out);
    case CHAT_N_DICT: return eval_dict(r, node, scope, out);
    case CHAT_N_MEMBER: return eval_member(r, node, scope, out);
    case CHAT_N_ITEM: return eval_item(r, node, scope, out);
    case CHAT_N_CALL: return eval_call(r, node, scope, out);
    case CHAT_N_FILTER: return eval_filter(r, node, scope, out);
    case CHAT_N_TEST: return eval_test(r, node, scope, out);
    case CHAT_N_CONDITION: return eval_condition(r, node, scope, out);
    case CHAT_N_AND: case CHAT_N_OR: return eval_logic(r, node, scope, out);
    case CHAT_N_COMPARE: return eval_compare(r, node, scope, out);
    case CHAT_N_BINARY: return eval_binary(r, node, scope, out);
    case CHAT_N_CONCAT: return eval_concat(r, node, scope, out);
    default:
        DSC_ASSERT(node->kind == CHAT_N_NOT || node->kind == CHAT_N_NEGATIVE || node->kind == CHAT_N_POSITIVE);
        return eval_unary(r, node, scope, out);
    }
}

dsc_status chat_eval(chat_run *r, const chat_node *node, chat_scope *scope, chat_value *out)
{
    r->at = node->at;
    if (node->kind == CHAT_N_CONST || node->kind == CHAT_N_NAME || node->kind == CHAT_N_BLOCK_TEXT) {
        *out = node->kind == CHAT_N_CONST ? node->value
               : node->kind == CHAT_N_NAME ? chat_scope_get(r, scope, node->name) : r->block_text;
        return chat_spend(r, 1);
    }
    DSC_TRY(chat_enter(r));
    DSC_TRY(eval_nested(r, node, scope, out));
    r->depth--;
    return DSC_OK;
}
