/* chat_internal.h - values, nodes, tables and the state of one parse or render.
 *
 * All memory of a render comes from one arena and lives until its end, so values are passed by copy and never freed.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_TEXT_CHAT_CHAT_INTERNAL_H
#define DSC_ENGINE_TEXT_CHAT_CHAT_INTERNAL_H

#include <string.h>

#include "engine/text/chat/chat.h"

typedef struct chat_run chat_run;
typedef struct chat_node chat_node;
typedef struct chat_scope chat_scope;
typedef struct chat_list chat_list;
typedef struct chat_dict chat_dict;
typedef struct chat_loop chat_loop;
typedef struct chat_args chat_args;

/* ---- Values ---- */

typedef enum chat_kind {
    CHAT_MISSING, /* an argument that was not passed; never seen by a template */
    CHAT_UNDEFINED,
    CHAT_NONE,
    CHAT_BOOL,
    CHAT_INT,
    CHAT_FLOAT,
    CHAT_STRING,
    CHAT_LIST,
    CHAT_TUPLE,
    CHAT_DICT,
    CHAT_VIEW,     /* keys, values or items of a dict */
    CHAT_RANGE,
    CHAT_ITERATOR, /* result of a lazy filter: values that are read once */
    CHAT_NAMESPACE,
    CHAT_MACRO,
    CHAT_FUNCTION,
    CHAT_METHOD,
    CHAT_LOOP,
    CHAT_KIND_COUNT
} chat_kind;
#define CHAT_BIT(kind) (UINT32_C(1) << (kind))

/* Reasons of an undefined value, in chat_value.flag. */
enum { CHAT_NO_NAME, CHAT_NO_MEMBER, CHAT_NO_VALUE, CHAT_UNSAFE };
/* Views of a dict, in chat_value.flag. */
enum { CHAT_KEYS, CHAT_VALUES, CHAT_ITEMS };

typedef struct chat_range {
    int64_t start, step, count;
    int64_t stop; /* as it was given; of a slice: 0 */
} chat_range;

typedef struct chat_iterator {
    chat_list *list;
    int64_t next;
    const dsc_error *failure; /* error of the filter after the last value; raised at the read after that value */
} chat_iterator;

typedef struct chat_value {
    uint8_t kind;
    uint8_t flag; /* see the enums; of a string: it is the result of `safe` */
    int32_t id;   /* row of the table of functions or methods; kind of the object without a member */
    union {
        bool boolean;
        int64_t integer;
        double number;
        const char *text; /* text of a string; name or reason of an undefined value */
        chat_list *list;  /* also of a tuple */
        chat_dict *dict;  /* also of a view and of a namespace */
        chat_range *range;
        chat_iterator *iterator;
        struct chat_macro *macro;
        chat_loop *loop;
        struct chat_value *self; /* object of a method */
    };
    int64_t bytes; /* of text */
} chat_value;

struct chat_list {
    chat_value *item;
    int64_t count, capacity;
};

typedef struct chat_entry {
    chat_value key, value;
    uint64_t hash;
} chat_entry;

/* In order of insertion; the index exists from 9 entries on. */
struct chat_dict {
    chat_entry *entry;
    int64_t count, capacity;
    int32_t *index; /* [mask + 1], -1: empty */
    uint64_t mask;
};

/* Bytes that grow inside of the arena. */
typedef struct chat_bytes {
    char *ptr;
    int64_t bytes, capacity;
} chat_bytes;

static inline chat_value chat_none(void) { return (chat_value){ .kind = CHAT_NONE }; }
static inline chat_value chat_bool(bool b) { return (chat_value){ .kind = CHAT_BOOL, .boolean = b }; }
static inline chat_value chat_int(int64_t i) { return (chat_value){ .kind = CHAT_INT, .integer = i }; }
static inline chat_value chat_float(double f) { return (chat_value){ .kind = CHAT_FLOAT, .number = f }; }
static inline chat_value chat_string(const char *text, int64_t bytes)
{
    return (chat_value){ .kind = CHAT_STRING, .text = text, .bytes = bytes };
}
static inline bool chat_is(const chat_value *v, const char *text)
{
    return v->kind == CHAT_STRING && v->bytes == (int64_t)strlen(text) && memcmp(v->text, text, (size_t)v->bytes) == 0;
}

