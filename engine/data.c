/* data.c - token files: what kind they are, how many samples they hold, and one sample's tokens.
 *
 * Files are read with pread, never mapped: a file that shrinks under a run is an error line, not a signal.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/data.h"

#include <string.h>

#include "base/rng.h"

#define LLMC_MAGIC 20240520
#define LLMC_HEADER_BYTES 1024
#define TEXT_PROBE_BYTES 65536
#define SCAN_BLOCK_BYTES (1 << 19) /* stays in the second-level cache between the read and the maximum */

typedef struct dsc_token_file {
    dsc_file file;
    dsc_token_kind kind;
    int64_t header_bytes, token_bytes; /* before the tokens; of one token */
    int64_t token_count, sample_count, first_sample;
} dsc_token_file;

struct dsc_data {
    dsc_data_options options;
    dsc_token_file *file;
    int32_t file_count;
    int64_t sample_count, token_count;
    uint16_t *window; /* [sequence + 1] */
};

static bool ends_with(const char *text, const char *end)
{
    const size_t a = strlen(text), b = strlen(end);
    return a >= b && strcmp(text + a - b, end) == 0;
}

static dsc_status open_llmc(dsc_token_file *file, const int32_t header[3], int64_t bytes, dsc_error *err)
{
    if (header[1] != 1)
        return DSC_FAIL(err, DSC_ERR_INPUT, file->file.path, "llm.c token file of version %d; expected 1",
                        (int)header[1]);
    if (bytes < LLMC_HEADER_BYTES || header[2] < 0 || (bytes - LLMC_HEADER_BYTES) / 2 < header[2])
        return DSC_FAIL(err, DSC_ERR_INPUT, file->file.path,
                        "truncated: the header says %d tokens, the file has room for %lld", (int)header[2],
                        (long long)(bytes < LLMC_HEADER_BYTES ? 0 : (bytes - LLMC_HEADER_BYTES) / 2));
    if (bytes != LLMC_HEADER_BYTES + 2 * (int64_t)header[2])
        return DSC_FAIL(err, DSC_ERR_INPUT, file->file.path,
                        "%lld bytes after the %d tokens of the header; expected none",
                        (long long)(bytes - LLMC_HEADER_BYTES - 2 * (int64_t)header[2]), (int)header[2]);
    file->header_bytes = LLMC_HEADER_BYTES;
    file->token_count = header[2];
    return DSC_OK;
}

static dsc_status open_raw(dsc_token_file *file, int64_t bytes, dsc_error *err)
{
    if (bytes % 2 != 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, file->file.path,
                        "%lld bytes is no whole number of uint16 tokens (truncated?)", (long long)bytes);
    file->token_count = bytes / 2;
    return DSC_OK;
}

/* Bytes of the UTF-8 sequence at text (room: what is left), 0 when it is none, -1 when the text ends inside it. */
static int utf8_bytes(const unsigned char *text, int64_t room)
{
    static const unsigned char lead_max[4] = { 0x7f, 0xdf, 0xef, 0xf4 };
    int extra = text[0] < 0x80 ? 0 : text[0] < 0xc2 ? -1 : text[0] <= lead_max[1] ? 1 : text[0] <= lead_max[2] ? 2
                : text[0] <= lead_max[3] ? 3 : -1;
    if (extra < 0)
        return 0;
    for (int i = 1; i <= extra; i++) {
        if (i >= room)
            return -1;
        if ((text[i] & 0xc0) != 0x80)
            return 0;
    }
    return extra + 1;
}

/* A picture or an archive named by mistake is told at its start; a stray byte later on is just a token. */
static dsc_status check_text_start(const dsc_io *io, dsc_token_file *file, int64_t bytes, dsc_error *err)
{
    unsigned char text[4096];
    const int64_t probe = dsc_min_i64(bytes, TEXT_PROBE_BYTES);
    int64_t at = 0;
    while (at < probe) {
        const int64_t room = dsc_min_i64((int64_t)sizeof text, bytes - at);
        DSC_TRY(dsc_io_read(io, &file->file, text, room, at, err));
        int64_t used = 0;
        while (used < room) {
            const int length = utf8_bytes(text + used, room - used);
            if (length == -1 && at + room < bytes && used > 0)
                break;
            if (length <= 0 || text[used] == 0)
                return DSC_FAIL(err, DSC_ERR_INPUT, file->file.path,
                                "byte %lld is not UTF-8 text; token files are named *.bin", (long long)(at + used));
            used += length;
        }
        at += used;
    }
    return DSC_OK;
}

