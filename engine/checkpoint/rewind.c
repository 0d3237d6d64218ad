/* rewind.c - a run goes back to an earlier checkpoint of its folder: the choice of it, and the later ones that the run
 * leaves. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>

#include "engine/checkpoint/internal.h"

static int64_t step_of(const char *name)
{
    DSC_ASSERT(dsc_ckpt_is_step_name(name));
    return strtoll(name + 5, NULL, 10);
}

dsc_status dsc_ckpt_newest_until(const dsc_io *io, dsc_alloc *alloc, const char *dir, int64_t most, int64_t *step,
                                 dsc_error *err)
{
    char **names = NULL;
    int64_t count = 0;
    *step = -1;
    DSC_ASSERT(dir[0] != 0);
    if (dsc_io_kind(dir) == DSC_PATH_MISSING)
        return DSC_OK;
    DSC_TRY(dsc_io_list(io, alloc, dir, &names, &count, err));
    for (int64_t i = 0; i < count; i++)
        if (dsc_ckpt_is_checkpoint(dir, names[i]) && step_of(names[i]) <= most)
            *step = dsc_max_i64(*step, step_of(names[i]));
    dsc_io_list_free(alloc, names, count);
    return DSC_OK;
}

/* `best` may name a checkpoint that goes. */
static dsc_status forget_best(const dsc_io *io, dsc_alloc *alloc, const char *dir, int64_t step, dsc_error *err)
{
    char path[DSC_CKPT_PATH_BYTES];
    dsc_ckpt_best best = { .step = -1 };
    if (dsc_ckpt_read_best(io, alloc, dir, &best, NULL) != DSC_OK || best.step <= step)
        return DSC_OK;
    DSC_TRY(dsc_path_join(path, sizeof path, dir, "best", err));
    return dsc_io_unlink(io, path, err);
}

/* The name is in place before the folders go: `latest` never names what is not there. */
dsc_status dsc_ckpt_leave_later(const dsc_io *io, dsc_alloc *alloc, const char *dir, int64_t step, dsc_error *err)
{
    char path[DSC_CKPT_PATH_BYTES], line[64], **names = NULL;
    int64_t count = 0;
    const int length = snprintf(line, sizeof line, "step-%lld\n", (long long)step);
    DSC_ASSERT(step >= 0);
    DSC_TRY(dsc_path_join(path, sizeof path, dir, "latest", err));
    DSC_TRY(dsc_io_write_all_atomic(io, path, line, length, err));
    DSC_TRY(forget_best(io, alloc, dir, step, err));
    DSC_TRY(dsc_io_list(io, alloc, dir, &names, &count, err));
    dsc_status status = DSC_OK;
    for (int64_t i = 0; i < count && status == DSC_OK; i++)
        if (dsc_ckpt_is_checkpoint(dir, names[i]) && step_of(names[i]) > step)
            status = dsc_ckpt_remove_step(io, dir, names[i], err);
    dsc_io_list_free(alloc, names, count);
    return status;
}
