/* added.c - finds added tokens in a text: of those that begin first the longest, as the tokenizers package does.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "engine/text/tokenizer_internal.h"

/* Search text: the token's text as it appears in input. */
static dsc_status pattern_of(const dsc_tokenizer *t, const tok_added *token, dsc_text buffer[TOK_NORMAL_BUFFERS],
                             tok_string *out, dsc_error *err)
{
    int64_t lead;
    *out = token->text;
    return token->normalized ? tok_normalize(t, out, false, &lead, buffer, err) : DSC_OK;
}

dsc_status tok_added_open(dsc_tokenizer *t, bool normalized, dsc_tree *out, dsc_error *err)
{
    dsc_text buffer[TOK_NORMAL_BUFFERS] = { { .alloc = t->alloc }, { .alloc = t->alloc }, { .alloc = t->alloc } };
    tok_string pattern;
    int64_t bytes = 0;
    dsc_status status = DSC_OK;
    for (int32_t i = 0; i < t->added_count; i++) {
        if (t->added[i].normalized != normalized)
            continue;
        DSC_TRY_OUT(pattern_of(t, &t->added[i], buffer, &pattern, err));
        bytes += pattern.bytes;
    }
    DSC_TRY_OUT(dsc_tree_open(t->alloc, bytes, out, err));
    for (int32_t i = 0; i < t->added_count; i++) {
        if (t->added[i].normalized != normalized)
            continue;
        DSC_TRY_OUT(pattern_of(t, &t->added[i], buffer, &pattern, err));
        dsc_tree_add(out, pattern.ptr, pattern.bytes, i);
    }
out:
    for (int i = 0; i < TOK_NORMAL_BUFFERS; i++)
        dsc_text_free(&buffer[i]);
    return status;
}

static bool word_beside(const char *text, int64_t bytes, int64_t start, int64_t end)
{
    int length;
    if (start > 0 && dsc_char_is_word(dsc_char_at(dsc_char_before(text + start), &length)))
        return true;
    return end < bytes && dsc_char_is_word(dsc_char_at(text + end, &length));
}

/* A token that strips on its left begins at the floor or later, even if the match was before the floor, and may become
 * empty. The tokenizers package does not move other tokens. */
static void strip(const tok_added *token, const char *text, int64_t bytes, int64_t floor, tok_match *match)
{
    int length;
    if (token->strip_left)
        match->start = dsc_max_i64(match->start, floor);
    while (token->strip_left && match->start > floor) {
        const char *before = dsc_char_before(text + match->start);
        if (!dsc_char_is_space(dsc_char_at(before, &length)))
            break;
        match->start = before - text;
    }
    while (token->strip_right && match->end < bytes && dsc_char_is_space(dsc_char_at(text + match->end, &length)))
        match->end += length;
}

tok_match tok_added_find(const dsc_tokenizer *t, const dsc_tree *tree, const char *text, int64_t bytes, int64_t *at,
                         int64_t floor)
{
    tok_match none = { NULL, bytes, bytes };
    if (dsc_tree_is_empty(tree))
        return none;
    while (*at < bytes) {
        tok_match match = { NULL, *at, *at };
        int64_t length = 0;
        const int32_t index = dsc_tree_longest(tree, 0, text + *at, bytes - *at, &length);
        if (index < 0) {
            ++*at;
            continue;
        }
        match.token = &t->added[index];
        *at = match.end += length;
        if (match.token->single_word && word_beside(text, bytes, match.start, match.end))
            continue;
        strip(match.token, text, bytes, floor, &match);
        if (match.start < match.end)
            return match;
    }
    return none;
}
