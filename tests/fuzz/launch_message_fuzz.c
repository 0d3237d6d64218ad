/* launch_message_fuzz.c - hostile bytes between the launcher and its agents: no crash, and what is taken is sound.
 *
 * The first byte names a message. 'R' and a kind: what follows is its payload. Else the message is made whole, and
 * triples (offset low, offset high, value) change its bytes. SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "launcher/coordinator/hang.h"
#include "launcher/protocol/message.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void check_end(const dsc_rank_end *end)
{
    DSC_ASSERT(end->rank >= 0 && end->rank < DSC_LAUNCHER_RANKS_MAX);
    DSC_ASSERT(end->code >= 0 && end->code <= 255);
}

static void check_task(dsc_alloc *alloc, const dsc_frame *frame)
{
    dsc_host_task task;
    uint32_t epoch = 0;
    dsc_error err = DSC_ERROR_INIT;
    if (dsc_message_get_task(alloc, frame, &epoch, &task, &err) != DSC_OK) {
        DSC_ASSERT(err.message[0] != 0);
        return;
    }
    DSC_ASSERT(task.rank_count > 0 && task.first_rank + task.rank_count <= task.world_size);
    DSC_ASSERT(task.host < task.host_count);
    DSC_ASSERT(strlen(task.job_token) == DSC_JOB_TOKEN_CHARS);
    size_t text_bytes = strlen(task.master_addr) + strlen(task.folder) + strlen(task.core_list);
    for (char **at = task.argv; *at != NULL; at++)
        text_bytes += strlen(*at);
    for (char **at = task.exports; *at != NULL; at++)
        text_bytes += strlen(*at);
    DSC_ASSERT(text_bytes <= frame->count);
    dsc_host_task_close(alloc, &task);
}

/* Every accepted message can be evaluated, for any contents. */
static void check_view(const dsc_flight_view *view)
{
    static dsc_flight_view all[3];
    dsc_hang hang;
    DSC_ASSERT(view->channel_count >= 0 && view->channel_count <= DSC_FLIGHT_CHANNELS);
    for (int32_t i = 0; i < view->channel_count; i++)
        DSC_ASSERT(view->channel[i].call_count >= 0 && view->channel[i].call_count <= DSC_FLIGHT_CALLS);
    all[0] = *view;
    all[1] = *view;
    all[1].channel_count = view->channel_count / 2;
    all[2].known = true;
    for (int ended = 0; ended < 2; ended++)
        dsc_hang_find(all, 3, 1, ended == 1, &hang);
}

static void check_frame(dsc_alloc *alloc, const dsc_frame *frame)
{
    dsc_hello hello;
    dsc_order order;
    dsc_notice notice;
    dsc_problem problem;
    dsc_message_output output;
    static dsc_message_flight flight;
    uint64_t number = 0;
    switch (frame->kind) {
    case DSC_FRAME_HELLO:
        if (dsc_message_get_hello(frame, &hello))
            DSC_ASSERT(strlen(hello.version) <= frame->count);
        break;
    case DSC_FRAME_ORDER:
        if (dsc_message_get_order(frame, &order))
            DSC_ASSERT(order.phase <= DSC_ORDER_QUIT && order.signal >= 0 && order.signal <= 64);
        break;
    case DSC_FRAME_NOTICE:
        if (dsc_message_get_notice(frame, &notice))
            for (int32_t i = 0; i < notice.end_count; i++)
                check_end(&notice.end[i]);
        break;
    case DSC_FRAME_PROBLEM:
        if (dsc_message_get_problem(frame, &problem))
            DSC_ASSERT(problem.error.status != DSC_OK);
        break;
    case DSC_FRAME_OUTPUT:
        if (dsc_message_get_output(frame, &output))
            DSC_ASSERT(output.index >= 0 && output.which >= 0 && output.which < 2 && output.bytes < frame->count);
        break;
    case DSC_FRAME_FLIGHT:
        if (dsc_message_get_flight(frame, &flight))
            check_view(&flight.view);
        break;
    case DSC_FRAME_OUTPUT_END: (void)dsc_message_get_output_end(frame, &output); break;
    case DSC_FRAME_ACK: (void)dsc_message_get_ack(frame, &number); break;
    case DSC_FRAME_TASK: check_task(alloc, frame); break;
    default: break;
    }
}

