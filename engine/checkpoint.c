/* checkpoint.c - collective save and load of a running engine's slices.
 *
 * After each phase all ranks agree: the first rank's error, if any, is every rank's verdict, so nobody waits for a rank
 * that gave up, and rank 0 takes half-made files away. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "engine/checkpoint_internal.h"

/* ---- agreement ---- */

static dsc_status agree(const dsc_checkpoint_ctx *c, dsc_status mine, const dsc_error *my_error, dsc_error *err)
{
    typedef struct verdict { dsc_status status; char where[256], message[512]; } verdict;
    const int32_t size = dsc_comm_size(c->comm);
    verdict own = { .status = mine };
    verdict *all = (verdict *)((char *)c->buffer.ptr + c->buffer.bytes / 2);
    DSC_ASSERT((int64_t)sizeof *all * size <= c->buffer.bytes / 2);
    if (mine != DSC_OK) {
        memcpy(own.where, my_error->where, sizeof own.where);
        memcpy(own.message, my_error->message, sizeof own.message);
    }
    DSC_TRY(dsc_comm_all_gather(c->comm, DSC_CHANNEL_CONTROL, all, &own, (int64_t)sizeof own, DSC_U8, c->stream, err));
    DSC_TRY(dsc_stream_sync(c->stream, err));
    for (int32_t r = 0; r < size; r++)
        if (all[r].status != DSC_OK) {
            DSC_FAIL(err, all[r].status, all[r].where, "%s", all[r].message);
            if (err != NULL)
                err->rank = r;
            return all[r].status;
        }
    return DSC_OK;
}

/* ---- save ---- */

typedef struct save_job {
    const dsc_checkpoint_ctx *c;
    const dsc_run_state *state;
    const char *dir;
    bool resumed; /* from an earlier step in dir */
    char step_dir[CKPT_PATH_BYTES], tmp_dir[CKPT_PATH_BYTES], name[64];
    ckpt_entries entries;
    dsc_safetensors_plan plan[CKPT_FILE_COUNT];
    dsc_file file[CKPT_FILE_COUNT];
    ckpt_block *block; /* this rank's */
    int64_t block_count;
    bool made_tmp;
} save_job;

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
        *spec = (dsc_safetensors_spec) { .name = entry->name,
                                         .desc = { .dtype = entry->dtype, .dim_count = param->dim_count } };
        memcpy(spec->desc.dim, param->dim, sizeof param->dim);
    }
    const dsc_status status =
        dsc_safetensors_plan_open(&j->plan[f], alloc, specs, j->entries.file_entries[f], &metadata, 1, err);
    dsc_alloc_free(alloc, specs);
    return status;
}

static dsc_status plan_save(save_job *j, dsc_error *err)
{
    char tmp_name[80];
    snprintf(j->name, sizeof j->name, "step-%lld", (long long)j->state->step);
    snprintf(tmp_name, sizeof tmp_name, "%s.tmp", j->name);
    DSC_TRY(dsc_path_join(j->step_dir, sizeof j->step_dir, j->dir, j->name, err));
    DSC_TRY(dsc_path_join(j->tmp_dir, sizeof j->tmp_dir, j->dir, tmp_name, err));
    DSC_TRY(ckpt_entries_open(j->c->alloc, j->c->layout, j->state->compute_dtype, &j->entries, err));
    for (int f = 0; f < CKPT_FILE_COUNT; f++)
        DSC_TRY(plan_file(j, f, err));
    const int32_t rank = dsc_comm_rank(j->c->comm);
    j->block_count = ckpt_blocks_of_rank(j->c->layout, &j->entries, rank, NULL);
    DSC_TRY(dsc_alloc_zeroed(j->c->alloc, DSC_TAG_IO, j->block_count, sizeof *j->block, &j->block, err));
    ckpt_blocks_of_rank(j->c->layout, &j->entries, rank, j->block);
    return DSC_OK;
}

static dsc_status refuse_existing(const save_job *j, dsc_error *err)
{
    return DSC_FAIL(err, DSC_ERR_INPUT, j->step_dir,
                    "exists already and this run did not resume from it; move it away, or use another --save folder");
}

