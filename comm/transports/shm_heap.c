/* shm_heap.c - memory that peers read in place, and how they read it.
 *
 * A rank's heap file only grows. A region that is closed gives its pages back (a hole) and its range is not used again.
 * So a peer's old window can never show new data under an old offset.
 * SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "comm/copy.h"
#include "comm/transports/shm_internal.h"

#define PAGE INT64_C(4096)
#define HUGE_PAGE (INT64_C(2) << 20)

/* From this size on one system call of a reader is faster than two copies through the staging, if the ranks have a
 * core each. Measured: 41 against 56 us for 64 KiB, 70 against 263 for 512 KiB. Below it both take equally long. */
#define RAW_LEAST_BYTES (INT64_C(64) << 10)

static int64_t counted_bytes(int64_t bytes) { return dsc_align_up(dsc_max_i64(bytes, 1), 64); }

/* A node for a window. Ranks open equal buffers, so each own region brings one node for every peer. Then the window
 * of a buffer that is first gathered after step 1 needs no memory while allocations are frozen. */
static dsc_status node_take(dsc_shm *shm, dsc_shm_region **out, dsc_error *err)
{
    if (shm->spare == NULL)
        return dsc_alloc_zeroed(shm->alloc, DSC_TAG_CONTROL, 1, sizeof **out, out, err);
    *out = shm->spare;
    shm->spare = (*out)->next;
    return DSC_OK;
}

static void node_give(dsc_shm *shm, dsc_shm_region *node)
{
    *node = (dsc_shm_region){ .next = shm->spare };
    shm->spare = node;
}

static void nodes_free(dsc_shm *shm, dsc_shm_region *node)
{
    while (node != NULL) {
        dsc_shm_region *next = node->next;
        if (node->ptr != NULL)
            munmap(node->ptr, (size_t)node->bytes);
        dsc_alloc_free(shm->alloc, node);
        node = next;
    }
}

/* Maps `region->bytes` of the own heap at its end. With the lock held. */
static dsc_status region_map(dsc_shm *shm, dsc_shm_region *region, int64_t bytes, dsc_error *err)
{
    const int64_t grain = bytes >= HUGE_PAGE ? HUGE_PAGE : PAGE;
    region->offset = dsc_align_up(shm->heap_end, grain);
    region->bytes = dsc_align_up(dsc_max_i64(bytes, 1), PAGE);
    const int64_t end = region->offset + region->bytes;
    const int heap = shm->peer[shm->rank].heap;
    if (ftruncate(heap, end) != 0)
        return DSC_FAIL(err, DSC_ERR_NOMEM, "dsc.comm", "cannot grow shared memory to %lld bytes: %s", (long long)end,
                        strerror(errno));
    shm->heap_end = end;
    void *ptr = mmap(NULL, (size_t)region->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, heap, region->offset);
    if (ptr == MAP_FAILED)
        return DSC_FAIL(err, DSC_ERR_NOMEM, "dsc.comm", "cannot map %lld bytes of shared memory: %s", (long long)bytes,
                        strerror(errno));
    region->ptr = ptr;
    if (bytes >= HUGE_PAGE)
        madvise(ptr, (size_t)region->bytes, MADV_HUGEPAGE); /* a hint: the system may forbid it for shared memory */
    region->next = shm->region;
    shm->region = region;
    return DSC_OK;
}

/* `count` zeroed nodes in front of *list; all or none. */
static dsc_status nodes_open(dsc_shm *shm, int32_t count, dsc_shm_region **list, dsc_error *err)
{
    dsc_shm_region *made = NULL;
    for (int32_t i = 0; i < count; i++) {
        dsc_shm_region *node = NULL;
        const dsc_status status = dsc_alloc_zeroed(shm->alloc, DSC_TAG_CONTROL, 1, sizeof *node, &node, err);
        if (status != DSC_OK) {
            nodes_free(shm, made);
            return status;
        }
        node->next = made;
        made = node;
    }
    *list = made;
    return DSC_OK;
}

