/* parse_expression.c - tokens of an expression as nodes, with the precedence of jinja2's parser.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/text/chat/chat_internal.h"

static dsc_status parse_unary(chat_parser *p, bool with_filters, chat_node **out);

static dsc_status nest(chat_parser *p)
{
    DSC_ASSERT(p->nesting >= 0);
    if (p->nesting == DSC_CHAT_NESTING_MAX)
        return chat_fail(p->r, DSC_ERR_INPUT, "tags or expressions are nested more than %d deep", DSC_CHAT_NESTING_MAX);
    p->nesting++;
    return DSC_OK;
}

bool chat_reserved_name(const chat_name *name)
{
    static const char *const reserved[] = { "true", "false", "True", "False", "none", "None" };
    for (size_t i = 0; i < DSC_COUNT(reserved); i++)
        if ((int64_t)strlen(reserved[i]) == name->bytes && memcmp(reserved[i], name->text, (size_t)name->bytes) == 0)
            return true;
    return false;
}

static dsc_status parse_name(chat_parser *p, chat_node **out)
{
    const chat_name *name = p->token->name;
    DSC_ASSERT(name != NULL);
    if (chat_reserved_name(name)) {
        DSC_TRY(chat_new_node(p, CHAT_N_CONST, out));
        (*out)->value = (name->text[0] | 0x20) == 'n' ? chat_none() : chat_bool((name->text[0] | 0x20) == 't');
    } else {
        DSC_TRY(chat_new_node(p, CHAT_N_NAME, out));
        (*out)->name = name;
        if (p->macro != NULL) {
            p->macro->uses_varargs |= chat_at_name(p, "varargs");
            p->macro->uses_kwargs |= chat_at_name(p, "kwargs");
            p->macro->uses_caller |= chat_at_name(p, "caller");
        }
    }
    p->token++;
    return DSC_OK;
}

/* Neighbouring literals are one string. */
static dsc_status parse_string(chat_parser *p, chat_node **out)
{
    chat_bytes joined = { 0 };
    DSC_TRY(chat_new_node(p, CHAT_N_CONST, out));
    (*out)->value = p->token->value;
    p->token++;
    if (p->token->type != CHAT_T_STRING)
        return DSC_OK;
    DSC_TRY(chat_add(p->r, &joined, (*out)->value.text, (*out)->value.bytes));
    for (; p->token->type == CHAT_T_STRING; p->token++)
        DSC_TRY(chat_add(p->r, &joined, p->token->value.text, p->token->value.bytes));
    (*out)->value = chat_bytes_value(&joined);
    return DSC_OK;
}

static dsc_status parse_list(chat_parser *p, chat_node **out)
{
    DSC_TRY(chat_new_node(p, CHAT_N_LIST, out));
    chat_node **last = &(*out)->list;
    for (p->token++; p->token->type != ']'; last = &(*last)->next) {
        if (last != &(*out)->list)
            DSC_TRY(chat_expect(p, ',', "a comma or ]"));
        if (p->token->type == ']')
            break;
        DSC_TRY(chat_parse_expression(p, true, last));
    }
    return chat_expect(p, ']', "]");
}

static dsc_status parse_dict(chat_parser *p, chat_node **out)
{
    DSC_TRY(chat_new_node(p, CHAT_N_DICT, out));
    chat_node **last = &(*out)->list;
    for (p->token++; p->token->type != '}'; last = &(*last)->next) {
        if (last != &(*out)->list)
            DSC_TRY(chat_expect(p, ',', "a comma or }"));
        if (p->token->type == '}')
            break;
        DSC_TRY(chat_parse_expression(p, true, last));
        DSC_TRY(chat_expect(p, ':', "a colon"));
        last = &(*last)->next;
        DSC_TRY(chat_parse_expression(p, true, last));
    }
    return chat_expect(p, '}', "}");
}

static dsc_status parse_primary(chat_parser *p, chat_node **out)
{
    switch (p->token->type) {
    case CHAT_T_NAME: return parse_name(p, out);
    case CHAT_T_STRING: return parse_string(p, out);
    case CHAT_T_INTEGER:
    case CHAT_T_FLOAT:
        DSC_TRY(chat_new_node(p, CHAT_N_CONST, out));
        (*out)->value = p->token->value;
        p->token++;
        return DSC_OK;
    case '(':
        p->token++;
        DSC_TRY(chat_parse_tuple(p, true, true, out));
        return chat_expect(p, ')', ")");
    case '[': return parse_list(p, out);
    case '{': return parse_dict(p, out);
    default: return chat_unexpected(p, "an expression");
    }
}

/* ---- Members, items, calls ---- */

