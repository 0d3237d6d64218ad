/* carried.c - tensors that a checkpoint keeps for its exports alone, and companions compared with their hashes.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "engine/checkpoint/internal.h"

#define PIECE_BYTES 65536

/* Bytes that are written in order, each at an offset not before the last one's end, and their hash with it. */
typedef struct output {
    const dsc_io *io;
    dsc_file file;
    int64_t at;
    dsc_sha256 sha;
    char block[PIECE_BYTES];
} output;

static dsc_status put(output *o, const char *data, int64_t bytes, dsc_error *err)
{
    DSC_ASSERT(bytes >= 0);
    DSC_TRY(dsc_io_write(o->io, &o->file, data, bytes, o->at, err));
    dsc_sha256_update(&o->sha, data, (size_t)bytes);
    o->at += bytes;
    return DSC_OK;
}

static dsc_status put_from(output *o, const char *path, int64_t from, int64_t bytes, dsc_error *err)
{
    dsc_file file = DSC_FILE_INIT;
    DSC_ASSERT(from >= 0);
    DSC_TRY(dsc_io_open(o->io, path, DSC_IO_READ_ONLY, &file, err));
    dsc_status status = DSC_OK;
    for (int64_t done = 0; done < bytes && status == DSC_OK; done += PIECE_BYTES) {
        const int64_t count = dsc_min_i64(PIECE_BYTES, bytes - done);
        status = dsc_io_read(o->io, &file, o->block, count, from + done, err);
        if (status == DSC_OK)
            status = put(o, o->block, count, err);
    }
    (void)dsc_io_close(o->io, &file, NULL); /* only read: nothing can be lost */
    return status;
}

static dsc_status put_all(output *o, const dsc_model_carried *carried, dsc_error *err)
{
    DSC_TRY(put(o, carried->header, carried->header_bytes, err));
    for (int64_t i = 0; i < carried->piece_count; i++) {
        const dsc_model_piece *piece = &carried->piece[i];
        DSC_ASSERT(piece->to == o->at); /* safetensors has no holes */
        DSC_TRY(put_from(o, piece->path, piece->from, piece->bytes, err));
    }
    DSC_ASSERT(o->at == carried->file_bytes);
    return dsc_io_fsync(o->io, &o->file, err);
}

dsc_status dsc_ckpt_write_carried(const dsc_io *io, const dsc_model_carried *carried, const char *to,
                                  dsc_ckpt_companion_list *list, dsc_error *err)
{
    char path[DSC_CKPT_PATH_BYTES];
    output o = { .io = io, .file = DSC_FILE_INIT };
    uint8_t digest[32];
    if (carried == NULL)
        return DSC_OK;
    DSC_ASSERT(carried->piece_count > 0);
    dsc_sha256_init(&o.sha);
    DSC_TRY(dsc_path_join(path, sizeof path, to, DSC_MODEL_CARRIED_FILE, err));
    DSC_TRY(dsc_io_open(io, path, DSC_IO_CREATE_NEW, &o.file, err));
    const dsc_status status = put_all(&o, carried, err);
    const dsc_status closed = dsc_io_close(io, &o.file, status == DSC_OK ? err : NULL);
    dsc_sha256_final(&o.sha, digest);
    if (status == DSC_OK && closed == DSC_OK)
        dsc_ckpt_companion_add(list, DSC_MODEL_CARRIED_FILE, digest);
    return status != DSC_OK ? status : closed;
}

dsc_status dsc_ckpt_copy_carried(const dsc_io *io, const char *from, const char *to, dsc_error *err)
{
    char path[DSC_CKPT_PATH_BYTES];
    dsc_file file = DSC_FILE_INIT;
    int64_t bytes = 0;
    DSC_ASSERT(from[0] != 0);
    DSC_TRY(dsc_ckpt_file_path(path, from, DSC_MODEL_CARRIED_FILE, err));
    if (dsc_io_kind(path) != DSC_PATH_FILE)
        return DSC_OK;
    DSC_TRY(dsc_io_open(io, path, DSC_IO_READ_ONLY, &file, err));
    const dsc_status status = dsc_io_size(io, &file, &bytes, err);
    (void)dsc_io_close(io, &file, NULL); /* only read: nothing can be lost */
    DSC_TRY(status);
    const dsc_model_piece all = { .path = path, .bytes = bytes };
    const dsc_model_carried carried = { .header = "", .piece = &all, .piece_count = 1, .file_bytes = bytes };
    return dsc_ckpt_write_carried(io, &carried, to, NULL, err);
}

