/* mirror.c - see mirror.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/mirror.h"

#include "engine/carried.h"
#include "engine/device.h"
#include "engine/internal.h"

enum { OWN = 0, BEFORE = 2, COPIES = 4 }; /* first copies of this rank and of the rank before it */

static bool is_used(const dsc_engine *engine) { return engine->config.own.mirror_every > 0 && engine->place.size > 1; }

int64_t dsc_engine_mirror_bytes(const dsc_engine *engine)
{
    return is_used(engine) ? COPIES * dsc_state_copy_bytes(engine, engine->layout.world_size) : 0;
}

dsc_status dsc_engine_open_mirror(dsc_engine *engine, dsc_error *err)
{
    dsc_engine_mirror *const m = &engine->mirror;
    if (!is_used(engine))
        return DSC_OK;
    DSC_TRY(dsc_engine_check_carried(engine, err));
    DSC_TRY(dsc_carried_open(engine, &m->carried, err));
    const int64_t bytes = dsc_state_copy_bytes(engine, engine->layout.world_size);
    for (int i = 0; i < COPIES; i++)
        DSC_TRY(dsc_carried_open_copy(m->carried, i, bytes, err));
    DSC_TRY(dsc_alloc_note(engine->alloc, DSC_TAG_MIRROR, DSC_TIER_HOST, COPIES * bytes, err));
    m->noted_bytes = COPIES * bytes;
    return DSC_OK;
}

static void forget_bytes(dsc_engine *engine)
{
    if (engine->mirror.noted_bytes > 0)
        dsc_alloc_unnote(engine->alloc, DSC_TAG_MIRROR, DSC_TIER_HOST, engine->mirror.noted_bytes);
    engine->mirror.noted_bytes = 0;
}

void dsc_engine_close_mirror(dsc_engine *engine)
{
    forget_bytes(engine);
    dsc_carried_close(&engine->mirror.carried);
    dsc_carried_close(&engine->mirror.earlier);
}

void dsc_engine_forget_mirrors(dsc_engine *engine)
{
    dsc_engine_mirror *const m = &engine->mirror;
    for (int i = 0; m->carried != NULL && i < COPIES; i++)
        m->carried->copy[i].header.bytes = 0;
    dsc_carried_close(&m->earlier);
    m->next_step = 0;
}

void dsc_engine_keep_carried(dsc_engine *engine, dsc_carried **carried)
{
    if (carried == NULL)
        return;
    DSC_ASSERT(engine->mirror.earlier == NULL);
    engine->mirror.earlier = *carried;
    engine->mirror.opened_step = engine->progress.step;
    *carried = NULL;
}

dsc_carried *dsc_engine_release_mirror(dsc_engine *engine)
{
    dsc_engine_mirror *const m = &engine->mirror;
    dsc_carried *const earlier = m->earlier, *const carried = m->carried;
    forget_bytes(engine);
    m->carried = m->earlier = NULL;
    if (carried == NULL)
        return earlier;
    dsc_carried_add(carried, earlier);
    return carried;
}

/* Ranks from one to its neighbour: those of a host, so that the neighbour is on another one. */
static int32_t distance(const dsc_engine *engine)
{
    const int32_t size = engine->place.size; /* equal on all ranks, also of unequal hosts */
    const int32_t local = (int32_t)dsc_div_ceil(size, dsc_max_i64(1, engine->place.node_count));
    return engine->place.node_count > 1 && local < size ? local : 1;
}

/* Of two ranks that follow each other on the ring one sends first, so that no circle of ranks waits. */
static dsc_status exchange(const dsc_engine *engine, const dsc_state_copy *own, dsc_state_copy *before, dsc_error *err)
{
    const int32_t size = engine->place.size, rank = engine->place.rank, step = distance(engine);
    const int32_t next = (rank + step) % size, last = (rank + size - step) % size;
    if (rank / step % 2 == 0)
        DSC_TRY(dsc_state_copy_send(engine, own, next, err));
    DSC_TRY(dsc_state_copy_receive(engine, before, last, err));
    return rank / step % 2 == 1 ? dsc_state_copy_send(engine, own, next, err) : DSC_OK;
}

dsc_status dsc_engine_mirror_step(dsc_engine *engine, dsc_error *err)
{
    dsc_engine_mirror *const m = &engine->mirror;
    if (engine->progress.step > m->opened_step)
        dsc_carried_close(&m->earlier);
    if (m->carried == NULL || engine->progress.step < m->next_step)
        return DSC_OK;
    const int32_t newest = 1 - m->newest;
    dsc_state_copy *const own = &m->carried->copy[OWN + newest];
    DSC_TRY(dsc_zero_sync(engine->zero, err));
    DSC_TRY(dsc_state_copy_fill(engine, own, err));
    DSC_TRY(exchange(engine, own, &m->carried->copy[BEFORE + newest], err));
    m->newest = newest;
    m->next_step = engine->progress.step + engine->config.own.mirror_every;
    return DSC_OK;
}
