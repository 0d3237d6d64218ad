/* reader.c - an existing checkpoint, or a host's part of one: opened, cross-checked, read. Needs no model.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "engine/checkpoint/internal.h"

#define HEAD_PIECE_BYTES 16384

/* ---- opening ---- */

/* SHA-256 of what blocks do not cover. `head` (may be NULL): [info->head_bytes] where it is put. */
static dsc_status check_head(const dsc_io *io, dsc_file *file, const dsc_ckpt_file_info *info, char *head,
                             dsc_error *err)
{
    DSC_ASSERT(info->head_bytes >= 0);
    DSC_ASSERT(info->head_bytes <= info->bytes);
    uint8_t piece[HEAD_PIECE_BYTES], digest[32];
    dsc_sha256 sha;
    dsc_sha256_init(&sha);
    for (int64_t at = 0; at < info->head_bytes; at += HEAD_PIECE_BYTES) {
        const int64_t count = dsc_min_i64(HEAD_PIECE_BYTES, info->head_bytes - at);
        DSC_TRY(dsc_io_read(io, file, piece, count, at, err));
        dsc_sha256_update(&sha, piece, (size_t)count);
        if (head != NULL)
            memcpy(head + at, piece, (size_t)count);
    }
    dsc_sha256_final(&sha, digest);
    if (memcmp(digest, info->sha256, sizeof digest) != 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, file->path, "is damaged or was edited: its SHA-256 differs from the "
                        "manifest's; use another checkpoint");
    return DSC_OK;
}

static dsc_status check_size(const dsc_io *io, dsc_file *file, int64_t expected, dsc_error *err)
{
    DSC_ASSERT(expected >= 0);
    int64_t bytes = 0;
    DSC_TRY(dsc_io_size(io, file, &bytes, err));
    if (bytes == expected)
        return DSC_OK;
    return DSC_FAIL(err, DSC_ERR_INPUT, file->path, "%lld bytes; the manifest says %lld (damaged or replaced)",
                    (long long)bytes, (long long)expected);
}

/* A part's file stays open for its blocks: it is not a safetensors file, only its header is one's. */
static dsc_status open_part(dsc_ckpt_reader *reader, int f, dsc_file *file, dsc_error *err)
{
    const dsc_ckpt_file_info *info = &reader->manifest.file[f];
    DSC_ASSERT(reader->part != NULL);
    DSC_ASSERT(reader->part[f].fd < 0);
    char *head = NULL;
    DSC_TRY(dsc_alloc_zeroed(reader->alloc, DSC_TAG_IO, info->head_bytes, 1, &head, err));
    dsc_status status = check_head(reader->io, file, info, head, err);
    if (status == DSC_OK)
        status = dsc_safetensors_parse(&reader->file[f], reader->alloc, file->path, head, info->head_bytes, info->bytes,
                                       err);
    dsc_alloc_free(reader->alloc, head);
    if (status == DSC_OK) {
        reader->part[f] = *file;
        *file = (dsc_file)DSC_FILE_INIT;
    }
    return status;
}

static dsc_status open_file(const char *step_dir, dsc_ckpt_reader *reader, int f, dsc_error *err)
{
    DSC_ASSERT(f < DSC_CKPT_FILE_COUNT);
    char path[DSC_CKPT_PATH_BYTES];
    dsc_file file = DSC_FILE_INIT;
    const dsc_io *io = reader->io;
    const dsc_ckpt_file_info *info = &reader->manifest.file[f];
    const bool tensors = f < DSC_CKPT_TENSOR_FILE_COUNT, part = tensors && reader->part != NULL;
    if (info->bytes < 0)
        return DSC_OK;
    DSC_TRY(dsc_ckpt_file_path(path, step_dir, dsc_ckpt_file_name[f], err));
    DSC_TRY(dsc_io_open(io, path, DSC_IO_READ_ONLY, &file, err));
    dsc_status status = check_size(io, &file, tensors ? reader->file_bytes[f] : info->bytes, err);
    if (status == DSC_OK)
        status = part ? open_part(reader, f, &file, err) : check_head(io, &file, info, NULL, err);
    (void)dsc_io_close(io, &file, NULL); /* only read: nothing can be lost */
    DSC_TRY(status);
    return !tensors || part ? DSC_OK : dsc_safetensors_open(&reader->file[f], io, reader->alloc, path, err);
}

