/* test_alloc.c - the counters, the fault hook, the freeze, and what the system refuses.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "tests/support/sanitizer.h"

/* A refused allocation is what some tests ask for. */
DSC_API const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1";
}

DSC_API const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
    return "allocator_may_return_null=1";
}

static int open_alloc(void **state)
{
    dsc_alloc *alloc = NULL;
    if (dsc_alloc_open(&alloc, NULL) != DSC_OK)
        return -1;
    *state = alloc;
    return 0;
}

static int close_alloc(void **state)
{
    dsc_alloc *alloc = *state;
    dsc_alloc_stats stats;
    dsc_alloc_stats_get(alloc, &stats);
    if (stats.live_count != 0)
        return -1; /* a leak, or the rest of a test that failed */
    dsc_alloc_close(&alloc);
    dsc_alloc_close(&alloc);
    return alloc == NULL ? 0 : -1;
}

static dsc_alloc_stats stats_of(dsc_alloc *alloc)
{
    dsc_alloc_stats stats;
    dsc_alloc_stats_get(alloc, &stats);
    return stats;
}

static void zeroed_is_zero_aligned_and_counted(void **state)
{
    dsc_alloc *alloc = *state;
    for (int64_t count = 0; count < 2000; count += 1 + count / 3) {
        unsigned char *block = NULL;
        assert_int_equal(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, count, 3, &block, NULL), DSC_OK);
        assert_non_null(block);
        assert_int_equal((uintptr_t)block % 16, 0);
        for (int64_t i = 0; i < 3 * count; i++)
            assert_int_equal(block[i], 0);
        memset(block, 0xff, (size_t)(3 * count));
        assert_int_equal(stats_of(alloc).count[DSC_TAG_CONTROL][DSC_TIER_HOST].current_bytes, 3 * count);
        dsc_alloc_free(alloc, block);
        assert_int_equal(stats_of(alloc).count[DSC_TAG_CONTROL][DSC_TIER_HOST].current_bytes, 0);
    }
    dsc_alloc_free(alloc, NULL);
    assert_int_equal(stats_of(alloc).live_count, 0);
}

static void strdup_copies(void **state)
{
    dsc_alloc *alloc = *state;
    char *copy = NULL;
    assert_int_equal(dsc_alloc_strdup(alloc, DSC_TAG_DATA, "text", &copy, NULL), DSC_OK);
    assert_string_equal(copy, "text");
    assert_int_equal(stats_of(alloc).count[DSC_TAG_DATA][DSC_TIER_HOST].current_bytes, 5);
    dsc_alloc_free(alloc, copy);
}

/* One part and several, and the last one short. */
static void populated_is_there_and_zero(void **state)
{
    static const int64_t sizes[] = { 1, 5000, (INT64_C(256) << 20) + 4097 };
    static unsigned char there[65538];
    dsc_alloc *alloc = *state;
    for (size_t i = 0; i < DSC_COUNT(sizes); i++) {
        dsc_buf buf;
        assert_int_equal(dsc_buf_open(alloc, DSC_TAG_GRAD, DSC_TIER_PINNED, sizes[i], &buf, NULL), DSC_OK);
        assert_true(dsc_buf_populate(&buf));
        assert_int_equal(mincore(buf.ptr, (size_t)sizes[i], there), 0);
        for (int64_t page = 0; page < dsc_div_ceil(sizes[i], 4096); page++)
            assert_int_equal(there[page] & 1, 1);
        for (int64_t at = 0; at < sizes[i]; at += 4096)
            assert_int_equal(((unsigned char *)buf.ptr)[at], 0);
        dsc_buf_close(&buf);
    }
    dsc_buf none = { 0 };
    assert_true(dsc_buf_populate(&none));
}

