/* rendezvous_fuzz.c - hostile bytes on the rendezvous: a server and real clients, whose packets the input patches, and
 * strangers who send what they like. No crash; nobody opens without the key; whoever opens agrees with rank 0.
 *
 * The input is a list of commands of 4 bytes (what, which client, offset, value), a raw packet follows its command.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "comm/rendezvous/rendezvous.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

#define CLIENTS 3 /* ranks 1 and 2, and an impostor with another key who says it is rank 2 */
#define STRANGER_CONN 10

typedef struct world {
    dsc_rdv_server server;
    dsc_rdv_client client[CLIENTS];
    int32_t done[CLIENTS + 1], failed[CLIENTS + 1]; /* 0: the server */
    bool open[CLIENTS], stranger_open;
    int32_t files[CLIENTS];
    uint8_t patch_offset, patch_value;
    bool patch;
    int64_t now_ns;
    int32_t depth;
} world;

static void client_event(world *w, int32_t c, dsc_rdv_event *event);

/* An exactly sized copy, so that a sanitizer sees a byte read too far; the patch hits one packet. */
static uint8_t *patched(world *w, const uint8_t *bytes, int32_t count)
{
    uint8_t *copy = malloc((size_t)count + (count == 0));
    memcpy(copy, bytes, (size_t)count);
    if (w->patch && count > 0)
        copy[w->patch_offset % count] ^= w->patch_value;
    w->patch = false;
    return copy;
}

static void server_event(world *w, dsc_rdv_event *event)
{
    dsc_rdv_actions out;
    event->now_ns = w->now_ns;
    dsc_rdv_server_step(&w->server, event, &out);
    DSC_ASSERT(out.count <= DSC_RDV_ACTIONS_MAX);
    for (int32_t i = 0; i < out.count; i++) {
        const dsc_rdv_action *a = &out.item[i];
        if (a->kind == DSC_RDV_DONE || a->kind == DSC_RDV_FAIL)
            *(a->kind == DSC_RDV_DONE ? &w->done[0] : &w->failed[0]) += 1;
        if (a->kind == DSC_RDV_FAIL)
            DSC_ASSERT(a->status != DSC_OK && memchr(a->text, 0, sizeof a->text) != NULL);
        if (a->kind == DSC_RDV_DROP && a->conn < CLIENTS)
            w->open[a->conn] = false;
        if (a->kind == DSC_RDV_DROP && a->conn == STRANGER_CONN)
            w->stranger_open = false;
        if (a->kind == DSC_RDV_MAP) {
            dsc_rdv_event mapped = { .kind = DSC_RDV_MAPPED };
            server_event(w, &mapped);
        }
        for (int32_t c = 0; c < CLIENTS && (a->kind == DSC_RDV_SEND || a->kind == DSC_RDV_SEND_ALL); c++) {
            const bool all = a->kind == DSC_RDV_SEND_ALL && (a->to_strangers || dsc_rdv_server_joined(&w->server, c));
            if (!w->open[c] || !(all || (a->kind == DSC_RDV_SEND && a->conn == c)) || w->depth > 20)
                continue;
            uint8_t *copy = patched(w, a->bytes, a->count);
            dsc_rdv_event message = { .kind = DSC_RDV_MESSAGE, .bytes = copy, .count = a->count,
                                      .file_count = a->with_file ? w->server.self.size + 1 : 0 };
            client_event(w, c, &message);
            free(copy);
        }
    }
}

static void client_event(world *w, int32_t c, dsc_rdv_event *event)
{
    dsc_rdv_actions out;
    event->now_ns = w->now_ns;
    w->depth++;
    dsc_rdv_client_step(&w->client[c], event, &out);
    for (int32_t i = 0; i < out.count; i++) {
        const dsc_rdv_action *a = &out.item[i];
        if (a->kind == DSC_RDV_DONE || a->kind == DSC_RDV_FAIL)
            *(a->kind == DSC_RDV_DONE ? &w->done[1 + c] : &w->failed[1 + c]) += 1;
        if (a->kind == DSC_RDV_KEEP_FILES)
            w->files[c] = event->file_count;
        if (a->kind == DSC_RDV_MAP) {
            dsc_rdv_event mapped = { .kind = DSC_RDV_MAPPED };
            client_event(w, c, &mapped);
        }
        if (a->kind == DSC_RDV_DROP && w->open[c]) {
            w->open[c] = false;
            dsc_rdv_event closed = { .kind = DSC_RDV_CLOSED, .conn = c };
            server_event(w, &closed);
        }
        if (a->kind == DSC_RDV_SEND && w->open[c] && w->depth <= 20) {
            uint8_t *copy = patched(w, a->bytes, a->count);
            dsc_rdv_event message = {
                .kind = DSC_RDV_MESSAGE, .conn = c, .bytes = copy, .count = a->count, .file_count = a->with_file
            };
            server_event(w, &message);
            free(copy);
        }
        if (a->kind == DSC_RDV_CONNECT) {
            dsc_rdv_event event_of_client = { .kind = DSC_RDV_NO_CONNECT };
            if (dsc_rdv_server_listens(&w->server) && !w->open[c]) {
                dsc_rdv_event opened = { .kind = DSC_RDV_OPENED, .conn = c, .pid = 100 + c, .random = { 3 } };
                w->open[c] = true;
                server_event(w, &opened);
                event_of_client = (dsc_rdv_event){ .kind = DSC_RDV_OPENED, .random = { 4 } };
            }
            client_event(w, c, &event_of_client);
        }
    }
    w->depth--;
}

