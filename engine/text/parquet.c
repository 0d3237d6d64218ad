/* parquet.c - see parquet.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/text/parquet.h"

#include <stdlib.h>
#include <string.h>

#include "base/plugin.h"
#include "engine/text/parquet_api.h"
#include "engine/text/unpack.h"

struct dsc_parquet {
    const dsc_parquet_api *api;
    dsc_parquet_file *file;
    const char *path; /* the caller's */
    int64_t file_bytes, rows, done, text_bytes;
    const char *text; /* the rows of the last call */
    int64_t at, bytes;
};

static dsc_status fail(const char *path, const char *why, dsc_error *err)
{
    return DSC_FAIL(err, DSC_ERR_INPUT, path,
                    "the Parquet file cannot be read: %s; write it again, with row groups of "
                    "fewer rows if they are too large",
                    why);
}

dsc_status dsc_parquet_open(const char *path, int64_t file_bytes, dsc_parquet **out, dsc_error *err)
{
    static const dsc_plugin plugin = { .key = "data",
                                       .file = "libdsc_parquet.so",
                                       .package = "Apache Arrow (make deps-parquet)",
                                       .instead = "convert the file to JSON lines",
                                       .symbol = DSC_PARQUET_SYMBOL,
                                       .version = DSC_PARQUET_API_VERSION,
                                       .table_bytes = sizeof(dsc_parquet_api) };
    const void *api = NULL;
    char why[DSC_PARQUET_TEXT] = "";
    *out = NULL;
    if (dsc_plugin_table(&plugin, &api, NULL) != DSC_OK)
        return DSC_OK;
    dsc_parquet *p = calloc(1, sizeof *p);
    if (p == NULL)
        return DSC_FAIL(err, DSC_ERR_NOMEM, path, "no memory to read it");
    *p = (dsc_parquet) { .api = api, .path = path, .file_bytes = file_bytes };
    if (p->api->open(path, DSC_PARQUET_MEMORY_BYTES, &p->file, &p->rows, why) != 0) {
        free(p);
        return fail(path, why, err);
    }
    *out = p;
    return DSC_OK;
}

void dsc_parquet_close(dsc_parquet **parquet)
{
    if (*parquet == NULL)
        return;
    (*parquet)->api->close((*parquet)->file);
    free(*parquet);
    *parquet = NULL;
}

static dsc_status next_rows(dsc_parquet *p, dsc_error *err)
{
    char why[DSC_PARQUET_TEXT] = "";
    p->at = p->bytes = 0;
    if (p->api->next(p->file, &p->text, &p->bytes, &p->done, why) != 0)
        return fail(p->path, why, err);
    p->text_bytes += p->bytes;
    /* The whole file is counted, as its pages are read in any order. */
    if ((p->text_bytes - DSC_UNPACK_FREE_BYTES) / DSC_UNPACK_RATIO_MAX > p->file_bytes)
        return DSC_FAIL(err, DSC_ERR_INPUT, p->path,
                        "the %lld bytes of the Parquet file make %lld bytes of text so far; at most %d for each byte, "
                        "and %lld MiB, are expected; convert the file to JSON lines if that is meant",
                        (long long)p->file_bytes, (long long)p->text_bytes, DSC_UNPACK_RATIO_MAX,
                        (long long)(DSC_UNPACK_FREE_BYTES >> 20));
    return DSC_OK;
}

dsc_status dsc_parquet_read(dsc_parquet *p, void *to, int64_t bytes, int64_t *got, dsc_error *err)
{
    for (*got = 0; *got < bytes;) {
        if (p->at == p->bytes)
            DSC_TRY(next_rows(p, err));
        const int64_t count = dsc_min_i64(bytes - *got, p->bytes - p->at);
        if (count == 0)
            return DSC_OK;
        memcpy((char *)to + *got, p->text + p->at, (size_t)count);
        p->at += count;
        *got += count;
    }
    return DSC_OK;
}

int64_t dsc_parquet_position(const dsc_parquet *p)
{
    DSC_ASSERT(p->done >= 0);
    return p->rows > 0 ? (int64_t)((double)p->file_bytes * (double)dsc_min_i64(p->done, p->rows) / (double)p->rows)
                       : p->file_bytes;
}
