/* message.c - see message.h. SPDX-License-Identifier: Apache-2.0 */
#include "launcher/protocol/message.h"

#include <stdio.h>
#include <string.h>

/* ---- writing ---- */

void dsc_message_out_close(dsc_message_out *out)
{
    if (out->alloc != NULL)
        dsc_alloc_free(out->alloc, out->bytes);
    *out = (dsc_message_out){ .alloc = out->alloc };
}

/* Fewer bytes stay than go, so that each byte is moved at most once on the average. */
void dsc_message_out_drop(dsc_message_out *out, size_t *done)
{
    if (*done < out->count - *done)
        return;
    if (*done < out->count)
        memmove(out->bytes, out->bytes + *done, out->count - *done);
    out->count -= *done;
    *done = 0;
}

void dsc_message_put(dsc_message_out *out, const void *bytes, size_t count)
{
    if (out->failed || count == 0)
        return;
    if (out->count + count > out->capacity) {
        size_t capacity = out->capacity > 0 ? out->capacity : 1024;
        uint8_t *grown = NULL;
        while (capacity < out->count + count)
            capacity *= 2;
        if (dsc_alloc_zeroed(out->alloc, DSC_TAG_CONTROL, (int64_t)capacity, 1, &grown, NULL) != DSC_OK) {
            out->failed = true;
            return;
        }
        if (out->count > 0)
            memcpy(grown, out->bytes, out->count);
        dsc_alloc_free(out->alloc, out->bytes);
        out->bytes = grown;
        out->capacity = capacity;
    }
    memcpy(out->bytes + out->count, bytes, count);
    out->count += count;
}

static void put_number(dsc_message_out *out, uint64_t value, size_t count)
{
    uint8_t bytes[8];
    for (size_t i = 0; i < count; i++)
        bytes[i] = (uint8_t)(value >> 8 * i);
    dsc_message_put(out, bytes, count);
}

static void put_u8(dsc_message_out *out, unsigned value) { put_number(out, value, 1); }
static void put_u32(dsc_message_out *out, uint32_t value) { put_number(out, value, 4); }
static void put_i32(dsc_message_out *out, int32_t value) { put_number(out, (uint32_t)value, 4); }
static void put_u64(dsc_message_out *out, uint64_t value) { put_number(out, value, 8); }

static void put_text(dsc_message_out *out, const char *text)
{
    const size_t bytes = strlen(text);
    DSC_ASSERT(bytes <= UINT32_MAX);
    put_u32(out, (uint32_t)bytes);
    dsc_message_put(out, text, bytes);
}

static void put_texts(dsc_message_out *out, char *const *texts)
{
    uint32_t count = 0;
    while (texts != NULL && texts[count] != NULL)
        count++;
    put_u32(out, count);
    for (uint32_t i = 0; i < count; i++)
        put_text(out, texts[i]);
}

size_t dsc_message_begin(dsc_message_out *out, dsc_frame_kind kind)
{
    const size_t begun = out->count;
    put_u32(out, 0);
    put_u8(out, (unsigned)kind);
    return begun;
}

void dsc_message_end(dsc_message_out *out, size_t begun)
{
    if (out->failed)
        return;
    const size_t count = out->count - begun - 4;
    for (size_t i = 0; i < 4; i++)
        out->bytes[begun + i] = (uint8_t)(count >> 8 * i);
}

/* ---- reading ---- */

static const uint8_t *get(dsc_message_in *in, size_t count)
{
    const uint8_t *at = in->at;
    if (in->bad || count > in->left) {
        in->bad = true;
        return NULL;
    }
    in->at += count;
    in->left -= count;
    return at;
}

static uint64_t get_number(dsc_message_in *in, size_t count)
{
    const uint8_t *bytes = get(in, count);
    uint64_t value = 0;
    for (size_t i = 0; bytes != NULL && i < count; i++)
        value |= (uint64_t)bytes[i] << 8 * i;
    return value;
}

