/* trust_ratio.c - values of whole tensors, whose elements lie in several ranks' slices: the norms, or root mean
 * squares, of a tensor's weights and of its next direction.
 *
 * A read-only pass over this rank's slices before the update, in the same tiles. It computes the directions of each
 * piece of a tensor and adds both sums of squares to fixed-point sums (kernels/exact.h), whose order does not matter.
 * Pieces, like slices and tiles, end at multiples of 1024 elements of the group. So the norms and the update have
 * equal bits for every stage, world size and placement. SPDX-License-Identifier: Apache-2.0 */
#include "zero/core/internal.h"
#include "zero/core/tile.h"
#include "zero/core/tile_update.h"
#include "zero/offload/placement.h"
#include "zero/offload/update_tiles.h"
#include "zero/optimizer/onebit_lamb.h"
#include "zero/optimizer/trust_ratio.h"

#include <math.h>
#include <string.h>

#define PIECE_ELEMENTS (1 << 18) /* 1 MiB of directions: what a core's cache holds */
#define EXCHANGED_SUMS 1024      /* sums of all ranks at a time: 0.6 MB */

enum { OF_WEIGHTS, OF_DIRECTION, SUMS_EACH };

static bool is_needed(const dsc_zero *zero)
{
    return (dsc_recipes[zero->o.recipe].needs & (DSC_NEEDS_TENSOR_NORMS | DSC_NEEDS_RMS)) != 0;
}

static int64_t piece_elements(const dsc_zero *zero)
{
    int64_t longest = 0;
    for (int32_t g = 0; g < zero->o.layout->group_count; g++)
        longest = dsc_max_i64(longest, zero->o.layout->group[g].trainable ? zero->o.layout->group[g].slice : 0);
    DSC_ASSERT(longest % DSC_SUMSQ_CHUNK == 0); /* pieces end where chunks of sums of squares end */
    return dsc_min_i64(PIECE_ELEMENTS, longest);
}

static int64_t sums_count(const dsc_zero *zero) { return (int64_t)zero->o.layout->tensor_count * SUMS_EACH; }
static int64_t sums_bytes(int64_t count)
{
    DSC_ASSERT(count >= 0);
    return count * (int64_t)sizeof(dsc_fixed_sum);
}

/* The group's tiles are where the device works, not the host. */
static bool on_device(const dsc_zero *zero, int32_t g)
{
    return !dsc_device_host_visible(zero->o.device) && !dsc_host_update_updates(zero, g);
}

static int64_t device_sums_bytes(const dsc_zero *zero)
{
    return dsc_device_host_visible(zero->o.device) ? 0 : sums_bytes(sums_count(zero));
}

enum { NEEDS = 6 };
static void list_needs(dsc_zero *zero, dsc_need out[NEEDS])
{
    dsc_trust_ratio *norms = zero->trust_ratio;
    const int64_t all = sums_bytes(norms->piece_sums) * zero->world_size, direction = piece_elements(zero) * 4;
    const dsc_need needs[NEEDS] = {
        { &norms->device_buf, DSC_TAG_CONTROL, DSC_TIER_DEVICE, device_sums_bytes(zero), DSC_NEED_DEVICE },
        { &norms->host_buf, DSC_TAG_CONTROL, DSC_TIER_PINNED, sums_bytes(sums_count(zero)), DSC_NEED_DEVICE },
        { &norms->all_buf, DSC_TAG_CONTROL, DSC_TIER_PINNED, all, DSC_NEED_DEVICE },
        { &norms->direction_buf, DSC_TAG_CONTROL, DSC_TIER_DEVICE, direction, DSC_NEED_DEVICE },
        { &norms->host_direction_buf, DSC_TAG_CONTROL, DSC_TIER_PINNED, dsc_host_update_is_used(zero) ? direction : 0,
          DSC_NEED_DEVICE },
        { &norms->step, DSC_TAG_CONTROL, DSC_TIER_HOST, zero->o.layout->tensor_count * (int64_t)sizeof *norms->step,
          DSC_NEED_ARRAY },
    };
    memcpy(out, needs, sizeof needs);
}

static dsc_status plan(dsc_zero *zero, dsc_error *err)
{
    dsc_need needs[NEEDS];
    DSC_ASSERT(zero->group != NULL && zero->world_size > 0);
    zero->trust_ratio->piece_sums = dsc_max_i64(1, dsc_min_i64(EXCHANGED_SUMS / zero->world_size, sums_count(zero)));
    DSC_ASSERT(zero->trust_ratio->piece_sums >= 1);
    DSC_ASSERT(zero->trust_ratio->step == NULL);
    list_needs(zero, needs);
    dsc_needs_plan(&zero->needs, needs, NEEDS);
    return DSC_OK;
}

