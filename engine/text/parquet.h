/* parquet.h - a Parquet file as JSON lines, by the plugin lib/dsc/libdsc_parquet.so.
 *
 * A row is an object with a member for each column, and a null has none. Lists are arrays, structs and maps are
 * objects, integers beyond 2^53 are texts, and columns of bytes are left out. The file is read by row groups and pages,
 * so the memory does not grow with it. The text has the limits of compressed text (unpack.h).
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_TEXT_PARQUET_H
#define DSC_ENGINE_TEXT_PARQUET_H

#include "base/io.h"

#define DSC_PARQUET_MARK "PAR1"
#define DSC_PARQUET_BYTES_MIN 12                      /* two marks and the size of the metadata */
#define DSC_PARQUET_MEMORY_BYTES (INT64_C(160) << 20) /* pages, dictionaries and rows of Arrow */

typedef struct dsc_parquet dsc_parquet;

/* *out = NULL: the plugin is not installed. DSC_ERR_INPUT: the file is damaged. */
DSC_MUST_USE dsc_status dsc_parquet_open(const char *path, int64_t file_bytes, dsc_parquet **out, dsc_error *err);
void dsc_parquet_close(dsc_parquet **parquet); /* safe on NULL */
/* As dsc_unpacker_read. */
DSC_MUST_USE dsc_status dsc_parquet_read(dsc_parquet *parquet, void *to, int64_t bytes, int64_t *got, dsc_error *err);
/* Share of the file's bytes, by its rows. */
int64_t dsc_parquet_position(const dsc_parquet *parquet);

#endif
