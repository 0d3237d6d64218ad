/* writer.h - bytes of checkpoints on their way into their files. Long ranges go by the engines of
 * offload/aio.h past the page cache, several at a time; short ones, and the ends that are not whole blocks, by plain
 * writes.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_CHECKPOINT_WRITER_H
#define DSC_ENGINE_CHECKPOINT_WRITER_H

#include "engine/checkpoint/direct.h"
#include "offload/staging.h"

#define DSC_CKPT_WRITES_MOST DSC_CKPT_DIRECT_DEPTH /* under way at a time */

typedef struct dsc_ckpt_writer {
    dsc_alloc *alloc;
    const dsc_io *io;
    const char *dir; /* borrowed */
    dsc_file file[DSC_CKPT_TENSOR_FILE_COUNT];
    dsc_ckpt_direct direct;
    dsc_aio_op op[DSC_CKPT_WRITES_MOST];
    dsc_staging staging; /* bytes of the operations; staging.begun is the number of writes so far */
} dsc_ckpt_writer;

void dsc_ckpt_writer_open(dsc_ckpt_writer *w, dsc_alloc *alloc, const dsc_io *io, const dsc_aio_options *aio);
/* The files of `dir`, in their full size; those of w->file that are open stay so. */
dsc_status dsc_ckpt_writer_files(dsc_ckpt_writer *w, const char *dir, dsc_error *err);
/* Bytes [first, first + bytes) of a file, which lie at `from` and stay there until dsc_ckpt_writer_wait. Addresses and
 * offsets have the same remainder by DSC_AIO_ALIGN. */
dsc_status dsc_ckpt_writer_write(dsc_ckpt_writer *w, int file, char *from, int64_t first, int64_t bytes,
                                 dsc_error *err);
/* Until the first `count` writes have ended. */
dsc_status dsc_ckpt_writer_wait(dsc_ckpt_writer *w, int64_t count, dsc_error *err);
/* Everything that was written is durable; the files are closed. */
dsc_status dsc_ckpt_writer_sync(dsc_ckpt_writer *w, dsc_error *err);
/* After anything. Writes under way end first. */
void dsc_ckpt_writer_close(dsc_ckpt_writer *w);

#endif
