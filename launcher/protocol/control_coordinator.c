/* control_coordinator.c - the coordinator's side of control.h.
 *
 * Invariants:
 * (1) A run begins only when every host answers.
 * (2) A run is over when each host reported that no process of the run is left, or is lost. The agent of a lost host
 *     knows of the loss before the lease is over twice.
 * (3) Each rank's end is counted once.
 * SPDX-License-Identifier: Apache-2.0 */
#include "launcher/protocol/control.h"

#include <string.h>

#define MS INT64_C(1000000)

void dsc_coordinator_init(dsc_coordinator *c, dsc_coordinator_host *host, int32_t host_count, int64_t grace_ns,
                          void (*emit)(void *user, const dsc_coordinator_action *action), void *user)
{
    DSC_ASSERT(host_count > 0);
    *c = (dsc_coordinator){ .host = host, .host_count = host_count, .grace_ns = grace_ns, .deadline_ns = INT64_MAX,
                            .give_up_at_ns = INT64_MAX, .emit = emit, .user = user };
    dsc_verdict_init(&c->verdict, 0, grace_ns);
}

static void act(dsc_coordinator *c, dsc_coordinator_action_kind kind, int32_t host)
{
    c->emit(c->user, &(dsc_coordinator_action){ .kind = kind, .host = host, .epoch = c->epoch });
}

/* ---- ranks that leave and join ----------------------------------------------------------------------------------- */

/* Without an end too few ranks are left, and none of them failed. */
static void on_membership(void *user, const dsc_membership_action *action)
{
    dsc_coordinator *c = user;
    if (action->kind != DSC_MEMBERSHIP_DO_BLAME)
        c->emit(c->user,
                &(dsc_coordinator_action) { .kind = DSC_COORDINATOR_DO_MEMBERSHIP,
                                            .host = action->slot >= 0 ? c->membership->slot[action->slot].host : -1,
                                            .epoch = c->epoch,
                                            .membership = action });
    else if (action->end != NULL)
        dsc_verdict_blame(&c->verdict, action->end);
    else
        dsc_verdict_found(&c->verdict, dsc_status_exit_code(DSC_ERR_PEER));
}

void dsc_coordinator_set_membership(dsc_coordinator *c, dsc_membership *membership, dsc_slot *slot, int32_t count,
                                    const dsc_membership_limits *limits)
{
    c->membership = membership;
    for (int32_t host = 0, i = 0; host < c->host_count; host++)
        for (int32_t k = 0; k < c->host[host].rank_count && i < count; k++)
            slot[i++].host = host;
    dsc_membership_init(membership, slot, count, limits, on_membership, c);
}

static int32_t first_slot(const dsc_coordinator *c, int32_t host)
{
    int32_t first = 0;
    for (int32_t i = 0; i < host; i++)
        first += c->host[i].rank_count;
    return first;
}

/* The next command, when the last one is done. */
static void next_command(dsc_coordinator *c, int32_t index)
{
    dsc_coordinator_host *host = &c->host[index];
    if (c->membership == NULL || c->phase != DSC_COORDINATOR_RUNS || c->verdict.phase != DSC_VERDICT_RUN ||
        host->commands_done != host->command_count)
        return;
    dsc_slot_command command = dsc_membership_command(c->membership, index);
    if (command.slot < 0)
        return;
    command.slot -= first_slot(c, index);
    host->lives += command.signal == 0;
    host->command = command;
    host->command_count++;
}

/* ---- orders ------------------------------------------------------------------------------------------------------ */

static dsc_order wanted(const dsc_coordinator *c, const dsc_coordinator_host *host, int64_t now_ns)
{
    const dsc_verdict *v = &c->verdict;
    dsc_order order = { .epoch = c->epoch,
                        .signal_count = c->signal_count,
                        .signal = c->signal,
                        .ends_seen = host->ends_seen,
                        .command_count = host->command_count,
                        .command = host->command,
                        .reader_gone = { c->reader_gone[0], c->reader_gone[1] } };
    if (c->phase == DSC_COORDINATOR_LEAVES || c->phase == DSC_COORDINATOR_LEFT)
        order.phase = DSC_ORDER_QUIT;
    else if (c->phase != DSC_COORDINATOR_RUNS && c->phase != DSC_COORDINATOR_OVER)
        order.phase = c->epoch == 0 ? DSC_ORDER_WAIT : DSC_ORDER_KILL; /* the last run is over */
    else if (v->phase == DSC_VERDICT_RUN)
        order.phase = DSC_ORDER_RUN;
    else if (v->phase == DSC_VERDICT_KILL)
        order.phase = DSC_ORDER_KILL;
    else
        order.phase = DSC_ORDER_END;
    if (order.phase == DSC_ORDER_END) {
        order.term_signal = v->term_signal;
        order.grace_ms = (int32_t)(dsc_max_i64(0, v->kill_at_ns - now_ns) / MS);
    }
    return order;
}

