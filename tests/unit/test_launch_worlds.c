/* test_launch_worlds.c - a job whose ranks leave and join (launcher/protocol/membership.h), with its coordinator and
 * agents, in a simulated world. Orders and notices are lost, late and repeated. Packets of ranks come late, in order.
 * Ranks die at any moment, also while they open a world; they are stopped, asked to leave, and slow to start; hosts
 * die and come back. Every seed is one history, and an equal seed gives an equal history.
 *
 *   test_launch_worlds             500 seeds; 20,000 with DSC_TEST_NIGHT=1 (DSC_SIM_SEEDS=N: as many)
 *   DSC_SIM_SEED=7 DSC_SIM_TRACE=1 test_launch_worlds     one of them, with what happens
 *
 * Invariants: a slot never has two processes. The ranks of a world are numbered without gaps, host by host, and each
 * was ready. Rank 0 has states if any rank has. A world is at most one step behind the last one, if it has states. When
 * the faults are over the run is done, or it has ended for a reason. Then no process is left.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "launcher/protocol/control.h"

#define MS INT64_C(1000000)
#define SECOND INT64_C(1000000000)
#define NEVER INT64_MAX

enum { HOSTS_MAX = 3, SLOTS_MAX = 3, RANKS_MAX = HOSTS_MAX * SLOTS_MAX, MESSAGES_MAX = 4096, STEPS = 40 };

typedef enum message_kind { TO_AGENT_ORDER, TO_AGENT_TASK, TO_HEAD_NOTICE, TO_HEAD_REPORT, TO_RANK_CALL } message_kind;

typedef struct message {
    int64_t at_ns;
    uint64_t number; /* order of messages with equal times */
    message_kind kind;
    int32_t to; /* host, or slot */
    int32_t life;
    uint32_t epoch;
    dsc_order order;
    dsc_notice notice;
    dsc_world_report report;
    dsc_world_call call;
} message;

typedef enum rank_phase { GONE, STARTS, WAITS, OPENS, TRAINS } rank_phase;

/* One process of a slot. */
typedef struct sim_rank {
    rank_phase phase;
    int32_t life;
    int64_t at_ns; /* STARTS, OPENS: when that is done; TRAINS: when the loss of a peer is seen */
    bool killed;   /* and seen to end in the next pass of its agent */
    bool stopped, asked_to_leave, change_called, end_called, left;
    bool has_states;
    int64_t step; /* of its states */
    uint32_t generation;
    int32_t rank, size;
    int64_t last_packet_ns, last_call_ns; /* packets keep their order */
} sim_rank;

typedef struct world {
    uint64_t random, seed, message_number;
    bool trace, over, left, ready, connect_wanted[HOSTS_MAX];
    int64_t now_ns, quiet_ns; /* no faults from then on */
    int64_t whole_ns;         /* when the newest world was last seen to run */
    int32_t host_count, slots[HOSTS_MAX], rank_count, lose_percent, death_permille;
    int64_t host_dies_ns[HOSTS_MAX];
    bool host_dead[HOSTS_MAX], start_wanted[HOSTS_MAX];
    dsc_coordinator coordinator;
    dsc_coordinator_host host[HOSTS_MAX];
    dsc_membership membership;
    dsc_slot slot[RANKS_MAX];
    dsc_agent agent[HOSTS_MAX];
    dsc_rank_end end[HOSTS_MAX][SLOTS_MAX];
    sim_rank rank[RANKS_MAX];
    message *message;
    int32_t message_count;
    int64_t step_at_ns, steps_done; /* next step of the current world; the furthest step */
    uint32_t formed;                /* newest generation that was called for */
    int32_t called;                 /* ranks of it so far */
    bool carried_world;
    int32_t reforms, deaths, host_deaths;
    const char *broken;
} world;

