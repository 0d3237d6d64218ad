/* io.c - files: open, read, write, make durable, rename, remove; texts of paths.
 *
 * Every call asks the hook first, resumes what the system cut short, and names the path and the reason when it fails.
 * Only regular files are opened, and without waiting: a pipe or a device under an expected name must not hang a run.
 * Folders are in io_dir.c, and whole files, which need both, in io_file.c. SPDX-License-Identifier: Apache-2.0 */
#include "base/io.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/io_internal.h"

dsc_status dsc_io_fail(dsc_error *err, dsc_status status, int errno_value, const char *path, const char *what)
{
    char buffer[128];
    return DSC_FAIL(err, status, path, "%s: %s", what, strerror_r(errno_value, buffer, sizeof buffer));
}

dsc_status dsc_io_path_status(int errno_value)
{
    switch (errno_value) {
    case ENOENT: case ENOTDIR: case EISDIR: case EACCES: case EPERM: case EROFS: case ELOOP: case ENAMETOOLONG:
        return DSC_ERR_INPUT;
    default: return DSC_ERR_IO;
    }
}

dsc_status dsc_io_before(const dsc_io *io, dsc_io_op op, const char *path, int64_t offset, int64_t bytes,
                         dsc_error *err)
{
    static const char *const names[DSC_IO_OP_COUNT] = { "open",        "read",   "write", "fsync", "rename", "unlink",
                                                        "make folder", "resize", "close", "list",  "reserve" };
    if (io == NULL || io->hook.before == NULL)
        return DSC_OK;
    int errno_value = 0;
    const dsc_status status = io->hook.before(io->hook.user, op, path, offset, bytes, &errno_value);
    if (status == DSC_OK)
        return DSC_OK;
    char what[64];
    snprintf(what, sizeof what, "cannot %s", names[op]);
    if (errno_value != 0)
        return dsc_io_fail(err, status, errno_value, path, what);
    return DSC_FAIL(err, status, path, "%s: refused by the hook", what);
}

/* Refuses what is not a regular file, and makes the descriptor blocking again: io_uring answers EAGAIN for cold pages
 * on a non-blocking one. */
static dsc_status check_opened(int fd, const char *path, dsc_error *err)
{
    struct stat st;
    if (fstat(fd, &st) != 0)
        return dsc_io_fail(err, DSC_ERR_IO, errno, path, "cannot look at it");
    if (S_ISDIR(st.st_mode))
        return DSC_FAIL(err, DSC_ERR_INPUT, path, "is a folder; expected a file");
    if (!S_ISREG(st.st_mode))
        return DSC_FAIL(err, DSC_ERR_INPUT, path, "is a pipe or a device; expected a regular file");
    const int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags & ~O_NONBLOCK) != 0)
        return dsc_io_fail(err, DSC_ERR_IO, errno, path, "cannot set its flags");
    return DSC_OK;
}

/* A relative path is one from the current folder, which users of a launcher or a batch system may not know. */
static dsc_status fail_missing(const char *path, dsc_error *err)
{
    char folder[256], reason[128];
    const dsc_status status = dsc_io_path_status(ENOENT);
    const char *text = strerror_r(ENOENT, reason, sizeof reason);
    if (path[0] != '/' && getcwd(folder, sizeof folder) != NULL)
        return DSC_FAIL(err, status, path, "cannot open: %s; give a file that is there, by its path from %s or from /",
                        text, folder);
    return DSC_FAIL(err, status, path, "cannot open: %s; give a file that is there", text);
}

