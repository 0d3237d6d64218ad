/* json_keys.c - duplicate keys of one object, in n log n whatever an attacker chooses.
 *
 * Sorted by hash, then by text, neighbours are compared. The hash makes it fast (a million keys: half a second with all
 * the rest); the heap sort has no worse case even when all hashes are made equal, and needs no memory of its own
 * (qsort may ask malloc). SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/json_scan.h"

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
