/* carried.c - see carried.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/carried.h"

#include <stdio.h>
#include <string.h>

#include "engine/device.h"
#include "engine/internal.h"

#define PARTS_OF_GROUP 8 /* at most: master weights, three moments, their absmax, averages */

/* ---- parts ---- */

static int64_t slice_of(const dsc_layout_group *group, int32_t world_size)
{
    return dsc_layout_slice(group->elements, world_size);
}

/* The parts of a group, in order; their number. */
static int parts_of(const dsc_engine *engine, int32_t g, int32_t world_size, dsc_state_part out[PARTS_OF_GROUP])
{
    const dsc_layout_group *group = &engine->layout.group[g];
    const dsc_recipe recipe = dsc_layout_recipe(&engine->layout, g, engine->config.optimizer.recipe);
    const int moments = dsc_recipes[recipe].state_count;
    const int64_t slice = slice_of(group, world_size);
    const dsc_state_part part = { .group = g,
                                  .elements = dsc_align_up(group->elements, DSC_LAYOUT_SLICE_ALIGN),
                                  .slice = slice,
                                  .unit = 1,
                                  .unit_bytes = 4 };
    int count = 0;
    if (group->packed != DSC_NF4_NONE) /* the model's, and never change */
        return 0;
    const dsc_plane first = group->trainable ? DSC_PLANE_MASTER : DSC_PLANE_PARAM;
    const dsc_plane end = group->trainable ? (dsc_plane)(DSC_PLANE_MOMENT1 + moments) : DSC_PLANE_MASTER;
    for (dsc_plane plane = first; plane < end; plane++) {
        out[count] = part;
        out[count].plane = plane;
        out[count++].unit_bytes = (int64_t)dsc_dtype_bytes(plane == DSC_PLANE_MASTER  ? DSC_F32
                                                           : plane == DSC_PLANE_PARAM ? dsc_engine_dtype(engine)
                                                                                      : engine->config.own.moments);
    }
    for (int k = 0; k < moments && group->trainable && engine->config.own.moments == DSC_U8; k++) {
        out[count] = part;
        out[count].plane = (dsc_plane)(DSC_PLANE_MOMENT1 + k);
        out[count].is_absmax = true;
        out[count++].unit = DSC_Q8_BLOCK;
    }
    if (group->trainable && engine->config.own.ema.enabled) {
        out[count] = part;
        out[count++].is_average = true;
    }
    DSC_ASSERT(count <= PARTS_OF_GROUP);
    return count;
}

static int64_t part_bytes(const dsc_state_part *part) { return part->slice / part->unit * part->unit_bytes; }

bool dsc_state_part_get(const dsc_engine *engine, int32_t world_size, int32_t index, dsc_state_part *out)
{
    dsc_state_part parts[PARTS_OF_GROUP];
    int64_t at = 0;
    for (int32_t g = 0; g < engine->layout.group_count; g++) {
        const int count = parts_of(engine, g, world_size, parts);
        for (int i = 0; i < count; i++, index--) {
            *out = parts[i];
            out->at = at;
            at += part_bytes(out);
            if (index == 0)
                return true;
        }
    }
    *out = (dsc_state_part) { .at = at };
    return false;
}

int64_t dsc_state_slice_bytes(const dsc_engine *engine, int32_t world_size)
{
    dsc_state_part end;
    const bool found = dsc_state_part_get(engine, world_size, INT32_MAX, &end);
    DSC_ASSERT(!found);
    return end.at;
}

dsc_status dsc_state_part_view(const dsc_engine *engine, const dsc_state_part *part, int64_t first, int64_t *count,
                               bool write, void **ptr, dsc_error *err)
{
    DSC_ASSERT(first % part->unit == 0 && first + *count <= engine->layout.group[part->group].slice);
    if (part->is_average)
        *ptr = dsc_zero_average(engine->zero, part->group, first);
    else if (part->is_absmax)
        *ptr = dsc_zero_absmax(engine->zero, part->group, (int32_t)(part->plane - DSC_PLANE_MOMENT1), first);
    else
        return dsc_zero_view(engine->zero, part->group, part->plane, first, count, write, ptr, err);
    return DSC_OK;
}

/* ---- values that all ranks have alike ---- */

