/* test_aio.c - asynchronous files: every engine moves the same bytes, and short or interrupted blocks are resumed.
 * Every fault ends in the right bytes or in one error; no request hangs or stays under way.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/io.h"
#include "offload/aio.h"
#include "tests/support/disk.h"
#include "tests/support/io_fault.h"

static const char *const engine_names[] = { "io_uring", "libaio", "threads" };
enum { BLOCK = 8192, TOTAL = 13 * 4096 };

static dsc_alloc *alloc;
static char dir[128], path[160];
static unsigned char *out_buf, *in_buf; /* TOTAL bytes each */

static int setup(void **state)
{
    dsc_error err = DSC_ERROR_INIT;
    snprintf(dir, sizeof dir, "%s/dsc-aio-XXXXXX", getenv("TMPDIR") != NULL ? getenv("TMPDIR") : "/tmp");
    if (mkdtemp(dir) == NULL || dsc_alloc_open(&alloc, &err) != DSC_OK)
        return -1;
    snprintf(path, sizeof path, "%s/file", dir);
    out_buf = aligned_alloc(4096, TOTAL);
    in_buf = aligned_alloc(4096, TOTAL);
    for (int i = 0; i < TOTAL; i++)
        out_buf[i] = (unsigned char)(i * 131 + i / 251);
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

static dsc_aio_options plain_options(const char *engine)
{
    return (dsc_aio_options){ .alloc = alloc, .engine = engine, .block_bytes = BLOCK, .queue_depth = 4,
                              .thread_count = 2, .overlap_events = true };
}

static void check(dsc_status status, const dsc_error *err)
{
    if (status != DSC_OK)
        fail_msg("%s: %s", err->where, err->message);
}

static dsc_aio *open_aio(const dsc_aio_options *options)
{
    dsc_error err = DSC_ERROR_INIT;
    dsc_aio *aio = NULL;
    check(dsc_aio_open(options, &aio, &err), &err);
    return aio;
}

static dsc_aio_file open_file(void)
{
    dsc_error err = DSC_ERROR_INIT;
    dsc_aio_file file = DSC_AIO_FILE_INIT;
    check(dsc_aio_file_open(path, true, &file, &err), &err);
    return file;
}

static dsc_status move(dsc_aio *aio, const dsc_aio_file *file, bool write, void *buf, int64_t bytes, int64_t offset,
                       dsc_error *err)
{
    dsc_aio_op op = { .file = file, .write = write, .buf = buf, .bytes = bytes, .offset = offset };
    dsc_aio_submit(aio, &op);
    return dsc_aio_wait(aio, &op, err);
}

static void test_same_bytes(void **state)
{
    for (size_t e = 0; e < DSC_COUNT(engine_names); e++)
        for (int variant = 0; variant < 8; variant++) {
            dsc_error err = DSC_ERROR_INIT;
            dsc_aio_options options = plain_options(engine_names[e]);
            options.single_submit = (variant & 1) != 0;
            options.overlap_events = (variant & 2) == 0;
            options.queue_depth = (variant & 4) != 0 ? 1 : 7;
            dsc_aio *aio = open_aio(&options);
            dsc_aio_file file = open_file();
            assert_string_equal(dsc_aio_engine(aio), engine_names[e]);
            assert_non_null(strstr(dsc_aio_why(aio), ", as asked for"));
            if ((variant & 2) != 0)
                check(dsc_aio_register(aio, in_buf, TOTAL, &err), &err);
            /* Several operations at once, in another order than the file's. */
            dsc_aio_op ops[3];
            const int64_t cut[4] = { 0, 5 * 4096, 9 * 4096, TOTAL };
            for (int i = 2; i >= 0; i--) {
                ops[i] = (dsc_aio_op){ .file = &file, .write = true, .buf = out_buf + cut[i],
                                       .bytes = cut[i + 1] - cut[i], .offset = cut[i] };
                dsc_aio_submit(aio, &ops[i]);
            }
            for (int i = 0; i < 3; i++)
                check(dsc_aio_wait(aio, &ops[i], &err), &err);
            memset(in_buf, 0, TOTAL);
            check(move(aio, &file, false, in_buf, TOTAL, 0, &err), &err);
            assert_memory_equal(in_buf, out_buf, TOTAL);
            check(move(aio, &file, false, in_buf, 4096, 9 * 4096, &err), &err);
            assert_memory_equal(in_buf, out_buf + 9 * 4096, 4096);
            check(move(aio, &file, false, in_buf, 0, 0, &err), &err);
            /* The file ends before: said with the place. */
            assert_int_equal(move(aio, &file, false, in_buf, 8192, TOTAL - 4096, &err), DSC_ERR_INPUT);
            assert_non_null(strstr(err.message, "ends at"));
            dsc_aio_file_close(&file);
            dsc_aio_close(&aio);
            assert_null(aio);
        }
}

static void test_files(void **state)
{
    dsc_error err = DSC_ERROR_INIT;
    dsc_aio_options options = plain_options("auto");
    dsc_aio *aio = open_aio(&options);
    dsc_aio_file file = open_file(), none = DSC_AIO_FILE_INIT;
    if (file.direct) /* O_DIRECT wants whole blocks: refused before the system sees it */
        assert_int_equal(move(aio, &file, true, out_buf + 1, 4096, 0, &err), DSC_ERR_IO);
    assert_int_equal(move(aio, &none, true, out_buf, 4096, 0, &err), DSC_ERR_IO);
    dsc_aio_file_close(&file);
    assert_int_equal(dsc_aio_file_open(dir, false, &file, &err), DSC_ERR_INPUT);
    assert_int_equal(dsc_aio_file_open("/nowhere/file", true, &file, &err), DSC_ERR_INPUT);
    assert_int_equal(dsc_aio_file_open("/dev/null", false, &file, &err), DSC_ERR_INPUT);
    dsc_aio_close(&aio);
    const struct { const char *engine; int64_t block; int32_t depth, threads;
    } bad[] = {
        { "auto", 0, 1, 1 },    { "auto", 4096, 0, 1 }, { "auto", 4096, 5000, 1 },
        { "auto", 4096, 1, 0 }, { "nvme", 4096, 1, 1 },
    };
    for (size_t i = 0; i < DSC_COUNT(bad); i++) {
        options = plain_options(bad[i].engine);
        options.block_bytes = bad[i].block;
        options.queue_depth = bad[i].depth;
        options.thread_count = bad[i].threads;
        assert_int_equal(dsc_aio_open(&options, &aio, &err), DSC_ERR_INPUT);
        assert_null(aio);
    }
}

/* ---- faults: the n-th block, for every n, kind and engine ---- */

/* False: the machine was too busy for the timeout; to be done again with more patience. */
static bool run_with_fault(const char *engine, io_fault_kind kind, int64_t at, int64_t timeout_ns, bool *fired)
{
    dsc_error err = DSC_ERROR_INIT;
    io_fault plan = { .at = at, .kind = kind };
    dsc_aio_options options = plain_options(engine);
    options.hook = io_fault_hook(&plan);
    options.timeout_ns = kind == IO_FAULT_NEVER ? timeout_ns : 0;
    dsc_aio *aio = open_aio(&options);
    dsc_aio_file file = open_file();
    memset(in_buf, 0, TOTAL);
    dsc_status status = move(aio, &file, true, out_buf, TOTAL, 0, &err);
    if (status == DSC_OK)
        status = move(aio, &file, false, in_buf, TOTAL, 0, &err);
    *fired = plan.fired;
    const bool busy = kind == IO_FAULT_NEVER && !plan.fired && status == DSC_ERR_STUCK;
    const bool fails = plan.fired && io_fault_status(kind) != DSC_OK;
    if (busy && timeout_ns < (int64_t)20 * 1000000000) {
        dsc_aio_close(&aio);
        dsc_aio_file_close(&file);
        return false;
    }
    if (!fails) {
        check(status, &err);
        assert_memory_equal(in_buf, out_buf, TOTAL);
    } else {
        assert_int_equal(status, io_fault_status(kind));
        assert_string_equal(err.where, path);
        assert_non_null(strstr(err.message, io_fault_message(kind)));
    }
    if (fails && kind != IO_FAULT_NEVER) /* the engine goes on afterwards */
        check(move(aio, &file, true, out_buf, TOTAL, 0, &err), &err);
    dsc_aio_close(&aio);
    dsc_aio_file_close(&file);
    return true;
}

static void test_faults(void **state)
{
    for (size_t e = 0; e < DSC_COUNT(engine_names); e++)
        for (io_fault_kind kind = 0; kind < IO_FAULT_KINDS; kind++) {
            bool fired = true;
            int64_t at = 1;
            for (; fired && at < 200; at += kind == IO_FAULT_NEVER ? 5 : 1)
                for (int64_t timeout_ns = 60000000;; timeout_ns *= 4)
                    if (run_with_fault(engine_names[e], kind, at, timeout_ns, &fired))
                        break;
            assert_true(at > 12 && at < 200);
        }
}

/* A device that answers and answers but moves nothing: the timeout ends it. */
static dsc_aio_fault_kind nothing_moves(void *user, int64_t n, const dsc_aio_piece *piece, int64_t *result)
{
    *result = *(const int64_t *)user;
    return DSC_AIO_FAULT_RESULT;
}

static void test_no_progress(void **state)
{
    int64_t results[] = { -EINTR, -EAGAIN, 100 };
    for (size_t e = 0; e < DSC_COUNT(engine_names); e++)
        for (size_t i = 0; i < DSC_COUNT(results); i++) {
            dsc_error err = DSC_ERROR_INIT;
            dsc_aio_options options = plain_options(engine_names[e]);
            options.hook = (dsc_aio_hook){ nothing_moves, &results[i] };
            options.timeout_ns = 50000000;
            dsc_aio *aio = open_aio(&options);
            dsc_aio_file file = open_file();
            if (results[i] < 0 || file.direct)
                assert_int_equal(move(aio, &file, true, out_buf, TOTAL, 0, &err), DSC_ERR_STUCK);
            dsc_aio_close(&aio);
            dsc_aio_file_close(&file);
        }
}

/* The order in which blocks are given: 'r', 's' for the file's start behind the first one, and 'w'. */
static dsc_aio_fault_kind note_order(void *user, int64_t n, const dsc_aio_piece *piece, int64_t *result)
{
    ((char *)user)[n - 1] = !piece->write ? 'r' : n > 1 && piece->offset == 0 ? 's' : 'w';
    return DSC_AIO_FAULT_NONE;
}

/* A wait for a read does not wait for the writes that were queued before it, and no wait lasts for ever. */
static void test_reads_go_first(void **state)
{
    for (size_t e = 0; e < DSC_COUNT(engine_names); e++) {
        dsc_error err = DSC_ERROR_INIT;
        char order[16] = "";
        dsc_aio_options options = plain_options(engine_names[e]);
        options.queue_depth = 1;
        dsc_aio *aio = open_aio(&options);
        dsc_aio_file file = open_file();
        check(move(aio, &file, true, out_buf, TOTAL, 0, &err), &err);
        dsc_aio_close(&aio);
        options.hook = (dsc_aio_hook){ note_order, order };
        aio = open_aio(&options);
        dsc_aio_op to_write = { .file = &file, .write = true, .buf = out_buf, .bytes = 4 * BLOCK, .offset = 0 };
        dsc_aio_op to_read = { .file = &file, .buf = in_buf, .bytes = 2 * BLOCK, .offset = 4 * BLOCK };
        dsc_aio_op soon = { .file = &file, .write = true, .soon = true, .buf = out_buf, .bytes = BLOCK };
        dsc_aio_submit(aio, &to_write);
        dsc_aio_submit(aio, &soon);
        dsc_aio_submit(aio, &to_read);
        check(dsc_aio_wait(aio, &to_read, &err), &err);
        assert_string_equal(order, "wrrs"); /* the device does not rest while the one who waited works */
        while (dsc_aio_pump(aio, 1000000)) /* requests without a waiter go on */
            ;
        assert_true(dsc_aio_test(aio, &to_write) && dsc_aio_test(aio, &soon));
        check(dsc_aio_wait(aio, &to_write, &err), &err);
        assert_string_equal(order, "wrrswww");
        assert_memory_equal(in_buf, out_buf + 4 * BLOCK, 2 * BLOCK);
        dsc_aio_close(&aio);
        dsc_aio_file_close(&file);
    }
}

/* Requests are under way when everything is closed: nothing is left, nothing is written later. */
static void test_close_in_flight(void **state)
{
    for (size_t e = 0; e < DSC_COUNT(engine_names); e++)
        for (int round = 0; round < 20; round++) {
            dsc_aio_options options = plain_options(engine_names[e]);
            dsc_alloc_stats before, after;
            dsc_alloc_stats_get(alloc, &before);
            dsc_aio *aio = open_aio(&options);
            dsc_aio_file file = open_file();
            dsc_aio_op ops[2] = { { .file = &file, .write = true, .buf = out_buf, .bytes = TOTAL },
                                  { .file = &file, .write = false, .buf = in_buf, .bytes = TOTAL } };
            dsc_aio_submit(aio, &ops[0]);
            dsc_aio_submit(aio, &ops[1]);
            (void)dsc_aio_test(aio, &ops[0]);
            dsc_aio_close(&aio);
            memset(in_buf, 7, TOTAL);
            for (int i = 0; i < TOTAL; i++)
                assert_int_equal(in_buf[i], 7);
            dsc_aio_file_close(&file);
            dsc_alloc_stats_get(alloc, &after);
            assert_int_equal(before.live_count, after.live_count);
        }
}

static void test_allocation_failures(void **state)
{
    for (size_t e = 0; e < DSC_COUNT(engine_names); e++) {
        int failures = 0;
        for (int n = 1; n < 20; n++) {
            dsc_error err = DSC_ERROR_INIT;
            dsc_alloc_stats stats, after;
            dsc_aio *aio = NULL;
            const dsc_aio_options options = plain_options(engine_names[e]);
            dsc_alloc_stats_get(alloc, &stats);
            dsc_alloc_fail_at(alloc, stats.call_count + n, false);
            const dsc_status status = dsc_aio_open(&options, &aio, &err);
            dsc_alloc_fail_at(alloc, 0, false);
            failures += status != DSC_OK;
            if (status != DSC_OK)
                assert_int_equal(status, DSC_ERR_NOMEM);
            dsc_aio_close(&aio);
            dsc_alloc_stats_get(alloc, &after);
            assert_int_equal(stats.live_count, after.live_count);
        }
        assert_in_range(failures, 3, 8);
    }
}

/* ---- systems that lack something: in a child, since neither limit can be taken back ---- */

static void in_child(void (*body)(void))
{
    const pid_t pid = fork();
    int status = 0;
    if (pid == 0) {
        body();
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77)
        skip();
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void move_in_child(const char *wanted_engine, const char *wanted_why)
{
    dsc_error err = DSC_ERROR_INIT;
    dsc_aio_options options = plain_options("auto");
    dsc_aio *aio = NULL;
    dsc_aio_file file = DSC_AIO_FILE_INIT;
    if (dsc_aio_open(&options, &aio, &err) != DSC_OK || dsc_aio_file_open(path, true, &file, &err) != DSC_OK)
        _exit(2);
    if (strcmp(dsc_aio_engine(aio), wanted_engine) != 0 || strstr(dsc_aio_why(aio), wanted_why) == NULL)
        _exit(3);
    if (dsc_aio_register(aio, in_buf, TOTAL, &err) != DSC_OK ||
        move(aio, &file, true, out_buf, TOTAL, 0, &err) != DSC_OK ||
        move(aio, &file, false, in_buf, TOTAL, 0, &err) != DSC_OK || memcmp(in_buf, out_buf, TOTAL) != 0)
        _exit(4);
    dsc_aio_close(&aio);
    dsc_aio_file_close(&file);
}

static void forbid(int first, int second)
{
    const struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)first, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)second, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
    };
    const struct sock_fprog program = { DSC_COUNT(filter), (struct sock_filter *)(uintptr_t)filter };
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
        _exit(77);
}

