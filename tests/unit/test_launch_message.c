/* test_launch_message.c - messages between the launcher and its agents: what goes in comes out, what is cut or changed
 * is refused, and frames come whole out of a stream in pieces. SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "launcher/protocol/message.h"

static dsc_alloc *alloc;

static int setup(void **state)
{
    (void)state;
    dsc_error err = DSC_ERROR_INIT;
    return dsc_alloc_open(&alloc, &err);
}

static int teardown(void **state)
{
    (void)state;
    dsc_alloc_close(&alloc); /* asserts that nothing leaked */
    return 0;
}

static dsc_frame only_frame(const dsc_message_out *out)
{
    size_t count = 0;
    for (size_t i = 0; i < 4; i++)
        count |= (size_t)out->bytes[i] << 8 * i;
    assert_int_equal(count + 4, out->count);
    return (dsc_frame){ out->bytes[4], out->bytes + DSC_MESSAGE_HEADER_BYTES, count - 1 };
}

/* Any reader as one function: true when it takes the frame. */
static bool takes(const dsc_frame *frame)
{
    static union {
        dsc_order order;
        dsc_notice notice;
        dsc_problem problem;
        uint64_t number;
        dsc_message_flight flight;
    } to;
    static dsc_hello hello;
    switch (frame->kind) {
    case DSC_FRAME_HELLO: return dsc_message_get_hello(frame, &hello);
    case DSC_FRAME_ORDER: return dsc_message_get_order(frame, &to.order);
    case DSC_FRAME_NOTICE: return dsc_message_get_notice(frame, &to.notice);
    case DSC_FRAME_PROBLEM: return dsc_message_get_problem(frame, &to.problem);
    case DSC_FRAME_FLIGHT: return dsc_message_get_flight(frame, &to.flight);
    case DSC_FRAME_ACK: return dsc_message_get_ack(frame, &to.number);
    case DSC_FRAME_OUTPUT_END: {
        dsc_message_output output;
        return dsc_message_get_output_end(frame, &output);
    }
    case DSC_FRAME_TASK: {
        dsc_host_task task;
        uint32_t epoch = 0;
        dsc_error err = DSC_ERROR_INIT;
        const dsc_status status = dsc_message_get_task(alloc, frame, &epoch, &task, &err);
        if (status == DSC_OK)
            dsc_host_task_close(alloc, &task);
        return status == DSC_OK;
    }
    default: return false;
    }
}

/* Every shorter frame, and one with a byte too many, is refused. Copies are exact, so that a sanitizer sees more. */
static void check_lengths(const dsc_frame *frame)
{
    assert_true(takes(frame));
    for (size_t count = 0; count <= frame->count + 1; count++) {
        uint8_t *bytes = calloc(1, count > 0 ? count : 1);
        memcpy(bytes, frame->bytes, count < frame->count ? count : frame->count);
        const dsc_frame cut = { frame->kind, bytes, count };
        assert_int_equal(takes(&cut), count == frame->count);
        free(bytes);
    }
}

static void orders_and_notices(void **state)
{
    dsc_message_out out = { .alloc = alloc };
    const dsc_order order = { .number = UINT64_C(0x1122334455667788), .epoch = 7, .phase = DSC_ORDER_END,
                              .term_signal = 15, .grace_ms = 10000, .signal_count = 3, .signal = 10, .ends_seen = 5,
                              .reader_gone = { false, true } };
    dsc_order order_back;
    dsc_message_put_order(&out, &order);
    dsc_frame frame = only_frame(&out);
    check_lengths(&frame);
    assert_true(dsc_message_get_order(&frame, &order_back));
    assert_true(order_back.number == order.number && order_back.epoch == 7 && order_back.phase == DSC_ORDER_END);
    assert_true(order_back.term_signal == 15 && order_back.grace_ms == 10000 && order_back.signal_count == 3);
    assert_true(order_back.signal == 10 && order_back.ends_seen == 5 && !order_back.reader_gone[0] &&
                order_back.reader_gone[1]);
    out.count = 0;

    dsc_notice notice = { .number = 9, .epoch = 2, .phase = DSC_AGENT_GONE, .cut_off = true, .drained = true,
                          .ends_from = 4, .end_count = DSC_NOTICE_ENDS_MAX };
    dsc_notice notice_back;
    for (int32_t i = 0; i < notice.end_count; i++)
        notice.end[i] = (dsc_rank_end){ .rank = i, .pid = 1000 + i, .code = 137, .signal = 9, .exec_errno = i };
    dsc_message_put_notice(&out, &notice);
    frame = only_frame(&out);
    check_lengths(&frame);
    assert_true(frame.count <= DSC_MESSAGE_REPORT_MAX);
    assert_true(dsc_message_get_notice(&frame, &notice_back));
    assert_true(notice_back.cut_off && !notice_back.start_failed && notice_back.drained);
    assert_memory_equal(notice_back.end, notice.end, sizeof notice.end);
    dsc_message_out_close(&out);
}

