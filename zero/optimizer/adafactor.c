/* adafactor.c - second moments of matrices as one number for each row and one for each column (Adafactor, Shazeer &
 * Stern
 * 2018), though a matrix's elements lie in several ranks' slices.
 *
 * Every rank has all of these numbers: they are a few hundredths of a percent of the elements. A pass over this rank's
 * tiles before the update adds up squares of gradients along rows and columns, exactly (kernels/binned_sum.h). Each
 * rank is then sent everybody's sums of one part of the numbers, makes the new ones of them, and gives these to all. So
 * the bits depend on neither stage, world size nor placement. SPDX-License-Identifier: Apache-2.0 */
#include "zero/core/internal.h"
#include "zero/core/tile.h"
#include "zero/offload/placement.h"
#include "zero/offload/update_tiles.h"
#include "zero/optimizer/adafactor.h"

#include <math.h>
#include <string.h>

#define PIECE_ELEMENTS (1 << 18) /* a megabyte of gradients, read twice: what a core's cache holds */

static bool is_needed(const dsc_zero *zero)
{
    return (dsc_recipes[zero->o.recipe].needs & DSC_NEEDS_ROW_COL_STATS) != 0;
}

static bool has_factors(const dsc_zero *zero, int32_t t)
{
    DSC_ASSERT(t >= 0);
    DSC_ASSERT(t < zero->o.layout->tensor_count);
    return is_needed(zero) && zero->o.layout->group[zero->o.layout->tensor[t].group].matrices;
}

static int64_t factor_count(const dsc_layout_tensor *tensor)
{
    DSC_ASSERT(dsc_layout_rows(tensor) * dsc_layout_cols(tensor) == tensor->count);
    return dsc_layout_rows(tensor) + dsc_layout_cols(tensor);
}

/* Numbers of all parts; the last part may be padded. */
static int64_t padded_count(const dsc_zero *zero) { return zero->adafactor->part * zero->world_size; }

enum { NEEDS = 6 };
/* Its buffers, once the numbers are counted. */
static void list_needs(dsc_zero *zero, dsc_need out[NEEDS])
{
    dsc_adafactor *f = zero->adafactor;
    const bool has_copies = !dsc_device_host_visible(zero->o.device);
    const int64_t all = padded_count(zero), sum = (int64_t)sizeof(dsc_binned_sum), each = (int64_t)sizeof(float);
    const dsc_need needs[NEEDS] = {
        { &f->state_buf, DSC_TAG_MOMENT, DSC_TIER_PINNED, all * each, DSC_NEED_DEVICE },
        { &f->host_sums, DSC_TAG_CONTROL, DSC_TIER_PINNED, all * sum, DSC_NEED_DEVICE },
        { &f->part_sums, DSC_TAG_CONTROL, DSC_TIER_PINNED, all * sum, DSC_NEED_DEVICE },
        { &f->host_factors, DSC_TAG_CONTROL, DSC_TIER_PINNED, all * each, DSC_NEED_DEVICE },
        { &f->device_sums, DSC_TAG_CONTROL, DSC_TIER_DEVICE, has_copies ? all * sum : 0, DSC_NEED_DEVICE },
        { &f->device_factors, DSC_TAG_CONTROL, DSC_TIER_DEVICE, has_copies ? all * each : 0, DSC_NEED_DEVICE },
    };
    memcpy(out, needs, sizeof needs);
}

/* The array that counts the numbers, which the plan fills. */
static dsc_need first_need(dsc_zero *zero)
{
    return (dsc_need) { &zero->adafactor->at, DSC_TAG_CONTROL, DSC_TIER_HOST,
                        (zero->o.layout->tensor_count + 1) * (int64_t)sizeof *zero->adafactor->at, DSC_NEED_SMALL };
}

static dsc_status check_side(const dsc_layout_tensor *tensor, const char *what, int64_t count, dsc_error *err)
{
    DSC_ASSERT(count > 0);
    if (count <= DSC_BINNED_TERMS_MAX)
        return DSC_OK;
    return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, tensor->spec->name,
                    "%lld %s; Adafactor's sums are exact up to %lld: give "
                    "it another shape, or use another optimizer",
                    (long long)count, what, (long long)DSC_BINNED_TERMS_MAX);
}