static void make_message(dsc_message_out *out, uint8_t kind)
{
    char program[] = "train", flag[] = "--config", entry[] = "NCCL_DEBUG=INFO";
    char *argv[] = { program, flag, NULL }, *exports[] = { entry, NULL };
    const dsc_host_task task = { .world_size = 4, .host = 1, .host_count = 2, .first_rank = 2, .rank_count = 2,
                                 .master_port = 29500, .job_token = "0123456789abcdef0123456789abcdef",
                                 .master_addr = "10.0.0.1", .devices = "0,1", .core_list = "", .folder = "/work",
                                 .argv = argv, .exports = exports };
    const dsc_hello hello = { .protocol = DSC_MESSAGE_PROTOCOL, .version = "1", .path = "/bin/dsc", .name = "b" };
    const dsc_order order = { .number = 3, .epoch = 1, .phase = DSC_ORDER_END, .term_signal = 15, .grace_ms = 1000 };
    const dsc_notice notice = { .number = 3, .epoch = 1, .phase = DSC_AGENT_RUNS, .end_count = 2 };
    const dsc_problem problem = { 1, { .status = DSC_ERR_INPUT, .where = "PROGRAM", .message = "is not there" } };
    const dsc_message_output output = { 1, 1, 1, "text", 4 };
    static dsc_message_flight flight = { .epoch = 1, .view = { .pid = 7, .process = 'S', .channel_count = 2 } };
    for (int32_t i = 0; i < 2; i++)
        flight.view.channel[i] = (dsc_flight_channel) { .id = 5,
                                                        .channel = i,
                                                        .size = 3,
                                                        .call_count = 2,
                                                        .call = { { .number = 2, .op = "barrier" }, { .number = 1 } } };
    switch (kind) {
    case DSC_FRAME_FLIGHT: dsc_message_put_flight(out, &flight); break;
    case DSC_FRAME_HELLO: dsc_message_put_hello(out, &hello); break;
    case DSC_FRAME_ORDER: dsc_message_put_order(out, &order); break;
    case DSC_FRAME_NOTICE: dsc_message_put_notice(out, &notice); break;
    case DSC_FRAME_PROBLEM: dsc_message_put_problem(out, &problem); break;
    case DSC_FRAME_OUTPUT: dsc_message_put_output(out, &output); break;
    case DSC_FRAME_OUTPUT_END: dsc_message_put_output_end(out, &output); break;
    case DSC_FRAME_TASK: dsc_message_put_task(out, 1, &task); break;
    default: dsc_message_put_ack(out, 7); break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    dsc_error err = DSC_ERROR_INIT;
    dsc_alloc *alloc = NULL;
    if (bytes < 2 || dsc_alloc_open(&alloc, &err) != DSC_OK)
        return 0;
    dsc_message_out out = { .alloc = alloc };
    if (data[0] == 'R') {
        const size_t begun = dsc_message_begin(&out, (dsc_frame_kind)data[1]);
        dsc_message_put(&out, data + 2, bytes - 2);
        dsc_message_end(&out, begun);
    } else {
        make_message(&out, data[0]);
        for (size_t i = 1; i + 3 <= bytes; i += 3) {
            const size_t at = data[i] | (size_t)data[i + 1] << 8;
            out.bytes[DSC_MESSAGE_HEADER_BYTES + at % (out.count - DSC_MESSAGE_HEADER_BYTES)] = data[i + 2];
        }
    }
    /* Exactly sized, so that a sanitizer sees a byte read too far. */
    const size_t count = out.count - DSC_MESSAGE_HEADER_BYTES;
    uint8_t *exact = malloc(count > 0 ? count : 1);
    memcpy(exact, out.bytes + DSC_MESSAGE_HEADER_BYTES, count);
    const dsc_frame frame = { out.bytes[4], exact, count };
    check_frame(alloc, &frame);
    free(exact);
    dsc_message_out_close(&out);
    dsc_alloc_close(&alloc);
    return 0;
}
