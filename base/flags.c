/* flags.c - the parser that reads a command line by its table, and the writer of the help page.
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/flags.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/strings.h"

#define NAME_BYTES 80       /* size of an unknown flag in a message */
#define SUGGEST_DISTANCE 3  /* a flag that is further away is another flag */
#define PAGE_COLUMNS 100
#define ROWS_MAX 128 /* flags of a command */
#define USUAL_EXIT_CODES "0 done; 1 failed; 2 wrong command line or input"
#define HELP_COLUMN 30      /* first column of a row's explanation */

static size_t row_count(const dsc_flag_command *command) { return command->flag_count + command->shared.count; }

static const dsc_flag *row_at(const dsc_flag_command *command, size_t i)
{
    return i < command->flag_count ? &command->flags[i] : &command->shared.flags[i - command->flag_count];
}

static void *field_of(const dsc_flag_command *command, const dsc_flag *flag, void *out)
{
    const bool own = flag >= command->flags && flag < command->flags + command->flag_count;
    return (char *)out + (own ? 0 : command->shared.offset) + flag->offset;
}

static bool takes_value(const dsc_flag *flag) { return flag->kind != DSC_FLAG_BOOL && flag->kind != DSC_FLAG_SWITCH; }

static bool looks_like_flag(const char *text) { return text[0] == '-' && text[1] != 0; }

bool dsc_flag_is(const char *text, size_t bytes, const char *name)
{
    if (strlen(name) != bytes)
        return false;
    for (size_t i = 0; i < bytes; i++) {
        const bool dashes = i >= 2 && (text[i] == '-' || text[i] == '_') && (name[i] == '-' || name[i] == '_');
        if (text[i] != name[i] && !dashes)
            return false;
    }
    return true;
}

/* A whole number of any size; one that int64_t cannot hold becomes the nearest that it can. */
static bool read_whole(const char *text, int64_t *out)
{
    char *end;
    const long long value = strtoll(text, &end, 10);
    const bool number = strchr("+-0123456789", text[0]) != NULL; /* strtoll would skip blanks of all kinds */
    *out = value;
    return end != text && *end == 0 && number;
}

bool dsc_flag_integer(const char *text, int64_t min, int64_t max, int64_t *out)
{
    int64_t value;
    errno = 0;
    if (!read_whole(text, &value) || errno != 0 || value < min || value > max)
        return false;
    *out = value;
    return true;
}

static const dsc_flag *find_row(const dsc_flag_command *command, const char *text, size_t bytes)
{
    for (size_t i = 0; i < row_count(command); i++) {
        const dsc_flag *flag = row_at(command, i);
        if (dsc_flag_is(text, bytes, flag->name) || (flag->alias != NULL && dsc_flag_is(text, bytes, flag->alias)))
            return flag;
    }
    return NULL;
}

/* ---- errors ---- */

/* Every row has two names; --help comes last. NULL: a name that is not suggested. */
static const char *name_at(const dsc_flag_command *command, int32_t i)
{
    if ((size_t)i == 2 * row_count(command))
        return "--help";
    const dsc_flag *flag = row_at(command, (size_t)i / 2);
    const char *name = i % 2 == 0 ? flag->name : flag->alias;
    return flag->help == NULL || name == NULL || name[1] != '-' ? NULL : name;
}

/* Copies a flag with each '_' behind the dashes as '-', because the two are equal. */
static void normalise(char *out, size_t out_bytes, const char *name)
{
    snprintf(out, out_bytes, "%s", name);
    for (size_t i = 2; i < strlen(out); i++)
        out[i] = out[i] == '_' ? '-' : out[i];
}

static const char *nearest_flag(const dsc_flag_command *command, const char *name)
{
    char wanted[NAME_BYTES], candidate[NAME_BYTES];
    const char *best = NULL;
    normalise(wanted, sizeof wanted, name);
    int limit = (int)(strlen(wanted) - 2) / 2; /* half of the letters, so that a short name is not any other */
    limit = limit < SUGGEST_DISTANCE ? limit : SUGGEST_DISTANCE;
    for (int32_t i = 0; i <= (int32_t)(2 * row_count(command)) && limit >= 0; i++) {
        const char *known = name_at(command, i);
        if (known == NULL)
            continue;
        normalise(candidate, sizeof candidate, known);
        const int distance = dsc_string_distance(wanted, candidate, limit);
        if (distance <= limit) {
            best = known;
            limit = distance - 1;
        }
    }
    return best;
}

