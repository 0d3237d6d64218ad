/* tensor_states.c - states of tensor ranks as whole tensors, for checkpoints: a save has one owner for each block.
 *
 * For a checkpoint the ranks of a stage are those of a run without tensor ranks, over which whole tensors are laid out
 * in slices. Before a save each rank collects its slice. Pieces of tensors go from their data rank to the others that
 * have the same part, and then from all tensor ranks to all. A rank keeps the elements of its slice. A load goes the
 * other way. All ranks of a stage go through tensors, planes and pieces in the same order.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "engine/internal.h"

/* ---- the whole model, and its layout ---- */

static const dsc_model *parted_model(const dsc_engine *engine)
{
    return engine->stages.whole != NULL ? engine->stages.whole : engine->model;
}

static void make_whole(dsc_engine_tensor *tensor, const dsc_model *parted)
{
    int64_t at = 0;
    tensor->whole = *parted;
    tensor->whole.modules = tensor->modules;
    tensor->whole.tensor_ranks = tensor->whole.tensor_rank = 0;
    tensor->whole.close = NULL;
    for (int32_t m = 0; m < parted->module_count; m++) {
        tensor->modules[m] = parted->modules[m];
        tensor->modules[m].params = tensor->specs + at;
        for (int32_t p = 0; p < parted->modules[m].param_count; p++, at++) {
            const dsc_param_spec *part = &parted->modules[m].params[p];
            tensor->specs[at] = *part;
            tensor->specs[at].part = (dsc_param_part) { 0 };
            for (int32_t d = 0; d < part->dim_count; d++)
                tensor->specs[at].dim[d] = dsc_param_whole_dim(part, d);
        }
    }
}

/* Numbers of whole tensors in this rank's own layout, and which of their groups this rank has slices of. */
static dsc_status number(dsc_engine *engine, dsc_error *err)
{
    dsc_engine_tensor *tensor = &engine->tensor;
    const dsc_engine_stages *stages = &engine->stages;
    const dsc_layout *whole = &tensor->layout;
    DSC_TRY(dsc_alloc_zeroed(engine->alloc, DSC_TAG_CONTROL, whole->tensor_count, sizeof(int32_t),
                             &tensor->local_tensor, err));
    DSC_TRY(dsc_alloc_zeroed(engine->alloc, DSC_TAG_CONTROL, dsc_max_i64(whole->group_count, whole->tensor_count),
                             sizeof(int32_t), &tensor->held, err));
    for (int32_t g = 0; g < whole->group_count; g++)
        tensor->held[g] = -1;
    for (int32_t t = 0; t < whole->tensor_count; t++) {
        tensor->local_tensor[t] = dsc_stages_are_used(stages) ? stages->tensor[t] : t;
        if (tensor->local_tensor[t] >= 0)
            tensor->held[whole->tensor[t].group] = whole->tensor[t].group;
    }
    tensor->owners = (dsc_ckpt_stages) { .count = stages->grid.pipeline,
                                         .data_ranks = stages->grid.data * stages->grid.tensor,
                                         .first_module = stages->first_module,
                                         .group = tensor->held,
                                         .tensor = tensor->local_tensor };
    return DSC_OK;
}

dsc_status dsc_tensor_open_layout(dsc_engine *engine, dsc_error *err)
{
    dsc_engine_tensor *tensor = &engine->tensor;
    const dsc_model *parted = parted_model(engine);
    int64_t specs = 0;
    if (!dsc_tensor_is_shared_out(engine))
        return DSC_OK;
    for (int32_t m = 0; m < parted->module_count; m++)
        specs += parted->modules[m].param_count;
    DSC_TRY(dsc_alloc_zeroed(engine->alloc, DSC_TAG_CONTROL, parted->module_count, sizeof *tensor->modules,
                             &tensor->modules, err));
    DSC_TRY(dsc_alloc_zeroed(engine->alloc, DSC_TAG_CONTROL, specs, sizeof *tensor->specs, &tensor->specs, err));
    make_whole(tensor, parted);
    const dsc_layout_rules rules = { .recipe = engine->config.optimizer.recipe,
                                     .moment_dtype = engine->config.own.moments,
                                     .world_size = engine->stages.grid.data * engine->stages.grid.tensor };
    DSC_TRY(dsc_layout_open(engine->alloc, &tensor->whole, &rules, &tensor->layout, err));
    return number(engine, err);
}

void dsc_tensor_close(dsc_engine *engine)
{
    dsc_engine_tensor *tensor = &engine->tensor;
    dsc_tensor_close_states(engine);
    dsc_layout_close(&tensor->layout);
    dsc_alloc_free(engine->alloc, tensor->local_tensor);
    dsc_alloc_free(engine->alloc, tensor->held);
    dsc_alloc_free(engine->alloc, tensor->specs);
    dsc_alloc_free(engine->alloc, tensor->modules);
}

