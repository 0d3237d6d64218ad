/* parser.c - tokens as statements; a tag outside of the subset is refused by name.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "engine/text/chat/chat_internal.h"

/* The tags that end a list of statements, as a mask. */
enum {
    END_ELIF = 1, END_ELSE = 2, END_IF = 4, END_FOR = 8, END_SET = 16, END_MACRO = 32, END_CALL = 64, END_FILTER = 128,
    END_WITH = 256, END_GENERATION = 512
};
static const char *const end_tag[] = { "elif", "else", "endif", "endfor", "endset", "endmacro", "endcall", "endfilter",
                                       "endwith", "endgeneration" };

static dsc_status parse_list(chat_parser *p, int ends, chat_node **out, int *end);

/* ---- Helpers of both parsers ---- */

bool chat_at_name(const chat_parser *p, const char *name)
{
    return p->token->type == CHAT_T_NAME && p->token->name->bytes == (int64_t)strlen(name) &&
           memcmp(p->token->name->text, name, (size_t)p->token->name->bytes) == 0;
}

static void name_token(const chat_token *token, char out[80])
{
    static const char *const type[] = { "the end", "text", "{{", "}}", "{%", "%}", "a name", "a string", "an integer",
                                        "a number", "//", "**", "==", "!=", ">=", "<=" };
    DSC_ASSERT(token->type < DSC_COUNT(type) || token->type > CHAT_T_OPERATOR);
    if (token->type == CHAT_T_NAME)
        snprintf(out, 80, "'%.*s'", (int)dsc_min_i64(token->name->bytes, 60), token->name->text);
    else if (token->type > CHAT_T_OPERATOR)
        snprintf(out, 80, "'%c'", token->type);
    else
        snprintf(out, 80, "%s", type[token->type]);
}

dsc_status chat_unexpected(chat_parser *p, const char *expected)
{
    char found[80];
    name_token(p->token, found);
    p->r->at = p->token->at;
    return chat_fail(p->r, DSC_ERR_INPUT, "expected %s, found %s", expected, found);
}

bool chat_skip(chat_parser *p, int type)
{
    const bool is = p->token->type == type;
    p->token += is;
    return is;
}

bool chat_skip_name(chat_parser *p, const char *name)
{
    const bool is = chat_at_name(p, name);
    p->token += is;
    return is;
}

dsc_status chat_expect(chat_parser *p, int type, const char *what)
{
    return chat_skip(p, type) ? DSC_OK : chat_unexpected(p, what);
}

dsc_status chat_new_node(chat_parser *p, chat_node_kind kind, chat_node **out)
{
    chat_node *node = NULL;
    p->r->at = p->token->at;
    DSC_TRY(chat_new(p->r, 1, sizeof *node, &node));
    node->kind = (uint8_t)kind;
    node->at = p->token->at;
    *out = node;
    return DSC_OK;
}

/* ---- Targets ---- */

static dsc_status parse_target(chat_parser *p, bool with_namespace, chat_node **out);

static dsc_status parse_one_target(chat_parser *p, bool with_namespace, chat_node **out)
{
    if (chat_skip(p, '(')) {
        DSC_TRY(parse_target(p, with_namespace, out));
        return chat_expect(p, ')', ")");
    }
    if (p->token->type != CHAT_T_NAME || chat_reserved_name(p->token->name))
        return chat_unexpected(p, "the name of a variable");
    DSC_TRY(chat_new_node(p, CHAT_N_NAME, out));
    (*out)->name = p->token->name;
    p->token++;
    if (!with_namespace || !chat_skip(p, '.'))
        return DSC_OK;
    if (p->token->type != CHAT_T_NAME)
        return chat_unexpected(p, "the name of a member");
    (*out)->kind = CHAT_N_NAMESPACE_MEMBER;
    (*out)->name2 = p->token->name;
    p->token++;
    return DSC_OK;
}

