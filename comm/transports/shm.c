/* shm.c - ranks as processes of one host: collectives over shared memory.
 *
 * The entry of a rank gives one of three ways to read its data:
 *
 *   HEAP   memory that peers map: one copy, or none if a sum is reduced from it
 *   RAW    read from its address space by a system call: one copy
 *   STAGE  copied chunk by chunk into its staging halves: two copies, no system call, one barrier a chunk
 *
 * Everybody reads every entry, so all know the number of barriers of an operation. There are as many as the longest
 * staged sender has chunks. One more follows when somebody was read in place, because nobody may continue before all
 * have read.
 *
 * Staging is expensive when ranks have a core each, since every line changes its core twice (512 KiB of a reduce-
 * scatter: 275 us, pulled 83). So staging serves short messages and systems that forbid reading peers. A chunk needs no
 * second barrier, because the halves alternate with the generation of the barrier (shm_barrier.h).
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "comm/copy.h"
#include "comm/transports/shm_internal.h"

/* Entries of all ranks in one operation. They are copied: peers reuse their entries two barriers later. */
typedef struct all_entries {
    dsc_shm_barrier_entry entry[DSC_SHM_BARRIER_RANKS_MAX];
    bool any_staged, any_direct;
} all_entries;

static dsc_status enter(dsc_shm *shm, int32_t channel, const dsc_shm_barrier_entry *mine, all_entries *out,
                        dsc_error *err)
{
    DSC_TRY(dsc_shm_barrier_wait(&shm->barrier, channel, mine, err));
    out->any_staged = out->any_direct = false;
    for (int32_t r = 0; r < shm->size; r++) {
        out->entry[r] = *dsc_shm_barrier_peer_entry(&shm->barrier, channel, r);
        out->any_staged |= out->entry[r].kind == DSC_SHM_BARRIER_STAGE;
        out->any_direct |= out->entry[r].kind != DSC_SHM_BARRIER_STAGE;
    }
    return DSC_OK;
}

static char *half_to_fill(const dsc_shm *shm, int32_t channel)
{
    return dsc_shm_staging(shm, channel, shm->rank, dsc_shm_barrier_parity(&shm->barrier, channel));
}

static const char *half_to_read(const dsc_shm *shm, int32_t channel, int32_t rank)
{
    return dsc_shm_staging(shm, channel, rank, 1 - dsc_shm_barrier_parity(&shm->barrier, channel));
}

/* ---- all_gather and broadcast ------------------------------------------------------------------------------------ */

/* Bytes of chunk k of a message, 0 past its end. */
static int64_t chunk_bytes(int64_t bytes, int64_t chunk, int64_t k)
{
    return dsc_max_i64(0, dsc_min_i64(chunk, bytes - k * chunk));
}

static dsc_status gather_from(dsc_shm *shm, int32_t channel, const all_entries *a, int32_t from, char *to,
                              int64_t bytes, int64_t k, bool past_cache, dsc_error *err)
{
    if (a->entry[from].kind != DSC_SHM_BARRIER_STAGE)
        return k > 0 ? DSC_OK : dsc_shm_read(shm, from, &a->entry[from], 0, to, bytes, past_cache, err);
    dsc_copy_bytes(to + k * shm->half_bytes, half_to_read(shm, channel, from), chunk_bytes(bytes, shm->half_bytes, k),
                   past_cache);
    return DSC_OK;
}

