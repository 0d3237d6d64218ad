/* checkpoint_save.c - collective save: every owner writes its byte ranges, rank 0 makes and commits the folder.
 *
 * After each phase all ranks agree (dsc_checkpoint_agree); whatever fails, rank 0 takes the half-made folder away. How
 * a folder becomes a checkpoint, and what happens to one that is there already, is in checkpoint_commit.c.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "engine/checkpoint_save.h"

/* ---- rank 0: folder and files ---- */

/* Of the whole folder: a block takes 32 bytes of tensor and 64 of text in the manifest at most. */
static int64_t folder_bytes(const ckpt_save *s)
{
    int64_t bytes = 1 << 20;
    for (int f = 0; f < CKPT_TENSOR_FILE_COUNT; f++)
        bytes += s->plan[f].file_bytes + s->plan[f].file_bytes / (CKPT_BLOCK_BYTES / 64);
    return bytes;
}

/* Files of the right size, so that every owner can write its ranges. */
static dsc_status make_files(ckpt_save *s, dsc_error *err)
{
    const dsc_io *io = s->c->io;
    DSC_TRY(dsc_ckpt_commit_begin(&s->commit, folder_bytes(s), err));
    for (int f = 0; f < CKPT_TENSOR_FILE_COUNT; f++) {
        char path[CKPT_PATH_BYTES];
        DSC_TRY(dsc_path_join(path, sizeof path, s->commit.tmp_dir, dsc_ckpt_file_name[f], err));
        DSC_TRY(dsc_io_open(io, path, DSC_IO_CREATE_NEW, &s->file[f], err));
        DSC_TRY(dsc_safetensors_write_header(&s->plan[f], io, &s->file[f], err));
    }
    return DSC_OK;
}

/* ---- every rank: its slices ---- */

static dsc_plane plane_of(const ckpt_entry *entry, bool trainable)
{
    switch (entry->plane) {
    case CKPT_MASTER: return DSC_PLANE_MASTER;
    case CKPT_EXP_AVG: return DSC_PLANE_MOMENT1;
    case CKPT_EXP_AVG_SQ: return DSC_PLANE_MOMENT2;
    case CKPT_WEIGHTS: break;
    }
    return entry->dtype == DSC_F32 && trainable ? DSC_PLANE_MASTER : DSC_PLANE_PARAM;
}

/* A block's bytes: where they lie, if the host can read them there in one piece; else they are on their way to `to`. */
static dsc_status fetch_block(ckpt_save *s, const ckpt_block *block, char *to, const void **data, dsc_error *err)
{
    const ckpt_entry *entry = &s->entries.entry[block->entry];
    const dsc_layout_tensor *tensor = &s->c->layout->tensor[entry->tensor];
    const int64_t each = (int64_t)dsc_dtype_bytes(entry->dtype);
    const bool visible = dsc_device_host_visible(s->c->device);
    dsc_zero_slice slice;
    dsc_zero_slice_get(s->c->zero, tensor->group, &slice);
    const int64_t at = tensor->offset + block->first - slice.first;
    *data = to;
    for (int64_t done = 0, now; done < block->count; done += now) {
        void *from;
        now = block->count - done;
        DSC_TRY(dsc_zero_view(s->c->zero, tensor->group, plane_of(entry, slice.trainable), at + done, &now, false,
                              &from, err));
        if (visible && now == block->count)
            *data = from;
        else
            DSC_TRY(dsc_copy(s->c->stream, to + done * each, from, now * each, err));
    }
    return DSC_OK;
}

static dsc_status write_block(ckpt_save *s, ckpt_block *block, const void *data, int64_t bytes, dsc_error *err)
{
    const ckpt_entry *entry = &s->entries.entry[block->entry];
    const int64_t each = (int64_t)dsc_dtype_bytes(entry->dtype);
    block->hash = dsc_ckpt_block_hash(entry->name, block, s->state->step, data, bytes);
    return dsc_io_write(s->c->io, &s->file[entry->file], data, bytes,
                        s->plan[entry->file].offset[entry->index_in_file] + block->first * each, err);
}

