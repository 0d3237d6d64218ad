/* merge.c - the parts that hosts without a common folder saved become the checkpoint that a run with one
 * saves: the same files, byte by byte, and a manifest without parts.
 *
 * Every block is verified as it is read. The folder is made under OUT.tmp and renamed when it is whole.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "engine/checkpoint/internal.h"

typedef struct merge_job {
    const dsc_io *io;
    dsc_alloc *alloc;
    const char *const *step_dir;
    int32_t count;
    dsc_ckpt_reader *reader; /* [count] as they were given; the first `open` are */
    int32_t open;
    int32_t *with; /* [parts] the reader that has each; -1: none yet */
    char tmp_dir[DSC_CKPT_PATH_BYTES];
    char *buffer; /* a block */
} merge_job;

/* ---- the parts ---- */

static dsc_status add_part(merge_job *j, const uint8_t first_id[32], dsc_error *err)
{
    const dsc_ckpt_reader *reader = &j->reader[j->open - 1];
    const dsc_ckpt_parts *parts = &reader->manifest.parts;
    const char *dir = j->step_dir[j->open - 1];
    DSC_ASSERT(j->open >= 1);
    DSC_ASSERT(parts->index < parts->count);
    uint8_t id[32];
    if (parts->count == 1)
        return DSC_FAIL(err, DSC_ERR_INPUT, dir, "is not a part: it holds the whole checkpoint");
    dsc_ckpt_manifest_id(&reader->manifest, id);
    if (memcmp(id, first_id, sizeof id) != 0 || parts->count != j->reader[0].manifest.parts.count)
        return DSC_FAIL(err, DSC_ERR_INPUT, dir, "is of another save than %s: step %lld of %d parts, there step %lld "
                        "of %d", j->step_dir[0], (long long)reader->manifest.state.step, (int)parts->count,
                        (long long)j->reader[0].manifest.state.step, (int)j->reader[0].manifest.parts.count);
    if (j->with[parts->index] >= 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, dir, "is part %d of %d, as is %s", (int)parts->index + 1,
                        (int)parts->count, j->step_dir[j->with[parts->index]]);
    j->with[parts->index] = j->open - 1;
    return DSC_OK;
}

static dsc_status open_parts(merge_job *j, dsc_error *err)
{
    uint8_t id[32];
    DSC_TRY(dsc_alloc_zeroed(j->alloc, DSC_TAG_IO, j->count, sizeof *j->reader, &j->reader, err));
    for (int32_t i = 0; i < j->count; i++) {
        DSC_TRY(dsc_ckpt_reader_open(j->io, j->alloc, j->step_dir[i], &j->reader[i], err));
        j->open++;
        DSC_ASSERT(j->open == i + 1);
        if (i == 0) {
            const int32_t parts = j->reader[0].manifest.parts.count;
            DSC_TRY(dsc_alloc_zeroed(j->alloc, DSC_TAG_IO, parts, sizeof *j->with, &j->with, err));
            for (int32_t p = 0; p < parts; p++)
                j->with[p] = -1;
            dsc_ckpt_manifest_id(&j->reader[0].manifest, id);
        }
        DSC_TRY(add_part(j, id, err));
    }
    const dsc_ckpt_parts *parts = &j->reader[0].manifest.parts;
    for (int32_t p = 0; p < parts->count; p++)
        if (j->with[p] < 0)
            return DSC_FAIL(err, DSC_ERR_INPUT, j->step_dir[0], "part %d of %d, which host %s saved, is not among the "
                            "folders that were given", (int)p + 1, (int)parts->count, parts->host[p]);
    return DSC_OK;
}

/* ---- the whole ---- */

