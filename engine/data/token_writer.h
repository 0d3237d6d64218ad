/* token_writer.h - writes a file of tokens: llm.c's, or Megatron's pair of FILE.bin and FILE.idx.
 *
 * Ids of a vocabulary of at most 65536 take two bytes, others four. The file appears whole, under its name, when it is
 * committed; until then it is FILE.tmp. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_DATA_TOKEN_WRITER_H
#define DSC_ENGINE_DATA_TOKEN_WRITER_H

#include "engine/data/token_file.h"
#include "engine/text/buffer.h"
#include "engine/text/tokenize.h"

typedef enum dsc_token_format { DSC_TOKEN_LLMC, DSC_TOKEN_RAW, DSC_TOKEN_MEGATRON } dsc_token_format;

typedef struct dsc_token_writer {
    dsc_alloc *alloc;
    const dsc_io *io;
    dsc_token_format format;
    int64_t token_bytes; /* 2 or 4 */
    char path[1000], index_path[1000];
    dsc_file file;
    int64_t token_count, document_count;
    int64_t document_start; /* in tokens */
    dsc_text wide;          /* ids as they are written */
    dsc_ids lengths;        /* MEGATRON: of the documents */
} dsc_token_writer;

DSC_MUST_USE dsc_status dsc_token_writer_open(dsc_alloc *alloc, const dsc_io *io, const char *path,
                                              dsc_token_format format, int64_t vocab_size, dsc_token_writer *out,
                                              dsc_error *err);
/* DSC_ERR_INPUT if a file that would be written, or its temporary name, is an input. Writes nothing. */
DSC_MUST_USE dsc_status dsc_token_writer_check(const char *path, dsc_token_format format, const char *const *inputs,
                                               int64_t count, dsc_error *err);
DSC_MUST_USE dsc_status dsc_token_writer_add(dsc_token_writer *writer, const dsc_token_batch *batch, dsc_error *err);
DSC_MUST_USE dsc_status dsc_token_writer_commit(dsc_token_writer *writer, dsc_error *err);
/* Removes what was not committed. */
void dsc_token_writer_close(dsc_token_writer *writer);

#endif
