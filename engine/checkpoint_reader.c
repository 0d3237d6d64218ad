/* checkpoint_reader.c - an existing checkpoint: opened, cross-checked, verified, hashed. Needs no model.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "engine/checkpoint_internal.h"

#define HEAD_PIECE_BYTES 16384

/* ---- opening ---- */

/* Size and SHA-256 of what blocks do not cover. */
static dsc_status check_head(const dsc_io *io, dsc_file *file, const ckpt_file_info *info, dsc_error *err)
{
    int64_t bytes = 0;
    uint8_t piece[HEAD_PIECE_BYTES], digest[32];
    dsc_sha256 sha;
    DSC_TRY(dsc_io_size(io, file, &bytes, err));
    if (bytes != info->bytes)
        return DSC_FAIL(err, DSC_ERR_INPUT, file->path, "%lld bytes; the manifest says %lld (damaged or replaced)",
                        (long long)bytes, (long long)info->bytes);
    dsc_sha256_init(&sha);
    for (int64_t at = 0; at < info->head_bytes; at += HEAD_PIECE_BYTES) {
        const int64_t count = dsc_min_i64(HEAD_PIECE_BYTES, info->head_bytes - at);
        DSC_TRY(dsc_io_read(io, file, piece, count, at, err));
        dsc_sha256_update(&sha, piece, (size_t)count);
    }
    dsc_sha256_final(&sha, digest);
    if (memcmp(digest, info->sha256, sizeof digest) != 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, file->path, "is damaged or was edited: its SHA-256 differs from the "
                        "manifest's; use another checkpoint");
    return DSC_OK;
}

static dsc_status open_file(const dsc_io *io, const char *step_dir, ckpt_reader *reader, int f, dsc_error *err)
{
    char path[CKPT_PATH_BYTES];
    dsc_file file = DSC_FILE_INIT;
    const ckpt_file_info *info = &reader->manifest.file[f];
    if (info->bytes < 0)
        return DSC_OK;
    DSC_TRY(dsc_ckpt_own_path(path, step_dir, dsc_ckpt_file_name[f], err));
    DSC_TRY(dsc_io_open(io, path, DSC_IO_READ_ONLY, &file, err));
    const dsc_status status = check_head(io, &file, info, err);
    (void)dsc_io_close(io, &file, NULL); /* only read: nothing can be lost */
    DSC_TRY(status);
    if (f >= CKPT_TENSOR_FILE_COUNT)
        return DSC_OK;
    return dsc_safetensors_open(&reader->file[f], io, reader->alloc, path, err);
}

/* The hashes cover a whole file only when its header ends where the first tensor begins. */
static dsc_status check_cover(const ckpt_reader *reader, int f, dsc_error *err)
{
    const dsc_safetensors *file = reader->file[f];
    int64_t data_bytes = 0;
    for (int64_t i = 0; i < dsc_safetensors_count(file); i++)
        data_bytes += dsc_safetensors_at(file, i)->bytes;
    const ckpt_file_info *info = &reader->manifest.file[f];
    if (info->head_bytes + data_bytes == info->bytes)
        return DSC_OK;
    return DSC_FAIL(err, DSC_ERR_INPUT, dsc_safetensors_path(file), "its header has not the manifest's %lld bytes",
                    (long long)info->head_bytes);
}

/* Names of second moments themselves go on with a point. */
static bool names_factors(const dsc_run_state *state, const char *name)
{
    for (int plane = CKPT_ROWS; plane <= CKPT_COLS; plane++) {
        const char *prefix = dsc_ckpt_plane_name(state, (ckpt_plane)plane);
        const size_t length = strlen(prefix);
        if (strncmp(name, prefix, length) == 0 && name[length] == '.')
            return dsc_ckpt_stores(state, (ckpt_plane)plane, true);
    }
    return false;
}