static dsc_status write_blocks(merge_job *j, int f, dsc_file *file, dsc_error *err)
{
    const dsc_ckpt_manifest *m = &j->reader[0].manifest;
    for (int64_t b = 0; b < m->block_count; b++) {
        const dsc_ckpt_manifest_tensor *tensor = &m->tensor[m->block[b].entry];
        const int64_t each = (int64_t)dsc_dtype_bytes(tensor->dtype);
        const dsc_ckpt_reader *from = &j->reader[j->with[dsc_ckpt_part_of(m, &m->block[b])]];
        DSC_ASSERT(from->manifest.block_count == m->block_count);
        if (tensor->file != f)
            continue;
        DSC_TRY(dsc_ckpt_reader_block(from, &from->manifest.block[b], j->buffer, err));
        DSC_TRY(dsc_io_write(j->io, file, j->buffer, m->block[b].count * each,
                             dsc_safetensors_find(j->reader[0].file[f], tensor->name)->offset +
                                 m->block[b].first * each, err));
    }
    return DSC_OK;
}

static dsc_status write_tensors(merge_job *j, int f, const dsc_ckpt_texts *texts, dsc_error *err)
{
    char path[DSC_CKPT_PATH_BYTES];
    dsc_file file = DSC_FILE_INIT;
    DSC_ASSERT(f < DSC_CKPT_TENSOR_FILE_COUNT);
    DSC_TRY(dsc_path_join(path, sizeof path, j->tmp_dir, dsc_ckpt_file_name[f], err));
    DSC_TRY(dsc_io_open(j->io, path, DSC_IO_CREATE_NEW, &file, err));
    dsc_status status = dsc_io_write(j->io, &file, texts->text[1 + f], texts->bytes[1 + f], 0, err);
    if (status == DSC_OK)
        status = write_blocks(j, f, &file, err);
    if (status == DSC_OK)
        status = dsc_io_fsync(j->io, &file, err);
    const dsc_status closed = dsc_io_close(j->io, &file, status == DSC_OK ? err : NULL);
    return status != DSC_OK ? status : closed;
}

static dsc_status write_small(merge_job *j, const char *name, const char *text, int64_t bytes, dsc_error *err)
{
    char path[DSC_CKPT_PATH_BYTES];
    DSC_ASSERT(bytes >= 0);
    DSC_TRY(dsc_path_join(path, sizeof path, j->tmp_dir, name, err));
    return dsc_io_write_all_atomic(j->io, path, text, bytes, err);
}

static dsc_status copy_small(merge_job *j, int f, dsc_error *err)
{
    DSC_ASSERT(f >= DSC_CKPT_TENSOR_FILE_COUNT);
    char path[DSC_CKPT_PATH_BYTES], *text = NULL;
    int64_t bytes = 0;
    if (j->reader[0].manifest.file[f].bytes < 0)
        return DSC_OK;
    DSC_TRY(dsc_ckpt_file_path(path, j->step_dir[0], dsc_ckpt_file_name[f], err));
    DSC_TRY(dsc_io_read_all(j->io, j->alloc, path, DSC_CKPT_SMALL_BYTES_MAX, &text, &bytes, err));
    const dsc_status status = write_small(j, dsc_ckpt_file_name[f], text, bytes, err);
    dsc_alloc_free(j->alloc, text);
    return status;
}

/* As a run with one folder writes it. */
static dsc_status write_manifest(merge_job *j, dsc_error *err)
{
    const dsc_ckpt_manifest *m = &j->reader[0].manifest;
    DSC_ASSERT(m->parts.count > 1);
    dsc_ckpt_entries entries = { .count = (int32_t)m->tensor_count };
    char *text = NULL;
    int64_t bytes = 0;
    DSC_TRY(dsc_alloc_zeroed(j->alloc, DSC_TAG_IO, m->tensor_count, sizeof *entries.entry, &entries.entry, err));
    for (int32_t t = 0; t < entries.count; t++)
        entries.entry[t] = (dsc_ckpt_entry) { .name = m->tensor[t].name,
                                              .file = (dsc_ckpt_file)m->tensor[t].file,
                                              .count = m->tensor[t].elements,
                                              .dtype = m->tensor[t].dtype };
    dsc_status status = dsc_ckpt_manifest_write(j->alloc, &m->state, &entries, m->file, NULL, m->block, m->block_count,
                                                &text, &bytes, err);
    if (status == DSC_OK)
        status = write_small(j, DSC_CKPT_MANIFEST_FILE, text, bytes, err);
    dsc_alloc_free(j->alloc, text);
    dsc_alloc_free(j->alloc, entries.entry);
    return status;
}