dsc_status dsc_shm_mem_open(dsc_transport *transport, dsc_tag tag, int64_t bytes, dsc_buf *out, dsc_error *err)
{
    dsc_shm *shm = (dsc_shm *)transport;
    dsc_shm_region *nodes = NULL;
    const int64_t counted = counted_bytes(bytes);
    DSC_TRY(dsc_alloc_note(shm->alloc, tag, DSC_TIER_DEVICE, counted, err));
    dsc_status status = nodes_open(shm, shm->size, &nodes, err);
    if (status == DSC_OK) {
        pthread_mutex_lock(&shm->lock);
        dsc_shm_region *region = nodes;
        nodes = region->next;
        status = region_map(shm, region, bytes, err);
        if (status == DSC_OK) {
            *out = (dsc_buf){ .ptr = region->ptr,
                              .bytes = bytes,
                              .tag = tag,
                              .tier = DSC_TIER_DEVICE,
                              .alloc = shm->alloc,
                              .mapped_bytes = region->bytes };
        } else {
            node_give(shm, region);
        }
        while (nodes != NULL) {
            dsc_shm_region *node = nodes;
            nodes = node->next;
            node_give(shm, node);
        }
        pthread_mutex_unlock(&shm->lock);
    }
    if (status != DSC_OK)
        dsc_alloc_unnote(shm->alloc, tag, DSC_TIER_DEVICE, counted);
    return status;
}

void dsc_shm_mem_close(dsc_transport *transport, dsc_buf *buf)
{
    dsc_shm *shm = (dsc_shm *)transport;
    pthread_mutex_lock(&shm->lock);
    dsc_shm_region **at = &shm->region;
    while (*at != NULL && (*at)->ptr != buf->ptr)
        at = &(*at)->next;
    dsc_shm_region *region = *at;
    DSC_ASSERT(region != NULL);
    *at = region->next;
    munmap(region->ptr, (size_t)region->bytes);
    /* The peers' windows keep the file alive; the hole gives the memory back now. */
    fallocate(shm->peer[shm->rank].heap, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, region->offset, region->bytes);
    node_give(shm, region);
    pthread_mutex_unlock(&shm->lock);
    dsc_alloc_unnote(shm->alloc, buf->tag, DSC_TIER_DEVICE, counted_bytes(buf->bytes));
    memset(buf, 0, sizeof *buf);
}

void dsc_shm_heap_close(dsc_shm *shm)
{
    DSC_ASSERT(shm->region == NULL); /* every buffer of dsc_comm_mem_open is closed before the communicator */
    for (int32_t r = 0; r < shm->size; r++) {
        nodes_free(shm, shm->peer[r].window);
        shm->peer[r].window = NULL;
    }
    nodes_free(shm, shm->spare);
    shm->spare = NULL;
}

void dsc_shm_locate(dsc_shm *shm, const void *ptr, int64_t bytes, int64_t read_bytes, dsc_shm_barrier_entry *entry)
{
    const uintptr_t p = (uintptr_t)ptr;
    entry->ptr = (uintptr_t)ptr;
    entry->kind = shm->reads_peers && read_bytes >= RAW_LEAST_BYTES ? DSC_SHM_BARRIER_RAW : DSC_SHM_BARRIER_STAGE;
    pthread_mutex_lock(&shm->lock);
    for (const dsc_shm_region *r = shm->region; r != NULL; r = r->next) {
        const uintptr_t start = (uintptr_t)r->ptr;
        if (p < start || p + (uintptr_t)bytes > start + (uintptr_t)r->bytes)
            continue;
        entry->kind = DSC_SHM_BARRIER_HEAP;
        entry->region_offset = r->offset;
        entry->region_bytes = r->bytes;
        entry->offset = (int64_t)(p - start);
        break;
    }
    pthread_mutex_unlock(&shm->lock);
}