static uint32_t get_u32(dsc_message_in *in) { return (uint32_t)get_number(in, 4); }
static uint64_t get_u64(dsc_message_in *in) { return get_number(in, 8); }

/* A number from `min` to `max`. */
static int32_t get_i32(dsc_message_in *in, int32_t min, int32_t max)
{
    const int32_t value = (int32_t)get_u32(in);
    if (in->bad || value < min || value > max) {
        in->bad = true;
        return min;
    }
    return value;
}

static bool get_bool(dsc_message_in *in)
{
    const uint64_t value = get_number(in, 1);
    in->bad = in->bad || value > 1;
    return value == 1;
}

/* A text without NUL, copied and terminated. */
static void get_text(dsc_message_in *in, char *out, size_t out_bytes)
{
    const uint32_t bytes = get_u32(in);
    const uint8_t *text = bytes < out_bytes ? get(in, bytes) : NULL;
    out[0] = 0;
    if (text == NULL || memchr(text, 0, bytes) != NULL) {
        in->bad = true;
        return;
    }
    memcpy(out, text, bytes);
    out[bytes] = 0;
}

static bool all_taken(const dsc_message_in *in) { return !in->bad && in->left == 0; }

/* ---- hello ---- */

void dsc_message_put_hello(dsc_message_out *out, const dsc_hello *hello)
{
    const size_t begun = dsc_message_begin(out, DSC_FRAME_HELLO);
    put_u32(out, hello->protocol);
    put_text(out, hello->version);
    put_text(out, hello->path);
    put_text(out, hello->name);
    put_text(out, hello->own_addr);
    put_text(out, hello->coordinator_addr);
    dsc_message_end(out, begun);
}

bool dsc_message_get_hello(const dsc_frame *frame, dsc_hello *hello)
{
    dsc_message_in in = dsc_message_in_of(frame);
    memset(hello, 0, sizeof *hello);
    hello->protocol = get_u32(&in);
    get_text(&in, hello->version, sizeof hello->version);
    if (hello->protocol != DSC_MESSAGE_PROTOCOL)
        return !in.bad;
    get_text(&in, hello->path, sizeof hello->path);
    get_text(&in, hello->name, sizeof hello->name);
    get_text(&in, hello->own_addr, sizeof hello->own_addr);
    get_text(&in, hello->coordinator_addr, sizeof hello->coordinator_addr);
    return all_taken(&in);
}

/* ---- orders and notices ---- */

void dsc_message_put_order(dsc_message_out *out, const dsc_order *order)
{
    const size_t begun = dsc_message_begin(out, DSC_FRAME_ORDER);
    put_u64(out, order->number);
    put_u32(out, order->epoch);
    put_i32(out, (int32_t)order->phase);
    put_i32(out, order->term_signal);
    put_i32(out, order->grace_ms);
    put_u32(out, order->signal_count);
    put_i32(out, order->signal);
    put_u32(out, order->ends_seen);
    put_u32(out, order->command_count);
    put_i32(out, order->command.slot);
    put_i32(out, order->command.signal);
    put_u8(out, order->reader_gone[0]);
    put_u8(out, order->reader_gone[1]);
    dsc_message_end(out, begun);
}

bool dsc_message_get_order(const dsc_frame *frame, dsc_order *order)
{
    dsc_message_in in = dsc_message_in_of(frame);
    order->number = get_u64(&in);
    order->epoch = get_u32(&in);
    order->phase = (dsc_order_phase)get_i32(&in, DSC_ORDER_WAIT, DSC_ORDER_QUIT);
    order->term_signal = get_i32(&in, 0, 64);
    order->grace_ms = get_i32(&in, 0, INT32_MAX);
    order->signal_count = get_u32(&in);
    order->signal = get_i32(&in, 0, 64);
    order->ends_seen = get_u32(&in);
    order->command_count = get_u32(&in);
    order->command.slot = get_i32(&in, 0, DSC_HOST_SLOTS_MAX - 1);
    order->command.signal = get_i32(&in, 0, 64);
    order->reader_gone[0] = get_bool(&in);
    order->reader_gone[1] = get_bool(&in);
    return all_taken(&in);
}

