/* test_needs.c - lists of needs: planned bytes are the allocator's, a failure in a list leaves nothing, and a check
 * that finds a list which was not opened. SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "kernels/needs.h"

enum { NEEDS = 6 };

typedef struct memory {
    dsc_alloc *alloc;
    dsc_device *device;
    dsc_buf device_buf, host_buf;
    double *array;
    char *small;
    int64_t noted;
} memory;

/* One entry of each kind, of sizes that are not whole cache lines. */
static void list_needs(memory *m, dsc_need out[NEEDS])
{
    const dsc_need needs[NEEDS] = {
        { &m->device_buf, DSC_TAG_SCRATCH, DSC_TIER_DEVICE, 1000, DSC_NEED_DEVICE },
        { &m->host_buf, DSC_TAG_COMM, DSC_TIER_HOST, 100, DSC_NEED_HOST },
        { &m->array, DSC_TAG_DATA, DSC_TIER_HOST, 3 * (int64_t)sizeof(double), DSC_NEED_ARRAY },
        { &m->small, DSC_TAG_LEAF, DSC_TIER_HOST, 7, DSC_NEED_SMALL },
        { &m->noted, DSC_TAG_LIBRARY, DSC_TIER_DEVICE, 12345, DSC_NEED_NOTED },
        { NULL, DSC_TAG_IO, DSC_TIER_PINNED, 77, DSC_NEED_INSIDE },
    };
    memcpy(out, needs, sizeof needs);
}

static void open_memory(memory *m)
{
    memset(m, 0, sizeof *m);
    assert_int_equal(dsc_alloc_open(&m->alloc, NULL), DSC_OK);
    const dsc_device_options options = { .alloc = m->alloc, .threads = 1 };
    assert_int_equal(dsc_device_open(&dsc_device_cpu, &m->device, &options, NULL), DSC_OK);
}

static void close_memory(memory *m)
{
    dsc_device_close(&m->device);
    dsc_alloc_close(&m->alloc); /* asserts that nothing is live */
}

static void planned_bytes_are_those_taken(void **state)
{
    memory m;
    dsc_need list[NEEDS];
    dsc_alloc_stats before, stats;
    (void)state;
    open_memory(&m);
    dsc_needs needs = { .alloc = m.alloc, .device = m.device };
    list_needs(&m, list);
    dsc_alloc_stats_get(m.alloc, &before);
    dsc_needs_plan(&needs, list, NEEDS);
    assert_int_equal(needs.planned[DSC_TAG_SCRATCH][DSC_TIER_DEVICE], 1024);
    assert_int_equal(needs.planned[DSC_TAG_COMM][DSC_TIER_HOST], 128);
    assert_int_equal(needs.planned[DSC_TAG_DATA][DSC_TIER_HOST], 24);
    assert_int_equal(needs.planned[DSC_TAG_LEAF][DSC_TIER_HOST], 0);
    assert_int_equal(needs.planned[DSC_TAG_LIBRARY][DSC_TIER_DEVICE], 12345);
    assert_int_equal(needs.planned[DSC_TAG_IO][DSC_TIER_PINNED], 77);
    assert_int_equal(dsc_needs_open(&needs, list, NEEDS, NULL), DSC_OK);
    dsc_needs_check(&needs);
    dsc_alloc_stats_get(m.alloc, &stats);
    for (int i = 0; i < NEEDS; i++) {
        const bool counted = list[i].kind != DSC_NEED_SMALL && list[i].kind != DSC_NEED_INSIDE;
        const dsc_tag tag = list[i].tag;
        const dsc_tier tier = list[i].tier;
        if (counted)
            assert_int_equal(stats.count[tag][tier].current_bytes - before.count[tag][tier].current_bytes,
                             dsc_need_planned_bytes(&list[i]));
    }
    assert_int_equal(stats.count[DSC_TAG_LEAF][DSC_TIER_HOST].current_bytes, 7);
    assert_int_equal(m.noted, 12345);
    assert_true(m.array[2] == 0);
    dsc_needs_close(&needs, list, NEEDS);
    assert_null(m.array);
    assert_null(m.small);
    assert_int_equal(m.noted, 0);
    dsc_needs_close(&needs, list, NEEDS); /* the list is not open any more */
    close_memory(&m);
}

static void a_failure_leaves_nothing(void **state)
{
    (void)state;
    for (int64_t fail = 1; fail <= NEEDS - 1; fail++) {
        memory m;
        dsc_need list[NEEDS];
        dsc_alloc_stats stats;
        open_memory(&m);
        dsc_needs needs = { .alloc = m.alloc, .device = m.device };
        list_needs(&m, list);
        dsc_alloc_stats_get(m.alloc, &stats);
        dsc_alloc_fail_at(m.alloc, stats.call_count + fail, false);
        assert_int_equal(dsc_needs_plan_and_open(&needs, list, NEEDS, NULL), DSC_ERR_NOMEM);
        dsc_needs_close(&needs, list, NEEDS);
        close_memory(&m);
    }
}

static void a_list_that_was_not_opened_is_found(void **state)
{
    (void)state;
    const pid_t child = fork();
    if (child == 0) {
        dsc_needs needs = { 0 };
        const dsc_need need = { NULL, DSC_TAG_IO, DSC_TIER_HOST, 1, DSC_NEED_INSIDE };
        dsc_needs_plan(&needs, &need, 1);
        (void)!freopen("/dev/null", "w", stderr);
        dsc_needs_check(&needs); /* aborts */
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(planned_bytes_are_those_taken),
                                        cmocka_unit_test(a_failure_leaves_nothing),
                                        cmocka_unit_test(a_list_that_was_not_opened_is_found) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
