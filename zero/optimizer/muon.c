/* muon.c - directions of whole matrices, orthogonalised, although the elements of a matrix lie in the slices of
 * several ranks.
 *
 * Groups of matrices are taken in rounds, which bound the memory. In each, a walk over this rank's tiles
 * computes its part of the directions. The parts are sent to the owners of the matrices, which are chosen for equal
 * load. An owner orthogonalises its matrices by Newton-Schulz steps (Jordan 2024) in exact products of fp32
 * (kernels/exact_gemm.h), and the results are sent back. A matrix is always worked on whole, so the bits
 * are the same for every stage, world size and placement. SPDX-License-Identifier: Apache-2.0 */
#include "zero/core/internal.h"
#include "zero/core/tile.h"
#include "zero/core/tile_update.h"
#include "zero/offload/placement.h"
#include "zero/offload/state_store.h"
#include "zero/offload/update_tiles.h"
#include "zero/optimizer/muon.h"

#include <math.h>
#include <string.h>

#define NORM_LEAST 1e-7                   /* torch.optim.Muon's */
/* Coefficients of the polynomial that each step applies to the singular values. */
static const float first_order = 3.4445f, third_order = -4.7750f, fifth_order = 2.0315f;

static bool is_needed(const dsc_zero *zero)
{
    return (dsc_recipes[zero->o.recipe].needs & DSC_NEEDS_WHOLE_MATRIX) != 0;
}

/* torch multiplies a matrix's rate by the root of its rows over its columns, if that is more than 1. */
static void tensor_step(const dsc_zero *zero, int32_t t, dsc_update_scalars *s)
{
    const dsc_layout_tensor *tensor = &zero->o.layout->tensor[t];
    DSC_ASSERT(zero->o.layout->group[tensor->group].matrices);
    const double factor = sqrt(fmax(1.0, (double)dsc_layout_rows(tensor) / (double)dsc_layout_cols(tensor)));
    s->step_size = (float)((double)s->step_size * factor);
}

static int64_t smaller_side(const dsc_layout_tensor *tensor)
{
    DSC_ASSERT(dsc_layout_rows(tensor) * dsc_layout_cols(tensor) == tensor->count);
    return dsc_min_i64(dsc_layout_rows(tensor), dsc_layout_cols(tensor));
}

/* The tensors of a round are [first, end); tensors of groups without matrices lie among them. */
static void tensors_of(const dsc_zero *zero, dsc_round round, int32_t *first, int32_t *end)
{
    DSC_ASSERT(round.first < round.end);
    DSC_ASSERT(round.end <= zero->o.layout->group_count);
    const dsc_layout_group *last = &zero->o.layout->group[round.end - 1];
    *first = zero->o.layout->group[round.first].first_tensor;
    *end = last->first_tensor + last->tensor_count;
}

static bool is_matrix(const dsc_zero *zero, int32_t t)
{
    DSC_ASSERT(t < zero->o.layout->tensor_count);
    return zero->o.layout->group[zero->o.layout->tensor[t].group].matrices;
}

/* Elements of a tensor in a rank's slice, from *first on. */
static int64_t span_of(const dsc_zero *zero, int32_t t, int32_t rank, int64_t *first)
{
    DSC_ASSERT(rank >= 0);
    DSC_ASSERT(rank < zero->world_size);
    const dsc_layout_tensor *tensor = &zero->o.layout->tensor[t];
    const int64_t slice = zero->o.layout->group[tensor->group].slice;
    return dsc_layout_span(tensor, slice * rank, slice, first);
}

/* ---- planning ---- */

static double work_of(const dsc_zero *zero, int32_t t)
{
    const dsc_layout_tensor *tensor = &zero->o.layout->tensor[t];
    const double side = (double)smaller_side(tensor);
    return side * (2.0 * (double)tensor->count + side * side);
}

/* The largest first, each to who has the least to do. */
static void choose_owners(dsc_zero *zero, dsc_round round, double *load)
{
    int32_t first, end;
    tensors_of(zero, round, &first, &end);
    memset(load, 0, (size_t)zero->world_size * sizeof *load);
    for (;;) {
        int32_t next = -1, least = 0;
        for (int32_t t = first; t < end; t++)
            if (is_matrix(zero, t) && zero->muon->owner[t] < 0 && (next < 0 || work_of(zero, t) > work_of(zero, next)))
                next = t;
        if (next < 0)
            return;
        for (int32_t r = 1; r < zero->world_size; r++)
            if (load[r] < load[least])
                least = r;
        DSC_ASSERT(least < zero->world_size);
        zero->muon->owner[next] = least;
        load[least] += work_of(zero, next);
    }
}

