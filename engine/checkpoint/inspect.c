/* inspect.c - summary of a checkpoint, verified and hashed. Needs no model.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "engine/checkpoint/internal.h"

dsc_status dsc_ckpt_summary(const dsc_io *io, dsc_alloc *alloc, const char *step_dir, dsc_run_state *state,
                            int64_t *bytes, dsc_error *err)
{
    dsc_ckpt_reader reader;
    DSC_TRY(dsc_ckpt_reader_open(io, alloc, step_dir, &reader, err));
    *state = reader.manifest.state;
    state->gemm_plans = state->settings = NULL;
    *bytes = 0;
    for (int f = 0; f < DSC_CKPT_TENSOR_FILE_COUNT; f++)
        *bytes += reader.file_bytes[f];
    *bytes += reader.buffers.bytes;
    DSC_ASSERT(*bytes > 0);
    dsc_ckpt_reader_close(&reader);
    return DSC_OK;
}

dsc_status dsc_ckpt_part(const dsc_io *io, dsc_alloc *alloc, const char *step_dir, char *text, size_t text_bytes,
                         dsc_error *err)
{
    dsc_ckpt_manifest manifest;
    DSC_TRY(dsc_ckpt_manifest_read(io, alloc, step_dir, &manifest, err));
    const dsc_ckpt_parts *parts = &manifest.parts;
    text[0] = 0;
    DSC_ASSERT(parts->count >= 1);
    DSC_ASSERT(parts->index < parts->count);
    if (parts->count > 1)
        snprintf(text, text_bytes, "part %d of %d (host %s)", (int)parts->index + 1, (int)parts->count,
                 parts->host[parts->index]);
    dsc_ckpt_manifest_close(&manifest);
    return DSC_OK;
}

dsc_status dsc_ckpt_gemm_plans(const dsc_io *io, dsc_alloc *alloc, const char *dir, char **out, dsc_error *err)
{
    char step_dir[DSC_CKPT_PATH_BYTES];
    dsc_ckpt_manifest manifest;
    *out = NULL;
    DSC_TRY(dsc_ckpt_find(io, alloc, dir, step_dir, sizeof step_dir, err));
    DSC_TRY(dsc_ckpt_manifest_read(io, alloc, step_dir, &manifest, err));
    DSC_ASSERT(*out == NULL);
    *out = manifest.state.gemm_plans;
    manifest.state.gemm_plans = NULL;
    dsc_ckpt_manifest_close(&manifest);
    return DSC_OK;
}

dsc_status dsc_ckpt_verify_with(const dsc_io *io, dsc_alloc *alloc, const char *step_dir, void *buffer, dsc_error *err)
{
    DSC_ASSERT(buffer != NULL);
    dsc_ckpt_reader reader;
    DSC_TRY(dsc_ckpt_reader_open(io, alloc, step_dir, &reader, err));
    const dsc_ckpt_block *block = reader.manifest.block;
    dsc_status status = DSC_OK;
    for (int64_t i = 0; i < reader.manifest.block_count && status == DSC_OK; i++) {
        const int64_t ahead = i + DSC_CKPT_BLOCKS_AHEAD;
        if (ahead < reader.manifest.block_count && dsc_ckpt_reader_has(&reader, &block[ahead]))
            dsc_ckpt_reader_expect(&reader, &block[ahead]);
        if (dsc_ckpt_reader_has(&reader, &block[i]))
            status = dsc_ckpt_reader_block(&reader, &block[i], buffer, err);
    }
    dsc_ckpt_reader_close(&reader);
    return status;
}

dsc_status dsc_ckpt_verify(const dsc_io *io, dsc_alloc *alloc, const char *step_dir, dsc_error *err)
{
    void *buffer = NULL;
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_IO, DSC_CKPT_BLOCK_BYTES, 1, &buffer, err));
    dsc_status status = dsc_ckpt_verify_with(io, alloc, step_dir, buffer, err);
    dsc_alloc_free(alloc, buffer);
    if (status == DSC_OK)
        status = dsc_ckpt_check_companions(io, alloc, step_dir, NULL, err);
    return status;
}

static dsc_status hash_tensor(dsc_sha256 *sha, const dsc_ckpt_reader *reader, dsc_ckpt_plane plane, const char *name,
                              float *buffer, dsc_error *err)
{
    const dsc_safetensors_entry *entry = dsc_ckpt_reader_find(reader, plane, name, NULL);
    const int64_t capacity = DSC_CKPT_BLOCK_BYTES / 4;
    for (int64_t first = 0; first < entry->count; first += capacity) {
        const int64_t count = dsc_min_i64(capacity, entry->count - first);
        DSC_ASSERT(count > 0);
        DSC_TRY(dsc_ckpt_reader_f32(reader, plane, name, first, count, buffer, err));
        dsc_sha256_update(sha, buffer, (size_t)count * 4);
    }
    return DSC_OK;
}

/* name, NUL, number of dimensions (uint32), each dimension (uint64), then master or fp32 weights, moments (m, v);
 * all little-endian. A frozen tensor has only its weights. */
