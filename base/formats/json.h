/* json.h - a strict scan in front of cJSON: limits, UTF-8 and duplicate keys.
 *
 * A document knows line:column of every value, and whether a number is an integer in its text: 1, not 1.0.
 *
 * Three dialects. CONFIG also accepts the parts of Hjson that DeepSpeed reads and real configs use. These are // and
 * block comments, # comments, trailing commas, missing commas at line ends, Python's True and False.
 * STRICT is RFC 8259 only, for checkpoints, headers and model folders. DATA is STRICT with control characters allowed
 * in keys, for texts, contexts of chat templates and vocabularies that have a line end as a token. The scan runs before
 * cJSON and passes it a cleaned copy of the same length, so positions stay right. Comments and trailing commas become
 * blanks, a missing comma replaces a blank, and True becomes true.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_BASE_FORMATS_JSON_H
#define DSC_BASE_FORMATS_JSON_H

#include <cjson/cJSON.h>

#include "base/alloc.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum dsc_json_dialect { DSC_JSON_STRICT, DSC_JSON_CONFIG, DSC_JSON_DATA } dsc_json_dialect;

typedef struct dsc_json_limits {
    int64_t bytes;   /* whole text */
    int64_t depth;   /* nested arrays and objects */
    int64_t members; /* values in the whole document */
} dsc_json_limits;
/* 1 MB, 32, 10,000: configs. Headers of model files pass their own. */
#define DSC_JSON_LIMITS_CONFIG { 1000000, 32, 10000 }
/* Config.json of a model, whose "id2label" and "label2id" may have 65,536 classes. */
#define DSC_JSON_LIMITS_MODEL                                                                                          \
    {                                                                                                                  \
        16000000, 32, 200000                                                                                           \
    }

typedef struct dsc_json dsc_json;

/* `name` (file name, borrowed until return) starts the `where` of every error: "ds_config.json:3:17". Refused is
 * everything outside the dialect:
 * - a byte order mark, NUL, invalid UTF-8 and surrogates
 * - numbers outside double's range, outside JSON's grammar (NaN, +1, 01, .5) or of more than 63 characters
 * - integers above 2^53, which a double does not hold (CONFIG accepts them)
 * - duplicate keys in one object, keys with control characters (DATA accepts these), text after the value
 *
 * Errors are DSC_ERR_CONFIG in the CONFIG dialect, else DSC_ERR_INPUT. limits.depth is at most 512. On success the
 * caller owns *out (dsc_json_close). */
DSC_MUST_USE dsc_status dsc_json_open(dsc_alloc *alloc, const char *name, const char *text, int64_t bytes,
                                      dsc_json_dialect dialect, const dsc_json_limits *limits, dsc_json **out,
                                      dsc_error *err);
void dsc_json_close(dsc_json **json);

const cJSON *dsc_json_root(const dsc_json *json); /* borrowed until close */

/* The next value at or after *index, in document order, whose text is Python's True or False; *index moves behind it.
 * NULL: no further one. Only CONFIG texts have such values; start with *index 0. */
const cJSON *dsc_json_next_python(const dsc_json *json, int64_t *index);

#define DSC_JSON_INTEGER_MAX INT64_C(9007199254740992) /* 2^53: a double skips integers above it */
/* Whether `item`, which may be NULL, is an integer of least..most in the text itself: 16, not 16.0, 1.6e1 or "16".
 * Neither is -0 where least is not negative, since a reader of unsigned integers refuses it. Both bounds are within
 * 2^53. Values of a YAML text are none. */
bool dsc_json_integer(const cJSON *item, int64_t least, int64_t most, int64_t *out);
/* Whether two values are equal: members in any order, numbers by their value. A NULL equals nothing. Objects of more
 * than DSC_JSON_UNORDERED_MAX members need the same order. Unlike cJSON_Compare it looks at each level once. */
#define DSC_JSON_UNORDERED_MAX 1000
bool dsc_json_equal(const cJSON *a, const cJSON *b);
/* "name:line:col" of a value into out (just "name" when the item is not of this document). Returns out. */
const char *dsc_json_where(const dsc_json *json, const cJSON *item, char *out, size_t out_bytes);

/* Writes text as a quoted JSON string, which is always valid UTF-8; returns the bytes needed without the NUL. Unlike
 * snprintf it never cuts a character or an escape in two: what does not fit whole is left out. */
size_t dsc_json_quote(char *out, size_t out_bytes, const char *text);

#ifdef __cplusplus
}
#endif
#endif
