/* unpack.h - gzip and zstd streams to bytes, by libz.so.1 and libzstd.so.1, which are opened at run time.
 *
 * All members or frames of a file follow each other. The text is bounded by DSC_UNPACK_FREE_BYTES and
 * DSC_UNPACK_RATIO_MAX bytes for each compressed byte that was read; the memory, by the window that zstd allows (128
 * MiB). SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_TEXT_UNPACK_H
#define DSC_ENGINE_TEXT_UNPACK_H

#include "base/io.h"

#define DSC_UNPACK_FREE_BYTES (INT64_C(16) << 20) /* a small file may repeat one line all along */
#define DSC_UNPACK_RATIO_MAX 256                  /* text and logs stay below 100 */
#define DSC_UNPACK_MARK_BYTES 4

typedef enum dsc_packing { DSC_PACKING_NONE, DSC_PACKING_GZIP, DSC_PACKING_ZSTD } dsc_packing;

/* By the first bytes of a file. */
dsc_packing dsc_packing_find(const void *bytes, int64_t count);

typedef struct dsc_unpacker dsc_unpacker;

/* `file` stays the caller's and open. DSC_ERR_UNSUPPORTED: the library is not installed. */
DSC_MUST_USE dsc_status dsc_unpacker_open(const dsc_io *io, dsc_file *file, dsc_packing packing, dsc_unpacker **out,
                                          dsc_error *err);
void dsc_unpacker_close(dsc_unpacker **u);
/* *got bytes of the text; fewer than `bytes` only at its end. DSC_ERR_INPUT: the stream is damaged, cut off, or larger
 * than the limit. */
DSC_MUST_USE dsc_status dsc_unpacker_read(dsc_unpacker *u, void *to, int64_t bytes, int64_t *got, dsc_error *err);
/* Compressed bytes that were used. */
int64_t dsc_unpacker_position(const dsc_unpacker *u);

#endif
