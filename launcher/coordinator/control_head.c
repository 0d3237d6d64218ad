/* control_head.c - the head's side of control.h.
 *
 * Invariants: (1) a run begins only when every host answers; (2) a run is over when every host said that nothing of it
 * runs, or is lost, which its agent knows too before the lease is over twice; (3) each rank's end is counted once.
 * SPDX-License-Identifier: Apache-2.0 */
#include "launcher/coordinator/control.h"

#include <string.h>

#define MS INT64_C(1000000)

void dsc_head_init(dsc_head *head, dsc_head_host *host, int32_t host_count, int64_t grace_ns,
                   void (*emit)(void *user, const dsc_head_action *action), void *user)
{
    DSC_ASSERT(host_count > 0);
    *head = (dsc_head){ .host = host, .host_count = host_count, .grace_ns = grace_ns, .deadline_ns = INT64_MAX,
                        .give_up_at_ns = INT64_MAX, .emit = emit, .user = user };
    dsc_verdict_init(&head->verdict, 0, grace_ns);
}

static void act(dsc_head *head, dsc_head_action_kind kind, int32_t host)
{
    head->emit(head->user, &(dsc_head_action){ .kind = kind, .host = host, .epoch = head->epoch });
}

/* ---- orders ------------------------------------------------------------------------------------------------------ */

static dsc_order wanted(const dsc_head *head, const dsc_head_host *host, int64_t now_ns)
{
    const dsc_verdict *v = &head->verdict;
    dsc_order order = { .epoch = head->epoch, .signal_count = head->signal_count, .signal = head->signal,
                        .ends_seen = host->ends_seen, .deaf = { head->deaf[0], head->deaf[1] } };
    if (head->phase == DSC_HEAD_LEAVES || head->phase == DSC_HEAD_LEFT)
        order.phase = DSC_ORDER_QUIT;
    else if (head->phase != DSC_HEAD_RUNS && head->phase != DSC_HEAD_OVER)
        order.phase = head->epoch == 0 ? DSC_ORDER_WAIT : DSC_ORDER_KILL; /* the last run is over */
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
           a->signal_count == b->signal_count && a->ends_seen == b->ends_seen && a->deaf[0] == b->deaf[0] &&
           a->deaf[1] == b->deaf[1];
}

/* Sends what is new, or due. A grace time that the user cut short comes as KILL. */
static void send_orders(dsc_head *head, int64_t now_ns)
{
    for (int32_t i = 0; i < head->host_count; i++) {
        dsc_head_host *host = &head->host[i];
        if (host->phase != DSC_HOST_HERE)
            continue;
        dsc_order order = wanted(head, host, now_ns);
        if (host->said && same_order(&order, &host->last_order) && now_ns < host->beat_at_ns)
            continue;
        order.number = ++host->order_count;
        host->last_order = order;
        host->said = true;
        host->beat_at_ns = now_ns + DSC_CONTROL_BEAT_NS;
        head->emit(head->user, &(dsc_head_action){ .kind = DSC_HEAD_DO_ORDER, .host = i, .epoch = head->epoch,
                                                   .order = order });
    }
}

/* ---- hosts ------------------------------------------------------------------------------------------------------- */

static int32_t alive_on(const dsc_head_host *host) { return host->rank_count - (int32_t)host->ends_seen; }

/* A host that was here is not any more. */
static void lose(dsc_head *head, int32_t index, bool silent, int64_t now_ns)
{
    dsc_head_host *host = &head->host[index];
    const bool running = head->phase == DSC_HEAD_RUNS && !host->gone;
    host->phase = running ? DSC_HOST_LOST : DSC_HOST_AWAY;
    act(head, DSC_HEAD_DO_DROP, index);
    if (!running)
        return;
    host->was_lost = true;
    host->lost_at_ns = now_ns;
    dsc_verdict_host_lost(&head->verdict, index, alive_on(host));
    host->ends_seen = (uint32_t)host->rank_count;
    head->emit(head->user, &(dsc_head_action){ .kind = DSC_HEAD_DO_LOST, .host = index, .epoch = head->epoch,
                                               .silent = silent });
}