/* Equal but for the number and the time that passes. */
static bool same_order(const dsc_order *a, const dsc_order *b)
{
    return a->epoch == b->epoch && a->phase == b->phase && a->term_signal == b->term_signal &&
           a->signal_count == b->signal_count && a->ends_seen == b->ends_seen && a->command_count == b->command_count &&
           a->reader_gone[0] == b->reader_gone[0] && a->reader_gone[1] == b->reader_gone[1];
}

/* Sends what is new, or due. A grace time that the user cut short comes as KILL. */
static void send_orders(dsc_coordinator *c, int64_t now_ns)
{
    for (int32_t i = 0; i < c->host_count; i++) {
        dsc_coordinator_host *host = &c->host[i];
        if (host->phase != DSC_HOST_HERE)
            continue;
        next_command(c, i);
        dsc_order order = wanted(c, host, now_ns);
        if (host->said && same_order(&order, &host->last_order) && now_ns < host->beat_at_ns)
            continue;
        order.number = ++host->order_count;
        host->last_order = order;
        host->said = true;
        host->beat_at_ns = now_ns + DSC_CONTROL_BEAT_NS;
        c->emit(c->user, &(dsc_coordinator_action){ .kind = DSC_COORDINATOR_DO_ORDER, .host = i, .epoch = c->epoch,
                                                    .order = order });
    }
}

/* ---- hosts ------------------------------------------------------------------------------------------------------- */

static int32_t alive_on(const dsc_coordinator_host *host) { return host->lives - (int32_t)host->ends_seen; }

/* Ranks of a lost host may be replaced there. The host is contacted again when its old ranks have ended, and after
 * each further loss twice as late. */
static void plan_rejoin(dsc_coordinator_host *host, int64_t now_ns)
{
    host->rejoin_at_ns = now_ns + (DSC_CONTROL_REJOIN_NS << dsc_min_i64(host->losses, 5));
    host->losses++;
}

/* A host that was here is not any more. */
static void lose(dsc_coordinator *c, int32_t index, bool silent, int64_t now_ns)
{
    dsc_coordinator_host *host = &c->host[index];
    const bool running = c->phase == DSC_COORDINATOR_RUNS && !host->gone;
    host->phase = running ? DSC_HOST_LOST : DSC_HOST_AWAY;
    act(c, DSC_COORDINATOR_DO_DROP, index);
    if (!running)
        return;
    host->was_lost = true;
    host->lost_at_ns = now_ns;
    plan_rejoin(host, now_ns);
    if (c->membership != NULL)
        dsc_membership_host_lost(c->membership, index, now_ns);
    else
        dsc_verdict_host_lost(&c->verdict, index, alive_on(host));
    host->ends_seen = (uint32_t)host->lives;
    c->emit(c->user, &(dsc_coordinator_action){ .kind = DSC_COORDINATOR_DO_LOST, .host = index, .epoch = c->epoch,
                                                .silent = silent });
}

/* A host cannot be had: the others get a moment to say whether they can. */
static void fail_host(dsc_coordinator *c, int32_t index, int64_t now_ns)
{
    if (c->phase == DSC_COORDINATOR_RUNS) { /* a lost host that could not be had again */
        c->host[index].phase = DSC_HOST_LOST;
        plan_rejoin(&c->host[index], now_ns);
        act(c, DSC_COORDINATOR_DO_DROP, index);
        return;
    }
    c->host[index].phase = DSC_HOST_FAILED;
    act(c, DSC_COORDINATOR_DO_DROP, index);
    c->host_failed = true;
    c->deadline_ns = dsc_min_i64(c->deadline_ns, now_ns + DSC_CONTROL_OTHERS_NS);
}

