/* virtual.h - a GPU on virtual clocks: it runs nothing, and says how long a step would take.
 *
 * The engine, zero and the transports give it the same work as a real GPU, in the same order. A launch moves its
 * stream's clock by the kernel's time, which follows from its arguments and the card's measured rates. Waits and events
 * move clocks as they do on a card, and the thread that calls has a clock too. Kernels of all streams share the card:
 * one runs at a time, and those of other streams fill the times in which one waits. Copies and exchanges run beside
 * them. Device memory has addresses and no pages; pinned memory reads as zeros. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_VIRTUAL_VIRTUAL_H
#define DSC_KERNELS_VIRTUAL_VIRTUAL_H

#include "kernels/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Rates of a card and of its links, as measured on a warm card under its power limit. Bytes count reads and writes.
 * Field names are those of bench/cards/NAME.json. */
typedef struct dsc_card_rates {
    char name[32];
    double memory_bytes; /* of the card */
    double multiprocessors;
    double product_flops; /* matrix products of 16-bit operands, large ones, a second */
    double product_flops_f32;
    double attention_forward_flops[2]; /* causal halves counted; heads of up to 64, and larger ones */
    double attention_backward_flops[2];
    /* Gradients by dsc's own kernels of sm_90, all products counted that they compute. 0: the card has others. */
    double attention_own_flops[2];
    double kernel_bytes;      /* device memory traffic of kernels that do little else, a second */
    double kernel_s;          /* start and end of a kernel */
    double launch_s;          /* the host's part of a launch */
    double host_link_bytes;   /* to host memory and back, each way, a second */
    double host_update_bytes; /* traffic of the host's optimizer kernels, a second */
    double peer_bytes;        /* into one card from the others of its host, a second */
    double peer_s;            /* start of an exchange within a host */
    double cards_of_host;
    double network_bytes; /* into one card's share of its host's network, a second */
    double network_s;     /* start of an exchange between hosts */
    /* A CPU: cores of the host (0: a GPU) and the times of its launches. Of the rates above, launch_s is the engine's
     * own work for a launch, and peer_s the start of an exchange. */
    double cores;
    const struct dsc_launch_times *launches;
} dsc_card_rates;

/* Parts of a step's time. */
typedef enum dsc_virtual_part {
    DSC_VIRTUAL_PRODUCTS,
    DSC_VIRTUAL_ATTENTION,
    DSC_VIRTUAL_MEMORY_KERNELS, /* norms, activations, sums, casts: bound by device memory */
    DSC_VIRTUAL_UPDATE,         /* the optimizer on the card */
    DSC_VIRTUAL_HOST_UPDATE,
    DSC_VIRTUAL_EXCHANGE, /* between ranks */
    DSC_VIRTUAL_TO_HOST,
    DSC_VIRTUAL_FROM_HOST,
    DSC_VIRTUAL_PART_COUNT
} dsc_virtual_part;
const char *dsc_virtual_part_text(dsc_virtual_part part); /* "products" */

/* Kinds of work and waits, which move clocks. */
typedef enum dsc_virtual_kind {
    DSC_VIRTUAL_KERNEL,      /* work of a stream on the card */
    DSC_VIRTUAL_TRANSFER,    /* work of a stream beside the card's kernels: a copy to or from the host */
    DSC_VIRTUAL_COLLECTIVE,  /* exchange that starts when the last rank has reached it */
    DSC_VIRTUAL_HOST_WORK,   /* work of the calling thread, behind that of the stream */
    DSC_VIRTUAL_RECORD,      /* the event has the stream's time */
    DSC_VIRTUAL_STREAM_WAIT, /* the stream waits for the event */
    DSC_VIRTUAL_STREAM_SYNC, /* the calling thread waits for the stream */
    DSC_VIRTUAL_EVENT_SYNC,  /* the calling thread waits for the event */
    DSC_VIRTUAL_CALL_BEGIN,  /* a thread of its own goes on at the stream's time */
    DSC_VIRTUAL_CALL_END,    /* its end; the calling thread goes on where it was */
    DSC_VIRTUAL_WAIT_BEGIN,  /* the stream's time from here */
    DSC_VIRTUAL_WAIT_END     /* to here is exposed */
} dsc_virtual_kind;

