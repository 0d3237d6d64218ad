/* conv.c - columns copied out of and into wider tensors, and the causal convolution over tokens.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "kernels/columns.h"
#include "kernels/conv.h"
#include "kernels/cpu/range.h"
#include "kernels/kernels.h"

enum { CHANNELS = 64, BLOCK_ROWS = 64 }; /* block of a sum over rows */

/* ---- columns ----------------------------------------------------------------------------------------------------- */

static void copy_rows(const void *args, int64_t first, int64_t last)
{
    const dsc_copy_columns_args *a = args;
    const int64_t bytes = (int64_t)dsc_dtype_bytes(a->dtype);
    const int64_t piece = dsc_min_i64(a->out_columns.width, a->in_columns.width);
    for (int64_t r = first; r < last; r++)
        for (int64_t c = 0; c < a->cols;) {
            /* up to the next end of a head on either side */
            const int64_t left = dsc_min_i64(a->out_columns.width - c % a->out_columns.width,
                                             a->in_columns.width - c % a->in_columns.width);
            const int64_t count = dsc_min_i64(dsc_min_i64(left, piece), a->cols - c);
            memcpy((char *)a->out + dsc_columns_at(&a->out_columns, r, c) * bytes,
                   (const char *)a->in + dsc_columns_at(&a->in_columns, r, c) * bytes, (size_t)(count * bytes));
            c += count;
        }
}

static dsc_status copy_columns(const void *args, const dsc_cpu_threads *pool, dsc_error *err)
{
    const dsc_copy_columns_args *a = args;
    DSC_ASSERT(a->out_columns.width >= 1);
    DSC_ASSERT(a->in_columns.width >= 1);
    DSC_TRY(dsc_range_dtype_check("COPY_COLUMNS", a->dtype, err));
    dsc_range_run(pool, a->rows, copy_rows, a);
    return DSC_OK;
}

/* ---- convolution ------------------------------------------------------------------------------------------------- */

/* Rows in front of row t that belong to its document and its sample, at most K - 1. */
static int64_t rows_before(const int32_t *positions, int64_t row, int64_t tokens, int32_t width)
{
    int64_t place = row % tokens;
    if (positions != NULL)
        place = dsc_min_i64(place, positions[row]);
    return dsc_min_i64(place, width - 1);
}

/* Row `row` of the input, which is in the tail where it is below 0. */
static float input_at(const dsc_conv_fwd_args *a, int64_t row, int64_t c)
{
    if (row >= 0)
        return dsc_get(a->in, dsc_columns_at(&a->in_columns, row, c), a->dtype);
    return a->resume ? dsc_get(a->tail, (a->width - 1 + row) * a->channels + c, a->dtype) : 0;
}

static void fwd_rows(const void *args, int64_t first, int64_t last)
{
    const dsc_conv_fwd_args *a = args;
    for (int64_t t = first; t < last; t++) {
        const int64_t before = a->resume ? a->width - 1 : rows_before(a->positions, t, a->tokens, a->width);
        for (int64_t c = 0; c < a->channels; c++) {
            float sum = 0;
            for (int64_t j = 0; j <= before; j++)
                sum += input_at(a, t - j, c) * dsc_get(a->weight, c * a->width + a->width - 1 - j, a->dtype);
            dsc_put(a->out, t * a->out_stride + c, a->dtype, sum);
        }
    }
}

/* The last K - 1 rows of what was there and what came; the oldest first, so that none is lost. */
static void keep_tail(const dsc_conv_fwd_args *a)
{
    const int64_t kept = a->width - 1;
    for (int64_t i = 0; i < kept; i++)
        for (int64_t c = 0; c < a->channels; c++)
            dsc_put(a->tail, i * a->channels + c, a->dtype, input_at(a, a->rows - kept + i, c));
}

