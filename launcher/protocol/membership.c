/* membership.c - see membership.h. SPDX-License-Identifier: Apache-2.0 */
#include "launcher/protocol/membership.h"

#include <signal.h>

#define SECOND INT64_C(1000000000)

void dsc_membership_init(dsc_membership *m, dsc_slot *slot, int32_t count, const dsc_membership_limits *limits,
                         void (*emit)(void *user, const dsc_membership_action *action), void *user)
{
    DSC_ASSERT(limits->least >= 1 && limits->most >= limits->least && count <= DSC_WORLD_RANKS_MAX);
    *m = (dsc_membership) { .limits = *limits, .slot = slot, .count = count, .emit = emit, .user = user };
    for (int32_t i = 0; i < count; i++)
        slot[i] = (dsc_slot) { .host = slot[i].host, .barred = slot[i].barred, .phase = DSC_SLOT_FREE, .rank = -1 };
}

/* ---- actions ----------------------------------------------------------------------------------------------------- */

static void tell(dsc_membership *m, dsc_membership_event event, int32_t slot)
{
    m->emit(m->user, &(dsc_membership_action) { .kind = DSC_MEMBERSHIP_DO_TELL,
                                                .event = event,
                                                .slot = slot,
                                                .generation = m->generation,
                                                .size = m->size,
                                                .step = m->step,
                                                .end = m->has_lost_end ? &m->lost_end : NULL,
                                                .since_ns = m->since_ns });
}

static void call(dsc_membership *m, int32_t slot, dsc_world_call_kind kind)
{
    m->emit(m->user, &(dsc_membership_action) { .kind = DSC_MEMBERSHIP_DO_CALL,
                                                .slot = slot,
                                                .generation = m->generation,
                                                .call = { .kind = kind, .generation = m->generation } });
}

static void blame(dsc_membership *m, const dsc_rank_end *end)
{
    m->phase = DSC_MEMBERSHIP_ENDED;
    m->emit(m->user, &(dsc_membership_action) {
                         .kind = DSC_MEMBERSHIP_DO_BLAME, .slot = -1, .end = end, .generation = m->generation });
}

static int32_t count_in(const dsc_membership *m, dsc_slot_phase phase)
{
    int32_t count = 0;
    for (int32_t i = 0; i < m->count; i++)
        count += m->slot[i].phase == phase;
    return count;
}

/* Empty, or about to be: its host is lost or the user bars it, for now. */
static bool is_absent(const dsc_slot *slot)
{
    return (slot->phase == DSC_SLOT_FREE && slot->host_lost) ||
           ((slot->phase == DSC_SLOT_FREE || slot->phase == DSC_SLOT_LEAVES) && slot->barred);
}

static bool is_fillable(const dsc_slot *slot) { return slot->phase == DSC_SLOT_FREE && !is_absent(slot); }

/* ---- processes --------------------------------------------------------------------------------------------------- */

/* The number of processes that live or are about to. */
static int32_t alive(const dsc_membership *m)
{
    return count_in(m, DSC_SLOT_STARTS) + count_in(m, DSC_SLOT_READY) + count_in(m, DSC_SLOT_MEMBER);
}

static void start_slot(dsc_membership *m, int32_t index, int64_t now_ns)
{
    dsc_slot *slot = &m->slot[index];
    DSC_ASSERT(is_fillable(slot));
    slot->phase = DSC_SLOT_STARTS;
    slot->start_wanted = true;
    slot->ready_by_ns = now_ns + DSC_MEMBERSHIP_READY_NS;
    slot->has_states = slot->killed = false;
    slot->signal_wanted = 0;
    slot->rank = -1;
}

void dsc_membership_begin(dsc_membership *m, int64_t now_ns)
{
    DSC_ASSERT(m->phase == DSC_MEMBERSHIP_IDLE);
    m->phase = DSC_MEMBERSHIP_GATHERS;
    m->broken_ns = now_ns;
    m->wait_until_ns = now_ns + dsc_max_i64(m->limits.wait_ns, DSC_MEMBERSHIP_START_NS);
    for (int32_t i = 0; i < m->count && alive(m) < m->limits.first; i++)
        if (is_fillable(&m->slot[i]))
            start_slot(m, i, now_ns);
}

