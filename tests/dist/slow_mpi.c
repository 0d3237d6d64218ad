/* slow_mpi.c - a libdsc_mpi.so for test_comm_mpi.c: rank 0 of two whose peer does as it does, over a link on which one
 * part of eight arrives every 50 ms. What goes to lane 1 stops after the third part.
 * SPDX-License-Identifier: Apache-2.0 */
#include "zero/comm/mpi_api.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LANES = 4, PARTS = 8, NOTE_BYTES = 24 };

struct dsc_mpi_link {
    struct { int left, size; long long due_ns; const void *note; } lane[LANES];
};

static long long now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static int slow_open(int rank, int size, int lane_count, dsc_mpi_link **out, char *text)
{
    *out = size == 2 && lane_count <= LANES ? calloc(1, sizeof **out) : NULL;
    return *out == NULL;
}

static void slow_close(dsc_mpi_link *link, bool failed) { free(link); }

static int begin(dsc_mpi_link *link, int lane, int64_t bytes)
{
    if (bytes > NOTE_BYTES)
        link->lane[lane].left = PARTS;
    link->lane[lane].due_ns = now_ns() + 50000000;
    return 0;
}

/* The peer's note is ours: what is received first is what is sent next. */
static int slow_recv(dsc_mpi_link *link, int lane, int from, void *bytes, int64_t count, char *text)
{
    link->lane[lane].note = bytes;
    return begin(link, lane, count);
}

static int slow_send(dsc_mpi_link *link, int lane, int to, const void *bytes, int64_t count, char *text)
{
    if (count == NOTE_BYTES)
        memcpy((void *)(uintptr_t)link->lane[lane].note, bytes, NOTE_BYTES);
    return begin(link, lane, count);
}

static int slow_test(dsc_mpi_link *link, int lane, int *left, bool *open, char *text)
{
    const bool stops = lane == 1 && link->lane[lane].left == PARTS - 3;
    if (link->lane[lane].left > 0 && now_ns() >= link->lane[lane].due_ns && !stops) {
        link->lane[lane].left--;
        link->lane[lane].due_ns += 50000000;
    }
    *left = link->lane[lane].left;
    if (open != NULL) {
        open[0] = false;
        open[1] = *left > 0;
    }
    return 0;
}

static void slow_give_up(dsc_mpi_link *link, int lane) { link->lane[lane].left = 0; }
static void slow_tell(dsc_mpi_link *link, const void *word, int bytes) {}

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
                                     .send = slow_send,
                                     .recv = slow_recv,
                                     .test = slow_test,
                                     .give_up = slow_give_up,
                                     .tell = slow_tell,
                                     .listen = slow_listen };
    return &api;
}
