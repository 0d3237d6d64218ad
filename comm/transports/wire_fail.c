/* wire_fail.c - the control connection: failures, farewells and peers that are gone. See wire.h.
 *
 * A control message fits into a socket's empty queue and is sent without waiting. A rank that fails first sends its
 * failure to its peers and then ends its data connections, which wakes its own threads. So a peer that sees a
 * connection end knows the reason, or soon receives it.
 * SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "comm/transports/wire_internal.h"

/* The message that explains an ended connection comes on another one. */
#define EXPLANATION_NS INT64_C(1000000000)

const char *dsc_wire_name(const dsc_wire *wire, int32_t rank, char text[DSC_RANK_TEXT_BYTES])
{
    return dsc_rank_text(rank, wire->peer[rank].who.pid, wire->peer[rank].who.host, text);
}

dsc_caller dsc_wire_caller(const dsc_wire *wire, int32_t channel)
{
    const dsc_wire_connection *connection = &wire->connection[channel];
    return (dsc_caller){ .rank = wire->rank,
                          .channel = channel % wire->named_count,
                          .number = connection->number,
                          .call = connection->head.call };
}

static void send_locked(dsc_wire *wire, dsc_control_message message)
{
    for (int32_t r = 0; r < wire->size; r++)
        if (r != wire->rank && wire->fd[r] >= 0 && !atomic_load(&wire->peer[r].gone))
            (void)send(wire->fd[r], &message, sizeof message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* The first failure stays. When it is this rank's own, every data connection ends here, so that nobody waits on. */
static void publish_locked(dsc_wire *wire, dsc_status status, int32_t rank, const char *text, bool send)
{
    if (!dsc_failure_publish(&wire->failure, status, rank, text))
        return;
    if (!send) /* a failure of a peer: calls of this rank that run may still succeed */
        return;
    send_locked(wire, dsc_control_failure(&wire->failure));
    for (int32_t i = wire->size; i < wire->size * wire->connection_count; i++)
        if (wire->fd[i] >= 0)
            shutdown(wire->fd[i], SHUT_RDWR);
}

dsc_status dsc_wire_fail(dsc_wire *wire, dsc_status status, int32_t rank, dsc_error *err, const char *fmt, ...)
{
    char text[DSC_FAILURE_TEXT_BYTES];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    pthread_mutex_lock(&wire->lock);
    publish_locked(wire, status, rank, text, true);
    pthread_mutex_unlock(&wire->lock);
    return dsc_failure_report(&wire->failure, err);
}

void dsc_wire_farewell(dsc_wire *wire)
{
    pthread_mutex_lock(&wire->lock);
    /* A rank that received a failure may close before its sender has sent it to everybody. */
    if (!wire->parted && dsc_failure_exists(&wire->failure))
        send_locked(wire, dsc_control_failure(&wire->failure));
    if (!wire->parted)
        send_locked(wire, dsc_control_farewell());
    wire->parted = true;
    for (int32_t r = 0; r < wire->size; r++)
        if (r != wire->rank && wire->fd[r] >= 0) {
            /* Unread bytes would make the system discard the farewell. */
            char unread[sizeof(dsc_control_message)];
            shutdown(wire->fd[r], SHUT_WR);
            while (recv(wire->fd[r], unread, sizeof unread, MSG_DONTWAIT) > 0)
                continue;
        }
    pthread_mutex_unlock(&wire->lock);
}

static void message_received_locked(dsc_wire *wire, int32_t from)
{
    dsc_wire_peer *peer = &wire->peer[from];
    dsc_control_message *message = &peer->message;
    peer->have = 0;
    atomic_store(&peer->done, true);
    const dsc_control_kind kind = dsc_control_check(message, from, wire->size);
    if (kind == DSC_CONTROL_FAREWELL)
        peer->left = true;
    else if (kind == DSC_CONTROL_FAILURE)
        publish_locked(wire, (dsc_status)message->status, message->rank, message->text, false);
    else
        publish_locked(wire, DSC_ERR_COMM, from, "invalid message on the control connection", true);
}

static void end_came_locked(dsc_wire *wire, int32_t from, int why)
{
    char name[DSC_RANK_TEXT_BYTES], text[DSC_FAILURE_TEXT_BYTES];
    atomic_store(&wire->peer[from].gone, true);
    atomic_store(&wire->peer[from].done, true);
    if (wire->peer[from].left)
        return;
    dsc_text_gone(text, NULL, dsc_wire_name(wire, from, name), why != 0 ? strerror(why) : NULL);
    publish_locked(wire, DSC_ERR_PEER, from, text, true);
}

/* Reads what is there from everybody. */
static void listen_locked(dsc_wire *wire)
{
    for (int32_t r = 0; r < wire->size; r++) {
        dsc_wire_peer *peer = &wire->peer[r];
        while (r != wire->rank && !atomic_load(&peer->gone)) {
            char *at = (char *)&peer->message + peer->have;
            const ssize_t n = recv(wire->fd[r], at, sizeof peer->message - (size_t)peer->have, MSG_DONTWAIT);
            if (n < 0 && (errno == EAGAIN || errno == EINTR))
                break;
            if (n <= 0) {
                end_came_locked(wire, r, n < 0 && errno != ECONNRESET ? errno : 0);
                break;
            }
            peer->have += (int32_t)n;
            if (peer->have == (int32_t)sizeof peer->message)
                message_received_locked(wire, r);
        }
    }
}

dsc_status dsc_wire_health(dsc_wire *wire, dsc_error *err)
{
    pthread_mutex_lock(&wire->lock);
    if (!dsc_failure_exists(&wire->failure))
        listen_locked(wire);
    pthread_mutex_unlock(&wire->lock);
    return dsc_failure_exists(&wire->failure) ? dsc_failure_report(&wire->failure, err) : DSC_OK;
}

/* The rank that closed and is waited for, if there is one. */
static int32_t who_left(dsc_wire *wire, int32_t rank)
{
    int32_t found = -1;
    pthread_mutex_lock(&wire->lock);
    for (int32_t r = 0; r < wire->size && found < 0; r++)
        if (wire->peer[r].left && (rank < 0 || rank == r))
            found = r;
    pthread_mutex_unlock(&wire->lock);
    return found;
}

dsc_status dsc_wire_why(dsc_wire *wire, int32_t channel, int32_t rank, dsc_error *err)
{
    const int64_t until_ns = dsc_clock_ns() + EXPLANATION_NS;
    const dsc_caller caller = dsc_wire_caller(wire, channel);
    char name[DSC_RANK_TEXT_BYTES], here[DSC_CALL_TEXT_BYTES], text[DSC_FAILURE_TEXT_BYTES];
    for (;;) {
        DSC_TRY(dsc_wire_health(wire, err));
        const int32_t left = who_left(wire, rank);
        if (left >= 0) {
            dsc_text_closed(text, &caller, dsc_wire_name(wire, left, name));
            return dsc_wire_fail(wire, DSC_ERR_PEER, left, err, "%s", text);
        }
        if (dsc_clock_ns() > until_ns)
            return dsc_wire_fail(wire, DSC_ERR_PEER, rank, err, "the connection of rank %d with %s broke in %s",
                                 wire->rank, rank >= 0 ? dsc_wire_name(wire, rank, name) : "another rank",
                                 dsc_caller_text(&caller, here));
        dsc_clock_sleep_ns(1000000);
    }
}
