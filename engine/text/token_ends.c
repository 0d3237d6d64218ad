/* token_ends.c - see token_ends.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/text/token_ends.h"

#include <string.h>

#include "engine/text/tokenizer_internal.h"

typedef struct spelling {
    int64_t start; /* in dsc_token_map.text */
    int32_t bytes; /* -1: the token has no spelling */
    int32_t added; /* index of the added token, -1: none */
} spelling;

struct dsc_token_map {
    dsc_alloc *alloc;
    const dsc_tokenizer *tokenizer;
    spelling *of; /* [count] */
    int64_t count;
    dsc_text text;
    bool always_prefixed, prefixed; /* a space is put before each text; before a text without one */
};

static bool is_marked(const dsc_tokenizer *t)
{
    for (int32_t i = 0; i < t->splitter_count; i++)
        if (t->splitter[i].kind == TOK_METASPACE)
            return true;
    for (int32_t i = 0; i < t->normalizer_count; i++)
        if (t->normalizer[i].kind == TOK_REPLACE && t->normalizer[i].to.bytes == 3 &&
            memcmp(t->normalizer[i].to.ptr, DSC_SPACE_MARK, 3) == 0)
            return true;
    return false;
}

static int hex_digit(char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1; }

/* The byte of "<0x0A>", -1: another name. */
static int fallback_byte(const dsc_tokenizer *t, const char *name)
{
    const bool has_bytes = t->bpe.byte_fallback || t->unigram.byte_fallback;
    if (!has_bytes || strlen(name) != 6 || memcmp(name, "<0x", 3) != 0 || name[5] != '>' ||
        hex_digit(name[3]) < 0 || hex_digit(name[4]) < 0)
        return -1;
    return 16 * hex_digit(name[3]) + hex_digit(name[4]);
}

static dsc_status spell_bytes(dsc_token_map *map, const char *name, bool *known, dsc_error *err)
{
    int length;
    *known = true;
    for (const char *at = name; *at != 0 && *known; at += length) {
        const int byte = dsc_char_byte(dsc_char_at(at, &length));
        const char c = (char)byte;
        *known = byte >= 0;
        if (*known)
            DSC_TRY(dsc_text_add(&map->text, &c, 1, err));
    }
    return DSC_OK;
}

static dsc_status spell(dsc_token_map *map, const char *name, bool marked, bool *known, dsc_error *err)
{
    const dsc_tokenizer *t = map->tokenizer;
    const tok_string space = { " ", 1 }, mark = { DSC_SPACE_MARK, 3 };
    *known = true;
    if (t->model == TOK_BPE && t->bpe.of_bytes)
        return spell_bytes(map, name, known, err);
    const int byte = fallback_byte(t, name);
    const char c = (char)byte;
    if (byte >= 0)
        return dsc_text_add(&map->text, &c, 1, err);
    const tok_string whole = { name, (int64_t)strlen(name) };
    if (marked)
        return tok_replace_all(whole, mark, space, &map->text, err);
    return dsc_text_add(&map->text, whole.ptr, whole.bytes, err);
}

static dsc_status spell_all(dsc_token_map *map, dsc_error *err)
{
    const dsc_tokenizer *t = map->tokenizer;
    const bool marked = is_marked(t);
    map->count = dsc_tokenizer_vocab_size(t);
    DSC_TRY(dsc_alloc_zeroed(map->alloc, DSC_TAG_DATA, map->count, sizeof *map->of, &map->of, err));
    for (int64_t id = 0; id < map->count; id++)
        map->of[id] = (spelling){ .bytes = -1, .added = -1 };
    for (int32_t i = 0; i < t->added_count; i++)
        if (t->added[i].id >= 0 && t->added[i].id < map->count)
            map->of[t->added[i].id].added = i;
    for (int64_t id = 0; id < map->count; id++) {
        const char *name = dsc_tokenizer_token(t, (int32_t)id);
        bool known = true;
        if (name == NULL)
            continue;
        map->of[id].start = map->text.bytes;
        if (map->of[id].added >= 0)
            DSC_TRY(dsc_text_add(&map->text, name, (int64_t)strlen(name), err));
        else
            DSC_TRY(spell(map, name, marked, &known, err));
        map->of[id].bytes = known ? (int32_t)(map->text.bytes - map->of[id].start) : -1;
    }
    return DSC_OK;
}

