/* ckpt_prune.c - `dsc ckpt prune DIR --keep-last N`: removes older checkpoints, never those that `latest` and `best`
 * name. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "tools/dsc/ckpt.h"

typedef struct removals {
    const char *verb; /* "removed" or "would remove" */
    int64_t count;
} removals;

static void print_removal(void *user, const char *name)
{
    removals *r = user;
    r->count++;
    printf("%s %s\n", r->verb, name);
}

typedef struct prune_args {
    const char *dir;
    dsc_ckpt_keep keep;
} prune_args;

#define AT(field) offsetof(prune_args, field)
static const dsc_flag rows[] = {
    { "--keep-last", NULL, "N", DSC_FLAG_INTEGER, AT(keep.last), .min = 1, .max = INT64_C(1000000000),
      .help = "keep the newest N checkpoints" },
    { "--keep-every", NULL, "M", DSC_FLAG_INTEGER, AT(keep.every), .min = 1, .max = INT64_C(1000000000000),
      .help = "also keep each checkpoint whose step is a multiple of M" },
    { "--unfinished", NULL, NULL, DSC_FLAG_BOOL, AT(keep.unfinished), .help = "remove folders of unfinished saves" },
    { "--dry-run", NULL, NULL, DSC_FLAG_BOOL, AT(keep.dry_run),
      .help = "print what would be removed, and remove nothing" },
};
static const dsc_positional dirs[] = { { "DIR", "folder with checkpoints", "folder", AT(dir), 1, 1 } };
const dsc_flag_command dsc_tool_ckpt_prune_page = {
    .name = "dsc ckpt prune",
    .description =
        "Removes older checkpoints, never those that latest and best name. Give --keep-last or --unfinished.",
    .flags = rows, .flag_count = DSC_COUNT(rows), .positionals = dirs, .positional_count = 1,
};

int dsc_tool_ckpt_prune(int argc, char **argv)
{
    prune_args args = { 0 };
    const int wrong = dsc_tool_parse(&dsc_tool_ckpt_prune_page, argc, argv, &args);
    if (wrong >= 0)
        return wrong;
    if (args.keep.last == 0 && !args.keep.unfinished)
        return dsc_tool_usage("dsc ckpt prune", "neither --keep-last N nor --unfinished is given");
    dsc_error err = DSC_ERROR_INIT;
    dsc_alloc *alloc = NULL;
    removals r = { .verb = args.keep.dry_run ? "would remove" : "removed" };
    args.keep.on_remove = print_removal;
    args.keep.user = &r;
    if (dsc_alloc_open(&alloc, &err) != DSC_OK)
        return dsc_tool_fail(&err);
    const dsc_status status = dsc_ckpt_prune(NULL, alloc, args.dir, &args.keep, &err);
    dsc_alloc_close(&alloc);
    if (status == DSC_OK && r.count == 0)
        printf("nothing to remove\n");
    return status == DSC_OK ? dsc_tool_end() : dsc_tool_fail(&err);
}
