/* checkpoint_save.c - collective save: every owner writes its byte ranges, rank 0 makes and commits the folder.
 *
 * After each phase all ranks agree (dsc_checkpoint_agree); whatever fails, rank 0 takes the half-made folder away. The
 * order: step-N.tmp with its files, each durable; the manifest; latest.tmp; rename to step-N; rename to latest; the
 * folder is fsynced after each.
 *
 * A step-N that exists already is refused, but for two. One that latest.tmp still names was never announced by a
 * finished save: its commit was cut short between the two renames, and it is replaced. And when this run goes on from
 * an earlier step of the folder, a step-N with the same manifest is what would be written: it stays, and `latest` names
 * it. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "engine/checkpoint_internal.h"

typedef struct save_job {
    const dsc_checkpoint_ctx *c;
    const dsc_run_state *state;
    const char *dir;
    bool resumed; /* from an earlier step in dir */
    char name[64], step_dir[CKPT_PATH_BYTES], tmp_dir[CKPT_PATH_BYTES];
    char latest[CKPT_PATH_BYTES], latest_tmp[CKPT_PATH_BYTES];
    ckpt_entries entries;
    dsc_safetensors_plan plan[CKPT_TENSOR_FILE_COUNT];
    dsc_file file[CKPT_TENSOR_FILE_COUNT];
    ckpt_file_info info[CKPT_FILE_COUNT];
    int64_t *first_block; /* [W + 1] where each rank's blocks start in a list of all */
    ckpt_block *block;    /* this rank's */
    /* Rank 0: */
    ckpt_block *all, *sorted; /* every rank's, in order of ranks and in order of tensors */
    int64_t *first_of_entry;
    bool made_tmp, made_step, made_latest_tmp; /* there now, and to be undone after a failure */
    bool adopted; /* step-N was there and is the same */
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
    char tmp_name[80];
    snprintf(j->name, sizeof j->name, "step-%lld", (long long)j->state->step);
    snprintf(tmp_name, sizeof tmp_name, "%s.tmp", j->name);
    DSC_TRY(dsc_path_join(j->step_dir, sizeof j->step_dir, j->dir, j->name, err));
    DSC_TRY(dsc_path_join(j->tmp_dir, sizeof j->tmp_dir, j->dir, tmp_name, err));
    DSC_TRY(dsc_path_join(j->latest, sizeof j->latest, j->dir, "latest", err));
    DSC_TRY(dsc_path_join(j->latest_tmp, sizeof j->latest_tmp, j->dir, "latest.tmp", err));
    DSC_TRY(dsc_ckpt_entries_open(j->c->alloc, j->c->layout, j->state->compute_dtype, &j->entries, err));
    for (int f = 0; f < CKPT_TENSOR_FILE_COUNT; f++)
        DSC_TRY(plan_file(j, f, err));
    return plan_blocks(j, err);
}

/* ---- rank 0: folder and files ---- */

/* Every missing folder of the path, each one's name made durable in the folder above it. */
static dsc_status make_dirs(const dsc_io *io, const char *dir, dsc_error *err)
{
    char path[CKPT_PATH_BYTES], above[CKPT_PATH_BYTES];
    DSC_TRY(dsc_path_join(path, sizeof path, dir, "", err));
    snprintf(above, sizeof above, "%s", path[0] == '/' ? "/" : ".");
    for (char *slash = path + strspn(path, "/"); (slash = strchr(slash, '/')) != NULL; slash += strspn(slash, "/")) {
        *slash = 0;
        if (dsc_io_kind(path) == DSC_PATH_MISSING) {
            DSC_TRY(dsc_io_mkdir(io, path, err));
            DSC_TRY(dsc_io_fsync_dir(io, above, err));
        }
        snprintf(above, sizeof above, "%s", path);
        *slash = '/';
    }
    return dsc_io_mkdir(io, dir, err); /* says so when it is no folder */
}

static dsc_status refuse_existing(const save_job *j, dsc_error *err)
{
    return DSC_FAIL(err, DSC_ERR_INPUT, j->step_dir,
                    "exists already and this run did not resume from it; move it away, or use another --save folder");
}

/* Whether the step-N that is there is the rest of a commit that was cut short. */
static bool was_never_announced(const save_job *j)
{
    char name[64];
    return !dsc_io_is_link(j->step_dir) && !dsc_io_is_link(j->latest_tmp) &&
           dsc_io_kind(j->latest_tmp) == DSC_PATH_FILE &&
           dsc_checkpoint_read_latest(j->c->io, j->c->alloc, j->latest_tmp, name, NULL) == DSC_OK &&
           strcmp(name, j->name) == 0;
}

