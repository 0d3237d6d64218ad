/* added.c - finds added tokens in a text: of those that begin first the longest, as the tokenizers package does.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "engine/text/tokenizer_internal.h"

/* What is looked for: the token's text as it would stand in a text. */
static dsc_status pattern_of(const dsc_tokenizer *t, const tok_added *token, dsc_text buffer[2], tok_string *out,
                             dsc_error *err)
{
    *out = token->text;
    buffer[0].bytes = buffer[1].bytes = 0;
    return token->normalized ? tok_normalize(t, out, false, buffer, err) : DSC_OK;
}

static void add_pattern(tok_tree *tree, tok_string pattern, int32_t index, int32_t *node_count)
{
    int32_t node = 0;
    for (int64_t i = 0; i < pattern.bytes; i++) {
        dsc_key_slot *edge = dsc_keys_put(&tree->edges, (uint64_t)node << 8 | (unsigned char)pattern.ptr[i]);
        if (edge->a < 0)
            edge->a = ++*node_count;
        if (i == pattern.bytes - 1 && edge->b < 0)
            edge->b = index;
        node = edge->a;
    }
    tree->first[(unsigned char)pattern.ptr[0]] = true;
    tree->count++;
}

dsc_status tok_tree_open(dsc_tokenizer *t, bool normalized, tok_tree *out, dsc_error *err)
{
    dsc_text buffer[2] = { { .alloc = t->alloc }, { .alloc = t->alloc } };
    tok_string pattern;
    int64_t bytes = 0;
    int32_t node_count = 0;
    dsc_status status = DSC_OK;
    for (int32_t i = 0; i < t->added_count; i++) {
        if (t->added[i].normalized != normalized)
            continue;
        DSC_TRY_OUT(pattern_of(t, &t->added[i], buffer, &pattern, err));
        bytes += pattern.bytes;
    }
    DSC_TRY_OUT(dsc_keys_open(t->alloc, bytes, &out->edges, err));
    for (int32_t i = 0; i < t->added_count; i++) {
        if (t->added[i].normalized != normalized)
            continue;
        DSC_TRY_OUT(pattern_of(t, &t->added[i], buffer, &pattern, err));
        if (pattern.bytes > 0)
            add_pattern(out, pattern, i, &node_count);
    }
out:
    dsc_text_free(&buffer[0]);
    dsc_text_free(&buffer[1]);
    return status;
}

/* The longest token that begins at text[at]; -1: none. */
static int32_t longest_at(const tok_tree *tree, const char *text, int64_t bytes, int64_t at, int64_t *end)
{
    int32_t token = -1, node = 0;
    for (int64_t i = at; i < bytes; i++) {
        const dsc_key_slot *edge = dsc_keys_find(&tree->edges, (uint64_t)node << 8 | (unsigned char)text[i]);
        if (edge == NULL)
            break;
        if (edge->b >= 0) {
            token = edge->b;
            *end = i + 1;
        }
        node = edge->a;
    }
    return token;
}

static bool word_beside(const char *text, int64_t bytes, int64_t start, int64_t end)
{
    int length;
    if (start > 0 && dsc_char_is_word(dsc_char_at(dsc_char_before(text + start), &length)))
        return true;
    return end < bytes && dsc_char_is_word(dsc_char_at(text + end, &length));
}

static void strip(const tok_added *token, const char *text, int64_t bytes, int64_t floor, tok_match *match)
{
    int length;
    while (token->strip_left && match->start > floor) {
        const char *before = dsc_char_before(text + match->start);
        if (!dsc_char_is_space(dsc_char_at(before, &length)))
            break;
        match->start = before - text;
    }
    while (token->strip_right && match->end < bytes && dsc_char_is_space(dsc_char_at(text + match->end, &length)))
        match->end += length;
}

tok_match tok_tree_find(const dsc_tokenizer *t, const tok_tree *tree, const char *text, int64_t bytes, int64_t *at,
                        int64_t floor)
{
    tok_match none = { NULL, bytes, bytes };
    if (tree->count == 0)
        return none;
    while (*at < bytes) {
        tok_match match = { NULL, *at, *at };
        const int32_t index =
            tree->first[(unsigned char)text[*at]] ? longest_at(tree, text, bytes, *at, &match.end) : -1;
        if (index < 0) {
            ++*at;
            continue;
        }
        match.token = &t->added[index];
        *at = match.end;
        if (match.token->single_word && word_beside(text, bytes, match.start, match.end))
            continue;
        strip(match.token, text, bytes, floor, &match);
        return match;
    }
    return none;
}