static dsc_status open(dsc_zero *zero, dsc_error *err)
{
    dsc_need needs[NEEDS];
    list_needs(zero, needs);
    return dsc_needs_open(&zero->needs, needs, NEEDS, err);
}

static void close(dsc_zero *zero)
{
    dsc_need needs[NEEDS];
    if (zero->group == NULL) /* nothing was planned */
        return;
    list_needs(zero, needs);
    dsc_needs_close(&zero->needs, needs, NEEDS);
}

static dsc_status add_direction(const dsc_zero *zero, const dsc_tile *tile, const dsc_update_args *args,
                                dsc_fixed_sum *sum, dsc_error *err)
{
    DSC_ASSERT(args->direction != NULL);
    DSC_ASSERT(args->count <= piece_elements(zero));
    const dsc_sumsq_args along = { .x = args->direction, .count = args->count, .sum = sum };
    DSC_TRY(dsc_launch(tile->stream, dsc_recipe_kernel(dsc_group_recipe(zero, tile->group)), args,
                       (int64_t)sizeof *args, err));
    return DSC_RUN(tile->stream, SUMSQ, &along, err);
}

/* The direction without what weights decay by; where they do not, it is the same one. */
static dsc_status add_bare(const dsc_zero *zero, const dsc_tile *tile, const dsc_update_args *args, dsc_fixed_sum *sum,
                           dsc_error *err)
{
    DSC_ASSERT(dsc_onebit_lamb_are_frozen(zero));
    dsc_update_args bare = *args;
    bare.scalars.decay = 0.0f;
    return args->scalars.decay != 0.0f ? add_direction(zero, tile, &bare, sum, err) : DSC_OK;
}

static dsc_status add_weights(const dsc_tile *tile, const dsc_update_args *args, dsc_fixed_sum *sum, dsc_error *err)
{
    DSC_ASSERT(args->master != NULL);
    DSC_ASSERT(args->count > 0);
    const dsc_sumsq_args weights = { .x = args->master, .count = args->count, .sum = sum };
    return DSC_RUN(tile->stream, SUMSQ, &weights, err);
}

/* Elements [first, end) of tensor t, which a chunk's end cuts only at `end`. */
static dsc_status add_piece(const dsc_zero *zero, const dsc_update_terms *terms, const dsc_tile *tile, int32_t t,
                            int64_t first, int64_t end, dsc_error *err)
{
    const dsc_trust_ratio *norms = zero->trust_ratio;
    DSC_ASSERT(first < end);
    DSC_ASSERT(end <= zero->o.layout->tensor[t].offset + zero->o.layout->tensor[t].count);
    const bool by_host = dsc_host_update_updates(zero, tile->group);
    dsc_fixed_sum *sums = on_device(zero, tile->group) ? norms->device_buf.ptr : norms->host_buf.ptr;
    dsc_update_args args;
    dsc_update_args_fill(zero, terms, tile, first, end, t, &args);
    args.direction = by_host ? norms->host_direction_buf.ptr : norms->direction_buf.ptr;
    sums += t * SUMS_EACH;
    DSC_TRY(dsc_onebit_lamb_are_frozen(zero) ? add_bare(zero, tile, &args, &sums[OF_WEIGHTS], err)
                                             : add_weights(tile, &args, &sums[OF_WEIGHTS], err));
    return add_direction(zero, tile, &args, &sums[OF_DIRECTION], err);
}

/* At stage 0 a rank has all elements. Each is still counted once, by its owner; but where ranks exchange signs, which
 * take less than the sums of these tensors may, each rank counts them all. */
static bool counts_all(const dsc_zero *zero) { return dsc_onebit_lamb_are_frozen(zero); }

