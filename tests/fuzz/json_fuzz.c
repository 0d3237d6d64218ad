/* json_fuzz.c - any bytes as JSON: no crash, and cJSON reads every accepted text in the same way.
 *
 * Promises checked: an error is of the dialect's kind and names a position. Strict JSON is also a config, with an equal
 * tree. A printed tree is read back equal, every value has a position, and every quoted text is JSON.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/formats/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static dsc_json *open_json(dsc_alloc *alloc, const char *text, size_t bytes, dsc_json_dialect dialect)
{
    const dsc_json_limits limits = { .bytes = 1 << 20, .depth = 64, .members = 5000 };
    dsc_error err = DSC_ERROR_INIT;
    dsc_json *json = NULL;
    const dsc_status status = dsc_json_open(alloc, "f", text, (int64_t)bytes, dialect, &limits, &json, &err);
    if (status == DSC_OK)
        return json;
    unsigned line = 0, column = 0;
    DSC_ASSERT(json == NULL);
    DSC_ASSERT(status == (dialect == DSC_JSON_CONFIG ? DSC_ERR_CONFIG : DSC_ERR_INPUT));
    DSC_ASSERT(err.message[0] != 0);
    DSC_ASSERT(sscanf(err.where, "f:%u:%u", &line, &column) == 2);
    DSC_ASSERT(line >= 1 && column >= 1 && line + column <= bytes + 2);
    return NULL;
}

static void check_places(const dsc_json *json, const cJSON *item)
{
    char where[64];
    unsigned line = 0, column = 0;
    DSC_ASSERT(sscanf(dsc_json_where(json, item, where, sizeof where), "f:%u:%u", &line, &column) == 2);
    for (const cJSON *child = item->child; child != NULL; child = child->next)
        check_places(json, child);
}

/* The text that cJSON prints is a document that prints the same. cJSON_Compare would take twice the time for each level
 * of objects. */
static void check_round_trip(dsc_alloc *alloc, const cJSON *root)
{
    char *text = cJSON_PrintUnformatted(root);
    if (text == NULL)
        return;
    dsc_json *again = open_json(alloc, text, strlen(text), DSC_JSON_CONFIG); /* 1e300 is printed as an integer */
    DSC_ASSERT(again != NULL);
    char *second = cJSON_PrintUnformatted(dsc_json_root(again));
    DSC_ASSERT(second == NULL || strcmp(text, second) == 0);
    free(second);
    dsc_json_close(&again);
    free(text);
}

static void check_quote(dsc_alloc *alloc, const char *text)
{
    const size_t bytes = dsc_json_quote(NULL, 0, text);
    char *quoted = malloc(bytes + 1);
    if (quoted == NULL)
        return;
    DSC_ASSERT(dsc_json_quote(quoted, bytes + 1, text) == bytes);
    DSC_ASSERT(strlen(quoted) == bytes);
    dsc_json *json = open_json(alloc, quoted, bytes, DSC_JSON_STRICT);
    DSC_ASSERT(json != NULL || bytes > 1 << 20);
    dsc_json_close(&json);
    free(quoted);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    dsc_error err = DSC_ERROR_INIT;
    dsc_alloc *alloc = NULL;
    char *text = malloc(bytes + 1);
    if (text == NULL || dsc_alloc_open(&alloc, &err) != DSC_OK) {
        free(text);
        return 0;
    }
    memcpy(text, data, bytes);
    text[bytes] = 0;
    dsc_json *strict = open_json(alloc, (const char *)data, bytes, DSC_JSON_STRICT);
    dsc_json *config = open_json(alloc, (const char *)data, bytes, DSC_JSON_CONFIG);
    if (strict != NULL) {
        DSC_ASSERT(config != NULL);
        DSC_ASSERT(dsc_json_equal(dsc_json_root(strict), dsc_json_root(config)));
    }
    if (config != NULL) {
        check_places(config, dsc_json_root(config));
        check_round_trip(alloc, dsc_json_root(config));
    }
    dsc_json_close(&strict);
    dsc_json_close(&config);
    check_quote(alloc, text);
    dsc_alloc_close(&alloc);
    free(text);
    return 0;
}
