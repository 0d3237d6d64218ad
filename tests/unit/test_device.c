/* test_device.c - the cpu device: order inside streams, events between them, errors, memory, floating-point mode.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdatomic.h>

#include "base/clock.h"
#include "kernels/cpu_threads.h"
#include "kernels/device.h"

typedef struct fixture {
    dsc_alloc *alloc;
    dsc_device *device;
    dsc_stream *compute, *a, *b;
    dsc_event *event;
} fixture;

static void open_all(fixture *f, int32_t threads)
{
    dsc_error err = DSC_ERROR_INIT;
    memset(f, 0, sizeof *f);
    assert_int_equal(dsc_alloc_open(&f->alloc, &err), DSC_OK);
    const dsc_device_options options = { .alloc = f->alloc, .threads = threads, .caps = dsc_cpu_caps() };
    assert_int_equal(dsc_device_open(&dsc_device_cpu, &f->device, &options, &err), DSC_OK);
    assert_int_equal(dsc_stream_open(f->device, DSC_STREAM_COMPUTE, "compute", &f->compute, &err), DSC_OK);
    assert_int_equal(dsc_stream_open(f->device, DSC_STREAM_ASYNC, "stream a", &f->a, &err), DSC_OK);
    assert_int_equal(dsc_stream_open(f->device, DSC_STREAM_ASYNC, "stream b", &f->b, &err), DSC_OK);
    assert_int_equal(dsc_event_open(f->device, &f->event, &err), DSC_OK);
}

static void close_all(fixture *f)
{
    dsc_event_close(&f->event);
    dsc_stream_close(&f->b);
    dsc_stream_close(&f->a);
    dsc_stream_close(&f->compute);
    dsc_device_close(&f->device);
    assert_null(f->device);
    dsc_alloc_close(&f->alloc); /* asserts that nothing is live */
}

#define OK(call) assert_int_equal((call), DSC_OK)

/* ---- host calls used below ---- */

typedef struct gate { _Atomic int open; } gate;

static dsc_status wait_gate(void *args, dsc_error *err)
{
    gate *g = *(gate **)args;
    while (atomic_load(&g->open) == 0)
        dsc_clock_sleep_ns(200000);
    return DSC_OK;
}

static dsc_status add_one(void *args, dsc_error *err)
{
    int *counter = *(int **)args; /* plain: the stream's order is what protects it */
    *counter += 1;
    return DSC_OK;
}

typedef struct set_args { int *to; int value; } set_args;
static dsc_status set_value(void *args, dsc_error *err)
{
    const set_args *s = args;
    *s->to = s->value;
    return DSC_OK;
}

typedef struct see_args { const int *from; int *to; } see_args;
static dsc_status see_value(void *args, dsc_error *err)
{
    const see_args *s = args;
    *s->to = *s->from;
    return DSC_OK;
}

static dsc_status fail_now(void *args, dsc_error *err) { return DSC_FAIL(err, DSC_ERR_COMM, "peer 3", "went away"); }

/* ---- order and copies ---- */

static void test_copy_zero_launch(void **state)
{
    enum { N = 700000 };
    fixture f;
    open_all(&f, 3);
    dsc_stream *streams[] = { f.compute, f.a };
    for (size_t s = 0; s < DSC_COUNT(streams); s++) {
        dsc_buf x = { 0 }, y = { 0 }, z = { 0 };
        OK(dsc_mem_open(f.device, DSC_TAG_PARAM, DSC_TIER_DEVICE, N * 4, &x, NULL));
        OK(dsc_mem_open(f.device, DSC_TAG_PARAM, DSC_TIER_DEVICE, N * 4, &y, NULL));
        OK(dsc_mem_open(f.device, DSC_TAG_PARAM, DSC_TIER_DEVICE, N * 4, &z, NULL));
        float *from = x.ptr, *to = y.ptr, *sum = z.ptr;
        for (int i = 0; i < N; i++) {
            assert_true(to[i] == 0.0f);
            from[i] = (float)i;
        }
        dsc_add_args add = { .to = sum, .a = from, .b = to, .count = N };
        OK(dsc_copy(streams[s], to, from, N * 4, NULL));
        OK(DSC_RUN(streams[s], ADD, &add, NULL));
        memset(&add, 0, sizeof add); /* the arguments were copied */
        OK(dsc_fill_zero(streams[s], from, N * 4 - 4, NULL));
        OK(dsc_fill_zero(streams[s], NULL, 0, NULL));
        OK(dsc_stream_sync(streams[s], NULL));
        for (int i = 0; i < N; i++) {
            assert_true(sum[i] == 2.0f * (float)i);
            assert_true(from[i] == (i == N - 1 ? (float)i : 0.0f));
        }
        dsc_mem_close(f.device, &x);
        dsc_mem_close(f.device, &y);
        dsc_mem_close(f.device, &z);
    }
    close_all(&f);
}

