/* config_tree.c - a config as a tree of values: what a path names. See config_tool.h.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "tools/dsc/config_tool.h"

/* The section that a path ends in, NULL when there is none (or no memory to make it); *leaf is its last name. */
static cJSON *section_of(cJSON *root, const char *path, bool make, const char **leaf)
{
    cJSON *at = root;
    for (const char *dot; at != NULL && (dot = strchr(path, '.')) != NULL; path = dot + 1) {
        char name[64];
        snprintf(name, sizeof name, "%.*s", (int)(dot - path), path);
        cJSON *next = cJSON_GetObjectItemCaseSensitive(at, name);
        if (next != NULL && make && !cJSON_IsObject(next)) { /* null stands for a section that is not there */
            cJSON_DeleteItemFromObjectCaseSensitive(at, name);
            next = NULL;
        }
        at = next != NULL || !make ? next : cJSON_AddObjectToObject(at, name);
    }
    *leaf = path;
    return at;
}

dsc_status dsc_config_tool_put(cJSON *root, const char *path, cJSON *value, dsc_error *err)
{
    const char *leaf;
    cJSON *section = value != NULL ? section_of(root, path, true, &leaf) : NULL;
    if (section != NULL) {
        cJSON_DeleteItemFromObjectCaseSensitive(section, leaf);
        if (cJSON_AddItemToObject(section, leaf, value))
            return DSC_OK;
    }
    cJSON_Delete(value);
    return DSC_FAIL(err, DSC_ERR_NOMEM, path, "out of host memory: no room for the value");
}

cJSON *dsc_config_tool_get(cJSON *root, const char *path)
{
    const char *leaf;
    const cJSON *section = section_of(root, path, false, &leaf);
    return section != NULL ? cJSON_GetObjectItemCaseSensitive(section, leaf) : NULL;
}

void dsc_config_tool_remove(cJSON *root, const char *path)
{
    const char *leaf;
    cJSON *section = section_of(root, path, false, &leaf);
    if (section != NULL)
        cJSON_DeleteItemFromObjectCaseSensitive(section, leaf);
}