/* Opens a new window. With the lock held. The entry of the peer is checked against its file. */
static dsc_status window_open(dsc_shm *shm, int32_t rank, const dsc_shm_barrier_entry *entry,
                              const dsc_shm_region **out, dsc_error *err)
{
    dsc_shm_peer *peer = &shm->peer[rank];
    dsc_shm_region *region = NULL;
    struct stat info;
    if (fstat(peer->heap, &info) != 0 || entry->region_bytes <= 0 || entry->region_offset < 0 ||
        entry->region_offset % PAGE != 0 || entry->region_bytes > info.st_size ||
        entry->region_offset > info.st_size - entry->region_bytes)
        return DSC_FAIL(err, DSC_ERR_COMM, "dsc.comm", "rank %d names shared memory that it does not have",
                        dsc_shm_barrier_calls(&shm->barrier, rank));
    DSC_TRY(node_take(shm, &region, err));
    void *ptr = mmap(NULL, (size_t)entry->region_bytes, PROT_READ, MAP_SHARED, peer->heap, entry->region_offset);
    if (ptr == MAP_FAILED) {
        node_give(shm, region);
        return DSC_FAIL(err, DSC_ERR_NOMEM, "dsc.comm", "cannot map %lld bytes of rank %d: %s",
                        (long long)entry->region_bytes, dsc_shm_barrier_calls(&shm->barrier, rank), strerror(errno));
    }
    *region = (dsc_shm_region){
        .next = peer->window, .ptr = ptr, .offset = entry->region_offset, .bytes = entry->region_bytes
    };
    peer->window = region;
    *out = region;
    return DSC_OK;
}

dsc_status dsc_shm_window(dsc_shm *shm, int32_t rank, const dsc_shm_barrier_entry *entry, int64_t at, const char **out,
                          dsc_error *err)
{
    pthread_mutex_lock(&shm->lock);
    const dsc_shm_region *region = rank == shm->rank ? shm->region : shm->peer[rank].window;
    while (region != NULL && (region->offset != entry->region_offset || region->bytes != entry->region_bytes))
        region = region->next;
    dsc_status status = DSC_OK;
    if (region == NULL)
        status = window_open(shm, rank, entry, &region, err);
    pthread_mutex_unlock(&shm->lock);
    if (status == DSC_OK)
        *out = region->ptr + entry->offset + at;
    return status;
}

static dsc_status read_raw(dsc_shm *shm, int32_t rank, const dsc_shm_barrier_entry *entry, int64_t at, char *to,
                           int64_t bytes, dsc_error *err)
{
    while (bytes > 0) {
        const uintptr_t address = (uintptr_t)entry->ptr + (uintptr_t)at;
        struct iovec mine = { .iov_base = to, .iov_len = (size_t)bytes }, theirs = { .iov_len = (size_t)bytes };
        memcpy(&theirs.iov_base, &address, sizeof address); /* not a valid pointer in this process */
        const ssize_t n = process_vm_readv(shm->peer[rank].pid, &mine, 1, &theirs, 1, 0);
        if (n <= 0) {
            const int why = n == 0 ? EIO : errno;
            if (why == EINTR)
                continue;
            const bool gone = why == ESRCH || !dsc_shm_alive(shm, rank);
            return dsc_shm_barrier_fail(
                &shm->barrier, gone ? DSC_ERR_PEER : DSC_ERR_COMM, rank, err,
                "rank %d (pid %d) %s while rank %d read %lld bytes of it: %s",
                dsc_shm_barrier_calls(&shm->barrier, rank), shm->peer[rank].pid, gone ? "is gone" : "cannot be read",
                dsc_shm_barrier_calls(&shm->barrier, shm->rank), (long long)bytes, strerror(why));
        }
        to += n;
        at += n;
        bytes -= n;
    }
    return DSC_OK;
}

dsc_status dsc_shm_read(dsc_shm *shm, int32_t rank, const dsc_shm_barrier_entry *entry, int64_t at, void *to,
                        int64_t bytes, bool past_cache, dsc_error *err)
{
    const char *from = NULL;
    if (bytes == 0)
        return DSC_OK;
    if (entry->kind == DSC_SHM_BARRIER_RAW)
        return read_raw(shm, rank, entry, at, to, bytes, err);
    DSC_TRY(dsc_shm_window(shm, rank, entry, at, &from, err));
    dsc_copy_bytes(to, from, bytes, past_cache);
    return DSC_OK;
}
