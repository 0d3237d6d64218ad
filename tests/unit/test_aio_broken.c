/* test_aio_broken.c - asynchronous files on a system that fails in the middle. Faults: refused calls of the engine,
 * requests that never end, memory that may not be locked, one bad file among good ones. No byte is lost, and no byte
 * moves afterwards. SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/io.h"
#include "offload/aio.h"

enum { PAGE = DSC_AIO_ALIGN, TOTAL = 16 * PAGE };

static dsc_alloc *alloc;
static char dir[128];
static unsigned char *out_buf, *in_buf; /* TOTAL bytes each */

static int setup(void **state)
{
    dsc_error err = DSC_ERROR_INIT;
    snprintf(dir, sizeof dir, "%s/dsc-aio-XXXXXX", getenv("TMPDIR") != NULL ? getenv("TMPDIR") : "/tmp");
    if (mkdtemp(dir) == NULL || dsc_alloc_open(&alloc, &err) != DSC_OK)
        return -1;
    out_buf = aligned_alloc(PAGE, TOTAL);
    in_buf = aligned_alloc(PAGE, TOTAL);
    for (int i = 0; i < TOTAL; i++)
        out_buf[i] = (unsigned char)(1 + i * 131 + i / 251);
    return 0;
}

static int teardown(void **state)
{
    dsc_error err = DSC_ERROR_INIT;
    free(out_buf);
    free(in_buf);
    dsc_alloc_close(&alloc);
    return dsc_io_remove_dir(NULL, dir, &err) == DSC_OK ? 0 : -1;
}

/* Also used in children, which cannot use cmocka's. */
static void must(bool right, const char *what, const dsc_error *err)
{
    if (right)
        return;
    fprintf(stderr, "# not so: %s (%s: %s)\n", what, err->where, err->message);
    abort();
}
#define MUST(condition, err) must(condition, #condition, &(err))

static dsc_aio *open_aio(const char *engine, int64_t timeout_ns)
{
    dsc_error err = DSC_ERROR_INIT;
    dsc_aio *aio = NULL;
    const dsc_aio_options options = { .alloc = alloc, .engine = engine, .block_bytes = PAGE, .queue_depth = 8,
                                      .thread_count = 2, .overlap_events = true, .timeout_ns = timeout_ns };
    const dsc_status status = dsc_aio_open(&options, &aio, &err);
    MUST(status == DSC_OK, err);
    return aio;
}

static dsc_aio_file open_file(const char *name)
{
    dsc_error err = DSC_ERROR_INIT;
    dsc_aio_file file = DSC_AIO_FILE_INIT;
    char path[200];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    const dsc_status status = dsc_aio_file_open(path, true, &file, &err);
    MUST(status == DSC_OK, err);
    return file;
}

static dsc_status move(dsc_aio *aio, const dsc_aio_file *file, bool write, void *buf, int64_t bytes, int64_t offset,
                       dsc_error *err)
{
    dsc_aio_op op = { .file = file, .write = write, .buf = buf, .bytes = bytes, .offset = offset };
    dsc_aio_submit(aio, &op);
    return dsc_aio_wait(aio, &op, err);
}

static bool has_engine(const char *engine)
{
    dsc_aio *aio = NULL;
    const dsc_aio_options options = { .alloc = alloc, .engine = engine, .block_bytes = PAGE, .queue_depth = 1,
                                      .thread_count = 1 };
    const bool here = dsc_aio_open(&options, &aio, NULL) == DSC_OK;
    dsc_aio_close(&aio);
    return here;
}

static void in_child(void (*body)(void))
{
    const pid_t pid = fork();
    int status = 0;
    if (pid == 0) {
        signal(SIGSEGV, SIG_DFL); /* cmocka's handler would go on with the next test here */
        signal(SIGABRT, SIG_DFL);
        body();
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77)
        skip();
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* From now on system call `number` fails with EPERM when its argument `index` is `value`, or, with at_least, more. */
static void refuse(int number, int index, uint32_t value, bool at_least)
{
    const struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)number, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (uint32_t)(offsetof(struct seccomp_data, args) + 8 * (size_t)index)),
        BPF_JUMP((uint16_t)(BPF_JMP | (at_least ? BPF_JGE : BPF_JEQ) | BPF_K), value, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog program = { DSC_COUNT(filter), (struct sock_filter *)(uintptr_t)filter };
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
        _exit(77);
}

/* ---- a fatal error of the call that hands requests over ---- */

/* The kernel takes no batch of three. The refused requests must not be submitted with the
 * next batch: their buffers belong to the caller again, and their completions would have no owner. */
