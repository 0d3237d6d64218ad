/* name_regex.c - see name_regex.h. The pattern is read anew for each set of positions that a repetition adds, which
 * needs neither memory nor a compiled form. SPDX-License-Identifier: Apache-2.0 */
#include "base/name_regex.h"

#include <string.h>

#include "base/base.h"

#define NAME_BYTES_MAX 255
#define SET_WORDS 4
#define DEPTH_MAX 32
#define REPEAT_MAX 1000

/* Positions in the name: bit p is in front of byte p. */
typedef struct positions {
    uint64_t word[SET_WORDS];
} positions;

typedef struct name_regex {
    const char *pattern, *at; /* the whole; what is read next */
    const char *name, *where;
    int bytes; /* of the name */
    int depth;
    int64_t *steps_left;
    dsc_error *err;
} name_regex;

static bool has(const positions *set, int p) { return (set->word[p / 64] >> (p % 64) & 1) != 0; }

static void put(positions *set, int p) { set->word[p / 64] |= UINT64_C(1) << (p % 64); }

static bool is_empty(const positions *set) { return (set->word[0] | set->word[1] | set->word[2] | set->word[3]) == 0; }

static void add(positions *set, const positions *more)
{
    for (int i = 0; i < SET_WORDS; i++)
        set->word[i] |= more->word[i];
}

static void take_away(positions *set, const positions *known)
{
    for (int i = 0; i < SET_WORDS; i++)
        set->word[i] &= ~known->word[i];
}

static dsc_status refuse(const name_regex *r, dsc_status status, const char *what)
{
    return DSC_FAIL(r->err, status, r->where, "the regular expression \"%.120s\" has %s at its character %lld",
                    r->pattern, what, (long long)(r->at - r->pattern) + 1);
}

/* ---- characters ---- */

typedef struct char_class {
    uint64_t word[2]; /* ASCII */
} char_class;

static bool in_class(const char_class *c, unsigned char x) { return x < 128 && (c->word[x / 64] >> (x % 64) & 1) != 0; }

static void add_range(char_class *c, int first, int last)
{
    for (int x = first; x <= last; x++)
        c->word[x / 64] |= UINT64_C(1) << (x % 64);
}

static void complement(char_class *c)
{
    c->word[0] = ~c->word[0];
    c->word[1] = ~c->word[1];
}

static bool is_word(unsigned char x)
{
    return (x >= '0' && x <= '9') || (x >= 'A' && x <= 'Z') || (x >= 'a' && x <= 'z') || x == '_';
}

/* Adds what the letter behind a backslash stands for; a character of its own into *single. False: neither. */
static bool add_escape(char_class *c, char letter, int *single)
{
    static const char controls[][2] = { { 'n', '\n' }, { 't', '\t' }, { 'r', '\r' }, { 'f', '\f' }, { 'v', '\v' } };
    char_class set = { { 0 } };
    const char lower = (char)(letter | 0x20);
    *single = -1;
    for (size_t i = 0; i < DSC_COUNT(controls); i++)
        if (letter == controls[i][0])
            *single = controls[i][1];
    if (letter > 0 && !is_word((unsigned char)letter))
        *single = letter;
    if (*single >= 0) {
        add_range(c, *single, *single);
        return true;
    }
    if (letter == 0 || (lower != 'd' && lower != 'w' && lower != 's'))
        return false;
    add_range(&set, '0', lower == 's' ? '0' - 1 : '9');
    if (lower == 'w') {
        add_range(&set, 'A', 'Z');
        add_range(&set, 'a', 'z');
        add_range(&set, '_', '_');
    } else if (lower == 's') {
        add_range(&set, '\t', '\r');
        add_range(&set, ' ', ' ');
    }
    if (letter != lower)
        complement(&set);
    c->word[0] |= set.word[0];
    c->word[1] |= set.word[1];
    return true;
}

/* One character of a class, or a set like \d: *single -1. */
static dsc_status read_class_item(name_regex *r, char_class *c, int *single)
{
    if (*r->at == 0 || (unsigned char)*r->at >= 128)
        return refuse(r, *r->at == 0 ? DSC_ERR_INPUT : DSC_ERR_UNSUPPORTED,
                      *r->at == 0 ? "a class without its ]" : "a character beyond ASCII");
    if (*r->at != '\\') {
        *single = (unsigned char)*r->at++;
        add_range(c, *single, *single);
        return DSC_OK;
    }
    r->at++;
    if (!add_escape(c, *r->at, single))
        return refuse(r, DSC_ERR_UNSUPPORTED, "an escape in a class that is not read");
    r->at++;
    return DSC_OK;
}

