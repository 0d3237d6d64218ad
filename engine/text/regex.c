/* regex.c - reads a pattern. SPDX-License-Identifier: Apache-2.0 */
#include "engine/text/regex.h"

#include <string.h>

#include "base/formats/utf8.h"
#include "engine/text/regex_internal.h"
#include "engine/text/unicode.h"

typedef struct parser {
    dsc_regex *regex;
    const char *pattern, *at, *end;
    const char *where;
    bool any_case;
    dsc_error *err;
} parser;

static dsc_status refuse(const parser *p, const char *what)
{
    return DSC_FAIL(p->err, DSC_ERR_UNSUPPORTED, p->where,
                    "the pattern %.200s has %s at character %lld, which is not built in this version", p->pattern, what,
                    (long long)(p->at - p->pattern) + 1);
}

static bool next_is(const parser *p, const char *text)
{
    const size_t bytes = strlen(text);
    return (size_t)(p->end - p->at) >= bytes && memcmp(p->at, text, bytes) == 0;
}

static bool take(parser *p, const char *text)
{
    if (!next_is(p, text))
        return false;
    p->at += strlen(text);
    return true;
}

/* ---- Classes ---- */

static dsc_status new_class(parser *p, rx_class **out)
{
    if (p->regex->class_count == RX_CLASSES_MAX)
        return refuse(p, "too many characters");
    *out = &p->regex->class[p->regex->class_count++];
    (*out)->first_range = (*out)->first_inner = (*out)->next_inner = (*out)->both = -1;
    return DSC_OK;
}

static dsc_status add_range(parser *p, rx_class *c, uint32_t low, uint32_t high)
{
    if (p->regex->range_count == RX_RANGES_MAX)
        return refuse(p, "too many ranges");
    p->regex->range[p->regex->range_count] = (rx_range){ low, high, c->first_range };
    c->first_range = p->regex->range_count++;
    return DSC_OK;
}

/* With any_case a letter of ASCII also means its other case, and the two characters beyond ASCII that fold to one. */
static dsc_status add_characters(parser *p, rx_class *c, uint32_t low, uint32_t high)
{
    DSC_TRY(add_range(p, c, low, high));
    if (!p->any_case)
        return DSC_OK;
    if (high >= 0x80)
        return refuse(p, "a character beyond ASCII in (?i:...)");
    for (uint32_t letter = low; letter <= high; letter++) {
        const uint32_t lower = letter | 0x20;
        if (lower < 'a' || lower > 'z')
            continue;
        DSC_TRY(add_range(p, c, letter ^ 0x20, letter ^ 0x20));
        if (lower == 's')
            DSC_TRY(add_range(p, c, 0x17f, 0x17f));
        if (lower == 'k')
            DSC_TRY(add_range(p, c, 0x212a, 0x212a));
    }
    return DSC_OK;
}

static uint32_t categories_of(const char *name, size_t bytes)
{
    static const struct { const char *name; uint32_t bits; } known[] = {
        { "Lu", DSC_CATEGORY(LU) }, { "Ll", DSC_CATEGORY(LL) }, { "Lt", DSC_CATEGORY(LT) },
        { "Lm", DSC_CATEGORY(LM) }, { "Lo", DSC_CATEGORY(LO) }, { "Mn", DSC_CATEGORY(MN) },
        { "Mc", DSC_CATEGORY(MC) }, { "Me", DSC_CATEGORY(ME) }, { "Nd", DSC_CATEGORY(ND) },
        { "Nl", DSC_CATEGORY(NL) }, { "No", DSC_CATEGORY(NO) }, { "Pc", DSC_CATEGORY(PC) },
        { "Pd", DSC_CATEGORY(PD) }, { "Ps", DSC_CATEGORY(PS) }, { "Pe", DSC_CATEGORY(PE) },
        { "Pi", DSC_CATEGORY(PI) }, { "Pf", DSC_CATEGORY(PF) }, { "Po", DSC_CATEGORY(PO) },
        { "Sm", DSC_CATEGORY(SM) }, { "Sc", DSC_CATEGORY(SC) }, { "Sk", DSC_CATEGORY(SK) },
        { "So", DSC_CATEGORY(SO) }, { "Zs", DSC_CATEGORY(ZS) }, { "Zl", DSC_CATEGORY(ZL) },
        { "Zp", DSC_CATEGORY(ZP) }, { "Cc", DSC_CATEGORY(CC) }, { "Cf", DSC_CATEGORY(CF) },
    };
    uint32_t bits = 0; /* "L" is all that begin with it; C also holds what is not assigned */
    if (bytes == 1 && name[0] == 'C')
        return 0;
    for (size_t i = 0; i < DSC_COUNT(known); i++)
        if (bytes >= 1 && bytes <= 2 && memcmp(known[i].name, name, bytes) == 0)
            bits |= known[i].bits;
    return bits;
}

