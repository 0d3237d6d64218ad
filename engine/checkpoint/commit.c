/* commit.c - rank 0's part of a save: the folder step-N, from its first mkdir to `latest`, or back.
 *
 * The order, each step durable before the next: step-N.tmp with its files; the manifest; latest.tmp, which names
 * step-N; rename to step-N; rename of latest.tmp to latest. A step-N that latest.tmp names and latest does not name
 * belongs to an interrupted commit and may be removed. No other code writes latest.tmp.
 *
 * Any other existing step-N is refused, except in a run that continues from an earlier step of the folder. Equal
 * tensors are then kept and named by latest, for each world size and stage. A damaged step-N is moved aside. Other
 * tensors are refused, and the message names the difference. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "engine/checkpoint/internal.h"

/* ---- small files ---- */

dsc_status dsc_ckpt_write_new(const dsc_io *io, const char *path, const char *text, int64_t bytes, dsc_error *err)
{
    dsc_file file = DSC_FILE_INIT;
    DSC_ASSERT(bytes >= 0);
    DSC_TRY(dsc_io_open(io, path, DSC_IO_CREATE_NEW, &file, err));
    dsc_status status = dsc_io_write(io, &file, text, bytes, 0, err);
    if (status == DSC_OK)
        status = dsc_io_fsync(io, &file, err);
    const dsc_status closed = dsc_io_close(io, &file, status == DSC_OK ? err : NULL);
    return status != DSC_OK ? status : closed;
}

dsc_status dsc_ckpt_commit_file(const dsc_ckpt_commit *k, const char *name, const char *text, int64_t bytes,
                                dsc_error *err)
{
    char path[DSC_CKPT_PATH_BYTES];
    DSC_ASSERT(k->made_tmp);
    DSC_TRY(dsc_path_join(path, sizeof path, k->tmp_dir, name, err));
    return dsc_ckpt_write_new(k->c->io, path, text, bytes, err);
}

/* A rest of another life is removed, never written through: it could be a link to somewhere else. */
static dsc_status write_name(const dsc_ckpt_commit *k, const char *path, const char *name, dsc_error *err)
{
    char line[80];
    const int length = snprintf(line, sizeof line, "%s\n", name);
    DSC_ASSERT(length < (int)sizeof line);
    if (dsc_io_kind(path) != DSC_PATH_MISSING)
        DSC_TRY(dsc_io_unlink(k->c->io, path, err));
    return dsc_ckpt_write_new(k->c->io, path, line, length, err);
}

/* Name in a file like `latest`; "" when there is none, or it holds something else. */
static dsc_status read_name(const dsc_ckpt_commit *k, const char *path, char name[64], dsc_error *err)
{
    dsc_error ignored = DSC_ERROR_INIT;
    name[0] = 0;
    if (dsc_io_is_link(path) || dsc_io_kind(path) != DSC_PATH_FILE)
        return DSC_OK;
    const dsc_status status = dsc_ckpt_read_latest(k->c->io, k->c->alloc, path, name, &ignored);
    DSC_ASSERT(status != DSC_OK || dsc_ckpt_is_step_name(name));
    if (status == DSC_OK)
        return DSC_OK;
    name[0] = 0;
    if (status == DSC_ERR_INPUT)
        return DSC_OK;
    if (err != NULL)
        *err = ignored;
    return status;
}

/* Points `latest` at another checkpoint that is there already. Not by way of latest.tmp, whose name would then be that
 * of an announced one. */
static dsc_status set_latest(const dsc_ckpt_commit *k, const char *name, dsc_error *err)
{
    DSC_ASSERT(dsc_ckpt_is_step_name(name));
    dsc_status status = write_name(k, k->latest_new, name, err);
    if (status == DSC_OK)
        status = dsc_io_rename(k->c->io, k->latest_new, k->latest, err);
    if (status != DSC_OK) {
        if (dsc_io_kind(k->latest_new) != DSC_PATH_MISSING)
            (void)!dsc_io_unlink(k->c->io, k->latest_new, NULL); /* the first failure is the one to report */
        return status;
    }
    return dsc_io_fsync_dir(k->c->io, k->dir, err);
}

