/* host_agent.c - see host_agent.h. SPDX-License-Identifier: Apache-2.0 */
#include "launcher/node/host_agent.h"

#include "base/clock.h"

void dsc_host_agent_step(dsc_host_agent *agent, dsc_agent_event event)
{
    event.now_ns = dsc_clock_ns();
    dsc_agent_step(&agent->machine, &event);
}

static void kill_ranks(dsc_host_agent *agent)
{
    if (!agent->ranks_open || agent->ranks.no_children)
        return;
    if (!agent->killing && agent->ops->killing != NULL)
        agent->ops->killing(agent->user);
    agent->killing = true;
    dsc_ranks_kill(&agent->ranks);
}

static dsc_spawn_pipes pipes_of(const dsc_host_agent *agent, int32_t index)
{
    /* Output that goes to a log only is one stream: both ends are the same file. */
    const bool log_only = agent->task.rank0_only && agent->task.first_rank + index > 0;
    return log_only ? (dsc_spawn_pipes) { true, true, true } : agent->pipes;
}

/* There is one command at a time, and so one rank at most that could not be started. */
static void obey(dsc_host_agent *agent, const dsc_slot_command *command)
{
    dsc_ranks *ranks = &agent->ranks;
    if (command->signal != 0)
        dsc_ranks_signal_one(ranks, command->slot, command->signal);
    else if (!dsc_ranks_start_one(ranks, command->slot, &agent->setup, pipes_of(agent, command->slot)))
        agent->unstarted_slot = command->slot;
}

static void on_action(void *user, const dsc_agent_action *action)
{
    dsc_host_agent *agent = user;
    switch (action->kind) {
    case DSC_AGENT_DO_START: agent->start_wanted = true; break;
    case DSC_AGENT_DO_SIGNAL: dsc_ranks_signal(&agent->ranks, action->signal); break;
    case DSC_AGENT_DO_COMMAND:
        obey(agent, &action->command);
        break;
    case DSC_AGENT_DO_KILL: kill_ranks(agent); break;
    case DSC_AGENT_DO_NOTICE: agent->ops->notice(agent->user, &action->notice); break;
    case DSC_AGENT_DO_STOP_READING: dsc_ranks_stop_reading(&agent->ranks, action->which); break;
    case DSC_AGENT_DO_EXIT: agent->leaves = true; break;
    }
}

/* ---- ranks ---- */

static void on_output(void *user, int32_t index, int which, const char *text, size_t bytes, int64_t now_ns)
{
    dsc_host_agent *agent = user;
    DSC_ASSERT(bytes > 0);
    agent->ops->output(agent->user, index, which, text, bytes, now_ns);
}

static void on_output_end(void *user, int32_t index, int which, int64_t now_ns)
{
    dsc_host_agent *agent = user;
    agent->ops->output(agent->user, index, which, NULL, 0, now_ns);
}

static void on_ended(void *user, int32_t index, const dsc_rank_end *end, int64_t now_ns)
{
    dsc_host_agent_step(user, (dsc_agent_event){ .kind = DSC_AGENT_ENDED, .end = end });
}

static void on_report(void *user, int32_t index, const uint8_t *packet, size_t bytes)
{
    dsc_host_agent *agent = user;
    agent->ops->report(agent->user, index, packet, bytes);
}

void dsc_host_agent_call(dsc_host_agent *agent, uint32_t epoch, int32_t index, const uint8_t *packet, size_t bytes)
{
    if (agent->ranks_open && agent->machine.epoch == epoch)
        dsc_ranks_call(&agent->ranks, index, packet, bytes);
}

static void close_ranks(dsc_host_agent *agent)
{
    if (agent->ranks_open)
        dsc_ranks_close(&agent->ranks);
    agent->ranks_open = false;
    dsc_alloc_free(agent->alloc, agent->env);
    agent->env = NULL;
}

void dsc_host_agent_pause(dsc_host_agent *agent, int which, bool paused)
{
    if (agent->ranks_open)
        dsc_ranks_pause(&agent->ranks, which, paused);
}

/* ---- starting ---- */

