/* world_channel.c - see world_channel.h. SPDX-License-Identifier: Apache-2.0 */
#include "base/world_channel.h"

#include <string.h>

/* Packets of both kinds never leave the machine types of one job: hosts of different byte order are refused by
 * the rendezvous. */
enum { REPORT_MAGIC = 0x52637344, CALL_MAGIC = 0x43637344 }; /* "DscR", "DscC" */

typedef struct report_packet {
    uint32_t magic;
    int32_t state;
    uint32_t generation;
    uint32_t flags;
    int64_t step;
} report_packet;

typedef struct call_packet {
    uint32_t magic;
    int32_t kind;
    uint32_t generation;
    uint32_t flags;
    int32_t rank, size, local_rank, local_size, host, host_count, master_port;
    char token[DSC_WORLD_TOKEN_CHARS + 1];
    char master_addr[DSC_WORLD_ADDR_BYTES];
} call_packet;

_Static_assert(sizeof(report_packet) <= DSC_WORLD_PACKET_MAX && sizeof(call_packet) <= DSC_WORLD_PACKET_MAX,
               "packets fit");

size_t dsc_world_report_put(const dsc_world_report *report, uint8_t out[DSC_WORLD_PACKET_MAX])
{
    report_packet packet;
    memset(&packet, 0, sizeof packet);
    packet.magic = REPORT_MAGIC;
    packet.state = (int32_t)report->state;
    packet.generation = report->generation;
    packet.flags = (report->has_states ? 1u : 0u) | (report->saved ? 2u : 0u);
    packet.step = report->step;
    memcpy(out, &packet, sizeof packet);
    return sizeof packet;
}

bool dsc_world_report_get(const void *bytes, size_t count, dsc_world_report *out)
{
    report_packet packet;
    if (count != sizeof packet)
        return false;
    memcpy(&packet, bytes, sizeof packet);
    if (packet.magic != REPORT_MAGIC || packet.state < DSC_WORLD_READY || packet.state > DSC_WORLD_DONE ||
        packet.flags > 3 || packet.step < 0)
        return false;
    *out = (dsc_world_report) { .state = (dsc_world_state)packet.state,
                                .generation = packet.generation,
                                .step = packet.step,
                                .has_states = (packet.flags & 1) != 0,
                                .saved = (packet.flags & 2) != 0 };
    return true;
}

size_t dsc_world_call_put(const dsc_world_call *call, uint8_t out[DSC_WORLD_PACKET_MAX])
{
    call_packet packet;
    memset(&packet, 0, sizeof packet);
    packet.magic = CALL_MAGIC;
    packet.kind = (int32_t)call->kind;
    packet.generation = call->generation;
    packet.flags = (call->carried ? 1u : 0u) | (call->last ? 2u : 0u);
    packet.rank = call->rank;
    packet.size = call->size;
    packet.local_rank = call->local_rank;
    packet.local_size = call->local_size;
    packet.host = call->host;
    packet.host_count = call->host_count;
    packet.master_port = call->master_port;
    memcpy(packet.token, call->token, sizeof packet.token);
    memcpy(packet.master_addr, call->master_addr, sizeof packet.master_addr);
    memcpy(out, &packet, sizeof packet);
    return sizeof packet;
}

static bool is_below(int32_t value, int32_t limit) { return value >= 0 && value < limit; }

static bool is_world(const call_packet *p)
{
    return p->generation > 0 && p->size <= DSC_WORLD_RANKS_MAX && is_below(p->rank, p->size) &&
           p->local_size <= p->size && is_below(p->local_rank, p->local_size) && p->host_count <= p->size &&
           is_below(p->host, p->host_count) && p->master_port >= 1 && p->master_port <= 65535 &&
           memchr(p->token, 0, sizeof p->token) == p->token + DSC_WORLD_TOKEN_CHARS &&
           strspn(p->token, "0123456789abcdef") == DSC_WORLD_TOKEN_CHARS &&
           memchr(p->master_addr, 0, sizeof p->master_addr) != NULL;
}

bool dsc_world_call_get(const void *bytes, size_t count, dsc_world_call *out)
{
    call_packet packet;
    if (count != sizeof packet)
        return false;
    memcpy(&packet, bytes, sizeof packet);
    if (packet.magic != CALL_MAGIC || packet.kind < DSC_WORLD_CALL_WORLD || packet.kind > DSC_WORLD_CALL_END ||
        packet.flags > 3 || (packet.kind == DSC_WORLD_CALL_WORLD && !is_world(&packet)))
        return false;
    *out = (dsc_world_call) { .kind = (dsc_world_call_kind)packet.kind,
                              .generation = packet.generation,
                              .rank = packet.rank,
                              .size = packet.size,
                              .local_rank = packet.local_rank,
                              .local_size = packet.local_size,
                              .host = packet.host,
                              .host_count = packet.host_count,
                              .master_port = packet.master_port,
                              .carried = (packet.flags & 1) != 0,
                              .last = (packet.flags & 2) != 0 };
    if (out->kind != DSC_WORLD_CALL_WORLD)
        return true;
    memcpy(out->token, packet.token, sizeof out->token);
    memcpy(out->master_addr, packet.master_addr, sizeof out->master_addr);
    return true;
}