static dsc_status add_han(parser *p, rx_class *c)
{
    uint32_t low, high;
    for (int i = 0; dsc_char_han_range(i, &low, &high); i++)
        DSC_TRY(add_range(p, c, low, high));
    return DSC_OK;
}

/* Behind \p or \P. */
static dsc_status parse_property(parser *p, rx_class *c, bool outside)
{
    const char *close = next_is(p, "{") ? memchr(p->at, '}', (size_t)(p->end - p->at)) : NULL;
    const uint32_t bits = close != NULL ? categories_of(p->at + 1, (size_t)(close - p->at - 1)) : 0;
    if (!outside && take(p, "{Han}"))
        return add_han(p, c);
    if (bits == 0)
        return refuse(p, "a \\p that names no general category");
    p->at = close + 1;
    if (!outside) {
        c->categories |= bits;
        return DSC_OK;
    }
    if (c->outside_count == (int32_t)DSC_COUNT(c->outside))
        return refuse(p, "too many \\P in one class");
    c->outside[c->outside_count++] = bits;
    return DSC_OK;
}

/* At a backslash. A single character comes back in *code, all else goes into the class and *code is UINT32_MAX. */
static dsc_status parse_escape(parser *p, rx_class *c, uint32_t *code)
{
    static const char letters[] = "nrtfv", codes[] = "\n\r\t\f\v";
    p->at++;
    *code = UINT32_MAX;
    if (p->at == p->end)
        return refuse(p, "a backslash");
    const char letter = *p->at;
    const char *simple = strchr(letters, letter);
    if (simple != NULL) {
        *code = (uint32_t)codes[simple - letters];
    } else if (strchr("sSdDwWpP", letter) != NULL) {
        p->at++;
        switch (letter) {
        case 's': c->space = true; return DSC_OK;
        case 'S': c->not_space = true; return DSC_OK;
        case 'w': c->word = true; return DSC_OK;
        case 'W': c->not_word = true; return DSC_OK;
        case 'd': c->categories |= DSC_CATEGORY(ND); return DSC_OK;
        case 'p': return parse_property(p, c, false);
        case 'P': return parse_property(p, c, true);
        default: break;
        }
        if (c->outside_count == (int32_t)DSC_COUNT(c->outside))
            return refuse(p, "too many \\D in one class");
        c->outside[c->outside_count++] = DSC_CATEGORY(ND);
        return DSC_OK;
    } else if ((unsigned char)letter < 0x80 && !(letter >= '0' && letter <= '9') &&
               !((letter | 0x20) >= 'a' && (letter | 0x20) <= 'z')) {
        *code = (uint32_t)letter;
    } else {
        return refuse(p, "an unknown escape");
    }
    p->at++;
    return DSC_OK;
}

/* One character, escaped or not; or a class of an escape. */
static dsc_status parse_character(parser *p, rx_class *c, uint32_t *code)
{
    int bytes;
    if (*p->at == '\\')
        return parse_escape(p, c, code);
    *code = dsc_char_at(p->at, &bytes);
    p->at += bytes;
    return DSC_OK;
}

