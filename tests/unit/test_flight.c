/* test_flight.c - flight records: the launcher reads the values that a rank writes, during the write, after a failure
 * and after the process was stopped or ended. Invalid texts and files are refused, and a call's cost is bounded.
 * SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/flight_log.h"
#include "tests/support/sanitizer.h"

static dsc_flight_log board;
static dsc_flight flight;

static int setup(void **state)
{
    char text[DSC_FLIGHT_TEXT_BYTES];
    dsc_error err = DSC_ERROR_INIT;
    if (dsc_flight_log_open(&board, 3, &err) != DSC_OK)
        return -1;
    dsc_flight_open(&flight, dsc_flight_log_text(&board, 1, text));
    return flight.record != NULL ? 0 : -1;
}

static int teardown(void **state)
{
    dsc_flight_close(&flight);
    dsc_flight_log_close(&board);
    return 0;
}

static dsc_flight_view look(int64_t now_ns)
{
    static dsc_flight_view view;
    dsc_flight_log_read(&board, 1, 0, now_ns, &view);
    return view;
}

static const dsc_flight_entry gather = { .op = "all_gather", .call.bytes = 4096, .step = 5, .peer = -1, .module = 3 };

static void written_calls_are_read_back(void **state)
{
    dsc_flight_set_timeout(&flight, 77);
    dsc_flight_name_module(&flight, 3, "h.2");
    dsc_flight_name_module(&flight, DSC_FLIGHT_MODULES, "beyond");
    dsc_flight_track *track = dsc_flight_track_open(&flight, 42, 2, 1, 3);
    dsc_flight_begin(track, &gather, 1000);
    dsc_flight_view view = look(1500);
    assert_true(view.known);
    assert_int_equal(view.pid, getpid());
    assert_int_equal(view.process, 'R');
    assert_int_equal(view.timeout_ns, 77);
    assert_int_equal(view.channel_count, 1);
    const dsc_flight_channel *lane = &view.channel[0];
    assert_true(lane->id == 42 && lane->channel == 2 && lane->rank == 1 && lane->size == 3 && lane->call_count == 1);
    const dsc_flight_call *call = &lane->call[0];
    assert_true(call->number == 1 && call->bytes == 4096 && call->step == 5 && call->peer == -1);
    assert_true(call->age_ns == 500 && call->ended_ns == 0 && call->state == DSC_FLIGHT_WAITS);
    assert_string_equal(call->op, "all_gather");
    assert_string_equal(call->module, "h.2");
    dsc_flight_end(track, DSC_FLIGHT_DONE, 1700);
    const dsc_flight_entry far = { .op = "a name that is longer than there is room", .peer = -1, .module = 500 };
    dsc_flight_begin(track, &far, 1800);
    view = look(2000);
    assert_int_equal(view.channel[0].call_count, 2);
    assert_true(view.channel[0].call[1].state == DSC_FLIGHT_DONE && view.channel[0].call[1].ended_ns == 300);
    assert_int_equal(strlen(view.channel[0].call[0].op), DSC_FLIGHT_NAME_BYTES - 1);
    assert_string_equal(view.channel[0].call[0].module, "500");
    dsc_flight_end(track, DSC_FLIGHT_DONE, 1900);
    for (int i = 0; i < 10; i++) {
        dsc_flight_begin(track, &gather, 3000 + i);
        dsc_flight_end(track, DSC_FLIGHT_DONE, 3000 + i);
    }
    view = look(4000);
    assert_int_equal(view.channel[0].call_count, DSC_FLIGHT_CALLS);
    for (int i = 0; i < DSC_FLIGHT_CALLS; i++)
        assert_int_equal(view.channel[0].call[i].number, 12 - i);
    dsc_flight_log_read(&board, 1, 3990, 4000, &view); /* the job was paused until 3990 */
    assert_int_equal(view.channel[0].call[0].age_ns, 10);
    dsc_flight_track_close(track);
    assert_int_equal(look(4000).channel_count, 0);
    dsc_flight_log_read(&board, 0, 0, 4000, &view);
    assert_true(view.known && view.pid == 0 && view.process == '?' && view.channel_count == 0);
}

