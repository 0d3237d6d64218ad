/* message.h - control messages of coordinator and agents as bytes: a stream of frames in each direction.
 *
 *   frame := length (4 bytes, of the rest) kind (1 byte) payload
 *
 * Numbers are little-endian, a text is its length (4 bytes) and its bytes, so that nothing is ever quoted. Input is
 * untrusted: every reader checks every length and refuses bytes that are left over.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_LAUNCHER_PROTOCOL_MESSAGE_H
#define DSC_LAUNCHER_PROTOCOL_MESSAGE_H

#include "base/flight_log.h"
#include "launcher/protocol/control.h"
#include "launcher/protocol/host_task.h"

/* Changes with every change of a message's bytes. */
#define DSC_MESSAGE_PROTOCOL 4u
/* The agent's first bytes. Text of a login shell before these bytes does not belong to the stream. */
#define DSC_MESSAGE_MAGIC "\x16\x02" "dsc-agent"

enum {
    DSC_MESSAGE_MAGIC_BYTES = 11,
    DSC_MESSAGE_HEADER_BYTES = 5,
    DSC_MESSAGE_TASK_MAX = 16 * 1024 * 1024, /* several times what a process can be given */
    DSC_MESSAGE_REPORT_MAX = 32 * 1024,      /* any other payload */
    DSC_MESSAGE_WINDOW_BYTES = 512 * 1024,   /* limit of frames with output in transit from one agent */
};

typedef enum dsc_frame_kind {
    DSC_FRAME_HELLO = 'H',  /* agent: who it is. Always the first */
    DSC_FRAME_NOTICE = 'N', /* agent */
    DSC_FRAME_OUTPUT = 'D', /* agent: bytes of one rank's stream */
    DSC_FRAME_OUTPUT_END = 'E',
    DSC_FRAME_FLIGHT = 'F',  /* agent: what one rank's collectives are doing; before the notice of the same time */
    DSC_FRAME_PROBLEM = 'P', /* agent: why the ranks could not be started */
    DSC_FRAME_REPORT = 'R',  /* agent: a report of one rank about its world, for the coordinator's membership */
    DSC_FRAME_CALL = 'C',    /* coordinator: the answer */
    DSC_FRAME_ORDER = 'O',   /* coordinator */
    DSC_FRAME_TASK = 'T',    /* coordinator: what to start */
    DSC_FRAME_ACK = 'A'      /* coordinator: how many bytes of frames with output it has taken in all */
} dsc_frame_kind;

typedef struct dsc_frame {
    uint8_t kind;
    const uint8_t *bytes; /* borrowed until the next call on its channel */
    size_t count;
} dsc_frame;

/* ---- writing and reading values ---------------------------------------------------------------------------------- */

/* Bytes to be sent; grows. After a failed allocation `failed` stays set and nothing more is kept. */
typedef struct dsc_message_out {
    dsc_alloc *alloc;
    uint8_t *bytes;
    size_t count, capacity;
    bool failed;
} dsc_message_out;

void dsc_message_out_close(dsc_message_out *out);
void dsc_message_put(dsc_message_out *out, const void *bytes, size_t count);
/* The first *done bytes are not needed any more: drops them, and sets *done to 0, when that is worth the moving. */
void dsc_message_out_drop(dsc_message_out *out, size_t *done);
/* A frame is begun, filled with put_*, and ended: its length is written then. */
size_t dsc_message_begin(dsc_message_out *out, dsc_frame_kind kind);
void dsc_message_end(dsc_message_out *out, size_t begun);

/* Values of a received frame; after a value that is not there `bad` stays set and everything reads as 0 or "". */
typedef struct dsc_message_in {
    const uint8_t *at;
    size_t left;
    bool bad;
} dsc_message_in;

/* Size of the frame in the stream. */
static inline size_t dsc_frame_bytes(const dsc_frame *frame) { return DSC_MESSAGE_HEADER_BYTES + frame->count; }