/* ---- Nodes ---- */

typedef enum chat_node_kind {
    /* expressions */
    CHAT_N_CONST, CHAT_N_NAME, CHAT_N_LIST, CHAT_N_TUPLE, CHAT_N_DICT, CHAT_N_MEMBER, CHAT_N_ITEM, CHAT_N_SLICE,
    CHAT_N_CALL, CHAT_N_FILTER, CHAT_N_TEST, CHAT_N_CONDITION, CHAT_N_AND, CHAT_N_OR, CHAT_N_NOT, CHAT_N_NEGATIVE,
    CHAT_N_POSITIVE, CHAT_N_COMPARE, CHAT_N_BINARY, CHAT_N_CONCAT, CHAT_N_BLOCK_TEXT,
    /* arguments of a call */
    CHAT_N_KEYWORD, CHAT_N_STAR, CHAT_N_STAR_STAR,
    /* targets of an assignment, with CHAT_N_NAME and CHAT_N_TUPLE */
    CHAT_N_NAMESPACE_MEMBER,
    /* statements */
    CHAT_N_DATA, CHAT_N_OUTPUT, CHAT_N_IF, CHAT_N_FOR, CHAT_N_SET, CHAT_N_SET_BLOCK, CHAT_N_MACRO, CHAT_N_CALL_BLOCK,
    CHAT_N_FILTER_BLOCK, CHAT_N_WITH, CHAT_N_GENERATION, CHAT_N_BREAK, CHAT_N_CONTINUE
} chat_node_kind;

/* A name of a template; equal names are one object. */
typedef struct chat_name {
    const char *text;
    int64_t bytes;
    int32_t id;
    struct chat_name *next;
} chat_name;

/* Fields by kind.
 * - NAME, MEMBER (a.name), KEYWORD (name=a), NAMESPACE_MEMBER (name.name2), MACRO: name
 * - ITEM a[b]; SLICE a:b:c, each may be NULL; CALL a(list); FILTER a|table[op](list); TEST a is table[op](list)
 * - CONDITION: b if a else c (c may be NULL); COMPARE: a, then list of nodes with op and a; BINARY: a op b
 * - LIST, TUPLE, DICT (keys and values alternate), CONCAT: list
 * - IF: a, list (body), c (the next IF of the chain) or orelse; FOR: for a in b if c, list, orelse
 * - SET: a = b; SET_BLOCK: a, b (filters or NULL), list; MACRO: params, list; CALL_BLOCK: a (CALL), params, list
 * - FILTER_BLOCK: b, list; WITH: params (name = a), list; GENERATION: list; params: KEYWORD nodes, a is the default */
struct chat_node {
    uint8_t kind, op;
    bool uses_varargs, uses_kwargs, uses_caller; /* MACRO, CALL_BLOCK */
    uint32_t at; /* byte in the source */
    const chat_name *name, *name2;
    chat_node *a, *b, *c;
    chat_node *list, *orelse, *params;
    chat_node *next;
    chat_value value;
};

/* Types of tokens; operators have their own. */
typedef enum chat_token_type {
    CHAT_T_END, CHAT_T_DATA, CHAT_T_VARIABLE_BEGIN, CHAT_T_VARIABLE_END, CHAT_T_BLOCK_BEGIN, CHAT_T_BLOCK_END,
    CHAT_T_NAME, CHAT_T_STRING, CHAT_T_INTEGER, CHAT_T_FLOAT, CHAT_T_FLOORDIV, CHAT_T_POW, CHAT_T_EQ, CHAT_T_NE,
    CHAT_T_GE, CHAT_T_LE, CHAT_T_OPERATOR = 32 /* one character: its code, which is above 32 */
} chat_token_type;
enum { CHAT_OP_IN = 200, CHAT_OP_NOT_IN };