/* A host cannot be had: the others get a moment to say whether they can. */
static void fail_host(dsc_head *head, int32_t index, int64_t now_ns)
{
    head->host[index].phase = DSC_HOST_FAILED;
    act(head, DSC_HEAD_DO_DROP, index);
    head->host_failed = true;
    head->deadline_ns = dsc_min_i64(head->deadline_ns, now_ns + DSC_CONTROL_OTHERS_NS);
}

static void on_closed(dsc_head *head, int32_t index, int64_t now_ns)
{
    switch (head->host[index].phase) {
    case DSC_HOST_WAITED: fail_host(head, index, now_ns); break;
    case DSC_HOST_HERE: lose(head, index, false, now_ns); break;
    case DSC_HOST_AWAY: case DSC_HOST_FAILED: case DSC_HOST_LOST: break;
    }
}

static void connect_all(dsc_head *head, int64_t now_ns)
{
    DSC_ASSERT(head->phase == DSC_HEAD_IDLE || head->phase == DSC_HEAD_OVER);
    head->phase = DSC_HEAD_CONNECTS;
    head->deadline_ns = now_ns + DSC_CONTROL_ANSWER_NS;
    for (int32_t i = 0; i < head->host_count; i++) {
        dsc_head_host *host = &head->host[i];
        if (host->phase == DSC_HOST_HERE)
            continue;
        *host = (dsc_head_host){ .phase = DSC_HOST_WAITED, .rank_count = host->rank_count };
        act(head, DSC_HEAD_DO_CONNECT, i);
    }
}

static int32_t count_hosts(const dsc_head *head, dsc_host_phase phase)
{
    int32_t count = 0;
    for (int32_t i = 0; i < head->host_count; i++)
        count += head->host[i].phase == phase;
    return count;
}

/* ---- notices ----------------------------------------------------------------------------------------------------- */

static void take_ends(dsc_head *head, dsc_head_host *host, const dsc_notice *notice)
{
    for (int32_t i = 0; i < notice->end_count; i++) {
        if (notice->ends_from + (uint32_t)i != host->ends_seen || alive_on(host) == 0)
            continue; /* known already, or not its turn: it will be sent again */
        host->ends_seen++;
        dsc_verdict_rank_ended(&head->verdict, &notice->end[i]);
        head->emit(head->user, &(dsc_head_action){ .kind = DSC_HEAD_DO_ENDED, .host = (int32_t)(host - head->host),
                                                   .epoch = head->epoch, .end = &notice->end[i] });
    }
}

static void take_state(dsc_head *head, dsc_head_host *host, const dsc_notice *notice)
{
    take_ends(head, host, notice);
    if (notice->start_failed && !host->start_failed) {
        host->start_failed = head->start_failed = true;
        dsc_verdict_give_up(&head->verdict);
    }
    /* Ranks that never started do not end; the others' ends come before the host is gone. */
    const bool all_ends = alive_on(host) == 0 || host->start_failed || head->verdict.phase != DSC_VERDICT_RUN;
    const bool all_taken = notice->ends_from + (uint32_t)notice->end_count <= host->ends_seen;
    if (notice->phase == DSC_AGENT_GONE && all_ends && all_taken)
        host->gone = true;
}

static void send_task(dsc_head *head, int32_t index, int64_t now_ns)
{
    head->host[index].task_at_ns = now_ns + DSC_CONTROL_TASK_AGAIN_NS;
    act(head, DSC_HEAD_DO_TASK, index);
}

static void on_notice(dsc_head *head, int32_t index, const dsc_notice *notice, int64_t now_ns)
{
    dsc_head_host *host = &head->host[index];
    if (host->phase != DSC_HOST_HERE || notice->number <= host->notice_number)
        return;
    host->notice_number = notice->number;
    host->heard_ns = now_ns;
    if (notice->cut_off) {
        lose(head, index, true, now_ns);
        return;
    }
    if (notice->epoch != head->epoch && head->phase == DSC_HEAD_RUNS && now_ns >= host->task_at_ns)
        send_task(head, index, now_ns);
    if (head->epoch == 0 || notice->epoch != head->epoch)
        return;
    if (head->phase == DSC_HEAD_RUNS)
        take_state(head, host, notice);
    host->drained = host->gone && notice->drained;
}