void dsc_message_put_notice(dsc_message_out *out, const dsc_notice *notice)
{
    const size_t begun = dsc_message_begin(out, DSC_FRAME_NOTICE);
    put_u64(out, notice->number);
    put_u32(out, notice->epoch);
    put_i32(out, (int32_t)notice->phase);
    put_u8(out, notice->cut_off);
    put_u8(out, notice->start_failed);
    put_u8(out, notice->drained);
    put_u32(out, notice->commands_done);
    put_u32(out, notice->ends_from);
    put_i32(out, notice->end_count);
    for (int32_t i = 0; i < notice->end_count; i++) {
        const dsc_rank_end *end = &notice->end[i];
        put_i32(out, end->rank);
        put_i32(out, end->pid);
        put_i32(out, end->code);
        put_i32(out, end->signal);
        put_i32(out, end->exec_errno);
    }
    dsc_message_end(out, begun);
}

bool dsc_message_get_notice(const dsc_frame *frame, dsc_notice *notice)
{
    dsc_message_in in = dsc_message_in_of(frame);
    memset(notice, 0, sizeof *notice);
    notice->number = get_u64(&in);
    notice->epoch = get_u32(&in);
    notice->phase = (dsc_agent_phase)get_i32(&in, DSC_AGENT_IDLE, DSC_AGENT_GONE);
    notice->cut_off = get_bool(&in);
    notice->start_failed = get_bool(&in);
    notice->drained = get_bool(&in);
    notice->commands_done = get_u32(&in);
    notice->ends_from = get_u32(&in);
    notice->end_count = get_i32(&in, 0, DSC_NOTICE_ENDS_MAX);
    for (int32_t i = 0; i < notice->end_count && !in.bad; i++)
        notice->end[i] = (dsc_rank_end){ .rank = get_i32(&in, 0, DSC_LAUNCHER_RANKS_MAX - 1),
                                         .pid = get_i32(&in, 0, INT32_MAX),
                                         .code = get_i32(&in, 0, 255),
                                         .signal = get_i32(&in, 0, 127),
                                         .exec_errno = get_i32(&in, 0, 4095) };
    return all_taken(&in);
}

void dsc_message_put_packet(dsc_message_out *out, dsc_frame_kind kind, const dsc_message_packet *packet)
{
    const size_t begun = dsc_message_begin(out, kind);
    put_u32(out, packet->epoch);
    put_i32(out, packet->index);
    dsc_message_put(out, packet->bytes, packet->count);
    dsc_message_end(out, begun);
}

/* The receiver reads the packet itself. */
bool dsc_message_get_packet(const dsc_frame *frame, dsc_message_packet *packet)
{
    dsc_message_in in = dsc_message_in_of(frame);
    packet->epoch = get_u32(&in);
    packet->index = get_i32(&in, 0, DSC_HOST_SLOTS_MAX - 1);
    packet->bytes = in.at;
    packet->count = in.left;
    return !in.bad && in.left <= DSC_WORLD_PACKET_MAX;
}

void dsc_message_put_ack(dsc_message_out *out, uint64_t bytes)
{
    const size_t begun = dsc_message_begin(out, DSC_FRAME_ACK);
    put_u64(out, bytes);
    dsc_message_end(out, begun);
}

bool dsc_message_get_ack(const dsc_frame *frame, uint64_t *bytes)
{
    dsc_message_in in = dsc_message_in_of(frame);
    *bytes = get_u64(&in);
    return all_taken(&in);
}

/* ---- flights ---- */

static void put_call(dsc_message_out *out, const dsc_flight_call *call)
{
    put_u64(out, (uint64_t)call->number);
    put_u64(out, call->history);
    put_u64(out, (uint64_t)call->bytes);
    put_u64(out, (uint64_t)call->step);
    put_u64(out, (uint64_t)call->age_ns);
    put_u64(out, (uint64_t)call->ended_ns);
    put_i32(out, call->detail);
    put_i32(out, call->peer);
    put_u8(out, (unsigned)call->state);
    put_text(out, call->op);
    put_text(out, call->module);
}

