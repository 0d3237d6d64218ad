/* local.c - ranks as threads of one process: peers' buffers are read in place.
 *
 * A rank comes to the barrier with the address of its data, reads what it needs from everybody's, and comes again, so
 * that nobody's buffer changes before it was read. A reduce-scatter folds the unrounded leaves where they lie.
 * After a failure nobody comes again, and a rank may free its buffers as soon as its call has returned. So reading is
 * counted: it starts only while no failure stands on the barrier, and a call that fails returns only when nobody reads.
 * SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "comm/comm_front.h"
#include "comm/copy.h"
#include "comm/transports/shm_barrier.h"

/* ---- the world --------------------------------------------------------------------------------------------------- */

/* Opening goes in rounds: every rank comes once (or refuses), the last one decides for all. */
struct dsc_local_world {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int32_t size;
    uint64_t round;     /* decided so far: the epoch */
    bool round_ok;      /* result of the last decided round */
    char reason[320];   /* why it is not */
    int32_t come_count; /* to the round that is open */
    bool refused;
    bool come[DSC_SHM_BARRIER_RANKS_MAX];
    int32_t inside;  /* ranks that hold the barrier */
    int32_t holders; /* communicators of a group's world, which nobody else closes */
    _Atomic int32_t reading; /* calls of any rank and channel that read others' buffers now */
    void *barrier;
};

dsc_status dsc_local_world_open(int32_t size, dsc_local_world **out, dsc_error *err)
{
    *out = NULL;
    if (size < 1 || size > DSC_SHM_BARRIER_RANKS_MAX)
        return DSC_FAIL(err, DSC_ERR_INPUT, "", "%d ranks as threads; expected 1..%d", size, DSC_SHM_BARRIER_RANKS_MAX);
    dsc_local_world *world = calloc(1, sizeof *world);
    void *barrier = NULL;
    pthread_condattr_t attr;
    if (world == NULL ||
        posix_memalign(&barrier, 64, (size_t)dsc_shm_barrier_bytes(size, DSC_COMM_CHANNELS_MAX)) != 0) {
        free(world);
        return DSC_FAIL(err, DSC_ERR_NOMEM, "", "out of host memory: a world of %d threads", size);
    }
    world->size = size;
    world->barrier = barrier;
    /* None of these allocates or can fail with valid arguments on Linux. */
    pthread_mutex_init(&world->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&world->changed, &attr);
    pthread_condattr_destroy(&attr);
    *out = world;
    return DSC_OK;
}

void dsc_local_world_close(dsc_local_world **world_ptr)
{
    dsc_local_world *world = *world_ptr;
    if (world == NULL)
        return;
    DSC_ASSERT(world->inside == 0);
    pthread_cond_destroy(&world->changed);
    pthread_mutex_destroy(&world->lock);
    free(world->barrier);
    free(world);
    *world_ptr = NULL;
}

void dsc_local_world_hold(dsc_local_world *world, int32_t holders) { world->holders = holders; }

void dsc_local_world_drop(dsc_local_world *world)
{
    if (world == NULL)
        return;
    pthread_mutex_lock(&world->lock);
    DSC_ASSERT(world->holders > 0);
    const bool last = --world->holders == 0;
    pthread_mutex_unlock(&world->lock);
    if (last)
        dsc_local_world_close(&world);
}

/* With the lock held: the last rank has come. */
static void decide_round(dsc_local_world *world)
{
    world->round++;
    world->round_ok = !world->refused;
    if (world->round_ok) {
        dsc_shm_barrier_init(world->barrier, world->size, DSC_COMM_CHANNELS_MAX);
        world->inside = world->size;
    }
    world->come_count = 0;
    world->refused = false;
    memset(world->come, 0, sizeof world->come);
    pthread_cond_broadcast(&world->changed);
}

void dsc_local_world_refuse(dsc_local_world *world, int32_t rank, const char *reason)
{
    DSC_ASSERT(rank >= 0 && rank < world->size);
    pthread_mutex_lock(&world->lock);
    if (!world->come[rank]) {
        world->come[rank] = true;
        if (!world->refused)
            snprintf(world->reason, sizeof world->reason, "rank %d could not open: %.260s", rank, reason);
        world->refused = true;
        if (++world->come_count == world->size)
            decide_round(world);
    }
    pthread_mutex_unlock(&world->lock);
}

static bool wait_until(dsc_local_world *world, int64_t deadline_ns)
{
    const struct timespec until = { .tv_sec = deadline_ns / 1000000000, .tv_nsec = deadline_ns % 1000000000 };
    return pthread_cond_timedwait(&world->changed, &world->lock, &until) != ETIMEDOUT;
}

