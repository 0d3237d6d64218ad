/* test_swap.c - swap space: what was written comes back, whatever else is caught; no name, no leftovers, no surprise
 * about space. SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "offload/swap.h"
#include "tests/support/disk.h"

enum { PAGE = DSC_AIO_ALIGN, SPACE = 96 * PAGE, STRIPE_PAGES = 4 };

static dsc_alloc *alloc;
static char dir[128], first_dir[160], second_dir[160];
static const char *const folders[] = { first_dir, second_dir };
static unsigned char *out_buf, *in_buf;

static int setup(void **state)
{
    dsc_error err = DSC_ERROR_INIT;
    snprintf(dir, sizeof dir, "%s/dsc-swap-XXXXXX", getenv("TMPDIR") != NULL ? getenv("TMPDIR") : "/tmp");
    if (mkdtemp(dir) == NULL || dsc_alloc_open(&alloc, &err) != DSC_OK)
        return -1;
    snprintf(first_dir, sizeof first_dir, "%s/a", dir);
    snprintf(second_dir, sizeof second_dir, "%s/b", dir);
    if (mkdir(first_dir, 0700) != 0 || mkdir(second_dir, 0700) != 0)
        return -1;
    out_buf = aligned_alloc(PAGE, SPACE);
    in_buf = aligned_alloc(PAGE, SPACE);
    return 0;
}

static int teardown(void **state)
{
    free(out_buf);
    free(in_buf);
    dsc_alloc_close(&alloc); /* asserts that nothing is live */
    return rmdir(first_dir) == 0 && rmdir(second_dir) == 0 && rmdir(dir) == 0 ? 0 : -1; /* nothing was left in them */
}

static void check(dsc_status status, const dsc_error *err)
{
    if (status != DSC_OK)
        fail_msg("%s: %s", err->where, err->message);
}

static void fill(unsigned char *buf, uint32_t seed)
{
    for (int i = 0; i < SPACE; i += 4) {
        seed = seed * 1664525u + 1013904223u;
        memcpy(buf + i, &seed, 4);
    }
}


typedef struct fixture {
    dsc_aio *aio;
    dsc_swap *swap;
    dsc_swap_op *op;
} fixture;

static fixture open_fixture(const char *engine, int32_t folder_count)
{
    dsc_error err = DSC_ERROR_INIT;
    fixture f = { NULL, NULL, NULL };
    const dsc_aio_options aio_options = { .alloc = alloc, .engine = engine, .block_bytes = 3 * PAGE, .queue_depth = 4,
                                          .thread_count = 2, .overlap_events = true };
    check(dsc_aio_open(&aio_options, &f.aio, &err), &err);
    const dsc_swap_options options = { .alloc = alloc, .aio = f.aio, .tag = DSC_TAG_MOMENT, .folders = folders,
                                       .folder_count = folder_count, .bytes = SPACE - 5,
                                       .stripe_bytes = STRIPE_PAGES * PAGE };
    check(dsc_swap_open(&options, &f.swap, &err), &err);
    check(dsc_swap_op_open(f.swap, NULL, SPACE, &f.op, &err), &err);
    return f;
}

static void close_fixture(fixture *f)
{
    dsc_swap_op_close(&f->op);
    dsc_swap_close(&f->swap);
    dsc_aio_close(&f->aio);
}

/* The swap file of this process that lies in `folder`, by its descriptor: it has no name. */
static int find_descriptor(const char *folder)
{
    char link_path[300], target[512];
    DIR *all = opendir("/proc/self/fd");
    int found = -1;
    for (struct dirent *e; (e = readdir(all)) != NULL;) {
        snprintf(link_path, sizeof link_path, "/proc/self/fd/%s", e->d_name);
        const ssize_t n = readlink(link_path, target, sizeof target - 1);
        if (n > 0 && strncmp(target, folder, strlen(folder)) == 0 && target[strlen(folder)] == '/')
            found = atoi(e->d_name);
    }
    closedir(all);
    return found;
}