/* Rank 0 makes the folder and files of the right size, so that every owner can write its ranges. */
static dsc_status make_files(save_job *j, dsc_error *err)
{
    const dsc_io *io = j->c->io;
    int64_t wanted = 1 << 20, available = 0;
    DSC_TRY(dsc_io_mkdir(io, j->dir, err));
    if (dsc_io_kind(j->step_dir) != DSC_PATH_MISSING && !j->resumed)
        return refuse_existing(j, err);
    for (int f = 0; f < CKPT_FILE_COUNT; f++)
        wanted += j->plan[f].file_bytes;
    DSC_TRY(dsc_io_free_bytes(j->dir, &available, err));
    if (wanted > available)
        return DSC_FAIL(err, DSC_ERR_IO, j->dir, "a checkpoint needs %.1f MB and %.1f MB are free; nothing was written",
                        (double)wanted / 1048576.0, (double)available / 1048576.0);
    DSC_TRY(dsc_io_remove_dir(io, j->tmp_dir, err));
    DSC_TRY(dsc_io_mkdir(io, j->tmp_dir, err));
    j->made_tmp = true;
    for (int f = 0; f < CKPT_FILE_COUNT; f++) {
        char path[CKPT_PATH_BYTES];
        DSC_TRY(dsc_path_join(path, sizeof path, j->tmp_dir, ckpt_file_name[f], err));
        DSC_TRY(dsc_io_open(io, path, DSC_IO_CREATE_NEW, &j->file[f], err));
        DSC_TRY(dsc_safetensors_write_header(&j->plan[f], io, &j->file[f], err));
    }
    return DSC_OK;
}

static const void *entry_data(const dsc_zero_slice *slice, ckpt_plane plane, dsc_dtype dtype)
{
    switch (plane) {
    case CKPT_MASTER: return slice->master;
    case CKPT_EXP_AVG: return slice->moment1;
    case CKPT_EXP_AVG_SQ: return slice->moment2;
    case CKPT_WEIGHTS: break;
    }
    return dtype == DSC_F32 && slice->master != NULL ? (const void *)slice->master : slice->param;
}

static dsc_status write_block(save_job *j, ckpt_block *block, dsc_error *err)
{
    const ckpt_entry *entry = &j->entries.entry[block->entry];
    const dsc_layout_tensor *tensor = &j->c->layout->tensor[entry->tensor];
    const int64_t each = (int64_t)dsc_dtype_bytes(entry->dtype);
    dsc_zero_slice slice;
    dsc_zero_slice_get(j->c->zero, tensor->group, &slice);
    const char *data = (const char *)entry_data(&slice, entry->plane, entry->dtype) +
                       (tensor->offset + block->first - slice.first) * each;
    block->hash = ckpt_block_hash(entry->name, block->first, block->count, j->state->step, data, block->count * each);
    return dsc_io_write(j->c->io, &j->file[entry->file], data, block->count * each,
                        j->plan[entry->file].offset[entry->index_in_file] + block->first * each, err);
}

static dsc_status write_slices(save_job *j, dsc_error *err)
{
    for (int f = 0; f < CKPT_FILE_COUNT; f++) {
        char path[CKPT_PATH_BYTES];
        if (j->file[f].fd >= 0)
            continue;
        DSC_TRY(dsc_path_join(path, sizeof path, j->tmp_dir, ckpt_file_name[f], err));
        DSC_TRY(dsc_io_open(j->c->io, path, DSC_IO_READ_WRITE, &j->file[f], err));
    }
    for (int64_t b = 0; b < j->block_count; b++)
        DSC_TRY(write_block(j, &j->block[b], err));
    for (int f = 0; f < CKPT_FILE_COUNT; f++) {
        DSC_TRY(dsc_io_fsync(j->c->io, &j->file[f], err));
        DSC_TRY(dsc_io_close(j->c->io, &j->file[f], err));
    }
    return DSC_OK;
}

static bool block_before(const ckpt_block *a, const ckpt_block *b)
{
    return a->entry != b->entry ? a->entry < b->entry : a->first < b->first;
}