typedef struct guard {
    gate gate;
    int64_t patience_ns;
    atomic_int over;
} guard;

/* So that a caller who waits at a gate that it is to open itself goes on. */
static void *open_gate_at_last(void *arg)
{
    guard *g = arg;
    const int64_t begun = dsc_clock_ns();
    while (dsc_clock_ns() - begun < g->patience_ns && atomic_load(&g->over) == 0)
        dsc_clock_sleep_ns(5000000);
    atomic_store(&g->gate.open, 1);
    return NULL;
}

/* Whether the gate before so many entries had to be opened before the caller could queue them all. They are run. */
static bool caller_waits(int count, int64_t patience_ns)
{
    fixture f;
    open_all(&f, 1);
    guard g = { .patience_ns = patience_ns };
    gate *gp = &g.gate;
    int counter = 0, *cp = &counter;
    OK(dsc_host_call(f.a, wait_gate, &gp, sizeof gp, NULL));
    pthread_t opener;
    assert_int_equal(pthread_create(&opener, NULL, open_gate_at_last, &g), 0);
    for (int i = 0; i < count; i++)
        OK(dsc_host_call(f.a, add_one, &cp, sizeof cp, NULL));
    const bool waited = atomic_load(&g.gate.open) == 1;
    atomic_store(&g.over, 1);
    OK(dsc_stream_sync(f.a, NULL));
    assert_int_equal(counter, count);
    pthread_join(opener, NULL);
    close_all(&f);
    return waited;
}

static void test_full_ring_blocks_and_goes_on(void **state)
{
    assert_true(caller_waits(3000, 20000000)); /* 3000 entries do not fit */
}

/* The reductions of two large modules, say, behind a file that is slow. */
static void test_the_caller_runs_far_ahead(void **state)
{
    assert_false(caller_waits(1500, INT64_C(10000000000)));
}

static void test_close_runs_what_is_queued(void **state)
{
    fixture f;
    open_all(&f, 1);
    int counter = 0, *cp = &counter;
    for (int i = 0; i < 100; i++)
        OK(dsc_host_call(f.a, add_one, &cp, sizeof cp, NULL));
    dsc_stream_close(&f.a);
    assert_int_equal(counter, 100);
    close_all(&f);
}

static void test_idle_streams_sleep(void **state)
{
    fixture f;
    open_all(&f, 1);
    gate g = { 0 };
    gate *gp = &g;
    OK(dsc_host_call(f.a, wait_gate, &gp, sizeof gp, NULL)); /* sleeps itself */
    OK(dsc_event_record(f.event, f.a, NULL));
    OK(dsc_stream_wait(f.b, f.event, NULL)); /* waits on b's thread */
    const clock_t before = clock();
    dsc_clock_sleep_ns(100000000);
    const double cpu_s = (double)(clock() - before) / CLOCKS_PER_SEC;
    assert_true(cpu_s < 0.05);
    atomic_store(&g.open, 1);
    OK(dsc_stream_sync(f.b, NULL));
    close_all(&f);
}

/* ---- events ---- */

