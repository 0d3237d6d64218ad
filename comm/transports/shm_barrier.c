/* shm_barrier.c - meets, entries and failures between the ranks of one host. See shm_barrier.h.
 * SPDX-License-Identifier: Apache-2.0 */
#include "comm/transports/shm_barrier.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/cores.h"

#define LINE 64
#define SLICE_NS INT64_C(100000000)
/* Two handoffs between cores of one socket take 1 to 20 us; longer than that, sleeping is cheaper than burning. */
#define SPIN_MAX_NS INT64_C(30000)
#define SPIN_MIN_NS INT64_C(500)

/* One rank in one channel. Written by that rank, except `mail`, which sender and receiver advance in turn. */
typedef struct rank_words {
    _Alignas(LINE) _Atomic uint32_t arrived; /* meets come to */
    _Atomic int32_t now_op;                  /* dsc_comm_op + 1, 0: in none */
    _Atomic int32_t awaiting;                /* rank + 1 whose mail this rank waits for, 0: none */
    _Atomic int32_t cpu;                     /* processor of its last visit */
    _Atomic uint32_t moved;                  /* signs of life from where it waits for others than these */
    _Alignas(LINE) _Atomic uint32_t mail;    /* even: empty; odd: mail_entry waits */
    _Atomic uint32_t mail_sleepers;
    _Alignas(LINE) dsc_shm_barrier_entry entry[2];
    dsc_shm_barrier_entry mail_entry;
    _Atomic int32_t mail_to;
} rank_words;

typedef struct channel_words {
    _Alignas(LINE) _Atomic uint32_t generation;
    _Atomic uint32_t sleepers;
    _Alignas(LINE) _Atomic uint64_t arrivals; /* arrivals of all ranks since the barrier was made */
} channel_words;

typedef struct person {
    _Alignas(LINE) _Atomic int32_t pid;
    _Atomic uint64_t start_time;
    _Atomic uint32_t left;
} person;

struct dsc_shm_barrier_header {
    _Alignas(LINE) int32_t size;
    int32_t channel_count;
    _Alignas(LINE) dsc_first_failure failure;
    _Alignas(LINE) channel_words channel[DSC_COMM_CHANNELS_MAX];
    person person[DSC_SHM_BARRIER_RANKS_MAX];
    rank_words slots[]; /* [channel][rank] */
};

static rank_words *slot_of(const dsc_shm_barrier *barrier, int32_t channel, int32_t rank)
{
    DSC_ASSERT(rank >= 0 && rank < barrier->size);
    DSC_ASSERT(channel >= 0 && channel < barrier->channel_count);
    return &barrier->header->slots[channel * barrier->size + rank];
}

int64_t dsc_shm_barrier_bytes(int32_t size, int32_t channel_count)
{
    return (int64_t)sizeof(dsc_shm_barrier_header) + (int64_t)sizeof(rank_words) * size * channel_count;
}

void dsc_shm_barrier_init(void *memory, int32_t size, int32_t channel_count)
{
    DSC_ASSERT(size >= 1 && size <= DSC_SHM_BARRIER_RANKS_MAX);
    DSC_ASSERT(channel_count >= 1 && channel_count <= DSC_COMM_CHANNELS_MAX);
    DSC_ASSERT((uintptr_t)memory % LINE == 0);
    memset(memory, 0, (size_t)dsc_shm_barrier_bytes(size, channel_count));
    dsc_shm_barrier_header *header = memory;
    header->size = size;
    header->channel_count = channel_count;
}

/* Ranks that outnumber the processors hand over by sleeping: a spin would keep the awaited rank from running. */
static int64_t spin_limit(int32_t size)
{
    return dsc_cores_usable() >= size ? SPIN_MAX_NS : SPIN_MIN_NS; /* unknown: 0 */
}