static int64_t chunk_of(dsc_zero *zero, dsc_round round)
{
    int32_t begin, end;
    int64_t most = 0, first, *sent = zero->muon->sent;
    tensors_of(zero, round, &begin, &end);
    for (int32_t r = 0; r < zero->world_size && zero->world_size > 1; r++) {
        memset(sent, 0, (size_t)zero->world_size * sizeof *sent);
        for (int32_t t = begin; t < end; t++) {
            if (!is_matrix(zero, t))
                continue;
            DSC_ASSERT(zero->muon->owner[t] >= 0);
            DSC_ASSERT(zero->muon->owner[t] < zero->world_size);
            most = dsc_max_i64(most, sent[zero->muon->owner[t]] += span_of(zero, t, r, &first));
        }
    }
    return most;
}

/* Rounds of neighbouring groups, as long as the limit allows; the offset of each group's directions in its round. */
static void cut_rounds(dsc_zero *zero)
{
    dsc_muon *m = zero->muon;
    const int32_t groups = zero->o.layout->group_count;
    int64_t held = 0;
    m->round[0] = (dsc_round){ 0, groups, 0 };
    m->round_count = 1;
    for (int32_t g = 0; g < groups; g++) {
        const int64_t own = zero->o.layout->group[g].matrices ? zero->group[g].local_count : 0;
        if (own > 0 && held > 0 && held + own > zero->o.round_elements) {
            DSC_ASSERT(m->round_count < groups);
            DSC_ASSERT(m->round[m->round_count - 1].first < g);
            m->round[m->round_count - 1].end = g;
            m->round[m->round_count++] = (dsc_round){ g, groups, 0 };
            held = 0;
        }
        m->at[g] = held;
        held += own;
        m->direction_elements = dsc_max_i64(m->direction_elements, held);
    }
    DSC_ASSERT(m->round[m->round_count - 1].end == groups);
}

static void plan_rounds(dsc_zero *zero, double *load)
{
    const dsc_layout *layout = zero->o.layout;
    dsc_muon *m = zero->muon;
    for (int32_t t = 0; t < layout->tensor_count; t++) {
        const int64_t side = smaller_side(&layout->tensor[t]);
        m->owner[t] = -1;
        if (is_matrix(zero, t))
            m->work_elements = dsc_max_i64(m->work_elements, 2 * layout->tensor[t].count + 2 * side * side);
    }
    cut_rounds(zero);
    for (int32_t r = 0; r < m->round_count; r++) {
        choose_owners(zero, m->round[r], load);
        m->round[r].chunk = chunk_of(zero, m->round[r]);
        m->chunk = dsc_max_i64(m->chunk, m->round[r].chunk);
        m->wire_bytes += 2 * (zero->world_size - 1) * m->round[r].chunk * 4;
        DSC_ASSERT(m->round[r].chunk <= m->direction_elements);
    }
    for (int32_t g = 0; g < layout->group_count; g++) {
        if (layout->group[g].matrices && zero->o.stage == 0)
            m->wire_bytes += (zero->world_size - 1) * layout->group[g].slice * 4;
        if (layout->group[g].matrices && dsc_host_update_updates(zero, g))
            m->host_elements = zero->store->tile_elements;
    }
}

enum { NEEDS = 7, ARRAYS = 4 };

/* Its arrays, which the plan of rounds fills. */
static void list_arrays(dsc_zero *zero, dsc_need out[ARRAYS])
{
    dsc_muon *m = zero->muon;
    const int64_t groups = zero->o.layout->group_count, tensors = zero->o.layout->tensor_count;
    const int64_t sent = zero->world_size * (int64_t)sizeof *m->sent;
    const dsc_need needs[ARRAYS] = {
        { &m->round, DSC_TAG_CONTROL, DSC_TIER_HOST, groups * (int64_t)sizeof *m->round, DSC_NEED_SMALL },
        { &m->at, DSC_TAG_CONTROL, DSC_TIER_HOST, groups * (int64_t)sizeof *m->at, DSC_NEED_SMALL },
        { &m->owner, DSC_TAG_CONTROL, DSC_TIER_HOST, tensors * (int64_t)sizeof *m->owner, DSC_NEED_SMALL },
        { &m->sent, DSC_TAG_CONTROL, DSC_TIER_HOST, sent, DSC_NEED_SMALL },
    };
    memcpy(out, needs, sizeof needs);
}