dsc_status dsc_token_map_open(dsc_alloc *alloc, const dsc_tokenizer *t, dsc_token_map **out, dsc_error *err)
{
    dsc_token_map *map = NULL;
    *out = NULL;
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_DATA, 1, sizeof *map, &map, err));
    *map = (dsc_token_map){ .alloc = alloc, .tokenizer = t, .text = { .alloc = alloc } };
    for (int32_t i = 0; i < t->normalizer_count; i++)
        map->always_prefixed |= t->normalizer[i].kind == TOK_PREPEND;
    for (int32_t i = 0; i < t->splitter_count; i++)
        map->prefixed |= t->splitter[i].kind != TOK_SPLIT && t->splitter[i].prepend != TOK_PREPEND_NEVER;
    const dsc_status status = spell_all(map, err);
    if (status != DSC_OK)
        dsc_token_map_close(&map);
    *out = map;
    return status;
}

void dsc_token_map_close(dsc_token_map **map)
{
    if (*map == NULL)
        return;
    dsc_alloc *alloc = (*map)->alloc;
    dsc_text_free(&(*map)->text);
    dsc_alloc_free(alloc, (*map)->of);
    dsc_alloc_free(alloc, *map);
    *map = NULL;
}

/* A part of the text that the tokens are compared with. */
typedef struct reading {
    const char *text;
    int64_t bytes, at;
    bool begins; /* at the text's beginning or behind an added token, where a tokenizer may put a space */
} reading;

static bool has(const reading *r, const char *spelled, int64_t bytes)
{
    return bytes <= r->bytes - r->at && memcmp(r->text + r->at, spelled, (size_t)bytes) == 0;
}

static void skip_spaces(reading *r)
{
    int length;
    while (r->at < r->bytes && dsc_char_is_space(dsc_char_at(r->text + r->at, &length)))
        r->at += length;
}

static bool read_added(reading *r, const tok_added *added, const char *spelled, int64_t bytes)
{
    if (added->strip_left && !has(r, spelled, bytes))
        skip_spaces(r);
    if (!has(r, spelled, bytes))
        return false;
    r->at += bytes;
    if (added->strip_right)
        skip_spaces(r);
    r->begins = true;
    return true;
}

static bool read_token(const dsc_token_map *map, reading *r, int32_t id)
{
    if (id < 0 || id >= map->count || map->of[id].bytes < 0)
        return false;
    const spelling *of = &map->of[id];
    const char *spelled = map->text.ptr + of->start;
    if (of->added >= 0)
        return read_added(r, &map->tokenizer->added[of->added], spelled, of->bytes);
    const bool spaced = of->bytes > 0 && spelled[0] == ' ';
    const bool put = r->begins && spaced &&
                     (map->always_prefixed || (map->prefixed && (r->at == r->bytes || r->text[r->at] != ' ')));
    r->begins = false;
    if (!put && has(r, spelled, of->bytes)) {
        r->at += of->bytes;
        return true;
    }
    if (!spaced || !(map->always_prefixed || map->prefixed) || !has(r, spelled + 1, of->bytes - 1))
        return false;
    r->at += of->bytes - 1;
    return true;
}

bool dsc_token_map_ends(const dsc_token_map *map, const char *text, int64_t bytes, const int32_t *ids, int64_t count,
                        int64_t *ends)
{
    reading r = { .text = text, .bytes = bytes, .begins = true };
    for (int64_t i = 0; i < count; i++) {
        if (!read_token(map, &r, ids[i]))
            return false;
        ends[i] = r.at;
    }
    return r.at == bytes;
}

bool dsc_token_map_is_blank(const dsc_token_map *map, int32_t id)
{
    if (id < 0 || id >= map->count || map->of[id].bytes < 0 || map->of[id].added >= 0)
        return false;
    for (int32_t i = 0; i < map->of[id].bytes; i++) {
        const char c = map->text.ptr[map->of[id].start + i];
        if (c != ' ' && c != '\t' && c != '\r' && c != '\n')
            return false;
    }
    return true;
}

bool dsc_token_map_is_special(const dsc_token_map *map, int32_t id)
{
    return id >= 0 && id < map->count && map->of[id].added >= 0 && map->tokenizer->added[map->of[id].added].special;
}

void dsc_tokenizer_around(const dsc_tokenizer *tokenizer, int64_t *before, int64_t *after)
{
    *before = tokenizer->before_count;
    *after = tokenizer->after_count;
}
