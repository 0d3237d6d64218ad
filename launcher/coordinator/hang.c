/* hang.c - see hang.h. SPDX-License-Identifier: Apache-2.0 */
#include "launcher/coordinator/hang.h"

#include <stdio.h>
#include <string.h>

typedef struct hang_world {
    const dsc_flight_view *view;
    int32_t count;
    bool ended; /* calls that failed are waits, too */
} hang_world;

static bool is_waiting(const hang_world *w, const dsc_flight_call *call)
{
    return call->state == DSC_FLIGHT_WAITS || (w->ended && call->state == DSC_FLIGHT_FAILED);
}

static bool is_stopped(const dsc_flight_view *view) { return view->process == 'T' || view->process == 't'; }

/* The lane in which a rank waits longest; NULL: it waits in none. */
static const dsc_flight_channel *waiting_lane(const hang_world *w, int32_t rank)
{
    const dsc_flight_channel *oldest = NULL;
    for (int32_t i = 0; i < w->view[rank].channel_count; i++) {
        const dsc_flight_channel *lane = &w->view[rank].channel[i];
        if (lane->call_count > 0 && is_waiting(w, &lane->call[0]) &&
            (oldest == NULL || lane->call[0].age_ns > oldest->call[0].age_ns))
            oldest = lane;
    }
    return oldest;
}

static const dsc_flight_channel *same_lane(const hang_world *w, int32_t rank, const dsc_flight_channel *lane)
{
    for (int32_t i = 0; i < w->view[rank].channel_count; i++) {
        const dsc_flight_channel *other = &w->view[rank].channel[i];
        if (other->id == lane->id && other->channel == lane->channel && other->size == lane->size)
            return other;
    }
    return NULL;
}

/* ---- who waits for whom ------------------------------------------------------------------------------------------ */

/* Has `other` (the same lane of another rank, or NULL) not come to the call that `lane` waits in? */
static bool is_missing(const hang_world *w, const dsc_flight_channel *lane, const dsc_flight_channel *other)
{
    const dsc_flight_call *call = &lane->call[0];
    if (other == NULL)
        return lane->size == w->count && call->peer < 0; /* only a group's own ranks are known */
    const dsc_flight_call *last = other->call_count > 0 ? &other->call[0] : NULL;
    if (call->peer >= 0)
        return other->rank == call->peer && (last == NULL || last->peer != lane->rank || !is_waiting(w, last));
    if (last == NULL || last->number < call->number)
        return other->asked < call->number; /* else it is_behind */
    /* Its GPU has done all that it was asked for, which is less than what ours was. */
    if (other->asked > 0 && other->asked < lane->asked && last->number == other->asked && !is_waiting(w, last))
        return true;
    /* A rank that arrives after the others gave up finds an error there: the others waited for this rank. */
    return last->number == call->number && last->state == DSC_FLIGHT_FAILED && call->state == DSC_FLIGHT_FAILED &&
           last->age_ns < call->ended_ns;
}

/* It gave the call to its GPU, which has not come to it; or has since it was looked at. */
static bool is_behind(const dsc_flight_channel *lane, const dsc_flight_channel *other)
{
    return lane->call[0].peer < 0 && other != NULL && other->asked >= lane->call[0].number &&
           (other->call_count == 0 || other->call[0].number < lane->call[0].number);
}

/* In the same call, and stopped there. */
static bool is_stopped_inside(const hang_world *w, const dsc_flight_channel *lane, int32_t rank)
{
    const dsc_flight_channel *other = same_lane(w, rank, lane);
    return other != NULL && is_stopped(&w->view[rank]) && other->call_count > 0 &&
           other->call[0].number == lane->call[0].number && is_waiting(w, &other->call[0]);
}