static dsc_status parse_target(chat_parser *p, bool with_namespace, chat_node **out)
{
    chat_node *tuple;
    if (p->nesting == DSC_CHAT_NESTING_MAX)
        return chat_unexpected(p, "fewer than 100 nested targets");
    p->nesting++;
    DSC_TRY(parse_one_target(p, with_namespace, out));
    p->nesting--;
    if (p->token->type != ',')
        return DSC_OK;
    DSC_TRY(chat_new_node(p, CHAT_N_TUPLE, &tuple));
    tuple->list = *out;
    *out = tuple;
    for (chat_node *last = tuple->list; chat_skip(p, ','); last = last->next) {
        if (chat_at_name(p, "in") || p->token->type == '=' || p->token->type == ')')
            break;
        DSC_TRY(parse_one_target(p, with_namespace, &last->next));
    }
    return DSC_OK;
}

/* ---- Statements ---- */

/* The body of a tag: from its end to the tag that closes it. */
static dsc_status parse_body(chat_parser *p, int ends, chat_node **out, int *end)
{
    chat_skip(p, ':');
    DSC_TRY(chat_expect(p, CHAT_T_BLOCK_END, "%}"));
    return parse_list(p, ends, out, end);
}

static dsc_status parse_if(chat_parser *p, chat_node **out)
{
    int end = END_ELIF;
    for (chat_node **at = out; end == END_ELIF; at = &(*at)->c) {
        DSC_TRY(chat_new_node(p, CHAT_N_IF, at));
        p->token++;
        DSC_TRY(chat_parse_tuple(p, false, false, &(*at)->a));
        DSC_TRY(parse_body(p, END_ELIF | END_ELSE | END_IF, &(*at)->list, &end));
        if (end == END_ELSE) {
            p->token++;
            DSC_TRY(parse_body(p, END_IF, &(*at)->orelse, &end));
        }
    }
    p->token++;
    return DSC_OK;
}

static dsc_status parse_for(chat_parser *p, chat_node **out)
{
    int end;
    DSC_TRY(chat_new_node(p, CHAT_N_FOR, out));
    p->token++;
    DSC_TRY(parse_target(p, false, &(*out)->a));
    if (!chat_skip_name(p, "in"))
        return chat_unexpected(p, "'in'");
    DSC_TRY(chat_parse_tuple(p, false, false, &(*out)->b));
    if (chat_skip_name(p, "if"))
        DSC_TRY(chat_parse_expression(p, true, &(*out)->c));
    if (chat_at_name(p, "recursive")) {
        p->r->at = p->token->at;
        return chat_fail(p->r, DSC_ERR_UNSUPPORTED, "a recursive loop is not supported; use a macro that calls itself");
    }
    p->loops++;
    DSC_TRY(parse_body(p, END_FOR | END_ELSE, &(*out)->list, &end));
    p->loops--;
    p->token++;
    if (end == END_FOR)
        return DSC_OK;
    DSC_TRY(parse_body(p, END_FOR, &(*out)->orelse, &end));
    p->token++;
    return DSC_OK;
}

static dsc_status parse_set(chat_parser *p, chat_node **out)
{
    int end;
    chat_node *text;
    DSC_TRY(chat_new_node(p, CHAT_N_SET, out));
    p->token++;
    DSC_TRY(parse_target(p, true, &(*out)->a));
    if (chat_skip(p, '='))
        return chat_parse_tuple(p, true, false, &(*out)->b);
    (*out)->kind = CHAT_N_SET_BLOCK;
    DSC_TRY(chat_new_node(p, CHAT_N_BLOCK_TEXT, &text));
    DSC_TRY(chat_parse_filters(p, text, false, &(*out)->b));
    DSC_TRY(parse_body(p, END_SET, &(*out)->list, &end));
    p->token++;
    return DSC_OK;
}