/* Its buffers, once rounds are planned. */
static void list_needs(dsc_zero *zero, dsc_need out[NEEDS])
{
    dsc_muon *m = zero->muon;
    const int64_t chunks = m->chunk * zero->world_size * 4, sum = (int64_t)sizeof(dsc_fixed_sum);
    const dsc_need needs[NEEDS] = {
        { &m->direction_buf, DSC_TAG_LEAF, DSC_TIER_DEVICE, m->direction_elements * 4, DSC_NEED_DEVICE },
        { &m->send_buf, DSC_TAG_LEAF, DSC_TIER_DEVICE, chunks, DSC_NEED_DEVICE },
        { &m->recv_buf, DSC_TAG_LEAF, DSC_TIER_DEVICE, chunks, DSC_NEED_DEVICE },
        { &m->work_buf, DSC_TAG_LEAF, DSC_TIER_DEVICE, m->work_elements * 4, DSC_NEED_DEVICE },
        { &m->sum_buf, DSC_TAG_LEAF, DSC_TIER_DEVICE, sum, DSC_NEED_DEVICE },
        { &m->norm_buf, DSC_TAG_LEAF, DSC_TIER_PINNED, sum, DSC_NEED_DEVICE },
        { &m->host_buf, DSC_TAG_LEAF, DSC_TIER_PINNED, m->host_elements * 4, DSC_NEED_DEVICE },
    };
    memcpy(out, needs, sizeof needs);
}

static dsc_status plan(dsc_zero *zero, dsc_error *err)
{
    dsc_alloc *alloc = zero->o.alloc;
    double *load = NULL;
    dsc_need arrays[ARRAYS], needs[NEEDS];
    list_arrays(zero, arrays);
    DSC_TRY(dsc_needs_plan_and_open(&zero->needs, arrays, ARRAYS, err));
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, zero->world_size, sizeof *load, &load, err));
    plan_rounds(zero, load);
    dsc_alloc_free(alloc, load);
    DSC_ASSERT(zero->muon->round_count <= zero->o.layout->group_count);
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
    dsc_need arrays[ARRAYS], needs[NEEDS];
    list_arrays(zero, arrays);
    list_needs(zero, needs);
    dsc_needs_close(&zero->needs, needs, NEEDS);
    dsc_needs_close(&zero->needs, arrays, ARRAYS);
}

static int32_t round_count(const dsc_zero *zero) { return zero->muon->round_count; }

static dsc_round round_at(const dsc_zero *zero, int32_t index)
{
    DSC_ASSERT(index >= 0);
    DSC_ASSERT(index < zero->muon->round_count);
    return zero->muon->round[index];
}

/* ---- this rank's part of the directions ---- */

/* Address of an element among the directions of its round. */
static float *direction_at(const dsc_zero *zero, int32_t g, int64_t element)
{
    DSC_ASSERT(element >= zero->group[g].local_first);
    DSC_ASSERT(element < zero->group[g].local_first + zero->group[g].local_count);
    return (float *)zero->muon->direction_buf.ptr + zero->muon->at[g] + (element - zero->group[g].local_first);
}

/* At stage 0 a rank has all elements; each one's direction is still made by its owner alone. */
static dsc_status make_tile(const dsc_zero *zero, const dsc_update_terms *terms, const dsc_tile *tile, dsc_error *err)
{
    const dsc_layout_group *group = &zero->o.layout->group[tile->group];
    const int64_t slice_first = group->slice * zero->o.rank;
    const int64_t begin = dsc_max_i64(tile->first, slice_first);
    const int64_t end = dsc_min_i64(tile->first + tile->count, slice_first + group->slice);
    const bool by_host = dsc_host_update_updates(zero, tile->group);
    DSC_ASSERT(group->matrices);
    DSC_ASSERT(!by_host || tile->count <= zero->muon->host_elements);
    float *const to = by_host ? zero->muon->host_buf.ptr : direction_at(zero, tile->group, tile->first);
    if (by_host)
        memset(to, 0, (size_t)tile->count * sizeof *to);
    for (int32_t t = group->first_tensor; t < group->first_tensor + group->tensor_count; t++) {
        const dsc_layout_tensor *tensor = &zero->o.layout->tensor[t];
        const int64_t first = dsc_max_i64(begin, tensor->offset);
        const int64_t last = dsc_min_i64(end, tensor->offset + tensor->count);
        dsc_update_args args;
        if (first >= last)
            continue;
        dsc_update_args_fill(zero, terms, tile, first, last, t, &args);
        args.direction = to + (first - tile->first);
        DSC_TRY(dsc_launch(tile->stream, dsc_recipe_kernel(zero->o.recipe), &args, (int64_t)sizeof args, err));
    }
    if (!by_host)
        return DSC_OK;
    DSC_TRY(dsc_stream_sync(tile->stream, err));
    DSC_TRY(dsc_copy(zero->o.compute, direction_at(zero, tile->group, tile->first), to, tile->count * 4, err));
    return dsc_stream_sync(zero->o.compute, err);
}

