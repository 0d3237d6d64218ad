/* reform.c - the states of a new engine from the copies that the ranks of its world carry (carried.h).
 *
 * All ranks learn of all copies. They agree on the newest step of which each rank's slices are somewhere. Then every
 * range of an old slice that overlaps a new one goes from the first rank that carries it to its new owner, in one order
 * on all ranks. Nothing is converted, so the states have the bits of the copies.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "engine/carried.h"
#include "engine/device.h"
#include "engine/init_values.h"
#include "engine/internal.h"

#define MESSAGE_BYTES (INT64_C(1) << 20) /* longest message with states */
#define COPIES (DSC_CARRIED_LINKS_MAX * DSC_STATE_COPIES_MAX) /* most copies of a rank */

/* The copies of all ranks, and those that are taken. */
typedef struct reform {
    dsc_engine *engine;
    const dsc_carried *own;   /* may be NULL */
    dsc_state_header *header; /* [W][COPIES] */
    int32_t *holder;          /* [old W] index in `header` of the copy of each old rank; -1: none */
    int32_t old_world;
} reform;

static int32_t rank_of(int32_t index) { return index / COPIES; }

static const dsc_state_copy *own_copy(const reform *f, int32_t index)
{
    DSC_ASSERT(rank_of(index) == f->engine->place.rank);
    return dsc_carried_copy(f->own, index % COPIES);
}

/* ---- which copies ---- */

static dsc_status gather_headers(reform *f, dsc_error *err)
{
    const int32_t size = f->engine->place.size;
    dsc_state_header mine[COPIES];
    memset(mine, 0, sizeof mine);
    for (int32_t i = 0; i < COPIES; i++)
        if (dsc_carried_copy(f->own, i) != NULL)
            mine[i] = dsc_carried_copy(f->own, i)->header;
    DSC_TRY(dsc_alloc_zeroed(f->engine->alloc, DSC_TAG_CONTROL, (int64_t)size * COPIES, sizeof *f->header, &f->header,
                             err));
    return dsc_comm_all_gather(f->engine->comms.all, DSC_CHANNEL_CONTROL, f->header, mine, (int64_t)sizeof mine, DSC_U8,
                               NULL, err);
}

/* The holders of the slices after a step, and the first old rank whose slices are nowhere; -1: all are there. */
static int32_t find_holders(reform *f, int64_t step, int32_t old_world)
{
    const int32_t count = f->engine->place.size * COPIES;
    f->old_world = old_world;
    for (int32_t r = 0; r < old_world; r++) {
        f->holder[r] = -1;
        for (int32_t i = 0; i < count && f->holder[r] < 0; i++)
            if (f->header[i].bytes > 0 && f->header[i].step == step && f->header[i].rank == r &&
                f->header[i].world_size == old_world)
                f->holder[r] = i;
        if (f->holder[r] < 0)
            return r;
    }
    return -1;
}

static dsc_status choose_step(reform *f, dsc_error *err)
{
    const int32_t count = f->engine->place.size * COPIES;
    int32_t lost = -1, largest = 0;
    int64_t before = INT64_MAX, newest = -1;
    for (int32_t i = 0; i < count; i++)
        largest = f->header[i].bytes > 0 && f->header[i].world_size > largest ? f->header[i].world_size : largest;
    if (largest == 0)
        return DSC_FAIL(err, DSC_ERR_STATE, "carried", "no rank of this world carries states; load a checkpoint");
    DSC_TRY(dsc_alloc_zeroed(f->engine->alloc, DSC_TAG_CONTROL, largest, sizeof *f->holder, &f->holder, err));
    for (;;) { /* from the newest step back */
        int32_t of = -1;
        for (int32_t i = 0; i < count; i++)
            if (f->header[i].bytes > 0 && f->header[i].step < before &&
                (of < 0 || f->header[i].step > f->header[of].step))
                of = i;
        if (of < 0)
            return DSC_FAIL(
                err, DSC_ERR_PEER, "carried",
                "the slices of rank %d after step %lld are lost with the ranks that had them; load the last "
                "checkpoint",
                (int)lost, (long long)newest);
        before = f->header[of].step;
        const int32_t missing = find_holders(f, before, f->header[of].world_size);
        if (missing < 0)
            return DSC_OK;
        if (newest < 0) {
            newest = before;
            lost = missing;
        }
    }
}

