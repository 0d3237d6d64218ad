/* token_file.h - files of tokens: what kind one is, how many it holds, and its ids, wherever they begin.
 *
 * Kinds: raw text (one token a byte), *.bin without a header (uint16, nanoGPT), llm.c's *.bin (uint16 or uint32), and
 * Megatron's PREFIX.bin with PREFIX.idx beside it, whose documents follow each other.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_DATA_TOKEN_FILE_H
#define DSC_ENGINE_DATA_TOKEN_FILE_H

#include "engine/data/token_index.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum dsc_token_kind {
    DSC_TOKENS_TEXT, DSC_TOKENS_RAW_U16, DSC_TOKENS_LLMC, DSC_TOKENS_MMIDX
} dsc_token_kind;

/* llm.c's header: 256 int32, of which the magic, the version and the number of tokens come first. */
#define DSC_LLMC_HEADER_BYTES 1024
#define DSC_LLMC_MAGIC_U16 20240520
#define DSC_LLMC_VERSION_U16 1
#define DSC_LLMC_MAGIC_U32 20240801
#define DSC_LLMC_VERSION_U32 7

/* Megatron's index, little-endian. Header: magic, version (8 bytes), code of a dtype (1), number of sequences (8),
 * number of documents + 1 (8). Arrays: lengths of the sequences (int32), their byte offsets (int64), first sequence of
 * each document (int64); the last entry is the number of sequences. */
#define DSC_MMIDX_MAGIC "MMIDIDX\0\0"
#define DSC_MMIDX_MAGIC_BYTES 9
#define DSC_MMIDX_HEADER_BYTES 34
enum { DSC_MMIDX_U8 = 1, DSC_MMIDX_I32 = 4, DSC_MMIDX_U16 = 8 };

typedef struct dsc_token_file {
    dsc_file file;
    dsc_token_kind kind;
    int64_t header_bytes, token_bytes; /* before the tokens; of one token: 1, 2 or 4 */
    int64_t token_count, file_bytes;
    dsc_token_index index; /* open for MMIDX only */
    const char *name;      /* name of the tokenized text, for messages; borrowed; NULL: there is none */
} dsc_token_file;
#define DSC_TOKEN_FILE_INIT { .file = DSC_FILE_INIT, .index = DSC_TOKEN_INDEX_INIT }

/* Missing, truncated, not regular or damaged: DSC_ERR_INPUT. Whatever happens, *out is to be closed. `path` may be
 * Megatron's PREFIX, PREFIX.bin or PREFIX.idx. */
DSC_MUST_USE dsc_status dsc_token_file_open(const dsc_io *io, const char *path, dsc_token_file *out, dsc_error *err);
/* Opens a file as one kind of token file. MMIDX: `path` is the index. */
DSC_MUST_USE dsc_status dsc_token_file_open_as(const dsc_io *io, const char *path, dsc_token_kind kind,
                                               dsc_token_file *out, dsc_error *err);
/* Whether the name is that of text or of documents instead of a token file. Reads no file. */
bool dsc_token_path_is_text(const char *path);
/* Gives the descriptors back and takes them again, for lists of more files than a process may have open. A file that
 * has another size now: DSC_ERR_INPUT. */
void dsc_token_file_pause(const dsc_io *io, dsc_token_file *file);
DSC_MUST_USE dsc_status dsc_token_file_resume(const dsc_io *io, dsc_token_file *file, dsc_error *err);
void dsc_token_file_close(const dsc_io *io, dsc_token_file *file);
/* Tokens [first, first + count) as int32. */
DSC_MUST_USE dsc_status dsc_token_file_read(const dsc_io *io, dsc_token_file *file, int64_t first, int64_t count,
                                            int32_t *out, dsc_error *err);

/* Memory to read through, of any alignment that uint32_t takes. */
typedef struct dsc_data_buffer {
    void *ptr;
    int64_t bytes;
} dsc_data_buffer;
/* The ids of the first *bytes bytes of tokens: DSC_ERR_INPUT with the place of the first one outside the vocabulary.
 * *bytes becomes what is left. A file that cannot hold such an id is not read. */
DSC_MUST_USE dsc_status dsc_token_file_scan(const dsc_io *io, dsc_token_file *file, int64_t vocab_size,
                                            dsc_data_buffer buffer, int64_t *bytes, dsc_error *err);
dsc_status dsc_token_file_refuse(const dsc_token_file *file, int64_t vocab_size, int32_t token, int64_t position,
                                 dsc_error *err);

#ifdef __cplusplus
}
#endif
#endif