static void check_conv(int64_t tokens, int64_t rows, int64_t channels, int32_t width)
{
    DSC_ASSERT(tokens >= 1);
    DSC_ASSERT(rows % tokens == 0);
    DSC_ASSERT(channels >= 1);
    DSC_ASSERT(width >= 1);
    DSC_ASSERT(width <= DSC_CONV_WIDTH_MAX);
}

static dsc_status conv_fwd(const void *args, const dsc_cpu_threads *pool, dsc_error *err)
{
    const dsc_conv_fwd_args *a = args;
    check_conv(a->tokens, a->rows, a->channels, a->width);
    DSC_ASSERT(a->tail == NULL || (a->rows == a->tokens && a->positions == NULL));
    DSC_ASSERT(!a->resume || a->tail != NULL);
    DSC_TRY(dsc_range_dtype_check("CONV_FWD", a->dtype, err));
    dsc_range_run(pool, a->rows, fwd_rows, a);
    if (a->tail != NULL)
        keep_tail(a);
    return DSC_OK;
}

static void bwd_rows(const void *args, int64_t first, int64_t last)
{
    const dsc_conv_bwd_args *a = args;
    for (int64_t t = first; t < last; t++) {
        const int64_t left = a->tokens - 1 - t % a->tokens;
        for (int64_t c = 0; c < a->channels; c++) {
            float sum = 0;
            for (int64_t j = 0; j < a->width && j <= left; j++)
                if (rows_before(a->positions, t + j, a->tokens, a->width) >= j)
                    sum += dsc_get(a->d_out, (t + j) * a->out_stride + c, a->dtype) *
                           dsc_get(a->weight, c * a->width + a->width - 1 - j, a->dtype);
            dsc_put(a->d_in, dsc_columns_at(&a->d_in_columns, t, c), a->dtype, sum);
        }
    }
}

static float weight_part(const dsc_conv_bwd_args *a, int64_t c, int64_t j, int64_t first, int64_t last)
{
    float sum = 0;
    for (int64_t t = first; t < last; t++)
        if (rows_before(a->positions, t, a->tokens, a->width) >= j)
            sum += dsc_get(a->d_out, t * a->out_stride + c, a->dtype) *
                   dsc_get(a->in, dsc_columns_at(&a->in_columns, t - j, c), a->dtype);
    return sum;
}

static void bwd_weights(const void *args, int64_t first, int64_t last)
{
    const dsc_conv_bwd_args *a = args;
    const int64_t end = dsc_min_i64(last * CHANNELS, a->channels);
    for (int64_t c = first * CHANNELS; c < end; c++)
        for (int64_t j = 0; j < a->width; j++)
            a->d_weight[c * a->width + a->width - 1 - j] = 0;
    for (int64_t r = 0; r < a->rows; r += BLOCK_ROWS)
        for (int64_t c = first * CHANNELS; c < end; c++)
            for (int64_t j = 0; j < a->width; j++)
                a->d_weight[c * a->width + a->width - 1 - j] +=
                    weight_part(a, c, j, r, dsc_min_i64(r + BLOCK_ROWS, a->rows));
}

static dsc_status conv_bwd(const void *args, const dsc_cpu_threads *pool, dsc_error *err)
{
    const dsc_conv_bwd_args *a = args;
    check_conv(a->tokens, a->rows, a->channels, a->width);
    DSC_TRY(dsc_range_dtype_check("CONV_BWD", a->dtype, err));
    if (a->d_weight != NULL)
        dsc_range_run(pool, dsc_div_ceil(a->channels, CHANNELS), bwd_weights, a);
    dsc_range_run(pool, a->rows, bwd_rows, a);
    return DSC_OK;
}

void dsc_conv_init(dsc_kernel_table *table, uint32_t caps)
{
    (void)caps;
    table->fn[DSC_KERNEL_COPY_COLUMNS] = copy_columns;
    table->fn[DSC_KERNEL_CONV_FWD] = conv_fwd;
    table->fn[DSC_KERNEL_CONV_BWD] = conv_bwd;
}