/* Lists of ranks are sorted and owners follow each other, so merging is enough. */
static void merge_blocks(ckpt_block *all, const int64_t *first, int32_t ranks, ckpt_block *sorted)
{
    int64_t at[256];
    for (int32_t r = 0; r < ranks; r++)
        at[r] = first[r];
    for (int64_t i = 0; i < first[ranks]; i++) {
        int32_t next = -1;
        for (int32_t r = 0; r < ranks; r++)
            if (at[r] < first[r + 1] && (next < 0 || block_before(&all[at[r]], &all[at[next]])))
                next = r;
        sorted[i] = all[at[next]++];
    }
}

static dsc_status write_small(save_job *j, const char *name, const char *text, int64_t bytes, dsc_error *err)
{
    char path[CKPT_PATH_BYTES];
    dsc_file file = DSC_FILE_INIT;
    DSC_TRY(dsc_path_join(path, sizeof path, j->tmp_dir, name, err));
    DSC_TRY(dsc_io_open(j->c->io, path, DSC_IO_CREATE_NEW, &file, err));
    dsc_status status = dsc_io_write(j->c->io, &file, text, bytes, 0, err);
    if (status == DSC_OK)
        status = dsc_io_fsync(j->c->io, &file, err);
    const dsc_status closed = dsc_io_close(j->c->io, &file, status == DSC_OK ? err : NULL);
    return status != DSC_OK ? status : closed;
}

/* A run killed after the rename and before `latest` left a whole step-N that its resumption computes again: with the
 * same manifest, so the same tensors, it stays and only `latest` is missing. Anything else is not ours to replace. */
static dsc_status adopt_existing(save_job *j, const char *text, int64_t bytes, dsc_error *err)
{
    const dsc_checkpoint_ctx *c = j->c;
    char path[CKPT_PATH_BYTES], *found = NULL;
    int64_t found_bytes = 0;
    DSC_TRY(dsc_path_join(path, sizeof path, j->step_dir, CKPT_MANIFEST_FILE, err));
    if (dsc_io_kind(path) != DSC_PATH_FILE)
        return refuse_existing(j, err);
    DSC_TRY(dsc_io_read_all(c->io, c->alloc, path, bytes + 1, &found, &found_bytes, err));
    const bool same = found_bytes == bytes && memcmp(found, text, (size_t)bytes) == 0;
    dsc_alloc_free(c->alloc, found);
    if (!same)
        return refuse_existing(j, err);
    DSC_TRY(dsc_io_remove_dir(c->io, j->tmp_dir, err));
    j->made_tmp = false;
    return DSC_OK;
}

static dsc_status publish(save_job *j, const char *text, int64_t bytes, dsc_error *err)
{
    const dsc_io *io = j->c->io;
    if (dsc_io_kind(j->step_dir) != DSC_PATH_MISSING)
        return adopt_existing(j, text, bytes, err);
    DSC_TRY(write_small(j, CKPT_MANIFEST_FILE, text, bytes, err));
    DSC_TRY(dsc_io_fsync_dir(io, j->tmp_dir, err));
    DSC_TRY(dsc_io_rename(io, j->tmp_dir, j->step_dir, err));
    j->made_tmp = false;
    return DSC_OK;
}

/* Rank 0: the manifest last, then the folder under its name, then `latest`; each durable before the next. */
static dsc_status commit(save_job *j, const ckpt_block *sorted, int64_t count, dsc_error *err)
{
    const dsc_checkpoint_ctx *c = j->c;
    int64_t file_bytes[CKPT_FILE_COUNT], bytes;
    char *text = NULL, path[CKPT_PATH_BYTES], line[80];
    if (c->model->config_json != NULL)
        DSC_TRY(write_small(j, "config.json", c->model->config_json, (int64_t)strlen(c->model->config_json), err));
    if (c->config_text != NULL)
        DSC_TRY(write_small(j, "ds_config.json", c->config_text, c->config_bytes, err));
    DSC_TRY(dsc_io_fsync_dir(c->io, j->tmp_dir, err));
    for (int f = 0; f < CKPT_FILE_COUNT; f++)
        file_bytes[f] = j->plan[f].file_bytes;
    DSC_TRY(ckpt_manifest_write(c->alloc, j->state, &j->entries, file_bytes, sorted, count, &text, &bytes, err));
    const dsc_status status = publish(j, text, bytes, err);
    dsc_alloc_free(c->alloc, text);
    DSC_TRY(status);
    DSC_TRY(dsc_io_fsync_dir(c->io, j->dir, err));
    DSC_TRY(dsc_path_join(path, sizeof path, j->dir, "latest", err));
    const int length = snprintf(line, sizeof line, "%s\n", j->name);
    return dsc_io_write_all_atomic(c->io, path, line, length, err);
}

