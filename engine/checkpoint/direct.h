/* direct.h - the tensor files of a checkpoint past the page cache, by the engines of offload/aio.h: what
 * long reads and writes share. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_CHECKPOINT_DIRECT_H
#define DSC_ENGINE_CHECKPOINT_DIRECT_H

#include "engine/checkpoint/internal.h"
#include "offload/aio.h"

/* From here on the way past the cache is faster; an engine is not opened for less. */
#define DSC_CKPT_LONG_BYTES (256 << 10)
/* Blocks of 1 MiB that a disk is given at a time. One virtual disk read 1.7 GB/s with 8 of them, 2.0 with 16 and 2.3
 * with 32, and wrote 2.3, 3.2 and 3.4. */
#define DSC_CKPT_DIRECT_DEPTH 32

typedef struct dsc_ckpt_direct {
    const dsc_io *io;
    dsc_aio_options options;
    dsc_aio *aio; /* NULL: nothing long has come yet */
    dsc_file past_cache[DSC_CKPT_TENSOR_FILE_COUNT];
    dsc_aio_file file[DSC_CKPT_TENSOR_FILE_COUNT]; /* the descriptor is past_cache's */
} dsc_ckpt_direct;

/* Opens nothing yet. The run's aio options, but for a depth that the disk is not kept busy with. */
void dsc_ckpt_direct_open(dsc_ckpt_direct *d, dsc_alloc *alloc, const dsc_io *io, const dsc_aio_options *aio);
/* d->aio and d->file[f], a file of `dir`, are there. */
DSC_MUST_USE dsc_status dsc_ckpt_direct_file(dsc_ckpt_direct *d, const char *dir, int f, dsc_io_mode mode,
                                             dsc_error *err);
/* Nothing of it is under way. */
dsc_status dsc_ckpt_direct_close_file(dsc_ckpt_direct *d, int f, dsc_error *err);
/* After anything. */
void dsc_ckpt_direct_close(dsc_ckpt_direct *d);

#endif