/* ---- planning: paths, on every rank ---- */

dsc_status dsc_ckpt_commit_plan(dsc_ckpt_commit *k, const dsc_ckpt_ctx *c, const char *dir, const dsc_run_state *state,
                                int64_t resumed_step, dsc_error *err)
{
    DSC_ASSERT(state->step >= 0);
    DSC_ASSERT(resumed_step >= -1);
    char tmp_name[80];
    k->c = c;
    k->dir = dir;
    k->state = state;
    k->resumed_step = resumed_step;
    snprintf(k->name, sizeof k->name, "step-%lld", (long long)state->step);
    snprintf(tmp_name, sizeof tmp_name, "%s.tmp", k->name);
    DSC_TRY(dsc_path_join(k->step_dir, sizeof k->step_dir, dir, k->name, err));
    DSC_TRY(dsc_path_join(k->tmp_dir, sizeof k->tmp_dir, dir, tmp_name, err));
    DSC_TRY(dsc_path_join(k->latest, sizeof k->latest, dir, "latest", err));
    DSC_TRY(dsc_path_join(k->latest_new, sizeof k->latest_new, dir, "latest.new", err));
    return dsc_path_join(k->latest_tmp, sizeof k->latest_tmp, dir, "latest.tmp", err);
}

/* ---- the temporary folder ---- */

/* The rests of another life; after this latest.tmp says nothing any more. */
static dsc_status remove_names(const dsc_ckpt_commit *k, dsc_error *err)
{
    DSC_ASSERT(!k->made_latest_tmp); /* it is not this save's */
    if (dsc_io_kind(k->latest_tmp) != DSC_PATH_MISSING)
        DSC_TRY(dsc_io_unlink(k->c->io, k->latest_tmp, err));
    return dsc_io_kind(k->latest_new) == DSC_PATH_MISSING ? DSC_OK : dsc_io_unlink(k->c->io, k->latest_new, err);
}

/* The checkpoint whose commit was cut short between its two renames: whole, but announced to nobody, unless this run
 * was loaded from it by name. */
static dsc_status remove_unannounced(const dsc_ckpt_commit *k, dsc_error *err)
{
    char name[64], latest[64], resumed[64];
    DSC_ASSERT(!k->made_step);
    snprintf(resumed, sizeof resumed, "step-%lld", (long long)k->resumed_step);
    DSC_TRY(read_name(k, k->latest_tmp, name, err));
    DSC_TRY(read_name(k, k->latest, latest, err));
    if (name[0] == 0 || strcmp(name, latest) == 0 || strcmp(name, resumed) == 0)
        return DSC_OK;
    return dsc_ckpt_remove_step(k->c->io, k->dir, name, err);
}

static dsc_status check_space(const dsc_ckpt_commit *k, int64_t wanted, dsc_error *err)
{
    DSC_ASSERT(wanted > 0);
    int64_t available = 0;
    DSC_TRY(dsc_io_free_bytes(k->dir, &available, err));
    if (wanted > available)
        return DSC_FAIL(err, DSC_ERR_IO, k->dir, "a checkpoint needs %.1f MiB and %.1f MiB are free; nothing was "
                        "written", (double)wanted / 1048576.0, (double)available / 1048576.0);
    return DSC_OK;
}

