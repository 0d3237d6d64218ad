/* shm_barrier.h - barriers and failures of the ranks of one host, for the transports `local` and `shm`.
 *
 * A barrier is plain memory (a heap block of one process, or a shared segment), so it holds no pointers of its own.
 * Each channel has one generation counter. At a barrier a rank writes its entry, counts itself in, and waits until the
 * last rank advances the generation. Entries are kept twice, by parity of the generation. A rank can write entry g+1
 * only after barrier g, which every reader of entry g-1 has reached: readers and writers never touch the same entry.
 * For the same reason a transport can use two staging halves with one barrier per chunk.
 *
 * A wait is a short bounded spin, then a sleep on a futex in slices of 100 ms. After each slice the missing ranks are
 * checked: closed, process gone, or in an operation that can never match. The first failure (agreement.h) is published
 * in the barrier and ends every wait of every rank with the same text. Threads: one thread per channel and rank at a
 * time; abort from any.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_COMM_TRANSPORTS_SHM_BARRIER_H
#define DSC_COMM_TRANSPORTS_SHM_BARRIER_H

#include "comm/agreement.h"

#define DSC_SHM_BARRIER_RANKS_MAX 128 /* of one host */

/* Where a rank's data lies, for those who read it in place. */
typedef enum dsc_shm_barrier_kind {
    DSC_SHM_BARRIER_STAGE, /* in its staging half of this generation, chunk by chunk */
    DSC_SHM_BARRIER_HEAP,  /* in memory that it shares: region and offset */
    DSC_SHM_BARRIER_RAW    /* at `ptr` in its address space */
} dsc_shm_barrier_kind;

/* Entry of a rank at a barrier: its call, which must match those of the others, and the location of its data. */
typedef struct dsc_shm_barrier_entry {
    dsc_call_record call;
    int32_t kind;
    int32_t half; /* staging half of a message from one rank to another */
    uint64_t ptr;
    int64_t stride; /* bytes between the pieces of two owners */
    int64_t region_offset, region_bytes, offset;
} dsc_shm_barrier_entry;
_Static_assert(sizeof(dsc_shm_barrier_entry) == 64, "one cache line");

typedef struct dsc_shm_barrier_header dsc_shm_barrier_header;
int64_t dsc_shm_barrier_bytes(int32_t size, int32_t channel_count);
/* Writes an empty barrier into zeroed memory, 64-byte aligned. */
void dsc_shm_barrier_init(void *memory, int32_t size, int32_t channel_count);

/* One rank's hold on a barrier. Plain value. */
typedef struct dsc_shm_barrier {
    dsc_shm_barrier_header *header;
    int32_t rank, size, channel_count;
    bool shared; /* between processes: pids are meaningful, futexes are not private */
    int64_t timeout_ns, spin_max_ns;
    /* False when the process of `rank` is gone. NULL: nobody can vanish. */
    bool (*alive)(void *user, int32_t rank); /* called by any channel's thread */
    void *user;
    /* For ranks that also wait for ranks of other hosts, else NULL: numbers of these ranks in messages, and a check
     * every 100 ms of a wait. A failure of the check is published here. */
    const int32_t *called;
    dsc_status (*look)(void *user, dsc_error *err);
    void *look_user;
    struct dsc_shm_channel {
        uint32_t generation; /* barriers passed */
        dsc_caller caller;   /* operation that runs, or the last one */
        int64_t spin_ns;     /* adapted to how long waits take */
    } channel[DSC_COMM_CHANNELS_MAX];
} dsc_shm_barrier;

/* `alive` may be set after. spin_max_ns is chosen from the processors this process may use and the ranks that share
 * them. */
void dsc_shm_barrier_attach(dsc_shm_barrier *barrier, void *memory, int32_t rank, bool shared, int64_t timeout_ns);
/* Publishes who I am: for `alive` and for messages. */
void dsc_shm_barrier_register(dsc_shm_barrier *barrier, int32_t pid, uint64_t start_time);
int32_t dsc_shm_barrier_pid(const dsc_shm_barrier *barrier, int32_t rank, uint64_t *start_time);
/* The rank is leaving for good: whoever waits for it fails. */
void dsc_shm_barrier_leave(dsc_shm_barrier *barrier);

/* Every operation starts with begin and ends with end: what they say is seen in other ranks' errors. */
DSC_MUST_USE dsc_status dsc_shm_barrier_begin(dsc_shm_barrier *barrier, int32_t channel, const dsc_call_record *call,
                                              dsc_error *err);
void dsc_shm_barrier_end(dsc_shm_barrier *barrier, int32_t channel);
/* This rank gets on with others than these: who waits for it here begins to count its timeout anew. */
void dsc_shm_barrier_progressed(dsc_shm_barrier *barrier, int32_t channel);
static inline int32_t dsc_shm_barrier_calls(const dsc_shm_barrier *barrier, int32_t rank)
{
    return barrier->called != NULL ? barrier->called[rank] : rank;
}

/* Waits for all ranks. With a note: they then agree in op, detail and bytes, or DSC_ERR_COMM on every rank; peers'
 * entries can be read until the next meet. entry = NULL for the later meets of an operation. */
DSC_MUST_USE dsc_status dsc_shm_barrier_wait(dsc_shm_barrier *barrier, int32_t channel,
                                             const dsc_shm_barrier_entry *entry, dsc_error *err);
const dsc_shm_barrier_entry *dsc_shm_barrier_peer_entry(const dsc_shm_barrier *barrier, int32_t channel, int32_t rank);
/* 0 or 1: the staging half to fill before the next meet, and to read after it (then it is the other one to fill). */
static inline uint32_t dsc_shm_barrier_parity(const dsc_shm_barrier *barrier, int32_t channel)
{
    return barrier->channel[channel].generation & 1u;
}

/* Point to point. The sender posts a entry and waits until the receiver took it; a long message is several posts. */
DSC_MUST_USE dsc_status dsc_shm_barrier_post(dsc_shm_barrier *barrier, int32_t channel, int32_t to,
                                             const dsc_shm_barrier_entry *entry, dsc_error *err);
/* Waits for the next entry of `from` to this rank, a message of `bytes`, or DSC_ERR_COMM on both ranks. The entry is
 * borrowed until dsc_shm_barrier_received. */
DSC_MUST_USE dsc_status dsc_shm_barrier_await(dsc_shm_barrier *barrier, int32_t channel, int32_t from, int64_t bytes,
                                              const dsc_shm_barrier_entry **entry, dsc_error *err);
void dsc_shm_barrier_received(dsc_shm_barrier *barrier, int32_t channel, int32_t from);

/* Without waiting: a failure that stands on the barrier, or a rank whose process is gone. A rank that left is not a
 * failure: what it owed may be done. */
DSC_MUST_USE dsc_status dsc_shm_barrier_health(dsc_shm_barrier *barrier, dsc_error *err);

/* Publishes a failure (the first one stays) and wakes everybody. Returns what stands on the barrier, in *err. */
dsc_status dsc_shm_barrier_fail(dsc_shm_barrier *barrier, dsc_status status, int32_t rank, dsc_error *err,
                                const char *fmt, ...) DSC_PRINTF(5, 6);
/* Publishes a failure whose text and rank are already complete. */
dsc_status dsc_shm_barrier_fail_as(dsc_shm_barrier *barrier, const dsc_error *why, dsc_error *err);

#endif
