/* test_launch_times.c - launches of a CPU: measured by kind and shape, looked up by the nearest amount of work, and
 * given to the clocks of a virtual CPU rank. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/cpu_threads.h"
#include "kernels/exact.h"
#include "kernels/kernels.h"
#include "kernels/virtual/launch_times.h"

enum { COUNT = 4096 };

static dsc_launch_time rows[DSC_LAUNCH_TIMES];

static void near(double a, double b) { assert_true(fabs(a - b) <= 1e-9 * fmax(1, fabs(b))); }

/* ---- measured ---- */

/* The device does its work, and each kind and shape has one row, however often it was launched. */
static void launches_are_measured_by_shape(void **state)
{
    static float a[COUNT], b[COUNT], sum[COUNT];
    dsc_launch_times times = { .inner = &dsc_device_cpu, .row = rows, .measures = true };
    dsc_alloc *alloc = NULL;
    dsc_device *device = NULL;
    dsc_stream *stream = NULL;
    for (int i = 0; i < COUNT; i++)
        a[i] = b[i] = (float)i;
    assert_int_equal(dsc_alloc_open(&alloc, NULL), DSC_OK);
    const dsc_device_options options = { .alloc = alloc, .threads = 1, .caps = dsc_cpu_caps(), .times = &times };
    assert_int_equal(dsc_device_open(dsc_launch_times_device(&times), &device, &options, NULL), DSC_OK);
    assert_int_equal(dsc_stream_open(device, DSC_STREAM_COMPUTE, "compute", &stream, NULL), DSC_OK);
    for (int i = 0; i < 100; i++) {
        const dsc_add_args add = { .to = sum, .a = a, .b = b, .count = i < 50 ? COUNT : COUNT / 2 };
        assert_int_equal(DSC_RUN(stream, ADD, &add, NULL), DSC_OK);
    }
    assert_int_equal(dsc_copy(stream, b, a, sizeof a, NULL), DSC_OK);
    assert_int_equal(dsc_fill_zero(stream, a, sizeof a, NULL), DSC_OK);
    times.measures = false;
    assert_int_equal(dsc_fill_zero(stream, a, 64, NULL), DSC_OK);
    dsc_launch_times_settle(&times);
    assert_true(sum[COUNT - 1] == 2 * (COUNT - 1) && b[COUNT - 1] == COUNT - 1 && a[COUNT - 1] == 0);
    assert_int_equal(times.count, 4);
    assert_int_equal(times.launches, 102);
    for (int32_t i = 0; i < times.count; i++)
        assert_true(rows[i].seconds > 0 && rows[i].count == (i < 2 ? 50 : 1));
    assert_int_equal(rows[0].kind, DSC_KERNEL_ADD);
    assert_int_equal(rows[0].shape[0], 12 * COUNT);
    assert_int_equal(rows[2].kind, DSC_LAUNCH_COPY);
    dsc_stream_close(&stream);
    dsc_device_close(&device);
    dsc_alloc_close(&alloc);
}

/* ---- read ---- */

/* The products differ in whether B is transposed. */
static dsc_launch_times known(void)
{
    memset(rows, 0, sizeof rows[0] * 5);
    rows[0] = (dsc_launch_time) { .kind = DSC_KERNEL_ADD, .shape = { 1000 }, .seconds = 1 };
    rows[1] = (dsc_launch_time) { .kind = DSC_KERNEL_ADD, .shape = { 8000 }, .seconds = 16 };
    rows[2] = (dsc_launch_time) { .kind = DSC_KERNEL_GEMM, .shape = { 1000, 10, 5, 0 }, .seconds = 2 };
    rows[3] = (dsc_launch_time) { .kind = DSC_KERNEL_GEMM, .shape = { 1000, 10, 5, 2 }, .seconds = 3 };
    rows[4] = (dsc_launch_time) { .kind = DSC_LAUNCH_COPY, .shape = { 100 }, .seconds = 1 };
    return (dsc_launch_times) { .row = rows, .count = 5 };
}

static double get(int32_t kind, int64_t work, int64_t operands)
{
    const dsc_launch_times times = known();
    const int64_t shape[DSC_LAUNCH_SHAPE] = { work, 10, 5, operands };
    bool found;
    return dsc_launch_times_get(&times, kind, shape, &found);
}

static void other_shapes_follow_the_nearest(void **state)
{
    near(get(DSC_KERNEL_GEMM, 1000, 0), 2);
    near(get(DSC_KERNEL_GEMM, 1000, 2), 3);
    near(get(DSC_KERNEL_GEMM, 500, 2), 1.5);
    near(get(DSC_KERNEL_ADD, 2000, 0), 2);  /* nearer to 1000 */
    near(get(DSC_KERNEL_ADD, 4000, 0), 8);  /* nearer to 8000 */
    near(get(DSC_KERNEL_ADD, 0, 0), 0.001); /* no work is the least amount */
    const dsc_launch_times times = known();
    const int64_t shape[DSC_LAUNCH_SHAPE] = { 1 };
    bool found = true;
    near(dsc_launch_times_get(&times, DSC_KERNEL_SUMSQ, shape, &found), 0);
    assert_false(found);
}

