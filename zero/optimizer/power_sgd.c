/* power_sgd.c - PowerSGD (Vogels, Karimireddy, Jaggi 2019, arXiv:1905.13727), as PyTorch's powerSGD_hook has it.
 *
 * Each rank keeps the sum of its own gradient parts. Before the norm, M is a matrix of that sum plus the rank's error.
 * Ranks add P = M Q first, and Q = M^T P second. The sum of all ranks becomes P Q^T, the error M - P Q^T / W here. The
 * columns of Q and P are made orthonormal before each product. Q stays for the next update, so that updates continue a
 * power iteration. Vectors, and matrices that would save too little, are added as they are. Afterwards all ranks have
 * the same sums.
 *
 * Products have the bits of kernels/exact_gemm.h, and sums over ranks are in rank order. Errors differ between ranks,
 * and a checkpoint does not have them. So a save sets them to 0 and Q to its first values, for the run that goes on and
 * for the one that resumes. Only at stage 0, as each rank needs the sums of whole matrices.
 * SPDX-License-Identifier: Apache-2.0 */
#include "zero/optimizer/power_sgd.h"

#include <math.h>
#include <string.h>

#include "base/rng.h"
#include "zero/core/internal.h"

static bool is_needed(const dsc_zero *zero) { return zero->o.power_sgd.rank > 0 && zero->world_size > 1; }

/* PyTorch's rule, with the rank as it was asked for. */
static bool is_compressed(const dsc_zero *zero, const dsc_layout_tensor *tensor)
{
    const dsc_power_sgd_options *o = &zero->o.power_sgd;
    if (tensor->spec->dim_count < 2)
        return false;
    const int64_t rows = tensor->spec->dim[0], cols = tensor->count / rows;
    DSC_ASSERT(rows * cols == tensor->count);
    return (double)((rows + cols) * o->rank) * o->min_rate < (double)tensor->count;
}

static bool is_trained(const dsc_zero *zero, const dsc_layout_tensor *tensor)
{
    return zero->o.layout->group[tensor->group].trainable;
}

static void place(dsc_zero *zero)
{
    dsc_power_sgd *power = zero->power_sgd;
    for (int32_t t = 0; t < zero->o.layout->tensor_count; t++) {
        const dsc_layout_tensor *tensor = &zero->o.layout->tensor[t];
        if (!is_trained(zero, tensor))
            continue;
        if (!is_compressed(zero, tensor)) {
            power->rest_elements += tensor->count;
            continue;
        }
        const int64_t rows = tensor->spec->dim[0], cols = tensor->count / rows;
        const int32_t rank = (int32_t)dsc_min_i64(zero->o.power_sgd.rank, dsc_min_i64(rows, cols));
        power->matrix[power->count++] =
            (dsc_power_matrix) { t, rank, rows, cols, power->p_elements, power->q_elements, power->error_elements };
        power->p_elements += rows * rank;
        power->q_elements += cols * rank;
        power->error_elements += tensor->count;
    }
    DSC_ASSERT(power->count <= zero->o.layout->tensor_count);
}

enum { NEEDS = 6 };
static void list_needs(dsc_zero *zero, dsc_need out[NEEDS])
{
    dsc_power_sgd *power = zero->power_sgd;
    const int64_t each = (int64_t)sizeof(float);
    const dsc_need needs[NEEDS] = {
        { &power->error, DSC_TAG_LEAF, DSC_TIER_DEVICE, power->error_elements * each, DSC_NEED_DEVICE },
        { &power->p, DSC_TAG_LEAF, DSC_TIER_DEVICE, power->p_elements * each, DSC_NEED_DEVICE },
        { &power->q, DSC_TAG_LEAF, DSC_TIER_DEVICE, power->q_elements * each, DSC_NEED_DEVICE },
        { &power->rest, DSC_TAG_LEAF, DSC_TIER_DEVICE, power->rest_elements * each, DSC_NEED_DEVICE },
        { &power->host, DSC_TAG_LEAF, DSC_TIER_PINNED, dsc_max_i64(power->p_elements, power->q_elements) * each,
          DSC_NEED_DEVICE },
        { &power->first_q, DSC_TAG_LEAF, DSC_TIER_PINNED, power->q_elements * each, DSC_NEED_DEVICE },
    };
    memcpy(out, needs, sizeof needs);
}