void dsc_message_put_flight(dsc_message_out *out, const dsc_message_flight *flight)
{
    const size_t begun = dsc_message_begin(out, DSC_FRAME_FLIGHT);
    const dsc_flight_view *view = &flight->view;
    put_u32(out, flight->epoch);
    put_i32(out, flight->index);
    put_i32(out, view->pid);
    put_u8(out, (unsigned char)view->process);
    put_u64(out, (uint64_t)view->timeout_ns);
    put_i32(out, view->channel_count);
    for (int32_t i = 0; i < view->channel_count; i++) {
        const dsc_flight_channel *lane = &view->channel[i];
        put_u64(out, lane->id);
        put_i32(out, lane->channel);
        put_i32(out, lane->rank);
        put_i32(out, lane->size);
        put_u64(out, (uint64_t)lane->asked);
        put_i32(out, lane->call_count);
        for (int32_t c = 0; c < lane->call_count; c++)
            put_call(out, &lane->call[c]);
    }
    dsc_message_end(out, begun);
}

/* A number that is not negative. */
static int64_t get_i64(dsc_message_in *in)
{
    const uint64_t value = get_u64(in);
    in->bad = in->bad || value > INT64_MAX;
    return in->bad ? 0 : (int64_t)value;
}

static void get_name(dsc_message_in *in, char out[DSC_FLIGHT_NAME_BYTES])
{
    get_text(in, out, DSC_FLIGHT_NAME_BYTES);
    dsc_text_printable(out);
}

static void get_call(dsc_message_in *in, dsc_flight_call *call)
{
    call->number = get_i64(in);
    call->history = get_u64(in);
    call->bytes = get_i64(in);
    call->step = (int64_t)get_u64(in);
    call->age_ns = get_i64(in);
    call->ended_ns = get_i64(in);
    call->detail = (int32_t)get_u32(in);
    call->peer = (int32_t)get_u32(in);
    const uint64_t state = get_number(in, 1);
    in->bad = in->bad || state > DSC_FLIGHT_QUEUED;
    call->state = in->bad ? DSC_FLIGHT_DONE : (dsc_flight_state)state;
    get_name(in, call->op);
    get_name(in, call->module);
}

bool dsc_message_get_flight(const dsc_frame *frame, dsc_message_flight *flight)
{
    dsc_message_in in = dsc_message_in_of(frame);
    dsc_flight_view *view = &flight->view;
    memset(flight, 0, sizeof *flight);
    flight->epoch = get_u32(&in);
    flight->index = get_i32(&in, 0, DSC_HOST_SLOTS_MAX - 1);
    view->known = true;
    view->pid = get_i32(&in, 0, INT32_MAX);
    view->process = (char)get_number(&in, 1);
    view->timeout_ns = get_i64(&in);
    view->channel_count = get_i32(&in, 0, DSC_FLIGHT_CHANNELS);
    for (int32_t i = 0; i < view->channel_count && !in.bad; i++) {
        dsc_flight_channel *lane = &view->channel[i];
        lane->id = get_u64(&in);
        lane->channel = get_i32(&in, INT32_MIN, INT32_MAX);
        lane->rank = get_i32(&in, INT32_MIN, INT32_MAX);
        lane->size = get_i32(&in, INT32_MIN, INT32_MAX);
        lane->asked = get_i64(&in);
        lane->call_count = get_i32(&in, 0, DSC_FLIGHT_CALLS);
        for (int32_t c = 0; c < lane->call_count && !in.bad; c++)
            get_call(&in, &lane->call[c]);
    }
    return all_taken(&in);
}

/* ---- output and problems ---- */

static size_t begin_output(dsc_message_out *out, dsc_frame_kind kind, const dsc_message_output *output)
{
    const size_t begun = dsc_message_begin(out, kind);
    put_u32(out, output->epoch);
    put_i32(out, output->index);
    put_u8(out, output->which == 1);
    return begun;
}