/* The same calls in the same order give the same history, and nothing else does. A send counts for two ranks only. */
static void histories_tell_orders_apart(void **state)
{
    const dsc_flight_entry reduce = { .op = "reduce_scatter", .call.bytes = 4096, .peer = -1, .module = -1 };
    const dsc_flight_entry longer = { .op = "all_gather", .call.bytes = 4100, .peer = -1 };
    const dsc_flight_entry rooted = { .op = "all_gather", .call.bytes = 4096, .peer = -1, .call.detail = 1 };
    const dsc_flight_entry mail = { .op = "send", .call.bytes = 8, .peer = 0 };
    const dsc_flight_entry *lists[][3] = { { &gather, &reduce, &mail },
                                           { &gather, &mail, &reduce },
                                           { &reduce, &gather, &mail },
                                           { &gather, &longer, &mail },
                                           { &gather, &rooted, &mail } };
    uint64_t history[5];
    for (size_t i = 0; i < 5; i++) {
        dsc_flight_track *track = dsc_flight_track_open(&flight, 9, 0, 0, 2);
        for (size_t j = 0; j < 3; j++) {
            dsc_flight_begin(track, lists[i][j], 1);
            dsc_flight_end(track, DSC_FLIGHT_DONE, 2);
        }
        const dsc_flight_view view = look(3);
        assert_int_equal(view.channel[0].call[0].number, 2);
        history[i] = view.channel[0].call[0].history;
        dsc_flight_track_close(track);
    }
    assert_true(history[0] == history[1]);
    for (size_t i = 2; i < 5; i++)
        assert_true(history[i] != history[0]);
}

/* A call that a GPU is given: in front while its rank gives it, then known by its number until the GPU comes to it.
 * The last observation of a GPU is never older than the poll. */
static void calls_of_a_gpu_begin_when_it_comes_to_them(void **state)
{
    const dsc_flight_entry reduce = { .op = "reduce_scatter", .call.bytes = 8, .peer = -1, .module = -1 };
    dsc_flight_track *track = dsc_flight_track_open(&flight, 7, 0, 1, 3);
    dsc_flight_looked(track, 90);
    const dsc_flight_ticket first = dsc_flight_ask(track, &gather, 100);
    dsc_flight_view view = look(150);
    const dsc_flight_channel *lane = &view.channel[0];
    assert_true(lane->asked == 1 && lane->call_count == 1 && lane->call[0].state == DSC_FLIGHT_WAITS);
    assert_true(lane->call[0].number == 1 && lane->call[0].age_ns == 50); /* the rank itself is in it */
    dsc_flight_asked(track, DSC_FLIGHT_QUEUED, 160);
    const dsc_flight_ticket second = dsc_flight_ask(track, &reduce, 170);
    dsc_flight_asked(track, DSC_FLIGHT_QUEUED, 180);
    view = look(200);
    assert_true(lane->asked == 2 && lane->call_count == 0);
    dsc_flight_come(track, &gather, first, 210);
    dsc_flight_looked(track, 250);
    view = look(900);
    assert_true(lane->asked == 2 && lane->call_count == 1 && lane->call[0].state == DSC_FLIGHT_WAITS);
    assert_true(lane->call[0].number == 1 && lane->call[0].age_ns == 40);
    assert_string_equal(lane->call[0].op, "all_gather");
    dsc_flight_end(track, DSC_FLIGHT_DONE, 300);
    dsc_flight_come(track, &reduce, second, 310);
    dsc_flight_looked(track, 320);
    view = look(900);
    assert_true(lane->call_count == 2 && lane->call[0].number == 2 && lane->call[1].state == DSC_FLIGHT_DONE);
    dsc_flight_end(track, DSC_FLIGHT_DONE, 330);
    const uint64_t history = look(900).channel[0].call[0].history;
    dsc_flight_ask(track, &gather, 400);
    dsc_flight_asked(track, DSC_FLIGHT_FAILED, 410);
    view = look(900);
    assert_true(lane->call[0].state == DSC_FLIGHT_FAILED && lane->call[0].number == 3 && lane->call[1].number == 2);
    dsc_flight_track_close(track);
    assert_int_equal(look(900).channel_count, 1);       /* what failed stays */
    track = dsc_flight_track_open(&flight, 8, 0, 1, 3); /* the same calls without a GPU */
    dsc_flight_begin(track, &gather, 1);
    dsc_flight_begin(track, &reduce, 1);
    view = look(900);
    assert_true(lane->asked == 0 && lane->call[0].history == history);
    dsc_flight_track_close(track);
}