static void test_bytes_come_back(void **state)
{
    static const char *const engines[] = { "io_uring", "libaio", "threads" };
    for (size_t e = 0; e < DSC_COUNT(engines); e++)
        for (int32_t folder_count = 1; folder_count <= 2; folder_count++) {
            dsc_error err = DSC_ERROR_INIT;
            fixture f = open_fixture(engines[e], folder_count);
            memset(in_buf, 1, SPACE);
            dsc_swap_read(f.op, in_buf, SPACE, 0); /* never written: zeros */
            check(dsc_swap_wait(f.op, &err), &err);
            for (int i = 0; i < SPACE; i++)
                assert_int_equal(in_buf[i], 0);
            for (uint32_t round = 1; round <= 3; round++) {
                fill(out_buf, round);
                dsc_swap_write(f.op, out_buf, SPACE, 0);
                check(dsc_swap_wait(f.op, &err), &err);
                /* any part, also across stripes and folders */
                for (int64_t first = 0; first < 96; first += 7)
                    for (int64_t pages = 1; first + pages <= 96; pages += 13) {
                        dsc_swap_read(f.op, in_buf, pages * PAGE, first * PAGE);
                        check(dsc_swap_wait(f.op, &err), &err);
                        assert_memory_equal(in_buf, out_buf + first * PAGE, (size_t)(pages * PAGE));
                    }
            }
            close_fixture(&f);
        }
}

static void test_no_name_no_access(void **state)
{
    struct stat info;
    fixture f = open_fixture("auto", 2);
    for (int i = 0; i < 2; i++) {
        DIR *d = opendir(folders[i]);
        int names = 0;
        for (struct dirent *e; (e = readdir(d)) != NULL;)
            names += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
        closedir(d);
        assert_int_equal(names, 0);
        assert_int_equal(fstat(find_descriptor(folders[i]), &info), 0);
        assert_int_equal(info.st_mode & 0777, 0600);
        assert_int_equal(info.st_nlink, 0);
        assert_true(info.st_blocks * 512 >= SPACE / 2); /* the space is taken, not promised */
    }
    dsc_alloc_stats stats;
    dsc_alloc_stats_get(alloc, &stats);
    assert_int_equal(stats.count[DSC_TAG_MOMENT][DSC_TIER_NVME].current_bytes, SPACE);
    close_fixture(&f);
}

static void test_flipped_bits(void **state)
{
    dsc_error err = DSC_ERROR_INIT;
    fixture f = open_fixture("auto", 2);
    unsigned char *page = aligned_alloc(PAGE, PAGE);
    uint32_t random = 12345;
    int caught = 0;
    fill(out_buf, 1);
    dsc_swap_write(f.op, out_buf, SPACE, 0);
    check(dsc_swap_wait(f.op, &err), &err);
    for (int i = 0; i < 200; i++) {
        random = random * 1664525u + 1013904223u;
        const int fd = find_descriptor(folders[i % 2]);
        const int64_t at = (int64_t)(random >> 8) % (SPACE / 2 / PAGE) * PAGE;
        const int byte = (int)(random % PAGE), bit = i % 8;
        assert_int_equal(pread(fd, page, PAGE, at), PAGE);
        page[byte] = (unsigned char)(page[byte] ^ 1 << bit);
        assert_int_equal(pwrite(fd, page, PAGE, at), PAGE);
        dsc_swap_read(f.op, in_buf, SPACE, 0);
        const dsc_status status = dsc_swap_wait(f.op, &err);
        caught += status == DSC_ERR_IO && strstr(err.where, folders[i % 2]) != NULL &&
                  strstr(err.message, "not those written") != NULL;
        page[byte] = (unsigned char)(page[byte] ^ 1 << bit);
        assert_int_equal(pwrite(fd, page, PAGE, at), PAGE);
    }
    assert_int_equal(caught, 200);
    /* A block that is right in itself but from another place, and an older one of the same place. */
    int fd = find_descriptor(folders[0]);
    assert_int_equal(pread(fd, page, PAGE, 0), PAGE);
    assert_int_equal(pwrite(fd, page, PAGE, PAGE), PAGE);
    dsc_swap_read(f.op, in_buf, SPACE, 0);
    assert_int_equal(dsc_swap_wait(f.op, &err), DSC_ERR_IO);
    dsc_swap_write(f.op, out_buf, SPACE, 0);
    check(dsc_swap_wait(f.op, &err), &err);
    assert_int_equal(pread(fd, page, PAGE, 0), PAGE);
    fill(out_buf, 2);
    dsc_swap_write(f.op, out_buf, SPACE, 0);
    check(dsc_swap_wait(f.op, &err), &err);
    assert_int_equal(pwrite(fd, page, PAGE, 0), PAGE);
    dsc_swap_read(f.op, in_buf, SPACE, 0);
    assert_int_equal(dsc_swap_wait(f.op, &err), DSC_ERR_IO);
    free(page);
    close_fixture(&f);
}