typedef struct chat_token {
    uint8_t type;
    uint32_t at;
    const chat_name *name;
    chat_value value;
} chat_token;

/* ---- State of a parse or of a render ---- */

typedef struct chat_block {
    struct chat_block *next;
} chat_block;

#define CHAT_NAME_BUCKETS 256

struct chat_run {
    dsc_alloc *alloc;
    dsc_error *err;
    const char *source;     /* the template, line ends normalized */
    int64_t source_bytes;
    uint32_t at;            /* place of the work in the source, for errors */
    chat_block *block;      /* arena: newest block first */
    char *free, *free_end;
    int64_t memory_bytes, memory_limit;
    int64_t steps;          /* left */
    uint64_t seed;          /* of hashes */
    int64_t depth, depth_limit;
    bool half_done; /* an error left a macro's output or a loop in the middle: it ends the render */
    /* parse */
    chat_name *bucket[CHAT_NAME_BUCKETS];
    int32_t name_count;
    /* render */
    const dsc_chat_template *chat;
    const dsc_chat_options *options;
    chat_value *global;     /* [name_count]: context variables and functions */
    chat_bytes *out;        /* where statements write */
    chat_bytes root;
    chat_value block_text;  /* input of the filters of a block */
    dsc_chat_output *output;
};

struct dsc_chat_template {
    chat_run parse; /* owns source, names and nodes */
    chat_node *body;
};

struct chat_scope {
    chat_scope *parent;
    const chat_name **name;
    chat_value *value;
    int32_t count, capacity;
    bool captured; /* a macro refers to it */
};

typedef struct chat_macro {
    const chat_node *node; /* MACRO or CALL_BLOCK */
    chat_scope *scope;
} chat_macro;

/* Position in a value that is iterated. */
typedef struct chat_cursor {
    chat_value source;
    int64_t next;
} chat_cursor;

/* A for statement in progress; items are read, and its condition is evaluated, when they are needed. */
struct chat_loop {
    const chat_node *node;
    chat_scope *outer;
    chat_cursor cursor;
    int64_t index0, length; /* -1: unknown */
    chat_value current, before, after;
    bool has_after;
    chat_list *rest; /* items that were read for the length */
    int64_t rest_next;
    chat_scope condition; /* scope of the condition */
};

/* chat_run.c */
/* Sets the error at r->at; returns status. */
dsc_status chat_fail(chat_run *r, dsc_status status, const char *fmt, ...) DSC_PRINTF(3, 4);
dsc_status chat_new(chat_run *r, int64_t count, int64_t bytes_each, void *out_ptr); /* zeroed, aligned to 16 */
dsc_status chat_new_text(chat_run *r, int64_t bytes, char **out);
void chat_run_free(chat_run *r);
dsc_status chat_spend(chat_run *r, int64_t steps); /* fails when no steps are left */
/* Costs of a text: copied; searched or counted; changed or tested character by character. */
static inline int64_t chat_text_steps(int64_t bytes) { return 1 + bytes / 64; }
static inline int64_t chat_scan_steps(int64_t bytes) { return 1 + bytes / 16; }
static inline int64_t chat_char_steps(int64_t bytes) { return 1 + bytes / 4; }
dsc_status chat_enter(chat_run *r); /* a nested evaluation; r->depth-- leaves it */
dsc_status chat_add(chat_run *r, chat_bytes *b, const char *text, int64_t bytes);
dsc_status chat_add_text(chat_run *r, chat_bytes *b, const char *text);
static inline chat_value chat_bytes_value(const chat_bytes *b)
{
    return chat_string(b->ptr != NULL ? b->ptr : "", b->bytes);
}
const chat_name *chat_intern(chat_run *r, const char *text, int64_t bytes); /* NULL: error is set */
const chat_name *chat_find_name(const chat_run *r, const char *text, int64_t bytes); /* NULL: none */

