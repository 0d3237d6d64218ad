/* token_file.c - see token_file.h. Files are read with pread, never mapped: a file that shrinks under a run is an error
 * line, not a signal. SPDX-License-Identifier: Apache-2.0 */
#include "engine/data/token_file.h"

#include <stdio.h>
#include <string.h>

#include "engine/text/content.h"

#define SCAN_BLOCK_BYTES (1 << 19) /* stays in the second-level cache between the read and the maximum */

static bool ends_with(const char *text, const char *end)
{
    const size_t a = strlen(text), b = strlen(end);
    return a >= b && strcmp(text + a - b, end) == 0;
}

/* ---- Kinds ---- */

static dsc_status open_llmc(const dsc_io *io, dsc_token_file *file, int64_t bytes, dsc_error *err)
{
    int32_t header[3] = { 0 };
    if (bytes < (int64_t)sizeof header)
        return DSC_FAIL(err, DSC_ERR_INPUT, file->file.path, "truncated: %lld bytes is shorter than a llm.c header",
                        (long long)bytes);
    DSC_TRY(dsc_io_read(io, &file->file, header, (int64_t)sizeof header, 0, err));
    const bool wide = header[0] == DSC_LLMC_MAGIC_U32;
    const int32_t version = wide ? DSC_LLMC_VERSION_U32 : DSC_LLMC_VERSION_U16;
    if (header[0] != DSC_LLMC_MAGIC_U16 && !wide)
        return DSC_FAIL(err, DSC_ERR_INPUT, file->file.path,
                        "magic number %d; a llm.c token file starts with %d (uint16) or %d (uint32)", (int)header[0],
                        DSC_LLMC_MAGIC_U16, DSC_LLMC_MAGIC_U32);
    if (header[1] != version)
        return DSC_FAIL(err, DSC_ERR_INPUT, file->file.path, "llm.c token file of version %d; expected %d",
                        (int)header[1], (int)version);
    file->token_bytes = wide ? 4 : 2;
    const int64_t capacity = bytes < DSC_LLMC_HEADER_BYTES ? 0 : (bytes - DSC_LLMC_HEADER_BYTES) / file->token_bytes;
    if (bytes < DSC_LLMC_HEADER_BYTES || header[2] < 0 || capacity < header[2])
        return DSC_FAIL(err, DSC_ERR_INPUT, file->file.path,
                        "truncated: the header says %d tokens, the file has room for %lld", (int)header[2],
                        (long long)capacity);
    const int64_t behind = bytes - DSC_LLMC_HEADER_BYTES - file->token_bytes * (int64_t)header[2];
    if (behind != 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, file->file.path,
                        "%lld bytes after the %d tokens of the header; expected none", (long long)behind,
                        (int)header[2]);
    file->header_bytes = DSC_LLMC_HEADER_BYTES;
    file->token_count = header[2];
    return DSC_OK;
}

static dsc_status open_raw(dsc_token_file *file, int64_t bytes, dsc_error *err)
{
    if (bytes % 2 != 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, file->file.path,
                        "%lld bytes is not a whole number of uint16 tokens (truncated?)", (long long)bytes);
    file->token_bytes = 2;
    file->token_count = bytes / 2;
    return DSC_OK;
}

/* A picture or an archive is refused by its first bytes; a later control byte is an ordinary token. */
static dsc_status check_text_start(const dsc_io *io, const char *path, dsc_error *err)
{
    dsc_content content;
    DSC_TRY(dsc_content_detect(io, path, "text", &content, err));
    if (content.packed)
        return DSC_FAIL(err, DSC_ERR_INPUT, path,
                        "a compressed text has no tokens at fixed places; give the text "
                        "itself (gunzip -k FILE, zstd -d FILE), or tokenize it: dsc data tokenize");
    return dsc_content_refuse(&content, path, err);
}

