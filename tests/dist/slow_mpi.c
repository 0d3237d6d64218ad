/* slow_mpi.c - a libdsc_mpi.so for test_comm_mpi.c: rank 0 of two. Its peer makes the same calls over a link on which
 * one part of eight arrives every 50 ms. Data of channel 1 stops after the third part. On channel 2 the peer is in a
 * call of another size: its data does not fit and arrives before its call record.
 * SPDX-License-Identifier: Apache-2.0 */
#include "comm/transports/mpi_api.h"
#include "comm/transports/wire.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { CHANNELS = 4, PARTS = 8 };

struct dsc_mpi_link {
    struct {
        int left;
        long long due_ns;
    } channel[CHANNELS];
};

static long long now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static int slow_open(int rank, int size, int channel_count, bool one_thread, int64_t timeout_ns, dsc_mpi_link **out,
                     char *text)
{
    *out = size == 2 && channel_count <= CHANNELS ? calloc(1, sizeof **out) : NULL;
    return *out == NULL;
}

static void slow_close(dsc_mpi_link *link, bool failed) { free(link); }

/* The peer's call records are ours: what is received first is what is sent next. */
static int slow_begin(dsc_mpi_link *link, int channel, const dsc_mpi_part *part, int count, int first, char *text)
{
    if (first == 2)
        memcpy(part[0].in, part[1].out, (size_t)part[1].count);
    if (first == 2 && channel == 2)
        ((dsc_call_record *)part[0].in)->bytes++;
    link->channel[channel].left = count > first ? PARTS : 0;
    link->channel[channel].due_ns = now_ns() + 50000000;
    return 0;
}

static int slow_wait(dsc_mpi_link *link, int channel, int64_t ns, dsc_mpi_progress *out, char *text)
{
    const bool stops = channel == 1 && link->channel[channel].left == PARTS - 3;
    const struct timespec pause = { .tv_nsec = ns };
    if (link->channel[channel].left > 0)
        nanosleep(&pause, NULL);
    if (link->channel[channel].left > 0 && now_ns() >= link->channel[channel].due_ns && !stops) {
        link->channel[channel].left--;
        link->channel[channel].due_ns += 50000000;
    }
    const int left = link->channel[channel].left;
    *out = (dsc_mpi_progress) { .left = left, .first_left = channel == 2 && left == PARTS };
    snprintf(text, DSC_MPI_TEXT, "message truncated");
    return channel == 2 && link->channel[channel].left > 0;
}

static void slow_open_with(dsc_mpi_link *link, int channel, bool *open)
{
    open[0] = false;
    open[1] = link->channel[channel].left > 0;
}

static void slow_give_up(dsc_mpi_link *link, int channel) { link->channel[channel].left = 0; }
static int slow_tell(dsc_mpi_link *link, const void *word, int bytes) { return 0; }

static int slow_listen(dsc_mpi_link *link, void *word, int bytes, int *from)
{
    *from = -1;
    return 0;
}

const dsc_mpi_api *dsc_mpi_api_get(void);
const dsc_mpi_api *dsc_mpi_api_get(void)
{
    static const dsc_mpi_api api = { .version = DSC_MPI_API_VERSION,
                                     .table_bytes = sizeof api,
                                     .build = DSC_VERSION_TEXT,
                                     .open = slow_open,
                                     .close = slow_close,
                                     .begin = slow_begin,
                                     .wait = slow_wait,
                                     .open_with = slow_open_with,
                                     .give_up = slow_give_up,
                                     .tell = slow_tell,
                                     .listen = slow_listen };
    return &api;
}