void dsc_shm_barrier_attach(dsc_shm_barrier *barrier, void *memory, int32_t rank, bool shared, int64_t timeout_ns)
{
    dsc_shm_barrier_header *header = memory;
    DSC_ASSERT(rank >= 0 && rank < header->size);
    DSC_ASSERT(timeout_ns > 0);
    memset(barrier, 0, sizeof *barrier);
    barrier->header = header;
    barrier->rank = rank;
    barrier->size = header->size;
    barrier->channel_count = header->channel_count;
    barrier->shared = shared;
    barrier->timeout_ns = timeout_ns;
    barrier->spin_max_ns = spin_limit(header->size);
    for (int32_t c = 0; c < barrier->channel_count; c++)
        barrier->channel[c].spin_ns = barrier->spin_max_ns;
}

void dsc_shm_barrier_register(dsc_shm_barrier *barrier, int32_t pid, uint64_t start_time)
{
    person *me = &barrier->header->person[barrier->rank];
    atomic_store(&me->start_time, start_time);
    atomic_store(&me->pid, pid);
}

int32_t dsc_shm_barrier_pid(const dsc_shm_barrier *barrier, int32_t rank, uint64_t *start_time)
{
    const person *them = &barrier->header->person[rank];
    if (start_time != NULL)
        *start_time = atomic_load(&them->start_time);
    return atomic_load(&them->pid);
}

/* ---- futex ------------------------------------------------------------------------------------------------------- */

static void futex_wait(const dsc_shm_barrier *barrier, _Atomic uint32_t *word, uint32_t old, int64_t ns)
{
    const struct timespec time = { .tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000 };
    const int op = barrier->shared ? FUTEX_WAIT : FUTEX_WAIT_PRIVATE;
    /* Whatever the reason to return, the caller looks for itself. */
    syscall(SYS_futex, (uintptr_t)word, op, old, &time, NULL, 0);
}