static dsc_status check_copies(const reform *f, dsc_error *err)
{
    dsc_engine *const engine = f->engine;
    dsc_state_header now;
    dsc_state_header_fill(engine, &now);
    const int64_t bytes = dsc_state_copy_bytes(engine, f->old_world);
    for (int32_t r = 0; r < f->old_world; r++) {
        const dsc_state_header *header = &f->header[f->holder[r]];
        if (header->bytes != bytes || memcmp(&header->identity, &now.identity, sizeof now.identity) != 0)
            return DSC_FAIL(err, DSC_ERR_INPUT, "carried",
                            "rank %d carries states of another model, optimizer, precision, seed or batch than this "
                            "engine's config has; open it with the config of the run",
                            (int)rank_of(f->holder[r]));
    }
    return DSC_OK;
}

/* ---- moving ---- */

static dsc_status put(const reform *f, const dsc_state_part *part, int64_t first, int64_t count, const char *from,
                      dsc_error *err)
{
    for (int64_t done = 0, now; done < count; done += now) {
        void *to;
        now = count - done;
        DSC_TRY(dsc_state_part_view(f->engine, part, first + done, &now, true, &to, err));
        DSC_TRY(dsc_copy(f->engine->compute, to, from + done / part->unit * part->unit_bytes,
                         now / part->unit * part->unit_bytes, err));
        DSC_TRY(dsc_stream_sync(f->engine->compute, err));
    }
    return DSC_OK;
}

/* Elements [first, end) of the group from old rank `from` to new rank `to`. */
static dsc_status move(const reform *f, const dsc_state_part *old, const dsc_state_part *new, int64_t first,
                       int64_t end, int32_t from, int32_t to, dsc_error *err)
{
    const dsc_engine *engine = f->engine;
    const int32_t rank = engine->place.rank, holder = rank_of(f->holder[from]);
    const int64_t most = dsc_min_i64(MESSAGE_BYTES, engine->io_buf.bytes) / 8 / DSC_Q8_BLOCK * DSC_Q8_BLOCK;
    if (rank != holder && rank != to)
        return DSC_OK;
    for (int64_t count; first < end; first += count) {
        count = dsc_min_i64(most, end - first);
        const int64_t bytes = count / old->unit * old->unit_bytes;
        const char *data = engine->io_buf.ptr;
        if (rank == holder)
            data = own_copy(f, f->holder[from])->data + old->at +
                   (first - from * old->slice) / old->unit * old->unit_bytes;
        if (rank == holder && rank != to)
            DSC_TRY(dsc_comm_send(engine->comms.all, DSC_CHANNEL_CONTROL, data, bytes, to, NULL, err));
        else if (rank != holder)
            DSC_TRY(
                dsc_comm_recv(engine->comms.all, DSC_CHANNEL_CONTROL, engine->io_buf.ptr, bytes, holder, NULL, err));
        if (rank == to)
            DSC_TRY(put(f, new, first - to * new->slice, count, data, err));
    }
    return DSC_OK;
}

static dsc_status move_part(const reform *f, int32_t index, dsc_error *err)
{
    const int32_t size = f->engine->place.size;
    dsc_state_part old, new;
    const bool found =
        dsc_state_part_get(f->engine, f->old_world, index, &old) && dsc_state_part_get(f->engine, size, index, &new);
    DSC_ASSERT(found && old.group == new.group &&old.unit_bytes == new.unit_bytes);
    for (int32_t from = 0; from < f->old_world; from++)
        for (int32_t to = 0; to < size; to++) {
            const int64_t first = dsc_max_i64(from * old.slice, to * new.slice);
            const int64_t end = dsc_min_i64(dsc_min_i64((from + 1) * old.slice, (to + 1) * new.slice), old.elements);
            if (first < end)
                DSC_TRY(move(f, &old, &new, first, end, from, to, err));
        }
    return DSC_OK;
}