static void test_wait_captures_the_record_of_its_time(void **state)
{
    fixture f;
    open_all(&f, 1);
    gate first = { 0 }, second = { 0 };
    gate *fp = &first, *sp = &second;
    int value = 0, seen = -1;
    OK(dsc_stream_wait(f.b, f.event, NULL)); /* never recorded: no wait */
    OK(dsc_stream_sync(f.b, NULL));
    OK(dsc_host_call(f.a, wait_gate, &fp, sizeof fp, NULL));
    OK(dsc_host_call(f.a, set_value, &(set_args){ &value, 1 }, sizeof(set_args), NULL));
    OK(dsc_event_record(f.event, f.a, NULL));
    OK(dsc_stream_wait(f.b, f.event, NULL));
    OK(dsc_host_call(f.b, see_value, &(see_args){ &value, &seen }, sizeof(see_args), NULL));
    /* Later work and a later record of the same event on a stuck stream do not hold b up. */
    OK(dsc_host_call(f.a, wait_gate, &sp, sizeof sp, NULL));
    OK(dsc_event_record(f.event, f.a, NULL));
    atomic_store(&first.open, 1);
    OK(dsc_stream_sync(f.b, NULL));
    assert_int_equal(seen, 1);
    assert_false(dsc_event_passed(f.event));
    atomic_store(&second.open, 1);
    OK(dsc_event_sync(f.event, NULL));
    assert_true(dsc_event_passed(f.event));
    OK(dsc_stream_sync(f.a, NULL));
    close_all(&f);
}

static void test_later_record_elsewhere_does_not_release_a_waiter(void **state)
{
    fixture f;
    open_all(&f, 1);
    gate g = { 0 };
    gate *gp = &g;
    int value = 0, seen = -1;
    OK(dsc_host_call(f.a, wait_gate, &gp, sizeof gp, NULL));
    OK(dsc_host_call(f.a, set_value, &(set_args){ &value, 7 }, sizeof(set_args), NULL));
    OK(dsc_event_record(f.event, f.a, NULL));
    OK(dsc_stream_wait(f.b, f.event, NULL));
    OK(dsc_host_call(f.b, see_value, &(see_args){ &value, &seen }, sizeof(see_args), NULL));
    OK(dsc_event_record(f.event, f.compute, NULL)); /* at once over */
    OK(dsc_event_sync(f.event, NULL));
    dsc_clock_sleep_ns(5000000);
    atomic_store(&g.open, 1);
    OK(dsc_stream_sync(f.b, NULL));
    assert_int_equal(seen, 7);
    close_all(&f);
}

static void test_compute_waits_for_async_and_back(void **state)
{
    fixture f;
    open_all(&f, 2);
    int value = 0;
    for (int i = 1; i <= 200; i++) {
        OK(dsc_host_call(f.a, set_value, &(set_args){ &value, i }, sizeof(set_args), NULL));
        OK(dsc_event_record(f.event, f.a, NULL));
        OK(dsc_stream_wait(f.compute, f.event, NULL));
        int seen = 0;
        OK(dsc_host_call(f.compute, see_value, &(see_args){ &value, &seen }, sizeof(see_args), NULL));
        assert_int_equal(seen, i);
        OK(dsc_event_record(f.event, f.compute, NULL));
        OK(dsc_stream_wait(f.a, f.event, NULL));
    }
    OK(dsc_stream_sync(f.a, NULL));
    close_all(&f);
}

static void test_event_outlives_its_stream(void **state)
{
    fixture f;
    open_all(&f, 1);
    OK(dsc_event_record(f.event, f.a, NULL));
    dsc_stream_close(&f.a);
    OK(dsc_stream_wait(f.b, f.event, NULL));
    OK(dsc_event_sync(f.event, NULL));
    OK(dsc_stream_open(f.device, DSC_STREAM_ASYNC, "again", &f.a, NULL));
    OK(dsc_stream_wait(f.b, f.event, NULL));
    OK(dsc_stream_sync(f.b, NULL));
    close_all(&f);
}

/* ---- errors ---- */