/* Where the host cannot reach the slices, each block is on its way while the last is hashed and written. */
static dsc_status write_blocks(ckpt_save *s, int64_t count, dsc_error *err)
{
    const bool visible = dsc_device_host_visible(s->c->device);
    const void *data[2];
    if (count > 0)
        DSC_TRY(fetch_block(s, &s->block[0], s->c->buffer.ptr, &data[0], err));
    for (int64_t b = 0; b < count; b++) {
        const int64_t bytes = s->block[b].count * (int64_t)dsc_dtype_bytes(s->entries.entry[s->block[b].entry].dtype);
        char *next = (char *)s->c->buffer.ptr + (b + 1) % 2 * CKPT_BLOCK_BYTES;
        if (!visible) {
            DSC_TRY(dsc_stream_sync(s->c->stream, err));
            if (b + 1 < count)
                DSC_TRY(fetch_block(s, &s->block[b + 1], next, &data[(b + 1) % 2], err));
        }
        DSC_TRY(write_block(s, &s->block[b], data[b % 2], bytes, err));
        if (visible && b + 1 < count) /* a view ends with the next one */
            DSC_TRY(fetch_block(s, &s->block[b + 1], next, &data[(b + 1) % 2], err));
    }
    return DSC_OK;
}

static dsc_status write_slices(ckpt_save *s, dsc_error *err)
{
    const int32_t rank = dsc_comm_rank(s->c->comm);
    for (int f = 0; f < CKPT_TENSOR_FILE_COUNT; f++) {
        char path[CKPT_PATH_BYTES];
        if (s->file[f].fd >= 0)
            continue;
        DSC_TRY(dsc_path_join(path, sizeof path, s->commit.tmp_dir, dsc_ckpt_file_name[f], err));
        DSC_TRY(dsc_io_open(s->c->io, path, DSC_IO_READ_WRITE, &s->file[f], err));
    }
    DSC_TRY(write_blocks(s, s->first_block[rank + 1] - s->first_block[rank], err));
    for (int f = 0; f < CKPT_TENSOR_FILE_COUNT; f++) {
        DSC_TRY(dsc_io_fsync(s->c->io, &s->file[f], err));
        DSC_TRY(dsc_io_close(s->c->io, &s->file[f], err));
    }
    return DSC_OK;
}

/* ---- the manifest ---- */

/* Rank 0 takes every rank's blocks, in order of ranks. */
static dsc_status collect_blocks(ckpt_save *s, dsc_error *err)
{
    const dsc_checkpoint_ctx *c = s->c;
    const int32_t size = dsc_comm_size(c->comm), rank = dsc_comm_rank(c->comm);
    const int64_t *first = s->first_block, each = (int64_t)sizeof *s->block;
    if (rank != 0) {
        const int64_t bytes = (first[rank + 1] - first[rank]) * each;
        return dsc_comm_send(c->comm, DSC_CHANNEL_CONTROL, s->block, bytes, 0, NULL, err);
    }
    memcpy(s->all, s->block, (size_t)(first[1] * each));
    for (int32_t r = 1; r < size; r++)
        DSC_TRY(dsc_comm_recv(c->comm, DSC_CHANNEL_CONTROL, s->all + first[r], (first[r + 1] - first[r]) * each, r,
                              NULL, err));
    return DSC_OK;
}

static dsc_status commit(ckpt_save *s, dsc_error *err)
{
    const dsc_checkpoint_ctx *c = s->c;
    char *text = NULL;
    int64_t bytes;
    for (int f = CKPT_TENSOR_FILE_COUNT; f < CKPT_FILE_COUNT; f++) {
        const char *small = dsc_ckpt_save_text(s, (ckpt_file)f, &bytes);
        if (small != NULL)
            DSC_TRY(dsc_ckpt_commit_file(&s->commit, dsc_ckpt_file_name[f], small, bytes, err));
    }
    dsc_ckpt_save_sort(s);
    DSC_TRY(dsc_ckpt_manifest_write(c->alloc, s->state, &s->entries, s->info, s->sorted,
                                    s->first_block[dsc_comm_size(c->comm)], &text, &bytes, err));
    const dsc_status status = dsc_ckpt_commit_finish(&s->commit, text, bytes, err);
    dsc_alloc_free(c->alloc, text);
    return status;
}

