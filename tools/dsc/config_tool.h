/* config_tool.h - functions that the files of `dsc config` share: JSON, explanations, conversion, key paths.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_TOOLS_CONFIG_TOOL_H
#define DSC_TOOLS_CONFIG_TOOL_H

#include "base/formats/json.h"
#include "engine/config/config.h"
#include "tools/dsc/tool.h"

const char *dsc_config_tool_offload(dsc_offload offload);
const char *dsc_config_tool_precision(const dsc_config *config);
/* The members of the contract's object, without its braces, on stdout. */
void dsc_config_tool_json(const dsc_config *config);

/* Every key: a plain list, or docs/config.md. */
int dsc_config_tool_keys(bool markdown);
bool dsc_config_tool_is_key(const char *path);
int dsc_config_tool_key(const char *path);
/* `dsc config convert`: argv[0] is accelerate's file, or "horovodrun" and its flags follow. */
int dsc_config_tool_convert(dsc_alloc *alloc, int argc, char **argv, dsc_config *config);
/* Every key that is acted on: its resolved value, where that is from, its range and meaning. */
int dsc_config_tool_values(const dsc_config *config, const dsc_json *file, bool json);
/* A file as data, YAML or JSON by its name. The caller closes *out. */
dsc_status dsc_config_tool_open(dsc_alloc *alloc, const char *path, dsc_json **out, dsc_error *err);

/* Values of a config as data, by key path "a.b.c". put: sections are made as needed, `value` is moved to its place or
 * freed, and takes the place of what was there; NULL is "out of memory", which it tells. get: NULL: not there. */
dsc_status dsc_config_tool_put(cJSON *root, const char *path, cJSON *value, dsc_error *err);
cJSON *dsc_config_tool_get(cJSON *root, const char *path);
void dsc_config_tool_remove(cJSON *root, const char *path);

#endif