static bool has_factors(const dsc_engine *engine, int32_t t)
{
    const int32_t g = engine->layout.tensor[t].group;
    const dsc_recipe recipe = dsc_layout_recipe(&engine->layout, g, engine->config.optimizer.recipe);
    return engine->layout.group[g].trainable && (dsc_recipes[recipe].needs & DSC_NEEDS_ROW_COL_STATS) != 0;
}

/* Copies values to memory, or from it. */
typedef struct shared_walk {
    char *to;
    const char *from;
    int64_t bytes;
} shared_walk;

static void pass_shared(shared_walk *w, void *value, int64_t bytes)
{
    if (w->to != NULL)
        memcpy(w->to + w->bytes, value, (size_t)bytes);
    if (w->from != NULL)
        memcpy(value, w->from + w->bytes, (size_t)bytes);
    w->bytes += bytes;
}

static int64_t buffer_bytes(const dsc_buffer_spec *spec)
{
    return spec->kind == DSC_BUFFER_STEPS ? 8 : spec->count * 4;
}

/* Saves of the run. The next engine continues what this one has saved, and may save later steps there again. */
static void walk_saves(dsc_engine *engine, shared_walk *w)
{
    const bool saved = w->to != NULL && engine->saves.saved_dir[0] != 0;
    pass_shared(w, saved ? &engine->saves.saved_step : &engine->saves.resumed_step,
                (int64_t)sizeof engine->saves.resumed_step);
    pass_shared(w, saved ? engine->saves.saved_dir : engine->saves.resumed_dir,
                (int64_t)sizeof engine->saves.resumed_dir);
    pass_shared(w, engine->saves.best_dir, (int64_t)sizeof engine->saves.best_dir);
}

static int64_t saves_bytes(const dsc_engine *engine)
{
    return (int64_t)(sizeof engine->saves.resumed_step + sizeof engine->saves.resumed_dir +
                     sizeof engine->saves.best_dir);
}

static void walk_shared(dsc_engine *engine, shared_walk *w)
{
    for (int32_t t = 0; t < engine->layout.tensor_count; t++) {
        const dsc_layout_tensor *tensor = &engine->layout.tensor[t];
        if (!has_factors(engine, t))
            continue;
        pass_shared(w, dsc_zero_adafactor_factors(engine->zero, t, false), dsc_layout_rows(tensor) * 4);
        pass_shared(w, dsc_zero_adafactor_factors(engine->zero, t, true), dsc_layout_cols(tensor) * 4);
    }
    for (int32_t n = 0; n < engine->buffers.count; n++) {
        const dsc_ckpt_buffer *buffer = &engine->buffers.stored[n];
        pass_shared(w, buffer->value, buffer_bytes(buffer->spec));
        if (buffer->average != NULL)
            pass_shared(w, buffer->average, buffer_bytes(buffer->spec));
    }
    walk_saves(engine, w); /* they end a copy */
}

/* The same before anything is open. */
int64_t dsc_state_shared_bytes(const dsc_engine *engine)
{
    int64_t bytes = saves_bytes(engine);
    for (int32_t t = 0; t < engine->layout.tensor_count; t++)
        if (has_factors(engine, t))
            bytes += 4 * (dsc_layout_rows(&engine->layout.tensor[t]) + dsc_layout_cols(&engine->layout.tensor[t]));
    for (int32_t m = 0; m < engine->model->module_count; m++)
        for (int32_t b = 0; b < engine->model->modules[m].buffer_count; b++)
            bytes += buffer_bytes(&engine->model->modules[m].buffers[b]) *
                     (dsc_buffer_has_mean(&engine->config, &engine->model->modules[m].buffers[b]) ? 2 : 1);
    return bytes;
}

int64_t dsc_state_copy_bytes(const dsc_engine *engine, int32_t world_size)
{
    return dsc_state_slice_bytes(engine, world_size) + dsc_state_shared_bytes(engine);
}

void dsc_state_get_shared(dsc_engine *engine, char *out)
{
    shared_walk w = { .to = out };
    walk_shared(engine, &w);
}

void dsc_state_set_shared(dsc_engine *engine, const char *from)
{
    shared_walk w = { .from = from };
    walk_shared(engine, &w);
}

/* ---- a copy ---- */