/* Finds the blocks that are here: all, or where each block of a part lies. */
static dsc_status find_blocks(dsc_ckpt_reader *reader, dsc_error *err)
{
    const dsc_ckpt_manifest *m = &reader->manifest;
    DSC_ASSERT(reader->at == NULL);
    DSC_ASSERT(m->parts.count >= 1);
    for (int f = 0; f < DSC_CKPT_TENSOR_FILE_COUNT; f++)
        reader->file_bytes[f] = m->file[f].bytes;
    if (m->parts.count == 1 && !reader->far)
        return DSC_OK;
    DSC_TRY(dsc_alloc_zeroed(reader->alloc, DSC_TAG_IO, DSC_CKPT_TENSOR_FILE_COUNT, sizeof *reader->part, &reader->part,
                             err));
    for (int f = 0; f < DSC_CKPT_TENSOR_FILE_COUNT; f++) {
        reader->part[f] = (dsc_file)DSC_FILE_INIT;
        reader->file_bytes[f] = m->file[f].head_bytes;
    }
    DSC_TRY(dsc_alloc_zeroed(reader->alloc, DSC_TAG_IO, m->block_count, sizeof *reader->at, &reader->at, err));
    for (int64_t b = 0; b < m->block_count; b++) {
        const dsc_ckpt_manifest_tensor *tensor = &m->tensor[m->block[b].entry];
        const bool here = !reader->far && dsc_ckpt_part_of(m, &m->block[b]) == m->parts.index;
        reader->at[b] = here ? reader->file_bytes[tensor->file] : -1;
        reader->file_bytes[tensor->file] +=
            here ? m->block[b].count * (int64_t)dsc_dtype_bytes(tensor->dtype) : 0;
    }
    return DSC_OK;
}

/* The hashes cover a whole file only when its header ends where the first tensor begins. */
static dsc_status check_cover(const dsc_ckpt_reader *reader, int f, dsc_error *err)
{
    const dsc_safetensors *file = reader->file[f];
    DSC_ASSERT(file != NULL);
    int64_t data_bytes = 0;
    for (int64_t i = 0; i < dsc_safetensors_count(file); i++)
        data_bytes += dsc_safetensors_at(file, i)->bytes;
    const dsc_ckpt_file_info *info = &reader->manifest.file[f];
    if (info->head_bytes + data_bytes == info->bytes)
        return DSC_OK;
    return DSC_FAIL(err, DSC_ERR_INPUT, dsc_safetensors_path(file), "its header has not the manifest's %lld bytes",
                    (long long)info->head_bytes);
}

/* Names of second moments themselves go on with a point. */
static bool names_planes(const dsc_run_state *state, const char *name, dsc_ckpt_plane first, dsc_ckpt_plane last)
{
    for (int plane = (int)first; plane <= (int)last; plane++) {
        if (!dsc_ckpt_is_saved(state, (dsc_ckpt_plane)plane, true))
            continue;
        const char *prefix = dsc_ckpt_plane_name(state, (dsc_ckpt_plane)plane);
        const size_t length = strlen(prefix);
        if (strncmp(name, prefix, length) == 0 && name[length] == '.')
            return true;
    }
    return false;
}

static bool names_shared(const dsc_run_state *state, const char *name)
{
    return names_planes(state, name, DSC_CKPT_ROWS, DSC_CKPT_TENSOR);
}

static bool names_absmax(const dsc_run_state *state, const char *name)
{
    return names_planes(state, name, DSC_CKPT_ABSMAX1, DSC_CKPT_ABSMAX2);
}

static bool names_beside(const dsc_run_state *state, const char *name)
{
    return names_planes(state, name, DSC_CKPT_AVERAGE, DSC_CKPT_OUTER);
}

static bool same_shape(const dsc_tensor_desc *a, const dsc_tensor_desc *b)
{
    bool same = a->dim_count == b->dim_count;
    for (int32_t d = 0; d < a->dim_count && same; d++)
        same = a->dim[d] == b->dim[d];
    return same;
}

