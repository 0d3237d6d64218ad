/* update.c - the end of an optimizer step: norm, update of what this rank owns, parameters back to whoever keeps them.
 *
 * Every stage runs the same kernel over the same elements, so the bits agree; a stage only decides over which range
 * (stage 0: every rank over everything, after an all-gather of the sums) and what is gathered afterwards.
 * SPDX-License-Identifier: Apache-2.0 */
#include "zero/internal.h"

#include <string.h>

#include "base/rng.h"

dsc_status dsc_zero_sumsq(dsc_zero *zero, dsc_fixed_sum *sum, dsc_error *err)
{
    const int64_t bytes = (int64_t)sizeof *sum;
    dsc_fixed_sum *on_device = zero->sum_buf.ptr, *all = zero->sums_buf.ptr, *mine = &all[zero->o.rank];
    DSC_TRY(dsc_reduce_finish(zero, err));
    DSC_TRY(dsc_stream_sync(zero->reduce_stream, err)); /* a reduction that failed comes out here */
    if (!zero->sum_started)
        DSC_TRY(dsc_fill_zero(zero->o.compute, on_device, bytes, err));
    zero->sum_started = false;
    for (int32_t g = 0; g < zero->o.layout->group_count; g++) {
        dsc_sumsq_args args = { .sum = on_device };
        int64_t first;
        if (dsc_sum_is_squared_at_once(zero, g)) /* or frozen */
            continue;
        args.x = dsc_zero_known_sums(zero, g, &first, &args.count);
        DSC_TRY(DSC_RUN(zero->o.compute, SUMSQ, &args, err));
    }
    DSC_TRY(dsc_copy(zero->o.compute, mine, on_device, bytes, err));
    DSC_TRY(dsc_stream_sync(zero->o.compute, err));
    DSC_TRY(dsc_comm_all_gather(zero->o.host_comm, DSC_CHANNEL_CONTROL, all, mine, bytes, DSC_U8, NULL, err));
    memset(sum, 0, sizeof *sum);
    for (int32_t r = 0; r < zero->world_size; r++)
        dsc_fixed_sum_merge(sum, &all[r]);
    return DSC_OK;
}

void dsc_update_terms_fill(const dsc_update_scalars *scalars, int32_t class_count, int64_t update,
                           dsc_update_terms *out)
{
    DSC_ASSERT(class_count > 0 && class_count <= DSC_UPDATE_CLASSES_MAX);
    memcpy(out->scalars, scalars, (size_t)class_count * sizeof *scalars);
    out->stream = dsc_rng_stream(DSC_RNG_MOMENT, (uint32_t)update);
}

void dsc_update_args_fill(const dsc_zero *zero, const dsc_update_terms *terms, const dsc_tile *tile, int64_t first,
                          int64_t end, int32_t t, dsc_update_args *out)
{
    const int64_t at = first - tile->first, moment_at = at * dsc_plane_bytes_each(zero, DSC_PLANE_MOMENT1);
    *out = (dsc_update_args) { .master = tile->master + at,
                               .grad = tile->grad + at,
                               .count = end - first,
                               .state_dtype = zero->o.moment_dtype,
                               .seed = zero->o.seed,
                               .stream = terms->stream,
                               .first = zero->o.layout->group[tile->group].position + first,
                               .half_dtype = zero->o.compute_dtype,
                               .scalars = terms->scalars[zero->o.layout->tensor[t].update_class] };
    for (int32_t k = 0; k < dsc_moment_count(zero, tile->group); k++)
        out->state[k] = tile->moment[k] + moment_at;
    if (zero->o.compute_dtype != DSC_F32)
        out->param_half = (uint16_t *)tile->param + at;
    const uint32_t needs = dsc_recipes[dsc_group_recipe(zero, tile->group)].needs;
    for (int32_t i = 0; i < zero->optimizer_count && needs != DSC_NEEDS_NOTHING; i++)
        if ((zero->optimizer[i]->needs & needs) != 0 && zero->optimizer[i]->set_args != NULL)
            zero->optimizer[i]->set_args(zero, tile, first, t, out);
}

