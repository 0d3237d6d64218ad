/* test_io_scheduler.c - background work between demand requests (io_scheduler.h, I1 to I5). The work ends by a demand,
 * by its own condition, by idleness, by an error and by cancel. It yields to higher classes. Pauses are counted, and
 * requests in flight replace them.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "offload/io_scheduler.h"

enum { PAUSE_NS = 200000, LAST = 100 };

static dsc_io_scheduler scheduler;

/* Rounds of a test: their number, and the event that each one causes. */
typedef struct rounds {
    int32_t done, yielded, pauses;
    int32_t demand_at, cancel_at, fail_at, idle_at, over_at, pending_until;
    dsc_io_class demanded;
    int64_t paused_ns;
} rounds;

static dsc_status one_round(const void *args, bool yields, dsc_io_round *result, dsc_error *err)
{
    rounds *r = *(rounds *const *)args;
    r->done++;
    r->yielded += yields;
    assert_true(r->done <= LAST); /* the work has to end */
    if (r->done == r->demand_at)
        dsc_io_scheduler_demand(&scheduler, r->demanded);
    if (r->done == r->cancel_at)
        dsc_io_scheduler_cancel(&scheduler);
    if (r->done == r->fail_at)
        return DSC_FAIL(err, DSC_ERR_IO, "round", "failed");
    *result = r->done == r->idle_at ? DSC_IO_IDLE : r->done <= r->pending_until ? DSC_IO_PENDING : DSC_IO_WORKED;
    return DSC_OK;
}

static bool over(const void *args)
{
    const rounds *r = *(rounds *const *)args;
    return r->over_at > 0 && r->done >= r->over_at;
}

static void count_pause(const void *args, int64_t ns)
{
    rounds *r = *(rounds *const *)args;
    r->pauses++;
    r->paused_ns += ns;
}

static const dsc_io_work_ops grad_ops = {
    .io_class = DSC_IO_GRAD, .pause_ns = PAUSE_NS, .round = one_round, .is_over = over, .after_pause = count_pause
};
static const dsc_io_work_ops own_end_ops = { .io_class = DSC_IO_GRAD,
                                             .pause_ns = PAUSE_NS,
                                             .ignores_demands = true,
                                             .round = one_round,
                                             .is_over = over,
                                             .after_pause = count_pause };

static dsc_status run(const dsc_io_work_ops *ops, rounds *r, dsc_error *err)
{
    const long long ticket = dsc_io_scheduler_ticket(&scheduler, ops->io_class);
    return dsc_io_scheduler_run(&scheduler, ops, ticket, &r, err);
}

static int fresh(void **state)
{
    memset(&scheduler, 0, sizeof scheduler);
    return 0;
}

static void a_demand_of_the_class_ends_the_work(void **state)
{
    rounds r = { .demand_at = 3, .demanded = DSC_IO_GRAD };
    assert_int_equal(run(&grad_ops, &r, NULL), DSC_OK);
    assert_int_equal(r.done, 3);
}

static void a_demand_before_the_run_allows_no_round(void **state)
{
    rounds r = { 0 }, *args = &r;
    const long long ticket = dsc_io_scheduler_ticket(&scheduler, DSC_IO_GRAD);
    dsc_io_scheduler_demand(&scheduler, DSC_IO_GRAD);
    assert_false(dsc_io_scheduler_continues(&scheduler, DSC_IO_GRAD, ticket));
    assert_int_equal(dsc_io_scheduler_run(&scheduler, &grad_ops, ticket, &args, NULL), DSC_OK);
    assert_int_equal(r.done, 0);
}

static void a_demand_of_another_class_ends_nothing(void **state)
{
    rounds r = { .demand_at = 3, .demanded = DSC_IO_PARAM, .over_at = 7 };
    assert_int_equal(run(&grad_ops, &r, NULL), DSC_OK);
    assert_int_equal(r.done, 7);
}

static void work_that_ignores_demands_ends_by_its_condition(void **state)
{
    rounds r = { .demand_at = 2, .demanded = DSC_IO_GRAD, .over_at = 5 };
    assert_int_equal(run(&own_end_ops, &r, NULL), DSC_OK);
    assert_int_equal(r.done, 5);
}

static void idle_work_ends_without_a_pause(void **state)
{
    rounds r = { .idle_at = 4 };
    assert_int_equal(run(&grad_ops, &r, NULL), DSC_OK);
    assert_int_equal(r.done, 4);
    assert_int_equal(r.pauses, 0);
}