/* Sealed in parts of one size and checked in parts of another: of two flipped bits only the parts
 * that hold them are reported. */
static void test_parts(void **state)
{
    enum { SEALED = 5, CHECKED = 7, PAGES = SPACE / PAGE };
    static const int64_t flipped[] = { 3, PAGES - 1 }; /* blocks of the space, whose single file has the same order */
    dsc_error err = DSC_ERROR_INIT;
    fixture f = open_fixture("auto", 1);
    unsigned char *page = aligned_alloc(PAGE, PAGE);
    fill(out_buf, 1);
    for (int64_t at = 0; at < PAGES; at += SEALED)
        dsc_swap_seal(f.swap, out_buf + at * PAGE, dsc_min_i64(SEALED, PAGES - at) * PAGE, at * PAGE);
    dsc_swap_write_sealed(f.op, out_buf, SPACE, 0);
    check(dsc_swap_wait(f.op, &err), &err);
    dsc_swap_read(f.op, in_buf, SPACE, 0);
    check(dsc_swap_wait(f.op, &err), &err); /* all at once is right, too */
    const int fd = find_descriptor(folders[0]);
    for (size_t i = 0; i < DSC_COUNT(flipped); i++) {
        assert_int_equal(pread(fd, page, PAGE, flipped[i] * PAGE), PAGE);
        page[i] ^= 16;
        assert_int_equal(pwrite(fd, page, PAGE, flipped[i] * PAGE), PAGE);
    }
    dsc_swap_read(f.op, in_buf, SPACE, 0);
    check(dsc_swap_arrive(f.op, &err), &err);
    for (int64_t at = 0; at < PAGES; at += CHECKED) {
        const int64_t pages = dsc_min_i64(CHECKED, PAGES - at);
        bool bad = false;
        for (size_t i = 0; i < DSC_COUNT(flipped); i++)
            bad = bad || (flipped[i] >= at && flipped[i] < at + pages);
        assert_int_equal(dsc_swap_check(f.op, at * PAGE, pages * PAGE, &err), bad ? DSC_ERR_IO : DSC_OK);
        if (!bad)
            assert_memory_equal(in_buf + at * PAGE, out_buf + at * PAGE, (size_t)(pages * PAGE));
    }
    free(page);
    close_fixture(&f);
}

static void test_refusals(void **state)
{
    dsc_error err = DSC_ERROR_INIT;
    fixture f = open_fixture("auto", 1);
    const int64_t bad[][2] = { { PAGE, 1 },         { 100, 0 },   { PAGE, SPACE },
                               { SPACE + PAGE, 0 }, { -PAGE, 0 }, { PAGE, -PAGE } };
    for (size_t i = 0; i < DSC_COUNT(bad); i++) {
        dsc_swap_read(f.op, in_buf, bad[i][0], bad[i][1]);
        assert_int_equal(dsc_swap_wait(f.op, &err), DSC_ERR_INTERNAL);
    }
    dsc_swap *none = NULL;
    const char *const nowhere[] = { "/nowhere/at/all" };
    dsc_swap_options options = { .alloc = alloc, .aio = f.aio, .tag = DSC_TAG_MOMENT, .folders = nowhere,
                                 .folder_count = 1, .bytes = PAGE };
    assert_int_equal(dsc_swap_open(&options, &none, &err), DSC_ERR_INPUT);
    assert_non_null(strstr(err.where, "/nowhere"));
    options.folders = folders;
    options.bytes = (int64_t)1 << 45; /* the checks fit into the address space, the file not on any disk */
    dsc_status status = dsc_swap_open(&options, &none, &err);
    assert_true(status == DSC_ERR_NOFIT || status == DSC_ERR_NOMEM);
    assert_null(none);
    close_fixture(&f);
}