static dsc_status start_ranks(dsc_host_agent *agent, dsc_error *err)
{
    const dsc_ranks_hooks hooks = { on_output, on_output_end, on_ended, on_report, agent };
    dsc_host_task *task = &agent->task;
    dsc_spawn_pipes *pipes = NULL;
    close_ranks(agent);
    DSC_TRY(agent->ops->prepare(agent->user, task, &agent->env, err));
    task->env = agent->env;
    agent->ranks_open = true; /* a part of them, if the next line fails */
    DSC_TRY(dsc_ranks_open(&agent->ranks, agent->alloc, task, agent->epoll_fd, &hooks, err));
    DSC_TRY(dsc_alloc_zeroed(agent->alloc, DSC_TAG_CONTROL, task->rank_count, (int64_t)sizeof *pipes, &pipes, err));
    for (int32_t i = 0; i < task->rank_count; i++)
        pipes[i] = pipes_of(agent, i);
    const dsc_status status = dsc_ranks_start(&agent->ranks, &agent->setup, pipes, err);
    dsc_alloc_free(agent->alloc, pipes);
    return status;
}

void dsc_host_agent_start(dsc_host_agent *agent)
{
    dsc_error err = DSC_ERROR_INIT;
    if (!agent->start_wanted)
        return;
    agent->start_wanted = agent->killing = false;
    const bool ok = start_ranks(agent, &err) == DSC_OK;
    if (!ok)
        agent->ops->start_failed(agent->user, agent->task_epoch, &err);
    dsc_host_agent_step(agent, (dsc_agent_event){ .kind = DSC_AGENT_STARTED, .ok = ok });
}

void dsc_host_agent_set_task(dsc_host_agent *agent, uint32_t epoch, dsc_host_task *task)
{
    if (agent->machine.phase == DSC_AGENT_RUNS || epoch <= agent->task_epoch) { /* it was sent again */
        dsc_host_task_close(agent->alloc, task);
        return;
    }
    close_ranks(agent); /* they use the old one */
    dsc_host_task_close(agent->alloc, &agent->task);
    agent->task = *task;
    agent->task_epoch = epoch;
    dsc_host_agent_step(agent, (dsc_agent_event) { .kind = DSC_AGENT_TASK,
                                                   .epoch = epoch,
                                                   .rank_count = task->rank_count,
                                                   .elastic = task->least_ranks > 0 });
}

/* ---- the loop ---- */

void dsc_host_agent_on_event(dsc_host_agent *agent, const dsc_loop_event *event, int64_t now_ns)
{
    if (agent->ranks_open)
        dsc_ranks_on_event(&agent->ranks, event, now_ns);
}

/* No process is left, so the pipes hold what they will ever hold. A pause comes from the owner while it takes output;
 * the loop goes on then. */
static void drain(dsc_host_agent *agent)
{
    dsc_ranks *ranks = &agent->ranks;
    if (agent->machine.phase != DSC_AGENT_GONE || agent->machine.drained)
        return;
    while (agent->ranks_open && ranks->stream_count > 0) {
        dsc_ranks_drain(ranks, dsc_clock_ns());
        if (ranks->stream_count > 0 && (ranks->paused[0] || ranks->paused[1]))
            return;
    }
    dsc_host_agent_step(agent, (dsc_agent_event){ .kind = DSC_AGENT_DRAINED });
}

static void end_unstarted(dsc_host_agent *agent)
{
    const dsc_rank_end end = { .rank = agent->task.first_rank + agent->unstarted_slot,
                               .code = dsc_status_exit_code(DSC_ERR_IO) };
    if (agent->unstarted_slot >= 0 && agent->machine.phase == DSC_AGENT_RUNS)
        dsc_host_agent_step(agent, (dsc_agent_event) { .kind = DSC_AGENT_ENDED, .end = &end });
    agent->unstarted_slot = -1;
}

void dsc_host_agent_tend(dsc_host_agent *agent)
{
    if (agent->ranks_open)
        dsc_ranks_reap(&agent->ranks, dsc_clock_ns());
    if (agent->machine.phase == DSC_AGENT_RUNS && (!agent->ranks_open || agent->ranks.no_children))
        dsc_host_agent_step(agent, (dsc_agent_event){ .kind = DSC_AGENT_NO_CHILDREN });
    end_unstarted(agent);
    dsc_host_agent_step(agent, (dsc_agent_event){ .kind = DSC_AGENT_TICK });
    dsc_host_agent_start(agent);
    drain(agent);
}

void dsc_host_agent_open(dsc_host_agent *agent)
{
    agent->unstarted_slot = -1;
    dsc_agent_init(&agent->machine, agent->end, agent->rank_limit, dsc_clock_ns(), on_action, agent);
}

void dsc_host_agent_close(dsc_host_agent *agent)
{
    if (agent->alloc == NULL)
        return;
    close_ranks(agent);
    dsc_host_task_close(agent->alloc, &agent->task);
    *agent = (dsc_host_agent){ .alloc = NULL };
}
