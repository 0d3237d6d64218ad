/* call.c - arguments of a call, and calls of macros, methods and functions.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/text/chat/chat_internal.h"

/* ---- Arguments ---- */

static dsc_status add_keyword(chat_run *r, chat_args *args, int64_t *capacity, chat_keyword keyword)
{
    DSC_ASSERT(args->keyword_count <= *capacity);
    for (int64_t i = 0; i < args->keyword_count; i++)
        if (args->keyword[i].bytes == keyword.bytes &&
            memcmp(args->keyword[i].name, keyword.name, (size_t)keyword.bytes) == 0)
            return chat_fail(r, DSC_ERR_INPUT, "the argument '%.*s' is there twice",
                             (int)dsc_min_i64(keyword.bytes, 60), keyword.name);
    DSC_TRY(chat_spend(r, 1 + args->keyword_count / 8));
    if (args->keyword_count == *capacity) {
        chat_keyword *grown = NULL;
        *capacity = *capacity < 4 ? 4 : 2 * *capacity;
        DSC_TRY(chat_new(r, *capacity, sizeof *grown, &grown));
        if (args->keyword_count > 0)
            memcpy(grown, args->keyword, (size_t)args->keyword_count * sizeof *grown);
        args->keyword = grown;
    }
    args->keyword[args->keyword_count++] = keyword;
    return DSC_OK;
}

static dsc_status add_dict(chat_run *r, chat_args *args, int64_t *capacity, const chat_value *v)
{
    if (v->kind != CHAT_DICT)
        return chat_fail(r, DSC_ERR_INPUT, "** needs a dict, not a value of type %s",
                         chat_type_name((chat_kind)v->kind));
    for (int64_t i = 0; i < v->dict->count; i++) {
        const chat_entry *entry = &v->dict->entry[i];
        if (entry->key.kind != CHAT_STRING)
            return chat_fail(r, DSC_ERR_INPUT, "** needs keys that are strings");
        DSC_TRY(add_keyword(r, args, capacity, (chat_keyword){ entry->key.text, entry->key.bytes, entry->value }));
    }
    return DSC_OK;
}

dsc_status chat_eval_args(chat_run *r, const chat_node *list, chat_scope *scope, chat_args *out)
{
    chat_value values, value;
    int64_t capacity = 0;
    *out = (chat_args){ 0 };
    if (list == NULL)
        return DSC_OK;
    DSC_TRY(chat_new_list(r, CHAT_LIST, 2, &values));
    for (const chat_node *n = list; n != NULL; n = n->next) {
        const bool named = n->kind == CHAT_N_KEYWORD || n->kind == CHAT_N_STAR || n->kind == CHAT_N_STAR_STAR;
        DSC_TRY(chat_eval(r, named ? n->a : n, scope, &value));
        r->at = n->at;
        if (n->kind == CHAT_N_KEYWORD) {
            DSC_TRY(add_keyword(r, out, &capacity, (chat_keyword){ n->name->text, n->name->bytes, value }));
        } else if (n->kind == CHAT_N_STAR_STAR) {
            DSC_TRY(add_dict(r, out, &capacity, &value));
        } else if (n->kind == CHAT_N_STAR) {
            chat_value more;
            DSC_TRY(chat_to_list(r, &value, CHAT_LIST, &more));
            for (int64_t i = 0; i < more.list->count; i++)
                DSC_TRY(chat_append(r, values.list, more.list->item[i]));
        } else {
            DSC_TRY(chat_append(r, values.list, value));
        }
    }
    out->value = values.list->item;
    out->count = values.list->count;
    DSC_ASSERT(out->count == 0 || out->value != NULL);
    return DSC_OK;
}

/* ---- Macros ---- */

static const chat_keyword *find_keyword(const chat_args *args, const char *name, int64_t bytes)
{
    for (int64_t i = 0; i < args->keyword_count; i++)
        if (args->keyword[i].bytes == bytes && memcmp(args->keyword[i].name, name, (size_t)bytes) == 0)
            return &args->keyword[i];
    return NULL;
}

static dsc_status set_special(chat_run *r, chat_scope *scope, const char *text, chat_value value)
{
    const chat_name *name = chat_find_name(&r->chat->parse, text, (int64_t)strlen(text));
    DSC_ASSERT(name != NULL); /* the body uses it */
    return chat_scope_set(r, scope, name, value);
}

/* Parameters in their order: a default sees the parameters before it. */
static dsc_status bind_params(chat_run *r, const chat_node *node, const chat_args *args, chat_scope *scope,
                              int64_t *keywords_used)
{
    static const char reason[] = "a parameter of a macro was not given";
    int64_t i = 0;
    DSC_ASSERT(*keywords_used == 0);
    for (const chat_node *p = node->params; p != NULL; p = p->next, i++) {
        const chat_keyword *keyword = find_keyword(args, p->name->text, p->name->bytes);
        chat_value value = chat_undefined(CHAT_NO_VALUE, reason, (int64_t)sizeof reason - 1, CHAT_UNDEFINED);
        if (i < args->count) {
            value = args->value[i]; /* a keyword of this name is left over, which is an error */
        } else if (keyword != NULL) {
            value = keyword->value;
            (*keywords_used)++;
        } else if (p->a != NULL) {
            DSC_TRY(chat_eval(r, p->a, scope, &value));
        }
        DSC_TRY(chat_scope_set(r, scope, p->name, value));
    }
    return DSC_OK;
}