/* Of a run on preference pairs; each part has the same. */
static dsc_status copy_reference(merge_job *j, dsc_error *err)
{
    char path[DSC_CKPT_PATH_BYTES];
    dsc_ckpt_reference reference;
    DSC_ASSERT(j->count >= 1);
    DSC_TRY(dsc_path_join(path, sizeof path, j->step_dir[0], DSC_CKPT_REFERENCE_FILE, err));
    if (dsc_io_kind(path) == DSC_PATH_MISSING)
        return DSC_OK;
    DSC_TRY(dsc_ckpt_read_reference(j->io, j->alloc, j->step_dir[0], &reference, err));
    const dsc_status status = dsc_ckpt_write_reference(j->io, &reference, j->tmp_dir, err);
    dsc_alloc_free(j->alloc, reference.memory);
    return status;
}

static dsc_status write_all(merge_job *j, dsc_error *err)
{
    dsc_ckpt_texts texts;
    DSC_ASSERT(j->open == j->count);
    DSC_TRY(dsc_alloc_zeroed(j->alloc, DSC_TAG_IO, DSC_CKPT_BLOCK_BYTES, 1, &j->buffer, err));
    dsc_status status = dsc_ckpt_texts_read(&j->reader[0], j->step_dir[0], &texts, err);
    for (int f = 0; f < DSC_CKPT_TENSOR_FILE_COUNT && status == DSC_OK; f++)
        status = write_tensors(j, f, &texts, err);
    for (int f = DSC_CKPT_TENSOR_FILE_COUNT; f < DSC_CKPT_FILE_COUNT && status == DSC_OK; f++)
        status = copy_small(j, f, err);
    dsc_ckpt_texts_close(&texts, j->alloc);
    DSC_TRY(status);
    const dsc_ckpt_companions companions = { .model = j->step_dir[0] };
    DSC_TRY(dsc_ckpt_copy_companions(j->io, &companions, j->tmp_dir, NULL, err));
    DSC_TRY(dsc_ckpt_copy_carried(j->io, j->step_dir[0], j->tmp_dir, err));
    DSC_TRY(copy_reference(j, err));
    DSC_TRY(write_manifest(j, err));
    return dsc_io_fsync_dir(j->io, j->tmp_dir, err);
}

dsc_status dsc_ckpt_merge(const dsc_io *io, dsc_alloc *alloc, const char *const *step_dir, int32_t count,
                          const char *out_dir, dsc_error *err)
{
    merge_job j = { .io = io, .alloc = alloc, .step_dir = step_dir, .count = count };
    DSC_ASSERT(count > 0);
    dsc_status status = open_parts(&j, err);
    if (status == DSC_OK)
        status = dsc_ckpt_make_out(io, out_dir, j.tmp_dir, err);
    const bool made = status == DSC_OK;
    if (status == DSC_OK)
        status = write_all(&j, err);
    if (status == DSC_OK)
        status = dsc_io_rename(io, j.tmp_dir, out_dir, err);
    if (status != DSC_OK && made)
        (void)!dsc_io_remove_dir(io, j.tmp_dir, NULL); /* the first failure is the one to report */
    for (int32_t i = 0; i < j.open; i++)
        dsc_ckpt_reader_close(&j.reader[i]);
    dsc_alloc_free(alloc, j.buffer);
    dsc_alloc_free(alloc, j.with);
    dsc_alloc_free(alloc, j.reader);
    return status;
}
