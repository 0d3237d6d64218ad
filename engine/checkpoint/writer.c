/* writer.c - see writer.h.
 *
 * Why past the page cache: a checkpoint is as large as memory and read in another life. Copying it into the cache takes
 * a core away from training, and its writeback comes in one wave with the fsync.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/checkpoint/writer.h"

static dsc_status wait_write(void *user, int32_t slot, dsc_stream *by, dsc_error *err)
{
    dsc_ckpt_writer *w = user;
    DSC_ASSERT(by == NULL);
    return dsc_aio_wait(w->direct.aio, &w->op[slot], err);
}

void dsc_ckpt_writer_open(dsc_ckpt_writer *w, dsc_alloc *alloc, const dsc_io *io, const dsc_aio_options *aio)
{
    *w = (dsc_ckpt_writer) { .alloc = alloc, .io = io };
    dsc_ckpt_direct_open(&w->direct, alloc, io, aio);
    dsc_staging_open(&w->staging, DSC_CKPT_WRITES_MOST, wait_write, w);
    for (int f = 0; f < DSC_CKPT_TENSOR_FILE_COUNT; f++)
        w->file[f] = (dsc_file)DSC_FILE_INIT;
}

dsc_status dsc_ckpt_writer_files(dsc_ckpt_writer *w, const char *dir, dsc_error *err)
{
    DSC_ASSERT(w != NULL && dir != NULL);
    w->dir = dir;
    for (int f = 0; f < DSC_CKPT_TENSOR_FILE_COUNT; f++) {
        char path[DSC_CKPT_PATH_BYTES];
        if (w->file[f].fd >= 0)
            continue;
        DSC_TRY(dsc_path_join(path, sizeof path, dir, dsc_ckpt_file_name[f], err));
        DSC_TRY(dsc_io_open(w->io, path, DSC_IO_READ_WRITE, &w->file[f], err));
    }
    return DSC_OK;
}

/* Whole blocks, or anything where there is no O_DIRECT. */
static dsc_status start(dsc_ckpt_writer *w, int f, char *from, int64_t first, int64_t bytes, dsc_error *err)
{
    DSC_ASSERT(bytes > 0 && first >= 0);
    int32_t slot;
    DSC_TRY(dsc_staging_acquire(&w->staging, NULL, &slot, err));
    dsc_aio_op *op = &w->op[slot];
    *op = (dsc_aio_op){ .file = &w->direct.file[f], .write = true, .buf = from, .bytes = bytes, .offset = first };
    dsc_aio_submit(w->direct.aio, op);
    return DSC_OK;
}

dsc_status dsc_ckpt_writer_write(dsc_ckpt_writer *w, int file, char *from, int64_t first, int64_t bytes, dsc_error *err)
{
    DSC_ASSERT(file >= 0 && file < DSC_CKPT_TENSOR_FILE_COUNT);
    DSC_ASSERT(first >= 0 && bytes > 0);
    DSC_ASSERT(w->file[file].fd >= 0);
    if (bytes < DSC_CKPT_LONG_BYTES)
        return dsc_io_write(w->io, &w->file[file], from, bytes, first, err);
    DSC_TRY(dsc_ckpt_direct_file(&w->direct, w->dir, file, DSC_IO_READ_WRITE, err));
    const int64_t align = w->direct.file[file].direct ? DSC_AIO_ALIGN : 1, end = first + bytes;
    const int64_t low = dsc_align_up(first, align), high = end - end % align;
    DSC_ASSERT(((intptr_t)from - first) % align == 0);
    if (low > first)
        DSC_TRY(dsc_io_write(w->io, &w->file[file], from, low - first, first, err));
    for (int64_t at = low, now; at < high; at += now) {
        now = dsc_min_i64(high - at, DSC_CKPT_BLOCK_BYTES);
        DSC_TRY(start(w, file, from + (at - first), at, now, err));
    }
    return high < end ? dsc_io_write(w->io, &w->file[file], from + (high - first), end - high, high, err) : DSC_OK;
}

dsc_status dsc_ckpt_writer_wait(dsc_ckpt_writer *w, int64_t count, dsc_error *err)
{
    DSC_ASSERT(count >= 0);
    return dsc_staging_end(&w->staging, count, err);
}

dsc_status dsc_ckpt_writer_sync(dsc_ckpt_writer *w, dsc_error *err)
{
    DSC_ASSERT(w != NULL);
    DSC_TRY(dsc_ckpt_writer_wait(w, w->staging.begun, err));
    for (int f = 0; f < DSC_CKPT_TENSOR_FILE_COUNT; f++) {
        DSC_TRY(dsc_ckpt_direct_close_file(&w->direct, f, err));
        DSC_TRY(dsc_io_fsync(w->io, &w->file[f], err));
        DSC_TRY(dsc_io_close(w->io, &w->file[f], err));
    }
    return DSC_OK;
}

void dsc_ckpt_writer_close(dsc_ckpt_writer *w)
{
    DSC_ASSERT(w != NULL);
    dsc_staging_drain(&w->staging); /* the failure before is the one to report */
    dsc_ckpt_direct_close(&w->direct);
    for (int f = 0; f < DSC_CKPT_TENSOR_FILE_COUNT; f++)
        (void)dsc_io_close(w->io, &w->file[f], NULL);
}
