/* io_file.c - whole files in and out. SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "base/io_internal.h"

/* Replaces *text by a block of `bytes` bytes with the first `used` bytes kept. */
static dsc_status grow(dsc_alloc *alloc, char **text, int64_t used, int64_t bytes, dsc_error *err)
{
    char *wider = NULL;
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_IO, bytes, 1, &wider, err));
    if (used > 0)
        memcpy(wider, *text, (size_t)used);
    dsc_alloc_free(alloc, *text);
    *text = wider;
    return DSC_OK;
}

/* Reads to the end whatever fstat said: files of /proc have size 0, those of /sys 4096, and a log may grow. One byte
 * more than the size is asked for, so the end is seen without another allocation. */
static dsc_status read_to_end(const dsc_io *io, dsc_alloc *alloc, dsc_file *file, int64_t max_bytes, char **text,
                              int64_t *bytes, dsc_error *err)
{
    int64_t size = 0;
    DSC_TRY(dsc_io_size(io, file, &size, err));
    int64_t capacity = size == 0 ? 4096 : size;
    int64_t used = 0;
    for (;;) {
        if (capacity > max_bytes)
            capacity = max_bytes;
        if (size > max_bytes || used > max_bytes)
            return DSC_FAIL(err, DSC_ERR_INPUT, file->path, "larger than the %lld bytes allowed here",
                            (long long)max_bytes);
        DSC_TRY(grow(alloc, text, used, capacity + 2, err)); /* the byte that must not come, and the NUL */
        int64_t got = 0;
        DSC_TRY(dsc_io_read_some(io, file, *text + used, capacity + 1 - used, used, &got, err));
        used += got;
        if (used <= capacity) {
            (*text)[used] = 0;
            *bytes = used;
            return DSC_OK;
        }
        capacity *= 2;
    }
}

dsc_status dsc_io_read_all(const dsc_io *io, dsc_alloc *alloc, const char *path, int64_t max_bytes, char **out,
                           int64_t *bytes, dsc_error *err)
{
    DSC_ASSERT(max_bytes >= 0);
    DSC_ASSERT(max_bytes < INT64_MAX / 4);
    *out = NULL;
    *bytes = 0;
    dsc_file file = DSC_FILE_INIT;
    char *text = NULL;
    dsc_status status = DSC_OK;
    DSC_TRY_OUT(dsc_io_open(io, path, DSC_IO_READ_ONLY, &file, err));
    DSC_TRY_OUT(read_to_end(io, alloc, &file, max_bytes, &text, bytes, err));
    DSC_TRY_OUT(dsc_io_close(io, &file, err));
    *out = text;
    return DSC_OK;
out:
    dsc_io_close(NULL, &file, NULL);
    dsc_alloc_free(alloc, text);
    *bytes = 0;
    return status;
}

void dsc_open_standard_files(void)
{
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF)
            (void)!open("/dev/null", O_RDWR);
}

/* The folder that holds `path`, for its fsync. */
static dsc_status parent_of(const char *path, char *out, size_t out_bytes, dsc_error *err)
{
    const char *slash = strrchr(path, '/');
    const int length = slash == NULL ? 1 : slash == path ? 1 : (int)(slash - path);
    if ((size_t)length >= out_bytes)
        return DSC_FAIL(err, DSC_ERR_INPUT, path, "path is longer than %zu bytes", out_bytes - 1);
    snprintf(out, out_bytes, "%.*s", length, slash == NULL ? "." : path);
    return DSC_OK;
}

/* A new file under the temporary name. A rest of an interrupted run is removed, never written through: it could be a
 * link to somewhere else. */
static dsc_status open_tmp(const dsc_io *io, const char *path, dsc_file *file, dsc_error *err)
{
    if (dsc_io_kind(path) != DSC_PATH_MISSING)
        DSC_TRY(dsc_io_unlink(io, path, err));
    return dsc_io_open(io, path, DSC_IO_CREATE_NEW, file, err);
}

dsc_status dsc_io_write_all_atomic(const dsc_io *io, const char *path, const void *from, int64_t bytes, dsc_error *err)
{
    char tmp[4096];
    char parent[4096];
    if ((size_t)snprintf(tmp, sizeof tmp, "%s.tmp", path) >= sizeof tmp)
        return DSC_FAIL(err, DSC_ERR_INPUT, path, "path is longer than %zu bytes", sizeof tmp - 5);
    DSC_TRY(parent_of(path, parent, sizeof parent, err));
    dsc_file file = DSC_FILE_INIT;
    dsc_status status = DSC_OK;
    DSC_TRY(open_tmp(io, tmp, &file, err));
    DSC_TRY_OUT(dsc_io_write(io, &file, from, bytes, 0, err));
    DSC_TRY_OUT(dsc_io_fsync(io, &file, err));
    DSC_TRY_OUT(dsc_io_close(io, &file, err));
    DSC_TRY_OUT(dsc_io_rename(io, tmp, path, err));
    return dsc_io_fsync_dir(io, parent, err);
out:
    dsc_io_close(NULL, &file, NULL);
    (void)!dsc_io_unlink(NULL, tmp, NULL); /* the first failure is the one to report */
    return status;
}