/* Behind the [. */
static dsc_status read_class(name_regex *r, char_class *c)
{
    const bool inverted = *r->at == '^';
    r->at += inverted;
    for (bool first = true; first || *r->at != ']'; first = false) {
        int from = 0, to = 0;
        DSC_TRY(read_class_item(r, c, &from));
        if (*r->at != '-' || r->at[1] == ']' || r->at[1] == 0)
            continue;
        r->at++;
        DSC_TRY(read_class_item(r, c, &to));
        if (from < 0 || to < from)
            return refuse(r, DSC_ERR_INPUT, "an invalid range of characters");
        add_range(c, from, to);
    }
    r->at++;
    if (inverted)
        complement(c);
    return DSC_OK;
}

static void consume(const name_regex *r, const char_class *c, positions *set)
{
    positions out = { { 0 } };
    for (int p = 0; p < r->bytes; p++)
        if (has(set, p) && in_class(c, (unsigned char)r->name[p]))
            put(&out, p + 1);
    *set = out;
}

/* ---- atoms ---- */

static dsc_status alternatives(name_regex *r, positions *set);

static void keep_ends(const name_regex *r, positions *set, int which)
{
    positions out = { { 0 } };
    if (has(set, which))
        put(&out, which);
    *set = out;
    DSC_ASSERT(which == 0 || which == r->bytes);
}

static void keep_boundaries(const name_regex *r, positions *set, bool wanted)
{
    positions out = { { 0 } };
    for (int p = 0; p <= r->bytes; p++) {
        const bool before = p > 0 && is_word((unsigned char)r->name[p - 1]);
        const bool after = p < r->bytes && is_word((unsigned char)r->name[p]);
        if (has(set, p) && (before != after) == wanted)
            put(&out, p);
    }
    *set = out;
}

/* Keeps the positions from which the group at r->at matches, or does not. */
static dsc_status look_ahead(name_regex *r, positions *set, bool wanted)
{
    const char *const start = r->at;
    positions out = { { 0 } }, none = { { 0 } };
    DSC_TRY(alternatives(r, &none)); /* finds the end, also if nothing is left to look from */
    const char *const end = r->at;
    for (int p = 0; p <= r->bytes; p++) {
        positions from = { { 0 } };
        if (!has(set, p))
            continue;
        put(&from, p);
        r->at = start;
        DSC_TRY(alternatives(r, &from));
        if (!is_empty(&from) == wanted)
            put(&out, p);
    }
    r->at = end;
    *set = out;
    return DSC_OK;
}

/* Behind a "(". */
static dsc_status group(name_regex *r, positions *set)
{
    if (++r->depth > DEPTH_MAX)
        return refuse(r, DSC_ERR_UNSUPPORTED, "groups too deep");
    if (*r->at != '?') {
        DSC_TRY(alternatives(r, set));
    } else if (r->at[1] == ':') {
        r->at += 2;
        DSC_TRY(alternatives(r, set));
    } else if (r->at[1] == '=' || r->at[1] == '!') {
        const bool wanted = r->at[1] == '=';
        r->at += 2;
        DSC_TRY(look_ahead(r, set, wanted));
    } else if (r->at[1] == 'P' && r->at[2] == '<') {
        const size_t length = strcspn(r->at, ">)");
        if (r->at[length] != '>')
            return refuse(r, DSC_ERR_INPUT, "a group's name without its end");
        r->at += length + 1;
        DSC_TRY(alternatives(r, set));
    } else {
        return refuse(r, DSC_ERR_UNSUPPORTED,
                      "a group of a kind that is not read (lookbehind, a flag, a reference or an atomic group)");
    }
    if (*r->at != ')')
        return refuse(r, DSC_ERR_INPUT, "a group without its )");
    r->at++;
    r->depth--;
    return DSC_OK;
}

/* Behind a backslash. */
static dsc_status escape(name_regex *r, positions *set)
{
    char_class c = { { 0 } };
    int single;
    const char letter = *r->at;
    if (letter == 'b' || letter == 'B')
        keep_boundaries(r, set, letter == 'b');
    else if (letter == 'A' || letter == 'Z')
        keep_ends(r, set, letter == 'A' ? 0 : r->bytes);
    else if (add_escape(&c, letter, &single))
        consume(r, &c, set);
    else
        return refuse(r, letter == 0 ? DSC_ERR_INPUT : DSC_ERR_UNSUPPORTED,
                      letter == 0 ? "a backslash at its end" : "an escape that is not read");
    r->at++;
    return DSC_OK;
}

