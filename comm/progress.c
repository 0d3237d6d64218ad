/* progress.c - see progress.h. SPDX-License-Identifier: Apache-2.0 */
#include "comm/progress.h"

#include <pthread.h>

#include "base/clock.h"
#include "comm/comm.h"

/* One call, or where there was no space several that follow each other. */
typedef struct pending_call {
    dsc_flight_entry first, last;
    dsc_flight_ticket first_ticket, last_ticket;
    dsc_event *before, *after;
    bool given; /* `after` is on the stream */
} pending_call;

typedef struct channel_state {
    dsc_flight_track *track; /* NULL: nobody wants to know */
    pending_call *ring;      /* [DSC_COMM_PROGRESS_CALLS] */
    int64_t first, count;    /* on their way */
    bool come;               /* the GPU was seen at the first of them */
} channel_state;

struct dsc_comm_progress {
    dsc_alloc *alloc;
    dsc_device *device;
    pthread_mutex_t lock; /* for all members below: the watch looks while another thread adds a call */
    bool aborted;
    channel_state channel[DSC_COMM_CHANNELS_MAX];
};

static pending_call *at(const channel_state *l, int64_t index)
{
    return &l->ring[(l->first + index) % DSC_COMM_PROGRESS_CALLS];
}

/* ---- looking ----------------------------------------------------------------------------------------------------- */

static void finish_first(channel_state *l, int64_t now_ns)
{
    const pending_call *e = at(l, 0);
    if (!l->come)
        dsc_flight_come(l->track, &e->first, e->first_ticket, now_ns);
    dsc_flight_end(l->track, DSC_FLIGHT_DONE, now_ns);
    if (e->last_ticket.number != e->first_ticket.number) {
        dsc_flight_come(l->track, &e->last, e->last_ticket, now_ns);
        dsc_flight_end(l->track, DSC_FLIGHT_DONE, now_ns);
    }
    l->first = (l->first + 1) % DSC_COMM_PROGRESS_CALLS;
    l->count--;
    l->come = false;
}

static void look_at(channel_state *l, int64_t now_ns)
{
    while (l->count > 0 && at(l, 0)->given && dsc_event_passed(at(l, 0)->after))
        finish_first(l, now_ns);
    if (l->count > 0 && !l->come && dsc_event_passed(at(l, 0)->before)) {
        dsc_flight_come(l->track, &at(l, 0)->first, at(l, 0)->first_ticket, now_ns);
        l->come = true;
    }
    dsc_flight_looked(l->track, now_ns);
}

static dsc_status look(void *user, int64_t waited_ns, dsc_error *err)
{
    dsc_comm_progress *p = user;
    pthread_mutex_lock(&p->lock);
    for (int32_t c = 0; c < DSC_COMM_CHANNELS_MAX && !p->aborted; c++)
        if (p->channel[c].track != NULL)
            look_at(&p->channel[c], dsc_clock_ns());
    pthread_mutex_unlock(&p->lock);
    return DSC_OK;
}

/* ---- giving ------------------------------------------------------------------------------------------------------ */

/* An event fails only with its device, which the calls of the device report. */
static bool mark(dsc_event *event, dsc_stream *stream) { return dsc_event_record(event, stream, NULL) == DSC_OK; }

/* A new entry at the end; without space the last one grows. */
static void add(channel_state *l, const dsc_flight_entry *entry, dsc_flight_ticket ticket, dsc_stream *stream)
{
    const bool has_space = l->count < DSC_COMM_PROGRESS_CALLS;
    pending_call *e = at(l, has_space ? l->count++ : l->count - 1);
    e->given = false;
    e->last = *entry;
    e->last_ticket = ticket;
    if (!has_space)
        return;
    e->first = *entry;
    e->first_ticket = ticket;
    (void)mark(e->before, stream);
}

