/* source.c - see source.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/text/source.h"

#include <string.h>

bool dsc_source_is_packed(const dsc_source *s) { return s->unpacker != NULL || s->parquet != NULL; }

static dsc_status read_packed(dsc_source *s, void *to, int64_t bytes, int64_t *got, dsc_error *err)
{
    return s->parquet != NULL ? dsc_parquet_read(s->parquet, to, bytes, got, err)
                              : dsc_unpacker_read(s->unpacker, to, bytes, got, err);
}

/* A compressed text shows its end only when one more byte is asked for. */
static dsc_status look_ahead(dsc_source *s, dsc_error *err)
{
    int64_t got = 0;
    if (s->has_ahead || s->ended)
        return DSC_OK;
    DSC_TRY(read_packed(s, &s->ahead, 1, &got, err));
    s->has_ahead = got == 1;
    s->ended = got == 0;
    return DSC_OK;
}

/* Parquet begins and ends with the mark, which a text may begin with too. */
static dsc_status find_parquet(dsc_source *s, const char *mark, int64_t bytes, bool *out, dsc_error *err)
{
    char last[sizeof DSC_PARQUET_MARK - 1];
    *out = false;
    if (bytes < (int64_t)sizeof last || memcmp(mark, DSC_PARQUET_MARK, sizeof last) != 0 ||
        s->file_bytes < DSC_PARQUET_BYTES_MIN)
        return DSC_OK;
    DSC_TRY(dsc_io_read(s->io, &s->file, last, sizeof last, s->file_bytes - (int64_t)sizeof last, err));
    *out = memcmp(last, DSC_PARQUET_MARK, sizeof last) == 0;
    return DSC_OK;
}

static dsc_status open_parts(dsc_source *s, const char *path, dsc_error *err)
{
    char mark[DSC_UNPACK_MARK_BYTES];
    DSC_TRY(dsc_io_open(s->io, path, DSC_IO_READ_ONLY, &s->file, err));
    DSC_TRY(dsc_io_size(s->io, &s->file, &s->file_bytes, err));
    const int64_t bytes = dsc_min_i64(s->file_bytes, (int64_t)sizeof mark);
    DSC_TRY(dsc_io_read(s->io, &s->file, mark, bytes, 0, err));
    const dsc_packing packing = dsc_packing_find(mark, bytes);
    bool parquet = false;
    s->ended = s->file_bytes == 0;
    DSC_TRY(find_parquet(s, mark, bytes, &parquet, err));
    if (parquet) {
        DSC_TRY(dsc_parquet_open(s->file.path, s->file_bytes, &s->parquet, err));
        return s->parquet != NULL ? look_ahead(s, err) : DSC_OK;
    }
    if (packing == DSC_PACKING_NONE)
        return DSC_OK;
    DSC_TRY(dsc_unpacker_open(s->io, &s->file, packing, &s->unpacker, err));
    return look_ahead(s, err);
}

dsc_status dsc_source_open(const dsc_io *io, const char *path, dsc_source *out, dsc_error *err)
{
    *out = (dsc_source)DSC_SOURCE_INIT;
    out->io = io;
    const dsc_status status = open_parts(out, path, err);
    if (status != DSC_OK)
        (void)dsc_source_close(out, NULL);
    return status;
}

static dsc_status read_plain(dsc_source *s, void *to, int64_t bytes, int64_t *got, dsc_error *err)
{
    *got = dsc_min_i64(bytes, s->file_bytes - s->at);
    DSC_TRY(dsc_io_read(s->io, &s->file, to, *got, s->at, err));
    s->at += *got;
    s->ended = s->at == s->file_bytes;
    return DSC_OK;
}

dsc_status dsc_source_read(dsc_source *s, void *to, int64_t bytes, int64_t *got, dsc_error *err)
{
    *got = 0;
    if (!dsc_source_is_packed(s))
        return read_plain(s, to, bytes, got, err);
    if (bytes == 0 || s->ended)
        return DSC_OK;
    DSC_ASSERT(s->has_ahead);
    *(char *)to = s->ahead;
    s->has_ahead = false;
    DSC_TRY(read_packed(s, (char *)to + 1, bytes - 1, got, err));
    *got += 1;
    s->at += *got;
    return look_ahead(s, err);
}

dsc_status dsc_source_skip(dsc_source *s, int64_t bytes, dsc_error *err)
{
    char buffer[4096];
    for (int64_t got = 1; bytes > 0 && got > 0; bytes -= got)
        DSC_TRY(dsc_source_read(s, buffer, dsc_min_i64(bytes, (int64_t)sizeof buffer), &got, err));
    return DSC_OK;
}

int64_t dsc_source_position(const dsc_source *s)
{
    if (s->parquet != NULL)
        return dsc_parquet_position(s->parquet);
    return s->unpacker != NULL ? dsc_unpacker_position(s->unpacker) : s->at;
}

dsc_status dsc_source_close(dsc_source *s, dsc_error *err)
{
    dsc_unpacker_close(&s->unpacker);
    dsc_parquet_close(&s->parquet);
    return dsc_io_close(s->io, &s->file, err);
}