static dsc_status parse_slice_part(chat_parser *p, chat_node **out)
{
    if (p->token->type == ':' || p->token->type == ']')
        return DSC_OK;
    return chat_parse_expression(p, true, out);
}

static dsc_status parse_subscript(chat_parser *p, chat_node *object, chat_node **out)
{
    DSC_TRY(chat_new_node(p, CHAT_N_ITEM, out));
    (*out)->a = object;
    p->token++;
    if (p->token->type != ':') {
        DSC_TRY(chat_parse_expression(p, true, &(*out)->b));
        if (p->token->type == ',')
            return chat_fail(p->r, DSC_ERR_UNSUPPORTED, "a subscript of several values is not supported");
        if (p->token->type != ':')
            return chat_expect(p, ']', "]");
    }
    chat_node *slice;
    DSC_TRY(chat_new_node(p, CHAT_N_SLICE, &slice));
    slice->a = (*out)->b;
    (*out)->b = slice;
    p->token++;
    DSC_TRY(parse_slice_part(p, &slice->b));
    if (chat_skip(p, ':'))
        DSC_TRY(parse_slice_part(p, &slice->c));
    return chat_expect(p, ']', "]");
}

static dsc_status parse_member(chat_parser *p, chat_node *object, chat_node **out)
{
    p->token++;
    if (p->token->type == CHAT_T_INTEGER) {
        DSC_TRY(chat_new_node(p, CHAT_N_ITEM, out));
        (*out)->a = object;
        return parse_primary(p, &(*out)->b);
    }
    if (p->token->type != CHAT_T_NAME)
        return chat_unexpected(p, "a name or a number behind the dot");
    const chat_name *name = p->token->name;
    p->r->at = p->token->at;
    if (name->bytes >= 2 && memcmp(name->text, "__", 2) == 0)
        return chat_fail(p->r, DSC_ERR_UNSUPPORTED, "the member '%s' of Python is not supported", name->text);
    DSC_TRY(chat_new_node(p, CHAT_N_MEMBER, out));
    (*out)->a = object;
    (*out)->name = name;
    p->token++;
    return DSC_OK;
}

static dsc_status parse_argument(chat_parser *p, int *stage, chat_node **out)
{
    const bool is_keyword = p->token->type == CHAT_T_NAME && p->token[1].type == '=';
    const int kind = p->token->type == '*' ? 2 : p->token->type == CHAT_T_POW ? 3 : is_keyword ? 1 : 0;
    DSC_ASSERT(*stage >= 0 && *stage <= 3);
    if (kind < *stage - (kind == 1 && *stage == 2) || (kind >= 2 && kind == *stage))
        return chat_unexpected(p, "arguments in the order values, names, *list, **dict");
    *stage = kind > *stage ? kind : *stage;
    if (kind == 0)
        return chat_parse_expression(p, true, out);
    DSC_TRY(chat_new_node(p, kind == 1 ? CHAT_N_KEYWORD : kind == 2 ? CHAT_N_STAR : CHAT_N_STAR_STAR, out));
    (*out)->name = p->token->name;
    p->token += kind == 1 ? 2 : 1;
    return chat_parse_expression(p, true, &(*out)->a);
}

/* At the parenthesis. */
static dsc_status parse_arguments(chat_parser *p, chat_node **out)
{
    int stage = 0;
    chat_node **last = out;
    for (p->token++; p->token->type != ')'; last = &(*last)->next) {
        if (last != out) {
            DSC_TRY(chat_expect(p, ',', "a comma or )"));
            if (p->token->type == ')')
                break;
        }
        DSC_TRY(parse_argument(p, &stage, last));
    }
    return chat_expect(p, ')', ")");
}

static dsc_status parse_call(chat_parser *p, chat_node *callee, chat_node **out)
{
    DSC_TRY(chat_new_node(p, CHAT_N_CALL, out));
    (*out)->a = callee;
    return parse_arguments(p, &(*out)->list);
}

static dsc_status parse_postfix(chat_parser *p, chat_node **node)
{
    for (;;) {
        chat_node *object = *node;
        if (p->token->type == '.')
            DSC_TRY(parse_member(p, object, node));
        else if (p->token->type == '[')
            DSC_TRY(parse_subscript(p, object, node));
        else if (p->token->type == '(')
            DSC_TRY(parse_call(p, object, node));
        else
            return DSC_OK;
    }
}

/* ---- Filters and tests ---- */