static inline dsc_message_in dsc_message_in_of(const dsc_frame *frame)
{
    return (dsc_message_in){ frame->bytes, frame->count, false };
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */

enum { DSC_MESSAGE_NAME_BYTES = 256 };

typedef struct dsc_hello {
    uint32_t protocol;
    char version[DSC_MESSAGE_NAME_BYTES]; /* these two stay readable in every protocol */
    char path[1024];                   /* path of the agent's own file */
    char name[DSC_MESSAGE_NAME_BYTES];    /* gethostname */
    char own_addr[64];                 /* by which it was reached, and of who reached it; "" when not by ssh */
    char coordinator_addr[64];
} dsc_hello;

typedef struct dsc_problem {
    uint32_t epoch;
    dsc_error error;
} dsc_problem;

typedef struct dsc_message_flight {
    uint32_t epoch;
    int32_t index; /* rank on its host */
    dsc_flight_view view;
} dsc_message_flight;

typedef struct dsc_message_output {
    uint32_t epoch;
    int32_t index; /* rank on its host */
    int which;
    const char *text; /* borrowed from the frame */
    size_t bytes;
} dsc_message_output;

/* A packet of base/world_channel.h, from or to a rank. */
typedef struct dsc_message_packet {
    uint32_t epoch;
    int32_t index;        /* rank on its host */
    const uint8_t *bytes; /* borrowed from the frame */
    size_t count;
} dsc_message_packet;

void dsc_message_put_packet(dsc_message_out *out, dsc_frame_kind kind, const dsc_message_packet *packet);
bool dsc_message_get_packet(const dsc_frame *frame, dsc_message_packet *packet);
void dsc_message_put_hello(dsc_message_out *out, const dsc_hello *hello);
void dsc_message_put_order(dsc_message_out *out, const dsc_order *order);
void dsc_message_put_notice(dsc_message_out *out, const dsc_notice *notice);
void dsc_message_put_flight(dsc_message_out *out, const dsc_message_flight *flight);
void dsc_message_put_problem(dsc_message_out *out, const dsc_problem *problem);
/* These two return how much of the window they take: whole frames, so that it also bounds many small pieces. */
size_t dsc_message_put_output(dsc_message_out *out, const dsc_message_output *output);
size_t dsc_message_put_output_end(dsc_message_out *out, const dsc_message_output *output);
void dsc_message_put_ack(dsc_message_out *out, uint64_t bytes);
/* Everything but launcher_pid, program and env, which are the other host's. */
void dsc_message_put_task(dsc_message_out *out, uint32_t epoch, const dsc_host_task *task);

/* The readers return false for a malformed frame. A hello of another protocol: only its first two fields are read. */
bool dsc_message_get_hello(const dsc_frame *frame, dsc_hello *hello);
bool dsc_message_get_order(const dsc_frame *frame, dsc_order *order);
bool dsc_message_get_notice(const dsc_frame *frame, dsc_notice *notice);
bool dsc_message_get_flight(const dsc_frame *frame, dsc_message_flight *flight);
bool dsc_message_get_problem(const dsc_frame *frame, dsc_problem *problem);
bool dsc_message_get_output(const dsc_frame *frame, dsc_message_output *output);
bool dsc_message_get_output_end(const dsc_frame *frame, dsc_message_output *output);
bool dsc_message_get_ack(const dsc_frame *frame, uint64_t *bytes);
/* The texts are owned by the task: dsc_host_task_close. */
DSC_MUST_USE dsc_status dsc_message_get_task(dsc_alloc *alloc, const dsc_frame *frame, uint32_t *epoch,
                                          dsc_host_task *task, dsc_error *err);

/* ---- channel ----------------------------------------------------------------------------------------------------- */

/* One stream each way over descriptors that do not block. */
typedef struct dsc_channel {
    dsc_alloc *alloc;
    int in_fd, out_fd;  /* -1: closed; owned */
    dsc_message_out queue; /* [sent, queue.count) is not written yet */
    size_t sent;
    uint8_t *in;        /* in[taken, filled) was read and not taken */
    size_t taken, filled, capacity;
    size_t frame_max;
    bool eof;           /* nothing more comes */
    bool broken;        /* writing failed, or the input is not a stream of frames */
} dsc_channel;

/* frame_max: payloads that are longer break the channel. */
void dsc_channel_open(dsc_channel *channel, dsc_alloc *alloc, int in_fd, int out_fd, size_t frame_max);
void dsc_channel_close(dsc_channel *channel);
void dsc_channel_flush(dsc_channel *channel); /* as much as goes without waiting */
static inline bool dsc_channel_waits(const dsc_channel *channel) { return channel->sent < channel->queue.count; }
/* Reads once. */
void dsc_channel_read(dsc_channel *channel);
/* The next whole frame. */
bool dsc_channel_next(dsc_channel *channel, dsc_frame *frame);
/* Drops what comes before the magic, and that. False: it is not here yet. */
bool dsc_channel_find_magic(dsc_channel *channel);

#endif
