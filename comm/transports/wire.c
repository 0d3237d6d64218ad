/* wire.c - exchanges of messages; failures and the control connection are in wire_fail.c.
 * SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/transports/wire_internal.h"

#define MAGIC UINT32_C(0x57435344) /* "DSCW" */
/* A peer's socket takes or gives this much before it is the next one's turn. */
#define TURN_BYTES (INT64_C(1) << 20)
#define LOOK_AROUND_MS 100
#define OUTLAST_NS INT64_C(200000000)
#define ROLL_CALL 0x7fff /* the exchange of a message that is only a sign of life */
#define ROLL_CALL_NS INT64_C(500000000)

/* ---- open and close ---------------------------------------------------------------------------------------------- */

/* Arrays of a peer or of a message's parts: 2 for the wire and 2 for each channel. */
#define ARRAYS_MAX (2 + 2 * DSC_MESH_CONNECTIONS_MAX)

static int list_arrays(dsc_wire *wire, dsc_need *list)
{
    const int64_t size = wire->size;
    int count = 0;
    list[count++] = (dsc_need) { &wire->fd, DSC_TAG_CONTROL, DSC_TIER_HOST,
                                 size * wire->connection_count * (int64_t)sizeof *wire->fd, DSC_NEED_SMALL };
    list[count++] = (dsc_need) { &wire->peer, DSC_TAG_CONTROL, DSC_TIER_HOST, size * (int64_t)sizeof *wire->peer,
                                 DSC_NEED_SMALL };
    for (int32_t c = 0; c < wire->channel_count; c++) {
        dsc_wire_connection *connection = &wire->connection[c];
        list[count++] = (dsc_need) { &connection->part, DSC_TAG_CONTROL, DSC_TIER_HOST,
                                     size * (int64_t)sizeof *connection->part, DSC_NEED_SMALL };
        list[count++] = (dsc_need) { &connection->poll, DSC_TAG_CONTROL, DSC_TIER_HOST,
                                     2 * size * (int64_t)sizeof *connection->poll, DSC_NEED_SMALL };
    }
    DSC_ASSERT(count <= ARRAYS_MAX);
    return count;
}

dsc_status dsc_wire_init(dsc_wire *wire, const dsc_comm_options *options, bool second_connections, dsc_error *err)
{
    memset(wire, 0, sizeof *wire);
    wire->alloc = options->alloc;
    wire->rank = options->rank_info.rank;
    wire->size = options->rank_info.size;
    wire->named_count = options->channel_count;
    wire->channel_count = options->channel_count * (second_connections ? 2 : 1);
    wire->connection_count = 1 + wire->channel_count;
    wire->timeout_ns = dsc_comm_timeout_ns(options);
    DSC_ASSERT(wire->connection_count <= DSC_MESH_CONNECTIONS_MAX);
    pthread_mutex_init(&wire->lock, NULL); /* cannot fail with these arguments */
    dsc_need list[ARRAYS_MAX];
    dsc_needs needs = { .alloc = wire->alloc };
    const dsc_status status = dsc_needs_plan_and_open(&needs, list, list_arrays(wire, list), err);
    for (int64_t i = 0; wire->fd != NULL && i < (int64_t)wire->size * wire->connection_count; i++)
        wire->fd[i] = -1; /* dsc_wire_close after a failure closes no file of others */
    return status;
}

dsc_status dsc_wire_connect(dsc_wire *wire, const dsc_rdv_net_met *met, int64_t timeout_ns, dsc_error *err)
{
    dsc_mesh_spec spec = { .alloc = wire->alloc,
                           .rank = wire->rank,
                           .size = wire->size,
                           .connection_count = wire->connection_count,
                           .epoch = met->epoch,
                           .address = met->address,
                           .listener = met->listener,
                           .timeout_ns = timeout_ns,
                           .lost = met->lost,
                           .lost_user = met->lost_user };
    dsc_mesh_peer *who = NULL;
    memcpy(spec.key, met->key, sizeof spec.key);
    DSC_TRY(dsc_alloc_zeroed(wire->alloc, DSC_TAG_CONTROL, wire->size, sizeof *who, &who, err));
    const dsc_status status = dsc_mesh_open(&spec, wire->fd, who, err);
    for (int32_t r = 0; r < wire->size && status == DSC_OK; r++)
        wire->peer[r].who = who[r];
    dsc_alloc_free(wire->alloc, who);
    return status;
}