/* Masters and moments have the shapes of their weights: export and merge read one of them by the shape of another. */
/* One for each block of its tensor. */
static dsc_status check_absmax_shape(const dsc_ckpt_reader *reader, const dsc_safetensors_entry *absmax, dsc_error *err)
{
    const dsc_run_state *run = &reader->manifest.state;
    DSC_ASSERT(reader->file[DSC_CKPT_MODEL] != NULL);
    for (int plane = DSC_CKPT_ABSMAX1; plane <= DSC_CKPT_ABSMAX2; plane++) {
        const char *prefix = dsc_ckpt_plane_name(run, (dsc_ckpt_plane)plane);
        const size_t length = strlen(prefix);
        if (!dsc_ckpt_is_saved(run, (dsc_ckpt_plane)plane, true) || strncmp(absmax->name, prefix, length) != 0 ||
            absmax->name[length] != '.')
            continue;
        const dsc_safetensors_entry *weights =
            dsc_safetensors_find(reader->file[DSC_CKPT_MODEL], absmax->name + length + 1);
        if (weights != NULL && absmax->desc.dim_count == 1 &&
            absmax->count == dsc_div_ceil(weights->count, DSC_Q8_BLOCK))
            return DSC_OK;
        return DSC_FAIL(err, DSC_ERR_INPUT, dsc_safetensors_path(reader->file[DSC_CKPT_OPTIMIZER]),
                        "tensor \"%.200s\" %s; use another checkpoint", absmax->name,
                        weights == NULL ? "belongs to no tensor of model.safetensors"
                                        : "has not one number for each 256 elements of its tensor");
    }
    return DSC_OK;
}

static dsc_status check_state_shape(const dsc_ckpt_reader *reader, const dsc_safetensors_entry *state, dsc_error *err)
{
    const dsc_run_state *run = &reader->manifest.state;
    DSC_ASSERT(reader->file[DSC_CKPT_MODEL] != NULL);
    for (int plane = DSC_CKPT_MASTER; plane < DSC_CKPT_PLANE_COUNT; plane++) {
        if ((plane > DSC_CKPT_MOMENT3 && !dsc_ckpt_is_beside((dsc_ckpt_plane)plane)) ||
            !dsc_ckpt_is_saved(run, (dsc_ckpt_plane)plane, true))
            continue;
        const char *prefix = dsc_ckpt_plane_name(run, (dsc_ckpt_plane)plane);
        const size_t length = strlen(prefix);
        if (strncmp(state->name, prefix, length) != 0 || state->name[length] != '.')
            continue;
        const char *of = state->name + length + 1;
        const dsc_safetensors_entry *weights = dsc_safetensors_find(reader->file[DSC_CKPT_MODEL], of);
        if (weights != NULL && same_shape(&state->desc, &weights->desc))
            return DSC_OK;
        return DSC_FAIL(err, DSC_ERR_INPUT, dsc_safetensors_path(reader->file[DSC_CKPT_OPTIMIZER]),
                        "tensor \"%.200s\" %s; use another checkpoint", state->name,
                        weights == NULL ? "belongs to no tensor of model.safetensors"
                                        : "has not the shape of its tensor in model.safetensors");
    }
    return check_absmax_shape(reader, state, err);
}

static dsc_status match_tensor(dsc_ckpt_reader *reader, int64_t t, dsc_error *err)
{
    const dsc_ckpt_manifest_tensor *tensor = &reader->manifest.tensor[t];
    const dsc_safetensors *file = reader->file[tensor->file];
    DSC_ASSERT(t < reader->manifest.tensor_count);
    DSC_ASSERT(tensor->file < DSC_CKPT_TENSOR_FILE_COUNT);
    const dsc_safetensors_entry *entry = dsc_safetensors_find(file, tensor->name);
    static const char master[] = "master.";
    const dsc_ckpt_plane plane = tensor->file == DSC_CKPT_MODEL                          ? DSC_CKPT_WEIGHTS
                                 : strncmp(tensor->name, master, strlen(master)) == 0    ? DSC_CKPT_MASTER
                                 : names_shared(&reader->manifest.state, tensor->name)   ? DSC_CKPT_ROWS
                                 : names_absmax(&reader->manifest.state, tensor->name)   ? DSC_CKPT_ABSMAX1
                                 : names_beside(&reader->manifest.state, tensor->name) ? DSC_CKPT_AVERAGE
                                                                                         : DSC_CKPT_MOMENT1;
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
    return tensor->file == DSC_CKPT_OPTIMIZER ? check_state_shape(reader, entry, err) : DSC_OK;
}