/* The best one to blame among those that `rank` waits for; -1: nobody. */
static int32_t awaited(const hang_world *w, int32_t rank, const dsc_flight_channel *lane)
{
    int32_t best = -1, best_score = 0;
    for (int32_t r = 0; r < w->count; r++) {
        if (r == rank || !w->view[r].known)
            continue;
        const dsc_flight_channel *theirs = same_lane(w, r, lane);
        int32_t score = 0;
        if (is_missing(w, lane, theirs))
            score = is_stopped(&w->view[r]) ? 5 : waiting_lane(w, r) == NULL ? 4 : 3;
        else if (is_behind(lane, theirs)) /* a rank that waits elsewhere has checked its GPU */
            score = waiting_lane(w, r) != NULL ? 2 : 1;
        else if (is_stopped_inside(w, lane, r))
            score = 1;
        if (score > best_score) {
            best = r;
            best_score = score;
        }
    }
    return best;
}

/* From a rank that waits to the one whom it all hangs on. */
static void follow(const hang_world *w, int32_t waiter, dsc_hang *out)
{
    const dsc_flight_channel *lane = waiting_lane(w, waiter);
    int32_t at = awaited(w, waiter, lane);
    out->kind = DSC_HANG_LATE;
    for (int32_t steps = 0; at >= 0 && steps < w->count; steps++) {
        const dsc_flight_channel *next_lane = is_stopped(&w->view[at]) ? NULL : waiting_lane(w, at);
        const int32_t next = next_lane != NULL ? awaited(w, at, next_lane) : -1;
        if (next < 0)
            break;
        waiter = at;
        lane = next_lane;
        at = next;
        if (steps + 1 == w->count)
            out->kind = DSC_HANG_CIRCLE;
    }
    out->waiter = waiter;
    out->culprit = at;
    out->call = lane->call[0];
    out->channel = lane->channel;
    const dsc_flight_channel *theirs = at >= 0 ? same_lane(w, at, lane) : NULL;
    out->has_other = theirs != NULL && theirs->call_count > 0;
    if (out->has_other)
        out->other = theirs->call[0];
    out->behind = is_behind(lane, theirs);
}

/* How long `rank` may wait, or be stopped. */
static int64_t most_ns(const hang_world *w, int32_t rank, int64_t limit_ns)
{
    const int64_t own_ns = w->view[rank].timeout_ns;
    return limit_ns > 0 ? limit_ns : own_ns > 0 ? own_ns + DSC_HANG_SLACK_NS : INT64_MAX;
}

static bool find_late(const hang_world *w, int64_t limit_ns, dsc_hang *out)
{
    int32_t oldest = -1;
    int64_t oldest_ns = -1;
    for (int32_t r = 0; r < w->count; r++) {
        const dsc_flight_channel *lane = waiting_lane(w, r);
        if (lane == NULL || is_stopped(&w->view[r])) /* one that is stopped waits for nobody; its peers do */
            continue;
        if ((!w->ended && lane->call[0].age_ns < most_ns(w, r, limit_ns)) || lane->call[0].age_ns <= oldest_ns)
            continue;
        oldest = r;
        oldest_ns = lane->call[0].age_ns;
    }
    if (oldest >= 0)
        follow(w, oldest, out);
    return oldest >= 0;
}

/* ---- who is at odds ---------------------------------------------------------------------------------------------- */

/* The first call of the same number in which two ranks differ. Both are still in it, or have left it to a GPU. */
static bool at_odds(const dsc_flight_channel *a, const dsc_flight_channel *b, dsc_hang *out)
{
    bool found = false;
    for (int32_t i = 0; i < a->call_count; i++)
        for (int32_t j = 0; j < b->call_count; j++) {
            const dsc_flight_call *x = &a->call[i], *y = &b->call[j];
            if (x->peer >= 0 || y->peer >= 0 || x->number != y->number || x->history == y->history ||
                dsc_min_i64(x->age_ns, y->age_ns) < DSC_HANG_ODDS_NS)
                continue;
            if (!found || x->number < out->call.number) {
                out->call = *x;
                out->other = *y;
            }
            found = true;
        }
    return found;
}