/* ---- phases ------------------------------------------------------------------------------------------------------ */

static void start_run(dsc_head *head, int64_t now_ns)
{
    int32_t rank_count = 0;
    DSC_ASSERT(head->phase == DSC_HEAD_READY);
    head->phase = DSC_HEAD_RUNS;
    head->epoch++;
    head->start_failed = false;
    head->give_up_at_ns = INT64_MAX;
    for (int32_t i = 0; i < head->host_count; i++) {
        dsc_head_host *host = &head->host[i];
        host->gone = host->drained = host->start_failed = false;
        host->ends_seen = 0;
        rank_count += host->rank_count;
    }
    dsc_verdict_init(&head->verdict, rank_count, head->grace_ns);
    for (int32_t i = 0; i < head->host_count; i++)
        if (head->host[i].phase == DSC_HOST_HERE)
            send_task(head, i, now_ns);
        else /* it left between its answer and now */
            dsc_verdict_host_lost(&head->verdict, i, head->host[i].rank_count);
}

static void end_run(dsc_head *head)
{
    head->phase = DSC_HEAD_OVER;
    head->deadline_ns = INT64_MAX;
    act(head, DSC_HEAD_DO_OVER, -1);
}

static void check_connecting(dsc_head *head, int64_t now_ns)
{
    const int32_t waited = count_hosts(head, DSC_HOST_WAITED), here = count_hosts(head, DSC_HOST_HERE);
    const bool hopeless = head->host_failed || head->user_signal != 0;
    if (here == head->host_count && !hopeless) {
        head->phase = DSC_HEAD_READY;
        head->deadline_ns = INT64_MAX;
        act(head, DSC_HEAD_DO_READY, -1);
    } else if (here + waited < head->host_count && !hopeless) { /* one left again before all were here */
        head->host_failed = true;
        head->deadline_ns = now_ns + DSC_CONTROL_OTHERS_NS;
    } else if (head->user_signal != 0 || now_ns >= head->deadline_ns || (hopeless && waited == 0)) {
        for (int32_t i = 0; i < head->host_count; i++)
            if (head->host[i].phase == DSC_HOST_WAITED)
                fail_host(head, i, now_ns);
        end_run(head);
    }
}

static void check_silence(dsc_head *head, int64_t now_ns)
{
    for (int32_t i = 0; i < head->host_count; i++)
        if (head->host[i].phase == DSC_HOST_HERE && now_ns - head->host[i].heard_ns > DSC_CONTROL_LEASE_NS)
            lose(head, i, true, now_ns);
}

int64_t dsc_head_last_received_ns(const dsc_head *head, int64_t now_ns)
{
    int64_t oldest_ns = now_ns;
    for (int32_t i = 0; i < head->host_count; i++)
        if (head->host[i].phase == DSC_HOST_HERE && !head->host[i].gone)
            oldest_ns = dsc_min_i64(oldest_ns, head->host[i].heard_ns);
    return oldest_ns;
}

static void check_running(dsc_head *head, int64_t now_ns)
{
    bool over = true;
    dsc_verdict_tick(&head->verdict, dsc_head_last_received_ns(head, now_ns), now_ns);
    if (head->verdict.phase == DSC_VERDICT_KILL && head->give_up_at_ns == INT64_MAX)
        head->give_up_at_ns = now_ns + DSC_CONTROL_GIVE_UP_NS;
    for (int32_t i = 0; i < head->host_count; i++)
        if (head->host[i].phase == DSC_HOST_HERE && !head->host[i].gone && now_ns >= head->give_up_at_ns)
            lose(head, i, true, now_ns); /* what cannot be killed sleeps in its kernel */
    for (int32_t i = 0; i < head->host_count; i++)
        over = over && (head->host[i].phase != DSC_HOST_HERE || head->host[i].gone);
    if (over)
        end_run(head);
}

static void check_leaving(dsc_head *head, int64_t now_ns)
{
    for (int32_t i = 0; i < head->host_count && now_ns >= head->deadline_ns; i++)
        if (head->host[i].phase == DSC_HOST_HERE)
            lose(head, i, true, now_ns);
    if (count_hosts(head, DSC_HOST_HERE) == 0) {
        head->phase = DSC_HEAD_LEFT;
        act(head, DSC_HEAD_DO_LEFT, -1);
    }
}