static dsc_hash128 identity_of(const dsc_engine *engine)
{
    const dsc_layout *layout = &engine->layout;
    dsc_hash128 hash = { 0 };
    for (int32_t t = 0; t < layout->tensor_count; t++) {
        const dsc_layout_tensor *tensor = &layout->tensor[t];
        const int64_t numbers[] = { (int64_t)hash.low, (int64_t)hash.high, tensor->group,
                                    tensor->offset,    tensor->count,      layout->group[tensor->group].trainable };
        hash = dsc_xxh3_128(numbers, sizeof numbers, 0);
        hash = dsc_xxh3_128(tensor->spec->name, strlen(tensor->spec->name), hash.low ^ hash.high);
    }
    const int64_t kinds[] = { (int64_t)hash.low,
                              (int64_t)hash.high,
                              engine->config.optimizer.recipe,
                              dsc_engine_dtype(engine),
                              engine->config.own.moments,
                              engine->config.own.ema.enabled,
                              engine->config.seed,
                              engine->config.train_batch_size };
    return dsc_xxh3_128(kinds, sizeof kinds, 0);
}

void dsc_state_header_fill(dsc_engine *engine, dsc_state_header *out)
{
    memset(out, 0, sizeof *out); /* it is sent as bytes */
    out->bytes = dsc_state_copy_bytes(engine, engine->layout.world_size);
    out->step = engine->progress.step;
    out->update_count = engine->progress.update_count;
    out->skipped_in_row = engine->progress.skipped_in_row;
    out->rank = engine->place.rank;
    out->world_size = engine->place.size;
    out->loss_scaler = engine->progress.loss_scaler;
    out->lr_override = engine->progress.lr_override;
    out->skips = engine->input.skips;
    out->spikes = engine->spikes.watch;
    out->averages = dsc_zero_has_averages(engine->zero);
    out->identity = identity_of(engine);
}

static dsc_status copy_part(const dsc_engine *engine, const dsc_state_part *part, char *to, dsc_error *err)
{
    for (int64_t first = 0, count; first < part->slice; first += count) {
        void *from;
        count = part->slice - first;
        DSC_TRY(dsc_state_part_view(engine, part, first, &count, false, &from, err));
        DSC_TRY(dsc_copy(engine->compute, to + first / part->unit * part->unit_bytes, from,
                         count / part->unit * part->unit_bytes, err));
        DSC_TRY(dsc_stream_sync(engine->compute, err)); /* the next view may be of the same memory */
    }
    return DSC_OK;
}

dsc_status dsc_state_copy_fill(dsc_engine *engine, dsc_state_copy *copy, dsc_error *err)
{
    dsc_state_part part;
    copy->header.bytes = 0; /* until it is whole */
    for (int32_t i = 0; dsc_state_part_get(engine, engine->layout.world_size, i, &part); i++)
        DSC_TRY(copy_part(engine, &part, copy->data + part.at, err));
    dsc_state_get_shared(engine, copy->data + part.at);
    dsc_state_header_fill(engine, &copy->header);
    return DSC_OK;
}

dsc_status dsc_state_copy_send(const dsc_engine *engine, const dsc_state_copy *copy, int32_t to, dsc_error *err)
{
    dsc_comm *const comm = engine->comms.all;
    DSC_ASSERT(copy->header.bytes == dsc_state_copy_bytes(engine, engine->layout.world_size));
    DSC_TRY(dsc_comm_send(comm, DSC_CHANNEL_CONTROL, &copy->header, (int64_t)sizeof copy->header, to, NULL, err));
    return dsc_comm_send(comm, DSC_CHANNEL_CONTROL, copy->data, copy->header.bytes, to, NULL, err);
}

dsc_status dsc_state_copy_receive(const dsc_engine *engine, dsc_state_copy *copy, int32_t from, dsc_error *err)
{
    dsc_comm *const comm = engine->comms.all;
    dsc_state_header header;
    copy->header.bytes = 0; /* until it is whole */
    DSC_TRY(dsc_comm_recv(comm, DSC_CHANNEL_CONTROL, &header, (int64_t)sizeof header, from, NULL, err));
    if (header.bytes != dsc_state_copy_bytes(engine, engine->layout.world_size)) /* slices have one length */
        return DSC_FAIL(err, DSC_ERR_COMM, "carry", "rank %d sends states of another length; are the configs equal?",
                        (int)from);
    DSC_TRY(dsc_comm_recv(comm, DSC_CHANNEL_CONTROL, copy->data, header.bytes, from, NULL, err));
    copy->header = header;
    return DSC_OK;
}

/* ---- from one engine to the next ---- */

