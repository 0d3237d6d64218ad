/* ckpt.h - what the files of `dsc ckpt` share. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_TOOLS_CKPT_H
#define DSC_TOOLS_CKPT_H

#include "engine/checkpoint/checkpoint.h"
#include "tools/dsc/tool.h"

#define CKPT_TOOL_PATH_BYTES 4096

/* argv[1] is the verb. Exit codes of the command-line contract. */
int dsc_tool_ckpt_prune(int argc, char **argv);
int dsc_tool_ckpt_diff(int argc, char **argv);
int dsc_tool_ckpt_export(int argc, char **argv);
int dsc_tool_ckpt_merge(int argc, char **argv);

#endif
