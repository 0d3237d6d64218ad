/* checkpoint_reader.c - an existing checkpoint: found, opened, cross-checked, verified, hashed. Needs no model.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "engine/checkpoint_internal.h"

/* ---- finding ---- */

/* "step-" and digits only: the name can neither leave its folder nor be a hidden or temporary one. */
bool dsc_checkpoint_is_step_name(const char *name)
{
    return strncmp(name, "step-", 5) == 0 && name[5] != 0 && strlen(name) <= 5 + 18 &&
           strspn(name + 5, "0123456789") == strlen(name + 5);
}

dsc_status dsc_checkpoint_read_latest(const dsc_io *io, dsc_alloc *alloc, const char *path, char name[64],
                                      dsc_error *err)
{
    char *text = NULL;
    int64_t bytes;
    DSC_TRY(dsc_io_read_all(io, alloc, path, 63, &text, &bytes, err));
    snprintf(name, 64, "%s", text);
    dsc_alloc_free(alloc, text);
    /* One line: what follows it, or a NUL byte inside it, was not written by us. */
    const size_t line = strcspn(name, "\r\n");
    const bool whole = (int64_t)(line + strspn(name + line, "\r\n")) == bytes;
    name[line] = 0;
    if (!dsc_checkpoint_is_step_name(name))
        return DSC_FAIL(err, DSC_ERR_INPUT, path, "\"%s\" is not of the form step-N", name);
    if (!whole)
        return DSC_FAIL(err, DSC_ERR_INPUT, path, "more than the one line \"%s\"", name);
    return DSC_OK;
}

dsc_status dsc_checkpoint_find(const dsc_io *io, dsc_alloc *alloc, const char *dir, char *out, size_t out_bytes,
                               dsc_error *err)
{
    char name[64], path[CKPT_PATH_BYTES];
    if (dsc_io_kind(dir) == DSC_PATH_MISSING)
        return DSC_FAIL(err, DSC_ERR_INPUT, dir, "no such checkpoint folder");
    DSC_TRY(dsc_path_join(path, sizeof path, dir, CKPT_MANIFEST_FILE, err));
    if (dsc_io_kind(path) == DSC_PATH_FILE) {
        if ((size_t)snprintf(out, out_bytes, "%s", dir) >= out_bytes)
            return DSC_FAIL(err, DSC_ERR_INPUT, dir, "the path is too long");
        return DSC_OK;
    }
    DSC_TRY(dsc_path_join(path, sizeof path, dir, "latest", err));
    if (dsc_io_kind(path) == DSC_PATH_MISSING)
        return DSC_FAIL(err, DSC_ERR_INPUT, dir,
                        "no checkpoint here: neither a step-N folder's manifest nor a file \"latest\"");
    DSC_TRY(dsc_checkpoint_read_latest(io, alloc, path, name, err));
    DSC_TRY(dsc_path_join(out, out_bytes, dir, name, err));
    if (dsc_io_kind(out) != DSC_PATH_DIR)
        return DSC_FAIL(err, DSC_ERR_INPUT, out, "named by \"latest\" but not there");
    return DSC_OK;
}

/* ---- opening ---- */

static dsc_status open_file(const dsc_io *io, dsc_alloc *alloc, const char *step_dir, ckpt_reader *reader, int f,
                            dsc_error *err)
{
    char path[CKPT_PATH_BYTES];
    dsc_file file = DSC_FILE_INIT;
    int64_t bytes = 0;
    if (reader->manifest.file_bytes[f] < 0)
        return DSC_OK;
    DSC_TRY(dsc_path_join(path, sizeof path, step_dir, ckpt_file_name[f], err));
    DSC_TRY(dsc_io_open(io, path, DSC_IO_READ_ONLY, &file, err));
    const dsc_status status = dsc_io_size(io, &file, &bytes, err);
    (void)dsc_io_close(io, &file, NULL);
    DSC_TRY(status);
    if (bytes != reader->manifest.file_bytes[f])
        return DSC_FAIL(err, DSC_ERR_INPUT, path, "%lld bytes; the manifest says %lld (damaged or replaced)",
                        (long long)bytes, (long long)reader->manifest.file_bytes[f]);
    return dsc_safetensors_open(&reader->file[f], io, alloc, path, err);
}