static dsc_status check_space(const save_job *j, dsc_error *err)
{
    int64_t wanted = 1 << 20, available = 0;
    for (int f = 0; f < CKPT_TENSOR_FILE_COUNT; f++)
        wanted += j->plan[f].file_bytes + j->plan[f].file_bytes / (CKPT_BLOCK_BYTES / 64);
    DSC_TRY(dsc_io_free_bytes(j->dir, &available, err));
    if (wanted > available)
        return DSC_FAIL(err, DSC_ERR_IO, j->dir, "a checkpoint needs %.1f MB and %.1f MB are free; nothing was written",
                        (double)wanted / 1048576.0, (double)available / 1048576.0);
    return DSC_OK;
}

/* Files of the right size, so that every owner can write its ranges. */
static dsc_status make_files(save_job *j, dsc_error *err)
{
    const dsc_io *io = j->c->io;
    DSC_TRY(make_dirs(io, j->dir, err));
    const bool exists = dsc_io_kind(j->step_dir) != DSC_PATH_MISSING;
    const bool replaces = exists && was_never_announced(j);
    if (exists && !replaces && !j->resumed)
        return refuse_existing(j, err);
    DSC_TRY(dsc_io_remove_dir(io, j->tmp_dir, err));
    if (replaces) {
        DSC_TRY(dsc_io_rename(io, j->step_dir, j->tmp_dir, err));
        DSC_TRY(dsc_io_remove_dir(io, j->tmp_dir, err));
    }
    DSC_TRY(check_space(j, err));
    DSC_TRY(dsc_io_mkdir(io, j->tmp_dir, err));
    j->made_tmp = true;
    for (int f = 0; f < CKPT_TENSOR_FILE_COUNT; f++) {
        char path[CKPT_PATH_BYTES];
        DSC_TRY(dsc_path_join(path, sizeof path, j->tmp_dir, dsc_ckpt_file_name[f], err));
        DSC_TRY(dsc_io_open(io, path, DSC_IO_CREATE_NEW, &j->file[f], err));
        DSC_TRY(dsc_safetensors_write_header(&j->plan[f], io, &j->file[f], err));
    }
    return DSC_OK;
}

/* ---- every rank: its slices ---- */

static const void *entry_data(const dsc_zero_slice *slice, const ckpt_entry *entry)
{
    switch (entry->plane) {
    case CKPT_MASTER: return slice->master;
    case CKPT_EXP_AVG: return slice->moment1;
    case CKPT_EXP_AVG_SQ: return slice->moment2;
    case CKPT_WEIGHTS: break;
    }
    return entry->dtype == DSC_F32 && slice->master != NULL ? (const void *)slice->master : slice->param;
}

/* Where a block lies on the device. */
static const char *block_data(const save_job *j, const ckpt_block *block, int64_t *bytes)
{
    const ckpt_entry *entry = &j->entries.entry[block->entry];
    const dsc_layout_tensor *tensor = &j->c->layout->tensor[entry->tensor];
    const int64_t each = (int64_t)dsc_dtype_bytes(entry->dtype);
    dsc_zero_slice slice;
    dsc_zero_slice_get(j->c->zero, tensor->group, &slice);
    *bytes = block->count * each;
    return (const char *)entry_data(&slice, entry) + (tensor->offset + block->first - slice.first) * each;
}

static dsc_status write_block(save_job *j, ckpt_block *block, const void *data, int64_t bytes, dsc_error *err)
{
    const ckpt_entry *entry = &j->entries.entry[block->entry];
    const int64_t each = (int64_t)dsc_dtype_bytes(entry->dtype);
    block->hash = dsc_ckpt_block_hash(entry->name, block, j->state->step, data, bytes);
    return dsc_io_write(j->c->io, &j->file[entry->file], data, bytes,
                        j->plan[entry->file].offset[entry->index_in_file] + block->first * each, err);
}

/* Starts the copy of block b to its half of the buffer; the host reads it after the next sync. */
static dsc_status fetch_block(save_job *j, int64_t b, dsc_error *err)
{
    int64_t bytes;
    const char *data = block_data(j, &j->block[b], &bytes);
    return dsc_copy(j->c->stream, (char *)j->c->buffer.ptr + b % 2 * CKPT_BLOCK_BYTES, data, bytes, err);
}

/* From the slices themselves, or, where the host cannot reach them, each block is on its way while the last is hashed
 * and written. */
