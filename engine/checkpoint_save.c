/* checkpoint_save.c - collective save: every owner writes its byte ranges, rank 0 makes and commits the folder.
 *
 * After each phase all ranks agree (dsc_checkpoint_agree); whatever fails, rank 0 takes the half-made folder away. How
 * a folder becomes a checkpoint, and what happens to one that is there already, is in checkpoint_commit.c.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "engine/checkpoint_internal.h"

typedef struct save_job {
    const dsc_checkpoint_ctx *c;
    const dsc_run_state *state;
    ckpt_commit commit;
    ckpt_entries entries;
    dsc_safetensors_plan plan[CKPT_TENSOR_FILE_COUNT];
    dsc_file file[CKPT_TENSOR_FILE_COUNT];
    ckpt_file_info info[CKPT_FILE_COUNT];
    int64_t *first_block; /* [W + 1] where each rank's blocks start in a list of all */
    ckpt_block *block;    /* this rank's */
    /* Rank 0: */
    ckpt_block *all, *sorted; /* every rank's, in order of ranks and in order of tensors */
    int64_t *first_of_entry;
} save_job;

/* ---- planning ---- */

static dsc_status plan_file(save_job *j, int f, dsc_error *err)
{
    dsc_alloc *alloc = j->c->alloc;
    const dsc_safetensors_pair metadata = { "format", "pt" };
    dsc_safetensors_spec *specs = NULL;
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_IO, j->entries.file_entries[f], sizeof *specs, &specs, err));
    for (int32_t e = 0; e < j->entries.count; e++) {
        const ckpt_entry *entry = &j->entries.entry[e];
        if (entry->file != (ckpt_file)f)
            continue;
        const dsc_param_spec *param = j->c->layout->tensor[entry->tensor].spec;
        dsc_safetensors_spec *spec = &specs[entry->index_in_file];
        *spec = (dsc_safetensors_spec){ .name = entry->name,
                                        .desc = { .dtype = entry->dtype, .dim_count = param->dim_count } };
        memcpy(spec->desc.dim, param->dim, sizeof param->dim);
    }
    const int32_t count = j->entries.file_entries[f];
    const dsc_status status = dsc_safetensors_plan_open(&j->plan[f], alloc, specs, count, &metadata, 1, err);
    dsc_alloc_free(alloc, specs);
    DSC_TRY(status);
    const dsc_safetensors_plan *plan = &j->plan[f];
    j->info[f] = (ckpt_file_info){ .bytes = plan->file_bytes, .head_bytes = plan->header_bytes };
    dsc_ckpt_sha256(plan->header, plan->header_bytes, j->info[f].sha256);
    return DSC_OK;
}

static dsc_status plan_blocks(save_job *j, dsc_error *err)
{
    const dsc_checkpoint_ctx *c = j->c;
    const int32_t size = dsc_comm_size(c->comm), rank = dsc_comm_rank(c->comm);
    DSC_TRY(dsc_alloc_zeroed(c->alloc, DSC_TAG_IO, size + 1, sizeof *j->first_block, &j->first_block, err));
    for (int32_t r = 0; r < size; r++)
        j->first_block[r + 1] = j->first_block[r] + dsc_ckpt_blocks_of_rank(c->layout, &j->entries, r, NULL);
    const int64_t mine = j->first_block[rank + 1] - j->first_block[rank];
    DSC_TRY(dsc_alloc_zeroed(c->alloc, DSC_TAG_IO, mine, sizeof *j->block, &j->block, err));
    dsc_ckpt_blocks_of_rank(c->layout, &j->entries, rank, j->block);
    if (rank != 0)
        return DSC_OK;
    DSC_TRY(dsc_alloc_zeroed(c->alloc, DSC_TAG_IO, j->entries.count + 1, sizeof *j->first_of_entry, &j->first_of_entry,
                             err));
    DSC_TRY(dsc_alloc_zeroed(c->alloc, DSC_TAG_IO, j->first_block[size], sizeof *j->all, &j->all, err));
    return dsc_alloc_zeroed(c->alloc, DSC_TAG_IO, j->first_block[size], sizeof *j->sorted, &j->sorted, err);
}

static dsc_status plan_save(save_job *j, dsc_error *err)
{
    DSC_TRY(dsc_ckpt_entries_open(j->c->alloc, j->c->layout, j->state, &j->entries, err));
    for (int f = 0; f < CKPT_TENSOR_FILE_COUNT; f++)
        DSC_TRY(plan_file(j, f, err));
    return plan_blocks(j, err);
}