static void without_uring(void)
{
    forbid(SYS_io_uring_setup, SYS_io_uring_setup);
    move_in_child("libaio", "not io_uring: Operation not permitted");
}

static void without_both(void)
{
    forbid(SYS_io_uring_setup, SYS_io_setup);
    move_in_child("threads", "libaio: io_setup");
}

static void test_seccomp_uring(void **state) { in_child(without_uring); }
static void test_seccomp_both(void **state) { in_child(without_both); }

/* A device that is really full. */
static void full_device(const char *engine, const char *kind, int mib)
{
    dsc_error err = DSC_ERROR_INIT;
    char small[200], file_path[240];
    snprintf(small, sizeof small, "%s/small", dir);
    check(dsc_io_mkdir(NULL, small, &err), &err);
    if (!disk_mount(small, kind, mib)) {
        rmdir(small);
        skip();
    }
    snprintf(file_path, sizeof file_path, "%s/file", small);
    const dsc_aio_options options = plain_options(engine);
    dsc_aio *aio = open_aio(&options);
    dsc_aio_file file = DSC_AIO_FILE_INIT;
    check(dsc_aio_file_open(file_path, true, &file, &err), &err);
    check(move(aio, &file, true, out_buf, TOTAL, 0, &err), &err);
    disk_fill(small);
    assert_int_equal(move(aio, &file, true, out_buf, TOTAL, TOTAL, &err), DSC_ERR_IO);
    assert_string_equal(err.where, file_path);
    assert_non_null(strstr(err.message, "No space left on device"));
    check(move(aio, &file, false, in_buf, TOTAL, 0, &err), &err); /* the earlier writes are right */
    assert_memory_equal(in_buf, out_buf, TOTAL);
    dsc_aio_close(&aio);
    dsc_aio_file_close(&file);
    disk_unmount(small);
    assert_int_equal(rmdir(small), 0);
}

static void test_full_tmpfs(void **state)
{
    for (size_t e = 0; e < DSC_COUNT(engine_names); e++)
        full_device(engine_names[e], "tmpfs", 1);
}

static void test_full_ext4(void **state)
{
    for (size_t e = 0; e < DSC_COUNT(engine_names); e++)
        full_device(engine_names[e], "ext4", 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bytes),        cmocka_unit_test(test_files),
        cmocka_unit_test(test_faults),            cmocka_unit_test(test_no_progress),
        cmocka_unit_test(test_close_in_flight),   cmocka_unit_test(test_reads_go_first),
        cmocka_unit_test(test_allocation_failures), cmocka_unit_test(test_seccomp_uring),
        cmocka_unit_test(test_seccomp_both),        cmocka_unit_test(test_full_tmpfs),
        cmocka_unit_test(test_full_ext4),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