/* Rank 0 knows every rank's blocks by arithmetic and takes only their hashes. */
static dsc_status collect_blocks(save_job *j, ckpt_block *all, const int64_t *first, dsc_error *err)
{
    const dsc_checkpoint_ctx *c = j->c;
    const int32_t size = dsc_comm_size(c->comm), rank = dsc_comm_rank(c->comm);
    if (rank != 0) {
        DSC_TRY(dsc_comm_send(c->comm, DSC_CHANNEL_CONTROL, j->block, j->block_count * (int64_t)sizeof *j->block, 0,
                              c->stream, err));
        return dsc_stream_sync(c->stream, err);
    }
    memcpy(all, j->block, (size_t)j->block_count * sizeof *j->block);
    for (int32_t r = 1; r < size; r++)
        DSC_TRY(dsc_comm_recv(c->comm, DSC_CHANNEL_CONTROL, all + first[r],
                              (first[r + 1] - first[r]) * (int64_t)sizeof *all, r, c->stream, err));
    return dsc_stream_sync(c->stream, err);
}

/* Rank 0 calls it before the others learn that it failed: when they end, it may not live on. */
static void remove_tmp(save_job *j)
{
    for (int f = 0; f < CKPT_FILE_COUNT; f++)
        (void)dsc_io_close(j->c->io, &j->file[f], NULL);
    if (j->made_tmp && dsc_io_remove_dir(j->c->io, j->tmp_dir, NULL) != DSC_OK)
        dsc_log_printf(j->c->log, DSC_LOG_WARNING,
                       "%s is left behind; it is no checkpoint and the next save removes it",
                       j->tmp_dir);
    j->made_tmp = false;
}

static dsc_status finish(save_job *j, dsc_error *err)
{
    const dsc_checkpoint_ctx *c = j->c;
    const int32_t size = dsc_comm_size(c->comm), rank = dsc_comm_rank(c->comm);
    int64_t first[257] = { 0 };
    ckpt_block *all = NULL, *sorted = NULL;
    dsc_error mine = DSC_ERROR_INIT;
    dsc_status status = DSC_OK;
    DSC_ASSERT(size <= 256);
    for (int32_t r = 0; r < size; r++)
        first[r + 1] = first[r] + ckpt_blocks_of_rank(c->layout, &j->entries, r, NULL);
    if (rank == 0) {
        status = dsc_alloc_zeroed(c->alloc, DSC_TAG_IO, first[size], sizeof *all, &all, &mine);
        if (status == DSC_OK)
            status = dsc_alloc_zeroed(c->alloc, DSC_TAG_IO, first[size], sizeof *sorted, &sorted, &mine);
    }
    status = agree(c, status, &mine, err);
    if (status == DSC_OK)
        status = collect_blocks(j, all, first, err);
    if (status == DSC_OK) {
        if (rank == 0) {
            merge_blocks(all, first, size, sorted);
            status = commit(j, sorted, first[size], &mine);
            if (status != DSC_OK)
                remove_tmp(j);
        }
        status = agree(c, status, &mine, err);
    }
    dsc_alloc_free(c->alloc, all);
    dsc_alloc_free(c->alloc, sorted);
    return status;
}