/* ---- memory of this rank's slices ---- */

/* Planes of a group: parameters beside masters, then masters and moments of trainable ones. */
static bool has_plane(const dsc_engine *engine, const dsc_layout_group *group, dsc_plane plane)
{
    const int moments = dsc_recipes[engine->config.optimizer.recipe].state_count;
    if (plane == DSC_PLANE_PARAM)
        return !group->trainable || dsc_engine_dtype(engine) != DSC_F32;
    return group->trainable && (int)plane < DSC_PLANE_MOMENT1 + moments;
}

static dsc_dtype dtype_of(const dsc_engine *engine, dsc_plane plane)
{
    return plane == DSC_PLANE_PARAM    ? dsc_engine_dtype(engine)
           : plane == DSC_PLANE_MASTER ? DSC_F32
                                       : engine->config.own.moments;
}

static int64_t bytes_of(const dsc_engine *engine, dsc_plane plane, int64_t elements)
{
    return elements * (int64_t)dsc_dtype_bytes(dtype_of(engine, plane));
}

static int64_t plane_bytes(const dsc_engine *engine, int32_t g, dsc_plane plane)
{
    const dsc_layout_group *group = &engine->tensor.layout.group[g];
    const bool here = engine->tensor.held[g] >= 0 && has_plane(engine, group, plane);
    return here ? bytes_of(engine, plane, group->slice) : 0;
}

int64_t dsc_tensor_states_bytes(const dsc_engine *engine)
{
    const dsc_layout *layout = &engine->tensor.layout;
    int64_t bytes = (int64_t)layout->group_count * DSC_PLANE_COUNT * (int64_t)sizeof(char *);
    if (!dsc_tensor_is_shared_out(engine))
        return 0;
    for (int32_t g = 0; g < layout->group_count; g++)
        for (int p = DSC_PLANE_PARAM; p < DSC_PLANE_GRAD; p++)
            bytes += plane_bytes(engine, g, (dsc_plane)p);
    return bytes;
}

void dsc_tensor_close_states(dsc_engine *engine)
{
    dsc_alloc_free(engine->alloc, engine->tensor.states);
    dsc_alloc_free(engine->alloc, engine->tensor.memory.plane);
    engine->tensor.states = NULL;
    engine->tensor.memory = (dsc_ckpt_memory) { 0 };
}

static dsc_status open_memory(dsc_engine *engine, dsc_error *err)
{
    dsc_engine_tensor *tensor = &engine->tensor;
    const dsc_layout *layout = &tensor->layout;
    const int64_t list = (int64_t)layout->group_count * DSC_PLANE_COUNT;
    int64_t at = 0;
    tensor->memory =
        (dsc_ckpt_memory) { .slice = engine->stages.data_rank * engine->stages.grid.tensor + engine->stages.tensor_rank,
                            .param_dtype = dsc_engine_dtype(engine),
                            .moment_dtype = engine->config.own.moments };
    DSC_TRY(dsc_alloc_zeroed(engine->alloc, DSC_TAG_CONTROL, list, sizeof(char *), &tensor->memory.plane, err));
    DSC_TRY(dsc_alloc_zeroed(engine->alloc, DSC_TAG_CONTROL,
                             dsc_tensor_states_bytes(engine) - list * (int64_t)sizeof(char *), 1, &tensor->states,
                             err));
    for (int32_t g = 0; g < layout->group_count; g++)
        for (int p = DSC_PLANE_PARAM; p < DSC_PLANE_GRAD; p++) {
            const int64_t bytes = plane_bytes(engine, g, (dsc_plane)p);
            tensor->memory.plane[g * DSC_PLANE_COUNT + p] = bytes > 0 ? tensor->states + at : NULL;
            at += bytes;
        }
    return DSC_OK;
}

/* ---- between parts and whole tensors ---- */

/* One plane of one tensor, as this rank has it and whole. */
typedef struct transfer {
    dsc_engine *engine;
    dsc_plane plane;
    const dsc_layout_tensor *own, *whole;
    dsc_zero_slice slice;             /* of zero's group */
    int64_t own_first, own_count;     /* elements of the part that this rank's slice has */
    int64_t whole_first, whole_count; /* elements of the whole tensor that this rank's memory has */
    char *memory;                     /* of these */
    char *buffer;
    int64_t room; /* elements of it */
} transfer;