dsc_slot_command dsc_membership_command(dsc_membership *m, int32_t host)
{
    for (int32_t i = 0; i < m->count; i++) {
        dsc_slot *slot = &m->slot[i];
        dsc_slot_command command = { i, 0 };
        if (slot->host != host || (!slot->start_wanted && slot->signal_wanted == 0))
            continue;
        if (!slot->start_wanted) {
            command.signal = slot->signal_wanted;
            slot->killed = slot->killed || command.signal == SIGKILL;
            slot->signal_wanted = 0;
        }
        slot->start_wanted = false;
        return command;
    }
    return (dsc_slot_command) { .slot = -1 };
}

void dsc_membership_signal(dsc_membership *m, int32_t slot, int signal_number)
{
    if (dsc_slot_is_alive(&m->slot[slot]) && !m->slot[slot].killed && m->slot[slot].signal_wanted != SIGKILL)
        m->slot[slot].signal_wanted = signal_number;
}

/* A process that hangs before its first report would count as alive for ever. */
static void kill_late(dsc_membership *m, int64_t now_ns)
{
    for (int32_t i = 0; i < m->count; i++)
        if (m->slot[i].phase == DSC_SLOT_STARTS && now_ns >= m->slot[i].ready_by_ns)
            dsc_membership_signal(m, i, SIGKILL);
}

static bool may_replace(const dsc_membership *m)
{
    return m->limits.replacements < 0 || m->replaced_count < m->limits.replacements;
}

/* Processes that are to be there. */
static int32_t wanted(const dsc_membership *m)
{
    const int32_t most = m->generation == 0 ? m->limits.first : m->limits.most;
    return may_replace(m) ? most : most - m->lost_count;
}

static bool is_over(const dsc_membership *m)
{
    return m->phase == DSC_MEMBERSHIP_DONE || m->phase == DSC_MEMBERSHIP_ENDED || m->user_ends || m->last;
}

/* Only where a rank has reported: a program that knows of no worlds would start anew beside the others. */
static void fill_slots(dsc_membership *m, int64_t now_ns)
{
    int32_t living = alive(m);
    for (int32_t i = 0; i < m->count && living < wanted(m); i++) {
        if (!is_fillable(&m->slot[i]) || now_ns < m->slot[i].free_at_ns)
            continue;
        if (m->lost_count > 0 && may_replace(m)) {
            m->lost_count--;
            m->replaced_count++;
        }
        start_slot(m, i, now_ns);
        tell(m, DSC_MEMBERSHIP_STARTED, i);
        living++;
    }
}

/* ---- worlds ------------------------------------------------------------------------------------------------------ */

static void break_world(dsc_membership *m, int64_t now_ns)
{
    if (m->phase != DSC_MEMBERSHIP_RUNS)
        return;
    m->phase = DSC_MEMBERSHIP_BROKEN;
    m->wait_until_ns = now_ns + m->limits.wait_ns;
    if (m->stepped || m->generation == 0) /* else the time counts from the earlier loss */
        m->broken_ns = now_ns;
}

/* Of two ready ranks: one with states comes first, then one that had the lower rank, then the lower slot. */
static bool comes_before(const dsc_slot *a, const dsc_slot *b)
{
    if (a->has_states != b->has_states)
        return a->has_states;
    return (uint32_t)a->rank < (uint32_t)b->rank; /* -1, of a new rank, is above all */
}

/* The first ready rank that is not taken, of a host, or of all hosts (-1); -1: there is none. */
static int32_t next_ready(const dsc_membership *m, const bool *taken, int32_t host)
{
    int32_t best = -1;
    for (int32_t i = 0; i < m->count; i++)
        if (m->slot[i].phase == DSC_SLOT_READY && !taken[i] && (host < 0 || m->slot[i].host == host) &&
            (best < 0 || comes_before(&m->slot[i], &m->slot[best])))
            best = i;
    return best;
}