static void peak_is_of_the_sum(void **state)
{
    dsc_alloc *alloc = *state;
    dsc_buf a, b, c;
    assert_int_equal(dsc_buf_open(alloc, DSC_TAG_GRAD, DSC_TIER_HOST, 1000, &a, NULL), DSC_OK);
    dsc_buf_close(&a);
    assert_int_equal(dsc_buf_open(alloc, DSC_TAG_MOMENT, DSC_TIER_HOST, 2000, &b, NULL), DSC_OK);
    assert_int_equal(dsc_buf_open(alloc, DSC_TAG_GRAD, DSC_TIER_PINNED, 64, &c, NULL), DSC_OK);
    const dsc_alloc_stats stats = stats_of(alloc);
    assert_int_equal(stats.count[DSC_TAG_GRAD][DSC_TIER_HOST].current_bytes, 0);
    assert_int_equal(stats.count[DSC_TAG_GRAD][DSC_TIER_HOST].peak_bytes, 1024); /* rounded up to 64 */
    assert_int_equal(stats.count[DSC_TAG_MOMENT][DSC_TIER_HOST].peak_bytes, 2048);
    assert_int_equal(stats.tier_peak_bytes[DSC_TIER_HOST], 2048); /* never both at once */
    assert_int_equal(stats.tier_current_bytes[DSC_TIER_PINNED], 64);
    assert_int_equal(stats.live_count, 2);
    assert_int_equal(stats.call_count, 3);
    dsc_buf_close(&b);
    dsc_buf_close(&c);
    dsc_buf_close(&c);
}

static void buffers_are_zero_and_aligned(void **state)
{
    dsc_alloc *alloc = *state;
    static const int64_t sizes[] = { 0, 1, 64, 4095, 4096, 4097, (4 << 20) - 1, 4 << 20, (4 << 20) + 1,
                                     (9 << 20) + 77 };
    for (size_t i = 0; i < DSC_COUNT(sizes); i++) {
        dsc_buf buf;
        assert_int_equal(dsc_buf_open(alloc, DSC_TAG_PARAM, DSC_TIER_HOST, sizes[i], &buf, NULL), DSC_OK);
        assert_non_null(buf.ptr);
        assert_int_equal(buf.bytes, sizes[i]);
        assert_int_equal((uintptr_t)buf.ptr % (sizes[i] >= 4 << 20 ? 2 << 20 : 4096), 0);
        const unsigned char *bytes = buf.ptr;
        int64_t wrong = 0;
        for (int64_t j = 0; j < sizes[i]; j++)
            wrong += bytes[j] != 0;
        assert_int_equal(wrong, 0);
        if (sizes[i] > 0)
            memset(buf.ptr, 1, (size_t)sizes[i]);
        dsc_buf_close(&buf);
        assert_null(buf.ptr);
    }
    assert_int_equal(stats_of(alloc).tier_current_bytes[DSC_TIER_HOST], 0);
}

static void fault_hook_fails_the_nth(void **state)
{
    dsc_alloc *alloc = *state;
    for (int persistent = 0; persistent < 2; persistent++) {
        const int64_t start = stats_of(alloc).call_count;
        dsc_alloc_fail_at(alloc, start + 3, persistent);
        for (int n = 1; n <= 6; n++) {
            dsc_error err = DSC_ERROR_INIT;
            char *block = (char *)1;
            const dsc_status status = dsc_alloc_zeroed(alloc, DSC_TAG_LEAF, 10, 10, &block, &err);
            const bool fails = persistent ? n >= 3 : n == 3;
            assert_int_equal(status, fails ? DSC_ERR_NOMEM : DSC_OK);
            if (fails) {
                assert_null(block);
                assert_int_equal(err.status, DSC_ERR_NOMEM);
                assert_non_null(strstr(err.message, "leaf grads"));
                assert_non_null(strstr(err.message, "host"));
                assert_non_null(strstr(err.message, "100 bytes"));
            }
            dsc_alloc_free(alloc, block);
        }
        dsc_alloc_fail_at(alloc, 0, false);
    }
    /* Buffers and notes count in the same sequence. */
    dsc_alloc_fail_at(alloc, stats_of(alloc).call_count + 2, true);
    assert_int_equal(dsc_alloc_note(alloc, DSC_TAG_LIBRARY, DSC_TIER_DEVICE, 5, NULL), DSC_OK);
    dsc_buf buf;
    assert_int_equal(dsc_buf_open(alloc, DSC_TAG_COMM, DSC_TIER_HOST, 5, &buf, NULL), DSC_ERR_NOMEM);
    assert_null(buf.ptr);
    assert_int_equal(dsc_alloc_note(alloc, DSC_TAG_LIBRARY, DSC_TIER_DEVICE, 5, NULL), DSC_ERR_NOMEM);
    dsc_alloc_unnote(alloc, DSC_TAG_LIBRARY, DSC_TIER_DEVICE, 5);
    const dsc_alloc_stats stats = stats_of(alloc);
    assert_int_equal(stats.live_count, 0);
    assert_int_equal(stats.tier_current_bytes[DSC_TIER_DEVICE], 0);
    assert_int_equal(stats.tier_peak_bytes[DSC_TIER_DEVICE], 5);
}