static dsc_status plan(dsc_zero *zero, dsc_error *err)
{
    const dsc_layout *layout = zero->o.layout;
    dsc_adafactor *f = zero->adafactor;
    int64_t count = 0;
    const dsc_need first = first_need(zero);
    DSC_TRY(dsc_needs_plan_and_open(&zero->needs, &first, 1, err));
    for (int32_t t = 0; t < layout->tensor_count; t++) {
        const dsc_layout_tensor *tensor = &layout->tensor[t];
        f->at[t] = count;
        if (!has_factors(zero, t))
            continue;
        DSC_TRY(check_side(tensor, "rows", dsc_layout_rows(tensor), err));
        DSC_TRY(check_side(tensor, "columns", dsc_layout_cols(tensor), err));
        count += factor_count(tensor);
    }
    f->at[layout->tensor_count] = count;
    f->part = dsc_div_ceil(count, zero->world_size);
    DSC_ASSERT(padded_count(zero) >= count);
    DSC_ASSERT(padded_count(zero) - count < zero->world_size);
    dsc_need needs[NEEDS];
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
    list_needs(zero, needs);
    dsc_needs_close(&zero->needs, needs, NEEDS);
    const dsc_need first = first_need(zero);
    dsc_needs_close(&zero->needs, &first, 1);
}

float *dsc_adafactor_factors(const dsc_zero *zero, int32_t t, bool cols)
{
    DSC_ASSERT(has_factors(zero, t));
    DSC_ASSERT(zero->adafactor->at[t + 1] <= padded_count(zero));
    const int64_t rows = dsc_layout_rows(&zero->o.layout->tensor[t]);
    return (float *)zero->adafactor->state_buf.ptr + zero->adafactor->at[t] + (cols ? rows : 0);
}

/* ---- sums ---- */

/* The group's tiles are where the device works, not the host. */
static bool on_device(const dsc_zero *zero, int32_t g)
{
    DSC_ASSERT(g < zero->o.layout->group_count);
    return !dsc_device_host_visible(zero->o.device) && !dsc_host_update_updates(zero, g);
}

/* Elements [first, end) of tensor t. */
static dsc_status add_piece(const dsc_zero *zero, const dsc_update_terms *terms, const dsc_tile *tile, int32_t t,
                            int64_t first, int64_t end, dsc_error *err)
{
    const dsc_layout_tensor *tensor = &zero->o.layout->tensor[t];
    DSC_ASSERT(first >= tensor->offset);
    DSC_ASSERT(first < end);
    DSC_ASSERT(end <= tensor->offset + tensor->count);
    const dsc_buf *sums = on_device(zero, tile->group) ? &zero->adafactor->device_sums : &zero->adafactor->host_sums;
    dsc_binned_sum *row = (dsc_binned_sum *)sums->ptr + zero->adafactor->at[t];
    const dsc_matrix_squares_args args = { .x = tile->grad + (first - tile->first),
                                           .count = end - first,
                                           .at = first - tensor->offset,
                                           .cols = dsc_layout_cols(tensor),
                                           .scale = terms->scalars[tensor->update_class].grad_scale,
                                           .grid = zero->adafactor->grid,
                                           .row = row,
                                           .col = row + dsc_layout_rows(tensor) };
    return DSC_RUN(tile->stream, MATRIX_SQUARES, &args, err);
}

/* At stage 0 a rank has all elements; each is still counted once, by its owner. */
static dsc_status add_tile(const dsc_zero *zero, const dsc_update_terms *terms, const dsc_tile *tile, dsc_error *err)
{
    const dsc_layout_group *group = &zero->o.layout->group[tile->group];
    const int64_t slice_first = group->slice * zero->o.rank;
    const int64_t most = on_device(zero, tile->group) ? tile->count : PIECE_ELEMENTS;
    DSC_ASSERT(group->matrices);
    DSC_ASSERT(most > 0);
    const int64_t begin = dsc_max_i64(tile->first, slice_first);
    const int64_t end = dsc_min_i64(tile->first + tile->count, slice_first + group->slice);
    for (int32_t t = group->first_tensor; t < group->first_tensor + group->tensor_count; t++) {
        const dsc_layout_tensor *tensor = &zero->o.layout->tensor[t];
        const int64_t last = dsc_min_i64(end, tensor->offset + tensor->count);
        for (int64_t at = dsc_max_i64(begin, tensor->offset); at < last; at += most)
            DSC_TRY(add_piece(zero, terms, tile, t, at, dsc_min_i64(last, at + most), err));
    }
    return DSC_OK;
}