static dsc_status match_tensor(ckpt_reader *reader, int64_t t, dsc_error *err)
{
    const ckpt_manifest_tensor *tensor = &reader->manifest.tensor[t];
    const dsc_safetensors *file = reader->file[tensor->file];
    const dsc_safetensors_entry *entry = dsc_safetensors_find(file, tensor->name);
    static const char master[] = "master.";
    const ckpt_plane plane = tensor->file == CKPT_MODEL                             ? CKPT_WEIGHTS
                             : strncmp(tensor->name, master, strlen(master)) == 0   ? CKPT_MASTER
                             : names_factors(&reader->manifest.state, tensor->name) ? CKPT_ROWS
                                                                                    : CKPT_MOMENT1;
    const dsc_dtype expected = dsc_ckpt_dtype(&reader->manifest.state, plane);
    if (entry == NULL || entry->count != tensor->elements || entry->desc.dtype != tensor->dtype ||
        tensor->dtype != expected)
        return DSC_FAIL(err, DSC_ERR_INPUT, dsc_safetensors_path(file), "tensor \"%.200s\" is not as the manifest "
                        "lists it", tensor->name);
    int64_t *of_entry = &reader->tensor_of[tensor->file][entry - dsc_safetensors_at(file, 0)];
    if (*of_entry >= 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, dsc_safetensors_path(file), "the manifest lists tensor \"%.200s\" twice",
                        tensor->name);
    *of_entry = t;
    return DSC_OK;
}

/* Every tensor of the manifest is in its file, and no file has another. */
static dsc_status cross_check(ckpt_reader *reader, dsc_error *err)
{
    int64_t in_files = 0;
    for (int f = 0; f < CKPT_TENSOR_FILE_COUNT; f++) {
        const int64_t count = dsc_safetensors_count(reader->file[f]);
        DSC_TRY(check_cover(reader, f, err));
        DSC_TRY(dsc_alloc_zeroed(reader->alloc, DSC_TAG_IO, count, sizeof(int64_t), &reader->tensor_of[f], err));
        for (int64_t i = 0; i < count; i++)
            reader->tensor_of[f][i] = -1;
        in_files += count;
    }
    if (in_files != reader->manifest.tensor_count)
        return DSC_FAIL(err, DSC_ERR_INPUT, dsc_safetensors_path(reader->file[CKPT_MODEL]), "the files hold %lld "
                        "tensors, the manifest lists %lld", (long long)in_files,
                        (long long)reader->manifest.tensor_count);
    for (int64_t t = 0; t < reader->manifest.tensor_count; t++)
        DSC_TRY(match_tensor(reader, t, err));
    return DSC_OK;
}

static bool ends_with(const char *name, const char *end)
{
    const size_t bytes = strlen(name), end_bytes = strlen(end);
    return bytes >= end_bytes && strcmp(name + bytes - end_bytes, end) == 0;
}

/* Other programs take every shard of a folder for a part of the model, and its config for the model's, so one that the
 * manifest does not vouch for is not left unsaid. Notes and tokenizers beside them are nobody's business. */
static bool is_stranger(const ckpt_reader *reader, const char *name)
{
    for (int f = 0; f < CKPT_FILE_COUNT; f++)
        if (strcmp(name, dsc_ckpt_file_name[f]) == 0)
            return reader->manifest.file[f].bytes < 0;
    return ends_with(name, ".safetensors") || ends_with(name, ".safetensors.index.json");
}

static dsc_status check_folder(const dsc_io *io, const char *step_dir, const ckpt_reader *reader, dsc_error *err)
{
    char **names = NULL, path[CKPT_PATH_BYTES];
    int64_t count = 0;
    const int64_t step = dsc_ckpt_step_of(step_dir);
    if (step >= 0 && step != reader->manifest.state.step)
        return DSC_FAIL(err, DSC_ERR_INPUT, step_dir, "holds the checkpoint of step %lld: another folder was copied "
                        "over it", (long long)reader->manifest.state.step);
    DSC_TRY(dsc_io_list(io, reader->alloc, step_dir, &names, &count, err));
    dsc_status status = DSC_OK;
    for (int64_t i = 0; i < count && status == DSC_OK; i++)
        if (is_stranger(reader, names[i]))
            status = dsc_path_join(path, sizeof path, step_dir, names[i], err) == DSC_OK
                         ? DSC_FAIL(err, DSC_ERR_INPUT, path, "is not in the checkpoint's manifest; move it away")
                         : DSC_ERR_INPUT;
    dsc_io_list_free(reader->alloc, names, count);
    return status;
}

dsc_status dsc_ckpt_reader_open(const dsc_io *io, dsc_alloc *alloc, const char *step_dir, ckpt_reader *out,
                                dsc_error *err)
{
    *out = (ckpt_reader){ .alloc = alloc };
    DSC_TRY(dsc_ckpt_manifest_read(io, alloc, step_dir, &out->manifest, err));
    dsc_status status = check_folder(io, step_dir, out, err);
    for (int f = 0; f < CKPT_FILE_COUNT && status == DSC_OK; f++)
        status = open_file(io, step_dir, out, f, err);
    if (status == DSC_OK)
        status = cross_check(out, err);
    if (status != DSC_OK)
        dsc_ckpt_reader_close(out);
    return status;
}