static void frozen_memory_refuses_by_name(void **state)
{
    dsc_alloc *alloc = *state;
    char *before = NULL, *after = NULL;
    dsc_error err = DSC_ERROR_INIT;
    assert_int_equal(dsc_alloc_zeroed(alloc, DSC_TAG_DATA, 1, 7, &before, NULL), DSC_OK);
    dsc_alloc_freeze(alloc, true);
    assert_int_equal(dsc_alloc_zeroed(alloc, DSC_TAG_ACTIVATION, 1, 7, &after, &err), DSC_ERR_INTERNAL);
    assert_non_null(strstr(err.message, "activations"));
    assert_int_equal(dsc_alloc_note(alloc, DSC_TAG_COMM, DSC_TIER_HOST, 1, &err), DSC_ERR_INTERNAL);
    dsc_alloc_free(alloc, before); /* freeing stays allowed */
    dsc_alloc_freeze(alloc, false);
    assert_int_equal(dsc_alloc_zeroed(alloc, DSC_TAG_ACTIVATION, 1, 7, &after, &err), DSC_OK);
    dsc_alloc_free(alloc, after);
}

/* Impossible sizes are errors that say what was asked for, and leave the counters as they were. */
static void the_impossible_is_an_error(void **state)
{
    dsc_alloc *alloc = *state;
    void *ptr = NULL;
    dsc_buf buf;
    dsc_error err = DSC_ERROR_INIT;
    assert_int_equal(dsc_alloc_zeroed(alloc, DSC_TAG_DATA, INT64_MAX / 2, 3, &ptr, &err), DSC_ERR_NOMEM);
    assert_int_equal(dsc_alloc_zeroed(alloc, DSC_TAG_DATA, INT64_MAX, 1, &ptr, &err), DSC_ERR_NOMEM);
    assert_int_equal(dsc_alloc_zeroed(alloc, DSC_TAG_DATA, -1, 8, &ptr, &err), DSC_ERR_NOMEM);
    assert_int_equal(dsc_buf_open(alloc, DSC_TAG_DATA, DSC_TIER_HOST, -1, &buf, &err), DSC_ERR_NOMEM);
    assert_int_equal(dsc_buf_open(alloc, DSC_TAG_DATA, DSC_TIER_HOST, INT64_MAX, &buf, &err), DSC_ERR_NOMEM);
    assert_int_equal(stats_of(alloc).tier_peak_bytes[DSC_TIER_HOST], 0);
    /* These reach the system. */
    assert_int_equal(dsc_alloc_zeroed(alloc, DSC_TAG_DATA, INT64_MAX / 4, 1, &ptr, &err), DSC_ERR_NOMEM);
    assert_non_null(strstr(err.message, "host"));
    assert_non_null(strstr(err.message, "data"));
    assert_non_null(strstr(err.message, "2305843009213693951"));
    assert_null(ptr);
    const int64_t too_much = INT64_MAX / 4 - 100;
    assert_int_equal(dsc_buf_open(alloc, DSC_TAG_MASTER, DSC_TIER_PINNED, too_much, &buf, &err), DSC_ERR_NOMEM);
    assert_non_null(strstr(err.message, "pinned"));
    assert_non_null(strstr(err.message, "master"));
    assert_null(buf.ptr);
    /* A sum that does not fit is refused too. */
    assert_int_equal(dsc_alloc_note(alloc, DSC_TAG_DATA, DSC_TIER_NVME, INT64_MAX, &err), DSC_OK);
    assert_int_equal(dsc_alloc_note(alloc, DSC_TAG_GRAD, DSC_TIER_NVME, 1, &err), DSC_ERR_NOMEM);
    dsc_alloc_unnote(alloc, DSC_TAG_DATA, DSC_TIER_NVME, INT64_MAX);
    assert_int_equal(stats_of(alloc).live_count, 0);
    assert_int_equal(stats_of(alloc).tier_current_bytes[DSC_TIER_HOST], 0);
}