static void pending_rounds_pause_and_count_the_time(void **state)
{
    rounds r = { .pending_until = 5, .over_at = 9 };
    assert_int_equal(run(&grad_ops, &r, NULL), DSC_OK);
    assert_int_equal(r.pauses, 5);
    assert_true(r.paused_ns >= 5 * (int64_t)PAUSE_NS);
}

static void an_error_of_a_round_is_returned(void **state)
{
    dsc_error err = DSC_ERROR_INIT;
    rounds r = { .fail_at = 2 };
    assert_int_equal(run(&grad_ops, &r, &err), DSC_ERR_IO);
    assert_string_equal(err.where, "round");
    assert_int_equal(r.done, 2);
}

static void cancel_ends_work_of_both_kinds(void **state)
{
    rounds r = { .cancel_at = 3 };
    assert_int_equal(run(&grad_ops, &r, NULL), DSC_OK);
    assert_int_equal(r.done, 3);
    assert_true(dsc_io_scheduler_is_cancelled(&scheduler));
    rounds later = { .over_at = LAST };
    assert_int_equal(run(&own_end_ops, &later, NULL), DSC_OK);
    assert_int_equal(later.done, 0);
}

static void work_yields_to_higher_classes_only(void **state)
{
    static const bool yields[DSC_IO_CLASS_COUNT][DSC_IO_CLASS_COUNT] = {
        /* waits:         param  grad   state */
        [DSC_IO_PARAM] = { false, false, false },
        [DSC_IO_GRAD] = { true, false, false },
        [DSC_IO_STATE] = { true, true, false },
    };
    for (int own = 0; own < DSC_IO_CLASS_COUNT; own++)
        for (int other = 0; other < DSC_IO_CLASS_COUNT; other++) {
            dsc_io_scheduler_set_waiting(&scheduler, (dsc_io_class)other, true);
            assert_int_equal(dsc_io_scheduler_yields(&scheduler, (dsc_io_class)own), yields[own][other]);
            dsc_io_scheduler_set_waiting(&scheduler, (dsc_io_class)other, false);
            assert_false(dsc_io_scheduler_yields(&scheduler, (dsc_io_class)own));
        }
    dsc_io_scheduler_set_waiting(&scheduler, DSC_IO_PARAM, true);
    rounds r = { .over_at = 4 };
    assert_int_equal(run(&grad_ops, &r, NULL), DSC_OK);
    assert_int_equal(r.yielded, 4);
}

static dsc_status wait_for_flag(void *args, dsc_error *err)
{
    while (!atomic_load(*(atomic_bool **)args))
        dsc_clock_sleep_ns(PAUSE_NS);
    return DSC_OK;
}

/* An event that has not passed means that the class waits for the bytes behind the event. */
static void an_open_event_makes_lower_classes_yield(void **state)
{
    dsc_alloc *alloc;
    dsc_device *device;
    dsc_stream *stream;
    atomic_bool flag = false, *args = &flag;
    assert_int_equal(dsc_alloc_open(&alloc, NULL), DSC_OK);
    const dsc_device_options options = { .alloc = alloc, .threads = 1, .caps = dsc_cpu_caps() };
    assert_int_equal(dsc_device_open(&dsc_device_cpu, &device, &options, NULL), DSC_OK);
    assert_int_equal(dsc_stream_open(device, DSC_STREAM_ASYNC, "fetch", &stream, NULL), DSC_OK);
    assert_int_equal(dsc_event_open(device, &scheduler.arrival[DSC_IO_PARAM], NULL), DSC_OK);
    assert_int_equal(dsc_host_call(stream, wait_for_flag, &args, sizeof args, NULL), DSC_OK);
    assert_int_equal(dsc_event_record(scheduler.arrival[DSC_IO_PARAM], stream, NULL), DSC_OK);
    assert_true(dsc_io_scheduler_yields(&scheduler, DSC_IO_GRAD));
    assert_false(dsc_io_scheduler_yields(&scheduler, DSC_IO_PARAM));
    atomic_store(&flag, true);
    assert_int_equal(dsc_stream_sync(stream, NULL), DSC_OK);
    assert_false(dsc_io_scheduler_yields(&scheduler, DSC_IO_GRAD));
    dsc_stream_close(&stream);
    dsc_event_close(&scheduler.arrival[DSC_IO_PARAM]);
    dsc_device_close(&device);
    dsc_alloc_close(&alloc);
}

static void *demand_later(void *args)
{
    dsc_clock_sleep_ns(20 * (int64_t)PAUSE_NS);
    dsc_io_scheduler_demand(&scheduler, DSC_IO_GRAD);
    return NULL;
}

