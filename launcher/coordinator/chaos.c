/* chaos.c - see chaos.h. SPDX-License-Identifier: Apache-2.0 */
#include "launcher/coordinator/chaos.h"

#include <signal.h>

#include "launcher/coordinator/coordinator.h"

#define MS INT64_C(1000000)

static const struct {
    const char *name;
    int signal;
} kinds[DSC_CHAOS_KINDS] = {
    [DSC_CHAOS_KILL] = { "kill", SIGKILL },
    [DSC_CHAOS_STOP] = { "stop", SIGSTOP },
    [DSC_CHAOS_LEAVE] = { "leave", SIGTERM },
    [DSC_CHAOS_CUT] = { "cut", 0 },
};

static uint64_t draw(dsc_chaos *chaos)
{
    uint64_t z = chaos->random += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static int64_t next_ns(dsc_chaos *chaos, int64_t every_ms, int64_t now_ns)
{
    return now_ns + every_ms * MS / 2 + (int64_t)(draw(chaos) % (uint64_t)(every_ms * MS));
}

/* A process that starts may not have its handlers of signals yet. */
static bool may_be_drawn(const dsc_slot *slot)
{
    return slot->phase == DSC_SLOT_MEMBER || slot->phase == DSC_SLOT_READY;
}

static void signal_some_rank(dsc_coordinator_worker *c, dsc_chaos_kind kind)
{
    int32_t living = 0;
    for (int32_t i = 0; i < c->worlds.membership.count; i++)
        living += may_be_drawn(&c->worlds.slot[i]);
    if (living == 0)
        return;
    int32_t nth = (int32_t)(draw(&c->chaos) % (uint64_t)living);
    for (int32_t i = 0; i < c->worlds.membership.count; i++) {
        if (!may_be_drawn(&c->worlds.slot[i]) || nth-- > 0)
            continue;
        dsc_output_log(c->out, "dsc-launch: chaos: %s slot %d", kinds[kind].name, (int)i);
        dsc_coordinator_worker_step(
            c, (dsc_coordinator_event) { .kind = DSC_COORDINATOR_SIGNAL, .slot = i, .signal = kinds[kind].signal });
        return;
    }
}

/* The first host stays, because its ranks may be children of this process. */
static void cut_some_link(dsc_coordinator_worker *c)
{
    if (c->agents->cut == NULL || c->host_count < 2)
        return;
    const int32_t host = 1 + (int32_t)(draw(&c->chaos) % (uint64_t)(c->host_count - 1));
    if (c->host[host].phase != DSC_HOST_HERE)
        return;
    dsc_output_log(c->out, "dsc-launch: chaos: cut host %s", c->remote[host].name);
    c->agents->cut(c, host);
}

static bool is_running(const dsc_coordinator_worker *c)
{
    return c->job->opt->chaos.given && c->machine.phase == DSC_COORDINATOR_RUNS &&
           c->machine.verdict.phase == DSC_VERDICT_RUN && c->worlds.membership.generation > 0;
}

int64_t dsc_chaos_wake_ns(const dsc_coordinator_worker *c)
{
    int64_t at_ns = INT64_MAX;
    for (int kind = 0; kind < DSC_CHAOS_KINDS && is_running(c); kind++)
        if (c->chaos.at_ns[kind] > 0)
            at_ns = dsc_min_i64(at_ns, c->chaos.at_ns[kind]);
    return at_ns;
}

void dsc_chaos_act(dsc_coordinator_worker *c, int64_t now_ns)
{
    const dsc_chaos_spec *spec = &c->job->opt->chaos;
    dsc_chaos *chaos = &c->chaos;
    if (!is_running(c))
        return;
    if (chaos->random == 0)
        chaos->random = (uint64_t)spec->seed;
    for (dsc_chaos_kind kind = 0; kind < DSC_CHAOS_KINDS; kind++) {
        if (spec->every_ms[kind] == 0 || now_ns < chaos->at_ns[kind])
            continue;
        const bool begins = chaos->at_ns[kind] == 0;
        chaos->at_ns[kind] = next_ns(chaos, spec->every_ms[kind], now_ns);
        if (!begins && kind == DSC_CHAOS_CUT)
            cut_some_link(c);
        else if (!begins)
            signal_some_rank(c, kind);
    }
}