enum { THREADS = 4, ROUNDS = 3000 };

static void *hammer(void *arg)
{
    dsc_alloc *alloc = arg;
    for (int i = 0; i < ROUNDS; i++) {
        char *block = NULL;
        dsc_buf buf = { 0 };
        if (dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, 1 + i % 7, 8, &block, NULL) != DSC_OK ||
            (i % 50 == 0 && dsc_buf_open(alloc, DSC_TAG_GRAD, DSC_TIER_HOST, 4096, &buf, NULL) != DSC_OK))
            return alloc;
        dsc_buf_close(&buf);
        dsc_alloc_free(alloc, block);
    }
    return NULL;
}

static void threads_share_it(void **state)
{
    dsc_alloc *alloc = *state;
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, hammer, alloc), 0);
    for (int i = 0; i < THREADS; i++) {
        void *failed = NULL;
        assert_int_equal(pthread_join(threads[i], &failed), 0);
        assert_null(failed);
    }
    const dsc_alloc_stats stats = stats_of(alloc);
    assert_int_equal(stats.call_count, THREADS * (ROUNDS + ROUNDS / 50));
    assert_int_equal(stats.live_count, 0);
    assert_int_equal(stats.tier_current_bytes[DSC_TIER_HOST], 0);
    assert_in_range(stats.tier_peak_bytes[DSC_TIER_HOST], 4096 + 8, THREADS * (4096 + 56));
}

/* Runs in a child, which must abort. */
static void must_abort(void (*misuse)(dsc_alloc *alloc), dsc_alloc *alloc)
{
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        signal(SIGABRT, SIG_DFL);
        const int null = open("/dev/null", O_WRONLY);
        dup2(null, STDERR_FILENO);
        misuse(alloc);
        _exit(0);
    }
    int wait_status = 0;
    assert_int_equal(waitpid(child, &wait_status, 0), child);
    assert_true(WIFSIGNALED(wait_status));
    assert_int_equal(WTERMSIG(wait_status), SIGABRT);
}

static void leak_then_close(dsc_alloc *alloc)
{
    void *leak = NULL;
    if (dsc_alloc_zeroed(alloc, DSC_TAG_DATA, 1, 0, &leak, NULL) == DSC_OK) /* even of no bytes */
        dsc_alloc_close(&alloc);
}

static void write_before_start(dsc_alloc *alloc)
{
    char *block = NULL;
    if (dsc_alloc_zeroed(alloc, DSC_TAG_DATA, 1, 9, &block, NULL) != DSC_OK)
        return;
    block[-1] ^= 1;
    dsc_alloc_free(alloc, block);
}

static void unnote_too_much(dsc_alloc *alloc)
{
    dsc_alloc_unnote(alloc, DSC_TAG_DATA, DSC_TIER_HOST, 1);
}

static void misuse_aborts(void **state)
{
    must_abort(leak_then_close, *state);
    must_abort(write_before_start, *state);
    must_abort(unnote_too_much, *state);
}

/* A value of /proc/meminfo; -1: there is none. */
static long free_reserved_pages(void)
{
    char line[128];
    long count = -1;
    FILE *info = fopen("/proc/meminfo", "r");
    while (info != NULL && fgets(line, sizeof line, info) != NULL)
        if (sscanf(line, "HugePages_Free: %ld", &count) == 1)
            break;
    if (info != NULL)
        fclose(info);
    return count;
}

/* Memory that files and devices transfer from: the machine's 2 MiB pages where there are enough, else they are asked
 * for, and what is small has neither. Other memory leaves the machine's alone. */