static void test_errors_are_sticky_and_skip_the_rest(void **state)
{
    fixture f;
    open_all(&f, 1);
    dsc_stream *streams[] = { f.a, f.compute };
    for (size_t s = 0; s < DSC_COUNT(streams); s++) {
        int counter = 0, *cp = &counter;
        dsc_error err = DSC_ERROR_INIT;
        OK(dsc_host_call(streams[s], add_one, &cp, sizeof cp, &err));
        (void)!dsc_host_call(streams[s], fail_now, NULL, 0, &err);
        for (int i = 0; i < 2000; i++) /* more than the queue holds */
            (void)!dsc_host_call(streams[s], add_one, &cp, sizeof cp, &err);
        memset(&err, 0, sizeof err);
        assert_int_equal(dsc_stream_sync(streams[s], &err), DSC_ERR_COMM);
        assert_string_equal(err.message, "went away");
        assert_string_equal(err.where, "peer 3");
        assert_int_equal(counter, 1);
        assert_int_equal(dsc_copy(streams[s], &counter, &(int){ 5 }, sizeof counter, &err), DSC_ERR_COMM);
        assert_int_equal(dsc_event_record(f.event, streams[s], &err), DSC_ERR_COMM);
        assert_int_equal(dsc_stream_sync(streams[s], NULL), DSC_ERR_COMM);
        assert_int_equal(counter, 1);
    }
    close_all(&f);
}

static void test_waiting_for_failed_work_fails(void **state)
{
    fixture f;
    open_all(&f, 1);
    gate g = { 0 };
    gate *gp = &g;
    int counter = 0, *cp = &counter;
    dsc_error err = DSC_ERROR_INIT;
    dsc_event *before;
    OK(dsc_event_open(f.device, &before, NULL));
    OK(dsc_host_call(f.a, wait_gate, &gp, sizeof gp, NULL));
    OK(dsc_event_record(before, f.a, NULL));
    OK(dsc_host_call(f.a, fail_now, NULL, 0, NULL));
    OK(dsc_event_record(f.event, f.a, NULL));
    OK(dsc_stream_wait(f.b, before, NULL)); /* this work is fine */
    OK(dsc_host_call(f.b, add_one, &cp, sizeof cp, NULL));
    OK(dsc_stream_wait(f.b, f.event, NULL)); /* this is not */
    OK(dsc_host_call(f.b, add_one, &cp, sizeof cp, NULL));
    atomic_store(&g.open, 1);
    assert_int_equal(dsc_stream_sync(f.b, &err), DSC_ERR_COMM);
    assert_string_equal(err.message, "went away");
    assert_int_equal(counter, 1);
    OK(dsc_event_sync(before, NULL));
    assert_int_equal(dsc_event_sync(f.event, NULL), DSC_ERR_COMM);
    assert_int_equal(dsc_stream_wait(f.compute, f.event, NULL), DSC_ERR_COMM);
    /* A stream that is opened again is healthy. */
    dsc_stream_close(&f.a);
    OK(dsc_stream_open(f.device, DSC_STREAM_ASYNC, "a", &f.a, NULL));
    OK(dsc_host_call(f.a, add_one, &cp, sizeof cp, NULL));
    OK(dsc_stream_sync(f.a, NULL));
    dsc_event_close(&before);
    close_all(&f);
}

typedef struct self_args { dsc_stream *stream; dsc_status *queued, *synced; } self_args;
static dsc_status use_own_stream(void *args, dsc_error *err)
{
    const self_args *s = args;
    *s->queued = dsc_host_call(s->stream, add_one, NULL, 0, NULL);
    *s->synced = dsc_stream_sync(s->stream, NULL);
    return DSC_OK;
}

static void test_host_call_on_its_own_stream_is_refused(void **state)
{
    fixture f;
    open_all(&f, 1);
    dsc_status queued = DSC_OK, synced = DSC_OK;
    OK(dsc_host_call(f.a, use_own_stream, &(self_args){ f.a, &queued, &synced }, sizeof(self_args), NULL));
    OK(dsc_stream_sync(f.a, NULL));
    assert_int_equal(queued, DSC_ERR_STATE);
    assert_int_equal(synced, DSC_ERR_STATE);
    close_all(&f);
}