static dsc_aio *plain_aio(dsc_aio_hook hook)
{
    dsc_error err = DSC_ERROR_INIT;
    dsc_aio *aio = NULL;
    const dsc_aio_options options = { .alloc = alloc, .engine = "auto", .block_bytes = 3 * PAGE, .queue_depth = 4,
                                      .thread_count = 2, .overlap_events = true, .hook = hook };
    check(dsc_aio_open(&options, &aio, &err), &err);
    return aio;
}

static void write_and_read(dsc_swap *swap, int64_t pages)
{
    dsc_error err = DSC_ERROR_INIT;
    dsc_swap_op *op = NULL;
    check(dsc_swap_op_open(swap, NULL, pages * PAGE, &op, &err), &err);
    fill(out_buf, 3);
    for (int round = 0; round < 2; round++) {
        dsc_swap_write(op, out_buf, pages * PAGE, 0);
        check(dsc_swap_wait(op, &err), &err);
        memset(in_buf, 0, SPACE);
        dsc_swap_read(op, in_buf, pages * PAGE, 0);
        check(dsc_swap_wait(op, &err), &err);
        assert_memory_equal(in_buf, out_buf, (size_t)(pages * PAGE));
    }
    dsc_swap_op_close(&op);
}

/* Small file systems: what does not fit is refused when it is opened, with the numbers, and what was taken stays ours
 * when others fill the disk afterwards. ext2 cannot reserve: the space is written, and that is said. */
static void on_small_disk(const char *kind, bool reserves)
{
    dsc_error err = DSC_ERROR_INIT;
    dsc_swap *swap = NULL;
    if (!disk_mount(first_dir, kind, 96))
        skip();
    dsc_aio *aio = plain_aio((dsc_aio_hook){ NULL, NULL });
    dsc_swap_options options = {
        .alloc = alloc, .aio = aio, .tag = DSC_TAG_MOMENT, .folders = folders, .folder_count = 1, .bytes = 40 << 20
    };
    assert_int_equal(dsc_swap_open(&options, &swap, &err), DSC_ERR_NOFIT);
    assert_string_equal(err.where, first_dir);
    assert_non_null(strstr(err.message, "GB are free"));
    options.bytes = 8 << 20;
    check(dsc_swap_open(&options, &swap, &err), &err);
    assert_int_equal(strstr(dsc_swap_warning(swap), "cannot reserve space") == NULL, reserves);
    if (!reserves)
        assert_non_null(strstr(dsc_swap_warning(swap), first_dir));
    disk_fill(first_dir);
    write_and_read(swap, 96);
    dsc_swap_close(&swap);
    dsc_aio_close(&aio);
    disk_unmount(first_dir);
}

static void test_small_tmpfs(void **state) { on_small_disk("tmpfs", true); }
static void test_small_ext4(void **state) { on_small_disk("ext4", true); }
static void test_small_ext2(void **state) { on_small_disk("ext2", false); }

/* Refusals while swap is opened: every operation fails once, and a file system has no fallocate. */
typedef struct io_fault {
    int64_t count, at;
    dsc_io_op op; /* or every one: DSC_IO_OP_COUNT */
    int errno_value;
} io_fault;

static dsc_status io_refuse(void *user, dsc_io_op op, const char *path, int64_t offset, int64_t bytes,
                            int *errno_value)
{
    io_fault *fault = user;
    if ((fault->op != DSC_IO_OP_COUNT && op != fault->op) || ++fault->count != fault->at)
        return DSC_OK;
    *errno_value = fault->errno_value;
    return DSC_ERR_IO;
}