void dsc_comm_progress_begin(dsc_comm_progress *p, int32_t channel, const dsc_flight_entry *entry, dsc_stream *stream)
{
    channel_state *l = &p->channel[channel];
    const int64_t now_ns = dsc_clock_ns();
    pthread_mutex_lock(&p->lock);
    if (l->track != NULL && !p->aborted) {
        look_at(l, now_ns);
        add(l, entry, dsc_flight_ask(l->track, entry, now_ns), stream);
    }
    pthread_mutex_unlock(&p->lock);
}

void dsc_comm_progress_end(dsc_comm_progress *p, int32_t channel, dsc_status status, dsc_stream *stream)
{
    channel_state *l = &p->channel[channel];
    pthread_mutex_lock(&p->lock);
    if (l->track != NULL && !p->aborted) {
        at(l, l->count - 1)->given = status == DSC_OK && mark(at(l, l->count - 1)->after, stream);
        dsc_flight_asked(l->track, status == DSC_OK ? DSC_FLIGHT_QUEUED : DSC_FLIGHT_FAILED, dsc_clock_ns());
    }
    pthread_mutex_unlock(&p->lock);
}

void dsc_comm_progress_abort(dsc_comm_progress *p)
{
    pthread_mutex_lock(&p->lock);
    for (int32_t c = 0; c < DSC_COMM_CHANNELS_MAX && !p->aborted; c++)
        if (p->channel[c].track != NULL && p->channel[c].come)
            dsc_flight_end(p->channel[c].track, DSC_FLIGHT_FAILED, dsc_clock_ns());
    p->aborted = true;
    pthread_mutex_unlock(&p->lock);
}

/* ---- open and close ---------------------------------------------------------------------------------------------- */

static void close_channel(dsc_comm_progress *p, channel_state *l)
{
    for (int64_t i = 0; l->ring != NULL && i < DSC_COMM_PROGRESS_CALLS; i++) {
        dsc_event_close(&l->ring[i].before);
        dsc_event_close(&l->ring[i].after);
    }
    dsc_alloc_free(p->alloc, l->ring);
}

static dsc_status open_channel(dsc_comm_progress *p, channel_state *l, dsc_flight_track *track, dsc_error *err)
{
    DSC_TRY(dsc_alloc_zeroed(p->alloc, DSC_TAG_CONTROL, DSC_COMM_PROGRESS_CALLS, sizeof *l->ring, &l->ring, err));
    for (int64_t i = 0; i < DSC_COMM_PROGRESS_CALLS; i++) {
        DSC_TRY(dsc_event_open(p->device, &l->ring[i].before, err));
        DSC_TRY(dsc_event_open(p->device, &l->ring[i].after, err));
    }
    l->track = track;
    return DSC_OK;
}

dsc_status dsc_comm_progress_open(dsc_comm_progress **out, dsc_alloc *alloc, dsc_device *device,
                                  dsc_flight_track *const *track, int32_t count, dsc_error *err)
{
    dsc_comm_progress *p = NULL;
    dsc_status status = DSC_OK;
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, 1, sizeof *p, &p, err));
    p->alloc = alloc;
    p->device = device;
    pthread_mutex_init(&p->lock, NULL); /* cannot fail with default attributes on Linux */
    for (int32_t c = 0; c < count && status == DSC_OK; c++)
        if (track[c] != NULL)
            status = open_channel(p, &p->channel[c], track[c], err);
    dsc_device_watch(device, look, p);
    if (status != DSC_OK)
        dsc_comm_progress_close(&p);
    *out = p;
    return status;
}

void dsc_comm_progress_close(dsc_comm_progress **progress)
{
    dsc_comm_progress *p = *progress;
    if (p == NULL)
        return;
    (void)!look(p, 0, NULL);
    dsc_comm_progress_abort(p);
    dsc_device_watch(p->device, NULL, p);
    for (int32_t c = 0; c < DSC_COMM_CHANNELS_MAX; c++)
        close_channel(p, &p->channel[c]);
    pthread_mutex_destroy(&p->lock);
    dsc_alloc_free(p->alloc, p);
    *progress = NULL;
}