dsc_status dsc_ckpt_commit_begin(dsc_ckpt_commit *k, int64_t bytes, dsc_error *err)
{
    const dsc_io *io = k->c->io;
    DSC_ASSERT(!k->made_tmp);
    DSC_ASSERT(!k->made_step);
    DSC_TRY(dsc_io_make_dirs(io, k->dir, err));
    DSC_TRY(remove_unannounced(k, err));
    DSC_TRY(remove_names(k, err));
    if (dsc_io_kind(k->step_dir) != DSC_PATH_MISSING && k->resumed_step < 0)
        return dsc_ckpt_refuse_existing(k->step_dir, err);
    DSC_TRY(dsc_io_remove_dir(io, k->tmp_dir, err));
    DSC_TRY(check_space(k, bytes, err));
    DSC_TRY(dsc_io_mkdir(io, k->tmp_dir, err));
    k->made_tmp = true;
    return DSC_OK;
}

/* ---- a step-N that is there already, in a run that goes on from an earlier one ---- */

/* Two whole files, by halves of a buffer. */
static dsc_status same_bytes(const dsc_io *io, dsc_file *a, dsc_file *b, void *buffer, bool *same, dsc_error *err)
{
    char *const left = buffer, *const right = left + DSC_CKPT_BLOCK_BYTES;
    DSC_ASSERT(left != NULL);
    int64_t bytes = 0, other_bytes = 0;
    DSC_TRY(dsc_io_size(io, a, &bytes, err));
    DSC_TRY(dsc_io_size(io, b, &other_bytes, err));
    *same = bytes == other_bytes;
    for (int64_t at = 0; *same && at < bytes; at += DSC_CKPT_BLOCK_BYTES) {
        const int64_t count = dsc_min_i64(DSC_CKPT_BLOCK_BYTES, bytes - at);
        DSC_ASSERT(count > 0);
        DSC_TRY(dsc_io_read(io, a, left, count, at, err));
        DSC_TRY(dsc_io_read(io, b, right, count, at, err));
        *same = memcmp(left, right, (size_t)count) == 0;
    }
    return DSC_OK;
}

/* A tensor's place in a file does not depend on the world size or the stage, so equal tensors are equal files. */
static dsc_status same_file(const dsc_ckpt_commit *k, dsc_ckpt_file f, bool *same, dsc_error *err)
{
    char path[2][DSC_CKPT_PATH_BYTES];
    dsc_file a = DSC_FILE_INIT, b = DSC_FILE_INIT;
    const dsc_io *io = k->c->io;
    DSC_ASSERT(k->c->buffer.bytes >= 2 * DSC_CKPT_BLOCK_BYTES);
    DSC_TRY(dsc_ckpt_file_path(path[0], k->step_dir, dsc_ckpt_file_name[f], err));
    DSC_TRY(dsc_path_join(path[1], sizeof path[1], k->tmp_dir, dsc_ckpt_file_name[f], err));
    if (f == DSC_CKPT_BUFFERS) { /* of some models alone */
        const bool old = dsc_io_kind(path[0]) == DSC_PATH_FILE, new = dsc_io_kind(path[1]) == DSC_PATH_FILE;
        *same = old == new;
        if (!old || !new)
            return DSC_OK;
    }
    DSC_TRY(dsc_io_open(io, path[0], DSC_IO_READ_ONLY, &a, err));
    dsc_status status = dsc_io_open(io, path[1], DSC_IO_READ_ONLY, &b, err);
    if (status == DSC_OK)
        status = same_bytes(io, &a, &b, k->c->buffer.ptr, same, err);
    (void)dsc_io_close(io, &a, NULL); /* only read: nothing can be lost */
    (void)dsc_io_close(io, &b, NULL);
    return status;
}

static dsc_status same_tensors(const dsc_ckpt_commit *k, bool *same, dsc_error *err)
{
    static const dsc_ckpt_file files[] = { DSC_CKPT_MODEL, DSC_CKPT_OPTIMIZER, DSC_CKPT_BUFFERS };
    DSC_ASSERT(!k->part);
    *same = true;
    for (size_t i = 0; i < DSC_COUNT(files) && *same; i++)
        DSC_TRY(same_file(k, files[i], same, err));
    return DSC_OK;
}