static void uring_refuses_a_batch(void)
{
    dsc_error err = DSC_ERROR_INIT, good = DSC_ERROR_INIT;
    dsc_aio *aio = open_aio("io_uring", 0);
    dsc_aio_file file = open_file("batch");
    memset(in_buf, 0, TOTAL);
    MUST(move(aio, &file, true, in_buf, TOTAL, 0, &err) == DSC_OK, err);
    refuse(SYS_io_uring_enter, 1, 3, false);
    MUST(move(aio, &file, true, out_buf, 3 * PAGE, 0, &err) == DSC_ERR_IO, err);
    MUST(strstr(err.message, "Operation not permitted") != NULL, err);
    for (int i = 0; i < 5; i++)
        MUST(move(aio, &file, true, out_buf + 8 * PAGE, PAGE, 8 * PAGE, &good) == DSC_OK, good);
    MUST(move(aio, &file, false, in_buf, PAGE, 0, &good) == DSC_OK, good);
    for (int i = 0; i < PAGE; i++)
        MUST(in_buf[i] == 0, good); /* the refused blocks were not written afterwards */
    MUST(move(aio, &file, false, in_buf, PAGE, 8 * PAGE, &good) == DSC_OK, good);
    MUST(memcmp(in_buf, out_buf + 8 * PAGE, PAGE) == 0, good);
    dsc_aio_close(&aio);
    dsc_aio_file_close(&file);
}

/* Requests of another operation are under way meanwhile; their results are right. */
static void libaio_refuses_a_batch(void)
{
    dsc_error err = DSC_ERROR_INIT;
    dsc_aio *aio = open_aio("libaio", 0);
    dsc_aio_file file = open_file("batch");
    dsc_aio_op first = { .file = &file, .write = true, .buf = out_buf, .bytes = 2 * PAGE };
    refuse(SYS_io_submit, 1, 3, false);
    dsc_aio_submit(aio, &first);
    const dsc_status second = move(aio, &file, true, out_buf, 3 * PAGE, 4 * PAGE, &err);
    MUST(second == DSC_ERR_IO, err);
    MUST(dsc_aio_wait(aio, &first, &err) == DSC_OK, err);
    MUST(move(aio, &file, false, in_buf, 2 * PAGE, 0, &err) == DSC_OK, err);
    MUST(memcmp(in_buf, out_buf, 2 * PAGE) == 0, err);
    dsc_aio_close(&aio);
    dsc_aio_file_close(&file);
}

static void test_refused_batch_uring(void **state)
{
    if (!has_engine("io_uring"))
        skip();
    in_child(uring_refuses_a_batch);
}

static void test_refused_batch_libaio(void **state)
{
    if (!has_engine("libaio"))
        skip();
    in_child(libaio_refuses_a_batch);
}

/* A file that may only be read, among others in one batch: its operation fails, the others do not. */
static void test_one_bad_file(void **state)
{
    static const char *const engines[] = { "io_uring", "libaio", "threads" };
    for (size_t e = 0; e < DSC_COUNT(engines); e++) {
        if (!has_engine(engines[e]))
            continue;
        dsc_error err = DSC_ERROR_INIT;
        dsc_aio_options options = { .alloc = alloc, .engine = engines[e], .block_bytes = PAGE, .queue_depth = 8,
                                    .thread_count = 2, .overlap_events = false };
        dsc_aio *aio = NULL;
        MUST(dsc_aio_open(&options, &aio, &err) == DSC_OK, err);
        dsc_aio_file file = open_file("good"), bad = open_file("bad");
        char path[200];
        snprintf(path, sizeof path, "%s/bad", dir);
        const int read_only = open(path, O_RDONLY | O_CLOEXEC);
        assert_int_equal(dup2(read_only, bad.fd), bad.fd);
        bad.direct = false;
        close(read_only);
        /* The first keeps the engine busy, so that the other three are given together. */
        dsc_aio_op ops[4];
        for (int i = 0; i < 4; i++) {
            ops[i] = (dsc_aio_op){ .file = i == 2 ? &bad : &file, .write = true, .buf = out_buf + i * PAGE,
                                   .bytes = PAGE, .offset = i * PAGE };
            dsc_aio_submit(aio, &ops[i]);
        }
        for (int i = 0; i < 4; i++)
            assert_int_equal(dsc_aio_wait(aio, &ops[i], &err), i == 2 ? DSC_ERR_IO : DSC_OK);
        assert_string_equal(err.where, path);
        assert_non_null(strstr(err.message, "Bad file descriptor"));
        dsc_aio_close(&aio);
        dsc_aio_file_close(&file);
        dsc_aio_file_close(&bad);
    }
}