static void on_closed(dsc_coordinator *c, int32_t index, int64_t now_ns)
{
    switch (c->host[index].phase) {
    case DSC_HOST_WAITED: fail_host(c, index, now_ns); break;
    case DSC_HOST_HERE: lose(c, index, false, now_ns); break;
    case DSC_HOST_AWAY: case DSC_HOST_FAILED: case DSC_HOST_LOST: break;
    }
}

static void connect_all(dsc_coordinator *c, int64_t now_ns)
{
    DSC_ASSERT(c->phase == DSC_COORDINATOR_IDLE || c->phase == DSC_COORDINATOR_OVER);
    c->phase = DSC_COORDINATOR_CONNECTS;
    c->deadline_ns = now_ns + DSC_CONTROL_ANSWER_NS;
    for (int32_t i = 0; i < c->host_count; i++) {
        dsc_coordinator_host *host = &c->host[i];
        if (host->phase == DSC_HOST_HERE)
            continue;
        *host = (dsc_coordinator_host){ .phase = DSC_HOST_WAITED, .rank_count = host->rank_count,
                                        .direct = host->direct };
        act(c, DSC_COORDINATOR_DO_CONNECT, i);
    }
}

/* Contacts lost hosts again whose time has come. */
static void rejoin_hosts(dsc_coordinator *c, int64_t now_ns)
{
    for (int32_t i = 0; i < c->host_count; i++) {
        dsc_coordinator_host *host = &c->host[i];
        if (host->phase == DSC_HOST_WAITED && now_ns >= host->answer_by_ns)
            fail_host(c, i, now_ns);
        if (host->phase != DSC_HOST_LOST || host->direct || now_ns < host->rejoin_at_ns)
            continue;
        *host = (dsc_coordinator_host) { .phase = DSC_HOST_WAITED,
                                         .rank_count = host->rank_count,
                                         .losses = host->losses,
                                         .was_lost = true,
                                         .lost_at_ns = host->lost_at_ns,
                                         .answer_by_ns = now_ns + DSC_CONTROL_ANSWER_NS };
        act(c, DSC_COORDINATOR_DO_CONNECT, i);
    }
}

static void greet_host(dsc_coordinator *c, int32_t index, int64_t now_ns)
{
    dsc_coordinator_host *host = &c->host[index];
    if (host->phase != DSC_HOST_WAITED)
        return;
    host->phase = DSC_HOST_HERE;
    host->received_ns = now_ns;
    if (c->phase == DSC_COORDINATOR_RUNS)
        dsc_membership_host_back(c->membership, index, now_ns);
}

static int32_t count_hosts(const dsc_coordinator *c, dsc_host_phase phase)
{
    int32_t count = 0;
    for (int32_t i = 0; i < c->host_count; i++)
        count += c->host[i].phase == phase;
    return count;
}

/* ---- notices ----------------------------------------------------------------------------------------------------- */

static void take_ends(dsc_coordinator *c, dsc_coordinator_host *host, const dsc_notice *notice, int64_t now_ns)
{
    for (int32_t i = 0; i < notice->end_count; i++) {
        if (notice->ends_from + (uint32_t)i != host->ends_seen || alive_on(host) == 0)
            continue; /* known already, or out of order: the end will be sent again */
        host->ends_seen++;
        if (c->membership != NULL)
            dsc_membership_ended(c->membership, notice->end[i].rank, &notice->end[i], now_ns);
        else
            dsc_verdict_rank_ended(&c->verdict, &notice->end[i]);
        c->emit(c->user, &(dsc_coordinator_action){ .kind = DSC_COORDINATOR_DO_ENDED, .host = (int32_t)(host - c->host),
                                                    .epoch = c->epoch, .end = &notice->end[i] });
    }
}

static void take_state(dsc_coordinator *c, dsc_coordinator_host *host, const dsc_notice *notice, int64_t now_ns)
{
    take_ends(c, host, notice, now_ns);
    if (notice->commands_done <= host->command_count)
        host->commands_done = notice->commands_done;
    if (notice->start_failed && !host->start_failed) {
        host->start_failed = c->start_failed = true;
        dsc_verdict_give_up(&c->verdict);
    }
    /* Ranks that never started do not end; the others' ends come before the host is gone. */
    const bool all_ends = alive_on(host) == 0 || host->start_failed || c->verdict.phase != DSC_VERDICT_RUN;
    const bool all_taken = notice->ends_from + (uint32_t)notice->end_count <= host->ends_seen;
    if (notice->phase == DSC_AGENT_GONE && all_ends && all_taken)
        host->gone = true;
}

