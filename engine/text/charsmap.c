/* charsmap.c - see charsmap.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/text/charsmap.h"

#include <string.h>

#include "engine/text/unicode.h"

#define CLUSTER_BYTES_MAX 5
#define GROWTH_MAX 64 /* published maps make a character at most 33 bytes */

struct dsc_charsmap {
    dsc_alloc *alloc;
    uint8_t *bytes; /* decoded: size, tree, replacements */
    int64_t unit_count;
    const char *text; /* the replacements */
    int64_t text_bytes;
    bool stays[128]; /* characters of ASCII that are not replaced */
};

/* ---- Base64 ---- */

static int base64_digit(char c)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *at = c != 0 ? strchr(digits, c) : NULL;
    return at != NULL ? (int)(at - digits) : -1;
}

/* Four digits at a time, the last ones padded with "="; -1: not base64. */
static int64_t decode_base64(const char *text, int64_t bytes, uint8_t *out)
{
    int64_t count = 0;
    if (bytes % 4 != 0)
        return -1;
    for (int64_t i = 0; i < bytes; i += 4) {
        const int padding = i + 4 < bytes || text[i + 3] != '=' ? 0 : text[i + 2] != '=' ? 1 : 2;
        uint32_t word = 0;
        for (int k = 0; k < 4; k++) {
            const int digit = k < 4 - padding ? base64_digit(text[i + k]) : 0;
            if (digit < 0)
                return -1;
            word = word << 6 | (uint32_t)digit;
        }
        for (int k = 0; k < 3 - padding; k++)
            out[count++] = (uint8_t)(word >> (16 - 8 * k));
    }
    return count;
}

/* ---- The tree ---- */

