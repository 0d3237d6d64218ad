/* json_scan.h - the strict scan behind json.h, and what yaml.c shares with it. Only base/formats/json*.c and
 * base/formats/yaml.c
 * include it. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_BASE_FORMATS_JSON_SCAN_H
#define DSC_BASE_FORMATS_JSON_SCAN_H

#include "base/formats/json.h"

/* Lines and columns count from 1; a column is a character, not a byte. */
typedef struct dsc_json_pos {
    uint32_t line;
    uint32_t column;
    bool integer; /* the value there is a number of digits alone, with or without a minus */
    bool python;  /* the value there is Python's True or False, which only the CONFIG dialect accepts */
} dsc_json_pos;

/* Results of a scan. The caller owns both and frees them with dsc_alloc_free. */
typedef struct dsc_json_scanned {
    char *clean;            /* [bytes + 1] the text with comments and trailing commas blanked, NUL at the end */
    dsc_json_pos *places;   /* [count] of every value in document order */
    int64_t count;
} dsc_json_scanned;

/* On failure nothing is left allocated. */
dsc_status dsc_json_scan(dsc_alloc *alloc, const char *name, const char *text, int64_t bytes, dsc_json_dialect dialect,
                         const dsc_json_limits *limits, dsc_json_scanned *out, dsc_error *err);

/* A key of an object that is being read. */
typedef struct dsc_json_key {
    uint64_t hash;  /* of its text */
    uint32_t start; /* its text lies at key_text + start, escapes decoded */
    uint32_t bytes;
    uint32_t at;    /* in the document: orders equal keys */
    dsc_json_pos place;
} dsc_json_key;

/* Sorts the keys of one object. Returns the repeated key that comes first in the document, NULL when all differ;
 * *original is then the key it repeats. Both are borrowed from `keys`. */
const dsc_json_key *dsc_json_find_repeat(const char *key_text, dsc_json_key *keys, int64_t count,
                                         const dsc_json_key **original);

/* Fails with the message at "name:line:col"; of a long name its end is kept, so that the position always fits. */
dsc_status dsc_json_fail_at(dsc_error *err, dsc_status status, const char *name, dsc_json_pos place,
                            const char *message);
/* "duplicate key ..." at the repeat. */
dsc_status dsc_json_fail_repeat(dsc_error *err, dsc_status status, const char *name, const char *key_text,
                                const dsc_json_key *repeat, const dsc_json_key *original);
/* Makes room for `more` elements after `count`, by doubling. */
dsc_status dsc_json_reserve(dsc_alloc *alloc, void **array, int64_t count, int64_t *capacity, int64_t more,
                            int64_t bytes_each, dsc_error *err);

/* A document of a tree that was built elsewhere, of a text of `bytes`, and the places of its values in document order.
 * Both are moved, also on failure. */
dsc_status dsc_json_adopt(dsc_alloc *alloc, const char *name, int64_t bytes, cJSON *root, dsc_json_pos *places,
                          int64_t count, dsc_json **out, dsc_error *err);

#endif
