/* token_writer.c - see token_writer.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/data/token_writer.h"

#include <stdio.h>
#include <string.h>

#define INDEX_BLOCK 8192 /* entries written at once */

static dsc_status name_temporary(const char *path, char *out, size_t bytes, dsc_error *err)
{
    return (size_t)snprintf(out, bytes, "%s.tmp", path) < bytes
               ? DSC_OK
               : DSC_FAIL(err, DSC_ERR_INPUT, path, "the path is too long");
}

/* Megatron's names are PREFIX.bin and PREFIX.idx. */
static dsc_status name_index(dsc_token_writer *w, dsc_error *err)
{
    const size_t bytes = strlen(w->path);
    if (bytes < 5 || strcmp(w->path + bytes - 4, ".bin") != 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, w->path, "Megatron's data are named PREFIX.bin, with PREFIX.idx beside it");
    snprintf(w->index_path, sizeof w->index_path, "%.*s.idx", (int)bytes - 4, w->path);
    return DSC_OK;
}

dsc_status dsc_token_writer_open(dsc_alloc *alloc, const dsc_io *io, const char *path, dsc_token_format format,
                                 int64_t vocab_size, dsc_token_writer *w, dsc_error *err)
{
    const char header[DSC_LLMC_HEADER_BYTES] = { 0 };
    char temporary[1024];
    *w = (dsc_token_writer){ .alloc = alloc, .io = io, .format = format, .file = DSC_FILE_INIT,
                             .token_bytes = vocab_size <= 65536 ? 2 : 4, .wide = { .alloc = alloc },
                             .lengths = { .alloc = alloc } };
    if ((size_t)snprintf(w->path, sizeof w->path, "%s", path) >= sizeof w->path)
        return DSC_FAIL(err, DSC_ERR_INPUT, path, "the path is too long");
    if (format == DSC_TOKEN_RAW && w->token_bytes != 2)
        return DSC_FAIL(err, DSC_ERR_INPUT, path, "a vocabulary of %lld does not fit the uint16 of a file without a "
                        "header; give --format llmc or megatron", (long long)vocab_size);
    if (format == DSC_TOKEN_MEGATRON)
        DSC_TRY(name_index(w, err));
    DSC_TRY(name_temporary(w->path, temporary, sizeof temporary, err));
    DSC_TRY(dsc_io_open(io, temporary, DSC_IO_CREATE, &w->file, err));
    return format == DSC_TOKEN_LLMC ? dsc_io_write(io, &w->file, header, sizeof header, 0, err) : DSC_OK;
}

dsc_status dsc_token_writer_check(const char *path, dsc_token_format format, const char *const *inputs, int64_t count,
                                  dsc_error *err)
{
    dsc_token_writer w = { .format = format };
    char temporary[1024];
    if ((size_t)snprintf(w.path, sizeof w.path, "%s", path) >= sizeof w.path)
        return DSC_FAIL(err, DSC_ERR_INPUT, path, "the path is too long");
    if (format == DSC_TOKEN_MEGATRON)
        DSC_TRY(name_index(&w, err));
    const char *const files[] = { w.path, w.index_path };
    for (size_t i = 0; i < DSC_COUNT(files) && files[i][0] != 0; i++) {
        DSC_TRY(name_temporary(files[i], temporary, sizeof temporary, err));
        DSC_TRY(dsc_io_refuse_input(files[i], inputs, count, err));
        DSC_TRY(dsc_io_refuse_input(temporary, inputs, count, err));
    }
    return DSC_OK;
}

static int64_t header_bytes(const dsc_token_writer *w)
{
    return w->format == DSC_TOKEN_LLMC ? DSC_LLMC_HEADER_BYTES : 0;
}

static dsc_status end_documents(dsc_token_writer *w, const dsc_token_batch *batch, dsc_error *err)
{
    w->document_count += batch->end_count;
    for (int64_t i = 0; i < batch->end_count && w->format == DSC_TOKEN_MEGATRON; i++) {
        const int64_t end = w->token_count + batch->ends[i], length = end - w->document_start;
        if (length > INT32_MAX)
            return DSC_FAIL(err, DSC_ERR_INPUT, w->path, "a document of %lld tokens; an index holds at most %d",
                            (long long)length, INT32_MAX);
        DSC_TRY(dsc_ids_add(&w->lengths, (int32_t)length, err));
        w->document_start = end;
    }
    return DSC_OK;
}

dsc_status dsc_token_writer_add(dsc_token_writer *w, const dsc_token_batch *batch, dsc_error *err)
{
    const void *from = batch->ids;
    if (w->token_bytes == 2) {
        w->wide.bytes = 0;
        DSC_TRY(dsc_text_reserve(&w->wide, 2 * batch->count + 1, err));
        uint16_t *narrow = (uint16_t *)(void *)w->wide.ptr;
        for (int64_t i = 0; i < batch->count; i++)
            narrow[i] = (uint16_t)batch->ids[i];
        from = narrow;
    }
    DSC_TRY(dsc_io_write(w->io, &w->file, from, batch->count * w->token_bytes,
                         header_bytes(w) + w->token_count * w->token_bytes, err));
    DSC_TRY(end_documents(w, batch, err));
    w->token_count += batch->count;
    return DSC_OK;
}

/* ---- Megatron's index ---- */