/* Every tensor of the manifest is whole in its file, and no file has another. */
static dsc_status cross_check(const ckpt_reader *reader, dsc_error *err)
{
    const ckpt_manifest *m = &reader->manifest;
    int64_t in_files = 0;
    for (int f = 0; f < CKPT_FILE_COUNT; f++)
        in_files += reader->file[f] != NULL ? dsc_safetensors_count(reader->file[f]) : 0;
    if (in_files != m->tensor_count)
        return DSC_FAIL(err, DSC_ERR_INPUT, dsc_safetensors_path(reader->file[CKPT_MODEL]),
                        "the files hold %lld tensors, the manifest "
                        "lists %lld",
                        (long long)in_files, (long long)m->tensor_count);
    for (int64_t t = 0; t < m->tensor_count; t++) {
        const ckpt_manifest_tensor *tensor = &m->tensor[t];
        const dsc_safetensors_entry *entry = dsc_safetensors_find(reader->file[tensor->file], tensor->name);
        int64_t covered = 0;
        if (tensor->block_count > 0) {
            const ckpt_block *last = &m->block[tensor->first_block + tensor->block_count - 1];
            covered = last->first + last->count;
        }
        if (entry == NULL || entry->count != covered || (entry->desc.dtype != DSC_F32 && entry->desc.dtype != DSC_BF16))
            return DSC_FAIL(err, DSC_ERR_INPUT, dsc_safetensors_path(reader->file[tensor->file]),
                            "tensor \"%s\" is not as the manifest "
                            "lists it",
                            tensor->name);
    }
    return DSC_OK;
}

dsc_status ckpt_reader_open(const dsc_io *io, dsc_alloc *alloc, const char *step_dir, ckpt_reader *out, dsc_error *err)
{
    *out = (ckpt_reader){ 0 };
    DSC_TRY(ckpt_manifest_read(io, alloc, step_dir, &out->manifest, err));
    dsc_status status = DSC_OK;
    for (int f = 0; f < CKPT_FILE_COUNT && status == DSC_OK; f++)
        status = open_file(io, alloc, step_dir, out, f, err);
    if (status == DSC_OK)
        status = cross_check(out, err);
    if (status != DSC_OK)
        ckpt_reader_close(out);
    return status;
}

void ckpt_reader_close(ckpt_reader *reader)
{
    for (int f = 0; f < CKPT_FILE_COUNT; f++)
        dsc_safetensors_close(&reader->file[f]);
    ckpt_manifest_close(&reader->manifest);
}

const dsc_safetensors_entry *ckpt_reader_find(const ckpt_reader *reader, ckpt_plane plane, const char *hf_name,
                                              const dsc_safetensors **file)
{
    char name[DSC_SAFETENSORS_NAME_BYTES_MAX + 32];
    *file = reader->file[plane == CKPT_WEIGHTS ? CKPT_MODEL : CKPT_OPTIMIZER];
    snprintf(name, sizeof name, "%s%s", ckpt_plane_prefix[plane], hf_name);
    return *file != NULL ? dsc_safetensors_find(*file, name) : NULL;
}

dsc_status ckpt_reader_verify_block(const ckpt_reader *reader, int64_t i, void *buffer, dsc_error *err)
{
    const ckpt_block *block = &reader->manifest.block[i];
    const ckpt_manifest_tensor *tensor = &reader->manifest.tensor[block->entry];
    const dsc_safetensors *file = reader->file[tensor->file];
    const dsc_safetensors_entry *entry = dsc_safetensors_find(file, tensor->name);
    const int64_t each = (int64_t)dsc_dtype_bytes(entry->desc.dtype), bytes = block->count * each;
    if (bytes > CKPT_BLOCK_BYTES)
        return DSC_FAIL(err, DSC_ERR_INPUT, dsc_safetensors_path(file), "tensor \"%s\": a block of %lld bytes",
                        tensor->name, (long long)bytes);
    DSC_TRY(dsc_safetensors_read_bytes(file, entry, block->first * each, bytes, buffer, err));
    const dsc_hash128 hash =
        ckpt_block_hash(tensor->name, block->first, block->count, reader->manifest.state.step, buffer, bytes);
    if (hash.low != block->hash.low || hash.high != block->hash.high)
        return DSC_FAIL(err, DSC_ERR_INPUT, dsc_safetensors_path(file),
                        "tensor \"%s\" is damaged at elements %lld to %lld (hash "
                        "differs from the manifest's); use another checkpoint",
                        tensor->name, (long long)block->first, (long long)(block->first + block->count - 1));
    return DSC_OK;
}

/* ---- tools ---- */