/* The list of matrices is part of the plan. */
static dsc_need list_of_matrices(dsc_zero *zero)
{
    const int64_t bytes = zero->o.layout->tensor_count * (int64_t)sizeof *zero->power_sgd->matrix;
    return (dsc_need) { &zero->power_sgd->matrix, DSC_TAG_CONTROL, DSC_TIER_HOST, bytes, DSC_NEED_SMALL };
}

static dsc_status plan(dsc_zero *zero, dsc_error *err)
{
    const dsc_need list = list_of_matrices(zero);
    dsc_need needs[NEEDS];
    DSC_ASSERT(zero->o.stage == 0 && zero->o.power_sgd.first >= 1);
    DSC_TRY(dsc_needs_plan_and_open(&zero->needs, &list, 1, err));
    place(zero);
    list_needs(zero, needs);
    dsc_needs_plan(&zero->needs, needs, NEEDS);
    return DSC_OK;
}

/* Random columns, by the number of the tensor: equal on all ranks. */
static void draw_first_q(const dsc_zero *zero)
{
    const dsc_power_sgd *power = zero->power_sgd;
    for (int32_t i = 0; i < power->count; i++) {
        const dsc_power_matrix *m = &power->matrix[i];
        const uint64_t stream = dsc_rng_stream(DSC_RNG_FACTORS, (uint32_t)zero->o.layout->tensor[m->tensor].number);
        dsc_rng_normal(zero->o.seed, stream, 0, m->cols * m->rank, 0, 1, (float *)power->first_q.ptr + m->q_at);
    }
}

dsc_status dsc_power_sgd_forget(dsc_zero *zero, dsc_error *err)
{
    const dsc_power_sgd *power = zero->power_sgd;
    if (power->count == 0)
        return DSC_OK;
    DSC_TRY(dsc_fill_zero(zero->o.compute, power->error.ptr, power->error.bytes, err));
    return dsc_copy(zero->o.compute, power->q.ptr, power->first_q.ptr, power->q.bytes, err);
}

static dsc_status open(dsc_zero *zero, dsc_error *err)
{
    dsc_need needs[NEEDS];
    list_needs(zero, needs);
    DSC_TRY(dsc_needs_open(&zero->needs, needs, NEEDS, err));
    draw_first_q(zero);
    return dsc_power_sgd_forget(zero, err);
}

static void close(dsc_zero *zero)
{
    const dsc_need list = list_of_matrices(zero);
    dsc_need needs[NEEDS];
    list_needs(zero, needs);
    dsc_needs_close(&zero->needs, needs, NEEDS);
    dsc_needs_close(&zero->needs, &list, 1);
}

/* An all-reduce is a reduce-scatter and an all-gather. */
static int64_t wire_bytes(const dsc_zero *zero)
{
    const dsc_power_sgd *power = zero->power_sgd;
    const int64_t elements = power->p_elements + power->q_elements + power->rest_elements;
    return 2 * elements * (int64_t)sizeof(float) * (zero->world_size - 1) / zero->world_size;
}

static void begin(dsc_zero *zero, int64_t update)
{
    zero->sums_are_own = update >= zero->o.power_sgd.first;
    zero->sums_are_shared = false;
}

/* ---- the exchange ---- */

static float *sum_of(const dsc_zero *zero, int32_t t)
{
    const dsc_layout_tensor *tensor = &zero->o.layout->tensor[t];
    DSC_ASSERT(zero->group[tensor->group].local_first == 0); /* stage 0 */
    return zero->group[tensor->group].grad + tensor->offset;
}

