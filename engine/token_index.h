/* token_index.h - reads and checks Megatron's index of a token file. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_TOKEN_INDEX_H
#define DSC_ENGINE_TOKEN_INDEX_H

#include "base/io.h"

/* The bytes of a token and their number. Sequences that do not follow each other in the data, documents that are not in
 * order, a file that is longer or shorter than it says: DSC_ERR_INPUT. Memory does not grow with the file. */
DSC_MUST_USE dsc_status dsc_token_index_read(const dsc_io *io, const char *path, int64_t *token_bytes,
                                             int64_t *token_count, dsc_error *err);

#endif
