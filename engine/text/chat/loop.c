/* loop.c - the for statement and its variable `loop`.
 *
 * Items are read one ahead at most, as jinja2 does: a condition of the loop can depend on what its body changes.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/text/chat/chat_internal.h"

/* The next item that meets the loop's condition. */
static dsc_status find_item(chat_run *r, chat_loop *loop, chat_value *out, bool *end)
{
    chat_value met = chat_bool(true);
    *end = false;
    if (loop->rest != NULL) {
        *end = loop->rest_next >= loop->rest->count;
        if (!*end)
            *out = loop->rest->item[loop->rest_next++];
        return DSC_OK;
    }
    do {
        DSC_TRY(chat_next(r, &loop->cursor, out, end));
        if (*end || loop->node->c == NULL)
            return DSC_OK;
        loop->condition.count = 0;
        DSC_TRY(chat_assign(r, &loop->condition, loop->node->a, out));
        DSC_TRY(chat_eval(r, loop->node->c, &loop->condition, &met));
    } while (!chat_truth(&met));
    return DSC_OK;
}

static dsc_status read_item(chat_run *r, chat_loop *loop, chat_value *out, bool *end)
{
    const dsc_status status = find_item(r, loop, out, end);
    r->half_done |= status != DSC_OK; /* the loop has moved on */
    return status;
}

static dsc_status peek(chat_run *r, chat_loop *loop, bool *end)
{
    *end = false;
    if (loop->has_after)
        return DSC_OK;
    DSC_TRY(read_item(r, loop, &loop->after, end));
    loop->has_after = !*end;
    return DSC_OK;
}

dsc_status chat_loop_next(chat_run *r, chat_loop *loop, bool *end)
{
    chat_value item = loop->after;
    *end = false;
    if (!loop->has_after)
        DSC_TRY(read_item(r, loop, &item, end));
    if (*end)
        return DSC_OK;
    DSC_ASSERT(item.kind != CHAT_MISSING);
    loop->has_after = false;
    loop->index0++;
    loop->before = loop->current;
    loop->current = item;
    return DSC_OK;
}

/* Without a length of its own, all remaining items are read. */
static dsc_status get_length(chat_run *r, chat_loop *loop, int64_t *out)
{
    chat_value rest, item;
    const chat_value *source = &loop->cursor.source;
    if (loop->length < 0 && (loop->node->c != NULL || !chat_length(source, &loop->length))) {
        DSC_TRY(chat_new_list(r, CHAT_LIST, 0, &rest));
        for (;;) {
            bool end;
            DSC_TRY(read_item(r, loop, &item, &end));
            if (end)
                break;
            DSC_TRY(chat_append(r, rest.list, item));
        }
        loop->rest = rest.list;
        loop->length = rest.list->count + loop->index0 + 1 + loop->has_after;
    }
    DSC_ASSERT(loop->length >= 0);
    *out = loop->length;
    return DSC_OK;
}

static dsc_status get_neighbour(chat_run *r, chat_loop *loop, bool next, chat_value *out)
{
    static const char no_previous[] = "there is no previous item", no_next[] = "there is no next item";
    bool end = loop->index0 == 0;
    if (next)
        DSC_TRY(peek(r, loop, &end));
    *out = next ? loop->after : loop->before;
    if (end)
        *out = chat_undefined(CHAT_NO_VALUE, next ? no_next : no_previous,
                              (int64_t)(next ? sizeof no_next : sizeof no_previous) - 1, CHAT_UNDEFINED);
    return DSC_OK;
}

dsc_status chat_loop_member(chat_run *r, chat_loop *loop, const char *name, int64_t bytes, chat_value *out)
{
    const chat_value key = chat_string(name, bytes), self = { .kind = CHAT_LOOP, .loop = loop };
    int64_t length = 0;
    bool end = false;
    DSC_ASSERT(loop->index0 >= 0);
    if (chat_is(&key, "index") || chat_is(&key, "index0")) {
        *out = chat_int(loop->index0 + chat_is(&key, "index"));
    } else if (chat_is(&key, "first")) {
        *out = chat_bool(loop->index0 == 0);
    } else if (chat_is(&key, "last")) {
        DSC_TRY(peek(r, loop, &end));
        *out = chat_bool(end);
    } else if (chat_is(&key, "length") || chat_is(&key, "revindex") || chat_is(&key, "revindex0")) {
        DSC_TRY(get_length(r, loop, &length));
        *out = chat_int(chat_is(&key, "length") ? length : length - loop->index0 - chat_is(&key, "revindex0"));
    } else if (chat_is(&key, "previtem") || chat_is(&key, "nextitem")) {
        return get_neighbour(r, loop, chat_is(&key, "nextitem"), out);
    } else if (chat_is(&key, "depth") || chat_is(&key, "depth0")) {
        *out = chat_int(chat_is(&key, "depth"));
    } else if (chat_is(&key, "cycle")) {
        *out = (chat_value){ .kind = CHAT_METHOD, .id = chat_find_method(CHAT_LOOP, name, bytes) };
        DSC_TRY(chat_new(r, 1, sizeof *out->self, &out->self));
        *out->self = self;
    } else if (chat_is(&key, "changed")) {
        return chat_fail(r, DSC_ERR_UNSUPPORTED, "loop.changed is not supported");
    } else {
        *out = chat_undefined(CHAT_NO_MEMBER, name, bytes, CHAT_LOOP);
    }
    return DSC_OK;
}

static dsc_status run_body(chat_run *r, chat_loop *loop, chat_scope **scope, int *jump)
{
    const chat_name *name = chat_find_name(&r->chat->parse, "loop", 4);
    if (*scope == NULL || (*scope)->captured) {
        DSC_TRY(chat_new(r, 1, sizeof **scope, scope));
        (*scope)->parent = loop->outer;
    }
    (*scope)->count = 0;
    r->at = loop->node->at;
    if (name != NULL)
        DSC_TRY(chat_scope_set(r, *scope, name, (chat_value){ .kind = CHAT_LOOP, .loop = loop }));
    DSC_TRY(chat_assign(r, *scope, loop->node->a, &loop->current));
    return chat_run_list(r, loop->node->list, *scope, jump);
}

/* As compiled by jinja2, `else` runs unless the body came to its end once: break and continue do not count. */
dsc_status chat_run_for(chat_run *r, const chat_node *node, chat_scope *scope, int *jump)
{
    chat_loop *loop = NULL;
    chat_scope *inner = NULL;
    chat_value source;
    bool end = false, completed = false;
    DSC_TRY(chat_eval(r, node->b, scope, &source));
    r->at = node->at;
    DSC_TRY(chat_new(r, 1, sizeof *loop, &loop));
    *loop = (chat_loop){ .node = node, .outer = scope, .index0 = -1, .length = -1, .condition = { .parent = scope } };
    DSC_TRY(chat_iterate(r, &source, &loop->cursor));
    while (!end) {
        DSC_TRY(chat_loop_next(r, loop, &end));
        if (end)
            break;
        DSC_TRY(run_body(r, loop, &inner, jump));
        completed |= *jump == CHAT_GO_ON;
        end = *jump == CHAT_BREAK;
        *jump = CHAT_GO_ON;
    }
    if (completed || node->orelse == NULL)
        return DSC_OK;
    DSC_TRY(chat_new(r, 1, sizeof *inner, &inner));
    inner->parent = scope;
    return chat_run_list(r, node->orelse, inner, jump);
}
