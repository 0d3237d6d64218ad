/* tokenize.h - whole files to ids, by several threads, in the files' order whatever their number.
 *
 * A text file is one document. An object of a JSON file is one, and so is a row of a table: the string of one member or
 * column (documents.h). An empty file has none. Documents that a tokenizer may cut go to the threads in parts, so that
 * memory does not grow with a file.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_TEXT_TOKENIZE_H
#define DSC_ENGINE_TEXT_TOKENIZE_H

#include <dsc/text.h>

#include "engine/text/documents.h"

/* Ids in order. ends[0, end_count): how many of `ids` were there when a document ended; all borrowed until return. */
typedef struct dsc_token_batch {
    const int32_t *ids;
    int64_t count;
    const int32_t *ends;
    int64_t end_count;
    int64_t bytes_read; /* bytes of all files so far, as they lie on the disk */
} dsc_token_batch;

#define DSC_BEGIN_TEMPLATE (-2) /* as `begin`: the post-processor's ids */

typedef struct dsc_tokenize_options {
    dsc_alloc *alloc;
    const dsc_io *io;
    const dsc_tokenizer *tokenizer;
    const char *const *paths;
    int32_t path_count;
    const char *field; /* member or column with the text of a document; NULL: not given */
    /* Ids before and behind each document; -1: none. The post-processor's ids behind a text come before the separator,
     * which is left out if it is the last of them. */
    int32_t begin, separator;
    int32_t threads;
    /* Called by the calling thread, in order. */
    dsc_status (*take)(void *user, const dsc_token_batch *batch, dsc_error *err);
    void *user;
} dsc_tokenize_options;

/* DSC_ERR_INPUT with its position: a missing file, a format that cannot be read, an invalid document; earlier input has
 * been encoded. */
DSC_MUST_USE dsc_status dsc_tokenize(const dsc_tokenize_options *options, dsc_error *err);

#endif
