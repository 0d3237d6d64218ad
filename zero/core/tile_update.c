/* tile_update.c - the update of one tile: the kernel launches over its tensors, with the scalars of their classes.
 *
 * Every stage runs the same kernel over the same elements, so the bits agree; a stage only decides over which range.
 * SPDX-License-Identifier: Apache-2.0 */
#include "zero/core/internal.h"
#include "zero/core/tile.h"
#include "zero/core/tile_update.h"

#include <string.h>

#include "base/rng.h"

void dsc_update_terms_fill(const dsc_update_scalars *scalars, int32_t class_count, int64_t update,
                           dsc_update_terms *out)
{
    DSC_ASSERT(update >= 1);
    DSC_ASSERT(class_count > 0 && class_count <= DSC_UPDATE_CLASSES_MAX);
    memcpy(out->scalars, scalars, (size_t)class_count * sizeof *scalars);
    out->stream = dsc_rng_stream(DSC_RNG_MOMENT, (uint32_t)update);
}

/* The number that an element of tensor t draws by is ahead of its place in the group by so much. */
static int64_t drawn_ahead(const dsc_layout *layout, int32_t t)
{
    return layout->tensor[t].drawn - layout->tensor[t].offset;
}

/* Where the sums are, and the states before the update if they are not written in place. */
static void fill_sources(const dsc_zero *zero, const dsc_tile *tile, int64_t at, int64_t moment_at,
                         dsc_update_args *out)
{
    DSC_ASSERT((tile->grad != NULL) != (tile->grad_bf16 != NULL));
    DSC_ASSERT(tile->master_from == NULL || dsc_moment_count(zero, tile->group) <= DSC_UPDATE_STATES_U8);
    if (tile->grad_bf16 != NULL) {
        out->grad_bf16 = tile->grad_bf16 + at;
        out->grad_dtype = DSC_BF16;
    } else {
        out->grad = tile->grad + at;
        out->round_dtype = dsc_zero_sum_rounding(zero, tile->group);
    }
    if (tile->master_from == NULL)
        return;
    out->master_from = tile->master_from + at;
    for (int32_t k = 0; k < dsc_moment_count(zero, tile->group); k++)
        out->state_from[k] = tile->moment_from[k] + moment_at;
}

void dsc_update_args_fill(const dsc_zero *zero, const dsc_update_terms *terms, const dsc_tile *tile, int64_t first,
                          int64_t end, int32_t t, dsc_update_args *out)
{
    const dsc_layout_group *group = &zero->o.layout->group[tile->group];
    const int64_t at = first - tile->first, moment_at = at * dsc_plane_bytes_each(zero, DSC_PLANE_MOMENT1);
    DSC_ASSERT(first >= tile->first);
    DSC_ASSERT(first < end);
    DSC_ASSERT(end <= tile->first + tile->count);
    DSC_ASSERT(t >= group->first_tensor);
    DSC_ASSERT(t < group->first_tensor + group->tensor_count);
    *out = (dsc_update_args) { .master = tile->master + at,
                               .count = end - first,
                               .state_dtype = zero->o.moment_dtype,
                               .seed = zero->o.seed,
                               .stream = terms->stream,
                               .first = group->position + first + drawn_ahead(zero->o.layout, t),
                               .half_dtype = zero->o.compute_dtype,
                               .scalars = terms->scalars[zero->o.layout->tensor[t].update_class] };
    for (int32_t k = 0; k < dsc_moment_count(zero, tile->group); k++)
        out->state[k] = tile->moment[k] + moment_at;
    fill_sources(zero, tile, at, moment_at, out);
    const dsc_group_state *state = &zero->group[tile->group];
    for (int32_t k = 0; k < DSC_UPDATE_STATES_U8 && zero->o.moment_dtype == DSC_U8; k++) {
        DSC_ASSERT((first - state->local_first) % DSC_Q8_BLOCK == 0);
        out->absmax[k] = state->absmax[k] + (first - state->local_first) / DSC_Q8_BLOCK;
    }
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
    DSC_ASSERT(t < zero->o.layout->tensor_count);
    const uint32_t needs = dsc_recipes[dsc_group_recipe(zero, zero->o.layout->tensor[t].group)].needs;
    for (int32_t i = 0; i < zero->optimizer_count && needs != DSC_NEEDS_NOTHING; i++)
        if ((zero->optimizer[i]->needs & needs) != 0 && zero->optimizer[i]->tensor_step != NULL)
            zero->optimizer[i]->tensor_step(zero, t, s);
}