/* Work or a wait. `stream` and `event` are numbers from 0; -1: none. */
typedef struct dsc_virtual_item {
    dsc_virtual_kind kind;
    dsc_virtual_part part;
    int32_t stream, event;
    int32_t ranks; /* of a collective */
    double seconds;
} dsc_virtual_item;

/* Items in the order in which they were given, which is the same on all ranks. `item` is the caller's memory. */
typedef struct dsc_virtual_trace {
    dsc_virtual_item *item; /* [capacity] */
    int64_t count, capacity;
    bool full; /* later items are missing */
} dsc_virtual_trace;

#define DSC_VIRTUAL_GAPS 512

/* The clocks of one rank. Zeroed by the caller, with `rates` set; shared by the rank's devices. One thread uses it. */
typedef struct dsc_virtual_clock {
    const dsc_card_rates *rates;
    dsc_virtual_trace *trace; /* NULL, or where items are kept; the caller may change it between two steps */
    int32_t streams, events;  /* numbers that are taken */
    bool own_attention;       /* the config wants dsc's own kernels where the card has their rate */
    double share;             /* how many times as long a CPU rank's work takes beside the others; 0: as long */
    double host_s;            /* time of the calling thread */
    double caller_s;          /* between CALL_BEGIN and CALL_END: of the thread that goes on behind them */
    double card_s;            /* the card is free from then on */
    double wait_from_s;       /* between WAIT_BEGIN and WAIT_END: the stream's time at the begin */
    double exposed_s;         /* time so far that computation waited for exchanges */
    /* Times before, in order, in which the card is free: a kernel that waited for a copy left them. Later launches of
     * other streams fill them, in pieces. */
    struct {
        double from_s, to_s;
    } gap[DSC_VIRTUAL_GAPS];
    int32_t gap_count;
    double busy_s[DSC_VIRTUAL_PART_COUNT];
    int64_t kernels;
    int32_t without_time; /* 1 + the first kind that a CPU launched and its times lack; 0: none */
} dsc_virtual_clock;

/* Moves the clocks of one rank: its own, that of the item's stream and that of its event (NULL where it has none). */
void dsc_virtual_move(dsc_virtual_clock *clock, double *stream_s, double *event_s, const dsc_virtual_item *item);

extern const dsc_device_ops dsc_device_virtual; /* options.clock is set */
/* A rank on a CPU of the clock's `launches`. Its COMPUTE stream works on the calling thread, and all its streams share
 * the rank's core. */
extern const dsc_device_ops dsc_device_virtual_cpu;

/* The stream exchanges with `ranks` ranks for that time, from its clock on. */
void dsc_virtual_exchange(dsc_stream *stream, int32_t ranks, double seconds);
bool dsc_virtual_is(const dsc_device *device);
dsc_virtual_clock *dsc_virtual_clock_of(dsc_device *device);
/* Seconds of a CPU's work of one launch by its clock's times, with the engine's part and the share. A kind that the
 * times do not have is kept in the clock. */
double dsc_virtual_cpu_s(dsc_virtual_clock *clock, int32_t kind, const int64_t *shape);

/* costs.c: seconds of one launch on the card, and the part that it belongs to. */
double dsc_virtual_kernel_s(const dsc_card_rates *rates, dsc_kernel kernel, const void *args, dsc_virtual_part *part);
/* Seconds of gradients of attention by dsc's own kernels (kernels/cuda/attention): five products where the score
 * gradients have room and that takes less time, otherwise seven. */
double dsc_virtual_own_gradients_s(const dsc_card_rates *rates, const dsc_attention_bwd_args *a);
/* Seconds of the host's kernel over the same arguments. */
double dsc_virtual_host_kernel_s(const dsc_card_rates *rates, dsc_kernel kernel, const void *args);

#ifdef __cplusplus
}
#endif
#endif