static dsc_status make_directions(dsc_zero *zero, const dsc_update_terms *terms, dsc_round round, dsc_error *err)
{
    const dsc_muon *m = zero->muon;
    DSC_ASSERT(m->direction_buf.bytes == m->direction_elements * 4);
    /* Between tensors nothing is made, and what is there is updated with its neighbours. */
    DSC_TRY(dsc_fill_zero(zero->o.compute, m->direction_buf.ptr, m->direction_elements * 4, err));
    DSC_TRY(dsc_update_tiles_seek(zero, round.first, round.end, true, err));
    for (int32_t g = round.first; g < round.end; g++) {
        dsc_tile tile = { .last_of_group = !zero->o.layout->group[g].matrices || zero->group[g].local_count == 0 };
        while (!tile.last_of_group) {
            DSC_TRY(dsc_update_tiles_next(zero, &tile, err));
            DSC_ASSERT(tile.group == g);
            DSC_TRY(make_tile(zero, terms, &tile, err));
            DSC_TRY(dsc_stream_sync(tile.stream, err));
            DSC_TRY(dsc_update_tiles_left(zero, &tile, err));
        }
    }
    return DSC_OK;
}

/* ---- to the owners and back ---- */

/* Copies this rank's elements to the chunks, or back; chunk o of the buffer is for or from owner o. */
static dsc_status pack(dsc_zero *zero, dsc_round round, bool back, dsc_error *err)
{
    dsc_muon *m = zero->muon;
    int32_t begin, end;
    tensors_of(zero, round, &begin, &end);
    memset(m->sent, 0, (size_t)zero->world_size * sizeof *m->sent);
    for (int32_t t = begin; t < end; t++) {
        const dsc_layout_tensor *tensor = &zero->o.layout->tensor[t];
        int64_t first;
        const int64_t count = is_matrix(zero, t) ? span_of(zero, t, zero->o.rank, &first) : 0;
        if (count == 0)
            continue;
        const int32_t owner = m->owner[t];
        float *here = direction_at(zero, tensor->group, tensor->offset + first);
        float *there = (float *)m->send_buf.ptr + owner * round.chunk + m->sent[owner];
        DSC_TRY(dsc_copy(zero->o.compute, back ? here : there, back ? there : here, count * 4, err));
        m->sent[owner] += count;
        DSC_ASSERT(m->sent[owner] <= round.chunk);
    }
    return DSC_OK;
}

/* A matrix of this rank's: from all ranks' parts, or back to them; sent[r] is where rank r's next one lies. */
static dsc_status copy_matrix(dsc_zero *zero, dsc_round round, int32_t t, float *whole, bool back, dsc_error *err)
{
    const dsc_muon *m = zero->muon;
    const dsc_layout_tensor *tensor = &zero->o.layout->tensor[t];
    DSC_ASSERT(m->owner[t] == zero->o.rank);
    for (int32_t r = 0; r < zero->world_size; r++) {
        int64_t first;
        const int64_t count = span_of(zero, t, r, &first);
        if (count == 0)
            continue;
        DSC_ASSERT(zero->world_size == 1 || m->sent[r] + count <= round.chunk);
        float *part = zero->world_size == 1 ? direction_at(zero, tensor->group, tensor->offset)
                                            : (float *)m->recv_buf.ptr + r * round.chunk + m->sent[r];
        DSC_TRY(dsc_copy(zero->o.compute, back ? part : whole + first, back ? whole + first : part, count * 4, err));
        m->sent[r] += back ? count : 0;
    }
    return DSC_OK;
}

