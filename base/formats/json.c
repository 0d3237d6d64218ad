/* json.c - a document: cJSON's tree of a text that passed the scan, and the place of each of its values.
 *
 * The scan and cJSON meet the values in the same order, so the n-th value of a walk over the tree has the n-th place.
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/formats/json.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/formats/json_scan.h"
#include "base/formats/utf8.h"

struct dsc_json {
    dsc_alloc *alloc;
    char *name;
    cJSON *root;
    const cJSON **items;    /* [count] in document order */
    dsc_json_pos *places;   /* [count] */
    int64_t count;
    int64_t noted_bytes; /* counted for cJSON, which allocates by malloc */
};

/* cJSON keeps a number as a double alone, so the scan's knowledge is a bit of its type. cJSON uses the bits below 2^10
 * and compares types by their lowest byte. */
#define INTEGER_MARK (1 << 16)

/* Depth is bounded by the scan. Stops at json->count: a tree of another size is our bug or cJSON's. */
static void collect(dsc_json *json, cJSON *item, int64_t *index)
{
    if (*index < json->count) {
        json->items[*index] = item;
        if (json->places[*index].integer)
            item->type |= INTEGER_MARK;
    }
    (*index)++;
    for (cJSON *child = item->child; child != NULL; child = child->next)
        collect(json, child, index);
}

dsc_status dsc_json_adopt(dsc_alloc *alloc, const char *name, int64_t bytes, cJSON *root, dsc_json_pos *places,
                          int64_t count, dsc_json **out, dsc_error *err)
{
    dsc_json *json = NULL;
    int64_t index = 0;
    *out = NULL;
    dsc_status status = dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, 1, sizeof *json, &json, err);
    if (status != DSC_OK) {
        cJSON_Delete(root);
        dsc_alloc_free(alloc, places);
        return status;
    }
    *json = (dsc_json){ .alloc = alloc, .root = root, .places = places, .count = count };
    /* One node a value, its strings within the text; malloc's headers are small beside them. */
    const int64_t guess = count * (int64_t)sizeof(cJSON) + bytes;
    DSC_TRY_OUT(dsc_alloc_note(alloc, DSC_TAG_CONTROL, DSC_TIER_HOST, guess, err));
    json->noted_bytes = guess;
    DSC_TRY_OUT(dsc_alloc_strdup(alloc, DSC_TAG_CONTROL, name, &json->name, err));
    DSC_TRY_OUT(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, count, sizeof *json->items, &json->items, err));
    collect(json, root, &index);
    if (index != count) {
        status = DSC_FAIL(err, DSC_ERR_INTERNAL, json->name, "the tree has %lld values, the scan found %lld",
                          (long long)index, (long long)count);
        goto out;
    }
    *out = json;
    return DSC_OK;
out:
    dsc_json_close(&json);
    return status;
}

dsc_status dsc_json_open(dsc_alloc *alloc, const char *name, const char *text, int64_t bytes, dsc_json_dialect dialect,
                         const dsc_json_limits *limits, dsc_json **out, dsc_error *err)
{
    dsc_json_scanned scanned;
    *out = NULL;
    DSC_TRY(dsc_json_scan(alloc, name, text, bytes, dialect, limits, &scanned, err));
    cJSON *root = cJSON_ParseWithLengthOpts(scanned.clean, (size_t)bytes + 1, NULL, true);
    dsc_alloc_free(alloc, scanned.clean);
    if (root == NULL) {
        dsc_alloc_free(alloc, scanned.places);
        return DSC_FAIL(err, DSC_ERR_NOMEM, name, "out of host memory: cJSON could not hold %lld values",
                        (long long)scanned.count);
    }
    return dsc_json_adopt(alloc, name, bytes, root, scanned.places, scanned.count, out, err);
}

void dsc_json_close(dsc_json **json_ptr)
{
    dsc_json *json = *json_ptr;
    if (json == NULL)
        return;
    cJSON_Delete(json->root);
    if (json->noted_bytes > 0)
        dsc_alloc_unnote(json->alloc, DSC_TAG_CONTROL, DSC_TIER_HOST, json->noted_bytes);
    dsc_alloc_free(json->alloc, (void *)json->items);
    dsc_alloc_free(json->alloc, json->places);
    dsc_alloc_free(json->alloc, json->name);
    dsc_alloc_free(json->alloc, json);
    *json_ptr = NULL;
}