dsc_status dsc_shm_gather(dsc_shm *shm, int32_t channel, const dsc_call_record *call, char *recv, const char *send,
                          int64_t bytes, dsc_error *err)
{
    dsc_shm_barrier_entry mine = { .call = *call };
    all_entries a;
    const bool past_cache = bytes * shm->size >= DSC_COPY_PAST_CACHE_BYTES;
    dsc_shm_locate(shm, send, bytes, bytes, &mine);
    const bool staged = mine.kind == DSC_SHM_BARRIER_STAGE;
    if (staged)
        dsc_copy_bytes(half_to_fill(shm, channel), send, chunk_bytes(bytes, shm->half_bytes, 0), false);
    DSC_TRY(enter(shm, channel, &mine, &a, err));
    dsc_copy_bytes(recv + shm->rank * bytes, send, bytes, past_cache);
    const int64_t chunk_count = a.any_staged ? dsc_max_i64(1, dsc_div_ceil(bytes, shm->half_bytes)) : 1;
    for (int64_t k = 0; k < chunk_count; k++) {
        if (k > 0)
            DSC_TRY(dsc_shm_barrier_wait(&shm->barrier, channel, NULL, err));
        for (int32_t i = 1; i < shm->size; i++) {
            const int32_t r = (shm->rank + i) % shm->size; /* not all from the same rank at once */
            DSC_TRY(gather_from(shm, channel, &a, r, recv + r * bytes, bytes, k, past_cache, err));
        }
        if (staged)
            dsc_copy_bytes(half_to_fill(shm, channel), send + (k + 1) * shm->half_bytes,
                           chunk_bytes(bytes, shm->half_bytes, k + 1), false);
    }
    return a.any_direct ? dsc_shm_barrier_wait(&shm->barrier, channel, NULL, err) : DSC_OK;
}

dsc_status dsc_shm_spread(dsc_shm *shm, int32_t channel, const dsc_call_record *call, char *buf, int64_t bytes,
                          int32_t root, dsc_error *err)
{
    dsc_shm_barrier_entry mine = { .call = *call };
    all_entries a;
    const bool past_cache = bytes >= DSC_COPY_PAST_CACHE_BYTES, am_root = shm->rank == root;
    if (am_root)
        dsc_shm_locate(shm, buf, bytes, bytes, &mine);
    if (am_root && mine.kind == DSC_SHM_BARRIER_STAGE)
        dsc_copy_bytes(half_to_fill(shm, channel), buf, chunk_bytes(bytes, shm->half_bytes, 0), false);
    DSC_TRY(enter(shm, channel, &mine, &a, err));
    const bool staged = a.entry[root].kind == DSC_SHM_BARRIER_STAGE;
    const int64_t chunk_count = staged ? dsc_max_i64(1, dsc_div_ceil(bytes, shm->half_bytes)) : 1;
    for (int64_t k = 0; k < chunk_count; k++) {
        if (k > 0)
            DSC_TRY(dsc_shm_barrier_wait(&shm->barrier, channel, NULL, err));
        if (!am_root)
            DSC_TRY(gather_from(shm, channel, &a, root, buf, bytes, k, past_cache, err));
        else if (staged)
            dsc_copy_bytes(half_to_fill(shm, channel), buf + (k + 1) * shm->half_bytes,
                           chunk_bytes(bytes, shm->half_bytes, k + 1), false);
    }
    return staged ? DSC_OK : dsc_shm_barrier_wait(&shm->barrier, channel, NULL, err);
}

/* ---- all_to_all -------------------------------------------------------------------------------------------------- */

/* A half is cut into one piece per receiver. */
static int64_t piece_capacity(const dsc_shm *shm) { return shm->half_bytes / shm->size / 64 * 64; }

static void stage_pieces(dsc_shm *shm, int32_t channel, const char *send, int64_t bytes, int64_t k)
{
    const int64_t capacity = piece_capacity(shm);
    char *half = half_to_fill(shm, channel);
    for (int32_t r = 0; r < shm->size; r++)
        if (r != shm->rank)
            dsc_copy_bytes(half + r * capacity, send + r * bytes + k * capacity, chunk_bytes(bytes, capacity, k),
                           false);
}

static dsc_status exchange_from(dsc_shm *shm, int32_t channel, const all_entries *a, int32_t from, char *to,
                                int64_t bytes, int64_t k, bool past_cache, dsc_error *err)
{
    const int64_t capacity = piece_capacity(shm);
    if (a->entry[from].kind != DSC_SHM_BARRIER_STAGE)
        return k > 0 ? DSC_OK : dsc_shm_read(shm, from, &a->entry[from], shm->rank * bytes, to, bytes, past_cache, err);
    dsc_copy_bytes(to + k * capacity, half_to_read(shm, channel, from) + shm->rank * capacity,
                   chunk_bytes(bytes, capacity, k), past_cache);
    return DSC_OK;
}