/* A part is the same when its save is. */
static dsc_status same_part(const dsc_ckpt_commit *k, bool *same, dsc_error *err)
{
    DSC_ASSERT(k->part);
    dsc_ckpt_manifest manifest;
    uint8_t id[2][32];
    int32_t index[2];
    for (int i = 0; i < 2; i++) {
        DSC_TRY(dsc_ckpt_manifest_read(k->c->io, k->c->alloc, i == 0 ? k->step_dir : k->tmp_dir, &manifest, err));
        dsc_ckpt_manifest_id(&manifest, id[i]);
        index[i] = manifest.parts.count > 1 ? manifest.parts.index : -1;
        dsc_ckpt_manifest_close(&manifest);
    }
    *same = index[0] == index[1] && memcmp(id[0], id[1], sizeof id[0]) == 0;
    return DSC_OK;
}

/* The first setting by which other samples have come; NULL: none. */
static const char *other_samples(const dsc_run_state *a, const dsc_run_state *b)
{
    DSC_ASSERT(a->train_batch_size > 0);
    return a->train_batch_size != b->train_batch_size     ? "train_batch_size"
           : a->seed != b->seed                           ? "dsc.seed"
           : a->shuffle != b->shuffle                     ? "dsc.shuffle"
           : a->seq_length != b->seq_length               ? "the sequence length"
           : a->samples_per_epoch != b->samples_per_epoch ? "the number of samples of the data"
           : a->document_end != b->document_end           ? "dsc.document_end" : NULL;
}

static dsc_status refuse_other(const dsc_ckpt_commit *k, const dsc_run_state *found, dsc_error *err)
{
    const dsc_run_state *s = k->state;
    DSC_ASSERT(!k->keeps_existing);
    const char *why = k->part ? "data, model, hyper-parameters or the hosts of its ranks differ"
                              : "data, model or hyper-parameters differ";
    char text[160];
    if (found->compute_dtype != s->compute_dtype) {
        why = "it was saved in the other precision";
    } else if (found->recipe != s->recipe) {
        why = "a different optimizer wrote it";
    } else if (found->moment_dtype != s->moment_dtype) {
        why = "its moments were saved in the other precision";
    } else if (found->world_size != s->world_size || found->micro_batch != s->micro_batch) {
        snprintf(text, sizeof text, "%lld rank%s with micro-batches of %lld wrote it, and here are %lld with %lld",
                 (long long)found->world_size, found->world_size == 1 ? "" : "s", (long long)found->micro_batch,
                 (long long)s->world_size, (long long)s->micro_batch);
        why = text;
    } else if (found->shard_ranks != s->shard_ranks) {
        why = "mics_shard_size differs";
    } else if (strcmp(found->versions, s->versions) != 0 || strcmp(found->cpu_level, s->cpu_level) != 0) {
        why = "a different version or kind of CPU wrote it";
    } else if (other_samples(found, s) != NULL) {
        snprintf(text, sizeof text, "%s differs", other_samples(found, s));
        why = text;
    }
    return DSC_FAIL(err, DSC_ERR_INPUT, k->step_dir, "exists already and its tensors differ from this run's at this "
                    "step (%s); move it away, or use another --save folder", why);
}

/* A checkpoint of ours that does not verify: what this run has just written takes its place, and it stays beside it. */
static dsc_status move_aside(const dsc_ckpt_commit *k, const dsc_error *why, dsc_error *err)
{
    DSC_ASSERT(k->resumed_step >= 0);
    DSC_ASSERT(k->made_tmp); /* its replacement is written */
    char aside[DSC_CKPT_PATH_BYTES + 16], resumed[64], latest[64];
    snprintf(aside, sizeof aside, "%s.damaged", k->step_dir);
    /* Never a moment in which `latest` names what is not there. */
    snprintf(resumed, sizeof resumed, "step-%lld", (long long)k->resumed_step);
    DSC_TRY(read_name(k, k->latest, latest, err));
    if (strcmp(latest, k->name) == 0)
        DSC_TRY(set_latest(k, resumed, err));
    DSC_TRY(dsc_io_rename(k->c->io, k->step_dir, aside, err));
    DSC_TRY(dsc_io_fsync_dir(k->c->io, k->dir, err));
    dsc_log_printf(k->c->log, DSC_LOG_WARNING, "%s was damaged (%s) and is now %s", k->step_dir, why->message, aside);
    return DSC_OK;
}

