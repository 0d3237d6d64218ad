/* prune.c - which checkpoints of a folder stay, and how the others go.
 *
 * Only steps up to the one that `latest` names are looked at, newest first. A later step belongs to a run that
 * was left, and is nobody's to remove here. The one that `best` names stays too. A checkpoint loses its name, durably,
 * before its files go, so a kill in between leaves no step-N in part. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/checkpoint/internal.h"

dsc_status dsc_ckpt_remove_step(const dsc_io *io, const char *dir, const char *name, dsc_error *err)
{
    DSC_ASSERT(dsc_ckpt_is_step_name(name));
    char step_dir[DSC_CKPT_PATH_BYTES], tmp_dir[DSC_CKPT_PATH_BYTES], tmp_name[80];
    snprintf(tmp_name, sizeof tmp_name, "%s.tmp", name);
    DSC_TRY(dsc_path_join(step_dir, sizeof step_dir, dir, name, err));
    DSC_TRY(dsc_path_join(tmp_dir, sizeof tmp_dir, dir, tmp_name, err));
    if (dsc_io_is_link(step_dir) || dsc_io_kind(step_dir) != DSC_PATH_DIR)
        return DSC_OK;
    DSC_TRY(dsc_io_remove_dir(io, tmp_dir, err));
    DSC_TRY(dsc_io_rename(io, step_dir, tmp_dir, err));
    DSC_TRY(dsc_io_fsync_dir(io, dir, err));
    return dsc_io_remove_dir(io, tmp_dir, err);
}

bool dsc_ckpt_is_unfinished_name(const char *name)
{
    char stem[64];
    const size_t bytes = strlen(name);
    if (bytes < 5 || bytes >= sizeof stem || strcmp(name + bytes - 4, ".tmp") != 0)
        return false;
    snprintf(stem, sizeof stem, "%.*s", (int)(bytes - 4), name);
    return dsc_ckpt_is_step_name(stem);
}

/* Newest first; names that are not steps at the end. */
static int by_step(const void *a, const void *b)
{
    const char *x = *(char *const *)a, *y = *(char *const *)b;
    const int64_t p = dsc_ckpt_is_step_name(x) ? strtoll(x + 5, NULL, 10) : -1;
    const int64_t q = dsc_ckpt_is_step_name(y) ? strtoll(y + 5, NULL, 10) : -1;
    return (p < q) - (p > q);
}

bool dsc_ckpt_is_checkpoint(const char *dir, const char *name)
{
    DSC_ASSERT(name != NULL);
    char path[DSC_CKPT_PATH_BYTES], manifest[DSC_CKPT_PATH_BYTES];
    return dsc_ckpt_is_step_name(name) && dsc_path_join(path, sizeof path, dir, name, NULL) == DSC_OK &&
           !dsc_io_is_link(path) &&
           dsc_path_join(manifest, sizeof manifest, path, DSC_CKPT_MANIFEST_FILE, NULL) == DSC_OK &&
           dsc_io_kind(manifest) == DSC_PATH_FILE;
}

static dsc_status remove_one(const dsc_io *io, const char *dir, const char *name, const dsc_ckpt_keep *keep,
                             dsc_error *err)
{
    DSC_ASSERT(dsc_ckpt_is_step_name(name) || dsc_ckpt_is_unfinished_name(name));
    char path[DSC_CKPT_PATH_BYTES];
    if (keep->on_remove != NULL)
        keep->on_remove(keep->user, name);
    if (keep->dry_run)
        return DSC_OK;
    if (dsc_ckpt_is_step_name(name))
        return dsc_ckpt_remove_step(io, dir, name, err);
    DSC_TRY(dsc_path_join(path, sizeof path, dir, name, err));
    return dsc_io_remove_dir(io, path, err);
}

typedef struct named_steps {
    int64_t latest, best; /* best -1: none */
} named_steps;

/* names are sorted, newest first; oldest go first, so that whatever is interrupted leaves the newest. */
static dsc_status remove_all(const dsc_io *io, const char *dir, char **names, int64_t count, const named_steps *named,
                             const dsc_ckpt_keep *keep, dsc_error *err)
{
    int64_t older = 0;
    DSC_ASSERT(named->latest >= 0);
    const int64_t latest = named->latest;
    for (int64_t i = 0; i < count; i++)
        older += dsc_ckpt_is_checkpoint(dir, names[i]) && strtoll(names[i] + 5, NULL, 10) < latest;
    for (int64_t i = count; i-- > 0;) {
        if (keep->unfinished && dsc_ckpt_is_unfinished_name(names[i]))
            DSC_TRY(remove_one(io, dir, names[i], keep, err));
        if (!dsc_ckpt_is_checkpoint(dir, names[i]))
            continue;
        const int64_t step = strtoll(names[i] + 5, NULL, 10);
        if (step >= latest)
            continue;
        const bool among_last = older <= keep->last - 1; /* `latest` is one of them */
        older--;
        if (keep->last > 0 && !among_last && step != named->best && (keep->every == 0 || step % keep->every != 0))
            DSC_TRY(remove_one(io, dir, names[i], keep, err));
    }
    return DSC_OK;
}

dsc_status dsc_ckpt_prune(const dsc_io *io, dsc_alloc *alloc, const char *dir, const dsc_ckpt_keep *keep,
                          dsc_error *err)
{
    char path[DSC_CKPT_PATH_BYTES], latest[64], **names = NULL;
    int64_t count = 0;
    DSC_ASSERT(keep->last >= 0);
    DSC_ASSERT(keep->every >= 0);
    DSC_TRY(dsc_ckpt_file_path(path, dir, "latest", err));
    DSC_TRY(dsc_ckpt_read_latest(io, alloc, path, latest, err));
    DSC_TRY(dsc_path_join(path, sizeof path, dir, latest, err));
    if (!dsc_ckpt_is_checkpoint(dir, latest))
        return DSC_FAIL(err, DSC_ERR_INPUT, path, "named by \"latest\" but no checkpoint; nothing is removed");
    dsc_ckpt_best best;
    DSC_TRY(dsc_ckpt_read_best(io, alloc, dir, &best, err));
    const named_steps named = { .latest = strtoll(latest + 5, NULL, 10), .best = best.step };
    DSC_TRY(dsc_io_list(io, alloc, dir, &names, &count, err));
    if (count > 1)
        qsort(names, (size_t)count, sizeof *names, by_step);
    const dsc_status status = remove_all(io, dir, names, count, &named, keep, err);
    dsc_io_list_free(alloc, names, count);
    return status;
}