static dsc_status run_save(save_job *j, dsc_error *err)
{
    dsc_error mine = DSC_ERROR_INIT;
    dsc_status status = plan_save(j, &mine);
    DSC_TRY(agree(j->c, status, &mine, err));
    status = dsc_comm_rank(j->c->comm) == 0 ? make_files(j, &mine) : DSC_OK;
    if (status != DSC_OK)
        remove_tmp(j);
    DSC_TRY(agree(j->c, status, &mine, err));
    status = write_slices(j, &mine);
    DSC_TRY(agree(j->c, status, &mine, err));
    return finish(j, err);
}

dsc_status dsc_checkpoint_save(const dsc_checkpoint_ctx *ctx, const char *dir, const dsc_run_state *state,
                               int64_t resumed_step, dsc_error *err)
{
    if (state->step == resumed_step)
        return DSC_OK; /* nothing has happened since that checkpoint was loaded from here */
    save_job *job = NULL;
    dsc_error mine = DSC_ERROR_INIT;
    dsc_status status = dsc_alloc_zeroed(ctx->alloc, DSC_TAG_IO, 1, sizeof *job, &job, &mine);
    status = agree(ctx, status, &mine, err);
    if (status != DSC_OK) {
        dsc_alloc_free(ctx->alloc, job);
        return status;
    }
    job->c = ctx;
    job->state = state;
    job->dir = dir;
    job->resumed = resumed_step >= 0 && resumed_step < state->step;
    for (int f = 0; f < CKPT_FILE_COUNT; f++)
        job->file[f] = (dsc_file)DSC_FILE_INIT;
    status = run_save(job, err);
    for (int f = 0; f < CKPT_FILE_COUNT; f++) {
        (void)dsc_io_close(ctx->io, &job->file[f], NULL);
        dsc_safetensors_plan_close(&job->plan[f]);
    }
    if (status != DSC_OK)
        remove_tmp(job);
    ckpt_entries_close(&job->entries);
    dsc_alloc_free(ctx->alloc, job->block);
    dsc_alloc_free(ctx->alloc, job);
    return status;
}

/* ---- load ---- */

static dsc_status check_tensor(const ckpt_reader *reader, const dsc_layout_tensor *tensor, ckpt_plane plane,
                               dsc_error *err)
{
    const dsc_param_spec *spec = tensor->spec;
    const dsc_safetensors *file;
    const dsc_safetensors_entry *entry = ckpt_reader_find(reader, plane, spec->name, &file);
    const char *where =
        dsc_safetensors_path(reader->file[plane == CKPT_WEIGHTS || file == NULL ? CKPT_MODEL : CKPT_OPTIMIZER]);
    if (entry == NULL)
        return DSC_FAIL(err, DSC_ERR_INPUT, where, "the checkpoint has no \"%s%s\", which the model needs",
                        ckpt_plane_prefix[plane], spec->name);
    bool same = entry->desc.dim_count == spec->dim_count;
    for (int32_t d = 0; same && d < spec->dim_count; d++)
        same = entry->desc.dim[d] == spec->dim[d];
    return same ? DSC_OK
                : DSC_FAIL(err, DSC_ERR_INPUT, where, "\"%s%s\" has another shape than the model's",
                           ckpt_plane_prefix[plane], spec->name);
}

static dsc_status check_model(const dsc_checkpoint_ctx *c, const ckpt_reader *reader, dsc_error *err)
{
    for (int32_t t = 0; t < c->layout->tensor_count; t++) {
        const dsc_layout_tensor *tensor = &c->layout->tensor[t];
        DSC_TRY(check_tensor(reader, tensor, CKPT_WEIGHTS, err));
        if (!tensor->spec->trainable)
            continue;
        DSC_TRY(check_tensor(reader, tensor, CKPT_EXP_AVG, err));
        DSC_TRY(check_tensor(reader, tensor, CKPT_EXP_AVG_SQ, err));
    }
    if (dsc_safetensors_count(reader->file[CKPT_MODEL]) != c->layout->tensor_count)
        return DSC_FAIL(err, DSC_ERR_INPUT, dsc_safetensors_path(reader->file[CKPT_MODEL]),
                        "%lld tensors; the model has %d", (long long)dsc_safetensors_count(reader->file[CKPT_MODEL]),
                        (int)c->layout->tensor_count);
    return DSC_OK;
}