/* Weights that files have in parts with names of their own are one tensor in the manifest. */
static dsc_status unite_parts(dsc_ckpt_reader *reader, dsc_error *err)
{
    DSC_ASSERT(reader->file[DSC_CKPT_MODEL] != NULL);
    for (int64_t t = 0; t < reader->manifest.tensor_count; t++) {
        const dsc_ckpt_manifest_tensor *tensor = &reader->manifest.tensor[t];
        if (tensor->file == DSC_CKPT_MODEL)
            DSC_TRY(dsc_safetensors_unite(reader->file[DSC_CKPT_MODEL], tensor->name, err));
    }
    return DSC_OK;
}

/* Every tensor of the manifest is in its file, and no file has another. */
static dsc_status cross_check(dsc_ckpt_reader *reader, dsc_error *err)
{
    int64_t in_files = 0;
    DSC_TRY(unite_parts(reader, err));
    for (int f = 0; f < DSC_CKPT_TENSOR_FILE_COUNT; f++) {
        const int64_t count = dsc_safetensors_count(reader->file[f]);
        DSC_ASSERT(reader->tensor_of[f] == NULL);
        DSC_TRY(check_cover(reader, f, err));
        DSC_TRY(dsc_alloc_zeroed(reader->alloc, DSC_TAG_IO, count, sizeof(int64_t), &reader->tensor_of[f], err));
        for (int64_t i = 0; i < count; i++)
            reader->tensor_of[f][i] = -1;
        in_files += count;
    }
    if (in_files != reader->manifest.tensor_count)
        return DSC_FAIL(err, DSC_ERR_INPUT, dsc_safetensors_path(reader->file[DSC_CKPT_MODEL]),
                        "the files hold %lld "
                        "tensors, the manifest lists %lld",
                        (long long)in_files, (long long)reader->manifest.tensor_count);
    for (int64_t t = 0; t < reader->manifest.tensor_count; t++)
        DSC_TRY(match_tensor(reader, t, err));
    return DSC_OK;
}

static bool ends_with(const char *name, const char *end)
{
    const size_t bytes = strlen(name), end_bytes = strlen(end);
    return bytes >= end_bytes && strcmp(name + bytes - end_bytes, end) == 0;
}

/* Other programs take every shard of a folder for a part of the model, and its config for the model's. So one that the
 * manifest does not vouch for is not left unsaid. Notes and tokenizers beside them are nobody's business. */
static bool is_stranger(const dsc_ckpt_reader *reader, const char *name)
{
    DSC_ASSERT(!reader->far); /* its folder is here */
    for (int f = 0; f < DSC_CKPT_FILE_COUNT; f++)
        if (strcmp(name, dsc_ckpt_file_name[f]) == 0)
            return reader->manifest.file[f].bytes < 0;
    return ends_with(name, ".safetensors") || ends_with(name, ".safetensors.index.json");
}