typedef struct index_file {
    dsc_token_writer *writer;
    dsc_file file;
    int64_t at;
} index_file;

static dsc_status put(index_file *index, const void *from, int64_t bytes, dsc_error *err)
{
    DSC_TRY(dsc_io_write(index->writer->io, &index->file, from, bytes, index->at, err));
    index->at += bytes;
    return DSC_OK;
}

/* Byte offsets of the documents (tokens 1 to start with), or the numbers 0, 1, 2, ... */
static dsc_status put_counts(index_file *index, int64_t count, int64_t token_bytes, dsc_error *err)
{
    int64_t block[INDEX_BLOCK], value = 0;
    for (int64_t first = 0; first < count; first += INDEX_BLOCK) {
        const int64_t some = dsc_min_i64(INDEX_BLOCK, count - first);
        for (int64_t i = 0; i < some; i++) {
            block[i] = value;
            value += token_bytes > 0 ? index->writer->lengths.ptr[first + i] * token_bytes : 1;
        }
        DSC_TRY(put(index, block, some * (int64_t)sizeof *block, err));
    }
    return DSC_OK;
}

static dsc_status put_index(index_file *index, dsc_error *err)
{
    const dsc_token_writer *w = index->writer;
    const int64_t count = w->lengths.count, documents = count + 1, version = 1;
    const uint8_t code = w->token_bytes == 2 ? DSC_MMIDX_U16 : DSC_MMIDX_I32;
    DSC_TRY(put(index, DSC_MMIDX_MAGIC, DSC_MMIDX_MAGIC_BYTES, err));
    DSC_TRY(put(index, &version, 8, err));
    DSC_TRY(put(index, &code, 1, err));
    DSC_TRY(put(index, &count, 8, err));
    DSC_TRY(put(index, &documents, 8, err));
    DSC_TRY(put(index, w->lengths.ptr, count * (int64_t)sizeof *w->lengths.ptr, err));
    DSC_TRY(put_counts(index, count, w->token_bytes, err));
    DSC_TRY(put_counts(index, documents, 0, err));
    return dsc_io_fsync(w->io, &index->file, err);
}

/* Complete as FILE.tmp. */
static dsc_status write_index(dsc_token_writer *w, dsc_error *err)
{
    char temporary[1024];
    index_file index = { .writer = w, .file = DSC_FILE_INIT };
    DSC_TRY(name_temporary(w->index_path, temporary, sizeof temporary, err));
    DSC_TRY(dsc_io_open(w->io, temporary, DSC_IO_CREATE, &index.file, err));
    dsc_status status = put_index(&index, err);
    const dsc_status closed = dsc_io_close(w->io, &index.file, status == DSC_OK ? err : NULL);
    return status != DSC_OK ? status : closed;
}

static dsc_status write_llmc_header(dsc_token_writer *w, dsc_error *err)
{
    const bool wide = w->token_bytes == 4;
    const int32_t header[3] = { wide ? DSC_LLMC_MAGIC_U32 : DSC_LLMC_MAGIC_U16,
                                wide ? DSC_LLMC_VERSION_U32 : DSC_LLMC_VERSION_U16, (int32_t)w->token_count };
    if (w->token_count > INT32_MAX)
        return DSC_FAIL(err, DSC_ERR_INPUT, w->path, "%lld tokens; llm.c's header counts to %d: give fewer files at a "
                        "time, or --format megatron", (long long)w->token_count, INT32_MAX);
    return dsc_io_write(w->io, &w->file, header, sizeof header, 0, err);
}

static dsc_status rename_temporary(const dsc_token_writer *w, const char *path, dsc_error *err)
{
    char temporary[1024];
    DSC_TRY(name_temporary(path, temporary, sizeof temporary, err));
    return dsc_io_rename(w->io, temporary, path, err);
}

dsc_status dsc_token_writer_commit(dsc_token_writer *w, dsc_error *err)
{
    char folder[1000];
    if (w->format == DSC_TOKEN_LLMC)
        DSC_TRY(write_llmc_header(w, err));
    DSC_TRY(dsc_io_fsync(w->io, &w->file, err));
    DSC_TRY(dsc_io_close(w->io, &w->file, err));
    if (w->format == DSC_TOKEN_MEGATRON) {
        DSC_TRY(write_index(w, err));
        DSC_TRY(rename_temporary(w, w->index_path, err));
        w->index_path[0] = 0; /* nothing of it is left to remove */
    }
    DSC_TRY(rename_temporary(w, w->path, err));
    snprintf(folder, sizeof folder, "%s", w->path);
    char *slash = strrchr(folder, '/');
    if (slash != NULL)
        slash[slash == folder] = 0;
    w->path[0] = 0;
    return dsc_io_fsync_dir(w->io, slash != NULL ? folder : ".", err);
}

void dsc_token_writer_close(dsc_token_writer *w)
{
    char temporary[1024];
    const bool opened = w->file.path[0] != 0;
    (void)dsc_io_close(w->io, &w->file, NULL);
    const char *const paths[] = { w->path, w->index_path };
    for (size_t i = 0; i < DSC_COUNT(paths); i++)
        if (opened && paths[i][0] != 0 && name_temporary(paths[i], temporary, sizeof temporary, NULL) == DSC_OK)
            (void)!dsc_io_unlink(NULL, temporary, NULL);
    dsc_text_free(&w->wide);
    dsc_ids_free(&w->lengths);
}