/* ---- Newton-Schulz ---- */

/* x <- x over its Frobenius norm. */
static dsc_status normalise(dsc_zero *zero, float *x, int64_t count, dsc_error *err)
{
    const dsc_muon *m = zero->muon;
    DSC_ASSERT(count > 0);
    const int64_t bytes = (int64_t)sizeof(dsc_fixed_sum);
    dsc_stream *stream = zero->o.compute;
    DSC_TRY(dsc_fill_zero(stream, m->sum_buf.ptr, bytes, err));
    const dsc_sumsq_args squares = { .x = x, .count = count, .sum = m->sum_buf.ptr };
    DSC_TRY(DSC_RUN(stream, SUMSQ, &squares, err));
    DSC_TRY(dsc_copy(stream, m->norm_buf.ptr, m->sum_buf.ptr, bytes, err));
    DSC_TRY(dsc_stream_sync(stream, err));
    const double norm = sqrt(dsc_fixed_sum_value(m->norm_buf.ptr));
    const dsc_scale_args scale = { .x = x, .count = count, .factor = (float)(1.0 / fmax(norm, NORM_LEAST)),
                                   .dtype = DSC_F32 };
    return DSC_RUN(stream, SCALE, &scale, err);
}

/* y = first_order x + (third_order A + fifth_order A A) x with A = x x^T; of a tall x the same from its other side,
 * with A = x^T x. */
static dsc_status newton_schulz(dsc_stream *stream, int64_t rows, int64_t cols, const float *x, float *y, float *square,
                                float *polynomial, dsc_error *err)
{
    const bool tall = rows > cols;
    const int64_t side = tall ? cols : rows, along = tall ? rows : cols;
    DSC_ASSERT(side <= along);
    DSC_ASSERT(x != y);
    const int64_t of_side = tall ? 1 : cols, of_along = tall ? cols : 1; /* strides in x */
    const dsc_exact_gemm_args gram = { .c = square,
                                       .a = x,
                                       .b = x,
                                       .m = side,
                                       .n = side,
                                       .k = along,
                                       .a_row = of_side,
                                       .a_col = of_along,
                                       .b_row = of_along,
                                       .b_col = of_side,
                                       .alpha = 1 };
    const dsc_exact_gemm_args even = { .c = polynomial,
                                       .a = square,
                                       .b = square,
                                       .d = square,
                                       .m = side,
                                       .n = side,
                                       .k = side,
                                       .a_row = side,
                                       .a_col = 1,
                                       .b_row = side,
                                       .b_col = 1,
                                       .alpha = fifth_order,
                                       .beta = third_order };
    const dsc_exact_gemm_args odd = { .c = y,
                                      .a = tall ? x : polynomial,
                                      .b = tall ? polynomial : x,
                                      .d = x,
                                      .m = rows,
                                      .n = cols,
                                      .k = side,
                                      .a_row = side,
                                      .a_col = 1,
                                      .b_row = tall ? side : cols,
                                      .b_col = 1,
                                      .alpha = 1,
                                      .beta = first_order };
    DSC_TRY(DSC_RUN(stream, EXACT_GEMM, &gram, err));
    DSC_TRY(DSC_RUN(stream, EXACT_GEMM, &even, err));
    return DSC_RUN(stream, EXACT_GEMM, &odd, err);
}

static dsc_status orthogonalise(dsc_zero *zero, const dsc_update_terms *terms, dsc_round round, int32_t t,
                                dsc_error *err)
{
    const dsc_layout_tensor *tensor = &zero->o.layout->tensor[t];
    const int64_t rows = dsc_layout_rows(tensor), cols = dsc_layout_cols(tensor), side = smaller_side(tensor);
    DSC_ASSERT(2 * tensor->count + 2 * side * side <= zero->muon->work_elements);
    float *x = zero->muon->work_buf.ptr, *y = x + tensor->count;
    float *square = y + tensor->count, *polynomial = square + side * side;
    DSC_TRY(copy_matrix(zero, round, t, x, false, err));
    DSC_TRY(normalise(zero, x, tensor->count, err));
    for (int32_t i = 0; i < terms->scalars[tensor->update_class].ns_steps; i++) {
        DSC_TRY(newton_schulz(zero->o.compute, rows, cols, x, y, square, polynomial, err));
        float *const now = y;
        y = x;
        x = now;
    }
    return copy_matrix(zero, round, t, x, true, err);
}

