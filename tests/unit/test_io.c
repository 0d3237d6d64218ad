/* test_io.c - files: what the system cuts short is resumed, what it refuses is named, every operation can be failed.
 *
 * pread, pwrite and fsync of this program are its own (below), so that short counts, EINTR, a full disk and a
 * bad sector happen on command. SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/io.h"

static struct {
    bool active;
    int64_t most_bytes;   /* that a call moves at most */
    int interrupt_every;  /* every n-th call is EINTR first; 0: none */
    int fail_call;        /* this call (from 1) fails with fail_errno */
    int fail_errno;       /* 0: returns 0 instead */
    int calls;
    int fsync_errno;
    int fsync_calls;
} sys;

/* True when the call must return *result. */
static bool meddle(size_t *bytes, ssize_t *result)
{
    if (!sys.active)
        return false;
    sys.calls++;
    if (sys.interrupt_every > 0 && sys.calls % sys.interrupt_every == 0) {
        errno = EINTR;
        *result = -1;
        return true;
    }
    if (sys.calls == sys.fail_call) {
        errno = sys.fail_errno;
        *result = sys.fail_errno != 0 ? -1 : 0;
        return true;
    }
    if (sys.most_bytes > 0 && *bytes > (size_t)sys.most_bytes)
        *bytes = (size_t)sys.most_bytes;
    return false;
}

DSC_API ssize_t pread(int fd, void *to, size_t bytes, off_t offset)
{
    ssize_t result = 0;
    return meddle(&bytes, &result) ? result : syscall(SYS_pread64, fd, to, bytes, offset);
}

DSC_API ssize_t pwrite(int fd, const void *from, size_t bytes, off_t offset)
{
    ssize_t result = 0;
    return meddle(&bytes, &result) ? result : syscall(SYS_pwrite64, fd, from, bytes, offset);
}

DSC_API int fsync(int fd)
{
    sys.fsync_calls++;
    if (sys.active && sys.fsync_errno != 0) {
        errno = sys.fsync_errno;
        return -1;
    }
    return (int)syscall(SYS_fsync, fd);
}

static dsc_alloc *alloc;
static dsc_error err;
static char root[64];
static char *file_path, *other_path;

/* "root/name", freed by the caller. */
static char *at(const char *name)
{
    char path[512];
    if (dsc_path_join(path, sizeof path, root, name, NULL) != DSC_OK)
        abort();
    return strdup(path);
}

static int open_folder(void **state)
{
    (void)state;
    memset(&sys, 0, sizeof sys);
    err = (dsc_error)DSC_ERROR_INIT;
    snprintf(root, sizeof root, "/tmp/dsc_test_io.XXXXXX");
    if (mkdtemp(root) == NULL || dsc_alloc_open(&alloc, NULL) != DSC_OK)
        return -1;
    file_path = at("file");
    other_path = at("other");
    return 0;
}

