/* test_launch_hang.c - the hang finder: worlds of ranks in known places of their collectives, and whom it names.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "launcher/coordinator/hang.h"

#define SECOND INT64_C(1000000000)
enum { RANKS = 4, WORLD = 77, GROUP = 78 };

static dsc_flight_view view[RANKS];
static dsc_launcher_plan plan;
static char line[DSC_HANG_LINE_BYTES];

static int setup(void **state)
{
    memset(view, 0, sizeof view);
    for (int32_t r = 0; r < RANKS; r++)
        view[r] = (dsc_flight_view){ .known = true, .pid = 100 + r, .process = 'S', .timeout_ns = 10 * SECOND };
    return 0;
}

/* A plan of two hosts with two ranks each. */
static int open_plan(void **state)
{
    static dsc_host host[2];
    static dsc_place place[RANKS];
    snprintf(host[0].name, sizeof host[0].name, "north");
    snprintf(host[1].name, sizeof host[1].name, "south");
    for (int32_t r = 0; r < RANKS; r++)
        place[r].host = r / 2;
    plan = (dsc_launcher_plan){ .pool = { .host = host, .count = 2 }, .place = place, .world_size = RANKS };
    return 0;
}

static dsc_flight_channel *lane_of(int32_t rank, uint64_t id, int32_t channel, int32_t group_rank, int32_t size)
{
    dsc_flight_view *v = &view[rank];
    for (int32_t i = 0; i < v->channel_count; i++)
        if (v->channel[i].id == id && v->channel[i].channel == channel)
            return &v->channel[i];
    v->channel[v->channel_count] =
        (dsc_flight_channel) { .id = id, .channel = channel, .rank = group_rank, .size = size };
    return &v->channel[v->channel_count++];
}

/* Puts a call in front of a lane of the world. */
static dsc_flight_call *put(int32_t rank, int32_t channel, const char *op, int64_t number, double age_s,
                            dsc_flight_state state)
{
    dsc_flight_channel *lane = lane_of(rank, WORLD, channel, rank, RANKS);
    memmove(&lane->call[1], &lane->call[0], sizeof lane->call[0] * (DSC_FLIGHT_CALLS - 1));
    lane->call_count += lane->call_count < DSC_FLIGHT_CALLS;
    lane->call[0] = (dsc_flight_call){ .number = number, .bytes = 4096, .step = 5, .peer = -1, .state = state,
                                       .history = (uint64_t)number * 1000 + (uint64_t)op[0] };
    lane->call[0].age_ns = (int64_t)(age_s * 1e9);
    lane->call[0].ended_ns = state == DSC_FLIGHT_WAITS ? 0 : lane->call[0].age_ns / 2;
    snprintf(lane->call[0].op, sizeof lane->call[0].op, "%s", op);
    snprintf(lane->call[0].module, sizeof lane->call[0].module, "h.%d", (int)number);
    return &lane->call[0];
}

static dsc_hang found(int64_t limit_ns, bool ended)
{
    dsc_hang hang;
    dsc_hang_find(view, RANKS, limit_ns, ended, &hang);
    line[0] = 0;
    if (hang.kind != DSC_HANG_NONE)
        dsc_hang_describe(&hang, view, &plan, line);
    return hang;
}

static void expect(dsc_hang hang, dsc_hang_kind kind, int32_t waiter, int32_t culprit)
{
    if (hang.kind != kind || hang.waiter != waiter || hang.culprit != culprit)
        fail_msg("kind %d, %d waits for %d: %s", (int)hang.kind, hang.waiter, hang.culprit, line);
}

static void says(const char *part)
{
    if (strstr(line, part) == NULL)
        fail_msg("\"%s\" is not in: %s", part, line);
}

static void nobody_is_late(void **state)
{
    expect(found(0, false), DSC_HANG_NONE, -1, -1);
    for (int32_t r = 0; r < RANKS; r++)
        put(r, 0, "all_gather", 3, 500, DSC_FLIGHT_DONE);
    expect(found(SECOND, false), DSC_HANG_NONE, -1, -1);
    for (int32_t r = 0; r < RANKS - 1; r++)
        put(r, 0, "all_gather", 4, 10.5, DSC_FLIGHT_WAITS);
    expect(found(0, false), DSC_HANG_NONE, -1, -1); /* within the ranks' own timeout and the slack */
    expect(found(11 * SECOND, false), DSC_HANG_NONE, -1, -1);
    for (int32_t r = 0; r < RANKS; r++)
        view[r].timeout_ns = 0;
    expect(found(0, false), DSC_HANG_NONE, -1, -1);
}