dsc_status dsc_checkpoint_summary(const dsc_io *io, dsc_alloc *alloc, const char *step_dir, dsc_run_state *state,
                                  int64_t *bytes, dsc_error *err)
{
    ckpt_reader reader;
    DSC_TRY(ckpt_reader_open(io, alloc, step_dir, &reader, err));
    *state = reader.manifest.state;
    *bytes = 0;
    for (int f = 0; f < CKPT_FILE_COUNT; f++)
        *bytes += dsc_max_i64(0, reader.manifest.file_bytes[f]);
    ckpt_reader_close(&reader);
    return DSC_OK;
}

dsc_status dsc_checkpoint_verify(const dsc_io *io, dsc_alloc *alloc, const char *step_dir, dsc_error *err)
{
    ckpt_reader reader;
    void *buffer = NULL;
    DSC_TRY(ckpt_reader_open(io, alloc, step_dir, &reader, err));
    dsc_status status = dsc_alloc_zeroed(alloc, DSC_TAG_IO, CKPT_BLOCK_BYTES, 1, &buffer, err);
    for (int64_t i = 0; i < reader.manifest.block_count && status == DSC_OK; i++)
        status = ckpt_reader_verify_block(&reader, i, buffer, err);
    dsc_alloc_free(alloc, buffer);
    ckpt_reader_close(&reader);
    return status;
}

static dsc_status hash_tensor(dsc_sha256 *sha, const dsc_safetensors *file, const dsc_safetensors_entry *entry,
                              float *buffer, dsc_error *err)
{
    const int64_t room = CKPT_BLOCK_BYTES / 4;
    for (int64_t first = 0; first < entry->count; first += room) {
        const int64_t count = dsc_min_i64(room, entry->count - first);
        DSC_TRY(dsc_safetensors_read_f32(file, entry, first, count, buffer, err));
        dsc_sha256_update(sha, buffer, (size_t)count * 4);
    }
    return DSC_OK;
}

/* name, NUL, number of dimensions (uint32), each dimension (uint64), then master or fp32 weights, m, v; all
 * little-endian. */
static dsc_status hash_state(dsc_sha256 *sha, const ckpt_reader *reader, const dsc_safetensors_entry *weights,
                             float *buffer, dsc_error *err)
{
    const dsc_safetensors *file;
    const uint32_t dims = (uint32_t)weights->desc.dim_count;
    dsc_sha256_update(sha, weights->name, strlen(weights->name) + 1);
    dsc_sha256_update(sha, &dims, sizeof dims);
    for (uint32_t d = 0; d < dims; d++)
        dsc_sha256_update(sha, &weights->desc.dim[d], 8);
    const dsc_safetensors_entry *entry = ckpt_reader_find(reader, CKPT_MASTER, weights->name, &file);
    if (entry == NULL) {
        file = reader->file[CKPT_MODEL];
        entry = weights;
    }
    DSC_TRY(hash_tensor(sha, file, entry, buffer, err));
    for (int plane = CKPT_EXP_AVG; plane <= CKPT_EXP_AVG_SQ; plane++) {
        entry = ckpt_reader_find(reader, (ckpt_plane)plane, weights->name, &file);
        if (entry != NULL)
            DSC_TRY(hash_tensor(sha, file, entry, buffer, err));
    }
    return DSC_OK;
}

dsc_status dsc_checkpoint_hash(const dsc_io *io, dsc_alloc *alloc, const char *step_dir, char hex[65], dsc_error *err)
{
    ckpt_reader reader;
    float *buffer = NULL;
    dsc_sha256 sha;
    uint8_t digest[32];
    DSC_TRY(ckpt_reader_open(io, alloc, step_dir, &reader, err));
    dsc_status status = dsc_alloc_zeroed(alloc, DSC_TAG_IO, CKPT_BLOCK_BYTES, 1, &buffer, err);
    dsc_sha256_init(&sha);
    for (int64_t t = 0; t < dsc_safetensors_count(reader.file[CKPT_MODEL]) && status == DSC_OK; t++)
        status = hash_state(&sha, &reader, dsc_safetensors_at(reader.file[CKPT_MODEL], t), buffer, err);
    const uint64_t step = (uint64_t)reader.manifest.state.step;
    dsc_sha256_update(&sha, &step, sizeof step);
    dsc_sha256_final(&sha, digest);
    dsc_hex(hex, digest, sizeof digest);
    dsc_alloc_free(alloc, buffer);
    ckpt_reader_close(&reader);
    return status;
}
