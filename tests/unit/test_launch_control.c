/* test_launch_control.c - coordinator and agents (launcher/protocol/control.h) in a simulated world. Messages are
 * lost, late, repeated and reordered; links are cut in one or both directions. Hosts, agents and the coordinator die,
 * users interrupt, and jobs start again. Every seed is one history, and an equal seed gives an equal history.
 *
 *   test_launch_control            500 seeds; 20,000 with DSC_TEST_NIGHT=1 (DSC_SIM_SEEDS=N: as many)
 *   DSC_SIM_SEED=7 DSC_SIM_TRACE=1 test_launch_control    one of them, with what happens
 *
 * Invariants: ranks of two starts never run at once on a host. A run is over only when no reachable host runs a part of
 * it. An end reaches every host in time and is counted once, and no rank is blamed without a fault.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "launcher/coordinator/restart.h"
#include "launcher/protocol/control.h"

#define MS INT64_C(1000000)
#define SECOND INT64_C(1000000000)

enum { HOSTS_MAX = 5, RANKS_MAX = 4, AGENTS_MAX = 64, MESSAGES_MAX = 8192 };

typedef enum message_kind { TO_HEAD_HELLO, TO_HEAD_NOTICE, TO_HEAD_CLOSED, TO_AGENT_ORDER, TO_AGENT_TASK,
                            TO_AGENT_CLOSED } message_kind;

typedef struct message {
    int64_t at_ns;
    message_kind kind;
    int32_t agent;
    uint32_t epoch;
    dsc_order order;
    dsc_notice notice;
} message;

typedef struct sim_rank {
    bool runs, ignores_term;
    int64_t ends_at_ns;
    int32_t code, signal;
} sim_rank;

/* One start of dsc-launch --agent. */
typedef struct sim_agent {
    int32_t host;
    bool alive;         /* the process */
    bool linked;        /* the coordinator has not given this stream up */
    bool start_wanted, reported_gone;
    dsc_agent machine;
    dsc_rank_end end[RANKS_MAX];
    sim_rank rank[RANKS_MAX];
    uint32_t epoch;     /* of the ranks */
    int32_t passed;     /* signals that reached the ranks of this epoch */
    int64_t closed_ns;  /* it knows that its coordinator is gone */
} sim_agent;

typedef struct world {
    uint64_t random;
    uint64_t seed;
    bool trace;
    int64_t now_ns;
    int32_t host_count;
    /* This history's faults. */
    int32_t lose_percent, repeat_percent;
    int64_t delay_max_ns;
    int64_t cut_from_ns[HOSTS_MAX], cut_until_ns[HOSTS_MAX];
    bool cut_to[HOSTS_MAX], cut_from[HOSTS_MAX];
    int64_t host_dies_ns[HOSTS_MAX], agent_dies_ns[HOSTS_MAX], coordinator_dies_ns;
    int64_t user_at_ns, user_again_ns, found_at_ns;
    bool rank_fails, death_is_seen;

    dsc_coordinator coordinator;
    dsc_coordinator_host host[HOSTS_MAX];
    int32_t link_of[HOSTS_MAX]; /* agent, or -1 */
    sim_agent agent[AGENTS_MAX];
    int32_t agent_count;
    message *message;
    int32_t message_count;
    bool coordinator_alive, connect_wanted[HOSTS_MAX], drop_wanted[HOSTS_MAX], ready, over, left;
    int32_t restart_count, restart_limit;
    int32_t passed;          /* signals of this run that end nothing */
    int64_t pass_at_ns, connect_at_ns;
    int32_t counted[HOSTS_MAX * RANKS_MAX]; /* ends of this run */
    uint32_t found_epoch;    /* the hang finder spoke in that run */
    int64_t ending_since_ns; /* something has happened that must end the run */
    const char *broken;
} world;