/* Parameters in parentheses, with defaults behind those without. */
static dsc_status parse_params(chat_parser *p, chat_node **out)
{
    bool has_default = false;
    DSC_TRY(chat_expect(p, '(', "("));
    for (chat_node **last = out; p->token->type != ')'; last = &(*last)->next) {
        if (last != out)
            DSC_TRY(chat_expect(p, ',', "a comma or )"));
        if (p->token->type != CHAT_T_NAME || chat_reserved_name(p->token->name))
            return chat_unexpected(p, "the name of a parameter");
        DSC_TRY(chat_new_node(p, CHAT_N_KEYWORD, last));
        (*last)->name = p->token->name;
        p->token++;
        if (chat_skip(p, '='))
            DSC_TRY(chat_parse_expression(p, true, &(*last)->a));
        else if (has_default)
            return chat_unexpected(p, "a default, as the parameters before have one");
        has_default |= (*last)->a != NULL;
    }
    return chat_expect(p, ')', ")");
}

/* The body of a function: no loop around it is its own. */
static dsc_status parse_function(chat_parser *p, chat_node *node, int ends)
{
    int end;
    chat_node *macro = p->macro;
    const int loops = p->loops;
    p->loops = 0;
    if (node->kind != CHAT_N_GENERATION)
        p->macro = node;
    DSC_TRY(parse_body(p, ends, &node->list, &end));
    p->macro = macro;
    p->loops = loops;
    p->token++;
    return DSC_OK;
}

static dsc_status parse_macro(chat_parser *p, chat_node **out)
{
    DSC_TRY(chat_new_node(p, CHAT_N_MACRO, out));
    p->token++;
    if (p->token->type != CHAT_T_NAME || chat_reserved_name(p->token->name))
        return chat_unexpected(p, "the name of the macro");
    (*out)->name = p->token->name;
    p->token++;
    DSC_TRY(parse_params(p, &(*out)->params));
    return parse_function(p, *out, END_MACRO);
}

static dsc_status parse_call_block(chat_parser *p, chat_node **out)
{
    DSC_TRY(chat_new_node(p, CHAT_N_CALL_BLOCK, out));
    p->token++;
    if (p->token->type == '(')
        DSC_TRY(parse_params(p, &(*out)->params));
    const chat_token *call = p->token;
    DSC_TRY(chat_parse_expression(p, true, &(*out)->a));
    if ((*out)->a->kind != CHAT_N_CALL) {
        p->token = call;
        return chat_unexpected(p, "the call of a macro");
    }
    return parse_function(p, *out, END_CALL);
}

static dsc_status parse_filter_block(chat_parser *p, chat_node **out)
{
    int end;
    chat_node *text;
    DSC_TRY(chat_new_node(p, CHAT_N_FILTER_BLOCK, out));
    p->token++;
    DSC_TRY(chat_new_node(p, CHAT_N_BLOCK_TEXT, &text));
    DSC_TRY(chat_parse_filters(p, text, true, &(*out)->b));
    DSC_TRY(parse_body(p, END_FILTER, &(*out)->list, &end));
    p->token++;
    return DSC_OK;
}

static dsc_status parse_with(chat_parser *p, chat_node **out)
{
    int end;
    DSC_TRY(chat_new_node(p, CHAT_N_WITH, out));
    p->token++;
    for (chat_node **last = &(*out)->params; p->token->type != CHAT_T_BLOCK_END; last = &(*last)->next) {
        if (last != &(*out)->params)
            DSC_TRY(chat_expect(p, ',', "a comma"));
        if (p->token->type != CHAT_T_NAME || chat_reserved_name(p->token->name))
            return chat_unexpected(p, "the name of a variable");
        DSC_TRY(chat_new_node(p, CHAT_N_KEYWORD, last));
        (*last)->name = p->token->name;
        p->token++;
        DSC_TRY(chat_expect(p, '=', "="));
        DSC_TRY(chat_parse_expression(p, true, &(*last)->a));
    }
    DSC_TRY(parse_body(p, END_WITH, &(*out)->list, &end));
    p->token++;
    return DSC_OK;
}