static dsc_status atom(name_regex *r, positions *set)
{
    char_class c = { { 0 } };
    const unsigned char x = (unsigned char)*r->at;
    if (--*r->steps_left < 0)
        return refuse(r, DSC_ERR_UNSUPPORTED, "too many repetitions for the names of this model's layers");
    if (x == '*' || x == '+' || x == '?')
        return refuse(r, DSC_ERR_INPUT, "a quantifier behind nothing that can be repeated");
    if (x >= 128)
        return refuse(r, DSC_ERR_UNSUPPORTED, "a character beyond ASCII");
    r->at++;
    switch (x) {
    case '(':
        return group(r, set);
    case '\\':
        return escape(r, set);
    case '^':
    case '$':
        keep_ends(r, set, x == '^' ? 0 : r->bytes);
        return DSC_OK;
    case '[':
        DSC_TRY(read_class(r, &c));
        break;
    case '.':
        add_range(&c, '\n', '\n');
        complement(&c);
        break;
    default:
        add_range(&c, x, x);
    }
    consume(r, &c, set);
    return DSC_OK;
}

/* ---- repetition ---- */

static int read_number(const char **at)
{
    int value = 0;
    for (; **at >= '0' && **at <= '9'; (*at)++)
        value = value > REPEAT_MAX ? value : value * 10 + (**at - '0');
    return value;
}

/* Whether a quantifier follows: *least and *most, which is -1 without a limit. "{" is a character where it is none. */
static bool read_quantifier(const char **at, int *least, int *most)
{
    const char *p = *at;
    *least = *p == '+';
    *most = *p == '?' ? 1 : -1;
    if (*p == '?' || *p == '*' || *p == '+') {
        (*at)++;
        return true;
    }
    if (*p++ != '{' || ((*p < '0' || *p > '9') && *p != ','))
        return false;
    *least = read_number(&p);
    *most = *least;
    if (*p == ',') {
        const char *const digits = ++p;
        *most = read_number(&p);
        if (p == digits)
            *most = -1;
    }
    if (*p != '}')
        return false;
    *at = p + 1;
    return true;
}

/* The positions behind `least` to `most` matches of the atom at `start`, from those in *set; *once are those behind
 * one. From `least` matches on, only new positions are followed. */
static dsc_status repeat(name_regex *r, const char *start, int least, int most, positions *set, positions once)
{
    const char *const end = r->at;
    positions out = { { 0 } }, now = once;
    if (least == 0)
        out = *set;
    for (int count = 1; most < 0 || count <= most; count++) {
        if (count > 1) {
            r->at = start;
            DSC_TRY(atom(r, &now));
        }
        if (count < least) {
            if (is_empty(&now))
                break;
            continue;
        }
        take_away(&now, &out);
        if (is_empty(&now))
            break;
        add(&out, &now);
    }
    r->at = end;
    *set = out;
    return DSC_OK;
}

static dsc_status repeated_atom(name_regex *r, positions *set)
{
    const char *const start = r->at;
    int least, most;
    positions once = *set;
    DSC_TRY(atom(r, &once));
    if (!read_quantifier(&r->at, &least, &most)) {
        *set = once;
        return DSC_OK;
    }
    if (*r->at == '+')
        return refuse(r, DSC_ERR_UNSUPPORTED, "a possessive quantifier, which is not read,");
    r->at += *r->at == '?';
    const char *after = r->at;
    int again_least, again_most;
    if (read_quantifier(&after, &again_least, &again_most))
        return refuse(r, DSC_ERR_INPUT, "two quantifiers");
    if (least > REPEAT_MAX || most > REPEAT_MAX || (most >= 0 && most < least))
        return refuse(r, DSC_ERR_INPUT, "a number of repetitions that is out of range (0 to 1000)");
    return repeat(r, start, least, most, set, once);
}

static dsc_status alternatives(name_regex *r, positions *set)
{
    positions out = { { 0 } };
    for (bool more = true; more;) {
        positions now = *set;
        while (*r->at != 0 && *r->at != '|' && *r->at != ')')
            DSC_TRY(repeated_atom(r, &now));
        add(&out, &now);
        more = *r->at == '|';
        r->at += more;
    }
    *set = out;
    return DSC_OK;
}

dsc_status dsc_name_regex_match(const char *pattern, const char *name, const char *where, int64_t *steps_left,
                                bool *matches, dsc_error *err)
{
    const size_t bytes = strlen(name);
    name_regex r = { .pattern = pattern,
                     .at = pattern,
                     .name = name,
                     .where = where,
                     .bytes = (int)bytes,
                     .steps_left = steps_left,
                     .err = err };
    positions set = { { 1 } };
    *matches = false;
    if (strlen(pattern) >= DSC_NAME_REGEX_BYTES || bytes > NAME_BYTES_MAX)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, where,
                        "a regular expression of %lld bytes for a name of %lld; at most "
                        "%d and %d are read",
                        (long long)strlen(pattern), (long long)bytes, DSC_NAME_REGEX_BYTES - 1, NAME_BYTES_MAX);
    DSC_TRY(alternatives(&r, &set));
    if (*r.at != 0)
        return refuse(&r, DSC_ERR_INPUT, "a ) without its (");
    *matches = has(&set, r.bytes);
    return DSC_OK;
}