dsc_status dsc_io_open(const dsc_io *io, const char *path, dsc_io_mode mode, dsc_file *out, dsc_error *err)
{
    out->fd = -1;
    snprintf(out->path, sizeof out->path, "%s", path);
    DSC_TRY(dsc_io_before(io, DSC_IO_OPEN, path, 0, 0, err));
    int flags = O_CLOEXEC | O_NOCTTY | O_NONBLOCK;
    switch (mode) {
    case DSC_IO_READ_ONLY: flags |= O_RDONLY; break;
    case DSC_IO_CREATE: flags |= O_RDWR | O_CREAT | O_TRUNC; break;
    case DSC_IO_CREATE_NEW: flags |= O_RDWR | O_CREAT | O_EXCL; break;
    case DSC_IO_READ_WRITE: flags |= O_RDWR; break;
    case DSC_IO_APPEND: flags |= O_WRONLY | O_APPEND; break; /* Linux's pwrite appends then, too */
    }
    int fd = -1;
    do {
        fd = open(path, flags, 0644);
    } while (fd < 0 && errno == EINTR);
    if (fd < 0) {
        const int reason = errno;
        if (reason == EISDIR)
            return DSC_FAIL(err, DSC_ERR_INPUT, path, "is a folder; expected a file");
        if (reason == ENOENT && mode == DSC_IO_READ_ONLY)
            return fail_missing(path, err);
        return dsc_io_fail(err, dsc_io_path_status(reason), reason, path, "cannot open");
    }
    const dsc_status status = check_opened(fd, path, err);
    if (status != DSC_OK) {
        close(fd);
        return status;
    }
    out->fd = fd;
    return DSC_OK;
}

dsc_status dsc_io_close(const dsc_io *io, dsc_file *file, dsc_error *err)
{
    if (file->fd < 0)
        return DSC_OK;
    const dsc_status status = dsc_io_before(io, DSC_IO_CLOSE, file->path, 0, 0, err);
    const int fd = file->fd;
    file->fd = -1;
    /* Never twice: on Linux the descriptor is gone even when close is interrupted. */
    if (close(fd) != 0 && errno != EINTR && status == DSC_OK)
        return dsc_io_fail(err, DSC_ERR_IO, errno, file->path, "cannot close");
    return status;
}

dsc_status dsc_io_read_some(const dsc_io *io, dsc_file *file, void *to, int64_t bytes, int64_t offset, int64_t *got,
                            dsc_error *err)
{
    DSC_ASSERT(bytes >= 0);
    DSC_ASSERT(offset >= 0);
    *got = 0;
    if (file->fd < 0)
        return DSC_FAIL(err, DSC_ERR_STATE, file->path, "read from a closed file");
    DSC_TRY(dsc_io_before(io, DSC_IO_READ, file->path, offset, bytes, err));
    while (*got < bytes) {
        const ssize_t n = pread(file->fd, (char *)to + *got, (size_t)(bytes - *got), (off_t)(offset + *got));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return dsc_io_fail(err, DSC_ERR_IO, errno, file->path, "cannot read");
        if (n == 0)
            break;
        *got += n;
    }
    return DSC_OK;
}

dsc_status dsc_io_read(const dsc_io *io, dsc_file *file, void *to, int64_t bytes, int64_t offset, dsc_error *err)
{
    int64_t got = 0;
    DSC_TRY(dsc_io_read_some(io, file, to, bytes, offset, &got, err));
    if (got < bytes)
        return DSC_FAIL(err, DSC_ERR_INPUT, file->path,
                        "truncated: %lld bytes at offset %lld expected, the file ends after %lld of them",
                        (long long)bytes, (long long)offset, (long long)got);
    return DSC_OK;
}

void dsc_io_expect(const dsc_file *file, int64_t bytes, int64_t offset)
{
    (void)posix_fadvise(file->fd, (off_t)offset, (off_t)bytes, POSIX_FADV_WILLNEED); /* only time is lost without */
}

