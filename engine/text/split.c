/* split.c - the pieces of a Split: matches and what lies between them, joined or dropped as its behavior says.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "engine/text/tokenizer_internal.h"

typedef struct item {
    const char *start, *end;
    bool match;
} item;

void tok_pieces_open(tok_pieces *pieces, const tok_splitter *splitter, tok_string text)
{
    *pieces = (tok_pieces){ .splitter = splitter, .text = text.ptr, .end = text.ptr + text.bytes, .at = text.ptr,
                            .search = dsc_regex_start(text.ptr, text.bytes) };
}

static bool find_char(tok_pieces *p)
{
    int length = 0;
    const char *at = p->at;
    while (at < p->end && !p->splitter->is_match(dsc_char_at(at, &length)))
        at += length;
    p->match_start = at;
    p->match_end = at + length;
    return at < p->end;
}

static bool find_run(tok_pieces *p)
{
    int length, class = 0;
    const char *at = p->at;
    while (at < p->end && (class = p->splitter->class_of(dsc_char_at(at, &length))) == 0)
        at += length;
    p->match_start = at;
    while (at < p->end && p->splitter->class_of(dsc_char_at(at, &length)) == class)
        at += length;
    p->match_end = at;
    return p->match_start < p->end;
}

static dsc_status find_match(tok_pieces *p, dsc_error *err)
{
    bool found = false;
    p->match_known = true;
    if (p->splitter->is_match != NULL) {
        found = find_char(p);
    } else if (p->splitter->class_of != NULL) {
        found = find_run(p);
    } else if (p->splitter->regex != NULL) {
        DSC_TRY(dsc_regex_next(p->splitter->regex, &p->search, &p->match_start, &p->match_end, &found, err));
    } else {
        const tok_string literal = p->splitter->literal;
        p->match_start = memmem(p->at, (size_t)(p->end - p->at), literal.ptr, (size_t)literal.bytes);
        found = p->match_start != NULL;
        p->match_end = found ? p->match_start + literal.bytes : NULL;
    }
    if (!found)
        p->match_start = p->match_end = p->end;
    return DSC_OK;
}

/* The next match or gap, without moving on; start = end behind the last. */
static dsc_status peek(tok_pieces *p, item *out, dsc_error *err)
{
    if (!p->match_known && p->at < p->end)
        DSC_TRY(find_match(p, err));
    if (p->at == p->end)
        *out = (item){ p->end, p->end, false };
    else if (p->at < p->match_start)
        *out = (item){ p->at, p->match_start, p->splitter->invert };
    else
        *out = (item){ p->match_start, p->match_end, !p->splitter->invert };
    return DSC_OK;
}

static void move_on(tok_pieces *p, const item *passed)
{
    if (passed->start == p->match_start)
        p->match_known = false;
    p->at = passed->end;
}

static bool joins(tok_behavior behavior, const item *last, const item *next)
{
    switch (behavior) {
    case TOK_MERGED_WITH_PREVIOUS: return next->match && !last->match;
    case TOK_MERGED_WITH_NEXT: return last->match && !next->match;
    case TOK_CONTIGUOUS: return last->match == next->match;
    default: return false;
    }
}

dsc_status tok_pieces_next(tok_pieces *p, tok_string *piece, dsc_error *err)
{
    const tok_behavior behavior = p->splitter->behavior;
    item last, next;
    DSC_TRY(peek(p, &last, err));
    while (behavior == TOK_REMOVED && last.match && last.start < last.end) {
        move_on(p, &last);
        DSC_TRY(peek(p, &last, err));
    }
    const char *const start = last.start;
    if (last.start < last.end)
        move_on(p, &last);
    while (behavior != TOK_REMOVED && behavior != TOK_ISOLATED && last.start < last.end) {
        DSC_TRY(peek(p, &next, err));
        if (next.start == next.end || !joins(behavior, &last, &next))
            break;
        move_on(p, &next);
        last = next;
    }
    *piece = (tok_string){ start, last.end - start };
    return DSC_OK;
}
