/* statements.c - runs the statements of a template. SPDX-License-Identifier: Apache-2.0 */
#include "engine/text/chat/chat_internal.h"

dsc_status chat_capture(chat_run *r, const chat_node *list, chat_scope *scope, chat_value *out, int *jump)
{
    chat_bytes text = { 0 };
    chat_bytes *outer = r->out;
    DSC_ASSERT(outer != NULL);
    r->out = &text;
    const dsc_status status = chat_run_list(r, list, scope, jump);
    r->out = outer;
    r->half_done |= status != DSC_OK;
    DSC_TRY(status);
    *out = chat_bytes_value(&text);
    return DSC_OK;
}

static dsc_status new_scope(chat_run *r, chat_scope *parent, chat_scope **out)
{
    DSC_TRY(chat_new(r, 1, sizeof **out, out));
    (*out)->parent = parent;
    return DSC_OK;
}

static dsc_status write_value(chat_run *r, const chat_value *v)
{
    DSC_TRY(chat_add_str(r, r->out, v));
    if (r->out->bytes > r->options->limits.output_bytes)
        return chat_fail(r, DSC_ERR_INPUT, "the output has more bytes than the limit of %lld",
                         (long long)r->options->limits.output_bytes);
    return DSC_OK;
}

static dsc_status run_output(chat_run *r, const chat_node *node, chat_scope *scope)
{
    chat_value value;
    DSC_TRY(chat_eval(r, node->a, scope, &value));
    r->at = node->at;
    return write_value(r, &value);
}

static dsc_status run_if(chat_run *r, const chat_node *node, chat_scope *scope, int *jump)
{
    chat_value condition;
    DSC_ASSERT(node->kind == CHAT_N_IF);
    for (;; node = node->c) {
        DSC_TRY(chat_eval(r, node->a, scope, &condition));
        if (chat_truth(&condition))
            return chat_run_list(r, node->list, scope, jump);
        if (node->c == NULL)
            return chat_run_list(r, node->orelse, scope, jump);
    }
}

static dsc_status run_set(chat_run *r, const chat_node *node, chat_scope *scope)
{
    chat_value value;
    DSC_TRY(chat_eval(r, node->b, scope, &value));
    r->at = node->at;
    return chat_assign(r, scope, node->a, &value);
}

/* The text of a block behind the filters of its tag. */
static dsc_status filter_block(chat_run *r, const chat_node *node, chat_scope *scope, chat_value *out, int *jump)
{
    chat_scope *inner;
    const chat_value outer_text = r->block_text;
    chat_value text;
    DSC_ASSERT(node->b != NULL);
    DSC_TRY(new_scope(r, scope, &inner));
    DSC_TRY(chat_capture(r, node->list, inner, &text, jump));
    if (*jump != CHAT_GO_ON)
        return DSC_OK;
    r->block_text = text;
    DSC_TRY(chat_eval(r, node->b, scope, out));
    r->block_text = outer_text;
    r->at = node->at;
    return DSC_OK;
}

static dsc_status run_set_block(chat_run *r, const chat_node *node, chat_scope *scope, int *jump)
{
    chat_value value;
    DSC_TRY(filter_block(r, node, scope, &value, jump));
    return *jump == CHAT_GO_ON ? chat_assign(r, scope, node->a, &value) : DSC_OK;
}

static dsc_status run_filter_block(chat_run *r, const chat_node *node, chat_scope *scope, int *jump)
{
    chat_value value;
    DSC_TRY(filter_block(r, node, scope, &value, jump));
    return *jump == CHAT_GO_ON ? write_value(r, &value) : DSC_OK;
}

static dsc_status new_macro(chat_run *r, const chat_node *node, chat_scope *scope, chat_value *out)
{
    chat_macro *macro = NULL;
    DSC_ASSERT(node->kind == CHAT_N_MACRO || node->kind == CHAT_N_CALL_BLOCK);
    DSC_TRY(chat_new(r, 1, sizeof *macro, &macro));
    *macro = (chat_macro){ node, scope };
    for (chat_scope *s = scope; s != NULL && !s->captured; s = s->parent)
        s->captured = true;
    *out = (chat_value){ .kind = CHAT_MACRO, .macro = macro };
    return DSC_OK;
}

static dsc_status run_macro(chat_run *r, const chat_node *node, chat_scope *scope)
{
    chat_value macro;
    DSC_TRY(new_macro(r, node, scope, &macro));
    return chat_scope_set(r, scope, node->name, macro);
}