static dsc_status open_as(const dsc_io *io, dsc_token_file *file, dsc_token_kind kind, dsc_error *err)
{
    int64_t bytes;
    int32_t header[3] = { 0 };
    DSC_TRY(dsc_io_size(io, &file->file, &bytes, err));
    file->kind = kind;
    file->token_bytes = kind == DSC_TOKENS_TEXT ? 1 : 2;
    if (kind == DSC_TOKENS_TEXT) {
        file->token_count = bytes;
        return check_text_start(io, file, bytes, err);
    }
    if (kind == DSC_TOKENS_RAW_U16)
        return open_raw(file, bytes, err);
    if (bytes < (int64_t)sizeof header)
        return DSC_FAIL(err, DSC_ERR_INPUT, file->file.path, "truncated: %lld bytes is shorter than a llm.c header",
                        (long long)bytes);
    DSC_TRY(dsc_io_read(io, &file->file, header, (int64_t)sizeof header, 0, err));
    if (header[0] != LLMC_MAGIC)
        return DSC_FAIL(err, DSC_ERR_INPUT, file->file.path, "magic number %d; a llm.c token file starts with %d",
                        (int)header[0], LLMC_MAGIC);
    return open_llmc(file, header, bytes, err);
}

/* ---- ids above the vocabulary ---- */

static dsc_status refuse_token(const dsc_token_file *file, int64_t vocab_size, int32_t token, int64_t position,
                               dsc_error *err)
{
    return DSC_FAIL(err, DSC_ERR_INPUT, file->file.path,
                    "token %d at position %lld is outside the model's vocabulary of %lld; the file was made for "
                    "another tokenizer, or is damaged", (int)token, (long long)position, (long long)vocab_size);
}

static int32_t token_at(const dsc_token_file *file, const void *tokens, int64_t i)
{
    return file->token_bytes == 1 ? ((const uint8_t *)tokens)[i] : ((const uint16_t *)tokens)[i];
}

/* A maximum without a branch, which the compiler turns into vector instructions. */
static int32_t largest_token(const dsc_token_file *file, const void *tokens, int64_t count)
{
    const uint8_t *bytes = tokens;
    const uint16_t *words = tokens;
    uint8_t byte = 0;
    uint16_t word = 0;
    for (int64_t i = 0; file->token_bytes == 1 && i < count; i++)
        byte = bytes[i] > byte ? bytes[i] : byte;
    for (int64_t i = 0; file->token_bytes == 2 && i < count; i++)
        word = words[i] > word ? words[i] : word;
    return file->token_bytes == 1 ? byte : word;
}

/* The ids of the first `bytes` bytes of tokens; *bytes becomes what is left of it. */
static dsc_status scan_tokens(const dsc_io *io, dsc_token_file *file, int64_t vocab_size, dsc_data_buffer buffer,
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
        while (token_at(file, buffer.ptr, i) < vocab_size)
            i++;
        return refuse_token(file, vocab_size, token_at(file, buffer.ptr, i), first + i, err);
    }
    return DSC_OK;
}

/* ---- opening ---- */

static dsc_status tell_kind(const dsc_io *io, dsc_token_file *file, dsc_token_kind *kind, dsc_error *err)
{
    static const char *const later[] = { ".jsonl", ".idx", ".npy", ".parquet", ".arrow", ".gz", ".zst" };
    const char *path = file->file.path;
    for (size_t i = 0; i < DSC_COUNT(later); i++)
        if (ends_with(path, later[i]))
            return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, path,
                            "*%s data is not built in this version; give raw text, a uint16 *.bin or "
                            "a llm.c *.bin",
                            later[i]);
    *kind = DSC_TOKENS_TEXT;
    if (!ends_with(path, ".bin"))
        return DSC_OK;
    int64_t bytes;
    int32_t magic = 0;
    DSC_TRY(dsc_io_size(io, &file->file, &bytes, err));
    if (bytes >= 4)
        DSC_TRY(dsc_io_read(io, &file->file, &magic, 4, 0, err));
    *kind = magic == LLMC_MAGIC ? DSC_TOKENS_LLMC : DSC_TOKENS_RAW_U16;
    return DSC_OK;
}