static float *error_of(const dsc_zero *zero, const dsc_power_matrix *m)
{
    return (float *)zero->power_sgd->error.ptr + m->error_at;
}

/* P = M Q, or Q = M^T P; M is in the place of the errors. */
static dsc_status multiply(dsc_zero *zero, const dsc_power_matrix *m, bool transposed, dsc_error *err)
{
    float *p = (float *)zero->power_sgd->p.ptr + m->p_at, *q = (float *)zero->power_sgd->q.ptr + m->q_at;
    const dsc_exact_gemm_args args = { .c = transposed ? q : p,
                                       .a = error_of(zero, m),
                                       .b = transposed ? p : q,
                                       .m = transposed ? m->cols : m->rows,
                                       .n = m->rank,
                                       .k = transposed ? m->rows : m->cols,
                                       .a_row = transposed ? 1 : m->cols,
                                       .a_col = transposed ? m->cols : 1,
                                       .b_row = m->rank,
                                       .b_col = 1,
                                       .alpha = 1 };
    return DSC_RUN(zero->o.compute, EXACT_GEMM, &args, err);
}

/* The place of the sum = alpha P Q^T. */
static dsc_status approximate(dsc_zero *zero, const dsc_power_matrix *m, float alpha, dsc_error *err)
{
    const dsc_exact_gemm_args args = { .c = sum_of(zero, m->tensor),
                                       .a = (float *)zero->power_sgd->p.ptr + m->p_at,
                                       .b = (float *)zero->power_sgd->q.ptr + m->q_at,
                                       .m = m->rows,
                                       .n = m->cols,
                                       .k = m->rank,
                                       .a_row = m->rank,
                                       .a_col = 1,
                                       .b_row = 1,
                                       .b_col = m->rank,
                                       .alpha = alpha };
    return DSC_RUN(zero->o.compute, EXACT_GEMM, &args, err);
}

static dsc_status add_to_error(dsc_zero *zero, const dsc_power_matrix *m, dsc_error *err)
{
    float *error = error_of(zero, m);
    DSC_ASSERT(m->error_at + m->rows * m->cols <= zero->power_sgd->error_elements);
    const dsc_add_args args = {
        .to = error, .a = error, .b = sum_of(zero, m->tensor), .count = m->rows * m->cols
    };
    return DSC_RUN(zero->o.compute, ADD, &args, err);
}

/* Modified Gram-Schmidt of the columns of a matrix, in double. A column that depends on those before becomes 0. */
static void orthonormalize(float *x, int64_t rows, int32_t rank)
{
    DSC_ASSERT(rank >= 1 && rank <= rows);
    for (int32_t i = 0; i < rank; i++) {
        double squares = 0;
        for (int64_t r = 0; r < rows; r++)
            squares += (double)x[r * rank + i] * (double)x[r * rank + i];
        const double norm = sqrt(squares);
        for (int64_t r = 0; r < rows; r++)
            x[r * rank + i] = norm > 0 ? (float)((double)x[r * rank + i] / norm) : 0;
        for (int32_t j = i + 1; j < rank; j++) {
            double along = 0;
            for (int64_t r = 0; r < rows; r++)
                along += (double)x[r * rank + i] * (double)x[r * rank + j];
            for (int64_t r = 0; r < rows; r++)
                x[r * rank + j] = (float)((double)x[r * rank + j] - along * (double)x[r * rank + i]);
        }
    }
}

/* All Q, or all P. */
static dsc_status orthonormalize_all(dsc_zero *zero, bool of_q, dsc_error *err)
{
    const dsc_power_sgd *power = zero->power_sgd;
    const dsc_buf *buf = of_q ? &power->q : &power->p;
    float *host = power->host.ptr;
    DSC_TRY(dsc_copy(zero->o.compute, host, buf->ptr, buf->bytes, err));
    DSC_TRY(dsc_stream_sync(zero->o.compute, err));
    for (int32_t i = 0; i < power->count; i++) {
        const dsc_power_matrix *m = &power->matrix[i];
        orthonormalize(host + (of_q ? m->q_at : m->p_at), of_q ? m->cols : m->rows, m->rank);
    }
    return dsc_copy(zero->o.compute, buf->ptr, host, buf->bytes, err);
}