/* A format with a mark of its own is not a list of ids, whatever its name. */
static dsc_status refuse_marked(const dsc_io *io, dsc_token_file *file, int64_t bytes, dsc_error *err)
{
    char start[512];
    dsc_content content;
    const int64_t count = dsc_min_i64(bytes, (int64_t)sizeof start);
    DSC_TRY(dsc_io_read(io, &file->file, start, count, 0, err));
    if (!dsc_content_has_mark(start, count, true, &content))
        return DSC_OK;
    return dsc_content_refuse(&content, file->file.path, err);
}

/* The index first: it says what the tokens are. */
static dsc_status open_mmidx(const dsc_io *io, const char *index_path, dsc_token_file *file, dsc_error *err)
{
    char path[sizeof file->file.path];
    const size_t bytes = strlen(index_path);
    int64_t data_bytes = 0;
    if (!ends_with(index_path, ".idx") || bytes >= sizeof path)
        return DSC_FAIL(err, DSC_ERR_INPUT, index_path, "Megatron's data are PREFIX.idx with PREFIX.bin beside it");
    DSC_TRY(dsc_token_index_open(io, index_path, &file->index, err));
    file->token_bytes = file->index.token_bytes;
    file->token_count = file->index.token_count;
    snprintf(path, sizeof path, "%.*s.bin", (int)bytes - 4, index_path);
    DSC_TRY(dsc_io_open(io, path, DSC_IO_READ_ONLY, &file->file, err));
    DSC_TRY(dsc_io_size(io, &file->file, &data_bytes, err));
    if (data_bytes != file->token_count * file->token_bytes)
        return DSC_FAIL(err, DSC_ERR_INPUT, path, "%lld bytes; its index says %lld tokens of %lld bytes",
                        (long long)data_bytes, (long long)file->token_count, (long long)file->token_bytes);
    return DSC_OK;
}

dsc_status dsc_token_file_open_as(const dsc_io *io, const char *path, dsc_token_kind kind, dsc_token_file *file,
                                  dsc_error *err)
{
    int64_t bytes = 0;
    *file = (dsc_token_file)DSC_TOKEN_FILE_INIT;
    file->kind = kind;
    file->token_bytes = 1;
    if (kind == DSC_TOKENS_MMIDX)
        return open_mmidx(io, path, file, err);
    DSC_TRY(dsc_io_open(io, path, DSC_IO_READ_ONLY, &file->file, err));
    DSC_TRY(dsc_io_size(io, &file->file, &bytes, err));
    if (kind == DSC_TOKENS_RAW_U16) {
        DSC_TRY(refuse_marked(io, file, bytes, err));
        return open_raw(file, bytes, err);
    }
    if (kind == DSC_TOKENS_LLMC)
        return open_llmc(io, file, bytes, err);
    file->token_count = bytes;
    return check_text_start(io, path, err);
}

/* "PREFIX" and `ending` in place of `from`, when such a file is there. */
static bool beside(const char *path, const char *from, const char *ending, char *out, size_t out_bytes)
{
    const size_t keep = strlen(path) - strlen(from);
    return ends_with(path, from) && (size_t)snprintf(out, out_bytes, "%.*s%s", (int)keep, path, ending) < out_bytes &&
           dsc_io_kind(out) == DSC_PATH_FILE;
}

static bool has_index(const char *path, char *index, size_t index_bytes)
{
    return beside(path, ".bin", ".idx", index, index_bytes) ||
           (dsc_io_kind(path) == DSC_PATH_MISSING && beside(path, "", ".idx", index, index_bytes));
}

static dsc_status refuse_folder(const char *path, dsc_error *err)
{
    return dsc_io_kind(path) == DSC_PATH_DIR
               ? DSC_FAIL(err, DSC_ERR_INPUT, path, "is a folder; give the data files themselves")
               : DSC_OK;
}

/* Bytes of JSON or of a table would be learned with their braces and commas. */
static dsc_status refuse_documents(const dsc_io *io, const char *path, dsc_error *err)
{
    dsc_content content;
    if (dsc_io_kind(path) != DSC_PATH_FILE)
        return DSC_OK;
    DSC_TRY(dsc_content_detect(io, path, "text", &content, err));
    const char *const form = content.kind == DSC_CONTENT_JSON_LINES  ? "JSON, an object on each line"
                             : content.kind == DSC_CONTENT_JSON_LIST ? "a JSON list"
                             : content.kind == DSC_CONTENT_TABLE     ? "a table"
                                                                     : NULL;
    if (form == NULL)
        return DSC_OK;
    return DSC_FAIL(err, DSC_ERR_INPUT, path,
                    "the content is %s: documents need a tokenizer; give --tokenizer DIR, or "
                    "a --model folder that has a tokenizer.json",
                    form);
}

