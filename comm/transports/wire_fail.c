/* wire_fail.c - the control lane: failures, farewells and peers that are gone. See wire.h.
 *
 * A word fits a socket's empty queue and is sent without waiting. When a rank fails it tells its peers first and then
 * ends its data connections, which wakes its own threads; so a peer that sees a connection end knows, or soon learns,
 * why. SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "comm/transports/wire_internal.h"

#define MAGIC UINT32_C(0x43435344) /* "DSCC" */
enum { FAILED = 1, FAREWELL };
_Static_assert(sizeof(dsc_wire_msg) == 16 + DSC_WIRE_TEXT, "no padding");
/* The word that explains an ended connection travels on another one. */
#define EXPLANATION_NS INT64_C(1000000000)

const char *dsc_wire_name(const dsc_wire *wire, int32_t rank, char text[DSC_RANK_TEXT_BYTES])
{
    return dsc_rank_text(rank, wire->peer[rank].who.pid, wire->peer[rank].who.host, text);
}

dsc_status dsc_wire_standing(dsc_wire *wire, dsc_error *err)
{
    pthread_mutex_lock(&wire->lock);
    const dsc_status status = DSC_FAIL(err, wire->status, "comm", "%s", wire->text);
    if (err != NULL)
        err->rank = wire->failed_rank;
    pthread_mutex_unlock(&wire->lock);
    return status;
}

static void tell_locked(dsc_wire *wire, const dsc_wire_msg *word)
{
    for (int32_t r = 0; r < wire->size; r++)
        if (r != wire->rank && wire->fd[r] >= 0 && !atomic_load(&wire->peer[r].gone))
            (void)send(wire->fd[r], word, sizeof *word, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static void tell_failure_locked(dsc_wire *wire)
{
    dsc_wire_msg word = { .magic = MAGIC, .kind = FAILED, .status = (int16_t)wire->status, .rank = wire->failed_rank };
    memcpy(word.text, wire->text, sizeof word.text);
    tell_locked(wire, &word);
}

/* The first failure stays. When it is this rank's own, every data connection ends here, so that nobody waits on. */
static void publish_locked(dsc_wire *wire, dsc_status status, int32_t rank, const char *text, bool tell)
{
    if (atomic_load(&wire->failed))
        return;
    wire->status = status;
    wire->failed_rank = rank;
    snprintf(wire->text, sizeof wire->text, "%s", text);
    dsc_text_printable(wire->text);
    atomic_store(&wire->failed, true);
    if (!tell) /* a peer knew it first: own calls see it within a moment, and may still end well */
        return;
    tell_failure_locked(wire);
    for (int32_t i = wire->size; i < wire->size * wire->lane_count; i++)
        if (wire->fd[i] >= 0)
            shutdown(wire->fd[i], SHUT_RDWR);
}

dsc_status dsc_wire_fail(dsc_wire *wire, dsc_status status, int32_t rank, dsc_error *err, const char *fmt, ...)
{
    char text[DSC_WIRE_TEXT];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    pthread_mutex_lock(&wire->lock);
    publish_locked(wire, status, rank, text, true);
    pthread_mutex_unlock(&wire->lock);
    return dsc_wire_standing(wire, err);
}

void dsc_wire_farewell(dsc_wire *wire)
{
    const dsc_wire_msg word = { .magic = MAGIC, .kind = FAREWELL };
    pthread_mutex_lock(&wire->lock);
    /* Who learned of a failure may close before the one who told it has told everybody. */
    if (!wire->parted && atomic_load(&wire->failed))
        tell_failure_locked(wire);
    if (!wire->parted)
        tell_locked(wire, &word);
    wire->parted = true;
    for (int32_t r = 0; r < wire->size; r++)
        if (r != wire->rank && wire->fd[r] >= 0) {
            /* What came and was not read would make the system throw away the farewell. */
            char unread[sizeof word];
            shutdown(wire->fd[r], SHUT_WR);
            while (recv(wire->fd[r], unread, sizeof unread, MSG_DONTWAIT) > 0)
                continue;
        }
    pthread_mutex_unlock(&wire->lock);
}

static void word_came_locked(dsc_wire *wire, int32_t from)
{
    dsc_wire_peer *peer = &wire->peer[from];
    dsc_wire_msg *word = &peer->word;
    peer->have = 0;
    word->text[sizeof word->text - 1] = 0;
    atomic_store(&peer->done, true);
    const bool known = word->status > DSC_OK && word->status <= DSC_ERR_DEVICE;
    if (word->magic == MAGIC && word->kind == FAREWELL)
        peer->left = true;
    else if (word->magic == MAGIC && word->kind == FAILED && known)
        publish_locked(wire, (dsc_status)word->status,
                       word->rank >= 0 && word->rank < wire->size ? word->rank : from, word->text, false);
    else
        publish_locked(wire, DSC_ERR_COMM, from, "a word came on the control lane that is none", true);
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
            char *at = (char *)&peer->word + peer->have;
            const ssize_t n = recv(wire->fd[r], at, sizeof peer->word - (size_t)peer->have, MSG_DONTWAIT);
            if (n < 0 && (errno == EAGAIN || errno == EINTR))
                break;
            if (n <= 0) {
                end_came_locked(wire, r, n < 0 && errno != ECONNRESET ? errno : 0);
                break;
            }
            peer->have += (int32_t)n;
            if (peer->have == (int32_t)sizeof peer->word)
                word_came_locked(wire, r);
        }
    }
}

dsc_status dsc_wire_health(dsc_wire *wire, dsc_error *err)
{
    pthread_mutex_lock(&wire->lock);
    if (!atomic_load(&wire->failed))
        listen_locked(wire);
    pthread_mutex_unlock(&wire->lock);
    return atomic_load(&wire->failed) ? dsc_wire_standing(wire, err) : DSC_OK;
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