static dsc_status add_ranks(dsc_zero *zero, const dsc_buf *buf, int64_t elements, dsc_error *err)
{
    DSC_ASSERT(elements * (int64_t)sizeof(float) <= buf->bytes);
    if (elements == 0)
        return DSC_OK;
    return dsc_comm_all_reduce(zero->o.comm, DSC_CHANNEL_REDUCE, buf->ptr, elements, DSC_F32, zero->o.compute, err);
}

/* Sums of tensors that are not compressed, to the buffer or back. */
static dsc_status copy_rest(dsc_zero *zero, bool back, dsc_error *err)
{
    float *at = zero->power_sgd->rest.ptr;
    for (int32_t t = 0; t < zero->o.layout->tensor_count; t++) {
        const dsc_layout_tensor *tensor = &zero->o.layout->tensor[t];
        if (!is_trained(zero, tensor) || is_compressed(zero, tensor))
            continue;
        float *sum = sum_of(zero, t);
        DSC_TRY(dsc_copy(zero->o.compute, back ? sum : at, back ? at : sum, tensor->count * (int64_t)sizeof *at, err));
        at += tensor->count;
    }
    DSC_ASSERT(at - (float *)zero->power_sgd->rest.ptr == zero->power_sgd->rest_elements);
    return DSC_OK;
}

static dsc_status exchange_matrices(dsc_zero *zero, dsc_error *err)
{
    const dsc_power_sgd *power = zero->power_sgd;
    const float share = (float)(1.0 / zero->world_size);
    DSC_ASSERT(power->count > 0 && zero->world_size > 1);
    DSC_TRY(orthonormalize_all(zero, true, err)); /* the span of its columns counts, and rounding less than before */
    for (int32_t i = 0; i < power->count; i++) {
        DSC_TRY(add_to_error(zero, &power->matrix[i], err));
        DSC_TRY(multiply(zero, &power->matrix[i], false, err));
    }
    DSC_TRY(add_ranks(zero, &power->p, power->p_elements, err));
    DSC_TRY(orthonormalize_all(zero, false, err));
    for (int32_t i = 0; i < power->count; i++)
        DSC_TRY(multiply(zero, &power->matrix[i], true, err));
    DSC_TRY(add_ranks(zero, &power->q, power->q_elements, err));
    for (int32_t i = 0; i < power->count; i++) {
        DSC_TRY(approximate(zero, &power->matrix[i], -share, err));
        DSC_TRY(add_to_error(zero, &power->matrix[i], err));
        DSC_TRY(approximate(zero, &power->matrix[i], 1, err));
    }
    return DSC_OK;
}

static dsc_status share_sums(dsc_zero *zero, dsc_error *err)
{
    if (!zero->sums_are_own)
        return DSC_OK;
    if (zero->power_sgd->count > 0)
        DSC_TRY(exchange_matrices(zero, err));
    DSC_TRY(copy_rest(zero, false, err));
    DSC_TRY(add_ranks(zero, &zero->power_sgd->rest, zero->power_sgd->rest_elements, err));
    DSC_TRY(copy_rest(zero, true, err));
    zero->sums_are_own = false;
    zero->sums_are_shared = true;
    return DSC_OK;
}

const dsc_zero_pass_ops dsc_power_sgd_pass = {
    .name = "PowerSGD",
    .replaces_sums = true,
    .is_needed = is_needed,
    .plan = plan,
    .open = open,
    .close = close,
    .wire_bytes = wire_bytes,
    .begin = begin,
    .share_sums = share_sums,
    .forget = dsc_power_sgd_forget,
};
