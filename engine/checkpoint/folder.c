/* folder.c - the folder that checkpoints are saved to: made, and looked at before a run starts.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/checkpoint/hosts.h"

dsc_status dsc_ckpt_refuse_existing(const char *step_dir, dsc_error *err)
{
    return DSC_FAIL(err, DSC_ERR_INPUT, step_dir,
                    "exists already and this run did not resume from it; move it away, or use another --save folder");
}

/* ---- before a run ---- */

/* Bytes of the longest part of the path that is there, without slashes behind it. */
static size_t existing_bytes(char *path)
{
    size_t bytes = strlen(path);
    DSC_ASSERT(bytes < DSC_CKPT_PATH_BYTES);
    for (;;) {
        while (bytes > 0 && path[bytes - 1] == '/')
            path[--bytes] = 0;
        if (bytes == 0 || dsc_io_kind(path) != DSC_PATH_MISSING)
            return bytes;
        while (bytes > 0 && path[bytes - 1] != '/')
            path[--bytes] = 0;
    }
}

/* Tensor bytes that the ranks of this rank's folder store, with carried ones: a checkpoint takes a little more. */
static int64_t stored_bytes(const dsc_ckpt_ctx *c, const dsc_ckpt_saves *saves, const dsc_ckpt_hosts *hosts)
{
    const dsc_run_state kept = { .compute_dtype = saves->compute_dtype,
                                 .moment_dtype = saves->moment_dtype,
                                 .recipe = saves->recipe,
                                 .averages = saves->averages };
    DSC_ASSERT(hosts->count >= 1);
    DSC_ASSERT(hosts->mine < hosts->count);
    const int32_t ranks = dsc_comm_size(c->comm);
    int64_t bytes = c->model->carried != NULL ? c->model->carried->file_bytes : 0, first;
    for (int32_t t = 0; t < c->layout->tensor_count; t++) {
        const dsc_layout_tensor *tensor = &c->layout->tensor[t];
        for (int plane = DSC_CKPT_WEIGHTS; plane < DSC_CKPT_PLANE_COUNT; plane++)
            for (int32_t r = 0; r < ranks; r++) {
                const dsc_ckpt_entry entry = { .plane = (dsc_ckpt_plane)plane,
                                               .tensor = t,
                                               .count = dsc_ckpt_count((dsc_ckpt_plane)plane, tensor),
                                               .dtype = dsc_ckpt_dtype(&kept, (dsc_ckpt_plane)plane) };
                if (dsc_ckpt_host_of(hosts, r) == hosts->mine &&
                    dsc_ckpt_saved_planes(&kept, (dsc_ckpt_plane)plane, c->layout, tensor))
                    bytes += dsc_ckpt_span_of_rank(c, &entry, r, &first) * (int64_t)dsc_dtype_bytes(entry.dtype);
            }
    }
    return bytes;
}

static dsc_status check_space(const char *dir, int64_t wanted, dsc_error *err)
{
    DSC_ASSERT(wanted >= 0);
    int64_t available = 0;
    DSC_TRY(dsc_io_free_bytes(dir, &available, err));
    if (wanted <= available)
        return DSC_OK;
    return DSC_FAIL(err, DSC_ERR_IO, dir, "a checkpoint needs %.1f MiB and %.1f MiB are free; save to another folder, "
                    "or make room", (double)wanted / 1048576.0, (double)available / 1048576.0);
}

/* Makes the folder, makes a file in it. */
static dsc_status try_folder(const dsc_io *io, const char *dir, int64_t wanted, dsc_error *err)
{
    DSC_TRY(dsc_io_make_dirs(io, dir, err));
    DSC_TRY(dsc_io_probe_dir(io, dir, err));
    return check_space(dir, wanted, err);
}

/* Takes away the folders that were not there before: `before` bytes of the path were. */
static void remove_new(const dsc_io *io, const char *dir, size_t before)
{
    char path[DSC_CKPT_PATH_BYTES];
    snprintf(path, sizeof path, "%s", dir);
    DSC_ASSERT(before <= strlen(path));
    for (size_t bytes = strlen(path); bytes > before; bytes = strlen(path)) {
        if (path[bytes - 1] != '/')
            (void)!dsc_io_rmdir(io, path, NULL); /* not empty: another run has come; missing: it was not made */
        while (bytes > before && path[bytes - 1] != '/')
            path[--bytes] = 0;
        while (bytes > before && path[bytes - 1] == '/')
            path[--bytes] = 0;
    }
}