static dsc_status parse_generation(chat_parser *p, chat_node **out)
{
    DSC_TRY(chat_new_node(p, CHAT_N_GENERATION, out));
    p->token++;
    return parse_function(p, *out, END_GENERATION);
}

static dsc_status parse_jump(chat_parser *p, chat_node **out)
{
    DSC_TRY(chat_new_node(p, chat_at_name(p, "break") ? CHAT_N_BREAK : CHAT_N_CONTINUE, out));
    if (p->loops == 0)
        return chat_unexpected(p, "a for loop around break and continue");
    p->token++;
    return DSC_OK;
}

static dsc_status parse_statement(chat_parser *p, chat_node **out)
{
    static const struct { const char *tag; dsc_status (*parse)(chat_parser *p, chat_node **out); } known[] = {
        { "if", parse_if }, { "for", parse_for }, { "set", parse_set }, { "macro", parse_macro },
        { "call", parse_call_block }, { "filter", parse_filter_block }, { "with", parse_with },
        { "generation", parse_generation }, { "break", parse_jump }, { "continue", parse_jump },
    };
    if (p->token->type != CHAT_T_NAME)
        return chat_unexpected(p, "the name of a tag");
    for (size_t i = 0; i < DSC_COUNT(known); i++)
        if (chat_at_name(p, known[i].tag))
            return known[i].parse(p, out);
    for (size_t i = 0; i < DSC_COUNT(end_tag); i++)
        if (chat_at_name(p, end_tag[i]))
            return chat_unexpected(p, "another tag; no open tag ends here");
    p->r->at = p->token->at;
    return chat_fail(p->r, DSC_ERR_UNSUPPORTED,
                     "tag '%.60s' is not supported; supported tags are if, for, set, macro, call, filter, with, raw, "
                     "generation, break, continue", p->token->name->text);
}

/* Statements up to a tag of `ends` (0: the end of the template), which is then the current token. */
static dsc_status parse_list(chat_parser *p, int ends, chat_node **out, int *end)
{
    if (p->nesting == DSC_CHAT_NESTING_MAX)
        return chat_unexpected(p, "fewer than 100 nested tags");
    p->nesting++;
    for (chat_node **last = out;; last = &(*last)->next) {
        if (p->token->type == CHAT_T_DATA) {
            DSC_TRY(chat_new_node(p, CHAT_N_DATA, last));
            (*last)->value = p->token->value;
            p->token++;
        } else if (chat_skip(p, CHAT_T_VARIABLE_BEGIN)) {
            DSC_TRY(chat_new_node(p, CHAT_N_OUTPUT, last));
            DSC_TRY(chat_parse_tuple(p, true, false, &(*last)->a));
            DSC_TRY(chat_expect(p, CHAT_T_VARIABLE_END, "}}"));
        } else if (chat_skip(p, CHAT_T_BLOCK_BEGIN)) {
            for (size_t i = 0; i < DSC_COUNT(end_tag); i++)
                if ((ends & 1 << i) != 0 && chat_at_name(p, end_tag[i])) {
                    *end = 1 << i;
                    p->nesting--;
                    return DSC_OK;
                }
            DSC_TRY(parse_statement(p, last));
            DSC_TRY(chat_expect(p, CHAT_T_BLOCK_END, "%}"));
        } else {
            DSC_ASSERT(p->token->type == CHAT_T_END);
            break;
        }
    }
    if (ends != 0) {
        for (size_t i = 0; i < DSC_COUNT(end_tag); i++)
            if ((ends & 1 << i) != 0 && strncmp(end_tag[i], "end", 3) == 0)
                return chat_unexpected(p, end_tag[i]);
    }
    p->nesting--;
    return DSC_OK;
}

dsc_status chat_parse(chat_run *r, const chat_token *token, chat_node **body)
{
    int end = 0;
    chat_parser p = { .r = r, .token = token };
    DSC_TRY(parse_list(&p, 0, body, &end));
    DSC_ASSERT(p.nesting == 0 && p.loops == 0);
    return DSC_OK;
}