static uint32_t read_u32(const uint8_t *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static uint32_t unit_at(const dsc_charsmap *map, uint32_t index)
{
    return read_u32(map->bytes + 4 + 4 * (int64_t)index);
}

static uint32_t unit_offset(uint32_t unit)
{
    return (unit >> 10) << ((unit & 0x200) >> 6);
}

static dsc_status refuse_map(const char *what, dsc_error *err)
{
    return DSC_FAIL(err, DSC_ERR_INPUT, "tokenizer", "the precompiled_charsmap of the normalizer %s; write the "
                    "tokenizer.json again from its source", what);
}

/* The replacement at a leaf's position. */
static dsc_status replacement(const dsc_charsmap *map, int64_t at, dsc_charsmap_part *part, dsc_error *err)
{
    if (at > map->text_bytes || ((unsigned char)map->text[at] & 0xc0) == 0x80) /* bytes[] ends with a NUL */
        return refuse_map("points outside of its replacements", err);
    const int64_t most = dsc_min_i64(map->text_bytes - at, DSC_CHARSMAP_BYTES_MAX + 1);
    part->replaced = true;
    part->to = map->text + at;
    part->to_bytes = (int64_t)strnlen(part->to, (size_t)most);
    return part->to_bytes <= DSC_CHARSMAP_BYTES_MAX ? DSC_OK : refuse_map("has a replacement of over 1024 bytes", err);
}

/* The shortest entry that `part` begins with. */
static dsc_status find_entry(const dsc_charsmap *map, dsc_charsmap_part *part, dsc_error *err)
{
    uint32_t node = unit_offset(unit_at(map, 0));
    for (int64_t i = 0; i < part->from_bytes && part->from[i] != 0; i++) {
        const uint32_t byte = (unsigned char)part->from[i];
        node ^= byte;
        if (node >= map->unit_count)
            return refuse_map("points outside of its tree", err);
        const uint32_t unit = unit_at(map, node);
        if ((unit & 0x800000ff) != byte)
            return DSC_OK;
        node ^= unit_offset(unit);
        if ((unit >> 8 & 1) == 0)
            continue;
        if (node >= map->unit_count)
            return refuse_map("points outside of its tree", err);
        return replacement(map, (int64_t)(unit_at(map, node) & 0x7fffffff), part, err);
    }
    return DSC_OK;
}

/* ---- A text ---- */

dsc_charsmap_walk dsc_charsmap_start(const dsc_charsmap *map, const char *text, int64_t bytes)
{
    return (dsc_charsmap_walk){ .map = map, .at = text, .end = text + bytes, .cluster_end = text };
}

dsc_status dsc_charsmap_next(dsc_charsmap_walk *walk, dsc_charsmap_part *part, dsc_error *err)
{
    int length;
    *part = (dsc_charsmap_part){ .from = walk->at, .to = walk->at };
    if (walk->at == walk->end)
        return DSC_OK;
    if (walk->at == walk->cluster_end) {
        walk->cluster_end = dsc_char_cluster_end(walk->at, walk->end);
        part->from_bytes = walk->cluster_end - walk->at;
        if (part->from_bytes <= CLUSTER_BYTES_MAX)
            DSC_TRY(find_entry(walk->map, part, err));
        if (part->replaced) {
            walk->at = walk->cluster_end;
            return DSC_OK;
        }
    }
    (void)dsc_char_at(walk->at, &length);
    walk->at += length;
    part->from_bytes = part->to_bytes = length;
    return find_entry(walk->map, part, err);
}

/* Bytes at the start that stay and are clusters for themselves: ASCII before ASCII. */
static int64_t bytes_that_stay(const dsc_charsmap *map, const char *text, int64_t bytes)
{
    int64_t i = 0;
    while (i < bytes && (unsigned char)text[i] < 0x80 && text[i] != '\r' && map->stays[(unsigned char)text[i]] &&
           (i + 1 == bytes || (unsigned char)text[i + 1] < 0x80))
        i++;
    return i;
}

dsc_status dsc_charsmap_apply(const dsc_charsmap *map, const char *text, int64_t bytes, dsc_text *out, dsc_error *err)
{
    dsc_charsmap_walk walk = dsc_charsmap_start(map, text, bytes);
    dsc_charsmap_part part;
    const int64_t before = out->bytes;
    for (;;) {
        if (walk.at == walk.cluster_end) {
            const int64_t same = bytes_that_stay(map, walk.at, walk.end - walk.at);
            DSC_TRY(dsc_text_add(out, walk.at, same, err));
            walk.cluster_end = walk.at += same;
        }
        DSC_TRY(dsc_charsmap_next(&walk, &part, err));
        if (part.from_bytes == 0)
            return DSC_OK;
        if (out->bytes - before > GROWTH_MAX * bytes + 4096)
            return DSC_FAIL(
                err, DSC_ERR_INPUT, "normalizer",
                "the charsmap makes a text of %lld bytes more than %d times as long; such a map is not read",
                (long long)bytes, GROWTH_MAX);
        DSC_TRY(dsc_text_add(out, part.to, part.to_bytes, err));
    }
}

/* ---- The file ---- */

static dsc_status find_parts(dsc_charsmap *map, const char *base64, int64_t digits, const char *where, dsc_error *err)
{
    const int64_t bytes = decode_base64(base64, digits, map->bytes);
    if (bytes < 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, where, "a precompiled_charsmap that is not base64");
    const int64_t tree = bytes >= 4 ? read_u32(map->bytes) / 4 : 0;
    map->bytes[bytes] = 0;
    map->unit_count = tree;
    map->text = (const char *)map->bytes + 4 + 4 * tree;
    map->text_bytes = bytes - 4 - 4 * tree;
    if (tree == 0 || map->text_bytes < 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, where, "a precompiled_charsmap of %lld bytes with a tree of %lld; expected "
                        "a tree and its replacements", (long long)bytes, (long long)(4 * tree));
    if (!dsc_utf8_is_valid(map->text, map->text_bytes))
        return DSC_FAIL(err, DSC_ERR_INPUT, where, "a precompiled_charsmap whose replacements are not UTF-8");
    for (int c = 0; c < 128; c++) {
        const char byte = (char)c;
        dsc_charsmap_part part = { .from = &byte, .from_bytes = 1 };
        map->stays[c] = find_entry(map, &part, NULL) == DSC_OK && !part.replaced;
    }
    return DSC_OK;
}

dsc_status dsc_charsmap_open(dsc_alloc *alloc, const char *base64, const char *where, dsc_charsmap **out,
                             dsc_error *err)
{
    const int64_t digits = (int64_t)strlen(base64);
    dsc_charsmap *map = NULL;
    *out = NULL;
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_DATA, 1, sizeof *map, &map, err));
    map->alloc = alloc;
    dsc_status status = dsc_alloc_zeroed(alloc, DSC_TAG_DATA, digits / 4 * 3 + 4, 1, &map->bytes, err);
    if (status == DSC_OK)
        status = find_parts(map, base64, digits, where, err);
    if (status != DSC_OK)
        dsc_charsmap_close(&map);
    *out = map;
    return status;
}

void dsc_charsmap_close(dsc_charsmap **map)
{
    if (*map == NULL)
        return;
    dsc_alloc *alloc = (*map)->alloc;
    dsc_alloc_free(alloc, (*map)->bytes);
    dsc_alloc_free(alloc, *map);
    *map = NULL;
}