/* ---- answers that cannot be read, and requests that never end ---- */

static dsc_aio_file pipe_end(int ends[2])
{
    if (pipe2(ends, O_CLOEXEC) != 0)
        abort();
    dsc_aio_file file = { .fd = ends[0], .path = "a pipe" };
    return file;
}

static void uring_cannot_wait(void)
{
    dsc_error err = DSC_ERROR_INIT;
    int ends[2];
    dsc_aio *aio = open_aio("io_uring", (int64_t)20 * 1000000000);
    const dsc_aio_file file = pipe_end(ends);
    refuse(SYS_io_uring_enter, 2, 1, true);
    const int64_t start = dsc_clock_ns();
    MUST(move(aio, &file, false, in_buf, PAGE, 0, &err) == DSC_ERR_IO, err);
    MUST(dsc_clock_ns() - start < (int64_t)5 * 1000000000, err); /* at once, and not told as a timeout */
    MUST(strstr(err.message, "Operation not permitted") != NULL, err);
    MUST(dsc_aio_is_broken(aio), err);
    MUST(move(aio, &file, false, in_buf, PAGE, 0, &err) == DSC_ERR_IO, err);
    dsc_aio_close(&aio);
}

static void test_cannot_wait(void **state)
{
    if (!has_engine("io_uring"))
        skip();
    in_child(uring_cannot_wait);
}

/* After the timeout and the close, the request is gone: bytes that come later stay where they are. */
static void test_stuck_request_is_cancelled(void **state)
{
    dsc_error err = DSC_ERROR_INIT;
    int ends[2], waiting = 0;
    if (!has_engine("io_uring"))
        skip();
    for (int round = 0; round < 20; round++) {
        dsc_aio *aio = open_aio("io_uring", 20000000);
        const dsc_aio_file file = pipe_end(ends);
        memset(in_buf, 7, PAGE);
        assert_int_equal(move(aio, &file, false, in_buf, PAGE, 0, &err), DSC_ERR_STUCK);
        assert_non_null(strstr(err.message, "no answer from the device for 0.02 s"));
        assert_true(dsc_aio_is_broken(aio));
        assert_int_equal(move(aio, &file, false, in_buf, PAGE, 0, &err), DSC_ERR_STUCK);
        dsc_aio_close(&aio);
        assert_int_equal(write(ends[1], out_buf, PAGE), PAGE);
        assert_int_equal(ioctl(ends[0], FIONREAD, &waiting), 0);
        assert_int_equal(waiting, PAGE);
        for (int i = 0; i < PAGE; i++)
            assert_int_equal(in_buf[i], 7);
        close(ends[0]);
        close(ends[1]);
    }
}

/* ---- what the kernel keeps mapped and open ---- */

/* A field of this process's io_uring in /proc: "UserFiles:\t3" gives 3; -1: there is no such line. */
static int ring_count(const char *key)
{
    char path[300], target[100], line[200];
    int count = -1;
    DIR *all = opendir("/proc/self/fd");
    for (struct dirent *e; (e = readdir(all)) != NULL;) {
        snprintf(path, sizeof path, "/proc/self/fd/%s", e->d_name);
        const ssize_t n = readlink(path, target, sizeof target - 1);
        if (n <= 0 || strncmp(target, "anon_inode:[io_uring]", 21) != 0)
            continue;
        snprintf(path, sizeof path, "/proc/self/fdinfo/%s", e->d_name);
        FILE *info = fopen(path, "r");
        while (info != NULL && fgets(line, sizeof line, info) != NULL)
            if (strncmp(line, key, strlen(key)) == 0)
                count = atoi(line + strlen(key));
        if (info != NULL)
            fclose(info);
    }
    closedir(all);
    return count;
}