static dsc_status parse_bracket(parser *p, int depth, rx_class *c);

/* At the opening bracket of a class in a class. */
static dsc_status parse_inner(parser *p, int depth, rx_class *outer)
{
    rx_class *inner = NULL;
    if (next_is(p, "[:"))
        return refuse(p, "a POSIX class");
    DSC_TRY(new_class(p, &inner));
    inner->next_inner = outer->first_inner;
    outer->first_inner = p->regex->class_count - 1;
    p->at++;
    return parse_bracket(p, depth + 1, inner);
}

/* Behind "&&": all that follows up to the bracket is one class. */
static dsc_status parse_both(parser *p, rx_class **c)
{
    rx_class *left = *c;
    DSC_TRY(new_class(p, c));
    left->both = p->regex->class_count - 1;
    (*c)->in_brackets = true;
    return DSC_OK;
}

/* Behind the opening bracket. */
static dsc_status parse_bracket(parser *p, int depth, rx_class *c)
{
    if (depth > RX_DEPTH_MAX)
        return refuse(p, "too many classes in each other");
    c->in_brackets = true;
    c->negated = take(p, "^");
    if (next_is(p, "]"))
        return refuse(p, "an empty class");
    while (!next_is(p, "]")) {
        uint32_t low, high;
        if (p->at == p->end)
            return refuse(p, "a class without its ]");
        if (next_is(p, "[")) {
            DSC_TRY(parse_inner(p, depth, c));
            continue;
        }
        if (take(p, "&&")) {
            if (next_is(p, "]") || next_is(p, "&&"))
                return refuse(p, "an empty class");
            DSC_TRY(parse_both(p, &c));
            continue;
        }
        DSC_TRY(parse_character(p, c, &low));
        high = low;
        if (low != UINT32_MAX && next_is(p, "-") && p->end - p->at > 1 && p->at[1] != ']') {
            p->at++;
            if (next_is(p, "["))
                return refuse(p, "a range up to a class");
            DSC_TRY(parse_character(p, c, &high));
            if (high == UINT32_MAX || high < low)
                return refuse(p, "an invalid range");
        }
        if (low != UINT32_MAX)
            DSC_TRY(add_characters(p, c, low, high));
    }
    p->at++;
    return DSC_OK;
}

bool rx_class_has(const dsc_regex *regex, const rx_class *c, uint32_t code)
{
    bool has = (c->space && dsc_char_is_space(code)) || (c->not_space && !dsc_char_is_space(code)) ||
               (c->word && dsc_char_is_pattern_word(code, c->in_brackets)) ||
               (c->not_word && !dsc_char_is_pattern_word(code, c->in_brackets));
    if (!has && (c->categories != 0 || c->outside_count > 0)) {
        const uint32_t category = dsc_char_category(code);
        has = (c->categories & category) != 0;
        for (int32_t i = 0; i < c->outside_count; i++)
            has |= (c->outside[i] & category) == 0;
    }
    for (int32_t i = c->first_range; !has && i >= 0; i = regex->range[i].next)
        has = regex->range[i].low <= code && code <= regex->range[i].high;
    for (int32_t i = c->first_inner; !has && i >= 0; i = regex->class[i].next_inner)
        has = rx_class_has(regex, &regex->class[i], code);
    if (has && c->both >= 0)
        has = rx_class_has(regex, &regex->class[c->both], code);
    return has != c->negated;
}

static void fill_ascii(const dsc_regex *regex, rx_class *c)
{
    for (uint32_t code = 0; code < 128; code++)
        if (rx_class_has(regex, c, code))
            c->ascii[code / 64] |= UINT64_C(1) << code % 64;
}

/* ---- Items, alternatives, groups ---- */

static dsc_status parse_group(parser *p, int depth, int32_t *out);