/* As full as a view can be; ages and histories of 64 bits. */
static void fill_flight(dsc_message_flight *flight)
{
    *flight = (dsc_message_flight) { .epoch = 3,
                                     .index = 7,
                                     .view = { .known = true,
                                               .pid = 4711,
                                               .process = 'T',
                                               .timeout_ns = INT64_C(600000000000),
                                               .channel_count = DSC_FLIGHT_CHANNELS } };
    for (int32_t i = 0; i < DSC_FLIGHT_CHANNELS; i++) {
        dsc_flight_channel *lane = &flight->view.channel[i];
        *lane = (dsc_flight_channel) { .id = ~(uint64_t)i,
                                       .channel = i,
                                       .rank = 2,
                                       .size = 4,
                                       .asked = INT64_MAX - i,
                                       .call_count = DSC_FLIGHT_CALLS };
        for (int32_t c = 0; c < DSC_FLIGHT_CALLS; c++) {
            lane->call[c] = (dsc_flight_call){ .number = 9 - c, .history = ~UINT64_C(0), .bytes = INT64_MAX,
                                               .step = -1, .age_ns = 12, .ended_ns = 3, .detail = -2, .peer = -1,
                                               .state = (dsc_flight_state)(c % 4) };
            memset(lane->call[c].op, 'o', DSC_FLIGHT_NAME_BYTES - 1);
            memset(lane->call[c].module, 'm', DSC_FLIGHT_NAME_BYTES - 1);
        }
    }
}

static void flights(void **state)
{
    static dsc_message_flight flight, back;
    dsc_message_out out = { .alloc = alloc };
    fill_flight(&flight);
    dsc_message_put_flight(&out, &flight);
    dsc_frame frame = only_frame(&out);
    check_lengths(&frame);
    assert_true(frame.count <= DSC_MESSAGE_REPORT_MAX);
    assert_true(dsc_message_get_flight(&frame, &back));
    assert_memory_equal(&back, &flight, sizeof flight);
    out.count = 0;
    flight.view.channel[3].call[2].op[0] = '\x1b'; /* a terminal's control codes are invalid in names */
    dsc_message_put_flight(&out, &flight);
    frame = only_frame(&out);
    assert_true(dsc_message_get_flight(&frame, &back) && back.view.channel[3].call[2].op[0] != '\x1b');
    for (int i = 0; i < 6; i++) {
        fill_flight(&flight);
        *(int64_t *[]){ &flight.view.channel[0].call[0].age_ns,
                         &flight.view.channel[7].call[3].ended_ns,
                         &flight.view.channel[1].call[1].number,
                         &flight.view.channel[1].call[1].bytes,
                         &flight.view.timeout_ns,
                         &flight.view.channel[2].asked }[i] = -1;
        out.count = 0;
        dsc_message_put_flight(&out, &flight);
        frame = only_frame(&out);
        assert_false(takes(&frame));
    }
    fill_flight(&flight);
    flight.view.channel[0].call[0].state = (dsc_flight_state)4;
    out.count = 0;
    dsc_message_put_flight(&out, &flight);
    frame = only_frame(&out);
    assert_false(takes(&frame));
    dsc_message_out_close(&out);
}

static void numbers_out_of_range(void **state)
{
    dsc_message_out out = { .alloc = alloc };
    const dsc_order bad_order[] = { { .phase = (dsc_order_phase)9 }, { .term_signal = 65 }, { .grace_ms = -1 },
                                    { .signal = -1 } };
    const dsc_rank_end bad_end[] = { { .rank = -1 }, { .rank = DSC_LAUNCHER_RANKS_MAX }, { .code = 256 },
                                     { .signal = 128 }, { .pid = -5 } };
    for (size_t i = 0; i < DSC_COUNT(bad_order); i++) {
        dsc_message_put_order(&out, &bad_order[i]);
        const dsc_frame frame = only_frame(&out);
        assert_false(takes(&frame));
        out.count = 0;
    }
    for (size_t i = 0; i < DSC_COUNT(bad_end); i++) {
        const dsc_notice notice = { .end_count = 1, .end = { bad_end[i] } };
        dsc_message_put_notice(&out, &notice);
        const dsc_frame frame = only_frame(&out);
        assert_false(takes(&frame));
        out.count = 0;
    }
    dsc_message_out_close(&out);
}