static bool with_mics(const dsc_engine *e) { return e->layout.world_size < e->stages.grid.data; }
static bool with_stages(const dsc_engine *e) { return dsc_stages_are_used(&e->stages); }
static bool with_signs(const dsc_engine *e) { return dsc_config_compresses_signs(&e->config); }
static bool with_pairs(const dsc_engine *e) { return dsc_model_prefers(e->model); }
static bool with_tensor(const dsc_engine *e) { return dsc_tensor_is_shared_out(e); }
static bool with_powersgd(const dsc_engine *e) { return e->config.own.hook.kind == DSC_HOOK_POWERSGD; }

dsc_status dsc_engine_check_carried(const dsc_engine *engine, dsc_error *err)
{
    static const struct {
        bool (*is_used)(const dsc_engine *engine);
        const char *key;
    } excluded[] = { { with_stages, "dsc.grid.pipeline" },
                     { with_tensor, "dsc.grid.tensor" },
                     { with_mics, "zero_optimization.mics_shard_size" },
                     { with_signs, "optimizer.type" },
                     { with_powersgd, "dsc.communication_hook.type" },
                     { with_pairs, "dsc.dpo" } };
    for (size_t i = 0; i < DSC_COUNT(excluded); i++)
        if (excluded[i].is_used(engine))
            return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, excluded[i].key,
                            "its states do not move to another number of ranks within a run in this version; save, and "
                            "resume from the checkpoint");
    return DSC_OK;
}

dsc_status dsc_carried_open(const dsc_engine *engine, dsc_carried **out, dsc_error *err)
{
    dsc_alloc *alloc = NULL;
    *out = NULL;
    DSC_TRY(dsc_alloc_open(&alloc, err));
    const dsc_status status = dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, 1, sizeof **out, out, err);
    if (status != DSC_OK) {
        dsc_alloc_close(&alloc);
        return status;
    }
    (*out)->alloc = alloc;
    return engine->gemm_plans == NULL
               ? DSC_OK
               : dsc_alloc_strdup(alloc, DSC_TAG_CONTROL, engine->gemm_plans, &(*out)->gemm_plans, err);
}

void dsc_carried_close(dsc_carried **carried_ptr)
{
    dsc_carried *carried = *carried_ptr;
    if (carried == NULL)
        return;
    dsc_alloc *alloc = carried->alloc;
    dsc_carried_close(&carried->next);
    for (int i = 0; i < DSC_STATE_COPIES_MAX; i++)
        dsc_alloc_free(alloc, carried->copy[i].data);
    dsc_alloc_free(alloc, carried->gemm_plans);
    dsc_alloc_free(alloc, carried);
    dsc_alloc_close(&alloc);
    *carried_ptr = NULL;
}

const dsc_state_copy *dsc_carried_copy(const dsc_carried *carried, int32_t index)
{
    for (; carried != NULL && index >= DSC_STATE_COPIES_MAX; index -= DSC_STATE_COPIES_MAX)
        carried = carried->next;
    return carried != NULL && carried->copy[index].header.bytes > 0 ? &carried->copy[index] : NULL;
}

bool dsc_carried_is_empty(const dsc_carried *carried)
{
    for (int32_t i = 0; i < DSC_CARRIED_LINKS_MAX * DSC_STATE_COPIES_MAX; i++)
        if (dsc_carried_copy(carried, i) != NULL)
            return false;
    return true;
}

void dsc_carried_add(dsc_carried *carried, dsc_carried *earlier)
{
    int links = 1;
    for (; carried->next != NULL; carried = carried->next)
        links++;
    carried->next = earlier;
    for (; carried->next != NULL && links < DSC_CARRIED_LINKS_MAX; carried = carried->next)
        links++;
    dsc_carried_close(&carried->next);
}

/* The staying rank that takes the copy of a leaving one: leaving ranks are dealt to staying ones in order. */
static int32_t heir_of(const bool *stays, int32_t size, int32_t rank)
{
    int32_t nth = 0, staying = 0;
    for (int32_t r = 0; r < size; r++)
        staying += stays[r];
    for (int32_t r = 0; r < rank; r++)
        nth += !stays[r];
    nth %= staying;
    for (int32_t r = 0; r < size; r++)
        if (stays[r] && nth-- == 0)
            return r;
    DSC_ASSERT(false);
    return -1;
}

dsc_status dsc_carried_open_copy(dsc_carried *carried, int index, int64_t bytes, dsc_error *err)
{
    if (index >= DSC_STATE_COPIES_MAX)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "carry",
                        "a staying rank would take the states of more than %d leaving "
                        "ranks; let fewer leave at once",
                        DSC_STATE_COPIES_MAX - 1);
    return dsc_alloc_zeroed(carried->alloc, DSC_TAG_CONTROL, bytes, 1, &carried->copy[index].data, err);
}