/* Edits the scalars for the step of one tensor. */
static void step_of_tensor(const dsc_zero *zero, int32_t t, dsc_update_scalars *s)
{
    const uint32_t needs = dsc_recipes[dsc_group_recipe(zero, zero->o.layout->tensor[t].group)].needs;
    for (int32_t i = 0; i < zero->optimizer_count && needs != DSC_NEEDS_NOTHING; i++)
        if ((zero->optimizer[i]->needs & needs) != 0 && zero->optimizer[i]->tensor_step != NULL)
            zero->optimizer[i]->tensor_step(zero, t, s);
}

/* Of a tile whose recipe goes along directions of whole matrices; NULL: it does not. */
static dsc_status find_direction(dsc_zero *zero, const dsc_tile *tile, uint32_t needs, const float **along,
                                 dsc_error *err)
{
    *along = NULL;
    for (int32_t i = 0; i < zero->optimizer_count; i++)
        if ((zero->optimizer[i]->needs & needs) != 0 && zero->optimizer[i]->direction != NULL)
            DSC_TRY(zero->optimizer[i]->direction(zero, tile, along, err));
    return DSC_OK;
}

/* One launch over elements [first, end) of the tile's group, which begin in tensor t; `along` is the tile's. */
static dsc_status update_range(const dsc_zero *zero, const dsc_update_terms *terms, const dsc_tile *tile,
                               const float *along, int64_t first, int64_t end, int32_t t, dsc_error *err)
{
    dsc_update_args args;
    dsc_update_args_fill(zero, terms, tile, first, end, t, &args);
    step_of_tensor(zero, t, &args.scalars);
    if (along != NULL)
        args.along = along + (first - tile->first);
    return dsc_launch(tile->stream, dsc_recipe_kernel(dsc_group_recipe(zero, tile->group)), &args,
                      (int64_t)sizeof args, err);
}

/* What lies behind a matrix in its group has no row. It is 0, and so are its sums: any recipe leaves it so. */
static dsc_status update_padding(const dsc_zero *zero, const dsc_update_terms *terms, const dsc_tile *tile,
                                 int64_t first, int64_t end, int32_t t, dsc_error *err)
{
    dsc_update_args args;
    dsc_update_args_fill(zero, terms, tile, first, end, t, &args);
    return DSC_RUN(tile->stream, SGD, &args, err);
}

/* Runs of neighbouring tensors of one class are one launch, unless each tensor has a step of its own; padding goes with
 * the tensor before it. */
static dsc_status update_tile(dsc_zero *zero, const dsc_update_terms *terms, const dsc_tile *tile, dsc_error *err)
{
    const dsc_layout *layout = zero->o.layout;
    const dsc_layout_group *group = &layout->group[tile->group];
    const uint32_t needs = dsc_recipes[dsc_group_recipe(zero, tile->group)].needs;
    const int64_t tile_end = tile->first + tile->count;
    const float *along;
    int64_t first = tile->first;
    int32_t t = group->first_tensor;
    const int32_t last = group->first_tensor + group->tensor_count;
    DSC_TRY(find_direction(zero, tile, needs, &along, err));
    while (first < tile_end) {
        while (t + 1 < last && layout->tensor[t + 1].offset <= first)
            t++;
        const int32_t of = t;
        while (t + 1 < last && layout->tensor[t + 1].update_class == layout->tensor[of].update_class &&
               needs == DSC_NEEDS_NOTHING)
            t++;
        const int64_t next = t + 1 < last ? dsc_min_i64(layout->tensor[t + 1].offset, tile_end) : tile_end;
        const bool has_rows = (needs & DSC_NEEDS_ROW_COL_STATS) != 0;
        const int64_t of_tensor = dsc_min_i64(next, layout->tensor[of].offset + layout->tensor[of].count);
        const int64_t end = has_rows && first < of_tensor ? of_tensor : next;
        if (has_rows && first >= of_tensor)
            DSC_TRY(update_padding(zero, terms, tile, first, end, of, err));
        else
            DSC_TRY(update_range(zero, terms, tile, along, first, end, of, err));
        first = end;
    }
    return DSC_OK;
}