/* Ranks of a host follow each other. */
static int32_t order_ranks(const dsc_membership *m, int32_t most, int32_t out[DSC_WORLD_RANKS_MAX])
{
    int32_t count = 0;
    bool taken[DSC_WORLD_RANKS_MAX] = { false };
    for (int32_t first; count < most && (first = next_ready(m, taken, -1)) >= 0;)
        for (int32_t next; count < most && (next = next_ready(m, taken, m->slot[first].host)) >= 0;) {
            taken[next] = true;
            out[count++] = next;
        }
    return count;
}

static void form_world(dsc_membership *m, bool last, int64_t now_ns)
{
    int32_t order[DSC_WORLD_RANKS_MAX], hosts = 0;
    const int32_t size = order_ranks(m, m->limits.most, order);
    bool carried = false;
    m->generation++;
    m->size = size;
    m->step = 0;
    m->last = last;
    m->barren = m->stepped ? 0 : m->barren + 1;
    m->stepped = m->change_called = false;
    m->phase = DSC_MEMBERSHIP_RUNS;
    for (int32_t r = 0; r < size; r++) {
        carried = carried || m->slot[order[r]].has_states;
        hosts += r == 0 || m->slot[order[r]].host != m->slot[order[r - 1]].host;
    }
    tell(m, DSC_MEMBERSHIP_FORMED, -1);
    for (int32_t r = 0, first = 0, host = -1; r < size; r++) {
        dsc_slot *slot = &m->slot[order[r]];
        int32_t end = r;
        if (r == 0 || slot->host != m->slot[order[r - 1]].host) {
            first = r;
            host++;
        }
        while (end < size && m->slot[order[end]].host == slot->host)
            end++;
        slot->phase = DSC_SLOT_MEMBER;
        slot->rank = r;
        m->emit(m->user, &(dsc_membership_action) { .kind = DSC_MEMBERSHIP_DO_CALL,
                                                    .slot = order[r],
                                                    .generation = m->generation,
                                                    .call = { .kind = DSC_WORLD_CALL_WORLD,
                                                              .generation = m->generation,
                                                              .rank = r,
                                                              .size = size,
                                                              .local_rank = r - first,
                                                              .local_size = end - first,
                                                              .host = host,
                                                              .host_count = hosts,
                                                              .carried = carried,
                                                              .last = last } });
    }
}

static bool any_ready_has_states(const dsc_membership *m)
{
    bool any = false;
    for (int32_t i = 0; i < m->count; i++)
        any = any || (m->slot[i].phase == DSC_SLOT_READY && m->slot[i].has_states);
    return any;
}

/* Fewer ranks than a world needs are ready, and no member of the last one is left in it. */
static void meet_shortage(dsc_membership *m, int64_t now_ns)
{
    const int32_t ready = count_in(m, DSC_SLOT_READY), coming = count_in(m, DSC_SLOT_STARTS);
    bool any_absent = false;
    for (int32_t i = 0; i < m->count; i++)
        any_absent = any_absent || is_absent(&m->slot[i]);
    const bool may_come = coming > 0 || ((count_in(m, DSC_SLOT_FREE) > 0 || any_absent) && alive(m) < wanted(m));
    if (may_come && now_ns < m->wait_until_ns && (m->generation == 0 || ready > 0 || coming > 0 || any_absent))
        return;
    m->size = ready;
    tell(m, DSC_MEMBERSHIP_TOO_FEW, -1);
    if (any_ready_has_states(m))
        form_world(m, true, now_ns);
    else
        blame(m, m->has_lost_end ? &m->lost_end : NULL);
}