static dsc_status nobody_came(dsc_local_world *world, int32_t rank, dsc_error *err)
{
    char missing[200] = "";
    size_t used = 0;
    for (int32_t r = 0; r < world->size && used < sizeof missing - 1; r++)
        if (!world->come[r])
            used += (size_t)snprintf(missing + used, sizeof missing - used, "%s%d", used == 0 ? "" : ", ", r);
    world->come[rank] = false;
    world->come_count--;
    return DSC_FAIL(err, DSC_ERR_STUCK, "comm", "rank %d waited at open for rank %s of %d", rank, missing, world->size);
}

/* Joins the next round once the last one's barrier is free and a round that this rank refused is decided. With the lock
 * held. */
static dsc_status join_locked(dsc_local_world *world, int32_t rank, int64_t timeout_ns, dsc_error *err)
{
    const int64_t deadline_ns = dsc_clock_ns() + timeout_ns;
    while (world->inside > 0 || world->come[rank])
        if (!wait_until(world, deadline_ns) && (world->inside > 0 || world->come[rank]))
            return DSC_FAIL(err, DSC_ERR_STUCK, "comm", "%d ranks still hold their last communicator%s", world->inside,
                            world->come[rank] ? ", or this rank opens twice" : "");
    const uint64_t round = world->round;
    world->come[rank] = true;
    if (++world->come_count == world->size)
        decide_round(world);
    while (world->round == round)
        if (!wait_until(world, deadline_ns) && world->round == round)
            return nobody_came(world, rank, err);
    if (!world->round_ok)
        return DSC_FAIL(err, DSC_ERR_PEER, "comm", "%s", world->reason);
    return DSC_OK;
}

static dsc_status world_join(dsc_local_world *world, int32_t rank, int64_t timeout_ns, dsc_error *err)
{
    pthread_mutex_lock(&world->lock);
    const dsc_status status = join_locked(world, rank, timeout_ns, err);
    pthread_mutex_unlock(&world->lock);
    return status;
}

static void world_leave(dsc_local_world *world)
{
    pthread_mutex_lock(&world->lock);
    DSC_ASSERT(world->inside > 0);
    if (--world->inside == 0)
        pthread_cond_broadcast(&world->changed);
    pthread_mutex_unlock(&world->lock);
}

/* ---- the transport ----------------------------------------------------------------------------------------------- */

typedef struct local_transport {
    dsc_transport base;
    dsc_alloc *alloc;
    dsc_local_world *world;
    dsc_comm_math math;
    dsc_shm_barrier barrier;
} local_transport;

static dsc_status local_open(dsc_transport **out, const dsc_comm_options *options, dsc_error *err)
{
    const dsc_rank_info *info = &options->rank_info;
    dsc_local_world *world = info->local_world;
    if (world == NULL)
        return DSC_FAIL(err, DSC_ERR_INPUT, "dsc.comm",
                        "\"local\" is for ranks that are threads of one program; these are processes");
    if (info->size != world->size)
        return DSC_FAIL(err, DSC_ERR_INPUT, "dsc.comm", "%d ranks in a world of %d threads", info->size, world->size);
    local_transport *local = NULL;
    dsc_error first = DSC_ERROR_INIT;
    dsc_status status = dsc_alloc_zeroed(options->alloc, DSC_TAG_CONTROL, 1, sizeof *local, &local, &first);
    if (status != DSC_OK) {
        dsc_local_world_refuse(world, info->rank, first.message);
        if (err != NULL)
            *err = first;
        return status;
    }
    status = world_join(world, info->rank, dsc_comm_open_timeout_ns(options), err);
    if (status != DSC_OK) {
        dsc_alloc_free(options->alloc, local);
        return status;
    }
    local->base.ops = &dsc_comm_local;
    local->alloc = options->alloc;
    local->world = world;
    dsc_comm_math_init(&local->math);
    dsc_shm_barrier_attach(&local->barrier, world->barrier, info->rank, false, dsc_comm_timeout_ns(options));
    *out = &local->base;
    return DSC_OK;
}

static void local_close(dsc_transport *transport)
{
    local_transport *local = (local_transport *)transport;
    dsc_shm_barrier_leave(&local->barrier);
    world_leave(local->world);
    dsc_alloc_free(local->alloc, local);
}

/* Counted first and looked at the barrier then; a rank that fails does it the other way round (ended). So either it
 * sees this reader or this reader sees the failure. */
static dsc_status read_begin(local_transport *local, dsc_error *err)
{
    atomic_fetch_add(&local->world->reading, 1);
    const dsc_status status = dsc_shm_barrier_health(&local->barrier, err);
    if (status != DSC_OK)
        atomic_fetch_sub(&local->world->reading, 1);
    return status;
}

static void read_end(local_transport *local) { atomic_fetch_sub(&local->world->reading, 1); }