size_t dsc_message_put_output(dsc_message_out *out, const dsc_message_output *output)
{
    const size_t begun = begin_output(out, DSC_FRAME_OUTPUT, output);
    dsc_message_put(out, output->text, output->bytes);
    dsc_message_end(out, begun);
    return out->count - begun;
}

size_t dsc_message_put_output_end(dsc_message_out *out, const dsc_message_output *output)
{
    const size_t begun = begin_output(out, DSC_FRAME_OUTPUT_END, output);
    dsc_message_end(out, begun);
    return out->count - begun;
}

static void get_stream(dsc_message_in *in, dsc_message_output *output)
{
    *output = (dsc_message_output){ .epoch = get_u32(in), .index = 0 };
    output->index = get_i32(in, 0, DSC_HOST_SLOTS_MAX - 1);
    output->which = get_bool(in);
}

bool dsc_message_get_output(const dsc_frame *frame, dsc_message_output *output)
{
    dsc_message_in in = dsc_message_in_of(frame);
    get_stream(&in, output);
    output->text = (const char *)in.at;
    output->bytes = in.left;
    return !in.bad && in.left > 0;
}

bool dsc_message_get_output_end(const dsc_frame *frame, dsc_message_output *output)
{
    dsc_message_in in = dsc_message_in_of(frame);
    get_stream(&in, output);
    return all_taken(&in);
}

void dsc_message_put_problem(dsc_message_out *out, const dsc_problem *problem)
{
    const size_t begun = dsc_message_begin(out, DSC_FRAME_PROBLEM);
    put_u32(out, problem->epoch);
    put_i32(out, (int32_t)problem->error.status);
    put_text(out, problem->error.where);
    put_text(out, problem->error.message);
    dsc_message_end(out, begun);
}

bool dsc_message_get_problem(const dsc_frame *frame, dsc_problem *problem)
{
    dsc_message_in in = dsc_message_in_of(frame);
    problem->epoch = get_u32(&in);
    problem->error = (dsc_error)DSC_ERROR_INIT;
    problem->error.status = (dsc_status)get_i32(&in, DSC_ERR_CONFIG, DSC_ERR_DEVICE);
    get_text(&in, problem->error.where, sizeof problem->error.where);
    get_text(&in, problem->error.message, sizeof problem->error.message);
    dsc_text_printable(problem->error.where);
    dsc_text_printable(problem->error.message);
    return all_taken(&in);
}

/* ---- tasks ---- */

void dsc_message_put_task(dsc_message_out *out, uint32_t epoch, const dsc_host_task *task)
{
    const size_t begun = dsc_message_begin(out, DSC_FRAME_TASK);
    put_u32(out, epoch);
    put_i32(out, task->world_size);
    put_i32(out, task->host);
    put_i32(out, task->host_count);
    put_i32(out, task->first_rank);
    put_i32(out, task->rank_count);
    put_i32(out, task->master_port);
    put_i32(out, task->tty_columns);
    put_i32(out, task->thread_count);
    put_i32(out, task->restart_count);
    put_i32(out, task->restart_limit);
    put_u8(out, task->bind_cores);
    put_u8(out, task->one_stream);
    put_u8(out, task->rank0_only);
    put_i32(out, task->late_ms);
    put_i32(out, task->disk_ms);
    put_i32(out, task->least_ranks);
    put_i32(out, task->most_ranks);
    put_text(out, task->job_token);
    put_text(out, task->master_addr);
    put_u8(out, task->devices != NULL);
    put_text(out, task->devices != NULL ? task->devices : "");
    put_text(out, task->core_list);
    put_text(out, task->folder);
    put_texts(out, task->argv);
    put_texts(out, task->exports);
    dsc_message_end(out, begun);
}

/* Texts of a message, all in one block: where its next byte is written. The block is as long as the frame plus a
 * terminator for each text, and a text costs four bytes in the frame, so that it always suffices. */