dsc_status chat_parse_filters(chat_parser *p, chat_node *input, bool inline_first, chat_node **out)
{
    *out = input;
    for (bool first = inline_first; first || p->token->type == '|'; first = false) {
        chat_node *node;
        if (!first)
            p->token++;
        if (p->token->type != CHAT_T_NAME)
            return chat_unexpected(p, "the name of a filter");
        p->r->at = p->token->at;
        const int filter = chat_find_filter(p->token->name->text, p->token->name->bytes);
        if (filter < 0)
            return chat_no_filter(p->r, p->token->name->text, p->token->name->bytes);
        DSC_TRY(chat_new_node(p, CHAT_N_FILTER, &node));
        node->value.id = filter;
        node->a = *out;
        *out = node;
        p->token++;
        if (p->token->type == '.')
            return chat_unexpected(p, "a filter without a dot");
        if (p->token->type == '(')
            DSC_TRY(parse_arguments(p, &node->list));
    }
    return DSC_OK;
}

static bool begins_test_argument(const chat_parser *p)
{
    switch (p->token->type) {
    case CHAT_T_STRING: case CHAT_T_INTEGER: case CHAT_T_FLOAT: case '[': case '{': return true;
    case CHAT_T_NAME: return !chat_at_name(p, "else") && !chat_at_name(p, "or") && !chat_at_name(p, "and");
    default: return false;
    }
}

static dsc_status parse_test(chat_parser *p, chat_node *value, chat_node **out)
{
    chat_node *node;
    DSC_TRY(chat_new_node(p, CHAT_N_TEST, &node));
    p->token++;
    const bool negated = chat_skip_name(p, "not");
    if (p->token->type != CHAT_T_NAME)
        return chat_unexpected(p, "the name of a test");
    p->r->at = p->token->at;
    const int test = chat_find_test(p->token->name->text, p->token->name->bytes);
    if (test < 0)
        return chat_no_test(p->r, p->token->name->text, p->token->name->bytes);
    node->value.id = test;
    node->a = value;
    p->token++;
    if (p->token->type == '(') {
        DSC_TRY(parse_arguments(p, &node->list));
    } else if (begins_test_argument(p)) {
        if (chat_at_name(p, "is"))
            return chat_unexpected(p, "one test; join several by `and`");
        DSC_TRY(parse_primary(p, &node->list));
        DSC_TRY(parse_postfix(p, &node->list));
    }
    *out = node;
    if (!negated)
        return DSC_OK;
    DSC_TRY(chat_new_node(p, CHAT_N_NOT, out));
    (*out)->a = node;
    return DSC_OK;
}

static dsc_status parse_filters_and_tests(chat_parser *p, chat_node **node)
{
    for (;;) {
        chat_node *value = *node;
        if (p->token->type == '|')
            DSC_TRY(chat_parse_filters(p, value, false, node));
        else if (chat_at_name(p, "is"))
            DSC_TRY(parse_test(p, value, node));
        else if (p->token->type == '(')
            DSC_TRY(parse_call(p, value, node));
        else
            return DSC_OK;
    }
}

/* ---- Operators ---- */

static dsc_status parse_unary(chat_parser *p, bool with_filters, chat_node **out)
{
    DSC_TRY(nest(p));
    if (p->token->type == '-' || p->token->type == '+') {
        DSC_TRY(chat_new_node(p, p->token->type == '-' ? CHAT_N_NEGATIVE : CHAT_N_POSITIVE, out));
        chat_node *sign = *out;
        p->token++;
        DSC_TRY(parse_unary(p, false, &sign->a));
    } else {
        DSC_TRY(parse_primary(p, out));
    }
    DSC_TRY(parse_postfix(p, out));
    if (with_filters)
        DSC_TRY(parse_filters_and_tests(p, out));
    p->nesting--;
    return DSC_OK;
}

/* Levels of left-associative operators, tightest first. The concatenation (level 2) is one node with all operands. */
static dsc_status parse_binary(chat_parser *p, int level, chat_node **out)
{
    static const uint8_t operators[4][5] = {
        { CHAT_T_POW }, { '*', '/', CHAT_T_FLOORDIV, '%' }, { '~' }, { '+', '-' }
    };
    chat_node **last = NULL; /* end of the operands of a concatenation */
    if (level < 0)
        return parse_unary(p, true, out);
    DSC_TRY(parse_binary(p, level - 1, out));
    while (memchr(operators[level], p->token->type, sizeof operators[level]) != NULL && p->token->type != CHAT_T_END) {
        chat_node *left = *out, *node = left;
        const uint8_t op = p->token->type;
        if (op != '~' || last == NULL) {
            DSC_TRY(chat_new_node(p, op == '~' ? CHAT_N_CONCAT : CHAT_N_BINARY, &node));
            node->op = op;
            node->a = left;
            node->list = left;
            *out = node;
            last = &left->next;
        }
        p->token++;
        if (op != '~') {
            DSC_TRY(parse_binary(p, level - 1, &node->b));
            continue;
        }
        DSC_TRY(parse_binary(p, level - 1, last));
        last = &(*last)->next;
    }
    return DSC_OK;
}