static dsc_status add_tile(const dsc_zero *zero, const dsc_update_terms *terms, const dsc_tile *tile, dsc_error *err)
{
    const dsc_layout_group *group = &zero->o.layout->group[tile->group];
    const int64_t slice_first = group->slice * zero->o.rank, most = piece_elements(zero);
    int64_t first = tile->first, end = tile->first + tile->count;
    DSC_ASSERT(most > 0);
    DSC_ASSERT(group->trainable);
    if (!counts_all(zero)) {
        first = dsc_max_i64(first, slice_first);
        end = dsc_min_i64(end, slice_first + group->slice);
    }
    for (int32_t t = group->first_tensor; t < group->first_tensor + group->tensor_count; t++) {
        const dsc_layout_tensor *tensor = &zero->o.layout->tensor[t];
        const int64_t last = dsc_min_i64(end, tensor->offset + tensor->count);
        for (int64_t at = dsc_max_i64(first, tensor->offset), next; at < last; at = next) {
            const int64_t into = at % DSC_SUMSQ_CHUNK;
            next = dsc_min_i64(last, at + (into != 0 ? DSC_SUMSQ_CHUNK - into : most));
            DSC_ASSERT(next > at);
            DSC_TRY(add_piece(zero, terms, tile, t, at, next, err));
        }
    }
    return DSC_OK;
}

static dsc_status add_groups(dsc_zero *zero, const dsc_update_terms *terms, dsc_error *err)
{
    const dsc_layout *layout = zero->o.layout;
    dsc_fixed_sum *on_host = zero->trust_ratio->host_buf.ptr, *device_sums = zero->trust_ratio->device_buf.ptr;
    for (int32_t g = 0; g < layout->group_count; g++) {
        const int64_t from = (int64_t)layout->group[g].first_tensor * SUMS_EACH;
        dsc_tile tile = { .last_of_group = !layout->group[g].trainable || zero->group[g].local_count == 0 };
        while (!tile.last_of_group) {
            DSC_TRY(dsc_update_tiles_next(zero, &tile, err));
            DSC_ASSERT(tile.group == g);
            DSC_TRY(add_tile(zero, terms, &tile, err));
            DSC_TRY(dsc_update_tiles_left(zero, &tile, err));
        }
        if (on_device(zero, g))
            DSC_TRY(dsc_copy(zero->o.compute, on_host + from, device_sums + from,
                             sums_bytes((int64_t)layout->group[g].tensor_count * SUMS_EACH), err));
    }
    return dsc_stream_sync(zero->o.compute, err);
}

/* A tensor whose weights or direction are 0 has a trust of 1, within the bounds. */
static double trust_of(double weights, double direction, const dsc_update_scalars *s)
{
    double trust = weights != 0 && direction != 0 ? sqrt(weights) / sqrt(direction) : 1.0;
    if (trust > (double)s->trust_most)
        trust = (double)s->trust_most;
    return trust < (double)s->trust_least ? (double)s->trust_least : trust;
}

/* As Adafactor has it: a direction is at most so long on average, and larger weights take longer steps. */
static dsc_tensor_step step_by_rms(double weights, double direction, const dsc_update_scalars *s)
{
    const double scale = s->by_weights != 0 ? fmax((double)s->trust_least, weights) : 1.0;
    return (dsc_tensor_step) { .rate = scale / fmax(1.0, direction / (double)s->trust_most), .scale = scale };
}

/* As LARS has it: the decay of weights counts with their gradient, and tensors of one dimension are not adapted. */
static dsc_tensor_step step_of_lars(const dsc_layout_tensor *tensor, double weights, double gradient,
                                    const dsc_update_scalars *s)
{
    DSC_ASSERT(weights >= 0 || isnan(weights));
    if (tensor->spec->dim_count <= 1 || weights == 0 || gradient == 0)
        return (dsc_tensor_step) { .rate = 1.0, .scale = 1.0 };
    const double of_all = gradient + (double)s->decay * weights + (double)s->eps;
    return (dsc_tensor_step) { .rate = 1.0, .scale = (double)s->trust_most * weights / of_all };
}

/* The share of a direction's norm without weight decay. */
static double bare_share(const double square[SUMS_EACH], const dsc_update_scalars *s)
{
    const bool less = s->decay != 0.0f && square[OF_WEIGHTS] < square[OF_DIRECTION];
    return less ? sqrt(square[OF_WEIGHTS]) / sqrt(square[OF_DIRECTION]) : 1.0;
}

