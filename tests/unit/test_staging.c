/* test_staging.c - the slots of a set of buffers (staging.h, S1 to S3): order, reuse, failed waits.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>


#include "offload/staging.h"

enum { SLOTS = 3, MOST = 64 };

/* The waits of a test in their order, and the one that fails. */
typedef struct waits {
    int32_t slot[MOST], count, fails_at;
    dsc_stream *by[MOST];
} waits;

static dsc_status wait_for(void *user, int32_t slot, dsc_stream *by, dsc_error *err)
{
    waits *w = user;
    assert_in_range(w->count, 0, MOST - 1);
    w->slot[w->count] = slot;
    w->by[w->count++] = by;
    return w->count == w->fails_at ? DSC_FAIL(err, DSC_ERR_IO, "transfer", "failed") : DSC_OK;
}

static void begin(dsc_staging *staging, int32_t expected)
{
    int32_t slot = -1;
    assert_int_equal(dsc_staging_acquire(staging, NULL, &slot, NULL), DSC_OK);
    assert_int_equal(slot, expected);
    assert_in_range(dsc_staging_under_way(staging), 1, staging->slot_count);
}

static void free_slots_are_acquired_without_a_wait(void **state)
{
    waits w = { 0 };
    dsc_staging staging;
    dsc_staging_open(&staging, SLOTS, wait_for, &w);
    for (int32_t i = 0; i < SLOTS; i++)
        begin(&staging, i);
    assert_int_equal(w.count, 0);
    assert_int_equal(dsc_staging_under_way(&staging), SLOTS);
}

static void a_slot_is_acquired_again_after_its_own_transfer_only(void **state)
{
    waits w = { 0 };
    dsc_staging staging;
    dsc_staging_open(&staging, SLOTS, wait_for, &w);
    for (int32_t i = 0; i < 5 * SLOTS; i++) {
        begin(&staging, i % SLOTS);
        assert_int_equal(w.count, i < SLOTS ? 0 : i - SLOTS + 1);
        if (i >= SLOTS)
            assert_int_equal(w.slot[i - SLOTS], i % SLOTS);
    }
}

static void transfers_end_in_order_and_are_waited_for_once(void **state)
{
    waits w = { 0 };
    dsc_staging staging;
    int32_t slot = -1;
    dsc_staging_open(&staging, SLOTS, wait_for, &w);
    for (int32_t i = 0; i < SLOTS; i++)
        begin(&staging, i);
    assert_int_equal(dsc_staging_end_oldest(&staging, NULL, &slot, NULL), DSC_OK);
    assert_int_equal(slot, 0);
    begin(&staging, 0); /* free already */
    assert_int_equal(w.count, 1);
    assert_int_equal(dsc_staging_end(&staging, 3, NULL), DSC_OK);
    assert_int_equal(dsc_staging_end(&staging, 2, NULL), DSC_OK); /* they have ended */
    assert_int_equal(w.count, 3);
    dsc_staging_drain(&staging);
    dsc_staging_drain(&staging);
    assert_int_equal(w.count, 4);
    const int32_t order[] = { 0, 1, 2, 0 };
    assert_memory_equal(w.slot, order, sizeof order);
}

static void a_failed_wait_ends_its_transfer_and_is_returned_once(void **state)
{
    waits w = { .fails_at = 1 };
    dsc_staging staging;
    dsc_error err = DSC_ERROR_INIT;
    int32_t slot = -1;
    dsc_staging_open(&staging, SLOTS, wait_for, &w);
    for (int32_t i = 0; i < SLOTS; i++)
        begin(&staging, i);
    assert_int_equal(dsc_staging_acquire(&staging, NULL, &slot, &err), DSC_ERR_IO);
    assert_int_equal(dsc_staging_under_way(&staging), SLOTS - 1); /* no transfer has begun */
    begin(&staging, 0);
    assert_int_equal(w.count, 1);
    w.fails_at = 2;
    assert_int_equal(dsc_staging_end(&staging, staging.begun, &err), DSC_ERR_IO);
    w.fails_at = 3;
    dsc_staging_drain(&staging); /* all of them, whatever fails */
    assert_int_equal(w.count, 4);
    assert_int_equal(dsc_staging_under_way(&staging), 0);
}

static void one_slot_is_enough(void **state)
{
    waits w = { 0 };
    dsc_staging staging;
    dsc_staging_open(&staging, 1, wait_for, &w);
    for (int32_t i = 0; i < 4; i++)
        begin(&staging, 0);
    assert_int_equal(w.count, 3);
    dsc_staging_drain(&staging);
    assert_int_equal(w.count, 4);
}

static void the_stream_that_acquires_is_the_one_that_waits(void **state)
{
    waits w = { 0 };
    dsc_staging staging;
    dsc_stream a = { 0 }, b = { 0 };
    int32_t slot;
    dsc_staging_open(&staging, 1, wait_for, &w);
    begin(&staging, 0);
    assert_int_equal(dsc_staging_acquire(&staging, &a, &slot, NULL), DSC_OK);
    assert_int_equal(dsc_staging_end_oldest(&staging, &b, &slot, NULL), DSC_OK);
    assert_ptr_equal(w.by[0], &a);
    assert_ptr_equal(w.by[1], &b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(free_slots_are_acquired_without_a_wait),
        cmocka_unit_test(a_slot_is_acquired_again_after_its_own_transfer_only),
        cmocka_unit_test(transfers_end_in_order_and_are_waited_for_once),
        cmocka_unit_test(a_failed_wait_ends_its_transfer_and_is_returned_once),
        cmocka_unit_test(one_slot_is_enough),
        cmocka_unit_test(the_stream_that_acquires_is_the_one_that_waits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