/* True when the keyword was bound to a parameter. */
static bool is_bound(const chat_node *node, const chat_args *args, const chat_keyword *keyword)
{
    int64_t i = 0;
    for (const chat_node *p = node->params; p != NULL; p = p->next, i++)
        if (p->name->bytes == keyword->bytes && memcmp(p->name->text, keyword->name, (size_t)keyword->bytes) == 0)
            return i >= args->count;
    return false;
}

static dsc_status bind_varargs(chat_run *r, const chat_node *node, const chat_args *args, chat_scope *scope)
{
    int64_t params = 0;
    chat_value rest;
    for (const chat_node *p = node->params; p != NULL; p = p->next)
        params++;
    if (!node->uses_varargs && args->count > params)
        return chat_fail(r, DSC_ERR_INPUT, "a macro with %lld parameters was called with %lld arguments",
                         (long long)params, (long long)args->count);
    if (!node->uses_varargs)
        return DSC_OK;
    DSC_TRY(chat_new_list(r, CHAT_TUPLE, 0, &rest));
    for (int64_t i = params; i < args->count; i++)
        DSC_TRY(chat_append(r, rest.list, args->value[i]));
    return set_special(r, scope, "varargs", rest);
}

/* The names caller and kwargs, if the body uses them; other left over keywords are an error. */
static dsc_status bind_rest(chat_run *r, const chat_node *node, const chat_args *args, chat_scope *scope,
                            int64_t keywords_left)
{
    static const char reason[] = "the macro was called without a call block";
    const chat_keyword *caller = find_keyword(args, "caller", 6);
    chat_value rest;
    bool caller_is_param = false;
    for (const chat_node *p = node->params; p != NULL; p = p->next)
        caller_is_param |= strcmp(p->name->text, "caller") == 0;
    if (node->uses_caller && !caller_is_param) {
        keywords_left -= caller != NULL;
        DSC_TRY(set_special(r, scope, "caller", caller != NULL ? caller->value
                            : chat_undefined(CHAT_NO_VALUE, reason, (int64_t)sizeof reason - 1, CHAT_UNDEFINED)));
    }
    if (!node->uses_kwargs && keywords_left > 0)
        return chat_fail(r, DSC_ERR_INPUT, "a macro was called with %lld arguments by name that it does not have",
                         (long long)keywords_left);
    if (!node->uses_kwargs)
        return DSC_OK;
    DSC_TRY(chat_new_dict(r, &rest));
    for (int64_t i = 0; i < args->keyword_count; i++) {
        const chat_keyword *k = &args->keyword[i];
        if (!is_bound(node, args, k) && !(node->uses_caller && k == caller))
            DSC_TRY(chat_dict_set(r, rest.dict, chat_string(k->name, k->bytes), k->value));
    }
    return set_special(r, scope, "kwargs", rest);
}

static dsc_status call_macro(chat_run *r, const chat_macro *macro, const chat_args *args, chat_value *out)
{
    chat_scope *scope = NULL;
    int64_t keywords_used = 0;
    int jump = CHAT_GO_ON;
    DSC_TRY(chat_new(r, 1, sizeof *scope, &scope));
    scope->parent = macro->scope;
    DSC_TRY(bind_params(r, macro->node, args, scope, &keywords_used));
    DSC_TRY(bind_varargs(r, macro->node, args, scope));
    DSC_TRY(bind_rest(r, macro->node, args, scope, args->keyword_count - keywords_used));
    DSC_TRY(chat_capture(r, macro->node->list, scope, out, &jump));
    DSC_ASSERT(jump == CHAT_GO_ON);
    return DSC_OK;
}

dsc_status chat_call(chat_run *r, const chat_value *callee, const chat_args *args, chat_value *out)
{
    switch (callee->kind) {
    case CHAT_UNDEFINED: return chat_undefined_error(r, callee);
    case CHAT_METHOD: return chat_call_method(r, callee, args, out);
    case CHAT_FUNCTION: return chat_call_function(r, callee->id, args, out);
    case CHAT_LOOP:
        return chat_fail(r, DSC_ERR_UNSUPPORTED, "a recursive loop is not supported; use a macro that calls itself");
    case CHAT_MACRO:
        DSC_TRY(chat_enter(r));
        DSC_TRY(call_macro(r, callee->macro, args, out));
        r->depth--;
        return DSC_OK;
    default:
        return chat_fail(r, DSC_ERR_INPUT, "a value of type %s cannot be called",
                         chat_type_name((chat_kind)callee->kind));
    }
}