static dsc_status add_groups(dsc_zero *zero, const dsc_update_terms *terms, dsc_error *err)
{
    const dsc_layout *layout = zero->o.layout;
    dsc_binned_sum *on_host = zero->adafactor->host_sums.ptr, *device_sums = zero->adafactor->device_sums.ptr;
    for (int32_t g = 0; g < layout->group_count; g++) {
        const dsc_layout_group *group = &layout->group[g];
        const int64_t from = zero->adafactor->at[group->first_tensor];
        const int64_t count = zero->adafactor->at[group->first_tensor + group->tensor_count] - from;
        DSC_ASSERT(count == 0 || group->matrices);
        dsc_tile tile = { .last_of_group = !group->matrices || zero->group[g].local_count == 0 };
        while (!tile.last_of_group) {
            DSC_TRY(dsc_update_tiles_next(zero, &tile, err));
            DSC_ASSERT(tile.group == g);
            DSC_TRY(add_tile(zero, terms, &tile, err));
            DSC_TRY(dsc_update_tiles_left(zero, &tile, err));
        }
        if (count > 0 && on_device(zero, g))
            DSC_TRY(
                dsc_copy(zero->o.compute, on_host + from, device_sums + from, count * (int64_t)sizeof *on_host, err));
    }
    return dsc_stream_sync(zero->o.compute, err);
}

/* ---- from sums to factors ---- */

/* Rows, or columns, of a tensor whose numbers begin at `at`: those that are this rank's, each a mean of `terms`
 * squares. */
static void compute_means(dsc_zero *zero, int64_t at, int64_t count, int64_t terms, const dsc_update_scalars *s)
{
    const dsc_adafactor *f = zero->adafactor;
    const int64_t first = f->part * zero->o.rank;
    const int64_t begin = dsc_max_i64(at, first), end = dsc_min_i64(at + count, first + f->part);
    DSC_ASSERT(at + count <= padded_count(zero));
    DSC_ASSERT(terms > 0);
    const dsc_binned_sum *sums = f->part_sums.ptr;
    float *state = f->state_buf.ptr;
    for (int64_t i = begin; i < end; i++) {
        dsc_binned_sum sum = sums[i - first];
        for (int32_t r = 1; r < zero->world_size; r++)
            dsc_binned_merge(&sum, &sums[r * f->part + (i - first)]);
        const float mean = (float)(dsc_binned_value(&sum) / (double)terms + (double)s->eps);
        state[i] = fmaf(s->one_minus_beta2, mean - state[i], state[i]);
    }
}

/* Factors of the elements: 1 / sqrt(row / mean of rows) and 1 / sqrt(column). */
static void make_factors(const dsc_zero *zero, const dsc_update_terms *terms, int32_t t)
{
    const dsc_layout_tensor *tensor = &zero->o.layout->tensor[t];
    const int64_t rows = dsc_layout_rows(tensor), all = factor_count(tensor);
    const float *state = dsc_adafactor_factors(zero, t, false);
    float *factor = (float *)zero->adafactor->host_factors.ptr + zero->adafactor->at[t];
    double mean = 0;
    DSC_ASSERT(zero->adafactor->at[t] + all == zero->adafactor->at[t + 1]);
    for (int64_t i = 0; i < rows; i++)
        mean += (double)state[i];
    mean = fmax(mean / (double)rows, (double)terms->scalars[tensor->update_class].mean_least);
    for (int64_t i = 0; i < all; i++)
        factor[i] = (float)(1.0 / sqrt(i < rows ? (double)state[i] / mean : (double)state[i]));
}