static void on_user(dsc_head *head, int signal_number, int64_t now_ns)
{
    if (head->phase == DSC_HEAD_RUNS)
        (void)dsc_verdict_user_signal(&head->verdict, signal_number, now_ns);
    else if (head->user_signal == 0)
        head->user_signal = signal_number;
}

static void on_quit(dsc_head *head, int64_t now_ns)
{
    DSC_ASSERT(head->phase != DSC_HEAD_RUNS && head->phase != DSC_HEAD_CONNECTS);
    head->phase = DSC_HEAD_LEAVES;
    head->deadline_ns = now_ns + DSC_CONTROL_LEAVE_NS;
}

void dsc_head_step(dsc_head *head, const dsc_head_event *event)
{
    const int64_t now_ns = event->now_ns;
    if (head->phase == DSC_HEAD_LEFT)
        return;
    switch (event->kind) {
    case DSC_HEAD_TICK: check_silence(head, now_ns); break;
    case DSC_HEAD_HELLO:
        if (head->host[event->host].phase == DSC_HOST_WAITED) {
            head->host[event->host].phase = DSC_HOST_HERE;
            head->host[event->host].heard_ns = now_ns;
        }
        break;
    case DSC_HEAD_REFUSED: fail_host(head, event->host, now_ns); break;
    case DSC_HEAD_CLOSED: on_closed(head, event->host, now_ns); break;
    case DSC_HEAD_NOTICE: on_notice(head, event->host, event->notice, now_ns); break;
    case DSC_HEAD_START: start_run(head, now_ns); break;
    case DSC_HEAD_CONNECT: connect_all(head, now_ns); break;
    case DSC_HEAD_QUIT: on_quit(head, now_ns); break;
    case DSC_HEAD_USER: on_user(head, event->signal, now_ns); break;
    case DSC_HEAD_PASS:
        head->signal = event->signal;
        head->signal_count++;
        break;
    case DSC_HEAD_FOUND:
        if (head->phase == DSC_HEAD_RUNS)
            dsc_verdict_found(&head->verdict, event->code);
        break;
    case DSC_HEAD_GIVE_UP:
        head->user_signal = head->user_signal != 0 ? head->user_signal : event->signal;
        dsc_verdict_give_up(&head->verdict);
        break;
    case DSC_HEAD_DEAF: head->deaf[event->which] = true; break;
    }
    switch (head->phase) {
    case DSC_HEAD_CONNECTS: check_connecting(head, now_ns); break;
    case DSC_HEAD_RUNS: check_running(head, now_ns); break;
    case DSC_HEAD_LEAVES: check_leaving(head, now_ns); break;
    case DSC_HEAD_IDLE: case DSC_HEAD_READY: case DSC_HEAD_OVER: case DSC_HEAD_LEFT: break;
    }
    send_orders(head, now_ns);
}

int64_t dsc_head_may_connect_ns(const dsc_head *head)
{
    int64_t at_ns = 0;
    for (int32_t i = 0; i < head->host_count; i++)
        if (head->host[i].was_lost)
            at_ns = dsc_max_i64(at_ns, head->host[i].lost_at_ns + DSC_CONTROL_REJOIN_NS);
    return at_ns;
}

int64_t dsc_head_wake_ns(const dsc_head *head, int64_t now_ns)
{
    int64_t at_ns = head->deadline_ns;
    if (head->phase == DSC_HEAD_RUNS)
        at_ns = dsc_min_i64(at_ns, dsc_min_i64(dsc_verdict_wake_ns(&head->verdict, now_ns), head->give_up_at_ns));
    for (int32_t i = 0; i < head->host_count; i++)
        if (head->host[i].phase == DSC_HOST_HERE)
            at_ns = dsc_min_i64(at_ns, dsc_min_i64(head->host[i].beat_at_ns,
                                                   head->host[i].heard_ns + DSC_CONTROL_LEASE_NS + 1));
    return at_ns;
}