void dsc_wire_close(dsc_wire *wire)
{
    if (wire->alloc == NULL)
        return;
    if (wire->peer != NULL)
        dsc_wire_farewell(wire);
    for (int64_t i = 0; i < (int64_t)wire->size * wire->connection_count && wire->fd != NULL; i++)
        if (wire->fd[i] >= 0)
            close(wire->fd[i]);
    const dsc_needs needs = { .alloc = wire->alloc };
    dsc_need list[ARRAYS_MAX];
    dsc_needs_close(&needs, list, list_arrays(wire, list));
    pthread_mutex_destroy(&wire->lock);
    memset(wire, 0, sizeof *wire);
}

/* ---- one exchange ------------------------------------------------------------------------------------------------ */

dsc_status dsc_wire_begin(dsc_wire *wire, int32_t channel, dsc_comm_op op, int32_t detail, int64_t bytes,
                          dsc_error *err)
{
    dsc_wire_connection *connection = &wire->connection[channel];
    connection->head =
        (dsc_wire_header){ .magic = MAGIC, .call = { .op = (int16_t)op, .detail = detail, .bytes = bytes } };
    connection->number++;
    connection->outlast_ns = 0;
    connection->deadline_ns = dsc_clock_ns() + wire->timeout_ns;
    return dsc_failure_exists(&wire->failure) ? dsc_failure_report(&wire->failure, err) : DSC_OK;
}

void dsc_wire_send(dsc_wire *wire, int32_t channel, int32_t to, const void *bytes, int64_t count)
{
    dsc_wire_part *part = &wire->connection[channel].part[to];
    DSC_ASSERT(to != wire->rank && !part->sends);
    part->sends = true;
    part->out = bytes;
    part->out_bytes = count;
    part->out_done = -(int64_t)sizeof(dsc_wire_header);
}

void dsc_wire_recv(dsc_wire *wire, int32_t channel, int32_t from, void *bytes, int64_t count)
{
    dsc_wire_part *part = &wire->connection[channel].part[from];
    DSC_ASSERT(from != wire->rank && !part->receives);
    part->receives = true;
    part->in = bytes;
    part->in_bytes = count;
    part->in_done = -(int64_t)sizeof(dsc_wire_header);
}

static dsc_status disagree(dsc_wire *wire, int32_t channel, int32_t peer, dsc_error *err)
{
    const dsc_wire_header *theirs = &wire->connection[channel].part[peer].head;
    const dsc_caller caller = dsc_wire_caller(wire, channel);
    char text[DSC_FAILURE_TEXT_BYTES];
    if (theirs->magic != MAGIC)
        return dsc_wire_fail(wire, DSC_ERR_COMM, peer, err, "invalid message of rank %d on channel %d", peer,
                             caller.channel);
    dsc_text_disagree(text, &caller, peer, &theirs->call);
    return dsc_wire_fail(wire, DSC_ERR_COMM, peer, err, "%s", text);
}

/* Bytes that moved, 0: none can just now, -1: the connection ended. */
static int64_t push(dsc_wire *wire, dsc_wire_connection *connection, int fd, dsc_wire_part *part)
{
    int64_t moved = 0;
    while (part->sends && moved < TURN_BYTES) {
        struct iovec iov[2];
        struct msghdr message = { .msg_iov = iov };
        const int64_t head = part->out_done < 0 ? -part->out_done : 0, done = dsc_max_i64(part->out_done, 0);
        const char *head_end = (const char *)(&connection->head + 1), *bytes = part->out;
        const void *at[2] = { head_end - head, bytes != NULL ? bytes + done : NULL };
        const int64_t count[2] = { head, dsc_min_i64(part->out_bytes - done, TURN_BYTES) };
        for (int i = 0; i < 2; i++) { /* sendmsg reads only, but its struct has no const */
            if (count[i] == 0)
                continue;
            struct iovec *v = &iov[message.msg_iovlen++];
            memcpy(&v->iov_base, &at[i], sizeof v->iov_base);
            v->iov_len = (size_t)count[i];
        }
        const ssize_t n = sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && errno != EAGAIN && errno != EINTR && errno != ENOBUFS)
            return -1;
        if (n < 0)
            break;
        moved += n;
        part->out_done += n;
        part->sends = part->out_done < part->out_bytes;
    }
    return moved;
}