static void test_allocation_failures_on_open(void **state)
{
    for (int64_t n = 1;; n++) {
        dsc_alloc *alloc;
        dsc_error err = DSC_ERROR_INIT;
        OK(dsc_alloc_open(&alloc, &err));
        dsc_alloc_fail_at(alloc, n, n % 2 == 0);
        dsc_device *device = NULL;
        dsc_stream *stream = NULL;
        dsc_event *event = NULL;
        const dsc_device_options options = { .alloc = alloc, .threads = 1, .caps = dsc_cpu_caps() };
        dsc_status status = dsc_device_open(&dsc_device_cpu, &device, &options, &err);
        if (status == DSC_OK)
            status = dsc_stream_open(device, DSC_STREAM_ASYNC, "s", &stream, &err);
        if (status == DSC_OK)
            status = dsc_event_open(device, &event, &err);
        dsc_event_close(&event);
        dsc_stream_close(&stream);
        dsc_device_close(&device);
        dsc_alloc_close(&alloc);
        if (status == DSC_OK) {
            assert_true(n > 3);
            return;
        }
        assert_int_equal(status, DSC_ERR_NOMEM);
        assert_true(err.message[0] != 0);
    }
}

static void test_nothing_is_allocated_in_use(void **state)
{
    fixture f;
    open_all(&f, 2);
    int value = 0, *vp = &value;
    dsc_alloc_freeze(f.alloc, true);
    for (int i = 0; i < 600; i++) {
        OK(dsc_host_call(f.a, add_one, &vp, sizeof vp, NULL));
        OK(dsc_event_record(f.event, f.a, NULL));
        OK(dsc_stream_wait(f.b, f.event, NULL));
    }
    OK(dsc_stream_sync(f.b, NULL));
    dsc_alloc_freeze(f.alloc, false);
    assert_int_equal(value, 600);
    close_all(&f);
}

/* ---- floating-point mode ---- */

static dsc_status halve(void *args, dsc_error *err)
{
    float **p = args;
    volatile float tiny = 1e-38f;
    **p = tiny * 0.25f;
    return DSC_OK;
}

static void test_denormals_are_kept(void **state)
{
    enum { N = 100000 };
#if defined(__x86_64__)
    _mm_setcsr(_mm_getcsr() | DSC_MXCSR_FTZ | DSC_MXCSR_DAZ); /* as a host program may have it, for all its threads */
#endif
    fixture f;
    open_all(&f, 3);
    float a = 0, c = 0, *ap = &a, *cp = &c;
    OK(dsc_host_call(f.a, halve, &ap, sizeof ap, NULL));
    OK(dsc_host_call(f.compute, halve, &cp, sizeof cp, NULL));
    float *x = malloc(N * sizeof *x), *sum = malloc(N * sizeof *sum);
    assert_non_null(x);
    assert_non_null(sum);
    for (int i = 0; i < N; i++)
        memcpy(&x[i], &(uint32_t){ 3 }, 4);
    const dsc_add_args add = { .to = sum, .a = x, .b = x, .count = N };
    OK(DSC_RUN(f.compute, ADD, &add, NULL));
    OK(dsc_stream_sync(f.a, NULL));
    uint32_t bits;
    memcpy(&bits, &a, 4);
    assert_int_not_equal(bits, 0);
    memcpy(&bits, &c, 4);
    assert_int_not_equal(bits, 0);
    for (int i = 0; i < N; i++) {
        memcpy(&bits, &sum[i], 4);
        assert_int_equal(bits, 6);
    }
#if defined(__x86_64__)
    assert_true((_mm_getcsr() & DSC_MXCSR_FTZ) != 0); /* the program's own mode is back */
    _mm_setcsr(_mm_getcsr() & ~(unsigned)(DSC_MXCSR_FTZ | DSC_MXCSR_DAZ));
#endif
    free(x);
    free(sum);
    close_all(&f);
}

/* ---- stress: random work with random events; every operation checks its inputs ----
 *
 * The cells are plain memory, one per operation, so the thread sanitizer checks the same order a second time. */

enum { STREAMS = 4, EVENTS = 6, OPS = 4000 };

static uint32_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

typedef struct flow_args {
    int64_t *cell;       /* [OPS] one per operation, written once */
    int64_t number;
    int64_t seen[2];     /* operations that must be visible, -1: none */
    int32_t sleep_us;
    _Atomic int64_t *violations;
} flow_args;