static dsc_status write_blocks(save_job *j, int64_t count, dsc_error *err)
{
    const bool direct = dsc_device_host_visible(j->c->device);
    if (!direct && count > 0)
        DSC_TRY(fetch_block(j, 0, err));
    for (int64_t b = 0; b < count; b++) {
        int64_t bytes;
        const char *data = block_data(j, &j->block[b], &bytes);
        if (!direct) {
            DSC_TRY(dsc_stream_sync(j->c->stream, err));
            data = (const char *)j->c->buffer.ptr + b % 2 * CKPT_BLOCK_BYTES;
            if (b + 1 < count)
                DSC_TRY(fetch_block(j, b + 1, err));
        }
        DSC_TRY(write_block(j, &j->block[b], data, bytes, err));
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
        DSC_TRY(dsc_path_join(path, sizeof path, j->tmp_dir, dsc_ckpt_file_name[f], err));
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

static dsc_status write_new(const dsc_io *io, const char *path, const char *text, int64_t bytes, dsc_error *err)
{
    dsc_file file = DSC_FILE_INIT;
    DSC_TRY(dsc_io_open(io, path, DSC_IO_CREATE_NEW, &file, err));
    dsc_status status = dsc_io_write(io, &file, text, bytes, 0, err);
    if (status == DSC_OK)
        status = dsc_io_fsync(io, &file, err);
    const dsc_status closed = dsc_io_close(io, &file, status == DSC_OK ? err : NULL);
    return status != DSC_OK ? status : closed;
}

static dsc_status write_small(save_job *j, ckpt_file f, const char *text, int64_t bytes, dsc_error *err)
{
    char path[CKPT_PATH_BYTES];
    j->info[f] = (ckpt_file_info){ .bytes = bytes, .head_bytes = bytes };
    dsc_ckpt_sha256(text, bytes, j->info[f].sha256);
    DSC_TRY(dsc_path_join(path, sizeof path, j->tmp_dir, dsc_ckpt_file_name[f], err));
    return write_new(j->c->io, path, text, bytes, err);
}

/* A step-N that this run has made again: the same manifest means the same tensors. */
static dsc_status adopt_existing(save_job *j, const char *text, int64_t bytes, dsc_error *err)
{
    const dsc_checkpoint_ctx *c = j->c;
    char path[CKPT_PATH_BYTES], *found = NULL;
    int64_t found_bytes = 0;
    DSC_TRY(dsc_ckpt_own_path(path, j->step_dir, CKPT_MANIFEST_FILE, err));
    if (dsc_io_kind(path) != DSC_PATH_FILE)
        return refuse_existing(j, err);
    DSC_TRY(dsc_io_read_all(c->io, c->alloc, path, CKPT_MANIFEST_BYTES_MAX, &found, &found_bytes, err));
    const bool same = found_bytes == bytes && memcmp(found, text, (size_t)bytes) == 0;
    dsc_alloc_free(c->alloc, found);
    if (!same)
        return refuse_existing(j, err);
    DSC_TRY(dsc_io_remove_dir(c->io, j->tmp_dir, err));
    j->made_tmp = false;
    j->adopted = true;
    return DSC_OK;
}

static dsc_status write_manifest(save_job *j, dsc_error *err)
{
    const dsc_checkpoint_ctx *c = j->c;
    char *text = NULL, path[CKPT_PATH_BYTES];
    int64_t bytes;
    DSC_TRY(dsc_path_join(path, sizeof path, j->tmp_dir, CKPT_MANIFEST_FILE, err));
    sort_blocks(j);
    DSC_TRY(dsc_ckpt_manifest_write(c->alloc, j->state, &j->entries, j->info, j->sorted,
                                    j->first_block[dsc_comm_size(c->comm)], &text, &bytes, err));
    dsc_status status;
    if (dsc_io_kind(j->step_dir) != DSC_PATH_MISSING)
        status = adopt_existing(j, text, bytes, err);
    else
        status = write_new(c->io, path, text, bytes, err);
    dsc_alloc_free(c->alloc, text);
    return status;
}

/* ---- rank 0: commit ---- */

static dsc_status write_latest_tmp(save_job *j, dsc_error *err)
{
    const dsc_io *io = j->c->io;
    char line[80];
    const int length = snprintf(line, sizeof line, "%s\n", j->name);
    if (dsc_io_kind(j->latest_tmp) != DSC_PATH_MISSING)
        DSC_TRY(dsc_io_unlink(io, j->latest_tmp, err));
    j->made_latest_tmp = true;
    DSC_TRY(write_new(io, j->latest_tmp, line, length, err));
    return dsc_io_fsync_dir(io, j->dir, err);
}

static dsc_status commit(save_job *j, dsc_error *err)
{
    const dsc_checkpoint_ctx *c = j->c;
    const dsc_io *io = c->io;
    if (c->model->config_json != NULL)
        DSC_TRY(write_small(j, CKPT_CONFIG, c->model->config_json, (int64_t)strlen(c->model->config_json), err));
    if (c->config_text != NULL)
        DSC_TRY(write_small(j, CKPT_DS_CONFIG, c->config_text, c->config_bytes, err));
    DSC_TRY(dsc_io_fsync_dir(io, j->tmp_dir, err));
    DSC_TRY(write_manifest(j, err));
    if (!j->adopted)
        DSC_TRY(dsc_io_fsync_dir(io, j->tmp_dir, err));
    DSC_TRY(write_latest_tmp(j, err));
    if (!j->adopted) {
        DSC_TRY(dsc_io_rename(io, j->tmp_dir, j->step_dir, err));
        j->made_tmp = false;
        j->made_step = true;
        DSC_TRY(dsc_io_fsync_dir(io, j->dir, err));
    }
    DSC_TRY(dsc_io_rename(io, j->latest_tmp, j->latest, err));
    j->made_step = j->made_latest_tmp = false;
    return dsc_io_fsync_dir(io, j->dir, err);
}

/* After a failure: step-N goes back to its temporary name before its files go, so that it is never there in part. */
static void undo(save_job *j)
{
    const dsc_checkpoint_ctx *c = j->c;
    if (j->made_step && dsc_io_rename(c->io, j->step_dir, j->tmp_dir, NULL) == DSC_OK) {
        j->made_step = false;
        j->made_tmp = true;
    }
    if (j->made_tmp && dsc_io_remove_dir(c->io, j->tmp_dir, NULL) != DSC_OK)
        dsc_log_printf(c->log, DSC_LOG_WARNING, "%s is left behind; it is no checkpoint and the next save of this step "
                       "removes it", j->tmp_dir);
    /* While a whole step-N could not be taken back, latest.tmp says that it may be replaced. */
    if (j->made_latest_tmp && !j->made_step && dsc_io_kind(j->latest_tmp) != DSC_PATH_MISSING)
        (void)!dsc_io_unlink(c->io, j->latest_tmp, NULL);
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

/* The checkpoint that this run was loaded from is what it would save now. It must still be there, and is the latest. */
static dsc_status keep_resumed(const dsc_checkpoint_ctx *c, const char *dir, const dsc_run_state *state, bool *kept,
                               dsc_error *err)
{
    char name[64], step_dir[CKPT_PATH_BYTES], latest[CKPT_PATH_BYTES], line[80];
    dsc_run_state saved;
    int64_t bytes;
    snprintf(name, sizeof name, "step-%lld", (long long)state->step);
    DSC_TRY(dsc_path_join(step_dir, sizeof step_dir, dir, name, err));
    if (dsc_io_kind(step_dir) == DSC_PATH_MISSING)
        return DSC_OK;
    DSC_TRY(dsc_checkpoint_summary(c->io, c->alloc, step_dir, &saved, &bytes, err));
    *kept = true;
    DSC_TRY(dsc_path_join(latest, sizeof latest, dir, "latest", err));
    const int length = snprintf(line, sizeof line, "%s\n", name);
    return dsc_io_write_all_atomic(c->io, latest, line, length, err);
}

dsc_status dsc_checkpoint_save(const dsc_checkpoint_ctx *ctx, const char *dir, const dsc_run_state *state,
                               int64_t resumed_step, dsc_error *err)
{
    save_job *job = NULL;
    bool kept = false;
    dsc_error mine = DSC_ERROR_INIT;
    dsc_status status = dsc_alloc_zeroed(ctx->alloc, DSC_TAG_IO, 1, sizeof *job, &job, &mine);
    if (status == DSC_OK && state->step == resumed_step && dsc_comm_rank(ctx->comm) == 0)
        status = keep_resumed(ctx, dir, state, &kept, &mine);
    status = dsc_checkpoint_agree(ctx, status, &mine, err);
    if (status == DSC_OK && state->step == resumed_step)
        status = dsc_comm_broadcast(ctx->comm, DSC_CHANNEL_CONTROL, &kept, (int64_t)sizeof kept, 0, NULL, err);
    if (status != DSC_OK || kept) {
        dsc_alloc_free(ctx->alloc, job);
        return status;
    }
    job->c = ctx;
    job->state = state;
    job->dir = dir;
    job->resumed = resumed_step >= 0 && resumed_step < state->step;
    for (int f = 0; f < CKPT_TENSOR_FILE_COUNT; f++)
        job->file[f] = (dsc_file)DSC_FILE_INIT;
    for (int f = 0; f < CKPT_FILE_COUNT; f++)
        job->info[f].bytes = -1;
    status = run_save(job, err);
    if (status != DSC_OK) {
        undo(job);
        /* The others stay until rank 0 is done: a launcher ends all ranks when the first one ends. */
        (void)!dsc_checkpoint_agree(ctx, DSC_OK, NULL, NULL);
    }
    close_job(job);
    return status;
}