/* ---- verification ---- */

static dsc_status hash_file(const dsc_io *io, const char *path, char hex[65], dsc_error *err)
{
    char block[PIECE_BYTES];
    dsc_file file = DSC_FILE_INIT;
    dsc_sha256 sha;
    uint8_t digest[32];
    int64_t bytes = 0;
    dsc_sha256_init(&sha);
    DSC_TRY(dsc_io_open(io, path, DSC_IO_READ_ONLY, &file, err));
    dsc_status status = dsc_io_size(io, &file, &bytes, err);
    for (int64_t at = 0; at < bytes && status == DSC_OK; at += PIECE_BYTES) {
        const int64_t count = dsc_min_i64(PIECE_BYTES, bytes - at);
        DSC_ASSERT(count > 0);
        status = dsc_io_read(io, &file, block, count, at, err);
        if (status == DSC_OK)
            dsc_sha256_update(&sha, block, (size_t)count);
    }
    (void)dsc_io_close(io, &file, NULL); /* only read: nothing can be lost */
    dsc_sha256_final(&sha, digest);
    dsc_hex(hex, digest, sizeof digest);
    return status;
}

/* "<64 hex digits>  <name>": *name is NULL for another line. */
static const char *name_of(char *line)
{
    DSC_ASSERT(line != NULL);
    const bool good = strlen(line) > 66 && strspn(line, "0123456789abcdef") == 64 && line[64] == ' ' &&
                      line[65] == ' ' && dsc_path_is_plain(line + 66);
    return good ? line + 66 : NULL;
}

/* *found: the line is of the wanted file. */
static dsc_status check_line(const dsc_io *io, const char *step_dir, char *line, const char *wanted, bool *found,
                             dsc_error *err)
{
    char path[DSC_CKPT_PATH_BYTES], hex[65];
    const char *name = name_of(line);
    if (name == NULL)
        return DSC_FAIL(err, DSC_ERR_INPUT, step_dir,
                        "%s has a line without a hash and the name of a file; take this checkpoint from a backup",
                        dsc_ckpt_file_name[DSC_CKPT_COMPANIONS]);
    DSC_ASSERT(name == line + 66);
    if (wanted != NULL && strcmp(name, wanted) != 0)
        return DSC_OK;
    *found = true;
    DSC_TRY(dsc_ckpt_file_path(path, step_dir, name, err));
    if (dsc_io_kind(path) != DSC_PATH_FILE)
        return DSC_FAIL(err, DSC_ERR_INPUT, path, "is missing, and %s lists it; the weights are good, so copy the file "
                        "from the model's folder", dsc_ckpt_file_name[DSC_CKPT_COMPANIONS]);
    DSC_TRY(hash_file(io, path, hex, err));
    if (strncmp(hex, line, 64) == 0)
        return DSC_OK;
    return DSC_FAIL(err, DSC_ERR_INPUT, path, "is damaged or was edited: its SHA-256 differs from that in %s; the "
                    "weights are good, so copy the file from the model's folder",
                    dsc_ckpt_file_name[DSC_CKPT_COMPANIONS]);
}

dsc_status dsc_ckpt_check_companions(const dsc_io *io, dsc_alloc *alloc, const char *step_dir, const char *name,
                                     dsc_error *err)
{
    char path[DSC_CKPT_PATH_BYTES], *text = NULL;
    int64_t bytes = 0;
    bool found = name == NULL;
    DSC_TRY(dsc_ckpt_file_path(path, step_dir, dsc_ckpt_file_name[DSC_CKPT_COMPANIONS], err));
    const bool listed = dsc_io_kind(path) != DSC_PATH_MISSING; /* an older checkpoint has no list */
    if (listed)
        DSC_TRY(dsc_io_read_all(io, alloc, path, DSC_CKPT_SMALL_BYTES_MAX, &text, &bytes, err));
    dsc_status status = DSC_OK;
    char *next = NULL;
    DSC_ASSERT(bytes >= 0);
    for (char *line = listed ? strtok_r(text, "\n", &next) : NULL; line != NULL && status == DSC_OK;
         line = strtok_r(NULL, "\n", &next))
        status = check_line(io, step_dir, line, name, &found, err);
    dsc_alloc_free(alloc, text);
    if (status == DSC_OK && !found)
        return DSC_FAIL(err, DSC_ERR_INPUT, step_dir, "\"%.100s\" is there, and %s does not list it; move it away",
                        name, dsc_ckpt_file_name[DSC_CKPT_COMPANIONS]);
    return status;
}