static bool parse_count(parser *p, int32_t *out)
{
    const char *from = p->at;
    *out = 0;
    while (p->at < p->end && *p->at >= '0' && *p->at <= '9' && *out < 100000)
        *out = *out * 10 + (*p->at++ - '0');
    return p->at > from;
}

/* {m}, {m,} or {m,n}. */
static dsc_status parse_braces(parser *p, rx_item *item)
{
    if (!take(p, "{") || !parse_count(p, &item->min))
        return refuse(p, "an invalid repeat count");
    item->max = item->min;
    if (take(p, ",") && !parse_count(p, &item->max))
        item->max = RX_REPEAT_MAX;
    if (!take(p, "}") || item->max < item->min || item->max == 0)
        return refuse(p, "an invalid repeat count");
    if (item->min <= 1 && take(p, "+")) /* repeats the repeated, in Oniguruma */
        item->max = RX_REPEAT_MAX;
    return next_is(p, "+") || next_is(p, "?") || next_is(p, "*") ? refuse(p, "a quantifier of a quantifier") : DSC_OK;
}

static dsc_status parse_quantifier(parser *p, rx_item *item)
{
    item->min = item->max = 1;
    if (next_is(p, "{"))
        return parse_braces(p, item);
    if (!next_is(p, "?") && !next_is(p, "*") && !next_is(p, "+"))
        return DSC_OK;
    item->min = *p->at == '+';
    item->max = *p->at == '?' ? 1 : RX_REPEAT_MAX;
    p->at++;
    item->possessive = take(p, "+");
    return next_is(p, "?") || next_is(p, "*") || next_is(p, "+") ? refuse(p, "a lazy or repeated quantifier") : DSC_OK;
}

/* At an opening parenthesis. */
static dsc_status parse_parenthesis(parser *p, int depth, rx_item *item)
{
    const bool any_case = p->any_case;
    p->at++;
    item->kind = RX_GROUP;
    if (take(p, "?i:"))
        p->any_case = true;
    else if (next_is(p, "?=") || next_is(p, "?!")) {
        item->kind = RX_LOOK;
        item->negative = p->at[1] == '!';
        p->at += 2;
    } else if (!take(p, "?:") && next_is(p, "?")) {
        return refuse(p, "an unknown kind of group");
    }
    DSC_TRY(parse_group(p, depth + 1, &item->index));
    p->any_case = any_case;
    if (!take(p, ")"))
        return refuse(p, "a group without its )");
    DSC_TRY(parse_quantifier(p, item));
    if (item->max > 1 || item->possessive)
        return refuse(p, "a repeated group");
    if (item->kind == RX_LOOK && item->min == 0)
        return refuse(p, "a lookahead that may be absent");
    return DSC_OK;
}

static dsc_status parse_item(parser *p, int depth, rx_item *item)
{
    *item = (rx_item){ .kind = RX_CHAR, .next = -1 };
    if (*p->at == '(')
        return parse_parenthesis(p, depth, item);
    if (strchr("?*+{", *p->at) != NULL)
        return refuse(p, "a quantifier of nothing");
    if (take(p, "$")) {
        item->kind = RX_LINE_END;
        item->min = item->max = 1;
        return DSC_OK;
    }
    if (*p->at == '^')
        return refuse(p, "an anchor");
    rx_class *c = NULL;
    DSC_TRY(new_class(p, &c));
    item->index = p->regex->class_count - 1;
    uint32_t code = UINT32_MAX;
    if (take(p, "[")) {
        DSC_TRY(parse_bracket(p, 0, c));
    } else if (take(p, ".")) {
        c->negated = true;
        DSC_TRY(add_range(p, c, '\n', '\n'));
    } else {
        DSC_TRY(parse_character(p, c, &code));
        if (code != UINT32_MAX)
            DSC_TRY(add_characters(p, c, code, code));
    }
    fill_ascii(p->regex, c);
    return parse_quantifier(p, item);
}