static void the_rank_missing_from_a_collective_is_named(void **state)
{
    for (int32_t r = 0; r < RANKS; r++)
        if (r != 2)
            put(r, 1, "all_gather", 37, 12 + r, DSC_FLIGHT_WAITS);
    put(2, 1, "broadcast", 36, 13, DSC_FLIGHT_DONE);
    const dsc_hang hang = found(0, false);
    expect(hang, DSC_HANG_LATE, 3, 2);
    assert_int_equal(dsc_hang_code(&hang), 5);
    says("stuck: rank 3 has waited 15.0 s for rank 2 (host south, pid 102) in all_gather of 4096 bytes (step 5, module "
         "h.37, channel 1, collective 37)");
    says("rank 2 is busy with something else; its last was broadcast of 4096 bytes (step 5, module h.36");
    view[2].process = 'T';
    (void)found(12 * SECOND, false);
    says("rank 2 is stopped");
    assert_true(dsc_hang_describe_wait(view, RANKS, 0, false, line));
    says("rank 0 waits for rank 2 in all_gather");
    assert_false(dsc_hang_describe_wait(view, RANKS, 2, false, line));
    view[2] = (dsc_flight_view){ .known = true };
    expect(found(0, false), DSC_HANG_LATE, 3, 2);
    says("rank 2 (host south) in");
    says("has opened no communicator");
}

/* 0 and 1 wait for 2 in one lane, 2 waits for 3 in another, and 3 does something else. */
static void waits_are_followed_to_their_end(void **state)
{
    put(0, 0, "all_gather", 8, 30, DSC_FLIGHT_WAITS);
    put(1, 0, "all_gather", 8, 31, DSC_FLIGHT_WAITS);
    put(2, 0, "all_gather", 7, 40, DSC_FLIGHT_DONE);
    put(3, 0, "all_gather", 8, 29, DSC_FLIGHT_WAITS);
    for (int32_t r = 0; r < 3; r++)
        put(r, 1, "reduce_scatter", 5, 20, r == 2 ? DSC_FLIGHT_WAITS : DSC_FLIGHT_DONE);
    put(3, 1, "reduce_scatter", 4, 33, DSC_FLIGHT_DONE);
    expect(found(0, false), DSC_HANG_CIRCLE, 3, 2); /* 3 waits for 2 in the first lane, 2 for 3 in the second */
    says("rank 2 waits in turn for it");
    lane_of(3, WORLD, 0, 3, RANKS)->call[0].state = DSC_FLIGHT_DONE;
    expect(found(0, false), DSC_HANG_LATE, 2, 3);
    says("rank 2 has waited 20.0 s for rank 3");
    view[2].process = 'T'; /* then it is the one who cannot come */
    expect(found(0, false), DSC_HANG_LATE, 1, 2);
}

static void a_rank_stopped_inside_a_collective_is_named(void **state)
{
    for (int32_t r = 0; r < RANKS; r++)
        put(r, 0, "all_gather", 8, 30 + r, DSC_FLIGHT_WAITS);
    dsc_hang hang = found(0, false);
    assert_true(hang.kind == DSC_HANG_LATE && hang.culprit == -1);
    says("all ranks have come to it, and it does not end");
    view[3].process = 'T';
    expect(found(0, false), DSC_HANG_LATE, 2, 3);
    for (int32_t r = 0; r < RANKS; r++)
        view[r].process = 'T'; /* the user stopped the job: nobody waits */
    expect(found(0, false), DSC_HANG_NONE, -1, -1);
}