static dsc_status hash_state(dsc_sha256 *sha, const dsc_ckpt_reader *reader, const dsc_safetensors_entry *weights,
                             float *buffer, dsc_error *err)
{
    const uint32_t dims = (uint32_t)weights->desc.dim_count;
    DSC_ASSERT(dims <= DSC_DIMS_MAX);
    dsc_sha256_update(sha, weights->name, strlen(weights->name) + 1);
    dsc_sha256_update(sha, &dims, sizeof dims);
    for (uint32_t d = 0; d < dims; d++)
        dsc_sha256_update(sha, &weights->desc.dim[d], 8);
    const dsc_safetensors_entry *master = dsc_ckpt_reader_find(reader, DSC_CKPT_MASTER, weights->name, NULL);
    if (master != NULL)
        DSC_TRY(hash_tensor(sha, reader, DSC_CKPT_MASTER, weights->name, buffer, err));
    else
        DSC_TRY(hash_tensor(sha, reader, DSC_CKPT_WEIGHTS, weights->name, buffer, err));
    for (int plane = DSC_CKPT_MOMENT1; plane < DSC_CKPT_PLANE_COUNT; plane++) {
        const dsc_safetensors_entry *moment = dsc_ckpt_reader_find(reader, (dsc_ckpt_plane)plane, weights->name, NULL);
        if (moment != NULL && !dsc_ckpt_is_absmax((dsc_ckpt_plane)plane)) /* the moments' values have it */
            DSC_TRY(hash_tensor(sha, reader, (dsc_ckpt_plane)plane, weights->name, buffer, err));
    }
    return DSC_OK;
}

dsc_status dsc_ckpt_hash(const dsc_io *io, dsc_alloc *alloc, const char *step_dir, char hex[65], dsc_error *err)
{
    dsc_ckpt_reader reader;
    float *buffer = NULL;
    dsc_sha256 sha;
    uint8_t digest[32];
    DSC_TRY(dsc_ckpt_reader_open(io, alloc, step_dir, &reader, err));
    dsc_status status = dsc_ckpt_refuse_part(&reader, step_dir, err);
    if (status == DSC_OK)
        status = dsc_alloc_zeroed(alloc, DSC_TAG_IO, DSC_CKPT_BLOCK_BYTES, 1, &buffer, err);
    dsc_sha256_init(&sha);
    for (int64_t t = 0; t < dsc_safetensors_count(reader.file[DSC_CKPT_MODEL]) && status == DSC_OK; t++)
        status = hash_state(&sha, &reader, dsc_safetensors_at(reader.file[DSC_CKPT_MODEL], t), buffer, err);
    dsc_ckpt_buffer_file_hash(&reader.buffers, &sha);
    const uint64_t step = (uint64_t)reader.manifest.state.step;
    dsc_sha256_update(&sha, &step, sizeof step);
    dsc_sha256_final(&sha, digest);
    dsc_hex(hex, digest, sizeof digest);
    dsc_alloc_free(alloc, buffer);
    dsc_ckpt_reader_close(&reader);
    return status;
}