static void gather(dsc_membership *m, int64_t now_ns)
{
    const int32_t members = count_in(m, DSC_SLOT_MEMBER), ready = count_in(m, DSC_SLOT_READY);
    const bool first = m->generation == 0, late = now_ns >= m->broken_ns + DSC_MEMBERSHIP_START_NS;
    for (int32_t i = 0; i < m->count && now_ns >= m->broken_ns + DSC_MEMBERSHIP_LEAVE_NS; i++)
        if (m->slot[i].phase == DSC_SLOT_MEMBER)
            dsc_membership_signal(m, i, SIGKILL);
    if (members > 0 || dsc_membership_is_mute(m))
        return;
    if (m->barren >= DSC_MEMBERSHIP_BARREN_MAX)
        blame(m, m->has_lost_end ? &m->lost_end : NULL);
    else if (ready < m->limits.least)
        meet_shortage(m, now_ns);
    else if (!first || late || count_in(m, DSC_SLOT_STARTS) == 0)
        form_world(m, false, now_ns);
}

/* Members leave their world for new ranks only after its first step, so that it is worth its while. */
static void call_change(dsc_membership *m)
{
    if (m->change_called || !m->stepped || m->size >= m->limits.most || count_in(m, DSC_SLOT_READY) == 0)
        return;
    m->change_called = true;
    for (int32_t i = 0; i < m->count; i++)
        if (m->slot[i].phase == DSC_SLOT_MEMBER)
            call(m, i, DSC_WORLD_CALL_CHANGE);
}

static void send_away(dsc_membership *m, int32_t index)
{
    call(m, index, DSC_WORLD_CALL_END);
    m->slot[index].phase = DSC_SLOT_LEAVES;
}

/* The user ends the job while no world runs: ready ranks save what they have in a last world. */
static void end_without_world(dsc_membership *m, int64_t now_ns)
{
    if ((m->phase != DSC_MEMBERSHIP_GATHERS && m->phase != DSC_MEMBERSHIP_BROKEN) || count_in(m, DSC_SLOT_MEMBER) > 0)
        return;
    if (any_ready_has_states(m)) {
        form_world(m, true, now_ns);
        return;
    }
    for (int32_t i = 0; i < m->count; i++)
        if (m->slot[i].phase == DSC_SLOT_READY)
            send_away(m, i);
}

void dsc_membership_tick(dsc_membership *m, int64_t now_ns)
{
    if (m->user_ends)
        end_without_world(m, now_ns);
    if (is_over(m) || m->phase == DSC_MEMBERSHIP_IDLE)
        return;
    if (!dsc_membership_is_mute(m)) {
        kill_late(m, now_ns);
        fill_slots(m, now_ns);
    }
    if (m->phase == DSC_MEMBERSHIP_GATHERS || m->phase == DSC_MEMBERSHIP_BROKEN)
        gather(m, now_ns);
    else if (m->phase == DSC_MEMBERSHIP_RUNS)
        call_change(m);
}

/* When the wait for ranks is over that the next world needs. */
static int64_t gathered_by_ns(const dsc_membership *m)
{
    if (count_in(m, DSC_SLOT_MEMBER) > 0)
        return m->broken_ns + DSC_MEMBERSHIP_LEAVE_NS;
    return m->generation == 0 && count_in(m, DSC_SLOT_READY) >= m->limits.least ? m->broken_ns + DSC_MEMBERSHIP_START_NS
                                                                                : m->wait_until_ns;
}

int64_t dsc_membership_wake_ns(const dsc_membership *m)
{
    int64_t at_ns = INT64_MAX;
    if (is_over(m) || m->phase == DSC_MEMBERSHIP_IDLE || dsc_membership_is_mute(m))
        return at_ns;
    if (m->phase != DSC_MEMBERSHIP_RUNS)
        at_ns = gathered_by_ns(m);
    for (int32_t i = 0; i < m->count; i++)
        if (is_fillable(&m->slot[i]) && alive(m) < wanted(m))
            at_ns = dsc_min_i64(at_ns, m->slot[i].free_at_ns);
        else if (m->slot[i].phase == DSC_SLOT_STARTS && !m->slot[i].killed && m->slot[i].signal_wanted != SIGKILL)
            at_ns = dsc_min_i64(at_ns, m->slot[i].ready_by_ns);
    return at_ns;
}

