/* die_at.c - preloaded into a program: kills it with SIGKILL at one file operation, as no test inside it could, or lets
 * a write find the disk full.
 *
 * DIE_RANK    the rank that dies (its RANK)
 * DIE_OP      open, write, fsync, rename, unlink, mkdir, rmdir, truncate
 * DIE_PATH    which files, a pattern for fnmatch with extensions; of a rename the new name
 * DIE_NTH     the how manieth such operation, from 1
 * DIE_WHEN    before it, after it, or half: a write of half of its bytes; full: it lives on, the write has ENOSPC
 * SPDX-License-Identifier: Apache-2.0 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int seen; /* matching operations so far; one rank writes from one thread */

static int is(const char *name, const char *value)
{
    const char *set = getenv(name);
    return set != NULL && strcmp(set, value) == 0;
}

/* True at the operation that was asked for. */
static int due(const char *op, const char *path)
{
    const char *rank = getenv("RANK"), *pattern = getenv("DIE_PATH"), *nth = getenv("DIE_NTH");
    if (rank == NULL || pattern == NULL || !is("DIE_RANK", rank) || !is("DIE_OP", op) ||
        fnmatch(pattern, path, FNM_EXTMATCH) != 0)
        return 0;
    return ++seen == (nth != NULL ? atoi(nth) : 1);
}

static void die(int now, const char *when)
{
    if (now && is("DIE_WHEN", when))
        kill(getpid(), SIGKILL);
}

/* Data and function pointers have one size here; C has no cast between them. */
#define REAL(type, name)                                  \
    static __typeof__(type) real;                         \
    if (real == NULL) {                                   \
        void *found = dlsym(RTLD_NEXT, name);             \
        memcpy(&real, &found, sizeof real);               \
    }

static void path_of(int fd, char *path, size_t bytes)
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t length = readlink(link, path, bytes - 1);
    path[length > 0 ? length : 0] = 0;
}

int open(const char *path, int flags, ...)
{
    REAL(int (*)(const char *, int, ...), "open")
    va_list args;
    va_start(args, flags);
    const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(args, mode_t) : 0;
    va_end(args);
    const int now = due("open", path);
    die(now, "before");
    const int fd = real(path, flags, mode);
    die(now, "after");
    return fd;
}

ssize_t pwrite(int fd, const void *from, size_t bytes, off_t offset)
{
    REAL(ssize_t (*)(int, const void *, size_t, off_t), "pwrite")
    char path[4096];
    path_of(fd, path, sizeof path);
    const int now = due("write", path);
    die(now, "before");
    if (now && is("DIE_WHEN", "full")) {
        errno = ENOSPC;
        return -1;
    }
    if (now && is("DIE_WHEN", "half")) {
        const ssize_t half = real(fd, from, bytes / 2, offset);
        kill(getpid(), half >= 0 ? SIGKILL : SIGABRT);
    }
    const ssize_t count = real(fd, from, bytes, offset);
    die(now, "after");
    return count;
}

#define WRAP(name, op, real_type, path, ...)              \
    {                                                     \
        REAL(real_type, name)                             \
        const int now = due(op, path);                    \
        die(now, "before");                               \
        const int result = real(__VA_ARGS__);             \
        die(now, "after");                                \
        return result;                                    \
    }

int rename(const char *from, const char *to) WRAP("rename", "rename", int (*)(const char *, const char *), to, from, to)
int mkdir(const char *path, mode_t mode) WRAP("mkdir", "mkdir", int (*)(const char *, mode_t), path, path, mode)
int rmdir(const char *path) WRAP("rmdir", "rmdir", int (*)(const char *), path, path)
int unlink(const char *path) WRAP("unlink", "unlink", int (*)(const char *), path, path)

int fsync(int fd)
{
    char path[4096];
    path_of(fd, path, sizeof path);
    WRAP("fsync", "fsync", int (*)(int), path, fd)
}

int ftruncate(int fd, off_t bytes)
{
    char path[4096];
    path_of(fd, path, sizeof path);
    WRAP("ftruncate", "truncate", int (*)(int, off_t), path, fd, bytes)
}

int unlinkat(int fd, const char *name, int flags)
{
    char path[4096], whole[8192];
    path_of(fd, path, sizeof path);
    snprintf(whole, sizeof whole, "%s/%s", path, name);
    WRAP("unlinkat", "unlink", int (*)(int, const char *, int), whole, fd, name, flags)
}
