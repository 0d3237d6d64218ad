/* direct.c - see direct.h. SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "engine/checkpoint/direct.h"

void dsc_ckpt_direct_open(dsc_ckpt_direct *d, dsc_alloc *alloc, const dsc_io *io, const dsc_aio_options *aio)
{
    *d = (dsc_ckpt_direct) { .io = io, .options = *aio };
    d->options.alloc = alloc;
    if (d->options.queue_depth < DSC_CKPT_DIRECT_DEPTH)
        d->options.queue_depth = DSC_CKPT_DIRECT_DEPTH;
    if (io != NULL && io->blocks != NULL)
        d->options.hook = *io->blocks;
    for (int f = 0; f < DSC_CKPT_TENSOR_FILE_COUNT; f++) {
        d->past_cache[f] = (dsc_file)DSC_FILE_INIT;
        d->file[f] = (dsc_aio_file)DSC_AIO_FILE_INIT;
    }
}

dsc_status dsc_ckpt_direct_file(dsc_ckpt_direct *d, const char *dir, int f, dsc_io_mode mode, dsc_error *err)
{
    DSC_ASSERT(f >= 0 && f < DSC_CKPT_TENSOR_FILE_COUNT);
    DSC_ASSERT(dir != NULL);
    char path[DSC_CKPT_PATH_BYTES];
    if (d->aio == NULL)
        DSC_TRY(dsc_aio_open(&d->options, &d->aio, err));
    if (d->past_cache[f].fd >= 0)
        return DSC_OK;
    DSC_TRY(dsc_ckpt_file_path(path, dir, dsc_ckpt_file_name[f], err));
    DSC_TRY(dsc_io_open_direct(d->io, path, mode, &d->past_cache[f], &d->file[f].direct, err));
    d->file[f].fd = d->past_cache[f].fd;
    memcpy(d->file[f].path, d->past_cache[f].path, sizeof d->file[f].path);
    return DSC_OK;
}

dsc_status dsc_ckpt_direct_close_file(dsc_ckpt_direct *d, int f, dsc_error *err)
{
    DSC_ASSERT(f >= 0 && f < DSC_CKPT_TENSOR_FILE_COUNT);
    d->file[f].fd = -1;
    return dsc_io_close(d->io, &d->past_cache[f], err);
}

void dsc_ckpt_direct_close(dsc_ckpt_direct *d)
{
    DSC_ASSERT(d != NULL);
    dsc_aio_close(&d->aio);
    for (int f = 0; f < DSC_CKPT_TENSOR_FILE_COUNT; f++)
        (void)dsc_ckpt_direct_close_file(d, f, NULL);
}
