/* source.h - a data file read from its beginning to its end. The first bytes of gzip and zstd files show that they are
 * decompressed; Parquet files are read as JSON lines. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_TEXT_SOURCE_H
#define DSC_ENGINE_TEXT_SOURCE_H

#include "engine/text/parquet.h"
#include "engine/text/unpack.h"

typedef struct dsc_source {
    const dsc_io *io;
    dsc_file file; /* as it lies on the disk */
    int64_t file_bytes;
    int64_t at;             /* bytes of the text that were read */
    bool ended;             /* no further byte */
    dsc_unpacker *unpacker; /* NULL: no gzip or zstd */
    dsc_parquet *parquet;   /* NULL: no Parquet, or its plugin is not installed */
    bool has_ahead;
    char ahead; /* the next byte, which shows that the text has not ended */
} dsc_source;
#define DSC_SOURCE_INIT                                                                                                \
    {                                                                                                                  \
        .file = DSC_FILE_INIT                                                                                          \
    }

DSC_MUST_USE dsc_status dsc_source_open(const dsc_io *io, const char *path, dsc_source *out, dsc_error *err);
/* The next *got bytes; fewer than `bytes` only at the end. Then, and when the last byte has come, ended = true. */
DSC_MUST_USE dsc_status dsc_source_read(dsc_source *s, void *to, int64_t bytes, int64_t *got, dsc_error *err);
DSC_MUST_USE dsc_status dsc_source_skip(dsc_source *s, int64_t bytes, dsc_error *err);
/* The text is not that of the file: it may be read further than the file's bytes tell. */
bool dsc_source_is_packed(const dsc_source *s);
/* Bytes of the file that the text so far was read from. */
int64_t dsc_source_position(const dsc_source *s);
dsc_status dsc_source_close(dsc_source *s, dsc_error *err); /* safe on a closed one */

#endif