static const char *peer_data(const local_transport *local, int32_t channel, int32_t rank)
{
    return (const char *)(uintptr_t)dsc_shm_barrier_peer_entry(&local->barrier, channel, rank)->ptr;
}

static bool is_large(const local_transport *local, int64_t bytes)
{
    return bytes * local->barrier.size >= DSC_COPY_PAST_CACHE_BYTES;
}

static dsc_status gather(local_transport *local, int32_t channel, const dsc_call_record *call, char *recv,
                         const void *send, int64_t bytes, dsc_error *err)
{
    dsc_shm_barrier *barrier = &local->barrier;
    const dsc_shm_barrier_entry entry = { .call = *call, .ptr = (uintptr_t)send };
    DSC_TRY(dsc_shm_barrier_wait(barrier, channel, &entry, err));
    DSC_TRY(read_begin(local, err));
    for (int32_t i = 0; i < barrier->size; i++) {
        const int32_t r = (barrier->rank + i) % barrier->size; /* not all from the same rank at once */
        dsc_copy_bytes(recv + r * bytes, peer_data(local, channel, r), bytes, is_large(local, bytes));
    }
    read_end(local);
    return dsc_shm_barrier_wait(barrier, channel, NULL, err);
}

static dsc_status exchange(local_transport *local, int32_t channel, const dsc_call_record *call, char *recv,
                           const void *send, int64_t bytes, dsc_error *err)
{
    dsc_shm_barrier *barrier = &local->barrier;
    const dsc_shm_barrier_entry entry = { .call = *call, .ptr = (uintptr_t)send };
    DSC_TRY(dsc_shm_barrier_wait(barrier, channel, &entry, err));
    DSC_TRY(read_begin(local, err));
    for (int32_t i = 0; i < barrier->size; i++) {
        const int32_t r = (barrier->rank + i) % barrier->size;
        dsc_copy_bytes(recv + r * bytes, peer_data(local, channel, r) + barrier->rank * bytes, bytes,
                       is_large(local, bytes));
    }
    read_end(local);
    return dsc_shm_barrier_wait(barrier, channel, NULL, err);
}

static dsc_status fold(local_transport *local, int32_t channel, const dsc_call_record *call,
                       const dsc_reduce_scatter_args *args, dsc_error *err)
{
    dsc_shm_barrier *barrier = &local->barrier;
    const dsc_shm_barrier_entry entry = { .call = *call,
                                          .ptr = (uintptr_t)args->leaf,
                                          .stride = args->leaf_stride * (int64_t)sizeof(float) };
    DSC_TRY(dsc_shm_barrier_wait(barrier, channel, &entry, err));
    const void *leaf[DSC_SHM_BARRIER_RANKS_MAX];
    for (int32_t r = 0; r < barrier->size; r++)
        leaf[r] =
            peer_data(local, channel, r) + barrier->rank * dsc_shm_barrier_peer_entry(barrier, channel, r)->stride;
    const dsc_comm_parts leaves = { .each = leaf, .dtype = DSC_F32, .count = barrier->size };
    DSC_TRY(read_begin(local, err));
    const dsc_status status = dsc_comm_ordered_reduce(&local->math, args, &leaves, 0, args->count, NULL, err);
    read_end(local);
    DSC_TRY(status);
    return dsc_shm_barrier_wait(barrier, channel, NULL, err);
}

static dsc_status spread(local_transport *local, int32_t channel, const dsc_call_record *call, void *buf, int64_t bytes,
                         int32_t root, dsc_error *err)
{
    dsc_shm_barrier *barrier = &local->barrier;
    const dsc_shm_barrier_entry entry = { .call = *call, .ptr = (uintptr_t)buf };
    DSC_TRY(dsc_shm_barrier_wait(barrier, channel, &entry, err));
    DSC_TRY(read_begin(local, err));
    dsc_copy_bytes(buf, peer_data(local, channel, root), bytes, bytes >= DSC_COPY_PAST_CACHE_BYTES);
    read_end(local);
    return dsc_shm_barrier_wait(barrier, channel, NULL, err);
}

static dsc_status take(local_transport *local, int32_t channel, void *buf, int64_t bytes, int32_t from, dsc_error *err)
{
    const dsc_shm_barrier_entry *entry = NULL;
    DSC_TRY(dsc_shm_barrier_await(&local->barrier, channel, from, bytes, &entry, err));
    DSC_TRY(read_begin(local, err));
    dsc_copy_bytes(buf, (const void *)(uintptr_t)entry->ptr, bytes, bytes >= DSC_COPY_PAST_CACHE_BYTES);
    read_end(local);
    dsc_shm_barrier_received(&local->barrier, channel, from);
    return DSC_OK;
}

/* A failure that only one rank sees must reach the ranks that wait for it. Then nobody begins to read. Readers that
 * have begun end soon: they wait for nothing while they read. */