/* Every rank is compared with the first one that has the lane. */
static bool find_odds(const hang_world *w, dsc_hang *out)
{
    for (int32_t r = 1; r < w->count; r++)
        for (int32_t i = 0; i < w->view[r].channel_count; i++) {
            const dsc_flight_channel *lane = &w->view[r].channel[i], *first = NULL;
            int32_t q = 0;
            while (q < r && (first = same_lane(w, q, lane)) == NULL)
                q++;
            if (first == NULL || !at_odds(first, lane, out))
                continue;
            out->kind = DSC_HANG_ODDS;
            out->waiter = q;
            out->culprit = r;
            out->channel = lane->channel;
            out->has_other = true;
            return true;
        }
    return false;
}

static bool some_unknown(const hang_world *w)
{
    for (int32_t r = 0; r < w->count; r++)
        if (!w->view[r].known)
            return true;
    return false;
}

static bool somebody_waits(const hang_world *w)
{
    for (int32_t r = 0; r < w->count; r++)
        if (!is_stopped(&w->view[r]) && waiting_lane(w, r) != NULL)
            return true;
    return false;
}

/* Nobody is late, and nobody will be: a stopped rank that is waited for is named with who waits. A debugger's user is
 * there. */
static void find_stopped(const hang_world *w, int64_t limit_ns, dsc_hang *out)
{
    if (!w->ended && somebody_waits(w))
        return;
    for (int32_t r = 0; r < w->count && out->kind == DSC_HANG_NONE; r++) {
        const dsc_flight_view *view = &w->view[r];
        const bool too_long = view->process == 'T' && view->stopped_ns >= most_ns(w, r, limit_ns);
        if (w->ended ? is_stopped(view) : too_long) {
            out->kind = DSC_HANG_LATE;
            out->culprit = r;
        }
    }
}

void dsc_hang_find(const dsc_flight_view *view, int32_t count, int64_t limit_ns, bool ended, dsc_hang *out)
{
    const hang_world w = { view, count, ended };
    *out = (dsc_hang){ .waiter = -1, .culprit = -1 };
    if (find_odds(&w, out) || find_late(&w, limit_ns, out))
        out->some_unknown = some_unknown(&w);
    else
        find_stopped(&w, limit_ns, out);
}

int dsc_hang_code(const dsc_hang *hang)
{
    return dsc_status_exit_code(hang->kind == DSC_HANG_ODDS ? DSC_ERR_COMM : DSC_ERR_STUCK);
}

/* ---- words ------------------------------------------------------------------------------------------------------- */

/* "all_gather of 4096 bytes (step 5, module h.0, channel 1, collective 37)" */
static const char *call_text(const dsc_flight_call *call, int32_t channel, char *out, size_t out_bytes)
{
    char step[40] = "", peer[40] = "";
    if (call->step > 0)
        snprintf(step, sizeof step, "step %lld, ", (long long)call->step);
    if (call->peer >= 0)
        snprintf(peer, sizeof peer, " with its rank %d", call->peer);
    snprintf(out, out_bytes, "%s of %lld bytes%s (%s%s%s%schannel %d, collective %lld)", call->op,
             (long long)call->bytes, peer, step, call->module[0] != 0 ? "module " : "", call->module,
             call->module[0] != 0 ? ", " : "", channel, (long long)call->number);
    return out;
}

/* "rank 1 (host b, pid 12)" */
static const char *rank_text(const dsc_launcher_plan *plan, const dsc_flight_view *view, int32_t rank, char *out,
                             size_t out_bytes)
{
    const char *host = plan->pool.host[plan->place[rank].host].name;
    if (view[rank].pid > 0)
        snprintf(out, out_bytes, "rank %d (host %s, pid %d)", rank, host, view[rank].pid);
    else
        snprintf(out, out_bytes, "rank %d (host %s)", rank, host);
    return out;
}