/* ---- events ------------------------------------------------------------------------------------------------------ */

static void on_ready(dsc_membership *m, int32_t index, const dsc_world_report *report, int64_t now_ns)
{
    dsc_slot *slot = &m->slot[index];
    const bool joins = slot->phase == DSC_SLOT_STARTS && report->generation == 0;
    if (!joins && (slot->phase != DSC_SLOT_MEMBER || report->generation != m->generation))
        return; /* it was heard already, or is about a world that is over */
    slot->phase = DSC_SLOT_READY;
    slot->has_states = report->has_states && !joins;
    if (!joins)
        break_world(m, now_ns);
    else if (m->generation > 0)
        tell(m, DSC_MEMBERSHIP_JOINS, index);
}

static void on_runs(dsc_membership *m, int32_t index, const dsc_world_report *report, int64_t now_ns)
{
    if (m->slot[index].phase != DSC_SLOT_MEMBER || report->generation != m->generation)
        return;
    m->slot[index].failures = 0;
    if (m->stepped || m->phase != DSC_MEMBERSHIP_RUNS)
        return;
    m->stepped = true;
    m->since_ns = now_ns - m->broken_ns;
    tell(m, DSC_MEMBERSHIP_GOES_ON, -1);
}

void dsc_membership_report(dsc_membership *m, int32_t index, const dsc_world_report *report, int64_t now_ns)
{
    dsc_slot *slot = &m->slot[index];
    m->any_report = true;
    m->step = report->generation == m->generation ? dsc_max_i64(m->step, report->step) : m->step;
    switch (report->state) {
    case DSC_WORLD_READY:
        on_ready(m, index, report, now_ns);
        break;
    case DSC_WORLD_RUNS:
        on_runs(m, index, report, now_ns);
        break;
    case DSC_WORLD_LEAVES:
        if (slot->phase != DSC_SLOT_MEMBER && slot->phase != DSC_SLOT_READY)
            break;
        if (slot->phase == DSC_SLOT_MEMBER)
            break_world(m, now_ns);
        slot->phase = DSC_SLOT_LEAVES;
        break;
    case DSC_WORLD_DONE:
        if (slot->phase != DSC_SLOT_MEMBER || report->generation != m->generation || m->phase == DSC_MEMBERSHIP_ENDED)
            break;
        m->phase = DSC_MEMBERSHIP_DONE;
        m->saved = m->saved || report->saved;
        for (int32_t i = 0; i < m->count; i++)
            if (m->slot[i].phase == DSC_SLOT_READY || m->slot[i].phase == DSC_SLOT_STARTS)
                call(m, i, DSC_WORLD_CALL_END);
        break;
    }
    if (m->phase == DSC_MEMBERSHIP_DONE && slot->phase == DSC_SLOT_READY)
        call(m, index, DSC_WORLD_CALL_END);
    dsc_membership_tick(m, now_ns);
}

/* Another process could only meet with the same end. */
static bool is_hopeless(const dsc_rank_end *end)
{
    return end->exec_errno != 0 || (end->signal == 0 && (end->code == dsc_status_exit_code(DSC_ERR_INPUT) ||
                                                         end->code == dsc_status_exit_code(DSC_ERR_NOFIT)));
}

/* The process of a slot is gone without having left. A slot in which processes fail again and again waits longer. */
static void lose_slot(dsc_membership *m, int32_t index, const dsc_rank_end *end, int64_t now_ns)
{
    dsc_slot *slot = &m->slot[index];
    const int64_t wait_ns = slot->failures > 0 ? SECOND << dsc_min_i64(slot->failures - 1, 5) : 0;
    slot->failures++;
    m->lost_count++;
    slot->phase = DSC_SLOT_FREE;
    slot->free_at_ns = now_ns + wait_ns;
    m->lost_end = *end;
    m->has_lost_end = true;
    tell(m, DSC_MEMBERSHIP_LOST, index);
}

