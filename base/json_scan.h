/* json_scan.h - the strict scan behind json.h. Only base/json*.c include it. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_BASE_JSON_SCAN_H
#define DSC_BASE_JSON_SCAN_H

#include "base/json.h"

/* Lines and columns count from 1; a column is a character, not a byte. */
typedef struct dsc_json_place {
    uint32_t line;
    uint32_t column;
} dsc_json_place;

/* What a scan leaves behind. Both are owned by the caller and freed with dsc_alloc_free. */
typedef struct dsc_json_scanned {
    char *clean;            /* [bytes + 1] the text with comments and trailing commas blanked, NUL at the end */
    dsc_json_place *places; /* [count] of every value in document order */
    int64_t count;
} dsc_json_scanned;

/* On failure nothing is left allocated. */
dsc_status dsc_json_scan(dsc_alloc *alloc, const char *name, const char *text, int64_t bytes, dsc_json_dialect dialect,
                         const dsc_json_limits *limits, dsc_json_scanned *out, dsc_error *err);

/* Bytes of the valid UTF-8 character at `at`, 0 when there is none: truncated, overlong, surrogate, above U+10FFFF. */
int dsc_utf8_char_bytes(const char *at, const char *end);

#endif