dsc_status dsc_shm_exchange(dsc_shm *shm, int32_t channel, const dsc_call_record *call, char *recv, const char *send,
                            int64_t bytes, dsc_error *err)
{
    dsc_shm_barrier_entry mine = { .call = *call };
    all_entries a;
    const bool past_cache = bytes * shm->size >= DSC_COPY_PAST_CACHE_BYTES;
    dsc_shm_locate(shm, send, bytes * shm->size, bytes, &mine);
    const bool staged = mine.kind == DSC_SHM_BARRIER_STAGE;
    if (staged)
        stage_pieces(shm, channel, send, bytes, 0);
    DSC_TRY(enter(shm, channel, &mine, &a, err));
    dsc_copy_bytes(recv + shm->rank * bytes, send + shm->rank * bytes, bytes, past_cache);
    const int64_t chunk_count = a.any_staged ? dsc_max_i64(1, dsc_div_ceil(bytes, piece_capacity(shm))) : 1;
    for (int64_t k = 0; k < chunk_count; k++) {
        if (k > 0)
            DSC_TRY(dsc_shm_barrier_wait(&shm->barrier, channel, NULL, err));
        for (int32_t i = 1; i < shm->size; i++) {
            const int32_t r = (shm->rank + i) % shm->size;
            DSC_TRY(exchange_from(shm, channel, &a, r, recv + r * bytes, bytes, k, past_cache, err));
        }
        if (staged)
            stage_pieces(shm, channel, send, bytes, k + 1);
    }
    return a.any_direct ? dsc_shm_barrier_wait(&shm->barrier, channel, NULL, err) : DSC_OK;
}

/* ---- reduce_scatter ---------------------------------------------------------------------------------------------- */

/* One reduction cut into chunks of `most` elements per owner. */
typedef struct reduction {
    const dsc_reduce_scatter_args *args;
    int64_t wire_bytes, most, capacity;
} reduction;

static int64_t chunk_elements(const reduction *r, int64_t k) { return chunk_bytes(r->args->count, r->most, k); }

/* Casts chunk k of the pieces into the half to fill. The own piece is staged too when it needs rounding, so that all
 * leaves of a fold have one dtype; in fp32 it is folded where it lies. */
static dsc_status stage_leaves(dsc_shm *shm, int32_t channel, const reduction *red, int64_t k, dsc_error *err)
{
    const dsc_reduce_scatter_args *args = red->args;
    const int64_t count = chunk_elements(red, k);
    char *half = half_to_fill(shm, channel);
    for (int32_t i = 1; i <= shm->size; i++) {
        const int32_t r = (shm->rank + i) % shm->size;
        if (count > 0 && (r != shm->rank || args->wire_dtype != DSC_F32))
            DSC_TRY(dsc_comm_cast(&shm->math, half + r * red->capacity, args->wire_dtype,
                                  args->leaf + r * args->leaf_stride + k * red->most, count, NULL, err));
    }
    return DSC_OK;
}

static dsc_status fold_staged(dsc_shm *shm, int32_t channel, const reduction *red, int64_t k, dsc_error *err)
{
    const dsc_reduce_scatter_args *args = red->args;
    const void *leaf[DSC_SHM_BARRIER_RANKS_MAX];
    if (args->count == 0)
        return DSC_OK;
    for (int32_t r = 0; r < shm->size; r++)
        leaf[r] = half_to_read(shm, channel, r) + shm->rank * red->capacity;
    if (args->wire_dtype == DSC_F32)
        leaf[shm->rank] = args->leaf + shm->rank * args->leaf_stride + k * red->most;
    const dsc_comm_parts leaves = { .each = leaf, .dtype = args->wire_dtype, .count = shm->size };
    return dsc_comm_ordered_reduce(&shm->math, args, &leaves, k * red->most, chunk_elements(red, k), NULL, err);
}

/* Bytes that are read from other address spaces before they are folded. Measured from 64 KiB to 1 MiB: fewer cost
 * system calls, more leave the second-level cache. */