static dsc_status open_with_io(io_fault *fault, dsc_swap **swap, dsc_aio *aio, dsc_error *err)
{
    const dsc_io io = { .hook = { io_refuse, fault } };
    const dsc_swap_options options = { .alloc = alloc, .aio = aio, .io = &io, .tag = DSC_TAG_MOMENT,
                                       .folders = folders, .folder_count = 2, .bytes = SPACE,
                                       .stripe_bytes = STRIPE_PAGES * PAGE };
    return dsc_swap_open(&options, swap, err);
}

static void test_io_faults_at_open(void **state)
{
    dsc_aio *aio = plain_aio((dsc_aio_hook){ NULL, NULL });
    static const struct { int errno_value; dsc_status status;
    } kinds[] = { { EIO, DSC_ERR_IO }, { ENOSPC, DSC_ERR_NOFIT }, { EACCES, DSC_ERR_INPUT } };
    int refused = 0;
    for (size_t k = 0; k < DSC_COUNT(kinds); k++)
        for (int64_t at = 1; at < 20; at++) {
            dsc_error err = DSC_ERROR_INIT;
            dsc_alloc_stats before, after;
            dsc_swap *swap = NULL;
            io_fault fault = { .at = at, .op = DSC_IO_OP_COUNT, .errno_value = kinds[k].errno_value };
            dsc_alloc_stats_get(alloc, &before);
            const dsc_status status = open_with_io(&fault, &swap, aio, &err);
            assert_int_equal(status == DSC_OK, fault.count < at);
            if (status != DSC_OK) {
                refused++;
                assert_null(swap);
                assert_true(status == kinds[k].status || status == DSC_ERR_IO);
                assert_non_null(strstr(err.where, dir));
            }
            dsc_swap_close(&swap);
            dsc_alloc_stats_get(alloc, &after);
            assert_int_equal(before.live_count, after.live_count);
        }
    assert_int_equal(refused, 3 * 4); /* two folders, a file and its space each */
    dsc_aio_close(&aio);
}

static void test_without_fallocate(void **state)
{
    dsc_error err = DSC_ERROR_INIT;
    dsc_aio *aio = plain_aio((dsc_aio_hook){ NULL, NULL });
    dsc_swap *swap = NULL;
    struct stat info;
    io_fault fault = { .at = 1, .op = DSC_IO_RESERVE, .errno_value = EOPNOTSUPP };
    check(open_with_io(&fault, &swap, aio, &err), &err);
    assert_non_null(strstr(dsc_swap_warning(swap), "cannot reserve space"));
    assert_int_equal(fstat(find_descriptor(first_dir), &info), 0);
    assert_true(info.st_blocks * 512 >= SPACE / 2); /* taken all the same */
    write_and_read(swap, 96);
    dsc_swap_close(&swap);
    dsc_aio_close(&aio);
}

/* Faults of the device at every n-th block of a write and of the read after it. The bytes are right, or an error names
 * the folder and the place; a failed write is never read as if it had succeeded. */
enum { EIO_ONCE, ENOSPC_ONCE, EINTR_ONCE, EAGAIN_ONCE, SHORT_BY_ONE, SHORT_HALF, REFUSED, LATE, LATE_ALL, NEVER,
       KINDS };
enum { FAULT_PAGES = 24 };
typedef struct device_fault {
    int64_t count, at;
    int kind;
} device_fault;

static dsc_aio_fault_kind device_fails(void *user, int64_t n, const dsc_aio_piece *piece, int64_t *result)
{
    device_fault *fault = user;
    fault->count++;
    if (fault->count != fault->at && !(fault->kind == LATE_ALL && fault->count > fault->at))
        return DSC_AIO_FAULT_NONE;
    switch (fault->kind) {
    case EIO_ONCE: *result = -EIO; return DSC_AIO_FAULT_RESULT;
    case ENOSPC_ONCE: *result = -ENOSPC; return DSC_AIO_FAULT_RESULT;
    case EINTR_ONCE: *result = -EINTR; return DSC_AIO_FAULT_RESULT;
    case EAGAIN_ONCE: *result = -EAGAIN; return DSC_AIO_FAULT_RESULT;
    case SHORT_BY_ONE: *result = piece->bytes - 1; return DSC_AIO_FAULT_RESULT;
    case SHORT_HALF: *result = piece->bytes / 2; return DSC_AIO_FAULT_RESULT;
    case REFUSED: return DSC_AIO_FAULT_REFUSE;
    case NEVER: return DSC_AIO_FAULT_NEVER;
    default: return DSC_AIO_FAULT_LATE;
    }
}