static void stranger(world *w, const uint8_t *bytes, size_t count, int32_t file_count)
{
    dsc_rdv_event opened = { .kind = DSC_RDV_OPENED, .conn = STRANGER_CONN, .pid = 666, .random = { 5 } };
    if (!w->stranger_open) {
        w->stranger_open = true;
        server_event(w, &opened);
    }
    if (!w->stranger_open)
        return; /* turned away at the door */
    uint8_t *copy = malloc(count + (count == 0));
    memcpy(copy, bytes, count);
    dsc_rdv_event message = {
        .kind = DSC_RDV_MESSAGE, .conn = STRANGER_CONN, .bytes = copy, .count = (int64_t)count, .file_count = file_count
    };
    server_event(w, &message);
    free(copy);
    DSC_ASSERT(!dsc_rdv_server_joined(&w->server, STRANGER_CONN)); /* it does not know the key */
}

static void command(world *w, const uint8_t *c, const uint8_t *raw, size_t raw_count)
{
    const int32_t client = c[1] % CLIENTS;
    dsc_rdv_event event = { .kind = DSC_RDV_TICK };
    switch (c[0] % 6) {
    case 0: /* time passes for everybody */
        w->now_ns += (int64_t)c[2] * 100000000;
        if (w->done[0] + w->failed[0] == 0)
            server_event(w, &event);
        for (int32_t i = 0; i < CLIENTS; i++)
            client_event(w, i, &event);
        break;
    case 1: client_event(w, client, &event); break;
    case 2: /* the next packet is damaged */
        w->patch = true;
        w->patch_offset = c[2];
        w->patch_value = c[3];
        break;
    case 3: stranger(w, raw, raw_count, c[1] % 3); break;
    case 4: { /* a message out of turn, as from rank 0 */
        uint8_t *copy = malloc(raw_count + (raw_count == 0));
        memcpy(copy, raw, raw_count);
        dsc_rdv_event message = {
            .kind = DSC_RDV_MESSAGE, .bytes = copy, .count = (int64_t)raw_count, .file_count = c[3] % 5
        };
        if (w->open[client])
            client_event(w, client, &message);
        free(copy);
        break;
    }
    case 5: /* the line is cut */
        if (w->open[client]) {
            w->open[client] = false;
            dsc_rdv_event closed = { .kind = DSC_RDV_CLOSED, .conn = client };
            server_event(w, &closed);
            client_event(w, client, &closed);
        }
        break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    world *w = calloc(1, sizeof *w);
    dsc_rdv_self self = { .rank = 0,
                          .size = 3,
                          .pid = 1,
                          .build = "dsc fuzz",
                          .agree = { 1 },
                          .agree_name = { "ones" },
                          .timeout_ns = 5000000000,
                          .key = { 1, 2, 3 } };
    dsc_rdv_server_init(&w->server, &self, 77, 0);
    for (int32_t c = 0; c < CLIENTS; c++) {
        self.rank = c < 2 ? c + 1 : 2;
        self.key[0] = c < 2 ? 1 : 9;
        dsc_rdv_client_init(&w->client[c], &self, 0);
    }
    while (bytes >= 4) {
        const uint8_t *c = data;
        data += 4;
        bytes -= 4;
        const size_t raw = (c[0] % 6 == 3 || c[0] % 6 == 4)
                               ? (size_t)dsc_min_i64((int64_t)bytes, dsc_min_i64(c[2] * 2, DSC_RDV_MESSAGE_MAX))
                               : 0;
        command(w, c, data, raw);
        data += raw;
        bytes -= raw;
    }
    DSC_ASSERT(w->done[0] + w->failed[0] <= 1);
    DSC_ASSERT(w->done[CLIENTS] == 0); /* the impostor */
    for (int32_t c = 0; c < CLIENTS; c++) {
        DSC_ASSERT(w->done[1 + c] + w->failed[1 + c] <= 1);
        DSC_ASSERT(w->done[1 + c] == 0 || (w->done[0] == 1 && w->client[c].epoch == 77 && w->files[c] == 4));
    }
    free(w);
    return 0;
}