static void pinned_buffers_in_large_pages(void **state)
{
    dsc_alloc *alloc = *state;
    dsc_error err = DSC_ERROR_INIT;
    const int64_t bytes = (5 << 20) + 100;
    const long before = free_reserved_pages();
    const bool here = before >= 8; /* some may go to others meanwhile */
    dsc_buf buf;
    assert_int_equal(dsc_buf_open(alloc, DSC_TAG_IO, DSC_TIER_PINNED, bytes, &buf, &err), DSC_OK);
    assert_int_equal(buf.pages, here ? DSC_PAGES_RESERVED : DSC_PAGES_ASKED);
    assert_int_equal((uintptr_t)buf.ptr % (2 << 20), 0);
    for (int64_t i = 0; i < bytes; i += 511)
        assert_int_equal(((char *)buf.ptr)[i], 0);
    memset(buf.ptr, 1, (size_t)bytes);
    dsc_alloc_stats stats;
    dsc_alloc_stats_get(alloc, &stats);
    assert_int_equal(stats.count[DSC_TAG_IO][DSC_TIER_PINNED].current_bytes, (bytes + 63) / 64 * 64);
    if (here)
        assert_true(free_reserved_pages() <= before - 3);
    dsc_buf_close(&buf);
    assert_int_equal(dsc_buf_open(alloc, DSC_TAG_IO, DSC_TIER_PINNED, 4096, &buf, &err), DSC_OK);
    assert_int_equal(buf.pages, DSC_PAGES_PLAIN);
    dsc_buf_close(&buf);
    assert_int_equal(dsc_buf_open(alloc, DSC_TAG_IO, DSC_TIER_HOST, bytes, &buf, &err), DSC_OK);
    assert_int_equal(buf.pages, DSC_PAGES_ASKED);
    dsc_buf_close(&buf);
    if (!here)
        skip(); /* vm.nr_hugepages is 0: the machine's own pages were not tried */
}

/* In a child, since neither the limit nor the capability can be taken back. */
static void lock_in_child(dsc_alloc *alloc)
{
    struct __user_cap_header_struct header = { _LINUX_CAPABILITY_VERSION_3, 0 };
    struct __user_cap_data_struct caps[2];
    const struct rlimit little = { 64 << 10, 64 << 10 };
    char word[256] = "";
    dsc_buf small, large;
    if (dsc_buf_open(alloc, DSC_TAG_IO, DSC_TIER_PINNED, 4096, &small, NULL) != DSC_OK ||
        dsc_buf_open(alloc, DSC_TAG_IO, DSC_TIER_PINNED, 1 << 20, &large, NULL) != DSC_OK)
        _exit(1);
    if (syscall(SYS_capget, &header, caps) != 0)
        _exit(77);
    caps[0].effective &= ~(1u << CAP_IPC_LOCK);
    if (syscall(SYS_capset, &header, caps) != 0 || setrlimit(RLIMIT_MEMLOCK, &little) != 0)
        _exit(77);
    if (!dsc_buf_lock(&small, word, sizeof word) || word[0] != 0)
        _exit(2);
    if (dsc_buf_lock(&large, word, sizeof word))
        _exit(3);
    _exit(strstr(word, "1.0 MiB of io buffers are not locked") != NULL &&
          strstr(word, "RLIMIT_MEMLOCK is 64 KiB; raise it (ulimit -l") != NULL ? 0 : 4);
}

static void locking_says_what_to_raise(void **state)
{
    int status = 0;
    if (SANITIZE_ADDRESS || SANITIZE_THREAD)
        skip(); /* their mlock does nothing */
    const pid_t pid = fork();
    if (pid == 0)
        lock_in_child(*state);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77)
        skip();
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void names(void **state)
{
    (void)state;
    assert_string_equal(dsc_tag_text(DSC_TAG_PARAM), "params");
    assert_string_equal(dsc_tag_text(DSC_TAG_CONTROL), "control");
    assert_string_equal(dsc_tag_text((dsc_tag)99), "unknown");
    assert_string_equal(dsc_tier_text(DSC_TIER_DEVICE), "device");
    assert_string_equal(dsc_tier_text(DSC_TIER_NVME), "nvme");
    assert_string_equal(dsc_tier_text((dsc_tier)4), "unknown");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_alloc, close_alloc)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(zeroed_is_zero_aligned_and_counted),
        TEST(strdup_copies),
        TEST(populated_is_there_and_zero),
        TEST(peak_is_of_the_sum),
        TEST(buffers_are_zero_and_aligned),
        TEST(fault_hook_fails_the_nth),
        TEST(frozen_memory_refuses_by_name),
        TEST(the_impossible_is_an_error),
        TEST(threads_share_it),
        TEST(misuse_aborts),
        TEST(pinned_buffers_in_large_pages),
        TEST(locking_says_what_to_raise),
        TEST(names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
