/* yaml_fuzz.c - any bytes as YAML: no crash, no leak, and what is accepted is the same data as JSON.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/formats/yaml.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* By their texts: cJSON_Compare takes twice the time for each level of objects. */
static void check_equal(const cJSON *a, const cJSON *b)
{
    char *first = cJSON_PrintUnformatted(a), *second = cJSON_PrintUnformatted(b);
    DSC_ASSERT(first == NULL || second == NULL || strcmp(first, second) == 0);
    free(first);
    free(second);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const dsc_json_limits limits = DSC_JSON_LIMITS_CONFIG;
    dsc_error err = DSC_ERROR_INIT;
    dsc_alloc *alloc = NULL;
    dsc_json *yaml = NULL, *json = NULL;
    char *text = NULL;
    int64_t text_bytes = 0;
    if (dsc_alloc_open(&alloc, &err) != DSC_OK)
        return 0;
    dsc_status status = dsc_yaml_open(alloc, "fuzz.yaml", (const char *)data, (int64_t)bytes, &limits, &yaml, &err);
    if (status != DSC_OK) {
        DSC_ASSERT(err.message[0] != 0 && strncmp(err.where, "fuzz.yaml", 9) == 0);
    } else {
        const dsc_json_limits wide = { 1 << 24, 64, 20000 };
        DSC_ASSERT(dsc_yaml_to_json(alloc, "fuzz.yaml", (const char *)data, (int64_t)bytes, &limits, &text, &text_bytes,
                                    &err) == DSC_OK);
        DSC_ASSERT(dsc_json_open(alloc, "fuzz", text, text_bytes, DSC_JSON_CONFIG, &wide, &json, &err) == DSC_OK);
        check_equal(dsc_json_root(yaml), dsc_json_root(json));
    }
    dsc_json_close(&json);
    dsc_json_close(&yaml);
    dsc_alloc_free(alloc, text);
    dsc_alloc_close(&alloc);
    return 0;
}