static dsc_status check_folder(const dsc_io *io, const char *step_dir, const dsc_ckpt_reader *reader, dsc_error *err)
{
    char **names = NULL, path[DSC_CKPT_PATH_BYTES];
    int64_t count = 0;
    DSC_ASSERT(!reader->far);
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

/* Exports have weights and buffers in one list of names. */
static dsc_status open_buffers(const char *step_dir, dsc_ckpt_reader *reader, dsc_error *err)
{
    char path[DSC_CKPT_PATH_BYTES];
    const dsc_ckpt_file_info *info = &reader->manifest.file[DSC_CKPT_BUFFERS];
    DSC_ASSERT(reader->buffers.text == NULL);
    if (info->bytes < 0)
        return DSC_OK;
    DSC_TRY(dsc_ckpt_file_path(path, step_dir, dsc_ckpt_file_name[DSC_CKPT_BUFFERS], err));
    DSC_TRY(
        dsc_ckpt_buffer_file_open(&reader->buffers, reader->io, reader->alloc, path, info->bytes, info->sha256, err));
    for (int64_t i = 0; i < dsc_ckpt_buffer_file_count(&reader->buffers); i++) {
        const char *name = dsc_ckpt_buffer_file_at(&reader->buffers, i)->name;
        if (dsc_safetensors_find(reader->file[DSC_CKPT_MODEL], name) != NULL)
            return DSC_FAIL(err, DSC_ERR_INPUT, path,
                            "buffer \"%.200s\" is also a tensor of model.safetensors; use another checkpoint", name);
    }
    return DSC_OK;
}

dsc_status dsc_ckpt_reader_open(const dsc_io *io, dsc_alloc *alloc, const char *step_dir, dsc_ckpt_reader *out,
                                dsc_error *err)
{
    *out = (dsc_ckpt_reader) { .alloc = alloc, .io = io };
    DSC_TRY(dsc_ckpt_manifest_read(io, alloc, step_dir, &out->manifest, err));
    dsc_status status = check_folder(io, step_dir, out, err);
    if (status == DSC_OK)
        status = find_blocks(out, err);
    for (int f = 0; f < DSC_CKPT_FILE_COUNT && status == DSC_OK; f++)
        status = open_file(step_dir, out, f, err);
    if (status == DSC_OK)
        status = cross_check(out, err);
    if (status == DSC_OK)
        status = open_buffers(step_dir, out, err);
    if (status != DSC_OK)
        dsc_ckpt_reader_close(out);
    return status;
}

/* ---- without files ---- */

dsc_status dsc_ckpt_texts_read(const dsc_ckpt_reader *reader, const char *step_dir, dsc_ckpt_texts *out, dsc_error *err)
{
    char path[DSC_CKPT_PATH_BYTES];
    DSC_ASSERT(!reader->far);
    *out = (dsc_ckpt_texts) { .bytes = { 0 } };
    DSC_TRY(dsc_ckpt_file_path(path, step_dir, DSC_CKPT_MANIFEST_FILE, err));
    DSC_TRY(dsc_io_read_all(reader->io, reader->alloc, path, DSC_CKPT_MANIFEST_BYTES_MAX, &out->text[0], &out->bytes[0],
                            err));
    for (int f = 0; f < DSC_CKPT_TENSOR_FILE_COUNT; f++) {
        dsc_file file = DSC_FILE_INIT;
        char **head = &out->text[1 + f];
        const dsc_ckpt_file_info *info = &reader->manifest.file[f];
        out->bytes[1 + f] = info->head_bytes;
        DSC_TRY(dsc_alloc_zeroed(reader->alloc, DSC_TAG_IO, info->head_bytes, 1, head, err));
        DSC_TRY(dsc_ckpt_file_path(path, step_dir, dsc_ckpt_file_name[f], err));
        DSC_TRY(dsc_io_open(reader->io, path, DSC_IO_READ_ONLY, &file, err));
        const dsc_status status = check_head(reader->io, &file, info, *head, err);
        (void)dsc_io_close(reader->io, &file, NULL); /* only read: nothing can be lost */
        DSC_TRY(status);
    }
    return DSC_OK;
}

void dsc_ckpt_texts_close(dsc_ckpt_texts *texts, dsc_alloc *alloc)
{
    for (size_t i = 0; i < DSC_COUNT(texts->text); i++)
        dsc_alloc_free(alloc, texts->text[i]);
    *texts = (dsc_ckpt_texts) { .bytes = { 0 } };
}

static dsc_status open_head(dsc_ckpt_reader *reader, int f, const char *path, const dsc_ckpt_texts *texts,
                            dsc_error *err)
{
    DSC_ASSERT(f < DSC_CKPT_TENSOR_FILE_COUNT);
    DSC_ASSERT(reader->far);
    const dsc_ckpt_file_info *info = &reader->manifest.file[f];
    uint8_t digest[32];
    dsc_ckpt_sha256(texts->text[1 + f], texts->bytes[1 + f], digest);
    if (texts->bytes[1 + f] != info->head_bytes || memcmp(digest, info->sha256, sizeof digest) != 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, path, "came here with another header than the manifest's");
    return dsc_safetensors_parse(&reader->file[f], reader->alloc, path, texts->text[1 + f], info->head_bytes,
                                 info->bytes, err);
}

dsc_status dsc_ckpt_reader_open_texts(dsc_alloc *alloc, const char *step_dir, const dsc_ckpt_texts *texts,
                                      dsc_ckpt_reader *out, dsc_error *err)
{
    char path[DSC_CKPT_PATH_BYTES];
    *out = (dsc_ckpt_reader) { .alloc = alloc, .far = true };
    DSC_TRY(dsc_path_join(path, sizeof path, step_dir, DSC_CKPT_MANIFEST_FILE, err));
    DSC_TRY(dsc_ckpt_manifest_parse(alloc, path, texts->text[0], texts->bytes[0], &out->manifest, err));
    dsc_status status = find_blocks(out, err);
    for (int f = 0; f < DSC_CKPT_TENSOR_FILE_COUNT && status == DSC_OK; f++) {
        status = dsc_path_join(path, sizeof path, step_dir, dsc_ckpt_file_name[f], err);
        if (status == DSC_OK)
            status = open_head(out, f, path, texts, err);
    }
    if (status == DSC_OK)
        status = cross_check(out, err);
    if (status != DSC_OK)
        dsc_ckpt_reader_close(out);
    return status;
}

dsc_status dsc_ckpt_refuse_part(const dsc_ckpt_reader *reader, const char *step_dir, dsc_error *err)
{
    const dsc_ckpt_parts *parts = &reader->manifest.parts;
    if (parts->count == 1)
        return DSC_OK;
    DSC_ASSERT(parts->index < parts->count);
    return DSC_FAIL(err, DSC_ERR_INPUT, step_dir, "is part %d of %d of a checkpoint, that of host %s; a run with "
                    "checkpoint.use_node_local_storage loads it from all its hosts, for all else put the parts "
                    "together: dsc ckpt merge PART... --out FOLDER", (int)parts->index + 1, (int)parts->count,
                    parts->host[parts->index]);
}

void dsc_ckpt_reader_close(dsc_ckpt_reader *reader)
{
    for (int f = 0; f < DSC_CKPT_TENSOR_FILE_COUNT && reader->part != NULL; f++)
        (void)dsc_io_close(reader->io, &reader->part[f], NULL); /* only read: nothing can be lost */
    dsc_alloc_free(reader->alloc, reader->part);
    dsc_alloc_free(reader->alloc, reader->at);
    for (int f = 0; f < DSC_CKPT_TENSOR_FILE_COUNT; f++) {
        dsc_safetensors_close(&reader->file[f]);
        if (reader->tensor_of[f] != NULL)
            dsc_alloc_free(reader->alloc, reader->tensor_of[f]);
    }
    dsc_ckpt_buffer_file_close(&reader->buffers, reader->alloc);
    dsc_ckpt_manifest_close(&reader->manifest);
    *reader = (dsc_ckpt_reader) { 0 };
}

/* ---- reading ---- */

const dsc_safetensors_entry *dsc_ckpt_reader_find(const dsc_ckpt_reader *reader, dsc_ckpt_plane plane,
                                                  const char *hf_name, const dsc_ckpt_manifest_tensor **tensor)
{
    char name[DSC_CKPT_NAME_BYTES];
    const int f = plane == DSC_CKPT_WEIGHTS ? DSC_CKPT_MODEL : DSC_CKPT_OPTIMIZER;
    DSC_ASSERT(reader->file[f] != NULL);
    if (!dsc_ckpt_is_saved(&reader->manifest.state, plane, true))
        return NULL;
    const dsc_safetensors_entry *entry =
        dsc_safetensors_find(reader->file[f], dsc_ckpt_stored_name(&reader->manifest.state, plane, hf_name, name));
    if (tensor != NULL && entry != NULL)
        *tensor = &reader->manifest.tensor[reader->tensor_of[f][entry - dsc_safetensors_at(reader->file[f], 0)]];
    return entry;
}

dsc_status dsc_ckpt_reader_f32(const dsc_ckpt_reader *reader, dsc_ckpt_plane plane, const char *hf_name, int64_t first,
                               int64_t count, float *out, dsc_error *err)
{
    enum { BLOCKS = DSC_CKPT_BLOCK_BYTES / 4 / DSC_Q8_BLOCK };
    const dsc_safetensors *file = reader->file[plane == DSC_CKPT_WEIGHTS ? DSC_CKPT_MODEL : DSC_CKPT_OPTIMIZER];
    const dsc_safetensors_entry *entry = dsc_ckpt_reader_find(reader, plane, hf_name, NULL);
    float absmax[BLOCKS];
    DSC_ASSERT(entry != NULL && first % DSC_Q8_BLOCK == 0);
    DSC_ASSERT(count <= (int64_t)BLOCKS * DSC_Q8_BLOCK);
    if (entry->desc.dtype != DSC_U8)
        return dsc_safetensors_read_f32(file, entry, first, count, out, err);
    const int32_t moment = (int32_t)(plane - DSC_CKPT_MOMENT1);
    DSC_ASSERT(moment >= 0 && moment < DSC_UPDATE_STATES_U8); /* of AdamW, as the manifest was read */
    const dsc_safetensors_entry *scales =
        dsc_ckpt_reader_find(reader, (dsc_ckpt_plane)(DSC_CKPT_ABSMAX1 + moment), hf_name, NULL);
    if (scales == NULL)
        return DSC_FAIL(err, DSC_ERR_INPUT, dsc_safetensors_path(file),
                        "tensor \"%.200s\" has codes without an "
                        "absmax; use another checkpoint",
                        entry->name);
    DSC_TRY(
        dsc_safetensors_read_f32(file, scales, first / DSC_Q8_BLOCK, dsc_div_ceil(count, DSC_Q8_BLOCK), absmax, err));
    /* Codes are read into the last quarter of `out`, and widened from its start. */
    uint8_t *const code = (uint8_t *)out + count * 3;
    DSC_TRY(dsc_safetensors_read_bytes(file, entry, first, count, code, err));
    dsc_q8_values(moment, code, absmax, count, out);
    return DSC_OK;
}

int64_t dsc_ckpt_reader_offset(const dsc_ckpt_reader *reader, const dsc_ckpt_block *block)
{
    DSC_ASSERT(dsc_ckpt_reader_has(reader, block));
    const dsc_ckpt_manifest_tensor *tensor = &reader->manifest.tensor[block->entry];
    if (reader->at != NULL)
        return reader->at[block - reader->manifest.block];
    return dsc_safetensors_find(reader->file[tensor->file], tensor->name)->offset +
           block->first * (int64_t)dsc_dtype_bytes(tensor->dtype);
}

dsc_status dsc_ckpt_reader_block(const dsc_ckpt_reader *reader, const dsc_ckpt_block *block, void *buffer,
                                 dsc_error *err)
{
    const dsc_ckpt_manifest_tensor *tensor = &reader->manifest.tensor[block->entry];
    const dsc_safetensors *file = reader->file[tensor->file];
    const int64_t each = (int64_t)dsc_dtype_bytes(tensor->dtype), bytes = block->count * each;
    DSC_ASSERT(bytes <= DSC_CKPT_BLOCK_BYTES);
    DSC_ASSERT(dsc_ckpt_reader_has(reader, block));
    if (reader->part != NULL)
        DSC_TRY(dsc_io_read(reader->io, &reader->part[tensor->file], buffer, bytes,
                            dsc_ckpt_reader_offset(reader, block), err));
    else
        DSC_TRY(dsc_safetensors_read_bytes(file, dsc_safetensors_find(file, tensor->name), block->first * each, bytes,
                                           buffer, err));
    return dsc_ckpt_reader_check(reader, block, buffer, err);
}

dsc_status dsc_ckpt_reader_check(const dsc_ckpt_reader *reader, const dsc_ckpt_block *block, const void *data,
                                 dsc_error *err)
{
    const dsc_ckpt_manifest_tensor *tensor = &reader->manifest.tensor[block->entry];
    const int64_t bytes = block->count * (int64_t)dsc_dtype_bytes(tensor->dtype);
    DSC_ASSERT(block->entry < reader->manifest.tensor_count);
    DSC_ASSERT(block->first + block->count <= tensor->elements);
    const dsc_hash128 hash = dsc_ckpt_block_hash(tensor->name, block, reader->manifest.state.step, data, bytes);
    if (hash.low != block->hash.low || hash.high != block->hash.high)
        return DSC_FAIL(err, DSC_ERR_INPUT, dsc_safetensors_path(reader->file[tensor->file]),
                        "tensor \"%.200s\" is damaged at elements %lld to %lld (hash differs from the manifest's); use "
                        "another checkpoint", tensor->name, (long long)block->first,
                        (long long)(block->first + block->count - 1));
    return DSC_OK;
}

void dsc_ckpt_reader_expect(const dsc_ckpt_reader *reader, const dsc_ckpt_block *block)
{
    DSC_ASSERT(dsc_ckpt_reader_has(reader, block));
    const dsc_ckpt_manifest_tensor *tensor = &reader->manifest.tensor[block->entry];
    const dsc_safetensors *file = reader->file[tensor->file];
    const int64_t each = (int64_t)dsc_dtype_bytes(tensor->dtype);
    if (reader->part != NULL)
        dsc_io_expect(&reader->part[tensor->file], block->count * each, dsc_ckpt_reader_offset(reader, block));
    else
        dsc_safetensors_expect(file, dsc_safetensors_find(file, tensor->name), block->first * each,
                               block->count * each);
}
