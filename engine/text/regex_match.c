/* regex_match.c - finds matches: alternatives in order, quantifiers greedy, back where that fails.
 *
 * Recursion is as deep as the pattern has parts, whatever the text: a repeated character is a loop, and groups do not
 * repeat. SPDX-License-Identifier: Apache-2.0 */
#include "engine/text/regex.h"
#include "engine/text/regex_internal.h"
#include "engine/text/unicode.h"

/* Patterns in use take up to about ten steps a character; this many are allowed on average, and some at once. */
#define STEPS_PER_BYTE 2000
#define STEPS_AT_LEAST 1000000

typedef struct matcher {
    const dsc_regex *regex;
    const char *end;
    int64_t steps_left;
} matcher;

/* Continuation after the end of a group. */
typedef struct rest {
    int32_t item;
    const struct rest *up;
} rest;

static inline bool class_takes(const dsc_regex *regex, const rx_class *c, const char *at, int *bytes)
{
    const unsigned char byte = (unsigned char)*at;
    if (byte < 0x80) {
        *bytes = 1;
        return (c->ascii[byte / 64] >> byte % 64 & 1) != 0;
    }
    return rx_class_has(regex, c, dsc_char_at(at, bytes));
}

static const char *match_items(matcher *m, int32_t index, const char *at, const rest *behind);

/* As many characters as the item takes, then fewer until the rest matches. */
static const char *match_repeated(matcher *m, const rx_item *item, const char *at, const rest *behind)
{
    const rx_class *c = &m->regex->class[item->index];
    int32_t count = 0;
    int bytes;
    while (count < item->max && at < m->end && class_takes(m->regex, c, at, &bytes)) {
        at += bytes;
        count++;
    }
    m->steps_left -= count;
    if (count < item->min)
        return NULL;
    if (item->next < 0 && behind == NULL)
        return at;
    for (;;) {
        const char *end = match_items(m, item->next, at, behind);
        if (end != NULL || item->possessive || count == item->min || m->steps_left < 0)
            return end;
        at = dsc_char_before(at);
        count--;
    }
}

static inline bool may_begin(const rx_alternative *alternative, const char *at, const char *end)
{
    const unsigned char byte = at < end ? (unsigned char)*at : 0;
    return at >= end || (alternative->first[byte / 64] >> byte % 64 & 1) != 0;
}

static const char *match_group(matcher *m, int32_t group, const char *at, const rest *behind)
{
    for (int32_t a = m->regex->group[group]; a >= 0; a = m->regex->alternative[a].next) {
        if (!may_begin(&m->regex->alternative[a], at, m->end))
            continue;
        const char *end = match_items(m, m->regex->alternative[a].item, at, behind);
        if (end != NULL)
            return end;
    }
    return NULL;
}

static const char *match_items(matcher *m, int32_t index, const char *at, const rest *behind)
{
    for (;;) {
        if (index < 0) {
            if (behind == NULL)
                return at;
            index = behind->item;
            behind = behind->up;
            continue;
        }
        const rx_item *item = &m->regex->item[index];
        int bytes;
        if (--m->steps_left < 0)
            return NULL;
        if (item->kind == RX_LOOK) {
            if ((match_group(m, item->index, at, NULL) != NULL) == item->negative)
                return NULL;
        } else if (item->kind == RX_LINE_END) {
            if (at < m->end && *at != '\n')
                return NULL;
        } else if (item->kind == RX_GROUP) {
            const rest more = { item->next, behind };
            const char *end = match_group(m, item->index, at, &more);
            if (end != NULL || item->min > 0)
                return end;
        } else if (item->max > 1 || item->min == 0) {
            return match_repeated(m, item, at, behind);
        } else {
            if (at == m->end || !class_takes(m->regex, &m->regex->class[item->index], at, &bytes))
                return NULL;
            at += bytes;
        }
        index = item->next;
    }
}

dsc_regex_search dsc_regex_start(const char *text, int64_t bytes)
{
    return (dsc_regex_search){ .text = text, .end = text + bytes, .at = text,
                               .steps_left = STEPS_AT_LEAST + STEPS_PER_BYTE * bytes };
}

dsc_status dsc_regex_next(const dsc_regex *regex, dsc_regex_search *search, const char **start, const char **end,
                          bool *found, dsc_error *err)
{
    matcher m = { .regex = regex, .end = search->end, .steps_left = search->steps_left };
    const char *at = search->at;
    const char *match = NULL;
    while (at < search->end && (match = match_group(&m, 0, at, NULL)) == NULL && m.steps_left >= 0) {
        int bytes;
        (void)dsc_char_at(at, &bytes);
        at += bytes;
    }
    if (m.steps_left < 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, "tokenizer",
                        "its pattern takes too many steps on this text (at byte %lld of a piece of %lld)",
                        (long long)(at - search->text), (long long)(search->end - search->text));
    *found = match != NULL;
    *start = at;
    *end = match;
    search->at = match != NULL ? match : search->end;
    search->steps_left = m.steps_left;
    return DSC_OK;
}