static transfer transfer_of(dsc_engine *engine, int32_t t, dsc_plane plane)
{
    const dsc_engine_tensor *of = &engine->tensor;
    transfer x = { .engine = engine,
                   .plane = plane,
                   .own = &engine->layout.tensor[of->local_tensor[t]],
                   .whole = &of->layout.tensor[t],
                   .buffer = engine->io_buf.ptr,
                   .room = engine->io_buf.bytes / bytes_of(engine, plane, 1) };
    const int64_t length = of->layout.group[x.whole->group].slice, begin = of->memory.slice * length;
    dsc_zero_slice_get(engine->zero, x.own->group, &x.slice);
    x.own_count = dsc_layout_span(x.own, x.slice.first, x.slice.count, &x.own_first);
    x.whole_count = dsc_layout_span(x.whole, begin, length, &x.whole_first);
    x.memory = of->memory.plane[x.whole->group * DSC_PLANE_COUNT + plane] +
               bytes_of(engine, plane, x.whole->offset + x.whole_first - begin);
    return x;
}

/* Copies elements [first, first + count) of the part, which zero has here, to or from `at`. */
static dsc_status copy_own(const transfer *x, int64_t first, int64_t count, char *at, bool write, dsc_error *err)
{
    for (int64_t done = 0, now; done < count; done += now) {
        const int64_t bytes = bytes_of(x->engine, x->plane, done);
        void *ptr;
        now = count - done;
        DSC_TRY(dsc_zero_view(x->engine->zero, x->own->group, x->plane, x->own->offset + first + done - x->slice.first,
                              &now, write, &ptr, err));
        memcpy(write ? ptr : at + bytes, write ? at + bytes : ptr, (size_t)bytes_of(x->engine, x->plane, now));
    }
    return DSC_OK;
}

typedef struct overlap {
    int64_t first, count;
} overlap;

static overlap overlap_of(int64_t a, int64_t a_count, int64_t b, int64_t b_count)
{
    const int64_t first = dsc_max_i64(a, b), end = dsc_min_i64(a + a_count, b + b_count);
    return (overlap) { first, dsc_max_i64(0, end - first) };
}

/* The tensor as part `index` has it. *elements <- how many it has. */
static dsc_param_spec spec_of_part(const transfer *x, int32_t index, int64_t *elements)
{
    dsc_param_spec spec = *x->own->spec;
    const int32_t axis = spec.part.axis;
    spec.part.index = index;
    spec.dim[axis] = dsc_param_part_length(&spec.part, index);
    *elements = x->own->count / x->own->spec->dim[axis] * spec.dim[axis];
    return spec;
}

/* Elements [first, first + count) of the part that `rank` has, at `from`: those of this rank's memory go there. */
static void keep_whole(const transfer *x, int32_t rank, int64_t first, int64_t count, const char *from)
{
    dsc_param_spec spec = *x->own->spec;
    int64_t elements = x->own->count;
    if (spec.part.count > 1)
        spec = spec_of_part(x, rank / (x->engine->stages.grid.tensor / spec.part.count), &elements);
    count = dsc_min_i64(count, elements - first);
    for (int64_t done = 0, now, at; done < count; done += now) {
        now = dsc_param_whole_run(&spec, first + done, count - done, &at);
        const overlap o = overlap_of(at, now, x->whole_first, x->whole_count);
        memcpy(x->memory + bytes_of(x->engine, x->plane, o.first - x->whole_first),
               from + bytes_of(x->engine, x->plane, done + o.first - at),
               o.count > 0 ? (size_t)bytes_of(x->engine, x->plane, o.count) : 0);
    }
}

/* A piece of the part from the data ranks that have it to all that have this part, in the buffer at `at`. */
static dsc_status gather_piece(const transfer *x, int64_t first, int64_t count, char *at, dsc_error *err)
{
    dsc_engine *engine = x->engine;
    const int64_t slice = engine->layout.group[x->own->group].slice;
    for (int32_t d = 0; d < engine->stages.grid.data; d++) {
        int64_t begin;
        const int64_t length = dsc_layout_span(x->own, d * slice, slice, &begin);
        const overlap o = overlap_of(first, count, begin, length);
        char *const to = at + bytes_of(engine, x->plane, o.first - first);
        if (o.count == 0)
            continue;
        if (d == engine->stages.data_rank)
            DSC_TRY(copy_own(x, o.first, o.count, to, false, err));
        DSC_TRY(dsc_comm_broadcast(dsc_engine_shards(engine), DSC_CHANNEL_CONTROL, to,
                                   bytes_of(engine, x->plane, o.count), d, NULL, err));
    }
    return DSC_OK;
}