/* Whether the file names this step-N. */
static bool names(const dsc_ckpt_ctx *c, const char *dir, const char *file, const char *step_name)
{
    char path[DSC_CKPT_PATH_BYTES], found[64];
    DSC_ASSERT(dsc_ckpt_is_step_name(step_name));
    return dsc_path_join(path, sizeof path, dir, file, NULL) == DSC_OK && !dsc_io_is_link(path) &&
           dsc_io_kind(path) == DSC_PATH_FILE && dsc_ckpt_read_latest(c->io, c->alloc, path, found, NULL) == DSC_OK &&
           strcmp(found, step_name) == 0;
}

/* The rest of a commit that was cut short, which the next save takes away (see commit.c). */
static bool is_rest(const dsc_ckpt_ctx *c, const char *dir, const char *step_name)
{
    DSC_ASSERT(dsc_ckpt_is_step_name(step_name));
    return names(c, dir, "latest.tmp", step_name) && !names(c, dir, "latest", step_name);
}

/* A step-N that the run would save. */
static bool will_save(const char *name, const dsc_ckpt_saves *saves)
{
    const long long step = dsc_ckpt_is_step_name(name) ? strtoll(name + 5, NULL, 10) : -1;
    DSC_ASSERT(saves->every >= 0);
    return step > saves->after && step <= saves->last &&
           (step == saves->last || (saves->every > 0 && step % saves->every == 0));
}

static dsc_status check_steps(const dsc_ckpt_ctx *c, const char *dir, const dsc_ckpt_saves *saves, dsc_error *err)
{
    char **list = NULL, step_dir[DSC_CKPT_PATH_BYTES];
    int64_t count = 0;
    if (saves->resumed || dsc_io_kind(dir) == DSC_PATH_MISSING)
        return DSC_OK;
    DSC_TRY(dsc_io_list(c->io, c->alloc, dir, &list, &count, err));
    dsc_status status = DSC_OK;
    for (int64_t i = 0; i < count && status == DSC_OK; i++)
        if (will_save(list[i], saves) && !is_rest(c, dir, list[i])) {
            status = dsc_path_join(step_dir, sizeof step_dir, dir, list[i], err);
            status = status == DSC_OK ? dsc_ckpt_refuse_existing(step_dir, err) : status;
        }
    dsc_io_list_free(c->alloc, list, count);
    return status;
}

/* By the first rank of a folder. `before`: as of remove_new. */
static dsc_status check(const dsc_ckpt_ctx *c, const char *dir, const dsc_ckpt_saves *saves,
                        const dsc_ckpt_hosts *hosts, size_t before, dsc_error *err)
{
    DSC_ASSERT(hosts->count >= 1);
    if (dsc_ckpt_leader(hosts, hosts->mine) != dsc_comm_rank(c->comm))
        return DSC_OK;
    dsc_status status = check_steps(c, dir, saves, err);
    if (status == DSC_OK)
        status = try_folder(c->io, dir, stored_bytes(c, saves, hosts), err);
    remove_new(c->io, dir, before);
    return status;
}

dsc_status dsc_ckpt_check(const dsc_ckpt_ctx *ctx, const char *dir, const dsc_ckpt_saves *saves, dsc_error *err)
{
    char path[DSC_CKPT_PATH_BYTES];
    dsc_ckpt_hosts hosts = { 0 };
    dsc_error mine = DSC_ERROR_INIT;
    dsc_status status = dsc_path_join(path, sizeof path, dir, "", &mine);
    const size_t before = status == DSC_OK ? existing_bytes(path) : strlen(dir);
    DSC_ASSERT(before <= strlen(dir));
    if (ctx->node_local || status != DSC_OK) /* nobody makes it before all have looked */
        status = dsc_ckpt_agree(ctx, status, &mine, err);
    if (status == DSC_OK)
        status = dsc_ckpt_hosts_open(ctx, dir, &hosts, err);
    if (status == DSC_OK) {
        status = check(ctx, dir, saves, &hosts, before, &mine);
        status = dsc_ckpt_agree(ctx, status, &mine, err);
    } else {
        remove_new(ctx->io, dir, before);
    }
    dsc_ckpt_hosts_close(&hosts);
    return status;
}