static dsc_status settle_existing(dsc_ckpt_commit *k, dsc_error *err)
{
    const dsc_ckpt_ctx *c = k->c;
    DSC_ASSERT(!k->keeps_existing);
    DSC_ASSERT(c->buffer.bytes >= DSC_CKPT_BLOCK_BYTES);
    dsc_ckpt_manifest manifest;
    char path[DSC_CKPT_PATH_BYTES];
    dsc_error damage = DSC_ERROR_INIT;
    bool same = false;
    DSC_TRY(dsc_path_join(path, sizeof path, k->step_dir, DSC_CKPT_MANIFEST_FILE, err));
    if (k->resumed_step < 0 || dsc_io_is_link(k->step_dir) || dsc_io_kind(path) != DSC_PATH_FILE)
        return dsc_ckpt_refuse_existing(k->step_dir, err);
    DSC_TRY(dsc_ckpt_manifest_read(c->io, c->alloc, k->step_dir, &manifest, err));
    const dsc_run_state found = manifest.state;
    dsc_ckpt_manifest_close(&manifest);
    const dsc_status status = dsc_ckpt_verify_with(c->io, c->alloc, k->step_dir, c->buffer.ptr, &damage);
    if (status == DSC_ERR_INPUT)
        return move_aside(k, &damage, err);
    if (status != DSC_OK) {
        if (err != NULL)
            *err = damage;
        return status;
    }
    DSC_TRY(k->part ? same_part(k, &same, err) : same_tensors(k, &same, err));
    if (!same || found.step != k->state->step || found.update_count != k->state->update_count ||
        found.next_sample != k->state->next_sample)
        return refuse_other(k, &found, err);
    if (found.world_size != k->state->world_size || found.zero_stage != k->state->zero_stage)
        dsc_log_printf(c->log, DSC_LOG_INFO, "%s holds the same tensors (written by %lld rank%s at ZeRO stage %d) "
                       "and is kept", k->step_dir, (long long)found.world_size, found.world_size == 1 ? "" : "s",
                       (int)found.zero_stage);
    k->keeps_existing = true;
    return DSC_OK;
}

/* ---- commit ---- */

dsc_status dsc_ckpt_commit_prepare(dsc_ckpt_commit *k, const char *manifest, int64_t bytes, dsc_error *err)
{
    const dsc_io *io = k->c->io;
    DSC_ASSERT(k->made_tmp);
    DSC_ASSERT(bytes > 0);
    DSC_TRY(dsc_io_fsync_dir(io, k->tmp_dir, err));
    DSC_TRY(dsc_ckpt_commit_file(k, DSC_CKPT_MANIFEST_FILE, manifest, bytes, err));
    DSC_TRY(dsc_io_fsync_dir(io, k->tmp_dir, err));
    return dsc_io_kind(k->step_dir) != DSC_PATH_MISSING ? settle_existing(k, err) : DSC_OK;
}

dsc_status dsc_ckpt_commit_name(dsc_ckpt_commit *k, dsc_error *err)
{
    const dsc_io *io = k->c->io;
    DSC_ASSERT(k->made_tmp); /* prepared, and named once */
    DSC_ASSERT(!k->made_step);
    if (k->keeps_existing) {
        DSC_TRY(dsc_io_remove_dir(io, k->tmp_dir, err));
        k->made_tmp = false;
        return DSC_OK;
    }
    DSC_TRY(read_name(k, k->latest, k->previous, err));
    k->had_latest = dsc_io_kind(k->latest) != DSC_PATH_MISSING;
    k->made_latest_tmp = true;
    DSC_TRY(write_name(k, k->latest_tmp, k->name, err));
    DSC_TRY(dsc_io_fsync_dir(io, k->dir, err));
    DSC_TRY(dsc_io_rename(io, k->tmp_dir, k->step_dir, err));
    k->made_tmp = false;
    k->made_step = true;
    return dsc_io_fsync_dir(io, k->dir, err);
}