static int open_descriptors(void)
{
    int count = 0;
    for (int fd = 0; fd < 256; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

static int descriptors_at_start;

static int close_folder(void **state)
{
    (void)state;
    memset(&sys, 0, sizeof sys);
    dsc_alloc_stats stats;
    dsc_alloc_stats_get(alloc, &stats);
    free(file_path);
    free(other_path);
    if (dsc_io_remove_dir(NULL, root, &err) != DSC_OK || stats.live_count != 0)
        return -1;
    dsc_alloc_close(&alloc);
    return open_descriptors() == descriptors_at_start ? 0 : -1;
}

static void put(const char *path, const char *text)
{
    assert_int_equal(dsc_io_write_all_atomic(NULL, path, text, (int64_t)strlen(text), &err), DSC_OK);
}

static void assert_holds(const char *path, const char *want)
{
    char *text = NULL;
    int64_t bytes = 0;
    if (dsc_io_read_all(NULL, alloc, path, 1 << 20, &text, &bytes, &err) != DSC_OK)
        fail_msg("%s: %s", err.where, err.message);
    assert_int_equal(bytes, strlen(want));
    assert_string_equal(text, want);
    dsc_alloc_free(alloc, text);
}

static void write_read_resize(void **state)
{
    (void)state;
    dsc_file file = DSC_FILE_INIT;
    int64_t bytes = 0;
    char back[11] = "";
    assert_int_equal(dsc_io_open(NULL, file_path, DSC_IO_CREATE_NEW, &file, &err), DSC_OK);
    assert_string_equal(file.path, file_path);
    assert_int_equal(fcntl(file.fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    assert_int_equal(fcntl(file.fd, F_GETFL) & O_NONBLOCK, 0);
    assert_int_equal(dsc_io_write(NULL, &file, "0123456789", 10, 5, &err), DSC_OK);
    assert_int_equal(dsc_io_size(NULL, &file, &bytes, &err), DSC_OK);
    assert_int_equal(bytes, 15);
    assert_int_equal(dsc_io_read(NULL, &file, back, 10, 5, &err), DSC_OK);
    assert_string_equal(back, "0123456789");
    assert_int_equal(dsc_io_read(NULL, &file, back, 0, 99, &err), DSC_OK);
    assert_int_equal(dsc_io_read(NULL, &file, back, 10, 6, &err), DSC_ERR_INPUT);
    assert_non_null(strstr(err.message, "truncated"));
    assert_non_null(strstr(err.message, "after 9 of them"));
    assert_string_equal(err.where, file_path);
    assert_int_equal(dsc_io_resize(NULL, &file, 7, &err), DSC_OK);
    assert_int_equal(dsc_io_size(NULL, &file, &bytes, &err), DSC_OK);
    assert_int_equal(bytes, 7);
    assert_int_equal(dsc_io_fsync(NULL, &file, &err), DSC_OK);
    assert_int_equal(dsc_io_close(NULL, &file, &err), DSC_OK);
    assert_int_equal(file.fd, -1);
    assert_int_equal(dsc_io_close(NULL, &file, &err), DSC_OK);
    assert_int_equal(dsc_io_read(NULL, &file, back, 1, 0, &err), DSC_ERR_STATE);
    assert_int_equal(dsc_io_write(NULL, &file, back, 1, 0, &err), DSC_ERR_STATE);
    assert_int_equal(dsc_io_fsync(NULL, &file, &err), DSC_ERR_STATE);
    assert_int_equal(dsc_io_resize(NULL, &file, 1, &err), DSC_ERR_STATE);
    assert_int_equal(dsc_io_size(NULL, &file, &bytes, &err), DSC_ERR_STATE);
}

static void modes(void **state)
{
    (void)state;
    dsc_file file = DSC_FILE_INIT;
    assert_int_equal(dsc_io_open(NULL, file_path, DSC_IO_READ_ONLY, &file, &err), DSC_ERR_INPUT);
    assert_string_equal(err.where, file_path);
    assert_non_null(strstr(err.message, "No such file"));
    assert_int_equal(file.fd, -1);
    assert_int_equal(dsc_io_open(NULL, file_path, DSC_IO_READ_WRITE, &file, &err), DSC_ERR_INPUT);
    put(file_path, "old");
    assert_int_equal(dsc_io_open(NULL, file_path, DSC_IO_CREATE_NEW, &file, &err), DSC_ERR_IO);
    assert_non_null(strstr(err.message, "exists"));
    assert_holds(file_path, "old");
    assert_int_equal(dsc_io_open(NULL, file_path, DSC_IO_READ_WRITE, &file, &err), DSC_OK);
    assert_int_equal(dsc_io_write(NULL, &file, "N", 1, 0, &err), DSC_OK);
    assert_int_equal(dsc_io_close(NULL, &file, &err), DSC_OK);
    assert_holds(file_path, "Nld");
    assert_int_equal(dsc_io_open(NULL, file_path, DSC_IO_READ_ONLY, &file, &err), DSC_OK);
    assert_int_equal(dsc_io_write(NULL, &file, "x", 1, 0, &err), DSC_ERR_IO);
    assert_int_equal(dsc_io_close(NULL, &file, &err), DSC_OK);
    assert_int_equal(dsc_io_open(NULL, file_path, DSC_IO_CREATE, &file, &err), DSC_OK);
    assert_int_equal(dsc_io_close(NULL, &file, &err), DSC_OK);
    assert_holds(file_path, "");
}

/* A pipe without a writer would hold a plain open() forever. */
static void only_regular_files(void **state)
{
    (void)state;
    dsc_file file = DSC_FILE_INIT;
    char *text = NULL;
    int64_t bytes = 0;
    assert_int_equal(mkfifo(file_path, 0600), 0);
    for (int mode = DSC_IO_READ_ONLY; mode <= DSC_IO_READ_WRITE; mode++) {
        if (mode == DSC_IO_CREATE_NEW)
            continue;
        assert_int_equal(dsc_io_open(NULL, file_path, (dsc_io_mode)mode, &file, &err), DSC_ERR_INPUT);
        assert_non_null(strstr(err.message, "a pipe or a device"));
        assert_int_equal(dsc_io_open(NULL, root, (dsc_io_mode)mode, &file, &err), DSC_ERR_INPUT);
        assert_non_null(strstr(err.message, "is a folder"));
    }
    assert_int_equal(dsc_io_read_all(NULL, alloc, file_path, 100, &text, &bytes, &err), DSC_ERR_INPUT);
    assert_int_equal(dsc_io_read_all(NULL, alloc, "/dev/zero", 100, &text, &bytes, &err), DSC_ERR_INPUT);
    assert_int_equal(dsc_io_read_all(NULL, alloc, root, 100, &text, &bytes, &err), DSC_ERR_INPUT);
    assert_null(text);
    assert_int_equal(dsc_io_kind(file_path), DSC_PATH_OTHER);
    assert_int_equal(unlink(file_path), 0);
    assert_int_equal(symlink(file_path, file_path), 0);
    assert_int_equal(dsc_io_open(NULL, file_path, DSC_IO_READ_ONLY, &file, &err), DSC_ERR_INPUT);
    assert_non_null(strstr(err.message, "symbolic links"));
}

static void short_counts_and_interrupts_are_resumed(void **state)
{
    (void)state;
    char text[1000], back[1000];
    for (int i = 0; i < 1000; i++)
        text[i] = (char)('a' + i % 26);
    for (int every = 0; every <= 3; every++) {
        if (every == 1)
            continue; /* would never end */
        dsc_file file = DSC_FILE_INIT;
        sys.active = true;
        sys.most_bytes = 7;
        sys.interrupt_every = every;
        assert_int_equal(dsc_io_open(NULL, file_path, DSC_IO_CREATE, &file, &err), DSC_OK);
        assert_int_equal(dsc_io_write(NULL, &file, text, 1000, 3, &err), DSC_OK);
        assert_int_equal(dsc_io_read(NULL, &file, back, 1000, 3, &err), DSC_OK);
        assert_true(sys.calls > 280);
        sys = (__typeof__(sys)){ 0 };
        assert_memory_equal(text, back, 1000);
        assert_int_equal(dsc_io_close(NULL, &file, &err), DSC_OK);
    }
}

static void system_failures_are_named(void **state)
{
    (void)state;
    char text[100] = "", back[100];
    dsc_file file = DSC_FILE_INIT;
    assert_int_equal(dsc_io_open(NULL, file_path, DSC_IO_CREATE, &file, &err), DSC_OK);
    sys = (__typeof__(sys)){ .active = true, .most_bytes = 10, .fail_call = 3, .fail_errno = ENOSPC };
    assert_int_equal(dsc_io_write(NULL, &file, text, 100, 0, &err), DSC_ERR_IO);
    assert_non_null(strstr(err.message, "cannot write: No space left"));
    assert_string_equal(err.where, file_path);
    sys = (__typeof__(sys)){ .active = true, .most_bytes = 10, .fail_call = 2, .fail_errno = 0 };
    assert_int_equal(dsc_io_write(NULL, &file, text, 100, 0, &err), DSC_ERR_IO); /* no progress: no endless loop */
    sys = (__typeof__(sys)){ .active = true, .fail_call = 1, .fail_errno = EIO };
    assert_int_equal(dsc_io_read(NULL, &file, back, 10, 0, &err), DSC_ERR_IO);
    assert_non_null(strstr(err.message, "cannot read: Input/output error"));
    sys = (__typeof__(sys)){ .active = true, .fsync_errno = EIO };
    assert_int_equal(dsc_io_fsync(NULL, &file, &err), DSC_ERR_IO);
    assert_non_null(strstr(err.message, "cannot fsync: Input/output error"));
    assert_int_equal(sys.fsync_calls, 1); /* never retried: the pages may be gone */
    assert_int_equal(dsc_io_fsync_dir(NULL, root, &err), DSC_ERR_IO);
    sys.fsync_errno = EINVAL; /* a file system without fsync of folders */
    assert_int_equal(dsc_io_fsync_dir(NULL, root, &err), DSC_OK);
    sys = (__typeof__(sys)){ 0 };
    assert_int_equal(dsc_io_fsync_dir(NULL, file_path, &err), DSC_ERR_IO);
    assert_int_equal(dsc_io_close(NULL, &file, &err), DSC_OK);
}

static void whole_files(void **state)
{
    (void)state;
    char *text = NULL;
    int64_t bytes = 0;
    put(file_path, "0123456789");
    assert_int_equal(dsc_io_read_all(NULL, alloc, file_path, 10, &text, &bytes, &err), DSC_OK);
    assert_int_equal(bytes, 10);
    assert_string_equal(text, "0123456789"); /* the NUL after the end */
    dsc_alloc_free(alloc, text);
    assert_int_equal(dsc_io_read_all(NULL, alloc, file_path, 9, &text, &bytes, &err), DSC_ERR_INPUT);
    assert_non_null(strstr(err.message, "larger than the 9 bytes"));
    assert_null(text);
    assert_int_equal(bytes, 0);
    put(file_path, "");
    assert_holds(file_path, "");
    assert_int_equal(dsc_io_read_all(NULL, alloc, file_path, 0, &text, &bytes, &err), DSC_OK);
    dsc_alloc_free(alloc, text);
    assert_int_equal(dsc_io_read_all(NULL, alloc, other_path, 10, &text, &bytes, &err), DSC_ERR_INPUT);
    /* Files of /proc say that they have 0 bytes; this one has some. */
    assert_int_equal(dsc_io_read_all(NULL, alloc, "/proc/self/status", 1 << 20, &text, &bytes, &err), DSC_OK);
    assert_true(bytes > 100);
    assert_int_equal(bytes, strlen(text));
    dsc_alloc_free(alloc, text);
    assert_int_equal(dsc_io_read_all(NULL, alloc, "/proc/self/status", 50, &text, &bytes, &err), DSC_ERR_INPUT);
    assert_int_equal(dsc_io_read_all(NULL, alloc, "/proc/self/status", 0, &text, &bytes, &err), DSC_ERR_INPUT);
}

/* A file that is longer than it said when it was opened, in pieces. */
static void a_growing_file_is_read_to_its_end(void **state)
{
    (void)state;
    enum { BYTES = 100000 };
    char *big = malloc(BYTES + 1);
    assert_non_null(big);
    memset(big, 'g', BYTES);
    big[BYTES] = 0;
    put(file_path, big);
    sys = (__typeof__(sys)){ .active = true, .most_bytes = 999 };
    assert_holds(file_path, big);
    free(big);
}

static void atomic_write_replaces_or_leaves(void **state)
{
    (void)state;
    char *tmp = at("file.tmp");
    put(file_path, "first");
    put(file_path, "second");
    assert_holds(file_path, "second");
    assert_int_equal(dsc_io_kind(tmp), DSC_PATH_MISSING);
    struct stat st;
    assert_int_equal(stat(file_path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0644);
    /* A rest of an interrupted run, and a link that points elsewhere: neither is written through. */
    put(other_path, "not ours");
    assert_int_equal(symlink(other_path, tmp), 0);
    put(file_path, "third");
    assert_holds(file_path, "third");
    assert_holds(other_path, "not ours");
    assert_int_equal(symlink("/nonexistent/place", tmp), 0);
    put(file_path, "fourth");
    put(tmp, "rest");
    put(file_path, "fifth");
    assert_holds(file_path, "fifth");
    sys = (__typeof__(sys)){ .active = true, .fail_call = 1, .fail_errno = ENOSPC };
    assert_int_equal(dsc_io_write_all_atomic(NULL, file_path, "sixth", 5, &err), DSC_ERR_IO);
    sys = (__typeof__(sys)){ .active = true, .fsync_errno = EIO };
    assert_int_equal(dsc_io_write_all_atomic(NULL, file_path, "sixth", 5, &err), DSC_ERR_IO);
    sys = (__typeof__(sys)){ 0 };
    assert_holds(file_path, "fifth");
    assert_int_equal(dsc_io_kind(tmp), DSC_PATH_MISSING);
    assert_int_equal(dsc_io_write_all_atomic(NULL, "/nonexistent/x", "a", 1, &err), DSC_ERR_INPUT);
    assert_non_null(strstr(err.where, "/nonexistent/x"));
    free(tmp);
}

/* The parent folder of a path without a slash is the current one. */
static void atomic_write_beside_us(void **state)
{
    (void)state;
    char before[4096];
    assert_non_null(getcwd(before, sizeof before));
    assert_int_equal(chdir(root), 0);
    put("file", "here");
    assert_int_equal(chdir(before), 0);
    assert_holds(file_path, "here");
}

typedef struct hook_log {
    int64_t calls;
    int64_t fail_at; /* 0: never */
    bool persistent;
    int errno_value;
    dsc_status status;
    char ops[64]; /* a letter a call */
    char last_path[256];
    int64_t last_offset, last_bytes;
} hook_log;

static dsc_status hook(void *user, dsc_io_op op, const char *path, int64_t offset, int64_t bytes, int *errno_value)
{
    hook_log *log = user;
    if (log->calls < (int64_t)sizeof log->ops - 1)
        log->ops[log->calls] = "ORWSNUMTCL"[op];
    log->calls++;
    snprintf(log->last_path, sizeof log->last_path, "%s", path);
    log->last_offset = offset;
    log->last_bytes = bytes;
    *errno_value = log->errno_value;
    const bool fails = log->fail_at != 0 && (log->persistent ? log->calls >= log->fail_at : log->calls == log->fail_at);
    return fails ? log->status : DSC_OK;
}

static void hooks_see_every_operation(void **state)
{
    (void)state;
    hook_log log = { 0 };
    const dsc_io io = { .hook = { hook, &log } };
    dsc_file file = DSC_FILE_INIT;
    char back[4];
    char *text = NULL, **names = NULL, *folder = at("folder");
    int64_t bytes = 0, count = 0;
    assert_int_equal(dsc_io_open(&io, file_path, DSC_IO_CREATE, &file, &err), DSC_OK);
    assert_int_equal(dsc_io_write(&io, &file, "abcd", 4, 8, &err), DSC_OK);
    assert_int_equal(log.last_offset, 8);
    assert_int_equal(log.last_bytes, 4);
    assert_string_equal(log.last_path, file_path);
    assert_int_equal(dsc_io_read(&io, &file, back, 4, 8, &err), DSC_OK);
    assert_int_equal(dsc_io_resize(&io, &file, 12, &err), DSC_OK);
    assert_int_equal(dsc_io_fsync(&io, &file, &err), DSC_OK);
    assert_int_equal(dsc_io_close(&io, &file, &err), DSC_OK);
    assert_int_equal(dsc_io_rename(&io, file_path, other_path, &err), DSC_OK);
    assert_string_equal(log.last_path, other_path);
    assert_int_equal(dsc_io_fsync_dir(&io, root, &err), DSC_OK);
    assert_int_equal(dsc_io_unlink(&io, other_path, &err), DSC_OK);
    assert_string_equal(log.ops, "OWRTSCNSU");
    memset(&log, 0, sizeof log);
    assert_int_equal(dsc_io_mkdir(&io, folder, &err), DSC_OK);
    assert_int_equal(dsc_io_list(&io, alloc, folder, &names, &count, &err), DSC_OK);
    dsc_io_list_free(alloc, names, count);
    assert_int_equal(dsc_io_remove_dir(&io, folder, &err), DSC_OK);
    assert_string_equal(log.ops, "MLLU");
    memset(&log, 0, sizeof log);
    assert_int_equal(dsc_io_write_all_atomic(&io, file_path, "x", 1, &err), DSC_OK);
    assert_string_equal(log.ops, "OWSCNS"); /* the order that makes it atomic and durable */
    assert_int_equal(dsc_io_read_all(&io, alloc, file_path, 9, &text, &bytes, &err), DSC_OK);
    assert_string_equal(log.ops, "OWSCNSORC");
    dsc_alloc_free(alloc, text);
    free(folder);
}

/* Every operation of an atomic write fails in turn, once and for good: the old content stays whole, or the new is. */
static void every_operation_may_fail(void **state)
{
    (void)state;
    put(file_path, "old");
    for (int persistent = 0; persistent < 2; persistent++) {
        int64_t failures = 0;
        for (int64_t n = 1;; n++) {
            hook_log log = { .fail_at = n, .persistent = persistent, .errno_value = n % 2 ? ENOSPC : 0,
                             .status = DSC_ERR_IO };
            const dsc_io io = { .hook = { hook, &log } };
            put(file_path, "old");
            const dsc_status status = dsc_io_write_all_atomic(&io, file_path, "new!", 4, &err);
            if (status == DSC_OK)
                break;
            failures++;
            assert_int_equal(status, DSC_ERR_IO);
            assert_non_null(strstr(err.message, n % 2 ? "No space left" : "refused by the hook"));
            assert_holds(file_path, n <= 5 ? "old" : "new!"); /* 6 is the fsync of the folder, after the rename */
        }
        assert_int_equal(failures, 6);
        for (int64_t n = 1; n <= 3; n++) {
            hook_log log = { .fail_at = n, .persistent = persistent, .errno_value = EIO, .status = DSC_ERR_CANCELLED };
            const dsc_io io = { .hook = { hook, &log } };
            char *text = NULL;
            int64_t bytes = 0;
            assert_int_equal(dsc_io_read_all(&io, alloc, file_path, 9, &text, &bytes, &err), DSC_ERR_CANCELLED);
            assert_null(text);
        }
    }
}

static void lists_are_sorted_bytewise(void **state)
{
    (void)state;
    static const char *const want[] = { "B", "a", "a.b", "file", "z10", "z9", "\xc3\xa4" };
    char **names = NULL;
    int64_t count = 0;
    assert_int_equal(dsc_io_list(NULL, alloc, root, &names, &count, &err), DSC_OK);
    assert_int_equal(count, 0);
    dsc_io_list_free(alloc, names, count);
    for (size_t i = 0; i < DSC_COUNT(want); i++) {
        char *path = at(want[(i * 3) % DSC_COUNT(want)]);
        put(path, "");
        free(path);
    }
    assert_int_equal(dsc_io_list(NULL, alloc, root, &names, &count, &err), DSC_OK);
    assert_int_equal(count, DSC_COUNT(want));
    for (size_t i = 0; i < DSC_COUNT(want); i++)
        assert_string_equal(names[i], want[i]);
    dsc_io_list_free(alloc, names, count);
    assert_int_equal(dsc_io_list(NULL, alloc, other_path, &names, &count, &err), DSC_ERR_INPUT);
    assert_int_equal(dsc_io_list(NULL, alloc, file_path, &names, &count, &err), DSC_ERR_INPUT);
    assert_null(names);
    dsc_io_list_free(alloc, NULL, 0);
}

/* 200 names make the array grow twice; the n-th allocation of it all fails. */
static void every_allocation_may_fail(void **state)
{
    (void)state;
    for (int i = 0; i < 200; i++) {
        char name[16];
        snprintf(name, sizeof name, "n%03d", 199 - i);
        char *path = at(name);
        assert_int_equal(close(open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600)), 0);
        free(path);
    }
    put(file_path, "text");
    for (int persistent = 0; persistent < 2; persistent++) {
        int64_t failures = 0;
        for (int64_t n = 1;; n++) {
            dsc_alloc_stats stats;
            char **names = NULL, *text = NULL;
            int64_t count = 0, bytes = 0;
            dsc_alloc_stats_get(alloc, &stats);
            dsc_alloc_fail_at(alloc, stats.call_count + n, persistent);
            const dsc_status listed = dsc_io_list(NULL, alloc, root, &names, &count, &err);
            dsc_status read = DSC_OK;
            if (listed == DSC_OK)
                read = dsc_io_read_all(NULL, alloc, file_path, 9, &text, &bytes, &err);
            dsc_alloc_fail_at(alloc, 0, false);
            if (listed == DSC_OK)
                assert_int_equal(count, 201);
            dsc_io_list_free(alloc, names, count);
            dsc_alloc_free(alloc, text);
            dsc_alloc_stats_get(alloc, &stats);
            assert_int_equal(stats.live_count, 0);
            if (listed == DSC_OK && read == DSC_OK)
                break;
            failures++;
            assert_int_equal(listed != DSC_OK ? listed : read, DSC_ERR_NOMEM);
        }
        assert_int_equal(failures, 201 + 3 + 1); /* names, arrays of 64, 128 and 256, the text */
    }
}

static void a_folder_is_probed_and_left_as_it_was(void **state)
{
    (void)state;
    char **names = NULL, *folder = at("folder");
    int64_t count = 0;
    assert_int_equal(dsc_io_probe_dir(NULL, folder, &err), DSC_ERR_INPUT);
    assert_string_equal(err.where, folder);
    assert_int_equal(dsc_io_mkdir(NULL, folder, &err), DSC_OK);
    assert_int_equal(dsc_io_probe_dir(NULL, folder, &err), DSC_OK);
    assert_int_equal(dsc_io_list(NULL, alloc, folder, &names, &count, &err), DSC_OK);
    assert_int_equal(count, 0);
    dsc_io_list_free(alloc, names, count);
    put(file_path, "x");
    assert_int_equal(dsc_io_probe_dir(NULL, file_path, &err), DSC_ERR_INPUT);
    assert_int_equal(dsc_io_probe_dir(NULL, "/proc", &err), DSC_ERR_INPUT); /* knows no files without a name */
    char *inside = at("folder/inside");
    put(inside, "x");
    assert_int_equal(dsc_io_rmdir(NULL, folder, &err), DSC_ERR_IO);
    assert_int_equal(dsc_io_unlink(NULL, inside, &err), DSC_OK);
    assert_int_equal(dsc_io_rmdir(NULL, folder, &err), DSC_OK);
    assert_int_equal(dsc_io_kind(folder), DSC_PATH_MISSING);
    free(inside);
    free(folder);
}

static void folders(void **state)
{
    (void)state;
    char *folder = at("folder"), *inside = at("folder/inside"), *link = at("folder/link"), *sub = at("folder/sub");
    assert_int_equal(dsc_io_mkdir(NULL, folder, &err), DSC_OK);
    assert_int_equal(dsc_io_mkdir(NULL, folder, &err), DSC_OK);
    assert_int_equal(dsc_io_kind(folder), DSC_PATH_DIR);
    put(file_path, "keep");
    assert_int_equal(dsc_io_mkdir(NULL, file_path, &err), DSC_ERR_INPUT);
    assert_int_equal(dsc_io_mkdir(NULL, "/nonexistent/a", &err), DSC_ERR_INPUT);
    assert_int_equal(dsc_io_mkdir(NULL, "/proc/a", &err), DSC_ERR_INPUT);
    assert_string_equal(err.where, "/proc/a");
    put(inside, "x");
    assert_int_equal(symlink(file_path, link), 0);
    /* Not more than one level: a folder inside is an error, and stays. */
    assert_int_equal(dsc_io_mkdir(NULL, sub, &err), DSC_OK);
    assert_int_equal(dsc_io_remove_dir(NULL, folder, &err), DSC_ERR_IO);
    assert_int_equal(dsc_io_kind(sub), DSC_PATH_DIR);
    assert_int_equal(rmdir(sub), 0);
    assert_int_equal(dsc_io_remove_dir(NULL, folder, &err), DSC_OK);
    assert_int_equal(dsc_io_kind(folder), DSC_PATH_MISSING);
    assert_holds(file_path, "keep"); /* the link went, its target did not */
    assert_int_equal(dsc_io_remove_dir(NULL, folder, &err), DSC_OK);
    /* A link in place of the folder is not followed. */
    assert_int_equal(dsc_io_mkdir(NULL, other_path, &err), DSC_OK);
    char *kept = at("other/kept");
    put(kept, "kept");
    assert_int_equal(symlink(other_path, folder), 0);
    assert_int_equal(dsc_io_remove_dir(NULL, folder, &err), DSC_ERR_IO);
    assert_holds(kept, "kept");
    assert_int_equal(dsc_io_unlink(NULL, folder, &err), DSC_OK);
    assert_int_equal(dsc_io_remove_dir(NULL, other_path, &err), DSC_OK);
    assert_int_equal(dsc_io_remove_dir(NULL, file_path, &err), DSC_ERR_IO);
    free(folder);
    free(inside);
    free(link);
    free(sub);
    free(kept);
}

static void rename_unlink_kind_free_space(void **state)
{
    (void)state;
    int64_t bytes = 0;
    put(file_path, "moved");
    assert_int_equal(dsc_io_kind(file_path), DSC_PATH_FILE);
    assert_int_equal(dsc_io_rename(NULL, file_path, other_path, &err), DSC_OK);
    assert_int_equal(dsc_io_kind(file_path), DSC_PATH_MISSING);
    assert_holds(other_path, "moved");
    assert_int_equal(dsc_io_rename(NULL, file_path, other_path, &err), DSC_ERR_IO);
    assert_non_null(strstr(err.message, file_path));
    assert_int_equal(dsc_io_unlink(NULL, other_path, &err), DSC_OK);
    assert_int_equal(dsc_io_unlink(NULL, other_path, &err), DSC_ERR_IO);
    assert_string_equal(err.where, other_path);
    assert_int_equal(dsc_io_kind("/dev/null"), DSC_PATH_OTHER);
    assert_int_equal(dsc_io_kind("/dev/null/x"), DSC_PATH_MISSING);
    assert_int_equal(dsc_io_free_bytes(root, &bytes, &err), DSC_OK);
    assert_true(bytes > 0);
    assert_int_equal(dsc_io_free_bytes("/nonexistent", &bytes, &err), DSC_ERR_IO);
}

static void paths(void **state)
{
    (void)state;
    char out[8];
    assert_int_equal(dsc_path_join(out, sizeof out, "a", "b", &err), DSC_OK);
    assert_string_equal(out, "a/b");
    assert_int_equal(dsc_path_join(out, sizeof out, "a/", "b", &err), DSC_OK);
    assert_string_equal(out, "a/b");
    assert_int_equal(dsc_path_join(out, sizeof out, "/", "b", &err), DSC_OK);
    assert_string_equal(out, "/b");
    assert_int_equal(dsc_path_join(out, sizeof out, "", "b", &err), DSC_OK);
    assert_string_equal(out, "b");
    assert_int_equal(dsc_path_join(out, sizeof out, "abc", "def", &err), DSC_OK); /* exactly */
    assert_int_equal(dsc_path_join(out, sizeof out, "abcd", "def", &err), DSC_ERR_INPUT);
    static const char *const bad[] = { "", ".", "..", "a/b", "/", "a\nb", "\x7f", "\x1b[2J" };
    for (size_t i = 0; i < DSC_COUNT(bad); i++)
        assert_false(dsc_path_is_plain(bad[i]));
    static const char *const good[] = { "a", "...", "model-00001-of-00002.safetensors", "\xc3\xa4", "a b", "-x" };
    for (size_t i = 0; i < DSC_COUNT(good); i++)
        assert_true(dsc_path_is_plain(good[i]));
    char name[257];
    memset(name, 'x', sizeof name);
    name[256] = 0;
    assert_false(dsc_path_is_plain(name));
    name[255] = 0;
    assert_true(dsc_path_is_plain(name));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_folder, close_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(write_read_resize),
        TEST(modes),
        TEST(only_regular_files),
        TEST(short_counts_and_interrupts_are_resumed),
        TEST(system_failures_are_named),
        TEST(whole_files),
        TEST(a_growing_file_is_read_to_its_end),
        TEST(atomic_write_replaces_or_leaves),
        TEST(atomic_write_beside_us),
        TEST(hooks_see_every_operation),
        TEST(every_operation_may_fail),
        TEST(lists_are_sorted_bytewise),
        TEST(every_allocation_may_fail),
        TEST(a_folder_is_probed_and_left_as_it_was),
        TEST(folders),
        TEST(rename_unlink_kind_free_space),
        TEST(paths),
    };
    descriptors_at_start = open_descriptors();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