static dsc_tensor_step step_of(const dsc_zero *zero, const dsc_update_terms *terms, int32_t t,
                               const double square[SUMS_EACH])
{
    DSC_ASSERT(t >= 0);
    DSC_ASSERT(t < zero->o.layout->tensor_count);
    const dsc_layout_tensor *tensor = &zero->o.layout->tensor[t];
    const dsc_update_scalars *s = &terms->scalars[tensor->update_class];
    const double count = (double)tensor->count;
    if (dsc_onebit_lamb_are_frozen(zero))
        return (dsc_tensor_step) { .rate = dsc_onebit_lamb_frozen_ratio(zero, t, bare_share(square, s)) };
    if ((dsc_recipes[zero->o.recipe].needs & DSC_NEEDS_RMS) != 0)
        return step_by_rms(sqrt(square[OF_WEIGHTS] / count), sqrt(square[OF_DIRECTION] / count), s);
    if (zero->o.recipe == DSC_RECIPE_LARS)
        return step_of_lars(tensor, sqrt(square[OF_WEIGHTS]), sqrt(square[OF_DIRECTION]), s);
    const double trust = trust_of(square[OF_WEIGHTS], square[OF_DIRECTION], s);
    return (dsc_tensor_step) { .rate =
                                   dsc_onebit_lamb_are_used(zero) ? dsc_onebit_lamb_average(zero, t, trust) : trust };
}

static dsc_status exchange(dsc_zero *zero, const dsc_update_terms *terms, dsc_error *err)
{
    dsc_trust_ratio *norms = zero->trust_ratio;
    const dsc_fixed_sum *mine = norms->host_buf.ptr;
    const int64_t count = sums_count(zero);
    const int32_t ranks = counts_all(zero) ? 1 : zero->world_size;
    double square[SUMS_EACH] = { 0 };
    DSC_ASSERT(count % SUMS_EACH == 0); /* a tensor's sums follow each other */
    for (int64_t first = 0, n; first < count; first += n) {
        n = dsc_min_i64(norms->piece_sums, count - first);
        DSC_ASSERT(n > 0);
        DSC_ASSERT(sums_bytes(n) * zero->world_size <= norms->all_buf.bytes);
        const dsc_fixed_sum *all = counts_all(zero) ? mine + first : norms->all_buf.ptr;
        if (!counts_all(zero))
            DSC_TRY(dsc_comm_all_gather(zero->o.host_comm, DSC_CHANNEL_CONTROL, norms->all_buf.ptr, mine + first,
                                        sums_bytes(n), DSC_U8, NULL, err));
        for (int64_t i = 0; i < n; i++) {
            const int64_t t = (first + i) / SUMS_EACH, of = (first + i) % SUMS_EACH;
            dsc_fixed_sum sum = all[i];
            for (int32_t r = 1; r < ranks; r++)
                dsc_fixed_sum_merge(&sum, &all[r * n + i]);
            square[of] = dsc_fixed_sum_value(&sum);
            if (of == OF_DIRECTION)
                norms->step[t] = step_of(zero, terms, (int32_t)t, square);
        }
    }
    return DSC_OK;
}

static dsc_status walk(dsc_zero *zero, const dsc_update_terms *terms, dsc_error *err)
{
    dsc_trust_ratio *norms = zero->trust_ratio;
    DSC_ASSERT(norms->host_buf.bytes == sums_bytes(sums_count(zero)));
    memset(norms->host_buf.ptr, 0, (size_t)sums_bytes(sums_count(zero)));
    if (device_sums_bytes(zero) > 0)
        DSC_TRY(dsc_fill_zero(zero->o.compute, norms->device_buf.ptr, device_sums_bytes(zero), err));
    DSC_TRY(add_groups(zero, terms, err));
    return exchange(zero, terms, err);
}

static int64_t wire_bytes(const dsc_zero *zero) { return (zero->world_size - 1) * sums_bytes(sums_count(zero)); }

static void tensor_step(const dsc_zero *zero, int32_t t, dsc_update_scalars *s)
{
    DSC_ASSERT(t >= 0);
    DSC_ASSERT(t < zero->o.layout->tensor_count);
    s->step_size = (float)((double)s->step_size * zero->trust_ratio->step[t].rate);
    s->shrink = (float)((double)s->shrink * zero->trust_ratio->step[t].scale);
    if (zero->o.recipe == DSC_RECIPE_LARS && zero->o.layout->tensor[t].spec->dim_count <= 1)
        s->decay = 0.0f;
}

const dsc_zero_pass_ops dsc_trust_ratio_pass = {
    .name = "trust_ratio",
    .needs = DSC_NEEDS_TENSOR_NORMS | DSC_NEEDS_RMS,
    .is_needed = is_needed,
    .plan = plan,
    .open = open,
    .close = close,
    .wire_bytes = wire_bytes,
    .walk = walk,
    .tensor_step = tensor_step,
};