static void a_failed_call_stays_until_its_track_is_needed(void **state)
{
    dsc_flight_track *track = dsc_flight_track_open(&flight, 7, 0, 1, 3);
    dsc_flight_begin(track, &gather, 10);
    dsc_flight_end(track, DSC_FLIGHT_FAILED, 20);
    dsc_flight_track_close(track);
    dsc_flight_view view = look(30);
    assert_int_equal(view.channel_count, 1);
    assert_true(view.channel[0].call[0].state == DSC_FLIGHT_FAILED && view.channel[0].call[0].ended_ns == 10);
    assert_true(dsc_flight_call_waits(&view.channel[0].call[0]));
    dsc_flight_track *all[DSC_FLIGHT_CHANNELS];
    for (int i = 0; i < DSC_FLIGHT_CHANNELS; i++)
        assert_non_null(all[i] = dsc_flight_track_open(&flight, 8, i, 1, 3));
    dsc_flight_track *none = dsc_flight_track_open(&flight, 8, 0, 1, 3);
    assert_null(none); /* and nothing happens with it */
    dsc_flight_begin(none, &gather, 1);
    dsc_flight_end(none, DSC_FLIGHT_DONE, 2);
    dsc_flight_track_close(none);
    view = look(30);
    assert_int_equal(view.channel_count, DSC_FLIGHT_CHANNELS);
    assert_int_equal(view.channel[0].call_count, 0);
    for (int i = 0; i < DSC_FLIGHT_CHANNELS; i++)
        dsc_flight_track_close(all[i]);
}