/* ---- the whole ---- */

static dsc_status run_save(ckpt_save *s, dsc_error *err)
{
    const bool first = dsc_comm_rank(s->c->comm) == 0;
    dsc_error mine = DSC_ERROR_INIT;
    dsc_status status = dsc_ckpt_save_plan(s, &mine);
    DSC_TRY(dsc_checkpoint_agree(s->c, status, &mine, err));
    status = first ? make_files(s, &mine) : DSC_OK;
    DSC_TRY(dsc_checkpoint_agree(s->c, status, &mine, err));
    status = write_slices(s, &mine);
    DSC_TRY(dsc_checkpoint_agree(s->c, status, &mine, err));
    DSC_TRY(collect_blocks(s, err));
    status = first ? commit(s, &mine) : DSC_OK;
    return dsc_checkpoint_agree(s->c, status, &mine, err);
}

/* The checkpoint that this run was loaded from is what it would save now: rank 0 looks whether it is still there. */
static dsc_status keep_resumed(ckpt_save *s, bool *kept, dsc_error *err)
{
    const dsc_checkpoint_ctx *c = s->c;
    dsc_error mine = DSC_ERROR_INIT;
    dsc_status status = DSC_OK;
    if (dsc_comm_rank(c->comm) == 0)
        status = dsc_ckpt_commit_keep_resumed(&s->commit, kept, &mine);
    DSC_TRY(dsc_checkpoint_agree(c, status, &mine, err));
    return dsc_comm_broadcast(c->comm, DSC_CHANNEL_CONTROL, kept, (int64_t)sizeof *kept, 0, NULL, err);
}

static void tell(void *user, const char *name)
{
    const ckpt_save *s = *(ckpt_save **)user;
    dsc_log_printf(s->c->log, DSC_LOG_DEBUG, "%s/%s is removed", s->commit.dir, name);
}

/* The save has succeeded: whatever goes wrong here is not its failure. */
static void remove_older(ckpt_save *s)
{
    const dsc_checkpoint_ctx *c = s->c;
    dsc_checkpoint_keep keep = c->keep;
    dsc_error err = DSC_ERROR_INIT;
    if (dsc_comm_rank(c->comm) != 0 || keep.last == 0)
        return;
    keep.unfinished = true;
    keep.told = tell;
    keep.user = &s;
    if (dsc_checkpoint_prune(c->io, c->alloc, s->commit.dir, &keep, &err) != DSC_OK)
        dsc_log_printf(c->log, DSC_LOG_WARNING, "older checkpoints could not be removed: %s: %s", err.where,
                       err.message);
}

static dsc_status save(ckpt_save *s, dsc_error *err)
{
    bool kept = false;
    if (s->commit.resumed_step == s->state->step)
        DSC_TRY(keep_resumed(s, &kept, err));
    if (kept)
        return DSC_OK;
    /* It was moved away: this save is like any other. */
    if (s->commit.resumed_step >= s->state->step)
        s->commit.resumed_step = -1;
    const dsc_status status = run_save(s, err);
    if (status != DSC_OK) {
        dsc_ckpt_commit_undo(&s->commit);
        /* The others stay until rank 0 is done: a launcher ends all ranks when the first one ends. */
        (void)!dsc_checkpoint_agree(s->c, DSC_OK, NULL, NULL);
    } else {
        remove_older(s);
    }
    return status;
}

dsc_status dsc_checkpoint_save(const dsc_checkpoint_ctx *ctx, const char *dir, const dsc_run_state *state,
                               int64_t resumed_step, dsc_error *err)
{
    ckpt_save *s = NULL;
    dsc_error mine = DSC_ERROR_INIT;
    dsc_status status = dsc_ckpt_save_open(ctx, dir, state, resumed_step, &s, &mine);
    status = dsc_checkpoint_agree(ctx, status, &mine, err);
    if (status == DSC_OK)
        status = save(s, err);
    dsc_ckpt_save_close(&s);
    return status;
}