static dsc_status fail_unknown(const dsc_flag_command *command, const char *text, size_t bytes, dsc_error *err)
{
    char name[NAME_BYTES], program[96] = "";
    snprintf(name, sizeof name, "%.*s", (int)(bytes < sizeof name ? bytes : sizeof name - 1), text);
    if (command->ends_at_program)
        snprintf(program, sizeof program, "; arguments of %s come after it", command->positionals[0].name);
    const char *best = nearest_flag(command, name);
    if (best != NULL)
        return DSC_FAIL(err, DSC_ERR_INPUT, name, "unknown flag; did you mean %s? \"%s --help\" explains all%s", best,
                        command->name, program);
    return DSC_FAIL(err, DSC_ERR_INPUT, name, "unknown flag; \"%s --help\" explains all flags%s", command->name,
                    program);
}

static dsc_status fail_choice(const dsc_flag *flag, const char *value, dsc_error *err)
{
    char quoted[64], list[256] = "";
    size_t used = 0;
    for (const char *const *choice = flag->choices; *choice != NULL && used < sizeof list; choice++) {
        const char *before = choice == flag->choices ? "" : choice[1] == NULL ? " or " : ", ";
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", before, *choice);
    }
    return DSC_FAIL(err, DSC_ERR_INPUT, flag->name, "%s is unknown; expected %s",
                    dsc_string_quote(quoted, sizeof quoted, value), list);
}

/* ---- values ---- */

static dsc_status add_text(const char *where, dsc_flag_list *list, const char *value, dsc_error *err)
{
    if (list->count == list->capacity)
        return DSC_FAIL(err, DSC_ERR_INPUT, where, "more than %d of them; give fewer", (int)list->capacity);
    list->text[list->count++] = value;
    return DSC_OK;
}

dsc_status dsc_flag_set_integer(const dsc_flag *flag, const char *value, int64_t *out, dsc_error *err)
{
    char quoted[64];
    int64_t read = 0;
    if (dsc_flag_integer(value, flag->min, flag->max, out))
        return DSC_OK;
    dsc_string_quote(quoted, sizeof quoted, value);
    if (!read_whole(value, &read))
        return DSC_FAIL(err, DSC_ERR_INPUT, flag->name, "%s is not a whole number; expected %lld to %lld", quoted,
                        (long long)flag->min, (long long)flag->max);
    if (read < flag->min)
        return DSC_FAIL(err, DSC_ERR_INPUT, flag->name, "%s is too small; expected %lld to %lld", quoted,
                        (long long)flag->min, (long long)flag->max);
    return DSC_FAIL(err, DSC_ERR_INPUT, flag->name, "%s is more than the limit of %lld; %s", quoted,
                    (long long)flag->max, flag->above != NULL ? flag->above : "give a smaller number");
}

static dsc_status set_int32(const dsc_flag *flag, const char *value, int32_t *out, dsc_error *err)
{
    int64_t number = -1;
    if (!flag->minus_one || strcmp(value, "-1") != 0)
        DSC_TRY(dsc_flag_set_integer(flag, value, &number, err));
    *out = (int32_t)number;
    return DSC_OK;
}

static dsc_status set_number(const dsc_flag *flag, const char *value, double *out, dsc_error *err)
{
    char *end, quoted[64];
    const double number = strtod(value, &end);
    if (end == value || *end != 0 || !(number >= flag->low && number <= flag->high))
        return DSC_FAIL(err, DSC_ERR_INPUT, flag->name, "%s is %s; expected %g to %g",
                        dsc_string_quote(quoted, sizeof quoted, value),
                        end == value || *end != 0 || number != number ? "not a number"
                        : number < flag->low                          ? "too small"
                                                                      : "too large",
                        flag->low, flag->high);
    *out = number;
    return DSC_OK;
}