static bool names_the_place(const dsc_error *err)
{
    return strstr(err->where, dir) != NULL && (strstr(err->message, " at ") != NULL);
}

static fixture open_faulty(const char *engine, device_fault *fault, int64_t timeout_ns)
{
    dsc_error err = DSC_ERROR_INIT;
    fixture f = { NULL, NULL, NULL };
    const dsc_aio_options aio_options = { .alloc = alloc, .engine = engine, .block_bytes = 3 * PAGE, .queue_depth = 4,
                                          .thread_count = 2, .overlap_events = true, .hook = { device_fails, fault },
                                          .timeout_ns = timeout_ns };
    check(dsc_aio_open(&aio_options, &f.aio, &err), &err);
    const dsc_swap_options options = { .alloc = alloc, .aio = f.aio, .tag = DSC_TAG_MOMENT, .folders = folders,
                                       .folder_count = 2, .bytes = FAULT_PAGES * PAGE, .stripe_bytes = 4 * PAGE };
    check(dsc_swap_open(&options, &f.swap, &err), &err);
    check(dsc_swap_op_open(f.swap, NULL, FAULT_PAGES * PAGE, &f.op, &err), &err);
    return f;
}

/* NO_FAULT: it was behind the last block. BUSY: there was none, but the machine is too slow for the short timeout. */
typedef enum device_answer { DEVICE_FAULT, DEVICE_NO_FAULT, DEVICE_BUSY } device_answer;

static device_answer one_device_fault(fixture *f, device_fault *fault, int64_t at)
{
    dsc_error err = DSC_ERROR_INIT;
    fault->count = 0;
    fault->at = at;
    fill(out_buf, (uint32_t)at);
    dsc_swap_write(f->op, out_buf, FAULT_PAGES * PAGE, 0);
    const dsc_status written = dsc_swap_wait(f->op, &err);
    assert_true(written == DSC_OK || names_the_place(&err));
    dsc_swap_read(f->op, in_buf, FAULT_PAGES * PAGE, 0);
    const dsc_status read_back = dsc_swap_wait(f->op, &err);
    if (read_back == DSC_OK)
        assert_memory_equal(in_buf, out_buf, FAULT_PAGES * PAGE);
    else
        assert_true(names_the_place(&err));
    const bool fired = fault->count >= at;
    if (fault->kind == NEVER && !fired && (written == DSC_ERR_STUCK || read_back == DSC_ERR_STUCK))
        return DEVICE_BUSY;
    if (fault->kind == EIO_ONCE || fault->kind == ENOSPC_ONCE || fault->kind == NEVER)
        assert_int_equal(written != DSC_OK || read_back != DSC_OK, fired);
    else
        assert_true(written == DSC_OK && read_back == DSC_OK);
    if (fault->kind == NEVER && fired)
        assert_int_equal(err.status, DSC_ERR_STUCK);
    return fired ? DEVICE_FAULT : DEVICE_NO_FAULT;
}

static void test_device_faults(void **state)
{
    static const char *const engines[] = { "io_uring", "libaio", "threads" };
    for (size_t e = 0; e < DSC_COUNT(engines); e++)
        for (int kind = 0; kind < KINDS; kind++) {
            device_fault fault = { .kind = kind, .at = INT64_MAX };
            int64_t timeout_ns = kind == NEVER ? 30000000 : 0, at = 1;
            fixture f = open_faulty(engines[e], &fault, timeout_ns);
            for (device_answer got; (got = one_device_fault(&f, &fault, at)) != DEVICE_NO_FAULT;) {
                at += got == DEVICE_BUSY ? 0 : kind == NEVER ? 7 : 1;
                timeout_ns *= got == DEVICE_BUSY ? 4 : 1;
                if (kind != NEVER)
                    continue;
                close_fixture(&f); /* it is broken */
                f = open_faulty(engines[e], &fault, timeout_ns);
            }
            assert_true(at >= 24);
            close_fixture(&f);
        }
}