/* lexer.c, parser.c, parse_expression.c */
typedef struct chat_parser {
    chat_run *r;
    const chat_token *token; /* the current one */
    int nesting;
    int loops;               /* for statements around the current one, inside of the innermost function */
    chat_node *macro;        /* the innermost MACRO or CALL_BLOCK, or NULL */
} chat_parser;
dsc_status chat_lex(chat_run *r, chat_token **out);
dsc_status chat_parse(chat_run *r, const chat_token *token, chat_node **body);
dsc_status chat_unexpected(chat_parser *p, const char *expected);
bool chat_at_name(const chat_parser *p, const char *name);
bool chat_skip(chat_parser *p, int type);
bool chat_skip_name(chat_parser *p, const char *name);
dsc_status chat_expect(chat_parser *p, int type, const char *what);
dsc_status chat_new_node(chat_parser *p, chat_node_kind kind, chat_node **out);
dsc_status chat_parse_expression(chat_parser *p, bool with_condition, chat_node **out);
dsc_status chat_parse_tuple(chat_parser *p, bool with_condition, bool in_parentheses, chat_node **out);
dsc_status chat_parse_filters(chat_parser *p, chat_node *input, bool inline_first, chat_node **out);
bool chat_reserved_name(const chat_name *name); /* true, None, ...: a constant, not a variable */

/* values.c */
const char *chat_type_name(chat_kind kind); /* as Python names it */
dsc_status chat_new_list(chat_run *r, chat_kind kind, int64_t capacity, chat_value *out);
dsc_status chat_append(chat_run *r, chat_list *list, chat_value item);
dsc_status chat_new_dict(chat_run *r, chat_value *out);
/* Fails for a key that Python does not hash. */
dsc_status chat_dict_set(chat_run *r, chat_dict *dict, chat_value key, chat_value value);
dsc_status chat_dict_find(chat_run *r, const chat_dict *dict, const chat_value *key, chat_value **out); /* NULL: none */
bool chat_hashable(const chat_value *v);
bool chat_truth(const chat_value *v);
dsc_status chat_equal(chat_run *r, const chat_value *a, const chat_value *b, bool *out);
dsc_status chat_order(chat_run *r, const chat_value *a, const chat_value *b, const char *op, int *out);
dsc_status chat_contains(chat_run *r, const chat_value *container, const chat_value *item, bool *out);
bool chat_length(const chat_value *v, int64_t *out); /* false: it has none */
bool chat_is_integer(const chat_value *v, int64_t *out); /* also of a bool */
bool chat_is_number(const chat_value *v, double *out);
dsc_status chat_undefined_error(chat_run *r, const chat_value *v);
static inline chat_value chat_undefined(int reason, const char *text, int64_t bytes, chat_kind kind)
{
    return (chat_value){ .kind = CHAT_UNDEFINED, .flag = (uint8_t)reason, .id = (int32_t)kind, .text = text,
                         .bytes = bytes };
}

/* iterate.c */
dsc_status chat_iterate(chat_run *r, const chat_value *v, chat_cursor *out); /* fails for what is not iterable */
bool chat_iterable(chat_kind kind);
dsc_status chat_next(chat_run *r, chat_cursor *cursor, chat_value *out, bool *end);
dsc_status chat_to_list(chat_run *r, const chat_value *v, chat_kind kind, chat_value *out); /* a new list */
dsc_status chat_new_iterator(chat_run *r, chat_value list, chat_value *out);