dsc_status dsc_update_next_tile(dsc_zero *zero, const dsc_update_terms *terms, dsc_tile *tile, dsc_error *err)
{
    dsc_tile part;
    DSC_TRY(dsc_state_store_next_by_part(zero, tile, err));
    for (int64_t at = 0; at < tile->count; at += part.count) {
        DSC_TRY(dsc_state_store_part(zero, tile, at, &part, err));
        DSC_TRY(update_tile(zero, terms, &part, err));
        DSC_TRY(dsc_state_store_part_updated(zero, tile, &part, err));
    }
    return dsc_state_store_done(zero, tile, err);
}

/* Whole parameters from every rank's slice, in place, on the gather stream. */
static dsc_status gather_params(dsc_zero *zero, int32_t g, dsc_error *err)
{
    dsc_group_state *state = &zero->group[g];
    const int64_t slice = zero->o.layout->group[g].slice;
    DSC_TRY(dsc_zero_after_compute(zero, zero->gather_stream, err));
    DSC_TRY(dsc_zero_after_update(zero, g, zero->gather_stream, err));
    dsc_comm_label_module(zero->o.comm, DSC_CHANNEL_GATHER, zero->o.layout->group[g].module);
    DSC_TRY(dsc_comm_all_gather(zero->o.comm, DSC_CHANNEL_GATHER, state->param,
                                state->param + slice * zero->o.rank * zero->param_bytes_each, slice,
                                zero->o.compute_dtype, zero->gather_stream, err));
    DSC_TRY(dsc_event_record(state->gathered, zero->gather_stream, err));
    state->gather_pending = true;
    return DSC_OK;
}

/* No gather may still read this rank's parameters when they change. */
static dsc_status after_gathers(dsc_zero *zero, dsc_error *err)
{
    DSC_TRY(dsc_event_record(zero->idle, zero->gather_stream, err));
    return dsc_stream_wait(zero->o.compute, zero->idle, err);
}

typedef struct group_call {
    dsc_zero *zero;
    const dsc_update_terms *terms;
    int32_t group;
    bool made; /* early */
} group_call;

static dsc_status update_group(void *args, dsc_error *err)
{
    const group_call *call = args;
    dsc_tile tile;
    if (call->made)
        return dsc_state_store_updated(call->zero, err);
    do {
        if (atomic_load(&call->zero->cancelled))
            return DSC_FAIL(err, DSC_ERR_CANCELLED, "", "the run has failed");
        DSC_TRY(dsc_update_next_tile(call->zero, call->terms, &tile, err));
        DSC_ASSERT(tile.group == call->group);
    } while (!tile.last_of_group);
    return DSC_OK;
}

static dsc_status start_update(dsc_zero *zero, const dsc_update_terms *terms, int32_t g, bool made, dsc_error *err)
{
    group_call call = { zero, terms, g, made };
    if (zero->update_stream == NULL)
        return update_group(&call, err);
    DSC_TRY(dsc_host_call(zero->update_stream, update_group, &call, (int64_t)sizeof call, err));
    return dsc_event_record(zero->group[g].updated, zero->update_stream, err);
}

static bool is_updated(const dsc_zero *zero, int32_t g)
{
    return zero->o.layout->group[g].trainable && zero->group[g].local_count > 0;
}

/* Whole parameters, where all ranks keep them. */
static dsc_status share_params(dsc_zero *zero, int32_t g, dsc_error *err)
{
    const bool shared = zero->o.stage > 0 && zero->group[g].param_whole && zero->world_size > 1;
    return shared ? gather_params(zero, g, err) : DSC_OK;
}