/* Its dsc_aio closed first, with a transfer under way: what is done about a device that does not answer. */
static void test_engine_closed_first(void **state)
{
    static const char *const engines[] = { "io_uring", "libaio", "threads" };
    for (size_t e = 0; e < DSC_COUNT(engines); e++)
        for (int round = 0; round < 10; round++) {
            fixture f = open_fixture(engines[e], 2);
            fill(out_buf, 5);
            dsc_swap_write(f.op, out_buf, SPACE, 0);
            dsc_aio_close(&f.aio);
            close_fixture(&f);
        }
}

/* kill -9 in the middle of writing: nothing remains, and another job in the same folder is right all the time. */
static void test_two_jobs_and_a_kill(void **state)
{
    dsc_error err = DSC_ERROR_INIT;
    int ready[2];
    char one = 0;
    assert_int_equal(pipe(ready), 0);
    const pid_t pid = fork();
    if (pid == 0) {
        fixture f = open_fixture("auto", 2);
        fill(out_buf, 77);
        for (int i = 0;; i++) {
            dsc_swap_write(f.op, out_buf, SPACE, 0);
            if (dsc_swap_wait(f.op, &err) != DSC_OK || (i == 3 && write(ready[1], &one, 1) != 1))
                _exit(1);
        }
    }
    assert_int_equal(read(ready[0], &one, 1), 1);
    fixture f = open_fixture("auto", 2);
    for (uint32_t round = 1; round <= 5; round++) {
        fill(out_buf, round);
        dsc_swap_write(f.op, out_buf, SPACE, 0);
        check(dsc_swap_wait(f.op, &err), &err);
        if (round == 3)
            kill(pid, SIGKILL);
        dsc_swap_read(f.op, in_buf, SPACE, 0);
        check(dsc_swap_wait(f.op, &err), &err);
        assert_memory_equal(in_buf, out_buf, SPACE);
    }
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    close(ready[0]);
    close(ready[1]);
    close_fixture(&f);
}

static void test_allocation_failures(void **state)
{
    dsc_error err = DSC_ERROR_INIT;
    const dsc_aio_options aio_options = { .alloc = alloc, .engine = "threads", .block_bytes = PAGE, .queue_depth = 1,
                                          .thread_count = 1 };
    dsc_aio *aio = NULL;
    check(dsc_aio_open(&aio_options, &aio, &err), &err);
    const dsc_swap_options options = { .alloc = alloc, .aio = aio, .tag = DSC_TAG_MOMENT, .folders = folders,
                                       .folder_count = 2, .bytes = SPACE };
    int failures = 0;
    for (int n = 1; n < 8; n++) {
        dsc_alloc_stats stats, after;
        dsc_swap *swap = NULL;
        dsc_swap_op *op = NULL;
        dsc_alloc_stats_get(alloc, &stats);
        dsc_alloc_fail_at(alloc, stats.call_count + n, false);
        dsc_status status = dsc_swap_open(&options, &swap, &err);
        if (status == DSC_OK)
            status = dsc_swap_op_open(swap, NULL, SPACE, &op, &err);
        dsc_alloc_fail_at(alloc, 0, false);
        failures += status == DSC_ERR_NOMEM;
        dsc_swap_op_close(&op);
        dsc_swap_close(&swap);
        dsc_alloc_stats_get(alloc, &after);
        assert_int_equal(stats.live_count, after.live_count);
    }
    assert_int_equal(failures, 5);
    dsc_aio_close(&aio);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes_come_back),
        cmocka_unit_test(test_no_name_no_access),
        cmocka_unit_test(test_flipped_bits),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_small_tmpfs),
        cmocka_unit_test(test_small_ext4),
        cmocka_unit_test(test_small_ext2),
        cmocka_unit_test(test_io_faults_at_open),
        cmocka_unit_test(test_without_fallocate),
        cmocka_unit_test(test_device_faults),
        cmocka_unit_test(test_engine_closed_first),
        cmocka_unit_test(test_two_jobs_and_a_kill),
        cmocka_unit_test(test_allocation_failures),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