/* python_text.c */
dsc_status chat_str(chat_run *r, const chat_value *v, chat_value *out); /* str(v), never a result of `safe` */
dsc_status chat_add_str(chat_run *r, chat_bytes *b, const chat_value *v);
dsc_status chat_add_repr(chat_run *r, chat_bytes *b, const chat_value *v);
dsc_status chat_add_integer(chat_run *r, chat_bytes *b, int64_t i);
dsc_status chat_add_float(chat_run *r, chat_bytes *b, double f);
bool chat_parse_float(const char *text, int64_t bytes, double *out); /* decimal digits, point, exponent */
dsc_status chat_escape(chat_run *r, const chat_value *v, chat_value *out); /* as HTML, unless it is safe */

/* json.c, json_read.c */
typedef struct chat_json_style {
    bool ascii, sort;
    chat_value indent; /* a string or CHAT_NONE */
    chat_value item_separator, key_separator;
} chat_json_style;
dsc_status chat_add_json(chat_run *r, chat_bytes *b, const chat_value *v, const chat_json_style *style);
dsc_status chat_read_json(chat_run *r, const char *text, int64_t bytes, chat_value *out);

/* python_string.c: characters are code points */
int64_t chat_char_count(const char *text, int64_t bytes);
int64_t chat_char_offset(const char *text, int64_t bytes, int64_t chars);
bool chat_is_space(uint32_t code);
const char *chat_skip_space(const char *at, const char *end);
const char *chat_skip_space_back(const char *at, const char *start); /* end of the text before the blanks */
const char *chat_find(const char *at, const char *end, const chat_value *what); /* NULL: none */
dsc_status chat_find_last(chat_run *r, const char *start, const char *end, const chat_value *what, const char **out);
dsc_status chat_strip(chat_run *r, const chat_value *s, const chat_value *chars, bool left, bool right,
                      chat_value *out);
dsc_status chat_split(chat_run *r, const chat_value *s, const chat_value *separator, int64_t most, bool from_right,
                      chat_value *out);
dsc_status chat_split_lines(chat_run *r, const chat_value *s, bool keep_ends, chat_value *out);
dsc_status chat_replace(chat_run *r, const chat_value *s, const chat_value *from, const chat_value *to, int64_t most,
                        chat_value *out);
dsc_status chat_join(chat_run *r, const chat_value *separator, const chat_value *items, bool any_type, chat_value *out);
dsc_status chat_repeat(chat_run *r, const chat_value *s, int64_t times, chat_value *out);

/* python_case.c */
typedef enum chat_case { CHAT_UPPER, CHAT_LOWER, CHAT_TITLE, CHAT_CAPITALIZE, CHAT_JINJA_TITLE } chat_case;
dsc_status chat_change_case(chat_run *r, const chat_value *s, chat_case how, chat_value *out);

/* python_format.c */
dsc_status chat_percent_format(chat_run *r, const chat_value *format, const chat_value *values, chat_value *out);
dsc_status chat_brace_format(chat_run *r, const chat_value *format, const chat_args *args, chat_value *out);
dsc_status chat_strftime(chat_run *r, const chat_value *format, chat_value *out);

/* operators.c */
dsc_status chat_binary(chat_run *r, int op, const chat_value *a, const chat_value *b, chat_value *out);
dsc_status chat_negative(chat_run *r, const chat_value *a, bool negative, chat_value *out);
dsc_status chat_compare(chat_run *r, int op, const chat_value *a, const chat_value *b, bool *out);

/* members.c */
dsc_status chat_get_member(chat_run *r, const chat_value *object, const char *name, int64_t bytes, chat_value *out);
dsc_status chat_get_item(chat_run *r, const chat_value *object, const chat_value *key, chat_value *out);
dsc_status chat_get_slice(chat_run *r, const chat_value *object, const chat_value part[3], chat_value *out);

/* Arguments of a call. */
typedef struct chat_keyword {
    const char *name;
    int64_t bytes;
    chat_value value;
} chat_keyword;
struct chat_args {
    chat_value *value;
    chat_keyword *keyword;
    int64_t count, keyword_count;
};

/* arguments.c */
#define CHAT_PARAMS_MAX 4
/* Sorts args into the parameters of `params` ("default_value boolean"); the rest is CHAT_MISSING. */
dsc_status chat_bind(chat_run *r, const char *name, const char *params, int required,
                     const chat_args *args, chat_value bound[CHAT_PARAMS_MAX]);