/* A time is not carried over to work of quite another size. */
static void far_shapes_have_no_time(void **state)
{
    const dsc_launch_times times = known();
    const int64_t near_shape[DSC_LAUNCH_SHAPE] = { 1000000 }, far_shape[DSC_LAUNCH_SHAPE] = { INT64_MAX };
    bool found = false;
    near(dsc_launch_times_get(&times, DSC_LAUNCH_COPY, near_shape, &found), 10000);
    assert_true(found);
    near(dsc_launch_times_get(&times, DSC_LAUNCH_COPY, far_shape, &found), DSC_LAUNCH_FACTOR);
    assert_false(found);
}

/* ---- a virtual rank ---- */

typedef struct rank {
    dsc_launch_times times;
    dsc_card_rates rates;
    dsc_virtual_clock clock;
    dsc_alloc *alloc;
    dsc_device *device;
    dsc_stream *compute, *other;
    dsc_event *event;
    char *memory;
} rank;

static void open_rank(rank *r, double share)
{
    *r = (rank) { .times = known(), .rates = { .name = "test", .cores = 2 } };
    r->rates.launches = &r->times;
    r->clock = (dsc_virtual_clock) { .rates = &r->rates, .share = share };
    assert_int_equal(dsc_alloc_open(&r->alloc, NULL), DSC_OK);
    const dsc_device_options options = { .alloc = r->alloc, .threads = 1, .clock = &r->clock };
    assert_int_equal(dsc_device_open(&dsc_device_virtual_cpu, &r->device, &options, NULL), DSC_OK);
    assert_true(dsc_device_host_visible(r->device) && dsc_virtual_is(r->device));
    assert_int_equal(dsc_stream_open(r->device, DSC_STREAM_COMPUTE, "compute", &r->compute, NULL), DSC_OK);
    assert_int_equal(dsc_stream_open(r->device, DSC_STREAM_ASYNC, "other", &r->other, NULL), DSC_OK);
    assert_int_equal(dsc_event_open(r->device, &r->event, NULL), DSC_OK);
    r->memory = calloc(2, 1000);
}

static void close_rank(rank *r)
{
    free(r->memory);
    dsc_event_close(&r->event);
    dsc_stream_close(&r->other);
    dsc_stream_close(&r->compute);
    dsc_device_close(&r->device);
    dsc_alloc_close(&r->alloc);
}

static void copy(rank *r, dsc_stream *stream)
{
    assert_int_equal(dsc_copy(stream, r->memory, r->memory + 1000, 100, NULL), DSC_OK);
}

/* The calling thread does the compute stream's work, so that it goes on behind it. */
static void the_thread_does_the_work(void **state)
{
    rank r;
    open_rank(&r, 0.5);
    copy(&r, r.compute);
    copy(&r, r.compute);
    near(r.clock.host_s, 2);
    close_rank(&r);
    open_rank(&r, 2); /* twice as many ranks as cores */
    copy(&r, r.compute);
    near(r.clock.host_s, 2);
    close_rank(&r);
}

/* Work of another stream takes the core, and a wait for it is exposed. */
static void streams_share_the_core(void **state)
{
    rank r;
    open_rank(&r, 1);
    copy(&r, r.other);
    copy(&r, r.compute);
    near(r.clock.host_s, 2);
    copy(&r, r.other);
    assert_int_equal(dsc_event_record(r.event, r.other, NULL), DSC_OK);
    dsc_wait_begin(r.compute);
    assert_int_equal(dsc_stream_wait(r.compute, r.event, NULL), DSC_OK);
    dsc_wait_end(r.compute);
    near(r.clock.host_s, 3);
    near(r.clock.exposed_s, 1);
    assert_int_equal(dsc_waited_ns(r.compute), 1000000000);
    close_rank(&r);
}

/* The first kind without a time is kept, because its work counts as none. */
static void a_kind_without_a_time_is_kept(void **state)
{
    rank r;
    open_rank(&r, 1);
    copy(&r, r.compute);
    assert_int_equal(r.clock.without_time, 0);
    assert_int_equal(dsc_fill_zero(r.compute, r.memory, 100, NULL), DSC_OK);
    copy(&r, r.compute);
    assert_int_equal(r.clock.without_time, 1 + DSC_LAUNCH_ZERO);
    assert_string_equal(dsc_launch_kind_text(r.clock.without_time - 1), "ZERO");
    close_rank(&r);
}

static void an_endless_wait_is_a_number(void **state)
{
    rank r;
    open_rank(&r, 1);
    r.clock.exposed_s = 1e30;
    assert_true(dsc_waited_ns(r.compute) == INT64_C(1) << 62);
    close_rank(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(launches_are_measured_by_shape), cmocka_unit_test(other_shapes_follow_the_nearest),
        cmocka_unit_test(the_thread_does_the_work),       cmocka_unit_test(streams_share_the_core),
        cmocka_unit_test(far_shapes_have_no_time),        cmocka_unit_test(a_kind_without_a_time_is_kept),
        cmocka_unit_test(an_endless_wait_is_a_number),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