static void hellos_and_problems(void **state)
{
    dsc_message_out out = { .alloc = alloc };
    const dsc_hello hello = { .protocol = DSC_MESSAGE_PROTOCOL, .version = "1.2", .path = "/x y", .name = "n",
                              .own_addr = "::1", .coordinator_addr = "10.0.0.1" };
    dsc_hello back;
    dsc_message_put_hello(&out, &hello);
    dsc_frame frame = only_frame(&out);
    check_lengths(&frame);
    assert_true(dsc_message_get_hello(&frame, &back));
    assert_memory_equal(&back, &hello, sizeof hello);
    out.count = 0;

    /* Another protocol's: its number and version can be read, whatever follows. */
    const dsc_hello later = { .protocol = DSC_MESSAGE_PROTOCOL + 1, .version = "9" };
    dsc_message_put_hello(&out, &later);
    frame = only_frame(&out);
    frame.count -= 3;
    assert_true(dsc_message_get_hello(&frame, &back));
    assert_int_equal(back.protocol, DSC_MESSAGE_PROTOCOL + 1);
    assert_string_equal(back.version, "9");
    out.count = 0;

    dsc_problem problem = { .epoch = 3, .error = { DSC_ERR_INPUT, -1, "PROG\x1b[2J", "m\n", NULL, 0 } };
    dsc_message_put_problem(&out, &problem);
    frame = only_frame(&out);
    check_lengths(&frame);
    assert_true(dsc_message_get_problem(&frame, &problem));
    assert_int_equal(problem.error.status, DSC_ERR_INPUT);
    assert_null(strchr(problem.error.where, '\x1b')); /* nothing of it reaches a terminal */
    dsc_message_out_close(&out);
}

static char *texts(const char *text) { return strdup(text); }

static dsc_host_task sample_task(char **argv, char **exports)
{
    dsc_host_task task = { .world_size = 8, .host = 1, .host_count = 2, .first_rank = 4, .rank_count = 4,
                           .master_port = 29500, .tty_columns = 80, .thread_count = 0, .bind_cores = true,
                           .one_stream = true, .master_addr = "10.0.0.1", .devices = "0,1,2,3", .core_list = "",
                           .folder = "/work", .argv = argv, .exports = exports };
    memcpy(task.job_token, "0123456789abcdef0123456789abcdef", sizeof task.job_token);
    return task;
}

static bool task_passes(const dsc_host_task *task)
{
    dsc_message_out out = { .alloc = alloc };
    dsc_message_put_task(&out, 1, task);
    const dsc_frame frame = only_frame(&out);
    const bool ok = takes(&frame);
    dsc_message_out_close(&out);
    return ok;
}

static void tasks(void **state)
{
    dsc_message_out out = { .alloc = alloc };
    char *argv[] = { texts("prog"), texts(""), texts("a b\n'\"$\xff"), NULL };
    char *exports[] = { texts("A="), texts("B=\x01"), NULL }, *none[] = { NULL };
    const dsc_host_task task = sample_task(argv, exports);
    dsc_host_task back;
    uint32_t epoch = 0;
    dsc_error err = DSC_ERROR_INIT;
    dsc_message_put_task(&out, 5, &task);
    const dsc_frame frame = only_frame(&out);
    check_lengths(&frame);
    assert_int_equal(dsc_message_get_task(alloc, &frame, &epoch, &back, &err), DSC_OK);
    assert_int_equal(epoch, 5);
    assert_true(back.world_size == 8 && back.first_rank == 4 && back.rank_count == 4 && back.bind_cores);
    assert_string_equal(back.devices, "0,1,2,3");
    for (int i = 0; i < 3; i++)
        assert_string_equal(back.argv[i], argv[i]);
    assert_null(back.argv[3]);
    assert_string_equal(back.exports[1], "B=\x01");
    assert_null(back.exports[2]);
    dsc_host_task_close(alloc, &back);
    dsc_message_out_close(&out);

    dsc_host_task bad = task;
    assert_true(task_passes(&bad));
    bad.argv = none;
    assert_false(task_passes(&bad));
    bad = task;
    bad.first_rank = 6; /* and four ranks: more than the world has */
    assert_false(task_passes(&bad));
    bad = task;
    bad.host = 2;
    assert_false(task_passes(&bad));
    bad = task;
    bad.folder = "relative";
    assert_false(task_passes(&bad));
    bad = task;
    bad.job_token[3] = 'x';
    assert_false(task_passes(&bad));
    bad = task;
    bad.rank_count = 0;
    assert_false(task_passes(&bad));
    for (int i = 0; i < 3; i++)
        free(argv[i]);
    free(exports[0]);
    free(exports[1]);
}