bool dsc_token_path_is_text(const char *path)
{
    char index[1024];
    return dsc_io_kind(path) == DSC_PATH_FILE && !ends_with(path, ".bin") && !ends_with(path, ".idx") &&
           !has_index(path, index, sizeof index);
}

static dsc_status open_any(const dsc_io *io, const char *path, dsc_token_file *file, dsc_error *err)
{
    char index[sizeof file->file.path];
    int32_t magic = 0;
    int64_t bytes = 0;
    *file = (dsc_token_file)DSC_TOKEN_FILE_INIT;
    DSC_TRY(refuse_folder(path, err));
    if (ends_with(path, ".idx"))
        return dsc_token_file_open_as(io, path, DSC_TOKENS_MMIDX, file, err);
    if (has_index(path, index, sizeof index))
        return dsc_token_file_open_as(io, index, DSC_TOKENS_MMIDX, file, err);
    if (!ends_with(path, ".bin")) {
        DSC_TRY(refuse_documents(io, path, err));
        return dsc_token_file_open_as(io, path, DSC_TOKENS_TEXT, file, err);
    }
    DSC_TRY(dsc_io_open(io, path, DSC_IO_READ_ONLY, &file->file, err));
    DSC_TRY(dsc_io_size(io, &file->file, &bytes, err));
    if (bytes >= 4)
        DSC_TRY(dsc_io_read(io, &file->file, &magic, 4, 0, err));
    DSC_TRY(dsc_io_close(io, &file->file, err));
    const bool llmc = magic == DSC_LLMC_MAGIC_U16 || magic == DSC_LLMC_MAGIC_U32;
    return dsc_token_file_open_as(io, path, llmc ? DSC_TOKENS_LLMC : DSC_TOKENS_RAW_U16, file, err);
}

dsc_status dsc_token_file_open(const dsc_io *io, const char *path, dsc_token_file *file, dsc_error *err)
{
    DSC_TRY(open_any(io, path, file, err));
    return dsc_io_size(io, &file->file, &file->file_bytes, err);
}

void dsc_token_file_pause(const dsc_io *io, dsc_token_file *file)
{
    dsc_token_index_close(io, &file->index);
    (void)dsc_io_close(io, &file->file, NULL); /* only read: nothing can be lost */
}

dsc_status dsc_token_file_resume(const dsc_io *io, dsc_token_file *file, dsc_error *err)
{
    char path[sizeof file->file.path];
    int64_t bytes = 0;
    snprintf(path, sizeof path, "%s", file->file.path);
    DSC_TRY(dsc_io_open(io, path, DSC_IO_READ_ONLY, &file->file, err));
    DSC_TRY(dsc_io_size(io, &file->file, &bytes, err));
    if (bytes != file->file_bytes)
        return DSC_FAIL(err, DSC_ERR_INPUT, path,
                        "%lld bytes; it had %lld when the run began: data must not change "
                        "while a run reads it",
                        (long long)bytes, (long long)file->file_bytes);
    if (file->kind != DSC_TOKENS_MMIDX)
        return DSC_OK;
    snprintf(path, sizeof path, "%s", file->index.file.path);
    return dsc_io_open(io, path, DSC_IO_READ_ONLY, &file->index.file, err);
}

void dsc_token_file_close(const dsc_io *io, dsc_token_file *file)
{
    dsc_token_index_close(io, &file->index);
    (void)dsc_io_close(io, &file->file, NULL);
}

/* ---- Ids ---- */