static dsc_status flow_op(void *args, dsc_error *err)
{
    const flow_args *f = args;
    if (f->sleep_us > 0)
        dsc_clock_sleep_ns(f->sleep_us * 1000);
    for (int i = 0; i < 2; i++)
        if (f->seen[i] >= 0 && f->cell[f->seen[i]] != f->seen[i] + 1)
            atomic_fetch_add(f->violations, 1);
    f->cell[f->number] = f->number + 1;
    return DSC_OK;
}

static void test_stress(void **state)
{
    const char *text = getenv("DSC_TEST_SEED");
    const uint64_t seed = text != NULL ? strtoull(text, NULL, 10) : 20240611;
    print_message("# seed %llu; rerun: DSC_TEST_SEED=%llu\n", (unsigned long long)seed, (unsigned long long)seed);
    uint64_t rng = seed;
    fixture f;
    open_all(&f, 2);
    dsc_stream *stream[STREAMS] = { f.compute, f.a, f.b, NULL };
    OK(dsc_stream_open(f.device, DSC_STREAM_ASYNC, "c", &stream[3], NULL));
    dsc_event *event[EVENTS];
    int64_t recorded[EVENTS];             /* last operation before the record, -1: none */
    int64_t last[STREAMS], waited[STREAMS]; /* last operation; operation behind the last wait */
    for (int i = 0; i < EVENTS; i++) {
        OK(dsc_event_open(f.device, &event[i], NULL));
        recorded[i] = -1;
    }
    for (int i = 0; i < STREAMS; i++)
        last[i] = waited[i] = -1;
    int64_t *cell = calloc(OPS, sizeof *cell);
    assert_non_null(cell);
    _Atomic int64_t violations = 0;
    for (int64_t n = 0; n < OPS; n++) {
        const uint32_t s = next_random(&rng) % STREAMS, e = next_random(&rng) % EVENTS;
        if (next_random(&rng) % 3 == 0) {
            OK(dsc_stream_wait(stream[s], event[e], NULL));
            waited[s] = recorded[e] > waited[s] ? recorded[e] : waited[s]; /* an older one stays true as well */
        }
        const flow_args args = { .cell = cell, .number = n, .seen = { last[s], waited[s] },
                                 .sleep_us = next_random(&rng) % 64 == 0 ? (int32_t)(next_random(&rng) % 300) : 0,
                                 .violations = &violations };
        OK(dsc_host_call(stream[s], flow_op, &args, sizeof args, NULL));
        last[s] = n;
        if (next_random(&rng) % 3 == 0) {
            const uint32_t r = next_random(&rng) % EVENTS;
            OK(dsc_event_record(event[r], stream[s], NULL));
            recorded[r] = n;
        }
    }
    for (int i = 0; i < STREAMS; i++)
        OK(dsc_stream_sync(stream[i], NULL));
    assert_int_equal(atomic_load(&violations), 0);
    for (int64_t n = 0; n < OPS; n++)
        assert_int_equal(cell[n], n + 1);
    free(cell);
    for (int i = 0; i < EVENTS; i++)
        dsc_event_close(&event[i]);
    dsc_stream_close(&stream[3]);
    close_all(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_idle_streams_sleep), /* first: OpenMP's threads do not exist yet, and they spin */
        cmocka_unit_test(test_copy_zero_launch),
        cmocka_unit_test(test_full_ring_blocks_and_goes_on),
        cmocka_unit_test(test_the_caller_runs_far_ahead),
        cmocka_unit_test(test_close_runs_what_is_queued),
        cmocka_unit_test(test_wait_captures_the_record_of_its_time),
        cmocka_unit_test(test_later_record_elsewhere_does_not_release_a_waiter),
        cmocka_unit_test(test_compute_waits_for_async_and_back),
        cmocka_unit_test(test_event_outlives_its_stream),
        cmocka_unit_test(test_errors_are_sticky_and_skip_the_rest),
        cmocka_unit_test(test_waiting_for_failed_work_fails),
        cmocka_unit_test(test_host_call_on_its_own_stream_is_refused),
        cmocka_unit_test(test_allocation_failures_on_open),
        cmocka_unit_test(test_nothing_is_allocated_in_use),
        cmocka_unit_test(test_denormals_are_kept),
        cmocka_unit_test(test_stress),
    };
    return cmocka_run_group_tests_name("device", tests, NULL, NULL);
}