static dsc_status parse_alternative(parser *p, int depth, int32_t *out)
{
    if (p->regex->alternative_count == RX_ALTERNATIVES_MAX)
        return refuse(p, "too many alternatives");
    *out = p->regex->alternative_count++;
    p->regex->alternative[*out] = (rx_alternative){ .item = -1, .next = -1 };
    int32_t *link = &p->regex->alternative[*out].item;
    while (p->at < p->end && *p->at != '|' && *p->at != ')') {
        rx_item item;
        DSC_TRY(parse_item(p, depth, &item));
        if (p->regex->item_count == RX_ITEMS_MAX)
            return refuse(p, "too many parts");
        *link = p->regex->item_count++;
        p->regex->item[*link] = item;
        link = &p->regex->item[*link].next;
    }
    return DSC_OK;
}

/* Up to a closing parenthesis or the end. */
static dsc_status parse_group(parser *p, int depth, int32_t *out)
{
    if (depth > RX_DEPTH_MAX || p->regex->group_count == RX_GROUPS_MAX)
        return refuse(p, "too many groups");
    *out = p->regex->group_count++;
    int32_t *link = &p->regex->group[*out];
    do {
        int32_t alternative = -1;
        DSC_TRY(parse_alternative(p, depth, &alternative));
        *link = alternative;
        link = &p->regex->alternative[alternative].next;
    } while (take(p, "|"));
    return DSC_OK;
}

/* ---- What the matcher and its users want to know ahead ---- */

static void add_first_of_class(const rx_class *c, uint64_t first[4])
{
    first[0] |= c->ascii[0];
    first[1] |= c->ascii[1];
    first[2] = first[3] = UINT64_MAX; /* characters beyond ASCII are asked for one by one */
}

/* Adds the bytes that a list of items may begin with; true when it may be empty. */
static bool find_first(const dsc_regex *regex, int32_t index, uint64_t first[4])
{
    for (; index >= 0; index = regex->item[index].next) {
        const rx_item *item = &regex->item[index];
        bool empty = item->min == 0;
        if (item->kind == RX_LOOK || item->kind == RX_LINE_END)
            continue;
        if (item->kind == RX_CHAR)
            add_first_of_class(&regex->class[item->index], first);
        else
            for (int32_t a = regex->group[item->index]; a >= 0; a = regex->alternative[a].next)
                empty |= find_first(regex, regex->alternative[a].item, first);
        if (!empty)
            return false;
    }
    return true;
}

/* Whether a class holds anything but white space; said of some that do not, never denied of one that does. */
static bool takes_more_than_space(const dsc_regex *regex, const rx_class *c)
{
    const uint64_t space = UINT64_C(0x100003e00); /* 9 to 13 and 32 */
    bool more = (c->ascii[0] & ~space) != 0 || c->ascii[1] != 0 || c->negated || c->categories != 0 ||
                c->outside_count > 0 || c->not_space || c->word || c->not_word || c->first_inner >= 0;
    for (int32_t i = c->first_range; !more && i >= 0; i = regex->range[i].next)
        more = regex->range[i].high >= 0x80;
    return more;
}

/* (?!\S): behind a lone line end it only chooses the alternative that takes it. */
static bool is_no_more_text(const dsc_regex *regex, const rx_item *look)
{
    const rx_alternative *only = &regex->alternative[regex->group[look->index]];
    if (!look->negative || only->next >= 0 || only->item < 0)
        return false;
    const rx_item *item = &regex->item[only->item];
    const rx_class *c = &regex->class[item->index];
    return item->kind == RX_CHAR && item->next < 0 && item->max == 1 && c->not_space && !c->negated &&
           c->first_range < 0 && c->first_inner < 0 && c->both < 0;
}