static dsc_status open_one(dsc_data *data, const char *path, dsc_error *err)
{
    dsc_token_file *file = &data->file[data->file_count];
    const dsc_io *io = data->options.io;
    file->file = (dsc_file)DSC_FILE_INIT;
    if (dsc_io_kind(path) == DSC_PATH_DIR)
        return DSC_FAIL(err, DSC_ERR_INPUT, path, "is a folder; give the data files themselves");
    DSC_TRY(dsc_io_open(io, path, DSC_IO_READ_ONLY, &file->file, err));
    data->file_count++; /* from here on close ends it */
    dsc_token_kind kind = DSC_TOKENS_TEXT;
    DSC_TRY(tell_kind(io, file, &kind, err));
    DSC_TRY(open_as(io, file, kind, err));
    if (file->token_count < data->options.sequence + 1)
        return DSC_FAIL(err, DSC_ERR_INPUT, path,
                        "%lld tokens are fewer than one sample of %lld and its target; give more text or a "
                        "smaller --seq-len",
                        (long long)file->token_count, (long long)data->options.sequence);
    file->first_sample = data->sample_count;
    file->sample_count = (file->token_count - 1) / data->options.sequence;
    data->sample_count += file->sample_count;
    data->token_count += file->token_count;
    return DSC_OK;
}

static dsc_status open_files(dsc_data *data, dsc_error *err)
{
    const dsc_data_options *o = &data->options;
    DSC_TRY(dsc_alloc_zeroed(o->alloc, DSC_TAG_CONTROL, o->path_count, sizeof *data->file, &data->file, err));
    DSC_TRY(dsc_alloc_zeroed(o->alloc, DSC_TAG_CONTROL, o->sequence + 1, sizeof(uint16_t), &data->window, err));
    for (int32_t i = 0; i < o->path_count; i++)
        DSC_TRY(open_one(data, o->paths[i], err));
    return DSC_OK;
}

dsc_status dsc_data_open(const dsc_data_options *options, dsc_data **out, dsc_error *err)
{
    *out = NULL;
    if (options->sequence < 1 || options->path_count < 1)
        return DSC_FAIL(err, DSC_ERR_INPUT, "data",
                        "token files need a model with a sequence length and at least one path");
    dsc_data *data = NULL;
    DSC_TRY(dsc_alloc_zeroed(options->alloc, DSC_TAG_CONTROL, 1, sizeof *data, &data, err));
    data->options = *options;
    const dsc_status status = open_files(data, err);
    data->options.paths = NULL; /* borrowed until return only */
    if (status != DSC_OK)
        dsc_data_close(&data);
    *out = data;
    return status;
}

void dsc_data_close(dsc_data **data_ptr)
{
    dsc_data *data = *data_ptr;
    if (data == NULL)
        return;
    for (int32_t i = 0; i < data->file_count; i++)
        (void)dsc_io_close(data->options.io, &data->file[i].file, NULL);
    dsc_alloc_free(data->options.alloc, data->window);
    dsc_alloc_free(data->options.alloc, data->file);
    dsc_alloc_free(data->options.alloc, data);
    *data_ptr = NULL;
}

dsc_status dsc_data_scan(dsc_data *data, dsc_data_buffer buffer, int64_t *bytes, dsc_error *err)
{
    const dsc_data_options *o = &data->options;
    for (int32_t i = 0; i < data->file_count; i++)
        DSC_TRY(scan_tokens(o->io, &data->file[i], o->vocab_size, buffer, bytes, err));
    return DSC_OK;
}

int64_t dsc_data_sample_count(const dsc_data *data) { return data->sample_count; }
int64_t dsc_data_token_count(const dsc_data *data) { return data->token_count; }

static dsc_token_file *file_of_sample(dsc_data *data, int64_t sample)
{
    int32_t low = 0, high = data->file_count - 1;
    while (low < high) {
        const int32_t middle = low + (high - low + 1) / 2;
        if (data->file[middle].first_sample <= sample)
            low = middle;
        else
            high = middle - 1;
    }
    return &data->file[low];
}