/* The copies of leaving ranks to staying ones, in the order of ranks. */
static dsc_status hand_over(const dsc_engine *engine, const bool *stays, dsc_carried *carried, dsc_error *err)
{
    const int32_t size = engine->place.size, rank = engine->place.rank;
    int taken = 1;
    for (int32_t r = 0; r < size; r++) {
        const int32_t heir = stays[r] ? -1 : heir_of(stays, size, r);
        if (r == rank && heir >= 0)
            DSC_TRY(dsc_state_copy_send(engine, &carried->copy[0], heir, err));
        if (rank != heir)
            continue;
        DSC_TRY(dsc_carried_open_copy(carried, taken, carried->copy[0].header.bytes, err));
        DSC_TRY(dsc_state_copy_receive(engine, &carried->copy[taken++], r, err));
    }
    return DSC_OK;
}

static dsc_status carry(dsc_engine *engine, const bool *stays, dsc_carried **out, dsc_error *err)
{
    DSC_TRY(dsc_carried_open(engine, out, err));
    DSC_TRY(dsc_carried_open_copy(*out, 0, dsc_state_copy_bytes(engine, engine->layout.world_size), err));
    DSC_TRY(dsc_state_copy_fill(engine, &(*out)->copy[0], err));
    return stays != NULL ? hand_over(engine, stays, *out, err) : DSC_OK;
}

/* The mirrors of an engine that closes; NULL: it has none. A mirror is of an earlier step, but the files of later saves
 * are there. */
static dsc_carried *take_mirrors(dsc_engine *engine)
{
    dsc_carried *const mirrors = dsc_engine_release_mirror(engine);
    for (dsc_carried *link = mirrors; link != NULL; link = link->next)
        for (int i = 0; i < DSC_STATE_COPIES_MAX; i++) {
            dsc_state_copy *const copy = &link->copy[i];
            if (copy->header.bytes > 0)
                walk_saves(engine, &(shared_walk) { .to = copy->data + copy->header.bytes - saves_bytes(engine) });
        }
    return mirrors;
}

/* A failed engine may have states of two steps. Those of its mirrors are of one step each. */
static dsc_status carry_mirrors(dsc_engine **engine, dsc_carried **out, dsc_error *err)
{
    *out = take_mirrors(*engine);
    if (dsc_carried_is_empty(*out)) { /* also before the first mirror */
        dsc_carried_close(out);
        return DSC_FAIL(err, DSC_ERR_STATE, "carry",
                        "the engine failed, and there are no copies of its states (dsc.elastic."
                        "mirror_every); load the last checkpoint");
    }
    dsc_engine_close(engine);
    return DSC_OK;
}

dsc_status dsc_engine_carry(dsc_engine **engine_ptr, const bool *stays, dsc_carried **out, dsc_error *err)
{
    dsc_engine *engine = *engine_ptr;
    int32_t staying = stays == NULL ? engine->place.size : 0;
    *out = NULL;
    if (engine->failed)
        return carry_mirrors(engine_ptr, out, err);
    DSC_TRY(dsc_engine_check_idle(engine, "carry", err));
    DSC_TRY(dsc_engine_check_carried(engine, err));
    for (int32_t r = 0; r < engine->place.size && stays != NULL; r++)
        staying += stays[r];
    if (staying == 0)
        return DSC_FAIL(err, DSC_ERR_STATE, "carry", "no rank stays; save, and resume from the checkpoint");
    if (engine->saves.begun)
        return DSC_FAIL(err, DSC_ERR_STATE, "carry", "a save is on its way; call dsc_engine_save_wait first");
    DSC_TRY(dsc_engine_need_values(engine, err));
    DSC_TRY(dsc_engine_settle(engine, err));
    const dsc_status status = carry(engine, stays, out, err);
    const bool leaves = stays != NULL && !stays[engine->place.rank];
    if (status != DSC_OK || leaves)
        dsc_carried_close(out);
    else /* a rank may be lost before the next engines have the states of this step */
        dsc_carried_add(*out, take_mirrors(engine));
    DSC_TRY(dsc_engine_fail(engine, status, err));
    dsc_engine_close(engine_ptr);
    return DSC_OK;
}
