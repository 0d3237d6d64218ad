/* io_unnamed.c - files without a name or past the page cache, and space that is taken before it is needed.
 *
 * On file systems without the call, glibc's posix_fallocate writes a byte into every block. O_DIRECT files refuse that,
 * and it takes as long as writing everything. So the plain system call is used, and the caller decides.
 * SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/io_internal.h"

static int open_without_name(const char *folder)
{
    const int fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL))
        return fd;
    /* The file system has no O_TMPFILE: a name nobody knows, removed at once. */
    char path[1100];
    snprintf(path, sizeof path, "%s/.dsc-%d-%lld", folder, (int)getpid(), (long long)dsc_clock_wall_ns());
    const int named = open(path, O_CREAT | O_EXCL | O_NOFOLLOW | O_RDWR | O_CLOEXEC, 0600);
    if (named >= 0)
        (void)unlink(path);
    return named;
}

static bool make_direct(int fd)
{
    const int flags = fcntl(fd, F_GETFL);
    return flags >= 0 && fcntl(fd, F_SETFL, flags | O_DIRECT) == 0;
}

dsc_status dsc_io_open_unnamed(const dsc_io *io, const char *folder, dsc_file *out, bool *direct, dsc_error *err)
{
    out->fd = -1;
    snprintf(out->path, sizeof out->path, "a file in %.1000s", folder);
    DSC_TRY(dsc_io_before(io, DSC_IO_OPEN, folder, 0, 0, err));
    out->fd = open_without_name(folder);
    if (out->fd < 0)
        return dsc_io_fail(err, dsc_io_path_status(errno), errno, folder, "no file can be made there");
    /* Afterwards, since an open that is refused for O_DIRECT can leave the new file behind. */
    *direct = make_direct(out->fd);
    return DSC_OK;
}

dsc_status dsc_io_open_direct(const dsc_io *io, const char *path, dsc_io_mode mode, dsc_file *out, bool *direct,
                              dsc_error *err)
{
    DSC_TRY(dsc_io_open(io, path, mode, out, err));
    *direct = make_direct(out->fd);
    return DSC_OK;
}

dsc_status dsc_io_reserve(const dsc_io *io, dsc_file *file, int64_t bytes, bool *taken, dsc_error *err)
{
    int failed = 0;
    *taken = false;
    if (io != NULL && io->hook.before != NULL) {
        const dsc_status status = io->hook.before(io->hook.user, DSC_IO_RESERVE, file->path, 0, bytes, &failed);
        if (status != DSC_OK && failed == 0)
            return DSC_FAIL(err, status, file->path, "cannot reserve: refused by the hook");
    }
    while (failed == 0 && fallocate(file->fd, 0, 0, bytes) != 0)
        failed = errno == EINTR ? 0 : errno;
    if (failed == EOPNOTSUPP || failed == ENOSYS)
        return DSC_OK;
    *taken = failed == 0;
    if (failed == ENOSPC || failed == EDQUOT || failed == EFBIG)
        return dsc_io_fail(err, DSC_ERR_NOFIT, failed, file->path, "its space cannot be taken");
    if (failed != 0)
        return dsc_io_fail(err, DSC_ERR_IO, failed, file->path, "its space cannot be taken");
    return DSC_OK;
}