static void texts_that_are_none_open_nothing(void **state)
{
    char text[DSC_FLIGHT_TEXT_BYTES], plain[64], path[] = "/tmp/dsc-flight-XXXXXX";
    const char *const bad[] = { "", "1", "x:y:z", "1:2", "-1:0:0", "1:2:3x", "99999999:1:0", "1:-1:0", "1:0:-1",
                                "999999999999999999999999:0:0" };
    dsc_flight other;
    dsc_flight_open(&other, NULL);
    assert_null(other.record);
    for (size_t i = 0; i < DSC_COUNT(bad); i++) {
        dsc_flight_open(&other, bad[i]);
        assert_null(other.record);
    }
    dsc_flight_open(&other, dsc_flight_log_text(&board, 3, text)); /* past the last */
    assert_null(other.record);
    /* A file, and memory that may shrink or holds no records. */
    const int file = mkstemp(path), loose = memfd_create("loose", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_true(file >= 0 && loose >= 0 && ftruncate(file, 1 << 20) == 0 && ftruncate(loose, 1 << 20) == 0);
    unlink(path);
    for (int i = 0; i < 3; i++) {
        if (i == 2)
            assert_int_equal(fcntl(loose, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
        snprintf(plain, sizeof plain, "%d:%d:0", (int)getpid(), i == 0 ? file : loose);
        dsc_flight_open(&other, plain);
        assert_null(other.record);
    }
    close(file);
    close(loose);
    dsc_flight_set_timeout(&other, 1);
    dsc_flight_name_module(&other, 0, "x");
    assert_null(dsc_flight_track_open(&other, 1, 0, 0, 2));
    dsc_flight_close(&other);
}

/* A process writes, is stopped, killed, and followed by another one in the same place. */
static void another_process(void **state)
{
    char text[DSC_FLIGHT_TEXT_BYTES];
    int ready[2];
    dsc_flight_view view;
    dsc_flight_log_text(&board, 2, text);
    assert_int_equal(pipe(ready), 0);
    const pid_t pid = fork();
    if (pid == 0) {
        dsc_flight theirs;
        dsc_flight_open(&theirs, text);
        if (theirs.record == NULL)
            _exit(1);
        dsc_flight_begin(dsc_flight_track_open(&theirs, 5, 0, 2, 3), &gather, dsc_clock_ns());
        (void)!write(ready[1], "x", 1);
        for (;;)
            pause();
    }
    char byte;
    assert_int_equal(read(ready[0], &byte, 1), 1);
    kill(pid, SIGSTOP);
    do
        dsc_flight_log_read(&board, 2, 0, dsc_clock_ns(), &view);
    while (view.process != 'T');
    assert_int_equal(view.pid, pid);
    kill(pid, SIGKILL);
    do
        dsc_flight_log_read(&board, 2, 0, dsc_clock_ns(), &view);
    while (view.process != '?'); /* a zombie is gone, too */
    assert_true(view.channel_count == 1 && view.channel[0].call[0].state == DSC_FLIGHT_WAITS);
    waitpid(pid, NULL, 0);
    dsc_flight next;
    dsc_flight_open(&next, text);
    assert_non_null(next.record);
    dsc_flight_log_read(&board, 2, 0, dsc_clock_ns(), &view);
    assert_true(view.pid == getpid() && view.channel_count == 0);
    dsc_flight_close(&next);
    close(ready[0]);
    close(ready[1]);
}

static atomic_bool writes;

static void *write_calls(void *user)
{
    dsc_flight_track *track = user;
    for (int64_t i = 1; atomic_load(&writes); i++) {
        const dsc_flight_entry what = { .op = i % 2 ? "odd" : "even",
                                        .call.bytes = 3 * i,
                                        .step = 5 * i,
                                        .peer = -1,
                                        .call.detail = (int32_t)(7 * (i % 1000)) };
        dsc_flight_begin(track, &what, i);
        dsc_flight_end(track, DSC_FLIGHT_DONE, i);
    }
    return NULL;
}

static void a_reader_never_sees_half_a_call(void **state)
{
    pthread_t thread;
    int64_t seen = 0;
    dsc_flight_track *track = dsc_flight_track_open(&flight, 1, 0, 0, 2);
    atomic_store(&writes, true);
    assert_int_equal(pthread_create(&thread, NULL, write_calls, track), 0);
    const int64_t until_ns = dsc_clock_ns() + 300000000;
    while (dsc_clock_ns() < until_ns) {
        const dsc_flight_view view = look(INT64_C(1) << 60);
        for (int i = 0; i < view.channel[0].call_count; i++) {
            const dsc_flight_call *call = &view.channel[0].call[i];
            if (call->bytes != 3 * call->number || call->step != 5 * call->number ||
                call->detail != 7 * (call->number % 1000) || strcmp(call->op, call->number % 2 ? "odd" : "even") != 0)
                fail_msg("call %lld is torn", (long long)call->number);
            seen++;
        }
    }
    atomic_store(&writes, false);
    pthread_join(thread, NULL);
    assert_true(seen > 100);
    dsc_flight_track_close(track);
}

static void a_call_costs_little(void **state)
{
    enum { CALLS = 200000 };
    dsc_flight_track *track = dsc_flight_track_open(&flight, 1, 0, 0, 2);
    int64_t best_ns = INT64_MAX;
    for (int round = 0; round < 5; round++) {
        const int64_t start_ns = dsc_clock_ns();
        for (int i = 0; i < CALLS; i++) {
            dsc_flight_begin(track, &gather, i);
            dsc_flight_end(track, DSC_FLIGHT_DONE, i);
        }
        best_ns = dsc_min_i64(best_ns, dsc_clock_ns() - start_ns);
    }
    dsc_flight_track_close(track);
    printf("# %.0f ns a call\n", (double)best_ns / CALLS);
    assert_true((double)best_ns / CALLS < 2000 * test_patience()); /* a step has some tens of them, and milliseconds */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(written_calls_are_read_back, setup, teardown),
        cmocka_unit_test_setup_teardown(histories_tell_orders_apart, setup, teardown),
        cmocka_unit_test_setup_teardown(calls_of_a_gpu_begin_when_it_comes_to_them, setup, teardown),
        cmocka_unit_test_setup_teardown(a_failed_call_stays_until_its_track_is_needed, setup, teardown),
        cmocka_unit_test_setup_teardown(texts_that_are_none_open_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(another_process, setup, teardown),
        cmocka_unit_test_setup_teardown(a_reader_never_sees_half_a_call, setup, teardown),
        cmocka_unit_test_setup_teardown(a_call_costs_little, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