/* ---- rank 0: folder and files ---- */

/* Of the whole folder: a block takes 32 bytes of tensor and 64 of text in the manifest at most. */
static int64_t folder_bytes(const save_job *j)
{
    int64_t bytes = 1 << 20;
    for (int f = 0; f < CKPT_TENSOR_FILE_COUNT; f++)
        bytes += j->plan[f].file_bytes + j->plan[f].file_bytes / (CKPT_BLOCK_BYTES / 64);
    return bytes;
}

/* Files of the right size, so that every owner can write its ranges. */
static dsc_status make_files(save_job *j, dsc_error *err)
{
    const dsc_io *io = j->c->io;
    DSC_TRY(dsc_ckpt_commit_begin(&j->commit, folder_bytes(j), err));
    for (int f = 0; f < CKPT_TENSOR_FILE_COUNT; f++) {
        char path[CKPT_PATH_BYTES];
        DSC_TRY(dsc_path_join(path, sizeof path, j->commit.tmp_dir, dsc_ckpt_file_name[f], err));
        DSC_TRY(dsc_io_open(io, path, DSC_IO_CREATE_NEW, &j->file[f], err));
        DSC_TRY(dsc_safetensors_write_header(&j->plan[f], io, &j->file[f], err));
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
static dsc_status fetch_block(save_job *j, const ckpt_block *block, char *to, const void **data, dsc_error *err)
{
    const ckpt_entry *entry = &j->entries.entry[block->entry];
    const dsc_layout_tensor *tensor = &j->c->layout->tensor[entry->tensor];
    const int64_t each = (int64_t)dsc_dtype_bytes(entry->dtype);
    const bool visible = dsc_device_host_visible(j->c->device);
    dsc_zero_slice slice;
    dsc_zero_slice_get(j->c->zero, tensor->group, &slice);
    const int64_t at = tensor->offset + block->first - slice.first;
    *data = to;
    for (int64_t done = 0, now; done < block->count; done += now) {
        void *from;
        now = block->count - done;
        DSC_TRY(dsc_zero_view(j->c->zero, tensor->group, plane_of(entry, slice.trainable), at + done, &now, false,
                              &from, err));
        if (visible && now == block->count)
            *data = from;
        else
            DSC_TRY(dsc_copy(j->c->stream, to + done * each, from, now * each, err));
    }
    return DSC_OK;
}

static dsc_status write_block(save_job *j, ckpt_block *block, const void *data, int64_t bytes, dsc_error *err)
{
    const ckpt_entry *entry = &j->entries.entry[block->entry];
    const int64_t each = (int64_t)dsc_dtype_bytes(entry->dtype);
    block->hash = dsc_ckpt_block_hash(entry->name, block, j->state->step, data, bytes);
    return dsc_io_write(j->c->io, &j->file[entry->file], data, bytes,
                        j->plan[entry->file].offset[entry->index_in_file] + block->first * each, err);
}

/* Where the host cannot reach the slices, each block is on its way while the last is hashed and written. */
static dsc_status write_blocks(save_job *j, int64_t count, dsc_error *err)
{
    const bool visible = dsc_device_host_visible(j->c->device);
    const void *data[2];
    if (count > 0)
        DSC_TRY(fetch_block(j, &j->block[0], j->c->buffer.ptr, &data[0], err));
    for (int64_t b = 0; b < count; b++) {
        const int64_t bytes = j->block[b].count * (int64_t)dsc_dtype_bytes(j->entries.entry[j->block[b].entry].dtype);
        char *next = (char *)j->c->buffer.ptr + (b + 1) % 2 * CKPT_BLOCK_BYTES;
        if (!visible) {
            DSC_TRY(dsc_stream_sync(j->c->stream, err));
            if (b + 1 < count)
                DSC_TRY(fetch_block(j, &j->block[b + 1], next, &data[(b + 1) % 2], err));
        }
        DSC_TRY(write_block(j, &j->block[b], data[b % 2], bytes, err));
        if (visible && b + 1 < count) /* a view ends with the next one */
            DSC_TRY(fetch_block(j, &j->block[b + 1], next, &data[(b + 1) % 2], err));
    }
    return DSC_OK;
}

static dsc_status write_slices(save_job *j, dsc_error *err)
{
    const int32_t rank = dsc_comm_rank(j->c->comm);
    for (int f = 0; f < CKPT_TENSOR_FILE_COUNT; f++) {
        char path[CKPT_PATH_BYTES];
        if (j->file[f].fd >= 0)
            continue;
        DSC_TRY(dsc_path_join(path, sizeof path, j->commit.tmp_dir, dsc_ckpt_file_name[f], err));
        DSC_TRY(dsc_io_open(j->c->io, path, DSC_IO_READ_WRITE, &j->file[f], err));
    }
    DSC_TRY(write_blocks(j, j->first_block[rank + 1] - j->first_block[rank], err));
    for (int f = 0; f < CKPT_TENSOR_FILE_COUNT; f++) {
        DSC_TRY(dsc_io_fsync(j->c->io, &j->file[f], err));
        DSC_TRY(dsc_io_close(j->c->io, &j->file[f], err));
    }
    return DSC_OK;
}

/* ---- the manifest ---- */

/* Rank 0 takes every rank's blocks, in order of ranks. */
static dsc_status collect_blocks(save_job *j, dsc_error *err)
{
    const dsc_checkpoint_ctx *c = j->c;
    const int32_t size = dsc_comm_size(c->comm), rank = dsc_comm_rank(c->comm);
    const int64_t *first = j->first_block, each = (int64_t)sizeof *j->block;
    if (rank != 0) {
        const int64_t bytes = (first[rank + 1] - first[rank]) * each;
        return dsc_comm_send(c->comm, DSC_CHANNEL_CONTROL, j->block, bytes, 0, NULL, err);
    }
    memcpy(j->all, j->block, (size_t)(first[1] * each));
    for (int32_t r = 1; r < size; r++)
        DSC_TRY(dsc_comm_recv(c->comm, DSC_CHANNEL_CONTROL, j->all + first[r], (first[r + 1] - first[r]) * each, r,
                              NULL, err));
    return DSC_OK;
}

/* By tensor, then by position. Within a tensor, owners follow each other, so the order of ranks is already right. */
static void sort_blocks(save_job *j)
{
    const int64_t count = j->first_block[dsc_comm_size(j->c->comm)];
    int64_t *next = j->first_of_entry; /* where the next block of each entry goes; zeroed */
    for (int64_t i = 0; i < count; i++)
        next[j->all[i].entry + 1]++;
    for (int32_t e = 0; e < j->entries.count; e++)
        next[e + 1] += next[e];
    for (int64_t i = 0; i < count; i++)
        j->sorted[next[j->all[i].entry]++] = j->all[i];
}

static dsc_status write_small(save_job *j, ckpt_file f, const char *text, int64_t bytes, dsc_error *err)
{
    if (bytes > CKPT_SMALL_BYTES_MAX)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, dsc_ckpt_file_name[f], "%lld bytes; at most %d are read back",
                        (long long)bytes, CKPT_SMALL_BYTES_MAX);
    j->info[f] = (ckpt_file_info){ .bytes = bytes, .head_bytes = bytes };
    dsc_ckpt_sha256(text, bytes, j->info[f].sha256);
    return dsc_ckpt_commit_file(&j->commit, dsc_ckpt_file_name[f], text, bytes, err);
}

static dsc_status commit(save_job *j, dsc_error *err)
{
    const dsc_checkpoint_ctx *c = j->c;
    char *text = NULL;
    int64_t bytes;
    if (c->model->config_json != NULL)
        DSC_TRY(write_small(j, CKPT_CONFIG, c->model->config_json, (int64_t)strlen(c->model->config_json), err));
    if (c->config_text != NULL)
        DSC_TRY(write_small(j, CKPT_DS_CONFIG, c->config_text, c->config_bytes, err));
    sort_blocks(j);
    DSC_TRY(dsc_ckpt_manifest_write(c->alloc, j->state, &j->entries, j->info, j->sorted,
                                    j->first_block[dsc_comm_size(c->comm)], &text, &bytes, err));
    const dsc_status status = dsc_ckpt_commit_finish(&j->commit, text, bytes, err);
    dsc_alloc_free(c->alloc, text);
    return status;
}

/* ---- the whole ---- */

static dsc_status run_save(save_job *j, dsc_error *err)
{
    const bool first = dsc_comm_rank(j->c->comm) == 0;
    dsc_error mine = DSC_ERROR_INIT;
    dsc_status status = plan_save(j, &mine);
    DSC_TRY(dsc_checkpoint_agree(j->c, status, &mine, err));
    status = first ? make_files(j, &mine) : DSC_OK;
    DSC_TRY(dsc_checkpoint_agree(j->c, status, &mine, err));
    status = write_slices(j, &mine);
    DSC_TRY(dsc_checkpoint_agree(j->c, status, &mine, err));
    DSC_TRY(collect_blocks(j, err));
    status = first ? commit(j, &mine) : DSC_OK;
    return dsc_checkpoint_agree(j->c, status, &mine, err);
}

static void close_job(save_job *j)
{
    dsc_alloc *alloc = j->c->alloc;
    for (int f = 0; f < CKPT_TENSOR_FILE_COUNT; f++) {
        (void)dsc_io_close(j->c->io, &j->file[f], NULL);
        dsc_safetensors_plan_close(&j->plan[f]);
    }
    dsc_ckpt_entries_close(&j->entries);
    dsc_alloc_free(alloc, j->first_of_entry);
    dsc_alloc_free(alloc, j->sorted);
    dsc_alloc_free(alloc, j->all);
    dsc_alloc_free(alloc, j->block);
    dsc_alloc_free(alloc, j->first_block);
    dsc_alloc_free(alloc, j);
}

/* The checkpoint that this run was loaded from is what it would save now: rank 0 looks whether it is still there. */
static dsc_status keep_resumed(save_job *j, bool *kept, dsc_error *err)
{
    const dsc_checkpoint_ctx *c = j->c;
    dsc_error mine = DSC_ERROR_INIT;
    dsc_status status = DSC_OK;
    if (dsc_comm_rank(c->comm) == 0)
        status = dsc_ckpt_commit_keep_resumed(&j->commit, kept, &mine);
    DSC_TRY(dsc_checkpoint_agree(c, status, &mine, err));
    return dsc_comm_broadcast(c->comm, DSC_CHANNEL_CONTROL, kept, (int64_t)sizeof *kept, 0, NULL, err);
}

static void tell(void *user, const char *name)
{
    const save_job *j = *(save_job **)user;
    dsc_log_printf(j->c->log, DSC_LOG_DEBUG, "%s/%s is removed", j->commit.dir, name);
}

/* The save has succeeded: whatever goes wrong here is not its failure. */
static void remove_older(save_job *j)
{
    const dsc_checkpoint_ctx *c = j->c;
    dsc_checkpoint_keep keep = c->keep;
    dsc_error err = DSC_ERROR_INIT;
    if (dsc_comm_rank(c->comm) != 0 || keep.last == 0)
        return;
    keep.unfinished = true;
    keep.told = tell;
    keep.user = &j;
    if (dsc_checkpoint_prune(c->io, c->alloc, j->commit.dir, &keep, &err) != DSC_OK)
        dsc_log_printf(c->log, DSC_LOG_WARNING, "older checkpoints could not be removed: %s: %s", err.where,
                       err.message);
}

static dsc_status save(save_job *j, dsc_error *err)
{
    bool kept = false;
    if (j->commit.resumed_step == j->state->step)
        DSC_TRY(keep_resumed(j, &kept, err));
    if (kept)
        return DSC_OK;
    /* It was moved away: this save is like any other. */
    if (j->commit.resumed_step >= j->state->step)
        j->commit.resumed_step = -1;
    const dsc_status status = run_save(j, err);
    if (status != DSC_OK) {
        dsc_ckpt_commit_undo(&j->commit);
        /* The others stay until rank 0 is done: a launcher ends all ranks when the first one ends. */
        (void)!dsc_checkpoint_agree(j->c, DSC_OK, NULL, NULL);
    } else {
        remove_older(j);
    }
    return status;
}

dsc_status dsc_checkpoint_save(const dsc_checkpoint_ctx *ctx, const char *dir, const dsc_run_state *state,
                               int64_t resumed_step, dsc_error *err)
{
    save_job *job = NULL;
    dsc_error mine = DSC_ERROR_INIT;
    dsc_status status = dsc_alloc_zeroed(ctx->alloc, DSC_TAG_IO, 1, sizeof *job, &job, &mine);
    if (status == DSC_OK) {
        job->c = ctx;
        job->state = state;
        for (int f = 0; f < CKPT_TENSOR_FILE_COUNT; f++)
            job->file[f] = (dsc_file)DSC_FILE_INIT;
        for (int f = 0; f < CKPT_FILE_COUNT; f++)
            job->info[f].bytes = -1;
        status = dsc_ckpt_commit_plan(&job->commit, ctx, dir, state, resumed_step, &mine);
    }
    status = dsc_checkpoint_agree(ctx, status, &mine, err);
    if (status == DSC_OK)
        status = save(job, err);
    if (job != NULL)
        close_job(job);
    return status;
}