dsc_status dsc_io_write(const dsc_io *io, dsc_file *file, const void *from, int64_t bytes, int64_t offset,
                        dsc_error *err)
{
    DSC_ASSERT(bytes >= 0);
    DSC_ASSERT(offset >= 0);
    if (file->fd < 0)
        return DSC_FAIL(err, DSC_ERR_STATE, file->path, "write to a closed file");
    DSC_TRY(dsc_io_before(io, DSC_IO_WRITE, file->path, offset, bytes, err));
    int64_t done = 0;
    while (done < bytes) {
        const ssize_t n = pwrite(file->fd, (const char *)from + done, (size_t)(bytes - done), (off_t)(offset + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return dsc_io_fail(err, DSC_ERR_IO, n < 0 ? errno : ENOSPC, file->path, "cannot write");
        done += n;
    }
    return DSC_OK;
}

dsc_status dsc_io_size(const dsc_io *io, dsc_file *file, int64_t *bytes, dsc_error *err)
{
    struct stat st;
    *bytes = 0;
    if (file->fd < 0)
        return DSC_FAIL(err, DSC_ERR_STATE, file->path, "size of a closed file");
    if (fstat(file->fd, &st) != 0)
        return dsc_io_fail(err, DSC_ERR_IO, errno, file->path, "cannot look at it");
    *bytes = st.st_size;
    return DSC_OK;
}

dsc_status dsc_io_resize(const dsc_io *io, dsc_file *file, int64_t bytes, dsc_error *err)
{
    DSC_ASSERT(bytes >= 0);
    if (file->fd < 0)
        return DSC_FAIL(err, DSC_ERR_STATE, file->path, "resize of a closed file");
    DSC_TRY(dsc_io_before(io, DSC_IO_RESIZE, file->path, 0, bytes, err));
    int failed = 0;
    do {
        failed = ftruncate(file->fd, (off_t)bytes);
    } while (failed != 0 && errno == EINTR);
    return failed == 0 ? DSC_OK : dsc_io_fail(err, DSC_ERR_IO, errno, file->path, "cannot resize");
}

static int fsync_resumed(int fd)
{
    int failed = 0;
    do {
        failed = fsync(fd);
    } while (failed != 0 && errno == EINTR); /* any other failure is final: the pages may be gone */
    return failed == 0 ? 0 : errno;
}

dsc_status dsc_io_fsync(const dsc_io *io, dsc_file *file, dsc_error *err)
{
    if (file->fd < 0)
        return DSC_FAIL(err, DSC_ERR_STATE, file->path, "fsync of a closed file");
    DSC_TRY(dsc_io_before(io, DSC_IO_FSYNC, file->path, 0, 0, err));
    const int reason = fsync_resumed(file->fd);
    return reason == 0 ? DSC_OK : dsc_io_fail(err, DSC_ERR_IO, reason, file->path, "cannot fsync");
}

dsc_status dsc_io_fsync_dir(const dsc_io *io, const char *path, dsc_error *err)
{
    DSC_TRY(dsc_io_before(io, DSC_IO_FSYNC, path, 0, 0, err));
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return dsc_io_fail(err, DSC_ERR_IO, errno, path, "cannot open the folder");
    const int reason = fsync_resumed(fd);
    close(fd);
    /* EINVAL: a file system without fsync of folders (some network ones); there is nothing more to ask it for. */
    if (reason != 0 && reason != EINVAL)
        return dsc_io_fail(err, DSC_ERR_IO, reason, path, "cannot fsync the folder");
    return DSC_OK;
}

dsc_status dsc_io_rename(const dsc_io *io, const char *from, const char *to, dsc_error *err)
{
    DSC_TRY(dsc_io_before(io, DSC_IO_RENAME, to, 0, 0, err));
    if (rename(from, to) == 0)
        return DSC_OK;
    char buffer[128];
    return DSC_FAIL(err, DSC_ERR_IO, to, "cannot rename \"%s\" to this: %s", from,
                    strerror_r(errno, buffer, sizeof buffer));
}

dsc_status dsc_io_unlink(const dsc_io *io, const char *path, dsc_error *err)
{
    DSC_TRY(dsc_io_before(io, DSC_IO_UNLINK, path, 0, 0, err));
    return unlink(path) == 0 ? DSC_OK : dsc_io_fail(err, DSC_ERR_IO, errno, path, "cannot remove");
}

dsc_status dsc_path_join(char *out, size_t out_bytes, const char *dir, const char *name, dsc_error *err)
{
    const size_t dir_bytes = strlen(dir);
    const char *between = dir_bytes == 0 || dir[dir_bytes - 1] == '/' ? "" : "/";
    const int length = snprintf(out, out_bytes, "%s%s%s", dir, between, name);
    if (length < 0 || (size_t)length >= out_bytes)
        return DSC_FAIL(err, DSC_ERR_INPUT, name, "path is longer than %zu bytes with its folder", out_bytes - 1);
    return DSC_OK;
}

bool dsc_path_is_plain(const char *name)
{
    const size_t bytes = strlen(name);
    if (bytes == 0 || bytes > 255 || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
        return false;
    for (const unsigned char *c = (const unsigned char *)name; *c != 0; c++)
        if (*c < 0x20 || *c == 0x7f || *c == '/')
            return false;
    return true;
}
