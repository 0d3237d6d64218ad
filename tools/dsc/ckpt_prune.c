/* ckpt_prune.c - `dsc ckpt prune DIR --keep-last N`: removes older checkpoints, never the one that `latest` names.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "tools/dsc/ckpt.h"

static const char usage[] = "dsc ckpt prune DIR [--keep-last N [--keep-every M]] [--unfinished] [--dry-run]";

typedef struct told {
    const char *word;
    int64_t count;
} told;

static void tell(void *user, const char *name)
{
    told *t = user;
    t->count++;
    printf("%s %s\n", t->word, name);
}

static int parse(int argc, char **argv, const char **dir, dsc_ckpt_keep *keep)
{
    for (int i = 2; i < argc; i++) {
        const char *last = dsc_tool_flag("--keep-last", argc, argv, &i);
        const char *every = last == NULL ? dsc_tool_flag("--keep-every", argc, argv, &i) : NULL;
        if (last != NULL) {
            if (!dsc_tool_number("--keep-last", last, 1, INT64_C(1000000000), &keep->last))
                return 2;
        } else if (every != NULL) {
            if (!dsc_tool_number("--keep-every", every, 1, INT64_C(1000000000000), &keep->every))
                return 2;
        } else if (strcmp(argv[i], "--unfinished") == 0) {
            keep->unfinished = true;
        } else if (strcmp(argv[i], "--dry-run") == 0) {
            keep->dry_run = true;
        } else if (argv[i][0] == '-') {
            return dsc_tool_usage(argv[i], "unknown flag; usage: %s", usage);
        } else if (*dir != NULL) {
            return dsc_tool_usage(argv[i], "one folder at a time; usage: %s", usage);
        } else {
            *dir = argv[i];
        }
    }
    if (*dir == NULL || (*dir)[0] == 0)
        return dsc_tool_usage("prune", "DIR is missing; usage: %s", usage);
    if (keep->last == 0 && !keep->unfinished)
        return dsc_tool_usage("prune", "say what stays, or --unfinished; usage: %s", usage);
    return 0;
}

int dsc_tool_ckpt_prune(int argc, char **argv)
{
    dsc_ckpt_keep keep = { .last = 0 };
    const char *dir = NULL;
    const int wrong = parse(argc, argv, &dir, &keep);
    if (wrong != 0)
        return wrong;
    dsc_error err = DSC_ERROR_INIT;
    dsc_alloc *alloc = NULL;
    told t = { .word = keep.dry_run ? "would remove" : "removed" };
    keep.told = tell;
    keep.user = &t;
    if (dsc_alloc_open(&alloc, &err) != DSC_OK)
        return dsc_tool_fail(&err);
    const dsc_status status = dsc_ckpt_prune(NULL, alloc, dir, &keep, &err);
    dsc_alloc_close(&alloc);
    if (status == DSC_OK && t.count == 0)
        printf("nothing to remove\n");
    return status == DSC_OK ? dsc_tool_end() : dsc_tool_fail(&err);
}