/* False when the items could take a line end and then anything but white space; *line: a line end was taken. */
static bool stays_in_line(const dsc_regex *regex, int32_t index, bool *line)
{
    for (; index >= 0; index = regex->item[index].next) {
        const rx_item *item = &regex->item[index];
        if (item->kind == RX_LINE_END) {
            return false;
        } else if (item->kind == RX_LOOK) {
            if (!is_no_more_text(regex, item) || item->next >= 0)
                return false;
        } else if (item->kind == RX_GROUP) {
            bool any = *line;
            for (int32_t a = regex->group[item->index]; a >= 0; a = regex->alternative[a].next) {
                bool inside = *line;
                if (!stays_in_line(regex, regex->alternative[a].item, &inside))
                    return false;
                any |= inside;
            }
            *line = any;
        } else {
            const rx_class *c = &regex->class[item->index];
            const bool takes_line = (c->ascii[0] >> '\n' & 1) != 0;
            if (takes_more_than_space(regex, c) && (*line || (takes_line && item->max > 1)))
                return false;
            *line |= takes_line;
        }
    }
    return true;
}

/* The last alternative has to be \s+, so that a line end is always part of a match. */
static bool cuts_at_lines(const dsc_regex *regex)
{
    const rx_alternative *last = NULL;
    for (int32_t a = regex->group[0]; a >= 0; a = regex->alternative[a].next) {
        bool line = false;
        last = &regex->alternative[a];
        if (!stays_in_line(regex, last->item, &line))
            return false;
    }
    const rx_item *item = &regex->item[last->item];
    const rx_class *c = &regex->class[item->index];
    return item->kind == RX_CHAR && item->next < 0 && item->min == 1 && item->max == RX_REPEAT_MAX && c->space &&
           !c->negated && c->both < 0;
}

static void look_ahead(dsc_regex *regex)
{
    for (int32_t i = 0; i < regex->alternative_count; i++) {
        rx_alternative *alternative = &regex->alternative[i];
        if (find_first(regex, alternative->item, alternative->first))
            memset(alternative->first, 0xff, sizeof alternative->first);
    }
    regex->cuts_at_lines = cuts_at_lines(regex);
}

dsc_status dsc_regex_open(dsc_alloc *alloc, const char *pattern, const char *where, dsc_regex **out, dsc_error *err)
{
    dsc_regex *regex = NULL;
    *out = NULL;
    if (!dsc_utf8_is_valid(pattern, (int64_t)strlen(pattern)))
        return DSC_FAIL(err, DSC_ERR_INPUT, where, "a pattern that is not UTF-8");
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, 1, sizeof *regex, &regex, err));
    regex->alloc = alloc;
    parser p = { .regex = regex, .pattern = pattern, .at = pattern, .end = pattern + strlen(pattern), .where = where,
                 .err = err };
    int32_t whole;
    uint64_t first[4] = { 0 };
    dsc_status status = parse_group(&p, 0, &whole);
    if (status == DSC_OK && p.at < p.end)
        status = refuse(&p, "a parenthesis too many");
    for (int32_t a = regex->group[0]; status == DSC_OK && a >= 0; a = regex->alternative[a].next)
        if (find_first(regex, regex->alternative[a].item, first))
            status = refuse(&p, "an alternative that matches nothing");
    if (status != DSC_OK) {
        dsc_regex_close(&regex);
        return status;
    }
    look_ahead(regex);
    *out = regex;
    return DSC_OK;
}

void dsc_regex_close(dsc_regex **regex)
{
    if (*regex != NULL)
        dsc_alloc_free((*regex)->alloc, *regex);
    *regex = NULL;
}

bool dsc_regex_cuts_at_lines(const dsc_regex *regex)
{
    return regex->cuts_at_lines;
}

bool dsc_regex_ignores_lines(const dsc_regex *regex)
{
    for (int32_t i = 0; i < regex->item_count; i++) {
        const rx_item *item = &regex->item[i];
        if (item->kind == RX_LOOK || item->kind == RX_LINE_END ||
            (item->kind == RX_CHAR && (regex->class[item->index].ascii[0] >> '\n' & 1) != 0))
            return false;
    }
    return true;
}
