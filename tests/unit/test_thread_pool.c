/* test_thread_pool.c - a team computes every block once, with at most its own threads. A thread-sanitized build
 * reports a planted data race (a target that must fail) and reports nothing for independent blocks.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "kernels/cpu_threads.h"
#include "kernels/thread_pool.h"
#include "tests/support/sanitizer.h"

enum { BLOCKS_MAX = 1000 };

typedef struct blocks {
    int32_t times[BLOCKS_MAX];
    atomic_int thread_max;
} blocks;

static void count_blocks(void *ctx, int64_t first, int64_t last)
{
    blocks *b = ctx;
    int most = atomic_load(&b->thread_max);
    while (dsc_thread_index() > most && !atomic_compare_exchange_weak(&b->thread_max, &most, dsc_thread_index())) {
    }
    for (int64_t i = first; i < last; i++)
        b->times[i]++;
}

static void every_block_once(void **state)
{
    static const int64_t counts[] = { 0, 1, 2, 3, 31, 32, 33, 95, 96, 97, 999, BLOCKS_MAX };
    for (int32_t threads = 1; threads <= 5; threads++)
        for (size_t c = 0; c < DSC_COUNT(counts); c++) {
            const dsc_cpu_threads team = { .threads = threads };
            blocks b;
            memset(&b, 0, sizeof b);
            dsc_thread_pool_run(&team, counts[c], count_blocks, &b);
            for (int64_t i = 0; i < BLOCKS_MAX; i++)
                assert_int_equal(b.times[i], i < counts[c]);
            assert_true(b.thread_max < threads);
        }
}

#if SANITIZE_THREAD
/* ---- the canary ---- */

static void write_one_place(void *ctx, int64_t first, int64_t last)
{
    int64_t *sum = ctx;
    for (int64_t i = first; i < last; i++) {
        *sum += i;
        usleep(1000); /* nobody does all of it alone */
    }
}

static void blocks_that_share_are_seen(void **state)
{
    /* A program of its own: this one is to end well. 66 is ThreadSanitizer's exit code. */
    const int status = system("/proc/$PPID/exe share >/dev/null 2>&1");
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 66);
}
#endif

int main(int argc, char **argv)
{
#if SANITIZE_THREAD
    if (argc > 1 && strcmp(argv[1], "share") == 0) {
        const dsc_cpu_threads team = { .threads = 2 };
        int64_t sum = 0;
        dsc_thread_pool_run(&team, 8, write_one_place, &sum);
        return 0;
    }
#endif
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_block_once),
#if SANITIZE_THREAD
        cmocka_unit_test(blocks_that_share_are_seen),
#endif
    };
    return cmocka_run_group_tests_name("team", tests, NULL, NULL);
}
