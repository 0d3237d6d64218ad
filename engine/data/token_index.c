/* token_index.c - see token_index.h and the layout in token_file.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/data/token_index.h"

#include <string.h>

#include "engine/data/token_file.h"

#define BLOCK 4096 /* entries at once */

static dsc_status read_header(const dsc_io *io, dsc_token_index *r, dsc_error *err)
{
    unsigned char header[DSC_MMIDX_HEADER_BYTES];
    int64_t bytes = 0, version, lengths, offsets, starts, entries;
    DSC_TRY(dsc_io_size(io, &r->file, &bytes, err));
    if (bytes < DSC_MMIDX_HEADER_BYTES)
        return DSC_FAIL(err, DSC_ERR_INPUT, r->file.path, "truncated: %lld bytes is shorter than an index's header",
                        (long long)bytes);
    DSC_TRY(dsc_io_read(io, &r->file, header, sizeof header, 0, err));
    memcpy(&version, header + 9, 8);
    memcpy(&r->sequences, header + 18, 8);
    memcpy(&entries, header + 26, 8);
    if (memcmp(header, DSC_MMIDX_MAGIC, DSC_MMIDX_MAGIC_BYTES) != 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, r->file.path,
                        "not a Megatron index: it does not start with "
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
    r->documents = entries - (entries > INT64_MIN); /* the last entry is the end */
    const bool fits = r->sequences >= 0 && entries >= 1 && dsc_mul_i64(r->sequences, 4, &lengths) &&
                      dsc_mul_i64(r->sequences, 8, &offsets) && dsc_mul_i64(entries, 8, &starts) &&
                      lengths <= bytes && offsets <= bytes && starts <= bytes &&
                      DSC_MMIDX_HEADER_BYTES + lengths + offsets + starts == bytes;
    if (!fits)
        return DSC_FAIL(err, DSC_ERR_INPUT, r->file.path,
                        "%lld bytes are not those of %lld sequences and %lld documents (truncated?)", (long long)bytes,
                        (long long)r->sequences, (long long)r->documents);
    return DSC_OK;
}

/* Lengths and offsets side by side: each sequence begins where the one before ends. */
static dsc_status check_sequences(const dsc_io *io, dsc_token_index *r, dsc_error *err)
{
    int32_t length[BLOCK];
    int64_t offset[BLOCK], expected = 0;
    for (int64_t first = 0; first < r->sequences; first += BLOCK) {
        const int64_t count = dsc_min_i64(BLOCK, r->sequences - first);
        DSC_TRY(dsc_io_read(io, &r->file, length, count * 4, DSC_MMIDX_HEADER_BYTES + first * 4, err));
        DSC_TRY(dsc_io_read(io, &r->file, offset, count * 8,
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

static dsc_status check_documents(const dsc_io *io, dsc_token_index *r, dsc_error *err)
{
    int64_t start[BLOCK], last = 0;
    const int64_t at = DSC_MMIDX_HEADER_BYTES + r->sequences * 12;
    for (int64_t first = 0; first <= r->documents; first += BLOCK) {
        const int64_t count = dsc_min_i64(BLOCK, r->documents + 1 - first);
        DSC_TRY(dsc_io_read(io, &r->file, start, count * 8, at + first * 8, err));
        for (int64_t i = 0; i < count; i++) {
            const bool ends = first + i == r->documents;
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

dsc_status dsc_token_index_open(const dsc_io *io, const char *path, dsc_token_index *out, dsc_error *err)
{
    *out = (dsc_token_index)DSC_TOKEN_INDEX_INIT;
    DSC_TRY(dsc_io_open(io, path, DSC_IO_READ_ONLY, &out->file, err));
    DSC_TRY(read_header(io, out, err));
    DSC_TRY(check_sequences(io, out, err));
    return check_documents(io, out, err);
}

void dsc_token_index_close(const dsc_io *io, dsc_token_index *index)
{
    (void)dsc_io_close(io, &index->file, NULL); /* only read: nothing can be lost */
}

/* ---- where documents begin ---- */

/* Entries are checked again after open, because the file may have changed since. */
dsc_status dsc_token_index_start(const dsc_io *io, dsc_token_index *index, int64_t document, int64_t *token,
                                 dsc_error *err)
{
    const int64_t offsets = DSC_MMIDX_HEADER_BYTES + index->sequences * 4, starts = offsets + index->sequences * 8;
    int64_t sequence = 0, offset = 0;
    DSC_ASSERT(document >= 0 && document <= index->documents);
    DSC_TRY(dsc_io_read(io, &index->file, &sequence, 8, starts + document * 8, err));
    *token = index->token_count;
    if (sequence == index->sequences)
        return DSC_OK;
    if (sequence < 0 || sequence > index->sequences)
        return DSC_FAIL(err, DSC_ERR_INPUT, index->file.path, "has changed: document %lld begins at sequence %lld of "
                        "%lld", (long long)document, (long long)sequence, (long long)index->sequences);
    DSC_TRY(dsc_io_read(io, &index->file, &offset, 8, offsets + sequence * 8, err));
    *token = offset / index->token_bytes;
    return DSC_OK;
}

dsc_status dsc_token_index_find(const dsc_io *io, dsc_token_index *index, int64_t token, int64_t *document,
                                dsc_error *err)
{
    int64_t low = 0, high = index->documents;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        int64_t start = 0;
        DSC_TRY(dsc_token_index_start(io, index, middle, &start, err));
        if (start < token)
            low = middle + 1;
        else
            high = middle;
    }
    *document = low;
    return DSC_OK;
}
