/* control_agent.c - the agent's side of control.h.
 *
 * Invariants:
 * (1) Ranks of two epochs never run at once.
 * (2) Ranks run only while an order of the coordinator came within the lease, or are being ended.
 * (3) An agent that was cut off stays so: the coordinator counts this host as lost by then.
 * SPDX-License-Identifier: Apache-2.0 */
#include "launcher/protocol/control.h"

#include <signal.h>
#include <string.h>

#define KILL_AGAIN_NS INT64_C(20000000)
#define MS INT64_C(1000000)

void dsc_agent_init(dsc_agent *agent, dsc_rank_end *end, int32_t capacity, int64_t now_ns,
                    void (*emit)(void *user, const dsc_agent_action *action), void *user)
{
    *agent = (dsc_agent){ .received_ns = now_ns, .beat_at_ns = now_ns, .kill_at_ns = INT64_MAX,
                          .kill_again_at_ns = INT64_MAX, .end = end, .capacity = capacity, .emit = emit,
                          .user = user };
}

static void act(dsc_agent *agent, const dsc_agent_action *action) { agent->emit(agent->user, action); }

/* ---- what is the case -------------------------------------------------------------------------------------------- */

static void send_notice(dsc_agent *agent, int64_t now_ns)
{
    dsc_agent_action action = { .kind = DSC_AGENT_DO_NOTICE };
    dsc_notice *notice = &action.notice;
    const uint32_t seen = agent->order.epoch == agent->epoch ? agent->order.ends_seen : 0;
    notice->number = ++agent->notice_count;
    notice->epoch = agent->epoch;
    notice->phase = agent->phase;
    notice->cut_off = agent->cut_off;
    notice->start_failed = agent->start_failed;
    notice->drained = agent->drained;
    notice->commands_done = agent->commands_done;
    notice->ends_from = seen;
    for (int32_t i = (int32_t)seen; i < agent->end_count && notice->end_count < DSC_NOTICE_ENDS_MAX; i++)
        notice->end[notice->end_count++] = agent->end[i % agent->capacity];
    agent->beat_at_ns = now_ns + DSC_CONTROL_BEAT_NS;
    agent->dirty = false;
    act(agent, &action);
}

static void become_gone(dsc_agent *agent)
{
    agent->phase = DSC_AGENT_GONE;
    agent->kill_at_ns = agent->kill_again_at_ns = INT64_MAX;
    agent->dirty = true;
}

/* ---- what is wanted ---------------------------------------------------------------------------------------------- */

static void start(dsc_agent *agent, uint32_t epoch)
{
    agent->phase = DSC_AGENT_RUNS;
    agent->epoch = epoch;
    agent->end_count = 0;
    agent->commands_done = 0;
    agent->started = agent->start_failed = agent->ending = agent->drained = false;
    agent->reader_gone[0] = agent->reader_gone[1] = false;
    agent->signal_count = agent->order.signal_count; /* those before the start were for nobody */
    agent->kill_at_ns = agent->kill_again_at_ns = INT64_MAX;
    agent->dirty = true;
    act(agent, &(dsc_agent_action){ .kind = DSC_AGENT_DO_START, .epoch = epoch });
}

static void end_ranks(dsc_agent *agent, int signal_number, int64_t grace_ns, int64_t now_ns)
{
    if (agent->ending) {
        agent->kill_at_ns = dsc_min_i64(agent->kill_at_ns, now_ns + grace_ns);
        return;
    }
    agent->ending = true;
    agent->kill_at_ns = now_ns + grace_ns;
    if (signal_number != 0)
        act(agent, &(dsc_agent_action){ .kind = DSC_AGENT_DO_SIGNAL, .signal = signal_number });
}

static void kill_now(dsc_agent *agent, int64_t now_ns)
{
    agent->ending = true;
    agent->kill_at_ns = dsc_min_i64(agent->kill_at_ns, now_ns);
}

/* The coordinator gives the next command when this one is known to be done. */
static void obey(dsc_agent *agent, const dsc_order *order)
{
    if (!agent->started || order->command_count != agent->commands_done + 1)
        return;
    agent->commands_done++;
    agent->dirty = true;
    if (order->command.slot < agent->task_ranks && !agent->ending)
        act(agent, &(dsc_agent_action) { .kind = DSC_AGENT_DO_COMMAND, .command = order->command });
}

static void follow(dsc_agent *agent, const dsc_order *order, int64_t now_ns)
{
    for (int which = 0; which < 2; which++)
        if (order->reader_gone[which] && !agent->reader_gone[which]) {
            agent->reader_gone[which] = true;
            act(agent, &(dsc_agent_action){ .kind = DSC_AGENT_DO_STOP_READING, .which = which });
        }
    const bool lives = order->phase == DSC_ORDER_RUN || order->phase == DSC_ORDER_END;
    if (order->signal_count != agent->signal_count && lives) {
        agent->signal_count = order->signal_count;
        act(agent, &(dsc_agent_action){ .kind = DSC_AGENT_DO_SIGNAL, .signal = order->signal });
    }
    if (order->phase == DSC_ORDER_RUN)
        obey(agent, order);
    if (order->phase == DSC_ORDER_END)
        end_ranks(agent, order->term_signal, order->grace_ms * MS, now_ns);
    if (order->phase == DSC_ORDER_KILL || order->phase == DSC_ORDER_QUIT)
        kill_now(agent, now_ns);
}