/* Values that all ranks have alike, from the first holder. */
static dsc_status spread_shared(const reform *f, dsc_error *err)
{
    dsc_engine *const engine = f->engine;
    const int32_t holder = rank_of(f->holder[0]);
    const int64_t bytes = dsc_state_shared_bytes(engine);
    char *shared = NULL;
    DSC_TRY(dsc_alloc_zeroed(engine->alloc, DSC_TAG_CONTROL, bytes, 1, &shared, err));
    if (engine->place.rank == holder)
        memcpy(shared, own_copy(f, f->holder[0])->data + dsc_state_slice_bytes(engine, f->old_world), (size_t)bytes);
    const dsc_status status =
        dsc_comm_broadcast(engine->comms.all, DSC_CHANNEL_CONTROL, shared, bytes, holder, NULL, err);
    if (status == DSC_OK)
        dsc_state_set_shared(engine, shared);
    dsc_alloc_free(engine->alloc, shared);
    return status;
}

static dsc_status move_all(const reform *f, dsc_error *err)
{
    dsc_state_part part;
    for (int32_t i = 0; dsc_state_part_get(f->engine, f->engine->place.size, i, &part); i++)
        DSC_TRY(move_part(f, i, err));
    return spread_shared(f, err);
}

/* ---- the engine goes on ---- */

/* Other algorithms, measured anew, would give other bits. */
static dsc_status spread_plans(const reform *f, dsc_error *err)
{
    dsc_engine *const engine = f->engine;
    const int32_t holder = rank_of(f->holder[0]);
    const bool mine = engine->place.rank == holder && f->own->gemm_plans != NULL;
    int64_t bytes = mine ? (int64_t)strlen(f->own->gemm_plans) + 1 : 0;
    char *text = NULL;
    DSC_TRY(
        dsc_comm_broadcast(engine->comms.all, DSC_CHANNEL_CONTROL, &bytes, (int64_t)sizeof bytes, holder, NULL, err));
    if (bytes == 0)
        return DSC_OK;
    DSC_TRY(dsc_alloc_zeroed(engine->alloc, DSC_TAG_CONTROL, bytes, 1, &text, err));
    if (mine)
        memcpy(text, f->own->gemm_plans, (size_t)bytes);
    dsc_status status = dsc_comm_broadcast(engine->comms.all, DSC_CHANNEL_CONTROL, text, bytes, holder, NULL, err);
    if (status == DSC_OK)
        status = dsc_engine_set_plans(engine, text, err);
    dsc_alloc_free(engine->alloc, text);
    return status;
}

static dsc_status go_on(const reform *f, dsc_error *err)
{
    dsc_engine *const engine = f->engine;
    const dsc_state_header *header = &f->header[f->holder[0]];
    DSC_TRY(spread_plans(f, err));
    DSC_TRY(dsc_engine_init_packed(engine, err));
    dsc_zero_set_averages(engine->zero, header->averages);
    DSC_TRY(dsc_engine_give_buffers(engine, err));
    DSC_TRY(dsc_zero_publish(engine->zero, err));
    engine->values_due = false;
    engine->progress.step = header->step;
    engine->progress.update_count = header->update_count;
    engine->progress.skipped_in_row = header->skipped_in_row;
    engine->progress.loss_scaler = header->loss_scaler;
    engine->progress.lr_override = header->lr_override;
    engine->input.skips = header->skips;
    engine->spikes.watch = header->spikes;
    if (engine->place.rank == 0)
        dsc_log_printf(&engine->log, DSC_LOG_INFO, "reform: %d ranks go on at step %lld with the states of %d ranks",
                       (int)engine->place.size, (long long)header->step + 1, (int)f->old_world);
    if (engine->input.reader == NULL)
        return DSC_OK;
    return dsc_reader_seek(engine->input.reader, header->step, &engine->input.skips, err);
}

dsc_status dsc_engine_load_carried(dsc_engine *engine, const dsc_carried *carried, dsc_error *err)
{
    reform f = { .engine = engine, .own = carried };
    dsc_status status = DSC_OK;
    DSC_TRY(dsc_engine_check_carried(engine, err));
    DSC_TRY_OUT(gather_headers(&f, err));
    DSC_TRY_OUT(choose_step(&f, err));
    DSC_TRY_OUT(check_copies(&f, err));
    DSC_TRY_OUT(move_all(&f, err));
    DSC_TRY_OUT(go_on(&f, err));
out:
    dsc_alloc_free(engine->alloc, f.holder);
    dsc_alloc_free(engine->alloc, f.header);
    return status;
}