static void send_task(dsc_coordinator *c, int32_t index, int64_t now_ns)
{
    c->host[index].task_at_ns = now_ns + DSC_CONTROL_TASK_AGAIN_NS;
    act(c, DSC_COORDINATOR_DO_TASK, index);
}

static void on_notice(dsc_coordinator *c, int32_t index, const dsc_notice *notice, int64_t now_ns)
{
    dsc_coordinator_host *host = &c->host[index];
    if (host->phase != DSC_HOST_HERE || notice->number <= host->notice_number)
        return;
    host->notice_number = notice->number;
    host->received_ns = now_ns;
    if (notice->cut_off) {
        lose(c, index, true, now_ns);
        return;
    }
    if (notice->epoch != c->epoch && c->phase == DSC_COORDINATOR_RUNS && now_ns >= host->task_at_ns)
        send_task(c, index, now_ns);
    if (c->epoch == 0 || notice->epoch != c->epoch)
        return;
    if (c->phase == DSC_COORDINATOR_RUNS)
        take_state(c, host, notice, now_ns);
    host->drained = host->gone && notice->drained;
}

/* ---- phases ------------------------------------------------------------------------------------------------------ */

static void start_run(dsc_coordinator *c, int64_t now_ns)
{
    int32_t rank_count = 0;
    DSC_ASSERT(c->phase == DSC_COORDINATOR_READY);
    c->phase = DSC_COORDINATOR_RUNS;
    c->epoch++;
    c->start_failed = false;
    c->give_up_at_ns = INT64_MAX;
    for (int32_t i = 0; i < c->host_count; i++) {
        dsc_coordinator_host *host = &c->host[i];
        host->gone = host->drained = host->start_failed = false;
        host->ends_seen = host->command_count = host->commands_done = 0;
        host->lives = c->membership != NULL ? 0 : host->rank_count;
        rank_count += host->rank_count;
    }
    dsc_verdict_init(&c->verdict, rank_count, c->grace_ns);
    if (c->membership != NULL) {
        const dsc_membership_limits limits = c->membership->limits;
        dsc_membership_init(c->membership, c->membership->slot, c->membership->count, &limits, on_membership, c);
        dsc_membership_begin(c->membership, now_ns);
    }
    for (int32_t i = 0; i < c->host_count; i++)
        if (c->host[i].phase == DSC_HOST_HERE)
            send_task(c, i, now_ns);
        else /* it left between its answer and now */
            dsc_verdict_host_lost(&c->verdict, i, c->host[i].rank_count);
}

static void end_run(dsc_coordinator *c)
{
    for (int32_t i = 0; i < c->host_count; i++)
        if (c->host[i].phase == DSC_HOST_WAITED) { /* it was contacted again, and comes too late */
            c->host[i].phase = DSC_HOST_AWAY;
            act(c, DSC_COORDINATOR_DO_DROP, i);
        }
    c->phase = DSC_COORDINATOR_OVER;
    c->deadline_ns = INT64_MAX;
    act(c, DSC_COORDINATOR_DO_OVER, -1);
}

static void check_connecting(dsc_coordinator *c, int64_t now_ns)
{
    const int32_t waited = count_hosts(c, DSC_HOST_WAITED), here = count_hosts(c, DSC_HOST_HERE);
    const bool hopeless = c->host_failed || c->user_signal != 0;
    if (here == c->host_count && !hopeless) {
        c->phase = DSC_COORDINATOR_READY;
        c->deadline_ns = INT64_MAX;
        act(c, DSC_COORDINATOR_DO_READY, -1);
    } else if (here + waited < c->host_count && !hopeless) { /* one left again before all were here */
        c->host_failed = true;
        c->deadline_ns = now_ns + DSC_CONTROL_OTHERS_NS;
    } else if (c->user_signal != 0 || now_ns >= c->deadline_ns || (hopeless && waited == 0)) {
        for (int32_t i = 0; i < c->host_count; i++)
            if (c->host[i].phase == DSC_HOST_WAITED)
                fail_host(c, i, now_ns);
        end_run(c);
    }
}