static void a_stopped_rank_is_named_without_waiting_ranks(void **state)
{
    for (int32_t r = 0; r < RANKS; r++) {
        put(r, 0, "all_gather", 8, 90, DSC_FLIGHT_DONE);
        view[r].timeout_ns = 10 * SECOND;
    }
    view[2].process = 'T';
    view[2].stopped_ns = 10 * SECOND;
    expect(found(0, false), DSC_HANG_NONE, -1, -1); /* not yet */
    view[2].stopped_ns = 11 * SECOND;
    expect(found(0, false), DSC_HANG_LATE, -1, 2);
    says("stuck: rank 2 (host south, pid 102) is stopped");
    expect(found(20 * SECOND, false), DSC_HANG_NONE, -1, -1);
    view[2].process = 't'; /* by a debugger */
    expect(found(0, false), DSC_HANG_NONE, -1, -1);
    view[2].process = 'T';
    put(0, 0, "all_gather", 9, 2, DSC_FLIGHT_WAITS); /* it is soon late, and says more */
    expect(found(0, false), DSC_HANG_NONE, -1, -1);
    view[0].process = 'T';
    expect(found(0, false), DSC_HANG_LATE, -1, 2);
}

static void a_send_waits_for_its_receiver_alone(void **state)
{
    for (int32_t r = 0; r < RANKS; r++)
        put(r, 0, "all_gather", 8, 90, DSC_FLIGHT_DONE);
    put(0, 0, "recv", 8, 20, DSC_FLIGHT_WAITS)->peer = 3;
    put(2, 0, "barrier", 9, 15, DSC_FLIGHT_WAITS);
    expect(found(0, false), DSC_HANG_LATE, 0, 3);
    says("recv of 4096 bytes with its rank 3");
    put(3, 0, "send", 8, 19, DSC_FLIGHT_WAITS)->peer = 0; /* both are there: the transport is at fault */
    const dsc_hang hang = found(0, false);
    assert_true(hang.waiter == 0 && hang.culprit == -1);
}

/* GPUs: who did not ask for the call comes before one whose GPU was not seen to come to it. */
static void gpus_that_wait_for_a_rank(void **state)
{
    for (int32_t r = 0; r < RANKS; r++) {
        put(r, 1, "all_gather", r < 2 ? 8 : 7, 12, r < 2 ? DSC_FLIGHT_WAITS : DSC_FLIGHT_DONE);
        lane_of(r, WORLD, 1, r, RANKS)->asked = r == 3 ? 7 : 11;
    }
    expect(found(0, false), DSC_HANG_LATE, 0, 3);
    says("rank 0 has waited 12.0 s for rank 3 (host south, pid 103) in all_gather of 4096 bytes (step 5, module h.8, "
         "channel 1, collective 8); rank 3 is busy with something else; its last was all_gather");
    lane_of(3, WORLD, 1, 3, RANKS)->asked = 8;
    expect(found(0, false), DSC_HANG_LATE, 0, 2);
    says("rank 2 has given it to its GPU, which was not seen to come to it; its last was all_gather of 4096 bytes "
         "(step 5, module h.7, channel 1, collective 7)");
    put(2, 0, "reduce_scatter", 4, 13, DSC_FLIGHT_WAITS); /* where it waits in turn, for one who has not come */
    for (int32_t r = 0; r < RANKS; r++)
        lane_of(r, WORLD, 0, r, RANKS)->asked = r == 3 ? 3 : 4;
    put(0, 0, "reduce_scatter", 4, 13, DSC_FLIGHT_WAITS);
    put(1, 0, "reduce_scatter", 4, 13, DSC_FLIGHT_WAITS);
    expect(found(0, false), DSC_HANG_LATE, 0, 3);
    says("in reduce_scatter");
    setup(NULL);
    /* So many on their way that they are not told apart: done with all that it was asked for, less than others. */
    for (int32_t r = 0; r < RANKS; r++) {
        put(r, 0, "all_gather", r == 1 ? 900 : 300, 12, r == 1 ? DSC_FLIGHT_DONE : DSC_FLIGHT_WAITS);
        lane_of(r, WORLD, 0, r, RANKS)->asked = r == 1 ? 900 : 2000;
    }
    expect(found(0, false), DSC_HANG_LATE, 0, 1);
}

