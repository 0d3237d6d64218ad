/* shm_internal.h - private to shm*.c. SPDX-License-Identifier: Apache-2.0
 *
 * Memory of one communicator:
 *   segment   one sealed memory file of rank 0, mapped by all: the barrier, then per rank and channel two staging
 * halves heap      one memory file per rank, only ever growing: what dsc_comm_mem_open hands out. Peers map a region of
 * it the first time they read from it, and keep the mapping. */
#ifndef DSC_COMM_TRANSPORTS_SHM_INTERNAL_H
#define DSC_COMM_TRANSPORTS_SHM_INTERNAL_H

#include <pthread.h>

#include "comm/comm_internal.h"
#include "comm/transports/shm_barrier.h"

#define DSC_SHM_PIECE_LEAST INT64_C(256) /* bytes of one owner's piece in a staging half: four cache lines */

/* A mapped piece of a rank's heap: own memory (rank is me) or a window into a peer's. */
typedef struct dsc_shm_region {
    struct dsc_shm_region *next;
    char *ptr;
    int64_t offset, bytes; /* in the heap file */
} dsc_shm_region;

typedef struct dsc_shm_peer {
    int heap;  /* its memory file */
    int pidfd; /* -1: watched through /proc, or not at all */
    int32_t pid;
    uint64_t start_time;
    bool watched;
    dsc_shm_region *window;
} dsc_shm_peer;

typedef struct dsc_shm {
    dsc_transport base;
    dsc_alloc *alloc;
    dsc_comm_math math;
    dsc_shm_barrier barrier;
    int32_t rank, size, channel_count;
    char *segment;
    dsc_comm_memory memory; /* this rank's share of the segment */
    int64_t segment_bytes, noted_bytes, staging_offset, half_bytes;
    bool reads_peers; /* process_vm_readv works between all ranks */
    pthread_mutex_t lock; /* regions and windows */
    dsc_shm_region *region; /* own */
    dsc_shm_region *spare;  /* nodes for windows */
    int64_t heap_end;
    dsc_shm_peer peer[DSC_SHM_BARRIER_RANKS_MAX];
} dsc_shm;

/* ---- shm.c ------------------------------------------------------------------------------------------------------- */
/* Collectives as parts of a call: `call` is what it is compared by and what messages say (op, detail, bytes). Between
 * dsc_shm_barrier_begin and dsc_shm_barrier_end. */
DSC_MUST_USE dsc_status dsc_shm_gather(dsc_shm *shm, int32_t channel, const dsc_call_record *call, char *recv,
                                       const char *send, int64_t bytes, dsc_error *err);
DSC_MUST_USE dsc_status dsc_shm_exchange(dsc_shm *shm, int32_t channel, const dsc_call_record *call, char *recv,
                                         const char *send, int64_t bytes, dsc_error *err);
DSC_MUST_USE dsc_status dsc_shm_spread(dsc_shm *shm, int32_t channel, const dsc_call_record *call, char *buf,
                                       int64_t bytes, int32_t root, dsc_error *err);
DSC_MUST_USE dsc_status dsc_shm_give(dsc_shm *shm, int32_t channel, const char *buf, int64_t bytes, int32_t to,
                                     dsc_error *err);
DSC_MUST_USE dsc_status dsc_shm_receive(dsc_shm *shm, int32_t channel, char *buf, int64_t bytes, int32_t from,
                                        dsc_error *err);

/* ---- shm_heap.c -------------------------------------------------------------------------------------------------- */
dsc_status dsc_shm_mem_open(dsc_transport *transport, dsc_tag tag, int64_t bytes, dsc_buf *out, dsc_error *err);
void dsc_shm_mem_close(dsc_transport *transport, dsc_buf *buf);
void dsc_shm_heap_close(dsc_shm *shm);
/* Says in `note` where ptr[bytes] lies for peers, each of whom reads read_bytes: HEAP, RAW when that is worth a system
 * call, else STAGE. */
void dsc_shm_locate(dsc_shm *shm, const void *ptr, int64_t bytes, int64_t read_bytes, dsc_shm_barrier_entry *entry);
/* Address in this process of byte `at` of what `note` of `rank` says; entry->kind is HEAP. */
DSC_MUST_USE dsc_status dsc_shm_window(dsc_shm *shm, int32_t rank, const dsc_shm_barrier_entry *entry, int64_t at,
                                       const char **out, dsc_error *err);
/* to[bytes] <- byte `at` on of what a HEAP or RAW entry says. */
DSC_MUST_USE dsc_status dsc_shm_read(dsc_shm *shm, int32_t rank, const dsc_shm_barrier_entry *entry, int64_t at,
                                     void *to, int64_t bytes, bool past_cache, dsc_error *err);

/* ---- shm_peers.c ------------------------------------------------------------------------------------------------- */
/* Publishes the identity of this process for its peers: pid and start time (0 if /proc lacks it). */
void dsc_shm_sign_in(dsc_shm *shm);
DSC_MUST_USE dsc_status dsc_shm_watch_peers(dsc_shm *shm, dsc_error *err);
void dsc_shm_unwatch_peers(dsc_shm *shm);
bool dsc_shm_alive(void *user, int32_t rank);
/* Sets reads_peers. Collective. */
DSC_MUST_USE dsc_status dsc_shm_probe(dsc_shm *shm, dsc_error *err);

/* ---- shm_open.c -------------------------------------------------------------------------------------------------- */
int dsc_shm_list_needs(const dsc_comm_options *options, dsc_transport *transport, dsc_need *list);
dsc_status dsc_shm_open(const dsc_comm_ops *ops, dsc_transport **out, const dsc_comm_options *options, dsc_error *err);
void dsc_shm_close(dsc_transport *transport);

static inline char *dsc_shm_staging(const dsc_shm *shm, int32_t channel, int32_t rank, uint32_t half)
{
    return shm->segment + shm->staging_offset +
           ((int64_t)(rank * shm->channel_count + channel) * 2 + half) * shm->half_bytes;
}

#endif