bool dsc_json_integer(const cJSON *item, int64_t least, int64_t most, int64_t *out)
{
    DSC_ASSERT(least >= -DSC_JSON_INTEGER_MAX);
    DSC_ASSERT(most <= DSC_JSON_INTEGER_MAX);
    if (!cJSON_IsNumber(item) || (item->type & INTEGER_MARK) == 0 || (least >= 0 && signbit(item->valuedouble)))
        return false;
    if (!(item->valuedouble >= (double)least) || !(item->valuedouble <= (double)most))
        return false;
    *out = (int64_t)item->valuedouble;
    return true;
}

/* The member of this name, searched from `from` on and then from the beginning. */
static const cJSON *find_member(const cJSON *object, const cJSON *from, const char *name, int64_t most)
{
    const cJSON *at = from;
    for (int64_t i = 0; at != NULL && i < most; i++) {
        if (strcmp(at->string, name) == 0)
            return at;
        at = at->next != NULL ? at->next : object->child;
    }
    return NULL;
}

static bool equal_objects(const cJSON *a, const cJSON *b)
{
    const int64_t count = cJSON_GetArraySize(a);
    const cJSON *from = b->child;
    if (cJSON_GetArraySize(b) != count)
        return false;
    for (const cJSON *each = a->child; each != NULL; each = each->next) {
        const cJSON *other = find_member(b, from, each->string, count <= DSC_JSON_UNORDERED_MAX ? count : 1);
        if (other == NULL || !dsc_json_equal(each, other))
            return false;
        from = other->next != NULL ? other->next : b->child;
    }
    return true;
}

/* Depth is bounded by the scan. */
bool dsc_json_equal(const cJSON *a, const cJSON *b)
{
    if (a == NULL || b == NULL || (a->type & 0xff) != (b->type & 0xff))
        return false;
    if (cJSON_IsString(a))
        return strcmp(a->valuestring, b->valuestring) == 0;
    if (cJSON_IsNumber(a))
        return a->valuedouble == b->valuedouble;
    if (cJSON_IsObject(a))
        return equal_objects(a, b);
    const cJSON *x = a->child, *y = b->child;
    for (; x != NULL && y != NULL; x = x->next, y = y->next)
        if (!dsc_json_equal(x, y))
            return false;
    return x == NULL && y == NULL;
}

const cJSON *dsc_json_next_python(const dsc_json *json, int64_t *index)
{
    while (*index < json->count) {
        const int64_t i = (*index)++;
        if (json->places[i].python)
            return json->items[i];
    }
    return NULL;
}

const cJSON *dsc_json_root(const dsc_json *json)
{
    return json->root;
}

const char *dsc_json_where(const dsc_json *json, const cJSON *item, char *out, size_t out_bytes)
{
    /* A linear search: 10,000 values take microseconds, and positions are asked for errors and warnings. */
    for (int64_t i = 0; item != NULL && i < json->count; i++) {
        if (json->items[i] == item) {
            snprintf(out, out_bytes, "%s:%u:%u", json->name, json->places[i].line, json->places[i].column);
            return out;
        }
    }
    snprintf(out, out_bytes, "%s", json->name);
    return out;
}

/* Appends a piece that fits whole; `used` counts it either way. */
static size_t append(char *out, size_t out_bytes, size_t used, const char *piece, size_t piece_bytes)
{
    if (used + piece_bytes < out_bytes) {
        memcpy(out + used, piece, piece_bytes);
        out[used + piece_bytes] = 0;
    }
    return used + piece_bytes;
}

size_t dsc_json_quote(char *out, size_t out_bytes, const char *text)
{
    const char *const end = text + strlen(text);
    if (out_bytes > 0)
        out[0] = 0;
    size_t used = append(out, out_bytes, 0, "\"", 1);
    while (text < end) {
        const int bytes = dsc_utf8_char_bytes(text, end);
        char escape[8] = "";
        if (bytes == 0)
            snprintf(escape, sizeof escape, "\\ufffd"); /* not UTF-8, which JSON must be */
        else if (*text == '"' || *text == '\\')
            snprintf(escape, sizeof escape, "\\%c", *text);
        else if (bytes == 1 && ((unsigned char)*text < 0x20 || *text == 0x7f))
            snprintf(escape, sizeof escape, "\\u%04x", (unsigned)*text);
        if (escape[0] != 0)
            used = append(out, out_bytes, used, escape, strlen(escape));
        else
            used = append(out, out_bytes, used, text, (size_t)bytes);
        text += bytes > 0 ? bytes : 1;
    }
    return append(out, out_bytes, used, "\"", 1);
}