static dsc_status set_value(const dsc_flag_command *command, const dsc_flag *flag, const char *value, void *out,
                            dsc_error *err)
{
    void *field = field_of(command, flag, out);
    switch (flag->kind) {
    case DSC_FLAG_BOOL: *(bool *)field = true; return DSC_OK;
    case DSC_FLAG_INTEGER: return dsc_flag_set_integer(flag, value, field, err);
    case DSC_FLAG_INT32: return set_int32(flag, value, field, err);
    case DSC_FLAG_NUMBER: return set_number(flag, value, field, err);
    case DSC_FLAG_CALL:
    case DSC_FLAG_SWITCH: return flag->set(field_of(command, flag, out), flag, value, err);
    case DSC_FLAG_CHOICE:
        for (const char *const *choice = flag->choices; *choice != NULL; choice++)
            if (strcmp(*choice, value) == 0) {
                *(const char **)field = *choice;
                return DSC_OK;
            }
        return fail_choice(flag, value, err);
    case DSC_FLAG_REFUSED: return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, flag->name, "%s", flag->help);
    case DSC_FLAG_TEXT:
    case DSC_FLAG_LIST: break;
    }
    if (value[0] == 0 && !flag->allow_empty)
        return DSC_FAIL(err, DSC_ERR_INPUT, flag->name, "the value is empty; expected %s", flag->value);
    if (flag->kind == DSC_FLAG_LIST)
        return add_text(flag->name, field, value, err);
    *(const char **)field = value;
    return DSC_OK;
}

/* ---- the parse ---- */

/* One command line and how far it is read. */
typedef struct cursor {
    const dsc_flag_command *command;
    int argc, at; /* at: index of the last argument used */
    char **argv;
    void *out;
    uint64_t given[ROWS_MAX / 64]; /* bit i: row i */
    int32_t position;
    bool ended; /* by a flag with `ends` */
} cursor;

/* The text behind a flag, or NULL. */
static const char *next_value(const cursor *c, const dsc_flag *flag)
{
    const char *text = c->at + 1 < c->argc ? c->argv[c->at + 1] : NULL;
    if (text == NULL || !c->command->strict_values || !looks_like_flag(text) || strchr(text, ' ') != NULL)
        return text;
    return flag->minus_one && strcmp(text, "-1") == 0 ? text : NULL;
}

/* `inside` is the value behind '=', or NULL. */
static dsc_status parse_value(cursor *c, const dsc_flag *flag, const char *inside, dsc_error *err)
{
    const char *value = inside != NULL ? inside : next_value(c, flag);
    if (value == NULL)
        return DSC_FAIL(err, DSC_ERR_INPUT, flag->name, "needs a value: %s", flag->value);
    c->at += inside == NULL;
    DSC_TRY(set_value(c->command, flag, value, c->out, err));
    while (flag->greedy && inside == NULL && c->at + 1 < c->argc && !looks_like_flag(c->argv[c->at + 1]))
        DSC_TRY(set_value(c->command, flag, c->argv[++c->at], c->out, err));
    return DSC_OK;
}

static dsc_status parse_row(cursor *c, const dsc_flag *flag, const char *inside, dsc_error *err)
{
    if (takes_value(flag) && flag->kind != DSC_FLAG_REFUSED)
        return parse_value(c, flag, inside, err);
    if (inside != NULL && flag->kind != DSC_FLAG_REFUSED)
        return DSC_FAIL(err, DSC_ERR_INPUT, flag->name, "takes no value, but \"%.60s\" was given", inside);
    return set_value(c->command, flag, "", c->out, err);
}

/* Handles argv[at] and the values behind it. */
static dsc_status parse_flag(cursor *c, dsc_error *err)
{
    const char *text = c->argv[c->at], *equals = strchr(text, '=');
    const size_t bytes = equals != NULL ? (size_t)(equals - text) : strlen(text);
    const dsc_flag *flag = find_row(c->command, text, bytes);
    if (flag == NULL)
        return fail_unknown(c->command, text, bytes, err);
    for (size_t i = 0; i < row_count(c->command); i++)
        c->given[i / 64] |= row_at(c->command, i) == flag ? UINT64_C(1) << i % 64 : 0;
    const dsc_status status = parse_row(c, flag, equals != NULL ? equals + 1 : NULL, err);
    if (status != DSC_OK && err != NULL && strcmp(err->where, flag->name) == 0)
        snprintf(err->where, sizeof err->where, "%.*s", (int)bytes, text); /* the spelling that the user knows */
    c->ended = flag->ends;
    return status;
}