static void warn_differences(const dsc_checkpoint_ctx *c, const dsc_run_state *now, const dsc_run_state *saved)
{
    if (dsc_comm_rank(c->comm) != 0)
        return;
    if (strcmp(now->versions, saved->versions) != 0)
        dsc_log_printf(c->log, DSC_LOG_WARNING, "resume: saved by %s, this is %s; bits may differ", saved->versions,
                       now->versions);
    if (strcmp(now->cpu_level, saved->cpu_level) != 0)
        dsc_log_printf(c->log, DSC_LOG_WARNING, "resume: saved on a CPU with %s, this one has %s; bits may differ",
                       saved->cpu_level, now->cpu_level);
    if (now->compute_dtype != saved->compute_dtype)
        dsc_log_printf(c->log, DSC_LOG_WARNING, "resume: saved in another precision; the run goes on in this one's");
    if (now->train_batch_size != saved->train_batch_size || now->seed != saved->seed ||
        now->shuffle != saved->shuffle || now->seq_length != saved->seq_length ||
        now->samples_per_epoch != saved->samples_per_epoch)
        dsc_log_printf(c->log, DSC_LOG_WARNING,
                       "resume: batch size, seed, shuffling, sequence length or data differ from the saved "
                       "run's; other samples come than without the interruption");
    else if ((now->world_size != saved->world_size || now->micro_batch != saved->micro_batch) &&
             !(now->world_size_reproducible && saved->world_size_reproducible &&
               now->micro_batch == saved->micro_batch))
        dsc_log_printf(c->log, DSC_LOG_WARNING,
                       "resume: world size or micro-batch differs from the saved run's; bits may differ");
}

/* Each block is verified by the ranks whose slices it touches; together they own everything. */
static dsc_status verify_mine(const dsc_checkpoint_ctx *c, const ckpt_reader *reader, dsc_error *err)
{
    const ckpt_manifest *m = &reader->manifest;
    const int32_t rank = dsc_comm_rank(c->comm);
    for (int64_t i = 0; i < m->tensor_count; i++) {
        const char *hf_name = m->tensor[i].name;
        for (int plane = CKPT_MASTER; plane <= CKPT_EXP_AVG_SQ; plane++) {
            const size_t length = strlen(ckpt_plane_prefix[plane]);
            if (m->tensor[i].file == CKPT_OPTIMIZER && strncmp(hf_name, ckpt_plane_prefix[plane], length) == 0) {
                hf_name += length;
                break;
            }
        }
        for (int32_t t = 0; t < c->layout->tensor_count; t++) {
            const dsc_layout_tensor *tensor = &c->layout->tensor[t];
            if (strcmp(tensor->spec->name, hf_name) != 0)
                continue;
            int64_t first = 0;
            const int64_t slice = c->layout->group[tensor->group].slice;
            const int64_t count = dsc_layout_span(tensor, rank * slice, slice, &first);
            for (int64_t b = m->tensor[i].first_block; b < m->tensor[i].first_block + m->tensor[i].block_count; b++)
                if (m->block[b].first < first + count && first < m->block[b].first + m->block[b].count)
                    DSC_TRY(ckpt_reader_verify_block(reader, b, c->buffer.ptr, err));
        }
    }
    return DSC_OK;
}

static dsc_status read_span(const ckpt_reader *reader, ckpt_plane plane, const char *hf_name, int64_t first,
                            int64_t count, float *to, dsc_error *err)
{
    const dsc_safetensors *file;
    const dsc_safetensors_entry *entry = ckpt_reader_find(reader, plane, hf_name, &file);
    return dsc_safetensors_read_f32(file, entry, first, count, to, err);
}