/* `fresh`: the order has just come. */
static void evaluate_running(dsc_agent *agent, bool fresh, int64_t now_ns)
{
    const dsc_order *order = &agent->order;
    if (agent->cut_off)
        end_ranks(agent, SIGTERM, DSC_CONTROL_CUT_OFF_GRACE_NS, now_ns);
    else if (order->epoch > agent->epoch || order->phase == DSC_ORDER_QUIT || agent->start_failed)
        kill_now(agent, now_ns);
    else if (order->epoch == agent->epoch && fresh)
        follow(agent, order, now_ns);
    if (now_ns >= agent->kill_at_ns && (agent->kill_again_at_ns == INT64_MAX || now_ns >= agent->kill_again_at_ns)) {
        agent->kill_again_at_ns = now_ns + KILL_AGAIN_NS;
        act(agent, &(dsc_agent_action){ .kind = DSC_AGENT_DO_KILL });
    }
}

static void evaluate_idle(dsc_agent *agent)
{
    const dsc_order *order = &agent->order;
    if (agent->cut_off || order->phase == DSC_ORDER_QUIT) {
        agent->over = true;
        act(agent, &(dsc_agent_action){ .kind = DSC_AGENT_DO_EXIT });
        return;
    }
    if (order->epoch <= agent->epoch)
        return;
    if (order->phase == DSC_ORDER_RUN && agent->task_epoch == order->epoch) {
        start(agent, order->epoch);
    } else if (order->phase != DSC_ORDER_RUN) { /* it ended before it came here */
        agent->epoch = order->epoch;
        agent->end_count = 0;
        agent->start_failed = false;
        agent->drained = true;
        become_gone(agent);
    }
}

/* ---- events ------------------------------------------------------------------------------------------------------ */

static bool take_order(dsc_agent *agent, const dsc_agent_event *event)
{
    if (event->order->number <= agent->order.number)
        return false;
    if (event->order->epoch == agent->epoch && event->order->ends_seen > (uint32_t)agent->end_count)
        return false; /* nobody can have seen more than there was */
    if (event->order->epoch == agent->epoch && agent->order.epoch == agent->epoch &&
        event->order->ends_seen > agent->order.ends_seen && event->order->ends_seen < (uint32_t)agent->end_count)
        agent->dirty = true; /* more ends than one notice holds */
    agent->order = *event->order;
    agent->received_ns = event->now_ns;
    return true;
}

static void take_end(dsc_agent *agent, const dsc_rank_end *end)
{
    DSC_ASSERT(agent->phase == DSC_AGENT_RUNS);
    const int32_t seen = agent->order.epoch == agent->epoch ? (int32_t)agent->order.ends_seen : 0;
    DSC_ASSERT(agent->end_count - seen < agent->capacity);
    agent->end[agent->end_count++ % agent->capacity] = *end;
    agent->dirty = true;
}

void dsc_agent_step(dsc_agent *agent, const dsc_agent_event *event)
{
    bool fresh = false;
    if (agent->over)
        return;
    switch (event->kind) {
    case DSC_AGENT_TICK:
        if (event->now_ns - agent->received_ns > DSC_CONTROL_LEASE_NS && !agent->cut_off && !agent->direct)
            agent->cut_off = agent->dirty = true;
        break;
    case DSC_AGENT_ORDER: fresh = take_order(agent, event); break;
    case DSC_AGENT_TASK:
        if (event->epoch > agent->task_epoch && event->rank_count <= agent->capacity) {
            agent->task_epoch = event->epoch;
            agent->task_ranks = event->rank_count;
            agent->elastic = event->elastic;
        }
        break;
    case DSC_AGENT_CLOSED: agent->cut_off = true; break;
    case DSC_AGENT_STARTED:
        agent->started = true;
        agent->start_failed = !event->ok;
        agent->dirty = true;
        break;
    case DSC_AGENT_ENDED: take_end(agent, event->end); break;
    case DSC_AGENT_NO_CHILDREN:
        if (agent->phase == DSC_AGENT_RUNS && agent->started && (!agent->elastic || agent->ending))
            become_gone(agent);
        break;
    case DSC_AGENT_DRAINED:
        agent->dirty = agent->dirty || !agent->drained;
        agent->drained = true;
        break;
    }
    if (agent->phase == DSC_AGENT_RUNS)
        evaluate_running(agent, fresh, event->now_ns);
    else
        evaluate_idle(agent);
    if (!agent->over && (agent->dirty || event->now_ns >= agent->beat_at_ns))
        send_notice(agent, event->now_ns);
}

int64_t dsc_agent_wake_ns(const dsc_agent *agent)
{
    int64_t at_ns = dsc_min_i64(agent->beat_at_ns, agent->kill_at_ns);
    if (agent->kill_again_at_ns != INT64_MAX) /* then kill_at_ns has passed */
        at_ns = dsc_min_i64(agent->beat_at_ns, agent->kill_again_at_ns);
    return agent->cut_off || agent->direct ? at_ns : dsc_min_i64(at_ns, agent->received_ns + DSC_CONTROL_LEASE_NS + 1);
}
