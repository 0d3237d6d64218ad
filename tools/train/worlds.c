/* worlds.c - see worlds.h. SPDX-License-Identifier: Apache-2.0 */
#include "worlds.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "base/io.h"

dsc_status train_worlds_open(train_worlds *worlds, dsc_error *err)
{
    const char *text = getenv(DSC_WORLD_CHANNEL);
    *worlds = (train_worlds) { .fd = -1 };
    if (text == NULL || text[0] == 0)
        return DSC_OK;
    char *end = NULL;
    const long fd = strtol(text, &end, 10);
    int kind = 0;
    socklen_t bytes = sizeof kind;
    if (*end != 0 || fd < 3 || fd > INT32_MAX || getsockopt((int)fd, SOL_SOCKET, SO_TYPE, &kind, &bytes) != 0 ||
        kind != SOCK_SEQPACKET)
        return DSC_FAIL(err, DSC_ERR_INPUT, DSC_WORLD_CHANNEL, "\"%.40s\" is not a channel of dsc-launch; unset it",
                        text);
    worlds->fd = (int)fd;
    const char *sizes = getenv(DSC_WORLD_SIZES);
    if (sizes == NULL || sscanf(sizes, "%d:%d", &worlds->least, &worlds->most) != 2 || worlds->least < 1 ||
        worlds->most < worlds->least || worlds->most > DSC_WORLD_RANKS_MAX)
        return DSC_FAIL(err, DSC_ERR_INPUT, DSC_WORLD_SIZES, "\"%.40s\"; expected the fewest and the most ranks, 2:6",
                        sizes != NULL ? sizes : "");
    return DSC_OK;
}

void train_worlds_close(train_worlds *worlds) { dsc_carried_close(&worlds->carried); }

/* A launcher that is gone ends its ranks by itself. */
static void report(const train_worlds *worlds, dsc_world_state state, int64_t step, bool saved)
{
    uint8_t packet[DSC_WORLD_PACKET_MAX];
    const dsc_world_report out = { .state = state,
                                   .generation = worlds->now.generation,
                                   .step = step,
                                   .has_states = worlds->carried != NULL,
                                   .saved = saved };
    const size_t bytes = dsc_world_report_put(&out, packet);
    while (worlds->fd >= 0 && send(worlds->fd, packet, bytes, MSG_NOSIGNAL) < 0 && errno == EINTR)
        ;
}

/* ---- slow disks -------------------------------------------------------------------------------------------------- */

static dsc_status wait_before(void *user, dsc_io_op op, const char *path, int64_t offset, int64_t bytes,
                              int *errno_value)
{
    const long ms = strtol(user, NULL, 10);
    nanosleep(&(struct timespec) { ms / 1000, ms % 1000 * 1000000 }, NULL);
    return DSC_OK;
}

