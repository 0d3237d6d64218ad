/* ckpt.h - declarations that the files of `dsc ckpt` share. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_TOOLS_CKPT_H
#define DSC_TOOLS_CKPT_H

#include "engine/checkpoint/checkpoint.h"
#include "tools/dsc/tool.h"

#define CKPT_TOOL_PATH_BYTES 4096

/* Subcommands in files of their own: the command line and the function that runs it, see dsc_tool_verb. */
extern const dsc_flag_command dsc_tool_ckpt_prune_page, dsc_tool_ckpt_diff_page;
extern const dsc_flag_command dsc_tool_ckpt_export_page, dsc_tool_ckpt_merge_page;
int dsc_tool_ckpt_prune(int argc, char **argv);
int dsc_tool_ckpt_diff(int argc, char **argv);
int dsc_tool_ckpt_export(int argc, char **argv);
int dsc_tool_ckpt_merge(int argc, char **argv);

#endif