static int32_t token_at(const dsc_token_file *file, const void *tokens, int64_t i)
{
    uint16_t narrow;
    int32_t wide;
    if (file->token_bytes == 1)
        return ((const uint8_t *)tokens)[i];
    if (file->token_bytes == 2) {
        memcpy(&narrow, (const char *)tokens + 2 * i, sizeof narrow);
        return narrow;
    }
    memcpy(&wide, (const char *)tokens + 4 * i, sizeof wide);
    return wide;
}

/* Read into the end of `out` and widened from its beginning, which never overtakes what is still to be read. */
dsc_status dsc_token_file_read(const dsc_io *io, dsc_token_file *file, int64_t first, int64_t count, int32_t *out,
                               dsc_error *err)
{
    char *const narrow = (char *)out + count * ((int64_t)sizeof *out - file->token_bytes);
    DSC_TRY(dsc_io_read(io, &file->file, narrow, count * file->token_bytes,
                        file->header_bytes + first * file->token_bytes, err));
    for (int64_t i = 0; i < count && file->token_bytes < (int64_t)sizeof *out; i++) {
        const int32_t token = token_at(file, narrow, i);
        memcpy(&out[i], &token, sizeof token);
    }
    return DSC_OK;
}

dsc_status dsc_token_file_refuse(const dsc_token_file *file, int64_t vocab_size, int32_t token, int64_t position,
                                 dsc_error *err)
{
    if (file->name != NULL)
        return DSC_FAIL(err, DSC_ERR_INPUT, file->name,
                        "token %d, number %lld of this text, is outside the model's "
                        "vocabulary of %lld: the tokenizer has more tokens than the model; give the model's own "
                        "tokenizer, or add rows with dsc.grow_vocab",
                        (int)token, (long long)position + 1, (long long)vocab_size);
    return DSC_FAIL(err, DSC_ERR_INPUT, file->file.path,
                    "token %d at position %lld is outside the model's vocabulary of %lld; the file was made for "
                    "another tokenizer, or is damaged", (int)token, (long long)position, (long long)vocab_size);
}

/* A maximum without a branch, which the compiler turns into vector instructions. A negative id is a large one. */
static uint32_t largest_token(const dsc_token_file *file, const void *tokens, int64_t count)
{
    const uint8_t *bytes = tokens;
    const uint16_t *words = tokens;
    const uint32_t *wide = tokens;
    uint8_t byte = 0;
    uint16_t word = 0;
    uint32_t most = 0;
    for (int64_t i = 0; file->token_bytes == 1 && i < count; i++)
        byte = bytes[i] > byte ? bytes[i] : byte;
    for (int64_t i = 0; file->token_bytes == 2 && i < count; i++)
        word = words[i] > word ? words[i] : word;
    for (int64_t i = 0; file->token_bytes == 4 && i < count; i++)
        most = wide[i] > most ? wide[i] : most;
    return file->token_bytes == 1 ? byte : file->token_bytes == 2 ? word : most;
}

dsc_status dsc_token_file_scan(const dsc_io *io, dsc_token_file *file, int64_t vocab_size, dsc_data_buffer buffer,
                               int64_t *bytes, dsc_error *err)
{
    if (vocab_size >= INT64_C(1) << (8 * file->token_bytes))
        return DSC_OK;
    const int64_t tokens = dsc_min_i64(file->token_count, *bytes / file->token_bytes);
    const int64_t most = dsc_min_i64(SCAN_BLOCK_BYTES, buffer.bytes) / file->token_bytes;
    DSC_ASSERT(most > 0);
    *bytes -= tokens * file->token_bytes;
    for (int64_t first = 0; first < tokens; first += most) {
        const int64_t count = dsc_min_i64(most, tokens - first);
        DSC_TRY(dsc_io_read(io, &file->file, buffer.ptr, count * file->token_bytes,
                            file->header_bytes + first * file->token_bytes, err));
        if (largest_token(file, buffer.ptr, count) < vocab_size)
            continue;
        int64_t i = 0;
        while ((uint32_t)token_at(file, buffer.ptr, i) < vocab_size)
            i++;
        return dsc_token_file_refuse(file, vocab_size, token_at(file, buffer.ptr, i), first + i, err);
    }
    return DSC_OK;
}