static char *keep_text(dsc_message_in *in, char **to)
{
    const uint32_t bytes = get_u32(in);
    const uint8_t *text = get(in, bytes);
    char *kept = *to;
    if (text == NULL || memchr(text, 0, bytes) != NULL) {
        in->bad = true;
        return kept;
    }
    memcpy(kept, text, bytes);
    kept[bytes] = 0;
    *to += bytes + 1;
    return kept;
}

static char **keep_texts(dsc_message_in *in, char ***list, char **to)
{
    const uint32_t count = get_u32(in);
    char **kept = *list;
    if (in->bad || count > in->left / 4) { /* each text has at least its length */
        in->bad = true;
        return kept;
    }
    for (uint32_t i = 0; i < count && !in->bad; i++)
        kept[i] = keep_text(in, to);
    if (!in->bad)
        *list += count + 1;
    return kept;
}

/* Numbers that the agent counts with must fit each other. */
static bool is_sound(const dsc_host_task *task)
{
    return task->host < task->host_count && task->first_rank + task->rank_count <= task->world_size &&
           dsc_job_token_is_one(task->job_token) && task->argv[0] != NULL && task->argv[0][0] != 0 &&
           task->folder[0] == '/';
}

dsc_status dsc_message_get_task(dsc_alloc *alloc, const dsc_frame *frame, uint32_t *epoch, dsc_host_task *task,
                             dsc_error *err)
{
    dsc_message_in in = dsc_message_in_of(frame);
    char *block = NULL, *devices = NULL;
    /* Pointers of at most count/4 texts and two ends, then the texts. */
    const size_t pointer_bytes = (frame->count / 4 + 2) * sizeof(char *);
    *task = (dsc_host_task){ .devices = NULL };
    if (frame->count > DSC_MESSAGE_TASK_MAX)
        return DSC_FAIL(err, DSC_ERR_INPUT, "dsc-launch --agent", "the launcher's message is too long");
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, 1, (int64_t)(pointer_bytes + 2 * frame->count + 64), &block, err));
    task->owned = block;
    char **list = (char **)(void *)block;
    char *to = block + pointer_bytes;
    *epoch = get_u32(&in);
    task->world_size = get_i32(&in, 1, DSC_LAUNCHER_RANKS_MAX);
    task->host = get_i32(&in, 0, DSC_HOST_COUNT_MAX - 1);
    task->host_count = get_i32(&in, 1, DSC_HOST_COUNT_MAX);
    task->first_rank = get_i32(&in, 0, DSC_LAUNCHER_RANKS_MAX - 1);
    task->rank_count = get_i32(&in, 1, DSC_HOST_SLOTS_MAX);
    task->master_port = get_i32(&in, 1, 65535);
    task->tty_columns = get_i32(&in, 0, 65535);
    task->thread_count = get_i32(&in, 0, 1 << 20);
    task->restart_count = get_i32(&in, 0, 1 << 20);
    task->restart_limit = get_i32(&in, 0, 1 << 20);
    task->bind_cores = get_bool(&in);
    task->one_stream = get_bool(&in);
    task->rank0_only = get_bool(&in);
    task->late_ms = get_i32(&in, 0, INT32_MAX);
    task->disk_ms = get_i32(&in, 0, INT32_MAX);
    task->least_ranks = get_i32(&in, 0, DSC_WORLD_RANKS_MAX);
    task->most_ranks = get_i32(&in, task->least_ranks, DSC_WORLD_RANKS_MAX);
    get_text(&in, task->job_token, sizeof task->job_token);
    task->master_addr = keep_text(&in, &to);
    const bool has_devices = get_bool(&in);
    devices = keep_text(&in, &to);
    task->devices = has_devices ? devices : NULL;
    task->core_list = keep_text(&in, &to);
    task->folder = keep_text(&in, &to);
    task->argv = keep_texts(&in, &list, &to);
    task->exports = keep_texts(&in, &list, &to);
    if (all_taken(&in) && is_sound(task))
        return DSC_OK;
    dsc_host_task_close(alloc, task);
    return DSC_FAIL(err, DSC_ERR_INPUT, "dsc-launch --agent", "the launcher's message is not what it should be");
}
