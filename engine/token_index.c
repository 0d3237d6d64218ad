/* token_index.c - see token_index.h and the layout in token_file.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/token_index.h"

#include <string.h>

#include "engine/token_file.h"

#define BLOCK 4096 /* entries at once */

typedef struct index_reader {
    const dsc_io *io;
    dsc_file file;
    int64_t sequences, documents; /* documents: entries, one more than there are */
    int64_t token_bytes, token_count;
} index_reader;

static dsc_status read_header(index_reader *r, dsc_error *err)
{
    unsigned char header[DSC_MMIDX_HEADER_BYTES];
    int64_t bytes = 0, version, lengths, offsets, starts;
    DSC_TRY(dsc_io_size(r->io, &r->file, &bytes, err));
    if (bytes < DSC_MMIDX_HEADER_BYTES)
        return DSC_FAIL(err, DSC_ERR_INPUT, r->file.path, "truncated: %lld bytes is shorter than an index's header",
                        (long long)bytes);
    DSC_TRY(dsc_io_read(r->io, &r->file, header, sizeof header, 0, err));
    memcpy(&version, header + 9, 8);
    memcpy(&r->sequences, header + 18, 8);
    memcpy(&r->documents, header + 26, 8);
    if (memcmp(header, DSC_MMIDX_MAGIC, DSC_MMIDX_MAGIC_BYTES) != 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, r->file.path, "this is no index of Megatron's: it does not start with "
                        "MMIDIDX");
    if (version != 1)
        return DSC_FAIL(err, DSC_ERR_INPUT, r->file.path, "an index of version %lld; expected 1", (long long)version);
    switch (header[17]) {
    case DSC_MMIDX_U8: r->token_bytes = 1; break;
    case DSC_MMIDX_U16: r->token_bytes = 2; break;
    case DSC_MMIDX_I32: r->token_bytes = 4; break;
    default:
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, r->file.path,
                        "tokens of the dtype with code %d; uint8 (1), uint16 (8) and int32 (4) are read",
                        (int)header[17]);
    }
    const bool fits = r->sequences >= 0 && r->documents >= 1 && dsc_mul_i64(r->sequences, 4, &lengths) &&
                      dsc_mul_i64(r->sequences, 8, &offsets) && dsc_mul_i64(r->documents, 8, &starts) &&
                      lengths <= bytes && offsets <= bytes && starts <= bytes &&
                      DSC_MMIDX_HEADER_BYTES + lengths + offsets + starts == bytes;
    if (!fits)
        return DSC_FAIL(err, DSC_ERR_INPUT, r->file.path,
                        "%lld bytes are not those of %lld sequences and %lld documents (truncated?)", (long long)bytes,
                        (long long)r->sequences, (long long)r->documents - 1);
    return DSC_OK;
}

/* Lengths and offsets side by side: each sequence begins where the one before ends. */
static dsc_status check_sequences(index_reader *r, dsc_error *err)
{
    int32_t length[BLOCK];
    int64_t offset[BLOCK], expected = 0;
    for (int64_t first = 0; first < r->sequences; first += BLOCK) {
        const int64_t count = dsc_min_i64(BLOCK, r->sequences - first);
        DSC_TRY(dsc_io_read(r->io, &r->file, length, count * 4, DSC_MMIDX_HEADER_BYTES + first * 4, err));
        DSC_TRY(dsc_io_read(r->io, &r->file, offset, count * 8,
                            DSC_MMIDX_HEADER_BYTES + r->sequences * 4 + first * 8, err));
        for (int64_t i = 0; i < count; i++) {
            if (length[i] < 0 || offset[i] != expected)
                return DSC_FAIL(err, DSC_ERR_INPUT, r->file.path,
                                "sequence %lld has %d tokens from byte %lld on; expected it at byte %lld, behind the "
                                "one before", (long long)(first + i), (int)length[i], (long long)offset[i],
                                (long long)expected);
            expected += length[i] * r->token_bytes; /* at most 2^31 * 4 for each of at most 2^60 bytes of index */
            if (expected < 0 || expected > INT64_MAX / 2)
                return DSC_FAIL(err, DSC_ERR_INPUT, r->file.path, "more tokens than any file holds");
        }
    }
    r->token_count = expected / r->token_bytes;
    return DSC_OK;
}

static dsc_status check_documents(index_reader *r, dsc_error *err)
{
    int64_t start[BLOCK], last = 0;
    const int64_t at = DSC_MMIDX_HEADER_BYTES + r->sequences * 12;
    for (int64_t first = 0; first < r->documents; first += BLOCK) {
        const int64_t count = dsc_min_i64(BLOCK, r->documents - first);
        DSC_TRY(dsc_io_read(r->io, &r->file, start, count * 8, at + first * 8, err));
        for (int64_t i = 0; i < count; i++) {
            const bool ends = first + i == r->documents - 1;
            if ((first + i == 0 && start[i] != 0) || start[i] < last || start[i] > r->sequences ||
                (ends && start[i] != r->sequences))
                return DSC_FAIL(err, DSC_ERR_INPUT, r->file.path,
                                "document %lld begins at sequence %lld; documents must follow each other over all "
                                "%lld sequences", (long long)(first + i), (long long)start[i],
                                (long long)r->sequences);
            last = start[i];
        }
    }
    return DSC_OK;
}

dsc_status dsc_token_index_read(const dsc_io *io, const char *path, int64_t *token_bytes, int64_t *token_count,
                                dsc_error *err)
{
    index_reader r = { .io = io, .file = DSC_FILE_INIT };
    DSC_TRY(dsc_io_open(io, path, DSC_IO_READ_ONLY, &r.file, err));
    dsc_status status = read_header(&r, err);
    if (status == DSC_OK)
        status = check_sequences(&r, err);
    if (status == DSC_OK)
        status = check_documents(&r, err);
    (void)dsc_io_close(io, &r.file, NULL);
    *token_bytes = r.token_bytes;
    *token_count = r.token_count;
    return status;
}