static void futex_wake(const dsc_shm_barrier *barrier, _Atomic uint32_t *word)
{
    syscall(SYS_futex, (uintptr_t)word, barrier->shared ? FUTEX_WAKE : FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static void wake_everybody(dsc_shm_barrier *barrier)
{
    for (int32_t c = 0; c < barrier->channel_count; c++) {
        futex_wake(barrier, &barrier->header->channel[c].generation);
        for (int32_t r = 0; r < barrier->size; r++)
            futex_wake(barrier, &slot_of(barrier, c, r)->mail);
    }
}

void dsc_shm_barrier_leave(dsc_shm_barrier *barrier)
{
    atomic_store(&barrier->header->person[barrier->rank].left, 1);
    wake_everybody(barrier);
}

/* ---- failures ---------------------------------------------------------------------------------------------------- */

dsc_status dsc_shm_barrier_fail_as(dsc_shm_barrier *barrier, const dsc_error *why, dsc_error *err)
{
    /* An error of one rank's own machine, as DSC_ERR_NOMEM, is that of a peer for all others. */
    const bool shared = why->status == DSC_ERR_COMM || why->status == DSC_ERR_STUCK;
    dsc_failure_publish(&barrier->header->failure, shared ? why->status : DSC_ERR_PEER, why->rank, why->message);
    wake_everybody(barrier);
    return dsc_failure_report(&barrier->header->failure, err);
}

dsc_status dsc_shm_barrier_fail(dsc_shm_barrier *barrier, dsc_status status, int32_t rank, dsc_error *err,
                                const char *fmt, ...)
{
    dsc_error why = DSC_ERROR_INIT;
    va_list args;
    va_start(args, fmt);
    vsnprintf(why.message, sizeof why.message, fmt, args);
    va_end(args);
    why.status = status;
    why.rank = dsc_shm_barrier_calls(barrier, rank);
    return dsc_shm_barrier_fail_as(barrier, &why, err);
}

static const char *rank_text(const dsc_shm_barrier *barrier, int32_t rank, char text[DSC_RANK_TEXT_BYTES])
{
    const int32_t pid = barrier->shared ? dsc_shm_barrier_pid(barrier, rank, NULL) : 0;
    return dsc_rank_text(dsc_shm_barrier_calls(barrier, rank), pid, NULL, text);
}

dsc_status dsc_shm_barrier_health(dsc_shm_barrier *barrier, dsc_error *err)
{
    if (dsc_failure_exists(&barrier->header->failure))
        return dsc_failure_report(&barrier->header->failure, err);
    for (int32_t r = 0; r < barrier->size; r++) {
        char text[DSC_FAILURE_TEXT_BYTES], name[DSC_RANK_TEXT_BYTES];
        if (r == barrier->rank || barrier->alive == NULL || atomic_load(&barrier->header->person[r].left) != 0 ||
            barrier->alive(barrier->user, r))
            continue;
        dsc_text_gone(text, NULL, rank_text(barrier, r, name), NULL);
        return dsc_shm_barrier_fail(barrier, DSC_ERR_PEER, r, err, "%s", text);
    }
    return DSC_OK;
}

static dsc_caller caller_of(const dsc_shm_barrier *barrier, int32_t channel)
{
    dsc_caller caller = barrier->channel[channel].caller;
    caller.rank = dsc_shm_barrier_calls(barrier, barrier->rank);
    caller.channel = channel;
    return caller;
}

/* The operation of another rank, whose size is not known here. */
static dsc_call_record call_of(const dsc_shm_barrier *barrier, int32_t channel, int32_t rank)
{
    const int32_t op = atomic_load(&slot_of(barrier, channel, rank)->now_op);
    return (dsc_call_record){ .op = (int16_t)(op - 1), .bytes = -1 };
}

/* ---- waiting ----------------------------------------------------------------------------------------------------- */

/* Target of a wait: the whole generation (peer < 0) or a message of one rank. */
typedef struct wait_for {
    _Atomic uint32_t *word;
    _Atomic uint32_t *sleepers;
    uint32_t old;
    int32_t channel, peer;
} wait_for;

static bool is_missing(const dsc_shm_barrier *barrier, const wait_for *w, int32_t rank)
{
    if (rank == barrier->rank)
        return false;
    if (w->peer >= 0)
        return rank == w->peer;
    return atomic_load(&slot_of(barrier, w->channel, rank)->arrived) == w->old;
}

/* True when `rank` itself waits for me, in something that what I wait for can never answer. Every case is certain, not
 * a matter of time: it has come to a meet that I have not, its mail to me lies there, or it awaits mine. */
static bool never_matches(const dsc_shm_barrier *barrier, const wait_for *w, int32_t rank)
{
    const rank_words *me = slot_of(barrier, w->channel, barrier->rank), *them = slot_of(barrier, w->channel, rank);
    const bool mails_me = atomic_load(&them->mail) % 2 == 1 && atomic_load(&them->mail_to) == barrier->rank;
    const bool awaits_me = atomic_load(&them->awaiting) == barrier->rank + 1;
    if (w->peer < 0)
        return false; /* a rank that sends to, or awaits, a rank at a barrier finds out itself */
    const bool meets = atomic_load(&them->arrived) == barrier->channel[w->channel].generation + 1;
    const bool i_await = atomic_load(&me->awaiting) == rank + 1;
    return meets || (i_await ? awaits_me : mails_me);
}

static dsc_status fail_disagree(dsc_shm_barrier *barrier, int32_t channel, int32_t peer, const dsc_call_record *theirs,
                                dsc_error *err)
{
    char text[DSC_FAILURE_TEXT_BYTES];
    const dsc_caller caller = caller_of(barrier, channel);
    dsc_text_disagree(text, &caller, dsc_shm_barrier_calls(barrier, peer), theirs);
    return dsc_shm_barrier_fail(barrier, DSC_ERR_COMM, peer, err, "%s", text);
}

static dsc_status look_at(dsc_shm_barrier *barrier, const wait_for *w, int32_t rank, dsc_error *err)
{
    char text[DSC_FAILURE_TEXT_BYTES], name[DSC_RANK_TEXT_BYTES];
    const dsc_caller caller = caller_of(barrier, w->channel);
    if (atomic_load(&barrier->header->person[rank].left) != 0) {
        dsc_text_closed(text, &caller, rank_text(barrier, rank, name));
        return dsc_shm_barrier_fail(barrier, DSC_ERR_PEER, rank, err, "%s", text);
    }
    if (barrier->alive != NULL && !barrier->alive(barrier->user, rank)) {
        dsc_text_gone(text, &caller, rank_text(barrier, rank, name), NULL);
        return dsc_shm_barrier_fail(barrier, DSC_ERR_PEER, rank, err, "%s", text);
    }
    if (!never_matches(barrier, w, rank))
        return DSC_OK;
    const dsc_call_record theirs = call_of(barrier, w->channel, rank);
    return fail_disagree(barrier, w->channel, rank, &theirs, err);
}

static dsc_status look_around(dsc_shm_barrier *barrier, const wait_for *w, dsc_error *err)
{
    for (int32_t r = 0; r < barrier->size; r++)
        if (is_missing(barrier, w, r))
            DSC_TRY(look_at(barrier, w, r, err));
    dsc_error why = DSC_ERROR_INIT;
    if (barrier->look == NULL || barrier->look(barrier->look_user, &why) == DSC_OK)
        return DSC_OK;
    return dsc_shm_barrier_fail_as(barrier, &why, err);
}

static dsc_status give_up(dsc_shm_barrier *barrier, const wait_for *w, dsc_error *err)
{
    dsc_missing_ranks missing = { .count = 0 };
    const dsc_caller caller = caller_of(barrier, w->channel);
    for (int32_t r = 0; r < barrier->size; r++) {
        char name[DSC_RANK_TEXT_BYTES], seen[DSC_CALL_TEXT_BYTES];
        const dsc_call_record theirs = call_of(barrier, w->channel, r);
        if (is_missing(barrier, w, r))
            dsc_missing_add(&missing, r, rank_text(barrier, r, name), dsc_call_text(&theirs, seen));
    }
    char text[DSC_FAILURE_TEXT_BYTES];
    dsc_text_stuck(text, &caller, barrier->timeout_ns, &missing);
    return dsc_shm_barrier_fail(barrier, DSC_ERR_STUCK, missing.first, err, "%s", text);
}

/* How long the next wait spins: as long as this one took, were it short. A wait that slept is judged by its whole
 * length, so that one disturbance (every sleeper is late for the next meet) does not end spinning for good. */
static void learn(dsc_shm_barrier *barrier, struct dsc_shm_channel *state, int64_t waited_ns)
{
    if (waited_ns <= barrier->spin_max_ns)
        state->spin_ns = dsc_min_i64(dsc_max_i64(state->spin_ns, 2 * waited_ns), barrier->spin_max_ns);
    else
        state->spin_ns = dsc_max_i64(state->spin_ns / 2, SPIN_MIN_NS);
}

static bool changed(const wait_for *w)
{
    return atomic_load_explicit(w->word, memory_order_acquire) != w->old;
}

static bool spin(const wait_for *w, int64_t until_ns)
{
    do {
        for (int i = 0; i < 16; i++) {
            if (changed(w))
                return true;
#if defined(__x86_64__)
            __builtin_ia32_pause();
#endif
        }
    } while (dsc_clock_ns() < until_ns);
    return false;
}

/* Grows while a rank that is missing gets on elsewhere. */
static uint32_t signs_of_life(const dsc_shm_barrier *barrier, const wait_for *w)
{
    uint32_t sum = 0;
    for (int32_t r = 0; r < barrier->size; r++)
        if (is_missing(barrier, w, r))
            sum += atomic_load_explicit(&slot_of(barrier, w->channel, r)->moved, memory_order_relaxed);
    return sum;
}

static dsc_status sleep_until_changed(dsc_shm_barrier *barrier, const wait_for *w, int64_t start_ns, dsc_error *err)
{
    int64_t looked_ns = start_ns;
    uint32_t signs = signs_of_life(barrier, w);
    for (;;) {
        const int64_t left_ns = start_ns + barrier->timeout_ns - dsc_clock_ns();
        if (!dsc_failure_exists(&barrier->header->failure) && left_ns > 0) {
            atomic_fetch_add(w->sleepers, 1);
            futex_wait(barrier, w->word, w->old, dsc_min_i64(left_ns, SLICE_NS));
            atomic_fetch_sub(w->sleepers, 1);
        }
        if (changed(w))
            return DSC_OK;
        if (dsc_failure_exists(&barrier->header->failure))
            return dsc_failure_report(&barrier->header->failure, err);
        const int64_t now_ns = dsc_clock_ns();
        const uint32_t signs_now = signs_of_life(barrier, w);
        if (signs_now != signs)
            start_ns = now_ns;
        signs = signs_now;
        if (now_ns - start_ns >= barrier->timeout_ns)
            return give_up(barrier, w, err);
        if (now_ns - looked_ns >= SLICE_NS) {
            looked_ns = now_ns;
            DSC_TRY(look_around(barrier, w, err));
        }
    }
}

static void be_seen(dsc_shm_barrier *barrier, int32_t channel)
{
    atomic_store_explicit(&slot_of(barrier, channel, barrier->rank)->cpu, sched_getcpu(), memory_order_relaxed);
}

/* A rank that was last seen on this very processor can only come when this one makes room. */
static bool awaits_neighbour(const dsc_shm_barrier *barrier, const wait_for *w)
{
    const int32_t here = sched_getcpu();
    for (int32_t r = 0; r < barrier->size; r++)
        if (is_missing(barrier, w, r) &&
            atomic_load_explicit(&slot_of(barrier, w->channel, r)->cpu, memory_order_relaxed) == here)
            return true;
    return false;
}

static dsc_status wait_change(dsc_shm_barrier *barrier, const wait_for *w, dsc_error *err)
{
    struct dsc_shm_channel *state = &barrier->channel[w->channel];
    if (changed(w))
        return DSC_OK;
    const int64_t start_ns = dsc_clock_ns();
    if (awaits_neighbour(barrier, w) || !spin(w, start_ns + state->spin_ns)) {
        DSC_TRY(sleep_until_changed(barrier, w, start_ns, err));
        be_seen(barrier, w->channel);
    }
    learn(barrier, state, dsc_clock_ns() - start_ns);
    return DSC_OK;
}

/* ---- operations -------------------------------------------------------------------------------------------------- */

dsc_status dsc_shm_barrier_begin(dsc_shm_barrier *barrier, int32_t channel, const dsc_call_record *call, dsc_error *err)
{
    rank_words *me = slot_of(barrier, channel, barrier->rank);
    dsc_caller_begin(&barrier->channel[channel].caller, barrier->rank, channel, call);
    atomic_store_explicit(&me->now_op, call->op + 1, memory_order_relaxed);
    be_seen(barrier, channel);
    if (dsc_failure_exists(&barrier->header->failure))
        return dsc_failure_report(&barrier->header->failure, err);
    return DSC_OK;
}

void dsc_shm_barrier_progressed(dsc_shm_barrier *barrier, int32_t channel)
{
    atomic_fetch_add_explicit(&slot_of(barrier, channel, barrier->rank)->moved, 1, memory_order_relaxed);
}

void dsc_shm_barrier_end(dsc_shm_barrier *barrier, int32_t channel)
{
    atomic_store_explicit(&slot_of(barrier, channel, barrier->rank)->now_op, 0, memory_order_relaxed);
}

static dsc_status compare_calls(dsc_shm_barrier *barrier, int32_t channel, const dsc_call_record *mine, dsc_error *err)
{
    for (int32_t r = 0; r < barrier->size; r++) {
        const dsc_call_record *theirs = &dsc_shm_barrier_peer_entry(barrier, channel, r)->call;
        if (!dsc_call_matches(mine, theirs))
            return fail_disagree(barrier, channel, r, theirs, err);
    }
    return DSC_OK;
}

dsc_status dsc_shm_barrier_wait(dsc_shm_barrier *barrier, int32_t channel, const dsc_shm_barrier_entry *entry,
                                dsc_error *err)
{
    struct dsc_shm_channel *state = &barrier->channel[channel];
    channel_words *ch = &barrier->header->channel[channel];
    rank_words *me = slot_of(barrier, channel, barrier->rank);
    const uint32_t old = state->generation;
    if (entry != NULL) {
        me->entry[old & 1u] = *entry;
        state->caller.call = entry->call;
    }
    /* Release: my entry, and my data that peers read, are written before I am seen to have arrived. */
    atomic_store_explicit(&me->arrived, old + 1, memory_order_release);
    const uint64_t arrivals = atomic_fetch_add(&ch->arrivals, 1) + 1;
    if (arrivals % (uint64_t)barrier->size == 0) {
        atomic_store(&ch->generation, old + 1);
        if (atomic_load(&ch->sleepers) != 0)
            futex_wake(barrier, &ch->generation);
    } else {
        const wait_for w = { &ch->generation, &ch->sleepers, old, channel, -1 };
        DSC_TRY(wait_change(barrier, &w, err));
    }
    state->generation = old + 1;
    return entry == NULL ? DSC_OK : compare_calls(barrier, channel, &entry->call, err);
}

const dsc_shm_barrier_entry *dsc_shm_barrier_peer_entry(const dsc_shm_barrier *barrier, int32_t channel, int32_t rank)
{
    return &slot_of(barrier, channel, rank)->entry[(barrier->channel[channel].generation - 1) & 1u];
}

dsc_status dsc_shm_barrier_post(dsc_shm_barrier *barrier, int32_t channel, int32_t to,
                                const dsc_shm_barrier_entry *entry, dsc_error *err)
{
    rank_words *me = slot_of(barrier, channel, barrier->rank);
    const uint32_t empty = atomic_load(&me->mail);
    DSC_ASSERT(empty % 2 == 0);
    DSC_ASSERT(to != barrier->rank);
    me->mail_entry = *entry;
    atomic_store(&me->mail_to, to);
    atomic_store(&me->mail, empty + 1);
    if (atomic_load(&me->mail_sleepers) != 0)
        futex_wake(barrier, &me->mail);
    const wait_for w = { &me->mail, &me->mail_sleepers, empty + 1, channel, to };
    return wait_change(barrier, &w, err);
}

dsc_status dsc_shm_barrier_await(dsc_shm_barrier *barrier, int32_t channel, int32_t from, int64_t bytes,
                                 const dsc_shm_barrier_entry **entry, dsc_error *err)
{
    rank_words *me = slot_of(barrier, channel, barrier->rank), *them = slot_of(barrier, channel, from);
    DSC_ASSERT(from != barrier->rank);
    for (;;) {
        const uint32_t mail = atomic_load(&them->mail);
        if (mail % 2 == 1 && atomic_load(&them->mail_to) == barrier->rank) {
            const dsc_call_record mine = { .op = DSC_COMM_RECV, .bytes = bytes };
            atomic_store(&me->awaiting, 0);
            *entry = &them->mail_entry;
            return dsc_call_matches(&mine, &(*entry)->call)
                       ? DSC_OK
                       : fail_disagree(barrier, channel, from, &(*entry)->call, err);
        }
        atomic_store(&me->awaiting, from + 1);
        const wait_for w = { &them->mail, &them->mail_sleepers, mail, channel, from };
        DSC_TRY(wait_change(barrier, &w, err));
    }
}

void dsc_shm_barrier_received(dsc_shm_barrier *barrier, int32_t channel, int32_t from)
{
    rank_words *them = slot_of(barrier, channel, from);
    const uint32_t mail = atomic_load(&them->mail);
    DSC_ASSERT(mail % 2 == 1);
    atomic_store(&them->mail, mail + 1);
    if (atomic_load(&them->mail_sleepers) != 0)
        futex_wake(barrier, &them->mail);
}