/* Bytes received, else as push; -2: the sender is in another call. */
static int64_t pull(const dsc_wire_connection *connection, int fd, dsc_wire_part *part)
{
    int64_t moved = 0;
    while (part->receives && moved < TURN_BYTES) {
        const bool in_head = part->in_done < 0;
        char *head_end = (char *)(&part->head + 1), *bytes = part->in;
        char *at = in_head ? head_end + part->in_done : bytes + part->in_done;
        const int64_t want = in_head ? -part->in_done : part->in_bytes - part->in_done;
        const ssize_t n = recv(fd, at, (size_t)want, MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
            return -1;
        if (n < 0)
            break;
        moved += n;
        part->in_done += n;
        if (in_head && part->in_done == 0 && connection->calls_roll && part->head.magic == MAGIC) {
            part->receives = false;
            break;
        }
        if (in_head && part->in_done == 0 && part->head.magic == MAGIC && part->head.call.exchange == ROLL_CALL) {
            part->in_done = -(int64_t)sizeof part->head; /* its last call failed; what follows says more */
            continue;
        }
        if (in_head && part->in_done == 0 &&
            (part->head.magic != MAGIC || !dsc_call_matches(&connection->head.call, &part->head.call)))
            return -2;
        part->receives = part->in_done < part->in_bytes;
    }
    return moved;
}

static dsc_status waited(dsc_wire *wire, int32_t channel, dsc_error *err)
{
    const dsc_wire_connection *connection = &wire->connection[channel];
    const dsc_caller caller = dsc_wire_caller(wire, channel);
    dsc_missing_ranks missing = { .count = 0 };
    char text[DSC_FAILURE_TEXT_BYTES], name[DSC_RANK_TEXT_BYTES];
    if (channel >= wire->named_count)
        return DSC_FAIL(err, DSC_ERR_STUCK, "comm", "nothing moved for %.1f s", (double)wire->timeout_ns * 1e-9);
    for (int32_t r = 0; r < wire->size; r++)
        if (connection->part[r].sends || connection->part[r].receives)
            dsc_missing_add(&missing, r, dsc_wire_name(wire, r, name), NULL);
    dsc_text_stuck(text, &caller, wire->timeout_ns, &missing);
    return dsc_wire_fail(wire, DSC_ERR_STUCK, missing.first, err, "%s", text);
}

/* Until a socket of the exchange can go on, or a word comes on the control connection. */
static dsc_status sleep_some(dsc_wire *wire, int32_t channel, dsc_error *err)
{
    dsc_wire_connection *connection = &wire->connection[channel];
    const int *data = wire->fd + (1 + channel) * wire->size;
    nfds_t n = 0;
    for (int32_t r = 0; r < wire->size; r++) {
        const dsc_wire_part *part = &connection->part[r];
        if (part->sends || part->receives)
            connection->poll[n++] =
                (struct pollfd){ .fd = data[r],
                                  .events = (short)((part->sends ? POLLOUT : 0) | (part->receives ? POLLIN : 0)) };
    }
    const nfds_t data_count = n;
    /* A connection that ended stays readable: it is not asked again. */
    for (int32_t r = 0; r < wire->size; r++)
        if (r != wire->rank && !atomic_load(&wire->peer[r].gone))
            connection->poll[n++] = (struct pollfd){ .fd = wire->fd[r], .events = POLLIN };
    const int ready = poll(connection->poll, n, LOOK_AROUND_MS);
    bool words = false;
    for (nfds_t i = data_count; i < n && ready > 0; i++)
        words = words || connection->poll[i].revents != 0;
    if (words)
        DSC_TRY(dsc_wire_health(wire, err));
    if (dsc_failure_exists(&wire->failure))
        return dsc_failure_report(&wire->failure, err);
    return dsc_clock_ns() > connection->deadline_ns ? waited(wire, channel, err) : DSC_OK;
}

/* Every socket once. *moved: bytes; *open: something is still to come or to go. */
static dsc_status pass(dsc_wire *wire, int32_t channel, int64_t *moved, bool *open, dsc_error *err)
{
    dsc_wire_connection *connection = &wire->connection[channel];
    const int *fd = wire->fd + (1 + channel) * wire->size;
    *moved = 0;
    *open = false;
    for (int32_t i = 1; i < wire->size; i++) {
        const int32_t r = (wire->rank + i) % wire->size; /* not all begin with the same rank */
        dsc_wire_part *part = &connection->part[r];
        if (!part->sends && !part->receives)
            continue;
        const int64_t sent = push(wire, connection, fd[r], part);
        const int64_t received = pull(connection, fd[r], part); /* bytes before an end count */
        if (received == -2)
            return disagree(wire, channel, r, err);
        if (received < 0 || (sent < 0 && received == 0))
            return dsc_wire_why(wire, channel, r, err);
        *moved += dsc_max_i64(sent, 0) + received;
        *open = *open || part->sends || part->receives;
    }
    return DSC_OK;
}

/* A failure that a peer told came while this rank slept. Peers that were done with this call may have told it, so the
 * call may still end well here: when what is missing comes from ranks that work, soon. The next call fails. */
static bool outlasts(dsc_wire *wire, int32_t channel)
{
    dsc_wire_connection *connection = &wire->connection[channel];
    const int64_t now_ns = dsc_clock_ns();
    if (connection->outlast_ns == 0) { /* data that came with the message is not read yet */
        connection->outlast_ns = now_ns + OUTLAST_NS;
        return true;
    }
    for (int32_t r = 0; r < wire->size; r++)
        if ((connection->part[r].sends || connection->part[r].receives) && atomic_load(&wire->peer[r].done))
            return false;
    dsc_clock_sleep_ns(500000);
    return now_ns < connection->outlast_ns;
}

static dsc_status rest(dsc_wire *wire, int32_t channel, dsc_error *err)
{
    dsc_error why = DSC_ERROR_INIT;
    const dsc_status status = sleep_some(wire, channel, &why);
    if (status == DSC_OK || (dsc_failure_exists(&wire->failure) && outlasts(wire, channel)))
        return DSC_OK;
    if (err != NULL)
        *err = why;
    return status;
}

dsc_status dsc_wire_exchange(dsc_wire *wire, int32_t channel, int32_t step, dsc_error *err)
{
    dsc_wire_connection *connection = &wire->connection[channel];
    const int64_t patience_ns = connection->calls_roll ? ROLL_CALL_NS : wire->timeout_ns;
    dsc_status status = DSC_OK;
    bool open = true;
    int64_t moved = 0;
    connection->head.call.exchange = (int16_t)step;
    connection->deadline_ns = dsc_clock_ns() + patience_ns;
    while (status == DSC_OK) {
        status = pass(wire, channel, &moved, &open, err);
        if (status != DSC_OK || !open)
            break;
        if (moved == 0)
            status = rest(wire, channel, err);
        else
            connection->deadline_ns = dsc_clock_ns() + patience_ns;
        if (moved > 0 && wire->moved != NULL)
            wire->moved(wire->moved_user, channel);
    }
    dsc_wire_clear(wire, channel);
    return status;
}

dsc_status dsc_wire_poll_once(dsc_wire *wire, int32_t channel, dsc_error *err)
{
    int64_t moved = 0;
    bool open = true;
    DSC_TRY(pass(wire, channel, &moved, &open, err));
    if (moved == 0 && open)
        return rest(wire, channel, err);
    wire->connection[channel].deadline_ns = dsc_clock_ns() + wire->timeout_ns;
    return DSC_OK;
}

bool dsc_wire_sending(const dsc_wire *wire, int32_t channel, int32_t to)
{
    return wire->connection[channel].part[to].sends;
}

bool dsc_wire_receiving(const dsc_wire *wire, int32_t channel, int32_t from)
{
    return wire->connection[channel].part[from].receives;
}

void dsc_wire_clear(dsc_wire *wire, int32_t channel)
{
    for (int32_t r = 0; r < wire->size; r++)
        wire->connection[channel].part[r].sends = wire->connection[channel].part[r].receives = false;
}

dsc_status dsc_wire_roll_call(dsc_wire *wire, int32_t channel, const char *reason, dsc_error *err)
{
    dsc_wire_connection *connection = &wire->connection[channel];
    if (dsc_failure_exists(&wire->failure))
        return dsc_failure_report(&wire->failure, err);
    connection->calls_roll = true;
    for (int32_t r = 0; r < wire->size; r++)
        if (r != wire->rank) {
            dsc_wire_send(wire, channel, r, NULL, 0);
            dsc_wire_recv(wire, channel, r, NULL, 0);
        }
    const dsc_status status = dsc_wire_exchange(wire, channel, ROLL_CALL, err);
    connection->calls_roll = false;
    if (status != DSC_OK)
        return status;
    const dsc_caller caller = dsc_wire_caller(wire, channel);
    char here[DSC_CALL_TEXT_BYTES];
    return dsc_wire_fail(wire, DSC_ERR_COMM, wire->rank, err, "rank %d in %s: %s", wire->rank,
                         dsc_caller_text(&caller, here), reason);
}