static void test_registered(void **state)
{
    dsc_error err = DSC_ERROR_INIT;
    if (!has_engine("io_uring"))
        skip();
    dsc_aio *aio = open_aio("io_uring", 0);
    dsc_aio_file file = open_file("kept"), other = open_file("other");
    memset(in_buf, 0, TOTAL);
    MUST(move(aio, &other, true, in_buf, TOTAL, 0, &err) == DSC_OK, err);
    if (!dsc_aio_keep_file(aio, &file) || ring_count("UserFiles:") < 1) {
        dsc_aio_close(&aio);
        skip(); /* a kernel before 5.19 */
    }
    assert_int_equal(dsc_aio_register(aio, out_buf, TOTAL, &err), DSC_OK);
    assert_string_equal(dsc_aio_warning(aio), "");
    /* The kernel goes by the file that was kept: what has the descriptor's number now is not looked at. */
    const int number = dup(file.fd);
    assert_int_equal(dup2(other.fd, file.fd), file.fd);
    MUST(move(aio, &file, true, out_buf, TOTAL, 0, &err) == DSC_OK, err);
    assert_int_equal(dup2(number, file.fd), file.fd);
    MUST(move(aio, &file, false, in_buf, TOTAL, 0, &err) == DSC_OK, err);
    assert_memory_equal(in_buf, out_buf, TOTAL);
    dsc_aio_drop_file(&file);
    /* And after it was dropped, by the descriptor. */
    assert_int_equal(dup2(other.fd, file.fd), file.fd);
    MUST(move(aio, &file, false, in_buf, TOTAL, 0, &err) == DSC_OK, err);
    for (int i = 0; i < TOTAL; i++)
        assert_int_equal(in_buf[i], 0);
    /* Places are used again, and more files than there are places work as well. */
    for (int i = 0; i < 200; i++) {
        assert_true(dsc_aio_keep_file(aio, &other));
        dsc_aio_drop_file(&other);
    }
    dsc_aio_file many[70];
    for (int i = 0; i < 70; i++) {
        many[i] = (dsc_aio_file){ .fd = dup(other.fd), .direct = other.direct };
        assert_int_equal(dsc_aio_keep_file(aio, &many[i]), i < 64);
    }
    for (int i = 0; i < 70; i++) {
        MUST(move(aio, &many[i], true, out_buf, PAGE, i % 16 * PAGE, &err) == DSC_OK, err);
        if (i % 2 == 0)
            dsc_aio_file_close(&many[i]);
    }
    /* A number that is used again is another file: nothing of the old one is left in its place. */
    dsc_aio_file again = open_file("again");
    MUST(move(aio, &again, true, out_buf, TOTAL, 0, &err) == DSC_OK, err);
    assert_int_equal(pread(again.fd, in_buf, TOTAL, 0), TOTAL);
    assert_memory_equal(in_buf, out_buf, TOTAL);
    dsc_aio_file_close(&again);
    close(number);
    dsc_aio_close(&aio); /* files may be closed after it as well */
    for (int i = 1; i < 70; i += 2)
        dsc_aio_file_close(&many[i]);
    dsc_aio_file_close(&file);
    dsc_aio_file_close(&other);
}

static void give_up_locking(void)
{
    struct __user_cap_header_struct header = { _LINUX_CAPABILITY_VERSION_3, 0 };
    struct __user_cap_data_struct caps[2];
    if (syscall(SYS_capget, &header, caps) != 0)
        _exit(77);
    caps[0].effective &= ~(1u << CAP_IPC_LOCK);
    caps[0].permitted &= ~(1u << CAP_IPC_LOCK);
    if (syscall(SYS_capset, &header, caps) != 0)
        _exit(77);
}

static void limit_locked(rlim_t bytes)
{
    const struct rlimit limit = { bytes, bytes };
    if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0)
        _exit(77);
}

/* A file that was closed is not kept open by the kernel: swap's space would stay taken. A pipe ends when its last
 * writer is closed. */