dsc_status dsc_ckpt_commit_announce(dsc_ckpt_commit *k, dsc_error *err)
{
    DSC_ASSERT(k->keeps_existing || k->made_step);
    DSC_ASSERT(!k->made_latest);
    if (k->keeps_existing)
        return set_latest(k, k->name, err);
    DSC_TRY(dsc_io_rename(k->c->io, k->latest_tmp, k->latest, err));
    k->made_latest = true;
    return dsc_io_fsync_dir(k->c->io, k->dir, err);
}

void dsc_ckpt_commit_settle(dsc_ckpt_commit *k)
{
    k->made_tmp = k->made_step = k->made_latest_tmp = k->made_latest = false;
}

/* ---- back ---- */

/* The last fsync failed: `latest` goes back to what it was, by the way it came. */
static dsc_status take_back_latest(const dsc_ckpt_commit *k)
{
    DSC_ASSERT(k->made_latest);
    if (k->had_latest && k->previous[0] == 0)
        return DSC_ERR_STATE; /* it held something that was not ours to know */
    DSC_TRY(write_name(k, k->latest_tmp, k->name, NULL));
    DSC_TRY(dsc_io_fsync_dir(k->c->io, k->dir, NULL));
    if (k->previous[0] != 0)
        return set_latest(k, k->previous, NULL);
    DSC_TRY(dsc_io_unlink(k->c->io, k->latest, NULL));
    return dsc_io_fsync_dir(k->c->io, k->dir, NULL);
}

void dsc_ckpt_commit_undo(dsc_ckpt_commit *k)
{
    const dsc_ckpt_ctx *c = k->c;
    DSC_ASSERT(!k->made_latest || k->made_step);
    if (k->made_latest && take_back_latest(k) != DSC_OK) {
        dsc_log_printf(c->log, DSC_LOG_WARNING, "%s is whole and stays, but may not survive a loss of power",
                       k->step_dir);
        return;
    }
    if (k->made_step && dsc_io_rename(c->io, k->step_dir, k->tmp_dir, NULL) == DSC_OK) {
        k->made_step = false;
        /* No file goes before the name has: else a loss of power could leave a step-N in part. */
        k->made_tmp = dsc_io_fsync_dir(c->io, k->dir, NULL) == DSC_OK;
    }
    if (k->made_tmp && dsc_io_remove_dir(c->io, k->tmp_dir, NULL) != DSC_OK)
        dsc_log_printf(c->log, DSC_LOG_WARNING,
                       "%s was not removed; it is not a checkpoint, and the next save of this "
                       "step removes it",
                       k->tmp_dir);
    /* While a whole step-N could not be taken back, latest.tmp says that it may be replaced. */
    if (k->made_latest_tmp && !k->made_step && dsc_io_kind(k->latest_tmp) != DSC_PATH_MISSING)
        (void)!dsc_io_unlink(c->io, k->latest_tmp, NULL);
}

/* ---- the step that this run was loaded from ---- */

dsc_status dsc_ckpt_commit_keep_resumed(const dsc_ckpt_commit *k, bool *kept, dsc_error *err)
{
    DSC_ASSERT(k->resumed_step == k->state->step);
    dsc_run_state saved;
    int64_t bytes;
    if (dsc_io_kind(k->step_dir) == DSC_PATH_MISSING)
        return DSC_OK;
    DSC_TRY(dsc_ckpt_summary(k->c->io, k->c->alloc, k->step_dir, &saved, &bytes, err));
    *kept = true;
    DSC_TRY(remove_names(k, err));
    return set_latest(k, k->name, err);
}