/* Tokens [first, first + sequence] of a file into tokens and targets; ids are checked. */
static dsc_status read_window(dsc_data *data, dsc_token_file *file, int64_t first, int32_t *tokens, int32_t *targets,
                              dsc_error *err)
{
    const int64_t sequence = data->options.sequence;
    DSC_TRY(dsc_io_read(data->options.io, &file->file, data->window, (sequence + 1) * file->token_bytes,
                        file->header_bytes + first * file->token_bytes, err));
    for (int64_t i = 0; i <= sequence; i++) {
        const int32_t token = token_at(file, data->window, i);
        if (token >= data->options.vocab_size)
            return refuse_token(file, data->options.vocab_size, token, first + i, err);
        if (i < sequence)
            tokens[i] = token;
        if (i > 0)
            targets[i - 1] = token;
    }
    return DSC_OK;
}

static dsc_status fill(void *user, int64_t first_sample, int64_t count, void *const *batch_data, dsc_error *err)
{
    dsc_data *data = user;
    const int64_t n = data->sample_count, sequence = data->options.sequence;
    for (int64_t k = 0; k < count; k++) {
        const int64_t g = first_sample + k;
        int64_t sample = g % n;
        if (data->options.shuffle)
            sample = (int64_t)dsc_rng_permute(data->options.seed, dsc_rng_stream(DSC_RNG_SHUFFLE, (uint32_t)(g / n)),
                                              (uint64_t)n, (uint64_t)sample);
        dsc_token_file *file = file_of_sample(data, sample);
        DSC_TRY(read_window(data, file, (sample - file->first_sample) * sequence,
                            (int32_t *)batch_data[0] + k * sequence, (int32_t *)batch_data[1] + k * sequence, err));
    }
    return DSC_OK;
}

dsc_data_source dsc_data_as_source(dsc_data *data)
{
    return (dsc_data_source){ .fill = fill, .user = data, .sample_count = data->sample_count };
}

dsc_status dsc_data_check(const dsc_io *io, dsc_alloc *alloc, const char *path, dsc_token_kind kind, int64_t vocab_size,
                          int64_t *token_count, dsc_error *err)
{
    dsc_token_file file = { .file = DSC_FILE_INIT };
    DSC_TRY(dsc_io_open(io, path, DSC_IO_READ_ONLY, &file.file, err));
    dsc_status status = open_as(io, &file, kind, err);
    if (status == DSC_OK && file.token_count < 2)
        status = DSC_FAIL(err, DSC_ERR_INPUT, path, "%lld tokens; the shortest sample has one and its target",
                          (long long)file.token_count);
    int64_t all = INT64_MAX;
    dsc_data_buffer buffer = { .bytes = SCAN_BLOCK_BYTES };
    if (status == DSC_OK && vocab_size > 0)
        status = dsc_alloc_zeroed(alloc, DSC_TAG_IO, buffer.bytes, 1, &buffer.ptr, err);
    if (status == DSC_OK && vocab_size > 0)
        status = scan_tokens(io, &file, vocab_size, buffer, &all, err);
    dsc_alloc_free(alloc, buffer.ptr);
    *token_count = file.token_count;
    (void)dsc_io_close(io, &file.file, NULL);
    return status;
}

dsc_status dsc_batch_check(const dsc_model *model, int64_t samples, const void *const *batch_data, dsc_error *err)
{
    if (model->vocab_size <= 0)
        return DSC_OK;
    for (int32_t i = 0; i < model->batch_count; i++) {
        if (model->batch[i].dtype != DSC_I32)
            continue;
        int64_t count = samples;
        for (int32_t d = 0; d < model->batch[i].dim_count; d++)
            count *= model->batch[i].dim[d];
        const int32_t *ids = batch_data[i];
        for (int64_t k = 0; k < count; k++)
            if (ids[k] < 0 || ids[k] >= model->vocab_size)
                return DSC_FAIL(err, DSC_ERR_INPUT, model->batch[i].name,
                                "id %d at position %lld of the batch is outside the model's "
                                "vocabulary of %lld",
                                (int)ids[k], (long long)k, (long long)model->vocab_size);
    }
    return DSC_OK;
}