#define PULL_BYTES (INT64_C(512) << 10)

/* leaf[r] <- address of element `first` of rank r's piece for this rank. Data of another address space is first
 * pulled into the half to fill, which nobody reads before this rank fills it for a later barrier. */
static dsc_status reach_leaves(dsc_shm *shm, int32_t channel, const dsc_reduce_scatter_args *args, const all_entries *a,
                               int64_t first, int64_t count, const void **leaf, dsc_error *err)
{
    for (int32_t i = 0; i < shm->size; i++) {
        const int32_t r = (shm->rank + i) % shm->size;
        const int64_t at = shm->rank * a->entry[r].stride + first * (int64_t)sizeof(float);
        const char *there = (const char *)args->leaf + at;
        char *pulled = half_to_fill(shm, channel) + r * piece_capacity(shm);
        if (r != shm->rank && a->entry[r].kind == DSC_SHM_BARRIER_HEAP)
            DSC_TRY(dsc_shm_window(shm, r, &a->entry[r], at, &there, err));
        if (r != shm->rank && a->entry[r].kind == DSC_SHM_BARRIER_RAW) {
            DSC_TRY(dsc_shm_read(shm, r, &a->entry[r], at, pulled, count * (int64_t)sizeof(float), false, err));
            there = pulled;
        }
        leaf[r] = there;
    }
    return DSC_OK;
}

/* Nobody staged anything: unrounded leaves are folded where they lie, or right after they were pulled. */
static dsc_status fold_in_place(dsc_shm *shm, int32_t channel, const dsc_reduce_scatter_args *args,
                                const all_entries *a, dsc_error *err)
{
    const void *leaf[DSC_SHM_BARRIER_RANKS_MAX];
    int64_t most = args->count;
    for (int32_t r = 0; r < shm->size; r++)
        if (r != shm->rank && a->entry[r].kind == DSC_SHM_BARRIER_RAW)
            most = dsc_min_i64(piece_capacity(shm), dsc_max_i64(PULL_BYTES / shm->size, DSC_SHM_PIECE_LEAST)) /
                   (int64_t)sizeof(float);
    for (int64_t first = 0; first < args->count; first += most) {
        const int64_t count = dsc_min_i64(most, args->count - first);
        DSC_TRY(reach_leaves(shm, channel, args, a, first, count, leaf, err));
        const dsc_comm_parts leaves = { .each = leaf, .dtype = DSC_F32, .count = shm->size };
        DSC_TRY(dsc_comm_ordered_reduce(&shm->math, args, &leaves, first, count, NULL, err));
    }
    return dsc_shm_barrier_wait(&shm->barrier, channel, NULL, err);
}

static dsc_status reduce(dsc_shm *shm, int32_t channel, const dsc_call_record *call,
                         const dsc_reduce_scatter_args *args, dsc_error *err)
{
    const int64_t wire_bytes = (int64_t)dsc_dtype_bytes(args->wire_dtype), capacity = piece_capacity(shm);
    const reduction red = {
        .args = args, .wire_bytes = wire_bytes, .most = capacity / wire_bytes, .capacity = capacity
    };
    const int64_t grad_part_bytes = ((shm->size - 1) * args->leaf_stride + args->count) * (int64_t)sizeof(float);
    dsc_shm_barrier_entry mine = { .call = *call, .stride = args->leaf_stride * (int64_t)sizeof(float) };
    all_entries a;
    dsc_shm_locate(shm, args->leaf, grad_part_bytes, args->count * (int64_t)sizeof(float), &mine);
    if (mine.kind == DSC_SHM_BARRIER_STAGE)
        DSC_TRY(stage_leaves(shm, channel, &red, 0, err));
    DSC_TRY(enter(shm, channel, &mine, &a, err));
    if (!a.any_staged)
        return fold_in_place(shm, channel, args, &a, err);
    if (a.any_direct) { /* some can only stage: so do all, from the start */
        DSC_TRY(stage_leaves(shm, channel, &red, 0, err));
        DSC_TRY(dsc_shm_barrier_wait(&shm->barrier, channel, NULL, err));
    }
    const int64_t chunk_count = dsc_max_i64(1, dsc_div_ceil(args->count, red.most));
    for (int64_t k = 0; k < chunk_count; k++) {
        if (k > 0)
            DSC_TRY(dsc_shm_barrier_wait(&shm->barrier, channel, NULL, err));
        if (k + 1 < chunk_count)
            DSC_TRY(stage_leaves(shm, channel, &red, k + 1, err));
        DSC_TRY(fold_staged(shm, channel, &red, k, err));
    }
    return DSC_OK;
}