static dsc_status ended(local_transport *local, int32_t channel, dsc_status status, const dsc_error *why,
                        dsc_error *err)
{
    if (status != DSC_OK) {
        dsc_shm_barrier_fail(&local->barrier, DSC_ERR_PEER, local->barrier.rank, NULL,
                             "rank %d failed in a collective: %.240s", local->barrier.rank, why->message);
        while (atomic_load(&local->world->reading) > 0)
            dsc_clock_sleep_ns(20000);
        if (err != NULL)
            *err = *why;
    }
    dsc_shm_barrier_end(&local->barrier, channel);
    return status;
}

/* Every hook: begin, the operation, end. */
#define LOCAL_HOOK(OP, DETAIL, BYTES, work)                                                                            \
    local_transport *local = (local_transport *)transport;                                                             \
    const dsc_call_record call = { .op = (OP), .detail = (DETAIL), .bytes = (BYTES) };                                 \
    dsc_error own_ = DSC_ERROR_INIT, *why = &own_;                                                                     \
    dsc_status status = dsc_shm_barrier_begin(&local->barrier, channel, &call, why);                                   \
    if (status == DSC_OK)                                                                                              \
        status = work;                                                                                                 \
    return ended(local, channel, status, why, err)

static dsc_status local_all_gather(dsc_transport *transport, int32_t channel, void *recv, const void *send,
                                   int64_t bytes, dsc_stream *stream, dsc_error *err)
{
    LOCAL_HOOK(DSC_COMM_ALL_GATHER, 0, bytes, gather(local, channel, &call, recv, send, bytes, why));
}

static dsc_status local_all_to_all(dsc_transport *transport, int32_t channel, void *recv, const void *send,
                                   int64_t bytes, dsc_stream *stream, dsc_error *err)
{
    LOCAL_HOOK(DSC_COMM_ALL_TO_ALL, 0, bytes, exchange(local, channel, &call, recv, send, bytes, why));
}

static dsc_status local_broadcast(dsc_transport *transport, int32_t channel, void *buf, int64_t bytes, int32_t root,
                                  dsc_stream *stream, dsc_error *err)
{
    LOCAL_HOOK(DSC_COMM_BROADCAST, root, bytes, spread(local, channel, &call, buf, bytes, root, why));
}

static dsc_status local_barrier(dsc_transport *transport, int32_t channel, dsc_stream *stream, dsc_error *err)
{
    const dsc_shm_barrier_entry entry = { .call.op = DSC_COMM_BARRIER };
    LOCAL_HOOK(DSC_COMM_BARRIER, 0, 0, dsc_shm_barrier_wait(&local->barrier, channel, &entry, why));
}

static dsc_status local_send(dsc_transport *transport, int32_t channel, const void *buf, int64_t bytes, int32_t to,
                             dsc_stream *stream, dsc_error *err)
{
    const dsc_shm_barrier_entry entry = { .call = { .op = DSC_COMM_SEND, .bytes = bytes }, .ptr = (uintptr_t)buf };
    LOCAL_HOOK(DSC_COMM_SEND, 0, bytes, dsc_shm_barrier_post(&local->barrier, channel, to, &entry, why));
}

static dsc_status local_recv(dsc_transport *transport, int32_t channel, void *buf, int64_t bytes, int32_t from,
                             dsc_stream *stream, dsc_error *err)
{
    LOCAL_HOOK(DSC_COMM_RECV, 0, bytes, take(local, channel, buf, bytes, from, why));
}

static dsc_status local_reduce_scatter(dsc_transport *transport, int32_t channel, const dsc_reduce_scatter_args *args,
                                       dsc_stream *stream, dsc_error *err)
{
    LOCAL_HOOK(DSC_COMM_REDUCE_SCATTER, (int32_t)args->wire_dtype,
               args->count * (int64_t)dsc_dtype_bytes(args->wire_dtype), fold(local, channel, &call, args, why));
}

static dsc_status local_health(dsc_transport *transport, dsc_error *err)
{
    return dsc_shm_barrier_health(&((local_transport *)transport)->barrier, err);
}

static void local_abort(dsc_transport *transport, const char *reason)
{
    local_transport *local = (local_transport *)transport;
    dsc_shm_barrier_fail(&local->barrier, DSC_ERR_PEER, local->barrier.rank, NULL, "%s", reason);
}

const dsc_comm_ops dsc_comm_local = {
    .name = "local",
    .version = DSC_COMM_OPS_VERSION,
    .open = local_open,
    .close = local_close,
    .all_gather = local_all_gather,
    .all_to_all = local_all_to_all,
    .broadcast = local_broadcast,
    .barrier = local_barrier,
    .send = local_send,
    .recv = local_recv,
    .reduce_scatter = local_reduce_scatter,
    .health = local_health,
    .abort = local_abort,
};