/* A frozen tensor has only parameters, in the compute dtype. */
static dsc_status read_frozen(const dsc_checkpoint_ctx *c, const ckpt_reader *reader, const dsc_layout_tensor *tensor,
                              const dsc_zero_slice *slice, dsc_dtype dtype, int64_t first, int64_t count,
                              dsc_error *err)
{
    const int64_t room = c->buffer.bytes / 4;
    for (int64_t done = 0; done < count; done += room) {
        const int64_t part = dsc_min_i64(room, count - done), at = tensor->offset + first + done - slice->first;
        DSC_TRY(read_span(reader, CKPT_WEIGHTS, tensor->spec->name, first + done, part, c->buffer.ptr, err));
        const dsc_cast_args cast = { .to = (char *)slice->param + at * (int64_t)dsc_dtype_bytes(dtype),
                                     .from = c->buffer.ptr,
                                     .to_dtype = dtype,
                                     .from_dtype = DSC_F32,
                                     .count = part };
        DSC_TRY(DSC_RUN(c->stream, CAST, &cast, err));
        DSC_TRY(dsc_stream_sync(c->stream, err));
    }
    return DSC_OK;
}

static dsc_status read_mine(const dsc_checkpoint_ctx *c, const ckpt_reader *reader, dsc_dtype dtype, dsc_error *err)
{
    for (int32_t t = 0; t < c->layout->tensor_count; t++) {
        const dsc_layout_tensor *tensor = &c->layout->tensor[t];
        const char *name = tensor->spec->name;
        const dsc_safetensors *file;
        dsc_zero_slice slice;
        dsc_zero_slice_get(c->zero, tensor->group, &slice);
        int64_t first = 0;
        const int64_t count = dsc_layout_span(tensor, slice.first, slice.count, &first);
        const int64_t at = tensor->offset + first - slice.first;
        if (count == 0)
            continue;
        if (slice.master == NULL) {
            DSC_TRY(read_frozen(c, reader, tensor, &slice, dtype, first, count, err));
            continue;
        }
        const ckpt_plane weights =
            ckpt_reader_find(reader, CKPT_MASTER, name, &file) != NULL ? CKPT_MASTER : CKPT_WEIGHTS;
        DSC_TRY(read_span(reader, weights, name, first, count, slice.master + at, err));
        DSC_TRY(read_span(reader, CKPT_EXP_AVG, name, first, count, slice.moment1 + at, err));
        DSC_TRY(read_span(reader, CKPT_EXP_AVG_SQ, name, first, count, slice.moment2 + at, err));
    }
    return DSC_OK;
}

static dsc_status find_together(const dsc_checkpoint_ctx *c, const char *dir, char step_dir[CKPT_PATH_BYTES],
                                dsc_error *err)
{
    dsc_error mine = DSC_ERROR_INIT;
    dsc_status status = DSC_OK;
    memset(step_dir, 0, CKPT_PATH_BYTES);
    if (dsc_comm_rank(c->comm) == 0)
        status = dsc_checkpoint_find(c->io, c->alloc, dir, step_dir, CKPT_PATH_BYTES, &mine);
    DSC_TRY(agree(c, status, &mine, err));
    DSC_TRY(dsc_comm_broadcast(c->comm, DSC_CHANNEL_CONTROL, step_dir, CKPT_PATH_BYTES, 0, c->stream, err));
    return dsc_stream_sync(c->stream, err);
}

dsc_status dsc_checkpoint_load(const dsc_checkpoint_ctx *c, const char *dir, const dsc_run_state *now,
                               dsc_run_state *out, dsc_error *err)
{
    char step_dir[CKPT_PATH_BYTES];
    ckpt_reader reader = { 0 };
    dsc_error mine = DSC_ERROR_INIT;
    DSC_TRY(find_together(c, dir, step_dir, err));
    dsc_status status = ckpt_reader_open(c->io, c->alloc, step_dir, &reader, &mine);
    const bool open = status == DSC_OK;
    if (status == DSC_OK)
        status = check_model(c, &reader, &mine);
    if (status == DSC_OK)
        status = verify_mine(c, &reader, &mine);
    status = agree(c, status, &mine, err);
    if (status == DSC_OK) {
        warn_differences(c, now, &reader.manifest.state);
        status = read_mine(c, &reader, now->compute_dtype, &mine);
        *out = reader.manifest.state;
        status = agree(c, status, &mine, err);
    }
    if (open)
        ckpt_reader_close(&reader);
    return status;
}