static dsc_status update_groups(dsc_zero *zero, const dsc_update_terms *terms, dsc_round round, dsc_error *err)
{
    for (int32_t i = round.first; i < round.end; i++) {
        const int32_t g = zero->store.order[i];
        const dsc_group_state *state = &zero->group[g];
        if (!is_updated(zero, g) || dsc_state_store_yields_to_compute(zero, g))
            continue;
        if (zero->o.stage == 0 && zero->world_size > 1 && !zero->sums_are_own)
            DSC_TRY(dsc_comm_all_gather(zero->o.comm, DSC_CHANNEL_CONTROL, state->grad, dsc_zero_own_sum(zero, g),
                                        zero->o.layout->group[g].slice, DSC_F32, zero->o.compute, err));
        DSC_TRY(start_update(zero, terms, g, i < zero->store.made, err));
        DSC_TRY(share_params(zero, g, err));
    }
    return DSC_OK;
}

/* The update's thread is at work on the others, and on its order of groups. */
static dsc_status update_for_compute(dsc_zero *zero, const dsc_update_terms *terms, dsc_error *err)
{
    for (int32_t g = 0; g < zero->o.layout->group_count; g++) {
        dsc_tile tile;
        if (!is_updated(zero, g) || !dsc_state_store_yields_to_compute(zero, g))
            continue;
        DSC_TRY(dsc_state_store_for_compute(zero, g, &tile, err));
        DSC_TRY(update_tile(zero, terms, &tile, err));
        DSC_TRY(dsc_event_record(zero->group[g].updated, zero->o.compute, err));
        DSC_TRY(share_params(zero, g, err));
    }
    return DSC_OK;
}

/* The passes that read tiles, which then come once more. */
static dsc_status walk_tiles(dsc_zero *zero, const dsc_update_terms *terms, dsc_error *err)
{
    DSC_TRY(dsc_state_store_begin(zero, err));
    for (int32_t i = 0; i < zero->optimizer_count; i++) {
        if (zero->optimizer[i]->walk == NULL)
            continue;
        DSC_TRY(zero->optimizer[i]->walk(zero, terms, err));
        DSC_TRY(dsc_state_store_seek(zero, 0, zero->o.layout->group_count, false, err));
    }
    return DSC_OK;
}

/* `complete`: a pass has made the whole update. */
static dsc_status before_update(dsc_zero *zero, dsc_update_terms *terms, bool *complete, dsc_error *err)
{
    *complete = false;
    for (int32_t i = 0; i < zero->optimizer_count && !*complete; i++)
        if (zero->optimizer[i]->before_update != NULL)
            DSC_TRY(zero->optimizer[i]->before_update(zero, terms, complete, err));
    return DSC_OK;
}

/* Round after round of the pass that has rounds; all groups are one round without it. */
static dsc_status update_rounds(dsc_zero *zero, const dsc_update_terms *terms, dsc_error *err)
{
    for (int32_t i = 0; i < zero->optimizer_count; i++) {
        const dsc_zero_pass_ops *pass = zero->optimizer[i];
        if (pass->round_count == NULL)
            continue;
        for (int32_t r = 0; r < pass->round_count(zero); r++) {
            DSC_TRY(pass->before_round(zero, terms, r, err));
            DSC_TRY(update_groups(zero, terms, pass->round(zero, r), err));
        }
        return DSC_OK;
    }
    return update_groups(zero, terms, zero->first_round, err);
}

