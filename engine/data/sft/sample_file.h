/* sample_file.h - samples of instruction data as training reads them: whole examples, and which tokens count.
 *
 * A header of 4096 bytes, then samples of T words of 32 bits, little-endian. A word is a token id, with one bit for a
 * token that counts and one for the first token of an example. The rest of a sample that examples do not fill begins
 * like an example and does not count. So a sample is one read, whatever the examples in it. Preferences are two
 * samples of one example each. A sample with labels is one text or two, with the first bit for tokens of type 1; words
 * of labels follow: an int32 class, or fp32 numbers. Rows whose texts are compared are several such samples, with the
 * text's place in its row and the row's score.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_DATA_SFT_SAMPLE_FILE_H
#define DSC_ENGINE_DATA_SFT_SAMPLE_FILE_H

#include <dsc/model.h>

#include "base/io.h"

#define DSC_SAMPLE_ENDING ".samples" /* ending of the file's name */
#define DSC_SAMPLE_HEADER_BYTES 4096
#define DSC_SAMPLE_DESCRIPTION_BYTES 1536
#define DSC_SAMPLE_COUNTED (UINT32_C(1) << 31)
#define DSC_SAMPLE_BEGINS (UINT32_C(1) << 30)
#define DSC_SAMPLE_ID (DSC_SAMPLE_BEGINS - 1)

/* Contents of a file, and the examples that were left out. */
typedef struct dsc_sample_summary {
    int64_t sequence, samples;         /* T; number of samples */
    int64_t examples, tokens, counted; /* in the samples */
    int64_t truncated, dropped,
        uncounted;              /* examples: cut at T; left out as longer than T, or without counted tokens */
    int64_t replaced, in_parts; /* examples.h */
    int64_t largest_id;
    char description[DSC_SAMPLE_DESCRIPTION_BYTES]; /* format and template */
    int64_t pairs; /* samples 2 i and 2 i + 1 are the chosen and the rejected one of a pair; 0: they are not pairs */
    int64_t label_words; /* behind the tokens of each sample */
    int64_t texts;       /* samples of a row whose texts are compared, side by side; 0: others */
} dsc_sample_summary;

typedef struct dsc_sample_file {
    dsc_file file;
    dsc_sample_summary summary;
} dsc_sample_file;
#define DSC_SAMPLE_FILE_INIT                                                                                           \
    {                                                                                                                  \
        .file = DSC_FILE_INIT                                                                                          \
    }

bool dsc_sample_path(const char *path); /* the name has the ending */
/* DSC_ERR_INPUT: not such a file, or truncated. Closed by the caller whatever happens. */
DSC_MUST_USE dsc_status dsc_sample_file_open(const dsc_io *io, const char *path, dsc_sample_file *out, dsc_error *err);
void dsc_sample_file_close(const dsc_io *io, dsc_sample_file *file);
/* Opens a closed file again. DSC_ERR_INPUT: its content has changed. */
DSC_MUST_USE dsc_status dsc_sample_file_resume(const dsc_io *io, dsc_sample_file *file, dsc_error *err);
/* The words of sample `index`, [T + label words]. */
DSC_MUST_USE dsc_status dsc_sample_file_read(const dsc_io *io, dsc_sample_file *file, int64_t index, uint32_t *words,
                                             dsc_error *err);
/* tokens, targets and places [T]: a target is the token behind, or -1; a place counts from the example's first token.
 * `places` may be NULL. */
void dsc_sample_unpack(const uint32_t *words, int64_t sequence, int32_t *tokens, int32_t *targets, int32_t *places);

/* tokens, places and, unless NULL, segments [T] of a sample with labels. Returns the place of the text's last token. */
int32_t dsc_sample_unpack_text(const uint32_t *words, int64_t sequence, int32_t *tokens, int32_t *places,
                               int32_t *segments);

/* Writes FILE.tmp, which becomes FILE when it is committed. */
typedef struct dsc_sample_writer {
    const dsc_io *io;
    char path[1024], temporary[1030];
    dsc_file file;
    int64_t sequence, label_words, samples;
} dsc_sample_writer;
DSC_MUST_USE dsc_status dsc_sample_writer_open(const dsc_io *io, const char *path, int64_t sequence,
                                               int64_t label_words, dsc_sample_writer *out, dsc_error *err);
DSC_MUST_USE dsc_status dsc_sample_writer_add(dsc_sample_writer *writer, const uint32_t *words, dsc_error *err);
/* The writer fills the summary's sequence and samples. */
DSC_MUST_USE dsc_status dsc_sample_writer_commit(dsc_sample_writer *writer, const dsc_sample_summary *summary,
                                                 dsc_error *err);
void dsc_sample_writer_close(dsc_sample_writer *writer); /* removes what was not committed */

#endif