static const dsc_io_work_ops waiting_ops = { .io_class = DSC_IO_GRAD, .pause_ns = PAUSE_NS };

/* Work without rounds, and a demand from another thread. */
static void a_demand_of_another_thread_ends_a_wait(void **state)
{
    pthread_t thread;
    rounds r = { 0 };
    assert_int_equal(pthread_create(&thread, NULL, demand_later, NULL), 0);
    assert_int_equal(run(&waiting_ops, &r, NULL), DSC_OK);
    assert_int_equal(dsc_io_scheduler_ticket(&scheduler, DSC_IO_GRAD), 1);
    assert_int_equal(pthread_join(thread, NULL), 0);
}

/* A file that is read block by block, and the work that waits for it. */
enum { BLOCK = DSC_AIO_ALIGN, BLOCKS = 16 };
typedef struct file_read {
    dsc_aio *aio;
    dsc_aio_op op;
    int32_t rounds, pauses;
} file_read;

static dsc_status read_round(const void *args, bool yields, dsc_io_round *result, dsc_error *err)
{
    file_read *r = *(file_read *const *)args;
    r->rounds++;
    *result = dsc_aio_test(r->aio, &r->op) ? DSC_IO_IDLE : DSC_IO_PENDING;
    return DSC_OK;
}

static void count_read_pause(const void *args, int64_t ns) { (*(file_read *const *)args)->pauses++; }

static const dsc_io_work_ops read_ops = { .io_class = DSC_IO_STATE,
                                          .pause_ns = PAUSE_NS,
                                          .round = read_round,
                                          .after_pause = count_read_pause };

/* I3: a pending round waits for the request in flight, and not for the pause. */
static void requests_in_flight_take_the_place_of_pauses(void **state)
{
    char path[] = "/tmp/dsc-io-scheduler-XXXXXX";
    dsc_aio_file file = DSC_AIO_FILE_INIT;
    file_read r = { 0 }, *args = &r;
    char *const buf = aligned_alloc(BLOCK, BLOCKS * BLOCK);
    dsc_alloc *alloc;
    const int fd = mkstemp(path);
    assert_true(fd >= 0 && buf != NULL);
    assert_int_equal(ftruncate(fd, BLOCKS * BLOCK), 0);
    assert_int_equal(close(fd), 0);
    assert_int_equal(dsc_alloc_open(&alloc, NULL), DSC_OK);
    const dsc_aio_options options = {
        .alloc = alloc, .engine = "threads", .block_bytes = BLOCK, .queue_depth = 1, .thread_count = 1
    };
    assert_int_equal(dsc_aio_open(&options, &r.aio, NULL), DSC_OK);
    assert_int_equal(dsc_aio_file_open(path, false, &file, NULL), DSC_OK);
    r.op = (dsc_aio_op) { .file = &file, .buf = buf, .bytes = BLOCKS * BLOCK };
    scheduler.engine[DSC_IO_STATE] = r.aio;
    dsc_aio_submit(r.aio, &r.op);
    assert_int_equal(dsc_io_scheduler_run(&scheduler, &read_ops, 0, &args, NULL), DSC_OK);
    assert_int_equal(r.op.done, BLOCKS * BLOCK);
    assert_true(r.rounds >= 1);
    assert_int_equal(r.pauses, 0);
    dsc_aio_close(&r.aio);
    dsc_aio_file_close(&file);
    assert_int_equal(unlink(path), 0);
    dsc_alloc_close(&alloc);
    free(buf);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_demand_of_the_class_ends_the_work, fresh),
        cmocka_unit_test_setup(a_demand_before_the_run_allows_no_round, fresh),
        cmocka_unit_test_setup(a_demand_of_another_class_ends_nothing, fresh),
        cmocka_unit_test_setup(work_that_ignores_demands_ends_by_its_condition, fresh),
        cmocka_unit_test_setup(idle_work_ends_without_a_pause, fresh),
        cmocka_unit_test_setup(pending_rounds_pause_and_count_the_time, fresh),
        cmocka_unit_test_setup(an_error_of_a_round_is_returned, fresh),
        cmocka_unit_test_setup(cancel_ends_work_of_both_kinds, fresh),
        cmocka_unit_test_setup(work_yields_to_higher_classes_only, fresh),
        cmocka_unit_test_setup(an_open_event_makes_lower_classes_yield, fresh),
        cmocka_unit_test_setup(a_demand_of_another_thread_ends_a_wait, fresh),
        cmocka_unit_test_setup(requests_in_flight_take_the_place_of_pauses, fresh),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
