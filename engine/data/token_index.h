/* token_index.h - reads and checks Megatron's index of a token file. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_DATA_TOKEN_INDEX_H
#define DSC_ENGINE_DATA_TOKEN_INDEX_H

#include "base/io.h"

typedef struct dsc_token_index {
    dsc_file file;
    int64_t token_bytes, token_count;
    int64_t sequences, documents;
} dsc_token_index;
#define DSC_TOKEN_INDEX_INIT { .file = DSC_FILE_INIT }

/* Sequences that do not follow each other in the data, documents that are not in order, a file that is longer or
 * shorter than it says: DSC_ERR_INPUT. Memory does not grow with the file. Whatever happens, *out is to be closed. */
DSC_MUST_USE dsc_status dsc_token_index_open(const dsc_io *io, const char *path, dsc_token_index *out, dsc_error *err);
void dsc_token_index_close(const dsc_io *io, dsc_token_index *index);

/* The first token of a document; token_count of the one behind the last. */
DSC_MUST_USE dsc_status dsc_token_index_start(const dsc_io *io, dsc_token_index *index, int64_t document,
                                              int64_t *token, dsc_error *err);
/* The first document that begins at a token or behind it; `documents` when none does. A few reads, whatever the size.
 */
DSC_MUST_USE dsc_status dsc_token_index_find(const dsc_io *io, dsc_token_index *index, int64_t token,
                                             int64_t *document, dsc_error *err);

#endif