static dsc_status take_tensor(const transfer *x, dsc_error *err)
{
    const dsc_engine_stages *stages = &x->engine->stages;
    const bool parted = x->own->spec->part.count > 1;
    const int32_t ranks = parted ? stages->grid.tensor : 1, own = parted ? stages->tensor_rank : 0;
    const int64_t most = x->room / ranks;
    int64_t longest = x->own->count; /* part: the first one; a shorter one ends inside a piece */
    if (parted)
        (void)spec_of_part(x, 0, &longest);
    for (int64_t first = 0; first < longest; first += most) {
        const int64_t count = dsc_min_i64(most, longest - first), bytes = bytes_of(x->engine, x->plane, count);
        const int64_t here = dsc_min_i64(count, x->own->count - first);
        if (here > 0)
            DSC_TRY(gather_piece(x, first, here, x->buffer + own * bytes, err));
        if (parted)
            DSC_TRY(dsc_comm_all_gather(x->engine->comms.side[DSC_SUB_TENSOR].host, 0, x->buffer,
                                        x->buffer + own * bytes, bytes, DSC_U8, NULL, err));
        for (int32_t r = 0; r < ranks; r++)
            keep_whole(x, r, first, count, x->buffer + r * bytes);
    }
    return DSC_OK;
}

/* A piece of the whole tensor from the ranks whose memory has it to all ranks of the stage. */
static dsc_status spread_piece(const transfer *x, int64_t first, int64_t count, dsc_error *err)
{
    dsc_engine *engine = x->engine;
    const dsc_engine_stages *stages = &engine->stages;
    const int64_t slice = engine->tensor.layout.group[x->whole->group].slice;
    for (int32_t k = 0; k < engine->tensor.layout.world_size; k++) {
        const int32_t data = k / stages->grid.tensor, tensor = k % stages->grid.tensor;
        int64_t begin;
        const int64_t length = dsc_layout_span(x->whole, k * slice, slice, &begin);
        const overlap o = overlap_of(first, count, begin, length);
        char *const to = x->buffer + bytes_of(engine, x->plane, o.first - first);
        const int64_t bytes = bytes_of(engine, x->plane, o.count);
        if (o.count == 0)
            continue;
        if (k == engine->tensor.memory.slice)
            memcpy(to, x->memory + bytes_of(engine, x->plane, o.first - begin), (size_t)bytes);
        if (stages->data_rank == data)
            DSC_TRY(dsc_comm_broadcast(engine->comms.side[DSC_SUB_TENSOR].host, 0, to, bytes, tensor, NULL, err));
        DSC_TRY(dsc_comm_broadcast(dsc_engine_shards(engine), DSC_CHANNEL_CONTROL, to, bytes, data, NULL, err));
    }
    return DSC_OK;
}

/* Parameters that have masters are made of them later. */
static dsc_status give_tensor(const transfer *x, dsc_error *err)
{
    if (x->plane == DSC_PLANE_PARAM && x->slice.trainable)
        return DSC_OK;
    for (int64_t first = 0; first < x->whole->count; first += x->room) {
        const int64_t count = dsc_min_i64(x->room, x->whole->count - first);
        DSC_TRY(spread_piece(x, first, count, err));
        for (int64_t done = 0, now, at; done < x->own_count; done += now) {
            now = dsc_param_whole_run(x->own->spec, x->own_first + done, x->own_count - done, &at);
            const overlap o = overlap_of(at, now, first, count);
            if (o.count > 0)
                DSC_TRY(copy_own(x, x->own_first + done + (o.first - at), o.count,
                                 x->buffer + bytes_of(x->engine, x->plane, o.first - first), true, err));
        }
    }
    return DSC_OK;
}

static dsc_status for_all(dsc_engine *engine, dsc_status (*move)(const transfer *x, dsc_error *err), dsc_error *err)
{
    const dsc_layout *layout = &engine->tensor.layout;
    for (int32_t t = 0; t < layout->tensor_count; t++)
        for (int p = DSC_PLANE_PARAM; p < DSC_PLANE_GRAD && engine->tensor.local_tensor[t] >= 0; p++) {
            if (!has_plane(engine, &layout->group[layout->tensor[t].group], (dsc_plane)p))
                continue;
            const transfer x = transfer_of(engine, t, (dsc_plane)p);
            DSC_TRY(move(&x, err));
        }
    return DSC_OK;
}

dsc_status dsc_tensor_open_states(dsc_engine *engine, bool take, dsc_error *err)
{
    if (!dsc_tensor_is_shared_out(engine))
        return DSC_OK;
    DSC_TRY(open_memory(engine, err));
    return take ? for_all(engine, take_tensor, err) : DSC_OK;
}

dsc_status dsc_tensor_give_states(dsc_engine *engine, dsc_error *err)
{
    return dsc_tensor_is_shared_out(engine) ? for_all(engine, give_tensor, err) : DSC_OK;
}
