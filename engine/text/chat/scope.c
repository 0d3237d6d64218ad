/* scope.c - variables. A for loop, macro, block `set`, call, filter, with and generation have a scope of their own.
 *
 * jinja2 resolves names when it compiles; a chain of scopes that is searched at run time gives the same results. An
 * assignment goes to the innermost scope, and a macro sees the scope of its definition.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/text/chat/chat_internal.h"

static chat_value *find(const chat_scope *scope, const chat_name *name)
{
    for (int32_t i = scope->count - 1; i >= 0; i--)
        if (scope->name[i] == name)
            return &scope->value[i];
    return NULL;
}

static dsc_status grow(chat_run *r, chat_scope *scope)
{
    const int32_t capacity = scope->capacity == 0 ? 4 : 2 * scope->capacity;
    const chat_name **name = NULL;
    chat_value *value = NULL;
    DSC_TRY(chat_new(r, capacity, sizeof *name, &name));
    DSC_TRY(chat_new(r, capacity, sizeof *value, &value));
    if (scope->count > 0) {
        memcpy(name, scope->name, (size_t)scope->count * sizeof *name);
        memcpy(value, scope->value, (size_t)scope->count * sizeof *value);
    }
    scope->name = name;
    scope->value = value;
    scope->capacity = capacity;
    return DSC_OK;
}

dsc_status chat_scope_set(chat_run *r, chat_scope *scope, const chat_name *name, chat_value value)
{
    chat_value *known = find(scope, name);
    DSC_TRY(chat_spend(r, 1 + scope->count / 8));
    if (known != NULL) {
        *known = value;
        return DSC_OK;
    }
    if (scope->count == scope->capacity)
        DSC_TRY(grow(r, scope));
    DSC_ASSERT(scope->count < scope->capacity);
    scope->name[scope->count] = name;
    scope->value[scope->count++] = value;
    return DSC_OK;
}

chat_value chat_scope_get(chat_run *r, const chat_scope *scope, const chat_name *name)
{
    for (; scope != NULL; scope = scope->parent) {
        const chat_value *value = find(scope, name);
        r->steps -= scope->count / 8; /* the next chat_spend fails when none are left */
        if (value != NULL)
            return *value;
    }
    DSC_ASSERT(name->id >= 0 && name->id < r->chat->parse.name_count);
    return r->global[name->id];
}

static dsc_status assign_tuple(chat_run *r, chat_scope *scope, const chat_node *target, const chat_value *value)
{
    chat_value items;
    int64_t i = 0, wanted = 0;
    for (const chat_node *t = target->list; t != NULL; t = t->next)
        wanted++;
    DSC_TRY(chat_to_list(r, value, CHAT_LIST, &items));
    if (items.list->count != wanted)
        return chat_fail(r, DSC_ERR_INPUT, "%lld values for %lld variables", (long long)items.list->count,
                         (long long)wanted);
    for (const chat_node *t = target->list; t != NULL; t = t->next)
        DSC_TRY(chat_assign(r, scope, t, &items.list->item[i++]));
    return DSC_OK;
}

dsc_status chat_check_stored(chat_run *r, const chat_value *name)
{
    if (name->kind != CHAT_STRING || name->bytes == 0 || name->text[0] != '_')
        return DSC_OK;
    return chat_fail(r, DSC_ERR_INPUT, "a namespace cannot store '%.*s'; expected a name without a leading underscore",
                     (int)dsc_min_i64(name->bytes, 60), name->text);
}

dsc_status chat_assign(chat_run *r, chat_scope *scope, const chat_node *target, const chat_value *value)
{
    if (target->kind == CHAT_N_NAME)
        return chat_scope_set(r, scope, target->name, *value);
    if (target->kind == CHAT_N_TUPLE) {
        DSC_TRY(chat_enter(r));
        DSC_TRY(assign_tuple(r, scope, target, value));
        r->depth--;
        return DSC_OK;
    }
    DSC_ASSERT(target->kind == CHAT_N_NAMESPACE_MEMBER);
    const chat_value space = chat_scope_get(r, scope, target->name);
    r->at = target->at;
    if (space.kind != CHAT_NAMESPACE)
        return chat_fail(r, DSC_ERR_INPUT, "'%.60s' is not a namespace; only members of namespace() can be assigned",
                         target->name->text);
    const chat_value name = chat_string(target->name2->text, target->name2->bytes);
    DSC_TRY(chat_check_stored(r, &name));
    return chat_dict_set(r, space.dict, name, *value);
}