static int compare_operator(chat_parser *p)
{
    switch (p->token->type) {
    case CHAT_T_EQ: case CHAT_T_NE: case CHAT_T_GE: case CHAT_T_LE: case '<': case '>': return p->token->type;
    default: break;
    }
    if (chat_at_name(p, "in"))
        return CHAT_OP_IN;
    if (!chat_at_name(p, "not"))
        return 0;
    p->token++;
    const bool is_not_in = chat_at_name(p, "in");
    if (!is_not_in)
        p->token--;
    return is_not_in ? CHAT_OP_NOT_IN : 0;
}

static dsc_status parse_compare(chat_parser *p, chat_node **out)
{
    chat_node **last = NULL;
    DSC_TRY(parse_binary(p, 3, out));
    for (int op = compare_operator(p); op != 0; op = compare_operator(p)) {
        chat_node *first = *out;
        if (last == NULL) {
            DSC_TRY(chat_new_node(p, CHAT_N_COMPARE, out));
            (*out)->a = first;
            last = &(*out)->list;
        }
        DSC_TRY(chat_new_node(p, CHAT_N_COMPARE, last));
        (*last)->op = (uint8_t)op;
        p->token++;
        DSC_TRY(parse_binary(p, 3, &(*last)->a));
        last = &(*last)->next;
    }
    return DSC_OK;
}

static dsc_status parse_not(chat_parser *p, chat_node **out)
{
    if (!chat_at_name(p, "not"))
        return parse_compare(p, out);
    DSC_TRY(nest(p));
    DSC_TRY(chat_new_node(p, CHAT_N_NOT, out));
    p->token++;
    DSC_TRY(parse_not(p, &(*out)->a));
    p->nesting--;
    return DSC_OK;
}

static dsc_status parse_and(chat_parser *p, chat_node **out)
{
    DSC_TRY(parse_not(p, out));
    while (chat_at_name(p, "and")) {
        chat_node *left = *out;
        DSC_TRY(chat_new_node(p, CHAT_N_AND, out));
        p->token++;
        (*out)->a = left;
        DSC_TRY(parse_not(p, &(*out)->b));
    }
    return DSC_OK;
}

static dsc_status parse_or(chat_parser *p, chat_node **out)
{
    DSC_TRY(parse_and(p, out));
    while (chat_at_name(p, "or")) {
        chat_node *left = *out;
        DSC_TRY(chat_new_node(p, CHAT_N_OR, out));
        p->token++;
        (*out)->a = left;
        DSC_TRY(parse_and(p, &(*out)->b));
    }
    return DSC_OK;
}

dsc_status chat_parse_expression(chat_parser *p, bool with_condition, chat_node **out)
{
    DSC_TRY(nest(p));
    DSC_TRY(parse_or(p, out));
    while (with_condition && chat_at_name(p, "if")) {
        chat_node *value = *out, *node;
        DSC_TRY(chat_new_node(p, CHAT_N_CONDITION, &node));
        p->token++;
        DSC_TRY(parse_or(p, &node->a));
        node->b = value;
        if (chat_skip_name(p, "else"))
            DSC_TRY(chat_parse_expression(p, true, &node->c));
        *out = node;
    }
    p->nesting--;
    return DSC_OK;
}

/* Several expressions with commas are a tuple; with_condition false leaves `if` to the statement. */
dsc_status chat_parse_tuple(chat_parser *p, bool with_condition, bool in_parentheses, chat_node **out)
{
    chat_node *tuple = NULL, *first = NULL, **last = &first;
    const chat_token *start = p->token;
    bool is_tuple = false;
    for (;;) {
        const int type = p->token->type;
        if (type == CHAT_T_VARIABLE_END || type == CHAT_T_BLOCK_END || type == ')' ||
            (!with_condition && chat_at_name(p, "recursive")))
            break;
        DSC_TRY(chat_parse_expression(p, with_condition, last));
        last = &(*last)->next;
        if (!chat_skip(p, ','))
            break;
        is_tuple = true;
    }
    *out = first;
    if (first != NULL && !is_tuple)
        return DSC_OK;
    if (first == NULL && !in_parentheses)
        return chat_unexpected(p, "an expression");
    DSC_TRY(chat_new_node(p, CHAT_N_TUPLE, &tuple));
    tuple->at = start->at;
    tuple->list = first;
    *out = tuple;
    return DSC_OK;
}