static const char *state_text(const dsc_flight_view *view)
{
    if (view->pid == 0)
        return "has opened no communicator";
    if (is_stopped(view))
        return "is stopped (by SIGSTOP or a debugger)";
    if (view->process == 'D')
        return "sleeps in the kernel (a disk or a file server that does not answer?)";
    return view->process == '?' ? "is gone" : "is busy with something else";
}

static double seconds(int64_t ns) { return (double)ns * 1e-9; }

static int64_t waited_ns(const dsc_flight_call *call) { return call->age_ns - call->ended_ns; }

static void describe_late(const dsc_hang *hang, const dsc_flight_view *view, const dsc_launcher_plan *plan, char *out)
{
    char who[DSC_HOST_NAME_BYTES + 64], call[200], last[260] = "";
    const size_t room = DSC_HANG_LINE_BYTES;
    call_text(&hang->call, hang->channel, call, sizeof call);
    if (hang->waiter < 0) {
        snprintf(out, room, "stuck: %s %s", rank_text(plan, view, hang->culprit, who, sizeof who),
                 state_text(&view[hang->culprit]));
        return;
    }
    if (hang->culprit < 0) {
        snprintf(out, room, "stuck: rank %d has waited %.1f s in %s; %s", hang->waiter,
                 seconds(waited_ns(&hang->call)), call,
                 hang->some_unknown ? "for ranks that another launcher has started"
                                    : "all ranks have come to it, and it does not end");
        return;
    }
    if (hang->has_other) {
        char text[200];
        const bool inside = hang->other.state == DSC_FLIGHT_WAITS;
        snprintf(last, sizeof last, "%s %s", inside ? ", in" : "; its last was",
                 call_text(&hang->other, hang->channel, text, sizeof text));
    }
    snprintf(out, room, "stuck: rank %d has waited %.1f s for %s in %s; rank %d %s%s", hang->waiter,
             seconds(waited_ns(&hang->call)), rank_text(plan, view, hang->culprit, who, sizeof who), call,
             hang->culprit,
             hang->kind == DSC_HANG_CIRCLE ? "waits in turn for it"
             : hang->behind                ? "has given it to its GPU, which was not seen to come to it"
                                           : state_text(&view[hang->culprit]),
             last);
}

void dsc_hang_describe(const dsc_hang *hang, const dsc_flight_view *view, const dsc_launcher_plan *plan,
                       char out[DSC_HANG_LINE_BYTES])
{
    char a[DSC_HOST_NAME_BYTES + 64], b[DSC_HOST_NAME_BYTES + 64], x[200], y[200];
    DSC_ASSERT(hang->kind != DSC_HANG_NONE);
    if (hang->kind != DSC_HANG_ODDS) {
        describe_late(hang, view, plan, out);
        return;
    }
    snprintf(out, DSC_HANG_LINE_BYTES, "ranks disagree: %s calls %s, %s calls %s",
             rank_text(plan, view, hang->waiter, a, sizeof a), call_text(&hang->call, hang->channel, x, sizeof x),
             rank_text(plan, view, hang->culprit, b, sizeof b), call_text(&hang->other, hang->channel, y, sizeof y));
}

bool dsc_hang_describe_wait(const dsc_flight_view *view, int32_t count, int32_t rank, bool ended,
                            char out[DSC_HANG_LINE_BYTES])
{
    const hang_world w = { view, count, ended };
    const dsc_flight_channel *lane = waiting_lane(&w, rank);
    char call[200], whom[64] = "an unknown rank";
    if (lane == NULL)
        return false;
    const int32_t at = awaited(&w, rank, lane);
    if (at >= 0)
        snprintf(whom, sizeof whom, "rank %d", at);
    snprintf(out, DSC_HANG_LINE_BYTES, "rank %d waits for %s in %s, for %.1f s", rank, whom,
             call_text(&lane->call[0], lane->channel, call, sizeof call), seconds(waited_ns(&lane->call[0])));
    return true;
}