void dsc_ckpt_reader_close(ckpt_reader *reader)
{
    for (int f = 0; f < CKPT_TENSOR_FILE_COUNT; f++) {
        dsc_safetensors_close(&reader->file[f]);
        if (reader->tensor_of[f] != NULL)
            dsc_alloc_free(reader->alloc, reader->tensor_of[f]);
    }
    dsc_ckpt_manifest_close(&reader->manifest);
    *reader = (ckpt_reader){ 0 };
}

/* ---- reading ---- */

const dsc_safetensors_entry *dsc_ckpt_reader_find(const ckpt_reader *reader, ckpt_plane plane, const char *hf_name,
                                                  const ckpt_manifest_tensor **tensor)
{
    char name[DSC_CKPT_NAME_BYTES];
    const int f = plane == CKPT_WEIGHTS ? CKPT_MODEL : CKPT_OPTIMIZER;
    if (!dsc_ckpt_stores(&reader->manifest.state, plane, true))
        return NULL;
    const dsc_safetensors_entry *entry =
        dsc_safetensors_find(reader->file[f], dsc_ckpt_stored_name(&reader->manifest.state, plane, hf_name, name));
    if (tensor != NULL && entry != NULL)
        *tensor = &reader->manifest.tensor[reader->tensor_of[f][entry - dsc_safetensors_at(reader->file[f], 0)]];
    return entry;
}

dsc_status dsc_ckpt_reader_block(const ckpt_reader *reader, const ckpt_block *block, void *buffer, dsc_error *err)
{
    const ckpt_manifest_tensor *tensor = &reader->manifest.tensor[block->entry];
    const dsc_safetensors *file = reader->file[tensor->file];
    const dsc_safetensors_entry *entry = dsc_safetensors_find(file, tensor->name);
    const int64_t each = (int64_t)dsc_dtype_bytes(tensor->dtype), bytes = block->count * each;
    DSC_ASSERT(bytes <= CKPT_BLOCK_BYTES);
    DSC_TRY(dsc_safetensors_read_bytes(file, entry, block->first * each, bytes, buffer, err));
    return dsc_ckpt_reader_check(reader, block, buffer, err);
}

dsc_status dsc_ckpt_reader_check(const ckpt_reader *reader, const ckpt_block *block, const void *data, dsc_error *err)
{
    const ckpt_manifest_tensor *tensor = &reader->manifest.tensor[block->entry];
    const int64_t bytes = block->count * (int64_t)dsc_dtype_bytes(tensor->dtype);
    const dsc_hash128 hash = dsc_ckpt_block_hash(tensor->name, block, reader->manifest.state.step, data, bytes);
    if (hash.low != block->hash.low || hash.high != block->hash.high)
        return DSC_FAIL(err, DSC_ERR_INPUT, dsc_safetensors_path(reader->file[tensor->file]),
                        "tensor \"%.200s\" is damaged at elements %lld to %lld (hash differs from the manifest's); use "
                        "another checkpoint", tensor->name, (long long)block->first,
                        (long long)(block->first + block->count - 1));
    return DSC_OK;
}

void dsc_ckpt_reader_expect(const ckpt_reader *reader, const ckpt_block *block)
{
    const ckpt_manifest_tensor *tensor = &reader->manifest.tensor[block->entry];
    const dsc_safetensors *file = reader->file[tensor->file];
    const int64_t each = (int64_t)dsc_dtype_bytes(tensor->dtype);
    dsc_safetensors_expect(file, dsc_safetensors_find(file, tensor->name), block->first * each, block->count * each);
}

/* ---- tools ---- */

dsc_status dsc_checkpoint_summary(const dsc_io *io, dsc_alloc *alloc, const char *step_dir, dsc_run_state *state,
                                  int64_t *bytes, dsc_error *err)
{
    ckpt_reader reader;
    DSC_TRY(dsc_ckpt_reader_open(io, alloc, step_dir, &reader, err));
    *state = reader.manifest.state;
    state->gemm_plans = NULL;
    *bytes = 0;
    for (int f = 0; f < CKPT_TENSOR_FILE_COUNT; f++)
        *bytes += reader.manifest.file[f].bytes;
    dsc_ckpt_reader_close(&reader);
    return DSC_OK;
}

