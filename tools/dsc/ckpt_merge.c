/* dsc_ckpt_merge_state.c - `dsc ckpt merge PART... --out FOLDER`: the whole checkpoint from the parts that hosts
 * without a common folder saved. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "tools/dsc/ckpt.h"

static dsc_status merge(dsc_alloc *alloc, char **dirs, int32_t count, const char *out, dsc_error *err)
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

int dsc_tool_ckpt_merge(int argc, char **argv)
{
    static const char usage[] = "dsc ckpt merge PART... --out FOLDER";
    const char *out = NULL;
    int32_t count = 0;
    for (int i = 2; i < argc; i++) {
        const char *value = dsc_tool_flag("--out", argc, argv, &i);
        if (value != NULL)
            out = value;
        else if (argv[i][0] == '-')
            return dsc_tool_usage(argv[i], "unknown flag; usage: %s", usage);
        else
            argv[2 + count++] = argv[i];
    }
    if (count == 0)
        return dsc_tool_usage("merge", "the parts are missing; usage: %s", usage);
    if (out == NULL || out[0] == 0)
        return dsc_tool_usage("--out", "no folder to write to; usage: %s", usage);
    dsc_error err = DSC_ERROR_INIT;
    dsc_alloc *alloc = NULL;
    if (dsc_alloc_open(&alloc, &err) != DSC_OK)
        return dsc_tool_fail(&err);
    const dsc_status status = merge(alloc, argv + 2, count, out, &err);
    dsc_alloc_close(&alloc);
    if (status == DSC_OK)
        printf("%s: whole, from %d parts\n", out, (int)count);
    return status == DSC_OK ? dsc_tool_end() : dsc_tool_fail(&err);
}