static uint64_t next_random(world *w)
{
    uint64_t z = w->random += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static int64_t random_below(world *w, int64_t n) { return (int64_t)(next_random(w) % (uint64_t)n); }
static bool chance(world *w, int32_t percent) { return random_below(w, 100) < percent; }

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

static int32_t first_rank(const world *w, int32_t host)
{
    int32_t first = 0;
    for (int32_t i = 0; i < host; i++)
        first += w->host[i].rank_count;
    return first;
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */

static bool is_cut(const world *w, int32_t host, bool to_agent)
{
    return w->now_ns >= w->cut_from_ns[host] && w->now_ns < w->cut_until_ns[host] &&
           (to_agent ? w->cut_to[host] : w->cut_from[host]);
}

static void post(world *w, message m)
{
    const bool to_agent = m.kind >= TO_AGENT_ORDER;
    const int32_t host = w->agent[m.agent].host;
    if (m.kind != TO_HEAD_HELLO && (is_cut(w, host, to_agent) || chance(w, w->lose_percent)))
        return; /* a host that nobody reaches is asked until it answers */
    const int copies = 1 + chance(w, w->repeat_percent);
    for (int i = 0; i < copies; i++) {
        DSC_ASSERT(w->message_count < MESSAGES_MAX);
        const int64_t from_ns = is_cut(w, host, to_agent) ? w->cut_until_ns[host] : w->now_ns;
        m.at_ns = from_ns + 100000 + random_below(w, w->delay_max_ns);
        w->message[w->message_count++] = m;
    }
}

/* ---- agents ------------------------------------------------------------------------------------------------------ */

static int32_t running(const world *w, const sim_agent *a)
{
    int32_t count = 0;
    for (int32_t i = 0; i < w->host[a->host].rank_count; i++)
        count += a->rank[i].runs;
    return count;
}

static void agent_step(world *w, sim_agent *a, dsc_agent_event event)
{
    event.now_ns = w->now_ns;
    if (a->alive)
        dsc_agent_step(&a->machine, &event);
}

static void end_rank(world *w, sim_agent *a, int32_t index, int32_t code, int32_t signal_number)
{
    sim_rank *rank = &a->rank[index];
    const dsc_rank_end end = { first_rank(w, a->host) + index, 1, code, signal_number, 0 };
    rank->runs = false;
    rank->code = code;
    rank->signal = signal_number;
    say(w, "agent %d: rank %d of epoch %u ends with %d", (int)(a - w->agent), end.rank, a->epoch, code);
    agent_step(w, a, (dsc_agent_event){ .kind = DSC_AGENT_ENDED, .end = &end });
}

static void on_agent_action(void *user, const dsc_agent_action *action);

/* emit() knows the agent only by this pair. */
typedef struct agent_of {
    world *w;
    sim_agent *a;
} agent_of;
static agent_of emitter[AGENTS_MAX];

static void start_agent(world *w, int32_t host)
{
    DSC_ASSERT(w->agent_count < AGENTS_MAX);
    const int32_t index = w->agent_count++;
    sim_agent *a = &w->agent[index];
    *a = (sim_agent){ .host = host, .alive = true, .linked = true, .closed_ns = INT64_MAX };
    emitter[index] = (agent_of){ w, a };
    w->link_of[host] = index;
    dsc_agent_init(&a->machine, a->end, RANKS_MAX, w->now_ns, on_agent_action, &emitter[index]);
    say(w, "agent %d on host %d", index, host);
    if (w->now_ns >= w->host_dies_ns[host]) {
        a->alive = false; /* nobody answers there */
        return;
    }
    post(w, (message){ .kind = TO_HEAD_HELLO, .agent = index });
}

static void signal_ranks(world *w, sim_agent *a, int signal_number)
{
    for (int32_t i = 0; i < w->host[a->host].rank_count; i++) {
        sim_rank *rank = &a->rank[i];
        if (!rank->runs || rank->ignores_term || (signal_number != SIGTERM && signal_number != SIGINT))
            continue;
        rank->ends_at_ns = dsc_min_i64(rank->ends_at_ns, w->now_ns + random_below(w, 900) * MS);
        rank->code = chance(w, 50) ? 128 + signal_number : 0;
        rank->signal = rank->code != 0 && chance(w, 50) ? signal_number : 0;
    }
}

static void on_agent_action(void *user, const dsc_agent_action *action)
{
    world *w = ((agent_of *)user)->w;
    sim_agent *a = ((agent_of *)user)->a;
    const int32_t index = (int32_t)(a - w->agent);
    switch (action->kind) {
    case DSC_AGENT_DO_START:
        a->start_wanted = true;
        a->epoch = action->epoch;
        break;
    case DSC_AGENT_DO_SIGNAL:
        a->passed += action->signal == SIGUSR1;
        must(w, action->signal != SIGUSR1 || a->passed <= w->passed, "a signal is passed on twice");
        signal_ranks(w, a, action->signal);
        break;
    case DSC_AGENT_DO_COMMAND:
        must(w, false, "fixed ranks are started by a command");
        break;
    case DSC_AGENT_DO_KILL:
        for (int32_t i = 0; i < w->host[a->host].rank_count; i++)
            if (a->rank[i].runs) {
                a->rank[i].ends_at_ns = w->now_ns;
                a->rank[i].code = 137;
                a->rank[i].signal = SIGKILL;
                a->rank[i].ignores_term = false;
            }
        break;
    case DSC_AGENT_DO_NOTICE:
        if (a->linked)
            post(w, (message){ .kind = TO_HEAD_NOTICE, .agent = index, .notice = action->notice });
        break;
    case DSC_AGENT_DO_STOP_READING: break;
    case DSC_AGENT_DO_EXIT:
        must(w, running(w, a) == 0, "an agent leaves while its ranks run");
        a->alive = false;
        say(w, "agent %d leaves", index);
        if (a->linked)
            post(w, (message){ .kind = TO_HEAD_CLOSED, .agent = index });
        break;
    }
}

/* The run's ranks: how long each runs and how it ends. */
static void start_ranks(world *w, sim_agent *a)
{
    a->start_wanted = false;
    a->passed = 0;
    for (int32_t i = 0; i < w->agent_count; i++)
        if (&w->agent[i] != a && w->agent[i].host == a->host)
            must(w, running(w, &w->agent[i]) == 0, "ranks of two starts run at once on a host");
    must(w, running(w, a) == 0, "ranks of two starts run at once under an agent");
    if (chance(w, 1)) {
        say(w, "agent %d cannot start", (int)(a - w->agent));
        agent_step(w, a, (dsc_agent_event){ .kind = DSC_AGENT_STARTED, .ok = false });
        return;
    }
    for (int32_t i = 0; i < w->host[a->host].rank_count; i++) {
        sim_rank *rank = &a->rank[i];
        *rank = (sim_rank){ .runs = true, .ignores_term = chance(w, 20),
                            .ends_at_ns = w->now_ns + 500 * MS + random_below(w, 20 * 1000) * MS };
        if (w->rank_fails && chance(w, 20)) {
            static const int32_t codes[] = { 1, 2, 3, 4, 5, 42, 139, 137 };
            rank->code = codes[random_below(w, DSC_COUNT(codes))];
            rank->signal = rank->code > 128 ? rank->code - 128 : 0;
        }
    }
    say(w, "agent %d starts epoch %u", (int)(a - w->agent), a->epoch);
    agent_step(w, a, (dsc_agent_event){ .kind = DSC_AGENT_STARTED, .ok = true });
}

static void run_agent(world *w, sim_agent *a)
{
    for (int32_t i = 0; i < w->host[a->host].rank_count && a->alive; i++)
        if (a->rank[i].runs && w->now_ns >= a->rank[i].ends_at_ns)
            end_rank(w, a, i, a->rank[i].code, a->rank[i].signal);
    if (a->alive && a->machine.phase == DSC_AGENT_RUNS && !a->start_wanted && running(w, a) == 0)
        agent_step(w, a, (dsc_agent_event){ .kind = DSC_AGENT_NO_CHILDREN });
    if (a->alive && a->machine.phase == DSC_AGENT_GONE && !a->machine.drained && chance(w, 50))
        agent_step(w, a, (dsc_agent_event){ .kind = DSC_AGENT_DRAINED });
    agent_step(w, a, (dsc_agent_event){ .kind = DSC_AGENT_TICK });
    if (a->alive && a->start_wanted)
        start_ranks(w, a);
}

/* The process and its ranks are gone at once, as PDEATHSIG has it. */
static void kill_agent(world *w, sim_agent *a, bool seen)
{
    if (!a->alive)
        return;
    say(w, "agent %d dies", (int)(a - w->agent));
    a->alive = false;
    for (int32_t i = 0; i < RANKS_MAX; i++)
        a->rank[i].runs = false;
    if (seen && a->linked)
        post(w, (message){ .kind = TO_HEAD_CLOSED, .agent = (int32_t)(a - w->agent) });
}

/* ---- coordinator ------------------------------------------------------------------------------------------------- */

static void step_coordinator(world *w, dsc_coordinator_event event)
{
    event.now_ns = w->now_ns;
    if (w->coordinator_alive)
        dsc_coordinator_step(&w->coordinator, &event);
}

static void on_head_action(void *user, const dsc_coordinator_action *action)
{
    world *w = user;
    const int32_t link = action->host >= 0 ? w->link_of[action->host] : -1;
    switch (action->kind) {
    case DSC_COORDINATOR_DO_CONNECT: w->connect_wanted[action->host] = true; break;
    case DSC_COORDINATOR_DO_READY: w->ready = true; break;
    case DSC_COORDINATOR_DO_TASK:
        if (link >= 0)
            post(w, (message){ .kind = TO_AGENT_TASK, .agent = link, .epoch = action->epoch });
        break;
    case DSC_COORDINATOR_DO_ORDER:
        if (link >= 0)
            post(w, (message){ .kind = TO_AGENT_ORDER, .agent = link, .order = action->order });
        break;
    case DSC_COORDINATOR_DO_ENDED:
        must(w, action->end->rank >= first_rank(w, action->host) &&
                    action->end->rank < first_rank(w, action->host) + w->host[action->host].rank_count,
             "an end of another host's rank");
        must(w, ++w->counted[action->end->rank] == 1, "an end is counted twice");
        if (action->end->code != 0 && w->ending_since_ns == INT64_MAX)
            w->ending_since_ns = w->now_ns;
        break;
    case DSC_COORDINATOR_DO_MEMBERSHIP:
        must(w, false, "fixed ranks are members of a world");
        break;
    case DSC_COORDINATOR_DO_DROP: w->drop_wanted[action->host] = true; break;
    case DSC_COORDINATOR_DO_LOST:
        say(w, "coordinator: host %d is lost", action->host);
        w->ending_since_ns = dsc_min_i64(w->ending_since_ns, w->now_ns);
        break;
    case DSC_COORDINATOR_DO_OVER: w->over = true; break;
    case DSC_COORDINATOR_DO_LEFT: w->left = true; break;
    }
}

static void drop(world *w, int32_t host)
{
    const int32_t link = w->link_of[host];
    w->drop_wanted[host] = false;
    if (link < 0)
        return;
    w->link_of[host] = -1;
    w->agent[link].linked = false;
    if (w->death_is_seen)
        post(w, (message){ .kind = TO_AGENT_CLOSED, .agent = link });
}

/* Invariants at the moment when the coordinator declares a run over. */
static void check_over(world *w)
{
    const dsc_verdict *v = &w->coordinator.verdict;
    for (int32_t i = 0; i < w->agent_count; i++) {
        const sim_agent *a = &w->agent[i];
        const bool reachable = w->host[a->host].phase == DSC_HOST_HERE && w->link_of[a->host] == i;
        if (w->coordinator.epoch == 0 || !reachable || a->epoch != w->coordinator.epoch)
            continue;
        must(w, running(w, a) == 0, "a run is over while its ranks run on a host that is here");
        for (int32_t r = 0; r < w->host[a->host].rank_count && !a->machine.start_failed; r++)
            must(w, w->counted[first_rank(w, a->host) + r] == 1, "an end was not heard of");
    }
    must(w, !(v->lost_host >= 0 && v->user_signal != 0), "a host is blamed for what the user wanted");
    must(w, !(v->culprit_known && v->user_signal != 0), "a rank is blamed for what the user wanted");
    if (v->culprit_known) {
        must(w, v->culprit.code != 0, "a rank that did not fail is blamed");
        must(w, w->counted[v->culprit.rank] == 1, "a rank that did not end is blamed");
    }
    must(w, v->found_code == 0 || (w->found_epoch == w->coordinator.epoch && !v->culprit_known && v->lost_host < 0),
         "a run ended for a finding that there was not, or that something better stands beside");
    const bool calm = w->coordinator.epoch > 0 && !v->culprit_known && v->lost_host < 0 && v->user_signal == 0 &&
                      v->found_code == 0 && !w->coordinator.start_failed && !w->coordinator.host_failed &&
                      w->coordinator.user_signal == 0;
    for (int32_t i = 0; calm && i < first_rank(w, w->host_count); i++)
        must(w, w->counted[i] == 1, "a run that ended well misses an end");
    say(w, "coordinator: epoch %u is over", w->coordinator.epoch);
}

static bool may_restart(const world *w)
{
    const dsc_verdict *v = &w->coordinator.verdict;
    if (w->coordinator.user_signal != 0 || w->coordinator.host_failed || w->coordinator.start_failed ||
        v->user_signal != 0)
        return false;
    return w->restart_count < w->restart_limit && (v->culprit_known || v->lost_host >= 0 || v->found_code != 0);
}

static void settle(world *w)
{
    for (bool again = true; again && w->coordinator_alive;) {
        again = false;
        for (int32_t i = 0; i < w->host_count; i++) {
            if (w->drop_wanted[i])
                drop(w, i);
            if (w->connect_wanted[i]) {
                w->connect_wanted[i] = false;
                start_agent(w, i);
            }
        }
        if (w->ready) {
            again = true;
            w->ready = false;
            memset(w->counted, 0, sizeof w->counted);
            w->passed = 0;
            w->ending_since_ns = w->coordinator.user_signal != 0 ? w->now_ns : INT64_MAX;
            say(w, "coordinator starts epoch %u", w->coordinator.epoch + 1);
            step_coordinator(w, (dsc_coordinator_event){ .kind = DSC_COORDINATOR_START });
        }
        if (w->over) {
            again = true;
            w->over = false;
            w->ending_since_ns = INT64_MAX;
            check_over(w);
            if (may_restart(w))
                w->connect_at_ns = dsc_max_i64(w->now_ns + dsc_restart_wait_ns(w->restart_count++),
                                               dsc_coordinator_may_connect_ns(&w->coordinator));
            else
                step_coordinator(w, (dsc_coordinator_event){ .kind = DSC_COORDINATOR_QUIT });
        }
    }
}

static void run_coordinator(world *w)
{
    if (!w->coordinator_alive)
        return;
    if (w->now_ns >= w->connect_at_ns) {
        w->connect_at_ns = INT64_MAX;
        step_coordinator(w, (dsc_coordinator_event){
                                .kind = w->coordinator.user_signal != 0 ? DSC_COORDINATOR_QUIT
                                                                        : DSC_COORDINATOR_CONNECT });
    }
    if (w->now_ns >= w->user_at_ns || w->now_ns >= w->user_again_ns) {
        *(w->now_ns >= w->user_at_ns ? &w->user_at_ns : &w->user_again_ns) = INT64_MAX;
        say(w, "the user interrupts");
        w->ending_since_ns = dsc_min_i64(w->ending_since_ns, w->now_ns);
        step_coordinator(w, (dsc_coordinator_event){ .kind = DSC_COORDINATOR_USER, .signal = SIGINT });
    }
    if (w->now_ns >= w->found_at_ns && w->coordinator.phase == DSC_COORDINATOR_RUNS) {
        say(w, "the hang finder finds something");
        w->found_at_ns = INT64_MAX;
        w->found_epoch = w->coordinator.epoch;
        w->ending_since_ns = dsc_min_i64(w->ending_since_ns, w->now_ns);
        step_coordinator(w, (dsc_coordinator_event){ .kind = DSC_COORDINATOR_FOUND, .code = 5 });
        must(w, w->coordinator.verdict.phase != DSC_VERDICT_RUN, "a finding does not end the run");
    }
    if (w->now_ns >= w->pass_at_ns) {
        w->pass_at_ns = w->now_ns + 3 * SECOND;
        w->passed += w->coordinator.phase == DSC_COORDINATOR_RUNS;
        if (w->coordinator.phase == DSC_COORDINATOR_RUNS)
            step_coordinator(w, (dsc_coordinator_event){ .kind = DSC_COORDINATOR_PASS, .signal = SIGUSR1 });
    }
    step_coordinator(w, (dsc_coordinator_event){ .kind = DSC_COORDINATOR_TICK });
    settle(w);
}

/* ---- the world --------------------------------------------------------------------------------------------------- */

static void deliver(world *w, const message *m)
{
    sim_agent *a = &w->agent[m->agent];
    const bool heard = w->link_of[a->host] == m->agent;
    switch (m->kind) {
    case TO_HEAD_HELLO:
        if (heard)
            step_coordinator(w, (dsc_coordinator_event){ .kind = DSC_COORDINATOR_HELLO, .host = a->host });
        break;
    case TO_HEAD_NOTICE:
        if (heard)
            step_coordinator(w, (dsc_coordinator_event){ .kind = DSC_COORDINATOR_NOTICE, .host = a->host,
                                                         .notice = &m->notice });
        break;
    case TO_HEAD_CLOSED:
        if (heard)
            step_coordinator(w, (dsc_coordinator_event){ .kind = DSC_COORDINATOR_CLOSED, .host = a->host });
        break;
    case TO_AGENT_ORDER: agent_step(w, a, (dsc_agent_event){ .kind = DSC_AGENT_ORDER, .order = &m->order }); break;
    case TO_AGENT_TASK:
        agent_step(w, a, (dsc_agent_event){ .kind = DSC_AGENT_TASK, .epoch = m->epoch,
                                            .rank_count = w->host[a->host].rank_count });
        break;
    case TO_AGENT_CLOSED:
        a->closed_ns = dsc_min_i64(a->closed_ns, w->now_ns);
        agent_step(w, a, (dsc_agent_event){ .kind = DSC_AGENT_CLOSED });
        break;
    }
    settle(w);
}

static void deliver_due(world *w)
{
    for (int32_t i = 0; i < w->message_count;) {
        if (w->message[i].at_ns > w->now_ns) {
            i++;
            continue;
        }
        const message m = w->message[i];
        w->message[i] = w->message[--w->message_count];
        deliver(w, &m);
    }
}

static void strike(world *w)
{
    for (int32_t host = 0; host < w->host_count; host++) {
        for (int32_t i = 0; i < w->agent_count; i++) {
            if (w->agent[i].host == host && w->now_ns >= w->host_dies_ns[host])
                kill_agent(w, &w->agent[i], false); /* a machine that is off closes nothing */
            if (w->agent[i].host == host && w->now_ns >= w->agent_dies_ns[host])
                kill_agent(w, &w->agent[i], true);
        }
        if (w->now_ns >= w->agent_dies_ns[host])
            w->agent_dies_ns[host] = INT64_MAX; /* the next agent lives */
    }
    if (w->coordinator_alive && w->now_ns >= w->coordinator_dies_ns) {
        say(w, "the coordinator dies");
        w->coordinator_alive = false;
        w->ending_since_ns = w->now_ns;
        for (int32_t i = 0; i < w->host_count; i++)
            drop(w, i);
    }
}

static int64_t next_time(world *w)
{
    int64_t at_ns = w->now_ns + 2 * SECOND;
    for (int32_t i = 0; i < w->message_count; i++)
        at_ns = dsc_min_i64(at_ns, w->message[i].at_ns);
    for (int32_t i = 0; i < w->agent_count; i++) {
        const sim_agent *a = &w->agent[i];
        if (a->alive)
            at_ns = dsc_min_i64(at_ns, dsc_agent_wake_ns(&a->machine));
        for (int32_t r = 0; r < RANKS_MAX && a->alive; r++)
            if (a->rank[r].runs)
                at_ns = dsc_min_i64(at_ns, a->rank[r].ends_at_ns);
    }
    if (w->coordinator_alive) {
        at_ns = dsc_min_i64(at_ns, dsc_coordinator_wake_ns(&w->coordinator, w->now_ns));
        at_ns = dsc_min_i64(dsc_min_i64(at_ns, w->user_at_ns), dsc_min_i64(w->user_again_ns, w->connect_at_ns));
        at_ns = dsc_min_i64(dsc_min_i64(at_ns, w->pass_at_ns), w->coordinator_dies_ns);
        at_ns = dsc_min_i64(at_ns, w->coordinator.phase == DSC_COORDINATOR_RUNS ? w->found_at_ns : INT64_MAX);
    }
    for (int32_t i = 0; i < w->host_count; i++)
        at_ns = dsc_min_i64(at_ns, dsc_min_i64(w->host_dies_ns[i] > w->now_ns ? w->host_dies_ns[i] : INT64_MAX,
                                               w->agent_dies_ns[i]));
    return dsc_max_i64(at_ns, w->now_ns + 1 * MS); /* a process does not act faster than that */
}

static void plan_faults(world *w)
{
    w->host_count = 1 + (int32_t)random_below(w, HOSTS_MAX);
    for (int32_t i = 0; i < HOSTS_MAX; i++) {
        w->host[i].rank_count = 1 + (int32_t)random_below(w, RANKS_MAX);
        w->host_dies_ns[i] = w->agent_dies_ns[i] = w->cut_from_ns[i] = INT64_MAX;
        w->link_of[i] = -1;
    }
    w->coordinator_dies_ns = w->user_at_ns = w->user_again_ns = w->found_at_ns = INT64_MAX;
    w->delay_max_ns = chance(w, 50) ? 5 * MS : 700 * MS;
    w->restart_limit = (int32_t)random_below(w, 3);
    w->pass_at_ns = chance(w, 50) ? 2 * SECOND : INT64_MAX;
    w->death_is_seen = chance(w, 80);
    w->rank_fails = chance(w, 50);
    if (chance(w, 30)) {
        w->lose_percent = (int32_t)random_below(w, 20);
        w->repeat_percent = (int32_t)random_below(w, 20);
    }
    const int32_t victim = (int32_t)random_below(w, w->host_count);
    switch (random_below(w, 9)) {
    case 0: w->coordinator_dies_ns = random_below(w, 15000) * MS; break;
    case 1: w->host_dies_ns[victim] = random_below(w, 15000) * MS; break;
    case 2: w->agent_dies_ns[victim] = random_below(w, 15000) * MS; break;
    case 3:
    case 4:
        w->cut_from_ns[victim] = random_below(w, 15000) * MS;
        w->cut_until_ns[victim] = w->cut_from_ns[victim] + random_below(w, 20000) * MS;
        w->cut_to[victim] = chance(w, 70);
        w->cut_from[victim] = !w->cut_to[victim] || chance(w, 70);
        break;
    case 5:
        w->user_at_ns = random_below(w, 15000) * MS;
        w->user_again_ns = chance(w, 50) ? w->user_at_ns + random_below(w, 3000) * MS : INT64_MAX;
        break;
    case 6: w->found_at_ns = random_below(w, 15000) * MS; break;
    default: break;
    }
}

/* The time by which a run has ended on every host: suspects' time, the user's grace, kill and the coordinator's
 * patience. A host without messages adds the lease and its own grace; late messages come on top. */
static int64_t most_ns(const world *w)
{
    return w->coordinator.verdict.grace_ns + 2 * DSC_CONTROL_LEASE_NS + DSC_CONTROL_GIVE_UP_NS + 4 * w->delay_max_ns +
           5 * SECOND;
}

static bool anything_runs(const world *w)
{
    for (int32_t i = 0; i < w->agent_count; i++)
        if (w->agent[i].alive && running(w, &w->agent[i]) > 0)
            return true;
    return false;
}

static bool anything_lives(const world *w)
{
    for (int32_t i = 0; i < w->agent_count; i++)
        if (w->agent[i].alive)
            return true;
    return false;
}

/* NULL, or what was broken. */
static const char *run_history(world *w, uint64_t seed, bool trace)
{
    message *messages = w->message;
    *w = (world){ .random = seed, .seed = seed, .trace = trace, .message = messages, .coordinator_alive = true,
                  .ending_since_ns = INT64_MAX, .connect_at_ns = 0 };
    int64_t gone_since_ns = INT64_MAX;
    plan_faults(w);
    dsc_coordinator_init(&w->coordinator, w->host, w->host_count, random_below(w, 4) * SECOND, on_head_action, w);
    while (w->broken == NULL) {
        deliver_due(w);
        strike(w);
        for (int32_t i = 0; i < w->agent_count; i++)
            if (w->agent[i].alive)
                run_agent(w, &w->agent[i]);
        run_coordinator(w);
        const bool coordinator_gone = w->left || !w->coordinator_alive;
        if (coordinator_gone && gone_since_ns == INT64_MAX)
            gone_since_ns = w->now_ns;
        if (coordinator_gone && !anything_lives(w))
            return w->broken;
        for (int32_t i = 0; i < w->agent_count; i++)
            must(w, !w->agent[i].alive || w->agent[i].closed_ns == INT64_MAX ||
                        w->now_ns - w->agent[i].closed_ns < DSC_CONTROL_CUT_OFF_GRACE_NS + SECOND,
                 "an agent that knows its coordinator gone goes on");
        must(w, !coordinator_gone || w->now_ns - gone_since_ns < 2 * DSC_CONTROL_LEASE_NS,
             "agents outlive their coordinator");
        must(w, w->ending_since_ns == INT64_MAX || w->now_ns - w->ending_since_ns < most_ns(w) || !anything_runs(w),
             "an end takes too long");
        must(w, w->now_ns < 400 * SECOND, "it never ends");
        w->now_ns = next_time(w);
    }
    return w->broken;
}

static void no_history_breaks_what_must_hold(void **state)
{
    const char *one = getenv("DSC_SIM_SEED"), *many = getenv("DSC_SIM_SEEDS"), *night = getenv("DSC_TEST_NIGHT");
    const uint64_t usual = night != NULL && strcmp(night, "1") == 0 ? 20000 : 500;
    const uint64_t from = one != NULL ? strtoull(one, NULL, 10) : 1;
    const uint64_t count = one != NULL ? 1 : many != NULL ? strtoull(many, NULL, 10) : usual;
    world *w = calloc(1, sizeof *w);
    w->message = calloc(MESSAGES_MAX, sizeof *w->message);
    int broken = 0;
    for (uint64_t seed = from; seed < from + count && broken < 5; seed++) {
        const char *what = run_history(w, seed, getenv("DSC_SIM_TRACE") != NULL);
        if (what != NULL) {
            print_message("# seed %llu: %s; rerun: DSC_SIM_SEED=%llu DSC_SIM_TRACE=1 test_launch_control\n",
                          (unsigned long long)seed, what, (unsigned long long)seed);
            broken++;
        }
    }
    free(w->message);
    free(w);
    assert_int_equal(broken, 0);
}

int main(void)
{
    const struct CMUnitTest all[] = { cmocka_unit_test(no_history_breaks_what_must_hold) };
    return cmocka_run_group_tests_name("launch_control", all, NULL, NULL);
}