static dsc_status run_call_block(chat_run *r, const chat_node *node, chat_scope *scope)
{
    chat_value callee, caller, text;
    chat_args args;
    const chat_node *call = node->a;
    DSC_ASSERT(call->kind == CHAT_N_CALL);
    DSC_TRY(new_macro(r, node, scope, &caller));
    DSC_TRY(chat_eval(r, call->a, scope, &callee));
    DSC_TRY(chat_eval_args(r, call->list, scope, &args));
    chat_keyword *keyword = NULL;
    DSC_TRY(chat_new(r, args.keyword_count + 1, sizeof *keyword, &keyword));
    if (args.keyword_count > 0)
        memcpy(keyword, args.keyword, (size_t)args.keyword_count * sizeof *keyword);
    keyword[args.keyword_count++] = (chat_keyword){ "caller", 6, caller };
    args.keyword = keyword;
    r->at = call->at;
    DSC_TRY(chat_call(r, &callee, &args, &text));
    return write_value(r, &text);
}

static dsc_status run_with(chat_run *r, const chat_node *node, chat_scope *scope, int *jump)
{
    chat_scope *inner;
    chat_value value;
    DSC_TRY(new_scope(r, scope, &inner));
    for (const chat_node *p = node->params; p != NULL; p = p->next) {
        DSC_ASSERT(p->kind == CHAT_N_KEYWORD && p->a != NULL);
        DSC_TRY(chat_eval(r, p->a, scope, &value));
        DSC_TRY(chat_scope_set(r, inner, p->name, value));
    }
    return chat_run_list(r, node->list, inner, jump);
}

static dsc_status add_span(chat_run *r, int64_t begin, int64_t end)
{
    dsc_chat_output *output = r->output;
    DSC_ASSERT(begin >= 0 && begin <= end);
    if (output->span_count == output->span_capacity) {
        dsc_chat_span *grown = NULL;
        const int64_t capacity = output->span_capacity == 0 ? 16 : 2 * output->span_capacity;
        DSC_TRY(dsc_alloc_zeroed(output->text.alloc, DSC_TAG_DATA, capacity, sizeof *grown, &grown, r->err));
        if (output->span_count > 0)
            memcpy(grown, output->span, (size_t)output->span_count * sizeof *grown);
        dsc_alloc_free(output->text.alloc, output->span);
        output->span = grown;
        output->span_capacity = capacity;
    }
    output->span[output->span_count++] = (dsc_chat_span){ begin, end };
    return DSC_OK;
}

static dsc_status run_generation(chat_run *r, const chat_node *node, chat_scope *scope)
{
    chat_scope *inner;
    chat_value text;
    int jump = CHAT_GO_ON;
    DSC_TRY(new_scope(r, scope, &inner));
    DSC_TRY(chat_capture(r, node->list, inner, &text, &jump));
    DSC_ASSERT(jump == CHAT_GO_ON);
    DSC_TRY(chat_spend(r, 16)); /* a span takes memory outside of the arena */
    DSC_TRY(add_span(r, r->root.bytes, r->root.bytes + text.bytes));
    return write_value(r, &text);
}

static dsc_status run_statement(chat_run *r, const chat_node *node, chat_scope *scope, int *jump)
{
    switch (node->kind) {
    case CHAT_N_DATA: return write_value(r, &node->value);
    case CHAT_N_OUTPUT: return run_output(r, node, scope);
    case CHAT_N_IF: return run_if(r, node, scope, jump);
    case CHAT_N_FOR: return chat_run_for(r, node, scope, jump);
    case CHAT_N_SET: return run_set(r, node, scope);
    case CHAT_N_SET_BLOCK: return run_set_block(r, node, scope, jump);
    case CHAT_N_MACRO: return run_macro(r, node, scope);
    case CHAT_N_CALL_BLOCK: return run_call_block(r, node, scope);
    case CHAT_N_FILTER_BLOCK: return run_filter_block(r, node, scope, jump);
    case CHAT_N_WITH: return run_with(r, node, scope, jump);
    case CHAT_N_GENERATION: return run_generation(r, node, scope);
    default:
        DSC_ASSERT(node->kind == CHAT_N_BREAK || node->kind == CHAT_N_CONTINUE);
        *jump = node->kind == CHAT_N_BREAK ? CHAT_BREAK : CHAT_CONTINUE;
        return DSC_OK;
    }
}

dsc_status chat_run_list(chat_run *r, const chat_node *list, chat_scope *scope, int *jump)
{
    DSC_ASSERT(*jump == CHAT_GO_ON);
    DSC_TRY(chat_enter(r));
    for (const chat_node *node = list; node != NULL && *jump == CHAT_GO_ON; node = node->next) {
        r->at = node->at;
        DSC_TRY(chat_spend(r, 1));
        DSC_TRY(run_statement(r, node, scope, jump));
    }
    r->depth--;
    return DSC_OK;
}