/* ---- mail -------------------------------------------------------------------------------------------------------- */

/* Mail uses only the half to fill: peers may still read the other one from the last meet. */
dsc_status dsc_shm_give(dsc_shm *shm, int32_t channel, const char *buf, int64_t bytes, int32_t to, dsc_error *err)
{
    dsc_shm_barrier_entry entry = { .call = { .op = DSC_COMM_SEND, .bytes = bytes } };
    const uint32_t half = dsc_shm_barrier_parity(&shm->barrier, channel);
    dsc_shm_locate(shm, buf, bytes, bytes, &entry);
    if (entry.kind != DSC_SHM_BARRIER_STAGE)
        return dsc_shm_barrier_post(&shm->barrier, channel, to, &entry, err);
    entry.half = (int32_t)half;
    for (int64_t done = 0; done == 0 || done < bytes; done += shm->half_bytes) {
        dsc_copy_bytes(half_to_fill(shm, channel), buf + done, dsc_min_i64(shm->half_bytes, bytes - done), false);
        DSC_TRY(dsc_shm_barrier_post(&shm->barrier, channel, to, &entry, err));
    }
    return DSC_OK;
}

dsc_status dsc_shm_receive(dsc_shm *shm, int32_t channel, char *buf, int64_t bytes, int32_t from, dsc_error *err)
{
    const bool past_cache = bytes >= DSC_COPY_PAST_CACHE_BYTES;
    for (int64_t done = 0; done == 0 || done < bytes; done += shm->half_bytes) {
        const dsc_shm_barrier_entry *posted = NULL;
        DSC_TRY(dsc_shm_barrier_await(&shm->barrier, channel, from, bytes, &posted, err));
        const dsc_shm_barrier_entry entry = *posted;
        if (entry.kind == DSC_SHM_BARRIER_STAGE)
            dsc_copy_bytes(buf + done, dsc_shm_staging(shm, channel, from, (uint32_t)entry.half & 1u),
                           dsc_min_i64(shm->half_bytes, bytes - done), past_cache);
        else
            DSC_TRY(dsc_shm_read(shm, from, &entry, 0, buf, bytes, past_cache, err));
        dsc_shm_barrier_received(&shm->barrier, channel, from);
        if (entry.kind != DSC_SHM_BARRIER_STAGE)
            break;
    }
    return DSC_OK;
}

/* ---- hooks ------------------------------------------------------------------------------------------------------- */

/* A failure that only one rank sees (no memory, invalid data of a peer) must reach the ranks that wait for it. */
static dsc_status ended(dsc_shm *shm, int32_t channel, dsc_status status, const dsc_error *why, dsc_error *err)
{
    if (status != DSC_OK) {
        dsc_shm_barrier_fail(&shm->barrier, DSC_ERR_PEER, shm->rank, NULL, "rank %d failed in a collective: %.240s",
                             dsc_shm_barrier_calls(&shm->barrier, shm->rank), why->message);
        if (err != NULL)
            *err = *why;
    }
    dsc_shm_barrier_end(&shm->barrier, channel);
    return status;
}

/* Every hook: begin, the operation, end. */
#define SHM_HOOK(OP, DETAIL, BYTES, work)                                                                              \
    dsc_shm *shm = (dsc_shm *)transport;                                                                               \
    const dsc_call_record call = { .op = (OP), .detail = (DETAIL), .bytes = (BYTES) };                                 \
    dsc_error own_ = DSC_ERROR_INIT, *why = &own_;                                                                     \
    dsc_status status = dsc_shm_barrier_begin(&shm->barrier, channel, &call, why);                                     \
    if (status == DSC_OK)                                                                                              \
        status = work;                                                                                                 \
    return ended(shm, channel, status, why, err)

