/* best.c - DIR/best: the checkpoint of a folder with the lowest validation loss, one line "step-N LOSS".
 *
 * The name is written after its checkpoint is announced, by a rename. So a kill leaves the earlier name or the new one,
 * and both checkpoints are there. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/checkpoint/hosts.h"

#define LINE_BYTES 96

/* "step-N LOSS": a name, one blank, a number in decimal digits, and the end of the line. */
static bool parse(char *text, int64_t bytes, dsc_ckpt_best *out)
{
    char *blank = strchr(text, ' '), *end = NULL;
    DSC_ASSERT(bytes < LINE_BYTES);
    if ((int64_t)strlen(text) != bytes || bytes == 0 || text[bytes - 1] != '\n' || blank == NULL)
        return false;
    text[bytes - 1] = 0;
    *blank = 0;
    const char *number = blank + 1;
    if (!dsc_ckpt_is_step_name(text) || number[0] == 0 || strspn(number, "0123456789+-.e") != strlen(number))
        return false;
    *out = (dsc_ckpt_best){ .step = strtoll(text + 5, NULL, 10), .loss = strtod(number, &end) };
    snprintf(out->name, sizeof out->name, "%s", text);
    return *end == 0 && isfinite(out->loss);
}

dsc_status dsc_ckpt_read_best(const dsc_io *io, dsc_alloc *alloc, const char *dir, dsc_ckpt_best *out, dsc_error *err)
{
    char path[DSC_CKPT_PATH_BYTES], *text = NULL;
    int64_t bytes = 0;
    *out = (dsc_ckpt_best){ .step = -1 };
    DSC_TRY(dsc_path_join(path, sizeof path, dir, "best", err));
    const dsc_path_kind kind = dsc_io_kind(path);
    if (kind == DSC_PATH_MISSING || kind == DSC_PATH_DIR) /* a folder of this name is the user's own */
        return DSC_OK;
    DSC_TRY(dsc_ckpt_file_path(path, dir, "best", err));
    DSC_TRY(dsc_io_read_all(io, alloc, path, LINE_BYTES - 1, &text, &bytes, err));
    const bool good = parse(text, bytes, out);
    dsc_alloc_free(alloc, text);
    DSC_ASSERT(!good || out->step >= 0);
    if (good)
        return DSC_OK;
    *out = (dsc_ckpt_best){ .step = -1 };
    return DSC_FAIL(err, DSC_ERR_INPUT, path, "is not one line \"step-N LOSS\"; remove the file, and the next "
                    "evaluated checkpoint is the best");
}

/* The earlier best checkpoint that still counts; step -1: none. A damaged name is replaced with a warning. */
static dsc_status find_earlier(const dsc_ckpt_ctx *c, const char *dir, bool anew, dsc_ckpt_best *out, dsc_error *err)
{
    dsc_error damage = DSC_ERROR_INIT;
    const dsc_status status = dsc_ckpt_read_best(c->io, c->alloc, dir, out, &damage);
    if (status != DSC_OK && status != DSC_ERR_INPUT) {
        if (err != NULL)
            *err = damage;
        return status;
    }
    DSC_ASSERT(status == DSC_OK || out->step < 0);
    if (status == DSC_ERR_INPUT)
        dsc_log_printf(c->log, DSC_LOG_WARNING, "%s/best was damaged, and is written anew", dir);
    if (out->step >= 0 && (anew || !dsc_ckpt_is_checkpoint(dir, out->name)))
        *out = (dsc_ckpt_best){ .step = -1 };
    return DSC_OK;
}

static dsc_status write_best(const dsc_ckpt_ctx *c, const char *dir, const dsc_ckpt_best *best, dsc_error *err)
{
    char path[DSC_CKPT_PATH_BYTES], path_new[DSC_CKPT_PATH_BYTES], line[LINE_BYTES];
    const int length = snprintf(line, sizeof line, "%s %.17g\n", best->name, best->loss);
    DSC_ASSERT(length > 0 && (size_t)length < sizeof line);
    DSC_TRY(dsc_path_join(path, sizeof path, dir, "best", err));
    DSC_TRY(dsc_path_join(path_new, sizeof path_new, dir, "best.new", err));
    if (dsc_io_kind(path) == DSC_PATH_DIR)
        return DSC_FAIL(err, DSC_ERR_INPUT, path, "is a folder, and the file of this name would name the best "
                        "checkpoint; move it away");
    if (dsc_io_kind(path_new) != DSC_PATH_MISSING) /* the rest of another life; it could be a link */
        DSC_TRY(dsc_io_unlink(c->io, path_new, err));
    dsc_status status = dsc_ckpt_write_new(c->io, path_new, line, length, err);
    if (status == DSC_OK)
        status = dsc_io_rename(c->io, path_new, path, err);
    if (status == DSC_OK)
        return dsc_io_fsync_dir(c->io, dir, err);
    if (dsc_io_kind(path_new) != DSC_PATH_MISSING)
        (void)!dsc_io_unlink(c->io, path_new, NULL); /* the first failure is the one to report */
    return status;
}

/* The earlier best one has lost its protection. */
static void remove_earlier(const dsc_ckpt_ctx *c, const char *dir)
{
    dsc_error err = DSC_ERROR_INIT;
    DSC_ASSERT(c->keep.last >= 0);
    if (c->keep.last > 0 && dsc_ckpt_prune(c->io, c->alloc, dir, &c->keep, &err) != DSC_OK)
        dsc_log_printf(c->log, DSC_LOG_WARNING, "older checkpoints could not be removed: %s: %s", err.where,
                       err.message);
}

static dsc_status note(const dsc_ckpt_ctx *c, const char *dir, const dsc_ckpt_best *best, bool anew, bool *named,
                       dsc_error *err)
{
    dsc_ckpt_best earlier;
    DSC_ASSERT(isfinite(best->loss));
    if (!dsc_ckpt_is_checkpoint(dir, best->name))
        return DSC_FAIL(err, DSC_ERR_INPUT, dir, "%s is not there, and cannot be the best checkpoint", best->name);
    DSC_TRY(find_earlier(c, dir, anew, &earlier, err));
    if (earlier.step >= 0 && !(best->loss < earlier.loss))
        return DSC_OK;
    DSC_TRY(write_best(c, dir, best, err));
    *named = true;
    if (earlier.step >= 0)
        remove_earlier(c, dir);
    return DSC_OK;
}

dsc_status dsc_ckpt_note_best(const dsc_ckpt_ctx *ctx, const char *dir, int64_t step, double loss, bool anew,
                              bool *named, dsc_error *err)
{
    dsc_ckpt_best best = { .step = step, .loss = loss };
    dsc_ckpt_hosts hosts = { 0 };
    dsc_error mine = DSC_ERROR_INIT;
    DSC_ASSERT(step >= 0);
    DSC_ASSERT(dir != NULL);
    *named = false;
    if (!isfinite(loss))
        return DSC_OK;
    snprintf(best.name, sizeof best.name, "step-%lld", (long long)step);
    dsc_status status = dsc_ckpt_hosts_open(ctx, dir, &hosts, err);
    if (status == DSC_OK) {
        if (dsc_ckpt_leader(&hosts, hosts.mine) == dsc_comm_rank(ctx->comm))
            status = note(ctx, dir, &best, anew, named, &mine);
        status = dsc_ckpt_agree(ctx, status, &mine, err);
    }
    if (status == DSC_OK)
        status = dsc_comm_broadcast(ctx->comm, DSC_CHANNEL_CONTROL, named, (int64_t)sizeof *named, 0, NULL, err);
    dsc_ckpt_hosts_close(&hosts);
    return status;
}