static dsc_status orthogonalise_mine(dsc_zero *zero, const dsc_update_terms *terms, dsc_round round, dsc_error *err)
{
    dsc_muon *m = zero->muon;
    int32_t begin, end;
    tensors_of(zero, round, &begin, &end);
    DSC_ASSERT(begin < end);
    memset(m->sent, 0, (size_t)zero->world_size * sizeof *m->sent);
    for (int32_t t = begin; t < end; t++)
        if (is_matrix(zero, t) && m->owner[t] == zero->o.rank)
            DSC_TRY(orthogonalise(zero, terms, round, t, err));
    return DSC_OK;
}

static dsc_status swap_chunks(dsc_zero *zero, dsc_round round, void *to, const void *from, dsc_error *err)
{
    DSC_ASSERT(to != from);
    DSC_ASSERT(round.chunk <= zero->muon->chunk);
    return dsc_comm_all_to_all(zero->o.comm, DSC_CHANNEL_CONTROL, to, from, round.chunk * 4, zero->o.compute, err);
}

/* Stage 0 updates all elements everywhere. */
static dsc_status gather_directions(dsc_zero *zero, dsc_round round, dsc_error *err)
{
    DSC_ASSERT(zero->o.stage == 0);
    for (int32_t g = round.first; g < round.end; g++) {
        const dsc_layout_group *group = &zero->o.layout->group[g];
        if (group->matrices)
            DSC_TRY(dsc_comm_all_gather(zero->o.comm, DSC_CHANNEL_CONTROL, direction_at(zero, g, 0),
                                        direction_at(zero, g, group->slice * zero->o.rank), group->slice, DSC_F32,
                                        zero->o.compute, err));
    }
    return DSC_OK;
}

static dsc_status before_round(dsc_zero *zero, const dsc_update_terms *terms, int32_t index, dsc_error *err)
{
    dsc_muon *m = zero->muon;
    const dsc_round round = m->round[index];
    DSC_ASSERT(index < m->round_count);
    if (zero->stream.update != NULL) /* the round before is still being updated along what lies here */
        DSC_TRY(dsc_stream_sync(zero->stream.update, err));
    DSC_TRY(make_directions(zero, terms, round, err));
    if (zero->world_size > 1) {
        DSC_TRY(pack(zero, round, false, err));
        DSC_TRY(swap_chunks(zero, round, m->recv_buf.ptr, m->send_buf.ptr, err));
    }
    DSC_TRY(orthogonalise_mine(zero, terms, round, err));
    if (zero->world_size > 1) {
        DSC_TRY(swap_chunks(zero, round, m->send_buf.ptr, m->recv_buf.ptr, err));
        DSC_TRY(pack(zero, round, true, err));
    }
    if (zero->o.stage == 0 && zero->world_size > 1)
        DSC_TRY(gather_directions(zero, round, err));
    DSC_TRY(dsc_stream_sync(zero->o.compute, err)); /* the update may run elsewhere */
    return dsc_update_tiles_seek(zero, round.first, round.end, false, err);
}

static dsc_status direction(dsc_zero *zero, const dsc_tile *tile, const float **along, dsc_error *err)
{
    DSC_ASSERT(zero->o.layout->group[tile->group].matrices);
    float *const here = direction_at(zero, tile->group, tile->first);
    *along = here;
    if (!dsc_host_update_updates(zero, tile->group))
        return DSC_OK;
    DSC_ASSERT(tile->count <= zero->muon->host_elements);
    *along = zero->muon->host_buf.ptr; /* free: a tile is updated before the next one is asked for */
    DSC_TRY(dsc_copy(zero->o.compute, zero->muon->host_buf.ptr, here, tile->count * 4, err));
    return dsc_stream_sync(zero->o.compute, err);
}

static int64_t wire_bytes(const dsc_zero *zero) { return zero->muon->wire_bytes; }

const dsc_zero_pass_ops dsc_muon_pass = {
    .name = "muon",
    .needs = DSC_NEEDS_WHOLE_MATRIX,
    .matrices_only = true,
    .is_needed = is_needed,
    .plan = plan,
    .open = open,
    .close = close,
    .wire_bytes = wire_bytes,
    .round_count = round_count,
    .round = round_at,
    .before_round = before_round,
    .tensor_step = tensor_step,
    .direction = direction,
};