dsc_status dsc_zero_update(dsc_zero *zero, const dsc_update_scalars *scalars, int32_t class_count, int64_t update,
                           dsc_error *err)
{
    dsc_update_terms terms = { 0 };
    bool complete;
    DSC_ASSERT(!zero->next_pass_prefetched);
    dsc_update_terms_fill(scalars, class_count, update, &terms);
    DSC_TRY(dsc_speculative_update_settle(zero, &terms, err));
    DSC_TRY(after_gathers(zero, err));
    DSC_TRY(before_update(zero, &terms, &complete, err));
    if (complete)
        return DSC_OK;
    zero->update_terms = terms;
    DSC_TRY(walk_tiles(zero, &zero->update_terms, err));
    dsc_hpz_forget(zero, false);
    DSC_TRY(update_rounds(zero, &zero->update_terms, err));
    if (zero->update_stream != NULL)
        DSC_TRY(dsc_event_record(zero->updated, zero->update_stream, err));
    DSC_TRY(dsc_state_store_end(zero, err));
    DSC_TRY(dsc_state_store_wait(zero, false, err));
    return update_for_compute(zero, &zero->update_terms, err);
}

/* Stage 0 keeps whole masters and moments: gathers the slices that were written. */
static dsc_status gather_states(dsc_zero *zero, int32_t g, dsc_error *err)
{
    const int64_t slice = zero->o.layout->group[g].slice;
    dsc_group_state *state = &zero->group[g];
    for (int plane = DSC_PLANE_MASTER; plane < DSC_PLANE_MOMENT1 + dsc_moment_count(zero, g); plane++) {
        char *whole = plane == DSC_PLANE_MASTER ? (char *)state->master : state->moment[plane - DSC_PLANE_MOMENT1];
        const char *mine = whole + slice * zero->o.rank * dsc_plane_bytes_each(zero, (dsc_plane)plane);
        DSC_TRY(dsc_comm_all_gather(zero->o.comm, DSC_CHANNEL_CONTROL, whole, mine, slice,
                                    dsc_zero_dtype(zero, (dsc_plane)plane), zero->o.compute, err));
    }
    return DSC_OK;
}

/* The parameters of this rank's slice from its master weights. */
static dsc_status round_params(dsc_zero *zero, int32_t g, dsc_error *err)
{
    const int64_t slice = zero->o.layout->group[g].slice;
    if (dsc_host_update_updates(zero, g))
        return dsc_host_update_round(zero, g, err);
    for (int64_t first = 0, count; first < slice; first += count) {
        dsc_cast_args cast = { .to_dtype = zero->o.compute_dtype, .from_dtype = DSC_F32 };
        void *from;
        count = slice - first;
        DSC_TRY(dsc_zero_view(zero, g, DSC_PLANE_MASTER, first, &count, false, &from, err));
        DSC_TRY(dsc_zero_view(zero, g, DSC_PLANE_PARAM, first, &count, true, &cast.to, err));
        cast.from = from;
        cast.count = count;
        DSC_TRY(DSC_RUN(zero->o.compute, CAST, &cast, err));
    }
    return DSC_OK;
}

dsc_status dsc_zero_publish(dsc_zero *zero, dsc_error *err)
{
    DSC_ASSERT(!zero->next_pass_prefetched);
    DSC_TRY(dsc_zero_sync(zero, err));
    dsc_hpz_forget(zero, true);
    for (int32_t g = 0; g < zero->o.layout->group_count; g++) {
        const bool trainable = zero->o.layout->group[g].trainable;
        if (trainable && zero->o.compute_dtype != DSC_F32)
            DSC_TRY(round_params(zero, g, err));
        if (zero->world_size == 1)
            continue;
        if (trainable && zero->o.stage == 0)
            DSC_TRY(gather_states(zero, g, err));
        if (zero->group[g].param_whole)
            DSC_TRY(gather_params(zero, g, err));
    }
    DSC_TRY(dsc_zero_forget_errors(zero, err));
    for (int32_t i = 0; i < zero->optimizer_count; i++)
        if (zero->optimizer[i]->forget != NULL)
            DSC_TRY(zero->optimizer[i]->forget(zero, err));
    DSC_TRY(dsc_zero_sync(zero, err));
    return dsc_state_store_settle(zero, err);
}