static void check_silence(dsc_coordinator *c, int64_t now_ns)
{
    for (int32_t i = 0; i < c->host_count; i++)
        if (c->host[i].phase == DSC_HOST_HERE && !c->host[i].direct &&
            now_ns - c->host[i].received_ns > DSC_CONTROL_LEASE_NS)
            lose(c, i, true, now_ns);
}

int64_t dsc_coordinator_last_received_ns(const dsc_coordinator *c, int64_t now_ns)
{
    int64_t oldest_ns = now_ns;
    for (int32_t i = 0; i < c->host_count; i++)
        if (c->host[i].phase == DSC_HOST_HERE && !c->host[i].gone && !c->host[i].direct)
            oldest_ns = dsc_min_i64(oldest_ns, c->host[i].received_ns);
    return oldest_ns;
}

static void check_running(dsc_coordinator *c, int64_t now_ns)
{
    bool over = true;
    if (c->membership != NULL) {
        if (c->verdict.phase == DSC_VERDICT_RUN) {
            rejoin_hosts(c, now_ns);
            dsc_membership_tick(c->membership, now_ns);
        }
        c->verdict.alive_count = dsc_membership_alive(c->membership);
    }
    dsc_verdict_tick(&c->verdict, dsc_coordinator_last_received_ns(c, now_ns), now_ns);
    if (c->membership != NULL && c->verdict.phase == DSC_VERDICT_RUN)
        over = false; /* hosts that are all lost may be had again */
    if (c->verdict.phase == DSC_VERDICT_KILL && c->give_up_at_ns == INT64_MAX)
        c->give_up_at_ns = now_ns + DSC_CONTROL_GIVE_UP_NS;
    for (int32_t i = 0; i < c->host_count; i++)
        if (c->host[i].phase == DSC_HOST_HERE && !c->host[i].gone && now_ns >= c->give_up_at_ns)
            lose(c, i, true, now_ns); /* a process that cannot be killed sleeps in its kernel */
    for (int32_t i = 0; i < c->host_count; i++)
        over = over && (c->host[i].phase != DSC_HOST_HERE || c->host[i].gone);
    if (over)
        end_run(c);
}

static void check_leaving(dsc_coordinator *c, int64_t now_ns)
{
    for (int32_t i = 0; i < c->host_count && now_ns >= c->deadline_ns; i++)
        if (c->host[i].phase == DSC_HOST_HERE)
            lose(c, i, true, now_ns);
    if (count_hosts(c, DSC_HOST_HERE) == 0) {
        c->phase = DSC_COORDINATOR_LEFT;
        act(c, DSC_COORDINATOR_DO_LEFT, -1);
    }
}

/* Also after the user's signal: a broken world saves and ends in another one. */
static bool hears_reports(const dsc_coordinator *c)
{
    const dsc_verdict *v = &c->verdict;
    return c->phase == DSC_COORDINATOR_RUNS &&
           (v->phase == DSC_VERDICT_RUN || (v->phase == DSC_VERDICT_END && v->user_signal != 0));
}

static void on_user(dsc_coordinator *c, int signal_number, int64_t now_ns)
{
    if (c->membership != NULL && c->phase == DSC_COORDINATOR_RUNS)
        dsc_membership_user_ends(c->membership, now_ns); /* before the ranks are signalled */
    if (c->phase == DSC_COORDINATOR_RUNS)
        (void)dsc_verdict_user_signal(&c->verdict, signal_number, now_ns);
    else if (c->user_signal == 0)
        c->user_signal = signal_number;
}

static void on_quit(dsc_coordinator *c, int64_t now_ns)
{
    DSC_ASSERT(c->phase != DSC_COORDINATOR_RUNS && c->phase != DSC_COORDINATOR_CONNECTS);
    c->phase = DSC_COORDINATOR_LEAVES;
    c->deadline_ns = now_ns + DSC_CONTROL_LEAVE_NS;
}

