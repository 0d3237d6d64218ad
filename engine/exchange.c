/* exchange.c - see exchange.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/exchange.h"

#include "engine/internal.h"

static void add_channel(const dsc_comm *comm, int32_t channel, dsc_exchange kind, dsc_exchange_counts *out)
{
    dsc_comm_payload payload;
    dsc_comm_payload_get(comm, channel, &payload);
    out->sent[kind] += payload.sent;
    out->received[kind] += payload.received;
}

/* A communicator with the engine's channels. */
static void add_all(const dsc_comm *comm, dsc_exchange_counts *out)
{
    static const dsc_exchange kinds[DSC_CHANNEL_COUNT] = { [DSC_CHANNEL_CONTROL] = DSC_EXCHANGE_OTHER,
                                                           [DSC_CHANNEL_GATHER] = DSC_EXCHANGE_GATHER,
                                                           [DSC_CHANNEL_REDUCE] = DSC_EXCHANGE_REDUCE };
    for (int32_t c = 0; c < DSC_CHANNEL_COUNT; c++)
        add_channel(comm, c, kinds[c], out);
    out->wait_ns += dsc_comm_blocked_ns(comm);
}

/* Neighbours only gather and replicas only add, on one channel. */
static void add_side(const dsc_comm *comm, dsc_side side, dsc_exchange_counts *out)
{
    if (side == DSC_SUB_SHARDS) {
        add_all(comm, out);
        return;
    }
    for (int32_t c = 1; c < DSC_STAGE_CHANNELS && side == DSC_SUB_PIPELINE; c++)
        add_channel(comm, c, DSC_EXCHANGE_OTHER, out);
    if (side == DSC_SUB_PIPELINE || side == DSC_SUB_TIED || side == DSC_SUB_TENSOR)
        add_channel(comm, 0, DSC_EXCHANGE_OTHER, out);
    else
        add_channel(comm, 0, side == DSC_SUB_NEIGHBOURS ? DSC_EXCHANGE_GATHER : DSC_EXCHANGE_REDUCE, out);
    out->wait_ns += dsc_comm_blocked_ns(comm);
}

void dsc_engine_exchange_counts(const dsc_engine *engine, dsc_exchange_counts *out)
{
    const dsc_engine_comms *comms = &engine->comms;
    *out = (dsc_exchange_counts) { .wait_ns = dsc_waited_ns(engine->compute) };
    add_all(comms->all, out);
    if (comms->device != comms->all && comms->device != comms->side[DSC_SUB_SHARDS].device)
        add_all(comms->device, out);
    for (int side = 0; side < DSC_SUB_COUNT; side++) {
        const dsc_side_comm *of = &comms->side[side];
        if (of->host != NULL)
            add_side(of->host, (dsc_side)side, out);
        if (of->device != NULL && of->device != of->host)
            add_side(of->device, (dsc_side)side, out);
    }
}

dsc_exchange_counts dsc_exchange_since(const dsc_exchange_counts *before, const dsc_exchange_counts *now)
{
    dsc_exchange_counts out = { .wait_ns = now->wait_ns - before->wait_ns };
    for (int kind = 0; kind < DSC_EXCHANGE_KINDS; kind++) {
        out.sent[kind] = now->sent[kind] - before->sent[kind];
        out.received[kind] = now->received[kind] - before->received[kind];
    }
    return out;
}