static dsc_status parse_positional(cursor *c, dsc_error *err)
{
    const dsc_flag_command *command = c->command;
    const char *text = c->argv[c->at];
    if (command->positional_count == 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, text, "unknown argument; \"%s --help\" explains all", command->name);
    const dsc_positional *last = &command->positionals[command->positional_count - 1];
    const bool is_last = (size_t)c->position + 1 >= command->positional_count;
    const dsc_positional *row = is_last ? last : &command->positionals[c->position];
    const size_t used = (size_t)c->position++;
    if (row->max == 1) {
        if (used >= command->positional_count)
            return DSC_FAIL(err, DSC_ERR_INPUT, text, command->positional_count == 1 ? "one %s at a time; \"%s --help\""
                            " explains" : "one %s too many; \"%s --help\" explains", row->kind, command->name);
        *(const char **)((char *)c->out + row->offset) = text;
        return DSC_OK;
    }
    return add_text(text, (dsc_flag_list *)((char *)c->out + row->offset), text, err);
}

/* The program begins at argv[first]. */
static void set_program(const cursor *c, int first)
{
    dsc_flag_program *program = (dsc_flag_program *)(void *)((char *)c->out + c->command->positionals[0].offset);
    *program = (dsc_flag_program){ c->argv + first, c->argc - first };
}

static dsc_status check_missing(const cursor *c, dsc_error *err)
{
    const dsc_flag_command *command = c->command;
    for (size_t i = 0; i < command->positional_count && !command->ends_at_program; i++) {
        const dsc_positional *row = &command->positionals[i];
        const void *field = (const char *)c->out + row->offset;
        const char *const text = row->max == 1 ? *(const char *const *)field : NULL;
        const int32_t count = row->max == 1 ? text != NULL && text[0] != 0 : ((const dsc_flag_list *)field)->count;
        if (count < row->min)
            return DSC_FAIL(err, DSC_ERR_INPUT, command->name, "%s is missing; \"%s --help\" explains", row->name,
                            command->name);
    }
    for (size_t i = 0; i < row_count(command); i++) {
        const dsc_flag *flag = row_at(command, i);
        if (flag->required && (c->given[i / 64] & UINT64_C(1) << i % 64) == 0)
            return DSC_FAIL(err, DSC_ERR_INPUT, command->name, "%s %s is missing; \"%s --help\" explains", flag->name,
                            flag->value, command->name);
    }
    return DSC_OK;
}

dsc_status dsc_flags_parse(const dsc_flag_command *command, int argc, char **argv, void *out, bool *help,
                           dsc_error *err)
{
    cursor c = { .command = command, .argc = argc, .argv = argv, .out = out, .at = 1 };
    const bool program = command->ends_at_program;
    DSC_ASSERT(row_count(command) <= ROWS_MAX);
    DSC_ASSERT(!program || (command->positional_count == 1 && command->positionals[0].min == 0));
    *help = false;
    if (program)
        set_program(&c, argc);
    for (; c.at < argc && !c.ended; c.at++) {
        const char *text = argv[c.at];
        if (strcmp(text, "--help") == 0 || strcmp(text, "-h") == 0) {
            *help = true;
            return DSC_OK;
        }
        const bool ends_flags = program && (!looks_like_flag(text) || strcmp(text, "--") == 0);
        if (ends_flags) {
            set_program(&c, c.at + (looks_like_flag(text) ? 1 : 0));
            break;
        }
        if (looks_like_flag(text))
            DSC_TRY(parse_flag(&c, err));
        else
            DSC_TRY(parse_positional(&c, err));
    }
    return c.ended ? DSC_OK : check_missing(&c, err);
}

/* ---- the help page ---- */

typedef struct page {
    char *out;
    size_t bytes, used; /* `used` counts on when the page does not fit */
    size_t column;
} page;

static void put(page *p, const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++, p->used++) {
        if (p->used + 1 < p->bytes)
            p->out[p->used] = text[i];
        p->column = text[i] == '\n' ? 0 : p->column + 1;
    }
}

static void put_text(page *p, const char *text) { put(p, text, strlen(text)); }

static void indent(page *p, size_t column)
{
    while (p->column < column)
        put_text(p, " ");
}

/* Words of `text`, wrapped at PAGE_COLUMNS, with following lines at column `left`. A newline in the text stays, and so
 * does a whole line that begins with a blank. */
