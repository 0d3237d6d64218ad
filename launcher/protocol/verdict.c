/* verdict.c - see verdict.h.
 *
 * Invariants: (1) the phase only grows; (2) who is to blame is fixed when END begins; (3) nobody is to blame when the
 * user asked for the end. SPDX-License-Identifier: Apache-2.0 */
#include "launcher/protocol/verdict.h"

#include <signal.h>

#define MS INT64_C(1000000)

static const int64_t suspect_ns = 300 * MS;
/* From SIGTERM to SIGKILL when a rank has failed: with the wait above all is over in less than 2 s. */
static const int64_t failure_grace_ns = 1000 * MS;
/* A scheduler signals every process of a job, and the guardian passes its own copy on: within this time it is one. */
static const int64_t same_signal_ns = 300 * MS;

void dsc_verdict_init(dsc_verdict *v, int32_t rank_count, int64_t grace_ns)
{
    *v = (dsc_verdict){ .alive_count = rank_count, .grace_ns = grace_ns, .kill_at_ns = INT64_MAX, .lost_host = -1,
                        .judge_at_ns = INT64_MAX };
}

bool dsc_rank_end_is_caused_by_peer(const dsc_rank_end *end)
{
    return end->signal == 0 && (end->code == dsc_status_exit_code(DSC_ERR_PEER) ||
                                end->code == dsc_status_exit_code(DSC_ERR_STUCK));
}

void dsc_verdict_rank_ended(dsc_verdict *v, const dsc_rank_end *end)
{
    DSC_ASSERT(v->alive_count > 0);
    v->alive_count--;
    if (v->phase != DSC_VERDICT_RUN || end->code == 0)
        return;
    if (!dsc_rank_end_is_caused_by_peer(end)) {
        if (!v->has_primary || (v->primary.signal == 0 && end->signal != 0))
            v->primary = *end;
        v->has_primary = true;
    } else if (!v->has_suspect) {
        v->suspect = *end;
        v->has_suspect = true;
        v->judge_at_ns = INT64_MAX; /* set by the next tick, which knows the time */
    }
}

void dsc_verdict_blame(dsc_verdict *v, const dsc_rank_end *end)
{
    if (v->phase != DSC_VERDICT_RUN || v->has_primary)
        return;
    v->primary = *end;
    v->has_primary = true;
}

void dsc_verdict_host_lost(dsc_verdict *v, int32_t host, int32_t alive_count)
{
    DSC_ASSERT(v->alive_count >= alive_count);
    v->alive_count -= alive_count;
    if (v->phase == DSC_VERDICT_RUN && v->lost_host < 0)
        v->lost_host = host;
}

bool dsc_verdict_user_signal(dsc_verdict *v, int32_t signal_number, int64_t now_ns)
{
    if (v->user_signal != 0) {
        if (now_ns - v->user_signal_at_ns >= same_signal_ns)
            v->kill_at_ns = dsc_min_i64(v->kill_at_ns, now_ns);
        return false;
    }
    if (v->phase != DSC_VERDICT_RUN)
        return false;
    v->phase = DSC_VERDICT_END;
    v->lost_host = -1;
    v->user_signal = v->term_signal = signal_number;
    v->user_signal_at_ns = now_ns;
    v->kill_at_ns = now_ns + v->grace_ns;
    return true;
}

void dsc_verdict_found(dsc_verdict *v, int32_t code)
{
    DSC_ASSERT(code != 0);
    if (v->phase == DSC_VERDICT_RUN && v->finding == 0)
        v->finding = code;
}

void dsc_verdict_give_up(dsc_verdict *v)
{
    v->phase = DSC_VERDICT_KILL;
    v->kill_at_ns = INT64_MAX;
}

static void begin_failure(dsc_verdict *v, int64_t now_ns)
{
    v->phase = DSC_VERDICT_END;
    v->term_signal = SIGTERM;
    v->kill_at_ns = now_ns + failure_grace_ns;
}

static void blame(dsc_verdict *v, const dsc_rank_end *end, int64_t now_ns)
{
    v->culprit = *end;
    v->culprit_known = true;
    v->lost_host = -1;
    begin_failure(v, now_ns);
}

void dsc_verdict_tick(dsc_verdict *v, int64_t received_ns, int64_t now_ns)
{
    if (v->has_suspect && v->judge_at_ns == INT64_MAX)
        v->judge_at_ns = now_ns + suspect_ns;
    const bool all_reported = now_ns >= v->judge_at_ns && received_ns >= v->judge_at_ns;
    if (v->phase == DSC_VERDICT_RUN && v->has_primary)
        blame(v, &v->primary, now_ns);
    else if (v->phase == DSC_VERDICT_RUN && v->lost_host >= 0)
        begin_failure(v, now_ns);
    else if (v->phase == DSC_VERDICT_RUN && v->finding != 0) {
        v->found_code = v->finding;
        begin_failure(v, now_ns);
    } else if (v->phase == DSC_VERDICT_RUN && v->has_suspect && (v->alive_count == 0 || all_reported))
        blame(v, &v->suspect, now_ns);
    if (v->phase != DSC_VERDICT_KILL && v->alive_count == 0) { /* leftovers were signalled when their rank ended */
        v->phase = DSC_VERDICT_END;
        v->kill_at_ns = dsc_min_i64(v->kill_at_ns, now_ns + failure_grace_ns);
    }
    if (v->phase == DSC_VERDICT_END && now_ns >= v->kill_at_ns)
        v->phase = DSC_VERDICT_KILL;
}

int64_t dsc_verdict_wake_ns(const dsc_verdict *v, int64_t now_ns)
{
    if (v->phase == DSC_VERDICT_END)
        return v->kill_at_ns;
    /* A suspect whose time has come waits for a message of another host. */
    return v->phase == DSC_VERDICT_RUN && v->has_suspect && v->judge_at_ns > now_ns ? v->judge_at_ns : INT64_MAX;
}
