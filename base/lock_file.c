/* lock_file.c - see lock_file.h. flock() and not fcntl(): ranks that are threads of one process exclude each other too.
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/lock_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"

#define RETRY_NS INT64_C(20000000)

/* Whether the path still names what was locked: who held it before may have removed it in between. */
static bool still_named(const dsc_lock_file *lock)
{
    struct stat held, named;
    return fstat(lock->fd, &held) == 0 && lstat(lock->path, &named) == 0 && held.st_ino == named.st_ino &&
           held.st_dev == named.st_dev;
}

dsc_status dsc_lock_file_take(const char *path, dsc_lock_file *lock, dsc_error *err)
{
    *lock = (dsc_lock_file)DSC_LOCK_FILE_INIT;
    if ((size_t)snprintf(lock->path, sizeof lock->path, "%s", path) >= sizeof lock->path)
        return DSC_FAIL(err, DSC_ERR_INPUT, path, "the path is too long");
    for (;; dsc_clock_sleep_ns(RETRY_NS)) {
        lock->fd = open(lock->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (lock->fd < 0)
            return DSC_FAIL(err, DSC_ERR_INPUT, path, "cannot be made: %s", strerror(errno));
        if (flock(lock->fd, LOCK_EX | LOCK_NB) == 0 && still_named(lock))
            return DSC_OK;
        const int reason = errno;
        const bool other = reason != EWOULDBLOCK && reason != EINTR && still_named(lock);
        close(lock->fd);
        lock->fd = -1;
        if (other)
            return DSC_FAIL(err, DSC_ERR_INPUT, path, "cannot be locked: %s", strerror(reason));
    }
}

void dsc_lock_file_give(dsc_lock_file *lock)
{
    if (lock->fd < 0)
        return;
    unlink(lock->path);
    close(lock->fd);
    lock->fd = -1;
}