static dsc_status shm_all_gather(dsc_transport *transport, int32_t channel, void *recv, const void *send, int64_t bytes,
                                 dsc_stream *stream, dsc_error *err)
{
    SHM_HOOK(DSC_COMM_ALL_GATHER, 0, bytes, dsc_shm_gather(shm, channel, &call, recv, send, bytes, why));
}

static dsc_status shm_all_to_all(dsc_transport *transport, int32_t channel, void *recv, const void *send, int64_t bytes,
                                 dsc_stream *stream, dsc_error *err)
{
    SHM_HOOK(DSC_COMM_ALL_TO_ALL, 0, bytes, dsc_shm_exchange(shm, channel, &call, recv, send, bytes, why));
}

static dsc_status shm_broadcast(dsc_transport *transport, int32_t channel, void *buf, int64_t bytes, int32_t root,
                                dsc_stream *stream, dsc_error *err)
{
    SHM_HOOK(DSC_COMM_BROADCAST, root, bytes, dsc_shm_spread(shm, channel, &call, buf, bytes, root, why));
}

static dsc_status shm_barrier(dsc_transport *transport, int32_t channel, dsc_stream *stream, dsc_error *err)
{
    const dsc_shm_barrier_entry entry = { .call.op = DSC_COMM_BARRIER };
    SHM_HOOK(DSC_COMM_BARRIER, 0, 0, dsc_shm_barrier_wait(&shm->barrier, channel, &entry, why));
}

static dsc_status shm_send(dsc_transport *transport, int32_t channel, const void *buf, int64_t bytes, int32_t to,
                           dsc_stream *stream, dsc_error *err)
{
    SHM_HOOK(DSC_COMM_SEND, 0, bytes, dsc_shm_give(shm, channel, buf, bytes, to, why));
}

static dsc_status shm_recv(dsc_transport *transport, int32_t channel, void *buf, int64_t bytes, int32_t from,
                           dsc_stream *stream, dsc_error *err)
{
    SHM_HOOK(DSC_COMM_RECV, 0, bytes, dsc_shm_receive(shm, channel, buf, bytes, from, why));
}

static dsc_status shm_reduce_scatter(dsc_transport *transport, int32_t channel, const dsc_reduce_scatter_args *args,
                                     dsc_stream *stream, dsc_error *err)
{
    SHM_HOOK(DSC_COMM_REDUCE_SCATTER, (int32_t)args->wire_dtype,
             args->count * (int64_t)dsc_dtype_bytes(args->wire_dtype), reduce(shm, channel, &call, args, why));
}

static dsc_status shm_health(dsc_transport *transport, dsc_error *err)
{
    return dsc_shm_barrier_health(&((dsc_shm *)transport)->barrier, err);
}

static void shm_abort(dsc_transport *transport, const char *reason)
{
    dsc_shm *shm = (dsc_shm *)transport;
    dsc_shm_barrier_fail(&shm->barrier, DSC_ERR_PEER, shm->rank, NULL, "%s", reason);
}

static dsc_status shm_open_table(dsc_transport **out, const dsc_comm_options *options, dsc_error *err)
{
    return dsc_shm_open(&dsc_comm_shm, out, options, err);
}

const dsc_comm_ops dsc_comm_shm = {
    .name = "shm",
    .version = DSC_COMM_OPS_VERSION,
    .list_needs = dsc_shm_list_needs,
    .open = shm_open_table,
    .close = dsc_shm_close,
    .all_gather = shm_all_gather,
    .all_to_all = shm_all_to_all,
    .broadcast = shm_broadcast,
    .barrier = shm_barrier,
    .send = shm_send,
    .recv = shm_recv,
    .reduce_scatter = shm_reduce_scatter,
    .mem_open = dsc_shm_mem_open,
    .mem_close = dsc_shm_mem_close,
    .health = shm_health,
    .abort = shm_abort,
};