static dsc_status exchange(dsc_zero *zero, const dsc_update_terms *terms, dsc_error *err)
{
    dsc_adafactor *f = zero->adafactor;
    float *state = f->state_buf.ptr;
    DSC_ASSERT(f->part_sums.bytes == zero->world_size * f->part * (int64_t)sizeof(dsc_binned_sum));
    DSC_ASSERT(f->host_sums.bytes == f->part_sums.bytes);
    DSC_TRY(dsc_comm_all_to_all(zero->o.host_comm, DSC_CHANNEL_CONTROL, f->part_sums.ptr, f->host_sums.ptr,
                                f->part * (int64_t)sizeof(dsc_binned_sum), NULL, err));
    for (int32_t t = 0; t < zero->o.layout->tensor_count; t++) {
        const dsc_layout_tensor *tensor = &zero->o.layout->tensor[t];
        const int64_t rows = dsc_layout_rows(tensor), cols = dsc_layout_cols(tensor);
        const dsc_update_scalars *s = &terms->scalars[tensor->update_class];
        if (!has_factors(zero, t))
            continue;
        compute_means(zero, f->at[t], rows, cols, s);
        compute_means(zero, f->at[t] + rows, cols, rows, s);
    }
    return dsc_comm_all_gather(zero->o.host_comm, DSC_CHANNEL_CONTROL, state, state + f->part * zero->o.rank, f->part,
                               DSC_F32, NULL, err);
}

static dsc_status walk(dsc_zero *zero, const dsc_update_terms *terms, dsc_error *err)
{
    dsc_adafactor *f = zero->adafactor;
    const double norm = (double)terms->scalars[0].grad_norm;
    f->grid = dsc_binned_grid_for(1.01 * norm * norm); /* it was rounded, and so are gradients */
    memset(f->host_sums.ptr, 0, (size_t)f->host_sums.bytes);
    if (f->device_sums.bytes > 0)
        DSC_TRY(dsc_fill_zero(zero->o.compute, f->device_sums.ptr, f->device_sums.bytes, err));
    DSC_TRY(add_groups(zero, terms, err));
    DSC_TRY(exchange(zero, terms, err));
    for (int32_t t = 0; t < zero->o.layout->tensor_count; t++)
        if (has_factors(zero, t))
            make_factors(zero, terms, t);
    if (f->device_factors.bytes > 0)
        DSC_TRY(dsc_copy(zero->o.compute, f->device_factors.ptr, f->host_factors.ptr, f->device_factors.bytes, err));
    return dsc_stream_sync(zero->o.compute, err);
}

static void set_args(const dsc_zero *zero, const dsc_tile *tile, int64_t first, int32_t t, dsc_update_args *out)
{
    const dsc_layout_tensor *tensor = &zero->o.layout->tensor[t];
    DSC_ASSERT(has_factors(zero, t));
    DSC_ASSERT(first >= tensor->offset);
    const dsc_adafactor *f = zero->adafactor;
    const dsc_buf *buf = on_device(zero, tile->group) ? &f->device_factors : &f->host_factors;
    out->row = (const float *)buf->ptr + f->at[t];
    out->col = out->row + dsc_layout_rows(tensor);
    out->at = first - tensor->offset;
    out->cols = dsc_layout_cols(tensor);
}

static int64_t wire_bytes(const dsc_zero *zero)
{
    DSC_ASSERT(zero->adafactor->part > 0 || zero->adafactor->at[zero->o.layout->tensor_count] == 0);
    const int64_t each = sizeof(dsc_binned_sum) + sizeof(float); /* to its owner, and what is made of it back */
    return (zero->world_size - 1) * zero->adafactor->part * each;
}

static void forget_shared(dsc_zero *zero)
{
    DSC_ASSERT(zero->adafactor->state_buf.bytes == padded_count(zero) * (int64_t)sizeof(float));
    memset(zero->adafactor->state_buf.ptr, 0, (size_t)zero->adafactor->state_buf.bytes);
}

const dsc_zero_pass_ops dsc_adafactor_pass = {
    .name = "adafactor",
    .needs = DSC_NEEDS_ROW_COL_STATS,
    .matrices_only = true,
    .is_needed = is_needed,
    .plan = plan,
    .open = open,
    .close = close,
    .wire_bytes = wire_bytes,
    .walk = walk,
    .set_args = set_args,
    .forget_shared = forget_shared,
};