/* An integer argument, `otherwise` when it is missing or None. */
dsc_status chat_integer_argument(chat_run *r, const chat_value *v, const char *name, int64_t otherwise, int64_t *out);

/* filters.c, sequence_filters.c; tests.c; methods.c; functions.c */
typedef dsc_status (*chat_filter_fn)(chat_run *r, const chat_value *v, const chat_value *arg, chat_value *out);
typedef dsc_status (*chat_filter_any_fn)(chat_run *r, const chat_value *v, const chat_args *args, chat_value *out);
typedef struct chat_filter {
    const char *name, *params;
    int required;
    bool lazy;              /* it first makes *out an iterator; its errors are those of reading the iterator */
    chat_filter_fn fn;
    chat_filter_any_fn any; /* instead of fn: it reads its arguments by itself */
} chat_filter;
extern const chat_filter chat_sequence_filter[];
extern const int chat_sequence_filter_count;
int chat_find_filter(const char *name, int64_t bytes); /* -1: none */
dsc_status chat_no_filter(chat_run *r, const char *name, int64_t bytes); /* the error that lists all */
dsc_status chat_apply_filter(chat_run *r, int filter, const chat_value *v, const chat_args *args, chat_value *out);
int chat_find_test(const char *name, int64_t bytes);
dsc_status chat_no_test(chat_run *r, const char *name, int64_t bytes);
dsc_status chat_apply_test(chat_run *r, int test, const chat_value *v, const chat_args *args, bool *out);
int chat_find_method(chat_kind kind, const char *name, int64_t bytes); /* -1: none */
/* A method of Python's that this version does not have. */
bool chat_method_refused(chat_kind kind, const char *name, int64_t bytes);
bool chat_method_unsafe(chat_kind kind, const char *name, int64_t bytes); /* it changes its object */
dsc_status chat_call_method(chat_run *r, const chat_value *method, const chat_args *args, chat_value *out);
int chat_find_function(const char *name, int64_t bytes);
dsc_status chat_call_function(chat_run *r, int function, const chat_args *args, chat_value *out);
const char *chat_function_name(int function);

/* loop.c */
dsc_status chat_loop_member(chat_run *r, chat_loop *loop, const char *name, int64_t bytes, chat_value *out);
dsc_status chat_loop_next(chat_run *r, chat_loop *loop, bool *end); /* to loop->current */
dsc_status chat_run_for(chat_run *r, const chat_node *node, chat_scope *scope, int *jump);

/* scope.c */
dsc_status chat_scope_set(chat_run *r, chat_scope *scope, const chat_name *name, chat_value value);
chat_value chat_scope_get(chat_run *r, const chat_scope *scope, const chat_name *name);
/* Refuses a member of a namespace whose name begins with an underscore, as transformers does. */
dsc_status chat_check_stored(chat_run *r, const chat_value *name);
/* A name, a tuple of targets or a member of a namespace; names go to `scope`. */
dsc_status chat_assign(chat_run *r, chat_scope *scope, const chat_node *target, const chat_value *value);

/* evaluate.c, call.c, statements.c */
dsc_status chat_eval(chat_run *r, const chat_node *node, chat_scope *scope, chat_value *out);
dsc_status chat_eval_args(chat_run *r, const chat_node *list, chat_scope *scope, chat_args *out);
dsc_status chat_call(chat_run *r, const chat_value *callee, const chat_args *args, chat_value *out);
enum { CHAT_GO_ON, CHAT_BREAK, CHAT_CONTINUE };
dsc_status chat_run_list(chat_run *r, const chat_node *list, chat_scope *scope, int *jump);
/* The text that statements write in their own `scope`. */
dsc_status chat_capture(chat_run *r, const chat_node *list, chat_scope *scope, chat_value *out, int *jump);

#endif