static void ranks_at_odds_are_both_named(void **state)
{
    put(0, 0, "all_gather", 3, 2, DSC_FLIGHT_WAITS);
    put(1, 0, "all_gather", 3, 2, DSC_FLIGHT_WAITS);
    put(2, 0, "reduce_scatter", 3, 2, DSC_FLIGHT_WAITS);
    const dsc_hang hang = found(0, false);
    expect(hang, DSC_HANG_ODDS, 0, 2);
    assert_int_equal(dsc_hang_code(&hang), 1);
    says("ranks disagree: rank 0 (host north, pid 100) calls all_gather of 4096 bytes (step 5, module h.3, channel 0, "
         "collective 3), rank 2 (host south, pid 102) calls reduce_scatter of 4096 bytes");
    lane_of(2, WORLD, 0, 2, RANKS)->call[0].age_ns = SECOND; /* the transport may say so itself */
    expect(found(0, false), DSC_HANG_NONE, -1, -1);
    setup(NULL);
    /* Left to a GPU, and gone on: the first call that differs is named. */
    put(0, 0, "all_gather", 3, 5, DSC_FLIGHT_QUEUED);
    put(0, 0, "all_gather", 4, 4, DSC_FLIGHT_QUEUED);
    put(1, 0, "broadcast", 3, 5, DSC_FLIGHT_QUEUED);
    put(1, 0, "broadcast", 4, 4, DSC_FLIGHT_QUEUED);
    expect(found(0, false), DSC_HANG_ODDS, 0, 1);
    says("collective 3)");
    setup(NULL);
    put(1, 0, "all_gather", 3, 5, DSC_FLIGHT_WAITS);
    put(2, 1, "broadcast", 3, 5, DSC_FLIGHT_WAITS); /* another channel */
    expect(found(0, false), DSC_HANG_NONE, -1, -1);
}

/* A rank gave up: how long it waited does not matter, and who came to the ruins is whom it waited for. */
static void after_a_rank_gave_up(void **state)
{
    put(0, 0, "all_gather", 8, 6, DSC_FLIGHT_FAILED); /* ended 3 s ago */
    put(1, 0, "all_gather", 8, 5, DSC_FLIGHT_FAILED);
    put(2, 0, "all_gather", 8, 6, DSC_FLIGHT_FAILED);
    put(3, 0, "all_gather", 8, 1, DSC_FLIGHT_FAILED);
    view[0].process = '?';
    expect(found(0, false), DSC_HANG_NONE, -1, -1);
    expect(found(0, true), DSC_HANG_LATE, 0, 3);
    says("rank 0 has waited 3.0 s for rank 3");
    setup(NULL);
    expect(found(0, true), DSC_HANG_NONE, -1, -1);
    view[1].process = 'T'; /* GPUs wait by themselves */
    expect(found(0, true), DSC_HANG_LATE, -1, 1);
    says("stuck: rank 1 (host north, pid 101) is stopped");
}

static void ranks_that_are_not_known_are_not_blamed(void **state)
{
    put(0, 0, "all_gather", 8, 12, DSC_FLIGHT_WAITS);
    put(1, 0, "all_gather", 8, 12, DSC_FLIGHT_WAITS);
    memset(&view[2], 0, 2 * sizeof view[2]);
    const dsc_hang hang = found(0, false);
    assert_true(hang.kind == DSC_HANG_LATE && hang.culprit == -1);
    says("for ranks that another launcher has started");
    setup(NULL);
    /* A rank outside of a group is not missing in it. */
    dsc_flight_channel *lane = lane_of(0, GROUP, 0, 0, 2);
    put(0, 0, "all_gather", 8, 1, DSC_FLIGHT_DONE);
    lane->call[0] = (dsc_flight_call){ .number = 2, .age_ns = 20 * SECOND, .peer = -1 };
    lane->call_count = 1;
    lane_of(2, GROUP, 0, 1, 2)->call_count = 0;
    expect(found(0, false), DSC_HANG_LATE, 0, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(nobody_is_late, setup),
        cmocka_unit_test_setup(the_rank_missing_from_a_collective_is_named, setup),
        cmocka_unit_test_setup(waits_are_followed_to_their_end, setup),
        cmocka_unit_test_setup(a_rank_stopped_inside_a_collective_is_named, setup),
        cmocka_unit_test_setup(a_stopped_rank_is_named_without_waiting_ranks, setup),
        cmocka_unit_test_setup(a_send_waits_for_its_receiver_alone, setup),
        cmocka_unit_test_setup(gpus_that_wait_for_a_rank, setup),
        cmocka_unit_test_setup(ranks_at_odds_are_both_named, setup),
        cmocka_unit_test_setup(after_a_rank_gave_up, setup),
        cmocka_unit_test_setup(ranks_that_are_not_known_are_not_blamed, setup),
    };
    return cmocka_run_group_tests(tests, open_plan, NULL);
}