const struct dsc_io *train_worlds_slow_disk(void)
{
    static dsc_io slow;
    char *const ms = getenv(DSC_WORLD_CHAOS_DISK);
    slow.hook = (dsc_io_hook) { wait_before, ms };
    return ms != NULL ? &slow : NULL;
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

/* One call; false: none came (flags MSG_DONTWAIT), or none will. */
static bool read_call(const train_worlds *worlds, int flags, dsc_world_call *out)
{
    uint8_t packet[DSC_WORLD_PACKET_MAX];
    for (;;) {
        const ssize_t n = recv(worlds->fd, packet, sizeof packet, flags);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        if (dsc_world_call_get(packet, (size_t)n, out))
            return true;
    }
}

/* Those that are not WORLD. A CHANGE of an earlier world came too late to matter. */
static void take(train_worlds *worlds, const dsc_world_call *call)
{
    worlds->end_called = worlds->end_called || call->kind == DSC_WORLD_CALL_END;
    if (call->kind == DSC_WORLD_CALL_CHANGE && call->generation == worlds->now.generation)
        worlds->called = true;
}

void train_worlds_look(train_worlds *worlds)
{
    dsc_world_call call;
    while (worlds->fd >= 0 && read_call(worlds, MSG_DONTWAIT, &call))
        take(worlds, &call);
}

static void put_number(const char *name, int32_t value)
{
    char text[16];
    snprintf(text, sizeof text, "%d", (int)value);
    setenv(name, text, 1);
}

/* As the launcher's agents set it for ranks that are fixed. */
static void put_place(const dsc_world_call *call)
{
    put_number("RANK", call->rank);
    put_number("WORLD_SIZE", call->size);
    put_number("LOCAL_RANK", call->local_rank);
    put_number("LOCAL_SIZE", call->local_size);
    put_number("LOCAL_WORLD_SIZE", call->local_size);
    put_number("CROSS_RANK", call->host);
    put_number("CROSS_SIZE", call->host_count);
    put_number("MASTER_PORT", call->master_port);
    setenv("MASTER_ADDR", call->master_addr, 1);
    setenv("DSC_JOB_TOKEN", call->token, 1);
}

dsc_status train_worlds_next(train_worlds *worlds, dsc_error *err)
{
    dsc_world_call call = { .kind = DSC_WORLD_CALL_END };
    report(worlds, DSC_WORLD_READY, worlds->step, false);
    while (!worlds->end_called) {
        if (!read_call(worlds, 0, &call))
            return DSC_FAIL(err, DSC_ERR_PEER, "dsc-launch", "the launcher is gone, and no world comes");
        if (call.kind == DSC_WORLD_CALL_WORLD && call.generation > worlds->now.generation)
            break;
        take(worlds, &call);
    }
    if (worlds->end_called)
        return DSC_OK;
    worlds->now = call;
    worlds->called = worlds->ran = false;
    put_place(&call);
    return DSC_OK;
}

/* ---- reports ----------------------------------------------------------------------------------------------------- */

void train_worlds_stepped(train_worlds *worlds, int64_t step)
{
    worlds->step = step;
    if (!worlds->ran)
        report(worlds, DSC_WORLD_RUNS, step, false);
    worlds->ran = true;
}

void train_worlds_left(const train_worlds *worlds) { report(worlds, DSC_WORLD_LEAVES, worlds->step, false); }

void train_worlds_done(const train_worlds *worlds, bool saved) { report(worlds, DSC_WORLD_DONE, worlds->step, saved); }

/* ---- the end of a world ------------------------------------------------------------------------------------------ */

dsc_status train_worlds_part(train_worlds *worlds, dsc_engine **engine, bool leaves, bool *end, dsc_error *err)
{
    const int32_t size = dsc_engine_size(*engine), rank = dsc_engine_rank(*engine);
    float asked[2 * DSC_WORLD_RANKS_MAX] = { 0 };
    bool stays[DSC_WORLD_RANKS_MAX];
    int32_t staying = 0;
    train_worlds_look(worlds); /* the launcher says END before it signals a rank */
    asked[rank] = leaves;
    asked[size + rank] = worlds->end_called;
    DSC_TRY(dsc_engine_all_reduce(*engine, asked, 2 * (int64_t)size, false, err));
    *end = false;
    for (int32_t r = 0; r < size; r++) {
        *end = *end || asked[size + r] != 0;
        stays[r] = asked[r] == 0;
        staying += stays[r];
    }
    *end = *end || staying == 0;
    return *end ? DSC_OK : dsc_engine_carry(engine, stays, &worlds->carried, err);
}

bool train_worlds_is_loss(const train_worlds *worlds, dsc_status status)
{
    return worlds->fd >= 0 && (status == DSC_ERR_PEER || status == DSC_ERR_STUCK || status == DSC_ERR_COMM);
}

/* Slices that are nowhere are found missing by all ranks of a world alike, and then all begin with a checkpoint. */
void train_worlds_lose(train_worlds *worlds, dsc_engine **engine, const dsc_error *failure)
{
    dsc_error err = DSC_ERROR_INIT;
    if (*engine != NULL && dsc_engine_carry(engine, NULL, &worlds->carried, &err) != DSC_OK)
        dsc_engine_close(engine); /* there are no copies */
    else if (*engine == NULL && strcmp(failure->where, "carried") == 0)
        dsc_carried_close(&worlds->carried);
}
