/* ckpt_merge.c - `dsc ckpt merge PART... --out FOLDER`: the whole checkpoint from the parts that hosts without a common
 * folder saved. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "tools/dsc/ckpt.h"

static dsc_status merge(dsc_alloc *alloc, const char *const *dirs, int32_t count, const char *out, dsc_error *err)
{
    char(*step_dir)[CKPT_TOOL_PATH_BYTES] = NULL;
    const char **list = NULL;
    dsc_status status = dsc_alloc_zeroed(alloc, DSC_TAG_IO, count, sizeof *step_dir, &step_dir, err);
    if (status == DSC_OK)
        status = dsc_alloc_zeroed(alloc, DSC_TAG_IO, count, sizeof *list, &list, err);
    for (int32_t i = 0; i < count && status == DSC_OK; i++) {
        status = dsc_ckpt_find(NULL, alloc, dirs[i], step_dir[i], sizeof step_dir[i], err);
        list[i] = step_dir[i];
    }
    if (status == DSC_OK)
        status = dsc_ckpt_merge(NULL, alloc, list, count, out, err);
    dsc_alloc_free(alloc, list);
    dsc_alloc_free(alloc, step_dir);
    return status;
}

#define PARTS_MAX 4096

typedef struct merge_args {
    const char *out;
    dsc_flag_list parts;
} merge_args;

static const dsc_flag rows[] = {
    { "--out", NULL, "FOLDER", DSC_FLAG_TEXT, offsetof(merge_args, out), .required = true,
      .help = "folder of the whole checkpoint" },
};
static const dsc_positional parts[] = {
    { "PART", "checkpoint folder of one host", "part", offsetof(merge_args, parts), 1, 0 },
};
const dsc_flag_command dsc_tool_ckpt_merge_page = {
    .name = "dsc ckpt merge",
    .description = "Writes the whole checkpoint from the parts that hosts without a common folder saved.",
    .flags = rows, .flag_count = DSC_COUNT(rows), .positionals = parts, .positional_count = 1,
    .exit_codes = "0 done; 1 failed; 2 wrong command line, or parts that are not one checkpoint",
};

int dsc_tool_ckpt_merge(int argc, char **argv)
{
    const char *texts[PARTS_MAX];
    merge_args args = { .parts = { texts, 0, PARTS_MAX } };
    const int wrong = dsc_tool_parse(&dsc_tool_ckpt_merge_page, argc, argv, &args);
    if (wrong >= 0)
        return wrong;
    dsc_error err = DSC_ERROR_INIT;
    dsc_alloc *alloc = NULL;
    if (dsc_alloc_open(&alloc, &err) != DSC_OK)
        return dsc_tool_fail(&err);
    const dsc_status status = merge(alloc, texts, args.parts.count, args.out, &err);
    dsc_alloc_close(&alloc);
    if (status == DSC_OK)
        printf("%s: whole, from %d parts\n", args.out, (int)args.parts.count);
    return status == DSC_OK ? dsc_tool_end() : dsc_tool_fail(&err);
}