dsc_status dsc_checkpoint_gemm_plans(const dsc_io *io, dsc_alloc *alloc, const char *dir, char **out, dsc_error *err)
{
    char step_dir[CKPT_PATH_BYTES];
    ckpt_manifest manifest;
    *out = NULL;
    DSC_TRY(dsc_checkpoint_find(io, alloc, dir, step_dir, sizeof step_dir, err));
    DSC_TRY(dsc_ckpt_manifest_read(io, alloc, step_dir, &manifest, err));
    *out = manifest.state.gemm_plans;
    manifest.state.gemm_plans = NULL;
    dsc_ckpt_manifest_close(&manifest);
    return DSC_OK;
}

dsc_status dsc_ckpt_verify(const dsc_io *io, dsc_alloc *alloc, const char *step_dir, void *buffer, dsc_error *err)
{
    ckpt_reader reader;
    DSC_TRY(dsc_ckpt_reader_open(io, alloc, step_dir, &reader, err));
    dsc_status status = DSC_OK;
    for (int64_t i = 0; i < reader.manifest.block_count && status == DSC_OK; i++) {
        if (i + CKPT_BLOCKS_AHEAD < reader.manifest.block_count)
            dsc_ckpt_reader_expect(&reader, &reader.manifest.block[i + CKPT_BLOCKS_AHEAD]);
        status = dsc_ckpt_reader_block(&reader, &reader.manifest.block[i], buffer, err);
    }
    dsc_ckpt_reader_close(&reader);
    return status;
}

dsc_status dsc_checkpoint_verify(const dsc_io *io, dsc_alloc *alloc, const char *step_dir, dsc_error *err)
{
    void *buffer = NULL;
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_IO, CKPT_BLOCK_BYTES, 1, &buffer, err));
    const dsc_status status = dsc_ckpt_verify(io, alloc, step_dir, buffer, err);
    dsc_alloc_free(alloc, buffer);
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

/* name, NUL, number of dimensions (uint32), each dimension (uint64), then master or fp32 weights, moments (m, v);
 * all little-endian. A frozen tensor has only its weights. */
static dsc_status hash_state(dsc_sha256 *sha, const ckpt_reader *reader, const dsc_safetensors_entry *weights,
                             float *buffer, dsc_error *err)
{
    const uint32_t dims = (uint32_t)weights->desc.dim_count;
    dsc_sha256_update(sha, weights->name, strlen(weights->name) + 1);
    dsc_sha256_update(sha, &dims, sizeof dims);
    for (uint32_t d = 0; d < dims; d++)
        dsc_sha256_update(sha, &weights->desc.dim[d], 8);
    const dsc_safetensors_entry *master = dsc_ckpt_reader_find(reader, CKPT_MASTER, weights->name, NULL);
    if (master != NULL)
        DSC_TRY(hash_tensor(sha, reader->file[CKPT_OPTIMIZER], master, buffer, err));
    else
        DSC_TRY(hash_tensor(sha, reader->file[CKPT_MODEL], weights, buffer, err));
    for (int plane = CKPT_MOMENT1; plane < CKPT_PLANE_COUNT; plane++) {
        const dsc_safetensors_entry *moment = dsc_ckpt_reader_find(reader, (ckpt_plane)plane, weights->name, NULL);
        if (moment != NULL)
            DSC_TRY(hash_tensor(sha, reader->file[CKPT_OPTIMIZER], moment, buffer, err));
    }
    return DSC_OK;
}

dsc_status dsc_checkpoint_hash(const dsc_io *io, dsc_alloc *alloc, const char *step_dir, char hex[65], dsc_error *err)
{
    ckpt_reader reader;
    float *buffer = NULL;
    dsc_sha256 sha;
    uint8_t digest[32];
    DSC_TRY(dsc_ckpt_reader_open(io, alloc, step_dir, &reader, err));
    dsc_status status = dsc_alloc_zeroed(alloc, DSC_TAG_IO, CKPT_BLOCK_BYTES, 1, &buffer, err);
    dsc_sha256_init(&sha);
    for (int64_t t = 0; t < dsc_safetensors_count(reader.file[CKPT_MODEL]) && status == DSC_OK; t++)
        status = hash_state(&sha, &reader, dsc_safetensors_at(reader.file[CKPT_MODEL], t), buffer, err);
    const uint64_t step = (uint64_t)reader.manifest.state.step;
    dsc_sha256_update(&sha, &step, sizeof step);
    dsc_sha256_final(&sha, digest);
    dsc_hex(hex, digest, sizeof digest);
    dsc_alloc_free(alloc, buffer);
    dsc_ckpt_reader_close(&reader);
    return status;
}
