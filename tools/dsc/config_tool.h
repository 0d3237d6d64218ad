/* config_tool.h - the two halves of `dsc config`: config.c reads the command line, config_explain.c shows keys.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_TOOLS_CONFIG_TOOL_H
#define DSC_TOOLS_CONFIG_TOOL_H

#include "engine/config.h"
#include "tools/dsc/tool.h"

const char *dsc_config_tool_offload(dsc_offload offload);
const char *dsc_config_tool_precision(const dsc_config *config);
/* The members of the contract's object, without its braces, on stdout. */
void dsc_config_tool_json(const dsc_config *config);

/* Every key: a plain list, or docs/config.md. */
int dsc_config_tool_keys(bool markdown);
bool dsc_config_tool_is_key(const char *path);
int dsc_config_tool_key(const char *path);
/* Every key that is acted on, with its resolved value. */
int dsc_config_tool_values(const dsc_config *config, bool json);

#endif