/* A text count that promises more than there is, and lengths near 2^32. */
static void huge_counts(void **state)
{
    char *argv[] = { texts("p"), NULL };
    const dsc_host_task task = sample_task(argv, NULL);
    dsc_message_out out = { .alloc = alloc };
    dsc_message_put_task(&out, 1, &task);
    for (size_t at = DSC_MESSAGE_HEADER_BYTES; at + 4 <= out.count; at++) {
        uint8_t kept[4];
        memcpy(kept, out.bytes + at, 4);
        memset(out.bytes + at, 0xff, 4);
        const dsc_frame frame = only_frame(&out);
        (void)takes(&frame); /* does not crash, allocates nothing large */
        memcpy(out.bytes + at, kept, 4);
    }
    dsc_alloc_stats stats;
    dsc_alloc_stats_get(alloc, &stats);
    assert_true(stats.tier_peak_bytes[DSC_TIER_HOST] < 1 << 20);
    dsc_message_out_close(&out);
    free(argv[0]);
}

/* Both sides count whole frames, so an agent that minds the window leaves the launcher no more to keep than that,
 * however small the pieces are. */
static void small_pieces_fill_the_window_too(void **state)
{
    dsc_message_out out = { .alloc = alloc };
    const dsc_message_output piece = { 1, 2, 1, ".", 1 };
    size_t under_way = dsc_message_put_output(&out, &piece);
    dsc_frame frame = only_frame(&out);
    assert_int_equal(under_way, dsc_frame_bytes(&frame));
    out.count = 0;
    under_way = dsc_message_put_output_end(&out, &piece);
    frame = only_frame(&out);
    assert_int_equal(under_way, dsc_frame_bytes(&frame));
    while (under_way < DSC_MESSAGE_WINDOW_BYTES)
        under_way += dsc_message_put_output(&out, &piece);
    assert_int_equal(under_way, out.count);
    dsc_message_out_close(&out);
}

/* ---- channels ---- */

static void frames_come_whole_out_of_pieces(void **state)
{
    dsc_message_out out = { .alloc = alloc };
    int fd[2], back[2];
    dsc_channel channel;
    dsc_frame frame;
    char big[5000];
    memset(big, 'x', sizeof big);
    dsc_message_put(&out, "welcome\n\x16\x02 dsc", 14); /* a login's words, the magic's beginning among them */
    dsc_message_put(&out, DSC_MESSAGE_MAGIC, DSC_MESSAGE_MAGIC_BYTES);
    dsc_message_put_ack(&out, 77);
    dsc_message_put_output(&out, &(dsc_message_output){ 1, 0, 1, big, sizeof big });
    dsc_message_put_ack(&out, 78);
    assert_int_equal(pipe(fd), 0);
    assert_int_equal(pipe(back), 0);
    dsc_channel_open(&channel, alloc, fd[0], back[1], 8192);
    bool greeted = false;
    int frames = 0;
    for (size_t i = 0; i < out.count; i++) {
        assert_int_equal(write(fd[1], out.bytes + i, 1), 1);
        dsc_channel_read(&channel);
        greeted = greeted || dsc_channel_find_magic(&channel);
        while (greeted && dsc_channel_next(&channel, &frame)) {
            uint64_t number = 0;
            dsc_message_output output;
            frames++;
            if (frames == 2) {
                assert_true(dsc_message_get_output(&frame, &output));
                assert_int_equal(output.bytes, sizeof big);
                assert_memory_equal(output.text, big, sizeof big);
            } else {
                assert_true(dsc_message_get_ack(&frame, &number));
                assert_int_equal(number, frames == 1 ? 77 : 78);
            }
        }
    }
    assert_int_equal(frames, 3);
    assert_false(channel.broken || channel.eof);
    close(fd[1]);
    dsc_channel_read(&channel);
    assert_true(channel.eof);
    close(back[0]);
    dsc_channel_close(&channel);
    dsc_message_out_close(&out);
}