static uint64_t next_random(world *w)
{
    uint64_t z = w->random += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static int64_t below(world *w, int64_t n) { return (int64_t)(next_random(w) % (uint64_t)n); }

static void say(const world *w, const char *fmt, ...) DSC_PRINTF(2, 3);
static void say(const world *w, const char *fmt, ...)
{
    va_list args;
    if (!w->trace)
        return;
    printf("# %8.3f ", (double)w->now_ns / 1e9);
    va_start(args, fmt);
    vprintf(fmt, args);
    va_end(args);
    printf("\n");
}

static void must(world *w, bool holds, const char *what)
{
    if (!holds && w->broken == NULL) {
        w->broken = what;
        say(w, "BROKEN: %s", what);
    }
}

static int32_t host_of(const world *w, int32_t slot)
{
    int32_t host = 0;
    for (; slot >= w->slots[host]; host++)
        slot -= w->slots[host];
    return host;
}

static int32_t first_of(const world *w, int32_t host)
{
    int32_t first = 0;
    for (int32_t i = 0; i < host; i++)
        first += w->slots[i];
    return first;
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */

static void post(world *w, message m, int64_t at_ns)
{
    DSC_ASSERT(w->message_count < MESSAGES_MAX);
    m.at_ns = at_ns;
    m.number = w->message_number++;
    w->message[w->message_count++] = m;
}

static void post_lossy(world *w, message m)
{
    const bool faults = w->now_ns < w->quiet_ns;
    for (int copies = faults && below(w, 100) < 10 ? 2 : 1; copies > 0; copies--)
        if (!faults || below(w, 100) >= w->lose_percent)
            post(w, m, w->now_ns + MS / 10 + below(w, faults ? 300 * MS : 5 * MS));
}

static void send_report(world *w, int32_t slot, dsc_world_state state, bool saved)
{
    sim_rank *r = &w->rank[slot];
    r->last_packet_ns = dsc_max_i64(r->last_packet_ns, w->now_ns + MS / 10 + below(w, 20 * MS));
    const message m = { .kind = TO_HEAD_REPORT,
                        .to = slot,
                        .life = r->life,
                        .report = { state, r->generation, r->step, r->has_states, saved } };
    post(w, m, r->last_packet_ns);
}

/* ---- ranks ------------------------------------------------------------------------------------------------------- */

/* The agent sees the end after the packets that the rank has sent. */
static void end_rank(world *w, int32_t slot, int32_t code, int32_t signal_number)
{
    sim_rank *r = &w->rank[slot];
    const int32_t host = host_of(w, slot);
    const dsc_rank_end end = { slot, 100 + r->life, code, signal_number, 0 };
    if (r->phase == GONE)
        return;
    say(w, "slot %d: rank %d of world %u ends with %d", slot, r->rank, r->generation, code);
    r->phase = GONE;
    w->deaths += code != 0;
    if (w->host_dead[host])
        return;
    for (int32_t i = 0; i < w->message_count; i++) /* its packets are read before its end */
        if (w->message[i].kind == TO_HEAD_REPORT && w->message[i].to == slot && w->message[i].life == r->life)
            w->message[i].at_ns = w->now_ns;
    dsc_agent_step(&w->agent[host], &(dsc_agent_event) { .kind = DSC_AGENT_ENDED, .now_ns = w->now_ns, .end = &end });
}

static void start_rank(world *w, int32_t slot)
{
    sim_rank *r = &w->rank[slot];
    must(w, r->phase == GONE, "a slot has two processes");
    *r = (sim_rank) { .phase = STARTS, .life = r->life + 1, .rank = -1, .at_ns = w->now_ns + below(w, 2 * SECOND) };
}

/* Those of a world that are in it still. */
static int32_t members_in(const world *w, uint32_t generation, rank_phase phase)
{
    int32_t count = 0;
    for (int32_t i = 0; i < w->rank_count; i++)
        count += w->rank[i].phase == phase && w->rank[i].generation == generation;
    return count;
}

/* Their calls are on the way. */
static int32_t members_called(const world *w, uint32_t generation)
{
    int32_t count = 0;
    for (int32_t i = 0; i < w->message_count; i++) {
        const message *m = &w->message[i];
        count += m->kind == TO_RANK_CALL && m->call.kind == DSC_WORLD_CALL_WORLD && m->call.generation == generation &&
                 w->rank[m->to].life == m->life && w->rank[m->to].phase != GONE;
    }
    return count;
}

static void leave_world(world *w, int32_t slot, bool has_states)
{
    sim_rank *r = &w->rank[slot];
    r->phase = WAITS;
    r->has_states = has_states;
    r->change_called = false;
    send_report(w, slot, DSC_WORLD_READY, false);
}

/* A rank that opens waits for all of its world. One that trains sees the loss of another after a while. */
static void move_rank(world *w, int32_t slot)
{
    sim_rank *r = &w->rank[slot];
    const bool in_world = r->phase == OPENS || r->phase == TRAINS;
    const bool whole = !in_world || members_in(w, r->generation, OPENS) + members_in(w, r->generation, TRAINS) +
                                            members_called(w, r->generation) ==
                                        r->size;
    if (r->phase == STARTS && w->now_ns >= r->at_ns) {
        r->phase = WAITS;
        send_report(w, slot, DSC_WORLD_READY, false);
    } else if (!whole) {
        if (r->at_ns == NEVER || r->phase == OPENS)
            r->at_ns = dsc_min_i64(r->at_ns, w->now_ns) + (r->phase == TRAINS ? below(w, SECOND) : 0);
        if (w->now_ns >= r->at_ns)
            leave_world(w, slot, r->has_states);
    } else if (r->phase == OPENS && w->now_ns >= r->at_ns && members_in(w, r->generation, OPENS) > 0) {
        r->phase = TRAINS;
        r->at_ns = NEVER;
        w->step_at_ns = w->now_ns + 200 * MS;
    }
}

/* All ranks of the world are at a boundary: a step, or a change that one of them knows of. */
static void step_world(world *w)
{
    uint32_t generation = 0;
    bool parts = false, ends = false;
    int32_t size = 0, staying = 0;
    for (int32_t i = 0; i < w->rank_count; i++)
        if (w->rank[i].phase == TRAINS && w->rank[i].generation >= generation) {
            generation = w->rank[i].generation;
            size = w->rank[i].size;
        }
    if (w->now_ns < w->step_at_ns || size == 0 || members_in(w, generation, TRAINS) != size)
        return;
    for (int32_t i = 0; i < w->rank_count; i++) {
        const sim_rank *r = &w->rank[i];
        if (r->phase != TRAINS || r->generation != generation)
            continue;
        if (r->stopped)
            return;
        parts = parts || r->change_called || r->asked_to_leave;
        ends = ends || r->end_called;
        staying += !r->asked_to_leave;
    }
    w->step_at_ns = w->now_ns + 50 * MS + below(w, 100 * MS);
    for (int32_t i = 0; i < w->rank_count; i++) {
        sim_rank *r = &w->rank[i];
        if (r->phase != TRAINS || r->generation != generation)
            continue;
        r->step++;
        r->has_states = true;
        w->steps_done = dsc_max_i64(w->steps_done, r->step);
        send_report(w, i, DSC_WORLD_RUNS, false);
        if (r->step >= STEPS || ends || (parts && staying == 0)) {
            send_report(w, i, DSC_WORLD_DONE, true);
            end_rank(w, i, 0, 0);
        } else if (parts && r->asked_to_leave) {
            send_report(w, i, DSC_WORLD_LEAVES, false);
            r->left = true;
            end_rank(w, i, 0, 0);
        } else if (parts) {
            leave_world(w, i, true);
        }
    }
}

static void take_call(world *w, int32_t slot, const dsc_world_call *call)
{
    sim_rank *r = &w->rank[slot];
    if (r->phase == GONE)
        return;
    if (call->kind == DSC_WORLD_CALL_CHANGE) {
        r->change_called = r->change_called || call->generation == r->generation;
    } else if (call->kind == DSC_WORLD_CALL_END) {
        r->end_called = true;
        if (r->phase == WAITS || r->phase == STARTS)
            end_rank(w, slot, 0, 0);
    } else {
        must(w, r->phase == WAITS, "a rank that is not ready is called to a world");
        must(w, call->generation > r->generation, "a rank is called to an old world");
        r->phase = OPENS;
        r->generation = call->generation;
        r->rank = call->rank;
        r->size = call->size;
        r->at_ns = w->now_ns + 20 * MS + below(w, 300 * MS);
        if (!call->carried)
            r->step = 0;
        r->step = dsc_max_i64(r->step, call->carried ? dsc_max_i64(0, w->steps_done - 1) : 0);
        r->has_states = call->carried || r->has_states;
        if (call->last)
            r->end_called = true;
    }
}

/* ---- the launcher ------------------------------------------------------------------------------------------------ */

static void step_coordinator(world *w, dsc_coordinator_event event)
{
    event.now_ns = w->now_ns;
    dsc_coordinator_step(&w->coordinator, &event);
}

/* The calls of a world come in the order of its ranks. */
static void check_call(world *w, const dsc_membership_action *a)
{
    const dsc_world_call *call = &a->call;
    if (call->generation != w->formed) {
        must(w, call->generation > w->formed, "generations do not grow");
        must(w, call->rank == 0, "rank 0 is not the first");
        must(w, !call->carried || w->slot[a->slot].has_states, "rank 0 has no states, but another rank has");
        must(w, call->last || call->size >= w->membership.limits.least, "a world is too small");
        must(w, call->size <= w->membership.limits.most, "a world is too large");
        w->formed = call->generation;
        w->called = 0;
        w->reforms++;
    }
    must(w, call->rank == w->called++, "ranks are not numbered one by one");
    must(w, call->local_rank < call->local_size && call->local_size <= call->size, "a place is none");
    must(w, call->carried || !w->slot[a->slot].has_states, "states are forgotten");
}

/* Ranks that are left wait for others while any slot may get one: its host may be there again. */
static void check_shortage(world *w, const dsc_membership_action *a)
{
    bool all_left = true;
    for (int32_t i = 0; i < w->rank_count; i++)
        all_left = all_left && (w->rank[i].left || w->slot[i].phase == DSC_SLOT_READY);
    must(w,
         a->size == 0 || all_left || w->membership.limits.replacements >= 0 ||
             w->now_ns - w->whole_ns >= w->membership.limits.wait_ns - 10 * MS,
         "a shortage ends the job before its wait is over");
}

static void on_membership(world *w, const dsc_membership_action *a)
{
    if (a->kind == DSC_MEMBERSHIP_DO_TELL && a->event == DSC_MEMBERSHIP_TOO_FEW)
        check_shortage(w, a);
    if (a->kind != DSC_MEMBERSHIP_DO_CALL) {
        say(w, "membership: event %d, slot %d, world %u of %d", (int)a->event, a->slot, a->generation, a->size);
        return;
    }
    sim_rank *r = &w->rank[a->slot];
    if (a->call.kind == DSC_WORLD_CALL_WORLD)
        check_call(w, a);
    r->last_call_ns = dsc_max_i64(r->last_call_ns, w->now_ns + MS / 10 + below(w, 20 * MS));
    post(w, (message) { .kind = TO_RANK_CALL, .to = a->slot, .life = r->life, .call = a->call }, r->last_call_ns);
}

static void on_head_action(void *user, const dsc_coordinator_action *action)
{
    world *w = user;
    switch (action->kind) {
    case DSC_COORDINATOR_DO_CONNECT:
        w->connect_wanted[action->host] = true;
        break;
    case DSC_COORDINATOR_DO_READY:
        w->ready = true;
        break;
    case DSC_COORDINATOR_DO_TASK:
        post_lossy(w, (message) { .kind = TO_AGENT_TASK, .to = action->host, .epoch = action->epoch });
        break;
    case DSC_COORDINATOR_DO_ORDER:
        post_lossy(w, (message) { .kind = TO_AGENT_ORDER, .to = action->host, .order = action->order });
        break;
    case DSC_COORDINATOR_DO_MEMBERSHIP:
        on_membership(w, action->membership);
        break;
    case DSC_COORDINATOR_DO_OVER:
        w->over = true;
        break;
    case DSC_COORDINATOR_DO_LEFT:
        w->left = true;
        break;
    case DSC_COORDINATOR_DO_LOST:
        say(w, "host %d is lost", action->host);
        break;
    case DSC_COORDINATOR_DO_ENDED:
    case DSC_COORDINATOR_DO_DROP:
        break;
    }
}

typedef struct agent_of {
    world *w;
    int32_t host;
} agent_of;
static agent_of emitter[HOSTS_MAX];

static void on_agent_action(void *user, const dsc_agent_action *action)
{
    world *w = ((agent_of *)user)->w;
    const int32_t host = ((agent_of *)user)->host, first = first_of(w, host);
    switch (action->kind) {
    case DSC_AGENT_DO_START:
        w->start_wanted[host] = true;
        break;
    case DSC_AGENT_DO_COMMAND:
        if (action->command.signal == 0)
            start_rank(w, first + action->command.slot);
        else
            w->rank[first + action->command.slot].killed = true;
        break;
    case DSC_AGENT_DO_KILL:
    case DSC_AGENT_DO_SIGNAL:
        for (int32_t i = first; i < first + w->slots[host]; i++)
            w->rank[i].killed = true;
        break;
    case DSC_AGENT_DO_NOTICE:
        post_lossy(w, (message) { .kind = TO_HEAD_NOTICE, .to = host, .notice = action->notice });
        break;
    case DSC_AGENT_DO_STOP_READING:
    case DSC_AGENT_DO_EXIT:
        break;
    }
}

static void tend_host(world *w, int32_t host)
{
    bool runs = false;
    if (w->host_dead[host])
        return;
    for (int32_t i = first_of(w, host); i < first_of(w, host) + w->slots[host]; i++) {
        if (w->rank[i].killed)
            end_rank(w, i, 137, SIGKILL);
        runs = runs || w->rank[i].phase != GONE;
    }
    if (w->start_wanted[host]) {
        w->start_wanted[host] = false;
        dsc_agent_step(&w->agent[host],
                       &(dsc_agent_event) { .kind = DSC_AGENT_STARTED, .now_ns = w->now_ns, .ok = true });
    } else if (!runs && w->agent[host].phase == DSC_AGENT_RUNS) {
        dsc_agent_step(&w->agent[host], &(dsc_agent_event) { .kind = DSC_AGENT_NO_CHILDREN, .now_ns = w->now_ns });
    }
    if (w->agent[host].phase == DSC_AGENT_GONE)
        dsc_agent_step(&w->agent[host], &(dsc_agent_event) { .kind = DSC_AGENT_DRAINED, .now_ns = w->now_ns });
    dsc_agent_step(&w->agent[host], &(dsc_agent_event) { .kind = DSC_AGENT_TICK, .now_ns = w->now_ns });
}

/* ---- faults ------------------------------------------------------------------------------------------------------ */

static void make_faults(world *w)
{
    if (w->now_ns >= w->quiet_ns)
        return;
    for (int32_t h = 0; h < w->host_count; h++)
        if (!w->host_dead[h] && w->now_ns >= w->host_dies_ns[h]) {
            say(w, "host %d dies", h);
            w->host_dead[h] = true;
            w->host_deaths++;
            for (int32_t i = first_of(w, h); i < first_of(w, h) + w->slots[h]; i++)
                w->rank[i].phase = GONE;
        }
    for (int32_t i = 0; i < w->rank_count; i++) {
        sim_rank *r = &w->rank[i];
        if (r->phase == GONE || below(w, 10000) >= w->death_permille)
            continue;
        switch (below(w, 5)) {
        case 0:
        case 1:
            end_rank(w, i, 137, SIGKILL);
            break;
        case 2:
            r->asked_to_leave = true;
            break;
        case 3:
            r->stopped = true;
            break;
        default:
            end_rank(w, i, 1, 0);
            break;
        }
    }
}

/* The driver kills members that are stopped. */
static void look_for_stopped(world *w)
{
    for (int32_t i = 0; i < w->rank_count; i++)
        if (w->rank[i].stopped && w->rank[i].phase == TRAINS)
            step_coordinator(w,
                             (dsc_coordinator_event) { .kind = DSC_COORDINATOR_SIGNAL, .slot = i, .signal = SIGKILL });
}

/* ---- a history --------------------------------------------------------------------------------------------------- */

static void deliver(world *w, const message *m)
{
    const bool to_host = m->kind == TO_AGENT_ORDER || m->kind == TO_AGENT_TASK;
    if (to_host && w->host_dead[m->to])
        return;
    switch (m->kind) {
    case TO_AGENT_ORDER:
        dsc_agent_step(&w->agent[m->to],
                       &(dsc_agent_event) { .kind = DSC_AGENT_ORDER, .now_ns = w->now_ns, .order = &m->order });
        break;
    case TO_AGENT_TASK:
        dsc_agent_step(&w->agent[m->to], &(dsc_agent_event) { .kind = DSC_AGENT_TASK,
                                                              .now_ns = w->now_ns,
                                                              .epoch = m->epoch,
                                                              .rank_count = w->slots[m->to],
                                                              .elastic = true });
        break;
    case TO_HEAD_NOTICE:
        if (!w->host_dead[m->to])
            step_coordinator(
                w, (dsc_coordinator_event) { .kind = DSC_COORDINATOR_NOTICE, .host = m->to, .notice = &m->notice });
        break;
    case TO_HEAD_REPORT:
        if (!w->host_dead[host_of(w, m->to)])
            step_coordinator(
                w, (dsc_coordinator_event) { .kind = DSC_COORDINATOR_REPORT, .slot = m->to, .report = &m->report });
        break;
    case TO_RANK_CALL:
        if (w->rank[m->to].life == m->life && !w->host_dead[host_of(w, m->to)])
            take_call(w, m->to, &m->call);
        break;
    }
}

static void deliver_due(world *w)
{
    for (;;) {
        int32_t next = -1;
        for (int32_t i = 0; i < w->message_count; i++)
            if (w->message[i].at_ns <= w->now_ns &&
                (next < 0 || w->message[i].at_ns < w->message[next].at_ns ||
                 (w->message[i].at_ns == w->message[next].at_ns && w->message[i].number < w->message[next].number)))
                next = i;
        if (next < 0)
            return;
        const message m = w->message[next];
        w->message[next] = w->message[--w->message_count];
        deliver(w, &m);
    }
}

/* A dead host refuses, or is there again with a new agent. */
static void connect_host(world *w, int32_t host)
{
    w->connect_wanted[host] = false;
    if (w->host_dead[host] && below(w, 2) == 0) {
        step_coordinator(w, (dsc_coordinator_event) { .kind = DSC_COORDINATOR_REFUSED, .host = host });
        return;
    }
    if (w->host_dead[host]) {
        say(w, "host %d is there again", host);
        w->host_dies_ns[host] = NEVER;
    }
    w->host_dead[host] = w->start_wanted[host] = false;
    dsc_agent_init(&w->agent[host], w->end[host], SLOTS_MAX, w->now_ns, on_agent_action, &emitter[host]);
    step_coordinator(w, (dsc_coordinator_event) { .kind = DSC_COORDINATOR_HELLO, .host = host });
}

static void settle(world *w)
{
    for (int32_t h = 0; h < w->host_count; h++)
        if (w->connect_wanted[h])
            connect_host(w, h);
    if (w->ready) {
        w->ready = false;
        step_coordinator(w, (dsc_coordinator_event) { .kind = DSC_COORDINATOR_START });
    }
}

static void open_world(world *w, uint64_t seed)
{
    w->seed = w->random = seed;
    w->host_count = 1 + (int32_t)below(w, HOSTS_MAX);
    w->lose_percent = below(w, 2) == 0 ? 0 : (int32_t)below(w, 30);
    w->death_permille = below(w, 4) == 0 ? 0 : 1 + (int32_t)below(w, 12);
    w->quiet_ns = 5 * SECOND + below(w, 20 * SECOND);
    for (int32_t h = 0; h < w->host_count; h++) {
        w->slots[h] = 1 + (int32_t)below(w, SLOTS_MAX);
        w->host[h].rank_count = w->slots[h];
        w->host_dies_ns[h] = below(w, 8) == 0 ? below(w, w->quiet_ns) : NEVER;
        w->rank_count += w->slots[h];
        emitter[h] = (agent_of) { w, h };
        dsc_agent_init(&w->agent[h], w->end[h], SLOTS_MAX, 0, on_agent_action, &emitter[h]);
    }
    const int32_t least = 1 + (int32_t)below(w, w->rank_count);
    const dsc_membership_limits limits = { .least = least,
                                           .most = w->rank_count,
                                           .first = least + (int32_t)below(w, w->rank_count - least + 1),
                                           .wait_ns = below(w, 3) * 10 * SECOND,
                                           .replacements = below(w, 4) == 0 ? (int32_t)below(w, 4) : -1 };
    dsc_coordinator_init(&w->coordinator, w->host, w->host_count, SECOND, on_head_action, w);
    dsc_coordinator_set_membership(&w->coordinator, &w->membership, w->slot, w->rank_count, &limits);
    say(w, "%d hosts, %d slots, %d to %d ranks, %d at first", w->host_count, w->rank_count, least, w->rank_count,
        limits.first);
}

static void run_history(world *w)
{
    step_coordinator(w, (dsc_coordinator_event) { .kind = DSC_COORDINATOR_CONNECT });
    settle(w);
    for (; !w->over && w->now_ns < w->quiet_ns + 300 * SECOND && w->broken == NULL; w->now_ns += 5 * MS) {
        make_faults(w);
        deliver_due(w);
        for (int32_t i = 0; i < w->rank_count; i++)
            move_rank(w, i);
        step_world(w);
        look_for_stopped(w);
        for (int32_t h = 0; h < w->host_count; h++)
            tend_host(w, h);
        step_coordinator(w, (dsc_coordinator_event) { .kind = DSC_COORDINATOR_TICK });
        if (w->membership.phase == DSC_MEMBERSHIP_RUNS)
            w->whole_ns = w->now_ns;
        settle(w);
    }
    must(w, w->over, "the job does not end");
    for (int32_t i = 0; i < w->rank_count; i++)
        must(w, w->rank[i].phase == GONE || w->host[host_of(w, i)].phase == DSC_HOST_LOST, "a process is left");
    const dsc_verdict *v = &w->coordinator.verdict;
    must(w,
         w->steps_done >= STEPS || v->culprit_known || v->found_code != 0 || w->membership.last ||
             w->membership.phase == DSC_MEMBERSHIP_DONE,
         "a run ends early without a reason");
    if (w->death_permille == 0 && w->lose_percent == 0 && w->host_deaths == 0)
        must(w, w->steps_done == STEPS, "an undisturbed run is not done");
}

static int64_t number_of(const char *name, int64_t other)
{
    const char *text = getenv(name);
    return text != NULL ? strtoll(text, NULL, 10) : other;
}

static void histories(void **state)
{
    const int64_t one = number_of("DSC_SIM_SEED", -1);
    const int64_t count = number_of("DSC_SIM_SEEDS", getenv("DSC_TEST_NIGHT") != NULL ? 20000 : 500);
    int64_t reforms = 0, deaths = 0, host_deaths = 0, done = 0;
    static message messages[MESSAGES_MAX];
    static world w;
    (void)state;
    for (int64_t seed = one >= 0 ? one : 1; seed <= (one >= 0 ? one : count); seed++) {
        w = (world) { .trace = getenv("DSC_SIM_TRACE") != NULL, .message = messages };
        open_world(&w, (uint64_t)seed);
        run_history(&w);
        if (w.broken != NULL)
            print_error("seed %lld: %s\n", (long long)seed, w.broken);
        assert_null(w.broken);
        reforms += w.reforms;
        deaths += w.deaths;
        host_deaths += w.host_deaths;
        done += w.steps_done >= STEPS;
    }
    print_message("%lld worlds, %lld deaths, %lld hosts lost, %lld of the runs done\n", (long long)reforms,
                  (long long)deaths, (long long)host_deaths, (long long)done);
    if (one < 0) { /* histories without faults would show nothing */
        assert_true(reforms > 2 * count && deaths > count && host_deaths > count / 20 && done > count / 4);
    }
}

/* ---- the machine by itself --------------------------------------------------------------------------------------- */

/* Slots 0 and 1 are on host 0, the others on host 1. */
typedef struct machine {
    dsc_membership m;
    dsc_slot slot[4];
    int64_t now_ns;
    dsc_world_call call[4]; /* the last one to each slot */
    int32_t called[4], started, blamed;
    bool too_few;
    int64_t step; /* of the last news */
} machine;

static void note(void *user, const dsc_membership_action *a)
{
    machine *t = user;
    if (a->kind == DSC_MEMBERSHIP_DO_CALL) {
        t->call[a->slot] = a->call;
        t->called[a->slot]++;
    }
    if (a->kind != DSC_MEMBERSHIP_DO_TELL) {
        t->blamed += a->kind == DSC_MEMBERSHIP_DO_BLAME;
        return;
    }
    t->step = a->step;
    t->started += a->event == DSC_MEMBERSHIP_STARTED;
    t->too_few = t->too_few || a->event == DSC_MEMBERSHIP_TOO_FEW;
}

static void report(machine *t, int32_t slot, dsc_world_state state, int64_t step)
{
    const uint32_t generation = t->slot[slot].phase == DSC_SLOT_STARTS ? 0 : t->m.generation;
    const dsc_world_report r = { state, generation, step, step > 0, false };
    dsc_membership_report(&t->m, slot, &r, t->now_ns);
}

static void open_machine(machine *t, int32_t least, int32_t most, int32_t first, int32_t replacements)
{
    const dsc_membership_limits limits = { least, most, first, 600 * SECOND, replacements };
    *t = (machine) { .now_ns = SECOND, .slot = { { .host = 0 }, { .host = 0 }, { .host = 1 }, { .host = 1 } } };
    dsc_membership_init(&t->m, t->slot, 4, &limits, note, t);
}

/* The first world, whose step 5 is done. */
static void begin_machine(machine *t)
{
    dsc_membership_begin(&t->m, t->now_ns);
    for (int32_t i = 0; i < t->m.limits.first; i++)
        report(t, i, DSC_WORLD_READY, 0);
    for (int32_t i = 0; i < t->m.limits.first; i++)
        report(t, i, DSC_WORLD_RUNS, 5);
    assert_int_equal(t->m.generation, 1);
    assert_int_equal(t->m.phase, DSC_MEMBERSHIP_RUNS);
}

static void a_lost_host_is_waited_for(void **state)
{
    machine t;
    (void)state;
    open_machine(&t, 3, 4, 4, -1);
    begin_machine(&t);
    dsc_membership_host_lost(&t.m, 1, t.now_ns);
    report(&t, 0, DSC_WORLD_READY, 5);
    report(&t, 1, DSC_WORLD_READY, 5);
    assert_false(t.too_few);
    t.now_ns += 10 * SECOND;
    dsc_membership_host_back(&t.m, 1, t.now_ns);
    dsc_membership_tick(&t.m, t.now_ns);
    assert_int_equal(t.started, 2);
    report(&t, 2, DSC_WORLD_READY, 0);
    assert_int_equal(t.m.generation, 2);
    assert_int_equal(t.m.size, 3);
    assert_false(t.m.last);
    /* Now all hosts are lost, and none comes. */
    dsc_membership_host_lost(&t.m, 0, t.now_ns);
    dsc_membership_host_lost(&t.m, 1, t.now_ns);
    assert_false(t.too_few);
    assert_int_equal(dsc_membership_alive(&t.m), 1);
    assert_int_equal(dsc_membership_wake_ns(&t.m), t.now_ns + 600 * SECOND);
    t.now_ns += 600 * SECOND;
    dsc_membership_tick(&t.m, t.now_ns);
    assert_true(t.too_few);
    assert_int_equal(t.blamed, 1);
}

static void a_barred_slot_is_waited_for(void **state)
{
    machine t;
    (void)state;
    open_machine(&t, 3, 4, 3, -1);
    t.slot[3].barred = true;
    begin_machine(&t);
    dsc_membership_allow(&t.m, 2, false, t.now_ns);
    report(&t, 2, DSC_WORLD_LEAVES, 5);
    t.slot[3].phase = DSC_SLOT_CLOSED; /* so that only slot 2 may get a rank */
    report(&t, 0, DSC_WORLD_READY, 5);
    report(&t, 1, DSC_WORLD_READY, 5);
    assert_false(t.too_few);
    dsc_membership_ended(&t.m, 2, &(dsc_rank_end) { 2, 100, 0, 0, 0 }, t.now_ns);
    assert_false(t.too_few);
    assert_int_equal(t.started, 0);
    dsc_membership_allow(&t.m, 2, true, t.now_ns);
    dsc_membership_tick(&t.m, t.now_ns);
    assert_int_equal(t.started, 1);
}

static void a_slot_of_a_lost_host_is_not_filled(void **state)
{
    machine t;
    (void)state;
    open_machine(&t, 1, 4, 4, -1);
    begin_machine(&t);
    dsc_membership_host_lost(&t.m, 1, t.now_ns);
    dsc_membership_allow(&t.m, 2, false, t.now_ns);
    dsc_membership_allow(&t.m, 2, true, t.now_ns);
    dsc_membership_tick(&t.m, t.now_ns);
    assert_int_equal(t.started, 0);
    dsc_membership_allow(&t.m, 3, false, t.now_ns);
    dsc_membership_host_back(&t.m, 1, t.now_ns);
    dsc_membership_tick(&t.m, t.now_ns);
    assert_int_equal(t.started, 1);
    assert_int_equal(t.slot[2].phase, DSC_SLOT_STARTS);
}

/* Rank 1 dies; ranks 0 and 2 come out of the broken world, before and after the user ends the job. */
static void the_user_ends_a_broken_world(void **state)
{
    machine t;
    (void)state;
    open_machine(&t, 1, 3, 3, 0);
    begin_machine(&t);
    dsc_membership_ended(&t.m, 1, &(dsc_rank_end) { 1, 100, 137, SIGKILL, 0 }, t.now_ns);
    report(&t, 0, DSC_WORLD_READY, 5);
    memset(t.called, 0, sizeof t.called);
    dsc_membership_user_ends(&t.m, t.now_ns);
    assert_int_equal(t.called[0] + t.called[2], 0);
    report(&t, 2, DSC_WORLD_READY, 5);
    assert_int_equal(t.called[0] + t.called[2], 2);
    for (int32_t i = 0; i <= 2; i += 2) {
        assert_int_equal(t.call[i].kind, DSC_WORLD_CALL_WORLD);
        assert_int_equal(t.call[i].size, 2);
        assert_true(t.call[i].last && t.call[i].carried);
        report(&t, i, DSC_WORLD_DONE, 6);
        dsc_membership_ended(&t.m, i, &(dsc_rank_end) { i, 100, 0, 0, 0 }, t.now_ns);
    }
    assert_int_equal(dsc_membership_alive(&t.m), 0);
}

/* The ranks of a world that runs get END; ranks without states have nothing to save. */
static void the_user_ends_a_world_that_runs(void **state)
{
    machine t;
    (void)state;
    open_machine(&t, 1, 4, 2, -1);
    begin_machine(&t);
    dsc_membership_tick(&t.m, t.now_ns);
    report(&t, 2, DSC_WORLD_READY, 0);
    dsc_membership_user_ends(&t.m, t.now_ns);
    for (int32_t i = 0; i < 4; i++)
        assert_int_equal(t.call[i].kind, DSC_WORLD_CALL_END);
    assert_int_equal(t.m.generation, 1);
}

static void the_user_ends_a_job_without_states(void **state)
{
    machine t;
    (void)state;
    open_machine(&t, 2, 4, 2, -1);
    dsc_membership_begin(&t.m, t.now_ns);
    report(&t, 0, DSC_WORLD_READY, 0);
    dsc_membership_user_ends(&t.m, t.now_ns);
    assert_int_equal(t.call[0].kind, DSC_WORLD_CALL_END);
    assert_int_equal(t.call[1].kind, DSC_WORLD_CALL_END);
    assert_int_equal(t.m.generation, 0);
}

/* Two more ranks are growth; of two losses one is replaced. */
static void growth_is_not_a_replacement(void **state)
{
    machine t;
    const dsc_rank_end end = { 1, 100, 137, SIGKILL, 0 };
    (void)state;
    open_machine(&t, 1, 4, 2, 1);
    begin_machine(&t);
    dsc_membership_tick(&t.m, t.now_ns);
    assert_int_equal(t.started, 2);
    t.now_ns += 60 * SECOND;
    for (int32_t lost = 1; lost <= 2; lost++) {
        dsc_membership_ended(&t.m, 1, &end, t.now_ns);
        t.now_ns += 60 * SECOND;
        dsc_membership_tick(&t.m, t.now_ns);
        assert_int_equal(t.started, 3);
    }
}

static void a_world_that_goes_back_names_its_own_step(void **state)
{
    machine t;
    (void)state;
    open_machine(&t, 1, 2, 2, 0);
    begin_machine(&t);
    dsc_membership_ended(&t.m, 1, &(dsc_rank_end) { 1, 100, 137, SIGKILL, 0 }, t.now_ns);
    report(&t, 0, DSC_WORLD_READY, 5);
    assert_int_equal(t.m.generation, 2);
    report(&t, 0, DSC_WORLD_RUNS, 3);
    assert_int_equal(t.step, 3);
}

static void a_process_that_never_reports_is_killed(void **state)
{
    machine t;
    (void)state;
    open_machine(&t, 1, 2, 2, -1);
    begin_machine(&t);
    dsc_membership_ended(&t.m, 1, &(dsc_rank_end) { 1, 100, 137, SIGKILL, 0 }, t.now_ns);
    report(&t, 0, DSC_WORLD_READY, 5);
    report(&t, 0, DSC_WORLD_RUNS, 6);
    while (dsc_membership_command(&t.m, 0).slot >= 0) /* the starts */
        ;
    t.now_ns = dsc_membership_wake_ns(&t.m);
    assert_int_equal(t.now_ns, SECOND + DSC_MEMBERSHIP_READY_NS);
    dsc_membership_tick(&t.m, t.now_ns);
    const dsc_slot_command command = dsc_membership_command(&t.m, 0);
    assert_int_equal(command.slot, 1);
    assert_int_equal(command.signal, SIGKILL);
    assert_int_equal(dsc_membership_wake_ns(&t.m), NEVER);
}

static void a_program_that_never_reports_is_not_killed(void **state)
{
    machine t;
    (void)state;
    open_machine(&t, 1, 2, 2, -1);
    dsc_membership_begin(&t.m, t.now_ns);
    t.now_ns += 2 * DSC_MEMBERSHIP_READY_NS;
    dsc_membership_tick(&t.m, t.now_ns);
    for (dsc_slot_command command; (command = dsc_membership_command(&t.m, 0)).slot >= 0;)
        assert_int_equal(command.signal, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(histories),
                                        cmocka_unit_test(a_lost_host_is_waited_for),
                                        cmocka_unit_test(a_barred_slot_is_waited_for),
                                        cmocka_unit_test(a_slot_of_a_lost_host_is_not_filled),
                                        cmocka_unit_test(the_user_ends_a_broken_world),
                                        cmocka_unit_test(the_user_ends_a_world_that_runs),
                                        cmocka_unit_test(the_user_ends_a_job_without_states),
                                        cmocka_unit_test(growth_is_not_a_replacement),
                                        cmocka_unit_test(a_world_that_goes_back_names_its_own_step),
                                        cmocka_unit_test(a_process_that_never_reports_is_killed),
                                        cmocka_unit_test(a_program_that_never_reports_is_not_killed) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