void dsc_coordinator_step(dsc_coordinator *c, const dsc_coordinator_event *event)
{
    const int64_t now_ns = event->now_ns;
    if (c->phase == DSC_COORDINATOR_LEFT)
        return;
    switch (event->kind) {
    case DSC_COORDINATOR_TICK: check_silence(c, now_ns); break;
    case DSC_COORDINATOR_HELLO:
        greet_host(c, event->host, now_ns);
        break;
    case DSC_COORDINATOR_REFUSED: fail_host(c, event->host, now_ns); break;
    case DSC_COORDINATOR_CLOSED: on_closed(c, event->host, now_ns); break;
    case DSC_COORDINATOR_NOTICE: on_notice(c, event->host, event->notice, now_ns); break;
    case DSC_COORDINATOR_START: start_run(c, now_ns); break;
    case DSC_COORDINATOR_CONNECT: connect_all(c, now_ns); break;
    case DSC_COORDINATOR_QUIT: on_quit(c, now_ns); break;
    case DSC_COORDINATOR_USER: on_user(c, event->signal, now_ns); break;
    case DSC_COORDINATOR_PASS:
        c->signal = event->signal;
        c->signal_count++;
        break;
    case DSC_COORDINATOR_FOUND:
        if (c->phase == DSC_COORDINATOR_RUNS)
            dsc_verdict_found(&c->verdict, event->code);
        break;
    case DSC_COORDINATOR_REPORT:
        if (hears_reports(c))
            dsc_membership_report(c->membership, event->slot, event->report, now_ns);
        break;
    case DSC_COORDINATOR_SIGNAL:
        if (c->phase == DSC_COORDINATOR_RUNS)
            dsc_membership_signal(c->membership, event->slot, event->signal);
        break;
    case DSC_COORDINATOR_GIVE_UP:
        c->user_signal = c->user_signal != 0 ? c->user_signal : event->signal;
        dsc_verdict_give_up(&c->verdict);
        break;
    case DSC_COORDINATOR_STOP_READING: c->reader_gone[event->which] = true; break;
    }
    switch (c->phase) {
    case DSC_COORDINATOR_CONNECTS: check_connecting(c, now_ns); break;
    case DSC_COORDINATOR_RUNS: check_running(c, now_ns); break;
    case DSC_COORDINATOR_LEAVES: check_leaving(c, now_ns); break;
    case DSC_COORDINATOR_IDLE: case DSC_COORDINATOR_READY: case DSC_COORDINATOR_OVER: case DSC_COORDINATOR_LEFT: break;
    }
    send_orders(c, now_ns);
}

int64_t dsc_coordinator_may_connect_ns(const dsc_coordinator *c)
{
    int64_t at_ns = 0;
    for (int32_t i = 0; i < c->host_count; i++)
        if (c->host[i].was_lost)
            at_ns = dsc_max_i64(at_ns, c->host[i].lost_at_ns + DSC_CONTROL_REJOIN_NS);
    return at_ns;
}

static int64_t next_rejoin_ns(const dsc_coordinator *c)
{
    int64_t at_ns = INT64_MAX;
    for (int32_t i = 0; i < c->host_count; i++)
        if (c->host[i].phase == DSC_HOST_LOST && !c->host[i].direct)
            at_ns = dsc_min_i64(at_ns, c->host[i].rejoin_at_ns);
        else if (c->host[i].phase == DSC_HOST_WAITED)
            at_ns = dsc_min_i64(at_ns, c->host[i].answer_by_ns);
    return at_ns;
}

int64_t dsc_coordinator_wake_ns(const dsc_coordinator *c, int64_t now_ns)
{
    int64_t at_ns = c->deadline_ns;
    if (c->phase == DSC_COORDINATOR_RUNS)
        at_ns = dsc_min_i64(at_ns, dsc_min_i64(dsc_verdict_wake_ns(&c->verdict, now_ns), c->give_up_at_ns));
    if (c->phase == DSC_COORDINATOR_RUNS && c->membership != NULL && c->verdict.phase == DSC_VERDICT_RUN)
        at_ns = dsc_min_i64(at_ns, dsc_min_i64(dsc_membership_wake_ns(c->membership), next_rejoin_ns(c)));
    for (int32_t i = 0; i < c->host_count; i++)
        if (c->host[i].phase == DSC_HOST_HERE && !c->host[i].direct)
            at_ns = dsc_min_i64(at_ns, dsc_min_i64(c->host[i].beat_at_ns,
                                                   c->host[i].received_ns + DSC_CONTROL_LEASE_NS + 1));
    return at_ns;
}