static void lengths_that_cannot_be_break_the_channel(void **state)
{
    static const uint8_t bad[][5] = { { 0, 0, 0, 0, 'A' }, { 0, 0, 1, 0, 'A' }, { 0xff, 0xff, 0xff, 0xff, 'A' } };
    for (size_t i = 0; i < DSC_COUNT(bad); i++) {
        int fd[2], back[2];
        dsc_channel channel;
        dsc_frame frame;
        assert_int_equal(pipe(fd), 0);
        assert_int_equal(pipe(back), 0);
        dsc_channel_open(&channel, alloc, fd[0], back[1], 8192);
        assert_int_equal(write(fd[1], bad[i], 5), 5);
        dsc_channel_read(&channel);
        assert_false(dsc_channel_next(&channel, &frame));
        assert_true(channel.broken);
        close(fd[1]);
        close(back[0]);
        dsc_channel_close(&channel);
    }
}

/* Bytes that cannot be written at once are queued and sent in order. */
static void a_full_pipe_makes_the_queue_wait(void **state)
{
    int fd[2], back[2];
    dsc_channel channel, reader;
    dsc_frame frame;
    uint64_t number = 0, expected = 0;
    assert_int_equal(pipe(fd), 0);
    assert_int_equal(pipe(back), 0);
    dsc_channel_open(&channel, alloc, back[0], fd[1], 64);
    dsc_channel_open(&reader, alloc, fd[0], back[1], 64);
    for (uint64_t i = 0; i < 20000; i++)
        dsc_message_put_ack(&channel.queue, i);
    dsc_channel_flush(&channel);
    assert_true(dsc_channel_waits(&channel));
    while (expected < 20000) {
        dsc_channel_read(&reader);
        while (dsc_channel_next(&reader, &frame)) {
            assert_true(dsc_message_get_ack(&frame, &number));
            assert_int_equal(number, expected++);
        }
        dsc_channel_flush(&channel);
    }
    assert_false(dsc_channel_waits(&channel));
    dsc_channel_close(&channel);
    dsc_channel_close(&reader);
}

/* A link that is always a little slower than the ranks: the queue is never empty, and must not keep what is sent. */
static void a_queue_that_is_never_empty_does_not_grow(void **state)
{
    enum { ROUND_BYTES = 32 * 1024, ROUNDS = 200 };
    int fd[2], back[2];
    dsc_channel channel;
    static uint8_t text[ROUND_BYTES], seen[ROUND_BYTES];
    assert_int_equal(pipe(fd), 0);
    assert_int_equal(pipe(back), 0);
    dsc_channel_open(&channel, alloc, back[0], fd[1], 64);
    for (int i = 0; i < 4; i++) /* more than a pipe takes */
        dsc_message_put(&channel.queue, text, sizeof text);
    for (size_t round = 0; round < ROUNDS; round++) {
        memset(text, (int)(round % 251 + 1), sizeof text);
        dsc_message_put(&channel.queue, text, sizeof text);
        dsc_channel_flush(&channel);
        assert_true(dsc_channel_waits(&channel));
        for (size_t have = 0; have < sizeof seen;)
            have += (size_t)read(fd[0], seen + have, sizeof seen - have);
        for (size_t i = 0; i < sizeof seen; i++)
            assert_int_equal(seen[i], round < 4 ? 0 : (round - 4) % 251 + 1);
        dsc_channel_flush(&channel);
    }
    assert_true(channel.queue.capacity <= 16 * ROUND_BYTES);
    close(fd[0]);
    close(back[1]);
    dsc_channel_close(&channel);
}

int main(void)
{
    const struct CMUnitTest all[] = {
        cmocka_unit_test_setup_teardown(orders_and_notices, setup, teardown),
        cmocka_unit_test_setup_teardown(flights, setup, teardown),
        cmocka_unit_test_setup_teardown(numbers_out_of_range, setup, teardown),
        cmocka_unit_test_setup_teardown(hellos_and_problems, setup, teardown),
        cmocka_unit_test_setup_teardown(tasks, setup, teardown),
        cmocka_unit_test_setup_teardown(huge_counts, setup, teardown),
        cmocka_unit_test_setup_teardown(small_pieces_fill_the_window_too, setup, teardown),
        cmocka_unit_test_setup_teardown(frames_come_whole_out_of_pieces, setup, teardown),
        cmocka_unit_test_setup_teardown(lengths_that_cannot_be_break_the_channel, setup, teardown),
        cmocka_unit_test_setup_teardown(a_full_pipe_makes_the_queue_wait, setup, teardown),
        cmocka_unit_test_setup_teardown(a_queue_that_is_never_empty_does_not_grow, setup, teardown),
    };
    return cmocka_run_group_tests_name("launch_message", all, NULL, NULL);
}
