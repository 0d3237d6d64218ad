/* token_streams.h - data files as streams: each file is one, and files that are shorter than a sample share one.
 *
 * A file of packed samples is a stream of its own: its samples are whole, whatever their number.
 *
 * At most DSC_DATA_FILES_OPEN files are open at a time; another one is opened again when it is read.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_DATA_TOKEN_STREAMS_H
#define DSC_ENGINE_DATA_TOKEN_STREAMS_H

#include "engine/data/data.h"
#include "engine/data/sft/sample_file.h"

typedef struct dsc_token_part {
    dsc_token_file file;
    dsc_sample_file samples; /* instead of the file, if packed */
    bool packed;
    char *name; /* the user's file, owned; NULL: the file's own */
    double weight;
    int64_t start; /* its first token in the stream */
    int32_t stream;
    bool open;
} dsc_token_part;

typedef struct dsc_token_stream {
    int32_t first, count; /* parts, in the order of the list */
    int32_t number;       /* index of its first file in the list */
    int64_t token_count;
    double weight;
    bool joined, packed; /* a packed one has one part */
} dsc_token_stream;

typedef struct dsc_token_streams {
    dsc_alloc *alloc;
    const dsc_io *io;
    dsc_token_part *part; /* [part_count], those of a stream together */
    int32_t part_count;
    dsc_token_stream *stream; /* [stream_count] */
    int32_t stream_count;
    int32_t opened[DSC_DATA_FILES_OPEN]; /* parts, in the order in which they give place to others */
    int32_t open_count, oldest;
    dsc_data_short short_files;
    char first_name[3][256]; /* that short_files points at */
} dsc_token_streams;

/* The user's name of a file of the list. */
static inline const char *dsc_data_name(const dsc_data_options *options, int32_t i)
{
    return options->names != NULL ? options->names[i] : options->paths[i];
}

/* DSC_ERR_INPUT: a damaged file, or no stream with a sample. Whatever happens, *out is to be closed. */
DSC_MUST_USE dsc_status dsc_token_streams_open(const dsc_data_options *options, dsc_token_streams *out, dsc_error *err);
void dsc_token_streams_close(dsc_token_streams *streams);
/* The part that holds a token of a stream, open for reading. */
DSC_MUST_USE dsc_status dsc_token_streams_find(dsc_token_streams *streams, const dsc_token_stream *stream,
                                               int64_t token, dsc_token_part **out, dsc_error *err);
/* A part by its number, open for reading. */
DSC_MUST_USE dsc_status dsc_token_streams_use(dsc_token_streams *streams, int32_t part, dsc_error *err);

#endif