static void test_dropped_file_is_closed(void **state)
{
    int ends[2];
    char byte;
    if (!has_engine("io_uring"))
        skip();
    dsc_aio *aio = open_aio("io_uring", 0);
    assert_int_equal(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
    dsc_aio_file writer = { .fd = ends[1], .path = "a pipe" };
    const bool kept = dsc_aio_keep_file(aio, &writer);
    assert_int_equal(read(ends[0], &byte, 1), -1); /* EAGAIN: a writer is there */
    dsc_aio_file_close(&writer);
    const int64_t end = dsc_clock_ns() + (int64_t)5 * 1000000000;
    while (read(ends[0], &byte, 1) != 0 && dsc_clock_ns() < end)
        dsc_clock_sleep_ns(1000000);
    assert_true(dsc_clock_ns() < end);
    close(ends[0]);
    dsc_aio_close(&aio);
    if (!kept)
        skip(); /* a kernel before 5.19 */
}

/* Buffers that the kernel may not keep mapped: the bytes move all the same, and a warning names the remedy. */
static void no_locked_buffers(void)
{
    dsc_error err = DSC_ERROR_INIT;
    dsc_aio *aio = NULL;
    dsc_buf buf;
    const dsc_aio_options options = { .alloc = alloc, .engine = "io_uring", .block_bytes = PAGE, .queue_depth = 8,
                                      .thread_count = 1, .overlap_events = true };
    give_up_locking();
    if (dsc_aio_open(&options, &aio, &err) != DSC_OK)
        _exit(77); /* others of this user have all that may be locked */
    limit_locked(64 << 10);
    dsc_aio_file file = open_file("locked");
    MUST(dsc_buf_open(alloc, DSC_TAG_IO, DSC_TIER_HOST, 8 << 20, &buf, &err) == DSC_OK, err);
    memset(buf.ptr, 9, 8 << 20);
    MUST(dsc_aio_register(aio, buf.ptr, 8 << 20, &err) == DSC_OK, err);
    snprintf(err.message, sizeof err.message, "%s", dsc_aio_warning(aio));
    MUST(strstr(dsc_aio_warning(aio), "8.0 MiB") != NULL, err);
    MUST(strstr(dsc_aio_warning(aio), "RLIMIT_MEMLOCK is 64 KiB") != NULL, err);
    MUST(strstr(dsc_aio_warning(aio), "ulimit -l") != NULL, err);
    MUST(strchr(dsc_aio_warning(aio), '\n') == NULL, err);
    MUST(move(aio, &file, true, buf.ptr, TOTAL, 0, &err) == DSC_OK, err);
    MUST(move(aio, &file, false, in_buf, TOTAL, 0, &err) == DSC_OK, err);
    MUST(memcmp(in_buf, buf.ptr, TOTAL) == 0, err);
    dsc_aio_close(&aio);
    dsc_aio_file_close(&file);
    dsc_buf_close(&buf);
}

/* Where even io_uring's rings count as locked memory, the next engine takes over and the line says why. */
static void no_locked_rings(void)
{
    dsc_error err = DSC_ERROR_INIT;
    give_up_locking();
    limit_locked(0);
    dsc_aio *aio = open_aio("auto", 0);
    dsc_aio_file file = open_file("rings");
    snprintf(err.message, sizeof err.message, "%s", dsc_aio_why(aio));
    MUST(strcmp(dsc_aio_engine(aio), "io_uring") == 0 || strstr(dsc_aio_why(aio), "RLIMIT_MEMLOCK") != NULL, err);
    MUST(move(aio, &file, true, out_buf, TOTAL, 0, &err) == DSC_OK, err);
    MUST(move(aio, &file, false, in_buf, TOTAL, 0, &err) == DSC_OK, err);
    MUST(memcmp(in_buf, out_buf, TOTAL) == 0, err);
    dsc_aio_close(&aio);
    dsc_aio_file_close(&file);
}

static void test_no_locked_memory(void **state)
{
    if (!has_engine("io_uring"))
        skip();
    in_child(no_locked_buffers);
    in_child(no_locked_rings);
}

/* The kernel's own thread takes requests from the ring (SQPOLL): the same bytes. */
static void test_polled(void **state)
{
    dsc_error err = DSC_ERROR_INIT;
    dsc_aio *aio = NULL;
    const dsc_aio_options options = { .alloc = alloc, .engine = "io_uring", .block_bytes = PAGE, .queue_depth = 8,
                                      .thread_count = 1, .overlap_events = true, .poll = true };
    if (!has_engine("io_uring"))
        skip();
    MUST(dsc_aio_open(&options, &aio, &err) == DSC_OK, err);
    dsc_aio_file file = open_file("polled");
    for (int round = 0; round < 10; round++) {
        out_buf[round] ^= 5;
        MUST(move(aio, &file, true, out_buf, TOTAL, 0, &err) == DSC_OK, err);
        memset(in_buf, 0, TOTAL);
        MUST(move(aio, &file, false, in_buf, TOTAL, 0, &err) == DSC_OK, err);
        assert_memory_equal(in_buf, out_buf, TOTAL);
        if (round == 5)
            dsc_clock_sleep_ns(80000000); /* its thread has gone to sleep and is woken */
    }
    dsc_aio_op last = { .file = &file, .write = false, .buf = in_buf, .bytes = TOTAL };
    dsc_aio_submit(aio, &last); /* under way at close */
    dsc_aio_close(&aio);
    dsc_aio_file_close(&file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused_batch_uring), cmocka_unit_test(test_refused_batch_libaio),
        cmocka_unit_test(test_one_bad_file),        cmocka_unit_test(test_cannot_wait),
        cmocka_unit_test(test_stuck_request_is_cancelled),
        cmocka_unit_test(test_registered),          cmocka_unit_test(test_dropped_file_is_closed),
        cmocka_unit_test(test_no_locked_memory),
        cmocka_unit_test(test_polled),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