/* The directions of a tile whose recipe uses whole matrices; NULL: the recipe uses none. */
static dsc_status find_direction(dsc_zero *zero, const dsc_tile *tile, uint32_t needs, const float **along,
                                 dsc_error *err)
{
    *along = NULL;
    for (int32_t i = 0; i < zero->optimizer_count; i++)
        if ((zero->optimizer[i]->needs & needs) != 0 && zero->optimizer[i]->direction != NULL)
            DSC_TRY(zero->optimizer[i]->direction(zero, tile, along, err));
    DSC_ASSERT(*along != NULL || (needs & DSC_NEEDS_WHOLE_MATRIX) == 0);
    return DSC_OK;
}

/* One launch over elements [first, end) of the tile's group, which begin in tensor t; `along` is the tile's. */
static dsc_status update_range(const dsc_zero *zero, const dsc_update_terms *terms, const dsc_tile *tile,
                               const float *along, int64_t first, int64_t end, int32_t t, dsc_error *err)
{
    dsc_update_args args;
    DSC_ASSERT(zero->o.layout->tensor[t].group == tile->group);
    dsc_update_args_fill(zero, terms, tile, first, end, t, &args);
    step_of_tensor(zero, t, &args.scalars);
    if (along != NULL)
        args.along = along + (first - tile->first);
    return dsc_launch(tile->stream, dsc_recipe_kernel(dsc_group_recipe(zero, tile->group)), &args, (int64_t)sizeof args,
                      err);
}

/* The padding behind a matrix in its group has no row. It is 0, and so are its sums: any recipe leaves it so. */
static dsc_status update_padding(const dsc_zero *zero, const dsc_update_terms *terms, const dsc_tile *tile,
                                 int64_t first, int64_t end, int32_t t, dsc_error *err)
{
    dsc_update_args args;
    DSC_ASSERT(first >= zero->o.layout->tensor[t].offset + zero->o.layout->tensor[t].count);
    dsc_update_args_fill(zero, terms, tile, first, end, t, &args);
    return DSC_RUN(tile->stream, SGD, &args, err);
}

/* Whether tensor t may be in a launch with its neighbour `of`: of one class and, for random roundings, in their order.
 */
static bool are_alike(const dsc_zero *zero, int32_t of, int32_t t)
{
    const dsc_layout *layout = zero->o.layout;
    return layout->tensor[t].update_class == layout->tensor[of].update_class &&
           (zero->o.moment_dtype == DSC_F32 || drawn_ahead(layout, t) == drawn_ahead(layout, of));
}

/* Runs of neighbouring tensors that are alike are one launch, unless each tensor has a step of its own; padding goes
 * with the tensor before it. */
dsc_status dsc_update_tile(dsc_zero *zero, const dsc_update_terms *terms, const dsc_tile *tile, dsc_error *err)
{
    const dsc_layout *layout = zero->o.layout;
    const dsc_layout_group *group = &layout->group[tile->group];
    const uint32_t needs = dsc_recipes[dsc_group_recipe(zero, tile->group)].needs;
    const int64_t tile_end = tile->first + tile->count;
    const float *along;
    int64_t first = tile->first;
    int32_t t = group->first_tensor;
    const int32_t last = group->first_tensor + group->tensor_count;
    DSC_ASSERT(tile->count > 0);
    DSC_ASSERT(tile_end <= group->padded);
    DSC_TRY(find_direction(zero, tile, needs, &along, err));
    while (first < tile_end) {
        while (t + 1 < last && layout->tensor[t + 1].offset <= first)
            t++;
        const int32_t of = t;
        while (t + 1 < last && are_alike(zero, of, t + 1) && needs == DSC_NEEDS_NOTHING)
            t++;
        const int64_t next = t + 1 < last ? dsc_min_i64(layout->tensor[t + 1].offset, tile_end) : tile_end;
        const bool has_rows = (needs & DSC_NEEDS_ROW_COL_STATS) != 0;
        const int64_t of_tensor = dsc_min_i64(next, layout->tensor[of].offset + layout->tensor[of].count);
        const int64_t end = has_rows && first < of_tensor ? of_tensor : next;
        DSC_ASSERT(end > first);
        if (has_rows && first >= of_tensor)
            DSC_TRY(update_padding(zero, terms, tile, first, end, of, err));
        else
            DSC_TRY(update_range(zero, terms, tile, along, first, end, of, err));
        first = end;
    }
    for (int32_t i = 0; i < zero->optimizer_count; i++)
        if (zero->optimizer[i]->after_tile != NULL)
            DSC_TRY(zero->optimizer[i]->after_tile(zero, tile, err));
    return DSC_OK;
}