/* The process of a slot is gone; what follows from it for the world is the caller's. */
static void end_slot(dsc_membership *m, int32_t index, const dsc_rank_end *end, int64_t now_ns)
{
    dsc_slot *slot = &m->slot[index];
    const dsc_slot_phase before = slot->phase;
    slot->start_wanted = slot->killed = false;
    slot->signal_wanted = 0;
    if (is_over(m) || dsc_membership_is_mute(m) || is_hopeless(end)) {
        const bool killed_late = m->phase == DSC_MEMBERSHIP_DONE && end->signal != 0; /* it had nothing left to do */
        slot->phase = DSC_SLOT_CLOSED;
        if (end->code != 0 && m->phase != DSC_MEMBERSHIP_ENDED && !killed_late && !m->user_ends)
            blame(m, end);
        return;
    }
    if (before == DSC_SLOT_LEAVES || end->code == 0) {
        slot->phase = slot->barred ? DSC_SLOT_FREE : DSC_SLOT_CLOSED; /* a barred one is filled when it may be */
        tell(m, DSC_MEMBERSHIP_LEFT, index);
    } else {
        lose_slot(m, index, end, now_ns);
    }
    if (before == DSC_SLOT_MEMBER)
        break_world(m, now_ns);
}

void dsc_membership_ended(dsc_membership *m, int32_t index, const dsc_rank_end *end, int64_t now_ns)
{
    end_slot(m, index, end, now_ns);
    dsc_membership_tick(m, now_ns);
}

void dsc_membership_host_lost(dsc_membership *m, int32_t host, int64_t now_ns)
{
    for (int32_t i = 0; i < m->count; i++) {
        const dsc_rank_end end = { .rank = i, .code = dsc_status_exit_code(DSC_ERR_PEER) };
        if (m->slot[i].host != host)
            continue;
        if (dsc_slot_is_alive(&m->slot[i]))
            end_slot(m, i, &end, now_ns);
        m->slot[i].host_lost = true;
    }
    dsc_membership_tick(m, now_ns);
}

static void free_slot(dsc_slot *slot, int64_t now_ns)
{
    slot->phase = DSC_SLOT_FREE;
    slot->failures = 0;
    slot->free_at_ns = now_ns;
}

void dsc_membership_allow(dsc_membership *m, int32_t index, bool allowed, int64_t now_ns)
{
    dsc_slot *slot = &m->slot[index];
    slot->barred = !allowed;
    if (allowed && !dsc_slot_is_alive(slot))
        free_slot(slot, now_ns);
}

int32_t dsc_membership_alive(const dsc_membership *m)
{
    const int32_t living = alive(m) + count_in(m, DSC_SLOT_LEAVES);
    const bool may_start =
        !is_over(m) && !dsc_membership_is_mute(m) && alive(m) < wanted(m) && count_in(m, DSC_SLOT_FREE) > 0;
    return living > 0 ? living : may_start;
}

void dsc_membership_host_back(dsc_membership *m, int32_t host, int64_t now_ns)
{
    for (int32_t i = 0; i < m->count; i++)
        if (m->slot[i].host == host && m->slot[i].host_lost) {
            m->slot[i].host_lost = false;
            if (m->slot[i].phase == DSC_SLOT_FREE)
                free_slot(&m->slot[i], now_ns);
        }
}

void dsc_membership_user_ends(dsc_membership *m, int64_t now_ns)
{
    if (m->user_ends)
        return;
    m->user_ends = true;
    for (int32_t i = 0; i < m->count; i++)
        if (m->slot[i].phase == DSC_SLOT_STARTS ||
            (m->phase == DSC_MEMBERSHIP_RUNS && m->slot[i].phase == DSC_SLOT_READY))
            send_away(m, i);
        else if (m->phase == DSC_MEMBERSHIP_RUNS && m->slot[i].phase == DSC_SLOT_MEMBER)
            call(m, i, DSC_WORLD_CALL_END);
    dsc_membership_tick(m, now_ns);
}
