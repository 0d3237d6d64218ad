/* json_keys.c - common parts of the JSON and YAML readers: errors with a position, growing arrays, duplicate keys.
 * Duplicate keys of one object are found in n log n for any input of an attacker.
 *
 * Keys are sorted by hash, then by text, and neighbours are compared. The hash makes it fast: a million keys take half
 * a second in all. The heap sort has no worse case for equal hashes and needs no memory, while qsort may call malloc.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "base/formats/json_scan.h"

/* Any fixed order will do that puts equal keys side by side, in document order. */
static int compare_keys(const char *key_text, const dsc_json_key *a, const dsc_json_key *b)
{
    if (a->hash != b->hash)
        return a->hash < b->hash ? -1 : 1;
    if (a->bytes != b->bytes)
        return a->bytes < b->bytes ? -1 : 1;
    const int order = memcmp(key_text + a->start, key_text + b->start, a->bytes);
    if (order != 0)
        return order;
    return a->at < b->at ? -1 : a->at > b->at;
}

static void sort_keys(const char *key_text, dsc_json_key *keys, int64_t count)
{
    int64_t root_start = count / 2;
    for (int64_t end = count; end > 1;) {
        if (root_start > 0) { /* first the heap is built from its leaves up, then its largest goes to the end */
            root_start--;
        } else {
            end--;
            const dsc_json_key swap = keys[0];
            keys[0] = keys[end];
            keys[end] = swap;
        }
        const dsc_json_key sifted = keys[root_start];
        int64_t root = root_start;
        for (int64_t child = 2 * root + 1; child < end; child = 2 * root + 1) {
            if (child + 1 < end && compare_keys(key_text, &keys[child], &keys[child + 1]) < 0)
                child++;
            if (compare_keys(key_text, &sifted, &keys[child]) >= 0)
                break;
            keys[root] = keys[child];
            root = child;
        }
        keys[root] = sifted;
    }
}

const dsc_json_key *dsc_json_find_repeat(const char *key_text, dsc_json_key *keys, int64_t count,
                                         const dsc_json_key **original)
{
    const dsc_json_key *repeat = NULL;
    sort_keys(key_text, keys, count);
    for (int64_t i = 1; i < count; i++) {
        const bool same = keys[i].hash == keys[i - 1].hash && keys[i].bytes == keys[i - 1].bytes &&
                          memcmp(key_text + keys[i].start, key_text + keys[i - 1].start, keys[i].bytes) == 0;
        if (same && (repeat == NULL || keys[i].at < repeat->at)) {
            repeat = &keys[i];
            *original = &keys[i - 1];
        }
    }
    return repeat;
}

dsc_status dsc_json_fail_at(dsc_error *err, dsc_status status, const char *name, dsc_json_pos place,
                            const char *message)
{
    const size_t name_bytes = strlen(name);
    const char *end = name_bytes > 200 ? name + name_bytes - 200 : name;
    char where[256];
    snprintf(where, sizeof where, "%s%s:%u:%u", end == name ? "" : "...", end, place.line, place.column);
    return DSC_FAIL(err, status, where, "%s", message);
}

dsc_status dsc_json_fail_repeat(dsc_error *err, dsc_status status, const char *name, const char *key_text,
                                const dsc_json_key *repeat, const dsc_json_key *original)
{
    char message[256];
    const char *text = key_text + repeat->start;
    int shown = repeat->bytes <= 128 ? (int)repeat->bytes : 128;
    while (shown < (int)repeat->bytes && shown > 0 && (text[shown] & 0xc0) == 0x80)
        shown--; /* not half a character */
    snprintf(message, sizeof message, "duplicate key \"%.*s%s\" (first at line %u)", shown, text,
             shown < (int)repeat->bytes ? "..." : "", original->place.line);
    return dsc_json_fail_at(err, status, name, repeat->place, message);
}

dsc_status dsc_json_reserve(dsc_alloc *alloc, void **array, int64_t count, int64_t *capacity, int64_t more,
                            int64_t bytes_each, dsc_error *err)
{
    if (*capacity - count >= more)
        return DSC_OK;
    const int64_t wider_capacity = dsc_max_i64(dsc_max_i64(64, 2 * *capacity), count + more);
    void *wider = NULL;
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, wider_capacity, bytes_each, &wider, err));
    if (count > 0)
        memcpy(wider, *array, (size_t)(count * bytes_each));
    dsc_alloc_free(alloc, *array);
    *array = wider;
    *capacity = wider_capacity;
    return DSC_OK;
}