static void put_wrapped(page *p, const char *text, size_t left)
{
    bool first = true; /* of its line */
    while (*text != 0) {
        if (first && *text == ' ') {
            const size_t line = strcspn(text, "\n");
            put(p, text, line);
            text += line;
            continue;
        }
        const size_t bytes = strcspn(text, " \n");
        if (*text == '\n' || (!first && p->column + 1 + bytes > PAGE_COLUMNS)) {
            put_text(p, "\n");
            first = true;
        }
        if (*text == '\n') {
            text++;
            continue;
        }
        indent(p, left);
        if (!first)
            put_text(p, " ");
        put(p, text, bytes);
        first = false;
        text += bytes;
        text += strspn(text, " ");
    }
}

static void put_row(page *p, const char *head, const char *help)
{
    put_text(p, "  ");
    put_text(p, head);
    if (p->column + 2 > HELP_COLUMN)
        put_text(p, "\n");
    indent(p, HELP_COLUMN);
    put_wrapped(p, help, HELP_COLUMN);
    put_text(p, "\n");
}

/* "[--flag VALUE]" for the usage line, "-o, --flag VALUE" for the list. */
static void usage_of(const dsc_flag *flag, char *out, size_t out_bytes)
{
    snprintf(out, out_bytes, "%s%s%s%s%s", flag->required ? "" : "[", flag->name, flag->value != NULL ? " " : "",
             flag->value != NULL ? flag->value : "", flag->required ? "" : "]");
    if (flag->kind == DSC_FLAG_LIST || flag->greedy) {
        const size_t used = strlen(out);
        snprintf(out + used, out_bytes - used, "...");
    }
}

static void put_usage(page *p, const dsc_flag_command *command)
{
    char item[160];
    put_text(p, "usage: ");
    put_text(p, command->name);
    if (command->usage != NULL) {
        put_text(p, " ");
        put_text(p, command->usage);
        put_text(p, "\n\n");
        return;
    }
    for (size_t i = 0; i < row_count(command) + command->positional_count; i++) {
        if (i < command->positional_count) {
            const dsc_positional *row = &command->positionals[i];
            snprintf(item, sizeof item, "%s%s%s%s", row->min == 0 ? "[" : "", row->name, row->max != 1 ? "..." : "",
                     row->min == 0 ? "]" : "");
        } else {
            const dsc_flag *flag = row_at(command, i - command->positional_count);
            if (flag->help == NULL)
                continue;
            usage_of(flag, item, sizeof item);
        }
        if (p->column + 1 + strlen(item) > PAGE_COLUMNS) {
            put_text(p, "\n");
            indent(p, 7);
        }
        put_text(p, " ");
        put_text(p, item);
    }
    put_text(p, "\n\n");
}

static void put_flag(page *p, const dsc_flag *flag)
{
    char head[160], help[600];
    snprintf(head, sizeof head, "%s%s%s%s%s", flag->name, flag->alias != NULL ? ", " : "",
             flag->alias != NULL ? flag->alias : "", flag->value != NULL ? " " : "",
             flag->value != NULL ? flag->value : "");
    const bool whole = flag->kind == DSC_FLAG_INTEGER || flag->kind == DSC_FLAG_INT32;
    if (whole && flag->max < INT64_C(1000000000))
        snprintf(help, sizeof help, "%s (%lld to %lld)", flag->help, (long long)flag->min, (long long)flag->max);
    else
        snprintf(help, sizeof help, "%s", flag->help);
    put_row(p, head, help);
}

size_t dsc_flags_help(const dsc_flag_command *command, char *out, size_t out_bytes)
{
    page p = { .out = out, .bytes = out_bytes };
    put_usage(&p, command);
    put_wrapped(&p, command->description, 0);
    put_text(&p, "\n\n");
    for (size_t i = 0; i < command->positional_count; i++)
        put_row(&p, command->positionals[i].name, command->positionals[i].help);
    for (size_t i = 0; i < row_count(command); i++)
        if (row_at(command, i)->help != NULL)
            put_flag(&p, row_at(command, i));
    put_row(&p, "--help, -h", "print this page");
    if (command->notes != NULL) {
        put_text(&p, "\n");
        put_wrapped(&p, command->notes, 0);
        put_text(&p, "\n");
    }
    put_text(&p, "\nexit codes: ");
    const char *codes = command->exit_codes != NULL ? command->exit_codes : USUAL_EXIT_CODES;
    put_wrapped(&p, codes, 12);
    put_text(&p, "\n");
    if (out_bytes > 0)
        out[p.used < out_bytes ? p.used : out_bytes - 1] = 0;
    return p.used;
}
